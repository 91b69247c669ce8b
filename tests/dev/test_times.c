/* Times of kernels by the device's clock, on the emulated GPU, where each kernel takes an eighth of a
 * millisecond (tests/cuda/include/cuda_runtime.h). */
#include "axonn/dev.h"
#include "support/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N = 64 };
static const double EACH = 0.125e-3;

static void fill(ax_stream *stream, float *memory, int launches)
{
    for (int i = 0; i < launches; i++)
        OK(ax_run_fill(stream, &(ax_fill_args){.n = N, .value = i, .y = memory, .dtype = AX_F32}));
}

static void check(const ax_kernel_total *t, int launches, int timed)
{
    assert_int_equal(t->calls, launches);
    double sum = timed * EACH; /* each addition rounds once */
    assert_true(fabs(t->seconds - sum) <= (timed + 2) * 0x1p-53 * sum);
    assert_true(t->bytes == launches * N * 4.0);
}

static void launches_are_timed_and_not_waited_for(void **state)
{
    (void)state;
    enum { ROOM = AX_EVENTS / 2 };
    ax_device *dev;
    float *memory, host[N];
    ax_kernel_total totals[AX_KERNEL_COUNT] = {{0}};
    const ax_kernel_total *t = &totals[AX_K_fill];
    OK(ax_device_open("cuda", 1, &dev));
    ax_stream stream = {.dev = dev};
    OK(ax_device_alloc(dev, sizeof host, (void **)&memory));
    fill(&stream, memory, 3); /* not timed */
    ax_listener times = ax_kernel_totals(totals);
    ax_device_listen(dev, &times);
    fill(&stream, memory, ROOM);
    check(t, ROOM, 0);
    fill(&stream, memory, 1); /* the ring is full: the older half of it is added */
    check(t, ROOM + 1, ROOM / 2);
    fill(&stream, memory, 2 * ROOM - 1);
    OK(ax_stream_wait(&stream));
    check(t, 3 * ROOM, 3 * ROOM);
    OK(ax_stream_wait(&stream));
    check(t, 3 * ROOM, 3 * ROOM);
    ax_device_unlisten(dev, &times);
    fill(&stream, memory, 7);
    OK(ax_copy_out(&stream, host, memory, sizeof host));
    check(t, 3 * ROOM, 3 * ROOM);
    assert_true(host[0] == 6 && host[N - 1] == 6);
    ax_device_free(dev, memory, sizeof host);
    ax_device_close(&dev);
}

int main(void)
{
    if (!getenv("AXONN_PLUGINS") || ax_device_absent("cuda"))
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(launches_are_timed_and_not_waited_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
