/* The thread pool of the cpu backend: devices of several ranks in one process, kernels back to back, and
 * kernels after pauses in which workers go to sleep. */
#include "dev/cpu/cpu.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 50000, RANKS = 4, LAUNCHES = 200 };

/* Adds 1 to x LAUNCHES times and returns whether every element became LAUNCHES. */
static bool count_up(ax_device *dev, useconds_t pause)
{
    ax_stream stream = {dev, NULL};
    float *x, *one;
    if (ax_device_alloc(dev, N * sizeof *x, (void *)&x) != AX_OK ||
        ax_device_alloc(dev, N * sizeof *one, (void *)&one) != AX_OK)
        return false;
    bool good = ax_run_fill(&stream, &(ax_fill_args){N, 1, one, AX_F32}) == AX_OK;
    for (int i = 0; i < LAUNCHES && good; i++) {
        good = ax_run_add(&stream, &(ax_add_args){N, x, one, x, AX_F32}) == AX_OK;
        if (pause && i % 10 == 0)
            usleep(pause);
    }
    for (int64_t i = 0; i < N && good; i++)
        good = x[i] == LAUNCHES;
    ax_device_free(dev, x, N * sizeof *x);
    ax_device_free(dev, one, N * sizeof *one);
    return good;
}

static void *rank_main(void *arg)
{
    ax_device *dev;
    if (ax_device_open("cpu", 3, &dev) != AX_OK)
        return NULL;
    bool good = count_up(dev, (useconds_t)(uintptr_t)arg);
    ax_device_close(&dev);
    return good ? arg : NULL;
}

static void ranks_do_not_disturb_each_other(void **state)
{
    (void)state;
    pthread_t rank[RANKS];
    for (uintptr_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&rank[r], NULL, rank_main, (void *)(100 * r + 1)), 0);
    for (uintptr_t r = 0; r < RANKS; r++) {
        void *result;
        pthread_join(rank[r], &result);
        assert_ptr_equal(result, (void *)(100 * r + 1));
    }
}

static void devices_open_and_close_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        ax_device *dev;
        assert_int_equal(ax_device_open("cpu", 1 + i % 4, &dev), AX_OK);
        ax_device_close(&dev);
        assert_null(dev);
    }
}

typedef struct meeting {
    const ax_cpu *cpu;
    pthread_barrier_t all;
    int other; /* parts that were run by a thread with another number */
} meeting;

/* A part that ends only when all parts have begun, so that no thread takes two. */
static void meet(void *job, int part, int parts, char *scratch)
{
    meeting *m = job;
    (void)parts;
    pthread_barrier_wait(&m->all);
    if (scratch != ax_cpu_scratch(m->cpu, part))
        __atomic_add_fetch(&m->other, 1, __ATOMIC_SEQ_CST);
}

static void threads_take_their_own_parts(void **state)
{
    (void)state;
    static const int threads[] = {2, 5, 65};
    for (size_t i = 0; i < AX_COUNT(threads); i++) {
        ax_device *dev;
        assert_int_equal(ax_device_open("cpu", threads[i], &dev), AX_OK);
        meeting m = {.cpu = dev->impl};
        pthread_barrier_init(&m.all, NULL, (unsigned)threads[i]);
        for (int turn = 0; turn < 20; turn++)
            ax_cpu_parallel(m.cpu, threads[i], meet, &m);
        assert_int_equal(m.other, 0);
        pthread_barrier_destroy(&m.all);
        ax_device_close(&dev);
    }
}

static void count_part(void *job, int part, int parts, char *scratch)
{
    (void)parts, (void)scratch;
    __atomic_add_fetch((int *)job + part, 1, __ATOMIC_SEQ_CST);
}

/* Jobs with as many parts as threads, with fewer, and with more, in turn. */
static void parts_run_once(void **state)
{
    (void)state;
    ax_device *dev;
    assert_int_equal(ax_device_open("cpu", 3, &dev), AX_OK);
    for (int turn = 0; turn < 3000; turn++) {
        int times[7] = {0}, parts = 1 + turn % 7;
        ax_cpu_parallel(dev->impl, parts, count_part, times);
        for (int part = 0; part < 7; part++)
            assert_int_equal(times[part], part < parts);
    }
    ax_device_close(&dev);
}

