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
 * widened to fp32, as fp16 always is. If there are few queries (ax_cpu_few_queries), a work item is one head,
 * and attend_query reads keys and values in place: all, or those that the query has chosen. With many
 * queries, keys that are not chosen are hidden like those that a query does not see.
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

/* ---- few queries --------------------------------------------------------------------------------- */

/* HEADS_AT_ONCE: the largest number of heads that are computed together. A row of k or v has all heads of a
 * position side by side, so these heads read one contiguous range of the row. */
enum { HEADS_AT_ONCE = 16 };

/* The state of one head for one query. */
typedef struct query_head {
    attend t;   /* scores, o, m, l, and what softmax_rows needs */
    float *q;   /* the query in fp32 */
    int64_t kv; /* offset in k and v, in elements, of the head's row of the first key of the block, or, if
                   keys are listed, of key 0 */
} query_head;

/* LISTED_AHEAD: how many keys ahead rows of listed keys are prefetched. */
enum { LISTED_AHEAD = 128 };

/* Returns the row of key j of a block: the keys in `list`, or, if that is NULL, adjacent ones. */
INLINE int64_t row_of(const int32_t *list, int64_t j) { return list ? list[j] : j; }

/* Prefetches the rows of keys j0 … j1-1 of a block. */
INLINE void prefetch_keys(const head_rows *x, const int32_t *list, int64_t j0, int64_t j1)
{
    if (!list) {
        prefetch_rows(x, j0 + ROWS_AHEAD, j1 + ROWS_AHEAD);
        return;
    }
    for (int64_t j = j0 + LISTED_AHEAD; j < ax_min(j1 + LISTED_AHEAD, x->n); j++)
        for (int64_t byte = 0; byte < x->bytes; byte += LINE)
            __builtin_prefetch(x->at + list[j] * x->stride + byte, 0, 2);
}

/* Computes s[j] = q·k_j for the W keys from key j0 of the block on. The block has `keys` keys; past the last
 * one, its score is repeated. `whole`: true if d is a multiple of W, a compile-time constant. */
INLINE void query_scores(const query_head *h, const int32_t *list, int64_t j0, int64_t keys, int64_t ld,
                         bool whole)
{
    int64_t d = h->t.d, at[W];
    vf dot[W];
    for (int j = 0; j < W; j++) {
        at[j] = h->kv + row_of(list, ax_min(j0 + j, keys - 1)) * ld;
        dot[j] = vset(0);
    }
    for (int64_t c = 0; c < d; c += W) {
        vf q = vload(h->q + c);
        UNROLL
        for (int j = 0; j < W; j++)
            dot[j] = vfma(q, vget(h->t.a->k, at[j] + c, whole ? W : d - c, h->t.type), dot[j]);
    }
    vstore(h->t.s + j0, vsum_each(dot, W));
}

/* Adds Σ s[j]·v_j, over keys j0 … j1-1 of the block with their softmax weights s[j], to `vectors` vectors of
 * o, from column c on. `whole`: true if d is a multiple of W, a compile-time constant. */
INLINE void query_columns(const query_head *h, const int32_t *list, int64_t j0, int64_t j1, int64_t ld,
                          bool whole, int64_t c, int vectors)
{
    int64_t cols = whole ? INT64_MAX : h->t.d - c;
    vf sum[4];
    UNROLL
    for (int v = 0; v < vectors; v++)
        sum[v] = vload(h->t.o + c + v * W);
    for (int64_t j = j0; j < j1; j++) {
        vf weight = vset(h->t.s[j]);
        const int64_t at = h->kv + row_of(list, j) * ld + c;
        UNROLL
        for (int v = 0; v < vectors; v++)
            sum[v] = vfma(weight, vget(h->t.a->v, at + v * W, cols - v * W, h->t.type), sum[v]);
    }
    UNROLL
    for (int v = 0; v < vectors; v++)
        vstore(h->t.o + c + v * W, sum[v]);
}

INLINE void query_values(const query_head *h, const int32_t *list, int64_t j0, int64_t j1, int64_t ld,
                         bool whole)
{
    int64_t c = 0;
    for (; c + 3 * W < h->t.d; c += 4 * W)
        query_columns(h, list, j0, j1, ld, whole, c, 4);
    for (; c < h->t.d; c += W)
        query_columns(h, list, j0, j1, ld, whole, c, 1);
}

/* Computes attention over one block of `keys` keys for n adjacent heads: adjacent keys, or those in `list`.
 * `there`: number of keys from the first of this block on, later blocks included; no row after them is
 * prefetched. */
INLINE void attend_keys(query_head *h, int n, const int32_t *list, int64_t keys, int64_t there, int64_t ld,
                        bool whole)
{
    const ax_attention_args *a = h->t.a;
    int64_t size = vsize(h->t.type), bytes = (h[n - 1].kv + h->t.d - h->kv) * size;
    head_rows k = {(const char *)a->k + h->kv * size, ld * size, bytes, there}, v = k;
    v.at = (const char *)a->v + h->kv * size;
    for (int64_t j = 0; j < keys; j += W) {
        prefetch_keys(&k, list, j, j + W);
        for (int r = 0; r < n; r++)
            query_scores(&h[r], list, j, keys, ld, whole);
    }
    for (int r = 0; r < n; r++)
        softmax_rows(&h[r].t, 0, 0, 1, 0, ax_round_up(keys, W), false);
    for (int64_t j = 0; j < keys; j += W) {
        prefetch_keys(&v, list, j, j + W);
        for (int r = 0; r < n; r++)
            query_values(&h[r], list, j, ax_min(j + W, keys), ld, whole);
    }
}

