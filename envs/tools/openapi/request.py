"""From checked arguments to a request that goes to the right server, whatever a model wrote."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote as quote_well_formed
from urllib.parse import urlsplit

from toolstep.envs.tools.encode import well_formed
from toolstep.envs.tools.openapi.auth import Scheme
from toolstep.envs.tools.openapi.operation import Body, Operation, Parameter

MAX_URL = 16_000  # characters; servers refuse longer ones
_RESERVED = ":/?@!$'()*,;[]"  # that may stand in a query as they are, where a document says so
_SEPARATORS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "|", "simple": ","}


class RequestError(ValueError):
    """Arguments of which no request can be made; the message is for the model."""


@dataclass(slots=True)
class Outgoing:
    """A request that is ready to be sent; `url` is whole."""

    method: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    cookies: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None


def build(
    base_url: str, operation: Operation, arguments: Mapping[str, Any], schemes: Iterable[Scheme] = ()
) -> Outgoing:
    """The request for one call.

    A value in the path never adds, ends or climbs out of a part of it, one in a header never begins another header, and
    the server is always that of `base_url`.

    Raises:
        RequestError: a value that would.
    """
    path, query = operation.path, list[str]()
    out = Outgoing(operation.method, "")
    for parameter in operation.parameters:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.place == "path":
            path = path.replace("{" + parameter.name + "}", _in_path(parameter, value))
        elif parameter.place == "query":
            query += _in_query(parameter, value)
        elif parameter.place == "header":
            out.headers[parameter.name] = _header(parameter.argument, _simple(parameter, value, str))
        else:
            out.cookies[parameter.name] = quote(_simple(parameter, value, str), safe="")
    for scheme in schemes:
        if scheme.place == "query":
            query.append(f"{quote(scheme.name, safe='')}={quote(scheme.value(), safe='')}")
        elif scheme.place == "cookie":
            out.cookies[scheme.name] = quote(scheme.value(), safe="")
        else:
            out.headers[scheme.name] = _header(scheme.name, scheme.value())
    out.url = _url(base_url, path, query)
    if operation.body is not None:
        _add_body(out, operation.body, arguments)
    return out


def _url(base_url: str, path: str, query: Sequence[str]) -> str:
    base = urlsplit(base_url)
    # What the document itself has in its path is not trusted either: no `#`, no blank, no backslash.
    whole = base.path.rstrip("/") + "/" + quote(path.lstrip("/"), safe="/:@!$&'()*+,;=~%?")
    if any(part in (".", "..") for part in whole.split("/")):
        raise RequestError("the path may not have a part that is '.' or '..'")
    queries = "&".join([*([base.query] if base.query else []), *query])
    url = f"{base.scheme}://{base.netloc}{whole}"
    if queries:
        url += f"{'&' if '?' in whole else '?'}{queries}"
    if len(url) > MAX_URL:
        raise RequestError(f"the address would have {len(url)} characters; at most {MAX_URL} are taken")
    return url


# ------------------------------------------------------------------------------------------------------- the values
def quote(text: str, safe: str) -> str:
    """Percent-encoded, as UTF-8; of half a surrogate pair too."""
    return quote_well_formed(well_formed(text), safe=safe)


def text_of(value: Any) -> str:
    """A scalar as it stands in an address; a list or an object as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _in_path(parameter: Parameter, value: Any) -> str:
    for piece in _strings(value):
        # A server may decode %2F before it looks for the right place.
        if any(part in (".", "..") for part in piece.replace("\\", "/").split("/")):
            raise RequestError(f"{parameter.argument}: may not contain '.' or '..' as a part of a path")
    text = _simple(parameter, value, lambda piece: quote(piece, safe=""))
    if not text:
        raise RequestError(f"{parameter.argument}: may not be empty")
    if parameter.style == "label":
        return "." + text
    if parameter.style == "matrix":
        return f";{quote(parameter.name, safe='')}={text}"
    return text


