"""TRL 1.16: what a `rollout_func` returns and asks for, and its GRPOTrainer over a vector env where it is installed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from export_cases import agent, failed, model, segmented, solved, talk_envs, talked, talker, tokenizer
from test_rollout_types import make

from toolstep.rollout import group_specs
from toolstep.rollout.export import ExportError, env_reward, rollout_func, task_rows, to_trl

STOP = tokenizer().eos_token_id


def test_lists_have_one_entry_a_trajectory_and_one_length_within_it():
    out = to_trl(talked())
    for t, prompt, completion, mask, logprobs in zip(
        talked(), out["prompt_ids"], out["completion_ids"], out["env_mask"], out["logprobs"], strict=True
    ):
        assert len(completion) == len(mask) == len(logprobs)
        assert prompt + completion == t.token_ids[: t.prompt_length + len(completion)].tolist()
        assert sum(mask) == t.sampled
        assert all(p == 0.0 for p, m in zip(logprobs, mask) if not m)
    assert out["env_reward"] == [t.total_reward for t in talked()]
    assert json.loads(json.dumps(out)) == out
    assert to_trl(solved())["logprobs"] is None


def test_completion_ends_with_a_stop_token_just_where_its_last_turn_was_not_cut():
    """That is how TRL tells what was truncated; the template's close of a cut turn would hide it."""
    out = to_trl(talked())
    ends = [ids[-1] == STOP for ids in out["completion_ids"]]
    assert ends == [t.metrics["truncated_responses"] == 0 for t in talked()]
    assert len(set(ends)) == 2


def test_failed_rows_are_masked_and_have_no_reward():
    broken = make([], prompt=(), status="env_error", terminated=False, truncated=True)
    out = to_trl([failed(talked()[0]), broken, make([((), (), 0.5)])], pad_id=7)
    assert out["env_reward"] == [None, None, 0.5]
    assert out["env_status"] == ["env_error", "env_error", "ok"]
    assert out["env_success"] == [False, False, False]
    assert [sum(mask) for mask in out["env_mask"]] == [0, 0, 0]
    assert not any(out["logprobs"][0])
    assert out["completion_ids"][1:] == [[7], [7]]  # TRL looks at the last id of each
    assert out["prompt_ids"][1] == [7]
    assert env_reward(prompts=[], completions=[], **out) == [None, None, 0.5]


def test_episodes_of_several_contexts_are_refused_before_and_after_they_are_played():
    with pytest.raises(ExportError, match="TRL takes one row an episode"):
        to_trl(segmented())
    envs = talk_envs(1, history="rerender", **agent().env_kwargs)
    with pytest.raises(ExportError, match="history='keep' or 'error', not 'rerender'"):
        rollout_func(envs, agent())


# --------------------------------------------------------------------------------------- rollout_func, without TRL


def trainer(learner: Any, *, step: int = 0, process: int = 0, temperature: float = 1.0) -> Any:
    return SimpleNamespace(
        model=learner,
        state=SimpleNamespace(global_step=step),
        args=SimpleNamespace(temperature=temperature),
        accelerator=SimpleNamespace(process_index=process, unwrap_model=lambda m: m),
        processing_class=tokenizer(),
    )


def prompts(num_tasks: int, samples: int) -> list[Any]:
    envs = talk_envs(2, **agent().env_kwargs)
    return [row["prompt"] for row in task_rows(envs, num_tasks, seed=1) for _ in range(samples)]


def test_dataset_names_the_tasks_that_group_specs_would_choose():
    envs = talk_envs(2, **agent().env_kwargs)
    rows = task_rows(envs, 3, seed=1)
    seeds = [spec.seed for spec in group_specs(3, 1, seed=1)]
    assert [row["task_seed"] for row in rows] == seeds
    for row in rows:
        assert [m["role"] for m in row["prompt"]] == ["system", "user"]
        assert {m["task_seed"] for m in row["prompt"]} == {row["task_seed"]}
    # What is played under that seed is what the prompt shows.
    _, infos = envs.reset(seed=[rows[0]["task_seed"], rows[2]["task_seed"]])
    for row, shown in zip((rows[0], rows[2]), infos["new_messages"]):
        assert [m["content"] for m in row["prompt"]] == [m["content"] for m in shown]


def test_each_prompt_gets_its_own_task_and_its_repetitions_differ():
    player = agent()
    play = rollout_func(talk_envs(5, **player.env_kwargs), player)
    asked = prompts(3, 4)
    out = play(asked, trainer(model()))
    for n, (prompt, ids) in enumerate(zip(asked, out["prompt_ids"], strict=True)):
        assert prompt[1]["content"] in tokenizer().decode(ids)
        assert ids == out["prompt_ids"][n - n % 4]
    assert len({tuple(ids) for ids in out["completion_ids"][:4]}) > 1


def test_samples_are_new_at_each_step_call_and_process_and_the_same_in_the_same_run():
    player, asked = agent(), prompts(2, 2)
    envs = talk_envs(4, **player.env_kwargs)

    def first(step: int = 0, process: int = 0, seed: int = 0, calls: int = 1) -> Any:
        play = rollout_func(envs, player, seed=seed)
        for _ in range(calls):
            out = play(asked, trainer(model(), step=step, process=process))
        return out["completion_ids"]

    assert first() == first()
    different = [first(), first(step=1), first(process=1), first(seed=1), first(calls=2)]
    assert len({json.dumps(ids) for ids in different}) == 5


