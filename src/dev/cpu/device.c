/* Opening and closing a cpu device, and measuring its peak rates. */
#include "dev/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>

size_t ax_cpu_workspace(int threads)
{
    return (size_t)threads * AX_CPU_SCRATCH + AX_CPU_PARTIALS * sizeof(double);
}

static void log_setup(const ax_device *dev)
{
    char cores[256];
    const ax_cpu *cpu = dev->impl;
    const ax_binding *b = dev->binding;
    ax_log(AX_LOG_DEBUG, "%s: kernels for %s", dev->ops.name, cpu->isa->name);
    if (cpu->places)
        ax_log(AX_LOG_DEBUG, "%s: %d thread(s), each on a core of its own: %s", dev->ops.name, dev->threads,
               ax_binding_print(b, cores, sizeof cores));
    else if (b)
        ax_log(AX_LOG_DEBUG, "%s: %d thread(s), not bound to cores: %s", dev->ops.name, dev->threads,
               b->n ? "the system refuses" : b->why_not);
}

ax_status ax_cpu_open(ax_device *dev)
{
    const ax_cpu_isa *isa;
    ax_cpu *cpu;
    AX_TRY(ax_cpu_isa_choose(&isa));
    AX_TRY(ax_calloc(1, sizeof *cpu, &cpu));
    cpu->isa = isa;
    cpu->threads = dev->threads;
    bool alone = false;
    if (dev->binding && dev->binding->n == dev->threads) {
        cpu->places = ax_cpu_places_take(dev->binding);
        alone = cpu->places && dev->binding->alone;
    }
    ax_status status = ax_region_create(ax_cpu_workspace(dev->threads), &cpu->scratch);
    if (status == AX_OK)
        status = ax_cpu_pool_create(dev->threads, cpu->scratch.base, cpu->places, alone, &cpu->pool);
    if (status != AX_OK) {
        ax_region_destroy(&cpu->scratch);
        ax_cpu_places_leave(&cpu->places);
        free(cpu);
        return status;
    }
    dev->impl = cpu;
    log_setup(dev);
    return AX_OK;
}

void ax_cpu_close(ax_device *dev)
{
    ax_cpu *cpu = dev->impl;
    ax_cpu_pool_destroy(&cpu->pool);
    ax_region_destroy(&cpu->scratch);
    ax_cpu_places_leave(&cpu->places);
    free(cpu);
    dev->impl = NULL;
}

/* ---- peak flops ---------------------------------------------------------------------------------- */

typedef struct peak_job {
    ax_cpu_peak_fn *fn;
    double flops; /* floating-point operations of one part of the job */
} peak_job;

static void peak_body(void *arg, int part, int parts, char *scratch)
{
    enum { ROUNDS = 1 << 18 };
    peak_job *j = arg;
    (void)parts;
    float *sink = (float *)(void *)scratch;
    *sink = 0;
    double flops = j->fn(ROUNDS, sink);
    if (part == 0)
        j->flops = flops;
}

double ax_cpu_peak(ax_device *dev, ax_dtype compute, double seconds)
{
    enum { SAMPLES = 32 };
    const ax_cpu *cpu = dev->impl;
    peak_job j = {.fn = compute == AX_BF16 ? cpu->isa->peak_bf16 : cpu->isa->peak_f32};
    double best = 0;
    int samples = 0; /* a sample takes about half a millisecond in fp32: short enough that even on a busy
                        machine some samples run with all threads at once */
    for (double begin = ax_now(), start = begin; samples < SAMPLES || start - begin < seconds; samples++) {
        ax_cpu_parallel(cpu, cpu->threads, peak_body, &j);
        double now = ax_now(), rate = j.flops * cpu->threads / (now - start);
        best = rate > best ? rate : best;
        start = now;
    }
    return best;
}

/* ---- read bandwidth ------------------------------------------------------------------------------ */

/* The job of reading the first `bytes` bytes of the spans, as if these followed one another in memory. Each
 * part reads a range of these bytes. */
typedef struct read_job {
    ax_cpu_read_fn *fn;
    int way;
    const ax_span *span;
    int64_t n, bytes;
} read_job;

static void read_body(void *arg, int part, int parts, char *scratch)
{
    const read_job *j = arg;
    volatile uint64_t *sink = (uint64_t *)(void *)scratch;
    int64_t lines = ax_ceil_div(j->bytes, AX_CPU_LINE), lo = lines * part / parts * AX_CPU_LINE,
            hi = ax_min(lines * (part + 1) / parts * AX_CPU_LINE, j->bytes), before = 0;
    for (int64_t i = 0; i < j->n && before < hi; before += (int64_t)j->span[i++].bytes) {
        int64_t from = ax_max(lo - before, 0), to = ax_min(hi - before, (int64_t)j->span[i].bytes);
        if (from < to)
            *sink = j->fn(j->way, (const char *)j->span[i].at + from, to - from);
    }
}

/* Reads the spans (ranges of memory) once and returns the seconds. The pass is cut into as many parts as
 * gemm.c cuts a matrix-vector multiplication with a large matrix. */
static double read_once(const ax_cpu *cpu, read_job *j)
{
    enum { EACH = 8 };
    double begin = ax_now();
    ax_cpu_parallel(cpu, cpu->threads == 1 ? 1 : EACH * cpu->threads, read_body, j);
    return ax_now() - begin;
}

/* Measures each way of reading (ax_cpu_read_fn) five times on the first 256 MiB of the spans; the ways take
 * turns. Returns the way with the smallest median time. */
static int find_way(const ax_cpu *cpu, const read_job *all)
{
    enum { TURNS = 5, MOST = 256 << 20 };
    double seconds[AX_CPU_READ_WAYS][TURNS], best = INFINITY;
    read_job j = *all;
    int way = 0;
    j.bytes = ax_min(j.bytes, MOST);
    for (int turn = 0; turn < TURNS; turn++)
        for (j.way = 0; j.way < AX_CPU_READ_WAYS; j.way++)
            seconds[j.way][turn] = read_once(cpu, &j);
    for (int w = 0; w < AX_CPU_READ_WAYS; w++) {
        double median = ax_spread_of(seconds[w], TURNS).median;
        if (median < best)
            best = median, way = w;
    }
    return way;
}

double ax_cpu_read(ax_device *dev, const ax_span *span, int64_t n, double seconds)
{
    enum { LEAST = 5, MOST = 1000 };
    ax_cpu *cpu = dev->impl;
    read_job j = {.fn = cpu->isa->read, .span = span, .n = n};
    double times[MOST];
    int64_t passes = 0;
    for (int64_t i = 0; i < n; i++)
        j.bytes += (int64_t)span[i].bytes;
    if (!j.bytes)
        return 0;
    if (!cpu->way_found)
        cpu->way = find_way(cpu, &j);
    cpu->way_found = true;
    j.way = cpu->way;
    for (double begin = ax_now(); passes < LEAST || (passes < MOST && ax_now() - begin < seconds); passes++)
        times[passes] = read_once(cpu, &j);
    return (double)j.bytes / ax_spread_of(times, passes).median;
}
