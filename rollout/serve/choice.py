"""One choice of an answer: chunks of ids become text, log-probabilities and a finish reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolstep.agents.text import Detokenizer, SingleTokens, StopStrings
from toolstep.envs.chat.formats.base import Finish
from toolstep.rollout.serve.generation import Chunk, Generation


@dataclass(slots=True)
class Logprob:
    """A token with its log-probability under the distribution that it was drawn from."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class Piece:
    """What a chunk adds.  finish, stop_reason (the stop string or id that was hit): at the end only."""

    text: str
    token_ids: list[int]
    logprobs: list[Logprob]
    finish: Finish | None = None
    stop_reason: str | int | None = None


class ChoiceReader:
    """Reads the chunks of one generation.

    The text ends in front of a stop token or a stop string; ids and log-probabilities are all that were sampled.
    """

    def __init__(self, generation: Generation, tokenizer: Any, *, keep_stop: bool = False):
        self.generation, self._keep = generation, keep_stop
        self._text = Detokenizer(tokenizer, generation.hidden)
        self._stops = StopStrings(generation.stop_strings, keep=keep_stop)
        self.count = 0

    def read(self, chunk: Chunk) -> Piece:
        ids = chunk.token_ids
        self.count += len(ids)
        last = chunk.finish is not None
        stop_id = ids[-1] if chunk.finish == "stop" and ids and ids[-1] in self.generation.stop_ids else None
        shown = ids[:-1] if stop_id is not None and not self._keep else ids
        text = self._stops.push(self._text.push(shown, last=last), last=last)
        tops = chunk.top or [[] for _ in ids]
        logprobs = [
            Logprob(i, p, [(token, value) for token, value in top if math.isfinite(value)])
            for i, p, top in zip(ids, chunk.logprobs, tops, strict=True)
        ]
        piece = Piece(text, ids, logprobs)
        if last:
            piece.finish = "length" if chunk.finish == "length" and self._stops.hit is None else "stop"
            piece.stop_reason = stop_id if self._stops.hit is None else self._stops.hit
        return piece


def chat_logprobs(entries: Sequence[Logprob], tokens: SingleTokens) -> dict[str, Any]:
    """`logprobs` of a chat choice."""

    def shown(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token": tokens.text(token_id), "logprob": logprob, "bytes": list(tokens.bytes(token_id))}

    content = [
        {**shown(e.token_id, e.logprob), "top_logprobs": [shown(token, p) for token, p in e.top]} for e in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    entries: Sequence[Logprob], tokens: SingleTokens, offset: int, *, top: bool
) -> tuple[dict[str, Any], int]:
    """`logprobs` of a plain completion, and where the text of the next token begins."""
    offsets = []
    alternatives = []
    for e in entries:
        offsets.append(offset)
        offset += len(tokens.text(e.token_id))
        # By text, the sampled token among them; of several tokens with one text the most probable.
        best = {tokens.text(token): p for token, p in reversed(e.top)}
        best.setdefault(tokens.text(e.token_id), e.logprob)
        alternatives.append(best)
    out = {
        "tokens": [tokens.text(e.token_id) for e in entries],
        "token_logprobs": [e.logprob for e in entries],
        "top_logprobs": alternatives if top else None,
        "text_offset": offsets,
    }
    return out, offset
