"""Watched text: no question of a template goes unrecorded, so that what answers alike is written alike."""

from __future__ import annotations

import copy
import json
import re

import pytest

from toolstep.envs.chat.errors import TemplateRejects
from toolstep.envs.chat.holes import NEW, answer
from toolstep.envs.chat.memo import NoKey, Skeleton
from toolstep.envs.chat.provenance import traced
from toolstep.envs.chat.render import Renderer, _compile
from toolstep.envs.chat.watched import Trace, Untraceable
from toolstep.envs.chat.watcher import Watcher
from toolstep.envs.types import Message

# Expressions of `c`, a foreign text, and `m`, its message.  Those in FOLLOWED must be traced, so that they can be
# remembered; what the others do may be given up.
FOLLOWED = """
c
c ~ 'x'
'x' + c + 'y'
c|trim
c.strip()
c.strip('ab')
c.lstrip()
('  ' ~ c ~ ' ')|trim
(c ~ '  z')|trim
c|string
c|tojson
m|tojson
messages|tojson
{'k': [c, 1]}|tojson(indent=1)
c|tojson(ensure_ascii=true)
(c|tojson)|tojson
c|default('none', true)
c or 'nothing'
'yes' if c else 'no'
not c
c == 'ab'
c != ''
'b' == c
c in ['ab', 'zz']
'a' in c
'</think>' in c
c.startswith('a')
c.endswith('b')
c.startswith(('a', 'x'))
c is string
c is none
c is mapping
c is defined
c is iterable
c is sequence
c is number
c.text is defined
c['text'] is defined
c is eq('ab')
c is ne('ab')
c|length > 2
c|length == 2
c|trim|length > 0
[c, 'z']|join(',')
', '.join([c, 'z'])
[c, 'z']|first
[c]|length
messages|map(attribute='content')|join('|')
messages|selectattr('content', 'eq', 'ab')|list|length
messages|rejectattr('content')|list|length
m.get('content')
dict(k=c)|tojson
namespace(k=c).k
{'k': c}.k
[c, 'q']|select('eq', 'ab')|list|length
[c]|map('trim')|join
(c, 1)[0]
m.items()|list|length
c.replace('ab', '')
('<' ~ c ~ '>').startswith('<')
c is in(['ab'])
true and c
c|d('n', true)
""".strip().splitlines()
OTHER = """
('<' ~ c).endswith('b')
c|length ~ ''
c[0]
c[:2]
c[-1:]
c|list|join('.')
c|first
c|last
c|reverse
c in 'hello ab'
c|upper
c.upper()
c|title
c.split(' ')|length
c.split('a')[0]
c|int
c|float
c.isdigit()
c is lower
c is upper
{'ab': 1}[c]
{'ab': 1}.get(c, 0)
c < 'm'
c >= 'b'
c * 2
'%s' % c
'{}'.format(c)
'%s'|format(c)
c|wordcount
c|e
('x'|safe) + c
('x'|safe) ~ c
c|safe
c|truncate(3)
c|urlencode
c|center(9)
c|indent
c|replace('a', 'bb')
c|replace('ab', 'a')
c.replace('b', '', 1)
c.count('a')
c.find('b')
c.join(['1', '2'])
[c, 'b']|sort|join
[c, 'b']|max
[c, 'b']|min
[c]|sum(start='')
c|map('upper')|join
[c, 'ab']|unique|list|length
messages|groupby('content')|list|length
messages|sort(attribute='content')|map(attribute='role')|join
c|attr('upper')
c == messages[0].content
c in messages[0].content
messages[0].content in c
c|batch(2)|list|length
c|striptags
c|wordwrap(3)
c is sameas(messages[0].content)
c|length is odd
c is in('ab cd')
c|pprint
[c]|string
m|string
messages|map(attribute='content')|map('length')|sum
c|length + 1
[1, 2, 3][c|length]
'abc'[:c|length]
range(c|length)|list
c.encode()
c.format(1)
'ab'.startswith(c)
'ab cd'.replace(c, '_')
'abab'.split(c)|length
['ab', 'b'].index(c)
c % 1
-c
messages|map(attribute='content')|unique|list|length
messages|selectattr('content', 'in', 'ab cd')|list|length
c.casefold() == 'ab'
c is divisibleby(2)
c|abs
c|round
c|dictsort
c|xmlattr
'x' is in(c)
c ~ c == 'abab'
(c ~ 'b') == 'ab'
'ab'|replace(c, 'z')
'a b'|join(c)
['1', '2']|join(c)
none|default(c) == 'ab'
(c|length) in [2]
c|count
c|tojson|length
'bb' in (c ~ 'b')
(c ~ 'b').startswith('ab')
('a' ~ c).endswith('ab')
('a' ~ c).replace('ab', '')
(c ~ c)|trim
c.strip(c)
m.content.__class__
c|slice(2)|list|length
c is escaped
c is callable
c is boolean
m.values()|list|string
loop is defined
""".strip().splitlines()
STATEMENTS = [
    "{% for x in c %}{{ x }}.{% endfor %}",
    "{% macro f(t) %}{{ t | trim }}{% endmacro %}{{ f(c) }}",
    "{% macro f(t) %}[{{ t }}]{{ caller() }}{% endmacro %}{% call f(c) %}{{ c }}{% endcall %}",
    "{% set x %} {{ c }} {% endset %}{{ x | trim }}|{{ x | length }}",
    "{% set x %}{{ c }}{% endset %}{% if x == 'ab' %}!{% endif %}{{ x }}",
    "{% filter trim %}  {{ c }} {% endfilter %}",
    "{% filter upper %}{{ c }}{% endfilter %}",
    "{% set ns = namespace(t='') %}{% for x in messages %}{% set ns.t = ns.t ~ x.content %}{% endfor %}{{ ns.t }}",
    "{% for x in messages if x.content %}{{ x.content }};{% endfor %}",
    "{% for x in messages %}{{ loop.changed(x.content) }}{% endfor %}",
    "{% for x in messages %}{% if loop.previtem and loop.previtem.content == x.content %}same{% endif %}{% endfor %}",
    "{% for x in messages | sort(attribute='content') %}{{ x.role }}{% endfor %}",
    "{% generation %}{{ c }}{% endgeneration %}",
    "{% if c == 'b' %}{{ raise_exception('no ' ~ c) }}{% endif %}{{ c }}",
    "{% if c %}{{ raise_exception('full') }}{% endif %}empty",
    "{% with t = c %}{{ t }}{% endwith %}{% set a, b = c, 'q' %}{{ a ~ b }}",
    "{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}",
    "{{ joiner(c)() }}{{ cycler(c, 'x').next() }}{{ c }}",
    "{% set d = {} %}{% set x = d.setdefault('a', c) %}{{ x }}",
    "{{ messages.index(m) }}{{ messages.count(m) }}{{ c }}",
    "{% for x in messages recursive %}{{ x.content }}{% endfor %}",
    "{{ self.b() }}{% block b %}{{ messages[1].content }}{% endblock %}",
]
CONTENTS = [
    "",
    " ",
    "ab",
    "b",
    "a",
    "ba",
    " ab ",
    "abab",
    "12",
    "1.5",
    "Ab",
    "</think>",
    "\n\n",
    'q"\\é',
    "a b",
    "m",
    "x" * 9,
]


