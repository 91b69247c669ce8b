/* dist: the three rules from which all tensor- and data-parallel communication follows, and parameters.
 *
 *   contract      summing over a split dim yields partial sums along its axes
 *   redistribute  layout to layout is a planned sequence of collectives
 *   reduce        a statistic over a split dim is a SUM or MAX along the axes that split it
 *
 * Plans along axes of size 1 are empty: the serial run is the grid of ones. */
#ifndef AXONN_DIST_H
#define AXONN_DIST_H

#include "axonn/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- contract ------------------------------------------------------------------------------------ */

/* Dtype, extents, units and layout of the contraction `spec` ("bti,oi->bto": one letter a dim) of a and b (no
 * data): each output dim takes extent, unit and axes of its letter; a letter that is summed leaves its axes
 * partial; partial axes of an operand stay partial (in one operand only). Not collective. AX_ERR_INTERNAL if
 * a letter's extents or axes differ between a and b, if only one operand has a summed letter, or if an axis
 * would appear twice. */
AX_MUST_CHECK ax_status ax_contract_rule(const ax_grid *grid, const char *spec, const ax_tensor *a,
                                         const ax_tensor *b, ax_tensor *out);
/* *out = the contraction by that rule, of a's dtype, in frame memory; not collective. `bias`, or NULL, is
 * added along its last dim, whose box it has in the accumulation dtype; the result must then be no partial
 * sum. Rows of operands may be padded if their last letter is alone in its group. It runs as one gemm, so the
 * letters that are kept from a, those kept from b, and those that are summed must each stand together and in
 * the same order wherever they appear ("bto,bti->oi" yes, "bto,tbi->oi" no): else AX_ERR_INTERNAL. */
AX_MUST_CHECK ax_status ax_contract(ax_frame *frame, const char *spec, const ax_tensor *a, const ax_tensor *b,
                                    const ax_tensor *bias, ax_tensor *out);
/* The same into memory that `out` has, of a's dtype or of its accumulation dtype, with or without padded
 * rows; added if `accumulate`. out's extents and layout must be those of the rule. */
AX_MUST_CHECK ax_status ax_contract_run(ax_frame *frame, const char *spec, const ax_tensor *a,
                                        const ax_tensor *b, const ax_tensor *bias, bool accumulate,
                                        const ax_tensor *out);
/* The same with GELU, or what is multiplied by its derivative, by one kernel (ax_gemm_then): the result is no
 * partial sum, and `pre`, which may be NULL where the kernel's may, is like it. */
AX_MUST_CHECK ax_status ax_contract_gelu(ax_frame *frame, const char *spec, const ax_tensor *a,
                                         const ax_tensor *b, const ax_tensor *bias, ax_gemm_then then,
                                         ax_gelu_kind kind, const ax_tensor *pre, const ax_tensor *out);

/* ---- redistribute -------------------------------------------------------------------------------- */

typedef enum ax_step_kind { AX_STEP_GATHER, AX_STEP_SCATTER, AX_STEP_SLICE, AX_STEP_REDUCE } ax_step_kind;

/* One collective (or, for SLICE, none): along `axis` on dim `dim`; REDUCE is an all-reduce along `axes`. */
typedef struct ax_plan_step {
    ax_step_kind kind;
    uint8_t dim;
    ax_axis axis;
    ax_axisset axes;
    ax_layout after; /* the layout once the step is done */
} ax_plan_step;

/* A value: how to get from one layout to another. Slices and scatters come before reductions and those before
 * gathers where the nesting of axes allows, so that less travels. Axes of size 1 take no step. */
typedef struct ax_plan {
    int n;
    ax_plan_step step[2 * AX_LAYOUT_AXES + 2];
} ax_plan;

/* Plans `tensor` (its layout is the source) → `target`. Partial axes of the target must be partial in the
 * source. */
AX_MUST_CHECK ax_status ax_plan_make(const ax_grid *grid, const ax_tensor *tensor, const ax_layout *target,
                                     ax_plan *out);
/* "reduce_scatter(d1@x) all_gather(d0@z)", or "nothing". */
char *ax_plan_print(const ax_grid *grid, const ax_plan *plan, char out[256]);
/* Ring-equivalent bytes of the plan on the calling rank. A dim that is gathered or scattered counts, and
 * travels, in chunks of its largest extent over the ranks that take part. */
AX_MUST_CHECK ax_status ax_plan_bytes(const ax_grid *grid, const ax_tensor *tensor, const ax_plan *plan,
                                      int64_t *out);

