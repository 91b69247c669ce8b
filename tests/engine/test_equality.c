/* Training on every grid of eight ranks equals training on one. Ranks are threads, models tiny; the campaign
 * of other numbers of ranks and all combinations of options is test_long_equality.c. */
#include "support/equality.h"
#include "support/sanitized.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { STEPS = SANITIZED ? 4 : EQ_STEPS };

/* Under sanitizers every grid is seen in float64, a third of them again in what else there is. */
static int next(int g) { return g + (SANITIZED ? 3 : 1); }
static int first(int model) { return SANITIZED ? model : 0; }

/* Every other grid recomputes. */
static eq_run on_grid(eq_run serial, ax_grid_size grid, int index)
{
    serial.grid = grid;
    serial.recompute = index % 2;
    return eq_do(serial);
}

/* In float64 a grid only changes the order of sums: of at most 1e3 terms here, so that 1e-11 of the largest
 * is 1e2 times what roundings can do, and a contribution that is missing, doubled or misplaced is far beyond
 * it. */
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

/* Twelve ranks that share a head which is used twice in a row and fits into the cache of weights: filling the
 * cache, in the first micro-batch, asks for memory in the order of all others. */
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

/* Sums of fp32 differ by 1e-6 of their terms; the optimizer, dividing by the root of the second moment, makes
 * of that 1e-7 of the loss in 20 steps. */
static void fp32_is_within_1e_5(void **state)
{
    (void)state;
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids);
    for (int m = 0; m <= EQ_ODD; m++) {
        eq_run serial = eq_serial((eq_model)m, "cpu", AX_F32, STEPS), one = eq_do(serial);
        assert_true(SANITIZED ||
                    one.loss[STEPS - 1] < 0.6 * one.loss[0]); /* it is training that is compared */
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
        assert_true(sum <= 2 * runs); /* all grids together are no lottery */
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

/* Strategies that are named, stages of ZeRO, overlaps off, gathered weights cached: none changes what is
 * computed. */
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
