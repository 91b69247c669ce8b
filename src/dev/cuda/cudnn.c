/* Attention by cuDNN: which calls cuDNN supports, their plans, and a check of each plan against the plugin's
 * own kernels. A plan is made and checked at the first call of a shape, and then kept. The backward graph
 * needs workspace that grows with the square of the sequence length, so a backward call is cut into slices
 * that fit scratch. A slice is one or more sequences, or one or more key heads of one sequence with their
 * query heads. If scratch is too small for slices (cut_backward), the other backward graph is used, whose
 * workspace grows with the sequence length. If cuDNN does not have that graph, or it does not fit either, the
 * plugin's own kernels run the call. */
#include "dev/cuda/cudnn.h"
#include "dev/attention.h"
#include "dev/cuda/cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the bytes of scratch that a call may use. Tests define AXONN_CUDNN_ROOM to be less, so that even
 * small calls are cut into slices. */
#ifdef AXONN_CUDNN_ROOM
_Static_assert(AXONN_CUDNN_ROOM <= AX_CUDA_SCRATCH, "AXONN_CUDNN_ROOM is more than the scratch");
static int64_t scratch_room(const ax_cuda *cu)
{
    (void)cu;
    return AXONN_CUDNN_ROOM;
}
#else
static int64_t scratch_room(const ax_cuda *cu) { return cu->scratch_bytes; }
#endif

/* Bytes of workspace that cuDNN's engines, its implementations of a graph, may need in addition to
 * ax_cudnn_backward_bytes. */
enum { WORKSPACE_REST = 64 << 10 };

/* Which kernels run the calls of a shape. NEW: not decided, the plan is not yet checked. GOOD: the plan was
 * checked, and cuDNN is used. OWN: the plugin's own kernels are used instead of cuDNN. */
typedef enum verdict { NEW, GOOD, OWN } verdict;

/* The calls of shape `whole`, and the plans of their slices. `kind`: the graph, which for backward calls may
 * be one of two. A slice has `batch` sequences and `kv_heads` key heads; its plan is `slice`. `rest` is the
 * plan of the smaller slice at the end, if there is one. */
typedef struct shape_class {
    ax_cudnn_shape whole;
    ax_cudnn_kind kind;
    int64_t batch, kv_heads;
    ax_cudnn_plan slice, rest;
    verdict verdict;
    int overflows; /* number of checks that decided nothing, because fp16 overflowed in cuDNN only */
    struct shape_class *next;
} shape_class;

struct ax_cuda_cudnn {
    ax_cudnn lib;
    cudnnHandle_t handle;
    shape_class *first;
};
typedef struct ax_cuda_cudnn state;

/* A call of an attention kernel. `at`: the addresses of its arrays. scale, hidden and unit: the values of the
 * operands AX_CUDNN_SCALE, AX_CUDNN_HIDDEN and AX_CUDNN_UNIT. */
typedef struct call {
    ax_cudnn_shape whole;
    void *at[AX_CUDNN_OPERANDS];
    float scale, hidden, unit;
    const void *args; /* the kernel's argument struct: ax_attention_args or ax_attention_grad_args */
    const int32_t *doc_start;
} call;

/* Makes the plan of a small call, to find out whether cuDNN can make plans at all. cuDNN compiles kernels
 * when it makes a plan, and for that it loads libnvrtc and libnvrtc-builtins. Without them each plan fails,
 * and cuDNN's message does not say why. */
