"""The command `toolstep`.  Everything heavy is imported inside the commands, so that `--help` is fast.

Exit codes: 0 ok, 1 a failure while running or less than was demanded, 2 usage (one line on stderr), 130 interrupted
(what is finished is written).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from toolstep.rollout.check_command import check
from toolstep.rollout.commands import evaluate, rollout
from toolstep.rollout.compare.command import compare
from toolstep.rollout.exits import FAILED, INTERRUPTED, USAGE, one_line_errors
from toolstep.rollout.learn.command import train
from toolstep.rollout.options import (
    Answer,
    AsJson,
    AuthEnv,
    BaseUrl,
    Level,
    MaxTurns,
    Mcp,
    Mode,
    OpenApi,
    OptionalEnv,
    Prompt,
    Seed,
    Split,
    Tasks,
    Tool,
)
from toolstep.rollout.replay.command import replay
from toolstep.rollout.serve.command import serve
from toolstep.rollout.viewer.command import view

app = typer.Typer(
    name="toolstep",
    help="LLM tool use as Gymnasium environments: play, evaluate and compare agents, collect rollouts, train, serve.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            typer.echo(f"toolstep {installed('toolstep')}")
        except PackageNotFoundError:
            typer.echo("toolstep (not installed)")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def envs(
    name: Annotated[str | None, typer.Argument(help="Env to describe: its prompt and tool schemas.")] = None,
    seed: Seed = 0,
    level: Level = None,
    as_json: AsJson = False,
) -> None:
    """List the environments, or describe one."""
    with one_line_errors():
        from toolstep.rollout import console
        from toolstep.rollout.catalog import describe, list_envs

        if name is None:
            items = list_envs()
            console.print_json(items) if as_json else console.print_envs(items)
        else:
            data = describe(name, seed=seed, level=level)
            console.print_json(data) if as_json else console.print_env(data)


@app.command()
def play(
    env: OptionalEnv = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Which task; default: a new one each time.")] = None,
    max_turns: MaxTurns = None,
    level: Level = None,
    split: Annotated[
        Split | None,
        typer.Option("--split", help="Which tasks are drawn; default: train, or as `eval` draws from --tasks."),
    ] = None,
    tasks: Tasks = None,
    prompt: Prompt = None,
    answer: Answer = None,
    tool: Tool = None,
    mcp: Mcp = None,
    openapi: OpenApi = None,
    base_url: BaseUrl = None,
    auth_env: AuthEnv = None,
) -> None:
    """Play an episode yourself at the terminal, with the tools that a model would have; Ctrl-D ends."""
    with one_line_errors():
        from toolstep.rollout.build import Settings, make_env
        from toolstep.rollout.given import checked
        from toolstep.rollout.terminal import play_episode

        if split is None and env is not None:
            split = Split.TRAIN
        settings, given = checked(
            Settings(
                env=env,
                agent="person",
                num_envs=1,
                seed=0,
                max_turns=max_turns,
                max_new_tokens=0,
                temperature=0.0,
                top_k=0,
                top_p=1.0,
                level=level,
                shots=0,
                split=None if split is None else split.value,
                device=None,
                autoreset_mode=Mode.DISABLED.value,
                tasks=tasks,
                prompt=prompt,
                answer=answer,
                tool=tool,
                mcp=mcp,
                openapi=openapi,
                base_url=base_url,
                auth_env=auth_env,
            )
        )
        made = make_env(settings, given)
    try:
        play_episode(made, seed)
    finally:
        made.close()


@app.command()
def audit(
    model: Annotated[str, typer.Argument(help="tiny, smollm2, a tokenizer's folder, a *.gguf file, or a hub id.")],
    chat_template: Annotated[
        Path | None, typer.Option("--chat-template", help="File with another template than the model's own.")
    ] = None,
    tool_call_format: Annotated[
        str | None, typer.Option("--tool-call-format", help="How calls are written; default: found by rendering one.")
    ] = None,
    stop_token: Annotated[
        list[str] | None, typer.Option("--stop-token", help="Where generation stops; may be given more than once.")
    ] = None,
    template_kwargs: Annotated[
        str | None, typer.Option(help="""Variables of the template as JSON: '{"enable_thinking": false}'.""")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a model's chat template: is each observation delta what the template itself would write?

    Exit code 0: all exact, or by a named policy; 1: something is wrong; 2: the template can't be used.
    """
    with one_line_errors():
        import time

        from toolstep.agents.shipped import model_source
        from toolstep.envs.chat.audit import audit_template
        from toolstep.rollout.audit_view import document, print_audit, variables
        from toolstep.rollout.console import print_json

        start = time.perf_counter()
        text = None if chat_template is None else chat_template.read_text(encoding="utf-8")
        done = audit_template(
            model_source(model),
            chat_template=text,
            stop_tokens=stop_token or None,
            tool_call_format=tool_call_format,
            template_kwargs=variables(template_kwargs),
        )
        seconds = time.perf_counter() - start
        print_json(document(done, seconds)) if as_json else print_audit(done, seconds)
    if not done.ok:
        raise typer.Exit(FAILED)


app.command(name="eval")(evaluate)
app.command()(rollout)
app.command()(compare)
app.command()(check)
app.command()(replay)
app.command()(serve)
app.command()(view)
app.add_typer(train, name="train")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script; ends the process with the exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=None if argv is None else list(argv), prog_name="toolstep", standalone_mode=False)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except OSError as error:  # a full disk, say, behind stdout; files of a run have told what they could not write
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - what is left in the buffer would fail once more at the end
        typer.echo(f"toolstep: error: {error}", err=True)
        code = FAILED
    except Exception as error:
        # typer's usage errors; its exception classes moved between versions, what they offer did not.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        typer.echo(f"toolstep: error: {' '.join(message().split())} (see toolstep --help)", err=True)
        code = USAGE
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
