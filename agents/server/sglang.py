"""SGLang's native `/generate`.

Fields: python/sglang/srt/managers/io_struct.py (GenerateReqInput) and sampling/sampling_params.py.  `sampling_seed` has
an effect where the server runs with --enable-deterministic-inference.
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
    list_in,
    logprobs_in,
    number_in,
    part,
    top_k,
    truncation,
)
from toolstep.agents.server.errors import ServerError, bad_reply

_ENDS = {"stop": True, "length": False}


class SGLang(Dialect):
    """`input_ids` in, `output_ids` and `output_token_logprobs` out; sessions by the header of SGLang's gateway."""

    name = "sglang"
    needs = "return_logprob was asked for: check that no gateway in front of the server drops it from /generate"
    exact = "sample without top_k, top_p and min_p, or at temperature 1"

    @classmethod
    def look(cls, get: Get, card: JSON) -> Served:
        info: Any = None
        for path in ("/model_info", "/get_model_info"):  # the second until 2025
            try:
                info = get(path)
                break
            except ServerError as error:
                if error.kind != "404":
                    raise
        tokenizer = part(info, "tokenizer_path") or part(info, "model_path") or card.get("root")
        return Served(str(card["id"]), length_in(card.get("max_model_len")), tokenizer and str(tokenizer))

    def request(self, ask: Ask) -> Request:
        sampling: dict[str, Any] = {
            "max_new_tokens": ask.limit,
            **truncation(ask.sampling),
            "top_k": top_k(ask.sampling, -1),
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "sampling_seed": ask.seed,
            "ignore_eos": True,
            "stop_token_ids": sorted(ask.stop_ids),
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        body: dict[str, Any] = {
            "input_ids": list(ask.context),
            "sampling_params": sampling,
            "return_logprob": ask.logprobs,
            "stream": False,
        }
        if ask.weights:
            body["extra_key"] = f"weights-{ask.weights}"
        return Request("/generate", body, {"x-smg-routing-key": ask.session} if ask.session else {})

    def read(self, ask: Ask, reply: Any) -> Reply:
        if isinstance(reply, list) and len(reply) == 1:
            reply = reply[0]
        info = part(reply, "meta_info")
        said = part(info, "finish_reason", "message")
        stopped = ended(part(info, "finish_reason", "type"), _ENDS, "finish_reason", said)
        pairs = part(info, "output_token_logprobs")
        ids = None if part(reply, "output_ids") is None else ids_in(reply["output_ids"], "output_ids")
        logprobs = None
        if pairs is not None:
            pairs = list_in(pairs, "meta_info.output_token_logprobs")
            if not all(isinstance(pair, list) and len(pair) >= 2 for pair in pairs):
                raise bad_reply("meta_info.output_token_logprobs: expected [log-prob, id, ...] for each id")
            told = ids_in([pair[1] for pair in pairs], "meta_info.output_token_logprobs")
            if ids is not None and told != ids:
                raise bad_reply("output_ids and meta_info.output_token_logprobs hold different ids")
            ids = told
            logprobs = logprobs_in([pair[0] for pair in pairs], "meta_info.output_token_logprobs")
        if ids is None:
            raise bad_reply(f"the reply has neither output_ids nor meta_info.output_token_logprobs: {self.needs}")
        weights = number_in(part(info, "weight_version"))
        return Reply(ids, logprobs, stopped, cached_in(part(info, "cached_tokens"), ask), weights)

    def tokenize(self, text: str) -> Request:
        return Request("/tokenize", {"prompt": text, "model": self.served.model, "add_special_tokens": True})

    def tokenized(self, reply: Any) -> list[int]:
        return ids_in(part(reply, "tokens"), "tokens")
