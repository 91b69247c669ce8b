/* Measures the peak rates with which kernels are compared: multiply-adds in registers alone, with enough
 * independent sums to hide their latency, and reading of memory. */
#ifndef AX_DEV_CPU_PEAK_KERNELS_H
#define AX_DEV_CPU_PEAK_KERNELS_H

#include "gemm_kernels.h"

enum { SUMS = W == 16 ? 16 : 12 }; /* number of vector registers that hold sums: 16 of 32, or 12 of 16 */

/* peak_f32 and peak_bf16 return the number of floating-point operations. They add the sums to *sink, so that
 * the compiler cannot remove the operations. */
static double peak_f32(int64_t rounds, float *sink)
{
    vf sum[SUMS], a = vset(0.999F), b = vset(0.001F);
    for (int i = 0; i < SUMS; i++)
        sum[i] = vset((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        UNROLL
        for (int i = 0; i < SUMS; i++)
            sum[i] = vfma(sum[i], a, b);
    }
    for (int i = 0; i < SUMS; i++)
        *sink += vsum(sum[i]);
    return 2.0 * W * SUMS * (double)rounds;
}

#ifdef AX_SIMD_AMX
static double peak_bf16(int64_t rounds, float *sink)
{
    enum { PER_TILE = 2 * 16 * 16 * 32, TILES = 4 };
    uint16_t ones[16 * 32];
    float sums[16 * 16];
    for (int i = 0; i < 16 * 32; i++)
        ones[i] = 0x3f80;
    amx_begin();
    __asm__ volatile("" ::: "memory");
    _tile_loadd(4, ones, LINE);
    _tile_loadd(5, ones, LINE);
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, sums, LINE);
    amx_end();
    *sink += sums[0];
    return (double)TILES * PER_TILE * (double)rounds;
}
#elif defined(AX_SIMD_BF16)
static double peak_bf16(int64_t rounds, float *sink)
{
    __m512 sum[SUMS];
    __m512bh a = _mm512_cvtne2ps_pbh(vset(0.5F), vset(0.5F));
    for (int i = 0; i < SUMS; i++)
        sum[i] = vset((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        UNROLL
        for (int i = 0; i < SUMS; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], a, a);
    }
    for (int i = 0; i < SUMS; i++)
        *sink += vsum(sum[i]);
    return 4.0 * W * SUMS * (double)rounds;
}
#else
/* bf16 is widened and multiplied as fp32. */
static double peak_bf16(int64_t rounds, float *sink) { return peak_f32(rounds, sink); }
#endif

/* ---- reading ------------------------------------------------------------------------------------- */

typedef uint64_t words __attribute__((vector_size(sizeof(vf)), aligned(1), may_alias));

INLINE words line_sum(const char *line)
{
    words sum = *(const words *)(const void *)line;
    UNROLL
    for (size_t at = sizeof sum; at < LINE; at += sizeof sum)
        sum += *(const words *)(const void *)(line + at);
    return sum;
}

/* Reads `bytes` of memory as `stretches` streams side by side: stream i reads the i-th of `stretches` equal
 * parts, `lines` cache lines at a time. Lines that are in no part are read at the end. Prefetches `ahead`
 * bytes ahead (0: no prefetch). Returns the sum of all words. */
INLINE uint64_t read_by(const char *from, int64_t bytes, int stretches, int lines, int64_t ahead)
{
    enum { MOST = 8 };
    words sum[MOST] = {{0}};
    int64_t each = bytes / (stretches * lines * LINE) * (lines * LINE), at = 0;
    for (; at < each; at += lines * LINE) {
        UNROLL
        for (int i = 0; i < stretches * lines; i++) {
            const char *p = from + i / lines * each + at + i % lines * LINE;
            if (ahead)
                __builtin_prefetch(p + ahead);
            sum[i] += line_sum(p);
        }
    }
    for (at = each * stretches; at + LINE <= bytes; at += LINE)
        sum[0] += line_sum(from + at);
    uint64_t all = 0;
    for (int i = 0; i < stretches * lines; i++)
        for (size_t w = 0; w < sizeof *sum / sizeof all; w++)
            all += sum[i][w];
    return all;
}

static uint64_t read_lines(int way, const char *from, int64_t bytes)
{
    static const int64_t aheads[] = {0, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 12 << 10, 16 << 10};
    _Static_assert(AX_CPU_READ_WAYS == 3 * AX_COUNT(aheads), "three ways for each distance");
    const int64_t ahead = aheads[way / 3];
    return way % 3 == 0   ? read_by(from, bytes, 1, 4, ahead)
           : way % 3 == 1 ? read_by(from, bytes, 4, 1, ahead)
                          : read_by(from, bytes, 8, 1, ahead);
}

#endif
