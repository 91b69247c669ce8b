/* Gradients of attention. Read attention_kernels.h first.
 *
 * A work item is one key/value head of one batch, so that nobody else adds to its dk and dv. Blocks of keys
 * outside, query heads of the group and blocks of queries inside, for each pair of blocks:
 *
 *     p  = 2^((q·kT·scale - lse)·log2e)      dp = do·vT      ds = p ∘ (dp - delta)·scale
 *     dv += pT·do      dk += dsT·q           dq += ds·k
 *
 * dk and dv of a block of keys are complete when its loop ends. dq collects over the blocks of keys: in place
 * where it is fp32, else in scratch. Where that does not hold all queries of the group, dq is made in a
 * second pass of the same loops, over as many queries at a time as fit. */
#ifndef AX_DEV_CPU_ATTENTION_GRAD_KERNELS_H
#define AX_DEV_CPU_ATTENTION_GRAD_KERNELS_H

#include "attention_kernels.h"

enum { GRAD_QUERIES = 128, GRAD_KEYS = 192 };

typedef struct attend_grad {
    attend of; /* the forward's view: what is visible, blocks, packed k */
    const ax_attention_grad_args *g;
    bool make_dq, make_dkv;
    float *v, *k_rows;         /* packed: v with units along d, k with units along keys */
    float *q, *dout;           /* packed strips, units along d */
    float *q_cols, *dout_cols; /* packed panels, units along queries */
    float *p, *ds;             /* [GRAD_QUERIES, GRAD_KEYS], fp32 or bf16 pairs in place */
    float *turned;             /* p or ds packed as left operand */
    float *dk, *dv;            /* [GRAD_KEYS, d] */
    float *dq;                 /* of row 0 of the head in work; dq_ld between rows */
    int64_t dq_ld;
} attend_grad;

/* Row r of the block of queries: p and ds in columns c0 … c1-1, where only *lo … hi-1 are seen; 0 elsewhere.
 */
INLINE void grad_row(const attend_grad *t, int64_t i, int64_t c0, int64_t c1)
{
    const attend *f = &t->of;
    float *p = t->p + i * GRAD_KEYS, *ds = t->ds + i * GRAD_KEYS;
    int64_t lo, hi = visible(f, i, &lo), row = (f->b * t->g->heads + f->h) * t->g->q_len + f->q0 + i;
    lo = ax_max(lo - f->j0, c0);
    hi = ax_min(hi - f->j0, c1);
    memset(p, 0, (size_t)(ax_min(lo, GRAD_KEYS) / W * W) * sizeof *p);
    memset(ds, 0, (size_t)(ax_min(lo, GRAD_KEYS) / W * W) * sizeof *ds);
    vf lse = vset((float)(((const float *)t->g->lse)[row] * LOG2E)),
       delta = vset(((const float *)t->g->delta)[row]);
    vf scale2 = vset((float)(t->g->scale * LOG2E)), scale = vset((float)t->g->scale);
    int64_t c = lo / W * W;
    for (; c < hi; c += W) {
        vf weight = vexp2(vload(p + c) * scale2 - lse);
        vf slope = weight * (vload(ds + c) - delta) * scale;
        vstore(p + c, weight);
        vstore(ds + c, slope);
    }
    if (lo < hi) {
        for (int64_t e = lo / W * W; e < lo; e++)
            p[e] = ds[e] = 0;
        for (int64_t e = hi; e < c; e++)
            p[e] = ds[e] = 0;
    } else
        c = ax_min(lo, GRAD_KEYS) / W * W;
    memset(p + c, 0, (size_t)(GRAD_KEYS - c) * sizeof *p);
    memset(ds + c, 0, (size_t)(GRAD_KEYS - c) * sizeof *ds);
}

