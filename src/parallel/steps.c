/* Plans the change from one layout to another, one axis at a time.
 *
 * For each dim, source and target have a list of axes that split it. The common prefix of the two lists
 * stays. Gathers remove the source's other axes, innermost first. Slices and scatters add the target's other
 * axes: a scatter (a reduce-scatter) if the tensor is partial along the axis, a slice if the tensor is
 * replicated along it. The nesting of axes restricts the order of steps. Of the steps that the nesting
 * allows, the search always takes the first of this list: a slice, a scatter, the single all-reduce, a
 * gather. Slices and scatters come first because they shrink the data. */
#include "parallel/transfer.h"

#include <stdio.h>
#include <string.h>

/* ---- the search ----------------------------------------------------------------------------------- */

typedef struct search {
    const ax_grid *grid;
    ax_layout now, target;
    int ndim;
    int common[AX_MAX_DIMS]; /* common[d]: length of the common prefix of the axis lists of dim d in `now` and
                                `target` */
    ax_redistribution steps;
} search;

static bool is_fine(const ax_axes *axes, int i) { return i >= axes->n - axes->fine; }

static int common_prefix(const ax_axes *a, const ax_axes *b)
{
    int k = 0;
    while (k < a->n && k < b->n && a->a[k] == b->a[k] && is_fine(a, k) == is_fine(b, k))
        k++;
    return k;
}

/* Returns the axis as a set of atoms of size above 1. now.partial and target.partial are sets of atoms
 * too, so they can be compared with the result. */
static ax_axisset set_of(const search *p, ax_axis axis)
{
    return ax_grid_effective(p->grid, (ax_axisset)(1u << axis));
}

static void push(search *p, ax_step_kind kind, int dim, ax_axis axis, ax_axisset axes)
{
    p->steps.step[p->steps.n++] = (ax_redistribution_step){
        .kind = kind, .dim = (uint8_t)dim, .axis = axis, .axes = axes, .after = p->now};
}

/* Plans one step that adds an axis to a dim: the next axis of the target, to the first dim to which it can be
 * added now; by a scatter if `partial` is true, otherwise by a slice. Returns false if there is no such
 * dim. */
static bool split_one(search *p, bool partial)
{
    ax_axisset used = ax_grid_effective(p->grid, ax_layout_split_axes(&p->now, p->ndim));
    for (int d = 0; d < p->ndim; d++) {
        ax_axes *now = &p->now.dim[d];
        const ax_axes *want = &p->target.dim[d];
        if (now->n != p->common[d] || now->n == want->n)
            continue;
        ax_axis axis = want->a[now->n];
        ax_axisset axes = set_of(p, axis);
        if ((used & axes) || (p->now.partial & axes) != (partial ? axes : 0))
            continue;
        now->fine = (uint8_t)(now->fine + is_fine(want, now->n));
        now->a[now->n++] = axis;
        p->common[d]++;
        p->now.partial &= (ax_axisset)~axes;
        push(p, partial ? AX_STEP_SCATTER : AX_STEP_SLICE, d, axis, axes);
        return true;
    }
    return false;
}

/* Plans an all-reduce along those partial axes that are not partial in the target and that no scatter will
 * remove. Returns false if there are none. An axis can be the product of several factors. If the tensor is
 * partial along only some factors of an axis, no scatter along the axis is possible, so the tensor is
 * all-reduced along these factors. */
static bool reduce_rest(search *p)
{
    ax_axisset kept = p->target.partial;
    for (int d = 0; d < p->ndim; d++)
        for (int i = 0; i < p->target.dim[d].n; i++) {
            ax_axisset axes = set_of(p, p->target.dim[d].a[i]);
            if (!(axes & ~p->now.partial))
                kept |= axes;
        }
    ax_axisset axes = p->now.partial & (ax_axisset)~kept;
    if (!axes)
        return false;
    p->now.partial &= kept;
    push(p, AX_STEP_REDUCE, 0, 0, axes);
    return true;
}

static bool gather_one(search *p)
{
    for (int d = 0; d < p->ndim; d++) {
        ax_axes *now = &p->now.dim[d];
        if (now->n == p->common[d])
            continue;
        ax_axis axis = now->a[--now->n];
        now->fine = (uint8_t)(now->fine - (now->fine > 0));
        push(p, AX_STEP_GATHER, d, axis, set_of(p, axis));
        return true;
    }
    return false;
}

