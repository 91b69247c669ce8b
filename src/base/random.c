/* Counter-based random numbers (Philox) and a keyed pseudo-random permutation: pure functions of (key,
 * index). */
#include "axonn/base.h"
#include "axonn/philox.h"

#include <string.h>
#include <xxhash.h>

void ax_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4])
{
    ax_philox_words(key, counter_hi, counter_lo, out);
}

uint64_t ax_rng_key(uint64_t seed, const char *purpose, uint64_t index)
{
    uint32_t out[4];
    ax_philox(XXH3_64bits_withSeed(purpose, strlen(purpose), seed), seed, index, out);
    return (uint64_t)out[1] << 32 | out[0];
}

float ax_rng_uniform(uint64_t key, uint64_t index) { return ax_philox_uniform(key, 0, index); }

float ax_rng_normal(uint64_t key, uint64_t index)
{
    float block[4];
    ax_philox_normals(key, index / 4, block);
    return block[index % 4];
}

/* Applies to `value` a keyed permutation of the numbers of 2*half bits: a Feistel network of six rounds.
 * ax_permute repeats it until the result is below n (cycle walking). */
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
