"""Servers that others wrote, where they are on the PATH:

pip install mcp-server-time mcp-server-git mcp-server-fetch
npm install @modelcontextprotocol/server-{filesystem,memory,everything}    (PATH: node_modules/.bin)
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp_fixtures import call, eventually, make_env, make_envs, result, results, row_results
from traces import alive

pytest.importorskip("mcp")

from toolstep.envs.tools import MCP

EXPECTED = {
    "mcp-server-time": {"get_current_time", "convert_time"},
    "mcp-server-git": {"git_status", "git_log", "git_add", "git_commit"},
    "mcp-server-fetch": {"fetch"},
    "mcp-server-filesystem": {"read_text_file", "write_file", "list_directory", "directory_tree"},
    "mcp-server-memory": {"create_entities", "read_graph", "search_nodes"},
    "mcp-server-everything": {"echo", "get-sum"},
}


def program(name: str, *arguments: object, **options: Any) -> MCP:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on the PATH")
    return MCP([found, *map(str, arguments)], **options)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_tools_of_a_server_can_be_shown_and_checked(name: str, tmp_path: Path) -> None:
    arguments = [tmp_path] if name == "mcp-server-filesystem" else []
    env = make_env(program(name, *arguments))
    env.reset(seed=0)
    schemas = {s["function"]["name"]: s["function"] for s in env.schemas}
    assert EXPECTED[name] <= set(schemas)
    assert all(s["parameters"]["type"] == "object" and "$ref" not in json.dumps(s) for s in schemas.values())
    for tool in schemas:
        assert env.step(call(tool, no_such_argument=1))[4]["call_statuses"][0] in (
            "unexpected_argument",
            "missing_argument",
        )
    env.close()


def test_time() -> None:
    env = make_env(program("mcp-server-time"))
    env.reset(seed=0)
    there = {"source_timezone": "Europe/Zurich", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    assert "T19:00:00+09:00" in (text := result(env, call("convert_time", **there))) or "T20:00:00+09:00" in text
    assert env.step(call("get_current_time", timezone="Mars/Olympus"))[4]["call_statuses"] == ["tool_error"]
    env.close()


def test_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "new.txt").write_text("new")
    env = make_env(program("mcp-server-git", "--repository", tmp_path))
    env.reset(seed=0)
    assert "new.txt" in result(env, call("git_status", repo_path=str(tmp_path)))
    assert env.step(call("git_status", repo_path="/"))[4]["call_statuses"] == ["tool_error"]
    env.close()


def test_filesystem() -> None:
    envs = make_envs(2, program("mcp-server-filesystem", "{folder}"))
    envs.reset(seed=0)
    folders = [text.splitlines()[-1] for text in row_results(envs, *[call("list_allowed_directories")] * 2)]
    write = call("write_file", path=f"{folders[0]}/a", content="one") + call("read_text_file", path=f"{folders[0]}/a")
    infos = envs.step([write, call("read_text_file", path="/etc/passwd")])[4]
    assert infos["call_statuses"].tolist() == [["ok", "ok"], ["tool_error"]]
    assert infos["new_messages"][0][-1]["content"] == "one"
    assert row_results(envs, call("list_directory", path=folders[0]), call("list_directory", path=folders[1])) == [
        "[FILE] a",
        "",
    ]
    envs.close()


def test_memory_is_forgotten_where_each_episode_has_a_folder_of_its_own() -> None:
    env = make_env(program("mcp-server-memory", env={"MEMORY_FILE_PATH": "{folder}/memory.json"}))
    env.reset(seed=0)
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    assert "Ada" in result(env, call("create_entities", entities=[entity]))
    assert "writes programs" in result(env, call("search_nodes", query="Ada"))
    env.reset(seed=0)
    assert "Ada" not in result(env, call("read_graph"))
    assert env.step(call("create_entities", entities=[{"name": "x"}]))[4]["call_statuses"] == ["wrong_type"]
    env.close()


def test_everything() -> None:
    env = make_env(program("mcp-server-everything"))
    env.reset(seed=0)
    assert "Echo: hi" in result(env, call("echo", message="hi"))
    info = env.step(call("get-sum", a=2, b="3") + call("get-tiny-image"))[4]
    assert info["call_statuses"] == ["ok", "ok"]
    assert "5" in results(info)[0]
    assert "[image: image/png, " in results(info)[1]
    env.close()


def test_what_a_package_runner_starts_ends_with_it() -> None:
    if shutil.which("npx") is None or shutil.which("mcp-server-memory") is None:
        pytest.skip("needs npx and mcp-server-memory")
    folder = Path(shutil.which("mcp-server-memory") or "").parent.parent.parent
    env = make_env(program("npx", "--offline", "mcp-server-memory", cwd=folder))
    env.reset(seed=0)
    listed = subprocess.run(["ps", "-eo", "pid,pgid"], capture_output=True, text=True, check=True).stdout
    (server,) = env.config.tools[0]._servers._processes  # type: ignore[union-attr]
    started = {pid for pid, group in (line.split() for line in listed.splitlines()[1:]) if group == str(server.pid)}
    assert len(started) > 1
    env.close()
    assert eventually(lambda: not any(map(alive, started)))
