/* Opens and plans stores: one safetensors file, or the shards of a directory with their index. shards.c opens
 * directories; store_io.c reads and writes boxes; header.c reads and writes headers. */
#include "ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void ax_st_close(ax_st **st)
{
    ax_st *s = *st;
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        free((char *)s->array[i].key);
    for (int i = 0; i < s->files; i++) {
        if (s->file[i].fd >= 0)
            close(s->file[i].fd);
        free(s->file[i].path);
    }
    if (s->staging.base)
        ax_region_destroy(&s->staging);
    free(s->array);
    free(s->file);
    free(s->index);
    free(s->remark);
    json_decref(s->metadata);
    free(s);
    *st = NULL;
}

int ax_st_count(const ax_st *st) { return st->n; }
int ax_st_files(const ax_st *st) { return st->files; }
const ax_st_array *ax_st_at(const ax_st *st, int index) { return &st->array[index]; }

int64_t ax_st_elements(const ax_st_array *array)
{
    int64_t count = 1;
    for (int d = 0; d < array->ndim; d++)
        count *= array->dim[d];
    return count;
}

int64_t ax_st_bytes(const ax_st *st)
{
    int64_t bytes = 0;
    for (int i = 0; i < st->files; i++)
        bytes += st->file[i].size;
    struct stat info;
    ax_buf index = {0};
    if (st->planned && st->index && st_index_print(st, &index) == AX_OK)
        bytes += (int64_t)index.size;
    else if (!st->planned && st->index && !stat(st->index, &info))
        bytes += info.st_size;
    ax_buf_fini(&index);
    return bytes;
}

static int by_key(const void *x, const void *y)
{
    return strcmp(((const ax_st_array *)x)->key, ((const ax_st_array *)y)->key);
}

const ax_st_array *ax_st_find(const ax_st *st, const char *key)
{
    ax_st_array probe = {.key = key};
    return st->n ? bsearch(&probe, st->array, (size_t)st->n, sizeof *st->array, by_key) : NULL;
}

ax_status st_sort(ax_st *st)
{
    if (st->n) /* qsort does not take NULL */
        qsort(st->array, (size_t)st->n, sizeof *st->array, by_key);
    for (int i = 1; i < st->n; i++)
        AX_CHECK(by_key(&st->array[i - 1], &st->array[i]), AX_ERR_DATA,
                 "%s: array %s is also in %s; an array must be in one file only",
                 st->file[st->array[i].file].path, st->array[i].key, st->file[st->array[i - 1].file].path);
    return AX_OK;
}

/* ---- opening ------------------------------------------------------------------------------------- */

