"""Task sets that come in families: one class, and a member for each category of a benchmark or each kind of puzzle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """The sets `toolstep/NAME-<member>-v0`.

    factory: "module:attribute" of what makes the set of a member.  about: one line.  needs: how to install what it is
    made of.  options: of the environments that are registered under these names.
    """

    name: str
    factory: str
    members: Sequence[str]
    about: str
    needs: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def id(self, member: str) -> str:
        return f"toolstep/{self.name}-{member}-v0"

    @property
    def pattern(self) -> str:
        """All its names in one."""
        return self.id("*")


FAMILIES = (
    Family(
        "BFCL",
        "toolstep.envs.tasks.bfcl:bfcl_tasks",
        (
            "multi_turn_base",
            "multi_turn_miss_func",
            "multi_turn_miss_param",
            "multi_turn_long_context",
            "simple_python",
            "multiple",
            "parallel",
            "parallel_multiple",
            "irrelevance",
            "live_simple",
            "live_multiple",
            "live_parallel",
            "live_parallel_multiple",
            "live_irrelevance",
            "live_relevance",
        ),
        "The Berkeley Function-Calling Leaderboard (v4), with verdicts equal to its official checker.",
        "pip install --no-deps bfcl-eval==2026.3.23 mpmath",
        {"split": "test"},  # a benchmark: there is no training part unless one is asked for
    ),
    Family(
        "ReasoningGym",
        "toolstep.envs.tasks.reasoning_gym:ReasoningGymTasks",
        (
            "chain_sum",
            "basic_arithmetic",
            "products",
            "decimal_arithmetic",
            "decimal_chain_sum",
            "gcd",
            "lcm",
            "fraction_simplification",
            "power_function",
            "bitwise_arithmetic",
            "gsm_symbolic",
            "leg_counting",
            "dice",
            "simple_equations",
            "number_format",
            "calendar_arithmetic",
            "time_intervals",
            "base_conversion",
            "count_primes",
            "count_bits",
            "letter_counting",
            "word_sorting",
            "number_sorting",
            "string_manipulation",
            "caesar_cipher",
            "largest_island",
            "shortest_path",
            "tower_of_hanoi",
            "mini_sudoku",
            "zebra_puzzles",
        ),
        "Puzzles of reasoning-gym, with a calculator or Python; none whose scorer runs the answer as code.",
        "pip install 'toolstep[reasoning-gym]'",
    ),
)


def family_of(name: str) -> tuple[Family, str] | None:
    """The family of a full name, and the member; None for the name of a set on its own."""
    return next(((f, m) for f in FAMILIES for m in f.members if f.id(m) == name), None)


def by_family(names: Iterable[str]) -> list[str]:
    """The names in their order, those of a family as its one pattern: for a list that people read."""
    members = {name: family_of(name) for name in names}
    return list(dict.fromkeys(name if found is None else found[0].pattern for name, found in members.items()))
