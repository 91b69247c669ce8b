/* parallel: the three rules from which all tensor- and data-parallel communication follows, and parameters.
 *
 *   contract      a sum over a split dim leaves partial sums along the axes that split it
 *   redistribute  a change of layout is a sequence of collectives
 *   reduce        a statistic over a split dim is an all-reduce (SUM or MAX) along the axes that split it
 *
 * The layout of a tensor says which grid axes split its dims, and along which axes its values are partial
 * sums (tensor.h). Axes of size 1 need no communication: a serial run is a run on the grid whose axes all
 * have size 1. A frame (ax_frame) is the activation memory of one micro-batch. */
#ifndef AXONN_PARALLEL_H
#define AXONN_PARALLEL_H

#include "axonn/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- contract ------------------------------------------------------------------------------------ */

/* Computes dtype, extents, split units and layout, but no data, of a contraction of a and b. `spec` is
 * written like an einsum, "bti,oi->bto", with one letter for each dim. An output dim has the extent, unit and
 * axes of its letter. A letter that `spec` does not have after "->" is summed. The result is partial along
 * the axes that split summed letters, and along the partial axes of an operand; the operands must not both be
 * partial along the same axis. Not collective. AX_ERR_INTERNAL if `spec` is malformed, if the operands differ
 * in dtype, or in a letter's extent, axes or (if the dim is split) unit, if only one operand has a summed
 * letter, or if an axis would appear twice. */
AX_MUST_CHECK ax_status ax_contract_rule(const ax_grid *grid, const char *spec, const ax_tensor *a,
                                         const ax_tensor *b, ax_tensor *out);
/* Computes *out, the contraction that ax_contract_rule defines, with a's dtype, in memory of the frame; not
 * collective. `bias` (NULL: none) has the accumulation dtype and the box of the result's last dim, and is
 * added along that dim; the result must then not be a partial sum. The contraction runs as one GEMM. The
 * letters form three groups: letters that a and the result share, letters that b and the result share, and
 * summed letters. The letters of a group must be adjacent and in the same order wherever they appear
 * ("bto,bti->oi" is legal, "bto,tbi->oi" is not), else AX_ERR_INTERNAL. The rows of an operand may be padded
 * if the operand's last letter is the only letter of its group. */
AX_MUST_CHECK ax_status ax_contract(ax_frame *frame, const char *spec, const ax_tensor *a, const ax_tensor *b,
                                    const ax_tensor *bias, ax_tensor *out);
/* Computes the contraction that ax_contract_rule defines, as ax_contract does, and stores it in the memory of
 * `out`, whose dtype is a's dtype or the accumulation dtype that belongs to a's dtype (ax_dtype_accum). Rows
 * of `out` may be padded; its extents and layout must be those of ax_contract_rule. Adds to the present
 * values if `accumulate`.
 *
 * In one case the GEMM also computes with memory beyond this rank's boxes. A letter that is alone in its
 * group is the first dim of b or `out`, and rows of zeros follow the last row of that tensor
 * (ax_tensor.spare); the same letter is the last dim of a or `out`, and the rows of that tensor have padding
 * for at least as many elements. The GEMM then includes these rows of zeros and this padding. Padding of
 * `out` becomes zeros; padding of a must hold zeros. */
AX_MUST_CHECK ax_status ax_contract_run(ax_frame *frame, const char *spec, const ax_tensor *a,
                                        const ax_tensor *b, const ax_tensor *bias, bool accumulate,
                                        const ax_tensor *out);
/* One of several contractions: the arguments of ax_contract_run, and `sums`. If `sums` is not NULL, it
 * receives the sums of a over the dims that the contraction sums, in the accumulation dtype and with the
 * layout of ax_layout_of_sums; they are added to its present values if `accumulate_sums`. With `sums`, the
 * summed dims must be the first dims of a, the result must begin with the other dims of a, and `bias` must be
 * NULL. */
typedef struct ax_contraction {
    const ax_tensor *a, *b, *bias, *out, *sums;
    bool accumulate, accumulate_sums;
} ax_contraction;
/* Computes n <= AX_BESIDE contractions, one after the other, as ax_contract_run does. Adjacent arrays of two
 * successive contractions may be blocks of one matrix: if the matrices are [a0; a1]·b = [out0; out1], or
 * a·[b0 b1] = [out0 out1], or [a0 a1]·[b0; b1] = out, and if strides, biases and `accumulate` allow it, the
 * two run as one GEMM. In the last case the second contraction must accumulate in the `out` of the first, and
 * the whole sum is rounded once. */
AX_MUST_CHECK ax_status ax_contract_each(ax_frame *frame, const char *spec, const ax_contraction *each,
                                         int n);
/* Groups of the rows of a tensor (kernel gemm_grouped): n groups, split along `axes`, which then also split
 * the rows: a rank has the rows of its groups. `bounds`, int32 [this rank's groups + 1] in device memory, has
 * where the groups of this rank's rows begin and end; NULL: each has `each` rows on this rank. If the rows
 * come in several rounds, these are those of round `round`, from 0 on; rounds 0 counts as 1. */
typedef struct ax_groups {
    int64_t n;
    ax_axes axes;
    const int32_t *bounds;
    int64_t each;
    int64_t round, rounds;
} ax_groups;
/* Computes contractions of rows in groups with a matrix of each group, as ax_contract_each does without
 * groups: "ri,ogi->ro", "ro,ogi->ri" or "ro,ri->ogi", where r is the rows, first dim of an operand, and g the
 * groups, middle dim of the operand or result that has a matrix for each group, of n entries split along the
 * groups' axes. There are no biases and sums; `accumulate` is for results "ogi" and, between operands that
 * become one GEMM, for "ri". */
