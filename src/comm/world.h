/* The world communicator over MPI, and the end of a process of an aborted job. */
#ifndef AXONN_COMM_WORLD_H
#define AXONN_COMM_WORLD_H

#include "axonn/comm.h"

/* Calls the function that was given to ax_comm_on_abort, if any, with the exit code `code`. Async-signal-safe
 * if that function is. */
void ax_comm_tell_abort(int code);
/* Calls ax_comm_tell_abort, then ends the process with exit code `code`, without exit handlers. */
void ax_comm_exit(int code) __attribute__((noreturn));

#ifdef AXONN_HAVE_MPI
/* Creates the communicator of the ranks of MPI_COMM_WORLD. `launch` is the result of ax_launcher_find.
 * AX_ERR_USAGE if MPI finds another number of ranks than the launcher has set, or if MPI is finalized or
 * cannot be used by threads as needed. */
AX_MUST_CHECK ax_status ax_comm_mpi_create(ax_launcher launch, ax_comm **out);
#endif

#endif
