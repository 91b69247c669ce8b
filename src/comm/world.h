/* The world communicator over MPI. */
#ifndef AXONN_COMM_WORLD_H
#define AXONN_COMM_WORLD_H

#include "axonn/comm.h"

#ifdef AXONN_HAVE_MPI
/* Creates the communicator of the ranks of MPI_COMM_WORLD. AX_ERR_USAGE if the number of ranks differs from
 * the number that the launcher set. */
AX_MUST_CHECK ax_status ax_comm_mpi_create(ax_launcher launch, ax_comm **out);
#endif

#endif
