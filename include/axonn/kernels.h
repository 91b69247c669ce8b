/* The kernels of a device: element types, an argument struct for each kernel, and the cost of a call.
 * Devices, and the functions that run kernels on them, are in dev.h.
 *
 * Every kernel takes one argument struct, so that checking, dry running, counting and tracing are each
 * written once, in ax_launch. Arrays are row-major. They are dense unless a struct has a stride; elements
 * along the last dim are adjacent (except in copy_box). An array is the *local* box of one rank: kernels know
 * no layouts (tensor.h). Extents may be 0. The table in src/dev/kernel.c has a row for each kernel, with the
 * supported dtypes, the number of floating-point operations, and the operands, from which the cost of a call
 * and the lifetimes of memory follow. An argument struct has no padding except after its last field. So two
 * calls are equal if the bytes of their structs are equal up to the end of the last field.
 *
 * Below, `dtype` is the field of that name, the dtype of activations (F64, F32, BF16 or F16). "accum" is the
 * dtype of sums and parameters that goes with it, ax_dtype_accum(dtype): F64 for F64, else F32. Shapes are in
 * terms of the struct's fields, for example [rows, cols]; r is an index of rows, c of columns. If a comment
 * omits the shape or dtype of an array, the nearest comment above that gives it for an array of the same name
 * applies. Results do not depend on the number of threads, except for the bits of a NaN. Kernels that do
 * arithmetic may flush subnormals to 0 (those of backend cpu do: docs/decisions/0012); kernels that copy,
 * fill or convert keep subnormals. */
#ifndef AXONN_KERNELS_H
#define AXONN_KERNELS_H

#include "axonn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- element types ------------------------------------------------------------------------------- */

typedef enum ax_dtype {
    AX_F64,
    AX_F32,
    AX_BF16,
    AX_F16,
    AX_I32,
    AX_I64,
    AX_U16,
    AX_U8,
    AX_DTYPE_COUNT
} ax_dtype;

size_t ax_dtype_size(ax_dtype dtype);
/* Returns the name of a dtype, such as "f32"; never NULL. */
const char *ax_dtype_name(ax_dtype dtype);
/* Returns the dtype in which values of `dtype` are accumulated: F64 for F64, else F32. */
ax_dtype ax_dtype_accum(ax_dtype dtype);

/* Convert a float to the bits of a bf16 or f16 number, rounding to nearest even, and back. NaN stays NaN. */
uint16_t ax_bf16_from_float(float x);
float ax_bf16_to_float(uint16_t x);
uint16_t ax_f16_from_float(float x);
float ax_f16_to_float(uint16_t x);

/* ax_load reads one element of an array in host memory as a double. ax_store writes a double as one element:
 * rounded to a floating-point dtype, truncated towards 0 to an integer dtype, and for an unsigned dtype then
 * reduced modulo 2^bits. */
double ax_load(ax_dtype dtype, const void *data, int64_t index);
void ax_store(ax_dtype dtype, void *data, int64_t index, double value);

/* ---- kernels ------------------------------------------------------------------------------------- */

/* The list of kernels: X(name). The arguments of a kernel are a struct ax_<name>_args; ax_launch(stream,
 * AX_K_<name>, &args), or its typed wrapper ax_run_<name>(stream, &args), runs the kernel. */
/* clang-format off */
#define AX_KERNELS(X) \
    X(gemm) X(bias_add) X(col_sum) \
    X(norm) X(norm_stats) X(norm_recentre) X(norm_apply) \
    X(norm_grad) X(norm_grad_stats) X(norm_grad_apply) \
    X(attention) X(attention_grad) X(rope) X(turn) X(choose) X(embedding) X(embedding_grad) \
    X(activation) X(activation_grad) X(glu) X(glu_grad) X(add) X(dropout) \
    X(route) X(admit) X(route_stats) X(route_grad) X(group) X(dispatch) X(combine) X(combine_grad) \
    X(gemm_grouped) X(scatter) \
    X(ce_stats) X(ce_rescale) X(ce_loss) X(ce_rank) X(ce_grad) X(class_targets) X(squared_error) \
    X(sumsq) X(scale) X(convert) X(compress) X(expand) X(copy_box) X(fill) X(init_normal) \
    X(clip) X(adamw) X(sgd)
/* clang-format on */

/* clang-format off */
/* The list of activations, functions of one element: X(enumerator, function). Each backend implements the
 * value and the slope (derivative) of each `function`. With PyTorch's names:
 *   gelu_tanh    0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x³))): GELU(approximate="tanh"), transformers' "gelu_new"
 *   gelu_exact   0.5x(1 + erf(x/sqrt 2)): GELU()
 *   relu         max(x, 0): ReLU(); its slope at 0 is 0
 *   tanh         tanh(x): Tanh()
 *   silu         x/(1 + exp(-x)): SiLU() */
#define AX_ACTIVATIONS(X) \
    X(AX_GELU_TANH, gelu_tanh) X(AX_GELU_EXACT, gelu_exact) X(AX_RELU, relu) X(AX_TANH, tanh) X(AX_SILU, silu)
/* clang-format on */

typedef enum ax_activation {
#define AX_ACTIVATION_ENUM(kind, function) kind,
    AX_ACTIVATIONS(AX_ACTIVATION_ENUM)
#undef AX_ACTIVATION_ENUM
        AX_ACTIVATION_COUNT
} ax_activation;

/* The epilogue of a gemm: what the kernel does with the result of the matmul before it stores it. Below,
 * `sums` is this result, bias included. With AX_EPILOGUE_NONE, `preact` must be NULL. With the other
 * epilogues, c and `preact` are dense [m,n] of `dtype`, and `accumulate` is false. Whether `sums` is rounded
 * to `dtype` before the epilogue depends on the device. */
typedef enum ax_epilogue {
    AX_EPILOGUE_NONE,           /* c = sums */
    AX_EPILOGUE_ACTIVATION,     /* c = f(sums); preact = sums (preactivations), unless preact is NULL */
    AX_EPILOGUE_ACTIVATION_GRAD /* c = sums·f'(preact); bias must be NULL */
} ax_epilogue;

