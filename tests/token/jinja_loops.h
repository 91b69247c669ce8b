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
    {EACH ONE "{% endfor %}", {5, 0}},
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
    {"{{ messages[-1].role }}" EACH ONE "{% endfor %}" PROMPT, {0, 0}},
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
