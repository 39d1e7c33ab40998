"""Random numbers that a benchmark can be built on: the same on every platform and in every NumPy release."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def content_hash(text: str) -> int:
    """A 64-bit hash of `text` that does not depend on the process (unlike `hash`)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Draw:
    """A stream of draws that `key` alone decides.

    The key goes through `numpy.random.SeedSequence`, so neighbouring seeds give unrelated streams.  NumPy guarantees
    the raw stream of a bit generator but not the methods of `Generator` (NEP 19), hence the arithmetic here.
    """

    def __init__(self, *key: int | str) -> None:
        entropy = [content_hash(k) if isinstance(k, str) else k for k in key]
        self._bits = np.random.PCG64(np.random.SeedSequence(entropy))

    def integer(self, low: int, high: int) -> int:
        """An integer in low..high, both included (at most 2**64 values)."""
        return low + ((int(self._bits.random_raw()) * (high - low + 1)) >> 64)

    def choice(self, items: Sequence[T]) -> T:
        """One of `items`."""
        return items[self.integer(0, len(items) - 1)]

    def chance(self, probability: float) -> bool:
        """True with `probability`."""
        return int(self._bits.random_raw()) < probability * 2.0**64

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """`k` of `items` without repetition, in random order."""
        pool = list(items)
        for i in range(k):
            j = self.integer(i, len(pool) - 1)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]