/* c[m,n] = op(a)[m,k] · op(b)[k,n] (+ c if `accumulate`) (+ bias[n] in every row, if not NULL). a and b:
 * `dtype`; c: `c_dtype`, which is `dtype` or accum; bias: accum; sums are kept in accum. a is [m,k] with row
 * stride lda, or [k,m] if trans_a; b likewise [k,n] or [n,k] if trans_b. With k == 0 the product op(a)·op(b)
 * is zeros. c and preact must not overlap a, b or each other.
 *
 * If col_sums, [m] of accum, is not NULL, the kernel also computes col_sums[i] = Σ over k of a[k,i], added to
 * the present values if `accumulate_sums`. If the product is the gradient of a weight, these sums are the
 * gradient of the bias that belongs to the weight: one pass over `a` gives both gradients. With col_sums, `a`
 * must be transposed, bias NULL, and the epilogue AX_EPILOGUE_NONE. */
typedef struct ax_gemm_args {
    int64_t m, n, k;
    const void *a, *b, *bias;
    void *c;
    int64_t lda, ldb, ldc;
    ax_dtype dtype, c_dtype;
    bool trans_a, trans_b, accumulate;
    uint8_t epilogue;   /* ax_epilogue */
    ax_activation kind; /* the activation f; with AX_EPILOGUE_NONE any value of ax_activation */
    void *preact;       /* preactivations, or NULL */
    void *col_sums;     /* sums of the columns of a, or NULL */
    bool accumulate_sums;
} ax_gemm_args;

/* y[r,c] = x[r,c] + bias[c]; y may be x. x, y: [rows, cols] of `dtype`, rows `ld` elements apart; bias:
 * [cols] of accum (ax_dtype_accum). */
typedef struct ax_bias_add_args {
    int64_t rows, cols, ld;
    const void *x, *bias;
    void *y;
    ax_dtype dtype;
} ax_bias_add_args;

/* out[c] += sum over r of x[r,c]. x: [rows, cols] of `dtype`, rows `ld` elements apart; out: accum
 * (ax_dtype_accum). */
typedef struct ax_col_sum_args {
    int64_t rows, cols, ld;
    const void *x;
    void *out;
    ax_dtype dtype;
} ax_col_sum_args;

/* The kinds of norm that the kernels below compute. AX_NORM_LAYER: LayerNorm (Ba et al. 2016), with m2 = Σ_c
 * (x - mean)². AX_NORM_RMS: RMSNorm (Zhang and Sennrich 2019), which subtracts no mean: m2 = Σ_c x², the
 * formulas below hold with mean = 0, and `sum` and s1 must be NULL. The normalized value xhat is not rounded
 * to `dtype` before it is multiplied by weight; transformers' LlamaRMSNorm rounds it. */
typedef enum ax_norm_kind { AX_NORM_LAYER, AX_NORM_RMS } ax_norm_kind;

/* The norm kernels include the residual addition x = a + b before the norm. If the width (cols) is not split
 * over ranks, there is one kernel for forward, norm, and one for backward, norm_grad. If the width is split,
 * forward is norm_stats, all-reduces of the statistics, norm_apply; backward is norm_grad_stats, an
 * all-reduce, norm_grad_apply.
 *
 * norm_stats stores x = a + b, rounded to `dtype`, and computes the local statistics of each row of x. If b
 * is NULL, the statistics are those of the rows of a, and x is not written. sum[r] = Σ_c x, m2[r] = Σ_c (x -
 * sum/cols)². With AX_NORM_RMS, m2[r] = Σ_c x². If the width is split, the caller then all-reduces `sum`,
 * calls norm_recentre, and all-reduces `m2`. norm_recentre converts `m2` from the local mean to the global
 * mean. These steps avoid cancellation (Chan et al. 1979). With AX_NORM_RMS the caller only all-reduces `m2`.
 * a, b, x: [rows, cols] of `dtype`, x may be a or b; sum, m2: [rows] of accum (ax_dtype_accum). If cols is 0,
 * `sum` and `m2` become 0. */
typedef struct ax_norm_stats_args {
    int64_t rows, cols;
    const void *a, *b;
    void *x, *sum, *m2;
    ax_dtype dtype;
    ax_norm_kind kind;
} ax_norm_stats_args;

/* Changes m2 from the sum of (x - local mean)² to the sum of (x - global mean)²: m2[r] += cols ·
 * (local_sum[r]/cols - global_sum[r]/global_cols)². All arrays are [rows] of `dtype`, F64 or F32. If cols is
 * 0, m2 is not changed. */
typedef struct ax_norm_recentre_args {
    int64_t rows, cols, global_cols;
    const void *local_sum, *global_sum;
    void *m2;
    ax_dtype dtype;
} ax_norm_recentre_args;

/* Computes y = xhat·weight + bias, where xhat = (x - mean)·rstd, mean = sum/global_cols and rstd =
 * 1/sqrt(m2/global_cols + eps). x, y: [rows, cols] of `dtype`; sum, m2: [rows], weight, bias: [cols], of
 * accum (ax_dtype_accum). bias may be NULL. */
typedef struct ax_norm_apply_args {
    int64_t rows, cols, global_cols;
    double eps;
    const void *x, *sum, *m2, *weight, *bias;
    void *y;
    ax_dtype dtype;
    ax_norm_kind kind;
} ax_norm_apply_args;

/* Computes norm_stats, then norm_apply with global_cols = cols, in one pass over memory. y must not be the
 * same array as any other argument. */
typedef struct ax_norm_args {
    int64_t rows, cols;
    double eps;
    const void *a, *b, *weight, *bias;
    void *x, *sum, *m2, *y;
    ax_dtype dtype;
    ax_norm_kind kind;
} ax_norm_args;

/* Computes the sums that the gradient of a norm needs: s1[r] = Σ_c dy·weight, s2[r] = Σ_c dy·weight·xhat,
 * with xhat = (x - mean)·rstd as in norm_apply. dy has the shape and dtype of x. If the width is split, the
 * caller then all-reduces s1 and s2. */
typedef struct ax_norm_grad_stats_args {
    int64_t rows, cols, global_cols;
    double eps;
    const void *x, *dy, *sum, *m2, *weight;
    void *s1, *s2; /* [rows] of accum */
    ax_dtype dtype;
    ax_norm_kind kind;
} ax_norm_grad_stats_args;

