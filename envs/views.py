"""Views: what an observation and an action look like.

A view turns what the template wrote (a `Segment`) and the messages behind it into an observation, and an action into
the text of a turn.  Nothing else of an episode depends on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from toolstep.envs.chat import ChatTemplate, Segment
from toolstep.envs.menu import Menu, find_choice, open_page
from toolstep.envs.openai_messages import read_message, write_message, write_observation
from toolstep.envs.spaces import MessageSequence, TokenSequence, UnicodeText
from toolstep.envs.tasks.base import NoOracle
from toolstep.envs.tasks.conversation import call
from toolstep.envs.types import EpisodeRecord, Message, Role, Turn

Schemas = Sequence[Mapping[str, Any]]
Known = EpisodeRecord | None  # an episode so far
MAX_OBSERVATION_CHARS = 2**20
MAX_ACTION_CHARS = 2**18
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Reading:
    """An action as the episode takes it.

    text: the turn, its stop token removed.  stop: text of the stop token that it ended with, None if it had none.
    cut: the turn was cut by length.  tokens: number of sampled ids, the stop token included; 0 without a tokenizer.
    structured: the text is a message in OpenAI's form, and not in the form of the chat template.
    """

    text: str
    stop: str | None
    cut: bool
    tokens: int
    structured: bool = False


class View(ABC):
    """Spaces, and the two conversions.  Shared by all rows; holds no state of an episode."""

    name: str

    def __init__(self, chat: ChatTemplate):
        self.chat = chat

    @abstractmethod
    def observation_space(self) -> spaces.Space[Any]:
        """A new space object (a space owns a random generator)."""

    @abstractmethod
    def action_space(self) -> spaces.Space[Any]:
        """A new space object."""

    @abstractmethod
    def observe(self, segment: Segment, messages: Sequence[Message], tools: Schemas, record: Known) -> Any:
        """The observation, fresh at every call, of what was appended to the context.

        tools: those on offer now.  record: the episode so far; None where a part of the environment failed.
        """

    def info(self, segment: Segment, observation: Any) -> dict[str, Any]:
        """What the infos of this view have beside the keys of all views."""
        return {}

    @abstractmethod
    def check(self, action: Any) -> Any:
        """The action in its plain type; TypeError or ValueError says what was expected and what was got."""

    @abstractmethod
    def read(self, action: Any) -> Reading:
        """A checked action as text.  Total: whatever a model wrote can be read."""

    @abstractmethod
    def write(self, text: str) -> Any:
        """The action that says `text` as one complete turn."""

    def turn(self, action: Any, record: EpisodeRecord) -> Turn | None:
        """The turn that a checked action stands for in a view whose actions are not what is said; else None."""
        return None

    def choose(self, turn: Turn, record: EpisodeRecord) -> Any:
        """The inverse of `turn`: the action that stands for it, None in a view where `write` says it.

        Raises NoOracle where no action does.
        """
        return None


class TextView(View):
    """Text both ways: the observation is what the template put behind the agent's last turn, the action one turn."""

    name = "text"

    def observation_space(self) -> spaces.Space[Any]:
        return UnicodeText(MAX_OBSERVATION_CHARS)

    def action_space(self) -> spaces.Space[Any]:
        return UnicodeText(MAX_ACTION_CHARS)

    def observe(self, segment: Segment, messages: Sequence[Message], tools: Schemas, record: Known) -> Any:
        text = segment.text
        if len(text) <= MAX_OBSERVATION_CHARS:
            return text
        # The space has a bound; what does not fit is never lost without a word.
        marker = f"\n[cut: the observation has {len(text)} characters]"
        return text[: MAX_OBSERVATION_CHARS - len(marker)] + marker

    def check(self, action: Any) -> str:
        if not isinstance(action, str):
            raise TypeError(f"view={self.name!r} takes a str (one assistant turn), got {type(action).__name__}")
        return str(action)

    def read(self, action: str) -> Reading:
        text = action.encode("utf-8", "replace").decode("utf-8")  # lone surrogates break tokenizers
        stop = next((s for s in self.chat.stop_tokens if text.endswith(s)), None)
        tokens = self.chat.count(text) if self.chat.tokenizer is not None else 0
        # A text turn is complete by definition; a context that lacks its stop token gets it with the delta.
        return Reading(text.removesuffix(stop) if stop else text, stop, False, tokens)

    def write(self, text: str) -> str:
        return text


