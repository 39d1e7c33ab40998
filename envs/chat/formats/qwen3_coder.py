"""Qwen3-Coder, Qwen 3.5 and 3.6, Nemotron 3: each call in tags, one pair for each argument."""

from __future__ import annotations

import re
from typing import ClassVar

from toolstep.envs.chat.formats.xml import XMLFormat


class Qwen3CoderXML(XMLFormat):
    """`<tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>`.

    The outer tags may be missing.  A line break at either end of a value belongs to the markup.
    """

    name: ClassVar[str] = "qwen3_coder_xml"
    begin: ClassVar[str] = "<tool_call>"
    end: ClassVar[str] = "</tool_call>"
    call_open: ClassVar[str] = "<function="
    lead: ClassVar[str] = "\n"
    tail: ClassVar[str] = "\n"
    one_each: ClassVar[bool] = True
    head: ClassVar[re.Pattern[str]] = re.compile(r"([^<>\n]*)>")
    parameter: ClassVar[re.Pattern[str]] = re.compile(r"<parameter=([^<>\n]*)>")
    parameter_close: ClassVar[str] = "</parameter>"
    close: ClassVar[str] = "</function>"
    trim: ClassVar[str] = "\n"

    def write_head(self, name: str) -> str:
        return f"<function={name}>"

    def write_argument(self, key: str, value: str) -> str:
        return f"<parameter={key}>\n{value}\n</parameter>\n"
