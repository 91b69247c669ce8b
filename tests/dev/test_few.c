/* A gemm of 5 to 16 rows on the cpu device has the bits of a gemm of more rows, for every instruction set,
 * dtype, bias and extents, strided operands included: so a generated text does not depend on the number of
 * texts beside it. The columns after c keep what they hold. */
#include "dev/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MANY = 40, MOST_N = 200, MOST_K = 3400, GAP = 3, CASES = 9 };

/* Rows, columns, values of k. Blocks of k end at 768 values, or 1536 of pairs of bf16; parts of threads begin
 * at multiples of 64 columns. */
static const int64_t cases[CASES][3] = {{5, 67, 530},   {16, 200, 96},  {8, 1, 1},
                                        {9, 130, 1601}, {12, 31, 64},   {13, 65, 769},
                                        {7, 33, 31},    {16, 50, 3400}, {15, 190, 200}};

typedef struct operands {
    float number[MANY * (MOST_K + GAP) + MOST_N * (MOST_K + GAP)], bias[MOST_N];
    double a[MANY * (MOST_K + GAP)], b[MOST_N * (MOST_K + GAP)], many[MANY * (MOST_N + GAP)],
        few[MANY * (MOST_N + GAP)];
} operands;

static void compare(ax_stream *stream, operands *o, ax_dtype dtype, ax_dtype out, const int64_t *extents,
                    bool bias, int64_t gap)
{
    const int64_t n = extents[1], k = extents[2];
    ax_gemm_args g = {.m = MANY,
                      .n = n,
                      .k = k,
                      .a = o->a,
                      .b = o->b,
                      .c = o->many,
                      .bias = bias ? o->bias : NULL,
                      .lda = k + gap,
                      .ldb = k + gap,
                      .ldc = n + gap,
                      .dtype = dtype,
                      .c_dtype = out,
                      .trans_b = true};
    memset(o->many, 0x5a, sizeof o->many);
    memset(o->few, 0x5a, sizeof o->few);
    assert_int_equal(ax_run_gemm(stream, &g), AX_OK);
    g.m = extents[0];
    g.c = o->few;
    assert_int_equal(ax_run_gemm(stream, &g), AX_OK);
    const size_t bytes = (size_t)((g.m - 1) * g.ldc + n) * ax_dtype_size(out);
    assert_memory_equal(o->few, o->many, bytes);
    for (size_t i = bytes; i < sizeof o->few; i++)
        assert_int_equal(((unsigned char *)o->few)[i], 0x5a);
}

static void compare_all(ax_stream *stream, operands *o, ax_dtype dtype, ax_dtype out)
{
    const int64_t a = MANY * (MOST_K + GAP), b = MOST_N * (MOST_K + GAP);
    assert_int_equal(ax_run_convert(stream, &(ax_convert_args){a, o->number, o->a, AX_F32, dtype}), AX_OK);
    assert_int_equal(ax_run_convert(stream, &(ax_convert_args){b, o->number + a, o->b, AX_F32, dtype}),
                     AX_OK);
    for (int c = 0; c < CASES; c++)
        compare(stream, o, dtype, out, cases[c], c % 2, c % 3 ? 0 : GAP);
}

static void few_rows_have_the_bits_of_many(void **state)
{
    (void)state;
    static const ax_dtype dtypes[][2] = {
        {AX_F32, AX_F32}, {AX_BF16, AX_BF16}, {AX_BF16, AX_F32}, {AX_F16, AX_F16}};
    operands *o = malloc(sizeof *o);
    assert_non_null(o);
    for (size_t i = 0; i < AX_COUNT(o->number); i++)
        o->number[i] = (float)((int64_t)i * 7919 % 1013 - 506) / 509;
    for (int i = 0; i < MOST_N; i++)
        o->bias[i] = (float)(i % 17) / 7;
    for (int isa = 0; ax_isa_name(isa); isa++) {
        ax_device *dev;
        setenv("AXONN_ISA", ax_isa_name(isa), 1);
        assert_int_equal(ax_device_open("cpu", 1 + isa % 2, &dev), AX_OK);
        ax_stream stream = {dev, NULL};
        for (size_t d = 0; d < AX_COUNT(dtypes); d++)
            compare_all(&stream, o, dtypes[d][0], dtypes[d][1]);
        ax_device_close(&dev);
    }
    unsetenv("AXONN_ISA");
    free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_rows_have_the_bits_of_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
