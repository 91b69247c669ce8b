/* Plans the change from one layout to another, one axis at a time.
 *
 * For each dim, source and target have a list of axes that split it. The common prefix of the two lists
 * stays. Slices and scatters add the target's other axes: a scatter (a reduce-scatter) if the tensor is
 * partial along the axis, a slice if the tensor is replicated along it. The source's other axes are removed,
 * innermost first: by a move (an all-to-all), if the axis is then the next axis of another dim in the target,
 * else by a gather. The nesting of axes restricts the order of steps. Of the steps that the nesting allows,
 * the search takes the first of this list: a slice, a scatter, the single all-reduce, a move or gather.
 * Slices and scatters come first because they shrink the data. The dims whose axes moves and gathers remove
 * are taken in the order in which rank 0 sends the fewest bytes; of equal orders, the first dim comes first.
 */
#include "parallel/transfer.h"

#include <stdio.h>
#include <string.h>

/* ---- the search ----------------------------------------------------------------------------------- */

typedef struct search {
    const ax_grid *grid;
    const ax_tensor *tensor;
    ax_layout now, target;
    int ndim;
    int common[AX_MAX_DIMS]; /* common[d]: length of the common prefix of the axis lists of dim d in `now` and
                                `target` */
    int64_t n[AX_MAX_DIMS];  /* extents of rank 0's part. No rank has a longer one along any dim */
    int64_t sent;            /* elements that rank 0 sends in all steps so far */
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

/* Sets p->n[d], for the layout p->now. */
static void measure(search *p, int d)
{
    ax_tensor t = *p->tensor;
    int64_t lo;
    t.layout = p->now;
    ax_tensor_range(p->grid, &t, d, 0, &lo, &p->n[d]);
}

/* Adds the step that has changed the layout to p->now. to: the dim that it splits; a gather has dim. */
static void push(search *p, ax_step_kind kind, int dim, int to, ax_axis axis, ax_axisset axes)
{
    int64_t g = ax_grid_group_size(p->grid, axes), count = 1;
    if (kind != AX_STEP_GATHER)
        measure(p, to);
    for (int d = 0; d < p->ndim; d++)
        count *= p->n[d];
    if (kind != AX_STEP_SLICE)
        p->sent += kind == AX_STEP_REDUCE ? 2 * (g - 1) * count / g : (g - 1) * count;
    measure(p, dim);
    p->steps.step[p->steps.n++] = (ax_redistribution_step){
        .kind = kind, .dim = (uint8_t)dim, .to = (uint8_t)to, .axis = axis, .axes = axes, .after = p->now};
}

/* Returns true if the nesting allows to add an axis to dim d now, and sets *axis to it: the next axis of the
 * target. */
static bool next_axis(const search *p, int d, ax_axis *axis)
{
    const ax_axes *now = &p->now.dim[d], *want = &p->target.dim[d];
    if (now->n != p->common[d] || now->n == want->n)
        return false;
    *axis = want->a[now->n];
    return true;
}

/* Adds the next axis of the target to dim d. */
static void add_axis(search *p, int d)
{
    ax_axes *now = &p->now.dim[d];
    const ax_axes *want = &p->target.dim[d];
    now->fine = (uint8_t)(now->fine + is_fine(want, now->n));
    now->a[now->n] = want->a[now->n];
    now->n++;
    p->common[d]++;
}

/* Plans one step that adds an axis to the first dim to which one can be added now: by a scatter if `partial`
 * is true, otherwise by a slice. Returns false if there is no such dim. */
static bool split_one(search *p, bool partial)
{
    ax_axisset used = ax_grid_effective(p->grid, ax_layout_split_axes(&p->now, p->ndim));
    for (int d = 0; d < p->ndim; d++) {
        ax_axis axis;
        if (!next_axis(p, d, &axis))
            continue;
        ax_axisset axes = set_of(p, axis);
        if ((used & axes) || (p->now.partial & axes) != (partial ? axes : 0))
            continue;
        add_axis(p, d);
        p->now.partial &= (ax_axisset)~axes;
        push(p, partial ? AX_STEP_SCATTER : AX_STEP_SLICE, d, d, axis, axes);
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
    push(p, AX_STEP_REDUCE, 0, 0, 0, axes);
    return true;
}

/* Plans the step that removes the innermost axis of dim d: a move to the dim to which the axis can be added
 * now, or, if there is none, a gather. */
static void remove_axis(search *p, int d)
{
    ax_axes *now = &p->now.dim[d];
    ax_axis axis = now->a[--now->n], next;
    now->fine = (uint8_t)(now->fine - (now->fine > 0));
    int to = 0;
    while (to < p->ndim && !(to != d && next_axis(p, to, &next) && next == axis))
        to++;
    if (to < p->ndim)
        add_axis(p, to);
    bool moves = to < p->ndim;
    push(p, moves ? AX_STEP_MOVE : AX_STEP_GATHER, d, moves ? to : d, axis, set_of(p, axis));
}

/* Plans all steps that are left. */
static void finish(search *p)
{
    while (split_one(p, false) || split_one(p, true) || reduce_rest(p))
        ;
    const search start = *p;
    bool any = false;
    for (int d = 0; d < start.ndim; d++) {
        if (start.now.dim[d].n == start.common[d])
            continue;
        search with = start;
        remove_axis(&with, d);
        finish(&with);
        if (!any || with.sent < p->sent)
            *p = with;
        any = true;
    }
}

ax_status ax_redistribution_make(const ax_grid *grid, const ax_tensor *tensor, const ax_layout *target,
                                 ax_redistribution *out)
{
    AX_TRY(ax_layout_check(grid, &tensor->layout, tensor->ndim));
    AX_TRY(ax_layout_check(grid, target, tensor->ndim));
    search p = {.grid = grid,
                .tensor = tensor,
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
    for (int d = 0; d < p.ndim; d++)
        measure(&p, d);
    finish(&p);
    AX_ASSERT(ax_layout_equal(grid, &p.now, target, p.ndim));
    *out = p.steps;
    return AX_OK;
}

/* ---- text and cost ---------------------------------------------------------------------------- */

char *ax_redistribution_print(const ax_grid *grid, const ax_redistribution *steps, char out[256])
{
    static const char *const names[] = {"all_gather", "reduce_scatter", "slice", "all_reduce", "all_to_all"};
    const size_t room = 256;
    snprintf(out, room, "%s", steps->n ? "" : "nothing");
    for (int i = 0; i < steps->n; i++) {
        const ax_redistribution_step *s = &steps->step[i];
        ax_text_add(out, room, "%s%s(", i ? " " : "", names[s->kind]);
        if (s->kind != AX_STEP_REDUCE)
            ax_text_add(out, room, "d%d@", s->dim);
        char axes[AX_AXISSET_TEXT];
        ax_text_add(out, room, "%s", ax_grid_set_print(grid, s->axes, axes));
        if (s->kind == AX_STEP_MOVE)
            ax_text_add(out, room, "->d%d", s->to);
        ax_text_add(out, room, ")");
    }
    return out;
}

/* Returns the extent along d of the largest part of `fine`, a tensor with dim d split along `axis`, in the
 * ranks along this axis: that of coordinate 0, because larger parts come first. */
static int64_t chunk_of(const ax_grid *grid, const ax_tensor *fine, int d, ax_axis axis)
{
    int64_t lo, n;
    ax_tensor_range(grid, fine, d, ax_grid_peer(grid, axis, 0), &lo, &n);
    return n;
}

ax_wire ax_wire_make(const ax_grid *grid, const ax_tensor *fine, int d, ax_axis axis)
{
    ax_wire w = {.lead = 1, .inner = 1, .chunk = chunk_of(grid, fine, d, axis)};
    for (int i = 0; i < d; i++)
        w.lead *= ax_tensor_extent(grid, fine, i);
    for (int i = d + 1; i < fine->ndim; i++)
        w.inner *= ax_tensor_extent(grid, fine, i);
    w.count = w.lead * w.chunk * w.inner;
    return w;
}

ax_move_wire ax_move_wire_make(const ax_grid *grid, const ax_tensor *from, const ax_redistribution_step *step)
{
    ax_tensor made = *from;
    made.layout = step->after;
    ax_move_wire w = {.n = {1, 1, 1, 1}, .count = 1};
    for (int d = 0; d < from->ndim; d++) {
        w.n[d] = d == step->dim  ? chunk_of(grid, from, d, step->axis)
                 : d == step->to ? chunk_of(grid, &made, d, step->axis)
                                 : ax_tensor_extent(grid, from, d);
        w.count *= w.n[d];
    }
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
        else if (s->kind == AX_STEP_MOVE)
            bytes += (g - 1) * size * ax_move_wire_make(grid, &now, s).count;
        now = after;
    }
    *out = bytes;
    return AX_OK;
}
