/* What plans and their execution share. */
#ifndef AXONN_DIST_PLAN_H
#define AXONN_DIST_PLAN_H

#include "axonn/dist.h"

/* The shape of a step along dim d: a tensor is [lead, extent of d, inner] locally, and each rank's part
 * travels as [lead, chunk, inner]. */
typedef struct ax_wire {
    int64_t lead, inner, chunk, count;
} ax_wire;

/* `fine` is the tensor in the layout that is more split on `d`: after a scatter, before a gather. */
ax_wire ax_wire_make(const ax_grid *grid, const ax_tensor *fine, int d);

#endif
