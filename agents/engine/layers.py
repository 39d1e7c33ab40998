"""Decoder layers of the Llama kind in eight calls of compiled code, where the model's own code takes sixty.

A decode step is short: what lies between the matrix products (norms, rotary embedding, activation, sums, and Python
itself) is a third of it in fp32 and most of it in bf16.  A layer whose class is known gets a `forward` that does the
same with what is compiled (`kernels.py`, `passes.py`) and with the products of `linears.py`.  It is believed only after
its logits were compared with those of the model's own code; where there is no compiler, or they differ, that runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from toolstep.agents.engine.attention import Shape, active_plan
from toolstep.agents.engine.kernels import Attention, attention_for
from toolstep.agents.engine.linears import Family, PackedLinears
from toolstep.agents.engine.passes import passes

_LOG = logging.getLogger(__name__)
_CLASSES = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


class FusedLayer:
    """The `forward` of one decoder layer.  shape: how its attention is made, once that is known; None: not fused."""

    def __init__(self, layer: Any, linears: PackedLinears) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        found = [linears.family(x) for x in (attention.q_proj, attention.o_proj, mlp.gate_proj, mlp.up_proj)]
        families: list[Family] = [f for f in (*found, linears.family(mlp.down_proj)) if f is not None]
        self.fits = (
            len(families) == 5
            and len(families[0].layers) == 3
            and type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
            and layer.input_layernorm.weight.shape[0] % 16 == 0
            and not any(m._forward_hooks or m._forward_pre_hooks for m in layer.modules())
        )
        if not self.fits:
            return
        self._qkv, self._out, self._gate, self._up, self._down = families
        self._sizes = [part.out_features for part in self._qkv.layers]
        self._width = attention.head_dim
        self._norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self._head_norms = (getattr(attention, "q_norm", None), getattr(attention, "k_norm", None))
        self._number = attention.layer_idx
        self._own: Callable[..., torch.Tensor] = layer.forward
        self._target: dict[str, Any] = layer.__dict__
        self.shape: Shape | None = None

    def attention(self, size: int) -> Attention | None:
        """The one for blocks of `size` cells."""
        return attention_for(self._width, self._sizes[0] // self._sizes[1], size)

    def swap_in(self) -> None:
        self._target["forward"] = self

    def swap_out(self) -> None:
        self._target.pop("forward", None)

    def __call__(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """hidden_states [1, T, hidden] -> the same."""
        plan, rotary = active_plan(), kwargs.get("position_embeddings")
        if self.shape is None or plan is None or rotary is None:
            return self._own(hidden_states, *args, **kwargs)
        attend, over = self.attention(plan.pool.size), passes()
        width, count = self._width, hidden_states.shape[1]
        if (
            attend is None
            or over is None
            or any(x.shape != (1, count, width) or x.dtype != hidden_states.dtype for x in rotary)
        ):
            return self._own(hidden_states, *args, **kwargs)
        before, behind = self._norms
        residual = hidden_states.contiguous()
        x = over.rms_norm(residual, before.weight, before.variance_epsilon)
        heads = [part.view(count, -1, width) for part in torch.split(self._qkv.product(x)[0], self._sizes, -1)]
        query, key, value = (
            (part if norm is None else norm(part)).transpose(0, 1)
            for part, norm in zip(heads, (*self._head_norms, None), strict=True)
        )
        cells = plan.pool.tensors(self._number, key, value)
        mixed = torch.empty((1, count, self._sizes[0]), dtype=x.dtype)
        turn = (rotary[0].contiguous(), rotary[1].contiguous())
        attend(plan, (query, key, value), cells, self.shape.scale, self.shape.window, mixed, turn)
        residual = self._out.plus(mixed, residual)
        x = over.rms_norm(residual, behind.weight, behind.variance_epsilon)
        return self._down.plus(self._up.times(x, self._gate.swish(x)), residual)


class FusedLayers:
    """All decoder layers of a model that can be fused; none where that is not known of every one."""

    def __init__(self, model: torch.nn.Module, linears: PackedLinears | None) -> None:
        known = [m for m in model.modules() if _known(m)]
        layers = [FusedLayer(m, linears) for m in known] if linears is not None else []
        self._layers = layers if all(layer.fits for layer in layers) else []
        self.untried = bool(self._layers)

    def can_run(self, size: int) -> bool:
        """Whether what they need is compiled, for blocks of `size` cells."""
        return bool(self._layers) and self._layers[0].attention(size) is not None

    def swap_in(self) -> None:
        for layer in self._layers:
            layer.swap_in()

    def swap_out(self) -> None:
        for layer in self._layers:
            layer.swap_out()

    def use(self, shapes: dict[int, Shape]) -> bool:
        """Run fused from now on; shapes: how each layer attends.  False where that is not what the kernels can do."""
        self.untried = False
        for layer in self._layers:
            shape = shapes.get(layer._number)
            if shape is None or shape.softcap is not None or shape.sinks is not None:
                self.give_up("a layer attends in another way")
                return False
            layer.shape = shape
        return True

    def give_up(self, reason: str) -> None:
        """Run the model's own code from now on."""
        _LOG.info("the decoder layers run by the model's own code, not fused: %s", reason)
        for layer in self._layers:
            layer.shape = None


def _known(module: torch.nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ in _CLASSES and kind.__module__.startswith("transformers.models.")
