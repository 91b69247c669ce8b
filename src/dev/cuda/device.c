/* The CUDA backend's table: memory, copies, and the GPU that is opened. */
#include "dev/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

ax_status ax_cuda_check(cudaError_t result, const char *what)
{
    AX_CHECK(result == cudaSuccess, result == cudaErrorMemoryAllocation ? AX_ERR_MEMORY : AX_ERR_INTERNAL,
             "CUDA: %s: %s (%s)", what, cudaGetErrorString(result), cudaGetErrorName(result));
    return AX_OK;
}

static const char *absent(void)
{
    static _Thread_local char why[256];
    int count = 0;
    cudaError_t result = cudaGetDeviceCount(&count);
    snprintf(why, sizeof why, "no NVIDIA driver with a GPU answers (%s)", cudaGetErrorString(result));
    return result == cudaSuccess && count > 0 ? NULL : why;
}

static size_t workspace(int threads)
{
    (void)threads;
    return AX_CUDA_SCRATCH;
}

static ax_cuda *cuda_of(ax_device *dev) { return dev->impl; }

/* Ranks of a machine take its GPUs in turn. */
static int ordinal_of(int neighbour)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? neighbour % count : 0;
}

/* Of the current GPU. */
static int64_t memory_left(void)
{
    size_t left = 0, all = 0;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? (int64_t)left : -1;
}

static int64_t available(int neighbour, int *place)
{
    *place = 1 + ordinal_of(neighbour);
    return cudaSetDevice(*place - 1) == cudaSuccess ? memory_left() : -1;
}

/* What is allocated stays until the end: the most is what is held now, or was when something was given back.
 */
static int64_t held(ax_device *dev)
{
    ax_cuda *cu = cuda_of(dev);
    cu->held = ax_max(cu->held, cu->left_at_open - memory_left());
    return cu->held;
}

static void release(ax_cuda *cu)
{
    ax_cuda_products_destroy(&cu->products);
    cudaFree(cu->scratch);
    if (cu->stream)
        cudaStreamDestroy(cu->stream);
    free(cu);
}

static ax_status prepare(ax_cuda *cu)
{
    struct cudaDeviceProp about;
    AX_CUDA(cudaSetDevice(cu->ordinal));
    cu->left_at_open = memory_left();
    AX_CUDA(cudaGetDeviceProperties(&about, cu->ordinal));
    cu->processors = about.multiProcessorCount;
    AX_CUDA(cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking));
    AX_CUDA(cudaMalloc(&cu->scratch, AX_CUDA_SCRATCH));
    AX_TRY(ax_cuda_products_create(&cu->products));
    ax_log(AX_LOG_DEBUG, "cuda: GPU %d: %s, %d multiprocessors, %.1f GiB", cu->ordinal, about.name,
           cu->processors, (double)about.totalGlobalMem / 0x1p30);
    return AX_OK;
}

static ax_status open_device(ax_device *dev)
{
    ax_cuda *cu;
    AX_TRY(ax_calloc(1, sizeof *cu, &cu));
    cu->ordinal = ordinal_of(dev->binding ? dev->binding->neighbour : 0);
    ax_status status = prepare(cu);
    if (status == AX_OK)
        dev->impl = cu;
    else
        release(cu);
    return status;
}

static void close_device(ax_device *dev)
{
    release(dev->impl);
    dev->impl = NULL;
}

static ax_status alloc(ax_device *dev, size_t bytes, void **out)
{
    cudaStream_t stream = cuda_of(dev)->stream;
    size_t size = bytes ? bytes : 1;
    cudaError_t result = cudaMalloc(out, size);
    if (result == cudaErrorMemoryAllocation) {
        size_t left = 0, all = 0;
        char text[3][32];
        cudaGetLastError(); /* it is told here, and shall not be told again by the next launch */
        cudaMemGetInfo(&left, &all);
        *out = NULL;
        return ax_fail(AX_ERR_MEMORY, "the GPU has no %s: %s of %s are left",
                       ax_format_bytes((double)size, text[0]), ax_format_bytes((double)left, text[1]),
                       ax_format_bytes((double)all, text[2]));
    }
    AX_CUDA(result);
    result = cudaMemsetAsync(*out, 0, size, stream);
    if (result != cudaSuccess) {
        cudaFree(*out);
        *out = NULL;
    }
    return ax_cuda_check(result, "cudaMemsetAsync");
}

static void release_memory(ax_device *dev, void *memory, size_t bytes)
{
    (void)bytes;
    held(dev);
    cudaStreamSynchronize(cuda_of(dev)->stream);
    cudaError_t result = cudaFree(memory);
    if (result != cudaSuccess)
        ax_log(AX_LOG_ERROR, "CUDA: cudaFree: %s", cudaGetErrorString(result));
}

static ax_status wait(ax_stream *stream)
{
    AX_CUDA(cudaStreamSynchronize(ax_cuda_of(stream)->stream));
    return AX_OK;
}

/* From memory that is not pinned: the driver has read it when the call returns. */
static ax_status copy_in(ax_stream *stream, void *device, const void *host, size_t bytes)
{
    AX_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, ax_cuda_of(stream)->stream));
    return AX_OK;
}

static ax_status copy_out(ax_stream *stream, void *host, const void *device, size_t bytes)
{
    AX_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, ax_cuda_of(stream)->stream));
    return wait(stream);
}

static void enter(ax_device *dev) { cudaSetDevice(cuda_of(dev)->ordinal); }

const char *const ax_plugin_commit = AXONN_COMMIT;

#define ENTRY(name) [AX_K_##name] = ax_cuda_##name,
const ax_device_ops ax_plugin_cuda = {
    .name = "cuda plugin",
    .help = "the table of libaxonn_cuda.so",
    .absent = absent,
    .open = open_device,
    .close = close_device,
    .apart = true,
    .available = available,
    .held = held,
    .workspace = workspace,
    .alloc = alloc,
    .free = release_memory,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .wait = wait,
    .enter = enter,
    .kernel = {AX_KERNELS(ENTRY)},
};
