"""The Python tool in both sandboxes: what it shows, what it keeps, and that nothing gets out or hangs."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from python_attacks import attacks
from traces import children, descriptors, gone, threads

from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.tools.builtin import Python, cpython, monty
from toolstep.envs.tools.builtin.cpython import JailedInterpreter
from toolstep.envs.tools.builtin.last_value import showing
from toolstep.envs.tools.builtin.python import MAX_CODE, PythonSession
from toolstep.envs.tools.builtin.report import cut, describe_error
from toolstep.envs.tools.builtin.sandbox import SandboxError
from toolstep.envs.types import CallStatus

TASKS = [{"prompt": "Compute.", "answer": "5"}]
REASONS = {"monty": monty.missing(), "cpython": cpython.missing()}
BACKENDS = [pytest.param(b, marks=pytest.mark.skipif(bool(why), reason=why)) for b, why in REASONS.items()]
both = pytest.mark.parametrize("backend", BACKENDS)
jailed = pytest.mark.skipif(bool(REASONS["cpython"]), reason=REASONS["cpython"])


def call(code: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"


@contextlib.contextmanager
def opened(backend: Any, seconds: float = 5.0, seed: int = 7, **options: Any) -> Iterator[PythonSession]:
    factory = Python(backend, **options)
    session = factory.session(seed, seconds)
    try:
        yield session
    finally:
        session.close()
        factory.close()


@pytest.fixture(params=BACKENDS)
def session(request: pytest.FixtureRequest) -> Iterator[PythonSession]:
    with opened(request.param) as made:
        yield made


def shows(session: PythonSession, code: str) -> str:
    result = session.python(code)
    assert result.error is None, result.content
    return result.content


# ------------------------------------------------------------------------------------------------------- ordinary code
ORDINARY = [
    ("1 + 1", "2"),
    ("x = 3\nx * 2", "6"),
    ("print('a', 'b')\n1", "a b\n1"),
    ("x = 3", "(no output: print what you want to see)"),
    ("None", "(no output: print what you want to see)"),
    ("'text'", "'text'"),
    ("f(\n  1,\n  2,\n) if False else [\n  3,\n]", "[3]"),
    ("x = 1; x + 1", "2"),
    ("for i in range(3):\n    print(i)", "0\n1\n2"),
    ("def f(n):\n    return n + 1\n\nf(4)  # five", "5"),
    ("import math\nmath.isqrt(10**20)", "10000000000"),
    ("import json\njson.dumps({'a': [1, None]})", "'{\"a\": [1, null]}'"),
    ("import re\nre.findall(r'\\d+', 'a1b22')", "['1', '22']"),
    ("from collections import Counter\nCounter('aab').most_common(1)", "[('a', 2)]"),
    ("import itertools\nlist(itertools.permutations('ab'))", "[('a', 'b'), ('b', 'a')]"),
    ("sorted({3, 1, 2})", "[1, 2, 3]"),
    ("[x for x in range(20) if all(x % d for d in range(2, x)) and x > 1]", "[2, 3, 5, 7, 11, 13, 17, 19]"),
    ("sum(i * i for i in range(100_000))", "333328333350000"),
    ("```python\n2 + 2\n```", "4"),
    ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    print(e)", "division by zero"),
    ("f'{3.14159:.2f}'", "'3.14'"),
    ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\nprint(asyncio.run(f()))", "3"),
    (
        "class P:\n    def __init__(self, x): self.x = x\n    def __repr__(self): return f'P{self.x}'\nP(1)",
        "P1",
    ),
    ("lambda x: x\n(lambda a: a + 1)(1)", "2"),
    ("from datetime import date\n(date(2024, 3, 1) - date(2024, 2, 1)).days", "29"),
]


def test_ordinary_code_shows_what_it_prints_and_its_last_value(session: PythonSession) -> None:
    for code, wanted in ORDINARY:
        assert shows(session, code) == wanted, code


def test_variables_functions_and_imports_stay_for_later_calls(session: PythonSession) -> None:
    shows(session, "import math\ntotal = 40\ndef twice(n):\n    return 2 * n")
    shows(session, "total += 2")
    assert session.python("1 / 0").error is CallStatus.TOOL_ERROR
    assert shows(session, "twice(total), math.pi > 3") == "(84, True)"


def test_an_error_says_where_and_what_and_keeps_what_was_printed(session: PythonSession) -> None:
    result = session.python("print('before')\ndef f(n):\n    return 1 / n\n\nf(0)")
    assert result.error is CallStatus.TOOL_ERROR
    assert result.content == (
        "before\nTraceback (most recent call last):\n  line 5, in <module>: f(0)\n  line 3, in f: return 1 / n\n"
        "ZeroDivisionError: division by zero"
    )
    wrong = session.python("x = 1\ny = (2 +\n")
    assert wrong.error is CallStatus.TOOL_ERROR
    assert "SyntaxError" in wrong.content
    assert "NameError: name 'undefined' is not defined" in session.python("undefined").content


def test_results_are_bounded_and_both_ends_are_kept(session: PythonSession) -> None:
    shown = shows(session, "for i in range(20_000):\n    print(i)")
    assert len(shown) < 3_200
    assert shown.startswith("0\n1\n2\n")
    assert shown.endswith("19998\n19999")
    assert "characters left out" in shown
    assert len(shows(session, "'x' * 500_000")) < 3_200
    message = session.python("raise ValueError('y' * 100_000)").content
    assert len(message) < 3_200
    assert shows(session, "1 + 1") == "2"


def test_code_that_is_empty_or_too_long_is_not_run(session: PythonSession) -> None:
    for code, told in (("", "empty"), ("   \n", "empty"), ("```\n\n```", "empty"), ("x" * (MAX_CODE + 1), "20000")):
        result = session.python(code)
        assert result.error is CallStatus.TOOL_ERROR
        assert told in json.loads(result.content)["message"]


# ------------------------------------------------------------------------------------------------ the same every time
@both
def test_clock_and_chance_are_the_episodes(backend: Any) -> None:
    code = """
        import random, time
        from datetime import datetime, date
        time.sleep(1000)
        print(random.random(), random.randint(1, 10**9), datetime.now(), date.today(), time.time())
    """
    now = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
    shown = []
    for seed in (1, 1, 2):
        with opened(backend, seed=seed, now=now) as session:
            shown.append(shows(session, textwrap.dedent(code)))
    assert shown[0] == shown[1] != shown[2]
    assert shown[0].endswith(f"2031-02-03 04:05:06 2031-02-03 {now.timestamp()}")


@jailed
def test_a_clock_that_stands_still_is_a_real_one_otherwise() -> None:
    with opened("cpython") as session:
        assert (
            shows(session, "import datetime, time\ndatetime.datetime(2020, 1, 2)")
            == "datetime.datetime(2020, 1, 2, 0, 0)"
        )
        assert (
            shows(session, "datetime.datetime.now() - datetime.datetime(2025, 1, 1)")
            == "datetime.timedelta(seconds=43200)"
        )
        assert shows(session, "isinstance(datetime.datetime.now(), datetime.date)") == "True"
        assert (
            shows(session, "datetime.datetime.strptime('2024-02-29', '%Y-%m-%d').isoformat()")
            == "'2024-02-29T00:00:00'"
        )
        assert (
            shows(session, "time.strftime('%Y'), time.gmtime().tm_year, time.gmtime(0).tm_year")
            == "('2025', 2025, 1970)"
        )
        assert shows(session, "import copy\ncopy.deepcopy(datetime.date.today())") == "datetime.date(2025, 1, 1)"
        assert shows(session, "hash('a') == hash('a'), list({'a', 'b', 'c', 'd'})") != ""
    with opened("cpython") as first, opened("cpython") as second:  # sets have the same order in every process
        code = "list({str(i) for i in range(50)})"
        assert shows(first, code) == shows(second, code)


# ------------------------------------------------------------------------------------------------------------- attacks
SECRET = "swordfish-7731"


@pytest.fixture
def decoy() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@both
def test_nothing_escapes_nothing_hangs_and_the_interpreter_goes_on(
    backend: Any, tmp_path: Path, decoy: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSTEP_SECRET", SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "evil.py").write_text(f"print({SECRET!r})")
    before = sorted(p.name for p in tmp_path.iterdir())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        for name, code in attacks(tmp_path, listener.getsockname()[1], decoy.pid).items():
            with opened(backend, seconds=1.0, memory_mb=128) as session:
                result = session.python(code)
                assert SECRET not in result.content, name
                assert "root:" not in result.content, name
                assert len(result.content) < 4_500, name
                again = session.python("20 + 1")
                assert again.content.startswith("21"), (name, result.content, again.content)
            assert sorted(p.name for p in tmp_path.iterdir()) == before, name
            assert decoy.poll() is None, name
            with pytest.raises(BlockingIOError):
                listener.accept()
    assert (tmp_path / "secret.txt").read_text() == SECRET


@both
def test_what_stops_an_attack_is_told(backend: Any) -> None:
    with opened(backend, seconds=0.5, memory_mb=128) as session:
        shows(session, "kept = 1")
        stopped = session.python("while True: pass")
        assert stopped.error is CallStatus.TOOL_TIMEOUT
        assert "stopped after 0.5 s" in stopped.content
        assert "earlier calls are gone" in stopped.content
        assert "NameError" in session.python("kept").content
        memory = session.python("x = []\nwhile True: x.append('a' * 10**7)")
        assert memory.error is CallStatus.TOOL_ERROR
        assert "MemoryError" in memory.content


@jailed
def test_the_only_sockets_are_two_ends_of_a_stream_inside(tmp_path: Path) -> None:
    code = """
        import socket
        for family in range(1, 45):
            for kind in range(1, 11):
                try: pair = socket.socketpair(family, kind)
                except (OSError, ValueError): continue
                print(family, kind)
                end = pair[0]
                for reach in (lambda: end.sendto(b"x", PATH), lambda: end.connect(PATH), lambda: end.bind(PATH)):
                    try: reach(); print("reached")
                    except OSError: pass
    """
    path = tmp_path / "listener"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener, opened("cpython") as session:
        listener.bind(str(path))
        listener.settimeout(0)
        assert shows(session, textwrap.dedent(code).replace("PATH", repr(str(path)))) == "1 1"
        with pytest.raises(BlockingIOError):
            listener.recv(1)


@jailed
def test_an_interpreter_that_ends_is_told_and_begun_anew() -> None:
    with opened("cpython") as session:
        result = session.python("import os\nos._exit(3)")
        assert result.error is CallStatus.TOOL_ERROR
        assert "the code ended the interpreter (3)" in result.content
        forged = session.python("import os\nos.write(4, b'\\x7f' * 64)\nos.write(3, b'\\x7f' * 64)")
        assert forged.error is CallStatus.TOOL_ERROR
        assert shows(session, "1 + 1") == "2"


@jailed
def test_a_jail_with_an_open_door_refuses_to_run_anything() -> None:
    interpreter = JailedInterpreter(1.0, 256 << 20, datetime(2025, 1, 1, tzinfo=UTC), 0, 1000, False)
    interpreter._setup["readable"] = [*interpreter._setup["readable"], "/etc"]
    ran = interpreter.run("print('ran')")
    interpreter.close()
    assert ran.output == ""
    assert "/etc/passwd can still be opened" in ran.error


DEAF = """
import ctypes, os, signal
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
for i in range(64):
    for drop in (os.close, lambda i: os.dup2(0, i), lambda i: ctypes.CDLL(None).close(i)):
        try: drop(i)
        except OSError: pass
