/* grid: coordinates, communicators along axes, factors, and the messages about grids that do not fit. */
#include "axonn/grid.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const ax_grid_size eight = {{2, 1, 2, 1, 2}};

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

/* Sums the rank numbers of each group, along each set of axes. */
static ax_status communicators(ax_grid *grid)
{
    int me = ax_grid_rank(grid);
    for (ax_axisset axes = 0; axes < 1 << AX_AXES_STANDARD; axes++) {
        ax_comm *comm, *again;
        AX_TRY(ax_grid_comm(grid, axes, &comm));
        AX_TRY(ax_grid_comm(grid, ax_grid_effective(grid, axes), &again));
        EXPECT(comm == again && ax_comm_size(comm) == ax_grid_group_size(grid, axes));
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

/* Counts the ranks along a set of axes, on their communicator. */
static ax_status counted(ax_grid *grid, ax_axisset axes, double *ranks)
{
    ax_comm *comm;
    ax_work *work;
    *ranks = 1;
    AX_TRY(ax_grid_comm(grid, axes, &comm));
    AX_TRY(ax_all_reduce(comm, NULL, ranks, 1, AX_F64, AX_SUM, &work));
    return ax_wait(&work);
}

/* A group creates its communicator at the first use, while other groups create and use others, or return: the
 * ranks with data = 1 use none along x and z. A communicator that no rank uses is not created. */
static ax_status communicators_of_some(ax_grid *grid)
{
    double ranks;
    ax_grid_use *used;
    EXPECT(ax_grid_groups(grid) == 0);
    bool first = ax_grid_coord(grid, ax_grid_rank(grid), AX_DATA) == 0;
    AX_TRY(counted(grid, first ? 1 << AX_X | 1 << AX_Z : 1 << AX_Z, &ranks));
    EXPECT(ranks == (first ? 4 : 2));
    AX_TRY(counted(grid, 1 << AX_X, &ranks));
    EXPECT(ranks == 2 && ax_grid_groups(grid) == 2);
    AX_TRY(ax_grid_used(grid, &used));
    bool right = used[0].axes == 1 << AX_X && used[1].axes == (first ? 1 << AX_X | 1 << AX_Z : 1 << AX_Z) &&
                 !used[2].axes;
    free(used);
    EXPECT(right);
    AX_TRY(counted(grid, 31, &ranks));
    EXPECT(ranks == 8);
    return AX_OK;
}

/* A grid on the dry device finds the communicators of a run without other ranks: only rank 0 makes one here.
 * The real grid creates these before they are used, and no others. */
static ax_status dry_then_real(ax_comm *world, void *arg)
{
    (void)arg;
    const ax_axisset sets[] = {1 << AX_DATA, 1 << AX_X, 1 << AX_X | 1 << AX_DATA | 1 << AX_Y};
    ax_ctx *dry, *other;
    ax_grid *grid;
    ax_comm *comm;
    ax_work *work;
    ax_grid_use *used;
    double ranks = 1;
    AX_TRY(ax_ctx_create_dry(ax_comm_rank(world), 8, eight, AX_F32, NULL, &dry));
    if (ax_comm_rank(world) == 0) {
        AX_TRY(ax_grid_comm(dry->grid, 1 << AX_Z, &comm));
        EXPECT(ax_comm_size(comm) == 2 && ax_comm_rank(comm) == 0);
    }
    for (size_t i = 0; i < AX_COUNT(sets); i++) {
        AX_TRY(ax_grid_comm(dry->grid, sets[i], &comm));
        EXPECT(ax_comm_size(comm) == ax_grid_group_size(dry->grid, sets[i]));
    }
    EXPECT(ax_all_reduce(comm, NULL, &ranks, 1, AX_F64, AX_SUM, &work) == AX_ERR_INTERNAL);
    EXPECT(ax_ctx_create(world, eight, "dry", 1, AX_F32, 1, &other) == AX_ERR_USAGE && !other);
    AX_TRY(ax_grid_used(dry->grid, &used));
    ax_ctx_destroy(&dry);
    const ax_grid_use planned[] = {
        {.axes = 1 << AX_X}, {.axes = 1 << AX_DATA}, {.axes = 1 << AX_X | 1 << AX_DATA}, {.axes = 0}};
    bool right = true;
    for (size_t i = 0; i < AX_COUNT(planned) && ax_comm_rank(world); i++)
        right &= used[i].axes == planned[i].axes;
    free(used);
    EXPECT(right);
    AX_TRY(ax_grid_create(world, eight, &grid));
    AX_TRY(ax_grid_prepare(grid, planned));
    EXPECT(ax_grid_groups(grid) == 3);
    AX_TRY(counted(grid, 1 << AX_X | 1 << AX_DATA, &ranks));
    EXPECT(ranks == 4 && ax_grid_groups(grid) == 3);
    ax_grid_destroy(&grid);
    return AX_OK;
}

/* Rank 0 creates a communicator with rank 1, which waits for another one. */
static ax_status cross(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    double ranks;
    AX_TRY(ax_grid_create(world, eight, &grid));
    ax_status status = counted(grid, ax_comm_rank(world) ? 1 << AX_Z | 1 << AX_X : 1 << AX_X, &ranks);
    ax_grid_destroy(&grid);
    return status;
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

/* Whether axis `name` splits x = 8 into groups of `size` ranks that are `stride` apart. */
static ax_status covers(ax_grid *grid, const char *name, int size, int stride)
{
    ax_axis axis;
    AX_TRY(ax_grid_axis_find(grid, name, strlen(name), &axis));
    EXPECT(ax_grid_axis_size(grid, axis) == size);
    for (int r = 0; r < ax_grid_ranks(grid); r++)
        EXPECT(ax_grid_coord(grid, r, axis) == r / stride % size);
    ax_comm *comm;
    AX_TRY(ax_grid_comm(grid, (ax_axisset)(1u << axis), &comm));
    EXPECT(ax_comm_size(comm) == size && ax_comm_rank(comm) == ax_grid_rank(grid) / stride % size);
    return AX_OK;
}

/* x = 6 as x.kv = 3 times x.rep = 2, beside y = 1 and data = 1. */
static ax_status factors_of_x(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *grid;
    int f, again;
    char text[AX_AXISSET_TEXT];
    AX_TRY(ax_grid_create(world, (ax_grid_size){{6, 1, 1, 1, 1}}, &grid));
    int me = ax_grid_rank(grid);
    AX_TRY(ax_grid_factor(grid, AX_FACTOR_KV, 6, &f));
    EXPECT(ax_grid_factoring(grid, f).major == AX_X && ax_grid_effective(grid, 31) == 1 << AX_X);
    EXPECT(ax_grid_factor(grid, AX_FACTOR_KV, 4, &f) == AX_ERR_USAGE &&
           !strcmp(ax_error_message(),
                   "ax_grid_factor: grid axis x = 6 cannot have the factor x.kv = 4; choose a divisor of 6"));
    ax_grid_destroy(&grid);
    AX_TRY(ax_grid_create(world, (ax_grid_size){{6, 1, 1, 1, 1}}, &grid));
    AX_TRY(ax_grid_factor(grid, AX_FACTOR_KV, 3, &f));
    AX_TRY(ax_grid_factor(grid, AX_FACTOR_KV, 3, &again));
    EXPECT(f == again && ax_grid_axes(grid) == AX_AXES_STANDARD + 2);
    EXPECT(ax_grid_factor(grid, AX_FACTOR_KV, 2, &again) == AX_ERR_USAGE &&
           strstr(ax_error_message(), "must divide the other"));
    AX_TRY(covers(grid, "x", 6, 1));
    AX_TRY(covers(grid, "x.kv", 3, 2));
    AX_TRY(covers(grid, "x.rep", 2, 1));
    ax_factoring by = ax_grid_factoring(grid, f);
    EXPECT(by.axis == AX_X && ax_grid_peer(grid, by.major, 0) == me % 2 &&
           ax_grid_peer(grid, by.minor, 0) == me - me % 2);
    const ax_axisset kv = (ax_axisset)(1u << by.major), rep = (ax_axisset)(1u << by.minor), x = 1 << AX_X;
    EXPECT(ax_grid_effective(grid, x) == (kv | rep) && ax_grid_effective(grid, x | kv) == (kv | rep));
    ax_comm *along[3];
    AX_TRY(ax_grid_comm(grid, x, &along[0]));
    AX_TRY(ax_grid_comm(grid, kv | rep, &along[1]));
    AX_TRY(ax_grid_comm(grid, (1 << AX_AXES_STANDARD) - 1, &along[2]));
    EXPECT(along[0] == along[1] && along[0] == along[2]);
    EXPECT(!strcmp(ax_grid_set_print(grid, kv | rep, text), "x") &&
           !strcmp(ax_grid_set_print(grid, rep | 1 << AX_Z, text), "z.x.rep"));
    EXPECT(ax_grid_group_size(grid, x) == 6 && ax_grid_group_size(grid, kv) == 3 &&
           ax_grid_group_size(grid, x | rep) == 6);
    int64_t sum = me;
    ax_work *work;
    AX_TRY(ax_grid_comm(grid, kv, &along[0]));
    AX_TRY(ax_all_reduce(along[0], NULL, &sum, 1, AX_I64, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    EXPECT(sum == (me % 2 ? 1 + 3 + 5 : 0 + 2 + 4));
    ax_grid_destroy(&grid);
    AX_TRY(ax_grid_create(world, (ax_grid_size){{3, 2, 1, 1, 1}}, &grid));
    AX_TRY(ax_grid_factor(grid, AX_FACTOR_KV, 1, &f));
    AX_TRY(ax_grid_comm(grid, x, &along[0]));
    AX_TRY(ax_grid_comm(grid, (ax_axisset)(1u << ax_grid_factoring(grid, f).major), &along[1]));
    EXPECT(ax_grid_factoring(grid, f).minor == AX_X && ax_grid_effective(grid, 31) == (x | 1 << AX_Y) &&
           ax_comm_size(along[0]) == 3 && ax_comm_size(along[1]) == 1);
    ax_grid_destroy(&grid);
    return AX_OK;
}

/* x = 8 for layers of 2, 4 and again 2 key heads, in either order. */
static ax_status factors_of_two_layers(ax_comm *world, void *arg)
{
    const int *first = arg;
    ax_grid *grid;
    int f[3];
    AX_TRY(ax_grid_create(world, (ax_grid_size){{8, 1, 1, 1, 1}}, &grid));
    for (int i = 0; i < 3; i++)
        AX_TRY(ax_grid_factor(grid, AX_FACTOR_KV, i == 1 ? 8 / *first : *first, &f[i]));
    EXPECT(f[0] == f[2] && f[0] != f[1]);
    int two = *first == 2 ? f[0] : f[1], four = *first == 2 ? f[1] : f[0];
    ax_factoring by2 = ax_grid_factoring(grid, two), by4 = ax_grid_factoring(grid, four);
    AX_TRY(covers(grid, "x", 8, 1));
    AX_TRY(covers(grid, ax_grid_axis_name(grid, by2.major), 2, 4));
    AX_TRY(covers(grid, ax_grid_axis_name(grid, by2.minor), 4, 1));
    AX_TRY(covers(grid, ax_grid_axis_name(grid, by4.major), 4, 2));
    AX_TRY(covers(grid, ax_grid_axis_name(grid, by4.minor), 2, 1));
    EXPECT(!strcmp(ax_grid_axis_name(grid, by2.major), *first == 2 ? "x.kv" : "x.kv2"));
    /* The factors of either factoring make up x; the minor factor of one is a factor of the minor of the
     * other. */
    const ax_axisset x = 1 << AX_X;
    ax_axisset rep2 = ax_grid_effective(grid, (ax_axisset)(1u << by2.minor)),
               rep4 = ax_grid_effective(grid, (ax_axisset)(1u << by4.minor));
    EXPECT((rep2 & rep4) == rep4 && rep2 != rep4);
    EXPECT(ax_grid_effective(grid, (ax_axisset)(1u << by2.major | 1u << by2.minor)) ==
           ax_grid_effective(grid, x));
    EXPECT(ax_grid_effective(grid, (ax_axisset)(1u << by4.major | 1u << by4.minor)) ==
           ax_grid_effective(grid, x));
    /* The minor factor of one factoring and the major factor of the other are disjoint if their product is
     * <= 8. */
    EXPECT(!(ax_grid_effective(grid, (ax_axisset)(1u << by2.major)) & rep4));
    ax_grid_destroy(&grid);
    return AX_OK;
}

static void an_axis_has_several_factorings(void **state)
{
    (void)state;
    for (int first = 2; first <= 4; first += 2)
        assert_ranks(8, factors_of_two_layers, &first);
}

static void an_axis_has_factors(void **state)
{
    (void)state;
    assert_ranks(6, factors_of_x, NULL);
}

static void groups_are_the_ranks_along_a_set_of_axes(void **state)
{
    (void)state;
    assert_ranks(8, on_eight_ranks, NULL);
}

static void a_dry_run_finds_the_communicators_of_a_run(void **state)
{
    (void)state;
    assert_ranks(8, dry_then_real, NULL);
}

static void ranks_that_create_different_communicators_are_named(void **state)
{
    (void)state;
    assert_int_equal(ax_comm_threads_run(8, cross, NULL), AX_ERR_COMM);
    assert_non_null(strstr(ax_error_message(), "the ranks wait for one another: "));
    assert_non_null(strstr(ax_error_message(), "rank 0 in group creation of 2 ranks"));
    assert_non_null(strstr(ax_error_message(), "rank 1 in group creation of 4 ranks"));
    assert_non_null(strstr(ax_error_message(), "cannot create the communicator along grid axes "));
}

static ax_status does_not_fit(ax_comm *world, void *arg)
{
    ax_grid *grid = NULL;
    ax_status status = ax_grid_create(world, *(ax_grid_size *)arg, &grid);
    ax_grid_destroy(&grid);
    return status;
}

static void errors_suggest_the_nearest_grids(void **state)
{
    (void)state;
    ax_grid_size three = {{2, 1, 1, 1, 3}};
    assert_int_equal(ax_comm_threads_run(8, does_not_fit, &three), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(),
                           "grid x=2 y=1 z=1 pipe=1 data=3 needs 6 ranks but there are 8; "
                           "the nearest grids that fit: grid.data=4; "));
    ax_grid_size none = {{1, -1, 1, 1, 1}};
    assert_int_equal(ax_comm_threads_run(1, does_not_fit, &none), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "grid axis y has size -1"));
    ax_grid_size uneven = {{1, 1, 1, 1, 4, 3}};
    assert_int_equal(ax_comm_threads_run(4, does_not_fit, &uneven), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "among 3 ranks of grid axis data = 4; choose a divisor of 4"));
    ax_grid_size alone = {{4, 1, 1, 1, 1}};
    assert_int_equal(ax_comm_threads_run(1, does_not_fit, &alone), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "but there is 1; the nearest grids that fit: "
                                               "grid.x=1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_the_ranks_along_a_set_of_axes),
        cmocka_unit_test(a_dry_run_finds_the_communicators_of_a_run),
        cmocka_unit_test(ranks_that_create_different_communicators_are_named),
        cmocka_unit_test(an_axis_has_factors),
        cmocka_unit_test(an_axis_has_several_factorings),
        cmocka_unit_test(errors_suggest_the_nearest_grids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