AX_MUST_CHECK ax_status ax_contract_grouped(ax_frame *frame, const ax_groups *groups, const char *spec,
                                            const ax_contraction *each, int n);
/* Computes dtype, extents, split units and layout of such a contraction, as ax_contract_rule does. */
AX_MUST_CHECK ax_status ax_contract_grouped_rule(const ax_grid *grid, const ax_groups *groups,
                                                 const char *spec, const ax_tensor *a, const ax_tensor *b,
                                                 ax_tensor *out);
/* Computes a contraction in the memory of `out` (ax_contract_run) by a GEMM with an epilogue: `then` says
 * whether the GEMM applies an activation to its result, or multiplies the result by the activation's
 * derivative (ax_epilogue). The result must not be a partial sum. Rows of `out` must have no padding.
 * `preact`, the preactivation, has the dtype and layout of `out`; it may be NULL where kernel gemm allows it
 * (ax_epilogue). */
AX_MUST_CHECK ax_status ax_contract_activation(ax_frame *frame, const char *spec, const ax_tensor *a,
                                               const ax_tensor *b, const ax_tensor *bias, ax_epilogue then,
                                               ax_activation kind, const ax_tensor *preact,
                                               const ax_tensor *out);

/* ---- redistribute -------------------------------------------------------------------------------- */

typedef enum ax_step_kind {
    AX_STEP_GATHER,
    AX_STEP_SCATTER,
    AX_STEP_SLICE,
    AX_STEP_REDUCE,
    AX_STEP_MOVE
} ax_step_kind;

/* One step of a change of layout (ax_redistribution). GATHER (all-gather) ends the split of dim `dim` along
 * `axis`. SCATTER (reduce-scatter) and SLICE (no communication) split dim `dim` along `axis`. MOVE
 * (all-to-all) ends the split of dim `dim` along `axis`, and splits dim `to` along it. REDUCE is an
 * all-reduce along `axes`. */
typedef struct ax_redistribution_step {
    ax_step_kind kind;
    uint8_t dim, to;
    ax_axis axis;
    ax_axisset axes;
    ax_layout after; /* the layout after the step */
} ax_redistribution_step;

/* The steps that change a tensor from one layout to another. Where the nesting of axes allows, slices and
 * scatters come before reductions, and reductions before moves and gathers, because that communicates fewer
 * bytes. A move replaces a gather and a slice if an axis is the innermost one of its dim, and the next one
 * that the target has on another dim. Axes of size 1 need no step. */
typedef struct ax_redistribution {
    int n;
    ax_redistribution_step step[2 * AX_LAYOUT_AXES + 2];
} ax_redistribution;

/* Finds the steps from the layout of `tensor` to `target`. Axes that are partial in the target must be
 * partial in the layout of `tensor`. */
AX_MUST_CHECK ax_status ax_redistribution_make(const ax_grid *grid, const ax_tensor *tensor,
                                               const ax_layout *target, ax_redistribution *out);
/* Prints the steps: "reduce_scatter(d1@x) all_to_all(d2@y->d1) all_gather(d0@z)", or "nothing". Returns
 * out. */
char *ax_redistribution_print(const ax_grid *grid, const ax_redistribution *steps, char out[256]);
/* Computes the bytes that the calling rank would send if all its collectives were ring algorithms.
 * All-gathers, reduce-scatters and all-to-alls send each rank's part padded to the largest part in the group,
 * all-to-alls on both dims; the padding counts. */
AX_MUST_CHECK ax_status ax_redistribution_bytes(const ax_grid *grid, const ax_tensor *tensor,
                                                const ax_redistribution *steps, int64_t *out);

/* Starts the change of src to the layout `target`; the result is *dst, in memory of the frame. If no step is
 * needed (ax_redistribution_make), dst shares src's memory, padding of rows included; otherwise rows of dst
 * are dense. An all-reduce as first step works in place and overwrites src; if it is the only step, dst
 * shares src's memory. If src has padded rows, it is copied first and not overwritten. Collective along the
 * axes of its steps. Before ax_wait(work), do not read dst and do not change src. */
AX_MUST_CHECK ax_status ax_redistribute(ax_frame *frame, const ax_tensor *src, const ax_layout *target,
                                        ax_tensor *dst, ax_work **work);
/* Changes src to the layout `target`, and waits until the result *dst is complete. dst shares src's memory,
 * or src is overwritten, in the same cases as for ax_redistribute. Collective along the axes of its steps. */
AX_MUST_CHECK ax_status ax_settle(ax_frame *frame, const ax_tensor *src, const ax_layout *target,
                                  ax_tensor *dst);

/* ---- reduce -------------------------------------------------------------------------------------- */

/* All-reduces `count` elements in place over the ranks along `axes`, and waits. Collective along axes. */
AX_MUST_CHECK ax_status ax_reduce_axes(ax_ctx *ctx, ax_axisset axes, void *data, int64_t count,
                                       ax_dtype dtype, ax_reduce_op op);

/* ---- roles --------------------------------------------------------------------------------------- */

