/* Decides which targets the goldfish loss (axonn/data.h) drops: every k-th token of a document (static), or
 * those that a hash of the tokens before the target selects (hashed). The hash is a polynomial of the tokens
 * in a window, modulo 2^61 - 1. It is a rolling hash: the hash of a window is computed from that of the
 * window one token earlier. */
#include "goldfish.h"

#define MODULUS ((UINT64_C(1) << 61) - 1)
#define BASE UINT64_C(0x13c6ef372fe94f99)

/* Returns a number that is congruent to v modulo 2^61 - 1 and fits in 64 bits; it is not always the residue.
 * 2^61 is congruent to 1, so bits 61 and up of v can be added to the bits below. The rolling hash h is such a
 * number: congruent to the hash H of axonn/data.h. BASE is 0.618 of the modulus, so bits 61 and up of h *
 * BASE are at most 0.618 h; those of factor * oldest are below 2^32. Hence h stays below (modulus + 2^33) /
 * (1 - 0.618) < 2^63. */
static inline uint64_t fold(unsigned __int128 v) { return ((uint64_t)v & MODULUS) + (uint64_t)(v >> 61); }

static inline uint64_t residue(uint64_t h)
{
    h = fold(h);
    return h >= MODULUS ? h - MODULUS : h;
}

/* Moves the window by one token: returns the hash of the window that ends with `next`, given the hash `h` of
 * the window that begins with `oldest`. `factor` is -BASE^window, so that its product with `oldest` takes
 * `oldest` out of the hash. While the window fills, `factor` is 0. */
static inline uint64_t roll(uint64_t h, uint64_t factor, int32_t oldest, int32_t next)
{
    return fold((unsigned __int128)h * BASE + (unsigned __int128)factor * (uint32_t)oldest + (uint32_t)next);
}

static uint64_t hash_of(const int32_t *tokens, int64_t window)
{
    uint64_t h = 0;
    for (int64_t j = 0; j < window; j++)
        h = roll(h, 0, 0, tokens[j]);
    return h;
}

ax_status goldfish_check(const ax_goldfish *g)
{
    const bool hashed = g->kind == AX_GOLDFISH_HASHED;
    AX_CHECK(hashed || g->kind == AX_GOLDFISH_STATIC, AX_ERR_USAGE,
             "there is no goldfish loss of kind %d: choose AX_GOLDFISH_HASHED or AX_GOLDFISH_STATIC",
             (int)g->kind);
    AX_CHECK(g->k > 1 && g->k <= AX_GOLDFISH_K_MAX, AX_ERR_USAGE,
             "k of the goldfish loss (data.goldfish.k) is %lld, but must be 2 to %d, or 0 for none",
             (long long)g->k, AX_GOLDFISH_K_MAX);
    AX_CHECK(!hashed || (g->window > 0 && g->window <= AX_GOLDFISH_WINDOW_MAX), AX_ERR_USAGE,
             "the window of the goldfish loss (data.goldfish.window) is %lld tokens, but must be 1 to %d",
             (long long)g->window, AX_GOLDFISH_WINDOW_MAX);
    return AX_OK;
}

goldfish_hash goldfish_hash_for(const ax_goldfish *g)
{
    uint64_t power = 1;
    if (g->kind == AX_GOLDFISH_STATIC)
        return (goldfish_hash){0};
    for (int64_t j = 0; j < g->window; j++)
        power = residue(fold((unsigned __int128)power * BASE));
    /* The limit UINT64_MAX / k + 1 is 2^64 / k rounded up. An integer is below the limit exactly if it is
     * below 2^64 / k. */
    return (goldfish_hash){MODULUS - power, UINT64_MAX / (uint64_t)g->k + 1};
}

/* Sets keep[i] to 0 for each of n targets that the hash drops. Target i is x[i+window]; x[i] ...
 * x[i+window-1] are its window. */
static void drop_hashed(goldfish_hash hash, int64_t window, const int32_t *x, int64_t n, uint8_t *keep)
{
    uint64_t h = n > 0 ? hash_of(x, window) : 0;
    for (int64_t i = 0; i < n; i++) {
        keep[i] &= ax_mix64(residue(h)) >= hash.limit;
        h = roll(h, hash.factor, x[i], x[i + window]);
    }
}

void goldfish_drop(const ax_goldfish *g, const goldfish_hash *hash, const int32_t *tokens, int64_t from,
                   int64_t to, uint8_t *keep)
{
    if (g->kind == AX_GOLDFISH_STATIC) {
        for (int64_t i = from + g->k - 1 - from % g->k; i < to; i += g->k)
            keep[i - from] = 0;
        return;
    }
    int64_t first = ax_max(from, g->window); /* tokens before `first` have no full window, and are kept */
    if (first < to)
        drop_hashed(*hash, g->window, tokens + (first - from) - g->window, to - first, keep + (first - from));
}

ax_status ax_goldfish_drop(const ax_goldfish *g, const int32_t *document, int64_t n, uint8_t *keep)
{
    AX_TRY(goldfish_check(g));
    const goldfish_hash hash = goldfish_hash_for(g);
    goldfish_drop(g, &hash, document, 0, n, keep);
    return AX_OK;
}
