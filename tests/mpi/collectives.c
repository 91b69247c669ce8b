/* mpi: the collectives over MPI against their definitions, and everything that they promise of order. */
#include "support/collectives.h"

#include <stdio.h>
#include <string.h>

static ax_status run(ax_comm *world)
{
    static const struct {
        const char *what;
        ax_rank_fn *fn;
    } checks[] = {{"collectives", check_collectives},
                  {"rank order", check_rank_order},
                  {"splits", check_splits},
                  {"overlap", check_overlap},
                  {"random operations", check_random},
                  {"large collectives", check_large_collectives}};
    ax_status status = AX_OK;
    for (size_t i = 0; i < AX_COUNT(checks) && status == AX_OK; i++) {
        status = checks[i].fn(world, NULL);
        if (status != AX_OK)
            ax_error_context("%s", checks[i].what);
    }
    return status;
}

/* collectives N: N is the number of ranks that must be there. */
int main(int argc, char **argv)
{
    ax_comm *world;
    if (ax_comm_world_create(&world) != AX_OK) {
        fprintf(stderr, "%s\n", ax_error_message());
        return 1;
    }
    int wanted = 0;
    if (argc != 2 || sscanf(argv[1], "%d", &wanted) != 1 || ax_comm_size(world) != wanted)
        ax_comm_abort(world, AX_ERR_USAGE, "another number of ranks than was asked for");
    if (run(world) != AX_OK)
        ax_comm_abort(world, AX_ERR_INTERNAL, ax_error_message());
    ax_comm_destroy(&world);
    return 0;
}
