/* Chat templates: the text of a template is parsed, and rendered with a conversation. The parts of what it
 * writes follow each other up to its end, and the text is UTF-8. */
#include "axonn/json.h"
#include "fuzz/fuzz.h"
#include "token/jinja/jinja.h"
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

void fuzz_one(const fuzz_part *part, int n)
{
    static const char *const names[] = {"plain", "chat"};
    ax_jinja *template;
    ax_jinja_text out = {0};
    (void)n;
    if (!fuzz_read(ax_jinja_parse("t", part->data, part->size, &template)))
        return;
    for (size_t i = 0; i < AX_COUNT(names); i++)
        if (fuzz_read(ax_jinja_render(template, context(names[i]), 0, &out)))
            check_text(&out);
    ax_jinja_text_fini(&out);
    ax_jinja_destroy(&template);
}