/* Computes the gradient of a norm: dx = rounded(rstd·(dy·weight - s1/global_cols - xhat·s2/global_cols)) +
 * add. Here `rounded` rounds to `dtype`, s1 is 0 for AX_NORM_RMS, and `add` is the gradient of x from the
 * residual connection (NULL: none). dweight[c] += Σ_r dy·xhat; dbias[c] += Σ_r dy. add, dx: `dtype`, dx may
 * be dy or `add`; dweight, dbias: [cols] of accum (ax_dtype_accum), each may be NULL. */
typedef struct ax_norm_grad_apply_args {
    int64_t rows, cols, global_cols;
    double eps;
    const void *x, *dy, *add, *sum, *m2, *weight, *s1, *s2;
    void *dx, *dweight, *dbias;
    ax_dtype dtype;
    ax_norm_kind kind;
} ax_norm_grad_apply_args;

/* Computes norm_grad_stats, then norm_grad_apply with the resulting s1 and s2 and with global_cols = cols, in
 * one pass over memory. */
typedef struct ax_norm_grad_args {
    int64_t rows, cols;
    double eps;
    const void *x, *dy, *add, *sum, *m2, *weight;
    void *dx, *dweight, *dbias;
    ax_dtype dtype;
    ax_norm_kind kind;
} ax_norm_grad_args;

/* Kernel norm fuses norm_stats and norm_apply; kernel norm_grad fuses norm_grad_stats and norm_grad_apply.
 * Each function takes the arguments of the fused kernel, and returns the arguments of the kernel in the
 * function's name, with global_cols = cols where the kernel has this field, and with s1 and s2 NULL. */
ax_norm_stats_args ax_norm_stats_of(const ax_norm_args *a);
ax_norm_apply_args ax_norm_apply_of(const ax_norm_args *a);
ax_norm_grad_stats_args ax_norm_grad_stats_of(const ax_norm_grad_args *a);
ax_norm_grad_apply_args ax_norm_grad_apply_of(const ax_norm_grad_args *a);

/* Numbers that kernels read and that change with each micro-batch. The struct is in device memory, so that
 * the arguments of launches stay the same and launches can be replayed as a graph (ax_replay_begin in dev.h).
 * A kernel that gets a NULL pointer instead uses step 0, first_row 0, loss_scale 1 and sample_scale 1. */
typedef struct ax_batch_numbers {
    uint64_t step;
    int64_t first_row; /* index of the micro-batch's first row in the step's global batch; a row is one token
                          of a sequence */
    double loss_scale; /* the factor by which the loss, and so its gradients, are multiplied (fp16) */
    double sample_scale; /* the same factor for losses that are means over the samples of the step */
} ax_batch_numbers;

/* Dropout of attention probabilities. For query i of sequence b and head h, the probability of key j becomes
 * 0 if the uniform random number of Philox (philox.h) for `key`, now->step and the index
 *     ((now->first_row + row0 + b·t + i)·heads + head0 + h)·4⌈s/4⌉ + j
 * is < p, where t is q_len and s is kv_len; otherwise it is multiplied by 1/(1-p). Kernel attention_grad
 * must get the same values as the call of attention. If p is 0, there is no dropout and the other fields are
 * ignored. */
typedef struct ax_attention_dropout {
    double p; /* in [0, 1) */
    uint64_t key;
    int64_t row0;  /* index in the micro-batch of the call's first row (a row is one token of a sequence) */
    int64_t head0; /* index of this rank's first head among all heads of the model */
    int64_t heads; /* number of heads of the model */
    const ax_batch_numbers *now;
} ax_attention_dropout;

/* Causal attention without a q_len x kv_len matrix in memory (online softmax). Query i of sequence b has
 * position p = q_offset + i among the keys; with `positions`, int32 [batch, q_len], p = positions[b,0] + i,
 * so that sequences of different lengths share a call. The query sees the keys j < kv_len with first <= j <=
 * p, where first is doc_start[b,i], the key position at which the query's document begins (doc_start NULL:
 * 0). If window > 0 (sliding-window attention), first is at least p - window + 1. For a query that sees no
 * key, o = 0 and lse = -inf. Query head h uses key head h/(heads/kv_heads). q: [batch, q_len, heads,
 * head_dim] of `dtype`, with q_ld elements from one position to the next; k, v: [batch, kv_len, kv_heads,
 * head_dim] of `dtype`, with kv_ld elements from one position to the next, and kv_batch_stride elements from
 * one sequence to the next (0: kv_len · kv_ld); o: as q, but dense; doc_start: int32 [batch, q_len]; lse:
 * [batch, heads, q_len] of accum (ax_dtype_accum), log Σ_j exp(scale·q·k_j), may be NULL. scale > 0.
 *
 * If `chosen` is not NULL, a query attends to those of these keys only whose bit is 1 (kernel choose): chosen
 * is [batch, q_len, choosers, words], and query head h uses row h/(heads/choosers). No row has more than
 * chosen_keys bits; ax_kernel_cost counts so many keys. */
typedef struct ax_attention_args {
    int64_t batch, q_len, kv_len, q_offset, heads, kv_heads, head_dim, q_ld, kv_ld, kv_batch_stride;
    double scale;
    const void *q, *k, *v;
    const int32_t *doc_start;
    const int32_t *positions; /* or NULL: q_offset for all sequences */
    int64_t window;           /* keys that a query sees at most, its own position included; 0: no limit */
    const uint64_t *chosen;   /* or NULL: all keys that a query sees */
    int64_t choosers, chosen_keys;
    void *o, *lse;
    ax_attention_dropout drop; /* dropout of the probabilities; lse is computed without dropout */
    ax_dtype dtype;
} ax_attention_args;

/* Gradients of attention for kv_len == q_len, q_offset == 0, kv_batch_stride == 0. dout is dense, as o. dq,
 * dk and dv have the shapes and strides of q, k and v, and are overwritten. `delta` ([batch, heads, q_len] of
 * accum, as lse) is scratch, which the kernel fills with the dot products of dout and o over head_dim. */
