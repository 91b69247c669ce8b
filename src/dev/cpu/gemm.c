/* GEMM of the cpu backend: the blocking loops around the micro-tiles of gemm_kernels.h. A micro-tile, below
 * also called tile, is a part of c whose sums are in registers; a strip of a is the rows that it reads.
 *
 * Each thread computes a rectangle of c (or several) by itself, and packs the rows of a and columns of b that
 * it needs into its own scratch, so there are no barriers. The loops over a rectangle:
 *
 *     for blocks of columns of c, for stretches of rows of c
 *       for blocks in k
 *         for blocks of rows
 *           for panels of up to 48 columns: the panel of b is read from the L2 cache
 *             for strips of 4 to 32 rows: one micro-tile; with AVX-512, but not on AMX tiles, it prefetches
 *                                         the next micro-tile's strip of a into L1
 *
 * A stretch is a range of rows whose blocks share the packed panels of b: for each block in k, the first
 * block of rows packs the panels, and the other blocks of rows use them again. If a is contiguous in k and
 * its values need no conversion, its strips are read in place, and a block may have all rows of the stretch.
 * Otherwise a is packed as b is, in blocks that are small enough for the L2 cache.
 *
 * Packing is spread over the tiles to hide the latency of memory: the next block of a and the next panel of b
 * are prefetched, a few cache lines at a time, while a tile multiplies, and packed in pieces between two
 * tiles. AMX tiles (those with ax_cpu_gemm.store) multiply outside the vector units. For them the vector
 * units prefetch and pack between the steps in k of a tile, and also store the sums of the previous tile.
 *
 * An element of c is always computed by the same sequence of multiply-adds: k ascends, in blocks whose sizes
 * depend on k alone. So neither the tile of the element nor the number of threads changes its bits. GEMMs of
 * few rows, as for the generation of one token of several texts, read each element of b once and are bound by
 * memory. They do not pack b: 5 to 16 rows use few_kernels.h, with the same bits, fewer rows gemv_kernels.h,
 * which adds in another order. */
#include "dev/cpu/cpu.h"

#include <string.h>

enum {
    UNITS = 768,    /* largest number of 32-bit units in k of a block */
    STRETCH = 1024, /* largest number of rows of a stretch if c is 16-bit and its fp32 sums are kept from one
                       block in k to the next */
    PANEL_N = 48,   /* columns of the widest panel */
    PANEL_BYTES = PANEL_N * UNITS * 4
};
/* The parts of a thread's scratch: two buffers for packed blocks of a, the panels of b (at least two), and
 * the fp32 sums of a 16-bit c. */
enum { A_BYTES = 2 * AX_CPU_A_BLOCK, B_BYTES = 4 << 20, C_BYTES = 2 << 20 };
_Static_assert(A_BYTES + B_BYTES + C_BYTES <= AX_CPU_SCRATCH,
               "a thread's scratch is too small for its blocks");
_Static_assert(2 * PANEL_BYTES <= B_BYTES, "the part for panels of b is too small for two panels");

/* Returns the size of each part when `total` is cut into equal parts of at most `most`. The size is then
 * rounded up to a multiple of `unit`. */
static int64_t even_block(int64_t total, int64_t most, int64_t unit)
{
    int64_t parts = ax_ceil_div(total, most);
    return parts ? ax_round_up(ax_ceil_div(total, parts), unit) : unit;
}

static const char *operand(const void *base, size_t size, int64_t ld, bool along_k, int64_t row, int64_t k)
{
    return (const char *)base + (size_t)(along_k ? row * ld + k : k * ld + row) * size;
}

/* ---- packing in pieces --------------------------------------------------------------------------- */

/* The progress of packing a part of an operand into panels: `rows` rows of op(a), or columns of op(b), with
 * `k` values each. The part is packed in pieces of gemm->lanes 32-bit units in k (a unit is an fp32 value, or
 * a pair of bf16 values): as many as are transposed at once. Each piece is prefetched one step before it is
 * packed. */
