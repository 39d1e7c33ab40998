"""Trajectories as JSON lines, batches as .npz; what is written is whole or not there."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from toolstep.rollout.batch import BatchCounts, BatchError, RolloutBatch
from toolstep.rollout.types import Trajectory, TrajectoryError


class StorageError(OSError):
    """A file cannot be written or read; the message says which and why."""


@contextmanager
def clear_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError on `path` into a `StorageError` that says what to do."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        hint = {
            errno.ENOSPC: "the disk is full: free some space or choose another path",
            errno.EDQUOT: "the disk quota is used up: free some space or choose another path",
            errno.EACCES: "no permission: choose a path that you may write to",
            errno.EROFS: "the file system is read-only: choose another path",
        }.get(error.errno or 0, error.strerror or str(error))
        raise StorageError(f"cannot {doing} {path}: {hint}") from error


def check_file(path: Path, *, overwrite: bool = False) -> None:
    """Find out, before any work is done, that `path` can be written; makes its folder.

    Raises `StorageError` for a file that exists (unless `overwrite`) and a folder that cannot be written to.
    """
    if path.is_dir():
        raise StorageError(f"{path} is a folder; give the name of a file")
    if path.exists() and not overwrite:
        raise StorageError(f"{path} exists; pass --overwrite or choose another name")
    _check_folder(path.parent)


def check_folder(path: Path, *, overwrite: bool = False) -> None:
    """The same for an output folder, which must be empty or absent (unless `overwrite`)."""
    if path.exists() and not path.is_dir():
        raise StorageError(f"{path} is a file; give the name of a folder")
    if path.is_dir() and not overwrite and any(path.iterdir()):
        raise StorageError(f"{path} is not empty; pass --overwrite or choose another folder")
    _check_folder(path)


def _check_folder(folder: Path) -> None:
    with clear_errors(folder, "write to"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` when the block ends, and never if it raises."""
    with clear_errors(path, "write"):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            Path(name).chmod(0o666 & ~umask)  # mkstemp's file is private; this one is as any other
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Put `text` in the place of `path`, whole."""
    with replacing(path) as file:
        file.write(text.encode())


class EpisodeLog:
    """episodes.jsonl: append-only, one trajectory a line, each on its way to the disk before the next begins."""

    def __init__(self, path: Path):
        self.path = path
        with clear_errors(path, "write"):
            self._file = path.open("ab")

    def write(self, trajectory: Trajectory) -> None:
        with clear_errors(self.path, "write"):
            self._file.write(_line(trajectory))
            self._file.flush()

    def close(self) -> None:
        with clear_errors(self.path, "write"):
            self._file.close()

    def __enter__(self) -> EpisodeLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def write_episodes(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Put all `trajectories` in the place of `path`, one a line."""
    with replacing(path) as file:
        file.writelines(map(_line, trajectories))


def read_episodes(path: Path | str) -> list[Trajectory]:
    """The trajectories of a .jsonl file, in its order.

    A last line without its end was torn (the process was killed while it wrote) and is left out.  Any other line that
    is no trajectory is a `StorageError` with its number.
    """
    path = Path(path)
    with clear_errors(path, "read"):
        data = path.read_bytes()
    whole, _, _torn = data.rpartition(b"\n")
    out = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            out.append(Trajectory.from_dict(json.loads(line)))
        except (ValueError, TypeError, AttributeError, TrajectoryError) as error:
            raise StorageError(f"{path}, line {number}: no trajectory: {error}") from error
    return out


def save_batch(path: Path | str, batch: RolloutBatch) -> None:
    """Put `batch` in the place of `path`, as .npz: one entry an array, and the counts as `counts_<name>`."""
    counts = {f"counts_{k}": np.int64(getattr(batch.counts, k)) for k in BatchCounts.__dataclass_fields__}
    with replacing(Path(path)) as file:
        np.savez_compressed(file, allow_pickle=False, **batch.arrays(), **counts)


def load_batch(path: Path | str) -> RolloutBatch:
    """The batch of an .npz file that `save_batch` wrote."""
    path = Path(path)
    with clear_errors(path, "read"), np.load(path, allow_pickle=False) as file:
        arrays: dict[str, Any] = {k: file[k] for k in file.files}
    try:
        counts = BatchCounts(**{k: int(arrays.pop(f"counts_{k}")) for k in BatchCounts.__dataclass_fields__})
        return RolloutBatch(counts=counts, **arrays)
    except (KeyError, TypeError, BatchError) as error:
        raise StorageError(f"{path} is no rollout batch: {error}") from error


def _line(trajectory: Trajectory) -> bytes:
    # Plain ASCII: a lone surrogate in what a model wrote cannot break the file.
    return json.dumps(trajectory.to_dict(), allow_nan=False, separators=(",", ":")).encode() + b"\n"