/* The role of a dim in the model. Layers name roles, never axes; a strategy maps roles to axes. */
enum {
    AX_ROLE_NONE,  /* never split */
    AX_ROLE_BATCH, /* samples */
    AX_ROLE_MODEL, /* width of the residual stream: the configuration's model.hidden */
    AX_ROLE_INNER, /* inner width of the MLP; width of all attention heads */
    AX_ROLE_VOCAB,
    AX_ROLE_EXPERT,  /* inner width of an expert. Experts read tokens with the whole residual width, so the
                        axes of AX_ROLE_MODEL can split their inner width too */
    AX_ROLE_EXPERTS, /* the experts, of parameters with a matrix for each: split along data.exp, if the grid
                        has this axis (ax_grid_experts) */
    AX_ROLE_HEAD, /* width of one head, of parameters that all heads share: never split; their gradients are
                     partial sums along the axes that split the heads */
    AX_ROLE_COUNT
};
/* One of the AX_ROLE_… constants, or such a role with one of its axes replaced by factors of the axis
 * (ax_role_both, ax_role_major). */
typedef uint16_t ax_role;
/* Return `role` with the axis of a factoring (ax_grid_factor) replaced: ax_role_both by both factors,
 * ax_role_major by the major factor alone, so that the dim is replicated along the minor factor. */
ax_role ax_role_both(ax_role role, int factoring);
ax_role ax_role_major(ax_role role, int factoring);

/* A parallel strategy: the axes that split each role, and the axes that split a weight further while it is
 * stored between uses. The context selects the strategy (ax_parallel). */
typedef struct ax_strategy {
    const char *name, *help;
    ax_axisset axes;           /* axes that the strategy uses; all other axes must have size 1 */
    ax_axes of[AX_ROLE_COUNT]; /* the axes that split a dim of each role (index: AX_ROLE_…), major first */
    ax_axes rest;              /* axes that split dim 0 of weights further between uses, by elements */
} ax_strategy;

/* Return the i-th strategy that a configuration may name, and its name, or NULL after the last. */
const ax_strategy *ax_strategy_at(int i);
const char *ax_strategy_name(int i);
/* Finds a strategy by name. AX_ERR_USAGE, with a message that lists all strategies, if there is none. */
AX_MUST_CHECK ax_status ax_strategy_find(const char *name, const ax_strategy **out);
/* The strategies for text generation on the grid of a training run, whose weights are not split along z. With
 * inference the batch is replicated: all ranks continue the same sequences. With generation ranks along data
 * have sequences of their own, which experts that are divided along data do not allow. */
extern const ax_strategy ax_strategy_inference;
extern const ax_strategy ax_strategy_generation;
/* Returns the context's strategy. */
const ax_strategy *ax_strategy_of(const ax_ctx *ctx);
/* Returns the axes that have a size above 1 and that the strategy does not use; the set is empty if the grid
 * fits the strategy. (ax_model_check_grid also checks whether the grid fits a model and a batch.) */
ax_axisset ax_strategy_lacks(const ax_strategy *strategy, ax_grid_size size);
/* Returns the number of ranks that split a dim of this role (AX_ROLE_…) in a grid of this size. */
int64_t ax_strategy_ranks(const ax_strategy *strategy, ax_role role, ax_grid_size size);

/* Returns the layout of a tensor whose dims have these roles, by the context's strategy. If the grid has the
 * factors of data (ax_grid_experts), layouts name them in place of data. If the roles of
 * several dims have the same axis, the axis splits only the first of these dims: with strategy axonn the
 * layout of [vocab, width] is [v@x.y, d]. */
ax_layout ax_layout_of_roles(const ax_ctx *ctx, const ax_role *roles, int ndim);
/* Returns the axes along which each rank computes only a partial sum of the gradient of a parameter with
 * these roles: the axes that split the batch, except those that split experts (AX_ROLE_EXPERTS); for widths
 * of keys and values also the axis along which the key heads are replicated; for parameters that all heads
 * share (AX_ROLE_HEAD) also the axes that split the heads. */
ax_axisset ax_grad_axes_of_roles(const ax_ctx *ctx, const ax_role *roles, int ndim);
/* Returns the axes that split the batch. */
ax_axisset ax_batch_axes(const ax_ctx *ctx);

/* Returns the split unit of a vocabulary, for embedding tables and output heads: 64 entries, which suits the
 * kernels. If the vocabulary has fewer than 8 such units per rank, the unit is smaller, so that the ranks'
 * parts differ by at most an eighth: it is then the largest power of two with which there are 8 units per
 * rank, or 1 if there is none. */
int64_t ax_vocab_unit(const ax_ctx *ctx, int64_t vocab);
/* Returns the number of logits (elements of the compute dtype) in AX_ROW_ALIGN bytes. Tables with a row for
 * each entry of a vocabulary are padded to a multiple of this number of rows (ax_param_pad_rows). */
int64_t ax_vocab_pad(const ax_ctx *ctx);

/* How the heads of grouped-query attention are split along the axes of AX_ROLE_INNER, so that every rank
 * holds the key heads of its query heads. Each group of heads / kv_heads query heads shares a key head. */
typedef struct ax_heads {
    ax_role q, kv;  /* roles of query width and key width: AX_ROLE_INNER. If x was factored, q has the factors
                       x.kv and x.rep in place of x, and kv has x.kv alone */
    ax_role head;   /* role of the width of one head: AX_ROLE_HEAD, with the same factors as q */
    int64_t q_unit; /* split unit of the query width, in heads; the unit of the key width is one head */
} ax_heads;
/* Chooses how the heads are split over the ranks along the axes of AX_ROLE_INNER. A group is a key head with
 * its query heads. Up to kv_heads ranks each get whole groups. With more ranks than kv_heads and kv_heads <
 * heads, x is factored: each coordinate along x.kv gets one key head, and the query heads of that key head
 * are split along x.rep. The number of ranks must then be a multiple of kv_heads; if it is not, AX_ERR_USAGE,
 * whose message gives the nearest numbers that fit. With more ranks than kv_heads = heads, some ranks have no
 * heads. All ranks call this with the same arguments, because it declares the factors (ax_grid_factor). Not
 * collective. */
