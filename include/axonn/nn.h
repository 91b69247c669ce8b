/* nn: layers with explicit forward and backward, and combinators that build networks from them.
 *
 * A network is a tree of layers, written as for one rank: no layer names a grid axis. A layer names the
 * *roles* of its dims (AX_ROLE_MODEL, AX_ROLE_INNER, …). The strategy maps roles to axes (parallel.h); so
 * roles determine the layouts, and layouts determine the communication. Forward saves what backward needs:
 * forward pushes tensors on the stack of the frame (ax_frame, the activation memory), and backward pops them
 * in reverse order. Activations are [b, t, width] in the context's compute dtype; tokens, targets and
 * document starts are those of the frame's batch (ax_batch).
 *
 *     ax_layer *net = ax_sequence_of(ctx, "mlp", 3,
 *                                    (ax_layer *[]){ax_linear(ctx, "up", &(ax_linear_config){…}),
 *                                                   ax_gelu(ctx, "act", AX_GELU_TANH),
 *                                                   ax_linear(ctx, "down", &(ax_linear_config){…})});
 *
 * A constructor that fails calls ax_fail and returns NULL. A constructor that gets a NULL child returns NULL
 * too, so only the root of a network needs to be checked. A size below 1, or too large (ax_tensor_check), is
 * AX_ERR_USAGE. Parameters are named after their layer ("up.weight"); give the layers of a network different
 * names. A parent owns its children; ax_layer_destroy destroys the tree and its parameters. Examples:
 * examples/charlm.c, src/model/decoder.c. */
#ifndef AXONN_NN_H
#define AXONN_NN_H

#include "axonn/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_layer ax_layer;

typedef struct ax_layer_ops {
    const char *kind;
    /* Computes y from x, which is not changed. Collective along the axes of the layer's layouts. */
    ax_status (*forward)(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y);
    /* Computes dx from dy, which is not changed, and adds to the gradients of the parameters. Called after
     * forward on the same frame. dx NULL: it is not needed, because no layer before this one is trained. */
    ax_status (*backward)(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx);
    /* Optional: fuse an addition with forward or backward (ax_layer_forward_sum, ax_layer_backward_add). */
    ax_status (*forward_sum)(ax_layer *self, ax_frame *frame, const ax_tensor *a, const ax_tensor *b,
                             ax_tensor *x, ax_tensor *y);
    ax_status (*backward_add)(ax_layer *self, ax_frame *frame, const ax_tensor *dy, const ax_tensor *add,
                              ax_tensor *dx);
    /* Optional: frees what the layer owns besides its parameters and children. */
    void (*destroy)(ax_layer *self);
} ax_layer_ops;

enum { AX_LAYER_PARAMS = 4 };

/* Data that all layers have: the first member of the struct of each kind of layer. */
struct ax_layer {
    const ax_layer_ops *ops;
    ax_ctx *ctx;
    char *name;
    ax_param *param[AX_LAYER_PARAMS]; /* NULL: none */
    bool borrows[AX_LAYER_PARAMS];    /* the parameter is tied: another layer owns it */
    ax_layer **child;
    int children;
};

AX_MUST_CHECK ax_status ax_layer_forward(ax_layer *layer, ax_frame *frame, const ax_tensor *x, ax_tensor *y);
/* Computes dx from dy, and adds to the gradients of the layer's parameters. The caller passes NULL for dx if
 * no layer before this one is trained (ax_layer_trains). Then only gradients of parameters of this layer and
 * its children are computed, and saved tensors that those gradients do not need may stay on the frame's
 * stack. */
AX_MUST_CHECK ax_status ax_layer_backward(ax_layer *layer, ax_frame *frame, const ax_tensor *dy,
                                          ax_tensor *dx);
/* ax_layer_forward_sum computes x = a + b, then y = layer(x). ax_layer_backward_add computes dx = add + the
 * gradient of x, which the layer computes from dy. If the layer's ax_layer_ops does not have the fused
 * function, ax_op_add does the addition. */
