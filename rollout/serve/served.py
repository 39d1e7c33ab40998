"""What is served: a model in its engine, a tokenizer, and a chat template if the model has one."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from toolstep.agents.base import SamplingParams
from toolstep.agents.constrain import Constrain
from toolstep.agents.text import SingleTokens
from toolstep.envs.chat import ChatTemplate
from toolstep.rollout.serve.errors import BadRequest, ContextTooLong, UnknownModel
from toolstep.rollout.serve.forced import ForcedCalls
from toolstep.rollout.serve.generation import Events, Generation
from toolstep.rollout.serve.protocol import Sampling
from toolstep.rollout.serve.worker import Worker


@dataclass
class Served:
    """One model, by the name under which clients ask for it.

    chat: None where the model has no chat template that can be used; `no_chat` then says why.
    stop_ids: where generation stops unless a request says otherwise.
    """

    name: str
    worker: Worker
    tokenizer: Any
    stop_ids: frozenset[int]
    chat: ChatTemplate | None = None
    no_chat: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        added = self.tokenizer.added_tokens_decoder
        self.tokenizer(
            ""
        )  # the first call undoes truncation and padding; later ones change nothing, so threads may share
        self.tokens = SingleTokens(self.tokenizer)
        self.forced = None if self.chat is None else ForcedCalls(self.chat, self.worker.engine.packed.vocabulary)
        self.special_ids = frozenset(int(i) for i, token in added.items() if token.special)

    @property
    def max_context(self) -> int:
        return self.worker.engine.max_context

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.name:
            raise UnknownModel(f"the model {name[:80]!r} does not exist; this server has {self.name!r}", "model")

    def generations(
        self,
        request: Sampling,
        prompts: Sequence[Sequence[int]],
        events: Events,
        *,
        max_tokens: int | None,
        top_logprobs: int,
        hidden: frozenset[int] = frozenset(),
        constrain: Constrain | None = None,
    ) -> list[Generation]:
        """Each prompt `n` times.  Choice i of a prompt has a seed that depends on the request's and i alone.

        constrain: called with a generation's index, what it may sample.
        """
        n = request.n or 1
        stop_ids = frozenset(request.stop_token_ids or ()) | (frozenset() if request.ignore_eos else self.stop_ids)
        seeds = _seeds(request.seed, n)
        out: list[Generation] = []
        for prompt in prompts:
            sampling = self._sampling(request, self._room(len(prompt), max_tokens), top_logprobs)
            for seed in seeds:
                out.append(
                    Generation(
                        len(out),
                        events,
                        prompt,
                        sampling,
                        seed,
                        stop_ids,
                        stop_strings=request.stops,
                        hidden=hidden,
                        stream=bool(request.stream),
                        allow=None if constrain is None else constrain(len(out)),
                    )
                )
        return out

    def _room(self, prompt: int, max_tokens: int | None) -> int:
        """Most tokens to sample behind a prompt of that length."""
        limit = self.max_context
        if not prompt:
            raise BadRequest("the prompt is empty: it must hold one token at least", "prompt")
        if prompt >= limit or prompt + (max_tokens or 0) > limit:
            asked = "" if max_tokens is None else f" and max_tokens is {max_tokens}"
            raise ContextTooLong(
                f"the model's context holds {limit} tokens; the prompt has {prompt}{asked}, "
                f"which leaves {max(0, limit - prompt)} for the completion"
            )
        return limit - prompt if max_tokens is None else max_tokens

    def _sampling(self, request: Sampling, max_tokens: int, top_logprobs: int) -> SamplingParams:
        given: dict[str, Any] = {
            name: value
            for name in ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
            if (value := getattr(request, name)) is not None
        }
        if request.top_k is not None:
            given["top_k"] = 0 if request.top_k == -1 else request.top_k  # two ways to say off
        vocabulary = self.worker.engine.packed.vocabulary
        if bad := [i for i in request.logit_bias or () if i >= vocabulary]:
            raise BadRequest(f"id {bad[0]} is outside the model's vocabulary of {vocabulary}", "logit_bias")
        try:
            return SamplingParams(
                **given,
                max_new_tokens=max_tokens,
                penalty_window=0,
                logit_bias=request.logit_bias or (),
                top_logprobs=top_logprobs,
            )
        except ValueError as error:
            text = str(error).removeprefix("SamplingParams.")
            raise BadRequest(text, text.split(" ", 1)[0]) from None


def _seeds(seed: int | None, n: int) -> list[int]:
    """The first is the seed itself."""
    first = int.from_bytes(os.urandom(8)) if seed is None else seed % 2**64
    words = [child.generate_state(2, np.uint64) for child in np.random.SeedSequence(first).spawn(n)]
    return [first, *(int(w[0]) << 64 | int(w[1]) for w in words[1:])]
