/* ax_data_pack: packs whole documents side by side into rows (training sequences). A piece is a whole
 * document; the part of it that shape->excerpt names; or, if the document is longer than a row, a part of it
 * that fits into a row (shape->longer decides which parts are read). A conversation that has no target in the
 * part that is read is left out. Pieces are put into rows by first fit, the longest first, within groups
 * ("windows") of WINDOW pieces that follow one another in the file. So neighbours in the file stay near one
 * another, and the time and memory of packing are linear in the number of pieces. */
#include "source.h"

#include <stdlib.h>

enum { WINDOW = 1024 };

typedef struct piece {
    int64_t start;  /* index in the source of its first token */
    int32_t length; /* number of inputs; the target of each is the token after it */
    int32_t row;    /* row into which the piece is packed, counted within the window from 0 */
} piece;

/* A window (WINDOW pieces that follow one another in the file) while it is packed. */
typedef struct packer {
    data_pack *pack;
    ax_data_packed *sum;
    int n; /* pieces in the window */
    piece piece[WINDOW];
    /* A binary tree. Leaf WINDOW + i is the number of free positions in row i of the window. Each other node
     * is the larger of its two children. */
    int32_t room[2 * WINDOW];
} packer;

void data_pack_free(data_pack **pack)
{
    if (*pack) {
        free((*pack)->start);
        free((*pack)->length);
        free((*pack)->first);
    }
    free(*pack);
    *pack = NULL;
}

static int longer_first(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->length != y->length ? (x->length < y->length) - (x->length > y->length)
                                  : (x->start > y->start) - (x->start < y->start);
}

static int by_row(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->row != y->row ? (x->row > y->row) - (x->row < y->row)
                            : (x->start > y->start) - (x->start < y->start);
}

/* Returns the first row with at least `length` free positions, and marks `length` of them as taken. */
static int32_t take_room(int32_t room[2 * WINDOW], int32_t length)
{
    int node = 1;
    while (node < WINDOW)
        node = room[2 * node] >= length ? 2 * node : 2 * node + 1;
    int32_t row = node - WINDOW;
    for (room[node] -= length; node > 1; node /= 2)
        room[node / 2] = ax_max(room[node], room[node ^ 1]);
    return row;
}

/* Packs the pieces of the window into rows, and appends the rows to p->pack. Inside a row, pieces are in the
 * order of the file. */
static void close_window(packer *p)
{
    data_pack *pack = p->pack;
    const bool alone = pack->shape.excerpt.target && !pack->shape.mask_documents;
    int32_t row = -1;
    for (int i = 1; i < 2 * WINDOW; i++)
        p->room[i] = (int32_t)pack->shape.seq_len;
    qsort(p->piece, (size_t)p->n, sizeof *p->piece, longer_first);
    for (int i = 0; i < p->n; i++)
        p->piece[i].row = take_room(p->room, alone ? (int32_t)pack->shape.seq_len : p->piece[i].length);
    qsort(p->piece, (size_t)p->n, sizeof *p->piece, by_row);
    for (const piece *at = p->piece; at < p->piece + p->n; at++) {
        if (at->row != row)
            pack->first[pack->rows++] = pack->pieces;
        row = at->row;
        pack->start[pack->pieces] = at->start;
        pack->length[pack->pieces++] = at->length;
        p->sum->positions += at->length;
    }
    p->n = 0;
}

bool data_packs_alike(const ax_row_shape *a, const ax_row_shape *b)
{
    const ax_excerpt *x = &a->excerpt, *y = &b->excerpt;
    return a->seq_len == b->seq_len && a->longer == b->longer &&
           (a->answers == b->answers || a->longer != AX_LONG_TRUNCATE) && x->document == y->document &&
           x->prompt == y->prompt && x->target == y->target &&
           (a->mask_documents == b->mask_documents || !x->target);
}

bool ax_data_is_packed(const ax_data *data, const ax_row_shape *shape)
{
    return shape->pack == AX_PACK_DOCUMENTS || (shape->pack == AX_PACK_AUTO && data->info.targets >= 0);
}

/* What is read of a document: `read` inputs from token `start` of the source on. */
typedef struct reading {
    int64_t start, read;
} reading;

/* Finds what an excerpt reads of a document, tokens start ... end-1. */
static reading find_excerpt(const ax_excerpt *x, int64_t start, int64_t end)
{
    const int64_t tokens = ax_min(end - start, x->document), need = ax_max(x->prompt, 1) + x->target,
                  used = x->prompt ? need : tokens;
    return tokens < need ? (reading){start, 0} : (reading){start + tokens - used, used - 1};
}

/* Finds what is read into rows of a document, tokens start ... end-1. */
static ax_status find_reading(const ax_data *data, const ax_row_shape *shape, int64_t start, int64_t end,
                              reading *out)
{
    ax_row_shape whole = *shape; /* without the goldfish loss, which drops targets only for a while */
    data_targets targets;
    *out = (reading){start, end - 1 - start};
    if (shape->excerpt.target)
        *out = find_excerpt(&shape->excerpt, start, end);
    if (out->read <= shape->seq_len || shape->longer == AX_LONG_SPLIT)
        return AX_OK;
    out->read = shape->longer == AX_LONG_TRUNCATE ? shape->seq_len : 0;
    if (!out->read || !data_is_masked(data, shape))
        return AX_OK;
    whole.goldfish.k = 0;
    AX_TRY(data_decide_targets(data, &whole, start + 1, out->read, NULL, &targets));
    out->read = targets.kept ? out->read : 0;
    return AX_OK;
}

/* Cuts what is read of a document into pieces, and adds them to the window. A window that is full is packed,
 * and a new one begins. */
