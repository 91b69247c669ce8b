/* ax_data_pack: packs whole documents side by side into rows (training sequences). A piece is a whole
 * document or, if the document is longer than a row, a part of it that fits into a row (shape->longer decides
 * which parts are read). Pieces are put into
 * rows by first fit, the longest first, within groups ("windows") of WINDOW pieces that follow one another in
 * the file. So neighbours in the file stay near one another, and the time and memory of packing are linear in
 * the number of pieces. */
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

/* Returns how many inputs of a document of `inputs` inputs are read into rows of T tokens. */
static int64_t inputs_read(int64_t inputs, int64_t T, ax_data_long longer)
{
    if (inputs <= T || longer == AX_LONG_SPLIT)
        return inputs;
    return longer == AX_LONG_TRUNCATE ? T : 0;
}

/* Cuts a document, tokens start ... end-1, into pieces, and adds them to the window. A window that is full is
 * packed, and a new one begins. */
static void add_document(packer *p, int64_t start, int64_t end)
{
    end = start + 1 + inputs_read(end - 1 - start, p->pack->seq_len, p->pack->longer);
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
        const int64_t inputs = walk.end - 1 - walk.first, T = shape->seq_len,
                      read = inputs_read(inputs, T, shape->longer);
        AX_ASSERT(T > 0);
        sum->documents += read > 0;
        sum->left_out += inputs == 0;
        sum->cut += inputs > T && read;
        sum->dropped += inputs > 0 && !read;
        sum->lost += inputs - read + (inputs > 0 && !read);
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

static ax_status pack_all(const ax_data *data, packer *p)
{
    data_walk walk;
    AX_TRY(data_walk_begin(&walk, data, 0));
    for (int64_t seen = 0; walk.first < walk.end;) {
        seen += ax_ceil_div(inputs_read(walk.end - 1 - walk.first, p->pack->seq_len, p->pack->longer),
                            p->pack->seq_len);
        AX_CHECK(seen <= p->sum->pieces, AX_ERR_DATA,
                 "%s changed while it was read; start again when nothing writes to it", data->path);
        add_document(p, walk.first, walk.end);
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
    ax_status status = allocate(data->pack, out->pieces);
    if (status == AX_OK)
        status = ax_calloc(1, sizeof *p, &p);
    if (status == AX_OK) {
        p->pack = data->pack;
        p->sum = out;
        status = pack_all(data, p);
    }
    free(p);
    if (status != AX_OK)
        data_pack_free(&data->pack);
    return status;
}
