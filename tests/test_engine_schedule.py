"""Any schedule of submits, deltas, releases, forks, cancels and preemptions against one plain forward a token."""

from __future__ import annotations

import copy
from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine import Engine, Finished, TokenEngine
from toolstep.agents.engine.sampling import uniform_stream

LLAMA = em.model(num_hidden_layers=1)
WINDOWED = em.model("mistral", num_hidden_layers=1)


class SlowRow:
    """One row, written as obviously as possible: a whole forward for each id."""

    def __init__(self, model: Any, seed: int, context: list[int] = [], sampled: list[int] = []) -> None:  # noqa: B006
        self.model, self.uniforms = model, uniform_stream(seed).random(4000)
        self.context, self.sampled, self.drawn = list(context), list(sampled), 0

    def turn(self, ids: list[int], params: SamplingParams, stop: set[int]) -> tuple[list[int], list[float], bool]:
        """Ids and log-probabilities; False where a uniform number lies so close to an edge that rounding decides."""
        self.context += ids
        out: list[int] = []
        logprobs: list[float] = []
        clear = True
        while len(out) < params.max_new_tokens:
            scores = em.slow_logprobs(em.full_forward(self.model, np.array(self.context))[-1], self.sampled, params)
            edges = np.cumsum(np.exp(scores))
            u = self.uniforms[self.drawn]
            token = int(np.searchsorted(edges, u * edges[-1], side="right"))
            clear &= bool(np.abs(edges - u * edges[-1]).min() > 1e-5)
            out.append(token)
            logprobs.append(float(scores[token]))
            self.drawn += 1
            self.context.append(token)
            self.sampled.append(token)
            if token in stop:
                break
        return out, logprobs, clear


PARAMS = (
    SamplingParams(max_new_tokens=5),
    SamplingParams(max_new_tokens=2, temperature=0.7, frequency_penalty=0.5, penalty_window=0),
)
STOP = {3, 50}
CHECKED: list[int] = []
PROMPTS = [np.concatenate([em.ids(7, 21), em.ids(i, 1 + 8 * i)]) for i in range(3)]


def run(engine: Engine, model: Any, data: st.DataObject) -> None:
    rows: dict[int, SlowRow] = {}
    pending: dict[int, tuple[int, list[int], SamplingParams]] = {}
    tainted: set[int] = set()  # rows whose history hung on rounding: nothing can be said of them

    def settle(finished: list[Finished]) -> None:
        for ticket, row, completion in finished:
            expected_row, ids, params = pending.pop(ticket)
            assert row == expected_row
            tokens, logprobs, clear = rows[row].turn(ids, params, STOP)
            if not clear:
                tainted.add(row)
            if row not in tainted:
                CHECKED.append(len(tokens))
                assert completion.token_ids.tolist() == tokens
                assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)
                assert engine.context(row).tolist() == rows[row].context

    for row in range(data.draw(st.integers(2, 5), label="rows")):
        engine.start(row, seed=row + 10)
        rows[row] = SlowRow(model, row + 10)
        ids = PROMPTS[data.draw(st.integers(0, 2))]
        pending[engine.submit(row, ids, PARAMS[row % 2], STOP)] = (row, ids.tolist(), PARAMS[row % 2])
    for _ in range(data.draw(st.integers(10, 30), label="operations")):
        idle = [r for r in rows if r not in {row for row, *_ in pending.values()}]
        what = data.draw(
            st.sampled_from(["start", "submit", "submit", "step", "step", "fork", "cancel", "release", "new"])
        )
        if what == "start":
            row = data.draw(st.integers(0, 4))
            if row in rows and row not in idle:
                continue
            engine.start(row, seed=row + 10)
            rows[row] = SlowRow(model, row + 10)
            tainted.discard(row)
        elif what == "step":
            settle(engine.step())
        elif what == "cancel" and pending:
            ticket = data.draw(st.sampled_from(sorted(pending)))
            engine.cancel(ticket)
            del pending[ticket]
        elif not idle:
            continue
        elif what == "submit":
            row = data.draw(st.sampled_from(idle))
            fresh = not rows[row].context
            ids = PROMPTS[data.draw(st.integers(0, 2))] if fresh else em.ids(row, data.draw(st.integers(0, 6)))
            params = data.draw(st.sampled_from(PARAMS))
            pending[engine.submit(row, ids, params, STOP)] = (row, ids.tolist(), params)
        elif what == "release":
            row = data.draw(st.sampled_from(idle))
            engine.release(row)
            del rows[row]
        elif what == "new":
            row = data.draw(st.sampled_from(idle))
            engine.new_segment(row)
            rows[row].context = []
        elif what == "fork":
            row = data.draw(st.sampled_from(idle))
            others = [r for r in (row + 1, row + 2) if r not in rows or r in idle]
            if others:
                engine.fork(row, others, [r + 100 for r in others])
                for other in others:
                    rows[other] = SlowRow(model, other + 100, rows[row].context, rows[row].sampled)
                    tainted.discard(other)
                    if row in tainted:
                        tainted.add(other)
    for _ in range(500):
        if not engine.busy:
            break
        settle(engine.step())
    assert not pending
    for row in list(rows):
        engine.release(row)
    assert (engine.pool.used, engine.live_tokens, engine.scheduler.tree.roots) == (0, 0, set())


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_schedule_samples_what_a_row_alone_would(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from([LLAMA, WINDOWED]))
    engine = Engine(
        model,
        verify=False,
        share_min=data.draw(st.sampled_from([1, 8])),
        block=data.draw(st.sampled_from([4, 8])),
        chunk=data.draw(st.sampled_from([3, 16, 512])),
        kv_tokens=data.draw(st.sampled_from([None, 256, 192])),
        max_running=data.draw(st.sampled_from([None, 1, 2])),
    )
    run(engine, model, data)


