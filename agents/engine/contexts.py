"""What the rows' contexts are, and what may be done to them while no forward runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolstep.agents.engine.interface import Ids
from toolstep.agents.engine.rows import Row
from toolstep.agents.engine.scheduler import Scheduler


class Contexts:
    """The rows of a scheduler, and the only place outside of a forward where they change.

    A row's ids and the spans that hold their keys and values change together.

    vocabulary: ids must be below it.
    """

    def __init__(self, scheduler: Scheduler, vocabulary: int) -> None:
        self.scheduler, self.vocabulary = scheduler, vocabulary
        self.rows, self.tree = scheduler.rows, scheduler.tree

    def row(self, row: int) -> Row:
        state = self.rows.get(row)
        if state is None:
            raise ValueError(f"row {row} has no episode: call start({row}, seed) first")
        return state

    def extend(self, row: int, ids: Ids) -> None:
        """Append ids that were not sampled (a prompt, an observation); they are computed with the row's next turn."""
        state = self.row(row)
        if state.turn is not None:
            raise ValueError(f"row {row} has a turn under way (ticket {state.turn.ticket}): wait for it, or cancel it")
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise ValueError(f"row {row}: expected a 1-D array of integer ids, got {array.dtype}{list(array.shape)}")
        if array.size and (array.min() < 0 or array.max() >= self.vocabulary):
            bad = int(array[(array < 0) | (array >= self.vocabulary)][0])
            raise ValueError(
                f"row {row}: id {bad} is outside the model's vocabulary of {self.vocabulary}; "
                "is this the tokenizer that belongs to the model?"
            )
        state.ids.extend(array)
        if state.leaf is not None:
            state.leaf.ids.extend(array)

    def rewind(self, row: int, length: int) -> None:
        """Take back all ids behind the first `length` of the row's context (of an `extend` that came to nothing)."""
        state = self.row(row)
        state.ids.cut(length)
        leaf, tree = state.leaf, self.tree
        if leaf is not None and (length < leaf.start or not tree.cut(leaf, length - leaf.start)):
            # What is taken back belongs to others as well: it stays, and the row goes on beside it.
            state.leaf = tree.hold(tree.add(leaf, length)) if length else None
            tree.drop(leaf)

    def fork(self, row: int, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of `rows` with the context of `row`: shared, not copied, not computed again.

        The penalties count what `row` has sampled in the context; random numbers come from each one's own seed.
        """
        source = self.row(row)
        if len(rows) != len(seeds) or row in rows or len(set(rows)) != len(rows):
            raise ValueError(
                f"fork: expected other, distinct rows and a seed for each, got {list(rows)}, {list(seeds)}"
            )
        if source.turn is not None:
            raise ValueError(f"fork: row {row} has a turn under way (ticket {source.turn.ticket})")
        tree, trunk = self.tree, source.leaf if self.tree.pool.sharing != "nowhere" else None
        if trunk is not None:
            trunk.frozen = True
            source.leaf = tree.hold(tree.add(trunk, trunk.end))
        for other, seed in zip(rows, seeds, strict=True):
            state = self.rows[other] = Row(seed)
            state.ids.extend(source.ids.view())
            state.fork(source.sampled)
            if trunk is not None:
                state.leaf = tree.hold(tree.add(trunk, trunk.end))
        if trunk is not None:
            tree.drop(trunk)

    def need_logits(self, state: Row) -> None:
        """A turn without new ids after one that was taken back: the last id has to be computed once more."""
        leaf = state.leaf
        if leaf is None or leaf.filled < len(leaf.ids):
            return
        if len(leaf.ids):
            leaf.filled -= 1
        else:
            parent = leaf.parent
            if (
                parent is None
                or parent.end != leaf.start
                or (parent.filled == len(parent.ids) and parent.logits is None)
            ):
                self.scheduler.forget(state)
