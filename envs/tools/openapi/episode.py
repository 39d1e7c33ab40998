"""The tools of one episode: its calls, and the cookies that it was given."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolstep.envs.tools.bound import BoundTools
from toolstep.envs.tools.errors import ToolBackendError
from toolstep.envs.tools.openapi.load import OpenAPIError
from toolstep.envs.tools.openapi.request import RequestError, build
from toolstep.envs.tools.result import error_result
from toolstep.envs.types import CallStatus, ToolResult

if TYPE_CHECKING:
    from toolstep.envs.tools.openapi.client import HTTPClient
    from toolstep.envs.tools.openapi.operation import Operation
    from toolstep.envs.tools.openapi.source import OpenAPI

UNREACHED = "the server of this tool cannot be reached"


class EpisodeTools(BoundTools):
    """What `OpenAPI.make` gives; `changes` and `close` are those that `ToolFactory.make` speaks of."""

    def __init__(self, source: OpenAPI, client: HTTPClient) -> None:
        self._base_url, self._auth, self._headers = source.base_url, source.auth, source.headers
        self._client = client
        self._cookies = client.new_cookies()
        self._failure: ToolBackendError | None = None
        self.closed = False
        # Partials of a method of this object: that is how the executor knows that the calls belong together.
        self._tools = [
            replace(tool, function=functools.partial(self._call, operation), timeout=source.call_timeout)
            for tool, operation in source.offered
        ]

    def changes(self) -> None:
        """Raises ToolBackendError where the server could not be reached."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """The episode is over."""
        self.closed = True

    async def _call(self, operation: Operation, /, **arguments: Any) -> ToolResult:
        """Answer a call; awaited by the executor, on its loop."""
        try:
            request = build(self._base_url, operation, arguments, self._auth.needed(operation))
            request.headers = {**self._headers, **request.headers}
            result = await self._client.send(request, self._cookies)
        except RequestError as error:
            return error_result(CallStatus.WRONG_TYPE, str(error))
        except (OpenAPIError, ToolBackendError) as error:  # no server, or a credential that was taken away
            self._failure = ToolBackendError(str(error))
            return error_result(CallStatus.TOOL_ERROR, UNREACHED)
        return replace(result, content=self._auth.blot(result.content))
