"""Makes toolstep-tiny, the model that comes with the package: 2 million parameters that learn tool use from nothing.

    python examples/tiny/train.py --out runs/tiny           # what is done is not done again
    python examples/tiny/train.py --out runs/tiny --ship    # and put it into agents/tiny

Six stages, each a folder that `--agent hf:FOLDER` plays:

    base          the tokenizer (tokenizer.py), and a Llama with random weights
    copy          SFT on oracle episodes without their system message: copying numbers and names out of the context has
                  to be found first, and in whole prompts, where they are one place in a hundred, that takes ten times
                  as long
    whole         SFT on whole oracle episodes of Calculator, UnitConvert and Lookup, hardly any of Calculator level 2
    expressions   SFT on Calculator level 2, again without the system message; in whole prompts it still fails there
    sft           a few whole episodes of each, until it solves half of the level
    grpo          GRPO on Calculator level 2: reward alone, no oracle

All of it plays the training split; the problems of the test split, which the evaluations play, are never seen.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import tokenizer
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from toolstep.agents import LLMAgent, OracleAgent, SamplingParams
from toolstep.agents.shipped import SHIPPED
from toolstep.envs.chat import load_tokenizer
from toolstep.rollout import Trajectory, collect, evaluate, group_specs
from toolstep.rollout.learn import GRPO, SFT, Training, warmup
from toolstep.rollout.learn.optimizer import Schedule

SEED = 0
TASKS = [(env, level) for env in tokenizer.ENVS for level in tokenizer.LEVELS]
Episodes = Mapping[tuple[str, int], int]
COPY: Episodes = {
    ("Calculator", 1): 8000,
    ("UnitConvert", 1): 2000,
    ("UnitConvert", 2): 2000,
    ("UnitConvert", 3): 1000,
    ("Lookup", 1): 4000,
    ("Lookup", 2): 1000,
}
WHOLE: Episodes = {
    ("Calculator", 1): 2000,
    ("Calculator", 2): 100,
    ("Calculator", 3): 0,
    ("UnitConvert", 1): 1000,
    ("UnitConvert", 2): 1500,
    ("UnitConvert", 3): 4500,
    ("Lookup", 1): 7000,
    ("Lookup", 2): 6000,
    ("Lookup", 3): 4000,
}
EXPRESSIONS: Episodes = {
    ("Calculator", 1): 750,
    ("Calculator", 2): 6000,
    ("Lookup", 1): 375,
    ("UnitConvert", 2): 375,
}
LAST: Episodes = {
    ("Calculator", 1): 400,
    ("Calculator", 2): 110,
    **{task: 100 for task in TASKS if task[0] != "Calculator"},
}
GRPO_EPISODES = 48_000


def make_base(folder: Path) -> None:
    """A tokenizer that was trained, and a model that was not."""
    made = tokenizer.build()
    made.save_pretrained(folder)
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(made),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=tokenizer.CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=made.eos_token_id,
        pad_token_id=made.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=made.eos_token_id, pad_token_id=made.pad_token_id)
    model.save_pretrained(folder)


def make_copy(source: Path, folder: Path) -> None:
    imitate(source, folder, without_systems(source, COPY, seed=1), warmup(2e-3))


def make_whole(source: Path, folder: Path) -> None:
    imitate(source, folder, oracle_episodes(source, WHOLE, seed=2), warmup(2e-3, decay=True))


def make_expressions(source: Path, folder: Path) -> None:
    imitate(source, folder, without_systems(source, EXPRESSIONS, seed=3), warmup(1e-3, decay=True))


def make_sft(source: Path, folder: Path) -> None:
    imitate(source, folder, oracle_episodes(source, LAST, seed=3), warmup(1e-3, decay=True))
    agent = load(folder)
    agent.model.half().float()  # what is shipped is in half precision, and the next stage begins with that
    agent.save_pretrained(folder)


def imitate(source: Path, folder: Path, episodes: list[Trajectory], rate: Schedule) -> None:
    agent = load(source)
    training = Training(rate, weight_decay=0.1, betas=(0.9, 0.99), micro_tokens=2048, log=folder)
    SFT(agent, training, batch_rows=16, seed=SEED).learn(episodes, progress_bar=True)
    agent.save_pretrained(folder)


def make_grpo(source: Path, folder: Path) -> None:
    """The first of the runs of benchmarks/learn.py."""
    agent = LLMAgent.load(str(source), device="cpu", dtype="float32", sampling=SamplingParams(max_new_tokens=64))
    envs, tests = (make_envs("Calculator", 2, agent, split, max_turns=4) for split in ("train", "test"))
    rate = warmup(3e-4, 0.02, decay=True)
    training = Training(rate, micro_tokens=16384, log=folder, eval_envs=tests, eval_episodes=200)
    GRPO(agent, envs, training, groups=16, group_size=8, seed=SEED).learn(GRPO_EPISODES, progress_bar=True)
    agent.save_pretrained(folder)
    envs.close()
    tests.close()


STAGES = {
    "copy": make_copy,
    "whole": make_whole,
    "expressions": make_expressions,
    "sft": make_sft,
    "grpo": make_grpo,
}


def load(folder: Path) -> LLMAgent:
    return LLMAgent.load(str(folder), device="cpu", dtype="float32", sampling=SamplingParams(max_new_tokens=128))


def make_envs(env: str, level: int, agent: Any, split: str, max_turns: int = 12) -> Any:
    options = {"level": level, "split": split, "max_turns": max_turns, **agent.env_kwargs}
    return gym.make_vec(f"toolstep/{env}-v0", num_envs=128, **options)


def oracle_episodes(folder: Path, episodes: Episodes, seed: int) -> list[Trajectory]:
    """Solved tasks of the training split, as ids of the tokenizer in `folder`."""
    out: list[Trajectory] = []
    for number, ((env, level), count) in enumerate(episodes.items()):
        options = {"level": level, "split": "train", "max_turns": 12, "view": "tokens", "tokenizer": str(folder)}
        envs = gym.make_vec(f"toolstep/{env}-v0", num_envs=32, **options)
        specs = group_specs(count, 1, seed=1000 * seed + number)
        out += collect(envs, OracleAgent(), specs)
        envs.close()
    assert all(t.total_reward == 1.0 for t in out)
    return out


def without_systems(folder: Path, episodes: Episodes, seed: int) -> list[Trajectory]:
    opening = load_tokenizer(str(folder)).convert_tokens_to_ids("<|im_start|>")
    return [without_system(t, opening) for t in oracle_episodes(folder, episodes, seed)]


def without_system(t: Trajectory, opening: int) -> Trajectory:
    """The episode from its user message on; opening: the id that opens a message."""
    start = int(np.flatnonzero(t.token_ids[: t.prompt_length] == opening)[-2])
    arrays = ("token_ids", "source", "logprobs", "model_logprobs", "turn", "weight_versions")
    return replace(t, prompt_length=t.prompt_length - start, **{name: getattr(t, name)[start:] for name in arrays})


def report(folder: Path, episodes: int) -> None:
    """Greedy success on the test split, to `folder`/success.json."""
    agent = LLMAgent.load(str(folder), device="cpu", sampling=SamplingParams(temperature=0.0, max_new_tokens=128))
    found = {}
    for env, level in TASKS:
        envs = make_envs(env, level, agent, "test")
        found[f"{env} {level}"] = evaluate(envs, agent, episodes, seed=SEED).success_rate
        envs.close()
    (folder / "success.json").write_text(json.dumps(found, indent=1) + "\n")
    print(folder.name, *(f"{name}: {success:.3f}" for name, success in found.items()), sep="\n  ", flush=True)


def ship(source: Path, target: Path, base: Path) -> None:
    """The model in half precision, and the tokenizer as it was made (transformers writes where it was loaded from)."""
    agent = load(source)
    agent.model.to(torch.float16)
    agent.save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(base / name, target / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/tiny"))
    parser.add_argument("--episodes", type=int, default=200, help="test episodes of each env and level")
    parser.add_argument("--ship", action="store_true", help="write what the package has of them to agents/tiny")
    args = parser.parse_args()
    source = args.out / "base"
    if not (source / "model.safetensors").is_file():
        make_base(source)
    for name, make in STAGES.items():
        folder = args.out / name
        if not (folder / "success.json").is_file():
            start = time.perf_counter()
            make(source, folder)
            print(f"{name}: {(time.perf_counter() - start) / 60:.1f} minutes", flush=True)
            report(folder, args.episodes)
        source = folder
    if args.ship:
        for folder in SHIPPED.values():
            ship(args.out / folder.name, folder, args.out / "base")


if __name__ == "__main__":
    main()
