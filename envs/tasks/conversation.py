"""What task sets ask of a conversation, and worked examples of one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolstep.envs.tasks.base import TaskError, TaskSet
from toolstep.envs.types import CallStatus, EpisodeRecord, Message, ToolCall, Turn

if TYPE_CHECKING:
    from toolstep.envs.tools import Executor, Offer, Toolbox

_MAX_TURNS = 64


def call(record: EpisodeRecord, *wanted: tuple[str, Mapping[str, Any]]) -> Turn:
    """A turn that makes the `wanted` calls, (name, arguments) each, with ids that are still free."""
    first = sum(len(m.tool_calls) for m in record.messages)
    calls = tuple(
        ToolCall(f"call{first + i:05d}", name, json.dumps(arguments, ensure_ascii=False), dict(arguments))
        for i, (name, arguments) in enumerate(wanted)
    )
    return Turn("", calls=calls)


def since_task(record: EpisodeRecord) -> tuple[Message, ...]:
    """The messages that follow the task's own, whatever examples stand before them."""
    opening = record.task.messages[-1] if record.task.messages else None
    for i in range(len(record.messages) - 1, -1, -1):
        if record.messages[i] == opening:
            return record.messages[i + 1 :]
    return record.messages


def results(record: EpisodeRecord) -> Iterator[tuple[ToolCall, str]]:
    """Each call of this task that succeeded, with what the tool answered."""
    calls: dict[str, ToolCall] = {}
    for message in since_task(record):
        for c in message.tool_calls:
            calls[c.id] = c
        if message.role == "tool" and message.tool_call_id in calls:
            found = calls[message.tool_call_id]
            if found.status is CallStatus.OK:
                yield found, message.content


def result_of(record: EpisodeRecord, name: str, arguments: Mapping[str, Any]) -> str | None:
    """What the call `name(**arguments)` answered in this task, or None if it was not made with success."""
    for made, content in results(record):
        if made.name == name and made.parsed == arguments:
            return content
    return None


def example_messages(tasks: TaskSet, k: int, seed: int = 0, *, extra: Sequence[Offer] = ()) -> tuple[Message, ...]:
    """K solved episodes: user, assistant with calls, tool, ..., assistant with the answer, as often as the user goes
    on; no system message.

    Each is a different problem of the training split, solved by the set's oracle with the set's real tools (and `extra`
    ones of the env).  The result is a pure function of the arguments, so that every row shares the prefix.

    Raises:
        NoOracle: the set cannot solve its tasks.
        TaskError: an episode did not end in a right answer, or the set has fewer than `k` different problems.
    """
    from toolstep.envs.tools import Executor

    messages: list[Message] = []
    seen: set[tuple[Message, ...]] = set()
    with Executor(1) as executor:
        for at in range(seed, seed + 20 * k):
            if len(seen) == k:
                break
            task = tasks.example(at)
            if task.messages in seen:
                continue
            seen.add(task.messages)
            messages += [m for m in task.messages if m.role != "system"]
            record = EpisodeRecord(task, (*task.messages, *messages), None, 0)
            messages += _solve(tasks, record, executor, extra)
    if len(seen) < k:
        raise TaskError(f"{tasks.name}: {k} different examples were asked for, {len(seen)} were found")
    return tuple(messages)


def _solve(tasks: TaskSet, record: EpisodeRecord, executor: Executor, extra: Sequence[Offer]) -> tuple[Message, ...]:
    """The messages with which the oracle goes on from `record` until it has answered."""
    from toolstep.envs.tools import EpisodeInfo, Toolbox

    box = Toolbox(tasks.tools(record.task), extra, EpisodeInfo(record.task, picks_tools=tasks.picks_tools))
    try:
        return _answered(tasks, record, box, executor)
    finally:
        box.close()


def _answered(tasks: TaskSet, record: EpisodeRecord, box: Toolbox, executor: Executor) -> tuple[Message, ...]:
    from toolstep.envs.tools import resolve

    start = len(record.messages)
    for turn_index in range(1, _MAX_TURNS + 1):
        turn = tasks.oracle(record)
        resolved = [resolve(c, box.tools) for c in turn.calls]
        bound = [b for _, b in resolved if b is not None]
        answers = executor.run(bound, timeout=10.0)
        if len(bound) < len(turn.calls) or any(a.error is not None for a in answers):
            wrong = [c.error for c, b in resolved if b is None] or [a.content for a in answers if a.error]
            raise TaskError(f"{tasks.name}: the oracle of {record.task.id!r} made a call that failed: {wrong[0]}")
        made = tuple(c for c, _ in resolved)
        new = [Message("assistant", turn.content, tool_calls=made)]
        new += [Message("tool", a.content, tool_call_id=c.id, name=c.name) for c, a in zip(made, answers, strict=True)]
        record = replace(record, messages=(*record.messages, *new), turns=turn_index)
        if turn.calls:
            continue
        box.answered()
        record = replace(record, state=box.snapshot())
        reply = tasks.reply(record)
        if reply is None:
            break
        record = replace(record, messages=(*record.messages, _with_changes(reply, box)))
    record = replace(record, state=box.snapshot())
    score = tasks.score(record)
    if score < 1:
        raise TaskError(f"{tasks.name}: the oracle of {record.task.id!r} scored {score}; its answer: {record.answer!r}")
    return record.messages[start:]


def _with_changes(reply: Message, box: Toolbox) -> Message:
    """The user's message, and which tools are new with it."""
    from toolstep.envs.tools.news import news_of

    before = [t.schema for t in box.tools.values()]
    news = news_of(before, [t.schema for t in box.tools.values()]) if box.changes() else ""
    return replace(reply, content=f"{reply.content}\n\n{news}") if news else reply
