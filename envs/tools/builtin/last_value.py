"""The value of the last line of some code, shown as a notebook does.

The code is not parsed as Python here: that parser is written in C, and nobody promises what hostile text does to it.
One pass over strings, comments, brackets and words is enough to see where the last statement begins.
"""

from __future__ import annotations

import re

_PIECE = re.compile(
    # A string without an end is taken whole: looking for its end at each quote would cost the square of its length.
    r"""(?P<string>\"{3}(?:[^"\\]|\\[\s\S]|"(?!""))*+(?:\"{3})?+ | '{3}(?:[^'\\]|\\[\s\S]|'(?!''))*+(?:'{3})?+
        | "(?:[^"\\\n]|\\[\s\S])*+"?+ | '(?:[^'\\\n]|\\[\s\S])*+'?+)
    | (?P<comment>\#[^\n]*+)
    | (?P<joined>\\\n)
    | (?P<newline>\n)
    | (?P<open>[(\[{]) | (?P<close>[)\]}])
    | (?P<compare>[=!<>]=|:=)
    | (?P<word>\w++)
    | (?P<other>[\s\S])""",
    re.VERBOSE,
)
# fmt: off
_COMPOUND = frozenset((
    "if", "elif", "else", "for", "while", "def", "class", "with", "try", "except", "finally", "async",
))
_STATEMENTS = frozenset((
    "import", "from", "return", "pass", "break", "continue", "raise", "del", "assert", "global", "nonlocal",
))
# fmt: on


def showing(code: str) -> str | None:
    """The code, changed to print the value of its last line; None where that is no expression, as far as can be told.

    A guess that is wrong gives code that does not parse: then the code is run as it is.
    """
    depth = start = 0  # start: of the last simple statement
    begins, indented = True, False  # a new line begins here; it has blanks at its margin
    whole, plain, first = True, True, True  # no compound statement; may be an expression; before its first word
    last, lambdas = "", 0
    for piece in _PIECE.finditer(code):
        kind, text = piece.lastgroup, piece[0]
        if kind == "newline":
            if depth == 0:
                begins, indented = True, False
            continue
        if kind == "comment":
            continue
        if text.isspace():
            indented = indented or begins
            continue
        if begins:
            begins = False
            whole = plain = not indented and text not in _COMPOUND
            start, first, lambdas = piece.start(), True, 0
        last = text
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        elif depth == 0 and text == ";":
            start, first, plain, lambdas = piece.end(), True, whole, 0
            continue
        elif depth == 0:
            if text == "lambda":
                lambdas += 1
            elif text == ":" and lambdas:
                lambdas -= 1
            elif text in ("=", "@", ":") or (first and text in _STATEMENTS):
                plain = False
        first = False
    if not plain or depth or last in ("", ";"):
        return None
    return f"{code[:start]}_ = ({code[start:].lstrip()}\n)\nif _ is not None:\n    print(repr(_))\nNone"
