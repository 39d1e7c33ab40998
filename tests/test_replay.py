"""Replay: recorded episodes played again are equal, and what is not is named by episode, turn and field."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from test_cli_commands import invoke, ok

from toolstep.agents.scripted import OracleAgent
from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.types import Source
from toolstep.rollout import collect, group_specs
from toolstep.rollout.replay import (
    Difference,
    RecordedEpisode,
    ReplayError,
    read_recorded,
    replay_episodes,
    replay_file,
)
from toolstep.rollout.replay.compare import message_turns
from toolstep.rollout.storage import StorageError, read_episodes

BUILT_IN = ["calculator", "unit_convert", "lookup", "assistant", "sql", "search", "files", "python"]
Episodes = list[dict[str, Any]]


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes of a text agent, each of two turns or more."""
    out = tmp_path_factory.mktemp("text") / "run"
    ok("eval", "assistant", "--agent", "oracle", "--episodes", "6", "--num-envs", "4", "--out", str(out))
    return out


@pytest.fixture(scope="module")
def token_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes of a model, sampled, so that right and wrong turns are among them."""
    out = tmp_path_factory.mktemp("tokens") / "run"
    ok(
        "eval", "calculator", "--agent", "tiny-sft", "--episodes", "6", "--temperature", "1", "--max-new-tokens", "48",
        "--device", "cpu", "--out", str(out),
    )  # fmt: skip
    return out


def changed(run: Path, folder: Path, change: Callable[[Episodes], Any]) -> list[Difference]:
    """What a replay says of a copy of `run` whose lines were changed."""
    copy = folder / "copy"
    shutil.copytree(run, copy)
    lines = [json.loads(line) for line in (copy / "episodes.jsonl").read_text().splitlines()]
    change(lines)
    (copy / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return replay_file(copy / "episodes.jsonl").differences


def called(lines: Episodes) -> tuple[int, dict[str, Any]]:
    """The last line, with its number, in which the model called a tool: what it does depends on its weights."""
    return next((n, e) for n, e in reversed([*enumerate(lines, start=1)]) if Source.BODY in e["source"])


def places(differences: list[Difference]) -> list[tuple[int, int, str, Any, Any, int | None]]:
    return [(d.line, d.turn, d.field, d.expected, d.found, d.position) for d in differences]


# ---------------------------------------------------------------------------------------------------- what is equal
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_task_set_replays_equal(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ok("eval", name, "--agent", "oracle", "--episodes", "3", "--out", str(out))
    shown = ok("replay", str(out / "episodes.jsonl"))
    assert "replayed 3 episodes" in shown
    assert shown.rstrip().endswith("all equal")


@pytest.mark.parametrize("num_envs", [1, 4])
def test_a_model_replays_equal_without_the_model(token_run: Path, num_envs: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("toolstep.agents.weights.load_model", None)
    report = replay_file(token_run / "episodes.jsonl", num_envs=num_envs)
    recorded = read_episodes(token_run / "episodes.jsonl")
    assert (report.equal, report.episodes) == (True, 6)
    assert report.turns == sum(t.turns for t in recorded)
    assert sum(t.sampled for t in recorded) > 0


def test_a_group_of_a_rollout_replays_from_the_configuration_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "group.jsonl"
    ok(
        "rollout", "calculator", "--agent", "tiny-sft", "--groups", "2", "--group-size", "3", "--max-turns", "3",
        "--level", "1", "--shots", "1", "--max-new-tokens", "32", "--device", "cpu", "--out", str(out),
    )  # fmt: skip
    assert json.loads((tmp_path / "group.config.json").read_text())["command"] == "rollout"
    document = json.loads(ok("replay", str(out), "--json"))
    assert (document["equal"], document["episodes"], document["differences"]) == (True, 6, [])
    assert invoke("rollout", "calculator", "--agent", "oracle", "--out", str(out)).exit_code == 2


def test_tasks_of_a_file_and_an_env_of_a_module_replay(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": f"Say {i}.", "answer": i}) + "\n" for i in range(3)))
    ok("eval", "--tasks", str(tasks), "--agent", "oracle", "--out", str(tmp_path / "a"))
    ok("eval", "slow_env:slow/Slow-v0", "--agent", "oracle", "--episodes", "2", "--out", str(tmp_path / "b"))
    del sys.modules["slow_env"], gymnasium.registry["slow/Slow-v0"]  # as in another process
    for run, episodes in (("a", 3), ("b", 2)):
        report = replay_file(tmp_path / run / "episodes.jsonl")
        assert (report.equal, report.episodes) == (True, episodes)


def test_malformed_turns_are_played_as_they_were_written() -> None:
    """A message does not tell what a malformed call looked like; the action does."""
    written = ["<tool_call>\n{oops\n</tool_call>", '<tool_call>\n{"name": "add"}\n</tool_call>x', "ünï\ud800"]

    class Scripted(OracleAgent):
        def predict(self, observation: Any, *args: Any, **kwargs: Any) -> Any:
            return tuple(written[e.turns] if e.turns < 3 else "" for e in self._envs._rows.episodes), None

    def make() -> ToolUseVectorEnv:
        return ToolUseVectorEnv(2, [{"prompt": "2 + 3?", "answer": "5"}], tools=[add])

    episodes = collect(make(), Scripted(), group_specs(2, 1, 0))
    assert [t.actions for t in episodes] == [written, written]
    assert [t.metrics["calls/invalid_json"] for t in episodes] == [1, 1]
    assert replay_episodes(make(), json_trip(episodes)).equal
    other = ToolUseVectorEnv(2, [{"prompt": "2 + 3?", "answer": "5"}], tools=[add], max_calls=1, max_turns=2)
    (first, _) = replay_episodes(other, episodes).differences
    assert (first.turn, first.field, first.found) == (1, "stop_reason", "max_turns")


def json_trip(episodes: Any) -> Any:
    return [type(t).from_dict(json.loads(json.dumps(t.to_dict()))) for t in episodes]


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def test_the_date_that_a_template_writes_is_that_of_the_run(tmp_path: Path) -> None:
    from toolstep.envs.chat.builtin import CHATML_HERMES

    template = tmp_path / "dated.jinja"
    template.write_text("{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}" + CHATML_HERMES)
    out = tmp_path / "run"
    ok(
        "eval", "calculator", "--agent", "tiny-sft", "--episodes", "2", "--max-new-tokens", "8", "--device", "cpu",
        "--chat-template", str(template), "--stop-token", "<|im_end|>", "--out", str(out),
    )  # fmt: skip
    assert replay_file(out / "episodes.jsonl").equal
    config = json.loads((out / "config.json").read_text())
    config["clock"] = "2031-02-03T04:05:06"
    (tmp_path / "other.json").write_text(json.dumps(config))
    found = replay_file(out / "episodes.jsonl", config=tmp_path / "other.json").differences
    assert len(found) == 2
    assert (found[0].turn, found[0].field) == (0, "token_ids")
    assert found[0].found_text.replace("«", "").replace("»", "").startswith("03 Feb")


# --------------------------------------------------------------------------------------------- what is not, is named
def test_one_byte_of_an_observation_is_named(text_run: Path, tmp_path: Path) -> None:
    where: list[Any] = []

    def change(lines: Episodes) -> None:
        at, message = next((i, m) for i, m in enumerate(lines[2]["messages"]) if m["role"] == "tool")
        old = message["content"]
        message["content"] = old[:1] + chr(ord(old[1]) ^ 1) + old[2:]
        where.extend([(3, 1, f"messages[{at}].content", message["content"][1], old[1], 1), old])

    (difference,) = changed(text_run, tmp_path, change)
    assert places([difference]) == [where[0]]
    assert difference.found_text.replace("«", "").replace("»", "").startswith(where[1][:8])
    assert str(difference).startswith("episode 3 (task 'toolstep/Assistant-v0/test/")


def test_one_id_of_an_observation_is_named_with_the_text_around_it(token_run: Path, tmp_path: Path) -> None:
    where: list[Any] = []

    def change(lines: Episodes) -> None:
        line, e = called(lines)
        at = e["source"].index(Source.BODY)
        where.append((line, e["turn"][at], "token_ids", e["token_ids"][at] + 1, e["token_ids"][at], at))
        e["token_ids"][at] += 1

    (difference,) = changed(token_run, tmp_path, change)
    assert places([difference]) == where
    assert difference.turn == 1
    for text in (difference.expected_text, difference.found_text):
        assert text.partition("«")[0].rstrip().endswith("<tool_response>")
    assert difference.expected_text != difference.found_text


@pytest.mark.parametrize(("old", "new"), [(Source.SAMPLED, Source.BODY), (Source.BODY, Source.SAMPLED)])
@pytest.mark.parametrize("nth", [0, 3, -1])
def test_one_bit_of_the_mask_is_named(token_run: Path, tmp_path: Path, old: int, new: int, nth: int) -> None:
    where: list[Any] = []

    def change(lines: Episodes) -> None:
        line, e = called(lines)
        spots = [i for i, s in enumerate(e["source"]) if s == old]
        at = spots[nth if len(spots) > 3 else 0]
        e["source"][at] = int(new)
        where.append((line, e["turn"][at], "source", new, old, at))

    differences = changed(token_run, tmp_path, change)
    assert places(differences) == where
    assert "mask 1" in str(differences[0])
    assert "mask 0" in str(differences[0])


@pytest.mark.parametrize("run", ["text_run", "token_run"])
def test_one_reward_is_named(run: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    where: list[Any] = []

    def change(lines: Episodes) -> None:
        old = lines[5]["turn_rewards"][-1]
        turn = len(lines[5]["turn_rewards"]) - 1
        lines[5]["turn_rewards"][-1] = old + 2.0**-30  # less than float32 can tell
        where.append((6, turn, "turn_rewards", old + 2.0**-30, old, turn))

    assert places(changed(request.getfixturevalue(run), tmp_path, change)) == where


def test_each_episode_that_differs_is_named_once_and_the_others_are_not(token_run: Path, tmp_path: Path) -> None:
    def change(lines: Episodes) -> None:
        lines[0]["seed"] += 1
        lines[1]["token_ids"][-1] = 10**6
        lines[2]["turn"][3] = 1
        lines[3]["stop_reason"] = "max_turns"
        lines[4]["logprobs"][0] = -1.0

    found = changed(token_run, tmp_path, change)
    assert [(d.line, d.turn, d.field) for d in found[:1]] == [(1, 0, "task_id")]
    assert [(d.line, d.field) for d in found[1:]] == [
        (2, "token_ids"),
        (3, "turn"),
        (4, "stop_reason"),
        (5, "trajectory"),
    ]
    assert "vocabulary of 1536 ids" in found[1].found
    assert "logprobs[0] must be 0.0 where not sampled" in found[4].found


def test_turns_that_are_missing_or_too_many_are_named(text_run: Path, tmp_path: Path) -> None:
    def change(lines: Episodes) -> None:
        lines[0]["actions"].pop()
        lines[1]["actions"].pop()
        lines[1]["messages"].pop()
        lines[1]["turn_rewards"].pop()
        lines[2]["actions"].append("more")
        lines[2]["turn_rewards"].append(0.0)
        lines[3]["messages"].append({"role": "user", "content": "?"})
        lines[4]["actions"][0] = 7

    found = changed(text_run, tmp_path, change)
    turns = [len(e["turn_rewards"]) for e in map(json.loads, (text_run / "episodes.jsonl").read_text().splitlines())]
    assert [(d.line, d.turn, d.field) for d in found] == [
        (1, turns[0] - 1, "actions"),
        (2, turns[1] - 2, "stop_reason"),
        (3, turns[2] - 1, "stop_reason"),
        (4, turns[3], f"messages[{len(read_episodes(text_run / 'episodes.jsonl')[3].messages)}]"),
        (5, 0, "actions"),
    ]
    assert "goes on" in found[1].found
    assert "goes on" in found[2].expected


def test_an_env_that_fails_is_named_before_what_is_missing_because_of_it() -> None:
    class Failing(ToolUseVectorEnv):
        """Its scoring breaks, as code of a user may."""

        def __init__(self, broken: bool):
            def score(record: Any) -> float:
                if broken:
                    raise ZeroDivisionError("no score")
                return 1.0

            from toolstep.envs.tasks import TaskList

            super().__init__(2, TaskList([{"prompt": "2 + 3?", "answer": "5"}], score=score))

    good = collect(Failing(False), OracleAgent(), group_specs(1, 1, 0))
    bad = collect(Failing(True), OracleAgent(), group_specs(1, 1, 0))
    assert replay_episodes(Failing(True), bad).equal
    (found,) = replay_episodes(Failing(True), good).differences
    assert (found.turn, found.field, found.expected) == (0, "status", "ok")
    assert found.found == "env_error: ZeroDivisionError: no score"
    (found,) = replay_episodes(Failing(False), bad).differences
    assert (found.field, found.expected, found.found) == ("status", "env_error: ZeroDivisionError: no score", "ok")


def test_turn_that_an_agent_gave_up_is_given_up_again() -> None:
    from toolstep.agents.base import Completion

    class GivesUp:
        env_kwargs: dict[str, Any] = {}

        def start(self, row: int, seed: int) -> None: ...
        def predict(self, *args: Any, **kwargs: Any) -> Any: ...
        def act(self, rows: Any, observations: Any) -> list[Completion]:
            ids = np.array([7, 8], np.int32)
            return [Completion(ids, -np.ones(2, np.float32), -np.ones(2, np.float32), "abort") for _ in rows]

    from tiny import tiny_tokenizer

    def make() -> ToolUseVectorEnv:
        return ToolUseVectorEnv(1, "calculator", view="tokens", tokenizer=tiny_tokenizer())

    episodes = collect(make(), GivesUp(), group_specs(2, 1, 0))
    assert {t.status for t in episodes} == {"agent_error"}
    assert replay_episodes(make(), episodes).equal


def test_choices_of_a_menu_are_made_again() -> None:
    def make(rows: int = 2, level: int = 2) -> ToolUseVectorEnv:
        return ToolUseVectorEnv(rows, "lookup", view="menu", level=level)

    episodes = collect(make(), OracleAgent(), group_specs(4, 1, 0))
    chosen = [list(t.actions) for t in episodes]
    assert all(type(choice) is int for turns in chosen for choice in turns)
    assert [len(turns) for turns in chosen] == [t.turns for t in episodes]
    for rows in (1, 3):
        report = replay_episodes(make(rows), json_trip(episodes))
        assert (report.equal, report.turns) == (True, sum(map(len, chosen)))
    changed = [json.loads(json.dumps(t.to_dict())) for t in episodes]
    changed[0]["actions"][0] = 18  # of 19
    changed[1]["actions"][1] = 19
    changed[2]["actions"][0] = "18"
    changed[3]["actions"].pop()
    told = replay_episodes(make(), [RecordedEpisode.from_dict(e, n) for n, e in enumerate(changed, 1)]).differences
    last = len(chosen[3]) - 1
    assert [(d.line, d.turn) for d in told] == [(1, 0), (2, 1), (3, 0), (4, last)]
    assert [d.field for d in told[1:]] == ["actions"] * 3
    assert told[1].found == "that the menu has the choices of Discrete(19)"
    changed[0]["actions"] = []
    with pytest.raises(ReplayError, match="does not have what the agent wrote or chose"):
        replay_episodes(make(), [RecordedEpisode.from_dict(changed[0], 1)])


def test_messages_of_worked_examples_belong_to_the_prompt() -> None:
    roles = ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool", "tool", "assistant"]
    messages = [{"role": r} for r in roles]
    assert message_turns(messages, 2, failed=False) == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert message_turns(messages, 3, failed=True) == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert message_turns(messages, 0, failed=False) == [0] * 10
    assert message_turns(messages, 1, failed=True) == [0] * 10


# ------------------------------------------------------------------------------------------------------- the command
def test_exit_codes_and_what_is_said(text_run: Path, token_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(text_run, copy)
    path = copy / "episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["turn_rewards"][-1] = 0.25
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    result = invoke("replay", str(path))
    assert result.exit_code == 1
    assert result.stdout.count("turn_rewards[") == 6
    assert result.stdout.rstrip().endswith("6 of 6 differ")
    assert len(json.loads(invoke("replay", str(path), "--json").stdout)["differences"]) == 6
    for line in lines:
        del line["actions"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    usage = [
        ([str(tmp_path / "none.jsonl")], "cannot read"),
        ([str(path)], "episode 1 does not have what the agent wrote"),
        ([str(path), "--config", str(token_run / "config.json")], "episode 1 has no token ids"),
        ([str(token_run / "episodes.jsonl"), "--config", str(copy / "config.json")], "episode 1 has token ids"),
        ([str(path), "--config", str(path)], "is no JSON"),
    ]
    (copy / "list.json").write_text("[]")
    (copy / "other.json").write_text('{"command": "train"}')
    usage += [
        ([str(path), "--config", str(copy / "list.json")], "must hold a JSON object, found list"),
        ([str(path), "--config", str(copy / "other.json")], "is not the configuration of an eval or a rollout"),
    ]
    lone = tmp_path / "lone.jsonl"
    lone.write_text(path.read_text())
    usage.append(([str(lone)], "neither lone.config.json nor config.json beside"))
    (tmp_path / "empty.jsonl").write_text('{"torn')
    usage.append(([str(tmp_path / "empty.jsonl")], "holds no finished episode"))
    for args, message in usage:
        result = invoke("replay", *args)
        assert result.exit_code == 2, (args, result.output)
        assert message in result.stderr
        assert result.stdout == ""


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[]", "expected an object, found list"),
        ("{", "no episode: Expecting"),
        ('{"token_ids": [1.5]}', "the field 'source' is missing"),
    ],
)
def test_a_line_that_is_no_episode_is_named_by_its_number(
    line: str, problem: str, text_run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text((text_run / "episodes.jsonl").read_text() + line + "\n")
    with pytest.raises(StorageError, match=f"line 7: no episode: .*{problem}|line 7: {problem}"):
        read_recorded(path)


def test_ids_that_are_no_whole_numbers_are_refused(token_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    line = json.loads((token_run / "episodes.jsonl").read_text().splitlines()[0])
    for bad in (1.5, "1", None, True, 2**70):
        path.write_text(json.dumps({**line, "token_ids": [bad]}) + "\n")
        with pytest.raises(StorageError, match="line 1: no episode: 'token_ids' must be a list of whole numbers"):
            read_recorded(path)


def test_another_space_is_refused() -> None:
    import gymnasium as gym

    with pytest.raises(ReplayError, match="only turns of text, of token ids and of a menu"):
        replay_episodes(gym.make_vec("Pendulum-v1", num_envs=1), [])

    class Left:
        def predict(self, observation: Any, *args: Any, **kwargs: Any) -> Any:
            return np.zeros(len(observation), np.int64), None

    def make() -> Any:
        return gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync")

    episodes = collect(make(), Left(), group_specs(1, 1, 0))
    with pytest.raises(ReplayError, match="has no messages"):
        replay_episodes(make(), episodes)
