/* GEMV: GEMMs with few rows (m <= AX_CPU_GEMV_ROWS) whose a is not transposed. They are bound by reading b
 * from memory, so nothing is packed. */
#ifndef AX_DEV_CPU_GEMV_KERNELS_H
#define AX_DEV_CPU_GEMV_KERNELS_H

#include "gemm_kernels.h"

/* Adds the bias and, if g->accumulate, the old c to sums, and stores the results to columns j … j + cols - 1
 * of c. The sums of row i begin at sums + i·width. */
INLINE void gemv_store(const ax_gemm_args *g, int rows, int64_t j, int64_t cols, const float *sums,
                       int64_t width)
{
    const vtype type = vtype_of(g->c_dtype);
    char *c = (char *)g->c + j * vsize(type);
    tile_store(&(ax_cpu_tile){.c = c,
                              .c_type = type,
                              .rows = rows,
                              .cols = cols,
                              .c_ld = g->ldc,
                              .prior_ld = g->ldc,
                              .bias = g->bias ? (const float *)g->bias + j : NULL,
                              .prior = g->accumulate && type == VF32 ? (const float *)(void *)c : NULL,
                              .add_c = g->accumulate && type != VF32},
               sums, width);
}

/* Returns the prefetch distance in bytes; 0: no software prefetch. The hardware prefetcher is enough if the
 * loads of many cache lines fit into the processor's instruction window, that is if a step reads a whole line
 * of a column and multiplies it with few rows, and if the columns follow one another (`dense`). Processors
 * with AMX always use the distance that was measured on them. */
INLINE int64_t gemv_ahead(int rows, int64_t step_bytes, bool dense)
{
#ifdef AX_SIMD_AMX
    (void)rows, (void)step_bytes, (void)dense;
    return 4 << 10;
#else
    return rows > 2 || step_bytes < LINE || !dense ? 2 << 10 : 0;
#endif
}

/* Loads a vector of a row's values from k on: W pairs of bf16 if `pairs`, else W values widened to fp32. The
 * row has `rest` values from k on; lanes beyond them are 0. */
INLINE vf gemv_load(bool pairs, const void *row, int64_t k, int64_t rest, vtype type)
{
#ifdef AX_SIMD_BF16
    if (pairs)
        return pairs_along_k(row, k, rest);
#endif
    (void)pairs;
    return vget(row, k, rest, type);
}

/* Multiplies a vector of each row of a, from value k on, with a vector of each column of b, and adds the
 * products to `sum`. `b` points to value k of the first column; the columns are `far` bytes apart. `rest`
 * values of k are left. */
INLINE void gemv_step(const ax_gemm_args *g, int rows, int cols, const char *b, int64_t far, int64_t k,
                      int64_t rest, bool pairs, vtype type, vf sum[AX_CPU_GEMV_ROWS][4])
{
    vf x[4];
    UNROLL
    for (int c = 0; c < cols; c++)
        x[c] = gemv_load(pairs, b + c * far, 0, rest, type);
    UNROLL
    for (int i = 0; i < rows; i++) {
        vf a = gemv_load(pairs, (const char *)g->a + i * g->lda * vsize(type), k, rest, type);
        UNROLL
        for (int c = 0; c < cols; c++)
            sum[i][c] = multiply_add(pairs, a, x[c], sum[i][c]);
    }
}

/* Sets sum[i][c] to the dot product of row i of a and column j + c·apart of b, one partial sum per lane. */
INLINE void gemv_dots(const ax_gemm_args *g, int rows, int cols, int64_t j, int64_t apart, vtype type,
                      vf sum[AX_CPU_GEMV_ROWS][4])
{
    const int64_t size = vsize(type), column = g->ldb * size, far = apart * column;
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int c = 0; c < 4; c++)
            sum[i][c] = vset(0);
    }
#ifdef AX_SIMD_BF16
    const bool pairs = type == VBF16;
#else
    const bool pairs = false;
