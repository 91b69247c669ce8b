/* The interpreter of chat templates: what Jinja2 writes for small templates (tests/golden/make_jinja.py),
 * where text came from, and templates that mean harm. */
#include "chat_test.h"
#include "token/jinja/jinja.h"

#include "support/sanitized.h"

/* ---- the golden file ------------------------------------------------------------------------------ */

static ax_status render(const char *template, size_t size, const json_t *context, ax_jinja_text *out)
{
    ax_jinja *jinja;
    AX_TRY(ax_jinja_parse("t", template, size, &jinja));
    ax_status status = ax_jinja_render(jinja, context, 1700000000, out);
    ax_jinja_destroy(&jinja);
    return status;
}

static void test_golden(void **state)
{
    (void)state;
    json_t *golden = read_golden("jinja.json"), *one;
    size_t i, wrong = 0;
    ax_jinja_text out = {0};
    json_array_foreach(json_object_get(golden, "cases"), i, one)
    {
        const json_t *template = json_object_get(one, "template"), *text = json_object_get(one, "text");
        const json_t *context = json_object_get(json_object_get(golden, "contexts"),
                                                json_string_value(json_object_get(one, "context")));
        const ax_status status =
            render(json_string_value(template), json_string_length(template), context, &out);
        const bool same = json_is_null(text)
                              ? status == AX_ERR_DATA
                              : status == AX_OK && out.text.size == json_string_length(text) &&
                                    !memcmp(out.text.data, json_string_value(text), out.text.size);
        wrong += !same;
        if (!same)
            printf("%s\n  gives  %s\n  jinja2 %s\n", json_string_value(template),
                   status == AX_OK ? out.text.data : ax_error_message(),
                   json_is_null(text) ? "(an error)" : json_string_value(text));
    }
    assert_true(i > 500);
    assert_int_equal(wrong, 0);
    ax_jinja_text_fini(&out);
    json_decref(golden);
}

/* Returns the value of JSON with single quotes, which the caller releases. */
static json_t *quoted(const char *text)
{
    char copy[512];
    snprintf(copy, sizeof copy, "%s", text);
    set_quotes(copy);
    json_t *value = json_loads(copy, 0, NULL);
    assert_non_null(value);
    return value;
}

/* ---- origins -------------------------------------------------------------------------------------- */

/* Renders, and writes each part as its origin and its bytes: "t" the template's, "1" those of the first
 * message, "x" others; "*" before it: marked. */
static void expect_parts(const char *template, const char *wanted)
{
    json_t *context =
        quoted("{'bos': '<s>', 'tools': [{'n': 'TOOL'}], 'messages': ["
               "{'role': 'user', 'content': ' <s>a b<s> '}, {'role': 'assistant', 'content': 'c'}]}");
    ax_jinja_text out = {0};
    ax_buf text = {0};
    OK(render(template, strlen(template), context, &out));
    const ax_jinja_part *part = (const void *)out.parts.data;
    OK(ax_buf_add(&text, "", 0));
    for (size_t i = 0, begin = 0; i < out.n_parts; begin = part[i++].end) {
        const char from =
            part[i].from == AX_JINJA_OTHER ? 'x' : (char)(part[i].from ? '0' + part[i].from : 't');
        OK(ax_buf_printf(&text, "%s%s%c[%.*s]", i ? " " : "", part[i].block ? "*" : "", from,
                         (int)(part[i].end - begin), out.text.data + begin));
    }
    assert_string_equal(text.data, wanted);
    ax_buf_fini(&text);
    ax_jinja_text_fini(&out);
    json_decref(context);
}