ctypes.CDLL(None).close_range(0, 64, 0)
while True: pass
"""


@jailed
@pytest.mark.parametrize("stubborn", ["while True: pass", DEAF])
def test_a_jail_dies_with_its_parent_whatever_it_is_doing(stubborn: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys, types, threading
            package = types.ModuleType("toolstep"); package.__path__ = [{str(Path(__file__).resolve().parent.parent)!r}]
            sys.modules["toolstep"] = package
            from toolstep.envs.tools.builtin import Python
            session = Python("cpython").session(0, 60.0)
            session.python("1")
            print(session._interpreter._process._child.pid, flush=True)
            session.python({stubborn!r})
        """)
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(child)


@jailed
def test_installed_packages_are_there_when_asked_for() -> None:
    with opened("cpython", packages=True, memory_mb=512, seconds=30.0) as session:
        assert shows(session, "import numpy\nint(numpy.arange(4).sum())") == "6"
        assert "Permission denied" in session.python("open('/etc/passwd')").content
    with opened("cpython") as session:
        assert "ModuleNotFoundError" in session.python("import numpy").content


# ---------------------------------------------------------------------------------------------------------- in the env
@both
def test_each_episode_has_its_own_interpreter(backend: Any) -> None:
    env = ToolUseVectorEnv(4, TASKS, tools=[Python(backend)], autoreset_mode="Disabled")
    for _ in range(2):
        env.reset(seed=[0, 0, 1, 2])
        env.step([call(f"n = {i}") + call("n += 10") + call("print(n)") for i in range(4)])
        env.step([call("import random\nprint(n, random.random())")] * 4)
        shown = [[m.content for m in messages if m.role == "tool"] for messages in env.get_attr("messages")]
        assert [row[2] for row in shown] == ["10", "11", "12", "13"]
        chance = [row[3].split()[1] for row in shown]
        assert chance[0] == chance[1] != chance[2]
    env.reset(seed=0)
    env.step([call("n")] * 4)
    assert all("NameError" in messages[-1].content for messages in env.get_attr("messages"))
    env.close()


