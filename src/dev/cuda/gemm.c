/* Products by cuBLASLt. A row-major c = op(a)·op(b) is the column-major cᵀ = op(b)ᵀ·op(a)ᵀ: the library is
 * given b first. How it does a product, its plan, is chosen at the first call of a shape and kept: it is the
 * first answer of the library's heuristic, or, where AXONN_PLANS asks for it (plans.h), the fastest of
 * several. */
#include "dev/cuda/cuda.h"
#include "dev/cuda/plans.h"

#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef ax_cuda_plan_key plan_key;

/* The end of scratch is not the library's: a bias goes there that is to have the type of c. */
enum { BIAS_BYTES = 256 << 10, WORKSPACE = AX_CUDA_SCRATCH - BIAS_BYTES };

typedef struct plan {
    plan_key key;
    bool bias_apart; /* the library has no product that adds this bias: a kernel does */
    bool own;        /* it has no such product at all: ax_cuda_product does it */
    bool in_two;     /* what is to become of the sums is done by a kernel of its own */
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
} plan;

/* In the file of plans: the two kernels took less. */
static const uint64_t in_two[AX_CUDA_PLAN_WORDS] = {UINT64_MAX};

/* An open-addressed table of plans, never more than half full. */
typedef struct ax_cuda_products {
    cublasLtHandle_t library;
    char *bias;              /* BIAS_BYTES of scratch */
    ax_cuda_plans *measured; /* NULL: nothing is timed */
    cudaEvent_t begin, end;
    int64_t room, used; /* room: a power of two */
    plan **slot;
} products;

static ax_status check(cublasStatus_t status, const char *what)
{
    AX_CHECK(status == CUBLAS_STATUS_SUCCESS, AX_ERR_INTERNAL, "cuBLASLt: %s: %s", what,
             cublasLtGetStatusString(status));
    return AX_OK;
}
#define LT(call) AX_TRY(check((call), #call))

/* Algorithms that were measured hold for a kind of GPU, a version of the library, and so much scratch. */
static ax_status open_measured(products *p, const ax_cuda *cu, const char *gpu)
{
    char kind[512];
    snprintf(kind, sizeof kind, "%s %d multiprocessors cuBLASLt %zu scratch %d keys 2", gpu, cu->processors,
             cublasLtGetVersion(), (int)WORKSPACE);
    AX_TRY(ax_cuda_plans_open(kind, &p->measured));
    if (!p->measured)
        return AX_OK;
    AX_CUDA(cudaEventCreateWithFlags(&p->begin, cudaEventDefault));
    AX_CUDA(cudaEventCreateWithFlags(&p->end, cudaEventDefault));
    return AX_OK;
}

ax_status ax_cuda_products_create(const ax_cuda *cu, const char *gpu, products **out)
{
    enum { ROOM = 256 };
    products *p;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *p, &p));
    *out = p;
    p->bias = (char *)cu->scratch + WORKSPACE;
    AX_TRY(ax_calloc(ROOM, sizeof *p->slot, &p->slot));
    p->room = ROOM;
    LT(cublasLtCreate(&p->library));
    return open_measured(p, cu, gpu);
}

static void plan_destroy(plan *p)
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

void ax_cuda_products_destroy(products **out)
{
    products *p = *out;
    if (!p)
        return;
    for (int64_t i = 0; i < p->room; i++)
        if (p->slot[i])
            plan_destroy(p->slot[i]);
    if (p->library)
        cublasLtDestroy(p->library);
    if (p->begin)
        cudaEventDestroy(p->begin);
    if (p->end)
        cudaEventDestroy(p->end);
    ax_cuda_plans_close(&p->measured);
    free(p->slot);
    free(p);
    *out = NULL;
}

/* ---- describing ---------------------------------------------------------------------------------- */

/* What tensors are aligned to at least counts, so that a shape has one plan. */
static int64_t alignment(const void *address)
{
    enum { MOST = 64 };
    uintptr_t low = (uintptr_t)address & -(uintptr_t)address;
    return !low || low > MOST ? MOST : (int64_t)low;
}

