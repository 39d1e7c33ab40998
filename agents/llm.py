"""LLMAgent: a causal language model that plays many rows at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolstep.agents.base import Completion, SamplingParams
from toolstep.agents.constrain import Constrain, ToolCalls
from toolstep.agents.engine import Engine, EngineStats
from toolstep.agents.engine_agent import EngineAgent
from toolstep.agents.shipped import model_source
from toolstep.agents.text import StopWatch
from toolstep.agents.weights import describe_model, load_model

Ids = NDArray[np.int64]


class LLMAgent(EngineAgent):
    """A `TokenAgent` over a transformers causal LM: token ids in, sampled token ids and their log-probabilities out.

    Args:
        model: a transformers causal LM; it may be trained by someone else between calls (see `update_weights`).
        tokenizer: the name or the object that the env gets (`env_kwargs`) and that stop ids come from; None only
            together with `stop_ids`, or where the model's generation config names its stop ids.
        sampling: how turns are drawn.
        seed: where `predict` takes the seeds of its episodes from; `start` is told its seed.
        stop_ids: ids after which a turn ends.  Default: those of the tokenizer's chat template.
        max_context: longest context in tokens; default the model's own limit.
        constrain: what turns may be: `ToolCalls(tools)` of `toolstep.agents.constrain`, which holds calls to the
            schemas of their tools, or a function that is called with the row when a turn begins and returns an `allow`
            as `Engine.submit` takes it (None: anything).
        stop_strings: texts at which a turn ends as well, finish reason "stop"; the ids that wrote them are part of it.
        kv_tokens, max_running: budget of keys and values in tokens, and most turns at a time; see `Engine`.

    A picklable description of an agent is its name and parameters, not this object: it holds the model.
    """

    engine: Engine

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        sampling: SamplingParams | None = None,
        seed: int = 0,
        stop_ids: Collection[int | str] | None = None,
        max_context: int | None = None,
        chat_template: str | None = None,
        constrain: ToolCalls | Constrain | None = None,
        stop_strings: Sequence[str] = (),
        kv_tokens: int | None = None,
        max_running: int | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.sampling = sampling if sampling is not None else SamplingParams()
        self.seed = seed
        self.stop_ids = frozenset(_stop_ids(model, tokenizer, chat_template, stop_ids))
        self._given_stops = stop_ids is not None
        self.stop_strings = _strings(stop_strings, tokenizer)
        self.engine = Engine(model, max_context=max_context, kv_tokens=kv_tokens, max_running=max_running)
        self._constrain = self._bound(constrain)

    @classmethod
    def load(
        cls,
        name: str,
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype | str | None = None,
        sampling: SamplingParams | None = None,
        seed: int = 0,
        stop_ids: Collection[int | str] | None = None,
        max_context: int | None = None,
        chat_template: str | None = None,
        constrain: ToolCalls | Constrain | None = None,
        stop_strings: Sequence[str] = (),
        kv_tokens: int | None = None,
        max_running: int | None = None,
        wrap: Callable[[Any], Any] | None = None,
    ) -> LLMAgent:
        """Load model and tokenizer by name: a folder, a hub id, a `*.gguf` file, "smollm2", "tiny" or "tiny-sft".

        wrap: called with the model; what it returns is used, such as `lambda m: peft.get_peft_model(m, LoraConfig())`.
        """
        model = load_model(name, device, dtype)
        return cls(
            model if wrap is None else wrap(model),
            model_source(name),
            sampling=sampling,
            seed=seed,
            stop_ids=stop_ids,
            max_context=max_context,
            chat_template=chat_template,
            constrain=constrain,
            stop_strings=stop_strings,
            kv_tokens=kv_tokens,
            max_running=max_running,
        )

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """The env shows and takes ids of the agent's own tokenizer, and ends an episode that fills its context."""
        out: dict[str, Any] = {"view": "tokens", "max_context": self.max_context}
        if self.tokenizer is not None:
            out["tokenizer"] = self.tokenizer
        if self.chat_template is not None:
            out["chat_template"] = self.chat_template
        if self._given_stops:
            out["stop_tokens"] = sorted(self.stop_ids)
        return out

    @property
    def stats(self) -> EngineStats:
        """Tokens fed, copied and sampled so far."""
        return self.engine.stats

    def describe(self) -> dict[str, Any]:
        """What tells its model from another, as JSON (see `weights.describe_model`)."""
        return describe_model(self.model)

    def act(
        self,
        rows: Sequence[int],
        observations: Sequence[Ids],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Append observation ids to each row's context and sample one turn for each; results in the order of `rows`.

        sampling: default the agent's own; a sequence has one for each row, which gives rows limits of their own.

        A failure leaves every row as it was, its observation not appended, so that the call can be made again.
        """
        if len(rows) != len(observations):
            raise ValueError(f"act: {len(rows)} rows but {len(observations)} observations")
        before = [len(self.engine.context(row)) for row in rows]
        try:
            for row, ids in zip(rows, observations, strict=True):
                self.engine.extend(row, ids)
            allow = None if self._constrain is None else [self._constrain(row) for row in rows]
            params = self.sampling if sampling is None else sampling
            until = [self._until() for _ in rows]
            return self.engine.generate(rows, params, self.stop_ids, allow=allow, until=until)
        except BaseException:
            for row, length in zip(rows, before, strict=True):
                self.engine.rewind(row, length)
            raise

    def submit(self, row: int, observation: Ids) -> int:
        """Append observation ids to the row's context and queue one turn of it; returns its ticket."""
        allow = None if self._constrain is None else self._constrain(row)
        return self.engine.submit(row, observation, self.sampling, self.stop_ids, allow=allow, until=self._until())

    def update_weights(self, state_dict: Mapping[str, torch.Tensor] | None = None) -> int:
        """Copy new weights into the model (None: it was changed in place), drop all keys and values; the new version.

        Call it after every optimiser step: keys and values computed by old weights would poison new turns.
        """
        return self.engine.update_weights(state_dict)

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the model (adapters merged into it) and its tokenizer; the agent `hf:FOLDER` plays as this one does."""
        model = self.model
        if hasattr(model, "merge_and_unload"):
            model = copy.deepcopy(model).merge_and_unload()
        model.save_pretrained(str(folder))
        if self.tokenizer is not None:
            tokenizer = copy.copy(self._decoder)
            if self.chat_template is not None:
                tokenizer.chat_template = self.chat_template
            tokenizer.save_pretrained(str(folder))

    def _bound(self, constrain: ToolCalls | Constrain | None) -> Constrain | None:
        if not isinstance(constrain, ToolCalls):
            return constrain
        if self.tokenizer is None:
            raise ValueError("LLMAgent: constrain=ToolCalls(...) needs the tokenizer: pass tokenizer=...")
        from toolstep.envs.chat import ChatTemplate

        stops = self.stop_ids if self._given_stops else None
        template = ChatTemplate(self.tokenizer, chat_template=self.chat_template, stop_tokens=stops)
        return constrain.bind(template, self.engine.packed.vocabulary)

    def _until(self) -> StopWatch | None:
        return StopWatch(self._decoder, self.stop_strings, self.stop_ids) if self.stop_strings else None

    @cached_property
    def _decoder(self) -> Any:
        from toolstep.envs.chat.tokenizer import load_tokenizer

        return load_tokenizer(self.tokenizer) if isinstance(self.tokenizer, str) else self.tokenizer


def _strings(given: Sequence[str], tokenizer: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(s, str) and s for s in given):
        raise ValueError(f"LLMAgent: stop_strings must be a list of texts that are not empty, got {given!r}")
    if given and tokenizer is None:
        raise ValueError("LLMAgent: stop_strings need the tokenizer: pass tokenizer=...")
    return tuple(given)


def _stop_ids(
    model: Any, tokenizer: Any, chat_template: str | None, given: Collection[int | str] | None
) -> Collection[int]:
    """Ids of the given stop tokens, or of those that the tokenizer's folder or the generation config names."""
    if tokenizer is not None:
        from toolstep.envs.chat import ChatTemplate

        ids: Collection[int] = ChatTemplate(tokenizer, chat_template=chat_template, stop_tokens=given).stop_ids
        return ids
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None) if given is None else list(given)
    if eos is None:
        raise ValueError(
            "LLMAgent: nothing says where a turn ends: there is no tokenizer, and the model's generation config has no "
            "eos_token_id; pass tokenizer=..., or stop_ids=[...]"
        )
    return [eos] if isinstance(eos, int) else [int(i) for i in eos]
