"""Where a server is and how it is spoken to, in one line: what `--agent` takes.

server:http://127.0.0.1:8000
server:http://host:30000?dialect=sglang&tokenizer=./model&key_env=MY_KEY
openai:gpt-4.1-mini
openai:MODEL@http://127.0.0.1:8000/v1?key_env=MY_KEY
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"
_CREDENTIALS = ("key", "token", "secret", "password", "auth")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Address:
    """url: without a query, without a slash at its end.  model: "" for the server's only one.  options: the query."""

    url: str
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def key(self, default: str | None = None) -> str | None:
        """The credential, out of the environment variable that `key_env` names (else `default`).

        Raises ValueError where `key_env` names one that is not set.
        """
        name = self.options.get("key_env")
        value = os.environ.get(name or default or "", "").strip() or None
        if name and value is None:
            if not _VARIABLE.fullmatch(name):  # somebody's key, as likely as not
                raise ValueError("key_env names the environment variable with the key: there is none of the name given")
            raise ValueError(f"key_env={name}: there is no such environment variable; export {name}=... first")
        if value is not None and not (value.isascii() and value.isprintable()):
            raise ValueError(
                f"the environment variable {name or default} holds what can be no key: it is not plain ASCII"
            )
        return value


def server_address(text: str) -> Address:
    """`URL[?OPTIONS]`.  Raises ValueError, in which no credential is repeated."""
    url, options = _split(text, SERVER_OPTIONS)
    return Address(url, str(options.pop("model", "")), options)


def openai_address(text: str) -> Address:
    """`MODEL[@URL][?OPTIONS]`.  Raises ValueError, in which no credential is repeated."""
    model, at, url = text.partition("@http")
    rest = "http" + url if at else ""
    if not at:
        model, _, query = text.partition("?")
        rest = f"{OPENAI_URL}?{query}"
    if not model:
        raise ValueError("openai: expected openai:MODEL or openai:MODEL@URL, found no model")
    url, options = _split(rest, OPENAI_OPTIONS)
    return Address(url, model, options)


def _split(text: str, known: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ValueError(
            "an address must not hold a credential, which would end up in files: export it as an environment variable "
            "and name that by ?key_env=NAME"
        )
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"expected an address such as http://127.0.0.1:8000, found {parts.path[:80]!r}")
    if parts.fragment:
        raise ValueError("an address ends before a '#'; what follows one is sent nowhere, so leave it out")
    if parts.port == 0 or not parts.hostname:  # `port` raises ValueError where it is none
        raise ValueError(f"expected an address such as http://127.0.0.1:8000, found {parts.netloc[:80]!r}")
    options = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            hint = ""
            if any(word in name.casefold() for word in _CREDENTIALS):
                hint = "; a credential is taken from the environment alone: ?key_env=NAME"
            raise ValueError(f"unknown option {name!r} in an address{hint}; known: {', '.join(known)}")
        try:
            options[name] = known[name](value)
        except ValueError as error:
            raise ValueError(f"option {name} of an address: {error}") from None
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"expected a whole number >= 1, found {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"expected seconds > 0, found {text!r}")
    return value


def _retries(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected a whole number >= 0, found {text!r}")
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(f"expected on or off, found {text!r}")
    return text == "on"


_COMMON: Mapping[str, Callable[[str], Any]] = {
    "key_env": str,
    "concurrency": _count,
    "timeout": _seconds,
    "deadline": _seconds,
    "retries": _retries,
}
SERVER_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "dialect": str,
    "model": str,
    "tokenizer": str,
    "logprobs": _switch,
    **_COMMON,
}
OPENAI_OPTIONS: Mapping[str, Callable[[str], Any]] = {"seed": _switch, **_COMMON}
