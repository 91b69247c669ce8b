/* Reads and writes boxes of arrays. A box is cut into pieces that fit the staging buffer; a piece is read or
 * written in runs, each contiguous in the file. */
#include "ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct box {
    int64_t lo[AX_ST_MAX_DIMS], n[AX_ST_MAX_DIMS];
} box;

/* Reads or writes box `b` of the array, one contiguous run of file bytes after the other. `data` holds the
 * box densely, in the file's dtype. */
static ax_status move_runs(ax_st *st, const ax_st_array *a, const box *b, char *data, bool writing)
{
    const st_file *f = &st->file[a->file];
    int64_t element = a->bytes / ax_max(ax_st_elements(a), 1), run = 1;
    int d = a->ndim; /* dims d, d+1, … of the box are contiguous in the file: one run */
    while (d > 0 && (d == a->ndim || b->n[d] == a->dim[d]))
        run *= b->n[--d];
    ckpt_pieces at; /* iterates over the indices of dims 0 … d-1; each piece is one contiguous run */
    ckpt_pieces_begin(&at, d, b->n, 1);
    while (ckpt_pieces_next(&at)) {
        int64_t index = 0;
        for (int k = 0; k < a->ndim; k++)
            index = index * a->dim[k] + b->lo[k] + (k < d ? at.lo[k] : 0);
        int64_t offset = a->offset + index * element;
        size_t bytes = (size_t)(run * element);
        if (writing)
            AX_TRY(ax_pwrite_all(f->fd, data, bytes, offset, f->path));
        else
            AX_TRY(ax_pread_all(f->fd, data, bytes, offset, f->path));
        data += bytes;
    }
    return AX_OK;
}

static ax_status check_box(const ax_st *st, const ax_st_array *a, const int64_t *lo, const int64_t *n,
                           bool transpose, ax_dtype dtype, box *out)
{
    const char *path = st->file[a->file].path;
    AX_CHECK(ckpt_convertible(a->dtype, dtype), AX_ERR_USAGE,
             "%s: array %s is %s and cannot be converted to %s; only F64, F32, BF16 and F16 are converted to "
             "each other",
             path, a->key, a->dtype_name, dtype < AX_DTYPE_COUNT ? ax_dtype_name(dtype) : "an unknown dtype");
    AX_CHECK(!transpose || a->ndim == 2, AX_ERR_USAGE,
             "%s: array %s has %d dims and cannot be transposed, which needs 2", path, a->key, a->ndim);
    for (int d = 0; d < a->ndim; d++) {
        out->lo[d] = lo ? lo[d] : 0;
        out->n[d] = n ? n[d] : a->dim[d];
        AX_CHECK(
            out->lo[d] >= 0 && out->n[d] >= 0 && out->lo[d] <= a->dim[d] - out->n[d], AX_ERR_USAGE,
            "%s: array %s: %lld elements from element %lld on do not fit dim %d, which has %lld elements",
            path, a->key, (long long)out->n[d], (long long)out->lo[d], d, (long long)a->dim[d]);
    }
    return AX_OK;
}

/* Converts a piece: when reading, from the staging buffer `staged` (dense, in the file's dtype) into the
 * caller's box at `data` (in the caller's dtype); when writing, from `data` to `staged`. */
static void convert_piece(const ckpt_pieces *p, ax_dtype file_dtype, char *staged, bool transpose,
                          ax_dtype dtype, char *data, bool writing)
{
    int64_t size = (int64_t)ax_dtype_size(dtype);
    if (!transpose) {
        data += p->first * size;
        if (writing)
            ckpt_convert(file_dtype, staged, 1, dtype, data, 1, p->count);
        else
            ckpt_convert(dtype, data, 1, file_dtype, staged, 1, p->count);
        return;
    }
    int64_t stride = p->extent[0]; /* element [i,j] of the box is element [j,i] of data */
    data += (p->lo[1] * stride + p->lo[0]) * size;
    if (writing)
        ckpt_transpose(file_dtype, staged, p->n[1], dtype, data, stride, p->n[1], p->n[0]);
    else
        ckpt_transpose(dtype, data, stride, file_dtype, staged, p->n[1], p->n[0], p->n[1]);
}

