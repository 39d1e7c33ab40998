"""What is computed, and what is not computed again."""

from __future__ import annotations

from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine import Engine

LLAMA = em.model()
SHORT = SamplingParams(max_new_tokens=4)


def start(engine: Engine, contexts: list[np.ndarray]) -> list[int]:
    for row, context in enumerate(contexts):
        engine.start(row, row)
        engine.extend(row, context)
    return list(range(len(contexts)))


def test_a_turn_feeds_the_delta_and_nothing_else() -> None:
    engine = Engine(LLAMA, verify=False)
    rows = start(engine, [em.ids(i, 30 + i) for i in range(3)])
    engine.generate(rows, SHORT)
    assert engine.stats.fed == 30 + 31 + 32 + 3 * 3  # each prompt, and each sampled id but the last
    for turn in range(3):
        for row in rows:
            engine.extend(row, em.ids(turn, 5 + row))
        before = engine.stats.fed
        engine.generate(rows, SHORT)
        assert engine.stats.fed - before == (5 + 6 + 7) + 3 + 3 * 3  # observations, last sampled ids, the new turn
    assert engine.stats.shared == 0
    assert engine.stats.sampled == 4 * 4 * 3


def test_finished_rows_are_not_computed() -> None:
    engine = Engine(LLAMA, verify=False)
    rows = start(engine, [em.ids(i, 10) for i in range(3)])
    engine.generate(rows, [SamplingParams(max_new_tokens=n) for n in (1, 3, 8)])
    assert engine.stats.fed == 30 + 0 + 2 + 7
    assert engine.stats.forwards == 8


def test_a_prefix_shared_by_new_prompts_is_computed_once() -> None:
    engine = Engine(LLAMA, verify=False)
    prefix = em.ids(9, 200)
    contexts = [np.concatenate([prefix, em.ids(i, 6)]) for i in range(8)]
    turns = engine.generate(start(engine, contexts), SamplingParams(max_new_tokens=1))
    assert engine.stats.fed == 200 + 8 * 6
    assert engine.stats.shared == 7 * 200
    assert engine.stats.forwards == 1
    assert engine.live_tokens == 200 + 8 * 6  # held once, too
    for row, turn in enumerate(turns):
        plain = em.log_softmax(em.full_forward(LLAMA, engine.context(row))[-2])
        assert turn.logprobs[0] == pytest.approx(plain[turn.token_ids[0]], abs=1e-4)


def test_a_forward_holds_no_more_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(LLAMA, verify=False, chunk=16)
    sizes: list[int] = []
    forward = engine.packed.forward

    def counted(pool: Any, feeds: Any, wanted: Any) -> Any:
        sizes.append(sum(f.length for f in feeds))
        return forward(pool, feeds, wanted)

    monkeypatch.setattr(engine.packed, "forward", counted)
    engine.generate(start(engine, [em.ids(i, n) for i, n in enumerate((5, 40, 3, 17))]), SHORT)
    assert max(sizes) <= 16
    assert len(sizes) == 9  # six forwards for the prompts, in which the first rows decode, and the last row's turn
    assert sum(sizes) == 65 + 4 * 3


def test_the_language_head_runs_on_sampled_positions_only() -> None:
    model = em.model()
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _m, _i, out: rows.append(out.shape[1]))
    engine = Engine(model, verify=False)
    engine.generate(start(engine, [em.ids(i, 30) for i in range(3)]), SHORT)
    assert rows == [3, 3, 3, 3]


