"""The task set of a category."""

from __future__ import annotations

from toolstep.envs.tasks.bfcl.data import MULTI_TURN
from toolstep.envs.tasks.bfcl.listed import ListedTasks
from toolstep.envs.tasks.bfcl.multi_turn import MultiTurnTasks
from toolstep.envs.tasks.bfcl.single_turn import SingleTurnTasks


def bfcl_tasks(category: str, *, train: float = 0.0) -> ListedTasks:
    """The tasks of a category; see `ListedTasks` for `train` and what is raised."""
    kind = MultiTurnTasks if category in MULTI_TURN else SingleTurnTasks
    return kind(category, train=train)
