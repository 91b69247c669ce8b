/* ckpt: arrays in safetensors files, parameters in such files, and the checkpoints of a run.
 *
 * Three levels, each usable without the next:
 *
 *   ax_st_*     safetensors: one file or a sharded directory, as a table of arrays. Any box of an array (a
 *               rectangular part) can be read or written, with conversion and transposition. The layout of
 *               files follows from the keys, dtypes and extents of the arrays, not from the grid. So every
 *               rank can write its own boxes into files that one rank created.
 *   parameters  reads and writes an ax_param_set in such files: ax_param.file says which array holds each
 *               parameter. If several ranks have the same box, only the first of these ranks writes the box.
 *               Every rank reads its own box, so a checkpoint can be read on any grid.
 *   checkpoints RUN/ckpt/step-N/ is a complete model directory plus training/: optimizer state, the caller's
 *               state.json, and manifest.json with size and checksum of every other file (except
 *               adapter_config.json, which users may change). A checkpoint is written under a temporary name,
 *               synced and renamed; RUN/latest names the newest one. After a kill at any moment the previous
 *               or the new checkpoint can be loaded.
 *
 * Errors of files are AX_ERR_DATA and name the file and, if one array causes the error, its key. */
#ifndef AXONN_CKPT_H
#define AXONN_CKPT_H

#include "axonn/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors --------------------------------------------------------------------------------- */

enum { AX_ST_MAX_DIMS = 8 };

/* An array of a file: row-major, little-endian, extents `dim` (none: a scalar). */
typedef struct ax_st_array {
    const char *key;        /* name of the array; unique in its file or shards */
    const char *dtype_name; /* as in the file: "F32", "BF16", "BOOL", … */
    ax_dtype dtype; /* AX_DTYPE_COUNT: a dtype that is not in ax_dtype; the array can be listed and copied,
                       but not read */
    int ndim;
    int64_t dim[AX_ST_MAX_DIMS];
    int file;              /* which file of the store has the array: its index, from 0 */
    int64_t offset, bytes; /* where the array begins in that file, and its size */
} ax_st_array;

/* A store: one safetensors file, or all the shards of a directory. Each rank opens the store itself. */
typedef struct ax_st ax_st;

/* Opens a .safetensors file for reading. If `path` is a directory, opens its model.safetensors or, if there
 * is none, the shards that its model.safetensors.index.json lists, or without an index all shards
 * model-0000I-of-0000K.safetensors; in an adapter's directory (ax_ckpt_is_adapter), all names begin with
 * adapter_model instead of model. Headers, offsets and sizes must agree to the byte. All arrays of the shards
 * count; of an array that is in several shards the copy that the index names. AX_ERR_DATA if a file is
 * damaged, missing or cannot be read. Not collective. The caller owns *out. */
AX_MUST_CHECK ax_status ax_st_open(const char *path, ax_st **out);
/* Returns one line that says in which points the index and the shards of a store do not agree, and what was
 * done about it; NULL if they agree. Valid until ax_st_close. */
const char *ax_st_remark(const ax_st *st);
void ax_st_close(ax_st **st);

int ax_st_count(const ax_st *st);
/* Returns array number `index` in ascending order of keys; valid until ax_st_close. */
const ax_st_array *ax_st_at(const ax_st *st, int index);
/* Returns the array with this key, or NULL. */
const ax_st_array *ax_st_find(const ax_st *st, const char *key);
/* Returns the number of files that hold arrays. */
int ax_st_files(const ax_st *st);
/* Returns the bytes of all files, headers and index included. */
int64_t ax_st_bytes(const ax_st *st);
/* Prints a checksum that identifies the model whose weights a store holds, as 16 hexadecimal digits. It is a
 * hash of the keys, dtypes and shapes of all arrays, and of 4 KiB of bytes at each of 16 places of every
 * array (of all bytes of an array of at most 4 KiB). Not collective. */
AX_MUST_CHECK ax_status ax_st_checksum(ax_st *st, char out[17]);
/* Returns the checksum that an adapter's file has in its header: that of the adapter's base model. Returns
 * NULL if there is none: adapters of other programs have no such checksum. */
const char *ax_st_base(const ax_st *st);
/* Returns the number of elements of an array. */
int64_t ax_st_elements(const ax_st_array *array);

/* Reads the box [lo, lo + n) of the array (lo and n NULL: the whole array; lo and n have the array's dim
 * order, not the transposed one) into `out` as `dtype`, dense and row-major in host memory; with `transpose`
 * (2 dims) out[j,i] is array[i,j]. F64, F32, BF16 and F16 convert into one another, rounding to nearest even;
 * other dtypes can only be read without conversion. Besides `out`, reading needs at most AX_ST_STAGING bytes
 * of memory. Not collective. AX_ERR_DATA if the file cannot be read; AX_ERR_USAGE for a conversion that does
 * not exist. */
