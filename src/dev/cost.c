/* Work of a kernel call: floating-point operations and bytes of memory that must move. Exact for gemm; for
 * the others a model that counts each operand once and the arithmetic per element, transcendental functions
 * as 8 operations. */
#include "axonn/dev.h"

enum { TRANSCENDENTAL = 8 };

typedef struct cost {
    double flops, bytes;
} cost;

static double size_of(ax_dtype dtype) { return (double)ax_dtype_size(dtype); }
static double accum_size(ax_dtype dtype) { return size_of(ax_dtype_accum(dtype)); }

static cost gemm_cost(const ax_gemm_args *a)
{
    double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    return (cost){2 * m * n * k, (m * k + k * n) * size_of(a->dtype) +
                                     m * n * size_of(a->c_dtype) * (a->accumulate || a->pre ? 2 : 1)};
}

/* Query-key pairs that see each other in one head of one sequence, documents ignored. */
static double visible_pairs(int64_t q_len, int64_t kv_len, int64_t q_offset)
{
    /* Query i sees min(q_offset + i + 1, kv_len) keys: a ramp, then a plateau. */
    int64_t ramp = ax_max(0, ax_min(q_len, kv_len - q_offset));
    return (double)ramp * (double)q_offset + (double)ramp * (double)(ramp + 1) / 2 +
           (double)(q_len - ramp) * (double)kv_len;
}

static cost attention_cost(const ax_attention_args *a)
{
    double rows = (double)(a->batch * a->q_len * a->heads);
    double pairs = visible_pairs(a->q_len, a->kv_len, a->q_offset) * (double)(a->batch * a->heads);
    double keys = (double)(a->batch * ax_min(a->kv_len, a->q_offset + a->q_len) * a->kv_heads);
    return (cost){pairs * (4 * (double)a->head_dim + TRANSCENDENTAL),
                  2 * (rows + keys) * (double)a->head_dim * size_of(a->dtype) +
                      (a->lse ? rows * accum_size(a->dtype) : 0)};
}

/* Five products per pair: scores again, dp, dq, dk, dv. */
static cost attention_grad_cost(const ax_attention_grad_args *a)
{
    double rows = (double)(a->batch * a->q_len * a->heads);
    double pairs = visible_pairs(a->q_len, a->q_len, 0) * (double)(a->batch * a->heads);
    double keys = (double)(a->batch * a->q_len * a->kv_heads);
    return (cost){pairs * (10 * (double)a->head_dim + TRANSCENDENTAL),
                  4 * (rows + keys) * (double)a->head_dim * size_of(a->dtype) +
                      3 * rows * accum_size(a->dtype)};
}

/* `arrays` of n elements of T touched once, and `flops` per element. */
static cost stream_cost(double n, ax_dtype dtype, double arrays, double flops)
{
    return (cost){n * flops, n * arrays * size_of(dtype)};
}

static cost with_vectors(cost c, double elements, ax_dtype dtype)
{
    c.bytes += elements * accum_size(dtype);
    return c;
}

#define GRID(a) ((double)(a)->rows * (double)(a)->cols)
#define ROWS(a) ((double)(a)->rows)
#define COLS(a) ((double)(a)->cols)

static cost norm_cost(ax_kernel kernel, const void *args)
{
    switch (kernel) {
    case AX_K_norm: {
        const ax_norm_args *a = args;
        return with_vectors(stream_cost(GRID(a), a->dtype, a->b ? 4 : 2, a->b ? 9 : 8),
                            2 * (ROWS(a) + COLS(a)), a->dtype);
    }
    case AX_K_norm_stats: {
        const ax_norm_stats_args *a = args;
        return with_vectors(stream_cost(GRID(a), a->dtype, a->b ? 3 : 1, a->b ? 5 : 4), 2 * ROWS(a),
                            a->dtype);
    }
    case AX_K_norm_recentre: {
        const ax_norm_recentre_args *a = args;
        return stream_cost(ROWS(a), a->dtype, 4, 6);
    }
    case AX_K_norm_apply: {
        const ax_norm_apply_args *a = args;
        return with_vectors(stream_cost(GRID(a), a->dtype, 2, 4), 2 * (ROWS(a) + COLS(a)), a->dtype);
    }
    case AX_K_norm_grad: {
        const ax_norm_grad_args *a = args;
        return with_vectors(stream_cost(GRID(a), a->dtype, a->add ? 4 : 3, a->add ? 18 : 17),
                            2 * ROWS(a) + 5 * COLS(a), a->dtype);
    }
    case AX_K_norm_grad_stats: {
        const ax_norm_grad_stats_args *a = args;
        return with_vectors(stream_cost(GRID(a), a->dtype, 2, 6), 4 * ROWS(a) + COLS(a), a->dtype);
    }
    default: {
        const ax_norm_grad_apply_args *a = args;
        return with_vectors(stream_cost(GRID(a), a->dtype, a->add ? 4 : 3, a->add ? 12 : 11),
                            4 * ROWS(a) + 5 * COLS(a), a->dtype);
    }
    }
}

