"""BFCL: the verdicts of the official checker, without what it does to get them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from decimal import getcontext
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.checker import check_env, check_task
from toolstep.envs.rewards import Rubric
from toolstep.envs.tasks import TaskError, example_messages, load_tasks
from toolstep.envs.tasks.bfcl import INSTALL, MULTI_TURN, SINGLE_TURN, BFCLMissing, MultiTurnTasks, data, turns_passed
from toolstep.envs.tasks.bfcl.apis import Apis, parse_call
from toolstep.envs.tasks.bfcl.data import Entry, entries
from toolstep.envs.tasks.bfcl.docs import json_schema
from toolstep.envs.tasks.bfcl.referee import Referee
from toolstep.envs.tasks.families import FAMILIES
from toolstep.envs.tools.schema_check import check_schema
from toolstep.envs.types import EpisodeRecord, Message

pytest.importorskip("bfcl_eval", reason=INSTALL)
mpmath = pytest.importorskip("mpmath", reason=INSTALL)

from bfcl_official import our_multi_turn, perturbed_talks, right_talk, verdicts  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
WITH_ANSWERS = [c for c in (*MULTI_TURN, *SINGLE_TURN) if "relevance" not in c]


def written(*calls: tuple[str, Mapping[str, Any]]) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls)


def entry(name: str) -> Entry:
    return next(e for e in entries(name.rpartition("_")[0]) if e.id == name)


def env_of(name: str, **options: Any) -> Any:
    """An env with one task of the list."""
    category = name.rpartition("_")[0]
    tasks = load_tasks(f"bfcl-{category}")
    at = [e.id for e in entries(category)].index(name)
    tasks.task = lambda seed, split="test", task=tasks.task: task(at, split)  # type: ignore[method-assign]
    env = ToolUseEnv(tasks, split="test", **options)
    env.reset(seed=0)
    return env


# ------------------------------------------------------------------------------------------------------------- verdicts
@pytest.mark.parametrize("category", WITH_ANSWERS)
def test_verdicts_are_those_of_the_official_checker(category: str) -> None:
    some = entries(category)[:: 25 if category in MULTI_TURN else 13]
    found = [v for e in some for v in verdicts(e)]
    assert [v for v in found if v.error != v.official] == []
    assert len({v.error for v in found}) >= 3  # right, and wrong in several ways


@pytest.mark.parametrize("category", MULTI_TURN)
def test_ground_truth_passes_and_what_is_left_out_does_not(category: str) -> None:
    assert len(entries(category)) == 200
    for e in entries(category):
        assert our_multi_turn(e, right_talk(e)) == ""
    for e in entries(category)[::10]:
        for kind, talk in perturbed_talks(e):
            if kind in ("a call dropped", "a turn emptied"):
                assert our_multi_turn(e, talk) != "", (e.id, kind)


#: Tasks that the official checker gives to nobody: the acceptable values of a required argument are none.
UNSOLVABLE = {"live_simple_106-63-0", "live_simple_112-68-0", "live_multiple_862-181-3", "live_multiple_964-207-0"}


@pytest.mark.parametrize("category", SINGLE_TURN)
def test_the_oracle_answers_every_question_that_can_be_answered(category: str) -> None:
    tasks = load_tasks(f"bfcl-{category}")
    size = tasks.size("test")
    assert size is not None
    failed = set()
    for seed in range(size):
        task = tasks.task(seed, "test")
        turn = tasks.oracle(EpisodeRecord(task, task.messages, None, 0))
        message = Message("assistant", turn.content, tool_calls=turn.calls)
        if not tasks.score(EpisodeRecord(task, (*task.messages, message), None, 1)):
            failed.add(task.id)
    assert failed == {name for name in UNSOLVABLE if name.rpartition("_")[0] == category}


# ------------------------------------------------------------------------------------------------------------------ env
@pytest.mark.parametrize("category", [*MULTI_TURN, "parallel_multiple", "live_irrelevance", "live_relevance"])
def test_the_oracle_plays_a_vector_env_to_full_score(category: str) -> None:
    envs: Any = gym.make_vec(f"toolstep/BFCL-{category}-v0", num_envs=3, autoreset_mode="SameStep", strict=True)
    envs.reset(seed=4)
    ended = 0
    while ended < 4:
        _, rewards, terminated, truncated, _ = envs.step(envs.unwrapped.oracle_actions())
        assert not truncated.any()
        assert rewards.tolist() == terminated.astype(float).tolist()
        ended += int(terminated.sum())
    envs.close()


def test_the_user_goes_on_until_a_turn_is_wrong() -> None:
    reward = Rubric({"passed": (1.0, turns_passed)})
    env = env_of("multi_turn_base_135", reward=reward)
    for _ in range(2):
        env.step(env.oracle_action())
    _, reward_, terminated, _, info = env.step("There is nothing to do.")
    assert (terminated, info["stop_reason"], info["success"]) == (True, "answered", False)
    assert reward_ == 1 / 4
    assert env.record.state["bfcl"]["error"] == "multi_turn:empty_turn_model_response"
    env.close()


def test_functions_that_were_held_back_come_with_the_users_words_and_not_before() -> None:
    env = env_of("multi_turn_miss_func_0")
    assert env.task.data.held == {3: ["sort"]}
    assert "sort" not in [s["function"]["name"] for s in env.schemas]
    sort = written(("sort", {"file_name": "final_report.pdf"}))
    assert env.step(sort)[4]["call_statuses"] == ["unknown_tool"]
    observation = ""
    while "What about now?" not in observation:
        observation, _, terminated, truncated, info = env.step(env.oracle_action())
        assert not terminated
        assert not truncated
    assert "I have updated some more functions you can choose from." in observation
    assert '"name": "sort"' in observation
    assert observation.count('{"type": "function"') == 1  # only what is new
    assert env.step(sort)[4]["call_statuses"] == ["ok"]
    while not terminated:
        observation, reward, terminated, _, info = env.step(env.oracle_action())
        assert '{"type": "function"' not in observation  # told once
    assert (reward, info["stop_reason"]) == (1.0, "answered")
    env.close()


def test_calls_where_none_are_wanted_are_counted_apart() -> None:
    e = next(e for e in entries("multi_turn_miss_param") if [] in e.truth and e.classes == ("GorillaFileSystem",))
    referee = Referee(e)
    for turn in right_talk(e):
        for step in turn or [[("pwd", {})]]:
            for name, arguments in step:
                referee.call(name, arguments)
        referee.end_turn()
    assert (referee.right, referee.needless) == (True, 1)


def test_twenty_rounds_of_calls_are_the_most_in_one_turn() -> None:
    e = entry("multi_turn_base_0")
    env = env_of(e.id)
    look = written(("pwd", {}))
    for _ in range(20):
        assert not any(env.step(look)[2:4])
    _, reward, terminated, _, info = env.step(look)
    assert (reward, terminated, info["stop_reason"]) == (0.0, True, "tool_ended")
    assert env.record.state["bfcl"]["error"] == "multi_turn:force_terminated"

    env.reset(seed=0)  # the rounds are counted anew in each turn of the user
    done, rounds = False, 0
    while not done:
        action = env.oracle_action()
        if "<tool_call>" not in action:
            for _ in range(15):
                env.step(look)
                rounds += 1
        _, reward, done, _, _ = env.step(action)
    assert rounds > 40
    assert reward == 1.0
    env.close()


@pytest.mark.parametrize(
    ("action", "right"),
    [
        ("I can't do that.", {"irrelevance": 1.0, "live_relevance": 0.0, "simple_python": 0.0}),
        (written(("NAME", {})), {"irrelevance": 0.0, "live_relevance": 1.0, "simple_python": 0.0}),
        (written(("no_such_function", {})), {"irrelevance": 0.0, "live_relevance": 1.0, "simple_python": 0.0}),
        ('<tool_call>\n{"name": "NAME", "arg', {"irrelevance": 1.0, "live_relevance": 0.0, "simple_python": 0.0}),
    ],
)
def test_one_turn_decides_a_question(action: str, right: dict[str, float]) -> None:
    for category, wanted in right.items():
        env: Any = gym.make(f"toolstep/BFCL-{category}-v0").unwrapped
        env.reset(seed=1)
        name = env.schemas[0]["function"]["name"]
        _, reward, terminated, truncated, _ = env.step(action.replace("NAME", name))
        assert terminated or truncated
        assert reward == wanted, category
        env.close()


def test_only_the_first_turn_counts_where_more_are_allowed() -> None:
    env = env_of("simple_python_0", max_turns=5)
    right = env.oracle_action()
    env.step(written(("no_such_function", {})))
    assert env.step(right)[1] == 0.0
    env.close()


def test_dots_in_names_are_written_as_underscores() -> None:
    dotted = next(e for e in entries("simple_python") if "." in e.functions[0]["name"])
    env = env_of(dotted.id)
    assert env.schemas[0]["function"]["name"] == dotted.functions[0]["name"].replace(".", "_")
    assert env.step(env.oracle_action())[1] == 1.0
    env.close()


def test_docs_are_json_schemas() -> None:
    pytest.importorskip("jsonschema")
    for category in SINGLE_TURN:
        for e in entries(category)[::40]:
            for doc in e.functions:
                schema = json_schema(doc["parameters"])
                check_schema(schema, draft7=True)
                assert schema["type"] == "object"
    assert json_schema({"type": "dict", "properties": {"type": {"type": "tuple", "items": {"type": "float"}}}}) == {
        "type": "object",
        "properties": {"type": {"type": "array", "items": {"type": "number"}}},
    }


# --------------------------------------------------------------------------------------- traps of the official checker
def test_episodes_of_one_task_share_nothing() -> None:
    """The official one keeps the APIs in global variables: a second episode goes on where the first has ended."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    before = set(vars(multi_turn_utils))
    tasks = load_tasks("bfcl-multi_turn_base")
    tasks.task = lambda seed, split="test", task=tasks.task: task(0, split)  # type: ignore[method-assign]
    envs: Any = ToolUseVectorEnv(8, tasks, split="test", autoreset_mode="SameStep")
    envs.reset(seed=0)
    ended = 0
    for step in range(20):
        # Each row begins later than the one before it, so that each is somewhere else.
        actions = [a if step >= row else written(("pwd", {})) for row, a in enumerate(envs.oracle_actions())]
        _, rewards, terminated, _, _ = envs.step(actions)
        assert rewards.tolist() == terminated.astype(float).tolist()
        ended += int(terminated.sum())
    assert ended >= 12
    envs.close()
    assert set(vars(multi_turn_utils)) == before


