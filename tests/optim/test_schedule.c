/* Learning-rate schedules against their definitions. */
#include "axonn/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void warmup_counts_from_one(void **state)
{
    (void)state;
    ax_schedule s = {AX_SCHEDULE_COSINE, 100, 10, 1.0, 0.1, 0.2};
    assert_true(ax_schedule_lr(&s, 1) == 0.1);
    assert_true(ax_schedule_lr(&s, 10) == 1.0);
    assert_true(ax_schedule_lr(&s, 11) < 1.0);
}

static void schedules_end_at_min_lr(void **state)
{
    (void)state;
    static const ax_schedule_kind kinds[] = {AX_SCHEDULE_LINEAR, AX_SCHEDULE_COSINE, AX_SCHEDULE_WSD};
    for (size_t i = 0; i < AX_COUNT(kinds); i++) {
        ax_schedule s = {kinds[i], 50, 5, 2e-3, 2e-4, 0.2};
        assert_true(fabs(ax_schedule_lr(&s, 50) - 2e-4) < 1e-15);
        assert_true(fabs(ax_schedule_lr(&s, 60) - 2e-4) < 1e-15);
        double before = ax_schedule_lr(&s, 5);
        for (int step = 6; step <= 50; step++) {
            double lr = ax_schedule_lr(&s, step);
            assert_true(lr <= before && lr >= 2e-4 - 1e-15);
            before = lr;
        }
    }
}

static void schedules_equal_their_formulas_in_the_middle(void **state)
{
    (void)state;
    ax_schedule cosine = {AX_SCHEDULE_COSINE, 100, 0, 1, 0, 0};
    assert_true(fabs(ax_schedule_lr(&cosine, 50) - 0.5) < 1e-12);
    assert_true(fabs(ax_schedule_lr(&cosine, 25) - 0.5 * (1 + sqrt(0.5))) < 1e-12);
    ax_schedule linear = {AX_SCHEDULE_LINEAR, 110, 10, 1, 0, 0};
    assert_true(fabs(ax_schedule_lr(&linear, 60) - 0.5) < 1e-12);
    ax_schedule wsd = {AX_SCHEDULE_WSD, 100, 10, 1, 0, 0.2};
    assert_true(ax_schedule_lr(&wsd, 80) == 1);
    assert_true(fabs(ax_schedule_lr(&wsd, 90) - 0.5) < 1e-12);
    ax_schedule constant = {AX_SCHEDULE_CONSTANT, 100, 10, 1, 0, 0};
    assert_true(ax_schedule_lr(&constant, 100) == 1);
}

/* A warm-up longer than the run only rises; wsd decays over the steps after the warm-up if they are fewer
 * than its decay. */
static void warmups_may_be_longer_than_the_run(void **state)
{
    (void)state;
    static const ax_schedule_kind kinds[] = {AX_SCHEDULE_CONSTANT, AX_SCHEDULE_LINEAR, AX_SCHEDULE_COSINE,
                                             AX_SCHEDULE_WSD};
    for (size_t i = 0; i < AX_COUNT(kinds); i++) {
        ax_schedule s = {kinds[i], 3, 5, 1, 0, 0.2};
        assert_true(ax_schedule_lr(&s, 1) == 0.2 && ax_schedule_lr(&s, 3) == 0.6);
    }
    ax_schedule wsd = {AX_SCHEDULE_WSD, 10, 8, 1, 0, 0.5};
    assert_true(ax_schedule_lr(&wsd, 7) == 0.875 && ax_schedule_lr(&wsd, 8) == 1);
    assert_true(ax_schedule_lr(&wsd, 9) == 0.5 && ax_schedule_lr(&wsd, 10) == 0);
    ax_schedule full = {AX_SCHEDULE_WSD, 10, 10, 1, 0, 0.5};
    assert_true(ax_schedule_lr(&full, 10) == 1);
}

/* The loss scale is halved by each overflow, doubled after 2000 good steps in a row, and stays in bounds. */
static void the_loss_scale_follows_overflows(void **state)
{
    (void)state;
    assert_true(ax_loss_scale_start(AX_BF16).scale == 1 && ax_loss_scale_start(AX_F32).scale == 1);
    ax_loss_scale s = ax_loss_scale_start(AX_F16);
    assert_true(s.scale == 65536 && s.good_steps == 0 && s.skipped_steps == 0);
    for (int i = 0; i < 1999; i++)
        ax_loss_scale_update(&s, false);
    assert_true(s.scale == 65536 && s.good_steps == 1999);
    ax_loss_scale_update(&s, true);
    assert_true(s.scale == 32768 && s.good_steps == 0 && s.skipped_steps == 1);
    for (int i = 0; i < 2000; i++)
        ax_loss_scale_update(&s, false);
    assert_true(s.scale == 65536 && s.good_steps == 0);
    for (int i = 0; i < 20; i++)
        ax_loss_scale_update(&s, true);
    assert_true(s.scale == AX_LOSS_SCALE_LEAST && s.skipped_steps == 21);
    for (int i = 0; i < 50 * 2000; i++)
        ax_loss_scale_update(&s, false);
    assert_true(s.scale == AX_LOSS_SCALE_MOST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(warmup_counts_from_one),
                                       cmocka_unit_test(schedules_end_at_min_lr),
                                       cmocka_unit_test(schedules_equal_their_formulas_in_the_middle),
                                       cmocka_unit_test(warmups_may_be_longer_than_the_run),
                                       cmocka_unit_test(the_loss_scale_follows_overflows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
