"""toolstep/Files-v0: jobs in a folder of files; what counts is what the folder holds in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from toolstep.envs.tasks.conversation import call, result_of
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.office import JOBS, Call, make_office
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tools.builtin.files import Files
from toolstep.envs.tools.factory import Offer
from toolstep.envs.types import EpisodeRecord, Task, Turn

PER_TURN = 8  # calls of the oracle in one turn


class FilesTasks(ProceduralTasks):
    """Jobs in a folder of about eighteen small files, drawn anew for each task.

    Level 1 changes one file, level 2 reads before it writes (sums, moves, values from elsewhere), level 3 works through
    all files of a folder.

    Right is the folder that the job describes: these files with this text, and no others.  Blanks at the end of a file
    don't count; what the agent says doesn't either.
    """

    name: ClassVar[str] = "toolstep/Files-v0"
    system = "Do the job in the folder with the tools. Change nothing else. Say briefly when you are done."

    def tools(self, task: Task) -> Sequence[Offer]:
        return [Files(task.data["files"])]

    def score(self, record: EpisodeRecord) -> float:
        found = record.state.get("files")
        return float(isinstance(found, Mapping) and _stripped(found) == _stripped(record.task.data["after"]))

    def oracle(self, record: EpisodeRecord) -> Turn:
        data = record.task.data
        reads: list[Call] = [("read_file", {"path": path}) for path in data["reads"]]
        steps: list[Sequence[Call]] = [[("list_files", {})], reads, data["calls"]]
        for step in steps:
            missing = [(name, arguments) for name, arguments in step if result_of(record, name, arguments) is None]
            if missing:
                return call(record, *missing[:PER_TURN])
        return Turn("Done.")

    def draw(self, draw: Draw, level: int) -> Problem:
        while True:
            files = make_office(draw)
            job = draw.choice(JOBS[level])(draw, files)
            if job is not None:
                break
        data = {"files": files, "after": job.after, "reads": tuple(job.reads), "calls": tuple(job.calls)}
        return Problem(key=f"files:{job.text}", prompt=job.text, answer="Done.", data=data)


def _stripped(files: Mapping[str, str]) -> dict[str, str]:
    return {path: text.rstrip() for path, text in files.items()}
