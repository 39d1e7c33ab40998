"""vLLM on workload W: ids in, ids and log-probabilities out, a request a turn, a group's prompt from its prefix cache.

Written against the API of vLLM's v1 engine (`LLM.llm_engine.add_request` / `step`) as its source has it; it was never
run, for want of a GPU.  The weights go through a temporary folder in the model's own dtype.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from workload import Episode

_MEMORY = 0.4  # of the device's; the model of this process, and its copy, need some as well


class Vllm:
    """Plays the workload each time that it is called; compiled and captured before the first."""

    def __init__(self, model: Any, work: Sequence[Episode]) -> None:
        import vllm

        self._api, self._work = vllm, work
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            self._llm = vllm.LLM(
                model=folder,
                skip_tokenizer_init=True,
                dtype=str(model.dtype).removeprefix("torch."),
                max_model_len=max(e.length for e in work) + 1,
                max_num_seqs=len(work),
                enable_prefix_caching=True,
                gpu_memory_utilization=_MEMORY,
                disable_log_stats=True,
            )

    def __call__(self) -> int:
        """Ids sampled.  A turn is asked for as soon as the one before it is over."""
        engine = self._llm.llm_engine
        engine.reset_prefix_cache()  # it would hold the prompts of the round before
        contexts = [list(e.prompt) for e in self._work]
        sampled = 0
        for row in range(len(contexts)):
            self._ask(row, 0, contexts[row])
        while engine.has_unfinished_requests():
            for result in engine.step():
                if not result.finished:
                    continue
                row, turn = map(int, result.request_id.split(":"))
                new, episode = list(result.outputs[0].token_ids), self._work[row]
                if len(new) != episode.limits[turn]:
                    raise RuntimeError(f"vLLM sampled {len(new)} ids in place of {episode.limits[turn]}")
                sampled += len(new)
                if turn + 1 < len(episode.limits):
                    contexts[row] += [*new, *episode.observations[turn]]
                    self._ask(row, turn + 1, contexts[row])
        return sampled

    def _ask(self, row: int, turn: int, context: list[int]) -> None:
        limit = self._work[row].limits[turn]
        params = self._api.SamplingParams(
            temperature=1.0,
            max_tokens=limit,
            min_tokens=limit,
            ignore_eos=True,
            logprobs=0,  # that of the sampled id alone
            detokenize=False,
            output_kind=self._api.sampling_params.RequestOutputKind.FINAL_ONLY,
        )
        self._llm.llm_engine.add_request(f"{row}:{turn}", {"prompt_token_ids": list(context)}, params)
