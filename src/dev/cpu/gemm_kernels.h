/* The instruction-set half of the matrix product: packing and micro-tiles. gemm.c has the loops around them.
 *
 * Operands are packed into "panels": `width` rows of op(a), or columns of op(b), interleaved, so that
 * the micro-tile reads memory straight through. A panel's element is a 32-bit unit: an fp32 value, or a pair
 * of bf16 values that are neighbours in k where the processor multiplies such pairs (AX_SIMD_BF16); elsewhere
 * bf16 is widened to fp32 while it is packed, as fp16 is everywhere.
 *
 *     a panel:  [k][TILE_ROWS]      b panel:  [k][nv*W], nv = 1 … TILE_VECTORS
 *
 * The micro-tile keeps TILE_ROWS x nv vectors of sums in registers: per step in k it loads nv vectors of b,
 * and for each row one broadcast value of a and nv multiply-adds. 8 x 3 vectors of 16 use 24 of 32 registers
 * for sums; with 16 registers it is 4 x 3. That many independent sums hide the latency of the multiply-adds,
 * and 11 loads per 24 of them stay below what the first-level cache delivers. */
#ifndef AX_DEV_CPU_GEMM_KERNELS_H
#define AX_DEV_CPU_GEMM_KERNELS_H

#include "cpu.h"
#include "simd.h"

enum { TILE_ROWS = W == 16 ? 8 : 4, TILE_VECTORS = 3 };

/* What is packed into what. */
typedef enum { FROM_F32 = VF32, FROM_BF16 = VBF16, FROM_F16 = VF16, BF16_PAIRS } pack_kind;

/* ---- packing ------------------------------------------------------------------------------------- */

/* W consecutive units in k, from unit `u` of `left`, of a row that is contiguous in k. */
INLINE vf units_along_k(pack_kind kind, const void *row, int64_t u, int64_t left)
{
    return kind == BF16_PAIRS ? vset(0) : vget(row, u, left, (vtype)kind);
}

#ifdef AX_SIMD_BF16
/* The same for pairs; `left` counts bf16 values and may be odd: the last pair then ends with 0. */
INLINE vf pairs_along_k(const uint16_t *row, int64_t k, int64_t left)
{
    __mmask32 mask = left >= 2 * W ? ~(__mmask32)0 : ((__mmask32)1 << left) - 1;
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, row + k));
}
/* Pairs of two rows k and k+1 that are contiguous in the other index; row1 is NULL beyond the last k. */
INLINE vf pairs_of_rows(const uint16_t *row0, const uint16_t *row1, int64_t n)
{
    __mmask16 mask = n >= W ? (__mmask16)~0u : lanes(n);
    __m512i lo = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row0));
    __m512i hi = row1 ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row1)) : _mm512_setzero_si512();
    return _mm512_castsi512_ps(_mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
}
#endif

/* W units, of rows r … r+W-1, go to their place in the panels: one panel, or two of half a vector each. A
 * wide panel comes alone (pack_b): what divides is a constant. */
INLINE void put_units(float *out, int64_t r, int64_t u, int64_t apart, int width, int64_t rows, vf x)
{
    if (width > TILE_ROWS) {
        vstore(out + u * width + r, x);
        return;
    }
    float *panel = out + r / TILE_ROWS * TILE_ROWS * apart + r % TILE_ROWS + u * width;
    if (width >= W)
        vstore(panel, x);
    else if (r + width < rows)
        vstore_halves(panel, panel + width * apart, x);
    else {
        float unused[W];
        vstore_halves(panel, unused, x);
    }
}

/* Rows contiguous in k: W x W blocks are transposed on the way. */
INLINE void pack_along_k(pack_kind kind, const char *src, int64_t ld, int64_t rows, int64_t k, int width,
                         int64_t apart, float *out)
{
    int64_t size = kind == FROM_F32 ? 4 : 2, units = kind == BF16_PAIRS ? (k + 1) / 2 : k;
    for (int64_t r = 0; r < rows; r += W)
        for (int64_t u = 0; u < units; u += W) {
            vf block[W];
#ifdef AX_SIMD_BF16
            if (kind == BF16_PAIRS && width > TILE_ROWS && r + W <= rows && 2 * (u + W) <= k) {
                const uint16_t *row = (const uint16_t *)(const void *)(src + r * ld * size) + 2 * u;
                UNROLL
                for (int i = 0; i < W; i++)
                    block[i] = _mm512_loadu_ps(row + i * ld);
                vtranspose(block);
                UNROLL
                for (int i = 0; i < W; i++)
                    vstore(out + (u + i) * width + r, block[i]);
                continue;
            }
#endif
            UNROLL
            for (int i = 0; i < W; i++) {
                const char *row = src + (r + i) * ld * size;
                if (r + i >= rows)
                    block[i] = vset(0);
#ifdef AX_SIMD_BF16
                else if (kind == BF16_PAIRS)
                    block[i] = pairs_along_k((const uint16_t *)(const void *)row, 2 * u, k - 2 * u);
#endif
                else
                    block[i] = units_along_k(kind, row, u, units - u);
            }
            vtranspose(block);
            UNROLL
            for (int i = 0; i < W; i++)
                if (u + i < units)
                    put_units(out, r, u + i, apart, width, rows, block[i]);
        }
}

