"""`run_batch`: prompts in, sampled ids out, in one call over the engine."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from tqdm import tqdm

from toolstep.agents.base import FinishReason, SamplingParams
from toolstep.agents.engine.interface import Ids, Ticket, TokenEngine

T = TypeVar("T")
_PATIENCE = 2.0  # seconds until the bar is shown
_rows = itertools.count(-1, -1)  # rows that no env has: a caller's episodes in the same engine stay as they are


class Sampled(NamedTuple):
    """What was sampled for one prompt.

    token_ids: the stop token included where one was sampled.  logprobs: of each id under the distribution that it was
    drawn from; None unless asked for.  finish_reason: "stop", or "length" where `max_tokens` or the context is used up.
    """

    token_ids: list[int]
    logprobs: list[float] | None
    finish_reason: FinishReason


def run_batch(
    engine: TokenEngine,
    prompt_ids_list: Sequence[Ids],
    max_tokens: int | Sequence[int | None] | None = None,
    temperature: float | Sequence[float] = 1.0,
    top_p: float | Sequence[float] = 1.0,
    top_k: int | Sequence[int] = 0,
    frequency_penalty: float | Sequence[float] = 0.0,
    rep_window: int | Sequence[int] = 64,
    return_logprobs: bool = False,
    *,
    stop_ids: Collection[int],
    seed: int | Sequence[int] | None = None,
) -> list[Sampled]:
    """Sample one completion of each prompt; results in the order of the prompts, of which there may be any number.

    What does not fit into the engine at once waits there; prompts that run together share what they begin with.  A bar
    on stderr shows the progress where it takes long and somebody watches.

    prompt_ids_list: token ids, one sequence a prompt, none of them empty.
    max_tokens: most ids to sample; None: as many as the context holds.  0 is legal: nothing is sampled.
    temperature (0: greedy), top_p (1: off), top_k (0: off): as in `SamplingParams`.
    frequency_penalty: subtracted from the logit of an id for each time it is among the last `rep_window` sampled ids
    (0: all of them), before temperature and truncation; ids of the prompt don't count.
    stop_ids: sampling ends with one of these (`LLMAgent.stop_ids` for a chat model; `()`: at the limit only).
    seed: of one prompt's samples where it is a sequence; a number gives prompt i a seed of its own made of (seed, i);
    None: different ones each time.  What a prompt gets does not depend on the others.

    Each parameter but `return_logprobs` and `stop_ids` is one value for all prompts, or a sequence of one for each.

    Raises ValueError, before anything is sampled, for a prompt that is empty or leaves no room in the context, and for
    parameters that are out of range or not as many as prompts; RuntimeError where the engine is in use;
    RowFailed where the model's logits are not finite.  Whatever is raised, the engine is left as it was.
    """
    count = len(prompt_ids_list)
    columns = [
        _each(name, value, count)
        for name, value in (
            ("max_tokens", max_tokens),
            ("temperature", temperature),
            ("top_p", top_p),
            ("top_k", top_k),
            ("frequency_penalty", frequency_penalty),
            ("rep_window", rep_window),
        )
    ]
    for i, ids in enumerate(prompt_ids_list):
        if not 0 < len(ids) < engine.max_context:
            raise ValueError(
                f"run_batch: prompt {i} has {len(ids)} ids; expected 1 to {engine.max_context - 1}: a context holds "
                f"{engine.max_context}, and one at least has to be sampled"
            )
    params = [
        SamplingParams(
            temperature=t,
            top_p=p,
            top_k=k,
            frequency_penalty=f,
            penalty_window=window,
            max_new_tokens=engine.max_context if limit is None else limit,
        )
        for limit, t, p, k, f, window in zip(*columns, strict=True)
    ]
    if engine.busy:
        raise RuntimeError("run_batch: the engine has turns under way; collect them with step(), or cancel them, first")
    return _run(engine, prompt_ids_list, params, _seeds(seed, count), frozenset(stop_ids), return_logprobs)


def _run(
    engine: TokenEngine,
    prompts: Sequence[Ids],
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    stop_ids: frozenset[int],
    return_logprobs: bool,
) -> list[Sampled]:
    out: list[Sampled | None] = [None] * len(prompts)
    rows = list(itertools.islice(_rows, len(prompts)))
    tickets: dict[Ticket, int] = {}
    with tqdm(total=len(prompts), desc="run_batch", unit="prompt", disable=None, delay=_PATIENCE, leave=False) as bar:
        try:
            for i, row in enumerate(rows):
                engine.start(row, seeds[i])
                tickets[engine.submit(row, prompts[i], params[i], stop_ids)] = i
            while engine.busy:
                for ticket, row, completion in engine.step():
                    logprobs = completion.logprobs.tolist() if return_logprobs else None
                    out[tickets[ticket]] = Sampled(completion.token_ids.tolist(), logprobs, completion.finish_reason)
                    engine.release(row)  # its memory goes to those that wait
                    bar.update()
        finally:
            for row in rows:
                engine.release(row)
    return [sampled for sampled in out if sampled is not None]


def _each(name: str, value: T | Sequence[T], count: int) -> list[T]:
    """One value for each prompt."""
    if not isinstance(value, (Sequence, np.ndarray)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"run_batch: {name} has {len(value)} values for {count} prompts")
    return list(value)


def _seeds(seed: int | Sequence[int] | None, count: int) -> list[int]:
    if isinstance(seed, (Sequence, np.ndarray)):
        given: list[int] = _each("seed", seed, count)
        return [int(one) for one in given]
    words = [child.generate_state(2, np.uint64) for child in np.random.SeedSequence(seed).spawn(count)]
    return [int(w[0]) << 64 | int(w[1]) for w in words]
