"""Weights that change under the engine: a LoRA adapter shared with a learner, loaded, merged, switched off."""

from __future__ import annotations

from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine import Engine
from toolstep.agents.engine.adapters import foldable
from toolstep.agents.engine.packed import PackedModel

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
peft = pytest.importorskip("peft", reason="needs the extra `lora` (pip install 'toolstep[lora]')")
ROWS = range(3)
TARGETS = {"gpt2": ["c_attn", "c_proj"], "bamba": ["in_proj", "q_proj"]}


def lora(family: str = "llama", dtype: torch.dtype = torch.float32, seed: int = 0, **options: Any) -> Any:
    """A PeftModel with an adapter that matters (a fresh one adds nothing)."""
    targets = TARGETS.get(family, ["q_proj", "v_proj", "up_proj", "down_proj"])
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.3, target_modules=targets, **options)
    changes = {"head_dim": 16} if family == "llama" else {}  # a size that the compiled layers take
    model = peft.get_peft_model(em.model(family, **changes).to(dtype), config, autocast_adapter_dtype=False)
    disturb(model, seed)
    return model.eval()


def disturb(model: Any, seed: int) -> None:
    """What a step of the optimiser does: change the trainable weights in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_((0.3 * noise).to(parameter.dtype))


def error(engine: Engine, model: Any) -> float:
    """Largest error of the log-probs of one more turn of each row against a plain forward of `model`."""
    worst = 0.0
    for row in ROWS:
        if not engine.started(row):
            engine.start(row, row)
        engine.extend(row, em.ids(row, 4 + 5 * row))
    for row, turn in zip(ROWS, engine.generate(ROWS, SamplingParams(max_new_tokens=5))):
        plain = em.full_forward(model, engine.context(row))[-6:-1]
        expected = [em.log_softmax(p)[t] for p, t in zip(plain, turn.token_ids)]
        worst = max(worst, float(np.abs(expected - turn.logprobs).max()))
    return worst


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "bamba"])
def test_an_adapter_that_a_learner_changes_in_place_is_in_the_next_samples(family: str) -> None:
    model = lora(family)
    engine = Engine(model, max_context=256)
    assert error(engine, model) <= 1e-4
    base = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    for version in (1, 2):
        model.train()
        disturb(model, version)
        assert engine.update_weights() == version
        model.eval()
        assert error(engine, model) <= 1e-4
    with model.disable_adapter():
        assert error(engine, model) > 0.01  # the adapter was in the samples
    frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    assert all(torch.equal(base[n], frozen[n]) for n in base)  # nothing was merged into the learner's weights


def test_the_learner_goes_on_training_the_shared_module() -> None:
    model = lora()
    model.train()
    engine = Engine(model)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    ids = torch.from_numpy(em.ids(0, 12))[None]
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        engine.update_weights()
        assert model.training
        model.eval()
        assert error(engine, model) <= 1e-4
        model.train()
    assert all("forward" not in m.__dict__ for m in model.modules())


def test_the_weights_of_an_adapter_are_loaded_in_place() -> None:
    model, learner = lora(seed=0), lora(seed=1)
    engine = Engine(model)
    error(engine, model)
    addresses = [p.data_ptr() for p in model.parameters()]
    assert engine.update_weights(peft.get_peft_model_state_dict(learner)) == 1
    assert error(engine, learner) <= 1e-4
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert engine.update_weights(lora(seed=2).state_dict()) == 2  # or everything, under the model's own names
    assert error(engine, lora(seed=2)) <= 1e-4


def test_an_adapter_that_does_not_fit_changes_nothing() -> None:
    model = lora()
    engine = Engine(model)
    state = {k: v.clone() for k, v in peft.get_peft_model_state_dict(lora(seed=1)).items()}
    first, second, third, *_ = state
    del state[first]
    state[second] = torch.zeros(1)
    state["surplus"] = state.pop(third)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=r"unknown: surplus; missing: .*lora_.*; of another shape: .*get_peft_model"):
        engine.update_weights(state)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert engine.weight_version == 0
    with pytest.raises(ValueError, match="unknown"):
        Engine(em.model(head_dim=16)).update_weights(peft.get_peft_model_state_dict(lora()))


def test_merged_adapters_switched_adapters_and_none_at_all() -> None:
    model = lora()
    engine = Engine(model)
    error(engine, model)
    model.merge_adapter()
    engine.update_weights()
    assert error(engine, model) <= 1e-4
    model.unmerge_adapter()
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["k_proj", "gate_proj"]))
    model.set_adapter("other")
    disturb(model, 5)
    engine.update_weights()
    assert error(engine, model.eval()) <= 1e-4
    with model.disable_adapter():
        engine.update_weights()
        assert error(engine, model) <= 1e-4
    plain = model.unload()
    engine.update_weights()
    assert error(engine, plain) <= 1e-4


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}, {"modules_to_save": ["lm_head"]}])
def test_adapters_of_other_kinds_are_right_as_well(options: dict[str, Any]) -> None:
    model = lora(**options)
    engine = Engine(model)
    assert error(engine, model) <= 1e-4
    disturb(model, 1)
    engine.update_weights()
    assert error(engine, model) <= 1e-4
    state = peft.get_peft_model_state_dict(lora(seed=3, **options))
    engine.update_weights(state)
    assert error(engine, lora(seed=3, **options)) <= 1e-4


def test_in_half_precision_an_adapter_is_kept_apart() -> None:
    """Folded in, one that is smaller than the rounding of the weights would be lost."""
    model = lora(dtype=torch.bfloat16)
    engine = Engine(model)
    assert error(engine, model) <= 0.1
    assert not any(foldable(module) for module in model.modules())
    assert any(foldable(module) for module in lora().modules())


def test_folded_layers_are_packed_as_plain_ones_are() -> None:
    """Query, key and value are one product, decoder layers run fused, and nothing is left of the adapter."""
    engines = [Engine(m) for m in (em.model(head_dim=16), lora())]
    assert len({e.packed.layers.can_run(32) for e in engines if isinstance(e.packed, PackedModel)}) == 1
    plain, adapted = (e.packed.linears for e in engines)
    if plain is None or adapted is None:
        pytest.skip("this torch has no packed linear layers")
    shapes = [[[tuple(layer.weight.shape) for layer in f.layers] for f in x.families] for x in (plain, adapted)]
    assert shapes[0] == shapes[1]
    assert max(map(len, shapes[0])) == 3
