/* The safetensors header: u64 little-endian length N, N bytes of JSON, then the arrays back to back. The JSON
 * object maps each key to {"dtype", "shape", "data_offsets": [begin, end]}, and "__metadata__" to an object
 * of strings. The offsets count bytes from the end of the JSON; the byte at `end` no longer belongs to the
 * array. The ranges of all arrays cover the rest of the file without gaps or overlaps. */
#include "ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors are read and written as they lie in memory: little-endian hosts only"
#endif

static const st_dtype dtypes[] = {
    {"F64", 64, AX_F64},
    {"F32", 32, AX_F32},
    {"BF16", 16, AX_BF16},
    {"F16", 16, AX_F16},
    {"I32", 32, AX_I32},
    {"I64", 64, AX_I64},
    {"U16", 16, AX_U16},
    {"U8", 8, AX_U8},
    {"BOOL", 8, AX_DTYPE_COUNT},
    {"I8", 8, AX_DTYPE_COUNT},
    {"I16", 16, AX_DTYPE_COUNT},
    {"U32", 32, AX_DTYPE_COUNT},
    {"U64", 64, AX_DTYPE_COUNT},
    {"C64", 64, AX_DTYPE_COUNT},
    {"F8_E4M3", 8, AX_DTYPE_COUNT},
    {"F8_E5M2", 8, AX_DTYPE_COUNT},
    {"F8_E8M0", 8, AX_DTYPE_COUNT},
    {"F6_E2M3", 6, AX_DTYPE_COUNT},
    {"F6_E3M2", 6, AX_DTYPE_COUNT},
    {"F4", 4, AX_DTYPE_COUNT},
};

const st_dtype *st_dtype_find(const char *name)
{
    for (size_t i = 0; i < AX_COUNT(dtypes); i++)
        if (!strcmp(dtypes[i].name, name))
            return &dtypes[i];
    return NULL;
}

const st_dtype *st_dtype_of(ax_dtype dtype)
{
    for (size_t i = 0; i < AX_COUNT(dtypes); i++)
        if (dtypes[i].dtype == dtype && dtype < AX_DTYPE_COUNT)
            return &dtypes[i];
    return NULL;
}

const st_dtype *st_dtype_of_array(const ax_st_array *a)
{
    if (a->dtype < AX_DTYPE_COUNT)
        return st_dtype_of(a->dtype);
    return a->dtype_name ? st_dtype_find(a->dtype_name) : NULL;
}

char *st_shape_print(int ndim, const int64_t *dim, char out[ST_SHAPE_TEXT])
{
    snprintf(out, ST_SHAPE_TEXT, "[");
    for (int d = 0; d < ndim; d++)
        ax_text_add(out, ST_SHAPE_TEXT, "%s%lld", d ? ", " : "", (long long)dim[d]);
    ax_text_add(out, ST_SHAPE_TEXT, "]");
    return out;
}

/* ---- reading ------------------------------------------------------------------------------------- */

static ax_status read_shape(ax_st_array *a, const json_t *shape, int bits, const char *path)
{
    AX_CHECK(json_is_array(shape) && json_array_size(shape) <= AX_ST_MAX_DIMS, AX_ERR_DATA,
             "%s has a damaged header and must be copied or saved again: array %s: \"shape\" is not a list "
             "of at most %d extents",
             path, a->key, AX_ST_MAX_DIMS);
    int64_t total = bits; /* size in bits; extents of 0 count as 1: a 0 must not hide an overflow */
    bool empty = false;
    a->ndim = (int)json_array_size(shape);
    for (int d = 0; d < a->ndim; d++) {
        const json_t *item = json_array_get(shape, (size_t)d);
        AX_CHECK(json_is_integer(item) && json_integer_value(item) >= 0, AX_ERR_DATA,
                 "%s has a damaged header and must be copied or saved again: array %s: \"shape\"[%d] is not "
                 "a non-negative integer",
                 path, a->key, d);
        a->dim[d] = json_integer_value(item);
        empty |= a->dim[d] == 0;
        AX_CHECK(!__builtin_mul_overflow(total, ax_max(a->dim[d], 1), &total), AX_ERR_DATA,
                 "%s has a damaged header and must be copied or saved again: array %s: \"shape\" has more "
                 "elements than a file can hold",
                 path, a->key);
    }
    total = empty ? 0 : total;
    AX_CHECK(total % 8 == 0, AX_ERR_DATA,
             "%s has a damaged header and must be copied or saved again: array %s: its elements of %d bits "
             "do not fill whole bytes",
             path, a->key, bits);
    a->bytes = total / 8;
    return AX_OK;
}