typedef struct packing {
    const char *src;
    char *out;
    int64_t ld, size, rows, k;
    bool along_k;
    const ax_cpu_gemm *gemm;
    int width; /* width of the panels */
    ax_cpu_pack_fn *pack;
    int64_t pieces, steps; /* the pieces are packed evenly over `steps` calls of pack_step */
    int64_t rest; /* number of pieces that are due to be prefetched, multiplied by `steps`: a fraction of a
                     piece is carried from call to call */
    /* requested: how many pieces pack_step has told its caller to prefetch; packed: how many it has packed */
    int64_t requested, packed;
} packing;

/* Called once by each pack_step. Adds pieces / steps to the number of pieces that are due to be prefetched,
 * which p->rest holds multiplied by `steps`. Returns true if at least one whole piece is due, or if a piece
 * that was prefetched is not packed yet. */
static inline bool pack_is_due(packing *p)
{
    p->rest += p->pieces;
    return p->rest >= p->steps || p->packed < p->requested;
}

/* Packs the pieces that the previous call has requested, and sets *prefetch to the memory that the next call
 * will pack, for the caller to prefetch. Prefetching is by software, because rows are short and far apart and
 * the hardware prefetcher does not follow them. */
static void pack_step(packing *p, ax_cpu_prefetch *prefetch)
{
    prefetch->n = 0;
    if (!pack_is_due(p))
        return;
    int64_t granule = (int64_t)p->gemm->pair * p->gemm->lanes, k0 = p->packed * granule,
            k1 = ax_min(p->k, p->requested * granule);
    if (k0 < k1)
        p->pack(p->src + (p->along_k ? k0 : k0 * p->ld) * p->size, p->ld, p->along_k, p->rows, k1 - k0,
                p->width, ax_cpu_units(p->gemm, p->k), p->out + p->packed * p->gemm->lanes * p->width * 4);
    p->packed = p->requested;
    for (; p->rest >= p->steps; p->rest -= p->steps)
        p->requested = ax_min(p->requested + 1, p->pieces);
    k0 = k1;
    k1 = ax_min(p->k, p->requested * granule);
    if (k0 >= k1)
        return;
    const char *at = p->src + (p->along_k ? k0 : k0 * p->ld) * p->size;
    int64_t bytes = (p->along_k ? k1 - k0 : p->rows) * p->size;
    int64_t offset = (int64_t)((uintptr_t)at % AX_CPU_LINE);
    prefetch->at = at - offset;
    prefetch->stride = p->ld * p->size;
    prefetch->lines =
        ax_ceil_div(bytes + (prefetch->stride % AX_CPU_LINE ? AX_CPU_LINE - p->size : offset), AX_CPU_LINE);
    prefetch->n = (p->along_k ? p->rows : k1 - k0) * prefetch->lines;
    prefetch->line = 0;
}

/* Prefetches all of *prefetch at once. Must be inlined, because compilers remove calls of a function whose
 * only effect is on caches. */
static inline __attribute__((always_inline)) void prefetch_now(ax_cpu_prefetch prefetch)
{
    for (; prefetch.n > 0; prefetch.n -= prefetch.lines, prefetch.at += prefetch.stride)
        for (int64_t i = 0; i < prefetch.lines; i++)
            __builtin_prefetch(prefetch.at + i * AX_CPU_LINE, 0, 2);
}

/* Packs the pieces of an operand that calls of pack_step have not packed yet; all pieces if there were no
 * calls. */
static void pack_rest(packing *p)
{
    if (p->steps == 0)
        p->steps = p->pieces;
    for (ax_cpu_prefetch prefetch; p->packed < p->pieces; prefetch_now(prefetch))
        pack_step(p, &prefetch);
}

/* ---- blocks -------------------------------------------------------------------------------------- */

