"""Context: what the model of one episode has seen, as messages and as ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from toolstep.envs.chat import ChatTemplateError, Segment
from toolstep.envs.config import EnvConfig
from toolstep.envs.openai_messages import read_message
from toolstep.envs.tools import limit_result
from toolstep.envs.tools.news import news_of
from toolstep.envs.types import CallStatus, Message, Turn
from toolstep.envs.views import Reading

EMPTY = Segment("", np.zeros(0, np.int64), np.zeros(0, np.uint8))
_ANSWERED = 4  # times max_calls: so many attempts of a turn get an answer each
_TAIL = 256  # characters at the end of what was rendered last: a thought may be open there


class HistoryRewritten(ValueError):
    """The chat template rewrites the past, and the env was told to refuse that (history="error")."""


class Context:
    """Grows by turns: `read` a turn, append it and its answers to `messages`, `extend`.

    messages: the conversation so far.  schemas: of the tools that the prompt shows; offered: of those that can be
    called now.  variables: of the template, drawn for this episode.  tokens: ids of the context.  rewrites: places at
    which the template would write the past differently.  seconds: spent in the template.
    """

    def __init__(
        self,
        config: EnvConfig,
        messages: Sequence[Message] = (),
        schemas: Sequence[dict[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ):
        self.config = config
        self.messages = list(messages)
        self.schemas = list(schemas)
        self.offered = self.schemas
        self.variables = dict(variables or {})
        self.tokens = self.rewrites = 0
        self.seconds = 0.0
        self._tail = ""
        self._thought_open = False  # the turn that was read last ended inside a thought
        self._next_call_id = sum(len(m.tool_calls) for m in messages)

    def prompt(self) -> Segment:
        """All of it, rendered anew."""
        segment = self._rendered(self.config.chat.prompt, self.messages, self.schemas, kwargs=self.variables)
        self.tokens = len(segment.ids)
        return segment

    def read(self, reading: Reading) -> Turn:
        """The turn in a reading, with a bounded number of attempts.  Nothing that a model wrote makes it raise."""
        if reading.structured:
            turn = read_message(reading.text, self._next_call_id)[0]
        else:
            turn = self.config.chat.parse(
                reading.text,
                finish="length" if reading.cut else "stop",
                prompt_tail=self._tail,
                first_id=self._next_call_id,
                tools=self.offered,
            )
        turn = self._bounded(turn)
        self._thought_open = any(c.status is CallStatus.UNCLOSED_REASONING for c in turn.calls)
        self._next_call_id += len(turn.calls)
        return turn

    def write(self, turn: Turn) -> str:
        """What a model would have to write to take this turn; the inverse of `read`."""
        return self.config.chat.write(turn, prompt_tail=self._tail, tools=self.offered)

    def extend(self, before: int, turn: Turn, reading: Reading) -> tuple[Segment, bool]:
        """Render what follows the ids of a turn; the first `before` messages are older, the next one is the turn.

        Returns (segment, whether it is a whole prompt, with which the context begins anew).

        Raises:
            HistoryRewritten: see `EnvConfig.history`.
        """
        history, message, new = tuple(self.messages[:before]), self.messages[before], self.messages[before + 1 :]
        self.tokens += reading.tokens
        if self._begins_anew(history, message, new):
            return self.prompt(), True
        segment = self._delta(history, turn, new, reading)
        self.tokens += len(segment.ids)
        return segment, False

    def offer(self, schemas: Sequence[dict[str, Any]], replies: list[Message]) -> None:
        """Other tools can be called from now on; the model reads of them behind the last of the replies.

        The prompt that shows the tools is in the past.
        """
        before, self.offered = self.offered, list(schemas)
        news = news_of(before, self.offered)
        if news and replies:
            replies[-1] = replace(replies[-1], content=f"{replies[-1].content}\n\n{self.limited(news)}")

    def limited(self, text: str) -> str:
        """The text of a tool result, as much of it as the model gets to see."""
        return limit_result(text, self.config.limits.max_result_tokens, self.config.chat.keep)

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

    def _begins_anew(self, history: Sequence[Message], turn: Message, new: Sequence[Message]) -> bool:
        """Whether the context begins anew because the template would write the past differently now."""
        chat = self.config.chat
        if not any(m.role in chat.rewriting_roles for m in new):
            return False
        try:
            if chat.keeps_history(history, turn, new, self.schemas, kwargs=self.variables):
                return False
        except ChatTemplateError:  # it refuses the real messages (two calls in a turn, say): nothing to compare with
            return False
        self.rewrites += 1
        if self.config.history == "error":
            raise HistoryRewritten(
                f"message {len(history)}: the chat template would now write the past differently from what the model "
                'saw; pass history="keep" to go on with an append-only context, or history="rerender" to begin it anew'
            )
        return self.config.history == "rerender"

    def _delta(self, history: Sequence[Message], turn: Turn, new: Sequence[Message], reading: Reading) -> Segment:
        chat = self.config.chat
        options = {"thought_open": self._thought_open and reading.stop is None, "kwargs": self.variables}
        if new:
            return self._rendered(chat.delta, history, turn, new, self.schemas, stop=reading.stop, **options)
        if reading.cut:
            return self._rendered(chat.close, history, turn, self.schemas, **options)
        self._tail = ""
        return EMPTY

    def _rendered(self, render: Callable[..., Segment], *args: Any, **kwargs: Any) -> Segment:
        start = time.perf_counter()
        segment = render(*args, **kwargs)
        self.seconds += time.perf_counter() - start
        self._tail = segment.text[-_TAIL:]
        return segment
