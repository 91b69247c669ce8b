/* The limit of a GPT-2 training step on this machine: tokens per second if every product ran at the rate of
 * the fastest of oneDNN (plain strides; weights packed beforehand) and axonn, attention (causal) at the
 * products' mean rate, AdamW at the rate of memory, and everything else took no time. A slow kernel of ours
 * does not lower it. oneDNN is no dependency of axonn: build this by hand where libdnnl-dev is installed,
 *
 *     gcc -O2 -Iinclude bench/peers/limit.c -o build/limit -Lbuild -laxonn -ldnnl -Wl,-rpath,$PWD/build
 *     OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive build/limit bf16 2 12 768 50257 256 4
 *     # dtype threads layers width vocab T rows
 *
 * The libraries take turns; a product's time is the median of RUNS, on operands that other products have
 * driven from the caches, as in a step. */
#define _GNU_SOURCE
#include "axonn/dev.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 9, OURS = 0, PLAIN, PACKED, WAYS };
static const char *const way_name[WAYS] = {"axonn", "oneDNN", "oneDNN packed"};

static void check(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "limit: %s failed: %s\n", what, ax_error_message());
        exit(1);
    }
}

/* c [m, n] = op(a) op(b), as ax_gemm_args; `b_constant`: b is a weight, which could be packed once for many
 * uses. */
typedef struct product {
    const char *name;
    int64_t m, n, k;
    bool ta, tb, b_constant;
    int calls; /* in a micro-batch */
} product;

typedef struct bench {
    ax_device *dev;
    ax_stream stream;
    dnnl_engine_t engine;
    dnnl_stream_t queue;
    ax_dtype dtype;
    char *a, *b, *c, *scratch, *packed, *sweep;
    size_t sweep_bytes;
} bench;

typedef struct primitive {
    dnnl_primitive_t run;
    dnnl_exec_arg_t args[4];
} primitive;

static dnnl_memory_t memory_of(const bench *b, const dnnl_memory_desc_t *desc, void *data)
{
    dnnl_memory_t memory;
    check(dnnl_memory_create(&memory, desc, b->engine, data), "dnnl_memory_create");
    return memory;
}

static void prepare(const bench *b, const product *p, bool packed, primitive *out)
{
    dnnl_data_type_t type = b->dtype == AX_BF16 ? dnnl_bf16 : dnnl_f32;
    dnnl_dims_t ad = {p->m, p->k}, bd = {p->k, p->n}, cd = {p->m, p->n};
    dnnl_dims_t as = {p->ta ? 1 : p->k, p->ta ? p->m : 1}, bs = {p->tb ? 1 : p->n, p->tb ? p->k : 1},
                cs = {p->n, 1};
    dnnl_memory_desc_t am, bm, cm;
    check(dnnl_memory_desc_init_by_strides(&am, 2, ad, type, as), "a");
    check(packed ? dnnl_memory_desc_init_by_tag(&bm, 2, bd, type, dnnl_format_tag_any)
                 : dnnl_memory_desc_init_by_strides(&bm, 2, bd, type, bs),
          "b");
    check(dnnl_memory_desc_init_by_strides(&cm, 2, cd, p->ta ? dnnl_f32 : type, cs), "c");
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t desc;
    check(dnnl_matmul_desc_init(&matmul, &am, &bm, NULL, &cm), "dnnl_matmul_desc_init");
    check(dnnl_primitive_attr_create(&attr), "dnnl_primitive_attr_create");
    check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "scratchpad");
    check(dnnl_primitive_desc_create(&desc, &matmul, attr, b->engine, NULL), "dnnl_primitive_desc_create");
    check(dnnl_primitive_create(&out->run, desc), "dnnl_primitive_create");
    const dnnl_memory_desc_t *weights = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    check(dnnl_memory_desc_get_size(pad) > (size_t)1 << 30, "a scratchpad of 1 GiB");
    out->args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, memory_of(b, &am, b->a)};
    out->args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, memory_of(b, weights, packed ? b->packed : b->b)};
    out->args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, memory_of(b, &cm, b->c)};
    out->args[3] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, memory_of(b, pad, b->scratch)};
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attr);
}

