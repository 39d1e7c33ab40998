"""LoRA adapters of peft: what they add to a layer's weight, and how new ones are loaded."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from typing import Any, TypeGuard

import torch


def foldable(layer: object) -> TypeGuard[torch.nn.Linear]:
    """Whether a layer is a Linear with LoRA adapters that one fp32 matrix can stand for.

    In half precision an adapter can be smaller than the rounding of the weight that it is added to.
    """
    module = sys.modules.get("peft.tuners.lora.layer")
    if module is None or type(layer) is not module.Linear:
        return False
    lora: Any = layer
    base = lora.get_base_layer()
    if (
        type(base) is not torch.nn.Linear
        or "forward" in base.__dict__
        or base._forward_hooks
        or base._forward_pre_hooks
    ):
        return False
    if lora.merged:
        return not lora.disable_adapters  # else its forward takes the adapters out again
    return all(
        adapter not in getattr(lora, "lora_variant", {})
        and not getattr(lora, "lora_bias", {}).get(adapter)
        and type(lora.lora_A[adapter]) is type(lora.lora_B[adapter]) is torch.nn.Linear
        and lora.lora_A[adapter].weight.dtype == base.weight.dtype == torch.float32
        for adapter in _active(lora)
    )


def folded(layer: torch.nn.Linear) -> torch.Tensor:
    """The weight that a plain or `foldable` layer amounts to; the layer's own is not touched."""
    weight = layer.weight.detach()
    for adapter in _active(layer):
        weight = weight + layer.get_delta_weight(adapter).detach()  # type: ignore[operator]
    return weight


def switches(layer: object) -> Hashable:
    """What of a layer's adapters is no tensor: which are active, whether merged or off, and by what factors."""
    if not hasattr(layer, "lora_A"):
        return None
    lora: Any = layer
    return tuple(lora.active_adapters), lora.merged, lora.disable_adapters, tuple(sorted(lora.scaling.items()))


def adapter_state(model: Any) -> dict[str, torch.Tensor] | None:
    """The active adapter's weights under the names that peft saves them by; None: the model has no adapter."""
    if not hasattr(model, "peft_config"):
        return None
    from peft import get_peft_model_state_dict

    state: dict[str, torch.Tensor] = get_peft_model_state_dict(
        model, adapter_name=_name(model), save_embedding_layers=False
    )
    return state


def load_adapter(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Copy weights into the active adapter."""
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(model, dict(state), adapter_name=_name(model))


def _name(model: Any) -> str:
    active = model.active_adapters if hasattr(model, "active_adapters") else [model.active_adapter]
    names: list[str] = active() if callable(active) else active
    if len(names) != 1:
        raise ValueError(f"update_weights: expected one active adapter to load weights into, there are {names}")
    return names[0]


def _active(layer: Any) -> list[str]:
    if not hasattr(layer, "lora_A") or layer.merged or layer.disable_adapters:
        return []
    return [name for name in layer.active_adapters if name in layer.lora_A]
