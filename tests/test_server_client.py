"""Requests: retried by rule, cut off by deadlines, so many at a time, and no key anywhere but in its header."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from server_fixtures import PATIENCE, Answer, Got, nobody, recorded, scripted, soon
from test_server_replies import VLLMServer
from tiny import TEMPLATE, tiny_tokenizer
from typer.testing import CliRunner

from toolstep.agents import ServerError, make_agent
from toolstep.agents.server.address import openai_address, server_address
from toolstep.agents.server.client import Client
from toolstep.agents.server.retry import Retries, may_retry
from toolstep.rollout.cli import app

QUICK = Retries(most=3, first=0.001, longest=0.002)
KEY = "sk-test-0123456789abcdef"


def client(url: str, **options: Any) -> Client:
    options.setdefault("retries", QUICK)
    return Client(url, **options)


def script(*answers: Answer) -> Any:
    """The answers one after the other, the last for ever."""
    left = list(answers)

    def rule(got: Got) -> Answer:
        return left.pop(0) if len(left) > 1 else left[0]

    return rule


OK = Answer({"fine": True})


# ------------------------------------------------------------------------------------------------------------ retries
@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (Answer({"error": {"message": "slow down"}}, 429), "429"),
        (Answer({"detail": "broken"}, 500), "500"),
        (Answer(b"<html>bad gateway</html>", 502), "502"),
        (Answer({"message": "loading"}, 503), "503"),
        (Answer({"fine": True}, cut=4), "cut_reply"),
        (Answer(b'{"fine": tr'), "cut_reply"),
        (Answer(b""), "cut_reply"),
    ],
)
def test_what_may_pass_is_asked_again_with_the_same_body(bad, kind):
    with scripted(script(bad, bad, OK)) as server:
        asking = client(server.url)
        assert asking.post("/x", {"seed": 3}).result(PATIENCE) == {"fine": True}
        assert asking.counts() == {"requests": 1, "retried": {kind: 2}, "failed": {}}
        assert [g.body for g in server.got] == [{"seed": 3}] * 3
        asking.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 408, 409, 413, 418, 422])
def test_another_4xx_is_never_asked_again(status):
    with scripted(script(Answer({"error": {"message": "no,\n  never"}}, status))) as server:
        asking = client(server.url)
        with pytest.raises(ServerError, match=rf"/x answered {status}: no, never") as caught:
            asking.post("/x", {}).result(PATIENCE)
        assert (caught.value.kind, len(server.got)) == (str(status), 1)
        assert asking.counts() == {"requests": 1, "retried": {}, "failed": {str(status): 1}}
        asking.close()
    assert not may_retry(status)


def test_a_redirect_is_not_followed_since_the_key_is_for_one_server():
    with scripted(script(Answer({}, 307, {"location": "/elsewhere"}))) as server:
        asking = client(server.url, key=KEY)
        with pytest.raises(ServerError, match="answered 307"):
            asking.post("/x", {}).result(PATIENCE)
        assert [g.path for g in server.got] == ["/x"]
        asking.close()


def test_in_the_end_it_is_given_up_and_said_how_often_it_was_tried():
    with scripted(script(Answer({"error": {"message": "busy"}}, 503))) as server:
        asking = client(server.url)
        with pytest.raises(ServerError, match=r"503: busy \(after 4 attempts\)"):
            asking.post("/x", {}).result(PATIENCE)
        assert asking.counts() == {"requests": 1, "retried": {"503": 3}, "failed": {"503": 1}}
        asking.close()


def test_an_unreachable_server_is_told_as_such():
    with nobody() as url:
        asking = client(url)
        with pytest.raises(ServerError, match=r"cannot connect .*is the server running") as caught:
            asking.get("/v1/models")
        assert caught.value.kind == "unreachable"
        assert asking.counts()["retried"] == {"unreachable": 3}
        asking.close()


def test_waits_double_with_jitter_that_the_seed_decides():
    rule = Retries(most=9, first=1.0, longest=10.0)
    error = ServerError("503", "")
    waits = [rule.delay(n, 7, error) for n in range(8)]
    assert waits == [rule.delay(n, 7, error) for n in range(8)]
    assert waits != [rule.delay(n, 8, error) for n in range(8)]
    for n, wait in enumerate(waits):
        assert min(10.0, 2.0**n) / 2 <= wait <= min(10.0, 2.0**n)
    assert len({round(rule.delay(0, seed, error), 6) for seed in range(100)}) > 90
    assert rule.delay(0, 7, ServerError("429", "", retry_after=25.0)) == 25.0
    with pytest.raises(ValueError, match="expected most >= 0"):
        Retries(most=-1)


def test_retry_after_is_waited_for_and_not_beyond_the_deadline():
    with scripted(script(Answer({}, 429, {"retry-after": "60"}))) as server:
        asking = client(server.url, deadline=30.0)
        with pytest.raises(ServerError, match="429"):
            asking.post("/x", {}).result(PATIENCE)
        assert len(server.got) == 1
        asking.close()


def test_an_answer_that_does_not_come_is_a_timeout():
    enough = threading.Event()

    def never(got: Got) -> Answer:
        enough.wait(PATIENCE)
        return OK

    with scripted(never) as server:
        asking = client(server.url, timeout=0.05, retries=Retries(2, 0.001, 0.001))
        with pytest.raises(ServerError, match=r"no answer in 0.05 s \(after 3 attempts\)"):
            asking.post("/x", {}).result(PATIENCE)
        assert asking.counts() == {"requests": 1, "retried": {"timeout": 2}, "failed": {"timeout": 1}}
        asking.close()
        hasty = client(server.url, timeout=PATIENCE, deadline=0.05)
        with pytest.raises(ServerError, match="no answer"):
            hasty.post("/x", {}).result(PATIENCE)
        hasty.close()
        enough.set()


# --------------------------------------------------------------------------------------------- many, and none left over
def test_no_more_requests_are_under_way_than_may_be():
    together = threading.Barrier(3)

    def rule(got: Got) -> Answer:
        together.wait(PATIENCE)  # three are there at once, or nobody gets an answer
        time.sleep(0.1)  # for a fourth to come, where one may
        return OK

    with scripted(rule) as server:
        asking = client(server.url, concurrency=3)
        futures = [asking.post("/x", {"n": n}) for n in range(12)]
        assert [f.result(PATIENCE) for f in futures] == [{"fine": True}] * 12
        assert server.most == 3
        assert {g.body["n"] for g in server.got} == set(range(12))
        asking.close()


def test_a_closed_client_leaves_nothing_and_can_be_used_again():
    def threads() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "toolstep-server-client"]

    before = len(threads())
    with scripted(script(OK)) as server:
        asking = client(server.url)
        for _ in range(2):
            assert asking.get("/x") == {"fine": True}
            assert len(threads()) == before + 1
            asking.close()
            asking.close()
            soon(lambda: len(threads()) == before)
        asking.get("/x")
        del asking
        gc.collect()
        soon(lambda: len(threads()) == before)  # forgotten, not closed


def test_a_reply_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr("toolstep.agents.server.client._MOST_BYTES", 1000)
    with scripted(script(Answer({"x": "y" * 2000}))) as server:
        asking = client(server.url)
        with pytest.raises(ServerError, match="more than 1000 bytes"):
            asking.get("/x")
        assert len(server.got) == 1
        asking.close()


# ------------------------------------------------------------------------------------------------- addresses and keys
def test_addresses_say_where_and_how():
    one = server_address("http://host:8000/base/?dialect=sglang&model=a/b&tokenizer=./t&concurrency=4&timeout=2.5")
    assert (one.url, one.model) == ("http://host:8000/base", "a/b")
    assert one.options == {"dialect": "sglang", "tokenizer": "./t", "concurrency": 4, "timeout": 2.5}
    two = openai_address("org/model@v1@http://127.0.0.1:1/v1?key_env=X")
    assert (two.url, two.model, two.options) == ("http://127.0.0.1:1/v1", "org/model@v1", {"key_env": "X"})
    assert openai_address("gpt-x").url == "https://api.openai.com/v1"
    assert openai_address("gpt-x?retries=0").options == {"retries": 0}


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (server_address, "host:8000", "expected an address such as http"),
        (server_address, "ftp://host", "expected an address such as http"),
        (server_address, "http://host:99999", "[Pp]ort"),
        (server_address, "http://:80", "expected an address such as http"),
        (server_address, f"http://user:{KEY}@host", "must not hold a credential"),
        (server_address, f"http://host?api_key={KEY}", "unknown option 'api_key'.*from the environment alone"),
        (server_address, f"http://host#{KEY}", "leave it out"),
        (openai_address, f"m@http://host/v1?seed=off#{KEY}", "leave it out"),
        (server_address, "http://host?colour=red", "unknown option 'colour' in an address; known: dialect"),
        (server_address, "http://host?concurrency=0", "option concurrency .*: expected a whole number >= 1, found '0'"),
        (server_address, "http://host?timeout=nan", "expected seconds > 0"),
        (server_address, "http://host?logprobs=yes", "expected on or off, found 'yes'"),
        (openai_address, "@http://host", "found no model"),
        (openai_address, "m@http://host?dialect=vllm", "unknown option 'dialect'"),
    ],
)
def test_an_address_that_says_something_else_is_refused(parse, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse(text)
    assert KEY not in str(caught.value)


def test_a_key_is_in_the_environment_or_nowhere(monkeypatch):
    address = server_address("http://host?key_env=MY_KEY")
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ValueError, match="key_env=MY_KEY: there is no such environment variable"):
        address.key()
    with pytest.raises(ValueError, match="key_env names the environment variable") as caught:
        server_address(f"http://host?key_env={KEY}").key()
    assert KEY not in str(caught.value)
    monkeypatch.setenv("MY_KEY", f"  {KEY}\n")
    assert address.key() == KEY
    monkeypatch.setenv("MY_KEY", "sk\nsecond line")
    with pytest.raises(ValueError, match="holds what can be no key") as caught:
        address.key()
    assert "second" not in str(caught.value)
    assert server_address("http://host").key("NOT_SET_ANYWHERE") is None
    assert KEY not in repr(address)
    assert KEY not in repr(Client("http://host", key=KEY))


@pytest.mark.parametrize("failing", [False, True])
def test_a_key_is_in_no_file_no_log_and_no_output(tmp_path: Path, monkeypatch, caplog, failing):
    """A whole evaluation with everything logged; the server repeats the key in its errors, as some do."""
    caplog.set_level(logging.DEBUG)
    usual = VLLMServer()

    def rule(got: Got) -> Answer:
        if got.headers.get("authorization") != f"Bearer {KEY}":
            return Answer({"error": {"message": "no key"}}, 401)
        if failing and got.body is not None and isinstance(got.body["prompt"], list) and len(got.body["prompt"]) > 20:
            if got.body["seed"] % 2:
                return Answer({"error": {"message": f"the key {KEY} is used up"}}, 403)
            return Answer(("the key " + "x" * 380 + KEY).encode(), 500)  # where a message is cut
        return usual(got)

    (tmp_path / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    monkeypatch.setenv("MY_KEY", KEY)
    models = recorded("vllm_models")
    models["data"][0]["max_model_len"] = 4096
    plain = rule

    def roomy(got: Got) -> Answer:
        return Answer(models) if got.path == "/v1/models" and "authorization" in got.headers else plain(got)

    with scripted(roomy) as server:
        agent = f"server:{server.url}?tokenizer={tmp_path / 'tokenizer'}&key_env=MY_KEY&retries=1"
        line = ["eval", "calculator", "--agent", agent, "--episodes", "3", "--num-envs", "2", "--json"]
        line += ["--chat-template", str(tmp_path / "template.jinja"), "--out", str(tmp_path / "run")]
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output
        assert len(server.of("/v1/completions")) > 3
    document = json.loads(done.stdout)
    assert document["summary"]["statuses"] == ({"agent_error": 3} if failing else {"ok": 3})
    if failing:
        assert sum(document["requests"]["failed"].values()) == 3
        episodes = (tmp_path / "run" / "episodes.jsonl").read_text(encoding="utf-8")
        assert len(re.findall(r"answered (?:403|500): the key (?:\*|x)", episodes)) == 3
    everything = [done.output, caplog.text, pickle.dumps(document).decode("latin1")]
    everything += [p.read_text("utf-8", "replace") for p in sorted((tmp_path / "run").rglob("*")) if p.is_file()]
    assert len(everything) > 5
    assert not [text for text in everything if KEY[:12] in text]


@pytest.mark.parametrize(
    ("status", "message"), [(401, "answered 401.*the key is missing or wrong"), (None, "cannot connect")]
)
def test_a_server_that_cannot_be_asked_is_one_line_and_exit_code_2(tmp_path, status, message):
    with nobody() as url, scripted(script(Answer({}, status or 200))) as server:
        address = url if status is None else server.url
        done = CliRunner().invoke(app, ["eval", "calculator", "--agent", f"server:{address}?retries=0"])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert re.search(message, done.stderr)


def test_names_of_agents_are_addresses():
    with pytest.raises(ValueError, match="unknown agent 'server:'"):
        make_agent("server:")
    with pytest.raises(ValueError, match="expected an address such as"):
        make_agent("server:localhost:8000")
    assert "server:http://HOST:PORT" in " ".join(CliRunner().invoke(app, ["eval", "--help"]).output.split())
