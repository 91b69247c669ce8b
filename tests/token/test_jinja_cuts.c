/* What is told of the first messages while a template is rendered is what the template writes for them. */
#include "chat_test.h"
#include "token/jinja/jinja.h"
#include "token/jinja_loops.h"

enum { N = 6 };

static json_t *context_of(const json_t *messages, size_t n, bool prompt)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(list, json_array_get(messages, i));
    return json_pack("{s:o, s:b}", "messages", list, "add_generation_prompt", prompt);
}

/* Compares a cut with what the template writes for the first messages. */
static void check_cut(const ax_jinja *template, const json_t *context, const ax_jinja_text *whole,
                      const ax_jinja_cuts *cuts, const ax_jinja_cut *cut)
{
    ax_jinja_text alone = {0};
    OK(ax_jinja_render(template, context, 0, &alone));
    const size_t tail = cut->end - cut->begin;
    assert_int_equal(alone.text.size, cut->same + tail);
    if (cut->same)
        assert_memory_equal(alone.text.data, whole->text.data, cut->same);
    if (tail)
        assert_memory_equal(alone.text.data + cut->same, cuts->tails.text.data + cut->begin, tail);
    /* The parts of the tail end where those of the text do. */
    const ax_jinja_part *part = (const void *)alone.parts.data, *tails = (const void *)cuts->tails.parts.data;
    for (size_t i = 0, k = cut->part; i < alone.n_parts; i++)
        if (part[i].end > cut->same) {
            assert_int_equal(part[i].end - cut->same, tails[k].end - cut->begin);
            assert_int_equal(part[i].from, tails[k++].from);
        }
    ax_jinja_text_fini(&alone);
}

/* Returns true if as many are told as expected. */
static bool check_template(const char *text, const json_t *messages, const int told[2])
{
    ax_jinja *template;
    ax_jinja_text whole = {0}, plain = {0};
    ax_jinja_cut cut[2 * N] = {{0}};
    ax_jinja_cuts cuts = {.cut = cut, .n = N};
    int known[2] = {0};
    for (size_t i = 0; i < AX_COUNT(cut); i++)
        cut[i].wanted = true;
    OK(ax_jinja_parse("t", text, strlen(text), &template));
    json_t *all = context_of(messages, N, false);
    OK(ax_jinja_render_cuts(template, all, 0, &cuts, &whole));
    OK(ax_jinja_render(template, all, 0, &plain));
    assert_int_equal(plain.text.size, whole.text.size);
    assert_memory_equal(plain.text.data, whole.text.data, whole.text.size);
    json_decref(all);
    for (size_t i = 0; i < AX_COUNT(cut); i++) {
        if (!cut[i].known)
            continue;
        json_t *context = context_of(messages, i / 2, i % 2);
        check_cut(template, context, &whole, &cuts, &cut[i]);
        known[i % 2]++;
        json_decref(context);
    }
    const bool right = known[0] == told[0] && known[1] == told[1];
    if (!right)
        printf("%s: %d and %d are told, not %d and %d\n", text, known[0], known[1], told[0], told[1]);
    ax_jinja_text_fini(&whole);
    ax_jinja_text_fini(&plain);
    ax_jinja_text_fini(&cuts.tails);
    ax_jinja_destroy(&template);
    return right;
}

static void first_messages(void **state)
{
    (void)state;
    json_t *messages = json_array();
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        char content[] = "a";
        *content = (char)('a' + i);
        json_array_append_new(
            messages, json_pack("{s:s, s:s}", "role", i % 2 ? "assistant" : "user", "content", content));
    }
    for (size_t i = 0; i < AX_COUNT(jinja_loops); i++)
        wrong += !check_template(jinja_loops[i].template, messages, jinja_loops[i].told);
    assert_int_equal(wrong, 0);
    json_decref(messages);
}

#define WRITE "{% for m in messages %}{{ m.content }}{% endfor %}"
#define PROMPT "{% if add_generation_prompt %}A{% endif %}"
#define ASK "{% if loop.last %}{% endif %}"

/* Side runs that need more memory than there is for them, for their variables or to be undone, leave the
 * rendering what it may take. */
static void memory(void **state)
{
    static const char *const texts[] = {
        "{% set ns = namespace() %}" WRITE "{% for i in range(90000) %}{% set ns.x = i %}{% endfor %}" PROMPT,
        WRITE "{% for i in range(5000) %}" ASK ASK ASK ASK ASK ASK ASK ASK "{% endfor %}" PROMPT,
        /* comparing it to the end takes 2^40 steps */
        "{% set ns = namespace(x=[0]) %}{% if messages|length > 1 %}{% endif %}{% for i in range(40) %}"
        "{% set ns.x = [ns.x, ns.x] %}{% endfor %}" WRITE};
    (void)state;
    json_t *context = json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:b}", "messages", "role", "user", "content",
                                "a", "role", "assistant", "content", "b", "add_generation_prompt", 0);
    for (size_t i = 0; i < AX_COUNT(texts); i++) {
        ax_jinja *template;
        ax_jinja_text whole = {0};
        ax_jinja_cut cut[4] = {{.wanted = true}, {.wanted = true}, {.wanted = true}, {.wanted = true}};
        ax_jinja_cuts cuts = {.cut = cut, .n = 2};
        OK(ax_jinja_parse("t", texts[i], strlen(texts[i]), &template));
        OK(ax_jinja_render_cuts(template, context, 0, &cuts, &whole));
        assert_int_equal(whole.text.size, 2);
        assert_false(cut[2].known || cut[3].known);
        ax_jinja_text_fini(&whole);
        ax_jinja_text_fini(&cuts.tails);
        ax_jinja_destroy(&template);
    }
    json_decref(context);
}

