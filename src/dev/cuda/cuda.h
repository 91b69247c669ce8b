/* Private header of the CUDA backend, a plugin (libaxonn_cuda.so) that dev/plugin.c loads. device.c has
 * memory and the backend's table; copy.c has copies that run beside kernels; gemm.c runs matmuls by cuBLASLt,
 * gemm_plan.c chooses their algorithms, gemm_sums.c tests their sums of columns, plans.c keeps the choices in
 * files; cudnn.c runs attention by cuDNN, if that is installed, cudnn_graph.c makes cuDNN's plans; nccl.c has
 * links, the connections between GPUs by NCCL. The kernels are in files named *.cu, divided about as in
 * dev/ref; kernels.cuh has the code that they share. All kernels of a device run on one stream, so that
 * scratch has one user at a time. */
#ifndef AXONN_DEV_CUDA_H
#define AXONN_DEV_CUDA_H

#include "axonn/dev.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Minimum bytes of device memory that kernels, cuBLASLt and cuDNN share as scratch: cuBLASLt needs this much
 * on Hopper. If every GPU that the process can use has more than 16 GiB, there is more scratch (`workspace`
 * in device.c), for cuDNN and for GEMMs that split k. */
enum { AX_CUDA_SCRATCH = 32 << 20 };

/* ax_copy_in copies through AX_CUDA_CHUNKS chunks of pinned memory of AX_CUDA_CHUNK bytes each. The chunks
 * are used in turn, so that the host need not wait until a copy is done. */
enum { AX_CUDA_CHUNK = 4 << 20, AX_CUDA_CHUNKS = 4 };

/* Implementations of attention. A call uses the last of these that supports it, but none after the one that
 * setting runtime.attention names (auto: any of them). */
typedef enum ax_cuda_attention_kind {
    AX_CUDA_PLAIN, /* attention.cu */
    AX_CUDA_FLASH, /* flash.cu, decode.cu */
    AX_CUDA_CUDNN  /* cudnn.c */
} ax_cuda_attention_kind;

typedef struct ax_cuda {
    int ordinal;    /* CUDA's number of the GPU */
    int generation; /* major compute capability: 8 Ampere, 9 Hopper, 10 Blackwell */
    int processors; /* number of the GPU's multiprocessors */
    cudaStream_t stream;
    bool capturing; /* the stream is being captured as a graph; meanwhile the host must not wait for it */
    void *scratch;
    int64_t scratch_bytes;
    int64_t left_at_open, held; /* left_at_open: bytes free when the device was opened; held: the most bytes
                                   in use since then */
    cudaStream_t copies[AX_COPY_DIRECTIONS]; /* the copy stream of each direction */
    char *pinned;                            /* AX_CUDA_CHUNKS chunks, for ax_copy_in */
    cudaEvent_t copied[AX_CUDA_CHUNKS];      /* copied[i]: complete when the last copy from chunk i is done */
    int chunk;                               /* index of the chunk to use next */
    cudaEvent_t event[AX_EVENTS];            /* for event_record; created at first use */
    struct ax_cuda_matmuls *matmuls;         /* state of gemm.c */
    cudaEvent_t reached;                     /* recorded when the host waits for the stream */
    struct ax_nccl *nccl;                    /* state of nccl.c; NULL until a link is first opened */
    ax_cuda_attention_kind attention;
    struct ax_cuda_cudnn *cudnn; /* state of cudnn.c; NULL: not open */
} ax_cuda;

static inline ax_cuda *ax_cuda_of(const ax_stream *stream) { return (ax_cuda *)stream->dev->impl; }

/* Returns AX_OK, or fails with CUDA's message about the call `what`: AX_ERR_MEMORY if memory is short, else
 * AX_ERR_INTERNAL. */
ax_status ax_cuda_check(cudaError_t result, const char *what);
#define AX_CUDA(call) AX_TRY(ax_cuda_check((call), #call))

/* Wait on the host: ax_cuda_wait until the compute stream is idle, ax_cuda_wait_event until an event is
 * complete. AX_ERR_COMM if links have failed. All host code must wait for the GPU by these functions, because
 * a stream may wait for a link that has failed. */
ax_status ax_cuda_wait(ax_cuda *cu);
ax_status ax_cuda_wait_event(ax_cuda *cu, cudaEvent_t event);
/* Waits for the compute stream and the copy streams, and ignores errors. For functions that free or destroy
 * objects and so cannot return an error. */
void ax_cuda_drain(ax_cuda *cu);
/* Copies to or from host memory that is not pinned, and waits for the copy. */
ax_status ax_cuda_copy(ax_cuda *cu, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);