static void test_origins(void **state)
{
    (void)state;
    expect_parts("{{ bos }}x{{ messages[0].content }}y", "t[<s>x] 1[ <s>a b<s> ] t[y]");
    expect_parts("{{ '<|' + messages[0].role + '|>' }}", "t[<|user|>]");
    expect_parts("{{ ('[' + messages[0].content + ']')[1:-1] | trim }}", "1[<s>a b<s>]");
    expect_parts("{{ ('<s>' ~ messages[0].content.strip())[:6] }}", "t[<s>] 1[<s>]");
    expect_parts("{{ messages[0].content.strip().replace(' ', '<s>') }}", "1[<s>a] t[<s>] 1[b<s>]");
    expect_parts("{{ (bos + messages[1].content) | upper }}", "t[<S>] 2[C]");
    expect_parts("{{ messages[0].content.split('<s>') | join(bos) }}", "1[ ] t[<s>] 1[a b] t[<s>] 1[ ]");
    expect_parts("{{ [bos, messages[1].content] | tojson }}", "2[[\"<s>\", \"c\"]]");
    expect_parts("{{ [messages[0].content, messages[1].content] | tojson | length }}", "t[20]");
    expect_parts("{{ tools | tojson }}", "x[[{\"n\": \"TOOL\"}]]");
    expect_parts("{{ '%s-%s' % (bos, messages[1].content) }}", "t[<s>-] 2[c]");
    expect_parts("{% set t %}{{ bos }}{{ messages[1].content }}{% endset %}{{ t ~ t }}",
                 "t[<s>] 2[c] t[<s>] 2[c]");
    expect_parts("{% macro f(m) %}<{{ m.content }}>{% endmacro %}{{ f(messages[1]) }}", "t[<] 2[c] t[>]");
    expect_parts("a{% generation %}b{{ messages[1].content }}{% endgeneration %}d", "t[a] *t[b] *2[c] t[d]");
    /* names of arguments behind **, and what a format of the context writes */
    expect_parts("{% for k in dict(a=1, **tools[0]) %}{{ k }}{% endfor %}", "t[a] x[n]");
    expect_parts("{% macro f() %}{{ kwargs.keys() | join }}{% endmacro %}{{ f(**tools[0]) }}", "x[n]");
    expect_parts("{{ strftime_now(messages[1].content) }}{{ strftime_now('%H') }}", "2[c] t[22]");
    expect_parts("", "");
}

/* ---- templates that mean harm ---------------------------------------------------------------------- */

/* Time that one template may take. */
static double most_time(void) { return SANITIZED ? 2 : 0.1; }

/* Memory of this process may grow by 64 MiB, and 0.1 s may pass, ten times as much under sanitizers. */
static void expect_refused(const char *template, size_t size, const char *message)
{
    json_t *context = quoted("{'s': 'x', 'l': [1, 2, 3]}");
    ax_jinja_text out = {0};
    const double begin = ax_cpu_now();
    const ax_status status = render(template, size, context, &out);
    const double took = ax_cpu_now() - begin;
    if (status != AX_ERR_DATA || !strstr(ax_error_message(), message))
        fail_msg("%.60s...: %s, not \"%s\"", template, status == AX_OK ? "no error" : ax_error_message(),
                 message);
    if (took > most_time())
        fail_msg("%.60s...: %.3f s", template, took);
    ax_jinja_text_fini(&out);
    json_decref(context);
}

static void expect_text_refused(const char *template, const char *message)
{
    expect_refused(template, strlen(template), message);
}

/* A template of `begin`, `n` times `part`, and `end` is refused. */
static void expect_many_refused(const char *begin, const char *part, size_t n, const char *end,
                                const char *message)
{
    ax_buf text = {0};
    OK(ax_buf_printf(&text, "%s", begin));
    for (size_t i = 0; i < n; i++)
        OK(ax_buf_add(&text, part, strlen(part)));
    OK(ax_buf_printf(&text, "%s", end));
    expect_refused(text.data, text.size, message);
    ax_buf_fini(&text);
}

/* A template ends in time, with an error or without. */
static void expect_end(const char *template)
{
    ax_jinja_text out = {0};
    json_t *context = quoted("{'s': 'x', 'l': [1, 2, 3]}");
    const double begin = ax_cpu_now();
    const ax_status status = render(template, strlen(template), context, &out);
    const double took = ax_cpu_now() - begin;
    if ((status != AX_OK && status != AX_ERR_DATA) || took > most_time())
        fail_msg("%.60s...: %.3f s, %s", template, took, status == AX_OK ? "" : ax_error_message());
    ax_jinja_text_fini(&out);
    json_decref(context);
}

