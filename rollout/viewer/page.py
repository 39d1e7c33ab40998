"""The page: data, charts, style and script in one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from toolstep.rollout.evaluate import Summary
from toolstep.rollout.report import SAMPLES_HEAD, SAMPLES_TITLE, samples_rows, span
from toolstep.rollout.storage import replacing
from toolstep.rollout.types import Trajectory
from toolstep.rollout.viewer import charts, episodes
from toolstep.rollout.viewer.vocabulary import Vocabulary, tokenizer_of

# Messages and tokens of the episodes, in bytes: past it, episodes are listed, but cannot be opened in the page.
LIMIT = 64_000_000

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("base.js", "conversation.js", "tokens.js", "list.js")
# In a script element nothing ends the text but a tag or a comment, and both begin with "<".
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def write_report(path: Path, trajectories: Sequence[Trajectory], summary: Summary, config: Mapping[str, Any]) -> None:
    """Put the page in the place of `path`, with the texts of the tokenizer that `config` names; see `page`."""
    tokenizer = tokenizer_of(config) if any(t.context for t in trajectories) else None
    data = page(trajectories, summary, config, tokenizer)
    with replacing(path) as file:
        file.write(data)


def page(
    trajectories: Sequence[Trajectory], summary: Summary, config: Mapping[str, Any], tokenizer: Any = None
) -> bytes:
    """The evaluation as an HTML page.  It depends on nothing but what is given.

    Args:
        trajectories: the finished episodes; they are listed by group and sample.
        summary: of the same episodes.
        config: what decided the result.  The title is `agent` and `env`, or `folder` where those are not known.
        tokenizer: a fast tokenizer; None: ids are shown as numbers.

    What models, tools and tasks wrote is text in the page, whatever it holds: it stands in JSON, out of which no markup
    can come, and the script puts it into text nodes.  The content security policy lets nothing run but that script, and
    nothing be loaded at all.

    Raises:
        ValueError: a number that JSON does not know (NaN) in what was given.
    """
    ordered = sorted(trajectories, key=lambda t: (t.group_id is None, t.group_id, t.seed, t.sample_index))
    vocabulary = Vocabulary([t.token_ids for t in ordered], tokenizer)
    rows, details, size = [], [], 0
    for number, trajectory in enumerate(ordered):
        row = episodes.row(number, trajectory)
        text = _json(episodes.detail(trajectory, vocabulary))
        size += len(text)
        if size <= LIMIT:
            details.append((number, text))
        rows.append(row | {"held": size <= LIMIT})
    style, script = _assets()
    html: str = _template().render(
        title=_title(config),
        summary=summary,
        tags=[(tag, charts.in_order(values)) for tag, values in summary.tags.items()],
        stops=_stops(rows),
        histograms=_histograms(rows),
        span=span,
        plot=(charts.WIDTH, charts.HEIGHT),
        facts=_facts(config),
        settings=json.dumps({k: v for k, v in config.items() if k != "task_seeds"}, indent=2, ensure_ascii=False),
        rows=_json(rows),
        vocabulary=_json(vocabulary.to_dict()),
        details=details,
        held=len(details),
        samples=(SAMPLES_TITLE, SAMPLES_HEAD, samples_rows(summary)),
        style=style,
        script=script,
        policy=_policy(style, script),
        version=_version(),
    )
    # A lone surrogate becomes \udxxx: in JSON that is the very same character.
    return html.encode("utf-8", "backslashreplace")


def _json(data: Any) -> str:
    """JSON that can stand in a script element."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _template() -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(_TEMPLATES)
    undefined = jinja2.StrictUndefined
    made = jinja2.Environment(autoescape=True, loader=loader, undefined=undefined, trim_blocks=True, lstrip_blocks=True)
    return made.get_template("page.html")


@cache
def _assets() -> tuple[str, str]:
    """(style, script), as they stand in the page."""
    parts = [(_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    return (_TEMPLATES / "style.css").read_text(encoding="utf-8"), "".join(
        ["(() => {\n'use strict';\n", *parts, "})();\n"]
    )


def _version() -> str:
    try:
        return metadata.version("toolstep")
    except metadata.PackageNotFoundError:
        return ""


def _stops(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """(stop reason, episodes, successes among them), most frequent first."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        count = counts.setdefault(row["stop"], [0, 0])
        count[0] += 1
        count[1] += row["outcome"] == "success"
    return sorted(((stop, n, good) for stop, (n, good) in counts.items()), key=lambda item: (-item[1], item[0]))


def _histograms(rows: Sequence[Mapping[str, Any]]) -> list[charts.Histogram]:
    found = (
        charts.histogram(title, [row[key] for row in rows])
        for title, key in (("turns", "turns"), ("sampled tokens", "sampled"), ("context tokens", "context"))
    )
    return [h for h in found if h is not None]


def _title(config: Mapping[str, Any]) -> list[str]:
    return [str(config[name]) for name in ("agent", "env", "folder") if config.get(name) is not None][:2]


def _facts(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader wants to know of the settings before the results."""
    names = ("split", "level", "shots", "temperature", "max_turns", "max_new_tokens", "seed")
    return [(n.replace("_", " "), str(config[n])) for n in names if config.get(n) is not None]
