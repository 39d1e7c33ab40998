"""toolstep/Jsonl-v0: a file of problems, its splits, tools, rewards and what is wrong with it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from toolstep.envs import ToolUseEnv
from toolstep.envs.checker import check_task
from toolstep.envs.tasks import JsonlTasks, NoOracle, TaskError, TaskSet, example_messages, load_tasks, read_tasks
from toolstep.envs.types import EpisodeRecord, Message, StopReason, Task


def write(path: Path, *items: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)


@pytest.fixture
def many(tmp_path: Path) -> str:
    return write(tmp_path / "many.jsonl", *({"prompt": f"What is {i} + 1?", "answer": i + 1} for i in range(400)))


def score(tasks: TaskSet, task: Task, text: str) -> float:
    return tasks.score(EpisodeRecord(task, (*task.messages, Message("assistant", text)), StopReason.ANSWERED, 1))


def ids(tasks: JsonlTasks, split: Any = "train") -> list[str]:
    return [tasks.task(i, split).id for i in range(tasks.size(split))]


# --------------------------------------------------------------------------------------------------------------- splits
def test_all_lines_of_a_file_in_their_order(many: str) -> None:
    found = read_tasks(many)
    assert [found.task(i).messages[0].content for i in range(3)] == [f"What is {i} + 1?" for i in range(3)]
    assert (found.task(2).id, found.task(2).answer, found.size(), found.size("test")) == ("many.jsonl:3", 3, 400, 0)


def test_the_hash_of_the_messages_splits_a_file(many: str, tmp_path: Path) -> None:
    tasks = load_tasks(many)
    assert isinstance(tasks, JsonlTasks)
    train, test = ids(tasks), ids(tasks, "test")
    assert sorted(train + test) == sorted(f"many.jsonl:{i}" for i in range(1, 401))
    assert 50 < len(test) < 110  # a fifth of 400
    assert len(ids(JsonlTasks(many, test_share=0.5), "test")) > len(test)
    # A problem stays where it is when its answer, its id, its place and its neighbours change, and its twin is with it.
    lines = [json.loads(line) for line in Path(many).read_text().splitlines()]
    changed = [{**x, "answer": 0, "id": x["prompt"]} for x in reversed(lines[::2])] * 2
    again = JsonlTasks(write(tmp_path / "again.jsonl", *changed))
    before = {tasks.task(i, "test").messages for i in range(tasks.size("test"))}
    after = {again.task(i, "test").messages for i in range(again.size("test"))}
    assert after == {m for m in before if int(m[0].content.split()[2]) % 2 == 0}
    assert again.size("test") == 2 * len(after)


def test_lines_say_where_they_belong(tmp_path: Path) -> None:
    lines = [
        {"prompt": "a", "answer": "1", "split": "test"},
        {"prompt": "b", "answer": "2"},
        {"prompt": "c", "answer": "3", "split": "example"},
    ]
    path = tmp_path / "t.jsonl"
    path.write_bytes(("\ufeff" + "\r\n".join(map(json.dumps, lines)) + "\r\n\r\n").encode())
    found = JsonlTasks(path)
    assert (ids(found), ids(found, "test"), found.example(0).answer) == (["t.jsonl:2"], ["t.jsonl:1"], "3")
    only = JsonlTasks(write(path, lines[0]))
    assert only.size("train") == 1
    with pytest.raises(TaskError, match=r"no task of t\.jsonl is in the split 'test': name it in lines"):
        only.task(0, "test")


# ------------------------------------------------------------------------------------------------------ tools, rewards
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def offered(env: ToolUseEnv, seed: int) -> set[str]:
    env.reset(seed=seed)
    return {schema["function"]["name"] for schema in env.schemas}


def test_each_line_names_its_tools(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"prompt": "all", "answer": 1},
        {"prompt": "own", "answer": 1, "tools": ["add"]},
        {"prompt": "built in", "answer": 1, "tools": ["clock", "sql"]},
        {"prompt": "files", "answer": 1, "tools": ["files", "add"]},
        {"prompt": "none", "answer": 1, "tools": []},
    )
    with ToolUseEnv("jsonl", path=path, test_share=0, tools=[add, "files"]) as env:
        found: dict[str, set[str]] = {}
        for seed in range(40):
            names = offered(env, seed)
            found[env.task.messages[0].content] = names
    files = found["all"] - {"add"}
    assert "add" in found["all"]
    assert len(files) > 2
    assert found == {
        "all": {"add"} | files,
        "own": {"add"},
        "built in": {"clock", "sql", "sql_tables"},
        "files": {"add"} | files,
        "none": set(),
    }


def test_each_line_names_its_reward(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"prompt": "a", "answer": "Paris", "reward": "exact"},
        {"prompt": "b", "answer": 3.14, "reward": {"name": "numeric", "abs": 0.1}},
        {"prompt": "c", "answer": ["x", "y"], "reward": "set"},
        {"prompt": "d", "answer": "5"},
    )
    for options in ({}, {"score": "text"}):
        tasks = read_tasks(path, **options)
        exact, numeric, items, plain = (tasks.task(i) for i in range(4))
        assert [score(tasks, exact, text) for text in ("Paris", "paris")] == [1.0, 0.0]
        assert [score(tasks, numeric, text) for text in ("3.2", "3.3")] == [1.0, 0.0]
        assert [score(tasks, items, text) for text in ("y, x", "x")] == [1.0, 0.0]
        assert score(tasks, plain, "It is 5") == float(not options)
    env = gym.make("toolstep/Jsonl-v0", path=path, test_share=0.0, reward="text").unwrapped
    assert [score(env.config.tasks, task, "Paris") for task in (exact, plain)] == [1.0, 0.0]
    env.close()


def test_the_oracle_makes_the_calls_of_the_line_and_gives_its_answer(tmp_path: Path) -> None:
    calls = [{"name": "add", "arguments": {"a": 2, "b": 3}}, {"name": "clock"}]
    path = write(
        tmp_path / "t.jsonl",
        {"prompt": "2 + 3?", "answer": ["5", "five"], "calls": calls},
        {"prompt": "4 + 5?", "answer": "9", "calls": calls[:1], "split": "example"},
    )
    with ToolUseEnv("jsonl", path=path, tools=[add, "clock"], reward="text", shots=1) as env:
        env.reset(seed=0)
        assert [m.role for m in env.messages] == ["user", "assistant", "tool", "assistant", "user"]
        actions = 0
        while (action := env.oracle_action()) is not None:
            *_, reward, terminated, _, info = env.step(action)
            actions += 1
        assert (actions, reward, terminated) == (3, 1.0, True)
        assert info["reward_terms"]["call_accuracy"] == 1.0
    tasks = read_tasks(write(tmp_path / "p.jsonl", {"prompt": "?", "answer": "a+", "reward": "regex"}))
    with pytest.raises(NoOracle, match="a pattern does not tell an answer"):
        tasks.oracle(EpisodeRecord(tasks.task(0), (), None, 0))
    with pytest.raises(TaskError, match="has no examples"):
        example_messages(tasks, 1)


def test_a_reward_that_must_not_be_run_out_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"task t\.jsonl:1: 'reward': there is no reward 'os:getcwd'"):
        JsonlTasks(write(tmp_path / "t.jsonl", {"prompt": "?", "answer": "1", "reward": "os:getcwd"}))


# --------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"prompt": "a"}\n{"prompt": ', "t.jsonl:2: no JSON"),
        ("[1]", "t.jsonl:1: expected an object"),
        ("[" * 100_000, "t.jsonl:1: no JSON"),
        ('{"promt": "a"}', "task t.jsonl:1: unknown field 'promt'; did you mean 'prompt'"),
        ('{"prompt": 1}', "task t.jsonl:1: 'prompt' must be text"),
        ('{"messages": []}', "task t.jsonl:1: 'messages' must be a list of messages"),
        ('{"messages": "a"}', "task t.jsonl:1: 'messages' must be a list of messages"),
        ('\n\n{"prompt": "a", "tags": ["x"]}', "task t.jsonl:3: 'tags' must be an object"),
        ('{"prompt": "a", "tools": "add"}', "task t.jsonl:1: 'tools' must be a list of names"),
        ('{"prompt": "a", "tools": [1]}', "task t.jsonl:1: 'tools' must be a list of names"),
        ('{"prompt": "a", "calls": {"name": "f"}}', "task t.jsonl:1: 'calls' must be a list"),
        ('{"prompt": "a", "calls": [{"name": "f", "args": {}}]}', "task t.jsonl:1: a call is"),
        ('{"prompt": "a", "calls": [{"name": "f", "arguments": []}]}', "task t.jsonl:1: a call is"),
        ('{"prompt": "a", "split": "dev"}', "t.jsonl:1: 'split' must be one of"),
        (
            '{"prompt": "a", "id": "mine", "answer": 1, "reward": "nummeric"}',
            "task t.jsonl:1: 'reward': there is no rew",
        ),
        (
            '{"prompt": "a", "answer": 1, "reward": {"name": "numeric", "x": 1}}',
            "'reward': reward 'numeric' has no opt",
        ),
        ('{"prompt": "a", "answer": 1, "reward": 5}', "task t.jsonl:1: 'reward': a reward is named like"),
        (
            '{"prompt": "a", "id": "mine", "answer": "x", "reward": "numeric"}',
            "task t.jsonl:1: 'answer' (reward 'numeric'",
        ),
        (
            '{"prompt": "a", "answer": "(", "reward": "regex"}',
            "t.jsonl:1: 'answer' (reward 'regex'): '(' is no regular",
        ),
        ('{"prompt": "a", "split": "test"}\n{"prompt": "a"}', "task t.jsonl:1 of 'test' has the same messages"),
        ("\n\n", "there is no task in"),
        (None, "cannot read the tasks of"),
    ],
)
def test_a_file_that_is_no_list_of_tasks_is_refused(text: str | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TaskError) as error:
        JsonlTasks(path)
    assert problem in str(error.value)


def test_what_the_env_is_told_is_held_against_each_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"prompt": "a", "answer": "1", "tools": ["add"]}, {"prompt": "b", "answer": "x"})
    with pytest.raises(TaskError, match=r"task t\.jsonl:2: 'answer' \(reward 'numeric'\): expected a finite number"):
        ToolUseEnv("jsonl", path=path, tools=[add], reward="numeric")
    with pytest.raises(TaskError, match=r"task t\.jsonl:1: 'tools': there is no tool 'add'; .*calculator"):
        ToolUseEnv("jsonl", path=path, tools=["clock"])
    for share in (-0.1, 1, True, "a"):
        with pytest.raises(TaskError, match="test_share must be a number"):
            JsonlTasks(path, test_share=share)
    with pytest.raises(TypeError, match="jsonl needs the option 'path'"):
        gym.make("toolstep/Jsonl-v0")


def test_tools_that_are_known_with_the_episode_only_fail_its_reset(tmp_path: Path) -> None:
    class Late:
        @staticmethod
        def shout(text: str) -> str:
            """Shout."""
            return text.upper()

    from toolstep.envs.tools import per_episode

    path = write(tmp_path / "t.jsonl", {"prompt": "a", "answer": "1", "tools": ["shout", "whisper"]})
    with (
        ToolUseEnv("jsonl", path=path, tools=[per_episode(lambda: [Late.shout])]) as env,
        pytest.raises(
            ValueError,
            match=r"task 't\.jsonl:1' names the tool 'whisper', which nobody offers; there are shout, and",
        ),
    ):
        env.reset(seed=0)


# ------------------------------------------------------------------------------------------------------------ gymnasium
def test_a_file_passes_the_checkers(tmp_path: Path) -> None:
    calls = [{"name": "calculator", "arguments": {"expression": "2 + 3"}}]
    items = [{"prompt": f"{i}: 2 + 3?", "answer": 5, "tools": ["calculator"], "calls": calls} for i in range(30)]
    tasks = JsonlTasks(write(tmp_path / "t.jsonl", *items))
    report = check_task(tasks, seeds=8, episodes=1, timeout=60.0, quiet=True)
    assert report.codes == [], str(report)


def test_contract_of_gymnasium(many: str) -> None:
    options: dict[str, Any] = {"path": many, "tools": ["calculator"], "reward": "numeric", "split": "test"}
    env = gym.make("toolstep/Jsonl-v0", render_mode="ansi", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert env.reset(seed=3)[0] == again.reset(seed=3)[0]
    vec = gym.make_vec("toolstep/Jsonl-v0", num_envs=3, **options)
    vec.reset(seed=3)
    *_, rewards, terminations, _, _ = vec.step(tuple(vec.unwrapped.oracle_actions()))
    assert terminations.all()
    assert rewards.tolist() == [1.0] * 3
    for made in (env, again, vec):
        made.close()
