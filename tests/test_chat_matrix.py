"""Templates x tokenizers x scenarios: every delta is what the template writes, as text and as ids, or is refused.

The expected texts are the manifest's; the audit's own truth, renderings of the real conversations, is the second
opinion.  Counts are asserted, so that no cell can vanish in silence.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from chat_cells import CLOCK, OWN, VOCABULARIES, Cell, native, own_cells, shared_cells
from chat_fixtures import shared_manifest, tiny_tokenizer

from toolstep.envs.chat import ChatTemplate, ChatTemplateError
from toolstep.envs.chat import errors as error_types
from toolstep.envs.chat.audit import OPENS_OTHERWISE, Audit, audit_template
from toolstep.envs.chat.audit_scenarios import scenarios
from toolstep.envs.types import Message, ToolCall, Turn

# Mistral's templates let only the assistant speak after a result.
REFUSALS = {
    (name, "tool_and_user"): "TemplateRejects"
    for name in ("mistral-7b-v0.3", "mistral-small-3.2", "mistral-vllm-parallel")
}
# Templates that do not write two calls in one turn.
ONE_CALL = {"llama-3.1", "llama-3.1-vllm-json", "gpt-oss"}


# ------------------------------------------------------------------------------- the manifest's expected deltas
def _messages(given: dict[str, Any], chat: ChatTemplate) -> list[Message]:
    opening = [Message(given[k]["role"], given[k]["content"]) for k in ("system", "user")]
    try:
        if opening[0].content in chat.prompt(opening, given["tools"]).text:
            return opening
    except ChatTemplateError:
        pass
    return opening[1:]


def _case(given: dict[str, Any], scenario: str) -> tuple[Turn, list[Message]]:
    case = given[scenario]
    calls = tuple(ToolCall(c["id"], c["name"], "{}", c["arguments"]) for c in given["calls"][: case["calls"]])
    new = [Message(m["role"], m["content"], (), m.get("tool_call_id"), m.get("name")) for m in case["new_messages"]]
    return Turn(case.get("answer", ""), None, calls), new


def _manifest_cells(cell: Cell) -> Counter[str]:
    """Checks one template's expected deltas, with and without the stop token."""
    given, done = shared_manifest()["scenarios_input"], Counter[str]()
    chat = native(cell.chat())
    history = _messages(given, chat)
    for scenario, want in cell.entry["scenarios"].items():
        turn, new = _case(given, scenario)
        for stop, key in ((want.get("stop"), "after_stop"), (None, "without_stop")):
            where = (cell.name, scenario, key)
            if "error" in want:
                with pytest.raises(getattr(error_types, want["error"])):
                    chat.delta(history, turn, new, given["tools"], stop=None)
                done["refused"] += 1
                continue
            delta = chat.delta(history, turn, new, given["tools"], stop=stop)
            assert delta.text == want[key], where
            assert delta.inserted == ("" if stop else want["inserted"]), where
            before = cell.entry["stop_tokens"][0]  # one id, behind which a text goes on
            ids = cell.tokenizer.encode(before + want[key], add_special_tokens=False)[1:]
            assert delta.ids.tolist() == ids, where
            # The sampled ids are no input, so no other way to have written the turn makes another delta.
            again = chat.delta(history, Turn("other words", "a thought", turn.calls), new, given["tools"], stop=stop)
            assert np.array_equal(again.ids, delta.ids), where
            done["right"] += 1
    return done


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_expected_deltas_of_the_manifest(vocabulary):
    done = Counter[str]()
    for cell in shared_cells(vocabulary):
        done += _manifest_cells(cell)
    assert dict(done) == {"right": 320, "refused": 16}


# ------------------------------------------------------------------------------------- the audit's scenarios
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_every_scenario_on_every_shared_template(vocabulary):
    counts, cells, wrong, refused, one_call = Counter[str](), 0, [], {}, set()
    for cell in shared_cells(vocabulary):
        audit = audit_template(cell.tokenizer, **cell.options)
        assert audit.facts.injection_safe, cell.name
        for check in audit.checks:
            cells += 1
            counts[check.status] += 1
            if check.status == "wrong":
                wrong.append((cell.name, check))
            elif check.status == "refused":
                refused[cell.name, check.scenario] = check.policy
            elif check.policy == "one call":
                one_call.add(cell.name)
        _agrees_with_manifest(cell.entry, audit)
    assert not wrong
    assert refused == REFUSALS
    assert one_call == ONE_CALL
    assert cells == 57 * len(scenarios("")) == 1482
    assert counts == {"exact": 1366, "policy": 72, "refused": 3, "n/a": 41}, counts


