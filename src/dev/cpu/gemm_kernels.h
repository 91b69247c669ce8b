/* The part of GEMM that depends on the instruction set: packing and micro-tiles. A micro-tile, below also
 * called tile, is a part of c whose sums are in registers. The loops around packing and tiles are in gemm.c.
 *
 * Operands are packed into panels. A panel holds several rows of op(a), or columns of op(b), interleaved so
 * that a micro-tile reads memory sequentially. The element of a panel is a 32-bit unit. With AX_SIMD_BF16,
 * where the processor multiplies pairs of bf16 values, a unit of bf16 is such a pair, of two neighbours in k.
 * Otherwise a unit is one fp32 value: bf16 is widened to fp32 while it is packed, as fp16 always is.
 *
 *     a panel:  [units in k][TILE_ROWS]      b panel:  [units in k][nv*W], nv = 1 … TILE_VECTORS
 *
 * The micro-tile keeps TILE_ROWS x nv vectors of sums in registers. For each unit in k it loads nv vectors of
 * b, and for each row broadcasts one unit of a to a vector, with which it does nv multiply-adds. 8 x 3
 * vectors of 16 use 24 of 32 registers for sums; with 16 registers it is 4 x 3. That many independent sums
 * hide the latency of the multiply-adds, and 11 loads per 24 multiply-adds are fewer than the L1 cache can
 * deliver. */
#ifndef AX_DEV_CPU_GEMM_KERNELS_H
#define AX_DEV_CPU_GEMM_KERNELS_H

#include "cpu.h"
#include "simd.h"

enum { TILE_ROWS = W == 16 ? 8 : 4, TILE_VECTORS = 3 };

/* The kind of values to pack: values of one element type, which are converted to fp32, or pairs of bf16
 * values, which stay unchanged. */
typedef enum { FROM_F32 = VF32, FROM_BF16 = VBF16, FROM_F16 = VF16, BF16_PAIRS } pack_kind;

/* ---- packing ------------------------------------------------------------------------------------- */

/* Loads W consecutive values and converts them to fp32; if only `left` < W values are left, loads these,
 * followed by zeros. Not for BF16_PAIRS. */
INLINE vf units_of(pack_kind kind, const void *at, int64_t left)
{
    return kind == BF16_PAIRS ? vset(0) : vget(at, 0, left, (vtype)kind);
}

#ifdef AX_SIMD_BF16
/* Loads W consecutive pairs of bf16 values, from value k of `row` on. `left` is the number of values that the
 * row has from there on; the values after these are replaced by zeros. */
INLINE vf pairs_along_k(const uint16_t *row, int64_t k, int64_t left)
{
    __mmask32 mask = left >= 2 * W ? ~(__mmask32)0 : ((__mmask32)1 << left) - 1;
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, row + k));
}
/* Makes n (at most W) pairs from a source that is not contiguous in k: row0 has the values of one k, row1
 * those of the next k. row1 is NULL if there is no next k; then the second value of each pair is 0. */
INLINE vf pairs_of_rows(const uint16_t *row0, const uint16_t *row1, int64_t n)
{
    __mmask16 mask = n >= W ? (__mmask16)~0u : lanes(n);
    __m512i lo = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row0));
    __m512i hi = row1 ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row1)) : _mm512_setzero_si512();
    return _mm512_castsi512_ps(_mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
}
#endif

/* Stores 32-bit units of rows r … r+W-1 of a to the packed panels at `out`: x holds unit u of each of
 * these rows and, if `two`, y holds unit u+1. r is a multiple of W; `rows` is the number of rows that are
 * packed. `apart`: number of units of each row for which a panel has room, so that panels begin apart ·
 * TILE_ROWS units after one another. The W rows belong to one panel, or to two panels, half of them to
 * each. In the second case units u and u+1 of a panel are stored together, because they fill a vector
 * (with AVX-512 a cache line, if the panel is aligned to a line). */
