/* Decides for each token whether it is a target, if that depends on more than the document index. A token is
 * not a target in three cases: it is the first of its document (mask_documents), its mask bit is 0 (answers),
 * or the goldfish loss drops it. */
#include "goldfish.h"
#include "source.h"

#include <string.h>

/* Tokens first ... first+count-1 of a source, which are decided together. */
enum { BLOCK = 2048 };
typedef struct block {
    int64_t first, count;
    int64_t document; /* index of the first token of the document that holds token first - 1. In a source with
                         an end_id but no index: `origin` if that document starts before `origin` */
    uint64_t mask[BLOCK / 64]; /* mask bits of the tokens; all 1 if no mask is used */
    uint8_t begins[BLOCK];     /* whether a token is the first of its document */
    uint8_t kept[BLOCK];       /* whether a token is a target */
    /* tokens[i] is token origin + i of the source. The tokens before token `first` are the window of the
     * hashed goldfish loss, or one token without that loss. Tokens are read only for the hashed goldfish
     * loss, and to find documents by end_id. */
    int64_t origin;
    int32_t tokens[AX_GOLDFISH_WINDOW_MAX + BLOCK];
} block;

bool data_is_masked(const ax_data *data, const ax_row_shape *shape)
{
    return shape->answers && data->info.targets >= 0;
}

/* ---- the goldfish loss --------------------------------------------------------------------------- */

static void drop(const ax_goldfish *g, const goldfish_hash *hash, block *b)
{
    int64_t document = b->document;
    for (int64_t from = 0, to; from < b->count; from = to) {
        const uint8_t *next = memchr(b->begins + from + 1, 1, (size_t)(b->count - from - 1));
        if (b->begins[from])
            document = b->first + from;
        to = next ? next - b->begins : b->count;
        goldfish_drop(g, hash, b->tokens + (b->first + from - b->origin), b->first + from - document,
                      b->first + to - document, b->kept + from);
    }
}

/* ---- blocks -------------------------------------------------------------------------------------- */

static int64_t sum_of(const uint8_t *bytes, int64_t n)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += bytes[i];
    return sum;
}

/* Finds where documents begin in a block. Reads the tokens of the block, if this search or the goldfish loss
 * needs them. `walk`, used only with an index, must be at the document that holds the token before the block.
 */
static ax_status find_documents(const ax_data *data, const ax_goldfish *g, data_walk *walk, block *b)
{
    const bool indexed = data->index_kind != INDEX_NONE, hashed = g->k && g->kind == AX_GOLDFISH_HASHED;
    const bool scanned = !indexed && data->info.end_id >= 0;
    b->origin = ax_max(b->first - (hashed ? g->window : 1), 0);
    if (hashed || scanned)
        AX_TRY(data_read_tokens(data, b->origin, b->first + b->count - b->origin, b->tokens));
    b->document = indexed ? walk->first : scanned ? b->origin : 0;
    for (int64_t i = b->origin + 1; scanned && i < b->first; i++)
        if (b->tokens[i - 1 - b->origin] == data->info.end_id)
            b->document = i;
    return data_mark_starts(data, walk, b->tokens + (b->first - 1 - b->origin), b->first, b->count,
                            b->begins);
}

/* Returns true if the targets depend on where documents begin. */
static bool needs_documents(const ax_row_shape *shape) { return shape->mask_documents || shape->goldfish.k; }

/* Decides which tokens of a block are targets; b->first and b->count must be set. `walk` is not used if the
 * source has no index or needs_documents is false; else as for find_documents. */
static ax_status decide(const ax_data *data, const ax_row_shape *shape, const goldfish_hash *hash,
                        data_walk *walk, block *b, data_targets *sum)
{
    const ax_goldfish *g = &shape->goldfish;
    memset(b->begins, 0, (size_t)b->count);
    if (needs_documents(shape))
        AX_TRY(find_documents(data, g, walk, b));
    if (data_is_masked(data, shape))
        AX_TRY(data_read_mask(data, b->first, b->count, b->mask));
    else
        memset(b->mask, -1, sizeof b->mask);
    for (int64_t i = 0; i < b->count; i++)
        b->kept[i] = (b->mask[i / 64] >> i % 64 & 1) && !(shape->mask_documents && b->begins[i]);
    int64_t before = sum_of(b->kept, b->count);
    if (g->k)
        drop(g, hash, b);
    int64_t kept = sum_of(b->kept, b->count);
    sum->kept += kept;
    sum->dropped += before - kept;
    return AX_OK;
}

ax_status data_decide_targets(const ax_data *data, const ax_row_shape *shape, int64_t first, int64_t count,
                              int32_t *targets, data_targets *sum)
{
    block b;
    data_walk walk;
    const goldfish_hash hash = shape->goldfish.k ? goldfish_hash_for(&shape->goldfish) : (goldfish_hash){0};
    *sum = (data_targets){0};
    if (data->index_kind != INDEX_NONE && needs_documents(shape))
        AX_TRY(data_walk_begin(&walk, data, first - 1));
    for (int64_t at = 0; at < count; at += b.count) {
        b.first = first + at;
        b.count = ax_min(count - at, BLOCK);
        AX_TRY(decide(data, shape, &hash, &walk, &b, sum));
        for (int64_t i = 0; i < b.count && targets; i++)
            targets[at + i] = b.kept[i] ? targets[at + i] : -1;
    }
    return AX_OK;
}