/* dst = src in layout `target`; memory comes from the frame, and dst shares src's memory where the plan is
 * empty, and the padding of its rows only then. A plan that begins with an all-reduce overwrites src (and
 * shares it if that is all), unless its rows are padded. Collective along the plan's axes. dst is not valid
 * to read, nor src to change, before ax_wait(work). */
AX_MUST_CHECK ax_status ax_redistribute(ax_frame *frame, const ax_tensor *src, const ax_layout *target,
                                        ax_tensor *dst, ax_work **work);
/* The same, awaited. */
AX_MUST_CHECK ax_status ax_settle(ax_frame *frame, const ax_tensor *src, const ax_layout *target,
                                  ax_tensor *dst);

/* ---- reduce -------------------------------------------------------------------------------------- */

/* In-place reduction of `count` local elements along `axes`. Collective along axes. */
AX_MUST_CHECK ax_status ax_reduce_axes(ax_ctx *ctx, ax_axisset axes, void *data, int64_t count,
                                       ax_dtype dtype, ax_reduce_op op);

/* ---- roles --------------------------------------------------------------------------------------- */

/* What a dim is to the model; a strategy says which axes split it. Layers name roles, never axes. */
enum {
    AX_ROLE_NONE,   /* never split */
    AX_ROLE_BATCH,  /* samples */
    AX_ROLE_MODEL,  /* residual width */
    AX_ROLE_HIDDEN, /* MLP inner width, heads */
    AX_ROLE_VOCAB,
    AX_ROLE_COUNT
};
/* One of these, or one of these with factors in the place of the axis that they make up. */
typedef uint16_t ax_role;
/* `role` with its axis split by both factors of a factoring (ax_grid_factor), or by the major one only and
 * replicated along the minor one. */
ax_role ax_role_both(ax_role role, int factoring);
ax_role ax_role_major(ax_role role, int factoring);

/* A parallel strategy: which axes split a dim, by its role, and which split a weight further while it is not
 * in use. A context names its row (ax_parallel); layers know none. */
typedef struct ax_strategy {
    const char *name, *help;
    ax_axisset axes;           /* the others must have size 1 */
    ax_axes of[AX_ROLE_COUNT]; /* role → axes, major first */
    ax_axes rest;              /* fine, on dim 0 of weights */
} ax_strategy;

/* The rows that a configuration may name: strategy i, or NULL past the last. */
const ax_strategy *ax_strategy_at(int i);
/* The row of that name, or AX_ERR_USAGE naming those that exist. */
AX_MUST_CHECK ax_status ax_strategy_find(const char *name, const ax_strategy **out);
/* Batch replicated, weights held gathered: for the generation of single sequences on a training grid. */
extern const ax_strategy ax_strategy_inference;
/* The context's row. */
const ax_strategy *ax_strategy_of(const ax_ctx *ctx);
/* The axes along which the grid is larger than 1 and which the strategy does not have: none if it fits.
 * Whether a grid is legal for a model and a batch too, ax_model_check_grid says. */
ax_axisset ax_strategy_lacks(const ax_strategy *strategy, ax_grid_size size);

/* The layout of a tensor whose dims have these roles, by the context's strategy. An axis splits the first dim
 * whose role asks for it: [vocab, width] is [v@x.y, d]. */
ax_layout ax_layout_of_roles(const ax_ctx *ctx, const ax_role *roles, int ndim);
/* The axes along which contributions to the gradient of a parameter with these roles are parts of a sum:
 * those that split the batch, and for key heads those that share them. */
ax_axisset ax_grad_axes_of_roles(const ax_ctx *ctx, const ax_role *roles, int ndim);
/* The axes that split the batch. */
ax_axisset ax_batch_axes(const ax_ctx *ctx);

/* The split unit of a vocabulary, for tables and heads: 64 entries, as kernels like them, or less while
 * shards would differ by more than an eighth. */
int64_t ax_vocab_unit(const ax_ctx *ctx, int64_t vocab);

/* How `heads` query heads, each group of heads / kv_heads of which shares a key head, lie on the ranks that
 * split the hidden width, so that every rank holds the key heads of its queries. */
typedef struct ax_heads {
    ax_role q, kv;  /* roles of the two widths: hidden, where need be with factors */
    int64_t q_unit; /* query heads that stay together; key heads split one by one */
} ax_heads;
/* Up to as many ranks as key heads: groups are split in whole. More: key heads are split along x.kv, one
 * each, and the queries of each along x.rep, so the number of ranks must be a multiple of kv_heads, else
 * AX_ERR_USAGE names those near that would do. Collective along the grid: it declares the factors
 * (ax_grid_factor). */