HOSTILE = [
    "__import__('os').system('touch {path}')",
    "open('{path}', 'w')",
    "exec(\"open('{path}', 'w')\")",
    "globals",
    "_load_scenario",
    "_current_dir",
    "__class__",
    "__init__",
    "_GorillaFileSystem__eq__",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_model_writes_is_never_run(text: str, tmp_path: Path) -> None:
    path = tmp_path / "written"
    text = text.format(path=path)
    referee = Referee(entry("multi_turn_base_0"))
    answer, ran = referee.call(text, {})
    assert (answer, ran) == (f"Error during execution: name '{text}' is not defined", False)
    for name in ("cd", "echo", "mkdir", "find", "grep", "diff", "sort"):
        for arguments in ({"content": text}, {"folder": text}, {"file_name": text, "pattern": text}, {text: text}):
            assert "globals()" not in referee.call(name, arguments)[0]
    env = env_of("multi_turn_base_0")
    env.step(written((text, {}), ("echo", {"content": text}), ("cd", {"folder": text, text: 1})))
    env.close()
    single = env_of("simple_python_0")
    single.step(written((single.schemas[0]["function"]["name"], {"base": text, "height": [text], text: text})))
    single.close()
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    ["cd(folder=open('x'))", "cd(*a)", "cd(**{})", "a.b()", "cd", "cd(", "1", "cd(x for x in y)"],
)
def test_calls_of_the_ground_truth_are_literals(text: str) -> None:
    with pytest.raises(ValueError, match="literal arguments"):
        parse_call(text)
    assert parse_call("cd('a', b=[-1, {'c': None}])") == ("cd", ["a"], {"b": [-1, {"c": None}]})


