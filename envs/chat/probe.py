"""What a template can do, found once at construction by rendering a small conversation."""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolstep.envs.chat.delta import DeltaWriter
from toolstep.envs.chat.encoder import ControlTokens
from toolstep.envs.chat.errors import (
    ChatTemplateError,
    StopTokenMismatch,
    TemplateRejects,
    UnknownToolCallFormat,
)
from toolstep.envs.chat.formats import FORMATS, ToolCallFormat, announced_format, detect_format, get_format
from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.native import Native
from toolstep.envs.chat.provenance import Written
from toolstep.envs.chat.turns import PROBE_TOOLS, SENTINEL
from toolstep.envs.chat.wording import Wording

_USER = {"role": "user", "content": "Zq7userQz"}
_SYSTEM = {"role": "system", "content": "Zq7systemQz"}
_CALL = ("probe", "call00000")
_RESULT = "Zq7resultQz" * 12  # long enough to see whether the template cuts it
NUMBER = 7250413
DEFAULT_FORMAT = "hermes_json"  # where neither a template's calls nor its list of tools show one
_DESCRIPTION = PROBE_TOOLS[0]["function"]["description"]


@dataclass(frozen=True, slots=True)
class Support:
    """wording: how conversations are put to the template.

    stops: the stop token at which a turn ends that makes calls (True) or makes none (False), None if unknown.
    """

    wording: Wording
    stops: Mapping[bool, str | None]


def probe(
    writer: DeltaWriter, tokens: ControlTokens, tool_call_format: str | None, kwargs: Mapping[str, Any]
) -> Support:
    """Find out; raises the error that every episode would meet."""
    system_role = _renders(writer, [_SYSTEM, _USER], kwargs)
    base = [_SYSTEM, _USER] if system_role else [_USER]
    try:
        follow = writer.delta(base, [], _writes([_USER]), [], stop=None, kwargs=kwargs)
    except TemplateRejects:  # it may demand tools
        follow = writer.delta(base, [], _writes([_USER]), PROBE_TOOLS, stop=None, kwargs=kwargs)
    stops = {call: _natural(writer, follow.inserted, False, kwargs) for call in (False, True)}
    schemas = _lists_tools(writer, base, kwargs)
    shown = PROBE_TOOLS if schemas else []
    answer = _Answer(writer, base, shown, kwargs)
    form = get_format(tool_call_format) if tool_call_format is not None else None
    calls = False
    if (called := answer(_RESULT, [_CALL])) and not any("does not write tool calls" in n for n in called.notes):
        form = form or _detected(writer, base, shown, kwargs)
        if form is None and schemas:
            raise _unknown(writer, base, shown, kwargs)
        calls = form is not None  # else the model is told to write calls in another form than the template does
        if calls:
            stops[True] = _natural(writer, called.inserted, True, kwargs)
    # A template that pastes any role in front of any message does not know this one.
    known = calls or schemas or _names_role(writer, base, kwargs)
    results = calls or (known and answer(_RESULT, []) is not None)
    announced = _announced(writer, base, kwargs) if schemas else None
    wording = Wording(
        form or announced or get_format(DEFAULT_FORMAT),
        Native(
            schemas,
            calls,
            results,
            writer.writes_thoughts,
            empty=not results or answer.writes("", calls),
            blank=not results or answer.writes(" ", calls),
            json_arguments=writer.json_arguments,
        ),
        tokens,
        explains=not (calls or form or announced),
        system_role=system_role,
        merge_users=not results and not _renders(writer, [_USER, _USER], kwargs),
    )
    return Support(wording, stops)


class _Answer:
    """What follows a turn of the probe that is answered by a tool message."""

    def __init__(
        self, writer: DeltaWriter, base: list[dict[str, Any]], tools: list[dict[str, Any]], kwargs: Mapping[str, Any]
    ):
        self._writer, self._base, self._tools, self._kwargs = writer, base, tools, kwargs

    def __call__(self, content: str, calls: list[tuple[str, str]]) -> Written | None:
        """The delta; None where the template has none that holds all of `content`."""
        result = {"role": "tool", "content": content, "name": _CALL[0], "tool_call_id": _CALL[1]}
        try:
            found = self._writer.delta(
                self._base, calls, _writes([result]), self._tools, stop=None, kwargs=self._kwargs
            )
        except StopTokenMismatch:
            raise
        except ChatTemplateError:
            return None
        return found if all(b - a == len(content.strip()) for a, b in found.body) else None

    def writes(self, content: str, calls: bool) -> bool:
        """Whether the template writes a message for `content`, which is no text, behind a turn with a call or without.

        A template whose headers are words can leave one out and lose no control token: so it is compared with nothing.
        """
        made = [_CALL] if calls else []
        found = self(content, made)
        if found is None:
            return False
        try:
            nothing = self._writer.delta(self._base, made, lambda mark: [], self._tools, stop=None, kwargs=self._kwargs)
        except ChatTemplateError:
            return True
        return found.text != nothing.text


