"""The task sets over built-in tools: in an env, and against what is known from elsewhere."""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any

import gymnasium as gym
import pytest

from toolstep.envs.tasks import algorithms, load_tasks
from toolstep.envs.tasks.answers import tells
from toolstep.envs.tasks.archive import CARGOES, find_fact
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.office import JOBS, make_office
from toolstep.envs.tasks.python import SECONDS
from toolstep.envs.tasks.shop import QUESTIONS, answer, make_shop
from toolstep.envs.tools import EpisodeInfo, Toolbox
from toolstep.envs.tools.builtin import cpython, monty
from toolstep.envs.types import EpisodeRecord, Message, StopReason, Task

IDS = ["toolstep/SQL-v0", "toolstep/Search-v0", "toolstep/Files-v0"]
if not monty.missing():
    IDS.append("toolstep/Python-v0")


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_oracle_plays_a_vector_env_to_full_score(name: str, level: int) -> None:
    envs: Any = gym.make_vec(name, num_envs=4, level=level, autoreset_mode="SameStep")
    envs.reset(seed=11)
    ended = 0
    for _ in range(12):
        _, rewards, terminated, truncated, infos = envs.step(envs.unwrapped.oracle_actions())
        assert all(status == "ok" for row in infos["call_statuses"] for status in row)
        assert not truncated.any()
        assert rewards.tolist() == terminated.astype(float).tolist()
        ended += int(terminated.sum())
    assert ended >= 4
    envs.close()


@pytest.mark.parametrize("name", IDS)
def test_members_of_a_group_see_the_same_task(name: str) -> None:
    env = gym.make(name)
    first = env.reset(seed=5)[0]
    assert env.reset(seed=5)[0] == first
    assert env.reset(seed=6)[0] != first
    env.close()


# ------------------------------------------------------------------------------------------------------------------ sql
def test_every_question_of_the_shop_is_asked_and_its_answer_is_that_of_a_plain_database() -> None:
    asked: dict[str, int] = {}
    for level, questions in QUESTIONS.items():
        for question in questions:
            for seed in range(40):
                draw = Draw(seed, question.__name__)
                shop = make_shop(draw)
                made = question(draw, shop)
                rows = answer(shop.script(), made)
                if rows is None:
                    continue
                asked[question.__name__] = asked.get(question.__name__, 0) + 1
                connection = sqlite3.connect(":memory:")
                connection.executescript(shop.script())
                found = connection.execute(made.query).fetchall()[: made.top]
                connection.close()
                assert [row[: made.columns] for row in found] == [tuple(row) for row in rows]
                assert 1 <= level <= 3
    assert set(asked) == {q.__name__ for questions in QUESTIONS.values() for q in questions}
    assert min(asked.values()) >= 5, asked


def test_answers_agree_with_a_count_by_hand() -> None:
    """The sums of the queries, computed again in Python."""
    for seed in range(30):
        shop = make_shop(Draw(seed, "by hand"))
        price = {i: p for i, _, _, p in shop.products}
        buyer = {i: c for i, c, _ in shop.purchases}
        spent: dict[int, int] = {}
        for purchase, product, quantity in shop.items:
            spent[buyer[purchase]] = spent.get(buyer[purchase], 0) + quantity * price[product]
        connection = sqlite3.connect(":memory:")
        connection.executescript(shop.script())
        found = dict(
            connection.execute(
                "SELECT customer_id, SUM(quantity * price) FROM item JOIN purchase ON purchase.id = purchase_id "
                "JOIN product ON product.id = product_id GROUP BY 1"
            )
        )
        connection.close()
        assert found == spent
        assert len({name for _, name, _, _ in shop.customers}) == 14
        assert len({name for _, name, _, _ in shop.products}) == 10


def test_the_database_of_a_task_is_the_one_that_the_tool_shows() -> None:
    env: Any = gym.make("toolstep/SQL-v0", level=3)
    env.reset(seed=3)
    call = {"name": "sql", "arguments": {"query": "SELECT COUNT(*), (SELECT COUNT(*) FROM customer) FROM purchase"}}
    env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
    assert json.loads(env.unwrapped.messages[-1].content)["rows"] == [[36, 14]]
    wrong = {"name": "sql", "arguments": {"query": "DELETE FROM customer"}}
    _, _, _, _, info = env.step(f"<tool_call>{json.dumps(wrong)}</tool_call>")
    assert info["call_statuses"] == ["tool_error"]
    env.close()


def test_sql_levels_need_what_they_say() -> None:
    queries = {level: [load_tasks("sql", level=level).task(s).data["query"] for s in range(60)] for level in (1, 2, 3)}
    assert not any("JOIN" in q for q in queries[1])
    assert all("JOIN" in q for q in queries[2])
    assert all("JOIN" in q and any(w in q for w in ("GROUP", "INTERSECT", "NOT IN")) for q in queries[3])


