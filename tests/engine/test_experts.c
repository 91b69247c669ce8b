/* Training with experts that are divided among ranks (grid.expert) equals training on one rank, and takes the
 * memory that is planned (equality.c compares both). */
#include "support/equality.h"
#include "support/sampled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/* The models with experts, how many these are, and a capacity by which some choices have no place. */
static const struct {
    eq_model model;
    int experts;
    double capacity;
} models[] = {{EQ_MIXTRAL, 5, 1}, {EQ_SPARSE, 9, 1.25}, {EQ_OLMOE, 3, 0.65}};

/* Runs `serial` on a grid, with a stage of ZeRO; recomputes blocks in every other run, half of which keep
 * results, and has memory for the mean number of rows alone in two of three. */
static eq_run on_grid(eq_run serial, ax_grid_size grid, int zero, int index)
{
    serial.grid = grid;
    serial.parallel.zero = zero;
    serial.parallel.expert_room = index % 3 ? 1 : 0;
    serial.recompute = index % 2;
    serial.parallel.keep_results = index % 4 == 3;
    serial.parallel.overlap.dtd = index / 4 % 2;
    return eq_do(serial);
}

static void assert_dropped(const eq_run *r)
{
    for (int i = 0; i < r->steps; i++)
        assert_true(r->dropped[i] > 0 && r->dropped[i] < 1);
}

/* Calls on_grid for every `each`-th pair of a ZeRO stage and a grid of eight ranks of which several have
 * different experts. Returns the number of runs. */
static int on_grids(const eq_run *serial, const eq_run *one, int experts, int each, double loss, double grad)
{
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids), pairs = 0, runs = 0;
    for (int g = 0; g < n; g++)
        for (int e = 2; e <= grids[g].of[AX_DATA] && e <= experts; e++)
            for (int zero = 0; zero < 4 && grids[g].of[AX_DATA] % e == 0; zero++) {
                if (pairs++ % each)
                    continue;
                grids[g].of[AX_SIZE_EXPERT] = e;
                eq_run split = on_grid(*serial, grids[g], zero, runs++);
                eq_assert_equal(&split, one, loss, grad);
                eq_free(&split);
            }
    return runs;
}

/* The bounds are those of the other grids (test_equality.c): sums in another order. */
static void float64_differs_by_roundings(void **state)
{
    (void)state;
    for (size_t m = 0; m < 2 * AX_COUNT(models); m++) {
        eq_run serial = eq_serial(models[m / 2].model, "ref", AX_F64, 2);
        serial.capacity = m % 2 ? models[m / 2].capacity : 0;
        eq_run one = eq_do(serial);
        if (m % 2)
            assert_dropped(&one);
        printf("%s, capacity %g: %d runs\n", eq_model_names[serial.model], serial.capacity,
               on_grids(&serial, &one, models[m / 2].experts, one_of(11, 37), 1e-12, 1e-11));
        eq_free(&one);
    }
}

/* What is dropped of a sample does not depend on the others of its micro-batch: one of 8 rows, to 8 of one.
 */
static void micro_batches_drop_the_same(void **state)
{
    (void)state;
    eq_run serial = eq_serial(EQ_MIXTRAL, "ref", AX_F64, 1);
    serial.capacity = 0.75;
    eq_run one = eq_do(serial);
    assert_dropped(&one);
    for (serial.micro_batches = 1; serial.micro_batches <= serial.rows; serial.micro_batches *= 2) {
        eq_run cut = eq_do(serial);
        eq_assert_equal(&cut, &one, 1e-12, 1e-11);
        eq_free(&cut);
    }
    eq_free(&one);
}

/* A capacity of which all choices find places changes no bit. */
static void enough_places_change_nothing(void **state)
{
    (void)state;
    eq_run serial = eq_serial(EQ_MIXTRAL, "cpu", AX_F32, 3), without = eq_do(serial);
    serial.capacity = 5;
    eq_run with = eq_do(serial);
    for (int i = 0; i < with.steps; i++)
        assert_true(with.loss[i] == without.loss[i] && with.dropped[i] == 0);
    eq_free(&with);
    eq_free(&without);
}

static void fp32_is_within_1e_5(void **state)
{
    (void)state;
    eq_run serial = eq_serial(EQ_MIXTRAL, "cpu", AX_F32, 4), one = eq_do(serial);
    on_grids(&serial, &one, 5, one_of(13, 29), 1e-5, 1e-4);
    eq_free(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float64_differs_by_roundings), cmocka_unit_test(micro_batches_drop_the_same),
        cmocka_unit_test(enough_places_change_nothing), cmocka_unit_test(fp32_is_within_1e_5)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
