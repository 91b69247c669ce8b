/* Opens token sources (a source is one token file, or several that are read as one), and finds their
 * documents. Whatever its format, an opened file is an array of tokens and, in formats that have one, an
 * index of documents. */
#include "source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

uint64_t tok_header_hash(const tok_header *header)
{
    return XXH3_64bits(header, offsetof(tok_header, header_hash));
}

uint64_t tok_mask_hash(const tok_header *header) { return XXH3_64bits(&header->mask_at, 16); }

uint64_t tok_chat_template_hash(const tok_header *header)
{
    static const char none[AX_CHAT_NAME_BYTES];
    return memcmp(header->chat_template, none, sizeof none) ? XXH3_64bits(header->chat_template, sizeof none)
                                                            : 0;
}

/* ---- documents ----------------------------------------------------------------------------------- */

void data_starts_begin(data_starts *s, const ax_data *data)
{
    const data_file *file = data->index_kind == INDEX_STARTS ? &data->main : &data->side;
    s->data = data;
    s->index.file = s->offsets.file = file;
    s->index.at = data->index_at;
    s->index.n = data->info.documents + 1;
    s->offsets.at = data->offsets_at;
    s->offsets.n = data->sequences;
    s->index.first = s->index.count = s->offsets.first = s->offsets.count = 0;
}

ax_status data_starts_get(data_starts *s, int64_t d, int64_t *start)
{
    const ax_data *data = s->data;
    int64_t at, tokens = data->info.tokens;
    AX_TRY(data_window_get(&s->index, d, &at));
    if (data->index_kind == INDEX_MEGATRON) {
        if (at < 0 || at >= data->sequences) {
            *start = tokens;
            return AX_OK;
        }
        AX_TRY(data_window_get(&s->offsets, at, &at));
        at /= data->info.token_bytes;
    }
    *start = at >= 0 && at <= tokens ? at : tokens; /* a damaged entry must not point past the last token */
    return AX_OK;
}

ax_status data_starts_find(data_starts *s, int64_t pos, int64_t *document)
{
    const ax_data *data = s->data;
    int64_t low = 0, high = data->coarse_n;
    while (high - low > 1) {
        int64_t mid = (low + high) / 2;
        *(data->coarse[mid] <= pos ? &low : &high) = mid;
    }
    low *= data->coarse_step;
    high = ax_min(low + data->coarse_step, data->info.documents);
    while (high - low > 1) {
        int64_t mid = (low + high) / 2, start;
        AX_TRY(data_starts_get(s, mid, &start));
        *(start <= pos ? &low : &high) = mid;
    }
    *document = low;
    return AX_OK;
}

static const ax_data *walked_file(const data_walk *w)
{
    return w->data->parts ? w->data->part[w->part] : w->data;
}

/* Sets w->end, the end of the current document, to the first document start after token `above` of the
 * source, or to the end of the shard if there is none. Skips the starts of empty documents and damaged
 * entries of the index. */
static ax_status find_walk_end(data_walk *w, int64_t above)
{
    const ax_data_info *info = &walked_file(w)->info;
    for (; w->next < info->documents; w->next++) {
        int64_t start;
        AX_TRY(data_starts_get(&w->starts, w->next, &start));
        w->end = w->part_at + start;
        if (w->end > above)
            return AX_OK;
    }
    w->end = w->part_at + info->tokens;
    return AX_OK;
}

ax_status data_walk_begin(data_walk *w, const ax_data *data, int64_t token)
{
    w->data = data;
    w->part = data->parts ? data_part_of(data, token) : 0;
    w->part_at = data->parts ? data->part_at[w->part] : 0;
    data_starts_begin(&w->starts, walked_file(w));
    AX_TRY(data_starts_find(&w->starts, token - w->part_at, &w->next));
    AX_TRY(data_starts_get(&w->starts, w->next++, &w->first));
    w->first = ax_min(w->first + w->part_at, token);
    return find_walk_end(w, token);
}

