/* Products with few rows (m <= AX_CPU_GEMV_ROWS), bound by reading b: nothing is packed. */
#ifndef AX_DEV_CPU_GEMV_KERNELS_H
#define AX_DEV_CPU_GEMV_KERNELS_H

#include "gemm_kernels.h"

/* c[i,j] takes `sum`. */
static __attribute__((noinline)) void gemv_store(const ax_gemm_args *g, int64_t i, int64_t j, float sum)
{
    int64_t at = i * g->ldc + j;
    if (g->bias)
        sum += ((const float *)g->bias)[j];
    vtype type = vtype_of(g->c_dtype);
    if (g->accumulate)
        sum += vget_one(g->c, at, type);
    vput(g->c, at, 1, type, vset(sum));
}

/* Columns of b ahead of one in work that are asked for: so many bytes are on their way. */
INLINE int64_t gemv_ahead(const ax_gemm_args *g, vtype type)
{
    enum { BYTES = 3 << 10 };
    return BYTES / (g->ldb * vsize(type)) + 1;
}

/* b is [n,k]: a dot product per column, of four columns at a time that are `apart`: with the columns after
 * them, which lie behind them, they are four long streams of memory. */
INLINE void gemv_dots(const ax_gemm_args *g, int rows, int cols, int64_t j, int64_t apart, int64_t ahead,
                      vtype type)
{
    const int64_t size = vsize(type);
    vf sum[AX_CPU_GEMV_ROWS][4];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int c = 0; c < cols; c++)
            sum[i][c] = vset(0);
    }
#ifdef AX_SIMD_BF16
    const bool pairs = type == VBF16;
    const int64_t step = pairs ? 2 * W : W;
#else
    const bool pairs = false;
    const int64_t step = W;
#endif
    for (int64_t k = 0; k < g->k; k += step) {
        vf x[4];
        UNROLL
        for (int c = 0; c < cols; c++)
            __builtin_prefetch((const char *)g->b + ((j + c * apart + ahead) * g->ldb + k) * size);
        UNROLL
        for (int c = 0; c < cols; c++)
#ifdef AX_SIMD_BF16
            x[c] = pairs ? pairs_along_k((const uint16_t *)g->b + (j + c * apart) * g->ldb, k, g->k - k)
                         : vget(g->b, (j + c * apart) * g->ldb + k, g->k - k, type);
#else
            x[c] = vget(g->b, (j + c * apart) * g->ldb + k, g->k - k, type);
#endif
        UNROLL
        for (int i = 0; i < rows; i++) {
#ifdef AX_SIMD_BF16
            vf a = pairs ? pairs_along_k((const uint16_t *)g->a + i * g->lda, k, g->k - k)
                         : vget(g->a, i * g->lda + k, g->k - k, type);
#else
            vf a = vget(g->a, i * g->lda + k, g->k - k, type);
#endif
            UNROLL
            for (int c = 0; c < cols; c++)
                sum[i][c] = multiply_add(pairs, a, x[c], sum[i][c]);
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int c = 0; c < cols; c++)
            gemv_store(g, i, j + c * apart, vsum(sum[i][c]));
    }
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
    UNROLL
    for (int i = 0; i < rows; i++) {
        float out[4 * W];
        UNROLL
        for (int v = 0; v < nv; v++)
            vstore(out + v * W, sum[i][v]);
        for (int64_t c = 0; c < nv * W && j + c < hi; c++)
            gemv_store(g, i, j + c, out[c]);
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
