/* Matrix product: the loops around the micro-tiles of gemm_kernels.h.
 *
 * Each thread computes a rectangle of c by itself, so there are no barriers; both operands are packed by
 * whoever uses them, which for a rectangle of m x n costs about 1/n + 1/m of the work. Per thread:
 *
 *     for blocks of NC columns of c, and of MC rows
 *       for blocks of KC in k: pack MC x KC of a, which stays in the second-level cache
 *         for panels of up to 48 columns: a tile per 8 rows, on KC x 48 of b in the first-level cache;
 *         between tiles the next panel is packed piece by piece
 *
 * If there are several blocks of rows, and all of k of NC columns has room, the first of them leaves its
 * panels for the others.
 *
 * An element of c is always the same sequence of multiply-adds, k ascending in blocks that depend on k alone:
 * neither the tile it falls in nor the number of threads changes its bits. Products with few rows (one token
 * being generated) read b once and are bound by memory: they take the unpacked path of gemv_kernels.h. */
#include "dev/cpu/cpu.h"

#include <string.h>

enum {
    BLOCK_M = 512,         /* rows of a block of bf16 a; fp32 takes half */
    BLOCK_K = 384,         /* a multiple of every `pair` */
    PANEL_N = 48,          /* columns of the widest panel */
    BLOCK_N = 21 * PANEL_N /* columns of the fp32 sums of a bf16 c */
};
/* The three parts of a thread's scratch; b's holds two panels at least. */
enum { A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = 4 << 20, C_BYTES = BLOCK_M * BLOCK_N * 4 };
enum { PANEL_BYTES = PANEL_N * BLOCK_K * 4 };
_Static_assert(A_BYTES + B_BYTES + C_BYTES <= AX_CPU_SCRATCH, "the scratch holds the blocks");
_Static_assert(2 * PANEL_BYTES <= B_BYTES, "and two panels");

/* `total` cut into equal parts of at most `most`, rounded up to `unit`. */
static int64_t even_part(int64_t total, int64_t most, int64_t unit)
{
    int64_t parts = ax_ceil_div(total, most);
    return parts ? ax_round_up(ax_ceil_div(total, parts), unit) : unit;
}

static const char *operand(const void *base, size_t size, int64_t ld, bool along_k, int64_t row, int64_t k)
{
    return (const char *)base + (size_t)(along_k ? row * ld + k : k * ld + row) * size;
}

/* One block in k of one block of c: rows m0+[0,m), columns n0+[0,n). */
typedef struct block {
    const ax_cpu_gemm *gemm;
    const ax_gemm_args *g;
    int64_t m0, m, n0, n, k0, k;
    char *a, *b;              /* packed */
    bool keep, kept;          /* b's panels are left for other rows; they are there */
    float *sums;              /* m x BLOCK_N, for a bf16 c over several blocks in k */
    int64_t next_m0, next_k0; /* the block of a that is packed next */
} block;

/* A share of `total` for each of `parts` steps: step i's ends at total * (i + 1) / parts. */
typedef struct shares {
    int64_t total, parts, done, rest;
} shares;

/* The end of the share of the next `steps` steps. */
static int64_t next_share(shares *s, int64_t steps)
{
    for (s->rest += s->total * steps; s->rest >= s->parts; s->rest -= s->parts)
        s->done++;
    return s->done;
}

/* Where this block's tile at row i, column j adds to and stores to. */
static ax_cpu_tile place(const block *t, int64_t i, int64_t j)
{
    const ax_gemm_args *g = t->g;
    bool first = t->k0 == 0, last = t->k0 + t->k == g->k, c_bf16 = g->c_dtype == AX_BF16;
    size_t size = c_bf16 ? 2 : 4;
    ax_cpu_tile tile = {.c = (char *)g->c + (size_t)((t->m0 + i) * g->ldc + t->n0 + j) * size,
                        .c_ld = g->ldc};
    if (!c_bf16) {
        if (!first || g->accumulate)
            tile.prior = tile.c;
        tile.prior_ld = g->ldc;
        return tile;
    }
    float *sums = t->sums + i * BLOCK_N + j;
    if (!first)
        tile.prior = sums;
    tile.prior_ld = BLOCK_N;
    tile.c_bf16 = last;
    tile.add_c = last && g->accumulate;
    if (!last) {
        tile.c = sums;
        tile.c_ld = BLOCK_N;
    }
    return tile;
}

