/* Attention of few queries on the cpu device, for every instruction set: a result has the same bits whether
 * query heads share keys or each has a copy of them, and whether a query reads all keys or has chosen them
 * all. Head widths that are and are not whole vectors, up to three blocks of keys, windows. */
#include "dev/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, MOST_HEADS = 20, MOST_D = 128, MOST_KEYS = 1030, GAP = 16, QUERIES = 3 };
enum { MOST_KV = BATCH * MOST_KEYS * MOST_HEADS * MOST_D, MOST_Q = BATCH * QUERIES * MOST_HEADS * MOST_D };

typedef struct shape {
    int64_t heads, kv_heads, d, keys, window, queries;
} shape;

static const shape shapes[] = {{4, 1, 64, 70, 0, 1},     {8, 2, 80, 513, 0, 2},  {6, 3, 20, 33, 9, 3},
                               {20, 1, 128, 1030, 0, 1}, {12, 4, 128, 17, 0, 3}, {5, 5, 7, 40, 0, 1},
                               {3, 1, 96, 600, 520, 1}};

typedef struct operands {
    float number[MOST_KV];
    float q[MOST_Q], shared[2][MOST_KV], own[2][MOST_KV], out[3][MOST_Q];
    uint64_t all[BATCH * QUERIES * MOST_HEADS * ((MOST_KEYS + 63) / 64)];
} operands;

/* Writes to `own` the rows of `shared`, whose heads are repeated for each of the query heads that share them.
 */
static void repeat(const shape *s, int64_t size, const void *shared, void *own)
{
    const int64_t head = s->d * size, group = s->heads / s->kv_heads;
    for (int64_t i = 0; i < BATCH * s->keys * s->heads; i++)
        memcpy((char *)own + i * head, (const char *)shared + i / group * head, (size_t)head);
}

static void compare(ax_stream *stream, operands *o, ax_dtype dtype, const shape *s)
{
    const int64_t size = (int64_t)ax_dtype_size(dtype), kv = BATCH * s->keys * s->kv_heads * s->d,
                  n = BATCH * s->queries * s->heads * s->d;
    ax_convert_args convert = {n, o->number, o->q, AX_F32, dtype};
    assert_int_equal(ax_run_convert(stream, &convert), AX_OK);
    for (int i = 0; i < 2; i++) {
        convert = (ax_convert_args){kv, o->number + 1000 * i, o->shared[i], AX_F32, dtype};
        assert_int_equal(ax_run_convert(stream, &convert), AX_OK);
        repeat(s, size, o->shared[i], o->own[i]);
    }
    ax_attention_args a = {.batch = BATCH,
                           .q_len = s->queries,
                           .kv_len = s->keys,
                           .q_offset = s->keys - s->queries,
                           .heads = s->heads,
                           .kv_heads = s->heads,
                           .head_dim = s->d,
                           .q_ld = s->heads * s->d,
                           .kv_ld = s->heads * s->d,
                           .window = s->window,
                           .scale = 0.3,
                           .q = o->q,
                           .k = o->own[0],
                           .v = o->own[1],
                           .o = o->out[0],
                           .dtype = dtype};
    assert_int_equal(ax_run_attention(stream, &a), AX_OK);
    a.kv_heads = s->kv_heads, a.kv_ld = s->kv_heads * s->d;
    a.k = o->shared[0], a.v = o->shared[1], a.o = o->out[1];
    assert_int_equal(ax_run_attention(stream, &a), AX_OK);
    a.chosen = o->all, a.choosers = s->kv_heads, a.chosen_keys = s->keys, a.o = o->out[2];
    assert_int_equal(ax_run_attention(stream, &a), AX_OK);
    assert_memory_equal(o->out[1], o->out[0], n * size);
    assert_memory_equal(o->out[2], o->out[0], n * size);
}

static void shared_keys_give_the_bits_of_own_ones(void **state)
{
    (void)state;
    static const ax_dtype dtypes[] = {AX_F32, AX_BF16, AX_F16};
    operands *o = malloc(sizeof *o);
    assert_non_null(o);
    for (size_t i = 0; i < AX_COUNT(o->number); i++)
        o->number[i] = (float)((int64_t)i * 7919 % 1013 - 506) / 509;
    memset(o->all, 0xff, sizeof o->all);
    for (int isa = 0; ax_isa_name(isa); isa++) {
        ax_device *dev;
        setenv("AXONN_ISA", ax_isa_name(isa), 1);
        assert_int_equal(ax_device_open("cpu", 1 + isa % 2, &dev), AX_OK);
        ax_stream stream = {dev, NULL};
        for (size_t d = 0; d < AX_COUNT(dtypes); d++)
            for (size_t i = 0; i < AX_COUNT(shapes); i++)
                compare(&stream, o, dtypes[d], &shapes[i]);
        ax_device_close(&dev);
    }
    unsetenv("AXONN_ISA");
    free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_keys_give_the_bits_of_own_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
