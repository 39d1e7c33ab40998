"""The generated folder behind toolstep/Files-v0, and jobs to do in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolstep.envs.tasks.draw import Draw

Call = tuple[str, dict[str, Any]]

# fmt: off
_AREAS = ("billing", "harbour", "kitchen", "library", "museum", "nursery", "orchard", "printing", "quarry", "station")
_KEYS = ("port", "workers", "timeout", "retries", "cache_size", "max_users", "batch", "interval", "depth", "volume")
_NAMES = (
    "Kestrel", "Falcon", "Osprey", "Heron", "Magpie", "Plover", "Starling", "Curlew", "Bittern", "Dunlin", "Garnet",
    "Topaz", "Onyx", "Beryl", "Jasper", "Opal",
)
_VERBS = ("checked", "moved", "painted", "counted", "repaired", "measured", "cleaned", "weighed")
_OBJECTS = ("the gate", "two crates", "the north wall", "the ledger", "a pump", "the lamps", "nine chairs", "the boat")
_ITEMS = ("apples", "bolts", "candles", "drums", "envelopes", "flags", "gloves", "hinges")
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october")
# fmt: on


@dataclass(slots=True)
class Job:
    """What is asked, what the folder must hold afterwards, and the calls that do it: what to read, then what to do."""

    text: str
    after: dict[str, str]
    reads: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def write(self, path: str, content: str) -> None:
        self.after[path] = content
        self.calls.append(("write_file", {"path": path, "content": content}))

    def edit(self, path: str, old: str, new: str) -> None:
        assert self.after[path].count(old) == 1, (path, old)
        self.after[path] = self.after[path].replace(old, new)
        self.calls.append(("edit_file", {"path": path, "old": old, "new": new}))

    def delete(self, path: str) -> None:
        del self.after[path]
        self.calls.append(("delete_file", {"path": path}))


def make_office(draw: Draw) -> dict[str, str]:
    """Sixteen to twenty files: settings, tables, logs, notes and letters, by path."""
    files: dict[str, str] = {}
    for area in draw.sample(_AREAS, 3):
        values = [f"{key} = {draw.integer(2, 9_000)}" for key in draw.sample(_KEYS, 4)]
        files[f"settings/{area}.ini"] = "\n".join([f"# settings of the {area}", *values]) + "\n"
    for month in draw.sample(_MONTHS, 4):
        rows = [
            f"{item},{draw.integer(1, 60)},{draw.integer(2, 90)}" for item in draw.sample(_ITEMS, draw.integer(3, 5))
        ]
        files[f"tables/{month}.csv"] = "\n".join(["item,count,price", *rows]) + "\n"
    for area in draw.sample(_AREAS, 4):
        files[f"logs/{area}.log"] = "".join(f"{_log_line(draw)}\n" for _ in range(draw.integer(4, 7)))
    projects = draw.sample(_NAMES, 5)
    for number in draw.sample(range(100, 1_000), 4):
        names = draw.sample(projects, 2)
        lines = [f"Project {names[0]}: {_deed(draw)}.", f"{_deed(draw).capitalize()}.", f"Ask {names[1]} about it."]
        files[f"notes/note-{number}.txt"] = "\n".join(draw.sample(lines, 3)) + "\n"
    for number in draw.sample(range(1, 60), draw.integer(2, 4)):
        mark = "Urgent" if draw.chance(0.5) else "Routine"
        files[f"inbox/letter-{number}.txt"] = f"{mark}.\nThey {_deed(draw)} on day {draw.integer(1, 30)}.\n"
    return dict(sorted(files.items()))


def _deed(draw: Draw) -> str:
    return f"{draw.choice(_VERBS)} {draw.choice(_OBJECTS)}"


def _log_line(draw: Draw) -> str:
    level = draw.choice(("INFO", "INFO", "WARNING", "ERROR"))
    return f"{draw.integer(0, 23):02d}:{draw.integer(0, 59):02d} {level} {_deed(draw)}"


def _under(files: Mapping[str, str], folder: str) -> list[str]:
    return [path for path in files if path.startswith(f"{folder}/")]


# ------------------------------------------------------------------------------------------------------------- one file
def _set_value(draw: Draw, files: dict[str, str]) -> Job | None:
    path = draw.choice(_under(files, "settings"))
    line = draw.choice(files[path].splitlines()[1:])
    key, value = line.split(" = ")[0], draw.integer(2, 9_000)
    job = Job(f"In {path}, set {key} to {value}.", dict(files), [path])
    job.edit(path, f"{line}\n", f"{key} = {value}\n")
    return job if f"{key} = {value}" != line else None


def _new_file(draw: Draw, files: dict[str, str]) -> Job | None:
    path = f"notes/{draw.choice(_AREAS)}-{draw.integer(1, 99)}.txt"
    line = f"We {_deed(draw)} in {draw.choice(_MONTHS)}."
    job = Job(f'Make a file {path} that holds the line "{line}".', dict(files))
    job.write(path, f"{line}\n")
    return job


def _delete_file(draw: Draw, files: dict[str, str]) -> Job | None:
    path = draw.choice(_under(files, "notes"))
    job = Job(f"Delete the file {path}.", dict(files))
    job.delete(path)
    return job


def _replace_name(draw: Draw, files: dict[str, str]) -> Job | None:
    path, new = draw.choice(_under(files, "notes")), draw.choice(_NAMES)
    old = next((name for name in _NAMES if name in files[path]), "")
    if not old or new in files[path]:
        return None
    job = Job(f"In {path}, replace {old} by {new}.", dict(files), [path])
    job.edit(path, old, new)
    return job


# ------------------------------------------------------------------------------------------------- read, then write
def _total(draw: Draw, files: dict[str, str]) -> Job | None:
    path = draw.choice(_under(files, "tables"))
    what, name = draw.choice(("count", "value")), f"total-{draw.integer(1, 999)}.txt"
    told = "the sum of the column count" if what == "count" else "the sum of count times price over all rows"
    job = Job(f"Write {told} of {path} to {name}, the number only.", dict(files), [path])
    job.write(name, f"{_sum(files[path], what)}\n")
    return job


def _sum(table: str, what: str) -> int:
    rows = [line.split(",") for line in table.splitlines()[1:]]
    return sum(int(count) * (int(price) if what == "value" else 1) for _, count, price in rows)


def _move(draw: Draw, files: dict[str, str]) -> Job | None:
    path = draw.choice([*_under(files, "notes"), *_under(files, "inbox"), *_under(files, "logs")])
    target = f"archive/{draw.choice(_MONTHS)}/{path.rpartition('/')[2]}"
    job = Job(f"Move {path} to {target}.", dict(files), [path])
    job.write(target, files[path])
    job.delete(path)
    return job


def _append(draw: Draw, files: dict[str, str]) -> Job | None:
    path, line = draw.choice(_under(files, "logs")), _log_line(draw)
    job = Job(f'Add the line "{line}" at the end of {path}.', dict(files), [path])
    job.write(path, f"{files[path]}{line}\n")
    return job


def _where(draw: Draw, files: dict[str, str]) -> Job | None:
    name, target = draw.choice(_NAMES), f"found-{draw.integer(1, 999)}.txt"
    holders = [path for path in _under(files, "notes") if name in files[path]]
    if len(holders) != 1:
        return None
    job = Job(f"One file in notes speaks of {name}. Write its path to {target}.", dict(files), _under(files, "notes"))
    job.write(target, f"{holders[0]}\n")
    return job


def _copy_value(draw: Draw, files: dict[str, str]) -> Job | None:
    paths = draw.sample(_under(files, "settings"), 2)
    values = [dict(line.split(" = ") for line in files[path].splitlines()[1:]) for path in paths]
    shared = [key for key in values[0] if key in values[1] and values[0][key] != values[1][key]]
    if not shared:
        return None
    key = draw.choice(shared)
    job = Job(f"Give {key} in {paths[1]} the value that it has in {paths[0]}.", dict(files), paths)
    job.edit(paths[1], f"{key} = {values[1][key]}\n", f"{key} = {values[0][key]}\n")
    return job


# ----------------------------------------------------------------------------------------------------------- many files
def _replace_everywhere(draw: Draw, files: dict[str, str]) -> Job | None:
    holders = {name: [path for path in _under(files, "notes") if name in files[path]] for name in _NAMES}
    often = [name for name in _NAMES if len(holders[name]) > 1]
    absent = [name for name in _NAMES if not holders[name]]
    if not often:
        return None
    old, new = draw.choice(often), draw.choice(absent)
    job = Job(f"Replace {old} by {new} in every file in notes.", dict(files), _under(files, "notes"))
    for path in holders[old]:
        job.edit(path, old, new)
    return job


def _totals(draw: Draw, files: dict[str, str]) -> Job | None:
    name, what = f"totals-{draw.integer(1, 999)}.txt", draw.choice(("count", "value"))
    told = "the sum of its column count" if what == "count" else "its sum of count times price"
    paths = _under(files, "tables")
    job = Job(
        f"Write {name} with one line for each file in tables, in the order of their names: the name without .csv, a "
        f"colon, a space, and {told}.",
        dict(files),
        paths,
    )
    names = [path.rpartition("/")[2].removesuffix(".csv") for path in paths]
    job.write(name, "".join(f"{n}: {_sum(files[path], what)}\n" for n, path in sorted(zip(names, paths, strict=True))))
    return job


def _sort_letters(draw: Draw, files: dict[str, str]) -> Job | None:
    mark, folder = draw.choice(("Urgent", "Routine")), f"{draw.choice(_MONTHS)}-{draw.integer(1, 99)}"
    paths = _under(files, "inbox")
    chosen = [path for path in paths if files[path].startswith(mark)]
    if not chosen:
        return None
    job = Job(f'Move the letters in inbox that begin with "{mark}" to {folder}, under their names.', dict(files), paths)
    for path in chosen:
        job.write(f"{folder}/{path.rpartition('/')[2]}", files[path])
        job.delete(path)
    return job


def _errors(draw: Draw, files: dict[str, str]) -> Job | None:
    name, level = f"{draw.choice(_AREAS)}-{draw.integer(1, 999)}.txt", draw.choice(("ERROR", "WARNING"))
    paths = _under(files, "logs")
    lines = [line for path in paths for line in files[path].splitlines() if f" {level} " in line]
    if not 2 <= len(lines) <= 12:
        return None
    job = Job(
        f"Collect the {level} lines of all files in logs in {name}: file by file in the order of their names.",
        dict(files),
        paths,
    )
    job.write(name, "".join(f"{line}\n" for line in lines))
    return job


JOBS: dict[int, tuple[Callable[[Draw, dict[str, str]], Job | None], ...]] = {
    1: (_set_value, _new_file, _delete_file, _replace_name),
    2: (_total, _move, _append, _where, _copy_value),
    3: (_replace_everywhere, _totals, _sort_letters, _errors),
}
