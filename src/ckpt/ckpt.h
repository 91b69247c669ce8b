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

/* ---- convert.c: elements, and boxes cut into pieces ---- */

/* Whether values of one dtype can be converted to the other. */
bool ckpt_convertible(ax_dtype from, ax_dtype to);
/* dst[i·dst_stride] = src[i·src_stride], i < n; strides in elements. The dtypes are convertible. */
void ckpt_convert(ax_dtype dst_dtype, void *dst, int64_t dst_stride, ax_dtype src_dtype, const void *src,
                  int64_t src_stride, int64_t n);
/* Returns the number of infinite values among n floats. */
int64_t ckpt_count_infinite(ax_dtype dtype, const void *data, int64_t n);
/* dst[j,i] = src[i,j] for a rows × cols source with row strides in elements. */
void ckpt_transpose(ax_dtype dst_dtype, void *dst, int64_t dst_stride, ax_dtype src_dtype, const void *src,
                    int64_t src_stride, int64_t rows, int64_t cols);

/* Goes through a box of extents n[] in pieces: sub-boxes of at most `limit` elements, each contiguous in the
 * row-major order of the box and following the one before. */
typedef struct ckpt_pieces {
    int ndim, split; /* a piece has extent 1 in dims before `split`, and the full extent in dims after it */
    int64_t extent[AX_ST_MAX_DIMS], chunk;
    bool done;
    int64_t lo[AX_ST_MAX_DIMS], n[AX_ST_MAX_DIMS]; /* the current piece */
    int64_t first, count; /* offset of the piece in the box and its size, in elements */
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
    int64_t data; /* offset of the first array */
    int64_t size; /* bytes of the file */
} st_file;

struct ax_st {
    int n, files;
    ax_st_array *array; /* ascending by key; keys are owned */
    st_file *file;
    char *index; /* path of the index; NULL: one file without an index */
    bool planned;
    ax_region staging;
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
/* Returns the row of an array's dtype; NULL if safetensors has no such dtype. */
const st_dtype *st_dtype_of_array(const ax_st_array *a);
/* Prints a shape as "[2, 3]"; ST_SHAPE_TEXT is enough for any shape. */
enum { ST_SHAPE_TEXT = 22 * AX_ST_MAX_DIMS + 3 };
char *st_shape_print(int ndim, const int64_t *dim, char out[ST_SHAPE_TEXT]);

/* Reads and checks the header of `path`, and adds its arrays to the store as those of its next file. */
ax_status st_header_read(ax_st *st, const char *path);
/* Appends the header of file `file` of a planned store: the length, then the padded JSON. */
ax_status st_header_print(const ax_st *st, int file, ax_buf *out);
/* Sorts the arrays by key; AX_ERR_DATA if two arrays have the same key. */
ax_status st_sort(ax_st *st);
/* Reads `bytes` bytes of an array from its byte `first` on, without conversion. */
ax_status st_read_raw(ax_st *st, const ax_st_array *a, int64_t first, int64_t bytes, void *out);
/* Opens STEM.safetensors or the shards of STEM's index in `dir`. */
ax_status st_open_dir(const char *dir, const char *stem, ax_st **out);
ax_status st_file_open(ax_st *st, int file);
/* Appends the index of a planned store as JSON. */
ax_status st_index_print(const ax_st *st, ax_buf *out);

/* ---- sum.c ---- */

/* Replaces v[i] by its sum over all ranks mod 2^64; v is in host memory. */
ax_status ckpt_sum(ax_ctx *ctx, uint64_t *v, int64_t n);

/* ---- items.c: distributed arrays and their places in files ---- */

typedef struct ckpt_item {
    const char *name;    /* name of the parameter */
    char *key;           /* key in the file; owned */
    ax_tensor tensor;    /* its data is NULL on ranks of other pipeline stages */
    ax_param_file place; /* ndim, dim, lo, transpose filled in; its key is not used */
} ckpt_item;

typedef struct ckpt_items {
    int n;
    ckpt_item *item;
} ckpt_items;

/* Lists an item for the master weights of each parameter. The item's place says which array of the model
 * files holds them, and which part of that array. */
ax_status ckpt_items_model(const ax_param_set *set, ckpt_items *out);
/* Lists the optimizer state as "SLOT."+name and, with `master`, the master weights as "master."+name, each as
 * a whole array. */
ax_status ckpt_items_training(const ax_param_set *set, const char *const *slot_names, bool master,
                              ckpt_items *out);
void ckpt_items_fini(ckpt_items *items);
/* Plans the store for the arrays of these items, stored as `dtype` (AX_DTYPE_COUNT: in the dtypes of the
 * items). AX_ERR_USAGE if the items of one array overlap or leave a gap. */
ax_status ckpt_items_plan(const ckpt_items *items, ax_dtype dtype, const char *dir, const char *stem,
                          int64_t shard_bytes, ax_st **out);
/* Write and read this rank's part (box) of every item. Not collective. */
ax_status ckpt_items_write(ax_ctx *ctx, const ckpt_items *items, ax_st *st);
ax_status ckpt_items_read(ax_ctx *ctx, const ckpt_items *items, ax_st *st, const ax_ckpt_rules *rules);
/* Finds the array whose key is `key`, or `key` with `prefix` added or removed; NULL if there is none.
 * `prefix` may be NULL. */
const ax_st_array *ckpt_find_array(const ax_st *st, const char *key, const char *prefix);
/* Sets sums[i] to the checksum of item i over all ranks. Collective along the grid. */
ax_status ckpt_items_checksum(ax_ctx *ctx, const ckpt_items *items, uint64_t *sums);

/* ---- manifest.c ---- */

typedef struct manifest_file {
    char *name; /* relative to the checkpoint */
    int64_t bytes;
    uint64_t xxh3;
} manifest_file;

typedef struct manifest {
    int64_t step, serial;
    double time;
    int64_t bytes; /* bytes of all files */
    int n;
    manifest_file *file;
    json_t *params; /* name → {"dtype", "sum"} and, if model files name it otherwise, "key" */
} manifest;

/* Writes training/manifest.json of `dir` and syncs it. */
ax_status manifest_write(const char *dir, const manifest *m);
/* Reads the manifest. AX_ERR_DATA if the file is missing, or if any bit has changed since it was written. */
ax_status manifest_read(const char *dir, manifest *out);
void manifest_fini(manifest *m);
#define MANIFEST "training/manifest.json"
/* The suffix of a checkpoint that is being replaced: .step-N.was */
#define CKPT_WAS ".was"
/* Computes the XXH3-64 of a whole file, and its size. */
ax_status manifest_hash_file(const char *path, int64_t *bytes, uint64_t *hash);
/* Compares size and checksum of a file with the manifest. AX_ERR_DATA if they differ. */
ax_status manifest_check_file(const char *dir, const manifest_file *f);

/* ---- diff_names.c ---- */

/* Renames the rows from `first` on, which compare files of training/: the name of a parameter is replaced by
 * the key of its weights in model files, if the manifest has that key. */
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
