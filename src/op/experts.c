/* Operations of mixtures of experts: the router's choices, and the rows that are sorted by them. */
#include "op/op.h"

#include <math.h>

static ax_stream *stream_of(const ax_frame *frame) { return ax_frame_ctx(frame)->stream; }

static ax_status alloc_ints(ax_frame *frame, int64_t n, ax_tensor *out)
{
    ax_tensor like = ax_tensor_make(AX_I32, 1, &n, NULL, NULL);
    return ax_frame_alloc(frame, &like, out);
}

static int64_t tokens_of(const ax_choices *c) { return c->lse.dim[0]; }

/* ---- the router ---------------------------------------------------------------------------------- */

/* Allocates a tensor with a value for each choice. */
static ax_status alloc_choices(ax_frame *frame, const ax_tensor *logits, int64_t top_k, ax_dtype dtype,
                               ax_tensor *out)
{
    ax_tensor like = *logits;
    like.dim[2] = top_k;
    like.unit[2] = 1;
    like.dtype = dtype;
    return ax_frame_alloc(frame, &like, out);
}

static const int32_t *ids_of(const ax_frame *frame)
{
    const ax_batch *batch = ax_frame_batch(frame);
    return batch ? batch->tokens.data : NULL;
}

/* A decimal factor has no exact binary number: its rounding gives no place. */
int64_t ax_expert_capacity(double factor, int64_t experts, int64_t top_k, int64_t tokens)
{
    const double share = factor * (double)(top_k * tokens) / (double)experts;
    return (int64_t)ceil(fmin(share * (1 - 1e-12), (double)tokens));
}

/* Gives the choices of `samples` samples places. */
static ax_status admit(ax_frame *frame, int64_t samples, ax_choices *c)
{
    if (c->placed) {
        AX_TRY(alloc_ints(frame, tokens_of(c) * c->top_k, &c->place));
        AX_TRY(alloc_ints(frame, c->experts * samples * c->capacity, &c->source));
    }
    return ax_run_admit(stream_of(frame), &(ax_admit_args){.samples = samples,
                                                           .tokens = tokens_of(c) / ax_max(samples, 1),
                                                           .experts = c->experts,
                                                           .top_k = c->top_k,
                                                           .capacity = c->capacity,
                                                           .ids = ids_of(frame),
                                                           .choice = c->choice.data,
                                                           .place = c->place.data,
                                                           .source = c->source.data});
}

ax_status ax_op_route(ax_frame *frame, const ax_tensor *logits, ax_choices *c)
{
    int64_t n, experts;
    ax_rows_cols(frame, logits, &n, &experts);
    AX_CHECK(experts == c->experts && logits->dtype == ax_frame_ctx(frame)->accum, AX_ERR_INTERNAL,
             "the router's logits must be %s and have a column for each expert on every rank",
             ax_dtype_name(ax_frame_ctx(frame)->accum));
    AX_TRY(ax_op_local(frame, 2, (int64_t[]){n, experts}, &c->probs));
    AX_TRY(ax_op_local(frame, 1, &n, &c->lse));
    AX_TRY(alloc_choices(frame, logits, c->top_k, logits->dtype, &c->weight));
    AX_TRY(alloc_choices(frame, logits, c->top_k, AX_I32, &c->choice));
    AX_TRY(ax_run_route(stream_of(frame), &(ax_route_args){.rows = n,
                                                           .experts = experts,
                                                           .top_k = c->top_k,
                                                           .logits = logits->data,
                                                           .probs = c->probs.data,
                                                           .lse = c->lse.data,
                                                           .weight = c->weight.data,
                                                           .choice = c->choice.data,
                                                           .dtype = logits->dtype,
                                                           .renormalize = c->renormalize}));
    return c->capacity ? admit(frame, ax_tensor_extent(ax_frame_ctx(frame)->grid, logits, 0), c) : AX_OK;
}

