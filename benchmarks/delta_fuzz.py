"""Fuzzed conversations over all templates and tokenizers: how many deltas were wrong, how many injections.

    python benchmarks/delta_fuzz.py [--conversations 5000] [--seed 0] [--own] [--json FILE]

Each conversation (1 to 50 turns) has random contents: every script, lone surrogates, whole and half control tokens,
frames of templates; half of the turns are sampled as random ids.  After each turn the delta is compared with a
rendering of the real conversation, as text and as ids, and its control tokens with those for harmless content.  The
templates and tokenizers are the shared test data where they are at hand (TOOLSTEP_SHARED), else those of the tests.
Runs in a checkout: the conversations are those of tests/test_chat_fuzz.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import conftest  # noqa: F401  (makes `toolstep` importable from the checkout)
from chat_cells import OWN, VOCABULARIES, own_cells, shared_cells
from chat_player import Player, Wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--own", action="store_true", help="only the templates of the tests")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sources = [own_cells()] if options.own else [own_cells(), *map(shared_cells, VOCABULARIES)]
    number = len(OWN) if options.own else len(OWN) + 57 * len(VOCABULARIES)
    each = -(-options.conversations // number)
    counts: Counter[str] = Counter()
    start, seed = time.perf_counter(), options.seed
    for cells in sources:
        for cell in cells:
            player = Player(cell)
            for _ in range(each):
                try:
                    counts += player.play(seed)
                except Wrong as e:
                    counts["conversations"] += 1
                    kind = "INJECTIONS" if str(e).startswith("INJECTION") else "WRONG"
                    counts[kind] += 1
                    print(cell.name, cell.tokenizer.name_or_path, str(e)[:2000], file=sys.stderr)
                seed += 1
    seconds = time.perf_counter() - start
    for name in ("INJECTIONS", "WRONG"):
        counts[name] += 0
    for name, n in sorted(counts.items()):
        print(f"{n:8,d}  {name}")
    print(f"{seconds:8.0f}  seconds")
    if options.json:
        options.json.write_text(json.dumps({**counts, "seconds": seconds}, indent=2) + "\n")
    sys.exit(1 if counts["INJECTIONS"] or counts["WRONG"] else 0)


if __name__ == "__main__":
    main()
