"""What this process has open: for tests that nothing is left behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil


def threads() -> set[threading.Thread]:
    """Ours."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("toolstep")}


def descriptors() -> set[str]:
    folder = Path("/proc/self/fd")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def children() -> set[int]:
    """Process ids, by the parent that each process names: what /proc lists by thread goes away with the thread."""
    return {child.pid for child in psutil.Process().children()}


def alive(pid: int | str) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid: int, seconds: float = 5) -> bool:
    """Whether the process ends in this time."""
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.005)
    return not alive(pid)
