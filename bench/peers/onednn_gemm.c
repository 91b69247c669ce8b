/* Compares axonn's matrix product with oneDNN's at the shapes of GPT-2, interleaved in one run, and counts
 * the allocations of each call. axonn does not depend on oneDNN. Install libdnnl-dev and build this by hand:
 *
 *     gcc -O2 -Iinclude bench/peers/onednn_gemm.c -o build/onednn_gemm -Lbuild -laxonn -ldnnl \
 *         -Wl,-rpath,$PWD/build
 *     OMP_NUM_THREADS=2 build/onednn_gemm 2
 *
 * oneDNN runs as a matmul primitive created beforehand, with plain strides and a scratchpad of the user, as a
 * training step would call it. Allocations of dnnl_sgemm are counted too. */
#define _GNU_SOURCE
#include "axonn/dev.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- counting the allocations of the process ----------------------------------------------------- */

static long allocations;

/* Returns the C library's function that the counting one replaces. */
static void *counted(const char *name)
{
    __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
    return dlsym(RTLD_NEXT, name);
}

void *malloc(size_t n)
{
    static void *(*next)(size_t);
    *(void **)&next = counted("malloc");
    return next(n);
}
void *realloc(void *p, size_t n)
{
    static void *(*next)(void *, size_t);
    *(void **)&next = counted("realloc");
    return next(p, n);
}
int posix_memalign(void **p, size_t align, size_t n)
{
    static int (*next)(void **, size_t, size_t);
    *(void **)&next = counted("posix_memalign");
    return next(p, align, n);
}
void *aligned_alloc(size_t align, size_t n)
{
    static void *(*next)(size_t, size_t);
    *(void **)&next = counted("aligned_alloc");
    return next(align, n);
}

/* ---- one product, two ways ----------------------------------------------------------------------- */

typedef struct product {
    int64_t m, n, k;
    bool ta, tb;
    ax_dtype dtype, c_dtype;
    void *a, *b, *c;
} product;

static void check(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "onednn_gemm: %s failed: %s\n", what, ax_error_message());
        exit(1);
    }
}

typedef struct peer {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[4];
} peer;

static dnnl_data_type_t peer_type(ax_dtype t) { return t == AX_BF16 ? dnnl_bf16 : dnnl_f32; }

static dnnl_memory_t peer_memory(dnnl_engine_t engine, dnnl_memory_desc_t *desc, void *data)
{
    dnnl_memory_t memory;
    check(dnnl_memory_create(&memory, desc, engine, data), "dnnl_memory_create");
    return memory;
}

static void peer_create(dnnl_engine_t engine, const product *p, void *scratch, size_t scratch_size, peer *out)
{
    dnnl_dims_t ad = {p->m, p->k}, bd = {p->k, p->n}, cd = {p->m, p->n};
    dnnl_dims_t as = {p->ta ? 1 : p->k, p->ta ? p->m : 1}, bs = {p->tb ? 1 : p->n, p->tb ? p->k : 1},
                cs = {p->n, 1};
    dnnl_memory_desc_t a, b, c;
    check(dnnl_memory_desc_init_by_strides(&a, 2, ad, peer_type(p->dtype), as), "a");
    check(dnnl_memory_desc_init_by_strides(&b, 2, bd, peer_type(p->dtype), bs), "b");
    check(dnnl_memory_desc_init_by_strides(&c, 2, cd, peer_type(p->c_dtype), cs), "c");
    dnnl_matmul_desc_t matmul;
    check(dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c), "dnnl_matmul_desc_init");
    dnnl_primitive_attr_t attr;
    check(dnnl_primitive_attr_create(&attr), "dnnl_primitive_attr_create");
    check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad");
    dnnl_primitive_desc_t desc;
    check(dnnl_primitive_desc_create(&desc, &matmul, attr, engine, NULL), "dnnl_primitive_desc_create");
    check(dnnl_primitive_create(&out->primitive, desc), "dnnl_primitive_create");
    dnnl_memory_desc_t pad = *dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    check(dnnl_memory_desc_get_size(&pad) > scratch_size, "a scratchpad that is large enough");
    out->args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, peer_memory(engine, &a, p->a)};
    out->args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, peer_memory(engine, &b, p->b)};
    out->args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, peer_memory(engine, &c, p->c)};
    out->args[3] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, peer_memory(engine, &pad, scratch)};
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attr);
}

