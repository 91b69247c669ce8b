/* parallel: redistribution between random layouts on grids of up to eight rank threads. The oracle does not
 * use boxes or plans: for each element it computes which ranks hold it and which value they must see. */
#include "axonn/parallel.h"
#include "support/lazy.h"
#include "support/ranks.h"
#include "support/sampled.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ELEMENTS = 12 * 12 * 16, ROW = 32, MAX_MEMORY = ROW * MAX_ELEMENTS, CASES = 60 };

/* ---- random cases -------------------------------------------------------------------------------- */

typedef struct test_case {
    ax_tensor src;
    ax_layout target;
} test_case;

enum { FACTORINGS = 2 };

/* A random layout: each axis splits a random dim, splits none, or, if it is in `partial`, is partial. If the
 * grid has factorings, the factors of one of them sometimes replace their axis. */
static ax_layout random_layout(const ax_grid *grid, uint64_t *state, int ndim, ax_axisset partial,
                               int factorings)
{
    ax_layout layout = {0};
    ax_axis order[] = {AX_X, AX_Y, AX_Z, AX_PIPE, AX_DATA, 0};
    int n = AX_AXES_STANDARD, by = random_below(state, factorings + 1);
    if (by) {
        ax_factoring f = ax_grid_factoring(grid, by - 1);
        order[f.axis] = f.major;
        order[n++] = f.minor;
    }
    for (int i = n - 1; i > 0; i--) {
        int j = random_below(state, i + 1);
        ax_axis axis = order[i];
        order[i] = order[j];
        order[j] = axis;
    }
    for (int i = 0; i < n; i++) {
        int to = random_below(state, ndim + 2);
        ax_axisset axis = (ax_axisset)(1u << order[i]);
        if (to < ndim)
            layout.dim[to].a[layout.dim[to].n++] = order[i];
        else if (to == ndim && !(ax_grid_atoms(grid, axis) & ~ax_grid_atoms(grid, partial)))
            layout.partial |= axis;
    }
    for (int d = 0; d < ndim; d++)
        if (random_below(state, 3) == 0)
            layout.dim[d].fine = (uint8_t)random_below(state, layout.dim[d].n + 1);
    return layout;
}

/* A layout from which one move leads to `layout`, or `layout` itself: the innermost axis of a random dim
 * becomes the innermost axis of another. */
static ax_layout one_move_from(ax_layout layout, uint64_t *state, int ndim)
{
    ax_axes *from = &layout.dim[random_below(state, ndim)], *to = &layout.dim[random_below(state, ndim)];
    if (from == to || !from->n)
        return layout;
    to->a[to->n++] = from->a[--from->n];
    from->fine = (uint8_t)(from->fine - (from->fine > 0));
    to->fine = (uint8_t)(to->fine + (to->fine > 0 || random_below(state, 3) == 0));
    return layout;
}

static test_case random_case(const ax_grid *grid, uint64_t *state, int factorings)
{
    static const int64_t extents[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 12};
    static const ax_dtype dtypes[] = {AX_F64, AX_F32, AX_BF16, AX_F16, AX_I32};
    int ndim = 1 + random_below(state, AX_MAX_DIMS);
    int64_t dim[AX_MAX_DIMS], unit[AX_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        /* Sometimes an extent of zero; smaller extents for tensors of many dims. */
        int from = random_below(state, 20) ? 1 : 0;
        dim[d] = extents[from + random_below(state, (ndim > 2 ? 6 : 10) - from)];
        unit[d] = random_below(state, 4);
    }
    const ax_axisset all = (ax_axisset)((1u << ax_grid_axes(grid)) - 1);
    ax_layout layout = random_layout(grid, state, ndim, all, factorings);
    test_case c = {
        .src = ax_tensor_make(dtypes[random_below(state, AX_COUNT(dtypes))], ndim, dim, unit, &layout)};
    c.target = random_below(state, 4) ? random_layout(grid, state, ndim, layout.partial, factorings)
                                      : one_move_from(layout, state, ndim);
    c.src.align = random_below(state, 3) ? 0 : ROW;
    return c;
}

/* ---- the oracle ---------------------------------------------------------------------------------- */

