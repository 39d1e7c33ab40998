"""What an object leaves behind: threads, processes, descriptors."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_SETTLE = 5.0  # seconds that what was told to end may take


@dataclass(frozen=True)
class Holdings:
    """What this process holds.  threads: by name.  processes: ids of its children.  descriptors: what they stand for.

    Processes and descriptors are counted where `/proc` tells of them (on Linux).
    """

    threads: frozenset[tuple[int, str]]
    processes: frozenset[str]
    descriptors: frozenset[tuple[str, str]]

    @classmethod
    def now(cls) -> Holdings:
        threads = frozenset((t.ident or 0, t.name) for t in threading.enumerate())
        return cls(threads, frozenset(_children()), frozenset(_descriptors()))

    def since(self, before: Holdings) -> list[str]:
        """What has come since then, in words; [] for nothing."""
        told = []
        threads = sorted(name for _, name in self.threads - before.threads)
        processes = sorted(self.processes - before.processes)
        descriptors = sorted(target for _, target in self.descriptors - before.descriptors)
        for what, items in (("thread", threads), ("process", processes), ("open descriptor", descriptors)):
            if items:
                plural = {"process": "processes"}.get(what, f"{what}s") if len(items) > 1 else what
                told.append(f"{len(items)} {plural} ({', '.join(items[:3])}{', ...' if len(items) > 3 else ''})")
        return told


def left_since(before: Holdings, settle: float = _SETTLE, wait: Callable[[float], None] = time.sleep) -> list[str]:
    """What is left of what has come since `before`, when everything had time to end."""
    until = time.monotonic() + settle
    while True:
        gc.collect()
        left = Holdings.now().since(before)
        if not left or time.monotonic() > until:
            return left
        wait(0.02)


def _children() -> set[str]:
    found: set[str] = set()
    if sys.platform != "linux":
        return found
    for task in Path("/proc/self/task").iterdir():
        try:
            found |= set((task / "children").read_text().split())
        except OSError:  # a thread that has just ended, or a kernel that does not tell
            continue
    return found


def _descriptors() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    folder = Path("/proc/self/fd")
    for path in folder.iterdir() if folder.exists() else ():
        try:
            found.add((path.name, os.readlink(path)))  # noqa: PTH115  a Path would lose "socket:[1]"
        except OSError:  # that of this very listing
            continue
    return found
