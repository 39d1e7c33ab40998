"""A verifier whose process some answers end.  Imported by that process too, so it holds nothing else."""

from __future__ import annotations

import os
from typing import Any

from toolstep.envs.rewards.stopped import StoppedVerifier


def fragile(answer: str, expected: Any) -> bool | None:
    if answer == "die":
        os._exit(3)
    return None if answer == "unreadable" else answer == expected


class Fragile(StoppedVerifier):
    """Ends its own process where the answer is "die"."""

    name = "fragile"
    function = staticmethod(fragile)
    harmless = ("", "")
