"""TrainingLog: what a learner tells of each iteration, as JSON lines and for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolstep.rollout.storage import clear_errors, write_text


class TrainingLog:
    """`metrics.jsonl`, one iteration a line, and TensorBoard's event files beside it where tensorboard is installed.

    A run that is resumed goes on in the same files: `resume_at` drops lines of iterations that are played again.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "metrics.jsonl"
        with clear_errors(self.folder, "write to"):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._board: Any = None

    def resume_at(self, iteration: int) -> None:
        """Forget what was logged after `iteration` (the process went on behind its last checkpoint)."""
        if self.path.is_file():
            kept = [line for line in read_log(self.path) if line["iteration"] <= iteration]
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        line = json.dumps({"iteration": iteration, **metrics}, allow_nan=False)
        with clear_errors(self.path, "write"), self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        board = self._tensorboard(iteration)
        if board is not None:
            for name, value in metrics.items():
                board.add_scalar(name, value, iteration)
            board.flush()

    def close(self) -> None:
        if self._board:
            self._board.close()
            self._board = None

    def _tensorboard(self, iteration: int) -> Any:
        if self._board is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self._board = False  # the JSON lines have it all
            else:
                self._board = SummaryWriter(str(self.folder), purge_step=iteration)
        return self._board or None


def read_log(path: Path | str) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a torn last one is left out."""
    with clear_errors(Path(path), "read"):
        whole, _, _torn = Path(path).read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.split("\n")] if whole else []
