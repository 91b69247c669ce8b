/* dev: where arrays live and what computes on them.
 *
 * A device is one table (ax_device_ops): memory, copies and kernels. A backend fills in the kernels that it
 * does better than the backend it names as `delegate` and inherits the rest:
 *
 *   ref    plain loops in double precision, any dtype: the oracle that judges every other backend
 *   cpu    threads and SIMD for the host's processor; delegates to ref
 *   check  runs cpu's or ref's kernels, but memory faults when the host touches it, and is poisoned (NaN)
 *          when it is handed out: it finds host/device mix-ups and reads of what nobody wrote
 *   cuda   an NVIDIA GPU, in a library of its own (libaxonn_cuda.so) that is loaded when it is asked for
 *   dry    no memory and no arithmetic: counts work and lets a planner observe what is used when
 *
 * Every kernel takes one argument struct, declared below, so that checking, dry running, counting and
 * tracing are each written once, in ax_launch. Arrays are row-major, dense unless a struct has a stride (the
 * last extent is contiguous), and are a rank's *local* box: layouts do not exist here. Extents may be 0. An
 * argument struct holds pointers directly, because a dry run finds the memory a kernel uses by looking at the
 * struct's words; what an update goes over stands in a table, and is never memory that such a run plans.
 *
 * Letters: r rows, c columns, b batch, t query time, s key time, h query heads, g key/value heads, d head
 * width, v vocabulary. "T" is the activation dtype (F64, F32, BF16 or F16), "A" the accumulation and
 * parameter dtype (F64 when T is F64, else F32). All functions are not collective. Results do not depend on
 * the number of threads, but for the bits of a NaN. Kernels that compute may take numbers below the normal
 * range for 0 (those of cpu do: docs/decisions/0012); copies, fills and conversions keep them. A process made
 * by fork neither uses nor closes the devices of its parent. */
#ifndef AXONN_DEV_H
#define AXONN_DEV_H

#include "axonn/trace.h"

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
/* "f32", "bf16", …; never NULL. */
const char *ax_dtype_name(ax_dtype dtype);
/* The dtype in which values of `dtype` are accumulated: F64 for F64, else F32. */
ax_dtype ax_dtype_accum(ax_dtype dtype);

/* bf16 and f16 as bits; rounding to nearest even, NaN stays NaN. */
uint16_t ax_bf16_from_float(float x);
float ax_bf16_to_float(uint16_t x);
uint16_t ax_f16_from_float(float x);
float ax_f16_to_float(uint16_t x);

/* One element of host memory as a double, and back (integers are truncated, unsigned ones modulo their
 * range). */
double ax_load(ax_dtype dtype, const void *data, int64_t index);
void ax_store(ax_dtype dtype, void *data, int64_t index, double value);

/* ---- kernels ------------------------------------------------------------------------------------- */

/* The list of kernels: X(name). Each has `ax_<name>_args` and runs by ax_launch(stream, AX_K_<name>, &args)
 * or its typed wrapper ax_run_<name>(stream, &args). */
/* clang-format off */
#define AX_KERNELS(X) \
    X(gemm) X(bias_add) X(col_sum) \
    X(norm) X(norm_stats) X(norm_recentre) X(norm_apply) \
    X(norm_grad) X(norm_grad_stats) X(norm_grad_apply) \
    X(attention) X(attention_grad) X(embedding) X(embedding_grad) \
    X(gelu) X(gelu_grad) X(add) X(dropout) \
    X(ce_max) X(ce_sum) X(ce_loss) X(ce_grad) \
    X(sumsq) X(scale) X(convert) X(copy_box) X(fill) X(init_normal) X(clip) X(adamw) X(sgd)
/* clang-format on */

typedef enum ax_gelu_kind {
    AX_GELU_TANH, /* 0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x³))): transformers' "gelu_new" */
    AX_GELU_EXACT /* 0.5x(1 + erf(x/sqrt 2)): "gelu" */
} ax_gelu_kind;

/* What becomes of a product's sums. Where it is not STORE, c is dense and T, and nothing is accumulated;
 * `pre` is T, [m,n] and dense too. Whether what GELU takes, or what gelu' multiplies, was rounded to T before
 * is the device's. */
typedef enum ax_gemm_then {
    AX_THEN_STORE,    /* they are c */
    AX_THEN_GELU,     /* c = gelu of them; they are `pre`, unless that is NULL */
    AX_THEN_GELU_GRAD /* c = they times gelu'(pre); there is no bias */
} ax_gemm_then;

/* c[m,n] = op(a)[m,k] · op(b)[k,n] (+ c if `accumulate`) (+ bias[n] in every row, if not NULL). `dtype` of a
 * and b is T; `c_dtype` is T or A; bias is A; sums are kept in A. a is [m,k] with row stride lda, or [k,m] if
 * trans_a; b likewise [k,n] or [n,k] if trans_b. k == 0 gives the bias or zeros (or adds them to c). c
 * overlaps neither operand, nor does pre. */