/* Nor do many side runs, or going back and forth between where they begin, take what the rendering needs. A
 * template may look at all messages for each of them. */
static void many(void **state)
{
    enum { MANY = 2000 };
    static const char *const texts[] = {"{% set ns = namespace(x=0) %}{% for m in messages %}{% if "
                                        "add_generation_prompt %}{% endif %}{% for i "
                                        "in 'abcdefghij' %}{% set ns.x = i %}{% endfor %}{% endfor %}" WRITE,
                                        WRITE "{% for m in messages %}{{ m.role }}{% endfor %}",
                                        "{% for m in messages %}{{ m.content ~ m.role ~ m.content }}{% set "
                                        "ns = namespace(last=0) %}{% for m in "
                                        "messages %}{% if m.role == 'u' and m.content %}{% set ns.last = "
                                        "loop.index0 %}{% endif %}{% endfor %}"
                                        "{% endfor %}"};
    (void)state;
    json_t *list = json_array(),
           *context = json_pack("{s:o, s:b}", "messages", list, "add_generation_prompt", 0);
    for (int i = 0; i < MANY; i++)
        json_array_append_new(list, json_pack("{s:s, s:s}", "role", "u", "content", "c"));
    for (size_t i = 0; i < AX_COUNT(texts); i++) {
        ax_jinja *template;
        ax_jinja_text whole = {0};
        static ax_jinja_cut cut[2 * MANY];
        ax_jinja_cuts cuts = {.cut = cut, .n = MANY};
        for (size_t k = 0; k < AX_COUNT(cut); k++)
            cut[k] = (ax_jinja_cut){.wanted = true};
        OK(ax_jinja_parse("t", texts[i], strlen(texts[i]), &template));
        OK(ax_jinja_render_cuts(template, context, 0, &cuts, &whole));
        assert_int_equal(whole.text.size, (i + 1) * MANY);
        ax_jinja_text_fini(&whole);
        ax_jinja_text_fini(&cuts.tails);
        ax_jinja_destroy(&template);
    }
    json_decref(context);
}

#define SEARCH                                                                                               \
    "{% set ns = namespace(open=true, last=messages|length - 1) %}{% for m in messages[::-1] %}"             \
    "{% set i = (messages|length - 1) - loop.index0 %}{% if ns.open and m.role == 'user' %}"                 \
    "{% set ns.open = false %}{% set ns.last = i %}{% endif %}{% endfor %}{% for m in messages %}"           \
    "{{ m.content }}{% if m.role == 'assistant' and loop.index0 > ns.last %}.{% endif %}{% endfor %}" PROMPT

#define FIND(range)                                                                                          \
    "{% for m in messages %}{{ m.content }}{% set ns = namespace(open=true) %}{% for i in " range            \
    " %}{% if ns.open %}{% set ns.open = false %}{% endif %}{% endfor %}{% endfor %}" PROMPT

/* Long conversations leave no case out, whether a search for the last question is short in each, or goes back
 * to the first message, or is one for each message. */
static void all_of_many(void **state)
{
    enum { MOST = 2000 };
    static const struct {
        const char *template, *first, *others;
        size_t n;
    } kinds[] = {{SEARCH, "user", "user", MOST},
                 {SEARCH, "user", "tool", 1000},
                 {WRITE, "user", "tool", MOST},
                 {FIND("range(loop.index0 - 1, -1, -1)"), "user", "user", MOST},
                 {FIND("range(loop.index0 + 1, messages|length)"), "user", "user", MOST}};
    static ax_jinja_cut cut[2 * MOST];
    (void)state;
    for (size_t i = 0; i < AX_COUNT(kinds); i++) {
        ax_jinja *template;
        ax_jinja_text whole = {0};
        json_t *list = json_array(),
               *context = json_pack("{s:o, s:b}", "messages", list, "add_generation_prompt", 0);
        ax_jinja_cuts cuts = {.cut = cut, .n = kinds[i].n};
        size_t wanted = 0, known = 0;
        for (size_t k = 0; k < kinds[i].n; k++) {
            const char *role = k % 2 ? "assistant" : k ? kinds[i].others : kinds[i].first;
            json_array_append_new(list, json_pack("{s:s, s:s}", "role", role, "content", "c"));
            cut[2 * k] = (ax_jinja_cut){.wanted = k > 2};
            cut[2 * k + 1] = (ax_jinja_cut){.wanted = k > 2 && k % 2};
        }
        OK(ax_jinja_parse("t", kinds[i].template, strlen(kinds[i].template), &template));
        OK(ax_jinja_render_cuts(template, context, 0, &cuts, &whole));
        for (size_t k = 0; k < 2 * kinds[i].n; k++) {
            wanted += cut[k].wanted;
            known += cut[k].known;
        }
        assert_true(known + 1 >= wanted); /* the first answer shows that side runs must begin earlier */
        ax_jinja_text_fini(&whole);
        ax_jinja_text_fini(&cuts.tails);
        ax_jinja_destroy(&template);
        json_decref(context);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(first_messages), cmocka_unit_test(memory),
                                       cmocka_unit_test(many), cmocka_unit_test(all_of_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
