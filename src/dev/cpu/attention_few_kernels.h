/* Attention of few queries (ax_cpu_few_queries), as in generation. It is bound by reading keys and values,
 * which are read in place, all or those that the query has chosen, and once for all query heads that share
 * them. Queries are computed one by one, some adjacent heads together.
 *
 * If the processor can multiply pairs of bf16 values, bf16 is multiplied in pairs: along the head for scores,
 * along the keys for weights, which are rounded to bf16, and values. Otherwise 16-bit rows that several heads
 * share are widened to fp32 once for all of them; a result has the same bits with and without sharing.
 *
 * The hardware prefetcher does not follow the rows of a head. Rows are prefetched in the order of their use,
 * and the prefetches are spread over the multiply-adds: in a burst they would wait for one another. */
#ifndef AX_DEV_CPU_ATTENTION_FEW_KERNELS_H
#define AX_DEV_CPU_ATTENTION_FEW_KERNELS_H

#include "attention_kernels.h"
#include "gemv_kernels.h"

/* HEADS_AT_ONCE: the largest number of heads that are computed together. A row of k or v has all heads of a
 * position side by side, so these heads read one contiguous range of the row. */
enum { HEADS_AT_ONCE = 16 };

/* LISTED_AHEAD: how many keys ahead rows of listed keys are prefetched. */
enum { LISTED_AHEAD = 128 };

/* The state of one head for one query. */
typedef struct query_head {
    attend t;   /* scores, o, m, l, and what softmax_rows needs */
    float *q;   /* the query in fp32, or in pairs of bf16 */
    int64_t kv; /* offset in k and v, in elements, of the head's row of key 0 */
} query_head;

/* n adjacent heads of a query, and the keys that they read. */
typedef struct query_heads {
    const ax_attention_args *a;
    query_head *h;
    int n;
    const int32_t *list; /* the keys; NULL: keys `first` … first+keys-1 */
    int64_t first, keys;
    float *room; /* [W, d rounded up to W]: rows that heads share */
} query_heads;

/* Rows of W keys, or values, of one key head, and the rows to prefetch while these are used. `row`: the
 * address of each; those after the last are the last. */
typedef struct shared_rows {
    const char *row[W], *ahead[W];
    int aheads;
} shared_rows;

INLINE bool in_pairs(vtype type)
{
#ifdef AX_SIMD_BF16
    return type == VBF16;
#else
    (void)type;
    return false;
#endif
}

/* Returns the row of key number j in array x (k or v), for head h. */
INLINE const char *listed_row(const query_heads *s, const void *x, const query_head *h, int64_t j)
{
    const int64_t key = s->list ? s->list[j] : s->first + j;
    return (const char *)x + (h->kv + key * s->a->kv_ld) * vsize(h->t.type);
}

/* Finds the rows of keys, or values, j … j+W-1 of the block of keys start … end-1 for head h, and those to
 * prefetch: first the keys of a block are read, then its values, then the keys of the next block. */
INLINE void find_rows(const query_heads *s, const query_head *h, int64_t j, int64_t start, int64_t end,
                      bool values, shared_rows *out)
{
    const ax_attention_args *a = s->a;
    const int64_t distance = s->list ? LISTED_AHEAD : ROWS_AHEAD;
    const void *now = values ? a->v : a->k, *next = values ? a->k : a->v;
    out->aheads = 0;
    for (int i = 0; i < W; i++) {
        const int64_t at = j + i + distance, after = at - end + (values ? end : start);
        out->row[i] = listed_row(s, now, h, ax_min(j + i, end - 1));
        if (at < end)
            out->ahead[out->aheads++] = listed_row(s, now, h, at);
        else if (after < (values ? s->keys : end))
            out->ahead[out->aheads++] = listed_row(s, next, h, after);
    }
}

/* Prefetches one line, `byte` bytes from their beginning, of rows i, i+step, … of those ahead. */
INLINE void prefetch_ahead(const shared_rows *x, int i, int step, int64_t byte)
{
    for (; i < x->aheads; i += step)
        __builtin_prefetch(x->ahead[i] + byte, 0, 2);
}

/* Computes s[i] = q·k_i for the W keys of k, which have type `type` in memory and `read` where they are read.
 * The head is number i of `sharers`, each of which prefetches as many rows. `whole`: true if d is a multiple
 * of what a vector holds, a compile-time constant. */
INLINE void query_scores(const query_head *h, const shared_rows *k, int i, int sharers, vtype read,
                         bool whole, float *s)
{
    const bool pairs = in_pairs(read);
    const int64_t d = h->t.d, step = pairs ? 2 * W : W, size = vsize(h->t.type);
    vf dot[W];
    EACH(j, W) dot[j] = vset(0);
    for (int64_t c = 0; c < d; c += step) {
        const vf q = vload(h->q + c / (step / W));
        if (c * size % LINE == 0)
            prefetch_ahead(k, i, sharers, c * size);
        EACH(j, W)
        dot[j] = multiply_add(
            pairs, q, gemv_load(pairs, k->row[j] + c * vsize(read), 0, whole ? step : d - c, read), dot[j]);
    }
    vstore(s, vsum_each(dot, W));
}