#ifdef AX_SIMD_BF16
/* 2·W pairs of two rows, to one panel that is wider. */
INLINE void put_row_pairs(const uint16_t *row0, const uint16_t *row1, float *to)
{
    static const uint16_t order[2 * W * 2] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                              8,  40, 9,  41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47,
                                              16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                              24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
    vi a = _mm512_loadu_si512(row0), b = _mm512_loadu_si512(row1);
    vi lo = _mm512_permutex2var_epi16(a, _mm512_loadu_si512(order), b);
    vi hi = _mm512_permutex2var_epi16(a, _mm512_loadu_si512(order + 2 * W), b);
    vstore(to, _mm512_castsi512_ps(lo));
    vstore(to + W, _mm512_castsi512_ps(hi));
}
#endif

/* Contiguous in the row index: vectors are copied, widened or interleaved. */
INLINE void pack_across_k(pack_kind kind, const char *src, int64_t ld, int64_t rows, int64_t k, int width,
                          int64_t apart, float *out)
{
    int64_t size = kind == FROM_F32 ? 4 : 2, step = kind == BF16_PAIRS ? 2 : 1;
    int64_t units = (k + step - 1) / step;
    for (int64_t u = 0; u < units; u++) {
        const char *row = src + u * step * ld * size;
        int64_t r = 0;
#ifdef AX_SIMD_BF16
        for (; kind == BF16_PAIRS && width > TILE_ROWS && 2 * u + 1 < k && r + 2 * W <= rows; r += 2 * W) {
            const uint16_t *at = (const uint16_t *)(const void *)row + r;
            put_row_pairs(at, at + ld, out + u * width + r);
        }
#endif
        for (; r < rows; r += W) {
            const void *p = row + r * size;
            vf x;
#ifdef AX_SIMD_BF16
            if (kind == BF16_PAIRS)
                x = pairs_of_rows(p, 2 * u + 1 < k ? (const uint16_t *)p + ld : NULL, rows - r);
            else
#endif
                x = units_along_k(kind, p, 0, rows - r);
            put_units(out, r, u, apart, width, rows, x);
        }
    }
}

INLINE void pack(pack_kind kind, const void *src, int64_t ld, bool along_k, int64_t rows, int64_t k,
                 int width, int64_t apart, void *out)
{
    if (along_k)
        pack_along_k(kind, src, ld, rows, k, width, apart, out);
    else
        pack_across_k(kind, src, ld, rows, k, width, apart, out);
}

/* ---- micro-tiles --------------------------------------------------------------------------------- */

INLINE vf multiply_add(bool pairs, vf a, vf b, vf sum)
{
#ifdef AX_SIMD_BF16
    if (pairs)
        return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
#endif
    (void)pairs;
    return vfma(a, b, sum);
}

/* The sums join what is there and are stored. Kept out of the tile's many variants: it is not where time
 * goes. */
static __attribute__((noinline)) void tile_store(const ax_cpu_tile *t, const float *sums, int64_t width)
{
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t at = 0; at < t->cols; at += W) {
            int64_t n = t->cols - at;
            vf sum = vload(sums + i * width + at);
            if (t->prior)
                sum = sum + vget(t->prior + i * t->prior_ld, at, n, VF32);
            if (t->bias)
                sum = sum + vget(t->bias, at, n, VF32);
            if (t->add_c)
                sum = sum + vget(t->c, i * t->c_ld + at, n, t->c_type);
            vput(t->c, i * t->c_ld + at, n, t->c_type, sum);
        }
}

/* A whole vector of sums with what it joins. */
INLINE vf joined(const ax_cpu_tile *t, vf sum, const float *prior, int64_t at)
{
    if (t->prior)
        sum = sum + vload(prior + at);
    return t->bias ? (vf)(sum + vload(t->bias + at)) : sum;
}

