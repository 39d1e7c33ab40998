"""llama.cpp's own `/completion` (tools/server/README.md).

It ends a turn at the model's end-of-generation tokens and knows no other stop ids, so it may sample behind one of ours;
what is behind is cut off.  Its weights change by a restart, or by adapters, whose caches it keeps apart itself.
Log-probabilities are the plain model's, or (`post_sampling_probs`) those of the distribution
that was sampled from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from toolstep.agents.base import SamplingParams
from toolstep.agents.server.dialect import (
    JSON,
    Ask,
    Dialect,
    Get,
    Reply,
    Request,
    Send,
    Served,
    cached_in,
    ended,
    ids_in,
    length_in,
    list_in,
    logprobs_in,
    number_in,
    part,
    shown,
)
from toolstep.agents.server.errors import bad_reply

_ENDS = {"eos": True, "word": True, "limit": False}
_LEAST = 1e-38  # of a probability in fp32
_ALL = 1 << 24  # more than any vocabulary has


class LlamaCpp(Dialect):
    """Rows are pinned to slots by `id_slot`, as far as there are slots; `cache_prompt` computes what is new only."""

    name = "llamacpp"
    needs = "return_tokens and n_probs were asked for: llama.cpp has them since build 4300 (December 2024)"
    exact = ""
    measured = False

    @classmethod
    def look(cls, get: Get, card: JSON) -> Served:
        props = get("/props")
        length = part(props, "default_generation_settings", "n_ctx") or part(card, "meta", "n_ctx")
        path = part(props, "model_path")
        return Served(
            str(card["id"]),
            length_in(length),
            str(path) if path else None,
            number_in(part(props, "total_slots")) or 1,
        )

    def request(self, ask: Ask) -> Request:
        s = ask.sampling
        pinned = ask.slot < (self.served.slots or 0)
        body: dict[str, Any] = {
            "model": self.served.model,
            "prompt": list(ask.context),
            "n_predict": ask.limit,
            "temperature": float(s.temperature),
            "samplers": _samplers(s),
            "top_k": int(s.top_k),
            "top_p": float(s.top_p),
            "min_p": float(s.min_p),
            "seed": ask.seed,
            "return_tokens": True,
            "cache_prompt": True,
            "id_slot": ask.slot if pinned else -1,
            "stream": False,
        }
        if ask.logprobs:
            body |= {"n_probs": 1, "post_sampling_probs": _after_sampling(s)}
        return Request("/completion", body)

    async def sample(self, ask: Ask, send: Send) -> Reply:
        request = self.request(ask)
        raw = await send(request.path, request.body, seed=ask.seed, headers=request.headers)
        reply = self.read(ask, raw)
        if not ask.logprobs or reply.logprobs is None:
            return reply
        values = list(reply.logprobs)
        for at, value in enumerate(values):
            if math.isnan(value):
                values[at] = await self._untold(ask, reply.token_ids[: at + 1], send)
        return replace(reply, logprobs=values)

    def read(self, ask: Ask, reply: Any) -> Reply:
        """Log-probs that the server leaves out are NaN."""
        ids = ids_in(part(reply, "tokens"), f"tokens ({self.needs})")
        stopped = ended(part(reply, "stop_type"), _ENDS, "stop_type")
        # It is not there where it would be empty.
        probs = list_in(part(reply, "completion_probabilities") or [], "completion_probabilities")
        logprobs = self._told(ask, ids, probs) if ask.logprobs else None
        if len(ids) > ask.limit:  # it finishes a character whose bytes are several tokens
            ids, stopped = ids[: ask.limit], False
            logprobs = None if logprobs is None else logprobs[: ask.limit]
        return Reply(ids, logprobs, stopped, cached_in(part(reply, "timings", "cache_n"), ask))

    def _told(self, ask: Ask, ids: list[int], probs: Any) -> list[float]:
        """A log-prob for each id.  llama.cpp tells none of ids that end inside of a character."""
        key = "prob" if _after_sampling(ask.sampling) else "logprob"
        values = [_log(part(p, key)) if key == "prob" else part(p, key) for p in probs]
        told = iter(zip([part(p, "id") for p in probs], logprobs_in(values, "completion_probabilities"), strict=True))
        out, (token, value) = [], next(told, (None, math.nan))
        for i in ids:
            if i == token:
                out.append(value)
                token, value = next(told, (None, math.nan))
            else:
                out.append(math.nan)
        if token is not None:
            raise bad_reply(f"completion_probabilities holds {shown(token)}, which is no token in that place")
        return out

    async def _untold(self, ask: Ask, ids: list[int], send: Send) -> float:
        """The log-prob of the last of `ids`, out of the plain model's whole distribution in its place.

        An id that ends a turn is forced to be sampled there: it is told, and what is told beside it is not biased.
        """
        first = replace(ask, context=[*ask.context, *ids[:-1]], limit=1)
        body = {**self.request(first).body, "n_probs": _ALL, "post_sampling_probs": False}
        body |= {"temperature": 0.0, "samplers": ["temperature"], "logit_bias": [[i, 1e4] for i in ask.stop_ids]}
        reply = await send("/completion", body, seed=ask.seed)
        best = list_in(part(reply, "completion_probabilities", 0, "top_logprobs") or [], "top_logprobs")
        told = ids_in([part(t, "id") for t in best], "top_logprobs")
        among = dict(zip(told, logprobs_in([part(t, "logprob") for t in best], "top_logprobs"), strict=True))
        if ids[-1] not in among:
            raise bad_reply(f"completion_probabilities leaves the id {ids[-1]} out: {self.needs}")
        return sampled_from(sorted(among.values(), reverse=True), among[ids[-1]], ask.sampling)

    def tokenize(self, text: str) -> Request:
        return Request("/tokenize", {"content": text, "add_special": True, "parse_special": True})

    def tokenized(self, reply: Any) -> list[int]:
        return ids_in(part(reply, "tokens"), "tokens")


def _samplers(s: SamplingParams) -> list[str]:
    """In the order of `SamplingParams`; whatever is not named is not used."""
    if s.temperature == 0:
        return ["temperature"]
    given = {"temperature": True, "top_k": s.top_k > 0, "top_p": s.top_p < 1, "min_p": s.min_p > 0}
    return [name for name, used in given.items() if used]


def _after_sampling(s: SamplingParams) -> bool:
    """Whether the distribution that is sampled from is another than the plain model's; greedy turns are told at T=1."""
    return bool(s.temperature and (s.temperature != 1 or s.top_k or s.top_p < 1 or s.min_p))


def sampled_from(ranked: Sequence[float], logprob: float, s: SamplingParams) -> float:
    """Log-prob, under the distribution that `s` makes of the plain model's, of an id whose plain one is `logprob`.

    ranked: those of the whole vocabulary, the best first.  Raises ServerError where `s` would not have drawn it.
    """
    if not _after_sampling(s):
        return logprob
    weights = np.exp((np.asarray(ranked) - ranked[0]) / s.temperature)
    kept = weights[: s.top_k] if s.top_k else weights
    if s.top_p < 1:
        shares = np.cumsum(kept) / kept.sum()
        kept = kept[: int(np.searchsorted(shares, s.top_p)) + 1]
    kept = kept[kept >= s.min_p * kept[0]]
    weight = math.exp((logprob - ranked[0]) / s.temperature)
    if weight < kept[-1] * (1 - 1e-5):
        raise bad_reply("a sampled id is none that the parameters leave")
    return min(0.0, math.log(weight / float(kept.sum())))


def _log(probability: Any) -> Any:
    if isinstance(probability, int | float) and 0 <= probability <= 1 + 1e-3:
        return math.log(max(probability, _LEAST))
    return probability
