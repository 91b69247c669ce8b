/* Causal attention in blocks: scores exist for one strip of queries (the rows of a micro-tile) by BLOCK_KEYS
 * keys at a time, never as a whole queries × keys matrix.
 *
 * A work item is up to QUERIES consecutive queries of one head. For each block of keys that any of them sees,
 * keys and values are packed once. Then, for each strip of queries:
 *
 *     s = q·kT                        tiles over the key panels that the strip sees
 *     m' = max(m, max s·scale·log2e)  online softmax (Milakov & Gimelshein 2018), with powers of 2
 *     p = 2^(s·scale·log2e - m')      stored in the form of a left operand of the product p·v
 *     l = l·2^(m - m') + Σ p
 *     o = o·2^(m - m') + p·v          tiles over d
 *
 * and at the end o/l and lse = (m + log2 l)·ln2. A strip and its p stay in the L1 cache, the packed block in
 * the L2 cache. Blocks of keys that no query of the item sees (causal mask, documents, window) are skipped.
 * For each strip, tiles of scores whose keys no query of the strip sees are skipped, and the sum p·v leaves
 * out such keys. Where only some queries of a strip see a key, the scores of the other queries are set to
 * -inf. If the processor can multiply pairs of bf16 values, bf16 is multiplied in pairs. Otherwise bf16 is
 * widened to fp32, as fp16 always is. Keys that a query has not chosen are hidden like those that it does not
 * see. If there are few queries, attention_few_kernels.h computes them.
 *
 * q is read in place where its values allow that (left_rows), because packing would wait for each row: the
 * rows of a head are q_ld elements apart, and the hardware prefetcher does not follow them. For the same
 * reason an item prefetches the rows of the next item while it multiplies. */
#ifndef AX_DEV_CPU_ATTENTION_KERNELS_H
#define AX_DEV_CPU_ATTENTION_KERNELS_H

#include <float.h>

#include "panel_kernels.h"
#include "random_kernels.h"

/* BLOCK_LD, the stride of rows of scores, is a power of two plus a cache line, so that the elements of a
 * column fall into many sets of the cache. */
enum { QUERIES = AX_CPU_ATTENTION_QUERIES, BLOCK_KEYS = 512, BLOCK_LD = BLOCK_KEYS + 16 };

/* ROWS_AT_ONCE: number of rows of scores whose exponentials are computed together, in registers. */
enum { ROWS_AT_ONCE = 4 };

/* The first block of keys of a work item starts at a multiple of BLOCK_START. */
enum { BLOCK_START = 32 };

/* Allocates `bytes` from scratch memory, in whole cache lines. */
INLINE void *scratch_alloc(char **scratch, int64_t bytes)
{
    void *p = *scratch;
    *scratch += (bytes + 63) / 64 * 64;
    return p;
}

static const float lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Replaces the lanes of x that are not in columns lo … hi-1 by `hidden`. Lane i is column c+i. */
INLINE vf mask_columns(vf x, int64_t c, int64_t lo, int64_t hi, float hidden)
{
    vf lane = vload(lane_numbers);
    x = vless(lane, vset((float)(lo - c)), vset(hidden), x);
    return vless(lane, vset((float)(hi - c)), x, vset(hidden));
}

/* Stores softmax weights at column c of `row` in the type that the matmul reads: fp32, or bf16 if `pairs`
 * (subnormals become 0). */
INLINE void store_weights(bool pairs, float *row, int64_t c, vf p)
{
#ifdef AX_SIMD_BF16
    if (pairs) {
        _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)row + c), (__m256i)_mm512_cvtneps_pbh(p));
        return;
    }
#endif
    (void)pairs;
    vstore(row + c, p);
}

#define LN2 0.693147180559945309

/* ---- forward ------------------------------------------------------------------------------------- */

/* The state of a work item: head `h` of sequence `b`, queries q0 … q0+rows-1, current block of keys j0 …
 * j0+keys-1. d is head_dim; d_units is how many 32-bit units a packed row of d values has. */
