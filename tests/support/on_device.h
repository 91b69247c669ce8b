/* A communicator for buffers in host memory that runs its collectives between devices. A call copies what it
 * sends to the device; the wait copies the result back. So tests that were written for host memory also test
 * links between GPUs. */
#ifndef AXONN_TESTS_ON_DEVICE_H
#define AXONN_TESTS_ON_DEVICE_H

#include "axonn/comm.h"

/* Wraps `inner`, and connects it with `dev`. Communicators that ax_comm_split makes from it are wrapped and
 * connected too. It is an error if the path of a group of several ranks is not `path`. Destroying the wrapper
 * disconnects `inner`, which the caller still owns. Collective along inner. */
AX_MUST_CHECK ax_status on_device_create(ax_comm *inner, ax_device *dev, const char *path, ax_comm **out);

#endif