AX_MUST_CHECK ax_status ax_layer_forward_sum(ax_layer *layer, ax_frame *frame, const ax_tensor *a,
                                             const ax_tensor *b, ax_tensor *x, ax_tensor *y);
AX_MUST_CHECK ax_status ax_layer_backward_add(ax_layer *layer, ax_frame *frame, const ax_tensor *dy,
                                              const ax_tensor *add, ax_tensor *dx);
void ax_layer_destroy(ax_layer **layer);

/* Returns true if a parameter of the layer or of its descendants, also a tied one, is not frozen. */
bool ax_layer_trains(const ax_layer *layer);
/* Returns the index of the first child that is trained, or the number of children if none is. */
int ax_layer_first_trained(const ax_layer *layer);
/* Returns the layer of a tree with this name, or NULL. */
ax_layer *ax_layer_find(ax_layer *root, const char *name);
/* Freezes all parameters of a tree of layers: they are not trained (ax_param.frozen). Call before
 * ax_layer_param_set. */
void ax_layer_freeze(ax_layer *layer);

/* For authors of layers: allocates a layer's struct, of `size` bytes, zeroed. NULL after ax_fail. */
ax_layer *ax_layer_new(ax_ctx *ctx, const ax_layer_ops *ops, const char *name, size_t size);

/* Appends `child` to the children of `parent`, which then owns `child`; after an error `child` has been
 * destroyed. If `parent` or `child` is NULL, returns the error of the constructor that failed. */
AX_MUST_CHECK ax_status ax_layer_add(ax_layer *parent, ax_layer *child);

/* Appends the parameters of a tree to `out` in order of definition, a tied parameter only with the layer that
 * owns it, and adds their number to *n, which the caller sets to 0 before. `out` has room for `capacity`
 * parameters; further ones are counted but not stored. out NULL: only counts. */
void ax_layer_params(const ax_layer *layer, ax_param **out, int capacity, int *n);
/* Calls ax_param_set_create for all parameters of a tree. */
AX_MUST_CHECK ax_status ax_layer_param_set(ax_layer *layer, int moments, ax_param_set **out);

/* Returns the bytes of device memory that the layers of a tree own besides parameters: the tables of rotary
 * position embeddings. */
size_t ax_layer_table_bytes(const ax_layer *layer);

/* Returns the layout (which grid axes split which dim) of activations [b, t, d] if d has the role `width`. */
ax_layout ax_activation_layout(const ax_ctx *ctx, ax_role width);

/* ---- layers -------------------------------------------------------------------------------------- */

/* y = x·Wᵀ + b. x: [b,t,in]; W: [out,in]; y: [b,t,out]. If in_role and out_role are split along different
 * axes, this is the 3D tensor-parallel linear layer (arXiv 2502.08145, Alg. 1). If the next layer swaps the
 * two roles, its input needs no redistribution. If out_role is AX_ROLE_VOCAB, the rows of y are padded
 * (AX_ROW_ALIGN). Without a bias, this padding holds zeros, and the padding of the gradient of y must hold
 * zeros too. */
typedef struct ax_linear_config {
    int64_t in, out;
    ax_role in_role, out_role;
    /* How many elements of `in` and `out` stay together when ranks split the dim. 0 means 1, except that
     * out_unit 0 means ax_vocab_unit if out_role is AX_ROLE_VOCAB. */
    int64_t in_unit, out_unit;
    double init_std;
    bool no_bias;
    ax_param *tied; /* another layer's parameter, used as W; NULL: the layer declares W */
} ax_linear_config;
ax_layer *ax_linear(ax_ctx *ctx, const char *name, const ax_linear_config *config);

/* The indices, in ax_layer.param, of a linear layer's parameters. A parameter that the layer lacks (no bias,
 * no low-rank update) is NULL. */
enum { AX_LINEAR_WEIGHT, AX_LINEAR_BIAS, AX_LINEAR_LORA_A, AX_LINEAR_LORA_B };

