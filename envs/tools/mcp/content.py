"""What a server answered, as the text that a model reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from toolstep.envs.tools.encode import shorten, well_formed
from toolstep.envs.tools.result import error_result
from toolstep.envs.types import CallStatus, ToolResult

if TYPE_CHECKING:
    from mcp.types import CallToolResult

MAX_LABEL = 200  # characters of a name, an address or a description of a part


def result_of(answer: CallToolResult) -> ToolResult:
    """The parts of an answer in their order; a server's `isError` is the tool's error.

    Text is taken as it is; what is no text is described in a line in brackets.  Without any part the structured content
    stands, as JSON: with parts it says the same once more, by the protocol.
    """
    parts = [describe_part(part) for part in answer.content]
    if not parts and answer.structured_content is not None:
        parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
    text = well_formed("\n".join(parts))
    if answer.is_error:
        return error_result(CallStatus.TOOL_ERROR, text or "the tool failed without a message")
    return ToolResult(text)


def describe_part(part: Any) -> str:
    """One part of an answer: its text, or what it is.

    >>> from mcp.types import ImageContent
    >>> describe_part(ImageContent(data="AAAA", mime_type="image/png"))
    '[image: image/png, 3 bytes]'
    """
    if part.type == "text":
        return str(part.text)
    if part.type in ("image", "audio"):
        return f"[{part.type}: {_label(part.mime_type)}, {_size(part.data)}]"
    if part.type == "resource_link":
        about = [_label(part.title or part.name), _label(part.uri)]
        about += [_label(extra) for extra in (part.mime_type, part.description) if extra]
        return f"[link to a resource: {', '.join(about)}]"
    if part.type == "resource":
        resource = part.resource
        kind = f", {_label(resource.mime_type)}" if resource.mime_type else ""
        if hasattr(resource, "text"):
            return f"[resource {_label(resource.uri)}{kind}]\n{resource.text}"
        return f"[resource {_label(resource.uri)}{kind}, {_size(resource.blob)}]"
    return f"[{_label(part.type)}]"


def _size(base64: str) -> str:
    return f"{max(0, len(base64) * 3 // 4 - base64[-2:].count('='))} bytes"


def _label(value: Any) -> str:
    """A short name in brackets: one line, and no bracket that would end it early."""
    return shorten(" ".join(str(value).split()).replace("[", "(").replace("]", ")"), MAX_LABEL)
