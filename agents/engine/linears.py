"""Linear layers in the layout of the CPU's matrix kernels (oneDNN), products of one input fused.

A decode step multiplies a few rows by every weight of the model; a plain `Linear` brings the weight into the kernel's
layout at each call.  Here that is done once for each version of the weights, LoRA adapters folded in.  Query, key and
value projections have the same input: one product for such a family.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeGuard

import torch

from toolstep.agents.engine.adapters import foldable, folded

_ROWS = 64  # the number of rows that the layout is made for; others work as well
_DTYPES = (torch.float32, torch.bfloat16)
# oneDNN, and torch's layer above it, compile code for each shape of a layer and each number of rows, and keep 0.6 MB
# for each of the last 1,024: in rollouts, where the number of rows changes at every step, more than the keys and
# values.  A step needs six or so; what comes again later is compiled again in a millisecond.
_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
_KERNELS = 32
# Names of sibling layers that transformers calls with one and the same input, in the order of the calls.
_SIBLINGS = (("q_proj", "k_proj", "v_proj"),)
Forward = Callable[[torch.Tensor], torch.Tensor]


class Family:
    """Layers with one input: the first that is called computes the product of all."""

    def __init__(self, layers: list[torch.nn.Linear]) -> None:
        self.layers = layers
        self.weight: torch.Tensor | None = None
        self.bias: torch.Tensor | None = None
        self._input: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()
        self._sizes = [layer.out_features for layer in layers]

    def pack(self) -> None:
        weights = [folded(layer) for layer in self.layers]
        self.weight = _reorder(weights[0] if len(weights) == 1 else torch.cat(weights), _ROWS)
        biases = [layer.bias for layer in self.layers]
        if all(b is None for b in biases):
            self.bias = None
        else:
            self.bias = torch.cat(
                [
                    torch.zeros(n, dtype=w.dtype) if b is None else b.detach()
                    for b, n, w in zip(biases, self._sizes, weights, strict=True)
                ]
            )

    def forward(self, index: int) -> Forward:
        if len(self.layers) == 1:
            return self.product

        def part(x: torch.Tensor) -> torch.Tensor:
            if x is not self._input:
                self._input, self._parts = x, torch.split(self.product(x), self._sizes, -1)
            out = self._parts[index]
            if index == len(self.layers) - 1:
                self._input, self._parts = None, ()
            return out

        return part

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] -> [..., out], the outputs of all layers side by side."""
        return self._pointwise(x, "none")

    def swish(self, x: torch.Tensor) -> torch.Tensor:
        """silu(product(x)), in one pass."""
        return self._pointwise(x, "swish")

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """product(x) * other, in one pass."""
        return self._binary(x, other, "mul")

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """product(x) + other, in one pass."""
        return self._binary(x, other, "add")

    def _pointwise(self, x: torch.Tensor, name: str) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.weight, self.bias, name, [], "")
        return out

    def _binary(self, x: torch.Tensor, other: torch.Tensor, name: str) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, name)
        return out


class PackedLinears:
    """Replaces the `forward` of a model's linear layers while it samples; the weights stay where they are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.families: list[Family] = []
        self._swaps: list[tuple[dict[str, Any], Forward]] = []
        self.weights_changed()

    def weights_changed(self) -> None:
        """Look at the layers anew (adapters come, go, are switched on and off), and pack before the next use."""
        self._ready = False
        found = self._find()
        if found != [family.layers for family in self.families]:
            self.families = [Family(layers) for layers in found]
            self._swaps = [
                (layer.__dict__, family.forward(i)) for family in self.families for i, layer in enumerate(family.layers)
            ]

    def _find(self) -> list[list[torch.nn.Linear]]:
        """The layers that can be packed, those with one input together."""
        out: list[list[torch.nn.Linear]] = []
        taken: set[int] = set()
        modules: list[object] = list(self._model.modules())
        siblings: list[list[object]] = [
            [getattr(module, name, None) for name in names] for module in modules for names in _SIBLINGS
        ]
        for layers in (*siblings, *([module] for module in modules)):
            plain = [layer for layer in layers if _plain(layer) and id(layer) not in taken]
            if len(plain) == len(layers) and len({layer.weight.dtype for layer in plain}) == 1:
                out.append(plain)
                taken.update(id(part) for layer in plain for part in layer.modules())
        return out

    def family(self, layer: object) -> Family | None:
        """The family of a layer; None where it runs by its own forward."""
        return next((family for family in self.families if any(layer is own for own in family.layers)), None)

    def swap_in(self) -> None:
        if not self._ready:
            for family in self.families:
                family.pack()
            self._ready = True
        for attributes, forward in self._swaps:
            attributes["forward"] = forward

    def swap_out(self) -> None:
        for attributes, _ in self._swaps:
            attributes.pop("forward", None)


def can_pack(model: torch.nn.Module) -> bool:
    """Whether this torch has the kernels, on the device and in the dtype of the model."""
    weight = next((p for p in model.parameters() if p.ndim == 2), None)
    if weight is None or weight.device.type != "cpu" or weight.dtype not in _DTYPES:
        return False
    for name in _CACHES:  # read once in a process, at the first use of oneDNN
        os.environ.setdefault(name, str(_KERNELS))
    try:
        probe = torch.zeros(2, 16, dtype=weight.dtype)
        torch.ops.mkldnn._linear_pointwise(
            probe, _reorder(torch.zeros(8, 16, dtype=weight.dtype), 2), None, "none", [], ""
        )
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True


def _plain(layer: object) -> TypeGuard[torch.nn.Linear]:
    """A Linear with nothing around it (no hooks, no forward of its own) or with adapters that can be folded in."""
    return (
        (type(layer) is torch.nn.Linear or foldable(layer))
        and "forward" not in layer.__dict__
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and layer.weight.dtype in _DTYPES
        and layer.weight.device.type == "cpu"
    )


def _reorder(weight: torch.Tensor, rows: int) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return out
