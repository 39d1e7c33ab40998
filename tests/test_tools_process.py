"""Tools in worker processes: stopped for real, with everything that they started."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import test_tools_worker_side as worker_side
from test_tools_executor import bound, message
from traces import alive, descriptors, gone, threads

from toolstep.envs.tools import Executor, tool
from toolstep.envs.types import CallStatus

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="looks at /proc and sends signals")


double, spin, backtrack, with_child, leave, where, coroutine = (
    tool(function, run_in="process")
    for function in (
        worker_side.double,
        worker_side.spin,
        worker_side.backtrack,
        worker_side.with_child,
        worker_side.leave,
        worker_side.where,
        worker_side.coroutine,
    )
)


@tool(run_in="process")
def decorated(x: int) -> int:
    return x


class Counter:
    def __init__(self, start: int) -> None:
        self.start = start

    @tool(run_in="process")
    def add(self, n: int) -> int:
        return self.start + n


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(4, num_processes=2) as made:
        yield made


def test_results_and_every_kind_of_failure(executor: Executor) -> None:
    hows = ["raise", "exit", "_exit", "signal", "interrupt", "object", "surrogate", "end", "x", "close"]
    results = dict(zip(hows, executor.run([bound(leave, how=how) for how in hows], timeout=20), strict=True))
    good = ["surrogate", "end", "x"]
    assert {how: r.error for how, r in results.items()} == {
        how: None if how in good else CallStatus.TOOL_ERROR for how in hows
    }
    assert message(results["raise"]) == "ValueError: no such city"
    assert message(results["exit"]) == "SystemExit: 3"
    assert "exit code 4" in message(results["_exit"])
    assert "SIGSEGV" in message(results["signal"])
    assert message(results["interrupt"]) == "KeyboardInterrupt"
    assert "builtins.object" in message(results["object"])
    assert results["surrogate"].content == "\ufffd"
    assert results["end"].terminate
    assert results["end"].reward == 0.5
    assert len(results["x"].content) == 10_000_000
    assert executor.run([bound(double, x=3)], timeout=20)[0].content == "6"


def test_a_worker_serves_one_call_after_the_other(executor: Executor) -> None:
    pids = {executor.run([bound(where)], timeout=20)[0].content for _ in range(3)}
    assert len(pids) == 1
    assert pids != {str(os.getpid())}


@pytest.mark.parametrize("hanging", [spin, backtrack], ids=lambda made: made.name)
def test_a_runaway_is_killed_at_its_deadline(executor: Executor, hanging: Any) -> None:
    executor.run([bound(where)] * 2, timeout=20)
    began = time.perf_counter()
    results = executor.run([bound(hanging), bound(double, x=1)], timeout=0.5)
    seconds = time.perf_counter() - began
    assert [r.error for r in results] == [CallStatus.TOOL_TIMEOUT, None]
    assert 0.5 <= seconds < 60  # neither of them ever ends by itself
    assert executor.run([bound(double, x=4)], timeout=20)[0].content == "8"
    assert executor.abandoned_threads == 0


def test_children_die_with_the_tool(executor: Executor, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    began = time.perf_counter()
    result = executor.run([bound(with_child, path=str(note))], timeout=1.0)[0]
    seconds = time.perf_counter() - began
    assert result.error is CallStatus.TOOL_TIMEOUT
    for pid in map(int, note.read_text().split()):
        assert gone(pid, 2.0)
    assert seconds < 60


def test_more_runaways_than_processes_are_bounded(executor: Executor) -> None:
    executor.run([bound(where)] * 2, timeout=20)
    began = time.perf_counter()
    results = executor.run([bound(spin)] * 4 + [bound(double, x=1)], timeout=0.3)
    seconds = time.perf_counter() - began
    assert [r.error for r in results] == [CallStatus.TOOL_TIMEOUT] * 4 + [None]
    assert 0.6 <= seconds < 60  # 4 runaways on 2 workers: two rounds, and the starts between them


def test_what_can_travel_to_a_process(executor: Executor) -> None:
    results = executor.run(
        [
            bound(tool(worker_side.plain, run_in="process"), x=1),
            bound(Counter(5).add, n=2),
            bound(coroutine, x=3),
            bound(decorated, x=4),
            bound(tool(lambda x=0: 1, name="f", run_in="process")),
        ],
        timeout=20,
    )
    assert [r.content for r in results[:4]] == ["1", "7", "3", "4"]
    assert results[4].error is CallStatus.TOOL_ERROR
    assert "importable" in message(results[4])
    assert "lambda" in message(results[4])


def test_after_close_no_process_and_no_descriptor_is_left() -> None:
    before, open_before = threads(), descriptors()
    made = Executor(2)
    pids = [int(r.content) for r in made.run([bound(where), bound(where)], timeout=20)]
    made.run([bound(spin)], timeout=0.2)
    made.close()
    made.close()
    assert all(gone(pid, 2.0) for pid in pids)
    assert not threads() - before
    assert not descriptors() - open_before


def script(body: str) -> str:
    import toolstep.envs

    head = f"""
        import sys, time, types
        package = types.ModuleType("toolstep")
        package.__path__ = [{str(Path(toolstep.envs.__path__[0]).parent)!r}]
        sys.modules["toolstep"] = package
        from toolstep.envs.tools import BoundCall, Executor, tool
        from toolstep.envs.types import ToolCall
    """
    return textwrap.dedent(head) + textwrap.dedent(body)


BODY = """
import re

@tool(run_in="process")
def run(path: str):
    import os
    open(path, "w").write(str(os.getpid()))
    return bool(re.match("(a+)+$", "a" * 60 + "b"))

@tool(run_in="process")
def answer(path: str):
    return "from main"

if __name__ == "__main__":
    made = {"run": run, "answer": answer}[sys.argv[1]]
    executor = Executor(1)
    print(executor.run([BoundCall(ToolCall("c", "f"), made, {"path": sys.argv[2]})], timeout=60)[0].content)
"""


def test_a_tool_of_the_main_script_runs_in_a_process(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(script(BODY))
    command = [sys.executable, str(tmp_path / "main.py"), "answer", str(tmp_path / "pid")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.stdout.strip() == "from main", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is needed to stop what holds Python's lock")
def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(script(BODY))
    note = tmp_path / "pid"
    command = [sys.executable, str(tmp_path / "main.py"), "run", str(note)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        until = time.monotonic() + 30
        while not (note.exists() and note.read_text()) and time.monotonic() < until:
            time.sleep(0.01)
        worker = int(note.read_text())
        assert alive(worker)
        parent.kill()
        parent.wait()
    assert gone(worker, 2.0)
