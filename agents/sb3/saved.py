"""Reading what a stable-baselines3 model's `save` wrote, without unpickling a byte of it.

The zip's `data` is JSON in which every object that JSON has no form for is a cloudpickle in base64.  Unpickling runs
whatever the file's author wants; `PPO.load` does that.  Beside each pickle stands what its object consists of, in
words, and that is enough to rebuild spaces and a plain policy: names are looked up in lists of ours, sizes come from
the weights, and the weights are read by `torch.load(weights_only=True)`, which makes tensors and nothing else.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.dqn.policies import DQNPolicy
from torch import nn

_LARGEST = 2**30  # bytes of one member, unpacked
_MASKABLE = ("sb3_contrib.common.maskable.policies", "MaskableActorCriticPolicy")
# A maskable policy has the weights of a plain one; who asks it applies the mask.
_POLICIES: dict[tuple[str, str], type[BasePolicy]] = {
    ("stable_baselines3.common.policies", "ActorCriticPolicy"): ActorCriticPolicy,
    ("stable_baselines3.dqn.policies", "DQNPolicy"): DQNPolicy,
    _MASKABLE: ActorCriticPolicy,
}
_ACTIVATIONS = {
    f"<class 'torch.nn.modules.activation.{kind.__name__}'>": kind
    for kind in (nn.Tanh, nn.ReLU, nn.ELU, nn.GELU, nn.LeakyReLU, nn.Mish, nn.SiLU, nn.Sigmoid, nn.SELU)
}
# What does not change a policy's answers.
_TRAINING = ("optimizer_class", "optimizer_kwargs", "ortho_init", "log_std_init", "share_features_extractor")
_NUMBER = re.compile(r"-?(?:inf|nan|\d+\.?\d*(?:e[-+]?\d+)?)")


class SB3ZipError(ValueError):
    """A file that is no stable-baselines3 model, or one that cannot be read without unpickling."""


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """policy: in eval mode, on the device asked for.  masked: it was trained with action masks (MaskablePPO)."""

    policy: BasePolicy
    masked: bool


def load_policy(path: str | Path, device: str | torch.device = "cpu") -> SavedPolicy:
    """The policy of a zip that PPO, A2C, DQN or MaskablePPO saved.

    Raises:
        FileNotFoundError: there is no such file.
        SB3ZipError: it is damaged, or needs unpickling (its own policy class, features extractor, Dict space, ...); the
            message says what, and how to load a file that one trusts.
    """
    path = Path(path).expanduser()
    data, weights, size = _members(path)
    reading = _Reading(path, data)
    kind, masked = reading.policy_class()
    kwargs = reading.policy_kwargs()
    net = _Net.of(_state(path, weights, size), kind)
    if net is None:
        raise reading.needs_pickle(f"the weights are not those of a plain {kind.__name__} (MlpPolicy)")
    observation = reading.space("observation_space", net.inputs)
    action = reading.space("action_space", net.outputs)
    if not isinstance(action, spaces.Discrete):
        raise reading.needs_pickle(f"actions {action}, not a finite choice")
    try:
        policy = kind(observation, action, lambda _: 0.0, net_arch=net.layers, **kwargs)
        policy.load_state_dict(net.state)
    except (RuntimeError, KeyError, TypeError, ValueError, AssertionError) as error:
        raise reading.needs_pickle(
            f"the weights do not fit a plain {kind.__name__} of observations {observation} and actions {action}"
        ) from error
    policy.set_training_mode(False)
    return SavedPolicy(policy.to(device), masked)


_TRUST = (
    "If you trust the file (loading runs code that it brings along), load it yourself and pass the model: "
    "SB3Agent(PPO.load(path))"
)


class _Reading:
    """The JSON of one file, and errors that name it."""

    def __init__(self, path: Path, data: Mapping[str, Any]):
        self.path = path
        self.data = data

    def needs_pickle(self, what: str) -> SB3ZipError:
        return SB3ZipError(f"{self.path}: {what}; that cannot be read without unpickling. {_TRUST}")

    def entry(self, key: str) -> Mapping[str, Any]:
        entry = self.data.get(key)
        if not isinstance(entry, Mapping):
            raise SB3ZipError(f"{self.path}: 'data' has no {key!r}; expected a model that stable-baselines3 saved")
        return entry

    def policy_class(self) -> tuple[type[BasePolicy], bool]:
        entry = self.entry("policy_class")
        match = re.match(r"<function (\w+)\.__init__ ", str(entry.get("__init__")))
        name = (str(entry.get("__module__")), match[1] if match else "?")
        if name not in _POLICIES or self.data.get("use_sde"):
            known = ", ".join(n for _, n in _POLICIES)
            raise self.needs_pickle(f"the policy is {'.'.join(name)}, known are {known} (MlpPolicy) without gSDE")
        return _POLICIES[name], name == _MASKABLE

    def policy_kwargs(self) -> dict[str, Any]:
        """Those that change what the policy answers."""
        out: dict[str, Any] = {}
        for key, value in self.entry("policy_kwargs").items():
            if key.startswith(":") or key == "net_arch" or key in _TRAINING:
                continue
            if key == "activation_fn" and isinstance(value, str) and value in _ACTIVATIONS:
                out[key] = _ACTIVATIONS[value]
            elif key == "normalize_images" and isinstance(value, bool):
                out[key] = value
            else:
                raise self.needs_pickle(f"the policy has {key}={value!s:.100}")
        return out

    def space(self, key: str, width: int) -> spaces.Space[Any]:
        """A Box or a Discrete.  width: its size as the weights have it; no file makes us build a larger one."""
        entry = self.entry(key)
        kind = entry.get(":type:")
        try:
            if kind == "<class 'gymnasium.spaces.discrete.Discrete'>":
                self._expect(key, int(entry["n"]), width)
                return spaces.Discrete(int(entry["n"]), start=int(entry["start"]))
            if kind == "<class 'gymnasium.spaces.box.Box'>":
                shape = tuple(int(n) for n in entry["_shape"])
                self._expect(key, math.prod(shape), width)
                dtype = np.dtype(str(entry["dtype"]))
                low, high = (_array(str(entry[side]), shape, dtype) for side in ("low", "high"))
                return spaces.Box(low, high, shape, dtype.type)
        except SB3ZipError:
            raise
        except Exception as error:  # numpy reads a dtype as a language of its own
            raise self.needs_pickle(f"{key} is not told in words ({error})") from error
        raise self.needs_pickle(f"{key} is {kind!s:.100}, not a Box or a Discrete")

    def _expect(self, key: str, size: int, width: int) -> None:
        if size != width:
            raise SB3ZipError(f"{self.path}: {key} has {size} numbers, the weights are for {width}")


def _array(text: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """An array out of what numpy printed.  A long one is printed in part: only one value for all can be read then."""
    values = [float(v) for v in _NUMBER.findall(text)]
    if len(set(values)) == 1:
        return dtype.type(values[0])
    if len(values) != math.prod(shape) or "..." in text:
        raise ValueError(f"bounds are cut: {text[:60]}")
    return np.array(values, dtype).reshape(shape)


def _members(path: Path) -> tuple[Mapping[str, Any], bytes, int]:
    """The JSON, the policy's weights as bytes, and their number."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} (looked for a stable-baselines3 model, a *.zip)")
    try:
        with zipfile.ZipFile(path) as archive:
            parts = [_member(archive, name) for name in ("data", "policy.pth")]
        data = json.loads(parts[0])
        with zipfile.ZipFile(io.BytesIO(parts[1])) as inner:  # the form in which torch writes tensors
            size = sum(info.file_size for info in inner.infolist())
    except Exception as error:  # those of each kind of compression and encryption are of their own
        raise SB3ZipError(f"{path} is no model that stable-baselines3 saved: {error}") from error
    if not isinstance(data, Mapping) or size > _LARGEST:
        found = f"weights of {size} bytes" if isinstance(data, Mapping) else f"a {type(data).__name__} as 'data'"
        raise SB3ZipError(f"{path} is no model that stable-baselines3 saved: {found}")
    return data, parts[1], size


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > _LARGEST:
        raise ValueError(f"{name} has {info.file_size} bytes, at most {_LARGEST} are read")
    return archive.read(info)