/* Splits [*from, *from + *count) into `parts` runs, the first ones longer by one, and narrows it to run
 * `mine`. */
static void deal(int64_t *from, int64_t *count, int parts, int mine)
{
    int64_t left = *count;
    for (int part = 0; part < mine; part++) {
        int64_t run = (left + parts - part - 1) / (parts - part);
        *from += run;
        left -= run;
    }
    *count = (left + parts - mine - 1) / (parts - mine);
}

static bool holds(const ax_grid *grid, const ax_tensor *t, int d, int rank, int64_t element)
{
    const ax_axes *axes = &t->layout.dim[d];
    int64_t unit = t->unit[d] ? t->unit[d] : 1, from = 0, count = 0;
    while (count * unit < t->dim[d])
        count++;
    int i = 0;
    for (; i < axes->n - axes->fine; i++)
        deal(&from, &count, ax_grid_axis_size(grid, axes->a[i]), ax_grid_coord(grid, rank, axes->a[i]));
    int64_t first = from * unit, end = ax_min(first + count * unit, t->dim[d]);
    if (first > end)
        first = end;
    for (count = end - first; i < axes->n; i++) {
        int64_t parts = ax_grid_axis_size(grid, axes->a[i]), run = (count + parts - 1) / parts;
        int64_t skip = ax_min(run * ax_grid_coord(grid, rank, axes->a[i]), count);
        first += skip;
        count = ax_min(run, count - skip);
    }
    return element >= first && element < first + count;
}

/* Returns the summand of element `index` on the rank with these coordinates along `axes`, which are atoms. */
static double summand(const ax_grid *grid, int64_t index, ax_axisset axes, int rank)
{
    int64_t h = index * 31 + 7;
    for (int a = 0; a < ax_grid_axes(grid); a++)
        if (axes >> a & 1)
            h = h * 5 + 3 * ax_grid_coord(grid, rank, (ax_axis)a) + a;
    return (double)(h % 7) - 3;
}

/* Returns the value that `rank` must hold of element `index` in layout `now`, if the source was partial along
 * `partial`. */
static double expected(const ax_grid *grid, int64_t index, ax_axisset partial, ax_axisset now, int rank)
{
    double sum = 0;
    ax_axisset all = ax_grid_atoms(grid, (ax_axisset)((1u << AX_AXES_STANDARD) - 1));
    partial = ax_grid_atoms(grid, partial);
    ax_axisset summed = partial & (ax_axisset)~ax_grid_atoms(grid, now);
    for (int r = 0; r < ax_grid_ranks(grid); r++) {
        bool counts = true;
        for (int a = 0; a < ax_grid_axes(grid); a++)
            counts &= !((all & ~summed) >> a & 1) ||
                      ax_grid_coord(grid, r, (ax_axis)a) == ax_grid_coord(grid, rank, (ax_axis)a);
        if (counts)
            sum += summand(grid, index, partial, r);
    }
    return sum;
}

/* Writes the elements that the calling rank must hold to `out` (host memory of t's dtype), in ascending
 * order, and returns their number. */
static int64_t oracle_local(const ax_grid *grid, const ax_tensor *t, ax_axisset partial, void *out)
{
    int rank = ax_grid_rank(grid);
    int64_t n = 0, all = ax_tensor_global_count(t);
    for (int64_t index = 0; index < all; index++) {
        int64_t rest = index;
        bool mine = true;
        for (int d = t->ndim - 1; d >= 0; d--) {
            mine &= holds(grid, t, d, rank, rest % t->dim[d]);
            rest /= t->dim[d];
        }
        if (mine)
            ax_store(t->dtype, out, n++, expected(grid, index, partial, t->layout.partial, rank));
    }
    return n;
}

/* ---- running cases ------------------------------------------------------------------------------- */

typedef struct world_case {
    ax_grid_size grid;
    const char *device;
    int kv[FACTORINGS]; /* ranks along x.kv in each factoring of x; 0: no further factoring */
    bool lazy;
} world_case;

