"""The file tools: what they do, their quota, and that no path leads out of the folder."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.tools.builtin import Files
from toolstep.envs.tools.builtin.files import FileError, Scratch
from toolstep.envs.tools.builtin.folder import Jailed, PathError, split
from toolstep.envs.tools.builtin.sandbox import SandboxError
from toolstep.envs.tools.factory import EpisodeInfo, tools_of
from toolstep.envs.types import Message, Task

pytestmark = pytest.mark.skipif(not Jailed.supported(), reason="files can't be opened from an open folder here")

TASKS = [{"prompt": "Tidy up.", "answer": "done"}]
INFO = EpisodeInfo(Task("t", (Message("user", "Tidy up."),)))
SECRET = "swordfish-7731"


def opened(files: Any = None, **quota: int) -> Scratch:
    made = Files(files, **quota).make(INFO)
    assert isinstance(made, Scratch)
    return made


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    made = opened({"notes.txt": "one\ntwo\nthree\n", "src/main.py": "print('hi')\n"})
    yield made
    made.close()


def do(scratch: Scratch, name: str, **arguments: Any) -> str:
    """What a model reads."""
    made = next(t for t in tools_of(scratch) if t.name == name)
    return str(made.call(**made.bind(arguments)))


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


# -------------------------------------------------------------------------------------------------------- ordinary use
def test_files_are_listed_read_written_edited_and_deleted(scratch: Scratch) -> None:
    assert do(scratch, "list_files") == "notes.txt (14 bytes)\nsrc/main.py (12 bytes)"
    assert do(scratch, "list_files", path="src/") == "src/main.py (12 bytes)"
    assert do(scratch, "read_file", path="notes.txt") == "one\ntwo\nthree\n"
    assert do(scratch, "write_file", path="a/b/new.txt", content="é\n") == "wrote 2 characters to a/b/new.txt"
    assert do(scratch, "read_file", path="./a//b/new.txt") == "é\n"
    assert do(scratch, "edit_file", path="notes.txt", old="two\n", new="2\n") == "replaced 1 passage in notes.txt"
    assert do(scratch, "read_file", path="/notes.txt") == "one\n2\nthree\n"
    assert do(scratch, "delete_file", path="a/b/new.txt") == "deleted a/b/new.txt"
    assert do(scratch, "list_files", path="a") == "a/b/ (0 bytes)".replace(" (0 bytes)", "")
    assert do(scratch, "delete_file", path="a/b") == "deleted a/b"
    assert scratch.snapshot() == {"files": {"notes.txt": "one\n2\nthree\n", "src/main.py": "print('hi')\n"}}
    do(scratch, "write_file", path="empty", content="")
    assert do(scratch, "read_file", path="empty") == "(the file is empty)"


def test_text_is_kept_to_the_letter(scratch: Scratch) -> None:
    for text in ("a\r\nb\r\n", "no end", "\n\n", "tab\there", "null \x00 byte", "日本語\u2028x", "<|im_end|>"):
        do(scratch, "write_file", path="x", content=text)
        assert do(scratch, "read_file", path="x") == text
        assert scratch.snapshot()["files"]["x"] == text


def test_long_files_are_read_in_parts(scratch: Scratch) -> None:
    text = "".join(f"line {i}\n" for i in range(1, 1001))
    do(scratch, "write_file", path="long", content=text)
    seen, start, parts = "", 1, 0
    while start <= 1000:
        shown = do(scratch, "read_file", path="long", start=start)
        assert len(shown) < 3_100
        body, _, note = shown.rpartition("[lines ")
        seen += body
        start = int(note.split(" to ")[1].split(" ")[0]) + 1
        parts += 1
    assert seen == text
    assert parts == 3
    do(scratch, "write_file", path="wide", content="x" * 100_000 + "\nend\n")
    shown = do(scratch, "read_file", path="wide")
    assert shown.startswith("x" * 3_000 + "\n[line 1 of 2, 97001 characters of it left out; read on with start=2]")
    assert do(scratch, "read_file", path="wide", start=2).startswith("end\n")


def test_a_long_list_is_cut() -> None:
    made = opened({f"folder/file-number-{i}": "x" for i in range(200)}, max_output=500)
    shown = made.list_files.call()
    assert len(shown) < 600
    assert shown.endswith("[185 more; name a folder to see its files]")
    made.close()


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("read_file", {"path": "note.txt"}, "there is no file 'note.txt'"),
        ("read_file", {"path": "src"}, "'src' is a folder"),
        ("read_file", {"path": "."}, "'.' is a folder"),
        ("read_file", {"path": "notes.txt/x"}, "'notes.txt' on the way is no folder"),
        ("read_file", {"path": "notes.txt", "start": 4}, "from 1 to 3"),
        ("read_file", {"path": "notes.txt", "start": 0}, "from 1 to 3"),
        ("list_files", {"path": "nowhere"}, "there is no 'nowhere'"),
        ("write_file", {"path": "src", "content": "x"}, "'src' is a folder"),
        ("write_file", {"path": "", "content": "x"}, "'' is the folder itself"),
        ("write_file", {"path": "x" * 200, "content": "x"}, "longer than 100 bytes"),
        ("write_file", {"path": "a/" * 20 + "x", "content": "x"}, "more than 10 names"),
        ("write_file", {"path": "a\\b", "content": "x"}, "backslash"),
        ("write_file", {"path": "a\x00b", "content": "x"}, "control character"),
        ("write_file", {"path": "\ud800", "content": "x"}, "half a character"),
        ("edit_file", {"path": "notes.txt", "old": "tow", "new": "x"}, "the nearest line is 'two'"),
        ("edit_file", {"path": "notes.txt", "old": "t", "new": "x"}, "2 times"),
        ("edit_file", {"path": "notes.txt", "old": "", "new": "x"}, "old is empty"),
        ("delete_file", {"path": "src"}, "not empty"),
        ("delete_file", {"path": "/"}, "cannot be deleted"),
        ("delete_file", {"path": "none"}, "there is no file 'none'"),
    ],
)
def test_errors_say_what_to_do(scratch: Scratch, name: str, arguments: dict[str, Any], told: str) -> None:
    before = scratch.snapshot()
    with pytest.raises((PathError, FileError), match=told.replace("(", r"\(")):
        do(scratch, name, **arguments)
    assert scratch.snapshot() == before


def test_what_is_no_text_is_told(scratch: Scratch) -> None:
    (scratch.path / "image").write_bytes(b"\xff\xd8\x00")
    with pytest.raises(FileError, match="'image' is no text"):
        do(scratch, "read_file", path="image")


# --------------------------------------------------------------------------------------------------------------- quota
def test_the_quota_holds_and_nothing_is_half_written() -> None:
    made = opened({"a": "x" * 50}, max_bytes=100, max_file_bytes=60, max_files=3)
    for path, content, told in (
        ("a", "y" * 61, "a file has at most 60"),
        ("b", "y" * 51, "101 bytes together, at most 100"),
        ("é", "é" * 26, "102 bytes together"),
    ):
        with pytest.raises(FileError, match=told):
            do(made, "write_file", path=path, content=content)
    assert made.snapshot() == {"files": {"a": "x" * 50}}
    do(made, "write_file", path="a", content="z" * 60)
    do(made, "write_file", path="b", content="")
    do(made, "write_file", path="c", content="")
    with pytest.raises(FileError, match="4 files and folders, at most 3"):
        do(made, "write_file", path="d/e", content="")
    with pytest.raises(FileError, match="a file has at most 60"):
        do(made, "edit_file", path="a", old="z" * 60, new="z" * 61)
    assert list(made.snapshot()["files"]) == ["a", "b", "c"]
    made.close()


@pytest.mark.parametrize(
    ("files", "quota", "message"),
    [
        ({"a": "x" * 100}, {"max_bytes": 50}, "do not fit: the files would have 100 bytes"),
        ({"../a": "x"}, {}, "leads out of the folder"),
        ({"": "x"}, {}, "names no file"),
        ("no/such/folder", {}, "is no folder"),
        (None, {"max_files": 0}, "max_files"),
    ],
)
def test_what_cannot_be_there_at_the_start_is_refused(files: Any, quota: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Files(files, **quota)


def test_a_folder_is_copied_without_its_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a.txt").write_text("a")
    (source / "link").symlink_to(outside / "secret")
    (source / "linked").symlink_to(outside, target_is_directory=True)
    made = opened(source)
    assert made.snapshot() == {"files": {"sub/a.txt": "a"}}
    do(made, "write_file", path="sub/a.txt", content="changed")
    made.close()
    assert (source / "sub" / "a.txt").read_text() == "a"


# ------------------------------------------------------------------------------------------------------------- attacks
PATHS = [
    "../secret", "../../etc/passwd", "/../secret", "a/../../secret", "./.././secret", "..", "../", "/etc/passwd",
    "//etc/passwd", "/proc/self/environ", "/dev/zero", "/dev/stdin", "~/secret", "$HOME/secret", "%2e%2e/secret",
    "..\\secret", "C:\\secret", "secret\x00.txt", "\x00", "....//secret", ".../secret", "a/" * 3_000, "." * 5_000,
    "\u202e/secret", "file:///etc/passwd",
]  # fmt: skip


def test_no_path_leads_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    made = opened({"a/inside.txt": "x"})
    for path in PATHS:
        for name, more in (
            ("read_file", {}),
            ("list_files", {}),
            ("write_file", {"content": "pwned"}),
            ("edit_file", {"old": "s", "new": "pwned"}),
            ("delete_file", {}),
        ):
            try:
                shown = do(made, name, path=path, **more)
            except (PathError, FileError) as error:
                shown = str(error)
            assert SECRET not in shown, (path, name)
            assert "root:" not in shown, (path, name)
            assert len(shown) < 3_500, (path, name)
    assert (tmp_path / "secret").read_text() == SECRET
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["secret", made.path.name])
    made.close()


def test_links_pipes_sockets_and_second_names_are_not_followed(scratch: Scratch, tmp_path: Path) -> None:
    """Something else than the tools may put them there: a server or a program that shares the folder."""
    (tmp_path / "secret").write_text(SECRET)
    (scratch.path / "link").symlink_to(tmp_path / "secret")
    (scratch.path / "folder").symlink_to(tmp_path, target_is_directory=True)
    (scratch.path / "inner").symlink_to("notes.txt")
    (scratch.path / "broken").symlink_to(tmp_path / "made")
    os.link(tmp_path / "secret", scratch.path / "second")
    os.mkfifo(scratch.path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(scratch.path / "s"))
        for path in ("link", "folder/secret", "inner", "broken", "second", "pipe", "s"):
            with pytest.raises(PathError, match=r"no plain file|no folder"):
                do(scratch, "read_file", path=path)
    assert do(scratch, "list_files") == "notes.txt (14 bytes)\nsecond (14 bytes)\nsrc/main.py (12 bytes)"
    with pytest.raises(PathError, match="no folder"):
        do(scratch, "write_file", path="folder/new", content="pwned")
    with pytest.raises(PathError, match="no folder"):
        do(scratch, "delete_file", path="folder/secret")
    for path in ("link", "second", "broken", "pipe"):  # the name is replaced, what it led to stays
        do(scratch, "write_file", path=path, content="own")
        assert do(scratch, "read_file", path=path) == "own"
    assert (tmp_path / "secret").read_text() == SECRET
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


def test_a_link_that_comes_and_goes_is_never_followed(scratch: Scratch, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text(SECRET)
    stop = threading.Event()
    place, real = scratch.path / "place", scratch.path / "real"
    real.mkdir()
    (real / "x").write_text("inside")
    seen: list[str] = []

    def swap() -> None:
        while not stop.is_set():
            for act in (
                lambda: place.symlink_to(outside, target_is_directory=True),
                place.unlink,
                lambda: real.rename(place),
                lambda: place.rename(real),
                lambda: shutil.rmtree(place),  # a folder that a write has made; it refuses links
            ):
                with contextlib.suppress(OSError):
                    act()
                # A real folder stays until it has been read once: on busy cores no read might meet one by chance.
                after = len(seen) + 2
                while place.is_dir() and not place.is_symlink() and "inside" not in seen and len(seen) < after:
                    if stop.wait(0.0001):
                        break
            real.mkdir(exist_ok=True)
            (real / "x").write_text("inside")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for i in range(2_000):
            try:
                seen.append(do(scratch, "read_file", path="place/x"))
            except (PathError, FileError):
                seen.append("error")
            if "inside" not in seen:
                continue  # a write makes the folder anew, and the real one could be kept out of its place for ever
            try:
                do(scratch, "write_file", path=f"place/new{i % 50}", content="own")
            except (PathError, FileError):
                continue
    finally:
        stop.set()
        thread.join()
    assert "inside" in seen
    assert not any(SECRET in text for text in seen)
    assert sorted(p.name for p in outside.iterdir()) == ["x"]
    assert (outside / "x").read_text() == SECRET


@given(
    st.text(max_size=60) | st.lists(st.sampled_from(["..", ".", "", "a", "\\", "\x00", "b"]), max_size=12).map("/".join)
)
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_path_inside_or_an_error(path: str) -> None:
    try:
        parts, message = split(path), ""
    except PathError as error:
        parts, message = [], str(error)
    assert len(message) < 300
    assert all(part not in ("", ".", "..") and "/" not in part and "\x00" not in part for part in parts)


# ---------------------------------------------------------------------------------------------------------- in the env
def test_rows_have_folders_of_their_own_and_the_state_is_scored() -> None:
    def reward(record: Any) -> float:
        return float(record.state["files"] == {"a.txt": "1", "b.txt": "2"})

    env = ToolUseVectorEnv(2, TASKS, tools=[Files({"a.txt": "1"})], reward=reward, autoreset_mode="Disabled")
    for _ in range(2):
        env.reset(seed=0)
        env.step([call("write_file", path="b.txt", content="2") + call("read_file", path="b.txt"), call("list_files")])
        shown = [[m.content for m in messages if m.role == "tool"] for messages in env.get_attr("messages")]
        assert shown[0][1] == "2"
        assert shown[1] == ["a.txt (1 bytes)"]
        assert env.step(["done", "done"])[1].tolist() == [1.0, 0.0]
    env.close()


def test_errors_are_results_and_the_episode_goes_on() -> None:
    env = ToolUseEnv(TASKS, tools=["files"])
    env.reset(seed=0)
    _, _, _, _, info = env.step(call("read_file", path="../x") + call("write_file", path="x", content="y"))
    assert info["call_statuses"] == ["tool_error", "ok"]
    assert "leads out of the folder" in env.messages[-2].content
    env.close()


def test_a_thousand_resets_leave_no_folder_and_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    open_before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    env = ToolUseVectorEnv(4, TASKS, tools=[Files({"a": "x"})], autoreset_mode="Disabled")
    for i in range(250):
        env.reset(seed=i)
    env.step([call("list_files")] * 4)
    assert len(list(tmp_path.iterdir())) == 4
    env.close()
    assert list(tmp_path.iterdir()) == []
    forgotten: Any = ToolUseEnv(TASKS, tools=["files"])
    forgotten.reset(seed=0)
    del forgotten
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    if open_before:
        assert len(list(Path("/proc/self/fd").iterdir())) <= open_before


def test_a_system_that_cannot_keep_paths_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jailed, "supported", lambda: False)
    with pytest.raises(SandboxError, match="Linux, macOS"):
        Files()
