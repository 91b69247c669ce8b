/* Templates that run over messages, for tests of what is told of the first messages (src/token/jinja/cut.c).
 * `told`: of a conversation of six messages, that of how many first messages, without and with a prompt. */
#ifndef AXONN_TESTS_TOKEN_JINJA_LOOPS_H
#define AXONN_TESTS_TOKEN_JINJA_LOOPS_H

#define ONE "[{{ m.role }}:{{ m.content }}]"
#define PROMPT "{% if add_generation_prompt %}[assistant:{% endif %}"
#define EACH "{% for m in messages %}"

static const struct {
    const char *template;
    int told[2];
} jinja_loops[] = {
    {EACH ONE "{% endfor %}" PROMPT, {5, 5}},
    {EACH ONE "{% endfor %}", {5, 5}},
    {"{% if messages %}" EACH ONE "{% endfor %}{% endif %}." PROMPT, {5, 5}},
    /* the front of the list is taken off */
    {"{% if messages[0].role == 'user' %}{{ messages[0].content }}{% set rest = messages[1:] %}{% else %}{% "
     "set rest = "
     "messages %}{% endif %}{% for m in rest %}" ONE "{% endfor %}" PROMPT,
     {4, 4}},
    {"{% for m in (messages[1:] if messages[0] else messages)[1:] %}" ONE "{% endfor %}" PROMPT, {3, 3}},
    /* what follows is asked: all but the first element's end are told by side runs that begin earlier */
    {EACH ONE "{% if loop.last %}.{% endif %}{% endfor %}" PROMPT, {4, 4}},
    {EACH ONE "{% if loop.last and add_generation_prompt %}[assistant:{% endif %}{% endfor %}", {4, 4}},
    {EACH ONE "{% if loop.nextitem is defined %},{% endif %}{% endfor %}" PROMPT, {4, 4}},
    {EACH ONE "{{ messages[loop.index] is defined }}{% endfor %}" PROMPT, {4, 4}},
    {EACH ONE "{% if loop.index0 %}{% if not loop.last %},{% endif %}{% endif %}{% endfor %}" PROMPT, {4, 4}},
    /* the end of the list is asked */
    {"{{ messages | length }}" EACH ONE "{% endfor %}" PROMPT, {0, 0}},
    {"{{ messages[-1].role }}" EACH ONE "{% endfor %}" PROMPT, {2, 2}}, /* where it is the same */
    {EACH ONE "{{ loop.length }}{% endfor %}" PROMPT, {0, 0}},
    {EACH ONE "{{ messages | length }}{% endfor %}" PROMPT, {0, 0}},
    {"{% for m in messages | reverse %}" ONE "{% endfor %}" PROMPT, {0, 0}},
    {"{% for m in messages if m.role == 'user' %}" ONE "{% endfor %}" PROMPT, {0, 0}},
    {EACH "{{ m.role }}{% endfor %}" EACH ONE "{% endfor %}" PROMPT, {5, 5}},
    /* asked behind the loop, it is what the first messages have */
    {EACH ONE
     "{% endfor %}{{ messages | length }}{{ messages[-1].content }}{{ messages[1:] | length }}" PROMPT,
     {5, 5}},
    /* a loop that only looks */
    {"{% set ns = namespace(s='') %}" EACH
     "{% if m.role == 'system' %}{% set ns.s = m.content %}{% endif %}{% endfor "
     "%}{{ ns.s }}" EACH ONE "{% endfor %}" PROMPT,
     {5, 5}},
    {"{% set ns = namespace(s='') %}" EACH "{% set ns.s = ns.s ~ m.role %}{% endfor %}{{ ns.s }}" EACH ONE
     "{% endfor %}" PROMPT,
     {0, 0}},
    /* what a side run sets is undone */
    {"{% set ns = namespace(n=0, a='') %}{% set x = 'x' %}" EACH ONE
     "{% set ns.n = ns.n + 1 %}{{ ns.n }}{% if loop.last "
     "%}{% set ns.n = 100 %}{% set ns.a = 'z' %}{% set ns.b = 1 %}{% set ns.c = 1 %}{% set ns.d = 1 %}{% set "
     "ns.e = 1 "
     "%}{% set ns.f = 1 %}{% set ns.g = 1 %}{% set ns.h = 1 %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.a }}{{ "
     "ns.b }}{{ x "
     "}}{% set x = 'y' %}{% set new = 1 %}{{ x }}{% set ns.n = 7 %}{{ ns.n }}" PROMPT,
     {4, 4}},
    {"{% set users = messages[:1] | selectattr('role') %}" EACH ONE
     "{% endfor %}{{ users | list | length }}" PROMPT,
     {5, 5}},
    {EACH "{% if loop.index > 3 %}{% break %}{% endif %}" ONE "{% endfor %}" PROMPT, {3, 3}},
    {EACH "{% if loop.first %}{% continue %}{% endif %}" ONE "{% endfor %}" PROMPT, {4, 4}},
    {"{% with y = 1 %}" EACH ONE "{{ y }}{% endfor %}{{ y }}{% endwith %}{{ y }}" PROMPT, {5, 5}},
    {EACH ONE "{% else %}none{% endfor %}" PROMPT, {5, 5}},
    {"{% for m in messages[1:] %}{% else %}ALONE{% endfor %}" EACH ONE "{% endfor %}" PROMPT, {4, 4}},
    {"{% set ns = namespace() %}{% for x in [1] %}{% set ns.l = loop %}{% endfor %}" EACH ONE
     "{% endfor %}{{ ns.l.changed(1) }}" PROMPT,
     {5, 5}},
    {"{% set ns = namespace() %}{% for x in [1, 2, 3] if x != 2 %}{% if loop.first %}{% set ns.l = loop %}{% "
     "break %}{% endif %}{% endfor %}" EACH ONE "{% endfor %}{{ ns.l.length }}{{ ns.l.nextitem }}" PROMPT,
     {5, 5}},
    /* it would fail for the first messages */
    {EACH ONE "{% endfor %}{% if messages[-1].role == 'user' %}{{ raise_exception('no') }}{% endif %}" PROMPT,
     {2, 2}},
    /* the last question is found first: from the end, on the way, by its number */
    {"{% set ns = namespace(open=true, last=messages|length - 1) %}{% for m in messages[::-1] %}{% set i = "
     "(messages|length - 1) - loop.index0 %}{% if ns.open and m.role == 'user' %}{% set ns.open = false %}"
     "{% set ns.last = i %}{% endif %}{% endfor %}" EACH ONE
     "{% if loop.index0 > ns.last %}!{% endif %}{% endfor %}" PROMPT "{{ ns.last }}",
     {4, 4}},
    {"{% set ns = namespace(last=-1, n=0) %}" EACH "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
     "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}" EACH ONE
     "{% if loop.index0 > ns.last %}!{% endif %}{% endfor %}" PROMPT "{{ ns.n }}",
     {4, 4}},
    {"{% set ns = namespace(last=-1) %}{% for i in range(messages|length) %}{% if messages[i].role == 'user' "
     "%}{% set ns.last = i %}{% endif %}{% endfor %}{{ '' }}" EACH ONE
     "{% if loop.index0 >= ns.last %}{{ ns.last }}{% endif %}{% set ns.last = ns.last + 0 %}{% endfor "
     "%}" PROMPT,
     {2, 2}},
    {"{% set last = messages[-1] %}{% set rest = messages[1:] %}{% for m in rest %}" ONE
     "{% if m == last or last['role'] == 'user' and loop.last %}!{% endif %}{% endfor %}{{ last.content "
     "}}" PROMPT,
     {1, 1}},
    {"{% set n = messages | length %}" EACH ONE "{% if loop.index == n and not loop.index != n %}!{% endif %}"
     "{% if loop.revindex0 == 0 or n - 1 < loop.index0 %}?{% endif %}{% endfor %}{{ n }}" PROMPT,
     {4, 4}},
    {"{% set ask = add_generation_prompt or false %}{% set all = messages or [] %}{% if not all %}none{% "
     "endif %}"
     "{% for m in all %}" ONE "{% endfor %}{% if ask %}[assistant:{% endif %}",
     {5, 5}},
    {"{% set ns = namespace(last=-1) %}" EACH "{% set ns.last = loop.index0 %}{% endfor %}" EACH ONE
     "{% if loop.index0 == ns.last and effort or loop.index0 > ns.last and messages %}!{% endif %}{% endfor "
     "%}" PROMPT,
     {5, 5}},
    {"{% set ns = namespace(open=true, last=-1) %}{% for m in messages[::-1] %}{% if ns.open and m.role == "
     "'user' %}"
     "{% set ns.open = false %}{% set ns.last = loop.index %}{% endif %}{% set i = loop.index %}{% endfor "
     "%}{{ ns.open "
     "}}" EACH ONE "{% endfor %}{{ ns.last }}" PROMPT,
     {5, 5}},
    /* what is set before the messages are written differs in its kind, its names or its text */
    {"{% set ns = namespace() %}{% if messages[-1].role == 'user' %}{% set ns.x = 1 %}{% set y = [1] %}{% "
     "endif "
     "%}" EACH ONE "{% endfor %}{{ ns.x }}{{ y }}" PROMPT,
     {2, 2}},
    {"{% set x = 'a' %}" EACH
     "{% if m.content == 'e' %}.{% endif %}{% endfor %}{% set x = messages|length ~ x "
     "%}" EACH ONE "{{ x }}{% endfor %}{{ x }}" PROMPT,
     {1, 1}},
    {"{% set ns = namespace(a=[], f=none) %}" EACH
     "{% set ns.a = ns.a + [m.role] %}{% set ns.f = loop.changed(1) "
     "%}{% endfor %}" EACH ONE
     "{{ 'x' if ns.a[4] == 'user' }}{% set ns.a = ns.a + [1] %}{% endfor %}{{ ns.a }}"
     "{{ ns.f }}" PROMPT,
     {0, 0}},
    /* a member that only side runs add, and one that the whole run adds, lie apart */
    {"{% set ns = namespace(a=0) %}{% if messages|length > 3 %}{% set ns.x = 'many' %}{% else %}{% set ns.x "
     "= "
     "'few' %}{% endif %}" EACH ONE "{{ ns.x }}{% endfor %}" PROMPT,
     {2, 2}},
    /* cases of as many messages are other with a prompt: what is not read, and where each begins */
    {"{% set x = add_generation_prompt %}{% if messages|length < 4 %}{% set x = false %}{% endif %}" EACH ONE
     "{% endfor %}{{ 'A' if x }}",
     {5, 5}},
    {"{% if messages|length > 3 %}{% endif %}" EACH
     "{% endfor %}{% if add_generation_prompt %}{% set x = 1 %}{% else %}{% set x = 2 %}{% endif %}" EACH ONE
     "{{ x }}{% endfor %}",
     {5, 0}},
    /* a value with facets in a condition becomes a facet itself */
    {"{% set p = true %}{% if messages|length < 4 %}{% set p = false %}{% endif %}{% set p = "
     "add_generation_prompt and p %}" EACH ONE "{% endfor %}{{ p }}",
     {5, 5}},
    /* a range over their number is a list of messages; one that is not over all of it is none */
    {"{% for i in range(messages|length) %}[{{ messages[i].content }}{{ '.' if loop.last }}]{% endfor "
     "%}" PROMPT,
     {4, 4}},
    {"{% set n = messages[1:]|length %}{% for i in range(1, n) %}[{{ messages[i].content }}]{% endfor "
     "%}" PROMPT,
     {3, 3}},
    {"{% for i in range(messages|length - 1) %}[{{ messages[i].content }}]{% endfor %}" PROMPT, {4, 4}},
    {"{% for i in range(messages|length, 0, -1) %}[{{ messages[i - 1].content }}]{% endfor %}" PROMPT,
     {0, 0}},
    {"{% set r = range(messages|length) %}" EACH ONE
     "{% endfor %}{{ r|list }}{{ r|length }}{{ r|last }}{{ r[-1] "
     "}}{{ 3 in r }}{{ r[1:]|list }}" PROMPT,
     {5, 5}},
    {EACH ONE
     "{% for k in range(loop.index, messages|length) %}{{ messages[k].role if loop.first }}{% endfor %}{% "
     "endfor %}" PROMPT,
     {4, 4}},
    {EACH ONE
     "{% set ns = namespace(next='') %}{% for k in range(loop.index, messages|length) %}{% if not ns.next "
     "%}{% set ns.next = messages[k].role %}{% endif %}{% endfor %}{{ ns.next }}{% endfor %}" PROMPT,
     {4, 4}},
    /* behind a loop that only looks, what was set decides, or cannot be told */
    {"{% set ns = namespace(last=-1) %}" EACH
     "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% "
     "endfor %}{% if ns.last > 3 %}{% set x = 'late' %}{% else %}{% set x = 'early' %}{% endif %}" EACH ONE
     "{{ x if "
     "loop.index0 == ns.last }}{% endfor %}{{ x }}" PROMPT,
     {2, 2}},
    {"{% set g = ['p', 'q'] | map('string') %}{% set ns = namespace(n=0) %}" EACH
     "{% set ns.n = ns.n + 1 %}{% endfor "
     "%}{% if ns.n > 2 %}{{ g|list }}{% endif %}" EACH ONE "{% endfor %}{{ ns.n }}{{ g|list }}" PROMPT,
     {0, 0}},
    {"{% set ns = namespace(n=0) %}" EACH
     "{% if m.content == 'd' %}{% break %}{% endif %}{% set ns.n = ns.n + 1 %}{% "
     "endfor %}" EACH ONE "{{ ns.n if loop.last }}{% endfor %}{{ ns.n }}" PROMPT,
     {4, 4}},
    /* what changes later, or ends elsewhere for the first messages, has no facets */
    {"{% if messages|length > 3 %}{% set x = messages|list %}{% else %}{% set x = messages %}{% endif %}" EACH
         ONE "{{ x|length }}{% endfor %}",
     {0, 0}},
    {"{% if messages|length > 3 %}{% set x = {} %}{% else %}{% set x = {'k': [namespace(n=1)]} %}{% for i in "
     "x.k %}{% set i.n = 2 %}{% endfor %}{% endif %}" EACH ONE "{% endfor %}{{ x.k[0].n if x }}",
     {2, 2}},
    {"{% set x = [messages] %}" EACH ONE "{{ x | map('length') | join }}{% endfor %}", {0, 0}},
    {"{% set x = [namespace(n=0)] %}{% if messages|length > 3 %}{% for i in x %}{% set i.n = 1 %}{% endfor "
     "%}{% endif %}" EACH ONE "{{ x[0].n }}{% endfor %}",
     {2, 2}},
    {"{% set x = namespace(in=namespace(n=0)) %}{% macro set(i) %}{% set i.n = 1 %}{% endmacro %}{% if "
     "messages|length > 3 %}{{ set(x.in) }}{% endif %}" EACH ONE "{{ x.in.n }}{% endfor %}",
     {2, 2}},
    {"{% set ns = namespace() %}{% for i in [1] %}{% set ns.l = loop %}{% endfor %}{% if messages|length > 3 "
     "and ns.l.changed(1) %}{% endif %}" EACH ONE "{{ ns.l.changed(1) }}{% endfor %}",
     {2, 2}},
    {"{% set g = ['p', 'q'] | map('string') %}{% if messages|length > 3 and g|list %}{% endif %}" EACH ONE
     "{{ g|list }}{% endfor %}",
     {2, 2}},
    /* two names of one namespace, or of two; and of lists */
    {"{% set a = namespace(n=0) %}{% if messages|length > 3 %}{% set b = a %}{% else %}{% set b = "
     "namespace(n=0) %}{% endif %}" EACH ONE "{% set a.n = a.n + 1 %}{{ b.n }}{% endfor %}",
     {2, 2}},
    {"{% set a = [1] %}{% if messages|length > 3 %}{% set b = a %}{% else %}{% set b = [1] %}{% endif %}" EACH
         ONE "{{ b is sameas a }}{% endfor %}",
     {0, 0}},
    /* a loop that something keeps tells how many elements it has had */
    {"{% set ns = namespace(open=true) %}" EACH "{% if ns.open %}{% set ns.open = false %}{% set ns.l = loop "
     "%}{% endif %}{% endfor %}{{ ns.l.index }}" EACH ONE "{% endfor %}",
     {0, 0}},
    /* ranges that end where the messages do */
    {"{% for i in range(messages|length) %}{{ messages[i].content }}{% endfor %}" PROMPT, {5, 5}},
    {"{% for i in range(1, messages|length) %}{{ messages[i].content }}{{ loop.last }}{% else %}-{% endfor "
     "%}" PROMPT,
     {3, 3}},
    {EACH ONE "{% set ns = namespace(o=true) %}{% for j in range(loop.index0 + 1, messages|length) %}{% if "
              "ns.o %}{% set ns.o = false %}{{ messages[j].role }}{% endif %}{% endfor %}{% endfor %}" PROMPT,
     {4, 4}},
    {"{% set r = range(2, messages|length)[1:] %}" EACH ONE "{% endfor %}{{ r|length }}{{ r|list }}{{ r[-1] "
     "}}" PROMPT,
     {5, 5}},
    {"{% set rest = messages[1:] %}{% for i in range(rest|length) %}{{ rest[i].content }}{% endfor %}" PROMPT,
     {4, 4}},
    /* and such that do not */
    {"{% set r = range(messages|length + 1) %}" EACH ONE "{% endfor %}{{ r|length }}", {5, 5}},
    {"{% for i in range(messages|length) | reverse %}{{ i }}{% endfor %}" PROMPT, {0, 0}},
    /* inside others */
    {"{% for a in [1, 2] %}" EACH ONE "{% endfor %}{% endfor %}" PROMPT, {0, 0}},
    {"{% macro all() %}" EACH ONE "{% endfor %}{% endmacro %}{{ all() }}" PROMPT, {0, 0}},
    {"{% set text %}" EACH ONE "{% endfor %}{% endset %}{{ text }}" PROMPT, {0, 0}},
    /* the prompt is asked early */
    {PROMPT EACH ONE "{% endfor %}" PROMPT, {5, 0}},
    {"{% if add_generation_prompt is not defined %}{% set add_generation_prompt = false %}{% endif %}" EACH
         ONE "{% endfor %}" PROMPT,
     {5, 5}},
};

#undef ONE
#undef PROMPT
#undef EACH
#endif
