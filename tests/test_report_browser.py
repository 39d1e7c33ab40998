"""report.html in a browser: what is seen, what keys do, and what hostile text does not."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, browser
from report_page import HOSTILE, hostile
from test_rollout_types import make
from tiny import tiny_tokenizer

from toolstep.envs.types import Source
from toolstep.rollout.evaluate import summarize
from toolstep.rollout.types import Trajectory
from toolstep.rollout.viewer.page import page

__all__ = ["browser"]

TOKENIZER = tiny_tokenizer()
TAB, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"
LEFT, UP, RIGHT, DOWN, HOME, END = "\ue012", "\ue013", "\ue014", "\ue015", "\ue011", "\ue010"
PROBABILITIES = [0.995, 0.95, 0.6, 0.2, 0.05, 0.001]  # one of each shade


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def played(number: int) -> Trajectory:
    """An episode with a call, its result and an answer; its tokens spell "answer é" at the end."""
    call = {"id": "c0", "type": "function", "function": {"name": "lookup", "arguments": {"key": f"key-{number}"}}}
    messages = [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": f"found <b>{number}</b>", "tool_call_id": "c0", "name": "lookup"},
        {"role": "assistant", "content": f"answer {number}"},
    ]
    good = number % 3 > 0
    t = make(
        [((), ids("abcdef"), 0.0), (ids("seen\n"), [*ids("é!"), TOKENIZER.eos_token_id], float(good))],
        prompt=ids("ask:"),
        messages=messages,
        metrics={"success": float(good), "calls/ok": 1.0},
        tags={"level": str(number % 2)},
        stop_reason="answered" if good else "max_turns",
        task_id=f"task/{number}",
        group_id=number,
        seed=number,
    )
    logprobs = t.logprobs.copy()
    logprobs[np.flatnonzero(t.action_mask)[: len(PROBABILITIES)]] = np.log(PROBABILITIES)
    source = t.source.copy()
    source[np.flatnonzero(t.source == Source.BODY)[-1]] = Source.SCAFFOLD  # the newline
    return dataclasses.replace(t, logprobs=logprobs, source=source)


EPISODES = [played(n) for n in range(12)]
LIST = "#list li a"


def written(path: Path, *trajectories: Trajectory, tokenizer: object = TOKENIZER) -> str:
    config = {"agent": "an agent", "env": "an env", "temperature": 1.0, "seed": 0}
    path.write_bytes(page(trajectories, summarize(trajectories), config, tokenizer))
    return path.as_uri()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("report") / "report.html", *EPISODES)


def open_tokens(browser: Browser, address: str, **window: object) -> None:
    browser.show(address, **window)
    browser.button("Tokens").click()


# ------------------------------------------------------------------------------------------------- seen


def test_a_report_opens_with_its_results_and_the_first_episode(browser, report):
    browser.show(report)
    assert browser.one("h1").text == "an agent on an env"
    assert browser.one(".numbers dd").text == "0.667"
    assert [h.text for h in browser.all(".card h3")][:2] == ["success by level", "stop reasons"]
    assert len(browser.all(".interval .whisker")) == 2
    assert len(browser.all(".histogram")) == 3
    assert len(browser.all(LIST)) == len(EPISODES)
    assert browser.one("#reader-title").text.split("\n") == ["✗", "Episode 0", "failure, reward 0.000"]
    assert "question 0" in browser.one("#reader").text
    assert browser.console() == []


def test_intervals_and_bars_are_drawn_to_scale(browser, report):
    browser.show(report)
    result = summarize(EPISODES).tags["level"]["0"]
    axis, whisker, point = (
        browser.run(
            "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", f".interval .{name}"
        )
        for name in ("axis", "whisker", "point")
    )
    at = [axis["left"] + axis["width"] * v for v in (result.success_interval.low, result.success_interval.high)]
    assert [whisker["left"], whisker["right"]] == pytest.approx(at, abs=1.5)
    middle = (point["left"] + point["right"]) / 2
    assert middle == pytest.approx(axis["left"] + axis["width"] * result.success_rate, abs=1.5)


def test_calls_and_results_are_folded_and_show_their_exact_text(browser, report):
    browser.show(f"{report}#episode-4")
    folds = browser.all("#reader .fold")
    assert [f.get_attribute("open") for f in folds] == [None, None]
    assert folds[0].text == 'call\nlookup\n{"key":"key-4"}'
    assert folds[1].text == "result\nlookup\nfound <b>4</b>"
    folds[1].find_element("css selector", "summary").click()
    assert folds[1].find_element("css selector", "pre").text == "found <b>4</b>"
    browser.button("Unfold all").click()
    assert all(f.get_attribute("open") for f in folds)
    browser.button("Fold all").click()
    assert not any(f.get_attribute("open") for f in folds)


def test_turns_carry_their_rewards_and_the_end_says_why(browser, report):
    browser.show(f"{report}#episode-4")
    labels = [e.text.split("\n") for e in browser.all("#reader .label")]
    assert labels == [["user"], ["assistant", "turn 0"], ["tool"], ["assistant", "turn 1", "reward 1.000"]]
    assert browser.one(".end").text == "answered · terminated after 2 turns · reward 1.000"


def test_examples_in_the_prompt_are_folded(browser, tmp_path):
    shots = [{"role": role, "content": f"{role} {k}"} for k in range(3) for role in ("user", "assistant")]
    t = make(
        [((), (5,), 1.0)], messages=[*shots, {"role": "user", "content": "now"}, {"role": "assistant", "content": "x"}]
    )
    browser.show(written(tmp_path / "r.html", t, tokenizer=None))
    assert "6 messages before the question" in browser.one(".earlier").text
    assert "user 0" not in browser.one("#reader").text
    assert [e.text.split("\n") for e in browser.all("#reader .label") if e.is_displayed()] == [
        ["user"],
        ["assistant", "turn 0", "reward 1.000"],
    ]


# ----------------------------------------------------------------------------------------------- tokens


def test_each_id_has_the_colour_of_its_source_and_the_shade_of_its_probability(browser, report):
    open_tokens(browser, report)
    spans = browser.run(
        "return [...document.querySelectorAll('.tokens .t')].map(s => "
        "[s.className, s.textContent, getComputedStyle(s).backgroundColor])"
    )
    t = EPISODES[0]
    assert len(spans) == t.context
    kinds = [s[0].split()[1] for s in spans]
    assert kinds == [{0: "prompt", 1: "sampled", 2: "observation", 3: "scaffold"}[s] for s in t.source.tolist()]
    sampled = [s for s in spans if "sampled" in s[0]]
    assert [s[0].split()[-1] for s in sampled[:6]] == ["p0", "p1", "p2", "p3", "p4", "p5"]
    colours = [{s[2] for s in spans if kind in s[0].split()} for kind in ("prompt", "observation", "scaffold")]
    colours += [{s[2]} for s in sampled[:6]]
    assert all(len(c) == 1 for c in colours)
    assert len(set().union(*colours)) == len(colours)


def test_bytes_of_one_character_are_shown_as_it_and_control_tokens_stand_out(browser, report):
    open_tokens(browser, report)
    texts = [s.text for s in browser.all(".tokens .t")]
    assert "".join(texts[:10]) == "ask:abcdef"
    assert texts[-4:] == ["é", "·", "!", "<|im_end|>"]
    assert texts[14].startswith("↵")
    assert [s.text for s in browser.all(".tokens .control")] == ["<|im_end|>"]


def tip(browser: Browser) -> dict[str, str]:
    browser.wait("!document.querySelector('#tip').hidden")
    return dict(
        browser.run(
            "return [...document.querySelectorAll('#tip dt')].map(t => [t.textContent, t.nextSibling.textContent])"
        )
    )


def test_hovering_tells_all_about_an_id(browser, report):
    open_tokens(browser, report)
    t = EPISODES[0]
    at = int(np.flatnonzero(t.action_mask)[3])
    browser.hover(browser.all(".tokens .t")[at])
    logprob, model = float(t.logprobs[at]), float(t.model_logprobs[at])
    assert tip(browser) == {
        "id": str(t.token_ids[at]),
        "text": '"d"',
        "source": "sampled",
        "log-prob": f"−{-logprob:.4f}  (p {math.exp(logprob):.4f})",
        "plain model": f"−{-model:.4f}  (p {math.exp(model):.4f})",
        "turn": "0",
        "version": "3",
        "position": str(at),
    }
    browser.hover(browser.all(".tokens .t")[0])
    browser.wait("document.querySelector('#tip').textContent.includes('prompt')")
    assert tip(browser)["version"] == "–"
    assert "log-prob" not in tip(browser)
    browser.hover(browser.one("h2"))
    browser.wait("document.querySelector('#tip').hidden")


def test_arrow_keys_go_from_id_to_id(browser, report):
    open_tokens(browser, report)
    browser.run("document.querySelector('.tokens').focus()")
    browser.press(RIGHT)
    assert tip(browser)["position"] == "0"
    browser.press(RIGHT, RIGHT, LEFT)
    assert tip(browser)["position"] == "1"
    browser.press(DOWN)
    assert tip(browser)["turn"] == "1"
    browser.press(UP, END)
    assert tip(browser)["position"] == str(EPISODES[0].context - 1)
    browser.press(RIGHT, HOME, LEFT)
    assert tip(browser)["position"] == "0"
    assert browser.run("return document.activeElement.getAttribute('aria-describedby')") == "tip"
    browser.press(ESCAPE)
    browser.wait("document.querySelector('#tip').hidden")


def test_a_context_that_begins_anew_is_marked(browser, tmp_path):
    t = dataclasses.replace(played(0), segment_starts=[0, 10])
    open_tokens(browser, written(tmp_path / "r.html", t))
    assert [e.text for e in browser.all(".segment")] == ["the context begins anew here"]


def test_what_is_not_known_is_said(browser, tmp_path):
    t = played(0)
    script = dataclasses.replace(t, weight_versions=np.full_like(t.weight_versions, -1), group_id=0)
    empty = {
        name: getattr(t, name)[:0]
        for name in ("token_ids", "source", "logprobs", "model_logprobs", "turn", "weight_versions")
    }
    text = dataclasses.replace(t, **empty, prompt_length=0, group_id=1)
    address = written(tmp_path / "r.html", script, text, tokenizer=None)
    open_tokens(browser, address)
    shown = browser.one("#reader").text
    assert "no log-probabilities: a script wrote these turns" in shown
    assert "ids are shown as numbers" in shown
    assert browser.all(".tokens .t")[0].text == str(t.token_ids[0])
    browser.show(f"{address}#episode-1")
    assert "No token view: the agent plays in text" in browser.one("#reader").text
    assert "Tokens" not in [b.text for b in browser.all("button")]
    assert browser.console() == []


# --------------------------------------------------------------------------------------- list and search


def numbers(browser: Browser) -> list[int]:
    return [
        int(n[1:])
        for n in browser.run("return [...document.querySelectorAll('#list .number')].map(e => e.textContent)")
    ]


def choose(browser: Browser, box: str, value: str) -> None:
    browser.run(
        "const [box, value] = arguments; box.value = value; box.dispatchEvent(new Event('change', { bubbles: true }))",
        browser.one(f"#{box}"),
        value,
    )


def test_filters_and_search_leave_the_episodes_that_match(browser, report):
    browser.show(report)
    choose(browser, "outcome", "failure")
    assert numbers(browser) == [0, 3, 6, 9]
    choose(browser, "tag-level", "1")
    assert numbers(browser) == [3, 9]
    assert browser.one("#count").text == "2 of 12 episodes"
    browser.one("#query").send_keys("KEY-9")  # an argument of a call
    browser.wait("document.querySelectorAll('#list .number').length === 1")
    assert numbers(browser) == [9]
    browser.button("Reset").click()
    browser.wait("document.querySelectorAll('#list .number').length === 12")
    assert browser.one("#count").text == "12 episodes"
    choose(browser, "order", "reward, lowest first")
    assert numbers(browser)[:5] == [0, 3, 6, 9, 1]


def test_what_was_found_is_marked_and_unfolded(browser, report):
    browser.show(report)
    browser.one("#query").send_keys("found <b>7")
    browser.wait("document.querySelectorAll('#list .number').length === 1")
    browser.one(LIST).click()
    browser.wait("document.querySelector('#reader-title').textContent.includes('Episode 7')")
    assert [m.text for m in browser.all("#reader mark")] == ["found <b>7"]
    assert [f.get_attribute("open") for f in browser.all("#reader .fold")] == [None, "true"]


@pytest.mark.parametrize("at", [0, 19_994, 70_000, 99_990])
def test_a_long_text_is_shown_in_parts_and_where_something_was_found(browser, tmp_path, at):
    """A browser takes a minute to lay out three million characters."""
    long = "🙂" * (at // 2) + "needle now" + "🙂" * ((99_990 - at) // 2)  # each is two of JavaScript's characters
    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": long}]
    address = written(tmp_path / "report.html", dataclasses.replace(played(0), messages=talk, error=long), played(1))
    shown = "return [...document.querySelectorAll('#reader .assistant .text, #reader .error')].map(e => e.textContent)"
    browser.show(address)
    texts = browser.run(shown)
    assert [text[-22:] for text in texts] == ["80,000 more characters"] * 2
    assert all(long.startswith(text[:-22]) and len(text) < 20_100 for text in texts)
    browser.one("#query").send_keys("needle now")
    browser.wait("document.querySelectorAll('#list .number').length === 1")
    browser.one(LIST).click()
    browser.wait("document.querySelectorAll('#reader mark').length === 2")
    assert [m.text for m in browser.all("#reader mark")] == ["needle now"] * 2
    assert all(len(text) < 40_200 and "\ufffd" not in text for text in browser.run(shown))
    for _ in range(5):
        if buttons := browser.all("#reader .assistant .unshown"):
            browser.run("arguments[0].focus()", buttons[0])
            browser.press(ENTER)
    assert browser.run(shown)[0] == long
    assert len(browser.all("#reader mark")) == 2
    assert browser.console() == []


def test_results_lead_to_their_episodes(browser, report):
    browser.show(report)
    link = next(a for a in browser.all("a[data-filter=stop]") if a.text == "max_turns")
    link.click()
    assert numbers(browser) == [0, 3, 6, 9]
    browser.all("a[data-filter=tag-level]")[1].click()
    assert numbers(browser) == [1, 3, 5, 7, 9, 11]


def test_a_long_list_is_shown_in_parts(browser, tmp_path):
    many = [make([((), (5,), 1.0)], group_id=n, messages=[]) for n in range(620)]
    browser.show(written(tmp_path / "r.html", *many, tokenizer=None))
    assert len(browser.all(LIST)) == 500
    browser.button("Show more (120)").click()
    assert numbers(browser) == list(range(620))


# ------------------------------------------------------------------------------------------------- keys


def focused(browser: Browser) -> str:
    return str(browser.run("const e = document.activeElement; return e.id || e.getAttribute('href') || e.textContent"))


def test_everything_is_reached_and_named(browser, report):
    browser.show(report)
    browser.press(TAB)
    assert focused(browser) == "#episodes"  # the skip link
    assert browser.one(".skip").location["x"] >= 0
    order = []
    for _ in range(40):
        browser.press(TAB)
        order.append(focused(browser))
        if order[-1] == "Configuration and versions":
            break
    wanted = [
        "query",
        "outcome",
        "stop",
        "tag-level",
        "order",
        "Reset",
        "#episode-0",
        "#episode-1",
        "Conversation",
        "Tokens",
    ]
    assert [o for o in order if o in wanted] == wanted
    unnamed = browser.run(
        "return [...document.querySelectorAll('a, button, input, select, summary')].filter(e => "
        "!(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label'))).length"
    )
    assert unnamed == 0
    assert (
        browser.run(
            "const ids = [...document.querySelectorAll('[id]')].map(e => e.id); return ids.length - new Set(ids).size"
        )
        == 0
    )


def test_arrow_keys_walk_the_list_and_enter_opens(browser, report):
    browser.show(report)
    browser.run("document.querySelector('#list a').focus()")
    browser.press(DOWN, DOWN, DOWN, UP)
    assert focused(browser) == "#episode-2"
    browser.press(END)
    assert focused(browser) == "#episode-11"
    browser.press(ENTER)
    browser.wait("document.activeElement.id === 'reader-title'")
    assert "Episode 11" in browser.one("#reader-title").text
    assert browser.one("[aria-current]").get_attribute("href").endswith("#episode-11")
    browser.button("Previous").click()
    browser.wait("location.hash === '#episode-10'")
    assert browser.one("[aria-current]").get_attribute("href").endswith("#episode-10")


# ------------------------------------------------------------------------------------- light, dark, narrow


def test_dark_is_dark_and_light_is_light(browser, report):
    def lightness(dark: bool) -> tuple[float, float]:
        browser.show(report, dark=dark)
        ground, ink = browser.run(
            "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color].map(c => "
            "c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 765)"
        )
        return ground, ink

    assert lightness(False)[0] > 0.9 > 0.2 > lightness(False)[1]
    assert lightness(True)[0] < 0.2 < 0.8 < lightness(True)[1]


@pytest.mark.parametrize("view", ["Conversation", "Tokens"])
def test_a_narrow_window_shows_list_or_episode_and_nothing_hangs_over(browser, report, view):
    fits = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    browser.show(report, width=400)
    assert browser.run(fits)
    assert browser.one("#list").is_displayed()
    assert not browser.one("#reader").is_displayed()
    browser.show(f"{report}#episode-3", width=400)
    browser.button(view).click()
    assert browser.run(fits)
    assert not browser.one("#list").is_displayed()
    browser.button("All episodes").click()
    browser.wait("!document.body.classList.contains('reading')")
    assert browser.one("#list").is_displayed()
    assert focused(browser) == "#episode-3"


# ------------------------------------------------------------------------------------------------ hostile


def test_hostile_text_is_shown_and_not_run(browser, tmp_path):
    t = hostile()
    config = {"agent": HOSTILE[0], "env": HOSTILE[1], "seed": 0}
    path = tmp_path / "report.html"
    path.write_bytes(page([t], summarize([t]), config, TOKENIZER))
    browser.show(path.as_uri())
    browser.button("Unfold all").click()
    shown = browser.one("#reader").text
    for text in (*HOSTILE[:5], *HOSTILE[6:]):
        assert text in shown
    assert "⟨202e⟩" in shown
    assert HOSTILE[0] in browser.one("h1").text
    browser.button("Tokens").click()
    assert browser.run("return window.pwned") is None
    assert len(browser.all("img, b img, #reader script, iframe")) == 0
    assert browser.console() == []


def test_a_script_that_got_in_would_not_run(browser, report):
    browser.show(report)
    browser.run(
        "window.refused = [];"
        "document.addEventListener('securitypolicyviolation', e => refused.push(e.effectiveDirective));"
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s);"
        "const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i);"
        "const d = document.createElement('div'); d.setAttribute('onclick', 'window.pwned = 2');"
        "document.body.append(d); d.click();"
    )
    browser.wait("refused.length >= 3")
    assert browser.run("return window.pwned") is None
    assert set(browser.run("return refused")) == {"script-src-elem", "img-src", "script-src-attr"}
    browser.console()  # the refusals
