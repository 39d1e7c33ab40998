"""The official checker of the leaderboard, and conversations to hold both verdicts against each other.

It is called as its own runner does, with three provisions: a stand-in for the module of all vendors' SDKs, a name for
each conversation alone (its APIs are global variables by that name, which are removed behind it), and calls that are
known to be harmless, because it gives them to `eval`.
"""

from __future__ import annotations

import random
import sys
import time
import types
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from toolstep.envs.tasks.bfcl.apis import named, parse_call
from toolstep.envs.tasks.bfcl.data import MULTI_TURN, Entry, api_docs
from toolstep.envs.tasks.bfcl.possible import first_calls
from toolstep.envs.tasks.bfcl.referee import Referee
from toolstep.envs.tasks.bfcl.single_turn import error_type

Call = tuple[str, dict[str, Any]]
Talk = list[list[list[Call]]]  # turns of the user, rounds of calls, calls
_numbers = count()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Both error_types ("" for right) of one conversation, and what they took."""

    id: str
    kind: str
    error: str
    official: str
    seconds: float
    official_seconds: float


def verdicts(entry: Entry) -> Iterator[Verdict]:
    """The entry's ground truth and what comes of changing it, as both judge it."""
    multi = entry.category in MULTI_TURN
    talks: Any = perturbed_talks(entry) if multi else perturbed_calls(entry)
    ours: Any = our_multi_turn if multi else our_single_turn
    theirs: Any = official_multi_turn if multi else official_single_turn
    for kind, talk in talks:
        start = time.perf_counter()
        error = ours(entry, talk)
        between = time.perf_counter()
        official = theirs(entry, talk)
        yield Verdict(entry.id, kind, error, official, between - start, time.perf_counter() - between)


def official_multi_turn(entry: Entry, talk: Talk) -> str:
    """The error_type of the official checker, "" where it is content."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker, multi_turn_utils

    name = f"compare{next(_numbers)}"
    decoded = [[[_written(c) for c in step] for step in turn if step] for turn in talk]
    raw = {"id": entry.id, "initial_config": entry.config, "involved_classes": list(entry.classes)}
    try:
        found = multi_turn_checker.multi_turn_checker(decoded, entry.truth, raw, entry.category, name)
    finally:
        for left in [k for k in vars(multi_turn_utils) if k.startswith(name)]:
            del vars(multi_turn_utils)[left]
    return "" if found["valid"] else str(found["error_type"])


def our_multi_turn(entry: Entry, talk: Talk) -> str:
    """The same from our referee, who stops at the first turn that is wrong."""
    referee = Referee(entry)
    for turn in talk:
        for step in turn:
            for name, arguments in step:
                referee.call(name, arguments)
        referee.end_turn()
        if referee.error:
            return referee.error
    assert referee.right
    return ""


def _written(call: Call) -> str:
    name, arguments = call
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"


def right_talk(entry: Entry) -> Talk:
    """The ground truth, a round for each call."""
    return [[[named(parse_call(text))] for text in turn] for turn in entry.truth]


def perturbed_talks(entry: Entry) -> Iterator[tuple[str, Talk]]:
    """Conversations by kind, the right one among them; what is changed is a function of the entry's id."""
    draw = random.Random(entry.id)
    yield "right", right_talk(entry)
    yield (
        "right, in one round a turn",
        [[[c for step in turn for c in step]] if turn else [] for turn in right_talk(entry)],
    )
    full = [i for i, turn in enumerate(entry.truth) if turn]

    talk = right_talk(entry)
    turn = talk[draw.choice(full)]
    del turn[draw.randrange(len(turn))]
    yield "a call dropped", talk

    talk = right_talk(entry)
    talk[draw.choice(full)] = []
    yield "a turn emptied", talk

    talk = right_talk(entry)
    with_arguments = [step for turn in talk for step in turn if step[0][1]]
    if with_arguments:
        step = draw.choice(with_arguments)
        name, arguments = step[0]
        key = draw.choice(sorted(arguments))
        step[0] = (name, {**arguments, key: _other(arguments[key])})
        yield "an argument changed", talk

    talk = right_talk(entry)
    reading = [
        doc["name"]
        for api in entry.classes
        for doc in api_docs(api)
        if not doc["parameters"].get("required") and doc["name"].startswith(("get_", "pwd", "ls", "display", "view"))
    ]
    if reading:
        talk[draw.choice(full)].append([(draw.choice(reading), {})])
        yield "a call more that reads", talk

    talk = right_talk(entry)
    for turn in talk:
        draw.shuffle(turn)
    yield "in another order", talk

    talk = right_talk(entry)
    talk[draw.choice(full)].append([("no_such_function", {"x": 1})])
    yield "a function that does not exist", talk

    talk = right_talk(entry)
    turn = draw.choice([turn for turn in talk if turn])
    name, arguments = turn[0][0]
    turn.insert(0, [(name, {**arguments, "surplus": [1, {"a": None}]})])
    yield "an argument too many, then right", talk


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return value[1:] if value else ["x"]
    return {**value, "x": 1} if isinstance(value, dict) else "x"