INLINE void put_in_a(float *out, int64_t r, int64_t rows, int64_t u, bool two, int64_t apart, vf x, vf y)
{
    float unused[W], *panel = out + r * apart + u * TILE_ROWS;
    if (W / TILE_ROWS == 1) {
        vstore(panel, x);
        if (two)
            vstore(panel + W, y);
        return;
    }
    float *other = r + TILE_ROWS < rows
                       ? panel + TILE_ROWS * apart
                       : unused; /* if the second panel does not exist, its half is stored to `unused` */
    if (two) {
        vstore(panel, vlows(x, y));
        vstore(other, vhighs(x, y));
    } else {
        vstore_n(panel, vlows(x, x), TILE_ROWS);
        vstore_n(other, vhighs(x, x), TILE_ROWS);
    }
}

/* Loads a W x W block of 32-bit units from rows that are contiguous in k and `stride` bytes apart, and
 * transposes the block. If fewer than W rows, or fewer values of k than a block has, are left, the rest of
 * the block is zeros. */
INLINE void block_along_k(pack_kind kind, const char *src, int64_t stride, int64_t rows, int64_t k,
                          vf block[W])
{
    UNROLL
    for (int i = 0; i < W; i++) {
        const char *row = src + i * stride;
        if (i >= rows)
            block[i] = vset(0);
#ifdef AX_SIMD_BF16
        else if (kind == BF16_PAIRS)
            block[i] = pairs_along_k((const uint16_t *)(const void *)row, 0, k);
#endif
        else
            block[i] = units_of(kind, row, k);
    }
    vtranspose(block);
}

/* Packs a whole W x W block into a panel of b. Not inlined: otherwise the compiler spills the addresses of
 * all rows to memory from block to block. */
static __attribute__((noinline)) void put_block_in_b(pack_kind kind, const char *src, int64_t stride,
                                                     float *to, int64_t width)
{
    vf block[W];
    if (kind == FROM_BF16)
        block_along_k(FROM_BF16, src, stride, W, W, block);
    else if (kind == FROM_F16)
        block_along_k(FROM_F16, src, stride, W, W, block);
    else /* fp32 values and pairs of bf16 are already 32-bit units */
        block_along_k(FROM_F32, src, stride, W, W, block);
    UNROLL
    for (int i = 0; i < W; i++)
        vstore(to + i * width, block[i]);
}

/* Loads one 32-bit unit of each of W rows of op(a), or columns of op(b), or of `n` < W of them, from a
 * source in which the values of successive rows are adjacent, and successive values of k are `stride`
 * bytes apart. `whole` is false for a last pair that has only one value. */
INLINE vf units_across_k(pack_kind kind, const char *at, int64_t stride, bool whole, int64_t n)
{
#ifdef AX_SIMD_BF16
    if (kind == BF16_PAIRS)
        return pairs_of_rows((const void *)at, whole ? (const void *)(at + stride) : NULL, n);
#endif
    (void)stride, (void)whole;
    return units_of(kind, at, n);
}

#ifdef AX_SIMD_BF16
/* Makes 2·W pairs, of which pair i consists of value i of row0 and value i of row1, and stores them to a
 * panel that is at least 2·W wide. */
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

/* The strides of a source matrix of packing. A "row" is a row of op(a), or a column of op(b); a "unit" is an
 * fp32 value, or a pair of bf16 values. */
typedef struct source {
    int64_t row;    /* bytes from one row to the next */
    int64_t value;  /* bytes from one value of a row to the next */
    int64_t unit;   /* bytes from one unit of a row to the next */
    int64_t values; /* values per unit */
    int64_t units;  /* number of units of a row */
} source;

INLINE source source_of(pack_kind kind, bool along_k, int64_t ld, int64_t k)
{
    int64_t size = kind == FROM_F32 ? 4 : 2, values = kind == BF16_PAIRS ? 2 : 1;
    int64_t row = size * (along_k ? ld : 1), value = size * (along_k ? 1 : ld);
    return (source){row, value, values * value, values, (k + values - 1) / values};
}

