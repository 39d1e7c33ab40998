"""`tool_choice` that forces a call: the turn is held to the schemas of the tools (`agents/constrain.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from toolstep.agents.constrain import Constrain, ToolCalls
from toolstep.envs.chat import ChatTemplate
from toolstep.rollout.serve.errors import BadRequest, Unsupported

_REMEMBERED = 16  # grammars; clients send the same tools again and again


class ForcedCalls:
    """What a turn may sample that has to be calls, for a chat template and a model with `vocabulary` logits."""

    def __init__(self, chat: ChatTemplate, vocabulary: int) -> None:
        self._chat, self._vocabulary = chat, vocabulary
        self._bound = lru_cache(_REMEMBERED)(self._bind)

    def constrain(self, only: str | None, tools: Sequence[Mapping[str, Any]], prompt_tail: str) -> Constrain:
        """For `tools` (only: the name of the one that is to be called), behind a prompt that ends so.

        Raises BadRequest and Unsupported.
        """
        form = self._chat.tool_call_format
        if form.opens_thought(prompt_tail):
            raise Unsupported(
                "tool_choice: the prompt opens a thought, in which no call can be forced; templates that can do "
                'without take chat_template_kwargs, most of them {"enable_thinking": false}',
                "tool_choice",
            )
        if only is not None:
            tools = [tool for tool in tools if tool["function"]["name"] == only]
        if not tools:
            raise BadRequest(
                "tool_choice: a call is required, but "
                + ("there are no tools" if only is None else f"tools has none of the name {only[:80]!r}"),
                "tool_choice",
            )
        try:
            return self._bound(json.dumps(tools))
        except ImportError as error:
            raise Unsupported(str(error), "tool_choice") from None
        except ValueError as error:
            raise Unsupported(f"tool_choice: {error}", "tool_choice") from None

    def _bind(self, tools: str) -> Constrain:
        return ToolCalls(json.loads(tools), required=True).bind(self._chat, self._vocabulary)
