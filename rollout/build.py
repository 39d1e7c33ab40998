"""From names and options to an agent and the vector env that it plays in."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolstep.envs.tasks import TaskList, TaskSet
    from toolstep.envs.tools import Tape

NAMESPACE = "toolstep/"


class UnknownEnv(ValueError):
    """No env is registered under that name; the message names the nearest."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `eval` and `rollout` let their users choose; None leaves the default of the env or the agent.

    One of env, tasks (a file) and prompt says what is played.  tool: built-in tools and functions ("module:function")
    that are offered as well; mcp: servers whose tools are; openapi: a document whose operations are, of the server
    base_url, with the credential in the variable auth_env.  env_module: what registers env, where it was named
    "module:id".  clock: what a template that writes today's date is told (ISO).  record, playback: the file that what
    tools answer is written to, or taken from (then none of the given tools runs).  reward, reward_weight
    ("term=weight"), reward_clip: see `EnvConfig`.  test_share: see `JsonlTasks`; None: all lines are played where no
    split is named, and its default holds where one is.
    """

    env: str | None
    agent: str
    num_envs: int
    seed: int
    max_turns: int | None
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    level: int | None
    shots: int
    split: str | None
    device: str | None
    autoreset_mode: str
    chat_template: str | None = None
    stop_token: Sequence[str] | None = None
    tasks: str | None = None
    prompt: str | None = None
    answer: str | None = None
    mcp: Sequence[str] | None = None
    openapi: str | None = None
    base_url: str | None = None
    auth_env: str | None = None
    env_module: str | None = None
    clock: str | None = None
    record: str | None = None
    playback: str | None = None
    tool: Sequence[str] | None = None
    reward: str | None = None
    reward_weight: Sequence[str] | None = None
    reward_clip: tuple[float, float] | None = None
    test_share: float | None = None


def env_ids() -> list[str]:
    """Ids of the envs that come with toolstep."""
    import gymnasium as gym

    importlib.import_module("toolstep.envs")
    return sorted(i for i in gym.registry if i.startswith(NAMESPACE))


def find_env(name: str) -> str:
    """The registered id that `name` means.

    "toolstep/Calculator-v0", "Calculator-v0" and "calculator" mean the same, as do "UnitConvert-v0" and "unit_convert".
    Other packages' ids are taken as they are; "module:id" imports the module that registers it first.
    Raises `UnknownEnv`.
    """
    import gymnasium as gym

    from toolstep.envs.tasks.families import by_family

    known = env_ids()
    module, colon, rest = name.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UnknownEnv(f"cannot import {module!r}, the module of env {name!r}: {error}") from error
        name = rest
    if name in gym.registry:
        return name
    found = {_short(i): i for i in known}.get(_short(name))
    if found is not None:
        return found
    raise UnknownEnv(f"unknown env {name!r}{_nearest(name, known)} Known envs: {', '.join(by_family(known))}")


def task_set(env_id: str) -> TaskSet:
    """The tasks of an env that comes with toolstep."""
    import gymnasium as gym

    from toolstep.envs.tasks import load_tasks

    return load_tasks(gym.spec(env_id).kwargs["tasks"])


def make_agent_and_envs(settings: Settings, tasks: TaskList | None = None, tape: Tape | None = None) -> tuple[Any, Any]:
    """(agent, vector env); the agent is made first, because it says what its env must look like.

    tasks: what is played in place of a registered env; see `toolstep.rollout.given`.
    """
    from toolstep.agents.base import SamplingParams
    from toolstep.agents.registry import make_agent

    chat_template = None if settings.chat_template is None else _read(settings.chat_template)
    sampling = SamplingParams(
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        max_new_tokens=settings.max_new_tokens,
    )
    agent = make_agent(
        settings.agent,
        sampling=sampling,
        device=settings.device,
        seed=settings.seed,
        chat_template=chat_template,
        stop_tokens=settings.stop_token or None,
    )
    envs = make_envs(settings, agent.env_kwargs, tasks, tape)
    check_spaces = getattr(agent, "check_spaces", None)
    if callable(check_spaces):  # of an SB3 model
        try:
            check_spaces(envs)
        except ValueError:
            envs.close()
            raise
    return agent, envs


def make_envs(
    settings: Settings, env_kwargs: Mapping[str, Any], tasks: TaskList | None = None, tape: Tape | None = None
) -> Any:
    """The vector env for an agent that asks for `env_kwargs`.  tape: that of its tools, see `rollout.recording`."""
    options = {"autoreset_mode": settings.autoreset_mode, **_env_keywords(settings, env_kwargs, tape)}
    return _make_envs(settings, tasks, options)


def make_env(settings: Settings, tasks: TaskList | None = None) -> Any:
    """The env of text for one person."""
    options = _env_keywords(settings, {}, None)
    if tasks is not None:
        from toolstep.envs import ToolUseEnv

        return ToolUseEnv(tasks, **options)
    import gymnasium as gym

    return gym.make(find_env(settings.env or ""), disable_env_checker=True, **options)


def _env_keywords(settings: Settings, env_kwargs: Mapping[str, Any], tape: Tape | None) -> dict[str, Any]:
    written = "tokenizer" in env_kwargs or "chat_template" in env_kwargs  # else the template is ours, without a date
    options = env_options(
        level=settings.level,
        shots=settings.shots or None,
        max_turns=settings.max_turns,
        clock=settings.clock if written else None,
        tape=tape,
    )
    common = {"split": settings.split, **options, **env_kwargs}
    if settings.tool or (settings.playback is None and (settings.mcp or settings.openapi is not None)):
        from toolstep.rollout.given import given_tools

        common["tools"] = given_tools(settings)
    return common | reward_options(settings.reward, settings.reward_weight, settings.reward_clip)


def reward_options(reward: str | None, weights: Sequence[str] | None, clip: Sequence[float] | None) -> dict[str, Any]:
    """The keywords of an env for --reward, --reward-weight and --reward-clip.

    Raises ValueError for a weight that is not "term=number"; the env itself knows the terms.
    """
    if reward is not None and ":" in reward:
        import_from_here()
    found: dict[str, float] = {}
    for item in weights or ():
        name, _, number = item.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise ValueError(f"--reward-weight takes TERM=WEIGHT, like call_cost=0.05, got {item!r}") from None
    return env_options(
        reward=reward, reward_weights=found or None, reward_clip=None if clip is None else [float(x) for x in clip]
    )


def import_from_here() -> None:
    """Let "module:function" mean a file in the working folder, as `python -m` does and a console script does not."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _make_envs(settings: Settings, tasks: TaskList | None, options: dict[str, Any]) -> Any:
    if tasks is not None:
        from toolstep.envs import ToolUseVectorEnv

        return ToolUseVectorEnv(settings.num_envs, tasks, **options)
    import gymnasium as gym

    env_id = find_env(settings.env or "")
    try:
        return gym.make_vec(env_id, num_envs=settings.num_envs, **options)
    except TypeError as error:
        if env_id.startswith(NAMESPACE):
            raise
        raise UnknownEnv(f"env {env_id!r} does not take the keywords of a toolstep env: {error}") from error


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the chat template {path!r}: {error}") from error


def env_options(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {k: v for k, v in options.items() if v is not None}


def _short(name: str) -> str:
    return re.sub(r"-v\d+$", "", name.rpartition("/")[2].casefold()).replace("_", "").replace("-", "")


def _nearest(name: str, known: Sequence[str]) -> str:
    names = {_short(i): i for i in known}
    near = difflib.get_close_matches(_short(name), names, n=1, cutoff=0.5)
    return f"; did you mean {names[near[0]]!r}?" if near else "."
