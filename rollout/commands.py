"""The commands `toolstep eval` and `toolstep rollout`.  Light: what they need is imported when they are run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolstep.rollout.exits import FAILED, INTERRUPTED, fail, one_line_errors
from toolstep.rollout.export.formats import Format
from toolstep.rollout.options import (
    AgentName,
    Answer,
    AsJson,
    AuthEnv,
    AutoresetMode,
    BaseUrl,
    ChatTemplateFile,
    Device,
    Level,
    MaxNewTokens,
    MaxTurns,
    Mcp,
    Mode,
    NumEnvs,
    OpenApi,
    OptionalEnv,
    OptionalSplit,
    Overwrite,
    Playback,
    Prompt,
    Quiet,
    Record,
    Reward,
    RewardClip,
    RewardWeight,
    Seed,
    Shots,
    Split,
    SplitName,
    StopTokens,
    Tasks,
    Temperature,
    Tool,
    TopK,
    TopP,
)

if TYPE_CHECKING:
    from toolstep.rollout.build import Settings
    from toolstep.rollout.jobs import Job


def evaluate(
    context: typer.Context,
    agent: AgentName,
    env: OptionalEnv = None,
    num_envs: NumEnvs = 16,
    episodes: Annotated[int | None, typer.Option(min=1, help="Tasks to play; default: 100, or all of a list.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Samples of each task; more than one: pass@k and pass^k.")] = 1,
    seed: Seed = 0,
    max_turns: MaxTurns = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    level: Level = None,
    shots: Shots = 0,
    split: OptionalSplit = None,
    device: Device = None,
    chat_template: ChatTemplateFile = None,
    stop_token: StopTokens = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for config.json, episodes.jsonl, summary.json, summary.md and report.html."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, which must have the same options.")
    ] = False,
    overwrite: Overwrite = False,
    min_score: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Exit code 1 where the mean score is below.")
    ] = None,
    fail_on_error: Annotated[
        bool, typer.Option("--fail-on-error", help="Exit code 1 where an episode ended in an error.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    tasks: Tasks = None,
    prompt: Prompt = None,
    answer: Answer = None,
    reward: Reward = None,
    reward_weight: RewardWeight = None,
    reward_clip: RewardClip = None,
    tool: Tool = None,
    mcp: Mcp = None,
    openapi: OpenApi = None,
    base_url: BaseUrl = None,
    auth_env: AuthEnv = None,
    record: Record = None,
    playback: Playback = None,
    autoreset_mode: AutoresetMode = Mode.NEXT_STEP,
) -> None:
    """Evaluate an agent: success and mean reward with 95% intervals, tool calls, stop reasons, throughput.

    Exit code 0: done; 1: a failure while running, or less than --min-score or --fail-on-error demand; 2: usage;
    130: interrupted, what is finished is written.
    """
    with _output(as_json, quiet), one_line_errors():
        from toolstep.rollout.eval_job import Demands, EvalJob

        job = EvalJob(
            _settings(context),
            episodes,
            out,
            epochs=epochs,
            resume=resume,
            overwrite=overwrite,
            demands=Demands(min_score, fail_on_error),
        )
    _finish(job, as_json, quiet)
    if job.missed:
        fail("; ".join(job.missed), FAILED)


def rollout(
    context: typer.Context,
    agent: AgentName,
    out: Annotated[
        Path,
        typer.Option(help="*.npz: token-level batch; *.jsonl: one episode a line; *.parquet: a table; else --format."),
    ],
    form: Annotated[
        Format | None, typer.Option("--format", help="What to write; default: what the suffix of --out says.")
    ] = None,
    env: OptionalEnv = None,
    groups: Annotated[int, typer.Option(min=1, help="Tasks.")] = 8,
    group_size: Annotated[int, typer.Option(min=1, help="Samples of each task.")] = 8,
    num_envs: NumEnvs = 16,
    seed: Seed = 0,
    max_turns: MaxTurns = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    level: Level = None,
    shots: Shots = 0,
    split: SplitName = Split.TRAIN,
    device: Device = None,
    chat_template: ChatTemplateFile = None,
    stop_token: StopTokens = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    tasks: Tasks = None,
    reward: Reward = None,
    reward_weight: RewardWeight = None,
    reward_clip: RewardClip = None,
    tool: Tool = None,
    mcp: Mcp = None,
    openapi: OpenApi = None,
    base_url: BaseUrl = None,
    auth_env: AuthEnv = None,
    record: Record = None,
    playback: Playback = None,
    autoreset_mode: AutoresetMode = Mode.NEXT_STEP,
) -> None:
    """Collect groups of samples for training, as a token-level batch or as episodes."""
    with _output(as_json, quiet), one_line_errors():
        from toolstep.rollout.rollout_job import RolloutJob

        job = RolloutJob(_settings(context), groups, group_size, out, overwrite=overwrite, form=form)
    _finish(job, as_json, quiet)


def _settings(context: typer.Context) -> Settings:
    """The options of the running command that decide how an env is played."""
    from dataclasses import fields

    from toolstep.rollout.build import Settings

    given = {f.name: context.params[f.name] for f in fields(Settings) if f.name in context.params}
    plain: dict[str, Any] = {k: v.value if isinstance(v, StrEnum) else v for k, v in given.items()}
    return Settings(**plain)


@contextmanager
def _output(as_json: bool, quiet: bool) -> Iterator[None]:
    """With --json, what tools and libraries print goes to stderr: stdout is for the document.

    The bars of libraries (transformers loads weights with one) are for terminals.
    """
    if quiet or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


def _finish(job: Job, as_json: bool, quiet: bool) -> None:
    from toolstep.rollout.console import print_json
    from toolstep.rollout.storage import StorageError

    try:
        with _output(as_json, quiet):
            job.run(quiet=quiet)
    except StorageError as error:
        fail(error, FAILED)
    print_json(job.document()) if as_json else job.show()
    if job.interrupted:
        raise typer.Exit(INTERRUPTED)
    if job.unanswered:
        fail(job.unanswered, FAILED)