/* Copies between `n` dense elements and the memory of t, whose rows may be padded. */
static void copy_rows(const ax_grid *grid, const ax_tensor *t, int64_t n, char *dense, char *memory, bool in)
{
    size_t size = ax_dtype_size(t->dtype), row = (size_t)ax_tensor_extent(grid, t, t->ndim - 1) * size,
           step = (size_t)ax_tensor_pitch(grid, t) * size;
    for (size_t at = 0, to = 0; at < (size_t)n * size; at += row, to += step)
        memcpy(in ? memory + to : dense + at, in ? dense + at : memory + to, row);
}

static int64_t traffic(const ax_grid *grid)
{
    int64_t bytes = 0;
    for (ax_axisset axes = 0; axes < 1 << ax_grid_axes(grid); axes++)
        if (ax_grid_effective(grid, axes) == axes)
            bytes += traffic_along(grid, axes).bytes;
    return bytes;
}

static ax_status holds_oracle(ax_ctx *ctx, const ax_tensor *t, ax_axisset partial)
{
    char want[MAX_ELEMENTS * sizeof(double)], have[MAX_ELEMENTS * sizeof(double)], local[MAX_MEMORY];
    int64_t n = oracle_local(ctx->grid, t, partial, want);
    EXPECT(n == ax_tensor_count(ctx->grid, t));
    if (n)
        AX_TRY(ax_copy_out(ctx->stream, local, t->data, (size_t)ax_tensor_bytes(ctx->grid, t)));
    copy_rows(ctx->grid, t, n, have, local, false);
    for (int64_t i = 0; i < n; i++)
        AX_CHECK(ax_load(t->dtype, have, i) == ax_load(t->dtype, want, i), AX_ERR_INTERNAL,
                 "element %lld of %lld is %g, not %g", (long long)i, (long long)n, ax_load(t->dtype, have, i),
                 ax_load(t->dtype, want, i));
    return AX_OK;
}

/* Computes the bytes that this rank would send if gathers first removed all axes of src that the target does
 * not have at the same place. */
static ax_status bytes_of_gathers(const ax_grid *grid, const ax_tensor *src, const ax_layout *target,
                                  int64_t *out)
{
    ax_layout whole = ax_layout_effective(grid, &src->layout, src->ndim),
              to = ax_layout_effective(grid, target, src->ndim);
    for (int d = 0; d < src->ndim; d++) {
        ax_axes *axes = &whole.dim[d];
        const ax_axes *want = &to.dim[d];
        int n = axes->n, units = n - axes->fine, want_units = want->n - want->fine, same = 0;
        while (same < ax_min(n, want->n) && axes->a[same] == want->a[same] &&
               (same < units) == (same < want_units))
            same++;
        axes->n = (uint8_t)same;
        axes->fine = (uint8_t)ax_max(same - units, 0);
    }
    ax_redistribution gathers, rest;
    ax_tensor mid = *src;
    int64_t bytes;
    mid.layout = whole;
    AX_TRY(ax_redistribution_make(grid, src, &whole, &gathers));
    AX_TRY(ax_redistribution_make(grid, &mid, target, &rest));
    AX_TRY(ax_redistribution_bytes(grid, src, &gathers, &bytes));
    AX_TRY(ax_redistribution_bytes(grid, &mid, &rest, out));
    *out += bytes;
    return AX_OK;
}

static atomic_int moves; /* number of moves in the plans of rank 0 */

static ax_status run_case(ax_ctx *ctx, ax_frame *frame, const test_case *c)
{
    AX_TRY(ax_frame_begin(frame, "case", AX_MODE_EVAL, NULL));
    ax_tensor src, dst;
    AX_TRY(ax_frame_alloc(frame, &c->src, &src));
    char dense[MAX_ELEMENTS * sizeof(double)], local[MAX_MEMORY];
    int64_t n = oracle_local(ctx->grid, &src, src.layout.partial, dense);
    copy_rows(ctx->grid, &src, n, dense, local, true);
    if (n)
        AX_TRY(ax_copy_in(ctx->stream, src.data, local, (size_t)ax_tensor_bytes(ctx->grid, &src)));
    ax_redistribution steps;
    AX_TRY(ax_redistribution_make(ctx->grid, &src, &c->target, &steps));
    for (int i = 0; i < steps.n; i++)
        moves += ax_grid_rank(ctx->grid) == 0 && steps.step[i].kind == AX_STEP_MOVE;
    int64_t planned, gathered, before = traffic(ctx->grid);
    AX_TRY(ax_redistribution_bytes(ctx->grid, &src, &steps, &planned));
    AX_TRY(bytes_of_gathers(ctx->grid, &src, &c->target, &gathered));
    /* Rank 0 has the largest part. Where partial sums are reduced before gathers, an order with them may be
     * better. */
    EXPECT(ax_grid_rank(ctx->grid) || ax_grid_effective(ctx->grid, src.layout.partial) ||
           planned <= gathered);
    AX_TRY(ax_settle(frame, &src, &c->target, &dst));
    int64_t travelled = traffic(ctx->grid) - before;
    AX_CHECK(travelled == planned, AX_ERR_INTERNAL, "%lld bytes travelled, %lld were planned",
             (long long)travelled, (long long)planned);
    EXPECT(steps.n > 0 || dst.data == src.data);
    EXPECT(dst.align == (steps.n ? 0 : src.align));
    EXPECT(ax_layout_equal(ctx->grid, &dst.layout, &c->target, dst.ndim));
    return holds_oracle(ctx, &dst, c->src.layout.partial);
}

