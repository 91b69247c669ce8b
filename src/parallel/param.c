/* Parameters: their declaration by a layer, and their four layouts. Read parallel.h ("parameters") first,
 * then param.h. */
#include "parallel/mask.h"

#include <stdlib.h>

/* ---- layouts ------------------------------------------------------------------------------------- */

/* Adds an axis that splits by elements (a fine axis, ax_axes) to dim 0 of a layout. An axis of size 1 is not
 * added, so that layouts with different axes always have different boxes. */
static void split_further(const ax_grid *grid, ax_layout *layout, ax_axis axis)
{
    ax_axes *rows = &layout->dim[0];
    if (ax_grid_axis_size(grid, axis) == 1)
        return;
    rows->a[rows->n++] = axis;
    rows->fine++;
}

/* Returns the axis along which ZeRO splits a parameter: data, or the factor of data along which experts that
 * another factor divides are replicated. */
static ax_axis zero_axis(const ax_ctx *ctx, const ax_layout *use, int ndim)
{
    const ax_factoring *experts = ax_grid_experts(ctx->grid);
    return experts && (ax_layout_split_axes(use, ndim) >> experts->minor & 1) ? experts->major : AX_DATA;
}

/* Returns the layout `use`, in which kernels read a parameter, with dim 0 split further: along the strategy's
 * `rest` axes (z) and, if `data` is true and the batch is split along the axis data, along data too. A vector
 * keeps the layout `use`. */
static ax_layout rest_layout(const ax_ctx *ctx, const ax_layout *use, int ndim, bool data)
{
    ax_layout layout = *use;
    const ax_axes *rest = &ax_strategy_of(ctx)->rest;
    const ax_axisset batch = ax_grid_atoms(ctx->grid, ax_batch_axes(ctx));
    if (ndim < 2)
        return layout;
    for (int i = 0; i < rest->n; i++)
        split_further(ctx->grid, &layout, rest->a[i]);
    if (data && (batch & ax_grid_atoms(ctx->grid, 1u << AX_DATA)))
        split_further(ctx->grid, &layout, zero_axis(ctx, use, ndim));
    return layout;
}

/* Returns those of `axes` that split no dim of the layout, as atoms: the layout may name an axis of which
 * `axes` has the factors. */
static ax_axisset not_split(const ax_grid *grid, ax_axisset axes, const ax_layout *layout, int ndim)
{
    return ax_grid_atoms(grid, axes) & (ax_axisset)~ax_grid_atoms(grid, ax_layout_split_axes(layout, ndim));
}

static void declare_layouts(ax_ctx *ctx, ax_param *p, int ndim, const int64_t *dim, const int64_t *unit)
{
    int zero = ctx->parallel.zero;
    ax_dtype compute = ndim >= 2 ? ctx->compute : ctx->accum;
    ax_dtype grad = ctx->parallel.narrow_grads ? compute : ctx->accum;
    ax_layout rest = rest_layout(ctx, &p->use, ndim, zero >= 3);
    ax_layout state = rest_layout(ctx, &p->use, ndim, zero >= 1);
    ax_layout sum = rest_layout(ctx, &p->use, ndim, zero >= 2);
    sum.partial = not_split(ctx->grid, p->grad_axes, &sum, ndim);
    p->rest = ax_tensor_make(compute, ndim, dim, unit, &rest);
    p->rounded = ax_tensor_make(compute, ndim, dim, unit, &state);
    p->grad = ax_tensor_make(grad, ndim, dim, unit, &state);
    p->sum = ax_tensor_make(grad, ndim, dim, unit, &sum);
    for (int i = 0; i < AX_STATE_ARRAYS; i++)
        p->state[i].dtype = ctx->accum;
}

/* Checks the sizes of a parameter, which follow from sizes that the user of a layer chose. */
static ax_status check_sizes(const ax_ctx *ctx, const char *name, int ndim, const int64_t *dim,
                             const int64_t *unit)
{
    for (int d = 0; d < ndim; d++)
        AX_CHECK(dim[d] > 0, AX_ERR_USAGE, "parameter %s: dim %d has %lld entries; it needs at least 1", name,
                 d, (long long)dim[d]);
    ax_tensor whole = ax_tensor_make(ctx->accum, ndim, dim, unit, NULL);
    ax_status status = ax_tensor_check(&whole);
    if (status != AX_OK)
        ax_error_context("parameter %s", name);
    return status;
}

