/* Kernels of attention that reads few keys: heads in another basis, and the choice of keys. */
#include "dev/attention.h"
#include "dev/ref/ref.h"

#include <math.h>
#include <stdlib.h>

ax_status ref_turn(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_turn_args *a = args;
    const int64_t d = a->head_dim, group = a->kv_heads ? a->heads / a->kv_heads : 1;
    double x[AX_TURN_WIDTH], p[REF_BLOCK];
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t at = r * a->ld + h * d, turn = h / group * d * d;
            ref_read(a->dtype, a->x, at, d, x);
            for (ref_blocks(d, first, count)) {
                double sum[REF_BLOCK] = {0};
                for (int64_t i = 0; i < d; i++) {
                    ref_read(ax_dtype_accum(a->dtype), a->turn, turn + i * d + first, count, p);
                    for (int64_t c = 0; c < count; c++)
                        sum[c] += x[i] * p[c];
                }
                ref_write(a->dtype, a->x, at + first, count, sum);
            }
        }
    return AX_OK;
}

/* Computes the scores of the keys lo … hi-1 for head h of query i of sequence b, as an accumulator holds
 * them. Returns the largest. */
static double score_keys(const ax_choose_args *a, int64_t b, int64_t i, int64_t h, int64_t lo, int64_t hi,
                         double *score)
{
    double q[REF_BLOCK], k[REF_BLOCK], most = -INFINITY;
    const int64_t q_at = (b * a->q_len + i) * a->q_ld + h * a->q_step,
                  k_at = b * a->k_batch_stride + h / (a->heads / a->kv_heads) * a->k_step;
    for (int64_t j = lo; j < hi; j++) {
        double sum = 0;
        for (ref_blocks(a->width, at, count)) {
            ref_read(a->dtype, a->q, q_at + at, count, q);
            ref_read(a->dtype, a->k, k_at + j * a->k_ld + at, count, k);
            for (int64_t c = 0; c < count; c++)
                sum += q[c] * k[c];
        }
        score[j] = ref_rounded(ax_dtype_accum(a->dtype), sum);
        most = fmax(most, score[j]);
    }
    return most;
}

/* Returns how many of the keys lo … hi-1 come before key j in the order of choice. */
static int64_t count_before(const double *score, int64_t lo, int64_t hi, int64_t j)
{
    int64_t n = 0;
    const int64_t mine = ax_choose_order_of_double(score[j]);
    for (int64_t other = lo; other < hi; other++) {
        const int64_t its = ax_choose_order_of_double(score[other]);
        n += its > mine || (its == mine && other < j);
    }
    return n;
}

/* Sets the bits of choice number c of query i of sequence b. `score`: room for 2 · kv_len numbers. */
static void choose_keys(const ax_choose_args *a, int64_t b, int64_t i, int64_t c, double *score)
{
    const ax_attention_args seen = ax_attention_of_choose(a);
    const int64_t heads = a->heads / ax_choosers(a), words = ax_ceil_div(a->kv_len, 64),
                  position = ax_attention_offset(&seen, b) + i,
                  lo = ax_attention_first_key(a->doc_start, b * a->q_len + i, a->window, position),
                  hi = ax_min(position + 1, a->kv_len), n = ax_choose_count(a->keys, a->share, hi - lo);
    uint64_t *bits = a->chosen + ((b * a->q_len + i) * ax_choosers(a) + c) * words;
    double *one = score + a->kv_len;
    for (int64_t h = 0; h < heads; h++) {
        const double most = score_keys(a, b, i, c * heads + h, lo, hi, one);
        for (int64_t j = lo; j < hi; j++) {
            const double x = heads > 1 ? ref_rounded(ax_dtype_accum(a->dtype), one[j] - most) : one[j];
            if (!h || x > score[j] || isnan(x))
                score[j] = x;
        }
    }
    for (int64_t w = 0; w < words; w++)
        bits[w] = 0;
    for (int64_t j = lo; j < hi; j++)
        if (count_before(score, lo, hi, j) < n)
            bits[j / 64] |= UINT64_C(1) << j % 64;
}

ax_status ref_choose(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_choose_args *a = args;
    double *score;
    AX_TRY(ax_calloc(2 * (size_t)a->kv_len + 1, sizeof *score, &score));
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t i = 0; i < a->q_len; i++)
            for (int64_t c = 0; c < ax_choosers(a); c++)
                choose_keys(a, b, i, c, score);
    free(score);
    return AX_OK;
}
