/* config: the configuration of a training run, as one struct with a field for each key.
 *
 * The table ax_config_options is the only description of the keys: defaults, legal values, help, man page and
 * `axonn info --options` come from it. Nothing here is collective. */
#ifndef AXONN_CONFIG_H
#define AXONN_CONFIG_H

#include "axonn/grid.h"
#include "axonn/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of keys that accept a word. The enumerators of each type are in the order of these words (`choices`
 * in ax_config_options). */
typedef enum ax_config_precision { AX_CONFIG_FP32, AX_CONFIG_BF16, AX_CONFIG_FP16 } ax_config_precision;
typedef enum ax_config_activation { AX_CONFIG_GELU_NEW, AX_CONFIG_GELU, AX_CONFIG_SILU } ax_config_activation;
typedef enum ax_config_method { AX_CONFIG_FULL, AX_CONFIG_LORA } ax_config_method;
typedef enum ax_config_loss { AX_CONFIG_AUTO, AX_CONFIG_ANSWERS, AX_CONFIG_ALL } ax_config_loss;
typedef enum ax_config_order { AX_CONFIG_SHUFFLED, AX_CONFIG_SEQUENTIAL } ax_config_order;
typedef enum ax_config_nonfinite { AX_CONFIG_STOP, AX_CONFIG_SKIP } ax_config_nonfinite;
/* Values of the key train.recompute that are words: none; full (recompute each block in backward); auto (none
 * if the memory is enough, else the N that needs least). Otherwise the value is N > 0: store the input of
 * every N blocks, and recompute the blocks. */
enum { AX_CONFIG_RECOMPUTE_NONE = -1, AX_CONFIG_RECOMPUTE_FULL = -2, AX_CONFIG_RECOMPUTE_AUTO = -3 };

typedef struct ax_config {
    struct {
        char *family; /* name of the model family of a new model, such as "gpt2"; NULL if `from` or `config`
                         is given */
        char *config; /* path of a config.json that describes a new model, or NULL */
        char *from;   /* directory of an existing model, of a checkpoint or of a run; or NULL */
        /* If `family` is given, ax_config_load replaces the value 0 of kv_heads (by `heads`) and of ffn (by
         * ax_model_config_default_ffn). */
        int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, seq_len, window;
        double rope_theta;
        double dropout; /* if given: the rate of those of the three below that are not given */
        double embd_dropout, resid_dropout, attn_dropout;
        double init_std, norm_eps;
        int activation; /* ax_config_activation */
        bool tie;
    } model;
    struct {
        int method; /* ax_config_method */
        int64_t rank;
        double alpha, dropout;
        bool rslora;
        ax_strings targets; /* names of the matrices that get a low-rank update (ax_matrix_name), or of their
                               modules in model files; "all": all matrices of the blocks */
        ax_strings layers;  /* blocks whose matrices get one: numbers from 0, ranges "8-15", or "all" */
    } tune;
    struct {
        ax_paths train, valid;
        char *tokenizer;     /* path of the tokenizer, or NULL */
        char *text_key;      /* name of the JSON member that holds the text; NULL: "text" */
        bool bos;            /* plain text gets the special tokens of the tokenizer's post_processor */
        int64_t bad_lines;   /* as in ax_corpus_options */
        ax_strings ignore;   /* members of conversations that are left out */
        char *chat_template; /* name of the chat template; NULL: ax_chat_create chooses one */
        int loss;            /* ax_config_loss */
        int order;           /* ax_config_order */
        bool mask_documents;
        int pack;   /* ax_data_packing */
        int longer; /* ax_data_long; key data.long */
        struct {
            int64_t k, window;
            int kind; /* ax_goldfish_kind */
        } goldfish;
    } data;
    struct {
        int64_t steps, global_batch, micro_batch, recompute, seed;
        int64_t weight_cache; /* bytes */
        int precision;        /* ax_config_precision */
        int nonfinite;        /* ax_config_nonfinite */
        char *resume;         /* "auto", "none", or the absolute path of a checkpoint or of a run */
    } train;
    struct {
        char *name, *schedule; /* words that the keys optim.name and optim.schedule accept */
        double lr, betas[2], eps, momentum, weight_decay, clip, min_lr, decay;
        ax_quota warmup; /* steps, or a percentage of train.steps */
    } optim;
    struct {
        int64_t data, pipe, x, y, z;
        char *order; /* such as "x,y,z,pipe,data" (ax_grid_order_parse) */
    } grid;
    struct {
        int schedule; /* ax_pipe_schedule */
        int64_t slack, postpone, chunks;
        ax_ints cut; /* item i: index of the first block of pipeline stage i + 1; if stages have several
                        chunks (schedule interleaved), of chunk i + 1 in the order of forward; a single item
                        -1: ax_pipe_cut chooses */
    } pipe;
    char *strategy; /* a word that the key `strategy` accepts */
    int64_t zero;
    struct {
        bool oar, ors, oag;
    } overlap;
    struct {
        double timeout; /* seconds */
    } watchdog;
    struct {
        char *dir; /* absolute path of the run directory */
        int64_t checkpoint_interval, keep_latest, eval_interval, eval_batches, log_interval;
        bool eval_start, trace;
        int save_dtype; /* ax_config_precision */
    } run;
    int64_t threads; /* compute threads per rank; 0: ax_threads_share chooses the number */
    char *device;
    ax_runtime_values runtime; /* settings of the process (keys runtime.*): what the user gave, or the
                                  default; ax_runtime_get returns the value in use */
    ax_option_set *set;        /* the option set that has read the values and knows where each was set
                                  (ax_option_place) */
} ax_config;

/* Returns the table of all keys; *count is their number. */
const ax_option *ax_config_options(size_t *count);
/* Returns the names that other programs give to keys and to flags of the verbs, for ax_option_take_synonyms.
 */
const ax_option_synonym *ax_config_synonyms(size_t *count);

/* The purpose for which a configuration is loaded: to train, or to measure speed. Measuring does not require
 * the key data.train. */
typedef enum ax_config_use { AX_CONFIG_TO_TRAIN, AX_CONFIG_TO_MEASURE } ax_config_use;

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

/* Returns the grid of the keys grid.x, grid.y, grid.z, grid.pipe and grid.data. */
ax_grid_size ax_config_grid(const ax_config *cfg);
/* Return the dtype of an ax_config_precision, and its name in the configuration ("bf16"). */
ax_dtype ax_config_dtype(int precision);
const char *ax_config_dtype_name(int precision);
/* Returns true if pipe.schedule can run a step that is cut into micro-batches of `micro_batch` rows. */
bool ax_config_fits_pipe(const ax_config *cfg, int64_t micro_batch);

/* Appends the configuration as YAML, with defaults filled in, but without the runtime settings on which
 * results do not depend. Loading this YAML gives the identical struct, except for those settings. */
AX_MUST_CHECK ax_status ax_config_dump(const ax_config *cfg, ax_buf *out);

#ifdef __cplusplus
}
#endif
#endif
