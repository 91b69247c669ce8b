/* Shared by the files of src/ckpt. Read axonn/ckpt.h first. */
#ifndef AXONN_CKPT_PRIVATE_H
#define AXONN_CKPT_PRIVATE_H

#include "axonn/ckpt.h"
#include "axonn/json.h"

#include <jansson.h>

/* ---- path.c ---- */

/* Formats a path; the caller frees *out. */
ax_status ckpt_path(char **out, const char *fmt, ...) AX_PRINTF(2, 3);
/* Whether `dir` holds a file of this name. */
bool ckpt_has(const char *dir, const char *name);

/* ---- convert.c: converts elements, and cuts boxes into pieces ---- */

/* A box is a rectangular part of an array: the elements with indices in [lo, lo + n). */

/* Whether values of one dtype can be converted to the other. */
bool ckpt_convertible(ax_dtype from, ax_dtype to);
/* dst[i·dst_stride] = src[i·src_stride], i < n; strides in elements. The dtypes are convertible. */
void ckpt_convert(ax_dtype dst_dtype, void *dst, int64_t dst_stride, ax_dtype src_dtype, const void *src,
                  int64_t src_stride, int64_t n);
/* Returns the number of infinite values among n elements of a float dtype. */
int64_t ckpt_count_infinite(ax_dtype dtype, const void *data, int64_t n);
/* dst[j,i] = src[i,j] for a rows × cols source with row strides in elements. */
void ckpt_transpose(ax_dtype dst_dtype, void *dst, int64_t dst_stride, ax_dtype src_dtype, const void *src,
                    int64_t src_stride, int64_t rows, int64_t cols);

/* Iterator that cuts a box of extents n[] into pieces: sub-boxes of at most `limit` elements, each contiguous
 * in the row-major order of the box and following the one before. */
typedef struct ckpt_pieces {
    int ndim, split; /* a piece has extent 1 in dims before `split`, at most `chunk` in dim `split`, and the
                        full extent in dims after it */
    int64_t extent[AX_ST_MAX_DIMS], chunk;
    bool done;
    int64_t lo[AX_ST_MAX_DIMS], n[AX_ST_MAX_DIMS]; /* the current piece is the sub-box [lo, lo + n) */
    int64_t first, count; /* offset of the current piece in the box, and its size, both in elements */
} ckpt_pieces;
void ckpt_pieces_begin(ckpt_pieces *pieces, int ndim, const int64_t *n, int64_t limit);
bool ckpt_pieces_next(ckpt_pieces *pieces);

/* Returns the checksum of a box, the sum over its elements of a hash of (global index, bits), mod 2^64. The
 * box is [lo, lo + n) of an array of extents `dim`; `data` is dense. */
uint64_t ckpt_checksum(ax_dtype dtype, int ndim, const int64_t *dim, const int64_t *lo, const int64_t *n,
                       const void *data);

/* ---- store.c, header.c: safetensors ---- */

typedef struct st_file {
    char *path;
    int fd;       /* -1: not open yet */
    bool written; /* written through this handle and not synced since */
    int64_t data; /* byte offset of the first array in the file */
    int64_t size; /* size of the file in bytes */
} st_file;

struct ax_st {
    int n, files;
    ax_st_array *array; /* ascending by key; keys are owned */
    st_file *file;
    char *index;       /* path of the index; NULL: one file without an index */
    bool planned;      /* made by ax_st_plan, for writing */
    json_t *metadata;  /* of the first file: an object of strings, or NULL */
    ax_region staging; /* host buffer of AX_ST_STAGING bytes, allocated when it is first used */
};

enum { ST_HEADER_MAX = 100000000 }; /* bytes; the reference implementation of safetensors has this limit */

/* The dtypes of safetensors, one row each. */
typedef struct st_dtype {
    const char *name;
    int bits;
    ax_dtype dtype; /* AX_DTYPE_COUNT: axonn has no such dtype */
} st_dtype;
const st_dtype *st_dtype_find(const char *name);
const st_dtype *st_dtype_of(ax_dtype dtype);
/* Returns the dtype of array `a`; NULL if safetensors has no such dtype. */
const st_dtype *st_dtype_of_array(const ax_st_array *a);
/* Prints a shape as "[2, 3]"; ST_SHAPE_TEXT is enough for any shape. */
enum { ST_SHAPE_TEXT = 22 * AX_ST_MAX_DIMS + 3 };
char *st_shape_print(int ndim, const int64_t *dim, char out[ST_SHAPE_TEXT]);

/* Reads and checks the header of file `path`. Appends the file to st->file and its arrays to st->array. */
ax_status st_header_read(ax_st *st, const char *path);
/* Appends to `out` the header of file `file` of a planned store: the length, then the padded JSON. */
ax_status st_header_print(const ax_st *st, int file, ax_buf *out);
/* Moves the arrays of a planned store so that they begin where the headers end. Called when the lengths of
 * the headers become known or change. */
ax_status st_place_data(ax_st *st);
/* base.c: adds a member to the metadata of a planned store whose files do not exist yet. */
ax_status st_note(ax_st *st, const char *key, const char *value);
#define CKPT_BASE "axonn_base" /* the member with the checksum of an adapter's base */
/* Sorts the arrays by key; AX_ERR_DATA if two arrays have the same key. */
ax_status st_sort(ax_st *st);
/* Reads `bytes` bytes of an array from its byte `first` on, without conversion. */
ax_status st_read_raw(ax_st *st, const ax_st_array *a, int64_t first, int64_t bytes, void *out);
/* Opens STEM.safetensors in `dir`, or the shards that STEM.safetensors.index.json in `dir` lists. */
ax_status st_open_dir(const char *dir, const char *stem, ax_st **out);
ax_status st_file_open(ax_st *st, int file);
/* Appends to `out` the index of a planned store, the contents of STEM.safetensors.index.json. */
ax_status st_index_print(const ax_st *st, ax_buf *out);

