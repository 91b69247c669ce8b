/* A layer with experts. A router chooses top_k of the experts for each token; the result is the sum of their
 * MLPs, each multiplied by the weight of the choice. No choice is dropped: the rows of all choices, sorted by
 * expert, go through grouped GEMMs (ax_contract_grouped).
 *
 * The factor of a row is applied to the input of down, not to its output: so nothing of the size of the
 * experts' outputs is kept for backward, and the sum over the choices of a token is a plain sum. The experts'
 * inner width is split along all axes that tensor parallelism has (AX_ROLE_EXPERT), and their input has the
 * whole residual width. So forward gathers the tokens once along y, and reduces the sum over choices once:
 * the bytes depend neither on top_k nor on the experts' sizes. Backward does the same with gradients, and
 * reduces the gradients of the weights of choices, which are partial sums over the inner width. */
#include "nn/linear.h"

#include <stdio.h>

typedef struct moe {
    ax_layer base;
    ax_moe_config config;
    ax_layout x_layout;
} moe;

enum { ROUTER, GATE, UP, DOWN };
enum { BESIDE = UP - GATE + 1 }; /* gate and up, which have the same input */

static const char router_spec[] = "bti,ei->bte", router_input_spec[] = "bte,ei->bti",
                  router_grad_spec[] = "bte,bti->ei";
static const char forward_spec[] = "ri,ogi->ro", input_spec[] = "ro,ogi->ri", grad_spec[] = "ro,ri->ogi";

static const ax_moe_config *config_of(const ax_layer *self) { return &((const moe *)self)->config; }

static ax_groups groups_of(const ax_choices *c) { return (ax_groups){c->experts, c->bounds.data}; }

/* Gives x the whole residual width on every rank. */
static ax_status gather_width(ax_frame *frame, const ax_tensor *x, ax_tensor *out)
{
    ax_layout whole = x->layout;
    whole.dim[2] = (ax_axes){0};
    return ax_settle(frame, x, &whole, out);
}

/* ---- forward ------------------------------------------------------------------------------------- */

static ax_status choose(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_choices *c)
{
    const ax_moe_config *config = config_of(self);
    ax_tensor w, logits;
    *c = (ax_choices){.experts = config->experts, .top_k = config->top_k, .renormalize = config->renormalize};
    AX_TRY(ax_param_acquire(frame, self->param[ROUTER], &w));
    AX_TRY(ax_contract_rule(self->ctx->grid, router_spec, x, &w, &logits));
    logits.dtype = self->ctx->accum;
    AX_TRY(ax_frame_alloc(frame, &logits, &logits));
    AX_TRY(ax_contract_run(frame, router_spec, x, &w, NULL, false, &logits));
    return ax_op_route(frame, &logits, c);
}

/* Computes in[0] and in[1], gate and up of each row; they lie beside each other. */
static ax_status enter_experts(ax_layer *self, ax_frame *frame, const ax_choices *c, const ax_tensor *x,
                               ax_tensor in[BESIDE])
{
    const ax_groups groups = groups_of(c);
    ax_tensor rows, w[BESIDE], rule[BESIDE];
    ax_contraction each[BESIDE];
    AX_TRY(ax_op_dispatch(frame, c, x, &rows));
    for (int i = 0; i < BESIDE; i++) {
        AX_TRY(ax_param_acquire(frame, self->param[GATE + i], &w[i]));
        AX_TRY(ax_contract_grouped_rule(self->ctx->grid, &groups, forward_spec, &rows, &w[i], &rule[i]));
        each[i] = (ax_contraction){.a = &rows, .b = &w[i], .out = &in[i]};
    }
    AX_TRY(ax_frame_alloc_beside(frame, BESIDE, rule, in));
    return ax_contract_grouped(frame, &groups, forward_spec, each, BESIDE);
}

/* Computes the sum over the choices of each token of down(h), as partial sums over the inner width. */
static ax_status leave_experts(ax_layer *self, ax_frame *frame, const ax_choices *c, const ax_tensor *h,
                               const ax_tensor *like, ax_tensor *sum)
{
    const ax_groups groups = groups_of(c);
    ax_tensor w, rows;
    AX_TRY(ax_param_acquire(frame, self->param[DOWN], &w));
    AX_TRY(ax_contract_grouped_rule(self->ctx->grid, &groups, forward_spec, h, &w, &rows));
    AX_TRY(ax_frame_alloc(frame, &rows, &rows));
    AX_TRY(ax_contract_grouped(frame, &groups, forward_spec, &(ax_contraction){.a = h, .b = &w, .out = &rows},
                               1));
    return ax_op_combine(frame, c, &rows, like, sum);
}

