/* tensor: the split rule, layouts as text, and boxes that cover a global array exactly once. */
#include "axonn/tensor.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const ax_grid_size eight = {{4, 1, 2, 1, 1}};

/* Extents that each rank along the axes of dim 0 holds, in order of the coordinates: "3,2,2,2". */
static ax_status sizes(const ax_grid *grid, const char *layout_text, int64_t extent, int64_t unit,
                       const char *expected)
{
    int ndim;
    ax_layout layout;
    AX_TRY(ax_layout_parse(grid, layout_text, &ndim, &layout));
    ax_tensor t = ax_tensor_make(AX_F32, 1, &extent, &unit, &layout);
    char text[128] = "";
    int64_t end = 0, largest = 0;
    const ax_axes *axes = &layout.dim[0];
    int parts = ax_grid_group_size(grid, ax_layout_split_axes(&layout, 1));
    for (int i = 0; i < parts; i++) {
        /* The rank whose coordinates along the axes, read as a mixed-radix number, major first, are i. */
        int rank = 0, rest = i;
        for (int k = axes->n - 1; k >= 0; k--) {
            int size = ax_grid_axis_size(grid, axes->a[k]);
            rank += (ax_grid_peer(grid, axes->a[k], 1) - ax_grid_peer(grid, axes->a[k], 0)) * (rest % size);
            rest /= size;
        }
        int64_t lo, n;
        ax_tensor_range(grid, &t, 0, rank, &lo, &n);
        EXPECT(lo == end || n == 0);
        end += n;
        largest = ax_max(largest, n);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", i ? "," : "", (long long)n);
    }
    EXPECT(end == extent && largest == ax_tensor_chunk(grid, &t, 0));
    AX_CHECK(!strcmp(text, expected), AX_ERR_INTERNAL, "[%s] of %lld by %lld splits as %s", layout_text,
             (long long)extent, (long long)unit, text);
    return AX_OK;
}

/* ---- text ---------------------------------------------------------------------------------------- */

static ax_status reprint(const ax_grid *grid, const char *text, const char *expected)
{
    int ndim;
    ax_layout layout;
    char out[128];
    AX_TRY(ax_layout_parse(grid, text, &ndim, &layout));
    ax_layout_print(grid, &layout, ndim, "btd", out);
    AX_CHECK(!strcmp(out, expected), AX_ERR_INTERNAL, "\"%s\" prints as \"%s\"", text, out);
    return AX_OK;
}

static ax_status refused(const ax_grid *grid, const char *text, const char *why)
{
    int ndim;
    ax_layout layout;
    ax_status status = ax_layout_parse(grid, text, &ndim, &layout);
    AX_CHECK(status == AX_ERR_USAGE && strstr(ax_error_message(), why), AX_ERR_INTERNAL,
             "\"%s\" is refused with \"%s\" rather than \"%s\"", text, ax_error_message(), why);
    return AX_OK;
}

static ax_status text_in_and_out(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    AX_TRY(ax_grid_create(world, eight, &grid));
    AX_TRY(reprint(grid, "b@data.z, t, d@y +x", "b@data.z, t, d@y +x"));
    AX_TRY(reprint(grid, " b@x/z ,t,d +y+data ", "b@x/z, t, d +y.data"));
    AX_TRY(reprint(grid, "b@/z.x", "b@/z.x"));
    AX_TRY(reprint(grid, "b +x.y", "b +x.y"));
    AX_TRY(refused(grid, "b@dta", "column 3: the grid has no axis \"dta\"; its axes are x, y"));
    AX_TRY(refused(grid, "b@", "column 3: expected the name of an axis"));
    AX_TRY(refused(grid, "b,,c", "column 3: expected the name of a dim"));
    AX_TRY(refused(grid, "b@x, d@x", "axis x appears twice in layout [d0@x, d1@x]"));
    AX_TRY(refused(grid, "b@x +x", "axis x appears twice"));
    AX_TRY(refused(grid, "b +x +x", "named twice"));
    AX_TRY(refused(grid, "b@x; d", "column 4: unexpected character"));
    AX_TRY(refused(grid, "a,b,c,d,e", "at most four dims"));
    int ndim;
    ax_layout a, b, c;
    AX_TRY(ax_layout_parse(grid, "b@data.x/y, t", &ndim, &a));
    AX_TRY(ax_layout_parse(grid, "b@x, t@pipe +y", &ndim, &b));
    AX_TRY(ax_layout_parse(grid, "b@/x, t", &ndim, &c));
    EXPECT(ax_layout_equal(grid, &a, &b, 2) && !ax_layout_equal(grid, &a, &c, 2));
    EXPECT(ax_layout_split_axes(&a, 2) == (1 << AX_DATA | 1 << AX_X | 1 << AX_Y));
    ax_layout kept = ax_layout_effective(grid, &a, 2);
    EXPECT(ax_layout_equal(grid, &a, &kept, 2) && kept.dim[0].n == 1);
    ax_grid_destroy(&grid);
    return AX_OK;
}

