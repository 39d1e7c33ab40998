"""vLLM's `/v1/completions`, which `toolstep serve` speaks as well.

Fields: vllm/entrypoints/openai/completion/protocol.py.  `return_token_ids` is there since vLLM 0.10.2; before that
`--return-tokens-as-token-ids` writes ids into the log-probabilities' tokens.
"""

from __future__ import annotations

from typing import Any

from toolstep.agents.server.dialect import (
    JSON,
    Ask,
    Dialect,
    Get,
    Reply,
    Request,
    Served,
    cached_in,
    ended,
    ids_in,
    length_in,
    logprobs_in,
    number_in,
    part,
    shown,
    top_k,
    truncation,
)
from toolstep.agents.server.errors import bad_reply

_PATH = "/v1/completions"
_AS_ID = "token_id:"
_ENDS = {"stop": True, "length": False}


class VLLM(Dialect):
    """ids in `prompt`, ids out by `return_token_ids`; sessions by the header that vLLM's router hashes."""

    name = "vllm"
    needs = (
        "vLLM >= 0.10.2 sends token_ids for return_token_ids; an older one must be started with "
        "--return-tokens-as-token-ids"
    )
    exact = "start vLLM with --logprobs-mode processed_logprobs"

    @classmethod
    def look(cls, get: Get, card: JSON) -> Served:
        root = card.get("root") or card.get("id")
        return Served(str(card["id"]), length_in(card.get("max_model_len")), str(root) if root else None)

    def request(self, ask: Ask) -> Request:
        body: dict[str, Any] = {
            "model": self.served.model,
            "prompt": list(ask.context),
            "max_tokens": ask.limit,
            **truncation(ask.sampling),
            "top_k": top_k(ask.sampling, 0),
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": ask.seed,
            # The model's own end of text must not end a turn where it is none of the stop ids.
            "ignore_eos": True,
            "stop_token_ids": sorted(ask.stop_ids),
            "skip_special_tokens": False,
            "return_token_ids": True,
            "n": 1,
            "stream": False,
        }
        if ask.logprobs:
            body["logprobs"] = 0  # of the sampled ids, without alternatives
        if ask.weights:
            body["cache_salt"] = f"weights-{ask.weights}"
        return Request(_PATH, body, {"x-session-id": ask.session} if ask.session else {})

    def read(self, ask: Ask, reply: Any) -> Reply:
        choice = part(reply, "choices", 0)
        if choice is None:
            raise bad_reply("the reply has no choices[0]")
        tokens = part(choice, "logprobs", "tokens")
        if part(choice, "token_ids") is not None:
            ids = ids_in(choice["token_ids"], "choices[0].token_ids")
        elif isinstance(tokens, list) and all(isinstance(t, str) and t.startswith(_AS_ID) for t in tokens):
            ids = [_id(token) for token in tokens]
        else:
            raise bad_reply(f"the reply has no token_ids: {self.needs}")
        prompt = part(choice, "prompt_token_ids")
        if prompt is not None and prompt != list(ask.context):
            raise bad_reply("prompt_token_ids of the reply are not the ids that were sent: is the prompt truncated?")
        values = part(choice, "logprobs", "token_logprobs")
        logprobs = None if values is None else logprobs_in(values, "choices[0].logprobs.token_logprobs")
        stopped = ended(part(choice, "finish_reason"), _ENDS, "finish_reason")
        cached = part(reply, "usage", "prompt_tokens_details", "cached_tokens")
        return Reply(ids, logprobs, stopped, cached_in(cached, ask))

    def tokenize(self, text: str) -> Request:
        """By a completion of the text; vLLM's own /tokenize is no part of the protocol that others share."""
        body = {"model": self.served.model, "prompt": text, "max_tokens": 1, "return_token_ids": True}
        return Request(_PATH, {**body, "temperature": 0.0})

    def tokenized(self, reply: Any) -> list[int]:
        return ids_in(part(reply, "choices", 0, "prompt_token_ids"), "choices[0].prompt_token_ids")


def _id(token: str) -> int:
    text = token.removeprefix(_AS_ID)
    number = number_in(text)
    if number is None:
        raise bad_reply(f"choices[0].logprobs.tokens: expected token_id:NUMBER, found {shown(token)}")
    return number
