"""One operation of a document: what a model may pass, and where each argument goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toolstep.envs.tools.inline import look_up
from toolstep.envs.tools.names import valid_name
from toolstep.envs.tools.openapi.load import OpenAPIError
from toolstep.envs.tools.openapi.schema import merged, plain_schema

Place = Literal["path", "query", "header", "cookie"]
BodyKind = Literal["json", "form", "multipart", "text"]
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
MAX_DESCRIPTION = 1_000  # characters of an operation's description that a model is shown
_STYLES = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_KNOWN_STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
# The specification leaves these to security schemes and bodies.
_RESERVED_HEADERS = ("accept", "content-type", "authorization")


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument that goes into the path, the query, a header or a cookie.

    name: on the wire.  argument: of the tool.  as_json: its value is JSON text.  reserved: characters such as `/` and
    `:` stay as they are in a query.
    """

    name: str
    argument: str
    place: Place
    style: str
    explode: bool
    as_json: bool = False
    reserved: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """What is sent as the body.  names: its properties by the tool's arguments, or {argument: None} for the whole."""

    kind: BodyKind
    media_type: str
    names: Mapping[str, str | None]
    required: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """path: with `{name}` where a parameter stands.  security: alternatives, each the names of all schemes it needs.

    schema: of the tool's arguments.
    """

    method: str
    path: str
    name: str
    description: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    security: tuple[tuple[str, ...], ...]
    schema: dict[str, Any]


