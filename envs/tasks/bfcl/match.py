"""Calls against acceptable ones, by the rules of the official checker and with its words for what is wrong.

The rules, in short: the name must be right, every required argument there and none that is not acceptable; text is
compared without case, blanks and most punctuation; an integer may stand for a float, and nothing else for anything
else; a value in whose acceptable ones "" stands may be left out.  Some results look odd (what is said of a dict with
two faults, say): they are the official ones, with which a benchmark holds this (`benchmarks/bfcl.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolstep.envs.tasks.bfcl.data import Entry
from toolstep.envs.tasks.bfcl.docs import tool_name

Arguments = Mapping[str, Any]
Made = tuple[str, Arguments]

_IGNORED = re.compile(r"[ ,./\-_*^]")
_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}


def matched(entry: Entry, made: Sequence[Made]) -> str:
    """What is wrong with the calls; "" where they are acceptable."""
    if "parallel" in entry.category:
        return _in_any_order(entry, made)
    several = "multiple" in entry.category
    if len(made) != 1:
        return f"{'multiple' if several else 'simple'}_function_checker:wrong_count"
    wanted = entry.truth[0]
    doc = _doc(entry, wanted) if several else entry.functions[0]
    return _one(doc, made[0], wanted)


def _in_any_order(entry: Entry, made: Sequence[Made]) -> str:
    if len(made) != len(entry.truth):
        return "parallel_function_checker_no_order:wrong_count"
    left = list(made)
    for wanted in entry.truth:
        doc = _doc(entry, wanted)
        found = next((i for i, one in enumerate(left) if not _one(doc, one, wanted)), None)
        if found is None:
            return "parallel_function_checker_no_order:cannot_find_match"
        del left[found]
    return ""


def _doc(entry: Entry, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(doc for doc in entry.functions if doc["name"] == next(iter(wanted)))


def _one(doc: Mapping[str, Any], made: Made, wanted: Mapping[str, Any]) -> str:
    """What is wrong with one call."""
    acceptable: Mapping[str, list[Any]] = next(iter(wanted.values()))
    name, arguments = made
    docs = doc["parameters"]["properties"]
    if name != tool_name(doc["name"]):
        return "simple_function_checker:wrong_func_name"
    if any(parameter not in arguments for parameter in doc["parameters"]["required"]):
        return "simple_function_checker:missing_required"
    for parameter, value in arguments.items():
        if parameter not in docs or parameter not in acceptable:
            return "simple_function_checker:unexpected_param"
        error = _argument(docs[parameter], value, acceptable[parameter])
        if error:
            return error
    if any(parameter not in arguments and "" not in values for parameter, values in acceptable.items()):
        return "simple_function_checker:missing_optional"
    return ""


def _argument(doc: Mapping[str, Any], value: Any, acceptable: list[Any]) -> str:
    """What is wrong with the value of one argument."""
    kind = _TYPES[doc["type"]]
    inner = _TYPES[doc["items"]["type"]] if doc["type"] in ("array", "tuple") else None
    if doc["type"] == "float" and type(value) is int:
        value = float(value)
    error, as_it_is = _type(value, acceptable, kind, inner)
    if error:
        return error
    if not as_it_is:
        if kind is dict:
            return _dict(value, acceptable)
        if kind is list and inner is dict:
            return _dicts(value, acceptable)
        if kind is str:
            return (
                "" if _plain(value) in [_plain(a) for a in acceptable if isinstance(a, str)] else "value_error:string"
            )
        if kind is list:
            wanted = [[_plain(item) for item in option] for option in acceptable]
            return "" if [_plain(item) for item in value] in wanted else "value_error:list/tuple"
    return "" if value in acceptable else "value_error:others"


def _type(value: Any, acceptable: list[Any], kind: type, inner: type | None) -> tuple[str, bool]:
    """What is wrong with the type, and whether the value is to be compared as it is: acceptable ones are of another
    type than documented, because the answer is the name of a variable."""
    other = next((type(a) for a in acceptable if a != ""), None)
    fault = "type_error:simple"
    if type(value) is kind:
        if inner is None or any(_holds(value, option, inner) for option in acceptable):
            return "", other is not None and other is not kind
        if other is list:
            return "type_error:nested", True
    if other is not None and type(value) is other:
        return "", True
    return fault, False


def _holds(value: Any, option: Any, inner: type) -> bool:
    """Whether all items of the list are of the documented type, or of that of the acceptable items."""
    if not isinstance(option, list):
        return True
    other = next((type(a) for a in option if a != ""), None)
    return all(type(item) is inner or (other is not None and type(item) is other) for item in value)


def _dict(value: Mapping[str, Any], acceptable: Sequence[Any]) -> str:
    error = "dict_checker:unclear"
    for option in acceptable:
        if option == "":
            continue
        error = ""
        for key, item in value.items():
            if key not in option:
                error = "value_error:dict_key"
            elif _plain(item) not in [_plain(a) for a in option[key]]:
                error = "value_error:dict_value"
            if error:
                break
        if any(key not in value and "" not in values for key, values in option.items()):
            error = "value_error:dict_key"
        if not error:
            return ""
    return error


def _dicts(value: Sequence[Any], acceptable: Sequence[Any]) -> str:
    error = "list_dict_checker:unclear"
    for option in acceptable:
        if len(value) != len(option):
            error = "value_error:list_dict_count"
            continue
        error = next((e for item, one in zip(value, option, strict=True) if (e := _dict(item, [one]))), "")
        if not error:
            return ""
    return error


def _plain(value: Any) -> Any:
    """Text without case, blanks and most punctuation, and with one kind of quotes; anything else as it is."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