@both
def test_the_sandbox_stops_before_the_env_gives_the_call_up(backend: Any) -> None:
    env = ToolUseEnv(TASKS, tools=[Python(backend, timeout=60.0)], tool_timeout=2.0)
    env.reset(seed=0)
    _, _, _, _, info = env.step(call("while True: pass") + call("1 + 1"))
    assert info["call_statuses"] == ["tool_timeout", "ok"]
    assert "stopped after 1.6 s" in env.messages[-2].content
    assert env._executor.abandoned_threads == 0
    env.close()


@both
def test_a_hanging_row_does_not_hold_up_the_others(backend: Any) -> None:
    env = ToolUseVectorEnv(8, TASKS, tools=[Python(backend, timeout=1.0)])
    env.reset(seed=0)
    env.step([call("while True: pass" if i % 4 == 0 else f"{i} * 2") for i in range(8)])
    shown = [messages[-1].content for messages in env.get_attr("messages")]
    assert [text for i, text in enumerate(shown) if i % 4] == [str(2 * i) for i in range(8) if i % 4]
    assert all("stopped after 1 s" in text for text in shown[::4])
    env.close()


@both
@pytest.mark.skipif(sys.platform != "linux", reason="counts what /proc shows")
def test_a_thousand_resets_leave_nothing_behind(backend: Any) -> None:
    warm = Python(backend)
    with contextlib.closing(warm):
        warm.session(0).close()
    before = threads(), descriptors(), children()
    env = ToolUseVectorEnv(4, TASKS, tools=[Python(backend)], autoreset_mode="Disabled")
    for i in range(250):
        env.reset(seed=i)
        if i % 50 == 0:
            env.step([call("print(1)")] * 4)
    env.close()
    gc.collect()
    assert threads() <= before[0]
    assert len(descriptors()) <= len(before[1])
    assert children() <= before[2]


