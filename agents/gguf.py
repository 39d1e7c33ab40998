"""Reading a model out of a GGUF file, each byte once.

transformers can do it too, but asks for `accelerate` and parses the whole file anew for the config, the weights and the
tokenizer (2 to 3 s each for a vocabulary of 49k).  The common architectures need one pass and no `accelerate`; the
others take transformers' own converter.  Weights are dequantised to fp32.
"""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

_LOG = logging.getLogger(__name__)
# Architectures for which `load_gguf_checkpoint` does nothing but rename fields and permute q and k.
_PLAIN = ("llama", "qwen2", "qwen3")


def load_gguf(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The causal LM stored in `path`, on the CPU, in eval mode."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ImportError(f"{path.name}: reading a GGUF file needs the package gguf; run `pip install gguf`") from None

    class Reader(GGUFReader):
        # The stock reader slices a memmap a million times; a slice of the plain view of it costs a third.
        def _get(self, *args: Any, **kwargs: Any) -> Any:
            if isinstance(self.data, np.memmap):
                plain: Any = self.data.view(np.ndarray)
                self.data = plain
            return super()._get(*args, **kwargs)

    try:
        reader = Reader(path)
    except (ValueError, KeyError, IndexError) as error:
        raise ValueError(f"{path} is not a GGUF file that can be read ({error}); is the download complete?") from error
    architecture = str(_value(reader, "general.architecture"))
    name = str(_value(reader, "general.name"))
    plain = architecture in _PLAIN and "mistral" not in name.lower()
    config = _config(reader, architecture) if plain else _converted_config(path)
    model = _empty_model(config)
    if plain:
        state = _tensors(reader, architecture, config, model, dtype)
    else:
        state = _converter().load_gguf_checkpoint(
            str(path), return_tensors=True, model_to_load=model, torch_dtype=dtype
        )["tensors"]
    result = model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    if missing := [key for key in result.missing_keys if key not in tied]:
        raise ValueError(
            f"{path}: no tensor for {', '.join(missing[:4])}; the file does not hold a whole {architecture}"
        )
    model.generation_config.eos_token_id = config.eos_token_id
    return model.eval()


def _converter() -> Any:
    """transformers' module of GGUF conversions, which has no types."""
    return import_module("transformers.modeling_gguf_pytorch_utils")


def _value(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _config(reader: Any, architecture: str) -> Any:
    from transformers import AutoConfig
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    mapping: Any = GGUF_CONFIG_MAPPING[architecture]
    values: dict[str, Any] = {}
    for key, name in mapping.items():
        value = _value(reader, f"{architecture}.{key}")
        if name and value is not None:
            values[name] = value
    values.setdefault("vocab_size", len(reader.fields["tokenizer.ggml.tokens"].data))
    for token in ("bos", "eos", "unk", "pad"):
        key = {"unk": "unknown", "pad": "padding"}.get(token, token)
        values[f"{token}_token_id"] = _value(reader, f"tokenizer.ggml.{key}_token_id")
    values["tie_word_embeddings"] = all(tensor.name != "output.weight" for tensor in reader.tensors)
    return AutoConfig.for_model(architecture, **values)


def _converted_config(path: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)


def _empty_model(config: Any) -> Any:
    """The model with weights that are about to be replaced; rotary tables and other buffers are right."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    auto: Any = AutoModelForCausalLM
    with no_init_weights():
        return auto.from_config(config, dtype=torch.float32)


def _tensors(reader: Any, architecture: str, config: Any, model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    from gguf import MODEL_ARCH_NAMES, dequantize, get_tensor_name_map

    # transformers' own map builds this table once for every submodule, which took 7 s of 10 for 30 layers.
    arch = next(key for key, value in MODEL_ARCH_NAMES.items() if value == architecture)
    table = get_tensor_name_map(arch, config.num_hidden_layers)
    names = {}
    for key in model.state_dict():
        stem, _, suffix = key.rpartition(".")
        if (stored := table.get_name(stem)) is not None:
            names[f"{stored}.{suffix}"] = key
    converter = _converter()
    processor = converter.TENSOR_PROCESSORS.get(architecture, converter.TensorProcessor)(config=config.to_dict())
    state: dict[str, torch.Tensor] = {}
    unused = []
    for tensor in reader.tensors:
        if tensor.name not in names:
            unused.append(tensor.name)
            continue
        weights = processor.process(
            weights=dequantize(tensor.data, tensor.tensor_type), name=tensor.name, tensor_key_mapping=names
        ).weights
        # A copy where dequantising made none: the file's pages are read-only and must not stay mapped.
        array = np.ascontiguousarray(weights)
        state[names[tensor.name]] = torch.from_numpy(array if array.flags.writeable else array.copy()).to(dtype)
    if unused:
        _LOG.warning("GGUF tensors that the model has no place for: %s", ", ".join(unused))
    return state
