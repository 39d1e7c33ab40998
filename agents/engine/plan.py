"""Where the packed tokens of one forward are written, and which cells each of them looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.spans import Span, Table

_SHARED = 2  # readers from which on a block is read once for all of them


class Feed(NamedTuple):
    """Ids number first .. first + length - 1 of a span, to be computed in one forward."""

    span: Span
    first: int
    length: int


class Readers(NamedTuple):
    """Blocks that are read by up to G queries each: blocks i64[U], query i64[U, G] (n: nobody); numpy for the masks."""

    blocks: torch.Tensor
    queries: torch.Tensor
    fills: NDArray[np.int32]  # [U, G] cells that each reader looks at
    base: NDArray[np.int32]  # [U]


class Segment(NamedTuple):
    """A feed of more than one token: packed indices start .. start + length - 1, positions first .. ."""

    start: int
    length: int
    first: int
    table: Table
    blocks: torch.Tensor


class Tables(NamedTuple):
    """A table of blocks for each feed, one behind the other: that of feed f is pointers[f] .. pointers[f + 1] - 1."""

    pointers: NDArray[np.int32]  # [F + 1]
    table: Table
    feeds: NDArray[np.int32]  # [T] feed of each packed token
    positions: NDArray[np.int32]  # [T]


@dataclass
class Plan:
    """Index tensors of one forward, built once and used by all layers; masks are kept by sliding window."""

    pool: BlockPool
    device: torch.device
    blocks: torch.Tensor  # i64[T]
    cells: torch.Tensor  # i64[T]
    positions: torch.Tensor  # i64[T]
    tables: Tables
    singles: int  # feeds of one token; they are packed first
    segments: list[Segment]
    masks: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)
    _readers: list[Readers] | None = None

    @classmethod
    def build(cls, pool: BlockPool, feeds: Sequence[Feed], device: torch.device) -> Plan:
        """feeds: `pack_order`ed; their cells have blocks already."""
        size = pool.size
        blocks: list[NDArray[np.int64]] = []
        cells: list[NDArray[np.int64]] = []
        positions: list[NDArray[np.int64]] = []
        tables: list[Table] = []
        segments: list[Segment] = []
        total = singles = 0
        for span, first, count in feeds:
            index = np.arange(first, first + count)
            blocks.append(
                np.asarray(span.blocks[first // size : (first + count - 1) // size + 1])[index // size - first // size]
            )
            cells.append(index % size)
            positions.append(index + span.start)
            table = span.table(first + count, size)
            tables.append(table)
            if count == 1:
                singles += 1
            else:
                ids = torch.from_numpy(table.blocks.astype(np.int64)).to(device)
                segments.append(Segment(total, count, span.start + first, table, ids))
            total += count
        joined = Tables(
            np.cumsum([0, *(len(t.blocks) for t in tables)], dtype=np.int32),
            Table(*(np.concatenate(parts) for parts in zip(*tables, strict=True))),
            np.repeat(np.arange(len(feeds), dtype=np.int32), [feed.length for feed in feeds]),
            np.concatenate(positions).astype(np.int32),
        )
        place = [torch.from_numpy(np.concatenate(parts)).to(device) for parts in (blocks, cells, positions)]
        return cls(pool, device, place[0], place[1], place[2], joined, singles, segments)

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Where compiled code finds blocks, cells, and the tables' pointers, blocks, fills, base, feeds, positions."""
        pointers, table, feeds, positions = self.tables
        tables = (array.ctypes.data for array in (pointers, *table, feeds, positions))
        return self.blocks.data_ptr(), self.cells.data_ptr(), *tables

    def readers(self) -> list[Readers]:
        """The blocks of single tokens: those with one reader, and those that several queries read, stacked."""
        if self._readers is None:
            n, pointers = self.singles, self.tables.pointers
            table = Table(*(part[: pointers[n]] for part in self.tables.table))
            query = np.repeat(np.arange(n), np.diff(pointers[: n + 1]))
            order = np.argsort(table.blocks, kind="stable")
            unique, begin, counts = np.unique(table.blocks[order], return_index=True, return_counts=True)
            self._readers = []
            for chosen in (counts < _SHARED, counts >= _SHARED):
                if not chosen.any():
                    continue
                width = int(counts[chosen].max())
                column = np.arange(width)
                held = column < counts[chosen][:, None]
                entry = order[np.where(held, begin[chosen][:, None] + column, 0)]
                self._readers.append(
                    Readers(
                        torch.from_numpy(unique[chosen].astype(np.int64)).to(self.device),
                        torch.from_numpy(np.where(held, query[entry], n)).to(self.device),
                        np.where(held, table.fills[entry], 0).astype(np.int32),
                        table.base[entry[:, 0]],
                    )
                )
        return self._readers

    def readers_mask(self, index: int, window: int) -> torch.Tensor:
        """bool [U, 1, G, 1, size]: which cells of the blocks of `readers()[index]` each reader looks at."""
        key = (0, index, window)
        if key not in self.masks:
            readers = self.readers()[index]
            cell = np.arange(self.pool.size)
            mask = cell < readers.fills[..., None]
            if window:
                last = np.append(self.tables.positions[: self.singles], 0)[readers.queries.cpu().numpy()]
                mask &= readers.base[:, None, None] + cell > last[..., None] - window
            self.masks[key] = torch.from_numpy(mask[:, None, :, None]).to(self.device)
        return self.masks[key]

    def segment_mask(self, index: int, window: int, first: int, rows: int, used: int) -> torch.Tensor:
        """bool [rows, used * size] for queries first .. first + rows - 1 of a segment."""
        segment = self.segments[index]
        whole = rows == segment.length  # parts of a long segment are too large to keep
        key = (1, index, window)
        if whole and key in self.masks:
            return self.masks[key]
        cell = np.arange(self.pool.size)
        position = (segment.table.base[:used, None] + cell).ravel()
        position = np.where((cell < segment.table.fills[:used, None]).ravel(), position, np.iinfo(np.int32).max)
        query = np.arange(segment.first + first, segment.first + first + rows)[:, None]
        mask = position <= query
        if window:
            mask &= position > query - window
        out = torch.from_numpy(mask).to(self.device)
        if whole:
            self.masks[key] = out
        return out


def pack_order(feeds: Sequence[Feed]) -> list[int]:
    """Order in which feeds are packed: single tokens first, readers of the same parent next to each other."""
    return sorted(range(len(feeds)), key=lambda i: (feeds[i].length > 1, id(feeds[i].span.parent)))
