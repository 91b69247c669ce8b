/* The `cpu` backend's table, and for each kernel how its work is cut into items and taken by threads. What is
 * not here, and all F64, is the reference's. */
#include "dev/cpu/cpu.h"

typedef struct job {
    const ax_cpu *cpu;
    ax_cpu_range_fn *fn;
    const void *args;
    int64_t items, unit,
        next; /* `next`: the first item nobody has taken, where threads take them one by one */
} job;

/* Equal shares, cut at multiples of `unit`. */
static void body_shares(void *arg, int thread, int threads)
{
    const job *j = arg;
    int64_t units = ax_ceil_div(j->items, j->unit);
    int64_t lo = units * thread / threads * j->unit, hi = units * (thread + 1) / threads * j->unit;
    if (lo < hi)
        j->fn(j->args, lo, ax_min(hi, j->items), ax_cpu_scratch(j->cpu, thread));
}

/* Items of unequal length: whoever is free takes the next. */
static void body_queue(void *arg, int thread, int threads)
{
    job *j = arg;
    (void)threads;
    for (;;) {
        int64_t item = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (item >= j->items)
            return;
        j->fn(j->args, item, item + 1, ax_cpu_scratch(j->cpu, thread));
    }
}

enum { SERIAL_BELOW = 16384 }; /* elements: below it, waking a thread costs more than it saves */

__attribute__((unused)) static ax_status run_shares(ax_stream *stream, ax_kernel kernel, const void *args,
                                                    int64_t items, int64_t unit, double elements)
{
    const ax_cpu *cpu = ax_cpu_of(stream);
    job j = {.cpu = cpu, .fn = cpu->isa->kernel[kernel], .args = args, .items = items, .unit = unit};
    ax_cpu_parallel(elements < SERIAL_BELOW ? 1 : cpu->threads, body_shares, &j);
    return AX_OK;
}

static ax_status run_queue(ax_stream *stream, ax_kernel kernel, const void *args, int64_t items,
                           double elements)
{
    const ax_cpu *cpu = ax_cpu_of(stream);
    job j = {.cpu = cpu, .fn = cpu->isa->kernel[kernel], .args = args, .items = items};
    ax_cpu_parallel(elements < SERIAL_BELOW ? 1 : cpu->threads, body_queue, &j);
    return AX_OK;
}

static ax_status run_ref(ax_stream *stream, ax_kernel kernel, const void *args)
{
    return ax_backend_ref.kernel[kernel](stream, args);
}

static ax_status attention(ax_stream *stream, const void *args)
{
    const ax_attention_args *a = args;
    if (a->dtype == AX_F64 || a->head_dim > AX_CPU_MAX_HEAD_DIM)
        return run_ref(stream, AX_K_attention, args);
    int64_t blocks = a->q_len > AX_CPU_GEMV_ROWS ? ax_ceil_div(a->q_len, AX_CPU_ATTENTION_QUERIES) : 1;
    double work = (double)a->batch * (double)(a->heads * a->q_len) * (double)(a->kv_len * a->head_dim) / 16;
    return run_queue(stream, AX_K_attention, args, a->q_len ? a->batch * a->heads * blocks : 0, work);
}

static ax_status attention_grad(ax_stream *stream, const void *args)
{
    const ax_attention_grad_args *a = args;
    if (a->dtype == AX_F64 || a->head_dim > AX_CPU_MAX_HEAD_DIM)
        return run_ref(stream, AX_K_attention_grad, args);
    double work = (double)a->batch * (double)(a->heads * a->q_len) * (double)(a->q_len * a->head_dim) / 16;
    return run_queue(stream, AX_K_attention_grad, args, a->batch * a->kv_heads, work);
}

const ax_device_ops ax_backend_cpu = {
    .name = "cpu",
    .help = "SIMD (AVX-512, AVX2 or portable) and threads on the host's processor",
    .delegate = "ref",
    .open = ax_cpu_open,
    .close = ax_cpu_close,
    .workspace = ax_cpu_workspace,
    .kernel =
        {
            [AX_K_gemm] = ax_cpu_gemm_run,
            [AX_K_attention] = attention,
            [AX_K_attention_grad] = attention_grad,
        },
};