static ax_status check_compiler(const state *s)
{
    const ax_cudnn_shape small = {.kind = AX_CUDNN_FORWARD,
                                  .dtype = AX_BF16,
                                  .batch = 1,
                                  .time = 64,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .all_heads = 1,
                                  .all_kv_heads = 1,
                                  .width = 64,
                                  .q_ld = 64,
                                  .kv_ld = 64,
                                  .lse = 1};
    ax_cudnn_plan plan;
    ax_status status =
        ax_cudnn_plan_create(&s->lib, &(ax_cudnn_target){.handle = s->handle}, &small, WORKSPACE_REST, &plan);
    ax_cudnn_plan_destroy(&s->lib, &plan);
    if (status == AX_ERR_USAGE)
        ax_error_context(
            "cuDNN %zu.%zu.%zu makes no plan even for a small call, most likely because it does not find "
            "libnvrtc and libnvrtc-builtins: add their folders to LD_LIBRARY_PATH",
            s->lib.GetVersion() / 10000, s->lib.GetVersion() / 100 % 100, s->lib.GetVersion() % 100);
    return status;
}

ax_status ax_cuda_cudnn_create(const ax_cuda *cu, state **out)
{
    state *s;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *s, &s));
    ax_status status = ax_cudnn_load(&s->lib);
    if (status == AX_OK)
        status = ax_cudnn_check(&s->lib, s->lib.Create(&s->handle), "creating its handle");
    if (status == AX_OK)
        status = ax_cudnn_check(&s->lib, s->lib.SetStream(s->handle, cu->stream),
                                "setting the stream of its handle");
    if (status == AX_OK)
        status = check_compiler(s);
    *out = s;
    if (status != AX_OK)
        ax_cuda_cudnn_destroy(out);
    else
        ax_log(AX_LOG_DEBUG, "cuda: attention by cuDNN %zu for calls that it supports", s->lib.GetVersion());
    return status;
}

void ax_cuda_cudnn_destroy(state **out)
{
    state *s = *out;
    if (!s)
        return;
    while (s->first) {
        shape_class *c = s->first;
        s->first = c->next;
        ax_cudnn_plan_destroy(&s->lib, &c->slice);
        ax_cudnn_plan_destroy(&s->lib, &c->rest);
        free(c);
    }
    if (s->handle)
        s->lib.Destroy(s->handle);
    ax_cudnn_unload(&s->lib);
    free(s);
    *out = NULL;
}

size_t ax_cuda_cudnn_version(const state *cudnn) { return cudnn->lib.GetVersion(); }

/* ---- calls --------------------------------------------------------------------------------------- */

static bool all_aligned(void *const *at)
{
    for (int i = 0; i < AX_CUDNN_SCALE; i++)
        if ((uintptr_t)at[i] % 16)
            return false;
    return true;
}

/* Returns true if cuDNN may support a call. Its engines need bf16 or fp16, more than one query, heads whose
 * width is a multiple of 16 bytes and at most 256 elements, and rows that begin at multiples of 16 bytes. */
static bool may_support(const call *c)
{
    const ax_cudnn_shape *s = &c->whole;
    return (s->dtype == AX_BF16 || s->dtype == AX_F16) && s->batch > 0 && s->time > 1 && s->heads > 0 &&
           s->width > 0 && s->width % 8 == 0 && s->width <= 256 && s->q_ld % 8 == 0 && s->kv_ld % 8 == 0 &&
           all_aligned(c->at);
}

static void *unconst(const void *x) { return (void *)(uintptr_t)x; }

/* A call with what the arguments of both attention kernels have. */
#define CALL(graph, a)                                                                                       \
    {                                                                                                        \
        .whole = {.kind = (graph),                                                                           \
                  .dtype = (a)->dtype,                                                                       \
                  .batch = (a)->batch,                                                                       \
                  .time = (a)->q_len,                                                                        \
                  .heads = (a)->heads,                                                                       \
                  .kv_heads = (a)->kv_heads,                                                                 \
                  .all_heads = (a)->heads,                                                                   \
                  .all_kv_heads = (a)->kv_heads,                                                             \
                  .width = (a)->head_dim,                                                                    \
                  .q_ld = (a)->q_ld,                                                                         \
                  .kv_ld = (a)->kv_ld,                                                                       \
                  .documents = (a)->doc_start != NULL},                                                      \
        .at = {[AX_CUDNN_Q] = unconst((a)->q),                                                               \
               [AX_CUDNN_K] = unconst((a)->k),                                                               \
               [AX_CUDNN_V] = unconst((a)->v),                                                               \
               [AX_CUDNN_O] = unconst((a)->o),                                                               \
               [AX_CUDNN_LSE] = unconst((a)->lse)},                                                          \
        .scale = (float)(a)->scale, .args = (a), .doc_start = (a)->doc_start                                 \
    }