/* A low-rank update of a linear layer (LoRA, Hu et al. 2021, arXiv 2106.09685): y = x·Wᵀ + b +
 * scale·(drop(x)·Aᵀ)·Bᵀ, where drop is dropout as by ax_dropout, in training only. */
typedef struct ax_low_rank {
    int64_t rank; /* 0: no update */
    double scale;
    double dropout; /* probability of drop, in [0, 1) */
} ax_low_rank;
/* Adds to a linear layer the factors of a low-rank update: NAME.lora_A [rank, in], with initial values
 * uniform in ±1/√in, and NAME.lora_B [out, rank], initially 0. Call it before ax_layer_param_set. The update
 * is added to the layer's partial sums before they are reduced over ranks, so no grid communicates more
 * activations than without the update. AX_ERR_USAGE if the rank is below 1, or the dropout not in [0, 1);
 * AX_ERR_INTERNAL if the layer is not linear or already has an update. */
AX_MUST_CHECK ax_status ax_linear_add_low_rank(ax_layer *linear, const ax_low_rank *update);

/* Adds to a linear layer the update of layer `other`, of the same input: the two share factor A and the mask
 * of the dropout, and `layer` gets a factor B of its own. `other` must live as long as `layer`. */
AX_MUST_CHECK ax_status ax_linear_share_low_rank(ax_layer *layer, const ax_layer *other);

/* LayerNorm over the width, with weight and bias. Ranks may split the width. */
ax_layer *ax_layernorm(ax_ctx *ctx, const char *name, int64_t width, ax_role role, double eps);
/* RMSNorm over the width, with a weight and no bias (torch.nn.RMSNorm). Ranks may split the width: then
 * forward of RMSNorm needs one reduction over ranks, of one number per row; forward of LayerNorm needs
 * two. */
ax_layer *ax_rmsnorm(ax_ctx *ctx, const char *name, int64_t width, ax_role role, double eps);
/* As ax_rmsnorm, for a width of which `unit` elements stay together when ranks split it. */
ax_layer *ax_rmsnorm_of_units(ax_ctx *ctx, const char *name, int64_t width, int64_t unit, ax_role role,
                              double eps);

/* Elementwise activations. x may have any width and role; y has those of x. */
ax_layer *ax_relu(ax_ctx *ctx, const char *name);
ax_layer *ax_tanh(ax_ctx *ctx, const char *name);
ax_layer *ax_silu(ax_ctx *ctx, const char *name);
/* `form`: AX_GELU_TANH or AX_GELU_EXACT, else AX_ERR_USAGE. */
ax_layer *ax_gelu(ax_ctx *ctx, const char *name, ax_activation form);

/* Dropout with probability p, 0 <= p <= 1; in evaluation y = x. The mask is the same on every grid. It
 * depends on the step and the first row that the batch's `now` gives (ax_drop in op.h). If `now` is NULL, the
 * mask depends on the number of tasks that the frame has begun in AX_MODE_TRAIN, so each of these tasks has
 * another mask. forward, backward and ax_recompute of one task use the same mask. A new frame counts tasks
 * from 0, so a program that resumes a training run must pass `now`, or masks repeat. */
ax_layer *ax_dropout(ax_ctx *ctx, const char *name, double p);

/* y = token_table[tokens] + position_table[positions], with the tokens and positions of the frame's batch; x
 * is not used and may be NULL. param[0] is the token table [vocab,width], param[1] the position table
 * [positions,width] (NULL if `positions` is 0). */
typedef struct ax_embedding_config {
    int64_t vocab, positions, width;
    double init_std;
} ax_embedding_config;
ax_layer *ax_embedding(ax_ctx *ctx, const char *name, const ax_embedding_config *config);
/* Adds to an embedding the factors of a low-rank update of its token table: y = … + scale·B·a[tokens], where
 * a is NAME.lora_A [vocab, rank], initially 0, and B is NAME.lora_B [width, rank], initially normal with
 * deviation 1, as in PEFT. Their indices in ax_layer.param are those of a linear layer. Along the axes that
 * split the vocabulary, forward and backward each reduce one tensor [b, t, rank]. Call it before
 * ax_layer_param_set. Errors as for ax_linear_add_low_rank. */
