"""view="menu": a finite choice of turns, for agents that do not write."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from toolstep.envs import EpisodeRecord, ToolUseEnv, ToolUseVectorEnv, Turn
from toolstep.envs.menu import ListMenu, Menu, MenuError, Page, last_result
from toolstep.envs.tasks import NoMenu, NoOracle, load_tasks
from toolstep.envs.tasks.conversation import call
from toolstep.envs.vector_envs import ended_row, row_info

IDS = ["toolstep/Lookup-v0", "toolstep/Calculator-v0", "toolstep/UnitConvert-v0"]
MODES = list(AutoresetMode)


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


TASKS = [{"prompt": f"What is {i} + 3?", "answer": str(i + 3)} for i in range(4)]
ENTRIES = [
    {"call": "add", "arguments": {"a": 0, "b": 3}},
    {"call": "add", "arguments": {"a": 1, "b": 3}},
    {"answer": "3"},
    {"answer": "4"},
]


def own(**options: Any) -> ToolUseEnv:
    return ToolUseEnv(TASKS, tools=[add], view="menu", **{"menu": ENTRIES, **options})


def answer_the_result(record: EpisodeRecord) -> Turn | None:
    result = last_result(record)
    return None if result is None else Turn(result)


@pytest.mark.parametrize("env_id", IDS)
def test_the_checkers_of_gymnasium_and_sb3_have_nothing_to_say(env_id: str) -> None:
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(env_id, view="menu", render_mode="ansi")
        check_env(env.unwrapped)
        env.close()
        env = gym.make(env_id, view="menu")
        check_for_sb3(env)
        env.close()
        envs = gym.make_vec(env_id, num_envs=2, view="menu", level=2)
        obs, _ = envs.reset(seed=0)
        assert obs in envs.observation_space
        obs, *_ = envs.step(envs.action_space.sample())
        assert obs in envs.observation_space
        envs.close()


@pytest.mark.parametrize("env_id", IDS)
def test_make_vec_gives_the_same_episodes_in_each_vectorization_mode(env_id: str) -> None:
    made = [gym.make_vec(env_id, num_envs=2, view="menu", vectorization_mode=m) for m in (None, "sync", "async")]
    first, *others = [envs.reset(seed=7) for envs in made]
    for obs, infos in others:
        assert obs.dtype == first[0].dtype == np.float32
        assert np.array_equal(obs, first[0])
        assert np.array_equal(infos["action_mask"], first[1]["action_mask"])
    for envs in made:
        envs.close()


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_task_can_be_solved_from_the_menu(env_id: str, level: int) -> None:
    envs = gym.make_vec(env_id, num_envs=24, view="menu", level=level, split="test", autoreset_mode="Disabled")
    envs.reset(seed=100 * level)
    scores, over = np.zeros(24), np.zeros(24, bool)
    for _ in range(8):
        actions = [0 if a is None else a for a in envs.unwrapped.oracle_actions()]
        for row in np.flatnonzero(over):  # begun anew, so that the others can go on
            actions[row] = 0
        _, rewards, terminated, truncated, infos = envs.step(np.array(actions))
        assert all(row_info(infos, i)["call_statuses"] in ([], ["ok"]) for i in np.flatnonzero(~over))
        scores[~over] += rewards[~over]
        ended = terminated | truncated
        over |= ended
        if over.all():
            break
        if ended.any():
            envs.reset(options={"reset_mask": ended})
    assert scores.tolist() == [1.0] * 24
    envs.close()


@pytest.mark.parametrize("name", ["lookup", "calculator", "unit_convert"])
def test_a_menu_shows_nothing_but_what_the_messages_say(name: str) -> None:
    env = ToolUseEnv(name, view="menu")
    menu = env.config.view.menu
    rng = np.random.default_rng(0)
    for seed in range(10):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            record = env.record
            blind = dataclasses.replace(record.task, answer=None, data=None, tags={}, id="")
            assert menu.page(record) == menu.page(dataclasses.replace(record, task=blind))
            choice = rng.choice(np.flatnonzero(info["action_mask"]))
            _, _, terminated, truncated, info = env.step(choice)
            over = terminated or truncated
    env.close()


def test_the_mask_is_in_the_info_in_the_observation_and_in_action_masks() -> None:
    env = gym.make("toolstep/Lookup-v0", view="menu")
    obs, info = env.reset(seed=3)
    size = env.action_space.n
    assert info["action_mask"].dtype == np.int8
    for _ in range(2):
        mask = info["action_mask"].astype(bool)
        assert 0 < mask.sum() < size
        assert np.array_equal(obs[-size:] == 1, mask)
        assert np.array_equal(env.get_wrapper_attr("action_masks")(), mask)
        assert env.action_space.sample(mask=info["action_mask"]) in np.flatnonzero(mask)
        obs, _, _, _, info = env.step(env.unwrapped.oracle_action())
    env.close()


def test_a_choice_that_is_not_on_offer_costs_a_turn_and_nothing_else() -> None:
    env = gym.make("toolstep/Lookup-v0", view="menu", level=1, max_turns=3, render_mode="ansi")
    _, info = env.reset(seed=0)
    missing = int(np.flatnonzero(info["action_mask"] == 0)[0])
    _, reward, terminated, truncated, info = env.step(missing)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["call_statuses"] == ["unknown_tool"]
    assert env.unwrapped.config.view.menu.labels[missing] in env.render()
    env.step(env.unwrapped.oracle_action())
    *_, terminated, truncated, info = env.step(missing)
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "max_turns")
    env.close()


def test_a_lost_turn_costs_what_was_asked_for() -> None:
    env = gym.make("toolstep/Lookup-v0", view="menu", level=1, max_turns=4, lost_turn_cost=0.25)
    env.reset(seed=0)
    rewards = [env.step(a)[1] for a in (18, env.unwrapped.oracle_action())]
    rewards += [env.step(env.unwrapped.oracle_action())[1], env.step(env.unwrapped.oracle_action())[1]]
    assert rewards == [-0.25, 0.0, 0.0, 1.0]
    env.close()
    for cost, view in ((-1, "menu"), (float("nan"), "menu"), ("1", "menu"), (0.1, "text")):
        with pytest.raises(ValueError, match="lost_turn_cost"):
            ToolUseEnv("lookup", view=view, lost_turn_cost=cost)


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_env_equals_single_ones(mode: AutoresetMode) -> None:
    options = {"view": "menu", "max_turns": 4}
    ours = ToolUseVectorEnv(3, "lookup", autoreset_mode=mode, **options)
    single = SyncVectorEnv([lambda: ToolUseEnv("lookup", **options)] * 3, autoreset_mode=mode)
    rng = np.random.default_rng(0)
    got, expected = ours.reset(seed=5), single.reset(seed=5)
    over = np.zeros(3, bool)
    for step in range(40):
        if mode is AutoresetMode.DISABLED and over.any():
            got, expected = (e.reset(options={"reset_mask": over.copy()}) for e in (ours, single))
        actions = rng.integers(19, size=3)
        got, expected = ours.step(actions), single.step(actions)
        assert got[0].dtype == np.float32
        for a, b in zip(got[:4], expected[:4]):
            assert np.array_equal(a, b)
        over = got[2] | got[3]
        for row in range(3):
            a, b = (ended_row(e[4], e[0][row], row) for e in (got, expected))
            assert np.array_equal(a[0], b[0]), (step, row)
            assert same(a[1], b[1])
    ours.close()
    single.close()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and np.array_equal(a, b)


def test_observations_of_two_steps_share_no_memory() -> None:
    envs = ToolUseVectorEnv(2, "lookup", view="menu")
    first, _ = envs.reset(seed=0)
    kept = first.copy()
    envs.step(np.zeros(2, int))
    first[:] = -1
    second, *_ = envs.step(np.zeros(2, int))
    assert (second >= 0).all()
    assert not np.shares_memory(first, second)
    assert (kept >= 0).all()
    envs.close()


def test_a_menu_of_ones_own_is_a_list() -> None:
    env = own(render_mode="ansi")
    obs, info = env.reset(seed=0)
    asked = env.task.messages[0].content
    wanted = int(asked.split()[2])
    assert env.action_space == spaces.Discrete(4)
    assert info["action_mask"].tolist() == [1, 1, 1, 1]
    names = env.config.view.menu.features
    assert len(names) + 4 == len(obs)
    taken = names.index('taken: add({"a": 1, "b": 3})')
    assert obs[taken] == 0
    after, _, _, _, info = env.step(1)
    assert after[taken] == 1
    assert not np.array_equal(obs[256:512], after[256:512])  # words of the results
    assert np.array_equal(obs[:256], after[:256])
    assert info["call_statuses"] == ["ok"]
    *_, reward, terminated, _, info = env.step(3)
    assert (reward, terminated) == (float(wanted == 1), True)
    env.close()


def test_tasks_can_be_told_apart_and_the_features_do_not_depend_on_the_process() -> None:
    env = own()
    seen = {env.reset(seed=seed)[0][:256].tobytes() for seed in range(30)}
    assert len(seen) == len(TASKS)
    record = EpisodeRecord(load_tasks([{"prompt": "ab, Ab cd", "answer": "1"}]).task(0), (), None, 0)
    words = ListMenu([{"answer": "1"}]).page(record).features[:256]
    assert np.flatnonzero(words).tolist() == [109, 218]  # crc32 of "ab" and "cd" modulo 256
    env.close()


def test_entries_may_be_turns_and_functions() -> None:
    env = own(menu=[answer_the_result, Turn("3"), ENTRIES[0]])
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [0, 1, 1]
    *_, info = env.step(2)
    assert info["action_mask"].tolist() == [1, 1, 1]
    *_, terminated, _, info = env.step(0)
    assert terminated
    assert info["new_messages"][-1]["content"] == "3"
    assert env.config.view.menu.labels == ("answer_the_result", "answer 3", 'add({"a": 0, "b": 3})')
    env.close()


def test_a_menu_survives_a_spec_in_json() -> None:
    env = gym.make("toolstep/Calculator-v0", view="menu", menu=[{"answer": "1"}, {"answer": "2"}])
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.action_space == spaces.Discrete(2)
    assert np.array_equal(env.reset(seed=0)[0], again.reset(seed=0)[0])
    env.close()
    again.close()


def test_the_oracle_finds_the_entry_or_says_that_there_is_none() -> None:
    env = own(menu=[{"answer": "wrong"}, {"answer": "3"}])
    seeds = {env.reset(seed=s) and env.task.answer: s for s in range(30)}
    env.reset(seed=seeds["3"])
    assert env.oracle_action() == 1
    env.reset(seed=seeds["5"])
    with pytest.raises(NoOracle, match="not on the menu: '5'"):
        env.oracle_action()
    env.close()


@pytest.mark.parametrize("name", ["sql", "assistant", "files", "python", "search"])
def test_a_task_set_without_a_menu_says_how_to_give_one(name: str) -> None:
    with pytest.raises(NoMenu, match=r"has no menu.*menu=\[\.\.\.\].*Tasks\.menu\(\)"):
        ToolUseEnv(name, view="menu")
    ToolUseEnv(name, view="menu", menu=[{"answer": "1"}]).close()


def test_a_menu_belongs_to_the_menu_view() -> None:
    with pytest.raises(ValueError, match='belongs to view="menu"'):
        ToolUseEnv(TASKS, menu=ENTRIES)
    env = ToolUseEnv(TASKS)
    with pytest.raises(TypeError, match='needs view="menu"'):
        env.action_masks()
    env.close()


@pytest.mark.parametrize(
    "entries",
    [
        [],
        "abc",
        {"answer": "1"},
        [3],
        [{"answer": 1}],
        [{"call": "add", "args": {}}],
        [{"call": 3}],
        [{"answer": "", "call": "add"}],
    ],
)
def test_a_list_that_is_no_menu_is_refused(entries: Any) -> None:
    with pytest.raises(MenuError, match="menu"):
        own(menu=entries)


@pytest.mark.parametrize("action", [-1, 4, True, "1", 1.0, np.array([1]), None])
def test_an_action_that_is_no_choice_is_refused_and_changes_nothing(action: Any) -> None:
    env = own()
    env.reset(seed=0)
    with pytest.raises((TypeError, ValueError), match="number of a choice, 0 to 3, got"):
        env.step(action)
    assert env.step(np.int64(0))[4]["turn"] == 1
    env.close()
    envs = ToolUseVectorEnv(2, TASKS, tools=[add], view="menu", menu=ENTRIES)
    envs.reset(seed=0)
    with pytest.raises((TypeError, ValueError), match="row 1: view='menu' takes"):
        envs.step([0, action])
    envs.close()


class Broken(Menu):
    labels = ("a", "b")
    features = ("x",)

    def __init__(self, page: Page, after: int):
        self.bad, self.after = page, after

    def page(self, record: EpisodeRecord) -> Page:
        if record.turns >= self.after:
            return self.bad
        return Page([call(record, ("add", {"a": 1, "b": 2})), Turn("7")], [0.5])


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (Page([Turn("1")], [0.0]), "1 choices for 2 labels"),
        (Page([Turn("1"), None], [0.0, 1.0]), "it names 1"),
        (Page([Turn("1"), None], [1.5]), r"'x' must be in \[0, 1\], got 1.5"),
        (Page([Turn("1"), None], [float("nan")]), "got nan"),
        (Page([None, None], [0.0]), "nothing on offer"),
    ],
)
def test_a_menu_that_breaks_its_promise_ends_its_row_and_no_other(page: Page, says: str) -> None:
    with pytest.raises(MenuError, match=says):
        own(menu=Broken(page, 0)).reset(seed=0)
    envs = ToolUseVectorEnv(2, TASKS, tools=[add], view="menu", menu=Broken(page, 1), autoreset_mode="Disabled")
    envs.reset(seed=0)
    obs, _, _, truncated, infos = envs.step([0, 0])
    assert truncated.all()
    assert all(re.search(says, e) for e in infos["error"])
    assert list(infos["status"]) == ["env_error"] * 2
    assert obs in envs.observation_space
    assert infos["action_mask"].all()
    envs.close()


def test_a_reset_that_fails_shows_an_observation_of_the_space() -> None:
    def fails(seed: int) -> dict[str, str]:
        raise RuntimeError("no task today")

    envs = ToolUseVectorEnv(2, fails, view="menu", menu=[{"answer": "1"}])
    obs, infos = envs.reset(seed=0)
    assert obs in envs.observation_space
    assert infos["action_mask"].tolist() == [[1], [1]]
    *_, truncated, infos = envs.step([0, 0])
    assert truncated.all()
    assert list(infos["stop_reason"]) == ["error"] * 2
    envs.close()


@pytest.mark.parametrize("view", ["text", "messages", "tokens"])
def test_sb3_is_told_about_the_menu_where_it_cannot_learn(view: str, tokenizer: object) -> None:
    from stable_baselines3 import PPO

    env = gym.make("toolstep/Calculator-v0", view=view, **({"tokenizer": tokenizer} if view == "tokens" else {}))
    with pytest.raises(TypeError, match=r'cannot learn from .*view="menu"'):
        PPO("MlpPolicy", env)
    assert not hasattr(env.observation_space, "spaces")  # for everybody else
    env.close()


def test_labels_and_features_have_one_name_each() -> None:
    for name in ("lookup", "calculator", "unit_convert"):
        menu = load_tasks(name).menu()
        assert len(set(menu.labels)) == len(menu.labels)
        assert len(set(menu.features)) == len(menu.features)
        json.dumps([*menu.labels, *menu.features])
