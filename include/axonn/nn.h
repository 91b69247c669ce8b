/* nn: layers with explicit forward and backward, and the combinators that make networks of them.
 *
 * A network is a tree of layers, written once and sequentially: no layer names a grid axis. Each names the
 * *roles* of its dims (AX_ROLE_MODEL, AX_ROLE_HIDDEN, …), the layout of roles says how they are split, and
 * the communication follows. Forward saves on the frame's stack what backward needs; backward takes it again,
 * in reverse order. Activations are [b, t, width] in the context's compute dtype; tokens, targets and
 * document starts come with the frame's batch.
 *
 *     ax_layer *net = ax_sequence_of(ctx, "mlp", 3,
 *                                    (ax_layer *[]){ax_linear(ctx, "up", &(ax_linear_config){…}),
 *                                                   ax_gelu(ctx, "act", AX_GELU_TANH),
 *                                                   ax_linear(ctx, "down", &(ax_linear_config){…})});
 *
 * Constructors return NULL after ax_fail, and so does one that is given a child that is NULL: a network is
 * built without checking each layer. Layers that have parameters name them after themselves ("up.weight"), so
 * names are unique in a network. A parent owns its children; ax_layer_destroy destroys the tree and its
 * parameters. Examples: examples/charlm.c, src/model/gpt2.c. */
#ifndef AXONN_NN_H
#define AXONN_NN_H

#include "axonn/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_layer ax_layer;

typedef struct ax_layer_ops {
    const char *kind;
    /* y from x. Collective along the axes that the layer's layouts imply. x is not changed. */
    ax_status (*forward)(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y);
    /* dx from dy, after forward on the same frame; parameter gradients are added. dy is not changed. */
    ax_status (*backward)(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx);
    /* Optional, for layers that add in passing: x = a + b, then y from x; dx = add + the gradient. */
    ax_status (*forward_sum)(ax_layer *self, ax_frame *frame, const ax_tensor *a, const ax_tensor *b,
                             ax_tensor *x, ax_tensor *y);
    ax_status (*backward_add)(ax_layer *self, ax_frame *frame, const ax_tensor *dy, const ax_tensor *add,
                              ax_tensor *dx);
} ax_layer_ops;

enum { AX_LAYER_PARAMS = 2 };

/* Every layer begins with this; sizes beyond it are the layer's own. */
struct ax_layer {
    const ax_layer_ops *ops;
    ax_ctx *ctx;
    char *name;
    ax_param *param[AX_LAYER_PARAMS]; /* NULL where there is none */
    bool borrows[AX_LAYER_PARAMS];    /* tied: another layer owns it */
    ax_layer **child;
    int children;
};

AX_MUST_CHECK ax_status ax_layer_forward(ax_layer *layer, ax_frame *frame, const ax_tensor *x, ax_tensor *y);
AX_MUST_CHECK ax_status ax_layer_backward(ax_layer *layer, ax_frame *frame, const ax_tensor *dy,
                                          ax_tensor *dx);
/* x = a + b and y = layer(x), where x is wanted too; and dx = add + the gradient by dy. The sums are the
 * layer's if it has the entry, else operations of their own. */
AX_MUST_CHECK ax_status ax_layer_forward_sum(ax_layer *layer, ax_frame *frame, const ax_tensor *a,
                                             const ax_tensor *b, ax_tensor *x, ax_tensor *y);
AX_MUST_CHECK ax_status ax_layer_backward_add(ax_layer *layer, ax_frame *frame, const ax_tensor *dy,
                                              const ax_tensor *add, ax_tensor *dx);
void ax_layer_destroy(ax_layer **layer);

/* Allocates a layer of `size` bytes (its struct, beginning with ax_layer): for authors of layers. NULL after
 * ax_fail. */
ax_layer *ax_layer_new(ax_ctx *ctx, const ax_layer_ops *ops, const char *name, size_t size);

/* Gives `child` to `parent`, which owns it from now on, on failure too. child NULL: returns the error that
 * its constructor left. */
AX_MUST_CHECK ax_status ax_layer_add(ax_layer *parent, ax_layer *child);

/* Parameters of a tree in order of definition, tied ones once. `out` has room for `capacity`; *n is how many
 * there are. */
void ax_layer_params(const ax_layer *layer, ax_param **out, int capacity, int *n);
/* ax_param_set_create of all parameters of a tree. */
AX_MUST_CHECK ax_status ax_layer_param_set(ax_layer *layer, int slots, ax_param_set **out);

