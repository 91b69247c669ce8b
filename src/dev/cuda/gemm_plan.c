/* Makes plans of matmuls: describes a GEMM to cuBLASLt, and chooses one of cuBLASLt's algorithms: the fastest
 * of several candidates, which cuBLASLt's heuristic proposes. If algorithms are not timed, the first
 * candidate is taken. They are not timed if runtime.plans is off, or if the time for timing is used up
 * (plans.h). */
#include "dev/cuda/gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef ax_cuda_plan plan;
typedef ax_cuda_matmuls matmuls;

/* Stored in the file of plans in place of an algorithm if matmul and epilogue, or matmul and sums of columns,
 * are faster as separate kernels. */
static const uint64_t unfused[AX_CUDA_PLAN_WORDS] = {UINT64_MAX};

void ax_cuda_plan_destroy(plan *p)
{
    if (p->how)
        cublasLtMatmulDescDestroy(p->how);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        cublasLtMatrixLayoutDestroy(p->c);
    free(p);
}

/* ---- descriptors --------------------------------------------------------------------------------- */

static cudaDataType_t data_type(ax_dtype dtype)
{
    return dtype == AX_F64    ? CUDA_R_64F
           : dtype == AX_F32  ? CUDA_R_32F
           : dtype == AX_BF16 ? CUDA_R_16BF
                              : CUDA_R_16F;
}

/* Describes a row-major matrix of `rows` x `cols` to cuBLASLt, as a column-major one of `cols` x `rows`. */
static ax_status layout(cublasLtMatrixLayout_t *out, ax_dtype dtype, int64_t rows, int64_t cols, int64_t ld)
{
    AX_LT(cublasLtMatrixLayoutCreate(out, data_type(dtype), (uint64_t)cols, (uint64_t)rows, ld));
    return AX_OK;
}

static ax_status set_attribute(cublasLtMatmulDesc_t how, cublasLtMatmulDescAttributes_t what,
                               const void *value, size_t size)
{
    AX_LT(cublasLtMatmulDescSetAttribute(how, what, value, size));
    return AX_OK;
}

/* Describes the matmul without epilogue to cuBLASLt: makes p->how, in place of an earlier one. fp32 is
 * computed in fp32, never in tf32. */
static ax_status describe_sums(plan *p, const ax_gemm_args *g)
{
    bool wide = g->dtype == AX_F64;
    cublasOperation_t first = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (p->how)
        AX_LT(cublasLtMatmulDescDestroy(p->how));
    p->how = NULL;
    AX_LT(cublasLtMatmulDescCreate(&p->how, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                   wide ? CUDA_R_64F : CUDA_R_32F));
    AX_TRY(set_attribute(p->how, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    return set_attribute(p->how, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
}

static ax_status describe(plan *p, const ax_gemm_args *g)
{
    AX_TRY(describe_sums(p, g));
    AX_TRY(layout(&p->a, g->dtype, g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k, g->lda));
    AX_TRY(layout(&p->b, g->dtype, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n, g->ldb));
    return layout(&p->c, g->c_dtype, g->m, g->n, g->ldc);
}

/* Returns cuBLASLt's name of the call's epilogue. The epilogue BGRADB computes col_sums: it sums over k the
 * second operand that cuBLASLt is given, which is a. */
static cublasLtEpilogue_t epilogue_of(const ax_gemm_args *g)
{
    static const cublasLtEpilogue_t gelu[2][2] = {
        {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS},
        {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS}};
    switch ((ax_epilogue)g->epilogue) {
    case AX_EPILOGUE_ACTIVATION:
        return gelu[g->preact != NULL][g->bias != NULL];
    case AX_EPILOGUE_ACTIVATION_GRAD:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return g->col_sums ? CUBLASLT_EPILOGUE_BGRADB
               : g->bias   ? CUBLASLT_EPILOGUE_BIAS
                           : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* Adds the epilogue to the description p->how. cuBLASLt adds one value of the bias to each of its rows, which
 * are the columns of c. The bias, or the sums of columns of a, have the type of c. */
static ax_status describe_epilogue(plan *p, const ax_gemm_args *g)
{
    cublasLtEpilogue_t with = epilogue_of(g);
    cudaDataType_t type = data_type(g->c_dtype);
    AX_TRY(set_attribute(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &with, sizeof with));
    if (g->bias || g->col_sums)
        AX_TRY(set_attribute(p->how, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
    return g->preact ? set_attribute(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->ldc, sizeof g->ldc)
                     : AX_OK;
}

/* Sets the constraints of the heuristic: the size of the workspace, the alignments, and the type of the
 * partial sums of split-k algorithms. This type must be the compute type, which is the accumulation dtype. */
static ax_status set_preferences(const matmuls *all, cublasLtMatmulPreference_t preference,
                                 const ax_cuda_plan_key *key)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        uint32_t value;
    } words[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_b},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_a},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_c},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->align_c},
                 {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}};
    AX_LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &all->workspace, sizeof all->workspace));
    for (size_t i = 0; i < AX_COUNT(words); i++)
        AX_LT(cublasLtMatmulPreferenceSetAttribute(preference, words[i].what, &words[i].value,
                                                   sizeof words[i].value));
    return AX_OK;
}

