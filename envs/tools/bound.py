"""The tools of one episode that all belong to one object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from toolstep.envs.tools.tool import Tool


class BoundTools(Sequence[Tool]):
    """What a `ToolFactory` makes where its tools are methods of one object: the object, and a list of the tools."""

    _tools: Sequence[Tool] = ()

    @overload
    def __getitem__(self, index: int) -> Tool: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tool]: ...
    def __getitem__(self, index: int | slice) -> Tool | Sequence[Tool]:
        return self._tools[index]

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools)