typedef struct attend {
    const ax_attention_args *a;
    const ax_cpu_gemm *gm;
    vtype type;
    bool pairs;
    int64_t b, h, q0, rows, j0, keys, d, d_units;
    int64_t listed; /* if above 0, the block has so many keys, which the query has chosen (few queries) */
    left q;
    float *k, *v; /* the block's keys and values, packed */
    float *o;     /* [QUERIES, d]: weighted sums of values; divided by l when they are stored */
    float *m, *l; /* per query: running maximum of s·scale·log2e (-FLT_MAX before the first key, so that
                  differences of maxima are numbers), and running sum of the weights */
    float *s;     /* scores of a strip of queries, then their softmax weights */
    float *kept;  /* [AT_ONCE, BLOCK_LD] dropout's factors for the queries that are computed at once; NULL: no
                     dropout */
    head_rows next_rows[3]; /* rows of q, k and v to prefetch for the next work item */
} attend;

/* Returns the end (exclusive) of the keys that query i of the work item sees, and sets *lo to the first of
 * them. */
INLINE int64_t visible(const attend *t, int64_t i, int64_t *lo)
{
    const ax_attention_args *a = t->a;
    int64_t at = t->q0 + i, position = ax_attention_offset(a, t->b) + at;
    *lo = ax_attention_first_key(a->doc_start, t->b * a->q_len + at, a->window, position);
    int64_t hi = position + 1;
    return hi < a->kv_len ? hi : a->kv_len;
}

/* Returns the end (exclusive) of the keys of the block that any of the queries i … i+n-1 sees, and sets *lo
 * to the first of them, both relative to j0. If *lo is not below the result, the queries see no key of the
 * block. */
INLINE int64_t visible_block(const attend *t, int64_t i, int64_t n, int64_t *lo)
{
    int64_t first = INT64_MAX, end = 0;
    for (int64_t r = i; r < i + n; r++) {
        int64_t l, h = visible(t, r, &l);
        if (l < h) {
            first = l < first ? l : first;
            end = h > end ? h : end;
        }
    }
    *lo = first > t->j0 ? first - t->j0 : 0;
    end -= t->j0;
    return end < t->keys ? end : t->keys;
}

/* Sets t->j0, which must be 0, to the first key that a query of the item sees, rounded down to a multiple of
 * BLOCK_START. Returns the end (exclusive) of the keys that the causal mask lets the item see. The memory of
 * keys after this end may be uninitialized. */
INLINE int64_t first_block(attend *t)
{
    int64_t lo;
    t->keys = ax_min(t->a->kv_len, ax_attention_offset(t->a, t->b) + t->q0 + t->rows);
    visible_block(t, 0, t->rows, &lo);
    t->j0 = lo / BLOCK_START * BLOCK_START;
    return t->keys;
}

/* Columns lo … hi-1 of the block of keys: column c is key t->j0 + c. seen_columns returns the columns that
 * query i of the work item sees, which may extend beyond the block; an empty range if there is no query i. */
typedef struct span {
    int64_t lo, hi;
} span;

INLINE span seen_columns(const attend *t, int64_t i)
{
    if (i >= t->rows)
        return (span){0, 0};
    if (t->listed)
        return (span){0, t->listed};
    int64_t lo, hi = visible(t, i, &lo);
    return (span){lo - t->j0, hi - t->j0};
}

/* Returns the columns that all n rows (queries) see. */
INLINE span seen_by_all(const span *rows, int n)
{
    span all = rows[0];
    for (int r = 1; r < n; r++)
        all = (span){ax_max(all.lo, rows[r].lo), ax_min(all.hi, rows[r].hi)};
    return all;
}

/* Computes dropout's factors (0 or 1/(1-p)) for n queries, from query i of the work item on, and columns c0 …
 * c1-1 of the block of keys. */
INLINE void dropout_rows(const attend *t, int64_t i, int n, int64_t c0, int64_t c1)
{
    const ax_attention_args *a = t->a;
    for (int k = 0; k < n; k++)
        dropout_factors(&a->drop, t->b * a->q_len + t->q0 + i + k, t->h, a->kv_len, t->j0 + c0, t->j0 + c1,
                        t->kept + k * BLOCK_LD + c0);
}

