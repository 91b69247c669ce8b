/* Training on every grid of eight ranks equals training on one rank. Ranks are threads and models are tiny.
 * Other numbers of ranks and all combinations of options are in test_long_equality.c. */
#include "support/equality.h"
#include "support/sanitized.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { STEPS = SANITIZED ? 4 : EQ_STEPS };

/* Returns the next grid to test. Under sanitizers only every third: for them float64 alone tests
 * every grid. */
static int next(int g) { return g + (SANITIZED ? 3 : 1); }
static int first(int model) { return SANITIZED ? model : 0; }

/* Returns the run on a grid; every other grid uses recomputation. */
static eq_run on_grid(eq_run serial, ax_grid_size grid, int index)
{
    serial.grid = grid;
    serial.recompute = index % 2;
    return eq_do(serial);
}

/* In float64 a grid only changes the order of sums, of at most 1e3 terms here. 1e-11 of the largest term is
 * 100 times the rounding error, and far below the effect of a term that is missing, doubled or misplaced. */
static void float64_differs_by_roundings(void **state)
{
    (void)state;
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids);
    assert_int_equal(n, 20);
    for (int m = 0; m < EQ_MODELS; m++) {
        eq_run serial = eq_serial((eq_model)m, "ref", AX_F64, 2), one = eq_do(serial);
        for (int g = 0; g < n; g++) {
            eq_run split = on_grid(serial, grids[g], g + m);
            eq_assert_equal(&split, &one, 1e-12, 1e-11);
            eq_free(&split);
        }
        eq_free(&one);
    }
}

/* On twelve ranks the head is used twice in a row and fits into the weight cache. The first micro-batch,
 * which fills the cache, must acquire memory in the same order as the others. */
static void a_weight_in_the_cache_is_used_twice_in_a_row(void **state)
{
    (void)state;
    eq_run serial = eq_serial(EQ_SCARCE, "ref", AX_F64, 2);
    serial.rows = 24;
    eq_run one = eq_do(serial);
    serial.grid = (ax_grid_size){1, 6, 1, 1, 2};
    serial.parallel.zero = 3;
    eq_run split = eq_do(serial);
    eq_assert_equal(&split, &one, 1e-12, 1e-11);
    eq_free(&split);
    eq_free(&one);
}

/* fp32 sums in another order differ by 1e-6 of their terms. The optimizer divides by the root of the second
 * moment; after 20 steps the difference is 1e-7 of the loss. */
static void fp32_is_within_1e_5(void **state)
{
    (void)state;
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids);
    for (int m = 0; m <= EQ_ODD; m++) {
        eq_run serial = eq_serial((eq_model)m, "cpu", AX_F32, STEPS), one = eq_do(serial);
        assert_true(SANITIZED || one.loss[STEPS - 1] < 0.6 * one.loss[0]); /* the model does train */
        double loss = 0;
        for (int g = first(m); g < n; g = next(g)) {
            eq_run split = on_grid(serial, grids[g], g + m);
            eq_assert_equal(&split, &one, 1e-5, 1e-4);
            loss = fmax(loss, eq_worst_loss_gap(&split, &one));
            eq_free(&split);
        }
        printf("%s: losses of %d steps on %d grids within %.1e of one rank's\n", eq_model_names[m], STEPS, n,
               loss);
        eq_free(&one);
    }
}

static void as_near_to_fp32_as_one_rank_is(ax_dtype compute)
{
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids);
    for (int m = 0; m <= EQ_ODD; m++) {
        eq_run exact = eq_do(eq_serial((eq_model)m, "cpu", AX_F32, STEPS));
        eq_run serial = eq_serial((eq_model)m, "cpu", compute, STEPS);
        eq_gap gap = eq_rounding_gap((eq_model)m, "cpu", compute, STEPS);
        double loss = 0, sum = 0;
        int runs = 0;
        for (int g = first(m); g < n; g = next(g), runs++) {
            eq_run split = on_grid(serial, grids[g], g + m);
            eq_assert_as_near(&split, &exact, &gap);
            double times = eq_mean_loss_gap(&split, &exact) / gap.loss;
            loss = fmax(loss, times);
            sum += times;
            eq_free(&split);
        }
        printf("%s: losses in %s %.2f times as far from fp32 as one rank's, at most %.2f\n",
               eq_model_names[m], ax_dtype_name(compute), sum / runs, loss);
        assert_true(sum <= 2 * runs); /* mean over all grids, so one lucky grid does not count */
        eq_free(&exact);
    }
}

