"""The jobs behind `toolstep eval` and `toolstep rollout`: check, build, play, write; an interrupt loses nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from toolstep.agents.base import TokenAgent
from toolstep.envs.tasks import TaskList
from toolstep.envs.tasks.base import check_split
from toolstep.rollout import console, storage
from toolstep.rollout.batch import BatchError, RolloutBatch
from toolstep.rollout.build import Settings, make_agent_and_envs
from toolstep.rollout.collect import RunMetrics, collect
from toolstep.rollout.evaluate import Summary, summarize
from toolstep.rollout.export.files import check_output, write_rollout
from toolstep.rollout.export.formats import Format, choose_format
from toolstep.rollout.given import checked
from toolstep.rollout.report import rows, versions, write_json, write_summary
from toolstep.rollout.specs import EpisodeSpec, group_specs, listed_specs
from toolstep.rollout.storage import EpisodeLog, StorageError
from toolstep.rollout.types import Trajectory

EPISODES = 100  # of an evaluation, where nothing else is said


class Job(ABC):
    """A list of episodes to play with one agent in one vector env.

    `check` runs before anything heavy is loaded.  After `run`, `finished` holds the trajectories in the order in which
    they finished, and `interrupted` says whether Ctrl-C cut the run short.
    """

    command: str

    def __init__(
        self, settings: Settings, num_tasks: int | None, group_size: int, out: Path | None, *, overwrite: bool
    ):
        """num_tasks: None: 100 tasks of an env, all that a file lists."""
        settings, tasks = checked(settings)
        self.specs = _specs(settings, tasks, num_tasks, group_size)
        self.out = out
        self.overwrite = overwrite
        # More rows than episodes would only wait.
        self.settings = replace(settings, num_envs=min(settings.num_envs, len(self.specs)))
        self.metrics = RunMetrics()
        self.finished: list[Trajectory] = []
        self.interrupted = False
        self.check()
        self.agent, self.envs = make_agent_and_envs(self.settings, tasks)

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

    def config(self) -> dict[str, Any]:
        """Everything that decides the result, resolved, and the versions of what computed it."""
        return {
            "command": self.command,
            **asdict(self.settings),
            "episodes": len(self.specs),
            "task_seeds": list(dict.fromkeys(s.seed for s in self.specs)),
            "env_kwargs": {k: v if isinstance(v, str) else repr(v) for k, v in self.agent.env_kwargs.items()},
            "versions": versions(),
        }

    def run(self, *, quiet: bool) -> None:
        """Play all episodes, show how it goes (unless `quiet`), write the results."""
        label = f"{self.settings.agent} on {self.settings.env}"
        try:
            with console.progress(label, len(self.specs), self.metrics, quiet=quiet) as advance:
                self.play(advance)
        except KeyboardInterrupt:
            self.interrupted = True
        except BaseException:
            self.write()  # whatever broke: what is finished is kept
            raise
        finally:
            self.envs.close()
        self.write()

    def play(self, on_episode: Callable[[Trajectory], None]) -> None:
        def done(trajectory: Trajectory) -> None:
            self.finished.append(trajectory)
            on_episode(trajectory)

        collect(self.envs, self.agent, self.specs, seed=self.settings.seed, metrics=self.metrics, on_episode=done)

    def ordered(self) -> list[Trajectory]:
        """What is finished, group after group."""
        return sorted(self.finished, key=lambda t: (t.group_id or 0, t.sample_index))


def _specs(settings: Settings, tasks: TaskList | None, num_tasks: int | None, group_size: int) -> list[EpisodeSpec]:
    if tasks is None:
        return group_specs(num_tasks or EPISODES, group_size, settings.seed)
    size = tasks.size(check_split(settings.split or "train"))
    if not size:
        raise ValueError(f"{settings.env} has no tasks in the split {settings.split!r}")
    return listed_specs(size, min(num_tasks or size, size), group_size)


class EvalJob(Job):
    """`toolstep eval`: one sample of each task; `out` is a folder."""

    command = "eval"
    summary: Summary

    def __init__(self, settings: Settings, episodes: int | None, out: Path | None, *, overwrite: bool):
        super().__init__(settings, episodes, 1, out, overwrite=overwrite)

    def check(self) -> None:
        if self.out is not None:
            storage.check_folder(self.out, overwrite=self.overwrite)

    def play(self, on_episode: Callable[[Trajectory], None]) -> None:
        if self.out is None:
            super().play(on_episode)
            return
        episodes = self.out / "episodes.jsonl"
        with storage.clear_errors(self.out, "write to"):
            for name in ("config.json", "episodes.jsonl", "summary.json", "summary.md"):
                (self.out / name).unlink(missing_ok=True)
        write_json(self.out / "config.json", self.config())
        with EpisodeLog(episodes) as log:

            def done(trajectory: Trajectory) -> None:
                log.write(trajectory)
                on_episode(trajectory)

            super().play(done)

    def write(self) -> None:
        settings = self.settings
        self.summary = summarize(self.finished, requested=len(self.specs), metrics=self.metrics, seed=settings.seed)
        if self.out is not None:
            write_summary(self.out, self.summary, self.config())

    def document(self) -> dict[str, Any]:
        return {
            "config": self.config(),
            "summary": self.summary.to_dict(),
            "interrupted": self.interrupted,
            "out": None if self.out is None else str(self.out),
        }

    def show(self) -> None:
        if self.settings.prompt is not None:
            for trajectory in self.finished:
                console.print_conversation(trajectory)
            if self.settings.answer is None:
                return  # there is nothing to be right or wrong about
        title = f"{self.settings.agent} on {self.settings.env}"
        if self.interrupted:
            title += f" (interrupted: {self.summary.episodes} of {self.summary.requested} episodes)"
        console.print_summary(title, self.summary)
        if self.out is not None:
            console.print_line(f"written to {self.out}")


class RolloutJob(Job):
    """`toolstep rollout`: a group of samples of each task; `out` is a file or a folder of that `Format`."""

    command = "rollout"
    out: Path
    batch: RolloutBatch | None = None

    def __init__(
        self,
        settings: Settings,
        groups: int,
        group_size: int,
        out: Path,
        *,
        overwrite: bool,
        form: Format | None = None,
    ):
        self.format = choose_format(out, form)
        super().__init__(settings, groups, group_size, out, overwrite=overwrite)
        self.group_size = group_size
        if self.format.needs_ids and not isinstance(self.agent, TokenAgent):
            self.envs.close()
            raise ValueError(
                f"agent {settings.agent!r} samples no token ids, so it makes no rollout of the format {self.format}; "
                f"write episodes, --out {out.with_suffix(Format.JSONL.suffix)}, or use a model"
            )

    def check(self) -> None:
        check_output(self.out, self.format, overwrite=self.overwrite)

    def config(self) -> dict[str, Any]:
        return {**super().config(), "format": str(self.format)}

    def write(self) -> None:
        rows = self.ordered()
        if not rows and self.format is not Format.JSONL:
            return
        try:
            write_rollout(self.out, self.format, rows)
            self.batch = RolloutBatch.from_trajectories(rows) if self.format.needs_ids else None
        except BatchError as error:
            kept = self.out.with_name(f"{self.out.name}.episodes{Format.JSONL.suffix}")
            storage.write_episodes(kept, rows)
            raise StorageError(f"{error}; the episodes are in {kept}") from error

    def document(self) -> dict[str, Any]:
        return {
            "config": self.config(),
            "summary": summarize(self.finished, requested=len(self.specs), metrics=self.metrics).to_dict(),
            "batch": None
            if self.batch is None
            else {
                "shape": list(self.batch.input_ids.shape),
                "action_tokens": int(self.batch.action_mask.sum()),
                **asdict(self.batch.counts),
            },
            "interrupted": self.interrupted,
            "out": str(self.out),
        }

    def show(self) -> None:
        title = f"{self.settings.agent} on {self.settings.env}"
        if self.interrupted:
            title += f" (interrupted: {len(self.finished)} of {len(self.specs)} episodes)"
        items = rows(summarize(self.finished, requested=len(self.specs), metrics=self.metrics))
        if self.batch is not None:
            b, c = self.batch, self.batch.counts
            items += [
                ("batch", f"{b.input_ids.shape[0]} rows of up to {b.input_ids.shape[1]} ids"),
                ("action ids", f"{int(b.action_mask.sum())} of {int(b.attention_mask.sum())}"),
                (
                    "groups",
                    f"{c.groups}, of which {c.zero_variance_groups} of equal rewards and "
                    f"{c.single_member_groups} of one usable member (advantage 0)",
                ),
            ]
        console.print_pairs(title, items)
        console.print_line(f"written to {self.out}" if self.finished else "nothing finished, nothing written")
