/* trace: once the files are open, a step allocates no memory, not even in other libraries. */
#include "support/mallocs.h"
#include "trace/trace_test.h"

static void a_step_allocates_nothing(void **state)
{
    if (!MALLOCS_COUNTED)
        skip();
    ax_metrics_run run = quiet_run(*state);
    ax_metrics *metrics;
    run.quiet = false; /* with the progress line */
    run.log_interval = 1;
    long before = atomic_load(&mallocs_made);
    OK(ax_metrics_open(&run, 0, &metrics));
    assert_true(atomic_load(&mallocs_made) > before); /* the counter works */
    before = atomic_load(&mallocs_made);
    ax_status status = AX_OK;
    for (int64_t step = 1; step <= 100 && status == AX_OK; step++) {
        ax_metrics_step s = a_step(step);
        s.loss = step == 7 ? 1.0 / 0.0 : step % 2 ? 1e300 / (double)step : 1e-300 / (double)step;
        status = ax_metrics_step_add(metrics, &s);
    }
    if (status == AX_OK)
        status = ax_metrics_eval_add(metrics, 100, 3.25, 1.1, 1000, 0.5);
    long after = atomic_load(&mallocs_made);
    OK(status);
    assert_int_equal(after, before);
    ax_metrics_close(&metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_step_allocates_nothing, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests_name("steady", tests, NULL, NULL);
}
