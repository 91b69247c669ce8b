/* Counter-based random numbers and the keyed permutation: pure functions of (key, index). */
#include "axonn/base.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

static void philox_round(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
                        (uint32_t)a};
    memcpy(c, next, sizeof next);
}

void ax_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c[4] = {(uint32_t)counter_lo, (uint32_t)(counter_lo >> 32), (uint32_t)counter_hi,
                     (uint32_t)(counter_hi >> 32)};
    for (int round = 0; round < 10; round++) {
        philox_round(c, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

uint64_t ax_rng_key(uint64_t seed, const char *purpose, uint64_t index)
{
    uint32_t out[4];
    ax_philox(XXH3_64bits_withSeed(purpose, strlen(purpose), seed), seed, index, out);
    return (uint64_t)out[1] << 32 | out[0];
}

float ax_rng_uniform(uint64_t key, uint64_t index)
{
    uint32_t out[4];
    ax_philox(key, 0, index / 4, out);
    return (float)(out[index % 4] >> 8) * 0x1p-24f;
}

/* Box-Muller: words (0,1) give normals 0 and 1 of the block, words (2,3) give 2 and 3. */
void ax_rng_normal_block(uint64_t key, uint64_t block, float out[4])
{
    uint32_t words[4];
    ax_philox(key, 1, block, words);
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2.0 * log(((double)words[i] + 1.0) * 0x1p-32));
        double angle = 6.283185307179586 * (double)words[i + 1] * 0x1p-32;
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

float ax_rng_normal(uint64_t key, uint64_t index)
{
    float block[4];
    ax_rng_normal_block(key, index / 4, block);
    return block[index % 4];
}

/* Feistel over 2*half bits; a number outside 0 … n-1 is walked on until it falls inside. */
static uint64_t feistel(uint64_t key, int half, uint64_t value)
{
    uint64_t mask = (UINT64_C(1) << half) - 1, left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < 6; round++) {
        uint32_t out[4];
        ax_philox(key, 2 + round, right, out);
        uint64_t next = left ^ (((uint64_t)out[1] << 32 | out[0]) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

uint64_t ax_permute(uint64_t key, uint64_t n, uint64_t index)
{
    AX_ASSERT(n > 0 && index < n);
    int half = 1;
    while (half < 32 && (UINT64_C(1) << 2 * half) < n)
        half++;
    do
        index = feistel(key, half, index);
    while (index >= n);
    return index;
}
