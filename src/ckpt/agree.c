/* Ranks that succeed or fail together: every phase of a checkpoint ends with an agreement, so that no rank
 * waits for one that has given up, and so that a failed phase is undone by the rank that began it. */
#include "ckpt.h"

#include <stdlib.h>
#include <string.h>

/* Reduces host values over the world, by way of device memory, where collectives work. */
static ax_status all_reduce(ax_ctx *ctx, void *host, int64_t n, ax_dtype dtype, ax_reduce_op op)
{
    size_t bytes = (size_t)n * ax_dtype_size(dtype);
    void *memory;
    AX_TRY(ax_device_alloc(ctx->dev, bytes, &memory));
    ax_work *work = NULL;
    ax_status status = ax_copy_in(ctx->stream, memory, host, bytes);
    if (status == AX_OK)
        status = ax_all_reduce(ctx->world, ctx->stream, memory, n, dtype, op, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    if (status == AX_OK)
        status = ax_copy_out(ctx->stream, host, memory, bytes);
    ax_device_free(ctx->dev, memory, bytes);
    return status;
}

ax_status ckpt_agree(ax_ctx *ctx, ax_status mine)
{
    if (ax_comm_size(ctx->world) == 1)
        return mine;
    int32_t worst = (int32_t)mine;
    char message[512]; /* ours: the collective may record another */
    strncpy(message, ax_error_message(), sizeof message - 1);
    message[sizeof message - 1] = 0;
    AX_TRY(all_reduce(ctx, &worst, 1, AX_I32, AX_MAX));
    if (mine != AX_OK)
        return ax_fail(mine, "%s", message);
    return worst ? ax_fail((ax_status)worst, "another rank failed (%s): see its message",
                           ax_status_name((ax_status)worst))
                 : AX_OK;
}

/* The halves are summed apart: a sum of signed words must not overflow. */
ax_status ckpt_sum(ax_ctx *ctx, uint64_t *v, int64_t n)
{
    if (ax_comm_size(ctx->world) == 1 || n == 0)
        return AX_OK;
    int64_t *half;
    AX_TRY(ax_calloc((size_t)n, 2 * sizeof *half, &half));
    for (int64_t i = 0; i < n; i++) {
        half[2 * i] = (int64_t)(v[i] & UINT32_MAX);
        half[2 * i + 1] = (int64_t)(v[i] >> 32);
    }
    ax_status status = all_reduce(ctx, half, 2 * n, AX_I64, AX_SUM);
    for (int64_t i = 0; status == AX_OK && i < n; i++)
        v[i] = (uint64_t)half[2 * i] + ((uint64_t)half[2 * i + 1] << 32);
    free(half);
    return status;
}
