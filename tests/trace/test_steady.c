/* trace: after opening, a step allocates nothing, in the library or below it. The test program's malloc and
 * its kin stand in front of the C library's. */
#include "trace/trace_test.h"

#include <stdatomic.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#ifdef SANITIZED

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    skip(); /* the sanitizer has its own malloc */
}

#else

static atomic_int allocations;

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_memalign(alignment, n);
}

static void a_step_allocates_nothing(void **state)
{
    ax_metrics_run run = quiet_run(*state);
    ax_metrics *metrics;
    run.quiet = false; /* with its line */
    run.log_interval = 1;
    int before = atomic_load(&allocations);
    OK(ax_metrics_open(&run, 0, &metrics));
    assert_true(atomic_load(&allocations) > before); /* the counter counts */
    before = atomic_load(&allocations);
    ax_status status = AX_OK;
    for (int64_t step = 1; step <= 100 && status == AX_OK; step++) {
        ax_metrics_step s = a_step(step);
        s.loss = step == 7 ? 1.0 / 0.0 : step % 2 ? 1e300 / (double)step : 1e-300 / (double)step;
        status = ax_metrics_step_add(metrics, &s);
    }
    if (status == AX_OK)
        status = ax_metrics_eval_add(metrics, 100, 3.25, 1.1, 1000, 0.5);
    int after = atomic_load(&allocations);
    OK(status);
    assert_int_equal(after, before);
    ax_metrics_close(&metrics);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_step_allocates_nothing, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests_name("steady", tests, NULL, NULL);
}