ax_status data_walk_next(data_walk *w)
{
    w->first = w->end;
    if (w->first == w->data->info.tokens)
        return AX_OK;
    if (w->first == w->part_at + walked_file(w)->info.tokens) {
        w->part_at = w->data->part_at[++w->part];
        w->next = 0;
        data_starts_begin(&w->starts, walked_file(w));
    }
    return find_walk_end(w, w->first);
}

ax_status data_mark_starts(const ax_data *data, data_walk *walk, const int32_t *before, int64_t first,
                           int64_t count, uint8_t *begins)
{
    const int64_t end_id = data->info.end_id;
    memset(begins, 0, (size_t)count);
    if (data->index_kind == INDEX_NONE) {
        for (int64_t i = 0; i < count && end_id >= 0; i++)
            begins[i] = before[i] == end_id;
        return AX_OK;
    }
    while (walk->end < first + count) {
        begins[walk->end - first] = 1;
        AX_TRY(data_walk_next(walk));
    }
    return AX_OK;
}

/* Fills data->coarse with the index of the first token of every coarse_step-th document, which speeds up
 * searches. Fails if the first document does not start at token 0, or if one of these starts is out of order
 * or past the last token. */
static ax_status read_coarse(ax_data *data)
{
    int64_t documents = data->info.documents, tokens = data->info.tokens, last = 0;
    data->coarse_step = ax_max(ax_ceil_div(documents, COARSE_MAX), 1);
    data->coarse_n = ax_ceil_div(documents, data->coarse_step);
    AX_TRY(ax_calloc((size_t)data->coarse_n, sizeof *data->coarse, &data->coarse));
    data_starts starts;
    data_starts_begin(&starts, data);
    for (int64_t i = 0; i < data->coarse_n; i++) {
        int64_t start;
        AX_TRY(data_starts_get(&starts, i * data->coarse_step, &start));
        AX_CHECK(i ? start >= last && start <= tokens : start == 0, AX_ERR_DATA,
                 "%s is damaged, so build or copy it again: document %lld starts at token %lld of %lld; "
                 "document 0 must start at token 0, and the others in ascending order (that %lld documents "
                 "earlier: at token %lld)",
                 data->path, (long long)(i * data->coarse_step), (long long)start, (long long)tokens,
                 (long long)data->coarse_step, (long long)last);
        data->coarse[i] = last = start;
    }
    return AX_OK;
}

/* ---- formats ------------------------------------------------------------------------------------- */

/* Checks that the header's bytes that no checksum covers are zero. */
static ax_status check_zeros(const ax_data *data, const tok_header *h)
{
    const unsigned char *bytes = (const unsigned char *)h;
    size_t first =
        h->version == TOK_VERSION_MASK ? offsetof(tok_header, zero) : offsetof(tok_header, mask_at);
    size_t i = first;
    while (i < sizeof *h && !bytes[i])
        i++;
    AX_CHECK(i == sizeof *h, AX_ERR_DATA,
             "%s is damaged, so build or copy it again: byte %zu of its header is 0x%02x, but bytes %zu to "
             "%d must be 0",
             data->path, i, bytes[i], first, TOK_HEADER_BYTES - 1);
    return AX_OK;
}

/* Returns true if the field holds lower-case letters, digits and '-', and then a NUL. */
static bool is_template_name(const char name[AX_CHAT_NAME_BYTES])
{
    int n = 0;
    while (n < AX_CHAT_NAME_BYTES &&
           (name[n] == '-' || name[n] == '.' || (name[n] >= 'a' && name[n] <= 'z') ||
            (name[n] >= '0' && name[n] <= '9')))
        n++;
    return n < AX_CHAT_NAME_BYTES && !name[n];
}

