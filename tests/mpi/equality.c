/* mpi: training on grids of processes equals training on one rank, in fp32, within the bounds of
 * engine/test_equality.c. Eight ranks run six grids that use every axis; other numbers of ranks run every
 * grid that they can form. */
#include "support/equality.h"
#include "mpi/world.h"

enum { STEPS = 4 };

static const ax_grid_size eight[] = {{{2, 2, 2, 1, 1}}, {{1, 2, 2, 1, 2}}, {{2, 1, 2, 1, 2}},
                                     {{2, 2, 1, 1, 2}}, {{8, 1, 1, 1, 1}}, {{4, 1, 1, 1, 2}}};

/* Rank 0 has the results of the run on one rank and compares the grid's results with them. */
static ax_status run_grid(ax_comm *world, eq_run run, const eq_run *one)
{
    ax_status status = eq_on_rank(world, &run);
    if (status == AX_OK && ax_comm_rank(world) == 0)
        status = eq_check_equal(&run, one, 1e-5, 1e-4);
    eq_free(&run);
    return status;
}

static ax_status run(ax_comm *world, char **argv)
{
    AX_CHECK(ax_comm_size(world) == atoi(argv[1]), AX_ERR_USAGE, "there are %d ranks, not %s",
             ax_comm_size(world), argv[1]);
    int ranks = ax_comm_size(world), n = AX_COUNT(eight);
    ax_grid_size all[64];
    const ax_grid_size *grids = eight;
    if (ranks != 8) {
        n = eq_factorizations(ranks, all);
        grids = all;
    }
    for (int m = 0; m < EQ_MODELS; m++) {
        eq_run serial = eq_serial((eq_model)m, "cpu", AX_F32, STEPS), one = serial;
        if (ax_comm_rank(world) == 0)
            one = eq_do(serial);
        for (int g = 0; g < n; g++) {
            serial.grid = grids[g];
            serial.recompute = (g + m) % 2;
            serial.parallel.zero = g % 4;
            AX_TRY(run_grid(world, serial, &one));
        }
        eq_free(&one);
    }
    return AX_OK;
}

/* equality N: N is the expected number of ranks. */
int main(int argc, char **argv) { return in_world(argc, argv, run); }