def test_text_that_looks_like_a_call_stays_as_it_is() -> None:
    """The official one rewrites `cd(` in the text of an argument, and judges what comes of it."""
    text = "see cd(now), then mkdir (dir_name='x')"
    apis = Apis(entry("multi_turn_base_0"))
    assert json.loads(apis.call("echo", (), {"content": text})[0]) == {"terminal_output": text}
    e = entry("multi_turn_base_0")
    talk = right_talk(e)
    talk[0].append([("echo", {"content": text})])
    assert our_multi_turn(e, talk) == ""


def test_apis_work_on_copies_of_what_they_are_given() -> None:
    """They keep arguments, and what they begin with, and change both."""
    for category in MULTI_TURN:
        for e in entries(category)[::20]:
            before = json.dumps(e.config)
            assert our_multi_turn(e, right_talk(e)) == ""
            assert json.dumps(e.config) == before
    e = entry("multi_turn_base_0")
    apis = Apis(e)
    apis.call("authenticate_twitter", (), {k: e.config["TwitterAPI"][k] for k in ("username", "password")})
    tags = ["#first"]
    posted = json.loads(apis.call("post_tweet", (), {"content": "x", "tags": tags})[0])
    tags.append("#second")
    assert json.loads(apis.call("get_tweet", (), {"tweet_id": posted["id"]})[0])["tags"] == ["#first"]
    mark = next(e for e in entries("multi_turn_long_context") if "TradingBot" in e.classes)
    stocks = ("get_available_stocks", (), {"sector": "Technology"})
    shown = Apis(mark).call(*stocks)[0]
    assert Apis(mark).call(*stocks)[0] == shown  # what all of them begin with is in their module


