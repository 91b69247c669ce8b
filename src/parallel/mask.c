/* Masks of pruned matrices: the vectors of kept elements, and the masks of a model's matrices, which are read
 * once and kept for all engines that are built or planned. Read mask.h first. */
#include "parallel/mask.h"

#include <stdlib.h>
#include <string.h>

/* ---- the mask of a matrix ------------------------------------------------------------------------ */

size_t ax_mask_bits_bytes(const struct ax_mask *m) { return (size_t)(m->rows * m->words) * sizeof *m->bits; }
size_t ax_mask_begin_bytes(const struct ax_mask *m) { return (size_t)(m->rows + 1) * sizeof *m->begin; }

static void free_arrays(struct ax_mask *m)
{
    if (m->owned) {
        free(m->bits);
        free(m->begin);
    }
    m->owned = false;
}

void ax_mask_destroy(struct ax_mask **mask)
{
    if (!*mask)
        return;
    free_arrays(*mask);
    free(*mask);
    *mask = NULL;
}

static int64_t count_bits(const uint64_t *bits, int64_t words)
{
    int64_t n = 0;
    for (int64_t i = 0; i < words; i++)
        n += __builtin_popcountll(bits[i]);
    return n;
}

static int64_t kept_in(const struct ax_mask *m, int64_t row, int64_t rows)
{
    return count_bits(m->bits + row * m->words, rows * m->words);
}

/* Returns the fine axes of a layout: those that split the rows of a rank's box further. */
static ax_axisset fine_axes(const ax_layout *layout)
{
    const ax_axes *rows = &layout->dim[0];
    ax_axisset fine = 0;
    for (int i = rows->n - rows->fine; i < rows->n; i++)
        fine |= (ax_axisset)(1u << rows->a[i]);
    return fine;
}

/* Returns true if `rank` has a part of the same box in layout U as this rank: their coordinates differ along
 * fine axes of the state layout at most. */
static bool shares_box(const ax_grid *grid, const ax_layout *state, int rank)
{
    const ax_axisset fine = fine_axes(state);
    for (int a = 0; a < ax_grid_axes(grid); a++)
        if (!(fine >> a & 1) &&
            ax_grid_coord(grid, rank, (ax_axis)a) != ax_grid_coord(grid, ax_grid_rank(grid), (ax_axis)a))
            return false;
    return true;
}

/* Makes a vector of `length` elements for each part along the fine axes of `dense`. */
static ax_tensor vector_of(const ax_tensor *dense, ax_dtype dtype, int64_t parts, int64_t length)
{
    ax_layout layout = {.partial = dense->layout.partial};
    const ax_axes *rows = &dense->layout.dim[0];
    ax_axes *axes = &layout.dim[0];
    axes->n = axes->fine = rows->fine;
    for (int i = 0; i < rows->fine; i++)
        axes->a[i] = rows->a[rows->n - rows->fine + i];
    return ax_tensor_make(dtype, 1, (int64_t[]){parts * length}, NULL, &layout);
}

/* The rows of a part of the box in the state layout, and its index in the vector. */
typedef struct part {
    int64_t index, row, rows;
} part;

static part part_of(const ax_grid *grid, const struct ax_mask *m, const ax_tensor *state, int64_t first,
                    int rank)
{
    part p;
    int64_t n;
    const ax_tensor order = vector_of(state, AX_U8, m->parts, 1);
    ax_tensor_range(grid, &order, 0, rank, &p.index, &n);
    ax_tensor_range(grid, state, 0, rank, &p.row, &p.rows);
    p.row -= first;
    return p;
}

/* Sets m->length: all parts of the vector are as long as the longest, so that collectives work in place. */
static void find_length(const ax_grid *grid, struct ax_mask *m, const ax_tensor *state, int64_t first,
                        int64_t unit)
{
    int64_t most = 1;
    for (int r = 0; r < ax_grid_ranks(grid); r++)
        if (shares_box(grid, &state->layout, r)) {
            const part p = part_of(grid, m, state, first, r);
            most = ax_max(most, kept_in(m, p.row, p.rows));
        }
    m->length = ax_round_up(most, unit);
}

/* Sets m->begin. The rows of a part begin where its part of the vector begins; padding follows its last row.
 */
static void place_rows(const ax_grid *grid, struct ax_mask *m, const ax_tensor *state, int64_t first)
{
    for (int r = 0; r < ax_grid_ranks(grid); r++) {
        if (!shares_box(grid, &state->layout, r))
            continue;
        const part p = part_of(grid, m, state, first, r);
        int64_t at = p.index * m->length;
        for (int64_t row = p.row; row < p.row + p.rows; row++) {
            m->begin[row] = (int32_t)at;
            at += kept_in(m, row, 1);
        }
    }
    m->begin[m->rows] = (int32_t)(m->parts * m->length);
}

