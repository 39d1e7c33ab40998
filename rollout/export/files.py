"""Rollouts as files, in each `Format`; what is written is whole or not there."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolstep.rollout import storage
from toolstep.rollout.batch import RolloutBatch
from toolstep.rollout.export.formats import Format
from toolstep.rollout.types import Trajectory


def check_output(out: Path, form: Format, *, overwrite: bool = False) -> None:
    """Find out, before any work is done, that `out` can be written; makes its folder.  Raises `StorageError`."""
    check = storage.check_file if form.suffix else storage.check_folder
    check(out, overwrite=overwrite)


def write_rollout(out: Path, form: Format, trajectories: Sequence[Trajectory]) -> None:
    """Put `trajectories` in the place of `out`.

    Raises `StorageError`, and `BatchError` for trajectories that the format cannot hold.
    """
    _WRITERS[form](out, trajectories)


def _npz(out: Path, trajectories: Sequence[Trajectory]) -> None:
    storage.save_batch(out, RolloutBatch.from_trajectories(trajectories))


def _trl(out: Path, trajectories: Sequence[Trajectory]) -> None:
    from toolstep.rollout.export.trl import to_trl

    storage.write_text(out, json.dumps(to_trl(trajectories), allow_nan=False))


def _verl(out: Path, trajectories: Sequence[Trajectory]) -> None:
    from toolstep.rollout.export.verl import to_verl

    storage.write_text(out, "".join(json.dumps(row, allow_nan=False) + "\n" for row in to_verl(trajectories)))


def _skyrl(out: Path, trajectories: Sequence[Trajectory]) -> None:
    from toolstep.rollout.export.skyrl import to_skyrl

    data = to_skyrl(trajectories)
    data["trajectory_ids"] = [asdict(name) for name in data["trajectory_ids"]]
    storage.write_text(out, json.dumps(data, allow_nan=False))


def _torchrl(out: Path, trajectories: Sequence[Trajectory]) -> None:
    import torch

    from toolstep.rollout.export.torchrl import torchrl_tensors

    # Plain tensors: torch.load reads them without unpickling objects.
    tensors = torchrl_tensors(RolloutBatch.from_trajectories(trajectories))
    with storage.replacing(out) as file:
        torch.save(tensors, file)


def _parquet(out: Path, trajectories: Sequence[Trajectory]) -> None:
    import pyarrow.parquet as pq

    from toolstep.rollout.export.datasets import to_table

    table = to_table(trajectories)
    with storage.replacing(out) as file:
        pq.write_table(table, file)


def _datasets(out: Path, trajectories: Sequence[Trajectory]) -> None:
    from toolstep.rollout.export.datasets import to_dataset

    dataset = to_dataset(trajectories)
    with (
        storage.clear_errors(out, "write to"),
        tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as new,
    ):
        dataset.save_to_disk(new)
        out.mkdir(exist_ok=True)
        files = sorted(Path(new).iterdir(), key=lambda f: f.suffix == ".json")  # what names the others comes last
        for file in files:
            file.replace(out / file.name)
        for old in set(out.glob("data-*.arrow")) - {out / f.name for f in files}:
            old.unlink()


_WRITERS: Mapping[Format, Callable[[Path, Sequence[Trajectory]], Any]] = {
    Format.NPZ: _npz,
    Format.JSONL: storage.write_episodes,
    Format.TRL: _trl,
    Format.VERL: _verl,
    Format.TORCHRL: _torchrl,
    Format.SKYRL: _skyrl,
    Format.PARQUET: _parquet,
    Format.DATASETS: _datasets,
}
