/* The context of one rank: its device, with the bytes that it holds, its compute stream and its grid. */
#include "grid/threads.h"

#include "axonn/runtime.h"

#include <stdlib.h>

const ax_parallel ax_parallel_default = {.overlap = {.oar = true, .ors = true, .oag = true, .dtd = true}};

ax_status ax_ctx_create(ax_comm *world, ax_grid_size size, const char *device, int threads, ax_dtype compute,
                        uint64_t seed, ax_ctx **out)
{
    ax_threads mine = {.count = threads, .binding.why_not = "the program sets the number of threads"};
    *out = NULL;
    AX_TRY(threads ? ax_threads_local_rank(world, &mine.binding.local_rank)
                   : ax_threads_share(world, 0, &mine));
    return ax_ctx_create_with(world, size, device, &mine, compute, seed, out);
}

/* ---- memory of the device ------------------------------------------------------------------------ */

ax_status ax_ctx_find_limit(size_t *bytes)
{
    const char *text;
    *bytes = 0;
    AX_TRY(ax_runtime_get(AX_RUNTIME_DEVICE_MEMORY, &text));
    *bytes = strtoull(text, NULL, 10);
    return AX_OK;
}

/* Fails if the device would hold more than it may with `more`. */
static ax_status check_limit(const ax_ctx *ctx, const ax_memory *more)
{
    char asked[32], held[32], parts[512], what[512];
    const size_t bytes = ax_memory_total(more), now = ax_ctx_held(ctx),
                 left = ctx->most > now ? ctx->most - now : 0;
    AX_CHECK(!ctx->most || bytes <= left, AX_ERR_MEMORY,
             "%s (%s) are refused: the device holds %s%s%s%s of the %zu bytes that runtime.device_memory "
             "allows; set it higher, or choose settings that need less memory",
             ax_format_bytes((double)bytes, asked), ax_memory_print(more, AX_MEMORY_ON_DEVICE, what),
             ax_format_bytes((double)now, held), now ? " (" : "",
             ax_memory_print(&ctx->held, AX_MEMORY_ON_DEVICE, parts), now ? ")" : "", ctx->most);
    return AX_OK;
}

static void count(ax_ctx *ctx, const ax_memory *more)
{
    ax_memory_add(&ctx->held, more);
    ctx->peak = ax_ctx_held(ctx) > ctx->peak ? ax_ctx_held(ctx) : ctx->peak;
}

/* Counts the scratch memory that the device allocates when it is opened. */
static ax_status count_scratch(ax_ctx *ctx, const char *device, int threads)
{
    ax_memory scratch = {{0}};
    AX_TRY(ax_device_workspace(device, threads, &scratch.bytes[AX_MEMORY_WORKSPACE]));
    AX_TRY(check_limit(ctx, &scratch));
    count(ctx, &scratch);
    return AX_OK;
}

ax_status ax_ctx_alloc_block(ax_ctx *ctx, const ax_memory *of, void **out)
{
    const size_t bytes = ax_memory_total(of);
    *out = NULL;
    AX_TRY(check_limit(ctx, of));
    AX_TRY(ax_device_uses_host_memory(ctx->dev) ? ax_comm_alloc(ctx->world, bytes, out)
                                                : ax_device_alloc(ctx->dev, bytes, out));
    count(ctx, of);
    return AX_OK;
}

ax_status ax_ctx_alloc(ax_ctx *ctx, ax_memory_class of, size_t bytes, void **out)
{
    ax_memory all = {{0}};
    all.bytes[of] = bytes;
    return ax_ctx_alloc_block(ctx, &all, out);
}

void ax_ctx_free_block(ax_ctx *ctx, const ax_memory *of, void *memory)
{
    if (ax_device_uses_host_memory(ctx->dev))
        ax_comm_free(ctx->world, memory, ax_memory_total(of));
    else
        ax_device_free(ctx->dev, memory, ax_memory_total(of));
    for (int i = 0; i < AX_MEMORY_CLASSES && memory; i++)
        ctx->held.bytes[i] -= of->bytes[i];
}

