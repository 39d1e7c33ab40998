"""The nouns of an episode.  Plain, immutable, picklable data; no behaviour beyond conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


class CallStatus(StrEnum):
    """What became of one thing that the model asked for.  Every attempt gets exactly one."""

    OK = "ok"
    # The attempt could not be read as a call (see `toolstep.envs.chat`).
    INVALID_JSON = "invalid_json"
    TRUNCATED = "truncated"
    MISSING_NAME = "missing_name"
    ARGUMENTS_NOT_OBJECT = "arguments_not_object"
    MALFORMED_MARKUP = "malformed_markup"
    POSITIONAL_ARGUMENT = "positional_argument"
    NOT_A_LITERAL = "not_a_literal"
    UNCLOSED_REASONING = "unclosed_reasoning"
    # It was read, but does not fit the tools on offer.
    UNKNOWN_TOOL = "unknown_tool"
    MISSING_ARGUMENT = "missing_argument"
    UNEXPECTED_ARGUMENT = "unexpected_argument"
    WRONG_TYPE = "wrong_type"
    # It was run, or was not allowed to.
    TOOL_ERROR = "tool_error"
    TOOL_TIMEOUT = "tool_timeout"
    OVER_LIMIT = "over_limit"


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"
    TOOL_ENDED = "tool_ended"
    TASK_ENDED = "task_ended"
    MAX_TURNS = "max_turns"
    CUT_TURN = "cut_turn"
    MAX_TOKENS = "max_tokens"
    CONTEXT = "context"
    WALL_CLOCK = "wall_clock"
    ERROR = "error"

    @property
    def terminated(self) -> bool:
        """True where the task itself is over; False where a budget (or a failure of ours) cut it short."""
        return self in (StopReason.ANSWERED, StopReason.TOOL_ENDED, StopReason.TASK_ENDED)


class Source(IntEnum):
    """Who wrote a token.  One byte for each id of a context; the action mask is `source == SAMPLED`."""

    PROMPT = 0
    SAMPLED = 1
    BODY = 2  # content of a tool or user message
    SCAFFOLD = 3  # the template's own text around it


class EpisodeStatus(StrEnum):
    """Whether the episode is a fair sample of the agent (invariant I17)."""

    OK = "ok"
    ENV_ERROR = "env_error"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One attempt to call a tool, in the order in which the model wrote it.

    `arguments` is the text as sampled; `parsed` is the decoded object, or None where the attempt is malformed.  `name`
    is "" where none could be read.  `error` says, for the model to read, what is wrong.
    """

    id: str
    name: str
    arguments: str = "{}"
    parsed: Mapping[str, Any] | None = None
    status: CallStatus = CallStatus.OK
    error: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message.

    `name` and `tool_call_id` belong to tool messages; `tool_calls` and `reasoning` (a thought) to the assistant's.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The OpenAI-style dict that chat templates read; arguments as a dict where they could be decoded."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            out["tool_calls"] = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name, "arguments": dict(c.parsed) if c.parsed is not None else {}},
                }
                for c in self.tool_calls
            ]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            out["name"] = self.name
        if self.reasoning is not None:
            out["reasoning_content"] = self.reasoning
        return out


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn as parsed: text outside calls and thoughts, the thought, and every attempted call."""

    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call.

    `content` is what the model reads, errors included.  `terminate` ends the episode after this turn, with `answer` as
    the agent's answer where it is not None; `reward` is added to the step's; `seconds` is wall-clock time spent (never
    shown in `info`: it is not reproducible).
    """

    content: str
    error: CallStatus | None = None
    terminate: bool = False
    reward: float = 0.0
    seconds: float = 0.0
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class ReferenceCall:
    """A call of a reference solution, with the arguments as JSON has them."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: the opening messages, what a right answer is, and which tools are on offer.

    `tools` names a subset of the task set's tools (None: all).  `tags` group results in an evaluation (for instance
    `{"level": "1"}`).  `data` is whatever the task set needs to run and to score the task.  `calls` are those of a
    reference solution (None: there is none), which the reward term "call_accuracy" compares with.  `reward` names what
    scores this task (`rewards.make_reward`), in sets that came without code of their own (lists, files, functions).
    """

    id: str
    messages: tuple[Message, ...]
    answer: Any = None
    tools: tuple[str, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    data: Any = None
    calls: tuple[ReferenceCall, ...] | None = None
    reward: str | Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """A finished (or running) episode as rewards see it.

    `messages` is the whole conversation; `statuses` has one entry for each attempted call, in order; `sampled_tokens`
    is 0 where the env has no tokenizer.  `submitted` is the answer that was given by a call, where one ended the
    episode.  `state` is what stateful tools leave behind (the files of a scratch folder, say) when the episode is over.
    """

    task: Task
    messages: tuple[Message, ...]
    stop_reason: StopReason | None
    turns: int
    statuses: tuple[CallStatus, ...] = ()
    sampled_tokens: int = 0
    submitted: str | None = None
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answer(self) -> str:
        """What was submitted, else the text of the last assistant turn; "" if there is none or if it made calls."""
        if self.submitted is not None:
            return self.submitted
        last = next((m for m in reversed(self.messages) if m.role == "assistant"), None)
        return last.content if last is not None and not last.tool_calls else ""