enum { PAGE = 4096 };

/* Touching makes every page resident and does not change its content. */
static void touch_all(const char *backend, int threads, size_t bytes)
{
    ax_device *dev;
    ax_stream stream;
    unsigned char *memory, *host = malloc(bytes), there[64];
    assert_non_null(host);
    assert_int_equal(ax_device_open(backend, threads, &dev), AX_OK);
    stream = (ax_stream){dev, NULL};
    assert_int_equal(ax_device_alloc(dev, bytes, (void *)&memory), AX_OK);
    ax_device_touch(dev, memory, bytes);
    assert_int_equal(mincore(memory, bytes, there), 0);
    for (size_t page = 0; page * PAGE < bytes; page++)
        assert_int_equal(there[page] & 1, 1);
    for (size_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)(i * 7 + i / 256);
    assert_int_equal(ax_copy_in(&stream, memory, host, bytes), AX_OK);
    ax_device_touch(dev, memory, bytes);
    assert_int_equal(ax_copy_out(&stream, host, memory, bytes), AX_OK);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(host[i], (unsigned char)(i * 7 + i / 256));
    ax_device_free(dev, memory, bytes);
    ax_device_close(&dev);
    free(host);
}

static void touching_reaches_all_and_changes_nothing(void **state)
{
    (void)state;
    static const size_t bytes[] = {1, PAGE, 5 * PAGE - 1, 17 * PAGE + 1, 64 * PAGE};
    for (size_t i = 0; i < AX_COUNT(bytes); i++) {
        touch_all("cpu", 1, bytes[i]);
        touch_all("cpu", 3, bytes[i]);
        touch_all("check:cpu", 3, bytes[i]);
    }
}

/* Kernels flush subnormals to 0: momenta of unused weights shrink for ever, and computing with subnormals is
 * slow. */
static void small_numbers_count_as_zero(void **state)
{
    (void)state;
#if !defined(__x86_64__) && !defined(__aarch64__)
    skip();
#endif
    for (int threads = 1; threads <= 3; threads += 2) {
        ax_device *dev;
        float *x, *y, *z;
        volatile float small = 1e-30f;
        assert_int_equal(ax_device_open("cpu", threads, &dev), AX_OK);
        ax_stream stream = {dev, NULL};
        assert_int_equal(ax_device_alloc(dev, N * sizeof *x, (void *)&x), AX_OK);
        assert_int_equal(ax_device_alloc(dev, N * sizeof *y, (void *)&y), AX_OK);
        assert_int_equal(ax_device_alloc(dev, N * sizeof *z, (void *)&z), AX_OK);
        assert_int_equal(ax_run_fill(&stream, &(ax_fill_args){N, 1e-30, x, AX_F32}), AX_OK);
        assert_int_equal(ax_run_fill(&stream, &(ax_fill_args){N, 1e-40, y, AX_F32}), AX_OK);
        for (int64_t i = 0; i < N; i++)
            assert_true(y[i] == 1e-40f); /* fill and copies keep subnormals */
        assert_int_equal(ax_run_scale(&stream, &(ax_scale_args){N, 1e-10, x, AX_F32}), AX_OK);
        assert_int_equal(ax_run_add(&stream, &(ax_add_args){N, y, y, z, AX_F32}), AX_OK);
        for (int64_t i = 0; i < N; i++)
            assert_true(x[i] == 0 && z[i] == 0); /* x: a result; z: an operand */
        assert_true(small * 1e-10f > 0);         /* the caller's own arithmetic keeps subnormals */
        ax_device_free(dev, x, N * sizeof *x);
        ax_device_free(dev, y, N * sizeof *y);
        ax_device_free(dev, z, N * sizeof *z);
        ax_device_close(&dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_do_not_disturb_each_other),
                                       cmocka_unit_test(devices_open_and_close_at_once),
                                       cmocka_unit_test(threads_take_their_own_parts),
                                       cmocka_unit_test(parts_run_once),
                                       cmocka_unit_test(touching_reaches_all_and_changes_nothing),
                                       cmocka_unit_test(small_numbers_count_as_zero)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
