/* Shared by the tests of tokenizers: the golden file, and a directory for files. */
#ifndef AXONN_TESTS_DATA_TOKENIZER_TEST_H
#define AXONN_TESTS_DATA_TOKENIZER_TEST_H

#include "axonn/tokenizer.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    char dir[64];
    json_t *golden;
    ax_tokenizer *tok; /* the first one of the golden file, with GPT-2's pattern */
    ax_encoder *encoder;
} fixture;

static inline char *path_in(const fixture *f, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    return path;
}

static inline void write_text(const fixture *f, const char *name, const char *text)
{
    assert_int_equal(ax_file_write_atomic(path_in(f, name), text, strlen(text)), AX_OK);
}

/* Loads a tokenizer.json given as a value. */
static inline ax_status load_value(const fixture *f, const json_t *value, ax_tokenizer **tok)
{
    char *text = json_dumps(value, 0);
    write_text(f, "tokenizer.json", text);
    free(text);
    return ax_tokenizer_load(f->dir, tok);
}

static inline json_t *variant(const fixture *f, size_t i)
{
    return json_array_get(json_object_get(f->golden, "variants"), i);
}

/* Returns the number of the variant of this name. */
static inline size_t variant_named(const fixture *f, const char *name)
{
    size_t i;
    const json_t *entry;
    json_array_foreach(json_object_get(f->golden, "variants"), i,
                       entry) if (!strcmp(json_string_value(json_object_get(entry, "name")), name)) return i;
    fail_msg("no variant %s", name);
    return 0;
}

static inline int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    json_error_t error;
    strcpy(f->dir, "/tmp/axonn-tokenizer-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->golden = json_load_file(AXONN_SOURCE_DIR "/tests/golden/tokenizer.json", 0, &error);
    assert_non_null(f->golden);
    assert_int_equal(load_value(f, json_object_get(variant(f, 0), "tokenizer"), &f->tok), AX_OK);
    assert_int_equal(ax_encoder_create(f->tok, &f->encoder), AX_OK);
    *state = f;
    return 0;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;
    ax_encoder_destroy(&f->encoder);
    ax_tokenizer_destroy(&f->tok);
    json_decref(f->golden);
    assert_int_equal(ax_remove_tree(f->dir), AX_OK);
    free(f);
    return 0;
}

#endif
