"""From a request to the generations that answer it."""

from __future__ import annotations

from toolstep.envs.chat import ChatTemplateError
from toolstep.envs.chat.encoder import clean
from toolstep.rollout.serve.answers import Answer, ChatAnswer, CompletionAnswer
from toolstep.rollout.serve.errors import BadRequest
from toolstep.rollout.serve.generation import Events, Generation
from toolstep.rollout.serve.messages import read_messages
from toolstep.rollout.serve.protocol import ChatRequest, CompletionRequest, OneTool
from toolstep.rollout.serve.served import Served

DEFAULT_MAX_TOKENS = 16  # of plain completions, OpenAI's
_TAIL = 256  # characters of a prompt in which a thought may have been opened


def ask_chat(served: Served, request: ChatRequest, events: Events) -> tuple[Answer, list[Generation]]:
    """Render the conversation.  Text of messages never becomes a control token."""
    if served.chat is None or served.forced is None:
        raise BadRequest(f"the model has no chat template that can be used: {served.no_chat}", "messages")
    messages = read_messages(request.messages)
    tools = None
    if request.tools and request.tool_choice != "none":
        tools = [tool.schema_dict() for tool in request.tools]
    kwargs = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    try:
        prompt = served.chat.prompt(messages, tools or (), kwargs=kwargs)
    except ChatTemplateError as error:
        raise BadRequest(str(error), "messages") from None
    ids = prompt.ids.tolist()
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    form, tail = served.chat.tool_call_format, prompt.text[-_TAIL:]
    constrain = None
    if request.tool_choice == "required" or isinstance(request.tool_choice, OneTool):
        only = request.tool_choice.function.name if isinstance(request.tool_choice, OneTool) else None
        constrain = served.forced.constrain(only, tools or (), tail)
    generations = served.generations(
        request, [ids], events, max_tokens=limit, top_logprobs=request.top_logprobs or 0, constrain=constrain
    )
    return ChatAnswer(served, request, ids, generations, form, tail, tools), generations


def ask_completion(served: Served, request: CompletionRequest, events: Events) -> tuple[Answer, list[Generation]]:
    """Text is tokenized as the tokenizer does it by itself, control tokens and all; ids are taken as they are."""
    given = request.prompt
    several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    prompts = [_ids(served, prompt) for prompt in (given if several else [given])]
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    generations = served.generations(
        request,
        prompts,
        events,
        max_tokens=limit,
        top_logprobs=request.logprobs or 0,
        hidden=served.special_ids if request.skip_special_tokens else frozenset(),
    )
    return CompletionAnswer(served, request, prompts, generations), generations


def _ids(served: Served, prompt: object) -> list[int]:
    if isinstance(prompt, str):
        encoded: list[int] = served.tokenizer(clean(prompt))["input_ids"]
        return encoded
    assert isinstance(prompt, list)
    vocabulary = served.worker.engine.packed.vocabulary
    if bad := [i for i in prompt if i >= vocabulary]:
        raise BadRequest(f"id {bad[0]} is outside the model's vocabulary of {vocabulary}", "prompt")
    return prompt
