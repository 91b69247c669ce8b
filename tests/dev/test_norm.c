/* The fused kernels norm and norm_grad give bitwise the results of their parts, with the additions before and
 * after as kernels of their own: on ref, and on cpu with every instruction set. */
#include "axonn/dev.h"

#include "dev/cpu/cpu.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 301, COLS = 777, N = ROWS * COLS, THREADS = 2 };
static const double eps = 1e-5;
static uint64_t draws;

/* The results of the fused kernel, or of its parts run one after the other. */
typedef struct made {
    void *x, *sum, *m2, *y, *dx, *dweight, *dbias;
} made;

static void *room(ax_dtype dtype, int64_t n)
{
    void *array = calloc((size_t)n, ax_dtype_size(dtype));
    assert_non_null(array);
    return array;
}

static void *normals(ax_dtype dtype, int64_t n)
{
    void *array = room(dtype, n);
    for (int64_t i = 0; i < n; i++)
        ax_store(dtype, array, i, 0.25 + ax_rng_normal(13, draws++));
    return array;
}

static made make_room(ax_dtype dtype)
{
    ax_dtype accum = ax_dtype_accum(dtype);
    return (made){room(dtype, N), room(accum, ROWS), room(accum, ROWS), room(dtype, N),
                  room(dtype, N), room(accum, COLS), room(accum, COLS)};
}

#define RUN(kernel, ...) assert_int_equal(ax_run_##kernel(stream, &(ax_##kernel##_args){__VA_ARGS__}), AX_OK)

static void at_once(ax_stream *stream, ax_dtype dtype, ax_norm_kind kind, void *const in[4], void *weight,
                    void *bias, const made *out)
{
    void *sum = kind == AX_NORM_RMS ? NULL : out->sum;
    RUN(norm, ROWS, COLS, eps, in[0], in[1], weight, bias, out->x, sum, out->m2, out->y, dtype, kind);
    RUN(norm_grad, ROWS, COLS, eps, out->x, in[2], in[3], sum, out->m2, weight, out->dx, out->dweight,
        out->dbias, dtype, kind);
}

static void in_parts(ax_stream *stream, ax_dtype dtype, ax_norm_kind kind, void *const in[4], void *weight,
                     void *bias, const made *out)
{
    const bool rms = kind == AX_NORM_RMS;
    void *sums[2] = {room(ax_dtype_accum(dtype), ROWS), room(ax_dtype_accum(dtype), ROWS)};
    void *sum = rms ? NULL : out->sum, *s1 = rms ? NULL : sums[0], *s2 = sums[1];
    RUN(add, N, in[0], in[1], out->x, dtype);
    RUN(norm_stats, ROWS, COLS, out->x, NULL, NULL, sum, out->m2, dtype, kind);
    RUN(norm_apply, ROWS, COLS, COLS, eps, out->x, sum, out->m2, weight, bias, out->y, dtype, kind);
    RUN(norm_grad_stats, ROWS, COLS, COLS, eps, out->x, in[2], sum, out->m2, weight, s1, s2, dtype, kind);
    RUN(norm_grad_apply, ROWS, COLS, COLS, eps, out->x, in[2], NULL, sum, out->m2, weight, s1, s2, out->dx,
        out->dweight, out->dbias, dtype, kind);
    RUN(add, N, in[3], out->dx, out->dx, dtype);
    free(sums[0]);
    free(sums[1]);
}

static void check_bits(const char *isa, ax_dtype dtype, const made *a, const made *b)
{
    static const char *const names[] = {"x", "sum", "m2", "y", "dx", "dweight", "dbias"};
    const size_t of_t = ax_dtype_size(dtype), of_a = ax_dtype_size(ax_dtype_accum(dtype));
    const size_t bytes[] = {N * of_t, ROWS * of_a, ROWS * of_a, N * of_t, N * of_t, COLS * of_a, COLS * of_a};
    void *const *one = (void *const *)a, *const *other = (void *const *)b;
    for (size_t i = 0; i < AX_COUNT(names); i++)
        if (memcmp(one[i], other[i], bytes[i]))
            fail_msg("%s, %s: %s differs from that of the parts", isa, ax_dtype_name(dtype), names[i]);
}

static void release(const made *m)
{
    for (size_t i = 0; i < sizeof *m / sizeof(void *); i++)
        free(((void *const *)m)[i]);
}

static void check_kind(ax_stream *stream, const char *isa, ax_dtype dtype, ax_norm_kind kind)
{
    void *in[4], *weight = normals(ax_dtype_accum(dtype), COLS), *bias = normals(ax_dtype_accum(dtype), COLS);
    made one = make_room(dtype), other = make_room(dtype);
    for (size_t i = 0; i < AX_COUNT(in); i++)
        in[i] = normals(dtype, N);
    at_once(stream, dtype, kind, in, weight, bias, &one);
    in_parts(stream, dtype, kind, in, weight, bias, &other);
    check_bits(isa, dtype, &one, &other);
    for (size_t i = 0; i < AX_COUNT(in); i++)
        free(in[i]);
    free(weight);
    free(bias);
    release(&one);
    release(&other);
}

static void check(ax_stream *stream, const char *isa, ax_dtype dtype)
{
    check_kind(stream, isa, dtype, AX_NORM_LAYER);
    check_kind(stream, isa, dtype, AX_NORM_RMS);
}

static void one_kernel_is_its_parts(void **state)
{
    (void)state;
    static const ax_dtype dtypes[] = {AX_F64, AX_F32, AX_BF16};
    ax_device *dev;
    const ax_cpu_isa *isa;
    assert_int_equal(ax_device_open("ref", 1, &dev), AX_OK);
    for (size_t t = 0; t < AX_COUNT(dtypes); t++)
        check(&(ax_stream){dev, NULL}, "ref", dtypes[t]);
    ax_device_close(&dev);
    assert_int_equal(ax_device_open("cpu", THREADS, &dev), AX_OK);
    for (int i = 0; (isa = ax_cpu_isa_at(i)); i++) {
        ((ax_cpu *)dev->impl)->isa = isa;
        for (size_t t = 1; t < AX_COUNT(dtypes); t++)
            check(&(ax_stream){dev, NULL}, isa->name, dtypes[t]);
    }
    ax_device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_kernel_is_its_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
