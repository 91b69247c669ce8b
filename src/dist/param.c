/* Parameters: what a layer declares, and how contributions reach the gradient. */
#include "axonn/dist.h"

#include <stdlib.h>

ax_status ax_param_create(ax_ctx *ctx, const char *name, int ndim, const int64_t *dim, const int64_t *unit,
                          const ax_role *roles, ax_init_kind init, double init_std, ax_param **out)
{
    *out = NULL;
    AX_CHECK(ndim >= 1 && ndim <= AX_MAX_DIMS, AX_ERR_INTERNAL, "parameter %s has %d dims", name, ndim);
    ax_layout layout = ax_layout_of_roles(ctx, roles, ndim), grad_layout = layout;
    grad_layout.partial = ax_grad_axes_of_roles(ctx, roles, ndim);
    if (ax_layout_check(ctx->grid, &grad_layout, ndim) != AX_OK) {
        ax_error_context("gradient of parameter %s", name);
        return AX_ERR_INTERNAL;
    }
    ax_param *p;
    AX_TRY(ax_calloc(1, sizeof *p, &p));
    p->master = ax_tensor_make(ctx->accum, ndim, dim, unit, &layout);
    p->use = ax_tensor_make(ndim >= 2 ? ctx->compute : ctx->accum, ndim, dim, unit, &layout);
    p->grad = ax_tensor_make(ctx->accum, ndim, dim, unit, &grad_layout);
    for (size_t i = 0; i < AX_COUNT(p->slot); i++)
        p->slot[i] = p->master;
    p->grad_axes = grad_layout.partial;
    p->init = init;
    p->init_std = init_std;
    p->decay = ndim >= 2;
    ax_status status = ax_strdup(name, &p->name);
    if (status != AX_OK) {
        free(p);
        return status;
    }
    *out = p;
    return AX_OK;
}

void ax_param_destroy(ax_param **param)
{
    if (!*param)
        return;
    free((*param)->name);
    free((*param)->file.key);
    free(*param);
    *param = NULL;
}

ax_status ax_param_grad_target(ax_frame *frame, ax_param *param, const ax_layout *produced, ax_tensor *out)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_tensor target = param->grad;
    if (ax_layout_equal(ctx->grid, produced, &param->grad.layout, param->grad.ndim)) {
        AX_CHECK(target.data, AX_ERR_INTERNAL, "parameter %s has no memory for gradients", param->name);
        *out = target;
        return AX_OK;
    }
    target.layout = *produced;
    AX_TRY(ax_frame_alloc(frame, &target, &target));
    ax_fill_args fill = {.n = ax_tensor_count(ctx->grid, &target), .y = target.data, .dtype = target.dtype};
    AX_TRY(ax_run_fill(ctx->stream, &fill));
    *out = target;
    return AX_OK;
}

ax_status ax_param_add_grad(ax_frame *frame, ax_param *param, const ax_tensor *part)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_tensor *grad = &param->grad, sum;
    if (part->data == grad->data)
        return AX_OK;
    AX_CHECK(grad->data, AX_ERR_INTERNAL, "parameter %s has no memory for gradients", param->name);
    AX_CHECK(part->dtype == grad->dtype, AX_ERR_INTERNAL, "gradient of parameter %s is %s where %s adds up",
             param->name, ax_dtype_name(part->dtype), ax_dtype_name(grad->dtype));
    /* Along axes where the gradient is partial but this part is not, every rank has the whole: one adds it.
     */
    ax_layout target = grad->layout;
    target.partial &= part->layout.partial;
    ax_axisset whole = ax_grid_effective(ctx->grid, grad->layout.partial & (ax_axisset)~target.partial);
    AX_TRY(ax_settle(frame, part, &target, &sum));
    for (int a = 0; a < ax_grid_axes(ctx->grid); a++)
        if ((whole >> a & 1) && ax_grid_coord(ctx->grid, ax_grid_rank(ctx->grid), (ax_axis)a))
            return AX_OK;
    ax_add_args add = {.n = ax_tensor_count(ctx->grid, grad),
                       .a = grad->data,
                       .b = sum.data,
                       .y = grad->data,
                       .dtype = grad->dtype};
    return ax_run_add(ctx->stream, &add);
}

ax_status ax_param_accumulate(ax_frame *frame, ax_param *param, const char *spec, const ax_tensor *a,
                              const ax_tensor *b)
{
    ax_tensor rule, target;
    AX_TRY(ax_contract_rule(ax_frame_ctx(frame)->grid, spec, a, b, &rule));
    AX_TRY(ax_param_grad_target(frame, param, &rule.layout, &target));
    AX_TRY(ax_contract_run(frame, spec, a, b, true, &target));
    return ax_param_add_grad(frame, param, &target);
}
