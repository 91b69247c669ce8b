/* The experts that tokens choose in the first step, on grids of eight ranks and on pipeline stages, compared
 * on every rank with those of one rank. The weights are the same, so a choice depends on forward alone. */
#include "support/equality.h"
#include "support/sampled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static const eq_model models[] = {EQ_MIXTRAL, EQ_SPARSE, EQ_OLMOE};
static const ax_dtype dtypes[] = {AX_F32, AX_BF16};

static eq_run one_rank(eq_model model, ax_dtype compute)
{
    eq_run serial = eq_serial(model, "cpu", compute, 1);
    serial.rows = 32;
    return serial;
}

/* Returns the run on a grid, which compares its choices. */
static eq_run compared(eq_run serial, ax_grid_size grid, choices *chosen)
{
    serial.grid = grid;
    serial.choices = chosen;
    serial.use = CHOICES_COMPARE;
    eq_run split = eq_do(serial);
    assert_true(split.differ[CHOICES_TOKENS] > 0);
    return split;
}

static bool splits_sums(ax_grid_size grid) { return grid.of[AX_X] > 1 || grid.of[AX_Y] > 1; }

/* Along z, data and pipe every sum of forward is in the order of one rank. */
static void choices_along_z_data_and_pipe_are_those_of_one_rank(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{1, 1, 1, 1, 8}}, {{1, 1, 8, 1, 1}},    {{1, 1, 2, 1, 4}},
                                         {{1, 1, 4, 1, 2}}, {{1, 1, 1, 2, 1}},    {{1, 1, 1, 3, 1}},
                                         {{1, 1, 2, 2, 2}}, {{1, 1, 1, 1, 4, 2}}, {{1, 1, 2, 1, 2, 2}}};
    for (size_t m = 0; m < AX_COUNT(models); m++)
        for (size_t d = 0; d < AX_COUNT(dtypes); d++) {
            choices *chosen;
            eq_run serial = one_rank(models[m], dtypes[d]), one = eq_do_storing(serial, &chosen);
            for (size_t g = (m + d) % (size_t)one_of(1, 3); g < AX_COUNT(grids); g += (size_t)one_of(1, 3)) {
                eq_run split = compared(serial, grids[g], chosen);
                assert_true(split.differ[CHOICES_MOVED] == 0);
                eq_free(&split);
            }
            eq_free(&one);
            choices_destroy(&chosen);
        }
}

/* Along x and y ranks add partial sums. fp32 sums of up to 1e3 terms in another order differ by less than
 * 1e-6 of their terms, so that probabilities differ by less than 1e-5, and only choices whose margin is
 * smaller can flip. In bf16 each layer rounds to 2^-9: flips are counted. */
static void choices_along_x_and_y_flip_at_small_margins(void **state)
{
    (void)state;
    ax_grid_size grids[64];
    const int n = eq_factorizations(8, grids);
    for (size_t m = 0; m < AX_COUNT(models); m++)
        for (size_t d = 0; d < AX_COUNT(dtypes); d++) {
            choices *chosen;
            eq_run serial = one_rank(models[m], dtypes[d]), one = eq_do_storing(serial, &chosen);
            double tokens = 0, flips = 0, margin = 0;
            for (int g = (int)(m + d) % one_of(2, 7); g < n; g += one_of(2, 7)) {
                if (!splits_sums(grids[g]) || !eq_heads_fit(models[m], grids[g].of[AX_X]))
                    continue;
                eq_run split = compared(serial, grids[g], chosen);
                tokens += split.differ[CHOICES_TOKENS];
                flips += split.differ[CHOICES_FLIPS];
                margin = split.margin > margin ? split.margin : margin;
                eq_free(&split);
            }
            printf(
                "%s %s: %.0f of %.0f tokens flip, with margins up to %.1e; least margin of one rank %.1e\n",
                eq_model_names[models[m]], ax_dtype_name(dtypes[d]), flips, tokens, margin,
                choices_least_margin(chosen, 0));
            assert_true(tokens > 0);
            assert_true(dtypes[d] != AX_F32 || margin < 1e-5);
            eq_free(&one);
            choices_destroy(&chosen);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(choices_along_z_data_and_pipe_are_those_of_one_rank),
                                       cmocka_unit_test(choices_along_x_and_y_flip_at_small_margins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
