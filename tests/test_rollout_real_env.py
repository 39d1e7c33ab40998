"""Collecting from the real envs: the same from every vector env, mode and number of rows (I6-I8, I10, I14)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tiny import tiny_model, tiny_tokenizer

from toolstep.agents.base import Completion, SamplingParams
from toolstep.envs import Source, ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.chat import ChatTemplate
from toolstep.rollout import RolloutBatch, RunMetrics, collect, evaluate, group_specs

MODES = list(AutoresetMode)
TURNS = [
    '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 40}}\n</tool_call>',
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' * 2,
    '<tool_call>\n{"name": "add", "arguments": {"a": "x"}}\n</tool_call>',
    '<tool_call>\n{"name": "sub", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "add", "argu',
    '<tool_call>\n{"name": "broken", "arguments": {}}\n</tool_call>',
    "42",
    "",
]


def add(a: int, b: int = 0) -> int:
    """Add two integers."""
    return a + b


def broken() -> None:
    """Never works."""
    raise RuntimeError("out of order")


def make_task(seed: int) -> dict[str, Any]:
    return {"prompt": f"What is {seed % 7} + {seed % 11}?", "answer": str(seed % 7 + seed % 11)}


OPTIONS: dict[str, Any] = {"tasks": make_task, "tools": [add, broken], "max_turns": 4}


class TypingAgent:
    """Types one of `TURNS` or random ids, with or without a stop token, by the episode's seed alone."""

    seed = 0
    env_kwargs: dict[str, Any] = {}

    def __init__(self, tokenizer: Any):
        self.chat = ChatTemplate(tokenizer)
        self.rng: dict[int, np.random.Generator] = {}
        self.generations = 0

    def start(self, row: int, seed: int) -> None:
        self.rng[row] = np.random.default_rng(seed)

    def act(self, rows: Sequence[int], observations: Sequence[np.ndarray]) -> list[Completion]:
        return [self.complete(self.rng[row]) for row in rows]

    def complete(self, rng: np.random.Generator) -> Completion:
        self.generations += 1
        kind = int(rng.integers(len(TURNS) + 2))
        if kind < len(TURNS):
            ids = self.chat.encode_turn(TURNS[kind])
        else:
            ids = rng.integers(0, 200, size=int(rng.integers(0, 30)))
            if kind == len(TURNS):
                ids = np.append(ids, min(self.chat.stop_ids))
        logprobs = -rng.random(len(ids), dtype=np.float32)
        finish = "stop" if len(ids) and int(ids[-1]) in self.chat.stop_ids else "length"
        return Completion(ids.astype(np.int32), logprobs, logprobs, finish, weight_version=1)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a token agent is asked by act")


class TypingTextAgent:
    """The same in the text view, by `predict`; which turn it types is a function of what it has read."""

    env_kwargs: dict[str, Any] = {}

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        read = [""] * len(observation) if state is None else list(state)
        for row, text in enumerate(observation):
            read[row] = text if episode_start[row] else read[row] + text
        return tuple(TURNS[sum(map(ord, r)) % len(TURNS)] for r in read), read


def vector_envs(kind: str, num_envs: int, mode: AutoresetMode, **options: Any) -> Any:
    options = {**OPTIONS, **options}
    if kind == "own":
        return ToolUseVectorEnv(num_envs, autoreset_mode=mode, **options)
    return SyncVectorEnv([lambda: ToolUseEnv(**options)] * num_envs, autoreset_mode=mode)


def played(kind: str, num_envs: int, mode: AutoresetMode, agent: Any, specs: Any, **options: Any) -> Any:
    envs = vector_envs(kind, num_envs, mode, **options)
    try:
        return collect(envs, agent, specs)
    finally:
        envs.close()


@pytest.mark.parametrize("view", ["tokens", "text"])
def test_every_vector_env_mode_and_row_count_gives_the_same_trajectories(tokenizer, view):
    specs = group_specs(6, 3, seed=5)
    options: dict[str, Any] = {"view": view} | ({"tokenizer": tokenizer} if view == "tokens" else {})

    def run(kind, num_envs, mode):
        agent = TypingAgent(tokenizer) if view == "tokens" else TypingTextAgent()
        trajectories = played(kind, num_envs, mode, agent, specs, **options)
        if view == "tokens":
            assert agent.generations == sum(t.turns for t in trajectories)
        return [t.to_dict() for t in trajectories]

    expected = run("own", 3, AutoresetMode.NEXT_STEP)
    reasons = {t["stop_reason"] for t in expected}
    assert reasons >= ({"answered", "max_turns", "cut_turn"} if view == "tokens" else {"answered"})
    assert {t["status"] for t in expected} == {"ok"}
    for kind in ("own", "sync"):
        for num_envs, mode in zip((1, 7, 3), MODES):
            assert run(kind, num_envs, mode) == expected, (kind, num_envs, mode)


def test_record_is_the_conversation_token_for_token(tokenizer):
    """What was recorded, decoded, is what the template makes of the messages: nothing lost, nothing doubled."""
    chat = ChatTemplate(tokenizer)
    trajectories = played(
        "own", 4, AutoresetMode.SAME_STEP, TypingAgent(tokenizer), group_specs(20, 1, seed=2),
        view="tokens", tokenizer=tokenizer,
    )  # fmt: skip
    for t in trajectories:
        text = chat.decode(t.token_ids)
        assert text.startswith("<|im_start|>system")
        assert (t.source[: t.prompt_length] == Source.PROMPT).all()
        for message in t.messages:
            if message["role"] == "tool":
                assert message["content"] in text
        for transition in t.transitions()[1:]:
            assert chat.decode(transition.observation_ids).endswith("<|im_start|>assistant\n")
        assert t.metrics["sampled_tokens"] == t.action_mask.sum() == t.sampled


