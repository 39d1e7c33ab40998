"""A folder on disk that belongs to one episode, and paths that can't lead out of it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_DEPTH = 10
MAX_NAME = 100  # bytes
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class PathError(ValueError):
    """A path that leads out of the folder, to nothing, or to no file; the message is for the model to read."""


class EpisodeFolder:
    """A folder that is removed by `close`, or with this object."""

    def __init__(self, name: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"toolstep-{name}-"))
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())

    def close(self) -> None:
        self._finalizer()


def _remove(path: Path, process_id: int) -> None:
    if os.getpid() == process_id:  # a forked child has a copy of the object, but the folder is its parent's
        shutil.rmtree(path, ignore_errors=True)


class Jailed:
    """The files under a folder, by paths of a model.

    "/" and "." are the folder itself, and ".." does not go above it.  Every step of a path is opened by itself, from
    the folder before it, and a link is never followed: there is no moment between a look at a path and its use in
    which another process could put a link there.  What is not a plain file with one name is not touched.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _DIRECTORY)
        self._finalizer = weakref.finalize(self, os.close, self._root)

    @staticmethod
    def supported() -> bool:
        """Whether files can be opened from an open folder (Linux, macOS and other Unix systems)."""
        return os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")

    def read(self, path: str, most: int) -> bytes:
        """The contents of a file, at most so many bytes of it.  Raises PathError."""
        parts = split(path)
        with self._folder(parts, path) as folder, self._opened(parts, path, folder) as file:
            data = bytearray()
            while len(data) < most:
                piece = os.read(file, most - len(data))
                if not piece:
                    break
                data += piece
            return bytes(data)

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file, at once or not at all; folders on the way are made.  Raises PathError, OSError."""
        parts = split(path)
        if not parts:
            raise PathError(f"{_shown(path)} is the folder itself; give the name of a file")
        with self._folder(parts, path, make=True) as folder:
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                    raise PathError(f"{_shown(path)} is a folder; give the name of a file")
            new = f".new-{os.getpid()}-{id(data):x}"
            file = os.open(new, _NEW, 0o600, dir_fd=folder)
            try:
                try:
                    view = memoryview(data)
                    while view:
                        view = view[os.write(file, view) :]
                finally:
                    os.close(file)
                # This replaces a link, and does not follow it.
                os.rename(new, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(new, dir_fd=folder)
                raise

    def delete(self, path: str) -> None:
        """Remove a file, or a folder that is empty.  Raises PathError."""
        parts = split(path)
        if not parts:
            raise PathError("the folder itself cannot be deleted")
        with self._folder(parts, path) as folder:
            try:
                os.unlink(parts[-1], dir_fd=folder)
            except FileNotFoundError:
                raise PathError(f"there is no file {_shown(path)}") from None
            except (IsADirectoryError, PermissionError):
                try:
                    os.rmdir(parts[-1], dir_fd=folder)
                except OSError:
                    raise PathError(f"{_shown(path)} is a folder that is not empty; delete its files first") from None

    def sizes(self, path: str = "") -> dict[str, int]:
        """Bytes of each file under `path`, by path from the folder; an empty folder ends in "/".  Raises PathError."""
        parts = split(path)
        with self._folder([*parts, ""], path) as folder:
            return dict(self._walk(folder, "/".join(parts)))

    def _walk(self, folder: int, prefix: str) -> Iterator[tuple[str, int]]:
        names = sorted(os.listdir(folder))
        if not names and prefix:
            yield f"{prefix}/", 0
        for name in names:
            path = f"{prefix}/{name}" if prefix else name
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and path.count("/") < MAX_DEPTH:
                    inner = os.open(name, _DIRECTORY, dir_fd=folder)
                    try:
                        yield from self._walk(inner, path)
                    finally:
                        os.close(inner)
                elif stat.S_ISREG(found.st_mode):
                    yield path, found.st_size
            except OSError:  # it was there a moment ago
                continue

    @contextmanager
    def _folder(self, parts: list[str], path: str, make: bool = False) -> Iterator[int]:
        """The folder that holds the last of the parts, open."""
        folder = os.dup(self._root)
        try:
            for part in parts[:-1]:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=folder)
                try:
                    inner = os.open(part, _DIRECTORY, dir_fd=folder)
                except FileNotFoundError:
                    raise PathError(f"there is no {_shown(path)}") from None
                except OSError:  # a file, or a link
                    raise PathError(f"there is no {_shown(path)}: {part!r} on the way is no folder") from None
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _opened(self, parts: list[str], path: str, folder: int) -> Iterator[int]:
        if not parts:
            raise PathError(f"{_shown(path)} is a folder; give the name of a file")
        try:
            file = os.open(parts[-1], _READ, dir_fd=folder)
        except FileNotFoundError:
            raise PathError(f"there is no file {_shown(path)}") from None
        except OSError:
            raise PathError(f"{_shown(path)} is no plain file") from None
        try:
            found = os.fstat(file)
            if stat.S_ISDIR(found.st_mode):
                raise PathError(f"{_shown(path)} is a folder; give the name of a file")
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:  # one with two names may be somebody else's
                raise PathError(f"{_shown(path)} is no plain file")
            yield file
        finally:
            os.close(file)

    def close(self) -> None:
        self._finalizer()


def split(path: str) -> list[str]:
    """The names of a path, from the folder on.  Raises PathError for one that can't be."""
    parts: list[str] = []
    for part in path[:4_000].split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            if not parts:
                raise PathError(f"{_shown(path)} leads out of the folder")
            parts.pop()
            continue
        if "\\" in part or any(ord(c) < 32 or ord(c) == 127 for c in part):
            raise PathError(f"the path {_shown(path)} has a backslash or a control character; separate names by /")
        try:
            size = len(part.encode())
        except UnicodeEncodeError:
            raise PathError("the path has half a character in it") from None
        if size > MAX_NAME:
            raise PathError(f"a name in the path is longer than {MAX_NAME} bytes")
        parts.append(part)
    if len(parts) > MAX_DEPTH or len(path) > 4_000:
        raise PathError(f"the path has more than {MAX_DEPTH} names")
    return parts


def _shown(path: str) -> str:
    return repr(path if len(path) <= 100 else path[:100] + "...")