enum { SAVED = 10 }; /* tensors that forward saves */

/* Lists what forward saves: the input, gate and up, and the choices. */
static void list_saved(ax_tensor *x, ax_tensor in[BESIDE], ax_choices *c, ax_tensor *out[SAVED])
{
    ax_tensor *const list[SAVED] = {x,          &in[0],     &in[1],     &c->probs, &c->lse,
                                    &c->weight, &c->choice, &c->source, &c->place, &c->bounds};
    for (int i = 0; i < SAVED; i++)
        out[i] = list[i];
}

static ax_status moe_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    ax_tensor whole, in[BESIDE], h, sum, *saved[SAVED];
    ax_choices c;
    AX_TRY(gather_width(frame, x, &whole));
    AX_TRY(choose(self, frame, &whole, &c));
    AX_TRY(enter_experts(self, frame, &c, &whole, in));
    AX_TRY(ax_op_glu_rows(frame, &c, &in[0], &in[1], config_of(self)->activation, &h));
    AX_TRY(leave_experts(self, frame, &c, &h, &whole, &sum));
    list_saved(&whole, in, &c, saved);
    for (int i = 0; i < SAVED; i++)
        AX_TRY(ax_frame_save(frame, saved[i]));
    return ax_settle(frame, &sum, &((moe *)self)->x_layout, y);
}

/* ---- backward ------------------------------------------------------------------------------------ */

static ax_status restore(ax_layer *self, ax_frame *frame, ax_tensor *x, ax_tensor in[BESIDE], ax_choices *c)
{
    const ax_moe_config *config = config_of(self);
    ax_tensor *saved[SAVED];
    *c = (ax_choices){.experts = config->experts, .top_k = config->top_k, .renormalize = config->renormalize};
    list_saved(x, in, c, saved);
    for (int i = SAVED - 1; i >= 0; i--)
        AX_TRY(ax_frame_restore(frame, saved[i]));
    return AX_OK;
}

/* Computes the gradients of gate and up of each row, in their memory, and adds that of the weights of down.
 * *dweight becomes the gradient of the choices' weights. */
static ax_status backward_down(ax_layer *self, ax_frame *frame, const ax_choices *c, const ax_tensor *dy,
                               ax_tensor in[BESIDE], ax_tensor *dweight)
{
    const ax_groups groups = groups_of(c);
    ax_tensor whole, rows, w, dh;
    AX_TRY(gather_width(frame, dy, &whole));
    AX_TRY(ax_op_dispatch(frame, c, &whole, &rows));
    AX_TRY(ax_param_acquire(frame, self->param[DOWN], &w));
    AX_TRY(ax_contract_grouped_rule(self->ctx->grid, &groups, input_spec, &rows, &w, &dh));
    AX_TRY(ax_frame_alloc(frame, &dh, &dh));
    AX_TRY(ax_contract_grouped(frame, &groups, input_spec, &(ax_contraction){.a = &rows, .b = &w, .out = &dh},
                               1));
    AX_TRY(ax_op_glu_rows_grad(frame, c, &in[0], &in[1], &dh, config_of(self)->activation, dweight));
    return ax_param_accumulate_grouped(frame, &groups, 1, &self->param[DOWN], grad_spec, &rows, &dh);
}

/* Starts the computation of *dx, the input gradient of the experts; it is complete after *work. */
static ax_status start_input_grad(ax_layer *self, ax_frame *frame, const ax_choices *c, const ax_tensor *x,
                                  const ax_tensor in[BESIDE], ax_tensor *dx, ax_work **work)
{
    const ax_groups groups = groups_of(c);
    ax_tensor w[BESIDE], rows, sum;
    ax_contraction each[BESIDE];
    for (int i = 0; i < BESIDE; i++) {
        AX_TRY(ax_param_acquire(frame, self->param[GATE + i], &w[i]));
        each[i] = (ax_contraction){.a = &in[i], .b = &w[i], .out = &rows, .accumulate = i > 0};
    }
    AX_TRY(ax_contract_grouped_rule(self->ctx->grid, &groups, input_spec, &in[0], &w[0], &rows));
    AX_TRY(ax_frame_alloc(frame, &rows, &rows));
    AX_TRY(ax_contract_grouped(frame, &groups, input_spec, each, BESIDE));
    AX_TRY(ax_op_combine(frame, c, &rows, x, &sum));
    return ax_redistribute(frame, &sum, &((moe *)self)->x_layout, dx, work);
}

