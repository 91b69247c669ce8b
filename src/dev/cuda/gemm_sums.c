/* Finds out in which type cuBLASLt sums the columns of an operand beside a GEMM (epilogue BGRADB): cuBLASLt's
 * documentation does not say. Gradients of biases must be summed in fp32. */
#include "dev/cuda/gemm.h"

#include <stdlib.h>

typedef ax_cuda_plan plan;
typedef ax_cuda_matmuls matmuls;

/* The GEMM that shows the type of the sums is aᵀ·a, where a is [DEPTH, SIDE]. All elements of a are 1, except
 * those of the last row, which are multiples of 1/1024. The sums of the columns of a are exact in fp32, in
 * any order, but have too many digits for bf16 and fp16; so has the sum of the ones alone. The operands lie
 * in the last PROBE_BYTES of cuBLASLt's workspace. */
enum { SIDE = 128, DEPTH = 2056, PROBE_BYTES = 2 << 20 };
_Static_assert(SIDE *(DEPTH + SIDE) * sizeof(float) <= PROBE_BYTES, "the operands must fit their memory");

static double value(int64_t row, int64_t col) { return row < DEPTH - 1 ? 1 : (double)(1 + col % 7) / 1024; }

/* Runs the GEMM by each algorithm that the heuristic proposes and that can run. Sets *out to whether there is
 * at least one such algorithm, and all of them compute the right sums. */
static ax_status all_are_right(const matmuls *all, ax_stream *stream, plan *p, const ax_gemm_args *g,
                               bool *out)
{
    ax_cuda *cu = ax_cuda_of(stream);
    cublasLtMatmulAlgo_t candidate[AX_CUDA_CANDIDATES];
    int n;
    bool ran = false, right = true;
    AX_TRY(ax_cuda_plan_candidates(all, g, p, candidate, &n));
    for (int i = 0; i < n; i++) {
        float sums[SIDE] = {0};
        if (!ax_cuda_plan_can_run(all, p, candidate[i].data))
            continue;
        p->algo = candidate[i];
        AX_TRY(ax_cuda_copy(cu, g->col_sums, sums, sizeof sums, cudaMemcpyHostToDevice));
        AX_TRY(ax_cuda_plan_run(all, stream, p, g, false));
        AX_TRY(ax_cuda_copy(cu, sums, g->col_sums, sizeof sums, cudaMemcpyDeviceToHost));
        for (int64_t c = 0; c < SIDE; c++)
            right = right && (double)sums[c] == DEPTH - 1 + value(DEPTH - 1, c);
        ran = true;
    }
    *out = ran && right;
    return AX_OK;
}

/* Runs the GEMM on operands of `dtype`. `host`: host memory for the elements of a. */
static ax_status probe(const matmuls *all, ax_stream *stream, ax_dtype dtype, plan *p, char *host, bool *out)
{
    ax_cuda *cu = ax_cuda_of(stream);
    matmuls rest = *all;
    const int64_t bytes = SIDE * DEPTH * (int64_t)ax_dtype_size(dtype);
    rest.workspace -= PROBE_BYTES;
    char *a = (char *)cu->scratch + rest.workspace;
    ax_gemm_args g = {.m = SIDE, .n = SIDE, .k = DEPTH, .a = a, .b = a, .c = a + bytes};
    g.lda = g.ldb = g.ldc = SIDE;
    g.dtype = dtype, g.c_dtype = AX_F32, g.trans_a = true, g.col_sums = all->bias;
    for (int64_t i = 0; i < SIDE * DEPTH; i++)
        ax_store(dtype, host, i, value(i / SIDE, i % SIDE));
    AX_TRY(ax_cuda_copy(cu, a, host, (size_t)bytes, cudaMemcpyHostToDevice));
    p->key.align_a = p->key.align_b = ax_cuda_alignment(a);
    p->key.align_c = ax_cuda_alignment(g.c);
    return all_are_right(&rest, stream, p, &g, out);
}

static ax_status run_probe(const matmuls *all, ax_stream *stream, ax_dtype dtype, bool *out)
{
    plan *p;
    char *host;
    AX_TRY(ax_calloc(SIDE * DEPTH, ax_dtype_size(dtype), &host));
    ax_status status = ax_calloc(1, sizeof *p, &p);
    if (status == AX_OK) {
        status = probe(all, stream, dtype, p, host, out);
        ax_cuda_plan_destroy(p);
    }
    free(host);
    return status;
}

ax_status ax_cuda_sums_are_wide(matmuls *all, ax_stream *stream, ax_dtype dtype, bool *out)
{
    ax_cuda_sums *known = &all->sums[dtype];
    if (*known == AX_CUDA_SUMS_UNKNOWN) {
        bool wide;
        AX_TRY(run_probe(all, stream, dtype, &wide));
        *known = wide ? AX_CUDA_SUMS_WIDE : AX_CUDA_SUMS_NARROW;
        ax_log(AX_LOG_DEBUG, "cuda: cuBLASLt %s columns of %s in fp32 beside a GEMM: %s gradients of biases",
               wide ? "sums" : "cannot sum", ax_dtype_name(dtype),
               wide ? "GEMMs of weight gradients may compute" : "a kernel of its own computes");
    }
    *out = *known == AX_CUDA_SUMS_WIDE;
    return AX_OK;
}