def test_weights_are_those_of_the_trainer_at_each_call():
    import torch

    learner = talker()
    shared, own = agent(learner), agent(talker())
    plays = [rollout_func(talk_envs(4, **a.env_kwargs), a) for a in (shared, own)]
    with torch.no_grad():  # an optimiser's step
        learner.lm_head.weight[STOP] *= 3
    a, b = (play(prompts(2, 2), trainer(learner)) for play in plays)
    assert (shared.weight_version, own.weight_version) == (1, 1)
    assert a["completion_ids"] == b["completion_ids"]
    assert own.model is not learner
    np.testing.assert_allclose(np.concatenate(a["logprobs"]), np.concatenate(b["logprobs"]), atol=1e-5)


def test_prompt_without_a_task_and_another_temperature_are_refused():
    player = agent()
    play = rollout_func(talk_envs(2, **player.env_kwargs), player)
    for bad in ("What is 2 + 2?", [{"role": "user", "content": "hi"}], [], [{"task_seed": None}]):
        with pytest.raises(ExportError, match=r"prompt 0 names no task: make the train dataset of task_rows"):
            play([bad], trainer(model()))
    with pytest.raises(ExportError, match=r"samples at temperature 1, but GRPOConfig.temperature is 0.7"):
        play(prompts(1, 2), trainer(model(), temperature=0.7))
    assert player.weight_version == 0


# ------------------------------------------------------------------------------------------------ the real trainer


@pytest.fixture(scope="module")
def trl() -> Any:
    return pytest.importorskip("trl")


@pytest.fixture
def train(trl, tmp_path, monkeypatch) -> Any:
    """Trains a few steps; returns the trainer and what its loss was given at each step."""
    from datasets import Dataset

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def run(learner: Any, player: Any, envs: Any, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
        import torch

        seen = []

        class Recording(trl.GRPOTrainer):
            def _compute_loss(self, model: Any, inputs: Any) -> Any:
                ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
                attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
                with torch.no_grad():
                    now, _, _ = self._get_per_token_logps_and_entropies(
                        model, ids, attention, inputs["completion_ids"].shape[1]
                    )
                seen.append({**inputs, "now": now})
                return super()._compute_loss(model, inputs)

        args = trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
            **options,
        )
        made = Recording(
            model=learner,
            reward_funcs=env_reward,
            args=args,
            train_dataset=Dataset.from_list(task_rows(envs, 4, seed=1)),
            processing_class=tokenizer(),
            rollout_func=rollout_func(envs, player),
        )
        made.train()
        return made, seen

    return run


def test_trainer_scores_the_sampled_ids_as_the_sampler_did_at_every_step(train):
    """Three steps with moving weights: caches are dropped, masks and log-probs line up, padding is eos."""
    import torch

    learner = talker()
    player = agent(learner)
    made, seen = train(
        learner, player, talk_envs(3, **player.env_kwargs), max_steps=3, learning_rate=1e-2, max_grad_norm=100.0
    )
    assert player.weight_version == len(seen) == 3
    for step in seen:
        mask = (step["completion_mask"] * step["tool_mask"]).bool()
        assert 0 < mask.sum() < step["completion_mask"].sum()  # there are user messages between the turns
        torch.testing.assert_close(step["now"][mask], step["sampling_per_token_logps"][mask], atol=1e-4, rtol=0)
        off = (step["now"].roll(1, dims=1) - step["sampling_per_token_logps"])[mask]
        assert off.abs().mean() > 0.1
        assert (step["completion_ids"][mask] == STOP).any()
        assert len({tuple(ids.tolist()) for ids in step["prompt_ids"]}) == 1  # one group
    rewards = [entry["rewards/env_reward/mean"] for entry in made.state.log_history if "reward" in entry]
    assert len(rewards) == 3
    assert any(step["advantages"].any() for step in seen)


def test_failed_rows_move_nothing_and_are_in_no_baseline(train):
    def fails_sometimes(record: Any) -> float:
        length = len(record.messages[-1].content)
        if length % 3 == 0:
            raise RuntimeError("the grader is down")
        return float(length % 2)

    learner = talker()
    player = agent(learner)
    envs = talk_envs(4, reward=fails_sometimes, **player.env_kwargs)
    _, seen = train(learner, player, envs, max_steps=4, learning_rate=0.0)
    broken = [((s["completion_mask"] * s["tool_mask"]).sum(1) == 0).numpy() for s in seen]
    assert 0 < np.concatenate(broken).sum() < 4 * len(seen)
    for step, dead in zip(seen, broken):
        advantages = step["advantages"].numpy()
        assert not advantages[dead].any()
        assert advantages[~dead].sum() == pytest.approx(0.0, abs=1e-5)  # relative to one another alone


def test_example_learns(trl, tmp_path, monkeypatch):
    import runpy
    from pathlib import Path

    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(Path(__file__).resolve().parent.parent / "examples" / "trl_grpo.py"))
    rewards = example["train"](steps=9)
    assert len(rewards) == 9
    assert max(rewards[-2:]) > 0.3 > 0.1 > rewards[0]  # the share of digits of an untrained one is 10 in 258
