"""What a template can do, found once at construction by rendering a small conversation."""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolstep.envs.chat.delta import DeltaWriter
from toolstep.envs.chat.errors import (
    ChatTemplateError,
    StopTokenMismatch,
    TemplateRejects,
    UnknownToolCallFormat,
)
from toolstep.envs.chat.fallback import Fallback
from toolstep.envs.chat.formats import FORMATS, ToolCallFormat, detect_format, get_format
from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.turns import PROBE_TOOLS, SENTINEL

_USER = {"role": "user", "content": "Zq7userQz"}
_SYSTEM = {"role": "system", "content": "Zq7systemQz"}
_CALL = ("probe", "call00000")
NUMBER = 7250413
_DESCRIPTION = PROBE_TOOLS[0]["function"]["description"]


@dataclass(frozen=True, slots=True)
class Support:
    """form: how the model writes calls.  fallback: None where the template itself knows tools.

    stops: the stop token at which a turn ends that makes calls (True) or makes none (False), None if unknown.
    """

    form: ToolCallFormat
    fallback: Fallback | None
    stops: Mapping[bool, str | None]


def probe(writer: DeltaWriter, tool_call_format: str | None, kwargs: Mapping[str, Any]) -> Support:
    """Find out; raises the error that every episode would meet."""
    system_role = _renders(writer, [_SYSTEM, _USER], kwargs)
    base = [_SYSTEM, _USER] if system_role else [_USER]
    try:
        follow = writer.delta(base, [], _writes([_USER]), [], stop=None, kwargs=kwargs)
    except TemplateRejects:  # it may demand tools
        follow = writer.delta(base, [], _writes([_USER]), PROBE_TOOLS, stop=None, kwargs=kwargs)
    stops = {False: _natural(writer, follow.inserted, False, kwargs)}
    if _knows_tools(writer, base, kwargs):
        result = {"role": "tool", "content": "Zq7resultQz", "name": _CALL[0], "tool_call_id": _CALL[1]}
        try:
            called = writer.delta(base, [_CALL], _writes([result]), PROBE_TOOLS, stop=None, kwargs=kwargs)
        except StopTokenMismatch:
            raise
        except ChatTemplateError:
            called = None
        if called is not None and not any("does not write tool calls" in n for n in called.notes):
            stops[True] = _natural(writer, called.inserted, True, kwargs)
            return Support(_format(writer, base, tool_call_format, kwargs), None, stops)
    form = get_format("hermes_json")
    if tool_call_format not in (None, form.name):
        raise UnknownToolCallFormat(
            "the chat template does not write tools, calls and results, so that calls are text of the form "
            f"{form.name!r}; tool_call_format={tool_call_format!r} cannot be had"
        )
    merge = not _renders(writer, [_USER, _USER], kwargs)
    return Support(form, Fallback(form, system_role, merge), {False: stops[False], True: stops[False]})


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


def _knows_tools(writer: DeltaWriter, base: list[dict[str, Any]], kwargs: Mapping[str, Any]) -> bool:
    try:
        return _DESCRIPTION in writer.render(base, PROBE_TOOLS, generation=True, kwargs=kwargs)
    except ChatTemplateError:
        return False


def _natural(writer: DeltaWriter, inserted: str, calls: bool, kwargs: Mapping[str, Any]) -> str | None:
    if inserted in writer.stops:
        return inserted
    last = writer.natural_stop(calls, PROBE_TOOLS if calls else [], kwargs)
    return last if last in writer.stops else None


def _format(
    writer: DeltaWriter, base: list[dict[str, Any]], name: str | None, kwargs: Mapping[str, Any]
) -> ToolCallFormat:
    if name is not None:
        return get_format(name)
    prompt = writer.render(base, PROBE_TOOLS, generation=True, kwargs=kwargs)
    turns = list(_rendered_calls(writer, base, prompt, kwargs))
    form = detect_format(turns, _CALL[0], prompt)
    if form is None:
        shown = turns[0][0][:200] if turns else ""
        raise UnknownToolCallFormat(
            f"the chat template writes a call as {shown!r}, which no known format reads; pass tool_call_format= with "
            f"one of {sorted(FORMATS)}, or register_format() one of your own (toolstep.envs.chat.formats)"
        )
    return form


def _rendered_calls(
    writer: DeltaWriter, base: list[dict[str, Any]], prompt: str, kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A turn with the probe's call as the template writes it, cut out of the conversation in several ways.

    With a text as the argument, and with a number: some templates write texts without quotes.
    """
    before = writer.render(base, PROBE_TOOLS, kwargs=kwargs)
    for value in (SENTINEL, NUMBER):
        arguments = {"value": value}
        for content in (None, ""):
            for given in (arguments, json.dumps(arguments)):
                call = {"id": _CALL[1], "type": "function", "function": {"name": _CALL[0], "arguments": given}}
                turn = {"role": "assistant", "content": content, "tool_calls": [call]}
                try:
                    text = writer.render([*base, turn], PROBE_TOOLS, kwargs=kwargs)
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
