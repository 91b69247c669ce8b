/* Cross-entropy over a vocabulary that may be split. logits: T [r, v]; row values: A [r]. */
#include "dev/ref/ref.h"

#include <math.h>

ax_status ref_ce_max(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_ce_max_args *a = args;
    double x[REF_BLOCK];
    for (int64_t r = 0; r < a->rows; r++) {
        double max = -INFINITY;
        for (ref_blocks(a->vocab, at, count)) {
            ref_read(a->dtype, a->logits, r * a->ld + at, count, x);
            for (int64_t i = 0; i < count; i++)
                max = x[i] > max ? x[i] : max; /* a NaN is not lost: it shows in the sum */
        }
        ax_store(ax_dtype_accum(a->dtype), a->max, r, max);
    }
    return AX_OK;
}

/* The target's column in this box, or -1 (masked, or another rank's). */
static int64_t target_column(const int32_t *targets, int64_t r, int64_t first, int64_t vocab)
{
    int64_t column = targets[r] - first;
    return targets[r] >= 0 && column >= 0 && column < vocab ? column : -1;
}

ax_status ref_ce_sum(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_ce_sum_args *a = args;
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double x[REF_BLOCK];
    for (int64_t r = 0; r < a->rows; r++) {
        double sum = 0, max = ax_load(accum, a->max, r);
        for (ref_blocks(a->vocab, at, count)) {
            ref_read(a->dtype, a->logits, r * a->ld + at, count, x);
            for (int64_t i = 0; i < count; i++)
                sum += exp(x[i] - max);
        }
        int64_t target = target_column(a->targets, r, a->first, a->vocab);
        ax_store(accum, a->sum, r, sum);
        ax_store(accum, a->target_logit, r,
                 target < 0 ? 0 : ax_load(a->dtype, a->logits, r * a->ld + target));
    }
    return AX_OK;
}

ax_status ref_ce_loss(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_ce_loss_args *a = args;
    double total = 0;
    for (int64_t r = 0; r < a->rows; r++) {
        double loss = 0;
        if (a->targets[r] >= 0)
            loss = log(ax_load(a->dtype, a->sum, r)) + ax_load(a->dtype, a->max, r) -
                   ax_load(a->dtype, a->target_logit, r);
        ax_store(a->dtype, a->loss, r, loss);
        total += loss;
    }
    a->total[0] += total;
    return AX_OK;
}

ax_status ref_ce_grad(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_ce_grad_args *a = args;
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double x[REF_BLOCK], all = a->scale * (a->now ? a->now->loss_scale : 1);
    for (int64_t r = 0; r < a->rows; r++) {
        double max = ax_load(accum, a->max, r), sum = ax_load(accum, a->sum, r);
        double scale = a->targets[r] >= 0 ? all : 0;
        int64_t target = target_column(a->targets, r, a->first, a->vocab);
        for (ref_blocks(a->vocab, at, count)) {
            ref_read(a->dtype, a->logits, r * a->ld + at, count, x);
            for (int64_t i = 0; i < count; i++)
                x[i] = scale == 0 ? 0 : scale * (exp(x[i] - max) / sum - (at + i == target));
            ref_write(a->dtype, a->logits, r * a->ld + at, count, x);
        }
    }
    return AX_OK;
}
