"""`toolstep eval` and `rollout` on tasks from a file or the command line, with the tools of MCP servers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from mcp_fixtures import command, running
from openapi_server import DOCUMENT, serving
from test_cli_commands import invoke, ok

from toolstep.envs.tasks import JsonlTasks
from toolstep.rollout import read_episodes
from toolstep.rollout.specs import listed_specs


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Say {i}.", "answer": i}) + "\n" for i in range(7)))
    return path


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_every_task_of_a_list_is_drawn_once(size: int) -> None:
    from toolstep.envs import ToolUseEnv

    env = ToolUseEnv([{"prompt": str(i)} for i in range(size)])
    specs = listed_specs(size, size)
    drawn = [env.reset(seed=spec.seed)[1]["new_messages"][-1]["content"] for spec in specs]
    assert drawn == [str(i) for i in range(size)]
    assert [s.group_id for s in specs] == list(range(size))
    assert listed_specs(size, 1) == specs[:1]


# --------------------------------------------------------------------------------------------------------- commands
def test_eval_plays_each_task_of_a_file_once(tasks: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    document = json.loads(ok("eval", "--tasks", str(tasks), "--agent", "oracle", "--json", "--out", str(out)))
    assert document["summary"]["episodes"] == 7
    assert document["summary"]["success_rate"] == 1.0
    assert document["config"]["env"] == "tasks.jsonl"
    assert sorted(t.task_id for t in read_episodes(out / "episodes.jsonl")) == [f"tasks.jsonl:{i}" for i in range(1, 8)]
    document = json.loads(ok("eval", "--tasks", str(tasks), "--agent", "oracle", "--json", "--episodes", "3"))
    assert document["summary"]["episodes"] == 3


def test_eval_takes_the_test_lines_where_there_are_some(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": "a", "answer": "1", "split": "test"}\n{"prompt": "b", "answer": "2"}\n')
    for split, expected in ((None, "t.jsonl:1"), ("train", "t.jsonl:2")):
        out = tmp_path / str(split)
        chosen = ["--split", split] if split else []
        ok("eval", "--tasks", str(path), "--agent", "oracle", "--out", str(out), *chosen)
        assert [t.task_id for t in read_episodes(out / "episodes.jsonl")] == [expected]


def test_rollout_takes_groups_of_the_tasks_of_a_file(tasks: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    ok("rollout", "--tasks", str(tasks), "--agent", "oracle", "--groups", "3", "--group-size", "2", "--out", str(out))
    training = [task.id for task in map(JsonlTasks(tasks).task, range(3))]
    assert [t.task_id for t in read_episodes(out)] == [i for i in training for _ in range(2)]


def test_the_tools_of_a_server_are_offered_without_code(tasks: Path, tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    log = tmp_path / "log"
    server = shlex.join(command(log=str(log)))
    document = json.loads(ok("eval", "--tasks", str(tasks), "--mcp", server, "--agent", "oracle", "--json"))
    assert document["summary"]["success_rate"] == 1.0
    assert running(log) == []
    assert len(log.read_text().splitlines()) > 7  # a server for each episode, and its end
    ok("eval", "calculator", "--mcp", server, "--agent", "oracle", "--episodes", "2", "--json")
    assert running(log) == []


def test_the_operations_of_a_document_are_offered_without_code(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jsonschema")
    path = tmp_path / "document.json"
    path.write_text(json.dumps(DOCUMENT))
    monkeypatch.setenv("PETS_KEY", "s3cret-key")
    with serving() as server:
        given = ["--openapi", str(path), "--base-url", server.url, "--auth-env", "PETS_KEY"]
        document = json.loads(ok("eval", "--tasks", str(tasks), *given, "--agent", "oracle", "--json"))
    assert document["summary"]["success_rate"] == 1.0
    assert document["config"]["openapi"] == str(path)
    assert "s3cret" not in json.dumps(document)


def test_a_person_plays_with_the_tools_of_a_server(tasks: Path, tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    log = tmp_path / "log"
    given = ["--mcp", shlex.join(command(log=str(log))), "--tool", "test_cli_given:shout"]
    typed = '/tools\n/call shout {"text": "hi"}\n/call add {"n": "5"}\n5\n'
    shown = ok("play", "--prompt", "What is 2 + 3?", "--answer", "5", *given, text=typed)
    assert '{"name": "shout"' in shown
    assert "── tool shout\nHI" in shown
    assert "── tool add\n5" in shown
    assert "answered, score 1" in shown
    assert running(log) == []
    assert "── user\nSay 3." in ok("play", "--tasks", str(tasks), "--seed", "0", text="")


def test_tasks_that_are_played_are_those_of_the_split(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": "a", "answer": "1", "split": "test"}\n{"prompt": "b", "answer": "2"}\n')
    for chosen, prompt in (([], "a"), (["--split", "train"], "b")):
        assert f"── user\n{prompt}\n" in ok("play", "--tasks", str(path), *chosen, text="")


def shout(text: str) -> str:
    """Shout.

    Args:
        text: What.
    """
    return text.upper()


def test_tools_and_rewards_are_named_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    item = {"prompt": "Shout a.", "answer": 4, "calls": [{"name": "shout", "arguments": {"text": "a"}}]}
    path.write_text(json.dumps(item) + "\n" + json.dumps({"prompt": "b", "answer": 5, "tools": ["clock"]}))
    given = ["--tool", "calculator", "--tool", "test_cli_given:shout", "--reward", '{"name": "numeric", "rel": 0.1}']
    weights = ["--reward-weight", "call_cost=0.25", "--reward-weight", "tool_success=2", "--reward-clip", "-1", "1.5"]
    out = tmp_path / "out"
    document = json.loads(
        ok("eval", "--tasks", str(path), "--agent", "oracle", *given, *weights, "--out", str(out), "--json")
    )
    first, second = sorted(read_episodes(out / "episodes.jsonl"), key=lambda t: t.task_id)
    assert (first.total_reward, second.total_reward) == (1.5, 1.0)  # 1 - 0.25 + 2, cut to 1.5
    terms = {k.removeprefix("reward/"): v for k, v in first.metrics.items() if k.startswith("reward/")}
    assert terms["call_accuracy"] == terms["tool_success"] == terms["outcome"] == 1.0
    assert terms["call_cost"] == -1.0
    assert "reward/call_accuracy" not in second.metrics
    assert document["summary"]["reward_terms"]["call_cost"] == -0.5
    assert document["summary"]["reward_terms"]["call_accuracy"] == 1.0
    assert document["config"]["rewards"]["weights"]["tool_success"] == 2.0
    assert "call_cost -0.500" in (out / "summary.md").read_text()
    tape = str(tmp_path / "tape.jsonl")
    played = [
        json.loads(ok("eval", "--tasks", str(path), "--agent", "oracle", *given, *weights, way, tape, "--json"))
        for way in ("--record", "--playback")
    ]
    assert [p["summary"]["mean_reward"] for p in played] == [1.25, 1.25]
    rows = tmp_path / "rows.jsonl"
    ok("rollout", "--tasks", str(path), "--agent", "oracle", *given, "--groups", "1", "--out", str(rows))
    assert read_episodes(rows)[0].metrics["reward/call_cost"] == -1.0


def test_a_prompt_shows_its_conversation(tmp_path: Path) -> None:
    shown = ok("eval", "--prompt", "Say 5.", "--answer", "5", "--agent", "oracle")
    assert shown.index("Say 5.") < shown.index("── assistant") < shown.index("success")
    shown = ok("eval", "--prompt", "Say 5.", "--agent", "random")
    assert "── ended: answered" in shown
    assert "success" not in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give one of ENV, --tasks FILE and --prompt TEXT; found none"),
        (["calculator", "--prompt", "x"], "found env and prompt"),
        (["tasks.jsonl"], "is a file: give it with --tasks tasks.jsonl"),
        (["calculator", "--answer", "x"], "--answer belongs to --prompt"),
        (["calculator", "--base-url", "http://x"], "--base-url belongs to --openapi"),
        (["calculator", "--openapi", "absent.yaml"], "cannot read the OpenAPI document 'absent.yaml'"),
        (["--tasks", "absent.jsonl"], "cannot read the tasks of 'absent.jsonl'"),
        (["--prompt", "x", "--mcp", ""], "the command of the server is empty"),
        (["--prompt", "x", "--level", "2"], "level"),
        (["--prompt", "x", "--tool", "calc"], "there is no built-in tool 'calc'; did you mean"),
        (["--prompt", "x", "--tool", "no_module:f"], "--tool no_module:f: No module named 'no_module'"),
        (["--prompt", "x", "--reward", "number"], "there is no reward 'number'; did you mean 'numeric'?"),
        (
            ["--prompt", "x", "--reward", "numeric"],
            "task train/0: 'answer' (reward 'numeric'): expected a finite number",
        ),
        (["--prompt", "x", "--reward-weight", "call_cost"], "--reward-weight takes TERM=WEIGHT, like call_cost=0.05"),
        (["--prompt", "x", "--reward-weight", "cost=1"], "there is no reward term 'cost'"),
        (["--prompt", "x", "--reward-clip", "1", "0"], "the clip of a reward must be (least, most)"),
        (["jsonl"], "toolstep/Jsonl-v0 plays a file: give it with --tasks FILE.jsonl"),
    ],
)
def test_what_cannot_work_is_told_in_one_line(arguments: list[str], problem: str) -> None:
    result = invoke("eval", *arguments, "--agent", "oracle")
    assert result.exit_code == 2
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_server_that_does_not_start_is_told_in_one_line() -> None:
    pytest.importorskip("mcp")
    result = invoke("eval", "--prompt", "x", "--mcp", "no-such-program", "--agent", "oracle")
    assert result.exit_code == 2
    assert "MCP server 'no-such-program' could not be started: there is no program" in result.stderr