AX_MUST_CHECK ax_status ax_embedding_add_low_rank(ax_layer *embedding, const ax_low_rank *update);

/* Rotary position embedding (Su et al. 2021): the pair of elements i and i + e/2 of each head of e elements
 * is rotated by the angle position · f_i. The variants change the frequencies f_i = theta^(-2i/e) so that a
 * model works beyond the positions it was trained with. Names and values of the members are those of
 * transformers. */
typedef enum ax_rope_kind {
    AX_ROPE_DEFAULT,
    AX_ROPE_LINEAR,  /* all frequencies divided by `factor` */
    AX_ROPE_DYNAMIC, /* like AX_ROPE_DEFAULT, for texts that are not longer than max_position_embeddings:
                        beyond, the frequencies would change with the length of the text */
    AX_ROPE_LLAMA3,  /* low frequencies divided by `factor` */
    AX_ROPE_YARN     /* low frequencies divided by `factor`, cosines and sines multiplied by
                        ax_rope_attention_factor */
} ax_rope_kind;
typedef struct ax_rope_config {
    double theta; /* 0: no rotary embedding */
    ax_rope_kind kind;
    double factor;                                   /* for all kinds but AX_ROPE_DEFAULT */
    int64_t original;                                /* llama3, yarn: sequence length of the pre-training */
    double low_freq_factor, high_freq_factor;        /* llama3 */
    double beta_fast, beta_slow;                     /* yarn */
    double attention_factor, mscale, mscale_all_dim; /* yarn; 0: not given */
    bool no_truncate;                                /* yarn */
} ax_rope_config;
/* Checks the values. AX_ERR_USAGE, whose message names the value that is out of range. */
AX_MUST_CHECK ax_status ax_rope_check(const ax_rope_config *config, int64_t head_dim);
/* ax_rope_frequencies computes the frequencies f_i, [head_dim/2]. ax_rope_attention_factor returns the number
 * by which cosines and sines are multiplied (1 except for yarn). */
void ax_rope_frequencies(const ax_rope_config *config, int64_t head_dim, float *out);
double ax_rope_attention_factor(const ax_rope_config *config);

/* Multi-head causal self-attention with its projections: the children q, k, v and proj are linear layers. The
 * axes of AX_ROLE_INNER split the heads, each head whole. With kv_heads < heads, groups of query heads share
 * a key head (grouped-query attention; 0: kv_heads = heads); ax_heads_split chooses the layout, also for more
 * ranks than kv_heads. `dropout`, in [0, 1], is applied to the attention probabilities in training; the masks
 * are drawn as by ax_dropout. With `head_norm_eps` > 0 each head of q and of k passes through an RMSNorm,
 * NAME.q_norm and NAME.k_norm, whose weight [head_dim] all heads share; with `wide_norms` instead q and k
 * pass through one RMSNorm each over all their heads, with weights [heads · head_dim] and [kv_heads ·
 * head_dim]. With a `rope`, q and k are then rotated by the positions of the frame's batch, and the key/value
 * cache holds rotated keys. All ranks must create the same attention layers, because ax_heads_split may
 * factor a grid axis. */
typedef struct ax_attention_config {
    int64_t width, heads, kv_heads;
    int64_t head_dim; /* width of a head; 0: width / heads, which must then be an integer */
    int64_t window;   /* sliding window: the largest number of keys that a query attends to, its own included;
                         0: no limit */
    double init_std, proj_init_std, dropout;
    bool no_bias, no_proj_bias; /* no_bias: none of the layers has a bias; no_proj_bias: proj has none */
    double head_norm_eps;       /* 0: no norms of q and k */
    bool wide_norms;
    ax_rope_config rope;
    int64_t positions; /* with `rope`: positions are below this number */
    /* With `rope`: an attention layer of equal `rope`, head_dim and positions, whose table of cosines and
     * sines the new layer uses. That layer must live as long as the new one. NULL: the new layer makes its
     * own table. */
    const ax_layer *rope_from;
} ax_attention_config;
ax_layer *ax_attention(ax_ctx *ctx, const char *name, const ax_attention_config *config);

