/* The counter-based random numbers of base.h as inline functions, so that GPU code draws the same numbers:
 * Philox4x32-10 (Salmon et al., SC'11), a pure function of key and counter. Host code outside kernels mostly
 * calls ax_philox, ax_rng_uniform and ax_rng_normal. */
#ifndef AXONN_PHILOX_H
#define AXONN_PHILOX_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define AX_INLINE __host__ __device__ static inline
#else
#define AX_INLINE static inline
#endif

AX_INLINE void ax_philox_words(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32), c2 = (uint32_t)counter_hi,
             c3 = (uint32_t)(counter_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Returns random number `index` of the sequence that key and counter_hi select: uniform in [0, 1) with 24
 * bits. Numbers 4k … 4k+3 come from one call of ax_philox_words. */
AX_INLINE float ax_philox_uniform(uint64_t key, uint64_t counter_hi, uint64_t index)
{
    uint32_t words[4];
    ax_philox_words(key, counter_hi, index / 4, words);
    return (float)(words[index % 4] >> 8) * 0x1p-24f;
}

/* Returns -2·ln((word + 1)·2^-32), with a relative error of 1e-13: word + 1 = m·2^(e + 32) with √½ <= m < √2,
 * and ln m = 2·artanh((m - 1)/(m + 1)), a series. Compilers vectorize this arithmetic, unlike calls of a
 * library's logarithm. Its bits are the same on all machines if products and sums are not fused (FMA). */
AX_INLINE double ax_philox_minus_2_log(uint32_t word)
{
    const uint64_t root_half = 0x3fe6a09e667f3bcd, mantissa = 0x000fffffffffffff;
    double x = (double)word + 1.0, m;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t above = bits - root_half;
    double e = (double)(int32_t)(above >> 52) - 32.0;
    bits = (above & mantissa) + root_half;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1.0) / (m + 1.0), z = s * s, series = 1.0 / 15.0;
    series = series * z + 1.0 / 13.0;
    series = series * z + 1.0 / 11.0;
    series = series * z + 1.0 / 9.0;
    series = series * z + 1.0 / 7.0;
    series = series * z + 1.0 / 5.0;
    series = series * z + 1.0 / 3.0;
    series = series * z + 1.0;
    return -2.0 * (e * 0.6931471805599453 + 2.0 * s * series);
}

/* Computes two standard normals from two words by Box-Muller: radius·cos and radius·sin. The first word gives
 * the radius; the second is the angle, as a fraction of a whole turn. The nearest multiple of a quarter turn
 * is subtracted from the angle, without a rounding error. Sine and cosine of the rest are Taylor series,
 * accurate to 1e-13. */
AX_INLINE void ax_philox_normal_pair(uint32_t word0, uint32_t word1, float out[2])
{
    double radius = sqrt(ax_philox_minus_2_log(word0));
    uint32_t quarter = ((word1 >> 29) + 1) >> 1;
    double x = (double)(int32_t)(word1 - (quarter << 30)) * (3.141592653589793 * 0x1p-31), z = x * x;
    double sine = -1.0 / 1307674368000.0, cosine = -1.0 / 87178291200.0;
    sine = sine * z + 1.0 / 6227020800.0;
    sine = sine * z - 1.0 / 39916800.0;
    sine = sine * z + 1.0 / 362880.0;
    sine = sine * z - 1.0 / 5040.0;
    sine = sine * z + 1.0 / 120.0;
    sine = sine * z - 1.0 / 6.0;
    sine = x + x * z * sine;
    cosine = cosine * z + 1.0 / 479001600.0;
    cosine = cosine * z - 1.0 / 3628800.0;
    cosine = cosine * z + 1.0 / 40320.0;
    cosine = cosine * z - 1.0 / 720.0;
    cosine = cosine * z + 1.0 / 24.0;
    cosine = cosine * z - 0.5;
    cosine = 1.0 + z * cosine;
    double along = quarter & 2 ? -radius : radius;
    out[0] = (float)(along * (quarter & 1 ? -sine : cosine));
    out[1] = (float)(along * (quarter & 1 ? cosine : sine));
}

/* Computes the standard normals with indices 4·block … 4·block+3 from the four words of one call of
 * ax_philox_words. Words 0 and 1 give the first two normals, words 2 and 3 the others. */
AX_INLINE void ax_philox_normals(uint64_t key, uint64_t block, float out[4])
{
    uint32_t words[4];
    ax_philox_words(key, 1, block, words);
    ax_philox_normal_pair(words[0], words[1], out);
    ax_philox_normal_pair(words[2], words[3], out + 2);
}

#endif
