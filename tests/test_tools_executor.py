"""A step's calls run at once, answer in order, and none of them can hang or break the step."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import descriptors, threads

from toolstep.envs.tools import BoundCall, Executor, as_tool, tool
from toolstep.envs.types import CallStatus, ToolCall, ToolResult

RUN_IN: list[Any] = ["inline", "thread", "async"]


def bound(function: Any, **arguments: Any) -> BoundCall:
    made = as_tool(function)
    return BoundCall(ToolCall("call00000", made.name, parsed=arguments), made, made.bind(arguments))


def made_for(run_in: str, function: Callable[..., Any]) -> Any:
    """The plain `function` as a tool that runs in `run_in`."""
    if run_in != "async":
        return tool(function, run_in=run_in, name="t")  # type: ignore[call-overload]

    async def wrapped(x: Any = None) -> Any:
        return function(x)

    return tool(wrapped, name="t")


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(64) as made:
        yield made


def message(result: ToolResult) -> str:
    text: str = json.loads(result.content)["message"]
    return text


@pytest.mark.parametrize("run_in", RUN_IN)
def test_results_and_every_kind_of_failure(executor: Executor, run_in: str) -> None:
    def raises(error: BaseException) -> Callable[[Any], Any]:
        def function(x: Any = None) -> Any:
            raise error

        return function

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    functions: list[Callable[[Any], Any]] = [
        lambda x=None: {"x": 1},
        lambda x=None: 0,
        raises(ValueError("no such city")),
        raises(SystemExit(3)),
        raises(KeyboardInterrupt()),
        raises(KeyError("m" * 10_000)),
        raises(Mute()),
        raises(GeneratorExit()),
        lambda x=None: object(),
        lambda x=None: ToolResult("bye", terminate=True, reward=1.0),
        lambda x=None: "\ud800",
        lambda x=None: "last",
    ]
    results = executor.run([bound(made_for(run_in, f)) for f in functions], timeout=5)
    assert [r.error for r in results] == [None, None] + [CallStatus.TOOL_ERROR] * 7 + [None] * 3
    assert results[0].content == '{"x": 1}'
    assert results[1].content == "0"
    assert results[-1].content == "last"
    assert message(results[2]) == "ValueError: no such city"
    assert message(results[3]) == "SystemExit: 3"
    assert message(results[4]) == "KeyboardInterrupt"
    assert len(message(results[5])) < 700
    assert "more characters" in message(results[5])
    assert message(results[6]) == "Mute"
    assert "builtins.object" in message(results[8])
    assert results[9].terminate
    assert results[9].reward == 1.0
    assert results[10].content == "\ufffd"
    assert executor.run([bound(made_for(run_in, lambda x=None: 1))], timeout=5)[0].content == "1"


def test_no_calls_no_results_and_nothing_started(executor: Executor) -> None:
    before = threads()
    assert executor.run([], timeout=1) == []
    executor.run([bound(made_for("inline", lambda x=None: 1))], timeout=1)
    assert not threads() - before


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([*RUN_IN, "sleep"]), st.integers(0, 20)), max_size=12),
    st.integers(1, 5),
)
def test_result_i_answers_call_i(calls: list[tuple[str, int]], num_threads: int) -> None:
    @tool
    async def sleeping(i: int, ms: int) -> int:
        await asyncio.sleep(ms / 1000)
        return i

    def waiting(i: int, ms: int) -> int:
        time.sleep(ms / 1000)
        return i

    tools = {
        "sleep": sleeping,
        "async": sleeping,
        "thread": tool(waiting),
        "inline": tool(waiting, run_in="inline"),
    }
    with Executor(num_threads) as executor:
        made = [bound(tools[kind], i=i, ms=ms if kind != "inline" else 0) for i, (kind, ms) in enumerate(calls)]
        results = executor.run(made, timeout=10)
    assert [r.content for r in results] == [str(i) for i in range(len(calls))]


@pytest.mark.parametrize("run_in", ["thread", "async"])
def test_calls_of_a_step_overlap(executor: Executor, run_in: str) -> None:
    @tool
    def wait() -> None:
        time.sleep(0.05)

    @tool(name="wait")
    async def wait_async() -> None:
        await asyncio.sleep(0.05)

    made = wait if run_in == "thread" else wait_async

    def seconds(count: int) -> float:
        began = time.perf_counter()
        executor.run([bound(made)] * count, timeout=30)
        return time.perf_counter() - began

    seconds(64)
    assert min(seconds(64) for _ in range(3)) < 10 * max(seconds(1), 0.05)  # one after the other: 64 times


@pytest.mark.parametrize("run_in", ["thread", "async"])
def test_an_overrun_answers_timeout_and_spares_its_neighbours(executor: Executor, run_in: str) -> None:
    @tool(timeout=0.1)
    def hang() -> None:
        time.sleep(5)

    @tool(name="hang", timeout=0.1)
    async def hang_async() -> None:
        await asyncio.sleep(60)

    made = hang if run_in == "thread" else hang_async
    began = time.perf_counter()
    results = executor.run([bound(made), bound(made_for(run_in, lambda x=None: 7)), bound(made)], timeout=30)
    assert time.perf_counter() - began < 4.5
    assert [r.error for r in results] == [CallStatus.TOOL_TIMEOUT, None, CallStatus.TOOL_TIMEOUT]
    assert message(results[0]) == "hang did not finish within 0.1 s"
    assert results[0].seconds == pytest.approx(0.1)
    assert executor.abandoned_threads == (2 if run_in == "thread" else 0)


def test_the_executors_timeout_bounds_the_tools(executor: Executor) -> None:
    @tool(timeout=60)
    def hang() -> None:
        time.sleep(3)

    assert executor.run([bound(hang)], timeout=0.05)[0].error is CallStatus.TOOL_TIMEOUT
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout"):
            executor.run([], timeout=wrong)


def test_a_coroutine_is_cancelled_for_real(executor: Executor) -> None:
    events: list[str] = []

    @tool
    async def careful() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            events.append("cleaned up")

    @tool
    async def stubborn() -> None:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        events.append("gave in")

    executor.run([bound(careful), bound(stubborn)], timeout=0.05)
    until = time.monotonic() + 5
    while len(events) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert events == ["cleaned up", "gave in"]


def test_a_blocked_event_loop_is_left_behind(executor: Executor) -> None:
    release = threading.Event()

    @tool
    async def blocks() -> None:
        release.wait(30)

    @tool
    async def fine() -> str:
        await asyncio.sleep(0)
        return "fine"

    assert executor.run([bound(blocks)], timeout=0.05)[0].error is CallStatus.TOOL_TIMEOUT
    assert executor.run([bound(fine)], timeout=5)[0].content == "fine"
    assert executor.abandoned_threads == 1
    release.set()
    until = time.monotonic() + 5
    while executor.abandoned_threads and time.monotonic() < until:
        time.sleep(0.01)
    assert executor.abandoned_threads == 0


def test_a_background_task_that_exits_does_not_end_the_loop(executor: Executor) -> None:
    kept: list[Any] = []

    @tool
    async def leaving() -> str:
        async def leave() -> None:
            raise SystemExit(1)

        kept.append(asyncio.ensure_future(leave()))
        await asyncio.sleep(0.01)
        return "done"

    assert executor.run([bound(leaving)], timeout=5)[0].content == "done"
    assert executor.run([bound(leaving)], timeout=5)[0].content == "done"


def test_a_step_is_bounded_by_its_rounds() -> None:
    @tool
    def hang() -> None:
        time.sleep(3)

    with Executor(2) as executor:
        began = time.perf_counter()
        results = executor.run([bound(hang)] * 6, timeout=0.1)
        seconds = time.perf_counter() - began
    assert [r.error for r in results] == [CallStatus.TOOL_TIMEOUT] * 6
    assert 0.3 <= seconds < 2.8  # ceil(6 / 2) x 0.1 s, and not 6 x 3 s


def test_a_call_that_waited_for_a_thread_has_its_whole_time() -> None:
    @tool
    def wait() -> str:
        time.sleep(0.2)
        return "done"

    with Executor(1) as executor:
        results = executor.run([bound(wait)] * 4, timeout=0.6)
    assert [r.content for r in results] == ["done"] * 4  # the last one starts when 0.6 s are over


def test_abandoned_threads_are_capped_and_come_back() -> None:
    release = threading.Event()

    @tool
    def hang() -> None:
        release.wait(30)

    with Executor(8, max_abandoned=3) as executor:
        executor.run([bound(hang)] * 3, timeout=0.05)
        assert executor.abandoned_threads == 3
        refused = executor.run([bound(hang)], timeout=0.05)[0]
        assert refused.error is CallStatus.TOOL_ERROR
        assert "3 threads" in message(refused)
        release.set()
        until = time.monotonic() + 5
        while executor.abandoned_threads and time.monotonic() < until:
            time.sleep(0.01)
        assert executor.abandoned_threads == 0
        assert executor.run([bound(hang)], timeout=5)[0].error is None


def test_a_late_result_is_dropped(executor: Executor) -> None:
    @tool
    def late() -> str:
        time.sleep(0.2)
        return "late"

    results = executor.run([bound(late)], timeout=0.05)
    time.sleep(0.3)
    assert results[0].error is CallStatus.TOOL_TIMEOUT
    assert executor.run([bound(made_for("thread", lambda x=None: "new"))], timeout=5)[0].content == "new"


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to itself")
@pytest.mark.parametrize("run_in", ["thread", "async", "inline"])
def test_ctrl_c_of_the_user_is_not_swallowed(executor: Executor, run_in: str) -> None:
    stopped = threading.Event()

    @tool
    def hang() -> None:
        time.sleep(3)

    @tool(name="hang", run_in="inline")
    def hang_inline() -> None:
        time.sleep(3)

    @tool(name="hang")
    async def hang_async() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    made = {"thread": hang, "async": hang_async, "inline": hang_inline}[run_in]
    before = signal.getsignal(signal.SIGINT)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        executor.run([bound(made)], timeout=20)
    timer.join()
    assert time.perf_counter() - began < 2.5
    assert signal.getsignal(signal.SIGINT) is before
    assert run_in != "async" or stopped.wait(5)
    assert executor.run([bound(made_for(run_in, lambda x=None: 1))], timeout=5)[0].content == "1"


def test_big_results_are_quick(executor: Executor) -> None:
    big = "x" * 10_000_000
    began = time.perf_counter()
    functions = [made_for(run_in, lambda x=None: big) for run_in in RUN_IN]
    functions.append(made_for("thread", lambda x=None: [big]))
    results = executor.run([bound(f) for f in functions], timeout=30)
    assert [len(r.content) for r in results] == [10_000_000] * 3 + [10_000_004]
    assert time.perf_counter() - began < 30


def test_after_close_nothing_is_left() -> None:
    @tool
    async def hang_async() -> None:
        await asyncio.sleep(60)

    before, open_before = threads(), descriptors()
    for _ in range(3):
        executor = Executor(8)
        calls = [bound(made_for(run_in, lambda x=None: 1)) for run_in in RUN_IN for _ in range(4)]
        executor.run([*calls, bound(hang_async)], timeout=0.2)
        assert threads() - before
        executor.close()
        executor.close()
        assert not threads() - before
        assert not descriptors() - open_before
    with pytest.raises(RuntimeError, match="closed"):
        executor.run(calls, timeout=1)


def test_a_forgotten_executor_cleans_up_after_itself() -> None:
    before = threads()
    executor = Executor(4)
    executor.run([bound(made_for("thread", lambda x=None: 1)), bound(made_for("async", lambda x=None: 1))], timeout=5)
    del executor
    assert not threads() - before


@pytest.mark.parametrize("run_in", ["thread", "async", "to_thread"])
def test_a_hanging_tool_never_keeps_the_interpreter_from_exiting(run_in: str, tmp_path: Path) -> None:
    import toolstep.envs

    script = textwrap.dedent(f"""
        import asyncio, sys, time, types
        package = types.ModuleType("toolstep")
        package.__path__ = [{str(Path(toolstep.envs.__path__[0]).parent)!r}]
        sys.modules["toolstep"] = package
        from toolstep.envs.tools import BoundCall, Executor, tool
        from toolstep.envs.types import ToolCall

        @tool
        def thread():
            time.sleep(60)

        @tool(name="async")
        async def blocking():
            time.sleep(60)

        @tool
        async def to_thread():
            await asyncio.to_thread(time.sleep, 60)

        made = {{"thread": thread, "async": blocking, "to_thread": to_thread}}[{run_in!r}]
        print(Executor(2).run([BoundCall(ToolCall("c", "f"), made, {{}})], timeout=0.05)[0].error)
    """)
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "tool_timeout"
    assert time.perf_counter() - began < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_forked_child_starts_anew(executor: Executor) -> None:
    made = bound(made_for("thread", lambda x=None: 1))
    executor.run([made], timeout=5)
    child = os.fork()
    if child == 0:
        ok = executor.run([made], timeout=5)[0].content == "1"
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert executor.run([made], timeout=5)[0].content == "1"


def test_several_threads_may_share_an_executor(executor: Executor) -> None:
    out: dict[int, list[str]] = {}

    def use(n: int) -> None:
        calls = [bound(made_for("thread", lambda x=None: x), x=n) for _ in range(5)]
        out[n] = [r.content for r in executor.run(calls, timeout=10)]

    users = [threading.Thread(target=use, args=(n,)) for n in range(6)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert out == {n: [str(n)] * 5 for n in range(6)}


@pytest.mark.parametrize("wrong", [0, -1, 1.5])
def test_sizes_are_checked(wrong: Any) -> None:
    with pytest.raises(ValueError, match="num_threads"):
        Executor(wrong)
    with pytest.raises(ValueError, match="num_processes"):
        Executor(1, num_processes=wrong)