AX_MUST_CHECK ax_status ax_st_read(ax_st *st, const ax_st_array *array, const int64_t *lo, const int64_t *n,
                                   bool transpose, ax_dtype dtype, void *out);

enum { AX_ST_STAGING = 2 << 20 }; /* bytes of host memory that a store needs to read and write */
enum { AX_ST_SAME_FILES = -1 };   /* as `shard_bytes` of ax_st_plan */

/* Plans a store of `n` arrays in `dir`. The caller gives key, dtype, ndim and dim of each array, and
 * dtype_name if dtype is AX_DTYPE_COUNT. The store is one file STEM.safetensors if the arrays have at most
 * `shard_bytes` bytes (0: 5 GB, as in transformers). Otherwise it is shards STEM-00001-of-0000K.safetensors
 * and an index STEM.safetensors.index.json; an array larger than `shard_bytes` has a shard of its own. Arrays
 * fill shards in the order given. If `shard_bytes` is AX_ST_SAME_FILES, the caller also gives `file` of each
 * array, and neighbours with the same `file` share a shard. Touches no file. Not collective. The caller owns
 * *out. AX_ERR_USAGE for duplicate keys. */
AX_MUST_CHECK ax_status ax_st_plan(const char *dir, const char *stem, const ax_st_array *arrays, int n,
                                   int64_t shard_bytes, ax_st **out);
/* Gives the planned store `to`, whose files do not exist yet, the metadata in the headers of `from` (those of
 * its first file that has some). Not collective. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_st_keep_metadata(ax_st *to, const ax_st *from);
/* Adds a text to the metadata of a planned store whose files do not exist yet. Not collective.
 * AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_st_note(ax_st *st, const char *key, const char *value);
/* Returns a text in the metadata of a store, or NULL. Valid until ax_st_close. */
const char *ax_st_noted(const ax_st *st, const char *key);
/* Creates the planned files at their full size, with headers and index. One rank calls this function before
 * any rank writes. Not collective. AX_ERR_DATA also when the disk has no room. */
AX_MUST_CHECK ax_status ax_st_make(ax_st *st);
/* Writes a box of the array from host memory `data` of dtype `dtype`: the inverse of ax_st_read. The store
 * was planned (ax_st_plan) and its files were created (ax_st_make). Boxes of different ranks must not
 * overlap. Not collective. */
AX_MUST_CHECK ax_status ax_st_write(ax_st *st, const ax_st_array *array, const int64_t *lo, const int64_t *n,
                                    bool transpose, ax_dtype dtype, const void *data);
/* Copies `count` elements of array `a` of `from`, from element `first` on in row-major order, to the same
 * elements of array `b` of `to`, a planned store whose files exist. F64, F32, BF16 and F16 convert into one
 * another as in ax_st_read; *overflows grows by the number of finite elements that became infinite. Other
 * dtypes are copied bit by bit, and must be the same in both arrays. If an element has fewer than 8 bits,
 * `first` and `count` must correspond to whole bytes. The copy needs 2 · AX_ST_STAGING bytes of memory. Not
 * collective. AX_ERR_DATA if a file cannot be read or written; AX_ERR_USAGE for a conversion that does not
 * exist. */
AX_MUST_CHECK ax_status ax_st_copy(ax_st *from, const ax_st_array *a, ax_st *to, const ax_st_array *b,
                                   int64_t first, int64_t count, int64_t *overflows);
/* Syncs the files that were made or written to through `st`. Not collective. */
AX_MUST_CHECK ax_status ax_st_sync(ax_st *st);

/* ---- parameters ---------------------------------------------------------------------------------- */

/* How the array names (keys) in files of other programs may differ from the names that a model expects
 * (ax_param.file.key). */
typedef struct ax_ckpt_rules {
    const char *prefix;        /* a prefix that keys in files may have or lack: "transformer."; NULL: none */
    const char *const *ignore; /* shell patterns (*, ?) of keys to ignore without a word */
    int ignores;
    const char *head;  /* key of the output layer's weight, or NULL */
    const char *table; /* key of the token embedding, if the model ties the two: files need only one of them;
                          NULL: the model does not */
    bool strict;       /* arrays that belong to no parameter are mismatches, unless `ignore` names them */
    bool frozen; /* the files hold the frozen parameters (those that training never updates); false: the files
                    hold the parameters that are not frozen */
} ax_ckpt_rules;

