"""Rewards by name, as keywords, command lines and files give them."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from toolstep.envs.rewards.verifiers import Verifier
from toolstep.envs.tasks.base import nearest
from toolstep.envs.types import EpisodeRecord

Reward = Callable[[EpisodeRecord], float]
RewardSpec = str | Mapping[str, Any]

_HERE = "toolstep.envs.rewards"
# "module:attribute", so that naming a reward imports what it needs and nothing else.
_REGISTRY: dict[str, str | Callable[..., Any]] = {
    "stated": f"{_HERE}.verifiers:Stated",
    "exact": f"{_HERE}.verifiers:Exact",
    "text": f"{_HERE}.verifiers:Text",
    "numeric": f"{_HERE}.verifiers:Numeric",
    "set": f"{_HERE}.verifiers:Set",
    "sql_result": f"{_HERE}.verifiers:SQLResult",
    "regex": f"{_HERE}.patterns:Regex",
    "math": f"{_HERE}.symbolic:Math",
    "program": f"{_HERE}.programs:Program",
}


def reward_names() -> tuple[str, ...]:
    """The registered names."""
    return tuple(_REGISTRY)


def register_reward(name: str, reward: str | Callable[..., Any]) -> None:
    """Make `reward=name` mean this: a `Verifier` class, or a plain function of the finished episode.

    "module:attribute" is imported when it is named.

    Raises:
        ValueError: another one has that name, or the name has a colon.
    """
    if ":" in name:
        raise ValueError(f"the name of a reward has no colon, got {name!r}")
    if _REGISTRY.get(name, reward) != reward:
        raise ValueError(f"reward {name!r} is registered already, as {_REGISTRY[name]!r}")
    _REGISTRY[name] = reward


def make_reward(spec: RewardSpec, *, from_data: bool = False) -> Reward:
    """The reward that is meant by a name, or by a name and the options of its verifier.

    spec: "numeric", {"name": "numeric", "rel": 0.01}, that as JSON text, or "module:function", which is imported.
    from_data: the spec stands in a file of problems, where only registered names are taken: a file must not run code.

    >>> make_reward({"name": "numeric", "rel": 0.01})
    Numeric(rel=0.01, abs=0)

    Raises:
        ValueError: an unknown name or option (the message has the nearest), or an option's value that cannot work.
        ImportError: what it needs is not installed; the message says how to get it.
    """
    name, options = _parts(spec)
    found = _found(name, from_data)
    if isinstance(found, type) and issubclass(found, Verifier):
        known = list(inspect.signature(found).parameters)
        for option in options:
            if option not in known:
                raise ValueError(f"reward {name!r} has no option {option!r}; {nearest(option, known)}")
        return found(**options)
    if options:
        raise ValueError(f"reward {name!r} is a function, which has no options; found {sorted(options)}")
    if not callable(found):
        raise ValueError(f"reward {name!r} is no function of an episode, found {found!r:.80}")
    return cast(Reward, found)


def _parts(spec: RewardSpec) -> tuple[str, dict[str, Any]]:
    given: Any = spec
    if isinstance(spec, str) and spec.lstrip().startswith("{"):
        try:
            given = json.loads(spec)
        except ValueError as error:
            raise ValueError(f"reward {spec!r:.80} is no JSON: {error}") from None
    if isinstance(given, str):
        return given, {}
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        options = {str(k): v for k, v in given.items() if k != "name"}
        return given["name"], options
    raise ValueError(f'a reward is named like "numeric" or {{"name": "numeric", "rel": 0.01}}, got {spec!r:.80}')


def _found(name: str, from_data: bool) -> Any:
    where = _REGISTRY.get(name)
    if where is None and ":" in name and not from_data:
        where = name
    if where is None:
        hint = "" if from_data else ', or a function of yours as "module:function"'
        raise ValueError(f"there is no reward {name!r}; {nearest(name, _REGISTRY)}{hint}")
    if not isinstance(where, str):
        return where
    module, _, attribute = where.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if module.startswith(_HERE):
            raise
        raise ValueError(f"cannot import the reward {name!r}: {error}") from error
