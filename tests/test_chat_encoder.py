"""Encoding by provenance: control tokens come from the template, and from nothing else (I4)."""

from __future__ import annotations

import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from chat_fixtures import SOFT, SPECIAL, shared_tokenizer, tiny_tokenizer
from hypothesis import given, settings
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import Unigram
from transformers import PreTrainedTokenizerFast

from toolstep.envs.chat.encoder import ControlTokens, Encoder, encoder_for
from toolstep.envs.chat.errors import UnsupportedTokenizer

CONTROL = (*SPECIAL, *SOFT)
_PIECE = (
    st.sampled_from(CONTROL)
    | st.sampled_from(CONTROL).map(lambda t: t[:-1])
    | st.sampled_from(CONTROL).map(lambda t: t[1:])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(
        ["\n", " ", "\t", "\u200d", "e\u0301", "\U0001f468\u200d\U0001f469", "\u0e33", "\ufdd0", "\U000f0000"]
    )
)
_TEXT = st.lists(_PIECE, max_size=6).map("".join)
NAMES = ["tiny", "minimind", "qwen-12k", "smollm2-12k", "mistral-spm-v3"]


def _tokenizer(name):
    return tiny_tokenizer() if name == "tiny" else shared_tokenizer(name)


@pytest.mark.parametrize("name", NAMES)
def test_text_of_the_template_gets_the_ids_that_the_tokenizer_gives(name):
    tokenizer = _tokenizer(name)
    encoder = encoder_for(tokenizer)

    @settings(max_examples=80, deadline=None)
    @given(_TEXT)
    def check(text):
        # in the middle of a context: SentencePiece treats the start of a text differently
        whole = tokenizer.encode("<|im_end|>" + text, add_special_tokens=False)
        assert [whole[0], *encoder.encode(text)[0].tolist()] == whole

    check()


@pytest.mark.parametrize("name", NAMES)
def test_foreign_text_never_becomes_a_control_token(name):
    encoder = encoder_for(_tokenizer(name))

    @settings(max_examples=80, deadline=None)
    @given(_TEXT, _TEXT, _TEXT)
    def check(before, foreign, after):
        # also not together with the template's own text beside it
        text, span = before + foreign + after, (len(before), len(before) + len(foreign))
        ids, body = encoder.encode(text, [span], [span])
        apart = [*encoder.encode(before)[0], *encoder.encode(after)[0]]
        control = [i for i in ids.tolist() if i in encoder.control_ids]
        assert len(ids) == len(body)
        if before and after and foreign:
            assert control == [i for i in apart if i in encoder.control_ids]
        assert not any(i in encoder.control_ids for i in ids[body].tolist())

    check()


@pytest.mark.parametrize("name", NAMES)
def test_text_that_looks_like_the_encoders_own_token_is_text(name):
    tokenizer = _tokenizer(name)
    encoder, other = encoder_for(tokenizer), Encoder(tokenizer)
    for text in ("\U000ffffdanchor\U000ffffd", other._anchor):  # whatever another encoder uses, or has used
        ids, _ = encoder.encode(f"a{text}b", [(0, len(text) + 2)])
        assert not encoder.control_ids & set(ids.tolist())
        assert tokenizer.decode(ids.tolist()).strip() == f"a{text}b"
    assert pickle.loads(pickle.dumps(other)).encode("a b")[0].tolist() == encoder.encode("a b")[0].tolist()


def test_body_flags_are_those_of_tokens_that_hold_foreign_characters():
    encoder = encoder_for(tiny_tokenizer())
    text = "<|im_start|>tool\nhot\n<|im_end|>"
    start = text.index("hot")
    ids, body = encoder.encode(text, [(start, start + 3)], [(start, start + 3)])
    assert tiny_tokenizer().decode(ids[body]) == "hot"
    assert ids.dtype == np.int64
    assert body.dtype == np.bool_


def test_lone_surrogates_are_read_as_replacement_characters():
    encoder = encoder_for(tiny_tokenizer())
    assert encoder.encode("a\ud800b")[0].tolist() == encoder.encode("a\ufffdb")[0].tolist()
    assert encoder.prefix("\ud800" * 4, 3) == "\ufffd"


@pytest.mark.parametrize("name", NAMES)
def test_prefix_holds_no_more_tokens_than_asked_and_no_fewer_than_possible(name):
    encoder = encoder_for(_tokenizer(name))

    @settings(max_examples=60, deadline=None)
    @given(_TEXT.map(lambda t: t * 3), st.integers(-1, 30))
    def check(text, n):
        kept = encoder.prefix(text, n)
        assert text.startswith(kept)
        assert len(encoder.plain_ids(kept)) <= max(n, 0)
        if len(encoder.plain_ids(text)) <= n:
            assert kept == text

    check()
    assert len(encoder.plain_ids(encoder.prefix("word " * 5_000, 100))) in (98, 99, 100)


def test_token_that_a_vocabulary_builds_out_of_plain_text_is_cut():
    backend = Tokenizer(Unigram([("<unk>", 0.0), ("</s>", -1.0), *((c, -2.0) for c in "</s>abc ")], 0, False))
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    encoder = encoder_for(tokenizer)
    ids, _ = encoder.encode("a</s>b", [(0, 6)])
    assert encoder.control_ids == {1}
    assert 1 not in ids.tolist()
    assert encoder.encode("a</s>b")[0].tolist().count(1) == 1


def test_longest_token_wins_where_two_begin_alike():
    tokens = ControlTokens(["<a>", "<a><b>", "", "[x]"])
    assert tokens.at("<a><b>", 0) == "<a><b>"
    assert tokens.find_all("[x]<a><a><b>") == ["[x]", "<a>", "<a><b>"]
    assert ControlTokens([]).find_all("<a>") == []


def test_added_tokens_that_strip_white_space_take_it_from_the_template_only():
    backend = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    backend.add_special_tokens([AddedToken("<mask>", special=True, lstrip=True, rstrip=True, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    encoder = Encoder(tokenizer)
    text = "a <|im_end|>  <mask>  b<mask>"
    assert encoder.encode(text)[0].tolist() == tokenizer.encode(text, add_special_tokens=False)


def test_encoder_is_shared_until_tokens_are_added():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    )
    first = encoder_for(tokenizer)
    assert encoder_for(tokenizer) is first
    tokenizer.add_tokens(["<new>"], special_tokens=True)
    assert encoder_for(tokenizer) is not first
    assert encoder_for(tokenizer).encode("<new>")[0].size == 1


def test_tokenizer_without_a_fast_backend_is_refused():
    with pytest.raises(UnsupportedTokenizer, match="backend_tokenizer"):
        encoder_for(object())
