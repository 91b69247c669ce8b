/* The limit of a training step of a GPT-2 or a Llama on this machine, in tokens per second. It assumes that
 * every matrix product runs at the rate of the fastest of oneDNN (plain strides; weights packed beforehand;
 * its BLAS-like functions), libxsmm (all operands packed beforehand) and axonn; causal attention at the mean
 * rate of the products; AdamW at the rate of memory; and everything else in no time. A slow kernel of axonn
 * does not lower the limit. axonn does not depend on these libraries. Install libdnnl-dev and libxsmm-dev and
 * build this by hand:
 *
 *     gcc -O2 -fopenmp -Iinclude bench/peers/limit*.c -o build/limit -Lbuild -laxonn -ldnnl \
 *         -lxsmm -lxsmmnoblas -lm -Wl,-rpath,$PWD/build
 *     OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=20000 build/limit bf16 2 12 768 50257 256 4
 *     # dtype threads layers width vocab T rows, and for a Llama the width of all its keys and of its MLP:
 *     OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=20000 build/limit bf16 2 12 768 32000 256 4 256 2048
 *
 * AXONN_ISA, ONEDNN_MAX_CPU_ISA and LIBXSMM_TARGET together give the limit of a slower instruction set.
 *
 * The implementations ("ways") take turns. A product's time is the median of RUNS runs with threads awake, on
 * operands that are not in the caches, as in a step. Operands are small integers, so that every partial sum
 * is exact in fp32 and all ways must give the same bits. The last line is a JSON object; `alone` is the limit
 * if one way did all products that it supports. */
#define _GNU_SOURCE
#include "limit.h"

#include <libxsmm.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 9, LARGEST = 15, SWEEP = 64 << 20 };

static const way *const ways[] = {&way_axonn, &way_plain, &way_packed, &way_blas, &way_xsmm};
enum { WAYS = AX_COUNT(ways) };

void limit_check(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "limit: %s failed: %s\n", what, ax_error_message());
        exit(1);
    }
}

float limit_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

uint16_t limit_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void *limit_alloc(const bench *b, size_t bytes)
{
    void *memory;
    limit_check(ax_device_alloc(b->dev, bytes, &memory), "memory");
    memset(memory, 0, bytes);
    return memory;
}

/* ---- checking the results ------------------------------------------------------------------------ */

/* Allocates an operand of integers of both signs. Sums of k products are exact in 24 bits if k * LARGEST^2 <
 * 2^24. */
static char *operand(const bench *b, size_t elements)
{
    char *memory = limit_alloc(b, elements * ax_dtype_size(b->dtype));
    uint64_t x = 88172645463325252u;
    for (size_t e = 0; e < elements; e++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        float whole = (float)((int)(x >> 33) % (2 * LARGEST + 1) - LARGEST);
        if (b->dtype == AX_BF16)
            ((uint16_t *)memory)[e] = limit_to_bf16(whole);
        else
            ((float *)memory)[e] = whole;
    }
    return memory;
}

static float value(const bench *b, const char *operand, int64_t at)
{
    return b->dtype == AX_BF16 ? limit_from_bf16(((const uint16_t *)operand)[at])
                               : ((const float *)operand)[at];
}

static void compare(const product *p, const way *w, int64_t i, int64_t j, float got, float want)
{
    if (got == want)
        return;
    fprintf(stderr, "limit: %s of %s is wrong: c[%lld, %lld] is %.9g, not %.9g\n", p->name, w->name,
            (long long)i, (long long)j, got, want);
    exit(1);
}

static float result(const bench *b, const product *p, const way *w, const void *state, int64_t i, int64_t j)
{
    float x = w->at(state, i, j);
    return b->dtype == AX_BF16 && !p->ta ? limit_from_bf16(limit_to_bf16(x)) : x;
}

/* Checks the first way at elements spread over the result, including its corners, against a plain loop; and
 * all elements of the other ways against the first. */