AX_MUST_CHECK ax_status ax_heads_split(ax_ctx *ctx, int64_t heads, int64_t kv_heads, ax_heads *out);
/* Whether `ranks` ranks can split them. Not collective. */
bool ax_heads_fit(int64_t heads, int64_t kv_heads, int ranks);

/* ---- parameters ---------------------------------------------------------------------------------- */

typedef enum ax_init_kind { AX_INIT_ZERO, AX_INIT_ONE, AX_INIT_NORMAL } ax_init_kind;

/* Where a parameter stands in files of other ecosystems: its global array, transposed if `transpose` (2
 * dims), is the box at `lo` of an array called `key` with extents `dim`. key NULL: the parameter's name, and
 * the whole. */
typedef struct ax_param_file {
    char *key; /* owned */
    int ndim;
    int64_t dim[AX_MAX_DIMS], lo[AX_MAX_DIMS];
    bool transpose;
} ax_param_file;

/* A trained array. Declared by a layer (extents, roles, initialisation), given memory by an ax_param_set.
 *
 * It has four layouts, all on the same dims. With U that of its roles ("o@y, i@x") and z and data standing
 * for the strategy's `rest` axes and for data, split fine on dim 0 of parameters of two or more dims:
 *
 *   in kernels   U                              gathered before use (2502.08145, Alg. 1, line 2)
 *   rest         U/z    (zero 3: U/z.data)      what stays in memory between uses
 *   gradient     U/z    (zero 2, 3: U/z.data)   accumulated over micro-batches, else partial along data
 *   state        U/z    (zero 1 … 3: U/z.data)  master weights, optimizer state, the step's whole gradient
 *
 * Where two of them are the same on a grid they share memory, and nothing travels between them. Memory has
 * room behind the local box for the padding of its parts. */
typedef struct ax_param {
    char *name;        /* path in the model, "h.0.attn.q.weight"; owned */
    ax_layout use;     /* U */
    ax_tensor rest;    /* compute dtype if ndim >= 2, else accum */
    ax_tensor master;  /* accum dtype, state layout: what the optimizer updates and checkpoints hold; of the
                          dtype of rest where there is no optimizer (ax_param_set_create) */
    ax_tensor rounded; /* the part of rest that is this rank's master, rounded; master itself if that has the
                          dtype of rest */
    ax_tensor sum;     /* accum dtype, gradient layout: of this step's contributions so far */
    ax_tensor grad;    /* accum dtype, state layout: valid after ax_param_set_sync_grad */
    ax_axisset grad_axes; /* ax_grad_axes_of_roles */
    ax_tensor slot[2];    /* optimizer state; data NULL if the optimizer has fewer */
    ax_init_kind init;
    double init_std;
    bool decay; /* weight decay applies: ndim >= 2 */
    ax_param_file file;
    struct ax_param_set *set;   /* the set that gave it memory, or NULL */
    struct ax_param_live *live; /* what is on its way: the set's */
} ax_param;

/* Declares a parameter: no memory yet. `roles` gives the layouts. The caller owns *out. */
AX_MUST_CHECK ax_status ax_param_create(ax_ctx *ctx, const char *name, int ndim, const int64_t *dim,
                                        const int64_t *unit, const ax_role *roles, ax_init_kind init,
                                        double init_std, ax_param **out);
void ax_param_destroy(ax_param **param);

/* The parameter as kernels read it, in its layout U: valid until the next ax_frame_begin. If it rests split
 * it is gathered into frame memory, unless the weight cache has it; and with overlap.oag the gathers of the
 * next ones in the order of the task's earlier runs are started (OAG). Collective along the axes of `rest`
 * that U lacks. */
AX_MUST_CHECK ax_status ax_param_acquire(ax_frame *frame, ax_param *param, ax_tensor *out);

/* Adds the contraction `spec` of a and b to the gradient: directly into it when the layouts agree. */
AX_MUST_CHECK ax_status ax_param_accumulate(ax_frame *frame, ax_param *param, const char *spec,
                                            const ax_tensor *a, const ax_tensor *b);
