"""Agents without a model, agents by name, and what an import costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import toolstep.agents
from toolstep.agents import AGENTS, Agent, OracleAgent, RandomAgent, ReplayAgent, make_agent


class Envs:
    """As much of a vector env as the scripted agents look at."""

    def __init__(self, num_envs: int | None = 3, oracle: Any = None) -> None:
        space = spaces.MultiDiscrete([1000, 1000])
        if num_envs is not None:
            self.num_envs, self.single_action_space = num_envs, space
        else:
            self.action_space = space
        self.unwrapped = self
        if oracle is not None:
            name = "oracle_action" if num_envs is None else "oracle_actions"
            setattr(self, name, lambda: oracle)


def test_random_actions_are_the_envs_own_and_follow_the_seed() -> None:
    def play(seed: int, rows: int) -> list[list[int]]:
        agent = RandomAgent(seed)
        agent.bind(Envs(rows))
        return [a.tolist() for _ in range(3) for a in agent.predict([None] * rows)[0][:2]]

    assert play(0, 2) == play(0, 5)  # a row's actions do not depend on the number of rows
    assert play(0, 2) != play(1, 2)
    assert len({tuple(a) for a in play(0, 2)}) == 6


def test_random_needs_an_env() -> None:
    with pytest.raises(RuntimeError, match="call bind"):
        RandomAgent().predict(["x"])


def test_a_single_env_gets_a_single_action() -> None:
    agent = RandomAgent()
    agent.bind(Envs(None))
    assert agent.predict("x")[0].shape == (2,)
    oracle = OracleAgent()
    oracle.bind(Envs(None, oracle="right"))
    assert oracle.predict("x")[0] == "right"


def test_the_oracle_asks_the_env_and_is_empty_where_the_episode_is_over() -> None:
    envs = Envs(3, oracle=("a", None, "b"))
    envs.single_action_space = spaces.Text(5)
    agent = OracleAgent()
    agent.bind(envs)
    assert agent.predict(["x", "", "y"])[0] == ("a", "", "b")
    envs.single_action_space = spaces.Sequence(spaces.Discrete(4), stack=True)
    assert agent.predict(["x", "", "y"])[0][1].tolist() == []


def test_an_env_without_an_oracle_is_refused() -> None:
    agent = OracleAgent()
    agent.bind(Envs(2))
    with pytest.raises(TypeError, match="has no oracle_actions"):
        agent.predict(["x", "y"])


def test_the_oracle_solves_the_calculator() -> None:
    from toolstep.envs import ToolUseVectorEnv

    envs = ToolUseVectorEnv(3, "calculator", autoreset_mode="Disabled")
    try:
        agent = OracleAgent()
        agent.bind(envs)
        observation, _ = envs.reset(seed=0)
        over = np.zeros(3, bool)
        success = np.zeros(3, bool)
        for _ in range(10):
            actions, _ = agent.predict(observation)
            observation, _, terminated, truncated, info = envs.step(actions)
            success |= np.asarray(info["success"], bool) & terminated & ~over
            over |= terminated | truncated
            if over.all():
                break
        assert success.all()
    finally:
        envs.close()


def test_replay_plays_each_rows_episodes_and_says_where_the_script_ends() -> None:
    agent = ReplayAgent([[["a1", "a2"], ["b1"]], [["c1", "c2", "c3"]]])
    start = np.array([True, True])
    go_on = np.array([False, False])
    assert agent.predict(("x", "x"), None, start)[0] == ("a1", "c1")
    assert agent.predict(("x", "x"), "s", go_on)[0] == ("a2", "c2")
    assert agent.predict(("", "x"), "s", go_on)[0] == ("", "c3")  # row 0 is over: nothing of its script is used up
    assert agent.predict(("x", ""), "s", np.array([True, False]))[0] == ("b1", "")
    with pytest.raises(IndexError, match="row 0, episode 1, turn 1"):
        agent.predict(("x", ""), "s", go_on)


def test_agents_are_made_by_name() -> None:
    assert isinstance(make_agent("random", seed=3), RandomAgent)
    assert isinstance(make_agent("oracle"), OracleAgent)
    assert isinstance(make_agent("oracle"), Agent)
    assert dict(make_agent("oracle").env_kwargs) == {}
    assert {"random", "oracle", "smollm2"} < set(AGENTS)


@pytest.mark.parametrize(
    ("name", "near"), [("randm", "random"), ("smollm", "smollm2"), ("hf:", "hf:PATH_OR_ID"), ("Oracle", "oracle")]
)
def test_an_unknown_agent_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown agent {name!r}; did you mean '{near}'"):
        make_agent(name)


def test_importing_the_agents_does_not_import_torch() -> None:
    code = """
import sys, types
package = types.ModuleType("toolstep"); package.__path__ = [sys.argv[1]]; sys.modules["toolstep"] = package
import toolstep.agents
toolstep.agents.make_agent("random"), toolstep.agents.SamplingParams, dir(toolstep.agents)
heavy = sorted({"torch", "transformers", "stable_baselines3"} & set(sys.modules))
assert not heavy, heavy
for name in toolstep.agents.__all__:
    getattr(toolstep.agents, name)
"""
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(toolstep.agents, "nothing")  # noqa: B009