/* Returns true if the bias must be converted to the type of c, as cuBLASLt requires, and fits the buffer for
 * that. */
static bool converts_bias(const ax_gemm_args *g)
{
    return g->bias && g->c_dtype != ax_dtype_accum(g->dtype) &&
           g->n * (int64_t)ax_dtype_size(g->c_dtype) <= AX_CUDA_BIAS_BYTES;
}

/* ---- running ------------------------------------------------------------------------------------- */

static cublasStatus_t launch(const matmuls *all, const ax_cuda *cu, const plan *p, const ax_gemm_args *g,
                             bool accumulate)
{
    float one = 1, beta = accumulate;
    double wide_one = 1, wide_beta = accumulate;
    bool wide = g->dtype == AX_F64;
    return cublasLtMatmul(all->library, p->how, wide ? (const void *)&wide_one : &one, g->b, p->b, g->a, p->a,
                          wide ? (const void *)&wide_beta : &beta, g->c, p->c, g->c, p->c, &p->algo,
                          cu->scratch, all->workspace, cu->stream);
}

/* Sets the addresses of this call's bias or sums and of its preactivations in the plan, which other calls
 * share. */
static ax_status set_pointers(const matmuls *all, const plan *p, const ax_gemm_args *g)
{
    bool in_scratch = converts_bias(g) || g->accumulate_sums;
    const void *bias = in_scratch ? all->bias : g->bias ? g->bias : g->col_sums;
    if (bias && !p->separate_bias)
        AX_TRY(set_attribute(p->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    return g->preact ? set_attribute(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->preact,
                                     sizeof g->preact)
                     : AX_OK;
}

ax_status ax_cuda_plan_run(const matmuls *all, ax_stream *stream, const plan *p, const ax_gemm_args *g,
                           bool accumulate)
{
    if (g->bias && !p->separate_bias && converts_bias(g))
        AX_TRY(ax_cuda_convert(
            stream, &(ax_convert_args){g->n, g->bias, all->bias, ax_dtype_accum(g->dtype), g->c_dtype}));
    AX_TRY(set_pointers(all, p, g));
    AX_LT(launch(all, ax_cuda_of(stream), p, g, accumulate));
    if (!g->accumulate_sums)
        return AX_OK;
    return ax_cuda_add(stream,
                       &(ax_add_args){g->m, g->col_sums, all->bias, g->col_sums, ax_dtype_accum(g->dtype)});
}

/* ---- timing -------------------------------------------------------------------------------------- */

/* ROUNDS: how often each candidate is timed. */
enum { CANDIDATES = AX_CUDA_CANDIDATES, ROUNDS = 5 };
/* Another candidate is preferred to the first one only if it takes less than MAX_RATIO of the first one's
 * time. Times below MIN_COMPARABLE ms are not compared, because they may be the time of the call on the host,
 * several microseconds, and not the time of the matmul on the GPU. */
static const float MAX_RATIO = 0.98F, MIN_COMPARABLE = 0.02F;

/* Runs the plan's matmul `times` times. *ms is set to the mean time of one matmul in ms, or to infinity if
 * cuBLASLt rejects the algorithm. */
static ax_status time_plan(const matmuls *all, ax_cuda *cu, const plan *p, const ax_gemm_args *g, int times,
                           float *ms)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    AX_CUDA(cudaEventRecord(all->begin, cu->stream));
    for (int i = 0; i < times && status == CUBLAS_STATUS_SUCCESS; i++)
        status = launch(all, cu, p, g, g->accumulate || p->separate_bias);
    AX_CUDA(cudaEventRecord(all->end, cu->stream));
    AX_TRY(ax_cuda_wait(cu));
    AX_CUDA(cudaEventElapsedTime(ms, all->begin, all->end));
    *ms = status == CUBLAS_STATUS_SUCCESS ? *ms / (float)times : INFINITY;
    return AX_OK;
}

/* Times all candidates. min_ms[i]: minimum time of candidate i in ms. The candidates take turns, so that
 * changes of the GPU's clock rate affect all of them. The first round, in which CUDA loads the kernels, does
 * not count. The second round determines the number of calls per measurement, so that a measurement is long
 * compared with the resolution of CUDA events. Times only the first candidate if its time is below
 * MIN_COMPARABLE, and returns early if the time for timing is used up. Times that were not measured are
 * infinite. */
static ax_status time_candidates(const matmuls *all, ax_cuda *cu, plan *p, const ax_gemm_args *g,
                                 const cublasLtMatmulAlgo_t *candidate, int n, float min_ms[CANDIDATES])
{
    const float enough = 0.2F; /* ms */
    const int most = 20;
    int times = 1;
    for (int i = 0; i < n; i++)
        min_ms[i] = INFINITY;
    p->algo = candidate[0];
    for (int round = 0; round < 2; round++)
        AX_TRY(time_plan(all, cu, p, g, 1, &min_ms[0]));
    for (int round = 0; round < ROUNDS && min_ms[0] >= MIN_COMPARABLE; round++) {
        for (int i = 0; i < n; i++) {
            float ms;
            if (ax_cuda_plans_late(all->measured))
                return AX_OK;
            p->algo = candidate[i];
            AX_TRY(time_plan(all, cu, p, g, times, &ms));
            min_ms[i] = round ? fminf(min_ms[i], ms) : min_ms[i];
        }
        if (round == 1)
            times = (int)fminf(fmaxf(enough / min_ms[0], 1), (float)most);
    }
    return AX_OK;
}

/* Copies, in host memory, of the results of a GEMM to which the call adds, c and col_sums, as they were
 * before the call. NULL: the call overwrites this result, or does not have it. */
typedef struct earlier {
    char *c, *sums;
} earlier;

static size_t bytes_of_c(const ax_gemm_args *g)
{
    return (size_t)((g->m - 1) * g->ldc + g->n) * ax_dtype_size(g->c_dtype);
}

static size_t bytes_of_sums(const ax_gemm_args *g)
{
    return (size_t)g->m * ax_dtype_size(ax_dtype_accum(g->dtype));
}

static ax_status keep(ax_cuda *cu, const void *result, size_t bytes, char **out)
{
    AX_TRY(ax_calloc(bytes, 1, out));
    return ax_cuda_copy(cu, *out, result, bytes, cudaMemcpyDeviceToHost);
}

/* keep_earlier copies the results to which a call adds, before the call is timed on its own operands.
 * restore_earlier writes the copies back afterwards, and frees them. It is called with the `status` so far,
 * even if that is an error (it then only frees), and returns the first error. */
static ax_status keep_earlier(ax_cuda *cu, const ax_gemm_args *g, earlier *out)
{
    *out = (earlier){NULL, NULL};
    if (g->accumulate)
        AX_TRY(keep(cu, g->c, bytes_of_c(g), &out->c));
    return g->accumulate_sums ? keep(cu, g->col_sums, bytes_of_sums(g), &out->sums) : AX_OK;
}

static ax_status restore_earlier(ax_cuda *cu, const ax_gemm_args *g, const earlier *kept, ax_status status)
{
    if (status == AX_OK && kept->c)
        status = ax_cuda_copy(cu, g->c, kept->c, bytes_of_c(g), cudaMemcpyHostToDevice);
    if (status == AX_OK && kept->sums)
        status = ax_cuda_copy(cu, g->col_sums, kept->sums, bytes_of_sums(g), cudaMemcpyHostToDevice);
    free(kept->c);
    free(kept->sums);
    return status;
}

/* Times candidates on the operands of the call, before the call itself runs. */
static ax_status time_in_place(const matmuls *all, ax_cuda *cu, plan *p, const ax_gemm_args *g,
                               const cublasLtMatmulAlgo_t *candidate, int n, float min_ms[CANDIDATES])
{
    earlier kept;
    AX_TRY(set_pointers(all, p, g));
    ax_status status = keep_earlier(cu, g, &kept);
    if (status == AX_OK)
        status = time_candidates(all, cu, p, g, candidate, n, min_ms);
    return restore_earlier(cu, g, &kept, status);
}

bool ax_cuda_plan_can_run(const matmuls *all, const plan *p, const uint64_t *algo)
{
    cublasLtMatmulAlgo_t as;
    cublasLtMatmulHeuristicResult_t about;
    memcpy(&as, algo, sizeof as);
    return cublasLtMatmulAlgoCheck(all->library, p->how, p->b, p->a, p->c, p->c, &as, &about) ==
               CUBLAS_STATUS_SUCCESS &&
           about.workspaceSize <= all->workspace;
}

/* Returns the index of the fastest candidate if it takes less than MAX_RATIO of the time of candidate 0, and
 * candidate 0 takes at least MIN_COMPARABLE; else 0. */
static int fastest(const float *min_ms, int n)
{
    int best = 0;
    for (int i = 1; i < n && min_ms[0] >= MIN_COMPARABLE; i++)
        if (min_ms[i] < (best ? min_ms[best] : MAX_RATIO * min_ms[0]))
            best = i;
    return best;
}

/* Sets p->algo to the fastest candidate. Adds it to all->measured (the choices kept in files), unless
 * cuBLASLt rejects it. If the time for timing is used up, the first candidate counts as the fastest.
 * `instead`: replaces an algorithm that all->measured already has for this GEMM. */
static ax_status measure(const matmuls *all, ax_cuda *cu, plan *p, const ax_gemm_args *g,
                         const cublasLtMatmulAlgo_t *candidate, int n, bool instead)
{
    float min_ms[CANDIDATES] = {0};
    ax_status status = AX_OK;
    ax_cuda_plans_begin(all->measured);
    if (!ax_cuda_plans_late(all->measured))
        status = time_in_place(all, cu, p, g, candidate, n, min_ms);
    bool timed = !ax_cuda_plans_late(all->measured);
    ax_cuda_plans_end(all->measured);
    AX_TRY(status);
    int best = timed ? fastest(min_ms, n) : 0;
    ax_log(AX_LOG_DEBUG,
           "cuda: GEMM %lld x %lld x %lld of %s: chose candidate %d of %d: %.4f ms; candidate 1: %.4f ms",
           (long long)g->m, (long long)g->n, (long long)g->k, ax_dtype_name(g->dtype), best + 1, n,
           (double)min_ms[best], (double)min_ms[0]);
    p->algo = candidate[best];
    if (min_ms[best] < INFINITY)
        ax_cuda_plans_add(all->measured, &p->key, candidate[best].data, timed, instead);
    return AX_OK;
}

/* Sets p->algo to the algorithm that is known for this GEMM. If none is known, or the known one cannot run,
 * times the candidates. */
static ax_status use_measured(const matmuls *all, ax_cuda *cu, plan *p, const ax_gemm_args *g,
                              const cublasLtMatmulAlgo_t *candidate, int n)
{
    const uint64_t *known = ax_cuda_plans_find(all->measured, &p->key);
    bool invalid = known && !ax_cuda_plan_can_run(all, p, known);
    if (!known || invalid) {
        AX_TRY(measure(all, cu, p, g, candidate, n, invalid));
        known = ax_cuda_plans_find(all->measured, &p->key);
    }
    if (known && ax_cuda_plan_can_run(all, p, known))
        memcpy(&p->algo, known, sizeof p->algo);
    return AX_OK;
}

/* ---- plans --------------------------------------------------------------------------------------- */

/* Asks the heuristic for candidates, and sets *n to their number. Any error of the heuristic counts as no
 * candidates, because cuBLASLt returns various codes for matmuls that it does not support. */
static ax_status query_heuristic(const matmuls *all, const plan *p,
                                 cublasLtMatmulAlgo_t candidate[CANDIDATES], int *n)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    int count = 0;
    *n = 0;
    AX_LT(cublasLtMatmulPreferenceCreate(&preference));
    ax_status status = set_preferences(all, preference, &p->key);
    if (status == AX_OK &&
        cublasLtMatmulAlgoGetHeuristic(all->library, p->how, p->b, p->a, p->c, p->c, preference, CANDIDATES,
                                       result, &count) != CUBLAS_STATUS_SUCCESS)
        count = 0;
    cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < count; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS)
            candidate[(*n)++] = result[i].algo;
    return status;
}

