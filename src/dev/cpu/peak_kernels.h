/* How fast the processor multiplies and adds when nothing holds it up: as many independent sums in registers
 * as hide the latency, and no memory. What a kernel is compared with. */
#ifndef AX_DEV_CPU_PEAK_KERNELS_H
#define AX_DEV_CPU_PEAK_KERNELS_H

#include "gemm_kernels.h"

enum { SUMS = W == 16 ? 16 : 12 }; /* of 32 registers, or 16 */

/* Both return floating-point operations; what is added to `sink` keeps the compiler from leaving them out. */
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

#endif
