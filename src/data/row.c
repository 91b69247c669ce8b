/* Reads the tokens and the documents of a source (token files), and makes rows (training sequences) of them.
 * If the index of documents does not suffice to find the targets, targets.c decides token by token. T: number
 * of tokens in a row; `a`: index in the source of a row's first token. */
#include "goldfish.h"
#include "source.h"

#include "axonn/tokenizer.h"

#include <string.h>

/* Smallest and largest of the copied tokens. Comparing the two with the vocabulary size checks all tokens. */
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
 * such token, its spelling if the tokenizer is known, and its offset in the file. */
static ax_status fail_token(const ax_data *data, int64_t first, int64_t count)
{
    int w = data->info.token_bytes;
    for (int64_t i = first; i < first + count; i++) {
        int32_t unused;
        token_range one;
        AX_TRY(read_tokens(data, i, 1, &unused, &one));
        if (one.low >= 0 && one.high < data->limit)
            continue;
        size_t size = 0;
        const char *name = data->tokenizer && one.low >= 0 && one.low <= INT32_MAX
                               ? ax_tokenizer_piece(data->tokenizer, (int32_t)one.low, &size)
                               : NULL;
        return ax_fail(
            AX_ERR_DATA,
            "%s: token %lld is %lld%s%.*s%s (offset %lld), outside the vocabulary (the rows of the embedding "
            "table) of %lld: %s",
            data->path, (long long)i, (long long)one.low, name ? " (\"" : "",
            name ? (int)ax_min((int64_t)size, 80) : 0, name ? name : "", name ? "\")" : "",
            (long long)(data->tokens_at + i * w), (long long)data->limit,
            name
                ? "the tokenizer has more tokens than the model: leave out the text with this token, write "
                  "it with other tokens, or use a model whose table has the row"
                : "set a larger vocabulary, use the tokenizer that made the file, or leave out the text with "
                  "this token");
    }
    return ax_fail(AX_ERR_DATA, "%s changed while it was read; start again when nothing writes to it",
                   data->path);
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
             "ax_data_tokens: the %lld tokens from token %lld on are not all in %s, which has %lld tokens",
             (long long)count, (long long)first, data->path, (long long)data->info.tokens);
    return count ? checked_copy(data, first, count, out) : AX_OK;
}

/* Scans a source without a document index. A document ends with each end-of-text token and at the end of the
 * source. Sets *first and *end to the range of tokens of document `index`, and *count to index + 1. If
 * `index` is -1, only sets *count to the number of documents. */