/* The layout of activations [b, t, width] whose width has role `width`. */
ax_layout ax_activation_layout(const ax_ctx *ctx, ax_role width);

/* ---- layers -------------------------------------------------------------------------------------- */

/* y = x·Wᵀ + b. x: [b,t,in]; W: [out,in]; y: [b,t,out]. With in_role on one axis and out_role on another this
 * is the 3D tensor-parallel linear layer (2502.08145, Alg. 1); consecutive layers swap roles and need no
 * resharding. Rows of logits, y of out_role AX_ROLE_VOCAB, are padded (AX_ROW_ALIGN). */
typedef struct ax_linear_config {
    int64_t in, out;
    ax_role in_role, out_role;
    int64_t in_unit, out_unit; /* split units; 0 means 1, or ax_vocab_unit of a vocabulary */
    double init_std;
    bool no_bias;
    ax_param *tied; /* use this parameter as W instead of declaring one */
} ax_linear_config;
ax_layer *ax_linear(ax_ctx *ctx, const char *name, const ax_linear_config *config);

/* LayerNorm over the width, whole or split. */
ax_layer *ax_layernorm(ax_ctx *ctx, const char *name, int64_t width, ax_role role, double eps);

/* Activations, element by element; x and y of any width and role, which stays. */
ax_layer *ax_relu(ax_ctx *ctx, const char *name);
ax_layer *ax_tanh(ax_ctx *ctx, const char *name);
ax_layer *ax_silu(ax_ctx *ctx, const char *name);
/* `form`: AX_GELU_TANH or AX_GELU_EXACT, else AX_ERR_USAGE. */
ax_layer *ax_gelu(ax_ctx *ctx, const char *name, ax_activation form);

/* Active in training only. 0 <= p < 1. */
ax_layer *ax_dropout(ax_ctx *ctx, const char *name, double p);

/* y = tokens' rows of a [vocab,width] table plus positions' rows of a [positions,width] table; x is not used
 * and may be NULL. param[0] is the token table, param[1] the position table (none if positions is 0). */
typedef struct ax_embedding_config {
    int64_t vocab, positions, width;
    double init_std;
} ax_embedding_config;
ax_layer *ax_embedding(ax_ctx *ctx, const char *name, const ax_embedding_config *config);

/* Multi-head causal self-attention with its projections: children q, k, v and proj are linear layers; heads
 * are split in whole on the hidden role, kv_heads (0: heads) shared by groups of heads (ax_heads_split says
 * how, on more ranks than kv_heads too). `dropout`, in [0, 1), is that of the attention probabilities, in
 * training only. Collective along the grid. */
typedef struct ax_attention_config {
    int64_t width, heads, kv_heads;
    double init_std, proj_init_std, dropout;
    bool no_bias;
} ax_attention_config;
ax_layer *ax_attention(ax_ctx *ctx, const char *name, const ax_attention_config *config);

/* down(f(up(x))), f the activation, of linear layers NAME.up [ffn,width] and NAME.down [width,ffn], the
 * hidden width on the hidden role. The activation and its gradient are part of the products beside them, but
 * where those are sums over ranks. */
typedef struct ax_mlp_config {
    int64_t width, ffn;
    ax_activation activation;
    double init_std, down_init_std;
    bool no_bias;
} ax_mlp_config;
ax_layer *ax_mlp(ax_ctx *ctx, const char *name, const ax_mlp_config *config);

/* ---- combinators --------------------------------------------------------------------------------- */

/* Children one after the other. Starts empty. */
ax_layer *ax_sequence(ax_ctx *ctx, const char *name);
/* The same with its `n` children, which it owns, on failure too. */
ax_layer *ax_sequence_of(ax_ctx *ctx, const char *name, int n, ax_layer *const *layers);
/* y = x, then y += branch(y) for each child in turn. Starts empty. Where a branch begins with a norm, the sum
 * of the one before it and the norm are one kernel. */
ax_layer *ax_residual(ax_ctx *ctx, const char *name);
/* The same with its `n` branches, which it owns, on failure too. */
ax_layer *ax_residual_of(ax_ctx *ctx, const char *name, int n, ax_layer *const *branches);
/* The body, whose activations are computed again in backward instead of being kept. Gradients are the same
 * bits. */
