"""benchmarks/learn.py: what each fault of the ablations changes, and what a run logs."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from toolstep.agents import LLMAgent, SamplingParams
from toolstep.rollout import RolloutResult
from toolstep.rollout.generator import RolloutGenerator

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/<name>.py by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture(scope="module")
def played() -> tuple[RolloutResult, LLMAgent, list[dict[str, Any]]]:
    """A rollout of tiny-sft on Calculator level 2, with calls and their results."""
    agent = LLMAgent.load("tiny-sft", device="cpu", sampling=SamplingParams(max_new_tokens=64))
    envs: Any = gym.make_vec("toolstep/Calculator-v0", num_envs=8, level=2, split="train", **agent.env_kwargs)
    result = RolloutGenerator(agent, envs, 4, seed=0)([3, 4, 5, 6])
    schemas = gym.make("toolstep/Calculator-v0", level=2, disable_env_checker=True)
    schemas.reset(seed=0)
    found = schemas.unwrapped.schemas  # type: ignore[attr-defined]
    schemas.close()
    envs.close()
    return result, agent, found


def test_a_mask_one_place_off_loses_the_first_id_of_a_turn_and_gains_the_one_behind_it(
    modules: Any, played: Any
) -> None:
    result, agent, _ = played
    right, off = result.batch, modules("ablations").mask_one_off(result, agent)
    assert np.array_equal(off.input_ids, right.input_ids)
    for b, n in enumerate(right.lengths):
        expected = np.concatenate([[False], right.action_mask[b, : n - 1]])
        assert np.array_equal(off.action_mask[b, :n], expected)
        assert np.allclose(off.advantages[b, 1:n], right.advantages[b, : n - 1])
    assert not np.array_equal(off.action_mask, right.action_mask)


def test_without_the_stop_token_the_mask_has_one_id_less_a_finished_turn(modules: Any, played: Any) -> None:
    result, agent, _ = played
    right, less = result.batch, modules("ablations").stop_unmasked(result, agent)
    lost = right.action_mask & ~less.action_mask
    assert not (less.action_mask & ~right.action_mask).any()
    assert set(right.input_ids[lost].tolist()) == set(agent.stop_ids)
    assert lost.sum() >= len(right.lengths)
    assert not less.advantages[~less.action_mask].any()


def test_re_tokenised_observations_are_the_exact_ones_where_nothing_unusual_was_sampled(
    modules: Any, played: Any
) -> None:
    result, agent, schemas = played
    damage = modules("ablations").Retokenised(schemas, {})
    again = damage(result, agent)
    assert damage.seen["same"] > 10
    same = [b for b, n in enumerate(result.batch.lengths) if again.lengths[b] == n]
    width = min(again.input_ids.shape[1], result.batch.input_ids.shape[1])
    assert sum(np.array_equal(again.input_ids[b, :width], result.batch.input_ids[b, :width]) for b in same) >= len(
        same
    ) - damage.seen.get("other", 0)
    for b in same:
        if np.array_equal(again.input_ids[b, :width], result.batch.input_ids[b, :width]):
            assert np.array_equal(again.action_mask[b, :width], result.batch.action_mask[b, :width])
            assert np.array_equal(again.advantages[b, :width], result.batch.advantages[b, :width])


@pytest.mark.parametrize("kind", ["exact", "mask one place off"])
def test_a_run_logs_each_iteration_and_ends_with_an_evaluation(modules: Any, tmp_path: Path, kind: str) -> None:
    learn = modules("learn")
    setting = replace(learn.TINY, episodes=48, groups=4, group_size=4, eval_episodes=16, eval_every=2)
    path = tmp_path / "tiny-exact-0.jsonl"
    success = learn.run(setting, 0, kind, path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["episodes"] for line in lines] == [0, 16, 32, 48]
    assert [("eval/success" in line) for line in lines] == [True, False, True, True]
    assert lines[-1]["eval/success"] == success
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)
    assert all(0 <= line["reward"] <= 1 for line in lines[1:])
    ratios = [line["first_ratio_max"] for line in lines[1:] if not line["skipped"]]
    assert ratios
    assert all((abs(ratio - 1) <= 1e-4) == (kind == "exact") for ratio in ratios)


def test_a_run_ends_when_its_minutes_are_over(modules: Any, tmp_path: Path) -> None:
    learn = modules("learn")
    setting = replace(learn.TINY, minutes=0.0, groups=2, group_size=2, eval_episodes=4, eval_every=5)
    path = tmp_path / "tiny-exact-0.jsonl"
    learn.run(setting, 0, "exact", path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["episodes"] for line in lines] == [0, 4]
    assert "eval/success" in lines[-1]


def test_the_table_has_a_line_a_kind_with_mean_and_spread(
    modules: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, last in ((0, 0.9), (1, 1.0)):
        lines = [
            {"seconds": 1.0, "episodes": 0, "eval/success": 0.4},
            {"seconds": 30.0, "episodes": 64},
            {"seconds": 60.0, "episodes": 128, "eval/success": last},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"tiny-sft-exact-{seed}.jsonl").write_text(text)
    modules("learn_plot").plot(tmp_path)
    assert "| tiny-sft-exact | 2 | 0.400 +- 0.000 | 0.950 +- 0.050 | 1.0 | 128 |" in capsys.readouterr().out
