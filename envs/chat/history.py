"""Whether a template, once new messages follow, still writes the past as the model saw it.

Some templates do not: Qwen3 drops the thoughts of earlier turns when a user message arrives, QwQ when a tool result
does, Mistral 7B v0.3 loses the system prompt.  An append-only context is then no longer what the template would write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from toolstep.envs.chat.errors import ChatTemplateError
from toolstep.envs.types import Message, ToolCall

Render = Callable[[Sequence[Message], bool], str]
"""(messages, with the generation prompt) -> text, as the template writes the real messages."""

_PROBE_THOUGHT = "Zq7thoughtQz"


def keeps_history(
    render: Render, header: str | None, history: Sequence[Message], turn: Message, new: Sequence[Message]
) -> bool:
    """Whether the text of `history` and the thought of `turn` stand unchanged in a rendering that ends with `new`.

    header: the token that opens a generation prompt.  How the template writes the words of an earlier turn is not
    looked at: the context holds what was sampled.

    Raises:
        ChatTemplateError: the template refuses the messages.
    """
    now = render([*history, turn, *new], True)
    given = render(history, True)
    if not now.startswith(given):
        # Templates differ in what follows the header of a turn that is history (an empty thought, a line break).
        opened = given.rfind(header) if header else -1
        given = given[:opened] if opened >= 0 else render(history, False)
        if not now.startswith(given):
            return False
    return not turn.reasoning or turn.reasoning.strip() in now[len(given) :]


def rewriting_roles(render: Render, header: str | None, *, calls: bool) -> frozenset[str]:
    """Roles of new messages at which the template may rewrite the past, found on a small thinking conversation."""
    history = [Message("system", "Zq7systemQz"), Message("user", "Zq7userQz")]
    answer = Message("assistant", "Zq7answerQz", reasoning=_PROBE_THOUGHT)
    probes = {"user": (answer, Message("user", "Zq7nextQz"))}
    if calls:
        call = ToolCall("call00000", "probe", "{}", {})
        result = Message("tool", "Zq7resultQz", tool_call_id=call.id, name=call.name)
        probes["tool"] = (replace(answer, content="", tool_calls=(call,)), result)
    out = set()
    for role, (turn, new) in probes.items():
        for start in (history, history[1:]):  # some templates take no system message
            try:
                if not keeps_history(render, header, start, turn, [new]):
                    out.add(role)
                break
            except ChatTemplateError:
                continue
    return frozenset(out)


def inline_thoughts(messages: Sequence[Message]) -> list[Message]:
    """The messages for a template that knows thoughts only as part of the content."""
    return [
        replace(m, content=f"<think>\n{m.reasoning}\n</think>\n\n{m.content}", reasoning=None) if m.reasoning else m
        for m in messages
    ]
