/* mpi: the collectives over MPI against their definitions, and everything that they promise of order. */
#include "support/collectives.h"
#include "mpi/world.h"

static ax_status run(ax_comm *world, char **argv)
{
    AX_CHECK(ax_comm_size(world) == atoi(argv[1]), AX_ERR_USAGE, "there are %d ranks, not %s",
             ax_comm_size(world), argv[1]);
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
int main(int argc, char **argv) { return in_world(argc, argv, run); }
