/* The linear layer. Its code names no grid axis: the communication follows from the layouts of input, weight
 * and output. If grid axis x splits the inner width (of attention or MLP) and grid axis y the residual width,
 * the layer runs the 3D algorithm of arXiv 2502.08145 (Alg. 1). If only one of the two axes has a size above
 * 1, a single dim of the weight is split, as in Megatron-LM. If all axes have size 1, it is the serial
 * layer. */
#include "nn/linear.h"

#include <math.h>
#include <stdio.h>

typedef struct linear {
    ax_layer base;
    ax_layout x_layout, y_layout;
    uint16_t align; /* row alignment of y in bytes (ax_tensor.align) */
    ax_role in_role, out_role;
    int64_t in_unit, out_unit;
    ax_low_rank update; /* rank 0: none */
    ax_drop drop;       /* dropout of the input of the update's factor A */
} linear;

enum {
    WEIGHT = AX_LINEAR_WEIGHT,
    BIAS = AX_LINEAR_BIAS,
    LORA_A = AX_LINEAR_LORA_A,
    LORA_B = AX_LINEAR_LORA_B
};

static bool has_update(const ax_layer *self) { return ((const linear *)self)->update.rank > 0; }

/* Sets *in to x, with its width split along the same axes as the input dim of the weight. Only the output
 * layer (head) of a model needs communication: its weight is split in the vocabulary dim (along grid axes x
 * and y) but not in the input dim, so the tensor x is all-gathered. */
static ax_status match_input_width(const ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *in)
{
    ax_layout layout = x->layout;
    layout.dim[2] = self->param[WEIGHT]->use.dim[1];
    return ax_settle(frame, x, &layout, in);
}

static const char forward_spec[] = "bti,oi->bto", input_grad_spec[] = "bto,oi->bti";

/* The operands and result of the forward GEMM. `w` has no data until the GEMM needs them. */
typedef struct forward_gemm {
    ax_tensor in, w, b;
    const ax_tensor *bias; /* &b; NULL: the layer has no bias, or adds it after the reduction over ranks */
    ax_tensor rule; /* shape and layout of the GEMM's result, without data; a partial sum along the axes that
                       split the input width */
    bool whole;     /* the GEMM's result already has the layout of y: no reduction follows */
} forward_gemm;

/* Acquires the weight. A layer with a bias does not use the rows of zeros that pad the weight
 * (ax_param_pad_rows), because the bias has no elements for them. */
static ax_status acquire_weight(const ax_layer *self, ax_frame *frame, ax_tensor *w)
{
    AX_TRY(ax_param_acquire(frame, self->param[WEIGHT], w));
    w->spare = self->param[BIAS] ? 0 : w->spare;
    return AX_OK;
}

static ax_status prepare(const ax_layer *self, ax_frame *frame, const ax_tensor *x, forward_gemm *p)
{
    const linear *l = (const linear *)self;
    const ax_grid *grid = self->ctx->grid;
    p->bias = NULL;
    AX_TRY(match_input_width(self, frame, x, &p->in));
    p->w = self->param[WEIGHT]->rest;
    p->w.layout = self->param[WEIGHT]->use;
    AX_TRY(ax_contract_rule(grid, forward_spec, &p->in, &p->w, &p->rule));
    p->whole = ax_layout_equal(grid, &p->rule.layout, &l->y_layout, p->rule.ndim);
    p->rule.align = p->whole ? l->align : 0;
    if (!p->whole || !self->param[BIAS])
        return AX_OK;
    p->bias = &p->b;
    return ax_param_acquire(frame, self->param[BIAS], &p->b);
}

