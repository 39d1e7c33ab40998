"""TRL: a `rollout_func` for its GRPOTrainer, which plays a vector env with the model that is being trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv

from toolstep.envs.vector_envs import row_info
from toolstep.rollout.collect import collect
from toolstep.rollout.export.rows import ExportError, whole_rows
from toolstep.rollout.specs import EpisodeSpec, task_seeds
from toolstep.rollout.types import OK, Trajectory

if TYPE_CHECKING:
    from toolstep.agents.llm import LLMAgent

RolloutFunc = Callable[[list[Any], Any], dict[str, list[Any] | None]]
SEED = "task_seed"  # of a message of the prompt: the trainer hands its rollout_func prompts and nothing else


def to_trl(trajectories: Sequence[Trajectory], *, pad_id: int = 0) -> dict[str, list[Any] | None]:
    """What a `rollout_func` returns: lists with one entry for each trajectory, in order.

    prompt_ids; completion_ids, everything behind the prompt up to the last sampled id, tool results included; env_mask,
        1 at sampled ids; logprobs, of the distribution that was sampled from, 0.0 off the mask, None where a script
        wrote a turn.  The last three have one length a row, and nothing is shifted.
    env_reward: the total reward; None for an episode that failed, which TRL keeps out of the group's baseline and gives
        advantage 0.  Its env_mask is all 0.
    env_status, env_stop_reason, env_success: as the trajectory has them.  TRL hands all keys that begin with `env_`,
        but the mask, to the reward functions.

    pad_id: stands for a completion in which nothing was sampled, off the mask.
    Raises `ExportError` for an episode of several contexts, and what `segment_rows` raises.
    """
    rows = whole_rows(trajectories, pad_id, "TRL")
    known = all(row.trajectory.has_logprobs for row in rows)
    return {
        "prompt_ids": [row.prompt_ids.tolist() for row in rows],
        "completion_ids": [row.response_ids.tolist() for row in rows],
        "env_mask": [row.mask.astype(int).tolist() for row in rows],
        "logprobs": [row.logprobs.tolist() for row in rows] if known else None,
        "env_reward": [row.trajectory.total_reward if row.usable else None for row in rows],
        "env_status": [row.trajectory.status for row in rows],
        "env_stop_reason": [row.trajectory.stop_reason for row in rows],
        "env_success": [row.usable and row.trajectory.metrics.get("success", 0.0) == 1.0 for row in rows],
    }


def env_reward(env_reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """The reward function for `GRPOTrainer(reward_funcs=env_reward)`: what the env paid."""
    return list(env_reward)


def task_rows(envs: VectorEnv[Any, Any, Any], num_tasks: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows for `datasets.Dataset.from_list`: `num_tasks` tasks of `envs`, those that `group_specs` would choose.

    prompt: the opening messages, for the trainer's log; each message names the seed of its task, by which
        `rollout_func` plays it.  task_seed: the same as a column, for `environment_factory`.
    The env is reset; call this before the training, not beside it.
    """
    out = []
    seeds = task_seeds(num_tasks, seed)
    for start in range(0, num_tasks, envs.num_envs):
        chunk = seeds[start : start + envs.num_envs]
        # Every row must be reset; those behind the last task play it once more.
        every: Any = chunk + chunk[-1:] * (envs.num_envs - len(chunk))
        _, infos = envs.reset(seed=every)
        for row, task_seed in enumerate(chunk):
            info = row_info(infos, row)
            if info.get("status", OK) != OK:
                raise ExportError(f"the task of seed {task_seed} cannot be begun: {info.get('error')}")
            messages = info["new_messages"]
            prompt = [{"role": m["role"], "content": m["content"], SEED: task_seed} for m in messages]
            out.append({"prompt": prompt, SEED: task_seed})
    return out


def rollout_func(envs: VectorEnv[Any, Any, Any], agent: LLMAgent, *, seed: int = 0) -> RolloutFunc:
    """A function for `GRPOTrainer(rollout_func=...)` that plays each prompt's task in `envs`.

    The train dataset is made of `task_rows(envs, ...)`: a prompt's messages name its task, the repeated prompts are a
    group, and its members start from identical ids.  The agent samples with the weights of that moment: where its model
    is the trainer's own object, its caches are dropped; a model of its own gets a copy of the weights.

    seed: with the optimiser's step, the process and the task it decides all samples; the same run samples the same ids.

    Raises `ExportError`, when it is made, for an env with history="rerender" (a new context is a row of its own, and
    TRL takes one for each prompt), and, when it is called, for a prompt without a task and for an agent whose
    temperature is not the trainer's: its loss would be that of another distribution.
    """
    config = getattr(envs.unwrapped, "config", None)
    if getattr(config, "history", "keep") == "rerender":
        raise ExportError("TRL takes one row a prompt; make the env with history='keep' or 'error', not 'rerender'")
    calls: Counter[int] = Counter()

    def play(prompts: list[Any], trainer: Any) -> dict[str, list[Any] | None]:
        seeds = [_task_seed(n, prompt) for n, prompt in enumerate(prompts)]
        _check_temperature(agent, trainer)
        _take_weights(agent, trainer)
        step = int(trainer.state.global_step)
        entropy = [seed, step, calls[step], int(trainer.accelerator.process_index)]
        calls[step] += 1
        run = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]) >> 1
        return to_trl(collect(envs, agent, _specs(seeds), seed=run), pad_id=_pad_id(trainer))

    return play


def _task_seed(number: int, prompt: Any) -> int:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], Mapping):
        found = prompt[0].get(SEED)
        if isinstance(found, int) and found >= 0:
            return found
    raise ExportError(
        f"prompt {number} names no task: make the train dataset of task_rows(envs, ...), whose messages have a "
        f"{SEED!r}; got {str(prompt)[:200]}"
    )


def _specs(seeds: Sequence[int]) -> list[EpisodeSpec]:
    """One episode a prompt; those of one task are samples of one group."""
    groups: dict[int, int] = {}
    counts: Counter[int] = Counter()
    out = []
    for task_seed in seeds:
        group = groups.setdefault(task_seed, len(groups))
        out.append(EpisodeSpec(task_seed, counts[task_seed], group))
        counts[task_seed] += 1
    return out


def _take_weights(agent: LLMAgent, trainer: Any) -> None:
    model = trainer.accelerator.unwrap_model(trainer.model)
    agent.update_weights(None if agent.model is model else model.state_dict())


def _check_temperature(agent: LLMAgent, trainer: Any) -> None:
    if agent.sampling.temperature != trainer.args.temperature:
        raise ExportError(
            f"the agent samples at temperature {agent.sampling.temperature:g}, but GRPOConfig.temperature is "
            f"{trainer.args.temperature:g}; set both to the same"
        )


def _pad_id(trainer: Any) -> int:
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    return int(tokenizer.pad_token_id)
