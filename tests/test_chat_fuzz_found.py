"""What the fuzz and the matrix found, each as the smallest case.  A mark goes when its cause has gone."""

from __future__ import annotations

import pytest
from chat_cells import OWN, STOPS, native, own_cells, shared_cells
from chat_fixtures import CHATML, TOOLS, shared_template, shared_tokenizer, tiny_tokenizer

from toolstep.envs.chat import ChatTemplate
from toolstep.envs.chat.encoder import encoder_for
from toolstep.envs.chat.errors import UnsafeContent
from toolstep.envs.types import Message, ToolCall, Turn

HISTORY = [Message("user", "Weather?")]


def own(name: str) -> ChatTemplate:
    return ChatTemplate(tiny_tokenizer(), chat_template=OWN[name], stop_tokens=STOPS.get(name, ["<|im_end|>"]))


def call(number: int) -> ToolCall:
    return ToolCall(f"call{number:05d}", "add", '{"x": "1"}', {"x": "1"})


def result(number: int, content: str) -> Message:
    return Message("tool", content, (), f"call{number:05d}", "add")


@pytest.mark.parametrize("shared", [False, True])
def test_episode_goes_on_after_two_calls_where_the_template_takes_one(shared):
    """Llama 3.1: its model makes two calls; the turn is answered, and so must be the next one."""
    if shared:
        entry = shared_template("llama-3.1")
        options = {"chat_template": entry["text"], "stop_tokens": entry["stop_tokens"]}
        chat = ChatTemplate(shared_tokenizer("minimind"), **options)
    else:
        chat = own("one-call")
    turn = Turn("", None, (call(0), call(1)))
    first = chat.delta(HISTORY, turn, [result(0, "3"), result(1, "4")], TOOLS, stop=None)
    assert "3" in first.text
    history = [*HISTORY, Message("assistant", "", turn.calls), result(0, "3"), result(1, "4")]
    assert "5" in chat.delta(history, Turn("", None, (call(2),)), [result(2, "5")], TOOLS, stop=None).text


def test_private_use_characters_in_results_written_as_ascii_json():
    chat = own("json-results")
    text = chat.delta(HISTORY, Turn("", None, (call(0),)), [result(0, "a\U000f0000b")], TOOLS, stop="<|im_end|>").text
    assert '"a\\udb80\\udc00b"' in text


def test_content_that_begins_like_the_end_of_the_turn_is_not_taken_for_it():
    """The template looks at the first result; the second is what stands in front of the turn's stop token."""
    trims = OWN["roles"].replace("(m.content or '')", "((m.content | trim) if m.content else '-')")
    chat = ChatTemplate(tiny_tokenizer(), chat_template=trims, stop_tokens=["<|im_end|>"])
    new = [result(0, ""), result(1, "/tool_call><|")]
    delta = chat.delta(HISTORY, Turn("", None, (call(0), call(1))), new, TOOLS, stop=None)
    assert delta.inserted == "<|im_end|>"
    assert delta.text.startswith("<|im_end|>\n<|im_start|>tool\n")


def test_private_use_characters_are_no_marks_where_results_are_ascii_json():
    """Rendered with marks, as it is once the template is known not to be traceable for such a message."""
    chat = own("json-results")
    content = "/tool_call><|\U000f0000"
    chat._context._recalled = lambda key, write, sides: write(None)
    delta = chat.delta(HISTORY, Turn("", None, (call(0),)), [result(0, content)], TOOLS, stop=None)
    assert delta.inserted == "<|im_end|>"
    assert delta.notes == ()


@pytest.mark.parametrize("half", ["<|im_e", "im_end|>"])
def test_half_a_stop_token_as_content_does_not_hide_the_close(half):
    """The second result makes the template trim, so that contents are looked up; the first is part of the close."""
    trims = CHATML.replace("m.content", "(m.content | trim)")
    chat = ChatTemplate(tiny_tokenizer(), chat_template=trims, stop_tokens=["<|im_end|>"])
    turn = Turn("", None, (call(0), call(1)))
    delta = chat.delta(HISTORY, turn, [result(0, half), result(1, "")], TOOLS, stop=None)
    assert delta.inserted == "<|im_end|>"


