/* Makes training rows from a token source: copies and checks tokens, and marks documents. targets.c decides
 * which tokens are targets. T: number of tokens in a row; `a`: index in the source of a row's first token. */
#include "source.h"

#include <string.h>

/* Smallest and largest of the copied tokens. Comparing both with the vocabulary size checks all tokens. */
typedef struct token_range {
    int64_t low, high;
} token_range;

enum { STAGE_BYTES = 8192 }; /* bytes read at a time, into a buffer on the stack */

#define COPY_TOKENS(type)                                                                                    \
    do {                                                                                                     \
        const type *in = (const type *)(const void *)raw;                                                    \
        type low = in[0], high = in[0];                                                                      \
        for (int64_t i = 0; i < count; i++) {                                                                \
            low = in[i] < low ? in[i] : low;                                                                 \
            high = in[i] > high ? in[i] : high;                                                              \
            out[i] = (int32_t)in[i];                                                                         \
        }                                                                                                    \
        range = (token_range){(int64_t)low, (int64_t)high};                                                  \
    } while (0)

/* Copies count > 0 tokens and returns their range. `width` is the size of a token in bytes: 1 (u8), 2 (u16),
 * 4 (u32, or i32 read as unsigned, so that negative values exceed any vocabulary) or 8 (i64). */
static token_range copy_tokens(const char *raw, int width, int64_t count, int32_t *out)
{
    token_range range;
    switch (width) {
    case 1:
        COPY_TOKENS(uint8_t);
        break;
    case 2:
        COPY_TOKENS(uint16_t);
        break;
    case 4:
        COPY_TOKENS(uint32_t);
        break;
    default:
        COPY_TOKENS(int64_t);
        break;
    }
    return range;
}

static ax_status read_tokens(const ax_data *data, int64_t first, int64_t count, int32_t *out,
                             token_range *range)
{
    _Alignas(int64_t) char raw[STAGE_BYTES];
    const int w = data->info.token_bytes;
    *range = (token_range){INT64_MAX, INT64_MIN};
    for (int64_t n; count > 0; first += n, out += n, count -= n) {
        n = ax_min(count, STAGE_BYTES / w);
        AX_TRY(data_file_read(&data->main, data->tokens_at + first * w, raw, n * w));
        token_range part = copy_tokens(raw, w, n, out);
        *range = (token_range){ax_min(range->low, part.low), ax_max(range->high, part.high)};
    }
    return AX_OK;
}

ax_status data_read_tokens(const ax_data *data, int64_t first, int64_t count, int32_t *out)
{
    token_range range;
    for (data_stretch s = {0}; data->parts && data_next_stretch(data, first, first + count, &s);)
        AX_TRY(read_tokens(s.part, s.from, s.to - s.from, out + s.at, &range));
    return data->parts ? AX_OK : read_tokens(data, first, count, out, &range);
}

void data_want_tokens(const ax_data *data, int64_t first, int64_t end)
{
    for (data_stretch s = {0}; data->parts && data_next_stretch(data, first, end, &s);)
        data_want_tokens(s.part, s.from, s.to);
    if (data->parts)
        return;
    int w = data->info.token_bytes;
    data_file_want(&data->main, data->tokens_at + first * w, (end - first) * w);
}

/* Fails because one of tokens first ... first+count-1 is outside the vocabulary. The message gives the first
 * such token and its file offset. */
static ax_status fail_token(const ax_data *data, int64_t first, int64_t count)
{
    int w = data->info.token_bytes;
    for (int64_t i = first; i < first + count; i++) {
        int32_t unused;
        token_range one;
        AX_TRY(read_tokens(data, i, 1, &unused, &one));
        AX_CHECK(one.low >= 0 && one.high < data->limit, AX_ERR_DATA,
                 "%s: token %lld is %lld (offset %lld), outside the vocabulary of %lld: set a larger "
                 "vocabulary, or use the tokenizer that made the file",
                 data->path, (long long)i, (long long)one.low, (long long)(data->tokens_at + i * w),
                 (long long)data->limit);
    }
    return ax_fail(AX_ERR_DATA, "%s changed while it was read", data->path);
}

static ax_status checked_copy(const ax_data *data, int64_t first, int64_t count, int32_t *out)
{
    for (data_stretch s = {0}; data->parts && data_next_stretch(data, first, first + count, &s);)
        AX_TRY(checked_copy(s.part, s.from, s.to - s.from, out + s.at));
    if (data->parts)
        return AX_OK;
    token_range range;
    AX_TRY(read_tokens(data, first, count, out, &range));
    return range.low < 0 || range.high >= data->limit ? fail_token(data, first, count) : AX_OK;
}

