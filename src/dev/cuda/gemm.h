/* Shared by gemm.c, which keeps and runs plans of matmuls, gemm_plan.c, which makes plans, and gemm_sums.c. A
 * plan is what cuBLASLt needs to run the matmuls of one shape: descriptors and an algorithm. */
#ifndef AXONN_DEV_CUDA_GEMM_H
#define AXONN_DEV_CUDA_GEMM_H

#include "dev/cuda/cuda.h"
#include "dev/cuda/plans.h"

#include <cublasLt.h>

/* The last AX_CUDA_BIAS_BYTES of scratch are for a bias that is converted to the type of c, or for sums of
 * columns that are then added to earlier ones. All bytes before them are cuBLASLt's workspace. */
enum { AX_CUDA_BIAS_BYTES = 256 << 10 };

/* How many algorithms cuBLASLt's heuristic is asked for. */
enum { AX_CUDA_CANDIDATES = 16 };

typedef struct ax_cuda_plan {
    ax_cuda_plan_key key;
    bool separate_bias;  /* a separate kernel adds the bias, because cuBLASLt cannot add this bias */
    bool use_own_kernel; /* ax_cuda_plain_gemm computes this GEMM, because cuBLASLt does not support it */
    bool unfused;        /* epilogue or col_sums are computed by a kernel of their own (ax_gemm_in_two) */
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
} ax_cuda_plan;

/* Whether the sums of columns that cuBLASLt computes beside a GEMM are added up in the accumulation dtype
 * (WIDE) or not (NARROW); UNKNOWN until ax_cuda_sums_are_wide has found out. */
typedef enum ax_cuda_sums { AX_CUDA_SUMS_UNKNOWN, AX_CUDA_SUMS_WIDE, AX_CUDA_SUMS_NARROW } ax_cuda_sums;

/* The state of gemm.c. Its plans are in a hash table with open addressing, which is never more than half
 * full. */
typedef struct ax_cuda_matmuls {
    cublasLtHandle_t library;
    char kind[512];   /* names GPU, library and the form of keys: plans are valid for one kind */
    size_t workspace; /* bytes of cuBLASLt's workspace, the first bytes of scratch */
    char *bias;       /* the last AX_CUDA_BIAS_BYTES of scratch, for a converted bias or sums of columns */
    ax_cuda_sums sums[AX_DTYPE_COUNT]; /* indexed by the dtype of the operands */
    ax_cuda_plans *measured; /* algorithms that were chosen by timing (plans.h); NULL: none are timed */
    cudaEvent_t begin, end;
    int64_t room, used; /* room: number of slots, a power of two; used: number of plans */
    ax_cuda_plan **slot;
} ax_cuda_matmuls;

static inline ax_status ax_cublaslt_check(cublasStatus_t status, const char *what)
{
    AX_CHECK(status == CUBLAS_STATUS_SUCCESS, AX_ERR_INTERNAL, "cuBLASLt failed in %s: %s", what,
             cublasLtGetStatusString(status));
    return AX_OK;
}
#define AX_LT(call) AX_TRY(ax_cublaslt_check((call), #call))

/* Returns the alignment of an address in bytes, but at most MOST. Most tensors are aligned to at least MOST
 * bytes, so that most shapes have only one plan, not several that differ in alignment. */
static inline int64_t ax_cuda_alignment(const void *address)
{
    enum { MOST = 64 };
    uintptr_t low = (uintptr_t)address & -(uintptr_t)address;
    return !low || low > MOST ? MOST : (int64_t)low;
}

/* Makes the plan for p->key. May time algorithms on the operands of `g`, the call that needs the plan. */
ax_status ax_cuda_plan_make(ax_cuda_matmuls *all, ax_stream *stream, const ax_gemm_args *g, ax_cuda_plan *p);
void ax_cuda_plan_destroy(ax_cuda_plan *p);

/* Describes the GEMM to cuBLASLt, its epilogue or sums included, and asks cuBLASLt's heuristic for
 * algorithms. *n is set to their number; 0 if cuBLASLt does not support the GEMM. Of p->key only the
 * alignments must be set. */
ax_status ax_cuda_plan_candidates(const ax_cuda_matmuls *all, const ax_gemm_args *g, ax_cuda_plan *p,
                                  cublasLtMatmulAlgo_t candidate[AX_CUDA_CANDIDATES], int *n);
/* Returns true if the algorithm can run the matmul that the plan describes. */
bool ax_cuda_plan_can_run(const ax_cuda_matmuls *all, const ax_cuda_plan *p, const uint64_t *algo);

/* Runs the matmul of a plan by cuBLASLt. p->use_own_kernel and p->unfused must be false. If p->separate_bias
 * is true, the bias is not added. */
ax_status ax_cuda_plan_run(const ax_cuda_matmuls *all, ax_stream *stream, const ax_cuda_plan *p,
                           const ax_gemm_args *g, bool accumulate);

/* Returns true if cuBLASLt may compute this call's epilogue or col_sums together with the matmul: if
 * algorithms are timed (runtime.plans), and cuBLASLt supports the epilogue or sums. Whether it does is
 * decided by the plan (ax_cuda_plan.unfused). */
bool ax_cuda_may_fuse(const ax_cuda_matmuls *all, const ax_gemm_args *g);

/* Sets *out to whether cuBLASLt sums the columns of matrices of `dtype` in fp32. The first call for a dtype
 * finds out by a small GEMM. */
ax_status ax_cuda_sums_are_wide(ax_cuda_matmuls *all, ax_stream *stream, ax_dtype dtype, bool *out);

#endif
