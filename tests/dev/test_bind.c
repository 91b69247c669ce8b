/* Threads of the cpu backend that are bound to cores: where they run, that the opening thread gets its
 * affinity mask back, and which threads must not inherit a binding. Runs on one core or many. */
#include "dev/cpu/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 64 };

static cpu_set_t my_mask(void)
{
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    return mask;
}

static bool equal(const cpu_set_t *a, const cpu_set_t *b) { return CPU_EQUAL(a, b); }

/* Returns a binding to all cores that this process may use, at most MOST; n is 0 if the cores are not
 * known. */
static ax_binding all_cores(void)
{
    ax_cores cores;
    ax_binding b = {0};
    ax_cores_find(&cores);
    for (int c = 0; c < AX_CORES_MAX && b.n < MOST && cores.physical; c++)
        if (cores.usable[c / 64] >> (c % 64) & 1) {
            b.cores[c / 64] |= UINT64_C(1) << (c % 64);
            b.n++;
        }
    return b;
}

typedef struct meeting {
    pthread_barrier_t all;
    cpu_set_t mask[MOST];
} meeting;

static void note_mask(void *job, int part, int parts, char *scratch)
{
    meeting *m = job;
    (void)parts, (void)scratch;
    pthread_barrier_wait(&m->all); /* so that no thread takes two parts */
    m->mask[part] = my_mask();
}

static void each_thread_has_a_core(void **state)
{
    (void)state;
    ax_binding b = all_cores();
    if (!b.n)
        skip();
    meeting m;
    ax_device *dev;
    cpu_set_t before = my_mask(), sum, common, after;
    assert_int_equal(ax_device_open_bound("cpu", b.n, &b, &dev), AX_OK);
    pthread_barrier_init(&m.all, NULL, (unsigned)b.n);
    ax_cpu_parallel(dev->impl, b.n, note_mask, &m);
    pthread_barrier_destroy(&m.all);
    CPU_ZERO(&sum);
    for (int i = 0; i < b.n; i++) {
        CPU_AND(&common, &sum, &m.mask[i]);
        assert_int_equal(CPU_COUNT(&common), 0);
        assert_true(CPU_COUNT(&m.mask[i]) > 0);
        CPU_OR(&sum, &sum, &m.mask[i]);
    }
    if (b.n < MOST)
        assert_true(equal(&sum, &before));
    ax_device_close(&dev);
    after = my_mask();
    assert_true(equal(&after, &before));
}

/* A binding is ignored if its number of cores is not that of the threads. */
static void no_binding_without_a_core_for_each(void **state)
{
    (void)state;
    ax_binding b = all_cores(), none = {.why_not = "a test says so"};
    ax_device *dev;
    cpu_set_t before = my_mask(), now;
    const ax_binding *list[] = {&b, &none, NULL};
    for (size_t i = 0; i < AX_COUNT(list); i++) {
        assert_int_equal(ax_device_open_bound("cpu", b.n + 1, list[i], &dev), AX_OK);
        now = my_mask();
        assert_true(equal(&now, &before));
        ax_device_close(&dev);
    }
}

/* Devices of one thread need not be closed in the reverse order of their opening. */
static void masks_come_back_in_any_order(void **state)
{
    (void)state;
    ax_binding b = all_cores();
    if (!b.n)
        skip();
    cpu_set_t before = my_mask(), after;
    for (int order = 0; order < 2; order++) {
        ax_device *dev[2];
        for (int i = 0; i < 2; i++)
            assert_int_equal(ax_device_open_bound("cpu", b.n, &b, &dev[i]), AX_OK);
        ax_device_close(&dev[order]);
        ax_device_close(&dev[!order]);
        after = my_mask();
        assert_true(equal(&after, &before));
    }
}

static void *child_main(void *out)
{
    *(cpu_set_t *)out = my_mask();
    return NULL;
}

static void children_do_not_inherit(void **state)
{
    (void)state;
    ax_binding b = all_cores();
    if (!b.n || b.n == MOST)
        skip();
    ax_device *dev, *unbound;
    pthread_t child;
    meeting m;
    cpu_set_t before = my_mask(), seen;
    assert_int_equal(ax_device_open_bound("cpu", b.n, &b, &dev), AX_OK);
    assert_int_equal(ax_thread_start(&child, child_main, &seen), 0);
    pthread_join(child, NULL);
    assert_true(equal(&seen, &before));
    assert_int_equal(ax_processors(), CPU_COUNT(&before));
    /* The workers of a device that is opened without binding. */
    assert_int_equal(ax_device_open("cpu", 2, &unbound), AX_OK);
    pthread_barrier_init(&m.all, NULL, 2);
    ax_cpu_parallel(unbound->impl, 2, note_mask, &m);
    pthread_barrier_destroy(&m.all);
    assert_true(equal(&m.mask[1], &before));
    ax_device_close(&unbound);
    ax_device_close(&dev);
}

/* Runs in a process that may use one processor. Returns 0, or the number of the check that failed. */
static int on_one_processor(void)
{
    ax_device *dev;
    cpu_set_t one = my_mask(), now;
    if (CPU_COUNT(&one) != 1)
        return 1;
    ax_binding b = all_cores();
    if (b.n != 1)
        return 2;
    if (ax_device_open_bound("cpu", 1, &b, &dev) != AX_OK)
        return 3;
    now = my_mask();
    if (!equal(&now, &one))
        return 4;
    ax_device_close(&dev);
    now = my_mask();
    return equal(&now, &one) ? 0 : 5;
}

static void a_mask_is_kept(void **state)
{
    (void)state;
    cpu_set_t mine = my_mask(), one;
    if (!all_cores().n)
        skip();
    for (int cpu = 0, tried = 0; cpu < CPU_SETSIZE && tried < 4; cpu++) {
        if (!CPU_ISSET(cpu, &mine))
            continue;
        tried++;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        int status = 0;
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            if (!sched_setaffinity(0, sizeof one, &one))
                execl("/proc/self/exe", "test_bind", "on one processor", (char *)NULL);
            _exit(6);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static void cores_are_printed_as_ranges(void **state)
{
    (void)state;
    char text[64], small[6];
    ax_binding b = {.n = 7, .cores = {0x4d | UINT64_C(1) << 63, 1}};
    assert_string_equal(ax_binding_print(&b, text, sizeof text), "0,2-3,6,63-64");
    assert_string_equal(ax_binding_print(&b, small, sizeof small), "0,2-3");
    b = (ax_binding){0};
    assert_string_equal(ax_binding_print(&b, text, sizeof text), "");
    b.cores[AX_CORES_MAX / 64 - 1] = UINT64_C(1) << 63;
    assert_string_equal(ax_binding_print(&b, text, sizeof text), "1023");
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return on_one_processor();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_is_kept),
        cmocka_unit_test(each_thread_has_a_core),
        cmocka_unit_test(no_binding_without_a_core_for_each),
        cmocka_unit_test(masks_come_back_in_any_order),
        cmocka_unit_test(children_do_not_inherit),
        cmocka_unit_test(cores_are_printed_as_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
