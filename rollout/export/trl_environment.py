"""TRL: an env as an `environment_factory` of its GRPOTrainer, which generates, calls and masks by itself.

With `rollout_func` the env writes the context and this library's engine samples; here TRL does both, by its own chat
template and with its own loop, and the env is only asked for tool results and the score.
"""

from __future__ import annotations

import inspect
import json
import keyword
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from toolstep.envs.types import EpisodeStatus, ToolCall, Turn
from toolstep.rollout.export.rows import ExportError
from toolstep.rollout.export.trl import SEED

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
_TAKEN = ("reset", "get_reward")  # what TRL itself looks for in an environment


class EpisodeOver(RuntimeError):
    """The episode has ended; TRL shows the model this text as the result of its call."""


class Environment:
    """One conversation as TRL sees it: `reset`, and a public method for each tool (a subclass has them)."""

    _tools: frozenset[str] = frozenset()  # their names

    def __init__(self, make_env: Callable[[], Any]):
        self._env = make_env()
        self._finalizer = weakref.finalize(self, self._env.close)  # TRL closes nothing
        self._reward = 0.0
        self._over = True
        self._failed = False

    def reset(self, **row: Any) -> None:
        """Begin the task that the row of the dataset names; its prompt is the row's."""
        task_seed = row.get(SEED)
        if not isinstance(task_seed, int):
            raise ExportError(
                f"the row names no task: make the train dataset of task_rows(envs, ...), whose rows have a {SEED!r}; "
                f"got columns {sorted(row)}"
            )
        _, info = self._env.reset(seed=task_seed)
        self._reward = 0.0
        self._over = self._failed = info["status"] != EpisodeStatus.OK
        found = _names(self._env)
        if not self._failed and found != self._tools:
            raise ExportError(
                f"TRL offers the same tools for all tasks, {sorted(self._tools)}, but task {info['task_id']!r} has "
                f"{sorted(found)}; use rollout_func"
            )

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        call = ToolCall("call00000", name, json.dumps(arguments), dict(arguments))
        messages = self._step(Turn("", calls=(call,)))
        return next((str(m["content"]) for m in messages if m["role"] == "tool"), "")

    def _step(self, turn: Turn) -> list[dict[str, Any]]:
        if self._over:
            raise EpisodeOver("the episode is over: answer without a call")
        config = self._env.unwrapped.config
        _, reward, terminated, truncated, info = self._env.step(config.view.write(config.chat.write(turn)))
        self._reward += reward
        self._over = terminated or truncated
        self._failed = info["status"] != EpisodeStatus.OK
        return list(info["new_messages"])

    def _finish(self, completion: Sequence[Mapping[str, Any]]) -> float | None:
        """The episode's reward after its last message; None where the env failed."""
        last = completion[-1] if completion else {}
        if not self._over and last.get("role") == "assistant" and not last.get("tool_calls"):
            self._step(Turn(str(last.get("content") or "")))
        return None if self._failed else self._reward


def environment_factory(make_env: Callable[[], Any]) -> type[Environment]:
    """A class for `GRPOTrainer(environment_factory=...)`; each instance plays in an env that `make_env()` returns.

    make_env: makes a `ToolUseEnv` without a tokenizer, for instance `lambda: ToolUseEnv("calculator", level=1)`.  One
        is made at once, to see its tools: they must be the same for all tasks.  The class has a method for each, whose
        signature and docstring say what the tool's schema says.
    The train dataset is `Dataset.from_list(task_rows(envs, ...))`; score with `reward_funcs=environment_reward`.

    Each call is a turn of the env, so max_turns counts calls, and its last turn is the model's answer.  Once the
    episode is over, further calls get an error as their result, which is all that TRL lets an environment do.

    Raises `ExportError` for a tool whose name or argument TRL cannot take.
    """
    probe = make_env()
    try:
        probe.reset(seed=0)
        schemas = [schema["function"] for schema in probe.unwrapped.schemas]
    finally:
        probe.close()
    methods: dict[str, Any] = {schema["name"]: _method(schema) for schema in schemas}

    def __init__(self: Environment) -> None:
        Environment.__init__(self, make_env)

    body = {**methods, "_tools": frozenset(methods), "__init__": __init__}
    return type("ToolUseEnvironment", (Environment,), body)


def environment_reward(
    completions: Sequence[Sequence[Mapping[str, Any]]], environments: Sequence[Environment], **_: Any
) -> list[float | None]:
    """The reward function beside `environment_factory`: the env scores the answer that it has not seen yet.

    None for an episode in which the env failed: TRL keeps it out of the group's baseline and gives it advantage 0.
    """
    return [env._finish(completion) for env, completion in zip(environments, completions, strict=True)]


def _names(env: Any) -> frozenset[str]:
    return frozenset(schema["function"]["name"] for schema in env.unwrapped.schemas)


def _method(schema: Mapping[str, Any]) -> Callable[..., str]:
    """A method that calls the tool; transformers makes the schema again from its annotations and its docstring."""
    name = schema["name"]
    if not name.isidentifier() or name.startswith("_") or name in _TAKEN:
        raise ExportError(f"TRL takes no environment with a tool named {name!r}; rename it with tool(fn, name=...)")
    parameters = schema["parameters"]
    required = parameters.get("required", ())
    # What has no default comes first, in the order of the schema.
    properties = sorted(parameters.get("properties", {}).items(), key=lambda item: item[0] not in required)
    for argument, _ in properties:
        if not argument.isidentifier() or keyword.iskeyword(argument):
            raise ExportError(f"TRL takes no tool with an argument named {argument!r} (tool {name!r})")
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    hints = {argument: _hint(value, f"{name}.{argument}") for argument, value in properties}
    defaults = {a: inspect.Parameter.empty if a in required else p.get("default") for a, p in properties}

    def method(self: Environment, /, **arguments: Any) -> str:
        return self._call(name, arguments)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = _docstring(schema["description"], dict(properties))
    method.__annotations__ = {**hints, "return": str}
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", kind),
            *(inspect.Parameter(a, kind, default=defaults[a], annotation=hints[a]) for a in hints),
        ],
        return_annotation=str,
    )
    return method


def _hint(schema: Mapping[str, Any], where: str) -> Any:
    """The annotation from which transformers makes that schema."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    variants = schema.get("anyOf") or schema.get("oneOf")
    if variants:
        return _union([_hint(v, where) for v in variants])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([_TYPES[k] for k in kind])
    if kind == "array" and schema.get("items"):
        return list[_hint(schema["items"], where)]  # type: ignore[misc]
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return dict[str, _hint(schema["additionalProperties"], where)]  # type: ignore[misc]
    if kind not in _TYPES:
        raise ExportError(f"TRL cannot be told the type of {where}: {json.dumps(schema)[:200]}")
    return _TYPES[kind]


def _union(hints: Sequence[Any]) -> Any:
    out = hints[0]
    for hint in hints[1:]:
        out = out | hint
    return out


def _docstring(description: str, properties: Mapping[str, Mapping[str, Any]]) -> str:
    text = " ".join(description.split()) or "A tool."
    if not properties:
        return text
    lines = [f"    {name}: {' '.join(str(p.get('description') or name).split())}" for name, p in properties.items()]
    return "\n".join([text, "", "Args:", *lines])
