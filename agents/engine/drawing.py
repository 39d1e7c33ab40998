"""One id for each turn, from the logits of a forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine.interface import RowFailed
from toolstep.agents.engine.rows import Turn
from toolstep.agents.engine.sampling import Choice, NonFiniteLogits, choose


def draw(turns: Sequence[Turn], logits: torch.Tensor, version: int) -> None:
    """Append one id to each turn and its context; rows with the same parameters are drawn together.

    logits [len(turns), V], made by weights of version `version`.  Raises RowFailed, and then no turn has got an id.
    """
    groups: dict[SamplingParams, list[int]] = {}
    for i, turn in enumerate(turns):
        groups.setdefault(turn.params.shape, []).append(i)
    choices: list[tuple[list[int], Choice]] = []
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
            choices.append((members, choice))
        except NonFiniteLogits as error:
            turn = turns[members[error.index]]
            raise RowFailed(
                turn.row,
                f"the model's logits are not finite after {len(turn.state.ids)} ids (weight version {version}); "
                "the weights are probably broken by the last update",
            ) from None
    for members, choice in choices:
        columns = (choice.tokens.tolist(), choice.logprobs.tolist(), choice.model_logprobs.tolist(), choice.top)
        for i, token, logprob, model_logprob, top in zip(members, *columns, strict=True):
            turns[i].top += [top] if top else []
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
