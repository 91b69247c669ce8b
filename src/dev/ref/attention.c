/* Causal attention in two passes over the visible keys: the first pass computes lse, the log-sum-exp of a
 * query's scores, and the second pass uses the probabilities p_ij = exp(scale·q_i·k_j - lse_i). */
#include "dev/attention.h"
#include "dev/ref/ref.h"

#include <math.h>

/* Returns the offset in elements of the row of sequence b, position t and head h in an array [batch, len,
 * heads, d] with `ld` elements from one position to the next. */
static int64_t row_at(int64_t b, int64_t t, int64_t h, int64_t len, int64_t ld, int64_t d)
{
    return (b * len + t) * ld + h * d;
}

static double dot(ax_dtype dtype, const void *x, int64_t x_at, const void *y, int64_t y_at, int64_t n)
{
    double xs[REF_BLOCK], ys[REF_BLOCK], sum = 0;
    for (ref_blocks(n, at, count)) {
        ref_read(dtype, x, x_at + at, count, xs);
        ref_read(dtype, y, y_at + at, count, ys);
        for (int64_t i = 0; i < count; i++)
            sum += xs[i] * ys[i];
    }
    return sum;
}

/* Adds factor · x[at + i] to sum[i], for i < n. */
static void add_scaled(ax_dtype dtype, const void *x, int64_t at, int64_t n, double factor, double *sum)
{
    double xs[REF_BLOCK];
    ref_read(dtype, x, at, n, xs);
    for (int64_t i = 0; i < n; i++)
        sum[i] += factor * xs[i];
}

typedef struct query {
    int64_t q_at, o_at;  /* element offsets of the query's rows in q and o */
    int64_t k_at;        /* element offset in k and v of the first key of the query's sequence and key head */
    int64_t k_stride;    /* elements from one key to the next */
    int64_t first, last; /* first and last visible key; none if last < first */
    const uint64_t *chosen;
} query;

static query query_of(const ax_attention_args *a, int64_t b, int64_t i, int64_t h)
{
    int64_t d = a->head_dim, g = h / (a->heads / a->kv_heads), position = ax_attention_offset(a, b) + i;
    return (query){row_at(b, i, h, a->q_len, a->q_ld, d),
                   row_at(b, i, h, a->q_len, a->heads * d, d),
                   b * ax_attention_kv_batch(a) + g * d,
                   a->kv_ld,
                   ax_attention_first_key(a->doc_start, b * a->q_len + i, a->window, position),
                   ax_min(position, a->kv_len - 1),
                   ax_attention_chosen(a, b * a->q_len + i, h)};
}

static double score(const ax_attention_args *a, const query *q, int64_t j)
{
    return a->scale * dot(a->dtype, a->q, q->q_at, a->k, q->k_at + j * q->k_stride, a->head_dim);
}

/* Returns the factor of dropout, 0 or 1/(1-p), for key j and head h; `row` is the query's row in the batch,
 * b·q_len + i for query i of sequence b. */
static double kept(const ax_attention_dropout *drop, int64_t row, int64_t h, int64_t keys, int64_t j)
{
    if (drop->p == 0)
        return 1;
    const ax_batch_numbers now = drop->now ? *drop->now : (ax_batch_numbers){0};
    uint64_t index = 4 * ax_attention_drop_block(drop, now.first_row, row, h, keys) + (uint64_t)j;
    return (double)ax_philox_uniform(drop->key, now.step, index) < drop->p ? 0 : 1 / (1 - drop->p);
}

/* Returns log Σ exp of the scores of the visible keys; -inf if no key is visible. */
static double log_sum_exp(const ax_attention_args *a, const query *q)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = q->first; j <= q->last; j++) {
        if (!ax_attention_has(q->chosen, j))
            continue;
        double s = score(a, q, j);
        if (s > max) {
            sum = sum * exp(max - s) + 1;
            max = s;
        } else {
            sum += exp(s - max);
        }
    }
    return sum > 0 ? max + log(sum) : -INFINITY;
}

ax_status ref_attention(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_attention_args *a = args;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t i = 0; i < a->q_len; i++) {
                query q = query_of(a, b, i, h);
                double lse = log_sum_exp(a, &q);
                for (ref_blocks(a->head_dim, at, count)) {
                    double o[REF_BLOCK] = {0};
                    for (int64_t j = q.first; j <= q.last; j++)
                        if (ax_attention_has(q.chosen, j))
                            add_scaled(a->dtype, a->v, q.k_at + j * q.k_stride + at, count,
                                       exp(score(a, &q, j) - lse) *
                                           kept(&a->drop, b * a->q_len + i, h, a->kv_len, j),
                                       o);
                    ref_write(a->dtype, a->o, q.o_at + at, count, o);
                }
                if (a->lse)
                    ax_store(ax_dtype_accum(a->dtype), a->lse, (b * a->heads + h) * a->q_len + i, lse);
            }
    return AX_OK;
}