typedef struct ax_attention_grad_args {
    int64_t batch, q_len, heads, kv_heads, head_dim, q_ld, kv_ld;
    double scale;
    const void *q, *k, *v, *o, *lse, *dout;
    const int32_t *doc_start;
    int64_t window;
    void *delta, *dq, *dk, *dv;
    ax_attention_dropout drop;
    ax_dtype dtype;
} ax_attention_grad_args;

/* Rotary position embedding (Su et al. 2021), in place. x: [rows, heads, head_dim] of `dtype`, rows `ld`
 * elements apart, d = head_dim even; positions: int32 [rows]; table: F32 for every dtype, [table_rows, d/2,
 * 2], cosines and sines. The pair (u, v) = (x[r,h,i], x[r,h,i + d/2]) becomes (u·cos - v·sin, v·cos + u·sin)
 * with (cos, sin) = table[positions[r],i,:]; if `inverse`, with -sin instead of sin, which computes the
 * gradient. A row whose position is outside [0, table_rows), which is an error of the caller, becomes NaN. */
typedef struct ax_rope_args {
    int64_t rows, heads, head_dim, ld, table_rows;
    const int32_t *positions;
    const float *table;
    void *x;
    ax_dtype dtype;
    bool inverse;
} ax_rope_args;

/* Rotates heads: x[r,h,:] becomes x[r,h,:] · turn[h/(heads/kv_heads),:,:], in place, with sums in accum
 * (ax_dtype_accum). x: [rows, heads, head_dim] of `dtype`, rows `ld` elements apart; turn: [kv_heads,
 * head_dim, head_dim] of accum. head_dim is at most AX_TURN_WIDTH. */
enum { AX_TURN_WIDTH = 1024 };
typedef struct ax_turn_args {
    int64_t rows, heads, kv_heads, head_dim, ld;
    const void *turn;
    void *x;
    ax_dtype dtype;
} ax_turn_args;

/* Chooses for each query the keys with the largest scores q·k, which are computed from the first `width`
 * elements of a head (Loki, paper 2406.02542). A query sees the keys that it sees in kernel attention, whose
 * fields of the same names have the same meaning. It chooses `keys` of the n keys that it sees, or with keys
 * = 0 share·n of them, rounded up: all if there are no more. Of equal scores the lower positions are chosen.
 * If `group`, the query heads of a key head choose together, by the largest over these heads of a score minus
 * the head's largest score. q: [batch, q_len, heads, width] of `dtype`, with q_ld elements from one position
 * to the next and q_step from one head to the next; k: [batch, kv_len, kv_heads, width], with k_ld elements
 * from one position to the next, k_step from one head to the next, and k_batch_stride from one sequence to
 * the next; scores are computed in accum (ax_dtype_accum); chosen: [batch, q_len, `group` ? kv_heads : heads,
 * words], where `words` is kv_len/64 rounded up. Bit j % 64 of word j / 64 is 1 if key j is chosen; all other
 * bits are 0. A score that is not a number counts as the largest, so that it shows in the result. */
typedef struct ax_choose_args {
    int64_t batch, q_len, kv_len, q_offset, heads, kv_heads, width;
    int64_t q_ld, q_step, k_ld, k_step, k_batch_stride;
    const void *q, *k;
    const int32_t *doc_start, *positions;
    int64_t window, keys;
    double share; /* in (0, 1], if keys is 0 */
    uint64_t *chosen;
    ax_dtype dtype;
    bool group;
} ax_choose_args;

/* Looks up embeddings: y[r,:] = table[ids[r] - first,:] for first <= ids[r] < first + count, else 0. With
 * `accumulate` these values are added to y. `table` holds the rows first … first + count - 1 of the embedding
 * table: [count, cols], y: [rows, cols], of `dtype`; ids: int32 [rows]. */
typedef struct ax_embedding_args {
    int64_t rows, cols, first, count;
    const void *table;
    const int32_t *ids;
    void *y;
    ax_dtype dtype;
    bool accumulate;
} ax_embedding_args;

/* dtable[ids[r] - first,:] += dy[r,:] for ids[r] in [first, first + count), in an order that depends on the
 * ids only. dy: [rows, cols] of `dtype`; dtable: [count, cols] of `table_dtype`, which is `dtype` or accum
 * (ax_dtype_accum). The sums are kept in accum, so a row of a 16-bit dtable is rounded once for all rows of
 * dy that have its id, or a few times if the rows are so many that the backend takes them in parts. */
typedef struct ax_embedding_grad_args {
    int64_t rows, cols, first, count;
    const void *dy;
    const int32_t *ids;
    void *dtable;
    ax_dtype dtype, table_dtype;
} ax_embedding_grad_args;

/* y = f(x), where `kind` selects the activation f; n elements of `dtype`; y may be x. */
typedef struct ax_activation_args {
    int64_t n;
    const void *x;
    void *y;
    ax_dtype dtype;
    ax_activation kind;
} ax_activation_args;

/* dx = dy·f'(x), where `kind` selects the activation f; n elements of `dtype`; dx may be dy. */
typedef struct ax_activation_grad_args {
    int64_t n;
    const void *x, *dy;
    void *dx;
    ax_dtype dtype;
    ax_activation kind;
} ax_activation_grad_args;

/* Gated linear unit (Shazeer 2020): y = f(gate)·up; with AX_SILU as f it is SwiGLU. f(gate) is not rounded to
 * `dtype`. gate, up, y: [rows, cols] of `dtype`, rows of gate and up `ld` elements apart, y dense. y may be
 * gate or up if these are dense. If `scale` is not NULL, row r of y is multiplied by scale[index[r]], before
 * it is rounded. scale: accum (ax_dtype_accum), `scales` elements; index: int32 [rows], all different, in [0,
 * scales), except that rows with index -1 are not written. */
typedef struct ax_glu_args {
    int64_t rows, cols, ld, scales;
    const void *gate, *up, *scale;
    const int32_t *index;
    void *y;
    ax_dtype dtype;
    ax_activation kind;
} ax_glu_args;

