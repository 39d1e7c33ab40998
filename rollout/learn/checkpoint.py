"""Checkpoints: one safetensors file that is whole or not there, with the learner's counters in its header."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from toolstep.rollout.storage import StorageError, clear_errors, replacing

_FORMAT = "toolstep.checkpoint"


def write_checkpoint(path: Path | str, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Put tensors and a JSON-able `state` in the place of `path` (written, synced, renamed)."""
    path = Path(path)
    with clear_errors(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    data = save(plain, {"format": _FORMAT, "state": json.dumps(dict(state), allow_nan=False)})
    with replacing(path) as file:
        file.write(data)


def read_checkpoint(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_checkpoint` wrote.  Raises `StorageError` for a file that is missing or no checkpoint."""
    path = Path(path)
    if not path.is_file():
        raise StorageError(f"there is no checkpoint {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        if header.get("format") != _FORMAT:
            raise ValueError("its header says nothing of a toolstep checkpoint")
        state = json.loads(header["state"])
    except (SafetensorError, ValueError, KeyError, OSError, struct.error) as error:
        raise StorageError(f"{path} is no checkpoint of a toolstep learner: {error}") from error
    return tensors, state


def check_weights(path: Path | str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise `StorageError` naming the first weight that shows that the checkpoint is of another model."""
    for name in sorted(found.keys() ^ expected.keys()):
        where = "the checkpoint, not the model" if name in found else "the model, not the checkpoint"
        raise StorageError(f"{path} is a checkpoint of another model: {name} is in {where}")
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            raise StorageError(
                f"{path} is a checkpoint of another model: {name} is {list(found[name].shape)} there "
                f"and {list(tensor.shape)} in the model"
            )