def test_group_members_start_from_identical_ids(tokenizer):
    trajectories = played(
        "own", 5, AutoresetMode.NEXT_STEP, TypingAgent(tokenizer), group_specs(4, 4, seed=1),
        view="tokens", tokenizer=tokenizer, thinking_ratio=0.5,
    )  # fmt: skip
    batch = RolloutBatch.from_trajectories(trajectories, pad_id=tokenizer.pad_token_id)
    assert batch.attention_mask.sum(axis=1).tolist() == [t.context for t in trajectories]
    assert batch.action_mask.sum() == sum(t.sampled for t in trajectories)


def score_fails(record: Any) -> float:
    if "3 +" in record.messages[-2].content:
        raise RuntimeError("the grader is down")
    return float(len(record.messages) % 2)


@pytest.mark.parametrize("mode", MODES)
def test_failure_of_the_reward_is_a_status_that_leaves_mask_and_baseline(tokenizer, mode):
    trajectories = played(
        "own", 3, mode, TypingAgent(tokenizer), group_specs(14, 2, seed=1),
        view="tokens", tokenizer=tokenizer, reward=score_fails,
    )  # fmt: skip
    failed = [t.status == "env_error" for t in trajectories]
    assert any(failed)
    assert not all(failed)
    assert all(bool(t.error) == f for t, f in zip(trajectories, failed))
    batch = RolloutBatch.from_trajectories(trajectories)
    assert not batch.action_mask[failed].any()
    assert batch.counts.unusable_rows == sum(failed)


@pytest.mark.parametrize("name", ["Calculator", "UnitConvert", "Lookup", "Assistant"])
def test_oracle_solves_every_env(name):
    from toolstep.agents.scripted import OracleAgent

    envs = gym.make_vec(f"toolstep/{name}-v0", num_envs=5)
    try:
        metrics = RunMetrics()
        summary = evaluate(envs, OracleAgent(), 12, seed=0, metrics=metrics)
    finally:
        envs.close()
    assert (summary.successes, summary.errors, summary.mean_reward) == (12, 0, 1.0)
    assert set(summary.calls) == {"ok"}
    assert metrics.transitions == round(summary.turns * 12)


def test_random_agent_scores_the_same_whatever_the_rows():
    from toolstep.agents.scripted import RandomAgent

    if not hasattr(RandomAgent, "start"):
        pytest.skip("RandomAgent draws by row, not by episode")
    found = []
    for num_envs in (1, 5):
        envs = gym.make_vec("toolstep/Calculator-v0", num_envs=num_envs)
        seen: list[Any] = []
        evaluate(envs, RandomAgent(3), 8, seed=1, on_episode=seen.append)
        envs.close()
        found.append(sorted((t.seed, t.messages[-1]["content"]) for t in seen))
    assert found[0] == found[1]


def test_task_tags_reach_the_summary():
    from toolstep.agents.scripted import OracleAgent

    envs = gym.make_vec("toolstep/Calculator-v0", num_envs=2)
    try:
        summary = evaluate(envs, OracleAgent(), 9, seed=0)
    finally:
        envs.close()
    assert sum(r.episodes for r in summary.tags["level"].values()) == 9
    json.dumps(summary.to_dict(), allow_nan=False)


@pytest.fixture(scope="module")
def llm():
    from toolstep.agents.llm import LLMAgent

    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))

    def make() -> Any:
        sampling = SamplingParams(max_new_tokens=8, temperature=0.8, top_k=40)
        return LLMAgent(model, tokenizer, sampling=sampling, seed=3)

    return model, tokenizer, make


def test_language_model_samples_the_same_tokens_whatever_the_batch(llm):
    _, tokenizer, make = llm
    specs = group_specs(2, 2, seed=4)
    runs = [
        played(kind, n, mode, make(), specs, view="tokens", tokenizer=tokenizer)
        for kind, n, mode in zip(("own", "own", "sync"), (1, 4, 3), MODES)
    ]
    for other in runs[1:]:
        for a, b in zip(runs[0], other):
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert a.turn_rewards.tolist() == b.turn_rewards.tolist()
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_stored_logprobs_line_up_with_a_plain_forward_of_the_model(llm):
    """`shifted()` against `logits[:, :-1]` of the padded batch (I7, I8)."""
    import torch

    model, tokenizer, make = llm
    trajectories = played(
        "own", 4, AutoresetMode.NEXT_STEP, make(), group_specs(3, 2, seed=6),
        view="tokens", tokenizer=tokenizer,
    )  # fmt: skip
    batch = RolloutBatch.from_trajectories(trajectories, pad_id=tokenizer.pad_token_id)
    tensors = batch.torch()
    with torch.no_grad():
        logits = model(input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"].long()).logits
    plain = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, tensors["input_ids"][:, 1:, None])[..., 0]
    mask = batch.shifted().action_mask
    model_logprobs = np.concatenate([t.model_logprobs[t.action_mask] for t in trajectories])
    assert mask.sum() == model_logprobs.size > 30
    np.testing.assert_allclose(plain.numpy()[mask], model_logprobs, atol=1e-4)
    assert all(t.has_logprobs for t in trajectories)