/* The block of queries in work (rows q0 … of head h) meets the block of keys in work. */
INLINE void grad_block(const attend_grad *t)
{
    const attend *f = &t->of;
    const ax_cpu_gemm *gm = f->gm, *turn = f->pairs ? gm : &gemm_f32;
    int64_t d = f->d, du = f->d_units, pair = gm->pair, size = f->pairs ? 2 : 4;
    int64_t ld = GRAD_KEYS * 4 / size, q_units = (f->rows + pair - 1) / pair,
            k_units = (f->keys + pair - 1) / pair;
    for (int64_t i = 0; i < f->rows; i += TILE_ROWS) {
        int64_t rows = ax_min(TILE_ROWS, f->rows - i), lo, hi = visible_block(f, i, rows, &lo);
        float *p = t->p + i * GRAD_KEYS, *ds = t->ds + i * GRAD_KEYS;
        if (lo < hi) {
            strip_times_panels(gm, packed_rows(t->q + i * du), f->k, f->keys, lo, hi, du, 0, du, rows, p,
                               GRAD_KEYS, false);
            strip_times_panels(gm, packed_rows(t->dout + i * du), t->v, f->keys, lo, hi, du, 0, du, rows, ds,
                               GRAD_KEYS, false);
        }
        for (int64_t r = 0; r < rows; r++)
            grad_row(t, i + r, lo < hi ? lo : GRAD_KEYS, lo < hi ? hi : 0);
    }
    if (f->pairs) {
        round_rows(t->p, f->rows, GRAD_KEYS, 0, GRAD_KEYS);
        round_rows(t->ds, f->rows, GRAD_KEYS, 0, GRAD_KEYS);
    }
    /* No query before its own position sees a key: strips of keys begin at the first query that may. */
    for (int which = 0; which < 2 && t->make_dkv; which++) {
        turn->pack_a(which ? t->ds : t->p, ld, false, f->keys, f->rows, 0, q_units, t->turned);
        for (int64_t j = 0; j < f->keys; j += TILE_ROWS) {
            int64_t first = ax_max(f->j0 + j - f->q0, 0) / pair, rows = ax_min(TILE_ROWS, f->keys - j);
            if (first < q_units)
                strip_times_panels(gm, packed_rows(t->turned + j * q_units + first * TILE_ROWS),
                                   which ? t->q_cols : t->dout_cols, d, 0, d, q_units, first, q_units, rows,
                                   (which ? t->dk : t->dv) + j * d, d, true);
        }
    }
    if (!t->make_dq)
        return;
    for (int64_t i = 0; i < f->rows; i += TILE_ROWS) {
        int64_t rows = ax_min(TILE_ROWS, f->rows - i), lo, hi = visible_block(f, i, rows, &lo);
        int64_t first = lo / pair, last = (hi + pair - 1) / pair;
        ax_cpu_rows ds = {(const char *)(t->ds + i * GRAD_KEYS) + first * 4, NULL, GRAD_KEYS * 4, 4};
        if (lo < hi)
            strip_times_panels(gm, ds, t->k_rows, d, 0, d, k_units, first, last, rows,
                               t->dq + (f->q0 + i) * t->dq_ld, t->dq_ld, true);
    }
}

/* Queries q_from … q_to-1 of `heads` heads from f->h on meet the block of keys in work; t->dq is that of the
 * first head and moves by `dq_head` from head to head. */
