"""`clock`: the date and time of the episode, which is not that of the machine."""

from __future__ import annotations

import difflib
import functools
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime

from toolstep.envs.tools.factory import EpisodeInfo, ToolFactory
from toolstep.envs.tools.tool import Tool, tool

NOW = datetime(2025, 1, 1, 12, 0, tzinfo=UTC)  # where nothing else is said; the Python tools start there too


@dataclass(frozen=True)
class Clock(ToolFactory):
    """A tool `clock(timezone)` that stands still at `now`, so that an episode can be repeated.

    Raises ValueError where `now` has no time zone.
    """

    now: datetime = NOW
    name: str = "clock"

    def __post_init__(self) -> None:
        if self.now.utcoffset() is None:
            raise ValueError(f"Clock: now must have a time zone (tzinfo=UTC, say), got {self.now!r}")

    def make(self, episode: EpisodeInfo) -> Tool:
        now = self.now

        def clock(timezone: str = "UTC") -> str:
            """The current date and time.

            Args:
                timezone: Where it is asked for: "UTC", or a name such as "Europe/Berlin".
            """
            here = now.astimezone(find_zone(timezone))
            return f"{here.isoformat(timespec='seconds')} ({here:%A})"

        return tool(clock, name=self.name, run_in="inline")


def find_zone(name: str) -> zoneinfo.ZoneInfo:
    """The time zone of that name, case and spaces aside; a city alone is enough.

    Raises:
        ValueError: there is none; the message has the nearest names.
    """
    zones = _zones()
    key = "_".join(name[:100].casefold().split())
    if key in zones:
        return zoneinfo.ZoneInfo(zones[key])
    near = [zones[k] for k in difflib.get_close_matches(key, zones, n=3)]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f'unknown time zone {name[:100]!r}{hint} Give a name such as "Europe/Berlin", or "UTC"')


@functools.cache
def _zones() -> dict[str, str]:
    """Names of zones by their spelling without case, and cities alone where only one zone has that name."""
    names = sorted(zoneinfo.available_timezones())
    cities: dict[str, list[str]] = {}
    for name in names:
        cities.setdefault(name.rpartition("/")[2].casefold(), []).append(name)
    known = {city: found[0] for city, found in cities.items() if len(found) == 1}
    return known | {name.casefold(): name for name in names}
