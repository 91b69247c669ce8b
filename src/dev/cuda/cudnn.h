/* Attention as graphs of cuDNN's backend API: cudnn_graph.c makes plans, cudnn.c runs them. cuDNN is loaded
 * when it is first needed, so the plugin also runs where cuDNN is not installed. See docs/decisions/0015. */
#ifndef AXONN_DEV_CUDA_CUDNN_H
#define AXONN_DEV_CUDA_CUDNN_H

#include "axonn/dev.h"

#include <cudnn_graph.h>

/* The functions of cuDNN that the plugin loads, without their prefix cudnn. */
#define AX_CUDNN_FUNCTIONS(X)                                                                                \
    X(GetVersion)                                                                                            \
    X(GetErrorString)                                                                                        \
    X(GetLastErrorString)                                                                                    \
    X(Create)                                                                                                \
    X(Destroy)                                                                                               \
    X(SetStream)                                                                                             \
    X(BackendCreateDescriptor)                                                                               \
    X(BackendDestroyDescriptor)                                                                              \
    X(BackendFinalize)                                                                                       \
    X(BackendSetAttribute)                                                                                   \
    X(BackendGetAttribute)                                                                                   \
    X(BackendExecute)

typedef struct ax_cudnn {
    void *library;
#define AX_CUDNN_MEMBER(name) __typeof__(cudnn##name) *name;
    AX_CUDNN_FUNCTIONS(AX_CUDNN_MEMBER)
#undef AX_CUDNN_MEMBER
} ax_cudnn;

/* Loads cuDNN. AX_ERR_USAGE if the library is not found, is incomplete, or is too old. */
AX_MUST_CHECK ax_status ax_cudnn_load(ax_cudnn *out);
void ax_cudnn_unload(ax_cudnn *lib);
/* Returns AX_OK, or fails with cuDNN's message about `what`. */
AX_MUST_CHECK ax_status ax_cudnn_check(const ax_cudnn *lib, cudnnStatus_t status, const char *what);

AX_MUST_CHECK ax_status ax_cudnn_set(const ax_cudnn *lib, cudnnBackendDescriptor_t of,
                                     cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                     int64_t count, const void *values);

/* Kinds of graphs. AX_CUDNN_BACKWARD stores the gradient of the scores in its workspace, whose size grows
 * with the square of the sequence length. AX_CUDNN_BACKWARD_ORDERED sums dq, the gradient of the queries, in
 * fp32, in AX_CUDNN_DQ_SUM; its thread blocks wait for one another, so that each sum has a fixed order. Its
 * workspace grows with the sequence length. It exists on Hopper, from cuDNN AX_CUDNN_ORDERED_VERSION on. */
typedef enum ax_cudnn_kind { AX_CUDNN_FORWARD, AX_CUDNN_BACKWARD, AX_CUDNN_BACKWARD_ORDERED } ax_cudnn_kind;
enum { AX_CUDNN_ORDERED_VERSION = 92500 };

/* The shape of a call of causal attention in bf16 or fp16, or of a slice of a call (cudnn.c). `kind` is an
 * ax_cudnn_kind. The arrays have all_heads query heads and all_kv_heads key heads; the call or slice has
 * `heads` query heads and kv_heads key heads. `time` is the length of a sequence, `width` the width of a
 * head, q_ld and kv_ld are as in ax_attention_args. The struct has no padding, because shapes are compared as
 * bytes. */
typedef struct ax_cudnn_shape {
    int64_t kind, dtype, batch, time, heads, kv_heads, all_heads, all_kv_heads, width, q_ld, kv_ld;
    int64_t documents; /* 1 if there is a mask of documents, else 0 */
    int64_t lse;       /* forward: 1 if lse is stored, else 0 */
} ax_cudnn_shape;

/* The operands of a graph: arrays in device memory and, from AX_CUDNN_SCALE on, floats in host memory.
 * AX_CUDNN_DOCUMENTS: the first key that each query sees, float [batch, time]. */
typedef enum ax_cudnn_operand {
    AX_CUDNN_Q,
    AX_CUDNN_K,
    AX_CUDNN_V,
    AX_CUDNN_O,
    AX_CUDNN_LSE,
    AX_CUDNN_DOCUMENTS,
    AX_CUDNN_DOUT,
    AX_CUDNN_DELTA,
    AX_CUDNN_DQ,
    AX_CUDNN_DK,
    AX_CUDNN_DV,
    AX_CUDNN_DQ_SUM, /* float [batch, heads, time, width]; its content before the call does not matter */
    AX_CUDNN_SCALE,
    AX_CUDNN_HIDDEN, /* the score that masked keys get: -infinity */
    AX_CUDNN_UNIT,   /* the number 1 */
    AX_CUDNN_OPERANDS
} ax_cudnn_operand;

/* The GPU for which a plan is made: the GPU of `handle`, or, if `handle` is NULL, a GPU that `properties`
 * describes. */
typedef struct ax_cudnn_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
} ax_cudnn_target;

/* A graph and its execution plan. */
typedef struct ax_cudnn_plan {
    cudnnBackendDescriptor_t *owned, run; /* owned: all descriptors of the graph; run: the descriptor in
                                             `owned` that is the execution plan */
    int64_t count;                        /* length of `owned` */
    int64_t uid[AX_CUDNN_OPERANDS]; /* unique id of each operand; 0: this graph does not have the operand */
    int64_t workspace, engine;      /* bytes of workspace; cuDNN's number of the engine that runs the graph */
} ax_cudnn_plan;

/* Makes a plan for `shape` that needs at most `room` bytes of workspace. AX_ERR_USAGE, with the reason, if
 * cuDNN has no such plan. *out must be destroyed even after an error. */
AX_MUST_CHECK ax_status ax_cudnn_plan_create(const ax_cudnn *lib, const ax_cudnn_target *target,
                                             const ax_cudnn_shape *shape, int64_t room, ax_cudnn_plan *out);
void ax_cudnn_plan_destroy(const ax_cudnn *lib, ax_cudnn_plan *plan);
/* Enqueues the plan on the handle's stream. `operand` has the addresses of the graph's operands, indexed by
 * ax_cudnn_operand. */
AX_MUST_CHECK ax_status ax_cudnn_plan_run(const ax_cudnn *lib, cudnnHandle_t handle,
                                          const ax_cudnn_plan *plan, void *const *operand, void *workspace);

/* Returns an upper bound of the workspace of one query head of one sequence in a backward graph, in bytes,
 * without AX_CUDNN_DQ_SUM. */
int64_t ax_cudnn_backward_bytes(ax_cudnn_kind kind, int64_t time, int64_t width);
/* Returns the bytes of AX_CUDNN_DQ_SUM of one query head of one sequence; 0 if the graph does not have it. */
int64_t ax_cudnn_sum_bytes(ax_cudnn_kind kind, int64_t time, int64_t width);

#endif
