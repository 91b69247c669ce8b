/* The check devices: memory faults when the host touches it, starts as NaN, and kernels work on it. */
#include "axonn/dev.h"

#include "support/kernel_cases.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const names[] = {"check", "check:cpu"};

static bool faults(volatile char *address, bool write)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would turn the signal into an exit code */
        if (write)
            *address = 1;
        else
            (void)*address;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void host_access_faults(void **state)
{
    ax_device *dev;
    void *memory, *other;
    assert_int_equal(ax_device_open(*state, KC_THREADS, &dev), AX_OK);
    assert_int_equal(ax_device_alloc(dev, 10000, &memory), AX_OK);
    char *bytes = memory;
    assert_true(faults(bytes, false));
    assert_true(faults(bytes, true));
    assert_true(faults(bytes + 9999, false));
    dev->ops.enter(dev);
    dev->ops.enter(dev);
    dev->ops.leave(dev);
    assert_false(faults(bytes + 9999, true));
    /* Guard pages on either side are inaccessible also while kernels run. Memory allocated meanwhile is
     * accessible. */
    assert_true(faults(bytes - 1, false));
    assert_true(faults(bytes + 12288, false));
    assert_int_equal(ax_device_alloc(dev, 1, &other), AX_OK);
    assert_false(faults(other, true));
    dev->ops.leave(dev);
    assert_true(faults(bytes, false));
    assert_true(faults(other, false));
    ax_device_free(dev, other, 1);
    ax_device_free(dev, memory, 10000);
    assert_true(faults(bytes, false));
    ax_device_close(&dev);
}

static bool all_nan(ax_stream *stream, const void *memory, int64_t n)
{
    float *host = calloc((size_t)n, sizeof *host);
    assert_int_equal(ax_copy_out(stream, host, memory, (size_t)n * sizeof *host), AX_OK);
    bool all = true;
    for (int64_t i = 0; i < n; i++)
        all = all && isnan(host[i]);
    free(host);
    return all;
}

static void fresh_memory_is_nan(void **state)
{
    enum { N = 3000 };
    ax_device *dev;
    void *memory;
    assert_int_equal(ax_device_open(*state, 1, &dev), AX_OK);
    assert_int_equal(ax_device_alloc(dev, N * sizeof(float), &memory), AX_OK);
    ax_stream stream = {dev, NULL};
    assert_true(all_nan(&stream, memory, N));
    assert_int_equal(ax_run_fill(&stream, &(ax_fill_args){N, 1, memory, AX_F32}), AX_OK);
    assert_false(all_nan(&stream, memory, N));
    dev->ops.poison(dev, memory, N * sizeof(float));
    assert_true(all_nan(&stream, memory, N));
    /* The poison is NaN in the other float types too. */
    const uint64_t bits = ~UINT64_C(0);
    assert_true(isnan(ax_load(AX_F64, &bits, 0)) && isnan(ax_load(AX_BF16, &bits, 0)) &&
                isnan(ax_load(AX_F16, &bits, 0)));
    ax_device_free(dev, memory, N * sizeof(float));
    ax_device_close(&dev);
}

/* A check device does a copy when it is enqueued: the copy has the values of that time, and its event is
 * complete. */
static void asynchronous_copies_are_done_at_once(void **state)
{
    enum { N = 5000 };
    ax_device *dev;
    double got[N], *memory, *pinned;
    ax_stream_event *event;
    bool done = false;
    assert_int_equal(ax_device_open(*state, 1, &dev), AX_OK);
    ax_stream stream = {dev, NULL}, in = ax_copy_stream(dev, AX_TO_DEVICE),
              out = ax_copy_stream(dev, AX_TO_HOST);
    assert_int_equal(ax_device_alloc(dev, sizeof got, (void **)&memory), AX_OK);
    assert_int_equal(ax_pinned_alloc(dev, sizeof got, (void **)&pinned), AX_OK);
    assert_int_equal(ax_stream_event_create(dev, &event), AX_OK);
    for (int i = 0; i < N; i++)
        pinned[i] = i;
    assert_int_equal(ax_copy_in_async(&in, memory, pinned, sizeof got), AX_OK);
    memset(pinned, 0, sizeof got);
    assert_int_equal(ax_copy_out_async(&out, pinned, memory, sizeof got), AX_OK);
    assert_int_equal(ax_run_fill(&stream, &(ax_fill_args){N, -1, memory, AX_F64}), AX_OK);
    assert_int_equal(ax_stream_record(&out, event), AX_OK);
    assert_int_equal(ax_stream_await(&stream, event), AX_OK);
    assert_int_equal(ax_stream_event_done(event, &done), AX_OK);
    assert_true(done);
    assert_int_equal(ax_stream_event_wait(event), AX_OK);
    for (int i = 0; i < N; i++)
        assert_true(pinned[i] == i);
    assert_int_equal(ax_copy_out(&stream, got, memory, sizeof got), AX_OK);
    assert_true(got[0] == -1 && got[N - 1] == -1);
    ax_stream_event_destroy(&event);
    ax_pinned_free(dev, pinned, sizeof got);
    ax_device_free(dev, memory, sizeof got);
    ax_device_close(&dev);
}