AX_MUST_CHECK ax_status ax_heads_split(ax_ctx *ctx, int64_t heads, int64_t kv_heads, ax_heads *out);
/* Returns true if ax_heads_split can split these heads over `ranks` ranks. Not collective. */
bool ax_heads_fit(int64_t heads, int64_t kv_heads, int ranks);

/* ---- parameters ---------------------------------------------------------------------------------- */

typedef enum ax_init_kind {
    AX_INIT_ZERO,
    AX_INIT_ONE,
    AX_INIT_NORMAL, /* mean 0, standard deviation init_std */
    AX_INIT_UNIFORM /* in [-init_std, init_std) */
} ax_init_kind;

/* How a parameter is stored in model files of other programs (Hugging Face). The file has an array named
 * `key` with extents `dim`; the parameter is the box of that array that begins at `lo`, transposed if
 * `transpose` is true (2 dims only). key NULL: the array has the parameter's name and extents.
 *
 * A parameter of three dims may be spread over `spread` arrays, one for each entry of its dim 1 (experts),
 * whose extents are those of the other two dims: the '*' in `key` stands for the number of the array. Such a
 * parameter is also read from one array, `fused`, of extents [spread, parts · dim 0, dim 2], of whose dim 1
 * the parameter is part number `part`. For other parameters `fused` is another name of the array. */
typedef struct ax_param_file {
    char *key, *fused; /* owned; fused may be NULL */
    int64_t spread;    /* 0: the parameter is in one array */
    int part, parts;
    int ndim;
    int64_t dim[AX_MAX_DIMS], lo[AX_MAX_DIMS];
    bool transpose;
    bool sparse; /* the parameters in the array need not cover all of the array; the other elements are 0 */
} ax_param_file;

/* Where a parameter is, on a grid with pipeline stages. A table that the embedding and the head share (tied
 * weights) is on the first and on the last stage. */
typedef enum ax_param_place {
    AX_PARAM_HERE, /* on this rank's stage */
    AX_PARAM_LENT, /* on this rank's stage, which is the first; the last stage has a copy */
    AX_PARAM_COPY, /* this rank's stage has a copy for its kernels; the first stage has the master weights and
                      the optimizer state, adds the copy's gradient to its own, and sends the new weights */
    AX_PARAM_AWAY  /* on another stage: no memory here */
} ax_param_place;

/* The arrays of a parameter's state: the master weights, and the moments that the optimizer keeps (exp_avg,
 * …). */
enum { AX_STATE_MASTER, AX_STATE_MOMENT, AX_STATE_ARRAYS = AX_STATE_MOMENT + 2 };

/* An array of a parameter's state, as far as this rank has it. Updates and checkpoints use it; the kernels of
 * forward and backward read `rest` instead. */
typedef struct ax_param_state {
    ax_dtype dtype;
    int64_t n;  /* number of elements: those of the rank's box in the state layout that are kept */
    void *data; /* memory that kernels can use; NULL: none on this rank, or the array is offloaded */
    struct ax_offload_state *offload; /* what has the array instead of `data`; or NULL */
    int64_t at;                       /* the array's first element there */
    const struct ax_mask *mask;       /* which elements of the box are kept; NULL: all */
} ax_param_state;

/* An array of weights. A layer declares it (extents, roles, initialisation); an ax_param_set gives it memory.
 *
 * A parameter has four layouts. U, the layout "in use" by kernels, follows from the parameter's roles ("o@y,
 * i@x"). Below, z stands for the strategy's `rest` axes. "/z" and "/z.data" add these axes as fine axes to
 * dim 0 of parameters of two or more dims:
 *
 *   in kernels  U                            gathered before use (2502.08145, Alg. 1, line 2)
 *   rest        U/z  (zero 3: U/z.data)      stored between uses
 *   gradient    U/z  (zero 2, 3: U/z.data)   sum over micro-batches; with zero 0, 1 partial along data
 *   state       U/z  (zero 1 … 3: U/z.data)  master weights, optimizer state, the step's final gradient
 *
 * Between layouts that are equal on a grid no communication is needed, and `sum` and `grad` share memory. If
 * the dtype of `rest` is that of the master weights, kernels read the master weights: these are `rounded`, a
 * part of `rest`. After the local box the memory has room for the padding of collectives.
 *
 * A frozen parameter is read and never updated: it has no gradient, no optimizer state, and no master weights
 * besides the weights that kernels read. */