typedef struct ax_gemm_args {
    int64_t m, n, k;
    const void *a, *b, *bias;
    void *c;
    int64_t lda, ldb, ldc;
    ax_dtype dtype, c_dtype;
    bool trans_a, trans_b, accumulate;
    uint8_t then;      /* ax_gemm_then */
    ax_gelu_kind kind; /* where it is not STORE */
    void *pre;
} ax_gemm_args;

/* y[r,c] = x[r,c] + bias[c]; y may be x. x, y: T; bias: A. */
typedef struct ax_bias_add_args {
    int64_t rows, cols;
    const void *x, *bias;
    void *y;
    ax_dtype dtype;
} ax_bias_add_args;

/* out[c] += sum over r of x[r,c]. x: T, rows `ld` elements apart; out: A. */
typedef struct ax_col_sum_args {
    int64_t rows, cols, ld;
    const void *x;
    void *out;
    ax_dtype dtype;
} ax_col_sum_args;

/* LayerNorm (Ba et al. 2016), with the sum that residual networks have in front of it. A whole width takes
 * one kernel each way, norm and norm_grad. Each is two others in one pass over memory, which a width that is
 * split over ranks takes with reductions between them: norm_stats, norm_apply; norm_grad_stats,
 * norm_grad_apply.
 *
 * Local statistics of each row of x = a + b, rounded to T, or of x = a if b is NULL and x, not written, too:
 * sum[r] = Σ_c x, m2[r] = Σ_c (x - sum/cols)². With the width split, all-reduce `sum`, recentre `m2` to the
 * global mean, all-reduce it: exact, no cancellation (Chan et al. 1979). a, b, x: T, x may be a or b;
 * sum, m2: A, [r]. cols 0 gives zeros. */
typedef struct ax_norm_stats_args {
    int64_t rows, cols;
    const void *a, *b;
    void *x, *sum, *m2;
    ax_dtype dtype;
} ax_norm_stats_args;

/* m2[r] += cols · (local_sum[r]/cols - global_sum[r]/global_cols)². dtype is A's. cols 0 leaves m2. */
typedef struct ax_norm_recentre_args {
    int64_t rows, cols, global_cols;
    const void *local_sum, *global_sum;
    void *m2;
    ax_dtype dtype;
} ax_norm_recentre_args;

/* With mean = sum/global_cols and rstd = 1/sqrt(m2/global_cols + eps), xhat = (x - mean)·rstd:
 * y = xhat·weight + bias. x, y: T; sum, m2, weight, bias: A (bias may be NULL). */
typedef struct ax_norm_apply_args {
    int64_t rows, cols, global_cols;
    double eps;
    const void *x, *sum, *m2, *weight, *bias;
    void *y;
    ax_dtype dtype;
} ax_norm_apply_args;

/* norm_stats, then norm_apply with global_cols = cols. y is none of the others. */
typedef struct ax_norm_args {
    int64_t rows, cols;
    double eps;
    const void *a, *b, *weight, *bias;
    void *x, *sum, *m2, *y;
    ax_dtype dtype;
} ax_norm_args;

/* s1[r] = Σ_c dy·weight, s2[r] = Σ_c dy·weight·xhat, to be summed over the ranks that split the width. */
typedef struct ax_norm_grad_stats_args {
    int64_t rows, cols, global_cols;
    double eps;
    const void *x, *dy, *sum, *m2, *weight;
    void *s1, *s2; /* A, [r] */
    ax_dtype dtype;
} ax_norm_grad_stats_args;

/* dx = rstd·(dy·weight - s1/global_cols - xhat·s2/global_cols), rounded to T, to which `add`, the gradient
 * that goes past the norm, is added if it is not NULL; dweight[c] += Σ_r dy·xhat; dbias[c] += Σ_r dy. add,
 * dx: T, dx may be dy or `add`; dweight, dbias: A, each may be NULL. */
typedef struct ax_norm_grad_apply_args {
    int64_t rows, cols, global_cols;
    double eps;
    const void *x, *dy, *add, *sum, *m2, *weight, *s1, *s2;
    void *dx, *dweight, *dbias;
    ax_dtype dtype;
} ax_norm_grad_apply_args;

/* norm_grad_stats, then norm_grad_apply with its s1 and s2, global_cols = cols. */
typedef struct ax_norm_grad_args {
    int64_t rows, cols;
    double eps;
    const void *x, *dy, *add, *sum, *m2, *weight;
    void *dx, *dweight, *dbias;
    ax_dtype dtype;
} ax_norm_grad_args;