INLINE void grad_queries(attend_grad *t, int64_t heads, int64_t q_from, int64_t q_to, int64_t dq_head)
{
    const ax_attention_grad_args *g = t->g;
    attend *f = &t->of;
    int64_t d = f->d, size = f->bf16 ? 2 : 4, h0 = f->h, ld = g->heads * d;
    float *dq = t->dq;
    for (f->h = h0; f->h < h0 + heads; f->h++, t->dq += dq_head)
        for (f->q0 = ax_max(q_from, f->j0 / GRAD_QUERIES * GRAD_QUERIES); f->q0 < q_to;
             f->q0 += GRAD_QUERIES) {
            f->rows = ax_min(GRAD_QUERIES, q_to - f->q0);
            int64_t lo, hi = visible_block(f, 0, f->rows, &lo),
                        at = ((f->b * g->q_len + f->q0) * g->heads + f->h) * d;
            if (lo >= hi)
                continue;
            const char *q = (const char *)g->q + at * size, *dout = (const char *)g->dout + at * size;
            f->gm->pack_a(q, ld, true, f->rows, d, 0, f->d_units, t->q);
            f->gm->pack_a(dout, ld, true, f->rows, d, 0, f->d_units, t->dout);
            if (t->make_dkv) {
                pack_panels(f->gm, q, size, ld, false, d, f->rows, t->q_cols);
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
    int64_t d = f->d, size = f->bf16 ? 2 : 4, ld = g->kv_heads * d;
    f->j0 = j0;
    f->keys = ax_min(GRAD_KEYS, g->q_len - j0);
    int64_t at = key_row(f->a, f->b, f->h, j0);
    pack_panels(f->gm, (const char *)g->k + at * size, size, ld, true, f->keys, d, f->k);
    pack_panels(f->gm, (const char *)g->v + at * size, size, ld, true, f->keys, d, t->v);
    if (t->make_dq)
        pack_panels(f->gm, (const char *)g->k + at * size, size, ld, false, d, f->keys, t->k_rows);
}

/* Rows of fp32 sums to an array of T. */
INLINE void grad_store(void *to, int64_t at, int64_t to_ld, const float *from, int64_t rows, int64_t d,
                       bool bf16)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < d; c += W)
            vput(to, at + r * to_ld + c, d - c, bf16, vget(from, r * d + c, d - c, false));
}

/* dk and dv, block of keys by block of keys, and dq on the way where it fits. */
INLINE void grad_pass_keys(attend_grad *t, int64_t dq_head)
{
    const ax_attention_grad_args *g = t->g;
    attend *f = &t->of;
    int64_t d = f->d, ld = g->kv_heads * d;
    for (int64_t j0 = 0; j0 < g->q_len; j0 += GRAD_KEYS) {
        grad_keys(t, j0);
        memset(t->dk, 0, (size_t)(f->keys * d) * 4);
        memset(t->dv, 0, (size_t)(f->keys * d) * 4);
        grad_queries(t, g->heads / g->kv_heads, 0, g->q_len, dq_head);
        int64_t at = key_row(f->a, f->b, f->h, j0);
        grad_store(g->dk, at, ld, t->dk, f->keys, d, f->bf16);
        grad_store(g->dv, at, ld, t->dv, f->keys, d, f->bf16);
    }
}

/* bf16 dq of head f->h, queries q0 …, from its sums. */
INLINE void grad_store_dq(const attend_grad *t, int64_t q0, int64_t rows, const float *sums)
{
    const ax_attention_grad_args *g = t->g;
    int64_t d = t->of.d, at = ((t->of.b * g->q_len + q0) * g->heads + t->of.h) * d;
    grad_store(g->dq, at, g->heads * d, sums, rows, d, true);
}

/* The second pass: bf16 dq alone, head by head, `chunk` queries at a time, whose sums `room` holds. */
INLINE void grad_pass_queries(attend_grad *t, int64_t chunk, float *room)
{
    const ax_attention_grad_args *g = t->g;
    attend *f = &t->of;
    int64_t h0 = f->h;
    for (f->h = h0; f->h < h0 + g->heads / g->kv_heads; f->h++)
        for (int64_t q0 = 0; q0 < g->q_len; q0 += chunk) {
            int64_t rows = ax_min(chunk, g->q_len - q0);
            t->dq = room - q0 * f->d;
            memset(room, 0, (size_t)(rows * f->d) * 4);
            for (int64_t j0 = 0; j0 < q0 + rows; j0 += GRAD_KEYS) {
                grad_keys(t, j0);
                grad_queries(t, 1, q0, q0 + rows, 0);
            }
            grad_store_dq(t, q0, rows, room);
        }
    f->h = h0;
}

