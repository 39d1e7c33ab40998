"""Whether the same calls give the same results: again, in a new episode; and at the same time, in several."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from toolstep.envs.checker.bench import global_generators
from toolstep.envs.checker.observe import Seen, seen
from toolstep.envs.checker.report import Report
from toolstep.envs.checker.shop import READY_LIMIT, Box, Call, Shop
from toolstep.envs.tools.executor import Executor
from toolstep.envs.tools.process import WorkerError, pickle_call
from toolstep.envs.tools.validate import BoundCall
from toolstep.envs.types import ToolCall

_TOGETHER = 8  # calls of each row in the check for interference
_TICK = 1.1  # seconds, in which a clock that shows seconds has moved on


def check_again(shop: Shop, first: Sequence[Seen], report: Report) -> set[str]:
    """The same calls in a new episode.  Returns the tools whose results differ."""
    calls: list[Call] = [(call.name, call.arguments) for call in first]
    with shop.box() as box:
        again = box.run(calls)
    different: set[str] = set()
    for a, b in zip(first, again, strict=True):
        if a.name in different or a.key == b.key or not (a.returned and b.returned):
            continue
        different.add(a.name)
        code, why, fix = _cause(shop, (a.name, a.arguments))
        what = f"The same call in a new episode gave another result: {a.text[:80]!r}, then {b.text[:80]!r}. {why}"
        report.add(code, "error", a.name, what, fix, a.shown)
    return different


def _cause(shop: Shop, call: Call) -> tuple[str, str, str]:
    """(code, what it comes from, how to mend it) of a result that changes."""
    keys = []
    for seed in (0, 0, 1):
        with global_generators(seed), shop.box() as box:
            keys.append(box.run([call])[0].key)
    own = "a class in tools= is told of it: def __init__(self, episode): self.rng = random.Random(episode.seed)"
    if keys[0] == keys[1] != keys[2]:
        return (
            "global-random",
            "It draws from the generator that the whole process shares (random.random(), np.random.rand()).",
            f"Draw from a generator of the episode's own; {own}.",
        )
    if _same_in_new_processes(shop, call) or keys[0] == keys[1] == keys[2]:
        return (
            "remembers",
            "It remembers earlier calls in a place that all episodes share: a global variable, a closure, a class "
            "attribute, a file.",
            "Keep it in an object that each episode gets anew: a class with @tool methods in tools= (tools=[Basket]).",
        )
    return (
        "nondeterministic",
        "It reads a clock, draws random numbers, depends on the world outside, or remembers earlier episodes.",
        f"Let the episode decide: {own}. The built-in tool 'clock' stands still. What one episode remembers belongs "
        "into an object of its own.",
    )


def _same_in_new_processes(shop: Shop, call: Call) -> bool:
    """Whether the call gives the same result as the first one of two new processes."""
    name, arguments = call
    keys = []
    for attempt in range(2):
        with shop.box() as box, Executor(1, num_processes=1) as executor:
            box.ready(name)
            made = (
                replace(box.observed[name], run_in="process")
                if box.tools[name].run_in != "async"
                else box.observed[name]
            )
            bound = BoundCall(ToolCall("call00000", name, parsed=arguments), made, box.bind(name, arguments))
            try:
                pickle_call(made, bound.arguments)
            except WorkerError:
                return False
            shop.bench.tell(f"{name} in a new process", shop.timeout + READY_LIMIT)
            found = seen(name, arguments, executor.run([bound], timeout=shop.timeout)[0])
        if not found.returned or made.run_in != "process":
            return False
        keys.append(found.key)
        if attempt == 0:
            time.sleep(_TICK)
    return keys[0] == keys[1]


def check_rows(shop: Shop, calls: Sequence[Call], rows: int, report: Report) -> None:
    """Several episodes at once, as the rows of a vector env: each must get what it gets alone."""
    some = _spread(calls, _TOGETHER)
    turns = [some[i % len(some) :] + some[: i % len(some)] for i in range(rows)]
    alone: list[list[Seen]] = []
    for own in turns:
        with shop.box() as box:
            alone.append(box.run(own))
    boxes: list[Box] = []
    blamed: set[str] = set()
    try:
        for own in turns:
            boxes.append(shop.box())
            for name, _ in own:
                boxes[-1].ready(name)
        for t in range(len(some)):
            found = shop.run([(box, own[t]) for box, own in zip(boxes, turns, strict=True)])
            for row, now in enumerate(found):
                expected = alone[row][t]
                if now.key != expected.key and now.name not in blamed:
                    blamed.add(now.name)
                    _blame(shop, turns[row][: t + 1], row, expected, now, report)
    finally:
        for box in boxes:
            box.close()


def _blame(shop: Shop, calls: Sequence[Call], row: int, expected: Seen, now: Seen, report: Report) -> None:
    with shop.box() as box:
        again = box.run(calls)[-1]
    if not now.returned:
        fix = "Look for locks that two calls take in another order, or for one thing that only one call can have."
        what = f"It does not return when other rows call it at the same time: {now.text}"
        report.add("hangs", "error", f"{now.name}, beside other rows", what, fix, now.shown)
        return
    shown = f"{expected.text[:80]!r}, beside other rows {now.text[:80]!r}"
    if again.key != expected.key:
        report.add(
            "nondeterministic",
            "error",
            now.name,
            f"The same calls do not always give the same result: {expected.text[:80]!r}, then {again.text[:80]!r}.",
            "Let the seed of the episode decide (episode.seed, which a factory in tools= is given).",
            now.shown,
        )
        return
    report.add(
        "rows-interfere",
        "error",
        now.name,
        f"Row {row} gets something else when other rows play at the same time: alone {shown}.",
        "What a call works with must belong to its own episode: local variables, or an object made for each episode "
        "(a class in tools=); guard with a lock what has to be shared.",
        now.shown,
    )


def _spread(calls: Sequence[Call], most: int) -> list[Call]:
    """At most `most` calls, of each tool about as many, in order."""
    by_tool: dict[str, list[int]] = {}
    for i, (name, _) in enumerate(calls):
        by_tool.setdefault(name, []).append(i)
    share = max(1, most // max(1, len(by_tool)))
    chosen = sorted(i for places in by_tool.values() for i in places[:share])
    return [calls[i] for i in chosen[: max(most, len(by_tool))]]


def usable(calls: Sequence[Seen], max_chars: int) -> list[Seen]:
    """The calls worth making again: of tools that always come back, whose process lives on, and that are not large."""
    gone = {c.name for c in calls if not c.returned or "SystemExit" in c.raised}
    return [c for c in calls if c.name not in gone and c.size <= max_chars]