static cost loss_cost(ax_kernel kernel, const void *args)
{
    if (kernel == AX_K_ce_max) {
        const ax_ce_max_args *a = args;
        return with_vectors(stream_cost(ROWS(a) * (double)a->vocab, a->dtype, 1, 1), ROWS(a), a->dtype);
    }
    if (kernel == AX_K_ce_sum) {
        const ax_ce_sum_args *a = args;
        return with_vectors(stream_cost(ROWS(a) * (double)a->vocab, a->dtype, 1, 2 + TRANSCENDENTAL),
                            4 * ROWS(a), a->dtype);
    }
    if (kernel == AX_K_ce_loss) {
        const ax_ce_loss_args *a = args;
        return stream_cost(ROWS(a), a->dtype, 5, 3 + TRANSCENDENTAL);
    }
    const ax_ce_grad_args *a = args;
    return with_vectors(stream_cost(ROWS(a) * (double)a->vocab, a->dtype, 2, 3 + TRANSCENDENTAL), 3 * ROWS(a),
                        a->dtype);
}

static cost update_cost(ax_kernel kernel, const void *args)
{
    if (kernel == AX_K_clip)
        return stream_cost((double)((const ax_clip_args *)args)->n, AX_F64, 1, 1);
    if (kernel == AX_K_adamw) {
        const ax_adamw_args *a = args;
        cost c = stream_cost((double)a->n, a->dtype, 7, 15 + TRANSCENDENTAL);
        c.bytes += (double)a->copied * size_of(a->copy_dtype);
        return c;
    }
    const ax_sgd_args *a = args;
    cost c = stream_cost((double)a->n, a->dtype, 5, 7);
    c.bytes += (double)a->copied * size_of(a->copy_dtype);
    return c;
}

static cost box_cost(const ax_copy_box_args *a)
{
    double n = (double)a->n[0] * (double)a->n[1] * (double)a->n[2] * (double)a->n[3];
    return stream_cost(n, a->dtype, a->accumulate ? 3 : 2, a->accumulate ? 1 : 0);
}

static cost init_cost(const ax_init_normal_args *a)
{
    double n = (double)a->n[0] * (double)a->n[1] * (double)a->n[2] * (double)a->n[3];
    return stream_cost(n, a->dtype, 1, 4 * TRANSCENDENTAL);
}

static cost embedding_cost(const ax_embedding_args *a)
{
    cost c = stream_cost(GRID(a), a->dtype, a->accumulate ? 3 : 2, a->accumulate ? 1 : 0);
    c.bytes += ROWS(a) * sizeof(int32_t);
    return c;
}

/* Element by element kernels, whose structs differ. */
static cost pointwise_cost(ax_kernel kernel, const void *args)
{
    switch (kernel) {
    case AX_K_bias_add: {
        const ax_bias_add_args *a = args;
        return with_vectors(stream_cost(GRID(a), a->dtype, 2, 1), COLS(a), a->dtype);
    }
    case AX_K_col_sum: {
        const ax_col_sum_args *a = args;
        return with_vectors(stream_cost(GRID(a), a->dtype, 1, 1), 2 * COLS(a), a->dtype);
    }
    case AX_K_embedding_grad: {
        const ax_embedding_grad_args *a = args;
        return with_vectors(stream_cost(GRID(a), a->dtype, 1, 1), 2 * GRID(a) + ROWS(a), a->dtype);
    }
    case AX_K_gelu: {
        const ax_gelu_args *a = args;
        return stream_cost((double)a->n, a->dtype, 2, 6 + TRANSCENDENTAL);
    }
    case AX_K_gelu_grad: {
        const ax_gelu_grad_args *a = args;
        return stream_cost((double)a->n, a->dtype, 3, 12 + TRANSCENDENTAL);
    }
    case AX_K_add:
        return stream_cost((double)((const ax_add_args *)args)->n, ((const ax_add_args *)args)->dtype, 3, 1);
    case AX_K_dropout: {
        const ax_dropout_args *a = args;
        return stream_cost(GRID(a), a->dtype, 2, 2 + TRANSCENDENTAL);
    }
    case AX_K_sumsq: {
        const ax_sumsq_args *a = args;
        return stream_cost((double)a->n, a->dtype, 1, 2);
    }
    case AX_K_scale: {
        const ax_scale_args *a = args;
        return stream_cost((double)a->n, a->dtype, 2, 1);
    }
    case AX_K_convert: {
        const ax_convert_args *a = args;
        return (cost){0, (double)a->n * (size_of(a->x_dtype) + size_of(a->y_dtype))};
    }
    default: {
        const ax_fill_args *a = args;
        return stream_cost((double)a->n, a->dtype, 1, 0);
    }
    }
}

static cost cost_of(ax_kernel kernel, const void *args)
{
    switch (kernel) {
    case AX_K_gemm:
        return gemm_cost(args);
    case AX_K_attention:
        return attention_cost(args);
    case AX_K_attention_grad:
        return attention_grad_cost(args);
    case AX_K_norm:
    case AX_K_norm_stats:
    case AX_K_norm_recentre:
    case AX_K_norm_apply:
    case AX_K_norm_grad:
    case AX_K_norm_grad_stats:
    case AX_K_norm_grad_apply:
        return norm_cost(kernel, args);
    case AX_K_ce_max:
    case AX_K_ce_sum:
    case AX_K_ce_loss:
    case AX_K_ce_grad:
        return loss_cost(kernel, args);
    case AX_K_clip:
    case AX_K_adamw:
    case AX_K_sgd:
        return update_cost(kernel, args);
    case AX_K_copy_box:
        return box_cost(args);
    case AX_K_init_normal:
        return init_cost(args);
    case AX_K_embedding:
        return embedding_cost(args);
    default:
        return pointwise_cost(kernel, args);
    }
}

void ax_kernel_cost(ax_kernel kernel, const void *args, double *flops, double *bytes)
{
    cost c = cost_of(kernel, args);
    *flops = c.flops;
    *bytes = c.bytes;
}
