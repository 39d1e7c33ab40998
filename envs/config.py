"""EnvConfig: everything that the rows of an environment share."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from typing import Any, Literal, cast, get_args

from toolstep.envs.chat import ChatTemplate
from toolstep.envs.limits import EnvConfigError, Limits
from toolstep.envs.menu import Entry, Menu, as_menu
from toolstep.envs.rewards import Reward, RewardSpec, Rubric, Verifier, make_reward, make_rubric, reward_names
from toolstep.envs.tasks import Split, TaskList, TaskSet, example_messages, load_tasks
from toolstep.envs.tools import Offer, Tape, Tool, ToolFactory, as_offer
from toolstep.envs.types import Message
from toolstep.envs.views import MenuView, View, make_view

MAX_SHOTS = 256  # far beyond any context
Tools = ToolFactory | Sequence[Offer | Callable[..., Any] | str]
History = Literal["keep", "rerender", "error"]


@dataclass(frozen=True)
class EnvConfig:
    """What `ToolUseEnv` and `ToolUseVectorEnv` take as keywords, resolved.

    tasks: where problems come from: a registered name ("calculator"), a `TaskSet`, a list of tasks or of
        `{"prompt": ..., "answer": ...}`, or a function from a seed to a `Task`.  Keywords that are not listed here are
        the task set's own options (`level=1`).
    tools: what is offered in addition to the task set's own: functions, `Tool`s, names of built-in ones ("python"), a
        class with `@tool` methods or a `ToolFactory`, which make an object for each episode.  One object for all
        episodes is refused.  A factory may stand alone, without a list.
    view: what an observation and an action look like: "text", "tokens", "messages", "chat" or "menu".
    menu: what `view="menu"` offers in place of the task set's own: a list of choices, or a `toolstep.envs.menu.Menu`.
    lost_turn_cost: what a choice that is not on offer costs under `view="menu"`; for training agents that heed no mask.
    tokenizer: a fast tokenizer, or the name of one (folder, hub id, *.gguf file, "smollm2"); None: text only, rendered
        with the built-in template.
    chat_template, template_kwargs: the template's text where the tokenizer's own is not wanted, and its variables.
    tool_call_format: how the model writes calls, where the template does not show it (`chat.formats.FORMATS`).
    stop_tokens: where generation stops, as text or ids; by default what the tokenizer's folder says.
    clock: the date and time that a template which writes today's date is told (`strftime_now`), as a datetime or in ISO
        form; None: the moment at which the env is made.
    split: "train" or "test"; no problem is in both.
    shots: that many solved example episodes stand before the task, the same for every row.
    history: what happens where the template, given new messages, would write the past differently from what the model
        saw (Qwen3 drops earlier thoughts when a user message arrives).  "keep": the context stays append-only;
        "rerender": it begins anew with a full prompt, a new segment of the trajectory and a new training row; "error":
        the episode ends with status "env_error".  `info["history_rewrites"]` counts such places in each case.
    thinking_ratio: probability that an episode opens a thought (template variables `open_thinking` and
        `enable_thinking`), drawn once from the episode's own generator; None leaves the template's default.
    reward: the outcome.  None: the task set's score.  A name ("numeric", "module:function") or {"name": ..., options}
        of `toolstep.envs.rewards`: where that is a verifier it says what success is too, except for tasks that name a
        reward of their own.  A function of the finished `EpisodeRecord`, or a `Rubric`, which has terms of its own.
    reward_weights: of the terms ("outcome": 1 by default, "format", "call_validity", "call_accuracy", "tool_success",
        "call_cost", "token_cost", "unfinished": 0).  Each term's value is in `info["reward_terms"]` at the end of an
        episode, whatever its weight.  reward_clip: (least, most) of the weighted sum.
    strict: re-raise a failure of the environment's own parts instead of ending that row with status "env_error", and
        hold every delta against a rendering of the whole conversation (costs what `benchmarks/template_cost.py` says).
    tape: writes down what tools answer, or answers in their place (`toolstep.envs.tools.tape`).
    """

    tasks: TaskSet
    tools: tuple[Offer, ...]
    view: View
    chat: ChatTemplate
    limits: Limits
    reward: Rubric
    pays_score: bool = True  # the outcome is the score, which is there already
    verifier: Verifier | None = None  # what the score is, where it was named
    split: Split = "train"
    examples: tuple[Message, ...] = ()
    history: History = "keep"
    thinking_ratio: float | None = None
    strict: bool = False
    tape: Tape | None = None
    lost_turn_cost: float = 0.0

    @classmethod
    def create(
        cls,
        tasks: Any,
        tools: Tools | None = None,
        *,
        view: str = "text",
        menu: Menu | Sequence[Entry] | None = None,
        lost_turn_cost: float = 0.0,
        tokenizer: Any = None,
        chat_template: str | None = None,
        stop_tokens: Collection[str | int] | None = None,
        tool_call_format: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        clock: datetime | str | None = None,
        split: Split = "train",
        shots: int = 0,
        history: History = "keep",
        thinking_ratio: float | None = None,
        reward: Reward | RewardSpec | Rubric | None = None,
        reward_weights: Mapping[str, float] | None = None,
        reward_clip: Sequence[float | None] | None = None,
        strict: bool = False,
        tape: Tape | None = None,
        **options: Any,
    ) -> EnvConfig:
        """Resolve names, check values, load the tokenizer.

        Raises:
            EnvConfigError: a value that cannot work.
            TypeError: an unknown keyword; the message names the nearest known one.
            ChatTemplateError: the template cannot be used (see `toolstep.envs.chat`).
            ToolBackendError, ImportError: what stands behind some tools (an MCP server, say) cannot be had.
        """
        limit_names = [f.name for f in fields(Limits)]
        given_limits = {k: options.pop(k) for k in limit_names if k in options}
        Limits(**given_limits)  # a value that cannot work is told before anything is loaded
        if split not in ("train", "test"):
            raise EnvConfigError(f'split must be "train" or "test", got {split!r}')
        if isinstance(shots, bool) or not isinstance(shots, int) or not 0 <= shots <= MAX_SHOTS:
            raise EnvConfigError(f"shots must be a whole number from 0 to {MAX_SHOTS}, got {shots!r}")
        if history not in get_args(History):
            raise EnvConfigError(f"history must be one of {get_args(History)}, got {history!r}")
        if thinking_ratio is not None and not (isinstance(thinking_ratio, (int, float)) and 0 <= thinking_ratio <= 1):
            raise EnvConfigError(f"thinking_ratio must be in [0, 1] or None, got {thinking_ratio!r}")
        if template_kwargs is not None and not isinstance(template_kwargs, Mapping):
            raise EnvConfigError(f"template_kwargs must be a dict of template variables, got {template_kwargs!r}")
        if isinstance(tools, ToolFactory):
            tools = [tools]
        if isinstance(tools, (str, bytes)) or callable(tools):
            raise EnvConfigError(f"tools must be a list of functions or Tools, got {tools!r}: write tools=[...]")
        if tape is not None and not isinstance(tape, Tape):
            raise EnvConfigError(f"tape must be a Recording, a Playback or None, got {tape!r}")
        if menu is not None and view != MenuView.name:
            raise EnvConfigError(f'menu=... belongs to view="menu", got view={view!r}')
        number = isinstance(lost_turn_cost, (int, float)) and not isinstance(lost_turn_cost, bool)
        if not number or not 0 <= lost_turn_cost < math.inf:
            raise EnvConfigError(f"lost_turn_cost must be a finite number >= 0, got {lost_turn_cost!r}")
        if lost_turn_cost and view != MenuView.name:
            raise EnvConfigError(f'lost_turn_cost=... belongs to view="menu", got view={view!r}')
        offers = tuple(as_offer(t) for t in tools or ())
        _refuse_twins([o for o in offers if isinstance(o, Tool)])
        try:
            task_set = load_tasks(tasks, **options)
        except TypeError as e:
            raise _with_nearest(e, options, limit_names) from e
        limits = Limits(**{**task_set.limits, **given_limits})
        if task_set.size(split) == 0:
            task_set.task(0, split)  # says why
        given = _named(reward)
        verifier = given if isinstance(given, Verifier) else None
        if verifier is not None:
            task_set = task_set.scored_by(verifier)
        if isinstance(task_set, TaskList):
            task_set.check_tools(offers)
        chat = ChatTemplate(
            tokenizer,
            chat_template=chat_template,
            stop_tokens=stop_tokens,
            tool_call_format=tool_call_format,
            template_kwargs=template_kwargs,
            clock=_moment(clock),
            strict=strict,
        )
        if chat.tokenizer is None:
            for name in ("max_tokens", "max_context"):
                if getattr(limits, name) is not None:
                    raise EnvConfigError(f"{name} counts tokens, so it needs tokenizer=...")
        config = cls(
            tasks=task_set,
            tools=offers,
            view=make_view(view, chat, partial(as_menu, menu, task_set)),
            chat=chat,
            limits=limits,
            split=split,
            examples=_examples(task_set, shots, offers),
            history=history,
            thinking_ratio=thinking_ratio,
            reward=_rubric(task_set, given, reward_weights, reward_clip),
            pays_score=given is None or given is verifier,
            verifier=verifier,
            strict=strict,
            tape=tape,
            lost_turn_cost=float(lost_turn_cost),
        )
        config._open()
        return config

    def _open(self) -> None:
        """What cannot work is found out now, and not by each episode."""
        try:
            for offer in self.tools:
                if isinstance(offer, ToolFactory) and (self.tape is None or self.tape.opens(offer)):
                    offer.open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free what outlives episodes; the config can still be used."""
        self.tasks.close()
        if self.verifier is not None:
            self.verifier.close()
        for offer in self.tools:
            if isinstance(offer, ToolFactory):
                offer.close()