# --------------------------------------------------------------------------------------------------------------- search
def test_each_step_of_a_question_is_found_by_its_name() -> None:
    for level in (1, 2, 3):
        tasks = load_tasks("search", level=level)
        for seed in range(25):
            task = tasks.task(seed, "test")
            box = Toolbox(tasks.tools(task), (), EpisodeInfo(task))
            texts = {d.id: d.text for d in task.data["documents"]}
            for steps in task.data["steps"]:
                for name, attribute, paper in steps:
                    hits = [hit["id"] for hit in box.tools["search"].call(query=name)]
                    assert paper in hits, (name, attribute)
                    stated = [i for i, text in texts.items() if find_fact(text, name, attribute) is not None]
                    assert stated == [paper]
            box.close()


def test_search_levels_take_so_many_steps_and_the_answer_is_in_no_title() -> None:
    for level in (1, 2, 3):
        tasks = load_tasks("search", level=level)
        for seed in range(60):
            task = tasks.task(seed)
            steps = [len(path) for path in task.data["steps"]]
            assert steps == [level] or (level == 3 and steps == [2, 2])
            assert not any(task.answer == d.title for d in task.data["documents"])


@pytest.mark.parametrize(
    ("answer", "said", "right"),
    [
        ("1837", "It was launched in 1837.", 1.0),
        ("1837", "1837 or 1838", 0.0),
        ("1837", "", 0.0),
        ("wool", "She carries Wool.", 1.0),
        ("wool", "wool or timber", 0.0),
        ("wool", "woollen", 0.0),
    ],
)
def test_answers_of_the_archive_are_judged(answer: str, said: str, right: float) -> None:
    assert float(tells(said, answer, CARGOES)) == right


# ---------------------------------------------------------------------------------------------------------------- files
def finished(task: Task, files: dict[str, str]) -> float:
    messages = (*task.messages, Message("assistant", "Done."))
    record = EpisodeRecord(task, messages, StopReason.ANSWERED, 1, state={"files": files})
    return load_tasks("toolstep/Files-v0").score(record)


def test_only_the_folder_that_the_job_describes_is_right() -> None:
    for level in (1, 2, 3):
        tasks = load_tasks("toolstep/Files-v0", level=level)
        for seed in range(100):
            task = tasks.task(seed)
            before, after = task.data["files"], task.data["after"]
            assert before != after
            assert finished(task, before) == 0.0
            assert finished(task, after) == 1.0
            assert finished(task, {path: text + "\n" for path, text in after.items()}) == 1.0
            assert finished(task, {**after, "extra.txt": ""}) == 0.0
            assert finished(task, dict(list(after.items())[1:])) == 0.0
            path = next(iter(after))
            assert finished(task, {**after, path: "x" + after[path]}) == 0.0
    assert tasks.score(EpisodeRecord(task, task.messages, None, 0)) == 0.0


def test_every_job_is_asked_and_is_small_enough_for_the_tools() -> None:
    asked: dict[str, int] = {}
    for jobs in JOBS.values():
        for job in jobs:
            for seed in range(60):
                draw = Draw(seed, job.__name__)
                files = make_office(draw)
                made = job(draw, files)
                if made is None:
                    continue
                asked[job.__name__] = asked.get(job.__name__, 0) + 1
                assert len(made.reads) <= 8
                assert len(made.calls) <= 8
                assert all(len(text) < 1_500 for text in made.after.values())
    assert set(asked) == {job.__name__ for jobs in JOBS.values() for job in jobs}
    assert min(asked.values()) >= 5, asked


def test_an_agent_that_breaks_another_file_gets_nothing() -> None:
    env: Any = gym.make("toolstep/Files-v0", level=1)
    for spoil in (False, True):
        env.reset(seed=4)
        while not env.unwrapped.oracle_action().startswith("Done"):
            env.step(env.unwrapped.oracle_action())
        if spoil:
            call = {"name": "write_file", "arguments": {"path": "mine.txt", "content": "x"}}
            env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert env.step("Done.")[1] == (0.0 if spoil else 1.0)
    env.close()


