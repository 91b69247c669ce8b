/* Gradients of attention. Read attention_kernels.h first.
 *
 * A work item is one key/value head of one sequence, so that no other thread adds to the head's dk and dv.
 * The outer loop is over blocks of keys. The inner loops are over the query heads that use the key head (its
 * group) and over blocks of queries. For each pair of blocks, with do = dout, the gradient of o, and with
 * delta, which is the sum of do ∘ o over d for each query:
 *
 *     p  = 2^((q·kT·scale - lse)·log2e)      dp = do·vT      ds = p ∘ (dp - delta)·scale
 *     dv += pT·do      dk += dsT·q           dq += ds·k
 *
 * With dropout, dp is multiplied by dropout's factors, and so is p in the formula of dv. p in the formula of
 * ds is not.
 *
 * p and ds are computed in registers from a strip of scores, and stored as the matmuls read them, in 32-bit
 * units: an fp32 value, or a pair of bf16 values. For dv and dk a pair holds two neighbouring queries, for dq
 * two neighbouring keys. fp32 units are the same for dv, dk and dq. AMX reads left operands only if they are
 * contiguous along the inner dimension of the product. So with AMX (transposes_sums) p and ds are right
 * operands instead: dvT += doT·p, dkT += qT·ds.
 *
 * dk and dv of a block of keys are complete after its iteration of the outer loop. dq is summed over the
 * blocks of keys: in place if it is fp32, else in scratch. If scratch does not hold dq for all queries of all
 * heads of the group, dq is computed in a second pass of the same loops, for as many queries at a time as
 * fit. */
#ifndef AX_DEV_CPU_ATTENTION_GRAD_KERNELS_H
#define AX_DEV_CPU_ATTENTION_GRAD_KERNELS_H

#include "attention_kernels.h"

/* GRAD_LD: stride of rows of scores, p and ds, in elements. It is a power of two plus a cache line, so that
 * the elements of a column fall into many sets of the cache. */
enum { GRAD_QUERIES = 128, GRAD_KEYS = 256, GRAD_LD = GRAD_KEYS + 16 };

typedef struct attend_grad {
    attend of; /* state shared with forward: current blocks, q, packed k */
    const ax_attention_grad_args *g;
    bool make_dq, make_dkv; /* make_dq: the current pass computes dq; make_dkv: it computes dk and dv */
    /* "Units along X": a 32-bit unit is an fp32 value, or a pair of bf16 values that are neighbours in X. */
    float *v, *k_rows; /* packed in 32-bit units: v along d, k along keys */
    left dout;
    float *q_room, *dout_room; /* memory for packed q and dout (left_rows) */
    float *q_cols, *dout_cols; /* q and dout, packed in 32-bit units along queries: as panels, or with AMX
                                  (transposes_sums) as left operands */
    float *s, *dp;             /* a strip of scores, and of dp = do·vT; [rows of a micro-tile, GRAD_LD] */
    float *p, *ds;  /* softmax weights and gradients of scores, in units along queries (units_at) */
    float *ds_rows; /* ds in units along keys: bf16 [GRAD_QUERIES, GRAD_LD]; if units are fp32 values, the
                       same memory as ds */
    float *dk, *dv; /* sums for dk and dv of the current block of keys: [GRAD_KEYS, d], or with AMX
                       (transposes_sums) [d, GRAD_LD] */
    float *dq; /* address of the fp32 dq of query 0 of the current head; rows are dq_ld elements apart. If
                  memory holds the dq of later queries only, the address lies before this memory */
    int64_t dq_ld;
    head_rows next_rows[5]; /* rows of dout, o, q, k and v to prefetch for the next work item */
} attend_grad;

#ifdef AX_SIMD_BF16
/* Converts vectors a and b, which are W values of two rows, to bf16 and stores them interleaved, as W pairs,
 * to `pairs`. Unless row_a is NULL, also stores a to row_a and b to row_b. */