def resolve(node: Any, document: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """The object that `node` is or refers to.  Raises OpenAPIError."""
    for _ in range(32):
        if not isinstance(node, Mapping):
            raise OpenAPIError(f"{what} must be an object, found {type(node).__name__}")
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return node
        node = look_up(reference, document)
        if node is None:
            raise OpenAPIError(f"{what} refers to {reference[:100]!r}, which is not in the document")
    raise OpenAPIError(f"{what} refers to itself")


def read_operation(
    method: str, path: str, item: Mapping[str, Any], document: Mapping[str, Any], hidden: Mapping[str, Place]
) -> Operation:
    """The operation `method` of a path's `item`.  hidden: parameters that are credentials, which no model is shown.

    Raises OpenAPIError for one that no call can be made of.
    """
    given = resolve(item.get(method), document, "the operation")
    builder = _Arguments(document)
    for parameter in _parameters(item, given, document):
        name, place = str(parameter.get("name")), parameter.get("in")
        ignored = place == "header" and name.lower() in _RESERVED_HEADERS
        if not ignored and hidden.get(name.lower()) != place:
            builder.add(name, parameter)
    for name in _placeholders(path):
        if name not in {p.name for p in builder.parameters if p.place == "path"}:
            raise OpenAPIError(f"the path has {{{name}}}, but no parameter of that name")
    body = None
    if "requestBody" in given:
        body = builder.body(resolve(given["requestBody"], document, "requestBody"))
    operation_id = given.get("operationId")
    words = [str(given[key]).strip() for key in ("summary", "description") if given.get(key)]
    described = "\n".join(dict.fromkeys(words)) or f"{method.upper()} {path}"
    if given.get("deprecated") is True:
        described = f"(deprecated) {described}"
    return Operation(
        method=method.upper(),
        path=path,
        name=operation_id if isinstance(operation_id, str) and operation_id else f"{method} {path}",
        description=described[:MAX_DESCRIPTION],
        parameters=tuple(builder.parameters),
        body=body,
        security=_security(given.get("security", document.get("security"))),
        schema=builder.schema(),
    )


def _parameters(
    item: Mapping[str, Any], operation: Mapping[str, Any], document: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Those of the path, overridden by those of the operation."""
    found: dict[tuple[Any, Any], Mapping[str, Any]] = {}
    for holder in (item, operation):
        given = holder.get("parameters") or ()
        if not isinstance(given, list | tuple):
            raise OpenAPIError(f"'parameters' must be a list, found {type(given).__name__}")
        for entry in given:
            parameter = resolve(entry, document, "a parameter")
            found[str(parameter.get("in")), str(parameter.get("name"))] = parameter
    return list(found.values())


def _security(given: Any) -> tuple[tuple[str, ...], ...]:
    if not isinstance(given, list):
        return ()
    return tuple(tuple(map(str, one)) for one in given if isinstance(one, Mapping))


def _placeholders(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:] if "}" in part]


class _Arguments:
    """The arguments of one tool: valid names, each once."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.parameters: list[Parameter] = []
        self._document = document
        self._properties: dict[str, dict[str, Any]] = {}
        self._required: list[str] = []

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": self._properties,
            "required": self._required,
            "additionalProperties": False,
        }

    def add(self, name: str, given: Mapping[str, Any]) -> None:
        place = given.get("in")
        if place not in _STYLES:
            raise OpenAPIError(f"parameter {name!r} is in {place!r}; known are {', '.join(_STYLES)}")
        content = given.get("content")
        as_json = isinstance(content, Mapping) and bool(content)
        if as_json:
            media_type, holder = next(iter(content.items()))  # type: ignore[union-attr]
            if not _is_json(str(media_type)):
                raise OpenAPIError(f"parameter {name!r} is {media_type}; only JSON is known there")
            holder = resolve(holder, self._document, f"content of {name!r}")
        else:
            holder = given
        style = given.get("style", _STYLES[place])
        if style not in _KNOWN_STYLES[place]:
            raise OpenAPIError(f"parameter {name!r} has the style {style!r}; known are {_KNOWN_STYLES[place]}")
        explode = given.get("explode", style == "form")
        required = given.get("required") is True or place == "path"
        schema = plain_schema(holder.get("schema"), self._document)
        argument = self._argument(name, place, schema, given.get("description"), required)
        reserved = given.get("allowReserved") is True
        self.parameters.append(Parameter(name, argument, place, style, explode is True, as_json, reserved))

    def body(self, given: Mapping[str, Any]) -> Body:
        content = given.get("content")
        if not isinstance(content, Mapping) or not content:
            raise OpenAPIError("requestBody has no content")
        kind, media_type = _body_kind(list(map(str, content)))
        holder = resolve(content[media_type], self._document, f"content {media_type!r}")
        required = given.get("required") is True
        schema = merged(plain_schema(holder.get("schema"), self._document))
        if kind == "text":
            schema = {"type": "string", **{k: v for k, v in schema.items() if k == "description"}}
        own = schema.get("properties")
        wanted = schema.get("required") or []
        spread = (
            isinstance(own, Mapping)
            and bool(own)
            and schema.get("type", "object") == "object"
            and not any(key in schema for key in ("anyOf", "oneOf", "allOf", "not"))
            and not schema.get("additionalProperties")
            and (required or not wanted)
        )
        if kind in ("form", "multipart") and not spread and schema.get("type", "object") != "object":
            raise OpenAPIError(f"a body of {media_type} must be an object")
        if not spread:
            text = given.get("description") or schema.get("description")
            return Body(kind, media_type, {self._argument("body", "body", schema, text, required): None}, required)
        names: dict[str, str | None] = {}
        for name, child in own.items():  # type: ignore[union-attr]
            names[self._argument(name, "body", child, None, name in wanted)] = name
        return Body(kind, media_type, names, required)

    def _argument(self, name: str, place: str, schema: Any, description: Any, required: bool) -> str:
        argument = valid_name(name, ())
        if argument in self._properties:
            argument = valid_name(f"{argument}_{place}", self._properties)
        shown = dict(schema) if isinstance(schema, Mapping) else {}
        if isinstance(description, str) and description.strip():
            shown["description"] = description.strip()
        self._properties[argument] = shown
        if required:
            self._required.append(argument)
        return argument


def _is_json(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind in ("application/json", "text/json", "*/*", "application/*") or kind.endswith("+json")


def _body_kind(media_types: list[str]) -> tuple[BodyKind, str]:
    """The media type to send, JSON before all others."""
    for media_type in media_types:
        if _is_json(media_type):
            return "json", media_type
    kinds: dict[str, BodyKind] = {"application/x-www-form-urlencoded": "form", "multipart/form-data": "multipart"}
    for media_type in media_types:
        plain = media_type.partition(";")[0].strip().lower()
        if plain in kinds:
            return kinds[plain], media_type
    for media_type in media_types:
        if (
            media_type.lower().startswith("text/")
            or "xml" in media_type.lower()
            or "octet-stream" in media_type.lower()
        ):
            return "text", media_type
    raise OpenAPIError(f"a body of {', '.join(media_types)[:200]} cannot be sent")
