"""How a conversation is put to a template: as it is where the template writes tools itself, in words where it doesn't.

Three things may be missing, each for itself: the tools' schemas (DeepSeek), the calls (LFM2, Granite), the results
(Llama 3, SmolLM2, Gemma 3).  This is the one place that says what stands in for them: schemas are text of the system
message, calls are the text that a model samples, and results are user messages that begin with `Result: `.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolstep.envs.chat.encoder import ControlTokens
from toolstep.envs.chat.formats import ToolCallFormat
from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.native import Native, loose_text, marked_schemas, message_dict
from toolstep.envs.chat.provenance import Dicts
from toolstep.envs.chat.watched import concat
from toolstep.envs.chat.watcher import Watcher
from toolstep.envs.types import Message, ToolCall

Schemas = Sequence[Mapping[str, Any]]
# Not the usual `<tool_response>` tags: small models mix those up with `<tool_call>`.  SmolLM2-135M, greedy, three
# solved examples of arithmetic: 1 of 4 calls was right where results had the tags, 6 of 6 where they had not.
_RESULT = "Result: "
_BETWEEN = "\n\n"
NO_OUTPUT = "(no output)"


@dataclass(frozen=True, slots=True)
class Wording:
    """Puts conversations to one template.

    form: how calls are written.  native: what the template writes itself.  tokens: the added tokens of the vocabulary.
    explains: whether the system message must say how calls are written, though the template lists the tools.
    system_role: whether the template takes a system message; if not, what we have to say opens the first user message.
    merge_users: whether the template demands that roles alternate, so that user messages in a row must become one.
    """

    form: ToolCallFormat
    native: Native
    tokens: ControlTokens
    explains: bool = False
    system_role: bool = True
    merge_users: bool = False

    # ------------------------------------------------------------------ the conversation
    def messages(
        self,
        messages: Sequence[Message],
        tools: Schemas,
        mark: Marker | Watcher,
        *,
        opening: bool = True,
        deep: bool = False,
    ) -> Dicts:
        """The messages as the template reads them.

        opening: they are the whole, not a later part.  deep: what the assistant said is marked too, where the template
        writes it itself.
        """
        out: Dicts = []
        answering = False  # whether the last message written holds tool results
        for i, m in enumerate(messages):
            if m.role == "tool" and not self.native.results:
                text = _RESULT + mark.wrap(m.content, at=i)
                if answering:
                    out[-1]["content"] += "\n" + text
                else:
                    self._add(out, {"role": "user", "content": text})
                answering = True
                continue
            answering = False
            if m.role != "assistant":
                self._add(out, message_dict(m, mark, at=i))
            elif self.native.calls:
                json_arguments = self.native.json_arguments
                out.append(message_dict(self._with_thought(m), mark, deep=deep, json_arguments=json_arguments))
            else:
                out.append(self._said(self._with_thought(m), mark))
        return self._introduced(out, tools, mark) if opening else out

    def tools(self, tools: Schemas, mark: Marker | Watcher | None) -> Dicts:
        """The schemas that the template is given, with their texts marked if there is a `mark`."""
        if not self.native.schemas:
            return []
        return [dict(t) for t in tools] if mark is None else marked_schemas(tools, mark)

    def loose_text(self, messages: Sequence[Message], tools: Schemas, *, deep: bool) -> list[str]:
        """Foreign text that `messages` and `tools` leave unmarked."""
        said = [self._with_thought(m) for m in messages] if self.native.calls else []
        return loose_text(said, tools if self.native.schemas else (), deep=deep)

    def written_results(self, new: Sequence[Message]) -> tuple[Sequence[Message], tuple[str, ...]]:
        """The messages with `NO_OUTPUT` for each result that the template would leave out, and a note if any is."""
        if not any(map(self._left_out, new)):
            return new, ()
        note = f"the template writes no message for an empty result; {NO_OUTPUT!r} stands in its place"
        return [replace(m, content=NO_OUTPUT) if self._left_out(m) else m for m in new], (note,)

    # ------------------------------------------------------------------ its parts
    def _left_out(self, m: Message) -> bool:
        return m.role == "tool" and self.native.leaves_out(m.content)

    def _with_thought(self, m: Message) -> Message:
        """The message for a template that knows thoughts only as part of the content."""
        if not m.reasoning or self.native.thoughts:
            return m
        return replace(m, content=f"<think>\n{m.reasoning}\n</think>\n\n{m.content}", reasoning=None)

    def _add(self, out: Dicts, message: dict[str, Any]) -> None:
        if self.merge_users and message["role"] == "user" and out and out[-1]["role"] == "user":
            out[-1]["content"] += _BETWEEN + message["content"]
        else:
            out.append(message)

    def _said(self, m: Message, mark: Marker | Watcher) -> dict[str, Any]:
        """An assistant's message whose calls are text; all in it is foreign but the frames of the calls."""
        parts = [mark.wrap(m.content, required=False)] if m.content else []
        out = {"role": m.role, "content": _joined("\n", [*parts, *self._calls(m.tool_calls, mark)])}
        if m.reasoning is not None:
            out["reasoning_content"] = mark.wrap(m.reasoning, required=False)
        return out

    def _calls(self, calls: Sequence[ToolCall], mark: Marker | Watcher) -> list[Any]:
        if not calls:
            return []
        whole, each = self.form.write_calls(calls), [self.form.write_calls([c]) for c in calls]
        if len(calls) > 1 and whole == "\n".join(each):
            return [part for c in calls for part in self._calls([c], mark)]
        bare = [replace(c, name=c.name and "f", arguments="", parsed=None if c.parsed is None else {}) for c in calls]
        frame, find = self.tokens.find_all(self.form.write_calls(bare)), self.tokens.find_all
        start, end = whole.find("{"), whole.rfind("}") + 1
        if start < end and find(whole[:start]) + find(whole[end:]) == frame:
            return [_joined("", [whole[:start], mark.wrap(whole[start:end], required=False), whole[end:]])]
        if frame and find(whole) == frame and whole.startswith(frame[0]) and whole.endswith(frame[-1]):
            return [whole]  # its tokens are the frame's, and no half of another stands at its ends
        return [mark.wrap(whole, required=False)]

    def _introduced(self, out: Dicts, tools: Schemas, mark: Marker | Watcher) -> Dicts:
        """The conversation with what its system message must say of the tools."""
        text = self._tools_text(tools, mark) if tools else ""
        untaken = not self.system_role and not self.native.calls
        if not text and not untaken:
            return out
        system = out.pop(0)["content"] if out and out[0]["role"] == "system" else None
        if text:
            system = system + _BETWEEN + text if system else text
        if system is None:
            return out
        if self.system_role:
            return [{"role": "system", "content": system}, *out]
        if out and out[0]["role"] == "user":
            out[0]["content"] = system + _BETWEEN + out[0]["content"]
            return out
        return [{"role": "user", "content": system}, *out]

    def _tools_text(self, tools: Schemas, mark: Marker | Watcher) -> Any:
        """What the model reads about its tools; "" where the template says it all."""
        prompt = self.form.prompt
        how = prompt.how(self.form.write_calls)
        if self.native.schemas:
            return how if self.explains else ""
        return concat([*prompt.parts(tools, lambda text: mark.wrap(text, required=False)), _BETWEEN, how])


def _joined(between: str, parts: Sequence[Any]) -> Any:
    return concat(p for i, part in enumerate(parts) for p in ((between, part) if i else (part,)))
