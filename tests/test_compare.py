"""Two evaluations against each other: the statistics of pairs, what is told, and what can't be compared."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli_commands import invoke, ok
from test_evaluate_summary import episode

from toolstep.rollout import storage
from toolstep.rollout.compare.comparison import compare
from toolstep.rollout.compare.paired import EXACT, FLIPPED, Outcomes, mcnemar, newcombe
from toolstep.rollout.compare.runs import EvalRun, IncomparableRuns, load_run


def sides(both: int, first: int, second: int, neither: int) -> tuple[list[bool], list[bool]]:
    """Successes of both runs out of a table of pairs."""
    a = [True] * (both + first) + [False] * (second + neither)
    b = [True] * both + [False] * first + [True] * second + [False] * neither
    return a, b


# ------------------------------------------------------------------------------------------------ statistics of pairs
@pytest.mark.parametrize(
    ("table", "low", "high"),
    # Newcombe 1998 (Statistics in Medicine 17, 2635-2650), method 10.
    [((36, 2, 12, 0), 0.0569, 0.3404), ((20, 2, 12, 16), 0.0618, 0.3242), ((54, 0, 0, 0), -0.0664, 0.0664)],
)
def test_newcombe_interval_of_published_examples(table: tuple[int, ...], low: float, high: float) -> None:
    found = newcombe(*sides(*table))
    assert found is not None
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


pairs_of_successes = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


@given(pairs_of_successes)
def test_newcombe_interval_holds_the_difference_and_mirrors(pairs: list[tuple[bool, bool]]) -> None:
    a, b = map(list, zip(*pairs, strict=True))
    found, mirrored = newcombe(a, b), newcombe(b, a)
    assert found is not None
    assert mirrored is not None
    difference = (sum(b) - sum(a)) / len(pairs)
    assert -1 <= found.low <= difference + 1e-12
    assert difference - 1e-12 <= found.high <= 1
    assert (-mirrored.high, -mirrored.low) == pytest.approx((found.low, found.high))


def test_newcombe_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(500):
        ease = rng.random(60)
        a, b = (rng.random(60) < ease * 0.7).tolist(), (rng.random(60) < ease * 0.9).tolist()
        found = newcombe(a, b)
        assert found is not None
        covered += found.low <= 0.1 <= found.high
    assert covered / 500 > 0.92


@pytest.mark.parametrize(("losses", "wins"), [(0, 0), (0, 1), (3, 3), (2, 9), (15, 0)])
def test_mcnemar_is_the_binomial_test_of_the_pairs_that_differ(losses: int, wins: int) -> None:
    a, b = sides(7, losses, wins, 5)
    n, k = losses + wins, min(losses, wins)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    found = mcnemar(a, b, range(len(a)))
    assert found.name == EXACT
    assert found.p == pytest.approx(min(1.0, 2 * tail if wins != losses else 1.0))


def test_flipping_signs_of_tasks_with_one_sample_is_mcnemar() -> None:
    a, b = sides(4, 2, 9, 3)
    one_more = (*range(len(a)), "x", "x")  # a task of two samples, in which nobody is better
    found = mcnemar([*a, True, False], [*b, False, True], one_more)
    assert found.name == FLIPPED
    assert found.p == pytest.approx(mcnemar(a, b, range(len(a))).p)


def test_samples_of_a_task_are_not_independent_evidence() -> None:
    a, b = [False] * 40, [True] * 40
    assert mcnemar(a, b, range(40)).p < 1e-9
    assert mcnemar(a, b, np.repeat(np.arange(4), 10).tolist()).p == pytest.approx(2 / 2**4)
    assert mcnemar(a, b, [0] * 40).p == 1.0


def test_sides_swap() -> None:
    a, b = sides(4, 2, 9, 3)
    assert mcnemar(a, b, range(18)).p == mcnemar(b, a, range(18)).p
    assert (Outcomes.of(a, b), Outcomes.of(b, a)) == (Outcomes(9, 2, 7), Outcomes(2, 9, 7))


# ---------------------------------------------------------------------------------------------------------- comparison
CONFIG: Mapping[str, Any] = {
    "command": "eval",
    "env": "x/Y-v0",
    "agent": "a",
    "shots": 0,
    "episodes": 3,
    "task_seeds": [0, 1, 2],
}


def run(scores: Mapping[tuple[int, int], float], **changes: Any) -> EvalRun:
    """A run with an episode of that score for each (seed, sample)."""
    config = {**CONFIG, "episodes": len(scores), **changes}
    made = {
        key: replace(
            episode(score, score=score, success=float(score == 1), seed=key[0], tags={"level": str(key[0] % 2)}),
            sample_index=key[1],
            task_id=f"t{key[0]}",
        )
        for key, score in scores.items()
    }
    return EvalRun(Path(config["agent"]), config, made)


def test_pairs_are_told_by_success_and_by_score() -> None:
    a = run({(0, 0): 1.0, (1, 0): 0.0, (2, 0): 0.2})
    b = run({(2, 0): 0.4, (1, 0): 1.0, (0, 0): 1.0}, agent="b", temperature=1.0)
    found = compare(a, b)
    assert (found.first, found.second, found.agents, found.env) == ("a", "b", ("a", "b"), "x/Y-v0")
    assert (found.tasks, found.overall.pairs) == (3, 3)
    assert found.overall.success_outcomes == Outcomes(1, 0, 2)
    assert found.overall.score_outcomes == Outcomes(2, 0, 1)
    success, score = found.overall.success, found.overall.score
    assert (success.first, success.second, success.difference) == pytest.approx((1 / 3, 2 / 3, 1 / 3))
    assert success.interval == newcombe([True, False, False], [True, True, False])
    assert (score.first, score.second, score.difference) == pytest.approx((0.4, 0.8, 0.4))
    assert found.won == [("t1", 1, 0)]
    assert found.lost == []
    assert found.tags["level"]["1"].success.difference == 1.0
    assert found.tags["level"]["0"].success_outcomes == Outcomes(0, 0, 2)
    assert [str(d) for d in found.differ] == ['agent: "a" and "b"', "temperature: null and 1.0"]
    json.dumps(found.to_dict(), allow_nan=False)


def test_swapped_runs_have_the_opposite_to_say() -> None:
    rng = np.random.default_rng(0)
    keys = [(seed, sample) for seed in range(12) for sample in range(2)]
    a, b = (run({k: float(rng.integers(2)) for k in keys}) for _ in range(2))
    forth, back = compare(a, b), compare(b, a)
    assert forth.overall.success.difference == -back.overall.success.difference
    assert forth.test == back.test
    assert forth.test.name == FLIPPED
    assert (forth.won, forth.lost) == (back.lost, back.won)
    there, here = forth.overall.success.interval, back.overall.success.interval
    assert there is not None
    assert here is not None
    assert (there.low, there.high) == pytest.approx((-here.high, -here.low), abs=0.03)


def test_samples_of_a_task_do_not_narrow_the_intervals() -> None:
    rng = np.random.default_rng(1)
    scores = [(float(x), float(y)) for x, y in rng.integers(0, 2, size=(12, 2))]
    once = [run({(seed, 0): pair[side] for seed, pair in enumerate(scores)}) for side in (0, 1)]
    often = [run({(seed, i): pair[side] for seed, pair in enumerate(scores) for i in range(6)}) for side in (0, 1)]
    alone, repeated = compare(*once).overall.score.interval, compare(*often).overall
    assert alone is not None
    for found in (repeated.score.interval, repeated.success.interval):
        assert found is not None
        assert (found.low, found.high) == pytest.approx((alone.low, alone.high))


def test_an_error_is_no_success_and_is_counted() -> None:
    a = run({(0, 0): 1.0, (1, 0): 1.0})
    b = run({(0, 0): 1.0, (1, 0): 1.0})
    broken = replace(b.episodes[1, 0], status="env_error", task_id="", tags={})
    found = compare(a, EvalRun(b.path, b.config, {**b.episodes, (1, 0): broken}))
    assert found.errors == (0, 1)
    assert found.overall.success_outcomes == Outcomes(0, 1, 1)
    assert found.overall.score.second == 0.5
    assert set(found.tags["level"]) == {"0", "1"}


# ------------------------------------------------------------------------------------------------ what can't be paired
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"env": "x/Z-v0"}, 'env: "x/Y-v0" and "x/Z-v0"'),
        ({"shots": 5}, "shots: 0 and 5"),
        ({"limits": {"max_turns": 3}}, "limits.max_turns: null and 3"),
        ({"files": {"tasks": "ab"}}, 'files.tasks: null and "ab"'),
        ({"seed": 1, "task_seeds": [3, 4]}, "task_seeds: [0, 1, 2] and [3, 4]; seed: null and 1"),
    ],
)
def test_runs_of_other_tasks_are_refused_by_what_differs(changes: dict[str, Any], told: str) -> None:
    scores = {(0, 0): 1.0, (1, 0): 1.0}
    with pytest.raises(IncomparableRuns, match="a and a are not comparable: ") as error:
        compare(run(scores), run(scores, **changes))
    assert told in str(error.value)


def test_what_belongs_to_the_agent_may_differ() -> None:
    scores = {(0, 0): 1.0, (1, 0): 1.0}
    changes = {
        "model": {"weights": "1"},
        "versions": {"torch": "3"},
        "limits": {"max_context": 7},
        "num_envs": 3,
        "template": {"sha256": "0"},
    }
    found = compare(run(scores), run(scores, **changes))
    assert {d.key for d in found.differ} == {"model.weights", "versions.torch", "limits.max_context", "template.sha256"}


def test_a_key_that_is_meant_to_differ_can_be_named() -> None:
    scores = {(0, 0): 1.0, (1, 0): 1.0}
    a, b = run(scores), run(scores, shots=5)
    assert [d.key for d in compare(a, b, except_=["shots"]).differ] == ["shots"]
    with pytest.raises(ValueError, match=r"--except shot: config\.json has no such key; it has agent, .*shots"):
        compare(a, b, except_=["shot"])
    turns = {"max_turns": 4, "limits": {"max_turns": 4}}
    c = run(scores, **turns)
    assert compare(run(scores, max_turns=2, limits={"max_turns": 2}), c, except_=["max_turns"]).overall.pairs == 2


def test_the_same_file_may_lie_elsewhere() -> None:
    scores = {(0, 0): 1.0, (1, 0): 1.0}
    a = run(scores, tasks="a/t.jsonl", env="t.jsonl", files={"tasks": "ab"})
    b = run(scores, tasks="b/u.jsonl", env="u.jsonl", files={"tasks": "ab"})
    assert compare(a, b).differ == []


def test_an_unfinished_run_is_refused_unless_told() -> None:
    a = run({(0, 0): 1.0, (1, 0): 0.0, (2, 0): 1.0})
    b = run({(0, 0): 1.0, (1, 0): 1.0}, episodes=3)
    with pytest.raises(IncomparableRuns, match=r"a has 2 of 3 episodes \(go on with `toolstep eval --resume`\)"):
        compare(a, b)
    assert compare(a, b, except_=["episodes"]).overall.pairs == 2


def test_tasks_that_changed_behind_the_same_seeds_are_noticed() -> None:
    a = run({(0, 0): 1.0, (1, 0): 0.0})
    other = replace(a.episodes[1, 0], task_id="t1b")
    with pytest.raises(IncomparableRuns, match="the task of seed 1 is 't1' and 't1b'"):
        compare(a, EvalRun(a.path, a.config, {**a.episodes, (1, 0): other}))
    other = replace(a.episodes[1, 0], messages=[{"role": "user", "content": "?"}])
    with pytest.raises(IncomparableRuns, match=r"task 't1' \(seed 1\) begins with other messages"):
        compare(a, EvalRun(a.path, a.config, {**a.episodes, (1, 0): other}))
    with pytest.raises(IncomparableRuns, match="no \\(task, sample\\) in common"):
        compare(a, run({(5, 0): 1.0, (6, 0): 1.0}))


# ------------------------------------------------------------------------------------------------------------- command
@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    parent = tmp_path_factory.mktemp("compare")
    for agent in ("random", "oracle"):
        out = str(parent / agent)
        ok("eval", "calculator", "--agent", agent, "--level", "1", "--episodes", "8", "--max-turns", "3", "--out", out)
    return parent / "random", parent / "oracle"


def test_command_shows_the_comparison(folders: tuple[Path, Path]) -> None:
    a, b = map(str, folders)
    shown = ok("compare", a, b)
    assert "8 pairs of 8 tasks" in shown
    assert "success by level" in shown
    assert "success: B wins 8, loses 0, ties 0; p = 0.00781 (McNemar, exact)" in shown
    assert "and 3 more; --json names all" in shown
    data = json.loads(ok("compare", a, b, "--json"))
    assert data["test"] == {"name": EXACT, "p": 2 / 2**8}
    assert len(data["won"]) == 8
    assert data["agents"] == ["random", "oracle"]
    assert "ties 8; p = 1 (" in ok("compare", a, a)


def test_command_says_why_it_cannot(folders: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = folders
    ok("eval", "calculator", "--agent", "oracle", "--level", "2", "--episodes", "8", "--out", str(tmp_path / "c"))
    result = invoke("compare", str(a), str(tmp_path / "c"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "are not comparable: max_turns: 3 and null; level: 1 and 2; limits.max_turns: 3 and 8" in result.stderr
    result = invoke("compare", str(a), str(tmp_path))
    assert "has no config.json: give a folder that `toolstep eval --out` wrote" in result.stderr
    shutil.copytree(b, tmp_path / "b")
    (tmp_path / "b" / "episodes.jsonl").write_text("{}\n")
    result = invoke("compare", str(a), str(tmp_path / "b"))
    assert result.exit_code == 2
    assert "episodes.jsonl, line 1: no trajectory" in result.stderr
    (tmp_path / "b" / "config.json").write_text('{"command": "rollout"}')
    assert "holds a run of `toolstep rollout`" in invoke("compare", str(tmp_path / "b"), str(a)).stderr


def test_order_of_the_log_does_not_matter(folders: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = folders
    shutil.copytree(b, tmp_path / "b")
    storage.write_episodes(tmp_path / "b" / "episodes.jsonl", storage.read_episodes(b / "episodes.jsonl")[::-1])
    first, second = compare(load_run(a), load_run(b)), compare(load_run(a), load_run(tmp_path / "b"))
    assert replace(second, second=first.second) == first