static call forward_call(const ax_attention_args *a)
{
    call c = CALL(AX_CUDNN_FORWARD, a);
    c.whole.lse = a->lse != NULL;
    return c;
}

static call backward_call(const ax_attention_grad_args *a)
{
    call c = CALL(AX_CUDNN_BACKWARD, a);
    c.at[AX_CUDNN_DOUT] = unconst(a->dout);
    c.at[AX_CUDNN_DELTA] = a->delta;
    c.at[AX_CUDNN_DQ] = a->dq;
    c.at[AX_CUDNN_DK] = a->dk;
    c.at[AX_CUDNN_DV] = a->dv;
    return c;
}

/* Returns the offset, in elements, of key head g of sequence b in an operand. In an operand with query heads
 * it is the offset of the first query head that uses key head g; in the document mask, of sequence b. */
static int64_t elements_to(const ax_cudnn_shape *whole, int operand, int64_t b, int64_t g)
{
    const int64_t h = g * (whole->all_heads / whole->all_kv_heads), t = whole->time, d = whole->width;
    switch (operand) {
    case AX_CUDNN_Q:
    case AX_CUDNN_DQ:
        return b * t * whole->q_ld + h * d;
    case AX_CUDNN_O:
    case AX_CUDNN_DOUT:
        return (b * t * whole->all_heads + h) * d;
    case AX_CUDNN_K:
    case AX_CUDNN_V:
    case AX_CUDNN_DK:
    case AX_CUDNN_DV:
        return b * t * whole->kv_ld + g * d;
    case AX_CUDNN_LSE:
    case AX_CUDNN_DELTA:
        return (b * whole->all_heads + h) * t;
    default: /* AX_CUDNN_DOCUMENTS */
        return b * t;
    }
}

static ax_dtype dtype_of(const ax_cudnn_shape *s, int operand)
{
    return operand == AX_CUDNN_LSE || operand == AX_CUDNN_DELTA || operand == AX_CUDNN_DOCUMENTS
               ? AX_F32
               : (ax_dtype)s->dtype;
}

static void *operand_at(const call *c, int operand, int64_t b, int64_t g)
{
    size_t bytes =
        (size_t)elements_to(&c->whole, operand, b, g) * ax_dtype_size(dtype_of(&c->whole, operand));
    return c->at[operand] ? (char *)c->at[operand] + bytes : NULL;
}

/* ---- plans --------------------------------------------------------------------------------------- */

/* documents_bytes returns the bytes of the document mask, which is at the end of scratch: as floats, the
 * first key that each query sees; 0 without documents. room_of returns the bytes of scratch before the mask,
 * for workspace and sums of dq. */
static int64_t documents_bytes(const ax_cudnn_shape *s)
{
    return s->documents ? ax_round_up(s->batch * s->time * (int64_t)sizeof(float), 256) : 0;
}
static int64_t room_of(const ax_cuda *cu, const ax_cudnn_shape *s)
{
    return scratch_room(cu) - documents_bytes(s);
}

/* Returns the size of the parts if `total` is cut into as few parts of at most `most` as possible, of nearly
 * equal size. The last part may be smaller. */
static int64_t even_part(int64_t total, int64_t most) { return ax_ceil_div(total, ax_ceil_div(total, most)); }

static int64_t group_of(const ax_cudnn_shape *s) { return s->heads / s->kv_heads; }

/* Returns the bytes of fp32 sums of dq in a slice, which lie between the workspace and the document mask; 0
 * if the graph has no such sums. */