/* Every kernel runs on a check device, with bitwise the same results as its delegate. */
static void kernels_run(void **state)
{
    ax_device *checked, *plain;
    assert_int_equal(ax_device_open(*state, KC_THREADS, &checked), AX_OK);
    assert_int_equal(ax_device_open(checked->ops.delegate, KC_THREADS, &plain), AX_OK);
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        for (int dtype = 0; dtype < AX_DTYPE_COUNT; dtype++) {
            kernel_case c;
            for (int index = (k + dtype) % 7; kernel_case_build((ax_kernel)k, (ax_dtype)dtype, index, &c);
                 index += 23) {
                void *got[KC_OPERANDS], *want[KC_OPERANDS];
                kernel_case_run(checked, &c, 0, got);
                kernel_case_run(plain, &c, 0, want);
                for (int i = 0; i < c.operands; i++)
                    assert_memory_equal(got[i], want[i],
                                        (size_t)c.operand[i].count * ax_dtype_size(c.operand[i].dtype));
                kc_results_free(got);
                kc_results_free(want);
                kernel_case_free(&c);
            }
        }
    ax_device_close(&checked);
    ax_device_close(&plain);
}

typedef struct worker {
    pthread_t thread;
    const char *name;
    bool ok;
} worker;

/* A rank as a thread, with a device of its own. */
static void *work(void *argument)
{
    enum { N = 1000 };
    worker *w = argument;
    ax_device *dev;
    void *memory;
    float host[N];
    w->ok = ax_device_open(w->name, 1, &dev) == AX_OK;
    for (int i = 0; w->ok && i < 200; i++) {
        ax_stream stream = {dev, NULL};
        w->ok = ax_device_alloc(dev, sizeof host, &memory) == AX_OK &&
                ax_run_fill(&stream, &(ax_fill_args){N, i, memory, AX_F32}) == AX_OK &&
                ax_copy_out(&stream, host, memory, sizeof host) == AX_OK && host[N - 1] == (float)i;
        ax_device_free(dev, memory, sizeof host);
    }
    ax_device_close(&dev);
    return NULL;
}

static void several_devices_in_one_process(void **state)
{
    worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i].name = *state;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_true(workers[i].ok);
    }
}

/* Two threads of one rank: memory stays open until the last of them has left. */
static void *toggle(void *argument)
{
    ax_device *dev = argument;
    for (int i = 0; i < 2000; i++) {
        dev->ops.enter(dev);
        dev->ops.leave(dev);
    }
    return NULL;
}

static void enter_counts_over_threads(void **state)
{
    ax_device *dev;
    void *memory;
    pthread_t thread;
    assert_int_equal(ax_device_open(*state, 1, &dev), AX_OK);
    assert_int_equal(ax_device_alloc(dev, 64, &memory), AX_OK);
    dev->ops.enter(dev);
    assert_int_equal(pthread_create(&thread, NULL, toggle, dev), 0);
    for (int i = 0; i < 100000; i++)
        ((volatile char *)memory)[i % 64] = (char)i;
    pthread_join(thread, NULL);
    dev->ops.leave(dev);
    assert_true(faults(memory, false));
    ax_device_free(dev, memory, 64);
    ax_device_close(&dev);
}

int main(void)
{
    int failed = 0;
    for (size_t i = 0; i < AX_COUNT(names); i++) {
        void *name = (void *)(uintptr_t)names[i];
        const struct CMUnitTest tests[] = {
            cmocka_unit_test_prestate(host_access_faults, name),
            cmocka_unit_test_prestate(fresh_memory_is_nan, name),
            cmocka_unit_test_prestate(asynchronous_copies_are_done_at_once, name),
            cmocka_unit_test_prestate(kernels_run, name),
            cmocka_unit_test_prestate(several_devices_in_one_process, name),
            cmocka_unit_test_prestate(enter_counts_over_threads, name),
        };
        failed += cmocka_run_group_tests_name(names[i], tests, NULL, NULL);
    }
    return failed;
}
