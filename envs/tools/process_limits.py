"""Limits on what this process may take; for worker processes, which do one thing at a time."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

CPU_SIGNAL = "SIGPROF"  # which ends a process that has had its time


@contextlib.contextmanager
def limited_memory(most: int | None) -> Iterator[None]:
    """Let this process have `most` bytes more than it has now (Linux); what goes beyond is a MemoryError."""
    if most is None or sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = now + most
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def limited_cpu(seconds: float) -> Iterator[None]:
    """Let the kernel end this process where the block takes more than `seconds` of processor time (not on Windows).

    Unlike the time on the wall it does not depend on what else the machine is doing.  Nothing handles the signal, so
    that it works where Python never gets a turn, in a regular expression say.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