INLINE void put_pairs(vf a, vf b, float *pairs, uint16_t *row_a, uint16_t *row_b)
{
    static const uint16_t interleaved[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                             8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    vi both = (vi)_mm512_cvtne2ps_pbh(b, a);
    vstore(pairs, _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_loadu_si512(interleaved), both)));
    if (row_a) {
        _mm256_storeu_si256((__m256i *)(void *)row_a, _mm512_castsi512_si256(both));
        _mm256_storeu_si256((__m256i *)(void *)row_b, _mm512_extracti64x4_epi64(both, 1));
    }
}
#endif

/* Returns true if the transposed gradients dvT and dkT are computed instead of dv and dk, which AMX needs. */
INLINE bool transposes_sums(const attend_grad *t) { return t->of.gm->grain > 1; }

/* Returns the offset in p and ds, in 32-bit units (fp32 values, or pairs of bf16 values), of the unit that
 * holds queries i … i+pair-1 of the block for key c of the block. p and ds are [GRAD_QUERIES / pair,
 * GRAD_LD], or with AMX (transposes_sums) panels of keys. */
INLINE int64_t units_at(const attend_grad *t, int64_t i, int64_t c)
{
    const ax_cpu_gemm *gm = t->of.gm;
    int64_t u = i / gm->pair, wide = gm->vectors * W;
    return transposes_sums(t) ? c / wide * wide * (GRAD_QUERIES / gm->pair) + u * wide + c % wide
                              : u * GRAD_LD + c;
}

/* Stores p (softmax weights) and ds (gradients of scores) of queries i … i+n-1 of the block and the W keys
 * from key c on. Stores them in 32-bit units: fp32 values, or pairs of bf16 values of two neighbouring
 * queries. If units are pairs, also stores ds in pairs of neighbouring keys. */
INLINE void put_units_of_rows(const attend_grad *t, int64_t i, int n, int64_t c, const vf *p, const vf *ds)
{
#ifdef AX_SIMD_BF16
    if (t->of.pairs) {
        UNROLL
        for (int k = 0; k < n; k += 2) {
            int64_t at = units_at(t, i + k, c);
            uint16_t *rows = (uint16_t *)t->ds_rows + (i + k) * GRAD_LD + c;
            put_pairs(p[k], p[k + 1], t->p + at, NULL, NULL);
            put_pairs(ds[k], ds[k + 1], t->ds + at, rows, rows + GRAD_LD);
        }
        return;
    }
#endif
    UNROLL
    for (int k = 0; k < n; k++) {
        vstore(t->p + (i + k) * GRAD_LD + c, p[k]);
        vstore(t->ds + (i + k) * GRAD_LD + c, ds[k]);
    }
}

/* Computes and stores p (softmax weights) and ds (gradients of scores) of AT_ONCE rows (queries) in columns
 * (keys) c0 … c1-1. The rows are r, r+1, … of the strip of queries that begins at query i of the block.
 * `drops`: true if there is dropout, a compile-time constant. */