#endif
    const int64_t step = pairs ? 2 * W : W, run = 2 * step, whole = g->k / run * run;
    const int64_t used = g->k * size, ahead = gemv_ahead(rows, step * size, column == used);
    const char *b = (const char *)g->b + j * column;
    /* What is prefetched: the values that are read `ahead` bytes later, perhaps in one of the next columns.
     * Between columns there may be values that are not read, such as those of other experts. */
    const char *lead = b + ahead / used * column + ahead % used, *lead_end = b + ahead / used * column + used;
    int64_t k = 0;
    for (; k < whole; k += run, b += run * size, lead += run * size) {
        if (lead >= lead_end) {
            lead += column - used;
            lead_end += column;
        }
        for (int64_t at = 0; ahead && at < run * size; at += LINE) {
            UNROLL
            for (int c = 0; c < cols; c++)
                __builtin_prefetch(lead + c * far + at);
        }
        UNROLL
        for (int64_t at = 0; at < run; at += step)
            gemv_step(g, rows, cols, b + at * size, far, k + at, run, pairs, type, sum);
    }
    for (; k < g->k; k += step, b += step * size)
        gemv_step(g, rows, cols, b, far, k, g->k - k, pairs, type, sum);
}

/* Computes columns of c if b is transposed: for each c < cols, the n <= W columns from j + c·apart on. In
 * memory these `cols` ranges of columns are far apart, so up to four long streams are read side by side. The
 * n sums of a range are stored together. */
INLINE void gemv_columns(const ax_gemm_args *g, int rows, int cols, int64_t j, int64_t n, int64_t apart,
                         vtype type)
{
    float sums[AX_CPU_GEMV_ROWS][4][W];
    memset(sums, 0, (size_t)rows * sizeof *sums);
    for (int64_t at = 0; at < n; at++) {
        vf sum[AX_CPU_GEMV_ROWS][4];
        gemv_dots(g, rows, cols, j + at, apart, type, sum);
        UNROLL
        for (int i = 0; i < rows; i++) {
            float four[W];
            vstore(four, vsum4(sum[i]));
            UNROLL
            for (int c = 0; c < cols; c++)
                sums[i][c][at] = four[c];
        }
    }
    for (int c = 0; c < cols; c++)
        gemv_store(g, rows, j + c * apart, n, sums[0][c], 4 * W);
}

/* Computes `nv` vectors of columns of c, from column j on but not beyond hi-1, if b is not transposed:
 * multiplies the rows of b by values of a and adds them up. */
INLINE void gemv_axpys(const ax_gemm_args *g, int rows, int nv, int64_t j, int64_t hi, vtype type)
{
    vf sum[AX_CPU_GEMV_ROWS][4];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            sum[i][v] = vset(0);
    }
    for (int64_t k = 0; k < g->k; k++) {
        vf x[4];
        UNROLL
        for (int v = 0; v < nv; v++)
            x[v] = vget(g->b, k * g->ldb + j + v * W, hi - j - v * W, type);
        UNROLL
        for (int i = 0; i < rows; i++) {
            int64_t at = i * g->lda + k;
            vf a = vset(vget_one(g->a, at, type));
            UNROLL
            for (int v = 0; v < nv; v++)
                sum[i][v] = vfma(a, x[v], sum[i][v]);
        }
    }
    float out[AX_CPU_GEMV_ROWS][4 * W];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            vstore(&out[i][v * W], sum[i][v]);
    }
    gemv_store(g, rows, j, ax_min(nv * W, hi - j), out[0], 4 * W);
}

INLINE void gemv_rows(const ax_gemm_args *g, int rows, int64_t lo, int64_t hi, vtype type)
{
    int64_t j = lo;
    if (g->trans_b) {
        int64_t apart = (hi - lo) / 4;
        for (; j < lo + apart; j += W)
            gemv_columns(g, rows, 4, j, ax_min(W, lo + apart - j), apart, type);
        if (lo + 4 * apart < hi)
            gemv_columns(g, rows, 1, lo + 4 * apart, hi - lo - 4 * apart, 0, type);
    } else {
        for (; j + 3 * W < hi; j += 4 * W)
            gemv_axpys(g, rows, 4, j, hi, type);
        for (; j < hi; j += W)
            gemv_axpys(g, rows, 1, j, hi, type);
    }
}

INLINE void gemv_any(const ax_gemm_args *g, int64_t lo, int64_t hi, vtype type)
{
    if (g->m == 1)
        gemv_rows(g, 1, lo, hi, type);
    else if (g->m == 2)
        gemv_rows(g, 2, lo, hi, type);
    else if (g->m == 3)
        gemv_rows(g, 3, lo, hi, type);
    else
        gemv_rows(g, 4, lo, hi, type);
}

static void gemv(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_gemm_args *g = args;
    (void)scratch;
    BY_VTYPE(gemv_any, g->dtype, g, lo, hi);
}

#endif