INLINE void pack_a_along_k(pack_kind kind, const char *src, const source *s, int64_t rows, int64_t k,
                           int64_t apart, float *out)
{
    for (int64_t r = 0; r < rows; r += W)
        for (int64_t u = 0; u < s->units; u += W) {
            vf block[W];
            block_along_k(kind, src + r * s->row + u * s->unit, s->row, rows - r, k - u * s->values, block);
            for (int i = 0; i < W && u + i < s->units; i += 2)
                put_in_a(out, r, rows, u + i, u + i + 1 < s->units, apart, block[i], block[i + 1]);
        }
}

INLINE void pack_a_across_k(pack_kind kind, const char *src, const source *s, int64_t rows, int64_t k,
                            int64_t apart, float *out)
{
    for (int64_t r = 0; r < rows; r += W) {
        const char *at = src + r * s->row;
        int64_t u = 0;
        for (; (u + 2) * s->values <= k; u += 2, at += 2 * s->unit)
            put_in_a(out, r, rows, u, true, apart, units_across_k(kind, at, s->value, true, rows - r),
                     units_across_k(kind, at + s->unit, s->value, true, rows - r));
        for (; u < s->units;
             u++,
             at += s->unit) { /* the last one or two units; the very last may be a pair with only one value */
            bool whole = (u + 1) * s->values <= k;
            put_in_a(out, r, rows, u, false, apart, units_across_k(kind, at, s->value, whole, rows - r),
                     vset(0));
        }
    }
}

/* Packs rows of a into panels; each panel has room for `apart` 32-bit units of each row. */
INLINE void pack_a(pack_kind kind, const char *src, int64_t ld, bool along_k, int64_t rows, int64_t k,
                   int64_t apart, float *out)
{
    const source s = source_of(kind, along_k, ld, k);
    if (along_k)
        pack_a_along_k(kind, src, &s, rows, k, apart, out);
    else
        pack_a_across_k(kind, src, &s, rows, k, apart, out);
}

INLINE void pack_b_along_k(pack_kind kind, const char *src, const source *s, int64_t cols, int64_t k,
                           int width, float *out)
{
    for (int64_t c = 0; c < cols; c += W)
        for (int64_t u = 0; u < s->units; u += W) {
            const char *at = src + c * s->row + u * s->unit;
            if (c + W <= cols && (u + W) * s->values <= k) {
                put_block_in_b(kind, at, s->row, out + u * width + c, width);
                continue;
            }
            vf block[W];
            block_along_k(kind, at, s->row, cols - c, k - u * s->values, block);
            for (int i = 0; i < W && u + i < s->units; i++)
                vstore(out + (u + i) * width + c, block[i]);
        }
}

INLINE void pack_b_across_k(pack_kind kind, const char *src, const source *s, int64_t cols, int64_t k,
                            int width, float *out)
{
    for (int64_t u = 0; u < s->units; u++) {
        const char *at = src + u * s->unit;
        bool whole = (u + 1) * s->values <= k;
        int64_t c = 0;
#ifdef AX_SIMD_BF16
        for (; kind == BF16_PAIRS && whole && c + 2 * W <= cols; c += 2 * W)
            put_row_pairs((const void *)(at + c * 2), (const void *)(at + s->value + c * 2),
                          out + u * width + c);
#endif
        for (; c < cols; c += W)
            vstore(out + u * width + c, units_across_k(kind, at + c * s->row, s->value, whole, cols - c));
    }
}

