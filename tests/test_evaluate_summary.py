"""Evaluation plays the listed pairs and nothing else; errors stay in the denominator (I19)."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from rollout_fakes import MODES, FakeTextAgent, FakeTokenAgent, fake_envs
from test_rollout_types import make

from toolstep.rollout.collect import RunMetrics
from toolstep.rollout.evaluate import evaluate, summarize
from toolstep.rollout.specs import group_specs
from toolstep.rollout.stats import wilson


def table(summary):
    return {k: v for k, v in summary.to_dict().items() if k != "speed"}


@pytest.mark.parametrize("view", ["tokens", "text"])
def test_table_does_not_depend_on_rows_or_mode(view):
    agents = {"tokens": FakeTokenAgent, "text": FakeTextAgent}
    tables = [
        table(evaluate(fake_envs(n, mode, view=view), agents[view](), 12, seed=3, samples=2))
        for n, mode in [(1, MODES[0]), (7, MODES[1]), (30, MODES[2])]
    ]
    assert tables[0] == tables[1] == tables[2]
    assert tables[0]["episodes"] == tables[0]["requested"] == 24


def test_exactly_the_listed_pairs_are_played():
    seen = []
    evaluate(fake_envs(5), FakeTokenAgent(), 9, seed=3, samples=2, on_episode=seen.append)
    assert sorted((t.seed, t.sample_index, t.group_id) for t in seen) == sorted(
        (s.seed, s.sample_index, s.group_id) for s in group_specs(9, 2, seed=3)
    )


def episode(reward=0.0, *, success=0.0, status="ok", seed=0, tags=None, **metrics):
    return make(
        [((), (5, 6), reward)],
        status=status,
        seed=seed,
        tags=tags or {},
        metrics={"success": success, **metrics},
        stop_reason="answered" if status == "ok" else "error",
    )


def test_errors_stay_in_the_denominator_and_are_counted_apart():
    rows = [
        episode(1.0, success=1.0, seed=0),
        episode(0.0, seed=1),
        # Even one that claims a success: its status says that it is no fair sample.
        episode(1.0, success=1.0, status="env_error", seed=2),
        episode(0.0, status="agent_error", seed=3),
    ]
    summary = summarize(rows, requested=5)
    assert (summary.episodes, summary.requested, summary.successes, summary.errors) == (4, 5, 1, 2)
    assert summary.success_rate == 0.25
    assert summary.success_interval == wilson(1, 4)
    assert summary.statuses == {"ok": 2, "agent_error": 1, "env_error": 1}
    assert summary.stop_reasons == {"answered": 2, "error": 2}


def test_calls_turns_and_tokens_are_summed_from_the_episodes():
    rows = [
        episode(1.0, seed=0, **{"calls/ok": 3.0, "calls/wrong_type": 1.0, "truncated_responses": 1.0}),
        episode(0.5, seed=1, **{"calls/ok": 2.0}),
    ]
    summary = summarize(rows)
    assert summary.calls == {"ok": 5, "wrong_type": 1}
    assert (summary.mean_reward, summary.turns, summary.sampled_tokens) == (0.75, 1.0, 2.0)
    assert (summary.observed_tokens, summary.context_tokens, summary.truncated_responses) == (0.0, 4.0, 1)


def test_results_are_broken_down_by_tag():
    rows = [
        episode(1.0, success=1.0, seed=0, tags={"level": "1", "kind": "sum"}),
        episode(0.0, seed=1, tags={"level": "1"}),
        episode(0.0, seed=2, tags={"level": "2"}),
    ]
    tags = summarize(rows).tags
    assert list(tags) == ["kind", "level"]
    assert (tags["level"]["1"].episodes, tags["level"]["1"].success_rate) == (2, 0.5)
    assert tags["level"]["2"].success_interval == wilson(0, 1)
    assert tags["kind"]["sum"].mean_reward == 1.0


def test_order_of_episodes_does_not_matter():
    rows = [episode(float(np.sin(i * i)), seed=i) for i in range(20)]
    assert summarize(rows) == summarize(rows[::-1])


def test_summary_is_json_and_says_how_long_it_took():
    metrics = RunMetrics()
    summary = evaluate(fake_envs(3), FakeTokenAgent(), 5, seed=0, metrics=metrics)
    data = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert data["speed"]["tokens_per_second"] == pytest.approx(metrics.tokens_per_second)
    assert set(data) == {f.name for f in dataclasses.fields(summary)}


def test_nothing_finished_has_a_summary_too():
    summary = summarize([], requested=3)
    assert (summary.episodes, summary.success_rate, summary.success_interval) == (0, 0.0, None)
    json.dumps(summary.to_dict(), allow_nan=False)
