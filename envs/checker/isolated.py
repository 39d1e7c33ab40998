"""A whole check in a process of its own: nothing that it checks can end it or keep it from ending."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolstep.envs.checker.report import Finding, Kind, Report
from toolstep.envs.checker.target import UnknownTarget, find_target
from toolstep.envs.tools.executor import Executor
from toolstep.envs.tools.tool import Tool
from toolstep.envs.tools.validate import BoundCall
from toolstep.envs.types import ToolCall, ToolResult

_GRACE = 10.0  # seconds beyond a step's own deadline: then the process itself no longer answers
_START = 120.0  # seconds to import what is checked
_LONGEST = 24 * 3600.0  # a check ends by its steps' deadlines, not by this one
_POLL = 0.05
_DIGEST_SEEDS = 20


def check_target(
    name: str, *, kind: Kind | None = None, timeout: float | None = None, tokenizer: str | None = None
) -> list[Report]:
    """Check what `name` means (see `find_target`) and what it consists of: an env, its task set, its tools.

    timeout: seconds that one call, task or answer may take.  tokenizer: the name of one, for the token view of envs.

    Whatever is checked may hang for good, exit or crash: that is a finding then, and names what was under way.

    Raises:
        UnknownTarget: there is no such thing.
    """
    with tempfile.TemporaryDirectory(prefix="toolstep-") as folder:
        journal = Path(folder, "journal")
        journal.touch()
        arguments = {"name": name, "kind": kind, "timeout": timeout, "tokenizer": tokenizer, "journal": str(journal)}
        answer, stopped = _in_process(run, arguments, journal)
        if answer is not None and "unknown" in answer:
            raise UnknownTarget(answer["unknown"])
        if answer is None:
            return _interrupted(name, journal, stopped)
        reports = [Report.from_dict(data) for data in answer["reports"]]
        _other_process(name, kind, reports, answer["digest"], journal)
        return reports


# ------------------------------------------------------------------------------------------ in the other process
def run(name: str, kind: Kind | None, timeout: float | None, tokenizer: str | None, journal: str) -> dict[str, Any]:
    """All checks of a target, as JSON data; what happens meanwhile goes to the file `journal`, a line each."""
    from toolstep.envs.checker.bench import Bench
    from toolstep.envs.checker.every import check_all, digest_of

    with Path(journal).open("a", encoding="utf-8", buffering=1) as lines:

        def tell(item: Mapping[str, Any]) -> None:
            lines.write(json.dumps(item) + "\n")

        tell({"begins": f"importing {name}", "seconds": _START})
        try:
            target = find_target(name, kind)
        except UnknownTarget as error:
            return {"unknown": str(error)}
        except BaseException as error:  # the user's module
            return {"unknown": f"{name} cannot be imported: {type(error).__name__}: {error}"}
        with Bench(tell) as bench:
            reports = check_all(target, bench, timeout=timeout, tokenizer=tokenizer)
            return {"reports": [r.to_dict() for r in reports], "digest": digest_of(target, bench, _DIGEST_SEEDS)}


def run_digest(name: str, kind: Kind | None, journal: str) -> dict[str, Any]:
    """The tasks of a target as another process sees them."""
    from toolstep.envs.checker.bench import Bench
    from toolstep.envs.checker.every import digest_of

    with Bench() as bench:
        return {"digest": digest_of(find_target(name, kind), bench, _DIGEST_SEEDS)}


# ---------------------------------------------------------------------------------------------- in this process
def _in_process(function: Any, arguments: dict[str, Any], journal: Path) -> tuple[dict[str, Any] | None, str]:
    """What `function(**arguments)` returns in a process of its own; None, and why, where it does not return."""
    tool = Tool.from_schema(function, name="check", parameters={"type": "object"}, run_in="process", timeout=_LONGEST)
    call = BoundCall(ToolCall("check", "check"), tool, arguments)
    ended = threading.Event()
    results: list[ToolResult] = []

    def done(found: list[ToolResult]) -> None:
        results.extend(found)
        ended.set()

    with Executor(1, num_processes=1) as executor:
        batch = executor.start([call], timeout=_LONGEST, done=done)
        stuck = ""
        watch = _Watch(journal)
        while not ended.wait(_POLL):
            if not stuck and (stuck := watch.overdue()):
                executor.cancel(batch)
    if stuck:
        return None, stuck
    result = results[0]
    content = json.loads(result.content)
    return (None, str(content["message"])) if result.error is not None else (dict(content), "")


class _Watch:
    """Follows a journal, and says when what it tells of should have ended."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._size = -1
        self._until = time.monotonic() + _START

    def overdue(self) -> str:
        """What did not end in time; "" where there is time left."""
        size = self._journal.stat().st_size
        if size != self._size:
            self._size = size
            seconds = [e["seconds"] for e in _events(self._journal) if "begins" in e]
            self._until = time.monotonic() + (seconds[-1] if seconds else _START) + _GRACE
        if time.monotonic() < self._until:
            return ""
        return "the process that runs it does not answer any more (something never lets go of Python's lock)"