/* x = 4 as x.kv = 2 times x.rep = 2. */
static ax_status factors_as_text(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    AX_TRY(ax_grid_create(world, eight, &grid));
    AX_TRY(refused(grid, "b@x.kv", "the grid has no axis \"kv\""));
    int factoring;
    AX_TRY(ax_grid_factor(grid, AX_FACTOR_KV, 2, &factoring));
    AX_TRY(reprint(grid, "b@x.kv.x.rep, t@z", "b@x.kv.x.rep, t@z"));
    AX_TRY(reprint(grid, "b@z.x.kv/x.rep +y", "b@z.x.kv/x.rep +y"));
    AX_TRY(reprint(grid, "b@x.kv +z+x.rep", "b@x.kv +z.x.rep"));
    AX_TRY(reprint(grid, "b@x.z", "b@x.z"));
    AX_TRY(refused(grid, "b@x.kv, d@x", "axis x appears twice in layout [d0@x.kv, d1@x]"));
    AX_TRY(refused(grid, "b@x.rep +x", "axis x.rep appears twice"));
    AX_TRY(refused(grid, "b +x.x.kv", "named twice"));
    AX_TRY(refused(grid, "b@x.kvx", "the grid has no axis \"kvx\""));
    int ndim;
    ax_layout a, b;
    AX_TRY(ax_layout_parse(grid, "b@z +x", &ndim, &a));
    AX_TRY(ax_layout_parse(grid, "b@z +x.kv.x.rep", &ndim, &b));
    EXPECT(ax_layout_equal(grid, &a, &b, 1));
    /* Two groups of three heads: each part lies within one group; a split of six heads into four does not. */
    AX_TRY(sizes(grid, "d@x", 6, 1, "2,2,1,1"));
    AX_TRY(sizes(grid, "d@x.kv.x.rep", 6, 1, "2,1,2,1"));
    AX_TRY(sizes(grid, "d@x.kv", 6, 1, "3,3"));
    AX_TRY(sizes(grid, "d@x.kv.x.rep", 8, 1, "2,2,2,2"));
    ax_grid_destroy(&grid);
    return AX_OK;
}

static void layouts_are_parsed_and_printed(void **state)
{
    (void)state;
    assert_ranks(8, text_in_and_out, NULL);
    assert_ranks(8, factors_as_text, NULL);
}

/* ---- the split rule ------------------------------------------------------------------------------ */

static ax_status split_rule(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    AX_TRY(ax_grid_create(world, eight, &grid));
    AX_TRY(sizes(grid, "d@x", 9, 1, "3,2,2,2"));
    AX_TRY(sizes(grid, "d@x", 9, 3, "3,3,3,0"));
    AX_TRY(sizes(grid, "d@x", 9, 4, "4,4,1,0"));
    AX_TRY(sizes(grid, "d@x", 2, 1, "1,1,0,0"));
    AX_TRY(sizes(grid, "d@x", 0, 1, "0,0,0,0"));
    AX_TRY(sizes(grid, "d", 9, 4, "9"));
    AX_TRY(sizes(grid, "d@x.z", 10, 1, "2,1,2,1,1,1,1,1"));
    AX_TRY(sizes(grid, "d@z.x", 10, 1, "2,1,1,1,2,1,1,1"));
    AX_TRY(sizes(grid, "d@x.z", 64, 16, "16,0,16,0,16,0,16,0"));
    AX_TRY(sizes(grid, "d@x/z", 64, 16, "8,8,8,8,8,8,8,8"));
    AX_TRY(sizes(grid, "d@x/z", 60, 16, "8,8,8,8,8,8,6,6"));
    AX_TRY(sizes(grid, "d@/z.x", 60, 16, "8,8,8,6,8,8,8,6"));
    AX_TRY(sizes(grid, "d@/x", 9, 1, "3,3,3,0"));
    AX_TRY(sizes(grid, "d@x/z", 13, 1, "2,2,2,1,2,1,2,1"));
    ax_grid_destroy(&grid);
    return AX_OK;
}

