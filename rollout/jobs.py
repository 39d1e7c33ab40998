"""The jobs behind `toolstep eval` and `toolstep rollout`: check, build, play, write; an interrupt loses nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from toolstep.envs.tasks import TaskList
from toolstep.envs.tasks.base import check_split
from toolstep.envs.tools import NotRecorded
from toolstep.rollout.build import NAMESPACE, Settings, make_agent_and_envs, task_set
from toolstep.rollout.collect import RunMetrics, collect
from toolstep.rollout.config import asked_config, made_config
from toolstep.rollout.given import checked
from toolstep.rollout.progress import progress
from toolstep.rollout.recording import tape_of
from toolstep.rollout.specs import EpisodeSpec, group_specs, listed_specs
from toolstep.rollout.types import Trajectory

EPISODES = 100  # of an evaluation, where nothing else is said


class Job(ABC):
    """A list of episodes to play with one agent in one vector env.

    `check` runs before anything heavy is loaded.  After `run`, `finished` holds the trajectories in the order in which
    they finished, and `interrupted` says whether Ctrl-C cut the run short.
    """

    command: str
    overwrite = False
    resume = False

    def __init__(self, settings: Settings, num_tasks: int | None, group_size: int, out: Path | None):
        """num_tasks: None: 100 tasks of an env that draws them, all that a file or a benchmark lists."""
        settings, tasks = checked(settings)
        self.specs = _specs(settings, tasks, num_tasks, group_size)
        self.out = out
        self.settings = replace(
            settings,
            num_envs=min(settings.num_envs, len(self.specs)),  # more rows than episodes would only wait
            clock=settings.clock or datetime.now().isoformat(timespec="seconds"),
        )
        self.metrics = RunMetrics()
        self.finished: list[Trajectory] = []
        self.interrupted = False
        self.asked = asked_config(self.command, self.settings, self.specs)
        self.check()
        self.tape = tape_of(self.settings, append=self.resume, overwrite=self.overwrite)
        self.agent, self.envs = make_agent_and_envs(self.settings, tasks, self.tape)

    @abstractmethod
    def check(self) -> None:
        """Raise `StorageError` where the output could not be written."""

    @abstractmethod
    def write(self) -> None:
        """Write what is finished."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """What --json prints."""

    @abstractmethod
    def show(self) -> None:
        """Print the final tables."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """Everything that decides the result, resolved, and the versions of what computed it."""
        return {**self.asked, **made_config(self.agent, self.envs)}

    @property
    def requests(self) -> dict[str, Any] | None:
        """What the agent asked of its server: `requests`, and by kind `retried` and `failed`; None without a server."""
        counts = getattr(self.agent, "counts", None)
        return counts() if callable(counts) else None

    @property
    def title(self) -> str:
        title = f"{self.settings.agent} on {self.settings.env}"
        if self.interrupted:
            title += f" (interrupted: {len(self.finished)} of {len(self.specs)} episodes)"
        return title

    @property
    def unanswered(self) -> str:
        """What a recording that is played back did not have, in one line; "" where there was nothing."""
        missing = [t.error for t in self.finished if t.error.startswith(NotRecorded.__name__)]
        if not missing:
            return ""
        return f"{self.settings.playback} does not answer {len(missing)} of the episodes; the first one: {missing[0]}"

    def opened(self) -> AbstractContextManager[None]:
        """What is held while the job runs; episodes that are finished already are put into `finished` here."""
        return nullcontext()

    def keep(self, trajectory: Trajectory) -> None:
        """Called with each episode as it finishes."""
        self.finished.append(trajectory)

    def run(self, *, quiet: bool) -> None:
        """Play all episodes, show how it goes (unless `quiet`), write the results."""
        try:
            with self.opened():
                try:
                    self.play(quiet=quiet)
                except KeyboardInterrupt:
                    self.interrupted = True
                finally:
                    self.write()  # whatever broke: what is finished is kept
        finally:
            self.close()

    def close(self) -> None:
        """Close the env, the recording, and the connections that the agent may have."""
        self.envs.close()
        if self.tape is not None:
            self.tape.close()
        close = getattr(self.agent, "close", None)
        if callable(close):
            close()

    def play(self, *, quiet: bool) -> None:
        """Play the episodes that are not finished."""
        there = {(t.seed, t.sample_index) for t in self.finished}
        specs = [s for s in self.specs if (s.seed, s.sample_index) not in there]
        with progress(self.title, len(self.specs), self.metrics, self.finished, quiet=quiet) as advance:

            def done(trajectory: Trajectory) -> None:
                self.keep(trajectory)
                advance(trajectory)

            collect(self.envs, self.agent, specs, seed=self.settings.seed, metrics=self.metrics, on_episode=done)


def _specs(settings: Settings, tasks: TaskList | None, num_tasks: int | None, group_size: int) -> list[EpisodeSpec]:
    split = check_split(settings.split or "train")
    size: int | None = None
    if tasks is not None:
        size = tasks.size(split)
    elif settings.env is not None and settings.env.startswith(NAMESPACE):
        listed = task_set(settings.env)
        size = listed.size(split)
        if size == 0:
            listed.task(0, split)  # says why
    if size is None:
        return group_specs(num_tasks or EPISODES, group_size, settings.seed)
    if not size:
        raise ValueError(f"{settings.env} has no tasks in the split {settings.split!r}")
    return listed_specs(size, min(num_tasks or size, size), group_size)