@pytest.mark.parametrize(
    "said",
    [
        Turn("Let me see.", None, (call(1),)),
        Turn("", "A sum.", (call(1),)),
    ],
)
def test_text_in_front_of_calls_is_part_of_the_turn(said):
    """Apertus closes an open list of results where a turn has text, and goes on with it where it has none."""
    closes = (
        "{%- set ns = namespace(open=false) %}{%- for m in messages %}{%- if m.role == 'tool' %}"
        "{{ (', ' if ns.open else '[') ~ m.content }}{%- set ns.open = true %}{%- else %}"
        "{%- if ns.open and m.content %}{{ ']' }}{%- set ns.open = false %}{%- endif %}"
        "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') }}"
        "{%- for c in m.tool_calls or [] %}{{ '<tool_call>' ~ (c.function | tojson) ~ '</tool_call>' }}{%- endfor %}"
        "{{ '<|im_end|>\\n' }}{%- endif %}{%- endfor %}{{ tools | tojson if tools else '' }}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    chat = native(ChatTemplate(tiny_tokenizer(), chat_template=closes, stop_tokens=["<|im_end|>"]))
    history = [*HISTORY, Message("assistant", "", (call(0),)), result(0, "3")]
    new = [result(1, "4")]
    bare = chat.delta(history, Turn("", None, (call(1),)), new, TOOLS, stop="<|im_end|>")
    assert bare.text.startswith("\n, 4")
    with_text = chat.delta(history, said, new, TOOLS, stop="<|im_end|>")
    assert with_text.text.startswith("\n[4")


def test_prompt_that_begins_with_plain_text_has_the_space_of_its_vocabulary():
    tokenizer = shared_tokenizer("mistral-spm-v3")
    template = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '</s>' }}{% endfor %}"
    chat = ChatTemplate(tokenizer, chat_template=template, stop_tokens=["</s>"])
    prompt = chat.prompt(HISTORY, [])
    assert prompt.ids.tolist() == tokenizer.encode(prompt.text, add_special_tokens=False)


@pytest.mark.parametrize("name", ["moves-system", "mistral-common-v3", "mistral-small-3.2"])
def test_task_and_tools_that_a_delta_repeats_inject_nothing(name):
    """Mistral's templates write the tools, and older ones the system prompt, in front of the last user message."""
    token = "<|im_start|>" if name == "moves-system" else "[INST]"
    cells = own_cells() if name == "moves-system" else shared_cells("minimind")
    chat = next(cell.chat() for cell in cells if cell.name == name)
    control = encoder_for(chat.tokenizer).control_ids
    seen = []
    for word in ("harmless", token):
        history = [Message("system", f"You are {word}."), *HISTORY]
        tools = [{**t, "function": {**t["function"], "description": word}} for t in TOOLS]
        new = [Message("user", "plain words")]
        delta = chat.delta(history, Turn("Fine."), new, tools, stop=min(chat.stop_tokens))
        assert word in delta.text
        seen.append([i for i in delta.ids.tolist() if i in control])
    assert seen[0] == seen[1]


def test_task_that_a_delta_of_result_and_user_message_repeats_is_refused_with_control_tokens():
    """Mistral's v3 template looks at the last message's content here, so its rendering can't be marked."""
    chat = next(cell.chat() for cell in shared_cells("minimind") if cell.name == "mistral-common-v3")

    def delta(word):
        history = [Message("system", f"You are {word}."), *HISTORY]
        new = [result(0, "5"), Message("user", "go on")]
        return chat.delta(history, Turn("", None, (call(0),)), new, TOOLS, stop="</s>")

    assert "harmless" in delta("harmless").text
    with pytest.raises(UnsafeContent, match="control token"):
        delta("[/INST]")
