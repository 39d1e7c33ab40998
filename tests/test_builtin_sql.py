"""The SQL tool: answers and errors that a model can act on, and statements that try to get out, to hang, or to grow."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolstep.envs import Message, Task, ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.tools import BoundCall, EpisodeInfo, Executor, Toolbox
from toolstep.envs.tools.builtin import SQL
from toolstep.envs.types import CallStatus, ToolCall, ToolResult

TASKS = [{"prompt": "Query.", "answer": "5"}]
SCRIPT = """
CREATE TABLE city(name TEXT PRIMARY KEY, country TEXT, population INTEGER, area REAL);
INSERT INTO city VALUES ('Rome', 'Italy', 2800000, 1285.0), ('Bern', 'Switzerland', 134000, 51.6),
                        ('Basel', 'Switzerland', 178000, 23.9);
CREATE VIEW big AS SELECT name FROM city WHERE population > 1000000;
"""


def call(query: str, name: str = "sql") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'query': query}})}\n</tool_call>"


class Played:
    """The tools of one episode, run by an executor."""

    def __init__(self, executor: Executor, factory: SQL, seed: int = 7) -> None:
        self.box = Toolbox([], [factory], EpisodeInfo(Task("t", (Message("user", "Query."),)), seed))
        self._executor = executor

    def run(self, query: str | None = None) -> ToolResult:
        made = self.box.tools["sql_tables" if query is None else "sql"]
        arguments = {} if query is None else {"query": query}
        bound = BoundCall(ToolCall("c", made.name, parsed=arguments), made, made.bind(arguments))
        return self._executor.run([bound], timeout=20.0)[0]

    def rows(self, query: str) -> list[list[Any]]:
        result = self.run(query)
        assert result.error is None, result.content
        found: list[list[Any]] = json.loads(result.content)["rows"]
        return found

    def error(self, query: str) -> str:
        result = self.run(query)
        assert result.error is CallStatus.TOOL_ERROR, result.content
        message: str = json.loads(result.content)["message"]
        return message


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(2) as made:
        yield made


@pytest.fixture
def reading(executor: Executor) -> Iterator[Played]:
    played = Played(executor, SQL(script=SCRIPT, timeout=1.0))
    yield played
    played.box.close()


@pytest.fixture
def writing(executor: Executor) -> Iterator[Played]:
    played = Played(executor, SQL(script=SCRIPT, read_only=False, timeout=1.0))
    yield played
    played.box.close()


# ------------------------------------------------------------------------------------------------------------- answers
def test_results_are_columns_and_rows(reading: Played) -> None:
    result = reading.run("SELECT name, population FROM city WHERE country = 'Switzerland' ORDER BY name;")
    assert json.loads(result.content) == {
        "columns": ["name", "population"],
        "rows": [["Basel", 178000], ["Bern", 134000]],
    }
    assert reading.rows("SELECT 9e999, NULL, x'00ff', 'é', 1.5, '' FROM big") == [
        ["inf", None, "<2 bytes>", "é", 1.5, ""]
    ]
    assert reading.rows("SELECT name FROM pragma_table_info('city')") == [
        ["name"],
        ["country"],
        ["population"],
        ["area"],
    ]
    assert reading.rows("WITH x(a) AS (VALUES (1), (2)) SELECT sum(a) OVER () FROM x") == [[3], [3]]


def test_the_tables_are_shown(reading: Played) -> None:
    shown = reading.run().content
    assert "CREATE TABLE city(name TEXT PRIMARY KEY" in shown
    assert "CREATE VIEW big" in shown


def test_results_are_bounded_in_rows_values_and_characters(reading: Played) -> None:
    many = json.loads(
        reading.run("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c").content
    )
    assert [row[0] for row in many["rows"]] == list(range(1, 51))
    assert many["more"] == "only the first 50 rows are shown"
    long = reading.rows("SELECT printf('%.*c', 100000, 'a')")[0][0]
    assert long == "a" * 500 + "... (99500 more characters)"
    wide = reading.run(
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT printf('%400d', x) FROM c"
    )
    assert len(wide.content) < 3_400
    assert "ask for fewer columns or rows" in wide.content


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (
            "SELECT naem FROM city",
            "no such column: naem. Did you mean name? There are: city(name, country, population, area); big(name)",
        ),
        ("SELECT * FROM citty", "no such table: citty. Did you mean city?"),
        ("SELCT 1", 'near "SELCT": syntax error'),
        ("SELECT 1; SELECT 2", "send one statement at a time"),
        ("SELECT", "not complete"),
        ("  ", "empty"),
        ("SELECT ?", "write the values into the query"),
        ("INSERT INTO city VALUES ('x', 'y', 1, 2)", "INSERT city is not allowed here; only SELECT is"),
        ("DROP TABLE city", "changing the database is not allowed here; only SELECT is"),
        ("BEGIN", "transactions are not needed here"),
        ("SELECT '\x00'", "null character"),
        ("SELECT '\ud800'", "cannot be read"),
        ("SELECT " + "1, " * 5_000 + "1", "at most 10000"),
    ],
)
def test_errors_say_what_to_do(reading: Played, query: str, told: str) -> None:
    assert told in reading.error(query)


def test_clock_and_chance_are_the_episodes(executor: Executor) -> None:
    chosen = "(SELECT name FROM city ORDER BY random() LIMIT 1)"
    query = f"SELECT random(), {chosen}, datetime('now'), CURRENT_DATE, strftime('%Y')"
    shown = []
    for seed in (1, 1, 2):
        played = Played(executor, SQL(script=SCRIPT), seed)
        shown.append(played.rows(query)[0])
        played.box.close()
    assert shown[0] == shown[1] != shown[2]
    assert shown[0][2:] == ["2025-01-01 12:00:00", "2025-01-01", "2025"]
    played = Played(executor, SQL(script=SCRIPT))
    assert played.rows("SELECT date('2024-01-31', '+1 month'), date('now', '+1 day'), julianday('2000-01-01')") == [
        ["2024-03-02", "2025-01-02", 2451544.5]
    ]
    played.box.close()


# ------------------------------------------------------------------------------------------------------------- changes
def test_changes_stay_in_the_episode_and_are_its_state(executor: Executor, tmp_path: Path) -> None:
    source = tmp_path / "shop.db"
    with sqlite3.connect(source) as made:
        made.executescript(SCRIPT)
    made.close()
    before = source.read_bytes()
    factory = SQL(source, read_only=False)
    first, second = Played(executor, factory), Played(executor, factory)
    assert json.loads(first.run("UPDATE city SET population = population + 1 WHERE country = 'Italy'").content) == {
        "changed": 1
    }
    assert first.run("CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT)").error is None
    assert first.run("INSERT INTO note(text) VALUES ('a'), ('b')").error is None
    assert first.rows("SELECT count(*) FROM note") == [[2]]
    assert "no such table: note" in second.error("SELECT * FROM note")
    state = first.box.snapshot()["sql"]
    assert state["note"] == [[1, "a"], [2, "b"]]
    assert ["Rome", "Italy", 2800001, 1285.0] in state["city"]
    assert ["Rome", "Italy", 2800000, 1285.0] in second.box.snapshot()["sql"]["city"]
    for played in (first, second):
        played.box.close()
    assert source.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["shop.db"]


def test_a_source_that_is_only_read_is_not_copied_and_not_touched(executor: Executor, tmp_path: Path) -> None:
    source = tmp_path / "a strange #name?.db"
    with sqlite3.connect(source) as made:
        made.executescript(SCRIPT)
    made.close()
    before = source.read_bytes()
    played = Played(executor, SQL(source))
    assert played.rows("SELECT count(*) FROM city") == [[3]]
    assert played.box.snapshot() == {}
    played.box.close()
    assert source.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [source.name]


def test_what_was_committed_outlives_a_worker_that_was_killed(writing: Played) -> None:
    assert writing.run("INSERT INTO city VALUES ('Oslo', 'Norway', 700000, 454.0)").error is None
    assert writing.run(FROZEN).error is CallStatus.TOOL_TIMEOUT
    assert writing.rows("SELECT count(*) FROM city") == [[4]]
    assert writing.run(f"UPDATE city SET area = ({FROZEN})").error is CallStatus.TOOL_TIMEOUT
    assert writing.rows("SELECT sum(area) FROM city WHERE name <> 'Oslo'") == [[1360.5]]


# ------------------------------------------------------------------------------------------------------------- attacks
#: One instruction that takes half a minute: SQLite does not look at its clock before it is done.
FROZEN = "SELECT instr(printf('%.*c', 990000, 'a'), printf('%.*c', 490000, 'a') || 'b')"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "


def attacks(tmp: Path) -> list[str]:
    return [
        f"ATTACH '{tmp}/secret.db' AS s",
        f"ATTACH '{tmp}/marker' AS s",
        "ATTACH ':memory:' AS s",
        f"VACUUM INTO '{tmp}/marker'",
        "VACUUM",
        f"SELECT load_extension('{tmp}/evil.so')",
        f"SELECT readfile('{tmp}/secret.txt')",
        f"SELECT writefile('{tmp}/marker', 'x')",
        "SELECT edit('x', 'touch')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT hex(fts3_tokenizer('simple', x'4141414141414141'))",
        "SELECT zeroblob(1000000000)",
        "SELECT randomblob(1000000000)",
        f"CREATE VIRTUAL TABLE f USING csv(filename='{tmp}/secret.txt')",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        f"PRAGMA temp_store_directory = '{tmp}'",
        "PRAGMA writable_schema = ON",
        "PRAGMA query_only = OFF",
        "PRAGMA trusted_schema = ON",
        "PRAGMA hard_heap_limit = 1",
        "PRAGMA journal_mode = WAL",
        "PRAGMA max_page_count = 1000000000",
        "UPDATE sqlite_master SET sql = ''",
        "INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 2, 'CREATE TABLE x(a)')",
        "CREATE TRIGGER t AFTER INSERT ON city BEGIN INSERT INTO city SELECT * FROM city; END",
        ENDLESS + "SELECT count(*) FROM c",
        ENDLESS + "SELECT x FROM c ORDER BY x DESC",
        ENDLESS + "SELECT printf('%900000s', x) FROM c ORDER BY 1",
        ENDLESS + "SELECT group_concat(printf('%100000s', x)) FROM c",
        ENDLESS + "SELECT json_group_array(x) FROM c",
        ENDLESS + "SELECT a.x FROM c a, c b, c d WHERE a.x + b.x + d.x < 0",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION SELECT x + 1 FROM c) SELECT max(x) FROM c",
        FROZEN,
        f"SELECT * FROM city ORDER BY ({FROZEN})",
        "SELECT replace(printf('%.*c', 900000, 'a'), 'a', printf('%.*c', 900000, 'b'))",
        "SELECT printf('%.*c', 2000000000, 'a')",
        "SELECT 'a' LIKE '" + "%a" * 2_000 + "b'",
        "SELECT " + "(" * 2_000 + "1" + ")" * 2_000,
        "SELECT " + " + ".join(["1"] * 2_000),
        "SELECT " + " UNION ".join(["SELECT 1"] * 500)[7:],
        "SELECT " + ", ".join(["1"] * 1_000),
        "SELECT abs(-9223372036854775808)",
        "SELECT CAST(9e999 AS INTEGER), 1 / 0, 'x' || x'ff'",
        "SELECT json('" + "[" * 4_000 + "')",
        "SELECT sqlite_compileoption_get(1), sqlite_source_id()",
        "EXPLAIN SELECT * FROM city",
        "REINDEX",
        "ANALYZE",
        "ROLLBACK",
        "SAVEPOINT s",
        "DETACH main",
        "SELECT * FROM dbstat",
        "SELECT * FROM pragma_database_list",
    ]


GROWING = [
    "CREATE TABLE g(a, b AS (instr(printf('%.*c', 990000, 'a'), printf('%.*c', 490000, 'a') || 'b')))",
    "INSERT INTO g(a) VALUES (1)",
    "CREATE TABLE h(a); ",
    "INSERT INTO h " + ENDLESS + "SELECT printf('%900000s', x) FROM c",
    "INSERT INTO h " + ENDLESS + "SELECT x FROM c",
    "CREATE TABLE k(a CHECK (a < 0 OR instr(printf('%.*c', 990000, 'a'), printf('%.*c', 490000, 'a') || 'b')))",
    "CREATE VIEW v AS " + ENDLESS + "SELECT count(*) FROM c",
    "CREATE INDEX i ON city(instr(name, printf('%.*c', 490000, 'a')))",
    "ALTER TABLE city ADD COLUMN z DEFAULT (printf('%.*c', 900000, 'a'))",
    'CREATE TABLE "a""b\'; DROP TABLE city; --"(x)',
    "CREATE TEMP TABLE temporary(a)",
]


@pytest.mark.parametrize("kind", ["reading", "writing"])
def test_nothing_escapes_nothing_hangs_and_the_tool_goes_on(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    played: Played = request.getfixturevalue(kind)
    with sqlite3.connect(tmp_path / "secret.db") as secret:
        secret.execute("CREATE TABLE s AS SELECT 'swordfish' AS word")
    secret.close()
    (tmp_path / "secret.txt").write_text("swordfish")
    before = sorted(p.name for p in tmp_path.iterdir())
    for query in [*attacks(tmp_path), *(GROWING if kind == "writing" else [])]:
        result = played.run(query)
        assert "swordfish" not in result.content, query
        assert len(result.content) < 3_600, query
        assert sorted(p.name for p in tmp_path.iterdir()) == before, query
        assert played.rows("SELECT count(*) FROM city") == [[3]], query
    state = played.box.snapshot()  # reads what is stored, and evaluates nothing
    assert kind == "reading" or len(state["sql"]["city"]) == 3


def test_what_stops_a_query_is_told(reading: Played) -> None:
    slow = reading.run(ENDLESS + "SELECT count(*) FROM c")
    assert slow.error is CallStatus.TOOL_TIMEOUT
    assert json.loads(slow.content)["message"] == "the query was stopped after 1 s: narrow it down"
    frozen = reading.run(FROZEN)
    assert frozen.error is CallStatus.TOOL_TIMEOUT
    assert "within 1.5 s" in frozen.content


def test_memory_is_the_querys_limit_and_not_that_of_the_process(reading: Played, writing: Played) -> None:
    assert "more than 128 MB" in reading.error(ENDLESS + "SELECT printf('%900000s', x) FROM c ORDER BY 1")
    assert reading.rows("SELECT length(printf('%.*c', 900000, 'a'))") == [[900000]]
    assert "at most 16 MB" in writing.error(
        "CREATE TABLE h AS " + ENDLESS + "SELECT printf('%900000s', x) FROM c LIMIT 50"
    )


# ---------------------------------------------------------------------------------------------------------- in the env
def test_rows_of_a_vector_env_have_databases_of_their_own() -> None:
    env = ToolUseVectorEnv(3, TASKS, tools=["sql"])
    env.reset(seed=0)
    env.step(
        [call("CREATE TABLE t(a)") + call(f"INSERT INTO t VALUES ({i})") + call("SELECT a FROM t") for i in range(3)]
    )
    shown = [json.loads(messages[-1].content)["rows"] for messages in env.get_attr("messages")]
    assert shown == [[[0]], [[1]], [[2]]]
    env.close()


def test_the_state_is_there_for_the_reward() -> None:
    env = ToolUseEnv(
        TASKS, tools=[SQL(script=SCRIPT, read_only=False)], reward=lambda r: float(len(r.state["sql"]["city"]))
    )
    env.reset(seed=0)
    env.step(call("DELETE FROM city WHERE country = 'Italy'"))
    assert env.step("done")[1] == 2.0
    env.reset(seed=0)
    assert env.step("done")[1] == 3.0
    env.close()


def test_a_thousand_resets_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = ToolUseVectorEnv(4, TASKS, tools=[SQL(script=SCRIPT)], autoreset_mode="Disabled")
    for i in range(250):
        env.reset(seed=i)
        if i % 50 == 0:
            env.step([call("SELECT 1")] * 4)
    assert len(list(tmp_path.iterdir())) == 4
    env.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "source or a script"),
        ({"source": "x.db", "script": "SELECT 1"}, "not both"),
        ({"source": "no/such.db"}, "no/such.db cannot be read"),
        ({"source": __file__}, "is no SQLite database"),
        ({"script": "SELECT 1", "timeout": 0}, "timeout"),
        ({"script": "SELECT 1", "max_rows": float("nan")}, "max_rows"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SQL(**options)


def test_a_script_that_fails_is_told_by_the_tool(executor: Executor) -> None:
    played = Played(executor, SQL(script="CREATE TABLE t(a); INSERT INTO nowhere VALUES (1);"))
    assert "no such table: nowhere" in played.run("SELECT 1").content
    played.box.close()
