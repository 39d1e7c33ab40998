"""Where the code of users runs: on a thread that is left behind when it does not come back."""

from __future__ import annotations

import contextlib
import random
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from toolstep.envs.tools.encode import describe_exception

T = TypeVar("T")
Journal = Callable[[dict[str, Any]], None]

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARY = tuple(str(Path(p).resolve()) for p in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")))


class Broken(Exception):
    """What was run raised, ended its process, or did not come back.

    error: what it raised; None where it hangs.  title: what was done.  seconds: how long it had.
    """

    def __init__(self, title: str, error: BaseException | None, seconds: float) -> None:
        super().__init__(title)
        self.title, self.error, self.seconds = title, error, seconds

    @property
    def hangs(self) -> bool:
        return self.error is None

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.title} did not return within {self.seconds:g} s"
        place = place_of(self.error)
        return f"{self.title} raised {describe_exception(self.error)}{f' ({place})' if place else ''}"


class Bench:
    """Runs one thing after the other, each with a deadline, all on one thread.

    A thread cannot be stopped: one that hangs is left behind (a daemon), and the next thing gets a new one.
    journal: told of what begins, so that whoever watches this process knows where it stands when it dies.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal
        self.left_behind = 0  # threads that hang
        self._inbox: SimpleQueue[Any] | None = None
        self._thread: threading.Thread | None = None

    def run(self, title: str, function: Callable[[], T], seconds: float) -> T:
        """What `function()` returns.  Raises Broken for whatever it raises, SystemExit too, and for no answer.

        Within something that it runs it just calls: the deadline is that of the whole.
        """
        if threading.current_thread() is self._thread:
            return function()
        self.tell(title, seconds)
        if self._inbox is None:
            self._inbox = SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=(self._inbox,), name="toolstep-check", daemon=True)
            self._thread.start()
        answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self._inbox.put((function, answer))
        try:
            good, value = answer.get(timeout=seconds)
        except Empty:
            self._inbox.put(None)
            self._inbox = None
            self.left_behind += 1
            raise Broken(title, None, seconds) from None
        if not good:
            raise Broken(title, value, seconds) from value
        result: T = value
        return result

    def tell(self, title: str, seconds: float) -> None:
        """What begins now, and how long it may take."""
        if self.journal is not None:
            self.journal({"begins": title, "seconds": seconds})

    def close(self) -> None:
        if self._inbox is not None:
            self._inbox.put(None)
            self._inbox = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(inbox: SimpleQueue[Any]) -> None:
    while (item := inbox.get()) is not None:
        function, answer = item
        try:
            answer.put((True, function()))
        except BaseException as error:
            answer.put((False, error))
        del item, function, answer  # an idle thread keeps nothing alive


def place_of(error: BaseException) -> str:
    """Where in the user's own code an exception came from: "shop.py:14, in price"; "" where that cannot be told."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not _is_library(f.filename)]
    if not own:
        return ""
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}, in {own[-1].name}"


def _is_library(file: str) -> bool:
    if file.startswith("<"):
        return True
    path = Path(file).resolve()
    return path.is_relative_to(_PACKAGE) or any(str(path).startswith(folder) for folder in _LIBRARY)


@contextlib.contextmanager
def global_generators(seed: int) -> Iterator[None]:
    """Seed the generators that the whole process shares, for a while; they are put back as they were."""
    state, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  the very ones that must not be used
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(legacy)  # noqa: NPY002


def generators_state() -> tuple[Any, ...]:
    """The state of the generators that the whole process shares, to be compared."""
    legacy: tuple[Any, ...] = np.random.get_state()  # type: ignore[assignment]  # noqa: NPY002
    return random.getstate(), legacy[1].tobytes(), *legacy[2:]
