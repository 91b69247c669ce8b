/* A layer with experts. A router chooses top_k of the experts for each token; the result is the sum of their
 * MLPs, each multiplied by the weight of the choice. With a capacity, choices without a place have no rows in
 * training. This file has the router; moe_rounds.c and moe_capacity.c compute the experts. */
#include "nn/moe.h"

#include <stdio.h>

static const char router_spec[] = "bti,ei->bte", router_input_spec[] = "bte,ei->bti",
                  router_grad_spec[] = "bte,bti->ei";

/* ---- the router ---------------------------------------------------------------------------------- */

/* Returns the number of places that an expert has for a sample in the running task; 0: no limit. */
static int64_t capacity_of(const ax_layer *self, const ax_frame *frame, const ax_tensor *tokens)
{
    const ax_moe_config *c = moe_config(self);
    return ax_frame_training(frame) ? ax_expert_capacity(c->capacity, c->experts, c->top_k, tokens->dim[1])
                                    : 0;
}

ax_choices moe_choices(const ax_layer *self, const ax_frame *frame, const ax_tensor *tokens)
{
    const ax_moe_config *c = moe_config(self);
    return (ax_choices){.experts = c->experts,
                        .top_k = c->top_k,
                        .renormalize = c->renormalize,
                        .capacity = capacity_of(self, frame, tokens)};
}

ax_status moe_choose(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_choices *c)
{
    ax_tensor w, logits;
    AX_TRY(ax_param_acquire(frame, self->param[MOE_ROUTER], &w));
    AX_TRY(ax_contract_rule(self->ctx->grid, router_spec, x, &w, &logits));
    logits.dtype = self->ctx->accum;
    AX_TRY(ax_frame_alloc(frame, &logits, &logits));
    AX_TRY(ax_contract_run(frame, router_spec, x, &w, NULL, false, &logits));
    return ax_op_route(frame, &logits, c);
}

ax_status moe_router_grad(ax_layer *self, ax_frame *frame, const ax_choices *c, const ax_tensor *own,
                          const ax_tensor *dweight, ax_tensor *dlogits)
{
    const ax_moe_config *config = moe_config(self);
    const ax_batch *batch = ax_frame_batch(frame);
    double *total = batch && batch->routers ? batch->routers + config->index * (3 + config->experts) : NULL;
    ax_tensor summed;
    AX_TRY(ax_settle(frame, dweight, &c->weight.layout, &summed));
    AX_TRY(ax_op_route_grad(frame, c, own, &summed, config->balance, config->z, total, dlogits));
    return ax_param_accumulate(frame, self->param[MOE_ROUTER], router_grad_spec, dlogits, own);
}

/* dlogits is whole on every rank, so each rank computes its part. */
ax_status moe_add_router_input_grad(ax_layer *self, ax_frame *frame, const ax_tensor *dlogits, ax_tensor *dx)
{
    ax_tensor w, part;
    AX_TRY(ax_param_acquire(frame, self->param[MOE_ROUTER], &w));
    ax_layout columns = w.layout;
    columns.dim[1] = dx->layout.dim[2];
    AX_TRY(ax_settle(frame, &w, &columns, &part));
    return ax_contract_run(frame, router_input_spec, dlogits, &part, NULL, true, dx);
}

/* ---- the layer ----------------------------------------------------------------------------------- */

/* Returns true if places are exchanged: not outside of training, where nothing is dropped. */
static bool exchanges(const ax_layer *self, const ax_frame *frame)
{
    const ax_layout divided = {.dim = {((const moe *)self)->experts}};
    return ax_frame_training(frame) && moe_config(self)->capacity > 0 &&
           ax_grid_group_size(self->ctx->grid, ax_layout_split_axes(&divided, 1)) > 1;
}

static ax_status moe_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    return exchanges(self, frame) ? moe_capacity_forward(self, frame, x, y)
                                  : moe_rounds_forward(self, frame, x, y);
}

static ax_status moe_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    return exchanges(self, frame) ? moe_capacity_backward(self, frame, dy, dx)
                                  : moe_rounds_backward(self, frame, dy, dx);
}

