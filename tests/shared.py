"""Where the test data lie that are not part of this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared(path: str) -> Path:
    """The file or folder `path` of the shared test data; skips the test where it is absent.

    The data are looked for in the folder named by the environment variable TOOLSTEP_SHARED, else in a folder
    `shared` beside the repository.  Works inside a test and, because it skips the whole module, at import time.
    """
    folder = Path(os.environ.get("TOOLSTEP_SHARED") or ROOT.parent / "shared")
    found = folder / path
    if not found.exists():
        pytest.skip(
            f"no test data at {found}: set TOOLSTEP_SHARED to the folder that holds {path!r}",
            allow_module_level=True,
        )
    return found
