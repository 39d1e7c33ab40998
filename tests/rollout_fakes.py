"""A small gymnasium env that follows the info keys of toolstep's envs, and small agents to play in it.

The env is a real `gymnasium.Env`, so gymnasium's own `SyncVectorEnv` drives it in each autoreset mode: what
`collect` makes of it does not depend on any vector env of ours.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from toolstep.agents.base import Completion
from toolstep.envs.spaces import TokenSequence, UnicodeText
from toolstep.envs.types import Source

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
VOCABULARY = 50
STOP = 2


def digest(*parts: Any) -> int:
    return zlib.crc32(repr(parts).encode())


class FakeEnv(gym.Env):
    """1 to 4 turns, drawn from the seed; observations and rewards depend on it and on every action so far.

    A token action without the stop id is a cut turn: the episode is truncated.
    """

    def __init__(self, view: str = "tokens", *, fail_on: Sequence[int] = (), reward: float | None = None):
        self.view = view
        self.fail_on = set(fail_on)  # task numbers whose first step is an error of the env
        self.reward = reward
        self.steps = 0
        tokens = view == "tokens"
        self.observation_space = TokenSequence(VOCABULARY) if tokens else UnicodeText(1000)
        self.action_space = TokenSequence(VOCABULARY, stop_ids=(STOP,)) if tokens else UnicodeText(1000)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(1000))
        self.planned = int(self.np_random.integers(1, 5))
        self.turn = 0
        self.over = False
        self.history: list[Any] = []
        ids = self.np_random.integers(3, VOCABULARY, size=int(self.np_random.integers(1, 6)))
        message = {"role": "user", "content": f"task {self.number}"}
        return self._observation(ids), self._info(bytes([Source.PROMPT]) * len(ids), [message])

    def step(self, action: Any):
        assert not self.over, "stepped an episode that is over"
        self.steps += 1
        self.turn += 1
        ids = [int(i) for i in action] if self.view == "tokens" else []
        self.history.append(ids or str(action))
        number = digest(self.number, self.history)
        cut = self.view == "tokens" and STOP not in ids
        reason = "cut_turn" if cut else "answered" if self.turn == self.planned else ""
        status = "ok"
        if self.number in self.fail_on:
            reason, status = "error", "env_error"
        self.over = bool(reason)
        size = 0 if reason == "answered" else number % 4
        sources = bytes([Source.SCAFFOLD, Source.BODY, Source.BODY, Source.SCAFFOLD])[:size]
        reward = (number % 100) / 100 if self.reward is None else self.reward
        if reason:
            self.score = 1.0 if number % 2 else 0.0
        messages = [{"role": "assistant", "content": str(self.history[-1])}]
        info = self._info(sources, messages, reason, status, ["ok"] if number % 3 else ["ok", "wrong_type"], cut)
        terminated = reason == "answered"
        observation = self._observation(np.arange(size) + 3 + number % 40)
        return observation, reward, terminated, bool(reason) and not terminated, info

    def _observation(self, ids: np.ndarray) -> Any:
        return ids.astype(np.int64) if self.view == "tokens" else " ".join(map(str, ids))

    def _info(self, sources, messages, reason="", status="ok", calls=(), cut=False) -> dict[str, Any]:
        score = self.score if reason else 0.0
        info = {
            "task_id": f"fake-{self.number}",
            "turn": self.turn,
            "stop_reason": reason,
            "status": status,
            "error": "it broke" if status != "ok" else "",
            "success": score == 1.0,
            "score": score,
            "response_truncated": cut,
            "call_statuses": list(calls),
            "new_messages": messages,
            "tags": {"parity": "odd" if self.number % 2 else "even"},
            "sampled_tokens": 0,
            "context_tokens": 0,
        }
        if self.view == "tokens":
            info["sources"] = sources
        return info


def fake_envs(num_envs: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: FakeEnv(**options)] * num_envs, autoreset_mode=mode)


class FakeTokenAgent:
    """Samples ids that depend on the episode's seed and whole context; counts what it was asked for."""

    env_kwargs: Mapping[str, Any] = {"view": "tokens"}
    seed = 0

    def __init__(self, *, abort_every: int = 0, interrupt_after: int | None = None):
        self.generations = 0
        self.abort_every = abort_every
        self.interrupt_after = interrupt_after
        self._context: dict[int, list[int]] = {}
        self._seed: dict[int, int] = {}

    def start(self, row: int, seed: int) -> None:
        self._context[row] = []
        self._seed[row] = seed

    def act(self, rows: Sequence[int], observations: Sequence[np.ndarray]) -> list[Completion]:
        assert len(rows) == len(observations)
        return [self._complete(r, o) for r, o in zip(rows, observations)]

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        raise AssertionError("a token agent is asked by act")

    def _complete(self, row: int, observation: np.ndarray) -> Completion:
        assert observation.dtype == np.int64
        if self.interrupt_after is not None and self.generations >= self.interrupt_after:
            raise KeyboardInterrupt
        self.generations += 1
        context = self._context[row]
        context += [int(i) for i in observation]
        number = digest(self._seed[row], context)
        n = number % 4
        ids = [3 + digest(number, i) % 40 for i in range(n)]
        finish = "length" if number % 11 == 0 else "stop"
        if finish == "stop":
            ids.append(STOP)
        if self.abort_every and number % self.abort_every == 0:
            finish = "abort"
        context += ids
        logprobs = -np.array([digest(number, i, "p") % 1000 for i in range(len(ids))], np.float32) / 100
        return Completion(np.array(ids, np.int32), logprobs, logprobs * 2, finish, weight_version=7)


class FakeTextAgent:
    """Acts by `predict`; its state is a list with one entry a row, begun anew where `episode_start` says so."""

    env_kwargs: Mapping[str, Any] = {}

    def __init__(self):
        self.bound: list[Any] = []

    def bind(self, envs: Any) -> None:
        self.bound.append(envs)

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        state = list(state) if state is not None else [""] * len(observation)
        actions = []
        for row, text in enumerate(observation):
            if episode_start[row]:
                state[row] = ""
            state[row] += "|" + text
            actions.append(f"act {digest(state[row])}")
        return tuple(actions), state