def test_the_schedules_did_check_something() -> None:
    assert not CHECKED or sum(CHECKED) > 100  # empty where this test runs alone or in another worker


def test_it_is_a_token_engine() -> None:
    assert isinstance(Engine(LLAMA, verify=False), TokenEngine)


def test_a_budget_makes_turns_wait_and_the_youngest_give_way() -> None:
    """Twelve rows of 60 tokens in a budget of 160: the samples are those of an engine without a budget."""
    params = SamplingParams(max_new_tokens=40)
    tight, free = Engine(LLAMA, verify=False, kv_tokens=160, block=8), Engine(LLAMA, verify=False)
    for engine in (tight, free):
        for row in range(12):
            engine.start(row, row)
            engine.extend(row, em.ids(row, 20))
    got, expected = (engine.generate(range(12), params) for engine in (tight, free))
    assert [c.token_ids.tolist() for c in got] == [c.token_ids.tolist() for c in expected]
    for one, other in zip(got, expected):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert tight.stats.preemptions > 0
    assert tight.pool.peak * 8 <= 160
    assert free.stats.preemptions == 0


def test_a_context_that_fills_the_budget_alone_still_runs_and_is_then_cut() -> None:
    engine = Engine(LLAMA, verify=False, kv_tokens=64, block=8)
    assert engine.max_context == 56
    for row in range(3):
        engine.start(row, row)
        engine.extend(row, em.ids(row, 33))
    for turn in engine.generate(range(3), SamplingParams(max_new_tokens=100)):
        assert (len(turn.token_ids), turn.finish_reason) == (23, "length")


def test_a_freed_place_is_taken_by_the_next_turn_at_once() -> None:
    engine = Engine(LLAMA, verify=False, max_running=2)
    for row in range(4):
        engine.start(row, row)
    limits = (2, 5, 3, 1)
    tickets = [engine.submit(r, em.ids(r, 9), SamplingParams(max_new_tokens=n)) for r, n in enumerate(limits)]
    ended: dict[int, int] = {}
    for number in range(1, 20):
        for finished in engine.step():
            ended[finished.ticket] = number
    assert [ended[t] for t in tickets] == [2, 5, 5, 6]
    assert not engine.busy


def test_a_delta_joins_the_next_forward_of_the_others() -> None:
    engine = Engine(LLAMA, verify=False)
    for row in (0, 1):
        engine.start(row, row)
        engine.submit(row, em.ids(row, 9), SamplingParams(max_new_tokens=1 + 9 * row))
    assert [f.row for f in engine.step()] == [0]
    engine.submit(0, em.ids(5, 6), SamplingParams(max_new_tokens=2))
    fed = engine.stats.fed
    assert engine.step() == []
    assert engine.stats.fed - fed == 7 + 1  # row 0's last sampled id and its observation, and row 1's one id
    assert [f.row for f in engine.step()] == [0]


