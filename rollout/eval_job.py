"""EvalJob: what `toolstep eval` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolstep.rollout import console
from toolstep.rollout.build import Settings
from toolstep.rollout.evaluate import Summary, summarize
from toolstep.rollout.folder import DAMAGED, EPISODES, EvalFolder
from toolstep.rollout.jobs import Job
from toolstep.rollout.report import requests_line
from toolstep.rollout.types import Trajectory


@dataclass(frozen=True, slots=True)
class Demands:
    """What an evaluation must show, so that its exit code is 0."""

    min_score: float | None = None
    fail_on_error: bool = False

    def missed(self, summary: Summary) -> list[str]:
        """Why it is not what was demanded; nothing where it is."""
        out = []
        if self.min_score is not None and summary.mean_score < self.min_score:
            out.append(f"the mean score is {summary.mean_score:.4g}, below --min-score {self.min_score:g}")
        if self.fail_on_error and summary.errors:
            out.append(f"{summary.errors} of {summary.episodes} episodes ended in an error (--fail-on-error)")
        return out


class EvalJob(Job):
    """`epochs` samples of each task; `out` is a folder (see `EvalFolder`)."""

    command = "eval"
    summary: Summary

    def __init__(
        self,
        settings: Settings,
        episodes: int | None,
        out: Path | None,
        *,
        epochs: int = 1,
        resume: bool = False,
        overwrite: bool = False,
        demands: Demands | None = None,
    ):
        if resume and out is None:
            raise ValueError("--resume goes on with a run in a folder: name it with --out")
        self.folder = None if out is None else EvalFolder(out, resume=resume, overwrite=overwrite)
        self.overwrite, self.resume = overwrite, resume
        self.demands = demands if demands is not None else Demands()
        begun = self.folder.clock if self.folder is not None else None
        super().__init__(replace(settings, clock=settings.clock or begun), episodes, epochs, out)
        try:
            if self.folder is not None:
                self.folder.check(self.config)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        if self.folder is not None:
            self.folder.check(self.asked)

    @contextmanager
    def opened(self) -> Iterator[None]:
        if self.folder is None:
            yield
            return
        with self.folder.opened(self.config, self.specs):
            self.finished += self.folder.kept
            for number, problem in self.folder.damaged.items():
                console.print_warning(
                    f"{self.folder.path / EPISODES}, line {number}: {problem}; moved to {DAMAGED}, "
                    "what it held of this run is played again"
                )
            yield

    def keep(self, trajectory: Trajectory) -> None:
        if self.folder is not None:
            self.folder.add(trajectory)
        super().keep(trajectory)

    def write(self) -> None:
        metrics = self.metrics if self.metrics.episodes else None
        kept = self.folder.speed() if self.folder is not None and metrics is None else None
        self.summary = summarize(
            self.finished, requested=len(self.specs), metrics=metrics, speed=kept, seed=self.settings.seed
        )
        if self.folder is not None:
            self.folder.finish(self.summary, self.config, self.finished)

    @property
    def missed(self) -> list[str]:
        """Why the exit code is 1, where it is."""
        return self.demands.missed(self.summary)

    def document(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "summary": self.summary.to_dict(),
            "missed": self.missed,
            "requests": self.requests,
            "interrupted": self.interrupted,
            "out": None if self.out is None else str(self.out),
        }

    def show(self) -> None:
        if self.settings.prompt is not None:
            for trajectory in self.finished:
                console.print_conversation(trajectory)
            if self.settings.answer is None:
                return  # there is nothing to be right or wrong about
        console.print_summary(self.title, self.summary)
        if self.requests is not None:
            console.print_line(requests_line(self.requests))
        if self.out is not None:
            console.print_line(f"written to {self.out}")