def _agrees_with_manifest(entry: dict[str, Any], audit: Audit) -> None:
    """What the audit says about rewritten history is what the manifest says, which looked at other messages."""
    known = entry["facts"]
    if audit.facts.parts["calls"] == "text" or not known["renders"]:
        return
    checks = {c.scenario: c for c in audit.checks}
    pairs = {
        "one_tool_result": ("one_result", "thinking_result"),
        "user_follow_up": ("user_follow_up", "thinking_user"),
    }
    for scenario, (plain, thinking) in pairs.items():
        kept = known["prompt_is_prefix_of_history"].get(scenario)
        check = checks[plain]
        if kept:  # which looks at the text in front of the last header only
            assert check.policy != "keep", (entry["id"], scenario)
        elif kept is not None:
            assert check.policy == "keep" or OPENS_OTHERWISE in check.notes, (entry["id"], scenario)
        thought = known["thoughts"].get(f"reasoning_content/{scenario}")
        if thought is not None and thought["as_last"] and not thought["as_history"]:
            assert "thoughts dropped" in checks[thinking].detail, (entry["id"], scenario)


# ------------------------------------------------------------------------------------------------ our own
EXPECTED: dict[str, dict[str, int]] = {
    "built-in": {"exact": 24, "n/a": 2},
    "roles": {"exact": 26},
    "no-tools": {"exact": 24, "n/a": 2},
    "drops-thoughts": {"exact": 23, "policy": 1, "n/a": 2},
    "moves-system": {"exact": 9, "policy": 15, "n/a": 2},
    "rewrites-close": {"exact": 26},
    "header-stops": {"exact": 24, "n/a": 2},
    "json-results": {"exact": 24, "n/a": 2},
    "trims": {"exact": 24, "n/a": 2},
    "skips-empty": {"exact": 24, "n/a": 2},
    "one-call": {"exact": 22, "policy": 2, "n/a": 2},
    "no-user-after-tool": {"exact": 23, "refused": 1, "n/a": 2},
    "tells-the-date": {"exact": 24, "n/a": 2},
    "no-schemas": {"exact": 24, "n/a": 2},
    "no-calls": {"exact": 24, "n/a": 2},
    "results-only": {"exact": 24, "n/a": 2},
}


def test_every_scenario_on_our_own_templates():
    found = {}
    for cell in own_cells():
        audit = audit_template(cell.tokenizer, **cell.options)
        assert not [c for c in audit.checks if c.status == "wrong"], cell.name
        found[cell.name] = dict(Counter(c.status for c in audit.checks))
    assert found == EXPECTED
    assert set(EXPECTED) == set(OWN)


@pytest.mark.parametrize(
    ("name", "scenario", "policy"),
    [
        ("drops-thoughts", "thinking_user", "keep"),
        ("moves-system", "one_result", "keep"),
        ("one-call", "several_results", "one call"),
    ],
)
def test_policies_are_named(name, scenario, policy):
    cell = next(c for c in own_cells() if c.name == name)
    audit = audit_template(cell.tokenizer, **cell.options)
    check = next(c for c in audit.checks if c.scenario == scenario)
    assert (check.status, check.policy) == ("policy", policy)
    assert check.detail


def test_context_of_a_whole_episode_is_the_real_rendering():
    """previous ids + sampled ids + delta, turn after turn, is the tokenization of the whole conversation."""
    tokenizer = tiny_tokenizer()
    for cell in own_cells():
        if cell.name in ("moves-system", "rewrites-close", "header-stops"):
            continue  # these write the past, or the end of a turn, otherwise than it was when it was new
        chat = cell.chat()
        tools = shared_tools()
        messages = [Message("system", "Be brief."), Message("user", "Add numbers.")]
        context = chat.prompt(messages, tools).ids.tolist()
        for i in range(4):
            call = ToolCall(f"call{i:05d}", "add", f'{{"x": "{i}"}}', {"x": f"{i}"})
            turn = Turn("", None, (call,)) if i % 2 == 0 else Turn(f"That is {i}.")
            new = [Message("tool", f"{i}!", (), call.id, "add")] if turn.calls else [Message("user", f"More: {i}")]
            sampled = chat.encode_turn(chat.write(turn)).tolist()
            stop = tokenizer.decode([sampled[-1]])
            delta = chat.delta(messages, turn, new, tools, stop=stop)
            context += [*sampled, *delta.ids.tolist()]
            messages += [Message("assistant", turn.content, turn.calls), *new]
            whole = chat.prompt(messages, tools)
            assert chat.decode(context) == whole.text, (cell.name, i)
            assert context == whole.ids.tolist(), (cell.name, i)


def shared_tools() -> list[dict[str, Any]]:
    from chat_fixtures import TOOLS

    return TOOLS


def test_date_stands_still_within_an_episode():
    cell = next(c for c in own_cells() if c.name == "tells-the-date")
    chat = ChatTemplate(cell.tokenizer, clock=CLOCK, **cell.options)
    texts = {chat.prompt([Message("user", "hi")], []).text for _ in range(3)}
    assert len(texts) == 1
    assert CLOCK.strftime("%d %b %Y %H:%M:%S") in texts.pop()