/* Asks for a rectangle of an operand that will be packed soon: its rows are short and far apart, which no
 * hardware prefetcher follows. To the first-level cache if it is needed at once, else to the second. */
static inline void prefetch(bool at_once, const char *base, int64_t rows, int64_t row_bytes, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++, base += stride)
        for (const char *line = base - (uintptr_t)base % 64; line < base + row_bytes; line += 64)
            if (at_once)
                __builtin_prefetch(line, 0, 3);
            else
                __builtin_prefetch(line, 0, 2);
}

/* The block of a that is packed next: rows, or slices in k, `from` … `to`. */
static void prefetch_a(const block *t, int64_t from, int64_t to)
{
    const ax_gemm_args *g = t->g;
    int64_t size = (int64_t)ax_dtype_size(g->dtype);
    int64_t along = g->trans_a ? ax_min(t->m, g->m - t->next_m0) : ax_min(t->k, g->k - t->next_k0);
    const char *base = operand(g->a, (size_t)size, g->lda, !g->trans_a, t->next_m0, t->next_k0);
    prefetch(false, base + from * g->lda * size, to - from, along * size, g->lda * size);
}

static int64_t slices_of_a(const block *t)
{
    const ax_gemm_args *g = t->g;
    if (t->next_m0 == g->m)
        return 0;
    return g->trans_a ? ax_min(t->k, g->k - t->next_k0) : ax_min(t->m, g->m - t->next_m0);
}

/* A panel of b: columns j … j+cols-1 of the block in `nv` vectors. */
typedef struct panel {
    int64_t j, cols;
    int nv;
} panel;

/* Panels are of nearly equal width: 64 columns are 2 + 2 vectors, not 3 + 1. */
static panel panel_at(const block *t, int64_t index, int64_t panels)
{
    int64_t lanes = t->gemm->lanes, vectors = ax_ceil_div(t->n, lanes);
    int64_t j = vectors * index / panels * lanes, end = ax_min(t->n, vectors * (index + 1) / panels * lanes);
    return (panel){j, end - j, (int)ax_ceil_div(end - j, lanes)};
}

/* A panel is packed in pieces of `lanes` units, the granule in which packing transposes. */
static int64_t pieces(const block *t) { return ax_ceil_div(t->k, (int64_t)t->gemm->pair * t->gemm->lanes); }

/* Pieces `from` … `to` of a panel are packed to `out`, or only asked for if `out` is NULL. */
static void pack_pieces(const block *t, const panel *p, int64_t from, int64_t to, char *out)
{
    const ax_gemm_args *g = t->g;
    int64_t lanes = t->gemm->lanes, granule = t->gemm->pair * lanes, size = (int64_t)ax_dtype_size(g->dtype);
    int64_t k0 = from * granule, k = ax_min(t->k, to * granule) - k0;
    if (k <= 0)
        return;
    const char *src = operand(g->b, (size_t)size, g->ldb, g->trans_b, t->n0 + p->j, t->k0 + k0);
    if (out)
        t->gemm->pack_b(src, g->ldb, g->trans_b, p->cols, k, (int)(p->nv * lanes),
                        out + from * lanes * p->nv * lanes * 4);
    else
        prefetch(true, src, g->trans_b ? p->cols : k, (g->trans_b ? k : p->cols) * size, g->ldb * size);
}

/* Where a panel of this block lies once it is packed: with those of all blocks in k, or in one of two places
 * by turns. */
static char *place_of_panel(const block *t, const panel *p, int64_t index)
{
    if (!t->keep)
        return t->b + index % 2 * PANEL_BYTES;
    int64_t unit = 4 / t->gemm->pair, width = ax_round_up(t->n, t->gemm->lanes);
    return t->b + (t->k0 * width + p->j * ax_round_up(t->k, t->gemm->pair)) * unit;
}

/* All tiles of a panel, packed at `b`. Between them the next panel, if any, is packed to `next_b`, each piece
 * asked for a tile before: multiplications hide the wait for memory. If it lies there already, it is asked
 * for. */
