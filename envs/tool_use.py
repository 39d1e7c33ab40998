"""ToolUseEnv: one conversation in which an agent may call tools, as a `gymnasium.Env`."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from toolstep.envs.config import EnvConfig, Tools
from toolstep.envs.episode import Episode, Outcome
from toolstep.envs.render import render_conversation
from toolstep.envs.rows import reset_samples
from toolstep.envs.tools import Executor
from toolstep.envs.types import EpisodeRecord, Message, Task

RENDER_MODES = ["ansi"]
RENDER_FPS = 1  # a turn has no duration; Gymnasium asks every env that renders for a number


class ToolUseEnv(gym.Env[Any, Any]):
    """One conversation.  An action is one assistant turn; the observation is what the template puts behind it.

    Args:
        tasks: where problems come from (see `EnvConfig`).
        tools: what is on offer in addition to the task set's own: functions, `Tool`s, names of built-in tools, and
            classes or factories that make an object for each episode.
        render_mode: "ansi", or None.
        **options: every other keyword of `EnvConfig` and `Limits`, and the task set's own options.

    The reward of the last step is the task set's score in [0, 1] (or what `reward=` says); tools may add to any step's.
    `info["stop_reason"]` says why an episode ended: `terminated` where it answered, a tool or the task ended it;
    `truncated` where a budget ran out (turns, tokens, context, wall clock) or the turn was cut by length.  Limit turns
    with `max_turns=`: the TimeLimit that `gymnasium.make(max_episode_steps=)` wraps around an env cuts an episode from
    outside, unscored and without a reason.  (`ToolUseVectorEnv` enforces `max_episode_steps` itself.)

    Example:
        >>> def add(a: int, b: int) -> int:
        ...     '''Add two integers.'''
        ...     return a + b
        >>> env = ToolUseEnv([{"prompt": "What is 2 + 3?", "answer": "5"}], tools=[add])
        >>> obs, info = env.reset(seed=0)
        >>> call = '<tool_call>\\n{"name": "add", "arguments": {"a": 2, "b": 3}}\\n</tool_call>'
        >>> obs, reward, terminated, truncated, info = env.step(call)
        >>> info["call_statuses"], terminated
        (['ok'], False)
        >>> obs, reward, terminated, truncated, info = env.step("5")
        >>> reward, terminated, info["stop_reason"]
        (1.0, True, 'answered')
        >>> env.close()
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": RENDER_MODES, "render_fps": RENDER_FPS}  # type: ignore[misc]

    def __init__(
        self,
        tasks: Any,
        tools: Tools | None = None,
        *,
        render_mode: str | None = None,
        **options: Any,
    ):
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self.config = EnvConfig.create(tasks, tools, **options)
        self.observation_space = self.config.view.observation_space()
        self.action_space = self.config.view.action_space()
        self._episode = Episode(self.config)
        self._executor = Executor(self.config.limits.max_calls)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode.  The seed decides the task; without one the generator goes on.

        `options={"sample": n}` tells episodes of one task apart on a tape.
        """
        super().reset(seed=seed)
        (sample,) = reset_samples([(options or {}).get("sample", 0)], 1, "options['sample']")
        return self._episode.reset(self.np_random, sample)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one assistant turn, run its tools, return what comes next.

        Raises:
            TypeError, ValueError: the action has not the type of this view (whatever a model can *write* is fine).
            gymnasium.error.ResetNeeded: the episode is over, or was never begun.
        """
        action = self.config.view.check(action)
        episode = self._episode
        if episode.over:
            raise gym.error.ResetNeeded("the episode is over (or was never begun): call reset() first")
        try:
            calls = episode.begin(action)
        except Exception as e:
            out = self._failed(e)
        else:
            results = self._executor.run(calls, timeout=self.config.limits.tool_timeout)
            try:
                out = episode.finish(results)
            except Exception as e:
                out = self._failed(e)
        return out.observation, out.reward, out.terminated, out.truncated, out.info

    def _failed(self, e: Exception) -> Outcome:
        """The outcome of a step in which a part of the environment failed."""
        if self.config.strict:
            raise e
        return self._episode.fail(e)

    def render(self) -> str | None:
        """The conversation so far, for a person to read ("ansi")."""
        if self.render_mode is None:
            gym.logger.warn('render() does nothing without a render mode: pass render_mode="ansi"')
            return None
        return render_conversation(self._episode)

    def close(self) -> None:
        """Close the episode's tools, stop the tool threads and processes.  May be called again."""
        self._episode.close()
        self.config.close()
        self._executor.close()

    # What agents, wrappers and tests look at.
    @property
    def task(self) -> Task:
        """The task of the running episode."""
        return self._episode.task

    @property
    def record(self) -> EpisodeRecord:
        """The episode so far."""
        return self._episode.record

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """OpenAI-style schemas of the tools on offer in this episode."""
        return list(self._episode.schemas)

    @property
    def messages(self) -> list[Message]:
        """The conversation so far (a copy)."""
        return list(self._episode.messages)

    @property
    def tool_seconds(self) -> float:
        """Seconds that this episode's tools took, summed over calls."""
        return self._episode.tool_seconds

    def action_masks(self) -> NDArray[np.bool_]:
        """The choices on offer now, bool[K], in `view="menu"` (sb3-contrib's MaskablePPO asks for them)."""
        return self._episode.action_masks()

    def oracle_action(self) -> Any:
        """The right next action in this env's view; None where the episode is over."""
        return self._episode.oracle_action()


def check_render_mode(mode: str | None) -> None:
    """ValueError for a render mode that does not exist."""
    if mode is not None and mode not in RENDER_MODES:
        raise ValueError(f"render_mode must be one of {RENDER_MODES} or None, got {mode!r}")
