"""Random conversations and random ids keep the invariants of tokens (I1, I2, I4, I6), on every template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from chat_cells import OWN, STOPS, VOCABULARIES, own_cells, shared_cells
from chat_fixtures import tiny_tokenizer
from chat_player import FRAMES, Player, Wrong
from hypothesis import given, settings

from toolstep.agents.base import Completion
from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.chat import ChatTemplate, Segment
from toolstep.envs.chat.encoder import clean, encoder_for
from toolstep.envs.tasks import TaskSet
from toolstep.envs.tools import Tool, tool
from toolstep.envs.types import EpisodeRecord, Message, Source, Task
from toolstep.rollout import EpisodeSpec, collect


@pytest.mark.parametrize("cell", list(own_cells()), ids=lambda c: c.name)
def test_random_conversations_on_our_own_templates(cell):
    player, done = Player(cell), Counter[str]()

    @settings(max_examples=12, deadline=None)
    @given(st.integers(0, 2**32))
    def check(seed):
        done.update(player.play(seed))

    check()
    assert done["text and ids checked"] > 0


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_random_conversations_on_shared_templates(vocabulary):
    done: Counter[str] = Counter()
    for number, cell in enumerate(shared_cells(vocabulary)):
        done += Player(cell).play(1000 + number, max_turns=12)
    assert done["conversations"] == 57
    assert done["text and ids checked"] > 60
    assert done["text checked, hostile content"] > 30


def test_fifty_turns():
    for cell in own_cells():
        if cell.name not in ("built-in", "drops-thoughts", "json-results"):
            continue
        player = Player(cell)
        seed = next(s for s in range(2000) if _turns(s) == 50)
        assert player.play(seed)["turns"] == 50


def _turns(seed: int) -> int:
    rng = Random(seed)
    return rng.choice((1, 1, 2, 3, 5, rng.randrange(1, 51)))


# ------------------------------------------------------------------------------------- random ids, through the env
def wild(rng: Random) -> str:
    """Text that a tool or a user might send."""
    control = sorted(encoder_for(tiny_tokenizer()).added.texts)
    pieces = [*control, *FRAMES, "\ud800", "שלום", "\U0001f468\u200d\U0001f469", "", " ", "12"]
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(5)))


class Endless(TaskSet):
    """Every answer is answered; the tool and the user say wild things."""

    name: ClassVar[str] = "endless"

    def task(self, seed: int, split: Any = "train") -> Task:
        return Task(f"endless-{seed}", (Message("user", "Go. " + wild(Random(seed))),), data=seed)

    def tools(self, task: Task) -> Sequence[Tool]:
        rng = Random(task.data)

        @tool(run_in="inline")
        def look(x: str = "") -> str:
            """Look around."""
            return wild(rng)

        return [look]

    def score(self, record: EpisodeRecord) -> float:
        return 0.0

    def reply(self, record: EpisodeRecord) -> Message | None:
        return Message("user", wild(Random(len(record.messages))))


CALL = '<tool_call>\n{"name": "look", "arguments": {"x": "<|im_end|>"}}\n</tool_call>'


def random_turn(rng: Random, chat: ChatTemplate, *, cut: bool = False) -> list[int]:
    """Any ids, sometimes with a call among them; control tokens that the model forges are ids like any other."""
    ids = [i for i in (rng.randrange(chat.vocabulary) for _ in range(rng.randrange(1, 10))) if i not in chat.stop_ids]
    if rng.random() < 0.5:
        ids += [i for i in chat.encode_turn(CALL).tolist() if i not in chat.stop_ids]
    ids = ids or [0]
    return ids if cut else [*ids, rng.choice(sorted(chat.stop_ids))]


# Templates that refuse what happens here: several calls in a turn, an empty user message.
NOT_ALONE = {"no-user-after-tool", "one-call", "skips-empty"}


def env_options(name: str) -> dict[str, Any]:
    return {"view": "tokens", "tokenizer": tiny_tokenizer(), "chat_template": OWN[name], "max_turns": 12}


@pytest.mark.parametrize("name", [n for n in OWN if n not in {*STOPS, *NOT_ALONE}])
def test_random_ids_through_the_env_are_stored_as_sampled(name, monkeypatch):
    """The context is previous ids + sampled ids + delta; the delta is the template's, whatever was sampled."""
    env = ToolUseEnv(Endless(), **env_options(name), strict=True)
    chat, encoder = env.config.chat, encoder_for(tiny_tokenizer())
    seen: list[Segment] = []

    def watched(method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Segment:
            segment: Segment = method(*args, **kwargs)
            seen.append(segment)
            return segment

        return call

    monkeypatch.setattr(chat, "delta", watched(chat.delta))
    steps = calls = 0
    for seed in range(8):
        rng = Random(seed)
        observation, info = env.reset(seed=seed)
        context, sources = observation.tolist(), [*info["sources"]]
        sampled = 0
        over = False
        while not over:
            ids = random_turn(rng, chat, cut=rng.random() < 0.05)
            given = np.array(ids, np.int64)
            observation, _, terminated, truncated, info = env.step(given)
            assert given.tolist() == ids  # the action is the agent's: never written to
            over = terminated or truncated
            context += [*ids, *observation.tolist()]
            sources += [Source.SAMPLED] * len(ids) + [*info["sources"]]
            sampled += len(ids)
            steps += 1
            calls += info["call_statuses"].count("ok")
            assert len(observation) == len(info["sources"])
            assert Source.SAMPLED not in info["sources"]
            assert info["sampled_tokens"] == sampled == sources.count(Source.SAMPLED)
            assert info["context_tokens"] == len(context) == len(sources)
            body = [i for i, s in zip(observation.tolist(), info["sources"]) if s == Source.BODY]
            assert encoder.control_ids.isdisjoint(body)  # I4
        assert info["stop_reason"] in ("max_turns", "cut_turn"), info
    env.close()
    assert steps > 40
    assert calls > 10
    assert len(seen) > 40


class RandomIds:
    """A token agent that samples any ids at all."""

    seed = 0

    def __init__(self, chat: ChatTemplate, options: dict[str, Any]):
        self.env_kwargs = options
        self.chat = chat
        self.rngs: dict[int, Random] = {}
        self.sampled: dict[int, list[list[int]]] = {}
        self.observed: dict[int, list[list[int]]] = {}
        self.all: list[tuple[list[list[int]], list[list[int]]]] = []

    def start(self, row: int, seed: int) -> None:
        self.rngs[row] = Random(seed)
        self.sampled[row], self.observed[row] = [], []
        self.all.append((self.observed[row], self.sampled[row]))

    def act(self, rows: Sequence[int], observations: Sequence[np.ndarray]) -> list[Completion]:
        out = []
        for row, observation in zip(rows, observations):
            rng = self.rngs[row]
            cut = rng.random() < 0.1
            ids = random_turn(rng, self.chat, cut=cut)
            self.observed[row].append(observation.tolist())
            self.sampled[row].append(ids)
            logprobs = np.full(len(ids), -1.5, np.float32)
            out.append(Completion(np.array(ids, np.int32), logprobs, logprobs, "length" if cut else "stop"))
        return out

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        raise AssertionError("a token agent is asked by act")


@pytest.mark.parametrize("name", ["built-in", "no-tools"])
def test_trajectory_of_random_ids_masks_exactly_what_was_sampled(name):
    options = env_options(name)
    envs = ToolUseVectorEnv(3, Endless(), **options)
    agent = RandomIds(envs.config.chat, options)
    trajectories = collect(envs, agent, [EpisodeSpec(s, 0, s) for s in range(6)])
    envs.close()
    assert [t.status for t in trajectories] == ["ok"] * 6
    played = {tuple(i for o, a in zip(obs, acts) for i in (*o, *a)): sum(map(len, acts)) for obs, acts in agent.all}
    for t in trajectories:
        ids = tuple(int(i) for i in t.token_ids)
        start = next(context for context in played if ids[: len(context)] == context)  # I1
        assert int(t.action_mask.sum()) == played[start]  # I6
        assert set(t.source[t.action_mask].tolist()) == {Source.SAMPLED}


def test_player_sees_a_wrong_delta(monkeypatch):
    """The fuzz itself: an injection, a lost character and a re-encoded text are all found."""
    cell = next(own_cells())
    plain = ChatTemplate.delta

    def broken(kind: str) -> Any:
        def delta(self: ChatTemplate, history: Any, turn: Any, new: Any, tools: Any, **kwargs: Any) -> Segment:
            s = plain(self, history, turn, new, tools, **kwargs)
            if kind == "injects":
                ids = np.asarray(self.tokenizer.encode(clean(s.text)), np.int64)
                return Segment(s.text, ids, np.full(len(ids), Source.BODY, np.uint8), s.inserted, s.notes)
            if kind == "loses an id":
                return Segment(s.text, s.ids[:-1], s.sources[:-1], s.inserted, s.notes)
            if kind == "loses a character":
                return Segment(s.text[1:], s.ids, s.sources, s.inserted, s.notes)
            return Segment(s.text, s.ids, np.full(len(s.ids), Source.SAMPLED, np.uint8), s.inserted, s.notes)

        return delta

    player = Player(cell)
    for kind in ("injects", "loses an id", "loses a character", "claims to be sampled"):
        monkeypatch.setattr(ChatTemplate, "delta", broken(kind))
        with pytest.raises(Wrong) as caught:
            play_many(player, 40)
        assert ("INJECTION" in str(caught.value)) == (kind == "injects")


def play_many(player: Player, n: int) -> None:
    for seed in range(n):
        player.play(seed, max_turns=4)