/* y = down(activation(up(x))), where up and down are the linear layers NAME.up, W [ffn,width], and NAME.down,
 * W [width,ffn]; ffn has role AX_ROLE_INNER. The activation and its derivative are fused with the GEMMs of
 * up and down, unless the GEMM's result is a partial sum or its layer has a low-rank update. `gated`: y =
 * down(activation(gate(x)) · up(x)), with another linear layer NAME.gate like up, and a kernel of its own for
 * activation(gate) · up (Shazeer 2020; SwiGLU with AX_SILU). */
typedef struct ax_mlp_config {
    int64_t width, ffn;
    ax_activation activation;
    double init_std, down_init_std;
    bool gated, no_bias;
} ax_mlp_config;
ax_layer *ax_mlp(ax_ctx *ctx, const char *name, const ax_mlp_config *config);

/* A mixture of experts (Shazeer et al. 2017): y = Σ_j w_j · expert_j(x) over the top_k of E experts with the
 * largest probabilities, softmax(router(x)), where w_j is the probability, divided by the sum of the chosen
 * ones if `renormalize`. An expert is a gated MLP without biases, down(activation(gate(x)) · up(x)). With
 * `capacity` c > 0, in training, each expert has ⌈c·top_k·T/E⌉ places for each sample of T tokens; they go to
 * the choices in the order of tokens. A choice without a place adds nothing to y. With capacity 0, and
 * outside of training, all choices are computed. Parameters: NAME.router.weight [E,
 * width], NAME.gate.weight and NAME.up.weight [ffn, E, width], NAME.down.weight [width, E, ffn]; of these an
 * expert has the matrices [:, e, :]. Ranks along the axes of AX_ROLE_EXPERT split ffn; the router is computed
 * on each of them. Ranks along data.exp (AX_ROLE_EXPERTS) have different experts; with a capacity they
 * exchange places in training (parallel.overlap.dtd). Collective along all these axes and those of
 * AX_ROLE_MODEL.
 *
 * If the frame's batch has `routers`, backward adds the statistics of the layer's choices to the layer's row
 * there, number `index` (ax_route_stats_args: [0] the balance loss and [1] the z loss of each of this rank's
 * samples, [2 + e] the choices of expert e, [2 + E] those without a place), and adds to the gradient that of
 * balance · [0] + z · [1], times the sample_scale of the batch's numbers. AX_ERR_USAGE if top_k is not 1 to
 * `experts`, or if there are more ranks along data.exp than experts. */
typedef struct ax_moe_config {
    int64_t width, ffn, experts, top_k;
    bool renormalize;
    ax_activation activation;
    double init_std, down_init_std;
    double balance, z, capacity;
    int64_t index;
} ax_moe_config;
ax_layer *ax_moe(ax_ctx *ctx, const char *name, const ax_moe_config *config);

/* ---- combinators --------------------------------------------------------------------------------- */

/* Creates a layer that runs its children one after the other. The new layer has no children yet
 * (ax_layer_add). */
ax_layer *ax_sequence(ax_ctx *ctx, const char *name);
/* Creates a layer that runs its `n` children one after the other (ax_sequence). The new layer owns the
 * children; after an error they have been destroyed. */
ax_layer *ax_sequence_of(ax_ctx *ctx, const char *name, int n, ax_layer *const *layers);
/* Creates a layer that computes y = x, then y += branch(y) for each child in turn. The new layer has no
 * children yet (ax_layer_add). If a branch begins with a norm, the addition before it is fused with the
 * norm. */
