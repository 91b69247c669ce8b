/* op: operations on tensors, forward and backward. Each operation runs kernels on the local box (this rank's
 * part of a tensor), plus the reductions over ranks that the layout requires. Contractions (GEMMs) are in
 * parallel.h (ax_contract).
 *
 * The following holds unless an operation says otherwise.
 *   - Tensors are [b, t, d] (samples, positions, width) with any layout.
 *   - Results are in the memory of the frame (ax_frame, the activation memory).
 *   - Nonlinear operations reject partial sums, values that are yet to be added over ranks (AX_ERR_INTERNAL).
 *   - Padded rows are rejected (AX_ERR_USAGE), except by cross-entropy and by ax_op_bias and ax_op_bias_grad.
 *   - An operation that computes a statistic over a split dim is collective along the axes that split it. An
 *     operation with parameters is collective as ax_param_acquire and ax_param_add_grad are. All other
 *     operations are not collective.
 *   - The compute dtype and the accumulation dtype are those of the context (ax_ctx).
 *   - An operation with parameters acquires them and adds to their gradients itself (parallel.h). */
#ifndef AXONN_OP_H
#define AXONN_OP_H

#include "axonn/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Views the local box of x as a matrix: *rows is the product of all extents but the last, *cols the last
 * extent. x must not have padded rows. */
void ax_rows_cols(const ax_frame *frame, const ax_tensor *x, int64_t *rows, int64_t *cols);

/* x += bias, in place. bias: [d] in the accumulation dtype, split like the last dim of x. */
AX_MUST_CHECK ax_status ax_op_bias(ax_frame *frame, ax_tensor *x, ax_param *bias);
/* Adds the sum of dy over all dims but the last to the gradient of `bias`. */
AX_MUST_CHECK ax_status ax_op_bias_grad(ax_frame *frame, const ax_tensor *dy, ax_param *bias);

/* The kind and the parameters of a norm (LayerNorm or RMSNorm) over the last dim, of extent d. */
typedef struct ax_norm_of {
    ax_norm_kind kind;
    double eps;
    ax_param *weight, *bias; /* [d]; bias NULL: none */
} ax_norm_of;

/* x = a + b (x = a if b is NULL), then y = norm(x) over the last dim: LayerNorm or RMSNorm (ax_norm_kind).
 * The tensors may have any number of dims. The statistics are those of the whole last dim, even if it is
 * split. `stats` is kept for backward: a local tensor in the accumulation dtype, [2, rows], with each row's
 * sum and its sum of squares about the mean; with AX_NORM_RMS [1, rows], with the sum of squares. Backward
 * computes dx = add + the gradient of the norm, where `add` is the gradient from other uses of x; it may be
 * NULL. If dy is a partial sum, so is dx, because the gradient is linear in dy; `add` must then be NULL. a,
 * b, x and `add` must have equal layouts. Collective along the axes that split d. */
AX_MUST_CHECK ax_status ax_op_norm(ax_frame *frame, const ax_norm_of *norm, const ax_tensor *a,
                                   const ax_tensor *b, ax_tensor *x, ax_tensor *y, ax_tensor *stats);
AX_MUST_CHECK ax_status ax_op_norm_grad(ax_frame *frame, const ax_norm_of *norm, const ax_tensor *x,
                                        const ax_tensor *stats, const ax_tensor *dy, const ax_tensor *add,
                                        ax_tensor *dx);

/* Dropout: sets each element to 0 with probability p, in [0, 1], and multiplies the remaining elements by
 * 1/(1-p). The random numbers depend on `key` (different for each layer), the step (ax_batch_numbers) and the
 * element's global index. So the mask is the same on every grid and for every size of micro-batch. If the
 * frame's batch is NULL or has no numbers (`now`), the number of tasks begun in AX_MODE_TRAIN
 * (ax_frame_train_tasks) is used in place of the step. So each of these tasks has its own mask. */
typedef struct ax_drop {
    double p;
    uint64_t key;
} ax_drop;

/* The choices of ax_op_choose, in frame memory, as ax_attention_args has them. */
typedef struct ax_op_chosen {
    uint64_t *bits;
    int64_t choosers, most; /* most: how many keys a query has chosen at most */
} ax_op_chosen;