/* The two kernels that norm is, and norm_grad: global_cols is cols, s1 and s2 are NULL. */
ax_norm_stats_args ax_norm_stats_of(const ax_norm_args *a);
ax_norm_apply_args ax_norm_apply_of(const ax_norm_args *a);
ax_norm_grad_stats_args ax_norm_grad_stats_of(const ax_norm_grad_args *a);
ax_norm_grad_apply_args ax_norm_grad_apply_of(const ax_norm_grad_args *a);

/* Causal attention without a t×s matrix in memory (online softmax). Query i of batch b has key position
 * p = q_offset + i and sees keys j < s with first[b,i] <= j <= p, where first comes from doc_start (int32
 * [b,t], in key positions; NULL means 0): documents do not see each other. A query that sees nothing gives
 * o = 0 and lse = -inf. Query head h uses key head
 * h/(heads/kv_heads). q, o: T [b,t,h,d] dense; k, v: T [b,s,g,d] with kv_batch_stride elements from one batch
 * to the next (0 means s·g·d); lse: A [b,h,t] = log Σ_j exp(scale·q·k_j), may be NULL.
 * scale > 0. */
typedef struct ax_attention_args {
    int64_t batch, q_len, kv_len, q_offset, heads, kv_heads, head_dim, kv_batch_stride;
    double scale;
    const void *q, *k, *v;
    const int32_t *doc_start;
    void *o, *lse;
    ax_dtype dtype;
} ax_attention_args;

/* Gradients of the above for kv_len == q_len, q_offset == 0, dense k and v. `delta` (A, [b,h,t]) is scratch
 * that the kernel fills with Σ_d do·o. dq, dk, dv: T, overwritten. */
typedef struct ax_attention_grad_args {
    int64_t batch, q_len, heads, kv_heads, head_dim;
    double scale;
    const void *q, *k, *v, *o, *lse, *dout;
    const int32_t *doc_start;
    void *delta, *dq, *dk, *dv;
    ax_dtype dtype;
} ax_attention_grad_args;

/* y[r,:] = table[ids[r] - first,:] for first <= ids[r] < first + count, else 0; added to y if `accumulate`.
 * table: T [count,c]; ids: int32 [r]; y: T [r,c]. */
typedef struct ax_embedding_args {
    int64_t rows, cols, first, count;
    const void *table;
    const int32_t *ids;
    void *y;
    ax_dtype dtype;
    bool accumulate;
} ax_embedding_args;

/* dtable[ids[r] - first,:] += dy[r,:] for ids in range, rows added in ascending r. dy: T; dtable: A. */
typedef struct ax_embedding_grad_args {
    int64_t rows, cols, first, count;
    const void *dy;
    const int32_t *ids;
    void *dtable;
    ax_dtype dtype;
} ax_embedding_grad_args;

/* y = gelu(x), n elements of T; y may be x. */
typedef struct ax_gelu_args {
    int64_t n;
    const void *x;
    void *y;
    ax_dtype dtype;
    ax_gelu_kind kind;
} ax_gelu_args;

/* dx = dy·gelu'(x); dx may be dy. */
typedef struct ax_gelu_grad_args {
    int64_t n;
    const void *x, *dy;
    void *dx;
    ax_dtype dtype;
    ax_gelu_kind kind;
} ax_gelu_grad_args;

/* y = a + b, n elements of dtype; y may be a or b. */
typedef struct ax_add_args {
    int64_t n;
    const void *a, *b;
    void *y;
    ax_dtype dtype;
} ax_add_args;

/* What changes from one micro-batch to the next, in device memory, so that the launches of one are those of
 * the other. Where a kernel is given NULL, all is 0, and `loss_scale` 1. */
typedef struct ax_batch_numbers {
    uint64_t step;
    int64_t first_row; /* in the step's global batch, a row being one position of a sample */
    double loss_scale; /* of which gradients are made */
} ax_batch_numbers;

/* y = x/(1-p) where the uniform number of Philox (philox.h) by `key`, now->step and the index
 * (now->first_row + row0 + r)·global_cols + col0 + c is >= p, else 0; y may be x. The same call is its own
 * gradient (x = dy, y = dx). */
typedef struct ax_dropout_args {
    int64_t rows, cols, row0, col0, global_cols;
    uint64_t key;
    double p;
    const ax_batch_numbers *now;
    const void *x;
    void *y;
    ax_dtype dtype;
} ax_dropout_args;

/* Cross-entropy over a vocabulary that may be split: row maxima (all-reduce MAX), sums (all-reduce SUM),
 * losses, then the gradient in place of the logits. logits: T [r,v], rows `ld` elements apart, where column j
 * is token first + j; what is between rows is neither read nor written. targets: int32 [r], negative =
 * masked. max, sum, target_logit, loss: A [r]. v 0 gives max = -inf, sum = 0. */
