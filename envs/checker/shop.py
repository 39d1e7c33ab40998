"""Tools of episodes, made and called as an env does it, with each call observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from toolstep.envs.checker.bench import Bench
from toolstep.envs.checker.observe import Seen, observed, seen
from toolstep.envs.tools.errors import ArgumentError
from toolstep.envs.tools.executor import Executor
from toolstep.envs.tools.factory import EpisodeInfo, Offer, Toolbox, ToolFactory
from toolstep.envs.tools.tool import Tool
from toolstep.envs.tools.validate import BoundCall
from toolstep.envs.types import Task, ToolCall

Call = tuple[str, dict[str, Any]]
MAKE_LIMIT = 30.0  # seconds to make the tools of an episode
READY_LIMIT = 120.0  # seconds until what stands behind them (a server, say) has started
THREADS = 32


class Shop:
    """Makes boxes of tools for episodes of one task.

    offers: gives what `tools=` would hold.  timeout: seconds that one call may take.
    """

    def __init__(self, offers: Callable[[], Sequence[Offer]], task: Task, bench: Bench, *, timeout: float, seed: int):
        self.bench = bench
        self.timeout = timeout
        self._offers = offers
        self._episode = EpisodeInfo(task, seed, timeout)
        self._opened: list[ToolFactory] = []
        self._executor = Executor(THREADS, max_abandoned=THREADS)

    def open(self) -> None:
        """Let factories find out what cannot work, as an env does when it is made."""
        for offer in self._offers():
            if isinstance(offer, ToolFactory):
                self.bench.run(f"{type(offer).__name__}.open()", offer.open, READY_LIMIT)
                self._opened.append(offer)

    def box(self) -> Box:
        """The tools of a new episode."""
        return self.bench.run("making the tools of an episode", lambda: Box(self, self._toolbox()), MAKE_LIMIT)

    def _toolbox(self) -> Toolbox:
        return Toolbox(self._offers(), (), self._episode)

    def run(self, calls: Sequence[tuple[Box, Call]]) -> list[Seen]:
        """All these calls at once; "inline" ones one after the other, as an env's own thread runs them."""
        out: list[Seen | None] = [None] * len(calls)
        together: list[tuple[int, BoundCall]] = []
        for i, (box, (name, arguments)) in enumerate(calls):
            bound = BoundCall(
                ToolCall("call00000", name, parsed=arguments), box.observed[name], box.bind(name, arguments)
            )
            if box.tools[name].run_in == "inline":
                out[i] = self._run([bound])[0]
            else:
                together.append((i, bound))
        for (i, _), result in zip(together, self._run([bound for _, bound in together]), strict=True):
            out[i] = result
        return [s for s in out if s is not None]

    def _run(self, calls: Sequence[BoundCall]) -> list[Seen]:
        if not calls:
            return []
        self.bench.tell(", ".join(_shown(call) for call in calls[:4]), self.timeout + READY_LIMIT * _in_process(calls))
        results = self._executor.run(calls, timeout=self.timeout)
        return [seen(c.tool.name, dict(c.call.parsed or {}), result) for c, result in zip(calls, results, strict=True)]

    def close(self) -> None:
        self._executor.close()
        for offer in self._opened:
            self.bench.run(f"{type(offer).__name__}.close()", offer.close, MAKE_LIMIT)

    def __enter__(self) -> Shop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Box:
    """The tools of one episode."""

    def __init__(self, shop: Shop, box: Toolbox) -> None:
        self._shop = shop
        self._box = box
        self._ready: set[str] = set()
        self.tools: dict[str, Tool] = dict(box.tools)
        self.observed = {name: observed(tool, shop.timeout) for name, tool in box.tools.items()}

    def bind(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the tool takes them.  Raises ArgumentError; Broken where a validator does not return."""
        title = f"checking the arguments of {name}"
        return self._shop.bench.run(title, lambda: _bound(self.tools[name], arguments), self._shop.timeout)

    def refused(self, name: str, arguments: dict[str, Any]) -> str:
        """Why the tool refuses these arguments; "" where it takes them."""
        title = f"checking the arguments of {name}"
        return self._shop.bench.run(title, lambda: _refusal(self.tools[name], arguments), self._shop.timeout)

    def run(self, calls: Sequence[Call]) -> list[Seen]:
        """One call after the other."""
        out = []
        for call in calls:
            self.ready(call[0])
            out += self._shop.run([(self, call)])
        return out

    def ready(self, name: str) -> None:
        """Wait for what stands behind the tool."""
        if name not in self._ready:
            self._ready.add(name)
            self._shop.bench.run(f"starting what {name} needs", lambda: self._box.ready([name]), READY_LIMIT)

    def close(self) -> None:
        self._shop.bench.run("closing the tools of an episode", self._box.close, MAKE_LIMIT)

    def __enter__(self) -> Box:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bound(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    return tool.bind(arguments)


def _refusal(tool: Tool, arguments: dict[str, Any]) -> str:
    try:
        tool.bind(arguments)
    except ArgumentError as error:
        return error.message
    return ""


def _shown(call: BoundCall) -> str:
    from toolstep.envs.checker.observe import call_text

    return call_text(call.tool.name, dict(call.call.parsed or {}))


def _in_process(calls: Sequence[BoundCall]) -> bool:
    return any(call.tool.run_in == "process" for call in calls)
