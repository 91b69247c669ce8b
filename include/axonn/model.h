/* model: families of transformer language models, built from layers.
 *
 * A family (such as gpt2) is one file of src/model and one line in src/model/families.def. The file reads and
 * writes the family's hyper-parameters in config.json as Hugging Face names them, and maps its parameters to
 * arrays in model files. src/model/decoder.c builds the network of every family from ax_model_config. Layers
 * name the roles of dims (model width, inner width, vocabulary), never grid axes, so every family runs on any
 * grid. */
#ifndef AXONN_MODEL_H
#define AXONN_MODEL_H

#include "axonn/nn.h"
#include "axonn/pipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_family ax_family;

/* The largest sizes of a model. The number of elements of an array with such extents fits in 64 bits, and so
 * does its size in bytes. */
#define AX_LAYERS_MAX 10000
#define AX_HIDDEN_MAX 1048576 /* for hidden, heads, and heads x head_dim */
#define AX_FFN_MAX 4194304    /* for the inner width of an MLP, and of all experts of a block together */
#define AX_EXPERTS_MAX 65536
#define AX_VOCAB_MAX 16777216 /* for vocab and seq_len */

/* The largest coefficient of a loss of routers. */
#define AX_ROUTER_LOSS_MAX 1e30

/* The largest config.json that is read, in bytes. */
#define AX_CONFIG_JSON_MAX (16 << 20)

/* Dropout rates in training, each in [0, 1]: of the sum of the embeddings, of the output of each residual
 * branch, of the attention probabilities. */
typedef struct ax_model_dropout {
    double embd, resid, attn;
} ax_model_dropout;

/* Which linear layers of a block have no bias: q, k and v; the output projection of attention, which may have
 * a bias only if q, k and v have; those of the MLP. */
typedef struct ax_no_bias {
    bool qkv, proj, mlp;
} ax_no_bias;

/* The matrices that a low-rank update may change: those of a block, and two of the whole model, the weight of
 * the output layer (head) and the table of token embeddings. */
typedef enum ax_matrix {
    AX_MATRIX_Q,
    AX_MATRIX_K,
    AX_MATRIX_V,
    AX_MATRIX_PROJ,
    AX_MATRIX_GATE,
    AX_MATRIX_UP,
    AX_MATRIX_DOWN,
    AX_MATRIX_HEAD,
    AX_MATRIX_EMBED,
    AX_MATRIX_COUNT,
    AX_MATRIX_OF_BLOCK = AX_MATRIX_HEAD /* the first matrices, of which each block has its own */
} ax_matrix;

/* Mixture of experts: in sparse blocks, a layer ax_moe is in place of the MLP. */
typedef struct ax_model_experts {
    int64_t n, top_k; /* n: experts of a sparse block; 0: no block is sparse */
    int64_t ffn;      /* inner width of an expert; 0: that of an MLP (ax_model_config_expert_ffn) */
    bool renormalize; /* the weights of a token's chosen experts are divided by their sum */
    int64_t step; /* block i is sparse if step divides i + 1 and `dense` does not exclude it; at least 1 */
    char *dense; /* one character for each layer: '1' if its block is dense, else '0'; NULL: none is. Owned by
                    the ax_model_config */
    double balance, z_loss; /* coefficients of the losses of the routers in training: the balance loss
                               (config.json: router_aux_loss_coef), and the z loss */
    double capacity; /* places of an expert in training, as a multiple of those that it needs if all experts
                        are chosen alike (ax_moe_config); 0: no limit */
} ax_model_experts;

/* Describes a network of pre-norm blocks: x += attention(norm(x)), x += mlp(norm(x)). The value 0 of norm,
 * head_norms, no_bias, gated, rope, window and activation is that of GPT-2. */
