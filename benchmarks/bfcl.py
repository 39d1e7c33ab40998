"""BFCL: whether our verdicts are those of the official checker, and what they cost.

python benchmarks/bfcl.py [--first N] [--category multi_turn_base --category ...]

Judges the ground truth of each task, and what comes of changing it in many ways (`tests/bfcl_official.py`), with both.
A verdict is equal where both say right, or name the same error_type.  Prints, for each category and change, how many
are right and how many equal; ends with 1 where one is not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bfcl_official import Verdict, verdicts

from toolstep.envs.tasks.bfcl import MULTI_TURN, SINGLE_TURN
from toolstep.envs.tasks.bfcl.data import entries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=10_000, help="tasks of each category")
    parser.add_argument("--category", action="append", help="may be repeated; default: all that have answers")
    arguments = parser.parse_args()
    known = [name for name in (*MULTI_TURN, *SINGLE_TURN) if "relevance" not in name]
    total = equal = 0
    for category in arguments.category or known:
        by_kind: dict[str, list[Verdict]] = defaultdict(list)
        start = time.perf_counter()
        for entry in entries(category)[: arguments.first]:
            for verdict in verdicts(entry):
                by_kind[verdict.kind].append(verdict)
        found = [v for group in by_kind.values() for v in group]
        ours, theirs = (1000 * sum(getattr(v, s) for v in found) / len(found) for s in ("seconds", "official_seconds"))
        took = time.perf_counter() - start
        print(f"{category}: {took:.0f} s, a verdict {ours:.2f} ms, the official one {theirs:.2f} ms")
        for kind, group in by_kind.items():
            same = sum(v.error == v.official for v in group)
            right = sum(not v.error for v in group)
            print(f"    {kind:36} right {right:5} of {len(group):5}, equal {same:5}")
            total, equal = total + len(group), equal + same
        for v in found:
            if v.error != v.official:
                print(f"    NOT EQUAL {v.id} ({v.kind}): {v.error or 'right'}, official {v.official or 'right'}")
    print(f"{equal} of {total} verdicts equal")
    return int(equal < total)


if __name__ == "__main__":
    sys.exit(main())
