"""A Model Context Protocol server of the standard library alone, which starts at once and misbehaves when told to.

    python mcp_server.py [NAME=VALUE ...]

start=silent: never answers.  start=exit: ends at once.  start=slow: takes a second.
start=pages: lists its tools one a page.
schema=JSON: offers a tool `odd` of that schema; huge: one of 300 kB.  eof=ignore: goes on when its input ends, and
ignores SIGTERM.  log=FILE: appends a line for each start and end of input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OPTIONS = dict(part.split("=", 1) for part in sys.argv[1:])
INT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
NONE: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS: dict[str, dict[str, Any]] = {
    "add": INT,  # to a counter that the server keeps; returns it
    "sleep": {"type": "object", "properties": {"ms": {"type": "integer"}}, "required": ["ms"]},
    "hang": NONE,  # answers nothing any more, in a loop that nothing interrupts
    "crash": INT,  # ends the process with exit code n
    "spawn": NONE,  # starts a process that outlives the server; returns both numbers
    "big": INT,  # n characters of text
    "line": INT,  # a line of n bytes that is no message
    "grow": NONE,  # offers another tool from now on
    "shrink": NONE,  # does not offer `big` any more
    "fail": NONE,
    "nonsense": NONE,  # an answer that the protocol does not know
    "environment": NONE,
}
if "schema" in OPTIONS:
    huge = json.dumps({"type": "object", "description": "x" * (300 << 10)})
    TOOLS["odd"] = json.loads(huge if OPTIONS["schema"] == "huge" else OPTIONS["schema"])
COUNT = 0
VERSION = "2025-06-18"


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    if "log" in OPTIONS:
        with Path(OPTIONS["log"]).open("a") as file:
            file.write(f"{text} {os.getpid()}\n")


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    global COUNT
    text = ""
    if name == "add":
        COUNT += arguments["n"]
        text = str(COUNT)
    elif name == "sleep":
        time.sleep(arguments["ms"] / 1000)
    elif name == "hang":
        while True:
            pass
    elif name == "crash":
        sys.stderr.write("about to crash\n")
        sys.stderr.flush()
        os._exit(arguments["n"])
    elif name == "spawn":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
        text = f"{os.getpid()} {child.pid}"
    elif name == "big":
        text = "x" * arguments["n"]
    elif name == "line":
        sys.stdout.write("x" * arguments["n"])
        sys.stdout.flush()
    elif name == "grow":
        TOOLS["grown"] = NONE
        send(method="notifications/tools/list_changed")
    elif name == "shrink":
        TOOLS.pop("big", None)
        send(method="notifications/tools/list_changed")
    elif name == "fail":
        return {"content": [{"type": "text", "text": "no luck"}], "isError": True}
    elif name == "nonsense":
        return {"content": "not a list"}
    elif name == "environment":
        text = json.dumps(dict(os.environ))
    return {"content": [{"type": "text", "text": text}]}


def listed(cursor: str | None) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": schema} for name, schema in TOOLS.items()]
    if OPTIONS.get("start") != "pages":
        return {"tools": tools}
    at = int(cursor or 0)
    page: dict[str, Any] = {"tools": tools[at : at + 1]}
    if at + 1 < len(tools):
        page["nextCursor"] = str(at + 1)
    return page


def main() -> None:
    note("start")
    if OPTIONS.get("eof") == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if OPTIONS.get("start") == "slow":
        time.sleep(1)
    if OPTIONS.get("start") == "exit":
        sys.stderr.write("cannot find the database\n")
        sys.exit(3)
    print("this server prints what is no message")
    sys.stderr.write("a word to stderr\n")
    for line in sys.stdin:
        if OPTIONS.get("start") == "silent":
            continue
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message:
            continue
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}}
            result: dict[str, Any] = {
                "protocolVersion": VERSION,
                "capabilities": capabilities,
                "serverInfo": {"name": "test", "version": "1"},
            }
        elif method == "tools/list":
            result = listed(params.get("cursor"))
        elif method == "tools/call":
            result = call(params["name"], params.get("arguments") or {})
        else:
            send(id=message["id"], error={"code": -32601, "message": f"no method {method}"})
            continue
        send(id=message["id"], result=result)
    note("end")
    while OPTIONS.get("eof") == "ignore":
        time.sleep(1)


main()