typedef struct ax_model_config {
    const ax_family *family;
    int64_t layers, hidden, heads, kv_heads, ffn, vocab, seq_len;
    int64_t head_dim; /* width of a head; 0: hidden / heads (ax_model_config_head_dim) */
    ax_norm_kind norm;
    bool head_norms; /* each head of q and k passes through an RMSNorm, before the rotary embedding */
    bool wide_norms; /* q and k pass through an RMSNorm over all their heads, before the rotary embedding */
    ax_no_bias no_bias;
    bool gated;          /* MLP: down(activation(gate(x)) · up(x)), instead of down(activation(up(x))) */
    ax_rope_config rope; /* rope.theta 0: the network has a table of learned positions instead */
    int64_t window; /* number of positions that each position attends to: itself and the nearest before it; 0:
                       no limit */
    char *window_layers; /* one character for each layer: '1' if `window` limits its attention, else '0';
                            NULL: it limits all layers. Owned by this struct */
    ax_model_experts experts;
    ax_model_dropout dropout;
    double init_std, norm_eps;
    bool plain_init; /* output projections are initialized like other weights, instead of with a standard
                        deviation smaller by sqrt(2 · layers) */
    ax_activation activation;
    bool tie; /* the output layer (head) uses the token embedding table as its weight */
    /* The low-rank update (LoRA) of each kind of matrix, in all blocks; rank 0: none. If any matrix has an
     * update, all other parameters are frozen. ax_model_config_update reads the update of a block. */
    ax_low_rank low_rank[AX_MATRIX_COUNT];
    bool low_rank_root; /* the scales of the updates are alpha / √rank (rsLoRA) instead of alpha / rank */
    ax_low_rank
        *low_rank_blocks; /* if blocks differ: the updates of each block, [layers][AX_MATRIX_OF_BLOCK],
                             in place of those of low_rank; else NULL. Owned by this struct */
    bool low_rank_shared; /* matrices that are stored in one array of the weight files (q, k, v of GPT-2)
                             share one factor A, and have equal updates, as in adapters that PEFT makes */
    char *source; /* text of the config.json from which the struct was read, or NULL. ax_model_config_print
                     copies from this text the keys that the program does not know. Owned by this struct */
} ax_model_config;

/* Values of config.json that do not describe the network: special tokens and the dtype of the files. */
typedef struct ax_model_identity {
    int64_t bos, eos; /* ids of the tokens that begin and end a text; -1: none */
    ax_dtype dtype;   /* dtype of the stored weights */
} ax_model_identity;

/* Returns true if block number `block` has experts in place of an MLP. ax_model_config_sparse_blocks returns
 * how many of the blocks before block `end` do. */
bool ax_model_config_is_sparse(const ax_model_config *config, int64_t block);
int64_t ax_model_config_expert_ffn(const ax_model_config *config);
int64_t ax_model_config_sparse_blocks(const ax_model_config *config, int64_t end);

/* Finds the family named `name`, such as "gpt2". AX_ERR_USAGE if there is none; the message lists all
 * families. */
AX_MUST_CHECK ax_status ax_family_find(const char *name, const ax_family **out);
/* Returns true if the family's config.json has a key of the same meaning as `option`, a key of this program's
 * configuration such as "model.window". Returns false for keys that all families have (model.vocab,
 * model.tie). */
bool ax_family_has(const ax_family *family, const char *option);
/* Returns the name of family number `index`, or NULL after the last. */
const char *ax_family_name(int index);
/* The activations that models may have: ax_model_activation_name returns the word that configurations and
 * config.json have for number `index`, or NULL after the last; ax_model_activation returns its kind,
 * ax_model_activation_index the number of a kind (0 if no model has it). */
const char *ax_model_activation_name(int index);
ax_activation ax_model_activation(int index);
int ax_model_activation_index(ax_activation kind);
/* ax_family_prefix returns the prefix of array names, such as "transformer.", that some model files of the
 * family lack (ax_ckpt_rules); NULL: none. ax_family_ignored returns shell patterns for names of arrays in
 * model files that are not loaded. */