typedef struct ax_ce_max_args {
    int64_t rows, vocab, ld;
    const void *logits;
    void *max;
    ax_dtype dtype;
} ax_ce_max_args;

/* sum[r] = Σ_j exp(logit - max[r]); target_logit[r] = the target's logit if it is in this box, else 0. */
typedef struct ax_ce_sum_args {
    int64_t rows, vocab, ld, first;
    const void *logits, *max;
    const int32_t *targets;
    void *sum, *target_logit;
    ax_dtype dtype;
} ax_ce_sum_args;

/* loss[r] = log(sum) + max - target_logit, 0 where masked; total[0] (F64) += Σ_r loss[r]. dtype is A's. */
typedef struct ax_ce_loss_args {
    int64_t rows;
    const void *max, *sum, *target_logit;
    const int32_t *targets;
    void *loss;
    double *total;
    ax_dtype dtype;
} ax_ce_loss_args;

/* logits <- scale·now->loss_scale·(exp(logit - max)/sum - [token is the target]), 0 where masked. */
typedef struct ax_ce_grad_args {
    int64_t rows, vocab, ld, first;
    double scale;
    const ax_batch_numbers *now;
    const void *max, *sum;
    const int32_t *targets;
    void *logits;
    ax_dtype dtype;
} ax_ce_grad_args;

/* out[0] (F64) = Σ x², n elements of dtype, summed in double over fixed chunks. */
typedef struct ax_sumsq_args {
    int64_t n;
    const void *x;
    double *out;
    ax_dtype dtype;
} ax_sumsq_args;

/* x *= factor, n elements. */
typedef struct ax_scale_args {
    int64_t n;
    double factor;
    void *x;
    ax_dtype dtype;
} ax_scale_args;

/* y = x with another dtype (F64, F32, BF16, F16 in any pairing), n elements, rounding to nearest even. */
typedef struct ax_convert_args {
    int64_t n;
    const void *x;
    void *y;
    ax_dtype x_dtype, y_dtype;
} ax_convert_args;

/* Strided copy of an n[0]×n[1]×n[2]×n[3] box of any dtype; strides in elements; innermost strides may differ
 * from 1. Bits are copied as they are. `accumulate` adds instead (F64, F32, BF16 or F16). */
typedef struct ax_copy_box_args {
    int64_t n[4], x_stride[4], y_stride[4];
    const void *x;
    void *y;
    ax_dtype dtype;
    bool accumulate;
} ax_copy_box_args;

/* y = value, n elements of any dtype. */
typedef struct ax_fill_args {
    int64_t n;
    double value;
    void *y;
    ax_dtype dtype;
} ax_fill_args;

/* y = mean + std·ax_rng_normal(key, global index) over the box [lo, lo+n) of a global array of `extent`:
 * unused leading dims are 1. y: F64 or F32, dense [n0,n1,n2,n3]. */
typedef struct ax_init_normal_args {
    int64_t extent[4], lo[4], n[4];
    uint64_t key;
    double mean, std;
    void *y;
    ax_dtype dtype;
} ax_init_normal_args;

/* What changes from one update to the next, in device memory. The host writes the first three ahead of an
 * update, `clip` the others. */
typedef struct ax_update_numbers {
    double lr, correction1, correction2; /* correction_i = 1 - beta_i^step */
    double grad_scale;                   /* what gradients are multiplied by */
    double skip;                         /* not 0: updates change nothing, nor does `clip`, until the host
                                            clears it */
    double loss, norm;
    double culprit; /* the first of the sums that is not finite; -1: none */
} ax_update_numbers;

/* Before an update: norm = sqrt(Σ sumsq[i])/scale, n sums of squares of gradients that are `scale` times too
 * large; loss = loss[0]/targets; grad_scale = min(1, clip/(norm + 1e-6))/scale, or 1/scale if clip is 0;
 * culprit; and if norm or loss is not finite, skip = 1. All F64. If skip is not 0 already, all of `numbers`
 * stays. */
typedef struct ax_clip_args {
    int64_t n;
    double clip, targets, scale;
    const double *sumsq, *loss;
    ax_update_numbers *numbers;
} ax_clip_args;

/* One of the arrays that an update goes over, 8 words. */
typedef struct ax_update_array {
    int64_t n;
    int64_t first; /* where it stands among all elements: Σ n of the arrays before, each rounded up to a
                      multiple of AX_UPDATE_UNIT */
    void *w, *m, *v, *copy; /* copy, and for sgd m, may be NULL; sgd has no v */
    const void *g;
    int64_t decays; /* 0: without weight decay */
} ax_update_array;
enum { AX_UPDATE_UNIT = 64 };

