"""GGUF files of tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_gguf(path: Path, model: Any, kind: Any, tokenizer: Any = None) -> None:
    """A llama.cpp-style file of a Llama: their names, their order of the rows of q and k.

    tokenizer: a byte-level one without merges; None: made-up tokens, which no text can be turned into.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    if tokenizer is None:
        writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
        writer.add_eos_token_id(3)
    else:
        add_tokenizer(writer, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for key, tensor in model.state_dict().items():
        stem, _, suffix = key.rpartition(".")
        array = tensor.numpy()
        if "q_proj" in key or "k_proj" in key:
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        stored = kind if array.ndim == 2 and array.shape[1] % 32 == 0 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(np.ascontiguousarray(array), stored)
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, tokenizer: Any) -> None:
    special = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if i in special else normal for i in range(len(tokens))])
    writer.add_token_merges(["\u00ff \u00fe"])  # llama.cpp wants one; it makes no token
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