ax_status ax_data_tokens(const ax_data *data, int64_t first, int64_t count, int32_t *out)
{
    AX_CHECK(first >= 0 && count >= 0 && first <= data->info.tokens - count, AX_ERR_USAGE,
             "%s has %lld tokens; %lld from token %lld on were asked for", data->path,
             (long long)data->info.tokens, (long long)count, (long long)first);
    return count ? checked_copy(data, first, count, out) : AX_OK;
}

/* Scans a source without an index, where a document ends with each end token and at the end of the source.
 * Sets *first and *end to the range of tokens of document `index`, and *count to index + 1. If `index` is -1,
 * only sets *count to the number of documents. */
static ax_status scan_documents(const ax_data *data, int64_t index, int64_t *first, int64_t *end,
                                int64_t *count)
{
    int32_t ids[1024];
    int64_t tokens = data->info.tokens;
    AX_CHECK(data->info.end_id >= 0, AX_ERR_USAGE,
             "%s (%s) has no index of documents: give --end-id, the id of the token that ends a document",
             data->path, ax_data_format_name(data->info.format));
    *first = *count = 0;
    for (int64_t at = 0, n; at < tokens; at += n) {
        n = ax_min((int64_t)AX_COUNT(ids), tokens - at);
        AX_TRY(ax_data_tokens(data, at, n, ids));
        for (int64_t i = 0; i < n; i++) {
            if (ids[i] != data->info.end_id && at + i + 1 < tokens)
                continue;
            *end = at + i + 1;
            if ((*count)++ == index)
                return AX_OK;
            *first = *end;
        }
    }
    return index < 0 ? AX_OK
                     : ax_fail(AX_ERR_USAGE,
                               "%s has %lld documents: document %lld does not exist (numbers begin with 0)",
                               data->path, (long long)*count, (long long)index);
}

ax_status ax_data_count_documents(const ax_data *data, int64_t *count)
{
    int64_t first, end;
    if (data->index_kind == INDEX_NONE)
        return scan_documents(data, -1, &first, &end, count);
    *count = data->info.documents;
    return AX_OK;
}

/* Returns the shard that holds document *index. *index becomes the document's index in that shard, and *at
 * the index in the source of the shard's first token. */
static const ax_data *find_document(const ax_data *data, int64_t *index, int64_t *at)
{
    int i = 0;
    while (*index >= data->part[i]->info.documents)
        *index -= data->part[i++]->info.documents;
    *at = data->part_at[i];
    return data->part[i];
}

ax_status ax_data_document(const ax_data *data, int64_t index, int64_t *first, int64_t *end)
{
    int64_t count;
    if (data->index_kind == INDEX_NONE && index >= 0)
        return scan_documents(data, index, first, end, &count);
    AX_CHECK(index >= 0 && index < data->info.documents, AX_ERR_USAGE,
             "%s has %lld documents: document %lld does not exist (numbers begin with 0)", data->path,
             (long long)data->info.documents, (long long)index);
    data_starts starts;
    int64_t at = 0;
    if (data->parts)
        data = find_document(data, &index, &at);
    data_starts_begin(&starts, data);
    AX_TRY(data_starts_get(&starts, index, first));
    AX_TRY(data_starts_get(&starts, index + 1, end));
    *first += at;
    *end += at;
    return AX_OK;
}

int64_t ax_data_samples(const ax_data *data, const ax_row_shape *shape)
{
    return ax_max(data->info.tokens - 1, 0) / shape->seq_len;
}

int64_t ax_data_rows(const ax_data *data, const ax_row_shape *shape)
{
    return ax_ceil_div(ax_max(data->info.tokens - 1, 0), shape->seq_len);
}

/* Marks positions [from, end) of a row as part of the document that starts at position `from`. */
static void assign_positions(const ax_rows *row, int64_t from, int64_t end)
{
    for (int64_t t = from; t < end; t++) {
        row->doc_start[t] = (int32_t)from;
        row->position[t] = (int32_t)(t - from);
    }
}

/* The documents of a row while they are found. */
typedef struct marks {
    const ax_rows *row; /* NULL: only counts */
    int64_t from;       /* position in the row of the last document start so far */
    int64_t found;      /* documents that start after the row's first token */
} marks;

/* Starts a document at position `start` of a row, 1 <= start <= T: masks the target that would be its first
 * token. */
