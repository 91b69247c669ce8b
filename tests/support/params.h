/* Parameters and their memory as tests look at them. */
#ifndef AXONN_TESTS_PARAMS_H
#define AXONN_TESTS_PARAMS_H

#include "parallel/param.h"

#include <stdlib.h>

/* Returns an array of a parameter's state (AX_STATE_…), which is on the device, as a tensor. */
static inline ax_tensor state_tensor(const ax_param *p, int array)
{
    ax_tensor t = p->rounded;
    t.dtype = p->state[array].dtype;
    t.data = p->state[array].data;
    return t;
}
static inline ax_tensor master_of(const ax_param *p) { return state_tensor(p, AX_STATE_MASTER); }

/* Gathers a whole array of a parameter's state, wherever it is, on all ranks that have it. Its memory does
 * not count as held (ax_ctx_peak). Collective as ax_tensor_collect. */
static inline ax_status state_collect(ax_ctx *ctx, const ax_param *p, int array, void *out)
{
    ax_tensor t = state_tensor(p, array);
    const ax_param_state *s = &p->state[array];
    const int64_t n = ax_tensor_count(ctx->grid, &p->rounded); /* with what a mask does not keep */
    size_t bytes = (size_t)n * ax_dtype_size(s->dtype);
    void *host, *device;
    AX_TRY(ax_calloc(1, bytes + 1, &host));
    AX_TRY(ax_device_alloc(ctx->dev, bytes + 1, &device));
    ax_status status = n ? ax_param_state_read(ctx, s, 0, n, host) : AX_OK;
    if (status == AX_OK)
        status = ax_copy_in(ctx->stream, device, host, bytes);
    t.data = device;
    if (status == AX_OK)
        status = ax_tensor_collect(ctx, &t, out);
    ax_device_free(ctx->dev, device, bytes + 1);
    free(host);
    return status;
}

/* Sets the weights of a set with pruned matrices, whose weights cannot be drawn: these are 0. */
static inline ax_status init_pruned(ax_param_set *set)
{
    ax_ctx *ctx = set->ctx;
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        const int64_t n = ax_tensor_count(ctx->grid, &p->rounded);
        static const double zeros[512];
        if (!ax_param_is_owned(p))
            continue;
        if (!p->mask)
            AX_TRY(ax_param_state_init(ctx, p));
        for (int64_t at = 0; p->mask && at < n; at += 512)
            AX_TRY(ax_param_state_write(ctx, &p->state[AX_STATE_MASTER], at, ax_min(512, n - at), zeros));
    }
    return ax_param_set_refresh(set);
}

/* Returns true if the device holds the planned bytes of each class, and has not held more at any time, and if
 * collectives between nodes have the planned buffers. */
static inline bool held_as_planned(const ax_ctx *ctx, const ax_memory *planned)
{
    bool same = ax_ctx_peak(ctx) == ax_memory_total(planned) &&
                ax_grid_buffers(ctx->grid) == planned->bytes[AX_MEMORY_COLLECTIVES];
    for (int i = 0; i < AX_MEMORY_CLASSES; i++)
        same = same && (ax_memory_where((ax_memory_class)i) != AX_MEMORY_ON_DEVICE ||
                        ctx->held.bytes[i] == planned->bytes[i]);
    return same;
}

/* Returns true if a set has the bytes of weights, gradients and optimizer state that were planned. */
static inline bool has_planned_memory(const ax_param_set *set, const ax_memory *planned)
{
    static const ax_memory_class classes[] = {AX_MEMORY_WEIGHTS,   AX_MEMORY_COPIES, AX_MEMORY_GRADIENTS,
                                              AX_MEMORY_OPTIMIZER, AX_MEMORY_RING,   AX_MEMORY_FILE,
                                              AX_MEMORY_MASKS};
    for (size_t k = 0; k < AX_COUNT(classes); k++) {
        int i = classes[k];
        if (set->memory.bytes[i] != planned->bytes[i])
            return false;
    }
    return true;
}

#endif
