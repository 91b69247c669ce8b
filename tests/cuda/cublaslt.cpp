/* A stand-in for cuBLASLt: GEMMs as plain loops over column-major matrices. An algorithm works only for
 * operands with the alignment that it was chosen for. A bias of a wider type than d is refused, so that the
 * plugin's own code for this case is tested too. The heuristic returns several algorithms, which take
 * different times. Only one of them, which splits k and needs a large workspace, differs from the others in
 * its bits. The library's documentation does not say in which type the sums of columns (epilogue BGRADB) are
 * added up: here in the type of the operands if the environment variable AXONN_EMULATED_NARROW_SUMS is set,
 * else in fp32 or wider. */
#include "cublasLt.h"

#include "cuda_runtime.h"

#include "axonn/dev.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <vector>

struct cublasLtContext {
    int unused;
};
struct cublasLtMatmulDesc {
    cublasComputeType_t compute;
    cudaDataType_t scale, bias_type;
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    void *aux;
    int64_t aux_ld;
};
struct cublasLtMatrixLayout {
    cudaDataType_t type;
    int64_t rows, cols, ld;
};
struct cublasLtMatmulPreference {
    size_t workspace;
    uint32_t align[4]; /* alignments of a, b, c, d in bytes */
    uint32_t reductions;
};

namespace
{

ax_dtype dtype_of(cudaDataType_t type)
{
    return type == CUDA_R_64F ? AX_F64 : type == CUDA_R_32F ? AX_F32 : type == CUDA_R_16BF ? AX_BF16 : AX_F16;
}

double at(const cublasLtMatrixLayout &l, bool trans, const void *x, int64_t r, int64_t c)
{
    return ax_load(dtype_of(l.type), x, trans ? r * l.ld + c : c * l.ld + r);
}

bool well_formed(const cublasLtMatrixLayout &l) { return l.rows > 0 && l.cols > 0 && l.ld >= l.rows; }

/* Bits of cublasLtEpilogue_t. */
enum { BIAS = 4, GELU = 32, AUX = 128 };

/* GELU with the tanh approximation, as in the library, and its derivative. */
double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

double gelu_slope(double x)
{
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/* Applies the epilogue to a sum, and returns the element of d. */
double finish(const cublasLtMatmulDesc &how, ax_dtype dtype, int64_t i, int64_t j, double sum)
{
    if (how.epilogue == CUBLASLT_EPILOGUE_DGELU)
        return sum * gelu_slope(ax_load(dtype, how.aux, j * how.aux_ld + i));
    if (how.epilogue & AUX)
        ax_store(dtype, how.aux, j * how.aux_ld + i, sum);
    return how.epilogue & GELU ? gelu(sum) : sum;
}

/* Rounds a sum to the compute type. */
double rounded(const cublasLtMatmulDesc &how, double x)
{
    return how.compute == CUBLAS_COMPUTE_64F ? x : (double)(float)x;
}

double rounded_to(ax_dtype dtype, double x)
{
    double bits;
    ax_store(dtype, &bits, 0, x);
    return ax_load(dtype, &bits, 0);
}

/* Computes epilogue BGRADB: the sums of op(b) over k, one for each column of d. */
void sum_over_k(const cublasLtMatmulDesc &how, const void *b, const cublasLtMatrixLayout &lb, bool narrow)
{
    bool tb = how.trans_b == CUBLAS_OP_T;
    const int64_t k = tb ? lb.cols : lb.rows, n = tb ? lb.rows : lb.cols;
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t p = 0; p < k; p++) {
            sum += at(lb, tb, b, p, j);
            sum = narrow ? rounded_to(dtype_of(lb.type), sum) : sum;
        }
        ax_store(dtype_of(how.bias_type), (void *)how.bias, j, sum);
    }
}

