"""Whether a template, once new messages follow, still writes the past as the model saw it.

Some templates do not: Qwen3 drops the thoughts of earlier turns when a user message arrives, QwQ when a tool result
does, Mistral 7B v0.3 loses the system prompt.  An append-only context is then no longer what the template would write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolstep.envs.chat.errors import ChatTemplateError
from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.render import Renderer
from toolstep.envs.chat.wording import Wording
from toolstep.envs.types import Message, ToolCall

Render = Callable[[Sequence[Message], bool], str]
"""(messages, with the generation prompt) -> text, as the template writes the real messages."""

_PROBE_THOUGHT = "Zq7thoughtQz"


def real_conversation(
    renderer: Renderer, wording: Wording, tools: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any]
) -> Render:
    """How a template writes conversations as they were: nothing shortened, marked or stood in for."""

    def render(messages: Sequence[Message], generation: bool) -> str:
        shown, _ = wording.written_results(messages)
        dicts = wording.messages(shown, tools, Marker(plain=True))
        return renderer(dicts, wording.tools(tools, None), generation=generation, kwargs=kwargs)

    return render


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


def rewriting_roles(render: Render, header: str | None) -> frozenset[str]:
    """Roles of new messages at which the template may rewrite the past, found on a small thinking conversation."""
    history = [Message("system", "Zq7systemQz"), Message("user", "Zq7userQz")]
    answer = Message("assistant", "Zq7answerQz", reasoning=_PROBE_THOUGHT)
    call = ToolCall("call00000", "probe", "{}", {})
    result = Message("tool", "Zq7resultQz", tool_call_id=call.id, name=call.name)
    probes = {
        "user": (answer, Message("user", "Zq7nextQz")),
        "tool": (replace(answer, content="", tool_calls=(call,)), result),
    }
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
