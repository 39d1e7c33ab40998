"""From a file of episodes to a report: play them all again, compare each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from toolstep.rollout.collect import is_token_view, play
from toolstep.rollout.evaluate import call_counts
from toolstep.rollout.replay.compare import Decode, first_difference
from toolstep.rollout.replay.difference import Difference
from toolstep.rollout.replay.recorded import RecordedEpisode, as_recorded, read_recorded
from toolstep.rollout.replay.script import RUN_SEED, ActionScript, TokenScript
from toolstep.rollout.types import Trajectory

OnEpisode = Callable[[RecordedEpisode, Difference | None], None]


class ReplayError(ValueError):
    """The episodes cannot be played again as they are; the message says why."""


@dataclass
class ReplayReport:
    """What a replay found; brought up to date while it goes on.

    episodes: played again so far.  turns, calls: of these.  differences: the first one of each episode that has any.
    seconds: wall clock.
    """

    episodes: int = 0
    turns: int = 0
    calls: int = 0
    differences: list[Difference] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether all of them are what the file says."""
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return {
            "episodes": self.episodes,
            "turns": self.turns,
            "calls": self.calls,
            "equal": self.equal,
            "differences": [d.to_dict() for d in self.differences],
            "seconds": round(self.seconds, 3),
        }


def replay_file(
    path: Path | str,
    *,
    config: Path | str | None = None,
    playback: Path | str | None = None,
    num_envs: int = 16,
    on_episode: OnEpisode | None = None,
) -> ReplayReport:
    """Play the episodes of a file that `toolstep eval` or `rollout` wrote again, in the env that its config.json names.

    config: another configuration than the one beside the file.  playback: a recording (`--record`) that answers all
    calls in place of the tools.  num_envs: rows; the result does not depend on it.

    Raises `StorageError` for files that cannot be read, `ReplayError` for one that holds no episode, and what
    making the env raises.
    """
    episodes, envs = open_file(path, config=config, playback=playback, num_envs=num_envs)
    try:
        return replay_episodes(envs, episodes, on_episode=on_episode)
    finally:
        envs.close()


def open_file(
    path: Path | str,
    *,
    config: Path | str | None = None,
    playback: Path | str | None = None,
    num_envs: int = 16,
) -> tuple[list[RecordedEpisode], VectorEnv[Any, Any, Any]]:
    """The episodes of a file and the env that they were played in, which the caller closes; see `replay_file`."""
    from toolstep.rollout.replay.rebuild import find_config, make_envs_again

    episodes = read_recorded(path)
    if not episodes:
        raise ReplayError(f"{path} holds no finished episode")
    written = find_config(Path(path)) if config is None else Path(config)
    recording = None if playback is None else str(playback)
    return episodes, make_envs_again(written, min(num_envs, len(episodes)), playback=recording)


def replay_episodes(
    envs: VectorEnv[Any, Any, Any],
    episodes: Iterable[RecordedEpisode | Trajectory],
    *,
    on_episode: OnEpisode | None = None,
    report: ReplayReport | None = None,
) -> ReplayReport:
    """Play `episodes` again in `envs`, made as theirs was, and compare each with the record.

    on_episode: told of each as it is finished.  report: to be filled in, for a caller who may be interrupted.
    Raises `ReplayError` for episodes of another view, and for those without token ids that were written without
    `actions`.
    """
    done = ReplayReport() if report is None else report
    began = time.perf_counter()
    recorded = as_recorded(episodes)
    try:
        for episode, again, difference in _played(envs, recorded):
            done.episodes += 1
            if again is not None:
                done.turns += again.turns
                done.calls += sum(call_counts(again).values())
            if difference is not None:
                done.differences.append(difference)
                done.differences.sort(key=lambda d: d.line)
            if on_episode is not None:
                on_episode(episode, difference)
    finally:
        done.seconds = time.perf_counter() - began
    return done


def _played(
    envs: VectorEnv[Any, Any, Any], recorded: list[RecordedEpisode]
) -> Iterator[tuple[RecordedEpisode, Trajectory | None, Difference | None]]:
    tokens = is_token_view(envs)
    space = envs.single_action_space
    if not tokens and not isinstance(space, spaces.Text | spaces.Discrete):
        raise ReplayError(f"only turns of text, of token ids and of a menu can be played again, not {space}")
    playable = []
    for episode in recorded:
        wrong = _unplayable_ids(envs, episode) if tokens else _unplayable_action(space, episode)
        if wrong is None:
            playable.append(episode)
        else:
            yield episode, None, wrong
    idle = int(space.start) if isinstance(space, spaces.Discrete) else None
    script = TokenScript(playable) if tokens else ActionScript(playable, idle=idle)
    decode = _decoder(envs) if tokens else None
    for index, again in play(envs, script, [e.spec for e in playable], seed=RUN_SEED):
        yield playable[index], again, first_difference(playable[index], again, decode)


def _unplayable_ids(envs: VectorEnv[Any, Any, Any], episode: RecordedEpisode) -> Difference | None:
    """An id that the env would refuse as no id of its vocabulary."""
    if not len(episode.token_ids) and episode.turns:
        raise ReplayError(
            f"episode {episode.line} has no token ids, but the env's observations are {envs.single_observation_space}"
        )
    space: Any = envs.single_observation_space
    vocabulary = int(space.feature_space.n)
    bad = np.flatnonzero((episode.token_ids < 0) | (episode.token_ids >= vocabulary))
    if not len(bad):
        return None
    at = int(bad[0])
    turn = int(episode.turn[at]) if at < len(episode.turn) else 0
    return _told(episode, turn, "token_ids", int(episode.token_ids[at]), f"a vocabulary of {vocabulary} ids", at)


def _unplayable_action(space: spaces.Space[Any], episode: RecordedEpisode) -> Difference | None:
    """Turns without the text of what the agent said, or the number of what it chose."""
    if len(episode.token_ids):
        raise ReplayError(f"episode {episode.line} has token ids, but the env's actions are {space}")
    said, turns = episode.actions, episode.turns
    silent = int(episode.data["status"] != "ok")  # the agent may have given the last turn up
    menu = isinstance(space, spaces.Discrete)
    if "actions" not in episode.data or (menu and not said and turns > silent):
        raise ReplayError(
            f"episode {episode.line} does not have what the agent wrote or chose ('actions'): files of text and menu "
            "episodes have it since they can be replayed; play them again"
        )
    if menu and not episode.data["messages"]:
        raise ReplayError(f"episode {episode.line} has no messages: nothing of what was observed could be compared")
    for turn, action in enumerate(said):
        if menu and not (type(action) is int and space.contains(action)):
            return _told(episode, turn, "actions", action, f"that the menu has the choices of {space}", turn)
        if not menu and not isinstance(action, str):
            return _told(episode, turn, "actions", action, "that only text can be played", turn)
    if not turns - silent <= len(said) <= turns:
        return _told(episode, len(said), "actions", f"{turns} turns", f"{len(said)} actions", None)
    return None


def _told(
    episode: RecordedEpisode, turn: int, name: str, expected: Any, found: Any, position: int | None
) -> Difference:
    spec = episode.spec
    task = episode.data["task_id"]
    return Difference(episode.line, task, spec.seed, spec.sample_index, turn, name, expected, found, position)


def _decoder(envs: VectorEnv[Any, Any, Any]) -> Decode | None:
    """Text of ids, where the env has a tokenizer that tells it."""
    config = getattr(envs.unwrapped, "config", None)
    decode: Decode | None = getattr(getattr(config, "chat", None), "decode", None)
    return decode