ENDLESS = {
    "power": [{"base": 9, "exponent": 9**9}, {"base": 7**4_000, "exponent": 7**4_000}],
    "round_number": [{"number": 1, "decimal_places": -(10**9)}],
    "square_root": [{"number": 2, "precision": 10**9}],
    "logarithm": [{"value": 2, "base": 3, "precision": 10**9}],
}


def test_no_argument_makes_a_call_go_on_for_ever_and_precision_stays_what_it_was() -> None:
    """Each of these would take hours."""
    apis = Apis(next(e for e in entries("multi_turn_base") if "MathAPI" in e.classes))
    before = (mpmath.mp.dps, getcontext().prec)
    for name, calls in ENDLESS.items():
        for arguments in calls:
            assert apis.call(name, (), arguments)[0].startswith("Error during execution: ")
    assert json.loads(apis.call("power", (), {"base": 2, "exponent": 10})[0]) == {"result": 1024}
    assert "1.41421356237309504880168872421" in apis.call("square_root", (), {"number": 2, "precision": 30})[0]
    assert (
        "0.63092975357145743709952711434276085429958564013187"
        in (apis.call("logarithm", (), {"value": 2, "base": 3, "precision": 50})[0])
    )
    assert (mpmath.mp.dps, getcontext().prec) == before