static int64_t sums_bytes(const shape_class *c, int64_t batch, int64_t kv_heads)
{
    return ax_round_up(batch * kv_heads * group_of(&c->whole) *
                           ax_cudnn_sum_bytes(c->kind, c->whole.time, c->whole.width),
                       256);
}

/* Chooses the size of slices of backward calls by graph `kind`: as many sequences as fit scratch; if not even
 * one sequence fits, as many key heads of one sequence, with their query heads, as fit. Fails if not even one
 * key head fits. If a call must be cut, also fails if a slice would keep less than half of the GPU busy, or
 * if lse and delta of a slice would not begin at a multiple of 16 bytes. */
static ax_status cut_backward(const ax_cuda *cu, ax_cudnn_kind kind, shape_class *c)
{
    const ax_cudnn_shape *s = &c->whole;
    int64_t head =
        ax_cudnn_backward_bytes(kind, s->time, s->width) + ax_cudnn_sum_bytes(kind, s->time, s->width);
    int64_t fit = (room_of(cu, s) - WORKSPACE_REST) / (head * group_of(s));
    c->kind = kind;
    AX_CHECK(fit > 0, AX_ERR_USAGE, "cuDNN's workspace for one head does not fit the GPU's scratch memory");
    if (fit >= s->kv_heads) {
        c->batch = even_part(s->batch, fit / s->kv_heads);
        c->kv_heads = s->kv_heads;
    } else {
        c->batch = 1;
        c->kv_heads = even_part(s->kv_heads, fit);
    }
    bool whole = c->batch == s->batch && c->kv_heads == s->kv_heads;
    int64_t blocks = c->batch * c->kv_heads * group_of(s) * ax_ceil_div(s->time, 128);
    AX_CHECK(whole || 2 * blocks >= cu->processors, AX_ERR_USAGE,
             "scratch memory holds cuDNN's workspace for only %lld thread blocks at a time, which keep less "
             "than half of the GPU busy",
             (long long)blocks);
    AX_CHECK(whole || s->time % 4 == 0, AX_ERR_USAGE,
             "the call must be cut into slices, and lse of a slice would not be aligned to 16 bytes");
    return AX_OK;
}

/* Chooses graph and slices. The backward graph that stores the gradient of the scores has priority, because
 * its thread blocks do not wait for one another. */
static ax_status choose_slices(const state *s, const ax_cuda *cu, shape_class *c)
{
    bool ordered = cu->generation == 9 && s->lib.GetVersion() >= AX_CUDNN_ORDERED_VERSION;
    c->kind = (ax_cudnn_kind)c->whole.kind;
    c->batch = c->whole.batch, c->kv_heads = c->whole.kv_heads;
    if (c->kind == AX_CUDNN_FORWARD)
        return AX_OK;
    ax_status status = cut_backward(cu, AX_CUDNN_BACKWARD, c);
    return status == AX_ERR_USAGE && ordered ? cut_backward(cu, AX_CUDNN_BACKWARD_ORDERED, c) : status;
}

static ax_status plan_slice(state *s, const ax_cuda *cu, const shape_class *c, int64_t batch,
                            int64_t kv_heads, ax_cudnn_plan *out)
{
    ax_cudnn_shape shape = c->whole;
    shape.kind = c->kind;
    shape.batch = batch;
    shape.kv_heads = kv_heads;
    shape.heads = kv_heads * group_of(&c->whole);
    return ax_cudnn_plan_create(&s->lib, &(ax_cudnn_target){.handle = s->handle}, &shape,
                                room_of(cu, &c->whole) - sums_bytes(c, c->batch, c->kv_heads), out);
}

