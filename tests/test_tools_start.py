"""`Executor.start`: a turn's calls run in the background, and `done` is called exactly once, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tools_executor import bound, made_for, message
from traces import descriptors, threads

from toolstep.envs.tools import Executor, tool
from toolstep.envs.types import CallStatus, ToolResult


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(64) as made:
        yield made


class Answers:
    """A `done` that notes what it got, and can be waited for."""

    def __init__(self) -> None:
        self.got: list[list[ToolResult]] = []
        self.threads: list[threading.Thread] = []
        self._called = threading.Event()

    def __call__(self, results: list[ToolResult]) -> None:
        self.got.append(results)
        self.threads.append(threading.current_thread())
        self._called.set()

    def wait(self, seconds: float = 10.0) -> list[ToolResult]:
        assert self._called.wait(seconds), "done was not called"
        return self.got[0]


@tool
def nap(ms: int = 0, i: int = 0) -> int:
    time.sleep(ms / 1000)
    return i


@tool(name="nap")
async def nap_async(ms: int = 0, i: int = 0) -> int:
    await asyncio.sleep(ms / 1000)
    return i


@tool(run_in="process", name="getpid")
def getpid() -> int:
    return os.getpid()


inline_nap = tool(nap.function, run_in="inline", name="nap")
KINDS = {"thread": nap, "async": nap_async, "inline": inline_nap}


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_start_returns_before_its_calls_have_answered(executor: Executor, kind: str) -> None:
    answers, began = Answers(), time.perf_counter()
    executor.start([bound(KINDS[kind], ms=1000, i=1), bound(inline_nap, i=2)], timeout=5, done=answers)
    assert time.perf_counter() - began < 0.9
    assert not answers.got
    assert [r.content for r in answers.wait()] == ["1", "2"]
    assert answers.threads != [threading.current_thread()]


def test_turn_of_inline_calls_is_done_at_once_and_starts_nothing(executor: Executor) -> None:
    before = threads()
    for calls in ([], [bound(inline_nap, i=3)]):
        answers = Answers()
        executor.start(calls, timeout=1, done=answers)
        assert answers.threads == [threading.current_thread()]
        assert [r.content for r in answers.got[0]] == ["3"] * len(calls)
    assert threads() == before


@settings(max_examples=25, deadline=None)
@given(
    turns=st.lists(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 15)), max_size=4), max_size=8),
    num_threads=st.integers(1, 4),
)
def test_each_turn_gets_its_own_results_in_order_exactly_once(turns: Any, num_threads: int) -> None:
    all_answers = [Answers() for _ in turns]
    with Executor(num_threads) as executor:
        for t, (turn, answers) in enumerate(zip(turns, all_answers)):
            calls = [
                bound(KINDS[kind], ms=0 if kind == "inline" else ms, i=10 * t + i) for i, (kind, ms) in enumerate(turn)
            ]
            executor.start(calls, timeout=10, done=answers)
        for t, (turn, answers) in enumerate(zip(turns, all_answers)):
            assert [r.content for r in answers.wait()] == [str(10 * t + i) for i in range(len(turn))]
    assert all(len(answers.got) == 1 for answers in all_answers)


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_each_turn_has_its_own_deadlines(executor: Executor, kind: str) -> None:
    late, quick = Answers(), Answers()
    began = time.perf_counter()
    executor.start([bound(KINDS[kind], ms=5000), bound(KINDS[kind], i=7)], timeout=1.0, done=late)
    executor.start([bound(KINDS[kind], ms=20, i=8)], timeout=5, done=quick)
    assert [r.content for r in quick.wait()] == ["8"]
    assert not late.got
    assert [r.error for r in late.wait()] == [CallStatus.TOOL_TIMEOUT, None]
    assert time.perf_counter() - began < 4.5
    assert executor.abandoned_threads == (kind == "thread")


def test_turns_that_wait_for_a_thread_run_in_order_and_have_their_whole_time() -> None:
    all_answers, order = [Answers() for _ in range(4)], []

    @tool
    def nap(ms: int, i: int) -> int:
        order.append(i)
        time.sleep(ms / 1000)
        return i

    with Executor(1) as executor:
        for i, answers in enumerate(all_answers):
            executor.start([bound(nap, ms=400, i=i)], timeout=1.5, done=answers)
        assert [answers.wait()[0].content for answers in all_answers] == ["0", "1", "2", "3"]
    assert order == [0, 1, 2, 3]


def test_calls_of_one_turn_follow_each_other_without_delay_on_one_thread() -> None:
    with Executor(1) as executor:
        began = time.perf_counter()
        executor.run([bound(nap, ms=5)] * 4, timeout=5)
        assert time.perf_counter() - began < 1.8  # half a second for each call if its end were slept through


def test_run_works_beside_turns_under_way(executor: Executor) -> None:
    answers = Answers()
    executor.start([bound(nap, ms=300, i=1)], timeout=5, done=answers)
    assert executor.run([bound(nap, i=2), bound(nap_async, i=3)], timeout=5)[1].content == "3"
    assert not answers.got
    assert answers.wait()[0].content == "1"


def test_processes_can_be_started_and_stopped(executor: Executor) -> None:
    answers = Answers()
    executor.start([bound(getpid)], timeout=20, done=answers)
    assert int(answers.wait(40)[0].content) != os.getpid()


# ------------------------------------------------------------------ failures
def test_failing_done_is_raised_by_the_next_call_and_stops_nothing() -> None:
    def broken(results: list[ToolResult]) -> None:
        raise KeyError(f"lost {results[0].content}")

    executor = Executor(4)
    after = Answers()
    executor.start([bound(nap, ms=20, i=5)], timeout=5, done=broken)
    time.sleep(0.3)
    with pytest.raises(RuntimeError, match=r"`done` of 1 started turn.s. failed, first: KeyError: 'lost 5'") as caught:
        executor.run([bound(nap)], timeout=5)
    assert isinstance(caught.value.__cause__, KeyError)
    executor.start([bound(nap, ms=20, i=6)], timeout=5, done=after)
    assert after.wait()[0].content == "6"
    for i in range(2):
        executor.start([bound(nap, ms=50, i=i)], timeout=5, done=broken)
    time.sleep(0.3)
    with pytest.raises(RuntimeError, match=r"of 2 started") as caught:
        executor.close()
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)
    executor.close()


def test_done_that_fails_in_the_callers_thread_is_raised_there(executor: Executor) -> None:
    def broken(results: list[ToolResult]) -> None:
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        executor.start([bound(inline_nap)], timeout=1, done=broken)
    assert executor.run([bound(nap, i=1)], timeout=5)[0].content == "1"


def test_done_may_start_the_next_turn_run_or_close(executor: Executor) -> None:
    second, third = Answers(), Answers()

    def first(results: list[ToolResult]) -> None:
        third([*executor.run([bound(nap, i=2)], timeout=5)])
        executor.start([bound(nap, ms=20, i=1)], timeout=5, done=second)

    executor.start([bound(nap, ms=20)], timeout=5, done=first)
    assert third.wait()[0].content == "2"
    assert second.wait()[0].content == "1"
    last = Answers()
    executor.start([bound(nap, ms=3000)], timeout=5, done=last)
    executor.start([bound(nap_async, ms=20)], timeout=5, done=lambda results: executor.close())
    assert last.wait()[0].error is CallStatus.TOOL_ERROR
    assert len(last.got) == 1


# -------------------------------------------------------------------- cancel
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_cancelled_turn_answers_at_once_and_spares_the_others(executor: Executor, kind: str) -> None:
    cancelled, other = Answers(), Answers()
    batch = executor.start([bound(KINDS[kind], ms=3000), bound(inline_nap, i=4)], timeout=20, done=cancelled)
    executor.start([bound(KINDS[kind], ms=200, i=9)], timeout=20, done=other)
    began = time.perf_counter()
    executor.cancel(batch)
    results = cancelled.wait()
    assert time.perf_counter() - began < 2.5
    assert [r.error for r in results] == [CallStatus.TOOL_ERROR, None]
    assert message(results[0]) == "nap was cancelled"
    assert other.wait()[0].content == "9"
    executor.cancel(batch)
    assert len(cancelled.got) == 1


def test_call_cancelled_while_it_waits_for_a_thread_never_runs() -> None:
    ran: list[int] = []
    first, second = Answers(), Answers()
    with Executor(1) as executor:
        executor.start([bound(nap, ms=1000)], timeout=5, done=first)
        batch = executor.start([bound(made_for("thread", lambda x=None: ran.append(1)))], timeout=5, done=second)
        executor.cancel(batch)
        assert second.wait(0.8)[0].error is CallStatus.TOOL_ERROR
        first.wait()
        executor.run([bound(nap)], timeout=5)
    assert not ran


# --------------------------------------------------------------------- close
def test_close_ends_pending_turns_and_leaves_nothing() -> None:
    before, open_before = threads(), descriptors()
    for _ in range(3):
        executor = Executor(2)
        all_answers = [Answers() for _ in range(6)]
        for i, answers in enumerate(all_answers):
            kind = nap_async if i % 2 else nap
            executor.start(
                [bound(kind, ms=300 if kind is nap else 60_000), bound(inline_nap, i=1)], timeout=60, done=answers
            )
        began = time.perf_counter()
        executor.close()
        assert time.perf_counter() - began < 30
        for answers in all_answers:
            assert len(answers.got) == 1
            assert [r.error for r in answers.got[0]] == [CallStatus.TOOL_ERROR, None]
            assert "was cancelled: the environment was closed" in message(answers.got[0][0])
        executor.close()
        _wait_until(lambda: not threads() - before)  # a thread cannot be ended before its tool returns
        assert not descriptors() - open_before
    with pytest.raises(RuntimeError, match=r"Executor\.start: the executor is closed"):
        executor.start([bound(nap)], timeout=1, done=Answers())


def test_close_from_another_thread_ends_a_run() -> None:
    executor = Executor(2)
    threading.Timer(0.1, executor.close).start()
    began = time.perf_counter()
    assert executor.run([bound(nap, ms=2000)], timeout=20)[0].error is CallStatus.TOOL_ERROR
    assert time.perf_counter() - began < 1.9


def test_done_that_hangs_does_not_keep_close_from_ending_the_other_turns() -> None:
    release, entered, other = threading.Event(), threading.Event(), Answers()

    def hanging(results: list[ToolResult]) -> None:
        entered.set()
        release.wait(30)

    executor = Executor(2)
    executor.start([bound(nap, ms=10)], timeout=5, done=hanging)
    assert entered.wait(5)
    executor.start([bound(nap, ms=10, i=1)], timeout=5, done=other)
    time.sleep(0.1)
    executor.close()
    assert other.wait()[0].content == "1"
    release.set()


def test_forgotten_executor_ends_its_turns() -> None:
    before, answers = threads(), Answers()
    executor = Executor(4)
    executor.start([bound(nap_async, ms=60_000)], timeout=60, done=answers)
    del executor
    gc.collect()
    assert answers.wait()[0].error is CallStatus.TOOL_ERROR
    assert not threads() - before


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to itself")
def test_ctrl_c_in_an_inline_call_stops_the_turn_and_done_is_never_called(executor: Executor) -> None:
    stopped, answers = threading.Event(), Answers()

    @tool
    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        executor.start([bound(hang), bound(inline_nap, ms=3000)], timeout=20, done=answers)
    timer.join()
    assert stopped.wait(5)
    with contextlib.suppress(AssertionError):
        answers.wait(0.2)
    assert not answers.got
    assert executor.run([bound(nap, i=1)], timeout=5)[0].content == "1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_forked_child_starts_turns_of_its_own(executor: Executor) -> None:
    executor.run([bound(nap)], timeout=5)
    answers = Answers()
    executor.start([bound(nap, ms=100)], timeout=5, done=answers)
    child = os.fork()
    if child == 0:
        own = Answers()
        executor.start([bound(nap, i=3)], timeout=5, done=own)
        ok = own._called.wait(5) and own.got[0][0].content == "3" and not answers.got
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert answers.wait()[0].error is None


def test_calls_that_a_blocked_loop_never_began_get_a_new_loop_and_their_whole_time(executor: Executor) -> None:
    release, blocked, other, ran = threading.Event(), Answers(), Answers(), []

    @tool
    async def blocks() -> None:
        release.wait(30)

    @tool
    async def counted() -> int:
        ran.append(1)
        await asyncio.sleep(0.3)
        return 1

    executor.start([bound(blocks)], timeout=0.4, done=blocked)
    time.sleep(0.2)
    executor.start([bound(counted)], timeout=0.4, done=other)
    assert blocked.wait()[0].error is CallStatus.TOOL_TIMEOUT
    release.set()
    assert [r.content for r in other.wait()] == ["1"]
    _wait_until(lambda: executor.abandoned_threads == 0)
    assert ran == [1]


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
def test_timeouts_are_checked(executor: Executor, wrong: float) -> None:
    with pytest.raises(ValueError, match=r"Executor\.start: timeout"):
        executor.start([], timeout=wrong, done=Answers())


def _wait_until(condition: Any, seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()
