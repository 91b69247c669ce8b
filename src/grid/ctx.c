/* The context of one rank: its device, compute stream and grid. */
#include "grid/threads.h"

#include <stdlib.h>

const ax_parallel ax_parallel_default = {.overlap = {.oar = true, .ors = true, .oag = true}};

ax_status ax_ctx_create(ax_comm *world, ax_grid_size size, const char *device, int threads, ax_dtype compute,
                        uint64_t seed, ax_ctx **out)
{
    ax_threads mine = {.count = threads, .binding.why_not = "the program sets the number of threads"};
    *out = NULL;
    AX_TRY(threads ? ax_threads_local_rank(world, &mine.binding.local_rank)
                   : ax_threads_share(world, 0, &mine));
    return ax_ctx_create_with(world, size, device, &mine, compute, seed, out);
}

ax_status ax_ctx_create_with(ax_comm *world, ax_grid_size size, const char *device, const ax_threads *threads,
                             ax_dtype compute, uint64_t seed, ax_ctx **out)
{
    *out = NULL;
    AX_CHECK(compute <= AX_F16, AX_ERR_USAGE, "a context cannot compute in %s; choose f64, f32, bf16 or f16",
             ax_dtype_name(compute));
    ax_ctx *ctx;
    AX_TRY(ax_calloc(1, sizeof *ctx, &ctx));
    ctx->world = world;
    ctx->local_rank = threads->binding.local_rank;
    ctx->compute = compute;
    ctx->accum = ax_dtype_accum(compute);
    ctx->seed = seed;
    ctx->parallel = ax_parallel_default;
    ax_status status = ax_calloc(1, sizeof *ctx->stream, &ctx->stream);
    if (status == AX_OK)
        status = ax_device_open_bound(device, threads->count, &threads->binding, &ctx->dev);
    status = ax_comm_agree(world, status); /* all ranks create the grid, or none does */
    if (status == AX_OK)
        status = ax_grid_create(world, size, &ctx->grid);
    if (status == AX_OK)
        status = ax_grid_connect(ctx->grid, ctx->dev);
    if (status != AX_OK) {
        ax_ctx_destroy(&ctx);
        return status;
    }
    ctx->stream->dev = ctx->dev;
    *out = ctx;
    return AX_OK;
}

void ax_ctx_destroy(ax_ctx **ctx)
{
    if (!*ctx)
        return;
    ax_grid_destroy(&(*ctx)->grid);
    free((*ctx)->stream);
    ax_device_close(&(*ctx)->dev);
    free(*ctx);
    *ctx = NULL;
}

ax_status ax_ctx_alloc(ax_ctx *ctx, size_t bytes, void **out)
{
    return ax_device_uses_host_memory(ctx->dev) ? ax_comm_alloc(ctx->world, bytes, out)
                                                : ax_device_alloc(ctx->dev, bytes, out);
}

void ax_ctx_free(ax_ctx *ctx, void *memory, size_t bytes)
{
    if (ax_device_uses_host_memory(ctx->dev))
        ax_comm_free(ctx->world, memory, bytes);
    else
        ax_device_free(ctx->dev, memory, bytes);
}