ax_status st_file_open(ax_st *st, int file)
{
    st_file *f = &st->file[file];
    if (f->fd >= 0)
        return AX_OK;
    f->fd = open(f->path, (st->planned ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
    AX_CHECK(f->fd >= 0, AX_ERR_DATA, "cannot open %s: %s", f->path, strerror(errno));
    return AX_OK;
}

ax_status ax_st_open(const char *path, ax_st **out)
{
    *out = NULL;
    if (ax_path_is_dir(path))
        return st_open_dir(path, ax_ckpt_is_adapter(path) ? "adapter_model" : "model", out);
    ax_st *st;
    AX_TRY(ax_calloc(1, sizeof *st, &st));
    ax_status status = st_header_read(st, path);
    if (status == AX_OK)
        status = st_sort(st);
    if (status != AX_OK)
        ax_st_close(&st);
    *out = st;
    return status;
}

/* ---- planning ------------------------------------------------------------------------------------ */

/* Orders the arrays by file, then by element size (larger elements first), then by key. With larger elements
 * first, each array is aligned to its element size. The reference implementation of safetensors has the same
 * order. */
static int by_file_order(const void *x, const void *y)
{
    const ax_st_array *a = x, *b = y;
    int bits_a = st_dtype_of_array(a)->bits, bits_b = st_dtype_of_array(b)->bits;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return bits_a != bits_b ? (bits_a > bits_b ? -1 : 1) : strcmp(a->key, b->key);
}

/* Copies `arrays` to st->array, computes their sizes in bytes, and assigns them in order to shards of at most
 * `limit` bytes. (An array larger than `limit` gets a shard of its own.) With AX_ST_SAME_FILES a shard ends
 * where `file` changes. *shards is the number of shards. */
static ax_status assign_shards(ax_st *st, const ax_st_array *arrays, int n, int64_t limit, int *shards)
{
    int64_t filled = 0;
    *shards = 1;
    for (int i = 0; i < n; i++) {
        ax_st_array *a = &st->array[i];
        const st_dtype *dtype = st_dtype_of_array(&arrays[i]);
        AX_CHECK(dtype, AX_ERR_USAGE,
                 "ax_st_plan: array %s must have a dtype that safetensors files can hold, such as F32, BF16 "
                 "or I64",
                 arrays[i].key);
        *a = arrays[i];
        char *key;
        AX_TRY(ax_strdup(arrays[i].key, &key));
        a->key = key;
        st->n++;
        a->dtype_name = dtype->name;
        a->bytes = ax_st_elements(a) * dtype->bits / 8;
        const bool ends = limit == AX_ST_SAME_FILES ? i && arrays[i].file != arrays[i - 1].file
                                                    : filled && filled + a->bytes > limit;
        if (ends) {
            ++*shards;
            filled = 0;
        }
        a->file = *shards - 1;
        filled += a->bytes;
    }
    return AX_OK;
}

static ax_status name_files(ax_st *st, const char *dir, const char *stem, int shards)
{
    AX_TRY(ax_calloc((size_t)shards, sizeof *st->file, &st->file));
    for (int i = 0; i < shards; i++) {
        st_file *f = &st->file[i];
        f->fd = -1;
        st->files++;
        if (shards == 1)
            AX_TRY(ckpt_path(&f->path, "%s/%s.safetensors", dir, stem));
        else
            AX_TRY(ckpt_path(&f->path, "%s/%s-%05d-of-%05d.safetensors", dir, stem, i + 1, shards));
    }
    return shards > 1 ? ckpt_path(&st->index, "%s/%s.safetensors.index.json", dir, stem) : AX_OK;
}

ax_status st_place_data(ax_st *st)
{
    for (int f = 0; f < st->files; f++) {
        ax_buf header = {0};
        ax_status status = st_header_print(st, f, &header);
        int64_t shift = (int64_t)header.size - st->file[f].data;
        ax_buf_fini(&header);
        AX_TRY(status);
        st->file[f].data += shift;
        st->file[f].size += shift;
        for (int i = 0; i < st->n; i++)
            st->array[i].offset += st->array[i].file == f ? shift : 0;
    }
    return AX_OK;
}

/* Sets the offset of each array in its file. Offsets in the header are relative to the end of the header, so
 * they do not depend on the header's length. */
static ax_status assign_offsets(ax_st *st)
{
    qsort(st->array, (size_t)st->n, sizeof *st->array, by_file_order);
    for (int i = 0; i < st->n; i++) {
        st_file *f = &st->file[st->array[i].file];
        st->array[i].offset = f->size;
        f->size += st->array[i].bytes;
    }
    return st_place_data(st);
}

static ax_status plan(ax_st *st, const char *dir, const char *stem, const ax_st_array *arrays, int n,
                      int64_t limit)
{
    int shards;
    st->planned = true;
    AX_TRY(ax_calloc((size_t)n, sizeof *st->array, &st->array));
    AX_TRY(assign_shards(st, arrays, n, limit ? limit : INT64_C(5000000000), &shards));
    AX_TRY(name_files(st, dir, stem, shards));
    AX_TRY(assign_offsets(st));
    return st_sort(st) == AX_OK ? AX_OK : ax_fail(AX_ERR_USAGE, "%s", ax_error_message());
}

ax_status ax_st_plan(const char *dir, const char *stem, const ax_st_array *arrays, int n, int64_t shard_bytes,
                     ax_st **out)
{
    ax_st *st;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *st, &st));
    ax_status status = plan(st, dir, stem, arrays, n, shard_bytes);
    if (status != AX_OK)
        ax_st_close(&st);
    *out = st;
    return status;
}

ax_status st_index_print(const ax_st *st, ax_buf *out)
{
    int64_t total = 0;
    json_t *map = json_object();
    int failed = !map;
    for (int i = 0; i < st->n; i++) {
        total += st->array[i].bytes;
        failed |= json_object_set_new(map, st->array[i].key,
                                      json_string(strrchr(st->file[st->array[i].file].path, '/') + 1));
    }
    json_t *root =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *text = failed ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    AX_CHECK(text, AX_ERR_MEMORY, "not enough memory to write %s", st->index);
    ax_status status = ax_buf_printf(out, "%s\n", text);
    free(text);
    return status;
}
