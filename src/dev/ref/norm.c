/* LayerNorm and RMSNorm over a width that may be split over ranks, row by row. Shapes and formulas are in
 * axonn/kernels.h. */
#include "dev/ref/ref.h"

#include <math.h>

/* Computes x = a + b for one row, rounded to `dtype`. */
static void sum_row(const ax_norm_stats_args *a, int64_t r)
{
    double x[REF_BLOCK], b[REF_BLOCK];
    for (ref_blocks(a->cols, at, count)) {
        ref_read(a->dtype, a->a, r * a->cols + at, count, x);
        ref_read(a->dtype, a->b, r * a->cols + at, count, b);
        for (int64_t i = 0; i < count; i++)
            x[i] += b[i];
        ref_write(a->dtype, a->x, r * a->cols + at, count, x);
    }
}

static void stats_row(const ax_norm_stats_args *a, int64_t r)
{
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double x[REF_BLOCK], sum = 0, m2 = 0;
    if (a->b)
        sum_row(a, r);
    const void *from = a->b ? a->x : a->a;
    for (ref_blocks(a->kind == AX_NORM_RMS ? 0 : a->cols, at, count)) {
        ref_read(a->dtype, from, r * a->cols + at, count, x);
        for (int64_t i = 0; i < count; i++)
            sum += x[i];
    }
    for (ref_blocks(a->cols, at, count)) {
        ref_read(a->dtype, from, r * a->cols + at, count, x);
        for (int64_t i = 0; i < count; i++) {
            double centred = x[i] - sum / (double)a->cols;
            m2 += centred * centred;
        }
    }
    if (a->kind == AX_NORM_LAYER)
        ax_store(accum, a->sum, r, sum);
    ax_store(accum, a->m2, r, m2);
}

ax_status ref_norm_stats(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_norm_stats_args *a = args;
    for (int64_t r = 0; r < a->rows; r++)
        stats_row(a, r);
    return AX_OK;
}

ax_status ref_norm_recentre(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_norm_recentre_args *a = args;
    for (int64_t r = 0; a->cols > 0 && r < a->rows; r++) {
        double shift = ax_load(a->dtype, a->local_sum, r) / (double)a->cols -
                       ax_load(a->dtype, a->global_sum, r) / (double)a->global_cols;
        ax_store(a->dtype, a->m2, r, ax_load(a->dtype, a->m2, r) + (double)a->cols * shift * shift);
    }
    return AX_OK;
}

typedef struct row_stats {
    double mean, rstd; /* mean 0 for RMSNorm */
} row_stats;

/* Returns mean and rstd of row r. `sum` is NULL for RMSNorm. */
static row_stats stats_of(ax_dtype dtype, const void *sum, const void *m2, int64_t r, int64_t global_cols,
                          double eps)
{
    ax_dtype accum = ax_dtype_accum(dtype);
    return (row_stats){sum ? ax_load(accum, sum, r) / (double)global_cols : 0,
                       1 / sqrt(ax_load(accum, m2, r) / (double)global_cols + eps)};
}

static void apply_row(const ax_norm_apply_args *a, int64_t r)
{
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double x[REF_BLOCK], weight[REF_BLOCK], bias[REF_BLOCK] = {0};
    row_stats s = stats_of(a->dtype, a->sum, a->m2, r, a->global_cols, a->eps);
    for (ref_blocks(a->cols, at, count)) {
        ref_read(a->dtype, a->x, r * a->cols + at, count, x);
        ref_read(accum, a->weight, at, count, weight);
        if (a->bias)
            ref_read(accum, a->bias, at, count, bias);
        for (int64_t i = 0; i < count; i++)
            x[i] = (x[i] - s.mean) * s.rstd * weight[i] + bias[i];
        ref_write(a->dtype, a->y, r * a->cols + at, count, x);
    }
}

ax_status ref_norm_apply(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_norm_apply_args *a = args;
    for (int64_t r = 0; r < a->rows; r++)
        apply_row(a, r);
    return AX_OK;
}

ax_status ref_norm(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_norm_args *a = args;
    const ax_norm_stats_args stats = ax_norm_stats_of(a);
    const ax_norm_apply_args apply = ax_norm_apply_of(a);
    for (int64_t r = 0; r < a->rows; r++) {
        stats_row(&stats, r);
        apply_row(&apply, r);
    }
    return AX_OK;
}

/* The sums s1 and s2 of ax_norm_grad_stats_args for one row (s1 is 0 for RMSNorm). norm_grad does not store
 * the sums, but rounds them to the accumulation dtype all the same, so that it gives the same bits as
 * norm_grad_stats followed by norm_grad_apply. */
typedef struct grad_sums {
    double s1, s2;
} grad_sums;