static void expect_many_end(const char *begin, const char *part, size_t n, const char *end)
{
    ax_buf text = {0};
    OK(ax_buf_printf(&text, "%s", begin));
    for (size_t i = 0; i < n; i++)
        OK(ax_buf_printf(&text, part, (int)i));
    OK(ax_buf_printf(&text, "%s", end));
    expect_end(text.data);
    ax_buf_fini(&text);
}

/* A loop whose condition asks the loop itself for what follows. */
static void test_busy_loop(void **state)
{
    (void)state;
    static const char *const asked[] = {"length", "last", "revindex", "revindex0", "nextitem"};
    for (size_t i = 0; i < AX_COUNT(asked); i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{%% set ns=namespace(l=none,busy=false) %%}{%% macro f() %%}{%% if ns.l and not ns.busy %%}"
                 "{%% set ns.busy=true %%}{{ ns.l.%s }}{%% elif not ns.l %%}y{%% endif %%}{%% endmacro %%}"
                 "{%% for x in [1,2,3] if f() %%}{%% set ns.l=loop %%}{%% endfor %%}",
                 asked[i]);
        expect_text_refused(text, "asks what follows in this loop");
    }
}

/* A template that is refused, or that is searched for a text. */
static void search_many(const char *begin, const char *part, size_t n, const char *end, bool parses)
{
    ax_buf text = {0};
    ax_jinja *jinja;
    OK(ax_buf_printf(&text, "%s", begin));
    for (size_t i = 0; i < n; i++)
        OK(ax_buf_add(&text, part, strlen(part)));
    OK(ax_buf_printf(&text, "%s<mark>%s", end, end));
    const ax_status status = ax_jinja_parse("t", text.data, text.size, &jinja);
    if ((status == AX_OK) != parses)
        fail_msg("%s %s: %s", begin, part, status == AX_OK ? "no error" : ax_error_message());
    ax_jinja_destroy(&jinja);
    ax_buf_fini(&text);
}

static void test_chains(void **state)
{
    (void)state;
    static const char *const parts[] = {".a", "|e", "()", "[0]", " is odd()", "|e is odd()", "|e()"};
    ax_buf nested = {0};
    for (size_t i = 0; i < AX_COUNT(parts); i++) {
        search_many("{{ 'deep'", parts[i], 100000, " }}", false);
        search_many("{{ 'deep'", parts[i], i == 5 ? 100 : 200, " }}", true);
    }
    search_many("{% filter e", "|e", 50000, " %}x{% endfilter %}", false);
    search_many("{% set x | e", "|e", 50000, " %}x{% endset %}", false);
    expect_many_refused("{% filter e", "|e", 50000, " %}x{% endfilter %}", "follow each other");
    expect_many_refused("{% set x | e", "|e", 50000, " %}x{% endset %}", "follow each other");
    /* Chains inside each other: a tree of 104000 levels. */
    for (int i = 0; i < 130; i++)
        OK(ax_buf_printf(&nested, "("));
    OK(ax_buf_printf(&nested, "'deep'"));
    for (int i = 0; i < 130; i++) {
        for (int k = 0; k < 200; k++)
            OK(ax_buf_printf(&nested, ".a"));
        for (int k = 0; k < 200; k++)
            OK(ax_buf_printf(&nested, "|e"));
        for (int k = 0; k < 200; k++)
            OK(ax_buf_printf(&nested, "*1"));
        for (int k = 0; k < 200; k++)
            OK(ax_buf_printf(&nested, "+1"));
        OK(ax_buf_printf(&nested, ")"));
    }
    OK(ax_buf_printf(&nested, " }}"));
    search_many("{{ ", "", 0, nested.data, true);
    ax_buf_fini(&nested);
    expect_text_refused("{{ 'a'|map(*(['map']*90000)) }}", "");
    expect_text_refused("{{ 'a'|map(*(['map']*90000))|list }}", "inside each other");
    expect_text_refused("{% macro f() %}{% filter trim(f())|e|e|e|e|e|e|e|e|e|e|e|e|e|e|e|e|e|e|e|e %}x"
                        "{% endfilter %}{% endmacro %}{{ f() }}",
                        "inside each other");
}