static void verify(const bench *b, const product *p, const way *w, const void *state)
{
    enum { SPREAD = 23 };
    if (w != ways[0]) {
        for (int64_t at = 0; at < p->m * p->n; at++)
            compare(p, w, at / p->n, at % p->n, result(b, p, w, state, at / p->n, at % p->n), b->right[at]);
        return;
    }
    for (int64_t s = 0; s < SPREAD * SPREAD; s++) {
        int64_t i = s / SPREAD * (p->m - 1) / (SPREAD - 1), j = s % SPREAD * (p->n - 1) / (SPREAD - 1);
        float sum = 0;
        for (int64_t l = 0; l < p->k; l++)
            sum += value(b, b->a, p->ta ? l * p->m + i : i * p->k + l) *
                   value(b, b->b, p->tb ? j * p->k + l : l * p->n + j);
        compare(p, w, i, j, w->at(state, i, j),
                p->ta || b->dtype == AX_F32 ? sum : limit_from_bf16(limit_to_bf16(sum)));
    }
    for (int64_t at = 0; at < p->m * p->n; at++)
        b->right[at] = w->at(state, at / p->n, at % p->n);
}

/* ---- timing -------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double once(const way *w, void *state, char *sweep)
{
    for (size_t i = 0; i < SWEEP; i += 64)
        sweep[i]++;
    if (w != &way_axonn) {
#pragma omp parallel
        sweep[omp_get_thread_num() * 64]++; /* wakes OpenMP's threads */
    }
    double begin = ax_now();
    w->run(state);
    return ax_now() - begin;
}

/* Measures the median seconds of each way; 0: the way does not support the product. */
static void measure(bench *b, const product *p, char *sweep, double seconds[WAYS])
{
    double t[WAYS][RUNS], flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    void *state[WAYS];
    limit_check(p->k * LARGEST * LARGEST >= 1 << 24, "exact sums: k is too large");
    for (int w = 0; w < WAYS; w++) {
        state[w] = ways[w]->prepare(b, p);
        if (state[w]) {
            memset(b->c, 0xff, (size_t)(p->m * p->n) * 4); /* NaN */
            ways[w]->run(state[w]);
            verify(b, p, ways[w], state[w]);
        }
    }
    for (int run = 0; run < RUNS; run++)
        for (int w = 0; w < WAYS; w++)
            t[w][run] = state[w] ? once(ways[w], state[w], sweep) : 0;
    printf("%-10s %c%c %5lld x %5lld x %5lld  x%-3d", p->name, p->ta ? 'T' : 'N', p->tb ? 'T' : 'N',
           (long long)p->m, (long long)p->n, (long long)p->k, p->calls);
    for (int w = 0; w < WAYS; w++) {
        qsort(t[w], RUNS, sizeof t[w][0], ascending);
        seconds[w] = t[w][RUNS / 2];
        if (state[w]) {
            printf("  %s %6.1f", ways[w]->name, flops / seconds[w] * 1e-9);
            ways[w]->release(state[w]);
        }
    }
    printf("  GFLOP/s\n");
    fflush(stdout);
}

static double least(const double seconds[WAYS])
{
    double best = seconds[0];
    for (int w = 1; w < WAYS; w++)
        best = seconds[w] > 0 && seconds[w] < best ? seconds[w] : best;
    return best;
}