/* AdamW (Loshchilov & Hutter) on each of `arrays` arrays, dtype A: g' = grad_scale·g; m = beta1·m +
 * (1-beta1)g'; v = beta2·v + (1-beta2)g'²; w -= lr·decay·w; w -= lr·(m/correction1)/(sqrt(v/correction2) +
 * eps). `copy` (any float copy_dtype) receives the new weights rounded from w as it is stored, so that it can
 * be made again from w alone. Where numbers->skip is not 0 nothing is written. n: elements of all arrays;
 * copied: of those that have a copy. */
typedef struct ax_adamw_args {
    int64_t n, copied, arrays;
    double beta1, beta2, eps, decay;
    const ax_update_array *array;     /* device memory */
    const ax_update_numbers *numbers; /* device memory */
    ax_dtype dtype, copy_dtype;
} ax_adamw_args;

/* g' = grad_scale·g + decay·w; m = momentum·m + g' (m NULL: plain); w -= lr·m. As torch.optim.SGD; all else
 * as for adamw. */
typedef struct ax_sgd_args {
    int64_t n, copied, arrays;
    double momentum, decay;
    const ax_update_array *array;
    const ax_update_numbers *numbers;
    ax_dtype dtype, copy_dtype;
} ax_sgd_args;

typedef enum ax_kernel {
#define AX_KERNEL_ENUM(name) AX_K_##name,
    AX_KERNELS(AX_KERNEL_ENUM)
#undef AX_KERNEL_ENUM
        AX_KERNEL_COUNT
} ax_kernel;

const char *ax_kernel_name(ax_kernel kernel);
/* Bytes of the kernel's argument struct. */
size_t ax_kernel_args_size(ax_kernel kernel);
/* Floating-point operations (multiply and add count as two) and bytes of memory that a call must move. Causal
 * attention counts the visible half. Both are exact for gemm and models for the others. */
void ax_kernel_cost(ax_kernel kernel, const void *args, double *flops, double *bytes);

/* ---- collectives --------------------------------------------------------------------------------- */

/* What ranks of a group do together (comm.h), as data: what a communicator carries out, what a dry device
 * observes, and what devices that reach each other do without the host. */
typedef enum ax_reduce_op { AX_SUM, AX_MAX } ax_reduce_op;

typedef enum ax_coll {
    AX_ALL_REDUCE,
    AX_ALL_GATHER,
    AX_REDUCE_SCATTER,
    AX_ALL_TO_ALL,
    AX_BROADCAST,
    AX_BARRIER
} ax_coll;

typedef struct ax_coll_args {
    ax_coll coll;
    const void *send;
    void *recv;
    int64_t count; /* per rank for gather, scatter and all-to-all; of the whole for the others */
    ax_dtype dtype;
    ax_reduce_op op;
    int root;
} ax_coll_args;

/* "all_reduce", …; never NULL. */
const char *ax_coll_name(ax_coll coll);
/* "all_reduce (max) of 8 f32", "broadcast of 3 i64 from 2", "barrier". */
void ax_coll_describe(const ax_coll_args *args, char *out, size_t size);

/* ---- devices ------------------------------------------------------------------------------------- */

typedef struct ax_device ax_device;

/* An ordered queue of work on a device. The host backends run a kernel before ax_launch returns; a GPU runs
 * it later, in order, and a failure of it may be told by any later call. */
typedef struct ax_stream {
    ax_device *dev;
    void *impl; /* the backend's */
} ax_stream;

typedef ax_status ax_kernel_fn(ax_stream *stream, const void *args);

/* For backends: a product that does not end in STORE by the two kernels of the table that it is. */
AX_MUST_CHECK ax_status ax_gemm_in_two(ax_stream *stream, const ax_gemm_args *args,
                                       ax_kernel_fn *const kernel[]);

/* Devices that reach one another without the host (GPUs by NCCL). A link is a rank's end of a group of them.
 * What is started on the links of a device runs in that order, beside its stream; so ranks that are in
 * several groups start on them in one common order. */
typedef struct ax_link ax_link;
enum { AX_LINK_TOKEN = 128, AX_LINK_PLACE = 32 };

typedef struct ax_link_group {
    const char *name;  /* for messages */
    const void *token; /* of the group: the same on all its ranks */
    int rank, size;
    /* NULL, or why the others will not come; asked now and then while this rank waits for them. */
    const char *(*failed)(void *user);
    void *user;
} ax_link_group;

typedef struct ax_link_ops {
    const char *name;
    /* Why this device has no links, or NULL. */
    const char *(*absent)(ax_device *dev);
    /* Which device of its machine it is: those of a group differ. */
    void (*place)(ax_device *dev, char out[AX_LINK_PLACE]);
    /* A new group's token, made by one rank for all. */
    ax_status (*invite)(void *token);
    /* Collective along the group; for set-up. If one rank fails, the others may wait up to two minutes. */
    ax_status (*open)(ax_device *dev, const ax_link_group *group, ax_link **out);
    void (*close)(ax_link **link); /* nothing may be in flight, unless the world has failed */
    /* Starts a collective between buffers of the device after what its stream has; args->count > 0. */
    ax_status (*start)(ax_link *link, const ax_coll_args *args, int64_t *ticket);
    /* What the device's stream is given from now on runs after it. The host does not wait. */
    ax_status (*await)(ax_link *link, int64_t ticket);
} ax_link_ops;

