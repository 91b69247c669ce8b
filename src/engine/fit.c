/* Compares what each device, each GPU and each machine has with the bytes that all ranks sharing it need
 * together. */
#include "engine/fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What each rank sends to all other ranks. */
typedef struct member {
    uint64_t key[AX_FIT_PARTS];                          /* equal on ranks that share the memory */
    int64_t need[AX_FIT_PARTS], available[AX_FIT_PARTS]; /* in bytes */
} member;

/* Describes what this rank needs and finds. A dry run plans for any machine: it finds only the limit of the
 * user. Sets *has_gpu to whether device memory is not host memory. */
static ax_status describe(const ax_comm *world, const char *device, int local_rank, const ax_memory *need,
                          member *out, bool *has_gpu)
{
    int place;
    size_t limit;
    AX_TRY(ax_ctx_find_limit(&limit));
    const uint64_t own = (uint64_t)ax_comm_rank(world) + 1; /* no rank that does not exist has key 0 */
    const bool here = !ax_comm_is_dry(world);
    int64_t available = ax_device_available(device, local_rank, &place),
            of_host = place ? ax_memory_available() : available, on_device = (int64_t)ax_memory_total(need),
            on_host = (int64_t)ax_memory_on(need, AX_MEMORY_ON_HOST);
    *has_gpu = place;
    *out = (member){
        .key = {own, ax_rng_key(ax_host_key(), "memory", (uint64_t)place), ax_host_key()},
        .need = {on_device, *has_gpu ? on_device : 0, on_host + (*has_gpu ? 0 : on_device)},
        .available = {limit ? (int64_t)limit : -1, *has_gpu && here ? available : -1, here ? of_host : -1}};
    return AX_OK;
}

/* Adds up what the ranks that share a memory with this rank need of it. */
static void sum_part(const member *all, int n, int rank, ax_fit_part part, ax_fit *out)
{
    out->memory[part].available = -1;
    for (int r = 0; r < n; r++) {
        if (all[r].key[part] != all[rank].key[part])
            continue;
        double available = (double)all[r].available[part], *least = &out->memory[part].available;
        out->memory[part].ranks++;
        out->memory[part].need += (double)all[r].need[part];
        *least = *least < 0 || (available >= 0 && available < *least) ? available : *least;
    }
}

static double share_needed(const ax_fit *fit, ax_fit_part part)
{
    double need = fit->memory[part].need, available = fit->memory[part].available;
    return available < 0 || need <= 0 ? 0 : need / available;
}

ax_status ax_fit_find(ax_comm *world, const char *device, int local_rank, const ax_memory *need, ax_fit *out)
{
    int n = ax_comm_size(world), rank = ax_comm_rank(world);
    member mine = {.key = {0}}, *all;
    ax_work *work;
    *out = (ax_fit){.tightest = AX_FIT_HOST, .world = n};
    AX_TRY(ax_comm_agree(world, describe(world, device, local_rank, need, &mine, &out->has_gpu)));
    AX_TRY(ax_calloc((size_t)n, sizeof *all, &all));
    ax_status status = ax_all_gather(world, NULL, &mine, all, sizeof mine, AX_U8, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    for (int part = 0; part < AX_FIT_PARTS && status == AX_OK; part++) {
        sum_part(all, n, rank, (ax_fit_part)part, out);
        if (share_needed(out, (ax_fit_part)part) > share_needed(out, out->tightest))
            out->tightest = (ax_fit_part)part;
    }
    free(all);
    return status;
}

bool ax_fit_holds(const ax_fit *fit)
{
    return fit->memory[fit->tightest].available < 0 ||
           fit->memory[fit->tightest].need <= fit->memory[fit->tightest].available;
}

double ax_fit_need(const ax_fit *fit) { return fit->memory[fit->tightest].need; }

/* Prints which ranks share the tightest memory, such as " (2 ranks on node7)"; "" if the world has one
 * rank. */
static void print_ranks(const ax_fit *fit, char out[64])
{
    char name[256] = "";
    int ranks = fit->memory[fit->tightest].ranks;
    gethostname(name, sizeof name - 1);
    out[0] = 0;
    if (fit->world > 1)
        snprintf(out, 64, " (%d rank%s on %.40s)", ranks, ranks == 1 ? "" : "s", name);
}

ax_status ax_fit_check(const ax_fit *fit, const char *what, const char *advice)
{
    char need[32], available[32], ranks[64];
    const char *of = !fit->has_gpu                 ? ""
                     : fit->tightest == AX_FIT_GPU ? " of device memory"
                                                   : " of host memory";
    print_ranks(fit, ranks);
    ax_format_bytes(fit->memory[fit->tightest].need, need);
    ax_format_bytes(fit->memory[fit->tightest].available, available);
    AX_CHECK(ax_fit_holds(fit) || fit->tightest != AX_FIT_LIMIT, AX_ERR_MEMORY,
             "%s %s (%.0f bytes) of device memory but runtime.device_memory allows only %s (%.0f bytes): %s",
             what, need, fit->memory[fit->tightest].need, available, fit->memory[fit->tightest].available,
             advice);
    AX_CHECK(ax_fit_holds(fit), AX_ERR_MEMORY, "%s %s%s%s but only %s are available here: %s", what, need, of,
             ranks, available, advice);
    return AX_OK;
}

size_t ax_memory_pinned(const ax_grid *dry)
{
    ax_axisset axes;
    size_t bytes = 0;
    for (int i = 0; i < ax_grid_groups(dry); i++)
        bytes += ax_comm_reserved_messages(ax_grid_group(dry, i, &axes));
    return bytes;
}

ax_status ax_memory_admit(ax_ctx *ctx, const ax_memory *memory, const ax_grid_use *used, const char *what,
                          const char *advice)
{
    ax_fit m;
    ax_memory more = *memory;
    more.bytes[AX_MEMORY_COLLECTIVES] = ax_grid_lacking_buffers(ctx->grid, used);
    AX_TRY(ax_fit_find(ctx->world, ctx->dev->ops.name, ctx->local_rank, &more, &m));
    return ax_comm_agree(ctx->world, ax_fit_check(&m, what, advice));
}
