/* libxsmm's batch-reduce kernels, called as its own deep-learning layers do: operands and result are in
 * blocks, a bf16 b has pairs of k interleaved, and the sum over k is done in one call or in chunks that stay
 * in the caches. Packing is not timed, not even of activations: the kernel before could have written blocks.
 *
 * libxsmm is column-major: its m is our n, its A our b. Blocks are padded with zeros.
 *     a [m/bm, k/bk, bm, bk]   b [n/bn, k/bk, bk, bn], bf16: [.., bk/2, bn, 2]   c [m/bm, n/bn, bm, bn] */
#include "limit.h"

#include <libxsmm.h>
#include <math.h>
#include <stdlib.h>

/* Sizes of a block, and the part of k that one pass over the result sums up (0: all). */
typedef struct blocking {
    int bm, bn, bk, chunk;
} blocking;

static const blocking candidates[] = {{64, 64, 64, 0}, {64, 64, 64, 1024}, {32, 64, 64, 0},
                                      {32, 32, 32, 0}, {48, 64, 64, 0},    {64, 64, 32, 512}};

typedef struct xsmm {
    const bench *b;
    product p;
    blocking by;
    int64_t mb, nb, kb; /* blocks */
    char *a, *w, *c;    /* packed: a, b and the result */
    float *sum;         /* fp32 sums of a bf16 result that takes several passes */
    size_t a_bytes, w_bytes, c_bytes, sum_bytes;
    libxsmm_xmmfunction first, further; /* stores a block of the result; adds to it */
} xsmm;

static int64_t blocks(int64_t extent, int block) { return (extent + block - 1) / block; }

/* Returns the bytes of an element of the result. */
static int element(const xsmm *s) { return s->p.ta || s->b->dtype == AX_F32 ? 4 : 2; }

/* Copies element number `of`, or a zero for -1. */
static void put(char *to, int64_t at, const char *from, int64_t of, ax_dtype dtype)
{
    if (dtype == AX_BF16)
        ((uint16_t *)to)[at] = of < 0 ? 0 : ((const uint16_t *)from)[of];
    else
        ((float *)to)[at] = of < 0 ? 0 : ((const float *)from)[of];
}

static void pack(const xsmm *s)
{
    const product *p = &s->p;
    const blocking *y = &s->by;
    const int64_t rows = s->mb * y->bm, cols = s->nb * y->bn, depth = s->kb * y->bk;
    const int pair = s->b->dtype == AX_BF16 ? 2 : 1;
#pragma omp parallel
    {
#pragma omp for
        for (int64_t i = 0; i < rows; i++)
            for (int64_t l = 0; l < depth; l++) {
                int64_t at = ((i / y->bm * s->kb + l / y->bk) * y->bm + i % y->bm) * y->bk + l % y->bk;
                bool is = i < p->m && l < p->k;
                put(s->a, at, s->b->a, !is ? -1 : p->ta ? l * p->m + i : i * p->k + l, s->b->dtype);
            }
#pragma omp for
        for (int64_t j = 0; j < cols; j++)
            for (int64_t l = 0; l < depth; l++) {
                int64_t block = (j / y->bn * s->kb + l / y->bk) * y->bk * y->bn, in = l % y->bk;
                int64_t at = block + (in / pair * y->bn + j % y->bn) * pair + in % pair;
                bool is = j < p->n && l < p->k;
                put(s->w, at, s->b->b, !is ? -1 : p->tb ? j * p->k + l : l * p->n + j, s->b->dtype);
            }
    }
}

/* Creates the kernel that sets (beta 0) or adds to (beta 1) a block of the result. */
static libxsmm_xmmfunction kernel(const xsmm *s, bool f32_out, float beta)
{
    const blocking *y = &s->by;
    const float alpha = 1;
    const int size = s->b->dtype == AX_BF16 ? 2 : 4, flags = size == 2 ? LIBXSMM_GEMM_FLAG_VNNI_A : 0;
    const libxsmm_blasint m = y->bn, n = y->bm, k = y->bk, as = m * k * size, bs = n * k * size;
    libxsmm_xmmfunction f = {0};
    if (size == 4)
        f.smrs =
            libxsmm_smmdispatch_reducebatch_strd(m, n, k, as, bs, &m, &k, &m, &alpha, &beta, &flags, NULL);
    else if (f32_out)
        f.bsmrs =
            libxsmm_bsmmdispatch_reducebatch_strd(m, n, k, as, bs, &m, &k, &m, &alpha, &beta, &flags, NULL);
    else
        f.bmrs =
            libxsmm_bmmdispatch_reducebatch_strd(m, n, k, as, bs, &m, &k, &m, &alpha, &beta, &flags, NULL);
    limit_check(!f.xmm, "libxsmm's dispatch of a batch-reduce kernel");
    return f;
}

