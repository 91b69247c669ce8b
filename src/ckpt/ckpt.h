/* Private header of the files in src/ckpt: safetensors files and checkpoints. Read axonn/ckpt.h first. */
#ifndef AXONN_CKPT_PRIVATE_H
#define AXONN_CKPT_PRIVATE_H

#include "axonn/ckpt.h"
#include "axonn/json.h"

#include <jansson.h>

/* ---- path.c ---- */

/* Formats a path; the caller frees *out. */
ax_status ckpt_path(char **out, const char *fmt, ...) AX_PRINTF(2, 3);
/* Returns the names in a directory (ax_dir_list); none if it cannot be listed. */
ax_strings ckpt_names(const char *dir);

/* ---- convert.c: converts elements, and cuts boxes into pieces ---- */

/* A box is a rectangular part of an array: the elements with indices in [lo, lo + n). */

/* Returns true if values of dtype `from` can be converted to dtype `to`. */
bool ckpt_convertible(ax_dtype from, ax_dtype to);
/* Converts n elements between two dtypes for which ckpt_convertible is true: dst[i·dst_stride] =
 * src[i·src_stride]. Strides are in elements. */
void ckpt_convert(ax_dtype dst_dtype, void *dst, int64_t dst_stride, ax_dtype src_dtype, const void *src,
                  int64_t src_stride, int64_t n);
/* Returns the number of infinite values among n elements of a float dtype. */
int64_t ckpt_count_infinite(ax_dtype dtype, const void *data, int64_t n);
/* Transposes and converts a matrix `src` of rows × cols elements: dst[j,i] = src[i,j]. dst_stride and
 * src_stride are the distances between rows of `dst` and of `src`, in elements. */
void ckpt_transpose(ax_dtype dst_dtype, void *dst, int64_t dst_stride, ax_dtype src_dtype, const void *src,
                    int64_t src_stride, int64_t rows, int64_t cols);

/* Iterator that cuts a box of extents n[] into pieces. A piece is a sub-box of at most `limit` elements that
 * is contiguous in the row-major order of the box. Each piece begins where the piece before it ends. */
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

/* Returns the checksum of a box: the sum, mod 2^64, of a hash for each element. The hash depends on the
 * element's index in the whole array and on its bits. The box is [lo, lo + n) of an array of extents `dim`;
 * `data` holds its elements densely, in row-major order. */
uint64_t ckpt_checksum(ax_dtype dtype, int ndim, const int64_t *dim, const int64_t *lo, const int64_t *n,
                       const void *data);

/* ---- store.c, header.c: safetensors ---- */

typedef struct st_file {
    char *path;
    int fd;       /* file descriptor; -1: not open yet */
    bool written; /* data were written to `fd` since the last fsync */
    int64_t data; /* byte offset of the first array in the file */
    int64_t size; /* size of the file in bytes */
} st_file;

struct ax_st {
    int n, files;
    ax_st_array *array; /* sorted by key, ascending; the store owns the keys */
    st_file *file;
    char *index;       /* path of ….safetensors.index.json, which lists the shards; NULL: one file */
    char *remark;      /* what is unusual about the shards (ax_st_remark); NULL: nothing */
    bool planned;      /* the store is for writing: ax_st_plan created it */
    json_t *metadata;  /* "__metadata__" of the first header that has it: a JSON object of strings; or NULL */
    ax_region staging; /* host buffer of AX_ST_STAGING bytes, allocated when it is first used */
};

enum { ST_HEADER_MAX = 100000000 }; /* bytes; the reference implementation of safetensors has this limit */

/* A dtype of the safetensors format; header.c has the table of all of them. */
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
/* Appends to `out` the safetensors header of file number `file` of a planned store: the length of the JSON,
 * then the JSON, padded with spaces. */
ax_status st_header_print(const ax_st *st, int file, ax_buf *out);
/* Moves the arrays of a planned store so that they begin where the headers end. Called when the lengths of
 * the headers become known or change. */
ax_status st_place_data(ax_st *st);
#define CKPT_BASE "axonn_base" /* metadata member: checksum of an adapter's base model */
/* Sorts the arrays by key; AX_ERR_DATA if two arrays have the same key. */
ax_status st_sort(ax_st *st);
/* Reads `bytes` bytes of an array from its byte `first` on, without conversion. */
ax_status st_read_raw(ax_st *st, const ax_st_array *a, int64_t first, int64_t bytes, void *out);
/* Opens STEM.safetensors in `dir`, or else the shards that STEM.safetensors.index.json in `dir` lists, or
 * else all shards STEM-00001-of-0000K.safetensors … (shards.c). */