/* dgate = dy·up·f'(gate), dup = dy·f(gate). gate, up, dgate, dup: [rows, cols], rows `ld` elements apart; dy:
 * dense. dgate and dup may each be the same array as gate or up, or as dy if ld is cols, but not as each
 * other. With `scale`, the dy of these formulas is dy·scale[index[r]], and two results are added: y =
 * f(gate)·up·scale[index[r]], as kernel glu computes it (y may be dy; NULL: not needed), and
 * dscale[index[r]] = Σ_c dy·f(gate)·up, `scales` elements of accum of which the others are not changed.
 * Rows with index -1 are not written.
 * Without `scale`, y and dscale must be NULL. */
typedef struct ax_glu_grad_args {
    int64_t rows, cols, ld, scales;
    const void *gate, *up, *dy, *scale;
    const int32_t *index;
    void *dgate, *dup, *y, *dscale;
    ax_dtype dtype;
    ax_activation kind;
} ax_glu_grad_args;

/* y = a + b, n elements of `dtype`; y may be a or b. */
typedef struct ax_add_args {
    int64_t n;
    const void *a, *b;
    void *y;
    ax_dtype dtype;
} ax_add_args;

/* y = x/(1-p) if the uniform random number of Philox (philox.h) for `key`, now->step and the index
 * (now->first_row + row0 + r)·global_cols + col0 + c is >= p, else 0; y may be x. row0 and col0 are the
 * indices of x[0,0] in the micro-batch and in the whole width, global_cols. x, y: [rows, cols] of `dtype`.
 * The gradient is the same kernel with x = dy, y = dx. */
typedef struct ax_dropout_args {
    int64_t rows, cols, row0, col0, global_cols;
    uint64_t key;
    double p;
    const ax_batch_numbers *now;
    const void *x;
    void *y;
    ax_dtype dtype;
} ax_dropout_args;

/* ---- mixture of experts --------------------------------------------------------------------------
 *
 * A layer with E experts (Shazeer et al. 2017) sends each token to the top_k experts that its router prefers.
 * A *choice* c = i·top_k + j is the j-th expert of token i. The choices of a rank, sorted by expert, are the
 * *rows* of the experts' matrices: kernel group finds the row of each choice and the choice of each row, so
 * that data move by lookups in a fixed order, and nothing is added concurrently. The number of rows for which
 * there is memory does not change; the bounds between experts do. They are in device memory, and the host
 * does not read them. A rank that has some of the experts computes the rows of their choices, which may be
 * none or many, in *rounds*: a fixed number of calls, each with memory for a fixed number of rows.
 *
 * route computes, for each token, probs = softmax(logits), lse = log Σ exp(logits), and the experts with the
 * top_k largest probabilities in descending order; of equal ones the lower index comes first. weight is their
 * probability, divided by the sum of the token's chosen probabilities if `renormalize`. A token with NaN in
 * its logits still gets top_k different experts: a NaN counts as less than any number. logits, probs:
 * [rows, experts], weight: [rows, top_k], lse: [rows], of `dtype`, F64 or F32; choice: int32 [rows, top_k].
 * 1 <= top_k <= experts. */
typedef struct ax_route_args {
    int64_t rows, experts, top_k;
    const void *logits;
    void *probs, *lse, *weight;
    int32_t *choice;
    ax_dtype dtype;
    bool renormalize;
} ax_route_args;

/* The expert of a choice, which may have no place (kernel admit). */
#define AX_EXPERT_OF(choice) ((choice) < 0 ? ~(choice) : (choice))

/* Gives the choices of each sample, which has `tokens` consecutive tokens, places at experts: each expert has
 * `capacity` places for each sample, which go to its choices in the order of tokens, so that no token takes a
 * place from one before it. A choice of expert e without a place becomes ~e, which is negative. Tokens with a
 * negative id are padding and get no places; ids: int32 [samples·tokens], NULL: there is no padding. choice:
 * int32 [samples·tokens, top_k], at least 0; the choices of a token are different experts.
 *
 * Places are rows of a matrix of experts·samples·capacity rows, those of expert e and sample s beside each
 * other: choice c has the row place[c] and row r the choice source[r]; both are -1 where there is none. They
 * may be NULL: not needed. */
typedef struct ax_admit_args {
    int64_t samples, tokens, experts, top_k, capacity;
    const int32_t *ids;
    int32_t *choice, *place, *source;
} ax_admit_args;

/* Statistics of the choices of each sample, which has `tokens` consecutive tokens. Tokens with a negative id
 * are padding and do not count; ids: int32 [samples·tokens], NULL: all count. For sample s with T counted
 * tokens, of which count[e] choices are expert e, with a place or without: share[s,e] = E·count[e]/T for e <
 * experts, and share[s,experts] = 1/T; all 0 if T is 0. Adds to `total`: total[0] += Σ_s Σ_e share[s,e]·(mean
 * of probs[i,e] over the sample's counted tokens), the balance loss (Switch Transformers, Fedus et al. 2022,
 * eq. 4, for each sample); total[1] += Σ_s (mean of lse² over them), the z loss (ST-MoE, Zoph et al. 2022,
 * eq. 5); total[2 + e] += Σ_s count[e]; total[2 + experts] += the number of counted tokens' choices without a
 * place. total: F64 [3 + experts]; share: [samples, experts + 1] of `dtype`, F64 or F32, as are the other
 * arrays of route. */
typedef struct ax_route_stats_args {
    int64_t samples, tokens, experts, top_k;
    const void *probs, *lse;
    const int32_t *choice, *ids;
    void *share;
    double *total;
    ax_dtype dtype;
} ax_route_stats_args;

/* The gradient of the logits of route, from dweight, the gradient of `weight`, and from the losses
 * `balance`·total[0] and `z`·total[1] of route_stats times now->sample_scale, in which choices and shares
 * count as constants (share as in route_stats; NULL if balance and z are 0). dlogits: [samples·tokens,
 * experts] of `dtype`; the other arrays are of accum (ax_dtype_accum). */
typedef struct ax_route_grad_args {
    int64_t samples, tokens, experts, top_k;
    double balance, z;
    const void *probs, *lse, *weight, *dweight, *share;
    const int32_t *choice, *ids;
    const ax_batch_numbers *now;
    void *dlogits;
    ax_dtype dtype;
    bool renormalize;
} ax_route_grad_args;