/* With `split`, the sums over the two halves of k are rounded to the compute type before they are added. */
void multiply(const cublasLtMatmulDesc &how, const void *a, const cublasLtMatrixLayout &la, const void *b,
              const cublasLtMatrixLayout &lb, double beta, void *d, const cublasLtMatrixLayout &ld,
              bool split)
{
    bool ta = how.trans_a == CUBLAS_OP_T, tb = how.trans_b == CUBLAS_OP_T;
    int64_t k = ta ? la.rows : la.cols, m = ld.rows;
    std::vector<double> op_a((size_t)(m * k)), sums((size_t)m),
        halves((size_t)m); /* op(a), column by column; the sums of a column of d; of the first half of k */
    double *wide = op_a.data(), *sum = sums.data(), *half = halves.data();
    for (int64_t p = 0; p < k; p++)
        for (int64_t i = 0; i < m; i++)
            wide[p * m + i] = at(la, ta, a, i, p);
    for (int64_t j = 0; j < ld.cols; j++) {
        for (int64_t i = 0; i < m; i++)
            sum[i] = (beta != 0 ? beta * at(ld, false, d, i, j) : 0) +
                     (how.epilogue & BIAS ? ax_load(dtype_of(how.bias_type), how.bias, i) : 0);
        for (int64_t p = 0; p < k; p++) {
            const double factor = at(lb, tb, b, p, j), *column = wide + p * m;
            for (int64_t i = 0; split && p == k / 2 && i < m; i++) {
                half[i] = rounded(how, sum[i]);
                sum[i] = 0;
            }
            for (int64_t i = 0; i < m; i++)
                sum[i] += factor * column[i];
        }
        for (int64_t i = 0; split && i < m; i++)
            sum[i] = half[i] + rounded(how, sum[i]);
        for (int64_t i = 0; i < m; i++)
            ax_store(dtype_of(ld.type), d, j * ld.ld + i, finish(how, dtype_of(ld.type), i, j, sum[i]));
    }
}

/* Contents of cublasLtMatmulAlgo_t::data: words 0 to 3 are the alignments of a, b, c and d, word WHICH is the
 * number of the algorithm. SPLIT splits k, and needs SPLIT_BYTES of workspace. */
enum { WHICH = 4, SPLIT = 5, ALGORITHMS = 6 };
constexpr size_t SPLIT_BYTES = 48 << 20;
std::atomic<long> products[ALGORITHMS];

size_t workspace_of(const cublasLtMatmulAlgo_t &algo) { return algo.data[WHICH] == SPLIT ? SPLIT_BYTES : 0; }

/* Returns the time of a GEMM in ms. Algorithm 3 is fast but does not run if k is odd, which the heuristic
 * does not know. Algorithm 4 is fast only if c has an even number of rows. SPLIT is the fastest. A c of two
 * columns takes a tenth of the time. An epilogue other than the bias is slow if c has an odd number of rows.
 * The algorithm that the environment variable AXONN_EMULATED_SLOW names is slow. */
double cost_of(const cublasLtMatmulAlgo_t &algo, const cublasLtMatmulDesc &how, const cublasLtMatrixLayout &d)
{
    double more = how.epilogue >= CUBLASLT_EPILOGUE_GELU && d.cols % 2 ? 1 : 0;
    const double ms[ALGORITHMS] = {0, 0.03, 0.05, 0.01, d.cols % 2 ? 0.04 : 0.02, 0.005};
    const char *slow = getenv("AXONN_EMULATED_SLOW");
    more += slow && (uint64_t)atoi(slow) == algo.data[WHICH] ? 1 : 0;
    return ms[algo.data[WHICH]] * (d.rows == 2 ? 0.1 : 1) +
           more; /* rows and columns of c are exchanged here, because cuBLASLt's matrices are column-major */
}

bool fits(const cublasLtMatmulAlgo_t &algo, const cublasLtMatmulDesc &how, const cublasLtMatrixLayout &a)
{
    int64_t k = how.trans_a == CUBLAS_OP_T ? a.rows : a.cols;
    return algo.data[WHICH] > 0 && algo.data[WHICH] < ALGORITHMS && (algo.data[WHICH] != 3 || k % 2 == 0);
}

bool is_aligned(const void *address, uint64_t bytes) { return (uintptr_t)address % bytes == 0; }

} // namespace

/* For tests: returns the number of GEMMs that the algorithm has run in this process. */
extern "C" __attribute__((visibility("default"))) long ax_emulated_products(int which)
{
    return products[which];
}

size_t cublasLtGetVersion() { return 130000; }

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "refused by the stand-in";
}

