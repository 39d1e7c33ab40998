"""The page of an output folder, made anew when its episodes are newer."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolstep.rollout.config import read_config
from toolstep.rollout.evaluate import Summary, summarize
from toolstep.rollout.folder import CONFIG, EPISODES, REPORT, SUMMARY, EvalFolder
from toolstep.rollout.storage import StorageError, clear_errors, read_episodes, replacing
from toolstep.rollout.types import Trajectory
from toolstep.rollout.viewer.page import page
from toolstep.rollout.viewer.vocabulary import NO_TEXTS, tokenizer_of

_SOURCES = (EPISODES, CONFIG, SUMMARY)


class LivePage:
    """The page of an output folder of `toolstep eval`.

    tokenizer: name of the tokenizer that tells the texts of ids; None: what config.json says, and ids stay numbers
    where that is not at hand.

    Raises `StorageError` where there is nothing to show.
    """

    def __init__(self, path: Path, tokenizer: str | None = None):
        self.path, self.tokenizer = path, tokenizer
        self.problem = ""  # why the page could not be written into the folder, or why ids have no texts
        self._made: tuple[list[tuple[int, int]], bytes] | None = None
        self._lock = threading.Lock()
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise StorageError(f"{path} {what}; give the folder that toolstep eval --out wrote")
        if not any((path / name).is_file() for name in (EPISODES, REPORT)):
            raise StorageError(
                f"{path} has neither {EPISODES} nor {REPORT}; give the folder that toolstep eval --out wrote"
            )

    def read(self) -> bytes:
        """The page as it should be now; may be called from several threads.

        report.html where it is newer than what it is made of.  Otherwise a new one, which takes its place; where
        the folder can't be written to, it is kept in memory.

        Raises:
            StorageError: a file that can't be read, or holds something else.
        """
        with self._lock:
            state = [_changed(self.path / name) for name in _SOURCES]
            if self._made is not None and self._made[0] == state:
                return self._made[1]
            target = self.path / REPORT
            # A clock ticks every few ms: what was written in the same tick may be older or newer.
            stored = target.is_file() and _changed(target)[0] > max(at for at, _ in state)
            if stored and (self.tokenizer is None or not state[0][0]):
                with clear_errors(target, "read"):
                    data = target.read_bytes()
            else:
                data = self._make()
                try:
                    with replacing(target) as file:
                        file.write(data)
                except StorageError as error:
                    self.problem = f"the page is not kept: {error}"
            self._made = (state, data)
            return data

    def _make(self) -> bytes:
        trajectories = read_episodes(self.path / EPISODES)
        there = (self.path / CONFIG).is_file()
        config = read_config(self.path / CONFIG) if there else {"folder": self.path.resolve().name}
        summary = self._summary(trajectories, config)
        try:
            return page(trajectories, summary, config, self._load_tokenizer(trajectories, config))
        except ValueError as error:
            raise StorageError(f"{self.path}: no page can be made of it: {error}") from error

    def _summary(self, trajectories: Sequence[Trajectory], config: Mapping[str, Any]) -> Summary:
        """As the evaluation summed up; its speed is not in the episodes, so it is that of summary.json."""
        requested, seed = config.get("episodes"), config.get("seed")
        found = summarize(
            trajectories,
            requested=requested if isinstance(requested, int) else None,
            seed=seed if isinstance(seed, int) else 0,
        )
        return replace(found, speed=EvalFolder(self.path).speed()) if len(trajectories) == found.requested else found

    def _load_tokenizer(self, trajectories: Sequence[Trajectory], config: Mapping[str, Any]) -> Any:
        if not any(t.context for t in trajectories):
            return None
        if self.tokenizer is not None:
            from toolstep.agents.shipped import model_source
            from toolstep.envs.chat import load_tokenizer

            return load_tokenizer(model_source(self.tokenizer))
        found = tokenizer_of(config)
        if found is None:
            self.problem = f"{NO_TEXTS}; name a tokenizer with --tokenizer"
        return found


def _changed(path: Path) -> tuple[int, int]:
    """When the file was written last, in ns, and its size; zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
