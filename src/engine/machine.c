/* Compares the memory of each machine, or of each GPU, with the bytes that all ranks sharing this memory need
 * together. */
#include "engine/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What each rank sends to all other ranks. `need` and `available` are in bytes. */
typedef struct member {
    uint64_t host; /* hash of the host and, on a GPU, of the GPU: equal on ranks that share the memory */
    int64_t need, available;
} member;

static ax_status gather_members(ax_comm *world, const char *device, int local_rank, size_t need, member *all)
{
    ax_work *work;
    int place;
    int64_t available = ax_device_available(device, local_rank, &place);
    member mine = {ax_rng_key(ax_host_key(), "memory", (uint64_t)place), (int64_t)need, available};
    AX_TRY(ax_all_gather(world, NULL, &mine, all, sizeof mine, AX_U8, &work));
    return ax_wait(&work);
}

ax_status ax_machine_find(ax_comm *world, const char *device, int local_rank, size_t need, ax_machine *out)
{
    int n = ax_comm_size(world), rank = ax_comm_rank(world);
    char name[256] = "";
    member *all;
    gethostname(name, sizeof name - 1);
    AX_TRY(ax_calloc((size_t)n, sizeof *all, &all));
    ax_status status = gather_members(world, device, local_rank, need, all);
    *out = (ax_machine){.available = -1};
    for (int r = 0; r < n; r++) {
        if (all[r].host != all[rank].host)
            continue;
        double available = (double)all[r].available;
        out->ranks++;
        out->need += (double)all[r].need;
        out->available =
            out->available < 0 || (available >= 0 && available < out->available) ? available : out->available;
    }
    free(all);
    if (n > 1)
        snprintf(out->of, sizeof out->of, " (%d rank%s on %.40s)", out->ranks, out->ranks == 1 ? "" : "s",
                 name);
    return status;
}

bool ax_machine_fits(const ax_machine *m) { return m->available < 0 || m->need <= m->available; }

static ax_status check_fit(const ax_machine *m, const char *what, const char *advice)
{
    char a[32], b[32];
    AX_CHECK(ax_machine_fits(m), AX_ERR_MEMORY, "%s needs %s%s but only %s are available here: %s", what,
             ax_format_bytes(m->need, a), m->of, ax_format_bytes(m->available, b), advice);
    return AX_OK;
}

ax_status ax_memory_find_pinned(const ax_grid *dry, const char *device, size_t *bytes)
{
    bool access;
    ax_axisset axes;
    *bytes = 0;
    AX_TRY(ax_device_name_host_access(device, &access));
    for (int i = 0; i < ax_grid_groups(dry) && !access; i++)
        *bytes += ax_comm_reserved_messages(ax_grid_group(dry, i, &axes));
    return AX_OK;
}

ax_status ax_memory_admit(ax_ctx *ctx, const ax_memory *memory, const char *what, const char *advice)
{
    ax_machine m;
    AX_TRY(ax_machine_find(ctx->world, ctx->dev->ops.name, ctx->local_rank, ax_memory_total(memory), &m));
    return ax_comm_agree(ctx->world, check_fit(&m, what, advice));
}
