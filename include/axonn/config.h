/* The configuration of a training run: the keys that users write, as one struct.
 *
 * The table behind it (ax_config_options) is the only description of the keys: defaults, legal values, help,
 * man page and `axonn info --options` come from it. Not collective. */
#ifndef AXONN_CONFIG_H
#define AXONN_CONFIG_H

#include "axonn/option.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the order of the words in the table. */
typedef enum ax_config_precision { AX_CONFIG_FP32, AX_CONFIG_BF16, AX_CONFIG_FP16 } ax_config_precision;
typedef enum ax_config_order { AX_CONFIG_SHUFFLED, AX_CONFIG_SEQUENTIAL } ax_config_order;
typedef enum ax_config_nonfinite { AX_CONFIG_STOP, AX_CONFIG_SKIP } ax_config_nonfinite;
/* Values of train.recompute; a positive one is a stride in blocks. */
enum { AX_CONFIG_RECOMPUTE_NONE = -1, AX_CONFIG_RECOMPUTE_FULL = -2 };

typedef struct ax_config {
    struct {
        char *family;                                       /* "gpt2", or NULL if `from` is given */
        char *from;                                         /* directory of an existing model, or NULL */
        int64_t layers, hidden, heads, ffn, vocab, seq_len; /* ffn is resolved: never 0 after loading */
        double dropout;                                     /* as given; the three below are resolved */
        double embd_dropout, resid_dropout, attn_dropout;
        double init_std, norm_eps;
        int activation; /* ax_activation */
        bool tie;
    } model;
    struct {
        ax_paths train, valid;
        char *tokenizer;   /* or NULL */
        char *text_key;    /* of objects of JSON */
        int64_t bad_lines; /* of JSON, which may be left out */
        int order;         /* ax_config_order */
        bool mask_documents;
    } data;
    struct {
        int64_t steps, global_batch, micro_batch, recompute, seed;
        int64_t weight_cache; /* bytes */
        int precision;        /* ax_config_precision */
        int nonfinite;        /* ax_config_nonfinite */
        char *resume;         /* "auto", "none" or a checkpoint's absolute path */
    } train;
    struct {
        char *name, *schedule; /* words of the table */
        double lr, betas[2], eps, momentum, weight_decay, clip, min_lr, decay;
        ax_quota warmup; /* of train.steps */
    } optim;
    struct {
        int64_t data, pipe, x, y, z;
        char *order; /* for ax_grid_order_parse */
    } grid;
    char *strategy; /* a word of the table */
    int64_t zero;
    struct {
        bool oar, ors, oag;
    } overlap;
    struct {
        double timeout; /* seconds */
    } watchdog;
    struct {
        char *dir; /* absolute */
        int64_t checkpoint_interval, keep_latest, eval_interval, eval_batches, log_interval;
        bool eval_start, trace;
        int save_dtype; /* ax_config_precision */
    } run;
    int64_t threads; /* 0: one per physical core */
    char *device;
    ax_option_set *set; /* places of the values */
} ax_config;

/* The keys; *count is their number. */
const ax_option *ax_config_options(size_t *count);

/* What a configuration is read for: to measure steps takes no data. */
typedef enum ax_config_use { AX_CONFIG_TO_TRAIN, AX_CONFIG_TO_MEASURE } ax_config_use;

/* Reads the file `path` (NULL: none) and then n "key=value" overrides, and checks everything, also across
 * keys. *cfg is overwritten, must not move afterwards, and is released with ax_config_fini, whatever the
 * result. With model.from, what the model's own config.json says is not known yet: the caller fills it in
 * where ax_config_given denies. AX_ERR_USAGE with all errors; AX_ERR_DATA if the file cannot be read. */
AX_MUST_CHECK ax_status ax_config_load(const char *path, char *const *overrides, size_t n, ax_config_use use,
                                       ax_config *cfg);
void ax_config_fini(ax_config *cfg);

/* The rules between the grid and a world of `ranks` ranks: AX_ERR_USAGE with the nearest grids that fit. */
AX_MUST_CHECK ax_status ax_config_check_ranks(ax_config *cfg, int ranks);

/* True if the user gave the key, in the file or on the command line. */
bool ax_config_given(const ax_config *cfg, const char *key);

/* Appends the resolved configuration as YAML; loading it gives the identical struct. */
AX_MUST_CHECK ax_status ax_config_dump(const ax_config *cfg, ax_buf *out);

#ifdef __cplusplus
}
#endif
#endif
