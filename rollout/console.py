"""What the command line shows: tables on stdout, a live bar on stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from rich.table import Table
from rich.text import Text

from toolstep.rollout.collect import RunMetrics
from toolstep.rollout.evaluate import Summary, succeeded
from toolstep.rollout.report import rows, span
from toolstep.rollout.types import Trajectory


class Progressed(Protocol):
    """Told of each finished episode."""

    def __call__(self, trajectory: Trajectory) -> None: ...


class _Running(ProgressColumn):
    """Success rate and throughput so far; read off at each refresh, so it moves between episodes too."""

    def __init__(self, metrics: RunMetrics, counts: dict[str, int]):
        self.metrics = metrics
        self.counts = counts
        super().__init__()

    def render(self, task: Task) -> Text:
        m = self.metrics
        done = max(m.episodes, 1)
        text = f"success {self.counts['successes'] / done:.2f}" if m.episodes else "success -"
        if self.counts["errors"]:
            text += f"  errors {self.counts['errors']}"
        if m.sampled_tokens:
            text += f"  {m.tokens_per_second:,.0f} tokens/s"
        return Text(f"{text}  {m.episodes_per_second:.2f} episodes/s", style="cyan")


@contextmanager
def progress(description: str, total: int, metrics: RunMetrics, *, quiet: bool) -> Iterator[Progressed]:
    """A live bar on stderr; nothing at all where stderr is no terminal, or with `quiet`."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda trajectory: None
        return
    counts = {"successes": 0, "errors": 0}
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Running(metrics, counts),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(escape(description), total=total)

        def advance(trajectory: Trajectory) -> None:
            counts["successes"] += succeeded(trajectory)
            counts["errors"] += trajectory.status != "ok"
            bar.advance(task)

        yield advance


def print_json(data: Any) -> None:
    """One JSON document on stdout, plain (no colours, no wrapping)."""
    print(json.dumps(data, indent=2, allow_nan=False))


def print_summary(title: str, summary: Summary) -> None:
    """The final tables of an evaluation."""
    console = Console()
    console.print(pairs(title, rows(summary)))
    for tag, values in summary.tags.items():
        head = (tag, "episodes", "success", "95% interval", "mean reward")
        table = Table(*head, title=f"by {escape(tag)}", title_justify="left")
        for value, r in values.items():
            cells = f"{r.success_rate:.3f}", span(r.success_interval), f"{r.mean_reward:.3f}"
            table.add_row(escape(value), str(r.episodes), *cells)
        console.print(table)


def pairs(title: str, items: Sequence[tuple[str, str]]) -> Table:
    """A table of names and values."""
    table = Table(title=escape(title), title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in items:
        table.add_row(escape(name), escape(value))
    return table


def print_pairs(title: str, items: Sequence[tuple[str, str]]) -> None:
    Console().print(pairs(title, items))


def print_line(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def print_conversation(trajectory: Trajectory) -> None:
    """One episode as a person reads it."""
    from toolstep.envs.render import render_messages

    print_line(render_messages(trajectory.messages))
    print_line(f"── ended: {trajectory.stop_reason} · {trajectory.turns} turns ──")


def print_envs(items: Sequence[Mapping[str, str]]) -> None:
    """The list of envs."""
    table = Table("env", "what it is")
    for item in items:
        table.add_row(escape(item["id"]), escape(item["description"]))
    Console().print(table)


def print_env(data: Mapping[str, Any]) -> None:
    """One env: what it is, an opening prompt, and the schemas of its tools."""
    console = Console()
    console.print(f"[bold]{escape(data['id'])}[/bold]  {escape(data['description'])}")
    console.print(f"options: {escape(', '.join(data['options']) or '-')}")
    console.rule("prompt", align="left")
    console.print(data["prompt"], markup=False, highlight=False)
    console.rule("tools", align="left")
    for schema in data["tools"]:
        console.print_json(json.dumps(schema))