def _writes(messages: list[dict[str, Any]]) -> Any:
    def write(mark: Marker) -> list[dict[str, Any]]:
        return [{**m, "content": mark.wrap(m["content"])} for m in messages]

    return write


def _renders(writer: DeltaWriter, messages: list[dict[str, Any]], kwargs: Mapping[str, Any]) -> bool:
    for tools in ([], PROBE_TOOLS):
        try:
            text = writer.render(messages, tools, generation=True, kwargs=kwargs)
        except ChatTemplateError:
            continue
        return all(m["content"] in text for m in messages)
    return False


def _lists_tools(writer: DeltaWriter, base: list[dict[str, Any]], kwargs: Mapping[str, Any]) -> bool:
    try:
        return _DESCRIPTION in writer.render(base, PROBE_TOOLS, generation=True, kwargs=kwargs)
    except ChatTemplateError:
        return False


def _names_role(writer: DeltaWriter, base: list[dict[str, Any]], kwargs: Mapping[str, Any]) -> bool:
    """Whether a tool message is written otherwise than one of a role that no template knows."""
    other = "zq7role"

    def shown(role: str) -> str:
        messages = [*base, {"role": "assistant", "content": "ok"}, {"role": role, "content": _RESULT}]
        return writer.render(messages, generation=True, kwargs=kwargs).lower()

    try:
        return shown(other).replace(other, "tool") != shown("tool")
    except ChatTemplateError:
        return True  # whether it takes tool messages is seen when it is asked to


def _announced(writer: DeltaWriter, base: list[dict[str, Any]], kwargs: Mapping[str, Any]) -> ToolCallFormat | None:
    """The format that the template's list of tools asks for."""
    given = writer.render(base, PROBE_TOOLS, generation=True, kwargs=kwargs)
    try:
        return announced_format(given, writer.render(base, generation=True, kwargs=kwargs))
    except ChatTemplateError:
        return announced_format(given, "")


def _natural(writer: DeltaWriter, inserted: str, calls: bool, kwargs: Mapping[str, Any]) -> str | None:
    if inserted in writer.stops:
        return inserted
    last = writer.natural_stop(calls, PROBE_TOOLS if calls else [], kwargs)
    return last if last in writer.stops else None


def _detected(
    writer: DeltaWriter, base: list[dict[str, Any]], tools: list[dict[str, Any]], kwargs: Mapping[str, Any]
) -> ToolCallFormat | None:
    """The format of the calls that the template writes, else the one that its list of tools asks for."""
    prompt = writer.render(base, tools, generation=True, kwargs=kwargs)
    form = detect_format(_rendered_calls(writer, base, tools, prompt, kwargs), _CALL[0], prompt)
    return form or (_announced(writer, base, kwargs) if tools else None)


def _unknown(
    writer: DeltaWriter, base: list[dict[str, Any]], tools: list[dict[str, Any]], kwargs: Mapping[str, Any]
) -> UnknownToolCallFormat:
    prompt = writer.render(base, tools, generation=True, kwargs=kwargs)
    shown = next((text for text, _ in _rendered_calls(writer, base, tools, prompt, kwargs)), "")[:200]
    return UnknownToolCallFormat(
        f"the chat template writes a call as {shown!r}, which no known format reads; pass tool_call_format= with "
        f"one of {sorted(FORMATS)}, or register_format() one of your own (toolstep.envs.chat.formats)"
    )


def _rendered_calls(
    writer: DeltaWriter,
    base: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    prompt: str,
    kwargs: Mapping[str, Any],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A turn with the probe's call as the template writes it, cut out of the conversation in several ways.

    With a text as the argument, and with a number: some templates write texts without quotes.
    """
    before = writer.render(base, tools, kwargs=kwargs)
    for value in (SENTINEL, NUMBER):
        arguments = {"value": value}
        for content in (None, ""):
            for given in (arguments, json.dumps(arguments)):
                call = {"id": _CALL[1], "type": "function", "function": {"name": _CALL[0], "arguments": given}}
                turn = {"role": "assistant", "content": content, "tool_calls": [call]}
                try:
                    text = writer.render([*base, turn], tools, kwargs=kwargs)
                except ChatTemplateError:
                    continue
                for part in _cut_out(text, text.rfind(str(value)), prompt, before, writer.stops):
                    yield part, arguments
                    if "&#34;" in part:  # some templates write JSON as if for a page of HTML; no model does
                        yield html.unescape(part), arguments


def _cut_out(text: str, at: int, prompt: str, before: str, stops: Collection[str]) -> Iterator[str]:
    """The last turn of a conversation, in which something stands at `at`, up to a stop token."""
    if at < 0:
        return
    ends = [end for s in stops if (end := text.find(s, at)) >= 0]
    text = text[: min(ends, default=len(text))]
    shared = next((i for i, (a, b) in enumerate(zip(text, prompt)) if a != b), min(len(text), len(prompt)))
    for start in sorted({len(prompt) if text.startswith(prompt) else shared, shared}):
        yield text[start:]
    if text.startswith(before):
        yield text[len(before) :]
