"""Is the answer right?  Every verifier on right, wrong and hostile answers."""

from __future__ import annotations

import math
import pickle
import signal
from typing import Any

import pytest
from fragile_verifier import Fragile
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import children

from toolstep.envs import ToolUseEnv
from toolstep.envs.rewards import RewardError, Verifier, make_reward, register_reward, reward_names, stopped
from toolstep.envs.rewards.patterns import Regex
from toolstep.envs.rewards.programs import code_of
from toolstep.envs.rewards.verifiers import final_answer
from toolstep.envs.tools.builtin import monty
from toolstep.envs.types import EpisodeRecord, Message, StopReason, Task


def episode(answer: str, expected: Any) -> EpisodeRecord:
    task = Task("t/1", (Message("user", "?"),), expected)
    return EpisodeRecord(task, (*task.messages, Message("assistant", answer)), StopReason.ANSWERED, 1)


CASES: list[tuple[str, str, Any, bool]] = [
    ("exact", " Paris\n", "Paris", True),
    ("exact", "paris", "Paris", False),
    ("exact", "Paris.", "Paris", False),
    ("exact", "b", ["a", "b"], True),
    ("exact", "Paris", " Paris ", True),
    ("exact", "5", 5, True),
    ("exact", "so <answer>Paris</answer>.", "Paris", True),
    ("text", ' "PARIS". ', "Paris", True),
    ("text", "the city of light", ["Paris", "The  City of Light"], True),
    ("text", "Ｐａｒｉｓ", "Paris", True),
    ("text", "straße", "STRASSE", True),
    ("text", "Pаris", "Paris", False),  # a Cyrillic letter
    ("text", "Paris, France", "Paris", False),
    ("text", "", "x", False),
    ("stated", "The capital is Paris.", "Paris", True),
    ("stated", "1532", "5", False),
    ("stated", "It is B", ["A", "B"], True),
    ("numeric", "= 1,234", 1234, True),
    ("numeric", "1532", "5", False),
    ("numeric", "3/4", 0.75, True),
    ("numeric", "75%", "0.75", True),
    ("numeric", "0.6667", "2/3", True),
    ("numeric", "0.67", "2/3", False),
    ("numeric", "so #### 12", "reasoning\n#### 12", True),
    ("numeric", "3", "3 of them\n#### 12", False),
    ("numeric", "0.5", "50%", True),
    ("numeric", "0.5", {"value": "50%", "rel": 0.001}, True),
    ("numeric", "none", "5", False),
    ("numeric", "12 or 13", 12, False),
    ("numeric", "12 or 13", 13, True),  # what is said last is the answer: "no, 13"
    ("numeric", "１２", 12, True),  # full-width digits
    ("numeric", "12٣", 12, False),  # a number is never a part of a longer one
    ("numeric", "1.٣", 1, False),
    ("numeric", "5 or 6", 5, False),
    ("numeric", "0.30000000000000004", 0.3, True),
    ("numeric", "0.300000001", 0.3, False),
    ("numeric", "3.1", {"value": 3.14, "abs": 0.05}, True),
    ("numeric", "3.0", {"value": 3.14, "abs": 0.05}, False),
    ("numeric", "314", {"value": "310", "rel": 0.02}, True),
    ("numeric", "320", {"value": "310", "rel": 0.02}, False),
    ("numeric", "-102", {"value": -100, "rel": 0.03}, True),
    ("numeric", "7", [6, 7], True),
    ("numeric", "nan", 5, False),
    ("numeric", "inf", 5, False),
    ("numeric", "1e999999999", 5, False),
    ("numeric", "9" * 100_000, 5, False),
    ("numeric", "5" + "0" * 400, 5 * 10**400, True),
    ("numeric", "1/0", 5, False),
    ("numeric", "0x5", 5, False),
    ("set", "b, a", ["a", "b"], True),
    ("set", "- A\n- b\n- B", ["a", "b"], True),
    ("set", '["a", "b"]', ["a", "b"], True),
    ("set", "a, b and c", ["c", "b", "a"], True),
    ("set", "a, b", ["a", "b", "A"], True),
    ("set", "2, 2.0, 3", [2, 3], True),
    ("set", "a, b, c", ["a", "b"], False),
    ("set", "a", ["a", "b"], False),
    ("set", "Rome, Paris", ["Paris"], False),
    ("set", "Paris", ["Paris"], True),
    ("set", "10,000\n2.0", [2, 10000], True),
    ("set", "10001", [10000], False),
    ("set", "None.", [], True),
    ("set", "a", [], False),
    ("sql_result", "Ann | 3\nBen | 5", [["Ben", 5], ["Ann", 3]], True),
    ("sql_result", "Ann | 3\nBen | 5", {"rows": [["Ben", 5], ["Ann", 3]], "ordered": True}, False),
    ("sql_result", "Ann | 3\nBen | 6", [["Ann", 3], ["Ben", 5]], False),
    ("sql_result", "Ann | 3\nBen | 5\nCy | 1", [["Ann", 3], ["Ben", 5]], False),
    ("sql_result", "There are 17 of them.", [[17]], True),
    ("sql_result", "12.34", [[12.3399]], True),
    ("sql_result", "10001", [[10000]], False),
    ("sql_result", "none", [], True),
    ("sql_result", "Ann | NULL\nBen | 5", [["Ann", None], ["Ben", 5]], True),
    ("sql_result", "Ann |\nBen | 5", [["Ann", None], ["Ben", 5]], True),
    ("sql_result", '[["Ann", null], ["Ben", 5]]', [["Ann", None], ["Ben", 5]], True),
    ("sql_result", "Ann | 0\nBen | 5", [["Ann", None], ["Ben", 5]], False),
    ("sql_result", "The mean is NULL.", [[None]], True),
    ("sql_result", "0", [[None]], False),
]