static ax_status staging_of(ax_st *st, char **out)
{
    if (!st->staging.base)
        AX_TRY(ax_region_create(AX_ST_STAGING, &st->staging));
    *out = st->staging.base;
    return AX_OK;
}

static ax_status move_box(ax_st *st, const ax_st_array *a, const int64_t *lo, const int64_t *n,
                          bool transpose, ax_dtype dtype, char *data, bool writing)
{
    box whole, part;
    AX_TRY(check_box(st, a, lo, n, transpose, dtype, &whole));
    AX_TRY(st_file_open(st, a->file));
    char *staged;
    AX_TRY(staging_of(st, &staged));
    ckpt_pieces p;
    ckpt_pieces_begin(&p, a->ndim, whole.n, AX_ST_STAGING / (int64_t)ax_dtype_size(a->dtype));
    while (ckpt_pieces_next(&p)) {
        for (int d = 0; d < a->ndim; d++) {
            part.lo[d] = whole.lo[d] + p.lo[d];
            part.n[d] = p.n[d];
        }
        if (writing) {
            convert_piece(&p, a->dtype, staged, transpose, dtype, data, true);
            AX_TRY(move_runs(st, a, &part, staged, true));
        } else {
            AX_TRY(move_runs(st, a, &part, staged, false));
            convert_piece(&p, a->dtype, staged, transpose, dtype, data, false);
        }
    }
    return AX_OK;
}

static void key_context(const ax_st_array *a, ax_status status)
{
    if (status == AX_ERR_DATA)
        ax_error_context("array %s", a->key);
}

ax_status ax_st_read(ax_st *st, const ax_st_array *array, const int64_t *lo, const int64_t *n, bool transpose,
                     ax_dtype dtype, void *out)
{
    ax_status status = move_box(st, array, lo, n, transpose, dtype, out, false);
    key_context(array, status);
    return status;
}

ax_status ax_st_write(ax_st *st, const ax_st_array *array, const int64_t *lo, const int64_t *n,
                      bool transpose, ax_dtype dtype, const void *data)
{
    AX_CHECK(st->planned, AX_ERR_USAGE,
             "%s was opened for reading only and cannot be written: plan a new file with ax_st_plan",
             st->file[array->file].path);
    st->file[array->file].written = true;
    ax_status status = move_box(st, array, lo, n, transpose, dtype, (char *)data, true);
    key_context(array, status);
    return status;
}

ax_status st_read_raw(ax_st *st, const ax_st_array *a, int64_t first, int64_t bytes, void *out)
{
    AX_TRY(st_file_open(st, a->file));
    const st_file *f = &st->file[a->file];
    return ax_pread_all(f->fd, out, (size_t)bytes, a->offset + first, f->path);
}

/* ---- copying ------------------------------------------------------------------------------------- */

/* Copies elements first ... first+count-1 of array a to array b; they must fit the staging buffers of both
 * stores. Adds to *overflows the number of finite values that became infinite. */
static ax_status copy_piece(ax_st *from, const ax_st_array *a, ax_st *to, const ax_st_array *b, int64_t first,
                            int64_t count, int64_t *overflows)
{
    const st_file *f = &to->file[b->file];
    int64_t bits_a = st_dtype_of_array(a)->bits, bits_b = st_dtype_of_array(b)->bits;
    char *in, *out;
    AX_TRY(staging_of(from, &in));
    AX_TRY(staging_of(to, &out));
    AX_TRY(st_read_raw(from, a, first * bits_a / 8, count * bits_a / 8, in));
    if (a->dtype == b->dtype)
        out = in;
    else {
        ckpt_convert(b->dtype, out, 1, a->dtype, in, 1, count);
        *overflows += ckpt_count_infinite(b->dtype, out, count) - ckpt_count_infinite(a->dtype, in, count);
    }
    return ax_pwrite_all(f->fd, out, (size_t)(count * bits_b / 8), b->offset + first * bits_b / 8, f->path);
}

