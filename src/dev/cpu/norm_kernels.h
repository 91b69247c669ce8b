/* LayerNorm and RMSNorm over a width that may be split over ranks (axonn/kernels.h has the formulas). Work
 * items are rows; for the gradients of weight and bias they are columns. */
#ifndef AX_DEV_CPU_NORM_KERNELS_H
#define AX_DEV_CPU_NORM_KERNELS_H

#include "pointwise_kernels.h"

typedef struct row_norm {
    float mean, rstd;
} row_norm;

/* Returns mean and rstd of row r. `sum` is NULL for RMSNorm; then the mean is 0. */
INLINE row_norm norm_of(const void *sum, const void *m2, int64_t r, int64_t global_cols, double eps)
{
    double n = (double)global_cols;
    return (row_norm){sum ? (float)(((const float *)sum)[r] / n) : 0,
                      (float)(1 / sqrt(((const float *)m2)[r] / n + eps))};
}

/* Returns W elements (or n, if that is less) from `at` on of the norm's input. The input is x = a + b, which
 * the function also stores, or a if b is NULL. */
INLINE vf norm_input(const ax_norm_stats_args *a, int64_t at, int64_t n, vtype type)
{
    vf x = vget(a->a, at, n, type);
    if (!a->b)
        return x;
    x = vrounded(x + vget(a->b, at, n, type), type);
    vput(a->x, at, n, type, x);
    return x;
}

INLINE void layer_stats_row(const ax_norm_stats_args *a, int64_t r, vtype type)
{
    const int64_t at = r * a->cols, whole = a->cols / W * W;
    const void *row = a->b ? a->x : a->a;
    vf sums = vset(0), squares = vset(0);
    for (int64_t c = 0; c < a->cols; c += W)
        sums = sums + norm_input(a, at + c, a->cols - c, type);
    float sum = vsum(sums), tail = 0, part[W];
    vf mean = vset(a->cols ? sum / (float)a->cols : 0);
    for (int64_t c = 0; c < whole; c += W) {
        vf centred = vget(row, at + c, W, type) - mean;
        squares = vfma(centred, centred, squares);
    }
    if (whole < a->cols) { /* the lanes after the end of the row are excluded: they would add (0 - mean)² */
        vstore(part, vget(row, at + whole, a->cols - whole, type) - mean);
        for (int64_t i = 0; i < a->cols - whole; i++)
            tail += part[i] * part[i];
    }
    ((float *)a->sum)[r] = sum;
    ((float *)a->m2)[r] = vsum(squares) + tail;
}

/* Adds x² to *squares for W elements of the norm's input (or n, if that is less). */
INLINE void rms_add_squares(const ax_norm_stats_args *a, int64_t at, int64_t n, vtype type, vf *squares)
{
    vf x = norm_input(a, at, n, type);
    *squares = vfma(x, x, *squares);
}

/* Returns the sum of all elements of WIDE vectors. Sums over a row are kept in WIDE vectors, because with a
 * single one each multiply-add would wait for the one before it. */
INLINE float sum_of_wide(const vf *x)
{
    _Static_assert(WIDE == 4, "one addend per vector");
    return vsum((x[0] + x[1]) + (x[2] + x[3]));
}

INLINE void rms_stats_row(const ax_norm_stats_args *a, int64_t r, vtype type)
{
    const int64_t at = r * a->cols;
    int64_t c = 0;
    vf squares[WIDE];
    UNROLL
    for (int v = 0; v < WIDE; v++)
        squares[v] = vset(0);
    for (; c + WIDE * W <= a->cols; c += WIDE * W) {
        UNROLL
        for (int v = 0; v < WIDE; v++)
            rms_add_squares(a, at + c + v * W, W, type, &squares[v]);
    }
    for (; c < a->cols; c += W)
        rms_add_squares(a, at + c, a->cols - c, type, &squares[0]);
    ((float *)a->m2)[r] = sum_of_wide(squares);
}

INLINE void norm_stats_row(const ax_norm_stats_args *a, int64_t r, vtype type)
{
    if (a->kind == AX_NORM_LAYER)
        layer_stats_row(a, r, type);
    else
        rms_stats_row(a, r, type);
}

INLINE void norm_stats_range(const ax_norm_stats_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo; r < hi; r++)
        norm_stats_row(a, r, type);
}
BY_DTYPE(norm_stats)

INLINE void norm_apply_vector(const ax_norm_apply_args *a, int64_t r, int64_t c, int64_t n, vf mean, vf rstd,
                              vtype type)
{
    const int64_t at = r * a->cols + c;
    vf xhat = (vget(a->x, at, n, type) - mean) * rstd;
    vf bias = a->bias ? vget(a->bias, c, n, VF32) : vset(0);
    vput(a->y, at, n, type, vfma(xhat, vget(a->weight, c, n, VF32), bias));
}

