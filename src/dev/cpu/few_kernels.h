/* GEMMs of few rows, c = a·bᵀ with at most AX_CPU_FEW_ROWS rows of a, as in the generation of as many texts.
 * They are bound by reading b, whose packed panels would be used for one or two tiles each. So the sides are
 * exchanged: lanes are rows of c. Only a, which is small, is packed. A row of b is a column of c and
 * contiguous in k; its values are read in place and broadcast.
 *
 * An element of c is the same sequence of multiply-adds as in gemm.c, with the factors exchanged, so it has
 * the same bits. */
#ifndef AX_DEV_CPU_FEW_KERNELS_H
#define AX_DEV_CPU_FEW_KERNELS_H

#include "gemv_kernels.h"

/* FEW_STORED: columns of c that are stored together. FEW_UNITS: units in k (fp32 values, or pairs of bf16)
 * for which rows of b are copied into the L1 cache: there, addresses differ by constants, and values are
 * fp32. */
enum { FEW_ROWS = AX_CPU_FEW_ROWS, FEW_STORED = 32, FEW_UNITS = 64 };

/* Stores sums of columns j … j+cols-1 of c, those of a column side by side, and adds the bias. */
INLINE void few_store(const ax_gemm_args *g, int64_t j, int64_t cols, const float sums[][FEW_ROWS])
{
    const vtype type = vtype_of(g->c_dtype);
    for (int64_t at = 0; at < cols; at += W)
        for (int64_t i = 0; i < g->m; i += W) {
            vf block[W];
            float rows[W * W];
            UNROLL
            for (int v = 0; v < W; v++)
                block[v] = vload(&sums[at + v][i]);
            vtranspose(block);
            UNROLL
            for (int v = 0; v < W; v++)
                vstore(rows + v * W, block[v]);
            tile_store(&(ax_cpu_tile){.c = (char *)g->c + (i * g->ldc + j + at) * vsize(type),
                                      .c_type = type,
                                      .rows = ax_min(W, g->m - i),
                                      .cols = ax_min(W, cols - at),
                                      .c_ld = g->ldc,
                                      .bias = g->bias ? (const float *)g->bias + j + at : NULL},
                       rows, W);
        }
}

/* The computation of sums for columns of c over the values k0 … k1-1 of k. `a`: panel of packed rows of a,
 * from unit 0 on; j: the first column; n: how many there are, the others that are computed beside them get
 * any sums. `ahead`: how many bytes after each value of b lies the one to prefetch, of the part that is
 * computed next. */
typedef struct few_part {
    const ax_gemm_args *g;
    const float *a;
    int64_t j, n, k0, k1, ahead;
} few_part;

/* Returns the address of value k of row c of those of b that the part has. Rows that b lacks are read as its
 * last. */
INLINE const char *few_row(const few_part *p, int64_t c, int64_t k, vtype type)
{
    return (const char *)p->g->b + ((p->j + ax_min(c, p->n - 1)) * p->g->ldb + k) * vsize(type);
}

/* Copies `units` units of `cols` rows of b, from value k on. */
INLINE void few_copy(const few_part *p, int cols, int64_t k, int64_t units, bool pairs, vtype type,
                     float to[][FEW_UNITS])
{
    const int64_t values = pairs ? 2 : 1, rest = p->k1 - k;
    for (int c = 0; c < cols; c++) {
        const char *row = few_row(p, c, k, type);
        for (int64_t u = 0; u < units; u += W)
            vstore(&to[c][u], gemv_load(pairs, row, u * values, rest - u * values, type));
    }
}

/* Adds the sums of one block in k. nv: vectors of rows of a. The prefetches are spread over the
 * multiply-adds: in a burst they would wait for one another. */
INLINE void few_block(const few_part *p, int cols, int nv, bool pairs, vtype type, float out[][FEW_ROWS])
{
    _Alignas(64) float b[16][FEW_UNITS];
    vf sum[16][FEW_ROWS / W];
    const int64_t values = pairs ? 2 : 1, run = FEW_UNITS / cols;
    UNROLL
    for (int c = 0; c < cols; c++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            sum[c][v] = vset(0);
    }
    const float *a = p->a + p->k0 / values * nv * W;
    for (int64_t k = p->k0; k < p->k1; k += FEW_UNITS * values) {
        const int64_t units = ax_min(FEW_UNITS, (p->k1 - k + values - 1) / values);
        few_copy(p, cols, k, units, pairs, type, b);
        for (int64_t u = 0; u < units; u++, a += nv * W) {
            if (u % run == 0) {
                const char *row = few_row(p, u / run, k, type) + p->ahead;
                UNROLL
                for (int64_t at = 0; at < FEW_UNITS * values * vsize(type); at += LINE)
                    __builtin_prefetch(row + at, 0, 2);
            }
            vf x[FEW_ROWS / W];
            UNROLL
            for (int v = 0; v < nv; v++)
                x[v] = vload(a + v * W);
            UNROLL
            for (int c = 0; c < cols; c++) {
                const vf y = vset(b[c][u]);
                UNROLL
                for (int v = 0; v < nv; v++)
                    sum[c][v] = multiply_add(pairs, y, x[v], sum[c][v]);
            }
        }
    }
    UNROLL
    for (int c = 0; c < cols; c++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            vstore(&out[c][v * W], p->k0 ? (vf)(sum[c][v] + vload(&out[c][v * W])) : sum[c][v]);
    }
}

