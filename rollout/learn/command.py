"""The commands `toolstep train sft|grpo|dpo`.  Light: what training needs is imported when it is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolstep.rollout.exits import FAILED, INTERRUPTED, fail, one_line_errors
from toolstep.rollout.options import (
    AsJson,
    Device,
    Level,
    MaxNewTokens,
    MaxTurns,
    NumEnvs,
    Reward,
    RewardClip,
    RewardWeight,
    Seed,
    Shots,
    Temperature,
    Tool,
)

if TYPE_CHECKING:
    from toolstep.rollout.learn.run import TrainingRun

train = typer.Typer(
    name="train",
    help="Train a model: OUT gets config.json, metrics.jsonl, checkpoint.safetensors and, at the end, model/.",
    no_args_is_help=True,
)

EnvName = Annotated[
    list[str] | None,
    typer.Option("--env", help="Env, as in `toolstep envs`; sft takes several.  Needed unless --resume."),
]
Model = Annotated[
    str | None, typer.Option(help="tiny, smollm2, a folder, a *.gguf file or a hub id.  Needed unless --resume.")
]
Tasks = Annotated[
    str | None, typer.Option("--tasks", help="File of tasks, in place of --env; a fifth of it, by hash, is for tests.")
]
Out = Annotated[Path, typer.Option(help="Folder of the run.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on from OUT's checkpoint, with OUT's options (grpo, dpo: --episodes may be more)."
    ),
]
LearningRate = Annotated[float, typer.Option(min=0.0, help="Peak, after a warm-up.")]
Lora = Annotated[int | None, typer.Option(min=1, help="Train adapters of this rank instead of all weights (peft).")]
MicroTokens = Annotated[int, typer.Option(min=1, help="Ids of one forward and backward pass; bounds the memory.")]
SaveEvery = Annotated[int, typer.Option(min=1, help="Iterations between two checkpoints.")]
EvalEvery = Annotated[int, typer.Option(min=1, help="Iterations between two evaluations on the test split.")]
EvalEpisodes = Annotated[int, typer.Option(min=0, help="Tasks of an evaluation, greedy; 0: none.")]
Groups = Annotated[int, typer.Option(min=1, help="Tasks of one rollout.")]
GroupSize = Annotated[int, typer.Option(min=1, help="Samples of each task.")]
RolloutInterval = Annotated[int, typer.Option(min=1, help="Optimizer steps that one rollout serves.")]


@train.command()
def sft(
    context: typer.Context,
    out: Out,
    env: EnvName = None,
    model: Model = None,
    tasks: Tasks = None,
    tool: Tool = None,
    reward: Reward = None,
    reward_weight: RewardWeight = None,
    reward_clip: RewardClip = None,
    episodes: Annotated[int, typer.Option(min=1, help="Solved episodes to imitate, of each env.")] = 1000,
    epochs: Annotated[int, typer.Option(min=1, help="Times that each is seen.")] = 1,
    batch_rows: Annotated[int, typer.Option(min=1, help="Episodes of one optimizer step.")] = 32,
    teacher: Annotated[
        str, typer.Option(help="oracle, or self: the model's own episodes that succeed (rejection sampling).")
    ] = "oracle",
    learning_rate: LearningRate = 1e-4,
    lora: Lora = None,
    level: Level = None,
    shots: Shots = 0,
    max_turns: MaxTurns = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 1.0,
    num_envs: NumEnvs = 32,
    micro_tokens: MicroTokens = 8192,
    save_every: SaveEvery = 50,
    eval_every: EvalEvery = 100,
    eval_episodes: EvalEpisodes = 100,
    seed: Seed = 0,
    device: Device = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Imitate solved episodes: the oracle's, or the model's own best."""
    _run(context)


@train.command()
def grpo(
    context: typer.Context,
    out: Out,
    env: EnvName = None,
    model: Model = None,
    tasks: Tasks = None,
    tool: Tool = None,
    reward: Reward = None,
    reward_weight: RewardWeight = None,
    reward_clip: RewardClip = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play, those before a --resume included.")] = 1000,
    groups: Groups = 8,
    group_size: GroupSize = 8,
    rollout_interval: RolloutInterval = 1,
    objective: Annotated[str, typer.Option(help="grpo, dapo, cispo or gspo.")] = "dapo",
    kl_coef: Annotated[float, typer.Option(min=0.0, help="Weight of the KL to the model at the start.")] = 0.0,
    learning_rate: LearningRate = 1e-6,
    lora: Lora = None,
    level: Level = None,
    shots: Shots = 0,
    max_turns: MaxTurns = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 1.0,
    num_envs: NumEnvs = 64,
    micro_tokens: MicroTokens = 8192,
    save_every: SaveEvery = 10,
    eval_every: EvalEvery = 10,
    eval_episodes: EvalEpisodes = 100,
    seed: Seed = 0,
    device: Device = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Reinforce what earns more than the rest of its group."""
    _run(context)


@train.command()
def dpo(
    context: typer.Context,
    out: Out,
    env: EnvName = None,
    model: Model = None,
    tasks: Tasks = None,
    tool: Tool = None,
    reward: Reward = None,
    reward_weight: RewardWeight = None,
    reward_clip: RewardClip = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play, those before a --resume included.")] = 1000,
    groups: Groups = 8,
    group_size: GroupSize = 8,
    rollout_interval: RolloutInterval = 1,
    beta: Annotated[float, typer.Option(help="How strongly the model is held to that of the start.")] = 0.1,
    learning_rate: LearningRate = 1e-6,
    lora: Lora = None,
    level: Level = None,
    shots: Shots = 0,
    max_turns: MaxTurns = None,
    max_new_tokens: MaxNewTokens = 256,
    temperature: Temperature = 1.0,
    num_envs: NumEnvs = 64,
    micro_tokens: MicroTokens = 8192,
    save_every: SaveEvery = 10,
    eval_every: EvalEvery = 10,
    eval_episodes: EvalEpisodes = 100,
    seed: Seed = 0,
    device: Device = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Prefer the best of each group of samples to its worst (online DPO)."""
    _run(context)


def _run(context: typer.Context) -> None:
    values: dict[str, Any] = dict(context.params)
    out, resume, as_json = values.pop("out"), values.pop("resume"), values.pop("as_json")
    sources = {name: context.get_parameter_source(name) for name in values}
    given = {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}
    with one_line_errors():
        from toolstep.rollout.learn.run import TrainingRun, resumed

        if resume:
            values = resumed(out, context.info_name or "", values, given)
        run: TrainingRun = TrainingRun(context.info_name or "", out, values, resume=resume)
    from toolstep.agents.engine import RowFailed
    from toolstep.rollout import console
    from toolstep.rollout.learn.grpo import SamplerMismatch
    from toolstep.rollout.storage import StorageError

    try:
        run.train(quiet=as_json)
    except (StorageError, ValueError, FloatingPointError, RowFailed, SamplerMismatch) as error:
        fail(error, FAILED)
    console.print_json(run.document()) if as_json else run.show()
    if run.interrupted:
        raise typer.Exit(INTERRUPTED)
