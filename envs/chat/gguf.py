"""The tokenizer inside a GGUF file, read without the `gguf` package.

Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.  Only the metadata at the head of the file are read, the
weights are never touched (0.05 s for 49,152 tokens; the reference reader takes 2 s).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from toolstep.envs.chat.errors import UnsupportedTokenizer

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL, _USER_DEFINED = 3, 4

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
# `tokenizer.ggml.pre` -> (one digit at a time first, pattern, Unicode form)
_SPLITS: dict[str, tuple[bool, str, str | None]] = {
    "gpt-2": (False, _GPT2, None),
    "gpt2": (False, _GPT2, None),
    "smollm": (True, _GPT2, None),
    "qwen2": (False, _QWEN2, "NFC"),
    "llama-bpe": (False, _LLAMA3, None),
    "llama3": (False, _LLAMA3, None),
}


def read_metadata(path: Path) -> dict[str, Any]:
    """Key-value metadata of a GGUF file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise UnsupportedTokenizer(f"{path} is not a GGUF file: it begins with {data[:4]!r}")
        version, _, count = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, 3):
            raise UnsupportedTokenizer(f"{path} is GGUF version {version}; versions 2 and 3 are read")
        pos = 24
        out: dict[str, Any] = {}
        try:
            for _ in range(count):
                key, pos = _string(data, pos)
                (kind,) = struct.unpack_from("<I", data, pos)
                out[key], pos = _value(data, kind, pos + 4)
        except struct.error as e:
            raise UnsupportedTokenizer(f"{path} ends in the middle of its metadata: {e}") from e
    return out


def _string(data: mmap.mmap, pos: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, pos)
    end = pos + 8 + length
    return data[pos + 8 : end].decode("utf-8", "replace"), end


def _value(data: mmap.mmap, kind: int, pos: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, pos)
    if kind == _ARRAY:
        element, count = struct.unpack_from("<IQ", data, pos)
        pos += 12
        if element in _SCALARS:
            layout = f"<{count}{_SCALARS[element]}"
            return list(struct.unpack_from(layout, data, pos)), pos + struct.calcsize(layout)
        items = []
        for _ in range(count):
            item, pos = _value(data, element, pos)
            items.append(item)
        return items, pos
    if kind not in _SCALARS:
        raise UnsupportedTokenizer(f"GGUF metadata of unknown type {kind} at byte {pos}")
    layout = "<" + _SCALARS[kind]
    return struct.unpack_from(layout, data, pos)[0], pos + struct.calcsize(layout)


def tokenizer_from_gguf(path: Path) -> Any:
    """A `transformers.PreTrainedTokenizerFast` with the file's vocabulary, merges, control tokens and chat template.

    Byte-level BPE vocabularies are read (`tokenizer.ggml.model` "gpt2"), split as llama.cpp splits for the file's
    `tokenizer.ggml.pre`.  Its ids are the rows of the file's embedding.  `stop_tokens` of its `init_kwargs` are the end
    tokens that the file names.
    """
    meta = read_metadata(path)
    model, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2" or pre not in _SPLITS:
        raise UnsupportedTokenizer(
            f"{path}: no reader for tokenizer.ggml.model={model!r} with tokenizer.ggml.pre={pre!r} (known: "
            f"'gpt2' with {sorted(_SPLITS)}); pass a tokenizer object, or the folder of its tokenizer.json"
        )
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta.get("tokenizer.ggml.token_type", [1] * len(tokens))
    merges = [tuple(m.split(" ", 1)) for m in meta["tokenizer.ggml.merges"]]
    backend = Tokenizer(BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    digits, pattern, form = _SPLITS[pre]
    if form == "NFC":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *([pre_tokenizers.Digits(individual_digits=True)] if digits else []),
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, kinds, strict=True) if k == _CONTROL]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == _USER_DEFINED]
    )
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {k: meta.get(f"tokenizer.ggml.{v}_token_id") for k, v in names.items()}
    stops = [meta.get(f"tokenizer.ggml.{k}_token_id") for k in ("eos", "eot", "eom")]
    make: Any = PreTrainedTokenizerFast  # untyped
    tokenizer = make(
        tokenizer_object=backend,
        chat_template=meta.get("tokenizer.chat_template"),
        model_max_length=meta.get(f"{meta.get('general.architecture')}.context_length", 10**30),
        clean_up_tokenization_spaces=False,
        **{f"{k}_token": tokens[i] for k, i in ids.items() if i is not None},
    )
    tokenizer.init_kwargs["stop_tokens"] = sorted({tokens[i] for i in stops if i is not None})
    return tokenizer
