/* The counter-based random numbers of base.h, inline, so that code of a GPU can draw the same ones:
 * Philox4x32-10 (Salmon et al., SC'11), a pure function of key and counter. Programs of the host call
 * ax_philox, ax_rng_uniform and ax_rng_normal. */
#ifndef AXONN_PHILOX_H
#define AXONN_PHILOX_H

#include <math.h>
#include <stdint.h>

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

/* Element `index`: uniform in [0, 1) with 24 bits. Elements 4k … 4k+3 share one block. */
AX_INLINE float ax_philox_uniform(uint64_t key, uint64_t index)
{
    uint32_t words[4];
    ax_philox_words(key, 0, index / 4, words);
    return (float)(words[index % 4] >> 8) * 0x1p-24f;
}

/* Standard normals 4·block … 4·block+3, by Box-Muller: words (0,1) give the first two, (2,3) the others. */
AX_INLINE void ax_philox_normals(uint64_t key, uint64_t block, float out[4])
{
    uint32_t words[4];
    ax_philox_words(key, 1, block, words);
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2.0 * log(((double)words[i] + 1.0) * 0x1p-32));
        double angle = 6.283185307179586 * (double)words[i + 1] * 0x1p-32;
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

#endif