def test_a_folder_in_itself_and_folders_that_grow_without_end_are_survived() -> None:
    e = entry("multi_turn_base_0")
    apis, reference = Apis(e), Apis(e)
    assert apis.same_state(reference)
    for name in ("mkdir", "cd"):
        apis.call(name, (), {"mkdir": {"dir_name": "d0"}, "cd": {"folder": "d0"}}[name])
    apis.call("mkdir", (), {"dir_name": "a"})
    apis.call("cp", (), {"source": "a", "destination": "a"})  # now it contains itself
    for name in ("find", "du"):
        assert apis.call(name, (), {})[0].startswith("Error during execution: ")
    assert not apis.same_state(reference)
    assert not reference.same_state(apis)
    both = Apis(e)
    for one in (apis, both):
        one.call("cd", (), {"folder": "/"})
    grown = Apis(e)
    for i in range(25):  # each folder twice in the next
        grown.call("mkdir", (), {"dir_name": f"n{i}"})
        if i:
            grown.call("cp", (), {"source": f"n{i - 1}", "destination": f"n{i}"})
            grown.call("mv", (), {"source": f"n{i - 1}", "destination": f"n{i}"})
            grown.call("cp", (), {"source": f"n{i}", "destination": "again"})
            grown.call("mv", (), {"source": "again", "destination": f"n{i}"})
    for name in ("find", "du"):
        assert "paths" in grown.call(name, (), {})[0]


def test_the_package_is_read_and_nothing_is_made_beside_it() -> None:
    """An import of its settings makes folders beside the package, and one of its models all vendors' SDKs."""
    code = (
        "import sys, types; m = types.ModuleType('toolstep'); m.__path__ = [sys.argv[1]]; sys.modules['toolstep'] = m\n"
        "import gymnasium as gym, toolstep.envs\n"
        "for name in ('multi_turn_base', 'simple_python'):\n"
        "    env = gym.make(f'toolstep/BFCL-{name}-v0').unwrapped; env.reset(seed=0)\n"
        "    done = False\n"
        "    while not done: done = env.step(env.oracle_action())[2]\n"
        "print([m for m in sys.modules if m.startswith('bfcl_eval.') and m.endswith('l_config')])\n"
        "print([m for m in ('torch', 'openai', 'anthropic', 'sympy') if m in sys.modules])\n"
    )
    import bfcl_eval

    beside = Path(bfcl_eval.__file__).parent.parent
    before = {p.name for p in beside.iterdir()}
    ran = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split("\n")[:2] == ["[]", "[]"], ran.stderr
    assert {p.name for p in beside.iterdir()} - before <= {"__pycache__"}


# --------------------------------------------------------------------------------------------------------------- splits
def test_the_list_is_a_test_unless_a_share_is_kept_for_training() -> None:
    tasks = load_tasks("bfcl-multi_turn_base")
    assert (tasks.size("train"), tasks.size("test")) == (0, 200)
    assert [tasks.task(seed, "test").id for seed in (0, 1, 199, 200)] == [
        "multi_turn_base_0",
        "multi_turn_base_1",
        "multi_turn_base_199",
        "multi_turn_base_0",
    ]
    with pytest.raises(TaskError, match=r"fixed list that has no part 'train'.*train=0\.5"):
        gym.make("toolstep/BFCL-multi_turn_base-v0", split="train")
    with pytest.raises(TaskError, match="no part 'train'"):
        example_messages(tasks, 1)
    for wrong in (1, -0.1, "half", True):
        with pytest.raises(TaskError, match="a share of the tasks"):
            load_tasks("bfcl-multi_turn_base", train=wrong)
    with pytest.raises(TaskError, match=r"no category 'multi_turn_bas'.*did you mean 'multi_turn_base'"):
        MultiTurnTasks("multi_turn_bas")


def test_splits_share_no_content_in_any_category() -> None:
    sides: dict[str, set[str]] = {"train": set(), "test": set()}
    for category in (*MULTI_TURN, *SINGLE_TURN):
        tasks = load_tasks(f"bfcl-{category}", train=0.5)
        sizes = [tasks.size("train"), tasks.size("test")]
        assert sum(s or 0 for s in sizes) == len(entries(category))
        assert min(s or 0 for s in sizes) >= len(entries(category)) // 3
        for split, keys in sides.items():
            ids = {tasks.task(seed, split).id for seed in range(tasks.size(split) or 0)}  # type: ignore[arg-type]
            assert len(ids) == tasks.size(split)  # type: ignore[arg-type]
            keys |= {e.key for e in entries(category) if e.id in ids}
    assert not sides["train"] & sides["test"]
    variants = [load_tasks(f"bfcl-{c}", train=0.5).task(0, "test").id.rpartition("_")[2] for c in MULTI_TURN]
    assert len(set(variants)) == 1