static void describe_failure(ax_ctx *ctx, const test_case *c, int number)
{
    char from[128], to[128];
    const ax_tensor *t = &c->src;
    ax_layout_print(ctx->grid, &t->layout, t->ndim, NULL, from);
    ax_layout_print(ctx->grid, &c->target, t->ndim, NULL, to);
    ax_error_context("case %d, %s %lldx%lldx%lldx%lld by %lld,%lld,%lld,%lld [%s] -> [%s]", number,
                     ax_dtype_name(t->dtype), (long long)t->dim[0], (long long)t->dim[1],
                     (long long)t->dim[2], (long long)t->dim[3], (long long)t->unit[0], (long long)t->unit[1],
                     (long long)t->unit[2], (long long)t->unit[3], from, to);
}

static ax_status cases_on(ax_comm *world, const world_case *w)
{
    ax_ctx *ctx;
    ax_frame *frame = NULL;
    AX_TRY(ax_ctx_create(world, w->grid, w->device, 1, AX_F32, 1, &ctx));
    int n = ax_grid_experts(ctx->grid) != NULL, factoring;
    ax_status status = AX_OK;
    for (int i = 0; i < FACTORINGS && w->kv[i] && status == AX_OK; i++, n++)
        status = ax_grid_factor(ctx->grid, AX_FACTOR_KV, w->kv[i], &factoring);
    if (status == AX_OK)
        status = ax_frame_create(ctx, (size_t)1 << 18, &frame);
    for (int i = 0; i < CASES && status == AX_OK; i += one_of(1, 3)) {
        uint64_t state = (uint64_t)(i * 1000 + grid_ranks(w->grid) * 1000000);
        test_case c = random_case(ctx->grid, &state, n);
        status = run_case(ctx, frame, &c);
        if (status != AX_OK)
            describe_failure(ctx, &c, i);
    }
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    return status;
}

static ax_status random_cases(ax_comm *world, void *arg)
{
    const world_case *w = arg;
    ax_comm *lazy = NULL;
    if (w->lazy)
        AX_TRY(lazy_create(world, NULL, &lazy));
    ax_status status = cases_on(lazy ? lazy : world, w);
    ax_comm_destroy(&lazy);
    return status;
}

static const ax_grid_size grids[] = {
    {{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 1}}, {{1, 3, 1, 1, 1}}, {{2, 2, 1, 1, 1}}, {{1, 1, 5, 1, 1}},
    {{1, 2, 1, 1, 3}}, {{3, 1, 2, 1, 1}}, {{1, 1, 1, 7, 1}}, {{2, 2, 2, 1, 1}}, {{2, 1, 1, 2, 2}},
    {{1, 2, 2, 1, 2}}, {{4, 1, 1, 1, 2}}, {{1, 1, 2, 4, 1}}, {{8, 1, 1, 1, 1}},
};