ax_status ax_st_copy(ax_st *from, const ax_st_array *a, ax_st *to, const ax_st_array *b, int64_t first,
                     int64_t count, int64_t *overflows)
{
    enum { PIECE = AX_ST_STAGING / 8 }; /* elements have at most 8 bytes */
    AX_CHECK(to->planned, AX_ERR_USAGE,
             "%s was opened for reading only and cannot be written: plan a new file with ax_st_plan",
             to->file[b->file].path);
    AX_CHECK(a->dtype == AX_DTYPE_COUNT ? !strcmp(a->dtype_name, b->dtype_name)
                                        : ckpt_convertible(a->dtype, b->dtype),
             AX_ERR_USAGE,
             "%s: array %s is %s and cannot be converted to %s; only F64, F32, BF16 and F16 are converted to "
             "each other",
             from->file[a->file].path, a->key, a->dtype_name, b->dtype_name);
    AX_CHECK(first >= 0 && count >= 0 && count <= ax_min(ax_st_elements(a), ax_st_elements(b)) - first,
             AX_ERR_USAGE, "%s: array %s does not have %lld elements from element %lld on",
             from->file[a->file].path, a->key, (long long)count, (long long)first);
    AX_TRY(st_file_open(to, b->file));
    to->file[b->file].written = true;
    ax_status status = AX_OK;
    for (int64_t at = 0; at < count && status == AX_OK; at += PIECE)
        status = copy_piece(from, a, to, b, first + at, ax_min(PIECE, count - at), overflows);
    key_context(a, status);
    return status;
}

/* ---- creating and syncing files ------------------------------------------------------------------ */

/* Reserves the whole size of the file at once, so that a full disk is found before anything is written, and
 * the file system can keep the file contiguous. If the file system cannot reserve space, only sets the file's
 * size; a full disk then makes the writes fail. */
static ax_status reserve(const st_file *f)
{
    int failed, error;
    do { /* retry after EINTR: a run often saves because it got a signal */
        failed = fallocate(f->fd, 0, 0, f->size);
        error = errno;
    } while (failed && error == EINTR);
    if (!failed)
        return AX_OK;
    if (error == EOPNOTSUPP || error == ENOSYS) {
        AX_CHECK(!ftruncate(f->fd, f->size), AX_ERR_DATA, "cannot set the size of %s to %lld bytes: %s",
                 f->path, (long long)f->size, strerror(errno));
        return AX_OK;
    }
    return ax_fail(AX_ERR_DATA, "cannot reserve %lld bytes for %s: %s", (long long)f->size, f->path,
                   strerror(error));
}

static ax_status make_file(ax_st *st, int file)
{
    st_file *f = &st->file[file];
    AX_CHECK(f->fd < 0, AX_ERR_USAGE, "ax_st_make: %s has been created already", f->path);
    f->fd = open(f->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    AX_CHECK(f->fd >= 0, AX_ERR_DATA, "cannot create %s: %s", f->path, strerror(errno));
    f->written = true;
    AX_TRY(reserve(f));
    ax_buf header = {0};
    ax_status status = st_header_print(st, file, &header);
    if (status == AX_OK)
        status = ax_pwrite_all(f->fd, header.data, header.size, 0, f->path);
    ax_buf_fini(&header);
    return status;
}

ax_status ax_st_make(ax_st *st)
{
    for (int i = 0; i < st->files; i++)
        AX_TRY(make_file(st, i));
    if (!st->index)
        return AX_OK;
    ax_buf text = {0};
    ax_status status = st_index_print(st, &text);
    if (status == AX_OK)
        status = ax_file_write_atomic(st->index, text.data, text.size);
    ax_buf_fini(&text);
    return status;
}

ax_status ax_st_sync(ax_st *st)
{
    for (int i = 0; i < st->files; i++) {
        st_file *f = &st->file[i];
        if (!f->written)
            continue;
        AX_CHECK(!fsync(f->fd), AX_ERR_DATA, "cannot flush %s to disk: %s", f->path, strerror(errno));
        f->written = false;
    }
    return AX_OK;
}
