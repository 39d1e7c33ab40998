"""report.html as a browser's parser sees it, and episodes that try to get out of it."""

from __future__ import annotations

import base64
import json
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import numpy as np
from test_rollout_types import make

from toolstep.rollout.types import Trajectory

HOSTILE = [
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 2'>",
    "<!--<script>",
    "]]>--><svg/onload=window.pwned=3>",
    "\"'`><b>&lt;&amp;",
    "\u2028\u202e\ud800\x00\x1b[31m\r\n\tthe end",
    "javascript:window.pwned=4",
    "{{ 7 * 7 }}{% raw %}",
]


def hostile() -> Trajectory:
    """An episode each of whose texts tries to be more than a text."""
    calls = [
        {"id": "c0", "type": "function", "function": {"name": text, "arguments": {text: text}}} for text in HOSTILE
    ]
    messages = [
        {"role": "user", "content": HOSTILE[0]},
        {"role": "assistant", "content": HOSTILE[1], "reasoning_content": HOSTILE[2], "tool_calls": calls},
        *({"role": "tool", "content": text, "tool_call_id": "c0", "name": text} for text in HOSTILE),
        {"role": "assistant", "content": HOSTILE[0]},
    ]
    return make(
        [((), (5, 6), 0.0), ((7,), (8,), 1.0)],
        messages=messages,
        task_id=HOSTILE[0],
        tags={HOSTILE[0]: HOSTILE[1], "level": HOSTILE[5]},
        stop_reason=HOSTILE[0],
        error=HOSTILE[1],
        metrics={HOSTILE[1]: 1.0, f"calls/{HOSTILE[0]}": 2.0},
    )


class Page(HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, data: bytes):
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []  # (tag, name, value)
        self.scripts: dict[str | None, str] = {}  # by id
        self.styles: list[str] = []
        self.policy = ""
        self.text = ""
        self._inside: tuple[str, str | None] | None = None
        self.feed(data.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        found = dict(attrs)
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        if tag in ("script", "style"):
            self._inside = (tag, found.get("id"))
            if tag == "script":
                assert found.get("id") not in self.scripts
                self.scripts[found.get("id")] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.text += data
        elif self._inside[0] == "script":
            self.scripts[self._inside[1]] += data
        else:
            self.styles.append(data)

    def data(self, name: str) -> Any:
        return json.loads(self.scripts[name])

    def tokens(self, number: int) -> dict[str, list[Any]]:
        """The flat record of an episode, out of its packed form."""
        packed, words = self.data(f"detail-{number}")["tokens"], self.data("vocabulary")
        places = np.frombuffer(base64.b64decode(packed["places"]), f"<u{words['width']}")
        changes = {start: rest for start, *rest in packed["runs"]}
        out: dict[str, list[Any]] = {"token_ids": [words["ids"][p] for p in places]}
        run: list[int] = []
        runs = [run := changes.get(i, run) for i in range(len(places))]
        for k, name in enumerate(("source", "turn", "weight_versions")):
            out[name] = [r[k] for r in runs]
        for name in ("logprobs", "model_logprobs"):
            stored = packed[name] if packed[name] is not None or name == "logprobs" else packed["logprobs"]
            drawn = iter(np.frombuffer(base64.b64decode(stored or ""), "<f4").tolist())
            out[name] = [next(drawn, None) if source == 1 else 0.0 for source in out["source"]]
            assert next(drawn, None) is None
        return out
