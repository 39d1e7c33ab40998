"""Strict mode: a delta held against a rendering of the real conversation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from toolstep.envs.chat.errors import ChatTemplateError, TemplateRejects
from toolstep.envs.chat.history import Render
from toolstep.envs.chat.native import answers
from toolstep.envs.chat.provenance import Written
from toolstep.envs.types import Message, Turn

_SHOWN = 60  # characters of each text in an error


class DeltaMismatch(ChatTemplateError):
    """A delta is not what the template writes there in the real conversation."""


def check_written(
    written: Written,
    real: Render,
    history: Sequence[Message],
    turn: Turn,
    new: Sequence[Message],
    *,
    stop: str | None,
    thought_end: str,
) -> None:
    """Hold what was written behind `turn` against the real conversation.  Raises DeltaMismatch.

    thought_end: what the delta begins with to close a thought that the sample left open; the conversation has none.
    A conversation that the template refuses (one with several calls in a turn, for instance) shows nothing.
    """
    said = Message("assistant", turn.content, turn.calls, reasoning=turn.reasoning)
    answered = answers(new, [(c.name, c.id) for c in turn.calls])
    try:
        text = real([*history, said, *answered], True)
    except TemplateRejects:
        return
    replaced = any(n.startswith("the sample stopped at") for n in written.notes)
    check_delta(written.text.removeprefix(thought_end), text, None if replaced else stop)


def check_delta(delta: str, real: str, stop: str | None) -> None:
    """See that `real`, the whole conversation with the generation prompt, ends in `delta`.

    stop: the stop token that must stand in front of it; None where the delta itself closes the turn, or where the
    template closes it with another one.

    Raises:
        DeltaMismatch: it does not; the error names the first place at which they differ.
    """
    before = len(real) - len(delta)
    if not real.endswith(delta):
        # The place is behind the longest beginning of the delta that the template writes somewhere, the last time.
        same = bisect_left(range(len(delta)), True, key=lambda n: delta[: n + 1] not in real)
        at = real.rfind(delta[:same]) + same
        raise DeltaMismatch(
            f"the delta differs from the template's own rendering of the conversation at character {same} of the "
            f"delta, {at} of the rendering: the delta goes on {delta[same : same + _SHOWN]!r}, the template "
            f"{real[at : at + _SHOWN]!r}, after {delta[max(0, same - _SHOWN) : same]!r}"
        )
    if stop is not None and not real.endswith(stop, 0, before):
        raise DeltaMismatch(
            f"the template writes {real[max(0, before - _SHOWN) : before]!r} in front of the delta, where the turn's "
            f"stop token {stop!r} should stand"
        )