def test_cancel_goes_back_to_before_submit() -> None:
    engine, other = Engine(LLAMA, verify=False), Engine(LLAMA, verify=False)
    params = SamplingParams(max_new_tokens=6, frequency_penalty=1.0)
    for one in (engine, other):
        one.start(0, 0)
        one.extend(0, em.ids(0, 9))
        one.generate([0], params)
    before = engine.context(0).tolist()
    ticket = engine.submit(0, em.ids(1, 4), params)
    for _ in range(3):
        engine.step()
    engine.cancel(ticket)
    engine.cancel(ticket)
    assert engine.context(0).tolist() == before
    assert not engine.busy
    for one in (engine, other):
        one.extend(0, em.ids(2, 3))
    assert engine.generate([0], params)[0].token_ids.tolist() == other.generate([0], params)[0].token_ids.tolist()


def test_a_fork_shares_its_context_and_draws_its_own_numbers() -> None:
    engine = Engine(LLAMA, verify=False)
    engine.start(0, 0)
    engine.extend(0, em.ids(0, 40))
    engine.generate([0], SamplingParams(max_new_tokens=10))
    engine.fork(0, [1, 2, 3], [11, 12, 11])
    fed, live = engine.stats.fed, engine.live_tokens
    turns = engine.generate([0, 1, 2, 3], SamplingParams(max_new_tokens=8))
    assert turns[1].token_ids.tolist() == turns[3].token_ids.tolist() != turns[2].token_ids.tolist()
    assert engine.stats.fed - fed == 1 + 4 * 7  # the last id of the trunk once
    assert engine.live_tokens - live == 1 + 4 * 7
    for row, turn in enumerate(turns):
        plain = em.full_forward(LLAMA, engine.context(row))[49:-1]
        expected = [em.log_softmax(p)[t] for p, t in zip(plain, turn.token_ids)]
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_prompt_that_is_cancelled_while_others_wait_for_it_is_still_computed() -> None:
    engine = Engine(LLAMA, verify=False, chunk=8)
    tickets = []
    for row in range(3):
        engine.start(row, row)
        tickets.append(engine.submit(row, em.ids(0, 60), SamplingParams(max_new_tokens=3)))
    engine.step()
    engine.cancel(tickets[0])
    done = [f.row for _ in range(20) for f in engine.step()]
    assert sorted(done) == [1, 2]
    assert engine.stats.fed == 60 + 2 * 2


def test_new_weights_in_the_middle_of_a_turn_compute_the_context_anew() -> None:
    model, other = em.model(seed=0), em.model(seed=1)
    engine = Engine(model, verify=False)
    engine.start(0, 0)
    engine.submit(0, em.ids(0, 12), SamplingParams(max_new_tokens=6))
    for _ in range(3):
        engine.step()
    engine.update_weights(other.state_dict())
    done = [f for _ in range(4) for f in engine.step()]
    completion = done[0].completion
    assert completion.weight_version == 0  # of its first token
    plain = em.full_forward(other, engine.context(0))[14:-1]  # `other` is loaded into `model` by now
    expected = [em.log_softmax(p)[t] for p, t in zip(plain, completion.token_ids[3:])]
    assert completion.logprobs[3:] == pytest.approx(expected, abs=1e-4)


def test_a_second_turn_of_a_row_is_refused_while_one_is_under_way() -> None:
    engine = Engine(LLAMA, verify=False)
    engine.start(0, 0)
    engine.submit(0, [1, 2], SamplingParams())
    with pytest.raises(ValueError, match=r"row 0 has a turn under way \(ticket 0\)"):
        engine.submit(0, [3], SamplingParams())
    engine.release(0)
    assert not engine.busy


def test_a_turn_ends_where_the_caller_says_and_takes_what_the_caller_allows() -> None:
    engine = Engine(LLAMA, verify=False)
    engine.start(0, 0)
    even = np.arange(em.VOCABULARY) % 2 == 0
    engine.submit(
        0, em.ids(0, 9), SamplingParams(max_new_tokens=50), allow=lambda ids: even, until=lambda ids: len(ids) == 7
    )
    turn = next(f.completion for _ in range(10) for f in engine.step())
    assert (len(turn.token_ids), turn.finish_reason) == (7, "stop")
    assert not (turn.token_ids % 2).any()


