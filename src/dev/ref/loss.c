/* Cross-entropy over a vocabulary that may be split over ranks (see ax_ce_stats_args), targets from class
 * indices, and the sum of squared errors. */
#include "dev/ref/ref.h"

#include <math.h>

static double max_of_row(const ax_ce_stats_args *a, int64_t r)
{
    double x[REF_BLOCK], max = -INFINITY;
    for (ref_blocks(a->vocab, at, count)) {
        ref_read(a->dtype, a->logits, r * a->ld + at, count, x);
        for (int64_t i = 0; i < count; i++)
            max = x[i] > max ? x[i] : max; /* skips NaN; the sum of exponentials is then NaN */
    }
    return max;
}

/* Returns the target's column among this rank's columns of the logits, or -1 if the target is masked
 * (negative) or its column belongs to another rank. */
static int64_t target_column(const int32_t *targets, int64_t r, int64_t first, int64_t vocab)
{
    int64_t column = targets[r] - first;
    return targets[r] >= 0 && column >= 0 && column < vocab ? column : -1;
}

ax_status ref_ce_stats(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_ce_stats_args *a = args;
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double x[REF_BLOCK];
    for (int64_t r = 0; r < a->rows; r++) {
        double sum = 0, max = max_of_row(a, r);
        for (ref_blocks(a->vocab, at, count)) {
            ref_read(a->dtype, a->logits, r * a->ld + at, count, x);
            for (int64_t i = 0; i < count; i++)
                sum += exp(x[i] - max);
        }
        int64_t target = target_column(a->targets, r, a->first, a->vocab);
        ax_store(accum, a->max, r, max);
        ax_store(accum, a->sum, r, sum);
        ax_store(accum, a->target_logit, r,
                 target < 0 ? 0 : ax_load(a->dtype, a->logits, r * a->ld + target));
    }
    return AX_OK;
}

ax_status ref_ce_rescale(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_ce_rescale_args *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        double factor = exp(ax_load(a->dtype, a->local_max, r) - ax_load(a->dtype, a->max, r));
        ax_store(a->dtype, a->sum, r, factor * ax_load(a->dtype, a->sum, r));
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

/* Returns the number of columns at ... at+count-1 that beat the target, whose column is `target`, of the
 * logit `logit`; x holds the logits of these columns. */
static int32_t count_better(const double *x, int64_t at, int64_t count, int64_t target, double logit)
{
    int32_t better = 0;
    for (int64_t i = 0; i < count; i++)
        better += x[i] > logit || (x[i] == logit && at + i < target);
    return better;
}

ax_status ref_ce_rank(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_ce_rank_args *a = args;
    double x[REF_BLOCK];
    for (int64_t r = 0; r < a->rows; r++) {
        const double logit = ax_load(ax_dtype_accum(a->dtype), a->target_logit, r);
        a->rank[r] = 0;
        for (ref_blocks(a->targets[r] < 0 ? 0 : a->vocab, at, count)) {
            ref_read(a->dtype, a->logits, r * a->ld + at, count, x);
            a->rank[r] += count_better(x, at, count, a->targets[r] - a->first, logit);
        }
    }
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

ax_status ref_class_targets(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_class_targets_args *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t id = a->dtype == AX_I64 ? ((const int64_t *)a->x)[r] : ((const int32_t *)a->x)[r];
        bool kept = id != a->ignore, legal = id >= 0 && id < a->classes;
        a->y[r] = kept && legal ? (int32_t)id : -1;
        a->counts[0] += kept;
        a->counts[1] += kept && !legal;
    }
    return AX_OK;
}

ax_status ref_squared_error(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_squared_error_args *a = args;
    double x[REF_BLOCK], target[REF_BLOCK], total = 0;
    double scale = a->scale * (a->now ? a->now->loss_scale : 1);
    for (ref_blocks(a->n, at, count)) {
        double sum = 0;
        ref_read(a->dtype, a->x, at, count, x);
        ref_read(a->dtype, a->target, at, count, target);
        for (int64_t i = 0; i < count; i++) {
            double error = x[i] - target[i];
            sum += error * error;
            x[i] = scale * error;
        }
        if (a->dx)
            ref_write(a->dtype, a->dx, at, count, x);
        total += sum;
    }
    a->total[0] += total;
    return AX_OK;
}