static ax_status fill_in(ax_ctx *ctx, const ax_param *p, struct ax_mask *m, const ax_box *box,
                         const uint64_t *bits)
{
    const ax_tensor *state = &p->rounded;
    const ax_grid *grid = ctx->grid;
    m->rows = box->n[0];
    m->cols = box->n[1];
    m->words = ax_ceil_div(m->cols, 64);
    m->parts = ax_grid_group_size(grid, fine_axes(&state->layout));
    m->owned = true;
    AX_TRY(ax_calloc((size_t)(m->rows * m->words), sizeof *m->bits, &m->bits));
    AX_TRY(ax_calloc((size_t)(m->rows + 1), sizeof *m->begin, &m->begin));
    memcpy(m->bits, bits, ax_mask_bits_bytes(m));
    find_length(grid, m, state, box->lo[0], AX_PARAM_ALIGN / (int64_t)ax_dtype_size(p->grad.dtype));
    AX_CHECK(m->parts * m->length <= INT32_MAX, AX_ERR_USAGE,
             "the part of matrix %s that a rank computes with keeps more than 2^31 elements: divide it among "
             "more ranks (grid.x, grid.y)",
             p->name);
    place_rows(grid, m, state, box->lo[0]);
    const part mine = part_of(grid, m, state, box->lo[0], ax_grid_rank(grid));
    m->row = mine.row;
    m->part_rows = mine.rows;
    m->kept = kept_in(m, mine.row, mine.rows);
    return AX_OK;
}

ax_box ax_param_box(const ax_ctx *ctx, const ax_param *p)
{
    ax_tensor used = p->rest;
    used.layout = p->use;
    return ax_tensor_box(ctx->grid, &used, ax_grid_rank(ctx->grid));
}

ax_status ax_param_prune(ax_ctx *ctx, ax_param *p, const uint64_t *bits)
{
    const ax_box box = ax_param_box(ctx, p);
    struct ax_mask *m;
    AX_CHECK(
        p->rest.ndim == 2 && !p->set && !p->mask && !p->frozen && p->place == AX_PARAM_HERE, AX_ERR_INTERNAL,
        "ax_param_prune: parameter %s must be a trained matrix of this stage, without a mask, and not yet "
        "in a set",
        p->name);
    AX_TRY(ax_calloc(1, sizeof *m, &m));
    ax_status status = fill_in(ctx, p, m, &box, bits);
    if (status != AX_OK) {
        ax_mask_destroy(&m);
        return status;
    }
    p->mask = m;
    p->sum = vector_of(&p->sum, p->sum.dtype, m->parts, m->length);
    p->grad = vector_of(&p->grad, p->grad.dtype, m->parts, m->length);
    return AX_OK;
}

ax_status ax_mask_upload(ax_ctx *ctx, struct ax_mask *m)
{
    void *bits = (void *)(uintptr_t)m->device_bits, *begin = (void *)(uintptr_t)m->device_begin;
    if (m->rows && m->words)
        AX_TRY(ax_copy_in(ctx->stream, bits, m->bits, ax_mask_bits_bytes(m)));
    AX_TRY(ax_copy_in(ctx->stream, begin, m->begin, ax_mask_begin_bytes(m)));
    if (ctx->dev->ops.imaginary || !ax_device_host_access(ctx->dev))
        return AX_OK;
    free_arrays(m);
    m->bits = bits;
    m->begin = begin;
    return AX_OK;
}

/* ---- kernels ------------------------------------------------------------------------------------- */

ax_status ax_mask_compress(ax_stream *stream, const struct ax_mask *m, const ax_tensor *dense,
                           const ax_tensor *vector, bool accumulate)
{
    const ax_compress_args args = {.rows = m->rows,
                                   .cols = m->cols,
                                   .ld = m->cols,
                                   .n = m->parts * m->length,
                                   .bits = m->device_bits,
                                   .begin = m->device_begin,
                                   .x = dense->data,
                                   .y = vector->data,
                                   .x_dtype = dense->dtype,
                                   .y_dtype = vector->dtype,
                                   .accumulate = accumulate};
    if (m->rows)
        return ax_run_compress(stream, &args);
    const ax_fill_args zero = {.n = args.n, .y = args.y, .dtype = args.y_dtype};
    return accumulate ? AX_OK : ax_run_fill(stream, &zero);
}

