/* Gives the ranks of a world the runtime settings of rank 0. */
#include "axonn/runtime.h"
#include "axonn/comm.h"

#include <stdlib.h>
#include <string.h>

/* Replaces this rank's value of a runtime setting by `first`, the value of rank 0. */
static ax_status take_value(ax_runtime_id id, const char *first)
{
    const char *mine, *source = ax_runtime_source(id);
    if (ax_runtime_get(id, &mine) == AX_OK && !strcmp(mine, first))
        return AX_OK;
    ax_status status = ax_runtime_set(id, first);
    return status != AX_ERR_USAGE
               ? status
               : ax_fail(status,
                         "%s is \"%s\" here (%s) and \"%s\" on rank 0, and this process already uses the "
                         "value given here: start all ranks with the same value",
                         ax_runtime_options[id].key, mine, source, first);
}

ax_status ax_comm_share_runtime(ax_comm *world)
{
    ax_status status = AX_OK;
    bool root = ax_comm_rank(world) == 0;
    if (ax_comm_size(world) == 1)
        return AX_OK;
    for (int id = 0; id < AX_RUNTIME_COUNT; id++) {
        const char *value;
        char *first = NULL; /* stays NULL if rank 0 fails */
        if (root && status == AX_OK)
            status = ax_runtime_get((ax_runtime_id)id, &value);
        if (root && status == AX_OK)
            status = ax_strdup(value, &first);
        ax_status shared = ax_comm_share_text(world, 0, &first);
        if (shared == AX_OK && !root && first && status == AX_OK)
            status = take_value((ax_runtime_id)id, first);
        free(first);
        AX_TRY(shared);
    }
    return ax_comm_agree(world, status);
}