def test_members_of_a_group_copy_the_whole_prompt() -> None:
    engine = Engine(LLAMA, verify=False)
    prefix = em.ids(9, 100)
    groups = [np.concatenate([prefix, em.ids(g, 50)]) for g in range(2)]
    engine.generate(start(engine, [groups[i // 4] for i in range(8)]), SamplingParams(max_new_tokens=1))
    # one whole prompt and the tail of the second; the logits of the last id serve every member
    assert engine.stats.fed == 150 + 50


def test_the_next_episode_of_a_row_keeps_the_prefix() -> None:
    engine = Engine(LLAMA, verify=False)
    prefix = em.ids(9, 80)
    start(engine, [np.concatenate([prefix, em.ids(i, 10)]) for i in range(2)])
    engine.generate([0, 1], SHORT)
    fed = engine.stats.fed
    engine.start(0, 5)
    engine.start(0, 6)  # twice: nothing is lost
    engine.extend(0, np.concatenate([prefix, em.ids(77, 12)]))
    turn = engine.generate([0], SamplingParams(max_new_tokens=1))[0]
    assert engine.stats.fed - fed == 12
    plain = em.log_softmax(em.full_forward(LLAMA, engine.context(0))[-2])
    assert turn.logprobs[0] == pytest.approx(plain[turn.token_ids[0]], abs=1e-4)


def test_a_new_row_copies_from_a_running_one() -> None:
    engine = Engine(LLAMA, verify=False)
    prefix = em.ids(9, 80)
    start(engine, [np.concatenate([prefix, em.ids(1, 10)])])
    engine.generate([0], SHORT)
    fed = engine.stats.fed
    engine.start(4, 5)
    engine.extend(4, np.concatenate([prefix, em.ids(2, 7)]))
    engine.extend(0, [3])
    engine.generate([0, 4], SamplingParams(max_new_tokens=1))
    assert engine.stats.fed - fed == 7 + 2


def test_new_weights_in_the_middle_of_an_episode_equal_a_fresh_run() -> None:
    model, other = em.model(seed=0), em.model(seed=1)
    engine = Engine(model, verify=False)
    prompts = [np.concatenate([em.ids(9, 60), em.ids(i, 5)]) for i in range(3)]
    rows = start(engine, prompts)
    first = engine.generate(rows, SHORT)
    assert [t.weight_version for t in first] == [0, 0, 0]
    assert engine.update_weights(other.state_dict()) == 1
    for row in rows:
        engine.extend(row, em.ids(row, 3))
    fed = engine.stats.fed
    contexts = [engine.context(row) for row in rows]
    second = engine.generate(rows, SHORT)
    assert [t.weight_version for t in second] == [1, 1, 1]
    assert engine.stats.fed - fed < sum(map(len, contexts))  # the prefix is shared again
    fresh = Engine(other, verify=False)
    start(fresh, contexts)
    again = fresh.generate(rows, SamplingParams(temperature=0, max_new_tokens=4))
    for row, context, turn, probe in zip(rows, contexts, second, again):
        plain = em.full_forward(other, engine.context(row))[len(context) - 1 : -1]
        expected = [em.log_softmax(plain[k])[turn.token_ids[k]] for k in range(4)]
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)
        assert probe.token_ids[0] == plain[0].argmax()


def test_weights_changed_in_place_need_no_state_dict() -> None:
    model = em.model()
    engine = Engine(model, verify=False)
    start(engine, [em.ids(0, 20)])
    engine.generate([0], SHORT)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.3)
        model.model.layers[0].self_attn.k_proj.weight.mul_(0.5)
    assert engine.update_weights() == 1
    turn = engine.generate([0], SHORT)[0]
    plain = em.full_forward(model, engine.context(0))[-5:-1]
    assert turn.logprobs == pytest.approx([em.log_softmax(p)[t] for p, t in zip(plain, turn.token_ids)], abs=1e-4)


def test_a_state_dict_that_does_not_fit_changes_nothing() -> None:
    model = em.model()
    engine = Engine(model, verify=False)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    state["surplus"] = torch.zeros(1)
    del state["model.norm.weight"]
    state["lm_head.weight"] = torch.zeros(3, 3)
    before = model.model.embed_tokens.weight.clone()
    with pytest.raises(ValueError, match=r"unknown: surplus; missing: model.norm.weight; of another shape: lm_head"):
        engine.update_weights(state)
    assert torch.equal(model.model.embed_tokens.weight, before)
    assert engine.weight_version == 0


def test_tied_weights_may_be_left_out_of_a_state_dict() -> None:
    model = em.model(tie_word_embeddings=True)
    state = {k: v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    assert Engine(model, verify=False).update_weights(state) == 1


def test_a_released_row_gives_its_memory_back() -> None:
    engine = Engine(LLAMA, verify=False)
    start(engine, [em.ids(i, 10) for i in range(3)])
    engine.generate([0, 1, 2], SHORT)
    engine.release(1)
    engine.release(1)
    used = engine.pool.peak
    engine.start(9, 0)
    engine.extend(9, em.ids(5, 12))
    engine.generate([0, 9], SHORT)
    assert engine.pool.peak == used
    engine.release(0)
    engine.release(2)
    engine.release(9)
    assert (engine.pool.used, engine.live_tokens) == (0, 0)
    with pytest.raises(ValueError, match="row 1 has no episode"):
        engine.context(1)


def test_the_pool_grows_without_losing_anything() -> None:
    engine = Engine(LLAMA, verify=False)
    start(engine, [em.ids(0, 10)])
    engine.generate([0], SamplingParams(max_new_tokens=150))
    sampled = engine.generate([0], SamplingParams(max_new_tokens=60))[0]
    plain = em.full_forward(LLAMA, engine.context(0))[-61:-1]
    expected = [em.log_softmax(p)[t] for p, t in zip(plain, sampled.token_ids)]
    assert sampled.logprobs == pytest.approx(expected, abs=1e-4)