/* One step of the outer loops: rows m0 … m0+m-1 and columns n0 … n0+n-1 of c, for values k0 … k0+k-1 of k. */
typedef struct block {
    const ax_cpu_gemm *gemm;
    const ax_gemm_args *g;
    int64_t m0, m, n0, n, k0, k;
    int64_t s0;  /* the first row of the block's stretch */
    char *a, *b; /* memory for packed a and packed b */
    bool keep_b; /* the packed panels of b are kept for later blocks of rows of the same stretch */
    bool b_kept; /* the panels of b were packed by an earlier block of rows and are used again */
    float *sums; /* fp32 sums of c, for the stretch's rows and the block's n columns, used if c is 16-bit and
                    there are several blocks in k */
} block;

/* Returns true if c shall be written with non-temporal stores, which save reading each of its lines before
 * writing it. A GEMM in which a is transposed and b is not is assumed to compute the gradient of a weight,
 * which is mostly read at the end of the step. If c is read immediately nevertheless, reading it from memory
 * costs a few per cent of the GEMM's time, about as much as the stores save. A c smaller than SMALL stays in
 * the caches, so it is written with normal stores. */
static bool wants_non_temporal_c(const ax_gemm_args *g)
{
    enum { SMALL = 256 << 10 }; /* bytes */
    return g->trans_a && !g->trans_b && g->m * g->n * 4 >= SMALL;
}

/* Fills in *tile, the tile at the first rows and at column j of the block: where the tile stores its result
 * (in c, or in t->sums if c is 16-bit and this is not the last block in k), and which terms it adds to the
 * sums: `prior` (the sums over earlier blocks in k, or an fp32 c to accumulate into), the bias, and a 16-bit
 * c to accumulate into. */
static void set_destination(const block *t, int64_t j, ax_cpu_tile *tile)
{
    const ax_gemm_args *g = t->g;
    bool first = t->k0 == 0, last = t->k0 + t->k == g->k, narrow = g->c_dtype != AX_F32;
    size_t size = narrow ? 2 : 4;
    tile->c = (char *)g->c + (size_t)(t->m0 * g->ldc + t->n0 + j) * size;
    tile->c_ld = g->ldc;
    tile->c_type = last ? vtype_of(g->c_dtype) : VF32;
    tile->add_c = narrow && last && g->accumulate;
    tile->bias = last && g->bias ? (const float *)g->bias + t->n0 + j : NULL;
    if (!narrow) {
        tile->prior = !first || g->accumulate ? tile->c : NULL;
        tile->prior_ld = g->ldc;
        tile->non_temporal = last && !tile->prior && !tile->bias &&
                             wants_non_temporal_c(g) && /* last and !prior: k is a single block */
                             ((uintptr_t)tile->c | (uintptr_t)g->ldc * size) % AX_CPU_LINE == 0;
        return;
    }
    float *sums = t->sums + (t->m0 - t->s0) * t->n + j;
    tile->prior = first ? NULL : sums;
    tile->prior_ld = t->n;
    if (!last) {
        tile->c = sums;
        tile->c_ld = t->n;
    }
}

/* Returns true if tiles read a in place, without packing: its rows are contiguous in k, and its values are
 * already the 32-bit units that tiles read (fp32 values, or pairs of bf16). With AMX (grain > 1) a must also
 * have at least the rows of a micro-tile, because a tile reads memory before a strip that lacks rows. Without
 * AMX k must be a multiple of the number of values of a unit. */
static bool reads_a_unpacked(const ax_cpu_gemm *gemm, const ax_gemm_args *g, int64_t k)
{
    if (g->trans_a || gemm->pair * (int)ax_dtype_size(g->dtype) != 4)
        return false;
    return gemm->grain > 1 ? g->m >= gemm->rows : k % gemm->pair == 0;
}

static packing packing_of_a(const block *t)
{
    const ax_gemm_args *g = t->g;
    size_t size = ax_dtype_size(g->dtype);
    packing p = {.src = operand(g->a, size, g->lda, !g->trans_a, t->m0, t->k0), .out = t->a, .ld = g->lda};
    p.size = (int64_t)size, p.rows = t->m, p.k = t->k, p.along_k = !g->trans_a;
    p.gemm = t->gemm, p.width = t->gemm->rows, p.pack = t->gemm->pack_a;
    p.pieces =
        reads_a_unpacked(t->gemm, g, t->k) ? 0 : ax_ceil_div(p.k, (int64_t)t->gemm->pair * t->gemm->lanes);
    return p;
}