/* Checks the version and the checksums of the header, and that all bytes that no checksum covers are zero. */
static ax_status check_header(const ax_data *data, const tok_header *h)
{
    AX_CHECK(h->version == TOK_VERSION_PLAIN || h->version == TOK_VERSION_MASK, AX_ERR_DATA,
             "%s has format version %u, but this program reads %d and %d: build the file again", data->path,
             h->version, TOK_VERSION_PLAIN, TOK_VERSION_MASK);
    AX_CHECK(
        h->header_hash == tok_header_hash(h), AX_ERR_DATA,
        "%s is damaged, so build or copy it again: the checksum of its header (offset 88) does not match",
        data->path);
    AX_CHECK(h->version == TOK_VERSION_PLAIN || h->mask_hash == tok_mask_hash(h), AX_ERR_DATA,
             "%s is damaged, so build or copy it again: the checksum of the mask's fields (offset 112) does "
             "not match",
             data->path);
    AX_CHECK(h->version == TOK_VERSION_PLAIN ||
                 (h->chat_template_hash == tok_chat_template_hash(h) && is_template_name(h->chat_template)),
             AX_ERR_DATA,
             "%s is damaged, so build or copy it again: the name of its chat template (offset 120) is not "
             "valid or does not match its checksum",
             data->path);
    return check_zeros(data, h);
}

static ax_status open_tok(ax_data *data)
{
    tok_header h;
    AX_CHECK(data->main.bytes >= TOK_HEADER_BYTES, AX_ERR_DATA,
             "%s is truncated, so build or copy it again: it has %lld bytes, but the header alone has %d",
             data->path, (long long)data->main.bytes, TOK_HEADER_BYTES);
    AX_TRY(data_file_read(&data->main, 0, &h, sizeof h));
    AX_TRY(check_header(data, &h));
    const uint64_t sane = UINT64_C(1) << 56;
    uint64_t index_at = TOK_HEADER_BYTES + (h.tokens * h.token_bytes + 7) / 8 * 8;
    uint64_t index_end = index_at + 8 * (h.documents + 1);
    bool masked = h.version == TOK_VERSION_MASK;
    AX_CHECK((h.token_bytes == 2 || h.token_bytes == 4) && h.tokens < sane && h.documents < sane &&
                 h.documents > 0 && h.tokens_at == TOK_HEADER_BYTES && h.index_at == index_at &&
                 (!masked || (h.mask_at == index_end && h.targets <= h.tokens)),
             AX_ERR_DATA,
             "%s is damaged, so build or copy it again: the counts and offsets in its header do not agree",
             data->path);
    uint64_t size = index_end + (masked ? tok_mask_bytes(h.tokens) : 0);
    AX_CHECK((uint64_t)data->main.bytes == size, AX_ERR_DATA,
             "%s is %s, so build or copy it again: it has %lld bytes, but its header says %llu", data->path,
             (uint64_t)data->main.bytes < size ? "truncated" : "damaged", (long long)data->main.bytes,
             (unsigned long long)size);
    data->info = (ax_data_info){.token_bytes = (int)h.token_bytes,
                                .tokens = (int64_t)h.tokens,
                                .documents = (int64_t)h.documents,
                                .targets = masked ? (int64_t)h.targets : -1,
                                .vocab = (int64_t)h.vocab,
                                .text_bytes = (int64_t)h.text_bytes,
                                .end_id = h.end_id,
                                .tokenizer_hash = h.tokenizer_hash,
                                .checksum = h.body_hash};
    if (masked)
        memcpy(data->info.chat_template, h.chat_template, sizeof h.chat_template);
    data->tokens_at = TOK_HEADER_BYTES;
    data->index_kind = INDEX_STARTS;
    data->index_at = (int64_t)index_at;
    data->mask_at = (int64_t)h.mask_at;
    int64_t end;
    AX_TRY(data_file_read(&data->main, (int64_t)index_end - 8, &end, sizeof end));
    AX_CHECK(end == data->info.tokens, AX_ERR_DATA,
             "%s is damaged, so build or copy it again: its document index ends at token %lld of %lld "
             "(offset %lld)",
             data->path, (long long)end, (long long)data->info.tokens, (long long)index_end - 8);
    return AX_OK;
}