ax_layer *ax_recompute(ax_ctx *ctx, const char *name, ax_layer *body);

/* ---- losses -------------------------------------------------------------------------------------- */

/* A loss is a mean over the whole batch: *loss, in the host's memory, is the same number on every rank.
 * The gradient is that of this mean and has the layout of the network's output: ax_layer_backward takes it.
 * It is multiplied by the loss_scale of the frame's batch, if that has one. With NULL in its place, as after
 * a forward pass in evaluation, no gradient is computed. The host waits for the device. Collective along the
 * axes that split the output. AX_ERR_USAGE, on every rank, if the target does not fit the output. */

/* Mean squared error, torch.nn.MSELoss: the mean of (x - target)² over all elements, 0 if there are none.
 * target: shape, dtype and layout of x, whose rows must not be padded (the output of a layer of any role but
 * AX_ROLE_VOCAB). dx comes from the frame. */
AX_MUST_CHECK ax_status ax_mse_loss(ax_frame *frame, const ax_tensor *x, const ax_tensor *target,
                                    double *loss, ax_tensor *dx);

enum { AX_IGNORE_INDEX = -100 }; /* what PyTorch ignores if nothing else is said */

/* Cross-entropy with classes, torch.nn.CrossEntropyLoss: the mean over all targets but those that equal
 * `ignore_index` of -log softmax(logits)[target], 0 if there are none. logits: T, [.., classes], whose last
 * dim may be split (AX_ROLE_VOCAB), with rows padded or not; targets: int32 or int64 [..], the other dims of
 * logits in the same layout. *dlogits takes the place of the logits in memory: there is no second copy.
 * AX_ERR_DATA, on every rank, if a target is neither a class nor `ignore_index`. */
AX_MUST_CHECK ax_status ax_cross_entropy_loss(ax_frame *frame, const ax_tensor *logits,
                                              const ax_tensor *targets, int64_t ignore_index, double *loss,
                                              ax_tensor *dlogits);

/* ---- generation ---------------------------------------------------------------------------------- */

/* Keys and values of all attention layers of a tree for up to `capacity` positions of `batch` sequences. */
typedef struct ax_kv_cache ax_kv_cache;
AX_MUST_CHECK ax_status ax_kv_cache_create(ax_ctx *ctx, const ax_layer *root, int64_t batch, int64_t capacity,
                                           ax_kv_cache **out);
void ax_kv_cache_destroy(ax_kv_cache **cache);
/* Positions held so far; forward of a batch of t positions with this cache appends there and attends to all.
 * The caller advances once the whole tree has run. */
int64_t ax_kv_cache_length(const ax_kv_cache *cache);
void ax_kv_cache_advance(ax_kv_cache *cache, int64_t positions);
/* Keeps the first `positions` of those it holds. */
void ax_kv_cache_truncate(ax_kv_cache *cache, int64_t positions);
size_t ax_kv_cache_bytes(const ax_kv_cache *cache);

/* ---- the table of layers ------------------------------------------------------------------------- */

/* A sample of each kind of layer, listed in src/nn/layers.def: the gradient test and the all-grids test run
 * over it. */
typedef struct ax_layer_sample {
    const char *name;
    ax_layer *(*make)(ax_ctx *ctx);
    ax_role x_role; /* AX_ROLE_NONE with x_width 0: the layer reads tokens */
    int64_t x_width, x_unit;
} ax_layer_sample;
extern const ax_layer_sample ax_layer_samples[];
extern const int ax_layer_sample_count;
/* Tokens that samples embed are below this. */
enum { AX_SAMPLE_VOCAB = 13, AX_SAMPLE_POSITIONS = 16 };

/* Worst error of the sample's gradients (input and parameters) against finite differences, in float64 on the
 * reference device, relative to max(rms of the tensor, 1e-3 × the largest rms). Not collective. */
AX_MUST_CHECK ax_status ax_layer_check_gradient(const ax_layer_sample *sample, double *worst);
/* Worst deviation of output and gradients on `grid`, run as threads on `device` and `parallel` (NULL: the
 * defaults), from the serial run in float64; relative as above. */
AX_MUST_CHECK ax_status ax_layer_check_grid(const ax_layer_sample *sample, ax_grid_size grid,
                                            const ax_parallel *parallel, const char *device, double *worst);

#ifdef __cplusplus
}
#endif
#endif