/* For query i and key j of one sequence and one query head: the probability after dropout, p, and the
 * gradient of q_i·k_j (the score before it is scaled), ds. */
typedef struct pair {
    double p, ds;
} pair;

static pair pair_of(const ax_attention_grad_args *a, int64_t b, int64_t i, int64_t j, int64_t h)
{
    int64_t d = a->head_dim, g = h / (a->heads / a->kv_heads);
    int64_t q_at = row_at(b, i, h, a->q_len, a->q_ld, d), k_at = row_at(b, j, g, a->q_len, a->kv_ld, d),
            o_at = row_at(b, i, h, a->q_len, a->heads * d, d);
    int64_t row = (b * a->heads + h) * a->q_len + i;
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double p = exp(a->scale * dot(a->dtype, a->q, q_at, a->k, k_at, d) - ax_load(accum, a->lse, row));
    double dp = dot(a->dtype, a->dout, o_at, a->v, k_at, d);
    double keep = kept(&a->drop, b * a->q_len + i, h, a->q_len, j);
    return (pair){p * keep, a->scale * p * (dp * keep - ax_load(accum, a->delta, row))};
}

static void fill_delta(const ax_attention_grad_args *a, int64_t b, int64_t h)
{
    for (int64_t i = 0; i < a->q_len; i++) {
        int64_t at = row_at(b, i, h, a->q_len, a->heads * a->head_dim, a->head_dim);
        ax_store(ax_dtype_accum(a->dtype), a->delta, (b * a->heads + h) * a->q_len + i,
                 dot(a->dtype, a->dout, at, a->o, at, a->head_dim));
    }
}

/* Computes dq_i = Σ_j ds_ij k_j. */
static void query_grad(const ax_attention_grad_args *a, int64_t b, int64_t i, int64_t h)
{
    int64_t d = a->head_dim, g = h / (a->heads / a->kv_heads);
    for (ref_blocks(d, at, count)) {
        double dq[REF_BLOCK] = {0};
        for (int64_t j = ax_attention_first_key(a->doc_start, b * a->q_len + i, a->window, i); j <= i; j++)
            add_scaled(a->dtype, a->k, row_at(b, j, g, a->q_len, a->kv_ld, d) + at, count,
                       pair_of(a, b, i, j, h).ds, dq);
        ref_write(a->dtype, a->dq, row_at(b, i, h, a->q_len, a->q_ld, d) + at, count, dq);
    }
}

/* Computes dk_j = Σ ds_ij q_i and dv_j = Σ p_ij dout_i for key head g. The sums are over the queries i that
 * see key j, of all query heads that use key head g. */
static void key_grad(const ax_attention_grad_args *a, int64_t b, int64_t j, int64_t g)
{
    int64_t d = a->head_dim, group = a->heads / a->kv_heads;
    for (ref_blocks(d, at, count)) {
        double dk[REF_BLOCK] = {0}, dv[REF_BLOCK] = {0};
        for (int64_t h = g * group; h < (g + 1) * group; h++)
            for (int64_t i = j; i < a->q_len; i++) {
                if (j < ax_attention_first_key(a->doc_start, b * a->q_len + i, a->window, i))
                    continue;
                pair ij = pair_of(a, b, i, j, h);
                add_scaled(a->dtype, a->q, row_at(b, i, h, a->q_len, a->q_ld, d) + at, count, ij.ds, dk);
                add_scaled(a->dtype, a->dout, row_at(b, i, h, a->q_len, a->heads * d, d) + at, count, ij.p,
                           dv);
            }
        int64_t k_at = row_at(b, j, g, a->q_len, a->kv_ld, d) + at;
        ref_write(a->dtype, a->dk, k_at, count, dk);
        ref_write(a->dtype, a->dv, k_at, count, dv);
    }
}

ax_status ref_attention_grad(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_attention_grad_args *a = args;
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            fill_delta(a, b, h);
            for (int64_t i = 0; i < a->q_len; i++)
                query_grad(a, b, i, h);
        }
        for (int64_t g = 0; g < a->kv_heads; g++)
            for (int64_t j = 0; j < a->q_len; j++)
                key_grad(a, b, j, g);
    }
    return AX_OK;
}
