"""Recordings on disk: one JSON line for each thing that tools answered, appended before anybody sees the answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from toolstep.envs.tools import Playback, Recording, Tape
from toolstep.envs.tools.tape import read_takes
from toolstep.rollout.build import Settings
from toolstep.rollout.storage import StorageError, check_file, clear_errors, whole_lines


class FileRecording(Recording):
    """A `Recording` in a file, which is made with the first line.

    append: go on with the file that is there; a torn last line is cut off.  Otherwise it begins anew.
    A line that can't be written ends its episode; `close` raises that `StorageError`, since the recording is not whole.
    """

    def __init__(self, path: Path, *, append: bool = False):
        super().__init__(self._append)
        self.path = path
        self._mode = "ab" if append else "wb"
        self._file: IO[bytes] | None = None
        self._error: StorageError | None = None

    def _append(self, line: Mapping[str, Any]) -> None:
        # Plain ASCII: a lone surrogate in what a tool answered cannot break the file.
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            with clear_errors(self.path, "write"):
                if self._file is None:
                    self._file = self._opened()
                self._file.write(data)
                self._file.flush()
        except StorageError as error:
            self._error = error
            raise

    def _opened(self) -> IO[bytes]:
        if self._mode == "ab" and self.path.exists():
            whole = sum(len(line) + 1 for _, line in whole_lines(self.path))
            os.truncate(self.path, whole)
        return self.path.open(self._mode)

    def close(self) -> None:
        file, self._file = self._file, None
        self._mode = "ab"
        with clear_errors(self.path, "write"):
            if file is not None:
                file.close()
        error, self._error = self._error, None
        if error is not None:
            raise error


def read_recording(path: Path | str) -> Playback:
    """What `FileRecording` wrote; a torn last line is left out.

    Raises `StorageError` for a file that cannot be read, and for a line that is none of a recording, with its number.
    """
    path = Path(path)
    number = 0

    def lines() -> Iterator[Any]:
        nonlocal number
        for number, line in whole_lines(path):  # noqa: B007  it is told where reading fails
            yield json.loads(line)

    try:
        return Playback(read_takes(lines()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StorageError(f"{path}, line {number}: not of a recording: {type(error).__name__}: {error}") from error


def tape_of(settings: Settings, *, append: bool, overwrite: bool) -> Tape | None:
    """The tape that the settings ask for.

    Raises ValueError for both kinds at once, `StorageError` for files that cannot be written or read.
    """
    if settings.record is not None and settings.playback is not None:
        raise ValueError("--record writes what tools answer and --playback answers in their place: give one of them")
    if settings.playback is not None:
        return read_recording(settings.playback)
    if settings.record is None:
        return None
    check_file(Path(settings.record), overwrite=overwrite or append)
    return FileRecording(Path(settings.record), append=append)
