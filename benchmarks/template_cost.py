"""What prompts and observation deltas cost: milliseconds for a batch of rows, against the length of the history.

    python benchmarks/template_cost.py [--rows 64] [--json FILE]

Each row is another conversation: its own task, its own calls, its own results.  `prompt` is the first context of an
episode; `delta` is what follows a turn with one call, behind 1, 8 and 64 turns of history.  Both are measured where the
rows' shapes have been seen before (an episode's usual step) and where nothing has (`first`: one row, renderings
included).  `full` is what the delta replaces: the chat template applied to the whole conversation, and tokenized.
`strict` is the delta with its check against such a rendering.  Machines are noisy: a figure is CPU time, the best of
several repeats, and the ratios are the ones to compare.  Templates and tokenizers are read from a folder (--shared);
without it only the built-in template is measured, with bytes for tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from toolstep.envs.chat import ChatTemplate
from toolstep.envs.chat.builtin import CHATML_HERMES, SPECIAL_TOKENS
from toolstep.envs.types import Message, ToolCall, Turn

PAIRS = (("smollm2", "smollm2-12k"), ("qwen3", "qwen-12k"), ("llama-3.1", "qwen-12k"), ("minimind", "minimind"))
HISTORIES = (1, 8, 64)
COMPARED = 16  # turns of history at which the delta is held against a full rendering
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Use this to {name} something that the user asks about.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "what to look for"}},
                "required": ["query"],
            },
        },
    }
    for name in ("lookup", "convert", "calculate")
]


def call(row: int, turn: int) -> ToolCall:
    name = TOOLS[(row * 7 + turn * turn) % len(TOOLS)]["function"]["name"]  # type: ignore[index]
    arguments = {"query": f"item {row} of {turn}"}
    return ToolCall(f"call{turn:05d}", name, json.dumps(arguments), arguments)


def opening(row: int) -> list[Message]:
    return [
        Message("system", "You are a careful assistant.  Use the tools."),
        Message("user", f"What is the value of item number {row}, and how does it compare with the others?"),
    ]


def history(row: int, turns: int) -> list[Message]:
    out = opening(row)
    for k in range(turns):
        made = call(row, k)
        out.append(Message("assistant", "", (made,)))
        out.append(Message("tool", f'{{"value": {row * 31 + k}, "unit": "m"}}', tool_call_id=made.id, name=made.name))
    return out


def best(works: dict[Any, Callable[[], Any]], seconds: float) -> dict[Any, float]:
    """Shortest time of each work, in ms of this process's CPU, over repeats that take about `seconds` each in all.

    The works take turns, so that a slow moment of the machine falls on all of them.
    """
    for work in works.values():
        work()
    shortest = dict.fromkeys(works, float("inf"))
    spent, repeats = 0.0, 0
    while spent < seconds * len(works) or repeats < 3:
        for name, work in works.items():
            start = time.process_time()
            work()
            took = time.process_time() - start
            shortest[name] = min(shortest[name], took)
            spent += took
        repeats += 1
    return {name: 1e3 * took for name, took in shortest.items()}


def chats(folder: Path) -> dict[str, tuple[Callable[..., ChatTemplate], str]]:
    """Constructors and texts by name."""
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(_alphabet()))}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    built_in = _constructor(backend, CHATML_HERMES, list(SPECIAL_TOKENS), [], ["<|im_end|>"])
    out = {"built-in": (built_in, CHATML_HERMES)}
    manifest = folder / "chat_templates" / "manifest.json"
    if not manifest.is_file():
        return out
    entries = {e["id"]: e for e in json.loads(manifest.read_text(encoding="utf-8"))["templates"]}
    for template, vocabulary in PAIRS:
        entry = entries[template]
        text = (folder / "chat_templates" / entry["file"]).read_text(encoding="utf-8")
        backend = Tokenizer.from_file(str(folder / "tokenizers" / f"{vocabulary}.json"))
        added = entry["special_tokens"], entry["plain_added_tokens"]
        out[template] = _constructor(backend, text, *added, entry["stop_tokens"]), text
    return out


def _alphabet() -> list[str]:
    return list(pre_tokenizers.ByteLevel.alphabet())


def _constructor(
    backend: Any, text: str, special: list[str], plain: list[str], stops: list[str]
) -> Callable[..., ChatTemplate]:
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=stops[0])
    return lambda **options: ChatTemplate(tokenizer, chat_template=text, stop_tokens=stops, **options)


def measure(make: Callable[..., ChatTemplate], text: str, rows: int, seconds: float) -> dict[str, Any]:
    chat, checked = make(), make(strict=True)
    stop = min(chat.stop_tokens)
    out: dict[str, Any] = {"delta": {}, "first": {}, "strict": {}, "prompt": {}}

    def steps(turns: int, count: int) -> list[tuple[Any, ...]]:
        made = [call(row, turns) for row in range(count)]
        return [
            (
                history(row, turns),
                Turn("", None, (c,)),
                [Message("tool", f"Item {row} is {row * 17} units, seen today.", tool_call_id=c.id, name=c.name)],
            )
            for row, c in enumerate(made)
        ]

    def deltas(template: ChatTemplate, work: list[tuple[Any, ...]]) -> Callable[[], None]:
        def run() -> None:
            for before, turn, new in work:
                template.delta(before, turn, new, TOOLS, stop=stop)

        return run

    work = {turns: steps(turns, rows) for turns in (*HISTORIES, COMPARED)}
    for turns, rows_of in work.items():
        start = time.process_time()
        deltas(chat, rows_of[:1])()
        out["first"][turns] = 1e3 * (time.process_time() - start)
    out["delta"] = best({turns: deltas(chat, w) for turns, w in work.items()}, seconds)
    out["strict"] = best({turns: deltas(checked, w) for turns, w in work.items()}, seconds)

    def prompts(turns: int) -> Callable[[], None]:
        whole = [history(row, turns) for row in range(rows)]

        def run() -> None:
            for w in whole:
                chat.prompt(w, TOOLS)

        return run

    out["prompt"] = best({turns: prompts(turns) for turns in (0, *HISTORIES)}, seconds)

    dicts = [
        [m.to_dict() for m in (*before, Message("assistant", "", turn.calls), *new)]
        for before, turn, new in steps(COMPARED, rows)
    ]
    plain = chat.tokenizer
    native = TOOLS if chat.writes_tools else None
    if not chat.writes_tools:  # such a template takes neither calls nor results: their text stands in for them
        dicts = [
            [{"role": "user" if m["role"] == "tool" else m["role"], "content": m["content"] or str(m)} for m in d]
            for d in dicts
        ]

    def full() -> None:
        for d in dicts:
            plain.apply_chat_template(d, tools=native, chat_template=text, tokenize=True)

    out["full"] = best({COMPARED: full}, seconds)[COMPARED]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each figure")
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()

    table = Table(title=f"ms for {args.rows} rows")
    columns = ["template", "prompt", *(f"prompt, {n} turns" for n in HISTORIES), *(f"delta, {n}" for n in HISTORIES)]
    columns += ["64 / 1", f"delta, {COMPARED}", f"full, {COMPARED}", "full / delta", f"strict, {COMPARED}", "first, 64"]
    for column in columns:
        table.add_column(column, justify="right" if column != "template" else "left")
    figures: dict[str, Any] = {}
    for name, (make, text) in chats(args.shared).items():
        got = figures[name] = measure(make, text, args.rows, args.seconds)
        deltas = got["delta"]
        cells = [got["prompt"][0], *(got["prompt"][n] for n in HISTORIES), *(deltas[n] for n in HISTORIES)]
        ratios = [deltas[64] / deltas[1], deltas[COMPARED], got["full"], got["full"] / deltas[COMPARED]]
        table.add_row(name, *(f"{c:.2f}" for c in (*cells, *ratios, got["strict"][COMPARED], got["first"][64])))
    Console(width=200).print(table)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
