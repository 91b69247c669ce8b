/* Layers that consist of other layers: sequence, residual, recompute. */
#include "axonn/nn.h"

/* ---- sequence: runs its children one after the other. forward_sum and backward_add leave the addition to
 * the first child, which may fuse the addition with its own work ---- */

static ax_status later_forward(ax_layer *self, ax_frame *frame, ax_tensor *y)
{
    for (int i = 1; i < self->children; i++) {
        ax_tensor in = *y;
        AX_TRY(ax_layer_forward(self->child[i], frame, &in, y));
    }
    return AX_OK;
}

static ax_status later_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *first)
{
    *first = *dy;
    for (int i = self->children - 1; i > 0; i--) {
        ax_tensor in = *first;
        AX_TRY(ax_layer_backward(self->child[i], frame, &in, first));
    }
    return AX_OK;
}

static ax_status sequence_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    if (self->children)
        AX_TRY(ax_layer_forward(self->child[0], frame, x, y));
    else
        *y = *x;
    return later_forward(self, frame, y);
}

static ax_status sequence_forward_sum(ax_layer *self, ax_frame *frame, const ax_tensor *a, const ax_tensor *b,
                                      ax_tensor *x, ax_tensor *y)
{
    if (self->children) {
        AX_TRY(ax_layer_forward_sum(self->child[0], frame, a, b, x, y));
    } else {
        AX_TRY(ax_op_add(frame, a, b, x));
        *y = *x;
    }
    return later_forward(self, frame, y);
}

/* Runs backward for the case that no layer before this one is trained: only down to the first child that is
 * trained. */
static ax_status backward_to_first_trained(ax_layer *self, ax_frame *frame, const ax_tensor *dy)
{
    int first = ax_layer_first_trained(self);
    ax_tensor out = *dy;
    for (int i = self->children - 1; i >= first; i--) {
        ax_tensor in = out;
        AX_TRY(ax_layer_backward(self->child[i], frame, &in, i > first ? &out : NULL));
    }
    return AX_OK;
}

static ax_status sequence_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    ax_tensor first;
    if (!dx)
        return backward_to_first_trained(self, frame, dy);
    AX_TRY(later_backward(self, frame, dy, &first));
    if (self->children)
        return ax_layer_backward(self->child[0], frame, &first, dx);
    *dx = first;
    return AX_OK;
}

static ax_status sequence_backward_add(ax_layer *self, ax_frame *frame, const ax_tensor *dy,
                                       const ax_tensor *add, ax_tensor *dx)
{
    ax_tensor first;
    AX_TRY(later_backward(self, frame, dy, &first));
    return self->children ? ax_layer_backward_add(self->child[0], frame, &first, add, dx)
                          : ax_op_add(frame, &first, add, dx);
}

static const ax_layer_ops sequence_ops = {.kind = "sequence",
                                          .forward = sequence_forward,
                                          .backward = sequence_backward,
                                          .forward_sum = sequence_forward_sum,
                                          .backward_add = sequence_backward_add};

ax_layer *ax_sequence(ax_ctx *ctx, const char *name)
{
    return ax_layer_new(ctx, &sequence_ops, name, sizeof(ax_layer));
}

static ax_layer *with_children(ax_layer *layer, int n, ax_layer *const *children)
{
    for (int i = 0; i < n; i++)
        if (ax_layer_add(layer, children[i]) != AX_OK)
            ax_layer_destroy(&layer);
    return layer;
}

ax_layer *ax_sequence_of(ax_ctx *ctx, const char *name, int n, ax_layer *const *layers)
{
    return with_children(ax_sequence(ctx, name), n, layers);
}

/* ---- residual: y = x, then y += branch(y) for each branch. In forward, the residual layer runs only the
 * last addition itself. Each other addition is left to the next branch, whose forward_sum gets the two
 * summands. In backward, backward_add of each branch adds the gradient of the skip connection. A branch that
 * begins with a norm fuses the addition with the norm ---- */

static ax_status residual_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    ax_tensor branch;
    *y = *x;
    if (!self->children)
        return AX_OK;
    AX_TRY(ax_layer_forward(self->child[0], frame, x, &branch));
    for (int i = 1; i < self->children; i++) {
        const ax_tensor a = *y, b = branch;
        AX_TRY(ax_layer_forward_sum(self->child[i], frame, &a, &b, y, &branch));
    }
    const ax_tensor a = *y;
    return ax_op_add(frame, &a, &branch, y);
}

static ax_status residual_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    /* If dx is NULL, backward ends with the first child that is trained, child number end - 1. */
    int end = dx ? 0 : ax_layer_first_trained(self) + 1;
    ax_tensor out = *dy;
    for (int i = self->children - 1; i >= end; i--) {
        const ax_tensor in = out;
        AX_TRY(ax_layer_backward_add(self->child[i], frame, &in, &in, &out));
    }
    if (!dx)
        return ax_layer_backward(self->child[end - 1], frame, &out, NULL);
    *dx = out;
    return AX_OK;
}

static const ax_layer_ops residual_ops = {
    .kind = "residual", .forward = residual_forward, .backward = residual_backward};

ax_layer *ax_residual(ax_ctx *ctx, const char *name)
{
    return ax_layer_new(ctx, &residual_ops, name, sizeof(ax_layer));
}

ax_layer *ax_residual_of(ax_ctx *ctx, const char *name, int n, ax_layer *const *branches)
{
    return with_children(ax_residual(ctx, name), n, branches);
}

/* ---- recompute (activation checkpointing): saves only x; backward first runs forward again, now saving what
 * backward needs. With parallel.keep_results, it does not communicate again (arXiv 2303.06318,
 * communication-aware checkpointing) ---- */

static ax_status recompute_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    ax_frame_run before;
    AX_TRY(ax_frame_begin_segment(frame, false, &before));
    AX_TRY(ax_layer_forward(self->child[0], frame, x, y));
    AX_TRY(ax_frame_end_segment(frame, &before));
    return ax_frame_save(frame, x);
}

static ax_status recompute_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    ax_tensor x, again;
    ax_frame_run before;
    AX_TRY(ax_frame_restore(frame, &x));
    AX_TRY(ax_frame_begin_segment(frame, true, &before));
    AX_TRY(ax_layer_forward(self->child[0], frame, &x, &again));
    AX_TRY(ax_frame_end_segment(frame, &before));
    return ax_layer_backward(self->child[0], frame, dy, dx);
}

static const ax_layer_ops recompute_ops = {
    .kind = "recompute", .forward = recompute_forward, .backward = recompute_backward};

ax_layer *ax_recompute(ax_ctx *ctx, const char *name, ax_layer *body)
{
    return with_children(ax_layer_new(ctx, &recompute_ops, name, sizeof(ax_layer)), 1, &body);
}