/* Adds Σ w[j]·v_j to `vectors` vectors of o from column c on, over `keys` rows of v. w: softmax weights, in
 * pairs if the rows are those of pairs of values. */
INLINE void query_columns(const query_head *h, const shared_rows *v, const float *w, int64_t keys, int i,
                          int sharers, vtype read, bool pairs, bool whole, int64_t c, int vectors)
{
    const int64_t cols = whole ? INT64_MAX : h->t.d - c, size = vsize(h->t.type);
    vf sum[8];
    EACH(n, vectors) sum[n] = vload(h->t.o + c + n * W);
    for (int64_t j = 0; j < keys; j++) {
        const vf weight = vset(w[j]);
        if (j == i) {
            i += sharers;
            for (int64_t r = pairs ? 2 * j : j; r <= (pairs ? 2 * j + 1 : j) && r < v->aheads; r++)
                for (int64_t at = c * size; at < (c + vectors * W) * size; at += LINE)
                    __builtin_prefetch(v->ahead[r] + at, 0, 2);
        }
        EACH(n, vectors)
        sum[n] = multiply_add(pairs, weight, vget(v->row[j], c + n * W, cols - n * W, read), sum[n]);
    }
    EACH(n, vectors) vstore(h->t.o + c + n * W, sum[n]);
}

INLINE void query_values(const query_head *h, const shared_rows *v, const float *w, int64_t keys, int i,
                         int sharers, vtype read, bool pairs, bool whole)
{
    int64_t c = 0;
    for (; c + 7 * W < h->t.d; c += 8 * W)
        query_columns(h, v, w, keys, i, sharers, read, pairs, whole, c, 8);
    for (; c + 3 * W < h->t.d; c += 4 * W)
        query_columns(h, v, w, keys, i, sharers, read, pairs, whole, c, 4);
    for (; c < h->t.d; c += W)
        query_columns(h, v, w, keys, i, sharers, read, pairs, whole, c, 1);
}

/* Widens W rows to `room`, and makes them the rows that are read. */
INLINE void widen_rows(shared_rows *x, int64_t d, vtype type, bool whole, float *room)
{
    const int64_t ld = ax_round_up(d, W);
    for (int j = 0; j < W; j++) {
        for (int64_t c = 0; c < d; c += W)
            vstore(room + j * ld + c, vget(x->row[j], c, whole ? W : d - c, type));
        x->row[j] = (const char *)(room + j * ld);
    }
}

#ifdef AX_SIMD_BF16
/* Writes pairs of bf16, each of the same column of two adjacent rows, to `room`, and makes the rows of pairs
 * those that are read. x has `keys` rows; after an odd last one comes a row of zeros. */
INLINE void pair_rows(shared_rows *x, int64_t d, int64_t keys, float *room)
{
    const int64_t ld = ax_round_up(d, W);
    for (int64_t j = 0; j < keys; j += 2) {
        const uint16_t *a = (const void *)x->row[j], *b = j + 1 < keys ? (const void *)x->row[j + 1] : NULL;
        float *to = room + j / 2 * ld;
        int64_t c = 0;
        for (; b && c + 2 * W <= d; c += 2 * W)
            put_row_pairs(a + c, b + c, to + c);
        for (; c < d; c += W)
            vstore(to + c, pairs_of_rows(a + c, b ? b + c : NULL, d - c));
        x->row[j / 2] = (const char *)to;
    }
}
#endif

/* Returns how many of the heads from head r on, of those that are computed together, share a key head. */
INLINE int sharing(const query_heads *s, int r)
{
    const int64_t group = s->a->heads / s->a->kv_heads;
    return (int)ax_min(s->n - r, group - s->h[r].t.h % group);
}

/* Computes attention over the block of keys start … end-1. `whole`: true if d is a multiple of what a vector
 * holds, a compile-time constant. */