const char *ax_family_prefix(const ax_family *family);
const char *const *ax_family_ignored(const ax_family *family, int *count);

/* Sets *head and *table to the names, in model files, of two arrays that a model may tie: the weight of the
 * output layer (head) and the token embedding table. */
void ax_family_tied(const ax_family *family, const char **head, const char **table);

/* Sparse upcycling (Komatsuzaki et al. 2023, arXiv 2212.05055): makes the description of a model with experts
 * in place of the MLPs of a dense one, each at first a copy of the MLP: of llama and mistral mixtral, of
 * qwen3 qwen3_moe; top_k experts for a token, with renormalized weights. AX_ERR_USAGE: another family, or
 * what the new family does not have. The caller releases *out with ax_model_config_fini, also after an error.
 *
 * ax_upcycled_name writes to `out` name number `index` under which weight files of the new model have array
 * `key` of the dense one: `experts` names for a matrix of an MLP, else one; returns false after the last.
 * ax_upcycled_router writes the name of the router's array, [experts, hidden], of a block; `whole`: with the
 * family's prefix. */
AX_MUST_CHECK ax_status ax_model_config_upcycle(const ax_model_config *dense, int64_t experts, int64_t top_k,
                                                ax_model_config *out);
bool ax_upcycled_name(const ax_model_config *sparse, const char *key, int64_t index, char out[512]);
void ax_upcycled_router(const ax_model_config *sparse, bool whole, int64_t block, char out[512]);

/* Returns a struct with the properties that all networks of the family have, and with the family's defaults
 * for a new model: norm_eps, init_std, activation, tie, rope. Its sizes (layers, hidden, …) are 0. */
ax_model_config ax_model_config_defaults(const ax_family *family);
/* Reads the text of a Hugging Face config.json. `path` is used in messages only. The caller releases *out
 * with ax_model_config_fini. AX_ERR_DATA, whose message names the key that is missing, has the wrong type, or
 * requests a feature that is not implemented. Not collective. */
AX_MUST_CHECK ax_status ax_model_config_parse(const char *json, size_t size, const char *path,
                                              ax_model_config *out);
/* Appends the names, separated by ", ", of the keys of the config.json `config->source` that neither the
 * program nor transformers' class of the family knows. They are ignored; ax_model_config_print keeps them.
 * Appends nothing if there are none or if `source` is NULL. ax_model_config_warn logs one line that names
 * them; `path` is the file's. */
AX_MUST_CHECK ax_status ax_model_config_unknown(const ax_model_config *config, ax_buf *out);
AX_MUST_CHECK ax_status ax_model_config_warn(const ax_model_config *config, const char *path);
/* Appends a config.json that transformers can read. AX_ERR_USAGE if the family's config.json cannot describe
 * the network. */
AX_MUST_CHECK ax_status ax_model_config_print(const ax_model_config *config,
                                              const ax_model_identity *identity, ax_buf *out);
/* Appends a copy of a config.json of any family in which the dtype of the weights is `dtype` (AX_DTYPE_COUNT:
 * unchanged). `untied`: the output layer is not tied to the token embedding. All other values are unchanged,
 * numbers digit for digit. `path` is used in messages only. AX_ERR_DATA: not a JSON object. */
AX_MUST_CHECK ax_status ax_model_config_retype(const char *json, size_t size, const char *path,
                                               ax_dtype dtype, bool untied, ax_buf *out);
/* Appends a JSON object of the values that the family writes to config.json. A member has the name of the
 * configuration key of the same meaning ("model.hidden"), or of the key in config.json if there is none. */
AX_MUST_CHECK ax_status ax_model_config_values(const ax_model_config *config, ax_buf *out);
/* Copies the struct and its strings. The caller releases *out with ax_model_config_fini, also after an
 * error. */
AX_MUST_CHECK ax_status ax_model_config_copy(const ax_model_config *config, ax_model_config *out);
void ax_model_config_fini(ax_model_config *config);
const char *ax_model_config_family(const ax_model_config *config);
/* Checks the values. AX_ERR_USAGE, whose message names the value that is out of range or
 * contradicts another. */