ax_layer *ax_residual(ax_ctx *ctx, const char *name);
/* Creates a layer that computes y = x, then y += branch(y) for each of its `n` branches in turn
 * (ax_residual). The new layer owns the branches; after an error they have been destroyed. */
ax_layer *ax_residual_of(ax_ctx *ctx, const char *name, int n, ax_layer *const *branches);
/* Creates a layer that runs `body` with activation checkpointing: forward saves only the input of `body`, and
 * backward repeats the forward pass of `body`. The gradients have the same bits as those of `body` itself. */
ax_layer *ax_recompute(ax_ctx *ctx, const char *name, ax_layer *body);

/* ---- losses -------------------------------------------------------------------------------------- */

/* Each loss below is a mean over the whole output of the network, not only over this rank's part. *loss is in
 * host memory and the same on every rank; the host waits for the device. The last argument receives the
 * gradient of the loss, times the loss_scale of the frame's batch, in the layout of the network's output, for
 * ax_layer_backward. If the last argument is NULL (evaluation), no gradient is computed. Collective along the
 * axes that split the output. AX_ERR_USAGE, on every rank, if the target does not match the output. */

/* Mean squared error (torch.nn.MSELoss): the mean of (x - target)² over all elements, 0 if there are none.
 * target has the shape, dtype and layout of x. Rows of x must not be padded, so x cannot be the output of a
 * linear layer with out_role AX_ROLE_VOCAB. dx is in frame memory. */
AX_MUST_CHECK ax_status ax_mse_loss(ax_frame *frame, const ax_tensor *x, const ax_tensor *target,
                                    double *loss, ax_tensor *dx);

enum { AX_IGNORE_INDEX = -100 }; /* PyTorch's default ignore_index */

/* Cross-entropy with class indices (torch.nn.CrossEntropyLoss): the mean of -log softmax(logits)[target] over
 * all targets that are not `ignore_index`, 0 if there are none. logits: compute dtype [.., classes]; the last
 * dim may be split (AX_ROLE_VOCAB), and rows may be padded. targets: int32 or int64 [..], with the extents
 * and layout of the other dims of logits. *dlogits uses the memory of the logits and overwrites them.
 * AX_ERR_DATA, on every rank, if a target is neither a class nor `ignore_index`. */
AX_MUST_CHECK ax_status ax_cross_entropy_loss(ax_frame *frame, const ax_tensor *logits,
                                              const ax_tensor *targets, int64_t ignore_index, double *loss,
                                              ax_tensor *dlogits);

/* ---- generation ---------------------------------------------------------------------------------- */

/* The keys and values of a tree's attention layers, for `sequences` sequences, of all ranks that split the
 * batch, of up to `capacity` positions. From ax_kv_cache_create to ax_kv_cache_destroy, forward of these
 * layers uses the cache, except in AX_MODE_TRAIN: forward writes the keys and values of the batch's tokens to
 * the rows batch->places of the cache, and attends to keys of the cache up to each token's position. A batch
 * has either one sample, which ax_kv_cache_set describes, or as many as the cache has sequences; then sample
 * i continues sequence i, its first token at the batch's `positions`. What was not written is 0. A tree can
 * have only one cache at a time (else AX_ERR_USAGE). Destroy the cache before the tree. */
typedef struct ax_kv_cache ax_kv_cache;
AX_MUST_CHECK ax_status ax_kv_cache_create(ax_ctx *ctx, ax_layer *root, int64_t sequences, int64_t capacity,
                                           ax_kv_cache **out);
void ax_kv_cache_destroy(ax_kv_cache **cache);
/* The next batches with one sample continue `sequence`; their first token is at position `first`, which is
 * negative if the sample begins with padding. */
void ax_kv_cache_set(ax_kv_cache *cache, int64_t sequence, int64_t first);
/* Says whether the tokens of the next batches choose the keys that they read (ax_loki); at first they do not.
 */