/* Sets *a to the first strip of matrix a (the rows of one micro-tile) in the block; the next strip is
 * `*stride` bytes further. `units` is the number of 32-bit units of each row of a packed panel of a. */
static void rows_of_a(const block *t, int64_t units, ax_cpu_rows *a, int64_t *stride)
{
    const ax_gemm_args *g = t->g;
    const ax_cpu_gemm *gemm = t->gemm;
    int64_t size = (int64_t)ax_dtype_size(g->dtype);
    bool unpacked = reads_a_unpacked(gemm, g, t->k);
    a->at = unpacked ? operand(g->a, (size_t)size, g->lda, true, t->m0, t->k0) : t->a;
    a->row = unpacked ? g->lda * size : gemm->grain * 4;
    a->unit = unpacked ? 4 : (int64_t)gemm->rows * 4;
    *stride = (unpacked ? a->row : units * 4) * gemm->rows;
}

/* A panel of b: columns j … j+cols-1 of the block, packed as `nv` vectors per 32-bit unit in k (an fp32
 * value, or a pair of bf16 values). */
typedef struct panel {
    int64_t j, cols;
    int nv;
    char *at; /* the packed values */
} panel;

/* Returns panel number `index` (packed columns of b) of the `panels` panels of the block. Panels have nearly
 * equal width: 64 columns are cut into 2 + 2 vectors of 16, not 3 + 1. Panels that are kept lie side by side
 * in memory; other panels use two buffers alternately. */
static panel panel_at(const block *t, int64_t index, int64_t panels)
{
    int64_t lanes = t->gemm->lanes, vectors = ax_ceil_div(t->n, lanes);
    int64_t j = vectors * index / panels * lanes, end = ax_min(t->n, vectors * (index + 1) / panels * lanes);
    char *at = t->b + (t->keep_b ? j * ax_cpu_units(t->gemm, t->k) * 4 : index % 2 * PANEL_BYTES);
    return (panel){j, end - j, (int)ax_ceil_div(end - j, lanes), at};
}

static packing packing_of_b(const block *t, const panel *to)
{
    const ax_gemm_args *g = t->g;
    size_t size = ax_dtype_size(g->dtype);
    packing p = {.src = operand(g->b, size, g->ldb, g->trans_b, t->n0 + to->j, t->k0), .out = to->at};
    p.ld = g->ldb, p.size = (int64_t)size, p.rows = to->cols, p.k = t->k, p.along_k = g->trans_b;
    p.gemm = t->gemm, p.width = to->nv * t->gemm->lanes, p.pack = t->gemm->pack_b;
    p.pieces = t->b_kept || !to->cols ? 0 : ax_ceil_div(p.k, (int64_t)t->gemm->pair * t->gemm->lanes);
    return p;
}

/* The pipeline of tiles if ax_cpu_gemm.store is not NULL: a tile leaves its sums in memory. The next tile,
 * while it multiplies, adds the prior, bias and c (ax_cpu_tile) of the first tile to these sums and stores
 * the result. The struct holds the last two tiles, and the packing that is done between their steps in k. */
typedef struct tile_pipeline {
    ax_cpu_step_hook hook; /* must be first: pack_between_steps casts its address to tile_pipeline */
    const ax_cpu_gemm *gemm;
    packing *a;          /* packs a for the next block */
    packing b;           /* packs b for the next panel */
    int newest;          /* index in `tile` of the tile that was multiplied last */
    ax_cpu_tile tile[2]; /* tile[i].rows is 0 if the tile has left no sums to store */
    _Alignas(64) float sums[2][AX_CPU_TILE_SUMS];
} tile_pipeline;

/* Number of steps in k from one call of pack_between_steps to the next. A call takes a tenth of the time of a
 * step. */
enum { STEPS_PER_CALL = 4 };

