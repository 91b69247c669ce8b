/* Which algorithms of cuBLASLt were measured to be the fastest, by what a product looks like. They live in a
 * file that processes share, one per kind of GPU and version of the library, in the folder that environment
 * AXONN_PLANS names: a run that is resumed there takes the algorithms that it began with, so it has their
 * bits. What is wrong with the file is said in the log, at level debug, and is no error. */
#ifndef AXONN_DEV_CUDA_PLANS_H
#define AXONN_DEV_CUDA_PLANS_H

#include "axonn/base.h"

/* What a plan depends on: no padding, so that keys are compared as bytes. */
typedef struct ax_cuda_plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t dtype, c_dtype, trans_a, trans_b, accumulate, bias;
    int64_t align_a, align_b, align_c, align_bias; /* bytes, powers of two */
    int64_t then, pre, align_pre;
} ax_cuda_plan_key;

enum { AX_CUDA_PLAN_WORDS = 8 }; /* of a cublasLtMatmulAlgo_t */

/* FNV-1a, of keys and of lines of the file. */
uint64_t ax_cuda_plan_hash(const void *bytes, size_t n);

typedef struct ax_cuda_plans ax_cuda_plans;

/* The file of `kind`, a line that names GPU and library; *out is NULL if AXONN_PLANS is off, as it is where
 * it is not set. AX_ERR_USAGE if it is neither off nor on nor a folder. */
AX_MUST_CHECK ax_status ax_cuda_plans_open(const char *kind, ax_cuda_plans **out);
void ax_cuda_plans_close(ax_cuda_plans **plans);

/* The algorithm of that key, or NULL; valid until the next add. */
const uint64_t *ax_cuda_plans_find(const ax_cuda_plans *plans, const ax_cuda_plan_key *key);

/* Keeps an algorithm, and has it in the file on return. If another process wrote one of that key meanwhile,
 * that is what is found from now on, unless `instead`: what was found is of no use. */
void ax_cuda_plans_add(ax_cuda_plans *plans, const ax_cuda_plan_key *key, const uint64_t *algo, bool instead);

#endif