template <class T, class U> static cublasStatus_t create_object(U **out, T value)
{
    *out = new T(value);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static cublasStatus_t destroy_object(T *value)
{
    delete value;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *library)
{
    return create_object(library, cublasLtContext{0});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t library) { return destroy_object(library); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    return create_object(out, cublasLtMatmulDesc{compute, scale, CUDA_R_32F, CUBLAS_OP_N, CUBLAS_OP_N,
                                                 CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t how) { return destroy_object(how); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t how, cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t size)
{
    void *to = what == CUBLASLT_MATMUL_DESC_TRANSA                 ? (void *)&how->trans_a
               : what == CUBLASLT_MATMUL_DESC_TRANSB               ? (void *)&how->trans_b
               : what == CUBLASLT_MATMUL_DESC_EPILOGUE             ? (void *)&how->epilogue
               : what == CUBLASLT_MATMUL_DESC_BIAS_POINTER         ? (void *)&how->bias
               : what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ? (void *)&how->aux
               : what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD      ? (void *)&how->aux_ld
                                                                   : (void *)&how->bias_type;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    return create_object(out, cublasLtMatrixLayout{type, (int64_t)rows, (int64_t)cols, ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy_object(layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    return create_object(out, cublasLtMatmulPreference{0, {256, 256, 256, 256}, 7});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy_object(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t size)
{
    void *to = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? (void *)&preference->workspace
               : what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
                   ? (void *)&preference->reductions
                   : (void *)&preference->align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

/* Checks that the shapes agree, and that fp64 is summed in fp64. Like some versions of the library it refuses
 * d of one row, and 16-bit operands that are aligned to 2 bytes only. It also refuses reduction schemes with
 * partial sums in 16 bits. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *count)
{
    *count = 0;
    bool ta = how->trans_a == CUBLAS_OP_T, tb = how->trans_b == CUBLAS_OP_T;
    if (!well_formed(*a) || !well_formed(*b) || !well_formed(*c) || d != c ||
        (ta ? a->cols : a->rows) != d->rows || (tb ? b->rows : b->cols) != d->cols ||
        (ta ? a->rows : a->cols) != (tb ? b->cols : b->rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != b->type || (a->type == CUDA_R_64F) != (how->compute == CUBLAS_COMPUTE_64F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((how->epilogue & BIAS || how->epilogue == CUBLASLT_EPILOGUE_BGRADB) && how->bias_type != d->type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (how->epilogue & AUX && (how->aux_ld % 8 || how->aux_ld < d->rows))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    bool narrow = (a->type == CUDA_R_16BF || a->type == CUDA_R_16F) &&
                  (a->ld % 2 || b->ld % 2 || preference->align[0] < 4 || preference->align[1] < 4);
    if (d->rows == 1 || narrow || preference->reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    int known = preference->workspace >= SPLIT_BYTES ? ALGORITHMS : ALGORITHMS - 1;
    for (int which = 0; which < known && which < most; which++) {
        results[which] = {}; /* the first answer does not run: its state says so */
        results[which].state = which ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
        for (int i = 0; i < 4; i++)
            results[which].algo.data[i] = preference->align[i];
        results[which].algo.data[WHICH] = (uint64_t)which;
        *count = which + 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    result->workspaceSize = workspace_of(*algo);
    return result->state = fits(*algo, *how, *a) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Like the library, reads the descriptors now, and the matrices when the stream reaches the call. */
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t how, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t bytes, cudaStream_t stream)
{
    ax_dtype scale = dtype_of(how->scale);
    double factor = ax_load(scale, beta, 0);
    if (c != d || c_layout != d_layout || ax_load(scale, alpha, 0) != 1 || !is_aligned(a, algo->data[0]) ||
        !is_aligned(b, algo->data[1]) || !is_aligned(d, algo->data[3]) ||
        (how->epilogue & AUX && (!how->aux || !is_aligned(how->aux, 16))) ||
        (how->epilogue == CUBLASLT_EPILOGUE_BGRADB && (!how->bias || !is_aligned(how->bias, 16))))
        return CUBLAS_STATUS_INVALID_VALUE;
    size_t needed = workspace_of(*algo);
    if (!fits(*algo, *how, *a_layout) || needed > bytes)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    products[algo->data[WHICH]]++;
    ax_emulated_spend(stream, cost_of(*algo, *how, *d_layout));
    const bool narrow = getenv("AXONN_EMULATED_NARROW_SUMS");
    ax_emulated_enqueue(stream, [=, h = *how, la = *a_layout, lb = *b_layout, ld = *d_layout] {
        if (needed) /* faults if the workspace is smaller than the plugin says */
            ((char *)workspace)[0] = ((char *)workspace)[bytes - 1] = 0;
        multiply(h, a, la, b, lb, factor, d, ld, needed > 0);
        if (h.epilogue == CUBLASLT_EPILOGUE_BGRADB)
            sum_over_k(h, b, lb, narrow);
    });
    return CUBLAS_STATUS_SUCCESS;
}