/* ---- the low-rank update. Along the axes that split the input width, the update x·Aᵀ·Bᵀ is a partial sum,
 * as x·Wᵀ is. The update is added to x·Wᵀ before the reduction over ranks, so it needs no communication of
 * its own. In backward the same holds for dy·B·A and dy·W along the axes that split the output width. The
 * factor `scale` is applied to the narrow products x·Aᵀ and dy·B, [b, t, rank].
 *
 * With dropout, drop(x) takes the place of x, and the mask of x is applied to v·A (v = scale · dy·B).
 * Backward draws the mask again, so nothing is saved for it. ---- */

/* Computes *out = scale · x·F, where F is the factor A or B of a low-rank update (parameter with index
 * `factor`). The last dim of *out is the rank of the update: `spec` sums over the other dim of F. */
static ax_status narrow(const ax_layer *self, ax_frame *frame, const char *spec, const ax_tensor *x,
                        int factor, ax_tensor *out)
{
    ax_tensor w;
    AX_TRY(ax_param_acquire(frame, self->param[factor], &w));
    AX_TRY(ax_contract(frame, spec, x, &w, NULL, out));
    ax_scale_args scale = {.n = ax_tensor_count(self->ctx->grid, out),
                           .factor = ((const linear *)self)->update.scale,
                           .x = out->data,
                           .dtype = out->dtype};
    return scale.n && scale.factor != 1 ? ax_run_scale(self->ctx->stream, &scale) : AX_OK;
}

/* Adds x·F to `sums`, where x is a result of `narrow` and F is the factor A or B of the low-rank update
 * (parameter with index `factor`). */
static ax_status widen(const ax_layer *self, ax_frame *frame, const char *spec, const ax_tensor *x,
                       int factor, const ax_tensor *sums)
{
    ax_tensor w;
    AX_TRY(ax_param_acquire(frame, self->param[factor], &w));
    return ax_contract_run(frame, spec, x, &w, NULL, true, sums);
}

/* Returns the dropout of the input of factor A, or NULL if there is none in the running task. */
static const ax_drop *drop_of(const ax_layer *self, const ax_frame *frame)
{
    const ax_drop *drop = &((const linear *)self)->drop;
    return drop->p > 0 && ax_frame_training(frame) ? drop : NULL;
}

/* Sets *out to the input of factor A: x, or the dropout of x. */
static ax_status drop_input(const ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *out)
{
    const ax_drop *drop = drop_of(self, frame);
    *out = *x;
    return drop ? ax_op_dropout(frame, x, drop, out) : AX_OK;
}

/* Adds the low-rank update to sums = in·Wᵀ, and saves u = scale · drop(in)·Aᵀ for backward. */
static ax_status add_update(const ax_layer *self, ax_frame *frame, const ax_tensor *in, const ax_tensor *sums)
{
    ax_tensor u, dropped;
    if (!has_update(self))
        return AX_OK;
    AX_TRY(drop_input(self, frame, in, &dropped));
    AX_TRY(narrow(self, frame, "bti,ri->btr", &dropped, LORA_A, &u));
    AX_TRY(widen(self, frame, "btr,or->bto", &u, LORA_B, sums));
    return ax_frame_save(frame, &u);
}

/* Two products with the factors of a low-rank update, from which backward computes gradients: u = scale ·
 * drop(x)·Aᵀ, which add_update has saved, and v = scale · dy·B. */
typedef struct narrow_pair {
    ax_tensor u, v;
} narrow_pair;

static ax_status restore_update(const ax_layer *self, ax_frame *frame, const ax_tensor *dy, narrow_pair *p)
{
    if (!has_update(self))
        return AX_OK;
    AX_TRY(ax_frame_restore(frame, &p->u));
    return narrow(self, frame, "bto,or->btr", dy, LORA_B, &p->v);
}

