/* Writes distributed tensors to safetensors files and reads them. An item is a tensor, and the part of a
 * file's array that holds the tensor. The experts of a layer are one tensor, which is spread over an array
 * for each expert. A rank's box is the part of a tensor that this rank holds. If several ranks have the same
 * box, the first of these ranks writes the box; every rank reads its own box. All ranks list the items of all
 * pipeline stages; a rank has no state of the parameters of another stage. State is copied through a host
 * buffer piece by piece. */
#include "ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = AX_ST_STAGING };

/* ---- lists of items ------------------------------------------------------------------------------ */

void ckpt_items_fini(ckpt_items *items)
{
    for (int i = 0; i < items->n; i++)
        free(items->item[i].key);
    free(items->item);
    memset(items, 0, sizeof *items);
}

static ax_status items_alloc(ckpt_items *items, int n)
{
    memset(items, 0, sizeof *items);
    return ax_calloc((size_t)n, sizeof *items->item, &items->item);
}

/* Adds an item for an array of p's state (AX_STATE_…), stored in the array `file` of the file. `file` NULL:
 * stored as an array PREFIX.NAME of the parameter's shape. */
static ax_status add(ckpt_items *items, const ax_param *p, int array, const ax_param_file *file,
                     const char *prefix)
{
    ckpt_item *it = &items->item[items->n];
    AX_TRY(file ? ax_strdup(file->key, &it->key)
                : ckpt_path(&it->key, "%s%s%s", prefix, *prefix ? "." : "", p->name));
    items->n++;
    it->name = p->name;
    it->state = ax_param_is_owned(p) ? &p->state[array] : NULL;
    it->tensor = p->rounded;
    it->tensor.dtype = p->state[array].dtype;
    it->tensor.data = NULL;
    if (file) {
        it->place = *file;
    } else {
        it->place.ndim = p->rounded.ndim;
        memcpy(it->place.dim, p->rounded.dim, sizeof it->place.dim);
    }
    return AX_OK;
}

ax_status ckpt_items_list(ax_param *const *params, int n, bool frozen, ckpt_items *out)
{
    AX_TRY(items_alloc(out, n));
    ax_status status = AX_OK;
    for (int i = 0; i < n && status == AX_OK; i++)
        if (params[i]->frozen == frozen)
            status = add(out, params[i], AX_STATE_MASTER, params[i]->file.key ? &params[i]->file : NULL, "");
    if (status != AX_OK)
        ckpt_items_fini(out);
    return status;
}

ax_status ckpt_items_model(const ax_param_set *set, bool frozen, ckpt_items *out)
{
    return ckpt_items_list(set->param, set->n, frozen, out);
}

static ax_status add_training(ckpt_items *items, const ax_param_set *set, const char *const *moment_names,
                              bool master)
{
    const int end = AX_STATE_MOMENT + (int)ax_max(set->moments, 0);
    for (int array = master ? AX_STATE_MASTER : AX_STATE_MOMENT; array < end; array++)
        for (int i = 0; i < set->n; i++)
            if (!set->param[i]->frozen)
                AX_TRY(add(items, set->param[i], array, NULL,
                           array == AX_STATE_MASTER ? "master" : moment_names[array - AX_STATE_MOMENT]));
    return AX_OK;
}

ax_status ckpt_items_training(const ax_param_set *set, const char *const *moment_names, bool master,
                              ckpt_items *out)
{
    AX_TRY(items_alloc(out, set->n * ((int)ax_max(set->moments, 0) + 1)));
    ax_status status = add_training(out, set, moment_names, master);
    if (status != AX_OK)
        ckpt_items_fini(out);
    return status;
}

/* ---- places of tensors in the arrays of files ---------------------------------------------------- */

int64_t ckpt_item_arrays(const ckpt_item *it) { return ax_max(it->place.spread, 1); }

void ckpt_item_key(const ckpt_item *it, int64_t index, char out[CKPT_KEY])
{
    const char *star = it->place.spread ? strchr(it->key, '*') : NULL;
    if (star)
        snprintf(out, CKPT_KEY, "%.*s%lld%s", (int)(star - it->key), it->key, (long long)index, star + 1);
    else
        snprintf(out, CKPT_KEY, "%s", it->key);
}

