"""Tools for chat templates that know none (SmolLM2, Llama 3, Gemma 3, Phi 3.5, ...).

This is the one place that says how: the tools stand in the system message, calls are text in the Hermes form,
and results are user messages that begin with `Result: `.  A conversation rewritten like this has only system,
user and assistant messages, and goes through the same rendering and the same delta as any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolstep.envs.chat.formats import ToolCallFormat
from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.watched import concat
from toolstep.envs.chat.watcher import Watcher
from toolstep.envs.types import Message

_HEAD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_TAIL = (
    "\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
# Not the usual `<tool_response>` tags: small models mix those up with `<tool_call>`.  SmolLM2-135M, greedy, three
# solved examples of arithmetic: 1 of 4 calls was right where results had the tags, 6 of 6 where they had not.
_RESULT = "Result: "
_BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True)
class Fallback:
    """Rewrites conversations.

    form: how calls are written.  system_role: whether the template takes a system message; if not, its text
    opens the first user message.  merge_users: whether the template demands that roles alternate, so that
    user messages in a row must become one.
    """

    form: ToolCallFormat
    system_role: bool = True
    merge_users: bool = False

    def messages(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        mark: Marker | Watcher,
        *,
        opening: bool = True,
    ) -> list[dict[str, Any]]:
        """The conversation without tool messages, calls or tools.  `opening`: it is the whole, not a later
        part.
        """
        out: list[dict[str, Any]] = []
        answering = False  # whether the last message written holds tool results
        for i, m in enumerate(messages):
            if m.role == "tool":
                text = _RESULT + mark.wrap(m.content, at=i)
                if answering:
                    out[-1]["content"] += "\n" + text
                else:
                    self._add(out, "user", text)
                answering = True
                continue
            answering = False
            if m.role == "assistant":
                self._add(out, "assistant", self._assistant(m, mark))
            else:
                self._add(out, m.role, mark.wrap(m.content, at=i))
        return self._with_tools(out, tools, mark) if opening else out

    def _add(self, out: list[dict[str, Any]], role: str, content: str) -> None:
        if self.merge_users and role == "user" and out and out[-1]["role"] == "user":
            out[-1]["content"] += _BETWEEN + content
        else:
            out.append({"role": role, "content": content})

    def _assistant(self, m: Message, mark: Marker | Watcher) -> Any:
        """Content and calls; the frame of a call is ours, all inside it is foreign."""
        parts = [mark.wrap(m.content, required=False)] if m.content else []
        for call in m.tool_calls:
            text = self.form.write_calls([call])
            start, end = text.find("{"), text.rfind("}") + 1
            start, end = (0, len(text)) if start < 0 or end <= start else (start, end)
            parts.append(text[:start] + mark.wrap(text[start:end], required=False) + text[end:])
        return _joined("\n", parts)

    def _with_tools(
        self, out: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]], mark: Marker | Watcher
    ) -> list[dict[str, Any]]:
        system = None
        if out and out[0]["role"] == "system" and (tools or not self.system_role):
            system = out.pop(0)["content"]
        if tools:
            text = tools_text(tools, mark)
            system = system + _BETWEEN + text if system else text
        if system is None:
            return out
        if self.system_role:
            return [{"role": "system", "content": system}, *out]
        if out and out[0]["role"] == "user":
            out[0]["content"] = system + _BETWEEN + out[0]["content"]
            return out
        return [{"role": "user", "content": system}, *out]


def tools_text(tools: Sequence[Mapping[str, Any]], mark: Marker | Watcher) -> Any:
    """What the model reads about its tools."""
    lines = (mark.wrap(json.dumps(t.get("function", t), ensure_ascii=False), required=False) for t in tools)
    return _HEAD + _joined("\n", list(lines)) + _TAIL


def _joined(between: str, parts: Sequence[Any]) -> Any:
    return concat(p for i, part in enumerate(parts) for p in ((between, part) if i else (part,)))
