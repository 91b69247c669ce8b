/* A grouped GEMM on the cpu device has the bits of one gemm for each group, for every instruction set, dtype
 * and form: with groups without rows, all rows in one group, and groups of few rows, whose gemm alone would
 * add in another order. */
#include "dev/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GROUPS = 5, N = 67, K = 530, MOST = 150, LARGEST = GROUPS * K * N };

/* Bounds of the groups. In the last one all rows together are few enough for gemv. */
static const int32_t bounds[][GROUPS + 1] = {
    {0, 40, 40, 43, 149, 150}, {0, 0, 0, 150, 150, 150}, {0, 30, 60, 90, 120, 150}, {0, 1, 1, 3, 3, 4}};

/* Operands: a and b as numbers and in the dtype of the case; the result before the call, of the call, and of
 * one gemm. */
typedef struct operands {
    float number[2][LARGEST];
    double a[LARGEST], b[LARGEST], before[LARGEST], whole[LARGEST], one[LARGEST];
} operands;

/* Leading dimensions of matrices that lie in one another's rows. */
static ax_gemm_grouped_args arguments(operands *o, const int32_t *of, ax_dtype dtype, ax_dtype out, bool ta,
                                      bool tb, bool add)
{
    const int64_t rows = of[GROUPS], wide = tb ? K : N;
    return (ax_gemm_grouped_args){.m = ta ? K : rows,
                                  .n = N,
                                  .k = ta ? rows : K,
                                  .groups = GROUPS,
                                  .a = o->a,
                                  .b = o->b,
                                  .bounds = of,
                                  .c = o->whole,
                                  .lda = K,
                                  .ldb = ta ? N : GROUPS * wide,
                                  .ldc = ta ? GROUPS * N : N,
                                  .stride = wide,
                                  .dtype = dtype,
                                  .c_dtype = out,
                                  .trans_a = ta,
                                  .trans_b = tb,
                                  .accumulate = add};
}

/* Fills a and b, and the results with numbers to add to. */
static void fill(ax_stream *stream, operands *o, ax_dtype dtype, ax_dtype out)
{
    void *const to[] = {o->a, o->b, o->before};
    for (int i = 0; i < 3; i++)
        assert_int_equal(ax_run_convert(stream, &(ax_convert_args){.n = LARGEST,
                                                                   .x = o->number[i % 2],
                                                                   .y = to[i],
                                                                   .x_dtype = AX_F32,
                                                                   .y_dtype = i < 2 ? dtype : out}),
                         AX_OK);
    memcpy(o->whole, o->before, sizeof o->whole);
}

static const void *element(const void *p, ax_dtype dtype, int64_t i)
{
    return (const char *)p + (size_t)i * ax_dtype_size(dtype);
}

/* Computes the result of group g by a gemm, and compares it. In the form for gradients the gemm sums over the
 * rows of the group. Otherwise it multiplies all rows of the call by the matrix of the group, and the group's
 * rows are compared: a gemm of few rows alone would use gemv. */
static void compare_group(ax_stream *stream, operands *o, const ax_gemm_grouped_args *a, int g)
{
    const int64_t first = a->bounds[g], last = a->bounds[g + 1];
    ax_gemm_args one = {.m = a->m,
                        .n = N,
                        .k = a->trans_a ? last - first : K,
                        .a = a->trans_a ? element(a->a, a->dtype, first * a->lda) : a->a,
                        .b = element(a->b, a->dtype, a->trans_a ? first * a->ldb : g * a->stride),
                        .lda = a->lda,
                        .ldb = a->ldb,
                        .ldc = a->ldc,
                        .dtype = a->dtype,
                        .c_dtype = a->c_dtype,
                        .trans_a = a->trans_a,
                        .trans_b = a->trans_b,
                        .accumulate = a->accumulate};
    int64_t begin = first, end = last, at = 0;
    if (a->trans_a)
        begin = 0, end = K, at = g * a->stride;
    one.c = (void *)element(o->one, a->c_dtype, at);
    assert_int_equal(ax_run_gemm(stream, &one), AX_OK);
    for (int64_t r = begin; r < end; r++)
        assert_memory_equal(element(o->whole, a->c_dtype, at + r * a->ldc),
                            element(o->one, a->c_dtype, at + r * a->ldc), N * ax_dtype_size(a->c_dtype));
}

static void compare_form(ax_stream *stream, operands *o, ax_dtype dtype, ax_dtype out, int form)
{
    const bool ta = form & 1, tb = !ta && form & 2, add = form & 4;
    for (size_t i = 0; i < AX_COUNT(bounds); i++) {
        ax_gemm_grouped_args a = arguments(o, bounds[i], dtype, out, ta, tb, add);
        fill(stream, o, dtype, out);
        assert_int_equal(ax_run_gemm_grouped(stream, &a), AX_OK);
        for (int g = 0; g < GROUPS; g++) {
            memcpy(o->one, o->before, sizeof o->one);
            compare_group(stream, o, &a, g);
        }
    }
}

static void bits_are_those_of_one_gemm_a_group(void **state)
{
    (void)state;
    static const ax_dtype dtypes[][2] = {
        {AX_F64, AX_F64}, {AX_F32, AX_F32}, {AX_BF16, AX_BF16}, {AX_BF16, AX_F32}, {AX_F16, AX_F16}};
    operands *o = malloc(sizeof *o);
    assert_non_null(o);
    for (int i = 0; i < LARGEST; i++) {
        o->number[0][i] = (float)((int64_t)i * 7919 % 1013 - 506) / 509;
        o->number[1][i] = (float)((int64_t)i * 6101 % 997 - 498) / 503;
    }
    for (int isa = 0; ax_isa_name(isa); isa++) {
        ax_device *dev;
        setenv("AXONN_ISA", ax_isa_name(isa), 1);
        assert_int_equal(ax_device_open("cpu", 1 + isa % 2, &dev), AX_OK);
        ax_stream stream = {dev, NULL};
        for (size_t d = 0; d < AX_COUNT(dtypes); d++)
            for (int form = 0; form < 8; form++)
                compare_form(&stream, o, dtypes[d][0], dtypes[d][1], form);
        ax_device_close(&dev);
    }
    unsetenv("AXONN_ISA");
    free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_are_those_of_one_gemm_a_group)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
