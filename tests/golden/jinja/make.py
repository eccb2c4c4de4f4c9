"""Renders expressions with jinja2 as transformers configures it; writes cases.jsonl.

    pip install jinja2==3.1.6 && python3 make.py

A line is [template, text], or [template, null] where jinja2 refuses.
"""

import json
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
environment.filters["tojson"] = tojson

TEXTS = ["''", "'abc'", "'A1'", "'HELLO world'", "'é ñ'", "'  x '", "'a,b,,c'", "'l1\\nl2\\n'", "'12'", "'-3.7'", "\"it's\""]
NUMBERS = ["0", "3", "-7", "2.5", "1e20", "true", "false"]
LISTS = ["[]", "[3, 1, 2]", "['b', 'A', 'c']", "[1, 'a', none]", "[[1, 2], [3, 4]]", "[true, 1, 2.0]"]
TUPLES = ["()", "(1,)", "(1, 2)", "('a', ('b', 2))"]
MAPS = ["{}", "{'b': 1, 'a': 2}", "{'k': [1, {'x': 'y'}]}", "{1: 'one'}"]
VALUES = TEXTS + NUMBERS + LISTS + TUPLES + MAPS + ["none", "missing"]

TESTS = "defined undefined none boolean string number integer float mapping sequence iterable true false lower upper odd even callable".split()
FILTERS = (
    "abs capitalize count d default dictsort escape first float int items join last length list lower max min pprint "
    "reverse reverse|list round string sum title tojson trim unique|list upper urlencode wordcount sort list|tojson "
    "batch(2)|list slice(2)|list int(7) int(base=2) int(0,16) float(1.5) default('x') default('x',true) join(', ') "
    "join('-',0) round(1) round(0,'floor') round(0,'ceil') sum(start=10) sum(0) indent indent(2,true) center(9) truncate(5) "
    "replace('a','b') replace('l','L',1) sort(reverse=true) tojson(indent=2) string|length first|default('-') format(1) "
    "map('string')|list map('upper')|join select|list reject|list select('number')|list reject('none')|list "
    "map(attribute='x')|list selectattr('x')|list list|first max|string xmlattr striptags wordwrap(5) filesizeformat"
).split(" ")
METHODS = (
    "upper() lower() title() capitalize() swapcase() strip() lstrip() rstrip() strip('lx ') lstrip('a') rstrip('cb') split() split(',') "
    "split(',',1) rsplit(',',1) rsplit() splitlines() splitlines(true) partition(',') rpartition(',') replace('a','b') "
    "replace('l','L',1) startswith('a') startswith(('x','H')) endswith('c') find('ñ') find('b') find('zz') rfind('l') index('b') "
    "count('l') count('') isdigit() isnumeric() isdecimal() isalpha() isalnum() islower() isupper() isspace() istitle() isascii() "
    "zfill(6) center(8) center(8,'*') ljust(6) rjust(6) removeprefix('a') removesuffix('c') join(['1','2']) join('xy') "
    "format(1) casefold() expandtabs(2) encode() split(maxsplit=1) rsplit(',',maxsplit=1) find('l',3)"
).split(" ")
PLAIN = [
    "(1, 2)", "((1, 2))", "(1)", "[(1, 2), (3,)]", "{'a': (1, 2)}", "(1, 2)|tojson", "(1, 2)[0]", "(1, 2)|list", "(1, 2) + (3,)",
    "(1, 2) == (1, 2)", "(1, 2) == [1, 2]", "1 in (1, 2)", "'a' in ('a', 'b')", "(1, 2)|length", "(1, 2)|first", "(1, 2)|join('-')",
    "(1, 2) is sequence", "(1, 2) is iterable", "(1, 2) is mapping", "('a' 'b')", "('a', 'b')|map('upper')|list", "(1, 2)[1:]",
    "(1, 2) * 2", "('x', (1, 2))", "()|length", "(1, 2)|string", "(1, 2)|sort", "(2, 1)|sort(reverse=true)", "(1, 2)|reverse|list",
    "{'b': 1, 'a': 2}.items()", "{'b': 1, 'a': 2}.items()|list", "{'b': 1, 'a': 2}.keys()|list", "{'b': 1, 'a': 2}.values()|list",
    "{'b': 1}|items|list", "{'b': 1}|dictsort", "{'b': 1, 'a': 2}|dictsort(by='value')", "{'b': 1, 'a': 2}|dictsort(reverse=true)",
    "{'a': 1}.get('a')", "{'a': 1}.get('b')", "{'a': 1}.get('b', 2)", "{'a': 1}.b", "{'a': 1}['a']", "{'a': 1}.keys()", "{'a': 1}.values()",
    "2 ** -1", "2 ** 3", "2 ** 0.5", "-2 ** 2", "7 // 2", "-7 // 2", "7 // -2", "-7 % 3", "7 % -3", "7.5 % 2", "-7.5 // 2", "1 / 2", "4 / 2", "2 * 2.0",
    "10000000000000000000000 + 1", "9223372036854775807 + 1", "3 * 9223372036854775807", "0.1 + 0.2", "1e16", "1e15", "123456789.0 * 10", "1 == 1.0",
    "true + 1", "true == 1", "'a' ~ 1 ~ none ~ true ~ 2.0", "'a' ~ [1, 'b']", "'a' * 3", "[1] * 2", "[1] + [2]", "'ab'[0]", "'ab'[-1]", "'abc'[::-1]",
    "'éñ'[1]", "[1, 2, 3][1:]", "[1, 2, 3][:-1]", "[1, 2, 3][::2]", "[1, 2, 3][::-1]", "'abc'[5:]", "[1, 2][5]", "'%s' % 'a'", "'%s-%d' % ('a', 3)", "'%.2f' % 1.5", "'%5s|' % 'a'",
    "'{}-{}'.format(1, 'b')", "'{0:>5}'.format('a')", "'{a}'.format(a=1)", "'%s %s'|format('a', 1)", "'%(x)s'|format(x=1)", "'%05.1f'|format(2.25)", "'%r'|format('a')", "'{:.1f}'.format(2.25)", "'{:,}'.format(1234567)", "'{!r}'.format('a')",
    "1 < 2 < 3", "1 < 3 < 2", "not 1", "1 and 2", "0 or 'x'", "none or []", "'' and 1", "1 if true", "1 if false", "(1 if false) is defined", "'a' if x is defined else 'b'",
    "range(3)", "range(3)|list", "range(1, 7, 2)|list", "range(3)|length", "range(3)[1]", "dict(a=1, b='x')", "dict(a=1)|tojson", "namespace(a=1).a", "'abc'|list", "'ab' in 'cabd'", "1 in [1.0]", "'a' in {'a': 1}", "1 in {'a': 1}",
    "none is none", "none == missing", "missing == missing", "missing|length", "missing|list", "missing ~ 'x'", "missing.x is defined", "missing is sequence", "missing is iterable", "missing|default('d')", "none|default('d')", "''|default('d', true)",
    "[1, 2]|sum(start=10)", "[{'x': 1}, {'x': 2}]|sum(attribute='x')", "[{'x': 1}, {'x': 2}]|sum('x', 5)", "[{'x': 1}, {'x': 2}]|map(attribute='x')|list", "[{'x': 2}, {'x': 1}]|sort(attribute='x')", "[{'x': 1}, {'y': 2}]|selectattr('x', 'defined')|list", "[{'x': 1}, {'x': 2}]|selectattr('x', 'equalto', 2)|list", "[{'x': 1}, {'x': 2}]|rejectattr('x', 'eq', 2)|list", "[{'x': 1}, {'y': 2}]|map(attribute='x', default=0)|list",
    "[{'x': 1, 'y': 2}, {'x': 1, 'y': 3}]|groupby('x')|list", "[{'x': 1, 'y': 2}]|groupby('x')|map(attribute='grouper')|list", "['b', 'A', 'a']|unique|list", "['b', 'A', 'a']|sort", "['b', 'A']|sort(case_sensitive=true)", "[1, 2, 3, 4, 5]|batch(2, 0)|list", "[1, 2, 3, 4, 5]|slice(2)|list", "['a', 'B']|max", "[3, 1]|min", "[]|max", "[]|first", "[]|last",
    "'a b  c'|wordcount", "'ab'.zfill(4)", "'-3'.zfill(5)", "'ab'|center(7)", "'ab'.center(7)", "'ab'.center(6)", "'abcdefghij'|truncate(5)", "'foo bar baz'|truncate(9)", "'foo bar baz'|truncate(9, true)", "'foo bar'|wordwrap(3)", "'<b>x</b>'|striptags", "'<b>'|escape", "'<b>'|e|length", "'a b/ü'|urlencode", "{'a': 1, 'b': 'x y'}|urlencode", "'<b>'|safe", "'a'|upper|lower", "'hello wORLD'|capitalize", "\"they're bill's\"|title", "'x-y z'|title",
    "'101'|int(base=2)", "'0b101'|int(base=0)", "'ff'|int(0, 16)", "'0xff'|int(base=16)", "'zz'|int(3, 16)", "'1_000'|int", "' 12 '|int", "'3.9'|int", "3.9|int", "-3.9|int", "'x'|int(5)", "none|int", "true|int", "'1e3'|int", "[]|int", "'nan'|float", "'1e3'|float", "'x'|float", "none|float(2)", "'inf'|float",
    "2.5|round", "3.5|round", "-2.5|round", "2.675|round(2)", "1234|round(-2)", "3|round", "2.1|round(0, 'ceil')", "2|round|int", "2.345|round(1, 'floor')", "7|abs", "-7.5|abs", "1|string", "1.0|string", "none|string", "[1, 'a']|string", "'é'|tojson", "'é'|tojson(ensure_ascii=true)", "'<>&\\''|tojson", "1.0|tojson", "[]|tojson", "{}|tojson(indent=2)", "{'b': [1, {}], 'a': none}|tojson(indent=4)", "{'b': 1, 'a': 2}|tojson(sort_keys=true)", "[1, 2]|tojson(separators=(',', ':'))", "{'a': (1, 2)}|tojson", "{1: 2}|tojson", "{none: 1}|tojson", "{true: 1}|tojson",
    "cycler('a', 'b').next()", "joiner()()", "lipsum is defined", "self is defined", "loop is defined", "'a' is eq('a')", "'a' is in(['a'])", "1 is lt(2)", "1 is divisibleby(1)", "3 is divisibleby 2", "1 is sameas(1)", "none is sameas(none)", "'a' is not string", "1 is ge 1", "'abs' is filter", "'odd' is test", "[1] is sequence", "{} is sequence", "'a' is sequence", "1 is sequence", "range(2) is sequence", "{}.items() is iterable", "'a' is iterable", "1 is iterable", "{} is mapping", "range is callable", "'a' is callable", "1.0 is integer", "true is integer", "true is number", "1 is boolean", "'A' is upper", "'a1' is lower", "'1' is lower",
    "'\\x41'", "'\\u00e9'", "'a\\tb'", "'a\\\\n'", "'a' 'b'", "[1, 2,]", "{'a': 1,}", "[[]]", "{'a': {}}", "['it\\'s', \"q\\\"\"]", "['a\\nb', 'é', '\\u200b']", "[1.0, 1e20, -0.0]", "[none, true]", "'a'.upper", "1.0", "-0.0", "1_000", "0x1F", "0b11", "0o17", "1E3", "'a' == \"a\"", "[1, 2] == [1, 2]", "[1, 2] < [1, 3]", "'a' < 'b'", "'B' < 'a'", "{'a': 1} == {'a': 1.0}", "1 != '1'", "true and 'x' or 'y'",
]
BLOCKS = [
    "{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b{{ j() }}c", "{% set j = joiner(sep='|') %}{{ j() }}a{{ j() }}b", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }};{% endfor %}", "{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }};{% endfor %}", "{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }};{% endfor %}", "{% for p in {'b': 1}.items() %}{{ p }}{% endfor %}", "{% for p in {'b': 1}|dictsort %}{{ p }}{% endfor %}", "{% for p in {'b': 1}|items %}{{ p }}{% endfor %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set t = (1, 2) %}{{ t }}", "{% set t = 1, 2 %}{{ t }}", "{% set (a, b) = (1, 2) %}{{ a }}{{ b }}",
    "{% for x in (1, 2, 3) %}{{ x }}{{ loop.index }}{{ loop.last }}{% endfor %}", "{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in [1, 2] %}{{ loop.previtem is defined }}{{ loop.nextitem }}{{ loop.revindex }}{{ loop.depth }}{% endfor %}", "{% for x in [] %}a{% else %}b{% endfor %}", "{% for x in [1, 2, 3, 4] if x is even %}{{ x }}{{ loop.length }}{% endfor %}", "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in 'ab' %}{{ x }}{% endfor %}", "{% for x in {'b': 1, 'a': 2} %}{{ x }}{% endfor %}", "{% for g in [{'x': 1, 'y': 2}, {'x': 1, 'y': 3}]|groupby('x') %}{{ g.grouper }}{{ g.list|length }}{{ g[0] }}{% endfor %}", "{% for k, l in [{'x': 1}]|groupby('x') %}{{ k }}{{ l }}{% endfor %}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, b=(3, 4)) }}", "{% macro f() %}x{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, a=2) }}", "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}in{% endcall %}", "{% set x %}a{{ 1 }}{% endset %}{{ x }}", "{% set x | upper %}a{% endset %}{{ x }}", "{% filter upper %}a{{ 'b' }}{% endfilter %}", "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "{% with a = (1, 2) %}{{ a }}{% endwith %}", "{% if (1, 2) %}a{% endif %}{% if () %}b{% endif %}", "{% if 'a' in ('a', 'b') and not ('x', 'y') is mapping %}ok{% endif %}", "{% raw %}{{ (1, 2) }}{% endraw %}", "{# (1, 2) #}x", "{{ f(1, 2) if f is defined else (1, 2) }}", "{{ dict(a=(1, 2)) }}", "{{ [1, 2].index(2) }}", "{{ [1, 2].count(2) }}", "{% set l = [1] %}{{ l.append(2) }}{{ l }}", "{% set d = {} %}{{ d.update({'a': 1}) }}{{ d }}", "{{ '  a\n  b' | indent }}", "{{ 'a\n\nb\n' | indent(2) }}", "a{%- if true -%} b {%- endif -%} c", "{% if true %}\na\n{% endif %}\nb", "  {% if true %}  a{% endif %}", "{{- 'a' -}}  \n b", "{% set a = 'x' %}\n\n{{ a }}\n", "{{ 'a' }}\n",
]


def cases():
    for value in VALUES:
        for name in TESTS:
            yield f"{{{{ {value} is {name} }}}}"
        for name in FILTERS:
            yield f"{{{{ {value}|{name} }}}}"
        yield f"{{{{ {value} }}}}"
        yield f"{{{{ [{value}] }}}}"
        yield f"{{{{ 1 if {value} else 0 }}}}"
    for text in TEXTS:
        for method in METHODS:
            yield f"{{{{ {text}.{method} }}}}"
    operands = ["'a'", "3", "2.0", "[1]", "(1,)", "none", "true", "{'a': 1}", "-2", "missing"]
    for left in operands:
        for right in operands:
            for operator in ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "in", "and", "or"]:
                yield f"{{{{ {left} {operator} {right} }}}}"
    for expression in PLAIN:
        yield f"{{{{ {expression} }}}}"
    yield from BLOCKS


with open(Path(__file__).parent / "cases.jsonl", "w") as out:
    for template in dict.fromkeys(cases()):
        try:
            text = environment.from_string(template).render()
        except Exception:
            text = None
        if text is None or " at 0x" not in text:
            out.write(json.dumps([template, text], ensure_ascii=False) + "\n")