/* Sorts those of n choices whose group is one of `groups` groups from `first` on by group, stably: row r has
 * choice source[r], and choice c is row place[c]; both are -1 where there is none. Choices of negative groups
 * have no rows (kernel admit). Round i has the rows from
 * i·rows to (i+1)·rows-1; of group first+g these are the rows bounds[i·(groups+1)+g] …
 * bounds[i·(groups+1)+g+1]-1, counted from i·rows. group: int32 [n]; source: int32 [rounds·rows], at least as
 * many as there are rows; place: int32 [n]; bounds: int32 [rounds·(groups+1)]. */
typedef struct ax_group_args {
    int64_t n, first, groups, rows, rounds;
    const int32_t *group;
    int32_t *source, *place, *bounds;
} ax_group_args;

/* Copies to each row the token of its choice: y[r,:] = x[source[r]/top_k,:], times scale[source[r]] if scale
 * is not NULL; a row with source[r] -1 becomes 0 if `zeros`, else it is not written. x: [n, cols], y: [rows,
 * cols] of `dtype`; scale: [n·top_k] of accum (ax_dtype_accum). */
typedef struct ax_dispatch_args {
    int64_t n, rows, cols, top_k;
    const void *x, *scale;
    const int32_t *source;
    void *y;
    ax_dtype dtype;
    bool zeros;
} ax_dispatch_args;

/* Copies rows to places in a longer array: y[p,place[r],:] = x[r,p,:]; a row with place[r] -1 is not copied.
 * No two rows have the same place. x: [n, parts, cols], rows `ld` elements apart, parts of a row `step`; y:
 * [parts, rows, cols] of `dtype`; place: int32 [n]. */
typedef struct ax_scatter_args {
    int64_t n, rows, parts, cols, ld, step;
    const void *x;
    const int32_t *place;
    void *y;
    ax_dtype dtype;
} ax_scatter_args;

/* Adds up the rows of each token's choices, in the order of the choices: y[i,:] = Σ_j
 * x[place[i·top_k+j]-first,:], in accum (ax_dtype_accum), over the choices whose places are from `first` to
 * first+rows-1, each times scale[i·top_k+j] if scale is not NULL; added to the present y[i,:] if
 * `accumulate`. This is the gradient of dispatch, as dispatch is the gradient of combine. x: [rows, cols], y:
 * [n, cols] of `dtype`; scale: [n·top_k] of accum. */
typedef struct ax_combine_args {
    int64_t n, rows, first, cols, top_k;
    const void *x, *scale;
    const int32_t *place;
    void *y;
    ax_dtype dtype;
    bool accumulate;
} ax_combine_args;

/* The gradient of the scale of kernel combine, with `first` 0: dscale[i·top_k+j] = Σ_c
 * dy[i,c]·x[place[i·top_k+j],c], and 0 for choices without a place. x: [rows, cols], dy: [n, cols] of
 * `dtype`, dscale: [n·top_k] of accum. */
typedef struct ax_combine_grad_args {
    int64_t n, rows, cols, top_k;
    const void *x, *dy;
    const int32_t *place;
    void *dscale;
    ax_dtype dtype;
} ax_combine_grad_args;

/* Products of groups of rows with a matrix of each group; the rows of group g are bounds[g] …
 * bounds[g+1]-1 (kernel group), all rows together bounds[groups], at most m or k. With bounds NULL each group
 * has `each` rows. Fields are named as in
 * ax_gemm_args. With trans_a false the rows are those of a and c: c[r,:] = a[r,:]·op(b_g) for the rows r of
 * group g, m rows in all, of which those of no group are not written. With trans_a true the rows are those of
 * a and b, and each group has a result: c_g = Σ_r a[r,:]ᵀ·b[r,:] over the rows of group g, k rows in all,
 * added to the present c_g if `accumulate`; a group without rows adds nothing, or has the result 0. op(b_g)
 * and c_g are [k,n] and [m,n]; the matrix of group g, b_g or c_g, begins `stride` elements after that of
 * group g-1 and has the row stride ldb or ldc, so matrices of groups may lie within one another's rows. With
 * trans_a, trans_b must be false.
 *
 * The order of a sum depends on the call's extents only, not on the number of rows of a group. Above
 * AX_CPU_GEMV_ROWS rows the results are those of one gemm for each group, bit for bit (cpu). a, b: `dtype`;
 * c: `c_dtype`, which is `dtype` or accum; sums are kept in accum. */
typedef struct ax_gemm_grouped_args {
    int64_t m, n, k, groups, each;
    const void *a, *b;
    const int32_t *bounds;
    void *c;
    int64_t lda, ldb, ldc, stride;
    ax_dtype dtype, c_dtype;
    bool trans_a, trans_b, accumulate;
} ax_gemm_grouped_args;

/* ---- losses, copies, updates ---------------------------------------------------------------------- */

/* Cross-entropy takes three kernels: ce_stats, ce_loss, and ce_grad, which overwrites the logits with their
 * gradient. If the vocabulary is split over ranks, ce_stats is followed by an all-reduce of `max` (MAX),
 * ce_rescale, and an all-reduce of `sum` and `target_logit` (SUM).
 *
 * ce_stats computes max[r], the maximum of the row, sum[r] = Σ_j exp(logit - max[r]), and target_logit[r],
 * the logit of targets[r] if that token is one of first … first + vocab - 1, else 0. logits: [rows, vocab] of
 * `dtype`, rows `ld` elements apart; column j is the logit of token first + j; memory between rows is neither
 * read nor written. targets: int32 [rows]; a row with a negative target is masked. max, sum, target_logit,
 * loss: [rows] of accum (ax_dtype_accum). With vocab 0, max is -inf and sum is 0. */
typedef struct ax_ce_stats_args {
    int64_t rows, vocab, ld, first;
    const void *logits;
    const int32_t *targets;
    void *max, *sum, *target_logit;
    ax_dtype dtype;
} ax_ce_stats_args;

/* Changes `sum` from exponentials relative to the local maximum to exponentials relative to the global one:
 * sum[r] *= exp(local_max[r] - max[r]). All arrays are [rows] of `dtype`, F64 or F32. */
typedef struct ax_ce_rescale_args {
    int64_t rows;
    const void *local_max, *max;
    void *sum;
    ax_dtype dtype;
} ax_ce_rescale_args;

