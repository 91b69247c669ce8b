/* parallel: the bytes that redistributions send, and the frame memory that they take, in closed form. */
#include "axonn/parallel.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- bytes of moves ------------------------------------------------------------------------------ */

/* A move from layout `from` to layout `to`, and what a gather needs: the layout `from` without the axis. */
typedef struct move_case {
    const char *from, *to, *whole;
    int64_t dim[AX_MAX_DIMS], sent, gathered; /* elements that each rank sends */
} move_case;

/* The grid has z = 2 and data = 4 ranks. A rank's part of the first tensor has 8·2·3·5 = 240 elements: moved,
 * 3 of 4 parts of it are sent, gathered, all of it 3 times. Of the second, parts of 6 by 1: padded to 8 by 1
 * for the move. Of the third, the ranks along data have 3, 2, 2 and 2 of 9 along dim 0, and 2, 1, 1 and 1 of
 * 5 along dim 1: 4 messages of 3 by 2 in place of parts of 3 by 5. */
static const move_case move_cases[] = {
    {"e, b@z.data, c, d", "e@data, b@z, c, d", "e, b@z, c, d", {8, 16, 3, 5}, 240 * 3 / 4, 240 * 3},
    {"e, b@z.data, c, d", "e@data, b@z, c, d", "e, b@z, c, d", {6, 7, 3, 5}, 120 * 3 / 4, 90 * 3},
    {"b@data, d", "b, d@data", "b, d", {9, 5}, 24 * 3 / 4, 15 * 3},
};

static ax_status sends_these(const ax_grid *grid, const move_case *c)
{
    ax_layout from, to[2];
    int ndim;
    AX_TRY(ax_layout_parse(grid, c->from, &ndim, &from));
    AX_TRY(ax_layout_parse(grid, c->to, &ndim, &to[0]));
    AX_TRY(ax_layout_parse(grid, c->whole, &ndim, &to[1]));
    ax_tensor t = ax_tensor_make(AX_F32, ndim, c->dim, NULL, &from);
    for (int i = 0; i < 2; i++) {
        ax_redistribution steps;
        int64_t bytes, want = 4 * (i ? c->gathered : c->sent);
        AX_TRY(ax_redistribution_make(grid, &t, &to[i], &steps));
        AX_TRY(ax_redistribution_bytes(grid, &t, &steps, &bytes));
        EXPECT(steps.n == 1 && steps.step[0].kind == (i ? AX_STEP_GATHER : AX_STEP_MOVE));
        AX_CHECK(bytes == want, AX_ERR_INTERNAL, "[%s] -> [%s] sends %lld bytes, not %lld", c->from,
                 i ? c->whole : c->to, (long long)bytes, (long long)want);
    }
    return AX_OK;
}

static ax_status moves_send_these(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    AX_TRY(ax_grid_create(world, (ax_grid_size){{1, 1, 2, 1, 4}}, &grid));
    for (size_t i = 0; i < AX_COUNT(move_cases); i++)
        if (ax_grid_coord(grid, ax_grid_rank(grid), AX_Z) == 0)
            AX_TRY(sends_these(grid, &move_cases[i]));
    ax_grid_destroy(&grid);
    return AX_OK;
}

static void moves_send_one_part_where_gathers_send_all(void **state)
{
    (void)state;
    assert_ranks(8, moves_send_these, NULL);
}

/* The layouts through which tokens at places of experts, [e, b, c, d], go to the ranks of their experts, and
 * their sums, partial along x.y, back; `sent` has the elements that each of these changes sends. S is a
 * rank's part, g = 2 the ranks along data.exp, G = 4 those along x and y. Without dtd ranks along x.y send
 * the same through data.exp; with it (duplicate token dropping, arXiv 2303.06318) each sends a part of the
 * places. */
enum { S = 8 * 2 * 8 * 4, g = 2, G = 4 };
static const struct {
    const char *layout[4];
    int64_t sent[3];
} series[] = {
    /* out and back without dtd: (g-1)/g · S along data.exp, 2(G-1)/G · S along x.y for the sums */
    {{"e, b@data.rep.data.exp, c, d", "e@data.exp, b@data.rep, c, d"}, {S * (g - 1) / g}},
    {{"e@data.exp, b@data.rep, c, d +x.y", "e@data.exp, b@data.rep, c@x.y, d", "e@data.exp, b@data.rep, c, d",
      "e, b@data.rep.data.exp, c, d"},
     {S * (G - 1) / G, S *(G - 1) / G, S *(g - 1) / g}},
    /* with dtd: 1/G of that along data.exp, (G-1)/G · S along x.y out and 2(G-1)/G · S back */
    {{"e, b@data.rep.data.exp, c, d", "e, b@data.rep.data.exp, c@x.y, d", "e@data.exp, b@data.rep, c@x.y, d",
      "e@data.exp, b@data.rep, c, d"},
     {0, S *(g - 1) / g / G, S *(G - 1) / G}},
    {{"e@data.exp, b@data.rep, c, d +x.y", "e@data.exp, b@data.rep, c@x.y, d",
      "e, b@data.rep.data.exp, c@x.y, d", "e, b@data.rep.data.exp, c, d"},
     {S * (G - 1) / G, S *(g - 1) / g / G, S *(G - 1) / G}},
};

