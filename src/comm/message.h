/* Carriers: pinned host buffers for messages of devices whose memory the host cannot access directly
 * (message.c). They are memory of the device, and are freed before the device is closed. */
#ifndef AXONN_COMM_MESSAGE_H
#define AXONN_COMM_MESSAGE_H

#include "axonn/comm.h"

void ax_comm_free_carriers(ax_comm *comm);

#endif