def _strings(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for key, child in value.items() for text in (str(key), *_strings(child))]
    if isinstance(value, list):
        return [text for child in value for text in _strings(child)]
    return [text_of(value)]


def _simple(parameter: Parameter, value: Any, encode: Any) -> str:
    """A value in one piece: lists and objects with commas between their parts."""
    if parameter.as_json:
        return str(encode(json.dumps(value, ensure_ascii=False, separators=(",", ":"))))
    if isinstance(value, Mapping):
        sign = "=" if parameter.explode else ","
        return ",".join(f"{encode(str(key))}{sign}{encode(text_of(child))}" for key, child in value.items())
    if isinstance(value, list):
        return ",".join(str(encode(text_of(child))) for child in value)
    return str(encode(text_of(value)))


def _in_query(parameter: Parameter, value: Any) -> list[str]:
    def encode(text: str) -> str:
        return quote(text, safe=_RESERVED if parameter.reserved else "")

    name = quote(parameter.name, safe="[]")
    if parameter.as_json:
        return [f"{name}={encode(json.dumps(value, ensure_ascii=False, separators=(',', ':')))}"]
    if isinstance(value, Mapping):
        if parameter.style == "deepObject":
            return [f"{name}[{quote(str(key), safe='')}]={encode(text_of(child))}" for key, child in value.items()]
        if parameter.explode:
            return [f"{quote(str(key), safe='')}={encode(text_of(child))}" for key, child in value.items()]
        return [f"{name}=" + ",".join(f"{encode(str(k))},{encode(text_of(v))}" for k, v in value.items())]
    if isinstance(value, list):
        if parameter.explode or parameter.style == "deepObject":
            return [f"{name}={encode(text_of(child))}" for child in value]
        return [f"{name}=" + _SEPARATORS[parameter.style].join(encode(text_of(child)) for child in value)]
    return [f"{name}={encode(text_of(value))}"]


def _header(name: str, value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise RequestError(f"{name}: a header takes printable ASCII characters only, and no line breaks")
    return value


# --------------------------------------------------------------------------------------------------------- the body
def _add_body(out: Outgoing, body: Body, arguments: Mapping[str, Any]) -> None:
    given = {argument: arguments[argument] for argument in body.names if argument in arguments}
    if not given and not body.required:
        return
    whole = next((given[argument] for argument, name in body.names.items() if name is None and argument in given), None)
    named = {name: given[argument] for argument, name in body.names.items() if name is not None and argument in given}
    value = whole if None in body.names.values() else named
    media_type = body.media_type if "*" not in body.media_type else "application/json"
    if body.kind == "json":
        out.content = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    elif body.kind == "text":
        out.content = text_of(value).encode("utf-8", "replace")
    elif body.kind == "form":
        fields = [
            (str(k), text_of(item)) for k, v in (value or {}).items() for item in (v if isinstance(v, list) else [v])
        ]
        out.content = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in fields).encode()
    else:
        boundary = secrets.token_hex(16)
        out.content = _multipart(value or {}, boundary)
        media_type = f"{media_type.partition(';')[0]}; boundary={boundary}"
    out.headers["Content-Type"] = media_type


def _fields(value: Any) -> list[tuple[str, str]]:
    """Names and values of a form; a list is several values of one name."""
    found = value.items() if isinstance(value, Mapping) else ()
    return [(str(k), text_of(item)) for k, v in found for item in (v if isinstance(v, list) else [v])]


def _multipart(value: Any, boundary: str) -> bytes:
    text = ""
    for name, child in _fields(value):
        shown = quote(name, safe=" -_.[]()")  # no quote or line break ends the name early
        text += f'--{boundary}\r\nContent-Disposition: form-data; name="{shown}"\r\n\r\n{child}\r\n'
    return (text + f"--{boundary}--\r\n").encode("utf-8", "replace")