ax_status st_open_dir(const char *dir, const char *stem, ax_st **out);
/* Returns the K of the shards STEM-…-of-0000K.safetensors in `dir`; 0: there are none; -1: their Ks differ.
 */
int st_count_shards(const char *dir, const char *stem);
ax_status st_file_open(ax_st *st, int file);
/* Appends to `out` the index of a planned store, the contents of STEM.safetensors.index.json. */
ax_status st_index_print(const ax_st *st, ax_buf *out);

/* ---- lacks.c: what a directory holds in place of a model ---- */

/* Fail because `dir` has no weights, or is not the directory of a model, an adapter or a run. The message
 * says what it holds instead, and what to do. */
ax_status ckpt_refuse_weights(const char *dir, const char *stem);
ax_status ckpt_refuse_dir(const char *dir);
/* Returns true if `dir`, or the hub's cache to which it belongs, has files of a download that did not end. */
bool ckpt_is_unfinished(const char *dir);
/* Fails if a link in `dir` that would be read leads to nothing: a missing file would otherwise seem to be
 * left out on purpose. */
ax_status ckpt_check_links(const char *dir);

/* ---- hub.c: the cache of the Hugging Face hub ---- */

/* If `path` is a folder models--ORG--NAME of the hub's cache (or its snapshots/), sets *out to the snapshot
 * that refs/main names or, without refs/main, to the only snapshot. Otherwise sets *out to NULL. */
ax_status ckpt_find_snapshot(const char *path, char **out);
/* Fails because `path` does not exist. The message helps if `path` is the name of a model on the hub. */
ax_status ckpt_refuse_path(const char *path);

/* ---- sum.c ---- */

/* Replaces v[i] by its sum over all ranks mod 2^64; v is in host memory. Collective over ctx->world. */
ax_status ckpt_sum(ax_ctx *ctx, uint64_t *v, int64_t n);

/* ---- items.c: distributed arrays and their places in files ---- */

enum { CKPT_KEY = 512 }; /* room for the key of an array that a spread item has */

typedef struct ckpt_item {
    const char *name;            /* name of the parameter */
    char *key;                   /* key of the array in the file; owned */
    ax_tensor tensor;            /* shape, dtype and layout; no data */
    const ax_param_state *state; /* the array of state that the item is; NULL if this rank does not own the
                                    parameter (ax_param_is_owned), for instance because another pipeline stage
                                    owns it */
    ax_param_file place; /* which part (box) of the file's array holds the tensor; place.key is not used, and
                            place.fused belongs to the parameter */
} ckpt_item;

/* Returns the number of arrays that hold the item: place.spread, or 1. ckpt_item_key writes the key of array
 * number `index`. */
int64_t ckpt_item_arrays(const ckpt_item *item);
void ckpt_item_key(const ckpt_item *item, int64_t index, char out[CKPT_KEY]);

typedef struct ckpt_items {
    int n;
    ckpt_item *item;
} ckpt_items;

/* Lists the master weights of all frozen parameters (`frozen` true) or of all others (false), one item each.
 * An item's key is the key of the array in model files that holds the weights; item.place is the part of this
 * array. */
ax_status ckpt_items_model(const ax_param_set *set, bool frozen, ckpt_items *out);
/* Lists the optimizer state of all parameters that are not frozen: one item for each state array, with key
 * SLOT.NAME, such as "exp_avg.wte". With `master`, also lists the master weights, with key master.NAME. Each
 * item is a whole array of the file. */
ax_status ckpt_items_training(const ax_param_set *set, const char *const *moment_names, bool master,
                              ckpt_items *out);
void ckpt_items_fini(ckpt_items *items);
/* Plans the safetensors files (ax_st_plan) for the arrays of these items, stored as `dtype` (AX_DTYPE_COUNT:
 * in the dtypes of the items). AX_ERR_USAGE if the items of one array overlap, or if they leave a gap and
 * place.sparse is false. */
ax_status ckpt_items_plan(const ckpt_items *items, ax_dtype dtype, const char *dir, const char *stem,
                          int64_t shard_bytes, ax_st **out);
/* ckpt_items_write writes this rank's part (box) of each item, unless an earlier rank has the same box.
 * ckpt_items_read reads this rank's box of each item. Neither is collective. */
