"""`finish` (or `submit`): the call that ends an episode with an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from toolstep.envs.tools.factory import EpisodeInfo, ToolFactory
from toolstep.envs.tools.tool import Tool, tool
from toolstep.envs.types import ToolResult


def _as_text(value: Any) -> Any:
    """A number is an answer too, and models write it as one."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


@dataclass(frozen=True)
class Finish(ToolFactory):
    """A tool that ends the episode: it is scored on `answer`, and `stop_reason` is "tool_ended".

    The other calls of the same turn are run as well; of two answers in one turn the first counts.
    """

    name: str = "finish"

    def make(self, episode: EpisodeInfo) -> Tool:
        return tool(_finish, name=self.name, run_in="inline")


def _finish(answer: Annotated[str, BeforeValidator(_as_text)]) -> ToolResult:
    """End the task with your final answer.  Nothing can be done after it.

    Args:
        answer: The final answer.
    """
    return ToolResult("(finished)", terminate=True, answer=answer)
