/* The memory of a device in the results of benchmarks. */
#include "bench/bench.h"

#include <stdio.h>

bench_memory bench_memory_of(const ax_ctx *ctx, const ax_memory *planned)
{
    return (bench_memory){.planned = *planned,
                          .allocated = ax_ctx_peak(ctx),
                          .limit = ctx->most,
                          .held = ax_device_held(ctx->dev)};
}

void bench_memory_print(const bench_memory *m)
{
    char planned[32], allocated[32], held[32], limit[32];
    printf("%s planned, %s allocated, %s taken at most",
           ax_format_bytes((double)ax_memory_total(&m->planned), planned),
           ax_format_bytes((double)m->allocated, allocated), ax_format_bytes((double)m->held, held));
    if (m->limit)
        printf("; %s allowed (runtime.device_memory)", ax_format_bytes((double)m->limit, limit));
    printf("\n");
}
