"""What the command line shows: tables on stdout, warnings on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolstep.envs.render import clean, render_messages
from toolstep.rollout.evaluate import Summary
from toolstep.rollout.report import SAMPLES_HEAD, SAMPLES_TITLE, TAG_HEAD, rows, samples_rows, tag_rows
from toolstep.rollout.types import Trajectory


def print_json(data: Any) -> None:
    """One JSON document on stdout, plain (no colours, no wrapping)."""
    print(json.dumps(data, indent=2, allow_nan=False))


def print_summary(title: str, summary: Summary) -> None:
    """The final tables of an evaluation."""
    console = Console()
    console.print(pairs(title, rows(summary)))
    if summary.passes:
        console.print(table(SAMPLES_TITLE, SAMPLES_HEAD, samples_rows(summary)))
    for tag, values in summary.tags.items():
        console.print(table(f"by {tag}", (tag, *TAG_HEAD), tag_rows(values)))


def table(title: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> Table:
    """A table of plain texts."""
    out = Table(*map(_safe, head), title=_safe(title), title_justify="left")
    for cells in body:
        out.add_row(*map(_safe, cells))
    return out


def pairs(title: str, items: Sequence[tuple[str, str]]) -> Table:
    """A table of names and values."""
    out = Table(title=_safe(title), title_justify="left", show_header=False)
    out.add_column(style="bold", no_wrap=True)
    out.add_column()
    for name, value in items:
        out.add_row(_safe(name), _safe(value))
    return out


def _safe(text: str) -> str:
    return escape(clean(text))


def print_pairs(title: str, items: Sequence[tuple[str, str]]) -> None:
    Console().print(pairs(title, items))


def print_line(text: str) -> None:
    Console().print(clean(text), markup=False, highlight=False, soft_wrap=True)


def print_warning(text: str) -> None:
    """One line on stderr."""
    Console(stderr=True).print(clean(f"toolstep: warning: {text}"), markup=False, highlight=False, soft_wrap=True)


def print_conversation(trajectory: Trajectory) -> None:
    """One episode as a person reads it."""
    print_line(render_messages(trajectory.messages))
    print_line(f"── ended: {trajectory.stop_reason} · {trajectory.turns} turns ──")


def print_envs(items: Sequence[Mapping[str, str]]) -> None:
    """The list of envs, a family in one row."""
    table = Table("env", "what it is")
    families: dict[str, list[Mapping[str, str]]] = {}
    for item in items:
        if item["family"]:
            families.setdefault(item["family"], []).append(item)
        else:
            table.add_row(escape(item["id"]), escape(item["description"]))
    for pattern, members in families.items():
        before, after = pattern.split("*")
        names = ", ".join(m["id"].removeprefix(before).removesuffix(after) for m in members)
        about = f"{members[0]['description']} Needs: {members[0]['needs']}\n* is one of {names}."
        table.add_row(escape(pattern), escape(about))
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
