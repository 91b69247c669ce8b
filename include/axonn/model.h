/* model: families of transformer language models, built from layers.
 *
 * A family (such as gpt2) is one file of src/model and one line in src/model/families.def. The file reads and
 * writes the family's hyper-parameters in config.json as Hugging Face names them, builds the network, and
 * maps its parameters to arrays in model files. It names roles of dims, never grid axes, so a family runs on
 * any grid. */
#ifndef AXONN_MODEL_H
#define AXONN_MODEL_H

#include "axonn/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_family ax_family;

/* The largest extents of a model. Products of them, and the bytes of such arrays, fit in 64 bits. */
#define AX_LAYERS_MAX 10000
#define AX_HIDDEN_MAX 1048576 /* for hidden and heads */
#define AX_FFN_MAX 4194304
#define AX_VOCAB_MAX 16777216 /* for vocab and seq_len */

/* Dropout rates in training, each in [0, 1]: of the sum of the embeddings, of the output of each residual
 * branch, of the attention probabilities. */
typedef struct ax_model_dropout {
    double embd, resid, attn;
} ax_model_dropout;

typedef struct ax_model_config {
    const ax_family *family;
    int64_t layers, hidden, heads, kv_heads, ffn, vocab, seq_len;
    ax_model_dropout dropout;
    double init_std, norm_eps;
    ax_activation activation;
    bool tie;     /* the head uses the token table as its weight */
    char *source; /* text of the config.json that this was read from, or NULL: ax_model_config_print keeps the
                     keys in it that this program does not know. Owned */
} ax_model_config;

/* Values of config.json that do not describe the network. */
typedef struct ax_model_identity {
    int64_t bos, eos; /* token ids, -1: none */
    ax_dtype dtype;   /* dtype of the stored weights */
} ax_model_identity;

/* The family of that name ("gpt2"), or AX_ERR_USAGE, whose message lists all families. */
AX_MUST_CHECK ax_status ax_family_find(const char *name, const ax_family **out);
int ax_family_count(void);
const char *ax_family_name(int index);
/* How keys in model files of the family may differ from the keys that this program writes: a prefix that they
 * may have, and patterns of keys that loading ignores. */
const char *ax_family_prefix(const ax_family *family);
const char *const *ax_family_ignored(const ax_family *family, int *count);

/* The keys, in model files, of the head's weight and of the token table, which a model may tie. */
void ax_family_tied(const ax_family *family, const char **head, const char **table);

/* Reads the text of a Hugging Face config.json. `path` is used in messages only. The caller releases *out
 * with ax_model_config_fini. AX_ERR_DATA, whose message names the key that is missing, has the wrong type, or
 * requests a feature that is not implemented. Not collective. */
AX_MUST_CHECK ax_status ax_model_config_parse(const char *json, size_t size, const char *path,
                                              ax_model_config *out);
/* Appends a config.json that transformers can read. */
AX_MUST_CHECK ax_status ax_model_config_print(const ax_model_config *config,
                                              const ax_model_identity *identity, ax_buf *out);
AX_MUST_CHECK ax_status ax_model_config_copy(const ax_model_config *config, ax_model_config *out);
void ax_model_config_fini(ax_model_config *config);
const char *ax_model_config_family(const ax_model_config *config);
/* AX_ERR_USAGE, whose message names the value that is out of range or does not fit the others. */
AX_MUST_CHECK ax_status ax_model_config_check(const ax_model_config *config);

/* *total: the number of parameters. *matmul: the number of those used in GEMMs, the head included, embedding
 * lookups not. */
void ax_model_config_params(const ax_model_config *config, int64_t *total, int64_t *matmul);
/* Training FLOPs per token: 6 × matmul parameters + 6 × layers × hidden × seq_len (causal attention), without
 * recomputation. */
double ax_model_config_flops_per_token(const ax_model_config *config, int64_t seq_len);

/* A model, strategy and batch, for which a grid is checked. */
typedef struct ax_grid_load {
    const ax_model_config *model; /* NULL: not known yet; heads are not checked */
    const ax_strategy *strategy;
    int64_t micro_batch;  /* rows of a micro-batch per coordinate along the axes that split the batch */
    int64_t global_batch; /* rows of a step; 0: any */
} ax_grid_load;

/* AX_ERR_USAGE if the grid does not have `ranks` ranks, is larger than 1 along an axis that the strategy does
 * not use, cannot split the heads (ax_heads_fit), or does not divide the global batch into whole
 * micro-batches. The message gives the reason and the nearest legal grids of `ranks` ranks. All other sizes
 * are legal: dims that are not divisible are split unevenly. Not collective; needs no ranks. */
AX_MUST_CHECK ax_status ax_model_check_grid(const ax_grid_load *load, ax_grid_size size, int ranks);
/* Whether ax_model_check_grid accepts the grid, for any number of ranks. Has the type ax_grid_legal_fn, for
 * searches; `load` is an ax_grid_load. All checks of grids use one of these two functions. */
bool ax_model_fits_grid(const void *load, ax_grid_size size);

typedef struct ax_model {
    ax_ctx *ctx;
    ax_model_config config;
    ax_layer *root; /* sequence of body and head; owns both */
    ax_layer *body; /* tokens → activations [b,t,d] after the final norm */
    ax_layer *head; /* activations → logits [b,t,v] */
} ax_model;

/* Builds the network. ax_layer_param_set(model->root, …) gives its parameters memory. `recompute`: 0 keeps
 * all activations; n > 0 keeps the input of every n blocks, and backward recomputes the rest. Works on any
 * grid: if an axis has more ranks than a dim has units, some ranks hold empty boxes. The caller owns *out.
 * AX_ERR_USAGE as ax_model_config_check. */
AX_MUST_CHECK ax_status ax_model_create(ax_ctx *ctx, const ax_model_config *config, int64_t recompute,
                                        ax_model **out);
void ax_model_destroy(ax_model **model);

/* Computes the logits [b, t, vocab] of the frame's batch, or with `last` those of the last position, [b, 1,
 * vocab]. Collective along the grid. */
AX_MUST_CHECK ax_status ax_model_logits(ax_model *model, ax_frame *frame, bool last, ax_tensor *logits);
/* Runs forward and adds the sum of the losses of this rank's targets to *total (F64, device memory). In
 * training mode saves the logits in the frame for ax_model_backward. Collective along the grid. */
AX_MUST_CHECK ax_status ax_model_loss(ax_model *model, ax_frame *frame, double *total);
/* Backward of ax_model_loss on this frame: adds the gradients of the sum of its losses, times the batch's
 * loss_scale. Collective along the grid. */
AX_MUST_CHECK ax_status ax_model_backward(ax_model *model, ax_frame *frame);

#ifdef __cplusplus
}
#endif
#endif
