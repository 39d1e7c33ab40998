"""The tokens at which generation stops: as they are given, and where they are found if they are not."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from toolstep.envs.chat.errors import ChatTemplateError


def stop_texts(tokens: Collection[str | int], tokenizer: Any) -> frozenset[str]:
    """Stop tokens as text.  Raises ChatTemplateError for one that is not a single token of the tokenizer."""
    if isinstance(tokens, str):
        raise ChatTemplateError(f"stop_tokens must be a collection, not the text {tokens!r}: write [{tokens!r}]")
    out = set()
    for t in tokens:
        if tokenizer is None:
            if not isinstance(t, str):
                raise ChatTemplateError(f"stop token {t!r} is an id, and there is no tokenizer to look it up in")
            out.add(t)
            continue
        text = t if isinstance(t, str) else tokenizer.convert_ids_to_tokens(int(t))
        id_ = tokenizer.convert_tokens_to_ids(text) if text else None
        if id_ is None or (id_ == tokenizer.unk_token_id and text != tokenizer.unk_token):
            raise ChatTemplateError(f"the stop token {t!r} is not in the tokenizer's vocabulary of {len(tokenizer)}")
        out.add(text)
    return frozenset(out)


def default_stop_tokens(tokenizer: Any) -> frozenset[str]:
    """Where generation stops: the generation config beside the tokenizer if there is one, else its
    `eos_token`.

    A model often stops at more tokens than its tokenizer names (Llama's `<|eom_id|>`, gpt-oss's `<|call|>`).
    """
    known = getattr(tokenizer, "init_kwargs", {}).get("stop_tokens")
    if known:
        return frozenset(known)
    stops = stop_tokens_of_config(str(getattr(tokenizer, "name_or_path", "") or ""), tokenizer)
    if not stops and tokenizer.eos_token:
        stops = frozenset((str(tokenizer.eos_token),))
    if not stops:
        raise ChatTemplateError(
            "nothing says where generation stops: the tokenizer has no eos_token, and no "
            "generation_config.json lies beside it; pass stop_tokens=[...]"
        )
    return stops


def stop_tokens_of_config(name: str, tokenizer: Any) -> frozenset[str]:
    """What the generation config of the model `name` (a folder or a hub id) stops at; nothing if there is none."""
    file: Path | None = None
    if name and Path(name).is_dir():
        file = Path(name) / "generation_config.json"
    elif name:
        try:
            from transformers.utils.hub import cached_file

            found = cached_file(
                name,
                "generation_config.json",
                _raise_exceptions_for_gated_repo=False,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
            file = Path(found) if found else None
        except (OSError, ValueError):
            file = None
    if file is None or not file.is_file():
        return frozenset()
    try:
        ids = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except ValueError as e:
        raise ChatTemplateError(f"{file} is not JSON: {e}") from e
    ids = [ids] if isinstance(ids, int) else ids or []
    return frozenset(t for t in tokenizer.convert_ids_to_tokens(list(ids)) if t)