AX_MUST_CHECK ax_status ax_model_config_check(const ax_model_config *config);

/* ---- adapters ------------------------------------------------------------------------------------ */

/* An adapter: low-rank updates of a base model, in files of PEFT (adapter_config.json and
 * adapter_model.safetensors). */
typedef struct ax_adapter {
    char *base;     /* base_model_name_or_path: a directory, or a name by which another program knows the base
                       model; owned by this struct */
    double alpha;   /* lora_alpha; alpha_pattern may name another for a module */
    double dropout; /* lora_dropout, as it is in the file; 0 if it has none */
    int64_t rank;   /* rank of the updates (r); rank_pattern may name another for a module */
    bool root;      /* use_rslora: the scale is alpha / √rank instead of alpha / rank */
    struct json_t *json; /* the whole adapter_config.json; owned by this struct */
} ax_adapter;

/* Reads the text of an adapter_config.json. `path` is used in messages only. The caller releases *out with
 * ax_adapter_fini. AX_ERR_DATA if the text is not a valid adapter_config.json, or if the adapter has features
 * that are not implemented; the message lists all of them. */
AX_MUST_CHECK ax_status ax_adapter_parse(const char *text, size_t size, const char *path, ax_adapter *out);
void ax_adapter_fini(ax_adapter *adapter);
/* Returns the scale of an update: alpha / √rank if `root` (Kalajdzievski 2023, arXiv 2312.03732), else alpha
 * / rank. */
double ax_low_rank_scale(double alpha, double rank, bool root);
/* Sets *out to the rank and scale that adapter_config.json gives for the update of a module, such as
 * "transformer.h.0.attn.c_attn": those of rank_pattern and alpha_pattern, whose names are regular expressions
 * as in PEFT, else r and lora_alpha. AX_ERR_DATA if such an expression is not valid, or the rank is not a
 * positive integer. */
AX_MUST_CHECK ax_status ax_adapter_update(const ax_adapter *adapter, const char *module, ax_low_rank *out);
/* Sets *out to whether PEFT gives the module an update: target_modules, exclude_modules, layers_to_transform,
 * layers_pattern. AX_ERR_DATA as ax_adapter_update. */
AX_MUST_CHECK ax_status ax_adapter_targets(const ax_adapter *adapter, const char *module, bool *out);
/* Appends an adapter_config.json that describes the low-rank updates of `config`; matrices that are stored in
 * one array must have the same scale. `base` is the directory of the base model. */
AX_MUST_CHECK ax_status ax_adapter_print(const ax_model_config *config, const char *base, ax_buf *out);
/* ax_family_low_rank_key prints the name of the array, in an adapter's file, that is factor 'A' or 'B' of a
 * matrix of block `block`. ax_family_matrix_key prints the name of the array, in a model's files, that holds
 * the matrix. Matrices of the whole model ignore `block`. */
void ax_family_low_rank_key(const ax_family *family, ax_matrix matrix, int64_t block, char factor,
                            char out[256]);
void ax_family_matrix_key(const ax_family *family, ax_matrix matrix, int64_t block, char out[256]);
/* Prints the name of the module that has the matrix, of a matrix of a block the name within the block:
 * "attn.c_attn", "lm_head", "transformer.wte". */
void ax_family_module(const ax_family *family, ax_matrix matrix, char out[256]);
/* Returns true if `name` is the name of the module or its end after a dot: "attn.c_attn" or "c_attn". PEFT
 * matches target_modules like this. */
bool ax_module_matches(const char *module, const char *name);
/* Returns true if the family's weight files store the matrix as [in, out]. The table of token embeddings is
 * stored so by all families: `in` is the vocabulary. */
bool ax_family_is_transposed(const ax_family *family, ax_matrix matrix);

