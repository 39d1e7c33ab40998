"""The command `toolstep compare`.  Light: what it needs is imported when it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolstep.rollout.exits import one_line_errors
from toolstep.rollout.options import AsJson


def compare(
    a: Annotated[Path, typer.Argument(help="Folder of an evaluation (toolstep eval --out).")],
    b: Annotated[Path, typer.Argument(help="Folder of the one to compare with it.")],
    except_: Annotated[
        list[str] | None,
        typer.Option(
            "--except", metavar="KEY", help="Key of config.json that is meant to differ (shots, episodes); repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two evaluations, task by task: difference with interval, wins and losses, McNemar's test.

    Exit code 2: they can't be compared, because they have not played the same tasks in the same env; what differs is
    named.
    """
    with one_line_errors():
        from toolstep.rollout.compare.comparison import compare as compare_runs
        from toolstep.rollout.compare.runs import load_run
        from toolstep.rollout.compare.view import print_comparison
        from toolstep.rollout.console import print_json

        found = compare_runs(load_run(a), load_run(b), except_=except_ or ())
        print_json(found.to_dict()) if as_json else print_comparison(found)
