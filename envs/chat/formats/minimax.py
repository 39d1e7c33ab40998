"""MiniMax-M2: a section of calls, with a pair of tags for each argument."""

from __future__ import annotations

import re
from typing import ClassVar

from toolstep.envs.chat.formats.xml import XMLFormat


class MiniMaxM2(XMLFormat):
    """`<invoke name="..."><parameter name="key">value</parameter>...</invoke>` in `<minimax:tool_call>`."""

    name: ClassVar[str] = "minimax_m2"
    begin: ClassVar[str] = "<minimax:tool_call>"
    end: ClassVar[str] = "</minimax:tool_call>"
    call_open: ClassVar[str] = '<invoke name="'
    lead: ClassVar[str] = "\n"
    between: ClassVar[str] = "\n"
    tail: ClassVar[str] = "\n"
    head: ClassVar[re.Pattern[str]] = re.compile(r'([^<>"\n]*)">')
    parameter: ClassVar[re.Pattern[str]] = re.compile(r'<parameter name="([^<>"\n]*)">')
    parameter_close: ClassVar[str] = "</parameter>"
    close: ClassVar[str] = "</invoke>"

    def write_head(self, name: str) -> str:
        return f'<invoke name="{name}">'

    def write_argument(self, key: str, value: str) -> str:
        return f'<parameter name="{key}">{value}</parameter>\n'
