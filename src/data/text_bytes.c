/* ax_data_text_bytes: the size of the text that a token source was made from, computed from its tokens if its
 * file does not record it. */
#include "source.h"

#include <stdlib.h>

enum { TEXT_CHUNK = 1 << 16 };

/* Sets lengths[id] to the bytes that a token adds to the text; -1: the tokenizer has no such token. */
static ax_status token_lengths(const ax_tokenizer *tokenizer, int32_t vocab, int32_t **out)
{
    AX_TRY(ax_calloc((size_t)vocab, sizeof **out, out));
    for (int32_t id = 0; id < vocab; id++) {
        size_t n;
        bool known = ax_tokenizer_piece(tokenizer, id, &n) != NULL;
        (*out)[id] = !known ? -1 : ax_tokenizer_is_special(tokenizer, id) ? 0 : (int32_t)n;
    }
    return AX_OK;
}

static ax_status sum_lengths(const ax_data *data, const int32_t *lengths, int32_t vocab, int32_t *buffer,
                             int64_t *bytes)
{
    *bytes = 0;
    for (int64_t at = 0; at < data->info.tokens; at += TEXT_CHUNK) {
        int64_t count = ax_min(TEXT_CHUNK, data->info.tokens - at);
        AX_TRY(ax_data_tokens(data, at, count, buffer));
        for (int64_t i = 0; i < count; i++) {
            AX_CHECK(buffer[i] < vocab && lengths[buffer[i]] >= 0, AX_ERR_DATA,
                     "%s: token %lld is %d, which the tokenizer does not have: was it made by another one?",
                     data->path, (long long)(at + i), buffer[i]);
            *bytes += lengths[buffer[i]];
        }
    }
    return AX_OK;
}

ax_status ax_data_text_bytes(const ax_data *data, const ax_tokenizer *tokenizer, int64_t *bytes)
{
    int32_t vocab = ax_tokenizer_vocab_size(tokenizer), *lengths = NULL, *buffer = NULL;
    if (data->info.text_bytes >= 0) {
        *bytes = data->info.text_bytes;
        return AX_OK;
    }
    ax_status status = token_lengths(tokenizer, vocab, &lengths);
    if (status == AX_OK)
        status = ax_calloc(TEXT_CHUNK, sizeof *buffer, &buffer);
    if (status == AX_OK)
        status = sum_lengths(data, lengths, vocab, buffer, bytes);
    free(lengths);
    free(buffer);
    return status;
}