/* The number of columns whose sums are in registers, if `nv` vectors hold a row of them. */
INLINE int few_width(int64_t nv) { return nv > 2 ? 2 : nv == 2 ? 4 : W == 16 ? 16 : 8; }

INLINE void few_sums(const few_part *p, bool pairs, vtype type, float out[][FEW_ROWS])
{
    enum { MOST = FEW_ROWS / W, TWO = MOST < 2 ? MOST : 2, THREE = MOST < 3 ? MOST : 3 };
    const int64_t vectors = (p->g->m + W - 1) / W;
    if (vectors == 1)
        few_block(p, few_width(1), 1, pairs, type, out);
    else if (vectors == 2)
        few_block(p, few_width(2), TWO, pairs, type, out);
    else if (vectors == 3)
        few_block(p, few_width(3), THREE, pairs, type, out);
    else
        few_block(p, few_width(4), MOST, pairs, type, out);
}

#ifdef AX_SIMD_AMX
/* As few_sums, by tiles of b and a. */
INLINE void few_tiles(const few_part *p, float out[][FEW_ROWS])
{
    const int64_t ld = p->g->ldb;
    const uint16_t *row = (const uint16_t *)p->g->b + p->j * ld + p->k0;
    const char *a = (const char *)p->a + p->k0 / 2 * LINE;
    _Alignas(64) float sums[AMX_ROWS * STEP], rest[AMX_ROWS * STEP];
    _tile_zero(0);
    _tile_zero(2);
    for (int64_t k = p->k0; k < p->k1; k += 2 * STEP, row += 2 * STEP, a += STEP * LINE) {
        if (p->n < AMX_ROWS || p->k1 - k < 2 * STEP) {
            amx_pack_step(row, ld, p->n, p->k1 - k, rest);
            __asm__ volatile("" ::: "memory");
            amx_step(1, (const char *)rest, LINE, a);
            continue;
        }
        UNROLL
        for (int i = 0; i < AMX_ROWS; i++)
            __builtin_prefetch((const char *)(row + i * ld) + p->ahead, 0, 2);
        amx_step(1, (const char *)row, ld * 2, a);
    }
    _tile_stored(0, sums, LINE);
    _tile_stored(2, sums + 16 * STEP, LINE);
    __asm__ volatile("" ::: "memory");
    for (int c = 0; c < AMX_ROWS; c++)
        vstore(out[c], p->k0 ? (vf)(vload(sums + c * W) + vload(out[c])) : vload(sums + c * W));
}
#endif

INLINE void few_columns(const ax_gemm_args *g, int64_t lo, int64_t hi, char *scratch, vtype type)
{
    const ax_cpu_gemm *gemm = gemm_of(type);
    const bool pairs = gemm->pair == 2, tiles = gemm->grain > 1;
    const int64_t vectors = (g->m + W - 1) / W, block = ax_cpu_gemm_block(gemm, g->k),
                  width = tiles ? FEW_STORED : few_width(vectors);
    few_part p = {.g = g, .a = (const float *)(const void *)scratch};
    /* Whole vectors of columns are stored: beyond the last column they hold any sums. */
    float sums[FEW_STORED][FEW_ROWS] = {{0}};
    gemm->pack_b(g->a, g->lda, true, g->m, g->k, (int)vectors * W, 0, scratch);
    ax_cpu_begin(gemm);
    for (int64_t j = lo; j < hi; j += FEW_STORED) {
        const int64_t cols = ax_min(FEW_STORED, hi - j);
        for (int64_t at = 0; at < cols; at += width)
            for (p.k0 = 0; p.k0 < g->k; p.k0 = p.k1) {
                p.j = j + at;
                p.n = cols - at;
                p.k1 = ax_min(g->k, p.k0 + block);
                p.ahead = (p.k1 < g->k ? p.k1 - p.k0 : width * g->ldb - p.k0) * vsize(type);
#ifdef AX_SIMD_AMX
                if (tiles) {
                    few_tiles(&p, sums);
                    continue;
                }
#endif
                few_sums(&p, pairs, type, sums + at);
            }
        few_store(g, j, cols, sums);
    }
    ax_cpu_end(gemm);
}

static void gemm_few(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_gemm_args *g = args;
    BY_VTYPE(few_columns, g->dtype, g, lo, hi, scratch);
}

#endif
