"""Compiled attention over the block pool, as a function of tensors."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from toolstep.agents.engine.native import library
from toolstep.agents.engine.plan import Plan

_DTYPES = (torch.float32, torch.bfloat16)
_LANES = 16
Pair = tuple[torch.Tensor, torch.Tensor]


def attention_kernel(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Attention | None:
    """The compiled attention for these tensors, or None where it does not apply.

    query [H, T, D]; keys [blocks, Hkv, D, size]; values [blocks, Hkv, size, Dv].
    """
    fits = query.device.type == "cpu" and query.dtype in _DTYPES and keys.dtype == query.dtype
    if not fits or keys.shape[2] != values.shape[3]:
        return None
    return attention_for(keys.shape[2], query.shape[0] // keys.shape[1], keys.shape[3])


@cache
def attention_for(width: int, groups: int, size: int) -> Attention | None:
    """For heads of `width`, `groups` query heads a kv head and blocks of `size` cells; None: not to be had."""
    if width % _LANES or size % _LANES or width > 256 or groups > 8:
        return None
    functions = library("attention", D=width, R=groups, BS=size)
    return None if functions is None else Attention(functions)


class Attention:
    """Attention for heads and blocks of one shape."""

    def __init__(self, functions: Any) -> None:
        self._attention = functions.attention
        self._attention.argtypes = [*[ctypes.c_int] * 4, ctypes.c_float, *[ctypes.c_void_p] * 17]
        self._attention.restype = None

    def __call__(
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
