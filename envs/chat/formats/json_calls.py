"""Calls and their arguments as JSON, wherever a format writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from toolstep.envs.chat.formats.base import Attempt
from toolstep.envs.chat.formats.scan import (
    BadJSON,
    Value,
    call_end,
    item_starts,
    read_members,
    read_value,
    read_whole,
    skip_space,
    unreadable,
)
from toolstep.envs.types import CallStatus, ToolCall

KEYS = ("arguments", "parameters")
_NOT_OBJECT = "the arguments must be a JSON object, not "
_KINDS = {list: _NOT_OBJECT + "a list", type(None): _NOT_OBJECT + "null", bool: _NOT_OBJECT + "a boolean"}


def call_from_members(
    members: dict[str, Value], source: str, keys: Sequence[str] = KEYS, name_key: str = "name"
) -> Attempt:
    """A call from the members of its JSON object; `keys` are the names under which arguments may stand."""
    name = members[name_key].value if name_key in members else None
    if not isinstance(name, str) or not name:
        what = "has no name" if name_key not in members else "has a name that is not a text"
        error = f'the call {what}: give "{name_key}" a string'
        return Attempt(arguments=source, status=CallStatus.MISSING_NAME, error=error)
    given = next((members[k] for k in keys if k in members), None)
    return Attempt(name, "{}", {}) if given is None else call_with(name, given)


def call_with(name: str, given: Value) -> Attempt:
    """A call of `name` with these arguments: an object, or its JSON text once more as a string."""
    value = given.value
    if isinstance(value, str):  # some models dump the arguments twice
        try:
            value = read_whole(value).value
        except BadJSON as e:
            error = f"the arguments are no object: {e}"
            return Attempt(name, given.source, status=CallStatus.ARGUMENTS_NOT_OBJECT, error=error)
    if not isinstance(value, dict):
        error = _KINDS.get(type(value), _NOT_OBJECT + "a number or text")
        return Attempt(name, given.source, None, CallStatus.ARGUMENTS_NOT_OBJECT, error)
    return Attempt(name, given.source, value)


def calls_from_json(
    text: str, pos: int, keys: Sequence[str] = KEYS, name_key: str = "name"
) -> tuple[list[Attempt], int]:
    """The call, or the list of calls, that is the JSON value at `pos`, and its end.  Raises BadJSON."""
    start = skip_space(text, pos)
    if text.startswith("{", start):
        members, end = read_members(text, start)
        return [call_from_members(members, text[start:end], keys, name_key)], end
    if not text.startswith("[", start):
        raise BadJSON("a call is a JSON object with a name and arguments")
    whole = read_value(text, start)
    attempts = []
    for at in item_starts(text, start):
        attempt = Attempt(status=CallStatus.MISSING_NAME, error="an element of the list of calls is no object")
        if text.startswith("{", at):
            attempt = call_from_members(read_members(text, at)[0], whole.source, keys, name_key)
        if attempt.status is not CallStatus.OK:  # one list holds all calls: a bad element spoils it
            return [Attempt("", whole.source, None, attempt.status, attempt.error)], whole.end
        attempts.append(attempt)
    return attempts, whole.end


def call_with_arguments_at(
    text: str, pos: int, name: str, close: str, opener: str, fence: str = ""
) -> tuple[Attempt, int]:
    """A call of `name` whose arguments are the JSON at `pos`, and where what follows it begins.

    close: what ends a call, "" if nothing does.  It may be missing where the next call, which begins with `opener`, or
    the end of the text follows.  fence: what may stand in front of `close`.
    """
    try:
        given = read_value(text, pos)
    except BadJSON as e:
        error = str(e)
    else:
        after = skip_space(text, given.end)
        if fence and text.startswith(fence.strip(), after):
            after = skip_space(text, after + len(fence.strip()))
        if text.startswith(close, after):
            return call_with(name, given), after + len(close) if close else given.end
        if after == len(text) or text.startswith(opener, after):
            return call_with(name, given), after
        error = f"there is text between the JSON and {close}"
    limit = text.find(opener, pos)
    limit = len(text) if limit < 0 else limit
    end, closed = call_end(text, pos, close, limit) if close else (limit, False)
    body = text[pos:end]
    status = unreadable(body, at_end=not closed and end == len(text))
    if status is CallStatus.TRUNCATED:
        error = f"the call ends in the middle of its arguments: {error}"
    else:
        error = f"the arguments are not strict JSON: {error}"
    return Attempt(name, body, None, status, error), end + len(close) if closed else end


def arguments_text(call: ToolCall) -> str:
    """JSON text of a call's arguments: as sampled, where that is what `parsed` says."""
    if call.parsed is None:
        return call.arguments
    parsed = dict(call.parsed)
    try:
        value = read_whole(call.arguments).value
        if isinstance(value, str):
            value = read_whole(value).value
        if value == parsed:
            return call.arguments
    except BadJSON:
        pass
    return json.dumps(parsed, ensure_ascii=False)


def call_object(call: ToolCall, key: str = "arguments", name_key: str = "name") -> str:
    """`{"name": ..., "arguments": {...}}`; an attempt of which no name could be read, as it was sampled."""
    if call.parsed is None and not call.name:
        return call.arguments
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{{"{name_key}": {name}, "{key}": {arguments_text(call)}}}'
