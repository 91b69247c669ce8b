/* Shared by the tests of src/ckpt: a scratch directory, asserting calls, damage to files. */
#ifndef AXONN_TESTS_CKPT_TEST_H
#define AXONN_TESTS_CKPT_TEST_H

#include "axonn/ckpt.h"
#include "support/check.h"
#include "support/ranks.h"
#include "support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Returns "DIR/NAME" in one of a few buffers, used in turn. */
static inline const char *at(const char *dir, const char *name)
{
    static _Thread_local char path[8][512];
    static _Thread_local int turn;
    char *out = path[turn++ % 8];
    snprintf(out, sizeof path[0], "%s/%s", dir, name);
    return out;
}

static inline void put(const char *path, const void *data, size_t size)
{
    OK(ax_file_write_atomic(path, data, size));
}

/* Writes a safetensors file with this header and `body` bytes of data. */
static inline void put_safetensors(const char *path, const char *header, size_t body)
{
    ax_buf buf = {0};
    uint64_t length = strlen(header);
    OK(ax_buf_add(&buf, &length, 8));
    OK(ax_buf_add(&buf, header, length));
    for (size_t i = 0; i < body; i++)
        OK(ax_buf_add(&buf, "x", 1));
    put(path, buf.data, buf.size);
    ax_buf_fini(&buf);
}

static inline void flip_bit(const char *path, size_t byte, int bit)
{
    char *data;
    size_t size;
    OK(ax_file_read(path, &data, &size));
    assert_true(byte < size);
    data[byte] = (char)(data[byte] ^ 1 << bit);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)byte, SEEK_SET), 0);
    assert_int_equal(fputc((unsigned char)data[byte], f), (unsigned char)data[byte]);
    fclose(f);
    free(data);
}

static inline size_t size_of(const char *path)
{
    char *data;
    size_t size;
    OK(ax_file_read(path, &data, &size));
    free(data);
    return size;
}

#endif
