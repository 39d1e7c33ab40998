"""What `toolstep replay` shows: a bar while it runs, the differences, one line in the end."""

from __future__ import annotations

from pathlib import Path

from toolstep.rollout.console import print_line
from toolstep.rollout.replay.difference import Difference
from toolstep.rollout.replay.run import ReplayReport

SHOWN = 10  # episodes whose difference is printed


class ReplayTally:
    """How many episodes are equal so far, and how many are not; a `progress.Counts`."""

    def __init__(self, total: int):
        self.total = total
        self.episodes = self.differ = 0

    def add(self, difference: Difference | None) -> None:
        self.episodes += 1
        self.differ += difference is not None

    @property
    def text(self) -> str:
        equal = f"equal {self.episodes - self.differ}"
        return f"{equal}  differ {self.differ}" if self.differ else equal

    @property
    def line(self) -> str:
        return f"{self.episodes}/{self.total} episodes  {self.text}"


def print_report(path: Path, report: ReplayReport, *, interrupted: bool) -> None:
    """The first difference of each episode that has one, and what came of it all."""
    for difference in report.differences[:SHOWN]:
        print_line(str(difference))
    more = len(report.differences) - SHOWN
    if more > 0:
        print_line(f"... and in {more} more episodes (--json has them all)")
    print_line(summary(path, report, interrupted=interrupted))


def summary(path: Path, report: ReplayReport, *, interrupted: bool = False) -> str:
    """One line."""
    differ = len(report.differences)
    verdict = "all equal" if report.equal else f"{differ} of {report.episodes} differ"
    return (
        f"{path}: {'interrupted; ' if interrupted else ''}replayed {report.episodes} episodes, {report.turns} turns, "
        f"{report.calls} tool calls in {report.seconds:.1f} s: {verdict}"
    )
