"""`toolstep view`: the page of a folder, kept up to date, for a browser of this machine and nobody else."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from report_page import Page
from test_rollout_types import make
from tiny import tiny_tokenizer
from typer.testing import CliRunner

from toolstep.rollout.cli import app
from toolstep.rollout.storage import EpisodeLog, StorageError, write_json
from toolstep.rollout.viewer.live import LivePage
from toolstep.rollout.viewer.server import PageServer

ROOT = Path(__file__).resolve().parent.parent
CONFIG = {"agent": "an agent", "env": "an env", "seed": 0, "episodes": 3}


def stamp(path):
    """Written long ago, or a second after the page where there is one: the clock of the file system plays no part."""
    page = path.parent / "report.html"
    at = page.stat().st_mtime_ns + 10**9 if page.is_file() else 10**18
    os.utime(path, ns=(at, at))


def add(folder, n=1):
    """Append episodes as a run does."""
    with EpisodeLog(folder / "episodes.jsonl") as log:
        for i in range(n):
            log.write(make([((), (5,), 1.0)], group_id=i, seed=i, metrics={"success": 1.0}))
    stamp(folder / "episodes.jsonl")


@pytest.fixture
def folder(tmp_path):
    write_json(tmp_path / "config.json", CONFIG)
    stamp(tmp_path / "config.json")
    add(tmp_path, 2)
    return tmp_path


def rows(data):
    return Page(data).data("rows")


# --------------------------------------------------------------------------------------------------- page


def test_the_page_is_made_once_and_again_when_episodes_are_newer(folder):
    page = LivePage(folder)
    first = page.read()
    assert len(rows(first)) == 2
    assert (folder / "report.html").read_bytes() == first
    (folder / "report.html").write_bytes(b"as it was left")
    assert page.read() is first
    assert LivePage(folder).read() == b"as it was left"
    add(folder)
    assert len(rows(page.read())) == 3
    assert len(rows((folder / "report.html").read_bytes())) == 3


def test_a_running_evaluation_can_be_looked_at(folder):
    with (folder / "episodes.jsonl").open("ab") as file:
        file.write(b'{"token_ids": [1, ')  # being written
    found = Page(LivePage(folder).read())
    assert len(found.data("rows")) == 2
    assert "Interrupted: 2 of 3" in found.text
    (folder / "episodes.jsonl").write_bytes(b"")
    stamp(folder / "episodes.jsonl")
    assert Page(LivePage(folder).read()).data("rows") == []


def test_speed_is_that_of_the_summary_once_all_is_finished(folder):
    speed = {"seconds": 12.3, "agent_seconds": 1, "env_seconds": 1, "tokens_per_second": 45.6, "episodes_per_second": 1}
    write_json(folder / "summary.json", {"speed": speed})
    assert "45.6 tokens/s" not in Page(LivePage(folder).read()).text
    add(folder)
    assert "45.6 tokens/s" in Page(LivePage(folder).read()).text


def test_a_folder_that_cannot_be_written_to_is_served_from_memory(folder):
    (folder / "report.html").mkdir()
    page = LivePage(folder)
    first = page.read()
    assert "the page is not kept" in page.problem
    assert len(rows(first)) == 2
    assert page.read() is first


def test_a_folder_without_a_configuration_is_called_by_its_name(folder):
    (folder / "config.json").unlink()
    assert folder.name in Page(LivePage(folder).read()).text


def test_a_finished_page_needs_no_episodes(folder):
    data = LivePage(folder).read()
    (folder / "episodes.jsonl").unlink()
    assert LivePage(folder).read() == data


def test_another_tokenizer_can_be_named(folder, tmp_path_factory):
    model = tmp_path_factory.mktemp("model")
    tiny_tokenizer().save_pretrained(model)
    page = LivePage(folder)
    page.read()
    assert "name a tokenizer with --tokenizer" in page.problem
    named = LivePage(folder, str(model))
    texts = Page(named.read()).data("vocabulary")["texts"]
    assert texts == [tiny_tokenizer().decode([i]) for i in (1, 2, 5)]
    assert named.problem == ""


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object, found list"),
        (lambda f: (f / "config.json").write_text("{"), "is no JSON"),
        (lambda f: (f / "episodes.jsonl").write_text("{}\n"), "line 1: no trajectory"),
    ],
)
def test_a_broken_file_is_named(folder, break_it, message):
    break_it(folder)
    with pytest.raises(StorageError, match=message):
        LivePage(folder).read()


@pytest.mark.parametrize(
    ("name", "message"),
    [("none", "does not exist; give the folder"), ("file", "is a file"), ("empty", "neither episodes.jsonl nor")],
)
def test_what_is_no_output_folder_is_one_line(tmp_path, name, message):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(app, ["view", str(tmp_path / name), "--no-open"])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unknown_tokenizer_is_one_line(folder):
    result = CliRunner().invoke(app, ["view", str(folder), "--no-open", "--tokenizer", "/no/such/folder"])
    assert result.exit_code == 2
    assert "no tokenizer '/no/such/folder'" in result.stderr


# ------------------------------------------------------------------------------------------------- server


@pytest.fixture
def server(folder):
    with PageServer(LivePage(folder)) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server, path="/", method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_the_page_and_nothing_else_is_served(server, folder):
    status, headers, data = ask(server)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert data == (folder / "report.html").read_bytes()
    assert headers["Cache-Control"] == "no-store"
    assert ask(server, "/report.html?x")[2] == data
    assert ask(server, method="HEAD")[1]["Content-Length"] == str(len(data))
    assert ask(server, method="HEAD")[2] == b""
    for path in ("/config.json", "/../config.json", "/report.html/", "/favicon.ico"):
        assert ask(server, path)[0] == 404, path
    assert ask(server, method="POST")[0] == 501


def test_reloading_shows_new_episodes(server, folder):
    assert len(rows(ask(server)[2])) == 2
    add(folder)
    assert len(rows(ask(server)[2])) == 3


def test_a_name_that_resolves_to_this_address_gets_nothing(server):
    for host in ("attacker.example", f"attacker.example:{server.server_port}", "127.0.0.1", ""):
        status, _, data = ask(server, host=host)
        assert (status, b"episode" in data) == (421, False), host
    assert ask(server, host=f"localhost:{server.server_port}")[0] == 200


def test_it_listens_at_the_loopback_address_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_file_that_breaks_while_it_runs_is_told(server, folder):
    assert ask(server)[0] == 200
    (folder / "episodes.jsonl").write_text("nonsense\n")
    status, _, data = ask(server)
    assert (status, b"line 1: no trajectory" in data) == (500, True)


def test_a_client_that_goes_away_harms_nobody(server, capfd):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as lost:
        lost.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
    assert ask(server)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_the_command_serves_until_it_is_interrupted_and_exits_0(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("path")
    (path / "toolstep").mkdir()
    for name in ("envs", "agents", "rollout"):
        (path / "toolstep" / name).symlink_to(ROOT / name)
    line = [sys.executable, "-m", "toolstep.rollout.cli", "view", str(folder), "--no-open"]
    running = subprocess.Popen(
        line, env={**os.environ, "PYTHONPATH": str(path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        told = running.stdout.readline()
        address = told.split(" at ")[1].split()[0]
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert len(rows(answer.read())) == 2
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 0
    assert "Traceback" not in errors
    assert "the tokenizer of this run is not at hand" in errors


def test_a_port_that_is_taken_is_one_line(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["view", str(folder), "--no-open", "--port", str(port)])
    assert result.exit_code == 2
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in result.stderr


def test_the_browser_is_opened_once_the_page_is_there(folder, monkeypatch):
    import webbrowser

    from toolstep.rollout.viewer import server as module

    seen = []
    opened = threading.Event()

    def browse(address):
        with urllib.request.urlopen(address, timeout=60) as answer:
            seen.append(len(rows(answer.read())))
        opened.set()

    def stop():
        assert opened.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(webbrowser, "open", browse)
    threading.Thread(target=stop).start()
    before = signal.getsignal(signal.SIGTERM)
    module.serve(LivePage(folder), 0, open_browser=True)
    assert seen == [2]
    assert signal.getsignal(signal.SIGTERM) is before
