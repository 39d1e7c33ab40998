"""One SQL statement of a model against an SQLite file, within limits."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import math
import random
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toolstep.envs.tools.process_limits import limited_memory

MAX_QUERY = 10_000  # characters
MAX_VALUE = 500  # characters of one value that are shown
MAX_PAGES = 4_096  # of 4 KiB, of a database that is written
STATE_ROWS = 1_000  # of one table
OPERATIONS = 1_000  # between two looks at the clock

# What a statement may do: the numbers of sqlite3.h.
_READING = frozenset({20, 21, 31, 33})  # READ, SELECT, FUNCTION, RECURSIVE
_WRITING = frozenset({1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13, 15, 17, 18, 23, 26, 27, 28})
_ACTIONS = {
    1: "CREATE INDEX", 2: "CREATE TABLE", 3: "CREATE INDEX", 4: "CREATE TABLE", 5: "CREATE TRIGGER", 6: "CREATE VIEW",
    7: "CREATE TRIGGER", 8: "CREATE VIEW", 9: "DELETE", 10: "DROP INDEX", 11: "DROP TABLE", 12: "DROP INDEX",
    13: "DROP TABLE", 14: "DROP TRIGGER", 15: "DROP VIEW", 16: "DROP TRIGGER", 17: "DROP VIEW", 18: "INSERT",
    19: "PRAGMA", 22: "a transaction", 23: "UPDATE", 24: "ATTACH", 25: "DETACH", 26: "ALTER TABLE", 27: "REINDEX",
    28: "ANALYZE",
    29: "CREATE VIRTUAL TABLE", 30: "DROP VIRTUAL TABLE", 31: "the function", 32: "SAVEPOINT",
}  # fmt: skip
_PRAGMAS = frozenset(
    ("table_info", "table_xinfo", "table_list", "foreign_key_list", "index_list", "index_info", "index_xinfo")
)
_FUNCTIONS = frozenset(("load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "randomblob", "zeroblob"))
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_QUERY * 4,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a query may take: seconds, rows and characters of its result, bytes of memory; and what it may not."""

    seconds: float
    max_rows: int
    max_output: int
    memory: int
    read_only: bool
    seed: int
    now: float


class QueryError(ValueError):
    """The statement failed; the message says how, for the model to read."""

    def __init__(self, message: str, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


@contextlib.contextmanager
def opened(path: Path, limits: Limits, *, limit_memory: bool = True) -> Iterator[sqlite3.Connection]:
    """A connection that keeps to the limits.  What SQLite raises inside comes out as QueryError.

    limit_memory: of the whole process, as long as it is open; only for one that does nothing else.
    """
    mode = "mode=ro&immutable=1" if limits.read_only else "mode=rw"
    refused: list[str] = []
    until = time.monotonic() + limits.seconds
    # SQLite's own date functions, behind those in which the clock stands still.
    calendar = contextlib.closing(sqlite3.connect(":memory:", check_same_thread=False))
    with limited_memory(limits.memory if limit_memory else None), calendar as plain:
        connection = sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, isolation_level=None, timeout=1.0)
        try:
            _stop_clock(connection, plain, limits.now)
            _prepare(connection, limits, refused, until)
            yield connection
        except MemoryError:
            raise QueryError(f"the query needs more than {limits.memory >> 20} MB of memory: narrow it down") from None
        except (sqlite3.Error, sqlite3.Warning) as error:
            timed_out = time.monotonic() >= until and "interrupt" in str(error)
            raise QueryError(_told(connection, error, refused, limits, timed_out), timed_out) from None
        finally:
            connection.set_progress_handler(None, 0)
            connection.close()


def run_query(connection: sqlite3.Connection, query: str, limits: Limits) -> dict[str, Any]:
    """Columns and rows of a query, or how many rows it changed, JSON-able and bounded."""
    if not query.strip():
        raise QueryError("the query is empty")
    if len(query) > MAX_QUERY:
        raise QueryError(f"the query has {len(query)} characters; at most {MAX_QUERY} are taken")
    _seed_random(connection, limits.seed, query)
    try:
        cursor = connection.execute(query)
    except (UnicodeEncodeError, ValueError) as error:  # half a character; a null character
        raise QueryError(f"the query cannot be read: {error}") from None
    if cursor.description is None:
        return {"changed": max(cursor.rowcount, 0)}
    columns = [_short(str(column[0]), 100) for column in cursor.description]
    rows: list[list[Any]] = []
    size = len(json.dumps(columns))
    more = ""
    for row in cursor:
        if len(rows) == limits.max_rows:
            more = f"only the first {limits.max_rows} rows are shown"
            break
        shown = [_value(value) for value in row]
        size += len(json.dumps(shown, ensure_ascii=False))
        if size > limits.max_output:
            more = f"only the first {len(rows)} rows are shown, more would be too long: ask for fewer columns or rows"
            break
        rows.append(shown)
    return {"columns": columns, "rows": rows, **({"more": more} if more else {})}


def describe_tables(connection: sqlite3.Connection, max_output: int) -> str:
    """The statements that made the tables and views, as far as they fit."""
    found = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' ESCAPE '~' "
        "ORDER BY name"
    ).fetchmany(1_000)
    if not found:
        return "There are no tables."
    text = ";\n".join(str(sql) for _, sql in found) + ";"
    if len(text) <= max_output:
        return text
    return _short("Too many to show in full. Tables: " + ", ".join(str(name) for name, _ in found), max_output)


