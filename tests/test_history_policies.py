"""What happens where a template would rewrite the past: keep, rerender or error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny import TEMPLATE, tiny_model, tiny_tokenizer

from toolstep.agents import LLMAgent
from toolstep.agents.base import SamplingParams
from toolstep.envs import EpisodeRecord, Message, Source, Task, ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.tasks import NoOracle, TaskSet
from toolstep.rollout import RolloutBatch, Trajectory, collect, group_specs

# As Qwen3's: thoughts stand in the last turns only, those before the last user message are dropped.
FORGETFUL = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    + TEMPLATE.replace(
        "(message.content or '')",
        "('<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' "
        "if message.reasoning_content and loop.index0 > ns.last else '') + (message.content or '')",
    )
)


class Talk(TaskSet):
    """Two follow-up questions after the first answer."""

    name = "talk"

    def task(self, seed: int, split: str = "train") -> Task:
        return Task(f"talk-{seed % 7}", (Message("system", "Be brief."), Message("user", f"Question {seed % 7}?")))

    def tools(self, task: Task) -> list[Any]:
        return []

    def score(self, record: EpisodeRecord) -> float:
        return float(len(record.messages[-1].content) % 2)

    def oracle(self, record: EpisodeRecord) -> Any:
        raise NoOracle("none")

    def reply(self, record: EpisodeRecord) -> Message | None:
        asked = sum(m.role == "user" for m in record.messages)
        return Message("user", f"And {asked}?") if asked < 3 else None


THINKS = "<think>\nhm\n</think>\n\nok"


@pytest.fixture(scope="module")
def forgetful() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = FORGETFUL
    return tokenizer


def play(env: ToolUseEnv, turns: list[str]) -> list[tuple[Any, dict[str, Any]]]:
    out = [env.reset(seed=0)]
    for turn in turns:
        obs, _, _, _, info = env.step(env.config.view.write(turn))
        out.append((obs, info))
    return out


def test_keep_appends_and_counts(forgetful: Any) -> None:
    env = ToolUseEnv(Talk(), view="tokens", tokenizer=forgetful, history="keep")
    steps = play(env, [THINKS, THINKS, "ok"])
    assert [i["history_rewrites"] for _, i in steps] == [0, 1, 2, 2]
    assert not any(i["new_segment"] for _, i in steps)
    decode = env.config.chat.decode
    assert decode(steps[1][0]) == "\n<|im_start|>user\nAnd 1?<|im_end|>\n<|im_start|>assistant\n"


def test_rerender_begins_the_context_anew(forgetful: Any) -> None:
    env = ToolUseEnv(Talk(), view="tokens", tokenizer=forgetful, history="rerender")
    steps = play(env, [THINKS, "ok", THINKS])
    assert [i["new_segment"] for _, i in steps] == [False, True, False, False]
    obs, info = steps[1]
    text = env.config.chat.decode(obs)
    messages = [m.to_dict() for m in env.messages[:4]]
    assert text == forgetful.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert "<think>" not in text
    assert "ok<|im_end|>" in text
    assert set(info["sources"]) == {Source.PROMPT}
    assert info["context_tokens"] == len(obs)


def test_error_ends_the_row_and_names_the_way_out(forgetful: Any) -> None:
    env = ToolUseEnv(Talk(), view="tokens", tokenizer=forgetful, history="error")
    info = play(env, [THINKS])[-1][1]
    assert info["status"] == "env_error"
    assert 'history="keep"' in info["error"]


def test_a_template_that_keeps_history_never_begins_anew(tokenizer: Any) -> None:
    env = ToolUseEnv(Talk(), view="tokens", tokenizer=tokenizer, history="rerender")
    steps = play(env, [THINKS, THINKS, THINKS])
    assert [i["history_rewrites"] for _, i in steps] == [0, 0, 0, 0]
    assert "<think>" not in env.config.chat.decode(steps[1][0])


def test_without_a_thought_nothing_is_rewritten(forgetful: Any) -> None:
    env = ToolUseEnv(Talk(), view="tokens", tokenizer=forgetful, history="rerender")
    assert [i["history_rewrites"] for _, i in play(env, ["ok", "ok", "ok"])] == [0, 0, 0, 0]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="rerender"):
        ToolUseEnv(Talk(), history="drop")


class Thinker:
    """Says fixed turns as ids, with made-up log-probabilities; keeps its contexts as a model would."""

    def __init__(self, tokenizer: Any, turns: list[str]):
        self.env_kwargs = {"view": "tokens", "tokenizer": tokenizer}
        self.tokenizer, self.turns = tokenizer, turns
        self.contexts: dict[int, list[int]] = {}
        self.said: dict[int, int] = {}

    def start(self, row: int, seed: int) -> None:
        self.contexts[row], self.said[row] = [], 0

    def new_segment(self, row: int) -> None:
        self.contexts[row] = []

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        raise AssertionError("a token agent is asked by act")

    def act(self, rows: Any, observations: Any) -> list[Any]:
        from toolstep.agents.base import Completion

        out = []
        for row, observation in zip(rows, observations):
            text = self.turns[self.said[row]]
            ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
            self.said[row] += 1
            self.contexts[row] += [*observation.tolist(), *ids]
            logprobs = np.full(len(ids), -1.0, np.float32)
            out.append(Completion(np.array(ids, np.int32), logprobs, logprobs, "stop"))
        return out


@pytest.mark.parametrize(("history", "n_segments"), [("keep", 1), ("rerender", 3)])
def test_each_segment_is_a_training_row(history: str, n_segments: int, forgetful: Any) -> None:
    agent = Thinker(forgetful, [THINKS, THINKS, "done"])
    envs = ToolUseVectorEnv(2, Talk(), history=history, autoreset_mode="SameStep", **agent.env_kwargs)
    trajectories = collect(envs, agent, group_specs(2, 1, 0))
    for row, t in enumerate(trajectories):
        assert len(t.segments) == n_segments
        assert (t.history_policy, t.metrics["history_rewrites"]) == (history, 2)
        assert t.token_ids[t.segments[-1]].tolist() == agent.contexts[row]
        assert Trajectory.from_dict(t.to_dict()).segment_starts == t.segment_starts
    batch = RolloutBatch.from_trajectories(trajectories)
    assert len(batch.input_ids) == 2 * n_segments
    assert batch.action_mask.sum() == sum(t.sampled for t in trajectories)
    for b, row_ids in enumerate(batch.input_ids):
        text = forgetful.decode(row_ids[: batch.lengths[b]])
        assert text.startswith("<|im_start|>system\nBe brief.")
        assert batch.rewards[b] == trajectories[b // n_segments].total_reward


def test_a_segmented_episode_counts_once_in_its_group(forgetful: Any) -> None:
    agent = Thinker(forgetful, [THINKS, THINKS, "done"])
    envs = ToolUseVectorEnv(2, Talk(), history="rerender", autoreset_mode="SameStep", **agent.env_kwargs)
    first, second = collect(envs, agent, group_specs(1, 2, 0))
    second.turn_rewards[-1] += 1.0
    batch = RolloutBatch.from_trajectories([first, second])
    assert batch.counts.groups == 1
    per_row = np.array([a[m][0] for a, m in zip(batch.advantages, batch.action_mask)])
    np.testing.assert_allclose(per_row, [-1, -1, -1, 1, 1, 1], atol=1e-3)


def test_log_probs_are_those_of_the_segment_that_was_fed(forgetful: Any) -> None:
    import torch

    model = tiny_model(len(forgetful))
    agent = LLMAgent(model, forgetful, sampling=SamplingParams(max_new_tokens=12))
    for row in range(2):
        agent.start(row, row)
    prompts = [np.arange(5 + row, 25 + row) for row in range(2)]
    agent.act([0, 1], prompts)
    agent.new_segment(0)
    again = np.arange(7, 40)
    (completion,) = agent.act([0], [again])
    ids = torch.tensor([[*again.tolist(), *completion.token_ids.tolist()]])
    with torch.inference_mode():
        logprobs = model(ids).logits.log_softmax(-1)[0, len(again) - 1 : -1]
    expected = logprobs.gather(1, ids[0, len(again) :, None])[:, 0]
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
