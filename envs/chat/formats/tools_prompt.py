"""What a model reads about its tools where its chat template doesn't write it: the list, and how calls are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from toolstep.envs.types import ToolCall

_EXAMPLE = ToolCall("call00000", "function_name", '{"parameter": "value"}', {"parameter": "value"})
_FIELDS = frozenset(("name", "description", "parameters", "function"))


@dataclass(frozen=True, slots=True)
class ToolsPrompt:
    """The text of one family of models.

    head, tail: in front of the tools and behind them.  entry: one tool, with the fields {name}, {description},
    {parameters} (their JSON schema) and {function} (all of it as JSON).  between: what stands between two tools.
    rule: how calls are written, with an example in place of {example}.
    """

    head: str
    entry: str
    between: str
    tail: str
    rule: str

    def parts(self, tools: Sequence[Mapping[str, Any]], wrap: Callable[[str], Any]) -> list[Any]:
        """The tools as pieces of text, of which those that `wrap` made are the tools' own."""
        out: list[Any] = [self.head]
        for i, tool in enumerate(tools):
            function = tool.get("function", tool)
            out += [self.between] if i else []
            for literal, field, _, _ in Formatter().parse(self.entry):
                out.append(literal)
                if field in _FIELDS:
                    value = function if field == "function" else function.get(field, "")
                    out.append(wrap(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
        return [*out, self.tail]

    def how(self, write: Callable[[Sequence[ToolCall]], str]) -> str:
        """How calls are written by a format whose `write_calls` is `write`."""
        return self.rule.replace("{example}", write([_EXAMPLE]))


_RULE = (
    "To call a function, write exactly this, with the function's name and its arguments in place of these:\n{example}"
)
LISTED = ToolsPrompt(
    head="# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n",
    entry="{function}",
    between="\n",
    tail="\n</tools>",
    rule=_RULE,
)
HERMES = ToolsPrompt(
    LISTED.head,
    LISTED.entry,
    LISTED.between,
    LISTED.tail,
    rule="For each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
)
# Documented with the weights: headings and fields in V3.1, headings and fenced JSON in V3 and R1.
DEEPSEEK_V31 = ToolsPrompt(
    head="## Tools\nYou have access to the following tools:\n\n",
    entry="### {name}\nDescription: {description}\n\nParameters: {parameters}",
    between="\n\n",
    tail="",
    rule="A call is written in exactly this form, with the name of a tool and arguments that are valid JSON for its "
    "parameters; further calls follow the first one without anything between them:\n{example}",
)
DEEPSEEK_V3 = ToolsPrompt(
    head="## Tools\n\n### Function\n\nYou have the following functions available:\n\n",
    entry="- `{name}`:\n```json\n{function}\n```",
    between="\n",
    tail="",
    rule=_RULE,
)
FIREFUNCTION = ToolsPrompt(
    head="Available functions as JSON spec:\n[",
    entry="{function}",
    between=", ",
    tail="]",
    rule="All function calls are written as one JSON list behind the word functools:\n{example}",
)
