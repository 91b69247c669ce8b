/* grid: coordinates, communicators along axes, and what is said about grids that do not fit. */
#include "axonn/grid.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const ax_grid_size eight = {.x = 2, .y = 1, .z = 2, .pipe = 1, .data = 2};

static ax_status coordinates(ax_grid *grid)
{
    int me = ax_grid_rank(grid);
    EXPECT(ax_grid_axes(grid) == AX_AXES_STANDARD && ax_grid_ranks(grid) == 8);
    for (int r = 0; r < 8; r++) {
        EXPECT(ax_grid_coord(grid, r, AX_X) == (r & 1));
        EXPECT(ax_grid_coord(grid, r, AX_Y) == 0);
        EXPECT(ax_grid_coord(grid, r, AX_Z) == (r >> 1 & 1));
        EXPECT(ax_grid_coord(grid, r, AX_DATA) == r >> 2);
    }
    EXPECT(ax_grid_peer(grid, AX_Z, 1) == (me | 2) && ax_grid_peer(grid, AX_DATA, 0) == (me & 3));
    EXPECT(ax_grid_effective(grid, 31) == (1 << AX_X | 1 << AX_Z | 1 << AX_DATA));
    EXPECT(ax_grid_group_size(grid, 1 << AX_DATA | 1 << AX_X | 1 << AX_Y) == 4);
    ax_axis axis;
    AX_TRY(ax_grid_axis_find(grid, "data.z", 4, &axis));
    EXPECT(axis == AX_DATA && !strcmp(ax_grid_axis_name(grid, axis), "data"));
    EXPECT(ax_grid_axis_find(grid, "dat", 3, &axis) == AX_ERR_USAGE);
    EXPECT(!strcmp(ax_error_message(), "the grid has no axis \"dat\"; its axes are x, y, z, pipe, data"));
    return AX_OK;
}

/* Along each set of axes, the sum of the ranks of the group. */
static ax_status communicators(ax_grid *grid)
{
    int me = ax_grid_rank(grid);
    for (ax_axisset axes = 0; axes < 1 << AX_AXES_STANDARD; axes++) {
        ax_comm *comm = ax_grid_comm(grid, axes);
        EXPECT(comm == ax_grid_comm(grid, ax_grid_effective(grid, axes)) &&
               ax_comm_size(comm) == ax_grid_group_size(grid, axes));
        int64_t sum = me, expected = 0, before = 0;
        for (int r = 0; r < 8; r++) {
            bool same = true;
            for (ax_axis a = 0; a < AX_AXES_STANDARD; a++)
                same &= (axes >> a & 1) || ax_grid_coord(grid, r, a) == ax_grid_coord(grid, me, a);
            expected += same ? r : 0;
            before += same && r < me;
        }
        ax_work *work;
        AX_TRY(ax_all_reduce(comm, NULL, &sum, 1, AX_I64, AX_SUM, &work));
        AX_TRY(ax_wait(&work));
        EXPECT(sum == expected && ax_comm_rank(comm) == before);
    }
    return AX_OK;
}

/* Groups use their communicators without the other ranks: half of the grid stands still. */
static ax_status communicators_of_some(ax_grid *grid)
{
    int me = ax_grid_rank(grid);
    double one = 1;
    ax_work *work;
    if (ax_grid_coord(grid, me, AX_DATA) == 0) {
        AX_TRY(
            ax_all_reduce(ax_grid_comm(grid, 1 << AX_X | 1 << AX_Z), NULL, &one, 1, AX_F64, AX_SUM, &work));
        AX_TRY(ax_wait(&work));
        EXPECT(one == 4);
    }
    return ax_barrier(ax_grid_comm_all(grid));
}

static ax_status on_eight_ranks(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    AX_TRY(ax_grid_create(world, eight, &grid));
    ax_status status = coordinates(grid);
    if (status == AX_OK)
        status = communicators_of_some(grid);
    if (status == AX_OK)
        status = communicators(grid);
    ax_grid_destroy(&grid);
    EXPECT(!grid);
    return status;
}

