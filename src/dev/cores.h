/* The machine's physical cores as hwloc numbers them. */
#ifndef AX_DEV_CORES_H
#define AX_DEV_CORES_H

#include "axonn/dev.h"

#include <hwloc.h>

/* Cores alone; `mine` are the hardware threads that any thread of this process may run on. False if there is
 * no telling. The caller destroys and frees both. */
bool ax_topology_find(hwloc_topology_t *out, hwloc_bitmap_t *mine);
void ax_topology_forget(hwloc_topology_t topology, hwloc_bitmap_t mine);

#endif