/* Writes the master weights (those that the optimizer updates) of parameters that are not frozen as `dtype`
 * into the existing directory `dir`, as model.safetensors or as shards of at most `shard_bytes` bytes
 * (ax_st_plan). Collective along the grid. */
AX_MUST_CHECK ax_status ax_ckpt_write_params(const ax_param_set *set, const char *dir, ax_dtype dtype,
                                             int64_t shard_bytes);

/* Reads the master weights from `path`, a directory or file as for ax_st_open, and converts the arrays to the
 * dtype of the master weights. Call ax_param_set_refresh next. AX_ERR_DATA: parameters are missing or have
 * another shape or a dtype that cannot be converted; an array that belongs to no parameter says how another
 * is quantized; or, if `rules` is NULL or strict, any array belongs to no parameter. The message counts these
 * mismatches, and lists the first 20 (of all blocks together); if there are any, it also lists the arrays
 * that belong to no parameter. Collective along the grid. */
AX_MUST_CHECK ax_status ax_ckpt_read_params(ax_param_set *set, const char *path, const ax_ckpt_rules *rules);
/* Reads the master weights from weight files that are already open, even if their directory has changed
 * since. `rules`, the errors and the call that must follow are as for ax_ckpt_read_params. Collective along
 * the grid. */
AX_MUST_CHECK ax_status ax_ckpt_read_store(ax_param_set *set, ax_st *st, const ax_ckpt_rules *rules);
/* Checks that a store has an array of the right shape for each of the n parameters. With rules->frozen only
 * frozen parameters count, else only parameters that are not frozen. The parameters need no memory.
 * AX_ERR_DATA in the same cases, and with the same list, as from ax_ckpt_read_params. Otherwise appends to
 * `left` (NULL: to nothing) one line on the arrays that belong to no parameter and are not loaded, if there
 * are any that `rules` does not ignore. Not collective. */
AX_MUST_CHECK ax_status ax_ckpt_match(ax_param *const *params, int n, const ax_st *st,
                                      const ax_ckpt_rules *rules, ax_buf *left);

/* Sets the bits (ax_param_prune) of the elements in `box` of a matrix that are not zero in open weight files,
 * as numbers of `dtype`. `prefix` is that of ax_ckpt_rules. The bits are 0 before. Not collective.
 * AX_ERR_DATA if the files lack the array or cannot be read. */
AX_MUST_CHECK ax_status ax_ckpt_read_mask(ax_st *st, const ax_param *param, const char *prefix,
                                          ax_dtype dtype, const ax_box *box, uint64_t *bits);

/* Finds the array whose key is `key`, or `key` with `prefix` added or removed (ax_ckpt_rules); NULL if there
 * is none. `prefix` may be NULL. */
const ax_st_array *ax_ckpt_find_array(const ax_st *st, const char *key, const char *prefix);
/* Sets *same to true if arrays `a` and `b` of `path` have the same dtype (one of ax_dtype), shape and bits,
 * or if one of the arrays is missing; else to false. `prefix`: a prefix that keys in the files may have or
 * lack (ax_ckpt_rules), or NULL. Not collective. AX_ERR_DATA if the files are damaged or cannot be read. */
AX_MUST_CHECK ax_status ax_ckpt_same_arrays(const char *path, const char *a, const char *b,
                                            const char *prefix, bool *same);

/* Computes a checksum of the master weights of each parameter that is not frozen: Σ over elements of a hash
 * of (global index, bits) mod 2^64, which does not depend on the grid. sums[k] is the checksum of the k-th
 * such parameter of the set, the same on every rank; `sums` has room for set->n items. Collective along the
 * grid. */
AX_MUST_CHECK ax_status ax_ckpt_checksums(const ax_param_set *set, uint64_t *sums);

/* ---- checkpoints --------------------------------------------------------------------------------- */

/* A small file, such as config.json or tokenizer.json, that is written to the checkpoint unchanged. */
typedef struct ax_ckpt_file {
    /* NAME, or training/NAME for a file that other programs that read the model should not see. Must not be
     * the name of one of the checkpoint's own files: weights, training/state.json, training/manifest.json,
     * training/optim*. */
    const char *name;
    const void *data;
    size_t size;
} ax_ckpt_file;