@pytest.mark.parametrize(("name", "answer", "expected", "right"), CASES)
def test_answers(name: str, answer: str, expected: Any, right: bool) -> None:
    assert make_reward(name)(episode(answer, expected)) == float(right)


@pytest.mark.parametrize(
    ("spec", "answer", "expected", "right"),
    [
        ({"name": "numeric", "rel": 0.1}, "109", 100, True),
        ({"name": "numeric", "rel": 0.1}, "109", {"value": 100, "abs": 1}, True),
        ({"name": "numeric", "rel": 0.1}, "109", {"value": 100, "rel": 0.01}, False),
        ({"name": "numeric", "abs": 5}, "104", {"value": 100, "rel": 0.001}, True),
        ({"name": "numeric", "abs": 5}, "104", {"value": 100, "abs": 1}, False),
        ({"name": "numeric", "rel": 0.02, "abs": 2}, "103", 100, False),  # the wider of the two, not their sum
        ({"name": "sql_result", "ordered": True}, "Ben\nAnn", [["Ann"], ["Ben"]], False),
        ({"name": "sql_result", "ordered": True}, "Ann\nBen", [["Ann"], ["Ben"]], True),
        ({"name": "sql_result", "ordered": True}, "Ann\nBen\nCy", [["Ann"], ["Ben"]], False),
        ({"name": "sql_result", "ordered": True}, "Ben\nAnn", {"rows": [["Ann"], ["Ben"]]}, False),
        ({"name": "sql_result", "ordered": True}, "Ben\nAnn", {"rows": [["Ann"], ["Ben"]], "ordered": False}, True),
    ],
)
def test_options_hold_where_a_task_says_nothing_else(spec: Any, answer: str, expected: Any, right: bool) -> None:
    assert make_reward(spec)(episode(answer, expected)) == float(right)


@pytest.mark.parametrize("name", ["exact", "text", "stated", "numeric", "set", "sql_result"])
def test_what_is_written_as_right_is_right(name: str) -> None:
    verifier = make_reward(name)
    assert isinstance(verifier, Verifier)
    for expected in [e for n, _, e, _ in CASES if n == name]:
        assert verifier(episode(verifier.write(expected), expected)) == 1.0, expected