static plan_key key_of(const ax_gemm_args *g)
{
    return (plan_key){.m = g->m,
                      .n = g->n,
                      .k = g->k,
                      .lda = g->lda,
                      .ldb = g->ldb,
                      .ldc = g->ldc,
                      .dtype = g->dtype,
                      .c_dtype = g->c_dtype,
                      .trans_a = g->trans_a,
                      .trans_b = g->trans_b,
                      .accumulate = g->accumulate,
                      .bias = g->bias != NULL,
                      .align_a = alignment(g->a),
                      .align_b = alignment(g->b),
                      .align_c = alignment(g->c),
                      .align_bias = alignment(g->bias),
                      .then = g->then,
                      .pre = g->pre != NULL,
                      .align_pre = alignment(g->pre)};
}

static cudaDataType_t data_type(ax_dtype dtype)
{
    return dtype == AX_F64    ? CUDA_R_64F
           : dtype == AX_F32  ? CUDA_R_32F
           : dtype == AX_BF16 ? CUDA_R_16BF
                              : CUDA_R_16F;
}

/* `rows` rows of `cols` elements, as the library sees them: columns of `cols`. */
static ax_status layout(cublasLtMatrixLayout_t *out, ax_dtype dtype, int64_t rows, int64_t cols, int64_t ld)
{
    LT(cublasLtMatrixLayoutCreate(out, data_type(dtype), (uint64_t)cols, (uint64_t)rows, ld));
    return AX_OK;
}

static ax_status set(cublasLtMatmulDesc_t how, cublasLtMatmulDescAttributes_t what, const void *value,
                     size_t size)
{
    LT(cublasLtMatmulDescSetAttribute(how, what, value, size));
    return AX_OK;
}

/* Forgets a bias. fp32 is fp32: never tf32. */
static ax_status describe_sums(plan *p, const ax_gemm_args *g)
{
    bool wide = g->dtype == AX_F64;
    cublasOperation_t first = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (p->how)
        LT(cublasLtMatmulDescDestroy(p->how));
    p->how = NULL;
    LT(cublasLtMatmulDescCreate(&p->how, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                wide ? CUDA_R_64F : CUDA_R_32F));
    AX_TRY(set(p->how, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    return set(p->how, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
}

static ax_status describe(plan *p, const ax_gemm_args *g)
{
    AX_TRY(describe_sums(p, g));
    AX_TRY(layout(&p->a, g->dtype, g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k, g->lda));
    AX_TRY(layout(&p->b, g->dtype, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n, g->ldb));
    return layout(&p->c, g->c_dtype, g->m, g->n, g->ldc);
}

/* What the library does with sums before it stores them. */
static cublasLtEpilogue_t epilogue_of(const ax_gemm_args *g)
{
    static const cublasLtEpilogue_t gelu[2][2] = {
        {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS},
        {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS}};
    switch ((ax_gemm_then)g->then) {
    case AX_THEN_GELU:
        return gelu[g->pre != NULL][g->bias != NULL];
    case AX_THEN_GELU_GRAD:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return g->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* The bias goes with the columns of c, which are the library's rows. */
static ax_status describe_epilogue(plan *p, const ax_gemm_args *g)
{
    cublasLtEpilogue_t with = epilogue_of(g);
    cudaDataType_t type = data_type(g->c_dtype);
    AX_TRY(set(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &with, sizeof with));
    if (g->bias)
        AX_TRY(set(p->how, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
    return g->pre ? set(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->ldc, sizeof g->ldc) : AX_OK;
}

/* Sums are kept in A, those of parts that are added up later too. */
static ax_status prefer(cublasLtMatmulPreference_t preference, const plan_key *key)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        uint32_t value;
    } words[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_b},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_a},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_c},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->align_c},
                 {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}};
    size_t room = WORKSPACE;
    LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                            sizeof room));
    for (size_t i = 0; i < AX_COUNT(words); i++)
        LT(cublasLtMatmulPreferenceSetAttribute(preference, words[i].what, &words[i].value,
                                                sizeof words[i].value));
    return AX_OK;
}