static void release(primitive *p)
{
    dnnl_primitive_destroy(p->run);
    for (int i = 0; i < 4; i++)
        dnnl_memory_destroy(p->args[i].memory);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double once(bench *b, const product *p, int way, const primitive *other)
{
    ax_gemm_args g = {.m = p->m, .n = p->n, .k = p->k, .a = b->a, .b = b->b, .c = b->c, .ldc = p->n};
    g.lda = p->ta ? p->m : p->k, g.ldb = p->tb ? p->k : p->n, g.trans_a = p->ta, g.trans_b = p->tb;
    g.dtype = b->dtype, g.c_dtype = p->ta ? AX_F32 : b->dtype;
    for (size_t i = 0; i < b->sweep_bytes; i += 64)
        b->sweep[i]++;
    double begin = ax_now();
    if (way == OURS)
        check(ax_run_gemm(&b->stream, &g), "ax_run_gemm");
    else {
        check(dnnl_primitive_execute(other->run, b->queue, 4, other->args), "dnnl_primitive_execute");
        check(dnnl_stream_wait(b->queue), "dnnl_stream_wait");
    }
    return ax_now() - begin;
}

/* Seconds of the fastest way. */
static double fastest(bench *b, const product *p)
{
    double t[WAYS][RUNS], flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    primitive other[WAYS];
    int best = OURS, ways = p->b_constant ? WAYS : PACKED;
    for (int way = PLAIN; way < ways; way++)
        prepare(b, p, way == PACKED, &other[way]);
    for (int run = -1; run < RUNS; run++)
        for (int way = 0; way < ways; way++) {
            double seconds = once(b, p, way, &other[way]);
            if (run >= 0)
                t[way][run] = seconds;
        }
    printf("%-10s %c%c %5lld x %5lld x %5lld  x%-3d", p->name, p->ta ? 'T' : 'N', p->tb ? 'T' : 'N',
           (long long)p->m, (long long)p->n, (long long)p->k, p->calls);
    for (int way = 0; way < ways; way++) {
        qsort(t[way], RUNS, sizeof t[way][0], ascending);
        printf("  %s %6.1f", way_name[way], flops / t[way][RUNS / 2] * 1e-9);
        best = t[way][RUNS / 2] < t[best][RUNS / 2] ? way : best;
    }
    printf("  GFLOP/s\n");
    fflush(stdout);
    for (int way = PLAIN; way < ways; way++)
        release(&other[way]);
    return t[best][RUNS / 2];
}

static char *block(bench *b, size_t bytes)
{
    void *memory;
    check(ax_device_alloc(b->dev, bytes, &memory), "memory");
    for (size_t e = 0; e < bytes / 4; e++) /* small numbers, read as fp32 or as bf16 */
        ((uint32_t *)memory)[e] = 0x3c003c00u + (uint32_t)(e * 2654435761u >> 29);
    return memory;
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: limit fp32|bf16 THREADS LAYERS WIDTH VOCAB T ROWS\n");
        return 2;
    }
    bench b = {.dtype = strcmp(argv[1], "bf16") ? AX_F32 : AX_BF16, .sweep_bytes = (size_t)64 << 20};
    int64_t layers = atoll(argv[3]), d = atoll(argv[4]), v = atoll(argv[5]), t = atoll(argv[6]),
            rows = atoll(argv[7]);
    int64_t n = t * rows, wide = v > 4 * d ? v : 4 * d;
    check(ax_device_open("cpu", atoi(argv[2]), &b.dev), "ax_device_open");
    b.stream.dev = b.dev;
    check(dnnl_engine_create(&b.engine, dnnl_cpu, 0), "dnnl_engine_create");
    check(dnnl_stream_create(&b.queue, b.engine, dnnl_stream_default_flags), "dnnl_stream_create");
    size_t bytes = (size_t)(wide + 64) * (size_t)(n > d ? n : d) * 4;
    b.a = block(&b, bytes), b.b = block(&b, bytes), b.c = block(&b, bytes), b.packed = block(&b, bytes);
    b.scratch = block(&b, (size_t)1 << 30);
    b.sweep = block(&b, b.sweep_bytes);

    int l = (int)layers;
    const product products[] = {
        {"qkv", n, 3 * d, d, false, true, true, l},      {"qkv dx", n, d, 3 * d, false, false, true, l},
        {"qkv dw", 3 * d, d, n, true, false, false, l},  {"proj", n, d, d, false, true, true, l},
        {"proj dx", n, d, d, false, false, true, l},     {"proj dw", d, d, n, true, false, false, l},
        {"up", n, 4 * d, d, false, true, true, l},       {"up dx", n, d, 4 * d, false, false, true, l},
        {"up dw", 4 * d, d, n, true, false, false, l},   {"down", n, d, 4 * d, false, true, true, l},
        {"down dx", n, 4 * d, d, false, false, true, l}, {"down dw", d, 4 * d, n, true, false, false, l},
        {"head", n, v, d, false, true, true, 1},         {"head dx", n, d, v, false, false, true, 1},
        {"head dw", v, d, n, true, false, false, 1},
    };
    double seconds = 0, flops = 0;
    for (size_t i = 0; i < AX_COUNT(products); i++) {
        const product *p = &products[i];
        seconds += p->calls * fastest(&b, p);
        flops += p->calls * 2.0 * (double)p->m * (double)p->n * (double)p->k;
    }
    /* Two products forward and five backward, over the pairs that see each other. */
    double attention = 7 * 2.0 * (double)(layers * rows) * (double)t * (double)(t + 1) / 2 * (double)d;
    double weights = (double)(layers * 12 * d * d + v * d + t * d), stream;
    check(ax_device_stream(b.dev, 0.5, &stream), "ax_device_stream");
    double attend = attention * seconds / flops, update = weights * (b.dtype == AX_BF16 ? 30 : 28) / stream;
    printf("products %.1f ms at %.1f GFLOP/s, attention %.1f ms, AdamW %.1f ms at %.1f GB/s\n", seconds * 1e3,
           flops / seconds * 1e-9, attend * 1e3, update * 1e3, stream * 1e-9);
    printf("limit %.1f ms a step, %.1f tokens/s\n", (seconds + attend + update) * 1e3,
           (double)n / (seconds + attend + update));
    return 0;
}