static ax_status make_plans(state *s, const ax_cuda *cu, shape_class *c)
{
    AX_CHECK(room_of(cu, &c->whole) > WORKSPACE_REST, AX_ERR_USAGE,
             "the GPU's scratch memory has no room for a workspace beside the document mask");
    AX_TRY(choose_slices(s, cu, c));
    AX_TRY(plan_slice(s, cu, c, c->batch, c->kv_heads, &c->slice));
    int64_t batch = c->whole.batch % c->batch, kv_heads = c->whole.kv_heads % c->kv_heads;
    if (batch || kv_heads)
        AX_TRY(plan_slice(s, cu, c, batch ? batch : c->batch, kv_heads ? kv_heads : c->kv_heads, &c->rest));
    return AX_OK;
}

/* Logs which kernels run the calls of a shape. `what`: cuDNN's engine, or why cuDNN is not used. */
static void log_shape(const shape_class *c, ax_log_level level, const char *what)
{
    const ax_cudnn_shape *s = &c->whole;
    ax_log(level,
           "cuda: %s attention (batch %lld, %lld positions, %lld heads, %lld key heads, width %lld%s): %s %s",
           s->kind == AX_CUDNN_FORWARD ? "forward" : "backward", (long long)s->batch, (long long)s->time,
           (long long)s->heads, (long long)s->kv_heads, (long long)s->width,
           s->documents ? " with documents" : "",
           c->verdict == OWN ? "by the plugin's own kernels:" : "by cuDNN,", what);
}

static ax_status find_shape(state *s, const ax_cuda *cu, const ax_cudnn_shape *whole, shape_class **out)
{
    for (*out = s->first; *out; *out = (*out)->next)
        if (!memcmp(&(*out)->whole, whole, sizeof *whole))
            return AX_OK;
    shape_class *c; /* there are few shapes, so a list is enough */
    AX_TRY(ax_calloc(1, sizeof *c, &c));
    c->whole = *whole;
    c->next = s->first;
    *out = s->first = c;
    if (make_plans(s, cu, c) != AX_OK) {
        c->verdict = OWN;
        log_shape(c, AX_LOG_DEBUG, ax_error_message());
    }
    return AX_OK;
}

/* ---- running ------------------------------------------------------------------------------------- */

/* Runs cuDNN's plans on all slices of a call, one slice after the other. */
static ax_status run_slices(ax_stream *stream, state *s, const shape_class *c, const call *k)
{
    const ax_cuda *cu = ax_cuda_of(stream);
    const ax_cudnn_shape *whole = &c->whole;
    char *sums = (char *)cu->scratch + room_of(cu, whole) - sums_bytes(c, c->batch, c->kv_heads);
    for (int64_t b = 0; b < whole->batch; b += c->batch)
        for (int64_t g = 0; g < whole->kv_heads; g += c->kv_heads) {
            void *at[AX_CUDNN_OPERANDS] = {[AX_CUDNN_SCALE] = unconst(&k->scale),
                                           [AX_CUDNN_HIDDEN] = unconst(&k->hidden),
                                           [AX_CUDNN_UNIT] = unconst(&k->unit)};
            bool rest = b + c->batch > whole->batch || g + c->kv_heads > whole->kv_heads;
            for (int i = 0; i < AX_CUDNN_SCALE; i++)
                at[i] = operand_at(k, i, b, g);
            at[AX_CUDNN_DQ_SUM] = sums;
            AX_TRY(ax_cudnn_plan_run(&s->lib, s->handle, rest ? &c->rest : &c->slice, at, cu->scratch));
        }
    return AX_OK;
}

static ax_status run_call(ax_stream *stream, state *s, const shape_class *c, call *k)
{
    const ax_cuda *cu = ax_cuda_of(stream);
    k->hidden = -INFINITY;
    k->unit = 1;
    if (k->doc_start) {
        k->at[AX_CUDNN_DOCUMENTS] = (char *)cu->scratch + room_of(cu, &c->whole);
        AX_TRY(ax_cuda_documents(stream, k->doc_start, c->whole.batch * c->whole.time,
                                 k->at[AX_CUDNN_DOCUMENTS]));
    }
    AX_TRY(run_slices(stream, s, c, k));
    if (k->doc_start && c->whole.kind == AX_CUDNN_FORWARD)
        return ax_cuda_blind_queries(stream, k->args);
    return AX_OK;
}

