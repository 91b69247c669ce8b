/* The order in which axes number the ranks. */
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void orders_are_read_and_printed(void **state)
{
    (void)state;
    static const char *const good[] = {"x,y,z,pipe,data", "data,pipe,z,y,x", "y,data,x,z,pipe"};
    static const char *const bad[] = {"",
                                      "x",
                                      "x,y,z,pipe",
                                      "x,y,z,pipe,data,",
                                      "x,y,z,pipe,x",
                                      "x,y,z,pipe,w",
                                      "x y z pipe data",
                                      "x,y,z,pipe,data,x"};
    ax_grid_order order;
    char text[32];
    for (size_t i = 0; i < AX_COUNT(good); i++) {
        assert_int_equal(ax_grid_order_parse(good[i], &order), AX_OK);
        assert_string_equal(ax_grid_order_print(&order, text), good[i]);
    }
    for (size_t i = 0; i < AX_COUNT(bad); i++)
        assert_int_equal(ax_grid_order_parse(bad[i], &order), AX_ERR_USAGE);
    assert_string_equal(ax_grid_order_print(&ax_grid_order_default, text), good[0]);
}

/* By default rank = ((data·P + pipe)·Z + z)·Y + …; the innermost axis of an order changes with each rank. */
static void every_rank_has_its_own_coordinates(void **state)
{
    (void)state;
    const ax_grid_size size = {{2, 3, 1, 2, 2}};
    ax_grid_order order;
    int coord[AX_AXES_STANDARD], seen[24] = {0};
    assert_int_equal(ax_grid_order_parse("data,y,x,z,pipe", &order), AX_OK);
    for (int r = 0; r < 24; r++) {
        assert_int_equal(ax_grid_place(size, &ax_grid_order_default, r, coord), r);
        int place = ax_grid_place(size, &order, r, coord);
        assert_true(place >= 0 && place < 24 && !seen[place]++);
        assert_int_equal(coord[AX_DATA], r % 2);
        assert_int_equal(coord[AX_Y], r / 2 % 3);
        assert_int_equal(coord[AX_X], r / 6 % 2);
        assert_int_equal(coord[AX_PIPE], r / 12);
    }
}

/* A grid over the renumbered world gives the ranks the coordinates of ax_grid_place. */
static ax_status stand(ax_comm *world, void *arg)
{
    const ax_grid_size size = {{2, 1, 2, 1, 2}};
    ax_comm *placed, *along;
    ax_grid *grid;
    int coord[AX_AXES_STANDARD], sum = 1;
    ax_work *work;
    AX_TRY(ax_grid_world(world, size, arg, &placed));
    AX_TRY(ax_grid_create(placed, size, &grid));
    int place = ax_grid_place(size, arg, ax_comm_rank(world), coord);
    EXPECT(ax_grid_rank(grid) == place);
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        EXPECT(ax_grid_coord(grid, place, (ax_axis)a) == coord[a]);
    AX_TRY(ax_grid_comm(grid, 1 << AX_Z, &along));
    AX_TRY(ax_all_reduce(along, NULL, &sum, 1, AX_I32, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    EXPECT(sum == 2);
    ax_grid_destroy(&grid);
    ax_comm_destroy(&placed);
    return AX_OK;
}

static void a_grid_numbers_ranks_in_the_given_order(void **state)
{
    (void)state;
    static const char *const orders[] = {"x,y,z,pipe,data", "data,z,x,y,pipe", "z,y,data,pipe,x"};
    for (size_t i = 0; i < AX_COUNT(orders); i++) {
        ax_grid_order order;
        assert_int_equal(ax_grid_order_parse(orders[i], &order), AX_OK);
        assert_ranks(8, stand, &order);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(orders_are_read_and_printed),
                                       cmocka_unit_test(every_rank_has_its_own_coordinates),
                                       cmocka_unit_test(a_grid_numbers_ranks_in_the_given_order)};
    return cmocka_run_group_tests_name("grid.order", tests, NULL, NULL);
}
