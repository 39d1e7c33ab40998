"""check_env names exactly what is broken in an env, and finds nothing where nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import checker_faults as faulty
import gymnasium as gym
import pytest

from toolstep.envs import ToolUseEnv
from toolstep.envs.checker import check_env
from toolstep.envs.checker.faults import FAULTS
from toolstep.envs.tasks import task_names
from toolstep.envs.tasks.families import FAMILIES

CALM: dict[str, Any] = {"episodes": 1, "resets": 5, "quiet": True}

MEMBERS = {f.id(m) for f in FAMILIES for m in f.members}  # benchmarks that come with packages of their own
OWN = [n for n in task_names() if n not in MEMBERS and n != "toolstep/Jsonl-v0"]  # which needs a file


@pytest.fixture(scope="module", autouse=True)
def _let_go() -> Iterator[None]:
    faulty.OVER.clear()
    yield
    faulty.OVER.set()
    for file in faulty.Leaving.files or ():
        file.close()


def test_a_clean_env_passes_without_a_finding() -> None:
    report = check_env(faulty.env, **CALM)
    assert report.findings == [], str(report)
    assert [c.name for c in report.checks] == [
        "it can be made",
        "gymnasium's check_env",
        "episodes",
        "oracle",
        "prompts fit",
        "broken tools",
        "same seed, same episode",
        "rows of a vector env",
        "nothing left behind",
    ]
    assert report.checks[5].detail == f"{len(FAULTS)} episodes"


@pytest.mark.parametrize(
    ("kind", "codes", "says"),
    [
        (faulty.NoReason, ["stop-reason"], "The episode is over"),
        (faulty.LosesResults, ["call-results"], "have results for"),
        (faulty.Telling, ["nondeterministic"], "info['now']"),
        (faulty.Counting, ["vector-differs"], "'episodes' is"),
        (faulty.Leaving, ["leaks"], "open descriptors ("),
    ],
)
def test_a_fault_is_named_and_nothing_else(kind: type[ToolUseEnv], codes: list[str], says: str) -> None:
    report = check_env(faulty.of(kind), **CALM)
    assert report.codes == codes, str(report)
    assert says in report.errors[0].what
    assert report.errors[0].fix


def test_a_reward_that_trusts_tools_is_found_by_breaking_them() -> None:
    report = check_env(faulty.trusting_env, **CALM)
    assert report.codes == ["fault-breaks-env"], str(report)
    shown = ["a tool that returns nothing", "a tool that returns another type", "a tool that returns 10 MB"]
    assert [f.where for f in report.errors] == shown
    assert "JSONDecodeError" in report.errors[2].what


def test_an_env_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolstep.envs.checker.env.step_limit", lambda env: 0.0)
    monkeypatch.setattr("toolstep.envs.checker.env.RESET_LIMIT", 0.5)
    report = check_env(faulty.of(faulty.Stuck), **CALM)
    assert report.codes == ["hangs"]
    assert "gymnasium's check_env did not return" in report.errors[0].what


def test_warnings_of_gymnasium_are_errors() -> None:
    class Shared(ToolUseEnv):
        kept: Any = None

        def reset(self, **kwargs: Any) -> Any:
            observation, info = super().reset(**kwargs)
            Shared.kept = Shared.kept or {"a": 1}
            return observation, {**info, "kept": Shared.kept}

    report = check_env(faulty.of(Shared), **CALM)
    assert "gymnasium" in report.codes
    assert "share an object" in report.errors[0].what


def test_of_one_env_less_can_be_checked_and_that_is_said() -> None:
    env = faulty.env()
    report = check_env(env, **CALM)
    assert report.codes == []
    assert [f.code for f in report.notes] == ["one-env"]


def test_other_envs_of_gymnasium_get_its_own_check() -> None:
    report = check_env("CartPole-v1", **CALM)
    assert [f.code for f in report.notes] == ["not-toolstep"]


def test_what_makes_no_env_is_told() -> None:
    assert check_env("toolstep/Nothing-v0", **CALM).codes == ["raises"]
    report = check_env(lambda: 5, **CALM)
    assert "expected a gymnasium.Env, the factory made int" in str(report)


def test_the_token_view_is_checked_with_a_tokenizer(tokenizer: Any) -> None:
    report = check_env(faulty.env, tokenizer=tokenizer, **CALM)
    assert report.findings == [], str(report)
    assert report.checks[-1].name == "token view"
    assert "each delta compared" in report.checks[-1].detail


def test_prompts_beyond_the_context_are_told(tokenizer: Any) -> None:
    def small(**options: Any) -> ToolUseEnv:
        return faulty.env(**{"tokenizer": tokenizer, "max_context": 100, **options})

    report = check_env(small, **CALM)
    assert "prompt-too-long" in report.codes
    assert "the context 100" in str(report)


def test_forged_control_tokens_are_found_in_the_token_view(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolstep.envs.chat.template import ChatTemplate

    plain = ChatTemplate._encode

    def careless(self: ChatTemplate, written: Any, **kwargs: Any) -> Any:
        """Tokenizes all of it as the template's own text."""
        from dataclasses import replace

        return plain(self, replace(written, foreign=()), **kwargs)

    monkeypatch.setattr(ChatTemplate, "_encode", careless)
    report = check_env(faulty.env, tokenizer=tokenizer, **CALM)
    assert "control-tokens" in report.codes, str(report)
    assert "<|im_end|>" in str(report)


@pytest.mark.parametrize("env_id", OWN)
def test_built_in_envs_pass(env_id: str) -> None:
    assert env_id in gym.registry
    report = check_env(env_id, **CALM)
    assert report.findings == [], str(report)
