"""The tokenizer of toolstep-tiny: byte-level BPE over what three task sets say, solved by their oracle.

Tokens are what training costs, and most of a prompt is the same in every episode (system text, schemas, the template's
words), so merges may run across words.  What has to be copied must not be merged with what stands around it, or the
same number, name or unit would be other tokens in the question than in the call.  So each digit is a token, the
pre-tokenizer sets operators, brackets and capitalised words apart, and the text is cut, before merges are learned,
wherever a value stands that some call or answer repeats.

The training split alone is read.  The same text gives the same tokenizer, byte for byte (tests/test_tiny.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import toolstep.envs  # noqa: F401 - registers the envs
from toolstep.envs.chat.builtin import CHATML_HERMES
from toolstep.envs.tasks.lookup_world import WORDS
from toolstep.envs.tools.units import UNITS

ENVS = ("Calculator", "UnitConvert", "Lookup")
LEVELS = (1, 2, 3)
EPISODES = 300  # of each env and level
VOCABULARY = 1536
CONTEXT = 2048
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
APART = r"[0-9]| [-+*/] |[()^]|[A-Z][a-z]+"

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_DOCUMENT = r"\bd[0-9]{2}\b"  # the ids that Lookup's search shows
_ALWAYS = {*CONTROL, *TAGS, *UNITS, *(w for words in WORDS.values() for w in words)}


def build() -> PreTrainedTokenizerFast:
    """Learn the merges; a tokenizer with its chat template."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(APART), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(CONTROL) - len(TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator((piece for text, copied in solved() for piece in cut(text, copied)), trainer)
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=CHATML_HERMES,
    )


def solved() -> Iterator[tuple[str, set[str]]]:
    """Each episode as the template writes it, and what its calls and its answer say."""
    for name in ENVS:
        for level in LEVELS:
            env: Any = gym.make(f"toolstep/{name}-v0", level=level, split="train", disable_env_checker=True)
            for seed in range(EPISODES):
                yield _play(env, seed)
            env.close()


def _play(env: Any, seed: int) -> tuple[str, set[str]]:
    text, _ = env.reset(seed=seed)
    copied: set[str] = set()
    done = False
    while not done:
        turn = env.unwrapped.oracle_action()
        calls = [json.loads(call)["arguments"] for call in _CALL.findall(turn)]
        copied |= {str(value) for arguments in calls for value in arguments.values()} if calls else {turn}
        delta, _, terminated, truncated, _ = env.step(turn)
        text += turn + delta
        done = terminated or truncated
    return text, copied


def cut(text: str, copied: set[str]) -> list[str]:
    """`text` in pieces: what is copied, and what stands between; control tokens and tags are left out."""
    words = sorted(_ALWAYS | copied, key=lambda w: (-len(w), w))
    whole = "|".join([_DOCUMENT, *map(_whole, words)])
    return [p for p in re.split(f"({whole})", text) if p and p not in CONTROL and p not in TAGS]


def _whole(word: str) -> str:
    """A pattern that finds `word`, but not inside of another word or number."""
    before, after = (r"\b" if word[i].isalnum() else "" for i in (0, -1))
    return f"{before}{re.escape(word)}{after}"
