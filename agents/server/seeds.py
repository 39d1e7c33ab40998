"""Seeds of requests."""

from __future__ import annotations

import hashlib


def turn_seed(seed: int, turn: int) -> int:
    """Seed of an episode's turn number `turn`, in [0, 2**31), which every server takes."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=4).digest(), "big") >> 1
