"""Evaluation plays the listed pairs and nothing else; errors stay in the denominator (I19)."""

from __future__ import annotations

import dataclasses
import json
import time
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from rollout_fakes import MODES, FakeEnv, FakeTextAgent, FakeTokenAgent, fake_envs
from test_rollout_types import make

from toolstep.rollout.collect import RunMetrics, collect
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


def test_several_samples_give_pass_at_k():
    rows = [
        episode(1.0, success=float(good), score=float(good), seed=task, status="ok" if sample else "env_error")
        for task, goods in enumerate([(1, 1, 1), (0, 1, 0)])
        for sample, good in enumerate(goods)
    ]
    summary = summarize(rows)
    assert [(p.k, p.tasks) for p in summary.passes] == [(1, 2), (2, 2), (3, 2)]
    # An error is no success, whatever it claims: 2 of 3 and 1 of 3.
    assert [p.pass_at for p in summary.passes] == pytest.approx([1 / 2, (1 + 2 / 3) / 2, 1.0])
    assert [p.pass_all for p in summary.passes] == pytest.approx([1 / 2, (1 / 3 + 0) / 2, 0.0])
    assert summary.passes[0].pass_at == pytest.approx(summary.success_rate) == pytest.approx(summary.mean_score)
    assert summarize(rows[1:]).passes[2].tasks == 1  # an interrupted run: the other task lacks a sample
    assert summarize(rows[::3]).passes == []
    json.dumps(summary.to_dict(), allow_nan=False)


def test_score_is_partial_and_an_error_has_none():
    rows = [
        episode(2.0, score=0.5, seed=0),
        episode(2.0, score=1.0, success=1.0, seed=1),
        episode(2.0, score=1.0, success=1.0, status="env_error", seed=2),
    ]
    summary = summarize(rows)
    assert (summary.mean_score, summary.mean_reward) == (0.5, 2.0)
    assert summary.score_interval.low < 0.5 < summary.score_interval.high


def test_order_of_the_list_does_not_matter():
    specs = group_specs(8, 2, seed=1)
    shuffled = [specs[i] for i in np.random.default_rng(0).permutation(len(specs))]
    first, second = (summarize(collect(fake_envs(3), FakeTokenAgent(), s, seed=1)) for s in (specs, shuffled))
    assert first == second


def test_table_does_not_depend_on_worker_processes():
    expected = table(evaluate(fake_envs(1, view="text"), FakeTextAgent(), 6, seed=3, samples=2))
    for workers in (2, 5):
        envs = AsyncVectorEnv(
            [partial(FakeEnv, "text")] * workers,
            shared_memory=False,
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        try:
            assert table(evaluate(envs, FakeTextAgent(), 6, seed=3, samples=2)) == expected
        finally:
            envs.close()


def test_time_of_tools_is_summed_over_calls():
    from toolstep.envs import ToolUseVectorEnv

    def wait() -> str:
        """Wait a little."""
        time.sleep(0.02)
        return "done"

    tasks = [{"prompt": "wait", "answer": "done"}]

    class Waits:
        env_kwargs = {}

        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            call = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
            return tuple(call if starts else "done" for starts in episode_start), state

    envs = ToolUseVectorEnv(3, tasks, tools=[wait])
    metrics = RunMetrics()
    try:
        first = evaluate(envs, Waits(), 6, metrics=metrics)
        again = evaluate(envs, Waits(), 3)
        in_all, rendered = envs.total_tool_seconds, envs.total_template_seconds
    finally:
        envs.close()
    assert first.calls == {"ok": 6}
    assert metrics.tool_seconds == first.speed.tool_seconds >= 6 * 0.02
    assert first.speed.tool_seconds + again.speed.tool_seconds == pytest.approx(in_all)
    assert again.speed.tool_seconds >= 3 * 0.02
    assert first.speed.template_seconds + again.speed.template_seconds == pytest.approx(rendered)
    assert 0 < first.speed.template_seconds <= metrics.env_seconds
    assert evaluate(fake_envs(2), FakeTokenAgent(), 2).speed.tool_seconds is None