/* Returns the name of a matrix in configurations: q, k, v, proj, gate, up, down, head, embed. */
const char *ax_matrix_name(ax_matrix matrix);
/* Sets *out and *in to the numbers of rows and columns of a weight matrix [out, in]. Returns false if the
 * model does not have this matrix. */
bool ax_model_config_matrix(const ax_model_config *config, ax_matrix matrix, int64_t *out, int64_t *in);
/* Sets lo and n to the box, which begins at lo and has extents n, that the matrix of a block is of its array
 * in the model's files (ax_family_matrix_key): the whole array, or its part of an array that several matrices
 * share. Where the family stores it transposed, n is [in, out]. */
void ax_model_config_matrix_box(const ax_model_config *config, ax_matrix matrix, int64_t lo[2], int64_t n[2]);
/* Returns true if the model has the matrix, and `word` is its name or that of its module in the family's
 * files, as in PEFT: "up", "c_fc" or "mlp.c_fc". */
bool ax_model_config_matrix_is(const ax_model_config *config, ax_matrix matrix, const char *word);
/* Lists the names that the first `count` matrices have for ax_model_config_matrix_is: "q, k, v, proj, up,
 * down, or as in its files c_attn, c_proj, c_fc". Returns `list`. */
enum { AX_MATRIX_LIST = 320 };
const char *ax_model_config_list_matrices(const ax_model_config *config, int count,
                                          char list[AX_MATRIX_LIST]);
/* Returns how many matrices of this kind the model has: one for each block, or one. */
int64_t ax_model_config_matrix_count(const ax_model_config *config, ax_matrix matrix);
/* Returns the low-rank update of a matrix of block `block`; rank 0: none. A matrix of the whole model ignores
 * `block`. */
const ax_low_rank *ax_model_config_update(const ax_model_config *config, ax_matrix matrix, int64_t block);
/* Sets the low-rank updates of a matrix in all blocks: `updates` has ax_model_config_matrix_count items. */
AX_MUST_CHECK ax_status ax_model_config_set_updates(ax_model_config *config, ax_matrix matrix,
                                                    const ax_low_rank *updates);
/* Returns the number of blocks in which the matrix has an update (of the whole model: 0 or 1). */
int64_t ax_model_config_update_count(const ax_model_config *config, ax_matrix matrix);
/* Returns true if a matrix of block `block` has a low-rank update. */
bool ax_model_config_block_is_adapted(const ax_model_config *config, int64_t block);
/* Appends the blocks of which a matrix has a low-rank update: "all" if the updates of all blocks are alike,
 * else numbers and ranges: "0,5,8-15". */
AX_MUST_CHECK ax_status ax_model_config_print_blocks(const ax_model_config *config, ax_buf *out);
/* Returns true if a matrix has a low-rank update. */
bool ax_model_config_is_adapted(const ax_model_config *config);
/* Returns true if the model ties the output layer to the token embedding, and one of the two has an update,
 * which the other does not share: with the updates added, they are no longer the same. */
bool ax_model_config_is_untied_by_adapter(const ax_model_config *config);
/* Returns the number of elements of the factors A and B of all low-rank updates together. */
int64_t ax_model_config_low_rank_params(const ax_model_config *config);

int64_t ax_model_config_head_dim(const ax_model_config *config);
/* Returns the number of positions that the model can have: seq_len (max_position_embeddings of config.json),
 * or more if its rotary embedding is scaled to a longer text: factor times seq_len (linear), factor times the
 * length of the pre-training (llama3, yarn). Files often keep the shorter number; transformers reads it as no
 * limit. */
int64_t ax_model_config_positions(const ax_model_config *config);
/* Returns the usual inner width of the MLP: 4 · hidden. For a gated MLP, which has a third matrix, it is two
 * thirds of 4 · hidden, rounded up to a multiple of 256 as in Llama. */
int64_t ax_model_config_default_ffn(const ax_model_config *config);
/* Returns the sliding window of a layer's attention in positions; 0: no window. */
int64_t ax_model_config_window(const ax_model_config *config, int64_t layer);

