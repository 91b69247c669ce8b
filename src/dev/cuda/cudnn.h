/* Attention as graphs of cuDNN's backend API: what cudnn_graph.c makes plans of and cudnn.c runs. The library
 * is loaded when a call may be for it, so that the plugin runs where there is none. See decision 15. */
#ifndef AXONN_DEV_CUDA_CUDNN_H
#define AXONN_DEV_CUDA_CUDNN_H

#include "axonn/dev.h"

#include <cudnn_graph.h>

/* The functions of the library that are used. */
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

/* AX_ERR_USAGE if the library is not found, or too old. */
AX_MUST_CHECK ax_status ax_cudnn_load(ax_cudnn *out);
void ax_cudnn_unload(ax_cudnn *lib);
/* AX_OK, or a failure that says what the library says of `what`. */
AX_MUST_CHECK ax_status ax_cudnn_check(const ax_cudnn *lib, cudnnStatus_t status, const char *what);

/* A descriptor with one attribute after the other: created, set, finalized. */
AX_MUST_CHECK ax_status ax_cudnn_set(const ax_cudnn *lib, cudnnBackendDescriptor_t of,
                                     cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                     int64_t count, const void *values);

typedef enum ax_cudnn_kind { AX_CUDNN_FORWARD, AX_CUDNN_BACKWARD } ax_cudnn_kind;

/* Causal attention of bf16 or fp16 over `heads` of all_heads query heads, and the kv_heads of all_kv_heads
 * key heads that they use. No padding: shapes are compared as bytes. */
typedef struct ax_cudnn_shape {
    int64_t kind, dtype, batch, time, heads, kv_heads, all_heads, all_kv_heads, width;
    int64_t documents; /* there is a mask of documents */
    int64_t lse;       /* forward: it is wanted */
} ax_cudnn_shape;

/* What a graph is given: memory of the device, then numbers, float each, of the host. Documents are the first
 * keys that queries see, float [b,t]. */
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
    AX_CUDNN_SCALE,
    AX_CUDNN_HIDDEN, /* -infinity */
    AX_CUDNN_UNIT,   /* 1 */
    AX_CUDNN_OPERANDS
} ax_cudnn_operand;

/* The GPU that a plan is made for: a handle's, or one that a descriptor of properties describes. */
typedef struct ax_cudnn_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
} ax_cudnn_target;

/* A graph and how the library runs it. */
typedef struct ax_cudnn_plan {
    cudnnBackendDescriptor_t *owned, run; /* all descriptors; the execution plan, which is one of them */
    int64_t count, room;                  /* of `owned` */
    int64_t uid[AX_CUDNN_OPERANDS];       /* 0: not an operand of this graph */
    int64_t workspace, engine;
} ax_cudnn_plan;

/* Makes a plan that takes at most `room` bytes of workspace; AX_ERR_USAGE if the library has none, and its
 * reason. Destroy *out in either case. */
AX_MUST_CHECK ax_status ax_cudnn_plan_create(const ax_cudnn *lib, const ax_cudnn_target *target,
                                             const ax_cudnn_shape *shape, int64_t room, ax_cudnn_plan *out);
void ax_cudnn_plan_destroy(const ax_cudnn *lib, ax_cudnn_plan *plan);
/* Enqueues it. `operand` has those that the graph has. */
AX_MUST_CHECK ax_status ax_cudnn_plan_run(const ax_cudnn *lib, cudnnHandle_t handle,
                                          const ax_cudnn_plan *plan, void *const *operand, void *workspace);

/* At most so many bytes of workspace that one query head of a sequence takes in the backward graph. */
int64_t ax_cudnn_backward_bytes(int64_t time, int64_t width);

#endif
