"""Three ways to compute an observation delta, on the same templates and tokenizers: right, wrong, refused.

    python benchmarks/delta_methods.py [--json FILE]

- ours: `ChatTemplate.delta`.
- slice: tokenize the whole conversation anew, the sampled turn as plain content, and cut by the length of prompt and
  sample.
- dummy: tokenize a dummy conversation with and without the tool messages and cut the first behind its last eos token
  (as TRL 1.16 describes it; tool results only).

Right: the ids are those of the text that the template writes there in the real conversation, as the manifest of the
shared test data gives it.  It is the best case for the other two: no hostile text, and every sample is what the
tokenizer would give for its own text.  Both are re-implemented here.  Needs the shared test data (TOOLSTEP_SHARED).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import conftest  # noqa: F401  (makes `toolstep` importable from the checkout)
from chat_cells import CLOCK, VOCABULARIES, Cell, native, shared_cells
from chat_fixtures import shared_manifest
from rich.console import Console
from rich.table import Table

from toolstep.envs.chat import ChatTemplateError
from toolstep.envs.chat.render import Renderer
from toolstep.envs.types import Message, ToolCall, Turn


class Methods:
    """The three methods on one template and tokenizer."""

    def __init__(self, cell: Cell):
        self.tokenizer = cell.tokenizer
        self.given = shared_manifest()["scenarios_input"]
        self.chat = native(cell.chat())
        variables = dict(cell.tokenizer.special_tokens_map)
        self.renderer = Renderer(cell.options["chat_template"], variables, clock=CLOCK)
        self.kwargs = cell.options["template_kwargs"]
        self.history = [self.given["system"], self.given["user"]]
        try:
            self.render(self.history, generation=True)
        except ChatTemplateError:
            self.history = self.history[1:]

    def render(self, messages: list[Any], *, tools: bool = True, generation: bool = False) -> str:
        given = self.given["tools"] if tools else None
        return self.renderer(messages, given, generation=generation, kwargs=self.kwargs)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def ours(self, case: dict[str, Any], stop: str) -> list[int]:
        calls = tuple(ToolCall(c["id"], c["name"], "{}", c["arguments"]) for c in self.given["calls"][: case["calls"]])
        new = [Message(m["role"], m["content"], (), m.get("tool_call_id"), m.get("name")) for m in case["new_messages"]]
        history = [Message(m["role"], m["content"]) for m in self.history]
        turn = Turn(case.get("answer", ""), None, calls)
        ids: list[int] = self.chat.delta(history, turn, new, self.given["tools"], stop=stop).ids.tolist()
        return ids

    def slice(self, case: dict[str, Any], stop: str) -> list[int]:
        prompt = self.encode(self.render(self.history, generation=True))
        calls = tuple(ToolCall(c["id"], c["name"], "{}", c["arguments"]) for c in self.given["calls"][: case["calls"]])
        sampled = self.encode(self.chat.write(Turn(case.get("answer", ""), None, calls)) + stop)
        said = {"role": "assistant", "content": self.tokenizer.decode(sampled, skip_special_tokens=True)}
        new = [{"role": m["role"], "content": m["content"]} for m in case["new_messages"]]
        return self.encode(self.render([*self.history, said, *new], generation=True))[len(prompt) + len(sampled) :]

    def dummy(self, case: dict[str, Any], stop: str) -> list[int]:
        name = case["new_messages"][0]["name"]
        call = {"type": "function", "function": {"name": name, "arguments": {}}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        base = [{"role": "user", "content": "dummy"}, said]
        new = [{"role": "tool", "name": m["name"], "content": m["content"]} for m in case["new_messages"]]
        without = self.encode(self.render(base, tools=False))
        whole = self.encode(self.render([*base, *new], tools=False, generation=True))
        eos = self.tokenizer.eos_token_id
        if eos in without:
            without = without[: len(without) - without[::-1].index(eos)]
        if whole[: len(without)] != without:
            raise ChatTemplateError("the conversation without the result is no prefix of the one with it")
        return whole[len(without) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {m: Counter() for m in ("ours", "slice", "dummy", "ours (tool results)")}
    always: dict[str, set[str]] = {m: set() for m in counts}
    missed: dict[str, set[str]] = {m: set() for m in counts}
    for vocabulary in VOCABULARIES:
        for cell in shared_cells(vocabulary):
            methods = Methods(cell)
            for scenario, want in cell.entry["scenarios"].items():
                if "error" in want:
                    continue  # no right delta exists; ours refuses (tests/test_chat_matrix.py)
                case = methods.given[scenario]
                right = methods.encode(want["stop"] + want["after_stop"])[1:]
                for name in counts:
                    if case["calls"] == 0 and name in ("dummy", "ours (tool results)"):
                        continue
                    try:
                        method = getattr(methods, name.split(" ")[0])
                        outcome = "right" if method(case, want["stop"]) == right else "wrong"
                    except ChatTemplateError:
                        outcome = "refused"
                    counts[name][outcome] += 1
                    (always if outcome == "right" else missed)[name].add(cell.name)
    columns = ("method", "cells", "right", "wrong", "refused", "templates right in all their cells")
    table = Table(*columns, title="Deltas of the shared matrix", title_justify="left")
    for name, c in counts.items():
        whole = always[name] - missed[name]
        numbers = (str(n) for n in (c.total(), c["right"], c["wrong"], c["refused"]))
        table.add_row(name, *numbers, f"{len(whole)} of {len(always[name] | missed[name])}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps({k: dict(v) for k, v in counts.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
