"""Which episodes to play: (task seed, sample index) pairs, fixed before the first step."""

from __future__ import annotations

import hashlib
import operator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode to play.

    The task is a function of `seed`, the agent's samples of `seed` and `sample_index`.  Episodes of one group share the
    seed and the group id and differ in their sample index.
    """

    seed: int
    sample_index: int = 0
    group_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("seed", "sample_index", "group_id"):
            value = getattr(self, name)
            if value is None and name == "group_id":
                continue
            try:
                number = operator.index(value)  # numpy integers too: gymnasium takes Python ints only
            except TypeError:
                number = -1
            if number < 0 or isinstance(value, bool):
                raise ValueError(f"EpisodeSpec.{name} must be an integer >= 0, got {value!r}")
            object.__setattr__(self, name, number)


def task_seeds(num_tasks: int, seed: int) -> list[int]:
    """`num_tasks` task seeds below 2**53 (exact in JSON); the first k do not depend on how many are asked for.

    They come from numpy's SeedSequence: `seed + i`, gymnasium's rule, gives neighbouring runs nearly the same tasks.
    """
    if num_tasks < 0:
        raise ValueError(f"num_tasks must be >= 0, got {num_tasks}")
    words = np.random.SeedSequence(seed).generate_state(num_tasks, np.uint64)
    return [int(w) >> 11 for w in words]


def group_specs(num_tasks: int, group_size: int, seed: int) -> list[EpisodeSpec]:
    """`group_size` samples of each of `num_tasks` tasks, group after group; group i is task i."""
    if group_size < 1:
        raise ValueError(f"group_size must be >= 1, got {group_size}")
    return [
        EpisodeSpec(task_seed, sample, group)
        for group, task_seed in enumerate(task_seeds(num_tasks, seed))
        for sample in range(group_size)
    ]


def listed_specs(size: int, num_tasks: int, group_size: int = 1) -> list[EpisodeSpec]:
    """`group_size` samples of each of the first `num_tasks` of a list of `size` tasks; group i is task i.

    An env draws its task from a seed, so for each task the first seed is looked for that draws it.
    """
    from gymnasium.utils import seeding

    from toolstep.envs.episode import draw_task_seed

    if not 0 < num_tasks <= size or group_size < 1:
        raise ValueError(f"listed_specs: cannot take {num_tasks} tasks (x {group_size}) of a list of {size}")
    found: dict[int, int] = {}
    wanted, seed = num_tasks, 0
    while wanted:
        item = draw_task_seed(seeding.np_random(seed)[0]) % size
        if item < num_tasks and item not in found:
            found[item] = seed
            wanted -= 1
        seed += 1
    return [EpisodeSpec(found[i], sample, i) for i in range(num_tasks) for sample in range(group_size)]


def sampling_seed(spec: EpisodeSpec, run_seed: int) -> int:
    """Seed in [0, 2**63) of an episode's samples: a hash of run, task and sample, not of row or order."""
    text = f"{run_seed}/{spec.seed}/{spec.sample_index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
