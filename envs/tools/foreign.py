"""Arguments of a tool that came with a JSON schema of its own: MCP, OpenAPI, a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolstep.envs.tools.check import check
from toolstep.envs.tools.errors import ToolSchemaError
from toolstep.envs.tools.inline import inline


class SchemaSignature:
    """The counterpart of `FunctionSignature` for a JSON schema: arguments are checked and passed on as keywords.

    `schema` is the given one with $refs inlined.  JSON schema allows what it does not mention; here a property that is
    not listed is refused unless the schema says otherwise, because a model that invents an argument must hear of it.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            raise ToolSchemaError(
                f"the parameters of a tool must be a JSON schema of type 'object', got {str(schema)[:200]}"
            )
        self.schema = {"type": "object", **inline(schema)}
        if isinstance(self.schema.get("properties"), Mapping):
            self.schema.setdefault("additionalProperties", False)
        else:
            self.schema["properties"] = {}
        self.description = ""

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with harmless slips mended; raises `check.Mismatch`es as ArgumentError in `validate`."""
        return check(dict(arguments), self.schema)

    def spread(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """No positional arguments; every argument a keyword."""
        return [], dict(arguments)


class PassedOn:
    """The signature of a tool that is the judge of its own arguments: the schema is shown, and nothing is checked."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = {"type": "object", **schema}
        self.description = ""

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are."""
        return dict(arguments)

    def spread(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """No positional arguments; every argument a keyword."""
        return [], dict(arguments)
