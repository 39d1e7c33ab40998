"""`toolstep check`: finds what is named, survives what is in it, and says so on the screen or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checker_faults as faulty
import pytest
from typer.testing import CliRunner

from toolstep.envs.checker import isolated
from toolstep.envs.checker.target import UnknownTarget, find_target, kind_of
from toolstep.rollout.cli import app

FAULTS = str(Path(__file__).with_name("checker_faults.py"))


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, ["check", *args], catch_exceptions=False, env={"COLUMNS": "120"})


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path


def test_a_clean_tool_has_exit_code_0_and_a_report_as_json() -> None:
    result = invoke(f"{FAULTS}:add", "--json", "--timeout", "60")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"] is True
    (report,) = document["reports"]
    assert report["kind"] == "tool"
    assert report["findings"] == []
    assert {c["outcome"] for c in report["checks"]} == {"ok"}


def test_a_finding_is_shown_with_its_mending_and_exit_code_1() -> None:
    result = invoke(f"{FAULTS}:lies", "--timeout", "60")
    assert result.exit_code == 1
    assert "return-type" in result.stdout
    assert "example: lies(a=1)" in result.stdout
    assert "mend: Change the annotation" in result.stdout
    assert "1 error" in result.stdout


def test_warnings_fail_only_where_they_are_asked_to() -> None:
    reports = isolated.check_target(f"{FAULTS}:half_described", timeout=60.0)
    assert [r.codes for r in reports] == [["no-parameter-description"]]
    result = invoke(f"{FAULTS}:half_described", "--timeout", "60", "--strict")
    assert result.exit_code == 1


def test_a_tool_that_ends_its_process_is_named_with_the_call_that_did() -> None:
    (report,) = isolated.check_target(f"{FAULTS}:exits_here", timeout=60.0)
    assert report.codes == ["exits"]
    assert report.errors[0].example == "exits_here(a=1)"
    assert "exit code 3" in report.errors[0].what
    assert [c.name for c in report.checks] == ["an env takes it", "schema", "calls"]


def test_a_tool_that_never_lets_go_of_the_lock_hangs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "_GRACE", 2.0)
    (report,) = isolated.check_target(f"{FAULTS}:holds_the_lock", timeout=0.5)
    assert report.codes == ["hangs"]
    assert report.errors[0].example == "holds_the_lock(a=1)"
    assert "Python's lock" in report.errors[0].what


def test_tasks_that_differ_between_processes_are_found() -> None:
    reports = isolated.check_target(f"{FAULTS}:Unordered", timeout=60.0)
    assert [r.kind for r in reports] == ["task", "tool"]
    assert reports[0].codes == ["other-process"]
    assert reports[1].codes == []


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("toolstep/Nothing-v0", "toolstep/Assistant-v0, toolstep/BFCL-*-v0, toolstep/Calculator-v0"),
        ("no_such_module:x", "there is no module 'no_such_module'"),
        ("nowhere.py:x", "there is no file 'nowhere.py'"),
        ("nowhere.jsonl", "there is no file 'nowhere.jsonl'"),
        (FAULTS, "checker_faults.py:OBJECT"),
        (f"{FAULTS}:ad", "did you mean 'add'?"),
        ("calculater", "did you mean"),
        ("json:__name__", "neither a tool"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(target: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(function: Any, arguments: dict[str, Any], journal: Path) -> tuple[dict[str, Any], str]:
        """What the other process answers; a process for each would only cost time."""
        try:
            find_target(arguments["name"])
        except UnknownTarget as error:
            return {"unknown": str(error)}, ""
        raise AssertionError("it was found")

    monkeypatch.setattr(isolated, "_in_process", here)
    result = invoke(target)
    assert result.exit_code == 2
    assert result.stderr.startswith("toolstep: error: ")
    assert len(result.stderr.splitlines()) == 1
    assert says in result.stderr


def test_a_module_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "wrong_module.py").write_text("raise RuntimeError('not today')\n")
    result = invoke(f"{tmp_path / 'wrong_module.py'}:x")
    assert result.exit_code == 2
    assert "cannot be imported: RuntimeError: not today" in result.stderr


def no_word():  # type: ignore[no-untyped-def]
    """Neither takes nor says anything."""


def test_the_kind_of_an_object_is_told_by_what_it_is() -> None:
    kinds = {name: kind_of(getattr(faulty, name), name) for name in ("add", "divide", "Basket", "Leaky", "one_basket")}
    assert set(kinds.values()) == {"tool"}
    assert kind_of([faulty.add, faulty.Basket], "list") == "tool"
    for name in ("Sums", "sums", "problems"):
        assert kind_of(getattr(faulty, name), name) == "task"
    for name in ("env", "trusting_env", "NoReason"):
        assert kind_of(getattr(faulty, name), name) == "env"
    with pytest.raises(UnknownTarget, match="--kind env or --kind tool"):
        kind_of(no_word, "no_word")


def test_names_of_envs_and_built_in_tools_are_known() -> None:
    import toolstep.envs

    assert toolstep.envs
    assert find_target("calculator").value == "toolstep/Calculator-v0"
    assert find_target("toolstep/SQL-v0").kind == "env"
    assert find_target("CartPole-v1").kind == "env"
    assert find_target("clock").kind == "tool"
    assert find_target("calculator", "tool").value == "calculator"
