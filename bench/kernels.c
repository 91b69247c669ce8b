/* Rates of a device's kernels at the shapes of training, compared with the device's peak rates. The cases
 * are those of bench/cases.c.
 *
 *     cmake --build build --target bench_kernels && build/bench_kernels [DEVICE [THREADS [FILTER [tiny]]]]
 *
 * The peak rates are measured first (ax_device_peak, ax_device_stream). Each line has the median, minimum and
 * maximum rate of at least RUNS runs, and the ideal time as a share of the median time. The ideal time is the
 * larger of flops/peak and bytes/stream; a share above 100 % means that operands stay in a cache. Operands
 * are normally distributed numbers. Time is measured from launch to completion; a run on a GPU is as many
 * launches as take a millisecond. A grouped GEMM and a gemm of the same operations take turns, and so do full
 * attention and that of few keys. FILTER selects the lines that contain it. With "tiny" all shapes are tiny,
 * to try out the program on an emulated GPU. */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 9, MAX_RUNS = 200 };
static const double SECONDS = 0.25; /* minimum time of a case */

typedef struct bench {
    bench_cases cases;
    int threads;
    const char *filter;
    double peak_f32, peak_bf16, stream_rate;
} bench;

static void die(const char *what)
{
    fprintf(stderr, "bench_kernels: %s: %s\n", what, ax_error_message());
    exit(1);
}
#define DO(call)                                                                                             \
    do {                                                                                                     \
        if ((call) != AX_OK)                                                                                 \
            die(#call);                                                                                      \
    } while (0)

/* Returns the time in seconds. With one host thread it is CPU time, which excludes the time that other
 * processes use its core. */
static double seconds(const bench *b)
{
    return b->threads == 1 && ax_device_uses_host_memory(b->cases.dev) ? ax_cpu_now() : ax_now();
}

static double time_launches(bench *b, const bench_call *c, int launches)
{
    ax_stream stream = {b->cases.dev, NULL};
    double start = seconds(b);
    for (int i = 0; i < launches; i++)
        DO(ax_launch(&stream, c->kernel, &c->args));
    DO(ax_stream_wait(&stream));
    return (seconds(b) - start) / launches;
}

static void print_call(bench *b, const bench_call *c, const double *t, int n, ax_dtype dtype)
{
    double flops, bytes, sorted[MAX_RUNS];
    ax_kernel_cost(c->kernel, &c->args, &flops, &bytes);
    memcpy(sorted, t, (size_t)n * sizeof *t);
    ax_spread spread = ax_spread_of(sorted, n);
    double peak = dtype == AX_BF16 ? b->peak_bf16 : b->peak_f32;
    double by_flops = peak > 0 ? flops / peak : 0, by_bytes = bytes / b->stream_rate,
           work = by_flops > by_bytes ? flops : bytes;
    double ideal = by_flops > by_bytes ? by_flops : by_bytes;
    printf("%-44s %9.1f us %8.1f %s [%.1f, %.1f] %4.0f %%\n", c->name, spread.median * 1e6,
           work / spread.median * 1e-9, by_flops > by_bytes ? "GFLOP/s" : "GB/s   ", work / spread.max * 1e-9,
           work / spread.min * 1e-9, 100 * ideal / spread.median);
    fflush(stdout);
}

/* Prints the time of some calls of a group as a part of that of call 0: the median of the ratios of each
 * round. */
static void print_share(const char *name, const int call[BENCH_SHARED], double t[][MAX_RUNS], int n)
{
    double ratio[MAX_RUNS];
    for (int i = 0; i < n; i++) {
        ratio[i] = 0;
        for (int s = 0; s < BENCH_SHARED; s++)
            ratio[i] += t[call[s]][i] / t[0][i];
    }
    const ax_spread spread = ax_spread_of(ratio, n);
    printf("%-44s %9.3f of full attention [%.3f, %.3f]\n", name, spread.median, spread.min, spread.max);
}

/* Times the calls of a group, which take turns, and prints a line for each. */
static void measure(void *user, const bench_group *g)
{
    static double t[BENCH_CALLS][MAX_RUNS];
    bench *b = user;
    int n = 0, launches[BENCH_CALLS];
    for (int i = 0; i < g->calls; i++) {
        launches[i] = 1;
        time_launches(b, &g->call[i], 1);
        if (b->cases.dev->ops.wait)
            launches[i] += (int)(1e-3 / time_launches(b, &g->call[i], 1));
    }
    const double begin = ax_now(), patience = b->cases.shapes == &bench_tiny ? 0 : g->calls * SECONDS;
    for (; n < RUNS || (n < MAX_RUNS && ax_now() - begin < patience); n++)
        for (int i = 0; i < g->calls; i++)
            t[i][n] = time_launches(b, &g->call[i], launches[i]);
    for (int i = 0; i < g->calls; i++)
        print_call(b, &g->call[i], t[i], n, g->dtype);
    for (int i = 0; i < g->shares; i++)
        print_share(g->share[i].name, g->share[i].call, t, n);
}

static bool matches(void *user, const char *name)
{
    const bench *b = user;
    return !b->filter || strstr(name, b->filter);
}

/* Measures the peak rates; with tiny shapes, whose times mean nothing, they are not known. */
static void measure_ceilings(bench *b)
{
    b->stream_rate = 1;
    if (b->cases.shapes == &bench_tiny)
        return;
    DO(ax_device_peak(b->cases.dev, AX_F32, SECONDS, &b->peak_f32));
    DO(ax_device_peak(b->cases.dev, AX_BF16, SECONDS, &b->peak_bf16));
    DO(ax_device_stream(b->cases.dev, SECONDS, &b->stream_rate));
}

int main(int argc, char **argv)
{
    bench b = {.threads = argc > 2 ? atoi(argv[2]) : 0, .filter = argc > 3 ? argv[3] : NULL};
    const char *device = argc > 1 ? argv[1] : "cpu";
    b.cases = (bench_cases){.wants = matches, .take = measure, .user = &b};
    DO(ax_device_open(device, b.threads, &b.cases.dev));
    b.threads = b.cases.dev->threads;
    b.cases.shapes = argc > 4                           ? &bench_tiny
                     : b.cases.dev->ops.discrete_memory ? &bench_of_gpus
                                                        : &bench_of_processors;
    measure_ceilings(&b);
    printf("device %s, %d threads; ceilings: fp32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, stream %.1f GB/s\n",
           device, b.threads, b.peak_f32 * 1e-9, b.peak_bf16 * 1e-9, b.stream_rate * 1e-9);
    bench_cases_run(&b.cases);
    ax_device_close(&b.cases.dev);
    return 0;
}