/* ---- checking a plan ----------------------------------------------------------------------------- */

/* Computes sequence b of a call by the plugin's own kernels, which store their results in the call's output
 * operands. */
static ax_status run_own(ax_stream *stream, const call *k, int64_t b)
{
    const int32_t *doc_start = k->doc_start ? k->doc_start + b * k->whole.time : NULL;
    if (k->whole.kind == AX_CUDNN_FORWARD) {
        ax_attention_args a = *(const ax_attention_args *)k->args;
        a.batch = 1;
        a.q = operand_at(k, AX_CUDNN_Q, b, 0), a.k = operand_at(k, AX_CUDNN_K, b, 0),
        a.v = operand_at(k, AX_CUDNN_V, b, 0);
        a.o = operand_at(k, AX_CUDNN_O, b, 0), a.lse = operand_at(k, AX_CUDNN_LSE, b, 0);
        a.doc_start = doc_start;
        return ax_cuda_own_attention(stream, &a);
    }
    ax_attention_grad_args a = *(const ax_attention_grad_args *)k->args;
    a.batch = 1;
    a.q = operand_at(k, AX_CUDNN_Q, b, 0), a.k = operand_at(k, AX_CUDNN_K, b, 0),
    a.v = operand_at(k, AX_CUDNN_V, b, 0);
    a.o = operand_at(k, AX_CUDNN_O, b, 0), a.lse = operand_at(k, AX_CUDNN_LSE, b, 0);
    a.dout = operand_at(k, AX_CUDNN_DOUT, b, 0), a.delta = operand_at(k, AX_CUDNN_DELTA, b, 0);
    a.dq = operand_at(k, AX_CUDNN_DQ, b, 0), a.dk = operand_at(k, AX_CUDNN_DK, b, 0),
    a.dv = operand_at(k, AX_CUDNN_DV, b, 0);
    a.doc_start = doc_start;
    return ax_cuda_own_attention_grad(stream, &a);
}

/* The elements of one sequence of an operand as a matrix, whose rows are `ld` elements apart. */
typedef struct matrix {
    int64_t rows, cols, ld;
} matrix;

static matrix sequence_of(const ax_cudnn_shape *whole, int operand)
{
    const int64_t t = whole->time, q = whole->all_heads * whole->width,
                  kv = whole->all_kv_heads * whole->width;
    switch (operand) {
    case AX_CUDNN_DQ:
        return (matrix){t, q, whole->q_ld};
    case AX_CUDNN_DK:
    case AX_CUDNN_DV:
        return (matrix){t, kv, whole->kv_ld};
    case AX_CUDNN_LSE:
        return (matrix){whole->all_heads, t, t};
    default: /* AX_CUDNN_O */
        return (matrix){t, q, q};
    }
}

/* Sets *off to the root mean square of got - want, and *size to the root mean square of want. Elements that
 * are the same infinity in `got` and `want` count as 0. */
static void measure_error(ax_dtype dtype, const void *got, const void *want, matrix m, double *off,
                          double *size)
{
    const double n = (double)(m.rows * m.cols);
    *off = *size = 0;
    for (int64_t i = 0; i < m.rows * m.cols; i++) {
        int64_t at = i / m.cols * m.ld + i % m.cols;
        double g = ax_load(dtype, got, at), w = ax_load(dtype, want, at);
        if (g == w && isinf(w))
            continue;
        *off += (g - w) * (g - w);
        *size += w * w;
    }
    *off = sqrt(*off / n), *size = sqrt(*size / n);
}

/* The RESULTS output operands that are compared, for forward and for backward calls; for forward calls lse
 * fills two places. SEQUENCES: number of sequences of a call that are compared, the first and the last.
 * OVERFLOWS: see compare_results. */
