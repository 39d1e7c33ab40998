"""ToolUseVectorEnv equals N single envs (I10), in the three autoreset modes, and guards its batch."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.envs import ToolUseEnv, ToolUseVectorEnv

MODES = list(AutoresetMode)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def add(a: int, b: int = 0) -> int:
    """Add two integers."""
    return a + b


def fail() -> None:
    """Always fails."""
    raise RuntimeError("broken")


TASKS = [{"prompt": f"What is {i} + 3?", "answer": str(i + 3)} for i in range(50)]
TURNS = [
    "5",
    "",
    call("add", a=1, b=2),
    call("add", a="x"),
    call("fail") + call("add", a=2),
    "<tool_call>{",
    "no \ud800",
]


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal values, shapes, dtypes and keys, at any depth."""
    assert type(a) is type(b), f"{where}: {type(a)} and {type(b)}"
    if isinstance(a, dict):
        assert a.keys() == b.keys(), f"{where}: {a.keys() ^ b.keys()}"
        for k in a:
            assert_same(a[k], b[k], f"{where}.{k}")
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f"{where}[{i}]")
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        for i, (x, y) in enumerate(zip(a.tolist(), b.tolist())):
            assert_same(x, y, f"{where}[{i}]")
    else:
        assert a == b, f"{where}: {a!r} and {b!r}"


def pair(n: int, mode: AutoresetMode, **kwargs: Any) -> tuple[ToolUseVectorEnv, SyncVectorEnv]:
    ours = ToolUseVectorEnv(n, TASKS, [add, fail], autoreset_mode=mode, **kwargs)
    theirs = SyncVectorEnv([lambda: ToolUseEnv(TASKS, [add, fail], **kwargs)] * n, autoreset_mode=mode)
    return ours, theirs


@settings(max_examples=40, deadline=None)
@given(data=st.data(), n=st.integers(1, 4), mode=st.sampled_from(MODES), seed=st.integers(0, 2**31))
def test_equals_single_envs_under_partial_resets(data: Any, n: int, mode: AutoresetMode, seed: int) -> None:
    ours, theirs = pair(n, mode, max_turns=3)
    assert_same(ours.reset(seed=seed), theirs.reset(seed=seed), "reset")
    done = np.zeros(n, np.bool_)
    for step in range(8):
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        if mode is AutoresetMode.DISABLED:
            mask |= done
        if mask.any() and (data.draw(st.booleans()) or mode is AutoresetMode.DISABLED):
            seeds = data.draw(st.lists(st.none() | st.integers(0, 99), min_size=n, max_size=n))
            options = {"reset_mask": mask}
            assert_same(
                ours.reset(seed=seeds, options=options),
                theirs.reset(seed=seeds, options={"reset_mask": mask.copy()}),
                f"partial reset {step}",
            )
            assert set(options) == {"reset_mask"}
        actions = tuple(data.draw(st.sampled_from(TURNS)) for _ in range(n))
        got = ours.step(actions)
        assert_same(got, theirs.step(actions), f"step {step}")
        done = got[2] | got[3]
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", MODES)
def test_equals_single_envs_in_the_token_view(mode: AutoresetMode, tokenizer: Any) -> None:
    kwargs = {"view": "tokens", "tokenizer": tokenizer, "max_turns": 2}
    ours, theirs = pair(3, mode, **kwargs)
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    stop = tokenizer.eos_token_id
    for turn in (call("add", a=1), "4", call("fail"), "7"):
        ids = [np.array([*tokenizer.encode(turn, add_special_tokens=False), stop]) for _ in range(3)]
        ids[2] = ids[2][:-1]  # cut by length
        got = ours.step(tuple(ids))
        assert_same(got, theirs.step(tuple(ids)))
        if mode is AutoresetMode.DISABLED:
            options = {"reset_mask": got[2] | got[3]}
            if options["reset_mask"].any():
                assert_same(ours.reset(options=dict(options)), theirs.reset(options=dict(options)))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", MODES)
def test_max_episode_steps_is_enforced_as_time_limit_does(mode: AutoresetMode) -> None:
    kwargs = {"autoreset_mode": mode, "max_turns": None}
    ours = gym.make_vec("toolstep/Calculator-v0", num_envs=2, max_episode_steps=2, **kwargs)
    theirs = SyncVectorEnv(
        [lambda: gym.make("toolstep/Calculator-v0", max_episode_steps=2, max_turns=None)] * 2,
        autoreset_mode=mode,
    )
    ours.reset(seed=3)
    theirs.reset(seed=3)
    for actions in ((call("x"), call("x")), (call("x"), "an answer")):
        a, b = ours.step(actions), theirs.step(actions)
        assert_same(a[:4], b[:4])
    assert a[3].all()  # truncated at step 2, the row that terminated there too
    assert a[2].tolist() == [False, True]
    infos = a[4]["final_info"] if mode is AutoresetMode.SAME_STEP else a[4]
    assert list(infos["stop_reason"]) == ["max_turns", "answered"]
    ours.close()
    theirs.close()


def test_vector_env_metadata_is_its_own() -> None:
    a = ToolUseVectorEnv(1, TASKS, autoreset_mode="SameStep")
    b = ToolUseVectorEnv(1, TASKS)
    assert a.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert b.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    a.metadata["render_modes"].append("x")
    assert "x" not in b.metadata["render_modes"]
    assert "autoreset_mode" not in ToolUseVectorEnv.metadata
    assert a.action_space.contains(a.action_space.sample())
    assert a.observation_space.contains(a.reset(seed=0)[0])


