"""`sql`: queries over an SQLite database, which can read what it is meant to, and nothing else.

A query runs in a worker process of the executor.  SQLite looks at its clock between two instructions only, and a single
one can take half a minute (`instr` of two long texts), so that nothing but killing the process is a limit.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

from toolstep.envs.tools.builtin.clock import NOW
from toolstep.envs.tools.builtin.folder import EpisodeFolder
from toolstep.envs.tools.builtin.query import Limits, QueryError, describe_tables, opened, run_query, table_rows
from toolstep.envs.tools.factory import EpisodeInfo, ToolFactory
from toolstep.envs.tools.result import error_result
from toolstep.envs.tools.tool import tool
from toolstep.envs.types import CallStatus

KILL_AFTER = 0.5  # seconds beyond the limit that SQLite is given


class SQL(ToolFactory):
    """The tools `sql(query)` and `sql_tables()` over a database.

    source: an SQLite file.  It is never changed, and must not change while it is in use.
    script: statements that make the database instead, run once in each episode; trusted.
    read_only: only SELECT.  Otherwise each episode changes a copy of its own, and `record.state[name]` has the rows of
        its tables (a dict of lists) when the episode is over, or None where they can't be read.
    timeout: seconds of one query; never more than four fifths of the env's `tool_timeout`.
    max_rows: rows of one result.  max_output: characters of one result.  memory_mb: what a query may take.

    The date and time in SQL ('now', CURRENT_TIMESTAMP) stand still, and random() depends on the episode's seed.

    Raises:
        ValueError: no source, two of them, or one that is no SQLite file; a limit that is none.
    """

    def __init__(
        self,
        source: str | Path | None = None,
        *,
        script: str | None = None,
        read_only: bool = True,
        timeout: float = 2.0,
        max_rows: int = 50,
        max_output: int = 3_000,
        memory_mb: int = 128,
        name: str = "sql",
    ) -> None:
        if source is not None and script is not None:
            raise ValueError("SQL: give a source or a script, not both")
        if source is None and script is None and read_only:
            raise ValueError("SQL: a database to read needs a source or a script (or read_only=False: an empty one)")
        for key, value in (
            ("timeout", timeout),
            ("max_rows", max_rows),
            ("max_output", max_output),
            ("memory_mb", memory_mb),
        ):
            if not 0 < value < float("inf"):
                raise ValueError(f"SQL: {key} must be a finite number > 0, got {value!r}")
        self.source = None if source is None else _checked(Path(source))
        self.script = script
        self.read_only = read_only
        self.timeout = timeout
        self.max_rows = max_rows
        self.max_output = max_output
        self.memory = memory_mb << 20
        self.name = name

    def make(self, episode: EpisodeInfo) -> Any:
        seconds = min(self.timeout, 0.8 * episode.tool_timeout)
        limits = Limits(
            seconds, self.max_rows, self.max_output, self.memory, self.read_only, episode.seed, NOW.timestamp()
        )
        database = Database(self.source, self.script, limits, self.name)
        allowed = "SELECT" if self.read_only else "changes are kept"
        rows = f"Shows columns and at most {self.max_rows} rows as JSON."
        return [
            tool(
                database.sql,
                name=self.name,
                description=f"Run one SQL statement (SQLite, {allowed}). {rows}",
                run_in="process",
                timeout=seconds + KILL_AFTER,
            ),
            tool(database.tables, name=f"{self.name}_tables", run_in="process", timeout=seconds + KILL_AFTER),
        ]


class Database:
    """One episode's database.  The first call makes it, in the worker process, which gets a copy of this object."""

    def __init__(self, source: Path | None, script: str | None, limits: Limits, name: str) -> None:
        self._limits = limits
        self._name = name
        self._source = source
        self._own: Path | None = None  # the file that belongs to this episode
        self._folder: EpisodeFolder | None = None
        if source is None or not limits.read_only:
            self._folder = EpisodeFolder("sql")
            self._own = self._folder.path / "episode.db"
            if script is not None:
                self._own.with_name("script.sql").write_text(script, encoding="utf-8")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folder": None}

    def sql(self, query: str) -> Any:
        """Run an SQL query.

        Args:
            query: One SQL statement.
        """
        try:
            with opened(self._ready(), self._limits) as connection:
                return run_query(connection, query, self._limits)
        except QueryError as error:
            return error_result(CallStatus.TOOL_TIMEOUT if error.timed_out else CallStatus.TOOL_ERROR, str(error))

    def tables(self) -> Any:
        """Show the tables of the database and their columns."""
        try:
            with opened(self._ready(), self._limits) as connection:
                return describe_tables(connection, self._limits.max_output)
        except QueryError as error:
            return error_result(CallStatus.TOOL_ERROR, str(error))

    def snapshot(self) -> dict[str, Any]:
        """The rows of the episode's own tables by name, where it could change them."""
        if self._limits.read_only or self._own is None:
            return {}
        try:
            with opened(self._ready(), self._limits, limit_memory=False) as connection:
                return {self._name: table_rows(connection)}
        except QueryError:  # too large to be read in time
            return {self._name: None}

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def _ready(self) -> Path:
        """The file to open; the episode's own is made before its first use."""
        if self._own is None:
            assert self._source is not None
            return self._source
        if not self._own.exists():
            made = self._own.with_suffix(".new")
            if self._source is not None:
                shutil.copyfile(self._source, made)
            else:
                made.unlink(missing_ok=True)
                script = self._own.with_name("script.sql")
                connection = sqlite3.connect(made)
                try:
                    # It lasts for an episode: there is nothing to save from a loss of power.
                    connection.execute("PRAGMA synchronous = OFF")
                    connection.execute("PRAGMA journal_mode = OFF")
                    if script.exists():
                        connection.executescript(script.read_text(encoding="utf-8"))
                    connection.commit()
                finally:
                    connection.close()
                made.touch()
            made.rename(self._own)  # a worker that was killed before leaves no half of it
        return self._own


def _checked(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise ValueError(f"SQL: the source {path} cannot be read: {error}") from None
    if head != b"SQLite format 3\x00":
        raise ValueError(f"SQL: the source {path} is no SQLite database; statements go to script=")
    return path.absolute()