int main(int argc, char **argv)
{
    if (argc != 8 && argc != 10) {
        fprintf(stderr, "usage: limit fp32|bf16 THREADS LAYERS WIDTH VOCAB T ROWS [KEYS MLP]\n");
        return 2;
    }
    bool known = !strcmp(argv[1], "bf16") || !strcmp(argv[1], "fp32");
    for (int i = 2; i < argc; i++)
        known = known && atoll(argv[i]) > 0;
    if (!known) {
        fprintf(stderr, "limit: fp32 or bf16 (not %s), then six or eight numbers from 1\n", argv[1]);
        return 2;
    }
    bench b = {.dtype = strcmp(argv[1], "bf16") ? AX_F32 : AX_BF16, .threads = atoi(argv[2])};
    int64_t layers = atoll(argv[3]), d = atoll(argv[4]), v = atoll(argv[5]), t = atoll(argv[6]),
            rows = atoll(argv[7]);
    bool llama = argc == 10;
    int64_t keys = llama ? atoll(argv[8]) : d, f = llama ? atoll(argv[9]) : 4 * d;
    int64_t qkv = d + 2 * keys,
            up = llama ? 2 * f : f; /* a Llama's gate and up projections are one product */
    int64_t n = t * rows, wide = ax_max(v, ax_max(up, qkv)), deep = ax_max(n, ax_max(d, f));
    limit_check(ax_device_open("cpu", b.threads, &b.dev), "ax_device_open");
    omp_set_num_threads(b.threads);
    size_t elements = (size_t)(wide * deep);
    b.a = operand(&b, elements), b.b = operand(&b, elements), b.c = limit_alloc(&b, elements * 4);
    b.right = limit_alloc(&b, elements * 4);
    char *sweep = limit_alloc(&b, SWEEP);

    int l = (int)layers;
    const product products[] = {
        {"qkv", n, qkv, d, false, true, true, l},     {"qkv dx", n, d, qkv, false, false, true, l},
        {"qkv dw", qkv, d, n, true, false, false, l}, {"proj", n, d, d, false, true, true, l},
        {"proj dx", n, d, d, false, false, true, l},  {"proj dw", d, d, n, true, false, false, l},
        {"up", n, up, d, false, true, true, l},       {"up dx", n, d, up, false, false, true, l},
        {"up dw", up, d, n, true, false, false, l},   {"down", n, d, f, false, true, true, l},
        {"down dx", n, f, d, false, false, true, l},  {"down dw", d, f, n, true, false, false, l},
        {"head", n, v, d, false, true, true, 1},      {"head dx", n, d, v, false, false, true, 1},
        {"head dw", v, d, n, true, false, false, 1},
    };
    libxsmm_init();
    printf("libxsmm's target: %s\n", libxsmm_get_target_arch());
    double seconds = 0, alone[WAYS] = {0}, flops = 0;
    for (size_t i = 0; i < AX_COUNT(products); i++) {
        const product *p = &products[i];
        double of[WAYS];
        measure(&b, p, sweep, of);
        seconds += p->calls * least(of);
        for (int w = 0; w < WAYS; w++)
            alone[w] += p->calls * (of[w] > 0 ? of[w] : least(of));
        flops += p->calls * 2.0 * (double)p->m * (double)p->n * (double)p->k;
    }
    /* Attention: two products forward and five backward, over the causal pairs. */
    double attention = 7 * 2.0 * (double)(layers * rows) * (double)t * (double)(t + 1) / 2 * (double)d;
    int64_t tables = llama ? 2 * v * d : v * d + t * d; /* tokens and the untied head; tied, and positions */
    double weights = (double)(layers * (d * qkv + d * d + up * d + f * d) + tables), stream;
    limit_check(ax_device_stream(b.dev, 0.5, &stream), "ax_device_stream");
    double attend = attention / flops, update = weights * (b.dtype == AX_BF16 ? 30 : 28) / stream;
    double step = seconds * (1 + attend) + update;
    printf("products %.1f ms at %.1f GFLOP/s, attention %.1f ms, AdamW %.1f ms at %.1f GB/s\n", seconds * 1e3,
           flops / seconds * 1e-9, attend * seconds * 1e3, update * 1e3, stream * 1e-9);
    printf(
        "{\"step_ms\": %.3f, \"tokens_per_s\": %.1f, \"products_ms\": %.3f, \"gflops\": %.1f, \"alone\": {",
        step * 1e3, (double)n / step, seconds * 1e3, flops / seconds * 1e-9);
    for (int w = 0; w < WAYS; w++)
        printf("%s\"%s\": %.3f", w ? ", " : "", ways[w]->name, (alone[w] * (1 + attend) + update) * 1e3);
    printf("}}\n");
    return 0;
}