/* Returns true if `array`, which was found for the item (ckpt_match), is the one that holds all of a spread
 * item. */
static bool is_fused(const ckpt_item *it, const ax_st_array *array)
{
    return it->place.spread && array->ndim > it->place.ndim;
}

/* Returns the dim of the tensor that corresponds to dim `d` of the file's array, or of each of its arrays. */
static int tensor_dim(const ckpt_item *it, int d)
{
    static const int swapped[AX_MAX_DIMS] = {1, 0, 2, 3};
    return it->place.transpose ? swapped[d] : it->place.spread ? 2 * d : d;
}

/* Sets n to the extents of the item's tensor, in the order of the dims of the file's array. */
static void file_extents(const ckpt_item *it, int64_t n[AX_MAX_DIMS])
{
    for (int d = 0; d < it->place.ndim; d++)
        n[d] = it->tensor.dim[tensor_dim(it, d)];
}

void ckpt_place_box(const ckpt_item *it, const int64_t *lo, const int64_t *n, int64_t *file_lo,
                    int64_t *file_n)
{
    for (int d = 0; d < it->place.ndim; d++) {
        file_lo[d] = it->place.lo[d] + lo[tensor_dim(it, d)];
        file_n[d] = n[tensor_dim(it, d)];
    }
}

ax_status ckpt_check_place(const ckpt_item *it)
{
    int64_t n[AX_MAX_DIMS];
    const int spread = it->place.spread ? 1 : 0;
    AX_CHECK(it->place.ndim + spread == it->tensor.ndim && (!spread || it->tensor.ndim == 3) &&
                 (!it->place.transpose || it->place.ndim == 2),
             AX_ERR_USAGE, "parameter %s has %d dims, but the part of array %s that holds it has %d%s",
             it->name, it->tensor.ndim, it->key, it->place.ndim,
             it->place.transpose ? " and is transposed, which needs 2" : "");
    file_extents(it, n);
    for (int d = 0; d < it->place.ndim; d++)
        AX_CHECK(it->place.lo[d] >= 0 && it->place.lo[d] + n[d] <= it->place.dim[d], AX_ERR_USAGE,
                 "parameter %s does not fit dim %d of array %s: it takes %lld elements from element %lld on, "
                 "of %lld",
                 it->name, d, it->key, (long long)n[d], (long long)it->place.lo[d],
                 (long long)it->place.dim[d]);
    return AX_OK;
}

static bool boxes_overlap(const ckpt_item *a, const ckpt_item *b)
{
    int64_t na[AX_MAX_DIMS] = {0}, nb[AX_MAX_DIMS] = {0};
    file_extents(a, na);
    file_extents(b, nb);
    for (int d = 0; d < a->place.ndim; d++)
        if (a->place.lo[d] + na[d] <= b->place.lo[d] || b->place.lo[d] + nb[d] <= a->place.lo[d])
            return false;
    return true;
}

/* Checks that the tensors stored in one array of a file (items group[0] ... group[n-1], which have the same
 * key) agree on the array's shape and dtype, and fill the array without overlaps and, unless place.sparse is
 * true, without gaps. */
static ax_status check_tiles(const ckpt_items *items, const int *group, int n)
{
    const ckpt_item *first = &items->item[group[0]];
    int64_t covered = 0, whole = 1;
    for (int d = 0; d < first->place.ndim; d++)
        whole *= first->place.dim[d];
    for (int i = 0; i < n; i++) {
        const ckpt_item *it = &items->item[group[i]];
        AX_TRY(ckpt_check_place(it));
        AX_CHECK(it->place.ndim == first->place.ndim && it->tensor.dtype == first->tensor.dtype &&
                     !memcmp(it->place.dim, first->place.dim, (size_t)it->place.ndim * sizeof(int64_t)),
                 AX_ERR_USAGE,
                 "parameters %s and %s give different shapes or dtypes for array %s of the file", first->name,
                 it->name, it->key);
        covered += ax_tensor_global_count(&it->tensor) / ckpt_item_arrays(it);
        for (int j = 0; j < i; j++)
            AX_CHECK(!boxes_overlap(it, &items->item[group[j]]), AX_ERR_USAGE,
                     "parameters %s and %s overlap in array %s of the file", items->item[group[j]].name,
                     it->name, it->key);
    }
    AX_CHECK(covered == whole || first->place.sparse, AX_ERR_USAGE,
             "parameters fill only %lld of the %lld elements of array %s of the file: the other elements "
             "need parameters too",
             (long long)covered, (long long)whole, first->key);
    return AX_OK;
}

