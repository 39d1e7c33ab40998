"""The env that episodes were played in, out of the configuration that was written beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolstep.agents.shipped import SHIPPED, model_source
from toolstep.rollout.build import Settings, make_envs
from toolstep.rollout.config import read_config, settings_of
from toolstep.rollout.given import checked
from toolstep.rollout.recording import read_recording
from toolstep.rollout.storage import StorageError, config_beside


def make_envs_again(config: Path, num_envs: int, *, playback: str | None = None) -> Any:
    """The vector env of a configuration, with `num_envs` rows.  No model is loaded, only its tokenizer.

    playback: a recording that answers all calls.
    Raises `StorageError` where a file cannot be read, and what making the env raises.
    """
    found = read_config(config)
    try:
        settings = replace(settings_of(found), num_envs=num_envs, record=None, playback=playback)
    except TypeError as error:
        raise StorageError(f"{config} is not the configuration of an eval or a rollout: {error}") from error
    if settings.tasks is not None or settings.prompt is not None:
        settings = replace(settings, env=None)  # what is written there is their name
    settings, tasks = checked(settings)
    tape = None if playback is None else read_recording(playback)
    return make_envs(settings, env_kwargs_of(found, settings), tasks, tape)


def find_config(episodes: Path) -> Path:
    """`x.config.json` beside `x.jsonl`, else `config.json` in its folder.  Raises `StorageError` where neither is."""
    places = (config_beside(episodes), episodes.with_name("config.json"))
    for place in places:
        if place.is_file():
            return place
    raise StorageError(
        f"there is neither {places[0].name} nor {places[1].name} beside {episodes}, so its env is not "
        "known: say --config FILE, or make the env yourself (toolstep.rollout.replay.replay_episodes)"
    )


def env_kwargs_of(config: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """What the agent asked of its env; the tokenizer of a model that comes with the package is the one that is here."""
    kwargs = dict(config.get("env_kwargs") or {})
    if settings.agent in SHIPPED and "tokenizer" in kwargs:
        kwargs["tokenizer"] = model_source(settings.agent)
    return kwargs