/* Sets *total to the number of parameters, and *matmul to the number of those that GEMMs use, both without
 * the factors of low-rank updates (ax_model_config_low_rank_params). *matmul includes the weight of the head,
 * even if it is tied, but not embedding tables that are only looked up. */
void ax_model_config_params(const ax_model_config *config, int64_t *total, int64_t *matmul);
/* Returns the training FLOPs per token, without recomputation: 6 × matmul parameters + 6 × layers × heads ×
 * head_dim × seq_len (causal attention). If the model has low-rank updates: 4 × matmul parameters + 6 ×
 * parameters of the updates (but factor A of the embedding, which is looked up) + the same term for
 * attention; the blocks before the first update have no backward, so their terms are 2 × matmul parameters
 * and a third of that for attention. In a layer with a window w < seq_len, seq_len is replaced by
 * (2 - w / seq_len) · w, because attention computes only pairs of positions within the window. */
double ax_model_config_flops_per_token(const ax_model_config *config, int64_t seq_len);

/* The model, parallelism strategy and batch for which ax_model_check_grid checks a grid. */
typedef struct ax_grid_load {
    const ax_model_config *model; /* NULL: not known yet; heads are not checked */
    const ax_strategy *strategy;
    int64_t micro_batch;  /* rows of a micro-batch on one rank; the ranks along the grid axes that split the
                             batch have different rows */
    int64_t global_batch; /* rows of a step; 0: any */
} ax_grid_load;

/* Checks whether a grid of `size` is legal. AX_ERR_USAGE if the grid does not have `ranks` ranks, is larger
 * than 1 along an axis that the strategy does not use, cannot split the heads (ax_heads_fit), has more than
 * layers + 2 pipeline stages, or does not divide the global batch into whole micro-batches. The message gives
 * the reason and the nearest legal grids of `ranks` ranks. All other sizes are legal: dims that are not
 * divisible are split unevenly. Not collective; needs no communicator. */
AX_MUST_CHECK ax_status ax_model_check_grid(const ax_grid_load *load, ax_grid_size size, int ranks);
/* Returns true if ax_model_check_grid accepts a grid of `size`, whatever the number of ranks. `load` points
 * to an ax_grid_load. The function has the type ax_grid_legal_fn, for ax_grid_nearest. All checks of grids
 * use ax_model_check_grid or ax_model_fits_grid. */
bool ax_model_fits_grid(const void *load, ax_grid_size size);

/* How a model will be used, for ax_model_create. */
typedef struct ax_model_use {
    int64_t recompute;    /* 0: all activations are kept; n > 0: the input of every n blocks is kept, and
                             backward recomputes the rest */
    int64_t positions;    /* all positions of tokens are below this number, which is at most
                             ax_model_config_positions; 0: seq_len. The table of a rotary embedding has this
                             number of rows */
    const int64_t *costs; /* [layers + 2]: costs of the embedding, of each block, and of the head, from which
                             ax_pipe_cut chooses where pipeline stages begin, unless the context's
                             ax_parallel.pipe says where; NULL: all blocks cost the same, the embedding and
                             the head nothing. Read by ax_model_create only */
    bool chunk_each; /* true: the embedding, each block, and the final norm are each a chunk of their own, so
                        that their costs can be counted; only on a grid with one stage */
} ax_model_use;

/* A chunk (adjacent layers) of this rank's pipeline stage: the children of the model's body with indices
 * first … end-1. */
typedef struct ax_model_chunk {
    int first, end;
} ax_model_chunk;

