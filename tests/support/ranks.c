/* Rank threads in tests. */
#include "support/ranks.h"

#include <setjmp.h>
#include <stdio.h>

#include <cmocka.h>

void assert_ranks(int size, ax_rank_fn *fn, const void *arg)
{
    if (ax_comm_threads_run(size, fn, (void *)arg) != AX_OK)
        fail_msg("%d ranks: %s", size, ax_error_message());
}

ax_comm_traffic traffic_along(const ax_grid *grid, ax_axisset axes)
{
    ax_axisset set;
    for (int i = 0; i < ax_grid_groups(grid); i++) {
        const ax_comm *comm = ax_grid_group(grid, i, &set);
        if (set == ax_grid_effective(grid, axes))
            return ax_comm_traffic_get(comm);
    }
    return (ax_comm_traffic){0};
}

size_t reserved_messages(const ax_ctx *ctx)
{
    size_t bytes = 0;
    ax_axisset axes;
    for (int i = 0; i < ax_grid_groups(ctx->grid) && !ax_device_host_access(ctx->dev); i++)
        bytes += ax_comm_reserved_messages(ax_grid_group(ctx->grid, i, &axes));
    return bytes;
}

int grid_ranks(ax_grid_size size) { return (int)ax_grid_size_ranks(size); }

int random_below(uint64_t *state, int n)
{
    uint32_t word[4];
    ax_philox(0, 0, (*state)++, word);
    return (int)(word[0] % (uint32_t)n);
}
