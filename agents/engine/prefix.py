"""Which rows of a batch should wait and copy the start of their context from another row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class Share(NamedTuple):
    """Row `source` of the batch (None: nobody) computes the first `length` cells; they are copied before
    `wave`.
    """

    source: int | None
    length: int
    wave: int


def common_prefix(a: Ids, b: Ids) -> int:
    """Number of leading ids that `a` and `b` have in common."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def plan_sharing(contexts: Sequence[Ids], cached: Sequence[int], min_gain: int) -> list[Share]:
    """For each context, what to copy from an earlier one instead of computing it again.

    cached: how many leading cells each row has already.  A row that copies is computed in a later forward
    (`wave`) than its source.  An extra wave costs about as much as `min_gain` tokens, so a longer prefix from
    a row of a later wave is taken only where it is longer by more than that.  The last id is never copied:
    its logits are needed.
    """
    shares: list[Share] = []
    for i, context in enumerate(contexts):
        best = Share(None, cached[i], 0)
        score = cached[i]
        if len(context) - 1 - cached[i] > min_gain:
            for j in range(i):
                length = min(common_prefix(context, contexts[j]), len(context) - 1)
                wave = shares[j].wave + 1
                if length - min_gain * wave > score:
                    best, score = Share(j, length, wave), length - min_gain * wave
        shares.append(best)
    return shares