static ax_status read_entry(ax_st_array *a, const json_t *entry, int64_t room, const char *path)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    /* As in the reference implementation of safetensors, an entry may have further members. */
    AX_CHECK(dtype, AX_ERR_DATA,
             "%s has a damaged header and must be copied or saved again: array %s: its entry has no "
             "\"dtype\", which must be a string",
             path, a->key);
    const st_dtype *known = st_dtype_find(dtype);
    AX_CHECK(known, AX_ERR_DATA,
             "%s: array %s: unknown dtype \"%s\"; save the array in another dtype, such as BF16", path,
             a->key, dtype);
    a->dtype = known->dtype;
    a->dtype_name = known->name;
    AX_TRY(read_shape(a, json_object_get(entry, "shape"), known->bits, path));
    AX_CHECK(json_array_size(offsets) == 2 && json_is_integer(json_array_get(offsets, 0)) &&
                 json_is_integer(json_array_get(offsets, 1)),
             AX_ERR_DATA,
             "%s has a damaged header and must be copied or saved again: array %s: \"data_offsets\" is not "
             "[begin, end]",
             path, a->key);
    int64_t begin = json_integer_value(json_array_get(offsets, 0));
    int64_t end = json_integer_value(json_array_get(offsets, 1));
    AX_CHECK(0 <= begin && begin <= end && end <= room, AX_ERR_DATA,
             "%s: array %s: bytes %lld to %lld are not within the file's %lld bytes of arrays: the file is "
             "truncated or damaged; get or save it again",
             path, a->key, (long long)begin, (long long)end, (long long)room);
    AX_CHECK(end - begin == a->bytes, AX_ERR_DATA,
             "%s has a damaged header and must be copied or saved again: array %s has %lld bytes, but its "
             "shape and dtype need %lld",
             path, a->key, (long long)(end - begin), (long long)a->bytes);
    a->offset = begin;
    return AX_OK;
}

static int by_offset(const void *x, const void *y)
{
    const ax_st_array *a = x, *b = y;
    return a->offset != b->offset ? (a->offset < b->offset ? -1 : 1)
                                  : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* Checks that the arrays cover the `room` bytes after the header without gaps and overlaps. */
static ax_status check_cover(ax_st_array *array, int n, int64_t room, const char *path)
{
    qsort(array, (size_t)n, sizeof *array, by_offset);
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        AX_CHECK(array[i].offset >= at, AX_ERR_DATA,
                 "%s has a damaged header and must be copied or saved again: array %s overlaps array %s",
                 path, array[i].key, array[i - 1].key);
        AX_CHECK(array[i].offset == at, AX_ERR_DATA,
                 "%s has a damaged header and must be copied or saved again: %lld bytes before array %s "
                 "belong to no array",
                 path, (long long)(array[i].offset - at), array[i].key);
        at += array[i].bytes;
    }
    AX_CHECK(
        at == room, AX_ERR_DATA,
        "%s: %lld bytes after the last array belong to no array: the file is damaged; get or save it again",
        path, (long long)(room - at));
    return AX_OK;
}

static ax_status check_metadata(const json_t *metadata, const char *path)
{
    const char *key;
    json_t *value;
    AX_CHECK(json_is_object(metadata), AX_ERR_DATA,
             "%s has a damaged header and must be copied or saved again: __metadata__ is not an object",
             path);
    json_object_foreach((json_t *)metadata, key, value) AX_CHECK(
        json_is_string(value), AX_ERR_DATA,
        "%s has a damaged header and must be copied or saved again: __metadata__: %s is not a string", path,
        key);
    return AX_OK;
}

static ax_status add_entries(ax_st *st, json_t *root, int64_t data, int64_t room, const char *path)
{
    size_t total = (size_t)st->n + json_object_size(root);
    ax_st_array *grown = realloc(st->array, (total + 1) * sizeof *grown);
    AX_CHECK(grown, AX_ERR_MEMORY, "%s: not enough memory for a table of %zu arrays", path, total);
    st->array = grown;
    int first = st->n;
    const char *key;
    json_t *entry;
    json_object_foreach(root, key, entry)
    {
        if (!strcmp(key, "__metadata__")) {
            if (!json_is_null(entry)) {
                AX_TRY(check_metadata(entry, path));
                st->metadata = st->metadata ? st->metadata : json_incref(entry);
            }
            continue;
        }
        ax_st_array *a = &st->array[st->n];
        memset(a, 0, sizeof *a);
        char *copy;
        AX_TRY(ax_strdup(key, &copy));
        a->key = copy;
        a->file = st->files - 1;
        st->n++;
        AX_TRY(read_entry(a, entry, room, path));
    }
    AX_TRY(check_cover(st->array + first, st->n - first, room, path));
    for (int i = first; i < st->n; i++)
        st->array[i].offset += data;
    return AX_OK;
}

static ax_status parse_header(ax_st *st, st_file *f, const char *text, size_t size)
{
    json_t *root;
    ax_status status = ax_json_parse(NULL, text, size, JSON_REJECT_DUPLICATES, &root);
    if (status != AX_OK)
        ax_error_context("%s has a damaged header and must be copied or saved again", f->path);
    AX_TRY(status);
    status =
        json_is_object(root)
            ? add_entries(st, root, f->data, f->size - f->data, f->path)
            : ax_fail(AX_ERR_DATA,
                      "%s has a damaged header and must be copied or saved again: it is not a JSON object",
                      f->path);
    json_decref(root);
    return status;
}

/* Returns the error that a file is not safetensors because of `why`, which may be what the file is instead,
 * by its first bytes. */