static void open_blocks(xsmm *s, const blocking *y)
{
    const product *p = &s->p;
    const int size = s->b->dtype == AX_BF16 ? 2 : 4;
    s->by = *y;
    s->mb = blocks(p->m, y->bm), s->nb = blocks(p->n, y->bn), s->kb = blocks(p->k, y->bk);
    s->a_bytes = (size_t)(s->mb * s->kb * y->bm * y->bk * size);
    s->w_bytes = (size_t)(s->nb * s->kb * y->bn * y->bk * size);
    s->c_bytes = (size_t)(s->mb * s->nb * y->bm * y->bn * element(s));
    s->a = limit_alloc(s->b, s->a_bytes), s->w = limit_alloc(s->b, s->w_bytes);
    s->c = limit_alloc(s->b, s->c_bytes);
    const bool add_up = y->chunk && element(s) == 2;
    s->sum_bytes = add_up ? 2 * s->c_bytes : 0;
    s->sum = add_up ? limit_alloc(s->b, s->sum_bytes) : (float *)s->c;
    s->first = kernel(s, element(s) == 4 || add_up, 0);
    s->further = kernel(s, element(s) == 4 || add_up, 1);
    pack(s);
}

static void close_blocks(xsmm *s)
{
    if (s->sum_bytes)
        ax_device_free(s->b->dev, s->sum, s->sum_bytes);
    ax_device_free(s->b->dev, s->a, s->a_bytes);
    ax_device_free(s->b->dev, s->w, s->w_bytes);
    ax_device_free(s->b->dev, s->c, s->c_bytes);
}

/* Computes block `task` of the result over k-blocks [lo, hi). Blocks are numbered along the shorter dim
 * first. */
static void compute_block(const xsmm *s, int64_t task, int64_t lo, int64_t hi)
{
    const blocking *y = &s->by;
    const int64_t i = s->mb > s->nb ? task / s->nb : task % s->mb,
                  j = s->mb > s->nb ? task % s->nb : task / s->mb;
    const int64_t size = s->b->dtype == AX_BF16 ? 2 : 4, area = y->bm * y->bn;
    const void *a = s->a + (i * s->kb + lo) * y->bm * y->bk * size,
               *w = s->w + (j * s->kb + lo) * y->bk * y->bn * size;
    const unsigned long long count = (unsigned long long)(hi - lo);
    const libxsmm_xmmfunction f = lo ? s->further : s->first;
    float *sum = s->sum + (i * s->nb + j) * area;
    if (size == 4)
        f.smrs(w, a, sum, &count);
    else if (element(s) == 4 || s->sum_bytes)
        f.bsmrs(w, a, sum, &count);
    else
        f.bmrs(w, a, (libxsmm_bfloat16 *)s->c + (i * s->nb + j) * area, &count);
    if (s->sum_bytes && hi == s->kb)
        for (int64_t e = 0; e < area; e++)
            ((uint16_t *)s->c)[(i * s->nb + j) * area + e] = limit_to_bf16(sum[e]);
}

static void xsmm_run(void *state)
{
    const xsmm *s = state;
    const int64_t step = s->by.chunk ? s->by.chunk / s->by.bk : s->kb;
#pragma omp parallel
    for (int64_t lo = 0; lo < s->kb; lo += step) {
#pragma omp for schedule(static) nowait /* a thread gets the same blocks in each pass */
        for (int64_t t = 0; t < s->mb * s->nb; t++)
            compute_block(s, t, lo, lo + step < s->kb ? lo + step : s->kb);
    }
}

static void *xsmm_prepare(const bench *b, const product *p)
{
    if (b->dtype == AX_BF16 && libxsmm_get_target_archid() < LIBXSMM_X86_AVX512_CORE)
        return NULL; /* libxsmm has no kernel for this */
    xsmm *s = calloc(1, sizeof *s);
    limit_check(!s, "memory");
    *s = (xsmm){.b = b, .p = *p};
    size_t best = 0;
    double least = INFINITY;
    for (size_t y = 0; y < AX_COUNT(candidates); y++) {
        if (candidates[y].chunk >= p->k)
            continue;
        open_blocks(s, &candidates[y]);
        for (int run = 0; run < 4; run++) {
            double begin = ax_now();
            xsmm_run(s);
            double seconds = ax_now() - begin;
            if (run && seconds < least)
                least = seconds, best = y;
        }
        close_blocks(s);
    }
    open_blocks(s, &candidates[best]);
    return s;
}

static float xsmm_at(const void *state, int64_t row, int64_t col)
{
    const xsmm *s = state;
    const blocking *y = &s->by;
    int64_t block = row / y->bm * s->nb + col / y->bn;
    int64_t at = (block * y->bm + row % y->bm) * y->bn + col % y->bn;
    return element(s) == 4 ? ((const float *)s->c)[at] : limit_from_bf16(((const uint16_t *)s->c)[at]);
}

static void xsmm_release(void *state)
{
    close_blocks(state);
    free(state);
}

const way way_xsmm = {"libxsmm", xsmm_prepare, xsmm_run, xsmm_at, xsmm_release};