static void run_panel(const block *t, const panel *p, const char *b, const panel *next, char *next_b,
                      shares *ahead)
{
    enum { LINE = 64 };
    const ax_cpu_gemm *gemm = t->gemm;
    int64_t units = ax_ceil_div(t->k, gemm->pair), tiles = ax_ceil_div(t->m, gemm->rows);
    int64_t lines = next ? units * next->nv * gemm->lanes * 4 / LINE : 0;
    shares share = {.total = t->kept ? lines : next ? pieces(t) : 0, .parts = tiles};
    int64_t packed = 0, asked = 0;
    for (int64_t i = 0; i < tiles; i++) {
        int64_t from = ahead->done, ready = asked;
        prefetch_a(t, from, next_share(ahead, p->cols));
        asked = next_share(&share, 1);
        if (t->kept && next)
            prefetch(false, next_b + ready * LINE, asked - ready, 1, LINE);
        else if (next) {
            pack_pieces(t, next, ready, asked, NULL);
            pack_pieces(t, next, packed, ready, next_b);
            packed = ready;
        }
        ax_cpu_tile tile = place(t, i * gemm->rows, p->j);
        tile.rows = ax_min(gemm->rows, t->m - i * gemm->rows);
        tile.cols = p->cols;
        gemm->tile(p->nv, units, t->a + i * gemm->rows * units * 4, b, &tile);
    }
    if (next && !t->kept)
        pack_pieces(t, next, packed, asked, next_b);
}

static void run_block(const block *t)
{
    const ax_gemm_args *g = t->g;
    size_t size = ax_dtype_size(g->dtype);
    t->gemm->pack_a(operand(g->a, size, g->lda, !g->trans_a, t->m0, t->k0), g->lda, !g->trans_a, t->m, t->k,
                    0, t->a);
    int64_t panels = ax_ceil_div(t->n, (int64_t)t->gemm->lanes * t->gemm->vectors);
    shares ahead = {.total = slices_of_a(t), .parts = ax_ceil_div(t->m, t->gemm->rows) * t->n};
    panel p = panel_at(t, 0, panels);
    if (!t->kept)
        pack_pieces(t, &p, 0, pieces(t), place_of_panel(t, &p, 0));
    for (int64_t i = 0; i < panels; i++) {
        panel next = panel_at(t, i + 1, panels);
        bool more = i + 1 < panels;
        run_panel(t, &p, place_of_panel(t, &p, i), more ? &next : NULL,
                  more ? place_of_panel(t, &next, i + 1) : NULL, &ahead);
        p = next;
    }
}

/* Columns of a block: as many as there are, or as there is room for sums, or for all of k of them. */
static int64_t columns(const ax_cpu_gemm *gemm, const ax_gemm_args *g, int64_t n, bool sums, bool several,
                       bool *keep)
{
    enum { LEAST = 4 * PANEL_N }; /* packing a again for fewer would cost more than packing b */
    int64_t most = sums ? ax_min(n, BLOCK_N) : n;
    int64_t room = B_BYTES / (ax_round_up(g->k, gemm->pair) * 4 / gemm->pair) / gemm->lanes * gemm->lanes;
    *keep = several && room >= ax_min(n, LEAST);
    return even_part(n, *keep ? ax_min(most, room) : most, gemm->lanes);
}

void ax_cpu_gemm_part(const ax_cpu_gemm *gemm, const ax_gemm_args *g, int64_t m0, int64_t m1, int64_t n0,
                      int64_t n1, char *scratch)
{
    if (m0 >= m1 || n0 >= n1) /* more threads than tiles */
        return;
    block t = {.gemm = gemm, .g = g, .a = scratch, .b = scratch + A_BYTES};
    t.sums = (float *)(void *)(scratch + A_BYTES + B_BYTES);
    int64_t kc = even_part(g->k, BLOCK_K, 2), mc = even_part(m1 - m0, BLOCK_M * gemm->pair / 2, gemm->rows);
    int64_t nc = columns(gemm, g, n1 - n0, g->c_dtype == AX_BF16 && kc < g->k, mc < m1 - m0, &t.keep);
    for (t.n0 = n0; t.n0 < n1; t.n0 += nc)
        for (t.m0 = m0; t.m0 < m1; t.m0 += mc)
            for (t.k0 = 0; t.k0 < g->k; t.k0 += kc) {
                t.m = ax_min(mc, m1 - t.m0);
                t.n = ax_min(nc, n1 - t.n0);
                t.k = ax_min(kc, g->k - t.k0);
                t.kept = t.keep && t.m0 > m0;
                bool more = t.k0 + t.k < g->k;
                t.next_k0 = more ? t.k0 + t.k : 0;
                int64_t rest = t.m0 + t.m < m1 ? t.m0 + t.m : t.n0 + t.n < n1 ? m0 : g->m;
                t.next_m0 = more ? t.m0 : rest;
                run_block(&t);
            }
}

