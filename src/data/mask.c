/* Reads the mask of a packed token file: one bit per token, 1 if the token is a target. */
#include "source.h"

#include <string.h>

enum { CHUNK_WORDS = 64 };

/* Returns n bits, 1 <= n <= 64, from bit `at` of `words` on. */
static uint64_t get_bits(const uint64_t *words, int64_t at, int64_t n)
{
    int64_t shift = at % 64;
    uint64_t bits = words[at / 64] >> shift;
    if (shift + n > 64)
        bits |= words[at / 64 + 1] << (64 - shift);
    return n < 64 ? bits & ((UINT64_C(1) << n) - 1) : bits;
}

/* Stores n bits, 1 <= n <= 64, into `words` from bit `at` on. These bits of `words` must be 0 before the
 * call. */
static void put_bits(uint64_t *words, int64_t at, int64_t n, uint64_t bits)
{
    int64_t shift = at % 64;
    words[at / 64] |= bits << shift;
    if (shift + n > 64)
        words[at / 64 + 1] |= bits >> (64 - shift);
}

/* Writes the mask bits of tokens first ... first+count-1 of one file to `out`, from bit `at` on; all are 1 if
 * the file has no mask. */
static ax_status read_file(const ax_data *data, int64_t first, int64_t count, int64_t at, uint64_t *out)
{
    uint64_t words[CHUNK_WORDS];
    for (int64_t n, skipped; count > 0; first += n, at += n, count -= n) {
        skipped = first % 64;
        n = ax_min(count, 64 * CHUNK_WORDS - skipped);
        if (data->mask_at)
            AX_TRY(data_file_read(&data->main, data->mask_at + first / 64 * 8, words,
                                  8 * ax_ceil_div(skipped + n, 64)));
        else
            memset(words, -1, sizeof words);
        for (int64_t i = 0; i < n; i += 64) {
            int64_t here = ax_min(64, n - i);
            put_bits(out, at + i, here, get_bits(words, skipped + i, here));
        }
    }
    return AX_OK;
}

ax_status data_read_mask(const ax_data *data, int64_t first, int64_t count, uint64_t *bits)
{
    memset(bits, 0, (size_t)(8 * ax_ceil_div(count, 64)));
    for (data_stretch s = {0}; data->parts && data_next_stretch(data, first, first + count, &s);)
        AX_TRY(read_file(s.part, s.from, s.to - s.from, s.at, bits));
    return data->parts ? AX_OK : read_file(data, first, count, 0, bits);
}

ax_status ax_data_mask(const ax_data *data, int64_t first, int64_t count, uint64_t *bits)
{
    AX_CHECK(first >= 0 && count >= 0 && first <= data->info.tokens - count, AX_ERR_USAGE,
             "ax_data_mask: the %lld tokens from token %lld on are not all in %s, which has %lld tokens",
             (long long)count, (long long)first, data->path, (long long)data->info.tokens);
    return data_read_mask(data, first, count, bits);
}