@both
def test_an_env_that_is_closed_during_a_call_ends_its_interpreter(backend: Any) -> None:
    before = children()
    env = ToolUseVectorEnv(2, TASKS, tools=[Python(backend, timeout=2.0)], autoreset_mode="Disabled")
    env.reset(seed=0)
    env.send([call("while True: pass")] * 2, [0, 1])
    time.sleep(0.3)
    env.close()
    for _ in range(800):
        gc.collect()
        if children() <= before:
            break
        time.sleep(0.01)
    assert children() <= before


@both
def test_an_env_that_is_forgotten_leaves_no_process(backend: Any) -> None:
    before = children()
    env: Any = ToolUseEnv(TASKS, tools=[Python(backend)])
    env.reset(seed=0)
    env.step(call("1"))
    del env
    for _ in range(500):
        gc.collect()
        if children() <= before:
            break
        time.sleep(0.01)
    assert children() <= before


@both
def test_many_episodes_run_at_once(backend: Any) -> None:
    factory = Python(backend)
    with ThreadPoolExecutor(16) as pool:
        sessions = [factory.session(i) for i in range(16)]
        for _ in range(2):
            shown = list(
                pool.map(lambda s: s.python("n = globals().get('n', 0) + 1 if False else 1\nn").content, sessions)
            )
            assert shown == ["1"] * 16
        for s in sessions:
            s.close()
    factory.close()