/* Adds the statistics of the choices to `total`, and computes *share. */
static ax_status add_stats(ax_frame *frame, const ax_choices *c, int64_t samples, double *total,
                           ax_tensor *share)
{
    AX_TRY(ax_op_local(frame, 2, (int64_t[]){samples, c->experts + 1}, share));
    return ax_run_route_stats(stream_of(frame),
                              &(ax_route_stats_args){.samples = samples,
                                                     .tokens = tokens_of(c) / ax_max(samples, 1),
                                                     .experts = c->experts,
                                                     .top_k = c->top_k,
                                                     .probs = c->probs.data,
                                                     .lse = c->lse.data,
                                                     .choice = c->choice.data,
                                                     .ids = ids_of(frame),
                                                     .share = share->data,
                                                     .total = total,
                                                     .dtype = c->probs.dtype});
}

ax_status ax_op_route_grad(ax_frame *frame, const ax_choices *c, const ax_tensor *like,
                           const ax_tensor *dweight, double balance, double z, double *total,
                           ax_tensor *dlogits)
{
    const ax_ctx *ctx = ax_frame_ctx(frame);
    const ax_batch *batch = ax_frame_batch(frame);
    const int64_t samples = ax_tensor_extent(ctx->grid, like, 0), n = tokens_of(c);
    ax_tensor share = {0}, logits = *like;
    logits.dim[2] = c->experts;
    logits.unit[2] = 1;
    logits.dtype = ctx->compute;
    if (total)
        AX_TRY(add_stats(frame, c, samples, total, &share));
    AX_TRY(ax_frame_alloc(frame, &logits, dlogits));
    return ax_run_route_grad(ctx->stream, &(ax_route_grad_args){.samples = samples,
                                                                .tokens = n / ax_max(samples, 1),
                                                                .experts = c->experts,
                                                                .top_k = c->top_k,
                                                                .balance = total ? balance : 0,
                                                                .z = total ? z : 0,
                                                                .probs = c->probs.data,
                                                                .lse = c->lse.data,
                                                                .weight = c->weight.data,
                                                                .dweight = dweight->data,
                                                                .share = share.data,
                                                                .choice = c->choice.data,
                                                                .ids = ids_of(frame),
                                                                .now = batch ? batch->now : NULL,
                                                                .dlogits = dlogits->data,
                                                                .dtype = logits.dtype,
                                                                .renormalize = c->renormalize});
}

/* ---- rows ---------------------------------------------------------------------------------------- */

/* Returns an array with an entry for each expert. */
static ax_tensor expert_array(int64_t experts, const ax_axes *axes)
{
    const ax_layout layout = {.dim = {*axes}};
    return ax_tensor_make(AX_I32, 1, &experts, NULL, &layout);
}

/* A rank has at most a row for each gathered token and each of its experts, at most top_k rows for a token,
 * and at most a row for each place. Ranks with other experts have other rows: so their axes split the rows of
 * the same tokens, which are a split unit, by elements. */
ax_expert_rows ax_expert_rows_of(const ax_grid *grid, const ax_choices *c, const ax_tensor *tokens,
                                 const ax_axes *axes, double room)
{
    const ax_tensor of = expert_array(c->experts, axes);
    const int ranks = ax_grid_group_size(grid, ax_layout_split_axes(&of.layout, 1));
    const int64_t here = ax_tensor_chunk(grid, &of, 0), all = tokens->dim[1] * ax_min(c->top_k, here),
                  most = c->capacity ? ax_min(all, here * c->capacity) : all,
                  mean = (int64_t)ceil(room * (double)(tokens->dim[1] * c->top_k) / ranks),
                  each = ax_max(ax_min(mean, most), 1), unit = each * ranks;
    ax_expert_rows r = {
        .experts = c->experts, .top_k = c->top_k, .axes = *axes, .rounds = ax_ceil_div(most, each)};
    ax_layout layout = {.dim = {tokens->layout.dim[0]}};
    for (int i = 0; i < axes->n; i++, layout.dim[0].fine++)
        layout.dim[0].a[layout.dim[0].n++] = axes->a[i];
    r.like = ax_tensor_make(tokens->dtype, 2, (int64_t[]){tokens->dim[0] * unit, 0},
                            (int64_t[]){unit * ax_max(tokens->unit[0], 1), 1}, &layout);
    r.rows = ax_tensor_extent(grid, &r.like, 0);
    return r;
}