# ---------------------------------------------------------------------------------------------------------- single turn
def official_single_turn(entry: Entry, made: Sequence[Call]) -> str:
    checker = _ast_checker()
    from bfcl_eval.constants.enums import Language

    output = [{name: arguments} for name, arguments in made]
    found = checker.ast_checker(entry.functions, output, entry.truth, Language.PYTHON, entry.category, "any")
    return "" if found["valid"] else str(found["error_type"])


def our_single_turn(entry: Entry, made: Sequence[Call]) -> str:
    return error_type(entry, list(made))


def _ast_checker() -> Any:
    name = "bfcl_eval.constants.model_config"
    if name not in sys.modules:
        stand_in = types.ModuleType(name)
        dotless = types.SimpleNamespace(underscore_to_dot=True)
        stand_in.MODEL_CONFIG_MAPPING = defaultdict(lambda: dotless)  # type: ignore[attr-defined]
        sys.modules[name] = stand_in
        try:
            from bfcl_eval.eval_checker.ast_eval import ast_checker
        finally:
            del sys.modules[name]
    from bfcl_eval.eval_checker.ast_eval import ast_checker

    return ast_checker


VALUES: tuple[Any, ...] = ("", "x", 0, 1.5, True, None, [], ["x", 1], [[1], [2]], {}, {"x": "y"}, [{"x": 1}])


def perturbed_calls(entry: Entry) -> Iterator[tuple[str, list[Call]]]:
    """Calls by kind, the oracle's among them."""
    draw = random.Random(entry.id)
    right = first_calls(entry)
    at = draw.randrange(len(right))
    name, arguments = right[at]

    def instead(other: Call) -> list[Call]:
        return [*right[:at], other, *right[at + 1 :]]

    yield "right", right
    yield "no call", []
    yield "a call twice", [*right, right[at]]
    yield "a call dropped", right[:at] + right[at + 1 :]
    yield "in reverse", right[::-1]
    yield "another name", instead((name + "x", arguments))
    yield "an argument too many", instead((name, {**arguments, "surplus": 1}))
    for key in arguments:
        yield "an argument dropped", instead((name, {k: v for k, v in arguments.items() if k != key}))
        yield "an argument changed", instead((name, {**arguments, key: _other(arguments[key])}))
        yield "in capitals", instead((name, {**arguments, key: _capitals(arguments[key])}))
        for value in draw.sample(VALUES, 3):
            yield "an argument of any kind", instead((name, {**arguments, key: value}))
        if isinstance(arguments[key], dict):
            for inner in arguments[key]:
                yield "a key dropped", instead((name, {**arguments, key: _without(arguments[key], inner)}))
                yield "a key changed", instead((name, {**arguments, key: {**arguments[key], inner: 17}}))
        if isinstance(arguments[key], list) and arguments[key]:
            yield "an item twice", instead((name, {**arguments, key: [*arguments[key], arguments[key][0]]}))
            yield "an item of any kind", instead((name, {**arguments, key: [draw.choice(VALUES), *arguments[key][1:]]}))
            if isinstance(arguments[key][0], dict):
                for inner in arguments[key][0]:
                    first = _without(arguments[key][0], inner)
                    yield "a key of an item dropped", instead((name, {**arguments, key: [first, *arguments[key][1:]]}))


def _without(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key}


def _capitals(value: Any) -> Any:
    """The same to a checker that does not look at case and blanks."""
    if isinstance(value, str):
        return f" {value.upper()}."
    return [_capitals(item) for item in value] if isinstance(value, list) else value