static ax_status add_gate_grads(ax_layer *self, ax_frame *frame, const ax_choices *c, const ax_tensor *x,
                                const ax_tensor in[BESIDE])
{
    const ax_groups groups = groups_of(c);
    ax_tensor rows;
    AX_TRY(ax_op_dispatch(frame, c, x, &rows));
    return ax_param_accumulate_grouped(frame, &groups, BESIDE, &self->param[GATE], grad_spec, in, &rows);
}

/* Computes the gradient of the router's logits. dweight is a partial sum along the axes that split the inner
 * width of the experts. */
static ax_status backward_choices(ax_layer *self, ax_frame *frame, const ax_choices *c, const ax_tensor *x,
                                  const ax_tensor *dweight, ax_tensor *dlogits)
{
    const ax_moe_config *config = config_of(self);
    const ax_batch *batch = ax_frame_batch(frame);
    const ax_layout inner = ax_layout_of_roles(self->ctx, (ax_role[]){AX_ROLE_EXPERT}, 1);
    double *total = batch && batch->routers ? batch->routers + config->index * (2 + config->experts) : NULL;
    AX_TRY(ax_reduce_axes(self->ctx, ax_layout_split_axes(&inner, 1), dweight->data,
                          ax_tensor_count(self->ctx->grid, dweight), dweight->dtype, AX_SUM));
    return ax_op_route_grad(frame, c, x, dweight, config->balance, config->z, total, dlogits);
}

/* Adds the input gradient of the router to *dx: dlogits is whole on every rank, so each rank computes its
 * part. */
static ax_status add_router_input_grad(ax_layer *self, ax_frame *frame, const ax_tensor *dlogits,
                                       ax_tensor *dx)
{
    ax_tensor w, part;
    AX_TRY(ax_param_acquire(frame, self->param[ROUTER], &w));
    ax_layout columns = w.layout;
    columns.dim[1] = dx->layout.dim[2];
    AX_TRY(ax_settle(frame, &w, &columns, &part));
    return ax_contract_run(frame, router_input_spec, dlogits, &part, NULL, true, dx);
}

static ax_status moe_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    ax_tensor x, in[BESIDE], dweight, dlogits;
    ax_choices c;
    ax_work *work = NULL;
    AX_TRY(restore(self, frame, &x, in, &c));
    AX_TRY(backward_down(self, frame, &c, dy, in, &dweight));
    if (dx)
        AX_TRY(start_input_grad(self, frame, &c, &x, in, dx, &work));
    if (!self->ctx->parallel.overlap.oar)
        AX_TRY(ax_wait(&work));
    AX_TRY(add_gate_grads(self, frame, &c, &x, in));
    AX_TRY(backward_choices(self, frame, &c, &x, &dweight, &dlogits));
    AX_TRY(ax_param_accumulate(frame, self->param[ROUTER], router_grad_spec, &dlogits, &x));
    AX_TRY(ax_wait(&work));
    return dx ? add_router_input_grad(self, frame, &dlogits, dx) : AX_OK;
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
    const ax_role in_roles[] = {AX_ROLE_EXPERT, AX_ROLE_NONE, AX_ROLE_NONE},
                  out_roles[] = {AX_ROLE_NONE, AX_ROLE_NONE, AX_ROLE_EXPERT};
    AX_CHECK(c->top_k >= 1 && c->top_k <= c->experts, AX_ERR_USAGE,
             "layer \"%s\": each token chooses %lld of %lld experts: choose 1 to %lld", self->name,
             (long long)c->top_k, (long long)c->experts, (long long)c->experts);
    AX_TRY(declare(self, ROUTER, "router", 2, (int64_t[]){c->experts, c->width},
                   (ax_role[]){AX_ROLE_NONE, AX_ROLE_NONE}, c->init_std));
    AX_TRY(declare(self, GATE, "gate", 3, in, in_roles, c->init_std));
    AX_TRY(declare(self, UP, "up", 3, in, in_roles, c->init_std));
    AX_TRY(declare(self, DOWN, "down", 3, out, out_roles, c->down_init_std));
    ax_param_join(&self->param[GATE], BESIDE);
    return AX_OK;
}

ax_layer *ax_moe(ax_ctx *ctx, const char *name, const ax_moe_config *config)
{
    ax_layer *layer = ax_layer_new(ctx, &moe_ops, name, sizeof(moe));
    if (!layer)
        return NULL;
    ((moe *)layer)->config = *config;
    ((moe *)layer)->x_layout = ax_activation_layout(ctx, AX_ROLE_MODEL);
    if (declare_all(layer, config) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}
