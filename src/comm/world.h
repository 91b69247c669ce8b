/* The world communicator over MPI. */
#ifndef AXONN_COMM_WORLD_H
#define AXONN_COMM_WORLD_H

#include "axonn/comm.h"

/* Calls the function that was given to ax_comm_on_abort, if any. Async-signal-safe if that function is. */
void ax_comm_tell_abort(int code);
/* Calls ax_comm_tell_abort, then ends the process without exit handlers. */
void ax_comm_exit(int code) __attribute__((noreturn));

#ifdef AXONN_HAVE_MPI
/* Creates the communicator of the ranks of MPI_COMM_WORLD. AX_ERR_USAGE if the number of ranks differs from
 * the number that the launcher set. */
AX_MUST_CHECK ax_status ax_comm_mpi_create(ax_launcher launch, ax_comm **out);
#endif

#endif