typedef struct ax_param {
    char *name;        /* path in the model, "h.0.attn.q.weight"; owned */
    ax_layout use;     /* layout U, in which kernels read the weights */
    ax_tensor rest;    /* the weights as stored between uses; compute dtype if ndim >= 2, else accum */
    ax_tensor rounded; /* this rank's part of the master weights, converted to the dtype of rest, state
                          layout; lies within rest */
    /* What the optimizer updates and checkpoints store, in the accum dtype. The master weights have the dtype
     * of rest if the parameter is not trained (ax_param_trains). */
    ax_param_state state[AX_STATE_ARRAYS];
    /* The gradient, in the accum dtype; with narrow_grads (ax_parallel) that of a matrix has the compute
     * dtype: so have contributions, sums over micro-batches, and what reductions send. */
    ax_tensor sum;        /* gradient layout: sum over the step's micro-batches so far */
    ax_tensor grad;       /* state layout: valid after ax_param_set_sync_grad */
    ax_axisset grad_axes; /* axes along which each rank's gradient is only a partial sum: those of
                             ax_grad_axes_of_roles and of ax_param_sums_over */
    ax_init_kind init;
    double init_std;
    bool decay;           /* weight decay applies to the parameter: ndim >= 2 */
    bool frozen;          /* set before ax_param_set_create */
    ax_param_place place; /* set before ax_param_set_create */
    struct ax_mask *mask; /* set before ax_param_set_create (ax_param_prune); NULL: all elements are kept */
    ax_param_file file;
    int64_t row_unit; /* in layout U, rows of zeros are added in memory up to a multiple of row_unit rows
                         (ax_param_pad_rows); 0: none */
    struct ax_param *first, *next; /* the first parameter of this one's group, and the next one in it
                                      (ax_param_join); NULL: none */
    struct ax_param_set *set;      /* the set that gave it memory, or NULL */
    struct ax_param_live *live;    /* the parameter's collectives in flight; owned by the set */
} ax_param;

/* Declares a parameter, which has no memory until ax_param_set_create. `roles` determines its layouts. The
 * caller owns *out. AX_ERR_USAGE if an extent is below 1 or ax_tensor_check fails. */
AX_MUST_CHECK ax_status ax_param_create(ax_ctx *ctx, const char *name, int ndim, const int64_t *dim,
                                        const int64_t *unit, const ax_role *roles, ax_init_kind init,
                                        double init_std, ax_param **out);
/* Declares that each rank computes only a partial sum of the gradient also along the axes that split dims of
 * role `role`, although the parameter has no such dim. Example: in y = x·Aᵀ·Bᵀ the gradient of A is
 * (dy·B)ᵀ·x, and dy·B is a sum over the width of y, which is not a dim of A. Call this function before
 * ax_param_set_create. */
void ax_param_sums_over(ax_ctx *ctx, ax_param *param, ax_role role);
/* Pads a matrix in memory: in layout U, rows of zeros follow each rank's last row, up to a multiple of `unit`
 * rows. Contractions compute with these rows too (ax_contract_run), so that extents of GEMMs suit the
 * kernels. Values, counts, norms and files do not have these rows. Call this function before
 * ax_param_set_create. */
void ax_param_pad_rows(ax_param *param, int64_t unit);
/* Makes n <= AX_BESIDE parameters a group: matrices whose rows kernels read as one matrix, and which are
 * acquired in this order. Weights that are gathered before use are gathered into adjacent memory, and the
 * weight cache keeps all or none of them. (Memory of parameters that follow each other in a set is adjacent
 * anyway, if their sizes are multiples of 64 bytes.) Call this function before ax_param_set_create. */
void ax_param_join(ax_param *const *params, int n);

/* Pruned matrices (arXiv 2302.05045, SAMO). Kernels read a pruned matrix with its zeros, but its master
 * weights, optimizer state and gradient have the kept elements only: `sum`, `grad` and the arrays of state
 * are vectors, with the kept elements of the rank's box row after row. In layout U the vector has a part for
 * each rank along the fine axes, with the elements of that rank's rows in the state layout. All parts are as
 * long as the longest, rounded up to 64 bytes, so that reductions work on vectors as on other tensors; the
 * padding is zero. A contraction writes a contribution to dense frame memory in the accum dtype, and
 * ax_param_add_grad compresses it at once. After an update the new weights are expanded. Sums, files and
 * checkpoints do not show any of this.
 *
 * ax_param_box returns this rank's box of a matrix in layout U. ax_param_prune gives a matrix of this stage
 * its mask: bit c % 64 of word bits[r · words + c / 64], words being the box's columns / 64 rounded up, says
 * whether element (r, c) of the box is kept; other bits are 0. The bits are copied. Call it before
 * ax_param_set_create, with the bits of the same matrix on all ranks that have a part of it. The values of
 * other elements must be zero. AX_ERR_USAGE if a box keeps more than 2^31 elements. */
ax_box ax_param_box(const ax_ctx *ctx, const ax_param *param);
AX_MUST_CHECK ax_status ax_param_prune(ax_ctx *ctx, ax_param *param, const uint64_t *bits);

/* The masks of a model's matrices, for all engines and plans that are made of it. `read` sets the bits of the
 * elements in `box` that are kept, as for ax_param_prune; the bits are 0 before. ax_masks_apply prunes those
 * of the n matrices that have zeros on any rank; the first call is collective along `world`: all ranks
 * fail if one fails. All calls give the same matrices. It keeps the bits that it reads, until they are those
 * of a context that is not dry. ax_masks_count returns the number of matrices with zeros, after the first
 * ax_masks_apply. */
typedef struct ax_masks ax_masks;
typedef ax_status ax_mask_read_fn(void *source, ax_ctx *ctx, const ax_param *param, const ax_box *box,
                                  uint64_t *bits);
AX_MUST_CHECK ax_status ax_masks_create(ax_comm *world, ax_mask_read_fn *read, void *source, ax_masks **out);
AX_MUST_CHECK ax_status ax_masks_apply(ax_masks *masks, ax_ctx *ctx, ax_param *const *params, int n);
int ax_masks_count(const ax_masks *masks);
/* Returns a checksum of the places of all zeros, after the first ax_masks_apply: the same on all ranks and
 * grids. */