def test_examples_are_conversations_of_the_training_part() -> None:
    tasks = load_tasks("bfcl-multi_turn_miss_func", train=0.3)
    messages = example_messages(tasks, 2)
    opening = [tasks.task(seed, "test").messages[0] for seed in range(tasks.size("test") or 0)]
    assert not [m for m in messages if m in opening]
    told = [m.content for m in messages if m.role == "user" and "What about now?" in m.content]
    assert len(told) == 2
    assert all('{"type": "function"' in text for text in told)
    env: Any = gym.make("toolstep/BFCL-multi_turn_miss_func-v0", train=0.3, shots=2).unwrapped
    env.reset(seed=2)
    done = False
    while not done:
        _, reward, done, _, _ = env.step(env.oracle_action())
    assert reward == 1.0
    env.close()


def test_a_missing_package_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for gone in ("bfcl_eval", "mpmath"):
        found = data.importlib.util.find_spec

        def find(name: str, *rest: Any, gone: str = gone, found: Any = found) -> Any:
            return None if name == gone else found(name, *rest)

        monkeypatch.setattr(data.importlib.util, "find_spec", find)
        data.entries.cache_clear()
        with pytest.raises(BFCLMissing, match=re.escape(INSTALL)):
            gym.make("toolstep/BFCL-simple_python-v0")
        monkeypatch.undo()


def test_the_names_of_the_family_are_the_categories() -> None:
    family = next(f for f in FAMILIES if f.name == "BFCL")
    assert tuple(family.members) == (*MULTI_TURN, *SINGLE_TURN)
    assert family.needs == INSTALL


def test_the_command_line_plays_each_task_once_and_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from toolstep.rollout.cli import app

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})

    played = json.loads(run("eval", "bfcl-live_parallel", "--agent", "oracle", "--json", "--num-envs", "5").stdout)
    assert played["summary"]["successes"] == played["summary"]["episodes"] == 16
    refused = run("rollout", "bfcl-live_parallel", "--agent", "oracle", "--out", "x.jsonl")
    assert refused.exit_code == 2
    assert "has no part 'train'" in refused.output
    listed = json.loads(run("envs", "--json").stdout)
    ours = [item for item in listed if item["family"] == "toolstep/BFCL-*-v0"]
    assert len(ours) == 15
    assert all(item["needs"] == INSTALL for item in ours)
    assert "multi_turn_long_context" in run("envs").stdout
    assert "did you mean 'toolstep/BFCL-multi_turn_base-v0'" in run("envs", "bfcl-multi_turn_bas").output
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    data.entries.cache_clear()
    missing = run("eval", "bfcl-live_parallel", "--agent", "oracle")
    assert missing.exit_code == 2
    assert INSTALL in missing.output


# ------------------------------------------------------------------------------------------------------------ a checker
@pytest.mark.parametrize("category", ["multi_turn_base", "simple_python", "live_relevance"])
def test_the_checker_of_users_envs_finds_nothing(category: str) -> None:
    name = f"toolstep/BFCL-{category}-v0"
    report = check_task(name, seeds=4, episodes=1, timeout=60.0, quiet=True)
    assert report.codes == [], str(report)
    assert [f.code for f in report.notes] == ["no-train-split"]
    report = check_env(name, episodes=1, resets=5, quiet=True)
    assert report.findings == [], str(report)


def test_where_no_call_is_right_the_checker_says_that_any_text_wins() -> None:
    report = check_task("toolstep/BFCL-irrelevance-v0", seeds=4, episodes=1, timeout=60.0, quiet=True)
    assert report.codes == ["wrong-answer-scores"]
