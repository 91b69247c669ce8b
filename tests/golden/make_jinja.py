#!/usr/bin/env python3
"""Makes jinja.json: what Jinja2, in the environment of transformers, writes for small templates.

    python3 tests/golden/make_jinja.py

Each case is a template, the name of a context, and either the text or null, where Jinja2 fails. The file has
the versions of the packages.
"""
import json
import os

import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template

CONTEXTS = {
    "plain": {
        "i": 7, "zero": 0, "x": 2.5, "s": "Hello World", "t": "a,b,,c", "u": "héllo wörld €😀", "e": "",
        "none": None, "yes": True, "no": False, "l": [3, 1, 2], "names": ["b", "A", "c"],
        "d": {"b": 1, "a": "two", "items": 5, "n": None}, "nested": {"a": {"b": [1, {"c": "deep"}]}},
        "rows": [{"k": "x", "v": 1}, {"k": "y", "v": 2}, {"k": "x", "v": 3}], "ws": " \t pad \n",
        "q": "it's \"q\" \\ \n", "html": "<a href='x'>&</a>",
    },
    "chat": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "  Hi <|im_end|> "},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": ["ü", None, 1.5]}}}]},
            {"role": "tool", "content": "{\"r\": 1}"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d\"q\" ü",
                   "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}],
        "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True,
    },
}

