"""Recording: what tools answer, as lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from toolstep.envs.tools.errors import ToolBackendError
from toolstep.envs.tools.factory import EpisodeInfo, Offer, Toolbox
from toolstep.envs.tools.tape.base import Tape, episode_key, plain, result_to_dict
from toolstep.envs.tools.validate import BoundCall
from toolstep.envs.types import ToolCall, ToolResult


class Recording(Tape):
    """Writes down what tools answer.

    write: is given one JSON-able line at a time, the lines of a turn before its results are shown to anybody.
    """

    def __init__(self, write: Callable[[Mapping[str, Any]], None]):
        self._write = write
        self._offers: set[str] = set()  # written by now
        self._running: dict[str, Toolbox] = {}

    def toolbox(self, own: Iterable[Offer], extra: Iterable[Offer], episode: EpisodeInfo, sample: int) -> Toolbox:
        key = episode_key(episode, sample)
        box = _RecordingToolbox(own, extra, episode, self, key)
        self._running[key] = box
        self.write(box, {"task": episode.task.id, "offer": self.offer(box.offer())})
        return box

    def offer(self, offer: Mapping[str, Any]) -> str:
        """The name of an offer of tools, which is written down once."""
        text = json.dumps(offer)
        name = blake2b(text.encode(), digest_size=8).hexdigest()
        if name not in self._offers:
            self._write({"offer": name, **offer})
            self._offers.add(name)
        return name

    def write(self, box: _RecordingToolbox, line: Mapping[str, Any]) -> None:
        """Write a line of an episode.  RuntimeError where another one of the same seed and sample has begun since."""
        if self._running.get(box.key) is not box:
            raise RuntimeError(
                f"two episodes are recorded as {box.key} (task seed / sample) at the same time: tell the samples "
                'of a task apart with reset(options={"samples": [...]})'
            )
        self._write({"episode": box.key, **line})

    def forget(self, box: _RecordingToolbox) -> None:
        if self._running.get(box.key) is box:
            del self._running[box.key]


class _RecordingToolbox(Toolbox):
    """The tools themselves; what passes between them and the episode is written down."""

    def __init__(
        self, own: Iterable[Offer], extra: Iterable[Offer], episode: EpisodeInfo, recording: Recording, key: str
    ):
        self.key = key
        self._recording = recording
        self._turn = 0
        super().__init__(own, extra, episode)
        self._opening = dict(self.tools)

    def offer(self) -> dict[str, Any]:
        """The names of all tools, in order, and the schemas of those that no playback makes: a server's, new ones."""
        external = self.external_names()
        schemas = [
            t.schema["function"]
            for name, t in self.tools.items()
            if name in external or self._opening.get(name) is not t
        ]
        return {"names": list(self.tools), "schemas": schemas}

    def answers(self, turn: int, calls: Sequence[BoundCall]) -> None:
        """They are to be run."""
        self._turn = turn

    def ready(self, names: Collection[str]) -> None:
        with self._failures("ready"):
            super().ready(names)

    def heard(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> None:
        for call, result in zip(calls, results, strict=True):
            said = {"call": call.id, "name": call.name, "arguments": plain(call.parsed)}
            self._recording.write(self, {"turn": self._turn, **said, "result": result_to_dict(result)})

    def changes(self) -> bool:
        with self._failures("changes"):
            changed = super().changes()
        if changed:
            self._recording.write(self, {"turn": self._turn, "offer": self._recording.offer(self.offer())})
        return changed

    def snapshot(self) -> dict[str, Any]:
        state = super().snapshot()
        self._recording.write(self, {"state": plain(state)})
        return state

    @contextmanager
    def _failures(self, where: str) -> Iterator[None]:
        try:
            yield
        except ToolBackendError as error:
            self._recording.write(self, {"turn": self._turn, "failure": where, "message": str(error)})
            raise

    def close(self) -> None:
        super().close()
        self._recording.forget(self)
