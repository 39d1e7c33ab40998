"""The engines that `benchmarks/engine.py` compares, each as a function of a model and episodes of workload W."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from workload import Episode

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine import Engine


def barrier(engine: Engine, work: Sequence[Episode]) -> int:
    """Ours as `VectorEnv.step` uses it: every turn waits for the longest one of the batch."""
    sampled = 0
    for row, episode in enumerate(work):
        engine.start(row, episode.number)
        engine.extend(row, episode.prompt)
    rows = list(range(len(work)))
    for turn in range(max(len(e.limits) for e in work)):
        rows = [r for r in rows if turn < len(work[r].limits)]
        params = [SamplingParams(max_new_tokens=work[r].limits[turn]) for r in rows]
        for row, completion in zip(rows, engine.generate(rows, params), strict=True):
            sampled += len(completion.token_ids)
            if turn < len(work[row].observations):
                engine.extend(row, work[row].observations[turn])
    for row in range(len(work)):
        engine.release(row)
    return sampled


def _plain_generation(model: Any) -> None:
    config = model.generation_config
    config.eos_token_id, config.pad_token_id = None, 0
    config.do_sample, config.temperature, config.top_k, config.top_p = True, 1.0, 0, 1.0


@torch.inference_mode()
def sequential(model: Any, work: Sequence[Episode]) -> int:
    """transformers' generate, one trajectory at a time, the whole conversation prefilled anew each turn."""
    _plain_generation(model)
    sampled = 0
    for episode in work:
        context = list(episode.prompt)
        for turn, limit in enumerate(episode.limits):
            ids = torch.tensor([context], device=model.device)
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=limit,
                return_dict_in_generate=True,
                output_logits=True,
            )
            new = out.sequences[0, len(context) :]
            torch.stack([torch.log_softmax(x[0].float(), -1)[t] for x, t in zip(out.logits, new, strict=True)])
            sampled += len(new)
            context = [*out.sequences[0].tolist(), *(episode.observations[turn : turn + 1] or [[]])[0]]
    return sampled


@torch.inference_mode()
def active_batch(model: Any, work: Sequence[Episode]) -> int:
    """transformers' generate over the trajectories that are not over: left-padded, the whole context prefilled anew
    each turn, log-probabilities from the logits that generate keeps.
    """
    _plain_generation(model)
    contexts = {e.number: list(e.prompt) for e in work}
    sampled, turn, live = 0, 0, list(work)
    while live:
        widest = max(len(contexts[e.number]) for e in live)
        pads = [widest - len(contexts[e.number]) for e in live]
        device = model.device
        ids = torch.tensor([[0] * p + contexts[e.number] for p, e in zip(pads, live, strict=True)], device=device)
        mask = torch.tensor([[0] * p + [1] * (widest - p) for p in pads], device=device)
        limits = torch.tensor([e.limits[turn] for e in live], device=device)
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=int(limits.max()),
            return_dict_in_generate=True,
            output_logits=True,
            stopping_criteria=[lambda x, _s, limits=limits, widest=widest: (x.shape[1] - widest) >= limits],
        )
        new = out.sequences[:, widest:]
        for i, logits in enumerate(out.logits):
            torch.log_softmax(logits.float(), -1).gather(1, new[:, i : i + 1])
        for row, episode in enumerate(live):
            contexts[episode.number] += new[row, : episode.limits[turn]].tolist()
            contexts[episode.number] += (episode.observations[turn : turn + 1] or [[]])[0]
            sampled += episode.limits[turn]
        turn += 1
        live = [e for e in live if turn < len(e.limits)]
    return sampled


def transformers_batching(model: Any, work: Sequence[Episode]) -> int:
    """transformers' own continuous batching (paged, prefix sharing by block hash), one request a turn."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    page, most = 32, 512
    pages = sum(-(-(e.length + 1) // page) + 1 for e in work)
    generation = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, max_new_tokens=128
    )
    batching = ContinuousBatchingConfig(
        page_size=page,
        num_blocks=pages,
        max_batch_tokens=most,
        max_requests_per_batch=len(work),
        return_logprobs=True,
        allow_block_sharing=True,
    )
    contexts = [list(e.prompt) for e in work]
    sampled, left = 0, len(work)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching
    ) as manager:

        def ask(row: int, turn: int) -> None:
            manager.add_request(
                contexts[row], request_id=f"{row}:{turn}", max_new_tokens=work[row].limits[turn], eos_token_id=-1
            )

        for row in range(len(work)):
            ask(row, 0)
        while left:
            result = manager.get_result(timeout=60)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError("the generation thread stopped")
                continue
            if not result.is_finished():
                continue
            row, turn = map(int, result.request_id.split(":"))
            sampled += len(result.generated_tokens)
            contexts[row] += list(result.generated_tokens)
            if turn + 1 < len(work[row].limits):
                contexts[row] += work[row].observations[turn]
                ask(row, turn + 1)
            else:
                left -= 1
    return sampled


def prototype(path: Path, model: Any, work: Sequence[Episode]) -> int:
    """The prototype engine at `path` (slot_engine.py), pure Python, weights packed."""
    spec = importlib.util.spec_from_file_location("slot_engine", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.get("slot_engine") or importlib.util.module_from_spec(spec)
    if "slot_engine" not in sys.modules:
        sys.modules["slot_engine"] = module
        spec.loader.exec_module(module)
    twins = [
        SimpleNamespace(
            eid=e.number,
            prompt=e.prompt,
            n_sample=e.limits,
            obs=e.observations,
            uniforms=np.random.default_rng(e.number).random(e.sampled),
        )
        for e in work
    ]
    own = sum(-(-(e.length - len(e.prompt)) // 64) * 64 for e in work)
    shared = sum({e.group: -(-len(e.prompt) // 64) * 64 for e in work}.values())
    engine = module.SlotEngine(model, slots=len(work), kv_tokens=own, prefix_tokens=shared, pack=True)
    out = module.rollout(engine, twins)
    return sum(sum(mask) for _, mask, _ in out.values())