/* The function table of the plugin (device.c). */
extern const ax_device_ops ax_plugin_cuda;

/* Creates the state of gemm.c. `gpu`: the name of the GPU's model. *out must be destroyed even after an
 * error. */
ax_status ax_cuda_matmuls_create(const ax_cuda *cu, const char *gpu, struct ax_cuda_matmuls **out);
void ax_cuda_matmuls_destroy(struct ax_cuda_matmuls **out);
/* From this call on, keeps the algorithms that are chosen for GEMMs by timing in a file of directory `dir`.
 * First takes over the algorithms in such a file of directory `from`, unless `from` is NULL. See
 * ax_device_keep_plans. */
ax_status ax_cuda_matmuls_keep(struct ax_cuda_matmuls *p, const char *dir, const char *from, bool *kept);

/* Sets each row of the GEMM's c to the bias (to zeros if the bias is NULL), or adds the bias to each row if
 * args->accumulate. A GEMM with k = 0 does nothing else. */
ax_status ax_cuda_spread_rows(ax_stream *stream, const ax_gemm_args *args);

/* Runs a GEMM by a slow kernel of the plugin, for calls that cuBLASLt does not support. */
ax_status ax_cuda_plain_gemm(ax_stream *stream, const ax_gemm_args *args);

/* Copies beside kernels (copy.c). */
extern const ax_copy_ops ax_cuda_copy_ops;

/* Links to other GPUs (nccl.c). */
extern const ax_link_ops ax_cuda_links;
/* For a GPU that has links: waits on the host until an event is complete, or CUDA, a link or another rank has
 * failed. If a link or another rank has failed, aborts all links, so that no stream waits for them any more.
 * Logs warnings of long waits. `ending`: this rank closes a link or its device, or frees memory; then the
 * function gives up after two minutes, which counts as a failure of a link, because other ranks may have
 * ended before they joined the last collectives. */
void ax_nccl_reach(ax_cuda *cu, cudaEvent_t event, bool ending);
/* Returns why the links have failed, or NULL if they have not. After a failure, data received over links is
 * invalid. */
const char *ax_nccl_why(const ax_cuda *cu);
void ax_nccl_destroy(ax_cuda *cu);

/* Return true if flash.cu, attention on tensor cores, supports the call. */
bool ax_cuda_flash_takes(const ax_attention_args *args);
bool ax_cuda_flash_grad_takes(const ax_attention_grad_args *args);
ax_status ax_cuda_flash(ax_stream *stream, const ax_attention_args *args);
ax_status ax_cuda_flash_grad(ax_stream *stream, const ax_attention_grad_args *args);

/* Attention for calls with few queries, as in generation (decode.cu). ax_cuda_decode_takes returns true if
 * decode.cu supports the call, ax_cuda_decode runs it. */
bool ax_cuda_decode_takes(const ax_attention_args *args);
ax_status ax_cuda_decode(ax_stream *stream, const ax_attention_args *args);

/* Run attention, or its gradient, by the plugin's own kernels (flash.cu, decode.cu or attention.cu). */
ax_status ax_cuda_own_attention(ax_stream *stream, const ax_attention_args *args);
ax_status ax_cuda_own_attention_grad(ax_stream *stream, const ax_attention_grad_args *args);

/* ax_cuda_documents converts the n numbers of doc_start to floats. ax_cuda_blind_queries sets o to 0 and lse
 * to -infinity for queries that see no key. */
ax_status ax_cuda_documents(ax_stream *stream, const int32_t *doc_start, int64_t n, float *out);
ax_status ax_cuda_blind_queries(ax_stream *stream, const ax_attention_args *args);

/* Attention by cuDNN (cudnn.c). *done is set to whether cuDNN has computed the call; if not, the plugin's own
 * kernels must compute it. cuDNN is loaded at the first call that cuDNN may support, or earlier: when a
 * device is opened and the setting runtime.attention is "cudnn", or when ax_device_describe names its
 * version. ax_cuda_cudnn_create: AX_ERR_USAGE if there is no usable cuDNN. ax_cuda_cudnn_version returns the
 * version as cuDNN reports it, such as 91900 for 9.19.0. */
#ifdef AXONN_HAVE_CUDNN
ax_status ax_cuda_cudnn_create(const ax_cuda *cu, struct ax_cuda_cudnn **out);
void ax_cuda_cudnn_destroy(struct ax_cuda_cudnn **out);
size_t ax_cuda_cudnn_version(const struct ax_cuda_cudnn *cudnn);
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
