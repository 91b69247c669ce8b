/* Sums 64-bit words in host memory over all ranks. */
#include "ckpt.h"

#include <stdlib.h>

/* Sums the two 32-bit halves of each word separately, because the all-reduce adds signed 64-bit words, which
 * must not overflow. */
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
    ax_work *work = NULL;
    ax_status status = ax_all_reduce(ctx->world, NULL, half, 2 * n, AX_I64, AX_SUM, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    for (int64_t i = 0; status == AX_OK && i < n; i++)
        v[i] = (uint64_t)half[2 * i] + ((uint64_t)half[2 * i + 1] << 32);
    free(half);
    return status;
}
