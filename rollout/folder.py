"""The output folder of an evaluation: config.json, episodes.jsonl and what is made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolstep.rollout import storage
from toolstep.rollout.config import differences, read_config
from toolstep.rollout.evaluate import Speed, Summary
from toolstep.rollout.report import markdown
from toolstep.rollout.specs import EpisodeSpec
from toolstep.rollout.storage import EpisodeLog, StorageError, write_json, write_text
from toolstep.rollout.types import Trajectory
from toolstep.rollout.viewer.page import write_report

CONFIG, EPISODES, DAMAGED = "config.json", "episodes.jsonl", "episodes.damaged.jsonl"
SUMMARY, PAGE, REPORT = "summary.json", "summary.md", "report.html"
_WRITTEN = (CONFIG, EPISODES, DAMAGED, SUMMARY, PAGE, REPORT)


class EvalFolder:
    """One folder, one run at a time.

    resume: go on with what is there; an empty folder begins anew.  overwrite: begin anew, whatever is there; files that
    no evaluation writes are left alone.

    kept: the episodes that were there already.  damaged: what was wrong with lines of episodes.jsonl, by number.
    """

    def __init__(self, path: Path, *, resume: bool = False, overwrite: bool = False):
        if resume and overwrite:
            raise ValueError("--resume goes on with what is there and --overwrite removes it: give one of them")
        self.path = path
        self.resume = resume
        self.overwrite = overwrite
        self.kept: list[Trajectory] = []
        self.damaged: dict[int, str] = {}
        self._log: EpisodeLog | None = None

    @property
    def clock(self) -> str | None:
        """The date that the run which is resumed shows its model; None where none is."""
        if not self.resume or not (self.path / CONFIG).is_file():
            return None
        found = read_config(self.path / CONFIG).get("clock")
        return found if isinstance(found, str) else None

    def check(self, config: Mapping[str, Any]) -> None:
        """Find out, before any work is done, whether a run of that configuration may write here.

        config: what is known of it yet.  Raises `StorageError`; for a run of another configuration it names the keys.
        """
        if self.resume and self.path.is_dir():
            storage.remove_leftovers(self.path, _WRITTEN)
        if not (self.resume and (self.path / CONFIG).is_file()):
            try:
                storage.check_folder(self.path, overwrite=self.overwrite)
            except StorageError as error:
                if (self.path / CONFIG).is_file():
                    raise StorageError(f"{error}, or pass --resume to go on with the run in it") from None
                if self.resume and self.path.is_dir() and any(self.path.iterdir()):
                    raise StorageError(f"{self.path} has no {CONFIG}, so there is no run to go on with") from None
                raise
            return
        storage.check_folder(self.path, overwrite=True)
        there = read_config(self.path / CONFIG)
        known = {k: v for k, v in there.items() if k in config}
        found = differences(known, config)
        if found:
            raise StorageError(
                f"{self.path} holds a run of another configuration ({CONFIG} and this command differ in "
                f"{'; '.join(map(str, found))}); give the same options, or another folder"
            )

    @contextmanager
    def opened(self, config: Mapping[str, Any], specs: Sequence[EpisodeSpec]) -> Iterator[None]:
        """Begin the run, or go on with it: afterwards `kept` is what is there, and `add` appends.

        No other process can open the folder meanwhile.  Raises `StorageError`.
        """
        with storage.locked(self.path):
            self.check(config)  # once more: another run may have ended here since
            if not (self.resume and (self.path / CONFIG).is_file()):
                with storage.clear_errors(self.path, "write to"):
                    for name in _WRITTEN:
                        (self.path / name).unlink(missing_ok=True)
                write_json(self.path / CONFIG, config)
            elif (self.path / EPISODES).exists():
                listed = {(s.seed, s.sample_index) for s in specs}
                found = storage.recover_episodes(self.path / EPISODES, listed, self.path / DAMAGED)
                self.kept, self.damaged = found.episodes, found.damaged
            with EpisodeLog(self.path / EPISODES) as self._log:
                yield

    def add(self, trajectory: Trajectory) -> None:
        """Append an episode to the log."""
        assert self._log is not None, "the folder is not open"
        self._log.write(trajectory)

    def finish(self, summary: Summary, config: Mapping[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """Write what is made of the episodes."""
        write_json(self.path / SUMMARY, summary.to_dict())
        write_text(self.path / PAGE, markdown(summary, config))
        write_report(self.path / REPORT, trajectories, summary, config)

    def speed(self) -> Speed | None:
        """The speed in the summary that is there; None where there is none to read."""
        try:
            return Speed(**json.loads((self.path / SUMMARY).read_bytes())["speed"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
