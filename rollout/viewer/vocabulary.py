"""What the ids of a report spell: each id that occurs, once, with its text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.text import SingleTokens

Text = str | list[int] | None
NO_TEXTS = "the tokenizer of this run is not at hand: ids are shown as numbers"


def tokenizer_of(config: Mapping[str, Any]) -> Any:
    """The tokenizer that `config` (of an evaluation) names; None where it names none, or one that is not there."""
    from toolstep.envs.chat import TokenizerNotFound, load_tokenizer

    kwargs = config.get("env_kwargs")
    name = kwargs.get("tokenizer") if isinstance(kwargs, Mapping) else None
    if not isinstance(name, str):
        return None
    try:
        return load_tokenizer(name)
    except TokenizerNotFound:
        return None


class Vocabulary:
    """The ids that occur in some episodes, in ascending order, and what each spells.

    tokenizer: a fast tokenizer; None where none is at hand: ids have no texts then.
    """

    def __init__(self, arrays: Iterable[NDArray[np.int32]], tokenizer: Any = None):
        parts = [np.unique(a) for a in arrays]
        self.ids: NDArray[np.int32] = np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int32)
        self._tokenizer = tokenizer
        # Two bytes an id as long as that many suffice: the page is full of them.
        self._dtype = np.dtype("<u2" if self.ids.size <= 1 << 16 else "<u4")

    def places(self, ids: NDArray[np.int32]) -> bytes:
        """Where each of `ids` stands in the vocabulary: little-endian, `width` bytes each."""
        return np.searchsorted(self.ids, ids).astype(self._dtype).tobytes()

    def to_dict(self) -> dict[str, Any]:
        """What the page gets.

        ids; width: bytes of a place; texts: of each id, a list of bytes where they make no whole characters, None where
        the tokenizer has no such id (`texts` is None without one); control: places of control tokens.
        """
        out: dict[str, Any] = {"ids": self.ids.tolist(), "width": self._dtype.itemsize, "texts": None, "control": []}
        if self._tokenizer is not None and self.ids.size:
            single, known = SingleTokens(self._tokenizer), self._tokenizer.convert_ids_to_tokens
            out["texts"] = [None if known(i) is None else _text(single, i) for i in self.ids.tolist()]
            control = {i for i, t in self._tokenizer.added_tokens_decoder.items() if t.special}
            out["control"] = [place for place, i in enumerate(self.ids.tolist()) if i in control]
        return out


def _text(single: SingleTokens, token_id: int) -> Text:
    data = single.bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
