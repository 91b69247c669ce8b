/* Collectives that go from device to device: a communicator's end of a link (dev.h), where it has one. */
#ifndef AXONN_COMM_LINK_H
#define AXONN_COMM_LINK_H

#include "axonn/comm.h"

/* Starts a collective on buffers of stream's device, with which comm is connected. */
AX_MUST_CHECK ax_status ax_comm_link_run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args,
                                         ax_work **work);

#endif
