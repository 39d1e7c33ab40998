"""MCP servers as child processes: what they say, how they fail, and that nothing of them stays."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mcp_fixtures import (
    SERVER,
    TASKS,
    call,
    command,
    eventually,
    make_env,
    make_envs,
    result,
    results,
    row_results,
    running,
    server,
)
from traces import alive, descriptors, threads

from toolstep.envs import ToolUseEnv
from toolstep.envs.tools import MCP, ToolBackendError, tool
from toolstep.envs.tools.mcp import session, stdio

pytest.importorskip("mcp")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="looks at /proc and sends signals")


@pytest.fixture
def env() -> Any:
    made = make_env(server())
    made.reset(seed=0)
    yield made
    made.close()


# ------------------------------------------------------------------------------------------------ tools and calls
def test_tools_of_a_server_are_offered_and_called(env: ToolUseEnv) -> None:
    schemas = {schema["function"]["name"]: schema["function"]["parameters"] for schema in env.schemas}
    assert schemas["add"]["properties"] == {"n": {"type": "integer"}}
    info = env.step(call("add", n=1) + call("add", n=2) + call("add", n=4))[4]
    assert results(info) == ["1", "3", "7"]
    assert info["call_statuses"] == ["ok"] * 3


def test_arguments_are_checked_before_the_server_sees_them(env: ToolUseEnv) -> None:
    info = env.step(call("add", n="5") + call("add", n="five") + call("add") + call("add", n=1, m=2))[4]
    assert info["call_statuses"] == ["ok", "wrong_type", "missing_argument", "unexpected_argument"]
    assert "n: expected an integer" in results(info)[1]


def test_errors_of_a_server_are_the_tools_errors(env: ToolUseEnv) -> None:
    info = env.step(call("fail") + call("nonsense") + call("add", n=1))[4]
    assert info["call_statuses"] == ["tool_error", "tool_error", "ok"]
    assert "no luck" in results(info)[0]
    assert "does not follow the protocol" in results(info)[1]


def test_mcp_tools_stand_beside_functions() -> None:
    def double(x: int) -> int:
        """Twice x."""
        return 2 * x

    env = make_env([double, server()])
    env.reset(seed=0)
    assert results(env.step(call("double", x=4) + call("add", n=1))[4]) == ["8", "1"]
    env.close()


def test_chosen_tools_with_a_prefix() -> None:
    env = make_env([server(tools=["add"], prefix="one."), server(tools=["add", "big"], prefix="two.")])
    env.reset(seed=0)
    assert [s["function"]["name"] for s in env.schemas] == ["one.add", "two.add", "two.big"]
    assert results(env.step(call("one.add", n=1) + call("two.add", n=5) + call("one.add", n=1))[4]) == ["1", "5", "2"]
    env.close()
    with pytest.raises(ToolBackendError, match="has no tool 'ad'; it has add,"):
        make_env(server(tools=["ad"]))


def test_a_listing_of_many_pages() -> None:
    env = make_env(server({"start": "pages"}))
    env.reset(seed=0)
    assert len(env.schemas) > 10
    env.close()


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ('{"type": "object", "properties": {"x": {"type": "strin"}}}', r"at \$.properties.x.type"),
        ('{"type": "object", "properties": {"x": {"$ref": 3}}}', r"at \$.properties.x"),
        ("huge", "characters, at most"),
    ],
)
def test_a_tool_whose_schema_cannot_be_used_is_refused_by_name(schema: str, problem: str) -> None:
    with pytest.raises(ToolBackendError, match=f"schema of tool 'odd' cannot be used: .*{problem}"):
        make_env(server({"schema": schema}))
    make_env(server({"schema": schema}, tools=["add"])).close()


def test_a_listing_that_the_protocol_does_not_know_is_told() -> None:
    with pytest.raises(ToolBackendError, match=r"does not follow the protocol: tools.12.inputSchema.type: .* 'object'"):
        make_env(server({"schema": '{"type": "array"}'}))


def test_only_the_named_environment_reaches_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY_OF_SOMETHING", "secret")
    env = make_env(server(env={"MY_SETTING": "1"}), max_result_tokens=100_000)
    env.reset(seed=0)
    seen = json.loads(result(env, call("environment")))
    assert seen["MY_SETTING"] == "1"
    assert "API_KEY_OF_SOMETHING" not in seen
    env.close()


def test_a_folder_of_its_own_comes_and_goes_with_a_server() -> None:
    def folder(env: ToolUseEnv) -> Path:
        return Path(json.loads(result(env, call("environment")))["STORE"]).parent

    env = make_env(server(env={"STORE": "{folder}/memory.json"}), max_result_tokens=100_000)
    env.reset(seed=0)
    first = folder(env)
    assert list(first.iterdir()) == []
    env.reset(seed=0)
    second = folder(env)
    assert second.is_dir()
    assert eventually(lambda: not first.exists())
    env.close()
    assert not second.exists()
    env = make_env(server(env={"STORE": "{folder}/memory.json"}), max_result_tokens=100_000)
    env.reset(seed=0)
    third = folder(env)
    del env
    gc.collect()
    assert eventually(lambda: not third.exists())


def test_a_source_can_be_pickled_and_given_to_several_envs() -> None:
    source = pickle.loads(pickle.dumps(server()))
    envs = [make_env(source), make_env(source)]
    for env in envs:
        env.reset(seed=0)
    assert result(envs[0], call("add", n=1)) == "1"
    assert result(envs[1], call("add", n=5)) == "5"
    envs[0].close()
    assert result(envs[1], call("add", n=1)) == "6"
    envs[1].close()


# ----------------------------------------------------------------------------------------------- rows and episodes
def test_an_episode_begins_with_a_server_that_remembers_nothing(env: ToolUseEnv) -> None:
    assert result(env, call("add", n=1)) == "1"
    env.reset(seed=0)
    assert result(env, call("add", n=1)) == "1"


def test_rows_do_not_see_each_other() -> None:
    envs = make_envs(3, server())
    envs.reset(seed=0)
    assert row_results(envs, call("add", n=1), call("add", n=10), call("add", n=100)) == ["1", "10", "100"]
    assert row_results(envs, call("add", n=1), call("crash", n=3), call("add", n=1))[::2] == ["2", "101"]
    assert row_results(envs, *[call("add", n=1)] * 3)[::2] == ["3", "102"]
    envs.close()


@pytest.mark.parametrize(("scope", "expected"), [("kept", ["2", "2"]), ("shared", ["3", "4"])])
def test_a_server_may_be_kept_or_shared_by_choice(scope: Any, expected: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    envs = make_envs(2, server({"log": str(log)}, scope=scope))
    for _ in range(2):
        envs.reset(seed=0)
        seen = row_results(envs, *[call("add", n=1)] * 2)
    assert sorted(seen) == expected
    assert len(running(log)) == (1 if scope == "shared" else 2)
    envs.close()
    assert running(log) == []


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_ended_rows_get_new_servers_in_every_autoreset_mode(mode: str) -> None:
    envs = make_envs(2, server(), autoreset_mode=mode)
    envs.reset(seed=0)
    assert row_results(envs, call("add", n=1), call("add", n=1)) == ["1", "1"]
    _, _, terminations, _, _ = envs.step(["2", call("add", n=1)])
    assert terminations.tolist() == [True, False]
    if mode == "Disabled":
        envs.reset(options={"reset_mask": terminations})
    elif mode == "NextStep":
        assert row_results(envs, "ignored", call("add", n=0))[1] == "2"
    assert row_results(envs, call("add", n=1), call("add", n=1)) == ["1", "3"]
    envs.close()


def test_rows_that_stream_get_their_own_servers() -> None:
    envs = make_envs(2, server())
    envs.begin([0, 1], [0, 1])
    envs.send([call("add", n=1), call("add", n=10)], [0, 1])
    received = envs.recv(min_rows=2)
    assert sorted(results(info)[0] for info in received.infos) == ["1", "10"]
    envs.begin([1], [1])
    envs.send([call("add", n=10)], [1])
    assert results(envs.recv().infos[0]) == ["10"]
    envs.close()


def test_calls_of_a_turn_run_in_order(env: ToolUseEnv) -> None:
    # Were they side by side, the last one would be done first.
    calls = call("add", n=1) + call("sleep", ms=300) + call("add", n=1)
    assert results(env.step(calls)[4]) == ["1", "", "2"]
    assert env.tool_seconds >= 0.3


def test_the_start_of_a_server_is_not_counted_as_the_calls_time() -> None:
    env = make_env(server({"start": "slow"}), tool_timeout=0.5)
    for _ in range(2):
        env.reset(seed=0)
        assert result(env, call("add", n=1)) == "1"
    env.close()


def test_a_server_that_says_nothing_is_given_up_before_the_sdk_would(tmp_path: Path) -> None:
    import mcp.client.session as sdk

    log = tmp_path / "log"
    started = time.monotonic()
    with pytest.raises(ToolBackendError, match=r"could not be started: it did not get ready within 0.5 s"):
        make_env(server({"start": "silent", "log": str(log)}, start_timeout=0.5))
    assert time.monotonic() - started < sdk.DISCOVER_TIMEOUT_SECONDS
    assert not log.exists() or running(log) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (server({"start": "exit"}), "ended with exit code 3; its last words: cannot find the database"),
        (MCP("no-such-program-at-all --fast"), "there is no program 'no-such-program-at-all'"),
        (MCP(command(), cwd="/no/such/folder"), "working directory '/no/such/folder' is not there"),
        (MCP([sys.executable, "-c", "print('hello')"]), "ended with exit code 0"),
    ],
    ids=["exits", "absent", "folder", "no server"],
)
def test_a_server_that_cannot_be_started_says_why(source: MCP, problem: str) -> None:
    with pytest.raises(ToolBackendError, match=problem):
        make_env(source)


# --------------------------------------------------------------------------------------------- servers that misbehave
def test_a_crash_is_told_and_the_next_call_gets_a_new_server(env: ToolUseEnv) -> None:
    assert result(env, call("add", n=5)) == "5"
    info = env.step(call("crash", n=3) + call("add", n=1))[4]
    assert info["call_statuses"] == ["tool_error", "ok"]
    assert "stopped during the call; a new one takes its place" in results(info)[0]
    assert results(info)[1] == "1"
    assert info["status"] == "ok"


def test_a_server_that_stopped_between_two_turns_is_replaced_and_the_model_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = make_env(server({"log": str(log)}))
    env.reset(seed=0)
    assert result(env, call("add", n=5)) == "5"
    os.kill(int(running(log)[0]), signal.SIGKILL)
    assert eventually(lambda: not running(log))
    time.sleep(0.2)  # until this process has noticed
    assert result(env, call("add", n=1)) == (
        "1\n[the server of this tool had stopped and was started again; what it kept in memory is gone]"
    )
    assert result(env, call("add", n=1)) == "2"
    env.close()


def test_an_episode_whose_server_cannot_be_started_again_is_no_failure_of_the_model(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER.read_text())
    envs = make_envs(3, MCP([sys.executable, "-I", "-S", str(script)]))
    envs.reset(seed=0)
    envs.step([call("add", n=1)] * 3)
    script.unlink()  # the program goes away while its servers run
    infos = envs.step([call("crash", n=3), call("crash", n=3) + call("add", n=1), call("add", n=1)])[4]
    assert infos["status"].tolist() == ["ok", "env_error", "ok"]
    _, _, _, truncations, infos = envs.step([call("add", n=1)] * 3)
    assert infos["status"].tolist() == ["env_error", "ok", "ok"]
    assert "could not be started: ended with exit code 2" in infos["error"][0]
    assert truncations.tolist() == [True, False, False]
    assert infos["new_messages"][2][-1]["content"] == "3"
    # The episode that began in row 1 meanwhile has no server either; without a call it needs none.
    assert envs.step(["ignored", "2", "2"])[4]["status"].tolist() == ["ok"] * 3
    envs.close()


def test_a_late_call_is_answered_in_time_and_the_server_stays(env: ToolUseEnv) -> None:
    env.close()
    env = make_env(server(), tool_timeout=0.5)
    env.reset(seed=0)
    assert result(env, call("add", n=1)) == "1"
    info = env.step(call("sleep", ms=1500))[4]
    assert info["call_statuses"] == ["tool_timeout"]
    for _ in range(10):  # it is still busy with the call that nobody waits for
        info = env.step(call("add", n=1))[4]
        if info["call_statuses"] == ["ok"]:
            break
    assert int(results(info)[0]) > 1
    env.close()


def test_a_server_that_answers_nothing_any_more_is_killed_and_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "SIGN_OF_LIFE", 0.2)
    log = tmp_path / "log"
    env = make_env(server({"log": str(log)}, call_timeout=0.5))
    env.reset(seed=0)
    (pid,) = running(log)
    assert env.step(call("hang"))[4]["call_statuses"] == ["tool_timeout"]
    assert eventually(lambda: not alive(pid))
    statuses = [env.step(call("add", n=1))[4]["call_statuses"][0] for _ in range(20)]
    assert "ok" in statuses
    env.close()


def test_large_answers_are_cut_and_endless_lines_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MAX_MESSAGE", 12 << 20)
    env = make_env(server(), max_result_tokens=50)
    env.reset(seed=0)
    text = result(env, call("big", n=10_000_000))
    assert "of 10000000 characters left out" in text
    info = env.step(call("line", n=13 << 20))[4]
    assert info["call_statuses"] == ["tool_error"]
    assert result(env, call("add", n=1)) == "1"
    env.close()


def test_tools_that_come_and_go_are_told_and_can_be_called(env: ToolUseEnv) -> None:
    prompt = [schema["function"]["name"] for schema in env.schemas]
    assert env.step(call("grown"))[4]["call_statuses"] == ["unknown_tool"]
    text = result(env, call("grow"))
    assert "These tools are new or have changed:" in text
    assert '"name": "grown"' in text
    assert env.step(call("grown"))[4]["call_statuses"] == ["ok"]
    assert "These tools are gone: big" in result(env, call("shrink"))
    assert env.step(call("big", n=1))[4]["call_statuses"] == ["unknown_tool"]
    assert "gone" not in result(env, call("add", n=1))
    assert [schema["function"]["name"] for schema in env.schemas] == prompt  # the prompt is in the past
    env.reset(seed=0)
    assert [schema["function"]["name"] for schema in env.schemas] == prompt


def test_stderr_and_prints_of_a_server_stay_out_of_the_terminal(capfd: Any, caplog: Any) -> None:
    with caplog.at_level(logging.DEBUG, "toolstep.mcp"):
        env = make_env(server())
        env.reset(seed=0)
        env.step(call("crash", n=3))
        env.close()
    assert capfd.readouterr() == ("", "")
    assert "a word to stderr" in caplog.text
    assert "about to crash" in caplog.text


# ------------------------------------------------------------------------------------------------- nothing is left
def test_what_a_server_started_ends_with_it() -> None:
    env = make_env(server())
    env.reset(seed=0)
    pids = result(env, call("spawn")).split()
    env.reset(seed=0)
    assert eventually(lambda: not any(map(alive, pids)))
    pids = result(env, call("spawn")).split()
    env.close()
    assert eventually(lambda: not any(map(alive, pids)))


def test_a_server_that_will_not_end_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = make_env(server({"eof": "ignore", "log": str(log)}, stop_timeout=0.4))
    env.reset(seed=0)
    assert len(running(log)) == 1
    env.close()
    assert running(log) == []
    assert "end" in log.read_text()  # it was asked first


def test_closing_leaves_no_thread_process_or_descriptor(tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_env(server({"log": str(log)})).close()  # what is loaded with the first one stays
    before = threads(), descriptors(), threading.active_count()
    envs = make_envs(3, server({"log": str(log)}))
    for _ in range(10):
        envs.reset(seed=0)
        envs.step([call("add", n=1), call("crash", n=1), "2"])
    envs.close()
    envs.close()
    assert running(log) == []
    assert threads() <= before[0]
    assert descriptors() <= before[1]
    assert threading.active_count() <= before[2]


def test_an_env_that_nobody_closed_is_cleaned_up_when_it_is_collected(tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_env(server({"log": str(log)})).close()
    before = threads(), descriptors()
    env = make_env(server({"eof": "ignore", "log": str(log)}))
    env.reset(seed=0)
    pids = [*running(log), *result(env, call("spawn")).split()]
    del env
    gc.collect()
    assert eventually(lambda: not any(map(alive, pids)))
    assert eventually(lambda: (threads(), descriptors()) == before)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel kills the servers' groups on Linux only")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("doing", ["waits", "calls"])
def test_a_process_that_is_ended_takes_its_servers_along(sent: int, doing: str, tmp_path: Path) -> None:
    code = f"""