ax_status ax_param_create(ax_ctx *ctx, const char *name, int ndim, const int64_t *dim, const int64_t *unit,
                          const ax_role *roles, ax_init_kind init, double init_std, ax_param **out)
{
    *out = NULL;
    AX_CHECK(ndim >= 1 && ndim <= AX_MAX_DIMS, AX_ERR_INTERNAL, "parameter %s has %d dims, not 1 to %d", name,
             ndim, AX_MAX_DIMS);
    AX_TRY(check_sizes(ctx, name, ndim, dim, unit));
    ax_layout use = ax_layout_of_roles(ctx, roles, ndim), produced = use;
    produced.partial = ax_grad_axes_of_roles(ctx, roles, ndim);
    if (ax_layout_check(ctx->grid, &produced, ndim) != AX_OK) {
        ax_error_context("the gradient of parameter %s", name);
        return AX_ERR_INTERNAL;
    }
    ax_param *p;
    AX_TRY(ax_calloc(1, sizeof *p, &p));
    p->use = use;
    p->grad_axes = produced.partial;
    declare_layouts(ctx, p, ndim, dim, unit);
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

void ax_param_sums_over(ax_ctx *ctx, ax_param *param, ax_role role)
{
    ax_layout of = ax_layout_of_roles(ctx, &role, 1);
    ax_axisset further = ax_layout_split_axes(&of, 1) | ax_grad_axes_of_roles(ctx, &role, 1);
    param->grad_axes |= not_split(ctx->grid, further, &param->use, param->sum.ndim);
    param->sum.layout.partial = not_split(ctx->grid, param->grad_axes, &param->sum.layout, param->sum.ndim);
}

void ax_param_pad_rows(ax_param *param, int64_t unit) { param->row_unit = unit; }

void ax_param_join(ax_param *const *params, int n)
{
    AX_ASSERT(n <= AX_BESIDE);
    for (int i = 0; i < n; i++) {
        params[i]->first = params[0];
        params[i]->next = i + 1 < n ? params[i + 1] : NULL;
    }
}

void ax_param_destroy(ax_param **param)
{
    if (!*param)
        return;
    ax_mask_destroy(&(*param)->mask);
    free((*param)->name);
    free((*param)->file.key);
    free((*param)->file.fused);
    free(*param);
    *param = NULL;
}

bool ax_param_is_owned(const ax_param *param)
{
    return param->place == AX_PARAM_HERE || param->place == AX_PARAM_LENT;
}

bool ax_param_trains(const ax_param *param) { return !param->frozen && param->set->moments >= 0; }

/* ---- memory -------------------------------------------------------------------------------------- */

/* Returns the i-th fine axis (axis that splits dim 0 by elements) of a tensor in the state layout. None of
 * the parameter's four layouts has more fine axes. */
static ax_axis fine_axis(const ax_tensor *state, int i)
{
    const ax_axes *rows = &state->layout.dim[0];
    return rows->a[rows->n - rows->fine + i];
}

/* Returns the message size of the reduce-scatter of a tensor, given in the state layout, along the i-th fine
 * axis (axis that splits dim 0 by elements). The all-gather along this axis has the same message size. */
static ax_wire wire_of(const ax_ctx *ctx, const ax_tensor *state, int i)
{
    ax_tensor t = *state;
    ax_axes *rows = &t.layout.dim[0];
    rows->n = (uint8_t)(rows->n - rows->fine + i + 1);
    rows->fine = (uint8_t)(i + 1);
    return ax_wire_make(ctx->grid, &t, 0, fine_axis(state, i));
}

/* Returns the parameter as kernels read it: in layout U, without data. */
static ax_tensor as_used(const ax_param *p)
{
    ax_tensor used = p->rest;
    used.layout = p->use;
    return used;
}

int64_t ax_param_spare(const ax_ctx *ctx, const ax_param *p)
{
    const ax_tensor used = as_used(p);
    int64_t rows = ax_tensor_extent(ctx->grid, &used, 0);
    return p->row_unit ? ax_round_up(rows, p->row_unit) - rows : 0;
}

int64_t ax_param_spare_count(const ax_ctx *ctx, const ax_param *p)
{
    const ax_tensor used = as_used(p);
    int64_t spare = ax_param_spare(ctx, p);
    return spare ? spare * ax_tensor_extent(ctx->grid, &used, 1) : 0;
}

int64_t ax_param_room(const ax_ctx *ctx, const ax_param *p, const ax_tensor *t)
{
    const bool dense = t->ndim == p->rest.ndim;
    int64_t used =
        t->layout.dim[0].fine || !dense ? 0 : ax_tensor_count(ctx->grid, t) + ax_param_spare_count(ctx, p);
    return ax_max(ax_param_wire_room(ctx, p, t), used);
}

/* Returns the largest of three numbers of elements. First: the size of this rank's part (box) of t. Second:
 * the size of the padded part that this rank sends in an all-gather of t. Third: the memory for the
 * all-gathers whose final result is t. These all-gathers run in place: the result of each lies inside the
 * memory of the result of the next one. */
int64_t ax_param_wire_room(const ax_ctx *ctx, const ax_param *p, const ax_tensor *t)
{
    const ax_tensor *state =
        t->ndim == p->rest.ndim ? &p->rounded : &p->grad; /* of a pruned matrix: a vector */
    int fine = t->layout.dim[0].fine, last = state->layout.dim[0].fine;
    int64_t room = ax_tensor_count(ctx->grid, t), before = 0;
    if (fine)
        room = ax_max(room, wire_of(ctx, state, fine - 1).count);
    for (int i = fine; i < last; i++) {
        int64_t part = wire_of(ctx, state, i).count;
        before += (ax_grid_axis_size(ctx->grid, fine_axis(state, i)) - 1) * part;
        room = ax_max(room, before + part);
    }
    return room;
}

int64_t ax_param_offset(const ax_ctx *ctx, const ax_param *p, const ax_layout *fine, const ax_layout *coarse)
{
    int64_t offset = 0;
    for (int i = coarse->dim[0].fine; i < fine->dim[0].fine; i++)
        offset += ax_grid_coord(ctx->grid, ax_grid_rank(ctx->grid), fine_axis(&p->rounded, i)) *
                  wire_of(ctx, &p->rounded, i).count;
    return offset;
}
