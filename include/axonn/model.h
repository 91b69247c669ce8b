/* model: families of transformer language models, built from layers.
 *
 * A family is one file and one line in src/model/families.def: its hyper-parameters in the words of the
 * Hugging Face config.json, how the network is put together, and where its parameters stand in files. Roles,
 * not axes, appear there, so a family runs on any grid. */
#ifndef AXONN_MODEL_H
#define AXONN_MODEL_H

#include "axonn/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_family ax_family;

/* The largest extents of a model: products of them, and sizes in bytes made of those, are exact in 64 bits.
 */
#define AX_LAYERS_MAX 10000
#define AX_HIDDEN_MAX 1048576 /* hidden and heads */
#define AX_FFN_MAX 4194304
#define AX_VOCAB_MAX 16777216 /* vocab and seq_len */

/* Dropout in training, each rate in [0, 1): of the sum of the embeddings; of what a residual branch ends
 * with; of attention's probabilities. */
typedef struct ax_model_dropout {
    double embd, resid, attn;
} ax_model_dropout;

typedef struct ax_model_config {
    const ax_family *family;
    int64_t layers, hidden, heads, kv_heads, ffn, vocab, seq_len;
    ax_model_dropout dropout;
    double init_std, norm_eps;
    ax_activation activation;
    bool tie;     /* the head shares the token table */
    char *source; /* config.json that this was read from, or NULL; keys not understood are kept from it. Owned
                   */
} ax_model_config;

/* What config.json says beside the shape of the network. */
typedef struct ax_model_identity {
    int64_t bos, eos; /* token ids, -1: none */
    ax_dtype dtype;   /* of the stored weights */
} ax_model_identity;

/* The family of that name ("gpt2"), or AX_ERR_USAGE naming those there are. */
AX_MUST_CHECK ax_status ax_family_find(const char *name, const ax_family **out);
int ax_family_count(void);
const char *ax_family_name(int index);
/* How keys in files of the family may differ from those this program writes: an optional prefix, and patterns
 * of keys that are read over. */
const char *ax_family_prefix(const ax_family *family);
const char *const *ax_family_ignored(const ax_family *family, int *count);

/* The arrays that are one where the head is tied to the token table, as keys of files. */
void ax_family_tied(const ax_family *family, const char **head, const char **table);

/* Reads a Hugging Face config.json. `path` serves messages. The caller releases *out with
 * ax_model_config_fini. AX_ERR_DATA names the key that is missing, of the wrong type, or asks for what is not
 * implemented. Not collective. */
AX_MUST_CHECK ax_status ax_model_config_parse(const char *json, size_t size, const char *path,
                                              ax_model_config *out);
/* Appends config.json as transformers reads it. */
AX_MUST_CHECK ax_status ax_model_config_print(const ax_model_config *config,
                                              const ax_model_identity *identity, ax_buf *out);
AX_MUST_CHECK ax_status ax_model_config_copy(const ax_model_config *config, ax_model_config *out);
void ax_model_config_fini(ax_model_config *config);
const char *ax_model_config_family(const ax_model_config *config);
/* AX_ERR_USAGE naming what does not fit together. */
AX_MUST_CHECK ax_status ax_model_config_check(const ax_model_config *config);

/* Parameters in all, and those that take part in matrix products (head included, embedding look-ups not). */
void ax_model_config_params(const ax_model_config *config, int64_t *total, int64_t *matmul);
/* Training FLOPs per token: 6 × matmul parameters + 6 × layers × width × T (causal attention), no
 * recomputation. */
double ax_model_config_flops_per_token(const ax_model_config *config, int64_t seq_len);

/* What a grid is to carry. */
typedef struct ax_grid_load {
    const ax_model_config *model; /* NULL: not known yet; any */
    const ax_strategy *strategy;
    int64_t micro_batch;  /* rows per rank of the batch axes and micro-step */
    int64_t global_batch; /* rows of a step; 0: any */
} ax_grid_load;

/* AX_ERR_USAGE if the grid does not have `ranks` ranks, is larger than 1 along an axis that the strategy
 * lacks, cannot split the heads (ax_heads_fit) or does not cut the batch into whole micro-steps: says why,
 * and which grids of as many ranks are nearest and fit in all of these. Any other size fits: dims that do not
 * divide are split unevenly. Not collective; needs no ranks. */
AX_MUST_CHECK ax_status ax_model_check_grid(const ax_grid_load *load, ax_grid_size size, int ranks);
/* The same question but for the number of ranks, for searches; `load` is an ax_grid_load (ax_grid_legal_fn).
 * Whatever asks whether a grid is legal asks one of these two. */
bool ax_model_fits_grid(const void *load, ax_grid_size size);

typedef struct ax_model {
    ax_ctx *ctx;
    ax_model_config config;
    ax_layer *root; /* sequence of body and head; owns all */
    ax_layer *body; /* tokens → normalised activations [b,t,d] */
    ax_layer *head; /* → logits [b,t,v] */
} ax_model;

/* Builds the network; its parameters get memory from ax_layer_param_set(model->root, …). `recompute`: 0 keeps
 * all activations, n > 0 recomputes in segments of n blocks. Any grid will do: where an axis has more ranks
 * than a dim has units, some hold nothing. The caller owns *out. AX_ERR_USAGE if the shape does not fit
 * together. */
AX_MUST_CHECK ax_status ax_model_create(ax_ctx *ctx, const ax_model_config *config, int64_t recompute,
                                        ax_model **out);
void ax_model_destroy(ax_model **model);

/* logits [b, t, vocab] of the frame's batch; [b, 1, vocab], of the last position, if `last`. Collective along
 * the grid. */
AX_MUST_CHECK ax_status ax_model_logits(ax_model *model, ax_frame *frame, bool last, ax_tensor *logits);
/* Forward with the sum of this rank's target losses added to *total (F64, device memory). In training mode
 * the logits stay in the frame for ax_model_backward. */
AX_MUST_CHECK ax_status ax_model_loss(ax_model *model, ax_frame *frame, double *total);
/* Adds the gradients of the sum of the losses that ax_model_loss counted on this frame, times the batch's
 * loss_scale. */
AX_MUST_CHECK ax_status ax_model_backward(ax_model *model, ax_frame *frame);

#ifdef __cplusplus
}
#endif
#endif
