"""How a run goes, on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from toolstep.rollout.evaluate import succeeded
from toolstep.rollout.metrics import RunMetrics
from toolstep.rollout.types import OK, Trajectory

EVERY = 10.0  # seconds between two lines


class Counts(Protocol):
    """What a progress display reads off while it changes: `text` beside a bar, `line` in a log."""

    total: int
    episodes: int

    def add(self, item: Any) -> None: ...
    @property
    def text(self) -> str: ...
    @property
    def line(self) -> str: ...


class Progressed(Protocol):
    """Told of each finished episode."""

    def __call__(self, trajectory: Trajectory, /) -> None: ...


class Tally:
    """What is finished so far.

    metrics: of the running process; `finished` may have been played before it.  Read while it changes, so `text` moves
    between episodes too.
    """

    def __init__(self, total: int, metrics: RunMetrics, finished: Sequence[Trajectory] = ()):
        self.total = total
        self.metrics = metrics
        self.episodes = self.successes = self.errors = 0
        for trajectory in finished:
            self.add(trajectory)

    def add(self, trajectory: Trajectory) -> None:
        self.episodes += 1
        self.successes += succeeded(trajectory)
        self.errors += trajectory.status != OK

    @property
    def text(self) -> str:
        """Success rate, errors and throughput."""
        m = self.metrics
        parts = [f"success {self.successes / self.episodes:.2f}" if self.episodes else "success -"]
        if self.errors:
            parts.append(f"errors {self.errors}")
        if m.sampled_tokens:
            parts.append(f"{m.tokens_per_second:,.0f} tokens/s")
        return "  ".join([*parts, f"{m.episodes_per_second:.2f} episodes/s"])

    @property
    def eta(self) -> str:
        """Time that the rest takes at the pace so far, as h:mm:ss; "-" before the first episode."""
        if not self.metrics.episodes_per_second:
            return "-"
        seconds = (self.total - self.episodes) / self.metrics.episodes_per_second
        return str(timedelta(seconds=round(seconds)))

    @property
    def line(self) -> str:
        """All of it, for a log."""
        left = f"  ETA {self.eta}" if self.episodes < self.total else ""
        return f"{self.episodes}/{self.total} episodes  {self.text}{left}"


@contextmanager
def progress(
    description: str,
    total: int,
    metrics: RunMetrics,
    finished: Sequence[Trajectory] = (),
    *,
    quiet: bool,
    every: float = EVERY,
) -> Iterator[Progressed]:
    """Shows how a run goes while the block runs; what it yields is to be called with each finished episode.

    On stderr: a live bar where that is a terminal, elsewhere a line each `every` seconds and a last one at the end;
    nothing with `quiet`.  finished: episodes that were there before.
    """
    with follow(description, Tally(total, metrics, finished), quiet=quiet, every=every) as add:
        yield add


@contextmanager
def follow(description: str, tally: Counts, *, quiet: bool, every: float = EVERY) -> Iterator[Callable[[Any], None]]:
    """The same for counts of another kind; what it yields adds to them."""
    console = Console(stderr=True)
    if quiet:
        yield tally.add
    elif console.is_terminal:
        yield from _bar(console, description, tally)
    else:
        yield from _lines(console, description, tally, every)


class _Running(ProgressColumn):
    """The text of a tally, read off at each refresh."""

    def __init__(self, tally: Counts):
        self.tally = tally
        super().__init__()

    def render(self, task: Task) -> Text:
        return Text(self.tally.text, style="cyan")


def _bar(console: Console, description: str, tally: Counts) -> Iterator[Callable[[Any], None]]:
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Running(tally),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(escape(description), total=tally.total, completed=tally.episodes)

        def advance(item: Any) -> None:
            tally.add(item)
            bar.advance(task)

        yield advance


def _lines(console: Console, description: str, tally: Counts, every: float) -> Iterator[Callable[[Any], None]]:
    over = threading.Event()

    def show() -> None:
        console.print(f"{description}: {tally.line}", markup=False, highlight=False, soft_wrap=True)

    def now_and_then() -> None:
        while not over.wait(every):
            show()

    thread = threading.Thread(target=now_and_then, name="toolstep-progress", daemon=True)
    thread.start()
    try:
        yield tally.add
    finally:
        over.set()
        thread.join()
        show()
