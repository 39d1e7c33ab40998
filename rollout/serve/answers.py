"""Answers in OpenAI's form, whole or in chunks; both are made of the same deltas."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from toolstep.envs.chat.formats import ToolCallFormat
from toolstep.rollout.serve.choice import ChoiceReader, Logprob, Piece, chat_logprobs, completion_logprobs
from toolstep.rollout.serve.generation import Chunk, Generation
from toolstep.rollout.serve.protocol import ChatRequest, CompletionRequest, Sampling
from toolstep.rollout.serve.served import Served
from toolstep.rollout.serve.turns import Delta, TurnReader, message

JSON = dict[str, Any]


class Answer(ABC):
    """The answer to one request, fed with the chunks of its generations."""

    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(
        self, served: Served, request: Sampling, prompts: Sequence[Sequence[int]], generations: Sequence[Generation]
    ):
        self._head: JSON = {
            "id": f"{self.prefix}{uuid.uuid4().hex}",
            "object": self.whole_object,
            "created": int(time.time()),
            "model": served.name,
        }
        self._prompts = prompts
        self._show_ids = bool(request.return_token_ids)
        self._tokens = served.tokens
        keep = request.include_stop_str_in_output
        self._readers = [ChoiceReader(g, served.tokenizer, keep_stop=keep) for g in generations]
        self._pieces: list[list[Piece]] = [[] for _ in generations]
        self.open = len(generations)

    def take(self, index: int, chunk: Chunk) -> JSON | None:
        """The chunk of the stream that this is; None if it shows nothing yet."""
        piece = self._readers[index].read(chunk)
        self._pieces[index].append(piece)
        self.open -= piece.finish is not None
        choice = self._choice_delta(index, piece)
        return None if choice is None else self._chunk([choice])

    def opening(self) -> list[JSON]:
        """Chunks in front of all others."""
        return []

    def closing(self) -> JSON:
        """The chunk with the usage."""
        return {**self._chunk([]), "usage": self.usage}

    def whole(self) -> JSON:
        """The answer once all generations are over."""
        choices = [self._choice(index) for index in range(len(self._readers))]
        return {**self._head, "choices": choices, "usage": self.usage}

    @property
    def usage(self) -> JSON:
        prompt = sum(map(len, self._prompts))
        sampled = sum(reader.count for reader in self._readers)
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}

    def _chunk(self, choices: list[JSON]) -> JSON:
        return {**self._head, "object": self.chunk_object, "choices": choices}

    def _ends(self, index: int) -> JSON:
        last = self._pieces[index][-1]
        return {"finish_reason": self._finish_reason(index, last), "stop_reason": last.stop_reason}

    def _sampled(self, index: int) -> tuple[list[int], list[Logprob]]:
        pieces = self._pieces[index]
        return [i for p in pieces for i in p.token_ids], [entry for p in pieces for entry in p.logprobs]

    def _finish_reason(self, index: int, piece: Piece) -> str | None:
        return piece.finish

    @abstractmethod
    def _choice_delta(self, index: int, piece: Piece) -> JSON | None:
        """A choice of the stream; None if it shows nothing."""

    @abstractmethod
    def _choice(self, index: int) -> JSON:
        """A choice of the whole answer."""


class ChatAnswer(Answer):
    """`chat.completion`: thoughts, content and tool calls.

    form, prompt_tail, tools: see `TurnReader`.
    """

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prefix = "chatcmpl-"

    def __init__(
        self,
        served: Served,
        request: ChatRequest,
        prompt: Sequence[int],
        generations: Sequence[Generation],
        form: ToolCallFormat,
        prompt_tail: str,
        tools: Sequence[Mapping[str, Any]] | None,
    ):
        super().__init__(served, request, [prompt], generations)
        self._logprobs = bool(request.logprobs)
        self._turns = [TurnReader(form, prompt_tail, tools) for _ in generations]
        self._deltas: list[list[Delta]] = [[] for _ in generations]

    def opening(self) -> list[JSON]:
        delta = {"role": "assistant", "content": ""}
        chunks = [
            self._chunk([{"index": i, "delta": dict(delta), "logprobs": None, "finish_reason": None}])
            for i in range(len(self._readers))
        ]
        if self._show_ids:
            chunks[0]["prompt_token_ids"] = list(self._prompts[0])
        return chunks

    def whole(self) -> JSON:
        out = super().whole()
        if self._show_ids:
            out["prompt_token_ids"] = list(self._prompts[0])
        return out

    def _choice_delta(self, index: int, piece: Piece) -> JSON | None:
        new = self._turns[index].push(piece.text, piece.finish)
        self._deltas[index] += new
        if not (new or piece.finish or self._logprobs or self._show_ids):
            return None
        choice: JSON = {
            "index": index,
            "delta": {k: v for delta in new for k, v in delta.items()},
            "logprobs": chat_logprobs(piece.logprobs, self._tokens) if self._logprobs else None,
            "finish_reason": self._finish_reason(index, piece),
        }
        if piece.finish:
            choice["stop_reason"] = piece.stop_reason
        if self._show_ids:
            choice["token_ids"] = piece.token_ids
        return choice

    def _choice(self, index: int) -> JSON:
        ids, entries = self._sampled(index)
        choice = {
            "index": index,
            "message": message(self._deltas[index]),
            "logprobs": chat_logprobs(entries, self._tokens) if self._logprobs else None,
            **self._ends(index),
        }
        return choice | ({"token_ids": ids} if self._show_ids else {})

    def _finish_reason(self, index: int, piece: Piece) -> str | None:
        return "tool_calls" if piece.finish == "stop" and self._turns[index].called else piece.finish


class CompletionAnswer(Answer):
    """`text_completion`: choices of all prompts, those of the first prompt first."""

    whole_object = "text_completion"
    chunk_object = "text_completion"
    prefix = "cmpl-"

    def __init__(
        self,
        served: Served,
        request: CompletionRequest,
        prompts: Sequence[Sequence[int]],
        generations: Sequence[Generation],
    ):
        super().__init__(served, request, prompts, generations)
        self._logprobs, self._top = request.logprobs is not None, bool(request.logprobs)
        self._offsets = [0] * len(generations)
        self._n = request.n or 1

    def _choice_delta(self, index: int, piece: Piece) -> JSON | None:
        if not (piece.text or piece.finish or self._logprobs or self._show_ids):
            return None
        logprobs = None
        if self._logprobs:
            logprobs, self._offsets[index] = completion_logprobs(
                piece.logprobs, self._tokens, self._offsets[index], top=self._top
            )
        choice: JSON = {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish}
        if piece.finish:
            choice["stop_reason"] = piece.stop_reason
        if self._show_ids:
            choice["token_ids"] = piece.token_ids
            if len(self._pieces[index]) == 1:
                choice["prompt_token_ids"] = list(self._prompts[index // self._n])
        return choice

    def _choice(self, index: int) -> JSON:
        ids, entries = self._sampled(index)
        choice = {
            "index": index,
            "text": "".join(p.text for p in self._pieces[index]),
            "logprobs": completion_logprobs(entries, self._tokens, 0, top=self._top)[0] if self._logprobs else None,
            **self._ends(index),
        }
        if self._show_ids:
            choice |= {"token_ids": ids, "prompt_token_ids": list(self._prompts[index // self._n])}
        return choice