/* Causal attention of this rank's heads (ax_attention_args). q: [b, t, h·e]; k and v: [b, s, g·e], where h is
 * the number of query heads, g the number of key heads, and e = head_dim. Each rank holds whole query heads
 * and the key heads that these use. dk and dv are partial sums along axes that split the query heads but not
 * the key heads. doc_start: int32 [b, t]; if its data is NULL, all documents start at 0. window > 0: a query
 * sees at most `window` keys. The first kv_len <= s keys are valid; query i is at position q_offset + i, or,
 * with `positions` (int32 [b, t] of this rank's sequences, in device memory; else NULL), that of sequence b
 * at positions[b,0] + i. lse, a local tensor [b, h, t] in the accumulation dtype, is kept for backward; it
 * may be NULL in forward. `drop` is the dropout of the probabilities (NULL: no dropout); backward must get
 * the same `drop`. `chosen`: which keys each query
 * has chosen (ax_op_choose), or NULL. q, k and v may lie beside each other (ax_frame_alloc_beside); then dq,
 * dk and dv do too, unless this rank has no heads or drop->p is 1. Rows of o are dense. */
AX_MUST_CHECK ax_status ax_op_attention(ax_frame *frame, const ax_tensor *q, const ax_tensor *k,
                                        const ax_tensor *v, const ax_tensor *doc_start, int64_t window,
                                        int64_t head_dim, int64_t q_offset, const int32_t *positions,
                                        int64_t kv_len, const ax_op_chosen *chosen, const ax_drop *drop,
                                        ax_tensor *o, ax_tensor *lse);
AX_MUST_CHECK ax_status ax_op_attention_grad(ax_frame *frame, const ax_tensor *q, const ax_tensor *k,
                                             const ax_tensor *v, const ax_tensor *o, const ax_tensor *lse,
                                             const ax_tensor *doc_start, int64_t window, int64_t head_dim,
                                             const ax_drop *drop, const ax_tensor *dout, ax_tensor *dq,
                                             ax_tensor *dk, ax_tensor *dv);

/* Rotary position embedding of this rank's heads, in place (ax_rope_args). x: [b, t, h·e] of whole heads, may
 * be a partial sum, and its rows may be padded; positions: int32 [b, t]; table: F32 [n, e/2, 2], whole on
 * every rank, n above the largest position. The gradient is the same operation on the gradient of the result,
 * with `inverse` true. */
AX_MUST_CHECK ax_status ax_op_rope(ax_frame *frame, ax_tensor *x, const ax_tensor *positions,
                                   const ax_tensor *table, bool inverse);

/* Multiplies each of this rank's heads by the matrix of its key head, in place (ax_turn_args). x: [b, t, h·e]
 * of whole heads, whose rows may be padded; matrix: [g, e, e] in the accumulation dtype, split like key
 * heads. */
AX_MUST_CHECK ax_status ax_op_turn(ax_frame *frame, const ax_tensor *x, const ax_tensor *matrix);

/* How queries choose keys: see ax_choose_args for what the members mean. */
typedef struct ax_op_choice {
    int64_t keys;
    double share;
    int64_t width;
    bool group;
} ax_op_choice;
/* The keys among which queries choose, in device memory: this rank's key heads, as in ax_choose_args. `most`
 * is the largest kv_len that a task of the frame's plan may have. */
typedef struct ax_op_keys {
    const void *k;
    int64_t ld, step, batch_stride, heads, most;
} ax_op_keys;
/* Chooses keys for each query of q, [b, t, h·e]. doc_start, window, q_offset, positions and kv_len are those
 * of ax_op_attention. */
AX_MUST_CHECK ax_status ax_op_choose(ax_frame *frame, const ax_tensor *q, const ax_op_keys *keys,
                                     const ax_op_choice *choice, const ax_tensor *doc_start, int64_t window,
                                     int64_t head_dim, int64_t q_offset, const int32_t *positions,
                                     int64_t kv_len, ax_op_chosen *out);

/* y[b,t,:] = table[ids[b,t],:], added to y if `accumulate`. ids: int32 [b, t]. If the first dim of the table
 * is split, y is partial along the axes that split it. */