ax_status ax_op_group(ax_frame *frame, const ax_choices *c, ax_expert_rows *r)
{
    const ax_grid *grid = ax_frame_ctx(frame)->grid;
    const ax_tensor of = expert_array(r->experts, &r->axes);
    ax_layout gathered = {.dim = {r->like.layout.dim[0]}};
    ax_tensor choice;
    int64_t first, here;
    gathered.dim[0].n = (uint8_t)(gathered.dim[0].n - gathered.dim[0].fine);
    gathered.dim[0].fine = 0;
    ax_tensor_range(grid, &of, 0, ax_grid_rank(grid), &first, &here);
    AX_TRY(ax_settle(frame, &c->weight, &gathered, &r->weight));
    AX_TRY(ax_settle(frame, &c->choice, &gathered, &choice));
    const int64_t n = ax_tensor_count(grid, &choice);
    AX_TRY(alloc_ints(frame, r->rounds * r->rows, &r->source));
    AX_TRY(alloc_ints(frame, n, &r->place));
    AX_TRY(alloc_ints(frame, r->rounds * (here + 1), &r->bounds));
    return ax_run_group(stream_of(frame), &(ax_group_args){.n = n,
                                                           .first = first,
                                                           .groups = here,
                                                           .rows = r->rows,
                                                           .rounds = r->rounds,
                                                           .group = choice.data,
                                                           .source = r->source.data,
                                                           .place = r->place.data,
                                                           .bounds = r->bounds.data});
}

ax_groups ax_expert_groups(const ax_expert_rows *r, int64_t round)
{
    const int64_t bounds = r->bounds.dim[0] / r->rounds;
    return (ax_groups){.n = r->experts,
                       .axes = r->axes,
                       .bounds = (const int32_t *)r->bounds.data + round * bounds,
                       .round = round,
                       .rounds = r->rounds};
}

/* Returns where the sources of the rows of a round begin. */
static const int32_t *source_of(const ax_expert_rows *r, int64_t round)
{
    return (const int32_t *)r->source.data + round * r->rows;
}

static int64_t gathered_tokens(const ax_expert_rows *r) { return r->place.dim[0] / r->top_k; }

/* Returns true if the tokens and the width of x are those of this rank's part of the batch alone. */
static bool has_whole_width(const ax_grid *grid, const ax_tensor *x)
{
    return !ax_layout_effective(grid, &x->layout, 3).dim[2].n && !x->align;
}

ax_status ax_op_dispatch(ax_frame *frame, const ax_expert_rows *r, int64_t round, const ax_tensor *x,
                         const ax_tensor *y)
{
    const ax_ctx *ctx = ax_frame_ctx(frame);
    AX_CHECK(has_whole_width(ctx->grid, x), AX_ERR_INTERNAL,
             "tokens are sent to experts with their whole width: redistribute them first");
    return ax_run_dispatch(ctx->stream, &(ax_dispatch_args){.n = gathered_tokens(r),
                                                            .rows = r->rows,
                                                            .cols = x->dim[2],
                                                            .top_k = r->top_k,
                                                            .x = x->data,
                                                            .source = source_of(r, round),
                                                            .y = y->data,
                                                            .dtype = x->dtype});
}

ax_tensor ax_expert_sum(const ax_expert_rows *r, const ax_tensor *x, const ax_tensor *tokens)
{
    const ax_tensor experts = expert_array(r->experts, &r->axes);
    ax_tensor sum = *tokens;
    sum.dim[2] = x->dim[1];
    sum.unit[2] = x->unit[1];
    sum.layout.dim[2] = x->layout.dim[1];
    sum.layout.partial = x->layout.partial | ax_layout_split_axes(&experts.layout, 1);
    return sum;
}

ax_status ax_op_combine(ax_frame *frame, const ax_expert_rows *r, int64_t round, const ax_tensor *x,
                        bool accumulate, const ax_tensor *y)
{
    const ax_ctx *ctx = ax_frame_ctx(frame);
    return ax_run_combine(ctx->stream, &(ax_combine_args){.n = gathered_tokens(r),
                                                          .rows = r->rows,
                                                          .first = round * r->rows,
                                                          .cols = ax_tensor_extent(ctx->grid, x, 1),
                                                          .top_k = r->top_k,
                                                          .x = x->data,
                                                          .place = r->place.data,
                                                          .y = y->data,
                                                          .dtype = x->dtype,
                                                          .accumulate = accumulate});
}