def _events(journal: Path) -> list[dict[str, Any]]:
    out = []
    for line in journal.read_text(encoding="utf-8").splitlines():
        try:
            out.append(json.loads(line))
        except ValueError:  # half a line
            continue
    return out


def _interrupted(name: str, journal: Path, why: str) -> list[Report]:
    """The reports of a check whose process ended: what was found until then, and what it was at."""
    reports: list[Report] = []
    at = "starting"
    for event in _events(journal):
        at = event.get("begins", at)
        if "kind" in event:
            reports.append(Report(event["kind"], name))
        if "check" in event and reports:
            reports[-1].begin(event["check"])
            if "finding" in event:
                found = Finding(**event["finding"])
                reports[-1].add(found.code, found.level, found.where, found.what, found.fix, found.example)
    if not reports:
        reports.append(Report("tool", name))
        reports[-1].begin("loading")
    exits = "exit code" in why
    code = "exits" if exits else "dies" if "killed by signal" in why else "hangs"
    fix = {
        "exits": 'Raise an exception instead of os._exit; what may end its process belongs into run_in="process".',
        "dies": 'Look for a crash in native code, or for too much memory; run_in="process" shields others.',
        "hangs": 'Bound what it computes (a regular expression, a power), or use run_in="process", which is killed.',
    }[code]
    what = f"It was at {at}, and there {why}. What comes after it was not checked."
    reports[-1].add(code, "error", name, what, fix, at)
    return reports


def _other_process(
    name: str, kind: Kind | None, reports: list[Report], digest: list[str] | None, journal: Path
) -> None:
    """Whether another process, in which Python hashes otherwise, draws the same tasks."""
    report = next((r for r in reports if r.kind == "task" and not r.errors), None)
    if report is None or not digest:
        return
    with _other_hashes():
        answer, _ = _in_process(run_digest, {"name": name, "kind": kind, "journal": str(journal)}, journal)
    other = None if answer is None else answer["digest"]
    report.begin("another process")
    report.checks[-1].detail = f"{len(digest)} tasks drawn again"
    for seed, (one, two) in enumerate(zip(digest, other or (), strict=False)):
        if one != two:
            at = next((i for i, (a, b) in enumerate(zip(one, two)) if a != b), 0)
            report.add(
                "other-process",
                "error",
                f"task({seed}, 'train')",
                f"Another process draws another task: ...{one[max(0, at - 30) : at + 50]!r} here, "
                f"...{two[max(0, at - 30) : at + 50]!r} there.",
                "Iterate over sorted(...) and never over a set, and use no hash(): both change with each process.",
            )
            return


@contextmanager
def _other_hashes() -> Iterator[None]:
    """Processes that start meanwhile hash text otherwise, even where the user has fixed how."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "101" if before != "101" else "102"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before