def table_rows(connection: sqlite3.Connection) -> dict[str, list[list[Any]]]:
    """The rows of every table, at most STATE_ROWS of each, sorted.

    Columns that are computed are left out: their expressions are a model's, and nothing here could stop one.
    """
    names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    rows: dict[str, list[list[Any]]] = {}
    for name in names:
        if not name.startswith("sqlite_"):
            info = connection.execute(f"PRAGMA table_xinfo({_quoted(name)})").fetchall()
            columns = ", ".join(_quoted(column[1]) for column in info if column[6] == 0)
            found = connection.execute(f"SELECT {columns} FROM {_quoted(name)} LIMIT {STATE_ROWS}")  # noqa: S608
            rows[name] = sorted(([_value(v, 10_000) for v in row] for row in found), key=json.dumps)
    return rows


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# --------------------------------------------------------------------------------------------------------------- parts
def _prepare(connection: sqlite3.Connection, limits: Limits, refused: list[str], until: float) -> None:
    for number, most in _LIMITS.items():
        connection.setlimit(number, most)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")  # a file would be out of reach of the memory limit
    connection.execute("PRAGMA cell_size_check = ON")
    if limits.read_only:
        connection.execute("PRAGMA query_only = ON")
    else:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
    allowed = _READING if limits.read_only else _READING | _WRITING

    def authorize(action: int, first: str | None, second: str | None, schema: str | None, inner: str | None) -> int:
        name = (second if action == 31 else first) or ""
        fits = action in allowed and not (action == 31 and name.lower() in _FUNCTIONS)
        if fits or (action == 19 and name.lower() in _PRAGMAS):
            return sqlite3.SQLITE_OK
        if (
            action == 23 and name == "sqlite_master"
        ):  # how pragma_table_info('t') is declared; SQLite refuses a real one
            return sqlite3.SQLITE_OK
        own = name.startswith("sqlite_")  # its own tables, where it keeps what there is
        refused.append("changing the database" if own else f"{_ACTIONS.get(action, 'this')} {name}".strip())
        return sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)
    connection.set_progress_handler(lambda: time.monotonic() >= until, OPERATIONS)


def _stop_clock(connection: sqlite3.Connection, plain: sqlite3.Connection, now: float) -> None:
    """Let 'now' and no time at all mean `now` in the functions of date and time, which `plain` computes."""

    def of(name: str, *arguments: Any) -> Any:
        at = 1 if name == "strftime" else 0
        given = list(arguments)
        if len(given) == at:
            given.append("now")
        if len(given) > at and isinstance(given[at], str) and given[at].strip().lower() == "now":
            given[at : at + 1] = [now, "unixepoch"]
        return plain.execute(f"SELECT {name}({', '.join('?' * len(given))})", given).fetchone()[0]

    for name in ("date", "time", "datetime", "julianday", "strftime", "unixepoch"):
        connection.create_function(name, -1, lambda *a, name=name: of(name, *a))
    for name in ("date", "time", "timestamp"):
        kind = "datetime" if name == "timestamp" else name
        connection.create_function(f"current_{name}", 0, lambda kind=kind: of(kind))


def _seed_random(connection: sqlite3.Connection, seed: int, query: str) -> None:
    """random() is decided by the episode and the query."""
    digest = hashlib.blake2b(f"{seed} {query}".encode("utf-8", "replace"), digest_size=8).digest()
    stream = random.Random(int.from_bytes(digest, "big"))
    connection.create_function("random", 0, lambda: stream.getrandbits(64) - 2**63)


def _told(connection: sqlite3.Connection, error: Exception, refused: list[str], limits: Limits, timed_out: bool) -> str:
    """What went wrong, in a sentence that a model can act on."""
    text = _short(str(error), 300)
    if timed_out:
        return f"the query was stopped after {limits.seconds:g} s: narrow it down"
    if refused:
        what = refused[0]
        if what.startswith(("a transaction", "SAVEPOINT")):
            return "transactions are not needed here: each statement is committed by itself"
        return f"{what} is not allowed here" + ("; only SELECT is" if limits.read_only else "")
    if "one statement at a time" in text:
        return "send one statement at a time"
    if "number of bindings" in text:
        return "write the values into the query: there are none for ? or :name"
    if "incomplete input" in text:
        return "the statement is not complete"
    if "too big" in text:
        return "a value in the query is too long"
    if "full" in text:
        return f"the database is full: it holds at most {MAX_PAGES * 4 >> 10} MB"
    if text.startswith(("no such table", "no such column")):
        return f"{text}.{_known(connection, text.partition(': ')[2])}"
    return text


def _known(connection: sqlite3.Connection, name: str) -> str:
    """The nearest name there is, and all tables with their columns."""
    connection.set_progress_handler(None, 0)
    tables: dict[str, list[str]] = {}
    with contextlib.suppress(sqlite3.Error):
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchmany(
            50
        ):
            if not table.startswith("sqlite_"):
                tables[table] = [row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(table)})")]
    names = {*tables, *(column for columns in tables.values() for column in columns)}
    near = difflib.get_close_matches(name.rpartition(".")[2][:100], sorted(names), n=1)
    listed = "; ".join(f"{table}({', '.join(columns)})" for table, columns in tables.items())
    return (f" Did you mean {near[0]}?" if near else "") + _short(f" There are: {listed or 'no tables'}", 1_000)


def _value(value: Any, most: int = MAX_VALUE) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return _short(value, most) if isinstance(value, str) else value


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more characters)"
