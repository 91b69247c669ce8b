/* The fastest measured cuBLASLt algorithm for each shape of GEMM. The algorithms are stored in files that
 * processes share, one file per model of GPU and version of cuBLASLt, in the directory that setting
 * runtime.plans names. So a resumed run uses the same algorithms as before, and has bitwise the same results.
 * Problems with the file are logged at level debug and are not errors. */
#ifndef AXONN_DEV_CUDA_PLANS_H
#define AXONN_DEV_CUDA_PLANS_H

#include "axonn/base.h"

/* The key of a plan: everything that its algorithm depends on. The struct has no padding, because keys are
 * compared as bytes. */
typedef struct ax_cuda_plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t dtype, c_dtype, trans_a, trans_b, accumulate, bias;
    int64_t align_a, align_b, align_c, align_bias; /* alignments in bytes, powers of two */
    int64_t epilogue, preact, align_preact;
} ax_cuda_plan_key;

enum { AX_CUDA_PLAN_WORDS = 8 }; /* 64-bit words in cublasLtMatmulAlgo_t::data */

/* FNV-1a hash, of keys and of lines of the file. */
uint64_t ax_cuda_plan_hash(const void *bytes, size_t n);

typedef struct ax_cuda_plans ax_cuda_plans;

/* Opens the file of `kind`, a text that names GPU and library. *out is NULL if runtime.plans is off.
 * AX_ERR_USAGE if runtime.plans is neither off nor on nor a directory. */
AX_MUST_CHECK ax_status ax_cuda_plans_open(const char *kind, ax_cuda_plans **out);
void ax_cuda_plans_close(ax_cuda_plans **plans);

/* Returns the algorithm for that key, or NULL if there is none. The result is valid until the next
 * ax_cuda_plans_add. */
const uint64_t *ax_cuda_plans_find(const ax_cuda_plans *plans, const ax_cuda_plan_key *key);

/* Adds an algorithm and writes the file. If another process has meanwhile added an algorithm for the same
 * key, `algo` is dropped, unless `instead` is true. `instead` is for replacing an algorithm that does not
 * work. */
void ax_cuda_plans_add(ax_cuda_plans *plans, const ax_cuda_plan_key *key, const uint64_t *algo, bool instead);

#endif