import sys, time, types
package = sys.modules["toolstep"] = types.ModuleType("toolstep")
package.__path__ = [{str(Path(__file__).resolve().parent.parent)!r}]
sys.path.insert(0, {str(Path(__file__).parent)!r})
from mcp_fixtures import call, make_env, result, server
env = make_env(server({{"eof": "ignore"}}))
env.reset(seed=0)
print(result(env, call("spawn")), flush=True)
env.step(call("hang")) if {doing == "calls"} else time.sleep(600)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    pids = parent.stdout.readline().split()
    assert len(pids) == 2
    assert all(map(alive, pids))
    parent.send_signal(sent)
    assert eventually(lambda: not any(map(alive, pids)))
    parent.wait(60)
    parent.stdout.close()


# ---------------------------------------------------------------------------------------------------- descriptions
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"server": ""}, "command of the server is empty"),
        ({"server": 3}, "server must be a command"),
        ({"server": "x", "scope": "global"}, "scope must be one of"),
        ({"server": "x", "call_timeout": 0}, "call_timeout must be a finite number"),
        ({"server": "x", "tools": "add"}, "tools must be a list of names"),
    ],
)
def test_a_description_that_cannot_work_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        MCP(**arguments)


def test_a_command_is_split_and_never_meets_a_shell() -> None:
    assert MCP("python -m 'my server' --x=$HOME; ls").spec.command == ["python", "-m", "my server", "--x=$HOME;", "ls"]


def test_secrets_stay_out_of_names() -> None:
    source = MCP("https://user:pass@host.example:8443/mcp?key=secret", headers={"Authorization": "Bearer secret"})
    assert source.spec.who == "MCP server 'https://host.example:8443/mcp'"
    assert "Bearer" not in repr(source)


def test_two_tools_of_one_name_are_refused() -> None:
    env = ToolUseEnv(TASKS, tools=[tool(lambda n: n, name="add"), server()])
    with pytest.raises(ValueError, match="two tools are named 'add'"):
        env.reset(seed=0)
    env.close()
