"""Compiled passes over the rows of a matrix, as functions of tensors."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from toolstep.agents.engine.native import library


@cache
def passes() -> Passes | None:
    """The passes; None: not to be had."""
    functions = library("passes")
    return None if functions is None else Passes(functions)


class Passes:
    """Passes over the rows of a matrix that is contiguous and on the CPU."""

    def __init__(self, functions: Any) -> None:
        self._rms_norm, self._sums = functions.rms_norm, functions.exponential_sums
        self._rms_norm.argtypes = [*[ctypes.c_int] * 3, ctypes.c_float, *[ctypes.c_void_p] * 3]
        self._sums.argtypes = [*[ctypes.c_int] * 3, *[ctypes.c_void_p] * 3]
        self._rms_norm.restype = self._sums.restype = None

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

    def exponential_sums(self, x: torch.Tensor, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest entry of each row, f32[n, 1], and sums of exp(x - largest) over parts of it, f64[n, parts].

        x f32[n, V]; part: entries of a part, a multiple of 16.
        """
        n, width = x.shape
        best = torch.empty((n, 1))
        sums = torch.empty((n, -(-width // part)), dtype=torch.float64)
        self._sums(n, width, part, x.data_ptr(), best.data_ptr(), sums.data_ptr())
        return best, sums