/* Layouts with the factors of x and of data. */
static const world_case factored[] = {{.grid = {{4, 1, 1, 1, 1}}, .kv = {2}},
                                      {.grid = {{4, 2, 1, 1, 1}}, .kv = {2}},
                                      {.grid = {{6, 1, 1, 1, 1}}, .kv = {3}},
                                      {.grid = {{6, 1, 1, 1, 1}}, .kv = {2}},
                                      {.grid = {{4, 1, 1, 1, 2}}, .kv = {2}},
                                      {.grid = {{8, 1, 1, 1, 1}}, .kv = {4}},
                                      {.grid = {{8, 1, 1, 1, 1}}, .kv = {2, 4}},
                                      {.grid = {{8, 1, 1, 1, 1}}, .kv = {4, 2}},
                                      {.grid = {{4, 2, 1, 1, 1}}, .kv = {2, 1}},
                                      {.grid = {{1, 1, 1, 1, 4, 2}}},
                                      {.grid = {{1, 1, 1, 1, 6, 3}}},
                                      {.grid = {{2, 1, 1, 1, 4, 2}}},
                                      {.grid = {{1, 1, 1, 1, 8, 4}}}};

static void on_all_grids(const char *device, bool lazy)
{
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        world_case w = {.grid = grids[i], .device = device, .lazy = lazy};
        assert_ranks(grid_ranks(w.grid), random_cases, &w);
    }
    for (size_t i = 0; i < AX_COUNT(factored); i++) {
        world_case w = factored[i];
        w.device = device;
        w.lazy = lazy;
        assert_ranks(grid_ranks(w.grid), random_cases, &w);
    }
    assert_true(moves > 0);
}

static void random_redistributions_are_right_on_ref(void **state)
{
    (void)state;
    on_all_grids("ref", false);
}

/* On the check device: memory faults when the host touches it, and is NaN before its first write. */
static void random_redistributions_are_right_on_check(void **state)
{
    (void)state;
    on_all_grids("check", false);
}

/* With communicators that do nothing before ax_wait: unpacking and later steps must wait. */
static void random_redistributions_wait_for_their_data(void **state)
{
    (void)state;
    on_all_grids("ref", true);
}

/* ---- the steps of plans -------------------------------------------------------------------------- */

static ax_status plan_reads(const ax_grid *grid, const char *from, const char *to, const char *plan_text)
{
    int ndim;
    ax_layout source, target;
    AX_TRY(ax_layout_parse(grid, from, &ndim, &source));
    AX_TRY(ax_layout_parse(grid, to, &ndim, &target));
    int64_t dim[] = {8, 8, 8};
    ax_tensor t = ax_tensor_make(AX_F32, ndim, dim, NULL, &source);
    ax_redistribution steps;
    char text[256];
    AX_TRY(ax_redistribution_make(grid, &t, &target, &steps));
    ax_redistribution_print(grid, &steps, text);
    AX_CHECK(!strcmp(text, plan_text), AX_ERR_INTERNAL, "[%s] -> [%s] is \"%s\"", from, to, text);
    return AX_OK;
}

