/* Finds the machine's physical cores and caches by hwloc. */
#ifndef AX_DEV_CORES_H
#define AX_DEV_CORES_H

#include "axonn/dev.h"

#include <hwloc.h>

/* Loads hwloc's topology of the machine, with cores and caches only, and sets *mine to the hardware threads
 * that this process may run on. Returns false if one of the two is unknown; even then the caller releases
 * both with ax_topology_forget. */
bool ax_topology_find(hwloc_topology_t *out, hwloc_bitmap_t *mine);
void ax_topology_forget(hwloc_topology_t topology, hwloc_bitmap_t mine);

#endif