/* Adds drop(v·A), the input gradient of the low-rank update, to `sums`. */
static ax_status add_update_grad(const ax_layer *self, ax_frame *frame, const ax_tensor *v,
                                 const ax_tensor *sums)
{
    static const char spec[] = "btr,ri->bti";
    const ax_drop *drop = drop_of(self, frame);
    ax_tensor a, grad;
    if (!drop)
        return widen(self, frame, spec, v, LORA_A, sums);
    AX_TRY(ax_param_acquire(frame, self->param[LORA_A], &a));
    AX_TRY(ax_contract(frame, spec, v, &a, NULL, &grad));
    return ax_op_add_dropout(frame, &grad, drop, sums);
}

/* ---- forward ------------------------------------------------------------------------------------- */

static const ax_layout *output_layout(const ax_layer *self) { return &((const linear *)self)->y_layout; }

/* Runs the GEMMs of n layers and adds the low-rank updates. The results, sums[i], lie beside each other
 * (ax_frame_alloc_beside) if `beside` is true. */
static ax_status multiply(ax_layer *const *layers, int n, ax_frame *frame, forward_gemm *p, bool beside,
                          ax_tensor *sums)
{
    ax_contraction each[AX_BESIDE];
    ax_tensor rule[AX_BESIDE];
    for (int i = 0; i < n; i++) {
        rule[i] = p[i].rule;
        AX_TRY(acquire_weight(layers[i], frame, &p[i].w));
        each[i] = (ax_contraction){.a = &p[0].in, .b = &p[i].w, .bias = p[i].bias, .out = &sums[i]};
        if (!beside)
            AX_TRY(ax_frame_alloc(frame, &rule[i], &sums[i]));
    }
    if (beside)
        AX_TRY(ax_frame_alloc_beside(frame, n, rule, sums));
    AX_TRY(ax_contract_each(frame, forward_spec, each, n));
    for (int i = 0; i < n; i++)
        AX_TRY(add_update(layers[i], frame, &p[0].in, &sums[i]));
    return AX_OK;
}

/* If each of the sums needs a single all-reduce to get the output layout of its layer, and all need it along
 * the same axes, sets *out to these axes. Otherwise sets *out to 0. */
static ax_status common_axes(ax_layer *const *layers, int n, const ax_tensor *sums, ax_axisset *out)
{
    ax_redistribution steps;
    for (int i = 0; i < n; i++) {
        AX_TRY(ax_redistribution_make(layers[i]->ctx->grid, &sums[i], output_layout(layers[i]), &steps));
        ax_axisset axes = steps.n == 1 && steps.step[0].kind == AX_STEP_REDUCE ? steps.step[0].axes : 0;
        *out = !i || axes == *out ? axes : 0;
    }
    return AX_OK;
}

/* Reduces sums that lie beside each other by one all-reduce. */
static ax_status reduce_beside(ax_layer *const *layers, int n, ax_frame *frame, ax_axisset axes,
                               const ax_tensor *sums, ax_tensor *y)
{
    ax_ctx *ctx = layers[0]->ctx;
    int64_t count = ax_tensor_bytes(ctx->grid, sums) / (int64_t)ax_dtype_size(sums->dtype);
    bool taken = false;
    for (int i = 0; i < n; i++)
        AX_TRY(ax_frame_take(frame, &sums[i], &y[i], &taken));
    if (taken)
        return AX_OK;
    AX_TRY(ax_reduce_axes(ctx, axes, sums->data, count, sums->dtype, AX_SUM));
    for (int i = 0; i < n; i++) {
        y[i] = sums[i];
        y[i].layout = *output_layout(layers[i]);
        AX_TRY(ax_frame_keep(frame, &y[i]));
    }
    return AX_OK;
}

/* Reduces the sums over ranks, to the output layout of each layer. Sums that lie beside each other are
 * reduced by one all-reduce if possible (common_axes). */
static ax_status reduce_sums(ax_layer *const *layers, int n, ax_frame *frame, bool beside,
                             const ax_tensor *sums, ax_tensor *y)
{
    ax_axisset axes = 0;
    if (beside)
        AX_TRY(common_axes(layers, n, sums, &axes));
    if (axes)
        return reduce_beside(layers, n, frame, axes, sums, y);
    for (int i = 0; i < n; i++)
        AX_TRY(ax_settle(frame, &sums[i], output_layout(layers[i]), &y[i]));
    return AX_OK;
}

