"""The chat template that is used where there is no tokenizer: ChatML, with tools in the Hermes form."""

from __future__ import annotations

CHATML_HERMES = """\
{%- set first = 0 %}
{%- if messages and messages[0].role == 'system' %}
    {%- set first = 1 %}
{%- endif %}
{%- if tools or first %}
    {{- '<|im_start|>system\\n' }}
    {%- if first %}
        {{- messages[0].content }}
        {{- '\\n\\n' if tools else '' }}
    {%- endif %}
    {%- if tools %}
        {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
        {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
        {%- for tool in tools %}
            {{- '\\n' ~ (tool | tojson) }}
        {%- endfor %}
        {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name ' }}
        {{- 'and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
        {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages[first:] %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first else '' }}
            {{- '<tool_call>\\n{"name": ' ~ (call.function.name | tojson) ~ ', "arguments": ' }}
            {%- set arguments = call.function.arguments %}
            {{- arguments if arguments is string else arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

STOP_TOKENS = ("<|im_end|>",)
SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>")