static void pack_between_steps(ax_cpu_step_hook *m)
{
    tile_pipeline *w = (tile_pipeline *)m;
    pack_step(w->a, &m->prefetch[0]);
    pack_step(&w->b, &m->prefetch[1]);
    for (int i = 0; i < 2; i++)
        m->lines_per_step[i] = ax_ceil_div(m->prefetch[i].n, STEPS_PER_CALL);
    m->steps = STEPS_PER_CALL;
}

/* Multiplies one tile. Unless the tile can store its sums unchanged (ax_cpu_is_plain_store), it leaves them
 * in w->sums, and the next tile stores them. */
static void run_tile(tile_pipeline *w, int nv, int64_t k, const ax_cpu_rows *a, const void *b,
                     const ax_cpu_tile *tile)
{
    const ax_cpu_gemm *gemm = w->gemm;
    const ax_cpu_tile *previous = &w->tile[w->newest];
    w->newest = !w->newest;
    ax_cpu_tile *now = &w->tile[w->newest];
    *now = *tile;
    if (!ax_cpu_is_plain_store(
            now, gemm->rows, nv,
            gemm->lanes)) /* sums of rows that the strip lacks (gemm->rows - a->n) come first in w->sums */
        now->sums = w->sums[w->newest] + (gemm->rows - a->n) * nv * gemm->lanes;
    now->previous = previous->rows ? previous : NULL;
    now->prefetch_c = true;
    if (w->a->packed < w->a->pieces || w->b.packed < w->b.pieces)
        now->hook = &w->hook;
    gemm->tile(nv, k, a, b, now);
    if (!now->sums)
        now->rows = 0;
}

/* Returns over how many calls of pack_step packing can be spread while `tiles` tiles are multiplied. */
static int64_t packing_steps(const ax_cpu_gemm *gemm, int64_t units, int64_t tiles)
{
    return gemm->store ? ax_max(1, tiles * (units / gemm->grain) / STEPS_PER_CALL) : tiles;
}

/* Runs all tiles of a block. Between the tiles, or with AMX between their steps in k, packs the next panel of
 * b, and the rows of a for the next block (next_a). `next_strip`: the first strip of a of the next block,
 * which the last tile prefetches (not with AMX); NULL if there is no next block.
 *
 * The fields of `tile` that are the same for all tiles of a panel are written once per panel. If they were
 * written for each tile, copying `tile` would stall: a load that spans several recent stores cannot be
 * forwarded from the store buffer, but waits until these stores, and those of the previous tile's sums, have
 * reached the cache. */
static void run_block(const block *t, packing *next_a, const void *next_strip, tile_pipeline *w)
{
    const ax_cpu_gemm *gemm = t->gemm;
    int64_t units = ax_cpu_units(gemm, t->k), strips = ax_ceil_div(t->m, gemm->rows);
    int64_t panels = ax_ceil_div(t->n, (int64_t)gemm->lanes * gemm->vectors);
    bool unpacked = reads_a_unpacked(gemm, t->g, t->k);
    panel p = panel_at(t, 0, panels);
    w->a = next_a;
    w->b = packing_of_b(t, &p);
    pack_rest(&w->b);
    next_a->steps = packing_steps(gemm, units, strips * panels);
    ax_cpu_tile tile = {0};
    for (int64_t i = 0; i < panels; i++) {
        panel next = i + 1 < panels ? panel_at(t, i + 1, panels) : (panel){0};
        w->b = packing_of_b(t, &next);
        w->b.steps = packing_steps(gemm, units, strips);
        ax_cpu_rows a = {0};
        int64_t a_stride;
        rows_of_a(t, units, &a, &a_stride);
        const void *first_strip = a.at;
        set_destination(t, p.j, &tile);
        tile.cols = p.cols;
        int64_t c_stride = gemm->rows * tile.c_ld * vsize(tile.c_type),
                prior_stride = gemm->rows * tile.prior_ld;
        for (int64_t left = t->m; left > 0; left -= gemm->rows) {
            bool last = left <= gemm->rows;
            tile.rows = ax_min(gemm->rows, left);
            a.n = unpacked ? tile.rows : gemm->rows;
            if (gemm->store)
                run_tile(w, p.nv, t->k, &a, p.at, &tile);
            else {
                a.next = !last ? (const char *)a.at + a_stride : next.cols ? first_strip : next_strip;
                pack_step(next_a, &tile.prefetch[0]);
                pack_step(&w->b, &tile.prefetch[1]);
                gemm->tile(p.nv, t->k, &a, p.at, &tile);
            }
            a.at = (const char *)a.at + a_stride;
            tile.c = (char *)tile.c + c_stride;
            tile.prior = tile.prior ? tile.prior + prior_stride : NULL;
        }
        pack_rest(&w->b);
        p = next;
    }
    pack_rest(next_a);
}