/* Returns true if the sums over ranks were kept in forward, so that no sums are needed. A low-rank update
 * needs them: it computes them together with what it saves. */
static bool has_kept_sums(ax_layer *const *layers, int n, const ax_frame *frame, const forward_gemm *p)
{
    bool kept = ax_frame_takes(frame);
    for (int i = 0; i < n; i++)
        kept = kept && !has_update(layers[i]) &&
               ax_grid_effective(layers[i]->ctx->grid, p[i].rule.layout.partial);
    return kept;
}

/* Computes y[i] from the GEMMs p[i]. */
static ax_status run_forward(ax_layer *const *layers, int n, ax_frame *frame, forward_gemm *p, bool beside,
                             ax_tensor *y)
{
    ax_tensor sums[AX_BESIDE];
    for (int i = 0; i < n; i++)
        sums[i] = p[i].rule;
    if (!has_kept_sums(layers, n, frame, p))
        AX_TRY(multiply(layers, n, frame, p, beside, sums));
    AX_TRY(reduce_sums(layers, n, frame, beside, sums, y));
    for (int i = 0; i < n; i++)
        if (layers[i]->param[BIAS] && !p[i].whole)
            AX_TRY(ax_op_bias(frame, &y[i], layers[i]->param[BIAS]));
    return AX_OK;
}

ax_status ax_linear_forward_shared(ax_layer *const *layers, int n, ax_frame *frame, const ax_tensor *x,
                                   bool beside, ax_tensor *y)
{
    forward_gemm p[AX_BESIDE];
    for (int i = 0; i < n; i++)
        AX_TRY(prepare(layers[i], frame, i ? &p[0].in : x, &p[i]));
    AX_TRY(run_forward(layers, n, frame, p, beside, y));
    return ax_frame_save(frame, &p[0].in);
}

static ax_status linear_forward(ax_layer *self, ax_frame *frame, const ax_tensor *x, ax_tensor *y)
{
    return ax_linear_forward_shared(&self, 1, frame, x, false, y);
}

ax_status ax_linear_forward_activation(ax_layer *self, ax_frame *frame, const ax_tensor *x,
                                       ax_activation kind, ax_tensor *preact, ax_tensor *y)
{
    forward_gemm p;
    AX_TRY(prepare(self, frame, x, &p));
    bool keeps = ax_frame_training(frame);
    *preact = p.rule;
    if (!p.whole || has_update(self)) {
        AX_TRY(run_forward(&self, 1, frame, &p, false, preact));
        AX_TRY(ax_op_activation(frame, preact, kind, y));
    } else {
        AX_TRY(acquire_weight(self, frame, &p.w));
        if (keeps)
            AX_TRY(ax_frame_alloc(frame, &p.rule, preact));
        AX_TRY(ax_frame_alloc(frame, &p.rule, y));
        AX_TRY(ax_contract_activation(frame, forward_spec, &p.in, &p.w, p.bias, AX_EPILOGUE_ACTIVATION, kind,
                                      keeps ? preact : NULL, y));
        /* p.rule.layout and y_layout differ only in axes of size 1. */
        preact->layout = y->layout = *output_layout(self);
    }
    return ax_frame_save(frame, &p.in);
}

/* ---- backward ------------------------------------------------------------------------------------ */

static const ax_layout *input_layout(const ax_layer *self) { return &((const linear *)self)->x_layout; }