static grad_sums grad_sums_of(const ax_norm_grad_stats_args *a, int64_t r)
{
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double x[REF_BLOCK], dy[REF_BLOCK], weight[REF_BLOCK];
    row_stats s = stats_of(a->dtype, a->sum, a->m2, r, a->global_cols, a->eps);
    grad_sums out = {0, 0};
    for (ref_blocks(a->cols, at, count)) {
        ref_read(a->dtype, a->x, r * a->cols + at, count, x);
        ref_read(a->dtype, a->dy, r * a->cols + at, count, dy);
        ref_read(accum, a->weight, at, count, weight);
        for (int64_t i = 0; i < count; i++) {
            out.s1 += a->kind == AX_NORM_RMS ? 0 : dy[i] * weight[i];
            out.s2 += dy[i] * weight[i] * (x[i] - s.mean) * s.rstd;
        }
    }
    return (grad_sums){ref_rounded(accum, out.s1), ref_rounded(accum, out.s2)};
}

ax_status ref_norm_grad_stats(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_norm_grad_stats_args *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        grad_sums sums = grad_sums_of(a, r);
        if (a->s1)
            ax_store(ax_dtype_accum(a->dtype), a->s1, r, sums.s1);
        ax_store(ax_dtype_accum(a->dtype), a->s2, r, sums.s2);
    }
    return AX_OK;
}

static void add_to(ax_dtype accum, void *out, int64_t at, int64_t n, const double *sum)
{
    for (int64_t i = 0; out && i < n; i++)
        ax_store(accum, out, at + i, ax_load(accum, out, at + i) + sum[i]);
}

static void weight_grads(const ax_norm_grad_apply_args *a)
{
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double x[REF_BLOCK], dy[REF_BLOCK];
    for (ref_blocks(a->cols, at, count)) {
        double dweight[REF_BLOCK] = {0}, dbias[REF_BLOCK] = {0};
        for (int64_t r = 0; r < a->rows; r++) {
            row_stats s = stats_of(a->dtype, a->sum, a->m2, r, a->global_cols, a->eps);
            ref_read(a->dtype, a->x, r * a->cols + at, count, x);
            ref_read(a->dtype, a->dy, r * a->cols + at, count, dy);
            for (int64_t i = 0; i < count; i++) {
                dweight[i] += dy[i] * (x[i] - s.mean) * s.rstd;
                dbias[i] += dy[i];
            }
        }
        add_to(accum, a->dweight, at, count, dweight);
        add_to(accum, a->dbias, at, count, dbias);
    }
}

static void grad_row(const ax_norm_grad_apply_args *a, int64_t r, grad_sums sums)
{
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double x[REF_BLOCK], dy[REF_BLOCK], weight[REF_BLOCK], add[REF_BLOCK];
    row_stats s = stats_of(a->dtype, a->sum, a->m2, r, a->global_cols, a->eps);
    double mean1 = sums.s1 / (double)a->global_cols, mean2 = sums.s2 / (double)a->global_cols;
    for (ref_blocks(a->cols, at, count)) {
        ref_read(a->dtype, a->x, r * a->cols + at, count, x);
        ref_read(a->dtype, a->dy, r * a->cols + at, count, dy);
        ref_read(accum, a->weight, at, count, weight);
        if (a->add)
            ref_read(a->dtype, a->add, r * a->cols + at, count,
                     add); /* read before dx is written, because dx may be the same array as `add` */
        for (int64_t i = 0; i < count; i++) {
            double xhat = (x[i] - s.mean) * s.rstd;
            dy[i] = s.rstd * (dy[i] * weight[i] - mean1 - xhat * mean2);
        }
        ref_write(a->dtype, a->dx, r * a->cols + at, count, dy);
        if (!a->add)
            continue;
        ref_read(a->dtype, a->dx, r * a->cols + at, count, dy);
        for (int64_t i = 0; i < count; i++)
            dy[i] += add[i];
        ref_write(a->dtype, a->dx, r * a->cols + at, count, dy);
    }
}

ax_status ref_norm_grad_apply(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_norm_grad_apply_args *a = args;
    ax_dtype accum = ax_dtype_accum(a->dtype);
    weight_grads(a); /* before dx is written, because dx may be dy */
    for (int64_t r = 0; r < a->rows; r++)
        grad_row(a, r, (grad_sums){a->s1 ? ax_load(accum, a->s1, r) : 0, ax_load(accum, a->s2, r)});
    return AX_OK;
}

ax_status ref_norm_grad(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_norm_grad_args *a = args;
    const ax_norm_grad_stats_args stats = ax_norm_grad_stats_of(a);
    const ax_norm_grad_apply_args apply = ax_norm_grad_apply_of(a);
    weight_grads(&apply); /* before dx is written, because dx may be dy */
    for (int64_t r = 0; r < a->rows; r++)
        grad_row(&apply, r, grad_sums_of(&stats, r));
    return AX_OK;
}
