/* The plans of GEMMs: which of cuBLASLt's algorithms computes each shape of GEMM, chosen by timing, and the
 * files that keep these choices.
 *
 * A file may have plans for several models of GPU and several versions of cuBLASLt and axonn, and processes
 * share it. Plans that were timed are kept in a file that all runs share, the cache: in the directory that
 * setting runtime.plans names, by default in $XDG_CACHE_HOME/axonn or ~/.cache/axonn. A run also keeps the
 * plans that it uses in a file in the directory of the run, and prefers the plans of this file. So a resumed
 * run uses the same algorithms as before, and has bitwise the same results. Problems with files are logged
 * and are not errors. */
#ifndef AXONN_DEV_CUDA_PLANS_H
#define AXONN_DEV_CUDA_PLANS_H

#include "axonn/base.h"

/* The key of a plan: everything that its algorithm depends on, except the GPU and the library. The struct has
 * no padding, because keys are hashed and compared as bytes. */
typedef struct ax_cuda_plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t dtype, c_dtype, trans_a, trans_b, accumulate;
    int64_t bias; /* 0: none; 1: the GEMM adds a bias; 2: it computes col_sums, the gradient of a bias */
    int64_t align_a, align_b, align_c, align_bias; /* alignments in bytes, powers of two */
    int64_t epilogue, preact, align_preact;
} ax_cuda_plan_key;

enum { AX_CUDA_PLAN_WORDS = 8 }; /* 64-bit words in cublasLtMatmulAlgo_t::data */

/* Returns the FNV-1a hash of n bytes, for keys and for lines of a file. */
uint64_t ax_cuda_plan_hash(const void *bytes, size_t n);

typedef struct ax_cuda_plans ax_cuda_plans;

/* Reads the plans of `kind`, a text that names GPU and library. If `dir` is not NULL, it is the directory of
 * a run, which gets a copy of each plan that is used; it first gets the plans of directory `from`, if `from`
 * is not NULL. `spent`: seconds that timing has already taken (ax_cuda_plans_spent). *out is NULL if
 * runtime.plans is off, or if there is no directory to keep plans in. AX_ERR_USAGE if runtime.plans is
 * neither off nor on nor a path with a '/'. *out must be closed even after an error. */
AX_MUST_CHECK ax_status ax_cuda_plans_open(const char *kind, const char *dir, const char *from, double spent,
                                           ax_cuda_plans **out);
void ax_cuda_plans_close(ax_cuda_plans **plans);

/* Returns the algorithm for this key, or NULL if none is known. If only the cache has the algorithm, also
 * adds it to the run's file. The result is valid until the next call of this function or of
 * ax_cuda_plans_add. */
const uint64_t *ax_cuda_plans_find(ax_cuda_plans *plans, const ax_cuda_plan_key *key);

/* Adds an algorithm to the run's file, and also to the cache's file if the algorithm was `timed`. If another
 * process has meanwhile added an algorithm for the same key, `algo` is dropped, unless `instead` is true.
 * `instead` is for replacing an algorithm that does not work. */
void ax_cuda_plans_add(ax_cuda_plans *plans, const ax_cuda_plan_key *key, const uint64_t *algo, bool timed,
                       bool instead);

/* Limit the time that timing takes to runtime.plan_seconds in all. The caller calls ax_cuda_plans_begin
 * before and ax_cuda_plans_end after it times the algorithms of a GEMM. In between, ax_cuda_plans_late
 * returns whether the time is used up. Pairs of begin and end may be nested. */
void ax_cuda_plans_begin(ax_cuda_plans *plans);
bool ax_cuda_plans_late(const ax_cuda_plans *plans);
void ax_cuda_plans_end(ax_cuda_plans *plans);
/* Returns the seconds that timing has taken so far; 0 if `plans` is NULL. */
double ax_cuda_plans_spent(const ax_cuda_plans *plans);

#endif
