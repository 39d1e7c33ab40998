"""Workload W: multi-turn tool-use episodes with forced lengths, so that every engine does the same token work.

Groups of episodes share a prompt (system prompt, tool schemas, question).  An episode has a few turns; a turn samples
exactly as many ids as W says (no stop id), and an observation of given ids follows each turn but the last.  Ids are
random: what an engine costs depends on lengths alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Episode:
    """prompt: ids.  limits: ids to sample in each turn.  observations: ids behind each turn but the last."""

    number: int
    group: int
    prompt: list[int]
    limits: list[int]
    observations: list[list[int]]

    @property
    def sampled(self) -> int:
        return sum(self.limits)

    @property
    def length(self) -> int:
        """Tokens of the whole context at the end."""
        return len(self.prompt) + self.sampled + sum(map(len, self.observations))


def episodes(
    *,
    vocabulary: int,
    groups: int = 8,
    members: int = 8,
    turns: tuple[int, int] = (1, 4),
    prompt: tuple[int, int] = (150, 400),
    sampled: tuple[int, int] = (16, 96),
    observed: tuple[int, int] = (10, 80),
    seed: int = 0,
) -> list[Episode]:
    """The defaults are W.  All ranges are inclusive and drawn uniformly, in tokens."""
    rng = np.random.default_rng(seed)

    def ids(span: tuple[int, int]) -> list[int]:
        return list(rng.integers(0, vocabulary, rng.integers(span[0], span[1] + 1)).tolist())

    out: list[Episode] = []
    for group in range(groups):
        start = ids(prompt)
        for _ in range(members):
            count = int(rng.integers(turns[0], turns[1] + 1))
            limits = rng.integers(sampled[0], sampled[1] + 1, count).tolist()
            out.append(Episode(len(out), group, start, limits, [ids(observed) for _ in range(count - 1)]))
    return out


def unique_tokens(work: Sequence[Episode]) -> int:
    """Tokens that have to go through the model once: a group's prompt counts once, the last sampled id not at all."""
    prompts = {e.group: len(e.prompt) for e in work}
    return sum(prompts.values()) + sum(e.length - len(e.prompt) - 1 for e in work)
