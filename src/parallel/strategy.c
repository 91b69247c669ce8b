/* The table of parallel strategies. A strategy defines, for each role that a dim can have in the model, which
 * axes split the dim. */
#include "axonn/parallel.h"

#include <stdio.h>
#include <string.h>

#define AXIS(a) ((ax_axisset)(1u << (a)))
/* Make the set of axes that a strategy uses. Every strategy can be combined with pipeline stages, because no
 * tensor is split along pipe; so each set contains the axis pipe. */
#define AXES_1(a) (AXIS(a) | AXIS(AX_PIPE))
#define AXES_2(a, b) (AXIS(a) | AXIS(b) | AXIS(AX_PIPE))

#define ALL_AXES (AXES_2(AX_X, AX_Y) | AXES_2(AX_Z, AX_DATA))

/* Between uses, weights are split along z and all-gathered before use (arXiv 2502.08145, Alg. 1). z is a fine
 * axis (ax_axes): it may cut dim 0 between any two elements, even inside a unit that other axes keep whole,
 * such as the rows of one attention head. */
#define REST_Z                                                                                               \
    {                                                                                                        \
        .n = 1, .fine = 1, .a = { AX_Z }                                                                     \
    }

/* Experts lie along data.exp, a factor of data. Their tokens are gathered along this axis alone, so data is
 * the innermost axis of the batch. */
#define EXPERTS [AX_ROLE_EXPERTS] = {.n = 1, .a = {AX_DATA}}

static const ax_strategy table[] = {
    /* The inner width is split along x and the residual width along y. So the output of each linear layer has
     * the layout that the next linear layer needs, and no redistribution between them is necessary (arXiv
     * 2305.13525, section 3). The vocabulary is split along both x and y, and embedding tables have the whole
     * residual width. If the tables' width were split along y, the logits would have to be all-reduced along
     * y, which would be nearly half of the bytes that a GPT-2 communicates. So it is with experts: if they
     * read a residual width split along y, the inner widths of each token's experts would be all-reduced
     * along y. */
    {"axonn",
     "3D tensor parallelism (x, y, z) times data and pipeline parallelism",
     ALL_AXES,
     {[AX_ROLE_BATCH] = {.n = 2, .a = {AX_Z, AX_DATA}},
      [AX_ROLE_MODEL] = {.n = 1, .a = {AX_Y}},
      [AX_ROLE_INNER] = {.n = 1, .a = {AX_X}},
      [AX_ROLE_VOCAB] = {.n = 2, .a = {AX_X, AX_Y}},
      [AX_ROLE_EXPERT] = {.n = 2, .a = {AX_X, AX_Y}},
      EXPERTS},
     REST_Z},
    {"megatron",
     "1D tensor parallelism (x) times data parallelism",
     AXES_2(AX_X, AX_DATA),
     {[AX_ROLE_BATCH] = {.n = 1, .a = {AX_DATA}},
      [AX_ROLE_INNER] = {.n = 1, .a = {AX_X}},
      [AX_ROLE_VOCAB] = {.n = 1, .a = {AX_X}},
      [AX_ROLE_EXPERT] = {.n = 1, .a = {AX_X}},
      EXPERTS},
     {0}},
    {"fsdp",
     "data parallelism with weights, gradients and optimizer state split along z",
     AXES_1(AX_Z),
     {[AX_ROLE_BATCH] = {.n = 1, .a = {AX_Z}}},
     REST_Z},
    {"hsdp",
     "fsdp within groups of ranks (z), data parallelism between the groups (data)",
     AXES_2(AX_Z, AX_DATA),
     {[AX_ROLE_BATCH] = {.n = 2, .a = {AX_Z, AX_DATA}}, EXPERTS},
     REST_Z},
    {"ddp", "data parallelism", AXES_1(AX_DATA), {[AX_ROLE_BATCH] = {.n = 1, .a = {AX_DATA}}, EXPERTS}, {0}},
};

const ax_strategy ax_strategy_inference = {"inference",
                                           "every rank has the whole batch; weights are not split along z",
                                           ALL_AXES,
                                           {[AX_ROLE_MODEL] = {.n = 1, .a = {AX_Y}},
                                            [AX_ROLE_INNER] = {.n = 1, .a = {AX_X}},
                                            [AX_ROLE_VOCAB] = {.n = 2, .a = {AX_X, AX_Y}},
                                            [AX_ROLE_EXPERT] = {.n = 2, .a = {AX_X, AX_Y}},
                                            EXPERTS},
                                           {0}};

const ax_strategy ax_strategy_generation = {"generation",
                                            "as inference, and ranks along data have sequences of their own",
                                            ALL_AXES,
                                            {[AX_ROLE_BATCH] = {.n = 1, .a = {AX_DATA}},
                                             [AX_ROLE_MODEL] = {.n = 1, .a = {AX_Y}},
                                             [AX_ROLE_INNER] = {.n = 1, .a = {AX_X}},
                                             [AX_ROLE_VOCAB] = {.n = 2, .a = {AX_X, AX_Y}},
                                             [AX_ROLE_EXPERT] = {.n = 2, .a = {AX_X, AX_Y}},
                                             EXPERTS},
                                            {0}};

