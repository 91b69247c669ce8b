/* Copies beside kernels: pinned memory, a copy stream for each direction, and events. A GPU has a copy engine
 * for each direction; with one stream for both directions, a copy to the host that waits for a kernel would
 * delay the copies to the device that were enqueued after it. */
#include "dev/cuda/cuda.h"

#include <string.h>

static ax_cuda *cuda_of(ax_device *dev) { return dev->impl; }

static cudaStream_t stream_of(const ax_stream *stream)
{
    return stream->impl ? (cudaStream_t)stream->impl : ax_cuda_of(stream)->stream;
}

static ax_status alloc_pinned(ax_device *dev, size_t bytes, void **out)
{
    char text[32];
    size_t size = bytes ? bytes : 1;
    cudaSetDevice(cuda_of(dev)->ordinal);
    cudaError_t result = cudaHostAlloc(out, size, cudaHostAllocDefault);
    if (result != cudaSuccess) {
        cudaGetLastError(); /* clear the error, so that the next launch does not report it again */
        *out = NULL;
        return ax_fail(AX_ERR_MEMORY, "CUDA cannot pin %s of host memory for copies: %s (%s)",
                       ax_format_bytes((double)size, text), cudaGetErrorString(result),
                       cudaGetErrorName(result));
    }
    memset(*out, 0, size);
    return AX_OK;
}

static void free_pinned(ax_device *dev, void *memory)
{
    ax_cuda *cu = cuda_of(dev);
    cudaSetDevice(cu->ordinal);
    ax_cuda_drain(cu); /* after an error, copies may still be in flight */
    cudaFreeHost(memory);
}

static void *copy_stream(ax_device *dev, ax_copy_direction direction)
{
    return cuda_of(dev)->copies[direction];
}

static ax_status copy(ax_stream *stream, void *to, const void *from, size_t bytes,
                      ax_copy_direction direction)
{
    enum cudaMemcpyKind kind = direction == AX_TO_DEVICE ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    cudaSetDevice(ax_cuda_of(stream)->ordinal);
    AX_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream_of(stream)));
    return AX_OK;
}

/* Creates an event. A host thread that waits for the event sleeps; by default CUDA would let it spin. */
static ax_status event_create(ax_device *dev, void **out)
{
    cudaEvent_t event;
    cudaSetDevice(cuda_of(dev)->ordinal);
    AX_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    *out = event;
    return AX_OK;
}

static void event_destroy(ax_device *dev, void *event)
{
    (void)dev;
    cudaEventDestroy((cudaEvent_t)event);
}

static ax_status record(ax_stream *stream, void *event)
{
    AX_CUDA(cudaEventRecord((cudaEvent_t)event, stream_of(stream)));
    return AX_OK;
}

static ax_status await(ax_stream *stream, void *event)
{
    AX_CUDA(cudaStreamWaitEvent(stream_of(stream), (cudaEvent_t)event, 0));
    return AX_OK;
}

/* Queries an event. May run on a thread that has no current GPU yet. Without cudaSetDevice such a thread
 * would create a context on GPU 0. */
static ax_status is_done(ax_device *dev, void *event, bool *done)
{
    cudaSetDevice(cuda_of(dev)->ordinal);
    cudaError_t result = cudaEventQuery((cudaEvent_t)event);
    *done = result == cudaSuccess;
    if (result == cudaErrorNotReady) {
        cudaGetLastError(); /* clear the error, so that the next launch does not report it */
        return AX_OK;
    }
    return ax_cuda_check(result, "cudaEventQuery");
}

static ax_status wait(ax_device *dev, void *event)
{
    return ax_cuda_wait_event(cuda_of(dev), (cudaEvent_t)event);
}

const ax_copy_ops ax_cuda_copy_ops = {.alloc = alloc_pinned,
                                      .free = free_pinned,
                                      .stream = copy_stream,
                                      .copy = copy,
                                      .event_create = event_create,
                                      .event_destroy = event_destroy,
                                      .record = record,
                                      .await = await,
                                      .done = is_done,
                                      .wait = wait};
