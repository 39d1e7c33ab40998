"""The output folder of an evaluation: config.json, episodes.jsonl, summary.json and summary.md."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from toolstep.rollout.evaluate import Summary
from toolstep.rollout.stats import Interval
from toolstep.rollout.storage import write_text

_PACKAGES = ("toolstep", "gymnasium", "numpy", "scipy", "torch", "transformers", "tokenizers")


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that results depend on; None for one that is not installed."""
    out: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = None
    return out


def write_json(path: Path, data: Any) -> None:
    """Put `data` in the place of `path`; refuses NaN."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_summary(folder: Path, summary: Summary, config: Mapping[str, Any]) -> None:
    """summary.json and summary.md."""
    write_json(folder / "summary.json", summary.to_dict())
    write_text(folder / "summary.md", markdown(summary, config))


def markdown(summary: Summary, config: Mapping[str, Any]) -> str:
    """The summary as a Markdown page."""
    lines = [f"# {config['agent']} on {config['env']}", ""]
    if summary.episodes < summary.requested:
        lines += [f"Interrupted: {summary.episodes} of {summary.requested} episodes are finished.", ""]
    lines += _table(("", ""), rows(summary))
    for tag, values in summary.tags.items():
        lines += ["", f"## By {tag}", ""]
        head = (tag, "episodes", "success", "95% interval", "mean reward")
        lines += _table(
            head,
            [
                (
                    value,
                    str(r.episodes),
                    f"{r.success_rate:.3f}",
                    span(r.success_interval),
                    f"{r.mean_reward:.3f}",
                )
                for value, r in values.items()
            ],
        )
    options = json.dumps(dict(config), indent=2)
    return "\n".join([*lines, "", "## Configuration", "", "```json", options, "```", ""])


def rows(summary: Summary) -> list[tuple[str, str]]:
    """The final table: (name, value) in the order in which it is read."""
    out = [
        (
            "success",
            f"{summary.success_rate:.3f}  {span(summary.success_interval)}  "
            f"({summary.successes} of {summary.episodes})",
        ),
        ("mean reward", f"{summary.mean_reward:.3f}  {span(summary.reward_interval)}"),
        ("errors", f"{summary.errors}{_counts(summary.statuses, skip='ok')}"),
        ("turns", f"{summary.turns:.2f}"),
        ("tool calls", f"{sum(summary.calls.values())}{_counts(summary.calls)}"),
        ("stop reasons", _counts(summary.stop_reasons).strip(" ()") or "-"),
        ("tokens an episode", _tokens(summary)),
        ("cut turns", str(summary.truncated_responses)),
    ]
    if summary.speed is not None:
        s = summary.speed
        wait = f", waiting for tools {s.wait_seconds:.1f} s" if s.wait_seconds else ""
        out += [
            ("speed", f"{_rate(s.tokens_per_second)}{s.episodes_per_second:.2f} episodes/s"),
            ("time", f"{s.seconds:.1f} s: agent {s.agent_seconds:.1f} s, env {s.env_seconds:.1f} s{wait}"),
        ]
    return out


def span(interval: Interval | None) -> str:
    """An interval as text; "-" where there is none."""
    return "-" if interval is None else f"[{interval.low:.3f}, {interval.high:.3f}]"


def _tokens(summary: Summary) -> str:
    if not summary.context_tokens:
        return "- (a view without tokens)"
    return (
        f"{summary.sampled_tokens:.1f} sampled, {summary.observed_tokens:.1f} observed, "
        f"{summary.context_tokens:.1f} context"
    )


def _rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second:.1f} tokens/s, " if tokens_per_second else ""


def _counts(counts: Mapping[str, int], skip: str | None = None) -> str:
    text = ", ".join(f"{name} {n}" for name, n in counts.items() if name != skip)
    return f"  ({text})" if text else ""


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, body)]
