"""toolstep/SQL-v0: questions over a database that is generated for each task; answers are compared as result sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.tasks.conversation import call, result_of
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tasks.result_set import same_result, write_rows
from toolstep.envs.tasks.shop import QUESTIONS, answer, make_shop
from toolstep.envs.tools.builtin.sql import SQL
from toolstep.envs.tools.factory import Offer
from toolstep.envs.types import EpisodeRecord, Task, Turn


class SQLTasks(ProceduralTasks):
    """Questions about a shop: customers, products, purchases and their items, drawn anew for each task.

    Level 1 needs one table, level 2 joins and sums, level 3 rankings, groups, set operations and means.  No question
    has a tie or an empty answer.

    The answer must hold exactly the rows that are right (`result_set.same_result`), in their order where that is asked.
    """

    name: ClassVar[str] = "toolstep/SQL-v0"
    system = (
        "Answer questions about a shop's database with the tools. Answer with the result only: one row a line, values "
        "separated by |."
    )

    def tools(self, task: Task) -> Sequence[Offer]:
        return [SQL(script=task.data["script"])]

    def score(self, record: EpisodeRecord) -> float:
        data = record.task.data
        return float(same_result(record.answer, data["rows"], ordered=data["ordered"]))

    def oracle(self, record: EpisodeRecord) -> Turn:
        if result_of(record, "sql_tables", {}) is None:
            return call(record, ("sql_tables", {}))
        query = {"query": record.task.data["query"]}
        found = result_of(record, "sql", query)
        if found is None:
            return call(record, ("sql", query))
        rows = json.loads(found)["rows"][: len(record.task.data["rows"])]
        return Turn(write_rows([row[: len(record.task.data["rows"][0])] for row in rows]))

    def draw(self, draw: Draw, level: int) -> Problem:
        while True:
            shop = make_shop(draw)
            question = draw.choice(QUESTIONS[level])(draw, shop)
            script = shop.script()
            rows = answer(script, question)
            if rows is not None:
                break
        return Problem(
            key=f"sql:{question.text}",
            prompt=question.text,
            answer=write_rows(rows),
            data={"script": script, "query": question.query, "rows": tuple(rows), "ordered": question.ordered},
        )
