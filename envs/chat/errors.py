"""What can go wrong between a conversation and a chat template.  The messages say what to do."""


class ChatTemplateError(Exception):
    """Base of all errors of this package."""


class NoChatTemplate(ChatTemplateError):
    """The tokenizer carries no chat template, and none was given."""


class TokenizerNotFound(ChatTemplateError):
    """No tokenizer could be loaded under this name."""


class UnsupportedTokenizer(ChatTemplateError):
    """The tokenizer has no fast backend, so text cannot be encoded without its added tokens."""


class TemplateSyntax(ChatTemplateError):
    """The template text does not compile."""


class TemplateRejects(ChatTemplateError):
    """The template itself raised on this sequence of messages."""


class TurnNotWritten(ChatTemplateError):
    """The template does not write the assistant turn that it is given."""


class MessageDropped(ChatTemplateError):
    """The template does not write a message, or writes it in front of the turn that it answers."""


class StopTokenMismatch(ChatTemplateError):
    """The template closes assistant turns with a token at which generation would not stop."""


class UnsafeContent(ChatTemplateError):
    """Text that is not the template's own cannot be told apart from it."""


class UnknownToolCallFormat(ChatTemplateError):
    """The template writes tool calls in a form for which there is no parser."""


class UnwritableTurn(ChatTemplateError):
    """The tool-call format has no text for this turn: a name that would end its header, for instance."""
