"""Credentials: which environment variable holds them, and where they go in a request.  They are read for each call."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolstep.envs.tools.openapi.load import OpenAPIError
from toolstep.envs.tools.openapi.operation import Operation, Place, resolve

MIN_SECRET = 6  # characters; what is shorter is too common to be blotted out of answers


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a credential is sent: as the parameter `name`, or in the header Authorization as `prefix` and the secret."""

    variable: str
    place: Place
    name: str
    prefix: str = ""

    def value(self) -> str:
        """What is sent.  Raises OpenAPIError where the variable is not set."""
        secret = os.environ.get(self.variable, "")
        if not secret:
            raise OpenAPIError(f"the environment variable {self.variable} is not set: it has to hold a credential")
        if self.prefix == "Basic ":
            return self.prefix + base64.b64encode(secret.encode()).decode()
        return self.prefix + secret


class Auth:
    """The credentials for the operations of one document.

    given: an environment variable for each security scheme, or one for all of them ("user:password" for HTTP Basic).
    Where the document names no scheme, the one is a bearer token.

    Raises OpenAPIError for a scheme that the document does not have or that is not known.
    """

    def __init__(self, given: str | Mapping[str, str] | None, document: Mapping[str, Any]) -> None:
        declared = _schemes(document)
        self._any: Scheme | None = None
        if isinstance(given, str):
            if not declared:
                self._any = Scheme(given, "header", "Authorization", "Bearer ")
            given = dict.fromkeys(declared, given)
        self._schemes: dict[str, Scheme] = {}
        for name, variable in (given or {}).items():
            if name not in declared:
                known = ", ".join(declared) or "none"
                raise OpenAPIError(f"the document has no security scheme {name!r}; it has {known}")
            self._schemes[name] = _scheme(name, declared[name], variable)

    @property
    def hidden(self) -> dict[str, Place]:
        """Parameters that a model is not asked for, because they are credentials, in lower case."""
        return {s.name.lower(): s.place for s in self._schemes.values() if s.name != "Authorization"}

    def check(self) -> None:
        """Raises OpenAPIError where a variable is not set."""
        for scheme in (*self._schemes.values(), *([self._any] if self._any else [])):
            scheme.value()

    def needed(self, operation: Operation) -> list[Scheme]:
        """What an operation wants, out of what is there; nothing where no alternative is whole."""
        if self._any is not None:
            return [self._any]
        for names in operation.security:
            if names and all(name in self._schemes for name in names):
                return [self._schemes[name] for name in names]
        return []

    def blot(self, text: str) -> str:
        """`text` without the secrets, which a server may send back."""
        for scheme in (*self._schemes.values(), *([self._any] if self._any else [])):
            secret = os.environ.get(scheme.variable, "")
            if len(secret) >= MIN_SECRET:
                text = text.replace(secret, "[secret]")
        return text


def _schemes(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    components = document.get("components")
    found = components.get("securitySchemes") if isinstance(components, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {name: resolve(scheme, document, f"security scheme {name!r}") for name, scheme in found.items()}


def _scheme(name: str, declared: Mapping[str, Any], variable: str) -> Scheme:
    kind, place = declared.get("type"), declared.get("in")
    if kind == "apiKey" and place in ("query", "header", "cookie") and isinstance(declared.get("name"), str):
        return Scheme(variable, place, declared["name"])
    how = str(declared.get("scheme", "")).lower()
    if kind == "http" and how == "basic":
        return Scheme(variable, "header", "Authorization", "Basic ")
    if (kind == "http" and how == "bearer") or kind in ("oauth2", "openIdConnect"):
        return Scheme(variable, "header", "Authorization", "Bearer ")
    raise OpenAPIError(f"security scheme {name!r} of type {kind!r} ({how or place}) is not known")
