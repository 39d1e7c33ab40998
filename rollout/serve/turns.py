"""An assistant turn as OpenAI's deltas: thoughts, content and tool calls, as soon as each is certain."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolstep.agents.text import dangling
from toolstep.envs.chat.encoder import clean
from toolstep.envs.chat.formats import ToolCallFormat
from toolstep.envs.chat.formats.base import Finish, MarkedFormat, Scan
from toolstep.envs.chat.formats.listed import JSONList
from toolstep.envs.chat.formats.llama3 import TAG, Llama3JSON
from toolstep.envs.chat.formats.pythonic import Pythonic
from toolstep.envs.chat.turns import safe_name
from toolstep.envs.types import CallStatus, ToolCall

Delta = dict[str, Any]
_BARE = (Llama3JSON, JSONList, Pythonic)  # a turn that begins with a bracket may be calls, any other is content


class TurnReader:
    """Reads a turn while it is sampled.  The deltas add up to the same message however the text is cut.

    prompt_tail: the end of the prompt, which may have opened a thought.  tools: the schemas on offer; None: none are,
    and what looks like a call is content.

    Calls are told at the end of the turn, when they are known to be what they seem; so is content behind the first mark
    of a call.  Formats in which everything has a frame (Harmony, Functionary v3.2) tell their content at the end too.
    """

    def __init__(self, form: ToolCallFormat, prompt_tail: str, tools: Sequence[Mapping[str, Any]] | None):
        self._form, self._tail, self._tools = form, prompt_tail, tools
        self._text = ""
        self._sent: dict[Literal["reasoning_content", "content"], str] = {"reasoning_content": "", "content": ""}
        self._calls_from = getattr(form, "markers", (TAG,) if isinstance(form, Llama3JSON) else ())
        self._marks = (*self._calls_from, *getattr(form, "frames", ()), form.think_open, form.think_close)
        self.called = False

    def push(self, text: str, finish: Finish | None = None) -> list[Delta]:
        """What is certain with this text; finish: nothing follows, and why."""
        self._text += text
        if finish is not None:
            return self._end(finish)
        safe = self._text[: len(self._text) - dangling(self._text, self._marks)]
        reasoning, content, _ = self._read(safe, "length")
        deltas = self._grown("reasoning_content", reasoning)
        if self._settled(safe):
            deltas += self._grown("content", content)
        return deltas

    def _settled(self, text: str) -> bool:
        """Whether what is content now will be content at the end."""
        if isinstance(self._form, MarkedFormat):
            return not any(mark in text for mark in self._calls_from)
        if not isinstance(self._form, _BARE):
            return False
        return self._tools is None or not (self._body(text).startswith(("{", "[")) or TAG in text)

    def _body(self, text: str) -> str:
        """The text behind a thought that it begins with."""
        form, found, pos = self._form, Scan(), 0
        if form.opens_thought(self._tail):
            at = len(text) - len(text.lstrip())
            pos = form.thought(text, at + len(form.think_open) if text.startswith(form.think_open, at) else 0, found)
        else:
            pos = form.leading_thought(text, 0, found)
        return text[pos:].strip()

    def _read(self, text: str, finish: Finish) -> tuple[str, str, list[ToolCall]]:
        """Thought, content and attempted calls."""
        turn = self._form.parse(text, finish=finish, prompt_tail=self._tail, tools=self._tools or ())
        calls = [c for c in turn.calls if c.status is not CallStatus.UNCLOSED_REASONING]
        content = turn.content
        if self._tools is None:
            if calls or isinstance(self._form, _BARE):
                content = self._body(text)
            calls = []
        # A call without a name can't be told as one; it is not lost.
        nameless = [c.arguments for c in calls if not c.name]
        return turn.reasoning or "", "\n".join(filter(None, [content, *nameless])), [c for c in calls if c.name]

    def _end(self, finish: Finish) -> list[Delta]:
        reasoning, content, calls = self._read(self._text, finish)
        deltas = self._grown("reasoning_content", reasoning) + self._grown("content", content)
        self.called = bool(calls)
        if calls:
            deltas.append({"tool_calls": [{"index": i, **tool_call(call)} for i, call in enumerate(calls)]})
        return deltas

    def _grown(self, key: Literal["reasoning_content", "content"], now: str) -> list[Delta]:
        sent = self._sent[key]
        if len(now) <= len(sent) or not now.startswith(sent):
            return []
        self._sent[key] = now
        return [{key: now[len(sent) :]}]


def tool_call(call: ToolCall) -> dict[str, Any]:
    """A call in OpenAI's form; the arguments of a malformed one as they were sampled."""
    arguments = call.arguments if call.parsed is None else clean(json.dumps(dict(call.parsed), ensure_ascii=False))
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": safe_name(call.name), "arguments": arguments},
    }


def message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """The whole message that deltas add up to."""
    out: dict[str, Any] = {"role": "assistant", "content": None}
    for delta in deltas:
        for key in ("reasoning_content", "content"):
            if key in delta:
                out[key] = (out.get(key) or "") + delta[key]
        for call in delta.get("tool_calls", ()):
            out.setdefault("tool_calls", []).append({k: v for k, v in call.items() if k != "index"})
    if out["content"] is None and "tool_calls" not in out:
        out["content"] = ""
    return out