# --------------------------------------------------------------------------------------------------------------- python
WRITTEN: list[tuple[Any, tuple[Any, ...], Any]] = [
    (algorithms.run_lengths, ("aaabccdddd", 3), "a3bccd4"),
    (algorithms.run_lengths, ("", 2), ""),
    (algorithms.merge_intervals, ([[5, 6], [1, 2], [3, 4]], 0), [[1, 2], [3, 4], [5, 6]]),
    (algorithms.merge_intervals, ([[5, 6], [1, 2], [3, 4]], 1), [[1, 6]]),
    (algorithms.merge_intervals, ([[1, 9], [2, 3], [20, 21]], 10), [[1, 9], [20, 21]]),
    (algorithms.best_window, ([1, -2, 3, 4], 2), 7),
    (algorithms.best_window, ([1], 2), 0),
    (algorithms.in_base, (255, 16), "ff"),
    (algorithms.in_base, (0, 2), "0"),
    (algorithms.ways_to_pay, (10, [2, 5]), 2),
    (algorithms.ways_to_pay, (100, [1, 5, 10, 25, 50]), 292),
    (algorithms.count_islands, (["#.", ".#"], False), 2),
    (algorithms.count_islands, (["#.", ".#"], True), 1),
    (algorithms.count_islands, ([], True), 0),
    (algorithms.shift_letters, ("xyz, A!", 3), "abc, A!"),
    (algorithms.longest_climb, ([1, 3, 5, 6, 9], 2), 3),
    (algorithms.longest_climb, ([], 1), 0),
    (algorithms.last_one, (41, 3), 31),
    (algorithms.last_one, (1, 7), 1),
    (algorithms.spread, ("a bb ccc dddddd e", 4), ["a bb", "ccc", "dddddd", "e"]),
]


@pytest.mark.parametrize(("function", "arguments", "wanted"), WRITTEN)
def test_algorithms_give_known_results(function: Any, arguments: tuple[Any, ...], wanted: Any) -> None:
    assert function(*arguments) == wanted


def test_every_algorithm_has_a_known_result() -> None:
    assert {f.__name__ for f, _, _ in WRITTEN} == {family[0].__name__ for family in algorithms._FAMILIES}


needs_monty = pytest.mark.skipif(bool(monty.missing()), reason=monty.missing())


def handed_in(task: Task, code: str) -> dict[str, int]:
    tasks = load_tasks("python")
    box = Toolbox(tasks.tools(task), (), EpisodeInfo(task))
    result = box.tools["submit"].call(code=code)
    assert result.terminate
    assert result.answer == code
    found: dict[str, int] = box.snapshot()["submission"]
    assert result.content.startswith(f"{found['passed']} of {found['tests']} tests passed.")
    box.close()
    tasks.close()
    return found


@needs_monty
def test_only_a_function_that_is_right_for_all_hidden_inputs_is_right() -> None:
    task = load_tasks("python", level=1).task(0)
    assert "drop those that occurred before; then return how many are left" in task.messages[-1].content
    right = "def solve(xs):\n    print('debug')\n    return len(set(xs))"
    assert handed_in(task, right) == {"passed": 8, "tests": 8}
    wrong = {
        "def solve(xs): return len(xs)": range(1, 8),
        "def solve(xs): return 7": range(8),
        "def solve(xs): return len(set(xs)) if len(xs) < 12 else 1 / 0": range(1, 8),
        "def solve(xs):\n    while True: pass": [0],
        "def solve(xs): return": [0],
        "def other(xs): return len(set(xs))": [0],
        "def solve(xs) return 1": [0],
        "": [0],
        "x" * 30_000: [0],
        "def solve(xs): return [x for x in [[]] * 10**9]": [0],
        "import json\njson.dumps = lambda x: '0'\ndef solve(xs): return 0": range(8),
        "class Same:\n    def __eq__(self, other): return True\ndef solve(xs): return Same()": [0],
    }
    for code, passed in wrong.items():
        assert handed_in(task, code)["passed"] in passed, code


@needs_monty
def test_a_submission_ends_the_episode_and_its_verdict_is_the_reward() -> None:
    env: Any = gym.make("toolstep/Python-v0", level=1)
    for code, reward in ((None, 1.0), ("def solve(xs): return None", 0.0)):
        env.reset(seed=2)
        call = {"name": "submit", "arguments": {"code": code or env.unwrapped.task.answer}}
        _, got, terminated, _, info = env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert (got, terminated, info["stop_reason"]) == (reward, True, "tool_ended")
    env.reset(seed=2)
    assert env.step(f"```python\n{env.unwrapped.task.answer}\n```")[1] == 0.0  # it was not handed in
    env.close()


@needs_monty
def test_rows_whose_code_hangs_are_judged_together() -> None:
    env: Any = gym.make_vec("toolstep/Python-v0", num_envs=8, level=1)
    env.reset(seed=0)
    call = {"name": "submit", "arguments": {"code": "def solve(xs):\n    while True: pass"}}
    started = time.monotonic()
    _, rewards, terminated, _, _ = env.step([f"<tool_call>{json.dumps(call)}</tool_call>"] * 8)
    assert time.monotonic() - started < 8 * SECONDS  # one after the other would take that long
    assert terminated.all()
    assert rewards.tolist() == [0.0] * 8
    env.close()


@pytest.mark.skipif(bool(cpython.missing()), reason=cpython.missing())
def test_functions_can_be_judged_by_full_python_too() -> None:
    env: Any = gym.make("toolstep/Python-v0", level=2, backend="cpython")
    env.reset(seed=1)
    for _ in range(2):
        _, reward, terminated, _, _ = env.step(env.unwrapped.oracle_action())
    assert (reward, terminated) == (1.0, True)
    env.close()
