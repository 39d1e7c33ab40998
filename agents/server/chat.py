"""ChatAgent: an OpenAI-compatible chat API, for evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import SamplingParams, TextTurn
from toolstep.agents.server.address import OPENAI_KEY, OPENAI_URL, Address, openai_address
from toolstep.agents.server.connect import make_client
from toolstep.agents.server.dialect import list_in, number_in, part, shown
from toolstep.agents.server.errors import ServerError, bad_reply
from toolstep.agents.server.retry import Retries
from toolstep.agents.server.seeds import turn_seed

_FINISHED = ("stop", "tool_calls", "length", "function_call")
_FATAL = ("401", "403", "unreachable", "timeout")  # of the question whether somebody is there


@dataclass(eq=False)
class _Conversation:
    seed: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 0
    open: list[str] = field(default_factory=list)  # ids of calls that await their results, in order


class ChatAgent:
    """A `TextAgent` over `POST /chat/completions`: messages and tools out, a message in.

    Args:
        address: `MODEL[@URL][?key_env=...&concurrency=...&timeout=...&deadline=...&retries=...&seed=on|off]`, or an
            `Address`.  The key is in the environment variable that `key_env` names; for OpenAI itself, and for nobody
            else, in OPENAI_API_KEY unless it names another.
        sampling: temperature, top_p and max_new_tokens; such APIs have nothing else.  Where temperature or top_p is 1
            it is not sent, since some models take no other.
        seed: where `predict` takes the seeds of its episodes from.

    A conversation is sent anew with each turn, with the API's own call ids.  A turn that fails for good costs its row,
    and no other.  Nothing can be trained on it: such APIs tell no token ids.

    Raises `ServerError` where there is nobody that answers, or the key is refused.
    """

    untrainable = "a text API tells neither the ids that were sampled nor all of their log-probabilities"

    def __init__(
        self,
        address: str | Address,
        *,
        sampling: SamplingParams | None = None,
        seed: int = 0,
        retries: Retries | None = None,
    ) -> None:
        where = openai_address(address) if isinstance(address, str) else address
        self.sampling = sampling if sampling is not None else SamplingParams()
        _refuse(self.sampling)
        self.model, self.seed = where.model, seed
        self.refusals = self.prompt_tokens = self.completion_tokens = 0
        self._seeds = where.options.get("seed", True)
        self._rows: dict[int, _Conversation] = {}
        self.client = make_client(where, retries, OPENAI_KEY if where.url == OPENAI_URL else None)
        try:
            self.client.get("/models")
        except ServerError as error:
            if error.kind in _FATAL:  # many a server has no such list
                self.client.close()
                raise
        self.client.count_anew()

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """The env shows and takes messages in OpenAI's form."""
        return {"view": "chat"}

    def describe(self) -> dict[str, Any]:
        """Which model where, as JSON."""
        return {"url": self.client.url, "dialect": "openai", "model": self.model, "trainable": False}

    def counts(self) -> dict[str, Any]:
        """Requests so far, how many were sent again or failed for good, refusals, and tokens as the API counts them."""
        used = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return {**self.client.counts(), "refusals": self.refusals, **used}

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row`; `seed` decides the seeds of its requests."""
        self._rows[row] = _Conversation(seed)

    def reply(self, rows: Sequence[int], observations: Sequence[str]) -> list[TextTurn]:
        """Add what each row observed to its conversation and ask for the next message; all at once, in their order."""
        futures: list[Future[Any]] = []
        try:
            for row, observation in zip(rows, observations, strict=True):
                futures.append(self._ask(row, observation))
            return [self._turn(row, future) for row, future in zip(rows, futures, strict=True)]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """stable-baselines3's `predict` over `reply`, for a batch of observations or for one.

        `deterministic` changes nothing: say `temperature=0`.  Raises RuntimeError where a turn failed for good.
        """
        single = isinstance(observation, str)
        batch = [observation] if single else list(observation)
        begin = np.full(len(batch), state is None) if episode_start is None else np.atleast_1d(episode_start)
        for row in range(len(batch)):
            if begin[row] or row not in self._rows:
                self.start(row, turn_seed(self.seed, row))
        turns = self.reply(range(len(batch)), batch)
        if failed := next((t.error for t in turns if t.error), ""):
            raise RuntimeError(f"no turn could be had: {failed}")
        texts = tuple(t.text for t in turns)
        return (texts[0] if single else texts), ("chat", len(batch))

    def close(self) -> None:
        """Drop all connections, and end the thread that holds them."""
        self.client.close()

    # ------------------------------------------------------------------ parts
    def _ask(self, row: int, observation: str) -> Future[Any]:
        state = self._rows[row]
        seen = json.loads(observation)
        _append(state, seen["messages"])
        seed = turn_seed(state.seed, state.turns)
        state.turns += 1
        s, official = self.sampling, urlsplit(self.client.url).hostname == urlsplit(OPENAI_URL).hostname
        body: dict[str, Any] = {
            "model": self.model,
            "messages": state.messages,
            "max_completion_tokens" if official else "max_tokens": s.max_new_tokens,
            "n": 1,
            "stream": False,
        }
        body |= {k: float(v) for k, v in (("temperature", s.temperature), ("top_p", s.top_p)) if v != 1}
        if seen["tools"]:
            body["tools"] = seen["tools"]
        if self._seeds:
            body["seed"] = seed
        return self.client.post("/chat/completions", body, seed=seed)

    def _turn(self, row: int, future: Future[Any]) -> TextTurn:
        try:
            message, finish = self._read(future.result())
        except ServerError as error:
            if error.kind == "bad_reply":
                self.client.failed[error.kind] += 1
            return TextTurn("", error=self.client.plain(str(error)))
        state = self._rows[row]
        state.messages.append(message)
        state.open = [call["id"] for call in message.get("tool_calls", ())]
        return TextTurn(json.dumps({**message, "finish_reason": finish}, ensure_ascii=False))

    def _read(self, reply: Any) -> tuple[dict[str, Any], str]:
        message, finish = part(reply, "choices", 0, "message"), part(reply, "choices", 0, "finish_reason")
        if not isinstance(message, dict):
            raise bad_reply("the reply has no choices[0].message")
        if finish not in _FINISHED:
            raise bad_reply(f"the API gave the turn up: finish_reason is {shown(finish)}")
        for key in ("prompt_tokens", "completion_tokens"):
            setattr(self, key, getattr(self, key) + (number_in(part(reply, "usage", key)) or 0))
        content, refusal = part(message, "content"), part(message, "refusal")
        if isinstance(refusal, str) and refusal:
            self.refusals += 1
            content = content or refusal
        if content is not None and not isinstance(content, str):
            raise bad_reply(f"choices[0].message.content: expected text, found {type(content).__name__}")
        called = list_in(part(message, "tool_calls") or [], "choices[0].message.tool_calls")
        calls = [_call(call, n) for n, call in enumerate(called)]
        out: dict[str, Any] = {"role": "assistant", "content": content if content or calls else ""}
        return (out | {"tool_calls": calls} if calls else out), str(finish)


def _append(state: _Conversation, new: Sequence[dict[str, Any]]) -> None:
    """Results answer the API's own ids, in the order of its calls; each of its calls gets one."""
    last = "the call was not looked at"
    for message in new:
        if message["role"] == "tool" and state.turns:
            if not state.open:
                continue
            last = message["content"]
            message = {"role": "tool", "tool_call_id": state.open.pop(0), "content": last}
        elif state.open:
            _close(state, last)
        state.messages.append(message)
    _close(state, last)


def _close(state: _Conversation, content: str) -> None:
    while state.open:  # more calls than a turn may have: the env's last word about them is for all that are left
        state.messages.append({"role": "tool", "tool_call_id": state.open.pop(0), "content": content})


def _call(call: Any, number: int) -> dict[str, Any]:
    """A call as it goes back into the conversation: with an id, and arguments as text, whatever they are."""
    function = part(call, "function")
    name, arguments, id_ = part(function, "name"), part(function, "arguments"), part(call, "id")
    return {
        "id": id_ if isinstance(id_, str) and id_ else f"call_{number}",
        "type": "function",
        "function": {
            "name": name if isinstance(name, str) else "",
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
        },
    }


def _refuse(s: SamplingParams) -> None:
    if s.top_k or s.min_p or s.penalised or s.logit_bias or s.top_logprobs:
        raise ValueError("a text API takes temperature, top_p and max_new_tokens alone: leave the others out")