typedef struct keyed {
    const char *key;
    int item;
} keyed;

static int by_key(const void *x, const void *y)
{
    const keyed *a = x, *b = y;
    int order = strcmp(a->key, b->key);
    return order ? order : (a->item > b->item) - (a->item < b->item);
}

/* Checks each group of items with equal keys. Sets leads[i] if item i is the first item with its key. */
static ax_status group_keys(const ckpt_items *items, keyed *order, int *group, bool *leads)
{
    for (int i = 0; i < items->n; i++)
        order[i] = (keyed){items->item[i].key, i};
    qsort(order, (size_t)items->n, sizeof *order, by_key);
    for (int i = 0, end; i < items->n; i = end) {
        for (end = i; end < items->n && !strcmp(order[end].key, order[i].key); end++)
            group[end - i] = order[end].item;
        leads[group[0]] = true;
        AX_TRY(check_tiles(items, group, end - i));
    }
    return AX_OK;
}

/* Lists the arrays of the items that lead a group. The caller frees their keys. */
static ax_status list_arrays(const ckpt_items *items, const bool *leads, ax_dtype dtype, ax_st_array *out,
                             int *n)
{
    char key[CKPT_KEY];
    for (int i = 0; i < items->n; i++) {
        const ckpt_item *it = &items->item[i];
        for (int64_t k = 0; leads[i] && k < ckpt_item_arrays(it); k++) {
            ax_st_array *a = &out[*n];
            ckpt_item_key(it, k, key);
            AX_TRY(ax_strdup(key, (char **)&a->key));
            ++*n;
            a->dtype = dtype == AX_DTYPE_COUNT ? it->tensor.dtype : dtype;
            a->ndim = it->place.ndim;
            memcpy(a->dim, it->place.dim, (size_t)a->ndim * sizeof *a->dim);
        }
    }
    return AX_OK;
}

static int64_t count_arrays(const ckpt_items *items)
{
    int64_t n = 0;
    for (int i = 0; i < items->n; i++)
        n += ckpt_item_arrays(&items->item[i]);
    return n;
}

ax_status ckpt_items_plan(const ckpt_items *items, ax_dtype dtype, const char *dir, const char *stem,
                          int64_t shard_bytes, ax_st **out)
{
    keyed *order = NULL;
    int *group = NULL, n = 0;
    bool *leads = NULL;
    ax_st_array *arrays = NULL;
    *out = NULL;
    size_t count = (size_t)items->n;
    ax_status status = ax_calloc(count, sizeof *order, &order);
    if (status == AX_OK)
        status = ax_calloc(count, sizeof *group, &group);
    if (status == AX_OK)
        status = ax_calloc(count, sizeof *leads, &leads);
    if (status == AX_OK)
        status = ax_calloc((size_t)count_arrays(items), sizeof *arrays, &arrays);
    if (status == AX_OK)
        status = group_keys(items, order, group, leads);
    if (status == AX_OK)
        status = list_arrays(items, leads, dtype, arrays, &n);
    if (status == AX_OK)
        status = ax_st_plan(dir, stem, arrays, n, shard_bytes, out);
    for (int i = 0; i < n; i++)
        free((char *)(uintptr_t)arrays[i].key);
    free(order);
    free(group);
    free(leads);
    free(arrays);
    return status;
}

/* ---- reading, writing and summing boxes ---------------------------------------------------------- */

typedef enum direction { WRITE, READ, SUM } direction;

