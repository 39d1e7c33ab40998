"""What a tool returned, as text.

Standard library only and without imports of our own: `worker.py` loads this file by its path, so that a worker process
starts in milliseconds and imports nothing but the tool itself.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import date, time
from enum import Enum
from typing import Any

MAX_MESSAGE = 500  # characters of an exception's own text that are worth a model's context


class NotJSONError(TypeError):
    """A tool returned something that JSON cannot carry."""


def encode(value: Any) -> str:
    """`value` as a model reads it: a string as it is, anything else as JSON.

    Falsy values are values: 0 is "0", "" is "", {} is "{}", None is "null".  Beyond JSON's own types it takes tuples,
    sets (sorted, because their order differs between processes), enums, dates, dataclasses, pydantic models and numpy
    scalars and arrays.  Text is well-formed: see `well_formed`.

    Raises NotJSONError for other types, for NaN and infinity (JSON has no word for them, and null would hide the
    difference), for circular values and for values nested too deeply.
    """
    if isinstance(value, str):
        return well_formed(value.value if isinstance(value, Enum) else str.__str__(value))
    try:
        return well_formed(json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain))
    except NotJSONError:
        raise
    except RecursionError:
        raise NotJSONError("the result is nested too deeply for JSON") from None
    except Exception as error:  # foreign __iter__, model_dump or __eq__ may raise anything
        raise NotJSONError(f"the result cannot be written as JSON: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    text = str(error)
    if text.startswith("Out of range float"):
        return "it has a number that is not finite (nan or infinity); return None or a string for it"
    if text.startswith("keys must be"):
        return "a dict in it has a key that is no string"
    if text.startswith("Circular"):
        return "it contains itself"
    return shorten(text)


def _plain(value: Any) -> Any:
    """The JSON-able form of what `json` does not know; called by `json.dumps` once for each such value."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda item: (type(item).__name__, encode(item)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    kind = type(value)
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(kind, "model_dump") and hasattr(kind, "model_fields"):  # pydantic, without importing it
        return value.model_dump(mode="json")
    raise NotJSONError(
        f"the result contains a {kind.__module__}.{kind.__qualname__}, which is not JSON; "
        "return text, a number, a list or a dict"
    )


def well_formed(text: str) -> str:
    """`text` without lone surrogates, which no tokenizer, file or socket takes.

    Two halves that belong together are joined; a half alone becomes U+FFFD.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text` cut to `limit` characters; says how many are missing."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit} more characters)"


def describe_exception(error: BaseException) -> str:
    """Type and message of what a tool raised, short enough to be read by a model; never raises."""
    name = type(error).__name__
    try:
        text = well_formed(shorten(str(error)))
    except BaseException:  # a __str__ that raises is the tool's doing as well
        return name
    return f"{name}: {text}" if text else name
