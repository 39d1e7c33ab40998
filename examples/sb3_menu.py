"""Learn toolstep/Lookup-v0 with stable-baselines3: which tool to call, what to read, what to answer, from a menu.

python examples/sb3_menu.py                                             # MaskablePPO (extra "sb3"), all three levels
python examples/sb3_menu.py --algorithm ppo --level 1 --steps 50000     # PPO, A2C or DQN need no extra
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium as gym
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback

from toolstep.agents import GymnasiumVecEnv, OracleAgent, RandomAgent, SB3Agent
from toolstep.rollout.evaluate import Summary, evaluate

ON_POLICY = {"gamma": 0.95, "learning_rate": 1e-3, "ent_coef": 0.01}
PPO = {**ON_POLICY, "n_steps": 64, "batch_size": 256}
SETTINGS: dict[str, dict[str, Any]] = {
    "maskable": PPO,
    "ppo": PPO,
    "a2c": {**ON_POLICY, "n_steps": 8},
    # With a gamma near 1, later is worth as much as now, and DQN looks things up for ever.
    "dqn": {"gamma": 0.9, "learning_rate": 5e-4, "target_update_interval": 500, "exploration_fraction": 0.3},
}


# Algorithms that heed no mask learn from this what is on offer.
LOST_TURN_COST = {"maskable": 0.0, "ppo": 0.05, "a2c": 0.05, "dqn": 0.05}


def make_envs(args: argparse.Namespace, **options: Any) -> Any:
    if args.level is not None:
        options["level"] = args.level
    return gym.make_vec(f"toolstep/{args.env}", num_envs=16, view="menu", autoreset_mode="SameStep", **options)


def make_algorithm(name: str) -> Any:
    if name == "maskable":
        from sb3_contrib import MaskablePPO

        return MaskablePPO
    return getattr(stable_baselines3, name.upper())


class Curve(BaseCallback):
    """Evaluates on the test split, a number of times in the course of training."""

    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.args = args
        self.every = max(1, args.steps // args.evaluations)
        self.started = time.perf_counter()
        self.spent = 0.0  # on evaluations

    def _on_step(self) -> bool:
        if self.num_timesteps // self.every > (self.num_timesteps - self.training_env.num_envs) // self.every:
            begun = time.perf_counter()
            show(
                f"{self.num_timesteps:>7} steps {begun - self.started - self.spent:>5.0f} s",
                score(SB3Agent(self.model), self.args),
            )
            self.spent += time.perf_counter() - begun
        return True


def score(agent: Any, args: argparse.Namespace) -> Summary:
    envs = make_envs(args, split="test")
    summary = evaluate(envs, agent, args.episodes, seed=1)
    envs.close()
    return summary


def show(name: str, summary: Summary) -> None:
    levels = "  ".join(f"level {k} {v.success_rate:.3f}" for k, v in summary.tags["level"].items())
    print(f"{name:<22} success {summary.success_rate:.3f}  turns {summary.turns:.2f}  {levels}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=SETTINGS, default="maskable")
    parser.add_argument("--env", default="Lookup-v0", help="Lookup-v0, Calculator-v0 or UnitConvert-v0")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), help="default: a mixture of all three")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=8, help="in the course of training")
    parser.add_argument("--episodes", type=int, default=200, help="of the test split, in each evaluation")
    parser.add_argument("--out", default="sb3_menu.zip")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the net is tiny: threads would wait for one another

    show("random", score(RandomAgent(), args))
    optimum = score(OracleAgent(), args)
    show("oracle: the optimum", optimum)

    envs = GymnasiumVecEnv(make_envs(args, lost_turn_cost=LOST_TURN_COST[args.algorithm]))
    algorithm = make_algorithm(args.algorithm)
    model = algorithm("MlpPolicy", envs, seed=args.seed, device="cpu", **SETTINGS[args.algorithm])
    curve = Curve(args)
    model.learn(args.steps, callback=curve)
    seconds = time.perf_counter() - curve.started - curve.spent
    model.save(args.out)
    envs.close()

    # The file gives the same agent: `toolstep eval lookup --agent sb3:sb3_menu.zip`
    found = score(SB3Agent.load(args.out), args)
    show(f"{args.algorithm}, trained", found)
    share = found.success_rate / optimum.success_rate
    print(f"{share:.1%} of the optimum after {model.num_timesteps} steps and {seconds:.0f} s of training: {args.out}")


if __name__ == "__main__":
    main()