typedef struct mover {
    ax_ctx *ctx;
    ax_st *st;
    const ax_ckpt_rules *rules; /* of reading; NULL: none */
    char *staging, *rows;       /* PIECE_BYTES each: a piece; its rows of one array of a spread item */
    uint64_t sum;
} mover;

/* Finds the array of a spread item that has entry `index` of its dim 1. `first`: the item's first array. */
static const ax_st_array *array_of(const mover *m, const ckpt_item *it, const ax_st_array *first,
                                   int64_t index)
{
    char key[CKPT_KEY];
    if (is_fused(it, first))
        return first;
    ckpt_item_key(it, index, key);
    return ax_ckpt_find_array(m->st, key, m->rules ? m->rules->prefix : NULL);
}

/* Copies the rows of entry `index` between a piece of three dims, n, and the dense box of that entry alone.
 */
static void copy_rows(const int64_t n[3], int64_t index, size_t size, char *piece, char *rows,
                      bool into_piece)
{
    const size_t bytes = (size_t)n[2] * size;
    for (int64_t r = 0; r < n[0]; r++) {
        char *in_piece = piece + (size_t)(r * n[1] + index) * bytes, *in_rows = rows + (size_t)r * bytes;
        memcpy(into_piece ? in_piece : in_rows, into_piece ? in_rows : in_piece, bytes);
    }
}

/* Reads or writes the piece [lo, lo + n) of a spread tensor, one array after the other: in the tensor rows of
 * one array are a few elements long, in the array they follow each other. */
static ax_status move_spread(mover *m, const ckpt_item *it, const ax_st_array *first, direction way,
                             const int64_t *lo, const int64_t *n)
{
    const size_t size = ax_dtype_size(it->tensor.dtype);
    for (int64_t k = 0; k < n[1]; k++) {
        const ax_st_array *a = array_of(m, it, first, lo[1] + k);
        const bool fused = is_fused(it, first);
        const int64_t row = (fused ? it->place.part * it->tensor.dim[0] : 0) + lo[0];
        const int64_t file_lo[3] = {fused ? lo[1] + k : row, fused ? row : lo[2], lo[2]},
                      file_n[3] = {fused ? 1 : n[0], fused ? n[0] : n[2], n[2]};
        if (way == WRITE)
            copy_rows(n, k, size, m->staging, m->rows, false);
        AX_TRY(way == WRITE ? ax_st_write(m->st, a, file_lo, file_n, false, it->tensor.dtype, m->rows)
                            : ax_st_read(m->st, a, file_lo, file_n, false, it->tensor.dtype, m->rows));
        if (way == READ)
            copy_rows(n, k, size, m->staging, m->rows, true);
    }
    return AX_OK;
}

/* Reads the piece [lo, lo + n) of the tensor from the file to m->staging, or writes it from there. */
static ax_status move_file(mover *m, const ckpt_item *it, const ax_st_array *a, direction way,
                           const int64_t *lo, const int64_t *n)
{
    int64_t file_lo[AX_MAX_DIMS], file_n[AX_MAX_DIMS];
    if (it->place.spread)
        return move_spread(m, it, a, way, lo, n);
    ckpt_place_box(it, lo, n, file_lo, file_n);
    return way == READ
               ? ax_st_read(m->st, a, file_lo, file_n, it->place.transpose, it->tensor.dtype, m->staging)
               : ax_st_write(m->st, a, file_lo, file_n, it->place.transpose, it->tensor.dtype, m->staging);
}

/* Reads or writes the piece [lo, lo + p->n) of the tensor, or adds the piece's checksum to m->sum. */
static ax_status move_piece(mover *m, const ckpt_item *it, const ax_st_array *a, direction way,
                            const int64_t *lo, const ckpt_pieces *p)
{
    const ax_tensor *t = &it->tensor;
    if (way == READ) {
        AX_TRY(move_file(m, it, a, way, lo, p->n));
        ax_status status = ax_param_state_write(m->ctx, it->state, p->first, p->count, m->staging);
        if (status == AX_ERR_DATA)
            ax_error_context("parameter %s, read from array %s", it->name, it->key);
        return status;
    }
    AX_TRY(ax_param_state_read(m->ctx, it->state, p->first, p->count, m->staging));
    if (way == SUM) {
        m->sum += ckpt_checksum(t->dtype, t->ndim, t->dim, lo, p->n, m->staging);
        return AX_OK;
    }
    return move_file(m, it, a, way, lo, p->n);
}