INLINE void grad_rows(const attend_grad *t, int64_t i, int64_t r, int64_t c0, int64_t c1, bool drops)
{
    enum { N = ROWS_AT_ONCE };
    const attend *f = &t->of;
    const float *s = t->s + r * GRAD_LD, *slopes = t->dp + r * GRAD_LD;
    vf scale2 = vset((float)(t->g->scale * LOG2E)), scale = vset((float)t->g->scale), lse[N], delta[N];
    span see[N], all;
    for (int k = 0; k < N; k++) {
        int64_t row = (f->b * t->g->heads + f->h) * t->g->q_len + f->q0 + i + r + k;
        see[k] = seen_columns(f, i + r + k);
        bool any = see[k].lo < see[k].hi;
        lse[k] = vset(any ? (float)(((const float *)t->g->lse)[row] * -LOG2E) : 0);
        delta[k] = vset(any ? -((const float *)t->g->delta)[row] * (float)t->g->scale : 0);
    }
    all = seen_by_all(see, N);
    if (drops)
        dropout_rows(f, i + r, N, c0, c1);
    for (int64_t c = c0; c < c1; c += W) {
        vf p[N], ds[N];
        UNROLL
        for (int k = 0; k < N; k++)
            p[k] = vfma(vload(s + k * GRAD_LD + c), scale2, lse[k]);
        vexp2_each(p, N, f->type != VF32);
        UNROLL
        for (int k = 0; k < N; k++) {
            vf slope = vload(slopes + k * GRAD_LD + c), weight = p[k];
            if (drops) {
                vf keep = vload(f->kept + k * BLOCK_LD + c);
                slope = slope * keep;
                p[k] = weight * keep;
            }
            ds[k] = weight * vfma(slope, scale, delta[k]);
            if (c < all.lo || c + W > all.hi) {
                p[k] = mask_columns(p[k], c, see[k].lo, see[k].hi, 0);
                ds[k] = mask_columns(ds[k], c, see[k].lo, see[k].hi, 0);
            }
        }
        put_units_of_rows(t, i + r, N, c, p, ds);
    }
}

/* Computes p (softmax weights) and ds (gradients of scores) of the strip of queries that begins at query i of
 * the block, in the columns (keys) that some query of the strip sees. The other columns are set to 0, up to
 * the last column that the causal mask alone allows. The columns after that one are not read. */
INLINE void grad_strip(const attend_grad *t, int64_t i)
{
    const attend *f = &t->of;
    const ax_cpu_gemm *gm = f->gm;
    int64_t du = f->d_units, step = key_step(gm), keys = ax_round_up(f->keys, W);
    int64_t rows = ax_min(gm->rows, f->rows - i);
    int64_t lo, hi = visible_block(f, i, rows, &lo);
    if (lo < hi) {
        strip_times_panels(gm, strip_of(&f->q, i), f->k, keys, lo, hi, du, 0, du, rows, t->s, GRAD_LD, false);
        strip_times_panels(gm, strip_of(&t->dout, i), t->v, keys, lo, hi, du, 0, du, rows, t->dp, GRAD_LD,
                           false);
    }
    if (transposes_sums(t)) /* the matmul reads whole strips of gm->rows rows */
        rows = gm->rows;
    int64_t end = ax_round_up(ax_max(0, ax_min(f->q0 + i + rows - f->j0, f->keys)), step);
    int64_t c0 = lo < hi ? lo / step * step : end, c1 = lo < hi ? ax_round_up(hi, step) : end;
    for (int64_t r = 0; r < rows; r += ROWS_AT_ONCE)
        if (f->kept)
            grad_rows(t, i, r, c0, c1, true);
        else
            grad_rows(t, i, r, c0, c1, false);
    for (int64_t r = 0; r < rows; r += gm->pair)
        for (int64_t c = 0; c < end; c += W)
            if (c < c0 || c >= c1) {
                vstore(t->p + units_at(t, i + r, c), vset(0));
                vstore(t->ds + units_at(t, i + r, c), vset(0));
            }
}

/* Returns the end (exclusive), counted from the block's first query, of the block's queries whose window
 * contains key j of the block of keys. The result is an upper bound, because documents may hide the key from
 * some of these queries. */
INLINE int64_t queries_seeing(const attend_grad *t, int64_t j)
{
    const attend *f = &t->of;
    int64_t end = ax_attention_end_query(t->g->window, f->j0 + j, f->q0 + f->rows) - f->q0;
    return ax_max(end, 0);
}