static ax_status open_llmc(ax_data *data, int width)
{
    AX_CHECK(data->main.bytes >= LLMC_HEADER_BYTES, AX_ERR_DATA,
             "%s is truncated, so build or copy it again: it has %lld bytes, but the header of an llm.c file "
             "alone has %d",
             data->path, (long long)data->main.bytes, LLMC_HEADER_BYTES);
    int32_t count;
    AX_TRY(data_file_read(&data->main, 8, &count, sizeof count));
    int64_t size = LLMC_HEADER_BYTES + ax_max(count, 0) * width;
    AX_CHECK(count >= 0 && data->main.bytes == size, AX_ERR_DATA,
             "%s is damaged or truncated, so build or copy it again: its header says %d tokens of %d bytes, "
             "which makes %lld bytes; it has %lld",
             data->path, count, width, (long long)size, (long long)data->main.bytes);
    data->info = (ax_data_info){.token_bytes = width, .tokens = count};
    data->tokens_at = LLMC_HEADER_BYTES;
    return AX_OK;
}

static ax_status open_nanogpt(ax_data *data)
{
    int width;
    AX_TRY(data_headerless_width(&data->main, &width));
    data->info = (ax_data_info){.token_bytes = width, .tokens = data->main.bytes / width};
    return AX_OK;
}

/* Returns the size in bytes of a token whose dtype has the code `code` in Megatron-LM's index; 0 if token ids
 * cannot have this dtype. */
static int megatron_width(int code)
{
    switch (code) {
    case 1:
        return 1;
    case 4:
        return 4;
    case 5:
        return 8;
    case 8:
        return 2;
    default:
        return 0;
    }
}

/* The header of Megatron-LM's index, whose fields are not aligned in the file. */
typedef struct megatron_header {
    int64_t version, sequences, bounds; /* bounds: number of documents + 1 */
    int code;                           /* dtype of the tokens */
} megatron_header;

static ax_status read_megatron_header(const data_file *side, megatron_header *out)
{
    char raw[MEGATRON_HEADER_BYTES];
    bool whole = side->bytes >= MEGATRON_HEADER_BYTES;
    if (whole)
        AX_TRY(data_file_read(side, 0, raw, sizeof raw));
    AX_CHECK(whole && !memcmp(raw, MEGATRON_MAGIC, 9), AX_ERR_DATA,
             "%s is not an index of Megatron-LM: its first bytes are not MMIDIDX", side->path);
    memcpy(&out->version, raw + 9, 8);
    out->code = (unsigned char)raw[17];
    memcpy(&out->sequences, raw + 18, 8);
    memcpy(&out->bounds, raw + 26, 8);
    return AX_OK;
}

/* Checks that the documents cover all sequences of a Megatron-LM data set, and that the last sequence ends
 * where the .bin file ends. */
static ax_status check_megatron_ends(const ax_data *data, int64_t bounds)
{
    const data_file *side = &data->side;
    int64_t first, last, end = 0, sequences = data->sequences;
    AX_TRY(data_file_read(side, data->index_at, &first, 8));
    AX_TRY(data_file_read(side, data->index_at + 8 * (bounds - 1), &last, 8));
    AX_CHECK(first == 0 && last == sequences, AX_ERR_DATA,
             "%s is damaged, so build or copy it again: its documents cover sequences %lld ... %lld of %lld",
             side->path, (long long)first, (long long)last, (long long)sequences);
    if (sequences) {
        int32_t length;
        AX_TRY(data_file_read(side, MEGATRON_HEADER_BYTES + 4 * (sequences - 1), &length, sizeof length));
        AX_TRY(data_file_read(side, data->offsets_at + 8 * (sequences - 1), &end, sizeof end));
        if (__builtin_add_overflow(end, (int64_t)length * data->info.token_bytes, &end))
            end = -1;
    }
    AX_CHECK(data->main.bytes == end, AX_ERR_DATA,
             "%s is damaged or truncated, so build or copy it again: it has %lld bytes, but its index (.idx) "
             "ends at byte %lld",
             data->path, (long long)data->main.bytes, (long long)end);
    return AX_OK;
}

