"""Of which distribution a server tells log-probabilities, measured; and what that is worth to a learner."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import SamplingParams
from toolstep.agents.server.dialect import Dialect, LogprobsMode

Sample = Callable[[SamplingParams], float]  # the log-prob of the one id that is sampled behind some context

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=1)
_COLD = SamplingParams(temperature=0.02, max_new_tokens=1)
_NARROW = (
    SamplingParams(top_p=1e-6, max_new_tokens=1),
    SamplingParams(top_k=1, max_new_tokens=1),
)
CERTAIN = -0.2  # a log-prob above this says too little: the model is sure of the id in any case


def measure(sample: Sample) -> LogprobsMode:
    """Ask for the most probable id in ways that leave no other: where it is told to be certain, that way is counted in.

    `sample` must sample behind a context at which the model is not certain (see `CERTAIN`).
    """
    plain = sample(GREEDY)
    if sample(_COLD) < plain / 2:
        return "raw"
    return "processed" if all(sample(params) > plain / 2 for params in _NARROW) else "tempered"


def is_plain(sampling: SamplingParams) -> bool:
    """Whether turns are drawn from the plain model's distribution.  A greedy turn's log-probs are those at T=1."""
    if sampling.temperature == 0:
        return True
    return sampling.temperature == 1 and not _truncates(sampling)


def tells_sampled(dialect: Dialect, mode: LogprobsMode, sampling: SamplingParams) -> bool:
    """Whether a reply's log-probs are those of the distribution that was sampled from."""
    if not dialect.measured or is_plain(sampling):
        return True
    return mode == "processed" or (mode == "tempered" and not _truncates(sampling))


def tells_model(dialect: Dialect, mode: LogprobsMode, sampling: SamplingParams) -> bool:
    """Whether a reply's log-probs are those of the plain model."""
    if is_plain(sampling):
        return True
    return dialect.measured and (mode == "raw" or (mode == "tempered" and sampling.temperature == 1))


def filled(values: list[float] | None, known: bool, length: int) -> NDArray[np.float32]:
    """The log-probs where they are known, else the filler 0."""
    if values is None or not known:
        return np.zeros(length, np.float32)
    return np.array(values, np.float32)


def _truncates(sampling: SamplingParams) -> bool:
    return bool(sampling.top_k or sampling.top_p < 1 or sampling.min_p)
