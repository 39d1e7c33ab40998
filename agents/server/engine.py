"""ServerEngine: the rollout engine's interface over a server, so that `collect` plays it as it plays a model here."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import Completion, Finished, FinishReason, SamplingParams
from toolstep.agents.server.client import Client
from toolstep.agents.server.dialect import Ask, Dialect, LogprobsMode, Reply
from toolstep.agents.server.errors import ServerError, bad_reply
from toolstep.agents.server.logprobs import filled, tells_model, tells_sampled
from toolstep.agents.server.seeds import turn_seed

Ids = NDArray[np.integer] | Sequence[int]
_WAIT = 0.02  # seconds that a step waits for a turn: about as long as a forward of a model takes
_NONE = np.zeros(0, np.float32)


@dataclass
class ServerStats:
    """Counters since the engine was made.

    fed: ids of contexts that the server computed.  shared: those that it had computed before, as far as it says.
    sampled: ids sampled.
    """

    fed: int = 0
    shared: int = 0
    sampled: int = 0


@dataclass(eq=False)
class _Row:
    seed: int
    ids: list[int] = field(default_factory=list)
    turns: int = 0  # of the episode
    ticket: int | None = None  # of the turn under way


@dataclass(frozen=True, slots=True)
class _Turn:
    row: int
    before: int  # ids in the row's context in front of what was submitted
    ask: Ask
    future: Future[Reply]


class ServerEngine:
    """A `TokenEngine` (agents/engine/interface.py) whose model is at a server.  Used from one thread.

    The contexts are here; each turn is one request with the whole of it, and the server's prefix cache, to which a
    row's turns are led by a session header or a slot, computes what is new only.

    max_context: ids.  mode: of which distribution the server tells log-probs; None: they are not asked for.

    A turn whose request fails for good comes out of `step` as "abort", with the reason in `Completion.error`.
    Log-probs that the server does not tell are 0, and where those of the sampled distribution are missing the weight
    version is -1: nothing may be trained on them.
    """

    def __init__(self, client: Client, dialect: Dialect, max_context: int, mode: LogprobsMode | None) -> None:
        self.client, self.dialect, self.max_context, self.mode = client, dialect, max_context, mode
        self.weight_version = 0
        self.stats = ServerStats()
        self._session = uuid.uuid4().hex[:12]
        self._rows: dict[int, _Row] = {}
        self._turns: dict[int, _Turn] = {}
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._done: list[Finished] = []
        self._next = 0

    @property
    def busy(self) -> bool:
        """Whether a turn is under way, or finished and not collected by `step` yet."""
        return bool(self._turns or self._done)

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row` with an empty context; `seed` decides the seeds of its requests."""
        self.release(row)
        self._rows[row] = _Row(seed)

    def started(self, row: int) -> bool:
        """Whether `row` is in an episode."""
        return row in self._rows

    def context(self, row: int) -> NDArray[np.int32]:
        """The ids of the row's context, i32[T] (a copy)."""
        return np.array(self._row(row).ids, np.int32)

    def new_segment(self, row: int) -> None:
        """Empty the row's context within its episode."""
        state = self._row(row)
        if state.ticket is not None:
            self.cancel(state.ticket)
        state.ids = []

    def release(self, row: int) -> None:
        """Forget `row`; a turn of it that is under way is cancelled.  Unknown rows are fine."""
        state = self._rows.get(row)
        if state is not None:
            if state.ticket is not None:
                self.cancel(state.ticket)
            del self._rows[row]

    def fork(self, row: int, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of `rows` with the context of `row`; the server finds what they share."""
        ids = list(self._row(row).ids)
        for other, seed in zip(rows, seeds, strict=True):
            self.start(other, seed)
            self._rows[other].ids = list(ids)

    def submit(self, row: int, new_ids: Ids, sampling: SamplingParams, stop_ids: Collection[int] = ()) -> int:
        """Append ids to the row's context and send its turn; returns the ticket, never blocks.

        Raises ValueError for parameters that servers understand in ways of their own.
        """
        refuse(sampling)
        state = self._row(row)
        if state.ticket is not None:
            raise ValueError(f"row {row} has a turn under way (ticket {state.ticket}): wait for it, or cancel it")
        array = np.asarray(new_ids)
        if array.ndim != 1 or (array.size and (not np.issubdtype(array.dtype, np.integer) or array.min() < 0)):
            raise ValueError(f"row {row}: expected a 1-D array of token ids, got {array.dtype}{list(array.shape)}")
        before, ticket = len(state.ids), self._next
        state.ids += array.tolist()
        self._next += 1
        limit = max(0, min(sampling.max_new_tokens, self.max_context - len(state.ids)))
        if not limit or not state.ids:
            self._done.append(Finished(ticket, row, self._empty("length" if state.ids else "abort")))
            return ticket
        ask = Ask(
            tuple(state.ids),
            sampling,
            limit,
            frozenset(stop_ids),
            turn_seed(state.seed, state.turns),
            f"{self._session}-{row}",
            row,
            self.weight_version,
            self.mode is not None,
        )
        future = self.client.run(self.dialect.sample(ask, self.client.send))
        state.ticket, state.turns = ticket, state.turns + 1
        self._turns[ticket] = _Turn(row, before, ask, future)
        future.add_done_callback(lambda _: self._ended.put(ticket))
        return ticket

    def step(self) -> list[Finished]:
        """The turns that are finished; waits a moment for one where none is."""
        done, self._done = self._done, []
        wait = 0.0 if done else _WAIT
        while self._turns:
            try:
                ticket = self._ended.get(timeout=wait)
            except queue.Empty:
                break
            turn = self._turns.pop(ticket, None)
            if turn is not None:  # not cancelled
                self._rows[turn.row].ticket = None
                done.append(Finished(ticket, turn.row, self._completion(turn)))
                wait = 0.0  # whatever else is finished now
        return done

    def cancel(self, ticket: int) -> None:
        """Drop a turn's request; the row's context is what it was before `submit`.  Unknown tickets are fine."""
        turn = self._turns.pop(ticket, None)
        if turn is not None:
            state = self._rows[turn.row]
            state.ticket, state.turns = None, state.turns - 1
            del state.ids[turn.before :]
            turn.future.cancel()

    def update_weights(self, state: Mapping[str, Any] | None = None) -> int:
        """The server has been given other weights: the version goes up, and what older ones computed is not used again.

        Servers take weights by ways of their own (a checkpoint on a disk, a broadcast), so `state` must be None.
        """
        if state is not None:
            raise ValueError(
                "a server takes its weights by its own ways (SGLang: /update_weights_from_disk; vLLM: its RLHF "
                "endpoints; llama.cpp: a restart): give them to it, then call update_weights() without any"
            )
        self.weight_version += 1
        return self.weight_version

    def _row(self, row: int) -> _Row:
        state = self._rows.get(row)
        if state is None:
            raise ValueError(f"row {row} has no episode: call start({row}, seed) first")
        return state

    def _completion(self, turn: _Turn) -> Completion:
        try:
            reply = turn.future.result()
            completion = self._read(turn.ask, reply)
        except (ServerError, CancelledError) as error:
            if isinstance(error, ServerError) and error.kind == "bad_reply":
                self.client.failed[error.kind] += 1
            del self._rows[turn.row].ids[turn.before :]
            return self._empty("abort", self.client.plain(str(error)) or "the client was closed")
        self._rows[turn.row].ids += completion.token_ids.tolist()
        self.stats.sampled += len(completion.token_ids)
        self.stats.shared += reply.cached
        self.stats.fed += len(turn.ask.context) - reply.cached
        return completion

    def _read(self, ask: Ask, reply: Reply) -> Completion:
        ids, logprobs = reply.token_ids, reply.logprobs
        if ask.logprobs and (logprobs is None or len(logprobs) != len(ids)):
            told = 0 if logprobs is None else len(logprobs)
            raise bad_reply(f"{len(ids)} ids came with {told} log-probabilities: {self.dialect.needs}")
        if len(ids) > ask.limit:
            raise bad_reply(f"{len(ids)} ids came, where {ask.limit} were asked for")
        end = next((n for n, i in enumerate(ids, 1) if i in ask.stop_ids), None)
        if end is not None:
            ids, logprobs = ids[:end], None if logprobs is None else logprobs[:end]
        elif not reply.stopped and len(ids) < ask.limit:
            raise bad_reply(f"the turn was cut after {len(ids)} ids, where {ask.limit} were asked for")
        if reply.weights is not None:
            self.weight_version = max(self.weight_version, reply.weights)
        version = self.weight_version if reply.weights is None else reply.weights
        mode = self.mode
        sampled = mode is not None and tells_sampled(self.dialect, mode, ask.sampling)
        model = mode is not None and tells_model(self.dialect, mode, ask.sampling)
        # A server that stops at an id of its own has cut the turn, as far as the env is concerned.
        finish: FinishReason = "length" if end is None else "stop"
        return Completion(
            np.array(ids, np.int32),
            filled(logprobs, sampled, len(ids)),
            filled(logprobs, model, len(ids)),
            finish,
            version if sampled else -1,
        )

    def _empty(self, finish: FinishReason, error: str = "") -> Completion:
        return Completion(np.zeros(0, np.int32), _NONE, _NONE, finish, self.weight_version, error=error)


def refuse(sampling: SamplingParams) -> None:
    """Raises ValueError for what a server would do differently from `SamplingParams`."""
    if sampling.penalised:
        raise ValueError(
            "a server counts penalties over one turn, or over the prompt too; SamplingParams counts them over the "
            "sampled ids of the episode: leave them out"
        )
    if sampling.top_logprobs or sampling.logit_bias:
        name = "top_logprobs" if sampling.top_logprobs else "logit_bias"
        raise ValueError(f"SamplingParams.{name} is not there for servers: leave it out")
