/* Philox random numbers by SIMD, and the factors of attention dropout. */
#ifndef AX_DEV_CPU_RANDOM_KERNELS_H
#define AX_DEV_CPU_RANDOM_KERNELS_H

#include "dev/attention.h"
#include "simd.h"

/* random_words writes the words of W/2 consecutive Philox blocks (of four words each), from `block` on, in
 * the order of the elements that use them. `stream` is the upper half of the counter. While computing, each
 * 64-bit lane of a vector is one block. The blocks are assigned to lanes such that interleaving the words
 * (0,1) with the words (2,3) puts the blocks in order. */
#if AX_SIMD
#if AX_SIMD == 512
#define V64(name) _mm512_##name
#define V64_AND _mm512_and_si512
#define V64_OR _mm512_or_si512
#define V64_XOR _mm512_xor_si512
INLINE vi broadcast64(uint64_t x) { return _mm512_set1_epi64((int64_t)x); }
INLINE vi lane_blocks(void) { return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); }
INLINE void store_words(uint32_t *out, vi x) { _mm512_storeu_si512(out, x); }
#else
#define V64(name) _mm256_##name
#define V64_AND _mm256_and_si256
#define V64_OR _mm256_or_si256
#define V64_XOR _mm256_xor_si256
INLINE vi broadcast64(uint64_t x) { return _mm256_set1_epi64x((int64_t)x); }
INLINE vi lane_blocks(void) { return _mm256_setr_epi64x(0, 2, 1, 3); }
INLINE void store_words(uint32_t *out, vi x) { _mm256_storeu_si256((__m256i *)(void *)out, x); }
#endif
INLINE void random_words(uint64_t key, uint64_t stream, uint64_t block, uint32_t out[2 * W])
{
    const vi low = broadcast64(0xffffffff), m0 = broadcast64(0xD2511F53), m1 = broadcast64(0xCD9E8D57);
    vi counter = V64(add_epi64)(broadcast64(block), lane_blocks());
    vi c0 = V64_AND(counter, low), c1 = V64(srli_epi64)(counter, 32);
    vi c2 = broadcast64(stream & 0xffffffff), c3 = broadcast64(stream >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    UNROLL
    for (int round = 0; round < 10; round++) {
        vi a = V64(mul_epu32)(c0, m0), b = V64(mul_epu32)(c2, m1);
        c0 = V64_XOR(V64_XOR(V64(srli_epi64)(b, 32), c1), broadcast64(k0));
        c2 = V64_XOR(V64_XOR(V64(srli_epi64)(a, 32), c3), broadcast64(k1));
        c1 = V64_AND(b, low);
        c3 = V64_AND(a, low);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    vi w01 = V64_OR(c0, V64(slli_epi64)(c1, 32)), w23 = V64_OR(c2, V64(slli_epi64)(c3, 32));
    store_words(out, V64(unpacklo_epi64)(w01, w23));
    store_words(out + W, V64(unpackhi_epi64)(w01, w23));
}
#else
INLINE void random_words(uint64_t key, uint64_t stream, uint64_t block, uint32_t out[2 * W])
{
    for (uint64_t i = 0; i < W / 2; i++)
        ax_philox(key, stream, block + i, out + 4 * i);
}
#endif

/* Computes the factors of dropout, 0 or 1/(1-p), for keys j0 … j1-1 of a query; j0 is a multiple of 4. `row`,
 * `head` and `keys` mean the same as in ax_attention_drop_block. Writes pairs of whole vectors, so `out` must
 * have room for j1 - j0 floats, rounded up to a multiple of 2·W. */
INLINE void dropout_factors(const ax_attention_dropout *drop, int64_t row, int64_t head, int64_t keys,
                            int64_t j0, int64_t j1, float *out)
{
    const ax_batch_numbers now = drop->now ? *drop->now : (ax_batch_numbers){0};
    const int32_t below = (int32_t)ax_attention_drop_below(drop->p);
    const float scale = (float)(1 / (1 - drop->p));
    uint64_t block = ax_attention_drop_block(drop, now.first_row, row, head, keys) + (uint64_t)j0 / 4;
    for (int64_t j = j0; j < j1; j += 2 * W, block += W / 2) {
        uint32_t words[2 * W];
        random_words(drop->key, now.step, block, words);
        for (int i = 0; i < 2 * W; i++)
            out[j - j0 + i] = (int32_t)(words[i] >> 8) < below ? 0 : scale;
    }
}

#endif
