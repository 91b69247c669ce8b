/* config: the configuration of a training run, as one struct with a field for each key.
 *
 * The rows of axonn/config.def are the only description of the keys: fields, defaults, legal values, help,
 * man page, `axonn info --options`, and what a resumed run may change, come from them. Nothing here is
 * collective. */
#ifndef AXONN_CONFIG_H
#define AXONN_CONFIG_H

#include "axonn/grid.h"
#include "axonn/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of keys that accept a word and have no type elsewhere. The enumerators of each type are in the order
 * of these words (`choices` in axonn/config.def). */
typedef enum ax_config_precision { AX_CONFIG_FP32, AX_CONFIG_BF16, AX_CONFIG_FP16 } ax_config_precision;
typedef enum ax_config_method { AX_CONFIG_FULL, AX_CONFIG_LORA } ax_config_method;
typedef enum ax_config_loss { AX_CONFIG_AUTO, AX_CONFIG_ANSWERS, AX_CONFIG_ALL } ax_config_loss;
typedef enum ax_config_order { AX_CONFIG_SHUFFLED, AX_CONFIG_SEQUENTIAL } ax_config_order;
typedef enum ax_config_nonfinite { AX_CONFIG_STOP, AX_CONFIG_SKIP } ax_config_nonfinite;
typedef enum ax_config_grid_choice { AX_CONFIG_GRID_KEYS, AX_CONFIG_GRID_AUTO } ax_config_grid_choice;
typedef enum ax_config_recompute_comm { AX_CONFIG_AGAIN, AX_CONFIG_KEEP } ax_config_recompute_comm;
/* Values of the key train.recompute that are words: none; full (recompute each block in backward); auto (none
 * if the memory is enough, else the N that needs least). Otherwise the value is N > 0: store the input of
 * every N blocks, and recompute the blocks. */
enum { AX_CONFIG_RECOMPUTE_NONE = -1, AX_CONFIG_RECOMPUTE_FULL = -2, AX_CONFIG_RECOMPUTE_AUTO = -3 };

/* What a resumed run does with a key. */
typedef enum ax_config_resume {
    AX_RESUME_FREE,    /* may change it */
    AX_RESUME_LOGGED,  /* may change it; the log says so */
    AX_RESUME_RUN,     /* must keep it; a new run from a checkpoint (train.resume: PATH) may change it */
    AX_RESUME_WEIGHTS, /* must keep it, and a new run from a checkpoint too */
    AX_RESUME_MODEL    /* as AX_RESUME_WEIGHTS; compared with the config.json of the checkpoint's model */
} ax_config_resume;

/* The values of all keys: a member for each key of axonn/config.def, cfg->train.steps for train.steps. */
typedef struct ax_config {
#define AX_FIELD_BOOL(name) bool name;
#define AX_FIELD_INT(name) int64_t name;
#define AX_FIELD_FLOAT(name) double name;
#define AX_FIELD_QUOTA(name) ax_quota name;
#define AX_FIELD_STRING(name) char *name;
#define AX_FIELD_PATH(name) char *name;
#define AX_FIELD_ENUM(name) int name;
#define AX_FIELD_FLOATS(name) double name[2];
#define AX_FIELD_INTS(name) ax_ints name;
#define AX_FIELD_STRINGS(name) ax_strings name;
#define AX_FIELD_PATHS(name) ax_paths name;
#define AX_GROUP(name) struct {
/* clang-format off */
#define AX_END(name) } name;
/* clang-format on */
#define AX_ROW(key, path, name, type, resume, ...) AX_FIELD_##type(name)
#include "axonn/config.def"
    ax_runtime_values runtime; /* settings of the process (keys runtime.*): what the user gave, or the
                                  default; ax_runtime_get returns the value in use */
    ax_option_set *set;        /* the option set that has read the values and knows where each was set
                                  (ax_option_place) */
    ax_offload_memory memory;  /* of the devices: AX_OFFLOAD_BY_DEVICE, unless the run is planned for those of
                                  a described machine (axonn plan --machine) */
    int64_t scratch; /* then also bytes of scratch memory of its kernels; 0: those of this machine's */
} ax_config;

/* Returns the table of all keys; *count is their number. */
const ax_option *ax_config_options(size_t *count);
/* Returns what a resumed run does with row number `row` of this table. */
ax_config_resume ax_config_resumes(size_t row);
/* Returns the names that other programs give to keys and to flags of the verbs, for ax_option_take_synonyms.
 */
const ax_option_synonym *ax_config_synonyms(size_t *count);

/* The purpose for which a configuration is loaded: to train; to measure speed; to plan; or to search for a
 * layout, which planning does too with grid: auto. All but training do without the key data.train. A search
 * chooses train.micro_batch and train.recompute if they are not given, so their defaults break no rule. */
typedef enum ax_config_use {
    AX_CONFIG_TO_TRAIN,
    AX_CONFIG_TO_MEASURE,
    AX_CONFIG_TO_PLAN,
    AX_CONFIG_TO_SEARCH
} ax_config_use;

/* Reads the file `path` (NULL: none) and then n "key=value" overrides, and checks each value and the rules
 * over several keys. Overwrites *cfg, which must keep its address afterwards, because cfg->set points to it.
 * The caller releases *cfg with ax_config_fini, also after an error. If model.from or model.config is given,
 * the caller sets the model.* values that the user did not give (ax_config_given) from the model's
 * config.json, which this function reads only if there are errors, to report all errors together.
 * AX_ERR_USAGE, whose message lists all errors; AX_ERR_DATA if the file cannot be read. */
AX_MUST_CHECK ax_status ax_config_load(const char *path, char *const *overrides, size_t n, ax_config_use use,
                                       ax_config *cfg);
void ax_config_fini(ax_config *cfg);

/* Makes the grid one of `ranks` ranks: those that its other axes leave over divide the batch, along axis data
 * (with strategy fsdp: z), unless the user gave that axis a size. AX_ERR_USAGE if the grid then has another
 * number of ranks, in which case the message gives the nearest grids that fit; or if the batch cannot be
 * divided so. */
AX_MUST_CHECK ax_status ax_config_take_ranks(ax_config *cfg, int ranks);

/* Returns true if the user gave the key, in the file or on the command line. */
bool ax_config_given(const ax_config *cfg, const char *key);

/* Returns the grid of the keys grid.x, grid.y, grid.z, grid.pipe, grid.data and grid.expert. */
ax_grid_size ax_config_grid(const ax_config *cfg);
/* ax_config_dtype and ax_config_dtype_name return the dtype of an ax_config_precision and its name in the
 * configuration ("bf16"; NULL after the last), ax_config_dtype_of the dtype of such a name (NULL:
 * AX_DTYPE_COUNT). */
ax_dtype ax_config_dtype(int precision);
const char *ax_config_dtype_name(int precision);
ax_dtype ax_config_dtype_of(const char *name);
/* Returns true if pipe.schedule can run a step that is cut into micro-batches of `micro_batch` rows. */
bool ax_config_fits_pipe(const ax_config *cfg, int64_t micro_batch);

/* Appends the configuration as YAML, with defaults filled in, but without the runtime settings on which
 * results do not depend. Loading this YAML gives the identical struct, except for those settings. */
AX_MUST_CHECK ax_status ax_config_dump(const ax_config *cfg, ax_buf *out);

#ifdef __cplusplus
}
#endif
#endif