/* Lists the keys lo … hi-1 that a query has chosen. Returns their number. */
INLINE int64_t list_chosen(const uint64_t *chosen, int64_t lo, int64_t hi, int32_t *list)
{
    int64_t n = 0;
    for (int64_t w = lo / 64; w < ax_ceil_div(hi, 64); w++) {
        uint64_t bits = chosen[w];
        if (w == lo / 64)
            bits &= ~UINT64_C(0) << lo % 64;
        if (w == hi / 64)
            bits &= ~(~UINT64_C(0) << hi % 64);
        for (; bits; bits &= bits - 1)
            list[n++] = (int32_t)(w * 64 + __builtin_ctzll(bits));
    }
    return n;
}

/* Computes attention over all blocks of the keys lo … hi-1 for n adjacent heads, which have chosen the same
 * keys if there is a choice. */
INLINE void attend_blocks(query_head *h, int n, int64_t lo, int64_t hi, char *scratch, bool whole)
{
    const ax_attention_args *a = h->t.a;
    const uint64_t *chosen = ax_attention_chosen(a, h->t.b * a->q_len + h->t.q0, h->t.h);
    int32_t *list = (int32_t *)(void *)scratch;
    const int64_t first = chosen ? 0 : lo, end = !chosen   ? hi
                                                 : lo < hi ? list_chosen(chosen, lo, hi, list)
                                                           : 0;
    for (int64_t j0 = first; j0 < end; j0 += BLOCK_KEYS) {
        const int64_t keys = ax_min(BLOCK_KEYS, end - j0);
        for (int r = 0; r < n; r++) {
            h[r].t.j0 = j0;
            h[r].t.listed = chosen ? keys : 0;
            h[r].kv = key_row(a, h[r].t.b, h[r].t.h, chosen ? 0 : j0);
        }
        if (chosen)
            attend_keys(h, n, list + j0, keys, end - j0, a->kv_ld, whole);
        else
            attend_keys(h, n, NULL, keys, end - j0, a->kv_ld, whole);
    }
}

/* Computes attention of query i of sequence b for n heads from head `first` on. The function is bound by
 * reading k and v from memory, and reads them in place. */
INLINE void attend_query(const ax_attention_args *a, int64_t b, int64_t first, int n, int64_t i,
                         char *scratch, vtype type)
{
    int64_t d = a->head_dim, row = ax_round_up(d, W), lo;
    query_head h[HEADS_AT_ONCE];
    float m[HEADS_AT_ONCE], l[HEADS_AT_ONCE] = {0};
    for (int r = 0; r < n; r++) {
        m[r] = -FLT_MAX;
        h[r].t = (attend){.a = a, .b = b, .q0 = i, .type = type, .d = d, .h = first + r, .rows = 1};
        h[r].t.m = &m[r], h[r].t.l = &l[r];
        h[r].t.o = scratch_alloc(&scratch, row * 4), h[r].t.s = scratch_alloc(&scratch, BLOCK_LD * 4);
        h[r].q = scratch_alloc(&scratch, row * 4);
        memset(h[r].t.o, 0, (size_t)row * 4);
        for (int64_t c = 0; c < d; c += W)
            vstore(h[r].q + c, vget(a->q, (b * a->q_len + i) * a->q_ld + (first + r) * d + c, d - c, type));
    }
    int64_t end = visible(&h->t, 0, &lo);
    if (d % W)
        attend_blocks(h, n, lo, end, scratch, false);
    else
        attend_blocks(h, n, lo, end, scratch, true);
    for (int r = 0; r < n; r++)
        attend_store(&h[r].t);
}

/* Computes attention of all queries for heads lo … hi-1, where heads are counted over all sequences of the
 * batch. */
INLINE void attend_queries(const ax_attention_args *a, int64_t lo, int64_t hi, char *scratch, vtype type)
{
    const int64_t together = a->chosen ? a->heads / a->choosers : a->heads;
    for (int64_t item = lo, n; item < hi; item += n) {
        int64_t h = item % a->heads;
        n = ax_min(ax_min(hi - item, together - h % together), HEADS_AT_ONCE);
        for (int64_t i = 0; i < a->q_len; i++)
            attend_query(a, item / a->heads, h, (int)n, i, scratch, type);
    }
}

INLINE void attend_range(const ax_attention_args *a, int64_t lo, int64_t hi, char *scratch, vtype type)
{
    if (ax_cpu_few_queries(a))
        attend_queries(a, lo, hi, scratch, type);
    else
        for (int64_t item = lo; item < hi; item++)
            attend_item(a, item, item + 1 < hi ? item + 1 : item, scratch, type);
}

static void attention(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_attention_args *a = args;
    ax_cpu_begin(gemm_of(vtype_of(a->dtype)));
    BY_VTYPE(attend_range, a->dtype, a, lo, hi, scratch);
    ax_cpu_end(gemm_of(vtype_of(a->dtype)));
}

#endif