typedef struct ax_device_ops {
    const char *name, *help;
    const char *delegate; /* whose entries fill the NULL ones, or NULL */
    /* Loads the table of a plugin, which is the delegate then; NULL if it cannot, and `absent` says why.
     * Optional. */
    const struct ax_device_ops *(*plugin)(void);
    /* Why the backend cannot be used on this host, or NULL if it can. Optional. */
    const char *(*absent)(void);
    /* Optional, and not inherited: those of the delegates are called too, `open` from the last delegate up to
     * the backend itself, `close` the other way round. */
    ax_status (*open)(ax_device *dev);
    void (*close)(ax_device *dev);
    /* Its memory is not the host's: what collectives move goes through a copy, or over links. */
    bool apart;
    const ax_link_ops *links; /* or NULL */
    /* Bytes that a device opened now could give to rank number `neighbour` of its machine, -1 if that is not
     * known; *place: the number of the memory that they are of. And the most that this process held of it,
     * libraries' share among it, as the driver counts. Optional: without them it is the host's memory, number
     * 0. */
    int64_t (*available)(int neighbour, int *place);
    int64_t (*held)(ax_device *dev);
    /* Bytes of scratch that kernels use on this device with so many threads; allocated by open. Optional. */
    size_t (*workspace)(int threads);
    ax_status (*alloc)(ax_device *dev, size_t bytes, void **out); /* zeroed unless poisoned, page-aligned */
    void (*free)(ax_device *dev, void *memory, size_t bytes);
    /* Each thread writes what is there in its part of an array once more. Optional. */
    void (*touch)(ax_device *dev, void *memory, size_t bytes);
    ax_status (*copy_in)(ax_stream *stream, void *device, const void *host, size_t bytes);
    ax_status (*copy_out)(ax_stream *stream, void *host, const void *device, size_t bytes); /* waits */
    /* ax_copy_out_begin and ax_copy_out_end. Optional, both or none: without them begin waits. */
    ax_status (*copy_out_begin)(ax_stream *stream, const void *device, size_t bytes);
    ax_status (*copy_out_end)(ax_stream *stream, void *host, size_t bytes);
    void (*poison)(ax_device *dev, void *memory, size_t bytes); /* optional: marks content as invalid */
    /* Returns when all that was launched has run. Optional: where it is missing, ax_launch itself waits. */
    ax_status (*wait)(ax_stream *stream);
    /* Launches as one. Between record_begin and record_end kernels are noted and not run; *graph is what was
     * noted, and `replay` enqueues it. record_end is called whatever became of the kernels; if it fails
     * nothing is left of them. forget: when all its replays have run. Optional, all or none. */
    ax_status (*record_begin)(ax_stream *stream);
    ax_status (*record_end)(ax_stream *stream, void **graph);
    ax_status (*replay)(ax_stream *stream, void *graph);
    void (*forget)(ax_device *dev, void *graph);
    /* The device's own clock: `stamp` has it note when the stream has come so far, as number 0 … AX_STAMPS-1;
     * `between` waits for the second of two stamps and says what has passed, in seconds. Optional, both or
     * none: without them launches are waited for that are timed. */
    ax_status (*stamp)(ax_stream *stream, int number);
    ax_status (*between)(ax_stream *stream, int first, int second, double *seconds);
    /* Floating-point operations per second of products of `compute` at best, seen in about so many seconds:
     * in registers, or where libraries decide what feeds them, of a large product. 0: not known. Optional. */
    double (*peak)(ax_device *dev, ax_dtype compute, double seconds);
    /* Bracket every access to device memory by library code on the host, collectives included. Optional. */
    void (*enter)(ax_device *dev);
    void (*leave)(ax_device *dev);
    /* Replaces all kernels, on a device that has no memory (dry): its pointers lead nowhere. Optional. */
    ax_status (*launch)(ax_stream *stream, ax_kernel kernel, const void *args);
    ax_kernel_fn *kernel[AX_KERNEL_COUNT];
} ax_device_ops;

/* Told of every argument block (kernels, copies, collectives) that a dry device sees, before it "runs". */
typedef void ax_observe_fn(void *user, const void *args, size_t bytes);

/* Told of every launch on a device of any kind, before it is run. */
typedef void ax_watch_fn(void *user, ax_kernel kernel, const void *args);

enum { AX_STAMPS = 4096 };    /* of a device that has them */
enum { AX_COPY_LATER = 256 }; /* bytes: of ax_copy_out_begin */

