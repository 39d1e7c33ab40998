"""A piece of context that was not sampled: the first prompt, or the delta after a turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Text to append to a context, and its ids.

    text: what the template writes there.
    ids: int64 [T], its tokens; empty where there is no tokenizer.
    sources: uint8 [T], a `toolstep.envs.types.Source` for each id.
    inserted: the part of `text` that closes a turn which the model did not close itself ("" if it did).
    notes: what a careful reader should know, in words; empty in the ordinary case.
    """

    text: str
    ids: NDArray[np.int64]
    sources: NDArray[np.uint8]
    inserted: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ids.shape != self.sources.shape or self.ids.ndim != 1:
            raise ValueError(
                f"Segment: ids and sources must be one-dimensional and of one length, got shapes "
                f"{self.ids.shape} and {self.sources.shape}"
            )