/* delta = Σ_d do·o for the group's heads; fp32 dq starts from 0. */
INLINE void grad_start(const attend_grad *t)
{
    const ax_attention_grad_args *g = t->g;
    int64_t d = t->of.d, group = g->heads / g->kv_heads;
    bool bf16 = t->of.bf16;
    for (int64_t h = t->of.h; h < t->of.h + group; h++)
        for (int64_t i = 0; i < g->q_len; i++) {
            int64_t at = ((t->of.b * g->q_len + i) * g->heads + h) * d;
            vf sum = vset(0);
            for (int64_t c = 0; c < d; c += W)
                sum = vfma(vget(g->dout, at + c, d - c, bf16), vget(g->o, at + c, d - c, bf16), sum);
            ((float *)g->delta)[(t->of.b * g->heads + h) * g->q_len + i] = vsum(sum);
            if (!bf16)
                memset((float *)g->dq + at, 0, (size_t)d * 4);
        }
}

INLINE void grad_item(const ax_attention_grad_args *g, int64_t item, char *scratch, bool bf16)
{
    int64_t d = g->head_dim, group = g->heads / g->kv_heads, wide = (d + W - 1) / W * W;
    ax_attention_args a = {.batch = g->batch, .q_len = g->q_len, .kv_len = g->q_len, .heads = g->heads};
    a.kv_heads = g->kv_heads, a.head_dim = d, a.scale = g->scale, a.doc_start = g->doc_start;
    attend_grad t = {.of = {.a = &a, .bf16 = bf16, .d = d, .gm = bf16 ? &gemm_bf16 : &gemm_f32}, .g = g};
    attend *f = &t.of;
    char *const start = scratch;
    f->pairs = bf16 && f->gm->pair == 2;
    f->d_units = (d + f->gm->pair - 1) / f->gm->pair;
    f->b = item / g->kv_heads;
    f->h = item % g->kv_heads * group;
    float **const packed_keys[] = {&f->k, &t.v, &t.k_rows}, **const sums[] = {&t.dk, &t.dv};
    float **const packed_queries[] = {&t.q, &t.dout, &t.q_cols, &t.dout_cols},
                  **const scores[] = {&t.p, &t.ds};
    for (int i = 0; i < 3; i++)
        *packed_keys[i] = carve(&scratch, GRAD_KEYS * wide * 4);
    for (int i = 0; i < 4; i++)
        *packed_queries[i] = carve(&scratch, GRAD_QUERIES * wide * 4);
    for (int i = 0; i < 2; i++)
        *sums[i] = carve(&scratch, GRAD_KEYS * d * 4);
    for (int i = 0; i < 2; i++)
        *scores[i] = carve(&scratch, GRAD_QUERIES * GRAD_KEYS * 4);
    t.turned = carve(&scratch, GRAD_QUERIES * GRAD_KEYS * 4);
    grad_start(&t);
    t.make_dkv = true;
    if (!bf16) {
        t.make_dq = true;
        t.dq = (float *)g->dq + (f->b * g->q_len * g->heads + f->h) * d;
        t.dq_ld = g->heads * d;
        grad_pass_keys(&t, d);
        return;
    }
    float *room = (float *)(void *)scratch;
    int64_t fit = (AX_CPU_SCRATCH - (scratch - start)) / (d * 4), h0 = f->h;
    t.dq_ld = d;
    t.make_dq = group * g->q_len <= fit;
    if (!t.make_dq) {
        grad_pass_keys(&t, 0);
        t.make_dkv = false;
        t.make_dq = true;
        grad_pass_queries(&t, fit / GRAD_QUERIES * GRAD_QUERIES, room);
        return;
    }
    t.dq = room;
    memset(room, 0, (size_t)(group * g->q_len * d) * 4);
    grad_pass_keys(&t, g->q_len * d);
    for (f->h = h0; f->h < h0 + group; f->h++)
        grad_store_dq(&t, 0, g->q_len, room + (f->h - h0) * g->q_len * d);
}

static void attention_grad(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    for (int64_t item = lo; item < hi; item++)
        if (((const ax_attention_grad_args *)args)->dtype == AX_BF16)
            grad_item(args, item, scratch, true);
        else
            grad_item(args, item, scratch, false);
}

#endif
