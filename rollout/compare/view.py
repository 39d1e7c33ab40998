"""A comparison as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from toolstep.rollout.compare.comparison import Change, Comparison, PairedResult
from toolstep.rollout.compare.paired import Outcomes
from toolstep.rollout.console import pairs, print_line, table
from toolstep.rollout.report import span

_HEAD = ("A", "B", "B - A", "95% interval")
_NAMED = 5  # pairs that are named


def print_comparison(c: Comparison) -> None:
    """What differs, the numbers of both, who wins, and results by tag."""
    console = Console()
    who = [(side, f"{path}: {agent}") for side, path, agent in zip("AB", (c.first, c.second), c.agents, strict=True)]
    told = [(d.key, f"{d.first} and {d.second}") for d in c.differ if d.key != "agent"]
    console.print(pairs(f"two evaluations on {c.env}", [*who, *told]))
    body = [("success", *_cells(c.overall.success)), ("score", *_cells(c.overall.score))]
    body += [(name, *_cells(change)) for name, change in c.means.items() if change.first or change.second]
    errors = ("errors", str(c.errors[0]), str(c.errors[1]), f"{c.errors[1] - c.errors[0]:+d}", "-")
    console.print(table(f"{c.overall.pairs} pairs of {c.tasks} tasks", ("mean", *_HEAD), [*body, errors]))
    for tag, values in c.tags.items():
        head = (tag, "pairs", *_HEAD, "wins", "losses", "ties")
        console.print(table(f"success by {tag}", head, [_tag_row(value, r) for value, r in values.items()]))
    print_line(f"success: B {_told(c.overall.success_outcomes)}; p = {c.test.p:.3g} ({c.test.name})")
    if c.overall.score_outcomes != c.overall.success_outcomes:
        print_line(f"score: B {_told(c.overall.score_outcomes)}")
    for word, names in (("won", c.won), ("lost", c.lost)):
        if names:
            print_line(f"{word} by B:")
            for line in _list(names):
                print_line(f"  {line}")


def _cells(change: Change) -> tuple[str, str, str, str]:
    return f"{change.first:.3f}", f"{change.second:.3f}", f"{change.difference:+.3f}", span(change.interval)


def _tag_row(value: str, r: PairedResult) -> tuple[str, ...]:
    o = r.success_outcomes
    return (value, str(r.pairs), *_cells(r.success), str(o.wins), str(o.losses), str(o.ties))


def _told(o: Outcomes) -> str:
    return f"wins {o.wins}, loses {o.losses}, ties {o.ties}"


def _list(names: Sequence[tuple[str, int, int]]) -> list[str]:
    shown = [f"{task} (seed {seed}, sample {sample})" for task, seed, sample in names[:_NAMED]]
    more = [f"and {len(names) - _NAMED} more; --json names all"] if len(names) > _NAMED else []
    return [*shown, *more]
