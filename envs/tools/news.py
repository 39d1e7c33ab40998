"""Tools that come and go during an episode, in words for the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def news_of(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> str:
    """What became different between two offers of tool schemas; "" where they are the same."""
    old = {schema["function"]["name"]: schema for schema in before}
    new = {schema["function"]["name"]: schema for schema in after}
    gone = [name for name in old if name not in new]
    told = [schema for name, schema in new.items() if old.get(name) != schema]
    lines = []
    if told:
        lines.append("These tools are new or have changed:")
        lines += [json.dumps(schema, ensure_ascii=False) for schema in told]
    if gone:
        lines.append(f"These tools are gone: {', '.join(gone)}")
    return "\n".join(lines)
