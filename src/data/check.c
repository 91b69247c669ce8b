/* ax_data_check: verifies token files completely. It reads all tokens, the document index and the mask. This
 * takes too long to be done at each opening of a file. */
#include "source.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CHECK_CHUNK = 1 << 16 }; /* bytes hashed, or tokens checked, at a time */

static ax_status hash_body(const ax_data *data, XXH3_state_t *state)
{
    char *chunk;
    AX_TRY(ax_calloc(CHECK_CHUNK, 1, &chunk));
    XXH3_64bits_reset(state);
    ax_status status = AX_OK;
    for (int64_t at = data->tokens_at, n; at < data->main.bytes && status == AX_OK; at += n) {
        n = ax_min(data->main.bytes - at, CHECK_CHUNK);
        status = data_file_read(&data->main, at, chunk, n);
        if (status == AX_OK)
            XXH3_64bits_update(state, chunk, (size_t)n);
    }
    free(chunk);
    return status;
}

static ax_status check_body_hash(const ax_data *data)
{
    if (data->info.format != AX_DATA_TOK)
        return AX_OK;
    XXH3_state_t *state = XXH3_createState();
    AX_CHECK(state, AX_ERR_MEMORY, "not enough memory while the checksum of %s was computed", data->path);
    ax_status status = hash_body(data, state);
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    AX_TRY(status);
    AX_CHECK(hash == data->info.checksum, AX_ERR_DATA,
             "%s is damaged, so build or copy it again: the checksum of bytes %d to the end is %016llx, its "
             "header (offset 80) says %016llx",
             data->path, TOK_HEADER_BYTES, (unsigned long long)hash, (unsigned long long)data->info.checksum);
    return AX_OK;
}

/* Checks the documents that end within tokens at ... at+count-1, which are in `tokens`: the last token of
 * each of these documents must be end_id. *document is the first document that is not checked yet. Checks
 * nothing unless the file is a packed token file with an end_id. */
static ax_status check_ends(data_starts *starts, const int32_t *tokens, int64_t at, int64_t count,
                            int64_t *document)
{
    const ax_data *data = starts->data;
    if (data->info.format != AX_DATA_TOK || data->info.end_id < 0)
        return AX_OK;
    for (; *document < data->info.documents; ++*document) {
        int64_t end;
        AX_TRY(data_starts_get(starts, *document + 1, &end));
        int64_t last = end - 1;
        if (last >= at + count)
            break;
        AX_CHECK(tokens[last - at] == data->info.end_id, AX_ERR_DATA,
                 "%s is damaged, so build or copy it again: document %lld ends with token %d, not with "
                 "end-of-text %lld (offset %lld)",
                 data->path, (long long)*document, tokens[last - at], (long long)data->info.end_id,
                 (long long)(TOK_HEADER_BYTES + last * data->info.token_bytes));
    }
    return AX_OK;
}

/* Checks that all tokens are below the vocabulary and that documents end with end_id. check_starts must have
 * passed, because check_ends relies on ascending document starts. */
static ax_status check_tokens(const ax_data *data)
{
    int32_t *buffer;
    int64_t document = 0;
    data_starts starts;
    data_starts_begin(&starts, data);
    AX_TRY(ax_calloc(CHECK_CHUNK, sizeof *buffer, &buffer));
    ax_status status = AX_OK;
    for (int64_t at = 0; at < data->info.tokens && status == AX_OK; at += CHECK_CHUNK) {
        int64_t count = ax_min(CHECK_CHUNK, data->info.tokens - at);
        status = ax_data_tokens(data, at, count, buffer);
        if (status == AX_OK)
            status = check_ends(&starts, buffer, at, count, &document);
    }
    free(buffer);
    return status;
}

/* Checks that the sequences of a Megatron-LM data set follow each other in the .bin file without gaps,
 * because training rows are cut from the .bin file as if it were one run of tokens. */
static ax_status check_sequences(data_starts *starts)
{
    const ax_data *data = starts->data;
    int64_t expected = 0;
    int32_t lengths[2048];
    for (int64_t i = 0; i < data->sequences; i++) {
        const int64_t part = AX_COUNT(lengths);
        if (i % part == 0)
            AX_TRY(data_file_read(&data->side, data->offsets_at - 4 * (data->sequences - i), lengths,
                                  4 * ax_min(part, data->sequences - i)));
        int64_t offset, length = lengths[i % part];
        AX_TRY(data_window_get(&starts->offsets, i, &offset));
        AX_CHECK(length >= 0 && offset == expected, AX_ERR_DATA,
                 "the index of %s is damaged, so build or copy it again: sequence %lld of length %lld is at "
                 "byte %lld, the sequence before it ends at %lld",
                 data->path, (long long)i, (long long)length, (long long)offset, (long long)expected);
        expected += length * data->info.token_bytes;
    }
    return AX_OK;
}