static ax_status plans_as_text(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    AX_TRY(ax_grid_create(world, (ax_grid_size){{2, 2, 2, 1, 1}}, &grid));
    AX_TRY(plan_reads(grid, "b@z, t, d@y", "b@data.z, t, d@y", "nothing"));
    AX_TRY(plan_reads(grid, "b@z, t, d +x.data", "b@z, t, d +data", "all_reduce(x)"));
    AX_TRY(plan_reads(grid, "b, d +x.y", "b, d", "all_reduce(x.y)"));
    AX_TRY(plan_reads(grid, "b, d +x", "b, d@x", "reduce_scatter(d1@x)"));
    AX_TRY(plan_reads(grid, "o@x/z, i", "o@x, i", "all_gather(d0@z)"));
    AX_TRY(plan_reads(grid, "o@x, i@y +z", "o@x/z, i@y", "reduce_scatter(d0@z)"));
    AX_TRY(plan_reads(grid, "b@z, d@x", "b@z, d@y", "all_gather(d1@x) slice(d1@y)"));
    AX_TRY(plan_reads(grid, "b@x, d", "b, d@x", "all_to_all(d0@x->d1)"));
    AX_TRY(plan_reads(grid, "e, b@z.x, d", "e@x, b@z, d@y", "slice(d2@y) all_to_all(d1@x->d0)"));
    AX_TRY(plan_reads(grid, "e, b@x.y, d", "e@y.x, b, d", "all_to_all(d1@y->d0) all_to_all(d1@x->d0)"));
    /* An axis moves only from the inner end of its dim, and to the end of another. */
    AX_TRY(plan_reads(grid, "e, b@x.z, d", "e@x, b, d", "all_gather(d1@z) all_to_all(d1@x->d0)"));
    AX_TRY(plan_reads(grid, "e@y, b@x, d", "e@x, b, d", "all_gather(d0@y) all_to_all(d1@x->d0)"));
    AX_TRY(
        plan_reads(grid, "e@y, b@x, d", "e@x, b@y, d", "all_gather(d0@y) all_to_all(d1@x->d0) slice(d1@y)"));
    AX_TRY(plan_reads(grid, "o@x/z, i", "o@x, i@/z", "all_to_all(d0@z->d1)"));
    /* Moves come before gathers, which enlarge what later steps send. */
    AX_TRY(plan_reads(grid, "b@z, t@x, d", "b, t, d@x", "all_to_all(d1@x->d2) all_gather(d0@z)"));
    /* Steps that shrink the data come first: slice, scatter, all-reduce, then gather. */
    AX_TRY(plan_reads(grid, "b, d@y +x.z", "b@x, d +z", "reduce_scatter(d0@x) all_gather(d1@y)"));
    AX_TRY(plan_reads(grid, "b, t, d@y +x", "b@z, t, d", "slice(d0@z) all_reduce(x) all_gather(d2@y)"));
    /* An axis in fine mode (by elements) splits the dim differently from the same axis by units. */
    AX_TRY(plan_reads(grid, "o@x/z", "o@x.z", "all_gather(d0@z) slice(d0@z)"));
    ax_tensor t = ax_tensor_make(AX_F32, 1, (int64_t[]){8}, NULL, NULL);
    ax_layout partial = {.partial = 1 << AX_X};
    ax_redistribution steps;
    EXPECT(ax_redistribution_make(grid, &t, &partial, &steps) == AX_ERR_INTERNAL);
    EXPECT(strstr(ax_error_message(), "no redistribution from [d0] to [d0 +x]: "));
    ax_grid_destroy(&grid);
    return AX_OK;
}

static ax_status plans_of_factors(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    AX_TRY(ax_grid_create(world, (ax_grid_size){{4, 2, 1, 1, 1}}, &grid));
    int factoring;
    AX_TRY(ax_grid_factor(grid, AX_FACTOR_KV, 2, &factoring));
    /* An all-reduce along both factors of x uses the communicator along x. */
    AX_TRY(plan_reads(grid, "b, d +x", "b, d", "all_reduce(x)"));
    AX_TRY(plan_reads(grid, "b, d +x.kv.x.rep", "b, d@x", "reduce_scatter(d1@x)"));
    AX_TRY(plan_reads(grid, "b, d +x", "b, d +x.rep", "all_reduce(x.kv)"));
    AX_TRY(plan_reads(grid, "o@x.kv, i@y +x.rep", "o@x.kv, i@y", "all_reduce(x.rep)"));
    AX_TRY(plan_reads(grid, "b, d@x.kv +x.rep", "b, d@x.kv.x.rep", "reduce_scatter(d1@x.rep)"));
    /* A tensor that is partial along one factor of x only cannot be scattered along x. */
    AX_TRY(
        plan_reads(grid, "b, d@x.kv +x.rep", "b@x, d", "all_reduce(x.rep) all_gather(d1@x.kv) slice(d0@x)"));
    /* A factor moves alone, but an axis does not move as its factors. */
    AX_TRY(plan_reads(grid, "e, b@x.kv.x.rep", "e@x.rep, b@x.kv", "all_to_all(d1@x.rep->d0)"));
    AX_TRY(plan_reads(grid, "e, b@x", "e@x.kv, b", "all_gather(d1@x) slice(d0@x.kv)"));
    ax_grid_destroy(&grid);
    return AX_OK;
}

