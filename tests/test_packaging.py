"""The floor plan: what is packaged, and who may import whom."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("envs", "agents", "rollout")
MODULES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))


def test_every_sub_package_is_listed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"toolstep." + ".".join(p.parent.relative_to(ROOT).parts) for p in MODULES}
    assert found == listed


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at any depth of its code."""
    out = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            out |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
    return out


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_in_one_direction(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    forbidden = {
        "envs": ("torch", "toolstep.agents", "toolstep.rollout"),
        "agents": ("toolstep.rollout",),
        "rollout": (),
    }[room]
    seen = imports(path)
    for name in forbidden:
        assert not [m for m in seen if m == name or m.startswith(name + ".")], f"{path} imports {name}"
    if path.name != "cli.py":
        assert not [m for m in seen if m.startswith("toolstep.rollout.cli")]


# A request to a worker process is a pickle that we made ourselves; what comes back is JSON.  Writing harms nobody.
READS = {"envs/tools/worker.py": {"pickle.loads"}}
# The program that runs a model's code locks its process up first (tests/test_builtin_python.py); no other file may.
RUNS = {"envs/tools/builtin/cpython_worker.py"}
WRITES = {"pickle.dumps", "marshal.dumps"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_foreign_text_never_reaches_an_interpreter(path: Path) -> None:
    used = set()
    runs = str(path.relative_to(ROOT)) in RUNS
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert runs or node.func.id not in ("eval", "exec", "compile"), f"{path}:{node.lineno}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(f"{node.value.id}.{node.attr}")
        if isinstance(node, ast.ImportFrom):
            assert node.module not in ("pickle", "marshal", "shelve"), f"{path}:{node.lineno}"
    serialised = {u for u in used if u.split(".")[0] in ("pickle", "marshal", "shelve")}
    assert serialised <= WRITES | READS.get(str(path.relative_to(ROOT)), set())
    assert not used & {"os.system", "os.popen"}