/* Whether the bias is to be converted for the library, which wants it to have the type of c. */
static bool converts_bias(const ax_gemm_args *g)
{
    return g->bias && g->c_dtype != ax_dtype_accum(g->dtype) &&
           g->n * (int64_t)ax_dtype_size(g->c_dtype) <= BIAS_BYTES;
}

/* ---- running ------------------------------------------------------------------------------------- */

static cublasStatus_t launch(const products *all, const ax_cuda *cu, const plan *p, const ax_gemm_args *g,
                             bool accumulate)
{
    float one = 1, beta = accumulate;
    double wide_one = 1, wide_beta = accumulate;
    bool wide = g->dtype == AX_F64;
    return cublasLtMatmul(all->library, p->how, wide ? (const void *)&wide_one : &one, g->b, p->b, g->a, p->a,
                          wide ? (const void *)&wide_beta : &beta, g->c, p->c, g->c, p->c, &p->algo,
                          cu->scratch, WORKSPACE, cu->stream);
}

/* The bias of this call, which an earlier one had elsewhere, and what GELU is of. */
static ax_status place(const products *all, const plan *p, const ax_gemm_args *g)
{
    const void *bias = converts_bias(g) ? all->bias : g->bias;
    if (g->bias && !p->bias_apart)
        AX_TRY(set(p->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    return g->pre ? set(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->pre, sizeof g->pre) : AX_OK;
}

static ax_status multiply(const products *all, ax_stream *stream, const plan *p, const ax_gemm_args *g,
                          bool accumulate)
{
    if (g->bias && !p->bias_apart && converts_bias(g))
        AX_TRY(ax_cuda_convert(
            stream, &(ax_convert_args){g->n, g->bias, all->bias, ax_dtype_accum(g->dtype), g->c_dtype}));
    AX_TRY(place(all, p, g));
    LT(launch(all, ax_cuda_of(stream), p, g, accumulate));
    return AX_OK;
}

/* ---- timing -------------------------------------------------------------------------------------- */

/* Answers of the heuristic that are looked at, and rounds in which each of them is timed. */
enum { ANSWERS = 16, ROUNDS = 5 };
/* What takes more than WORTH of the time of what needs no measurement is not taken instead; below TOLD ms
 * times are not told apart, for a call of the library costs the host several microseconds, and may be what is
 * timed. */
static const float WORTH = 0.98F, TOLD = 0.02F;

/* *ms: of one of `times` calls, or infinite if the library refuses. */
static ax_status time_plan(const products *all, ax_cuda *cu, const plan *p, const ax_gemm_args *g, int times,
                           float *ms)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    AX_CUDA(cudaEventRecord(all->begin, cu->stream));
    for (int i = 0; i < times && status == CUBLAS_STATUS_SUCCESS; i++)
        status = launch(all, cu, p, g, g->accumulate || p->bias_apart);
    AX_CUDA(cudaEventRecord(all->end, cu->stream));
    AX_TRY(ax_cuda_wait(cu));
    AX_CUDA(cudaEventElapsedTime(ms, all->begin, all->end));
    *ms = status == CUBLAS_STATUS_SUCCESS ? *ms / (float)times : INFINITY;
    return AX_OK;
}

/* least[i]: the least that answer i took. They take turns, so that a GPU that changes its clock does so for
 * all. The first round loads kernels, the second says how many calls make up for the clock's grain. */
static ax_status time_answers(const products *all, ax_cuda *cu, plan *p, const ax_gemm_args *g,
                              const cublasLtMatmulAlgo_t *answer, int n, float least[ANSWERS])
{
    const float enough = 0.2F; /* ms */
    const int most = 20;
    int times = 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < n; i++) {
            float ms;
            p->algo = answer[i];
            AX_TRY(time_plan(all, cu, p, g, times, &ms));
            least[i] = round ? fminf(least[i], ms) : INFINITY;
        }
        if (round == 1)
            times = (int)fminf(fmaxf(enough / least[0], 1), (float)most);
    }
    return AX_OK;
}

