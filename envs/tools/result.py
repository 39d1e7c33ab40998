"""From what a tool did to the `ToolResult` that answers its call."""

from __future__ import annotations

import bisect
import inspect
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from toolstep.envs.tools.encode import NotJSONError, encode, well_formed
from toolstep.envs.types import CallStatus, ToolResult

CHARACTERS_PER_TOKEN = 128  # no vocabulary in use has longer tokens, runs of blanks included


def to_text(value: Any) -> str:
    """What the model reads when a tool returned `value`; raises NotJSONError where JSON cannot carry it."""
    return encode(value)


def error_text(status: CallStatus | str, message: str) -> str:
    """What the model reads for an error: JSON `{"error": <status>, "message": <message>}`."""
    return well_formed(json.dumps({"error": str(status), "message": message}, ensure_ascii=False))


def error_result(status: CallStatus, message: str, seconds: float = 0.0) -> ToolResult:
    """The answer to a call that failed."""
    return ToolResult(error_text(status, message), error=status, seconds=seconds)


def to_result(value: Any, seconds: float = 0.0) -> ToolResult:
    """The answer to a call whose tool returned `value`; a value that is not JSON-able is the tool's error."""
    if inspect.iscoroutine(value):
        value.close()  # it would warn that it was never awaited
        return error_result(CallStatus.TOOL_ERROR, "the tool returned a coroutine: give it run_in='async'", seconds)
    try:
        if isinstance(value, ToolResult):
            if not math.isfinite(value.reward):
                raise NotJSONError(f"the reward of a ToolResult must be finite, got {value.reward}")
            answer = None if value.answer is None else encode(value.answer)
            return replace(value, content=encode(value.content), answer=answer, seconds=seconds)
        return ToolResult(encode(value), seconds=seconds)
    except NotJSONError as error:
        return error_result(CallStatus.TOOL_ERROR, str(error), seconds)


def limit_result(text: str, max_tokens: int, keep: Callable[[str, int], str]) -> str:
    """`text` cut to at most `max_tokens` tokens, the marker that says what is missing included.

    `keep(text, n)` returns the longest beginning of `text` of at most n tokens (`ChatTemplate.keep`).  A text that fits
    comes back unchanged; otherwise the beginning is kept and a last line names the number of characters left out, so
    that half a JSON document is never mistaken for a whole one.  Where not even the marker fits, the result is as much
    of "[cut]" as does.  The cost does not grow with a text beyond 128 characters a token.
    """
    if max_tokens < 0:
        raise ValueError(f"limit_result: max_tokens must be >= 0, got {max_tokens}")
    head = text[: max_tokens * CHARACTERS_PER_TOKEN]
    if len(head) == len(text) and keep(text, max_tokens) == text:
        return text
    for spare in _marker_sizes(max_tokens, len(text), keep):
        kept = well_formed(keep(head, max_tokens - spare))
        cut = kept + _marker(len(text) - len(kept), len(text))
        # A tokenizer may merge across the seam; the next try leaves it more room.
        if keep(cut, max_tokens) == cut:
            return cut
    return keep("[cut]", max_tokens)


def _marker(left_out: int, total: int) -> str:
    return f"\n[cut: {left_out} of {total} characters left out]"


def _marker_sizes(max_tokens: int, total: int, keep: Callable[[str, int], str]) -> range:
    """Tokens to spare for the marker, growing from the fewest that can hold it."""
    longest = _marker(total, total)
    need = bisect.bisect_left(range(max_tokens + 1), True, key=lambda n: keep(longest, n) == longest)
    return range(need, min(need + 8, max_tokens) + 1)
