"""What a server answered, as the text that a model reads."""

from __future__ import annotations

import codecs
import json
from http import HTTPStatus

from toolstep.envs.tools.encode import shorten, well_formed
from toolstep.envs.tools.result import error_result
from toolstep.envs.types import CallStatus, ToolResult

MAX_ERROR = 2_000  # characters of the body of an error
MAX_LABEL = 100  # characters of a media type


def result_of(status: int, media_type: str, body: bytes, *, cut: bool = False) -> ToolResult:
    """A status of 2xx is a result, every other one the tool's error with the status and the body in its message.

    200 stands for itself, other statuses are told.  JSON is written without needless blanks, what is no text is
    described.  cut: the body is the beginning of one that was too large.
    """
    text = text_of_body(media_type, body, cut=cut)
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    line = f"HTTP {status}{phrase}"
    if not 200 <= status < 300:
        return error_result(CallStatus.TOOL_ERROR, f"{line}: {shorten(text, MAX_ERROR)}" if text else line)
    if status == 200 and text:
        return ToolResult(text)
    return ToolResult(f"{line}\n{text}" if text else line)


def text_of_body(media_type: str, body: bytes, *, cut: bool = False) -> str:
    """The text of a body, or what it is: `[image/png, 3012 bytes]`."""
    kind, _, rest = media_type.partition(";")
    kind = kind.strip().lower()
    said_json = kind == "application/json" or kind.endswith("+json")
    if not body:
        return ""
    if not said_json and not _says_text(kind) and not _is_text(body):
        size = f"more than {len(body)}" if cut else str(len(body))
        return f"[{shorten(kind.replace('[', '(').replace(']', ')'), MAX_LABEL) or 'binary'}, {size} bytes]"
    text = well_formed(body.decode(_charset(rest), "replace"))
    if cut:
        return f"{text}\n[cut: only the first {len(body)} bytes were read]"
    if said_json:
        try:
            text = well_formed(json.dumps(json.loads(text), ensure_ascii=False))
        except (ValueError, RecursionError):
            text = f"[the server calls this JSON, which it is not]\n{text}"
    return text


def _says_text(kind: str) -> bool:
    if kind.startswith("text/"):
        return True
    return kind.endswith(("+xml", "/xml", "/yaml", "/x-yaml", "/javascript", "/x-www-form-urlencoded", "/x-ndjson"))


def _is_text(body: bytes) -> bool:
    """Whether a body of unknown kind can be read: UTF-8 without control characters."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not any(ord(character) < 32 and character not in "\t\n\r\x0c" for character in text)


def _charset(parameters: str) -> str:
    for part in parameters.split(";"):
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset":
            try:
                found = codecs.lookup(value.strip().strip("\"'"))
            except (LookupError, ValueError):
                break
            # Python's own codecs include some that are no encoding of text, and would do work for an attacker.
            return found.name if found._is_text_encoding else "utf-8"
    return "utf-8"