/* Adds doT·p to dvT (gradient of values) and qT·ds to dkT (gradient of keys), both transposed. */
INLINE void grad_add_transposed(const attend_grad *t)
{
    const attend *f = &t->of;
    const ax_cpu_gemm *gm = f->gm;
    int64_t units = ax_cpu_units(gm, f->rows), wide = gm->vectors * W, step = gm->grain * gm->pair;
    for (int which = 0; which < 2; which++) {
        const float *lhs = which ? t->q_cols : t->dout_cols, *rhs = which ? t->ds : t->p;
        for (int64_t j = 0; j < f->keys; j += wide) {
            int64_t query = ax_max(f->j0 + j - f->q0, 0) / step * step, first = query / gm->pair;
            int64_t last = ax_cpu_units(gm, queries_seeing(t, j + wide - 1));
            for (int64_t i = 0; i < f->d && first < last; i += gm->rows) {
                float *sums = (which ? t->dk : t->dv) + i * GRAD_LD + j;
                ax_cpu_rows a = {lhs + i * units + first * gm->rows, NULL, gm->grain * 4, gm->rows * 4,
                                 gm->rows};
                ax_cpu_tile tile = {.c = sums, .c_ld = GRAD_LD, .prior = sums, .prior_ld = GRAD_LD};
                tile.rows = ax_min(gm->rows, f->d - i);
                tile.cols = wide;
                gm->tile(gm->vectors, (last - first) * gm->pair, &a, rhs + units_at(t, query, j), &tile);
            }
        }
    }
}

/* Adds pT·do to dv (gradient of values) and dsT·q to dk (gradient of keys). For each strip of keys (the rows
 * of one micro-tile), uses only queries that see at least one key of the strip, given the causal mask and the
 * window. */
INLINE void grad_add_dkv(const attend_grad *t)
{
    const attend *f = &t->of;
    int64_t d = f->d, pair = f->gm->pair, units = (f->rows + pair - 1) / pair;
    for (int which = 0; which < 2; which++)
        for (int64_t j = 0; j < f->keys; j += f->gm->rows) {
            int64_t first = ax_max(f->j0 + j - f->q0, 0) / pair, rows = ax_min(f->gm->rows, f->keys - j);
            int64_t last = (queries_seeing(t, j + rows - 1) + pair - 1) / pair;
            ax_cpu_rows a = {(which ? t->ds : t->p) + first * GRAD_LD + j, NULL, 4, GRAD_LD * 4, rows};
            if (first < last)
                strip_times_panels(f->gm, a, which ? t->q_cols : t->dout_cols, d, 0, d, units, first, last,
                                   rows, (which ? t->dk : t->dv) + j * d, d, true);
        }
}

/* Adds ds·k to dq, the gradient of queries. */
INLINE void grad_add_dq(const attend_grad *t)
{
    const attend *f = &t->of;
    const ax_cpu_gemm *gm = f->gm;
    int64_t d = f->d, grain = gm->grain, units = ax_cpu_units(gm, f->keys), row = GRAD_LD * 4 / gm->pair;
    for (int64_t i = 0; i < f->rows; i += gm->rows) {
        int64_t rows = ax_min(gm->rows, f->rows - i), lo, hi = visible_block(f, i, rows, &lo);
        int64_t first = lo / gm->pair / grain * grain, last = ax_cpu_units(gm, hi);
        ax_cpu_rows a = {(const char *)t->ds_rows + i * row + first * 4, NULL, row, 4, gm->rows};
        if (lo < hi)
            strip_times_panels(gm, a, t->k_rows, d, 0, d, units, first, last, rows,
                               t->dq + (f->q0 + i) * t->dq_ld, t->dq_ld, true);
    }
}

/* Returns the offset in elements of query i, of the current sequence and head, in q and dq. */
INLINE int64_t query_offset(const attend_grad *t, int64_t i)
{
    return (t->of.b * t->g->q_len + i) * t->g->q_ld + t->of.h * t->of.d;
}

/* Returns the offset in elements of query i, of the current sequence and head, in o and dout. */
INLINE int64_t output_offset(const attend_grad *t, int64_t i)
{
    return ((t->of.b * t->g->q_len + i) * t->g->heads + t->of.h) * t->of.d;
}

