/* The graphs of attention, forward and backward, and their execution plans. A graph is described by two
 * tables, of tensors and of operations, in a form that cuDNN's fused engines recognize, so that matrices of
 * scores exist inside of kernels only. Each sum has a fixed order. For that, one backward graph stores dS,
 * the gradient of the scores, in workspace, rounded to bf16 or fp16. The other backward graph sums dq in fp32
 * (AX_CUDNN_DQ_SUM), with an engine that adds the contributions to a row of dq in a fixed order. Most engines
 * would add the contributions by atomics, without saying so in their numerical notes.
 *
 * Letters in shapes: b batch, h query heads, g key heads, t time, d width of a head; H and G: number of query
 * and key heads of the whole arrays. */
#include "dev/cuda/cudnn.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef AXONN_CUDNN_LIBRARY
#define AXONN_CUDNN_LIBRARY "libcudnn.so.9"
#endif

/* The oldest version of cuDNN that is used, 9.16. Older versions need workarounds for sequence lengths that
 * are not multiples of a tile. */
enum { OLDEST = 91600 };

typedef cudnnBackendDescriptor_t descriptor;

/* ---- the library --------------------------------------------------------------------------------- */

/* Loads cuDNN with RTLD_NODELETE, because CUDA libraries do not support being unloaded. */
ax_status ax_cudnn_load(ax_cudnn *out)
{
    *out = (ax_cudnn){.library = dlopen(AXONN_CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
    AX_CHECK(out->library, AX_ERR_USAGE, "cuDNN cannot be loaded: %s", dlerror());
    const char *missing = NULL;
    void *found;
#define LOOK_UP(name)                                                                                        \
    found = dlsym(out->library, "cudnn" #name);                                                              \
    memcpy(&out->name, &found, sizeof found);                                                                \
    if (!found)                                                                                              \
        missing = "cudnn" #name;
    AX_CUDNN_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    ax_status status = AX_OK;
    if (missing)
        status = ax_fail(AX_ERR_USAGE, "%s has no function %s: it is not a complete cuDNN, or too old",
                         AXONN_CUDNN_LIBRARY, missing);
    else if (out->GetVersion() < OLDEST)
        status = ax_fail(AX_ERR_USAGE, "cuDNN has version %zu.%zu.%zu, but attention needs %d.%d or later",
                         out->GetVersion() / 10000, out->GetVersion() / 100 % 100, out->GetVersion() % 100,
                         OLDEST / 10000, OLDEST / 100 % 100);
    if (status != AX_OK)
        ax_cudnn_unload(out);
    return status;
}

void ax_cudnn_unload(ax_cudnn *lib)
{
    if (lib->library)
        dlclose(lib->library);
    *lib = (ax_cudnn){0};
}

ax_status ax_cudnn_check(const ax_cudnn *lib, cudnnStatus_t status, const char *what)
{
    char text[512] = "";
    if (status == CUDNN_STATUS_SUCCESS)
        return AX_OK;
    lib->GetLastErrorString(text, sizeof text);
    return ax_fail(AX_ERR_USAGE, "cuDNN: %s: %s%s%s", what, lib->GetErrorString(status), *text ? ": " : "",
                   text);
}
#define DNN(call) AX_TRY(ax_cudnn_check(lib, lib->call, #call))

ax_status ax_cudnn_set(const ax_cudnn *lib, descriptor of, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    char what[64];
    cudnnStatus_t status = lib->BackendSetAttribute(of, name, type, count, values);
    snprintf(what, sizeof what, "attribute %d", (int)name);
    return ax_cudnn_check(lib, status, what);
}

/* ---- tables -------------------------------------------------------------------------------------- */

/* The layouts of tensors. In the comments, "X of Y" means: cuDNN sees a tensor with dims X, and the array in
 * memory has dims Y. */
typedef enum layout {
    QUERIES,  /* [b,h,t,d] of [b,t,H,d], rows q_ld apart */
    KEYS,     /* [b,g,t,d] of [b,t,G,d], rows kv_ld apart */
    KEYS_T,   /* [b,g,d,t] of [b,t,G,d], rows kv_ld apart */
    OUTPUTS,  /* [b,h,t,d] of [b,t,H,d] */
    ROWS,     /* [b,h,t,d], dense */
    SCORES,   /* [b,h,t,t] */
    SCORES_T, /* as SCORES, but in memory the last two dims are swapped */
    STATS,    /* [b,h,t,1], must be dense: with other strides cuDNN's gradients are wrong, without an error */
    STARTS,   /* [b,1,t,1] */
    NUMBER
} layout;

enum { INSIDE = AX_CUDNN_OPERANDS }; /* marks a virtual tensor, which exists inside of kernels only */
enum {
    T = -1, /* stands for ax_cudnn_shape.dtype, bf16 or fp16 */
    F32 = CUDNN_DATA_FLOAT,
    I32 = CUDNN_DATA_INT32,
    BOOL = CUDNN_DATA_BOOLEAN
};

/* The tensors: X(name, layout, type, operand). */
/* clang-format off */
#define TENSORS(X) \
    X(Q, QUERIES, T, AX_CUDNN_Q) X(K, KEYS, T, INSIDE) X(K_T, KEYS_T, T, AX_CUDNN_K) \
    X(V, KEYS, T, AX_CUDNN_V) X(V_T, KEYS_T, T, AX_CUDNN_V) X(O, OUTPUTS, T, AX_CUDNN_O) \
    X(LSE, STATS, F32, AX_CUDNN_LSE) X(START, STARTS, F32, AX_CUDNN_DOCUMENTS) \
    X(SCALE, NUMBER, F32, AX_CUDNN_SCALE) X(HIDDEN, NUMBER, F32, AX_CUDNN_HIDDEN) \
    X(UNIT, NUMBER, F32, AX_CUDNN_UNIT) \
    X(PRODUCT, SCORES, F32, INSIDE) X(SCORE, SCORES, F32, INSIDE) X(LOG_P, SCORES, F32, INSIDE) \
    X(ROW, SCORES, I32, INSIDE) X(COLUMN, SCORES, I32, INSIDE) X(PAST, SCORES, BOOL, INSIDE) \
    X(CAUSAL, SCORES, F32, INSIDE) X(PLACE, SCORES, F32, INSIDE) X(SAME, SCORES, BOOL, INSIDE) \
    X(MASKED, SCORES, F32, INSIDE) \
    X(MAX, STATS, F32, INSIDE) X(BELOW, SCORES, F32, INSIDE) X(EXP, SCORES, F32, INSIDE) \
    X(SUM, STATS, F32, INSIDE) X(LOG_SUM, STATS, F32, INSIDE) X(WEIGHT, SCORES, T, INSIDE) \
    X(DOUT, OUTPUTS, T, AX_CUDNN_DOUT) X(DOUT_O, ROWS, F32, INSIDE) X(ROW_SUM, STATS, F32, INSIDE) \
    X(DELTA, STATS, F32, AX_CUDNN_DELTA) X(P, SCORES, F32, INSIDE) X(P_T, SCORES_T, T, INSIDE) \
    X(DP, SCORES, F32, INSIDE) X(DP_DELTA, SCORES, F32, INSIDE) X(DSCORE, SCORES, F32, INSIDE) \
    X(DS, SCORES, F32, INSIDE) X(DS_T, SCORES_T, T, INSIDE) \
    X(DQ_SUM, ROWS, F32, AX_CUDNN_DQ_SUM) X(DQ, QUERIES, T, AX_CUDNN_DQ) X(DK, KEYS, T, AX_CUDNN_DK) X(DV, KEYS, T, AX_CUDNN_DV) \
    X(HEAD_DK, ROWS, T, INSIDE) X(HEAD_DV, ROWS, T, INSIDE)

typedef enum tensor {
#define ENTRY(name, layout, type, operand) name,
    TENSORS(ENTRY)
#undef ENTRY
    TENSOR_COUNT, NONE = TENSOR_COUNT
} tensor;

static const struct { layout layout; int type, operand; } tensors[] = {
#define ENTRY(name, layout, type, operand) {layout, type, operand},
    TENSORS(ENTRY)
#undef ENTRY
};

/* The forms of operations, and the conditions under which an operation of a table below is in a graph. */
typedef enum form { MATMUL, POINTWISE, INDEX, REDUCTION, RESHAPE } form;
typedef enum condition {
    ALWAYS,
    OPEN, /* without a mask of documents */
    DOCUMENTS,
    SINGLE,  /* one query head per key head */
    GROUPED, /* several query heads per key head */
    STORED,  /* dS is stored */
    ORDERED  /* dq is summed in fp32 */
} condition;

typedef struct operation {
    form form;
    int mode, precision; /* mode: cuDNN's function of the operation; for INDEX the dim whose index is generated */
    tensor in[3], out;
    condition when;
} operation;

#define MULTIPLY(a, b, y, when) {MATMUL, 0, F32, {a, b, NONE}, y, when}
#define MAP(mode, x, y, when) {POINTWISE, CUDNN_POINTWISE_##mode, F32, {x, NONE, NONE}, y, when}
#define JOIN(mode, x, b, y) {POINTWISE, CUDNN_POINTWISE_##mode, F32, {x, b, NONE}, y, ALWAYS}
#define REDUCE(mode, x, y, when) {REDUCTION, CUDNN_REDUCE_TENSOR_##mode, F32, {x, NONE, NONE}, y, when}
#define TRANSPOSE(x, y) {RESHAPE, 0, 0, {x, NONE, NONE}, y, ALWAYS}
#define COUNT(dim, x, y, when) {INDEX, dim, F32, {x, NONE, NONE}, y, when}
#define SELECT(x, where, y, when) {POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, F32, {x, HIDDEN, where}, y, when}
/* Sets `to` to x where the query sees the key, else to -infinity. The first key of a document is compared as
 * a float, because engines support integers in causal masks only. */
#define MASK(x, to) \
    COUNT(2, x, ROW, ALWAYS), COUNT(3, x, COLUMN, ALWAYS), \
    {POINTWISE, CUDNN_POINTWISE_CMP_GE, BOOL, {ROW, COLUMN, NONE}, PAST, ALWAYS}, \
    SELECT(x, PAST, to, OPEN), \
    COUNT(3, x, PLACE, DOCUMENTS), \
    {POINTWISE, CUDNN_POINTWISE_CMP_GE, F32, {PLACE, START, NONE}, SAME, DOCUMENTS}, \
    SELECT(x, PAST, CAUSAL, DOCUMENTS), SELECT(CAUSAL, SAME, to, DOCUMENTS)

static const operation forward[] = {
    MULTIPLY(Q, K_T, PRODUCT, ALWAYS),
    JOIN(MUL, PRODUCT, SCALE, SCORE),
    MASK(SCORE, MASKED),
    REDUCE(MAX, MASKED, MAX, ALWAYS),
    JOIN(SUB, MASKED, MAX, BELOW),
    MAP(EXP, BELOW, EXP, ALWAYS),
    REDUCE(ADD, EXP, SUM, ALWAYS),
    MAP(LOG, SUM, LOG_SUM, ALWAYS),
    JOIN(ADD, MAX, LOG_SUM, LSE),
    JOIN(DIV, EXP, SUM, WEIGHT),
    MULTIPLY(WEIGHT, V, O, ALWAYS),
};

static const operation backward[] = {
    JOIN(MUL, DOUT, O, DOUT_O),
    REDUCE(ADD, DOUT_O, ROW_SUM, ALWAYS),
    JOIN(MUL, ROW_SUM, UNIT, DELTA),
    MULTIPLY(Q, K_T, PRODUCT, ALWAYS),
    JOIN(MUL, PRODUCT, SCALE, SCORE),
    JOIN(SUB, SCORE, LSE, LOG_P),
    MASK(LOG_P, MASKED),
    MAP(EXP, MASKED, P, ALWAYS),
    TRANSPOSE(P, P_T),
    MULTIPLY(P_T, DOUT, DV, SINGLE),
    MULTIPLY(P_T, DOUT, HEAD_DV, GROUPED),
    REDUCE(ADD, HEAD_DV, DV, GROUPED),
    MULTIPLY(DOUT, V_T, DP, ALWAYS),
    JOIN(SUB, DP, DELTA, DP_DELTA),
    JOIN(MUL, DP_DELTA, P, DSCORE),
    JOIN(MUL, DSCORE, SCALE, DS),
    TRANSPOSE(DS, DS_T),
    MULTIPLY(DS_T, Q, DK, SINGLE),
    MULTIPLY(DS_T, Q, HEAD_DK, GROUPED),
    REDUCE(ADD, HEAD_DK, DK, GROUPED),
    TRANSPOSE(K_T, K),
    MULTIPLY(DS, K, DQ, STORED),
    MULTIPLY(DS, K, DQ_SUM, ORDERED),
    MAP(IDENTITY, DQ_SUM, DQ, ORDERED),
};
/* clang-format on */

static const struct {
    const operation *operations;
    size_t count;
} graphs[] = {[AX_CUDNN_FORWARD] = {forward, AX_COUNT(forward)},
              [AX_CUDNN_BACKWARD] = {backward, AX_COUNT(backward)},
              [AX_CUDNN_BACKWARD_ORDERED] = {backward, AX_COUNT(backward)}};

/* For each form of operation: the descriptors and attributes with which its mode and tensors are set in
 * cuDNN. */
typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
} attribute;
static const struct {
    cudnnBackendDescriptorType_t how, operation;
    attribute mode, precision;
    cudnnBackendAttributeName_t in[3], out,
        is; /* is: the attribute of the operation that holds the descriptor `how` */
} forms[] = {
    [MATMUL] = {CUDNN_BACKEND_MATMUL_DESCRIPTOR,
                CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                {0},
                {CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
                {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC},
                CUDNN_ATTR_OPERATION_MATMUL_CDESC,
                CUDNN_ATTR_OPERATION_MATMUL_DESC},
    [POINTWISE] = {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                   CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                   {CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
                   {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
                   {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                    CUDNN_ATTR_OPERATION_POINTWISE_TDESC},
                   CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
                   CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR},
    [REDUCTION] = {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                   CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                   {CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
                   {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
                   {CUDNN_ATTR_OPERATION_REDUCTION_XDESC},
                   CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
                   CUDNN_ATTR_OPERATION_REDUCTION_DESC},
    [RESHAPE] = {.operation = CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                 .in = {CUDNN_ATTR_OPERATION_RESHAPE_XDESC},
                 .out = CUDNN_ATTR_OPERATION_RESHAPE_YDESC},
};

/* ---- descriptors --------------------------------------------------------------------------------- */

/* A graph that is being built. The plan owns the graph's descriptors. */
typedef struct graph {
    const ax_cudnn *lib;
    const ax_cudnn_shape *shape;
    ax_cudnn_plan *plan;
    descriptor tensor[TENSOR_COUNT]; /* NULL: no operation has used the tensor yet */
} graph;

static ax_status create(graph *g, cudnnBackendDescriptorType_t type, descriptor *out)
{
    const ax_cudnn *lib = g->lib;
    ax_cudnn_plan *p = g->plan;
    AX_TRY(ax_list_grow(&p->owned, (size_t)p->count, sizeof *p->owned));
    DNN(BackendCreateDescriptor(type, out));
    p->owned[p->count++] = *out;
    return AX_OK;
}

static ax_status finalize(const graph *g, descriptor d, const char *what)
{
    return ax_cudnn_check(g->lib, g->lib->BackendFinalize(d), what);
}

static ax_status set(const graph *g, descriptor of, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, const void *value)
{
    return ax_cudnn_set(g->lib, of, name, type, 1, value);
}

static ax_status set_descriptor(const graph *g, descriptor of, cudnnBackendAttributeName_t name,
                                descriptor value)
{
    return set(g, of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value);
}

/* Extents of a tensor's dims, and strides in elements. */
typedef struct extents {
    int64_t dim[4], stride[4];
} extents;

static extents extents_of(const ax_cudnn_shape *s, layout of)
{
    const int64_t b = s->batch, h = s->heads, g = s->kv_heads, t = s->time, d = s->width, q = s->q_ld,
                  k = s->kv_ld, H = s->all_heads * d;
    const extents all[] = {
        [QUERIES] = {{b, h, t, d}, {t * q, d, q, 1}},
        [KEYS] = {{b, g, t, d}, {t * k, d, k, 1}},
        [KEYS_T] = {{b, g, d, t}, {t * k, d, 1, k}},
        [OUTPUTS] = {{b, h, t, d}, {t * H, d, H, 1}},
        [ROWS] = {{b, h, t, d}, {h * t * d, t * d, d, 1}},
        [SCORES] = {{b, h, t, t}, {h * t * t, t * t, t, 1}},
        [SCORES_T] = {{b, h, t, t}, {h * t * t, t * t, 1, t}},
        [STATS] = {{b, h, t, 1}, {h * t, t, 1, 1}},
        [STARTS] = {{b, 1, t, 1}, {t, t, 1, 1}},
        [NUMBER] = {{1, 1, 1, 1}, {1, 1, 1, 1}},
    };
    return all[of];
}

/* Creates the descriptor of a tensor, whose unique id is its index in `tensors` plus 1. If the tensor is an
 * operand, the plan notes this id. */
static ax_status make_tensor(graph *g, tensor which, descriptor *out)
{
    const extents e = extents_of(g->shape, tensors[which].layout);
    int operand = tensors[which].operand;
    if (operand == AX_CUDNN_LSE && g->shape->kind == AX_CUDNN_FORWARD && !g->shape->lse)
        operand = INSIDE;
    cudnnDataType_t type = (cudnnDataType_t)tensors[which].type;
    if (tensors[which].type == T)
        type = g->shape->dtype == AX_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
    int64_t uid = (int64_t)which + 1, alignment = 16;
    bool inside = operand == INSIDE, number = tensors[which].layout == NUMBER;
    AX_TRY(create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, out));
    AX_TRY(set(g, *out, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &uid));
    AX_TRY(set(g, *out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type));
    AX_TRY(set(g, *out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment));
    AX_TRY(ax_cudnn_set(g->lib, *out, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, e.dim));
    AX_TRY(ax_cudnn_set(g->lib, *out, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, e.stride));
    AX_TRY(set(g, *out, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &inside));
    AX_TRY(set(g, *out, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &number));
    if (!inside)
        g->plan->uid[operand] = uid;
    return finalize(g, *out, "a tensor");
}

static ax_status tensor_of(graph *g, tensor which, descriptor *out)
{
    if (!g->tensor[which])
        AX_TRY(make_tensor(g, which, &g->tensor[which]));
    *out = g->tensor[which];
    return AX_OK;
}

/* Creates the descriptor of an operation's function: its mode and precision. Reductions are requested to be
 * deterministic. */
static ax_status make_op_descriptor(graph *g, const operation *op, form f, descriptor *out)
{
    const bool yes = true;
    const int64_t dim = op->mode;
    cudnnDataType_t precision = (cudnnDataType_t)op->precision;
    cudnnPointwiseMode_t mode =
        op->form == INDEX ? CUDNN_POINTWISE_GEN_INDEX : (cudnnPointwiseMode_t)op->mode;
    AX_TRY(create(g, forms[f].how, out));
    if (forms[f].mode.type)
        AX_TRY(set(g, *out, forms[f].mode.name, forms[f].mode.type, &mode));
    AX_TRY(set(g, *out, forms[f].precision.name, forms[f].precision.type, &precision));
    if (op->form == INDEX)
        AX_TRY(set(g, *out, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &dim));
    if (op->form == REDUCTION)
        AX_TRY(set(g, *out, CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, &yes));
    return finalize(g, *out, "an operation's descriptor");
}

static ax_status make_operation(graph *g, const operation *op, descriptor *out)
{
    const form f = op->form == INDEX ? POINTWISE : op->form;
    descriptor part;
    AX_TRY(create(g, forms[f].operation, out));
    if (f != RESHAPE) {
        AX_TRY(make_op_descriptor(g, op, f, &part));
        AX_TRY(set_descriptor(g, *out, forms[f].is, part));
    }
    for (int i = 0; i < 3 && op->in[i] != NONE; i++) {
        AX_TRY(tensor_of(g, op->in[i], &part));
        AX_TRY(set_descriptor(g, *out, forms[f].in[i], part));
    }
    AX_TRY(tensor_of(g, op->out, &part));
    AX_TRY(set_descriptor(g, *out, forms[f].out, part));
    return finalize(g, *out, "an operation");
}

static bool in_graph(const ax_cudnn_shape *s, condition when)
{
    bool grouped = s->heads != s->kv_heads, ordered = s->kind == AX_CUDNN_BACKWARD_ORDERED;
    return when == OPEN        ? !s->documents
           : when == DOCUMENTS ? s->documents
           : when == GROUPED   ? grouped
           : when == SINGLE    ? !grouped
           : when == STORED    ? !ordered
           : when == ORDERED   ? ordered
                               : true;
}

static ax_status make_graph(graph *g, const ax_cudnn_target *target, descriptor *out)
{
    enum { MOST = 32 };
    descriptor made[MOST];
    int64_t count = 0;
    const operation *all = graphs[g->shape->kind].operations;
    _Static_assert(AX_COUNT(forward) <= MOST && AX_COUNT(backward) <= MOST, "MOST is too small for a graph");
    for (size_t i = 0; i < graphs[g->shape->kind].count; i++)
        if (in_graph(g->shape, all[i].when))
            AX_TRY(make_operation(g, &all[i], &made[count++]));
    AX_TRY(create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, out));
    AX_TRY(ax_cudnn_set(g->lib, *out, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                        made));
    if (target->handle)
        AX_TRY(set(g, *out, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &target->handle));
    return finalize(g, *out, "the graph");
}

/* ---- plans --------------------------------------------------------------------------------------- */

/* Sets *engine to the engine of an engine configuration, and *yes to whether the engine is deterministic,
 * according to its numerical notes. */
static ax_status is_deterministic(graph *g, descriptor config, int64_t *engine, bool *yes)
{
    const ax_cudnn *lib = g->lib;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0, one;
    descriptor e;
    AX_TRY(create(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &e));
    DNN(BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &e));
    DNN(BackendGetAttribute(e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &one, engine));
    DNN(BackendGetAttribute(e, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes));
    *yes = true;
    for (int64_t i = 0; i < ax_min(count, CUDNN_NUMERICAL_NOTE_TYPE_COUNT); i++)
        *yes = *yes && notes[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    return AX_OK;
}

/* Makes the plan from this engine configuration; fails if the engine is not deterministic or needs more than
 * `room` bytes of workspace. */
static ax_status plan_from_config(graph *g, const ax_cudnn_target *target, descriptor config, int64_t room)
{
    const ax_cudnn *lib = g->lib;
    ax_cudnn_plan *p = g->plan;
    int64_t one;
    bool deterministic;
    descriptor d;
    AX_TRY(is_deterministic(g, config, &p->engine, &deterministic));
    AX_CHECK(deterministic, AX_ERR_USAGE, "cuDNN: engine %lld is not deterministic", (long long)p->engine);
    AX_TRY(create(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &d));
    AX_TRY(set_descriptor(g, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    if (target->handle)
        AX_TRY(set(g, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &target->handle));
    if (target->properties)
        AX_TRY(set_descriptor(g, d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target->properties));
    AX_TRY(finalize(g, d, "a plan"));
    DNN(BackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &one,
                            &p->workspace));
    AX_CHECK(p->workspace <= room, AX_ERR_USAGE,
             "cuDNN: engine %lld needs %lld bytes of workspace, but only %lld are available",
             (long long)p->engine, (long long)p->workspace, (long long)room);
    p->run = d;
    return AX_OK;
}

/* Makes the plan from the first of the heuristic's engine configurations that can be used. */
static ax_status choose_config(graph *g, const ax_cudnn_target *target, descriptor ops,
                               cudnnBackendHeurMode_t mode, int64_t room)
{
    enum { MOST = 16 };
    const ax_cudnn *lib = g->lib;
    descriptor heuristics, config[MOST];
    int64_t count = 0;
    AX_TRY(create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    AX_TRY(set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, ops));
    AX_TRY(set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode));
    if (target->properties)
        AX_TRY(set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target->properties));
    AX_TRY(finalize(g, heuristics, "heuristics"));
    for (int i = 0; i < MOST; i++)
        AX_TRY(create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]));
    DNN(BackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST,
                            &count, config));
    ax_status status = ax_fail(AX_ERR_USAGE, "cuDNN has no engine for this graph");
    for (int64_t i = 0; i < ax_min(count, MOST) && status != AX_OK; i++)
        status = plan_from_config(g, target, config[i], room);
    return status;
}

/* Makes the configuration of the engine that adds to dq in a fixed order, on Hopper, from cuDNN 9.25 on:
 * engine 6 with these values of its knobs, as NVIDIA's frontend 1.32 passes them (tiles of 64 × 64). The
 * heuristics do not return this configuration. */
static ax_status ordered_config(graph *g, const ax_cudnn_target *target, descriptor ops, descriptor *config)
{
    static const struct {
        cudnnBackendKnobType_t knob;
        int64_t value;
    } choices[] = {{CUDNN_KNOB_TYPE_TILE_M, 2},     {CUDNN_KNOB_TYPE_TILE_N, 1},
                   {CUDNN_KNOB_TYPE_KERNEL_CFG, 2}, {CUDNN_KNOB_TYPE_STREAM_K, 0},
                   {CUDNN_KNOB_TYPE_TILE_CGA_M, 0}, {CUDNN_KNOB_TYPE_STAGES, 4}};
    static const int64_t index = 6;
    descriptor engine, choice[AX_COUNT(choices)];
    AX_TRY(create(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    AX_TRY(set_descriptor(g, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, ops));
    AX_TRY(set(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &index));
    if (target->properties)
        AX_TRY(set_descriptor(g, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, target->properties));
    AX_TRY(finalize(g, engine, "an engine"));
    for (size_t i = 0; i < AX_COUNT(choices); i++) {
        AX_TRY(create(g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &choice[i]));
        AX_TRY(set(g, choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, &choices[i].knob));
        AX_TRY(set(g, choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, &choices[i].value));
        AX_TRY(finalize(g, choice[i], "a knob of an engine"));
    }
    AX_TRY(create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, config));
    AX_TRY(set_descriptor(g, *config, CUDNN_ATTR_ENGINECFG_ENGINE, engine));
    AX_TRY(ax_cudnn_set(g->lib, *config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                        AX_COUNT(choice), choice));
    return finalize(g, *config, "a configuration of an engine");
}

ax_status ax_cudnn_plan_create(const ax_cudnn *lib, const ax_cudnn_target *target,
                               const ax_cudnn_shape *shape, int64_t room, ax_cudnn_plan *out)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    graph g = {.lib = lib, .shape = shape, .plan = out};
    descriptor ops, config;
    *out = (ax_cudnn_plan){0};
    ax_status status = make_graph(&g, target, &ops);
    if (status != AX_OK)
        return status;
    if (shape->kind == AX_CUDNN_BACKWARD_ORDERED) {
        AX_TRY(ordered_config(&g, target, ops, &config));
        return plan_from_config(&g, target, config, room);
    }
    for (size_t i = 0; i < AX_COUNT(modes) && !out->run; i++)
        status = choose_config(&g, target, ops, modes[i], room);
    return status;
}

void ax_cudnn_plan_destroy(const ax_cudnn *lib, ax_cudnn_plan *plan)
{
    while (plan->count)
        lib->BackendDestroyDescriptor(plan->owned[--plan->count]);
    free(plan->owned);
    *plan = (ax_cudnn_plan){0};
}

static ax_status fill_pack(const ax_cudnn *lib, const ax_cudnn_plan *plan, void *const *operand,
                           void *workspace, descriptor pack)
{
    void *address[AX_CUDNN_OPERANDS];
    int64_t uid[AX_CUDNN_OPERANDS], count = 0;
    for (int i = 0; i < AX_CUDNN_OPERANDS; i++)
        if (plan->uid[i]) {
            uid[count] = plan->uid[i];
            address[count++] = operand[i];
        }
    AX_TRY(ax_cudnn_set(lib, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uid));
    AX_TRY(
        ax_cudnn_set(lib, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, address));
    AX_TRY(ax_cudnn_set(lib, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    return ax_cudnn_check(lib, lib->BackendFinalize(pack), "operands");
}

ax_status ax_cudnn_plan_run(const ax_cudnn *lib, cudnnHandle_t handle, const ax_cudnn_plan *plan,
                            void *const *operand, void *workspace)
{
    descriptor pack;
    DNN(BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    ax_status status = fill_pack(lib, plan, operand, workspace, pack);
    if (status == AX_OK)
        status = ax_cudnn_check(lib, lib->BackendExecute(handle, plan->run, pack), "running a plan");
    lib->BackendDestroyDescriptor(pack);
    return status;
}

/* Returns the bytes of workspace per query head of a sequence: dS (the gradient of the scores, padded to
 * whole tiles) or, in the graph that sums dq in fp32, 16 bytes for each 64 rows; and dk and dv in bf16 or
 * fp16. With grouped-query attention each query head has its own dk and dv in workspace, before those of a
 * key head are added. Without grouped-query attention dk and dv need no workspace, and the result is an upper
 * bound. */
int64_t ax_cudnn_backward_bytes(ax_cudnn_kind kind, int64_t time, int64_t width)
{
    int64_t tiled = ax_round_up(time, 128);
    return (kind == AX_CUDNN_BACKWARD ? 2 * tiled * tiled : tiled / 4) + 4 * time * width;
}

int64_t ax_cudnn_sum_bytes(ax_cudnn_kind kind, int64_t time, int64_t width)
{
    return kind == AX_CUDNN_BACKWARD_ORDERED ? time * width * (int64_t)sizeof(float) : 0;
}
