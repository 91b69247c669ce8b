/* ax_data_check: what opening a source cannot afford to verify, in one pass over file and index. */
#include "source.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CHECK_CHUNK = 1 << 16 }; /* bytes hashed, or tokens judged, between two releases of pages */

static ax_status check_body_hash(const ax_data *data)
{
    if (data->info.format != AX_DATA_TOK)
        return AX_OK;
    XXH3_state_t *state = XXH3_createState();
    AX_CHECK(state, AX_ERR_MEMORY, "cannot allocate a hash state");
    XXH3_64bits_reset(state);
    const char *end = data->main.base + data->main.bytes;
    for (const char *at = data->tokens; at < end;) {
        size_t bytes = (size_t)ax_min(end - at, CHECK_CHUNK);
        XXH3_64bits_update(state, at, bytes);
        data_map_forget(&data->main, at, at + bytes);
        at += bytes;
    }
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    AX_CHECK(
        hash == data->info.checksum, AX_ERR_DATA,
        "%s is damaged: the checksum of bytes %d to the end is %016llx, its header (offset 80) says %016llx",
        data->path, TOK_HEADER_BYTES, (unsigned long long)hash, (unsigned long long)data->info.checksum);
    return AX_OK;
}

/* Documents that end among tokens at ... at+count-1 end with end_id; *document is the first not yet seen. */
static ax_status check_ends(const ax_data *data, const int32_t *tokens, int64_t at, int64_t count,
                            int64_t *document)
{
    if (data->info.format != AX_DATA_TOK || data->info.end_id < 0)
        return AX_OK;
    for (; *document < data->info.documents; ++*document) {
        int64_t last = data_document_start(data, *document + 1) - 1;
        if (last >= at + count)
            break;
        AX_CHECK(tokens[last - at] == data->info.end_id, AX_ERR_DATA,
                 "%s is damaged: document %lld ends with token %d, not with end-of-text %lld (offset %lld)",
                 data->path, (long long)*document, tokens[last - at], (long long)data->info.end_id,
                 (long long)(TOK_HEADER_BYTES + last * data->info.token_bytes));
    }
    return AX_OK;
}

/* After check_starts, on which it relies. */
static ax_status check_tokens(const ax_data *data)
{
    int32_t *buffer;
    int64_t document = 0;
    AX_TRY(ax_calloc(CHECK_CHUNK, sizeof *buffer, &buffer));
    ax_status status = AX_OK;
    for (int64_t at = 0; at < data->info.tokens && status == AX_OK; at += CHECK_CHUNK) {
        int64_t count = ax_min(CHECK_CHUNK, data->info.tokens - at);
        status = ax_data_tokens(data, at, count, buffer);
        if (status == AX_OK)
            status = check_ends(data, buffer, at, count, &document);
    }
    if (data->index_kind != INDEX_NONE)
        data_forget_documents(data, 0, data->info.documents);
    free(buffer);
    return status;
}

/* Sequences of Megatron-LM must follow each other in the .bin, for samples are cut from it as it lies. */
static ax_status check_megatron(const ax_data *data)
{
    int64_t expected = 0;
    const char *lengths = data->offsets - 4 * data->sequences;
    for (int64_t i = 0; i < data->sequences; i++) {
        int32_t length;
        memcpy(&length, lengths + 4 * i, sizeof length);
        int64_t offset = data_load64(data->offsets, i);
        AX_CHECK(
            length >= 0 && offset == expected, AX_ERR_DATA,
            "the index of %s is damaged or out of order: sequence %lld of length %d is at byte %lld, the one "
            "before it ends at %lld",
            data->path, (long long)i, length, (long long)offset, (long long)expected);
        expected += (int64_t)length * data->info.token_bytes;
        if (i % CHECK_CHUNK == 0)
            data_map_forget(&data->side, data->side.base, data->side.base + data->side.bytes);
    }
    for (int64_t d = 0; d < data->info.documents; d++) {
        int64_t first = data_load64(data->index, d), next = data_load64(data->index, d + 1);
        AX_CHECK(first >= 0 && first <= next && next <= data->sequences, AX_ERR_DATA,
                 "the index of %s is damaged: document %lld is sequences %lld ... %lld of %lld", data->path,
                 (long long)d, (long long)first, (long long)next - 1, (long long)data->sequences);
        if (d % CHECK_CHUNK == 0)
            data_map_forget(&data->side, data->index, data->index + 8 * d);
    }
    data_map_forget(&data->side, data->side.base, data->side.base + data->side.bytes);
    return AX_OK;
}

static ax_status check_starts(const ax_data *data)
{
    for (int64_t d = 0; d < data->info.documents; d++) {
        int64_t first = data_load64(data->index, d), next = data_load64(data->index, d + 1);
        AX_CHECK(first >= 0 && first < next && next <= data->info.tokens, AX_ERR_DATA,
                 "%s is damaged: document %lld is tokens %lld ... %lld of %lld (offset %lld)", data->path,
                 (long long)d, (long long)first, (long long)next - 1, (long long)data->info.tokens,
                 (long long)(data->index - data->main.base + 8 * (d + 1)));
        if (d % CHECK_CHUNK == 0)
            data_forget_documents(data, 0, d);
    }
    data_forget_documents(data, 0, data->info.documents);
    return AX_OK;
}

/* The checksum comes last: it finds everything, but what was found before it has a place. */
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
    return check_body_hash(data);
}