# ------------------------------------------------------------------------------------------------------------ the rest
def test_without_a_sandbox_there_is_an_error_and_no_way_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monty, "missing", lambda: "pydantic-monty is not installed (pip install 'toolstep[sandbox]')")
    monkeypatch.setattr(cpython, "missing", lambda: "")
    with pytest.raises(SandboxError, match=r"pip install 'toolstep\[sandbox\]'.*Python\('cpython'\) works here"):
        Python()
    monkeypatch.setattr(cpython, "missing", lambda: "it needs Linux, and this is win32")
    with pytest.raises(SandboxError, match="not to be had either: it needs Linux"):
        ToolUseEnv(TASKS, tools=["python"])
    with pytest.raises(SandboxError, match="it needs Linux"):
        Python("cpython")


@jailed
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "exec"}, 'backend must be "monty" or "cpython"'),
        ({"timeout": 0}, "timeout"),
        ({"memory_mb": float("inf")}, "memory_mb"),
        ({"now": datetime(2025, 1, 1)}, "time zone"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Python(**{"backend": "cpython", **options})


LAST_IS_A_VALUE = [
    "1", "x = 1\nx", "f(\n1)", "x; y", "lambda: 1", "'''a\nb'''", "x == 1", "not x", "await f()", "{'a': 1}", "x[1:2]",
    "type(x)", "match(x)", "def f():\n    return 1\nf()", "x\n# c", "x\n   # c", "x  \n\n  ", "r'a\\'", "-1",
    "a if b else c", "if 1:\n    pass\nx",
    "lambda: (lambda a=1: a)",
]  # fmt: skip
LAST_IS_NONE = [
    "", "x = 1", "x += 1", "import os", "if x: 5", "if x: a; b", "for i in x:\n    i", "x: int = 3", "x;", "# c",
    "assert x", "def f(): pass", "@d\ndef f():\n    1", "(", "a)", "x = (1,\n2)", "raise X", "class A:\n    x",
    "a, b = 1, 2", "while 1: x",
]  # fmt: skip


def test_the_value_of_the_last_line_is_found_without_reading_the_code_as_python() -> None:
    assert [code for code in LAST_IS_A_VALUE if showing(code) is None] == []
    assert [code for code in LAST_IS_NONE if showing(code) is not None] == []


@pytest.mark.parametrize(
    "piece",
    ["(", "'", "'''", '"""\n', "'\\'", "'\\", "lambda:", ";", " ", "\n", '"""x""', '"a\n', "f'", "\\\n", "1e", "#"],
)
def test_hostile_code_is_looked_at_in_linear_time(piece: str) -> None:
    def seconds(n: int) -> float:
        code = "x" + piece * n
        times = []
        for _ in range(3):
            start = time.thread_time()
            showing(code)
            times.append(time.thread_time() - start)
        return min(times)

    assert seconds(32_000) < 100 * seconds(2_000) + 0.01  # 16 times as much text; a square would be 256


def test_long_text_keeps_its_ends_and_says_what_is_missing() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("a" * 60 + "b" * 60, 30) == "a" * 20 + "\n[90 characters left out]\n" + "b" * 10
    frames = [(i, "f", "x" * 500) for i in range(100)]
    told = describe_error("E", "m", frames)
    assert told.count("\n") == 10
    assert "... 92 more ..." in told
    assert told.endswith("E: m")
