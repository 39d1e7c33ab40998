"""The command `toolstep serve`.  Light: what serving needs is imported when it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolstep.rollout.exits import one_line_errors


def serve(
    model: Annotated[str, typer.Argument(help="tiny, smollm2, a folder, a *.gguf file, or a hub id.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one; it is printed.")] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="Name that clients ask for; default: MODEL.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; default: CUDA where there is one.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float32, ...; default by device.")] = None,
    max_context: Annotated[int | None, typer.Option(min=2, help="Tokens; default: the model's own limit.")] = None,
    max_running: Annotated[int, typer.Option(min=1, help="Completions that are sampled at a time.")] = 32,
    max_queue: Annotated[int, typer.Option(min=0, help="Completions that may wait; more are answered 429.")] = 256,
    kv_tokens: Annotated[
        int | None, typer.Option(min=64, help="Budget of keys and values in tokens; default: what is needed.")
    ] = None,
    cache_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of finished contexts kept for a conversation's next turn.")
    ] = 32768,
    chat_template: Annotated[
        Path | None, typer.Option("--chat-template", help="File with another template than the model's own.")
    ] = None,
    tool_call_format: Annotated[
        str | None, typer.Option(help="How calls are written; default: found by rendering one.")
    ] = None,
    stop_token: Annotated[
        list[str] | None, typer.Option("--stop-token", help="Where generation stops; may be given more than once.")
    ] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that running requests may take at shutdown.")] = 30.0,
) -> None:
    """Serve a model over HTTP as OpenAI's API does: chat with tools, completions, token ids in and out."""
    with one_line_errors():
        try:
            from toolstep.rollout.serve.server import Options
            from toolstep.rollout.serve.server import serve as run
        except ModuleNotFoundError as error:
            if error.name not in ("fastapi", "starlette", "uvicorn"):
                raise
            raise ImportError("serving needs FastAPI and uvicorn: pip install 'toolstep[serve]'") from None
        run(
            Options(
                model=model,
                host=host,
                port=port,
                served_model_name=served_model_name,
                device=device,
                dtype=dtype,
                max_context=max_context,
                max_running=max_running,
                max_queue=max_queue,
                kv_tokens=kv_tokens,
                cache_tokens=cache_tokens,
                chat_template=None if chat_template is None else chat_template.read_text(encoding="utf-8"),
                tool_call_format=tool_call_format,
                stop_token=stop_token,
                grace=grace,
            )
        )