static ax_status check_series(const ax_grid *grid, size_t k)
{
    ax_layout now, next;
    int ndim;
    AX_TRY(ax_layout_parse(grid, series[k].layout[0], &ndim, &now));
    for (int i = 1; i < 4 && series[k].layout[i]; i++) {
        ax_redistribution steps;
        int64_t bytes;
        AX_TRY(ax_layout_parse(grid, series[k].layout[i], &ndim, &next));
        ax_tensor t = ax_tensor_make(AX_F32, ndim, (int64_t[]){8, 8, 8, 4}, NULL, &now);
        AX_TRY(ax_redistribution_make(grid, &t, &next, &steps));
        AX_TRY(ax_redistribution_bytes(grid, &t, &steps, &bytes));
        AX_CHECK(bytes == 4 * series[k].sent[i - 1], AX_ERR_INTERNAL,
                 "[%s] -> [%s] sends %lld bytes, not %lld", series[k].layout[i - 1], series[k].layout[i],
                 (long long)bytes, (long long)(4 * series[k].sent[i - 1]));
        now = next;
    }
    return AX_OK;
}

static ax_status check_all_series(void)
{
    ax_comm *world;
    ax_grid *grid;
    AX_TRY(ax_comm_dry_create(5, 16, &world));
    AX_TRY(ax_grid_create(world, (ax_grid_size){{2, 2, 1, 1, 4, 2}}, &grid));
    for (size_t k = 0; k < AX_COUNT(series); k++)
        AX_TRY(check_series(grid, k));
    ax_grid_destroy(&grid);
    ax_comm_destroy(&world);
    return AX_OK;
}

static void tokens_cross_the_axis_of_experts_in_the_bytes_of_the_closed_forms(void **state)
{
    (void)state;
    if (check_all_series() != AX_OK)
        fail_msg("%s", ax_error_message());
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* Computes the bytes of frame memory in which a redistribution of zeros has its source and all else. */
static ax_status memory_taken(ax_ctx *ctx, const char *from, const char *to, const int64_t *dim, size_t *out)
{
    ax_frame *frame;
    ax_layout layout, target;
    int ndim;
    AX_TRY(ax_layout_parse(ctx->grid, from, &ndim, &layout));
    AX_TRY(ax_layout_parse(ctx->grid, to, &ndim, &target));
    ax_tensor like = ax_tensor_make(AX_F32, ndim, dim, NULL, &layout), src, dst;
    AX_TRY(ax_frame_create(ctx, (size_t)1 << 18, &frame));
    AX_TRY(ax_frame_begin(frame, "redistribution", AX_MODE_EVAL, NULL));
    AX_TRY(ax_frame_alloc(frame, &like, &src));
    memset(src.data, 0, (size_t)ax_tensor_bytes(ctx->grid, &src));
    AX_TRY(ax_settle(frame, &src, &target, &dst));
    *out = ax_frame_high_water(frame);
    ax_frame_destroy(&frame);
    return AX_OK;
}

/* Moves between tensors of which each rank has a part of S = 32 KiB, and how many arrays of S bytes are in
 * the frame then: source and result, one if what is sent must be packed, and one if what is received must be
 * unpacked. */
static const struct {
    const char *from, *to;
    int64_t dim[3], arrays;
} in_place_cases[] = {
    {"e, b@x, d", "e@x, b, d", {4, 4, 1024}, 3}, /* sent in place */
    {"b@x, e, d", "b, e@x, d", {4, 4, 1024}, 3}, /* received in place */
    {"b@x, e, d", "b, e@x, d", {2, 4, 2048}, 2}, /* both: a rank has one row of each of two ranks */
    {"t, b@x, d", "t, b, d@x", {4, 4, 1024}, 4}, /* neither */
    {"t, b@x, d", "t, b, d@x", {1, 4, 4096}, 3}, /* received in place: the first dim has extent 1 */
    {"t, b@x, d", "t, b, d@x", {1, 2, 8192}, 2},
};

static ax_status take_these(ax_comm *world, void *arg)
{
    (void)arg;
    ax_ctx *ctx;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{2, 1, 1, 1, 1}}, "ref", 1, AX_F32, 1, &ctx));
    for (size_t i = 0; i < AX_COUNT(in_place_cases); i++) {
        size_t bytes;
        AX_TRY(
            memory_taken(ctx, in_place_cases[i].from, in_place_cases[i].to, in_place_cases[i].dim, &bytes));
        AX_CHECK(bytes == (size_t)in_place_cases[i].arrays << 15, AX_ERR_INTERNAL,
                 "[%s] -> [%s] takes %zu bytes", in_place_cases[i].from, in_place_cases[i].to, bytes);
    }
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void moves_pack_only_what_they_must(void **state)
{
    (void)state;
    assert_ranks(2, take_these, NULL);
}

/* The steps are reduce_scatter(d1@x) all_reduce(y) all_gather(d0@z). Of 3 rows the ranks with z = 1 have one,
 * and send it from the scatter's result, padded to two: so this has 2 · 512 elements, beside the source of
 * 1024 and the gather's result of 4 · 512 with its padding. */
static ax_status has_room_for_padding(ax_comm *world, void *arg)
{
    (void)arg;
    ax_ctx *ctx;
    size_t bytes;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{2, 2, 2, 1, 1}}, "ref", 1, AX_F32, 1, &ctx));
    AX_TRY(memory_taken(ctx, "b@z, d +x.y", "b, d@x", (int64_t[]){3, 1024}, &bytes));
    EXPECT(!ax_grid_coord(ctx->grid, ax_grid_rank(ctx->grid), AX_Z) || bytes == (1024 + 1024 + 2048) * 4);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void gathers_after_reductions_have_room_for_padding(void **state)
{
    (void)state;
    assert_ranks(8, has_room_for_padding, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_send_one_part_where_gathers_send_all),
        cmocka_unit_test(tokens_cross_the_axis_of_experts_in_the_bytes_of_the_closed_forms),
        cmocka_unit_test(moves_pack_only_what_they_must),
        cmocka_unit_test(gathers_after_reductions_have_room_for_padding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