INLINE void norm_apply_row(const ax_norm_apply_args *a, int64_t r, vtype type)
{
    row_norm s = norm_of(a->sum, a->m2, r, a->global_cols, a->eps);
    vf mean = vset(s.mean), rstd = vset(s.rstd);
    int64_t c = 0;
    for (; c + W <= a->cols; c += W)
        norm_apply_vector(a, r, c, W, mean, rstd, type);
    if (c < a->cols)
        norm_apply_vector(a, r, c, a->cols - c, mean, rstd, type);
}

INLINE void norm_apply_range(const ax_norm_apply_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo; r < hi; r++)
        norm_apply_row(a, r, type);
}
BY_DTYPE(norm_apply)

/* Runs norm_stats and then norm_apply on each row, so that norm_apply finds the row in the L1 cache. */
INLINE void norm_range(const ax_norm_args *a, int64_t lo, int64_t hi, vtype type)
{
    const ax_norm_stats_args stats = ax_norm_stats_of(a);
    const ax_norm_apply_args apply = ax_norm_apply_of(a);
    for (int64_t r = lo; r < hi; r++) {
        norm_stats_row(&stats, r, type);
        norm_apply_row(&apply, r, type);
    }
}
BY_DTYPE(norm)

typedef struct grad_sums {
    float s1, s2;
} grad_sums;

/* Adds dy·weight·x to *sum for W elements of row r (or n, if that is less), from column c on. */
INLINE void rms_add_products(const ax_norm_grad_stats_args *a, int64_t r, int64_t c, int64_t n, vtype type,
                             vf *sum)
{
    const int64_t at = r * a->cols + c;
    vf g = vget(a->dy, at, n, type) * vget(a->weight, c, n, VF32);
    *sum = vfma(g, vget(a->x, at, n, type), *sum);
}

INLINE grad_sums rms_grad_stats_row(const ax_norm_grad_stats_args *a, int64_t r, vtype type)
{
    int64_t c = 0;
    vf sums[WIDE];
    UNROLL
    for (int v = 0; v < WIDE; v++)
        sums[v] = vset(0);
    for (; c + WIDE * W <= a->cols; c += WIDE * W) {
        UNROLL
        for (int v = 0; v < WIDE; v++)
            rms_add_products(a, r, c + v * W, W, type, &sums[v]);
    }
    for (; c < a->cols; c += W)
        rms_add_products(a, r, c, a->cols - c, type, &sums[0]);
    float rstd = norm_of(NULL, a->m2, r, a->global_cols, a->eps).rstd;
    return (grad_sums){0, rstd * sum_of_wide(sums)};
}

INLINE grad_sums layer_grad_stats_row(const ax_norm_grad_stats_args *a, int64_t r, vtype type)
{
    row_norm s = norm_of(a->sum, a->m2, r, a->global_cols, a->eps);
    vf mean = vset(s.mean), rstd = vset(s.rstd), s1 = vset(0), s2 = vset(0);
    for (int64_t c = 0; c < a->cols; c += W) {
        int64_t at = r * a->cols + c, n = a->cols - c;
        vf g = vget(a->dy, at, n, type) * vget(a->weight, c, n, VF32);
        s1 = s1 + g;
        s2 = vfma(g, (vget(a->x, at, n, type) - mean) * rstd, s2);
    }
    return (grad_sums){vsum(s1), vsum(s2)};
}

INLINE grad_sums norm_grad_stats_row(const ax_norm_grad_stats_args *a, int64_t r, vtype type)
{
    return a->kind == AX_NORM_RMS ? rms_grad_stats_row(a, r, type) : layer_grad_stats_row(a, r, type);
}

INLINE void norm_grad_stats_range(const ax_norm_grad_stats_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo; r < hi; r++) {
        grad_sums sums = norm_grad_stats_row(a, r, type);
        if (a->s1)
            ((float *)a->s1)[r] = sums.s1;
        ((float *)a->s2)[r] = sums.s2;
    }
}
BY_DTYPE(norm_grad_stats)

