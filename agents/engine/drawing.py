"""One id for each turn, from the logits of a forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine.rows import Turn
from toolstep.agents.engine.sampling import NonFiniteLogits, choose


def draw(turns: Sequence[Turn], logits: torch.Tensor, version: int) -> None:
    """Append one id to each turn and its context; rows with the same parameters are drawn together.

    logits [len(turns), V], made by weights of version `version`.  Raises FloatingPointError, which names the row.
    """
    groups: dict[SamplingParams, list[int]] = {}
    for i, turn in enumerate(turns):
        groups.setdefault(turn.params.shape, []).append(i)
    for params, members in groups.items():
        uniforms = np.array([turns[i].state.uniform() for i in members])
        try:
            choice = choose(
                logits if len(members) == len(turns) else logits[members],
                uniforms,
                params,
                [turns[i].state.sampled for i in members],
                [None if (allow := turns[i].allow) is None else allow(turns[i].tokens) for i in members],
            )
        except NonFiniteLogits as error:
            turn = turns[members[error.index]]
            raise FloatingPointError(
                f"row {turn.row}: the model's logits are not finite after {len(turn.state.ids)} ids "
                f"(weight version {version}); the weights are probably broken by the last "
                "update"
            ) from None
        for i, token, logprob, model_logprob in zip(members, *(c.tolist() for c in choice), strict=True):
            _take(turns[i], token, logprob, model_logprob, version)


def _take(turn: Turn, token: int, logprob: float, model_logprob: float, version: int) -> None:
    if turn.version is None:
        turn.version = version
    turn.tokens.append(token)
    turn.logprobs.append(logprob)
    turn.model_logprobs.append(model_logprob)
    state = turn.state
    state.sampled.append(token)
    state.ids.append(token)
    if state.leaf is not None:
        state.leaf.ids.append(token)
    if token in turn.stop or (turn.until is not None and turn.until(turn.tokens)):
        turn.finish = "stop"
    elif len(turn.tokens) >= turn.limit:
        turn.finish = "length"
