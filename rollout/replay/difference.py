"""Difference: one place where an episode is not what the file says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from toolstep.envs.types import Source

SHOWN = 32  # characters of a text on each side of a difference
MOST = 200  # characters of a value


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an episode, played again, is not what was recorded.

    line, task_id, seed, sample_index: the episode, as the file has it.
    turn: as in `Trajectory.turn`: an observation belongs to the turn that it is read in, a reward to the turn that it
        is paid for.
    field: of the record, such as "token_ids", "source" (whence the mask comes), "messages[3].content", "turn_rewards".
    position: index in a list of ids or in a text; None elsewhere.
    expected: what the file says.  found: what there is now.
    expected_text, found_text: what stands around the position; ids are decoded.  The place itself is in «».
    """

    line: int
    task_id: str
    seed: int
    sample_index: int
    turn: int
    field: str
    expected: Any
    found: Any
    position: int | None = None
    expected_text: str = ""
    found_text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return asdict(self)

    def __str__(self) -> str:
        episode = f"episode {self.line} (task {self.task_id!r}, seed {self.seed}, sample {self.sample_index})"
        place = self.field if self.position is None else f"{self.field}[{self.position}]"
        expected, found = self._shown(self.expected), self._shown(self.found)
        lines = [f"{episode}, turn {self.turn}, {place}: expected {expected}, found {found}"]
        if self.expected_text or self.found_text:
            lines += [f"  expected: {self.expected_text!r}", f"  found:    {self.found_text!r}"]
        return "\n".join(lines)

    def _shown(self, value: Any) -> str:
        """A value in one line, not too long."""
        text = value if isinstance(value, _Word) else repr(value)
        if self.field == "source" and value in list(Source):
            mask = int(value == Source.SAMPLED)
            text = f"{text} ({Source(value).name}, mask {mask})"
        return text if len(text) <= MOST else f"{text[:MOST]}... ({len(text)} characters)"


class _Word(str):
    """Said of a value, rather than one."""

    __slots__ = ()


NOTHING = _Word("nothing")
GOES_ON = _Word("that the episode goes on")


def around(text: str, start: int, end: int) -> str:
    """`text` near [start, end), which stands in «»; dots where it goes on."""
    left, right = max(0, start - SHOWN), min(len(text), end + SHOWN)
    return (
        ("…" if left else "")
        + f"{text[left:start]}«{text[start:end]}»{text[end:right]}"
        + ("…" if right < len(text) else "")
    )
