"""Task sets: where problems come from, and how an episode is scored."""

from toolstep.envs.tasks.base import NoMenu, NoOracle, Split, TaskError, TaskSet
from toolstep.envs.tasks.conversation import example_messages
from toolstep.envs.tasks.jsonl import JsonlTasks, read_tasks
from toolstep.envs.tasks.lists import FunctionTasks, TaskList
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tasks.registry import TaskOptionError, load_tasks, register_tasks, task_names

__all__ = [
    "FunctionTasks",
    "JsonlTasks",
    "NoMenu",
    "NoOracle",
    "Problem",
    "ProceduralTasks",
    "Split",
    "TaskError",
    "TaskList",
    "TaskOptionError",
    "TaskSet",
    "example_messages",
    "load_tasks",
    "read_tasks",
    "register_tasks",
    "task_names",
]
