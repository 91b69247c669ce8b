/* Each isa_*.c includes this file at its end. This file compiles the kernels for the instruction set of the
 * including file, and puts them into the table AX_ISA_TABLE, and those without products of matrices into the
 * table AX_ISA_VECTORS, unless the including file shares the table of another file (AX_SHARES_VECTORS). */
#include "attention_few_kernels.h"
#include "attention_grad_kernels.h"
#include "few_kernels.h"
#include "gemm_kernels.h"
#include "gemv_kernels.h"

#ifndef AX_SHARES_VECTORS
#include "choose_kernels.h"
#include "loss_kernels.h"
#include "norm_kernels.h"
#include "pointwise_kernels.h"
#include "update_kernels.h"

const ax_cpu_vectors AX_ISA_VECTORS = {
    .norm_grad_sum = norm_grad_sum,
    .kernel =
        {
#define AX_CPU_KERNEL(kernel) [AX_K_##kernel] = kernel,
#define AX_PRODUCT(kernel)
#define AX_PLAIN(kernel)
#include "dev/cpu/kernels.def"
        },
};
#endif
#include "peak_kernels.h"

const ax_cpu_isa AX_ISA_TABLE = {
    .name = AX_ISA_NAME,
    .gemm = {[VF32] = &gemm_f32, [VBF16] = &gemm_bf16, [VF16] = &gemm_f16},
    .gemv = gemv,
    .gemm_few = gemm_few,
    .attention = attention,
    .attention_grad = attention_grad,
    .peak_f32 = peak_f32,
    .peak_bf16 = peak_bf16,
    .read = read_lines,
    .vectors = &AX_ISA_VECTORS,
};
