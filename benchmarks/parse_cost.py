"""What hostile text costs the parsers of tool calls: ms of CPU for 100 KB, and how the time grows with the length.

    python benchmarks/parse_cost.py [--format NAME ...] [--json FILE]

Each format reads hundreds of texts made to cost it the most: its own marks, whole and half, calls cut at every place,
brackets, quotes, backslashes and white space, repeated to the length; those of tests/chat_hostile.py.  All are read at
20 KB and at 80 KB; the costliest, and those whose time grew more than five times, are measured at 100 KB and at 400 KB,
where a ratio of 4 is linear.  Figures are CPU time of this process, the best of several repeats, without Python's
garbage collector, whose share depends on what else the process holds.  Takes some minutes.  Runs in a checkout.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import conftest  # noqa: F401  (makes `toolstep` importable from the checkout)
from chat_hostile import hostile, repeated
from rich.console import Console
from rich.table import Table

from toolstep.envs.chat.formats import FORMATS, ToolCallFormat

SHORT, LENGTH, TIMES = 20_000, 100_000, 4
MEASURED, SUSPECT = 12, 5.0  # the costliest texts of each format; growth above which a text is measured in any case
NOISE = 0.1  # ms


def cost(form: ToolCallFormat, text: str, repeats: int) -> float:
    """Shortest CPU time of a parse, in ms."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        form.parse(text)
        times.append(time.process_time() - started)
    return 1000 * min(times)


def measure(form: ToolCallFormat) -> dict[str, Any]:
    """The costliest text of a format, its cost, the steepest growth, and the cost of braces alone."""
    texts = list(hostile(form))
    short = {t: cost(form, repeated(*t, SHORT), 1) for t in texts}
    long = {t: cost(form, repeated(*t, TIMES * SHORT), 1) for t in texts}
    ranked = sorted(texts, key=long.__getitem__, reverse=True)
    suspects = [t for t in ranked[MEASURED:] if long[t] > SUSPECT * (short[t] + NOISE)]
    found = []
    for beginning, piece in ranked[:MEASURED] + suspects:
        ms = cost(form, repeated(beginning, piece, LENGTH), 5)
        growth = cost(form, repeated(beginning, piece, TIMES * LENGTH), 3) / ms
        found.append((ms, growth, beginning, piece))
    ms, _, beginning, piece = max(found)
    return {
        "texts": len(texts),
        "ms": ms,
        "attempts": len(form.parse(repeated(beginning, piece, LENGTH)).calls),
        "growth": max(f[1] for f in found),
        "braces_ms": cost(form, "{" * LENGTH, 5),
        "beginning": beginning,
        "piece": piece,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    gc.disable()
    table = Table("format", "texts", "braces ms", "worst ms", "attempts", f"growth x{TIMES}", "worst text")
    results = {}
    for name in options.format:
        r = results[name] = measure(FORMATS[name])
        gc.collect()
        figures = (f"{r['braces_ms']:.1f}", f"{r['ms']:.1f}", str(r["attempts"]), f"{r['growth']:.1f}")
        shown = " + ".join(repr(t[:60]) for t in (r["beginning"], r["piece"]) if t)
        table.add_row(name, str(r["texts"]), *figures, shown.replace("[", "\\["))
    Console(width=160).print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
