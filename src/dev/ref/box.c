/* Kernels on rows and parts (boxes) of larger arrays: embedding lookup and its gradient, strided copies,
 * random initial weights. */
#include "dev/ref/ref.h"

#include <string.h>

/* Returns the row of token `id` in this rank's part of the embedding table, or -1 if another rank has it. */
static int64_t table_row(int32_t id, int64_t first, int64_t count)
{
    int64_t row = id - first;
    return row >= 0 && row < count ? row : -1;
}

ax_status ref_embedding(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_embedding_args *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t row = table_row(a->ids[r], a->first, a->count);
        for (ref_blocks(a->cols, at, count)) {
            double x[REF_BLOCK] = {0}, old[REF_BLOCK] = {0};
            if (row >= 0)
                ref_read(a->dtype, a->table, row * a->cols + at, count, x);
            if (a->accumulate)
                ref_read(a->dtype, a->y, r * a->cols + at, count, old);
            for (int64_t i = 0; i < count; i++)
                x[i] += old[i];
            ref_write(a->dtype, a->y, r * a->cols + at, count, x);
        }
    }
    return AX_OK;
}

/* Returns the first row from r on whose id is `id`, or the number of rows if there is none. */
static int64_t next_row(const ax_embedding_grad_args *a, int64_t r, int32_t id)
{
    while (r < a->rows && a->ids[r] != id)
        r++;
    return r;
}

/* Adds the rows of dy that have the id of row r, the first such row, in ascending order, to elements at … at
 * + count - 1 of a row of dtable. The sums are rounded to the accumulation dtype after each addition. */
static void add_rows(const ax_embedding_grad_args *a, int64_t r, int64_t row, int64_t at, int64_t count)
{
    double dy[REF_BLOCK], sum[REF_BLOCK];
    const int32_t id = a->ids[r];
    ref_read(a->table_dtype, a->dtable, row * a->cols + at, count, sum);
    for (; r < a->rows; r = next_row(a, r + 1, id)) {
        ref_read(a->dtype, a->dy, r * a->cols + at, count, dy);
        for (int64_t i = 0; i < count; i++)
            sum[i] = ref_rounded(ax_dtype_accum(a->dtype), sum[i] + dy[i]);
    }
    ref_write(a->table_dtype, a->dtable, row * a->cols + at, count, sum);
}

ax_status ref_embedding_grad(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_embedding_grad_args *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t row = table_row(a->ids[r], a->first, a->count);
        if (row < 0 || next_row(a, 0, a->ids[r]) < r)
            continue;
        for (ref_blocks(a->cols, at, count))
            add_rows(a, r, row, at, count);
    }
    return AX_OK;
}

static void copy_element(const ax_copy_box_args *a, int64_t from, int64_t to)
{
    size_t size = ax_dtype_size(a->dtype);
    if (a->accumulate)
        ax_store(a->dtype, a->y, to, ax_load(a->dtype, a->y, to) + ax_load(a->dtype, a->x, from));
    else
        memcpy((char *)a->y + (size_t)to * size, (const char *)a->x + (size_t)from * size, size);
}

ax_status ref_copy_box(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_copy_box_args *a = args;
    const int64_t *xs = a->x_stride, *ys = a->y_stride;
    for (int64_t i = 0; i < a->n[0]; i++)
        for (int64_t j = 0; j < a->n[1]; j++)
            for (int64_t k = 0; k < a->n[2]; k++)
                for (int64_t l = 0; l < a->n[3]; l++)
                    copy_element(a, i * xs[0] + j * xs[1] + k * xs[2] + l * xs[3],
                                 i * ys[0] + j * ys[1] + k * ys[2] + l * ys[3]);
    return AX_OK;
}

ax_status ref_init_normal(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_init_normal_args *a = args;
    int64_t at = 0;
    for (int64_t i = a->lo[0]; i < a->lo[0] + a->n[0]; i++)
        for (int64_t j = a->lo[1]; j < a->lo[1] + a->n[1]; j++)
            for (int64_t k = a->lo[2]; k < a->lo[2] + a->n[2]; k++)
                for (int64_t l = a->lo[3]; l < a->lo[3] + a->n[3]; l++) {
                    int64_t index = ((i * a->extent[1] + j) * a->extent[2] + k) * a->extent[3] + l;
                    double z = (double)ax_rng_normal(a->key, (uint64_t)index);
                    ax_store(a->dtype, a->y, at++, a->mean + a->std * z);
                }
    return AX_OK;
}

/* ---- pruned matrices ----------------------------------------------------------------------------- */

/* Returns the first column from c on whose element of a row is kept, or cols. */
static int64_t next_kept(const uint64_t *bits, int64_t cols, int64_t row, int64_t c)
{
    bits += row * ax_ceil_div(cols, 64);
    while (c < cols && !(bits[c / 64] >> c % 64 & 1))
        c++;
    return c;
}

/* Rounds x, added to element `at` of y or not, to y's dtype. */
static void put(ax_dtype dtype, void *y, int64_t at, double x, bool accumulate)
{
    double old = 0;
    if (accumulate)
        ref_read(dtype, y, at, 1, &old);
    x += old;
    ref_write(dtype, y, at, 1, &x);
}

ax_status ref_compress(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_compress_args *a = args;
    double x;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t at = a->begin[r] - a->begin[0], end = a->begin[r + 1] - a->begin[0];
        for (int64_t c = -1; (c = next_kept(a->bits, a->cols, r, c + 1)) < a->cols; at++) {
            ref_read(a->x_dtype, a->x, r * a->ld + c, 1, &x);
            put(a->y_dtype, a->y, at, x, a->accumulate);
        }
        for (; at < end && !a->accumulate; at++)
            put(a->y_dtype, a->y, at, 0, false);
    }
    return AX_OK;
}

ax_status ref_expand(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_expand_args *a = args;
    double x;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t at = a->begin[r] - a->begin[0], next = next_kept(a->bits, a->cols, r, 0);
        for (int64_t c = 0; c < a->cols; c++) {
            const bool kept = c == next, given = kept && at >= a->first && at < a->first + a->n;
            x = 0;
            if (given)
                ref_read(a->x_dtype, a->x, at - a->first, 1, &x);
            if (given || (a->whole && !kept))
                ref_write(a->y_dtype, a->y, r * a->cols + c, 1, &x);
            at += kept;
            next = kept ? next_kept(a->bits, a->cols, r, c + 1) : next;
        }
    }
    return AX_OK;
}
