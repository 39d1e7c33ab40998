"""What an agent is, and what a batched language model returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

_WHOLE = (int, np.integer)
_NUMBER = (int, float, np.integer, np.floating)
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn.

    The defaults are the model's own distribution: temperature 1, no truncation, no penalty.  `temperature=0` is greedy.
    `top_k=0` and `top_p=1.0` switch truncation off.  `frequency_penalty` is subtracted from the logit of a token once
    for each time it was sampled among the last `penalty_window` sampled ids of the episode (0: all of them), before
    temperature and truncation, as OpenAI's and vLLM's are.  Prompt and observation ids never count.

    The order is: repetition penalty (a positive logit of a token in the window is divided by it, a negative one
    multiplied; CTRL, arXiv:1909.05858), frequency and presence penalty (subtracted once for a token in the window),
    `logit_bias` (id -> number added to its logit), temperature, top-k, top-p, min-p (tokens less probable than `min_p`
    times the most probable one are cut off; 0: off).

    `top_logprobs`: so many of the most probable tokens are reported beside each sampled one.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    max_new_tokens: int = 256
    min_p: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        # Bounds beyond which logits in float32 would no longer be finite.
        checks: tuple[tuple[str, tuple[type, ...], Callable[[Any], bool], str], ...] = (
            ("temperature", _NUMBER, lambda x: x == 0 or 1e-4 <= x <= 1e4, "0 (greedy) or a number in [1e-4, 1e4]"),
            ("top_k", _WHOLE, lambda x: x >= 0, "a whole number >= 0 (0: off)"),
            ("top_p", _NUMBER, lambda x: 0 < x <= 1, "a number in (0, 1] (1: off)"),
            ("frequency_penalty", _NUMBER, lambda x: abs(x) <= 1e4, "a number in [-1e4, 1e4]"),
            ("penalty_window", _WHOLE, lambda x: x >= 0, "a whole number >= 0 (0: the whole episode)"),
            ("max_new_tokens", _WHOLE, lambda x: x >= 0, "a whole number >= 0"),
            ("min_p", _NUMBER, lambda x: 0 <= x <= 1, "a number in [0, 1] (0: off)"),
            ("presence_penalty", _NUMBER, lambda x: abs(x) <= 1e4, "a number in [-1e4, 1e4]"),
            ("top_logprobs", _WHOLE, lambda x: x >= 0, "a whole number >= 0"),
            ("repetition_penalty", _NUMBER, lambda x: 1e-4 <= x <= 1e4, "a number in [1e-4, 1e4] (1: off)"),
        )
        for name, kinds, ok, expected in checks:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds) or not ok(value):
                raise ValueError(f"SamplingParams.{name} must be {expected}, got {value!r}")
        if isinstance(self.logit_bias, Mapping):  # as pairs, so that the parameters can be compared and hashed
            pairs = tuple(sorted((int(token), float(bias)) for token, bias in self.logit_bias.items()))
            object.__setattr__(self, "logit_bias", pairs)

    @property
    def penalised(self) -> bool:
        """Whether the logits depend on what was sampled before."""
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1)

    @property
    def shape(self) -> SamplingParams:
        """The same without the limit: rows that differ in that alone are drawn together."""
        return replace(self, max_new_tokens=0)


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled turn.

    token_ids: i32[T], the stop token included where one was sampled (finish_reason "stop").
    logprobs: f32[T], log-probability of each id under the distribution that it was drawn from.
    model_logprobs: f32[T], the same under the plain model (temperature 1, whole vocabulary, no penalty).
    weight_version: version of the weights that sampled the turn; goes up with every update.
    top: for each id the most probable tokens in its place with their log-probabilities under the distribution that it
    was drawn from, the best first; as many as `SamplingParams.top_logprobs` asks for, and no entries where it asks for
    none.
    error: why the turn was given up, where it was (finish_reason "abort").

    A server tells one kind of log-probabilities: the other is 0 throughout.  Where `logprobs` is the one that is
    missing, `weight_version` is -1, and nothing can be trained on the turn.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    model_logprobs: NDArray[np.float32]
    finish_reason: FinishReason
    weight_version: int = 0
    top: Sequence[Sequence[tuple[int, float]]] = ()
    error: str = ""

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.model_logprobs)}
        if len(lengths) != 1:
            raise ValueError(
                f"Completion: token_ids, logprobs and model_logprobs must have one length, got "
                f"{len(self.token_ids)}, {len(self.logprobs)}, {len(self.model_logprobs)}"
            )


class Finished(NamedTuple):
    """A turn that is over: the ticket that `submit` gave, the row that it was sampled for, and what was sampled."""

    ticket: int
    row: int
    completion: Completion


@runtime_checkable
class Agent(Protocol):
    """stable-baselines3's `PolicyPredictor`, for a batch of rows.

    `observation` is a batched observation of the vector env that the agent plays in, `episode_start` bool[N] marks the
    rows whose observation opens an episode (None: all of them, when `state` is None).  Returns the batch of actions and
    the state to hand back at the next call.

    `env_kwargs` are the keyword arguments that an env needs so that the agent can act in it (its view, its tokenizer).
    """

    @property
    def env_kwargs(self) -> Mapping[str, Any]: ...

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]: ...


@dataclass(frozen=True, slots=True)
class TextTurn:
    """One turn of an agent that speaks text.  error: why there is none, where it was given up."""

    text: str
    error: str = ""


@runtime_checkable
class TextAgent(Agent, Protocol):
    """An agent that speaks text, is asked for the rows that need a turn alone, and may give a turn up."""

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row`."""

    def reply(self, rows: Sequence[int], observations: Sequence[Any]) -> list[TextTurn]:
        """One turn for each of `rows`, given what it observed since its last; results in the order of `rows`."""


class NotTrainable(ValueError):
    """Nothing can be trained on what an agent samples; the message says why, and what to do."""


def check_trainable(agent: Any) -> None:
    """Raises `NotTrainable` for an agent whose `untrainable` says why its turns cannot be trained on."""
    reason = getattr(agent, "untrainable", None)
    if reason is not None:
        raise NotTrainable(f"{type(agent).__name__} is for evaluation only: {reason}")


@runtime_checkable
class TokenAgent(Agent, Protocol):
    """An agent that samples token ids and tells their log-probabilities.

    For envs with history="rerender" it also needs `new_segment(row)`: the next observation of that row is its whole
    context, the episode and its stream of samples go on.
    """

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row`: forget its context; `seed` alone decides what will be sampled in it."""

    def act(self, rows: Sequence[int], observations: Sequence[NDArray[np.int64]]) -> list[Completion]:
        """Append observation ids to each row's context and sample one turn for each; results in the order of `rows`."""
