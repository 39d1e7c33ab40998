"""Whether a JSON schema from elsewhere is one."""

from __future__ import annotations

import json
from typing import Any

MAX_SCHEMA = 256 << 10  # characters of one tool's schema as JSON


def check_schema(schema: Any, *, draft7: bool = False) -> None:
    """ValueError for what is no JSON schema (of the draft that it names, else 2020-12), or too large to be shown.

    draft7: by the rules of that draft, which are looked through in a sixth of the time.
    """
    try:
        from jsonschema import Draft7Validator, SchemaError
        from jsonschema.validators import validator_for
    except ImportError as error:
        raise ImportError(
            "tools of servers need jsonschema: pip install 'toolstep[mcp]' or 'toolstep[openapi]'"
        ) from error

    size = len(json.dumps(schema))
    if size > MAX_SCHEMA:
        raise ValueError(f"it has {size} characters, at most {MAX_SCHEMA} are taken")
    try:
        (Draft7Validator if draft7 else validator_for(schema)).check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"at {error.json_path}: {error.message[:300]}") from None