class MessagesView(TextView):
    """Structured chat: the observation is the new messages, the action the text of one turn."""

    name = "messages"

    def observation_space(self) -> spaces.Space[Any]:
        message = {
            "role": spaces.Discrete(len(ROLES)),
            "name": UnicodeText(256),
            "content": UnicodeText(MAX_OBSERVATION_CHARS),
        }
        return MessageSequence(spaces.Dict(message))

    def observe(self, segment: Segment, messages: Sequence[Message], tools: Schemas, record: Known) -> Any:
        return tuple(
            {
                "role": np.int64(ROLES.index(m.role)),
                "name": (m.name or "")[:256],
                "content": m.content[:MAX_OBSERVATION_CHARS],
            }
            for m in messages
        )


class TokensView(View):
    """Token ids both ways, int64 [T], ragged; `info["sources"]` has one byte for each id of the observation.

    An action without a stop token at its end is a turn that was cut by length.  Ids behind the first stop token are no
    part of the turn (a batched sampler pads there).
    """

    name = "tokens"

    def __init__(self, chat: ChatTemplate):
        super().__init__(chat)
        if chat.tokenizer is None:
            raise ValueError('view="tokens" needs tokenizer=... (a tokenizer object, a folder, a hub id, or "smollm2")')
        self._stops = np.array(sorted(chat.stop_ids), dtype=np.int64)

    def observation_space(self) -> spaces.Space[Any]:
        return TokenSequence(self.chat.vocabulary)

    def action_space(self) -> spaces.Space[Any]:
        return TokenSequence(self.chat.vocabulary, stop_ids=tuple(self.chat.stop_ids))

    def observe(self, segment: Segment, messages: Sequence[Message], tools: Schemas, record: Known) -> Any:
        return segment.ids.astype(np.int64)  # a copy

    def info(self, segment: Segment, observation: Any) -> dict[str, Any]:
        return {"sources": segment.sources.tobytes()}

    def check(self, action: Any) -> np.ndarray:
        ids = np.asarray(action)
        if ids.size == 0 and ids.ndim == 1:
            return ids.astype(np.int64)
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise TypeError(
                f'view="tokens" takes a 1-D array of token ids, got {type(action).__name__} of shape {ids.shape} and '
                f"dtype {ids.dtype}"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.chat.vocabulary:
            raise ValueError(
                f"token ids must be in [0, {self.chat.vocabulary}), got {low if low < 0 else high}: does the agent use "
                "this environment's tokenizer?"
            )
        return ids.astype(np.int64)

    def read(self, action: np.ndarray) -> Reading:
        ends = np.flatnonzero(np.isin(action, self._stops))
        if len(ends) == 0:
            return Reading(self.chat.decode(action), None, True, len(action))
        end = int(ends[0])
        return Reading(self.chat.decode(action[:end]), self.chat.decode(action[end : end + 1]), False, end + 1)

    def write(self, text: str) -> np.ndarray:
        return self.chat.encode_turn(text)


class ChatView(TextView):
    """Messages in OpenAI's form, as JSON text both ways, for chat APIs and for frameworks that speak as they do.

    The observation is `{"messages": [...], "tools": [...]}`: what is new, and the tools on offer.  The action is one
    assistant message, `{"content": ..., "tool_calls": [...]}`; `"finish_reason": "length"` says that it was cut.
    """

    name = "chat"

    def observe(self, segment: Segment, messages: Sequence[Message], tools: Schemas, record: Known) -> Any:
        return write_observation(messages, tools, MAX_OBSERVATION_CHARS)

    def read(self, action: str) -> Reading:
        text = action.encode("utf-8", "replace").decode("utf-8")
        _, cut = read_message(text)
        tokens = self.chat.count(text) if self.chat.tokenizer is not None else 0
        return Reading(text, None, cut, tokens, structured=True)

    def write(self, text: str) -> str:
        return write_message(self.chat.parse(text))


class MenuView(TextView):
    """A finite choice: the action is the number of a choice, the observation what the menu says of the conversation.

    Observation: f32[D + K] in [0, 1]: the menu's D features, then its action mask, 1.0 where a choice is on offer;
    `info["action_mask"]` is that mask as int8[K].  A choice that is not on offer is answered as the call of an unknown
    tool: a turn is lost, nothing else.
    """

    name = "menu"

    def __init__(self, chat: ChatTemplate, menu: Menu):
        super().__init__(chat)
        self.menu = menu
        self.size = len(menu.labels)

    def observation_space(self) -> spaces.Space[Any]:
        return spaces.Box(0.0, 1.0, (len(self.menu.features) + self.size,), np.float32)

    def action_space(self) -> spaces.Space[Any]:
        return spaces.Discrete(self.size)

    def observe(self, segment: Segment, messages: Sequence[Message], tools: Schemas, record: Known) -> Any:
        if record is None:  # nothing is known, and whatever is chosen ends the episode
            return np.concatenate([np.zeros(len(self.menu.features), np.float32), np.ones(self.size, np.float32)])
        page = open_page(self.menu, record)
        on_offer = [choice is not None for choice in page.choices]
        return np.array([*page.features, *(on_offer if any(on_offer) else [True] * self.size)], np.float32)

    def info(self, segment: Segment, observation: Any) -> dict[str, Any]:
        return {"action_mask": self.mask(observation).astype(np.int8)}

    def mask(self, observation: NDArray[np.float32]) -> NDArray[np.bool_]:
        """The choices on offer, bool[..., K], of observations [..., D + K]."""
        return observation[..., -self.size :] > 0.5

    def check(self, action: Any) -> Any:
        if isinstance(action, np.ndarray) and action.ndim == 0:
            action = action[()]
        if isinstance(action, (bool, np.bool_)) or not isinstance(action, (int, np.integer)):
            raise TypeError(
                f"view='menu' takes the number of a choice, 0 to {self.size - 1}, got {type(action).__name__}"
            )
        if not 0 <= action < self.size:
            raise ValueError(f"view='menu' takes the number of a choice, 0 to {self.size - 1}, got {action}")
        return int(action)

    def turn(self, action: int, record: EpisodeRecord) -> Turn:
        choice = open_page(self.menu, record).choices[action]
        if choice is not None:
            return choice
        return call(record, ("not_on_offer", {"choice": self.menu.labels[action]}))

    def choose(self, turn: Turn, record: EpisodeRecord) -> Any:
        found = find_choice(open_page(self.menu, record).choices, turn)
        if found is None:
            calls = ", ".join(f"{c.name}({c.arguments})" for c in turn.calls)
            raise NoOracle(f"the right turn is not on the menu: {calls or turn.content!r}")
        return np.int64(found)

    def write(self, text: str) -> Any:
        raise TypeError("an action of view='menu' is the number of a choice, not a text: `choose` finds it")


VIEWS: dict[str, type[View]] = {v.name: v for v in (TextView, TokensView, MessagesView, ChatView, MenuView)}


def make_view(name: str, chat: ChatTemplate, menu: Callable[[], Menu]) -> View:
    """The view of that name; `menu` is asked for where it shows one.  ValueError names the known ones."""
    if name not in VIEWS:
        raise ValueError(f"view must be one of {sorted(VIEWS)}, got {name!r}")
    return MenuView(chat, menu()) if name == MenuView.name else VIEWS[name](chat)
