"""Descriptions of a function and of its parameters, from its docstring."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

_SPHINX = re.compile(r"^\s*:(param|parameter|arg|argument|key|keyword)\b[^:\n]*:", re.MULTILINE)
_NUMPY = re.compile(r"^\s*(Other )?(Parameters|Arguments)[ \t]*\n\s*-{3,}[ \t]*$", re.MULTILINE)
_SECTION = re.compile(
    r"^[ \t]*(Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments|Other Parameters|Other Args|"
    r"Returns?|Yields?|Raises|Examples?|Notes?|Warns|Warnings|See Also|References)"
    r"[ \t]*(:[ \t]*$|\n\s*-{3,}[ \t]*$)",
    re.MULTILINE | re.IGNORECASE,
)
_FIELD = re.compile(r"^\s*:\w+[^:\n]*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Documentation:
    """`text` is everything before the first section; `parameters` maps names (no asterisks) to descriptions."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Documentation:
    """Read a Google, NumPy or Sphinx docstring; the style is told by its sections.

    griffe parses the sections and is imported only where there are some.
    """
    if not docstring or not docstring.strip():
        return Documentation()
    clean = inspect.cleandoc(docstring)
    sphinx = _SPHINX.search(clean) is not None
    if not sphinx and _SECTION.search(clean) is None:
        fields = _FIELD.search(clean)
        return Documentation(clean[: fields.start()].strip() if fields else clean)

    import griffe

    source = griffe.Docstring(clean, lineno=1)
    if sphinx:
        sections = griffe.parse_sphinx(source, warnings=False)
    elif _NUMPY.search(clean) is not None:
        sections = griffe.parse_numpy(source, warnings=False)
    else:
        sections = griffe.parse_google(source, warnings=False)

    text = ""
    parameters: dict[str, str] = {}
    for position, section in enumerate(sections):
        if section.kind is griffe.DocstringSectionKind.text and position == 0:
            text = str(section.value).strip()
        elif section.kind in (
            griffe.DocstringSectionKind.parameters,
            griffe.DocstringSectionKind.other_parameters,
        ):
            for parameter in section.value:
                # Line breaks in a parameter's description are where the source was wrapped, no more.
                description = " ".join(str(parameter.description).split())
                if description:
                    parameters[parameter.name.lstrip("*\\")] = description
    return Documentation(text, parameters)
