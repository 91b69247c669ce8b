/* ax_data_pack: packs whole documents side by side into rows (training sequences). A piece is a whole
 * document or, if the document is longer than a row, a part of it that fits into a row (shape->longer decides
 * which parts are read). A conversation that has no target in the part that is read is left out. Pieces are
 * put into rows by first fit, the longest first, within groups ("windows") of WINDOW pieces that follow one
 * another in the file. So neighbours in the file stay near one another, and the time and memory of packing
 * are linear in the number of pieces. */
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
    int32_t row = -1;
    for (int i = 1; i < 2 * WINDOW; i++)
        p->room[i] = (int32_t)pack->seq_len;
    qsort(p->piece, (size_t)p->n, sizeof *p->piece, longer_first);
    for (int i = 0; i < p->n; i++)
        p->piece[i].row = take_room(p->room, p->piece[i].length);
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

bool ax_data_is_packed(const ax_data *data, const ax_row_shape *shape)
{
    return shape->pack == AX_PACK_DOCUMENTS || (shape->pack == AX_PACK_AUTO && data->info.targets >= 0);
}

/* Sets *read to the number of inputs of a document, tokens start ... end-1, that are read into rows. */
static ax_status count_read(const ax_data *data, const ax_row_shape *shape, int64_t start, int64_t end,
                            int64_t *read)
{
    ax_row_shape whole = *shape; /* without the goldfish loss, which drops targets only for a while */
    data_targets targets;
    *read = end - 1 - start;
    if (*read <= shape->seq_len || shape->longer == AX_LONG_SPLIT)
        return AX_OK;
    *read = shape->longer == AX_LONG_TRUNCATE ? shape->seq_len : 0;
    if (!*read || !data_is_masked(data, shape))
        return AX_OK;
    whole.goldfish.k = 0;
    AX_TRY(data_decide_targets(data, &whole, start + 1, *read, NULL, &targets));
    *read = targets.kept ? *read : 0;
    return AX_OK;
}

/* Cuts a document, of which `read` inputs from token `start` on are read, into pieces, and adds them to the
 * window. A window that is full is packed, and a new one begins. */
static void add_document(packer *p, int64_t start, int64_t read)
{
    const int64_t end = start + 1 + read;
    for (; start < end - 1; start += p->pack->seq_len) {
        p->piece[p->n++] =
            (piece){.start = start, .length = (int32_t)ax_min(p->pack->seq_len, end - 1 - start)};
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
        int64_t read;
        AX_ASSERT(T > 0);
        AX_TRY(count_read(data, shape, walk.first, walk.end, &read));
        const bool none = inputs > 0 && !read;
        sum->documents += read > 0;
        sum->left_out += inputs == 0;
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
    for (int64_t seen = 0, read; walk.first < walk.end;) {
        AX_TRY(count_read(data, shape, walk.first, walk.end, &read));
        seen += ax_ceil_div(read, shape->seq_len);
        AX_CHECK(seen <= p->sum->pieces, AX_ERR_DATA,
                 "%s changed while it was read; start again when nothing writes to it", data->path);
        add_document(p, walk.first, read);
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
    data->pack->seq_len = shape->seq_len;
    data->pack->longer = shape->longer;
    data->pack->answers = shape->answers;
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