ax_status ax_redistribution_make(const ax_grid *grid, const ax_tensor *tensor, const ax_layout *target,
                                 ax_redistribution *out)
{
    AX_TRY(ax_layout_check(grid, &tensor->layout, tensor->ndim));
    AX_TRY(ax_layout_check(grid, target, tensor->ndim));
    search p = {.grid = grid,
                .now = ax_layout_effective(grid, &tensor->layout, tensor->ndim),
                .target = ax_layout_effective(grid, target, tensor->ndim),
                .ndim = tensor->ndim};
    char from[128], to[128];
    AX_CHECK(!(p.target.partial & ~p.now.partial), AX_ERR_INTERNAL,
             "no redistribution from [%s] to [%s]: the target is partial along an axis along which the "
             "source is not",
             ax_layout_print(grid, &tensor->layout, tensor->ndim, NULL, from),
             ax_layout_print(grid, target, tensor->ndim, NULL, to));
    for (int d = 0; d < p.ndim; d++)
        p.common[d] = common_prefix(&p.now.dim[d], &p.target.dim[d]);
    while (split_one(&p, false) || split_one(&p, true) || reduce_rest(&p) || gather_one(&p))
        ;
    AX_ASSERT(ax_layout_equal(grid, &p.now, target, p.ndim));
    *out = p.steps;
    return AX_OK;
}

/* ---- text and cost ---------------------------------------------------------------------------- */

char *ax_redistribution_print(const ax_grid *grid, const ax_redistribution *steps, char out[256])
{
    static const char *const names[] = {"all_gather", "reduce_scatter", "slice", "all_reduce"};
    const size_t room = 256;
    snprintf(out, room, "%s", steps->n ? "" : "nothing");
    for (int i = 0; i < steps->n; i++) {
        const ax_redistribution_step *s = &steps->step[i];
        ax_text_add(out, room, "%s%s(", i ? " " : "", names[s->kind]);
        if (s->kind != AX_STEP_REDUCE)
            ax_text_add(out, room, "d%d@", s->dim);
        char axes[AX_AXISSET_TEXT];
        ax_text_add(out, room, "%s)", ax_grid_set_print(grid, s->axes, axes));
    }
    return out;
}

ax_wire ax_wire_make(const ax_grid *grid, const ax_tensor *fine, int d, ax_axis axis)
{
    ax_wire w = {.lead = 1, .inner = 1};
    int64_t lo, n;
    ax_tensor_range(grid, fine, d, ax_grid_peer(grid, axis, 0), &lo, &w.chunk);
    for (int i = 1; i < ax_grid_axis_size(grid, axis); i++) {
        ax_tensor_range(grid, fine, d, ax_grid_peer(grid, axis, i), &lo, &n);
        w.chunk = ax_max(w.chunk, n);
    }
    for (int i = 0; i < d; i++)
        w.lead *= ax_tensor_extent(grid, fine, i);
    for (int i = d + 1; i < fine->ndim; i++)
        w.inner *= ax_tensor_extent(grid, fine, i);
    w.count = w.lead * w.chunk * w.inner;
    return w;
}

ax_status ax_redistribution_bytes(const ax_grid *grid, const ax_tensor *tensor,
                                  const ax_redistribution *steps, int64_t *out)
{
    int64_t bytes = 0, size = (int64_t)ax_dtype_size(tensor->dtype);
    ax_tensor now = *tensor;
    for (int i = 0; i < steps->n; i++) {
        const ax_redistribution_step *s = &steps->step[i];
        int64_t g = ax_grid_group_size(grid, s->axes);
        ax_tensor after = now;
        after.layout = s->after;
        if (s->kind == AX_STEP_GATHER)
            bytes += (g - 1) * size * ax_wire_make(grid, &now, s->dim, s->axis).count;
        else if (s->kind == AX_STEP_SCATTER)
            bytes += (g - 1) * size * ax_wire_make(grid, &after, s->dim, s->axis).count;
        else if (s->kind == AX_STEP_REDUCE)
            bytes += 2 * (g - 1) * (size * ax_tensor_count(grid, &now)) / g;
        now = after;
    }
    *out = bytes;
    return AX_OK;
}
