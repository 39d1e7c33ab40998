"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Split(StrEnum):
    """Which tasks are drawn."""

    TRAIN = "train"
    TEST = "test"


class Mode(StrEnum):
    """gymnasium's autoreset modes.  Results do not depend on it."""

    NEXT_STEP = "NextStep"
    SAME_STEP = "SameStep"
    DISABLED = "Disabled"


_AGENTS = (
    "random, oracle, tiny, tiny-sft, smollm2, hf:PATH_OR_ID, sb3:PATH.zip; "
    "server:http://HOST:PORT for a vLLM, SGLang or llama.cpp server, or toolstep serve "
    "(options behind it: ?tokenizer=FOLDER_OR_ID&model=NAME&dialect=vllm|sglang|llamacpp&key_env=VARIABLE"
    "&concurrency=64&timeout=300&deadline=900&retries=6&logprobs=off); "
    "openai:MODEL (its key in OPENAI_API_KEY) or openai:MODEL@https://HOST/v1?key_env=VARIABLE for a text API, "
    "for evaluation only. Keys are taken from the environment alone."
)
AgentName = Annotated[str, typer.Option("--agent", help=_AGENTS)]
OptionalEnv = Annotated[
    str | None, typer.Argument(help="Env: toolstep/Calculator-v0, Calculator-v0 or calculator; or --tasks, --prompt.")
]
Tasks = Annotated[
    str | None, typer.Option("--tasks", help='File of tasks, a line each: {"prompt": "2 + 3?", "answer": "5"}')
]
Prompt = Annotated[str | None, typer.Option("--prompt", help="One task, whose conversation is shown.")]
Answer = Annotated[str | None, typer.Option("--answer", help="The right answer to --prompt.")]
Tool = Annotated[
    list[str] | None,
    typer.Option(
        "--tool", help="Built-in tool that is offered (calculator, python, ...), or module:function; repeatable."
    ),
]
Reward = Annotated[
    str | None,
    typer.Option(
        "--reward",
        help="What decides the outcome: exact, text, numeric, set, sql_result, regex, math, program, JSON like "
        """'{"name": "numeric", "rel": 0.01}', or module:function; default: the env's own score.""",
    ),
]
RewardWeight = Annotated[
    list[str] | None,
    typer.Option(
        "--reward-weight",
        metavar="TERM=WEIGHT",
        help="Weight of a term in the reward: outcome (1), format, call_validity, call_accuracy, tool_success, "
        "call_cost, token_cost, unfinished (0); repeatable.",
    ),
]
RewardClip = Annotated[
    tuple[float, float] | None,
    typer.Option("--reward-clip", metavar="LEAST MOST", help="Bounds of an episode's reward."),
]
Mcp = Annotated[
    list[str] | None,
    typer.Option("--mcp", help="Command or http(s):// address of an MCP server, whose tools are offered; repeatable."),
]
OpenApi = Annotated[
    str | None, typer.Option("--openapi", help="OpenAPI document (file or address), whose operations are offered.")
]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", help="Server of --openapi; default: the first one that the document names.")
]
AuthEnv = Annotated[
    str | None, typer.Option("--auth-env", help="Environment variable with the credential for --openapi.")
]
NumEnvs = Annotated[int, typer.Option(min=1, help="Rows that play at the same time; results do not depend on it.")]
Seed = Annotated[int, typer.Option(min=0, help="Decides the tasks and the samples.")]
MaxTurns = Annotated[int | None, typer.Option(min=1, help="Turns after which an episode is cut off.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Tokens that one turn may have.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0: greedy.")]
TopK = Annotated[int, typer.Option(min=0, help="0: off.")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="1: off.")]
Level = Annotated[int | None, typer.Option(help="Difficulty, where the env has levels.")]
Shots = Annotated[int, typer.Option(min=0, help="Solved example episodes in front of each task.")]
SplitName = Annotated[Split, typer.Option(help="Which tasks are drawn.")]
OptionalSplit = Annotated[
    Split | None,
    typer.Option("--split", help="Which tasks are drawn; default: test, or all lines of --tasks where none says."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...; default: CUDA where there is one.")]
ChatTemplateFile = Annotated[str | None, typer.Option("--chat-template", help="File with a chat template to use.")]
StopTokens = Annotated[
    list[str] | None,
    typer.Option("--stop-token", help="Where generation stops; may be repeated; default: the model's own."),
]
Record = Annotated[
    str | None, typer.Option("--record", help="File to write what tools answer to; --playback FILE answers with it.")
]
Playback = Annotated[
    str | None, typer.Option("--playback", help="File of --record, which answers all calls; no tool runs.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what --out names.")]
AutoresetMode = Annotated[Mode, typer.Option(help="gymnasium's autoreset mode; results do not depend on it.")]
