/* Products with few rows (m <= AX_CPU_GEMV_ROWS), bound by reading b: nothing is packed. */
#ifndef AX_DEV_CPU_GEMV_KERNELS_H
#define AX_DEV_CPU_GEMV_KERNELS_H

#include "gemm_kernels.h"

/* c in row i takes `sums`, n of them at most four, for columns j, j + apart, … */
INLINE void gemv_store(const ax_gemm_args *g, int64_t i, int64_t j, int64_t apart, int n, vf sums)
{
    const vtype type = vtype_of(g->c_dtype);
    const int64_t size = vsize(type);
    char *c = (char *)g->c + (i * g->ldc + j) * size, out[4 * sizeof(float)];
    if (g->bias || g->accumulate) {
        float more[W] = {0};
        UNROLL
        for (int v = 0; v < n; v++)
            more[v] = (g->bias ? ((const float *)g->bias)[j + v * apart] : 0) +
                      (g->accumulate ? vget_one(c, v * apart, type) : 0);
        sums = sums + vload(more);
    }
    vput(out, 0, 4, type, sums);
    UNROLL
    for (int v = 0; v < n; v++)
        memcpy(c + v * apart * size, out + v * size, (size_t)size);
}

/* Columns of b ahead of one in work that are asked for: so many bytes are on their way. */
INLINE int64_t gemv_ahead(const ax_gemm_args *g, vtype type)
{
    enum { BYTES = 3 << 10 };
    return BYTES / ax_max(1, g->ldb * vsize(type)) + 1;
}

/* The next values of k of a row: pairs where the processor multiplies such. */
INLINE vf gemv_load(bool pairs, const void *row, int64_t k, int64_t rest, vtype type)
{
#ifdef AX_SIMD_BF16
    if (pairs)
        return pairs_along_k(row, k, rest);
#endif
    (void)pairs;
    return vget(row, k, rest, type);
}

/* Adds the products of a vector of a's rows and one of each column of b; `rest` values of k are left. */
INLINE void gemv_step(const ax_gemm_args *g, int rows, int cols, const char *const b[4], int64_t k,
                      int64_t rest, bool pairs, vtype type, vf sum[AX_CPU_GEMV_ROWS][4])
{
    vf x[4];
    UNROLL
    for (int c = 0; c < cols; c++)
        x[c] = gemv_load(pairs, b[c], k, rest, type);
    UNROLL
    for (int i = 0; i < rows; i++) {
        vf a = gemv_load(pairs, (const char *)g->a + i * g->lda * vsize(type), k, rest, type);
        UNROLL
        for (int c = 0; c < cols; c++)
            sum[i][c] = multiply_add(pairs, a, x[c], sum[i][c]);
    }
}

/* b is [n,k]: a dot product per column, of four columns at a time that are `apart`: with the columns after
 * them, which lie behind them, they are four long streams of memory. A request at every half of a line keeps
 * up with it; more take the time of what multiplies. */
INLINE void gemv_dots(const ax_gemm_args *g, int rows, int cols, int64_t j, int64_t apart, int64_t ahead,
                      vtype type)
{
    const int64_t size = vsize(type);
    vf sum[AX_CPU_GEMV_ROWS][4];
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
    const int64_t step = pairs ? 2 * W : W, run = step < LINE / 2 / size ? LINE / 2 / size : step;
    const char *b[4];
    UNROLL
    for (int c = 0; c < cols; c++)
        b[c] = (const char *)g->b + (j + c * apart) * g->ldb * size;
    int64_t k = 0;
    for (; k + run <= g->k; k += run) {
        UNROLL
        for (int c = 0; c < cols; c++)
            __builtin_prefetch(b[c] + (ahead * g->ldb + k) * size);
        UNROLL
        for (int64_t at = 0; at < run; at += step)
            gemv_step(g, rows, cols, b, k + at, run, pairs, type, sum);
    }
    for (; k < g->k; k += step)
        gemv_step(g, rows, cols, b, k, g->k - k, pairs, type, sum);
    UNROLL
    for (int i = 0; i < rows; i++)
        gemv_store(g, i, j, apart, cols, vsum4(sum[i]));
}

/* b is [k,n]: rows of b, `nv` vectors of columns at a time, are scaled and added. */
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
    const vtype c_type = vtype_of(g->c_dtype);
    ax_cpu_tile tile = {.bias = g->bias ? (const float *)g->bias + j : NULL, .rows = 1, .c_type = c_type};
    tile.cols = ax_min(nv * W, hi - j);
    tile.add_c = g->accumulate && c_type != VF32;
    UNROLL
    for (int i = 0; i < rows; i++) {
        float out[4 * W];
        UNROLL
        for (int v = 0; v < nv; v++)
            vstore(out + v * W, sum[i][v]);
        tile.c = (char *)g->c + (i * g->ldc + j) * vsize(c_type);
        tile.prior = g->accumulate && c_type == VF32 ? tile.c : NULL;
        tile_store(&tile, out, nv * W);
    }
}

INLINE void gemv_rows(const ax_gemm_args *g, int rows, int64_t lo, int64_t hi, vtype type)
{
    int64_t j = lo;
    if (g->trans_b) {
        int64_t ahead = gemv_ahead(g, type), apart = (hi - lo) / 4;
        for (; j < lo + apart; j++)
            gemv_dots(g, rows, 4, j, apart, ahead, type);
        for (j = lo + 4 * apart; j < hi; j++)
            gemv_dots(g, rows, 1, j, 0, ahead, type);
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
