/* Carriers: pinned host buffers for messages of devices whose memory the host cannot access directly
 * (message.c). The device allocates them, so they are freed before the device is closed. */
#ifndef AXONN_COMM_MESSAGE_H
#define AXONN_COMM_MESSAGE_H

#include "axonn/comm.h"

/* Frees all carriers of `comm`; aborts the world first if a message is still in flight and the world has not
 * failed. */
void ax_comm_free_carriers(ax_comm *comm);

#endif
