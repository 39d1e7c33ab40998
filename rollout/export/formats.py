"""Format: what `toolstep rollout` can write, and by which name of a file.  Imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path


class Format(StrEnum):
    """Forms of a rollout on disk; see `docs/exports.md`."""

    NPZ = "npz"
    JSONL = "jsonl"
    TRL = "trl"
    VERL = "verl"
    TORCHRL = "torchrl"
    SKYRL = "skyrl"
    PARQUET = "parquet"
    DATASETS = "datasets"

    @property
    def suffix(self) -> str:
        """How the name of its file ends; "" for a folder."""
        return _SUFFIXES[self]

    @property
    def needs_ids(self) -> bool:
        """Whether it holds token ids and nothing else, so that an agent without them cannot fill it."""
        return self not in (Format.JSONL, Format.PARQUET, Format.DATASETS)

    @property
    def package(self) -> str | None:
        """The package that writes it; None where toolstep itself can."""
        return {Format.PARQUET: "pyarrow", Format.DATASETS: "datasets"}.get(self)


_SUFFIXES = {
    Format.NPZ: ".npz",
    Format.JSONL: ".jsonl",
    Format.TRL: ".json",
    Format.VERL: ".jsonl",
    Format.TORCHRL: ".pt",
    Format.SKYRL: ".json",
    Format.PARQUET: ".parquet",
    Format.DATASETS: "",
}
_BY_SUFFIX = {f.suffix: f for f in (Format.NPZ, Format.JSONL, Format.PARQUET, Format.TORCHRL)}


def choose_format(out: Path, named: Format | None = None) -> Format:
    """The format that is `named`, or else the one that the suffix of `out` says.

    Raises ValueError where the suffix says none, or another one than was named, and ImportError where the package that
    writes it is missing; both say what to do.
    """
    chosen = _by_suffix(out) if named is None else named
    # A folder may have a dot in its name, but not be called as the file of another format.
    if out.suffix != chosen.suffix and (chosen.suffix or out.suffix in _SUFFIXES.values()):
        writes = f"a file *{chosen.suffix}" if chosen.suffix else "a folder"
        raise ValueError(f"--format {chosen} writes {writes}, so --out cannot be {out}")
    if chosen.package is not None and find_spec(chosen.package) is None:
        raise ImportError(f"--format {chosen} needs {chosen.package}; run: pip install 'toolstep[{chosen}]'")
    return chosen


def _by_suffix(out: Path) -> Format:
    found = _BY_SUFFIX.get(out.suffix)
    if found is None:
        raise ValueError(
            f"{out}: unknown suffix {out.suffix!r}; use .npz for a token-level batch, .jsonl for episodes, .parquet "
            f"for a table, or say --format ({', '.join(Format)})"
        )
    return found