static void test_work(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{{ ('a'*2000000).strip('b'*1000000 ~ 'a') }}",
        "{{ ('a'*2000000).rstrip('b'*1000000 ~ 'a') }}",
        "{{ ('é'*1000000) | trim('è'*500000 ~ 'é') }}",
        "{{ ('a'*2000000).find('a'*1000000 ~ 'b') }}",
        "{{ ('a'*2000000).find('b' ~ 'a'*1000000) }}",
        "{{ ('a'*2000000).rfind('a'*1000000 ~ 'b') }}",
        "{{ ('a'*2000000).rfind('b' ~ 'a'*1000000) }}",
        "{{ ('a'*2000000).rsplit('a'*1000000 ~ 'b') }}",
        "{{ ('a'*2000000).rpartition('a'*1000000 ~ 'b') }}",
        "{{ ('a'*1000000 ~ 'b') in ('a'*2000000) }}",
        "{{ ('a'*2000000).count('a'*1000000 ~ 'b') }}",
        "{{ ('a'*2000000).split('a'*1000000 ~ 'b')|length }}",
        "{{ ('a'*2000000).replace('a'*1000000 ~ 'b', '')|length }}",
        "{{ ('a'*2000000)|replace('a'*1000000 ~ 'b', '')|length }}",
        "{% set s='a'*2000000 %}{% set t='a'*200~'b'~'a'*50 %}"
        "{% for i in range(99999) %}{{ t in s }}{% endfor %}",
        "{% set s='ab'*1000000 %}{% for i in range(99999) %}{{ 'ba'*100~'a' in s }}{% endfor %}",
        "{% set s='a'*2000000 %}{% for i in range(99999) %}{{ 'aab' in s }}{{ s.rfind('baa') }}{% endfor %}",
        "{% set s='a'*2000000 %}{% set t=s[:1999999]~'b' %}"
        "{% for i in range(99999) %}{{ s.startswith(t) }}{% endfor %}",
        "{% set s='a'*2000000 %}{% set t='b'~s[:1999999] %}"
        "{% for i in range(99999) %}{{ s.endswith((t,t,t,t,t)) }}{% endfor %}",
        "{{ ('{{'*1000000).format()|length }}",
    };
    for (size_t i = 0; i < AX_COUNT(texts); i++)
        expect_end(texts[i]);
    expect_many_end("", "{%% set a%d=1 %%}", 30000, "");
    expect_many_end("{% set first=1 %}", "{%% set a%d=1 %%}", 5000,
                    "{% for i in range(99999) %}{{ first }}{% endfor %}");
    expect_many_end("{% set d=dict(", "a%d=1,", 50000, ") %}");
    expect_many_end("{% macro f(", "a%d,", 40000, "b) %}{% endmacro %}{{ f(b=1,c=1) }}");
}

static void test_numbers(void **state)
{
    (void)state;
    expect_text_refused("{{ '%d' % ('inf'|float) }}", "64 bits");
    expect_text_refused("{{ '%i' % ('-inf'|float) }}", "64 bits");
    expect_text_refused("{{ '%d' % ('nan'|float) }}", "64 bits");
    expect_text_refused("{{ '%d' % 1e300 }}", "64 bits");
    expect_parts("{{ '%d' % 3.9 }}{{ '%f' % ('inf'|float) }}", "t[3inf]");
    expect_parts("{{ 'a b a'.split('a', -9223372036854775807 - 1)|length }}", "t[3]");
    expect_parts("{{ 'a b a'.split(none, -9223372036854775807 - 1)|length }}", "t[3]");
    expect_parts("{{ 'a b a'.rsplit('a', -9223372036854775807 - 1)|length }}", "t[3]");
    expect_parts("{{ 'a'.rjust(-9223372036854775807 - 1) }}", "t[a]");
    expect_parts("{{ 'abcabc'.rfind('bc') }}{{ 'abc'.rfind('') }}{{ 'abc'.rfind('x') }}{{ ''.rfind('') }}",
                 "t[43-10]");
    expect_parts("{{ 'abcabc'.find('bc') }}{{ 'abc'.find('') }}{{ 'abc'.find('x') }}{{ ''.find('') }}",
                 "t[10-10]");
}

