"""`list_files`, `read_file`, `write_file`, `edit_file`, `delete_file`: a folder of text files for each episode."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolstep.envs.tools.builtin.folder import EpisodeFolder, Jailed, split
from toolstep.envs.tools.builtin.sandbox import SandboxError
from toolstep.envs.tools.factory import EpisodeInfo, ToolFactory
from toolstep.envs.tools.tool import tool


@dataclass(frozen=True, slots=True)
class Quota:
    """What a folder may hold: bytes of all files, bytes of one, and how many; and characters of one result."""

    max_bytes: int
    max_file_bytes: int
    max_files: int
    max_output: int


class FileError(ValueError):
    """What was asked for can't be done; the message is for the model to read."""


class Files(ToolFactory):
    """Tools over a folder that is made for each episode, and removed at its end.

    files: what is in it at the start: text by path, or a folder whose plain files are copied (links are left out).
    max_bytes, max_file_bytes, max_files: the quota.  max_output: characters of one result.

    `record.state["files"]` has the text of each file by path when the episode is over.

    Raises:
        SandboxError: on a system that can't open files relative to a folder (Windows).
        ValueError: the files at the start don't fit into the quota; a path leads out of the folder.
    """

    name = "files"

    def __init__(
        self,
        files: Mapping[str, str] | str | Path | None = None,
        *,
        max_bytes: int = 1_000_000,
        max_file_bytes: int = 200_000,
        max_files: int = 200,
        max_output: int = 3_000,
    ) -> None:
        for key, value in (
            ("max_bytes", max_bytes),
            ("max_file_bytes", max_file_bytes),
            ("max_files", max_files),
            ("max_output", max_output),
        ):
            if not 0 < value < float("inf"):
                raise ValueError(f"Files: {key} must be a finite number > 0, got {value!r}")
        if not Jailed.supported():
            raise SandboxError("Files needs a system that opens files relative to a folder (Linux, macOS)")
        self.quota = Quota(max_bytes, max_file_bytes, max_files, max_output)
        self.files = _contents(files)
        sizes = {path: len(data) for path, data in self.files.items()}
        for path in sizes:
            if not split(path):
                raise ValueError(f"Files: {path!r} names no file")
        problem = _over(self.quota, sizes)
        if problem:
            raise ValueError(f"Files: the files at the start do not fit: {problem}")

    def make(self, episode: EpisodeInfo) -> Any:
        return Scratch(self.files, self.quota)