uint64_t ax_masks_checksum(const ax_masks *masks);
void ax_masks_destroy(ax_masks **masks);

void ax_param_destroy(ax_param **param);
/* Returns true if this rank's stage updates the parameter: its place is AX_PARAM_HERE or AX_PARAM_LENT. */
bool ax_param_is_owned(const ax_param *param);
/* Returns true if the parameter is updated: it is not frozen, and its set has gradients. */
bool ax_param_trains(const ax_param *param);

/* Gets the parameter in layout U, in which kernels use it; *out is valid until the next ax_frame_begin. If
 * the `rest` layout is not U, the parameter is gathered into frame memory. If the parameter has a place in
 * the weight cache, it is gathered there, and only once after each update. With overlap.oag this call also
 * starts the all-gathers of the parameters that earlier runs of the task acquired right after this one.
 * Collective along the axes that `rest` has and U lacks. */
AX_MUST_CHECK ax_status ax_param_acquire(ax_frame *frame, ax_param *param, ax_tensor *out);

/* Adds the contraction `spec` of a and b (ax_contract) to the gradient; the GEMM accumulates in place if the
 * layouts agree. Does nothing if the parameter is frozen. If the frame defers contractions (ax_frame_defers),
 * the contraction is computed in a later part of the task. Collective as ax_param_add_grad. */
AX_MUST_CHECK ax_status ax_param_accumulate(ax_frame *frame, ax_param *param, const char *spec,
                                            const ax_tensor *a, const ax_tensor *b);
/* Adds the contraction of a[i] and b to the gradient of params[i], for i < n <= AX_BESIDE, as
 * ax_param_accumulate does. The contractions run as one GEMM where ax_contract_each allows it. If biases[i]
 * is not NULL, also adds the sums of a[i] over all dims but the last to the gradient of the vector biases[i],
 * unless biases[i] or params[i] is frozen; the GEMM computes these sums too (col_sums in ax_gemm_args). */
AX_MUST_CHECK ax_status ax_param_accumulate_each(ax_frame *frame, int n, ax_param *const *params,
                                                 ax_param *const *biases, const char *spec,
                                                 const ax_tensor *a, const ax_tensor *b);
/* Adds the contractions "ro,ri->ogi" of rows in groups, a[i] and b, to the gradients of params[i]
 * (ax_contract_grouped), as ax_param_accumulate_each does. *groups is copied. The calls for all rounds of the
 * groups, in their order, add one contribution to each gradient; it is deferred only if there is one round.
 */
AX_MUST_CHECK ax_status ax_param_accumulate_grouped(ax_frame *frame, const ax_groups *groups, int n,
                                                    ax_param *const *params, const char *spec,
                                                    const ax_tensor *a, const ax_tensor *b);
/* Two calls for kernels that compute gradients themselves. First ax_param_grad_target gives the memory for a
 * contribution (the gradient of one use of the parameter in one micro-batch) in layout `produced`: the
 * gradient itself if the layouts agree, else frame memory. The kernel must overwrite *out if *fresh, and add
 * to it otherwise; with fresh NULL, *out is zeroed where *fresh would be true, and the kernel always adds.
 * Not collective. Then ax_param_add_grad redistributes the contribution to the gradient's layout and adds it.
 * With overlap.ors this transfer may be in flight until ax_param_set_sync_grad, ax_frame_next_part or
 * ax_frame_begin; until then the contribution's memory must not be used. Along an axis where the gradient is
 * partial and the contribution is replicated, only the rank with coordinate 0 adds the contribution.
 * ax_param_add_grad is collective along the axes in which the two layouts differ. */
AX_MUST_CHECK ax_status ax_param_grad_target(ax_frame *frame, ax_param *param, const ax_layout *produced,
                                             ax_tensor *out, bool *fresh);
AX_MUST_CHECK ax_status ax_param_add_grad(ax_frame *frame, ax_param *param, const ax_tensor *part);

/* Copy elements first … first+n-1 of the rank's box between an array of state and host memory. What a mask
 * does not keep is read as zero, and must be written as zero: AX_ERR_DATA. Not collective. */
AX_MUST_CHECK ax_status ax_param_state_read(ax_ctx *ctx, const ax_param_state *state, int64_t first,
                                            int64_t n, void *host);
AX_MUST_CHECK ax_status ax_param_state_write(ax_ctx *ctx, const ax_param_state *state, int64_t first,
                                             int64_t n, const void *host);

/* Writes the new master weights of a pruned matrix to the weights that kernels read (`rounded`): elements
 * first … first+n-1 of the rank's vector, which are at `master`, on the context's device. Not collective. */
AX_MUST_CHECK ax_status ax_param_expand(const ax_param *param, int64_t first, int64_t n, const void *master);

/* Makes new weights available to ax_param_acquire; call it after writing the master weights and `rounded`.
 * Invalidates the parameter in the weight cache. If `rounded` is split along data and `rest` is not (zero 1,
 * 2), starts the all-gather from `rounded` to `rest`; the next acquire waits for it. Before that, if the
 * parameter is on two pipeline stages (tied weights, AX_PARAM_LENT), the first stage sends it along pipe to
 * the last one, which has the copy. Collective along data with zero 1, 2, and along pipe for tied weights. */
AX_MUST_CHECK ax_status ax_param_all_gather(ax_param *param);

/* The blocks of device memory of a parameter set: weights that kernels read, the weight cache included; state
 * that kernels do not read (master weights included, if they have memory of their own); gradients. */
