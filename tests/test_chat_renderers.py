"""Parity with the hand-written bridges of the package `renderers`, on the families that it lists.

Their classes know one template each; ours knows none.  Where both extend a context, the ids must be the same.
Skipped where the package is not installed (it is no dependency: pip install renderers httpx).
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from chat_cells import VOCABULARIES, shared_cells

from toolstep.envs.chat import ChatTemplate
from toolstep.envs.chat.audit_scenarios import FOLLOW, SYSTEM, TOOLS, USER, calls, result
from toolstep.envs.types import Turn

renderers = pytest.importorskip("renderers", reason="the package renderers is not installed", exc_type=ImportError)

FAMILIES = {
    "qwen3": "Qwen3",
    "qwen3-instruct-2507": "Qwen3",
    "qwen3.5": "Qwen35",
    "qwen3.6": "Qwen36",
    "glm-4.5": "GLM45",
    "glm-4.7-flash": "GLM5",
    "minimax-m2": "MiniMaxM2",
    "nemotron-3-nano": "Nemotron3",
    "llama-3.1": "Llama3",
    "deepseek-v3": "DeepSeekV3",
    "kimi-k2-moonshot": "KimiK2",
    "gemma-4": "Gemma4",
}
CASES = {
    "one result": (Turn("", None, calls(1)), (result(0, "sunny, 21C"),)),
    "two results": (Turn("", None, calls(2)), (result(0, "sunny, 21C"), result(1, "12:30"))),
    "user": (Turn("It is sunny."), (FOLLOW,)),
}
# Why ids may differ, and in which cases: (template, case, whether the stop token was sampled).
OTHER_FILE = {"deepseek-v3", "kimi-k2-moonshot"}  # their class hard-codes another edition of the template
OWN_CLOSE = {"glm-4.5", "glm-4.7-flash"}  # they close a cut turn with <|endoftext|>, which the template never writes


def allowed(name: str, stopped: bool) -> bool:
    return name in OTHER_FILE or (name in OWN_CLOSE and not stopped)


def with_images(tokenizer: Any, chat_template: str) -> Any:
    """A copy with the image tokens that their class for Gemma 4 insists on, and the template that it looks at."""
    out = copy.deepcopy(tokenizer)
    out.chat_template = chat_template
    out.add_special_tokens({"additional_special_tokens": ["<|image>", "<|image|>", "<image|>"]})
    return out


def bridge(
    chat: ChatTemplate, config: str, turn: Turn, new: Any, *, stopped: bool
) -> tuple[list[int], list[int]] | None:
    """(their ids, our ids) behind a turn; None where their class doesn't extend the context."""
    history = [SYSTEM, USER]
    prompt = chat.prompt(history, TOOLS).ids.tolist()
    tail = chat.prompt(history, TOOLS).text[-256:]
    sampled = chat.encode_turn(chat.write(turn, prompt_tail=tail)).tolist()
    stop = chat.tokenizer.convert_ids_to_tokens(sampled[-1])
    if not stopped:
        sampled, stop = sampled[:-1], None
    theirs = renderers.create_renderer(chat.tokenizer, getattr(renderers, config + "RendererConfig")())
    made = theirs.bridge_to_next_turn(prompt, sampled, [m.to_dict() for m in new], tools=TOOLS)
    if made is None:
        return None
    assert list(made.token_ids[: len(prompt)]) == prompt
    delta = chat.delta(history, turn, new, TOOLS, stop=stop)
    return list(made.token_ids[len(prompt) + len(sampled) :]), delta.ids.tolist()


@pytest.mark.parametrize("vocabulary", [v for v in VOCABULARIES if v != "mistral-spm-v3"])
def test_bridges_of_renderers_give_the_same_ids(vocabulary):
    done: Counter[str] = Counter()
    different = {}
    for cell in shared_cells(vocabulary):
        if cell.name not in FAMILIES:
            continue
        if cell.name == "gemma-4":
            cell = replace(cell, tokenizer=with_images(cell.tokenizer, cell.entry["text"]))
        chat = cell.chat()
        for name, (turn, new) in CASES.items():
            for stopped in (True, False):
                pair = bridge(chat, FAMILIES[cell.name], turn, new, stopped=stopped)
                if pair is None:
                    done["theirs renders anew"] += 1
                elif pair[0] == pair[1]:
                    done["same"] += 1
                else:
                    different[cell.name, name, stopped] = tuple(chat.decode(x) for x in pair)
    unexplained = {k: v for k, v in different.items() if not allowed(k[0], k[2])}
    assert not unexplained
    assert done["same"] >= 40, done
    print(vocabulary, dict(done), "different:", sorted(different))