static void test_harm(void **state)
{
    (void)state;
    static const char depth[] = "inside each other", text[] = "more text";
    ax_memory_restart_peak();
    const int64_t before = ax_memory_now();
    expect_text_refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                        "more");
    expect_text_refused("{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
                        "more");
    expect_text_refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", depth);
    expect_text_refused("{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", depth);
    expect_text_refused("{% for a in l recursive %}{{ loop(l) }}{% endfor %}", depth);
    expect_text_refused("{{ 'x' * 1000000000 }}", text);
    expect_text_refused("{{ [1] * 1000000000 }}", "more");
    expect_text_refused(
        "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}", text);
    expect_text_refused(
        "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s | replace('x', n.s) "
        "%}{% endfor %}",
        "more");
    expect_text_refused(
        "{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}",
        "more");
    expect_text_refused(
        "{% set n = namespace(l=[1]) %}{% for i in range(900) %}{% set n.l = [n.l] %}{% endfor %}"
        "{{ n.l }}",
        depth);
    expect_text_refused("{% set n = namespace() %}{% set n.n = [n] %}{{ n.n | tojson }}", "no JSON");
    expect_text_refused("{{ range(10 ** 10) | list }}", "more than 100000 numbers");
    expect_text_refused("{{ ('x' * 4000000).split('x') }}", "more");
    expect_text_refused("{{ ('x' * 2000000).count('xx' * 1000000) ~ ('ab' * 2000000).replace('', 'c') }}",
                        "more");
    expect_text_refused("{{ ('a' * 2000000) | list | sort | join }}", "more");
    expect_text_refused("{{ 'x'.rjust(1000000000) }}", "more");
    expect_text_refused("{{ 'a' | indent(1000000000) }}", "too many");
    expect_text_refused("{{ 9223372036854775807 + 1 }}", "64 bits");
    expect_text_refused("{{ 2 ** 1000000000 }}", "64 bits");
    expect_text_refused("{{ -9223372036854775807 - 1 - 1 }}", "64 bits");
    expect_text_refused("{{ 99999999999999999999 }}", "64 bits");
    expect_many_refused("{{ ", "(", 100000, "", depth);
    expect_many_refused("{{ ", "[", 100000, "", depth);
    expect_many_refused("{{ ", "{1:", 100000, "", depth);
    expect_many_refused("{{ ", "-", 100000, "1 }}", depth);
    expect_many_refused("{{ ", "not ", 100000, "1 }}", depth);
    expect_many_refused("{{ ", "1+", 100000, "1 }}", "follow each other");
    expect_many_refused("{{ ", "1 if 0 else ", 50000, "1 }}", depth);
    expect_many_refused("{{ s", ".a", 100000, " }}", "follow each other");
    expect_many_refused("{{ s", "|e", 100000, " }}", "follow each other");
    expect_many_refused("{{ s", "()", 100000, " }}", "follow each other");
    expect_many_refused("", "{% if 1 %}", 50000, "", depth);
    expect_many_refused("", "{% for a in l %}", 50000, "", depth);
    expect_many_refused("{% if 0 %}", "{% elif 0 %}", 50000, "{% endif %}{{ raise_exception('end') }}",
                        "refuses the conversation: end");
    expect_many_refused("", "{{ '", 100000, "", "");
    expect_many_refused("", "{#", 100000, "", "comment");
    expect_many_refused("{% raw %}", "{% endra %}", 90000, "", "endraw");
    if (!SANITIZED && ax_memory_peak() > 0)
        assert_true(ax_memory_peak() - before < INT64_C(64) << 20);
}

/* ---- memory of rounds ------------------------------------------------------------------------------ */

