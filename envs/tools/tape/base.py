"""Tape: what stands between the episodes of an env and their tools, and how its lines look."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from toolstep.envs.tools.factory import EpisodeInfo, Offer, Toolbox, ToolFactory
from toolstep.envs.types import CallStatus, ToolResult


class Tape(ABC):
    """`tape=` of an env: writes down what its tools answer (`Recording`), or answers in their place (`Playback`)."""

    def opens(self, factory: ToolFactory) -> bool:
        """Whether an env has to `open` this factory when it is made."""
        return True

    @abstractmethod
    def toolbox(self, own: Iterable[Offer], extra: Iterable[Offer], episode: EpisodeInfo, sample: int) -> Toolbox:
        """The tools of an episode, which `sample` tells from others of its task."""

    def close(self) -> None:  # noqa: B027  nothing to free is the rule
        """Nothing will be written any more."""


def episode_key(episode: EpisodeInfo, sample: int) -> str:
    """The name of an episode on a tape."""
    return f"{episode.seed}/{sample}"


def plain(value: Any) -> Any:
    """The value as it is read back from JSON; what JSON can't hold, as its repr."""
    return json.loads(json.dumps(value, default=repr))


def result_to_dict(result: ToolResult) -> dict[str, Any]:
    """Without the seconds that it took; fields that say nothing are left out."""
    out: dict[str, Any] = {"content": result.content}
    if result.error is not None:
        out["error"] = str(result.error)
    if result.terminate:
        out["terminate"] = True
    if result.reward:
        out["reward"] = result.reward
    if result.answer is not None:
        out["answer"] = result.answer
    return out


def result_from_dict(data: Mapping[str, Any]) -> ToolResult:
    error, answer = data.get("error"), data.get("answer")
    return ToolResult(
        content=str(data["content"]),
        error=None if error is None else CallStatus(error),
        terminate=bool(data.get("terminate", False)),
        reward=float(data.get("reward", 0.0)),
        answer=None if answer is None else str(answer),
    )
