/* The long version of test_equality.c: other numbers of ranks, all combinations of sharding and overlap
 * options, and more steps. */
#include "support/equality.h"

#include "axonn/parallel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/* Compares a grid's run with that of one rank. Returns the number of runs compared: 1, or 0 if the grid is
 * illegal. */
static int compare(eq_run split, const eq_run *one, double loss_bound, double grad_bound)
{
    if (!eq_heads_fit(split.model, split.grid.of[AX_X]))
        return 0; /* refused, as tests/model/test_grid.c shows */
    split = eq_do(split);
    eq_assert_equal(&split, one, loss_bound, grad_bound);
    eq_free(&split);
    return 1;
}

static void any_number_of_ranks(void **state)
{
    (void)state;
    static const int ranks[] = {2, 3, 4, 5, 6, 7, 9, 10, 12, 16};
    int runs = 0;
    for (size_t i = 0; i < AX_COUNT(ranks); i++)
        for (int m = 0; m < EQ_MODELS; m++) {
            ax_grid_size grids[64];
            int n = eq_factorizations(ranks[i], grids);
            eq_run serial = eq_serial((eq_model)m, "ref", AX_F64, 2), one;
            serial.rows = 2 * ranks[i];
            one = eq_do(serial);
            for (int g = 0; g < n; g++) {
                eq_run split = serial;
                split.grid = grids[g];
                split.recompute = (g + m) % 2;
                split.parallel.zero = g % 4;
                runs += compare(split, &one, 1e-12, 1e-11);
            }
            eq_free(&one);
        }
    printf("%d runs\n", runs);
}

static void any_combination(void **state)
{
    (void)state;
    static const size_t caches[] = {0, 6000, 1 << 20};
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids), runs = 0;
    for (int m = 0; m < EQ_MODELS; m++) {
        eq_run serial = eq_serial((eq_model)m, "ref", AX_F64, 2), one = eq_do(serial);
        for (int i = 0; i < n * 4 * 3 * 3; i++) {
            eq_run split = serial;
            int overlaps[] = {0, 7, i % 8}, overlap = overlaps[i / (n * 4) % 3];
            split.grid = grids[i % n];
            split.parallel.zero = i / n % 4;
            split.parallel.overlap.oar = overlap & 1;
            split.parallel.overlap.ors = overlap & 2;
            split.parallel.overlap.oag = overlap & 4;
            split.parallel.weight_cache = caches[i / (n * 4 * 3)];
            split.recompute = (i + i / n) % 2;
            split.parallel.keep_results = i / 2 % 2;
            runs += compare(split, &one, 1e-12, 1e-11);
        }
        eq_free(&one);
    }
    printf("%d runs\n", runs);
}

/* Returns the largest difference of losses, relative to the first loss: over the steps rounding errors grow
 * while the loss falls. After 20 steps they are 1e-7 of the first loss. */
static double worst_of_first_loss(const eq_run *split, const eq_run *one)
{
    double worst = 0;
    for (int i = 0; i < one->steps; i++)
        worst = fmax(worst, fabs(split->loss[i] - one->loss[i]) / one->loss[0]);
    return worst;
}

/* Models with experts run in float64. From step 85 on those of EQ_SPARSE amplify differences 1e3 times, in
 * float64 as in fp32, and tokens come near to choices of equal probability. */
static void a_hundred_steps(void **state)
{
    (void)state;
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids);
    for (int m = 0; m < EQ_MODELS; m++) {
        const bool experts = m >= EQ_MIXTRAL;
        eq_run serial = eq_serial((eq_model)m, "cpu", experts ? AX_F64 : AX_F32, EQ_MOST_STEPS),
               one = eq_do(serial);
        double worst = 0;
        for (int g = 0; g < n; g++) {
            eq_run split = serial;
            split.grid = grids[g];
            split = eq_do(split);
            worst = fmax(worst, worst_of_first_loss(&split, &one));
            eq_free(&split);
        }
        printf("%s: losses of %d steps within %.1e of one rank's\n", eq_model_names[m], EQ_MOST_STEPS, worst);
        assert_true(worst < (experts ? 1e-10 : 1e-4));
        eq_free(&one);
    }
}

/* The short test has every fifth grid of these models. */
static void other_families_on_all_grids(void **state)
{
    (void)state;
    for (int m = EQ_WINDOW; m <= EQ_NORMS; m++) {
        eq_fp32_on_grids((eq_model)m, EQ_STEPS, 0, 1);
        eq_16_bits_on_grids((eq_model)m, AX_BF16, false, EQ_STEPS, 0, 1);
        eq_16_bits_on_grids((eq_model)m, AX_F16, false, EQ_STEPS, 0, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_number_of_ranks),
                                       cmocka_unit_test(other_families_on_all_grids),
                                       cmocka_unit_test(any_combination), cmocka_unit_test(a_hundred_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