ax_status ax_mask_expand(ax_stream *stream, const struct ax_mask *m, int64_t first, int64_t n, const void *x,
                         ax_dtype dtype, const ax_tensor *to)
{
    const ax_expand_args args = {.rows = m->part_rows,
                                 .cols = m->cols,
                                 .first = first,
                                 .n = n,
                                 .bits = m->device_bits + m->row * m->words,
                                 .begin = m->device_begin + m->row,
                                 .x = x,
                                 .y = to->data,
                                 .x_dtype = dtype,
                                 .y_dtype = to->dtype,
                                 .whole = n == m->kept};
    return m->part_rows ? ax_run_expand(stream, &args) : AX_OK;
}

/* ---- in host memory ------------------------------------------------------------------------------ */

/* A walk over the elements of this rank's part, from one on. */
typedef struct walk {
    const uint64_t *bits; /* of the element's row */
    int64_t col, cols, words;
} walk;

static walk walk_from(const struct ax_mask *m, int64_t element)
{
    return (walk){.bits = m->bits + (m->row + element / m->cols) * m->words,
                  .col = element % m->cols,
                  .cols = m->cols,
                  .words = m->words};
}

/* Returns whether the element is kept, and goes to the next one. */
static bool next_kept(walk *w)
{
    const bool kept = w->bits[w->col / 64] >> w->col % 64 & 1;
    if (++w->col == w->cols) {
        w->col = 0;
        w->bits += w->words;
    }
    return kept;
}

int64_t ax_mask_rank(const struct ax_mask *m, int64_t n)
{
    if (!m->part_rows || !m->cols)
        return 0;
    const int64_t row = m->row + n / m->cols, col = n % m->cols;
    int64_t rank = m->begin[row] - m->begin[m->row];
    if (col) {
        const uint64_t *bits = m->bits + row * m->words;
        rank += count_bits(bits, col / 64);
        rank += __builtin_popcountll(bits[col / 64] & (((uint64_t)1 << col % 64) - 1));
    }
    return ax_min(rank, m->kept); /* padding follows the last row */
}

void ax_mask_spread(const struct ax_mask *m, ax_dtype dtype, int64_t first, int64_t n, void *host)
{
    const size_t size = ax_dtype_size(dtype);
    char *to = host;
    const char *from = to + (size_t)(n - ax_mask_rank(m, first + n) + ax_mask_rank(m, first)) * size;
    walk at = walk_from(m, first);
    for (int64_t i = 0; i < n; i++, to += size)
        if (next_kept(&at)) {
            memmove(to, from, size);
            from += size;
        } else {
            memset(to, 0, size);
        }
}

bool ax_mask_pack(const struct ax_mask *m, ax_dtype dtype, int64_t first, int64_t n, const void *host,
                  void *out)
{
    const size_t size = ax_dtype_size(dtype);
    char *to = out;
    bool zero = true;
    walk at = walk_from(m, first);
    for (int64_t i = 0; i < n; i++)
        if (next_kept(&at)) {
            memcpy(to, (const char *)host + (size_t)i * size, size);
            to += size;
        } else {
            zero = zero && ax_load(dtype, host, i) == 0;
        }
    return zero;
}

/* ---- the masks of a model ------------------------------------------------------------------------ */

/* The bits of one matrix. */
typedef struct entry {
    char *name;
    ax_box box;
    uint64_t *bits;
    bool pruned; /* the matrix has zeros, in some rank's box */
} entry;

struct ax_masks {
    ax_comm *world;
    ax_mask_read_fn *read;
    void *source;
    int n;
    entry *entry; /* of the model's matrices, in their order */
    uint64_t sum; /* ax_masks_checksum */
};

ax_status ax_masks_create(ax_comm *world, ax_mask_read_fn *read, void *source, ax_masks **out)
{
    AX_TRY(ax_calloc(1, sizeof **out, out));
    **out = (ax_masks){.world = world, .read = read, .source = source};
    return AX_OK;
}

void ax_masks_destroy(ax_masks **masks)
{
    ax_masks *m = *masks;
    if (!m)
        return;
    for (int i = 0; i < m->n; i++) {
        free(m->entry[i].bits);
        free(m->entry[i].name);
    }
    free(m->entry);
    free(m);
    *masks = NULL;
}

static bool has_zeros(const entry *e)
{
    const int64_t words = e->box.n[0] * ax_ceil_div(e->box.n[1], 64);
    return count_bits(e->bits, words) < e->box.n[0] * e->box.n[1];
}