@pytest.mark.parametrize(
    ("name", "expected", "problem"),
    [
        ("numeric", "five", "expected a finite number, or text that ends in one, found 'five'"),
        ("numeric", None, "expected a finite number"),
        ("numeric", True, "expected a finite number"),
        ("numeric", math.nan, "expected a finite number"),
        ("numeric", [1, math.inf], "expected a finite number"),
        ("numeric", {"value": 1, "rel": -1}, "'rel' must be a finite number >= 0"),
        ("numeric", {"value": 1, "tolerance": 1}, r"found \['tolerance'\]"),
        ("stated", math.nan, "expected a finite number"),
        ("stated", ["a", math.inf], "expected a finite number"),
        ("exact", None, "expected a text"),
        ("text", {"a": 1}, "expected a text"),
        ("set", "a, b", "expected a list of texts and numbers"),
        ("set", [None], "expected a list of texts and numbers"),
        ("set", [[1]], "expected a list of texts and numbers"),
        ("sql_result", [1, 2], "expected rows of one length"),
        ("sql_result", [[1], [1, 2]], "expected rows of one length"),
        ("sql_result", {"rows": [[math.inf]]}, "expected rows of one length"),
        ("regex", 5, "expected a regular expression as text"),
        ("regex", "(", "is no regular expression: missing"),
    ],
)
def test_what_no_answer_can_be_compared_with_is_an_error_and_no_wrong_answer(
    name: str, expected: Any, problem: str
) -> None:
    with pytest.raises(RewardError, match=f"reward '{name}', task 't/1': .*{problem}"):
        make_reward(name)(episode("5", expected))


@given(st.text(max_size=300))
@settings(max_examples=60, deadline=None)
def test_no_text_makes_a_verifier_raise(text: str) -> None:
    for name, expected in (
        ("exact", "a"),
        ("text", "a"),
        ("stated", "a"),
        ("numeric", 0.5),
        ("set", ["a", 1]),
        ("sql_result", [["a", 1.5], ["b", None]]),
    ):
        assert make_reward(name)(episode(text, expected)) in (0.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 300_000,
        "1,111" * 60_000,
        "1." * 150_000,
        "a1" * 150_000,
        "<answer>" * 40_000,
        "1/" * 150_000,
        "," * 300_000,
    ],
)
def test_long_hostile_answers_cost_a_bounded_time(text: str) -> None:
    """Linear work takes well under a second for all of it; the quadratic kind, hours."""
    for name, expected in (("numeric", 5), ("set", ["a"]), ("text", "a"), ("stated", 5), ("sql_result", [["a", 1]])):
        assert make_reward(name)(episode(text, expected)) == 0.0
    assert code_of(text) == text


def test_the_last_answer_tag_is_what_counts() -> None:
    assert final_answer("<answer>1</answer> no, <answer>2</answer> done") == "2"
    assert final_answer("<answer>1</answer> or <answer>2") == "1"
    assert final_answer("<answer>1") == "<answer>1"
    assert final_answer("1</answer>") == "1</answer>"


# ------------------------------------------------------------------------------------------------------------- registry
def brevity(record: EpisodeRecord) -> float:
    return 1 / (1 + len(record.answer))


