"""What `toolstep audit` reads and shows."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolstep.envs.chat.audit_report import Audit, Check, Facts
from toolstep.rollout.console import pairs

_COLOURS = {"exact": "green", "policy": "yellow", "refused": "cyan", "n/a": "dim", "wrong": "bold red"}
_AS_TEXT = {
    "schemas": "schemas (in the system message)",
    "calls": "calls (as they are sampled)",
    "results": "results (user messages)",
}
_SAFE = {
    True: "yes: no content became a control token",
    False: "NO: content became control tokens",
    None: "no tokenizer",
}


def variables(text: str | None) -> dict[str, Any]:
    """The value of `--template-kwargs`.  Raises ValueError for what is no JSON object."""
    try:
        given = {} if text is None else json.loads(text)
    except ValueError as e:
        raise ValueError(f"--template-kwargs is not JSON ({e}): {text!r}") from e
    if not isinstance(given, dict):
        raise ValueError(f"--template-kwargs must be a JSON object of variables and their values, got {text!r}")
    return given


def document(audit: Audit, seconds: float) -> dict[str, Any]:
    """The JSON document: the audit and how long it took."""
    return {**audit.to_dict(), "seconds": round(seconds, 3)}


def print_audit(audit: Audit, seconds: float) -> None:
    """Facts, one line for each scenario, and the verdict."""
    console = Console()
    console.print(pairs(audit.name, _facts(audit.facts)))
    table = Table(
        "scenario", "outcome", "what to know", title="Observation deltas against the template", title_justify="left"
    )
    for check in audit.checks:
        outcome = check.status if check.status != "policy" else f"policy: {check.policy}"
        table.add_row(escape(check.title), f"[{_COLOURS[check.status]}]{escape(outcome)}[/]", escape(_remark(check)))
    console.print(table)
    counted = ", ".join(f"{n} {status}" for status, n in audit.counts.items() if n)
    verdict = "nothing is wrong" if audit.ok else "do not train on this template as it is"
    console.print(f"{counted} of {len(audit.checks)} scenarios in {seconds:.1f} s: {verdict}", highlight=False)


def _facts(facts: Facts) -> list[tuple[str, str]]:
    past = [f"{', '.join(v)} when a {role} message arrives" for role, v in facts.rewrites.items() if v]
    return [
        ("tools", _tools(facts)),
        ("tool-call format", facts.tool_call_format),
        ("stop tokens", f"{' '.join(facts.stop_tokens)}  (from: {facts.stop_source})"),
        ("system message", "yes" if facts.system_role else "no: its text opens the first user message"),
        ("thoughts", "written" if facts.writes_thoughts else "not written by the template"),
        ("past", "; ".join(past) or "kept as it was"),
        ("injection safe", _SAFE[facts.injection_safe]),
        ("vocabulary", f"{facts.vocabulary:,}" if facts.vocabulary else "text only"),
    ]


def _tools(facts: Facts) -> str:
    """Which parts the template writes itself, and what becomes of the others."""
    native = [part for part, how in facts.parts.items() if how == "native"]
    text = [_AS_TEXT[part] for part, how in facts.parts.items() if how == "text"]
    said = [f"the template writes {', '.join(native)}"] if native else []
    return "; ".join(said + ([f"as text: {', '.join(text)}"] if text else []))


def _remark(check: Check) -> str:
    parts = [check.detail, *check.notes]
    if check.status == "refused":
        parts.insert(0, check.policy + ":")
    if check.difference is not None:
        d = check.difference
        parts.append(f"at {d.at}: expected {d.expected!r}, found {d.found!r}")
    return " ".join(p for p in parts if p)
