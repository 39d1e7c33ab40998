"""What goes wrong with a request, in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from typing import Any


class APIError(Exception):
    """An answer other than 200.  param: the field that is to blame."""

    status = 400
    kind = "invalid_request_error"
    code: str | None = None
    retry_after: int | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class BadRequest(APIError):
    """The request itself is wrong."""


class Unsupported(APIError):
    """The request asks for what this server does not do."""

    code = "unsupported_parameter"


class ContextTooLong(APIError):
    """Prompt and answer do not fit into the model's context."""

    code = "context_length_exceeded"


class UnknownModel(APIError):
    """Another model than the one that is served."""

    status = 404
    code = "model_not_found"


class Overloaded(APIError):
    """More requests wait than the server lets wait."""

    status = 429
    kind = "rate_limit_error"
    code = "overloaded"
    retry_after = 1  # seconds


class EngineFailed(APIError):
    """The engine could not compute this request."""

    status = 500
    kind = "server_error"
    code = "engine_failure"


class ShuttingDown(APIError):
    """The server ends before the request does."""

    status = 503
    kind = "server_error"
    code = "shutting_down"