INLINE void attend_keys(const query_heads *s, int64_t start, int64_t end, vtype type, bool whole)
{
    const bool pairs = in_pairs(type), widens = type != VF32 && !pairs;
    const int64_t d = s->a->head_dim;
    shared_rows x;
    for (int64_t j = start; j < end; j += W)
        for (int r = 0, n; r < s->n; r += n) {
            n = sharing(s, r);
            find_rows(s, &s->h[r], j, start, end, false, &x);
            if (widens && n > 1) {
                widen_rows(&x, d, type, whole, s->room);
                for (int i = 0; i < n; i++)
                    query_scores(&s->h[r + i], &x, i, n, VF32, true, s->h[r + i].t.s + (j - start));
            } else
                for (int i = 0; i < n; i++)
                    query_scores(&s->h[r + i], &x, i, n, type, whole, s->h[r + i].t.s + (j - start));
        }
    for (int r = 0; r < s->n; r++)
        softmax_rows(&s->h[r].t, 0, 0, 1, 0, ax_round_up(end - start, W), false);
    for (int64_t j = start; j < end; j += W)
        for (int r = 0, n; r < s->n; r += n) {
            const int64_t keys = ax_min(W, end - j);
            n = sharing(s, r);
            find_rows(s, &s->h[r], j, start, end, true, &x);
#ifdef AX_SIMD_BF16
            if (pairs) {
                pair_rows(&x, d, keys, s->room);
                for (int i = 0; i < n; i++)
                    query_values(&s->h[r + i], &x, s->h[r + i].t.s + (j - start) / 2, (keys + 1) / 2, i, n,
                                 VF32, true, true);
                continue;
            }
#endif
            if (widens && n > 1) {
                widen_rows(&x, d, type, whole, s->room);
                for (int i = 0; i < n; i++)
                    query_values(&s->h[r + i], &x, s->h[r + i].t.s + (j - start), keys, i, n, VF32, false,
                                 true);
            } else
                for (int i = 0; i < n; i++)
                    query_values(&s->h[r + i], &x, s->h[r + i].t.s + (j - start), keys, i, n, type, false,
                                 whole);
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

INLINE void attend_blocks(const query_heads *s, vtype type, bool whole)
{
    for (int64_t start = 0; start < s->keys; start += BLOCK_KEYS) {
        const int64_t end = ax_min(start + BLOCK_KEYS, s->keys);
        for (int r = 0; r < s->n; r++) {
            s->h[r].t.j0 = s->first + start;
            s->h[r].t.listed = s->list ? end - start : 0;
        }
        attend_keys(s, start, end, type, whole);
    }
}

/* Sets up head `head` for query i of sequence b. m, l: its running maximum and sum. */
INLINE void start_head(query_head *h, const ax_attention_args *a, int64_t b, int64_t head, int64_t i,
                       vtype type, float *m, float *l, char **scratch)
{
    const int64_t d = a->head_dim, row = ax_round_up(d, W), at = (b * a->q_len + i) * a->q_ld + head * d;
    *m = -FLT_MAX, *l = 0;
    h->t = (attend){
        .a = a, .b = b, .q0 = i, .type = type, .pairs = in_pairs(type), .d = d, .h = head, .rows = 1};
    h->t.m = m, h->t.l = l;
    h->t.o = scratch_alloc(scratch, row * 4), h->t.s = scratch_alloc(scratch, BLOCK_LD * 4);
    h->q = scratch_alloc(scratch, row * 4);
    h->kv = key_row(a, b, head, 0);
    memset(h->t.o, 0, (size_t)row * 4);
    memset(h->q, 0, (size_t)row * 4);
    if (in_pairs(type))
        memcpy(h->q, (const uint16_t *)a->q + at, (size_t)d * 2);
    else
        for (int64_t c = 0; c < d; c += W)
            vstore(h->q + c, vget(a->q, at + c, d - c, type));
}

/* Computes attention of query i of sequence b for n heads from head `first` on, which have chosen the same
 * keys if there is a choice. */
INLINE void attend_query(const ax_attention_args *a, int64_t b, int64_t first, int n, int64_t i,
                         char *scratch, vtype type)
{
    const int64_t d = a->head_dim, step = in_pairs(type) ? 2 * W : W;
    const uint64_t *chosen = ax_attention_chosen(a, b * a->q_len + i, first);
    query_head h[HEADS_AT_ONCE];
    float m[HEADS_AT_ONCE], l[HEADS_AT_ONCE];
    query_heads s = {.a = a, .h = h, .n = n};
    for (int r = 0; r < n; r++)
        start_head(&h[r], a, b, first + r, i, type, &m[r], &l[r], &scratch);
    s.room = scratch_alloc(&scratch, W * ax_round_up(d, W) * 4);
    int32_t *list = (int32_t *)(void *)scratch;
    int64_t lo, hi = visible(&h->t, 0, &lo), piece = chosen ? AX_CPU_LISTED : hi;
    for (; lo < hi; lo += piece) {
        const int64_t end = ax_min(lo + piece, hi);
        s.first = chosen ? 0 : lo;
        s.keys = chosen ? list_chosen(chosen, lo, end, list) : end - lo;
        s.list = chosen ? list : NULL;
        if (d % step)
            attend_blocks(&s, type, false);
        else
            attend_blocks(&s, type, true);
    }
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
