/* The end of every isa_*.c: the kernels, compiled for its instruction set, in one table AX_ISA_TABLE. */
#include "attention_grad_kernels.h"
#include "attention_kernels.h"
#include "gemm_kernels.h"
#include "gemv_kernels.h"
#include "loss_kernels.h"
#include "norm_kernels.h"
#include "peak_kernels.h"
#include "pointwise_kernels.h"
#include "update_kernels.h"

const ax_cpu_isa AX_ISA_TABLE = {
    .name = AX_ISA_NAME,
    .gemm = {[VF32] = &gemm_f32, [VBF16] = &gemm_bf16, [VF16] = &gemm_f16},
    .gemv = gemv,
    .peak_f32 = peak_f32,
    .peak_bf16 = peak_bf16,
    .read = read_lines,
    .norm_grad_cols = norm_grad_cols,
    .kernel =
        {
            [AX_K_attention] = attention,
            [AX_K_attention_grad] = attention_grad,
            [AX_K_bias_add] = bias_add,
            [AX_K_col_sum] = col_sum,
            [AX_K_norm] = norm,
            [AX_K_norm_stats] = norm_stats,
            [AX_K_norm_apply] = norm_apply,
            [AX_K_norm_grad] = norm_grad,
            [AX_K_norm_grad_stats] = norm_grad_stats,
            [AX_K_norm_grad_apply] = norm_grad_apply,
            [AX_K_embedding] = embedding,
            [AX_K_embedding_grad] = embedding_grad,
            [AX_K_gelu] = gelu,
            [AX_K_gelu_grad] = gelu_grad,
            [AX_K_add] = add,
            [AX_K_dropout] = dropout,
            [AX_K_ce_max] = ce_max,
            [AX_K_ce_sum] = ce_sum,
            [AX_K_ce_grad] = ce_grad,
            [AX_K_sumsq] = sumsq,
            [AX_K_scale] = scale,
            [AX_K_convert] = convert,
            [AX_K_init_normal] = init_normal,
            [AX_K_adamw] = adamw,
            [AX_K_sgd] = sgd,
        },
};