static void add_document(packer *p, reading what)
{
    int64_t start = what.start;
    const int64_t end = start + 1 + what.read;
    for (; start < end - 1; start += p->pack->shape.seq_len) {
        p->piece[p->n++] =
            (piece){.start = start, .length = (int32_t)ax_min(p->pack->shape.seq_len, end - 1 - start)};
        if (p->n == WINDOW)
            close_window(p);
    }
}

/* Counts the documents and their pieces. */
static ax_status count_documents(const ax_data *data, const ax_row_shape *shape, ax_data_packed *sum)
{
    data_walk walk;
    AX_TRY(data_walk_begin(&walk, data, 0));
    while (walk.first < walk.end) {
        const int64_t inputs = walk.end - 1 - walk.first, T = shape->seq_len;
        reading what;
        AX_ASSERT(T > 0);
        AX_TRY(find_reading(data, shape, walk.first, walk.end, &what));
        const int64_t read = what.read;
        const bool none = inputs > 0 && !read && !shape->excerpt.target;
        sum->documents += read > 0;
        sum->left_out += !read && !none;
        sum->cut += inputs > T && read;
        sum->dropped += none && shape->longer == AX_LONG_DROP;
        sum->targetless += none && shape->longer == AX_LONG_TRUNCATE;
        sum->lost += inputs - read + none;
        sum->pieces += ax_ceil_div(read, T);
        AX_TRY(data_walk_next(&walk));
    }
    return AX_OK;
}

ax_status ax_data_count_cut(const ax_data *data, int64_t seq_len, int64_t *cut)
{
    data_walk walk;
    *cut = 0;
    AX_TRY(data_walk_begin(&walk, data, 0));
    while (walk.first < walk.end) { /* inputs are all tokens of a document except its last */
        *cut += walk.first / seq_len < (walk.end - 2) / seq_len;
        AX_TRY(data_walk_next(&walk));
    }
    return AX_OK;
}

static ax_status pack_all(const ax_data *data, const ax_row_shape *shape, packer *p)
{
    data_walk walk;
    AX_TRY(data_walk_begin(&walk, data, 0));
    for (int64_t seen = 0; walk.first < walk.end;) {
        reading what;
        AX_TRY(find_reading(data, shape, walk.first, walk.end, &what));
        seen += ax_ceil_div(what.read, shape->seq_len);
        AX_CHECK(seen <= p->sum->pieces, AX_ERR_DATA,
                 "%s changed while it was read; start again when nothing writes to it", data->path);
        add_document(p, what);
        AX_TRY(data_walk_next(&walk));
    }
    close_window(p);
    p->pack->first[p->pack->rows] = p->pack->pieces; /* where the last row ends */
    p->sum->rows = p->pack->rows;
    return AX_OK;
}

static ax_status allocate(data_pack *pack, int64_t pieces)
{
    AX_TRY(ax_calloc((size_t)pieces, sizeof *pack->start, &pack->start));
    AX_TRY(ax_calloc((size_t)pieces, sizeof *pack->length, &pack->length));
    /* There are at most as many rows as pieces. The unused end of the array is never touched, so it takes no
     * physical memory. */
    return ax_calloc((size_t)pieces + 1, sizeof *pack->first, &pack->first);
}

ax_status ax_data_pack(ax_data *data, const ax_row_shape *shape, ax_data_packed *out)
{
    packer *p = NULL;
    *out = (ax_data_packed){0};
    data_pack_free(&data->pack);
    AX_TRY(ax_data_check_shape(data, shape));
    AX_TRY(count_documents(data, shape, out));
    AX_TRY(ax_calloc(1, sizeof *data->pack, &data->pack));
    data->pack->shape = *shape;
    ax_status status = allocate(data->pack, out->pieces);
    if (status == AX_OK)
        status = ax_calloc(1, sizeof *p, &p);
    if (status == AX_OK) {
        p->pack = data->pack;
        p->sum = out;
        status = pack_all(data, shape, p);
    }
    free(p);
    if (status != AX_OK)
        data_pack_free(&data->pack);
    return status;
}

static int by_start(const void *a, const void *b)
{
    const ax_data_piece *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

static int by_place(const void *a, const void *b)
{
    const ax_data_piece *x = a, *y = b;
    return x->row != y->row ? (x->row > y->row) - (x->row < y->row)
                            : (x->position > y->position) - (x->position < y->position);
}

/* Numbers n pieces, and finds their documents. */
static ax_status number(const ax_data *data, ax_data_piece *list, int64_t n)
{
    data_walk walk;
    if (!n)
        return AX_OK;
    qsort(list, (size_t)n, sizeof *list, by_start);
    AX_TRY(data_walk_begin(&walk, data, 0));
    for (int64_t i = 0, document = 0; i < n; i++) {
        for (; walk.end <= list[i].start && walk.first < walk.end; document++)
            AX_TRY(data_walk_next(&walk));
        list[i].index = i;
        list[i].document = document;
    }
    qsort(list, (size_t)n, sizeof *list, by_place);
    return AX_OK;
}

ax_status ax_data_pieces(const ax_data *data, ax_data_piece **out, int64_t *n)
{
    const data_pack *pack = data->pack;
    *n = pack ? pack->pieces : 0;
    AX_TRY(ax_calloc((size_t)ax_max(*n, 1), sizeof **out, out));
    for (int64_t row = 0, p = 0; p < *n; row++)
        for (int64_t at = 0; p < pack->first[row + 1]; at += pack->length[p++])
            (*out)[p] = (ax_data_piece){
                .start = pack->start[p], .row = row, .position = at, .length = pack->length[p]};
    ax_status status = number(data, *out, *n);
    if (status != AX_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}
