"""RolloutJob: what `toolstep rollout` does."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from toolstep.agents.base import NotTrainable, TokenAgent, check_trainable
from toolstep.rollout import console, storage
from toolstep.rollout.batch import RolloutBatch
from toolstep.rollout.build import Settings
from toolstep.rollout.evaluate import summarize
from toolstep.rollout.export.files import check_output, write_rollout
from toolstep.rollout.export.formats import Format, choose_format
from toolstep.rollout.jobs import Job
from toolstep.rollout.report import requests_line, rows
from toolstep.rollout.storage import StorageError
from toolstep.rollout.types import Trajectory


class RolloutJob(Job):
    """A group of samples of each task; `out` is a file or a folder of that `Format`."""

    command = "rollout"
    out: Path
    batch: RolloutBatch | None = None

    def __init__(
        self,
        settings: Settings,
        groups: int,
        group_size: int,
        out: Path,
        *,
        overwrite: bool,
        form: Format | None = None,
    ):
        self.format = choose_format(out, form)
        self.overwrite = overwrite
        super().__init__(settings, groups, group_size, out)
        if self.format.needs_ids and not isinstance(self.agent, TokenAgent):
            self.close()
            raise ValueError(
                f"agent {settings.agent!r} samples no token ids, so it makes no rollout of the format {self.format}; "
                f"write episodes, --out {out.with_suffix(Format.JSONL.suffix)}, or use a model"
            )
        if self.format.needs_ids:
            try:
                check_trainable(self.agent)
            except NotTrainable:
                self.close()
                raise

    def check(self) -> None:
        check_output(self.out, self.format, overwrite=self.overwrite)
        if self.format is Format.JSONL:
            storage.check_file(storage.config_beside(self.out), overwrite=self.overwrite)

    @cached_property
    def config(self) -> dict[str, Any]:
        return {**super().config, "format": str(self.format)}

    def ordered(self) -> list[Trajectory]:
        """What is finished, group after group."""
        return sorted(self.finished, key=lambda t: (t.group_id or 0, t.sample_index))

    def write(self) -> None:
        rows = self.ordered()
        if not rows and self.format is not Format.JSONL:
            return
        try:
            write_rollout(self.out, self.format, rows)
            if self.format is Format.JSONL:
                storage.write_json(storage.config_beside(self.out), self.config)
            self.batch = RolloutBatch.from_trajectories(rows) if self.format.needs_ids else None
        except Exception as error:  # whatever a format cannot hold, what was played is kept
            kept = self.out.with_name(f"{self.out.name}.episodes{Format.JSONL.suffix}")
            storage.write_episodes(kept, rows)
            storage.write_json(storage.config_beside(kept), self.config)
            raise StorageError(f"{error}; the episodes are in {kept}") from error

    def document(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "summary": summarize(self.finished, requested=len(self.specs), metrics=self.metrics).to_dict(),
            "batch": None
            if self.batch is None
            else {
                "shape": list(self.batch.input_ids.shape),
                "action_tokens": int(self.batch.action_mask.sum()),
                **asdict(self.batch.counts),
            },
            "requests": self.requests,
            "interrupted": self.interrupted,
            "out": str(self.out),
        }

    def show(self) -> None:
        items = rows(summarize(self.finished, requested=len(self.specs), metrics=self.metrics))
        if self.batch is not None:
            b, c = self.batch, self.batch.counts
            items += [
                ("batch", f"{b.input_ids.shape[0]} rows of up to {b.input_ids.shape[1]} ids"),
                ("action ids", f"{int(b.action_mask.sum())} of {int(b.attention_mask.sum())}"),
                (
                    "groups",
                    f"{c.groups}, of which {c.zero_variance_groups} of equal rewards and "
                    f"{c.single_member_groups} of one usable member (advantage 0)",
                ),
            ]
        console.print_pairs(self.title, items)
        if self.requests is not None:
            console.print_line(requests_line(self.requests))
        console.print_line(f"written to {self.out}" if self.finished else "nothing finished, nothing written")