/* Computes the sum of the input gradients of n layers, before its reduction over ranks. */
static ax_status add_input_grads(ax_layer *const *layers, int n, ax_frame *frame, const ax_tensor *dy,
                                 const narrow_pair *update, ax_tensor *partial)
{
    ax_contraction each[AX_BESIDE];
    ax_tensor w[AX_BESIDE];
    for (int i = 0; i < n; i++) {
        AX_TRY(acquire_weight(layers[i], frame, &w[i]));
        each[i] = (ax_contraction){.a = &dy[i], .b = &w[i], .out = partial, .accumulate = i > 0};
    }
    AX_TRY(ax_contract_rule(layers[0]->ctx->grid, input_grad_spec, &dy[0], &w[0], partial));
    AX_TRY(ax_frame_alloc(frame, partial, partial));
    AX_TRY(ax_contract_each(frame, input_grad_spec, each, n));
    for (int i = 0; i < n; i++)
        if (has_update(layers[i]))
            AX_TRY(add_update_grad(layers[i], frame, &update[i].v, partial));
    return AX_OK;
}

/* Computes the gradients of the factors of a low-rank update and, if the weight is frozen, the gradient of
 * the bias, and adds them to the gradients of these parameters. The GEMM of the weight's gradient does not
 * compute them. */
static ax_status add_other_grads(const ax_layer *self, ax_frame *frame, const ax_tensor *dy,
                                 const narrow_pair *update, const ax_tensor *x)
{
    if (has_update(self)) {
        ax_tensor dropped;
        AX_TRY(drop_input(self, frame, x, &dropped));
        AX_TRY(ax_param_accumulate(frame, self->param[LORA_A], "btr,bti->ri", &update->v, &dropped));
        AX_TRY(ax_param_accumulate(frame, self->param[LORA_B], "bto,btr->or", dy, &update->u));
    }
    return self->param[BIAS] && self->param[WEIGHT]->frozen ? ax_op_bias_grad(frame, dy, self->param[BIAS])
                                                            : AX_OK;
}

static ax_status add_param_grads(ax_layer *const *layers, int n, ax_frame *frame, const ax_tensor *dy,
                                 const narrow_pair *update, const ax_tensor *x)
{
    ax_param *weight[AX_BESIDE] = {NULL}, *bias[AX_BESIDE] = {NULL};
    for (int i = 0; i < n; i++) {
        weight[i] = layers[i]->param[WEIGHT];
        bias[i] = layers[i]->param[BIAS];
    }
    AX_TRY(ax_param_accumulate_each(frame, n, weight, bias, "bto,bti->oi", dy, x));
    for (int i = 0; i < n; i++)
        AX_TRY(add_other_grads(layers[i], frame, &dy[i], &update[i], x));
    return AX_OK;
}

ax_status ax_linear_backward_shared(ax_layer *const *layers, int n, ax_frame *frame, const ax_tensor *dy,
                                    ax_tensor *dx)
{
    ax_tensor x, partial;
    narrow_pair update[AX_BESIDE];
    ax_work *work = NULL;
    AX_TRY(ax_frame_restore(frame, &x));
    for (int i = n - 1; i >= 0; i--)
        AX_TRY(restore_update(layers[i], frame, &dy[i], &update[i]));
    if (dx)
        AX_TRY(add_input_grads(layers, n, frame, dy, update, &partial));
    if (dx)
        AX_TRY(ax_redistribute(frame, &partial, input_layout(layers[0]), dx, &work));
    if (!layers[0]->ctx->parallel.overlap.oar)
        AX_TRY(ax_wait(&work));
    AX_TRY(add_param_grads(layers, n, frame, dy, update, &x));
    return ax_wait(&work);
}

static ax_status linear_backward(ax_layer *self, ax_frame *frame, const ax_tensor *dy, ax_tensor *dx)
{
    return ax_linear_backward_shared(&self, 1, frame, dy, dx);
}