/* Second kernel of cross-entropy: loss[r] = log(sum) + max - target_logit, 0 if the row is masked; total[0]
 * (F64) += Σ_r loss[r]. `dtype` is the dtype of max, sum, target_logit and loss. */
typedef struct ax_ce_loss_args {
    int64_t rows;
    const void *max, *sum, *target_logit;
    const int32_t *targets;
    void *loss;
    double *total;
    ax_dtype dtype;
} ax_ce_loss_args;

/* Counts the tokens that beat the target: rank[r] (int32) = the number of columns with a larger logit than
 * target_logit[r], or with the same logit and a smaller id than targets[r]; 0 if the row is masked. If the
 * vocabulary is split over ranks, target_logit is the sum over them, and an all-reduce of `rank` (SUM)
 * follows. The target is the token that ax_sample takes at temperature 0 if its rank is 0. logits, targets
 * and target_logit are those of ce_stats. */
typedef struct ax_ce_rank_args {
    int64_t rows, vocab, ld, first;
    const void *logits, *target_logit;
    const int32_t *targets;
    int32_t *rank;
    ax_dtype dtype;
} ax_ce_rank_args;

/* Third kernel of cross-entropy, which overwrites the logits with their gradient: logits <-
 * scale·now->loss_scale·(exp(logit - max)/sum - t), where t is 1 for the target and 0 for other tokens; 0 in
 * masked rows. */
typedef struct ax_ce_grad_args {
    int64_t rows, vocab, ld, first;
    double scale;
    const ax_batch_numbers *now;
    const void *max, *sum;
    const int32_t *targets;
    void *logits;
    ax_dtype dtype;
} ax_ce_grad_args;

/* Makes targets of cross-entropy from class indices: y[r] = x[r] if x[r] is in [0, classes) and not `ignore`,
 * else -1, which masks the row. counts[0] (F64) += number of x[r] that are not `ignore`; counts[1] += number
 * of x[r] that are not `ignore` and outside [0, classes). x: [rows] of `dtype` (I32 or I64); y: int32
 * [rows]. */
typedef struct ax_class_targets_args {
    int64_t rows, classes, ignore;
    const void *x;
    int32_t *y;
    double *counts;
    ax_dtype dtype;
} ax_class_targets_args;

/* total[0] (F64) += Σ (x - target)², summed in double, in chunks that depend only on n; dx =
 * scale·now->loss_scale·(x - target) unless dx is NULL. n elements of `dtype`; dx may be x. */
typedef struct ax_squared_error_args {
    int64_t n;
    double scale;
    const ax_batch_numbers *now;
    const void *x, *target;
    void *dx;
    double *total;
    ax_dtype dtype;
} ax_squared_error_args;

/* One of the arrays whose squares kernel sumsq sums. */
typedef struct ax_sumsq_array {
    const void *x;
    int64_t n;
    int64_t first; /* number of chunks of the arrays before this one: the sum of their n/AX_SUMSQ_CHUNK, each
                      rounded up */
    int64_t to;    /* index of the array's sum in `out`; no two arrays have the same index */
} ax_sumsq_array;
enum { AX_SUMSQ_CHUNK = 1 << 16 };

/* out[to] (F64) = Σ x² for each of `arrays` arrays of `dtype`, summed in double, in chunks that depend only
 * on the array's n. The kernel reads `array`; ax_kernel_operands reads `table`, a copy of `array` in host
 * memory. */
typedef struct ax_sumsq_args {
    int64_t arrays;
    const ax_sumsq_array *array; /* device memory */
    const ax_sumsq_array *table; /* host memory */
    double *out;                 /* device memory, with room for one number more than the largest `to` */
    ax_dtype dtype;
} ax_sumsq_args;

/* x *= factor, n elements of `dtype`. */
typedef struct ax_scale_args {
    int64_t n;
    double factor;
    void *x;
    ax_dtype dtype;
} ax_scale_args;

/* y = x converted to another dtype (any of F64, F32, BF16, F16), n elements, rounding to nearest even. */
typedef struct ax_convert_args {
    int64_t n;
    const void *x;
    void *y;
    ax_dtype x_dtype, y_dtype;
} ax_convert_args;

/* The kept elements of a pruned matrix (arXiv 2302.05045, section on compressed storage). Element (r, c) of
 * `rows` rows of `cols` elements is kept if bit c % 64 of bits[r · words + c / 64] is 1, words being cols/64
 * rounded up; bits from `cols` on are 0. A vector has the kept elements of row r in ascending order of c,
 * from element begin[r] - begin[0] on; zeros follow, up to the next row's first element. begin: [rows + 1],
 * not descending.
 *
 * compress: y, a vector of n = begin[rows] - begin[0] elements, is overwritten with the kept elements of x,
 * or they are added to y, with one rounding, and the zeros stay as they are. x: rows of x_dtype, ld elements
 * apart; the dtypes are F64 and F64, or F32 and any of F32, BF16 and F16. */
typedef struct ax_compress_args {
    int64_t rows, cols, ld, n;
    const uint64_t *bits;
    const int32_t *begin;
    const void *x;
    void *y;
    ax_dtype x_dtype, y_dtype;
    bool accumulate;
} ax_compress_args;

/* expand: writes elements first … first+n-1 of a vector, of which x is the first, to their places in y: rows
 * of `cols` elements, one after the other. `whole`: these are all elements of the vector, and what is not
 * kept becomes 0; otherwise it stays as it is. Rounds as `convert` does; dtypes as for compress. */
typedef struct ax_expand_args {
    int64_t rows, cols, first, n;
    const uint64_t *bits;
    const int32_t *begin;
    const void *x;
    void *y;
    ax_dtype x_dtype, y_dtype;
    bool whole;
} ax_expand_args;

/* Strided copy of an n[0]×n[1]×n[2]×n[3] part (box) of an array of any dtype; strides in elements; innermost
 * strides may differ from 1. Elements are copied bit by bit. With `accumulate` x is added to y (F64, F32,
 * BF16 or F16 only). */
typedef struct ax_copy_box_args {
    int64_t n[4], x_stride[4], y_stride[4];
    const void *x;
    void *y;
    ax_dtype dtype;
    bool accumulate;
} ax_copy_box_args;

