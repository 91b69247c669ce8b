/* What gemm.c, which keeps plans and does products by them, shares with gemm_plan.c, which makes plans. */
#ifndef AXONN_DEV_CUDA_GEMM_H
#define AXONN_DEV_CUDA_GEMM_H

#include "dev/cuda/cuda.h"
#include "dev/cuda/plans.h"

#include <cublasLt.h>

/* The end of scratch is not the library's: a bias goes there that is to have the type of c. */
enum { AX_CUDA_BIAS_BYTES = 256 << 10, AX_CUDA_WORKSPACE = AX_CUDA_SCRATCH - AX_CUDA_BIAS_BYTES };

typedef struct ax_cuda_plan {
    ax_cuda_plan_key key;
    bool bias_apart; /* the library has no product that adds this bias: a kernel does */
    bool own;        /* it has no such product at all: ax_cuda_product does it */
    bool in_two;     /* what is to become of the sums is done by a kernel of its own */
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
} ax_cuda_plan;

/* An open-addressed table of plans, never more than half full. */
typedef struct ax_cuda_products {
    cublasLtHandle_t library;
    char *bias;              /* AX_CUDA_BIAS_BYTES of scratch */
    ax_cuda_plans *measured; /* NULL: nothing is timed */
    cudaEvent_t begin, end;
    int64_t room, used; /* room: a power of two */
    ax_cuda_plan **slot;
} ax_cuda_products;

static inline ax_status ax_cublaslt_check(cublasStatus_t status, const char *what)
{
    AX_CHECK(status == CUBLAS_STATUS_SUCCESS, AX_ERR_INTERNAL, "cuBLASLt: %s: %s", what,
             cublasLtGetStatusString(status));
    return AX_OK;
}
#define AX_LT(call) AX_TRY(ax_cublaslt_check((call), #call))

/* What tensors are aligned to at least counts, so that a shape has one plan. */
static inline int64_t ax_cuda_alignment(const void *address)
{
    enum { MOST = 64 };
    uintptr_t low = (uintptr_t)address & -(uintptr_t)address;
    return !low || low > MOST ? MOST : (int64_t)low;
}

/* Makes the plan of p->key for a product like `g`, on whose memory it may be timed. */
ax_status ax_cuda_plan_make(const ax_cuda_products *all, ax_stream *stream, const ax_gemm_args *g,
                            ax_cuda_plan *p);
void ax_cuda_plan_destroy(ax_cuda_plan *p);

/* The product by its plan, which is neither `own` nor `in_two`; a bias that is apart is not added. */
ax_status ax_cuda_plan_run(const ax_cuda_products *all, ax_stream *stream, const ax_cuda_plan *p,
                           const ax_gemm_args *g, bool accumulate);

/* Whether the library may have GELU, where that is timed. */
bool ax_cuda_takes_gelu(const ax_cuda_products *all, const ax_gemm_args *g);

#endif