static void start_document(marks *m, int64_t start)
{
    m->found++;
    if (!m->row)
        return;
    m->row->targets[start - 1] = -1;
    assign_positions(m->row, m->from, start);
    m->from = start;
}

/* Marks the documents that start in tokens (a, end] of a source that has an index. `end` is below N, where
 * the last document ends. */
static ax_status mark_indexed(const ax_data *data, int64_t a, int64_t end, marks *m)
{
    data_walk walk;
    AX_TRY(data_walk_begin(&walk, data, a));
    while (walk.end <= end) {
        start_document(m, walk.end - a);
        AX_TRY(data_walk_next(&walk));
    }
    return AX_OK;
}

/* Does the same for a source without an index, where a document starts after each end_id. */
static ax_status mark_scanned(const ax_data *data, int64_t a, int64_t end, marks *m)
{
    enum { PART = 1024 };
    int32_t part[PART] = {0};
    for (int64_t at = a, n; at < end; at += n) {
        const int32_t *ids = m->row ? m->row->tokens + (at - a) : part;
        n = ax_min(end - at, PART);
        if (!m->row)
            AX_TRY(data_read_tokens(data, at, n, part));
        for (int64_t i = 0; i < n; i++)
            if (ids[i] == data->info.end_id)
                start_document(m, at + i + 1 - a);
    }
    return AX_OK;
}

static ax_status mark_documents(const ax_data *data, const ax_row_shape *shape, int64_t a, int64_t end,
                                marks *m)
{
    if (shape->mask_documents && data->index_kind != INDEX_NONE)
        return mark_indexed(data, a, end, m);
    return shape->mask_documents && data->info.end_id >= 0 ? mark_scanned(data, a, end, m) : AX_OK;
}

/* Masks, in `row` (NULL: only counts), those of `predictions` targets after token a that are none, and marks
 * the documents of the row. */
static ax_status mask_targets(const ax_data *data, const ax_row_shape *shape, int64_t a, int64_t predictions,
                              const ax_rows *row, data_targets *out)
{
    marks m = {.row = row};
    bool by_token = shape->goldfish.k || data_is_masked(data, shape);
    *out = (data_targets){0};
    if (row || !by_token) {
        AX_TRY(mark_documents(data, shape, a, a + predictions, &m));
        out->kept = predictions - m.found;
    }
    if (row)
        assign_positions(row, m.from, shape->seq_len);
    return by_token ? data_decide_targets(data, shape, a + 1, predictions, row ? row->targets : NULL, out)
                    : AX_OK;
}

ax_status ax_data_row(const ax_data *data, const ax_row_shape *shape, int64_t row, const ax_rows *out,
                      int64_t line, int64_t *targets)
{
    int64_t T = shape->seq_len, a = row * T;
    AX_CHECK(row >= 0 && row < ax_data_rows(data, shape), AX_ERR_USAGE,
             "%s has %lld rows of %lld tokens: row %lld does not exist (numbers begin with 0)", data->path,
             (long long)ax_data_rows(data, shape), (long long)T, (long long)row);
    /* The number of targets before masking: one for each input token that has a successor in the source. It
     * is less than T in the last row only. */
    int64_t predictions = ax_min(T, data->info.tokens - 1 - a);
    data_targets count;
    ax_rows to = {out->tokens + line * T, out->targets + line * T, out->doc_start + line * T,
                  out->position + line * T};
    AX_TRY(checked_copy(data, a, predictions, to.tokens));
    AX_TRY(checked_copy(data, a + predictions, 1, to.targets + predictions - 1));
    memcpy(to.targets, to.tokens + 1, (size_t)(predictions - 1) * sizeof *to.targets);
    for (int64_t t = predictions; t < T; t++) {
        to.tokens[t] = 0;
        to.targets[t] = -1;
    }
    AX_TRY(mask_targets(data, shape, a, predictions, &to, &count));
    if (targets)
        *targets = count.kept;
    return AX_OK;
}

ax_status data_row_targets(const ax_data *data, const ax_row_shape *shape, int64_t row, data_targets *out)
{
    int64_t a = row * shape->seq_len;
    return mask_targets(data, shape, a, ax_min(shape->seq_len, data->info.tokens - 1 - a), NULL, out);
}

ax_status ax_data_row_targets(const ax_data *data, const ax_row_shape *shape, int64_t row, int64_t *targets)
{
    data_targets count;
    AX_TRY(data_row_targets(data, shape, row, &count));
    *targets = count.kept;
    return AX_OK;
}
