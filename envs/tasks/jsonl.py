"""Problems in a file, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolstep.envs.tasks.base import TaskError
from toolstep.envs.tasks.lists import Score, TaskList, to_task

if TYPE_CHECKING:
    from toolstep.envs.tools.factory import Offer

SUFFIX = ".jsonl"
_SPLITS = ("train", "test", "example")


def read_tasks(
    path: str | Path,
    *,
    tools: Sequence[Offer | Callable[..., Any] | str] = (),
    score: Score | None = None,
    system: str = "",
) -> TaskList:
    """The tasks of a file whose lines are what `TaskList` takes: {"prompt": ..., "answer": ...} and so on.

    A line may say where it belongs: "split": "train" (which is meant where it does not), "test" or "example".  A file
    that has test tasks and none for training is a list of these.  Empty lines are skipped.  tools, score, system: as in
    `TaskList`.

    Raises:
        TaskError: the file cannot be read, or a line is no task; the message names the line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read the tasks of {str(path)!r}: {error}") from error
    found: dict[str, list[Any]] = {split: [] for split in _SPLITS}
    for number, line in enumerate(lines, 1):
        if line.strip():
            split, task = _read(line, f"{Path(path).name}:{number}", system)
            found[split].append(task)
    if not any(found.values()):
        raise TaskError(f"there is no task in {str(path)!r}")
    if not found["train"]:
        found["train"], found["test"] = found["test"], []
    return TaskList(
        found["train"], test=found["test"], examples=found["example"], tools=tools, score=score, system=system
    )


def _read(line: str, where: str, system: str) -> tuple[str, Any]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: no JSON: {error}") from error
    if not isinstance(item, dict):
        raise TaskError(f'{where}: expected an object like {{"prompt": ..., "answer": ...}}, found {line:.80}')
    split = item.pop("split", "train")
    if split not in _SPLITS:
        raise TaskError(f"{where}: 'split' must be one of {_SPLITS}, found {split!r:.80}")
    return split, to_task({"id": where, **item}, where, system)
