/* The end of every isa_*.c: the kernels, compiled for its instruction set, in one table AX_ISA_TABLE. */
#include "attention_grad_kernels.h"
#include "attention_kernels.h"
#include "gemm_kernels.h"
#include "gemv_kernels.h"

const ax_cpu_isa AX_ISA_TABLE = {
    .name = AX_ISA_NAME,
    .gemm_f32 = &gemm_f32,
    .gemm_bf16 = &gemm_bf16,
    .gemv = gemv,
    .kernel =
        {
            [AX_K_attention] = attention,
            [AX_K_attention_grad] = attention_grad,
        },
};
