"""What a run of code is told as: where an error came from, and long text cut in its middle.

Standard library only and without imports of our own: the jailed worker loads this file by its path.
"""

from __future__ import annotations

MAX_FRAMES = 8
MAX_SOURCE = 120  # characters of a line of code
MAX_MESSAGE = 600  # characters of an exception's own text


def describe_error(kind: str, message: str, frames: list[tuple[int, str, str]]) -> str:
    """A traceback in few words; frames are (line, function, source), outermost first."""
    if len(frames) > MAX_FRAMES:
        half = MAX_FRAMES // 2
        shown = [_frame(*f) for f in frames[:half]]
        shown.append(f"  ... {len(frames) - 2 * half} more ...")
        shown += [_frame(*f) for f in frames[-half:]]
    else:
        shown = [_frame(*f) for f in frames]
    last = f"{kind}: {cut(message, MAX_MESSAGE)}" if message else kind
    return "\n".join([*(["Traceback (most recent call last):"] if shown else []), *shown, last])


def _frame(line: int, function: str, source: str) -> str:
    source = source.strip()
    told = f": {source[:MAX_SOURCE]}{'...' if len(source) > MAX_SOURCE else ''}" if source else ""
    return f"  line {line}, in {function}{told}"


def cut(text: str, limit: int) -> str:
    """`text` of at most about `limit` characters: its beginning and its end, and how much is missing between them."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n[{len(text) - limit} characters left out]\n{text[len(text) - tail :]}"
