"""Compiled code for the CPU: built on first use where there is a C++ compiler, else done without.

Sources are the `*.cpp` of this package; they are compiled for the shapes that a model has and kept in the user's cache
folder.  `TOOLSTEP_NATIVE=0` switches it off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

_LOG = logging.getLogger(__name__)
_FOLDER = Path(__file__).parent


@cache
def library(name: str, **shapes: int) -> Any:
    """The functions of `name`.cpp, compiled with the macros `shapes`; None where that is not to be had."""
    if os.environ.get("TOOLSTEP_NATIVE") == "0":
        return None
    path = _build(name, [f"-D{macro}={value}" for macro, value in shapes.items()])
    return None if path is None else ctypes.CDLL(str(path))


def _build(name: str, macros: list[str]) -> Path | None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None or platform.system() != "Linux":
        return None
    # torch's own OpenMP runtime: a second one would have threads of its own, which fight for the cores.
    runtime = next(iter(sorted(Path(torch.__file__).parent.joinpath("lib").glob("libgomp*.so*"))), None)
    flags = ["-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-fPIC", "-std=c++17", "-Wno-psabi"]
    flags += [*macros, "-fopenmp"] if runtime is not None else macros
    source = _FOLDER / f"{name}.cpp"
    texts = [file.read_text() for file in (source, *sorted(_FOLDER.glob("*.h")))]
    key = hashlib.sha256(
        "\n".join([*texts, compiler, torch.__version__, platform.processor(), _cpu(), *flags]).encode()
    ).hexdigest()[:20]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolstep"
    target = folder / f"{name}-{key}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            parts = (Path(scratch) / "made.o", Path(scratch) / "made.so")
            compile_ = [compiler, *flags, "-c", str(source), "-o", str(parts[0])]
            link = [compiler, "-shared", str(parts[0]), *([str(runtime)] if runtime else []), "-o", str(parts[1])]
            for command in (compile_, link):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)  # noqa: S603
            os.replace(parts[1], target)  # noqa: PTH105  (atomic: another process may build the same)
    except (OSError, subprocess.SubprocessError) as error:
        detail = str(getattr(error, "stderr", "") or error).strip()[:300]
        _LOG.info("compiled code is not available, the slower one is used: %s", detail)
        return None
    return target


def _cpu() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
