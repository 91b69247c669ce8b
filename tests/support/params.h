/* Parameters and their memory as tests look at them. */
#ifndef AXONN_TESTS_PARAMS_H
#define AXONN_TESTS_PARAMS_H

#include "axonn/parallel.h"

/* Returns an array of a parameter's state (AX_STATE_…), which is on the device, as a tensor. */
static inline ax_tensor state_tensor(const ax_param *p, int array)
{
    ax_tensor t = p->rounded;
    t.dtype = p->state[array].dtype;
    t.data = p->state[array].data;
    return t;
}
static inline ax_tensor master_of(const ax_param *p) { return state_tensor(p, AX_STATE_MASTER); }

/* Returns true if a set has the bytes of weights, gradients and optimizer state that were planned. */
static inline bool has_planned_memory(const ax_param_set *set, const ax_memory *planned)
{
    for (int i = AX_MEMORY_WEIGHTS; i <= AX_MEMORY_OPTIMIZER; i++)
        if (set->memory.bytes[i] != planned->bytes[i])
            return false;
    return true;
}

#endif