/* Fills y with `value`, n elements of any dtype. */
typedef struct ax_fill_args {
    int64_t n;
    double value;
    void *y;
    ax_dtype dtype;
} ax_fill_args;

/* Random initial weights: y = mean + std·ax_rng_normal(key, global index) over the part [lo, lo+n) of a
 * global array of shape `extent`, whose unused leading dims are 1. y: F64, F32, BF16 or F16, dense
 * [n0,n1,n2,n3]. */
typedef struct ax_init_normal_args {
    int64_t extent[4], lo[4], n[4];
    uint64_t key;
    double mean, std;
    void *y;
    ax_dtype dtype;
} ax_init_normal_args;

/* Numbers that optimizer kernels read and that change with each update, in device memory. Before an update
 * the host writes lr, correction1 and correction2; kernel clip writes the other fields. */
typedef struct ax_update_numbers {
    double lr, correction1, correction2; /* correction_i = 1 - beta_i^step */
    double grad_scale;                   /* the factor by which an update multiplies the gradients */
    double skip;                         /* not 0: `clip` and updates do nothing until the host clears it */
    double loss, norm;                   /* mean loss of the step; norm of the gradients (ax_clip_args) */
    double culprit;                      /* index of the first sum of squares that is not finite; -1: none */
} ax_update_numbers;

/* Prepares an update: norm = sqrt(Σ sumsq[i])/scale, where sumsq[i] is the sum of squares of gradient i of n,
 * and all gradients are still multiplied by the loss scale `scale`; loss = loss[0]/targets; grad_scale =
 * min(1, clip/(norm + 1e-6))/scale, or 1/scale if clip is 0. Sets `skip` to 1 if norm or loss is not finite,
 * else leaves it 0; sets `culprit` in either case. All arrays are F64. If `skip` is not 0 before the call,
 * `numbers` is not changed. */
typedef struct ax_clip_args {
    int64_t n;
    double clip, targets, scale;
    const double *sumsq, *loss;
    ax_update_numbers *numbers;
} ax_clip_args;

/* One parameter array that an optimizer kernel updates: weights w, optimizer state m and v, gradient g. */
typedef struct ax_update_array {
    int64_t n;
    int64_t first; /* index of the array's first element among the elements of all arrays: Σ n of the arrays
                      before it, each n rounded up to a multiple of AX_UPDATE_UNIT */
    void *w, *m, *v, *copy; /* copy: the weights in another dtype, or NULL; m: NULL for sgd without momentum;
                               v: adamw only */
    const void *g;
    int32_t decays;   /* 0: the array has no weight decay */
    ax_dtype g_dtype; /* `dtype` of the call, or copy_dtype if that is BF16 or F16 */
} ax_update_array;
enum { AX_UPDATE_UNIT = 64 };

/* The arguments of the optimizers' kernels, which update each of `arrays` arrays of `dtype` (F64 or F32),
 * from gradients of g_dtype. `copy` (any float copy_dtype) gets the new weights, rounded from w as stored, so
 * that `copy` can be computed again from w alone. If numbers->skip is not 0, nothing is written. n: number of
 * elements of all arrays; copied: number of elements of the arrays with a copy. The kernel reads `array`;
 * ax_kernel_operands reads `table`, a copy of `array` in host memory.
 *
 * adamw (Loshchilov & Hutter): g' = grad_scale·g; m = beta1·m + (1-beta1)g'; v = beta2·v + (1-beta2)g'²;
 * w -= lr·decay·w; w -= lr·(m/correction1)/(sqrt(v/correction2) + eps).
 *
 * sgd, as torch.optim.SGD: g' = grad_scale·g + decay·w; m = momentum·m + g'; w -= lr·m. If m is NULL: w -=
 * lr·g'. */
typedef struct ax_update_args {
    int64_t n, copied, arrays;
    double beta1, beta2, eps; /* adamw only */
    double momentum;          /* sgd only */
    double decay;
    const ax_update_array *array;     /* device memory */
    const ax_update_array *table;     /* host memory */
    const ax_update_numbers *numbers; /* device memory */
    ax_dtype dtype, copy_dtype;
} ax_update_args, ax_adamw_args, ax_sgd_args;

typedef enum ax_kernel {
#define AX_KERNEL_ENUM(name) AX_K_##name,
    AX_KERNELS(AX_KERNEL_ENUM)
#undef AX_KERNEL_ENUM
        AX_KERNEL_COUNT
} ax_kernel;

const char *ax_kernel_name(ax_kernel kernel);
/* Returns the bytes of the kernel's argument struct. */
size_t ax_kernel_args_size(ax_kernel kernel);
/* Computes the cost of a call. *flops: floating-point operations (multiply and add count as two); 2·m·n·k for
 * gemm, whose bias and epilogue are not counted; an estimate for other kernels, in which a transcendental
 * function counts as 8. *bytes: the bytes that the call must read and write: the sizes of its operands; an
 * operand that is both read and written counts twice. For attention, *flops counts only pairs of a query and
 * a key that the causal mask and the window allow. */
void ax_kernel_cost(ax_kernel kernel, const void *args, double *flops, double *bytes);
/* Returns *flops of ax_kernel_cost, in less time: no operands are listed. */
double ax_kernel_flops(ax_kernel kernel, const void *args);

typedef enum ax_access { AX_READ = 1, AX_WRITE = 2, AX_READ_WRITE = AX_READ | AX_WRITE } ax_access;

/* An operand: device memory that a kernel, a copy or a collective reads or writes. */
typedef struct ax_operand {
    const void *at;
    int64_t count; /* elements that are read or written */
    int64_t span;  /* elements from `at` to the end of the last element, gaps included */
    ax_dtype dtype;
    ax_access access;
} ax_operand;

typedef void ax_operand_fn(void *user, const ax_operand *operand);

/* Calls `each` for each operand of a kernel call, leaving out operands with address NULL. For kernels sumsq,
 * adamw and sgd the arrays to which the entries of `table` point are operands too. If an output is the same
 * array as an input, `each` is called for the output and for the input. */
void ax_kernel_operands(ax_kernel kernel, const void *args, ax_operand_fn *each, void *user);

#ifdef __cplusplus
}
#endif
#endif
