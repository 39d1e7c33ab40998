"""Tools that are made for one episode, and closed with it."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from toolstep.envs.tools.errors import ToolSchemaError
from toolstep.envs.tools.owner import Claims, SharedStateError, distinct, owner_of, shared_message
from toolstep.envs.tools.tool import Tool, as_tool
from toolstep.envs.tools.validate import BoundCall
from toolstep.envs.types import Task, ToolCall, ToolResult

_logger = logging.getLogger("toolstep")
_claims = Claims()


class ToolNameError(ValueError):
    """Two tools of one episode have the same name."""


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """What a factory is told of the episode that it makes tools for.

    seed: decided by the episode's own seed alone, so that members of a group get the same.
    tool_timeout: seconds after which the env gives a call up.
    picks_tools: `task.tools` picks from the env's own tools and the built-in ones too (`TaskSet.picks_tools`).
    """

    task: Task
    seed: int = 0
    tool_timeout: float = 10.0
    picks_tools: bool = False


class ToolFactory(ABC):
    """Makes the tools of one episode.  Stands in `tools=` of an env, or in what `TaskSet.tools` returns.

    A factory serves any number of episodes at once, in any number of envs; what one episode remembers belongs into the
    object that `make` returns.

    external: its tools come from somewhere else (a server), which may be gone when a recording of them is played back:
    there they are made from what the recording says of them.
    """

    external: ClassVar[bool] = False
    #: What a task's list of tools may call everything that it makes; "" for nothing.
    name: str = ""

    @abstractmethod
    def make(self, episode: EpisodeInfo) -> Any:
        """The tools of this episode: an object with `@tool` methods, a Tool, or a list of Tools and functions.

        Called by `reset`, so it must be quick: start what is slow with the first call.  Where the object (or one whose
        methods the tools are) has these methods, they are called at the end of the episode, by the env's thread, in
        this order; neither may wait for long, and calls may still be running:

        - `snapshot() -> dict`: what it leaves behind, JSON-able; it goes to `EpisodeRecord.state` for the scoring;
        - `close()`: free everything.

        Where tools depend on something that takes its time, comes and goes (a server), it may also have:

        - `ready()`: called before calls of its tools run, outside their deadlines; it waits for what was started.
        - `answered()`: the agent has answered, and made no call; the user may go on (`TaskSet.reply`).
        - `changes() -> list[Tool] | None`: called when calls have run, and when the user goes on: its tools, where they
          are no longer the same.

        All raise ToolBackendError where the episode cannot go on; it ends with status "env_error" then.
        """

    def open(self) -> None:  # noqa: B027  nothing to find out is the rule
        """Find out what cannot work, when an env is made with this factory.  What it raises is raised there."""

    def close(self) -> None:  # noqa: B027  nothing to free is the rule
        """Free what outlives episodes (a pool of processes, say); the env calls it when it is closed.

        Other envs may use the factory still, and this one may be asked to `make` again.
        """


class per_episode(ToolFactory):
    """The factory that calls `make()`, or `make(episode)` where that takes an argument.

    make: a class with `@tool` methods, or a function that returns what `ToolFactory.make` does.

    >>> class Counter:
    ...     def __init__(self) -> None:
    ...         self.count = 0
    ...
    ...     @tool(run_in="inline")
    ...     def add(self, by: int = 1) -> int:
    ...         '''Add to the counter.'''
    ...         self.count += by
    ...         return self.count
    >>> ToolUseEnv(tasks, tools=[per_episode(Counter)])  # or tools=[Counter]
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        if not callable(make):
            raise ToolSchemaError(f"per_episode takes a class or a function, got {type(make).__name__}")
        self._make = make
        self._takes_episode = _takes_argument(make)

    def make(self, episode: EpisodeInfo) -> Any:
        return self._make(episode) if self._takes_episode else self._make()

    def __repr__(self) -> str:
        return f"per_episode({getattr(self._make, '__qualname__', self._make)})"


Offer = Tool | ToolFactory


def as_offer(given: Any) -> Offer:
    """A tool, or what makes one for each episode, out of an item of `tools=`.

    A Tool; a function; a class with `@tool` methods or a factory class (one object each episode); a factory; the name
    of a built-in tool ("python").

    Raises:
        SharedStateError: one object that would serve all episodes.
        TypeError (and ToolSchemaError, which is one): nothing of these.
    """
    if isinstance(given, ToolFactory):
        return given
    if isinstance(given, str):
        from toolstep.envs.tools.builtin import builtin

        return builtin(given)
    if isinstance(given, type):
        if issubclass(given, ToolFactory):
            return given()
        if tools_of(given):
            return per_episode(given)
    if not isinstance(given, Tool) and not callable(given) and tools_of(given):
        raise SharedStateError(shared_message(given, [t.name for t in tools_of(given)]))
    made = as_tool(given)
    owner = owner_of(made)
    if owner is not None:
        raise SharedStateError(shared_message(owner, [made.name]))
    return made


def tools_of(holder: Any) -> list[Tool]:
    """The `@tool` methods of an object or class, in the order of definition."""
    kind = holder if isinstance(holder, type) else type(holder)
    members = [item for base in reversed(kind.__mro__) for item in vars(base).items()]
    names = dict.fromkeys(name for name, value in members if isinstance(value, Tool))
    return [found for name in names if isinstance(found := getattr(holder, name, None), Tool)]


