"""`OpenAPI`: the operations of a document as tools, for any number of episodes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urljoin, urlsplit

from toolstep.envs.tools.errors import ToolBackendError
from toolstep.envs.tools.factory import EpisodeInfo, ToolFactory
from toolstep.envs.tools.names import valid_name
from toolstep.envs.tools.openapi.auth import Auth
from toolstep.envs.tools.openapi.episode import EpisodeTools
from toolstep.envs.tools.openapi.load import OpenAPIError, load
from toolstep.envs.tools.openapi.operation import METHODS, Operation, read_operation, resolve
from toolstep.envs.tools.problems import listing, nearest
from toolstep.envs.tools.schema_check import check_schema
from toolstep.envs.tools.tool import Tool

MAX_OPERATIONS = 256  # on offer at once; no model reads more


class OpenAPI(ToolFactory):
    """The operations of an OpenAPI document (3.0 and 3.1) as tools (needs the extra `openapi`).

    >>> ToolUseEnv(tasks, tools=OpenAPI("petstore.yaml", "https://petstore.example/v1", auth="PETSTORE_KEY"))

    document: a dict, a file (JSON or YAML), its text, or its `http(s)://` address.
    base_url: the server; None: the first of the document's `servers`.  Requests go there and nowhere else, whatever the
        document, an argument or an answer says.
    tools: what is on offer: names of tools, or "GET /pets/{id}"; None: every operation that can be called.  prefix: put
        before each name.
    auth: the environment variable that holds the credential, or a dict of one for each security scheme of the document
        ("user:password" for HTTP Basic).  They are sent where an operation wants them, hidden from the model, and
        blotted out of answers.
    headers: sent with each request.
    call_timeout: seconds a call may take; None: the env's `tool_timeout`.  max_bytes: of an answer that are read.

    Path, query, header and cookie parameters and the properties of the body are arguments of one tool.  Names are made
    valid and different: an `id` in the path and one in the body are `id` and `id_body`.  Operations that cannot be
    called (a body of a kind that cannot be sent, a reference into another file) are in `skipped`, with the reason.

    A status of 2xx is a result, any other one a tool error that has the status and the body.  Each episode has cookies
    of its own.  A server that cannot be reached ends the episode with status "env_error".

    Raises OpenAPIError (a ValueError) where no tools can be made of the document.
    """

    external: ClassVar[bool] = True

    def __init__(
        self,
        document: Mapping[str, Any] | str | Path,
        base_url: str | None = None,
        *,
        tools: Collection[str] | None = None,
        prefix: str = "",
        auth: str | Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        call_timeout: float | None = None,
        max_bytes: int = 1 << 20,
    ) -> None:
        if isinstance(tools, str):
            raise OpenAPIError(f"OpenAPI: tools must be a list of names, got the text {tools!r}")
        if call_timeout is not None and not 0 < call_timeout < math.inf:
            raise OpenAPIError(f"OpenAPI: call_timeout must be a finite number of seconds > 0, got {call_timeout!r}")
        if not isinstance(max_bytes, int) or max_bytes < 1:
            raise OpenAPIError(f"OpenAPI: max_bytes must be a whole number > 0, got {max_bytes!r}")
        loaded = load(document)
        address = document if isinstance(document, str) and document.lower().startswith(("http:", "https:")) else ""
        self.base_url = _checked_url(base_url if base_url is not None else _first_server(loaded, address))
        self.auth = Auth(auth, loaded)
        self.headers = dict(headers or {})
        self.call_timeout = call_timeout
        self.max_bytes = max_bytes
        self.skipped: dict[str, str] = {}
        self.offered: list[tuple[Tool, Operation]] = []
        self._read(loaded, tools, prefix)
        self._begin()

    def _begin(self) -> None:
        from toolstep.envs.tools.openapi.client import HTTPClient

        self._client = HTTPClient(self.max_bytes)
        self._users: weakref.WeakSet[EpisodeTools] = weakref.WeakSet()
        weakref.finalize(self, self._client.close, 0.5)

    # ------------------------------------------------------------------------------------------------------ episodes
    def open(self) -> None:
        """See that HTTP can be spoken and the credentials are there.  Raises ImportError, ToolBackendError."""
        try:
            import httpx2  # noqa: F401
        except ImportError as error:
            raise ImportError("OpenAPI tools need an HTTP client: pip install 'toolstep[openapi]'") from error
        try:
            self.auth.check()
        except OpenAPIError as error:
            raise ToolBackendError(str(error)) from None

    def make(self, episode: EpisodeInfo) -> EpisodeTools:
        """The tools of an episode."""
        made = EpisodeTools(self, self._client)
        self._users.add(made)
        return made

    def close(self) -> None:
        """Close the connections, unless an episode still uses them."""
        if all(user.closed for user in self._users):
            self._client.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_client", "_users")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"OpenAPI({self.base_url}, {len(self.offered)} tools)"

    # ------------------------------------------------------------------------------------------------------ document
    def _read(self, document: Mapping[str, Any], wanted: Collection[str] | None, prefix: str) -> None:
        chosen = _choose(document, wanted, prefix)
        for name, (method, path) in chosen.items():
            label = f"{method.upper()} {path}"
            try:
                item = resolve(document["paths"][path], document, "the path")
                operation = read_operation(method, path, item, document, self.auth.hidden)
                check_schema(operation.schema, draft7=True)
                made = Tool.from_schema(
                    _unbound, name=name, parameters=operation.schema, description=operation.description
                )
            # A document from elsewhere can be wrong in every way; the other operations are none the worse for it.
            except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
                self.skipped[label] = str(error)[:300] or type(error).__name__
            else:
                self.offered.append((made, operation))
        if not self.offered or (wanted is not None and self.skipped):
            told = "".join(f"; {label}: {reason}" for label, reason in list(self.skipped.items())[:3])
            raise OpenAPIError(f"{'an' if self.offered else 'no'} operation can be called{told}")


async def _unbound(**_: Any) -> None:
    raise RuntimeError("the tool belongs to no episode")


def _choose(document: Mapping[str, Any], wanted: Collection[str] | None, prefix: str) -> dict[str, tuple[str, str]]:
    """The names of the tools on offer, and the method and path of each.  Raises OpenAPIError."""
    paths = document.get("paths")
    if not isinstance(paths, Mapping) or not paths:
        raise OpenAPIError("the document has no paths")
    names: dict[str, tuple[str, str]] = {}
    known: dict[str, str] = {}  # what an operation may be called in `tools=`
    for path, item in paths.items():
        whole = item if isinstance(item, Mapping) else {}
        if "$ref" in whole:
            try:
                whole = resolve(whole, document, "the path")
            except OpenAPIError:
                whole = {}
        for method in METHODS:
            if method in whole:
                given = whole[method].get("operationId") if isinstance(whole[method], Mapping) else None
                own = given if isinstance(given, str) and given else f"{method} {path}"
                name = valid_name(prefix + own, names)
                names[name] = (method, path)
                known.update({own: name, name: name, f"{method.upper()} {path}": name})
    if wanted is not None:
        for one in wanted:
            if one not in known:
                near = nearest(one, list(known))
                hint = f"; did you mean {near!r}?" if near else f": {listing(list(names))}"
                raise OpenAPIError(f"the document has no operation {one!r}{hint}")
        chosen = {known[one] for one in wanted}
        names = {name: where for name, where in names.items() if name in chosen}
    if len(names) > MAX_OPERATIONS:
        raise OpenAPIError(
            f"the document has {len(names)} operations, at most {MAX_OPERATIONS} can be on offer: choose with "
            f"tools=[...] out of {listing(list(names))}"
        )
    return names


def _checked_url(given: str) -> str:
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
        raise OpenAPIError(f"base_url must be an address like https://host.example/v1, got {given!r:.200}")
    return given


def _first_server(document: Mapping[str, Any], address: str) -> str:
    """The address of the first server, with the defaults of its variables; `address` is the document's own."""
    servers = document.get("servers")
    first = servers[0] if isinstance(servers, list) and servers else {"url": "/"}
    url = str(first.get("url", "/")) if isinstance(first, Mapping) else "/"
    variables = first.get("variables") if isinstance(first, Mapping) else None
    for name, variable in (variables if isinstance(variables, Mapping) else {}).items():
        if isinstance(variable, Mapping):
            url = url.replace("{" + name + "}", str(variable.get("default", "")))
    url = urljoin(address, url) if address else url
    if not url.lower().startswith(("http://", "https://")):
        raise OpenAPIError(f"the document does not say where its server is (servers: {url[:100]!r}); give base_url=")
    return url
