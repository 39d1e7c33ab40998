"""Recordings: what tools answered is written down, and answers for them in the same places."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from mcp_fixtures import call, command
from openapi_server import DOCUMENT, serving
from test_cli_commands import invoke, ok

from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.limits import EnvConfigError
from toolstep.envs.tools import MCP, EpisodeInfo, OpenAPI, Tool, ToolBackendError, ToolFactory, tool
from toolstep.envs.tools.bound import BoundTools
from toolstep.rollout import collect, group_specs, read_episodes
from toolstep.rollout.recording import FileRecording, read_recording
from toolstep.rollout.replay import read_recorded, replay_episodes, replay_file
from toolstep.rollout.storage import StorageError
from toolstep.rollout.types import Trajectory

TASKS = [{"prompt": "Roll.", "answer": "6"}]
ticks = count()
Episodes = list[Trajectory]
BROKEN = ["{", "[]", "{}", '{"episode": "1/0", "turn": 0}', '{"episode": "1/0", "task": "t", "offer": "none"}', "\xff"]


@tool(run_in="inline")
def roll(sides: int = 6) -> int:
    """Roll a die that never rolls the same twice."""
    return 100 * next(ticks) + sides


class Says:
    """Says the turns of a script, the same in every row."""

    env_kwargs: ClassVar[dict[str, Any]] = {}

    def __init__(self, *turns: str):
        self.turns = turns
        self.envs: Any = None

    def bind(self, envs: Any) -> None:
        self.envs = envs

    def predict(self, observation: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return tuple((*self.turns, "done", "done")[min(t, len(self.turns))] for t in self.envs.get_attr("turns")), None


def make(num_envs: int, tools: Any, tape: Any = None, **options: Any) -> ToolUseVectorEnv:
    return ToolUseVectorEnv(num_envs, TASKS, tools=tools, tape=tape, tool_timeout=60.0, **options)


def recorded(path: Path, tools: Any, *turns: str, groups: int = 2, size: int = 3, num_envs: int = 4) -> Episodes:
    """Episodes of that script, recorded in `path`."""
    tape = FileRecording(path)
    envs = make(num_envs, tools, tape)
    try:
        return collect(envs, Says(*turns), group_specs(groups, size, 0))
    finally:
        envs.close()
        tape.close()


def played(path: Path, tools: Any, *turns: str, groups: int = 2, size: int = 3, num_envs: int = 2) -> Episodes:
    """The same with that recording in place of the tools."""
    envs = make(num_envs, tools, read_recording(path))
    try:
        return collect(envs, Says(*turns), group_specs(groups, size, 0))
    finally:
        envs.close()


def dicts(episodes: Sequence[Trajectory]) -> list[dict[str, Any]]:
    return [t.to_dict() for t in episodes]


# ------------------------------------------------------------------------------------------------- the same place
@pytest.mark.parametrize("num_envs", [1, 2, 6])
def test_a_tool_that_answers_differently_each_time_replays_with_its_recording_only(
    num_envs: int, tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    turns = [call("roll", sides=2) + call("roll", sides=2), call("roll")]
    first = recorded(path, [roll], *turns)
    assert len({m["content"] for t in first for m in t.messages if m["role"] == "tool"}) == 18
    again = played(path, [roll], *turns, num_envs=num_envs)
    assert dicts(again) == dicts(first)
    (found, *_) = replay_episodes(make(num_envs, [roll]), first).differences
    assert (found.line, found.turn, found.field) == (1, 1, "messages[2].content")
    assert replay_episodes(make(num_envs, [roll], read_recording(path)), reversed(first)).equal


def test_commands_record_and_play_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolstep.envs.tools import calculator

    record, run = tmp_path / "r.jsonl", tmp_path / "run"
    args = ["eval", "calculator", "--agent", "oracle", "--episodes", "4", "--epochs", "2"]
    one = json.loads(ok(*args, "--out", str(run), "--record", str(record), "--json"))
    monkeypatch.setattr(calculator, "evaluate", lambda text: 1 / 0)  # no tool may run any more
    two = json.loads(ok(*args, "--num-envs", "3", "--playback", str(record), "--json"))
    for document in (one, two):
        del document["summary"]["speed"]
    assert two["summary"] == one["summary"]
    assert one["summary"]["successes"] == 8
    assert invoke("replay", str(run / "episodes.jsonl")).exit_code == 1
    assert ok("replay", str(run / "episodes.jsonl"), "--playback", str(record)).rstrip().endswith("all equal")


def test_groups_of_a_model_are_recorded_by_sample(tmp_path: Path) -> None:
    """Without a barrier: rows begin when others end."""
    out, record = tmp_path / "o.jsonl", tmp_path / "r.jsonl"
    ok(
        "rollout", "calculator", "--agent", "tiny-sft", "--groups", "2", "--group-size", "4", "--num-envs", "3",
        "--max-new-tokens", "40", "--device", "cpu", "--temperature", "1.5", "--out", str(out), "--record", str(record),
    )  # fmt: skip
    keys = {json.loads(line).get("episode") for line in record.read_text().splitlines()} - {None}
    assert sorted(key.partition("/")[2] for key in keys) == sorted("0123" * 2)
    assert replay_file(out, playback=record).equal


@pytest.mark.parametrize("name", ["files", "sql", "python"])
def test_what_stateful_tools_leave_behind_is_recorded_too(name: str, tmp_path: Path) -> None:
    run, record = tmp_path / "run", tmp_path / "r.jsonl"
    ok("eval", name, "--agent", "oracle", "--episodes", "2", "--out", str(run), "--record", str(record))
    assert [t.metrics["score"] for t in read_episodes(run / "episodes.jsonl")] == [1.0, 1.0]
    report = replay_file(run / "episodes.jsonl", playback=record)
    assert (report.equal, report.episodes) == (True, 2)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    if name != "sql":  # which reads only
        without = [{**line, "state": {}} if "state" in line else line for line in lines]
        record.write_text("".join(json.dumps(line) + "\n" for line in without))
        assert {d.field for d in replay_file(run / "episodes.jsonl", playback=record).differences} <= {
            "turn_rewards",
            "status",
        }


# ------------------------------------------------------------------------------------------------ without a server
def test_a_server_that_is_gone_is_played_back_with_its_tools_and_their_changes(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    path = tmp_path / "r.jsonl"
    turns = [
        call("add", n="5") + call("grow"),
        call("add", n=2) + call("add", m=1) + call("environment"),
        call("shrink"),
        call("fail") + call("big", n=3),
    ]
    first = recorded(path, [roll, MCP(command())], *turns, groups=1, size=2, num_envs=2)
    said = [m["content"] for m in first[0].messages if m["role"] == "tool"]
    assert (said[0], said[2]) == ("5", "7")
    assert "These tools are new" in said[1]
    assert {t.status for t in first} == {"ok"}
    again = played(path, [roll, MCP("no-such-server-anywhere")], *turns, groups=1, size=2)
    assert dicts(again) == dicts(first)
    prompts = []
    for tools, tape in (([roll, MCP(command())], None), ([roll, MCP("no-such-server")], read_recording(path))):
        envs = make(1, tools, tape)
        prompts.append(envs.reset(seed=[group_specs(1, 1, 0)[0].seed])[0])
        envs.close()
    assert prompts[0] == prompts[1]
    assert '"add"' in prompts[0][0]


def test_an_interface_that_is_gone_is_played_back(tmp_path: Path) -> None:
    pytest.importorskip("httpx2")
    path, turns = tmp_path / "r.jsonl", [call("getPet", id="7") + call("search", q="x", limit="2")]
    with serving() as server:
        first = recorded(path, OpenAPI(DOCUMENT, server.url), *turns, groups=1, size=1)
    assert first[0].metrics["calls/ok"] == 2
    again = played(path, OpenAPI(DOCUMENT, "http://127.0.0.1:9"), *turns, groups=1, size=1)
    assert dicts(again) == dicts(first)


def test_the_options_of_a_server_are_not_needed_to_play_back(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    import shlex

    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "Say 1.", "answer": "1"}\n')
    run, record = tmp_path / "run", tmp_path / "r.jsonl"
    mcp = shlex.join(command())
    ok("eval", "--tasks", str(tasks), "--mcp", mcp, "--agent", "oracle", "--out", str(run), "--record", str(record))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "mcp": ["no-such-server-anywhere"]}))
    assert invoke("replay", str(run / "episodes.jsonl")).exit_code == 2
    assert replay_file(run / "episodes.jsonl", playback=record).equal


class Flaky(ToolFactory):
    """Tools of a backend that is lost: in the second turn, before the calls run or behind them."""

    external: ClassVar[bool] = True

    def __init__(self, where: str):
        self.where = where

    def make(self, episode: EpisodeInfo) -> BoundTools:
        return _FlakyTools(self.where)


class _FlakyTools(BoundTools):
    def __init__(self, where: str):
        self._where, self._left = where, 1
        self._tools = [Tool.from_schema(self._ask, name="ask", parameters={"properties": {}}, run_in="inline")]

    def _ask(self) -> str:
        return "yes"

    def ready(self) -> None:
        self._fail("ready")

    def changes(self) -> None:
        self._fail("changes")

    def _fail(self, where: str) -> None:
        if where == self._where:
            self._left -= 1
            if self._left < 0:
                raise ToolBackendError(f"lost in {where}")


@pytest.mark.parametrize("where", ["ready", "changes"])
def test_a_backend_that_was_lost_is_lost_again(where: str, tmp_path: Path) -> None:
    path, turns = tmp_path / "r.jsonl", [call("ask"), call("ask")]
    first = recorded(path, Flaky(where), *turns, groups=1, size=2)
    assert {t.error for t in first} == {f"ToolBackendError: lost in {where}"}
    again = played(path, Flaky("nowhere"), *turns, groups=1, size=2)
    assert dicts(again) == dicts(first)
    assert [t.turns for t in again] == [2, 2]


# ----------------------------------------------------------------------------------------------- what is not there
@pytest.mark.parametrize(
    ("turns", "problem"),
    [
        (
            [call("roll", sides=3)],
            'the call roll({"sides": 3}) in turn 0 (call00000) was never recorded; in its place there is roll({}) in '
            "turn 0",
        ),
        (
            [call("roll"), call("roll"), call("roll")],
            "the call roll({}) in turn 2 (call00002) was never recorded",
        ),
        (["<tool_call>oops</tool_call>", call("roll")], "the call roll({}) in turn 1 (call00001) was never recorded"),
    ],
)
def test_a_call_that_was_never_recorded_is_named_and_harms_no_other_row(
    turns: list[str], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    good = [call("roll"), "hm" + call("roll")]
    if problem.endswith("(call00001) was never recorded"):
        good = good[:1]
    first = recorded(path, [roll], *good)

    class Mixed(Says):
        def predict(self, observation: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            right, _ = super().predict(observation)
            wrong = [(*turns, "done", "done")[min(t, len(turns))] for t in self.envs.get_attr("turns")]
            return (wrong[0], *right[1:]), None

    tape = read_recording(path)
    envs = make(3, [roll], tape)
    again = collect(envs, Mixed(*good), group_specs(1, 3, 0))
    assert again[0].status == "env_error"
    assert again[0].error == f"NotRecorded: task 'train/0', sample 0: {problem}"
    assert dicts(again[1:]) == dicts(first[1:3])


def test_an_episode_or_a_state_that_was_never_recorded_is_named(tmp_path: Path) -> None:
    class Notes:
        def __init__(self) -> None:
            self.kept: list[str] = []

        @tool(run_in="inline")
        def note(self, text: str) -> str:
            """Keep a text."""
            self.kept.append(text)
            return "kept"

        def snapshot(self) -> dict[str, Any]:
            return {"notes": self.kept}

    path, both = tmp_path / "r.jsonl", call("note", text="a") + call("note", text="b")
    first = recorded(path, [Notes], both, groups=1, size=2)
    again = played(path, [Notes], both, groups=1, size=2)
    assert dicts(again) == dicts(first)
    (less,) = played(path, [Notes], call("note", text="a"), groups=1, size=1)
    assert "what the tools left behind without the recorded call call00001 was never recorded" in less.error
    others = played(path, [Notes], both, groups=1, size=3)
    assert [t.status for t in others] == ["ok", "ok", "env_error"]
    assert "sample 2: the episode was never recorded" in others[2].error
    envs = make(1, [roll], read_recording(path))
    _, infos = envs.reset(seed=[group_specs(1, 1, 0)[0].seed])
    assert "do not offer the same tools: note, roll" in infos["error"][0]


def test_exit_code_and_message_of_a_playback_without_an_answer(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    args = ["eval", "calculator", "--agent", "oracle", "--quiet"]
    ok(*args, "--episodes", "2", "--record", str(record))
    result = invoke(*args, "--episodes", "3", "--playback", str(record))
    assert result.exit_code == 1
    said = f"{record} does not answer 1 of the episodes; the first one: NotRecorded: task 'toolstep/Calculator-v0/test/"
    assert said in result.stderr
    assert "sample 0: the episode was never recorded" in result.stderr
    assert "(2 of 3)" in result.stdout


# ------------------------------------------------------------------------------------------------------- the file
def test_a_recording_that_was_torn_is_gone_on_with(tmp_path: Path) -> None:
    """Killed in an episode; played again from its beginning, with other results than were written before."""
    path = tmp_path / "r.jsonl"
    turns = [call("roll"), call("roll")]
    first = recorded(path, [roll], *turns, groups=1, size=1)
    data = path.read_bytes()
    cut = data.index(b'"call00001"')
    path.write_bytes(data[:cut])
    (half,) = played(path, [roll], *turns, groups=1, size=1)
    assert "call00001) was never recorded" in half.error
    (unfinished,) = played(path, [roll], *turns[:1], groups=1, size=1)
    assert "that episode was not finished" in unfinished.error
    tape = FileRecording(path, append=True)
    envs = make(1, [roll], tape)
    second = collect(envs, Says(*turns), group_specs(1, 1, 0))
    tape.close()
    assert dicts(second) != dicts(first)
    assert path.read_bytes().startswith(data[: data[:cut].rindex(b"\n") + 1])
    again = played(path, [roll], *turns, groups=1, size=1)
    assert dicts(again) == dicts(second)


def test_an_evaluation_that_is_resumed_goes_on_with_its_recording(tmp_path: Path) -> None:
    run, record = tmp_path / "run", tmp_path / "r.jsonl"
    args = ["eval", "calculator", "--agent", "oracle", "--episodes", "4", "--out", str(run), "--record", str(record)]
    ok(*args)
    lines = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (run / "episodes.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:40])
    recording = record.read_bytes()
    record.write_bytes(recording[: len(recording) // 2])
    ok(*args, "--resume")
    assert replay_file(run / "episodes.jsonl", playback=record).episodes == 4
    known = {e.spec.seed for e in read_recorded(run / "episodes.jsonl")}
    assert len(known) == 4
    assert invoke(*args).exit_code == 2


@pytest.mark.parametrize("line", BROKEN)
def test_a_line_of_something_else_is_named_by_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    recorded(path, [roll], call("roll"), groups=1, size=1)
    number = len(path.read_bytes().splitlines()) + 1
    with path.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    with pytest.raises(StorageError, match=rf"r\.jsonl, line {number}: not of a recording"):
        read_recording(path)


def test_files_are_checked_before_any_work(tmp_path: Path) -> None:
    there = tmp_path / "there.jsonl"
    there.write_text("")
    start = ["eval", "calculator", "--agent", "hf:/never/looked/for"]
    for args, message in (
        (["--record", str(there)], "exists; pass --overwrite"),
        (["--record", str(tmp_path)], "is a folder"),
        (["--playback", str(tmp_path / "none")], "cannot read"),
        (["--record", str(tmp_path / "x"), "--playback", str(there)], "give one of them"),
    ):
        result = invoke(*start, *args)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
    ok("eval", "calculator", "--agent", "oracle", "--episodes", "1", "--record", str(there), "--overwrite")
    assert there.read_text().count('"task"') == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_recording_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.symlink_to("/dev/full")
    result = invoke(
        "eval", "calculator", "--agent", "oracle", "--episodes", "2", "--record", str(path), "--overwrite", "--quiet"
    )
    assert result.exit_code == 1
    assert "the disk is full" in result.stderr


# --------------------------------------------------------------------------------------------------------- the env
def test_two_samples_of_a_task_at_the_same_time_have_to_be_told_apart() -> None:
    from toolstep.envs.tools import Recording

    lines: list[Any] = []
    envs = make(2, [roll], Recording(lines.append))
    envs.reset(seed=[3, 3])
    _, _, _, _, infos = envs.step((call("roll"), call("roll")))
    assert "RuntimeError: two episodes are recorded as" in infos["error"][0]
    assert infos["status"][1] == "ok"
    envs.reset(seed=[3, 3], options={"samples": [0, 1]})
    _, _, _, _, infos = envs.step((call("roll"), call("roll")))
    assert list(infos["status"]) == ["ok", "ok"]
    envs.begin([0, 1], [3, 3], [4, 5])
    assert [line["episode"].partition("/")[2] for line in lines if "task" in line] == ["0", "0", "0", "1", "4", "5"]
    for bad, kind in (([0], TypeError), ("01", TypeError), ([0, -1], ValueError), ([0, True], ValueError)):
        with pytest.raises(kind, match=r"options\['samples'\] must be"):
            envs.reset(seed=[3, 3], options={"samples": bad})
    assert list(envs.reset(seed=[3, 3], options={"samples": np.array([0, 1])})[1]["status"]) == ["ok", "ok"]


def test_a_single_env_records_and_plays_back(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"

    def play(tape: Any) -> list[Any]:
        env = ToolUseEnv(TASKS, tools=[roll], tape=tape)
        seen = []
        for sample in (0, 1):
            seen.append(env.reset(seed=5, options={"sample": sample})[0])
            seen += [env.step(turn)[0] for turn in (call("roll"), "6")]
        env.close()
        return seen

    tape = FileRecording(path)
    first = play(tape)
    tape.close()
    assert first[1] != first[4]
    assert play(read_recording(path)) == first
    with pytest.raises(EnvConfigError, match="tape must be a Recording, a Playback or None"):
        ToolUseEnv(TASKS, tape=str(path))
