"""config.json: everything that decides what a run finds, resolved; and in what two runs differ."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from toolstep.rollout.build import Settings
from toolstep.rollout.specs import EpisodeSpec
from toolstep.rollout.storage import StorageError, clear_errors

_PACKAGES = ("toolstep", "gymnasium", "numpy", "scipy", "torch", "transformers", "tokenizers", "math-verify")
NEUTRAL = frozenset({"num_envs", "autoreset_mode"})  # results do not depend on them
_FILES = ("tasks", "chat_template", "openapi", "playback")  # settings that may name a file
_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Difference:
    """A key (dotted where it is nested) with its values in two configurations; None where one lacks it."""

    key: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.first)} and {_short(self.second)}"


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that results depend on; None for one that is not installed."""
    out: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = None
    return out


def asked_config(command: str, settings: Settings, specs: Sequence[EpisodeSpec]) -> dict[str, Any]:
    """What was asked for: known before a model is loaded or an env is made.

    The settings by name, `epochs` (samples of each task), `episodes` (all of them), `task_seeds`, `files` (SHA-256 of
    those that the settings name) and `versions`.
    """
    seeds = list(dict.fromkeys(s.seed for s in specs))
    return plain(
        {
            "command": command,
            **{k: None if v == [] else v for k, v in asdict(settings).items()},  # no option given is no option
            "epochs": len(specs) // max(1, len(seeds)),
            "episodes": len(specs),
            "task_seeds": seeds,
            "files": _digests(settings),
            "versions": versions(),
        }
    )


def made_config(agent: Any, envs: Any) -> dict[str, Any]:
    """What came of it: `env_kwargs` (what the agent asks of an env), `model`, `limits`, `rewards`, `template`.

    `model` is what `agent.describe()` says, where it has that; `limits`, `rewards` and `template` are the env's, as
    resolved.
    """
    out: dict[str, Any] = {"env_kwargs": {k: _plain_or_name(v) for k, v in agent.env_kwargs.items()}}
    describe = getattr(agent, "describe", None)
    out["model"] = describe() if callable(describe) else None
    config = getattr(envs.unwrapped, "config", None)
    if config is not None:
        chat = config.chat
        source = chat.source if isinstance(chat.source, str) else json.dumps(dict(chat.source), sort_keys=True)
        out["limits"] = asdict(config.limits)
        reward = config.reward
        out["rewards"] = {
            "outcome": None if config.verifier is None else repr(config.verifier),
            "weights": dict(reward.weights),
            "clip": list(reward.clip),
        }
        out["template"] = {
            "sha256": hashlib.sha256(source.encode()).hexdigest(),
            "tool_call_format": chat.tool_call_format.name,
            "stop_tokens": sorted(chat.stop_tokens),
        }
    return plain(out)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings with which the run of that configuration was started."""
    return Settings(**{f.name: config[f.name] for f in fields(Settings) if f.name in config})


def read_config(path: Path) -> dict[str, Any]:
    """The configuration in a file.  Raises `StorageError` for one that is missing or holds no JSON object."""
    with clear_errors(path, "read"):
        data = path.read_bytes()
    try:
        config = json.loads(data)
    except ValueError as error:
        raise StorageError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise StorageError(f"{path} must hold a JSON object, found {type(config).__name__}")
    return config


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], *, ignore: frozenset[str] = NEUTRAL
) -> list[Difference]:
    """Where two configurations differ, in the order of their keys; `ignore` names keys at the top."""
    a, b = flat(first, ignore), flat(second, ignore)
    keys = dict.fromkeys([*a, *b])
    return [Difference(k, a.get(k), b.get(k)) for k in keys if a.get(k) != b.get(k)]


def flat(config: Mapping[str, Any], ignore: frozenset[str] = NEUTRAL) -> dict[str, Any]:
    """The values by dotted key."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if key in ignore:
            continue
        if isinstance(value, Mapping):
            out.update({f"{key}.{k}": v for k, v in flat(value, frozenset()).items()})
        else:
            out[key] = value
    return out


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as it is read back from JSON (tuples are lists there)."""
    out: dict[str, Any] = json.loads(json.dumps(dict(config), allow_nan=False))
    return out


def _digests(settings: Settings) -> dict[str, str]:
    out = {}
    for name in _FILES:
        given = getattr(settings, name)
        if given is not None and Path(given).is_file():
            with clear_errors(Path(given), "read"):
                out[name] = hashlib.sha256(Path(given).read_bytes()).hexdigest()
    return out


def _plain_or_name(value: Any) -> Any:
    """The value where JSON can hold it, else the name of its type: the text of an object may have its address."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return f"{type(value).__module__}.{type(value).__qualname__}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _SHOWN:
        return text
    if isinstance(value, list):
        return f"[{_short(value[0])}, ...] ({len(value)} values)"
    return f"{text[:_SHOWN]}... ({len(text)} characters)"
