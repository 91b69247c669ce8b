/* The main function of a test on several ranks. */
#ifndef AXONN_TESTS_MPI_WORLD_H
#define AXONN_TESTS_MPI_WORLD_H

#include "axonn/comm.h"

#include <stdio.h>
#include <stdlib.h>

/* Creates the world, calls `run`, and destroys the world; if `run` fails, aborts the job with its message.
 * Missing arguments are "0". */
static inline int in_world(int argc, char **argv, ax_status (*run)(ax_comm *world, char **argv))
{
    static char none[] = "0";
    char *words[] = {argv[0], argc > 1 ? argv[1] : none, argc > 2 ? argv[2] : none};
    ax_comm *world;
    if (ax_comm_world_create(&world) != AX_OK) {
        fprintf(stderr, "%s\n", ax_error_message());
        return 1;
    }
    if (run(world, words) != AX_OK)
        ax_comm_abort(world, AX_ERR_INTERNAL, ax_error_message());
    ax_comm_destroy(&world);
    return 0;
}

#endif