/* ---- threads ------------------------------------------------------------------------------------- */

typedef struct job {
    const ax_cpu *cpu;
    const ax_gemm_args *g;
    const ax_cpu_gemm *gemm; /* NULL: gemv */
    int threads_m;           /* of the grid of threads over c */
} job;

/* Part `part` of `parts` of 0 … total, cut at multiples of `unit`. */
static int64_t cut(int64_t total, int64_t unit, int part, int parts)
{
    return ax_min(total, ax_ceil_div(total, unit) * part / parts * unit);
}

static void body(void *arg, int part, int parts, char *scratch)
{
    const job *j = arg;
    const ax_gemm_args *g = j->g;
    if (!j->gemm) {
        int64_t lo = cut(g->n, 64, part, parts), hi = cut(g->n, 64, part + 1, parts);
        if (lo < hi)
            j->cpu->isa->gemv(g, lo, hi, scratch);
        return;
    }
    int tm = parts % j->threads_m ? 1 : j->threads_m, tn = parts / tm;
    int im = part / tn, in = part % tn;
    int64_t unit_n = (int64_t)j->gemm->lanes * j->gemm->vectors;
    ax_cpu_gemm_part(j->gemm, g, cut(g->m, j->gemm->rows, im, tm), cut(g->m, j->gemm->rows, im + 1, tm),
                     cut(g->n, unit_n, in, tn), cut(g->n, unit_n, in + 1, tn), scratch);
}

/* How many of `threads` share the rows, so that the largest rectangle is smallest, and then so that the
 * packing, in proportion to the rectangle's two sides, is least. */
static int threads_over_rows(const ax_gemm_args *g, const ax_cpu_gemm *gemm, int threads)
{
    int best = 1;
    double best_cost = 0;
    for (int tm = 1; tm <= threads; tm++) {
        if (threads % tm)
            continue;
        int64_t unit_n = (int64_t)gemm->lanes * gemm->vectors;
        double rows = (double)(ax_ceil_div(ax_ceil_div(g->m, gemm->rows), tm) * gemm->rows);
        double cols = (double)ax_min(g->n, ax_ceil_div(ax_ceil_div(g->n, unit_n), threads / tm) * unit_n);
        double cost = rows * cols + 16 * (rows + cols); /* packing an element takes as long as ~16 products */
        if (tm == 1 || cost < best_cost) {
            best = tm;
            best_cost = cost;
        }
    }
    return best;
}

static void clear(const ax_gemm_args *g)
{
    size_t size = ax_dtype_size(g->c_dtype);
    for (int64_t i = 0; i < g->m && g->n; i++)
        memset((char *)g->c + (size_t)(i * g->ldc) * size, 0, (size_t)g->n * size);
}

ax_status ax_cpu_gemm_run(ax_stream *stream, const void *args)
{
    const ax_gemm_args *g = args;
    const ax_cpu *cpu = ax_cpu_of(stream);
    if (g->dtype == AX_F64)
        return ax_backend_ref.kernel[AX_K_gemm](stream, args);
    if (g->k == 0 && !g->accumulate)
        clear(g);
    if (g->m == 0 || g->n == 0 || g->k == 0)
        return AX_OK;
    job j = {.cpu = cpu, .g = g};
    if (g->m > AX_CPU_GEMV_ROWS || g->trans_a)
        j.gemm = g->dtype == AX_BF16 ? cpu->isa->gemm_bf16 : cpu->isa->gemm_f32;
    double work = (double)g->m * (double)g->n * (double)g->k;
    int threads = work < 1e5 ? 1 : cpu->threads;
    j.threads_m = j.gemm ? threads_over_rows(g, j.gemm, threads) : 1;
    ax_cpu_parallel(cpu, threads, body, &j);
    return AX_OK;
}
