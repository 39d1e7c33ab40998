"""The command `toolstep check`.  Light: what checking needs is imported when it is run."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from toolstep.rollout.exits import FAILED, one_line_errors
from toolstep.rollout.options import AsJson

if TYPE_CHECKING:
    from toolstep.envs.checker import Report

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


class CheckKind(StrEnum):
    """What is checked, where that cannot be told from the object."""

    TOOL = "tool"
    TASK = "task"
    ENV = "env"


def check(
    target: Annotated[
        str,
        typer.Argument(help="MODULE:OBJECT, FILE.py:OBJECT, FILE.jsonl, the id of an env, or a built-in tool's name."),
    ],
    kind: Annotated[
        CheckKind | None, typer.Option(help="What it is, where its signature does not tell: tool, task or env.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds for one call (default 5), one task or one answer (10).")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="smollm2, a tokenizer's folder, a *.gguf file or a hub id: token view too.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check your own tools, tasks or env: what breaks, what shows it, how to mend it.

    OBJECT: a function, Tool, class with @tool methods or list of them; a TaskSet, list of tasks or function of a seed;
    an env or a function that makes one. It runs in a process of its own: a tool that hangs, exits or crashes is found
    and named, and hangs nothing.

    Exit code 0: nothing is wrong; 1: something is; 2: there is no such object.
    """
    with one_line_errors():
        import time

        from toolstep.agents.shipped import model_source
        from toolstep.envs.checker.isolated import check_target

        start = time.perf_counter()
        source = None if tokenizer is None else model_source(tokenizer)
        reports = check_target(target, kind=None if kind is None else kind.value, timeout=timeout, tokenizer=source)
        seconds = time.perf_counter() - start
    failed = [r for r in reports if not r.ok or (strict and r.warnings)]
    if as_json:
        from toolstep.rollout.console import print_json

        found = [r.to_dict() for r in reports]
        print_json({"target": target, "ok": not failed, "seconds": round(seconds, 3), "reports": found})
    else:
        print_reports(reports, seconds)
    if failed:
        raise typer.Exit(FAILED)


def print_reports(reports: list[Report], seconds: float) -> None:
    """A table of what was looked at for each report, what was found, and the verdict."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from toolstep.envs.checker.report import described, sorted_findings, verdict

    console = Console()
    for report in reports:
        table = Table("check", "outcome", "what was done", title_justify="left")
        table.title = escape(f"{report.kind} {report.subject}")
        for c in report.checks:
            told = ", ".join(dict.fromkeys(f.code for f in c.findings)) or "ok"
            table.add_row(escape(c.name), f"[{_COLOURS[c.outcome]}]{escape(told)}[/]", escape(c.detail))
        console.print(table)
        for finding in sorted_findings(report.findings):
            head, *rest = described(finding, max(40, min(console.width, 110))).splitlines()
            console.print(f"\n[{_COLOURS[finding.level]}]{escape(head)}[/]", highlight=False, soft_wrap=True)
            console.print("\n".join(rest), markup=False, highlight=False, soft_wrap=True)
        if report.findings:
            console.print()
    console.print(f"{verdict(reports)} ({seconds:.1f} s)", highlight=False)
