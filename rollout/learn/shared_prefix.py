"""Rows that begin alike, as the samples of one prompt do: what they share is computed once, their endings beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Rows of a batch whose first `prefix` ids are the same.

    rows: their n numbers.  endings: n numbers of ids, how much of each row is needed behind the prefix.
    """

    rows: Sequence[int]
    prefix: int
    endings: Sequence[int]

    @property
    def size(self) -> int:
        """Ids to compute, those of the prefix once."""
        return self.prefix + sum(self.endings)


def alone(lengths: NDArray[np.integer[Any]]) -> Iterator[SharedPrefix]:
    """Each row by itself; those of length 0 are left out."""
    for row in np.flatnonzero(lengths):
        yield SharedPrefix([int(row)], 0, [int(lengths[row])])


def shared(
    input_ids: NDArray[np.int64], lengths: NDArray[np.integer[Any]], groups: NDArray[np.int64], tokens: int
) -> Iterator[SharedPrefix]:
    """The rows of each group together, as far as they begin alike; rows of length 0 are left out.

    input_ids: i64[B,T].  lengths, groups: [B]; -1 is no group.  tokens: no more ids than that together.

    Endings attend to the prefix and to themselves, but attention is computed over the whole: so together they are at
    most twice as long as the prefix, which costs no more than the rows one by one, and longer ones go in parts.
    """
    for group in np.unique(groups[lengths > 0]):
        members = np.flatnonzero((groups == group) & (lengths > 0))
        prefix = _common(input_ids[members], lengths[members]) if group >= 0 and len(members) > 1 else 0
        limit = min(2 * prefix, tokens - prefix)
        rows: list[int] = []
        endings: list[int] = []
        for row in members:
            ending = int(lengths[row]) - prefix
            if rows and sum(endings) + ending > limit:
                yield SharedPrefix(rows, prefix, endings)
                rows, endings = [], []
            rows.append(int(row))
            endings.append(ending)
        yield SharedPrefix(rows, prefix, endings)


def _common(ids: NDArray[np.int64], lengths: NDArray[np.integer[Any]]) -> int:
    shortest = int(lengths.min())
    differs = (ids[1:, :shortest] != ids[0, :shortest]).any(0)
    return int(differs.argmax()) if differs.any() else shortest


@dataclass(frozen=True, slots=True)
class Layout:
    """P prefixes, each with its endings behind it, padded on the right to L ids.

    input_ids, position_ids: i64[P,L].  attention: bool[P,1,L,L], which ids see which.
    place: i64[B,T], where in the P * L ids each id of the rows is; 0 behind a row's end.
    """

    input_ids: Tensor
    position_ids: Tensor
    attention: Tensor
    place: Tensor

    @classmethod
    def of(cls, input_ids: Tensor, parts: Sequence[SharedPrefix]) -> Layout:
        """input_ids: i64[B,T], the rows of the `parts`, one part behind the other."""
        shape = len(parts), max(part.size for part in parts)
        source = np.zeros(shape, np.int64)  # in the B * T ids of the rows
        position, ending = np.zeros(shape, np.int64), np.full(shape, -1)
        place = np.zeros(tuple(input_ids.shape), np.int64)
        row = 0
        for p, part in enumerate(parts):
            end = part.prefix
            own = np.arange(end)
            source[p, :end], position[p, :end], ending[p, :end] = row * input_ids.shape[1] + own, own, 0
            for number, length in enumerate(part.endings, 1):
                place[row, : part.prefix] = p * shape[1] + np.arange(part.prefix)
                here = slice(end, end + length)
                own = part.prefix + np.arange(length)
                source[p, here], position[p, here], ending[p, here] = row * input_ids.shape[1] + own, own, number
                place[row, own] = p * shape[1] + np.arange(end, end + length)
                end, row = end + length, row + 1
        device = input_ids.device
        at = torch.from_numpy(ending).to(device)
        earlier = torch.ones(shape[1], shape[1], dtype=torch.bool, device=device).tril()
        sees = earlier & ((at[:, None, :] == 0) | (at[:, None, :] == at[:, :, None]))
        return cls(
            input_ids.reshape(-1)[torch.from_numpy(source).to(device)],
            torch.from_numpy(position).to(device),
            sees[:, None],
            torch.from_numpy(place).to(device),
        )
