"""The request bodies, and which of their fields are refused since ignoring them would change what is asked for."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolstep.rollout.serve.errors import Unsupported

# Fields of OpenAI's API and of other servers' extensions that are not done here: name -> values that ask for nothing.
# Whatever is not listed and not declared below is harmless and ignored, as OpenAI-compatible servers do.
_NOTHING: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n_best": (1,),
    "parallel_tool_calls": (True,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "regex": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
_MOST_TOP_LOGPROBS = 20

TokenId = Annotated[int, Field(ge=0)]


class StreamOptions(BaseModel):
    include_usage: bool = False


class Sampling(BaseModel):
    """What chat and plain completions have in common.  None: the server's default."""

    model_config = ConfigDict(extra="allow", strict=False)

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_done(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if name in _NOTHING and value is not None and value not in _NOTHING[name]:
                raise Unsupported(f"{name} is not supported by this server", name)
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings; an empty one stops nothing."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(filter(None, given))


class CompletionRequest(Sampling):
    """`POST /v1/completions`."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    logprobs: Annotated[int, Field(ge=0, le=_MOST_TOP_LOGPROBS)] | None = None
    skip_special_tokens: bool = True


class TextPart(BaseModel):
    """Part of a content; images and sound are not read."""

    type: Literal["text"]
    text: str


class FunctionCall(BaseModel):
    name: str
    arguments: str | dict[str, Any] = "{}"


class CallIn(BaseModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class MessageIn(BaseModel):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[CallIn] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class FunctionIn(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolIn(BaseModel):
    type: Literal["function"]
    function: FunctionIn

    def schema_dict(self) -> dict[str, Any]:
        """As templates read it: what was not given is not there, and parameters are an object in any case."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        function.setdefault("parameters", {"type": "object", "properties": {}})
        return {"type": "function", "function": function}


class FunctionName(BaseModel):
    name: str


class OneTool(BaseModel):
    """The tool that is to be called."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(Sampling):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[MessageIn], Field(min_length=1)]
    tools: list[ToolIn] | None = None
    tool_choice: Literal["none", "auto", "required"] | OneTool | None = None
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_MOST_TOP_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise Unsupported("top_logprobs needs logprobs: true", "top_logprobs")
        return self
