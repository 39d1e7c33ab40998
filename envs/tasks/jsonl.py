"""toolstep/Jsonl-v0: problems in a file, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from toolstep.envs.tasks.base import Split, TaskError, check_split
from toolstep.envs.tasks.draw import content_hash
from toolstep.envs.tasks.lists import Score, TaskList, to_task
from toolstep.envs.types import Task

if TYPE_CHECKING:
    from toolstep.envs.rewards import RewardSpec
    from toolstep.envs.tools.factory import Offer

SUFFIX = ".jsonl"
TEST_SHARE = 0.2
_PARTS = ("train", "test", "example")


class JsonlTasks(TaskList):
    """Problems of your own, in a file: prompts and answers, a JSON object a line.

    path: its lines are what `TaskList` takes: {"prompt": ..., "answer": ...}, and optionally "tools", "reward", "calls"
        and so on.  Empty lines are skipped.
    test_share: which part of the problems is the split "test", chosen by a hash of their messages: a problem stays
        where it is when others come and go, and twins are on one side.  A file that says it itself ("split": "train",
        "test" or "example"; "train" is meant where a line does not) is taken at its word.
    tools, score, system: as in `TaskList`.

    Raises:
        TaskError: the file cannot be read, or a line is no task; the message names file, line and field.
    """

    name: ClassVar[str] = "toolstep/Jsonl-v0"

    def __init__(
        self,
        path: str | Path,
        *,
        test_share: float = TEST_SHARE,
        tools: Sequence[Offer | Callable[..., Any] | str] = (),
        score: Score | RewardSpec | None = None,
        system: str = "",
    ) -> None:
        super(TaskList, self).__init__(tools=tools, score=score, system=system)
        if isinstance(test_share, bool) or not isinstance(test_share, int | float) or not 0 <= test_share < 1:
            raise TaskError(f"test_share must be a number in [0, 1), got {test_share!r}")
        self.path = Path(path)
        lines = list(self._read())
        if not lines:
            raise TaskError(f"there is no task in {str(path)!r}")
        said = any(part is not None for part, _, _ in lines)
        parts: dict[str, dict[str, Task]] = {part: {} for part in _PARTS}
        for part, place, task in lines:
            hashed = "test" if not said and _position(task) < test_share else "train"
            parts[part or hashed][place] = task
        if not parts["train"]:
            parts["train"], parts["test"] = parts["test"], {}
        self._fill(parts)

    def _read(self) -> Iterator[tuple[str | None, str, Task]]:
        """(part that the line names, where it stands, task) of each line."""
        try:
            lines = self.path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"cannot read the tasks of {str(self.path)!r}: {error}") from error
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{self.path.name}:{number}"
                yield _line(line, place, self.system)

    def task(self, seed: int, split: Split = "train") -> Task:
        if not self.size(check_split(split)):
            raise TaskError(
                f'no task of {self.path.name} is in the split {split!r}: name it in lines (\'"split": "test"\'), or '
                f"give more lines, or a larger test_share"
            )
        return super().task(seed, split)


def _line(line: str, place: str, system: str) -> tuple[str | None, str, Task]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{place}: no JSON: {error}") from error
    if not isinstance(item, dict):
        raise TaskError(f'{place}: expected an object like {{"prompt": ..., "answer": ...}}, found {line:.80}')
    part = item.pop("split", None)
    if part is not None and part not in _PARTS:
        raise TaskError(f"{place}: 'split' must be one of {_PARTS}, found {part!r:.80}")
    return part, place, to_task({"id": place, **item}, place, system)


def _position(task: Task) -> float:
    """Where in [0, 1) a problem lies, by its messages alone (not by a system prompt that all of them have)."""
    return content_hash(json.dumps([[m.role, m.content] for m in task.messages if m.role != "system"])) / 2**64


def read_tasks(path: str | Path, **options: Any) -> JsonlTasks:
    """All tasks of a file: the split "train" has every line that does not say otherwise.  options: of `JsonlTasks`."""
    return JsonlTasks(path, test_share=0.0, **options)
