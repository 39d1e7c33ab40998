"""Models that come with the package: toolstep-tiny, made by examples/tiny/train.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_TINY = Path(__file__).resolve().parent / "tiny"

# name -> folder, as save_pretrained writes it.
SHIPPED: Mapping[str, Path] = MappingProxyType({"tiny": _TINY / "grpo", "tiny-sft": _TINY / "sft"})


def model_source(name: str) -> str:
    """Where the model and the tokenizer called `name` are: the folder of a shipped model, else `name` itself."""
    return str(SHIPPED[name]) if name in SHIPPED else name
