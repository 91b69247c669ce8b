/* The CUDA backend: one plugin, libaxonn_cuda.so, that dev/plugin.c loads. `device.c` has memory, copies and
 * the table; `gemm.c` products by cuBLASLt, `gemm_plan.c` how it does each; `cudnn.c` attention by cuDNN,
 * where that is; `nccl.c` links between GPUs; each *.cu the kernels of the file of that name in dev/ref, on
 * what `kernels.cuh` gives them. All work of a device but collectives goes to one stream, so that scratch has
 * one user at a time. */
#ifndef AXONN_DEV_CUDA_H
#define AXONN_DEV_CUDA_H

#include "axonn/dev.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of device memory that kernels, cuBLASLt among them, share as scratch: so many at least, what cuBLASLt
 * asks for on Hopper; more where the GPU has much memory, which cuDNN makes use of. */
enum { AX_CUDA_SCRATCH = 32 << 20 };

/* What the host copies in goes through pinned memory, a chunk after the other, so that the host need not
 * wait. */
enum { AX_CUDA_CHUNK = 4 << 20, AX_CUDA_CHUNKS = 4 };

/* Which attention a device has: the last of these that takes a call, up to what environment AXONN_ATTENTION
 * names. */
typedef enum ax_cuda_attention_kind {
    AX_CUDA_PLAIN, /* attention.cu */
    AX_CUDA_FLASH, /* flash.cu */
    AX_CUDA_CUDNN  /* cudnn.c */
} ax_cuda_attention_kind;

typedef struct ax_cuda {
    int ordinal;    /* of the GPU */
    int processors; /* its multiprocessors */
    cudaStream_t stream;
    bool recording; /* what the stream is given becomes a graph: nothing may be waited for */
    void *scratch;
    int64_t scratch_bytes;
    int64_t left_at_open, held; /* bytes: what was there, and the most that this process has held since */
    char *pinned;               /* AX_CUDA_CHUNKS chunks */
    cudaEvent_t copied[AX_CUDA_CHUNKS]; /* out of each */
    int chunk;                          /* that is next */
    char *later;                        /* pinned: AX_COPY_LATER bytes of ax_copy_out_begin, */
    cudaEvent_t there;                  /* and when they are */
    cudaEvent_t stamp[AX_STAMPS];       /* made when they are first used */
    struct ax_cuda_products *products;  /* gemm.c's */
    cudaEvent_t reached;                /* for who waits for the stream */
    struct ax_nccl *nccl;               /* nccl.c's; NULL: this GPU was never linked to another */
    ax_cuda_attention_kind attention;
    struct ax_cuda_cudnn *cudnn; /* cudnn.c's; NULL: it is not open */
} ax_cuda;

static inline ax_cuda *ax_cuda_of(const ax_stream *stream) { return (ax_cuda *)stream->dev->impl; }

/* AX_OK, or what the driver says of `what`: AX_ERR_MEMORY if memory is short, else AX_ERR_INTERNAL. */
ax_status ax_cuda_check(cudaError_t result, const char *what);
#define AX_CUDA(call) AX_TRY(ax_cuda_check((call), #call))

/* Waits until the stream has done what it was given. AX_ERR_COMM if links have failed, which it may be
 * waiting for: whoever waits for the stream on the host does so by this. */
ax_status ax_cuda_wait(ax_cuda *cu);
/* Copies to or from memory of the host that is not pinned, and waits for it. */
ax_status ax_cuda_copy(ax_cuda *cu, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);

/* The table of the plugin (device.c). */
extern const ax_device_ops ax_plugin_cuda;

/* `gpu` names its kind. */
ax_status ax_cuda_products_create(const ax_cuda *cu, const char *gpu, struct ax_cuda_products **out);
void ax_cuda_products_destroy(struct ax_cuda_products **out);

/* The product without its sums: every row of c is the bias (zeros if there is none), or has it added. */
ax_status ax_cuda_spread_rows(ax_stream *stream, const ax_gemm_args *args);

/* The product, for what cuBLASLt does not take. */
ax_status ax_cuda_product(ax_stream *stream, const ax_gemm_args *args);

/* Links to other GPUs (nccl.c). */
extern const ax_link_ops ax_cuda_links;
/* Waits for an event of a linked GPU until it is reached, or CUDA or a link has failed: then streams do not
 * wait for links any more. Warns of long waits, and gives one up after two minutes where this rank is
 * `ending`: others may have ended before they did their part. */
void ax_nccl_reach(ax_cuda *cu, cudaEvent_t event, bool ending);
/* Why links have failed, so that what was received over them is nothing; or NULL. */
const char *ax_nccl_why(const ax_cuda *cu);
void ax_nccl_destroy(ax_cuda *cu);

/* Attention on tensor cores (flash.cu), for the calls that it takes. */
bool ax_cuda_flash_takes(const ax_attention_args *args);
bool ax_cuda_flash_grad_takes(const ax_attention_grad_args *args);
ax_status ax_cuda_flash(ax_stream *stream, const ax_attention_args *args);
ax_status ax_cuda_flash_grad(ax_stream *stream, const ax_attention_grad_args *args);

/* Attention by the plugin's own kernels. */
ax_status ax_cuda_own_attention(ax_stream *stream, const ax_attention_args *args);
ax_status ax_cuda_own_attention_grad(ax_stream *stream, const ax_attention_grad_args *args);

/* doc_start as floats; and o and lse of queries that see no key. */
ax_status ax_cuda_documents(ax_stream *stream, const int32_t *doc_start, int64_t n, float *out);
ax_status ax_cuda_blind_queries(ax_stream *stream, const ax_attention_args *args);

/* Attention by cuDNN (cudnn.c). *done: it took the call; the first that it may take opens it. create:
 * AX_ERR_USAGE if there is none to use. */
#ifdef AXONN_HAVE_CUDNN
ax_status ax_cuda_cudnn_create(const ax_cuda *cu, struct ax_cuda_cudnn **out);
void ax_cuda_cudnn_destroy(struct ax_cuda_cudnn **out);
ax_status ax_cuda_cudnn_attention(ax_stream *stream, const ax_attention_args *args, bool *done);
ax_status ax_cuda_cudnn_attention_grad(ax_stream *stream, const ax_attention_grad_args *args, bool *done);
#endif

#define AX_CUDA_KERNEL(name) ax_kernel_fn ax_cuda_##name;
AX_KERNELS(AX_CUDA_KERNEL)
#undef AX_CUDA_KERNEL

#ifdef __cplusplus
}
#endif
#endif
