"""2,000 short episodes with cancels, releases, forks, preemptions and new weights: nothing leaks, nothing hangs."""

from __future__ import annotations

import gc

import engine_models as em
import numpy as np
import pytest

from toolstep.agents.base import Completion, SamplingParams
from toolstep.agents.engine import Engine
from toolstep.agents.engine.spans import Span

EPISODES, ROWS = 2000, 48
PARAMS = SamplingParams(max_new_tokens=5)


class Player:
    """Episodes of one to three turns; what is done to them is drawn from one generator, what they sample is not."""

    def __init__(self, engine: Engine, *, calm: bool = False) -> None:
        self.engine, self.calm = engine, calm
        self.random = np.random.default_rng(0)
        self.turns: dict[int, list[list[int]]] = {}  # by episode
        self.over: set[int] = set()
        self.cancelled = self.begun = 0
        self._episode: dict[int, int] = {}  # by row
        self._ticket: dict[int, int] = {}

    def play(self, episodes: list[int]) -> None:
        left = list(reversed(episodes))
        steps = 0
        while left or self._episode:
            for row in range(ROWS):
                if row not in self._episode and left:
                    self._begin(row, left.pop())
            if not self.calm:
                self._disturb()
            for ticket, row, completion in self.engine.step():
                assert self._ticket.pop(row) == ticket
                self._settle(row, completion)
            steps += 1
            assert steps < 20_000, "it hangs"

    def _begin(self, row: int, episode: int) -> None:
        self.begun += 1
        self._episode[row], self.turns[episode] = episode, []
        self.engine.start(row, episode)
        self._submit(row, np.concatenate([em.ids(episode % 5, 40), em.ids(episode, 1 + episode % 9)]))

    def _submit(self, row: int, ids: np.ndarray) -> None:
        self._ticket[row] = self.engine.submit(row, ids, PARAMS, [7])

    def _settle(self, row: int, completion: Completion) -> None:
        episode = self._episode[row]
        self.turns[episode].append(completion.token_ids.tolist())
        if len(self.turns[episode]) <= episode % 3:
            self._submit(row, em.ids(episode + 1, 1 + episode % 4))
        else:
            self._end(row)
            self.over.add(episode)

    def _end(self, row: int) -> None:
        del self._episode[row]
        if row % 2:  # the others are started anew without a release
            self.engine.release(row)

    def _disturb(self) -> None:
        kind = self.random.integers(12)
        busy = sorted(self._ticket)
        row = busy[self.random.integers(len(busy))]
        if kind == 0:  # the turn is cancelled, and asked for again: nothing may be left of the first
            self.engine.cancel(self._ticket.pop(row))
            episode = self._episode[row]
            first = not self.turns[episode]
            prompt = np.concatenate([em.ids(episode % 5, 40), em.ids(episode, 1 + episode % 9)])
            self._submit(row, prompt if first else em.ids(episode + 1, 1 + episode % 4))
            self.cancelled += 1
        elif kind == 1:  # the episode is given up under way
            self.engine.release(row)
            del self._episode[row], self._ticket[row]
            self.cancelled += 1
        elif kind == 2:
            self.engine.drop_cache()
        elif kind == 3 and self.random.integers(10) == 0:
            self.engine.update_weights()
        elif kind == 4:  # a copy of a context, at once forgotten
            self.engine.start(ROWS, 0)
            self.engine.extend(ROWS, em.ids(3, 12))
            self.engine.fork(ROWS, [ROWS + 1], [1])
            self.engine.release(ROWS)
            self.engine.release(ROWS + 1)


@pytest.mark.parametrize("family", ["llama", "mamba"])
def test_nothing_leaks_and_nothing_hangs(family: str) -> None:
    episodes = EPISODES if family == "llama" else EPISODES // 10  # packed, and by caches of the model's own
    model = em.model(family)
    engine = Engine(model, kv_tokens=1600, max_context=256)
    player = Player(engine)
    player.play(list(range(episodes)))
    assert player.begun == episodes
    assert player.cancelled > episodes / 50
    assert engine.stats.preemptions > (10 if family == "llama" else -1)
    assert not engine.busy
    for row in range(ROWS):
        engine.release(row)
    assert not engine.scheduler.rows
    assert not engine.scheduler.waiting + engine.scheduler.running
    assert engine.pool.used == 0
    assert engine.live_tokens == 0
    del player.engine
    gc.collect()
    assert not [x for x in gc.get_objects() if type(x) is Span]

    calm = Player(Engine(model, kv_tokens=1600, max_context=256), calm=True)  # what was done to some harmed none
    sample = sorted(player.over)[:: max(1, len(player.over) // 60)]
    calm.play(sample)
    assert {e: calm.turns[e] for e in sample} == {e: player.turns[e] for e in sample}
