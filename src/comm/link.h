/* Collectives from device to device over a communicator's ax_link, a direct connection (NCCL; see dev.h). */
#ifndef AXONN_COMM_LINK_H
#define AXONN_COMM_LINK_H

#include "axonn/comm.h"

/* Starts a collective on buffers of the device of `stream`; comm must be connected to this device
 * (ax_comm_connect). If args->count is 0, starts nothing and leaves *work as it is. */
AX_MUST_CHECK ax_status ax_comm_link_run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args,
                                         ax_work **work);

#endif
