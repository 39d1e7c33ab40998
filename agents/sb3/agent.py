"""SB3Agent: a stable-baselines3 model as an agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.dqn.policies import DQNPolicy

from toolstep.agents.sb3.saved import load_policy

_FAR = -1e8  # logit of a choice that is not on offer, as in sb3-contrib


class SpacesDiffer(ValueError):
    """The model was trained on other spaces than the env has."""


class SB3Agent:
    """A model of PPO, A2C, DQN or MaskablePPO, in an env with `view="menu"`.

    Args:
        model: what `PPO.load` or `learn` returned, or its policy.  Models of other algorithms have `predict` and are
            agents as they are.
        temperature: 0 takes the most probable choice; otherwise choices are drawn, each row from a generator of its
            own, so that its draws do not depend on the other rows.  DQN has values, no probabilities: always the best.
        seed: of those generators, where `start` gave none.
        masked: whether choices that are not on offer are left out; default: where the policy is a maskable one.

    A model of MaskablePPO asks the env for its `action_masks`.
    """

    def __init__(
        self,
        model: BaseAlgorithm | BasePolicy,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        masked: bool | None = None,
    ) -> None:
        policy = model.policy if isinstance(model, BaseAlgorithm) else model
        maskable = type(policy).__name__ == "MaskableActorCriticPolicy"
        known = isinstance(policy, (ActorCriticPolicy, DQNPolicy)) or maskable
        if not known or not isinstance(policy.action_space, spaces.Discrete):
            raise TypeError(
                "SB3Agent takes a model of PPO, A2C, DQN or MaskablePPO with Discrete actions, got "
                f"{type(model).__name__} with {getattr(policy, 'action_space', None)}; a model with predict() is an "
                "agent as it is"
            )
        self.policy = policy
        self._first = int(policy.action_space.start)
        self.temperature = temperature
        self.seed = seed
        self.masked = maskable if masked is None else masked
        self._envs: Any = None
        self._rngs: dict[int, np.random.Generator] = {}

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None, temperature: float = 0.0, seed: int = 0) -> SB3Agent:
        """The model of a zip file, of which nothing is unpickled; see `load_policy` for what it raises."""
        saved = load_policy(path, device or "cpu")
        return cls(saved.policy, temperature=temperature, seed=seed, masked=saved.masked)

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        return {"view": "menu"}

    def check_spaces(self, envs: Any) -> None:
        """Raises SpacesDiffer unless the env, or vector env, has the spaces that the model was trained on."""
        found = [getattr(envs, f"single_{name}", None) or getattr(envs, name) for name in _SPACES]
        own = [getattr(self.policy, name) for name in _SPACES]
        if not all(map(_same_space, own, found)):
            raise SpacesDiffer(
                f"the SB3 model was trained on observations {own[0]} and actions {own[1]}, but the env has "
                f"observations {found[0]} and actions {found[1]}; play it in the env and with the menu of its training"
            )

    def bind(self, envs: Any) -> None:
        """Take the env, or vector env, that is going to be played.  Raises SpacesDiffer."""
        self.check_spaces(envs)
        self._envs = envs

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row`; `seed` alone decides what is drawn in it."""
        self._rngs[row] = np.random.default_rng(seed)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """One choice a row, i64[N], for observations [N, ...]; for a single observation one number."""
        self.policy.set_training_mode(False)
        tensor, batched = self.policy.obs_to_tensor(observation)
        with torch.no_grad():
            scores = self._scores(tensor).double().cpu().numpy()
        if self.masked:
            scores = np.where(self._masks(len(scores)), scores, _FAR)
        if deterministic or self.temperature == 0 or isinstance(self.policy, DQNPolicy):
            chosen = scores.argmax(axis=1)
        else:
            chosen = np.array([self._draw(row, s) for row, s in enumerate(scores)])
        chosen = chosen.astype(np.int64) + self._first
        return (chosen if batched else chosen[0]), None

    def _scores(self, observations: Any) -> torch.Tensor:
        """Logits, or values of DQN, [N, K]."""
        policy: Any = self.policy
        scores: torch.Tensor = (
            policy.q_net(observations)
            if isinstance(policy, DQNPolicy)
            else policy.get_distribution(observations).distribution.logits
        )
        return scores

    def _draw(self, row: int, scores: NDArray[np.float64]) -> int:
        if row not in self._rngs:
            self._rngs[row] = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(row,)))
        weights = np.exp((scores - scores.max()) / self.temperature)
        upto = np.cumsum(weights)
        return int(np.searchsorted(upto, self._rngs[row].random() * upto[-1], side="right"))

    def _masks(self, rows: int) -> NDArray[np.bool_]:
        """bool[rows, K], asked of the env."""
        envs = self._envs
        if envs is None:
            raise RuntimeError("SB3Agent: call bind(envs) before predict; the model needs the env's action masks")
        try:
            if hasattr(envs, "env_method"):  # a VecEnv of SB3
                return np.stack(envs.env_method("action_masks"))
            if getattr(envs, "num_envs", None) is None:
                return np.asarray(envs.get_wrapper_attr("action_masks")()).reshape(rows, -1)
            return np.stack(envs.unwrapped.call("action_masks"))
        except AttributeError as error:
            raise TypeError(f"SB3Agent: the model needs action masks, and {envs} has no action_masks()") from error


_SPACES = ("observation_space", "action_space")


def _same_space(own: spaces.Space[Any], found: Any) -> bool:
    """Equal; bounds that were read out of a file are as exact as numpy prints them."""
    if isinstance(own, spaces.Box) and isinstance(found, spaces.Box):
        return (
            own.shape == found.shape
            and own.dtype == found.dtype
            and np.allclose(own.low, found.low)
            and np.allclose(own.high, found.high)
        )
    return bool(own == found)
