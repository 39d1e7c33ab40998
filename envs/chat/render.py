"""Rendering of chat templates, character for character as transformers 5.24 does it, but without transformers.

Reproduced (transformers/utils/chat_template_utils.py and `apply_chat_template`): the immutable sandbox, trimmed and
stripped blocks, loop controls, the `generation` block, `tojson` without HTML or ASCII escapes, `raise_exception`,
`strftime_now`, the guarded `namespace` and `dict`, message keys whose value is None dropped, reasoning under its three
names, special tokens as variables.  One difference on purpose: the clock stands still, because a prompt that changes at
midnight is not a function of the seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from toolstep.envs.chat.errors import TemplateRejects, TemplateSyntax
from toolstep.envs.chat.tracing import TracingEnvironment
from toolstep.envs.chat.watched import Untraceable, Watched

_REASONING = ("reasoning_content", "thinking", "reasoning")


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`: marks assistant text for trainers; here its body is just written.

    The body is a call block, as in transformers, so that variables set inside do not leak out of it.
    """

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it without ClassVar)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller: Macro) -> str:
        return caller()


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


class _Dict:
    """`dict` for templates: the constructor and `fromkeys`, no way to the class behind them."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` for templates, without underscore names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template cannot store the underscore name {name!r} on a namespace")


def _environment(kind: type[ImmutableSandboxedEnvironment]) -> ImmutableSandboxedEnvironment:
    env = kind(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals.update(raise_exception=_raise_exception, dict=_Dict(), namespace=_Namespace)
    if isinstance(env, TracingEnvironment):
        env.follow()
    return env


@lru_cache(maxsize=256)
def _compile(text: str, *, tracing: bool = False) -> jinja2.Template:
    try:
        return _environment(TracingEnvironment if tracing else ImmutableSandboxedEnvironment).from_string(text)
    except TemplateError as e:
        line = getattr(e, "lineno", None)
        where = f" (line {line})" if line is not None else ""
        raise TemplateSyntax(f"the chat template does not compile{where}: {e}") from e


class Renderer:
    """A compiled chat template with its special tokens and its clock.  Immutable, so threads may share it.

    template: the text, or a mapping of names to texts: as in transformers, "tool_use" is taken where tools
        are given, "default" otherwise.
    variables: what every rendering sees besides messages and tools (`bos_token`, `eos_token`, ...).
    clock: the time that `strftime_now` tells; the moment of construction by default.
    """

    def __init__(
        self,
        template: str | Mapping[str, str],
        variables: Mapping[str, Any] | None = None,
        *,
        clock: datetime | None = None,
    ):
        named = {"default": template} if isinstance(template, str) else dict(template)
        if "default" not in named:
            raise TemplateSyntax(f"a set of chat templates needs one named 'default', got {sorted(named)}")
        self._named, self._given = named, dict(variables or {})
        self._plain = _compile(named["default"])
        self._tools = _compile(named.get("tool_use", named["default"]))
        self._clock = clock or datetime.now()
        self._variables = {**self._given, "strftime_now": self._clock.strftime}

    def __reduce__(self) -> tuple[Any, ...]:  # compiled templates can't be sent to another process
        return partial(Renderer, clock=self._clock), (self._named, self._given)

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text; with `generation`, up to the point at which the model begins to write.

        An empty list of tools counts as none.  Raises TemplateRejects where the template raises.
        """
        template = self._tools if tools else self._plain
        shown: str = self._render(template, messages, tools, generation, kwargs)
        return shown

    def traced(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str | Watched:
        """The same with watched text in messages and tools.  Raises Untraceable where it can't be followed."""
        template = _compile(
            self._named.get("tool_use", self._named["default"]) if tools else self._named["default"], tracing=True
        )
        shown: str | Watched = self._render(template, messages, tools, generation, kwargs)
        return shown

    def _render(
        self,
        template: jinja2.Template,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        generation: bool,
        kwargs: Mapping[str, Any] | None,
    ) -> Any:
        try:
            return template.render(
                {
                    **self._variables,
                    **(kwargs or {}),
                    "messages": [_for_template(m) for m in messages],
                    "tools": list(tools) if tools else None,
                    "documents": None,
                    "add_generation_prompt": generation,
                }
            )
        except Untraceable:
            raise
        except Exception as e:  # a template is foreign code: it may raise anything
            roles = [m.get("role") for m in messages]
            shown = roles if len(roles) <= 8 else [*roles[:4], "...", *roles[-4:]]
            raise TemplateRejects(
                f"the chat template rejects a conversation of roles {shown}: {type(e).__name__}: {e}"
            ) from e


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    out = {k: v for k, v in message.items() if v is not None}
    thought = next((out[k] for k in _REASONING if k in out), None)
    return out if thought is None else {"thinking": thought, **out, "reasoning_content": thought}