/* ---- sum.c ---- */

/* Replaces v[i] by its sum over all ranks mod 2^64; v is in host memory. */
ax_status ckpt_sum(ax_ctx *ctx, uint64_t *v, int64_t n);

/* ---- items.c: distributed arrays and their places in files ---- */

typedef struct ckpt_item {
    const char *name;    /* name of the parameter */
    char *key;           /* key of the array in the file; owned */
    ax_tensor tensor;    /* its data is NULL if this rank does not own the parameter (ax_param_is_owned), for
                            instance in another pipeline stage */
    ax_param_file place; /* the part of the file's array that holds the tensor; place.key is not used */
} ckpt_item;

typedef struct ckpt_items {
    int n;
    ckpt_item *item;
} ckpt_items;

/* Lists an item for the master weights of each frozen parameter, or, if `frozen` is false, of each other
 * parameter. The item's place says which array of the model files holds the weights, and which part of that
 * array. */
ax_status ckpt_items_model(const ax_param_set *set, bool frozen, ckpt_items *out);
/* Lists an item for each slot of the optimizer state of each parameter that is not frozen, with key
 * SLOT.NAME. With `master`, also lists the master weights, with key master.NAME. Each item is a whole array.
 */
ax_status ckpt_items_training(const ax_param_set *set, const char *const *slot_names, bool master,
                              ckpt_items *out);
void ckpt_items_fini(ckpt_items *items);
/* Plans the store for the arrays of these items, stored as `dtype` (AX_DTYPE_COUNT: in the dtypes of the
 * items). AX_ERR_USAGE if the items of one array overlap or leave a gap. */
ax_status ckpt_items_plan(const ckpt_items *items, ax_dtype dtype, const char *dir, const char *stem,
                          int64_t shard_bytes, ax_st **out);
/* ckpt_items_write writes this rank's part (box) of each item, unless an earlier rank has the same box.
 * ckpt_items_read reads this rank's box of each item. Neither is collective. */
ax_status ckpt_items_write(ax_ctx *ctx, const ckpt_items *items, ax_st *st);
ax_status ckpt_items_read(ax_ctx *ctx, const ckpt_items *items, ax_st *st, const ax_ckpt_rules *rules);
/* Finds the array whose key is `key`, or `key` with `prefix` added or removed; NULL if there is none.
 * `prefix` may be NULL. */
const ax_st_array *ckpt_find_array(const ax_st *st, const char *key, const char *prefix);
/* Sets sums[i] to the checksum of item i over all ranks. Collective over ctx->world. */
ax_status ckpt_items_checksum(ax_ctx *ctx, const ckpt_items *items, uint64_t *sums);

/* ---- manifest.c ---- */

typedef struct manifest_file {
    char *name; /* path relative to the checkpoint's directory */
    int64_t bytes;
    uint64_t xxh3;
} manifest_file;

typedef struct manifest {
    int64_t step, serial; /* serial: the newest checkpoint of a run has the highest */
    double time;
    int64_t bytes; /* total size of all files in bytes */
    int n;
    manifest_file *file;
    json_t *params; /* object: name of each parameter that is not frozen → {"dtype", "sum", "key"}; "key", the
                       key of the parameter's array in model files, is missing if that key is the name */
} manifest;

/* Writes training/manifest.json of `dir` and syncs it. */
ax_status manifest_write(const char *dir, const manifest *m);
/* Reads the manifest. AX_ERR_DATA if the file is missing, or if any bit of the manifest has changed since it
 * was written. */
ax_status manifest_read(const char *dir, manifest *out);
void manifest_fini(manifest *m);
#define MANIFEST "training/manifest.json"
/* Suffix of .step-N.was: the name that an older checkpoint step-N has while a new checkpoint of the same step
 * replaces it. */
#define CKPT_WAS ".was"
/* Computes the XXH3-64 of a whole file, and its size. */
ax_status manifest_hash_file(const char *path, int64_t *bytes, uint64_t *hash);
/* Compares size and checksum of a file with the manifest. AX_ERR_DATA if they differ. */
ax_status manifest_check_file(const char *dir, const manifest_file *f);

/* ---- diff_names.c ---- */

/* Renames the rows of `diff` from `first` on, which compare files of training/: the name of a parameter is
 * replaced by the key of the parameter's weights in model files, if the manifest has that key. Then sorts
 * these rows and merges rows with equal keys. */
ax_status ckpt_name_rows(ax_ckpt_diff *diff, int first, const manifest *m);
/* Sorts the rows from `first` on by key. */
void ckpt_sort_rows(ax_ckpt_diff *diff, int first);

/* ---- find.c: names in a run directory ---- */

/* Returns N of "step-N", or -1. */
int64_t ckpt_step_of(const char *name);
/* Deletes RUN/ckpt/`name`. First renames it to a hidden name, so that after a kill no half-deleted checkpoint
 * looks whole. */
ax_status ckpt_delete(const char *run_dir, const char *name);

#endif
