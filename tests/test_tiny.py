"""toolstep-tiny: what is shipped plays by name, is exact, small and good, and never saw what it is tested on."""

from __future__ import annotations

import importlib.util
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors import safe_open

from toolstep.agents import LLMAgent, OracleAgent, SamplingParams, load_model, make_agent
from toolstep.agents.shipped import SHIPPED
from toolstep.envs.chat import ChatTemplate
from toolstep.envs.chat.audit import audit_template
from toolstep.envs.types import Source
from toolstep.rollout import collect, evaluate, group_specs

ROOT = Path(__file__).resolve().parent.parent
NAMES = sorted(SHIPPED)
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=128)


def script(name: str) -> ModuleType:
    """A module of examples/tiny, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "tiny" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """examples/tiny/tokenizer.py and train.py."""
    tokenizer = script("tokenizer")
    monkeypatch.setitem(sys.modules, "tokenizer", tokenizer)  # as train.py imports it
    return tokenizer, script("train")


def success(name: str, env: str, level: int, episodes: int) -> float:
    agent = LLMAgent.load(name, device="cpu", sampling=GREEDY)
    envs = gym.make_vec(f"toolstep/{env}-v0", num_envs=16, level=level, split="test", max_turns=12, **agent.env_kwargs)
    rate = evaluate(envs, agent, episodes, seed=7).success_rate
    envs.close()
    return rate


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_an_agent_whose_env_gets_the_folder(name: str) -> None:
    agent = make_agent(name, device="cpu")
    assert isinstance(agent, LLMAgent)
    assert agent.env_kwargs["tokenizer"] == str(SHIPPED[name])
    assert agent.model.dtype == torch.float32
    assert 2e6 <= sum(p.numel() for p in agent.model.parameters()) <= 4e6


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_half_precision_in_a_small_file(name: str) -> None:
    path = SHIPPED[name] / "model.safetensors"
    assert path.stat().st_size <= 6e6
    with safe_open(path, framework="pt") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"F16"}  # noqa: SIM118 - no dict
    assert load_model(name, "cpu", "float16").dtype == torch.float16


def test_all_files_of_the_models_are_packaged() -> None:
    import tomllib

    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for folder in SHIPPED.values():
        files = [p.relative_to(ROOT / "agents").as_posix() for p in folder.iterdir()]
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {Path(f).name for f in files}
        assert all(any(fnmatch(f, pattern) for pattern in data["toolstep.agents"]) for f in files)


@pytest.mark.parametrize("name", NAMES)
def test_every_delta_is_exact(name: str) -> None:
    audit = audit_template(str(SHIPPED[name]))
    assert {c.scenario: c.status for c in audit.checks if c.status not in ("exact", "n/a")} == {}
    assert audit.counts["exact"] >= 24


@pytest.mark.timeout(300)
def test_the_tokenizer_is_rebuilt_bit_for_bit(scripts: Any, tmp_path: Path) -> None:
    scripts[0].build().save_pretrained(tmp_path)
    for name in NAMES:
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            assert (tmp_path / file).read_bytes() == (SHIPPED[name] / file).read_bytes(), f"{name}: {file}"


@pytest.mark.parametrize(("env", "level"), [("Calculator", 2), ("Lookup", 1)])
def test_what_is_copied_into_a_call_is_the_same_ids_in_the_task(env: str, level: int) -> None:
    envs = gym.make_vec(
        f"toolstep/{env}-v0", num_envs=8, level=level, split="test", view="tokens", tokenizer=str(SHIPPED["tiny-sft"])
    )
    chat = ChatTemplate(str(SHIPPED["tiny-sft"]))
    for t in collect(envs, OracleAgent(), group_specs(40, 1, seed=3)):
        prompt = t.token_ids[: t.prompt_length]
        call = t.token_ids[(t.turn == 0) & (t.source == Source.SAMPLED)]
        inside = np.isin(call, prompt)
        for value in t.messages[2]["tool_calls"][0]["function"]["arguments"].values():
            if str(value).endswith(".0"):  # a whole number, which JSON writes as a float
                continue
            ids = _within(chat, call, str(value))
            assert _has(prompt, ids), (value, chat.decode(prompt))
        assert inside.any()
    envs.close()


def _within(chat: ChatTemplate, ids: np.ndarray, text: str) -> np.ndarray:
    """The ids that spell `text` in `ids`."""
    ends = [len(chat.decode(ids[: i + 1])) for i in range(len(ids))]
    start = chat.decode(ids).index(text)
    first, last = ends.index(start) + 1, ends.index(start + len(text))
    return ids[first : last + 1]


def _has(ids: np.ndarray, part: np.ndarray) -> bool:
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(part))
    return bool((windows == part).all(axis=1).any())


def test_training_reads_the_training_split_alone(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, train = scripts
    made: list[dict[str, Any]] = []
    make, make_vec = gym.make, gym.make_vec
    monkeypatch.setattr(gym, "make", lambda *a, **k: made.append(k) or make(*a, **k))
    monkeypatch.setattr(gym, "make_vec", lambda *a, **k: made.append(k) or make_vec(*a, **k))
    monkeypatch.setattr(tokenizer, "EPISODES", 1)
    assert len(list(tokenizer.solved())) == 9
    episodes = train.oracle_episodes(SHIPPED["tiny-sft"], dict.fromkeys(train.TASKS, 2), seed=1)
    assert [k["split"] for k in made] == ["train"] * 18
    assert {t.task_id.split("/")[-2] for t in episodes} == {"train"}


@pytest.mark.parametrize(
    ("env", "level", "least"), [("Calculator", 1, 0.9), ("UnitConvert", 1, 0.8), ("Lookup", 1, 0.35)]
)
def test_the_model_solves_the_first_level_of_each_task_set(env: str, level: int, least: float) -> None:
    assert success("tiny-sft", env, level, 40) >= least


def test_grpo_lifted_what_imitation_left_half_done() -> None:
    assert success("tiny-sft", "Calculator", 2, 100) <= 0.6
    assert success("tiny", "Calculator", 2, 100) >= 0.9