/* What the launches of one kernel came to. */
typedef struct ax_kernel_total {
    int64_t calls;
    double seconds, flops, bytes; /* the last two as ax_kernel_cost counts them */
} ax_kernel_total;

/* The cores that the threads of a device have to themselves. */
enum { AX_CORES_MAX = 1024 };
typedef struct ax_binding {
    int n;               /* cores, one for each thread; 0: the system places the threads */
    const char *why_not; /* because of this */
    int neighbour;       /* the rank's number among those of its machine: which of several GPUs is its */
    bool alone;          /* the process has no other thread that is often busy: one rank, no MPI traffic */
    uint64_t cores[AX_CORES_MAX / 64]; /* bit i of word w: core 64·w + i, as ax_cores numbers them */
} ax_binding;
/* The cores as "0-3,6", in `size` bytes. Returns out. */
char *ax_binding_print(const ax_binding *binding, char *out, size_t size);

/* Launches that come again: see ax_replay_begin. */
typedef struct ax_replay ax_replay;

struct ax_device {
    ax_device_ops ops; /* resolved: inherited entries filled in */
    int threads;
    const ax_binding *binding; /* that it is to be opened with, or NULL; NULL when it is open */
    ax_event_ring *ring;       /* kernels, and the layers they belong to, are noted here (trace.h) */
    double flops, bytes;       /* totals over all launches since open */
    int64_t launches;
    ax_kernel_total *totals; /* [AX_KERNEL_COUNT] that launches are added to, their times at the latest by
                                ax_stream_wait; or NULL */
    struct {
        int first, n;
        ax_kernel kernel[AX_STAMPS / 2];
    } stamped; /* a ring of launches between two stamps each, whose times have not been added */
    char later[AX_COPY_LATER]; /* what ax_copy_out_begin has read, where the backend does not keep it */
    ax_replay *replay;         /* that has begun; or NULL */
    ax_observe_fn *observe;    /* dry device only */
    void *observe_user;
    ax_watch_fn *watch; /* or NULL */
    void *watch_user;
    void *impl;   /* of the backend that computes */
    void *memory; /* of the backend that hands out memory, where another one computes */
};

/* The registry: backends in the order in which they are preferred least to most. */
int ax_device_count(void);
const ax_device_ops *ax_device_backend(int index);

/* Why backend `name` cannot be used on this host, or NULL if it can. A plugin is loaded for it. */
const char *ax_device_absent(const char *name);

/* Opens backend `name` ("ref", "cpu", "cuda", "check", "check:cpu", "dry"). threads 0 means one per physical
 * core. `name` unknown or absent on this host: AX_ERR_USAGE naming those that are there. The caller owns
 * *out. */
AX_MUST_CHECK ax_status ax_device_open(const char *name, int threads, ax_device **out);
/* The same with each thread bound to one of binding->cores: the opening thread to the first, until it closes
 * the device, the others to the next ones. None is if `binding` is NULL, has not as many cores as there are
 * threads, or the system refuses. Threads that the opening one starts meanwhile inherit its core unless
 * ax_thread_start starts them. */
AX_MUST_CHECK ax_status ax_device_open_bound(const char *name, int threads, const ax_binding *binding,
                                             ax_device **out);
void ax_device_close(ax_device **dev);
/* Bytes of scratch that backend `name` takes with so many threads (0: one per physical core), without opening
 * it. */
AX_MUST_CHECK ax_status ax_device_workspace(const char *name, int threads, size_t *bytes);

/* The instruction sets that kernels of the cpu backend are compiled for and this processor can run, best
 * first (of "avx512_amx", "avx512_bf16", "avx512", "avx2", "generic"); NULL beyond the last. "avx512_amx" has
 * bf16 products and attention on tiles; asking whether it can run gets this process the right to use them. */
const char *ax_isa_name(int index);
/* The one that a cpu device opened now uses: the best, or what environment AXONN_ISA names. If that is none
 * of the above: AX_ERR_USAGE naming those that are. */
AX_MUST_CHECK ax_status ax_isa_chosen(const char **name);

/* What the device can do at best, the best of what was seen in about so many seconds: floating-point
 * operations per second of multiply-adds of `compute` that wait for nothing (0: not known for this device),
 * and bytes per second of an array far larger than caches that is read and written in place (256 MiB, taken
 * for the while; AX_ERR_MEMORY). */
AX_MUST_CHECK ax_status ax_device_peak(ax_device *dev, ax_dtype compute, double seconds, double *flops);
AX_MUST_CHECK ax_status ax_device_stream(ax_device *dev, double seconds, double *bytes);

/* The machine's physical cores, and which of them the affinity mask leaves to this process. Cores beyond
 * AX_CORES_MAX are not seen. */