/* Loops within the loop over many messages take no memory for what has no effect. */
static void test_long(void **state)
{
    static const char *const templates[] = {
        "{% for m in messages %}{% set ns = namespace(found=false, role='') %}"
        "{% for j in range(loop.index0 + 1, messages|length) %}"
        "{% if not ns.found %}{% if messages[j].role != 'tool' %}{% set ns.role = messages[j].role %}"
        "{% set ns.found = true %}{% endif %}{% endif %}{% endfor %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% set ns = namespace(found=false, text='') %}"
        "{% for j in range(loop.index0 + 1, messages|length) %}"
        "{% if ns.found %}{% elif j % 10 == 0 %}{% set ns.found = true %}{% else %}"
        "{% set ns.text = ns.text ~ messages[j].content ~ messages[j].content %}{% endif %}{% endfor %}{{ "
        "m.content }}{% endfor %}",
        "{% for m in messages %}{% set i = loop.index0 %}{% set ns = namespace(at=-1) %}"
        "{% for p in messages %}{% if p.role == 'user' and loop.index0 < i %}{% set ns.at = loop.index0 %}"
        "{% endif %}{% endfor %}{{ m.content }}{% endfor %}"};
    enum { N = 1000, LONG = 100 };
    char content[LONG + 1] = "";
    json_t *list = json_array(), *context = json_pack("{s:o}", "messages", list);
    (void)state;
    memset(content, 'c', LONG);
    for (int i = 0; i < N; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s}", "role", i % 2 ? "assistant" : "user", "content", content));
    for (size_t i = 0; i < AX_COUNT(templates); i++) {
        ax_jinja_text out = {0};
        OK(render(templates[i], strlen(templates[i]), context, &out));
        assert_int_equal(out.text.size, N * LONG);
        ax_jinja_text_fini(&out);
    }
    json_decref(context);
}

/* What a round of a loop leaves to what follows outlasts the memory of the round. */
static void test_rounds(void **state)
{
#define NOISE "{% for i in range(9) %}{% set x = 'noise' ~ i ~ [i, 'noise'] %}{% endfor %}"
    static const struct {
        const char *template, *text;
    } cases[] = {
        /* strings of an outer round that an inner one keeps */
        {"{% set ns = namespace(x='') %}{% for i in range(3) %}{% set y = 'a' ~ i %}{% for j in range(2) %}"
         "{% set ns.x = y %}{% endfor %}{% endfor %}" NOISE "{{ ns.x }}",
         "a2"},
        {"{% set ns = namespace(x='') %}{% for i in range(3) %}{% set ns.x = ns.x ~ i %}{% endfor %}" NOISE
         "{{ ns.x }}",
         "012"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(3) %}{% set ns.x = ns.x + [i] %}{% endfor %}" NOISE
         "{{ ns.x }}",
         "[0, 1, 2]"},
        {"{% set ns = namespace() %}{% for i in range(3) %}{% set ns.x = i %}{% set ns.y = 1 %}{% endfor "
         "%}" NOISE "{{ ns.x }}{{ ns.y }}",
         "21"},
        /* joined strings that become bytes in a round */
        {"{% set s = 'a' ~ 'b' ~ 'c' %}{% for i in range(3) %}{% if s == 'abd' %}.{% endif %}{% endfor "
         "%}" NOISE "{{ s }}{{ s|length }}",
         "abc3"},
        /* lists that are turned, and ranges */
        {"{% set l = [1, 2, 3] %}{% for i in range(2) %}{% set x = l[::-1] %}{% set y = range(70) %}{% "
         "endfor "
         "%}" NOISE "{{ l[::-1] }}{{ l|reverse|list }}{{ range(20)|last }}",
         "[3, 2, 1][3, 2, 1]19"},
        /* what a loop is asked for */
        {"{% for i in range(4) %}{% if loop.changed(i // 2) %}{{ i }}{% endif %}" NOISE "{% endfor %}", "02"},
        {"{% for i in range(6) if i % 2 %}{% if loop.length > 9 %}{% endif %}" NOISE
         "{% if loop.last %}{{ i }}{% endif %}{% endfor %}",
         "5"},
        {"{% for i in range(3) %}{% set outer = loop %}{% for j in range(2) %}{% if outer.length > 9 %}"
         "{% endif %}{% endfor %}" NOISE "{{ outer.revindex }}{% endfor %}",
         "321"},
        {"{% set g = [1, 2]|reverse %}{% for i in range(2) %}{% for j in g %}{% endfor %}{% endfor %}" NOISE
         "{{ g|list }}",
         "[]"},
        {"{% set ns = namespace(m=none) %}{% for i in range(2) %}{% macro f() %}f{{ i }}{% endmacro %}"
         "{% set ns.m = f %}{% endfor %}" NOISE "{{ ns.m() }}",
         "f1"},
        {"{% for i in range(3) %}{% generation %}{% endgeneration %}{% endfor %}" NOISE
         "{% generation %}a{% endgeneration %}",
         "a"},
        /* a search that ends, and one that does not */
        {"{% set ns = namespace(found=false, at=0) %}{% for i in range(5) %}{% if not ns.found and i > 1 %}"
         "{% set ns.found = true %}{% set ns.at = i %}{% endif %}{% endfor %}{{ ns.at }}",
         "2"},
        {"{% set ns = namespace(found=false) %}{% for i in range(5) %}{% set x = 1 %}{% if ns.found %}"
         "{% elif i > 1 %}{% set ns.found = true %}{% else %}{{ i }}{% endif %}{% endfor %}",
         "01"},
        {"{% set ns = namespace(found=false) %}{% for i in range(5) %}{% if ns.found and i == 3 %}{% elif i "
         "> 1 "
         "%}{% set ns.found = true %}{{ i }}{% endif %}{% endfor %}",
         "24"},
        {"{% set ns = namespace(open=true) %}{% for i in range(5) %}{% if not ns.open %}{% else %}{{ i }}"
         "{% set ns.open = i < 1 %}{% endif %}{% endfor %}",
         "01"},
        {"{% set ns = namespace(at=0) %}{% for i in range(5) %}{% if not ns.found %}{% set ns.at = i %}"
         "{% endif %}{% endfor %}{{ ns.at }}",
         "4"},
    };
    json_t *context = json_object();
    (void)state;
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_jinja_text out = {0};
        OK(render(cases[i].template, strlen(cases[i].template), context, &out));
        OK(ax_buf_add(&out.text, "", 1));
        assert_string_equal(out.text.data, cases[i].text);
        ax_jinja_text_fini(&out);
    }
    json_decref(context);
}

