"""The simulated APIs of the multi-turn categories: objects with state, called by name and arguments.

The official checker turns a call into text, puts the name of a global variable in front of every word before a bracket
(inside strings too) and gives the result to `eval`.  Here a call is a method and its arguments, from beginning to end.
"""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from decimal import localcontext
from typing import Any

from toolstep.envs.tasks.bfcl.data import Entry, api_docs

MAX_DIGITS = 1_000  # of a result, where an argument decides how many there are
MAX_PATHS = 50_000  # in a tree that a call walks through: copies of folders share what is in them

Call = tuple[str, list[Any], dict[str, Any]]


class Apis:
    """The APIs of one conversation, in the state that its entry gives them."""

    def __init__(self, entry: Entry) -> None:
        from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

        self._objects: dict[str, Any] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        for name in entry.classes:
            made = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in STATELESS_CLASSES:
                long = entry.category == "multi_turn_long_context"
                made._load_scenario(deepcopy(entry.config.get(name, {})), long_context=long)
            self._objects[name] = made
            # Where two APIs have a function of one name, the later one's is called.
            self._methods.update({doc["name"]: getattr(made, doc["name"]) for doc in api_docs(name)})

    def call(self, name: str, positional: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[str, bool]:
        """What a call answers, in the official words, and whether it ran."""
        try:
            method = self._methods.get(name)
            if method is None:
                raise NameError(f"name '{name}' is not defined")
            self._refuse_endless(name, keywords)
            with _own_precision():
                # What the model wrote stays as it was: an API may keep an argument and change it.
                return _text(method(*deepcopy(list(positional)), **deepcopy(dict(keywords)))), True
        except Exception as error:
            return f"Error during execution: {error}", False

    def same_state(self, other: Apis) -> bool:
        """Whether all public attributes of all APIs are equal."""
        for name, theirs in other._objects.items():
            ours = self._objects[name]
            for attribute, value in vars(theirs).items():
                if attribute.startswith("_"):
                    continue
                try:
                    if getattr(ours, attribute) != value:
                        return False
                except Exception:  # what the calls made of it can't be compared: a folder that contains itself, say
                    return False
        return True

    def _refuse_endless(self, name: str, given: Mapping[str, Any]) -> None:
        """ValueError for arguments with which a call would compute for hours: nothing can stop it."""
        if name == "power":
            base, exponent = given.get("base"), given.get("exponent")
            if isinstance(base, int) and isinstance(exponent, int) and exponent * base.bit_length() > 4 * MAX_DIGITS:
                raise ValueError(f"the result would have more than {MAX_DIGITS} digits")
        for argument in ("precision", "decimal_places"):
            value = given.get(argument)
            if isinstance(value, int | float) and abs(value) > MAX_DIGITS:
                raise ValueError(f"{argument} must be at most {MAX_DIGITS}")
        files = self._objects.get("GorillaFileSystem")
        if name in ("find", "du") and files is not None:
            for folder in (files.root, files._current_dir):
                if sum(1 for _ in zip(range(MAX_PATHS), _paths(folder), strict=False)) == MAX_PATHS:
                    raise ValueError(f"there are more than {MAX_PATHS} paths")


def parse_call(text: str) -> Call:
    """A call of the ground truth, `cd(folder='document')`, taken apart; ValueError for anything else.

    Arguments must be literals: nothing is computed.
    """
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
        if not isinstance(parsed, ast.Call) or not isinstance(parsed.func, ast.Name):
            raise ValueError("no call of a function by its name")
        keywords = {str(k.arg): ast.literal_eval(k.value) for k in parsed.keywords if k.arg is not None}
        if len(keywords) < len(parsed.keywords):
            raise ValueError("arguments by **, or one name twice")
        return parsed.func.id, [ast.literal_eval(a) for a in parsed.args], keywords
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a call with literal arguments: {text[:200]!r}: {error}") from error


def named(call: Call) -> tuple[str, dict[str, Any]]:
    """The call with all its arguments by name, as JSON has them."""
    name, positional, keywords = call
    if not positional:
        return name, keywords
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING

    doc = next(d for api in MULTI_TURN_FUNC_DOC_FILE_MAPPING for d in api_docs(api) if d["name"] == name)
    return name, {**dict(zip(doc["parameters"]["properties"], positional, strict=False)), **keywords}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except Exception:
            return str(value)
    return str(value)


@contextmanager
def _own_precision() -> Iterator[None]:
    """Two functions set the precision of the whole process (mpmath) or thread (decimal), for whoever comes next."""
    import mpmath

    with localcontext(), mpmath.workprec(mpmath.mp.prec):
        yield


def _paths(folder: Any) -> Iterator[Any]:
    left = [folder]
    while left:
        found = left.pop()
        yield found
        left += getattr(found, "contents", {}).values()