ax_status ax_cuda_plan_candidates(const matmuls *all, const ax_gemm_args *g, plan *p,
                                  cublasLtMatmulAlgo_t candidate[CANDIDATES], int *n)
{
    AX_TRY(describe(p, g));
    AX_TRY(describe_epilogue(p, g));
    return query_heuristic(all, p, candidate, n);
}

/* Chooses p->algo. *found is set to whether cuBLASLt supports the matmul that the plan describes. */
static ax_status choose_algorithm(const matmuls *all, ax_cuda *cu, plan *p, const ax_gemm_args *g,
                                  bool *found)
{
    cublasLtMatmulAlgo_t candidate[CANDIDATES];
    int n;
    AX_TRY(query_heuristic(all, p, candidate, &n));
    *found = n > 0;
    if (n)
        p->algo = candidate[0];
    return n > 1 && all->measured ? use_measured(all, cu, p, g, candidate, n) : AX_OK;
}

/* Returns true if the call has a bias that cuBLASLt can add: one that has the type of c and is aligned to 16
 * bytes, or that is converted to the type of c (converts_bias). */
static bool takes_bias(const ax_gemm_args *g)
{
    return (g->bias && g->c_dtype == ax_dtype_accum(g->dtype) && ax_cuda_alignment(g->bias) >= 16) ||
           converts_bias(g);
}

