/* The world of a process, however it was started. */
#ifndef AXONN_COMM_WORLD_H
#define AXONN_COMM_WORLD_H

#include "axonn/comm.h"

#ifdef AXONN_HAVE_MPI
/* The ranks of MPI_COMM_WORLD. AX_ERR_USAGE where MPI finds other ranks than the launcher speaks of. */
AX_MUST_CHECK ax_status ax_comm_mpi_create(ax_launcher launch, ax_comm **out);
#endif

#endif
