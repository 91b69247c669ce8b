/* A gemm with an epilogue (an activation or its gradient) as two kernels: the matmul, then the epilogue. */
#include "axonn/dev.h"

ax_status ax_gemm_in_two(ax_stream *stream, const ax_gemm_args *args, ax_kernel_fn *const kernel[])
{
    ax_gemm_args sums = *args;
    bool forward = args->then == AX_THEN_ACTIVATION;
    sums.then = AX_THEN_STORE;
    sums.pre = NULL;
    if (forward && args->pre)
        sums.c = args->pre;
    AX_TRY(kernel[AX_K_gemm](stream, &sums));
    if (forward) {
        ax_activation_args then = {args->m * args->n, sums.c, args->c, args->dtype, args->kind};
        return kernel[AX_K_activation](stream, &then);
    }
    ax_activation_grad_args then = {args->m * args->n, args->pre, sums.c, args->c, args->dtype, args->kind};
    return kernel[AX_K_activation_grad](stream, &then);
}