/* Sets the scores of n rows (queries) to -infinity in columns c0 … c1-1 that the row does not see. Row k, of
 * rows from s on, sees columns see[k]. */
INLINE void hide_scores(float *s, const span *see, int n, int64_t c0, int64_t c1)
{
    for (int64_t c = c0; c < c1; c += W)
        for (int k = 0; k < n; k++) {
            float *at = s + k * BLOCK_LD + c;
            vstore(at, mask_columns(vload(at), c, see[k].lo, see[k].hi, -INFINITY));
        }
}

/* Sets the scores of n rows (queries), from query i of the work item on, to -infinity in columns c0 … c1-1
 * whose keys the row has not chosen. */
INLINE void hide_others(const attend *t, float *s, int64_t i, int n, int64_t c0, int64_t c1)
{
    for (int k = 0; k < ax_min(n, t->rows - i); k++) {
        const uint64_t *bits = ax_attention_chosen(t->a, t->b * t->a->q_len + t->q0 + i + k, t->h);
        for (int64_t c = c0; c < ax_min(c1, t->a->kv_len - t->j0); c += W) {
            const int64_t j = t->j0 + c; /* a multiple of W, so the bits of W keys are in one word */
            float *at = s + k * BLOCK_LD + c;
            vstore(at, vbits((uint32_t)(bits[j / 64] >> j % 64), vload(at), vset(-INFINITY)));
        }
    }
}

/* Raises the running maxima m of n <= AT_ONCE rows (queries), from query i of the work item on, to those of
 * the vectors `most`, one per row, and rescales the sums o and l accordingly (online softmax). Sets base[k]
 * to minus the maximum of row k. */
INLINE void raise_maxima(const attend *t, int64_t i, int n, vf *most, vf scale, float *base)
{
    float shrinks[W];
    vf before = vload_n(t->m + i, n), now = vmax(vmax_each(most, n) * scale, before);
    vf shrink = vexp2(before - now, false);
    vstore_n(t->m + i, now, n);
    vstore_n(t->l + i, vload_n(t->l + i, n) * shrink, n);
    vstore(base, vset(0) - now);
    vstore(shrinks, shrink);
    for (int64_t k = 0; k < ax_min(n, t->rows - i); k++) {
        float *o = t->o + (i + k) * t->d;
        for (int64_t c = 0; c < t->d; c += W)
            vput(o, c, t->d - c, VF32, vget(o, c, t->d - c, VF32) * vset(shrinks[k]));
    }
}

/* Replaces the scores x of n <= ROWS_AT_ONCE rows (queries) from s on by softmax weights 2^(x·scale +
 * base[k]) in columns c0 … c1-1, with dropout's factors `kept` applied unless that is NULL. Adds the weights
 * of row k without dropout to the lanes of sum[k]. */
INLINE void weigh_rows(const attend *t, float *s, int n, int64_t c0, int64_t c1, vf scale, const float *base,
                       const float *kept, vf *sum)
{
    for (int64_t c = c0; c < c1; c += W) {
        vf p[ROWS_AT_ONCE];
        EACH(k, n) p[k] = vfma(vload(s + k * BLOCK_LD + c), scale, vset(base[k]));
        vexp2_each(p, n, t->type != VF32);
        EACH(k, n) sum[k] = sum[k] + p[k];
        if (kept)
            EACH(k, n) p[k] = p[k] * vload(kept + k * BLOCK_LD + c);
        EACH(k, n) store_weights(t->pairs, s + k * BLOCK_LD, c, p[k]);
    }
}

/* Replaces the scores of n <= AT_ONCE rows (queries) by softmax weights in columns c0 … c1-1 (multiples of
 * W), with dropout applied; by 0 in columns that a row does not see. The rows are r, r+1, … of the strip that
 * begins at query i of the work item. Updates o, m and l. `drops`: true if there is dropout, a compile-time
 * constant. */