/* Times answers on the operands of the call, whose result comes afterwards. What is to be added to is kept on
 * the host meanwhile. */
static ax_status time_in_place(const products *all, ax_cuda *cu, plan *p, const ax_gemm_args *g,
                               const cublasLtMatmulAlgo_t *answer, int n, float least[ANSWERS])
{
    size_t bytes = (size_t)((g->m - 1) * g->ldc + g->n) * ax_dtype_size(g->c_dtype);
    char *kept = NULL;
    if (!g->accumulate)
        return time_answers(all, cu, p, g, answer, n, least);
    AX_TRY(ax_calloc(bytes, 1, &kept));
    ax_status status = ax_cuda_copy(cu, kept, g->c, bytes, cudaMemcpyDeviceToHost);
    if (status == AX_OK)
        status = time_answers(all, cu, p, g, answer, n, least);
    if (status == AX_OK)
        status = ax_cuda_copy(cu, g->c, kept, bytes, cudaMemcpyHostToDevice);
    free(kept);
    return status;
}

static bool runs(const products *all, const plan *p, const uint64_t *algo)
{
    cublasLtMatmulAlgo_t as;
    cublasLtMatmulHeuristicResult_t about;
    memcpy(&as, algo, sizeof as);
    return cublasLtMatmulAlgoCheck(all->library, p->how, p->b, p->a, p->c, p->c, &as, &about) ==
               CUBLAS_STATUS_SUCCESS &&
           about.workspaceSize <= WORKSPACE;
}

/* The first of the answers, or the fastest if that is worth it. */
static int best_of(const float *least, int n)
{
    int best = 0;
    for (int i = 1; i < n && least[0] >= TOLD; i++)
        if (least[i] < (best ? least[best] : WORTH * least[0]))
            best = i;
    return best;
}

/* The algorithm that was measured for this product, now or earlier, instead of the first answer. */
static ax_status improve(const products *all, ax_cuda *cu, plan *p, const ax_gemm_args *g,
                         const cublasLtMatmulAlgo_t *answer, int n)
{
    const uint64_t *known = ax_cuda_plans_find(all->measured, &p->key);
    bool useless = known && !runs(all, p, known);
    if (!known || useless) {
        float least[ANSWERS];
        AX_TRY(place(all, p, g));
        AX_TRY(time_in_place(all, cu, p, g, answer, n, least));
        int best = best_of(least, n);
        ax_log(AX_LOG_DEBUG,
               "cuda: product %lld x %lld x %lld of %s: answer %d of %d, %.4f ms, the first %.4f",
               (long long)g->m, (long long)g->n, (long long)g->k, ax_dtype_name(g->dtype), best + 1, n,
               (double)least[best], (double)least[0]);
        p->algo = answer[best];
        if (least[best] < INFINITY)
            ax_cuda_plans_add(all->measured, &p->key, answer[best].data, useless);
        known = ax_cuda_plans_find(all->measured, &p->key);
    }
    if (known && runs(all, p, known))
        memcpy(&p->algo, known, sizeof p->algo);
    return AX_OK;
}

/* ---- plans --------------------------------------------------------------------------------------- */

/* The answers of the heuristic that can be run. The library's refusals come with various codes. */
static ax_status ask(const products *all, const plan *p, cublasLtMatmulAlgo_t answer[ANSWERS], int *n)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result[ANSWERS];
    int count = 0;
    *n = 0;
    LT(cublasLtMatmulPreferenceCreate(&preference));
    ax_status status = prefer(preference, &p->key);
    if (status == AX_OK &&
        cublasLtMatmulAlgoGetHeuristic(all->library, p->how, p->b, p->a, p->c, p->c, preference, ANSWERS,
                                       result, &count) != CUBLAS_STATUS_SUCCESS)
        count = 0;
    cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < count; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS)
            answer[(*n)++] = result[i].algo;
    return status;
}