static const ax_layer_ops moe_ops = {.kind = "moe", .forward = moe_forward, .backward = moe_backward};

/* ---- construction -------------------------------------------------------------------------------- */

static ax_status declare(ax_layer *self, int index, const char *part, int ndim, const int64_t *dim,
                         const ax_role *roles, double std)
{
    char full[256];
    const int64_t unit[3] = {1, 1, 1};
    snprintf(full, sizeof full, "%s.%s.weight", self->name, part);
    return ax_param_create(self->ctx, full, ndim, dim, unit, roles, AX_INIT_NORMAL, std, &self->param[index]);
}

static ax_status declare_all(ax_layer *self, const ax_moe_config *c)
{
    const int64_t in[] = {c->ffn, c->experts, c->width}, out[] = {c->width, c->experts, c->ffn};
    const ax_role in_roles[] = {AX_ROLE_EXPERT, AX_ROLE_EXPERTS, AX_ROLE_NONE},
                  out_roles[] = {AX_ROLE_NONE, AX_ROLE_EXPERTS, AX_ROLE_EXPERT};
    const ax_layout divided = {.dim = {((moe *)self)->experts}};
    const int ranks = ax_grid_group_size(self->ctx->grid, ax_layout_split_axes(&divided, 1));
    AX_CHECK(c->top_k >= 1 && c->top_k <= c->experts, AX_ERR_USAGE,
             "layer \"%s\": each token chooses %lld of %lld experts: choose 1 to %lld", self->name,
             (long long)c->top_k, (long long)c->experts, (long long)c->experts);
    AX_CHECK(c->capacity >= 0, AX_ERR_USAGE,
             "layer \"%s\": the capacity of experts is %g: choose a positive factor, or 0 for no limit",
             self->name, c->capacity);
    AX_CHECK(ranks <= c->experts, AX_ERR_USAGE,
             "layer \"%s\": %lld experts cannot be divided among %d ranks: choose at most %lld", self->name,
             (long long)c->experts, ranks, (long long)c->experts);
    AX_TRY(declare(self, MOE_ROUTER, "router", 2, (int64_t[]){c->experts, c->width},
                   (ax_role[]){AX_ROLE_NONE, AX_ROLE_NONE}, c->init_std));
    AX_TRY(declare(self, MOE_GATE, "gate", 3, in, in_roles, c->init_std));
    AX_TRY(declare(self, MOE_UP, "up", 3, in, in_roles, c->init_std));
    AX_TRY(declare(self, MOE_DOWN, "down", 3, out, out_roles, c->down_init_std));
    ax_param_join(&self->param[MOE_GATE], MOE_BESIDE);
    return AX_OK;
}

/* Adds those of the axes `from` to `to` that do not split a dim of `but`. */
static void add_axes(const ax_axes *from, const ax_layout *but, ax_axes *to)
{
    for (int i = 0; i < from->n; i++)
        if (!(ax_layout_split_axes(but, AX_MAX_DIMS) >> from->a[i] & 1))
            to->a[to->n++] = from->a[i];
}

static void find_axes(moe *m, ax_ctx *ctx)
{
    const ax_layout experts = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_EXPERTS}, 1),
                    inner = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_EXPERT}, 1);
    m->x_layout = ax_activation_layout(ctx, AX_ROLE_MODEL);
    m->experts = experts.dim[0];
    add_axes(&m->x_layout.dim[0], &experts, &m->batch);
    m->inner = inner.dim[0];
    m->narrow = m->x_layout.dim[2];
    if (m->experts.n)
        add_axes(&inner.dim[0], &m->x_layout, &m->narrow);
}

ax_layer *ax_moe(ax_ctx *ctx, const char *name, const ax_moe_config *config)
{
    ax_layer *layer = ax_layer_new(ctx, &moe_ops, name, sizeof(moe));
    if (!layer)
        return NULL;
    ((moe *)layer)->config = *config;
    find_axes((moe *)layer, ctx);
    if (declare_all(layer, config) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}
