"""Names that a model may be shown and can write."""

from __future__ import annotations

import re
from collections.abc import Collection

MAX_NAME = 64  # characters; what the APIs of models take


def valid_name(name: str, taken: Collection[str], also: str = "") -> str:
    """`name` out of letters, digits, `_`, `-` and the characters of `also`, cut to MAX_NAME; numbered where taken."""
    clean = re.sub(rf"[^a-zA-Z0-9_\-{re.escape(also)}]+", "_", name)
    clean = (clean if clean == name else clean.strip("_"))[:MAX_NAME] or "tool"
    number, candidate = 1, clean
    while candidate in taken:
        number += 1
        end = f"_{number}"
        candidate = clean[: MAX_NAME - len(end)] + end
    return candidate