def test_rewards_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolstep.envs.rewards import registry

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    register_reward("test/brevity", brevity)
    register_reward("test/brevity", brevity)
    assert "test/brevity" in reward_names()
    assert make_reward("test/brevity") is brevity
    with pytest.raises(ValueError, match="is registered already"):
        register_reward("test/brevity", math.sqrt)
    with pytest.raises(ValueError, match="has no colon"):
        register_reward("a:b", brevity)
    with pytest.raises(ValueError, match="is a function, which has no options"):
        make_reward({"name": "test/brevity", "rel": 1})
    assert make_reward('{"name": "numeric", "rel": 0.5}')(episode("7", 5)) == 1.0
    assert make_reward("test_verifiers:brevity")(episode("", 5)) == 1.0


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("nummeric", "there is no reward 'nummeric'; did you mean 'numeric'"),
        ("{", "is no JSON"),
        ({"rel": 1}, "a reward is named like"),
        ({"name": "numeric", "rel": math.inf}, "'rel' must be a finite number"),
        ({"name": "numeric", "rel": True}, "'rel' must be a finite number"),
        ({"name": "regex", "timeout": 0}, "timeout must be a finite number of seconds > 0"),
        ("math:pi", "'math:pi' is no function"),
        ("math:nothing", "cannot import the reward 'math:nothing'"),
    ],
)
def test_what_names_no_reward_is_refused(spec: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make_reward(spec)


def test_a_file_cannot_name_code() -> None:
    with pytest.raises(ValueError, match="there is no reward 'os:getcwd'"):
        make_reward("os:getcwd", from_data=True)


# ---------------------------------------------------------------------------------------------------------------- regex
def test_a_pattern_that_hostile_text_could_hang_is_stopped() -> None:
    regex = make_reward({"name": "regex", "timeout": 0.5})
    assert isinstance(regex, Verifier)
    pattern = r"\A(\w+\s?)+\Z"
    try:
        assert regex(episode("It is Paris", pattern)) == 1.0
        assert regex(episode("a" * 200 + "!", pattern)) == 0.0  # some 2**200 steps
        assert regex(episode("still works", pattern)) == 1.0
        assert regex(episode("It is Paris", r"\bparis\b")) == 0.0
        assert regex(episode("It is Paris", r"(?i)\bparis\b")) == 1.0
        assert regex(episode("It is\nParis", r"^Paris|is.Paris|Is$")) == 0.0  # flags are those of the pattern
        assert regex(episode("It is\nParis", r"(?m)^Paris")) == 1.0
        again = pickle.loads(pickle.dumps(regex))
        assert repr(again) == "Regex(timeout=0.5)"
    finally:
        regex.close()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_the_limit_of_a_pattern_is_processor_time() -> None:
    regex = Regex(timeout=0.5)
    try:
        assert "SIGPROF" in regex._run("a" * 200 + "!", r"\A(\w+\s?)+\Z", 0.5).content
    finally:
        regex.close()


def test_the_process_of_a_reward_ends_with_the_env() -> None:
    before = children()
    env = ToolUseEnv([{"prompt": "?", "answer": "a+"}], reward="regex")
    env.reset(seed=0)
    assert env.step("caab")[1] == 1.0
    assert len(children() - before) == 1
    env.close()
    assert children() <= before


def test_an_answer_that_ends_the_process_is_wrong_and_one_that_cannot_be_judged_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stopped, "ATTEMPTS", 1)
    fragile = Fragile(timeout=10.0)
    try:
        assert [fragile.verify(answer, "x") for answer in ("x", "die", "y", "x")] == [True, False, False, True]
        with pytest.raises(RewardError, match="'fragile' cannot read what is expected: 'x'"):
            fragile.verify("unreadable", "x")
        fragile.harmless = ("die", "")
        fragile.close()
        with pytest.raises(RewardError, match=r"'fragile' cannot be had: .*exit code 3"):
            fragile.verify("x", "x")
    finally:
        fragile.close()


# -------------------------------------------------------------------------------------------------------------- program
ADD = {"function": "add", "cases": [[[1, 2], 3], [[0, 0.5], 0.5]], "solution": "def add(a, b):\n    return a + b"}


RESULTS: list[tuple[str, Any, bool]] = [
    ("0.1 + 0.2", 0.3, True),
    ("0.3000001", 0.3, False),
    ("3.0", 3, True),
    ("[1, 2]", [1, 2], True),
    ("(1, 2)", [1, 2], True),
    ("[2, 1]", [1, 2], False),
    ("[1, 2, 3]", [1, 2], False),
    ("[1]", [1, 2], False),
    ("[1, True]", [1, 1], False),
    ("{'a': 1}", {"a": 1}, True),
    ("{'a': 1, 'b': 2}", {"a": 1}, False),
    ("{'b': 1}", {"a": 1}, False),
    ("None", None, True),
    ("0", None, False),
    ("1.5", 10**400, False),
    ("float('nan')", 1, False),
    ("'3'", 3, False),
]


