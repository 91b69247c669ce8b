/* Shared by the tests of src/data: a scratch directory, files made of bytes, rows and their oracle. */
#ifndef AXONN_TESTS_DATA_TEST_H
#define AXONN_TESTS_DATA_TEST_H

#include "axonn/data.h"
#include "support/check.h"
#include "support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct scratch {
    char dir[SCRATCH_PATH];
    char *paths[8192]; /* paths returned by in_scratch; valid until the end of the test */
    int n;
} scratch;

static inline int files_setup(void **state)
{
    scratch *s = calloc(1, sizeof *s);
    if (!s)
        return -1;
    *state = s;
    return scratch_make("/tmp", s->dir);
}

static inline int files_teardown(void **state)
{
    scratch *s = *state;
    ax_status status = ax_remove_tree(s->dir);
    while (s->n)
        free(s->paths[--s->n]);
    free(s);
    return status == AX_OK ? 0 : -1;
}

/* Returns a path below the scratch directory. */
static inline const char *in_scratch(scratch *s, const char *name)
{
    assert_true(s->n < (int)AX_COUNT(s->paths));
    OK(ax_path_join(s->dir, name, &s->paths[s->n]));
    return s->paths[s->n++];
}

static inline const char *put_file(scratch *s, const char *name, const void *bytes, size_t n)
{
    const char *path = in_scratch(s, name);
    FILE *file = fopen(path, "wb"); /* not synced, because some tests write a thousand files */
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    return path;
}

static inline const char *put_text(scratch *s, const char *name, const char *text)
{
    return put_file(s, name, text, strlen(text));
}

static inline void add_bytes(ax_buf *buf, const void *bytes, size_t n) { OK(ax_buf_add(buf, bytes, n)); }
static inline void add_u16(ax_buf *buf, unsigned value)
{
    add_bytes(buf, (unsigned char[]){(unsigned char)value, (unsigned char)(value >> 8)}, 2);
}
static inline void add_u32(ax_buf *buf, uint64_t value)
{
    add_u16(buf, (unsigned)value & 0xffff);
    add_u16(buf, (unsigned)(value >> 16) & 0xffff);
}
static inline void add_u64(ax_buf *buf, uint64_t value)
{
    add_u32(buf, value);
    add_u32(buf, value >> 32);
}

static inline ax_rows rows_create(int64_t rows, int64_t seq_len)
{
    size_t n = (size_t)(rows * seq_len);
    return (ax_rows){calloc(n, 4), calloc(n, 4), calloc(n, 4), calloc(n, 4)};
}

static inline void rows_free(ax_rows *rows)
{
    free(rows->tokens);
    free(rows->targets);
    free(rows->doc_start);
    free(rows->position);
}

#endif