/* If the positions of the strip of queries at i lie in the current block of keys, prefetches the rows of dk
 * and dv at these positions, which will be written. In the last block of keys also prefetches the rows of dq
 * at these positions, and the rows that the next item reads first. */
INLINE void grad_prefetch(const attend_grad *t, int64_t i)
{
    const ax_attention_grad_args *g = t->g;
    const attend *f = &t->of;
    int64_t size = vsize(f->type), row = f->d * size, r = f->q0 + i - f->j0;
    if (r < 0 || r >= f->keys)
        return;
    int64_t at = key_row(f->a, f->b, f->h, f->j0) * size;
    head_rows sums = {(const char *)g->dk + at, g->kv_ld * size, row, f->keys};
    prefetch_rows(&sums, r, r + f->gm->rows);
    sums.at = (const char *)g->dv + at;
    prefetch_rows(&sums, r, r + f->gm->rows);
    if (f->j0 + f->keys < g->q_len)
        return;
    head_rows dq = {(const char *)g->dq + query_offset(t, f->j0) * size, g->q_ld * size, row, f->keys};
    prefetch_rows(&dq, r, r + f->gm->rows);
    for (int n = 0; n < 5; n++)
        prefetch_rows(&t->next_rows[n], r, r + f->gm->rows);
}

/* Adds the contributions of the current block of queries and the current block of keys to dk and dv if
 * t->make_dkv, and to dq if t->make_dq. */
INLINE void grad_block(const attend_grad *t)
{
    for (int64_t i = 0; i < t->of.rows; i += t->of.gm->rows) {
        grad_strip(t, i);
        grad_prefetch(t, i);
    }
    if (t->make_dkv && transposes_sums(t))
        grad_add_transposed(t);
    else if (t->make_dkv)
        grad_add_dkv(t);
    if (t->make_dq)
        grad_add_dq(t);
}

/* Adds the contributions of the current block of keys and of queries q_from … q_to-1 to the gradients that
 * grad_block computes, for `heads` heads from f->h on. t->dq points to dq of the first of these heads; the
 * next head's dq begins `dq_head` elements later. */
INLINE void grad_queries(attend_grad *t, int64_t heads, int64_t q_from, int64_t q_to, int64_t dq_head)
{
    const ax_attention_grad_args *g = t->g;
    attend *f = &t->of;
    int64_t d = f->d, size = vsize(f->type), h0 = f->h, q_ld = g->q_ld, ld = g->heads * d;
    float *dq = t->dq;
    const int64_t end = ax_attention_end_query(g->window, f->j0 + f->keys - 1, q_to);
    for (f->h = h0; f->h < h0 + heads; f->h++, t->dq += dq_head)
        for (f->q0 = ax_max(q_from, f->j0 / GRAD_QUERIES * GRAD_QUERIES); f->q0 < end;
             f->q0 += GRAD_QUERIES) {
            f->rows = ax_min(GRAD_QUERIES, q_to - f->q0);
            int64_t lo, hi = visible_block(f, 0, f->rows, &lo);
            if (lo >= hi)
                continue;
            const char *q = (const char *)g->q + query_offset(t, f->q0) * size,
                       *dout = (const char *)g->dout + output_offset(t, f->q0) * size;
            f->q = left_rows(f->gm, q, size, q_ld, f->rows, d, t->q_room);
            t->dout = left_rows(f->gm, dout, size, ld, f->rows, d, t->dout_room);
            if (t->make_dkv && transposes_sums(t)) {
                f->gm->pack_a(q, q_ld, false, d, f->rows, 0, ax_cpu_units(f->gm, f->rows), t->q_cols);
                f->gm->pack_a(dout, ld, false, d, f->rows, 0, ax_cpu_units(f->gm, f->rows), t->dout_cols);
            } else if (t->make_dkv) {
                pack_panels(f->gm, q, size, q_ld, false, d, f->rows, t->q_cols);
                pack_panels(f->gm, dout, size, ld, false, d, f->rows, t->dout_cols);
            }
            grad_block(t);
        }
    f->h = h0;
    t->dq = dq;
}