/* ---- the loops ----------------------------------------------------------------------------------- */

/* The rectangle of c that a thread computes, the sizes of its blocks, and its buffers. */
typedef struct blocking {
    int64_t m0, m1, n0, n1;
    int64_t nc, ms, kc, mc; /* largest sizes: nc: columns of a block; ms: rows of a stretch; kc: values of k
                               in a block; mc: rows of a block */
    char *a[2], *b;
    float *sums;
} blocking;

int64_t ax_cpu_gemm_block(const ax_cpu_gemm *gemm, int64_t k)
{
    return even_block(k, (int64_t)UNITS * gemm->pair, ax_max(2, gemm->grain * gemm->pair));
}

static blocking choose_blocking(const ax_cpu_gemm *gemm, const ax_gemm_args *g, int64_t m, int64_t n)
{
    blocking c = {.kc = ax_cpu_gemm_block(gemm, g->k)};
    int64_t unit_bytes = ax_cpu_units(gemm, c.kc) * 4;
    bool sums = g->c_dtype != AX_F32 && c.kc < g->k;
    int64_t block_bytes = reads_a_unpacked(gemm, g, g->k) ? gemm->a_unpacked : gemm->a_packed;
    c.ms = sums ? even_block(m, STRETCH, gemm->rows) : m;
    int64_t most = B_BYTES / unit_bytes;
    if (sums)
        most = ax_min(most, C_BYTES / (c.ms * 4));
    int64_t widest = (int64_t)gemm->lanes * gemm->vectors;
    c.nc = even_block(n, most / widest * widest, widest);
    c.mc =
        even_block(c.ms, ax_max(gemm->rows, block_bytes / unit_bytes / gemm->rows * gemm->rows), gemm->rows);
    return c;
}

/* Returns the block that begins at column n0, row m0 and value k0 of k, in the stretch that begins at row
 * s0. `like` is any block of the same GEMM. `turn` (0 or 1) selects the block's buffer for packed a. */
static block block_at(const blocking *c, const block *like, int64_t n0, int64_t s0, int64_t k0, int64_t m0,
                      int turn)
{
    block t = {.gemm = like->gemm, .g = like->g, .n0 = n0, .s0 = s0, .k0 = k0, .m0 = m0};
    int64_t s1 = ax_min(s0 + c->ms, c->m1);
    t.m = ax_min(c->mc, s1 - m0);
    t.n = ax_min(c->nc, c->n1 - n0);
    t.k = ax_min(c->kc, t.g->k - k0);
    t.keep_b = s0 + c->mc < s1;
    t.b_kept = m0 > s0;
    t.a = c->a[turn];
    t.b = c->b;
    t.sums = c->sums;
    return t;
}

/* Sets *t to the block that follows it. Returns false if *t was the last block. */
static bool next_block(const blocking *c, block *t)
{
    int64_t n0 = t->n0, s0 = t->s0, k0 = t->k0, m0 = t->m0 + t->m;
    if (m0 == ax_min(s0 + c->ms, c->m1)) {
        k0 += t->k;
        if (k0 == t->g->k) {
            k0 = 0;
            s0 = m0;
        }
        if (s0 == c->m1) {
            s0 = c->m0;
            n0 += t->n;
        }
        m0 = s0;
    }
    if (n0 == c->n1)
        return false;
    *t = block_at(c, t, n0, s0, k0, m0, t->a == c->a[0]);
    return true;
}

