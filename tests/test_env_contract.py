"""The Gymnasium contract (invariant I9), for every registered id and every view."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from importlib.util import find_spec

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from toolstep.envs import TokenSequence, ToolUseEnv, ToolUseVectorEnv, UnicodeText
from toolstep.envs.tasks.families import family_of

# All but the one that needs a file (tests/test_tasks_jsonl.py).
OWN = sorted(i for i in gym.registry if i.startswith("toolstep/") and family_of(i) is None and i != "toolstep/Jsonl-v0")
# Of the families that other packages bring, some members where these are installed.
MEMBERS = {
    "bfcl_eval": ["toolstep/BFCL-simple_python-v0", "toolstep/BFCL-multi_turn_base-v0"],
    "reasoning_gym": ["toolstep/ReasoningGym-chain_sum-v0"],
}
IDS = [*OWN, *(i for package, ids in MEMBERS.items() if find_spec(package) for i in ids)]


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


TASKS = [{"prompt": f"What is {i} + 3?", "answer": str(i + 3)} for i in range(20)]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("view", ["text", "messages"])
def test_check_env_without_a_warning(env_id: str, view: str) -> None:
    env = gym.make(env_id, view=view, render_mode="ansi").unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)
    env.close()


def test_check_env_without_a_warning_in_the_token_view(tokenizer: object) -> None:
    env = gym.make("toolstep/Calculator-v0", view="tokens", tokenizer=tokenizer).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)
    env.close()


@pytest.mark.parametrize("env_id", IDS)
def test_specs_survive_json_and_pickling(env_id: str) -> None:
    options = {"level": 2} if env_id in OWN else {}
    env = gym.make(env_id, max_turns=3, **options)
    spec = EnvSpec.from_json(env.spec.to_json())
    again = gym.make(spec)
    assert pickle.loads(pickle.dumps(env.spec)) == env.spec
    assert again.unwrapped.config.limits.max_turns == 3
    assert env.reset(seed=5)[0] == again.reset(seed=5)[0]
    vec = gym.make_vec(env_id, num_envs=2, autoreset_mode="SameStep", **options)
    vec_again = gym.make_vec(EnvSpec.from_json(vec.spec.to_json()))
    assert vec_again.num_envs == 2
    assert vec_again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert vec.reset(seed=5)[0] == vec_again.reset(seed=5)[0]
    for e in (env, again, vec, vec_again):
        e.close()


@pytest.mark.parametrize(
    ("mode", "kwargs"),
    [(None, {}), ("sync", {}), ("async", {"vector_kwargs": {"shared_memory": False}})],
)
def test_make_vec_gives_the_same_episodes_in_each_vectorization_mode(mode: str | None, kwargs: dict) -> None:
    envs = gym.make_vec("toolstep/Calculator-v0", num_envs=3, vectorization_mode=mode, **kwargs)
    single = [gym.make("toolstep/Calculator-v0") for _ in range(3)]
    obs, infos = envs.reset(seed=7)
    expected = [e.reset(seed=7 + i) for i, e in enumerate(single)]
    assert list(obs) == [o for o, _ in expected]
    assert list(infos["task_id"]) == [i["task_id"] for _, i in expected]
    obs, _, terminated, truncated, infos = envs.step(("no", "idea", "at all"))
    assert terminated.all()
    assert not truncated.any()
    assert list(infos["stop_reason"]) == ["answered"] * 3
    for e in (envs, *single):
        e.close()


def test_shared_memory_is_refused_with_the_fix_instead_of_showing_stale_text() -> None:
    with pytest.raises(ValueError, match="shared_memory=False"):
        gym.make_vec("toolstep/Calculator-v0", num_envs=2, vectorization_mode="async")


def test_importing_envs_is_light() -> None:
    code = (
        "import sys, toolstep.envs\n"
        "bad = {'torch', 'transformers', 'pint', 'griffe', 'toolstep.agents', 'toolstep.rollout'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    path = [p for p in sys.path if p]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n" + NAMESPACE + code],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr


NAMESPACE = (
    "import types\nns = types.ModuleType('toolstep'); ns.__path__ = [{root!r}]; sys.modules['toolstep'] = ns\n"
).format(root=str(__import__("pathlib").Path(__file__).resolve().parent.parent))


def test_wrappers_of_gymnasium_work_on_the_text_view() -> None:
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("toolstep/Calculator-v0", max_episode_steps=4))
    env.reset(seed=0)
    *_, terminated, _, info = env.step("12")
    assert terminated
    assert info["episode"]["l"] == 1
    env.close()


def test_stepping_a_finished_episode_asks_for_a_reset() -> None:
    env = ToolUseEnv(TASKS, tools=[add])
    with pytest.raises(gym.error.ResetNeeded):
        env.step("5")
    env.reset(seed=0)
    env.step("5")
    with pytest.raises(gym.error.ResetNeeded, match="over"):
        env.step("5")
    env.close()


@pytest.mark.parametrize("action", [None, 7, b"bytes", ["a"], np.zeros(3)])
def test_an_action_of_the_wrong_type_is_refused_and_changes_nothing(action: object) -> None:
    env = ToolUseEnv(TASKS, tools=[add])
    env.reset(seed=0)
    with pytest.raises(TypeError, match="one assistant turn"):
        env.step(action)
    assert env.step("0")[4]["turn"] == 1
    env.close()


def test_unicode_text_takes_any_text_but_lone_surrogates() -> None:
    space = UnicodeText(10, seed=0)
    assert "é 你好 \n{}" in space
    assert "" in space
    assert "\ud800" not in space
    assert "x" * 11 not in space
    assert 3 not in space
    assert all(space.sample() in space for _ in range(100))
    assert pickle.loads(pickle.dumps(space)) == space
    assert len(pickle.dumps(space)) < 10_000
    assert space != UnicodeText(11)


def test_token_sequences_end_with_a_stop_id_when_sampled_as_actions() -> None:
    space = TokenSequence(50, stop_ids=(7, 9), seed=0)
    for _ in range(50):
        ids = space.sample()
        assert ids in space
        assert ids[-1] in (7, 9)
        assert not np.isin(ids[:-1], (7, 9)).any()
    assert np.zeros(0, np.int64) in space
    assert np.array([50]) not in space
    assert np.array([-1]) not in space
    assert np.array([1.0]) not in space
    assert np.zeros((2, 2), np.int64) not in space


@pytest.mark.parametrize(
    ("kwargs", "error", "names"),
    [
        ({"max_turn": 3}, TypeError, "max_turns"),
        ({"max_turns": 0}, ValueError, "max_turns"),
        ({"max_turns": True}, ValueError, "max_turns"),
        ({"tool_timeout": -1}, ValueError, "tool_timeout"),
        ({"view": "pixels"}, ValueError, "text"),
        ({"view": "tokens"}, ValueError, "tokenizer"),
        ({"max_tokens": 5}, ValueError, "tokenizer"),
        ({"split": "dev"}, ValueError, "train"),
        ({"shots": -1}, ValueError, "shots"),
        ({"shots": 100_000}, ValueError, "shots"),
        ({"tool_timeout": float("inf")}, ValueError, "tool_timeout"),
        ({"tool_timeout": float("nan")}, ValueError, "tool_timeout"),
        ({"max_context": 2.5}, ValueError, "max_context"),
        ({"max_context": "5"}, ValueError, "max_context"),
        ({"template_kwargs": 5}, ValueError, "template_kwargs"),
        ({"reward": 5}, ValueError, "reward"),
        ({"history": "drop"}, ValueError, "rerender"),
        ({"stop_token": ["x"]}, TypeError, "stop_tokens"),
        ({"thinking_ratio": 2}, ValueError, "thinking_ratio"),
        ({"thinking_ratio": "a"}, ValueError, "thinking_ratio"),
        ({"tools": add}, ValueError, r"tools=\[...\]"),
        ({"tools": [add, add]}, ValueError, "add"),
        ({"render_mode": "human"}, ValueError, "ansi"),
    ],
)
def test_a_keyword_that_cannot_work_is_refused_by_name(kwargs: dict, error: type, names: str) -> None:
    with pytest.raises(error, match=names):
        ToolUseEnv(TASKS, **kwargs)
    with pytest.raises(error, match=names):
        ToolUseVectorEnv(2, TASKS, **kwargs)


def test_a_template_of_ones_own_works_without_a_tokenizer() -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    env = ToolUseEnv(TASKS, tools=[add], chat_template=template, stop_tokens=["[end]"])
    assert env.reset(seed=0)[0].endswith("[assistant]")
    assert env.step(call("add", a=1, b=2))[0] == "[end][user]Result: 3[end][assistant]"


def test_stepping_after_close_is_the_callers_error_in_both_classes() -> None:
    env, envs = ToolUseEnv(TASKS, tools=[add]), ToolUseVectorEnv(1, TASKS, tools=[add])
    for e, action in ((env, call("add", a=1, b=2)), (envs, (call("add", a=1, b=2),))):
        e.reset(seed=0)
        e.close()
        with pytest.raises(RuntimeError, match="closed"):
            e.step(action)


def test_ansi_rendering_shows_the_conversation_and_no_control_characters() -> None:
    env = ToolUseEnv(TASKS, tools=[add], render_mode="ansi")
    env.reset(seed=0)
    env.step("\x1b[2J" + call("add", a=1, b=2) + call("nothing"))
    shown = env.render()
    assert "What is" in shown
    assert "add(" in shown
    assert "[unknown_tool]" in shown
    assert "\x1b" not in shown
    env.step("3")
    assert "ended: answered" in env.render()
    env.close()
