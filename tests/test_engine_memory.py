"""What the engine keeps in memory: kernels of packed layers (a process has one cache of them), and the weights."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from tiny import tiny_model

from toolstep.agents import SamplingParams
from toolstep.agents.engine import Engine
from toolstep.agents.engine.linears import can_pack

_PROGRAM = """
import ctypes, torch
from toolstep.agents.engine.linears import PackedLinears, can_pack

class Counts(ctypes.Structure):
    _fields_ = [(f"f{i}", ctypes.c_size_t) for i in range(10)]  # struct mallinfo2: number 7 is the bytes in use

info = ctypes.CDLL(None).mallinfo2
info.restype = Counts
model = torch.nn.Sequential(torch.nn.Linear(64, 96))
assert can_pack(model)
linears = PackedLinears(model)
linears.swap_in()
with torch.inference_mode():
    def products(counts):
        for rows in counts:
            model(torch.zeros(rows, 64))
    products(range(1, 8))
    before = info().f7
    products(range(8, 208))
print(info().f7 - before)
"""


def _kept(**variables: str) -> int:
    """Bytes that stay in use after products of 200 different numbers of rows."""
    plain = {k: v for k, v in os.environ.items() if k not in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=plain | variables, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc for the memory in use")
def test_kernels_for_many_numbers_of_rows_do_not_pile_up() -> None:
    if not can_pack(torch.nn.Linear(16, 8)):
        pytest.skip("this torch has no oneDNN kernels for linear layers")
    piled = _kept(ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024", LRU_CACHE_CAPACITY="1024")  # the caller's word counts
    assert _kept() < piled / 4


@pytest.mark.parametrize("played", [False, True])
def test_weights_are_freed_with_the_engine_not_when_the_collector_comes(played: bool) -> None:
    model = tiny_model(64)
    engine = Engine(model)
    if played:
        engine.start(0, 1)
        engine.extend(0, np.arange(1, 9))
        engine.generate([0], SamplingParams(max_new_tokens=4), frozenset())
    there = weakref.ref(model)
    gc.disable()
    try:
        del model, engine
        assert there() is None
    finally:
        gc.enable()