/* The same for kernels that make gradients themselves. target: where a contribution in layout `produced`
 * goes: into the gradient if the layouts agree, else into frame memory. It must overwrite *out if *fresh, and
 * be added otherwise; fresh NULL: *out is zeroed where it would be fresh. add: brings the contribution into
 * the gradient's layout and adds it; this may be on its way until ax_param_set_sync_grad or the next
 * ax_frame_begin (ORS), and the contribution's memory belongs to it. A contribution that is whole along an
 * axis along which the gradient is partial is added on coordinate 0 only. target: not collective; add:
 * collective along the axes in which the layouts differ. */
AX_MUST_CHECK ax_status ax_param_grad_target(ax_frame *frame, ax_param *param, const ax_layout *produced,
                                             ax_tensor *out, bool *fresh);
AX_MUST_CHECK ax_status ax_param_add_grad(ax_frame *frame, ax_param *param, const ax_tensor *part);

/* To be called when the master and `rounded` were written: gathers the latter where weights rest less split
 * than that, and voids what the weight cache has. The gather is awaited by the next acquire. Collective along
 * data with zero 1, 2. */
AX_MUST_CHECK ax_status ax_param_publish(ax_param *param);

/* Distinct parameters of a model with their memory, in flat blocks. */
typedef struct ax_param_set {
    ax_ctx *ctx;
    int n;
    ax_param **param; /* borrowed from the layers; the array is owned */
    int slots;        /* optimizer state arrays per parameter */
    /* On this rank: master weights; what kernels read where that is other memory, the weight cache included;
     * gradients; optimizer state. */
    size_t bytes_master, bytes_use, bytes_grad, bytes_state;
    void *block[4];
    struct ax_param_flow *flow; /* what is on its way */
} ax_param_set;

/* Gives memory to `n` parameters (duplicates, as tying makes them, are dropped). slots < 0: no gradients
 * either, and weights are just what kernels read (inference). Optimizer state is zero, all else is undefined.
 * The caller owns *out; the parameters must outlive it. AX_ERR_INTERNAL if two have one name. */
AX_MUST_CHECK ax_status ax_param_set_create(ax_ctx *ctx, ax_param *const *params, int n, int slots,
                                            ax_param_set **out);
void ax_param_set_destroy(ax_param_set **set);
/* The parameter of that name, or NULL. */
ax_param *ax_param_set_find(const ax_param_set *set, const char *name);
/* Draws initial values, the same on every grid: element i of a parameter is a function of (seed, name, i).
 * Not for weights that are kept in 16 bits alone. */
AX_MUST_CHECK ax_status ax_param_set_init(ax_param_set *set);
/* To be called when master weights were written: rounds and publishes all of them, and awaits that. */
AX_MUST_CHECK ax_status ax_param_set_refresh(ax_param_set *set);
/* Begins a step's gradients: the first contribution to each overwrites what is there. */
AX_MUST_CHECK ax_status ax_param_set_zero_grad(ax_param_set *set);
/* The micro-batch that begins is the last of the step: once a gradient has as many contributions as in the
 * micro-batch before, its reduction over data may start. */
AX_MUST_CHECK ax_status ax_param_set_last_micro_batch(ax_param_set *set);
/* Ends them: awaits all contributions and sums what is partial; param->grad is valid. Gradients that are
 * neighbours in memory and summed along the same axes travel together, up to 16 MiB at a time; with zero 1
 * weights are reduce-scattered along data, each by itself. Collective along the axes of contributions. */
AX_MUST_CHECK ax_status ax_param_set_sync_grad(ax_param_set *set);
/* sumsq[i] = Σ grad² of parameter i over the whole grid, after sync; `sumsq` is device memory for set->n
 * doubles, the same on every rank afterwards. The total is their sum. Collective along the grid. */
AX_MUST_CHECK ax_status ax_param_set_grad_sumsq(ax_param_set *set, double *sumsq);
/* The same of the master weights: not finite where one of them is not. */
AX_MUST_CHECK ax_status ax_param_set_weight_sumsq(ax_param_set *set, double *sumsq);

/* The order in which tasks acquire parameters, as it is known after they ran once: a rehearsal gives it to
 * the run that its frame was planned for, so that both ask for the same memory. take: the caller owns *out;
 * learn copies it into a set of as many parameters. Not collective. */
typedef struct ax_param_orders ax_param_orders;
AX_MUST_CHECK ax_status ax_param_set_take_orders(const ax_param_set *set, ax_param_orders **out);
AX_MUST_CHECK ax_status ax_param_set_learn_orders(ax_param_set *set, const ax_param_orders *orders);
void ax_param_orders_destroy(ax_param_orders **orders);

#ifdef __cplusplus
}
#endif
#endif
