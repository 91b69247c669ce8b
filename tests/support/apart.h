/* A communicator of host memory whose collectives go over a device: what it sends is copied in, and what
 * arrives is copied out when it is awaited. So the checks of any communicator are checks of links. */
#ifndef AXONN_TESTS_APART_H
#define AXONN_TESTS_APART_H

#include "axonn/comm.h"

/* Wraps `inner`, and with ax_comm_split what is split from it, each connected with `dev`; it is an error if
 * the path is not `path`, or a group of one. Destroying the wrapper disconnects `inner`, which is the
 * caller's. Collective along inner. */
AX_MUST_CHECK ax_status apart_create(ax_comm *inner, ax_device *dev, const char *path, ax_comm **out);

#endif
