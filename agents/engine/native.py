"""Optional compiled row attention for the CPU: built on first use where there is a C++ compiler, else done without.

The source is `native.cpp` of this package; it is compiled for the shapes that a model has and kept in the user's cache
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
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from toolstep.agents.engine.plan import Rows

_LOG = logging.getLogger(__name__)
_SOURCE = Path(__file__).with_name("native.cpp")
_DTYPES = (torch.float32, torch.bfloat16)
_LANES = 16
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Rows, float, int, torch.Tensor], None]


def rows_kernel(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Kernel | None:
    """The compiled attention for these tensors, or None where it does not apply.

    query [H, T, D]; keys [blocks, Hkv, D, size]; values [blocks, Hkv, size, Dv].
    """
    if query.device.type != "cpu" or query.dtype not in _DTYPES or keys.shape[2] != values.shape[3]:
        return None
    return _kernel(keys.shape[2], query.shape[0] // keys.shape[1], keys.shape[3])


@cache
def _kernel(width: int, groups: int, size: int) -> Kernel | None:
    if width % _LANES or size % _LANES or width > 256 or groups > 8 or os.environ.get("TOOLSTEP_NATIVE") == "0":
        return None
    library = _build(width, groups, size)
    if library is None:
        return None
    function: Any = ctypes.CDLL(str(library)).rows_attention
    function.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 8, *[ctypes.c_int] * 3, ctypes.c_void_p]
    function.restype = None

    def call(
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Rows,
        scale: float,
        window: int,
        out: torch.Tensor,
    ) -> None:
        """query [H, n, D] -> out[n, H, D], in place."""
        scaled = (query.transpose(0, 1).float() * scale).contiguous()
        table = rows.table
        function(
            int(keys.dtype == torch.bfloat16),
            scaled.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            rows.pointers.ctypes.data,
            table.blocks.ctypes.data,
            table.fills.ctypes.data,
            table.base.ctypes.data,
            rows.positions.ctypes.data,
            len(rows.positions),
            keys.shape[1],
            window,
            out.data_ptr(),
        )

    return call


def _build(width: int, groups: int, size: int) -> Path | None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None or platform.system() != "Linux":
        return None
    # torch's own OpenMP runtime: a second one would have threads of its own, which fight for the cores.
    runtime = next(iter(sorted(Path(torch.__file__).parent.joinpath("lib").glob("libgomp*.so*"))), None)
    flags = ["-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-fPIC", "-std=c++17", "-Wno-psabi"]
    flags += [f"-DD={width}", f"-DR={groups}", f"-DBS={size}"]
    flags += ["-fopenmp"] if runtime is not None else []
    key = hashlib.sha256(
        "\n".join([_SOURCE.read_text(), compiler, torch.__version__, platform.processor(), _cpu(), *flags]).encode()
    ).hexdigest()[:20]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolstep"
    target = folder / f"rows-{key}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            parts = (Path(scratch) / "rows.o", Path(scratch) / "rows.so")
            compile_ = [compiler, *flags, "-c", str(_SOURCE), "-o", str(parts[0])]
            link = [compiler, "-shared", str(parts[0]), *([str(runtime)] if runtime else []), "-o", str(parts[1])]
            for command in (compile_, link):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)  # noqa: S603
            os.replace(parts[1], target)  # noqa: PTH105  (atomic: another process may build the same)
    except (OSError, subprocess.SubprocessError) as error:
        detail = str(getattr(error, "stderr", "") or error).strip()[:300]
        _LOG.info("the compiled row attention is not available, the slower one is used: %s", detail)
        return None
    return target


def _cpu() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