/* Lists the matrices, at the first call: all ranks list the same ones. */
static ax_status list_entries(ax_masks *m, ax_param *const *params, int n)
{
    if (m->entry) {
        AX_CHECK(m->n == n, AX_ERR_INTERNAL, "ax_masks_apply: the masks are those of another model");
        return AX_OK;
    }
    AX_TRY(ax_calloc((size_t)ax_max(n, 1), sizeof *m->entry, &m->entry));
    m->n = n;
    for (int i = 0; i < n; i++)
        AX_TRY(ax_strdup(params[i]->name, &m->entry[i].name));
    return AX_OK;
}

/* Reads the bits of the matrices of this rank's stage that are not known yet. Those without zeros, once it is
 * known that these have none, are not read. */
static ax_status read_bits(ax_masks *m, ax_ctx *ctx, ax_param *const *params, bool known)
{
    for (int i = 0; i < m->n; i++) {
        entry *e = &m->entry[i];
        const ax_param *p = params[i];
        const ax_box box = ax_param_box(ctx, p);
        if (p->place == AX_PARAM_AWAY || (known && !e->pruned) ||
            (e->bits && !memcmp(&box, &e->box, sizeof box)))
            continue;
        free(e->bits);
        e->box = box;
        AX_TRY(ax_calloc((size_t)ax_max(box.n[0] * ax_ceil_div(box.n[1], 64), 1), sizeof *e->bits, &e->bits));
        AX_TRY(m->read(m->source, ctx, p, &box, e->bits));
    }
    return AX_OK;
}

/* Returns the sum, mod 2^64, of hashes of the places of a box's zeros. */
static uint64_t sum_zeros(const entry *e)
{
    const int64_t words = ax_ceil_div(e->box.n[1], 64);
    const uint64_t key = ax_rng_key(0, e->name, 0);
    uint64_t sum = 0;
    for (int64_t r = 0; r < e->box.n[0]; r++)
        for (int64_t c = 0; c < e->box.n[1]; c++)
            if (!(e->bits[r * words + c / 64] >> c % 64 & 1)) {
                sum += ax_mix64(key + ((uint64_t)(e->box.lo[0] + r) << 32) + (uint64_t)(e->box.lo[1] + c));
            }
    return sum;
}

/* Adds up the checksums of the boxes. Of ranks with the same box one counts it. */
static ax_status add_sums(ax_masks *m, const ax_grid *grid, ax_param *const *params)
{
    int64_t sum = 0;
    ax_work *work;
    for (int i = 0; i < m->n; i++) {
        ax_tensor used = params[i]->rest;
        used.layout = params[i]->use;
        if (m->entry[i].bits && ax_tensor_is_primary(grid, &used))
            sum = (int64_t)((uint64_t)sum + sum_zeros(&m->entry[i]));
    }
    AX_TRY(ax_all_reduce(m->world, NULL, &sum, 1, AX_I64, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    m->sum = (uint64_t)sum;
    return AX_OK;
}

/* Finds out which matrices have zeros in some rank's box. */
static ax_status agree(ax_masks *m)
{
    int64_t *zeros;
    ax_work *work;
    AX_TRY(ax_calloc((size_t)ax_max(m->n, 1), sizeof *zeros, &zeros));
    for (int i = 0; i < m->n; i++)
        zeros[i] = m->entry[i].bits && has_zeros(&m->entry[i]);
    ax_status status = ax_all_reduce(m->world, NULL, zeros, m->n, AX_I64, AX_MAX, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    for (int i = 0; i < m->n && status == AX_OK; i++)
        m->entry[i].pruned = zeros[i];
    free(zeros);
    return status;
}

ax_status ax_masks_apply(ax_masks *m, ax_ctx *ctx, ax_param *const *params, int n)
{
    const bool known = m->entry;
    AX_TRY(list_entries(m, params, n));
    ax_status status = read_bits(m, ctx, params, known);
    if (!known) {
        AX_TRY(ax_comm_agree(m->world, status));
        AX_TRY(agree(m));
        AX_TRY(add_sums(m, ctx->grid, params));
    }
    AX_TRY(status);
    for (int i = 0; i < n; i++) {
        entry *e = &m->entry[i];
        if (e->pruned && params[i]->place != AX_PARAM_AWAY)
            AX_TRY(ax_param_prune(ctx, params[i], e->bits));
        if (!ctx->dev->ops.imaginary) { /* plans are made before */
            free(e->bits);
            e->bits = NULL;
        }
    }
    return AX_OK;
}

int ax_masks_count(const ax_masks *m)
{
    int n = 0;
    for (int i = 0; i < m->n; i++)
        n += m->entry[i].pruned;
    return n;
}

uint64_t ax_masks_checksum(const ax_masks *m) { return m->sum; }
