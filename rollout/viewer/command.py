"""The command `toolstep view`.  Light: what it needs is imported when it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolstep.rollout.exits import one_line_errors


def view(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that toolstep eval --out wrote.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one; the address is printed.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    tokenizer: Annotated[
        str | None, typer.Option(help="Where the texts of ids come from; default: what DIR/config.json says.")
    ] = None,
) -> None:
    """Read an evaluation in the browser: results, and each episode as a conversation and token by token.

    Serves DIR/report.html at 127.0.0.1 until Ctrl-C (exit code 0).  It is made anew whenever episodes.jsonl is newer:
    reloading the page shows how far a running evaluation has come.
    """
    import os

    # Looking at a folder is no reason to ask a server: a tokenizer that was never fetched is not there.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with one_line_errors():
        from toolstep.rollout.viewer.live import LivePage
        from toolstep.rollout.viewer.server import serve

        serve(LivePage(folder, tokenizer), port, open_browser=open_browser)