def _source(expression: str) -> str:
    """Writes the expression for the last message, and in any case its content."""
    body = expression if expression.startswith("{") and expression[1] in "%{" else "{{ " + expression + " }}"
    return "{% set m = messages[1] %}{% set c = m.content %}<" + body + ">{{ c }}"


def _dicts(content):
    return [{"role": "user", "content": "ab"}, {"role": "tool", "content": content}]


def _trace(render: Renderer, content: str):
    """(skeleton or None, the questions) of a rendering with this content."""
    trace = Trace()

    def write(watch):
        return [{"role": "user", "content": "ab"}, {"role": "tool", "content": watch.wrap(content, at=0)}], []

    try:
        written = traced(render, write, trace, side=NEW, generation=True, kwargs={})
        return None if trace.once else Skeleton.of(written), trace.questions
    except (Untraceable, TemplateRejects, NoKey):
        return None, trace.questions


def _check(expression: str) -> int:
    """Fill each skeleton with each other content that answers its questions alike.  Returns how many were followed."""
    render = Renderer(_source(expression))
    plain = {}
    for content in CONTENTS:
        try:
            plain[content] = render(_dicts(content))
        except TemplateRejects:
            plain[content] = None
    followed = 0
    for content in CONTENTS:
        skeleton, questions = _trace(render, content)
        if skeleton is None:
            continue
        followed += 1
        for other in CONTENTS:
            if all(answer(q, other) == answer(q, content) for q in questions):
                filled = skeleton.fill({NEW: [Message("tool", other)]})
                assert filled.text == plain[other], (content, other)
                assert all(_stems_from(filled.text[a:b], other) for a, b in filled.foreign), (content, other)
    return followed