EXPRESSIONS = r"""
1 + 2
1 - 2
2 * 3
7 / 2
7 // 2
-7 // 2
7 % 3
-7 % 3
2 ** 10
2 ** -1
-2 ** 2
7.5 // 2
7.5 % 2
-7.5 % 2
1e3
1_000
0x1f
0b101
0o17
1.5e-7
1e16
1e15
123456789.125
0.1 + 0.2
1 / 3
100.0
3 * 1.0
-0.0
2 ** 0.5
1 + true
true + true
10 / 5
5 // 0.3
7 - 2 - 1
2 * 3 + 4
2 + 3 * 4
(2 + 3) * 4
'a' + 'b'
'a' ~ 1 ~ none
'ab' * 3
3 * 'ab'
[1] + [2]
[1, 2] * 2
(1, 2) + (3,)
'a' 'b' "c"
'%s-%s' % (1, 'x')
'%d%%' % 3
'%.2f' % 2.345
'%r' % 'a'
1 < 2
1 < 2 < 3
3 > 2 > 2
1 == 1.0
1 == true
'a' < 'b'
'a' == 'a'
'a' != 'b'
[1, 2] < [1, 3]
none == none
none == false
1 <= 1 >= 1
'a' in 'abc'
'x' not in 'abc'
1 in [1, 2]
1 not in [1, 2]
'a' in d
'z' in d
'a' in undefd
2 in (1, 2)
not 1
not not 1
1 and 2
0 or 'x'
'' or none
1 and 0 or 3
not (1 and 0)
'a' if 1 else 'b'
'a' if 0
'a' if 0 else 'b' if 0 else 'c'
(1 if yes else 2) + 1
true
True
none
None
false
undefd
undefd.x
undefd is defined
i is defined
i
x
s
yes
none is none
l[0]
l[-1]
l[5]
l[1:]
l[:2]
l[::-1]
l[::2]
l[-2:]
l[5:]
s[0]
s[-1]
s[1:4]
s[::-1]
s[:-1]
u[1]
u[1:5]
u[-1]
u[::-2]
u|length
(1, 2, 3)[1:]
(1,)
()
[]
{}
[1, 'a', none, true, 1.5]
{'a': 1, 'b': [1, 2]}
{'a': 'it\'s'}
['a"b', "c'd", 'e\nf', 'g\\h', 'i\tj']
d
d.a
d['a']
d['items']
d.zz
d['zz']
d.n
nested.a.b[1].c
nested['a']['b'][0]
nested.a.b.1.c
rows[0].k
s.upper()
s.lower()
s.title()
'hello world'.capitalize()
s.swapcase()
ws.strip()
ws.lstrip()
ws.rstrip()
'xxaxx'.strip('x')
'xyax'.lstrip('xy')
'axyx'.rstrip('xy')
t.split(',')
' a  b '.split()
'a b c'.split(' ', 1)
'a b c'.rsplit(' ', 1)
'a b  c'.split(none, 1)
'a\nb\r\nc'.splitlines()
s.startswith('He')
s.startswith(('x', 'H'))
s.endswith('ld')
s.replace('l', 'L')
s.replace('l', 'L', 1)
'aaa'.replace('', '-')
s.find('o')
s.find('zz')
s.rfind('o')
s.index('W')
s.count('l')
u.find('w')
'-'.join(['a', 'b'])
'{} {}'.format(1, 'a')
'{1} {0} {x}'.format(1, 2, x=3)
'{{}}'.format()
'12'.isdigit()
'ab'.isalpha()
'a1'.isalnum()
' '.isspace()
'AB'.isupper()
'ab'.islower()
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.removeprefix('a')
'abc'.removesuffix('c')
'a'.ljust(3) + '|'
'a'.rjust(3, '.')
s.split('o')[0]
s.split(' ')[-1].lower()
''.strip()
'x'.isdigit()
d.keys()|list
d.values()|list
d.items()|list
d.get('a')
d.get('zz')
d.get('zz', 4)
l.index(1)
l.count(3)
d.copy() == d
l.copy()
range(3)|list
range(1, 7, 2)|list
range(5, 0, -2)|list
range(3, 0, -1)|list ~ range(200, 197, -1)|list ~ range(4, -1, -1)|list ~ range(1, -3, -1)|list ~ range(2, 2, -1)|list ~ range(-1, -3, -1)|list
range(0)|list
dict(a=1, b=2)
dict([('a', 1)])
dict({'x': 1}, y=2)
s|length
l|count
d|length
e|length
undefd|length
none|default('x')
undefd|default('x')
e|default('x', true)
undefd|d('y')
no|default('z', boolean=true)
zero|default(1)
s|upper
u|upper
u.title()
'ÀÉ ЖЯ'|lower
'éa b'|capitalize
none|selectattr('a')|list
none|map('upper')|list
s|lower
'hello wORLD foo-bar (baz)'|title
'hELLO'|capitalize
ws|trim
'xax'|trim('x')
s|replace('o', '0')
s|replace('o', '0', 1)
5|string
5|string|length
'5'|int + 1
'x'|int
'x'|int(9)
'2.7'|int
3.9|int
-3.9|int
'0x1f'|int(0, 16)
'1.5'|float
'x'|float
7|float
yes|int
-5|abs
2.5|round
3.5|round
2.567|round(2)
2.1|round(0, 'ceil')
2.9|round(method='floor')
5|round
html|escape
html
e
html|safe
l|sort
names|sort
names|sort(case_sensitive=true)
l|sort(reverse=true)
rows|sort(attribute='k')|map(attribute='v')|list
l|first
l|last
e|first
s|first
s|last
l|reverse|list
s|reverse
l|join('-')
l|join
rows|join(',', attribute='k')
l|sum
rows|sum(attribute='v')
l|min
l|max
names|max
rows|map(attribute='k')|list
names|map('upper')|list
names|map('upper')|join(' ')
rows|map(attribute='zz', default='-')|list
rows|selectattr('k', 'equalto', 'x')|list
rows|selectattr('v', 'gt', 1)|map(attribute='v')|list
rows|rejectattr('k', 'eq', 'x')|list|length
l|select('odd')|list
l|reject('odd')|list
[0, 1, '', 'a', none]|select|list
rows|selectattr('k')|list|length
rows|selectattr('zz', 'defined')|list
d|dictsort
d|items|list
{'b': 2, 'a': 1}|dictsort
{'b': 1, 'a': 2}|dictsort(by='value')
{'b': 1, 'a': 2}|dictsort(false, 'key', true)
[1, 1, 2, 'a', 'A']|unique|list
rows|unique(attribute='k')|map(attribute='v')|list
'a\nb\n\nc'|indent
'a\nb'|indent(2, true)
'a\n\nb'|indent(2, blank=true)
'a\nb'|indent('> ')
'%s=%s'|format('a', 1)
l|list
s|list
d|list
nested|tojson
d|tojson
d|tojson(indent=2)
[]|tojson
{}|tojson(indent=4)
[1, [2, {}], {'a': []}]|tojson(indent=2)
u|tojson
u|tojson(ensure_ascii=true)
q|tojson
1.0|tojson
1e20|tojson
none|tojson
yes|tojson
d|tojson(sort_keys=true)
{'a': 1, 'b': 2}|tojson(separators=(',', ':'))
{1: 2, true: 3, none: 4}|tojson
(1, 2)|tojson
'a\x7fb\x1f'|tojson
html|tojson
i is odd
i is even
i is divisibleby 7
i is divisibleby(2)
s is string
i is string
i is number
x is number
yes is number
i is integer
yes is integer
x is float
yes is boolean
yes is true
no is false
d is mapping
l is mapping
l is iterable
i is iterable
s is iterable
d is iterable
l is sequence
d is sequence
s is sequence
i is none
i is not none
undefd is undefined
i is not defined
1 is eq 1
1 is ne 2
1 is lt 2
2 is gt 1
2 is ge 2
2 is le 1
1 is in [1, 2]
'a' is in 'abc'
l is sameas l
'AB' is upper
'ab' is lower
range is callable
s is callable
d.get is callable
i is defined and i > 3
(undefd is defined) or yes
d.zz is defined
d['items'] is defined
d.keys is defined
rows|selectattr('k', 'in', ['x', 'z'])|list|length
(l|select('gt', 1)|list)[0]
l|map('string')|map('length')|list
'a,b'|replace(',', ';')|upper
-l[0]|abs
not l|length > 2
l|length == 3 and 'yes'
'x' ~ l|length
[l|first, l|last]
{'k': s|lower}
d.a|upper
d['a'][0]
(d.b + 1) * 2
"\u00e9\x41\n"|length
'\q'
1 if l else 2
s if s
(l, 1)
l is defined and l[0] is odd
d is mapping and 'a' in d
i in l or 2 in l
s[i:]
s[:i]
s[i:][0:1]
'é' in u
1,2
'a'|string ~ 'b'
d.get('b', 0) + 1
-i
+i
- -i
'a'.b
i.b
s.nosuch is undefined
none.x is undefined
'a' < 1
1 + 'a'
'a' + 1
undefd + 1
undefd.x.y
1 // 0
l + 1
nosuch()
l.append(1)
d.update({})
s|nofilter
i is notest
l[0](1)
{[]: 1}
'x' in 5
none|length
5|join
'a'|sum
range(1000000)
raise_exception('no')
d|sort(attribute='a')
['a', 1]|sort
none + 1
'a'.index('z')
l.index(9)
''.join([1])
'%d' % 'a'
'%s %s' % 1
undefd|int
[1, undefd]|tojson
2 < none
'abc'.split('')
"""