INLINE void softmax_rows(const attend *t, int64_t i, int64_t r, int n, int64_t c0, int64_t c1, bool drops)
{
    float *s = t->s + r * BLOCK_LD, base[W];
    vf scale = vset((float)(t->a->scale * LOG2E)), most[AT_ONCE], sum[AT_ONCE];
    span see[AT_ONCE];
    for (int k = 0; k < n; k++) {
        see[k] = seen_columns(t, i + r + k);
        most[k] = vset(-INFINITY);
        sum[k] = vset(0);
    }
    span all = seen_by_all(see, n);
    hide_scores(s, see, n, c0, ax_min(c1, ax_round_up(all.lo, W)));
    hide_scores(s, see, n, ax_max(c0, all.hi / W * W), c1);
    if (t->a->chosen && !t->listed)
        hide_others(t, s, i + r, n, c0, c1);
    for (int64_t c = c0; c < c1; c += W) {
        UNROLL
        for (int k = 0; k < n; k++)
            most[k] = vmax(vload(s + k * BLOCK_LD + c), most[k]);
    }
    raise_maxima(t, i + r, n, most, scale, base);
    if (drops)
        dropout_rows(t, i + r, n, c0, c1);
    UNROLL
    for (int first = 0; first < n; first += ROWS_AT_ONCE)
        weigh_rows(t, s + first * BLOCK_LD, n < ROWS_AT_ONCE ? n : ROWS_AT_ONCE, c0, c1, scale, base + first,
                   drops ? t->kept + first * BLOCK_LD : NULL, sum + first);
    vstore_n(t->l + i + r, vload_n(t->l + i + r, n) + vsum_each(sum, n), n);
}

INLINE void attend_strip(const attend *t, int64_t i)
{
    const ax_cpu_gemm *gm = t->gm;
    int64_t rows = ax_min(gm->rows, t->rows - i), lo, hi = visible_block(t, i, rows, &lo);
    if (lo >= hi)
        return;
    strip_times_panels(gm, strip_of(&t->q, i), t->k, ax_round_up(t->keys, W), lo, hi, t->d_units, 0,
                       t->d_units, rows, t->s, BLOCK_LD, false);
    int64_t step = key_step(gm), c0 = lo / step * step, c1 = ax_round_up(hi, step);
    for (int64_t r = 0; r < rows; r += AT_ONCE)
        if (t->kept)
            softmax_rows(t, i, r, AT_ONCE, c0, c1, true);
        else
            softmax_rows(t, i, r, AT_ONCE, c0, c1, false);
    int64_t size = t->pairs ? 2 : 4, u0 = c0 / gm->pair;
    ax_cpu_rows weights = {(const char *)t->s + c0 * size, NULL, BLOCK_LD * 4, 4, gm->rows};
    strip_times_panels(gm, weights, t->v, t->d, 0, t->d, ax_cpu_units(gm, t->keys), u0,
                       u0 + ax_cpu_units(gm, hi - c0), rows, t->o + i * t->d, t->d, true);
}

INLINE void attend_store(const attend *t)
{
    const ax_attention_args *a = t->a;
    for (int64_t i = 0; i < t->rows; i++) {
        int64_t at = ((t->b * a->q_len + t->q0 + i) * a->heads + t->h) * t->d;
        vf inverse = vset(t->l[i] > 0 ? 1.0f / t->l[i] : 0.0f);
        for (int64_t c = 0; c < t->d; c += W)
            vput(a->o, at + c, t->d - c, t->type, vget(t->o, i * t->d + c, t->d - c, VF32) * inverse);
        if (a->lse)
            ((float *)a->lse)[(t->b * a->heads + t->h) * a->q_len + t->q0 + i] =
                (float)((t->m[i] + log2((double)t->l[i])) * LN2);
    }
}

/* Returns the offset in elements of row j of k or v of sequence `b`, for query head `h`. */
INLINE int64_t key_row(const ax_attention_args *a, int64_t b, int64_t h, int64_t j)
{
    return b * ax_attention_kv_batch(a) + j * a->kv_ld + h / (a->heads / a->kv_heads) * a->head_dim;
}

