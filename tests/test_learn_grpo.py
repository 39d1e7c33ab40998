"""GRPO: what is reinforced, that micro-batches and resumed runs change nothing, and that a wrong mask is found out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_setup import add, even, make_agent, make_envs, same, weights

from toolstep.rollout import OBJECTIVES, RolloutBatch
from toolstep.rollout.learn import GRPO, Training
from toolstep.rollout.learn.grpo import SamplerMismatch
from toolstep.rollout.learn.log import read_log

OPTIONS: dict[str, Any] = {"groups": 2, "group_size": 4, "reward": even}


def learner(training: Training | None = None, *, agent: Any = None, tools: bool = False, **options: Any) -> GRPO:
    agent = agent or make_agent()
    envs = make_envs(agent, tools=[add] if tools else None)
    return GRPO(agent, envs, training or Training(learning_rate=1e-2), **{**OPTIONS, **options})


def history(made: GRPO, episodes: int) -> list[dict[str, float]]:
    seen: list[dict[str, float]] = []
    made.learn(episodes, callbacks=[lambda _, metrics: seen.append(dict(metrics))])
    return seen


@pytest.mark.parametrize("objective", [*sorted(OBJECTIVES.keys() - {"dr_grpo"}), "constant"])
def test_what_earns_more_than_its_group_becomes_more_likely(objective: str) -> None:
    chosen: Any = objective
    if objective == "constant":
        chosen = replace(OBJECTIVES["dr_grpo"], length=8)
    seen = history(learner(objective=chosen, groups=4, group_size=8), 32 * 12)
    before = np.mean([m["reward"] for m in seen[:2]])
    after = np.mean([m["reward"] for m in seen[-2:]])
    assert after > before + 0.15


def test_callbacks_and_whoever_comes_next_sample_from_what_was_trained() -> None:
    agent = make_agent()
    off: list[float] = []

    def told(*_: Any) -> float:
        agent.start(0, 1)
        (turn,) = agent.act([0], [np.arange(5, 25)])
        ids = torch.tensor([[*range(5, 25), *turn.token_ids]])
        with torch.no_grad():
            full = agent.model(input_ids=ids, use_cache=False).logits[0, 19:-1].log_softmax(-1)
        plain = full.gather(-1, ids[0, 20:, None])[:, 0].numpy()
        off.append(float(np.abs(plain - turn.logprobs).max()))
        agent.release(0)
        return 0.0  # not False: the training goes on

    made = learner(agent=agent)
    made.learn(24, callbacks=[told])
    told()
    assert len(off) == 4
    assert max(off) < 1e-4
    learner(agent=agent, seed=2).learn(8)  # its first ratios are checked by itself


def test_the_first_step_of_a_fresh_rollout_has_ratio_one_and_later_ones_move() -> None:
    seen = history(learner(rollout_interval=3, tools=True), 16)
    for metrics in seen:
        assert metrics["first_ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert metrics["first_ratio_max"] == pytest.approx(1, abs=1e-4)
        assert metrics["ratio_max"] > 1.0005
        assert metrics["approx_kl"] > 0


def test_size_of_micro_batches_does_not_change_the_step() -> None:
    runs = []
    for tokens in (1, 200, 100_000):
        made = learner(Training(learning_rate=1e-3, micro_tokens=tokens), tools=True)
        seen = history(made, 8)
        runs.append((weights(made), seen[0]))
    for own, metrics in runs[1:]:
        for name, expected in runs[0][0].items():
            assert np.allclose(own[name], expected, atol=2e-5), name
        for name in ("loss", "grad_norm", "entropy", "policy_loss"):
            assert metrics[name] == pytest.approx(runs[0][1][name], rel=1e-3, abs=1e-6)


def test_the_step_is_that_of_the_loss_written_out() -> None:
    """One step of SGD-like size against autograd over full logits, rows one by one."""
    made = learner(objective="grpo", tools=True)
    result, _ = made.runner([3, 4])
    batch = result.batch
    model = made.model
    total = torch.zeros(())
    rows = int(batch.action_mask[:, 1:].any(1).sum())
    for b in range(len(batch.lengths)):
        n = int(batch.lengths[b])
        ids = torch.from_numpy(batch.input_ids[b : b + 1, :n])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].double()
        logp = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]
        mask = torch.from_numpy(batch.action_mask[b, 1:n])
        if mask.any():
            advantage = torch.from_numpy(batch.advantages[b, 1:n])
            total = total - ((logp - logp.detach()).exp() * advantage)[mask].mean() / rows
    expected = torch.autograd.grad(total, made.optimizer.parameters)
    found: list[torch.Tensor] = []
    clip = torch.nn.utils.clip_grad_norm_

    def spy(parameters: Any, limit: float) -> Any:
        parameters = list(parameters)
        found.extend(p.grad.clone() for p in parameters)
        return clip(parameters, limit)

    torch.nn.utils.clip_grad_norm_ = spy  # type: ignore[assignment]
    try:
        metrics = made.update(result, True, 1.0)
    finally:
        torch.nn.utils.clip_grad_norm_ = clip
    for name, own, want in zip(made.optimizer.names, found, expected):
        assert torch.allclose(own, want.float(), atol=1e-5), name
    assert metrics["loss"] == pytest.approx(float(total.detach()), abs=1e-5)


def test_groups_of_equal_rewards_teach_nothing_and_move_no_weight() -> None:
    made = learner(reward=lambda groups: np.ones((len(groups), 4)))
    before = weights(made)
    (metrics,) = history(made, 8)
    assert metrics["skipped"] == 1.0
    assert metrics["zero_variance"] == 1.0
    assert same(before, weights(made))


def test_a_moving_reference_stays_where_no_step_was_taken() -> None:
    made = learner(reference="ema", ema_decay=0.5, reward=lambda groups: np.ones((len(groups), 4)))
    assert made.reference is not None
    with torch.no_grad():
        made.model.lm_head.weight.mul_(1.1)  # so that a move would show
    made.agent.update_weights()
    before = {name: w.clone() for name, w in made.reference.weights().items()}
    (metrics,) = history(made, 8)
    assert metrics["skipped"] == 1.0
    assert all(torch.equal(before[name], w) for name, w in made.reference.weights().items())


def test_with_a_penalty_they_are_still_held_to_the_reference() -> None:
    objective = replace(OBJECTIVES["dapo"], kl_coef=0.1)
    made = learner(
        Training(learning_rate=1e-3),
        objective=objective,
        reference="frozen",
        reward=lambda groups: np.ones((len(groups), 4)),
    )
    with torch.no_grad():
        made.model.lm_head.weight.add_(torch.randn(made.model.lm_head.weight.shape) * 0.05)
    made.agent.update_weights()
    first, *_, last = history(made, 8 * 20)
    assert first["kl"] / 2 > last["kl"] > 0


@pytest.mark.parametrize("kind", ["frozen", "ema"])
def test_the_reference_stays_or_follows(kind: Any) -> None:
    made = learner(reference=kind, ema_decay=0.5)
    assert made.reference is not None
    before = {name: w.clone() for name, w in made.reference.weights().items()}
    history(made, 16)
    moved = [not torch.equal(before[name], w) for name, w in made.reference.weights().items()]
    assert all(moved) if kind == "ema" else not any(moved)


def test_a_mask_or_a_log_prob_in_the_wrong_place_is_found_out() -> None:
    made = learner(tools=True)
    result, _ = made.runner([3, 4])
    batch = result.batch
    mask = np.roll(batch.action_mask, -1, 1)
    moved = replace(
        batch,
        action_mask=mask,
        old_logprobs=np.roll(batch.old_logprobs, -1, 1),
        model_logprobs=np.roll(batch.model_logprobs, -1, 1),
        advantages=np.roll(batch.advantages, -1, 1),
        weight_versions=np.roll(batch.weight_versions, -1, 1),
    )
    with pytest.raises(SamplerMismatch, match=r"row \d+, id \d+ of the rollout: the learner's log-prob is"):
        made.update(replace(result, batch=moved), True, 1.0)


@pytest.mark.parametrize(
    ("ids", "by", "fine"), [(1, 5e-4, True), (3, 1.1e-4, True), (1, 0.02, False), (None, 2e-4, False)]
)
def test_the_rounding_of_a_few_ids_is_no_mismatch(ids: int | None, by: float, fine: bool) -> None:
    made = learner(tools=True)
    result, _ = made.runner([3, 4])
    told = result.batch.old_logprobs.copy()
    seen = (result.batch.advantages != 0) & result.batch.action_mask  # what the learner looks at
    row = int(np.flatnonzero(seen.any(1))[0])
    if ids is None:
        told[seen] -= by
    else:
        told[row, np.flatnonzero(seen[row])[:ids]] -= by
    assert (told != result.batch.old_logprobs).sum() == (ids or seen.sum())
    batch = replace(result.batch, old_logprobs=told)
    if fine:
        made.update(replace(result, batch=batch), True, 1.0)
        return
    with pytest.raises(SamplerMismatch, match=r"row \d+\b" if ids is None else rf"row {row}\b"):
        made.update(replace(result, batch=batch), True, 1.0)


def test_weights_that_the_agent_was_not_told_of_are_found_out() -> None:
    made = learner()
    result, _ = made.runner([3, 4])
    with torch.no_grad():
        made.model.lm_head.weight.mul_(1.5)
    with pytest.raises(SamplerMismatch):
        made.update(result, True, 1.0)


@pytest.mark.parametrize(
    "sampling",
    [{"top_p": 0.9}, {"top_k": 5}, {"temperature": 0.0}, {"min_p": 0.1}, {"frequency_penalty": 0.5}],
    ids=str,
)
def test_sampling_from_another_distribution_than_the_learners_is_refused(sampling: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="GRPO: the agent must sample from the model's whole distribution"):
        learner(agent=make_agent(**sampling))


def test_a_temperature_is_the_learners_too() -> None:
    seen = history(learner(agent=make_agent(temperature=0.7), tools=True), 8)
    assert seen[0]["first_ratio_max"] == pytest.approx(1, abs=1e-4)


def test_bf16_is_corrected_by_importance_sampling() -> None:
    agent = make_agent()
    agent.model.to(torch.bfloat16)
    agent.update_weights()
    (metrics,) = history(learner(agent=agent), 8)
    assert metrics["importance_cap"] == 2.0
    assert metrics["importance_mean"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("reference", [None, "ema"])
def test_a_resumed_run_is_the_run_that_was_not_interrupted_bit_for_bit(tmp_path: Path, reference: Any) -> None:
    path = tmp_path / "checkpoint.safetensors"
    objective = replace(OBJECTIVES["dapo"], kl_coef=0.05 if reference else 0.0)
    options = {"reference": reference, "objective": objective, "rollout_interval": 2, "tools": True}
    whole = learner(Training(learning_rate=1e-3), **options)
    expected = history(whole, 32)
    half = learner(Training(learning_rate=1e-3, save=path), **options)
    first = history(half, 16)
    agent = make_agent(seed=5)  # other weights: all must come out of the file
    envs = make_envs(agent, tools=[add])
    del options["tools"]
    going_on = GRPO.load(path, agent, envs, Training(learning_rate=1e-3), **{**OPTIONS, **options})
    assert (going_on.iteration, going_on.episodes) == (2, 16)
    last = history(going_on, 32)
    assert same(weights(whole), weights(going_on))
    clock = ("per_second", "share/")
    for a, b in zip(expected, [*first, *last], strict=True):
        assert {k: v for k, v in a.items() if not any(c in k for c in clock)} == {
            k: v for k, v in b.items() if not any(c in k for c in clock)
        }


def test_an_adapter_is_trained_alone_and_its_reference_is_the_model_without_it(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the extra `lora`")
    agent = make_agent()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    agent = make_agent(model=peft.get_peft_model(agent.model, config).eval())
    objective = replace(OBJECTIVES["dapo"], kl_coef=0.01)
    path = tmp_path / "c.safetensors"
    made = learner(Training(learning_rate=1e-2, save=path), agent=agent, objective=objective, reference="frozen")
    assert made.reference is not None
    assert not made.reference.weights()  # no copy
    before = weights(made)
    seen = history(made, 8 * 3)
    assert seen[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert seen[-1]["kl"] > 1e-6
    changed = {name for name, w in weights(made).items() if not np.array_equal(before[name], w)}
    assert changed
    assert all("lora_" in name for name in changed)
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        assert all("lora_" in name for name in file.keys())  # noqa: SIM118


def test_evaluations_are_greedy_and_leave_the_sampling_as_it_was(tmp_path: Path) -> None:
    agent = make_agent()
    training = Training(learning_rate=1e-2, log=tmp_path, eval_envs=make_envs(agent), eval_every=2, eval_episodes=4)
    made = learner(training, agent=agent)
    sampling = agent.sampling
    made.learn(8 * 3)
    assert agent.sampling == sampling
    lines = read_log(tmp_path / "metrics.jsonl")
    assert [line["iteration"] for line in lines if "eval/success" in line] == [0, 2, 3]


def test_a_callback_ends_the_training_and_the_checkpoint_is_written(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    made = learner(Training(learning_rate=1e-3, save=path, save_every=1000))
    made.learn(8 * 100, callbacks=[lambda own, _: own.iteration < 2])
    assert made.iteration == 2
    assert path.is_file()


def test_a_rollout_without_old_log_probs_is_refused() -> None:
    made = learner(tools=True)
    result, _ = made.runner([3, 4])
    blind = replace(result.batch, weight_versions=np.full_like(result.batch.weight_versions, -1))
    with pytest.raises(ValueError, match=r"RolloutBatch.weight_versions of row \d+, id \d+ is unknown"):
        made.update(replace(result, batch=blind), True, 1.0)


def test_a_rollout_of_failed_rows_alone_is_refused() -> None:
    made = learner()
    result, _ = made.runner([3, 4])
    failed = [replace(t, status="env_error") for t in result.trajectories]
    batch = RolloutBatch.from_trajectories(failed)
    with pytest.raises(ValueError, match="all 8 rows are masked"):
        made.update(replace(result, batch=batch), True, 1.0)


def test_gradients_that_are_not_finite_are_named_and_change_nothing() -> None:
    made = learner(objective=replace(OBJECTIVES["dapo"], surrogate=partial(_broken)))
    before = weights(made)
    with pytest.raises(FloatingPointError, match="the gradient of model"):
        made.learn(8)
    assert same(before, weights(made))


def _broken(logprobs: Any, old: Any, advantages: Any, mask: Any) -> Any:
    surrogate = OBJECTIVES["dapo"].surrogate(logprobs, old, advantages, mask)
    return surrogate._replace(loss=surrogate.loss + (logprobs - logprobs.detach()).abs().sqrt() * mask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "ppo"}, "objective must be one of grpo, dapo"),
        ({"objective": replace(OBJECTIVES["dapo"], kl_coef=0.1)}, "kl_coef=0.1 needs reference"),
        ({"groups": 0}, "groups must be >= 1"),
        ({"reference": "old"}, "reference must be 'frozen', 'ema' or None"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learner(**options)
