/* mpi: collectives over MPI against their definitions: results, order of sums, overlap of operations. */
#include "support/collectives.h"
#include "mpi/world.h"
#include "support/messages.h"
#include "support/on_device.h"

#include <string.h>

static ax_status check_all(ax_comm *world, bool links)
{
    static const struct {
        const char *what;
        ax_rank_fn *fn;
        bool of_links; /* false: not run over links between GPUs (NCCL), because NCCL adds in another order or
                          the test takes long */
    } checks[] = {{"collectives", check_collectives, true},
                  {"rank order", check_rank_order, false},
                  {"splits", check_splits, true},
                  {"groups", check_groups, true},
                  {"overlap", check_overlap, true},
                  {"random operations", check_random, true},
                  {"messages", check_messages, false},
                  {"a window of messages", check_message_window, false},
                  {"a ring of messages", check_message_ring, false},
                  {"messages whose data come later", check_late_data, false},
                  {"messages beside collectives", check_independent, false},
                  {"large collectives", check_large_collectives, false}};
    ax_status status = AX_OK;
    for (size_t i = 0; i < AX_COUNT(checks) && status == AX_OK; i++) {
        if (links && !checks[i].of_links)
            continue;
        status = checks[i].fn(world, NULL);
        if (status != AX_OK)
            ax_error_context("%s", checks[i].what);
    }
    return status;
}

static ax_status check_links(ax_comm *world)
{
    ax_binding binding = {.local_rank = ax_comm_rank(world)};
    ax_device *dev;
    ax_comm *over;
    AX_TRY(ax_device_open_bound("cuda", 1, &binding, &dev));
    AX_TRY(on_device_create(world, dev, "nccl", &over));
    AX_TRY(check_all(over, true));
    ax_comm_destroy(&over);
    ax_device_close(&dev);
    return AX_OK;
}

static ax_status run(ax_comm *world, char **argv)
{
    AX_CHECK(ax_comm_size(world) == atoi(argv[1]), AX_ERR_USAGE, "there are %d ranks, not %s",
             ax_comm_size(world), argv[1]);
    return strcmp(argv[2], "cuda") ? check_all(world, false) : check_links(world);
}

/* collectives N [cuda]: N is the expected number of ranks; cuda: from GPU to GPU (NCCL). */
int main(int argc, char **argv) { return in_world(argc, argv, run); }