static ax_status open_megatron(ax_data *data)
{
    const data_file *side = &data->side;
    megatron_header h;
    AX_TRY(read_megatron_header(side, &h));
    AX_CHECK(h.version == 1, AX_ERR_DATA,
             "%s is a Megatron-LM index of format version %lld, but only version 1 is supported", side->path,
             (long long)h.version);
    int width = megatron_width(h.code);
    AX_CHECK(
        width, AX_ERR_DATA,
        "%s: the dtype code of its tokens (offset 17) is %d, but must be 1 (u8), 8 (u16), 4 (i32) or 5 (i64)",
        side->path, h.code);
    const int64_t sane = INT64_C(1) << 48;
    AX_CHECK(h.sequences >= 0 && h.sequences < sane && h.bounds >= 1 && h.bounds < sane, AX_ERR_DATA,
             "%s is damaged, so build or copy it again: its counts (offset 18) are %lld sequences and %lld "
             "document boundaries, but must be at least 0 and 1, and below 2^48",
             side->path, (long long)h.sequences, (long long)h.bounds);
    int64_t size = MEGATRON_HEADER_BYTES + 12 * h.sequences + 8 * h.bounds;
    AX_CHECK(
        side->bytes == size || side->bytes == size + h.sequences, AX_ERR_DATA,
        "%s is damaged or truncated, so build or copy it again: it has %lld bytes, but its header says %lld",
        side->path, (long long)side->bytes, (long long)size);
    data->info =
        (ax_data_info){.token_bytes = width, .tokens = data->main.bytes / width, .documents = h.bounds - 1};
    data->index_kind = INDEX_MEGATRON;
    data->sequences = h.sequences;
    data->offsets_at = MEGATRON_HEADER_BYTES + 4 * h.sequences;
    data->index_at = data->offsets_at + 8 * h.sequences;
    return check_megatron_ends(data, h.bounds);
}

/* Drops empty documents at the end of a Megatron-LM index. Such a document starts after the last sequence, so
 * the index has no offset for its start. */
static ax_status drop_empty_tail(ax_data *data)
{
    data_starts starts;
    int64_t sequence = data->sequences;
    if (data->index_kind != INDEX_MEGATRON)
        return AX_OK;
    data_starts_begin(&starts, data);
    starts.index.first = starts.index.n; /* the first lookup then also reads the elements before the one asked
                                            for, because the loop goes backward */
    while (data->info.documents > 0) {
        AX_TRY(data_window_get(&starts.index, data->info.documents - 1, &sequence));
        if (sequence != data->sequences)
            break;
        data->info.documents--;
    }
    return AX_OK;
}

static ax_status open_format(ax_data *data, ax_data_format format, const char *idx)
{
    AX_TRY(data_file_open(data->path, &data->main));
    if (format == AX_DATA_MEGATRON) {
        AX_TRY(data_file_open(idx, &data->side));
        AX_TRY(open_megatron(data));
    } else if (format == AX_DATA_TOK) {
        AX_TRY(open_tok(data));
    } else if (format == AX_DATA_NANOGPT) {
        AX_TRY(open_nanogpt(data));
    } else {
        AX_TRY(open_llmc(data, format == AX_DATA_LLMC ? 2 : 4));
    }
    return AX_OK;
}