static ax_status check_megatron(const ax_data *data)
{
    data_starts starts;
    int64_t first, next = 0;
    data_starts_begin(&starts, data);
    AX_TRY(check_sequences(&starts));
    AX_TRY(data_window_get(&starts.index, 0, &next));
    for (int64_t d = 0; d < data->info.documents; d++) {
        first = next;
        AX_TRY(data_window_get(&starts.index, d + 1, &next));
        AX_CHECK(first >= 0 && first <= next && next <= data->sequences, AX_ERR_DATA,
                 "the index of %s is damaged, so build or copy it again: document %lld is sequences %lld ... "
                 "%lld, but must end within the %lld sequences",
                 data->path, (long long)d, (long long)first, (long long)next - 1, (long long)data->sequences);
    }
    return AX_OK;
}

static ax_status check_starts(const ax_data *data)
{
    data_starts starts;
    int64_t first, next = 0;
    data_starts_begin(&starts, data);
    AX_TRY(data_window_get(&starts.index, 0, &next));
    for (int64_t d = 0; d < data->info.documents; d++) {
        first = next;
        AX_TRY(data_window_get(&starts.index, d + 1, &next));
        AX_CHECK(first >= 0 && first < next && next <= data->info.tokens, AX_ERR_DATA,
                 "%s is damaged, so build or copy it again: document %lld is tokens %lld ... %lld, but must "
                 "have a token and end within the %lld tokens (offset %lld)",
                 data->path, (long long)d, (long long)first, (long long)next - 1,
                 (long long)data->info.tokens, (long long)(data->index_at + 8 * (d + 1)));
    }
    return AX_OK;
}

/* Returns the number of ones among bits first ... end-1 of `words`. */
static int64_t count_ones(const uint64_t *words, int64_t first, int64_t end)
{
    int64_t count = 0;
    for (int64_t i = first, n; i < end; i += n) {
        n = ax_min(64 - i % 64, end - i);
        uint64_t bits = words[i / 64] >> i % 64;
        count += __builtin_popcountll(n < 64 ? bits & ((UINT64_C(1) << n) - 1) : bits);
    }
    return count;
}

/* Checks that the mask bits after the bit of the last token are 0. */
static ax_status check_mask_end(const ax_data *data)
{
    uint64_t last;
    int64_t tail = data->info.tokens % 64, at = data->main.bytes - 8;
    if (!tail)
        return AX_OK;
    AX_TRY(data_file_read(&data->main, at, &last, sizeof last));
    AX_CHECK(!(last >> tail), AX_ERR_DATA,
             "%s is damaged, so build or copy it again: its mask has a 1 after the bit of the last token "
             "(offset %lld)",
             data->path, (long long)at);
    return AX_OK;
}

/* Checks that each document has a token whose mask bit is 1, and that the mask has as many such bits as the
 * header says. check_starts must have passed. */
static ax_status check_mask(const ax_data *data)
{
    uint64_t words[256];
    const int64_t chunk = 64 * (int64_t)AX_COUNT(words);
    data_starts starts;
    int64_t document = 0, found = 0, sum = 0, end;
    data_starts_begin(&starts, data);
    for (int64_t at = 0; at < data->info.tokens; at += chunk) {
        int64_t n = ax_min(chunk, data->info.tokens - at), done = 0;
        AX_TRY(data_read_mask(data, at, n, words));
        for (; document < data->info.documents; document++, found = 0) {
            AX_TRY(data_starts_get(&starts, document + 1, &end));
            if (end > at + n)
                break;
            found += count_ones(words, done, end - at);
            AX_CHECK(found, AX_ERR_DATA,
                     "%s is damaged, so build or copy it again: its mask has no target in document %lld",
                     data->path, (long long)document);
            sum += found;
            done = end - at;
        }
        found += count_ones(words, done, n);
    }
    AX_CHECK(sum == data->info.targets, AX_ERR_DATA,
             "%s is damaged, so build or copy it again: its mask has %lld targets, its header (offset 104) "
             "says %lld",
             data->path, (long long)sum, (long long)data->info.targets);
    return check_mask_end(data);
}

/* Checks a file, or all shards of a source. Compares the checksum last: a wrong checksum shows any damage,
 * but not its place, which the messages of the other checks name. */
ax_status ax_data_check(const ax_data *data)
{
    for (int i = 0; i < data->parts; i++)
        AX_TRY(ax_data_check(data->part[i]));
    if (data->parts)
        return AX_OK;
    if (data->index_kind == INDEX_STARTS)
        AX_TRY(check_starts(data));
    if (data->index_kind == INDEX_MEGATRON)
        AX_TRY(check_megatron(data));
    AX_TRY(check_tokens(data));
    if (data->mask_at)
        AX_TRY(check_mask(data));
    return check_body_hash(data);
}
