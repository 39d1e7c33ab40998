"""What is counted, as the shapes that the page draws.  Lengths are units of an SVG's view box."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolstep.rollout.evaluate import TagResult

WIDTH, HEIGHT = 320.0, 96.0  # of a histogram, without its labels
_BARS = 24  # at most, in a histogram
_LABELLED = 10  # bars that each get a number
_GAP = 2.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One bin of a histogram.  low, high: the least and the greatest whole number in it."""

    low: int
    high: int
    count: int
    x: float
    y: float
    width: float
    height: float
    label: bool  # whether its count is written above it

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 1)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Whole numbers, binned.  ticks: (x, text) of the axis.  median, high (90th percentile), most: of the numbers."""

    title: str
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]
    median: float
    high: float
    most: int

    @property
    def caption(self) -> str:
        return f"median {self.median:,g}, 90% at most {self.high:,.0f}, longest {self.most:,}"


def histogram(title: str, values: Sequence[int]) -> Histogram | None:
    """The histogram of `values`; None where there are none, or nothing but zeros.

    Bins are 1, 2 or 5 times a power of ten wide, the least that makes no more than 24 of them.
    """
    numbers = np.asarray(values, dtype=np.int64)
    if not numbers.size or not numbers.any():
        return None
    low, most = int(numbers.min()), int(numbers.max())
    step = _step((most - low + 1) / _BARS)
    first = low // step
    counts = np.bincount(numbers // step - first)
    place = WIDTH / max(counts.size, 8)  # few bars are no walls
    left = (WIDTH - place * counts.size) / 2
    highest = int(counts.max())
    bars = []
    for k, n in enumerate(counts.tolist()):
        height = round(HEIGHT * n / highest, 1)
        if n:
            height = max(height, 1.0)  # seen, however few
        bars.append(
            Bar(
                low=(first + k) * step,
                high=(first + k + 1) * step - 1,
                count=n,
                x=round(left + k * place + _GAP / 2, 1),
                y=round(HEIGHT - height, 1),
                width=round(place - _GAP, 1),
                height=height,
                label=n > 0 and (counts.size <= _LABELLED or n == highest),
            )
        )
    return Histogram(
        title=title,
        bars=tuple(bars),
        ticks=_ticks(bars, step, place),
        median=float(np.median(numbers)),
        high=float(np.percentile(numbers, 90, method="higher")),
        most=most,
    )


def _step(least: float) -> int:
    """1, 2 or 5 times a power of ten, and at least `least`."""
    if least <= 1:
        return 1
    power = 10 ** math.floor(math.log10(least))
    return next(int(m * power) for m in (1, 2, 5, 10) if m * power >= least)


def _ticks(bars: Sequence[Bar], step: int, place: float) -> tuple[tuple[float, str], ...]:
    """Up to eight: under the middle of bars of one number each, else where a bin begins."""
    every = math.ceil(len(bars) / 8)
    at = [b for k, b in enumerate(bars) if k % every == 0]
    return tuple((b.middle if step == 1 else round(b.x - _GAP / 2, 1), f"{b.low:,}") for b in at)


def in_order(values: Mapping[str, TagResult]) -> list[tuple[str, TagResult]]:
    """By name, numbers in it as numbers: level 10 comes behind level 9."""
    return sorted(
        values.items(), key=lambda item: [(not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in _parts(item[0])]
    )


def _parts(name: str) -> list[str]:
    return [p for p in re.split(r"([0-9]+)", name) if p]
