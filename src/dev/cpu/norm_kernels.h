/* LayerNorm and RMSNorm over a width that may be split over ranks (axonn/kernels.h has the formulas). Work
 * items are rows; for norm_grad and norm_grad_apply they are chunks of rows (ax_cpu_norm_grad). */
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
 * single vector each multiply-add would wait for the previous one. */
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

/* The values of a row that norm_grad_vector needs: the statistics `mean` and `rstd`; mean1 and mean2, which
 * are the sums s1 and s2 divided by global_cols. */
typedef struct row_grad {
    vf mean, rstd, mean1, mean2;
} row_grad;

/* Computes dx for W elements of row r (or n, if that is less), from column c on, and adds the row's
 * contributions to dweight and dbias (each may be NULL) from element c on. Both arrays are padded to whole
 * vectors, and the padding is not used afterwards. */
INLINE void norm_grad_vector(const ax_norm_grad_apply_args *a, int64_t r, int64_t c, int64_t n,
                             const row_grad *s, float *dweight, float *dbias, vtype type)
{
    const int64_t at = r * a->cols + c;
    vf xhat = (vget(a->x, at, n, type) - s->mean) * s->rstd, dy = vget(a->dy, at, n, type);
    vf g = vfma(dy, vget(a->weight, c, n, VF32), vset(0) - s->mean1);
    vf dx = s->rstd * vnfma(xhat, s->mean2, g);
    if (a->add)
        dx = vget(a->add, at, n, type) + vrounded(dx, type);
    vput(a->dx, at, n, type, dx);
    if (dweight)
        vstore(dweight + c, vfma(dy, xhat, vload(dweight + c)));
    if (dbias)
        vstore(dbias + c, vload(dbias + c) + dy);
}

INLINE void norm_grad_row(const ax_norm_grad_apply_args *a, int64_t r, grad_sums sums, float *dweight,
                          float *dbias, vtype type)
{
    row_norm n = norm_of(a->sum, a->m2, r, a->global_cols, a->eps);
    const row_grad s = {vset(n.mean), vset(n.rstd), vset((float)(sums.s1 / (double)a->global_cols)),
                        vset((float)(sums.s2 / (double)a->global_cols))};
    int64_t c = 0;
    for (; c + W <= a->cols; c += W)
        norm_grad_vector(a, r, c, W, &s, dweight, dbias, type);
    if (c < a->cols)
        norm_grad_vector(a, r, c, a->cols - c, &s, dweight, dbias, type);
}

/* Computes chunks lo … hi-1 of norm_grad_apply or, if `stats` is not NULL, of norm_grad, which first computes
 * the sums s1 and s2 of each row. */
INLINE void norm_grad_range(const ax_cpu_norm_grad *j, const ax_norm_grad_stats_args *stats,
                            const ax_norm_grad_apply_args *a, int64_t lo, int64_t hi, vtype type)
{
    const float *s1 = a->s1, *s2 = a->s2;
    for (int64_t i = lo; i < hi; i++) {
        float *dweight = a->dweight ? j->sums + 2 * i * j->stride : NULL;
        float *dbias = a->dbias ? j->sums + (2 * i + 1) * j->stride : NULL;
        memset(j->sums + 2 * i * j->stride, 0, 2 * (size_t)j->stride * sizeof(float));
        for (int64_t r = i * j->chunk; r < ax_min(a->rows, (i + 1) * j->chunk); r++) {
            grad_sums sums = stats ? norm_grad_stats_row(stats, r, type) : (grad_sums){s1 ? s1[r] : 0, s2[r]};
            norm_grad_row(a, r, sums, dweight, dbias, type);
        }
    }
}

static void norm_grad_apply(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_cpu_norm_grad *j = args;
    const ax_norm_grad_apply_args *a = j->args;
    (void)scratch;
    BY_VTYPE(norm_grad_range, a->dtype, j, NULL, a, lo, hi);
}

static void norm_grad(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_cpu_norm_grad *j = args;
    const ax_norm_grad_stats_args stats = ax_norm_grad_stats_of(j->args);
    const ax_norm_grad_apply_args a = ax_norm_grad_apply_of(j->args);
    (void)scratch;
    BY_VTYPE(norm_grad_range, a.dtype, j, &stats, &a, lo, hi);
}

/* Adds columns lo … hi-1 of the sums of all chunks to `out`, which is dweight or dbias, in the order of the
 * chunks. Does nothing if `out` is NULL. */
INLINE void norm_grad_add(const ax_cpu_norm_grad *j, const float *sums, void *out, int64_t lo, int64_t hi)
{
    for (int64_t c = lo; out && c < hi; c += W) {
        vf sum = vget(out, c, hi - c, VF32);
        for (int64_t i = 0; i < j->chunks; i++)
            sum = sum + vload(sums + 2 * i * j->stride + c);
        vput(out, c, hi - c, VF32, sum);
    }
}

static void norm_grad_sum(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_cpu_norm_grad *j = args;
    (void)scratch;
    norm_grad_add(j, j->sums, j->dweight, lo, hi);
    norm_grad_add(j, j->sums + j->stride, j->dbias, lo, hi);
}

#endif