/* Returns true if cuBLASLt may compute the call's epilogue. cuBLASLt's GELU is AX_GELU_TANH by fast
 * approximations, which are good enough for 16-bit types only. Rows of preactivations must consist of a
 * multiple of 8 elements and be aligned to 16 bytes. */
static bool takes_gelu(const ax_gemm_args *g)
{
    return ax_dtype_size(g->dtype) == 2 && g->kind == AX_GELU_TANH && g->n % 8 == 0 &&
           ax_cuda_alignment(g->preact) >= 16 && (!g->bias || takes_bias(g)) && g->k;
}

/* Returns true if cuBLASLt may sum the columns of a. The sums have the type of c, which must be fp32, and
 * must be aligned to 16 bytes. If the call adds the sums to earlier ones, cuBLASLt stores them in scratch,
 * where they must fit AX_CUDA_BIAS_BYTES. */
static bool takes_sums(const ax_gemm_args *g)
{
    bool fit =
        g->accumulate_sums ? bytes_of_sums(g) <= AX_CUDA_BIAS_BYTES : ax_cuda_alignment(g->col_sums) >= 16;
    return g->dtype != AX_F64 && g->c_dtype == AX_F32 && fit && g->n && g->k;
}

bool ax_cuda_may_fuse(const matmuls *all, const ax_gemm_args *g)
{
    return all->measured && (g->col_sums ? takes_sums(g) : takes_gelu(g));
}

