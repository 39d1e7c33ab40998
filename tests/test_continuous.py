"""Collecting without a barrier: the same trajectories, tools beside decoding, and nothing left under way."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from continuous_fakes import TURNS, Lagging, ScriptedAgent, call, slow_envs
from gymnasium.vector import AutoresetMode, VectorWrapper
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_history_policies import FORGETFUL, Talk
from tiny import tiny_model, tiny_tokenizer

from toolstep.agents.base import SamplingParams
from toolstep.agents.continuous import ContinuousAgent
from toolstep.envs import ToolUseVectorEnv
from toolstep.rollout import RunMetrics, collect, group_specs, play
from toolstep.rollout.continuous import ContinuousRun, StuckEnv, plays_continuously

MODES = list(AutoresetMode)


def agent(tokenizer: Any, **options: Any) -> Lagging:
    lag = {k: options.pop(k) for k in ("lag", "schedule", "step_seconds") if k in options}
    return Lagging(ScriptedAgent(tokenizer, options.pop("turns", TURNS), **options), **lag)


def collected(envs: Any, player: Any, specs: Any, **options: Any) -> list[dict[str, Any]]:
    try:
        return [t.to_dict() for t in collect(envs, player, specs, **options)]
    finally:
        envs.close()


def barrier(tokenizer: Any, specs: Any, *, n: int = 3, **options: Any) -> list[dict[str, Any]]:
    mine = {k: options.pop(k) for k in ("abort_every", "cut", "turns") if k in options}
    return collected(slow_envs(n, tokenizer, **options), agent(tokenizer, **mine).agent, specs)


# --------------------------------------------------------- the same outcome
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 6),
    mode=st.sampled_from(MODES),
    lag=st.integers(1, 6),
    schedule=st.integers(0, 2**20),
    seed=st.integers(0, 99),
    abort_every=st.sampled_from([0, 5]),
)
def test_trajectories_are_those_of_the_barrier(
    tokenizer: Any, n: int, mode: AutoresetMode, lag: int, schedule: int, seed: int, abort_every: int
) -> None:
    specs = group_specs(6, 2, seed=seed)
    metrics, player = RunMetrics(), agent(tokenizer, lag=lag, schedule=schedule, abort_every=abort_every)
    got = collected(slow_envs(n, tokenizer, autoreset_mode=mode), player, specs, metrics=metrics)
    assert got == barrier(tokenizer, specs, abort_every=abort_every)
    assert player.agent.generations == metrics.generations == sum(int(t["metrics"]["turns"]) for t in got)
    assert metrics.episodes == 12
    assert sorted(player.agent.released) == list(range(n))


def test_every_way_an_episode_can_end_is_the_same(tokenizer: Any) -> None:
    specs = group_specs(40, 1, seed=1)
    options: dict[str, Any] = {
        "abort_every": 9,
        "max_turns": 3,
        "tool_timeout": 0.2,
        "turns": [*TURNS, call("wait", ms=5000)],
    }
    env_options = {k: options[k] for k in ("max_turns", "tool_timeout")}
    player = agent(tokenizer, abort_every=9, turns=options["turns"])
    got = collected(slow_envs(8, tokenizer, **env_options), player, specs)
    assert got == barrier(tokenizer, specs, n=5, **options)
    assert {t["stop_reason"] for t in got} == {"answered", "max_turns", "cut_turn", "error"}
    assert any("calls/tool_timeout" in t["metrics"] for t in got)


def test_failing_resets_and_rewards_are_the_same(tokenizer: Any) -> None:
    def task(seed: int) -> dict[str, Any]:
        if seed % 3 == 0:
            raise RuntimeError("no such task")
        return {"prompt": f"{seed}?", "answer": "42"}

    def reward(record: Any) -> float:
        if record.turns == 2:
            raise RuntimeError("no reward")
        return 1.0

    specs = group_specs(20, 1, seed=3)
    got = collected(slow_envs(4, tokenizer, tasks=task, reward=reward), agent(tokenizer), specs)
    assert got == barrier(tokenizer, specs, tasks=task, reward=reward)
    assert {t["status"] for t in got} == {"ok", "env_error"}
    assert any(t["metrics"]["turns"] == 0 for t in got)


@pytest.mark.parametrize("history", ["keep", "rerender"])
def test_new_segments_are_the_same(history: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = FORGETFUL
    options: dict[str, Any] = {"tasks": Talk(), "tools": None, "history": history, "max_turns": 6}
    thoughts = ["<think>\nhm\n</think>\n\nok", "ok", "<think>\nso\n</think>\n\n?"]
    turns: dict[str, Any] = {"turns": thoughts, "cut": False}
    specs = group_specs(12, 1, seed=2)
    got = collected(slow_envs(3, tokenizer, **options), agent(tokenizer, **turns), specs)
    assert got == barrier(tokenizer, specs, **turns, **options)
    assert max(len(t["segment_starts"]) for t in got) == (3 if history == "rerender" else 1)


def test_language_model_samples_the_same_tokens() -> None:
    from toolstep.agents.llm import LLMAgent

    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))

    def make() -> Any:
        return LLMAgent(model, tokenizer, sampling=SamplingParams(max_new_tokens=6, top_k=40), seed=3)

    specs = group_specs(3, 2, seed=4)
    plain = make()
    runs = []
    for player in (Lagging(plain, schedule=1), Lagging(make(), lag=2, schedule=2), BarrierOnly(make())):
        envs = slow_envs(4, tokenizer)
        runs.append(collect(envs, player, specs))
        envs.close()
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


class BarrierOnly:
    """A token agent without `submit` and `step`."""

    def __init__(self, agent: Any):
        self.seed, self.env_kwargs = agent.seed, agent.env_kwargs
        self.start, self.act, self.predict = agent.start, agent.act, agent.predict


# ------------------------------------------------------------- overlapping
def test_rows_go_on_while_the_tools_of_one_row_run(tokenizer: Any) -> None:
    """One row sleeps 0.5 s; the other plays 30 episodes meanwhile."""
    specs = group_specs(31, 1, seed=0)
    slow, rest = [call("sleep", ms=500)], ["42"]

    class OneSlow(ScriptedAgent):
        def complete(self, row: int, observation: Any) -> Any:
            self.turns = [self.chat.encode_turn((slow if self.generations == 0 else rest)[0])]
            return super().complete(row, observation)

    player = Lagging(OneSlow(tokenizer, rest), lag=4, schedule=1)
    envs = slow_envs(2, tokenizer)
    order = [index for index, _ in play(envs, player, specs)]
    envs.close()
    assert order[-1] in (0, 1)
    assert sorted(order) == list(range(31))
    assert set(order[:30]) == set(range(31)) - {order[-1]}


def test_freed_row_takes_the_next_episode_at_once(tokenizer: Any) -> None:
    player = agent(tokenizer, lag=3, turns=["42"], cut=False, schedule=5)
    envs = slow_envs(4, tokenizer)
    collect(envs, player, group_specs(40, 1, seed=0))
    envs.close()
    full = next(i for i, rows in enumerate(player.rows_at_step) if rows < 4)
    assert sum(player.rows_at_step[:full]) >= 40  # no step went by with an idle row until the episodes were out


def test_time_is_split_between_agent_env_and_waiting(tokenizer: Any) -> None:
    metrics = RunMetrics()
    envs = slow_envs(2, tokenizer)
    player = agent(tokenizer, turns=[call("sleep", ms=60)], step_seconds=0.002)
    began = time.perf_counter()
    collect(envs, player, group_specs(4, 1, seed=0), metrics=metrics)
    seconds = time.perf_counter() - began
    envs.close()
    assert metrics.wait_seconds > 0.1
    assert metrics.agent_seconds > 0.002 * player.steps
    assert metrics.env_seconds > 0
    assert metrics.agent_seconds + metrics.env_seconds + metrics.wait_seconds <= metrics.seconds <= seconds


# ------------------------------------------------------------ which of both
class OwnStep(ToolUseVectorEnv):
    """Means something by its step."""

    def step(self, actions: Any) -> Any:
        return super().step(actions)


def test_barrier_stays_for_wrappers_own_steps_and_agents_without_submit(tokenizer: Any) -> None:
    player = agent(tokenizer)
    assert isinstance(player, ContinuousAgent)
    assert plays_continuously(slow_envs(1, tokenizer), player)
    assert not plays_continuously(slow_envs(1, tokenizer), player.agent)
    assert not plays_continuously(VectorWrapper(slow_envs(1, tokenizer)), player)
    assert not plays_continuously(slow_envs(1, tokenizer, OwnStep), player)
    specs = group_specs(3, 1, seed=0)
    assert collected(VectorWrapper(slow_envs(2, tokenizer)), player, specs) == barrier(tokenizer, specs)
    assert player.steps == 0


def test_text_env_is_refused_with_the_remedy(tokenizer: Any) -> None:
    envs = slow_envs(1, tokenizer, view="text")
    with pytest.raises(ValueError, match=r"env_kwargs \(view='tokens'\)"):
        collect(envs, agent(tokenizer), group_specs(1, 1, seed=0))
    envs.close()


# ------------------------------------------------------- failing and leaving
def test_interrupt_keeps_what_is_finished_and_leaves_nothing_under_way(tokenizer: Any) -> None:
    specs = group_specs(20, 1, seed=0)
    turns = [*TURNS, call("wait", ms=600)]
    player = agent(tokenizer, turns=turns, interrupt_after=30)
    envs, finished = slow_envs(4, tokenizer), []
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        collect(envs, player, specs, on_episode=finished.append)
    assert time.perf_counter() - began < 60
    assert 0 < len(finished) < 20
    assert envs.pending == 0
    assert not player.busy
    player.agent.interrupt_after = None
    whole = collected(envs, player, specs)  # env and agent can be used again
    by_seed = {t["seed"]: t for t in whole}
    assert whole == barrier(tokenizer, specs, turns=turns)
    assert all(t.to_dict() == by_seed[t.seed] for t in finished)


def test_generator_that_is_dropped_leaves_nothing_under_way(tokenizer: Any) -> None:
    envs = slow_envs(4, tokenizer, tool_timeout=60.0)
    player = agent(tokenizer, turns=["42", call("wait", ms=60_000)], cut=False)
    episodes = play(envs, player, group_specs(20, 1, seed=0))
    while not envs.pending:
        next(episodes)
    episodes.close()
    assert envs.pending == 0
    assert not player.busy
    envs.close()


class Stuck(ToolUseVectorEnv):
    def recv(self, min_rows: int = 1, timeout: float | None = None) -> Any:
        time.sleep(min(timeout or 0.0, 0.05))
        return [], [], np.zeros(0), np.zeros(0, bool), np.zeros(0, bool), []


def test_stuck_env_is_reported_by_row(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolstep.rollout.continuous.LEAVING", 0.2)
    envs, player = slow_envs(3, tokenizer, Stuck), agent(tokenizer)
    run = ContinuousRun(envs, player, 0, RunMetrics(), tokens=True, patience=0.1)
    began = time.perf_counter()
    with pytest.raises(StuckEnv, match=r"rows \[0, 1, 2\] have been waiting for their tools for 0.1 s"):
        list(run.episodes(group_specs(3, 1, seed=0)))
    assert time.perf_counter() - began < 60
    envs.close()


def test_patience_covers_the_deadlines_of_the_tools(tokenizer: Any) -> None:
    envs = slow_envs(2, tokenizer, tool_timeout=50.0)
    run = ContinuousRun(envs, agent(tokenizer), 0, RunMetrics(), tokens=True)
    assert run.patience > 2 * 50.0
    envs.close()


class Forgetful(Lagging):
    busy = False  # type: ignore[assignment]


class Inventive(Lagging):
    def step(self) -> Any:
        return [(row + 1, c) for row, c in super().step()]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Forgetful, r"Forgetful is not busy, but the turns of rows \[0\] were submitted"),
        (Inventive, r"Inventive\.step returned a turn of row 1, which was not submitted"),
    ],
)
def test_agent_that_breaks_the_contract_is_named(tokenizer: Any, kind: Any, said: str) -> None:
    envs = slow_envs(1, tokenizer)
    with pytest.raises((RuntimeError, ValueError), match=said):
        collect(envs, kind(ScriptedAgent(tokenizer, TURNS), lag=1), group_specs(2, 1, seed=0))
    assert envs.pending == 0
    envs.close()


def test_rows_that_somebody_else_has_sent_are_refused_by_name(tokenizer: Any) -> None:
    envs = slow_envs(2, tokenizer)
    envs.begin([1], [0])
    envs.send([envs.config.chat.encode_turn(call("sleep", ms=50))], [1])
    with pytest.raises(Exception, match="the turn of row 1 is under way"):
        collect(envs, agent(tokenizer), group_specs(2, 1, seed=0))
    envs.close()