enum { AX_BLOCK_WEIGHTS, AX_BLOCK_STATE, AX_BLOCK_GRADIENTS, AX_PARAM_BLOCKS };
typedef struct ax_param_block {
    void *data;
    ax_memory memory; /* bytes by class */
} ax_param_block;

/* The parameters of a model, each once, with their memory in flat blocks. All ranks list the parameters of
 * all pipeline stages, so that a parameter has the same index on every rank. */
typedef struct ax_param_set {
    ax_ctx *ctx;
    int n;
    ax_param **param; /* the set owns this array; the layers own the parameters */
    int moments;      /* arrays of optimizer state per parameter that is trained */
    ax_memory memory; /* bytes on this rank, by class */
    ax_param_block block[AX_PARAM_BLOCKS];
    struct ax_offload_state *offload; /* offloaded state; NULL: none */
    struct ax_param_flow *flow;       /* collectives in flight, ax_param_uses, buckets of gradients */
} ax_param_set;

/* Gives memory to `n` parameters; a parameter listed twice, as tied weights are, counts once. moments: number
 * of optimizer state arrays of each parameter that is not frozen; moments < 0 means inference: there are no
 * gradients, and no master weights besides the weights that kernels read. Optimizer state and gradients are
 * zero; the content of the weights is undefined. Not collective. The caller owns *out; the parameters must
 * outlive it. AX_ERR_INTERNAL if two different parameters have the same name. */
AX_MUST_CHECK ax_status ax_param_set_create(ax_ctx *ctx, ax_param *const *params, int n, int moments,
                                            ax_param_set **out);
void ax_param_set_destroy(ax_param_set **set);
/* Returns the parameter with this name, or NULL. */
ax_param *ax_param_set_find(const ax_param_set *set, const char *name);
/* Sets the parameters to their initial values (ax_init_kind). Random values are the same on every grid:
 * element i of a parameter is a function of (seed, name, i). Collective along the world: all ranks fail
 * if one fails. */
AX_MUST_CHECK ax_status ax_param_set_init(ax_param_set *set);
/* Sets all parameters except frozen ones to their initial values (see ax_param_set_init). Frozen parameters
 * keep their values. Collective along the world. */
AX_MUST_CHECK ax_status ax_param_set_init_trained(ax_param_set *set);
/* Makes the weights that kernels read from the master weights: rounds all master weights to the dtype of
 * `rest`, all-gathers them (ax_param_all_gather), and waits. Call this function after writing the master
 * weights. Collective along the world: all ranks fail if one fails. */
AX_MUST_CHECK ax_status ax_param_set_refresh(ax_param_set *set);
/* Reserves pinned memory for the messages of tied weights that this stage shares with another stage
 * (ax_comm_reserve_messages), once; their first message reserves it otherwise. A dry run calls it to count
 * the memory. The set releases it. Not collective. */
AX_MUST_CHECK ax_status ax_param_set_reserve_messages(ax_param_set *set);
/* Begins a step: until the next call, the first contribution to the gradient of each matrix overwrites the
 * gradient, and the others are added. Gradients of vectors become zero, and all contributions are added. */
AX_MUST_CHECK ax_status ax_param_set_zero_grad(ax_param_set *set);
/* Tells the set whether the next backward pass is the step's last one for its layers (`last`). If `last` is
 * true, the reduction of a bucket of gradients (ax_param_set_sync_grad) starts during this backward pass, as
 * soon as each gradient of the bucket has received as many contributions as in the micro-batch before (or as
 * ax_param_set_learn_uses said).
 * Otherwise ax_param_set_sync_grad starts it. */
AX_MUST_CHECK ax_status ax_param_set_last_micro_batch(ax_param_set *set, bool last);
/* Completes the gradients of a step, after its last micro-batch: waits for all contributions and reduces
 * partial sums. Then param->grad is valid. Gradients adjacent in memory and reduced along the same axes form
 * buckets of at most 4 Mi elements (16 MiB in fp32), reduced by one all-reduce each (a larger gradient is a
 * bucket of its own); with zero 1 the gradient of each matrix is reduce-scattered along data by itself.
 * Collective along the axes along which gradients are partial, and along pipe if two stages share a
 * parameter. */
AX_MUST_CHECK ax_status ax_param_set_sync_grad(ax_param_set *set);
/* The first half of ax_param_set_sync_grad, for an update that reduces gradients itself (ax_offload_reduce):
 * waits for all contributions. Not collective, but for contributions in flight. */
AX_MUST_CHECK ax_status ax_param_set_end_grad(ax_param_set *set);
/* Computes sumsq[i], the sum over all ranks of the squares of the gradient of parameter i before the
 * reduction of ax_param_set_sync_grad, which may follow; only for sets with ax_offload_chunk. `sumsq` is as
 * for ax_param_set_grad_sumsq. An element of the reduced gradient is at most sqrt(ranks · Σ sumsq).
 * Collective along the grid. */
AX_MUST_CHECK ax_status ax_param_set_partial_sumsq(ax_param_set *set, double *sumsq);
/* Computes sumsq[i], the sum of squares of the gradient of parameter i (0 if it is frozen) over the whole
 * grid. Call after ax_param_set_sync_grad. `sumsq` is device memory for set->n doubles and has the same
 * values on every rank afterwards. Collective along the grid. */
AX_MUST_CHECK ax_status ax_param_set_grad_sumsq(ax_param_set *set, double *sumsq);
/* Computes sumsq[i], the sum of squares of the master weights of parameter i over the whole grid; not finite
 * if a weight of the parameter is not finite. `sumsq` is device memory, as for ax_param_set_grad_sumsq.
 * Collective along the grid. */