typedef struct ax_ckpt_save_args {
    const char *run_dir; /* holds ckpt/ and latest; made if missing */
    int64_t step;
    const ax_param_set *params; /* frozen parameters are not saved */
    /* NULL: save a full model. Otherwise save an adapter (low-rank updates of a base model) as one file
     * adapter_model.safetensors; `base` is the checksum of the base model (ax_st_checksum). */
    const char *base;
    ax_dtype dtype; /* dtype of the weights in model.safetensors. If the master weights have another dtype,
                       they are saved too, unconverted */
    int64_t shard_bytes; /* largest size of a file of weights or of optimizer state (ax_st_plan); 0: 5 GB. An
                            adapter's weights are always one file */
    const char *const *moment_names; /* names of the arrays of optimizer state: "exp_avg", "exp_avg_sq" */
    const ax_ckpt_file *files;
    int n_files;
    const char *state;   /* a JSON object, written unchanged to training/state.json */
    int64_t keep_latest; /* number of checkpoints to keep, this one included; 0: all */
} ax_ckpt_save_args;

/* Writes RUN/ckpt/step-N, points `latest` to this checkpoint, and then removes the oldest checkpoints beyond
 * keep_latest. If saving fails, the new checkpoint is removed, and earlier checkpoints are untouched. If the
 * cause is lack of space, the message names the directory and the bytes needed. Only one job may save into a
 * run at a time. Collective along the grid; if one rank fails, all return an error. `files` and `state` are
 * read on rank 0 only. */
AX_MUST_CHECK ax_status ax_ckpt_save(const ax_ckpt_save_args *args);

/* What a checkpoint takes on the disk. */
typedef struct ax_ckpt_size {
    int64_t bytes;   /* of all files, with directories and the rest of the last block of each file */
    int64_t largest; /* of its largest file of weights or of optimizer state */
} ax_ckpt_size;

/* Computes what the checkpoint that ax_ckpt_save would write takes on the disk; `params` need no values.
 * Touches no file. Not collective; call it on rank 0. */
AX_MUST_CHECK ax_status ax_ckpt_measure(const ax_ckpt_save_args *args, ax_ckpt_size *out);

/* Reads the master weights and the optimizer state from checkpoint directory `dir`: bit for bit, or converted
 * if the dtype of the master weights is now another one. Compares the checksums of parameters whose dtype has
 * not changed with those in the manifest. Call ax_param_set_refresh next. Collective along the grid. */
AX_MUST_CHECK ax_status ax_ckpt_load(ax_param_set *set, const char *dir, const char *const *moment_names,
                                     const ax_ckpt_rules *rules);
/* Reads training/state.json of checkpoint directory `dir` into *json, which the caller frees. Not
 * collective. */
AX_MUST_CHECK ax_status ax_ckpt_read_state(const char *dir, char **json);

/* Removes the files that an interrupted save or deletion left in RUN/ckpt. If a save was interrupted while it
 * replaced an older checkpoint of the same step, gives the older checkpoint its name back. One rank calls
 * this function, while no save runs. */
AX_MUST_CHECK ax_status ax_ckpt_clean(const char *run_dir);

/* ---- finding checkpoints ------------------------------------------------------------------------- */

/* Finds the newest undamaged checkpoint of a run: the one that was saved last, which need not have the
 * highest step. Reads all files of a checkpoint to find damage, and logs a warning for each newer checkpoint
 * that is damaged. *dir is NULL if the run has no checkpoints; AX_ERR_DATA if all are damaged. The caller
 * frees *dir. Not collective. */
AX_MUST_CHECK ax_status ax_ckpt_find_latest(const char *run_dir, char **dir);
/* Finds the checkpoint for the value of `train.resume`: "none" → NULL, "auto" → ax_ckpt_find_latest(run_dir),
 * else the path of a checkpoint, which must be undamaged, or of a run, whose newest checkpoint is taken.
 * AX_ERR_DATA if there is no such checkpoint. */
AX_MUST_CHECK ax_status ax_ckpt_find_resume(const char *run_dir, const char *resume, char **dir);
/* Finds the model directory of a MODEL argument: a Hugging Face directory, an adapter's directory, a
 * checkpoint (which must be undamaged), or a run (its newest checkpoint). AX_ERR_DATA if `path` is none of
 * these. */
AX_MUST_CHECK ax_status ax_ckpt_find_model(const char *path, char **dir);

/* Returns true if a directory is that of an adapter: if it holds adapter_config.json, whatever else it holds,
 * as in transformers. Not collective. */
bool ax_ckpt_is_adapter(const char *dir);
/* Returns true if a directory holds model.safetensors or model.safetensors.index.json. Not collective. */
bool ax_ckpt_has_weights(const char *dir);

