"""Trajectories as JSON lines, batches as .npz; what is written is whole or not there."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same lock out of `folder`; it is free when the process ends, however.

    Raises `StorageError` where another has it.  Does nothing where the system has no such locks (Windows, some network
    file systems).
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with clear_errors(folder, "open"):
        handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"another process is writing to {folder}: wait for it or stop it, or choose another folder"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


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


def write_json(path: Path, data: Any) -> None:
    """Put `data` in the place of `path`; refuses NaN."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def remove_leftovers(folder: Path, names: Collection[str]) -> None:
    """Remove what processes that were killed while `replacing` these files have left beside them."""
    with clear_errors(folder, "write to"):
        for name in names:
            for left in folder.glob(f".{name}.*"):
                left.unlink(missing_ok=True)


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
    out = []
    for number, line in whole_lines(path):
        found = _parsed(line)
        if isinstance(found, str):
            raise StorageError(f"{path}, line {number}: {found}")
        out.append(found)
    return out


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, from 1; a last one without its end was torn and is left out."""
    lines, _torn = _lines(path)
    yield from enumerate(lines, start=1)


def config_beside(episodes: Path) -> Path:
    """Where the configuration of a file of episodes is written: `x.config.json` beside `x.jsonl`."""
    return episodes.with_suffix(".config.json")


@dataclass(frozen=True, slots=True)
class Recovered:
    """What `recover_episodes` found: the whole episodes, and by line number what is wrong with the other lines."""

    episodes: list[Trajectory]
    damaged: dict[int, str]


def recover_episodes(path: Path, listed: Collection[tuple[int, int]], damaged: Path) -> Recovered:
    """The whole episodes of a log, which can be appended to afterwards.

    A torn last line is cut off.  Lines that are no trajectory, or not of a (seed, sample index) that is `listed`, or of
    one that came before, are moved to the end of the file `damaged`, so that nothing is lost.  Raises `StorageError`
    for a file in which no line is a listed episode: it is not the log of this run.
    """
    lines, torn = _lines(path)
    good: dict[tuple[int, int], tuple[int, Trajectory]] = {}
    bad: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        found = _parsed(line)
        if isinstance(found, str):
            bad[number] = found
            continue
        key = found.seed, found.sample_index
        if key not in listed:
            bad[number] = f"seed {key[0]}, sample {key[1]} is none of this run's episodes"
        elif key in good:
            bad[number] = f"seed {key[0]}, sample {key[1]} is in line {good[key][0]} already"
        else:
            good[key] = (number, found)
    if bad and not good:
        number, problem = next(iter(bad.items()))
        raise StorageError(f"{path} holds no episode of this run; line {number}: {problem}")
    if bad:
        with clear_errors(damaged, "write"), damaged.open("ab") as file:
            file.writelines(lines[n - 1] + b"\n" for n in bad)
            file.flush()
            os.fsync(file.fileno())
        with replacing(path) as file:
            file.writelines(lines[n - 1] + b"\n" for n, _ in good.values())
    elif torn:
        with clear_errors(path, "write"):
            os.truncate(path, path.stat().st_size - len(torn))
    return Recovered([t for _, t in good.values()], bad)


def _lines(path: Path) -> tuple[list[bytes], bytes]:
    """The whole lines of a file, and what is behind the last of them."""
    with clear_errors(path, "read"):
        data = path.read_bytes()
    *whole, torn = data.split(b"\n")
    return whole, torn


def _parsed(line: bytes) -> Trajectory | str:
    """The trajectory in a line, or what is wrong with it."""
    try:
        return Trajectory.from_dict(json.loads(line))
    except (ValueError, TypeError, AttributeError, RecursionError, TrajectoryError) as error:
        return f"no trajectory: {error}"


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