ax_status ax_op_fill_places(ax_frame *frame, const ax_choices *c, const ax_tensor *x, bool weighted,
                            ax_tensor *y)
{
    ax_tensor like =
        ax_tensor_make(x->dtype, 4, (int64_t[]){c->experts, x->dim[0], c->capacity, x->dim[2]},
                       (int64_t[]){1, x->unit[0], 1, 1}, &(ax_layout){.dim = {{0}, x->layout.dim[0]}});
    AX_TRY(ax_frame_alloc(frame, &like, y));
    return ax_run_dispatch(stream_of(frame), &(ax_dispatch_args){.n = tokens_of(c),
                                                                 .rows = c->source.dim[0],
                                                                 .cols = x->dim[2],
                                                                 .top_k = c->top_k,
                                                                 .x = x->data,
                                                                 .scale = weighted ? c->weight.data : NULL,
                                                                 .source = c->source.data,
                                                                 .y = y->data,
                                                                 .dtype = x->dtype,
                                                                 .zeros = true});
}

ax_status ax_op_sum_places(ax_frame *frame, const ax_choices *c, const ax_tensor *x, bool weighted,
                           const ax_tensor *y)
{
    return ax_run_combine(stream_of(frame), &(ax_combine_args){.n = tokens_of(c),
                                                               .rows = c->source.dim[0],
                                                               .cols = x->dim[3],
                                                               .top_k = c->top_k,
                                                               .x = x->data,
                                                               .scale = weighted ? c->weight.data : NULL,
                                                               .place = c->place.data,
                                                               .y = y->data,
                                                               .dtype = x->dtype});
}

ax_status ax_op_sum_places_grad(ax_frame *frame, const ax_choices *c, const ax_tensor *x, const ax_tensor *dy,
                                ax_tensor *dweight)
{
    AX_TRY(ax_frame_alloc(frame, &c->weight, dweight));
    return ax_run_combine_grad(stream_of(frame), &(ax_combine_grad_args){.n = tokens_of(c),
                                                                         .rows = c->source.dim[0],
                                                                         .cols = x->dim[3],
                                                                         .top_k = c->top_k,
                                                                         .x = x->data,
                                                                         .dy = dy->data,
                                                                         .place = c->place.data,
                                                                         .dscale = dweight->data,
                                                                         .dtype = x->dtype});
}

ax_status ax_op_glu_rows(ax_frame *frame, const ax_expert_rows *r, int64_t round, const ax_tensor *gate,
                         const ax_tensor *up, ax_activation kind, const ax_tensor *y)
{
    int64_t rows, cols, ld;
    AX_TRY(ax_op_no_partial(frame, gate, "a gated unit"));
    AX_TRY(ax_op_alike(frame, gate, up));
    ax_op_rows(frame, gate, &rows, &cols, &ld);
    return ax_run_glu(stream_of(frame), &(ax_glu_args){.rows = rows,
                                                       .cols = cols,
                                                       .ld = ld,
                                                       .scales = r->place.dim[0],
                                                       .gate = gate->data,
                                                       .up = up->data,
                                                       .scale = r->weight.data,
                                                       .index = source_of(r, round),
                                                       .y = y->data,
                                                       .dtype = gate->dtype,
                                                       .kind = kind});
}

ax_status ax_op_glu_rows_grad(ax_frame *frame, const ax_expert_rows *r, int64_t round, ax_tensor *gate,
                              ax_tensor *up, ax_tensor *dy, ax_activation kind, const ax_tensor *dweight)
{
    int64_t rows, cols, ld;
    ax_op_rows(frame, gate, &rows, &cols, &ld);
    return ax_run_glu_grad(stream_of(frame), &(ax_glu_grad_args){.rows = rows,
                                                                 .cols = cols,
                                                                 .ld = ld,
                                                                 .scales = r->place.dim[0],
                                                                 .gate = gate->data,
                                                                 .up = up->data,
                                                                 .dy = dy->data,
                                                                 .scale = r->weight.data,
                                                                 .index = source_of(r, round),
                                                                 .dgate = gate->data,
                                                                 .dup = up->data,
                                                                 .y = dy->data,
                                                                 .dscale = dweight->data,
                                                                 .dtype = gate->dtype,
                                                                 .kind = kind});
}
