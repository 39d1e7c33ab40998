"""An evaluation in words: the rows of its table, and summary.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolstep.envs.render import clean
from toolstep.rollout.evaluate import Summary, TagResult
from toolstep.rollout.stats import Interval


def markdown(summary: Summary, config: Mapping[str, Any]) -> str:
    """The summary as a Markdown page."""
    lines = [f"# {config['agent']} on {config['env']}", ""]
    if summary.episodes < summary.requested:
        lines += [f"Interrupted: {summary.episodes} of {summary.requested} episodes are finished.", ""]
    lines += _table(("", ""), rows(summary))
    if summary.passes:
        lines += ["", f"## {SAMPLES_TITLE}", "", *_table(SAMPLES_HEAD, samples_rows(summary))]
    for tag, values in summary.tags.items():
        lines += ["", f"## By {tag}", ""]
        lines += _table((tag, *TAG_HEAD), tag_rows(values))
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
        ("mean score", f"{summary.mean_score:.3f}  {span(summary.score_interval)}"),
        ("mean reward", f"{summary.mean_reward:.3f}  {span(summary.reward_interval)}"),
        *([("reward terms", _terms(summary.reward_terms))] if _terms(summary.reward_terms) else []),
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
        template = f" (template {s.template_seconds:.1f} s)" if s.template_seconds is not None else ""
        part = f"  (the last {s.episodes} of {summary.episodes} episodes)" if s.episodes < summary.episodes else ""
        out += [
            ("speed", f"{_rate(s.tokens_per_second)}{s.episodes_per_second:.2f} episodes/s{part}"),
            ("time", f"{s.seconds:.1f} s: agent {s.agent_seconds:.1f} s, env {s.env_seconds:.1f} s{template}{wait}"),
        ]
        if s.tool_seconds is not None:
            out.append(("tools", f"{s.tool_seconds:.1f} s, summed over calls"))
    return out


_REQUESTS = (("retried", "sent again"), ("failed", "failed for good"))
SAMPLES_TITLE = "k samples of a task: one succeeds (pass@k), all succeed (pass^k)"
SAMPLES_HEAD = ("k", "tasks", "pass@k", "95% interval", "pass^k", "95% interval")
TAG_HEAD = ("episodes", "success", "95% interval", "mean reward")


def samples_rows(summary: Summary) -> list[tuple[str, ...]]:
    """The table of pass@k and pass^k."""
    return [
        (
            str(p.k),
            str(p.tasks),
            f"{p.pass_at:.3f}",
            span(p.pass_at_interval),
            f"{p.pass_all:.3f}",
            span(p.pass_all_interval),
        )
        for p in summary.passes
    ]


def tag_rows(values: Mapping[str, TagResult]) -> list[tuple[str, ...]]:
    """The table of one tag, a row for each value."""
    return [
        (value, str(r.episodes), f"{r.success_rate:.3f}", span(r.success_interval), f"{r.mean_reward:.3f}")
        for value, r in values.items()
    ]


def requests_line(counts: Mapping[str, Any]) -> str:
    """What an agent asked of its server, in a line; see `Job.requests`."""
    parts = [f"{sum(counts[key].values())} {text}{_counts(counts[key])}" for key, text in _REQUESTS if counts[key]]
    return ", ".join([f"requests to the server: {counts['requests']}", *parts])


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


def _terms(terms: Mapping[str, float]) -> str:
    """The means that are not 0, beside that of the outcome."""
    return ", ".join(f"{name} {value:.3f}" for name, value in terms.items() if value and name != "outcome")


def _rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second:.1f} tokens/s, " if tokens_per_second else ""


def _counts(counts: Mapping[str, int], skip: str | None = None) -> str:
    text = ", ".join(f"{name} {n}" for name, n in counts.items() if name != skip)
    return f"  ({text})" if text else ""


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(clean(c).split("\n")).replace("|", "\\|") for c in cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, body)]