/* Computes dx for W elements of row r (or n, if that is less), from column c on. */
INLINE void norm_grad_vector(const ax_norm_grad_apply_args *a, int64_t r, int64_t c, int64_t n, vf mean,
                             vf rstd, vf mean1, vf mean2, vtype type)
{
    const int64_t at = r * a->cols + c;
    vf xhat = (vget(a->x, at, n, type) - mean) * rstd;
    vf g = vfma(vget(a->dy, at, n, type), vget(a->weight, c, n, VF32), vset(0) - mean1);
    vf dx = rstd * vnfma(xhat, mean2, g);
    if (a->add)
        dx = vget(a->add, at, n, type) + vrounded(dx, type);
    vput(a->dx, at, n, type, dx);
}

INLINE void norm_grad_apply_row(const ax_norm_grad_apply_args *a, int64_t r, grad_sums sums, vtype type)
{
    row_norm s = norm_of(a->sum, a->m2, r, a->global_cols, a->eps);
    vf mean = vset(s.mean), rstd = vset(s.rstd);
    vf mean1 = vset((float)(sums.s1 / (double)a->global_cols));
    vf mean2 = vset((float)(sums.s2 / (double)a->global_cols));
    int64_t c = 0;
    for (; c + W <= a->cols; c += W)
        norm_grad_vector(a, r, c, W, mean, rstd, mean1, mean2, type);
    if (c < a->cols)
        norm_grad_vector(a, r, c, a->cols - c, mean, rstd, mean1, mean2, type);
}

INLINE void norm_grad_apply_range(const ax_norm_grad_apply_args *a, int64_t lo, int64_t hi, vtype type)
{
    const float *s1 = a->s1, *s2 = a->s2;
    for (int64_t r = lo; r < hi; r++)
        norm_grad_apply_row(a, r, (grad_sums){s1 ? s1[r] : 0, s2[r]}, type);
}
BY_DTYPE(norm_grad_apply)

INLINE void norm_grad_range(const ax_norm_grad_args *a, int64_t lo, int64_t hi, vtype type)
{
    const ax_norm_grad_stats_args stats = ax_norm_grad_stats_of(a);
    const ax_norm_grad_apply_args apply = ax_norm_grad_apply_of(a);
    for (int64_t r = lo; r < hi; r++)
        norm_grad_apply_row(&apply, r, norm_grad_stats_row(&stats, r, type), type);
}
BY_DTYPE(norm_grad)

INLINE void add_to(void *out, int64_t at, int64_t n, vf sum)
{
    if (out)
        vput(out, at, n, VF32, vget(out, at, n, VF32) + sum);
}

/* Adds the contributions of up to SUM_ROWS rows from r0 on to dweight and dbias, for `vectors` vectors of
 * columns from c on. s[i] has the statistics of row r0 + i. */
INLINE void norm_grad_block(const ax_norm_grad_apply_args *a, const row_norm *s, int64_t r0, int64_t c,
                            int64_t hi, int vectors, vtype type)
{
    vf dweight[WIDE], dbias[WIDE];
    UNROLL
    for (int v = 0; v < vectors; v++)
        dweight[v] = dbias[v] = vset(0);
    for (int64_t r = r0; r < ax_min(a->rows, r0 + SUM_ROWS); r++) {
        vf mean = vset(s[r - r0].mean), rstd = vset(s[r - r0].rstd);
        UNROLL
        for (int v = 0; v < vectors; v++) {
            int64_t at = r * a->cols + c + v * W, n = hi - c - v * W;
            vf dy = vget(a->dy, at, n, type);
            dweight[v] = vfma(dy, (vget(a->x, at, n, type) - mean) * rstd, dweight[v]);
            dbias[v] = dbias[v] + dy;
        }
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        add_to(a->dweight, c + v * W, hi - c - v * W, dweight[v]);
        add_to(a->dbias, c + v * W, hi - c - v * W, dbias[v]);
    }
}

/* Computes columns lo … hi-1 of dweight and dbias. Rows are added in ascending order, in blocks, so that mean
 * and rstd of a row are computed once for all columns. */
INLINE void norm_grad_cols_range(const ax_norm_grad_apply_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r0 = 0; r0 < a->rows; r0 += SUM_ROWS) {
        row_norm s[SUM_ROWS];
        for (int64_t r = r0; r < ax_min(a->rows, r0 + SUM_ROWS); r++)
            s[r - r0] = norm_of(a->sum, a->m2, r, a->global_cols, a->eps);
        int64_t c = lo;
        for (; c + (WIDE - 1) * W < hi; c += WIDE * W)
            norm_grad_block(a, s, r0, c, hi, WIDE, type);
        for (; c < hi; c += W)
            norm_grad_block(a, s, r0, c, hi, 1, type);
    }
}
static void norm_grad_cols(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_norm_grad_apply_args *a = args;
    (void)scratch;
    BY_VTYPE(norm_grad_cols_range, a->dtype, a, lo, hi);
}

#endif
