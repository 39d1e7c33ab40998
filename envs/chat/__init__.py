"""Chat templates: prompts, observation deltas, tool-call formats, tokenizers."""

from __future__ import annotations

from toolstep.envs.chat.errors import (
    ChatTemplateError,
    MessageDropped,
    NoChatTemplate,
    StopTokenMismatch,
    TemplateRejects,
    TemplateSyntax,
    TokenizerNotFound,
    TurnNotWritten,
    UnknownToolCallFormat,
    UnsafeContent,
    UnsupportedTokenizer,
)
from toolstep.envs.chat.segment import Segment
from toolstep.envs.chat.strict import DeltaMismatch
from toolstep.envs.chat.template import ChatTemplate
from toolstep.envs.chat.tokenizer import load_tokenizer

__all__ = [
    "ChatTemplate",
    "ChatTemplateError",
    "DeltaMismatch",
    "MessageDropped",
    "NoChatTemplate",
    "Segment",
    "StopTokenMismatch",
    "TemplateRejects",
    "TemplateSyntax",
    "TokenizerNotFound",
    "TurnNotWritten",
    "UnknownToolCallFormat",
    "UnsafeContent",
    "UnsupportedTokenizer",
    "load_tokenizer",
]
