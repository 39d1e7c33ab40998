"""llama.cpp (the low-level API of llama-cpp-python) on workload W, at the precision of the model at hand.

All episodes run in one context with the cells of a group's prompt shared, and every step decodes whatever can be
decoded; sampling is this project's.  The weights go through a temporary GGUF file in the model's own dtype.

It runs in a process of its own (this file is its program: one line in, one run, its count of ids out): its OpenMP
runtime is not torch's, and the threads of two runtimes in one process fight for the cores.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workload
from workload import Episode

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine.sampling import choose
from toolstep.agents.weights import load_model

_BATCH = 512
_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class Worker:
    """A process that plays the workload each time that it is called."""

    def __init__(self, **options: object) -> None:
        arguments = [x for name, value in options.items() for x in (f"--{name}", str(value))]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def __call__(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"llama.cpp ended with exit code {self._process.wait()}")
        return int(line)


class LlamaCpp:
    """A Llama model in llama.cpp.  threads: of the matrix products."""

    def __init__(self, model: Any, threads: int) -> None:
        import llama_cpp

        self.api, self.threads = llama_cpp, threads
        self.vocabulary = model.config.vocab_size
        self.kind = {torch.float32: 0, torch.bfloat16: 30}[model.dtype]  # ggml's number; of keys and values as well
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            _write(model, path)
            parameters = llama_cpp.llama_model_default_params()
            parameters.use_mmap = False
            self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.model:
            raise RuntimeError("llama.cpp cannot read the model")

    def run(self, work: Sequence[Episode]) -> int:
        """Play all episodes; the number of ids sampled."""
        api = self.api
        context = api.llama_init_from_model(self.model, self._parameters(work))
        batch = api.llama_batch_init(_BATCH, 0, len(work))
        try:
            return self._play(work, context, self._decoder(context, batch))
        finally:
            api.llama_batch_free(batch)
            api.llama_free(context)

    def _parameters(self, work: Sequence[Episode]) -> Any:
        prompts = {e.group: len(e.prompt) for e in work}
        cells = sum(prompts.values()) + sum(e.length - len(e.prompt) + 1 for e in work)
        out = self.api.llama_context_default_params()
        out.n_ctx = -(-cells // 256) * 256
        out.n_batch = out.n_ubatch = _BATCH
        out.n_seq_max = out.n_outputs_max = len(work)
        out.n_threads = out.n_threads_batch = self.threads
        out.kv_unified = True
        out.type_k = out.type_v = self.kind
        # Its flash attention computes in f16: right for bf16, 400 times the error of the plain one in fp32.
        out.flash_attn_type = int(self.kind != 0)
        return out

    def _decoder(self, context: Any, batch: Any) -> Callable[..., torch.Tensor]:
        """A function of (id, position, sequences, whether its logits are wanted): logits [wanted, V]."""

        def decode(items: Sequence[tuple[int, int, Sequence[int], bool]]) -> torch.Tensor:
            batch.n_tokens = len(items)
            for i, (token, position, rows, wanted) in enumerate(items):
                batch.token[i], batch.pos[i] = token, position
                batch.n_seq_id[i], batch.logits[i] = len(rows), wanted
                for j, row in enumerate(rows):
                    batch.seq_id[i][j] = row
            if status := self.api.llama_decode(context, batch):
                raise RuntimeError(f"llama_decode: {status}")
            count = sum(item[3] for item in items)
            start = ctypes.cast(self.api.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
            return torch.from_numpy(np.ctypeslib.as_array(start, (max(count, 1), self.vocabulary)))[:count]

        return decode

    def _play(self, work: Sequence[Episode], context: Any, decode: Callable[..., torch.Tensor]) -> int:
        memory = self.api.llama_get_memory(context)
        length = [len(e.prompt) for e in work]
        turn, left = [0] * len(work), [e.limits[0] for e in work]
        random = np.random.default_rng(0)
        params = SamplingParams()
        new: dict[int, list[int]] = {}
        sampled = 0

        def take(rows: Sequence[int], logits: torch.Tensor) -> None:
            nonlocal sampled
            choice = choose(logits, random.random(len(rows)), params, [()] * len(rows))
            sampled += len(rows)
            for row, token in zip(rows, choice.tokens.tolist(), strict=True):
                new[row] = [token]
                left[row] -= 1
                if left[row]:
                    continue
                episode = work[row]
                if turn[row] + 1 == len(episode.limits):
                    del new[row]
                    self.api.llama_memory_seq_rm(memory, row, -1, -1)
                    continue
                new[row] += episode.observations[turn[row]]
                turn[row] += 1
                left[row] = episode.limits[turn[row]]

        for group in sorted({e.group for e in work}):
            rows = [i for i, e in enumerate(work) if e.group == group]
            prompt = work[rows[0]].prompt
            logits = decode([(token, i, rows, i == len(prompt) - 1) for i, token in enumerate(prompt)])
            take(rows, logits.expand(len(rows), -1).clone())
        while new:
            items: list[tuple[int, int, list[int], bool]] = []
            chosen = []
            for row, ids in new.items():
                if len(items) + len(ids) <= _BATCH:
                    items += [(t, length[row] + i, [row], i == len(ids) - 1) for i, t in enumerate(ids)]
                    length[row] += len(ids)
                    chosen.append(row)
            take(chosen, decode(items))
        return sampled


def _write(model: Any, path: Path) -> None:
    import gguf

    config = model.config
    kind = {torch.float32: gguf.GGMLQuantizationType.F32, torch.bfloat16: gguf.GGMLQuantizationType.BF16}[model.dtype]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim or config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not config.tie_word_embeddings:
        names["lm_head.weight"] = "output.weight"
    for layer in range(config.num_hidden_layers):
        for theirs, name in _NAMES.items():
            names[f"model.layers.{layer}.{theirs}.weight"] = f"blk.{layer}.{name}.weight"
    state = model.state_dict()
    for theirs, name in names.items():
        weight = state[theirs]
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in theirs:  # llama.cpp turns neighbours where transformers turns halves
                weight = weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        if weight.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, weight.float().contiguous().numpy())
        else:
            data = weight.contiguous().view(torch.int16).numpy().view(np.uint8)
            writer.add_tensor(name, data, raw_shape=data.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", required=True)
    for name in ("threads", "groups", "members"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)  # for sampling alone: more would fight with those of llama.cpp
    model = load_model(args.model, "cpu", args.dtype)
    work = workload.episodes(vocabulary=model.config.vocab_size, groups=args.groups, members=args.members)
    player = LlamaCpp(model, args.threads)
    print(0, flush=True)
    for _ in sys.stdin:
        print(player.run(work), flush=True)


if __name__ == "__main__":
    main()
