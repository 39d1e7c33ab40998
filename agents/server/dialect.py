"""What the client asks of a server and reads from it; `vllm.py`, `sglang.py` and `llamacpp.py` put it into words."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from toolstep.agents.base import SamplingParams
from toolstep.agents.server.errors import bad_reply

JSON = Mapping[str, Any]
Get = Callable[[str], Any]
Send = Callable[..., Awaitable[Any]]  # `Client.send`

# Whose log-probabilities a server tells: the plain model's; after temperature; after truncation as well.
LogprobsMode = Literal["raw", "tempered", "processed"]
_DIGITS = 10  # of a number below 2**31


@dataclass(frozen=True, slots=True)
class Ask:
    """One turn to sample.

    context: ids.  limit: most ids to sample.  stop_ids: the turn ends after one of these, which is part of it.
    seed: in [0, 2**31).  session: the same for all turns of a row, for routers that keep it at one server.  slot: the
    row's number.  weights: version of the server's weights, as far as the client knows: what was computed by older ones
    must not be used again.  logprobs: whether they are asked for.
    """

    context: Sequence[int]
    sampling: SamplingParams
    limit: int
    stop_ids: Collection[int] = ()
    seed: int = 0
    session: str = ""
    slot: int = 0
    weights: int = 0
    logprobs: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent for it."""

    path: str
    body: JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: sampled ids, their log-probs (None: not told), and whether the server says that it stopped.

    cached: ids of the context that the server did not compute anew.  weights: the version that the server tells.
    """

    token_ids: list[int]
    logprobs: list[float] | None
    stopped: bool
    cached: int = 0
    weights: int | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says of itself.  tokenizer: a name for `load_tokenizer`, as far as it says.  slots: contexts that
    it keeps by number; None where that is no matter of numbers."""

    model: str
    max_context: int | None
    tokenizer: str | None = None
    slots: int | None = None


class Dialect(ABC):
    """One server's protocol.  All sampling parameters are always sent: servers take defaults of their own from the
    model's generation config, and would sample from another distribution than the one that was asked for.

    needs: what has to be set where ids or log-probabilities do not come.  exact: what has to be set where
    log-probabilities are not those of the distribution that is sampled from.
    """

    name: ClassVar[str]
    needs: ClassVar[str]
    exact: ClassVar[str]
    measured: ClassVar[bool] = True  # whether the server has a `LogprobsMode` of its own, rather than each request

    def __init__(self, served: Served) -> None:
        self.served = served

    @classmethod
    @abstractmethod
    def look(cls, get: Get, card: JSON) -> Served:
        """Ask the server for what it is; card: its entry in /v1/models.  Raises ServerError."""

    @abstractmethod
    def request(self, ask: Ask) -> Request:
        """What is sent for a turn."""

    @abstractmethod
    def read(self, ask: Ask, reply: Any) -> Reply:
        """What came back.  Raises ServerError for a reply that is not of the protocol's form."""

    async def sample(self, ask: Ask, send: Send) -> Reply:
        """Ask for a turn and read it.  Raises ServerError."""
        request = self.request(ask)
        return self.read(ask, await send(request.path, request.body, seed=ask.seed, headers=request.headers))

    @abstractmethod
    def tokenize(self, text: str) -> Request:
        """What is sent to see how the server turns text into ids."""

    @abstractmethod
    def tokenized(self, reply: Any) -> list[int]:
        """The ids that came back."""


def part(reply: Any, *path: str | int) -> Any:
    """The value at `path`; None where there is no such."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(reply, list) or not -len(reply) <= step < len(reply):
                return None
        elif not isinstance(reply, dict) or step not in reply:
            return None
        reply = reply[step]
    return reply


def ids_in(value: Any, what: str) -> list[int]:
    """`value` as token ids.  Raises ServerError."""
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in value):
        raise bad_reply(f"{what}: expected a list of token ids, found {shown(value)}")
    if any(i >= 2**31 for i in value):
        raise bad_reply(f"{what}: an id of {max(value)} is no token id")
    return value


def list_in(value: Any, what: str) -> list[Any]:
    """`value` as a list.  Raises ServerError."""
    if not isinstance(value, list):
        raise bad_reply(f"{what}: expected a list, found {shown(value)}")
    return value


def logprobs_in(values: Any, what: str) -> list[float]:
    """`values` as log-probabilities.  Raises ServerError."""
    out = []
    for i, value in enumerate(list_in(values, what)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value > 1e-3:
            raise bad_reply(f"{what}[{i}]: expected a log-probability, found {shown(value)}")
        out.append(min(0.0, float(value)))
    return out


def number_in(value: Any) -> int | None:
    """A count or a version that a server tells; text such as "default" says nothing."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _DIGITS:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def length_in(value: Any) -> int | None:
    """The longest context that a server tells of."""
    return number_in(value) or None


def cached_in(value: Any, ask: Ask) -> int:
    """How many ids of the context a server says that it had computed before."""
    return min(number_in(value) or 0, len(ask.context))


def ended(finish: Any, ends: Mapping[str, bool], what: str, said: Any = None) -> bool:
    """Whether the server stopped by itself, where `finish` is in `ends`.  Raises ServerError where it is not."""
    stopped = ends.get(finish) if isinstance(finish, str) else None
    if stopped is None:
        words = f" ({shown(said)})" if said else ""
        raise bad_reply(f"the server gave the turn up: {what} is {shown(finish)}{words}")
    return stopped


def truncation(sampling: SamplingParams) -> dict[str, float]:
    """temperature, top_p and min_p as they are sent; a greedy turn needs no truncation."""
    if sampling.temperature == 0:
        return {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0}
    return {
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
        "min_p": float(sampling.min_p),
    }


def top_k(sampling: SamplingParams, off: int) -> int:
    """top_k as it is sent, `off` where it is off."""
    return int(sampling.top_k) if sampling.top_k and sampling.temperature else off


def shown(value: Any) -> str:
    """What a server sent, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