INLINE void grad_keys(attend_grad *t, int64_t j0)
{
    const ax_attention_grad_args *g = t->g;
    attend *f = &t->of;
    int64_t d = f->d, size = vsize(f->type), ld = g->kv_ld;
    f->j0 = j0;
    f->keys = ax_min(GRAD_KEYS, g->q_len - j0);
    int64_t at = key_row(f->a, f->b, f->h, j0);
    pack_panels(f->gm, (const char *)g->k + at * size, size, ld, true, f->keys, d, f->k);
    pack_panels(f->gm, (const char *)g->v + at * size, size, ld, true, f->keys, d, t->v);
    if (t->make_dq)
        pack_panels(f->gm, (const char *)g->k + at * size, size, ld, false, d, f->keys, t->k_rows);
}

/* Converts `rows` rows of fp32 sums to `type` and stores them to the array `to`, from element `at` on. */
INLINE void grad_store(void *to, int64_t at, int64_t to_ld, const float *from, int64_t rows, int64_t d,
                       vtype type)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < d; c += W)
            vput(to, at + r * to_ld + c, d - c, type, vget(from, r * d + c, d - c, VF32));
}

/* Converts `rows` rows of fp32 sums to `type` and stores them to the array `to`, from element `at` on. The
 * sums are transposed: `from` is [d, GRAD_LD], with one column for each row of `to`. */
INLINE void grad_store_transposed(void *to, int64_t at, int64_t to_ld, const float *from, int64_t rows,
                                  int64_t d, vtype type)
{
    for (int64_t r = 0; r < rows; r += W)
        for (int64_t c = 0; c < d; c += W) {
            vf block[W];
            UNROLL
            for (int i = 0; i < W; i++)
                block[i] = c + i < d ? vload(from + (c + i) * GRAD_LD + r) : vset(0);
            vtranspose(block);
            for (int i = 0; i < W && r + i < rows; i++)
                vput(to, at + (r + i) * to_ld + c, d - c, type, block[i]);
        }
}

/* Stores the sums dk and dv of the current block of keys. */
INLINE void grad_store_dkv(const attend_grad *t)
{
    const attend *f = &t->of;
    const float *sums[] = {t->dk, t->dv};
    void *to[] = {t->g->dk, t->g->dv};
    int64_t at = key_row(f->a, f->b, f->h, f->j0), ld = t->g->kv_ld;
    for (int i = 0; i < 2; i++)
        if (transposes_sums(t))
            grad_store_transposed(to[i], at, ld, sums[i], f->keys, f->d, f->type);
        else
            grad_store(to[i], at, ld, sums[i], f->keys, f->d, f->type);
}

/* Computes the gradients that grad_block computes, for one block of GRAD_KEYS keys after the other, of
 * queries q_from … q_to-1 of `heads` heads from f->h on. `dq_head` as in grad_queries. */
INLINE void grad_pass(attend_grad *t, int64_t heads, int64_t q_from, int64_t q_to, int64_t dq_head)
{
    const ax_attention_grad_args *g = t->g;
    attend *f = &t->of;
    int64_t first = ax_attention_first_key(NULL, 0, g->window, q_from);
    for (int64_t j0 = first / GRAD_KEYS * GRAD_KEYS; j0 < q_to; j0 += GRAD_KEYS) {
        grad_keys(t, j0);
        size_t sums = (size_t)((transposes_sums(t) ? GRAD_LD : f->keys) * f->d) * 4;
        if (t->make_dkv) {
            memset(t->dk, 0, sums);
            memset(t->dv, 0, sums);
        }
        grad_queries(t, heads, q_from, q_to, dq_head);
        if (t->make_dkv)
            grad_store_dkv(t);
    }
}

