/* The world communicator of a process that was started with or without a launcher. */
#ifndef AXONN_COMM_WORLD_H
#define AXONN_COMM_WORLD_H

#include "axonn/comm.h"

#ifdef AXONN_HAVE_MPI
/* Creates the communicator of the ranks of MPI_COMM_WORLD. AX_ERR_USAGE if their number differs from the
 * launcher's. */
AX_MUST_CHECK ax_status ax_comm_mpi_create(ax_launcher launch, ax_comm **out);
#endif

#endif