static const char *name_of_fused(const ax_gemm_args *g)
{
    return g->col_sums                             ? "with sums of columns"
           : g->epilogue == AX_EPILOGUE_ACTIVATION ? "then gelu"
                                                   : "then gelu's gradient";
}

/* Times the GEMM with its epilogue or sums fused, and as separate kernels. *out is set to whether the fused
 * GEMM takes less than MAX_RATIO of the time of the separate kernels; false if that time is below
 * MIN_COMPARABLE. */
static ax_status fused_is_faster(const matmuls *all, ax_stream *stream, const plan *p, const ax_gemm_args *g,
                                 bool *out)
{
    ax_cuda *cu = ax_cuda_of(stream);
    const int times = 4;
    float min_ms[2] = {INFINITY, INFINITY};
    for (int round = 0; round < 2 * ROUNDS; round++) {
        float ms;
        AX_CUDA(cudaEventRecord(all->begin, cu->stream));
        for (int i = 0; i < times; i++)
            AX_TRY(round % 2 ? ax_gemm_in_two(stream, g, ax_plugin_cuda.kernel)
                             : ax_cuda_plan_run(all, stream, p, g, g->accumulate));
        AX_CUDA(cudaEventRecord(all->end, cu->stream));
        AX_TRY(ax_cuda_wait(cu));
        AX_CUDA(cudaEventElapsedTime(&ms, all->begin, all->end));
        if (round > 1) /* in the first round of either variant CUDA loads the kernels */
            min_ms[round % 2] = fminf(min_ms[round % 2], ms / (float)times);
    }
    ax_log(AX_LOG_DEBUG, "cuda: GEMM %lld x %lld x %lld of %s, %s: %.4f ms fused, %.4f ms unfused",
           (long long)g->m, (long long)g->n, (long long)g->k, ax_dtype_name(g->dtype), name_of_fused(g),
           (double)min_ms[0], (double)min_ms[1]);
    *out = min_ms[1] >= MIN_COMPARABLE && min_ms[0] < MAX_RATIO * min_ms[1];
    return AX_OK;
}