/* A gather comes before a move if it is followed by a slice that makes the data smaller than before both. */
static ax_status plans_of_16_ranks(void)
{
    ax_comm *world;
    ax_grid *grid;
    AX_TRY(ax_comm_dry_create(0, 16, &world));
    AX_TRY(ax_grid_create(world, (ax_grid_size){{2, 2, 4, 1, 1}}, &grid));
    AX_TRY(
        plan_reads(grid, "b@x, t@y, d", "b@z, t, d@y", "all_gather(d0@x) slice(d0@z) all_to_all(d1@y->d2)"));
    AX_TRY(
        plan_reads(grid, "b@z, t@y, d", "b@x, t, d@y", "all_to_all(d1@y->d2) all_gather(d0@z) slice(d0@x)"));
    ax_grid_destroy(&grid);
    ax_comm_destroy(&world);
    return AX_OK;
}

static void plans_have_the_expected_steps(void **state)
{
    (void)state;
    assert_int_equal(plans_of_16_ranks(), AX_OK);
    assert_ranks(8, plans_as_text, NULL);
    assert_ranks(8, plans_of_factors, NULL);
}

/* ---- memory of a planned frame during a transfer ------------------------------------------------- */

/* The frame memory of a transfer stays allocated while other kernels run between its start and its wait. */
static ax_status meanwhile(ax_frame *frame, ax_tensor *sent, ax_tensor *other, ax_tensor *received)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_layout partial = {.partial = 1 << AX_X}, split = {.dim[0] = {.n = 1, .a = {AX_X}}};
    ax_tensor t = ax_tensor_make(AX_F32, 1, (int64_t[]){64}, NULL, &partial);
    ax_work *work;
    AX_TRY(ax_frame_begin(frame, "task", AX_MODE_EVAL, NULL));
    AX_TRY(ax_frame_alloc(frame, &t, sent));
    AX_TRY(ax_run_fill(ctx->stream, &(ax_fill_args){.n = 64, .value = 1, .y = sent->data, .dtype = AX_F32}));
    AX_TRY(ax_redistribute(frame, sent, &split, received, &work));
    AX_TRY(ax_frame_alloc(frame, &t, other));
    AX_TRY(ax_run_fill(ctx->stream, &(ax_fill_args){.n = 64, .value = 2, .y = other->data, .dtype = AX_F32}));
    AX_TRY(ax_wait(&work));
    return ax_run_scale(ctx->stream,
                        &(ax_scale_args){.n = 32, .factor = 1, .x = received->data, .dtype = AX_F32});
}

static ax_status plan_of_meanwhile(ax_comm *world, ax_grid_size grid, ax_frame_plan **plan)
{
    ax_ctx *dry;
    ax_frame *frame = NULL;
    ax_tensor sent, other, received;
    AX_TRY(ax_ctx_create_dry(ax_comm_rank(world), ax_comm_size(world), grid, AX_F32, NULL, &dry));
    ax_status status = ax_frame_create(dry, 0, &frame);
    if (status == AX_OK)
        status = meanwhile(frame, &sent, &other, &received);
    if (status == AX_OK)
        status = ax_frame_plan_create(frame, 1, NULL, NULL, plan);
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&dry);
    return status;
}

static ax_status keeps_what_travels(ax_comm *world, void *arg)
{
    const ax_grid_size *grid = arg;
    ax_ctx *ctx;
    ax_frame *frame;
    ax_frame_plan *plan;
    ax_tensor sent, other, received;
    AX_TRY(plan_of_meanwhile(world, *grid, &plan));
    AX_TRY(ax_ctx_create(world, *grid, "ref", 1, AX_F32, 1, &ctx));
    AX_TRY(ax_frame_create_planned(ctx, plan, &frame));
    AX_TRY(meanwhile(frame, &sent, &other, &received));
    EXPECT(other.data != sent.data && *(float *)received.data == 2);
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    ax_frame_plan_destroy(&plan);
    return AX_OK;
}

static void memory_of_a_transfer_stays_allocated_until_its_wait(void **state)
{
    (void)state;
    assert_ranks(2, keeps_what_travels, &(ax_grid_size){{2, 1, 1, 1, 1}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_have_the_expected_steps),
        cmocka_unit_test(random_redistributions_are_right_on_ref),
        cmocka_unit_test(random_redistributions_are_right_on_check),
        cmocka_unit_test(random_redistributions_wait_for_their_data),
        cmocka_unit_test(memory_of_a_transfer_stays_allocated_until_its_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
