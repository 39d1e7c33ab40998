"""What a checker found: plain data, for people and for machines."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["error", "warning", "note"]
Kind = Literal["tool", "task", "env"]
_OUTCOMES = ("ok", "note", "warning", "error")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    code: a short name that stays the same, for instance "hangs".  level: "error" breaks rollouts or falsifies rewards;
    "warning" costs success or speed; "note" says what was not checked, or how.  where: the tool, parameter, task or
    row.  what: what broke, with what was expected and what was found.  fix: how to mend it.  example: what shows it.
    """

    code: str
    level: Level
    where: str
    what: str
    fix: str = ""
    example: str = ""


@dataclass(slots=True)
class Check:
    """One thing that was looked at: its name, and in short what was done or found."""

    name: str
    detail: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """ "ok", or the gravest level of its findings."""
        return max((f.level for f in self.findings), key=_OUTCOMES.index, default="ok")


class CheckFailed(AssertionError):
    """Raised where `raises=True` and something is wrong; its text is the report, `report` the object."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(slots=True)
class Report:
    """What became of one tool, task set or env.  `str(report)` is for people, `to_dict()` plain JSON data.

    kind: "tool", "task" or "env".  subject: what was checked.  checks: in the order in which they were made.
    """

    kind: Kind
    subject: str
    checks: list[Check] = field(default_factory=list)
    told: Callable[[dict[str, Any]], None] | None = field(
        default=None, repr=False
    )  # hears of each check and finding at once

    @property
    def findings(self) -> list[Finding]:
        return [finding for check in self.checks for finding in check.findings]

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.level == "error"]

    @property
    def warnings(self) -> list[Finding]:
        return [f for f in self.findings if f.level == "warning"]

    @property
    def notes(self) -> list[Finding]:
        return [f for f in self.findings if f.level == "note"]

    @property
    def codes(self) -> list[str]:
        """The names of the errors and warnings, in order, each once."""
        return list(dict.fromkeys(f.code for f in self.findings if f.level != "note"))

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    def begin(self, name: str) -> Check:
        """The check of that name, begun if it is new; what is found from now on belongs to it."""
        found = next((c for c in self.checks if c.name == name), None)
        if found is None:
            found = Check(name)
        else:
            self.checks.remove(found)
        self.checks.append(found)
        if self.told is not None:
            self.told({"check": name})
        return found

    def add(self, code: str, level: Level, where: str, what: str, fix: str = "", example: str = "") -> None:
        """A finding of the running check; the same thing at the same place, or in the same words, is told once."""
        finding = Finding(code, level, where, " ".join(what.split()), " ".join(fix.split()), example)
        if any(f.code == code and (f.where == where or f.what == finding.what) for f in self.findings):
            return
        if not self.checks:
            self.begin("load")
        self.checks[-1].findings.append(finding)
        if self.told is not None:
            self.told({"check": self.checks[-1].name, "finding": asdict(finding)})

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "subject": self.subject,
            "ok": self.ok,
            "checks": [{"name": c.name, "outcome": c.outcome, "detail": c.detail} for c in self.checks],
            "findings": [{"check": c.name, **asdict(f)} for c in self.checks for f in c.findings],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """The inverse of `to_dict`."""
        checks = [Check(c["name"], c["detail"]) for c in data["checks"]]
        by_name = {c.name: c for c in checks}
        for item in data["findings"]:
            rest = {key: value for key, value in item.items() if key != "check"}
            by_name[item["check"]].findings.append(Finding(**rest))
        return cls(data["kind"], data["subject"], checks)

    def __str__(self) -> str:
        head = f"{self.kind} {self.subject}: {verdict([self])}"
        return "\n".join([head, *("\n" + described(f) for f in sorted_findings(self.findings))])


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The gravest first, otherwise in order."""
    return sorted(findings, key=lambda f: -_OUTCOMES.index(f.level))


def described(finding: Finding, width: int = 100) -> str:
    """A finding as a paragraph: what broke, what shows it, how to mend it."""
    lines = [f"{finding.level}: {finding.code} ({finding.where})", *_wrapped(finding.what, width)]
    if finding.example:
        lines += [f"    example: {line}" for line in finding.example.splitlines()]
    if finding.fix:
        lines += _wrapped(f"mend: {finding.fix}", width)
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ", break_long_words=False)


def verdict(reports: Iterable[Report]) -> str:
    """ "nothing is wrong", or how much is."""
    findings = [f for r in reports for f in r.findings]
    counted = [(level, sum(f.level == level for f in findings)) for level in ("error", "warning")]
    told = [f"{n} {level}{'s' * (n != 1)}" for level, n in counted if n]
    return ", ".join(told) or "nothing is wrong"


def finished(report: Report, *, quiet: bool, raises: bool) -> Report:
    """`report`, printed unless `quiet`; with `raises`, CheckFailed where there is an error."""
    report.told = None
    if raises and not report.ok:
        raise CheckFailed(report)
    if not quiet:
        print(report)
    return report
