"""Optional compiled attention for the CPU: built on first use where there is a C++ compiler, else done without.

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
from functools import cache
from pathlib import Path
from typing import Any

import torch

from toolstep.agents.engine.plan import Plan

_LOG = logging.getLogger(__name__)
_SOURCE = Path(__file__).with_name("native.cpp")
_DTYPES = (torch.float32, torch.bfloat16)
_LANES = 16
Pair = tuple[torch.Tensor, torch.Tensor]


def attention_kernel(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Kernels | None:
    """The compiled attention for these tensors, or None where it does not apply.

    query [H, T, D]; keys [blocks, Hkv, D, size]; values [blocks, Hkv, size, Dv].
    """
    fits = query.device.type == "cpu" and query.dtype in _DTYPES and keys.dtype == query.dtype
    if not fits or keys.shape[2] != values.shape[3]:
        return None
    return kernels(keys.shape[2], query.shape[0] // keys.shape[1], keys.shape[3])


@cache
def kernels(width: int, groups: int, size: int) -> Kernels | None:
    """Those for heads of `width`, `groups` query heads a kv head and blocks of `size` cells; None: not to be had."""
    if width % _LANES or size % _LANES or width > 256 or groups > 8 or os.environ.get("TOOLSTEP_NATIVE") == "0":
        return None
    library = _build(width, groups, size)
    return None if library is None else Kernels(library)


class Kernels:
    """The functions of one compiled library."""

    def __init__(self, library: Path) -> None:
        functions: Any = ctypes.CDLL(str(library))
        self._attention, self._rms_norm = functions.attention, functions.rms_norm
        self._attention.argtypes = [*[ctypes.c_int] * 4, ctypes.c_float, *[ctypes.c_void_p] * 17]
        self._rms_norm.argtypes = [*[ctypes.c_int] * 3, ctypes.c_float, *[ctypes.c_void_p] * 3]
        self._attention.restype = self._rms_norm.restype = None

    def attention(
        self,
        plan: Plan,
        new: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        cells: Pair,
        scale: float,
        window: int,
        out: torch.Tensor,
        rotary: Pair | None = None,
    ) -> None:
        """Write the new tokens' keys and values to their cells, then attend.

        new: query [H, T, D], key and value [Hkv, T, D].  cells: keys and values of the pool.  rotary: cosines and sines
        [T, D] by which queries and keys are still to be turned, contiguous.  out [T, H, D], contiguous.
        """
        query, key, value = (x if x.stride(2) == 1 else x.contiguous() for x in new)
        strides = (ctypes.c_int64 * 6)(*(x.stride(i) for x in (query, key, value) for i in (0, 1)))
        self._attention(
            int(query.dtype == torch.bfloat16),
            query.shape[1],
            key.shape[0],
            window,
            scale,
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            ctypes.addressof(strides),
            *((None, None) if rotary is None else (rotary[0].data_ptr(), rotary[1].data_ptr())),
            *plan.addresses,
            cells[0].data_ptr(),
            cells[1].data_ptr(),
            out.data_ptr(),
        )

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """RMSNorm over the last dimension of a contiguous tensor; its size is a multiple of 16."""
        out = torch.empty_like(x)
        width = weight.shape[0]
        self._rms_norm(
            int(x.dtype == torch.bfloat16),
            x.numel() // width,
            width,
            epsilon,
            x.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
        )
        return out


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
    target = folder / f"attention-{key}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            parts = (Path(scratch) / "attention.o", Path(scratch) / "attention.so")
            compile_ = [compiler, *flags, "-c", str(_SOURCE), "-o", str(parts[0])]
            link = [compiler, "-shared", str(parts[0]), *([str(runtime)] if runtime else []), "-o", str(parts[1])]
            for command in (compile_, link):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)  # noqa: S603
            os.replace(parts[1], target)  # noqa: PTH105  (atomic: another process may build the same)
    except (OSError, subprocess.SubprocessError) as error:
        detail = str(getattr(error, "stderr", "") or error).strip()[:300]
        _LOG.info("the compiled attention is not available, the slower one is used: %s", detail)
        return None
    return target


def _cpu() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