/* Sets t->b, t->h, t->q0 and t->rows to those of work item `item`. */
INLINE void set_item(attend *t, int64_t item)
{
    const ax_attention_args *a = t->a;
    int64_t blocks = (a->q_len + QUERIES - 1) / QUERIES;
    t->q0 = item % blocks * QUERIES;
    t->h = item / blocks % a->heads;
    t->b = item / blocks / a->heads;
    t->rows = ax_min(QUERIES, a->q_len - t->q0);
}

INLINE const char *query_row(const attend *t, int64_t size)
{
    const ax_attention_args *a = t->a;
    return (const char *)a->q + ((t->b * a->q_len + t->q0) * a->q_ld + t->h * t->d) * size;
}

/* Sets `out` to the rows to prefetch for the work item of t: its queries, and those of its keys and values
 * that the item before it, with earlier queries of the same head, does not use. */
INLINE void rows_of_item(const attend *t, int64_t size, head_rows out[3])
{
    const ax_attention_args *a = t->a;
    int64_t row = t->d * size, offset = ax_attention_offset(a, t->b),
            first = ax_min(a->kv_len, t->q0 ? ax_max(0, offset + t->q0) : 0),
            keys = ax_max(0, ax_min(a->kv_len, offset + t->q0 + t->rows) - first),
            at = key_row(a, t->b, t->h, first) * size;
    out[0] = (head_rows){query_row(t, size), a->q_ld * size, row, t->rows};
    out[1] = (head_rows){(const char *)a->k + at, a->kv_ld * size, row, keys};
    out[2] = (head_rows){(const char *)a->v + at, a->kv_ld * size, row, keys};
}

INLINE void attend_item(const ax_attention_args *a, int64_t item, int64_t next, char *scratch, vtype type)
{
    int64_t d = a->head_dim, size = vsize(type);
    attend t = {.a = a, .type = type, .d = d, .gm = gemm_of(type)};
    set_item(&t, next);
    rows_of_item(&t, size, t.next_rows);
    set_item(&t, item);
    t.pairs = t.gm->pair == 2;
    t.d_units = ax_cpu_units(t.gm, d);
    float *room = scratch_alloc(&scratch, QUERIES * t.d_units * 4);
    t.k = scratch_alloc(&scratch, BLOCK_KEYS * t.d_units * 4);
    t.v = scratch_alloc(&scratch, BLOCK_KEYS * ((d + W - 1) / W * W) * 4);
    t.o = scratch_alloc(&scratch, QUERIES * d * 4);
    t.s = scratch_alloc(&scratch, t.gm->rows * BLOCK_LD * 4);
    t.m = scratch_alloc(&scratch, QUERIES * 4);
    t.l = scratch_alloc(&scratch, QUERIES * 4);
    if (a->drop.p > 0)
        t.kept = scratch_alloc(&scratch, AT_ONCE * BLOCK_LD * 4);
    memset(t.o, 0, (size_t)(t.rows * d) * 4);
    for (int64_t i = 0; i < QUERIES; i++) {
        t.m[i] = -FLT_MAX;
        t.l[i] = 0;
    }
    t.q = left_rows(t.gm, query_row(&t, size), size, a->q_ld, t.rows, d, room);
    int64_t end = first_block(&t);
    const int64_t start = t.j0;
    for (; t.j0 < end; t.j0 += BLOCK_KEYS) {
        t.keys = ax_min(BLOCK_KEYS, end - t.j0);
        int64_t lo, hi = visible_block(&t, 0, t.rows, &lo);
        if (lo >= hi)
            continue;
        int64_t at = key_row(a, t.b, t.h, t.j0), ld = a->kv_ld;
        pack_panels(t.gm, (const char *)a->k + at * size, size, ld, true, t.keys, d, t.k);
        pack_panels(t.gm, (const char *)a->v + at * size, size, ld, false, d, t.keys, t.v);
        for (int64_t i = 0; i < t.rows; i += t.gm->rows) {
            attend_strip(&t, i);
            for (int n = 0; n < 3 && t.j0 == start; n++)
                prefetch_rows(&t.next_rows[n], i, i + t.gm->rows);
        }
    }
    attend_store(&t);
}

#endif