static ax_status refuse_file(const st_file *f, const char *why)
{
    char begin[64];
    size_t n = (size_t)ax_min(f->size, (int64_t)sizeof begin);
    AX_TRY(ax_pread_all(f->fd, begin, n, 0, f->path));
    const char *what = ax_file_stand_in(begin, n);
    return what ? ax_fail(AX_ERR_DATA, "%s %s", f->path, what) : ax_fail(AX_ERR_DATA, "%s%s", f->path, why);
}

/* Reads the length of the header, and checks that a header of this length is there and begins as JSON. */
static ax_status read_length(st_file *f, uint64_t *length)
{
    char first, why[160];
    AX_CHECK(f->size, AX_ERR_DATA, "%s is empty: get or save it again", f->path);
    if (f->size < 8) {
        snprintf(why, sizeof why,
                 ": %lld bytes are too few for a header: the file is truncated, or not safetensors",
                 (long long)f->size);
        return refuse_file(f, why);
    }
    AX_TRY(ax_pread_all(f->fd, length, sizeof *length, 0, f->path));
    if (*length > ST_HEADER_MAX) {
        snprintf(why, sizeof why,
                 ": a header of %llu bytes is above the limit of %d: the file is damaged, or not safetensors",
                 (unsigned long long)*length, ST_HEADER_MAX);
        return refuse_file(f, why);
    }
    if ((int64_t)*length > f->size - 8) {
        snprintf(
            why, sizeof why,
            ": its header of %llu bytes is longer than the file: the file is truncated, or not safetensors",
            (unsigned long long)*length);
        return refuse_file(f, why);
    }
    first = 0;
    if (*length)
        AX_TRY(ax_pread_all(f->fd, &first, 1, 8, f->path));
    return first == '{'
               ? AX_OK
               : refuse_file(f,
                             ": its header does not begin with '{': the file is damaged, or not safetensors");
}

static ax_status read_file_header(ax_st *st, st_file *f)
{
    struct stat info;
    AX_CHECK(!fstat(f->fd, &info), AX_ERR_DATA, "cannot read %s: %s", f->path, strerror(errno));
    AX_CHECK(S_ISREG(info.st_mode), AX_ERR_DATA, "%s must be a regular file, not a directory, pipe or device",
             f->path);
    f->size = info.st_size;
    uint64_t length;
    AX_TRY(read_length(f, &length));
    f->data = 8 + (int64_t)length;
    char *text;
    AX_TRY(ax_calloc(length + 1, 1, &text));
    ax_status status = ax_pread_all(f->fd, text, length, 8, f->path);
    if (status == AX_OK)
        status = parse_header(st, f, text, length);
    free(text);
    return status;
}

ax_status st_header_read(ax_st *st, const char *path)
{
    AX_TRY(ax_list_grow(&st->file, (size_t)st->files, sizeof *st->file));
    st_file *f = &st->file[st->files];
    memset(f, 0, sizeof *f);
    f->fd = -1;
    AX_TRY(ax_strdup(path, &f->path));
    st->files++;
    AX_TRY(st_file_open(st, st->files - 1));
    return read_file_header(st, f);
}

/* ---- writing ------------------------------------------------------------------------------------- */

static int array_by_offset(const void *x, const void *y)
{
    return by_offset(*(ax_st_array *const *)x, *(ax_st_array *const *)y);
}

/* Makes the JSON entry of an array. The members are in the same order as in the reference implementation of
 * safetensors, although no reader relies on the order. */
static json_t *entry_json(const ax_st_array *a, int64_t data)
{
    json_t *shape = json_array();
    for (int d = 0; d < a->ndim; d++)
        json_array_append_new(shape, json_integer(a->dim[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", a->dtype_name, "shape", shape, "data_offsets",
                     (json_int_t)(a->offset - data), (json_int_t)(a->offset + a->bytes - data));
}

ax_status st_header_print(const ax_st *st, int file, ax_buf *out)
{
    ax_st_array **order;
    AX_TRY(ax_calloc((size_t)st->n, sizeof *order, &order));
    int n = 0;
    for (int i = 0; i < st->n; i++)
        if (st->array[i].file == file)
            order[n++] = &st->array[i];
    qsort(order, (size_t)n, sizeof(ax_st_array *), array_by_offset);
    json_t *root = st->metadata ? json_pack("{s:O}", "__metadata__", st->metadata)
                                : json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int failed = !root;
    for (int i = 0; i < n; i++)
        failed |= json_object_set_new(root, order[i]->key, entry_json(order[i], st->file[file].data));
    char *text = failed ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    free(order);
    AX_CHECK(text, AX_ERR_USAGE,
             "%s: the header cannot be made: an array name is not UTF-8, or there is not enough memory",
             st->file[file].path);
    uint64_t size = strlen(text), padded = (uint64_t)ax_round_up((int64_t)size, 8);
    ax_status status = ax_buf_add(out, &padded, sizeof padded);
    if (status == AX_OK)
        status = ax_buf_add(out, text, size);
    if (status == AX_OK)
        status = ax_buf_add(out, "       ", padded - size);
    free(text);
    return status;
}