class Scratch:
    """One episode's folder."""

    def __init__(self, files: Mapping[str, bytes], quota: Quota) -> None:
        self._quota = quota
        self._folder = EpisodeFolder("files")
        self.path = self._folder.path  # for tools beside these that need to see the files
        self._jail = Jailed(self.path)
        for name, data in files.items():
            self._jail.write(name, data)

    @tool(run_in="inline")
    def list_files(self, path: str = ".") -> str:
        """List the files in a folder and below it, with their sizes.

        Args:
            path: The folder; "." for all files.
        """
        found = self._jail.sizes(path)
        if not found:
            return "(no files)"
        lines = [name if name.endswith("/") else f"{name} ({size} bytes)" for name, size in found.items()]
        shown, size = 0, 0
        while shown < len(lines) and size + len(lines[shown]) < self._quota.max_output:
            size += len(lines[shown]) + 1
            shown += 1
        rest = f"\n[{len(lines) - shown} more; name a folder to see its files]" if shown < len(lines) else ""
        return "\n".join(lines[:shown]) + rest

    @tool(run_in="inline")
    def read_file(self, path: str, start: int = 1) -> str:
        """Read a text file, or the part of it that begins at a line.

        Args:
            path: The file.
            start: The number of the first line to show; 1 is the first one.
        """
        lines = self._text(path).splitlines(keepends=True)
        if not lines:
            return "(the file is empty)"
        if not 1 <= start <= len(lines):
            raise FileError(f"start must be from 1 to {len(lines)}, the number of lines of {path!r}; got {start}")
        first = start - 1
        last, size = first, 0
        while last < len(lines) and size + len(lines[last]) <= self._quota.max_output:
            size += len(lines[last])
            last += 1
        if last == first:  # one line that is too long to be shown
            line, most = lines[first], self._quota.max_output
            on = f"; read on with start={start + 1}" if start < len(lines) else ""
            return f"{line[:most]}\n[line {start} of {len(lines)}, {len(line) - most} characters of it left out{on}]"
        text = "".join(lines[first:last])
        if first == 0 and last == len(lines):
            return text
        on = f"; read on with start={last + 1}" if last < len(lines) else ""
        end = "" if text.endswith("\n") else "\n"
        return f"{text}{end}[lines {start} to {last} of {len(lines)}{on}]"

    @tool(run_in="inline")
    def write_file(self, path: str, content: str) -> str:
        """Write a text file; one that is there is replaced. Folders on the way are made.

        Args:
            path: The file.
            content: All of its text.
        """
        self._write(path, content)
        return f"wrote {len(content)} characters to {'/'.join(split(path))}"

    @tool(run_in="inline")
    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace one passage of a text file.

        Args:
            path: The file.
            old: The passage as it stands in the file; it must be there exactly once.
            new: What to put in its place.
        """
        text = self._text(path)
        if not old:
            raise FileError("old is empty: give the passage that is to be replaced, or use write_file")
        count = text.count(old)
        if count == 0:
            raise FileError(f"the passage is not in {path!r}: it must be the same to the letter{_nearest(text, old)}")
        if count > 1:
            raise FileError(f"the passage is in {path!r} {count} times: give more of the text around it")
        self._write(path, text.replace(old, new))
        return f"replaced 1 passage in {'/'.join(split(path))}"

    @tool(run_in="inline")
    def delete_file(self, path: str) -> str:
        """Delete a file, or an empty folder.

        Args:
            path: The file.
        """
        self._jail.delete(path)
        return f"deleted {'/'.join(split(path))}"

    def snapshot(self) -> dict[str, Any]:
        """The text of each file by path."""
        most = self._quota.max_file_bytes
        paths = [path for path in self._jail.sizes() if not path.endswith("/")]
        return {
            "files": {p: self._jail.read(p, most).decode("utf-8", "replace") for p in paths[: self._quota.max_files]}
        }

    def close(self) -> None:
        self._jail.close()
        self._folder.close()

    def _text(self, path: str) -> str:
        data = self._jail.read(path, self._quota.max_file_bytes + 1)
        if len(data) > self._quota.max_file_bytes:
            raise FileError(f"{path!r} has more than {self._quota.max_file_bytes} bytes, which is too much to be read")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise FileError(f"{path!r} is no text") from None

    def _write(self, path: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        sizes = self._jail.sizes()
        sizes["/".join(split(path))] = len(data)
        problem = _over(self._quota, sizes)
        if problem:
            raise FileError(f"not written: {problem}")
        try:
            self._jail.write(path, data)
        except OSError as error:
            raise FileError(f"not written: {error.strerror}") from None


def _contents(files: Mapping[str, str] | str | Path | None) -> dict[str, bytes]:
    if files is None:
        return {}
    if isinstance(files, Mapping):
        return {path: text.encode() for path, text in files.items()}
    folder = Path(files)
    if not folder.is_dir():
        raise ValueError(f"Files: {folder} is no folder")
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(p.is_symlink() for p in (path, *path.parents) if folder in p.parents):
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _over(quota: Quota, sizes: Mapping[str, int]) -> str:
    """What of the quota is exceeded; "" if nothing is."""
    large = next((path for path, size in sizes.items() if size > quota.max_file_bytes), None)
    if large is not None:
        return f"{large!r} would have {sizes[large]} bytes, a file has at most {quota.max_file_bytes}"
    if len(sizes) > quota.max_files:
        return f"there would be {len(sizes)} files and folders, at most {quota.max_files} are allowed"
    if sum(sizes.values()) > quota.max_bytes:
        return f"the files would have {sum(sizes.values())} bytes together, at most {quota.max_bytes} are allowed"
    return ""


def _nearest(text: str, old: str) -> str:
    """The line of the text that is most like the first one of the passage."""
    # The comparison costs the product of the lengths.
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")[:80]
    lines = [line.strip()[:80] for line in text.splitlines()[:200] if line.strip()]
    near = difflib.get_close_matches(wanted, lines, n=1)
    return f"; the nearest line is {near[0]!r}" if near else ""