static const int results[][3] = {[AX_CUDNN_FORWARD] = {AX_CUDNN_O, AX_CUDNN_LSE, AX_CUDNN_LSE},
                                 [AX_CUDNN_BACKWARD] = {AX_CUDNN_DQ, AX_CUDNN_DK, AX_CUDNN_DV}};
enum { RESULTS = 3, SEQUENCES = 2, OVERFLOWS = 64 };

/* Copies the results of the first and the last sequence to host memory, which it allocates where
 * to[sequence][result] is NULL. Skips lse if the call does not store it. */
static ax_status copy_results(ax_stream *stream, const call *k, void *to[SEQUENCES][RESULTS])
{
    for (int i = 0; i < SEQUENCES; i++)
        for (int r = 0; r < RESULTS; r++) {
            int operand = results[k->whole.kind][r];
            void *from = operand_at(k, operand, i ? k->whole.batch - 1 : 0, 0);
            const matrix m = sequence_of(&k->whole, operand);
            size_t bytes =
                (size_t)((m.rows - 1) * m.ld + m.cols) * ax_dtype_size(dtype_of(&k->whole, operand));
            if (from && !to[i][r])
                AX_TRY(ax_calloc(1, bytes, &to[i][r]));
            if (from)
                AX_TRY(ax_cuda_copy(ax_cuda_of(stream), to[i][r], from, bytes, cudaMemcpyDeviceToHost));
        }
    return AX_OK;
}

/* Runs the first and the last sequence of the call by the plugin's own kernels, and the whole call by cuDNN,
 * and compares the results of these two sequences. The plugin's kernels and cuDNN both round to the call's
 * dtype in a few places, so the allowed difference is that of eight such roundings; a wrong result differs by
 * much more.
 *
 * A gradient far smaller than the others may be pure rounding error, as dq and dk are if each document is one
 * token. Such a gradient only has to be small. If all results are zero or one is not finite, the comparison
 * decides nothing, and c->verdict stays NEW. c->verdict also stays NEW if fp16 overflows in cuDNN only, as
 * gradients may while the loss scale is too large. Overflow number OVERFLOWS counts as a failed check. */
static ax_status compare_results(ax_stream *stream, state *s, shape_class *c, call *k,
                                 void *want[SEQUENCES][RESULTS], void *got[SEQUENCES][RESULTS])
{
    const bool fp16 = k->whole.dtype == AX_F16;
    const double bound = fp16 ? 0x1p-8 : 0x1p-5, small = k->whole.kind == AX_CUDNN_BACKWARD ? 1e-3 : 0;
    double off[SEQUENCES * RESULTS] = {0}, size[SEQUENCES * RESULTS] = {0};
    double all = 0, largest = 0;
    AX_TRY(run_own(stream, k, 0));
    AX_TRY(run_own(stream, k, k->whole.batch - 1));
    AX_TRY(copy_results(stream, k, want));
    AX_TRY(run_call(stream, s, c, k));
    AX_TRY(copy_results(stream, k, got));
    for (int i = 0; i < SEQUENCES * RESULTS; i++) {
        const int row = i / RESULTS, r = i % RESULTS, operand = results[k->whole.kind][r];
        if (want[row][r])
            measure_error(dtype_of(&k->whole, operand), got[row][r], want[row][r],
                          sequence_of(&k->whole, operand), &off[i], &size[i]);
        all += size[i] + off[i];
        largest = fmax(largest, size[i]);
    }
    bool overflow = false;
    for (int i = 0; i < SEQUENCES * RESULTS; i++) {
        double most = size[i] < small * largest ? small * largest : bound * size[i];
        AX_CHECK(isnan(size[i]) || off[i] <= most || (fp16 && !isfinite(off[i])), AX_ERR_NUMERIC,
                 "a result of cuDNN differs from that of the plugin's own kernels by %.2g of its norm",
                 off[i] / size[i]);
        overflow = overflow || (isfinite(size[i]) && !isfinite(off[i]));
    }
    c->overflows += overflow;
    AX_CHECK(c->overflows < OVERFLOWS, AX_ERR_NUMERIC,
             "fp16 overflowed in cuDNN but not in the plugin's own kernels, %d times", OVERFLOWS);
    if (all > 0 && isfinite(all))
        c->verdict = GOOD;
    return AX_OK;
}