@pytest.mark.skipif(bool(monty.missing()), reason="needs the extra sandbox")
def test_programs_are_called_in_a_sandbox() -> None:
    program = make_reward({"name": "program", "timeout": 1.0})
    assert isinstance(program, Verifier)
    right = ADD["solution"]
    answers = {
        f"```python\n{right}\n```": 1.0,
        str(right): 1.0,
        f"First I try\n```\nadd = 1\n```\nand then\n```py\n{right}\n```\nDone.": 1.0,
        "def add(a, b):\n    return 3": 0.0,
        "def plus(a, b):\n    return a + b": 0.0,
        "def add(a, b):\n    while True: pass": 0.0,
        "def add(a, b):\n    return open('/etc/passwd').read()": 0.0,
        "import json\njson.dumps = lambda x: '3'\ndef add(a, b):\n    return None": 0.0,
        "class Sly:\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Sly()": 0.0,
        "def add(a, b)": 0.0,
        "": 0.0,
        "x" * 100_000: 0.0,
    }
    try:
        assert {answer: program(episode(answer, ADD)) for answer in answers} == answers
        assert program(episode(program.write(ADD), ADD)) == 1.0
        yes = {"function": "f", "cases": [[[], True]]}
        assert program(episode("def f(): return 1", yes)) == 0.0
        assert program(episode("def f(): return True", yes)) == 1.0
        # What the code prints is no result, not even where nothing else is printed.
        assert program(episode("def add(a, b):\n    print(3)\n    print(0.5)\n    raise ValueError", ADD)) == 0.0
        for result, wanted, right in RESULTS:
            case = {"function": "f", "cases": [[[], wanted]]}
            assert program(episode(f"def f(): return {result}", case)) == float(right), result
    finally:
        program.close()


@pytest.mark.skipif(bool(monty.missing()), reason="needs the extra sandbox")
@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        ("def f(): pass", "expected a function and its cases"),
        ({"function": "f(", "cases": [[[1], 2]]}, "expected a function and its cases"),
        ({"function": "f", "cases": []}, "expected a function and its cases"),
        ({"function": "f", "cases": [[1, 2]]}, "a case is a list of arguments and a result"),
        ({"function": "f", "cases": [[[math.nan], 2]]}, "must be plain JSON"),
    ],
)
def test_cases_that_are_none_are_refused(expected: Any, problem: str) -> None:
    with pytest.raises(RewardError, match=problem):
        make_reward("program")(episode("", expected))


@pytest.mark.skipif(bool(monty.missing()), reason="needs the extra sandbox")
def test_a_sandbox_that_does_not_start_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_reward("program")
    assert isinstance(program, Verifier)
    monkeypatch.setattr(monty.MontyPool, "checkout", _refuse)
    with pytest.raises(RewardError, match="'program' cannot be had: the interpreter could not be started: none left"):
        program(episode(str(ADD["solution"]), ADD))
    program.close()


def _refuse(self: Any, **options: Any) -> Any:
    raise OSError("none left")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("```\na\n```\n```py\nb\n  c\n```", "b\n  c"),
        ("see\n```python\na", "a"),
        ("```\n```", ""),
        ("```\na\n```\n```\nb", "b"),
    ],
)
def test_the_last_fenced_block_is_the_code(text: str, code: str) -> None:
    assert code_of(text) == code


# ----------------------------------------------------------------------------------------------------------------- math
def test_math_is_compared_by_meaning_and_stopped() -> None:
    pytest.importorskip("math_verify")
    verifier = make_reward({"name": "math", "timeout": 1.0})
    assert isinstance(verifier, Verifier)
    right = [
        ("The answer is $\\frac12$.", "0.5"),
        ("1000", "1e3"),
        ("$1000$", "1e3"),
        ("so " * 10_000 + "$5$", "5"),
        ("$x=3$", "3"),
        ("So \\boxed{\\sqrt{8}}", "2\\sqrt{2}"),
        ("$\\{2,1\\}$", "\\{1, 2\\}"),
        ("2x+1", "$1+2x$"),
        ("b", ["a", "b"]),
    ]
    wrong = [
        ("$\\sqrt{2}$", "2"),
        ("", "2"),
        ("x", "y"),
        ("nan", "2"),
        ("$9^{9^{9^{9^{9}}}}$", "3"),  # a tower that takes for ever
        ("2", "3"),
    ]
    try:
        assert [verifier(episode(a, e)) for a, e in right] == [1.0] * len(right)
        assert [verifier(episode(a, e)) for a, e in wrong] == [0.0] * len(wrong)
        with pytest.raises(RewardError, match="cannot read what is expected"):
            verifier(episode("2", "$$"))
        with pytest.raises(RewardError, match="cannot read what is expected"):
            verifier(episode("$2$", ["3", "$$"]))
    finally:
        verifier.close()


def test_without_math_verify_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'toolstep\[math\]'"):
        make_reward("math")
