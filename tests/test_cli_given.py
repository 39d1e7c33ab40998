"""`toolstep eval` and `rollout` on tasks from a file or the command line, with the tools of MCP servers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from mcp_fixtures import command, running
from openapi_server import DOCUMENT, serving
from test_cli_commands import invoke, ok

from toolstep.envs.tasks import TaskError, load_tasks, read_tasks
from toolstep.rollout import read_episodes
from toolstep.rollout.specs import listed_specs


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Say {i}.", "answer": i}) + "\n" for i in range(7)))
    return path


# ---------------------------------------------------------------------------------------------------- files of tasks
def test_a_file_is_a_list_of_tasks(tasks: Path) -> None:
    found = load_tasks(str(tasks))
    assert [found.task(i).messages[0].content for i in range(7)] == [f"Say {i}." for i in range(7)]
    assert found.task(2).id == "tasks.jsonl:3"
    assert found.task(2).answer == 2


def test_lines_say_where_they_belong(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [
        {"prompt": "a", "answer": "1", "split": "test"},
        {"prompt": "b", "answer": "2"},
        {"prompt": "c", "answer": "3", "split": "example"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = read_tasks(path)
    assert [found.size(split) for split in ("train", "test")] == [1, 1]
    assert found.task(5, "test").answer == "1"
    assert found.example(0).answer == "3"
    path.write_text(json.dumps(lines[0]))
    assert read_tasks(path).size("train") == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"prompt": "a"}\n{"prompt": ', "t.jsonl:2: no JSON"),
        ("[1]", "t.jsonl:1: expected an object"),
        ('{"promt": "a"}', "task t.jsonl:1: unknown field 'promt'; did you mean 'prompt'"),
        ('{"prompt": "a", "split": "dev"}', "t.jsonl:1: 'split' must be one of"),
        ("\n\n", "there is no task in"),
        (None, "cannot read the tasks of"),
    ],
)
def test_a_file_that_is_no_list_of_tasks_is_refused(text: str | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TaskError, match=problem):
        read_tasks(path)


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
    assert sorted(t.task_id for t in read_episodes(out)) == [f"tasks.jsonl:{i}" for i in (1, 1, 2, 2, 3, 3)]


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
