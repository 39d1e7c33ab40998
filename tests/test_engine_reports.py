"""What the engine tells beside the sampled ids: alternatives, turns under way, and the row that failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch

from toolstep.agents import Engine, SamplingParams
from toolstep.agents.base import Completion
from toolstep.agents.engine import RowFailed

MODEL = em.model()
PROMPTS = [em.ids(i, 5 + 3 * i) for i in range(4)]
PARAMS = (
    SamplingParams(max_new_tokens=6, top_logprobs=5),
    SamplingParams(max_new_tokens=6, top_logprobs=3, temperature=0.6, top_k=2, frequency_penalty=0.5),
    SamplingParams(max_new_tokens=6, top_logprobs=200, temperature=0),
    SamplingParams(max_new_tokens=6),
)


def test_alternatives_are_the_most_probable_tokens_of_the_distribution_sampled_from():
    engine = Engine(MODEL, verify=False)
    for row, prompt in enumerate(PROMPTS):
        engine.start(row, row)
        engine.extend(row, prompt)
    for done, prompt, params in zip(engine.generate(range(4), PARAMS), PROMPTS, PARAMS, strict=True):
        ids = done.token_ids.tolist()
        assert len(done.top) == (6 if params.top_logprobs else 0)
        logits = em.full_forward(MODEL, np.concatenate([prompt, ids]))
        for t, best in enumerate(done.top):
            expected = em.slow_logprobs(logits[len(prompt) + t - 1], ids[:t], params)
            assert len(best) == min(params.top_logprobs, em.VOCABULARY)
            assert [logprob for _, logprob in best] == pytest.approx(np.sort(expected)[::-1][: len(best)], abs=1e-4)
            assert [logprob for _, logprob in best] == pytest.approx(expected[[token for token, _ in best]], abs=1e-4)
            if ids[t] in dict(best):
                assert dict(best)[ids[t]] == pytest.approx(done.logprobs[t], abs=1e-6)


def test_a_turn_under_way_can_be_looked_at():
    engine = Engine(MODEL, verify=False)
    engine.start(0, 0)
    ticket = engine.submit(0, PROMPTS[0], PARAMS[0])
    assert engine.partial(ticket) == ([], [], [])
    seen: list[int] = []
    logprobs: list[float] = []
    while not (done := engine.step()):
        part = engine.partial(ticket, len(seen))
        assert len(part.token_ids) == len(part.logprobs) == len(part.top) == 1
        seen += part.token_ids
        logprobs += part.logprobs
    assert seen == done[0].completion.token_ids.tolist()[:-1]
    assert logprobs == pytest.approx(done[0].completion.logprobs[:-1].tolist(), abs=1e-7)
    assert engine.partial(ticket) == ([], [], [])


def played(engine: Engine, give_up: Callable[[], None]) -> tuple[dict[int, Completion], list[RowFailed]]:
    """Turns by row, and the failures, after each of which the row that failed is given up."""
    got = {}
    failed = []
    while engine.busy:
        try:
            got |= {f.row: f.completion for f in engine.step()}
        except RowFailed as error:
            failed.append(error)
            give_up()
    return got, failed


def test_one_row_without_finite_logits_is_named_and_the_others_go_on_as_if_nothing_had_been():
    model = em.model(seed=2)
    with torch.no_grad():
        model.model.embed_tokens.weight[11] = float("nan")  # whoever reads this id is lost
        model.lm_head.weight[11] = 0.0
    prompts = [p[p != 11] for p in PROMPTS]
    stop = list(range(0, em.VOCABULARY, 7))
    params = [SamplingParams(max_new_tokens=1 + 5 * (row % 2), temperature=1.0 - row / 10) for row in range(4)]
    engine = Engine(model, verify=False)
    for row, prompt in enumerate(prompts):
        engine.start(row, row)
        engine.submit(row, prompt, params[row], stop)
    engine.start(9, 0)
    engine.submit(9, [5, 11], SamplingParams(max_new_tokens=6, temperature=0.3))
    got, failed = played(engine, lambda: engine.release(9))
    assert [error.row for error in failed] == [9]
    assert sorted(got) == [0, 1, 2, 3]
    for row, prompt in enumerate(prompts):
        alone = Engine(model, verify=False)
        alone.start(0, row)
        alone.submit(0, prompt, params[row], stop)
        while not (done := alone.step()):
            pass
        assert got[row].token_ids.tolist() == done[0].completion.token_ids.tolist()


def broken(ids: Sequence[int]) -> Any:
    if len(ids) >= 3:
        raise KeyError("state 7")
    return None


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"allow": broken}, "row 9: its constraint failed: KeyError: 'state 7'"),
        ({"until": broken}, "row 9: its stop condition failed: KeyError: 'state 7'"),
        (
            {"allow": lambda ids: np.zeros(em.VOCABULARY, np.bool_)},
            f"row 9: constraint: expected bool[{em.VOCABULARY}] with one token allowed at least, got "
            f"bool[{em.VOCABULARY}] with 0 allowed",
        ),
        ({"allow": lambda ids: [True, False]}, f"expected bool[{em.VOCABULARY}] .*, got bool[2] with 1 allowed"),
        ({"allow": lambda ids: np.ones(em.VOCABULARY)}, f"got float64[{em.VOCABULARY}]"),
    ],
)
def test_a_condition_that_fails_ends_its_own_row_and_no_other(conditions: dict[str, Any], said: str) -> None:
    engine = Engine(MODEL, verify=False)
    for row, prompt in enumerate(PROMPTS):
        engine.start(row, row)
        engine.submit(row, prompt, PARAMS[row], until=lambda ids: len(ids) == 5)
    engine.start(9, 0)
    ticket = engine.submit(9, [5, 11], SamplingParams(max_new_tokens=20), **conditions)
    got, failed = played(engine, lambda: engine.cancel(ticket))
    assert len(failed) == 1
    assert re.search(said.replace("[", r"\[").replace("]", r"\]"), str(failed[0]))
    assert engine.context(9).tolist() == []  # as before `submit`
    for row, prompt in enumerate(PROMPTS):
        alone = Engine(MODEL, verify=False)
        alone.start(row, row)
        alone.extend(row, prompt)
        (expected,) = alone.generate([row], PARAMS[row], until=[lambda ids: len(ids) == 5])
        assert got[row].token_ids.tolist() == expected.token_ids.tolist()
        assert (len(got[row].token_ids), got[row].finish_reason) == (5, "stop")