ax_status ckpt_items_write(ax_ctx *ctx, const ckpt_items *items, ax_st *st);
ax_status ckpt_items_read(ax_ctx *ctx, const ckpt_items *items, ax_st *st, const ax_ckpt_rules *rules);
/* Lists the master weights of those of n parameters that are frozen, or of the others. */
ax_status ckpt_items_list(ax_param *const *params, int n, bool frozen, ckpt_items *out);
/* Computes which box of the file's array corresponds to the box [lo, lo + n) of the tensor. */
void ckpt_place_box(const ckpt_item *item, const int64_t *lo, const int64_t *n, int64_t *file_lo,
                    int64_t *file_n);
/* Checks that the item's tensor fits its place in the file's array. */
ax_status ckpt_check_place(const ckpt_item *item);
/* Sets sums[i] to the checksum of item i over all ranks. Collective over ctx->world. */
ax_status ckpt_items_checksum(ax_ctx *ctx, const ckpt_items *items, uint64_t *sums);

/* ---- names.c: names of arrays in messages ---- */

enum { NAME_GROUPS = 32, NAME_WHAT = 512 };

/* Arrays whose names differ in the number of the block only. */
typedef struct name_group {
    const char *key, *after; /* name of the first array; its part after the number */
    size_t before;           /* length of its part before the number */
    int64_t first, last;     /* numbers of blocks; -1: the name has no number */
    int count;
    bool whole, same; /* the names may differ after the number too; they do not */
    char what[2][NAME_WHAT];
} name_group;

typedef struct name_list {
    int n, count; /* number of groups kept, of names in all */
    name_group group[NAME_GROUPS];
} name_list;

/* Adds an array to the group of equal names and equal `what` (said of one array, and of several). `whole`: to
 * the group of all arrays whose names have the same part before the number. */
void names_add(name_list *list, const char *key, const char *const what[2], bool whole);
ax_status names_print(const name_group *group, ax_buf *out);

/* ---- match.c ---- */

/* Sets found[i] to the array of item i, or to the first one of a spread item. The errors and `left` are those
 * of ax_ckpt_match. */
ax_status ckpt_match(const ckpt_items *items, const ax_st *st, const ax_ckpt_rules *rules,
                     const ax_st_array **found, ax_buf *left);

/* ---- manifest.c ---- */

typedef struct manifest_file {
    char *name; /* path relative to the checkpoint's directory */
    int64_t bytes;
    uint64_t xxh3;
} manifest_file;

typedef struct manifest {
    int64_t step, serial; /* serial: number of the save; the newest checkpoint of a run has the highest */
    double time;
    int64_t bytes; /* total size of the files in `file`; set by manifest_read */
    int n;
    manifest_file *file;
    json_t *params; /* object: name of each parameter that is not frozen → {"dtype", "sum", "key"}. "key" is
                       the key of the parameter's array in model files; without a "key" it is the name */
} manifest;

/* Writes training/manifest.json of `dir` and syncs it. */
ax_status manifest_write(const char *dir, const manifest *m);
/* Reads the manifest. AX_ERR_DATA if the file is missing or has another version, or if any bit of the
 * manifest has changed since it was written. */
ax_status manifest_read(const char *dir, manifest *out);
void manifest_fini(manifest *m);
#define MANIFEST "training/manifest.json"
/* Suffix of the directory name .step-N.was. An older checkpoint step-N has this name while a new checkpoint
 * of the same step replaces it. */
#define CKPT_WAS ".was"
/* Computes the XXH3-64 of a whole file, and its size. */
ax_status manifest_hash_file(const char *path, int64_t *bytes, uint64_t *hash);
/* Compares size and checksum of a file with the manifest. AX_ERR_DATA if they differ. */
ax_status manifest_check_file(const char *dir, const manifest_file *f);

/* ---- diff_names.c ---- */

/* Renames the rows of optimizer state in a comparison, those from `first` on. Replaces the name of each
 * parameter by the key of its weights in model files, if the manifest has that key. Then sorts these rows and
 * merges rows with equal keys. */
ax_status ckpt_name_rows(ax_ckpt_diff *diff, int first, const manifest *m);
/* Sorts the rows from `first` on by key. */
void ckpt_sort_rows(ax_ckpt_diff *diff, int first);

/* ---- find.c: names in a run directory ---- */

/* Returns N for the directory name "step-N", -1 for other names. */
int64_t ckpt_step_of(const char *name);
/* Deletes RUN/ckpt/`name`. First renames it to a hidden name, so that after a kill no half-deleted checkpoint
 * looks whole. */
ax_status ckpt_delete(const char *run_dir, const char *name);

#endif