/* One checkpoint of a run. */
typedef struct ax_ckpt_info {
    char *dir; /* RUN/ckpt/step-N; owned */
    int64_t step;
    int64_t serial; /* number that gives the order of saving: one more than the highest serial that the run's
                       checkpoints had when this one was saved; 0 if the manifest cannot be read */
    int64_t bytes;  /* size of all files together, from the manifest */
    double time;    /* time at which the checkpoint was saved, in seconds since 1970 */
    bool latest;    /* RUN/latest names this checkpoint */
    char *damage;   /* what is damaged; NULL: no damage found. Files other than the manifest are read only if
                       ax_ckpt_list_create got `verify` true. Owned */
} ax_ckpt_info;

typedef struct ax_ckpt_list {
    int n;
    ax_ckpt_info *item; /* newest (highest serial) first */
} ax_ckpt_list;

/* Lists the run's checkpoints. If `verify` is true, compares the files of each checkpoint with its manifest,
 * up to the first damaged file. Not collective. */
AX_MUST_CHECK ax_status ax_ckpt_list_create(const char *run_dir, bool verify, ax_ckpt_list **out);
void ax_ckpt_list_destroy(ax_ckpt_list **list);

/* A damaged file: it differs from the checkpoint's manifest or, without one, has a wrong structure. */
typedef struct ax_ckpt_fault {
    char *file, *what; /* for example "model.safetensors" and "checksum differs"; owned */
} ax_ckpt_fault;

typedef struct ax_ckpt_report {
    bool manifest; /* false: the directory has no manifest, and only the structure of the model's files was
                      checked */
    int files;     /* number of files checked, the manifest included */
    int64_t bytes; /* size of all files together, from the manifest if there is one */
    int n;         /* number of damaged files */
    ax_ckpt_fault *fault;
    char *remark; /* ax_st_remark of the files; NULL: none */
} ax_ckpt_report;

/* Compares every file that a checkpoint's manifest lists with its size and checksum there; damage is in the
 * report and is not an error. `dir` may also be a model directory or a .safetensors file, of which only the
 * structure is checked. AX_ERR_DATA if `dir` has nothing to verify. Not collective. The caller owns *out. */
AX_MUST_CHECK ax_status ax_ckpt_verify(const char *dir, ax_ckpt_report **out);
void ax_ckpt_report_destroy(ax_ckpt_report **report);

/* ---- comparing models and checkpoints ------------------------------------------------------------ */

typedef enum ax_ckpt_diff_kind {
    AX_DIFF_NONE,   /* the same values */
    AX_DIFF_VALUES, /* at least one value differs */
    AX_DIFF_SHAPE,
    AX_DIFF_DTYPE, /* the dtypes differ, and at least one of them does not convert to F64 */
    AX_DIFF_ONLY_A,
    AX_DIFF_ONLY_B
} ax_ckpt_diff_kind;

typedef struct ax_ckpt_diff_row {
    char *key; /* name of the weight in model files; "training/SLOT.NAME" for an array of its optimizer state,
                  such as "training/exp_avg.NAME"; "config.json:n_layer" for a member of the configuration;
                  owned */
    ax_ckpt_diff_kind kind;
    int64_t elements, differing; /* number of elements of the array; of elements whose values differ (of
                                    bytes, if axonn does not have the dtype) */
    double max_abs; /* largest |a - b|; infinite if exactly one of the two values is NaN, or if values differ
                       whose dtype axonn does not have */
    double max_rel; /* largest |a - b| / max(|a|, |b|) */
    char *a, *b; /* members of the configuration: the two values as JSON; arrays: the two dtypes and shapes,
                    if these differ; owned */
} ax_ckpt_diff_row;

typedef struct ax_ckpt_diff {
    int n, differing; /* number of rows; number of rows whose kind is not AX_DIFF_NONE */
    int common;       /* number of weight arrays that both models have */
    ax_ckpt_diff_row *row;
} ax_ckpt_diff;

/* Compares two models, checkpoints, runs or .safetensors files array by array. Then compares the optimizer
 * state, and config.json (of two adapters: adapter_config.json) member by member, if both models have them.
 * Equal members make no row. `prefixes` are `n_prefixes` prefixes of keys that model files may have or lack
 * (ax_family_prefix). If one model has a key with such a prefix, and the other has the key without the
 * prefix, the two arrays are compared, in a row with the key of `a`. Not collective. The caller owns *out.
 * AX_ERR_DATA if files are damaged or cannot be read, or if one of the two is an adapter's directory and the
 * other a model's. */
AX_MUST_CHECK ax_status ax_ckpt_diff_create(const char *a, const char *b, const char *const *prefixes,
                                            int n_prefixes, ax_ckpt_diff **out);
void ax_ckpt_diff_destroy(ax_ckpt_diff **diff);

#ifdef __cplusplus
}
#endif
#endif
