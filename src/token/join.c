/* Finds places where a piece can be cut, because no merge can join the characters on the two sides of the
 * cut.
 *
 * A merge that crosses a boundary between two characters has a left token that ends with the first character
 * and a right token that starts with the second. If no merge rule has such tokens, merges on one side of the
 * boundary do not affect the other side, so the two sides can be merged independently. Tokenizers of
 * SentencePiece's kind often have no pre-tokenizer: a whole document is one piece. Their merges hardly ever
 * join a letter with the U+2581 of the next word, so such a document falls into words, which are short and
 * are found in the cache of pieces.
 *
 * The set of pairs of characters that some merge joins is the bit table `joins`. Pairs of ASCII characters
 * have bits of their own; other pairs share bits by a hash. If the bit of a pair is set only because of
 * another pair, the text is not cut between the characters of the pair; this takes more time, but the tokens
 * are the same. */
#include "token/tok.h"

#include <string.h>

enum { ASCII_BITS = 1 << 14, OTHER_BITS = 1 << 18 };

static uint32_t bit_of(uint32_t left, uint32_t right)
{
    if ((left | right) < 128)
        return left << 7 | right;
    uint64_t pair = (uint64_t)left << 32 | right;
    return ASCII_BITS + (uint32_t)((pair * UINT64_C(0x9E3779B97F4A7C15)) >> 46) % OTHER_BITS;
}

ax_status tok_join_add(uint64_t **joins, const char *left, const char *right)
{
    if (!*joins)
        AX_TRY(ax_calloc((ASCII_BITS + OTHER_BITS) / 64, sizeof **joins, joins));
    const char *last = left;
    while (*(left += tok_utf8_size((unsigned char)*left)))
        last = left;
    size_t size;
    uint32_t bit = bit_of(tok_utf8_get(last, &size), tok_utf8_get(right, &size));
    (*joins)[bit / 64] |= UINT64_C(1) << bit % 64;
    return AX_OK;
}

size_t tok_join_cut(const uint64_t *joins, const char *text, size_t n)
{
    size_t at, size;
    uint32_t left = tok_utf8_get(text, &at);
    for (; at < n; at += size) {
        uint32_t right = (unsigned char)text[at];
        size = 1;
        if (right >= 0x80)
            right = tok_utf8_get(text + at, &size);
        uint32_t bit = bit_of(left, right);
        if (!(joins[bit / 64] >> bit % 64 & 1))
            return at;
        left = right;
    }
    return n;
}