/* Reads or writes this rank's box of the item's tensor, or adds its checksum to m->sum, piece by piece. */
static ax_status move_item(mover *m, const ckpt_item *it, const ax_st_array *a, direction way)
{
    const ax_grid *grid = m->ctx->grid;
    const ax_tensor *t = &it->tensor;
    ax_box box = ax_tensor_box(grid, t, ax_grid_rank(grid));
    int64_t lo[AX_MAX_DIMS] = {0};
    ckpt_pieces p;
    ckpt_pieces_begin(&p, t->ndim, box.n, PIECE_BYTES / (int64_t)ax_dtype_size(t->dtype));
    while (ckpt_pieces_next(&p)) {
        for (int d = 0; d < t->ndim; d++)
            lo[d] = box.lo[d] + p.lo[d];
        AX_TRY(move_piece(m, it, a, way, lo, &p));
    }
    return AX_OK;
}

/* Returns the bytes of staging memory for these items. */
static size_t staging_bytes(const ckpt_items *items)
{
    for (int i = 0; i < items->n; i++)
        if (items->item[i].place.spread)
            return 2 * PIECE_BYTES;
    return PIECE_BYTES;
}

static const ax_st_array *first_array(const ax_st *st, const ckpt_item *it)
{
    char key[CKPT_KEY];
    ckpt_item_key(it, 0, key);
    return ax_st_find(st, key);
}

ax_status ckpt_items_write(ax_ctx *ctx, const ckpt_items *items, ax_st *st)
{
    ax_region staging;
    AX_TRY(ax_region_create(staging_bytes(items), &staging));
    mover m = {.ctx = ctx, .st = st, .staging = staging.base, .rows = (char *)staging.base + PIECE_BYTES};
    ax_status status = AX_OK;
    for (int i = 0; i < items->n && status == AX_OK; i++)
        if (items->item[i].state && ax_tensor_is_primary(ctx->grid, &items->item[i].tensor))
            status = move_item(&m, &items->item[i], first_array(st, &items->item[i]), WRITE);
    ax_region_destroy(&staging);
    return status;
}

ax_status ckpt_items_checksum(ax_ctx *ctx, const ckpt_items *items, uint64_t *sums)
{
    ax_region staging;
    AX_TRY(ax_region_create(PIECE_BYTES, &staging));
    mover m = {.ctx = ctx, .staging = staging.base};
    ax_status status = AX_OK;
    for (int i = 0; i < items->n && status == AX_OK; i++) {
        m.sum = 0;
        if (items->item[i].state && ax_tensor_is_primary(ctx->grid, &items->item[i].tensor))
            status = move_item(&m, &items->item[i], NULL, SUM);
        sums[i] = m.sum;
    }
    ax_region_destroy(&staging);
    AX_TRY(ax_comm_agree(ctx->world, status));
    return ckpt_sum(ctx, sums, items->n);
}

ax_status ckpt_items_read(ax_ctx *ctx, const ckpt_items *items, ax_st *st, const ax_ckpt_rules *rules)
{
    const ax_st_array **found;
    AX_TRY(ax_calloc((size_t)items->n, sizeof *found, &found));
    ax_region staging = {0};
    ax_status status = ckpt_match(items, st, rules, found, NULL);
    if (status == AX_OK)
        status = ax_region_create(staging_bytes(items), &staging);
    mover m = {.ctx = ctx, .st = st, .rules = rules, .staging = staging.base};
    m.rows = staging.base ? m.staging + PIECE_BYTES : NULL;
    for (int i = 0; i < items->n && status == AX_OK; i++)
        if (items->item[i].state)
            status = move_item(&m, &items->item[i], found[i], READ);
    if (staging.base)
        ax_region_destroy(&staging);
    free(found);
    return status;
}