const ax_strategy *ax_strategy_at(int i) { return i >= 0 && i < (int)AX_COUNT(table) ? &table[i] : NULL; }

const char *ax_strategy_name(int i) { return ax_strategy_at(i) ? table[i].name : NULL; }

ax_status ax_strategy_find(const char *name, const ax_strategy **out)
{
    char names[128] = "";
    for (size_t i = 0; i < AX_COUNT(table); i++) {
        if (!strcmp(name, table[i].name)) {
            *out = &table[i];
            return AX_OK;
        }
        ax_text_add(names, sizeof names, "%s%s", i ? ", " : "", table[i].name);
    }
    return ax_fail(AX_ERR_USAGE, "there is no strategy \"%s\"; choose one of %s", name, names);
}

const ax_strategy *ax_strategy_of(const ax_ctx *ctx)
{
    return ctx->parallel.strategy ? ctx->parallel.strategy : &table[0];
}

/* ---- grids that fit ------------------------------------------------------------------------------ */

ax_axisset ax_strategy_lacks(const ax_strategy *strategy, ax_grid_size size)
{
    ax_axisset lacking = 0;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        if (ax_grid_size_along(size, (ax_axis)a) > 1)
            lacking |= AXIS(a) & (ax_axisset)~strategy->axes;
    return lacking;
}

int64_t ax_strategy_ranks(const ax_strategy *strategy, ax_role role, ax_grid_size size)
{
    const ax_axes *axes = &strategy->of[role];
    int64_t ranks = 1;
    for (int i = 0; i < axes->n; i++)
        ranks *= ax_grid_size_along(size, axes->a[i]);
    return ranks;
}

/* ---- layouts ------------------------------------------------------------------------------------- */

/* The bits of an ax_role. The low ROLE_BITS bits are the AX_ROLE_… constant. The higher bits are 0 if no axis
 * is replaced by its factors. Otherwise they are 1 + 2 · (index of the factoring), plus MAJOR_ONLY if only
 * the major factor splits the dim. */
enum { ROLE_BITS = 8, MAJOR_ONLY = 1 };

ax_role ax_role_both(ax_role role, int factoring)
{
    return (ax_role)(role | (1 + 2 * factoring) << ROLE_BITS);
}

ax_role ax_role_major(ax_role role, int factoring)
{
    return (ax_role)(role | (1 + 2 * factoring + MAJOR_ONLY) << ROLE_BITS);
}

/* Which factors of an axis split a dim. */
enum { MAJOR = 1, MINOR = 2 };

/* Adds those factors of an axis that are named by `which` and have several ranks. */
static void add_factors(const ax_ctx *ctx, const ax_factoring *f, int which, ax_axes *axes)
{
    if ((which & MAJOR) && ax_grid_axis_size(ctx->grid, f->major) > 1)
        axes->a[axes->n++] = f->major;
    if ((which & MINOR) && ax_grid_axis_size(ctx->grid, f->minor) > 1)
        axes->a[axes->n++] = f->minor;
}

/* Adds axis `a` of a strategy's row for roles with the AX_ROLE_… constant `base`. Data stands for its
 * factors, if experts need them: of these the minor one alone splits AX_ROLE_EXPERTS. */
static void add_axis(const ax_ctx *ctx, ax_role base, ax_axis a, ax_axes *axes)
{
    const ax_factoring *experts = ax_grid_experts(ctx->grid);
    if (a == AX_DATA && experts)
        add_factors(ctx, experts, base == AX_ROLE_EXPERTS ? MINOR : MAJOR | MINOR, axes);
    else if (base != AX_ROLE_EXPERTS)
        axes->a[axes->n++] = a;
}

static ax_axes axes_of(const ax_ctx *ctx, ax_role role)
{
    const int factored = (role >> ROLE_BITS) - 1;
    const ax_role base = role & ((1 << ROLE_BITS) - 1);
    const ax_axes *of = &ax_strategy_of(ctx)->of[base];
    const ax_factoring f =
        factored < 0 ? (ax_factoring){.axis = AX_MAX_AXES} : ax_grid_factoring(ctx->grid, factored / 2);
    ax_axes axes = {0};
    for (int i = 0; i < of->n; i++)
        if (of->a[i] == f.axis)
            add_factors(ctx, &f, factored & MAJOR_ONLY ? MAJOR : MAJOR | MINOR, &axes);
        else
            add_axis(ctx, base, of->a[i], &axes);
    return axes;
}

/* Returns the axis along which a dim of this role is replicated because only the major factor of an axis
 * splits the dim (ax_role_major): the minor factor. Returns the empty set for all other roles. */
