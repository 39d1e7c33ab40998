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

from toolstep.envs.chat import ChatTemplateError, Segment
from toolstep.envs.config import EnvConfig
from toolstep.envs.openai_messages import read_message
from toolstep.envs.rewards.rubric import OUTCOME, RewardError
from toolstep.envs.tools import BoundCall, EpisodeInfo, Toolbox, error_text, limit_result, resolve
from toolstep.envs.tools.news import news_of
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

_ANSWERED = 4  # times max_calls: so many attempts of a turn get an answer each
_EMPTY = Segment("", np.zeros(0, np.int64), np.zeros(0, np.uint8))


class HistoryRewritten(ValueError):
    """The chat template rewrites the past, and the env was told to refuse that (history="error")."""


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
    history: tuple[Message, ...]
    runs: list[int]  # indices into turn.calls of those that were handed out
    thought_open: bool = False  # the turn ended inside a thought
    played: list[ToolResult] | None = None  # results that a recording had, in place of handing the calls out


class Episode:
    """One row.  `reset` begins a conversation; then `begin` and `finish` in turns until the outcome says it is over."""

    def __init__(self, config: EnvConfig):
        self.config = config
        self._box: Toolbox | None = None  # the tools of the running episode
        self._clear()

    def _clear(self) -> None:
        self.close()
        self.messages: list[Message] = []
        self.statuses: list[CallStatus] = []
        self.stop_reason: StopReason | None = None
        self.status = EpisodeStatus.OK
        self.score = 0.0
        self.turns = self.sampled_tokens = self.context_tokens = self.history_rewrites = 0
        self.tool_seconds = self.template_seconds = 0.0
        self._task: Task | None = None
        self._submitted: str | None = None
        self._state: dict[str, Any] = {}
        self.schemas: list[dict[str, Any]] = []  # that the prompt shows
        self._offered = self.schemas  # of the tools that can be called now
        self._kwargs: dict[str, Any] = {}  # template variables drawn for this episode
        self._tail = ""  # end of the text that the agent saw last: a thought may be open there
        self._next_call_id = 0
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
        if cfg.thinking_ratio is not None:
            self._kwargs = {"open_thinking": thinks, "enable_thinking": thinks}
        task = cfg.tasks.task(task_seed, cfg.split)
        info = EpisodeInfo(task, task_seed, cfg.limits.tool_timeout, cfg.tasks.picks_tools)
        own = cfg.tasks.tools(task)
        tape = cfg.tape
        self._box = Toolbox(own, cfg.tools, info) if tape is None else tape.toolbox(own, cfg.tools, info, sample)
        self.schemas = self._offered = [t.schema for t in self._box.tools.values()]
        n_system = 1 if task.messages and task.messages[0].role == "system" else 0
        self.messages = [*task.messages[:n_system], *cfg.examples, *task.messages[n_system:]]
        self._next_call_id = sum(len(m.tool_calls) for m in cfg.examples)
        segment = self._timed(cfg.chat.prompt, self.messages, self.schemas, kwargs=self._kwargs)
        self._task = task
        self.context_tokens = len(segment.ids)
        self._tail = segment.text[-256:]
        told = self._info(segment, self.messages)
        return self._observe(segment, self.messages, told), told

    def failed_reset(self, error: Exception) -> tuple[Any, dict[str, Any]]:
        """What a row whose `reset` raised shows instead; its next step ends it as an error."""
        self._fail(error)
        info = self._info(_EMPTY, [])
        return self._observe(_EMPTY, [], info), info

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
        reading = cfg.view.read(action if chosen is None else self._write(chosen))
        if cfg.limits.max_context is not None and self.context_tokens >= cfg.limits.max_context:
            # The prompt alone fills the context: there was no room for a turn.
            self._pending = _Pending(reading, Turn(""), tuple(self.messages), [])
            self.stop_reason = StopReason.CONTEXT
            return []
        turn = self._bounded(self._read(reading))
        self._next_call_id += len(turn.calls)
        calls, bound, runs = [], [], []
        for i, call in enumerate(turn.calls):
            settled, run = self._settle(call, i, reading.cut)
            if run is not None:
                runs.append(i)
                bound.append(run)
            calls.append(settled)
        played = None
        if bound and self._box is not None:
            played = self._box.answers(self.turns, bound)
            if played is None:
                self._box.ready([run.tool.name for run in bound])
        thought_open = any(c.status is CallStatus.UNCLOSED_REASONING for c in turn.calls)
        turn = replace(turn, calls=tuple(calls))
        self._pending = _Pending(reading, turn, tuple(self.messages), runs, thought_open, played)
        return bound if played is None else []

    def _read(self, reading: Reading) -> Turn:
        """The turn in a reading."""
        if reading.structured:
            return read_message(reading.text, self._next_call_id)[0]
        return self.config.chat.parse(
            reading.text,
            finish="length" if reading.cut else "stop",
            prompt_tail=self._tail,
            first_id=self._next_call_id,
            tools=self._offered,
        )

    def _bounded(self, turn: Turn) -> Turn:
        """The turn with a bounded number of attempts: the last one stands for all the rest and says how many.

        Each attempt costs a message; a turn of nothing but call marks would otherwise fill the context with errors.
        """
        most = _ANSWERED * self.config.limits.max_calls
        if len(turn.calls) <= most:
            return turn
        rest = len(turn.calls) - most + 1
        error = f"this and {rest - 1} more calls of the turn were not looked at; make fewer"
        last = replace(turn.calls[most - 1], status=CallStatus.OVER_LIMIT, error=error)
        return replace(turn, calls=(*turn.calls[: most - 1], last))

    def _settle(self, call: ToolCall, index: int, cut: bool) -> tuple[ToolCall, BoundCall | None]:
        """The call with its status, and what to run where it is good."""
        if cut:  # I3: the calls of a cut turn are not run, complete ones neither
            return replace(call, status=CallStatus.TRUNCATED, error="the turn was cut off before it ended"), None
        if call.status is CallStatus.OVER_LIMIT:
            return call, None
        if index >= self.config.limits.max_calls:
            limit = self.config.limits.max_calls
            return replace(call, status=CallStatus.OVER_LIMIT, error=f"at most {limit} calls in one turn"), None
        return resolve(call, self._box.tools if self._box is not None else {})

    def finish(self, results: Sequence[ToolResult]) -> Outcome:
        """Answer every call, see whether the episode is over, and render what comes next."""
        pending, self._pending = self._pending, None
        if pending is None:
            return self._ended_in_error()
        reading, turn = pending.reading, pending.turn
        if pending.played is not None:
            results = pending.played
        before = len(self.messages)
        answers = dict(zip(pending.runs, results, strict=True))
        self.tool_seconds += sum(r.seconds for r in results)
        self.turns += 1
        self.sampled_tokens += reading.tokens
        self.context_tokens += reading.tokens
        calls, replies, statuses = [], [], []
        for i, call in enumerate(turn.calls):
            result = answers.get(i)
            status = call.status if result is None else (result.error or CallStatus.OK)
            calls.append(replace(call, status=status))
            text = error_text(call.status, call.error) if result is None else self._limited(result.content)
            replies.append(Message("tool", text, tool_call_id=call.id, name=call.name or "unknown"))
            statuses.append(status)
        if results and self._box is not None:
            self._box.heard([turn.calls[i] for i in pending.runs], results)
            if self._box.changes():
                self._tell_changes(replies)
        self.messages.append(Message("assistant", turn.content, tool_calls=tuple(calls), reasoning=turn.reasoning))
        if not reading.cut:
            self.messages += replies
        self.statuses += statuses

        if self.stop_reason is None and not reading.cut and not turn.calls:
            reply = self._reply()
            if reply is None:
                self.stop_reason = StopReason.ANSWERED
            else:
                self.messages.append(reply)
        if self.stop_reason is None and any(r.terminate for r in results):
            self.stop_reason = StopReason.TOOL_ENDED
            self._submitted = next((r.answer for r in results if r.terminate and r.answer is not None), None)
        new = self.messages[before + 1 :]
        new_segment = self._begins_segment(pending.history, self.messages[before], new)
        if new_segment:
            segment = self._timed(self.config.chat.prompt, self.messages, self.schemas, kwargs=self._kwargs)
            self.context_tokens = len(segment.ids)
        else:
            segment = self._delta(pending, replace(turn, calls=tuple(calls)), new)
            self.context_tokens += len(segment.ids)
        self._tail = segment.text[-256:]
        if self.stop_reason is None:
            self.stop_reason = self._cut_short(reading)
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
        return self._outcome(self._observe(segment, new, info), reward, info)

    def fail(self, error: Exception) -> Outcome:
        """End the row because a part of the environment (not the model) failed."""
        self._fail(error)
        return self._ended_in_error()

    # ------------------------------------------------------------------ parts
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
        return self.config.view.write(self._write(turn)) if chosen is None else chosen

    def action_masks(self) -> NDArray[np.bool_]:
        """The choices on offer, bool[K], in `view="menu"`; sb3-contrib's MaskablePPO asks for them by this name."""
        view = self.config.view
        if not isinstance(view, MenuView):
            raise TypeError(f'action_masks() needs view="menu", this env has view={view.name!r}')
        return np.ones(view.size, np.bool_) if self._mask is None else self._mask.copy()

    def _begins_segment(self, history: Sequence[Message], turn: Message, new: Sequence[Message]) -> bool:
        """Whether the context begins anew because the template would write the past differently now."""
        chat = self.config.chat
        if not any(m.role in chat.rewriting_roles for m in new):
            return False
        try:
            if chat.keeps_history(history, turn, new, self.schemas, kwargs=self._kwargs):
                return False
        except ChatTemplateError:  # it refuses the real messages (two calls in a turn, say): nothing to compare with
            return False
        self.history_rewrites += 1
        if self.config.history == "error":
            raise HistoryRewritten(
                f"turn {self.turns}: the chat template would now write the past differently from what the model saw; "
                'pass history="keep" to go on with an append-only context, or history="rerender" to begin it anew'
            )
        return self.config.history == "rerender"

    def _delta(self, pending: _Pending, turn: Turn, new: Sequence[Message]) -> Segment:
        chat, open_ = self.config.chat, pending.thought_open and pending.reading.stop is None
        options = {"thought_open": open_, "kwargs": self._kwargs}
        if new:
            stop = pending.reading.stop
            return self._timed(chat.delta, pending.history, turn, new, self.schemas, stop=stop, **options)
        if pending.reading.cut:
            return self._timed(chat.close, pending.history, turn, self.schemas, **options)
        return _EMPTY

    def _cut_short(self, reading: Reading) -> StopReason | None:
        limits = self.config.limits
        if limits.max_context is not None and self.context_tokens >= limits.max_context:
            return StopReason.CONTEXT  # also where that is what cut the turn
        if reading.cut:
            return StopReason.CUT_TURN
        if limits.max_tokens is not None and self.sampled_tokens >= limits.max_tokens:
            return StopReason.MAX_TOKENS
        if limits.max_turns is not None and self.turns >= limits.max_turns:
            return StopReason.MAX_TURNS
        if limits.max_seconds is not None and time.monotonic() - self._started >= limits.max_seconds:
            return StopReason.WALL_CLOCK
        return None

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
        if reply is not None and self._box is not None and self._box.changes():
            told = [reply]
            self._tell_changes(told)
            reply = told[0]
        return reply

    def _tell_changes(self, replies: list[Message]) -> None:
        """The model reads of other tools behind the last of the replies: the prompt that shows them is in the past."""
        assert self._box is not None
        before, self._offered = self._offered, [t.schema for t in self._box.tools.values()]
        news = news_of(before, self._offered)
        if news and replies:
            replies[-1] = replace(replies[-1], content=f"{replies[-1].content}\n\n{self._limited(news)}")

    def _limited(self, text: str) -> str:
        return limit_result(text, self.config.limits.max_result_tokens, self.config.chat.keep)

    def _timed(self, render: Any, *args: Any, **kwargs: Any) -> Segment:
        start = time.perf_counter()
        segment: Segment = render(*args, **kwargs)
        self.template_seconds += time.perf_counter() - start
        return segment

    def _write(self, turn: Turn) -> str:
        return self.config.chat.write(turn, prompt_tail=self._tail, tools=self._offered)

    def _observe(self, segment: Segment, new: Sequence[Message], info: dict[str, Any]) -> Any:
        """The observation; what the view tells beside it goes into `info`."""
        record = None if self._failure else self.record
        observation = self.config.view.observe(segment, new, self._offered, record)
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
        info = self._info(_EMPTY, [])
        return self._outcome(self._observe(_EMPTY, [], info), 0.0, info)

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
            "history_rewrites": self.history_rewrites,
            "new_segment": new_segment,
            "call_statuses": [str(s) for s in statuses],
            "new_messages": [m.to_dict() for m in new],
            "sampled_tokens": self.sampled_tokens,
            "context_tokens": self.context_tokens,
            "tags": {str(k): str(v) for k, v in task.tags.items()} if task else {},
            "reward_terms": {k: float(v) for k, v in (terms or {}).items()},
        }