AX_MUST_CHECK ax_status ax_param_set_weight_sumsq(ax_param_set *set, double *sumsq);

/* ---- offloaded state -----------------------------------------------------------------------------
 *
 * With ax_parallel.offload, the arrays of trained matrices that only updates read are not in device memory.
 * In their place the elements of all these matrices are numbered through in the order of the set, each matrix
 * rounded up to AX_UPDATE_UNIT elements, and a bucket is ax_offload.bucket consecutive ones. Where the device
 * cannot use the state in its place, an update acquires each bucket in ascending order, uses the addresses of
 * ax_offload_find, and releases the bucket; a bucket on the device has the elements of all arrays. Vectors
 * stay on the device: kernels read their master weights. */

/* Replaces AX_OFFLOAD_AUTO and the default size of a bucket in *by by their values for backend `device`, and
 * sets by->memory, unless that is known. A set does this with the settings of its context; a plan needs it
 * before, because it is made on the device dry. */
AX_MUST_CHECK ax_status ax_offload_resolve(const char *device, ax_offload *by);
/* Returns true if the host carries the collectives of a device with these settings, which are resolved: then
 * what ranks send to other nodes, and the buffers for it, can be planned. Between GPUs it is not known who
 * does. */
bool ax_offload_host_carries(const ax_offload *by);
/* Returns the word for a place in the key offload.optimizer: "none", "host" or "file". */
const char *ax_offload_place_name(ax_offload_place place);
/* Returns the number of buckets of a set; 0 if updates use the state in its place, as on the cpu backend, or
 * if nothing is offloaded. */
int64_t ax_offload_buckets(const ax_param_set *set);
/* Returns the bytes of a set's offloaded state. */
size_t ax_offload_bytes(const ax_param_set *set);
/* Returns how many buckets are on the device at a time, and sets *elements to the elements of each; 0: none.
 */
int ax_offload_slots(const ax_param_set *set, int64_t *elements);
/* Returns true if updates use state of p in buckets. */
bool ax_param_is_bucketed(const ax_param *p);
/* Returns the bucket with the last state of p; for a parameter without state on this rank, the bucket with
 * the state after it; -1: there are no buckets. It never falls from one parameter of a set to the next. */
int64_t ax_offload_last(const ax_param *p);
/* The part of a parameter that is in a bucket: elements first … first+n-1 of the rank's box, and the
 * addresses of their state (NULL: not offloaded), gradients and weights for the device that updates, while
 * the bucket is acquired. */
typedef struct ax_offload_part {
    int64_t first, n;
    void *state[AX_STATE_ARRAYS];
    void *grad;    /* only read */
    void *weights; /* as kernels read them */
} ax_offload_part;
/* Returns the stream for kernels that update buckets: that of a cpu device if the host updates for a device
 * with memory of its own, else the compute stream. */
ax_stream *ax_offload_stream(const ax_param_set *set);
/* Finds the part of p that is in a bucket. Returns false if there is none. */
bool ax_offload_find(const ax_param *p, int64_t bucket, ax_offload_part *out);
/* Returns how many elements of gradients an update by buckets may reduce while it updates those before
 * (ax_offload.chunk), the same on all ranks; 0: none, because the settings say so or updates use the state in
 * its place. ax_offload_reduce is for such an update, after ax_param_set_end_grad: it waits for the gradients
 * that a bucket needs, and starts the reductions of the chunk after the bucket's chunk. Buckets are to be
 * given in ascending order, then -1: waits for all gradients. Collective as ax_param_set_sync_grad. */
int64_t ax_offload_chunk(const ax_param_set *set);
AX_MUST_CHECK ax_status ax_offload_reduce(ax_param_set *set, int64_t bucket);
/* ax_offload_begin starts to bring the first buckets, early in a step, so that they come in while kernels of
 * the step run. ax_offload_acquire orders kernels that are enqueued later on ax_offload_stream after the
 * arrival of a bucket, and ax_offload_release its way back after the kernels that are enqueued so far;
 * kernels that are enqueued later on the compute stream read the new weights. Not collective. AX_ERR_DATA:
 * the file cannot be read or written. */
AX_MUST_CHECK ax_status ax_offload_begin(ax_param_set *set);
AX_MUST_CHECK ax_status ax_offload_acquire(ax_param_set *set, int64_t bucket);
AX_MUST_CHECK ax_status ax_offload_release(ax_param_set *set, int64_t bucket);

/* How the tasks of a parameter set use its parameters: the order in which each task acquires them, recorded
 * in the task's first run, and how many contributions each gradient gets in a micro-batch. Prefetching
 * all-gathers in the recorded order changes the order of frame allocations. So what the dry run recorded is
 * copied to the real set, whose tasks then make the same allocations as planned, and whose first step reduces
 * gradients as early as later ones. ax_param_set_take_uses returns a copy, which the caller owns;
 * ax_param_set_learn_uses sets the uses of a set with the same parameters. Not collective. */
typedef struct ax_param_uses ax_param_uses;
AX_MUST_CHECK ax_status ax_param_set_take_uses(const ax_param_set *set, ax_param_uses **out);
AX_MUST_CHECK ax_status ax_param_set_learn_uses(ax_param_set *set, const ax_param_uses *uses);
void ax_param_uses_destroy(ax_param_uses **uses);

#ifdef __cplusplus
}
#endif
#endif