static void test_messages(void **state)
{
    (void)state;
    expect_text_refused("a\nb\n{{ 1 +\n }}",
                        "t:4: expected an expression, but there is the end of the tag (}})");
    expect_text_refused("\n{% include 'x' %}", "t:2: the tag include is not offered here");
    expect_text_refused("{{ s | center }}\n{{ s is filter }}{{ l | batch(2) }}",
                        "uses what axonn does not offer: filter center, test filter (line 2), filter batch "
                        "(line 2)");
    expect_text_refused("{% if 1 %}\n{{ s | center }}{% endif %}", "t:2: the filter center is not offered");
    expect_text_refused("\n\n{{ nosuch.x }}", "t:3: \"nosuch\" is not defined");
    expect_text_refused("{{ s.nosuch.x }}", "t:1: a str has no attribute \"nosuch\"");
    expect_text_refused("{{ s.__class__ }}", "attribute __class__ is not offered");
    expect_text_refused("{{ raise_exception('Roles must alternate') }}",
                        "t:1: the template refuses the conversation: Roles must alternate");
    expect_text_refused("{% if 1 %}", "t:1: expected elif, but there is the end of the template");
    expect_text_refused("\xff", "byte 1 of the template is not UTF-8");
    expect_text_refused("{{ 'ß'.upper() }}", "the letter ß cannot be changed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),    cmocka_unit_test(test_origins),  cmocka_unit_test(test_harm),
        cmocka_unit_test(test_busy_loop), cmocka_unit_test(test_chains),   cmocka_unit_test(test_work),
        cmocka_unit_test(test_numbers),   cmocka_unit_test(test_messages), cmocka_unit_test(test_long),
        cmocka_unit_test(test_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
