"""One id for each turn, from the logits of a forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from toolstep.agents.base import FinishReason, SamplingParams
from toolstep.agents.engine.interface import RowFailed
from toolstep.agents.engine.rows import Turn
from toolstep.agents.engine.sampling import Choice, NonFiniteLogits, choose
from toolstep.agents.engine.scheduler import Want


def logits_of(wants: Sequence[Want], logits: torch.Tensor | None, place: Mapping[int, int]) -> torch.Tensor:
    """A row of logits for each want, [len(wants), V]: row `place[feed]` of a forward's, or those that are at hand."""
    order = [place.get(want.feed, -1) for want in wants]
    if logits is not None and order == list(range(len(logits))):
        return logits
    kept = [want.logits for want in wants if want.feed < 0]
    sources = ([] if logits is None else [logits]) + [row[None] for row in kept if row is not None]
    pool = torch.cat(sources) if len(sources) > 1 else sources[0]
    behind = iter(range(len(pool) - len(kept), len(pool)))
    return pool[[next(behind) if i < 0 else i for i in order]]


def draw(turns: Sequence[Turn], logits: torch.Tensor, version: int) -> None:
    """Append one id to each turn and its context; rows with the same parameters are drawn together.

    logits [len(turns), V], made by weights of version `version`.  Raises RowFailed, and then no turn has got an id.
    """
    allowed = [_allowed(turn, logits.shape[1]) for turn in turns]
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
                [allowed[i] for i in members],
            )
            choices.append((members, choice))
        except NonFiniteLogits as error:
            turn = turns[members[error.index]]
            raise RowFailed(
                turn.row,
                f"the model's logits are not finite after {len(turn.state.ids)} ids (weight version {version}); "
                "the weights are probably broken by the last update",
            ) from None
    ends = {i: _ends(turns[i], int(token)) for members, choice in choices for i, token in zip(members, choice.tokens)}
    for members, choice in choices:
        columns = (choice.tokens.tolist(), choice.logprobs.tolist(), choice.model_logprobs.tolist(), choice.top)
        for i, token, logprob, model_logprob, top in zip(members, *columns, strict=True):
            turns[i].top += [top] if top else []
            _take(turns[i], token, logprob, model_logprob, version, ends[i])


def _allowed(turn: Turn, vocabulary: int) -> NDArray[np.bool_] | None:
    """What the turn's constraint lets come next; a constraint is foreign code, and fails alone."""
    if turn.allow is None:
        return None
    try:
        given = turn.allow(turn.tokens)
    except Exception as error:
        raise RowFailed(turn.row, f"its constraint failed: {type(error).__name__}: {error}") from error
    if given is None:
        return None
    mask = np.asarray(given)
    if mask.dtype != np.bool_ or mask.shape != (vocabulary,) or not mask.any():
        raise RowFailed(
            turn.row,
            f"constraint: expected bool[{vocabulary}] with one token allowed at least, got "
            f"{mask.dtype}{list(mask.shape)} with {int(mask.sum())} allowed",
        )
    return mask


def _ends(turn: Turn, token: int) -> FinishReason | None:
    """Why the turn is over with this id."""
    if token in turn.stop:
        return "stop"
    if turn.until is not None:
        try:
            if turn.until([*turn.tokens, token]):
                return "stop"
        except Exception as error:
            raise RowFailed(turn.row, f"its stop condition failed: {type(error).__name__}: {error}") from error
    return "length" if len(turn.tokens) + 1 >= turn.limit else None


def _take(
    turn: Turn, token: int, logprob: float, model_logprob: float, version: int, finish: FinishReason | None
) -> None:
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
    turn.finish = finish