static bool is_unfused(const uint64_t *known) { return known && known[0] == unfused[0]; }

/* Sets p->algo to the fastest candidate that computes the epilogue or sums too, then times it against the
 * separate kernels. Sets *wins to whether the candidate is faster. Leaves *wins unchanged if no candidate
 * could run, or if the time for timing is used up. */
static ax_status compare_fused(const matmuls *all, ax_stream *stream, plan *p, const ax_gemm_args *g,
                               bool *wins)
{
    cublasLtMatmulAlgo_t candidate[CANDIDATES];
    float min_ms[CANDIDATES];
    int n;
    AX_TRY(query_heuristic(all, p, candidate, &n));
    if (!n)
        return AX_OK;
    AX_TRY(set_pointers(all, p, g));
    AX_TRY(time_candidates(all, ax_cuda_of(stream), p, g, candidate, n, min_ms));
    int best = fastest(min_ms, n);
    p->algo = candidate[best];
    /* the second condition: cuBLASLt could run at least one candidate */
    return !ax_cuda_plans_late(all->measured) && min_ms[best] < INFINITY
               ? fused_is_faster(all, stream, p, g, wins)
               : AX_OK;
}

static ax_status time_fused(const matmuls *all, ax_stream *stream, plan *p, const ax_gemm_args *g, bool *wins)
{
    earlier kept;
    ax_cuda *cu = ax_cuda_of(stream);
    ax_status status = keep_earlier(cu, g, &kept);
    if (status == AX_OK)
        status = compare_fused(all, stream, p, g, wins);
    return restore_earlier(cu, g, &kept, status);
}