/* Units between two times that a tile asks for what is needed soon: a line of each row of a. Tiles of half
 * the width have half the work in that, so they do it half as often, and leave strips of a to the processor.
 */
enum { LINE = AX_CPU_LINE, ASKS_FOR_STRIPS = W == 16, RUN = ASKS_FOR_STRIPS ? LINE / 4 : LINE / 2 };

INLINE void ask_lines(ax_cpu_ask *ask, int64_t most)
{
    for (; most > 0 && ask->n > 0; most--, ask->n--) {
        __builtin_prefetch(ask->at + ask->line * LINE, 0, 2);
        if (++ask->line == ask->lines) {
            ask->line = 0;
            ask->at += ask->stride;
        }
    }
}

/* What is asked for while a tile multiplies, a share of it every run: the next strip of a, a row of c, what
 * is packed soon. */
typedef struct soon {
    const char *next, *c;
    int64_t next_row, c_row, c_bytes, share[2];
    ax_cpu_ask ask[2];
} soon;

INLINE soon soon_of(const ax_cpu_tile *t, const ax_cpu_rows *a, int64_t units, int nv)
{
    soon s = {.next = (const char *)(a->next ? a->next : a->at), .next_row = a->unit == 4 ? a->row : LINE};
    int64_t size = t->prior ? 4 : vsize(t->c_type), runs = (units + RUN - 1) / RUN;
    s.c = t->prior ? (const char *)t->prior : (const char *)t->c;
    s.c_row = (t->prior ? t->prior_ld : t->c_ld) * size;
    s.c_bytes = nv * W * size;
    for (int i = 0; i < 2; i++) {
        s.ask[i] = t->ask[i];
        s.share[i] = t->ask[i].n ? (t->ask[i].n + runs - 1) / runs : 0; /* division is slow */
    }
    return s;
}

INLINE void ask_for_run(soon *s, const ax_cpu_tile *t, int64_t run)
{
    if (run < t->rows) { /* a tile of few units asks for its first rows only */
        const char *c = s->c + run * s->c_row;
        for (int64_t at = 0; at < s->c_bytes; at += LINE)
            __builtin_prefetch(c + at, 1, 3);
        __builtin_prefetch(c + s->c_bytes - 1, 1, 3);
    }
    for (int i = 0; i < 2; i++)
        ask_lines(&s->ask[i], s->share[i]);
}

/* Rows of a are either side by side, as in panels, or contiguous in k: what is constant then costs a step in
 * k no instruction, which counts when another thread has the core's other half. */
INLINE void tile(bool pairs, bool beside, int rows, int nv, int64_t units, const ax_cpu_rows *a,
                 const float *b, const ax_cpu_tile *t)
{
    const char *row[TILE_ROWS];
    UNROLL
    for (int i = 0; i < rows; i++)
        row[i] = (const char *)a->at + (beside ? i * 4 : (i < t->rows ? i : t->rows - 1) * a->row);
    const int64_t step = beside ? a->unit : 4;
    int64_t offset = 0;
    vf sum[TILE_ROWS][TILE_VECTORS];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            sum[i][v] = vset(0);
    }
    soon s;
    bool asks = a->next || t->ask[0].n || t->ask[1].n; /* else all is near */
    if (asks)
        s = soon_of(t, a, units, nv);
    int64_t length = asks ? RUN : units;
    for (int64_t left = units, run = 0; left > 0; left -= length, run++) {
        if (asks) {
            UNROLL
            for (int i = 0; i < rows * ASKS_FOR_STRIPS; i++)
                __builtin_prefetch(s.next + offset + i * s.next_row, 0, 3);
            ask_for_run(&s, t, run);
        }
        for (int64_t u = left < length ? left : length; u > 0; u--) {
            vf bv[TILE_VECTORS];
            UNROLL
            for (int v = 0; v < nv; v++)
                bv[v] = vload(b + v * W);
            UNROLL
            for (int i = 0; i < rows; i++) {
                float value;
                memcpy(&value, row[i] + offset, sizeof value);
                vf av = vset(value);
                UNROLL
                for (int v = 0; v < nv; v++)
                    sum[i][v] = multiply_add(pairs, av, bv[v], sum[i][v]);
            }
            offset += step;
            b += nv * W;
        }
    }
    bool full = t->rows == rows && t->cols == nv * W;
    if (full && t->c_type == VF32) {
        UNROLL
        for (int i = 0; i < rows; i++) {
            float *to = (float *)t->c + i * t->c_ld;
            const float *prior = t->prior + i * t->prior_ld;
            UNROLL
            for (int v = 0; v < nv; v++)
                vstore(to + v * W, joined(t, sum[i][v], prior, v * W));
        }
        return;
    }
    if (full && !t->add_c && t->c_type == VBF16) {
        UNROLL
        for (int i = 0; i < rows; i++) {
            uint16_t *to = (uint16_t *)t->c + i * t->c_ld;
            const float *prior = t->prior + i * t->prior_ld;
            UNROLL
            for (int v = 0; v < nv; v++)
                vstore_b(to + v * W, joined(t, sum[i][v], prior, v * W));
        }
        return;
    }
    _Alignas(64) float out[TILE_ROWS * TILE_VECTORS * W];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            vstore(out + (i * nv + v) * W, sum[i][v]);
    }
    tile_store(t, out, nv * W);
}

