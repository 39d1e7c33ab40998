"""Numbers of a decode step in tensors of fixed shape and place: what a CUDA graph needs.

A plan (`plan.py`) is as large as its tokens; here a step of one token for each row is padded to a few sizes, and all
that changes from step to step is the content of one matrix of integers, which goes to the device in one copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.plan import Feed
from toolstep.agents.engine.spans import Table

_PLACE = 4  # id, position, block, cell


def bucket(count: int, least: int = 4) -> int:
    """The smallest of `least`, 1.5 `least`, 2 `least`, 3 `least`, 4 `least`, ... that is not below `count`."""
    size = least
    while size < count:
        if (half := size + size // 2) >= count:
            return half
        size *= 2
    return size


class StaticPlan:
    """Up to `rows` single tokens whose contexts are in up to `width` blocks each.

    Rows that nobody needs are copies of the first one: they compute, and write to its cell, what it does.

    ids, positions: i64[1, rows].  blocks, cells: i64[rows], where the new keys and values are written.
    tables, fills, base: i64[rows, width], numbers of blocks, how many cells of each belong to the row (0: none, the
    number means nothing), and the position of each one's first cell.
    """

    def __init__(self, pool: BlockPool, rows: int, width: int, device: torch.device) -> None:
        self.pool, self.rows, self.width = pool, rows, width
        graphs = device.type == "cuda"
        self._host = torch.zeros((rows, _PLACE + 3 * width), dtype=torch.int64, pin_memory=graphs)
        self._lines = self._host.numpy()
        self._device = self._host.to(device, copy=True)
        self._copied = torch.cuda.Event() if graphs else None  # type: ignore[no-untyped-call]
        place, tables = self._device[:, :_PLACE], self._device[:, _PLACE:].view(rows, 3, width)
        self.ids, self.positions = place[None, :, 0], place[None, :, 1]
        self.blocks, self.cells = place[:, 2], place[:, 3]
        self.tables, self.fills, self.base = tables.unbind(1)
        self._masks: dict[int, torch.Tensor] = {}

    def fill(self, feeds: Sequence[Feed], tables: Sequence[Table]) -> None:
        """Make it the plan of these feeds of one token; tables: of each one's cells, the new one included."""
        if self._copied is not None:
            self._copied.synchronize()  # the last copy out of this memory was over before its step was
        size, width, lines = self.pool.size, self.width, self._lines
        for line, (span, first, _), (blocks, fills, base) in zip(lines, feeds, tables, strict=False):
            used = len(blocks)
            line[:_PLACE] = span.ids.view()[first], span.start + first, blocks[-1], first % size
            own = line[_PLACE:].reshape(3, width)
            own[0, :used], own[1, :used], own[2, :used] = blocks, fills, base
            own[:, used:] = 0
        lines[len(feeds) :] = lines[0]
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def begin(self) -> None:
        """A forward begins: what the one before derived from the numbers is void."""
        self._masks.clear()

    def hidden(self, window: int) -> torch.Tensor:
        """bool [rows, width, size]: which cells of its blocks a row does not look at.  window: sliding one; 0: none."""
        if window not in self._masks:
            cell = torch.arange(self.pool.size, device=self._device.device)
            mask = cell >= self.fills[..., None]
            if window:
                mask |= self.base[..., None] + cell <= self.positions[0, :, None, None] - window
            self._masks[window] = mask
        return self._masks[window]


def numbers(pool: BlockPool, feeds: Sequence[Feed]) -> tuple[list[Table], int]:
    """The table of each feed of one token, and the length of the longest."""
    tables = [span.table(first + 1, pool.size) for span, first, _ in feeds]
    return tables, max(len(table.blocks) for table in tables)
