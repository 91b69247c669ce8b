/* A gemm with an epilogue (an activation or its gradient) as two kernels: the matmul, then the epilogue. */
#include "axonn/dev.h"

ax_status ax_gemm_in_two(ax_stream *stream, const ax_gemm_args *args, ax_kernel_fn *const kernel[])
{
    ax_gemm_args sums = *args;
    bool forward = args->epilogue == AX_EPILOGUE_ACTIVATION;
    sums.epilogue = AX_EPILOGUE_NONE;
    sums.preact = NULL;
    if (forward && args->preact)
        sums.c = args->preact;
    AX_TRY(kernel[AX_K_gemm](stream, &sums));
    if (forward) {
        ax_activation_args second = {args->m * args->n, sums.c, args->c, args->dtype, args->kind};
        return kernel[AX_K_activation](stream, &second);
    }
    ax_activation_grad_args second = {args->m * args->n, args->preact, sums.c,
                                      args->c,           args->dtype,  args->kind};
    return kernel[AX_K_activation_grad](stream, &second);
}