static void bf16_is_as_near_to_fp32_as_one_rank_is(void **state)
{
    (void)state;
    as_near_to_fp32_as_one_rank_is(AX_BF16);
}

static void fp16_is_as_near_to_fp32_as_one_rank_is(void **state)
{
    (void)state;
    as_near_to_fp32_as_one_rank_is(AX_F16);
}

/* Strategies, ZeRO stages, switching overlaps off and caching gathered weights do not change the results. */
static void options_of_distribution_change_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *strategy;
        ax_grid_size grid;
        int zero;
        bool overlap;
        size_t cache;
    } rows[] = {
        {"megatron", {8, 1, 1, 1, 1}, 0, true, 0},     {"megatron", {2, 1, 1, 1, 4}, 1, true, 0},
        {"fsdp", {1, 1, 8, 1, 1}, 0, true, 0},         {"fsdp", {1, 1, 8, 1, 1}, 0, false, 1 << 16},
        {"hsdp", {1, 1, 4, 1, 2}, 0, true, 0},         {"hsdp", {1, 1, 2, 1, 4}, 2, false, 0},
        {"ddp", {1, 1, 1, 1, 8}, 0, true, 0},          {"ddp", {1, 1, 1, 1, 8}, 1, true, 0},
        {"ddp", {1, 1, 1, 1, 8}, 2, true, 0},          {"ddp", {1, 1, 1, 1, 8}, 3, true, 0},
        {"axonn", {1, 2, 2, 1, 2}, 1, true, 1 << 20},  {"axonn", {2, 1, 2, 1, 2}, 3, true, 1 << 14},
        {"axonn", {2, 2, 1, 1, 2}, 2, false, 0},       {"axonn", {4, 1, 1, 1, 2}, 3, false, 1 << 20},
        {"axonn", {2, 2, 2, 1, 1}, 0, false, 1 << 20}, {"axonn", {2, 2, 2, 1, 1}, 1, true, 0},
        {"axonn", {1, 1, 1, 1, 1}, 1, true, 0},        {"axonn", {1, 1, 2, 1, 1}, 3, true, 0},
    };
    for (int m = 0; m < EQ_MODELS; m++) {
        eq_run serial = eq_serial((eq_model)m, "cpu", AX_F32, 4), one = eq_do(serial);
        for (size_t i = 0; i < AX_COUNT(rows); i++) {
            eq_run split = serial;
            ax_parallel *p = &split.parallel;
            assert_int_equal(ax_strategy_find(rows[i].strategy, &p->strategy), AX_OK);
            p->zero = rows[i].zero;
            p->overlap.oar = p->overlap.ors = p->overlap.oag = rows[i].overlap;
            p->weight_cache = rows[i].cache;
            split = on_grid(split, rows[i].grid, (int)i + m);
            eq_assert_equal(&split, &one, 1e-5, 1e-4);
            eq_free(&split);
        }
        eq_free(&one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(float64_differs_by_roundings),
                                       cmocka_unit_test(a_weight_in_the_cache_is_used_twice_in_a_row),
                                       cmocka_unit_test(fp32_is_within_1e_5),
                                       cmocka_unit_test(bf16_is_as_near_to_fp32_as_one_rank_is),
                                       cmocka_unit_test(fp16_is_as_near_to_fp32_as_one_rank_is),
                                       cmocka_unit_test(options_of_distribution_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
