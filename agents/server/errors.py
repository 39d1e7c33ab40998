"""What can go wrong between an agent and its server."""

from __future__ import annotations


class ServerError(Exception):
    """A request that was not answered as it should have been.

    kind: one word for the count at the end: "unreachable", "timeout", "cut_reply", "too_long" or "bad_reply", or the
    HTTP status.
    retry: whether the same request may be answered another time.  retry_after: seconds that the server asked for.
    """

    def __init__(self, kind: str, message: str, *, retry: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.retry, self.retry_after = kind, retry, retry_after


def bad_reply(message: str) -> ServerError:
    """The server answered, but not what was asked for; asking again would not help."""
    return ServerError("bad_reply", message)