static void peer_destroy(peer *p)
{
    dnnl_primitive_destroy(p->primitive);
    for (int i = 0; i < 4; i++)
        dnnl_memory_destroy(p->args[i].memory);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

enum { RUNS = 15 };

/* Returns elapsed seconds, or with one thread its CPU time. */
static double seconds(const ax_device *dev) { return dev->threads == 1 ? ax_cpu_now() : ax_now(); }

typedef struct rates {
    double median, best;
    long allocations; /* number of allocations in the last call */
} rates;

static rates rates_of(double t[RUNS], double flops, long count)
{
    qsort(t, RUNS, sizeof *t, by_value);
    return (rates){flops / t[RUNS / 2] * 1e-9, flops / t[0] * 1e-9, count};
}

static void compare(ax_stream *stream, dnnl_engine_t engine, dnnl_stream_t queue, const product *p,
                    void *scratch, size_t scratch_size)
{
    ax_gemm_args g = {.m = p->m, .n = p->n, .k = p->k, .a = p->a, .b = p->b, .c = p->c, .ldc = p->n};
    g.lda = p->ta ? p->m : p->k, g.ldb = p->tb ? p->k : p->n, g.trans_a = p->ta, g.trans_b = p->tb;
    g.dtype = p->dtype, g.c_dtype = p->c_dtype;
    peer other;
    peer_create(engine, p, scratch, scratch_size, &other);
    double ours[RUNS], theirs[RUNS], flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    long our_count = 0, their_count = 0;
    for (int run = -1; run < RUNS; run++) {
        long before = allocations;
        double start = seconds(stream->dev);
        check(ax_run_gemm(stream, &g), "ax_run_gemm");
        double middle = seconds(stream->dev);
        our_count = allocations - before;
        before = allocations;
        double again = seconds(stream->dev);
        check(dnnl_primitive_execute(other.primitive, queue, 4, other.args), "dnnl_primitive_execute");
        check(dnnl_stream_wait(queue), "dnnl_stream_wait");
        double end = seconds(stream->dev);
        their_count = allocations - before;
        if (run >= 0)
            ours[run] = middle - start, theirs[run] = end - again;
    }
    rates a = rates_of(ours, flops, our_count), b = rates_of(theirs, flops, their_count);
    printf("%-4s %c%c %5lld x %5lld x %5lld  axonn %7.1f (best %7.1f)  oneDNN %7.1f (best %7.1f)  ratio %.2f "
           "(%.2f)  "
           "allocations %ld, %ld\n",
           ax_dtype_name(p->dtype), p->ta ? 'T' : 'N', p->tb ? 'T' : 'N', (long long)p->m, (long long)p->n,
           (long long)p->k, a.median, a.best, b.median, b.best, a.median / b.median, a.best / b.best,
           a.allocations, b.allocations);
    fflush(stdout);
    peer_destroy(&other);
}

/* dnnl_sgemm takes no scratch memory from the user. */
static void count_sgemm(const product *p)
{
    long before = 0;
    for (int run = 0; run < 4; run++) {
        before = allocations;
        check(dnnl_sgemm('N', 'T', p->m, p->n, p->k, 1.0f, p->a, p->k, p->b, p->k, 0.0f, p->c, p->n),
              "dnnl_sgemm");
    }
    printf("dnnl_sgemm NT %lld x %lld x %lld: %ld allocations per call\n", (long long)p->m, (long long)p->n,
           (long long)p->k, allocations - before);
}

int main(int argc, char **argv)
{
    static const int64_t layers[][2] = {{768, 768}, {2304, 768}, {3072, 768}, {768, 3072}, {50257, 768}};
    static const int64_t tokens[] = {256, 1024};
    const size_t bytes = (size_t)50257 * 1024 * 4, scratch_size = (size_t)1 << 30;
    ax_device *dev;
    check(ax_device_open("cpu", argc > 1 ? atoi(argv[1]) : 0, &dev), "ax_device_open");
    ax_stream stream = {dev, NULL};
    dnnl_engine_t engine;
    dnnl_stream_t queue;
    check(dnnl_engine_create(&engine, dnnl_cpu, 0), "dnnl_engine_create");
    check(dnnl_stream_create(&queue, engine, dnnl_stream_default_flags), "dnnl_stream_create");
    void *memory[3], *scratch;
    for (int i = 0; i < 3; i++) {
        check(ax_device_alloc(dev, bytes, &memory[i]), "memory");
        for (size_t e = 0; e < bytes / 4; e++) /* small numbers both as fp32 and as bf16 */
            ((uint32_t *)memory[i])[e] = 0x3c003c00u + (uint32_t)(e * 2654435761u >> 29);
    }
    check(ax_device_alloc(dev, scratch_size, &scratch), "memory");
    printf("%d threads; GFLOP/s, median and best of %d\n", dev->threads, RUNS);
    for (int d = 0; d < 2; d++)
        for (int t = 0; t < 2; t++)
            for (size_t l = 0; l < AX_COUNT(layers); l++) {
                int64_t m = tokens[t], n = layers[l][0], k = layers[l][1];
                ax_dtype type = d ? AX_BF16 : AX_F32;
                product forward = {m, n, k, false, true, type, type, memory[0], memory[1], memory[2]};
                product dx = {m, k, n, false, false, type, type, memory[0], memory[1], memory[2]};
                product dw = {n, k, m, true, false, type, AX_F32, memory[0], memory[1], memory[2]};
                compare(&stream, engine, queue, &forward, scratch, scratch_size);
                compare(&stream, engine, queue, &dx, scratch, scratch_size);
                compare(&stream, engine, queue, &dw, scratch, scratch_size);
                if (d == 0 && t == 0 && l == 2)
                    count_sgemm(&forward);
            }
    ax_device_close(&dev);
    return 0;
}
