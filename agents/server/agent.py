"""ServerAgent: a token agent whose model is at a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import Completion, SamplingParams
from toolstep.agents.engine_agent import EngineAgent
from toolstep.agents.server.address import Address, server_address
from toolstep.agents.server.connect import check_logprobs, check_tokenizer, find_dialect, make_client
from toolstep.agents.server.engine import ServerEngine, refuse
from toolstep.agents.server.logprobs import tells_sampled
from toolstep.agents.server.retry import Retries

Ids = NDArray[np.int64]
_CONTEXT = 4096  # ids, of a server that does not say


class ServerAgent(EngineAgent):
    """A `TokenAgent` and `ContinuousAgent` over a vLLM, SGLang or llama.cpp server, or `toolstep serve`.

    Token ids go out and come back, with the log-probabilities of the distribution that they were sampled from.

    Args:
        address: `URL[?dialect=...&model=...&tokenizer=...&key_env=...&concurrency=...&timeout=...&deadline=...&
            retries=...&logprobs=on|off]`, or an `Address`.
        sampling: how turns are drawn: temperature, top_k, top_p, min_p and max_new_tokens.
        seed: where `predict` takes the seeds of its episodes from; `start` is told its seed.
        stop_ids: ids after which a turn ends.  Default: those of the tokenizer's chat template.
        max_context: longest context in tokens; default the server's own limit.
        retries: when requests are sent again, with other waits than the default's.

    It asks the server what it is before anything is played.  Raises `ServerError` where there is no server that
    answers, and ValueError where it cannot be used: another tokenizer, a model that it lacks, no log-probabilities.
    """

    engine: ServerEngine

    def __init__(
        self,
        address: str | Address,
        *,
        sampling: SamplingParams | None = None,
        seed: int = 0,
        stop_ids: Collection[int | str] | None = None,
        max_context: int | None = None,
        chat_template: str | None = None,
        retries: Retries | None = None,
    ) -> None:
        where = server_address(address) if isinstance(address, str) else address
        self.sampling = sampling if sampling is not None else SamplingParams()
        refuse(self.sampling)
        self.seed, self.chat_template = seed, chat_template
        self._given_stops = stop_ids is not None
        self.client = make_client(where, retries)
        try:
            self._connect(where, stop_ids, max_context)
        except BaseException:
            self.client.close()
            raise

    def _connect(self, where: Address, stop_ids: Collection[int | str] | None, max_context: int | None) -> None:
        from toolstep.envs.chat import ChatTemplate, TokenizerNotFound, load_tokenizer

        options = where.options
        self.dialect = find_dialect(self.client, options.get("dialect"), where.model)
        served = self.dialect.served
        name = options.get("tokenizer") or served.tokenizer
        if not name:
            raise ValueError(f"{where.url} does not name its tokenizer: add ?tokenizer=FOLDER_OR_ID")
        try:
            tokenizer = load_tokenizer(name)
        except TokenizerNotFound as error:
            raise ValueError(f"{error}; name the tokenizer of the server's model by ?tokenizer=FOLDER_OR_ID") from None
        self.tokenizer = str(name)
        template = ChatTemplate(tokenizer, chat_template=self.chat_template, stop_tokens=stop_ids)
        self.stop_ids = frozenset(template.stop_ids)
        self._same_tokenizer = check_tokenizer(self.client, self.dialect, tokenizer)
        mode = check_logprobs(self.client, self.dialect, tokenizer) if options.get("logprobs", True) else None
        self.client.count_anew()
        limit = served.max_context or _CONTEXT
        self.engine = ServerEngine(self.client, self.dialect, min(limit, max_context or limit), mode)

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """The env shows and takes ids of the server's tokenizer, and ends an episode that fills its context."""
        out: dict[str, Any] = {"view": "tokens", "max_context": self.max_context, "tokenizer": self.tokenizer}
        if self.chat_template is not None:
            out["chat_template"] = self.chat_template
        if self._given_stops:
            out["stop_tokens"] = sorted(self.stop_ids)
        return out

    @property
    def untrainable(self) -> str | None:
        """Why its turns cannot be trained on, and what to do; None where they can."""
        mode = self.engine.mode
        if mode is None:
            return "its log-probabilities were not asked for (?logprobs=off)"
        if tells_sampled(self.dialect, mode, self.sampling):
            return None
        return (
            f"{self.client.url} tells {mode} log-probabilities, which are not those of the distribution that is "
            f"sampled from: {self.dialect.exact}; or sample at temperature 1 without top_k, top_p and min_p"
        )

    def describe(self) -> dict[str, Any]:
        """What was found out about the server, as JSON."""
        return {
            "url": self.client.url,
            "dialect": self.dialect.name,
            "model": self.dialect.served.model,
            "tokenizer": self.tokenizer,
            "tokenizer_checked": self._same_tokenizer,
            "max_context": self.max_context,
            "logprobs_mode": self.engine.mode,
            "trainable": self.untrainable is None,
        }

    def counts(self) -> dict[str, Any]:
        """Requests so far, and how many were sent again or failed for good, by kind; JSON-able."""
        return self.client.counts()

    def act(
        self,
        rows: Sequence[int],
        observations: Sequence[Ids],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Append observation ids to each row's context and sample one turn for each; results in the order of `rows`.

        A turn that failed for good is "abort", with the reason in `error`; the other rows have theirs.
        """
        given = self.sampling if sampling is None else sampling
        params = [given] * len(rows) if isinstance(given, SamplingParams) else list(given)
        if not len(rows) == len(observations) == len(params) or len(set(rows)) != len(rows):
            raise ValueError(
                f"act: expected distinct rows and one observation for each, got rows {list(rows)} and "
                f"{len(observations)} observations"
            )
        tickets: dict[int, int] = {}
        out: dict[int, Completion] = {}
        try:
            for row, ids, one in zip(rows, observations, params, strict=True):
                tickets[self.engine.submit(row, ids, one, self.stop_ids)] = row
            while len(out) < len(rows):
                out |= {tickets[f.ticket]: f.completion for f in self.engine.step()}
        except BaseException:
            for ticket in tickets:
                self.engine.cancel(ticket)
            raise
        return [out[row] for row in rows]

    def submit(self, row: int, observation: Ids) -> int:
        """Append observation ids to the row's context and send its turn; returns its ticket."""
        return self.engine.submit(row, observation, self.sampling, self.stop_ids)

    def update_weights(self) -> int:
        """The server has been given other weights (by its own ways): the new version."""
        return self.engine.update_weights()

    def close(self) -> None:
        """Drop all connections, and end the thread that holds them."""
        self.client.close()