typedef struct ax_model {
    ax_ctx *ctx;
    ax_model_config config;
    ax_layer *root; /* sequence of body and head; owns both */
    ax_layer *body; /* tokens → activations [b,t,d] after the final norm */
    ax_layer *head; /* activations → logits [b,t,v] */
    /* Pipeline stages. Each rank builds the whole tree, and runs the chunks of its stage; a stage has one
     * chunk, unless the schedule is AX_PIPE_INTERLEAVED or ax_model_use.chunk_each is set. Chunk c of stage s
     * is part number p = c · stages + s of the model in the order of forward. After the last part, the same
     * ranks run `head`. */
    int stage, stages, chunks;
    int64_t *cut; /* cut[p]: index of the first block of part p; cut[stages · chunks] = layers */
    ax_model_chunk *chunk;
} ax_model;

/* Builds the network. ax_layer_param_set(model->root, …) gives the network's parameters memory. Any grid
 * works: if a grid axis has more ranks than the dim that it splits has elements (or heads), some ranks hold
 * empty parts. Along pipe, the context's ax_parallel.pipe says where the network is cut into stages;
 * parameters of other stages are declared, but get no memory. The caller owns *out. AX_ERR_USAGE as
 * ax_model_config_check, or if the cut does not fit the model. */
AX_MUST_CHECK ax_status ax_model_create(ax_ctx *ctx, const ax_model_config *config, const ax_model_use *use,
                                        ax_model **out);
void ax_model_destroy(ax_model **model);
/* Lists the matrices of the blocks, AX_MATRIX_Q to AX_MATRIX_DOWN, block after block, also those of other
 * pipeline stages. The caller frees *out. */
AX_MUST_CHECK ax_status ax_model_matrices(const ax_model *model, ax_param ***out, int *n);

/* ax_model_is_last returns true if this rank's stage is the last one. ax_model_begins (ax_model_ends) returns
 * true if a chunk of this stage is the first (last) part of the model. */
bool ax_model_is_last(const ax_model *model);
bool ax_model_begins(const ax_model *model, int chunk);
bool ax_model_ends(const ax_model *model, int chunk);
/* Returns the description of pipeline stage `stage` of this model, for steps of `micro_batches`
 * micro-batches. */
ax_pipe_stage ax_model_stage(const ax_model *model, int stage, int64_t micro_batches);

/* The functions below run only layers of this rank's stage. They are collective along the ranks of the stage.
 * On a grid with one stage, there is one chunk, the whole model.
 *
 * Runs chunk `chunk` forward, except its head: on the tokens of the batch if the chunk is the first part of
 * the model, else on the batch's `x`. *y are the activations [b, t, d]. */
AX_MUST_CHECK ax_status ax_model_forward(ax_model *model, int chunk, ax_frame *frame, ax_tensor *y);
/* On the last stage: runs its last chunk and computes the logits [b, t, vocab] of the frame's batch, or, if
 * `last`, the logits of the last position only, [b, 1, vocab]. */
AX_MUST_CHECK ax_status ax_model_logits(ax_model *model, ax_frame *frame, bool last, ax_tensor *logits);
/* On the last stage: runs its last chunk forward and adds the sum of the losses of this rank's targets to
 * *total (F64, device memory). `scores` (ax_op_cross_entropy) may be NULL. In training mode saves the logits
 * in the frame for ax_model_backward. */
AX_MUST_CHECK ax_status ax_model_loss(ax_model *model, ax_frame *frame, double *total,
                                      const ax_scores *scores);
/* Runs the backward pass that belongs to the last forward pass on this frame, which must have run chunk
 * `chunk`. Adds the gradient of the sum of the losses, times the batch's loss_scale, to the gradients of the
 * parameters. If the chunk is the last part of the model, the forward pass was ax_model_loss, and dy is
 * ignored. Otherwise the forward pass was ax_model_forward, and dy is the gradient of the result *y. *dx is
 * the gradient of the batch's x; if the chunk is the first part of the model, *dx is empty. */
AX_MUST_CHECK ax_status ax_model_backward(ax_model *model, int chunk, ax_frame *frame, const ax_tensor *dy,
                                          ax_tensor *dx);

#ifdef __cplusplus
}
#endif
#endif