void ax_kv_cache_choose(ax_kv_cache *cache, bool choose);
/* Copies keys and values of the first `positions` positions of one sequence to another. */
AX_MUST_CHECK ax_status ax_kv_cache_copy(ax_kv_cache *cache, int64_t from, int64_t to, int64_t positions);
size_t ax_kv_cache_bytes(const ax_kv_cache *cache);

/* ---- attention that reads few keys (Loki, paper 2406.02542) -------------------------------------- */

/* What the attention layers of a tree do outside of AX_MODE_TRAIN. */
typedef enum ax_loki_kind {
    AX_LOKI_READ,           /* read few keys */
    AX_LOKI_MEASURE_BEFORE, /* add up the moments of the keys before the rotary embedding */
    AX_LOKI_MEASURE_AFTER   /* the same, after it */
} ax_loki_kind;

/* To read few keys, each query chooses `keys` of those that it sees, or with keys = 0 the part `share`,
 * rounded up, by scores from the first `dims` elements of heads (0: from all). If `turned`, each query and
 * key head is multiplied by an orthogonal matrix of its key head before, so that few elements have most of a
 * key's variance; attention to all keys does not change. `group`: the query heads of a key head choose
 * together; where an axis of the grid divides these heads, those of a rank. With a key/value cache, the
 * tokens of a batch choose only after ax_kv_cache_choose. */
typedef struct ax_loki {
    ax_loki_kind kind;
    int64_t keys, dims;
    double share;
    bool turned, group;
} ax_loki;

/* Lets all attention layers of a tree of this rank's pipeline stage work as `how` says, which must live as
 * long as the tree. With `turned` each gets a matrix for each key head, [g, e, e] in the accumulation dtype,
 * split like key heads, with undefined values; to measure, the moments of the keys, [g, e + 1, e]: kᵀk, and
 * in the last row the sum of keys, all 0. The tree frees them. Call it once, before ax_kv_cache_create. Not
 * collective. */
AX_MUST_CHECK ax_status ax_loki_attach(ax_layer *root, const ax_loki *how);
/* Calls `visit` with the number, from 0 among all attention layers of the tree, and the tensor of each layer
 * of this rank's pipeline stage that has one, until a call fails. */
typedef ax_status ax_loki_visit_fn(void *user, int64_t layer, ax_tensor *tensor);
AX_MUST_CHECK ax_status ax_loki_visit(ax_layer *root, ax_loki_visit_fn *visit, void *user);

/* ---- the table of layers ------------------------------------------------------------------------- */

/* A small example of one kind of layer, which the two functions below check. src/nn/layers.def lists all
 * examples. */
typedef struct ax_layer_sample {
    const char *name;
    ax_layer *(*make)(ax_ctx *ctx);
    ax_role x_role; /* AX_ROLE_NONE, with x_width 0, if the layer reads tokens instead of x */
    int64_t x_width, x_unit;
} ax_layer_sample;
extern const ax_layer_sample ax_layer_samples[];
extern const int ax_layer_sample_count;
/* Sizes of the token and position tables of embedding layers among the samples. */
enum { AX_SAMPLE_VOCAB = 13, AX_SAMPLE_POSITIONS = 16 };

/* Sets *worst to the largest error of the sample's gradients (of input and parameters) against finite
 * differences, in float64 on device ref. The error of a tensor's element is relative to max(rms of the
 * tensor, 1e-3 × the largest rms of all tensors). Not collective. */
AX_MUST_CHECK ax_status ax_layer_check_gradient(const ax_layer_sample *sample, double *worst);
/* Sets *worst to the largest difference between the sample's output and gradients on `grid` and those of a
 * serial run, both in float64, relative as in ax_layer_check_gradient. The ranks of the grid are threads;
 * `device` is the backend, `parallel` (NULL: the defaults) the distribution. */
AX_MUST_CHECK ax_status ax_layer_check_grid(const ax_layer_sample *sample, ax_grid_size grid,
                                            const ax_parallel *parallel, const char *device, double *worst);

#ifdef __cplusplus
}
#endif
#endif
