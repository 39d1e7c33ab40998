"""When a request is sent again: after 429, 5xx, timeouts and broken connections; never after another 4xx."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from toolstep.agents.server.errors import ServerError

_TOO_MANY = 429
_SERVER_ERRORS = 500


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and how long to wait in between.

    most: times that a request is sent again.  first: seconds before the first time; it doubles from one to the next, up
    to `longest`.  Half of each wait is jitter.
    """

    most: int = 6
    first: float = 0.5
    longest: float = 30.0

    def __post_init__(self) -> None:
        if self.most < 0 or self.first < 0 or self.longest < self.first:
            raise ValueError(f"Retries: expected most >= 0 and 0 <= first <= longest, got {self}")

    def delay(self, attempt: int, seed: int, error: ServerError) -> float:
        """Seconds to wait after attempt number `attempt` (from 0); the same for the same seed.

        Not less than what the server asked for by Retry-After.
        """
        base = min(self.longest, self.first * 2.0 ** min(attempt, 64))
        digest = hashlib.blake2b(f"{seed}/{attempt}".encode(), digest_size=8).digest()
        jitter = int.from_bytes(digest, "big") / 2**64
        return max(base * (0.5 + 0.5 * jitter), error.retry_after or 0.0)


def may_retry(status: int) -> bool:
    """Whether an answer of that status says that the same request may be answered later."""
    return status == _TOO_MANY or status >= _SERVER_ERRORS