def _moment(clock: datetime | str | None) -> datetime | None:
    if clock is None or isinstance(clock, datetime):
        return clock
    try:
        return datetime.fromisoformat(clock)
    except (TypeError, ValueError):
        raise EnvConfigError(
            f'clock must be a datetime, its ISO form ("2030-05-01T08:00:00") or None, got {clock!r}'
        ) from None


def _named(reward: Reward | RewardSpec | Rubric | None) -> Reward | Rubric | None:
    """The reward itself, where a name or the class of a verifier was given."""
    if isinstance(reward, type) and issubclass(reward, Verifier):
        return reward()
    if reward is None or isinstance(reward, Rubric):
        return reward
    if callable(reward):
        return cast(Reward, reward)
    if not isinstance(reward, str | Mapping):
        raise EnvConfigError(
            f"reward must be a name ({', '.join(reward_names())}), a function of an EpisodeRecord, a Rubric or None, "
            f"got {reward!r}"
        )
    try:
        return make_reward(reward)
    except ValueError as error:
        raise EnvConfigError(f"reward: {error}") from error


def _rubric(
    tasks: TaskSet,
    reward: Reward | Rubric | None,
    weights: Mapping[str, float] | None,
    clip: Sequence[float | None] | None,
) -> Rubric:
    if isinstance(reward, Rubric):
        if weights is not None or clip is not None:
            raise EnvConfigError("reward_weights and reward_clip do not go with a Rubric, which has its own")
        return reward
    try:
        return make_rubric(tasks.score if reward is None else reward, weights, clip=clip)
    except ValueError as error:
        raise EnvConfigError(f"reward_weights, reward_clip: {error}") from error


def _examples(tasks: TaskSet, shots: int, offers: Sequence[Offer]) -> tuple[Message, ...]:
    if not shots:
        return ()
    return example_messages(tasks, shots, extra=offers if tasks.picks_tools else ())


def _refuse_twins(tools: Sequence[Tool]) -> None:
    """EnvConfigError where two tools have the same name; those that factories make are looked at by each reset."""
    seen: set[str] = set()
    for t in tools:
        if t.name in seen:
            raise EnvConfigError(f"two tools are named {t.name!r}; rename one with tool(fn, name=...)")
        seen.add(t.name)


def _with_nearest(error: TypeError, options: Mapping[str, Any], limit_names: Sequence[str]) -> TypeError:
    """A mistyped keyword of the environment arrives here as an unknown option of the task set."""
    own = list(inspect.signature(EnvConfig.create).parameters)
    known = [*limit_names, *own, "render_mode", "autoreset_mode", "max_episode_steps"]
    for name in options:
        near = difflib.get_close_matches(name, known, n=1)
        if near:
            return TypeError(f"{error}; did you mean {near[0]}= of the environment?")
    return error