static ax_axisset sharing_axes(const ax_ctx *ctx, ax_role role)
{
    int factored = (role >> ROLE_BITS) - 1;
    return factored >= 0 && (factored & MAJOR_ONLY) ? AXIS(ax_grid_factoring(ctx->grid, factored / 2).minor)
                                                    : 0;
}

static ax_axisset set_of(const ax_axes *axes)
{
    ax_axisset set = 0;
    for (int i = 0; i < axes->n; i++)
        set |= AXIS(axes->a[i]);
    return set;
}

/* If `role` is AX_ROLE_HEAD (the width of one head, in weights that all heads share), returns the axes that
 * split the heads; otherwise returns the empty set. */
static ax_axisset head_axes(const ax_ctx *ctx, ax_role role)
{
    const ax_role factors = (ax_role)(role >> ROLE_BITS << ROLE_BITS);
    ax_axes heads = axes_of(ctx, (ax_role)(factors | AX_ROLE_INNER));
    return (ax_role)(role - factors) == AX_ROLE_HEAD ? set_of(&heads) : 0;
}

/* If `role` is AX_ROLE_EXPERTS, returns the axes that split the experts, along which tokens are gathered:
 * each rank has the whole gradients of its experts. Otherwise returns the empty set. */
static ax_axisset expert_axes(const ax_ctx *ctx, ax_role role)
{
    const ax_axes axes = axes_of(ctx, role);
    return role == AX_ROLE_EXPERTS ? set_of(&axes) : 0;
}

/* Returns those of `axes` that are not in `taken`. */
static ax_axes without(const ax_axes *axes, ax_axisset taken)
{
    ax_axes left = {0};
    for (int i = 0; i < axes->n; i++)
        if (!(taken >> axes->a[i] & 1))
            left.a[left.n++] = axes->a[i];
    return left;
}

ax_layout ax_layout_of_roles(const ax_ctx *ctx, const ax_role *roles, int ndim)
{
    ax_layout layout = {0};
    for (int d = 0; d < ndim; d++) {
        ax_axes axes = axes_of(ctx, roles[d]);
        layout.dim[d] = without(&axes, ax_layout_split_axes(&layout, d));
    }
    return layout;
}

int64_t ax_vocab_unit(const ax_ctx *ctx, int64_t vocab)
{
    ax_layout layout = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_VOCAB}, 1);
    int ranks = ax_grid_group_size(ctx->grid, ax_layout_split_axes(&layout, 1));
    int64_t unit = 64;
    while (unit > 1 && vocab < 8 * unit * ranks)
        unit /= 2;
    return unit;
}

int64_t ax_vocab_pad(const ax_ctx *ctx) { return AX_ROW_ALIGN / (int64_t)ax_dtype_size(ctx->compute); }

ax_axisset ax_batch_axes(const ax_ctx *ctx)
{
    ax_layout batch = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_BATCH}, 1);
    return ax_layout_split_axes(&batch, 1);
}

ax_axisset ax_grad_axes_of_roles(const ax_ctx *ctx, const ax_role *roles, int ndim)
{
    ax_axisset axes = ax_batch_axes(ctx);
    for (int d = 0; d < ndim; d++)
        axes |= sharing_axes(ctx, roles[d]) | head_axes(ctx, roles[d]);
    for (int d = 0; d < ndim; d++)
        axes &= (ax_axisset)~expert_axes(ctx, roles[d]);
    return axes;
}

/* ---- heads --------------------------------------------------------------------------------------- */

bool ax_heads_fit(int64_t heads, int64_t kv_heads, int ranks)
{
    return ranks <= kv_heads || heads == kv_heads || ranks % kv_heads == 0;
}

ax_status ax_heads_split(ax_ctx *ctx, int64_t heads, int64_t kv_heads, ax_heads *out)
{
    ax_layout hidden = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_INNER}, 1);
    int ranks = ax_grid_group_size(ctx->grid, ax_layout_split_axes(&hidden, 1));
    *out = (ax_heads){AX_ROLE_INNER, AX_ROLE_INNER, AX_ROLE_HEAD, heads / kv_heads};
    AX_CHECK(
        ax_heads_fit(heads, kv_heads, ranks), AX_ERR_USAGE,
        "%d ranks along x cannot split %lld key heads, each with %lld query heads: the query heads of a rank "
        "would belong to two key heads; choose x = %lld or %lld",
        ranks, (long long)kv_heads, (long long)(heads / kv_heads), (long long)(ranks / kv_heads * kv_heads),
        (long long)ax_round_up(ranks, kv_heads));
    if (ranks <= kv_heads || heads == kv_heads)
        return AX_OK;
    int factoring;
    AX_TRY(ax_grid_factor(ctx->grid, AX_FACTOR_KV, (int)kv_heads, &factoring));
    *out = (ax_heads){ax_role_both(AX_ROLE_INNER, factoring), ax_role_major(AX_ROLE_INNER, factoring),
                      ax_role_both(AX_ROLE_HEAD, factoring), 1};
    return AX_OK;
}