AX_MUST_CHECK ax_status ax_op_embedding(ax_frame *frame, const ax_tensor *ids, ax_param *table,
                                        bool accumulate, ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_embedding_grad(ax_frame *frame, const ax_tensor *ids, const ax_tensor *dy,
                                             ax_param *table);

/* y = f(x) and dx = dy·f'(x), where `kind` selects the activation f. y and dx have the layout of x. */
AX_MUST_CHECK ax_status ax_op_activation(ax_frame *frame, const ax_tensor *x, ax_activation kind,
                                         ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_activation_grad(ax_frame *frame, const ax_tensor *x, const ax_tensor *dy,
                                              ax_activation kind, ax_tensor *dx);

/* y = f(gate) · up, where `kind` selects the activation f. gate and up have equal layouts and padding of
 * rows; rows of y are dense. ax_op_glu_grad works in place: it overwrites `gate` and `up` with their
 * gradients. */
AX_MUST_CHECK ax_status ax_op_glu(ax_frame *frame, const ax_tensor *gate, const ax_tensor *up,
                                  ax_activation kind, ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_glu_grad(ax_frame *frame, ax_tensor *gate, ax_tensor *up, const ax_tensor *dy,
                                       ax_activation kind);

/* The choices of a layer with experts (kernels.h, "mixture of experts") for this rank's tokens, n of them. */
typedef struct ax_choices {
    int64_t experts, top_k;
    bool renormalize;
    int64_t capacity;     /* places of an expert for each sample (kernel admit); 0: all choices have one */
    ax_tensor probs, lse; /* local tensors in the accumulation dtype: [n, experts], [n] */
    ax_tensor weight, choice; /* [b, t, top_k] with the layout of the logits: accumulation dtype, int32 */
    bool placed;              /* the rows of places are needed */
    ax_tensor place, source;  /* if `placed`: int32, as kernel admit makes them; else without data */
} ax_choices;

/* The rows of the experts that this rank has: those of all choices of these experts among the tokens that
 * were gathered along `axes`, which split the experts. */
typedef struct ax_expert_rows {
    int64_t experts, top_k;
    ax_axes axes;
    int64_t rows, rounds; /* rows of a round on this rank; number of rounds */
    ax_tensor like;       /* the rows of a round: [rows, 0], split along the axes of the tokens and `axes` */
    ax_tensor weight;     /* of all choices of the gathered tokens, [b, t, top_k] in the accumulation dtype */
    ax_tensor source, place, bounds; /* int32, as kernel group makes them */
} ax_expert_rows;

/* Returns the number of places that an expert has for a sample of `tokens` tokens: ⌈factor·top_k·tokens /
 * experts⌉, and at most `tokens`, because a token chooses an expert once. 0 if factor is 0: no limit. */
int64_t ax_expert_capacity(double factor, int64_t experts, int64_t top_k, int64_t tokens);
/* Computes from the router's logits, [b, t, experts] in the accumulation dtype, not split along experts, the
 * experts of each token, and which of them have a place. Tokens with a negative id in the frame's batch take
 * none. The caller sets experts, top_k, renormalize, capacity and placed before. */
AX_MUST_CHECK ax_status ax_op_route(ax_frame *frame, const ax_tensor *logits, ax_choices *choices);
/* Computes the gradient of the logits, in the compute dtype, from dweight, the gradient of choices->weight,
 * and from the balance and z losses of this layer (ax_route_grad_args): the coefficients are balance and z.
 * `like` has the extents and the layout of the logits, apart from the last dim. Adds the statistics of the
 * choices to `total` (ax_route_stats_args); with total NULL there are no such losses. Tokens with a negative
 * id in the frame's batch do not count. */
AX_MUST_CHECK ax_status ax_op_route_grad(ax_frame *frame, const ax_choices *choices, const ax_tensor *like,
                                         const ax_tensor *dweight, double balance, double z, double *total,
                                         ax_tensor *dlogits);
/* Returns the rows of this rank's experts, without tensors: their number, and that of rounds. Of `choices`
 * only the fields that the caller sets for ax_op_route are read. `tokens`: [b,
 * t, width], gathered along `axes`, which split the experts. A round has memory for `room` times the rows
 * that a rank has if all experts have equally many, and at most for those that it can have: for each sample
 * of the gathered tokens the same number, rounded up. */
ax_expert_rows ax_expert_rows_of(const ax_grid *grid, const ax_choices *choices, const ax_tensor *tokens,
                                 const ax_axes *axes, double room);
/* Gathers the choices along the axes of the experts, and makes the tensors of the rows. Collective along
 * these axes. */
AX_MUST_CHECK ax_status ax_op_group(ax_frame *frame, const ax_choices *choices, ax_expert_rows *rows);
/* Returns the groups of the rows of a round: those of this rank's experts. */
ax_groups ax_expert_groups(const ax_expert_rows *rows, int64_t round);
/* ax_op_dispatch copies to each row of a round the token of its choice: to y, a tensor like rows->like with
 * the width of x. ax_op_combine adds up the rows x of each token in y, [b, t, width], and adds the sum to
 * what is there if `accumulate`: y is a partial sum along the axes along which x is one, and along those of
 * the experts. Each is the gradient of the other. ax_expert_sum returns such a y, without memory. */
AX_MUST_CHECK ax_status ax_op_dispatch(ax_frame *frame, const ax_expert_rows *rows, int64_t round,
                                       const ax_tensor *x, const ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_combine(ax_frame *frame, const ax_expert_rows *rows, int64_t round,
                                      const ax_tensor *x, bool accumulate, const ax_tensor *y);
ax_tensor ax_expert_sum(const ax_expert_rows *rows, const ax_tensor *x, const ax_tensor *tokens);
/* The rows of places of all experts, [experts, samples, capacity, width] with this rank's samples (`placed`
 * in ax_choices). ax_op_fill_places copies to each the token of its choice, and zeros if it has none; if
 * `weighted`, times the weight of the choice. ax_op_sum_places adds up the rows x of each token, in the
 * memory of y, [b, t, width]; if `weighted`, each times the weight of its choice. ax_op_sum_places_grad
 * computes the gradient dweight of these weights, like choices->weight, from dy. */
AX_MUST_CHECK ax_status ax_op_fill_places(ax_frame *frame, const ax_choices *choices, const ax_tensor *x,
                                          bool weighted, ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_sum_places(ax_frame *frame, const ax_choices *choices, const ax_tensor *x,
                                         bool weighted, const ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_sum_places_grad(ax_frame *frame, const ax_choices *choices, const ax_tensor *x,
                                              const ax_tensor *dy, ax_tensor *dweight);
/* ax_op_glu and ax_op_glu_grad with the weight of each row's choice as a factor, into the memory of y.
 * ax_op_glu_rows_grad works in place: it overwrites `gate` and `up` with their gradients, and dy with y. It
 * stores the gradients of the weights of the round's choices in dweight, which is like rows->weight. */
AX_MUST_CHECK ax_status ax_op_glu_rows(ax_frame *frame, const ax_expert_rows *rows, int64_t round,
                                       const ax_tensor *gate, const ax_tensor *up, ax_activation kind,
                                       const ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_glu_rows_grad(ax_frame *frame, const ax_expert_rows *rows, int64_t round,
                                            ax_tensor *gate, ax_tensor *up, ax_tensor *dy, ax_activation kind,
                                            const ax_tensor *dweight);

/* y = a + b. a and b have equal layouts, which may have partial axes. */
AX_MUST_CHECK ax_status ax_op_add(ax_frame *frame, const ax_tensor *a, const ax_tensor *b, ax_tensor *y);

/* ax_op_dropout computes y = dropout of x [b, t, d]. x may be a partial sum, and then y is one: the mask is
 * the same on all ranks, so it can be applied before the sum. The gradient is the same operation with x = dy;
 * its result y is dx. ax_op_add_dropout adds the dropout of x to `sums`, which has the layout of x, and
 * overwrites x. */
AX_MUST_CHECK ax_status ax_op_dropout(ax_frame *frame, const ax_tensor *x, const ax_drop *drop, ax_tensor *y);
AX_MUST_CHECK ax_status ax_op_add_dropout(ax_frame *frame, const ax_tensor *x, const ax_drop *drop,
                                          const ax_tensor *sums);

/* y [b, 1, d] = x[:, last position, :]. Rows of x may be padded; those of y are dense. */
AX_MUST_CHECK ax_status ax_op_last_position(ax_frame *frame, const ax_tensor *x, ax_tensor *y);

/* Where ax_op_cross_entropy puts what it finds at each of this rank's positions, in device memory: the loss
 * in the accumulation dtype, and how many tokens beat the target (ax_ce_rank_args); both 0 without a target.
 */
typedef struct ax_scores {
    void *loss;
    int32_t *rank;
} ax_scores;

/* Adds the sum of the cross-entropy losses of this rank's unmasked targets to *total (F64, device memory).
 * logits: [b, t, v] in the compute dtype; targets: int32 [b, t]; negative targets are masked. `scores` may be
 * NULL. `stats` is kept for backward: a local tensor [3, rows] in the accumulation dtype, with each row's
 * maximum, sum of exponentials and target's logit. Collective along the axes that split v. */
AX_MUST_CHECK ax_status ax_op_cross_entropy(ax_frame *frame, const ax_tensor *logits,
                                            const ax_tensor *targets, double *total, const ax_scores *scores,
                                            ax_tensor *stats);
/* Overwrites the logits with scale · loss_scale · d(sum of losses)/d logits, where loss_scale is that of the
 * frame's batch. In place, because a second array of the size of the logits would take much memory. */
AX_MUST_CHECK ax_status ax_op_cross_entropy_grad(ax_frame *frame, ax_tensor *logits, const ax_tensor *targets,
                                                 const ax_tensor *stats, double scale);

/* Converts `ids` (int32 or int64) to the targets of ax_op_cross_entropy (int32, same layout): an id in [0,
 * classes) that is not `ignore` stays, any other becomes -1 (masked). counts[0] (F64, device memory) += the
 * number of this rank's ids that are not `ignore`; counts[1] += the number of these ids that are outside [0,
 * classes). */
AX_MUST_CHECK ax_status ax_op_class_targets(ax_frame *frame, const ax_tensor *ids, int64_t classes,
                                            int64_t ignore, double *counts, ax_tensor *targets);

/* Adds the sum of (x - target)² over this rank's elements to *total (F64, device memory). Unless dx is NULL,
 * *dx = scale · loss_scale · (x - target), where loss_scale is that of the frame's batch. x and target have
 * equal shapes, dtypes and layouts. */
AX_MUST_CHECK ax_status ax_op_squared_error(ax_frame *frame, const ax_tensor *x, const ax_tensor *target,
                                            double scale, double *total, ax_tensor *dx);

/* ---- sampling (host) ----------------------------------------------------------------------------- */

typedef struct ax_sampling {
    double temperature; /* 0: takes the most probable token */
    int top_k;          /* number of tokens kept; 0: all */
    double top_p;       /* share of the probability kept, in [0, 1]; 0: one token; 1: all */
    double min_p;       /* keeps the tokens at least min_p times as probable as the most probable; 0: all */
} ax_sampling;

/* Draws a token from `n` logits in host memory, with the uniform random number u in [0, 1). Applies
 * temperature, then top-k, then top-p, then min-p, as transformers does. Of the tokens that top-k keeps,
 * top-p keeps the smallest set of most probable ones that has at least the share top_p of their total
 * probability. Of tokens with equal logits, those with lower ids are kept first. The probabilities of the
 * kept tokens, scaled to a total of 1, are then added up in ascending order of ids; *out is the token at
 * which the sum first exceeds u. `work` has room for 2n values; it may be NULL if temperature is 0. The
 * expected time is O(n). AX_ERR_NUMERIC if a logit is NaN or +inf, or none is finite. */
AX_MUST_CHECK ax_status ax_sample(const float *logits, int n, const ax_sampling *how, double u, float *work,
                                  int32_t *out);

/* Copies n logits to `out` and makes the tokens that stand among the `count` ids less probable (CTRL, Keskar
 * et al. 2019, section 4.1): a positive logit is divided by `penalty`, a negative one multiplied, once for
 * each token however often it stands there. Logits of ids outside [0, n) do not exist and are left out. */
void ax_sample_penalize(const float *logits, int n, double penalty, const int32_t *ids, size_t count,
                        float *out);

#ifdef __cplusplus
}
#endif
#endif
