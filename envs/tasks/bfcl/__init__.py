"""toolstep/BFCL-<category>-v0: the Berkeley Function-Calling Leaderboard, without its `eval`."""

from toolstep.envs.tasks.bfcl.data import INSTALL, MULTI_TURN, SINGLE_TURN, BFCLMissing
from toolstep.envs.tasks.bfcl.make import bfcl_tasks
from toolstep.envs.tasks.bfcl.multi_turn import MultiTurnTasks, turns_passed
from toolstep.envs.tasks.bfcl.single_turn import SingleTurnTasks

__all__ = [
    "INSTALL",
    "MULTI_TURN",
    "SINGLE_TURN",
    "BFCLMissing",
    "MultiTurnTasks",
    "SingleTurnTasks",
    "bfcl_tasks",
    "turns_passed",
]
