"""TrainingRun: what `toolstep train` does, from its options to a trained model in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tqdm import tqdm

from toolstep.agents.base import SamplingParams
from toolstep.agents.llm import LLMAgent
from toolstep.agents.scripted import OracleAgent
from toolstep.rollout import console, storage
from toolstep.rollout.build import env_options, find_env, reward_options
from toolstep.rollout.collect import collect, group_specs
from toolstep.rollout.config import versions
from toolstep.rollout.evaluate import succeeded
from toolstep.rollout.given import named_tool
from toolstep.rollout.learn.dpo import DPO
from toolstep.rollout.learn.grpo import GRPO
from toolstep.rollout.learn.learner import Learner, Training
from toolstep.rollout.learn.log import read_log
from toolstep.rollout.learn.optimizer import warmup
from toolstep.rollout.learn.sft import SFT
from toolstep.rollout.objective import OBJECTIVES
from toolstep.rollout.storage import StorageError, write_json
from toolstep.rollout.types import Trajectory

_CHECKPOINT = "checkpoint.safetensors"


def resumed(out: Path, method: str, values: Mapping[str, Any], given: set[str]) -> dict[str, Any]:
    """The options of the run in `out`; those that were `given` again must agree with it, except the episodes."""
    path = out / "config.json"
    with storage.clear_errors(path, "read"):
        text = path.read_text(encoding="utf-8")
    try:
        saved = json.loads(text)
    except ValueError as error:
        raise StorageError(f"{path} is no JSON: {error}") from None
    if not isinstance(saved, dict) or not isinstance(saved.get("options"), dict) or "method" not in saved:
        raise StorageError(f"{out} holds no run of `toolstep train`: {path} has no method and options")
    if saved["method"] != method:
        raise StorageError(f"{out} holds a run of `toolstep train {saved['method']}`, not of {method}")
    values = json.loads(json.dumps(dict(values)))  # as they are read back: a tuple is a list there
    options: dict[str, Any] = {**values, **saved["options"]}  # one that is newer than the run has its default
    free = set() if method == "sft" else {"episodes"}
    for name in sorted(given - free):
        if values[name] != options[name]:
            raise ValueError(
                f"--{name.replace('_', '-')} is {options[name]!r} in {path}, got {values[name]!r}: a resumed run keeps "
                f"its options{' (all but --episodes)' if free else ''}"
            )
    if given & free:
        options["episodes"] = values["episodes"]
    return options


class TrainingRun:
    """One run of `toolstep train`.

    method: "sft", "grpo" or "dpo".  options: those of the command.  Raises, before anything heavy is done, for options
    that cannot work and for a folder that cannot be used.
    """

    def __init__(self, method: str, out: Path, options: Mapping[str, Any], *, resume: bool) -> None:
        self.method = method
        self.out = out
        self.options = dict(options)
        self.resume = resume
        self.interrupted = False
        if bool(options["env"]) == bool(options["tasks"]) or not options["model"]:
            raise ValueError("one of --env and --tasks, and --model are needed, unless --resume is given")
        if method != "sft" and len(options["env"] or ()) > 1:
            raise ValueError(f"train {method} takes one --env, got {len(options['env'])}")
        if method == "sft" and options["teacher"] not in ("oracle", "self"):
            raise ValueError(f"--teacher must be oracle or self, got {options['teacher']!r}")
        storage.check_folder(out, overwrite=resume)
        self._env_ids = [find_env(name) for name in options["env"] or ["jsonl"]]
        wrap = None if options["lora"] is None else _lora(options["lora"], options["seed"])
        sampling = SamplingParams(temperature=options["temperature"], max_new_tokens=options["max_new_tokens"])
        name = options["model"].removeprefix("hf:")
        self.agent = LLMAgent.load(
            name, device=options["device"], dtype="float32", sampling=sampling, seed=options["seed"], wrap=wrap
        )
        self._made: list[Any] = []
        self.learner = self._learner()

    def _envs(self, env_id: str, split: str) -> Any:
        o = self.options
        options = env_options(
            level=o["level"], shots=o["shots"] or None, max_turns=o["max_turns"], path=o["tasks"]
        ) | reward_options(o["reward"], o["reward_weight"], o["reward_clip"])
        if o["tool"]:
            options["tools"] = [named_tool(name) for name in o["tool"]]
        envs = gym.make_vec(env_id, num_envs=o["num_envs"], split=split, **options, **self.agent.env_kwargs)
        self._made.append(envs)
        return envs

    def _learner(self) -> Learner:
        o = self.options
        training = Training(
            learning_rate=warmup(o["learning_rate"], decay=self.method == "sft"),
            micro_tokens=o["micro_tokens"],
            log=self.out,
            save=self.out / _CHECKPOINT,
            save_every=o["save_every"],
            eval_envs=self._envs(self._env_ids[0], "test") if o["eval_episodes"] else None,
            eval_every=o["eval_every"],
            eval_episodes=o["eval_episodes"] or 1,
        )
        if self.method == "sft":
            return SFT(self.agent, training, batch_rows=o["batch_rows"], seed=o["seed"])
        shared = {name: o[name] for name in ("groups", "group_size", "rollout_interval", "seed")}
        envs = self._envs(self._env_ids[0], "train")
        if self.method == "dpo":
            return DPO(self.agent, envs, training, beta=o["beta"], **shared)
        if o["objective"] not in OBJECTIVES:
            raise ValueError(f"--objective must be one of {', '.join(OBJECTIVES)}, got {o['objective']!r}")
        objective = OBJECTIVES[o["objective"]]
        if objective.reduction == "constant-length":
            objective = replace(objective, length=o["max_new_tokens"])
        objective = replace(objective, kl_coef=o["kl_coef"])
        reference = "frozen" if o["kl_coef"] else None
        return GRPO(self.agent, envs, training, objective=objective, reference=reference, **shared)

    def train(self, *, quiet: bool) -> None:
        """Train, or go on; Ctrl-C ends the run at its last checkpoint, from which it can be resumed.

        A run that was ended before its first checkpoint begins again from its options.
        """
        with storage.locked(self.out):
            storage.remove_leftovers(self.out, [_CHECKPOINT])
            # Of a resumed run too: its episodes may be more now.
            document = {"method": self.method, "options": self.options, "versions": versions()}
            write_json(self.out / "config.json", document)
            self._train(bar=not quiet)

    def _train(self, *, bar: bool) -> None:
        try:
            data = self._solved(bar) if isinstance(self.learner, SFT) else []
            if self.resume and (self.out / _CHECKPOINT).is_file():
                self.learner.restore(self.out / _CHECKPOINT)
            elif self.learner.log is not None:
                self.learner.log.resume_at(-1)
            if isinstance(self.learner, SFT):
                self.learner.learn(data, epochs=self.options["epochs"], progress_bar=bar)
            elif isinstance(self.learner, (GRPO, DPO)):
                self.learner.learn(self.options["episodes"], progress_bar=bar)
        except KeyboardInterrupt:
            self.interrupted = True
            return
        finally:
            for envs in self._made:
                envs.close()
        self.agent.save_pretrained(self.out / "model")

    def _solved(self, bar: bool) -> list[Trajectory]:
        """The episodes to imitate; those of a resumed run are the same ones, played again from the same weights."""
        o = self.options
        agent: Any = OracleAgent() if o["teacher"] == "oracle" else self.agent
        out = []
        for number, env_id in enumerate(self._env_ids):
            seed = int(np.random.SeedSequence(o["seed"], spawn_key=(number,)).generate_state(1)[0])
            specs = group_specs(o["episodes"], 1, seed)
            with tqdm(
                total=len(specs), desc=f"{o['teacher']} on {env_id}", unit="episode", disable=None if bar else True
            ) as shown:
                envs = self._envs(env_id, "train")
                done = collect(envs, agent, specs, seed=seed, on_episode=lambda _, shown=shown: shown.update())  # type: ignore[misc]
            out += [t for t in done if succeeded(t)]
        if not out:
            raise ValueError(
                f"none of {o['episodes']} episodes of teacher {o['teacher']!r} succeeded, nothing to learn"
            )
        return out

    def document(self) -> dict[str, Any]:
        """What --json prints."""
        lines = read_log(self.out / "metrics.jsonl") if (self.out / "metrics.jsonl").is_file() else []
        successes = [line["eval/success"] for line in lines if "eval/success" in line]
        return {
            "method": self.method,
            "options": self.options,
            "iterations": self.learner.iteration,
            "episodes": self.learner.episodes,
            "test_success": {"first": successes[0], "last": successes[-1]} if successes else None,
            "last": lines[-1] if lines else None,
            "interrupted": self.interrupted,
            "out": str(self.out),
        }

    def show(self) -> None:
        """Print what came of it."""
        d = self.document()
        items = [("iterations", str(d["iterations"])), ("episodes", str(d["episodes"]))]
        if d["test_success"]:
            items.append(("test success", f"{d['test_success']['first']:.3f} -> {d['test_success']['last']:.3f}"))
        for name in ("loss", "reward", "success", "kl", "entropy", "rollout_tokens_per_second"):
            if d["last"] and name in d["last"]:
                items.append((f"{name} (last)", f"{d['last'][name]:.4g}"))
        title = f"{self.method} of {self.options['model']} on {', '.join(self._env_ids)}"
        console.print_pairs(title + (" (interrupted)" if self.interrupted else ""), items)
        told = f"go on with --resume --out {self.out}" if self.interrupted else f"agent: hf:{self.out / 'model'}"
        console.print_line(told)


def _lora(rank: int, seed: int) -> Callable[[Any], Any]:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ImportError("--lora needs peft: pip install 'toolstep[lora]'") from None
    torch.manual_seed(seed)  # for the adapters' first weights
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return lambda model: get_peft_model(model, config)