ax_status ax_linear_backward_activation(ax_layer *self, ax_frame *frame, const ax_tensor *dy,
                                        ax_activation kind, ax_tensor *dx)
{
    ax_tensor rule, x, preact, w, sums;
    /* If the weight's output dim is split, the GEMM's result is a partial sum over ranks. Then the
     * multiplication by the activation's derivative must follow the reduction. It must also follow the
     * addition of a low-rank update. */
    if (has_update(self) || ax_layout_effective(self->ctx->grid, &self->param[WEIGHT]->use, 2).dim[0].n) {
        AX_TRY(linear_backward(self, frame, dy, &sums));
        AX_TRY(ax_frame_restore(frame, &preact));
        return ax_op_activation_grad(frame, &preact, &sums, kind, dx);
    }
    AX_TRY(ax_frame_restore(frame, &x));
    AX_TRY(ax_frame_restore(frame, &preact));
    AX_TRY(acquire_weight(self, frame, &w));
    AX_TRY(ax_contract_rule(self->ctx->grid, input_grad_spec, dy, &w, &rule));
    AX_TRY(ax_frame_alloc(frame, &rule, dx));
    AX_TRY(ax_contract_activation(frame, input_grad_spec, dy, &w, NULL, AX_EPILOGUE_ACTIVATION_GRAD, kind,
                                  &preact, dx));
    dx->layout = *input_layout(self);
    return add_param_grads(&self, 1, frame, dy, &(narrow_pair){0}, &x);
}

static const ax_layer_ops linear_ops = {
    .kind = "linear", .forward = linear_forward, .backward = linear_backward};

static ax_status declare(linear *l, const char *name, const ax_linear_config *c)
{
    char full[256];
    int64_t out_unit = c->out_unit;
    l->in_role = c->in_role;
    l->out_role = c->out_role;
    if (!out_unit && c->out_role == AX_ROLE_VOCAB)
        out_unit = ax_vocab_unit(l->base.ctx, c->out);
    l->in_unit = c->in_unit;
    l->out_unit = out_unit;
    l->x_layout = ax_activation_layout(l->base.ctx, c->in_role);
    l->y_layout = ax_activation_layout(l->base.ctx, c->out_role);
    l->align = c->out_role == AX_ROLE_VOCAB ? AX_ROW_ALIGN : 0;
    if (c->tied) {
        const ax_tensor *w = &c->tied->rest;
        AX_CHECK(w->ndim == 2 && w->dim[0] == c->out && w->dim[1] == c->in, AX_ERR_USAGE,
                 "linear \"%s\": the tied parameter %s must be [out, in] = [%lld, %lld]", name, c->tied->name,
                 (long long)c->out, (long long)c->in);
        l->base.param[WEIGHT] = c->tied;
        l->base.borrows[WEIGHT] = true;
    } else {
        snprintf(full, sizeof full, "%s.weight", name);
        AX_TRY(ax_param_create(l->base.ctx, full, 2, (int64_t[]){c->out, c->in},
                               (int64_t[]){out_unit, c->in_unit}, (ax_role[]){c->out_role, c->in_role},
                               AX_INIT_NORMAL, c->init_std, &l->base.param[WEIGHT]));
        if (l->align && c->no_bias)
            ax_param_pad_rows(l->base.param[WEIGHT], ax_vocab_pad(l->base.ctx));
    }
    if (c->no_bias)
        return AX_OK;
    snprintf(full, sizeof full, "%s.bias", name);
    return ax_param_create(l->base.ctx, full, 1, &c->out, &out_unit, &c->out_role, AX_INIT_ZERO, 0,
                           &l->base.param[BIAS]);
}

void ax_linear_join(ax_layer *const *layers, int n)
{
    for (int which = WEIGHT; which <= BIAS; which++) {
        ax_param *params[AX_BESIDE] = {NULL};
        for (int i = 0; i < n; i++)
            params[i] = layers[i]->param[which];
        if (params[0])
            ax_param_join(params, n);
    }
}