/* Runs a call whose shape has the verdict NEW, and checks the plan. If the check fails, the plugin's own
 * kernels are used for the shape from now on. A failure of links is returned and decides nothing, because
 * cuDNN did not cause it. */
static ax_status check_first_run(ax_stream *stream, state *s, shape_class *c, call *k)
{
    void *want[SEQUENCES][RESULTS] = {{0}}, *got[SEQUENCES][RESULTS] = {{0}};
    ax_status status = compare_results(stream, s, c, k, want, got);
    for (int i = 0; i < SEQUENCES * RESULTS; i++) {
        free(want[i / RESULTS][i % RESULTS]);
        free(got[i / RESULTS][i % RESULTS]);
    }
    if (status == AX_ERR_COMM)
        return status;
    if (status != AX_OK) {
        c->verdict = OWN;
        log_shape(c, AX_LOG_WARN, ax_error_message());
    } else if (c->verdict == GOOD) {
        int64_t slices = ax_ceil_div(c->whole.batch, c->batch) * ax_ceil_div(c->whole.kv_heads, c->kv_heads);
        char what[96];
        snprintf(what, sizeof what, "which agrees with the plugin's own kernels: engine %lld%s, %lld slices",
                 (long long)c->slice.engine, c->kind == AX_CUDNN_BACKWARD_ORDERED ? " in order" : "",
                 (long long)slices);
        log_shape(c, AX_LOG_DEBUG, what);
    }
    return AX_OK;
}

/* Opens cuDNN if it is not open. If that fails, it is not tried again, and one warning says why. */
static bool open_if_needed(ax_cuda *cu)
{
    if (!cu->cudnn && ax_cuda_cudnn_create(cu, &cu->cudnn) != AX_OK) {
        ax_log(AX_LOG_WARN,
               "cuda: attention runs by the plugin's own kernels, because cuDNN cannot be used "
               "(runtime.attention=flash chooses them without this warning): %s",
               ax_error_message());
        cu->attention = AX_CUDA_FLASH;
    }
    return cu->cudnn;
}

static ax_status run_or_check(ax_stream *stream, call *k, bool *done)
{
    ax_cuda *cu = ax_cuda_of(stream);
    shape_class *c;
    if (!open_if_needed(cu))
        return AX_OK;
    state *s = cu->cudnn;
    AX_TRY(find_shape(s, cu, &k->whole, &c));
    if (c->verdict == NEW) {
        AX_CHECK(!cu->capturing, AX_ERR_INTERNAL,
                 "attention of a new shape cannot be captured in a CUDA graph at its first call: run the "
                 "same call once before the capture");
        AX_TRY(check_first_run(stream, s, c, k));
        *done = c->verdict == GOOD;
        return AX_OK;
    }
    *done = c->verdict == GOOD;
    return *done ? run_call(stream, s, c, k) : AX_OK;
}

ax_status ax_cuda_cudnn_attention(ax_stream *stream, const ax_attention_args *a, bool *done)
{
    call k = forward_call(a);
    bool training = a->q_len == a->kv_len && a->q_offset == 0 && !a->positions &&
                    ax_attention_kv_batch(a) == a->kv_len * a->kv_ld;
    *done = false;
    return training && may_support(&k) ? run_or_check(stream, &k, done) : AX_OK;
}

ax_status ax_cuda_cudnn_attention_grad(ax_stream *stream, const ax_attention_grad_args *a, bool *done)
{
    call k = backward_call(a);
    *done = false;
    return may_support(&k) ? run_or_check(stream, &k, done) : AX_OK;
}