def _state(path: Path, weights: bytes, size: int) -> dict[str, torch.Tensor]:
    try:
        state = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
    except Exception as error:  # its exceptions are its own; nothing of the file has been run
        raise SB3ZipError(f"{path}: policy.pth holds more than tensors, or is damaged: {error}") from error
    tensors = isinstance(state, Mapping) and all(_is_plain(k, v) for k, v in state.items())
    # A tensor may claim more numbers than the file has (a stride of 0).
    if not tensors or sum(v.numel() * v.element_size() for v in state.values()) > size:
        raise SB3ZipError(f"{path}: policy.pth is no state dict of tensors")
    if not all(v.isfinite().all() for v in state.values()):
        raise SB3ZipError(f"{path}: policy.pth holds NaN or infinite weights; did its training diverge?")
    return dict(state)


def _is_plain(name: object, value: object) -> bool:
    """Whether a name and a value are those of a state dict: numbers that are there, one beside the other."""
    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
        return False
    return value.layout == torch.strided and not (value.is_nested or value.is_meta or value.is_quantized)


@dataclass(frozen=True, slots=True)
class _Net:
    """The sizes of an MLP as its weights have them.  layers: `net_arch`, the widths of the hidden layers."""

    state: dict[str, torch.Tensor]
    layers: Any
    inputs: int
    outputs: int

    @classmethod
    def of(cls, state: dict[str, torch.Tensor], kind: type[BasePolicy]) -> _Net | None:
        """None where the weights are those of something else."""

        def matrices(prefix: str) -> list[torch.Tensor]:
            form = re.compile(rf"{re.escape(prefix)}\.([0-9]{{1,4}})\.weight")
            at = {int(m[1]): v for k, v in state.items() if (m := form.fullmatch(k)) and v.ndim == 2}
            return [at[i] for i in sorted(at)]

        if kind is DQNPolicy:
            chains = [matrices("q_net.q_net")]
            layers: Any = [len(m) for m in chains[0][:-1]]
        else:
            pi, vf = matrices("mlp_extractor.policy_net"), matrices("mlp_extractor.value_net")
            heads = [state.get(name, torch.zeros(())) for name in ("action_net.weight", "value_net.weight")]
            layers = {"pi": [len(m) for m in pi], "vf": [len(m) for m in vf]}
            chains = [[*pi, heads[0]], [*vf, heads[1]]]
        for chain in chains:
            if not chain or chain[-1].ndim != 2 or any(len(a) != b.shape[1] for a, b in pairwise(chain)):
                return None
        inputs = {chain[0].shape[1] for chain in chains}
        return cls(state, layers, inputs.pop(), len(chains[0][-1])) if len(inputs) == 1 else None
