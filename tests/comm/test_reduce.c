/* Reductions of arrays: each instruction set is compared with a loop over single elements. */
#include "comm/reduce.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SOURCES = 5, MOST = 333, TYPES = 6 };

static const ax_dtype dtypes[TYPES] = {AX_F64, AX_F32, AX_BF16, AX_F16, AX_I32, AX_I64};

/* Small integers divided by four: sums of five are exact in every float type except bf16, which rounds once.
 */
static void fill(ax_dtype dtype, char *memory, int64_t n, int seed)
{
    bool whole = dtype == AX_I32 || dtype == AX_I64;
    for (int64_t i = 0; i < n; i++)
        ax_store(dtype, memory, i, (double)((i * 37 + seed * 101) % 211 - 105) / (whole ? 1 : 4));
}

static double expected(ax_dtype dtype, ax_reduce_op op, int n, const void *const *src, int64_t i)
{
    double v = ax_load(dtype, src[0], i);
    for (int r = 1; r < n; r++) {
        double x = ax_load(dtype, src[r], i);
        v = op == AX_SUM ? v + x : x > v ? x : v;
    }
    uint64_t rounded;
    ax_store(dtype, &rounded, 0, v);
    return ax_load(dtype, &rounded, 0);
}

static void check(ax_reduce_fn *fn, ax_dtype dtype, ax_reduce_op op, int n, int64_t count)
{
    static char memory[SOURCES][(MOST + 1) * 8];
    char out[(MOST + 2) * 8];
    const void *src[SOURCES];
    size_t size = ax_dtype_size(dtype), bytes = (size_t)count * size;
    for (int r = 0; r < n; r++) {
        src[r] = memory[r] + size; /* not aligned to a vector */
        fill(dtype, memory[r] + size, count, r);
    }
    double want[MOST];
    for (int64_t i = 0; i < count; i++)
        want[i] = expected(dtype, op, n, src, i);
    memset(out, 0x5a, sizeof out);
    /* Two destinations: one separate from the sources, one that is the last source. */
    void *dst[2] = {out + size, memory[n - 1] + size};
    fn(n, src, 2, dst, count);
    for (int64_t i = 0; i < count; i++)
        assert_true(ax_load(dtype, dst[0], i) == want[i]);
    assert_memory_equal(dst[0], dst[1], bytes);
    for (size_t i = 0; i < size; i++) {
        assert_int_equal(out[i], 0x5a);
        assert_int_equal(out[size + bytes + i], 0x5a);
    }
}

static void check_table(const ax_reduce_table table)
{
    static const int64_t counts[] = {1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, MOST};
    for (int t = 0; t < TYPES; t++)
        for (int op = AX_SUM; op <= AX_MAX; op++)
            for (int n = 1; n <= SOURCES; n++)
                for (size_t c = 0; c < AX_COUNT(counts); c++)
                    check(table[t][op], dtypes[t], (ax_reduce_op)op, n, counts[c]);
}

static void every_instruction_set_gives_the_same_sums(void **state)
{
    (void)state;
    check_table(ax_reduce_generic);
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        check_table(ax_reduce_avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        check_table(ax_reduce_avx512);
#endif
}

/* Adds two arrays in which the first addend takes every 16-bit pattern. */
static void check_rounding(ax_reduce_fn *fn, ax_dtype dtype)
{
    enum { N = 65536 };
    uint16_t *x, *zero, *y;
    assert_int_equal(ax_calloc(N, 2, &x), AX_OK);
    assert_int_equal(ax_calloc(N, 2, &zero), AX_OK);
    assert_int_equal(ax_calloc(N, 2, &y), AX_OK);
    for (int i = 0; i < N; i++) {
        x[i] = (uint16_t)i;
        zero[i] = (uint16_t)(i * 40503u); /* an arbitrary second addend */
    }
    const void *src[2] = {x, zero};
    void *dst[1] = {y};
    fn(2, src, 1, dst, N);
    for (int i = 0; i < N; i++) {
        uint16_t sum;
        ax_store(dtype, &sum, 0, (float)ax_load(dtype, x, i) + (float)ax_load(dtype, zero, i));
        if (isnan(ax_load(dtype, &sum, 0)))
            assert_true(isnan(ax_load(dtype, y, i)));
        else
            assert_int_equal(y[i], sum);
    }
    free(x);
    free(zero);
    free(y);
}

static void sums_in_16_bits_are_rounded_as_by_ax_store(void **state)
{
    (void)state;
    check_rounding(ax_reduce_for(AX_BF16, AX_SUM), AX_BF16);
    check_rounding(ax_reduce_for(AX_F16, AX_SUM), AX_F16);
    check_rounding(ax_reduce_generic[AX_REDUCE_F16][0], AX_F16);
}

static void a_maximum_keeps_nan(void **state)
{
    (void)state;
    float a[40], b[40], y[40];
    for (int i = 0; i < 40; i++) {
        a[i] = i % 3 == 0 ? NAN : (float)i;
        b[i] = i % 5 == 0 ? NAN : 20;
    }
    const void *src[2] = {a, b};
    void *dst[1] = {y};
    ax_reduce_for(AX_F32, AX_MAX)(2, src, 1, dst, 40);
    for (int i = 0; i < 40; i++)
        if (i % 3 == 0 || i % 5 == 0)
            assert_true(isnan(y[i]));
        else
            assert_true(y[i] == (i > 20 ? (float)i : 20.f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_same_sums),
        cmocka_unit_test(sums_in_16_bits_are_rounded_as_by_ax_store),
        cmocka_unit_test(a_maximum_keeps_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
