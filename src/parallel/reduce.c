/* The rule "reduce": a statistic over a split dim is all-reduced along the axes that split this dim. */
#include "axonn/parallel.h"

ax_status ax_reduce_axes(ax_ctx *ctx, ax_axisset axes, void *data, int64_t count, ax_dtype dtype,
                         ax_reduce_op op)
{
    if (!ax_grid_effective(ctx->grid, axes))
        return AX_OK;
    ax_comm *comm;
    ax_work *work;
    AX_TRY(ax_grid_comm(ctx->grid, axes, &comm));
    AX_TRY(ax_all_reduce(comm, ctx->stream, data, count, dtype, op, &work));
    return ax_wait(&work);
}