void ax_cpu_gemm_part(const ax_cpu_gemm *gemm, const ax_gemm_args *g, int64_t m0, int64_t m1, int64_t n0,
                      int64_t n1, char *scratch)
{
    if (m0 >= m1 || n0 >= n1) /* c has fewer tiles than parts: this part is empty */
        return;
    blocking c = choose_blocking(gemm, g, m1 - m0, n1 - n0);
    c.m0 = m0, c.m1 = m1, c.n0 = n0, c.n1 = n1;
    c.a[0] = scratch, c.a[1] = scratch + A_BYTES / 2;
    c.b = scratch + A_BYTES;
    c.sums = (float *)(void *)(c.b + B_BYTES);
    block t = block_at(&c, &(block){.gemm = gemm, .g = g}, n0, m0, 0, m0, 0), next = t;
    packing a = packing_of_a(&t);
    pack_rest(&a);
    ax_cpu_begin(gemm);
    tile_pipeline w;
    w.hook = (ax_cpu_step_hook){.steps = STEPS_PER_CALL, .call = pack_between_steps};
    w.gemm = gemm;
    w.newest = 0;
    w.tile[0].rows = 0;
    for (bool more = true; more; t = next) {
        more = next_block(&c, &next);
        a = more ? packing_of_a(&next) : (packing){0};
        ax_cpu_rows strip = {0};
        int64_t stride;
        if (more)
            rows_of_a(&next, 0, &strip, &stride);
        run_block(&t, &a, strip.at, &w);
    }
    if (w.tile[w.newest].rows)
        gemm->store(&w.tile[w.newest]);
    ax_cpu_end(gemm);
}

/* ---- threads ------------------------------------------------------------------------------------- */

typedef struct job {
    const ax_cpu *cpu;
    const ax_gemm_args *g;
    ax_cpu_range_fn *columns; /* of few rows: computes columns of c; or NULL */
    const ax_cpu_gemm *gemm;  /* if columns is NULL */
    int threads_m;            /* number of parts into which the rows of c are cut */
} job;

/* Returns where part number `part` begins if 0 … total-1 is cut into `parts` parts at multiples of `unit`. */
static int64_t part_start(int64_t total, int64_t unit, int part, int parts)
{
    return ax_min(total, ax_ceil_div(total, unit) * part / parts * unit);
}

static void run_part(void *arg, int part, int parts, char *scratch)
{
    const job *j = arg;
    const ax_gemm_args *g = j->g;
    if (j->columns) {
        int64_t lo = part_start(g->n, 64, part, parts), hi = part_start(g->n, 64, part + 1, parts);
        if (lo < hi)
            j->columns(g, lo, hi, scratch);
        return;
    }
    int tm = parts % j->threads_m ? 1 : j->threads_m, tn = parts / tm;
    int im = part / tn, in = part % tn;
    int64_t unit_n = (int64_t)j->gemm->lanes * j->gemm->vectors;
    ax_cpu_gemm_part(j->gemm, g, part_start(g->m, j->gemm->rows, im, tm),
                     part_start(g->m, j->gemm->rows, im + 1, tm), part_start(g->n, unit_n, in, tn),
                     part_start(g->n, unit_n, in + 1, tn), scratch);
}

/* Returns threads_m, the number of parts into which the rows of c are cut; the columns are cut into threads /
 * threads_m parts. Chooses the number for which the largest of the resulting rectangles of c takes the least
 * work. The work of a rectangle is its multiply-adds, and the packing, which grows with the lengths of its
 * sides. */
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
        double packed = cols + (reads_a_unpacked(gemm, g, g->k) ? 0 : rows);
        double cost = rows * cols + gemm->pack_cost * packed;
        if (tm == 1 || cost < best_cost) {
            best = tm;
            best_cost = cost;
        }
    }
    return best;
}