/* Edges in m use half the rows where that is enough. */
INLINE void tile_of(bool pairs, bool beside, int nv, int64_t units, const ax_cpu_rows *a, const void *b,
                    const ax_cpu_tile *t)
{
    if (nv == 3 && t->rows > TILE_ROWS / 2)
        tile(pairs, beside, TILE_ROWS, 3, units, a, b, t);
    else if (nv == 3)
        tile(pairs, beside, TILE_ROWS / 2, 3, units, a, b, t);
    else if (nv == 2)
        tile(pairs, beside, TILE_ROWS, 2, units, a, b, t);
    else
        tile(pairs, beside, TILE_ROWS, 1, units, a, b, t);
}
INLINE void tile_any(bool pairs, int nv, int64_t units, const ax_cpu_rows *a, const void *b,
                     const ax_cpu_tile *t)
{
    if (a->unit == 4)
        tile_of(pairs, false, nv, units, a, b, t);
    else
        tile_of(pairs, true, nv, units, a, b, t);
}

/* The product of a type that is packed as `kind`, `values` of k in a unit, and multiplied by `multiply`. */
#define PACKED_GEMM(type, kind, values, multiply)                                                            \
    static void pack_a_##type(const void *src, int64_t ld, bool along_k, int64_t rows, int64_t k, int width, \
                              int64_t units, void *out)                                                      \
    {                                                                                                        \
        (void)width;                                                                                         \
        pack(kind, src, ld, along_k, rows, k, TILE_ROWS, units, out);                                        \
    }                                                                                                        \
    static void pack_b_##type(const void *src, int64_t ld, bool along_k, int64_t rows, int64_t k, int width, \
                              int64_t units, void *out)                                                      \
    {                                                                                                        \
        pack(kind, src, ld, along_k, rows, k, width, units, out);                                            \
    }                                                                                                        \
    static const ax_cpu_gemm gemm_##type = {.rows = TILE_ROWS,                                               \
                                            .lanes = W,                                                      \
                                            .vectors = TILE_VECTORS,                                         \
                                            .pair = values,                                                  \
                                            .grain = 1,                                                      \
                                            .pack_cost = 16,                                                 \
                                            .a_packed = 128 << 10,                                           \
                                            .a_lying = INT64_MAX,                                            \
                                            .pack_a = pack_a_##type,                                         \
                                            .pack_b = pack_b_##type,                                         \
                                            .tile = multiply}

static void tile_widened(int nv, int64_t k, const ax_cpu_rows *a, const void *b, const ax_cpu_tile *t)
{
    tile_any(false, nv, k, a, b, t);
}
PACKED_GEMM(f32, FROM_F32, 1, tile_widened);
PACKED_GEMM(f16, FROM_F16, 1, tile_widened);

#if defined(AX_SIMD_AMX)
#include "gemm_amx_kernels.h"
#elif defined(AX_SIMD_BF16)
static void tile_pairs(int nv, int64_t k, const ax_cpu_rows *a, const void *b, const ax_cpu_tile *t)
{
    tile_any(true, nv, (k + 1) / 2, a, b, t);
}
PACKED_GEMM(bf16, BF16_PAIRS, 2, tile_pairs);
#else
PACKED_GEMM(bf16, FROM_BF16, 1, tile_widened);
#endif

/* That of an element type, a constant. */
INLINE const ax_cpu_gemm *gemm_of(vtype type)
{
    return type == VBF16 ? &gemm_bf16 : type == VF16 ? &gemm_f16 : &gemm_f32;
}

#endif
