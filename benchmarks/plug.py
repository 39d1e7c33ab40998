"""This engine in the runner that compares loops of other projects on a scripted multi-turn conversation.

    python run.py --engines dynamic:inline,astrai:paged --plug ours=plug:engine     # with this folder on PYTHONPATH

The runner hands over a model, a tokenizer and the script; the engine computes, warps and draws as always, and a
constraint leaves only the scripted id.  Log-probabilities are the model's own, from before the constraint.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine import Engine


def engine(ctx: Any, variant: str | None = None) -> list[dict[str, Any]]:
    """One run of the workload `ctx.wl`: a trajectory (ids, mask, log-probabilities, texts) for each episode."""
    work, tokenizer = ctx.wl, ctx.tok
    ours = ctx.opts.get("toolstep")
    if ours is None:
        ours = ctx.opts["toolstep"] = Engine(ctx.model, verify=False)
    vocabulary = ctx.model.config.vocab_size
    rows: dict[int, dict[str, Any]] = {}
    for episode in work.episodes:
        text = tokenizer.apply_chat_template(
            episode.messages, tokenize=False, tools=work.tools, add_generation_prompt=True, **work.template_kwargs
        )
        rows[episode.index] = {
            "index": episode.index,
            "messages": [dict(m) for m in episode.messages],
            "prompt_ids": tokenizer(text, add_special_tokens=False)["input_ids"],
            "response_ids": [],
            "response_mask": [],
            "logprobs": [],
            "turn_texts": [],
        }
    scripts = {e.index: [turn.ids for turn in e.turns] for e in work.episodes}
    params = SamplingParams(max_new_tokens=work.max_new_tokens, temperature=1.0)

    def submit(index: int, ids: list[int]) -> None:
        script = scripts[index][len(rows[index]["turn_texts"])]
        ours.submit(index, ids, params, [work.eos_id], allow=_only(script, vocabulary))

    for index, row in rows.items():
        ours.start(index, index)
        submit(index, row["prompt_ids"])
    while ours.busy:
        for _, index, completion in ours.step():
            row, ids = rows[index], completion.token_ids.tolist()
            _append(row, ids, 1, completion.model_logprobs.tolist())
            row["turn_texts"].append(text := tokenizer.decode(ids, skip_special_tokens=True))
            if "<tool_call>" not in text:
                ours.release(index)
                continue
            call = json.loads(text.split("<tool_call>")[1].split("</tool_call>")[0])
            result = work.episodes[index].results[call["arguments"]["key"]]
            row["messages"].append({"role": "assistant", "content": text})
            row["messages"].append({"role": "tool", "content": json.dumps(result, ensure_ascii=False)})
            whole = tokenizer.apply_chat_template(
                row["messages"], tokenize=False, tools=work.tools, add_generation_prompt=True, **work.template_kwargs
            )
            have = len(row["prompt_ids"]) + len(row["response_ids"])
            delta = tokenizer(whole, add_special_tokens=False)["input_ids"][have:]
            _append(row, delta, 0, [0.0] * len(delta))
            submit(index, delta)
    return list(rows.values())


def _append(row: dict[str, Any], ids: list[int], mask: int, logprobs: list[float]) -> None:
    row["response_ids"] += ids
    row["response_mask"] += [mask] * len(ids)
    row["logprobs"] += logprobs


def _only(script: list[int], vocabulary: int) -> Callable[[Any], NDArray[np.bool_]]:
    def allow(ids: Any) -> NDArray[np.bool_]:
        out = np.zeros(vocabulary, np.bool_)
        out[script[len(ids)]] = True
        return out

    return allow