static ax_status scan_documents(const ax_data *data, int64_t index, int64_t *first, int64_t *end,
                                int64_t *count)
{
    int32_t ids[1024];
    uint8_t begins[AX_COUNT(ids)]; /* begins[i]: whether a document starts after ids[i] */
    int64_t tokens = data->info.tokens;
    AX_CHECK(data->info.end_id >= 0, AX_ERR_USAGE,
             "%s (%s) has no index of documents: give --end-id, the id of the token that ends a document",
             data->path, ax_data_format_name(data->info.format));
    *first = *count = 0;
    for (int64_t at = 0, n; at < tokens; at += n) {
        n = ax_min((int64_t)AX_COUNT(ids), tokens - at);
        AX_TRY(ax_data_tokens(data, at, n, ids));
        AX_TRY(data_mark_starts(data, NULL, ids, at + 1, n, begins));
        for (int64_t i = 0; i < n; i++) {
            if (!begins[i] && at + i + 1 < tokens)
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

/* Returns the shard (one file of the source) that holds document *index. Sets *index to the document's index
 * in that shard, and *at to the index in the source of the shard's first token. */
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

static bool is_length(int64_t seq_len) { return seq_len > 0 && seq_len <= INT32_MAX; }

static ax_status check_excerpt(const ax_data *data, const ax_row_shape *shape)
{
    const ax_excerpt *x = &shape->excerpt;
    if (!x->document && !x->prompt && !x->target)
        return AX_OK;
    const bool small = x->target > 0 && x->target <= INT32_MAX && x->prompt >= 0 && x->prompt <= INT32_MAX;
    const int64_t tokens = !small ? 0 : x->prompt ? x->prompt + x->target : x->document;
    AX_CHECK(
        small && tokens <= x->document && tokens - 1 <= shape->seq_len && x->target < tokens &&
            ax_data_is_packed(data, shape),
        AX_ERR_USAGE,
        "an excerpt of %lld tokens with a prompt of %lld and a target of %lld is not possible in rows of "
        "%lld tokens: prompt and target have 1 token or more and fit into the excerpt, the excerpt into a "
        "row and one token more, and documents are packed",
        (long long)x->document, (long long)x->prompt, (long long)x->target, (long long)shape->seq_len);
    return AX_OK;
}

ax_status ax_data_check_shape(const ax_data *data, const ax_row_shape *shape)
{
    const ax_goldfish *g = &shape->goldfish;
    AX_CHECK(is_length(shape->seq_len), AX_ERR_USAGE,
             "a row cannot have %lld tokens: it must have 1 to %d (model.seq_len, --seq-len)",
             (long long)shape->seq_len, INT32_MAX);
    AX_CHECK(!ax_data_is_packed(data, shape) || data->index_kind != INDEX_NONE, AX_ERR_USAGE,
             "%s (%s) has no index of documents, which packing needs: make a token file with `axonn data "
             "build`, or use data.pack=stream (--pack stream)",
             data->path, ax_data_format_name(data->info.format));
    AX_TRY(check_excerpt(data, shape));
    if (!g->k)
        return AX_OK;
    AX_TRY(goldfish_check(g));
    AX_CHECK(
        g->kind != AX_GOLDFISH_STATIC || data->index_kind != INDEX_NONE || data->info.end_id < 0,
        AX_ERR_USAGE,
        "%s (%s) has no index of documents, by which the static goldfish loss counts tokens: use the hashed "
        "loss, or make a token file with `axonn data build`",
        data->path, ax_data_format_name(data->info.format));
    return AX_OK;
}

int64_t ax_data_rows(const ax_data *data, const ax_row_shape *shape)
{
    const int64_t targets = ax_max(data->info.tokens - 1, 0), T = shape->seq_len;
    if (ax_data_is_packed(data, shape))
        return data->pack && data_packs_alike(&data->pack->shape, shape) ? data->pack->rows : 0;
    if (!is_length(T))
        return 0;
    return shape->full_rows ? targets / T : ax_ceil_div(targets, T);
}

/* Marks positions [from, end) of a row as part of the document that starts at position `from`. */
static void assign_positions(const ax_rows *row, int64_t from, int64_t end)
{
    for (int64_t t = from; t < end; t++) {
        row->doc_start[t] = (int32_t)from;
        row->position[t] = (int32_t)(t - from);
    }
}

/* State of reading one row, or of only counting its targets. */
typedef struct marks {
    const ax_rows *row;   /* arrays to fill; NULL: targets are only counted */
    int64_t from;         /* position in the row at which the last document found so far starts */
    int64_t found;        /* number of documents that start after the row's first token */
    int64_t used;         /* number of positions read so far; positions after these are padding */
    data_targets targets; /* counts of the targets at the positions read so far */
} marks;

/* Notes that a document starts at position `start` of a row, 1 <= start <= T. Masks the target at position
 * start - 1, which is the first token of that document. */
static void start_document(marks *m, int64_t start)
{
    m->found++;
    if (!m->row)
        return;
    m->row->targets[start - 1] = -1;
    assign_positions(m->row, m->from, start);
    m->from = start;
}

/* Calls start_document for each document that starts at one of the tokens that positions 0 ... used-1 of a
 * row predict. `a` is the first token of the row. */
static ax_status mark_documents(const ax_data *data, const ax_row_shape *shape, int64_t a, marks *m)
{
    enum { BLOCK = 2048 };
    const bool indexed = data->index_kind != INDEX_NONE;
    int32_t part[BLOCK] = {0};
    uint8_t begins[BLOCK];
    data_walk walk;
    if (!shape->mask_documents || (!indexed && data->info.end_id < 0))
        return AX_OK;
    if (indexed)
        AX_TRY(data_walk_begin(&walk, data, a));
    for (int64_t t = 0, n; t < m->used; t += n) {
        n = ax_min(m->used - t, BLOCK);
        if (!indexed && !m->row)
            AX_TRY(data_read_tokens(data, a + t, n, part));
        AX_TRY(data_mark_starts(data, &walk, m->row ? m->row->tokens + t : part, a + t + 1, n, begins));
        for (const uint8_t *at = begins; (at = memchr(at, 1, (size_t)(begins + n - at))); at++)
            start_document(m, t + (at - begins) + 1);
    }
    return AX_OK;
}

/* Copies tokens first ... first+count-1 of a source to the inputs of a row, from position t on, and tokens
 * first+1 ... first+count to its targets. */
static ax_status copy_inputs(const ax_data *data, int64_t first, int64_t count, const ax_rows *row, int64_t t)
{
    AX_TRY(checked_copy(data, first, count, row->tokens + t));
    AX_TRY(checked_copy(data, first + count, 1, row->targets + t + count - 1));
    memcpy(row->targets + t, row->tokens + t + 1, (size_t)(count - 1) * sizeof *row->targets);
    return AX_OK;
}

/* Returns true if targets.c must decide token by token which tokens are targets: with a goldfish loss, or
 * with a mask of answers. */
static bool by_token(const ax_data *data, const ax_row_shape *shape)
{
    return shape->goldfish.k || data_is_masked(data, shape);
}

/* Decides which of tokens first+1 ... first+count are targets, and counts them. Positions t ... t+count-1 of
 * the row predict these tokens. */
static ax_status decide_targets(const ax_data *data, const ax_row_shape *shape, int64_t first, int64_t count,
                                int64_t t, marks *m)
{
    data_targets here;
    int32_t *targets = m->row ? m->row->targets + t : NULL;
    AX_TRY(data_decide_targets(data, shape, first + 1, count, targets, &here));
    m->targets.kept += here.kept;
    m->targets.dropped += here.dropped;
    return AX_OK;
}

/* Reads a row of consecutive tokens, from token a on. */
static ax_status read_stream(const ax_data *data, const ax_row_shape *shape, int64_t row, marks *m)
{
    int64_t a = row * shape->seq_len;
    m->used = ax_min(shape->seq_len, data->info.tokens - 1 - a); /* less than T only in the last row */
    if (m->row)
        AX_TRY(copy_inputs(data, a, m->used, m->row, 0));
    if (m->row || !by_token(data, shape))
        AX_TRY(mark_documents(data, shape, a, m));
    if (by_token(data, shape))
        return decide_targets(data, shape, a, m->used, 0, m);
    m->targets.kept = m->used - m->found;
    return AX_OK;
}

/* Reads a row of packed pieces of documents. The first token of a document is no target in such a row, nor is
 * a token before the targets of an excerpt. */
static ax_status read_packed(const ax_data *data, const ax_row_shape *shape, int64_t row, marks *m)
{
    const data_pack *pack = data->pack;
    for (int64_t p = pack->first[row]; p < pack->first[row + 1]; m->used += pack->length[p++]) {
        const int64_t start = pack->start[p], length = pack->length[p],
                      seen = shape->excerpt.target ? length - shape->excerpt.target : 0;
        if (m->row && m->used && shape->mask_documents) {
            assign_positions(m->row, m->from, m->used);
            m->from = m->used;
        }
        if (m->row)
            AX_TRY(copy_inputs(data, start, length, m->row, m->used));
        for (int64_t t = 0; t < seen && m->row; t++)
            m->row->targets[m->used + t] = -1;
        if (by_token(data, shape))
            AX_TRY(decide_targets(data, shape, start + seen, length - seen, m->used + seen, m));
        else
            m->targets.kept += length - seen;
    }
    return AX_OK;
}

/* Reads row `row`. The shape must have passed ax_data_check_shape. */
static ax_status read_row(const ax_data *data, const ax_row_shape *shape, int64_t row, marks *m)
{
    AX_CHECK(row >= 0 && row < ax_data_rows(data, shape), AX_ERR_USAGE,
             "%s has %lld rows of %lld tokens: row %lld does not exist (numbers begin with 0)", data->path,
             (long long)ax_data_rows(data, shape), (long long)shape->seq_len, (long long)row);
    return ax_data_is_packed(data, shape) ? read_packed(data, shape, row, m)
                                          : read_stream(data, shape, row, m);
}

static ax_rows line_of(const ax_rows *rows, int64_t line, int64_t T)
{
    return (ax_rows){rows->tokens + line * T, rows->targets + line * T, rows->doc_start + line * T,
                     rows->position + line * T};
}

/* Fills a row with padding from position `used` on: tokens of id -1, which have an embedding of zeros. The
 * padding counts as part of the row's last document, which starts at position `from`. */
static void pad_row(const ax_rows *row, int64_t from, int64_t used, int64_t T)
{
    for (int64_t t = used; t < T; t++) {
        row->tokens[t] = row->targets[t] = -1;
    }
    assign_positions(row, from, T);
}

void data_empty_row(const ax_row_shape *shape, const ax_rows *out, int64_t line)
{
    const ax_rows to = line_of(out, line, shape->seq_len);
    pad_row(&to, 0, 0, shape->seq_len);
}

ax_status ax_data_row(const ax_data *data, const ax_row_shape *shape, int64_t row, const ax_rows *out,
                      int64_t line, int64_t *targets)
{
    AX_TRY(ax_data_check_shape(data, shape));
    const ax_rows to = line_of(out, line, shape->seq_len);
    marks m = {.row = &to};
    AX_TRY(read_row(data, shape, row, &m));
    pad_row(&to, m.from, m.used, shape->seq_len);
    if (targets)
        *targets = m.targets.kept;
    return AX_OK;
}

ax_status data_row_targets(const ax_data *data, const ax_row_shape *shape, int64_t row, data_targets *out)
{
    marks m = {.row = NULL};
    AX_TRY(ax_data_check_shape(data, shape));
    AX_TRY(read_row(data, shape, row, &m));
    *out = m.targets;
    return AX_OK;
}

ax_status ax_data_row_targets(const ax_data *data, const ax_row_shape *shape, int64_t row, int64_t *targets)
{
    data_targets count;
    AX_TRY(data_row_targets(data, shape, row, &count));
    *targets = count.kept;
    return AX_OK;
}

void data_want_row(const ax_data *data, const ax_row_shape *shape, int64_t row)
{
    const data_pack *pack = ax_data_is_packed(data, shape) ? data->pack : NULL;
    int64_t T = shape->seq_len;
    if (row < 0 || row >= ax_data_rows(data, shape))
        return; /* there is no such row: reading it will fail */
    if (!pack)
        data_want_tokens(data, row * T, ax_min(row * T + T + 1, data->info.tokens));
    for (int64_t p = pack ? pack->first[row] : 0; pack && p < pack->first[row + 1]; p++)
        data_want_tokens(data, pack->start[p], pack->start[p] + pack->length[p] + 1);
}