/* x = 6 as x.kv = 3 times x.rep = 2, beside y = 1 and data = 1. */
static ax_status factors_of_x(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    AX_TRY(ax_grid_create(world, (ax_grid_size){.x = 6, .y = 1, .z = 1, .pipe = 1, .data = 1}, &grid));
    int me = ax_grid_rank(grid);
    AX_TRY(ax_grid_factor(grid, 6));
    EXPECT(ax_grid_axes(grid) == AX_AXES_STANDARD && ax_grid_effective(grid, 31) == 1 << AX_X);
    EXPECT(ax_grid_factor(grid, 4) == AX_ERR_USAGE &&
           !strcmp(ax_error_message(), "x = 6 cannot be x.kv = 4 times anything"));
    AX_TRY(ax_grid_factor(grid, 3));
    AX_TRY(ax_grid_factor(grid, 3));
    EXPECT(ax_grid_factor(grid, 2) == AX_ERR_USAGE && strstr(ax_error_message(), "one number of key heads"));
    EXPECT(ax_grid_axes(grid) == AX_AXES && ax_grid_axis_size(grid, AX_X) == 6 &&
           ax_grid_axis_size(grid, AX_X_KV) == 3 && ax_grid_axis_size(grid, AX_X_REP) == 2);
    for (int r = 0; r < 6; r++)
        EXPECT(ax_grid_coord(grid, r, AX_X_KV) == r / 2 && ax_grid_coord(grid, r, AX_X_REP) == r % 2);
    EXPECT(ax_grid_peer(grid, AX_X_KV, 0) == me % 2 && ax_grid_peer(grid, AX_X_REP, 0) == me - me % 2);
    enum { KV = 1 << AX_X_KV, REP = 1 << AX_X_REP, X = 1 << AX_X };
    EXPECT(ax_grid_effective(grid, X) == (KV | REP) && ax_grid_effective(grid, X | KV) == (KV | REP));
    EXPECT(ax_grid_comm(grid, X) == ax_grid_comm(grid, KV | REP) &&
           ax_grid_comm(grid, X) == ax_grid_comm_all(grid));
    static const struct {
        ax_axisset axes;
        int size;
    } sets[] = {{X, 6}, {KV, 3}, {REP, 2}, {X | REP, 6}};
    for (size_t i = 0; i < AX_COUNT(sets); i++) {
        ax_comm *comm = ax_grid_comm(grid, sets[i].axes);
        EXPECT(ax_comm_size(comm) == sets[i].size && ax_grid_group_size(grid, sets[i].axes) == sets[i].size);
    }
    int64_t sum = me;
    ax_work *work;
    AX_TRY(ax_all_reduce(ax_grid_comm(grid, KV), NULL, &sum, 1, AX_I64, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    EXPECT(sum == (me % 2 ? 1 + 3 + 5 : 0 + 2 + 4));
    ax_axis axis;
    AX_TRY(ax_grid_axis_find(grid, "x.rep", 5, &axis));
    EXPECT(axis == AX_X_REP);
    ax_grid_destroy(&grid);
    AX_TRY(ax_grid_create(world, (ax_grid_size){.x = 3, .y = 2, .z = 1, .pipe = 1, .data = 1}, &grid));
    AX_TRY(ax_grid_factor(grid, 1));
    EXPECT(ax_grid_effective(grid, 31) == (REP | 1 << AX_Y) && ax_comm_size(ax_grid_comm(grid, X)) == 3 &&
           ax_comm_size(ax_grid_comm(grid, KV)) == 1);
    ax_grid_destroy(&grid);
    return AX_OK;
}

static void an_axis_has_factors(void **state)
{
    (void)state;
    assert_ranks(6, factors_of_x, NULL);
}

static void axes_and_groups(void **state)
{
    (void)state;
    assert_ranks(8, on_eight_ranks, NULL);
}

static ax_status does_not_fit(ax_comm *world, void *arg)
{
    ax_grid *grid = NULL;
    ax_status status = ax_grid_create(world, *(ax_grid_size *)arg, &grid);
    ax_grid_destroy(&grid);
    return status;
}

static void misfits_name_neighbours(void **state)
{
    (void)state;
    ax_grid_size three = {.x = 2, .y = 1, .z = 1, .pipe = 1, .data = 3};
    assert_int_equal(ax_comm_threads_run(8, does_not_fit, &three), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(),
                           "grid x=2 y=1 z=1 pipe=1 data=3 needs 6 ranks but there are 8; "
                           "the nearest grids that fit: x=2 y=1 z=1 pipe=1 data=4; "));
    ax_grid_size none = {.x = 1, .y = 0, .z = 1, .pipe = 1, .data = 1};
    assert_int_equal(ax_comm_threads_run(1, does_not_fit, &none), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "grid axis y has size 0"));
    ax_grid_size alone = {.x = 4, .y = 1, .z = 1, .pipe = 1, .data = 1};
    assert_int_equal(ax_comm_threads_run(1, does_not_fit, &alone), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "but there is 1; the nearest grids that fit: "
                                               "x=1 y=1 z=1 pipe=1 data=1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(axes_and_groups),
        cmocka_unit_test(an_axis_has_factors),
        cmocka_unit_test(misfits_name_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