class Toolbox:
    """The tools of one episode by name, and what has to be closed with it.

    own: the task set's, of which `task.tools` may name a part; then come `extra` ones.  Where the episode picks tools,
    `task.tools` names the part of both that is on offer, and built-in tools that stand in neither.

    Raises:
        SharedStateError: an object behind a tool serves another episode, or has served one.
        ToolNameError, ToolSchemaError: two tools of one name, or none of a name that was picked; a factory that made no
        tools.  What a factory raises.
        Whatever was made by then is closed.
    """

    def __init__(self, own: Iterable[Offer], extra: Iterable[Offer], episode: EpisodeInfo) -> None:
        self.tools: dict[str, Tool] = {}
        self._made: list[Any] = []
        self._names: dict[int, list[str]] = {}  # of the tools of what a factory made, by its id
        self._only: dict[int, Collection[str] | None] = {}  # the part of them that may be on offer
        self._external: list[int] = []  # ids of what external factories made
        self._owners: list[Any] = []
        self._picked: set[str] = set()  # factories that the task named as a whole
        try:
            only = episode.task.tools
            for offer in own:
                self._offer(offer, episode, only)
            for offer in extra:
                self._offer(offer, episode, only if episode.picks_tools else None)
            for name in (only or ()) if episode.picks_tools else ():
                if name not in self.tools and name not in self._picked:
                    self._offer_builtin(name, episode)
            self._claim()
        except BaseException:
            self.close()
            raise

    def _offer(self, offer: Offer, episode: EpisodeInfo, only: Collection[str] | None) -> None:
        if only is not None and offer.name in only:
            self._picked.add(offer.name)
            only = None
        self._add(self._open(offer, episode, only), only)

    def _offer_builtin(self, name: str, episode: EpisodeInfo) -> None:
        """Offer what the task names and nobody else offers."""
        self._offer(_builtin(name, episode.task, self.tools), episode, None)

    def _add(self, tools: Iterable[Tool], only: Collection[str] | None) -> None:
        for t in tools:
            if only is not None and t.name not in only:
                continue
            if t.name in self.tools:
                raise ToolNameError(f"two tools are named {t.name!r}; rename one with tool(fn, name=...)")
            self.tools[t.name] = t

    def _open(self, offer: Offer, episode: EpisodeInfo, only: Collection[str] | None) -> list[Tool]:
        if isinstance(offer, Tool):
            self._made.append(owner_of(offer))
            return [offer]
        made = offer.make(episode)
        self._made.append(made)
        if isinstance(made, Tool):
            found = [made]
        elif isinstance(made, Sequence) and not isinstance(made, str):
            found = [as_tool(item) for item in made]
        else:
            found = tools_of(made)
        self._names[id(made)], self._only[id(made)] = [t.name for t in found], only
        if offer.external:
            self._external.append(id(made))
        self._made += [owner_of(t) for t in found]
        if not found:
            raise ToolSchemaError(
                f"{offer!r} made {type(made).__name__} without a tool: decorate its methods with @tool"
            )
        return found

    def _claim(self) -> None:
        for owner in distinct(owner_of(t) for t in self.tools.values()):
            _claims.claim(owner, [t.name for t in self.tools.values() if owner_of(t) is owner])
            self._owners.append(owner)

    def external_names(self) -> set[str]:
        """The names of the tools of external factories."""
        return {name for made in self._external for name in self._names.get(made, ())}

    def answers(self, turn: int, calls: Sequence[BoundCall]) -> list[ToolResult] | None:
        """The answers to the calls of a turn, where they are known; None: they are to be run."""
        return None

    def heard(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> None:
        """The calls of the turn were run, with these results."""

    def ready(self, names: Collection[str]) -> None:
        """Wait until tools of these names can be called.  Raises what their makers' `ready` does."""
        for made in distinct(self._made):
            if callable(getattr(made, "ready", None)) and not set(names).isdisjoint(self._names.get(id(made), ())):
                made.ready()

    def answered(self) -> None:
        """Tell what was made that the agent has answered.  Raises what `answered` of a maker does."""
        for made in distinct(self._made):
            if callable(getattr(made, "answered", None)):
                made.answered()

    def changes(self) -> bool:
        """Whether other tools are on offer than before; `tools` has them now.  Raises what `changes` of a maker does.

        A tool that comes later never takes the name of another one.
        """
        changed = False
        for made in distinct(self._made):
            found = made.changes() if callable(getattr(made, "changes", None)) else None
            if found is None:
                continue
            for name in self._names.get(id(made), ()):
                self.tools.pop(name, None)
            only = self._only.get(id(made))
            new = {t.name: t for t in found if t.name not in self.tools and (only is None or t.name in only)}
            self.tools.update(new)
            self._names[id(made)] = list(new)
            changed = True
        return changed

    def snapshot(self) -> dict[str, Any]:
        """What the episode's objects leave behind, in one dict."""
        state: dict[str, Any] = {}
        for made in distinct(self._made):
            if callable(getattr(made, "snapshot", None)):
                state.update(made.snapshot())
        return state

    def close(self) -> None:
        """Close everything that was made, in reverse order; may be called again.  Never raises: failures are logged."""
        made, self._made = self._made, []
        for item in reversed(distinct(made)):
            if callable(getattr(item, "close", None)):
                try:
                    item.close()
                except Exception:
                    _logger.exception("closing a %s failed", type(item).__name__)
        owners, self._owners = self._owners, []
        for owner in owners:
            _claims.release(owner)


def _builtin(name: str, task: Task, found: Collection[str]) -> Offer:
    """The built-in tool that a task named and nobody offers."""
    from toolstep.envs.tools.builtin import builtin_names

    if name not in builtin_names():
        raise ToolNameError(
            f"task {task.id!r} names the tool {name!r}, which nobody offers; there are {', '.join(found) or 'none'}, "
            f"and built in {', '.join(builtin_names())}"
        )
    return as_offer(name)


def _takes_argument(function: Callable[..., Any]) -> bool:
    """Whether it has to be, or says that it wants to be, given the episode."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    first = next((p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)), None)
    return first is not None and (first.default is first.empty or first.name == "episode")
