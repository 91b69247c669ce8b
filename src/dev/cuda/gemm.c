/* Products by cuBLASLt. A row-major c = op(a)·op(b) is the column-major cᵀ = op(b)ᵀ·op(a)ᵀ: the library is
 * given b first. What it chooses for a product, its plan, is made at the first call of a shape and kept. */
#include "dev/cuda/cuda.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

/* What a plan depends on: no padding, so that keys are compared as bytes. */
typedef struct plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t dtype, c_dtype, trans_a, trans_b, accumulate, bias;
    int32_t align_a, align_b, align_c, align_bias; /* bytes, powers of two up to 256 */
} plan_key;

/* The end of scratch is not the library's: a bias goes there that is to have the type of c. */
enum { BIAS_BYTES = 256 << 10, WORKSPACE = AX_CUDA_SCRATCH - BIAS_BYTES };

typedef struct plan {
    plan_key key;
    bool bias_apart; /* the library has no product that adds this bias: a kernel does */
    bool own;        /* it has no such product at all: ax_cuda_product does it */
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
} plan;

/* An open-addressed table of plans, never more than half full. */
typedef struct ax_cuda_products {
    cublasLtHandle_t library;
    char *bias;         /* BIAS_BYTES of scratch */
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

ax_status ax_cuda_products_create(void *scratch, products **out)
{
    enum { ROOM = 256 };
    products *p;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *p, &p));
    *out = p;
    p->bias = (char *)scratch + WORKSPACE;
    AX_TRY(ax_calloc(ROOM, sizeof *p->slot, &p->slot));
    p->room = ROOM;
    LT(cublasLtCreate(&p->library));
    return AX_OK;
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
    free(p->slot);
    free(p);
    *out = NULL;
}

/* ---- plans --------------------------------------------------------------------------------------- */

static int32_t alignment(const void *address)
{
    uintptr_t low = (uintptr_t)address & -(uintptr_t)address;
    return !low || low > 256 ? 256 : (int32_t)low;
}

static plan_key key_of(const ax_gemm_args *g)
{
    return (plan_key){.m = g->m,
                      .n = g->n,
                      .k = g->k,
                      .lda = g->lda,
                      .ldb = g->ldb,
                      .ldc = g->ldc,
                      .dtype = (int32_t)g->dtype,
                      .c_dtype = (int32_t)g->c_dtype,
                      .trans_a = g->trans_a,
                      .trans_b = g->trans_b,
                      .accumulate = g->accumulate,
                      .bias = g->bias != NULL,
                      .align_a = alignment(g->a),
                      .align_b = alignment(g->b),
                      .align_c = alignment(g->c),
                      .align_bias = alignment(g->bias)};
}

static cudaDataType_t data_type(ax_dtype dtype)
{
    return dtype == AX_F64 ? CUDA_R_64F : dtype == AX_F32 ? CUDA_R_32F : CUDA_R_16BF;
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

/* The bias goes with the columns of c, which are the library's rows. */
static ax_status describe_bias(plan *p, const ax_gemm_args *g, const void *bias)
{
    cublasLtEpilogue_t with = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t type = data_type(g->c_dtype);
    AX_TRY(set(p->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &with, sizeof with));
    AX_TRY(set(p->how, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
    return set(p->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
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

/* *found: whether the library has a product for what the plan describes. Its refusals come with various
 * codes. */
static ax_status choose(const products *all, plan *p, bool *found)
{
    enum { MOST = 8 };
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result[MOST];
    int count = 0;
    *found = false;
    LT(cublasLtMatmulPreferenceCreate(&preference));
    ax_status status = prefer(preference, &p->key);
    if (status == AX_OK &&
        cublasLtMatmulAlgoGetHeuristic(all->library, p->how, p->b, p->a, p->c, p->c, preference, MOST, result,
                                       &count) != CUBLAS_STATUS_SUCCESS)
        count = 0;
    cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < count && !*found; i++) {
        *found = result[i].state == CUBLAS_STATUS_SUCCESS;
        p->algo = result[i].algo;
    }
    return status;
}

/* Whether the bias is to be converted for the library, which wants it to have the type of c. */
static bool converts_bias(const ax_gemm_args *g)
{
    return g->bias && g->c_dtype != ax_dtype_accum(g->dtype) &&
           g->n * (int64_t)ax_dtype_size(g->c_dtype) <= BIAS_BYTES;
}

/* With the bias if the library can, then without; it wants the bias to lie on 16 bytes. */
static ax_status make(const products *all, const ax_gemm_args *g, plan *p)
{
    bool found = false;
    AX_TRY(describe(p, g));
    bool fits = g->bias && g->c_dtype == ax_dtype_accum(g->dtype) && p->key.align_bias >= 16;
    if (fits || converts_bias(g)) {
        AX_TRY(describe_bias(p, g, fits ? g->bias : all->bias));
        AX_TRY(choose(all, p, &found));
    }
    p->bias_apart = g->bias && !found;
    if (!found) {
        AX_TRY(describe_sums(p, g));
        AX_TRY(choose(all, p, &found));
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

static ax_status find(products *all, const ax_gemm_args *g, plan **out)
{
    plan_key key = key_of(g);
    plan **slot = slot_of(all, &key), *p = *slot;
    *out = p;
    if (p)
        return AX_OK;
    if (2 * all->used >= all->room) {
        AX_TRY(grow(all));
        slot = slot_of(all, &key);
    }
    AX_TRY(ax_calloc(1, sizeof *p, &p));
    p->key = key;
    ax_status status = make(all, g, p);
    if (status != AX_OK) {
        plan_destroy(p);
        return status;
    }
    all->used++;
    *out = *slot = p;
    return AX_OK;
}

/* ---- running ------------------------------------------------------------------------------------- */

static ax_status multiply(const products *all, const ax_cuda *cu, plan *p, const ax_gemm_args *g,
                          bool accumulate)
{
    float one = 1, beta = accumulate;
    double wide_one = 1, wide_beta = accumulate;
    bool wide = g->dtype == AX_F64;
    if (g->bias && !p->bias_apart) {
        const void *bias = converts_bias(g) ? all->bias : g->bias;
        AX_TRY(set(p->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    }
    LT(cublasLtMatmul(all->library, p->how, wide ? (const void *)&wide_one : &one, g->b, p->b, g->a, p->a,
                      wide ? (const void *)&wide_beta : &beta, g->c, p->c, g->c, p->c, &p->algo, cu->scratch,
                      WORKSPACE, cu->stream));
    return AX_OK;
}

ax_status ax_cuda_gemm(ax_stream *stream, const void *args)
{
    const ax_gemm_args *g = args;
    const ax_cuda *cu = ax_cuda_of(stream);
    plan *p;
    bool accumulate = g->accumulate;
    if (!g->m || !g->n)
        return AX_OK;
    if (!g->k) /* the library refuses it */
        return accumulate && !g->bias ? AX_OK : ax_cuda_spread_rows(stream, g);
    AX_TRY(find(cu->products, g, &p));
    if (p->own)
        return ax_cuda_product(stream, g);
    if (g->bias && p->bias_apart) {
        AX_TRY(ax_cuda_spread_rows(stream, g));
        accumulate = true;
    }
    if (g->bias && !p->bias_apart && converts_bias(g))
        AX_TRY(ax_cuda_convert(stream, &(ax_convert_args){g->n, g->bias, cu->products->bias,
                                                          ax_dtype_accum(g->dtype), g->c_dtype}));
    return multiply(cu->products, cu, p, g, accumulate);
}