STATEMENTS = [
    "{% for m in messages %}{{ m.role }}: {{ m['content'] }}\n{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {{ loop.last }} {{ m.role }};{% endfor %}",
    "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }},{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}>{{ loop.nextitem.role if not loop.last }} {% endfor %}",
    "{% for m in [] %}x{% else %}empty{% endfor %}", "{% for m in undefd %}x{% else %}empty{% endfor %}",
    "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}={{ b }};{% endfor %}",
    "{% for k in {'x': 1, 'y': 2} %}{{ k }}{% endfor %}", "{% for c in 'héy' %}[{{ c }}]{% endfor %}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in range(4) %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}",
    "{% set x = 1 %}{% for i in range(3) %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(x=1, y='a') %}{% for i in range(3) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set x %}  hi {{ 1 }} {% endset %}[{{ x }}]", "{% set x | trim | upper %}  hi {% endset %}[{{ x }}]",
    "{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif '' %}b{% else %}c{% endif %}", "{% if messages[0]['role'] == 'system' %}S{% endif %}",
    "{% if a is defined and a %}x{% else %}y{% endif %}", "{% if 1 %}{% set v = 5 %}{% endif %}{{ v }}",
    "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(b=4, a=0) }}",
    "{% macro f(a) %}<{{ a }}|{{ varargs }}|{{ kwargs }}>{% endmacro %}{{ f(1, 2, k=3) }}",
    "{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}in {{ 1 }}{% endcall %}",
    "{% macro f() %}[{{ caller(3) }}]{% endmacro %}{% call(n) f() %}n={{ n }}{% endcall %}",
    "{% macro f(a) %}{{ a | upper }}{% endmacro %}{% set y = f('q') %}{{ y ~ y | length }}",
    "{% macro f(a, b) %}{{ a }}{{ b is defined }}{% endmacro %}{{ f(1) }}",
    "{% set g = 3 %}{% macro f() %}{{ g }}{% endmacro %}{{ f() }}{% set g = 4 %}{{ f() }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "{% filter upper %}abc {{ 'd' }}{% endfilter %}", "{% filter trim | replace('a', 'b') %} aa {% endfilter %}|",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "{% raw -%}  {{ x }}  {%- endraw %} y", "a{# comment #}b", "a {#- comment -#} b", "{# a #}\nb", "  {# a #}\nb",
    "  {% if 1 %}\n  x\n  {% endif %}\ny", "  {%+ if 1 %}x{% endif %}", "{% if 1 +%}\nx{% endif %}", "a  {%- if 1 -%}  b  {%- endif -%}  c", "a {{- 1 -}} b", "  {{ 1 }}  \n", "a\n\n", "a\r\nb\rc\n",
    "{{ '{{' }}{{ '%}' }}", "{{ {'a': {'b': 1}}.a.b }}", "{{{'a': 1}['a']}}", "{{ [1,2][-1] }}x{{ (1) }}", "{{ 'a\\nb' }}", "{{ \"it's\" }}", "{{ 'a' -}}\n\n b", "x\n  {%- if true %}\n y{% endif %}\n",
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}",
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if m.content is string and '</think>' in m.content %}{{ m.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ m.content.split('</think>')[-1].lstrip('\n') }}{% endif %}{% endfor %}",
    "{{ tools | tojson }}", "{{ tools[0] | tojson(indent=4) }}", "{% for t in tools %}{{ t.function | items | list | length }}{{ t.function.parameters.properties.items() | list }}{% endfor %}",
    "{{ bos_token }}{{ eos_token }}{% if add_generation_prompt %}G{% endif %}", "{{ messages | length }}{{ messages[1:] | length }}{{ messages[-1].role }}", "{{ messages[1:] | map(attribute='role') | join(',') }}",
    "{% set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}{% for m in loop_messages %}{{ loop.index0 % 2 == 0 }}{% endfor %}",
    "{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}", "{{ (messages | selectattr('role', 'equalto', 'user') | list | last).role }}",
    "{% if messages | selectattr('role', 'equalto', 'nobody') %}T{% else %}F{% endif %}", "{% set g = messages | map(attribute='role') %}{{ g | list | length }}{{ g | list | length }}",
    "{{ 'a\\\nb' }}", "{% generation %}x{{ 1 }}{% endgeneration %}y", "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
    "{% for r in [[1, [2, [3]]]] recursive %}{% if r is iterable %}({{ loop(r) }}){% else %}{{ r }}{{ loop.depth }}{% endif %}{% endfor %}",
    "{% set x = namespace(a=[]) %}{% set x.a = x.a + [1] %}{% set x.a = x.a + [2] %}{{ x.a }}", "{% set d = dict(a=1) %}{% set d = dict(d, b=2) %}{{ d }}",
    "{{ namespace(a=1).a }}", "{{ caller is defined }}", "{% print 1 + 1 %}", "{% set x = 1, 2 %}{{ x }}", "{{ loop is defined }}", "{% set ns = namespace(open=true) %}{% for i in 'abc' %}{% if ns.open %}{% set ns.open = false %}{% set ns.l = loop %}{% endif %}{% endfor %}{{ ns.l.index }}", "{% for i in range(2) %}{% set loop_i = loop %}{{ loop_i.index }}{% endfor %}",
    "{% for i in range(3) %}{{ ', ' if not loop.first }}{{ i }}{% endfor %}", "{% for x in [3, 1] | sort %}{{ x }}{% endfor %}", "{%- for i in (1, 2) -%} {{ i }} {%- endfor -%}",
    "{% for i in range(3) if i is odd %}{{ i }}{% else %}none{% endfor %}", "{% for i in range(3) if i > 5 %}{{ i }}{% else %}none{% endfor %}", "{% if not messages %}a{% elif messages[0] is mapping %}b{% endif %}",
    "{% set content = messages[1].content %}{{ '[' ~ content.strip() ~ ']' }}", "{{ '' if none else 'x' }}", "{{ raise_exception('m') if false else 'ok' }}", "{{ strftime_now is defined }}",
    # errors
    "{% if %}x{% endif %}", "{% for %}", "{{ 1 +", "{% if 1 %}", "{% endif %}", "{{ }}", "{% unknown %}", "{{ a b }}", "{{ 'abc }}", "{# abc", "{% raw %}x", "{{ (1 }}", "{{ 1 ) }}", "{% set %}", "{% set 1 = 2 %}",
    "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{{ raise_exception('bad') }}", "{% for m in 5 %}{% endfor %}", "{{ 1 if }}",
    "{% set ns = 1 %}{% set ns.x = 2 %}", "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ nosuch.x }}", "{% call 5 %}{% endcall %}", "{{ x is y is z }}", "{{ $ }}", "{% set true = 1 %}",
    "{{ f(a=1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(z=1) }}", "{% set ns = namespace(_a=1) %}", "{{ {1} }}", "{% else %}", "{{ [1, 2 }}", "{{ {'a' 1} }}", "{{ messages.0.role.x.y }}",
]


def render(template, context):
    try:
        return _compile_jinja_template(template).render(**context)
    except Exception:  # every kind of failure counts as one
        return None


def main():
    cases = []
    for expression in EXPRESSIONS.strip().split("\n"):
        cases.append(("{{ " + expression + " }}", "plain"))
    cases += [(text, "chat") for text in STATEMENTS]
    made = [{"template": t, "context": c, "text": render(t, CONTEXTS[c])} for t, c in cases]
    out = {
        "made": f"tests/golden/make_jinja.py, jinja2 {jinja2.__version__}, transformers {transformers.__version__}",
        "contexts": CONTEXTS,
        "cases": made,
    }
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jinja.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, indent=1)
        f.write("\n")
    print(len(made), "cases,", sum(m["text"] is None for m in made), "of them errors")


main()
