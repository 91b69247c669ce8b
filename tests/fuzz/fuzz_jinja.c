/* Chat templates: the text of a template is parsed, and rendered with a conversation. The parts of what it
 * writes follow each other up to its end, and the text is UTF-8; what is told of the first messages is what
 * it writes for these alone. */
#include "axonn/json.h"
#include "fuzz/fuzz.h"
#include "token/jinja/jinja.h"
#include "token/jinja_loops.h"
#include "token/tok.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static json_t *golden;

static json_t *context(const char *name)
{
    return json_object_get(json_object_get(golden, "contexts"), name);
}

void fuzz_make_seeds(void)
{
    const json_t *one;
    size_t i;
    golden = json_load_file(AXONN_SOURCE_DIR "/tests/golden/jinja.json", 0, NULL);
    json_array_foreach(json_object_get(golden, "cases"), i, one)
    {
        fuzz_seed_texts((const char *[]){json_string_value(json_object_get(one, "template")), NULL});
    }
    for (i = 0; i < AX_COUNT(jinja_loops); i++)
        fuzz_seed_texts((const char *[]){jinja_loops[i].template, NULL});
    if (!context("plain") || !context("chat"))
        abort();
}

static void check_text(const ax_jinja_text *out)
{
    const ax_jinja_part *part = (const void *)out->parts.data;
    size_t begin = 0;
    FUZZ_HOLDS(tok_utf8_prefix(out->text.data, out->text.size) == out->text.size);
    for (size_t i = 0; i < out->n_parts; begin = part[i++].end)
        FUZZ_HOLDS(part[i].end > begin && part[i].end <= out->text.size && part[i].from >= 0);
    FUZZ_HOLDS(begin == out->text.size);
}

/* What is told of the first messages is what the template writes for them. */
static void check_cuts(const ax_jinja *template, const json_t *given, const ax_jinja_text *whole)
{
    enum { MOST = 16 };
    static ax_jinja_cut cut[2 * MOST];
    const json_t *messages = json_object_get(given, "messages");
    ax_jinja_cuts cuts = {.cut = cut, .n = json_array_size(messages)};
    ax_jinja_text again = {0}, alone = {0};
    json_t *part = json_copy((json_t *)given), *list = json_array();
    if (cuts.n > MOST)
        abort();
    memset(cut, 0, sizeof cut);
    for (size_t i = 0; i < 2 * cuts.n; i++)
        cut[i].wanted = (i + whole->text.size) % 4 == 0; /* some, because each takes a rendering */
    json_object_set_new(part, "add_generation_prompt", json_false());
    if (fuzz_read(ax_jinja_render_cuts(template, part, 0, &cuts, &again))) {
        if (!json_is_true(json_object_get(given, "add_generation_prompt")))
            FUZZ_HOLDS(again.text.size == whole->text.size &&
                       (!again.text.size || !memcmp(again.text.data, whole->text.data, again.text.size)));
        json_object_set_new(part, "messages", list);
        for (size_t i = 0; i < 2 * cuts.n; i++) {
            if (i && i % 2 == 0)
                json_array_append(list, json_array_get(messages, i / 2 - 1));
            json_object_set_new(part, "add_generation_prompt", json_boolean(i % 2));
            if (!cut[i].known || !fuzz_read(ax_jinja_render(template, part, 0, &alone)))
                continue;
            const size_t tail = cut[i].end - cut[i].begin;
            FUZZ_HOLDS(alone.text.size == cut[i].same + tail);
            FUZZ_HOLDS(!cut[i].same || !memcmp(alone.text.data, again.text.data, cut[i].same));
            FUZZ_HOLDS(!tail ||
                       !memcmp(alone.text.data + cut[i].same, cuts.tails.text.data + cut[i].begin, tail));
        }
        list = NULL;
    }
    json_decref(list);
    json_decref(part);
    ax_jinja_text_fini(&again);
    ax_jinja_text_fini(&alone);
    ax_jinja_text_fini(&cuts.tails);
}

void fuzz_one(const fuzz_part *part, int n)
{
    static const char *const names[] = {"plain", "chat"};
    ax_jinja *template;
    ax_jinja_text out = {0};
    (void)n;
    if (!fuzz_read(ax_jinja_parse("t", part->data, part->size, &template)))
        return;
    for (size_t i = 0; i < AX_COUNT(names); i++)
        if (fuzz_read(ax_jinja_render(template, context(names[i]), 0, &out))) {
            check_text(&out);
            if (i)
                check_cuts(template, context(names[i]), &out);
        }
    ax_jinja_text_fini(&out);
    ax_jinja_destroy(&template);
}
