"""Policy: log-probs and entropies are the model's own, whatever its head; micro-batches lose no row."""

from __future__ import annotations

from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch

from toolstep.rollout.learn.policy import Policy


def biased() -> Any:
    model = em.model("llama")
    old = model.lm_head
    head = torch.nn.Linear(old.in_features, old.out_features)
    model.set_output_embeddings(head)
    return model


def capped() -> Any:
    return em.model("gemma2")


@pytest.mark.parametrize("make", [lambda: em.model("llama"), lambda: em.model("gpt2"), biased, capped])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropies_are_those_of_the_models_logits(make: Any, temperature: float) -> None:
    model = make()
    policy = Policy(model, temperature=temperature)
    lengths = [9, 5, 7]
    ids = torch.zeros(3, 9, dtype=torch.long)
    mask = torch.zeros(3, 8, dtype=torch.bool)
    for row, n in enumerate(lengths):
        ids[row, :n] = torch.from_numpy(em.ids(row, n).astype(np.int64))
        mask[row, 2 : n - 1] = True
    logprobs, entropy = policy(ids, mask)
    for row, n in enumerate(lengths):
        logits = model(input_ids=ids[row : row + 1, :n], use_cache=False).logits[0, :-1].double() / temperature
        plain = torch.log_softmax(logits, -1)
        at = mask[row, : n - 1]
        assert torch.allclose(
            logprobs[row, : n - 1][at].double(), plain.gather(-1, ids[row, 1:n, None])[:, 0][at], atol=1e-4
        )
        assert torch.allclose(entropy[row, : n - 1][at].double(), -(plain.exp() * plain).sum(-1)[at], atol=1e-4)
    assert not logprobs[~mask].any()
    assert not entropy.requires_grad


def test_heads_that_are_not_plain_are_run_by_the_model() -> None:
    assert Policy(em.model("llama"))._chunked
    assert not Policy(biased())._chunked
    assert not Policy(capped())._chunked
