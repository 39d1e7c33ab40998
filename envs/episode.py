"""Episode: the state machine of one conversation.  Both environment classes drive it, and nothing else does.

A step has two halves, so that the tools of all rows of a vector env can run together:

    calls = episode.begin(action)        # parse the turn, settle every attempted call, return those to run
    results = executor.run(calls, ...)
    outcome = episode.finish(results)    # messages, reward, delta, end of the episode
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.envs.chat import Segment
from toolstep.envs.config import EnvConfig
from toolstep.envs.context import EMPTY, Context
from toolstep.envs.rewards.rubric import OUTCOME, RewardError
from toolstep.envs.settle import settle
from toolstep.envs.tools import BoundCall, EpisodeInfo, Toolbox, error_text
from toolstep.envs.types import (
    CallStatus,
    EpisodeRecord,
    EpisodeStatus,
    Message,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    Turn,
)
from toolstep.envs.views import MenuView, Reading


def draw_task_seed(rng: np.random.Generator) -> int:
    """The seed of an episode's task: the first thing that `reset` draws from the row's generator."""
    return int(rng.integers(2**63))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step of one row returns."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(slots=True)
class _Pending:
    """A turn that was parsed and whose calls are being run."""

    reading: Reading
    turn: Turn
    runs: list[int]  # indices into turn.calls of those that were handed out
    played: list[ToolResult] | None = None  # results that a recording had, in place of handing the calls out


class Episode:
    """One row.  `reset` begins a conversation; then `begin` and `finish` in turns until the outcome says it is over."""

    def __init__(self, config: EnvConfig):
        self.config = config
        self._box: Toolbox | None = None  # the tools of the running episode
        self._clear()

    def _clear(self) -> None:
        self.close()
        self.context = Context(self.config)
        self.statuses: list[CallStatus] = []
        self.stop_reason: StopReason | None = None
        self.status = EpisodeStatus.OK
        self.score = 0.0
        self.turns = self.sampled_tokens = 0
        self.tool_seconds = 0.0
        self._task: Task | None = None
        self._submitted: str | None = None
        self._state: dict[str, Any] = {}
        self._pending: _Pending | None = None
        self._mask: NDArray[np.bool_] | None = None  # of the latest observation, in a view that has one
        self._failure = ""
        self._started = time.monotonic()

    # ------------------------------------------------------------------ reset
    def reset(self, rng: np.random.Generator, sample: int = 0) -> tuple[Any, dict[str, Any]]:
        """Draw a task from `rng` and render its prompt.  Returns (observation, info).

        sample: tells episodes of one task apart on a tape; nothing else depends on it.

        The number of draws does not depend on the task, so that the row's next task doesn't either.
        """
        cfg = self.config
        self._clear()
        task_seed = draw_task_seed(rng)
        thinks = bool(rng.random() < (cfg.thinking_ratio or 0.0))
        variables = {} if cfg.thinking_ratio is None else {"open_thinking": thinks, "enable_thinking": thinks}
        task = cfg.tasks.task(task_seed, cfg.split)
        info = EpisodeInfo(task, task_seed, cfg.limits.tool_timeout, cfg.tasks.picks_tools)
        own = cfg.tasks.tools(task)
        tape = cfg.tape
        self._box = Toolbox(own, cfg.tools, info) if tape is None else tape.toolbox(own, cfg.tools, info, sample)
        n_system = 1 if task.messages and task.messages[0].role == "system" else 0
        messages = (*task.messages[:n_system], *cfg.examples, *task.messages[n_system:])
        self.context = Context(cfg, messages, [t.schema for t in self._box.tools.values()], variables)
        segment = self.context.prompt()
        self._task = task
        told = self._info(segment, self.messages)
        return self._observe(segment, self.messages, told), told

    def failed_reset(self, error: Exception) -> tuple[Any, dict[str, Any]]:
        """What a row whose `reset` raised shows instead; its next step ends it as an error."""
        self._fail(error)
        info = self._info(EMPTY, [])
        return self._observe(EMPTY, [], info), info

    # ------------------------------------------------------------------- step
    @property
    def over(self) -> bool:
        """Whether the episode has ended (or never began)."""
        return self.stop_reason is not None or self._task is None

    def begin(self, action: Any) -> list[BoundCall]:
        """Parse a checked action; returns the calls to run, in order.  Nothing that a model wrote makes it raise."""
        cfg = self.config
        if self._failure:
            return []
        chosen = cfg.view.turn(action, self.record)
        reading = cfg.view.read(action if chosen is None else self.context.write(chosen))
        if cfg.limits.full(self.context.tokens):  # the prompt alone fills it: there was no room for a turn
            self._pending = _Pending(reading, Turn(""), [])
            self.stop_reason = StopReason.CONTEXT
            return []
        tools = self._box.tools if self._box is not None else {}
        turn, runs = settle(self.context.read(reading), tools, cut=reading.cut, max_calls=cfg.limits.max_calls)
        bound = list(runs.values())
        played = None
        if bound and self._box is not None:
            played = self._box.answers(self.turns, bound)
            if played is None:
                self._box.ready([run.tool.name for run in bound])
        self._pending = _Pending(reading, turn, list(runs), played)
        return bound if played is None else []

    def finish(self, results: Sequence[ToolResult]) -> Outcome:
        """Answer every call, see whether the episode is over, and render what comes next."""
        pending, self._pending = self._pending, None
        if pending is None:
            return self._ended_in_error()
        reading = pending.reading
        if pending.played is not None:
            results = pending.played
        before = len(self.messages)
        self.tool_seconds += sum(r.seconds for r in results)
        self.turns += 1
        self.sampled_tokens += reading.tokens
        turn, replies = self._answered(pending.turn, dict(zip(pending.runs, results, strict=True)))
        statuses = [call.status for call in turn.calls]
        self.statuses += statuses
        if results and self._box is not None:
            self._box.heard([pending.turn.calls[i] for i in pending.runs], results)
            self._offer_changes(replies)
        self.messages.append(Message("assistant", turn.content, tool_calls=turn.calls, reasoning=turn.reasoning))
        if not reading.cut:
            self.messages.extend(replies)
        if self.stop_reason is None and not reading.cut and not turn.calls:
            reply = self._reply()
            if reply is None:
                self.stop_reason = StopReason.ANSWERED
            else:
                self.messages.append(reply)
        if self.stop_reason is None and any(r.terminate for r in results):
            self.stop_reason = StopReason.TOOL_ENDED
            self._submitted = next((r.answer for r in results if r.terminate and r.answer is not None), None)
        segment, new_segment = self.context.extend(before, turn, reading)
        if self.stop_reason is None:
            self.stop_reason = self.config.limits.reached(
                context_tokens=self.context.tokens,
                cut=reading.cut,
                sampled_tokens=self.sampled_tokens,
                turns=self.turns,
                seconds=time.monotonic() - self._started,
            )
        reward = float(sum(r.reward for r in results))
        if self.config.lost_turn_cost and CallStatus.UNKNOWN_TOOL in statuses:
            reward -= self.config.lost_turn_cost
        terms: dict[str, float] = {}
        if self.stop_reason is not None:
            if self._box is not None and self.stop_reason is not StopReason.ANSWERED:
                self._state = self._box.snapshot()
            reward += self._final_reward(terms)
            self.close()
        if not math.isfinite(reward):
            raise RewardError(f"task {self.task.id!r}: the reward of turn {self.turns} is {reward}")
        info = self._info(segment, self.messages[before:], statuses, reading.cut, terms, new_segment)
        return self._outcome(self._observe(segment, self.messages[before + 1 :], info), reward, info)

    def fail(self, error: Exception) -> Outcome:
        """End the row because a part of the environment (not the model) failed."""
        self._fail(error)
        return self._ended_in_error()

    # ------------------------------------------------------------------ parts
    @property
    def messages(self) -> list[Message]:
        """The conversation so far."""
        return self.context.messages

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Of the tools that the prompt shows."""
        return self.context.schemas

    @property
    def task(self) -> Task:
        if self._task is None:
            raise RuntimeError("the episode has not been reset")
        return self._task

    @property
    def record(self) -> EpisodeRecord:
        """The episode so far, as rewards and oracles see it."""
        return EpisodeRecord(
            task=self.task,
            messages=tuple(self.messages),
            stop_reason=self.stop_reason,
            turns=self.turns,
            statuses=tuple(self.statuses),
            sampled_tokens=self.sampled_tokens,
            submitted=self._submitted,
            state=self._state,
        )

    def close(self) -> None:
        """Close the tools of this episode; may be called again."""
        box, self._box = self._box, None
        if box is not None:
            box.close()

    def oracle_action(self) -> Any:
        """The right next action in this env's view; None where the episode is over.

        Raises:
            NoOracle: the task set knows no right action.
        """
        if self.over:
            return None
        turn = self.config.tasks.oracle(self.record)
        chosen = self.config.view.choose(turn, self.record)
        return self.config.view.write(self.context.write(turn)) if chosen is None else chosen

    def action_masks(self) -> NDArray[np.bool_]:
        """The choices on offer, bool[K], in `view="menu"`; sb3-contrib's MaskablePPO asks for them by this name."""
        view = self.config.view
        if not isinstance(view, MenuView):
            raise TypeError(f'action_masks() needs view="menu", this env has view={view.name!r}')
        return np.ones(view.size, np.bool_) if self._mask is None else self._mask.copy()

    def _answered(self, turn: Turn, results: Mapping[int, ToolResult]) -> tuple[Turn, list[Message]]:
        """The turn with what became of its calls, and the message that answers each."""
        calls: list[ToolCall] = []
        replies = []
        for i, call in enumerate(turn.calls):
            result = results.get(i)
            text = error_text(call.status, call.error) if result is None else self.context.limited(result.content)
            replies.append(Message("tool", text, tool_call_id=call.id, name=call.name or "unknown"))
            calls.append(call if result is None else replace(call, status=result.error or CallStatus.OK))
        return replace(turn, calls=tuple(calls)), replies

    def _final_reward(self, terms: dict[str, float]) -> float:
        cfg, record = self.config, self.record
        self.score = float(cfg.tasks.score(record))
        terms.update(cfg.reward.values(record, {OUTCOME: self.score} if cfg.pays_score else {}))
        return cfg.reward.total(terms, record)

    def _reply(self) -> Message | None:
        """What the user says to an answer, tools that are new by then included; None ends the episode."""
        if self._box is not None:
            self._box.answered()
            self._state = self._box.snapshot()
        reply = self.config.tasks.reply(self.record)
        if reply is None:
            return None
        told = [reply]
        self._offer_changes(told)
        return told[0]

    def _offer_changes(self, replies: list[Message]) -> None:
        """The model reads of tools that changed behind the last of the replies."""
        if self._box is not None and self._box.changes():
            self.context.offer([t.schema for t in self._box.tools.values()], replies)

    def _observe(self, segment: Segment, new: Sequence[Message], info: dict[str, Any]) -> Any:
        """The observation; what the view tells beside it goes into `info`."""
        record = None if self._failure else self.record
        observation = self.config.view.observe(segment, new, self.context.offered, record)
        info.update(self.config.view.info(segment, observation))
        if "action_mask" in info:
            self._mask = info["action_mask"].astype(np.bool_)
        return observation

    def _fail(self, error: Exception) -> None:
        self.close()
        self._pending = None
        self._failure = f"{type(error).__name__}: {error}"
        self.status = EpisodeStatus.ENV_ERROR
        self.stop_reason = StopReason.ERROR

    def _ended_in_error(self) -> Outcome:
        info = self._info(EMPTY, [])
        return self._outcome(self._observe(EMPTY, [], info), 0.0, info)

    def _outcome(self, observation: Any, reward: float, info: dict[str, Any]) -> Outcome:
        reason = self.stop_reason
        terminated = reason is not None and reason.terminated
        return Outcome(observation, reward, terminated, reason is not None and not terminated, info)

    def _info(
        self,
        segment: Segment,
        new: Sequence[Message],
        statuses: Sequence[CallStatus] = (),
        cut: bool = False,
        terms: Mapping[str, float] | None = None,
        new_segment: bool = False,
    ) -> dict[str, Any]:
        """One type for each key, for ever (a vector env batches them), and fresh objects at every call."""
        task = self._task
        return {
            "task_id": task.id if task else "",
            "turn": self.turns,
            "stop_reason": str(self.stop_reason or ""),
            "status": str(self.status),
            "error": self._failure,
            "score": self.score,
            "success": self.score >= 1.0,
            "response_truncated": cut,
            "history_policy": self.config.history,
            "history_rewrites": self.context.rewrites,
            "new_segment": new_segment,
            "call_statuses": [str(s) for s in statuses],
            "new_messages": [m.to_dict() for m in new],
            "sampled_tokens": self.sampled_tokens,
            "context_tokens": self.context.tokens,
            "tags": {str(k): str(v) for k, v in task.tags.items()} if task else {},
            "reward_terms": {k: float(v) for k, v in (terms or {}).items()},
        }