static void splits_are_balanced_in_units(void **state)
{
    (void)state;
    assert_ranks(8, split_rule, NULL);
}

/* ---- boxes and global arrays --------------------------------------------------------------------- */

/* Checks the number of elements that all ranks hold together. Ranks that differ along the splitting axes hold
 * different elements; all others hold copies. */
static ax_status boxes_cover(const ax_grid *grid, const ax_tensor *t)
{
    int64_t held = 0;
    for (int r = 0; r < ax_grid_ranks(grid); r++) {
        ax_box box = ax_tensor_box(grid, t, r);
        int64_t n = 1;
        for (int d = 0; d < t->ndim; d++)
            n *= box.n[d];
        held += n;
    }
    int split = ax_grid_group_size(grid, ax_layout_split_axes(&t->layout, t->ndim));
    EXPECT(held == ax_tensor_global_count(t) * (ax_grid_ranks(grid) / split));
    return AX_OK;
}

static ax_status round_trip(ax_ctx *ctx, const char *layout_text, ax_dtype dtype, uint16_t align)
{
    int ndim;
    ax_layout layout;
    AX_TRY(ax_layout_parse(ctx->grid, layout_text, &ndim, &layout));
    int64_t dim[4] = {5, 7, 6, 3}, unit[4] = {1, 2, 1, 1};
    ax_tensor t = ax_tensor_make(dtype, ndim, dim, unit, &layout);
    t.align = align;
    AX_TRY(boxes_cover(ctx->grid, &t));
    int64_t count = ax_tensor_global_count(&t);
    size_t bytes = (size_t)ax_tensor_bytes(ctx->grid, &t);
    int64_t cols = ax_tensor_extent(ctx->grid, &t, ndim - 1), size = (int64_t)ax_dtype_size(dtype);
    int64_t row = align ? (cols * size + align - 1) / align * align : cols * size;
    EXPECT(ax_tensor_pitch(ctx->grid, &t) * size == row);
    EXPECT((int64_t)bytes * cols == ax_tensor_count(ctx->grid, &t) * row);
    double in[5 * 7 * 6 * 3] = {0}, out[5 * 7 * 6 * 3] = {0};
    for (int64_t i = 0; i < count; i++)
        ax_store(dtype, in, i, (double)(i % 120));
    AX_TRY(ax_device_alloc(ctx->dev, bytes, &t.data));
    ax_status status = ax_tensor_scatter(ctx, &t, in);
    if (status == AX_OK)
        status = ax_tensor_collect(ctx, &t, out);
    ax_device_free(ctx->dev, t.data, bytes);
    AX_TRY(status);
    AX_CHECK(!memcmp(in, out, (size_t)count * ax_dtype_size(dtype)), AX_ERR_INTERNAL,
             "[%s] of %s, rows of %d bytes, does not come back", layout_text, ax_dtype_name(dtype), align);
    return AX_OK;
}

static ax_status round_trips(ax_comm *world, void *arg)
{
    static const char *const layouts[] = {"a",
                                          "a@x",
                                          "a@x.z, b",
                                          "a, b@z/x",
                                          "a, b@x +z",
                                          "a@z, b, c@x",
                                          "a, b@x, c, d@z",
                                          "a +x.z",
                                          "a, b@x +y.z",
                                          "a, b@x.kv",
                                          "a@x.rep, b",
                                          "a@x.rep, b@x.kv",
                                          "a@x.kv +x.rep",
                                          "a, b@x.kv/x.rep"};
    ax_ctx *ctx;
    AX_TRY(ax_ctx_create(world, eight, arg, 1, AX_F32, 1, &ctx));
    int factoring;
    AX_TRY(ax_grid_factor(ctx->grid, AX_FACTOR_KV, 2, &factoring));
    ax_status status = AX_OK;
    for (size_t i = 0; i < AX_COUNT(layouts) && status == AX_OK; i++)
        for (int dtype = 0; dtype < AX_DTYPE_COUNT && status == AX_OK; dtype++)
            for (int align = 0; align <= 64 && status == AX_OK; align += 32)
                status = round_trip(ctx, layouts[i], (ax_dtype)dtype, (uint16_t)align);
    ax_ctx_destroy(&ctx);
    return status;
}

static void scattered_arrays_are_collected_unchanged(void **state)
{
    (void)state;
    assert_ranks(8, round_trips, "ref");
    assert_ranks(8, round_trips, "check");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_parsed_and_printed),
        cmocka_unit_test(splits_are_balanced_in_units),
        cmocka_unit_test(scattered_arrays_are_collected_unchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
