"""A person plays an episode at the terminal."""

from __future__ import annotations

import json
from typing import Any

import typer

from toolstep.envs.types import ToolCall, Turn

HELP = (
    "Write your answer; end a line with \\ to go on in the next one. /call NAME {JSON} calls a tool, /tools "
    "lists the tools, /help shows this, Ctrl-D ends."
)


class InputError(ValueError):
    """What was typed cannot be a turn; the message says why."""


def play_episode(env: Any, seed: int | None) -> None:
    """Play one episode of `env`, a single text env of toolstep; returns when it is over or at end of input."""
    _, info = env.reset(seed=seed)
    _say(HELP)
    _show(info)
    truncated = terminated = False
    while not (terminated or truncated):
        try:
            action = _turn(env)
        except EOFError:
            _say("\n(left before the end)")
            return
        _, reward, terminated, truncated, info = env.step(action)
        _show(info, own=False)
    _say(f"── {info['stop_reason']}, score {info['score']:g}, reward of the last turn {reward:g}")


def parse_line(line: str, write: Any) -> str:
    """The turn that a typed line means: itself, or a tool call in the template's own format by `/call`.

    `write` is the chat template's.  Raises `InputError`.
    """
    if not line.strip():
        raise InputError("nothing was typed; write your answer, or /help")
    if line.startswith("/") and line.split()[0] != "/call":
        raise InputError(f"unknown command {line.split()[0]!r}; there are /call, /tools and /help")
    if not line.startswith("/call"):
        return line
    parts = line.removeprefix("/call").split(None, 1)
    if not parts:
        raise InputError("write /call NAME {JSON}; /tools lists the names and their arguments")
    text = parts[1] if len(parts) > 1 else "{}"
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise InputError(f"the arguments are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InputError(f"the arguments must be a JSON object, got {text}")
    call = ToolCall(id="call00000", name=parts[0], arguments=text, parsed=arguments)
    return str(write(Turn("", calls=(call,))))


def _turn(env: Any) -> str:
    while True:
        line = input("> ")
        while line.endswith("\\"):
            line = line[:-1] + "\n" + input(". ")
        if line.strip() == "/help":
            _say(HELP)
        elif line.strip() == "/tools":
            for schema in env.unwrapped.schemas:
                _say(json.dumps(schema["function"]))
        else:
            try:
                return parse_line(line, env.unwrapped.config.chat.write)
            except InputError as error:
                _say(f"({error})")


def _show(info: dict[str, Any], *, own: bool = True) -> None:
    for message in info["new_messages"]:
        if not own and message["role"] == "assistant":
            continue  # the person has just typed it
        name = f" {message['name']}" if message.get("name") else ""
        _say(f"── {message['role']}{name}")
        if message.get("content"):
            _say(str(message["content"]))
        for call in message.get("tool_calls", ()):
            _say(f"→ {call['function']['name']}({json.dumps(call['function']['arguments'])})")


def _say(text: str) -> None:
    # What a tool or a task wrote must not steer the terminal.
    typer.echo("".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text))
