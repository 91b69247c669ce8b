/* Operations of mixtures of experts: the router's choices, and the rows that are sorted by them. */
#include "op/op.h"

static ax_stream *stream_of(const ax_frame *frame) { return ax_frame_ctx(frame)->stream; }

static ax_status alloc_ints(ax_frame *frame, int64_t n, ax_tensor *out)
{
    ax_tensor like = ax_tensor_make(AX_I32, 1, &n, NULL, NULL);
    return ax_frame_alloc(frame, &like, out);
}

static int64_t tokens_of(const ax_choices *c) { return c->lse.dim[0]; }

/* ---- the router ---------------------------------------------------------------------------------- */

static ax_status sort_choices(ax_frame *frame, ax_choices *c)
{
    const int64_t n = tokens_of(c) * c->top_k;
    AX_TRY(alloc_ints(frame, n, &c->source));
    AX_TRY(alloc_ints(frame, n, &c->place));
    AX_TRY(alloc_ints(frame, c->experts + 1, &c->bounds));
    return ax_run_group(stream_of(frame), &(ax_group_args){.n = n,
                                                           .groups = c->experts,
                                                           .group = c->choice.data,
                                                           .source = c->source.data,
                                                           .place = c->place.data,
                                                           .bounds = c->bounds.data});
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
    AX_TRY(ax_op_local(frame, 2, (int64_t[]){n, c->top_k}, &c->weight));
    AX_TRY(alloc_ints(frame, n * c->top_k, &c->choice));
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
    return sort_choices(frame, c);
}

/* Adds the statistics of the choices to `total`, and computes *share. */
static ax_status add_stats(ax_frame *frame, const ax_choices *c, int64_t samples, double *total,
                           ax_tensor *share)
{
    const ax_batch *batch = ax_frame_batch(frame);
    AX_TRY(ax_op_local(frame, 2, (int64_t[]){samples, c->experts + 1}, share));
    return ax_run_route_stats(stream_of(frame),
                              &(ax_route_stats_args){.samples = samples,
                                                     .tokens = tokens_of(c) / ax_max(samples, 1),
                                                     .experts = c->experts,
                                                     .top_k = c->top_k,
                                                     .probs = c->probs.data,
                                                     .lse = c->lse.data,
                                                     .choice = c->choice.data,
                                                     .ids = batch ? batch->tokens.data : NULL,
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
                                                                .ids = batch ? batch->tokens.data : NULL,
                                                                .now = batch ? batch->now : NULL,
                                                                .dlogits = dlogits->data,
                                                                .dtype = logits.dtype,
                                                                .renormalize = c->renormalize});
}

/* ---- rows ---------------------------------------------------------------------------------------- */

/* Returns true if the tokens and the width of x are those of this rank's part of the batch alone. */
static bool has_whole_width(const ax_grid *grid, const ax_tensor *x)
{
    return !ax_layout_effective(grid, &x->layout, 3).dim[2].n && !x->align;
}

ax_status ax_op_dispatch(ax_frame *frame, const ax_choices *c, const ax_tensor *x, ax_tensor *rows)
{
    const ax_ctx *ctx = ax_frame_ctx(frame);
    AX_CHECK(has_whole_width(ctx->grid, x), AX_ERR_INTERNAL,
             "tokens are sent to experts with their whole width: redistribute them first");
    ax_layout layout = {.dim = {x->layout.dim[0]}, .partial = x->layout.partial};
    const int64_t each = x->dim[1] * c->top_k;
    ax_tensor like = ax_tensor_make(x->dtype, 2, (int64_t[]){x->dim[0] * each, x->dim[2]},
                                    (int64_t[]){each * ax_max(x->unit[0], 1), 1}, &layout);
    AX_TRY(ax_frame_alloc(frame, &like, rows));
    return ax_run_dispatch(ctx->stream, &(ax_dispatch_args){.n = tokens_of(c),
                                                            .cols = x->dim[2],
                                                            .top_k = c->top_k,
                                                            .x = x->data,
                                                            .source = c->source.data,
                                                            .y = rows->data,
                                                            .dtype = x->dtype});
}

ax_status ax_op_combine(ax_frame *frame, const ax_choices *c, const ax_tensor *rows, const ax_tensor *like,
                        ax_tensor *y)
{
    ax_tensor sum = *like;
    sum.dim[2] = rows->dim[1];
    sum.unit[2] = rows->unit[1];
    sum.layout.dim[2] = rows->layout.dim[1];
    sum.layout.partial = rows->layout.partial;
    AX_TRY(ax_frame_alloc(frame, &sum, y));
    return ax_run_combine(stream_of(frame),
                          &(ax_combine_args){.n = tokens_of(c),
                                             .cols = ax_tensor_extent(ax_frame_ctx(frame)->grid, rows, 1),
                                             .top_k = c->top_k,
                                             .x = rows->data,
                                             .place = c->place.data,
                                             .y = y->data,
                                             .dtype = rows->dtype});
}

ax_status ax_op_glu_rows(ax_frame *frame, const ax_choices *c, const ax_tensor *gate, const ax_tensor *up,
                         ax_activation kind, ax_tensor *y)
{
    int64_t rows, cols, ld;
    ax_tensor like = *gate;
    like.align = 0;
    AX_TRY(ax_op_no_partial(frame, gate, "a gated unit"));
    AX_TRY(ax_op_alike(frame, gate, up));
    AX_TRY(ax_frame_alloc(frame, &like, y));
    ax_op_rows(frame, gate, &rows, &cols, &ld);
    return ax_run_glu(stream_of(frame), &(ax_glu_args){.rows = rows,
                                                       .cols = cols,
                                                       .ld = ld,
                                                       .scales = rows,
                                                       .gate = gate->data,
                                                       .up = up->data,
                                                       .scale = c->weight.data,
                                                       .index = c->source.data,
                                                       .y = y->data,
                                                       .dtype = gate->dtype,
                                                       .kind = kind});
}

ax_status ax_op_glu_rows_grad(ax_frame *frame, const ax_choices *c, ax_tensor *gate, ax_tensor *up,
                              ax_tensor *dy, ax_activation kind, ax_tensor *dweight)
{
    int64_t rows, cols, ld;
    ax_op_rows(frame, gate, &rows, &cols, &ld);
    AX_TRY(ax_op_local(frame, 2, c->weight.dim, dweight));
    return ax_run_glu_grad(stream_of(frame), &(ax_glu_grad_args){.rows = rows,
                                                                 .cols = cols,
                                                                 .ld = ld,
                                                                 .scales = rows,
                                                                 .gate = gate->data,
                                                                 .up = up->data,
                                                                 .dy = dy->data,
                                                                 .scale = c->weight.data,
                                                                 .index = c->source.data,
                                                                 .dgate = gate->data,
                                                                 .dup = up->data,
                                                                 .y = dy->data,
                                                                 .dscale = dweight->data,
                                                                 .dtype = gate->dtype,
                                                                 .kind = kind});
}