static ax_status open_into(ax_data *data, const char *path, int64_t end_id)
{
    ax_data_format format;
    AX_TRY(data_detect_file(path, &format));
    AX_CHECK(format != AX_DATA_PIPE, AX_ERR_DATA, "%s is a pipe: a token file must be a regular file", path);
    AX_CHECK(!ax_data_format_is_text(format), AX_ERR_DATA,
             "%s holds text, not tokens: make a token file of it with `axonn data build`", path);
    char *idx = NULL, *bin = NULL;
    ax_status status = AX_OK;
    if (format == AX_DATA_MEGATRON)
        status = data_megatron_paths(path, &idx, &bin);
    if (status == AX_OK)
        status = ax_strdup(bin ? bin : path, &data->path);
    if (status == AX_OK)
        status = open_format(data, format, idx);
    free(idx);
    free(bin);
    AX_TRY(status);
    AX_CHECK(data->info.tokens, AX_ERR_DATA, "%s is empty: it holds no tokens; build or copy it again",
             data->path);
    data->info.format = format;
    data->info.file_bytes = data->main.bytes + data->side.bytes;
    data->info.begin_id = -1;
    data->limit = data->info.vocab ? data->info.vocab : INT32_MAX;
    if (format != AX_DATA_TOK) {
        data->info.text_bytes = data->info.targets = -1;
        data->info.end_id = end_id;
        AX_TRY(data_sampled_sum(&data->main, &data->side, &data->info.checksum));
    }
    if (data->index_kind == INDEX_NONE) {
        data->info.documents = -1;
        return AX_OK;
    }
    AX_TRY(drop_empty_tail(data));
    return read_coarse(data);
}

ax_status data_open_file(const char *path, int64_t end_id, ax_data **out)
{
    ax_data *data;
    AX_TRY(ax_calloc(1, sizeof *data, &data));
    ax_status status = open_into(data, path, end_id);
    if (status != AX_OK)
        ax_data_close(&data);
    *out = data;
    return status;
}

static ax_status open_shards(const char *path, const ax_strings *names, int64_t end_id, ax_data **out)
{
    ax_data *data;
    AX_TRY(ax_calloc(1, sizeof *data, &data));
    ax_status status = ax_strdup(path, &data->path);
    if (status == AX_OK)
        status = data_open_parts(data, names, end_id);
    if (status != AX_OK)
        ax_data_close(&data);
    *out = data;
    return status;
}

ax_status ax_data_open(const char *path, int64_t end_id, ax_data **out)
{
    ax_strings names;
    *out = NULL;
    AX_TRY(data_list(path, &names));
    ax_status status =
        names.count ? open_shards(path, &names, end_id, out) : data_open_file(path, end_id, out);
    ax_strings_fini(&names);
    return status;
}

void ax_data_close(ax_data **data)
{
    if (!*data)
        return;
    for (ax_data **part = (*data)->part; part && *part; part++)
        ax_data_close(part);
    free((*data)->part);
    free((*data)->part_at);
    data_file_close(&(*data)->main);
    data_file_close(&(*data)->side);
    free((*data)->path);
    free((*data)->given);
    free((*data)->coarse);
    data_pack_free(&(*data)->pack);
    free(*data);
    *data = NULL;
}

const ax_data_info *ax_data_describe(const ax_data *data) { return &data->info; }
const char *ax_data_path(const ax_data *data) { return data->given ? data->given : data->path; }

ax_status ax_data_set_path(ax_data *data, const char *path)
{
    char *given;
    AX_TRY(ax_strdup(path, &given));
    free(data->given);
    data->given = given;
    return AX_OK;
}

/* Reads all tokens, which fails at one that is not below data->limit. */
static ax_status check_limit(const ax_data *data)
{
    enum { AT_ONCE = 1 << 14 };
    int32_t *tokens;
    AX_TRY(ax_calloc(AT_ONCE, sizeof *tokens, &tokens));
    ax_status status = AX_OK;
    for (int64_t at = 0; at < data->info.tokens && status == AX_OK; at += AT_ONCE)
        status = ax_data_tokens(data, at, ax_min(AT_ONCE, data->info.tokens - at), tokens);
    free(tokens);
    return status;
}