typedef struct ax_cores {
    int machine;                        /* how many there are */
    double quota;                       /* CPUs' worth of time that the control group allows; infinite: all */
    uint64_t usable[AX_CORES_MAX / 64]; /* bit i of word w: core 64·w + i */
    bool physical; /* these are the cores, all of them; else hardware threads stand for them, or some are not
                      seen */
} ax_cores;
void ax_cores_find(ax_cores *out);
/* Physical cores that this process may use (affinity mask and cgroup quota respected), at least 1. */
int ax_cores_usable(void);
/* Bytes of the last-level caches of the cores that the affinity mask leaves to this process; 0: not known. */
int64_t ax_cores_cache(void);

/* Device memory for set-up, never within a step; *out is NULL on error (AX_ERR_MEMORY). `bytes` is the same
 * in both calls. NULL may be freed. */
AX_MUST_CHECK ax_status ax_device_alloc(ax_device *dev, size_t bytes, void **out);
void ax_device_free(ax_device *dev, void *memory, size_t bytes);

/* Bytes that a device of backend `name` opened now could give to rank number `neighbour` of its machine, -1
 * if that is not known, and the number of the memory that they are of: ranks of a machine with the same share
 * it. And the most that this process held of an open device's. Where that is the host's memory:
 * ax_memory_available, number 0, and ax_memory_peak. */
int64_t ax_device_available(const char *name, int neighbour, int *place);
int64_t ax_device_held(ax_device *dev);

/* Makes memory resident, near the threads that kernels over the elements of this array will have work on it;
 * what it holds remains. For arrays that someone else, such as a copy, writes first: memory lies near the
 * core of its first writer, and a kernel's threads write their own parts of its results. */
void ax_device_touch(ax_device *dev, void *memory, size_t bytes);

/* True if the device's kernels work on any memory of this process, as ax_device_alloc gives it or not. */
bool ax_device_uses_host_memory(const ax_device *dev);

/* Runs or enqueues a kernel. One thread at a time launches on a device. An element type that the kernel does
 * not take: AX_ERR_USAGE. */
AX_MUST_CHECK ax_status ax_launch(ax_stream *stream, ax_kernel kernel, const void *args);
#define AX_KERNEL_WRAPPER(name)                                                                              \
    AX_MUST_CHECK static inline ax_status ax_run_##name(ax_stream *stream, const ax_##name##_args *args)     \
    {                                                                                                        \
        return ax_launch(stream, AX_K_##name, args);                                                         \
    }
AX_KERNELS(AX_KERNEL_WRAPPER)
#undef AX_KERNEL_WRAPPER

/* A replay notes what is launched between its begin and its end. When the same comes again, launch by launch
 * and argument by argument, a device that can is given all of it at once (a GPU a graph), instead of a launch
 * at a time. For that launches are put off until they are known to be the same: up to the next copy, wait or
 * collective, or the end. What differs is launched as ever, and noted for the next time; nothing is assumed
 * to be as it was. So what changes every time belongs in device memory, not in arguments. Devices that cannot
 * launch as ever, as do all while launches are timed or traced, and where environment AXONN_GRAPHS is off
 * (AX_ERR_USAGE if it is neither on nor off). A device has one replay begun at a time. end: returns `status`,
 * what became of the launches, or if that is AX_OK what becomes of those put off. */
AX_MUST_CHECK ax_status ax_replay_create(ax_device *dev, ax_replay **out);
void ax_replay_destroy(ax_replay **replay);
AX_MUST_CHECK ax_status ax_replay_begin(ax_stream *stream, ax_replay *replay);
AX_MUST_CHECK ax_status ax_replay_end(ax_stream *stream, ax_status status);
/* Launches what was put off: who gives the stream something else than launches calls this first, as copies
 * and waits do. */
AX_MUST_CHECK ax_status ax_replay_cut(ax_stream *stream);

/* Returns when all that was launched on the stream has run. */
AX_MUST_CHECK ax_status ax_stream_wait(ax_stream *stream);

/* Host to device (host memory may be used again on return), and device to host (complete on return). */
AX_MUST_CHECK ax_status ax_copy_in(ax_stream *stream, void *device, const void *host, size_t bytes);
AX_MUST_CHECK ax_status ax_copy_out(ax_stream *stream, void *host, const void *device, size_t bytes);
/* Device to host in two parts. begin: the device puts `bytes`, AX_COPY_LATER at most, aside when it has done
 * what the stream was given before; the host does not wait. end: waits until it has, not for what the stream
 * was given since, and copies them to `host`. A device keeps those of the newest begin, for any number of
 * ends. */
AX_MUST_CHECK ax_status ax_copy_out_begin(ax_stream *stream, const void *device, size_t bytes);
AX_MUST_CHECK ax_status ax_copy_out_end(ax_stream *stream, void *host, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
