"""GLM 4.5 to 4.7: the name, then keys and values in tags of their own."""

from __future__ import annotations

import re
from typing import ClassVar

from toolstep.envs.chat.formats.xml import XMLFormat


class GLM(XMLFormat):
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>`."""

    name: ClassVar[str] = "glm_xml"
    call_open: ClassVar[str] = "<tool_call>"
    between: ClassVar[str] = "\n"
    head: ClassVar[re.Pattern[str]] = re.compile(r"([^<\n]*)(?=[<\n])")
    parameter: ClassVar[re.Pattern[str]] = re.compile(r"<arg_key>([^<]*)</arg_key>\s*+<arg_value>")
    parameter_close: ClassVar[str] = "</arg_value>"
    close: ClassVar[str] = "</tool_call>"

    def write_head(self, name: str) -> str:
        return f"<tool_call>{name}"

    def write_argument(self, key: str, value: str) -> str:
        return f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
