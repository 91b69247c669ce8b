/* mpi: whole training steps over MPI, where operations in flight really overlap with computation, on grids of
 * four ranks that use every axis and every stage of ZeRO. The results equal the serial run's within bounds,
 * and overlap changes no bit. */
#include "support/steps.h"
#include "mpi/world.h"

#include <string.h>

static const ax_parallel together = {.overlap = {.oar = true, .ors = true, .oag = true}};

static ax_status serial_run(setup *serial)
{
    ax_comm *self;
    AX_TRY(ax_comm_self_create(&self));
    ax_status status = steps_run(self, serial);
    ax_comm_destroy(&self);
    return status;
}

static ax_status on_grid(ax_comm *world, setup s, const setup *serial)
{
    setup plain = s;
    char text[160];
    plain.parallel.overlap.oar = plain.parallel.overlap.ors = plain.parallel.overlap.oag = false;
    AX_TRY(steps_run(world, &s));
    AX_TRY(steps_run(world, &plain));
    AX_TRY(steps_check(&s, serial));
    AX_CHECK(!memcmp(s.loss, plain.loss, sizeof s.loss) &&
                 !memcmp(s.weights, plain.weights, (size_t)s.n_weights * sizeof *s.weights),
             AX_ERR_INTERNAL, "%s: overlap changes bits", steps_describe(&s, text));
    free(s.weights);
    free(plain.weights);
    return AX_OK;
}

static ax_status run(ax_comm *world, char **argv)
{
    (void)argv;
    AX_CHECK(ax_comm_size(world) == 4, AX_ERR_USAGE, "this test has four ranks");
    static const ax_grid_size grids[] = {{{1, 1, 2, 1, 2}}, {{1, 1, 4, 1, 1}}, {{1, 1, 1, 1, 4}},
                                         {{2, 1, 2, 1, 1}}, {{1, 2, 1, 1, 2}}, {{2, 2, 1, 1, 1}}};
    setup serial = {
        .shape = &odd, .grid = {{1, 1, 1, 1, 1}}, .parallel = together, .micro_batch = 3, .compute = AX_F64};
    AX_TRY(serial_run(&serial));
    for (size_t i = 0; i < AX_COUNT(grids); i++)
        for (int zero = (int)i % 4, last = i ? zero : 3; zero <= last; zero++) { /* grid 0: all four stages */
            setup s = serial;
            s.weights = NULL;
            s.n_weights = 0;
            s.grid = grids[i];
            s.parallel.zero = zero;
            s.parallel.weight_cache = zero % 2 ? 6000 : 0;
            s.recompute = zero / 2;
            s.parallel.keep_results = i % 2;
            AX_TRY(on_grid(world, s, &serial));
        }
    free(serial.weights);
    return AX_OK;
}

int main(int argc, char **argv) { return in_world(argc, argv, run); }
