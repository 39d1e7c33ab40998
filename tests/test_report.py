"""report.html: all of an evaluation is in it, exactly, as text; and nothing else."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_page import HOSTILE, Page, hostile
from test_rollout_types import episodes, make
from tiny import tiny_tokenizer

from toolstep.envs.types import Source
from toolstep.rollout.evaluate import summarize
from toolstep.rollout.viewer import charts
from toolstep.rollout.viewer import page as module
from toolstep.rollout.viewer.episodes import opening
from toolstep.rollout.viewer.page import page, write_report

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "rollout" / "viewer" / "templates"
CONFIG = {"agent": "an agent", "env": "an env", "seed": 0}


def made(*trajectories, config=CONFIG, tokenizer=None) -> Page:
    return Page(page(trajectories, summarize(trajectories), config, tokenizer))


# ------------------------------------------------------------------------------------------------ tokens


@settings(max_examples=40, deadline=None)
@given(st.lists(episodes, min_size=1, max_size=3))
def test_the_flat_record_comes_back_bit_for_bit(trajectories):
    trajectories = [dataclasses.replace(t, group_id=i) for i, t in enumerate(trajectories)]
    found = made(*trajectories)
    for number, t in enumerate(trajectories):
        if not t.context:
            assert found.data(f"detail-{number}")["tokens"] is None
            continue
        for name, values in found.tokens(number).items():
            assert values == getattr(t, name).tolist(), name


def test_versions_that_change_within_a_turn_are_kept():
    t = make([((9,), (5, 6, 7), 1.0)])
    t.weight_versions[3:] = [3, 3, 4]
    assert made(t).tokens(0)["weight_versions"] == [-1, -1, -1, 3, 3, 4]


def test_a_large_vocabulary_takes_four_bytes_an_id():
    t = make([((), tuple(range(100, 100 + (1 << 16))), 1.0)], prompt=(1,))
    assert made(t).data("vocabulary")["width"] == 4
    assert made(t).tokens(0)["token_ids"] == t.token_ids.tolist()
    assert made(make([((), (5,), 1.0)])).data("vocabulary")["width"] == 2


def test_log_probs_of_the_plain_model_are_stored_only_where_they_differ():
    t = make([((), (5, 6), 1.0)])
    assert made(t).data("detail-0")["tokens"]["model_logprobs"] is not None
    same = dataclasses.replace(t, model_logprobs=t.logprobs)
    assert made(same).data("detail-0")["tokens"]["model_logprobs"] is None
    script = dataclasses.replace(t, weight_versions=np.full_like(t.weight_versions, -1))
    assert made(script).data("detail-0")["tokens"]["logprobs"] is None


def test_texts_are_those_of_the_tokenizer_and_bytes_where_they_make_none():
    tokenizer = tiny_tokenizer()
    text = tokenizer.encode("a </b> é", add_special_tokens=False)
    unknown = 2_000_000
    t = make([((), (*text, tokenizer.eos_token_id, unknown), 1.0)], prompt=(tokenizer.bos_token_id,))
    words = made(t, tokenizer=tokenizer).data("vocabulary")
    of = dict(zip(words["ids"], words["texts"]))
    assert [of[i] for i in text] == ["a", " ", "<", "/", "b", ">", " ", [0xC3], [0xA9]]
    assert of[tokenizer.eos_token_id] == "<|im_end|>"
    assert of[unknown] is None
    assert {words["ids"][k] for k in words["control"]} == {tokenizer.bos_token_id, tokenizer.eos_token_id}
    assert made(t).data("vocabulary")["texts"] is None


# ------------------------------------------------------------------------------------------ conversation


def said(*roles):
    return [{"role": role, "content": str(i)} for i, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("roles", "turns", "status", "expected"),
    [
        (["system", "user", "assistant", "tool", "assistant"], 2, "ok", 2),
        (["user", "assistant", "user", "assistant"], 1, "ok", 3),  # an example in the prompt
        (["user", "assistant"], 2, "env_error", 1),  # the last turn came to nothing
        (["user", "assistant", "user"], 1, "agent_error", 3),
        (["user"], 0, "ok", 1),
        ([], 1, "env_error", 0),
    ],
)
def test_the_opening_ends_where_the_agent_begins(roles, turns, status, expected):
    t = make([((), (5,), 0.0)] * turns, messages=said(*roles), status=status)
    assert opening(t) == expected


def test_the_list_says_what_an_episode_is_about():
    long = "so many words " * 30
    messages = [*said("user", "assistant"), {"role": "user", "content": f"Which?\n  {long}"}, *said("assistant")]
    row = made(make([((), (5,), 0.5)], messages=messages, metrics={"success": 1.0})).data("rows")[0]
    assert row["preview"].startswith("Which? so many words")
    assert len(row["preview"]) == 140
    assert (row["outcome"], row["reward"], row["turns"], row["context"]) == ("success", 0.5, 1, 3)
    failed = made(make([((), (5,), 0.5)], metrics={"success": 1.0}, status="env_error", error="no disk"))
    assert failed.data("rows")[0]["outcome"] == "error"
    assert failed.data("detail-0")["error"] == "no disk"


def test_episodes_are_listed_by_group_and_sample_whatever_finished_first():
    many = [make([((), (5,), 1.0)], group_id=g, sample_index=s, seed=100 - g) for g in range(3) for s in range(2)]
    summary = summarize(many)
    data = page(many, summary, CONFIG)
    assert page(many[::-1], summary, CONFIG) == data
    assert [(r["group"], r["sample"]) for r in Page(data).data("rows")] == [(g, s) for g in range(3) for s in range(2)]


# ---------------------------------------------------------------------------------------- hostile content


def test_hostile_text_is_data_and_never_markup():
    t = hostile()
    config = {"agent": HOSTILE[0], "env": HOSTILE[1], "prompt": HOSTILE, "seed": 0}
    found = made(t, config=config, tokenizer=tiny_tokenizer())
    plain = made(dataclasses.replace(t, tags={"a": "b", "level": "c"}))
    assert found.tags == plain.tags
    assert [a[:2] for a in found.attributes] == [a[:2] for a in plain.attributes]
    assert found.data("detail-0")["messages"] == t.messages
    assert found.data("rows")[0]["task"] == HOSTILE[0]
    assert HOSTILE[0] in found.text
    assert HOSTILE[7] in json.dumps(found.data("detail-0"))


def test_nothing_is_loaded_and_nothing_runs_but_the_script_of_the_page():
    found = made(hostile())
    assert [value for _, name, value in found.attributes if name in ("src", "srcset", "action", "style")] == []
    assert [name for _, name, _ in found.attributes if name.startswith("on")] == []
    links = [str(value) for _, name, value in found.attributes if name in ("href", "xlink:href")]
    assert all(link.startswith(("#", "data:image/svg+xml,")) for link in links)
    parts = dict(part.strip().split(" ", 1) for part in found.policy.split(";"))
    assert parts["default-src"] == "'none'"
    digest = base64.b64encode(hashlib.sha256(found.scripts[None].encode()).digest()).decode()
    assert parts["script-src"] == f"'sha256-{digest}'"
    digest = base64.b64encode(hashlib.sha256(found.styles[0].encode()).digest()).decode()
    assert parts["style-src"] == f"'sha256-{digest}'"
    assert len(found.styles) == 1
    assert [name for name in found.scripts if name is None] == [None]
    assert "url(" not in found.styles[0]
    assert "@import" not in found.styles[0]


def test_the_script_never_turns_text_into_markup():
    scripts = sorted(TEMPLATES.glob("*.js"))
    assert len(scripts) == len(module._SCRIPTS)
    ways = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|createContextualFragment|srcdoc",
        r"\beval\b|Function\(|fetch\(|import\(|XMLHttpRequest|setAttribute\('on",
    )
    for path in scripts:
        assert not re.findall("|".join(ways), path.read_text()), path.name


def test_a_number_that_json_does_not_know_is_refused():
    t = make([((), (5,), 1.0)], messages=[{"role": "user", "content": float("nan")}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        made(t)


# -------------------------------------------------------------------------------------------------- size


def test_past_the_limit_episodes_are_listed_but_not_held(monkeypatch):
    many = [make([((), (5,), 1.0)], group_id=g) for g in range(5)]
    size = len(made(*many).scripts["detail-0"])
    monkeypatch.setattr(module, "LIMIT", 3 * size + size // 2)
    found = made(*many)
    assert [r["held"] for r in found.data("rows")] == [True, True, True, False, False]
    assert [name for name in found.scripts if name and name.startswith("detail-")] == [
        "detail-0",
        "detail-1",
        "detail-2",
    ]
    assert "holds the first 3 of 5 episodes" in found.text


def test_an_id_takes_two_bytes_and_a_log_prob_four():
    drawn = tuple(range(500)) * 4
    t = make([(drawn, drawn, 1.0)])
    t = dataclasses.replace(t, model_logprobs=t.logprobs)
    size = len(made(t).scripts["detail-0"])
    assert size < 1.4 * (2 * t.context + 4 * t.sampled)


# ------------------------------------------------------------------------------------------------ charts


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60))
def test_a_histogram_counts_each_number_once(values):
    h = charts.histogram("turns", values)
    if not any(values):
        assert h is None
        return
    assert len(h.bars) <= 25
    assert min(h.bars[0].count, h.bars[-1].count) > 0
    assert sum(b.count for b in h.bars) == len(values)
    for b in h.bars:
        assert b.count == sum(b.low <= v <= b.high for v in values)
        assert 0 <= b.x <= b.x + b.width <= charts.WIDTH
        assert b.y + b.height == pytest.approx(charts.HEIGHT, abs=0.11)
        assert (b.height > 0) == (b.count > 0)
    assert [b.low - a.high for a, b in zip(h.bars, h.bars[1:])] == [1] * (len(h.bars) - 1)
    assert len(h.ticks) <= 8
    assert h.most == max(values)


def test_levels_are_in_the_order_of_their_numbers():
    results = summarize([make([((), (5,), 1.0)], tags={"level": v}) for v in ("10", "9", "b2", "b10", "a")]).tags[
        "level"
    ]
    assert [value for value, _ in charts.in_order(results)] == ["9", "10", "a", "b2", "b10"]


def test_results_by_level_stand_in_the_page_with_their_intervals():
    many = [
        make([((), (5,), r)], group_id=i, seed=i, tags={"level": str(i % 2)}, metrics={"success": r, "calls/ok": 3.0})
        for i, r in enumerate([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    ]
    summary = summarize(many, requested=9)
    text = " ".join(made(*many).text.split())
    assert "success0.667[0.300, 0.903] 4 of 6 episodes" in text
    for result in summary.tags["level"].values():
        assert f"{result.success_rate:.3f}[{result.success_interval.low:.3f}" in text.replace(" [", "[")
    assert "Interrupted: 6 of 9" in Page(page(many, summary, CONFIG)).text
    assert "Interrupted" not in text
    nothing = Page(page([], summarize([], requested=3), CONFIG))
    assert "Interrupted: 0 of 3" in nothing.text
    assert nothing.data("rows") == []


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_is_readable_on_every_ground(theme):
    """Contrast of at least 4.5, as WCAG 2.1 demands of text (level AA)."""
    block = re.findall(r":root \{(.*?)\}", (TEMPLATES / "style.css").read_text(), re.S)[theme]
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))
    grounds = ("page", "card", "faint", "accent-soft")
    shades = ("prompt", "scaffold", "observation", "sampled", *(f"p{k}" for k in range(6)), "mark")
    pairs = [(ink, ground) for ink in ("ink", "soft") for ground in grounds]
    pairs += [("ink", shade) for shade in shades]
    pairs += [(ink, "card") for ink in ("accent", "good", "bad", "warn")] + [("accent", "accent-soft")]
    for ink, ground in pairs:
        a, b = sorted((luminance(colours[ink]), luminance(colours[ground])))
        assert (b + 0.05) / (a + 0.05) >= 4.5, (ink, ground)


# ------------------------------------------------------------------------------------------------- files


def test_the_templates_are_packaged():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    names = [f"templates/{p.name}" for p in TEMPLATES.iterdir()]
    assert len(names) == len(module._SCRIPTS) + 2
    assert all(any(fnmatch(name, pattern) for pattern in data["toolstep.rollout.viewer"]) for name in names)


def test_texts_come_from_the_tokenizer_that_the_configuration_names(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    text = tokenizer.encode("seven", add_special_tokens=False)
    t = make([((), text, 1.0)])
    for name, expected in (
        (str(tmp_path / "model"), {"s", "e", "v", "n"}),
        (str(tmp_path / "gone"), None),
        (None, None),
    ):
        config = CONFIG if name is None else {**CONFIG, "env_kwargs": {"tokenizer": name}}
        write_report(tmp_path / "report.html", [t], summarize([t]), config)
        texts = Page((tmp_path / "report.html").read_bytes()).data("vocabulary")["texts"]
        assert texts is None if expected is None else set(texts) >= expected


def test_sources_are_those_of_the_record():
    names = re.search(r"const SOURCES = \[(.*?)\];", (TEMPLATES / "tokens.js").read_text())
    assert names is not None
    shown = {"BODY": "observation"}
    assert re.findall(r"'(\w+)'", names[1]) == [shown.get(s.name, s.name.lower()) for s in sorted(Source)]
