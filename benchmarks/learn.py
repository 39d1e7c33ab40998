"""Learning proof: how far GRPO lifts a small model on held-out tasks, and what token-exactness has to do with it.

    python benchmarks/learn.py --quick                        # 3 minutes: one seed, an easier goal
    python benchmarks/learn.py --seeds 0 1 2 --minutes 20     # toolstep-tiny on Calculator level 2
    python benchmarks/learn.py --seeds 0 --minutes 20 --ablations
    python benchmarks/learn.py --smollm2 --minutes 60         # SmolLM2-135M with LoRA on Calculator level 1
    python benchmarks/learn.py --plot                         # figure and table of all that is in --out

Each run writes a line after each evaluation (seconds since its start, evaluations included; success on tasks of the
test split, greedy) to OUT/<name>.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from ablations import DamagedGRPO, ablations

import toolstep.envs  # noqa: F401 - registers the envs
from toolstep.agents import LLMAgent, SamplingParams
from toolstep.rollout import evaluate
from toolstep.rollout.learn import GRPO, Training

ENV = "toolstep/Calculator-v0"


@dataclass(frozen=True)
class Setting:
    """One kind of run."""

    model: str
    level: int
    shots: int = 0
    lora: int | None = None
    learning_rate: float = 3e-4
    groups: int = 16
    group_size: int = 8
    max_new_tokens: int = 64
    eval_every: int = 10
    eval_episodes: int = 200
    eval_temperature: float = 0.0
    micro_tokens: int = 16384


TINY = Setting("tiny-sft", level=2)
# Evaluated as it is trained, sampling at temperature 1: greedily two examples already suffice.
SMOLLM2 = Setting(
    "smollm2", level=1, shots=2, lora=16, learning_rate=2e-4, groups=8, eval_episodes=100, eval_temperature=1.0
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run of 2 minutes; exit code 1 below --reach")
    parser.add_argument("--reach", type=float, default=0.8, help="test success that --quick must reach")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--smollm2", action="store_true")
    parser.add_argument("--model", help="another model than the setting's")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/learn"))
    parser.add_argument("--plot", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    setting = SMOLLM2 if args.smollm2 else TINY
    if args.model:
        setting = Setting(**{**setting.__dict__, "model": args.model})
    if args.plot:
        from learn_plot import plot

        plot(args.out)
        return
    minutes = 2.0 if args.quick else args.minutes
    last = 0.0
    for seed in args.seeds:
        kinds = [None, *ablations(_schemas(setting))] if args.ablations else [None]
        for kind in kinds:
            name = f"{setting.model}-{kind or 'exact'}-{seed}".replace(" ", "_").replace("/", "_")
            last = run(setting, seed, minutes, kind, args.out / f"{name}.jsonl")
    if args.quick and last < args.reach:
        raise SystemExit(f"test success {last:.3f}, expected at least {args.reach}")


def run(setting: Setting, seed: int, minutes: float, kind: str | None, path: Path) -> float:
    """Train for that long, log to `path`; the last test success."""
    agent = _agent(setting, seed)
    options = {"level": setting.level, "max_turns": 4, **({"shots": setting.shots} if setting.shots else {})}
    rows = setting.groups * setting.group_size
    envs = gym.make_vec(ENV, num_envs=rows, split="train", **options, **agent.env_kwargs)
    tests = gym.make_vec(ENV, num_envs=min(rows, setting.eval_episodes), split="test", **options, **agent.env_kwargs)
    training = Training(
        learning_rate=setting.learning_rate,
        micro_tokens=setting.micro_tokens,
        eval_envs=tests,
        eval_every=setting.eval_every,
        eval_episodes=setting.eval_episodes,
        eval_temperature=setting.eval_temperature,
    )
    made: Any = GRPO if kind is None else DamagedGRPO
    learner = made(agent, envs, training, groups=setting.groups, group_size=setting.group_size, seed=seed)
    damage = None if kind is None else ablations(_schemas(setting))[kind]
    if damage is not None:
        learner.damage = damage
    before = by_shots(setting, agent)
    start = time.perf_counter()
    lines: list[dict[str, float]] = []

    def note(own: Any, metrics: Any) -> bool:
        seconds = time.perf_counter() - start
        line = {"seconds": seconds, "episodes": own.episodes, **metrics}
        lines.append(line)
        path.write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")
        if "eval/success" in line:
            print(
                f"{path.stem}: {seconds / 60:5.1f} min, {own.episodes} episodes, reward {metrics['reward']:.3f}, "
                f"test success {metrics['eval/success']:.3f}",
                flush=True,
            )
        return seconds < 60 * minutes

    first = learner.evaluate()
    lines.append({"seconds": time.perf_counter() - start, "episodes": 0, **first})
    print(f"{path.stem}: test success {first['eval/success']:.3f} at the start", flush=True)
    learner.iteration = 0
    learner.learn(10**9, callbacks=[note])
    final = learner.evaluate()["eval/success"]
    lines[-1]["eval/success"] = final
    path.write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")
    if isinstance(damage, object) and hasattr(damage, "seen"):
        print(f"{path.stem}: re-tokenised observations that were the same / not: {damage.seen}", flush=True)
    print(f"{path.stem}: test success {final:.3f} at the end", flush=True)
    if before:
        found = {"before": before, "after": by_shots(setting, agent)}
        path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{path.stem}: {found}", flush=True)
    envs.close()
    tests.close()
    return float(final)


def by_shots(setting: Setting, agent: LLMAgent) -> dict[str, float]:
    """Test success with as many solved examples as the setting has, and with fewer, greedily and sampling."""
    found = {}
    for shots in range(setting.shots + 1) if setting.shots else ():
        options = {"level": setting.level, "max_turns": 4, "shots": shots, "split": "test"}
        envs = gym.make_vec(ENV, num_envs=64, **options, **agent.env_kwargs)
        for temperature in (0.0, 1.0):
            agent.sampling = replace(agent.sampling, temperature=temperature)
            name = f"{shots} examples, {'sampling' if temperature else 'greedy'}"
            found[name] = evaluate(envs, agent, setting.eval_episodes, seed=0).success_rate
        envs.close()
    return found


def _agent(setting: Setting, seed: int) -> LLMAgent:
    torch.manual_seed(seed)

    def adapted(model: Any) -> Any:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=setting.lora, lora_alpha=2 * (setting.lora or 1), target_modules="all-linear")
        return get_peft_model(model, config)

    return LLMAgent.load(
        setting.model,
        sampling=SamplingParams(max_new_tokens=setting.max_new_tokens),
        seed=seed,
        wrap=adapted if setting.lora else None,
    )


def _schemas(setting: Setting) -> list[dict[str, Any]]:
    env: Any = gym.make(ENV, level=setting.level, disable_env_checker=True)
    env.reset(seed=0)
    schemas: list[dict[str, Any]] = env.unwrapped.schemas
    env.close()
    return schemas


if __name__ == "__main__":
    main()
