/* Products of strips of rows with packed panels, as attention needs them: small ones, of operands that are
 * packed once or read in place. Also prefetches of the rows of a head. */
#ifndef AX_DEV_CPU_PANEL_KERNELS_H
#define AX_DEV_CPU_PANEL_KERNELS_H

#include "gemm_kernels.h"

/* panel_count returns the number of panels (groups of columns, interleaved) into which a right operand of n
 * columns is packed, panel_column the first column of panel p. A single panel has as many vectors as n
 * columns need. Several panels are as wide as the widest micro-tile; if that width does not divide n, the
 * last panels are narrower by one vector, so that widths are nearly equal. */
INLINE int64_t panel_count(const ax_cpu_gemm *gm, int64_t n)
{
    return (n + gm->vectors * W - 1) / (gm->vectors * W);
}
INLINE int64_t panel_column(const ax_cpu_gemm *gm, int64_t n, int64_t p, int64_t panels)
{
    int64_t vectors = (n + W - 1) / W, wide = vectors - panels * (gm->vectors - 1);
    if (panels == 1)
        return p * vectors * W;
    return (p * (gm->vectors - 1) + (p < wide ? p : wide)) * W;
}

/* Returns the number of keys at whose multiples ranges of score columns (keys) begin and end, so that a range
 * consists of whole vectors, and of whole steps of the matmul that reads the scores. */
INLINE int64_t key_step(const ax_cpu_gemm *gm) { return ax_max(W, gm->grain * gm->pair); }

/* Packs a right operand of n columns and k rows into adjacent panels. Panel p starts at out + units ·
 * panel_column(p), where `units` is the number of 32-bit units per column. */
INLINE void pack_panels(const ax_cpu_gemm *gm, const void *src, int64_t size, int64_t ld, bool along_k,
                        int64_t n, int64_t k, float *out)
{
    int64_t panels = panel_count(gm, n), units = ax_cpu_units(gm, k);
    for (int64_t p = 0; p < panels; p++) {
        int64_t c0 = panel_column(gm, n, p, panels), c1 = panel_column(gm, n, p + 1, panels);
        int64_t cols = c1 < n ? c1 - c0 : n - c0;
        gm->pack_b((const char *)src + (along_k ? c0 * ld : c0) * size, ld, along_k, cols, k, (int)(c1 - c0),
                   units, out + c0 * units);
    }
}

/* A left operand that consists of many strips (the rows of one micro-tile each). `rows` is the first strip;
 * the strip that begins at row i lies i·step bytes after the first. */
typedef struct left {
    ax_cpu_rows rows;
    int64_t step;
} left;

/* Returns n rows of d values as a left operand. The rows are read in place, or packed into `room`: if tiles
 * cannot use the values as they are, if d values are not a multiple of gm->grain 32-bit units, or if tiles
 * would read past the last row. */
INLINE left left_rows(const ax_cpu_gemm *gm, const void *src, int64_t size, int64_t ld, int64_t n, int64_t d,
                      float *room)
{
    if (size * gm->pair == 4 && d % (gm->grain * gm->pair) == 0 && (gm->grain == 1 || n % gm->rows == 0))
        return (left){{src, NULL, ld * size, 4, gm->rows}, ld * size};
    int64_t units = ax_cpu_units(gm, d);
    gm->pack_a(src, ld, true, n, d, 0, units, room);
    return (left){{room, NULL, gm->grain * 4, gm->rows * 4, gm->rows}, units * 4};
}

/* Returns the strip (the rows of one micro-tile) of the left operand `a` that begins at row i. */
INLINE ax_cpu_rows strip_of(const left *a, int64_t i)
{
    ax_cpu_rows rows = a->rows;
    rows.at = (const char *)rows.at + i * a->step;
    return rows;
}

/* Computes columns lo … hi-1 of c = a·b (+ c if `add`) for a strip a (the rows of one micro-tile) and packed
 * panels b of n columns, over units u0 … u1-1 of the inner dimension (a unit is an fp32 value, or a pair of
 * bf16 values). Each column of b has `units` units, from unit 0 on; `a` begins at unit u0. Computes whole
 * panels, so columns around lo … hi-1 are overwritten too. */
INLINE void strip_times_panels(const ax_cpu_gemm *gm, ax_cpu_rows a, const float *b, int64_t n, int64_t lo,
                               int64_t hi, int64_t units, int64_t u0, int64_t u1, int64_t rows, float *c,
                               int64_t ld, bool add)
{
    int64_t panels = panel_count(gm, n);
    for (int64_t p = 0; p < panels; p++) {
        int64_t c0 = panel_column(gm, n, p, panels), c1 = panel_column(gm, n, p + 1, panels), width = c1 - c0;
        if (c1 <= lo || c0 >= hi)
            continue;
        ax_cpu_tile t = {.c = c + c0, .c_ld = ld, .prior = add ? c + c0 : NULL, .prior_ld = ld, .rows = rows};
        t.plain = true;
        t.cols = c1 < n ? width : n - c0;
        gm->tile((int)(width / W), (u1 - u0) * gm->pair, &a, b + c0 * units + u0 * width, &t);
    }
}

/* ROWS_AHEAD: how many rows ahead a loop prefetches that does little with each row. */
enum { ROWS_AHEAD = 32 };

/* n rows of a head, each `bytes` long, `stride` bytes apart. The hardware prefetcher does not follow them. */
typedef struct head_rows {
    const char *at;
    int64_t stride, bytes, n;
} head_rows;

/* Prefetches rows r0 … r1-1 into the L2 cache. */
INLINE void prefetch_rows(const head_rows *x, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < ax_min(r1, x->n); r++)
        for (int64_t byte = 0; byte < x->bytes; byte += LINE)
            __builtin_prefetch(x->at + r * x->stride + byte, 0, 2);
}

#endif