/* Computes delta, the sum of do ∘ o over d for each query, for the query heads that share the key head, and
 * sets an fp32 dq to 0. Prefetches the rows of dout and o, which the hardware prefetcher does not follow. */
INLINE void grad_start(const attend_grad *t)
{
    const ax_attention_grad_args *g = t->g;
    int64_t d = t->of.d, group = g->heads / g->kv_heads;
    vtype type = t->of.type;
    for (int64_t h = t->of.h; h < t->of.h + group; h++) {
        int64_t first = (t->of.b * g->q_len * g->heads + h) * d, size = vsize(type);
        head_rows o = {(const char *)g->o + first * size, g->heads * d * size, d * size, g->q_len}, dout = o;
        dout.at = (const char *)g->dout + first * size;
        for (int64_t i = 0; i < g->q_len; i++) {
            int64_t at = first + i * g->heads * d;
            vf sum = vset(0);
            prefetch_rows(&o, i + ROWS_AHEAD, i + ROWS_AHEAD + 1);
            prefetch_rows(&dout, i + ROWS_AHEAD, i + ROWS_AHEAD + 1);
            for (int64_t c = 0; c < d; c += W)
                sum = vfma(vget(g->dout, at + c, d - c, type), vget(g->o, at + c, d - c, type), sum);
            ((float *)g->delta)[(t->of.b * g->heads + h) * g->q_len + i] = vsum(sum);
            at = (t->of.b * g->q_len + i) * g->q_ld + h * d;
            if (type == VF32)
                memset((float *)g->dq + at, 0, (size_t)d * 4);
        }
    }
}

/* Sets t->next_rows to the first rows of dout, o, q, k and v that work item `item` reads. */
INLINE void grad_rows_of_item(attend_grad *t, int64_t item)
{
    const ax_attention_grad_args *g = t->g;
    int64_t size = vsize(t->of.type), row = t->of.d * size, n = ax_min(g->q_len, GRAD_KEYS);
    int64_t batch = item / g->kv_heads * g->q_len, head = item % g->kv_heads,
            h = head * (g->heads / g->kv_heads);
    const struct {
        const void *of;
        int64_t ld, head;
    } arrays[] = {{g->dout, g->heads * t->of.d, h},
                  {g->o, g->heads * t->of.d, h},
                  {g->q, g->q_ld, h},
                  {g->k, g->kv_ld, head},
                  {g->v, g->kv_ld, head}};
    for (int i = 0; i < 5; i++)
        t->next_rows[i] =
            (head_rows){(const char *)arrays[i].of + batch * arrays[i].ld * size + arrays[i].head * row,
                        arrays[i].ld * size, row, n};
}

/* Computes dk and dv, and dq, whose sums are in g->dq if it is fp32, else in `room` for `fit` queries. The
 * first pass computes all three, if the sums fit. If not, it computes dk and dv, and each further pass dq of
 * one head and as many queries as fit. A loop, not two calls: the compiler inlines all of a pass into this
 * place. */
INLINE void grad_passes(attend_grad *t, float *room, int64_t fit)
{
    const ax_attention_grad_args *g = t->g;
    attend *f = &t->of;
    const bool in_place = f->type == VF32;
    const int64_t group = g->heads / g->kv_heads, d = f->d, h0 = f->h;
    const bool one = in_place || group * g->q_len <= fit;
    int64_t most = one ? g->q_len : fit / GRAD_QUERIES * GRAD_QUERIES, parts = (g->q_len + most - 1) / most;
    for (int64_t pass = one ? 0 : -1; pass < (one ? 1 : group * parts); pass++) {
        bool whole = one || pass < 0;
        int64_t heads = whole ? group : 1, from = whole ? 0 : pass % parts * most;
        int64_t to = whole ? g->q_len : ax_min(from + most, g->q_len);
        f->h = whole ? h0 : h0 + pass / parts;
        t->make_dkv = whole;
        t->make_dq = one || pass >= 0;
        bool sums = t->make_dq && !in_place;
        t->dq = in_place ? (float *)g->dq + query_offset(t, 0) : room - from * d;
        t->dq_ld = in_place ? g->q_ld : d;
        if (sums)
            memset(room, 0, (size_t)(heads * (to - from) * d) * 4);
        grad_pass(t, heads, from, to, in_place ? d : g->q_len * d);
        for (int64_t h = 0; sums && h < heads; h++, f->h++)
            grad_store(g->dq, query_offset(t, from), g->q_ld, room + h * g->q_len * d, to - from, d, f->type);
    }
}

