/* Kernels in terms of kernel gemm. A gemm that has an epilogue (an activation or its gradient) or sums of
 * columns as separate kernels: first the matmul, then the epilogue or the sums. A grouped GEMM as one gemm
 * for each group. */
#include "axonn/dev.h"

static ax_status end_in_activation(ax_stream *stream, const ax_gemm_args *args, const ax_gemm_args *matmul,
                                   ax_kernel_fn *const kernel[])
{
    if (args->epilogue == AX_EPILOGUE_ACTIVATION) {
        ax_activation_args second = {args->m * args->n, matmul->c, args->c, args->dtype, args->kind};
        return kernel[AX_K_activation](stream, &second);
    }
    ax_activation_grad_args second = {args->m * args->n, args->preact, matmul->c,
                                      args->c,           args->dtype,  args->kind};
    return kernel[AX_K_activation_grad](stream, &second);
}

static ax_status sum_columns(ax_stream *stream, const ax_gemm_args *args, ax_kernel_fn *const kernel[])
{
    ax_fill_args clear = {.n = args->m, .y = args->col_sums, .dtype = ax_dtype_accum(args->dtype)};
    ax_col_sum_args sums = {args->k, args->m, args->lda, args->a, args->col_sums, args->dtype};
    if (!args->accumulate_sums)
        AX_TRY(kernel[AX_K_fill](stream, &clear));
    return kernel[AX_K_col_sum](stream, &sums);
}

ax_status ax_gemm_in_two(ax_stream *stream, const ax_gemm_args *args, ax_kernel_fn *const kernel[])
{
    ax_gemm_args matmul = *args;
    matmul.epilogue = AX_EPILOGUE_NONE;
    matmul.preact = matmul.col_sums = NULL;
    matmul.accumulate_sums = false;
    if (args->epilogue == AX_EPILOGUE_ACTIVATION && args->preact)
        matmul.c = args->preact;
    AX_TRY(kernel[AX_K_gemm](stream, &matmul));
    if (args->epilogue)
        AX_TRY(end_in_activation(stream, args, &matmul, kernel));
    return args->col_sums ? sum_columns(stream, args, kernel) : AX_OK;
}

static const void *at(const void *data, ax_dtype dtype, int64_t element)
{
    return (const char *)data + element * (int64_t)ax_dtype_size(dtype);
}

ax_gemm_args ax_gemm_of_group(const ax_gemm_grouped_args *a, int64_t g)
{
    const int64_t first = a->bounds ? a->bounds[g] : g * a->each,
                  rows = a->bounds ? a->bounds[g + 1] - first : a->each;
    const void *rows_of_a = at(a->a, a->dtype, first * a->lda);
    ax_gemm_args one = {.m = rows,
                        .n = a->n,
                        .k = a->k,
                        .a = rows_of_a,
                        .b = at(a->b, a->dtype, g * a->stride),
                        .c = (void *)at(a->c, a->c_dtype, first * a->ldc),
                        .lda = a->lda,
                        .ldb = a->ldb,
                        .ldc = a->ldc,
                        .dtype = a->dtype,
                        .c_dtype = a->c_dtype,
                        .trans_a = a->trans_a,
                        .trans_b = a->trans_b,
                        .accumulate = a->accumulate};
    if (a->trans_a) {
        one.m = a->m;
        one.k = rows;
        one.b = at(a->b, a->dtype, first * a->ldb);
        one.c = (void *)at(a->c, a->c_dtype, g * a->stride);
    }
    return one;
}