@pytest.mark.parametrize("family", em.FAMILIES)
def test_every_family_is_exact_under_pressure(family: str) -> None:
    """Shared prompts, chunks, deltas, preemptions and turns that begin at different times, all at once."""
    model = em.model(family)
    engine = Engine(model, share_min=4, chunk=24, kv_tokens=152, block=8)
    prompts = [np.concatenate([em.ids(7, 26), em.ids(g, 9)]) for g in range(2)]
    where: dict[int, list[tuple[int, Any]]] = {row: [] for row in range(8)}
    for row in where:
        engine.start(row, row)
        engine.submit(row, prompts[row % 2], SamplingParams(max_new_tokens=4 + row))
    while engine.busy:
        for _, row, completion in engine.step():
            where[row].append((len(engine.context(row)), completion))
            if len(where[row]) < 3:
                engine.submit(row, em.ids(row, 3 + 2 * row), SamplingParams(max_new_tokens=9 - row))
    assert engine.stats.preemptions > 0
    assert engine.stats.shared > 0
    worst = 0.0
    for row, turns in where.items():
        plain = em.full_forward(model, engine.context(row))
        for end, turn in turns:
            for k, token in enumerate(turn.token_ids):
                expected = em.log_softmax(plain[end - len(turn.token_ids) + k - 1])[token]
                worst = max(worst, abs(expected - float(turn.logprobs[k])))
    assert worst <= 1e-4


@pytest.mark.parametrize("family", [*em.FAMILIES, "bamba", "qwen3_next", "gemma3n_text"])
def test_half_precision_stays_within_the_noise_of_two_plain_forwards(family: str) -> None:
    """The error against the same weights in fp32 is no larger than that of transformers' own two attentions in bf16."""
    half = em.model(family).bfloat16()
    exact = copy.deepcopy(half).float()
    engine = Engine(half, share_min=4, chunk=24, kv_tokens=200, block=8)
    for row in range(6):
        engine.start(row, row)
        engine.submit(row, np.concatenate([em.ids(0, 40), em.ids(row, 5)]), SamplingParams(max_new_tokens=30))
    turns = {f.row: f.completion for _ in range(200) for f in engine.step()}
    assert len(turns) == 6
    assert engine.stats.preemptions > 0
    errors: dict[str, list[torch.Tensor]] = {"ours": [], "sdpa": [], "eager": []}
    for row, turn in turns.items():
        context = torch.from_numpy(engine.context(row).astype(np.int64))[None]
        chosen = context[0, 45:, None]

        def logprobs(model: Any, context: torch.Tensor = context, chosen: torch.Tensor = chosen) -> torch.Tensor:
            with torch.no_grad():
                logits = model(input_ids=context, use_cache=False).logits[0, 44:-1].float()
            return torch.log_softmax(logits, -1).gather(1, chosen)[:, 0]

        right = logprobs(exact)
        errors["ours"].append((torch.from_numpy(turn.logprobs) - right).abs())
        for name in ("eager", "sdpa") if half._supports_sdpa else ("eager",):
            half.set_attn_implementation(name)
            errors[name].append((logprobs(half) - right).abs())
    mean = {name: float(torch.cat(parts).mean()) for name, parts in errors.items() if parts}
    assert mean["ours"] <= 1.3 * max(value for name, value in mean.items() if name != "ours")


def test_a_cancelled_turn_leaves_what_another_context_hangs_on() -> None:
    """Row 1 begins with what row 0 is sampling right now; then row 0's turn is taken back, and sampled again."""
    engine = Engine(LLAMA, verify=False, block=4)
    engine.start(0, 0)
    engine.extend(0, em.ids(0, 40))
    ticket = engine.submit(0, (), SamplingParams(max_new_tokens=30))
    for _ in range(12):
        engine.step()
    engine.start(1, 1)
    context = engine.context(0)[:50]
    engine.submit(1, np.concatenate([context, em.ids(1, 3)]), SamplingParams(max_new_tokens=12))
    fed = engine.stats.fed
    engine.step()
    assert engine.stats.fed - fed == 3 + 1  # the ten sampled ids were shared
    engine.cancel(ticket)
    engine.submit(0, em.ids(2, 6), SamplingParams(max_new_tokens=12))
    turns = {f.row: f.completion for _ in range(14) for f in engine.step()}
    for row, turn in turns.items():
        plain = em.full_forward(LLAMA, engine.context(row))[-13:-1]
        assert turn.logprobs == pytest.approx([em.log_softmax(p)[t] for p, t in zip(plain, turn.token_ids)], abs=1e-4)
    assert sorted(turns) == [0, 1]
