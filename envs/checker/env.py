"""`check_env`: Gymnasium's own checker with warnings as errors, and what an env for tool use owes beyond it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from gymnasium.vector import AutoresetMode

from toolstep.envs.checker.bench import Bench, Broken, global_generators
from toolstep.envs.checker.episodes import check_faults, check_same, check_steps, scripts
from toolstep.envs.checker.leaks import Holdings, left_since
from toolstep.envs.checker.playing import RESET_LIMIT, Played, check_oracle, play, step_limit
from toolstep.envs.checker.report import Report, finished
from toolstep.envs.checker.rows import check_modes
from toolstep.envs.checker.shop import MAKE_LIMIT
from toolstep.envs.tool_use import ToolUseEnv
from toolstep.envs.tools.encode import shorten

_PROMPTS = 20  # whose length is looked at
_LARGE = 10**6  # what tokenizers without a limit name as their limit is larger
_CLOSE_LIMIT = 60.0


def check_env(
    env: Any,
    *,
    tokenizer: Any = None,
    episodes: int = 5,
    resets: int = 100,
    quiet: bool = False,
    raises: bool = False,
    bench: Bench | None = None,
    **options: Any,
) -> Report:
    """Play an env in every way that a learner does, and say what breaks and how to mend it.

    Args:
        env: a registered id; a function (or class) that makes an env; or one env, of which less can be checked: then no
            second one can be made, to be compared with.
        tokenizer: what `ToolUseEnv(tokenizer=)` takes: the token view is checked as well, each delta held against
            the template's own rendering of the conversation.
        episodes: that the oracle plays.  resets: before nothing may be left behind.
        quiet: print nothing.  raises: raise CheckFailed where there is an error.
        bench: where the env is played; for those who run several checks.
        **options: keywords for the env, where it is made here.

    What is checked: `gymnasium.utils.env_checker.check_env`, each warning an error; every step has a stop reason
    exactly where the episode ends, and each call exactly one result; the same seed and actions give the same episode;
    the oracle reaches a score of 1; prompts fit the context; rows of a vector env equal single envs in the three
    autoreset modes; tools that raise, hang, exit, or return nonsense, 10 MB or control tokens break their call only;
    after `resets` episodes and close() no thread, process or descriptor is left.
    """
    own = bench or Bench()
    report = Report("env", _subject(env), told=own.journal)
    try:
        _Env(env, options, tokenizer, episodes, resets, own, report).look()
    finally:
        if bench is None:
            own.close()
    return finished(report, quiet=quiet, raises=raises)


class _Env:
    def __init__(
        self,
        given: Any,
        options: dict[str, Any],
        tokenizer: Any,
        episodes: int,
        resets: int,
        bench: Bench,
        report: Report,
    ) -> None:
        self.given, self.options, self.tokenizer = given, options, tokenizer
        self.episodes, self.resets, self.bench, self.report = episodes, resets, bench, report
        self.single = isinstance(given, gym.Env)

    def look(self) -> None:
        """All checks, as far as they can be made."""
        try:
            self._look()
        except Broken as broken:
            if broken.hangs:
                fix = "Give what it waits for a deadline; what comes after this was not checked."
                self.report.add("hangs", "error", self.report.subject, str(broken), fix)
            else:
                self.report.add("raises", "error", self.report.subject, str(broken), "Mend the code that is named.")

    def _look(self) -> None:
        report = self.report
        report.begin("it can be made")
        env = self._make()
        report.checks[-1].detail = type(env.unwrapped).__name__
        self._gymnasium(env)
        if not isinstance(env.unwrapped, ToolUseEnv):
            what = f"{type(env.unwrapped).__name__} is no ToolUseEnv: only Gymnasium's contract was checked."
            report.add("not-toolstep", "note", report.subject, what)
            return
        report.begin("episodes")
        turns = self._episodes(env)
        report.begin("oracle")
        played = check_oracle(env, range(self.episodes), self.bench, report, "oracle")
        report.checks[-1].detail = f"{len(played)} episodes" if played else "none"
        for one in played:
            check_steps(env, one, report, "oracle")
        report.begin("prompts fit")
        self._prompts(env)
        report.begin("broken tools")
        count = check_faults(env, self.bench, report)
        report.checks[-1].detail = f"{count} episodes" if count else "none: it offers no tool"
        self._close(env)
        if self.single:
            fix = "Give its id, or a function that makes it."
            what = "Only one env was given: seeds, vector envs and what is left behind were not checked."
            report.add("one-env", "note", report.subject, what, fix)
            return
        report.begin("same seed, same episode")
        self._same(list(turns.values()))
        report.begin("rows of a vector env")
        if "nondeterministic" in report.codes:
            report.checks[-1].detail = "not looked at: an episode is not the same twice"
        else:
            report.checks[-1].detail = "NextStep, SameStep, Disabled"
            check_modes(self._make, self._make_vec, list(turns.values())[:4], self.bench, report)
        report.begin("nothing left behind")
        self._leaks(list(turns.values()))
        if self.tokenizer is not None:
            self._tokens()

    # ------------------------------------------------------------------ envs
    def _make(self, **more: Any) -> Any:
        if self.single:
            return self.given
        options = {**self.options, **more}
        if isinstance(self.given, str):
            return self.bench.run("gymnasium.make()", lambda: _made(self.given, options), MAKE_LIMIT)
        return self.bench.run("making the env", lambda: _an_env(self.given(**options)), MAKE_LIMIT)

    def _make_vec(self, num_envs: int, mode: AutoresetMode) -> Any:
        """Called on the bench already."""
        if isinstance(self.given, str):
            return gym.make_vec(self.given, num_envs=num_envs, autoreset_mode=mode.value, **self.options)
        makers: list[Callable[[], Any]] = [lambda: self.given(**self.options)] * num_envs
        return gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)

    def _close(self, env: Any) -> None:
        self.bench.run("close()", env.close, _CLOSE_LIMIT)

    # ---------------------------------------------------------------- checks
    def _gymnasium(self, env: Any) -> None:
        self.report.begin("gymnasium's check_env")
        plain = env.unwrapped
        without = plain.spec is None
        self.report.checks[-1].detail = "without rendering: it has no spec" if without else "warnings are errors"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.bench.run(
                    "gymnasium's check_env",
                    lambda: gymnasium_check_env(plain, skip_render_check=without, skip_close_check=without),
                    RESET_LIMIT + 20 * step_limit(env),
                )
        except Broken as broken:
            if broken.hangs:
                raise
            text = f"{type(broken.error).__name__}: {broken.error}"
            fix = "Keep to Gymnasium's contract: https://gymnasium.farama.org/api/env"
            self.report.add("gymnasium", "error", self.report.subject, text, fix)

    def _episodes(self, env: Any) -> dict[str, list[Any]]:
        self.bench.run("reset(seed=0)", lambda: env.reset(seed=0), RESET_LIMIT)
        turns = self.bench.run("writing turns", lambda: scripts(env), MAKE_LIMIT)
        for name, actions in turns.items():
            check_steps(env, play(env, 0, actions, self.bench), self.report, name)
        self.report.checks[-1].detail = ", ".join(turns)
        return turns

    def _prompts(self, env: Any) -> None:
        limits, tokenizer = env.unwrapped.config.limits, env.unwrapped.config.chat.tokenizer
        if tokenizer is None:
            self.report.checks[-1].detail = "not looked at: no tokenizer"
            return
        known = int(getattr(tokenizer, "model_max_length", None) or _LARGE)
        limit = min(limits.max_context or _LARGE, known if known < _LARGE else _LARGE)
        longest, seed = 0, 0
        for s in range(_PROMPTS):
            tokens = play(env, s, (), self.bench).info["context_tokens"]
            longest, seed = max((longest, seed), (tokens, s))
        self.report.checks[-1].detail = f"the longest of {_PROMPTS} has {longest:,} tokens"
        if longest >= limit:
            self.report.add(
                "prompt-too-long",
                "error",
                f"seed {seed}",
                f"The prompt has {longest:,} tokens, and the context {limit:,}: there is no room for a turn.",
                "Shorten the task, offer fewer tools or shorter schemas, or allow a larger context (max_context=).",
                f"reset(seed={seed})",
            )

    def _same(self, turns: Sequence[Sequence[Any]]) -> None:
        one, two = self._make(), self._make()
        for seed, actions in enumerate(turns):
            with global_generators(1):
                a = play(one, seed, actions, self.bench)
            with global_generators(2):
                play(two, seed + 1000, (), self.bench)  # another episode in between leaves nothing
                b = play(two, seed, actions, self.bench)
            check_same(a, b, "episodes", self.report)
        self.report.checks[-1].detail = f"{len(turns)} episodes played twice"
        self._close(one)
        self._close(two)

    def _leaks(self, turns: Sequence[Sequence[Any]]) -> None:
        self._live(2, turns)  # what a library keeps from its first use on is no leak
        before = Holdings.now()
        self._live(self.resets, turns)
        self.report.checks[-1].detail = f"{self.resets} resets"
        if left := left_since(before):
            self.report.add(
                "leaks",
                "error",
                self.report.subject,
                f"After {self.resets} resets and close() there is still {' and '.join(left)}.",
                "Free what an episode holds in close() of its tools, and what the env holds in its own close().",
            )

    def _live(self, resets: int, turns: Sequence[Sequence[Any]]) -> None:
        env = self._make()
        for n in range(resets):
            played = play(env, n, (), self.bench)
            if n % 10 == 0:  # an episode in ten is played, the others are given up
                play(env, n, turns[n // 10 % len(turns)], self.bench)
            del played
        self._close(env)

    def _tokens(self) -> None:
        from toolstep.envs.chat.audit import audit_template

        report = self.report
        report.begin("token view")
        audit = self.bench.run("audit of the chat template", lambda: audit_template(self.tokenizer), MAKE_LIMIT * 10)
        for wrong in (c for c in audit.checks if c.status == "wrong"):
            fix = "See `toolstep audit`; another template can be given by chat_template=."
            report.add("template", "error", wrong.title, f"The delta is wrong: {wrong.detail}", fix)
        env = self._make(view="tokens", tokenizer=self.tokenizer, strict=True)
        turns = self._episodes(env)
        played: list[Played] = check_oracle(env, range(self.episodes), self.bench, report, "oracle, token view")
        for one in played:
            check_steps(env, one, report, "oracle, token view")
        check_faults(env, self.bench, report)
        self._prompts(env)
        report.checks[-1].detail = (
            f"{len(turns) + len(played)} episodes, each delta compared; " + report.checks[-1].detail
        )
        self._close(env)


def _made(name: str, options: dict[str, Any]) -> Any:
    return gym.make(name, disable_env_checker=True, **options)


def _an_env(made: Any) -> Any:
    if isinstance(made, gym.Env):
        return made
    kind = type(made).__name__
    hint = ": give a function that makes a single env" if isinstance(made, gym.vector.VectorEnv) else ""
    raise TypeError(f"expected a gymnasium.Env, the factory made {kind}{hint}")


def _subject(env: Any) -> str:
    if isinstance(env, str):
        return env
    if isinstance(env, gym.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return shorten(str(getattr(env, "__name__", "") or type(env).__name__), 60)