def _stems_from(shown: str, text: str) -> bool:
    once = [json.dumps(text, ensure_ascii=e)[1:-1] for e in (False, True)]
    twice = [json.dumps(t, ensure_ascii=e)[1:-1] for t in once for e in (False, True)]
    return any(shown in t for t in (text, text.replace("ab", ""), *once, *twice))


@pytest.mark.parametrize("expression", [*FOLLOWED, *OTHER, *STATEMENTS])
def test_what_answers_alike_is_written_alike(expression):
    followed = _check(expression)
    if expression in FOLLOWED:
        assert followed == len(CONTENTS)


_ENVIRONMENT = _compile("").environment


@pytest.mark.parametrize("name", sorted(_ENVIRONMENT.filters))
def test_no_filter_looks_at_foreign_text_unseen(name):
    for value in ("c", "[c, 'z']", "(c ~ 'b')"):
        for arguments in ("", "('a')", "(c)"):
            _check(f"{value} | {name}{arguments}")
        _check(f"{value} | {name} | list | length")


@pytest.mark.parametrize("name", sorted(n for n in _ENVIRONMENT.tests if n.isidentifier()))
def test_no_test_looks_at_foreign_text_unseen(name):
    for value in ("c", "[c, 'z']", "c | length", "'ab'"):
        for arguments in ("", "(2)", "('ab')", "(c)"):
            _check(f"({value}) is {name}{arguments}")


@pytest.mark.parametrize("name", sorted(n for n in dir(str) if not n.startswith("_")))
def test_no_method_of_strings_looks_at_foreign_text_unseen(name):
    for value in ("c", "'ab'"):
        for arguments in ("()", "('a')", "('a', 'b')", "(c)", "([c])"):
            _check(f"{value}.{name}{arguments}")


@pytest.mark.parametrize("method", ["index", "count", "get", "items", "values", "copy", "pop", "append", "__len__"])
def test_no_method_of_containers_looks_at_foreign_text_unseen(method):
    for container in ("[c, 'ab']", "(c, 'ab')", "{'k': c}", "messages", "m"):
        for arguments in ("()", "('ab')", "(c)", "('k', c)", "(m)"):
            _check(f"{container}.{method}{arguments}")


_OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


@pytest.mark.parametrize("operator", _OPERATORS)
def test_no_operator_looks_at_foreign_text_unseen(operator):
    for other in ("c", "'ab cd'", "2", "['ab', 'b']", "{'ab': 1}", "('x' | safe)"):
        _check(f"c {operator} ({other})")
        _check(f"({other}) {operator} c")
        _check(f"(c | length) {operator} ({other})")
        _check(f"(c ~ 'b') {operator} ({other})")


def test_what_a_random_template_writes_is_never_remembered():
    for expression in ("['a', 'b'] | random", "lipsum()", "messages | random"):
        assert _trace(Renderer(_source(expression)), "ab")[0] is None


def test_watched_text_gives_nothing_away_to_python():
    trace = Trace()
    text = Watcher(trace, NEW).wrap("secret", at=0)
    assert not isinstance(text, str)
    for look in (str, repr, len, list, hash, int, format, "{}".format, "".join, json.dumps, bytes, sorted, copy.copy):
        with pytest.raises((Untraceable, TypeError)):
            look(text)
    with pytest.raises((Untraceable, TypeError)):
        re.match("s", text)
    assert trace.failed
