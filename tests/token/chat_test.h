/* Shared by the tests of conversations: tokenizers of the golden file, and JSON written with single quotes.
 */
#ifndef AXONN_TESTS_DATA_CHAT_TEST_H
#define AXONN_TESTS_DATA_CHAT_TEST_H

#include "axonn/chat.h"

#include "data/data_test.h"

#include <jansson.h>

#define GOLDEN AXONN_SOURCE_DIR "/tests/golden/"

/* ---- tokenizers of the golden file ---------------------------------------------------------------- */

static inline json_t *read_golden(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, GOLDEN "%s", name);
    json_t *value = json_load_file(path, 0, NULL);
    assert_non_null(value);
    return value;
}

/* Returns a copy of tokenizer.json's object of this name. */
static inline json_t *find_variant(const char *name)
{
    static json_t *golden; /* a large file, which many tests read */
    json_t *entry, *found = NULL;
    size_t i;
    golden = golden ? golden : read_golden("tokenizer.json");
    json_array_foreach(json_object_get(golden, "variants"), i, entry)
    {
        if (!strcmp(json_string_value(json_object_get(entry, "name")), name))
            found = json_deep_copy(json_object_get(entry, "tokenizer"));
    }
    assert_non_null(found);
    return found;
}

/* Writes a tokenizer: the variant, with tokens added behind its own, and an end-of-text token (may be NULL).
 * "</s>" is found in text as it is, as in make_chat.py. */
static inline const char *put_tokenizer(scratch *s, const char *dir, const char *variant, const json_t *added,
                                        const char *eos)
{
    json_t *tok = find_variant(variant), *list = json_object_get(tok, "added_tokens"), *token, *one;
    const char *path = in_scratch(s, dir);
    char name[128];
    size_t i;
    size_t next = json_object_size(json_object_get(json_object_get(tok, "model"), "vocab"));
    json_array_foreach(list, i, one)
    {
        next = ax_max(next, (size_t)json_integer_value(json_object_get(one, "id")) + 1);
        if (!strcmp(json_string_value(json_object_get(one, "content")), "</s>"))
            json_object_set_new(one, "normalized", json_false());
    }
    json_array_foreach(added, i, token)
    {
        json_array_append_new(
            list, json_pack("{s:I, s:O, s:O, s:b, s:b, s:b, s:b}", "id", (json_int_t)(next + i), "content",
                            json_object_get(token, "content"), "special", json_object_get(token, "special"),
                            "lstrip", 0, "rstrip", 0, "normalized", 0, "single_word", 0));
    }
    OK(ax_mkdirs(path));
    char *text = json_dumps(tok, 0);
    snprintf(name, sizeof name, "%s/tokenizer.json", dir);
    put_text(s, name, text);
    free(text);
    if (eos) {
        json_t *config = json_pack("{s:s}", "eos_token", eos);
        text = json_dumps(config, 0);
        snprintf(name, sizeof name, "%s/tokenizer_config.json", dir);
        put_text(s, name, text);
        free(text);
        json_decref(config);
    }
    json_decref(tok);
    return path;
}

/* Writes the tokenizer that the golden file has for a template. */
static inline const char *put_template(scratch *s, const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "name")),
               *eos = json_string_value(json_object_get(entry, "eos")),
               *bos = json_string_value(json_object_get(entry, "bos"));
    const char *path = put_tokenizer(s, name, json_string_value(json_object_get(entry, "variant")),
                                     json_object_get(entry, "added"), eos);
    char file[128], text[256];
    snprintf(file, sizeof file, "%s/tokenizer_config.json", name);
    snprintf(text, sizeof text,
             bos ? "{\"eos_token\": \"%s\", \"bos_token\": \"%s\"}" : "{\"eos_token\": \"%s\"}", eos, bos);
    put_text(s, file, text);
    return path;
}

/* Writes a tokenizer with the tokens of ChatML. */
static inline const char *put_chatml(scratch *s)
{
    json_t *added = json_pack("[{s:s, s:b}, {s:s, s:b}]", "content", "<|im_start|>", "special", 1, "content",
                              "<|im_end|>", "special", 1);
    const char *path = put_tokenizer(s, "chatml-tok", "gpt2", added, NULL);
    json_decref(added);
    return path;
}

/* JSON in these tests is written with single quotes. */
static inline void set_quotes(char *text)
{
    for (; *text; text++)
        *text = *text == '\'' ? '"' : *text;
}

#endif