/* Adds the faster variant of a GEMM to all->measured: fused, or separate kernels. If the time for timing is
 * used up, separate kernels count as faster. */
static ax_status measure_fused(const matmuls *all, ax_stream *stream, plan *p, const ax_gemm_args *g,
                               bool instead)
{
    bool wins = false;
    ax_status status = AX_OK;
    ax_cuda_plans_begin(all->measured);
    if (!ax_cuda_plans_late(all->measured))
        status = time_fused(all, stream, p, g, &wins);
    bool timed = !ax_cuda_plans_late(all->measured);
    ax_cuda_plans_end(all->measured);
    AX_TRY(status);
    ax_cuda_plans_add(all->measured, &p->key, timed && wins ? p->algo.data : unfused, timed, instead);
    return AX_OK;
}

/* Makes the plan of a GEMM with a GELU epilogue or with sums of columns: fused if that was measured to be
 * faster, else unfused. Sums are also unfused if cuBLASLt does not add them up in fp32. */
static ax_status make_fused(matmuls *all, ax_stream *stream, const ax_gemm_args *g, plan *p)
{
    if (g->col_sums) {
        bool wide;
        AX_TRY(ax_cuda_sums_are_wide(all, stream, g->dtype, &wide));
        p->unfused = !wide;
    }
    if (p->unfused)
        return AX_OK;
    AX_TRY(describe(p, g));
    AX_TRY(describe_epilogue(p, g));
    const uint64_t *known = ax_cuda_plans_find(all->measured, &p->key);
    bool invalid = known && !is_unfused(known) && !ax_cuda_plan_can_run(all, p, known);
    if (!known || invalid)
        AX_TRY(measure_fused(all, stream, p, g, invalid));
    known = ax_cuda_plans_find(all->measured, &p->key);
    p->unfused = !known || is_unfused(known) || !ax_cuda_plan_can_run(all, p, known);
    if (!p->unfused)
        memcpy(&p->algo, known, sizeof p->algo);
    return AX_OK;
}

/* Makes a plan that adds the bias in the epilogue if cuBLASLt supports that, else a plan without the bias,
 * which a separate kernel then adds. */
ax_status ax_cuda_plan_make(matmuls *all, ax_stream *stream, const ax_gemm_args *g, plan *p)
{
    ax_cuda *cu = ax_cuda_of(stream);
    bool found = false;
    if (g->epilogue || g->col_sums)
        return make_fused(all, stream, g, p);
    AX_TRY(describe(p, g));
    if (takes_bias(g)) {
        AX_TRY(describe_epilogue(p, g));
        AX_TRY(choose_algorithm(all, cu, p, g, &found));
    }
    p->separate_bias = g->bias && !found;
    if (!found) {
        AX_TRY(describe_sums(p, g));
        AX_TRY(choose_algorithm(all, cu, p, g, &found));
    }
    p->use_own_kernel = !found;
    if (p->use_own_kernel)
        ax_log(AX_LOG_WARN,
               "cuda: cuBLASLt does not support a GEMM %lld x %lld x %lld of %s: a slow kernel is used",
               (long long)g->m, (long long)g->n, (long long)g->k, ax_dtype_name(g->dtype));
    return AX_OK;
}
