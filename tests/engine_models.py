"""Small random models for the engine's tests, and the plain way to compute what the engine must return."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolstep.agents.base import SamplingParams

# The models are tiny, and on busy cores the barriers of a second thread made one test take 68 s instead of 2.
torch.set_num_threads(1)

VOCABULARY = 97
_COMMON = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_LLAMA_LIKE = {
    **_COMMON,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_WINDOWS: dict[str, Any] = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
# Families that run packed, by their name here; `model_type` where transformers calls them otherwise.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gpt2": {**_COMMON, "hidden_size": 48, "n_head": 4, "n_layer": 2, "n_positions": 512},
    "gpt_neox": {"rotary_pct": 0.5, "use_parallel_residual": True},
    "mistral": {"sliding_window": 7},
    "gemma2": {**_WINDOWS, "query_pre_attn_scalar": 12},  # a soft cap on the attention scores and on the logits
    "gemma3_text": {**_WINDOWS, "query_pre_attn_scalar": 12},  # another rotary base in the windowed layers
    "phi3": {},
    "phi4": {  # Phi-4-mini: three quarters of a head are rotated, by factors of its own
        "model_type": "phi3",
        "hidden_size": 64,
        "head_dim": 16,
        "tie_word_embeddings": True,
        "original_max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            "long_factor": [2.0, 2.1, 2.2, 2.3, 2.4, 2.5],
            "original_max_position_embeddings": 512,
        },
    },
    "smollm3": {"no_rope_layers": [1, 0]},
    "cohere2": _WINDOWS,
    "mixtral": _EXPERTS,
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3_moe": _EXPERTS,
    "gpt_oss": {**_EXPERTS, **_WINDOWS},  # sinks: a learned logit a head that takes probability
    "deepseek_v3": {  # keys and values of different widths, from a shared latent
        **_EXPERTS,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
_MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 12,
}
_SHARED = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 7,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
}
# Families that cannot be packed: recurrent and hybrid state, shared keys and values, attention of their own.
CACHED: dict[str, dict[str, Any]] = {
    "mamba": {**_COMMON, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 8},
    "mamba2": {
        **_COMMON,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "state_size": 8,
        "num_heads": 6,
        "head_dim": 16,
        "n_groups": 1,
        "chunk_size": 8,
    },
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 96},
    "granitemoehybrid": {
        **_MAMBA,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 64,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "qwen3_next": {
        **_LINEAR,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_5_text": _LINEAR,
    "gemma3n_text": {
        **_SHARED,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "minimax": {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 4, "block_size": 8},
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention"],
        "attention_chunk_size": 16,
        "num_local_experts": 4,
        "intermediate_size_mlp": 64,
        "no_rope_layers": [1, 0],
    },
    "rwkv": {
        **_COMMON,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "attention_hidden_size": 48,
        "intermediate_size": 64,
        "context_length": 512,
    },
    "bloom": {**_COMMON, "hidden_size": 48, "n_head": 4, "n_layer": 2},
}


def model(family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A random fp32 model in eval mode.  Weights are scaled up, so that its distributions are not flat."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    own = FAMILIES[family] if family in FAMILIES else CACHED[family]
    options = {**(own if "vocab_size" in own else {**_LLAMA_LIKE, **own}), **changes}
    config = AutoConfig.for_model(options.pop("model_type", family), **options)
    made = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(1.5 if "embed" in name or "wte" in name else 3.0 if family in CACHED else 6.0)
    return made


def ids(seed: int, length: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length)


def full_forward(model: Any, context: NDArray[Any]) -> NDArray[np.float64]:
    """Logits [T, V] of one uncached, unpadded forward."""
    with torch.no_grad():
        out = model(input_ids=torch.from_numpy(np.asarray(context, np.int64))[None], use_cache=False).logits[0]
    result: NDArray[np.float64] = out.double().numpy()
    return result


def log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    scores = scores - scores.max()
    result: NDArray[np.float64] = scores - np.log(np.exp(scores).sum())
    return result


def on_the_edge(logits: NDArray[np.float64], history: list[int], params: SamplingParams) -> bool:
    """Whether fp32 rounding decides which token is the last that top-p keeps."""
    if params.top_p == 1 or params.temperature == 0:
        return False
    scores = slow_logprobs(logits, history, replace(params, top_p=1.0))
    return bool(np.abs(np.cumsum(np.sort(np.exp(scores))[::-1]) - params.top_p).min() < 1e-6)


def slow_logprobs(logits: NDArray[np.float64], history: list[int], params: SamplingParams) -> NDArray[np.float64]:
    """Log-probabilities f64[V] of the distribution that is sampled from, written as obviously as possible."""
    scores = logits.copy()
    window = history[-params.penalty_window :] if params.penalty_window else history
    for token in set(window):
        r = params.repetition_penalty
        scores[token] = scores[token] / r if scores[token] > 0 else scores[token] * r
        scores[token] -= params.presence_penalty
    for token in window:
        scores[token] -= params.frequency_penalty
    for token, bias in params.logit_bias:
        scores[token] += bias
    if params.temperature == 0:
        return log_softmax(scores)
    scores = scores / params.temperature
    if params.top_k:
        best = sorted(scores, reverse=True)[: params.top_k]
        scores = np.where(scores >= best[-1], scores, -np.inf)
    if params.top_p < 1:
        probabilities = np.exp(log_softmax(scores))
        total, smallest = 0.0, 0.0
        for p in sorted(probabilities, reverse=True):
            total, smallest = total + p, p
            if total >= params.top_p:
                break
        scores = np.where(probabilities >= smallest, scores, -np.inf)
    if params.min_p:
        probabilities = np.exp(log_softmax(scores))
        scores = np.where(probabilities >= params.min_p * probabilities.max(), scores, -np.inf)
    return log_softmax(scores)
