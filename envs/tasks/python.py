"""toolstep/Python-v0: functions to write, checked by hidden tests in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from toolstep.envs.tasks.algorithms import algorithm
from toolstep.envs.tasks.conversation import call, result_of
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.pipelines import NAME, Program, numbers_program, text_program
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tools.builtin.hidden_tests import results_of
from toolstep.envs.tools.builtin.python import Backend, Python
from toolstep.envs.tools.factory import EpisodeInfo, Offer, per_episode
from toolstep.envs.tools.tool import tool
from toolstep.envs.types import EpisodeRecord, Task, ToolResult, Turn

SECONDS = 1.0  # to load the code, and again for all hidden tests together


class PythonTasks(ProceduralTasks):
    """Functions to write in Python, with a sandbox to try them in.

    Level 1 has one step over a list of numbers and something to return, level 2 three steps over numbers or words,
    level 3 an algorithm (intervals, coins, islands, a circle of people, ...) with a value of its own.

    The call `submit(code)` ends the episode.  The code is run in a fresh sandbox of the same kind, its function is
    called with inputs that the agent has not seen, and what it returns must be equal to what is right, for all of them.
    backend: which sandbox (`toolstep.envs.tools.builtin.Python`).

    Raises:
        SandboxError: there is no such sandbox here.
    """

    name: ClassVar[str] = "toolstep/Python-v0"
    system = "Write the function. Try it with python, then hand its code in with submit."

    def __init__(self, *, level: int | None = None, backend: Backend = "monty") -> None:
        super().__init__(level=level)
        self._tool = Python(backend)
        self._judge = Python(backend, timeout=SECONDS, max_output=200_000)

    def tools(self, task: Task) -> Sequence[Offer]:
        return [self._tool, per_episode(lambda episode: Submission(self._judge, episode))]

    def close(self) -> None:
        self._tool.close()
        self._judge.close()

    def score(self, record: EpisodeRecord) -> float:
        found = record.state.get("submission")
        return float(isinstance(found, dict) and found["tests"] > 0 and found["passed"] == found["tests"])

    def oracle(self, record: EpisodeRecord) -> Turn:
        code = record.task.answer
        trial = {"code": f"{code}\n\n\n{NAME}(*{record.task.data['example']!r})"}
        for name, arguments in (("python", trial), ("submit", {"code": code})):
            if result_of(record, name, arguments) is None:
                return call(record, (name, arguments))
        return Turn("The function is handed in.")

    def draw(self, draw: Draw, level: int) -> Problem:
        program = self._program(draw, level)
        results = [program.run(*arguments) for arguments in program.inputs]
        example = program.inputs[-3]
        prompt = (
            f"Write a Python function {NAME}({program.argument}) that {program.words}. "
            f"For example, {NAME}({', '.join(map(repr, example))}) returns {program.run(*example)!r}."
        )
        return Problem(
            key=f"python:{program.words}",
            prompt=prompt,
            answer=program.code,
            data={"inputs": program.inputs, "expected": json.dumps(results), "example": example},
        )

    def _program(self, draw: Draw, level: int) -> Program:
        if level == 1:
            return numbers_program(draw, 1)
        if level == 3:
            return algorithm(draw)
        return numbers_program(draw, 3) if draw.chance(0.5) else text_program(draw, 2)


class Submission:
    """The tool `submit` of one episode, and what became of what was handed in."""

    def __init__(self, judge: Python, episode: EpisodeInfo) -> None:
        self._judge = judge
        self._seconds = min(SECONDS, 0.3 * episode.tool_timeout)
        self._inputs = episode.task.data["inputs"]
        self._expected = json.loads(episode.task.data["expected"])
        self._passed: int | None = None

    @tool
    def submit(self, code: str) -> ToolResult:
        """Hand in the code of the function. It is tested, and the task is over.

        Args:
            code: The function, with everything that it needs.
        """
        if self._passed is not None:
            raise ValueError("the code was handed in already")
        results, error = results_of(self._judge, self._seconds, code, NAME, self._inputs)
        self._passed = sum(a == b for a, b in zip(results, self._expected, strict=False))
        told = f"{self._passed} of {len(self._expected)} tests passed."
        return ToolResult(f"{told}\n{error}".rstrip(), terminate=True, answer=code)

    def snapshot(self) -> dict[str, Any]:
        return {"submission": {"passed": self._passed or 0, "tests": len(self._expected)}}