void ax_ctx_free(ax_ctx *ctx, ax_memory_class of, void *memory, size_t bytes)
{
    ax_memory all = {{0}};
    all.bytes[of] = bytes;
    ax_ctx_free_block(ctx, &all, memory);
}

size_t ax_ctx_held(const ax_ctx *ctx) { return ax_memory_total(&ctx->held); }
size_t ax_ctx_peak(const ax_ctx *ctx) { return ctx->peak; }

/* ---- creation ------------------------------------------------------------------------------------ */

/* Fills in a context that has only a world and a limit, and opens its device. */
static ax_status open_ctx(ax_ctx *ctx, const char *device, const ax_threads *threads, ax_dtype compute,
                          uint64_t seed)
{
    ctx->local_rank = threads->binding.local_rank;
    ctx->compute = compute;
    ctx->accum = ax_dtype_accum(compute);
    ctx->seed = seed;
    ctx->parallel = ax_parallel_default;
    AX_TRY(ax_calloc(1, sizeof *ctx->stream, &ctx->stream));
    AX_TRY(count_scratch(ctx, device, threads->count));
    AX_TRY(ax_device_open_bound(device, threads->count, &threads->binding, &ctx->dev));
    AX_CHECK(!ctx->dev->ops.imaginary || ax_comm_is_dry(ctx->world), AX_ERR_USAGE,
             "device %s has no memory that ranks could exchange: create its context with ax_ctx_create_dry",
             ctx->dev->ops.name);
    ctx->stream->dev = ctx->dev;
    return AX_OK;
}

/* Lays the grid of a context. `status` is the status of open_ctx; after an error destroys the context. */
static ax_status lay_grid(ax_status status, ax_grid_size size, ax_ctx **ctx)
{
    if (status == AX_OK)
        status = ax_grid_create((*ctx)->world, size, &(*ctx)->grid);
    if (status == AX_OK)
        status = ax_grid_connect((*ctx)->grid, (*ctx)->dev);
    if (status != AX_OK)
        ax_ctx_destroy(ctx);
    return status;
}

ax_status ax_ctx_create_with(ax_comm *world, ax_grid_size size, const char *device, const ax_threads *threads,
                             ax_dtype compute, uint64_t seed, ax_ctx **out)
{
    *out = NULL;
    AX_CHECK(compute <= AX_F16, AX_ERR_USAGE, "a context cannot compute in %s; choose f64, f32, bf16 or f16",
             ax_dtype_name(compute));
    AX_TRY(ax_calloc(1, sizeof **out, out));
    (*out)->world = world;
    ax_status status = ax_ctx_find_limit(&(*out)->most);
    if (status == AX_OK)
        status = open_ctx(*out, device, threads, compute, seed);
    return lay_grid(ax_comm_agree(world, status), size, out); /* all ranks create the grid, or none does */
}

ax_status ax_ctx_create_dry_over(ax_comm *world, ax_grid_size size, ax_dtype compute,
                                 const ax_parallel *parallel, ax_ctx **out)
{
    static const ax_threads one = {.count = 1};
    AX_TRY(ax_calloc(1, sizeof **out, out));
    (*out)->world = world;
    AX_TRY(lay_grid(open_ctx(*out, "dry", &one, compute, 0), size, out));
    if (parallel)
        (*out)->parallel = *parallel;
    return AX_OK;
}

ax_status ax_ctx_create_dry(int rank, int ranks, ax_grid_size size, ax_dtype compute,
                            const ax_parallel *parallel, ax_ctx **out)
{
    ax_comm *world;
    *out = NULL;
    AX_TRY(ax_comm_dry_create(rank, ranks, &world));
    ax_status status = ax_ctx_create_dry_over(world, size, compute, parallel, out);
    if (status == AX_OK)
        (*out)->owns_world = true;
    else
        ax_comm_destroy(&world);
    return status;
}

void ax_ctx_destroy(ax_ctx **ctx)
{
    if (!*ctx)
        return;
    ax_grid_destroy(&(*ctx)->grid);
    free((*ctx)->stream);
    ax_device_close(&(*ctx)->dev);
    if ((*ctx)->owns_world)
        ax_comm_destroy(&(*ctx)->world);
    free(*ctx);
    *ctx = NULL;
}
