"""`send` and `recv`: turns of single rows, whose outcomes are those of `step`; wrong use changes nothing."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from gymnasium import error
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from test_vector import TASKS, TURNS, add, assert_same, call, fail

from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.tools import tool

MODES = list(AutoresetMode)


@tool(name="wait")
async def wait_async(ms: int) -> int:
    """Waits.

    Args:
        ms: Milliseconds.
    """
    await asyncio.sleep(ms / 1000)
    return ms


@tool(name="sleep")
def sleep(ms: int) -> int:
    """Sleeps.

    Args:
        ms: Milliseconds.
    """
    time.sleep(ms / 1000)
    return ms


TOOLS = [add, fail, wait_async, sleep]
SLOW = [call("wait", ms=ms) + call("sleep", ms=ms % 3) for ms in (0, 5, 12)] + [call("sleep", ms=7)]


def make(n: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> ToolUseVectorEnv:
    return ToolUseVectorEnv(n, TASKS, TOOLS, autoreset_mode=mode, **options)


def outcome(received: Any, k: int) -> tuple[Any, ...]:
    return (
        received.observations[k],
        float(received.rewards[k]),
        bool(received.terminations[k]),
        bool(received.truncations[k]),
        received.infos[k],
    )


# ------------------------------------------------------- the same as step()
@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    n=st.integers(1, 5),
    mode=st.sampled_from(MODES),
    seeds=st.lists(st.integers(0, 2**31), min_size=5, max_size=5),
    max_steps=st.sampled_from([None, 2]),
    schedule=st.integers(0, 2**20),
)
def test_rows_equal_single_envs_in_any_order_of_completion(
    data: Any, n: int, mode: AutoresetMode, seeds: list[int], max_steps: int | None, schedule: int
) -> None:
    choose = random.Random(schedule)  # what is drawn from hypothesis must not depend on which tool is first
    singles = [ToolUseEnv(TASKS, TOOLS, max_turns=max_steps or 3) for _ in range(n)]
    envs = make(n, mode, max_turns=3, max_episode_steps=max_steps)
    scripts = [data.draw(st.lists(st.sampled_from(TURNS + SLOW), min_size=1, max_size=5)) for _ in range(n)]
    expected: list[list[Any]] = []
    for single, script, seed in zip(singles, scripts, seeds):
        log: list[Any] = [single.reset(seed=seed)]
        for action in script:
            obs, reward, terminated, truncated, info = single.step(action)
            late = max_steps is not None and info["turn"] >= max_steps  # as Gymnasium's TimeLimit
            log.append((obs, reward, terminated, truncated or late, info))
            if log[-1][2] or log[-1][3]:
                log.append(single.reset())
        expected.append(log)
    logs: list[list[Any]] = [[] for _ in range(n)]
    left = [list(script) for script in scripts]
    observations, infos = envs.begin(range(n), seeds[:n])
    for i in range(n):
        logs[i].append((observations[i], infos[i]))
    idle = set(range(n))
    while any(left) or envs.pending:
        ready = [i for i in idle if left[i]]
        chosen = [i for i in ready if choose.random() < 0.5] if envs.pending else ready
        envs.send([left[i].pop(0) for i in chosen], chosen)
        idle -= set(chosen)
        if not envs.pending:
            continue
        got = envs.recv(min_rows=choose.randint(0, envs.pending), timeout=10)
        for k, i in enumerate(got.rows):
            logs[i].append(outcome(got, k))
            if got.terminations[k] or got.truncations[k]:
                (obs,), (info,) = envs.begin([i], [None])
                logs[i].append((obs, info))
        idle |= set(got.rows)
    assert_same(logs, expected)
    envs.close()
    for single in singles:
        single.close()


def test_token_view_equals_step(tokenizer: Any) -> None:
    options: dict[str, Any] = {"view": "tokens", "tokenizer": tokenizer, "max_turns": 3}
    a, b = make(4, **options), make(4, **options)
    chat = a.config.chat
    turns = [chat.encode_turn(t) for t in (TURNS[2], TURNS[4], SLOW[1])] + [np.array([5, 6, 7])]
    stepped_obs, _ = a.reset(seed=[3, 4, 5, 6])
    observations, _ = b.begin([0, 1, 2, 3], [3, 4, 5, 6])
    assert_same(list(stepped_obs), observations)
    obs, rewards, terminated, truncated, infos = a.step(turns)
    b.send(turns[::-1], [3, 2, 1, 0])
    got = b.recv(min_rows=4)
    for k, i in enumerate(got.rows):
        assert_same(got.observations[k], obs[i])
        assert (got.rewards[k], got.terminations[k], got.truncations[k]) == (rewards[i], terminated[i], truncated[i])
        assert got.infos[k]["sources"] == infos["sources"][i]
    a.close()
    b.close()


def test_step_and_send_may_follow_each_other() -> None:
    a, b = make(2), make(2)
    a.reset(seed=1)
    b.reset(seed=1)
    first = a.step([TURNS[2]] * 2)
    b.send([TURNS[2]] * 2, [0, 1])
    got = b.recv(min_rows=2)
    assert_same([got.observations[got.rows.index(i)] for i in (0, 1)], list(first[0]))
    assert_same(a.step(["5", TURNS[2]]), b.step(["5", TURNS[2]]))
    assert_same(a.step(["", "5"]), b.step(["", "5"]))  # row 0 is reset by NEXT_STEP
    a.close()
    b.close()


@pytest.mark.parametrize("mode", MODES)
def test_row_that_ended_by_recv_and_step(mode: AutoresetMode) -> None:
    envs = make(2, mode)
    envs.reset(seed=0)
    envs.send(["5"], [0])
    assert envs.recv().terminations.tolist() == [True]
    if mode is AutoresetMode.NEXT_STEP:
        assert envs.step(["", TURNS[2]])[4]["turn"].tolist() == [0, 1]
    else:
        with pytest.raises(error.ResetNeeded, match=r"rows \[0\] have ended"):
            envs.step(["", TURNS[2]])
    envs.close()


# ------------------------------------------------------------- overlapping
def test_rows_come_back_in_order_of_completion_and_do_not_wait_for_each_other() -> None:
    envs = make(3, max_turns=None)
    envs.begin([0, 1, 2], [0, 1, 2])
    began = time.perf_counter()
    envs.send([call("sleep", ms=3000), call("wait", ms=150), call("add", a=1)], [0, 1, 2])
    assert time.perf_counter() - began < 2.5
    assert envs.pending == 3
    rows = []
    while envs.pending > 1:
        got = envs.recv(timeout=5)
        rows += got.rows
        if 2 in got.rows and 1 not in rows:  # goes on while the others wait
            envs.send([call("add", a=2)], [2])
    assert time.perf_counter() - began < 2.5
    assert set(rows) == {1, 2}
    rows.clear()
    assert envs.recv(timeout=5).rows == [0]
    envs.close()


def test_recv_with_a_timeout_returns_what_there_is() -> None:
    envs = make(2)
    envs.begin([0, 1], [0, 1])
    envs.send([call("sleep", ms=1500), "5"], [0, 1])
    assert envs.recv(min_rows=2, timeout=0.05).rows == [1]
    began = time.perf_counter()
    nothing = envs.recv(timeout=0)
    assert time.perf_counter() - began < 1
    assert nothing.rows == nothing.observations == nothing.infos == []
    assert nothing.rewards.shape == (0,)
    assert envs.pending == 1
    assert envs.recv(min_rows=1).rows == [0]
    envs.close()


def test_one_slow_row_answers_its_timeout_while_others_go_on() -> None:
    envs = make(2, tool_timeout=0.3)
    envs.begin([0, 1], [0, 1])
    envs.send([call("sleep", ms=2000), call("add", a=1)], [0, 1])
    assert envs.recv().rows == [1]
    got = envs.recv(timeout=5)
    assert got.rows == [0]
    assert got.infos[0]["call_statuses"] == ["tool_timeout"]
    assert not got.truncations[0]
    envs.close()


# ----------------------------------------------------------------- failures
class Crash(Exception):
    pass


def crashing_reward(record: Any) -> float:
    if "boom" in record.messages[-1].content:
        raise Crash("no reward")
    return 1.0


def test_failing_row_ends_alone() -> None:
    envs = make(3, reward=crashing_reward)
    envs.begin([0, 1, 2], [0, 1, 2])
    envs.send(["fine", "boom", call("add", a=1)], [0, 1, 2])
    got = envs.recv(min_rows=3)
    by_row = dict(zip(got.rows, got.infos))
    assert [by_row[i]["status"] for i in range(3)] == ["ok", "env_error", "ok"]
    assert "Crash: no reward" in by_row[1]["error"]
    assert got.truncations[got.rows.index(1)]
    with pytest.raises(error.ResetNeeded, match="the episode of row 1 is over"):
        envs.send(["x"], [1])
    envs.begin([1], [7])
    envs.send(["fine"], [1])
    assert envs.recv().infos[0]["status"] == "ok"
    envs.close()


def test_strict_failure_names_its_row_and_loses_no_other() -> None:
    envs = make(3, reward=crashing_reward, strict=True)
    envs.begin([0, 1, 2], [0, 1, 2])
    envs.send(["fine", "boom", "fine"], [0, 1, 2])
    with pytest.raises(RuntimeError, match=r"row 1 \(seed 1\) failed: Crash: no reward"):
        envs.recv(min_rows=3)
    assert envs.pending == 2
    assert envs.recv(min_rows=2).rows == [0, 2]
    envs.begin([1], [1])
    envs.close()


def test_reset_that_fails_ends_with_its_next_turn() -> None:
    def task(seed: int) -> dict[str, str]:
        raise Crash("no task")

    envs = ToolUseVectorEnv(1, task)
    _, (info,) = envs.begin([0], [0])
    assert info["status"] == "env_error"
    envs.send([call("add", a=1)], [0])
    got = envs.recv()
    assert (got.infos[0]["stop_reason"], bool(got.truncations[0])) == ("error", True)
    envs.close()


# ---------------------------------------------------------------- wrong use
@pytest.fixture
def busy() -> Any:
    """Rows 0 and 4 are idle, row 1 is pending, row 2 over, row 3 never begun."""
    envs = make(5)
    envs.begin([0, 1, 2, 4], [0, 1, 2, 4])
    envs.send(["5"], [2])
    envs.recv()
    envs.send([call("sleep", ms=150)], [1])
    yield envs
    envs.close()


X = call("add", a=1)


@pytest.mark.parametrize(
    ("actions", "rows", "kind", "said"),
    [
        ([X, X], [0, 1], error.AlreadyPendingCallError, "send: the turn of row 1 is under way"),
        ([X, X], [0, 2], error.ResetNeeded, "send: the episode of row 2 is over"),
        ([X, X], [0, 3], error.ResetNeeded, "send: row 3 was never begun"),
        ([X, X], [0, 5], ValueError, r"a row must be a whole number in \[0, 5\), got 5"),
        ([X, X], [0, -1], ValueError, r"got -1"),
        ([X, X], [0, True], ValueError, r"got True"),
        ([X, X], [0, 0], ValueError, "row 0 is listed twice"),
        ([X], [0, 0], ValueError, "row 0 is listed twice"),
        ([X, X], [0], ValueError, "1 rows but 2 actions"),
        ("x", [0], TypeError, "expected a list of 1 actions, got one str"),
        ([X, 3], [0, 4], TypeError, "row 4: .*takes a str"),
    ],
)
def test_wrong_send_names_the_row_and_changes_nothing(busy: Any, actions: Any, rows: Any, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=said):
        busy.send(actions, rows)
    assert busy.pending == 1
    busy.send([X], [0])
    got = busy.recv(min_rows=2, timeout=5)
    assert sorted(got.rows) == [0, 1]
    assert got.infos[got.rows.index(0)]["turn"] == 1


@pytest.mark.parametrize(
    ("rows", "seeds", "kind", "said"),
    [
        ([0, 1], [5, 6], error.AlreadyPendingCallError, "begin: the turn of row 1 is under way"),
        ([0, 9], [5, 6], ValueError, "got 9"),
        ([0], [5, 6], ValueError, "1 rows but 2 seeds"),
        ([0, 2], [5, -6], ValueError, "the seed of row 2 .* got -6"),
        ([0, 2], [5, 1.5], ValueError, "the seed of row 2 .* got 1.5"),
    ],
)
def test_wrong_begin_names_the_row_and_changes_nothing(busy: Any, rows: Any, seeds: Any, kind: Any, said: str) -> None:
    before = busy.np_random_seed
    with pytest.raises(kind, match=said):
        busy.begin(rows, seeds)
    assert busy.np_random_seed == before
    assert busy.recv().rows == [1]


def test_step_and_reset_while_rows_are_pending_are_refused(busy: Any) -> None:
    messages = busy.get_attr("messages")
    for use in (
        lambda: busy.step([X] * 5),
        lambda: busy.reset(seed=3),
        lambda: busy.reset(options={"reset_mask": np.array([True, False, False, False, True])}),
    ):
        with pytest.raises(error.AlreadyPendingCallError, match=r"the turns of rows \[1\] are under way: recv"):
            use()
    assert busy.get_attr("messages") == messages
    assert busy.recv().rows == [1]


def test_wrong_recv(busy: Any) -> None:
    for wrong in (-1, 1.5, True, "1"):
        with pytest.raises(ValueError, match="min_rows must be"):
            busy.recv(min_rows=wrong)
    with pytest.raises(ValueError, match="min_rows=2, but only 1 rows are pending"):
        busy.recv(min_rows=2)
    for late in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout must be"):
            busy.recv(timeout=late)
    assert busy.recv().rows == [1]
    with pytest.raises(error.NoAsyncCallError, match="nothing pending"):
        busy.recv()


def test_begin_gives_up_a_running_episode() -> None:
    envs = make(1)
    first = envs.begin([0], [3])
    envs.send([X], [0])
    envs.recv()
    assert_same(envs.begin([0], [3]), first)
    envs.close()


def test_what_is_handed_out_is_the_callers_own(tokenizer: Any) -> None:
    envs = make(1, view="tokens", tokenizer=tokenizer)
    (obs,), _ = envs.begin([0], [3])
    obs[:] = 0
    assert envs._rows.observations[0].any()
    envs.send([envs.config.chat.encode_turn(call("add", a=1))], [0])
    received = envs.recv()
    received.observations[0][:] = 0
    assert envs._rows.observations[0].any()
    envs.close()


# --------------------------------------------------------- cancel and close
def test_cancelled_rows_come_back_with_an_error_for_the_model() -> None:
    envs = make(3)
    envs.begin([0, 1, 2], [0, 1, 2])
    envs.send([call("sleep", ms=2000), call("wait", ms=9000), call("wait", ms=300)], [0, 1, 2])
    with pytest.raises(ValueError, match="cancel: row 7 is not pending"):
        envs.cancel([0, 7])
    began = time.perf_counter()
    envs.cancel([0, 1])
    got = envs.recv(min_rows=2)
    assert time.perf_counter() - began < 1.8
    assert sorted(got.rows) == [0, 1]
    assert [info["call_statuses"] for info in got.infos] == [["tool_error"]] * 2
    assert json.loads(got.infos[0]["new_messages"][1]["content"])["message"].endswith("was cancelled")
    assert envs.recv().infos[0]["call_statuses"] == ["ok"]
    envs.close()


def test_close_while_rows_are_pending_leaves_nothing() -> None:
    before = set(threading.enumerate())
    envs = make(2)
    envs.begin([0, 1], [0, 1])
    envs.send([call("wait", ms=9000), call("sleep", ms=200)], [0, 1])
    envs.close()
    assert sorted(envs.recv(min_rows=2, timeout=5).rows) == [0, 1]
    for use in (lambda: envs.send(["x"], [0]), lambda: envs.begin([0], [0])):
        with pytest.raises(error.ClosedEnvironmentError):
            use()
    until = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