/* *found: whether the library has a product for what the plan describes. */
static ax_status choose(const products *all, ax_cuda *cu, plan *p, const ax_gemm_args *g, bool *found)
{
    cublasLtMatmulAlgo_t answer[ANSWERS];
    int n;
    AX_TRY(ask(all, p, answer, &n));
    *found = n > 0;
    if (n)
        p->algo = answer[0];
    return n > 1 && all->measured ? improve(all, cu, p, g, answer, n) : AX_OK;
}

/* Whether the library may add the bias, which it wants to lie on 16 bytes. */
static bool takes_bias(const ax_gemm_args *g)
{
    return (g->bias && g->c_dtype == ax_dtype_accum(g->dtype) && alignment(g->bias) >= 16) ||
           converts_bias(g);
}

/* Whether the library may have GELU, where that is timed: it is GELU_TANH, on the fast arithmetic that 16
 * bits allow. What it is of has rows of multiples of 8 elements, on 16 bytes. */
static bool takes_gelu(const products *all, const ax_gemm_args *g)
{
    return all->measured && ax_dtype_size(g->dtype) == 2 && g->kind == AX_GELU_TANH && g->n % 8 == 0 &&
           alignment(g->pre) >= 16 && (!g->bias || takes_bias(g)) && g->k;
}

/* Whether a product that ends in GELU takes less than two kernels. */
static ax_status beats_two(const products *all, ax_stream *stream, const plan *p, const ax_gemm_args *g,
                           bool *out)
{
    ax_cuda *cu = ax_cuda_of(stream);
    const int times = 4;
    float least[2] = {INFINITY, INFINITY};
    for (int round = 0; round < 2 * ROUNDS; round++) {
        float ms;
        AX_CUDA(cudaEventRecord(all->begin, cu->stream));
        for (int i = 0; i < times; i++)
            AX_TRY(round % 2 ? ax_gemm_in_two(stream, g, ax_plugin_cuda.kernel)
                             : multiply(all, stream, p, g, false));
        AX_CUDA(cudaEventRecord(all->end, cu->stream));
        AX_TRY(ax_cuda_wait(cu));
        AX_CUDA(cudaEventElapsedTime(&ms, all->begin, all->end));
        if (round > 1) /* the first of each loads kernels */
            least[round % 2] = fminf(least[round % 2], ms / (float)times);
    }
    ax_log(AX_LOG_DEBUG, "cuda: product %lld x %lld x %lld of %s, then %s: %.4f ms in one, %.4f in two",
           (long long)g->m, (long long)g->n, (long long)g->k, ax_dtype_name(g->dtype),
           g->then == AX_THEN_GELU ? "gelu" : "its gradient", (double)least[0], (double)least[1]);
    *out = least[1] >= TOLD && least[0] < WORTH * least[1];
    return AX_OK;
}

static bool is_in_two(const uint64_t *known) { return known && known[0] == in_two[0]; }

/* Times all ways; what is in the file then is what this product does from now on. */
static ax_status measure_gelu(const products *all, ax_stream *stream, plan *p, const ax_gemm_args *g,
                              bool useless)
{
    ax_cuda *cu = ax_cuda_of(stream);
    cublasLtMatmulAlgo_t answer[ANSWERS];
    float least[ANSWERS];
    bool wins = false;
    int n;
    AX_TRY(ask(all, p, answer, &n));
    if (n > 0) {
        AX_TRY(place(all, p, g));
        AX_TRY(time_answers(all, cu, p, g, answer, n, least));
        int best = best_of(least, n);
        p->algo = answer[best];
        if (least[best] < INFINITY) /* the library does not refuse them all */
            AX_TRY(beats_two(all, stream, p, g, &wins));
    }
    ax_cuda_plans_add(all->measured, &p->key, wins ? p->algo.data : in_two, useless);
    return AX_OK;
}

/* By the library if it can, and if that was measured to be faster. */
static ax_status make_gelu(const products *all, ax_stream *stream, const ax_gemm_args *g, plan *p)
{
    AX_TRY(describe(p, g));
    AX_TRY(describe_epilogue(p, g));
    const uint64_t *known = ax_cuda_plans_find(all->measured, &p->key);
    bool useless = known && !is_in_two(known) && !runs(all, p, known);
    if (!known || useless)
        AX_TRY(measure_gelu(all, stream, p, g, useless));
    known = ax_cuda_plans_find(all->measured, &p->key);
    p->in_two = !known || is_in_two(known) || !runs(all, p, known);
    if (!p->in_two)
        memcpy(&p->algo, known, sizeof p->algo);
    return AX_OK;
}