static ax_status expect(ax_data *data, const ax_data_reader *reader)
{
    const ax_data_info *info = &data->info;
    const uint64_t hash = reader->tokenizer_hash;
    for (int i = 0; i < data->parts; i++)
        AX_TRY(expect(data->part[i], reader));
    AX_CHECK(info->vocab <= reader->vocab || (hash && info->tokenizer_hash == hash), AX_ERR_DATA,
             "%s was made with a vocabulary of %lld tokens, but %lld are expected: it is for another "
             "model or tokenizer; build it with the one in use",
             data->path, (long long)info->vocab, (long long)reader->vocab);
    AX_CHECK(!info->tokenizer_hash || !hash || info->tokenizer_hash == hash, AX_ERR_DATA,
             "%s was made by another tokenizer (hash %016llx, the one given has %016llx): build it again, "
             "or name the tokenizer it was made with",
             data->path, (unsigned long long)info->tokenizer_hash, (unsigned long long)hash);
    data->limit = info->vocab ? ax_min(info->vocab, reader->vocab) : reader->vocab;
    data->tokenizer = reader->tokenizer;
    const bool unclear = info->vocab > reader->vocab && !data->parts;
    return unclear && !reader->other ? check_limit(data) : AX_OK;
}

ax_status ax_data_expect(ax_data *data, const ax_data_reader *reader)
{
    const ax_data_info *info = &data->info;
    AX_TRY(expect(data, reader));
    if (reader->other || info->format != AX_DATA_NANOGPT)
        return AX_OK;
    if (info->token_bytes != 2)
        ax_log(AX_LOG_INFO, "%s has no header; its values show that its token ids have %d bits", data->path,
               8 * info->token_bytes);
    else if (reader->vocab > 65536)
        ax_log(AX_LOG_WARN,
               "%s has no header and is read as 16-bit token ids, which cannot reach a vocabulary of %lld: "
               "if its "
               "ids are wider, say so by a name that ends with .u32.bin",
               data->path, (long long)reader->vocab);
    return AX_OK;
}

/* Sets *begins to whether the first document begins with the tokens `ids`, which are one or more. */
static ax_status begins_with(const ax_data *data, const ax_ids *ids, bool *begins)
{
    int32_t token;
    *begins = data->info.tokens >= (int64_t)ids->size;
    for (size_t i = 0; i < ids->size && *begins; i++) {
        AX_TRY(data_read_tokens(data, (int64_t)i, 1, &token));
        *begins = token == ids->data[i];
    }
    return AX_OK;
}

ax_status ax_data_expect_begin(ax_data *data, const ax_tokenizer *tokenizer, bool warn)
{
    const ax_ids *before = ax_tokenizer_before(tokenizer);
    ax_data_info *info = &data->info;
    bool begins;
    size_t n;
    if (!before->size)
        return AX_OK;
    for (int i = 0; i < data->parts; i++)
        AX_TRY(ax_data_expect_begin(data->part[i], tokenizer, warn));
    info->begin_id = before->data[0];
    for (int i = 0; i < data->parts; i++)
        info->begin_id = data->part[i]->info.begin_id < 0 ? -1 : info->begin_id;
    if (data->parts)
        return AX_OK;
    AX_TRY(begins_with(data, before, &begins));
    if (begins)
        return AX_OK;
    info->begin_id = -1;
    const char *name = ax_tokenizer_piece(tokenizer, before->data[0], &n);
    if (warn && info->targets < 0 && info->tokenizer_hash == ax_tokenizer_hash(tokenizer))
        ax_log(
            AX_LOG_WARN,
            "%s: its documents do not begin with %.*s, which the tokenizer puts before each text (and before "
            "each prompt): if that is not intended, build the file again",
            data->path, (int)(name ? n : 0), name ? name : "");
    return AX_OK;
}
