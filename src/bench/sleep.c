/* Sleeping in place of computing: the kernels of a device take the time that a machine's description gives
 * for them, while communication is real. So a step of many devices can be timed on few cores, and on networks
 * whose GPUs are not there yet. */
#include "bench/bench.h"

#include <errno.h>
#include <time.h>

void bench_sleep_until(double when)
{
    struct timespec until;
    const double left = when - ax_now();
    if (left <= 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + (int64_t)(left * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = ns % 1000000000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

/* A thread sleeps longer than asked, by what it takes to wake up. The kernels after it sleep less for that,
 * by MOST at most, as the process may have been stopped. Kernels shorter than LEAST are slept for together.
 */
static void sleep_for(void *user, const ax_device_event *e)
{
    static const double LEAST = 20e-6, MOST = 10e-3;
    bench_sleep *s = user;
    double seconds = 0;
    const ax_status status = ax_machine_kernel_seconds(s->machine, e->kernel, e->args, &seconds);
    s->status = s->status == AX_OK ? status : s->status;
    s->total[e->kernel].seconds += seconds;
    s->debt += seconds;
    if (s->debt < LEAST)
        return;
    const double begin = ax_now();
    bench_sleep_until(begin + s->debt);
    s->debt -= ax_now() - begin;
    s->debt = s->debt > -MOST ? s->debt : -MOST;
}

static ax_status compute_nothing(ax_stream *stream, const void *args)
{
    (void)stream, (void)args;
    return AX_OK;
}

void bench_sleep_begin(ax_device *dev, const ax_machine *machine, bench_sleep *sleep)
{
    *sleep = (bench_sleep){.machine = machine};
    sleep->listener = (ax_listener){AX_ON_KERNEL, sleep_for, sleep, NULL};
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        dev->ops.kernel[k] = compute_nothing;
    ax_device_listen(dev, &sleep->listener);
}