INLINE void grad_item(const ax_attention_grad_args *g, int64_t item, int64_t next, char *scratch, vtype type)
{
    int64_t d = g->head_dim, group = g->heads / g->kv_heads, wide = (d + W - 1) / W * W;
    ax_attention_args a = {.batch = g->batch, .q_len = g->q_len, .kv_len = g->q_len, .heads = g->heads};
    a.kv_heads = g->kv_heads, a.head_dim = d, a.scale = g->scale, a.doc_start = g->doc_start;
    a.q_ld = g->q_ld, a.kv_ld = g->kv_ld, a.window = g->window, a.drop = g->drop;
    attend_grad t = {.of = {.a = &a, .type = type, .d = d, .gm = gemm_of(type)}, .g = g};
    attend *f = &t.of;
    char *const start = scratch;
    f->pairs = f->gm->pair == 2;
    f->d_units = ax_cpu_units(f->gm, d);
    f->b = item / g->kv_heads;
    f->h = item % g->kv_heads * group;
    grad_rows_of_item(&t, next);
    float **const packed_keys[] = {&f->k, &t.v, &t.k_rows}, **const sums[] = {&t.dk, &t.dv};
    float **const packed_queries[] = {&t.q_room, &t.dout_room, &t.q_cols, &t.dout_cols};
    float **const strips[] = {&t.s, &t.dp}, **const scores[] = {&t.p, &t.ds};
    for (int i = 0; i < 3; i++)
        *packed_keys[i] = scratch_alloc(&scratch, GRAD_KEYS * wide * 4);
    for (int i = 0; i < 4; i++)
        *packed_queries[i] = scratch_alloc(&scratch, GRAD_QUERIES * wide * 4);
    for (int i = 0; i < 2; i++)
        *sums[i] = scratch_alloc(&scratch, GRAD_LD * d * 4);
    for (int i = 0; i < 2; i++)
        *strips[i] = scratch_alloc(&scratch, f->gm->rows * GRAD_LD * 4);
    for (int i = 0; i < 2; i++)
        *scores[i] = scratch_alloc(&scratch, GRAD_QUERIES / f->gm->pair * GRAD_LD * 4);
    if (g->drop.p > 0)
        f->kept = scratch_alloc(&scratch, AT_ONCE * BLOCK_LD * 4);
    t.ds_rows = f->pairs ? scratch_alloc(&scratch, GRAD_QUERIES * GRAD_LD * 2) : t.ds;
    grad_start(&t);
    grad_passes(&t, (float *)(void *)scratch, (AX_CPU_SCRATCH - (scratch - start)) / (ax_max(d, 1) * 4));
}

INLINE void grad_items(const ax_attention_grad_args *g, int64_t lo, int64_t hi, char *scratch, vtype type)
{
    for (int64_t item = lo; item < hi; item++)
        grad_item(g, item, item + 1 < hi ? item + 1 : item, scratch, type);
}

static void attention_grad(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_attention_grad_args *g = args;
    ax_cpu_begin(gemm_of(vtype_of(g->dtype)));
    BY_VTYPE(grad_items, g->dtype, g, lo, hi, scratch);
    ax_cpu_end(gemm_of(vtype_of(g->dtype)));
}

#endif