@pytest.mark.parametrize(
    ("actions", "error", "says"),
    [
        ("ab", TypeError, "batch of 2"),
        (("a",), ValueError, "got 1"),
        (("a", "b", "c"), ValueError, "got 3"),
        (("a", 3), TypeError, "row 1"),
        (7, TypeError, "batch of 2"),
        (None, TypeError, "batch of 2"),
    ],
)
def test_a_wrong_batch_is_refused_and_changes_nothing(actions: Any, error: type, says: str) -> None:
    envs = ToolUseVectorEnv(2, TASKS, [add])
    envs.reset(seed=0)
    with pytest.raises(error, match=says):
        envs.step(actions)
    assert envs.get_attr("turns") == (0, 0)
    envs.close()


@pytest.mark.parametrize(
    ("kwargs", "error", "says"),
    [
        ({"seed": [1]}, ValueError, "num_envs=2"),
        ({"seed": [1, -1]}, ValueError, "row 1"),
        ({"seed": "1"}, TypeError, "seed"),
        ({"options": {"reset_mask": [True, False]}}, TypeError, "numpy"),
        ({"options": {"reset_mask": np.array([1, 0])}}, TypeError, "dtype"),
        ({"options": {"reset_mask": np.array([True])}}, ValueError, "shape"),
        ({"options": {"reset_mask": np.zeros(2, np.bool_)}}, ValueError, "at least one"),
    ],
)
def test_a_wrong_reset_is_refused_and_changes_nothing(kwargs: Any, error: type, says: str) -> None:
    envs = ToolUseVectorEnv(2, TASKS, [add])
    first = envs.reset(seed=0)
    with pytest.raises(error, match=says):
        envs.reset(**kwargs)
    assert_same(envs.reset(seed=0), first)
    envs.close()


def test_a_finished_row_must_be_reset_first_when_autoreset_is_disabled() -> None:
    envs = ToolUseVectorEnv(2, TASKS, [add], autoreset_mode="Disabled")
    with pytest.raises(gym.error.ResetNeeded):
        envs.step(("a", "b"))
    envs.reset(seed=0)
    _, _, terminated, truncated, _ = envs.step(("5", call("add", a=1)))
    with pytest.raises(gym.error.ResetNeeded, match=r"rows \[0\]"):
        envs.step(("a", "b"))
    envs.reset(options={"reset_mask": terminated | truncated})
    envs.step(("a", "b"))
    envs.close()


def test_one_row_that_fails_never_touches_another() -> None:
    def reward(record: Any) -> float:
        if record.answer == "crash":
            raise RuntimeError("a bug in the reward")
        return 0.5

    envs = ToolUseVectorEnv(3, TASKS, [add], reward=reward, autoreset_mode="SameStep")
    envs.reset(seed=0)
    _, rewards, terminated, truncated, infos = envs.step(("a", "crash", "b"))
    assert rewards.tolist() == [0.5, 0.0, 0.5]
    assert terminated.tolist() == [True, False, True]
    assert truncated.tolist() == [False, True, False]
    assert list(infos["final_info"]["status"]) == ["ok", "env_error", "ok"]
    assert "a bug in the reward" in infos["final_info"]["error"][1]
    envs.close()
    strict = ToolUseVectorEnv(3, TASKS, [add], reward=reward, strict=True)
    strict.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"row 1 \(seed 1\).*a bug in the reward"):
        strict.step(("a", "crash", "b"))
    strict.close()


def test_a_task_set_that_fails_for_one_seed_costs_that_row_only() -> None:
    def draw(seed: int) -> Any:
        from toolstep.envs import Message, Task

        if seed % 2:
            raise RuntimeError("no such task")
        return Task(str(seed), (Message("user", "hi"),), answer="1")

    envs = ToolUseVectorEnv(8, draw)
    _, infos = envs.reset(seed=0)
    bad = infos["status"] == "env_error"
    assert 0 < bad.sum() < 8
    _, rewards, terminated, truncated, infos = envs.step(("1",) * 8)
    assert (truncated == bad).all()
    assert (terminated == ~bad).all()
    assert (rewards == ~bad).all()
    assert set(infos["stop_reason"][bad]) == {"error"}
    envs.close()


def test_same_seed_same_episode_whatever_the_number_of_rows_and_the_order() -> None:
    def texts(n: int) -> list[str]:
        envs = ToolUseVectorEnv(n, "calculator", autoreset_mode="SameStep")
        seeds = list(range(100, 100 + n))
        first = list(envs.reset(seed=seeds)[0])
        second = list(envs.step(("x",) * n)[0])
        envs.close()
        return [a + b for a, b in zip(first, second)]

    assert texts(7)[:3] == texts(3)
    assert texts(1) == texts(2)[:1]


def test_tools_of_a_step_overlap() -> None:
    def slow(seconds: float) -> str:
        """Sleep."""
        time.sleep(seconds)
        return "slept"

    envs = ToolUseVectorEnv(32, TASKS, [slow])
    envs.reset(seed=0)
    begin = time.perf_counter()
    envs.step((call("slow", seconds=0.2),) * 32)
    overlapped = time.perf_counter() - begin
    assert overlapped < 32 * 0.2 / 2
    envs.close()


def test_nothing_is_left_after_a_thousand_resets_and_close() -> None:
    before = threading.active_count()
    envs = ToolUseVectorEnv(4, TASKS, [add], autoreset_mode="SameStep")
    envs.reset(seed=0)
    for _ in range(250):
        envs.reset()
    envs.step((call("add", a=1),) * 4)
    envs.close()
    envs.close()
    assert threading.active_count() == before
