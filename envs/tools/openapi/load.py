"""An OpenAPI document as plain data, out of a file, a text, an address or a dict."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 32 << 20  # of a document; the largest public ones have 12 MiB
MAX_NODES = 3_000_000  # of a document with its YAML aliases written out
FETCH_TIMEOUT = 30.0  # seconds


class OpenAPIError(ValueError):
    """A document of which no tools can be made; the message says where."""


def load(document: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """The document: dicts with text keys, lists, text, numbers, booleans and None, and nothing else.

    document: a dict; a `Path`; an `http(s)://` address; the name of a file; or, where it has several lines or begins
    with a brace, JSON or YAML text.

    Raises:
        OpenAPIError: it cannot be read, is too large, or is no OpenAPI document of version 3.
    """
    if isinstance(document, Mapping):
        found: Any = document
    else:
        found = _parse(_text(document))
    plain = _plain(found)
    if not isinstance(plain, dict):
        raise OpenAPIError(f"an OpenAPI document is an object, found {type(plain).__name__}")
    version = str(plain.get("openapi", ""))
    if not version.startswith("3."):
        old = " (Swagger 2: convert it, for instance with swagger2openapi)" if "swagger" in plain else ""
        raise OpenAPIError(f"expected an OpenAPI document of version 3, found openapi: {version[:20]!r}{old}")
    return plain


def _text(document: str | Path) -> str:
    if isinstance(document, str):
        if document.lower().startswith(("http://", "https://")):
            return _fetched(document)
        if "\n" in document or document.lstrip().startswith("{"):
            return document
    path = Path(document)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise OpenAPIError(f"{str(path)!r} has more than {MAX_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, OpenAPIError):
            raise
        raise OpenAPIError(f"cannot read the OpenAPI document {str(path)[:200]!r}: {error}") from error


def _needed(module: str, what: str) -> Any:
    """The module of the extra, or an ImportError that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {module}: pip install 'toolstep[openapi]'") from error


def _fetched(address: str) -> str:
    httpx2 = _needed("httpx2", "an OpenAPI document at an address")
    try:
        with httpx2.stream("GET", address, timeout=FETCH_TIMEOUT) as response:
            response.raise_for_status()
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise OpenAPIError(f"the document at {address!r} has more than {MAX_BYTES >> 20} MiB")
    except httpx2.HTTPError as error:
        raise OpenAPIError(f"cannot fetch the OpenAPI document {address!r}: {error}") from error
    return body.decode("utf-8", "replace")


def _parse(text: str) -> Any:
    if len(text) > MAX_BYTES:
        raise OpenAPIError(f"the document has more than {MAX_BYTES >> 20} Mi characters")
    try:
        return json.loads(text)
    except RecursionError:
        raise OpenAPIError("the document is nested too deeply") from None
    except ValueError:
        pass
    yaml = _needed("yaml", "an OpenAPI document that is no JSON")
    try:
        return yaml.load(text, Loader=_yaml_loader())  # a SafeLoader, see there
    except RecursionError:
        raise OpenAPIError("the document is nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise OpenAPIError(f"the document is neither JSON nor YAML: {' '.join(str(error).split())[:300]}") from None


@functools.cache
def _yaml_loader() -> Any:
    """YAML as JSON has it: `no` and `2024-01-01` are text, only `true` and `false` are booleans."""
    import re

    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, rule) for tag, rule in rules if tag.rpartition(":")[2] not in ("timestamp", "bool", "value")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    booleans = re.compile("true|True|TRUE|false|False|FALSE")
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", booleans, list("tTfF"))
    return Loader


def _plain(document: Any) -> Any:
    """A tree: aliases are written out, up to a limit, and keys are text."""
    left = MAX_NODES
    within: set[int] = set()

    def copy(node: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise OpenAPIError(f"the document has more than {MAX_NODES} parts, with its aliases written out")
        if isinstance(node, Mapping | list):
            if id(node) in within:
                raise OpenAPIError("a part of the document contains itself")
            within.add(id(node))
            if isinstance(node, Mapping):
                made: Any = {str(key): copy(value) for key, value in node.items()}
            else:
                made = [copy(item) for item in node]
            within.discard(id(node))
            return made
        if node is None or isinstance(node, str | bool | int | float):
            return node
        return str(node)

    try:
        return copy(document)
    except RecursionError:
        raise OpenAPIError("the document is nested too deeply") from None