/* Packs columns of b into one panel of `width` columns. */
INLINE void pack_b(pack_kind kind, const char *src, int64_t ld, bool along_k, int64_t cols, int64_t k,
                   int width, float *out)
{
    const source s = source_of(kind, along_k, ld, k);
    if (along_k)
        pack_b_along_k(kind, src, &s, cols, k, width, out);
    else
        pack_b_across_k(kind, src, &s, cols, k, width, out);
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

/* Stores a tile to c. Before that, adds the other terms to the tile's sums, whose rows are `width` floats
 * apart: t->prior (earlier sums, or the old fp32 c), the bias, and the old c if t->add_c. Not inlined:
 * storing takes little of a tile's time, and inlining would enlarge the code of the many variants of the
 * tile. */
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

/* Adds the bias and `prior` to a whole vector of sums at column `at` of the tile. `prior` is a row of
 * t->prior (earlier sums, or the old fp32 c). A t->bias or t->prior that is NULL adds nothing. */
INLINE vf add_terms(const ax_cpu_tile *t, vf sum, const float *prior, int64_t at)
{
    if (t->prior)
        sum = sum + vload(prior + at);
    return t->bias ? (vf)(sum + vload(t->bias + at)) : sum;
}

/* RUN: number of 32-bit units in k (fp32 values, or pairs of bf16) after which a tile prefetches again. With
 * vectors of 16 floats these units are one cache line of each row of a. A tile with narrower vectors does
 * half the work per line, so it prefetches half as often, and leaves the strips of a to the hardware
 * prefetcher. */
enum { LINE = AX_CPU_LINE, PREFETCHES_A = W == 16, RUN = PREFETCHES_A ? LINE / 4 : LINE / 2 };

/* Non-temporal stores are used only where a vector is a whole cache line: writing a part of a line would read
 * it from memory first. */
enum { NT_STORES = W * 4 == LINE };

INLINE void prefetch_lines(ax_cpu_prefetch *prefetch, int64_t most)
{
    for (; most > 0 && prefetch->n > 0; most--, prefetch->n--) {
        __builtin_prefetch(prefetch->at + prefetch->line * LINE, 0, 2);
        if (++prefetch->line == prefetch->lines) {
            prefetch->line = 0;
            prefetch->at += prefetch->stride;
        }
    }
}

/* The memory that a tile prefetches while it multiplies, a part in every RUN steps in k. `next`: the next
 * strip of a; `c`: the rows of t->prior or, if that is NULL, of c; `prefetch`: the sources of the next
 * packing. */
typedef struct prefetches {
    const char *next, *c;
    int64_t next_row, c_row, c_bytes, lines_per_step[2];
    ax_cpu_prefetch prefetch[2];
} prefetches;

INLINE prefetches prefetches_of(const ax_cpu_tile *t, const ax_cpu_rows *a, int64_t units, int nv)
{
    prefetches s = {.next = (const char *)(a->next ? a->next : a->at),
                    .next_row = a->unit == 4 ? a->row : LINE};
    int64_t size = t->prior ? 4 : vsize(t->c_type), runs = (units + RUN - 1) / RUN;
    s.c = t->prior ? (const char *)t->prior : (const char *)t->c;
    s.c_row = (t->prior ? t->prior_ld : t->c_ld) * size;
    s.c_bytes = nv * W * size;
    for (int i = 0; i < 2; i++) {
        s.prefetch[i] = t->prefetch[i];
        /* The test for 0 avoids a slow division. */
        s.lines_per_step[i] = t->prefetch[i].n ? (t->prefetch[i].n + runs - 1) / runs : 0;
    }
    return s;
}

INLINE void prefetch_run(prefetches *s, const ax_cpu_tile *t, int64_t run)
{
    /* A run is RUN steps in k. Run number `run` prefetches row number `run` of c, so a tile with few steps in
     * k prefetches only its first rows. Non-temporal stores need no prefetch. */
    if (run < t->rows && !(NT_STORES && t->non_temporal)) {
        const char *c = s->c + run * s->c_row;
        for (int64_t at = 0; at < s->c_bytes; at += LINE)
            __builtin_prefetch(c + at, 1, 3);
        __builtin_prefetch(c + s->c_bytes - 1, 1, 3);
    }
    for (int i = 0; i < 2; i++)
        prefetch_lines(&s->prefetch[i], s->lines_per_step[i]);
}

/* Adds the products of `units` steps in k to the sums of a micro-tile of `rows` rows and nv vectors. Row i of
 * a is read from row[i] + *offset on, `step` bytes a step, the panel of b from *b on. Advances *offset and
 * *b. */
INLINE void multiply_steps(bool pairs, int rows, int nv, int64_t units, const char *const *row, int64_t step,
                           int64_t *offset, const float **b, vf sum[][TILE_VECTORS])
{
    for (; units > 0; units--, *offset += step, *b += nv * W) {
        vf bv[TILE_VECTORS];
        UNROLL
        for (int v = 0; v < nv; v++)
            bv[v] = vload(*b + v * W);
        UNROLL
        for (int i = 0; i < rows; i++) {
            float value;
            memcpy(&value, row[i] + *offset, sizeof value);
            UNROLL
            for (int v = 0; v < nv; v++)
                sum[i][v] = multiply_add(pairs, vset(value), bv[v], sum[i][v]);
        }
    }
}

/* Multiplies a micro-tile. `interleaved`: a is packed, with rows side by side; otherwise a is read in
 * place, with rows that are contiguous in k. The function is compiled with constants for `interleaved`,
 * `rows` and `nv`: then a step in k takes fewer instructions, which matters when another thread runs on
 * the same core (SMT). */
INLINE void tile(bool pairs, bool interleaved, int rows, int nv, int64_t units, const ax_cpu_rows *a,
                 const float *b, const ax_cpu_tile *t)
{
    const char *row[TILE_ROWS];
    UNROLL
    for (int i = 0; i < rows; i++)
        row[i] = (const char *)a->at + (interleaved ? i * 4 : (i < t->rows ? i : t->rows - 1) * a->row);
    const int64_t step = interleaved ? a->unit : 4;
    int64_t offset = 0;
    vf sum[TILE_ROWS][TILE_VECTORS];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            sum[i][v] = vset(0);
    }
    prefetches s;
    bool prefetch_ahead =
        a->next || t->prefetch[0].n || t->prefetch[1].n; /* false: there is nothing to prefetch */
    if (prefetch_ahead)
        s = prefetches_of(t, a, units, nv);
    int64_t length = prefetch_ahead ? RUN : units;
    for (int64_t left = units, run = 0; left > 0; left -= length, run++) {
        if (prefetch_ahead) {
            UNROLL
            for (int i = 0; i < rows * PREFETCHES_A; i++)
                __builtin_prefetch(s.next + offset + i * s.next_row, 0, 3);
            prefetch_run(&s, t, run);
        }
        multiply_steps(pairs, rows, nv, left < length ? left : length, row, step, &offset, &b, sum);
    }
    bool full = t->rows == rows && t->cols == nv * W;
    if (full && NT_STORES && t->non_temporal) {
        UNROLL
        for (int i = 0; i < rows; i++) {
            float *to = (float *)t->c + i * t->c_ld;
            UNROLL
            for (int v = 0; v < nv; v++)
                vstream(to + v * W, sum[i][v]);
        }
        return;
    }
    if (full && t->c_type == VF32) {
        UNROLL
        for (int i = 0; i < rows; i++) {
            float *to = (float *)t->c + i * t->c_ld;
            const float *prior = t->prior + i * t->prior_ld;
            UNROLL
            for (int v = 0; v < nv; v++)
                vstore(to + v * W, add_terms(t, sum[i][v], prior, v * W));
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
                vstore_b(to + v * W, add_terms(t, sum[i][v], prior, v * W));
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

/* Multiplies a whole micro-tile if t->plain. Little is done before and after the steps in k, because the
 * tiles of attention have few of them. The sums start from t->prior. */
INLINE void plain_tile(bool pairs, bool interleaved, int nv, int64_t units, const ax_cpu_rows *a,
                       const float *b, const ax_cpu_tile *t)
{
    const int64_t step = interleaved ? a->unit : 4, row = interleaved ? 4 : a->row;
    /* Copies: the compiler must assume that a store changes *t. */
    float *const c = t->c;
    const int64_t c_ld = t->c_ld;
    int64_t offset = 0;
    const char *at[TILE_ROWS];
    vf sum[TILE_ROWS][TILE_VECTORS];
    UNROLL
    for (int i = 0; i < TILE_ROWS; i++) {
        at[i] = (const char *)a->at + i * row;
        UNROLL
        for (int v = 0; v < nv; v++)
            sum[i][v] = t->prior ? vload(t->prior + i * t->prior_ld + v * W) : vset(0);
    }
    multiply_steps(pairs, TILE_ROWS, nv, units, at, step, &offset, &b, sum);
    UNROLL
    for (int i = 0; i < TILE_ROWS; i++) {
        UNROLL
        for (int v = 0; v < nv; v++)
            vstore(c + i * c_ld + v * W, sum[i][v]);
    }
}

/* Calls `tile` or `plain_tile` with constant arguments, so that the compiler specializes them. A tile of
 * three vectors that has at most half of TILE_ROWS rows, at the last rows of a block, computes only this
 * half. */
INLINE void tile_of(bool pairs, bool interleaved, int nv, int64_t units, const ax_cpu_rows *a, const void *b,
                    const ax_cpu_tile *t)
{
    bool plain = t->plain && t->rows == TILE_ROWS && t->cols == nv * W;
    if (plain && nv == 3)
        plain_tile(pairs, interleaved, 3, units, a, b, t);
    else if (plain && nv == 2)
        plain_tile(pairs, interleaved, 2, units, a, b, t);
    else if (nv == 3 && t->rows > TILE_ROWS / 2)
        tile(pairs, interleaved, TILE_ROWS, 3, units, a, b, t);
    else if (nv == 3)
        tile(pairs, interleaved, TILE_ROWS / 2, 3, units, a, b, t);
    else if (nv == 2)
        tile(pairs, interleaved, TILE_ROWS, 2, units, a, b, t);
    else
        tile(pairs, interleaved, TILE_ROWS, 1, units, a, b, t);
}
INLINE void tile_any(bool pairs, int nv, int64_t units, const ax_cpu_rows *a, const void *b,
                     const ax_cpu_tile *t)
{
    if (a->unit == 4)
        tile_of(pairs, false, nv, units, a, b, t);
    else
        tile_of(pairs, true, nv, units, a, b, t);
}

/* Defines gemm_<type>, the functions (ax_cpu_gemm) of a GEMM for an element type that is packed as `kind`,
 * with `values` values of k per 32-bit unit, and multiplied by the function `multiply`. */
#define PACKED_GEMM(type, kind, values, multiply)                                                            \
    static void pack_a_##type(const void *src, int64_t ld, bool along_k, int64_t rows, int64_t k, int width, \
                              int64_t units, void *out)                                                      \
    {                                                                                                        \
        (void)width;                                                                                         \
        pack_a(kind, src, ld, along_k, rows, k, units, out);                                                 \
    }                                                                                                        \
    static void pack_b_##type(const void *src, int64_t ld, bool along_k, int64_t rows, int64_t k, int width, \
                              int64_t units, void *out)                                                      \
    {                                                                                                        \
        (void)units;                                                                                         \
        pack_b(kind, src, ld, along_k, rows, k, width, out);                                                 \
    }                                                                                                        \
    static const ax_cpu_gemm gemm_##type = {.rows = TILE_ROWS,                                               \
                                            .lanes = W,                                                      \
                                            .vectors = TILE_VECTORS,                                         \
                                            .pair = values,                                                  \
                                            .grain = 1,                                                      \
                                            .pack_cost = 16,                                                 \
                                            .a_packed = 128 << 10,                                           \
                                            .a_unpacked = INT64_MAX,                                         \
                                            .pack_a = pack_a_##type,                                         \
                                            .pack_b = pack_b_##type,                                         \
                                            .tile = multiply,                                                \
                                            .end = NT_STORES ? tiles_end : NULL}

static void tiles_end(void) { vstreamed(); }

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

/* Returns the functions (ax_cpu_gemm) of a GEMM for an element type. `type` is a constant, and so is the
 * result. */
INLINE const ax_cpu_gemm *gemm_of(vtype type)
{
    return type == VBF16 ? &gemm_bf16 : type == VF16 ? &gemm_f16 : &gemm_f32;
}

#endif
