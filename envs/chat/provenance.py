"""Renderings with provenance: which characters are the template's own, and which were put into it."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolstep.envs.chat.encoder import ControlTokens
from toolstep.envs.chat.errors import MessageDropped, TemplateRejects, UnsafeContent
from toolstep.envs.chat.holes import Hole, shown
from toolstep.envs.chat.marks import Found, Marker, Span
from toolstep.envs.chat.render import Renderer
from toolstep.envs.chat.watched import Trace, Watched
from toolstep.envs.chat.watcher import Watcher, revealed

_CUT = 8  # characters of a content that must be there before it counts as written, though cut

Dicts = list[dict[str, Any]]
Writer = Callable[[Any], Dicts]  # given a Marker or a Watcher
Conversation = Callable[[Any], tuple[Dicts, Dicts]]  # messages and tools
Placed = tuple[int, int, Hole]  # start and end of what a hole shows


@dataclass(frozen=True, slots=True)
class Written:
    """Text of a template with its provenance.

    foreign: spans in which no control token may be recognised.  body: spans of message content.  They differ only where
    the template looks into content, so that it could not be marked.
    holes: where foreign text stands and what was done to it, if the rendering was traced; else None.
    """

    text: str
    foreign: tuple[Span, ...] = ()
    body: tuple[Span, ...] = ()
    inserted: str = ""
    notes: tuple[str, ...] = ()
    holes: tuple[Placed, ...] | None = None


def traced(
    render: Renderer,
    write: Conversation,
    trace: Trace,
    *,
    side: str,
    generation: bool,
    kwargs: Mapping[str, Any],
    in_order: bool = False,
) -> Written:
    """Render what `write` gives with watched text.  The provenance is exact, whatever the template looks at.

    The rendering with plain strings must be the same, its failures too: that is checked here, once for all later uses
    of what was learned.

    Raises:
        Untraceable: the template does something with foreign text that is not followed.
    """
    watcher = Watcher(trace, side)
    messages, tools = write(watcher)
    text, refused = _tried(render, revealed(messages), revealed(tools), generation, kwargs)
    found, failed = _tried(render.traced, messages, tools, generation, kwargs)
    if refused is not None:
        if failed is None or _cause(failed) != _cause(refused):
            trace.fail(f"it is refused as plain text only: {refused}")
        raise refused
    if failed is not None or trace.failed:
        trace.fail(trace.failed or str(failed))
    parts = found.parts if isinstance(found, Watched) else (found,)
    written = place(parts)
    if written.text != text:
        trace.fail("the rendering is another one with plain text")
    order = [h.piece.at for _, _, h in written.holes or () if h.piece.required]
    missing = set(watcher.required) - set(order)
    if missing or (in_order and order != sorted(order)):
        trace.fail("a message is not written, or not in order")  # the marked rendering says which and why
    return written


def _tried(
    render: Callable[..., Any], messages: Dicts, tools: Dicts, generation: bool, kwargs: Mapping[str, Any]
) -> tuple[Any, TemplateRejects | None]:
    try:
        return render(messages, tools, generation=generation, kwargs=kwargs), None
    except TemplateRejects as e:
        return None, e


def _cause(error: TemplateRejects) -> tuple[type, str]:
    return type(error.__cause__), str(error.__cause__)


def place(parts: Sequence[str | Hole]) -> Written:
    """A rope as text with its spans."""
    texts: list[str] = []
    foreign: list[Span] = []
    body: list[Span] = []
    holes: list[Placed] = []
    end = 0
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            end += len(part)
            continue
        before, core, behind = shown(part.ops, part.piece.text)
        start, core_at = end, end + len(before)
        end = core_at + len(core) + len(behind)
        texts += (before, core, behind)
        span = (core_at, core_at + len(core))
        foreign.append(span)
        if part.piece.required:
            body.append(span)
        holes.append((start, end, part))
    return Written("".join(texts), tuple(foreign), tuple(body), holes=tuple(holes))


def marked(
    render: Renderer,
    tokens: ControlTokens,
    write: Conversation,
    *,
    generation: bool,
    kwargs: Mapping[str, Any],
    after: str = "",
    in_order: bool = False,
) -> Written:
    """Render what `write` gives, once as it is and once with marks, and compare.

    The result is the plain rendering with the spans of the marked pieces.  Where the template's logic looks into the
    content, it is the plain rendering only if that is provably free of foreign control tokens, else the form that the
    template writes for other content.
    """
    messages, tools = write(Marker(plain=True))
    raw = render(messages, tools, generation=generation, kwargs=kwargs)
    marker = Marker(raw)
    try:
        found = marker.find(render(*write(marker), generation=generation, kwargs=kwargs))
    except TemplateRejects as e:
        raise UnsafeContent(
            "the template accepts this content but not with marks around it, so that its text cannot be "
            f"told from the template's own: {e}"
        ) from e
    if after:
        _refuse_repeated(raw[raw.rfind(after) :], [*messages, *tools], marker.texts, tokens)
    missing = set(marker.required) - set(found.order)
    unordered = in_order and found.order != sorted(found.order)
    spans = tuple(found.spans)
    if found.text == raw and not found.broken:
        if missing:
            raise MessageDropped(
                f"the template does not write {len(missing)} of {len(marker.required)} message contents; "
                f"the roles of the last messages are {[m['role'] for m in messages[-4:]]}"
            )
        if unordered:
            raise MessageDropped("the template reorders the new messages")
        required = frozenset(marker.required)
        body = tuple(s for s, n in zip(found.spans, found.order, strict=True) if n in required)
        return Written(raw, spans, body)
    harmless = not any(tokens.find_all(t) for t in marker.texts)
    if harmless and tokens.find_all(raw) == tokens.find_all(found.text):
        located = _locate(raw, marker, found, tokens, after) if in_order else ()
        if located is not None:
            return Written(raw, (), located, notes=("the template's output depends on the content",))
    if any(not marker.texts[n].strip() for n in marker.required):
        raise MessageDropped(
            "the template writes no message for an empty content, so that what was asked would go unanswered (I13)"
        )
    if missing or unordered or found.broken:
        raise UnsafeContent(
            "the template cuts or drops content that holds text of control tokens, so that the rest of "
            "it cannot be told from the template's own"
        )
    note = "the template's output depends on the content; the form that it writes for other content was used"
    return Written(found.text, spans, spans, notes=(note,))


def _refuse_repeated(text: str, given: Any, marked_texts: Sequence[str], tokens: ControlTokens) -> None:
    """Raise UnsafeContent where `text`, what follows a turn, repeats words of the past that hold a control token.

    They were not marked, so there is nothing to tell them from the template's own.
    """
    if isinstance(given, str):
        if given in marked_texts or not tokens.find_all(given):
            return
        if given.strip() in text or json.dumps(given, ensure_ascii=False)[1:-1] in text:
            raise UnsafeContent(
                f"the template repeats {given[:80]!r} behind the turn; it holds the text of a control token and cannot "
                "be told from the template's own there"
            )
    elif isinstance(given, (list, tuple)):
        for value in given:
            _refuse_repeated(text, value, marked_texts, tokens)
    elif isinstance(given, Mapping):
        _refuse_repeated(text, [*given, *given.values()], marked_texts, tokens)


def _locate(raw: str, marker: Marker, found: Found, tokens: ControlTokens, after: str) -> tuple[Span, ...] | None:
    """Spans of contents, or of how much the template writes of them, in a rendering that could not be marked.

    It has the control tokens of the marked one, `found`: each content stands behind as many of them in both, so that
    one which begins like the template's own text is not taken for that.  None where one is not written at all.
    """
    ends = [b for _, b in tokens.spans(raw)]
    marked_ends = [b for _, b in tokens.spans(found.text)]
    starts = dict(zip(found.order, (a for a, _ in found.spans), strict=True))
    pos = raw.find(after) + len(after) if after and after in raw else 0
    spans = []
    for number in marker.required:
        core = marker.texts[number].strip()
        if not core:
            continue
        if passed := bisect_right(marked_ends, starts.get(number, 0)):
            pos = max(pos, ends[passed - 1])
        length = len(core)
        if raw.find(core, pos) < 0:  # the longest beginning that is there
            length = bisect_left(range(length), True, key=lambda n: raw.find(core[: n + 1], pos) < 0)
            if length < min(len(core), _CUT):
                return None
        at = raw.find(core[:length], pos)
        pos = at + length
        spans.append((at, pos))
    return tuple(spans)