ax_layer *ax_linear(ax_ctx *ctx, const char *name, const ax_linear_config *config)
{
    ax_layer *layer = ax_layer_new(ctx, &linear_ops, name, sizeof(linear));
    if (layer && declare((linear *)layer, name, config) != AX_OK)
        ax_layer_destroy(&layer);
    return layer;
}

/* Returns the role of the input width of factor A. Where the axes of this role split the output width of the
 * weight and so not its input width (the head of a model), x is whole, and so is A. */
static ax_role role_of_input(const ax_layer *layer)
{
    return layer->param[WEIGHT]->use.dim[1].n ? ((const linear *)layer)->in_role : AX_ROLE_NONE;
}

/* Creates factor B of the low-rank update of a layer that has factor A. */
static ax_status add_factor_b(ax_layer *layer, const ax_low_rank *update)
{
    char name[256];
    linear *l = (linear *)layer;
    snprintf(name, sizeof name, "%s.lora_B", layer->name);
    AX_TRY(ax_param_create(layer->ctx, name, 2, (int64_t[]){layer->param[WEIGHT]->rest.dim[0], update->rank},
                           (int64_t[]){l->out_unit, 1}, (ax_role[]){l->out_role, AX_ROLE_NONE}, AX_INIT_ZERO,
                           0, &layer->param[LORA_B]));
    ax_param_sums_over(layer->ctx, layer->param[LORA_B], role_of_input(layer));
    l->update = *update;
    return AX_OK;
}

ax_status ax_linear_add_low_rank(ax_layer *layer, const ax_low_rank *update)
{
    char name[256];
    linear *l = (linear *)layer;
    AX_CHECK(layer->ops == &linear_ops && !has_update(layer), AX_ERR_INTERNAL,
             "ax_linear_add_low_rank: layer \"%s\" is not a linear layer, or has a low-rank update already",
             layer->name);
    const int64_t in = layer->param[WEIGHT]->rest.dim[1], rank = update->rank;
    AX_CHECK(rank >= 1, AX_ERR_USAGE,
             "linear \"%s\": the rank of a low-rank update is %lld, but must be at least 1", layer->name,
             (long long)rank);
    AX_CHECK(update->dropout >= 0 && update->dropout < 1, AX_ERR_USAGE,
             "linear \"%s\": the dropout of a low-rank update is %g, which is not in [0, 1)", layer->name,
             update->dropout);
    snprintf(name, sizeof name, "%s.lora_drop", layer->name);
    l->drop = (ax_drop){update->dropout, ax_rng_key(layer->ctx->seed, name, 0)};
    snprintf(name, sizeof name, "%s.lora_A", layer->name);
    AX_TRY(ax_param_create(layer->ctx, name, 2, (int64_t[]){rank, in}, (int64_t[]){1, l->in_unit},
                           (ax_role[]){AX_ROLE_NONE, role_of_input(layer)}, AX_INIT_UNIFORM,
                           1 / sqrt((double)in), &layer->param[LORA_A]));
    ax_param_sums_over(layer->ctx, layer->param[LORA_A], l->out_role);
    return add_factor_b(layer, update);
}

ax_status ax_linear_share_low_rank(ax_layer *layer, const ax_layer *other)
{
    linear *l = (linear *)layer;
    const linear *o = (const linear *)other;
    AX_CHECK(layer->ops == &linear_ops && other->ops == &linear_ops && !has_update(layer) &&
                 has_update(other) && l->in_role == o->in_role && l->out_role == o->out_role &&
                 layer->param[WEIGHT]->rest.dim[1] == other->param[WEIGHT]->rest.dim[1],
             AX_ERR_INTERNAL,
             "ax_linear_share_low_rank: layers \"%s\" and \"%s\" must be linear layers of the same input and "
             "roles, of which only the second has a low-rank update",
             layer->name, other->name);
    l->drop = o->drop;
    layer->param[LORA_A] = other->param[LORA_A];
    layer->borrows[LORA_A] = true;
    return add_factor_b(layer, &o->update);
}
