"""`check_tool`: what would happen to a tool in an env, before it happens there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolstep.envs.checker.bench import Bench, Broken
from toolstep.envs.checker.judge import Bounds, judge
from toolstep.envs.checker.leaks import Holdings, left_since
from toolstep.envs.checker.observe import Seen
from toolstep.envs.checker.repeats import check_again, check_rows, usable
from toolstep.envs.checker.report import Report, finished
from toolstep.envs.checker.samples import NoSample, sample_arguments
from toolstep.envs.checker.schemas import check_words
from toolstep.envs.checker.shop import Box, Call, Shop
from toolstep.envs.tasks.base import TaskSet
from toolstep.envs.tools.encode import shorten
from toolstep.envs.tools.errors import ArgumentError
from toolstep.envs.tools.factory import Offer, ToolFactory, as_offer
from toolstep.envs.tools.owner import SharedStateError
from toolstep.envs.tools.process import WorkerError, pickle_call
from toolstep.envs.tools.tool import Tool
from toolstep.envs.types import Message, Task

Examples = Mapping[str, Sequence[Mapping[str, Any]]] | Sequence[Mapping[str, Any]]
_CLOSED = 2  # envs that are made and closed in the search for leaks
_TASK = Task("check", (Message("user", "Try the tools."),))


def check_tool(
    tools: Any,
    *,
    examples: Examples | None = None,
    calls: int = 20,
    rows: int = 3,
    timeout: float = 5.0,
    slow: float = 1.0,
    max_chars: int = 65_536,
    seed: int = 0,
    task: Task | None = None,
    quiet: bool = False,
    raises: bool = False,
    bench: Bench | None = None,
) -> Report:
    """Look at tools, call them with arguments made from their schemas, and say what breaks and how to mend it.

    Args:
        tools: what `tools=` of an env takes, or one item of it; or a TaskSet, whose tools for one task are checked.
        examples: arguments that mean something to the tools, tried first: a list for a single tool, else by name.
        calls: calls of each tool.  rows: episodes that play at the same time.
        timeout: seconds that one call may take.  slow: seconds beyond which even the fastest call is slow.
        max_chars: characters beyond which a result is large.
        seed: of the arguments, and of the episode (`EpisodeInfo.seed`).
        task: that factories are told of; by default a made-up one.
        quiet: print nothing.  raises: raise CheckFailed where there is an error.
        bench: where the tools are made; for those who run several checks.

    What is checked: that an env takes the tools, and each episode gets its own; names, descriptions and schemas; calls
    (exceptions, deadlines, exits, what is returned and how large it is); the same calls again in a new episode, and in
    several episodes at once; that nothing is left behind.  A call that hangs is given up after `timeout`.  Functions
    that run "inline" or in a thread are called in this process: one that calls os._exit ends it, and one that never
    lets go of Python's lock stops it; `toolstep check` runs all of this in a process of its own and survives both.
    """
    subject = _subject(tools)
    own = bench or Bench()
    report = Report("tool", subject, told=own.journal)
    try:
        found = _Tools(report, own, examples, calls, rows, timeout, seed, Bounds(slow, max_chars))
        found.look(tools, task)
    finally:
        if bench is None:
            own.close()
    return finished(report, quiet=quiet, raises=raises)


class _Tools:
    def __init__(
        self,
        report: Report,
        bench: Bench,
        examples: Examples | None,
        calls: int,
        rows: int,
        timeout: float,
        seed: int,
        bounds: Bounds,
    ) -> None:
        self.report, self.bench, self.bounds = report, bench, bounds
        self.examples, self.calls, self.rows, self.timeout, self.seed = examples, calls, rows, timeout, seed
        self.hangs = False

    def look(self, tools: Any, task: Task | None) -> None:
        """All checks, as far as they can be made."""
        self.report.begin("an env takes it")
        try:
            offers, task = self._offers(tools, task)
            with Shop(offers, task, self.bench, timeout=self.timeout, seed=self.seed) as shop:
                again = self._look(shop)
            self._leaks(lambda: Shop(offers, task, self.bench, timeout=self.timeout, seed=self.seed), again)
        except Broken as broken:
            self._broken(broken)

    def _look(self, shop: Shop) -> list[Call]:
        """Returns calls that can be made again."""
        report = self.report
        shop.open()
        with shop.box() as box:
            report.checks[-1].detail = shorten(", ".join(box.tools), 60)
            report.begin("schema")
            good = {name for name, tool in box.tools.items() if check_words(tool, report)}
            good -= {tool.name for tool in box.tools.values() if not self._importable(tool)}
            report.begin("calls")
            made = [call for name, tool in box.tools.items() if name in good for call in self._samples(box, tool)]
            calls = self._call(box, made)
            for name, tool in box.tools.items():
                judge(tool, [c for c in calls if c.name == name], self.bounds, report)
            failed = sum(c.status is not None for c in calls)
            report.checks[-1].detail = f"{len(calls)} calls, {failed} answered with an error" if calls else "none"
        self.hangs = any(not c.returned for c in calls)
        report.begin("a new episode")
        again = usable(calls, self.bounds.max_chars)
        different = check_again(shop, again, report) if again else set()
        report.checks[-1].detail = f"{len(again)} calls repeated"
        report.begin("rows at once")
        together: list[Call] = [(c.name, c.arguments) for c in again if c.name not in different]
        if together:
            check_rows(shop, together, self.rows, report)
        report.checks[-1].detail = f"{self.rows} episodes" if together else "not looked at: no call can be repeated"
        return [(c.name, c.arguments) for c in again]

    def _leaks(self, shop: Callable[[], Shop], calls: Sequence[Call]) -> None:
        """Envs that are made and closed: what a library keeps from its first use on is no leak, what comes again is."""
        self.report.begin("nothing left behind")
        if self.hangs:
            self.report.checks[-1].detail = "not looked at: something hangs"
            return
        before = Holdings.now()
        for _ in range(_CLOSED):
            with shop() as made:
                made.open()
                with made.box() as box:
                    box.run(list({name: (name, arguments) for name, arguments in calls}.values()))
        self.report.checks[-1].detail = f"{_CLOSED} envs made and closed"
        if left := left_since(before):
            self.report.add(
                "leaks",
                "error",
                self.report.subject,
                f"When {_CLOSED} envs were made and closed there is still {' and '.join(left)}.",
                "Free it in close() of the object that an episode gets, or of the factory.",
            )

    def _offers(self, tools: Any, task: Task | None) -> tuple[Callable[[], Sequence[Offer]], Task]:
        if isinstance(tools, TaskSet):
            drawn = task or self.bench.run("task(0)", lambda: tools.task(0), self.timeout)
            return lambda: list(tools.tools(drawn)), drawn
        items = list(tools) if isinstance(tools, list | tuple) else [tools]
        made = self.bench.run(
            "making tools of what was given", lambda: [as_offer(item) for item in items], self.timeout
        )
        return lambda: made, task or _TASK

    def _importable(self, tool: Tool) -> bool:
        """Whether a tool for a worker process can get there."""
        if tool.run_in != "process":
            return True
        try:
            pickle_call(tool, {})
        except WorkerError as error:
            fix = "Define the function at the top of a module; a lambda or an inner function cannot travel."
            self.report.add("not-importable", "error", tool.name, str(error), fix)
            return False
        return True

    def _samples(self, box: Box, tool: Tool) -> list[Call]:
        """Arguments that the tool takes."""
        given = self.examples.get(tool.name, ()) if isinstance(self.examples, Mapping) else self.examples or ()
        out: list[Call] = []
        refusals: list[tuple[dict[str, Any], str]] = []
        try:
            made = sample_arguments(tool.parameters, self.calls, self.seed)
        except NoSample as error:
            made = []
            if not given:
                self.report.add(
                    "no-sample",
                    "note",
                    tool.name,
                    f"It was not called, because no arguments could be made for it: {error}.",
                    "Give some: Field(examples=[...]), or check_tool(..., examples=[{...}]).",
                )
        for arguments in [*map(dict, given), *made]:
            why = box.refused(tool.name, arguments)
            if why:
                refusals.append((arguments, why))
            else:
                out.append((tool.name, arguments))
        if refusals:
            arguments, why = refusals[0]
            self.report.add(
                "schema-promises-more",
                "error" if not out else "warning",
                tool.name,
                f"Its schema allows arguments that its validation refuses ({len(refusals)} of "
                f"{len(refusals) + len(out)}): {shorten(why, 300)}",
                "Say in the schema what is allowed (Literal, Field(ge=..., pattern=...)), or in the description.",
                f"{tool.name} with {shorten(repr(arguments), 120)}",
            )
        return out[: max(self.calls, len(given))]

    def _call(self, box: Box, calls: Sequence[Call]) -> list[Seen]:
        """All of them but those of a tool that once did not come back."""
        out: list[Seen] = []
        gone: set[str] = set()
        for name, arguments in calls:
            if name not in gone:
                out += box.run([(name, arguments)])
                if not out[-1].returned:
                    gone.add(name)
        return out

    def _broken(self, broken: Broken) -> None:
        error = broken.error
        if isinstance(error, SharedStateError):
            fix = "Pass the class, or a function that makes a new object: tools=[Basket], tools=[per_episode(make)]."
            self.report.add("shared-state", "error", self.report.subject, str(error), fix)
        elif isinstance(error, ArgumentError | TypeError | ValueError | ImportError) and not broken.hangs:
            self.report.add("not-a-tool", "error", self.report.subject, str(broken), "See what the message names.")
        else:
            self.hangs = self.hangs or broken.hangs
            code = "hangs" if broken.hangs else "raises"
            fix = "Making and closing tools must be quick: start what is slow with the first call, with a deadline."
            self.report.add(code, "error", self.report.subject, str(broken), fix if broken.hangs else "Mend the code.")


def _subject(tools: Any) -> str:
    if isinstance(tools, list | tuple):
        return shorten(", ".join(map(_subject, tools)), 60)
    if isinstance(tools, str):
        return tools
    if isinstance(tools, ToolFactory | TaskSet):
        return str(getattr(tools, "name", "") or type(tools).__name__)
    return str(getattr(tools, "name", None) or getattr(tools, "__name__", None) or type(tools).__name__)