/* Returns into how many parts a GEMM is cut for the threads. If cutting more finely costs nothing, each
 * thread gets several parts, so that a thread that the system preempts delays the other threads less. A GEMM
 * of few rows packs no weights, so its parts must only be long enough to read memory at full speed. Any
 * other GEMM gets several parts per thread only under three conditions. First, its rows are not cut
 * (threads_m is 1). Second, a is read in place: otherwise each part would pack a again. Third, each part has
 * many panels of b: a part packs its first panel before it multiplies, and that time is lost. */
static int count_parts(const job *j, int threads)
{
    enum { ELEMENTS = 1 << 20, PANELS = 8 }; /* a part has at least so many elements of b, or panels */
    enum { EACH = 8 };                       /* largest number of parts per thread */
    const ax_gemm_args *g = j->g;
    int64_t parts = 0;
    if (j->columns)
        parts = g->n * g->k / (threads * (int64_t)ELEMENTS);
    else if (j->threads_m == 1 && reads_a_unpacked(j->gemm, g, g->k))
        parts = g->n / (threads * PANELS * j->gemm->lanes * j->gemm->vectors);
    return threads == 1 ? 1 : threads * (int)ax_max(1, ax_min(parts, EACH));
}

static void clear_c(const ax_gemm_args *g)
{
    size_t size = ax_dtype_size(g->c_dtype);
    for (int64_t i = 0; i < g->m && g->n; i++)
        memset((char *)g->c + (size_t)(i * g->ldc) * size, 0, (size_t)g->n * size);
}

/* Returns true if gemm_few can compute a GEMM, with the same bits as tiles. */
static bool suits_few(const ax_gemm_args *g)
{
    return g->m <= AX_CPU_FEW_ROWS && g->k <= AX_CPU_FEW_K && g->trans_b && !g->trans_a && !g->accumulate;
}

/* Multiplies, without epilogue, sums of columns or F64. */
static void multiply(const ax_cpu *cpu, const ax_gemm_args *g, bool by_gemv)
{
    if (g->k == 0 && !g->accumulate)
        clear_c(g);
    if (g->m == 0 || g->n == 0 || g->k == 0)
        return;
    job j = {.cpu = cpu, .g = g, .gemm = cpu->isa->gemm[vtype_of(g->dtype)]};
    j.columns = by_gemv ? cpu->isa->gemv : suits_few(g) ? cpu->isa->gemm_few : NULL;
    double work = (double)g->m * (double)g->n * (double)g->k;
    int threads = work < 1e5 ? 1 : cpu->threads;
    j.threads_m = j.columns ? 1 : threads_over_rows(g, j.gemm, threads);
    ax_cpu_parallel(cpu, count_parts(&j, threads), run_part, &j);
}

static bool suits_gemv(int64_t rows, bool trans_a) { return rows <= AX_CPU_GEMV_ROWS && !trans_a; }

ax_status ax_cpu_gemm_run(ax_stream *stream, const void *args)
{
    const ax_gemm_args *g = args;
    if (g->epilogue || g->col_sums)
        return ax_gemm_in_two(stream, g, stream->dev->ops.kernel);
    if (g->dtype == AX_F64 || (g->k == 0 && g->bias))
        return ax_backend_ref.kernel[AX_K_gemm](stream, args);
    multiply(ax_cpu_of(stream), g, suits_gemv(g->m, g->trans_a));
    return AX_OK;
}

/* The groups one after the other, each by all threads. Whether gemv multiplies depends on the rows of all
 * groups: so the bits of a row do not depend on how many rows its group has. */
ax_status ax_cpu_gemm_grouped_run(ax_stream *stream, const void *args)
{
    const ax_gemm_grouped_args *a = args;
    if (a->dtype == AX_F64)
        return ax_backend_ref.kernel[AX_K_gemm_grouped](stream, args);
    for (int64_t i = 0; i < a->groups; i++) {
        const ax_gemm_args g = ax_gemm_of_group(a, i);
        multiply(ax_cpu_of(stream), &g, suits_gemv(a->m, a->trans_a));
    }
    return AX_OK;
}