/* With the bias if the library can, then without. */
static ax_status make(const products *all, ax_stream *stream, const ax_gemm_args *g, plan *p)
{
    ax_cuda *cu = ax_cuda_of(stream);
    bool found = false;
    if (g->then)
        return make_gelu(all, stream, g, p);
    AX_TRY(describe(p, g));
    if (takes_bias(g)) {
        AX_TRY(describe_epilogue(p, g));
        AX_TRY(choose(all, cu, p, g, &found));
    }
    p->bias_apart = g->bias && !found;
    if (!found) {
        AX_TRY(describe_sums(p, g));
        AX_TRY(choose(all, cu, p, g, &found));
    }
    p->own = !found;
    if (p->own)
        ax_log(AX_LOG_WARN,
               "cuda: cuBLASLt refuses a product %lld x %lld x %lld of %s: a slow kernel does it",
               (long long)g->m, (long long)g->n, (long long)g->k, ax_dtype_name(g->dtype));
    return AX_OK;
}

/* ---- the table ----------------------------------------------------------------------------------- */

/* FNV-1a. */
static uint64_t hash(const plan_key *key)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof *key; i++)
        h = (h ^ ((const unsigned char *)key)[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* Where the plan of that key is, or is to be. */
static plan **slot_of(const products *all, const plan_key *key)
{
    uint64_t i = hash(key) & (uint64_t)(all->room - 1);
    while (all->slot[i] && memcmp(&all->slot[i]->key, key, sizeof *key))
        i = (i + 1) & (uint64_t)(all->room - 1);
    return &all->slot[i];
}

static ax_status grow(products *all)
{
    products larger = {.room = 2 * all->room};
    AX_TRY(ax_calloc((size_t)larger.room, sizeof *larger.slot, &larger.slot));
    for (int64_t i = 0; i < all->room; i++)
        if (all->slot[i])
            *slot_of(&larger, &all->slot[i]->key) = all->slot[i];
    free(all->slot);
    all->slot = larger.slot;
    all->room = larger.room;
    return AX_OK;
}

static ax_status find(products *all, ax_stream *stream, const ax_gemm_args *g, plan **out)
{
    plan_key key = key_of(g);
    plan *p = *slot_of(all, &key);
    *out = p;
    if (p)
        return AX_OK;
    if (2 * all->used + 2 >= all->room)
        AX_TRY(grow(all));
    AX_TRY(ax_calloc(1, sizeof *p, &p));
    p->key = key;
    ax_status status = make(all, stream, g, p);
    if (status != AX_OK) {
        plan_destroy(p);
        return status;
    }
    all->used++;
    *out = *slot_of(all, &key) = p; /* the plan of a part of it may be there since */
    return AX_OK;
}

ax_status ax_cuda_gemm(ax_stream *stream, const void *args)
{
    const ax_gemm_args *g = args;
    ax_cuda *cu = ax_cuda_of(stream);
    plan *p;
    bool accumulate = g->accumulate;
    if (!g->m || !g->n)
        return AX_OK;
    if (g->then && !takes_gelu(cu->products, g))
        return ax_gemm_in_two(stream, g, ax_plugin_cuda.kernel);
    if (!g->k) /* the library refuses it */
        return accumulate && !g->bias ? AX_OK : ax_cuda_spread_rows(stream, g);
    AX_TRY(find(cu->products, stream, g, &p));
    if (p->in_two)
        return ax_gemm_in_two(stream, g, ax_plugin_cuda.kernel);
    if (p->own)
        return ax_cuda_product(stream, g);
    if (g->bias && p->bias_apart) {
        AX_TRY(ax_cuda_spread_rows(stream, g));
        accumulate = true;
    }
    return multiply(cu->products, stream, p, g, accumulate);
}
