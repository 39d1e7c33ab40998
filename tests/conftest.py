"""Make `toolstep` importable from a bare checkout, and keep the tests off the network."""

from __future__ import annotations

import os
import signal
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure.
settings.register_profile("toolstep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("toolstep")

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The models of the tests are tiny: more threads than idle cores only make them wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell hands SIGINT down ignored to what it starts in the background; tests of Ctrl-C need it, here and in processes.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent

# The folders at the root are the sub-packages of the namespace package `toolstep`.  An editable install links them
# file by file, so a file added since then would be missing: the checkout itself always wins here.
_toolstep = types.ModuleType("toolstep")
_toolstep.__path__ = [str(ROOT)]
sys.modules["toolstep"] = _toolstep


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from tiny import tiny_tokenizer

    return tiny_tokenizer()
