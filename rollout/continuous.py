"""The loop without a barrier: while the tools of some rows run, the agent decodes the others.

A row whose tools have answered joins the agent's next step, and a row whose episode is over takes the next one at once.
The trajectories are those of the loop with a barrier (`rollout.barrier`): an episode's seed decides its task and its
samples, never the time at which its turns were finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium.vector import VectorWrapper

from toolstep.agents.base import Completion
from toolstep.agents.continuous import ContinuousAgent
from toolstep.envs.vector_envs import recorded
from toolstep.rollout.metrics import Clock, RunMetrics
from toolstep.rollout.player import make_player
from toolstep.rollout.recorder import EpisodeRecorder
from toolstep.rollout.specs import EpisodeSpec, sampling_seed
from toolstep.rollout.types import Trajectory

PATIENCE = 600.0  # seconds without any row coming back; for an env that does not say how long a turn can take
LEAVING = 5.0  # seconds that rows under way may take to come back when a run is given up


class StuckEnv(RuntimeError):
    """No row came back in time, though each wait in an env has a deadline."""


@runtime_checkable
class StreamEnv(Protocol):
    """A vector env whose rows can be played one by one; see `ToolUseVectorEnv`.

    It may also have `turn_timeout`, the seconds within which one pending row comes back, and `cancel()`, which makes
    all pending rows come back soon.
    """

    @property
    def pending(self) -> int: ...
    def begin(
        self, rows: Sequence[int], seeds: Sequence[int | None], **options: Any
    ) -> tuple[Sequence[Any], Sequence[dict[str, Any]]]: ...
    def send(self, actions: Sequence[Any], rows: Sequence[int]) -> None: ...
    def recv(self, min_rows: int = 1, timeout: float | None = None) -> Any: ...


def plays_continuously(envs: Any, agent: Any) -> bool:
    """Whether env and agent can be played without a barrier.

    A wrapper, or a subclass that has a `step` of its own, means something by its `step`: it is played by that.
    """
    if not isinstance(agent, ContinuousAgent) or isinstance(envs, VectorWrapper) or not isinstance(envs, StreamEnv):
        return False
    bases = type(envs).__mro__
    sends, steps, resets = (
        next((i for i, c in enumerate(bases) if n in vars(c)), len(bases)) for n in ("send", "step", "reset")
    )
    return sends <= min(steps, resets)


class ContinuousRun:
    """State of one run: which episode each row plays, and where it is: in the agent or in the env.

    patience: seconds to wait for the env while the agent has nothing to do; None: twice what the env says.
    """

    def __init__(
        self,
        envs: Any,
        agent: ContinuousAgent,
        seed: int,
        metrics: RunMetrics,
        *,
        tokens: bool,
        patience: float | None = None,
    ):
        self.envs: StreamEnv = envs
        self.agent = agent
        self.seed = seed
        self.metrics = metrics
        self.tokens = tokens
        self.player = make_player(envs, agent, tokens=tokens)
        self.patience = 2.0 * getattr(envs, "turn_timeout", PATIENCE / 2) if patience is None else patience
        self.live: dict[int, tuple[int, EpisodeRecorder]] = {}
        self.decoding: dict[int, int] = {}  # row -> ticket
        self.stepping: set[int] = set()  # rows whose turn is in the env
        self.free = deque(range(envs.num_envs))
        self.clock = Clock(metrics)

    def episodes(self, specs: Iterable[EpisodeSpec]) -> Iterator[tuple[int, Trajectory]]:
        """Yields (index in specs, trajectory) as they finish."""
        queue = iter(enumerate(specs))
        try:
            while True:
                yield from self.begin(queue)
                if not self.live:
                    return
                yield from self.receive()
                yield from self.begin(queue)
                yield from self.decode()
        finally:
            self.give_up()

    def begin(self, queue: Iterator[tuple[int, EpisodeSpec]]) -> Iterator[tuple[int, Trajectory]]:
        """Free rows take the next episodes; yields those that are over already (their reset failed)."""
        while self.free:
            begun = dict(zip(list(self.free), queue))
            if not begun:
                self.release(self.free)
                self.free.clear()
                return
            for row in begun:
                self.free.remove(row)
            with self.clock("env_seconds"):
                specs = [spec for _, spec in begun.values()]
                samples = {"samples": [spec.sample_index for spec in specs]} if recorded(self.envs) else {}
                observations, infos = self.envs.begin(list(begun), [spec.seed for spec in specs], **samples)
            over = []
            for (row, (index, spec)), observation, info in zip(begun.items(), observations, infos, strict=True):
                recorder = EpisodeRecorder(spec, tokens=self.tokens)
                self.live[row] = (index, recorder)
                if recorder.open(observation, info):
                    over.append(row)
                    continue
                with self.clock("agent_seconds"):
                    self.player.begin(row, sampling_seed(spec, self.seed))
                self.submit(row, observation)
            yield from self.close(over)

    def receive(self) -> Iterator[tuple[int, Trajectory]]:
        """Rows whose tools have answered go back to the agent; yields the episodes that are over."""
        if not self.stepping:
            return
        if self.agent.busy:
            with self.clock("env_seconds"):
                got = self.envs.recv(0, 0.0)
        else:
            with self.clock("wait_seconds"):
                got = self.envs.recv(1, self.patience)
            if not len(got[0]):
                raise StuckEnv(
                    f"rows {sorted(self.stepping)} have been waiting for their tools for {self.patience:g} s, and none "
                    "came back, though every tool call has a deadline: the env hangs"
                )
        over = []
        for row, observation, reward, terminated, truncated, info in zip(*got, strict=True):
            self.stepping.remove(row)
            self.metrics.transitions += 1
            if self.live[row][1].step(observation, float(reward), bool(terminated), bool(truncated), info):
                over.append(row)
                continue
            if info.get("new_segment", False):
                self.player.new_segment(row)
            self.submit(row, observation)
        yield from self.close(over)

    def submit(self, row: int, observation: Any) -> None:
        with self.clock("agent_seconds"):
            self.decoding[row] = self.agent.submit(row, np.asarray(observation, dtype=np.int64))

    def decode(self) -> Iterator[tuple[int, Trajectory]]:
        """One step of the agent; finished turns go to the env, given-up ones end their episode."""
        if not self.decoding:
            return
        if not self.agent.busy:
            raise RuntimeError(
                f"{type(self.agent).__name__} is not busy, but the turns of rows {sorted(self.decoding)} were "
                "submitted to it and have not come out of step()"
            )
        with self.clock("agent_seconds"):
            finished = self.agent.step()
        aborted, actions = [], {}
        for row, completion in finished:
            if self.decoding.pop(row, None) is None:
                raise ValueError(
                    f"{type(self.agent).__name__}.step returned a turn of row {row}, which was not submitted"
                )
            self.metrics.generations += 1
            self.metrics.sampled_tokens += len(completion.token_ids)
            if completion.finish_reason == "abort":
                self.live[row][1].abort(completion)
                aborted.append(row)
            else:
                self.live[row][1].act(completion)
                actions[row] = _action(completion)
        if actions:
            self.stepping |= actions.keys()
            with self.clock("env_seconds"):
                self.envs.send(list(actions.values()), list(actions))
        yield from self.close(aborted)

    def close(self, rows: Sequence[int]) -> Iterator[tuple[int, Trajectory]]:
        """The trajectories of these rows, which are free from now on."""
        over = [self.live.pop(row) for row in rows]
        self.free.extend(rows)
        for index, recorder in over:
            self.metrics.episodes += 1
            yield index, recorder.close()

    def release(self, rows: Iterable[int]) -> None:
        """No episode will be played in these rows any more: the agent may use their memory for others."""
        release = getattr(self.agent, "release", None)
        if callable(release):
            for row in rows:
                release(row)

    def give_up(self) -> None:
        """Leave nothing under way, neither in the agent nor in the env, so that both can be used again."""
        for ticket in self.decoding.values():
            with suppress(Exception):  # what ended the run is more telling than what it left behind
                self.agent.cancel(ticket)
        self.release(self.live)
        if not self.stepping:
            return
        cancel = getattr(self.envs, "cancel", None)
        if callable(cancel):
            cancel()
        until = time.monotonic() + LEAVING
        while self.envs.pending and time.monotonic() < until:
            with suppress(Exception):
                self.envs.recv(self.envs.pending, max(0.0, until - time.monotonic()))


def _action(completion: Completion) -> np.ndarray[Any, np.dtype[np.int64]]:
    return completion.token_ids.astype(np.int64)
