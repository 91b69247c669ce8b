/* The function table of the CUDA backend; opening a GPU, its memory, copies, graphs, clock, and peak rate. */
#include "dev/cuda/cuda.h"

#include "axonn/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ax_status ax_cuda_check(cudaError_t result, const char *what)
{
    AX_CHECK(result == cudaSuccess, result == cudaErrorMemoryAllocation ? AX_ERR_MEMORY : AX_ERR_INTERNAL,
             "CUDA failed (%.*s): %s (%s)", (int)strcspn(what, "("), what, cudaGetErrorString(result),
             cudaGetErrorName(result));
    return AX_OK;
}

static const char *absent(void)
{
    static _Thread_local char why[256];
    int count = 0, major = 0;
    cudaError_t result = cudaGetDeviceCount(&count);
    snprintf(why, sizeof why,
             "CUDA finds no usable NVIDIA driver or GPU (%s): does nvidia-smi list a GPU, and does "
             "CUDA_VISIBLE_DEVICES allow it?",
             cudaGetErrorString(result));
    if (result != cudaSuccess || count == 0)
        return why;
    for (int i = 0; i < count; i++) {
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i);
        snprintf(why, sizeof why,
                 "GPU %d is older than Ampere (compute capability 8.0): leave it out of CUDA_VISIBLE_DEVICES",
                 i);
        if (major < 8)
            return why;
    }
    return NULL;
}

/* Returns the bytes of scratch: 1/512 of the memory of the smallest GPU that this process can use, but at
 * least AX_CUDA_SCRATCH and at most 256 MiB. So ranks that can use the same GPUs have scratch of the same
 * size, and the size is known before a device is opened. */
static size_t workspace(int threads)
{
    const int64_t share = 512, most = 256 << 20, unit = 1 << 20;
    int64_t least = 0;
    int count = 0;
    (void)threads;
    if (cudaGetDeviceCount(&count) != cudaSuccess)
        return AX_CUDA_SCRATCH;
    for (int i = 0; i < count; i++) {
        struct cudaDeviceProp about;
        if (cudaGetDeviceProperties(&about, i) == cudaSuccess)
            least = i ? ax_min(least, (int64_t)about.totalGlobalMem) : (int64_t)about.totalGlobalMem;
    }
    return (size_t)ax_max(ax_min(least / share / unit * unit, most), AX_CUDA_SCRATCH);
}

static ax_cuda *cuda_of(ax_device *dev) { return dev->impl; }

/* Returns the GPU of a rank: the ranks of a machine are assigned to its GPUs in turn. */
static int ordinal_of(int local_rank)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? local_rank % count : 0;
}

/* Returns the free bytes of the current GPU, or -1 if CUDA returns an error. */
static int64_t memory_left(void)
{
    size_t left = 0, all = 0;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? (int64_t)left : -1;
}

/* Returns the bytes that a device opened now could allocate (ax_device_available). *place is a hash of the
 * GPU's PCI bus id, because CUDA's number of a GPU depends on the process's CUDA_VISIBLE_DEVICES. */
static int64_t available(int local_rank, int *place)
{
    char bus[32] = "";
    int ordinal = ordinal_of(local_rank);
    cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal);
    *place = (int)(ax_rng_key(0, bus, 0) >> 34 | 1);
    return cudaSetDevice(ordinal) == cudaSuccess ? memory_left() : -1;
}

/* Returns the most bytes of GPU memory that were in use since the device was opened, without the driver's
 * context. Memory that other processes have taken on this GPU since then counts too. The function measures
 * the memory in use at each call, and is called before ax_device_free frees memory. That is enough for memory
 * from ax_device_alloc, because only a free reduces the memory in use. */
static int64_t held(ax_device *dev)
{
    ax_cuda *cu = cuda_of(dev);
    cudaSetDevice(cu->ordinal);
    int64_t left = memory_left();
    if (left >= 0)
        cu->held = ax_max(cu->held, cu->left_at_open - left);
    return cu->held;
}

ax_status ax_cuda_wait_event(ax_cuda *cu, cudaEvent_t event)
{
    if (cu->nccl)
        ax_nccl_reach(cu, event, false);
    AX_CHECK(!ax_nccl_why(cu), AX_ERR_COMM, "%s",
             ax_nccl_why(cu)); /* what was computed since the failure is invalid */
    AX_CUDA(cudaEventSynchronize(event));
    return AX_OK;
}

void ax_cuda_drain(ax_cuda *cu)
{
    if (cu->nccl && cudaEventRecord(cu->reached, cu->stream) == cudaSuccess)
        ax_nccl_reach(cu, cu->reached, true);
    if (cu->stream)
        cudaStreamSynchronize(cu->stream);
    for (int d = 0; d < AX_COPY_DIRECTIONS; d++)
        if (cu->copies[d])
            cudaStreamSynchronize(cu->copies[d]);
}

static void destroy_cuda(ax_cuda *cu)
{
    cudaSetDevice(cu->ordinal);
    ax_cuda_drain(cu);
    ax_nccl_destroy(cu);
    ax_cuda_matmuls_destroy(&cu->matmuls);
#ifdef AXONN_HAVE_CUDNN
    ax_cuda_cudnn_destroy(&cu->cudnn);
#endif
    cudaFree(cu->scratch);
    for (int i = 0; i < AX_CUDA_CHUNKS; i++)
        if (cu->copied[i])
            cudaEventDestroy(cu->copied[i]);
    for (int i = 0; i < AX_EVENTS; i++)
        if (cu->event[i])
            cudaEventDestroy(cu->event[i]);
    if (cu->reached)
        cudaEventDestroy(cu->reached);
    cudaFreeHost(cu->pinned);
    for (int d = 0; d < AX_COPY_DIRECTIONS; d++)
        if (cu->copies[d])
            cudaStreamDestroy(cu->copies[d]);
    if (cu->stream)
        cudaStreamDestroy(cu->stream);
    free(cu);
}

static ax_status open_cudnn(ax_cuda *cu)
{
#ifdef AXONN_HAVE_CUDNN
    return ax_cuda_cudnn_create(cu, &cu->cudnn);
#else
    (void)cu;
    return ax_fail(
        AX_ERR_USAGE,
        "libaxonn_cuda.so was built without cuDNN: install cuDNN's headers and library (9.16 or later), and "
        "configure and build libaxonn_cuda.so again");
#endif
}

/* Chooses the implementation of attention: the best, or the one that setting runtime.attention names. If the
 * setting names cuDNN, cuDNN is opened now, and a failure is an error, unless that value is only preferred
 * (ax_runtime_prefer). With the setting auto, cuDNN is opened at the first call that cuDNN may support. */
static ax_status choose_attention(ax_cuda *cu)
{
    const char *name;
    char why[512];
    AX_TRY(ax_runtime_get(AX_RUNTIME_ATTENTION, &name));
    cu->attention = !strcmp(name, "plain")   ? AX_CUDA_PLAIN
                    : !strcmp(name, "flash") ? AX_CUDA_FLASH
                                             : AX_CUDA_CUDNN;
    if (strcmp(name, "cudnn") != 0 || open_cudnn(cu) == AX_OK)
        return AX_OK;
    snprintf(why, sizeof why, "which cannot be used here: %s", ax_error_message());
    return ax_runtime_unavailable(AX_RUNTIME_ATTENTION, name, "auto", why);
}

/* Writes which implementation of attention runs. Opens cuDNN, unless it is open or the setting excludes it,
 * to find out whether cuDNN can be used. */
static void describe_attention(ax_cuda *cu, char *out, size_t size)
{
    if (cu->attention != AX_CUDA_CUDNN) {
        snprintf(out, size, "by own kernels (%s)", cu->attention == AX_CUDA_FLASH ? "flash" : "plain");
        return;
    }
#ifdef AXONN_HAVE_CUDNN
    if (cu->cudnn || open_cudnn(cu) == AX_OK) {
        size_t version = ax_cuda_cudnn_version(cu->cudnn);
        snprintf(out, size, "by cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
        return;
    }
#else
    (void)open_cudnn(cu); /* sets the error message */
#endif
    snprintf(out, size, "by own kernels (flash): %s", ax_error_message());
}

static void describe(ax_device *dev, char *out, size_t size)
{
    struct cudaDeviceProp about;
    char attention[600], memory[32];
    if (cudaGetDeviceProperties(&about, cuda_of(dev)->ordinal) != cudaSuccess)
        return;
    describe_attention(cuda_of(dev), attention, sizeof attention);
    snprintf(out, size, "%s, %s; attention %s", about.name,
             ax_format_bytes((double)about.totalGlobalMem, memory), attention);
}

static ax_status open_gpu(ax_cuda *cu)
{
    struct cudaDeviceProp about;
    AX_CUDA(cudaSetDevice(cu->ordinal));
    cu->left_at_open = memory_left();
    AX_CUDA(cudaGetDeviceProperties(&about, cu->ordinal));
    cu->processors = about.multiProcessorCount;
    AX_CUDA(cudaDeviceGetAttribute(&cu->generation, cudaDevAttrComputeCapabilityMajor, cu->ordinal));
    AX_CUDA(cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking));
    for (int d = 0; d < AX_COPY_DIRECTIONS; d++)
        AX_CUDA(cudaStreamCreateWithFlags(&cu->copies[d], cudaStreamNonBlocking));
    cu->scratch_bytes = (int64_t)workspace(0);
    AX_CUDA(cudaMalloc(&cu->scratch, (size_t)cu->scratch_bytes));
    AX_CUDA(cudaHostAlloc((void **)&cu->pinned, AX_CUDA_CHUNK * AX_CUDA_CHUNKS, cudaHostAllocDefault));
    for (int i = 0; i < AX_CUDA_CHUNKS; i++)
        AX_CUDA(cudaEventCreateWithFlags(&cu->copied[i], cudaEventDisableTiming));
    AX_CUDA(cudaEventCreateWithFlags(&cu->reached, cudaEventDisableTiming));
    AX_TRY(ax_cuda_matmuls_create(cu, about.name, &cu->matmuls));
    AX_TRY(choose_attention(cu));
    ax_log(AX_LOG_DEBUG, "cuda: GPU %d: %s, %d multiprocessors, %.1f GiB", cu->ordinal, about.name,
           cu->processors, (double)about.totalGlobalMem / 0x1p30);
    return AX_OK;
}

static ax_status open_device(ax_device *dev)
{
    ax_cuda *cu;
    AX_TRY(ax_calloc(1, sizeof *cu, &cu));
    cu->ordinal = ordinal_of(dev->binding ? dev->binding->local_rank : 0);
    ax_status status = open_gpu(cu);
    if (status == AX_OK)
        dev->impl = cu;
    else
        destroy_cuda(cu);
    return status;
}

static void close_device(ax_device *dev)
{
    destroy_cuda(dev->impl);
    dev->impl = NULL;
}

static ax_status alloc(ax_device *dev, size_t bytes, void **out)
{
    cudaStream_t stream = cuda_of(dev)->stream;
    size_t size = bytes ? bytes : 1;
    cudaSetDevice(cuda_of(dev)->ordinal);
    cudaError_t result = cudaMalloc(out, size);
    if (result == cudaErrorMemoryAllocation) {
        size_t left = 0, all = 0;
        char text[3][32];
        cudaGetLastError(); /* clear the error, so that the next launch does not report it again */
        cudaMemGetInfo(&left, &all);
        *out = NULL;
        return ax_fail(AX_ERR_MEMORY,
                       "GPU %d has no %s free, only %s of %s: use smaller micro-batches, or more GPUs",
                       cuda_of(dev)->ordinal, ax_format_bytes((double)size, text[0]),
                       ax_format_bytes((double)left, text[1]), ax_format_bytes((double)all, text[2]));
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
    ax_cuda_drain(cuda_of(dev));
    cudaError_t result = cudaFree(memory);
    if (result != cudaSuccess)
        ax_log(AX_LOG_ERROR, "CUDA cannot free %zu bytes of GPU memory (cudaFree): %s", bytes,
               cudaGetErrorString(result));
}

ax_status ax_cuda_wait(ax_cuda *cu)
{
    AX_CHECK(!cu->capturing, AX_ERR_INTERNAL,
             "the host cannot wait for a CUDA stream while it is captured as a graph: end the capture first");
    AX_CUDA(cudaEventRecord(cu->reached, cu->stream));
    return ax_cuda_wait_event(cu, cu->reached);
}

/* First waits for the stream by ax_cuda_wait, which checks the links. Otherwise CUDA itself would wait for
 * the stream in a copy from or to pageable memory, and would not check the links. */
ax_status ax_cuda_copy(ax_cuda *cu, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    AX_TRY(ax_cuda_wait(cu));
    AX_CUDA(cudaMemcpyAsync(to, from, bytes, kind, cu->stream));
    return ax_cuda_wait(cu);
}

static ax_status wait(ax_stream *stream) { return ax_cuda_wait(ax_cuda_of(stream)); }

/* Copies through the chunks of pinned memory, which are used in turn. The host waits only if an earlier copy
 * from the chunk to use next is not done yet. */
static ax_status copy_in(ax_stream *stream, void *device, const void *host, size_t bytes)
{
    ax_cuda *cu = ax_cuda_of(stream);
    for (size_t at = 0; at < bytes; at += AX_CUDA_CHUNK) {
        size_t count = bytes - at < AX_CUDA_CHUNK ? bytes - at : AX_CUDA_CHUNK;
        int i = cu->chunk;
        char *chunk = cu->pinned + (size_t)i * AX_CUDA_CHUNK;
        cu->chunk = (i + 1) % AX_CUDA_CHUNKS;
        AX_TRY(ax_cuda_wait_event(cu, cu->copied[i]));
        memcpy(chunk, (const char *)host + at, count);
        AX_CUDA(cudaMemcpyAsync((char *)device + at, chunk, count, cudaMemcpyHostToDevice, cu->stream));
        AX_CUDA(cudaEventRecord(cu->copied[i], cu->stream));
    }
    return AX_OK;
}

static ax_status copy_out(ax_stream *stream, void *host, const void *device, size_t bytes)
{
    return bytes ? ax_cuda_copy(ax_cuda_of(stream), host, device, bytes, cudaMemcpyDeviceToHost)
                 : wait(stream);
}

/* ---- graphs -------------------------------------------------------------------------------------- */

/* Captures in mode ThreadLocal, so that other threads, which have streams of their own, may call CUDA without
 * restriction in the meantime. */
static ax_status capture_begin(ax_stream *stream)
{
    ax_cuda *cu = ax_cuda_of(stream);
    cudaSetDevice(cu->ordinal);
    cudaError_t result = cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal);
    cudaGetLastError();
    AX_TRY(ax_cuda_check(result, "cudaStreamBeginCapture"));
    cu->capturing = true;
    return AX_OK;
}

/* Returns errors that happened during the capture, and clears them, so that later calls do not report them
 * again. The graph is uploaded at once, so that its GPU memory is allocated now and not at its first
 * launch. */
static ax_status capture_end(ax_stream *stream, void **graph)
{
    ax_cuda *cu = ax_cuda_of(stream);
    cudaGraph_t noted = NULL;
    cudaGraphExec_t ready = NULL;
    cu->capturing = false;
    cudaSetDevice(cu->ordinal);
    cudaError_t result = cudaStreamEndCapture(cu->stream, &noted);
    if (result == cudaSuccess)
        result = cudaGraphInstantiateWithFlags(&ready, noted, 0);
    if (result == cudaSuccess)
        result = cudaGraphUpload(ready, cu->stream);
    if (noted)
        cudaGraphDestroy(noted);
    if (result != cudaSuccess && ready) {
        cudaGraphExecDestroy(ready);
        ready = NULL;
    }
    cudaGetLastError();
    *graph = ready;
    return ax_cuda_check(result, "instantiating a CUDA graph");
}

static ax_status graph_launch(ax_stream *stream, void *graph)
{
    ax_cuda *cu = ax_cuda_of(stream);
    cudaSetDevice(cu->ordinal);
    AX_CUDA(cudaGraphLaunch(graph, cu->stream));
    return AX_OK;
}

static void graph_destroy(ax_device *dev, void *graph)
{
    cudaSetDevice(cuda_of(dev)->ordinal);
    cudaGraphExecDestroy(graph); /* a launch in flight still runs to its end */
}

/* ---- the GPU's clock ----------------------------------------------------------------------------- */

static ax_status event_record(ax_stream *stream, int event)
{
    ax_cuda *cu = ax_cuda_of(stream);
    if (!cu->event[event])
        AX_CUDA(cudaEventCreateWithFlags(&cu->event[event], cudaEventDefault));
    AX_CUDA(cudaEventRecord(cu->event[event], cu->stream));
    return AX_OK;
}

static ax_status event_elapsed(ax_stream *stream, int first, int second, double *seconds)
{
    ax_cuda *cu = ax_cuda_of(stream);
    float ms;
    AX_TRY(ax_cuda_wait_event(cu, cu->event[second]));
    AX_CUDA(cudaEventElapsedTime(&ms, cu->event[first], cu->event[second]));
    *seconds = (double)ms * 1e-3;
    return AX_OK;
}

/* ---- peak flops ---------------------------------------------------------------------------------- */

/* Times matmuls n x n x n for about `seconds`, at least one. The operands, in `memory`, are normally
 * distributed numbers, because a GPU multiplies zeros faster. *took is set to the shortest time of a matmul
 * in seconds. */
static ax_status time_matmuls(ax_stream *stream, ax_dtype compute, int64_t n, double seconds, char *memory,
                              double *took)
{
    int64_t elements = n * n;
    size_t matrix = (size_t)elements * ax_dtype_size(compute);
    const ax_init_normal_args numbers = {.extent = {1, 1, 1, elements},
                                         .n = {1, 1, 1, elements},
                                         .std = 1,
                                         .y = memory + 2 * matrix,
                                         .dtype = AX_F32};
    const ax_gemm_args gemm = {.m = n,
                               .n = n,
                               .k = n,
                               .a = memory,
                               .b = memory + matrix,
                               .c = memory + 2 * matrix,
                               .lda = n,
                               .ldb = n,
                               .ldc = n,
                               .dtype = compute,
                               .c_dtype = compute,
                               .trans_b = true};
    AX_TRY(ax_cuda_init_normal(stream, &numbers));
    for (size_t i = 0; i < 2; i++)
        AX_TRY(ax_cuda_convert(
            stream, &(ax_convert_args){elements, numbers.y, memory + i * matrix, AX_F32, compute}));
    AX_TRY(ax_cuda_gemm(stream, &gemm));
    AX_TRY(wait(stream));
    *took = INFINITY;
    for (double begin = ax_now(), start = begin; start - begin < seconds || *took == INFINITY;) {
        AX_TRY(ax_cuda_gemm(stream, &gemm));
        AX_TRY(wait(stream));
        double now = ax_now();
        *took = fmin(*took, now - start);
        start = now;
    }
    return AX_OK;
}

/* Measures the peak rate of matmuls n x n x n. Doubles n, up to 8192, until a matmul takes long compared with
 * launching the matmul and waiting for its end. Returns 0 (unknown) for F64, or if anything fails, most
 * likely for lack of memory. */
static double peak(ax_device *dev, ax_dtype compute, double seconds)
{
    const double long_enough = 1e-3;
    const int64_t least = 64, most = 8192;
    ax_stream stream = {.dev = dev};
    double took = 0;
    int64_t n = least;
    if (compute == AX_F64)
        return 0;
    for (bool last = false;; n *= 2) {
        char *memory;
        if (cudaMalloc((void **)&memory, 3 * (size_t)(n * n) * sizeof(float)) != cudaSuccess) {
            cudaGetLastError();
            return 0;
        }
        ax_status status = time_matmuls(&stream, compute, n, last ? seconds : 0, memory, &took);
        cudaFree(memory);
        if (status != AX_OK)
            return 0;
        if (last)
            return 2.0 * (double)n * (double)n * (double)n / took;
        last = 2 * n >= most || 8 * took >= long_enough;
    }
}

static ax_status keep_plans(ax_device *dev, const char *dir, const char *from, bool *kept)
{
    return ax_cuda_matmuls_keep(cuda_of(dev)->matmuls, dir, from, kept);
}

static void enter(ax_device *dev) { cudaSetDevice(cuda_of(dev)->ordinal); }

/* dev/plugin.c compares these texts with the library's commit and interface. */
const char *const ax_plugin_commit = AXONN_COMMIT;
const char *const ax_plugin_interface = AXONN_INTERFACE;

#define ENTRY(name) [AX_K_##name] = ax_cuda_##name,
const ax_device_ops ax_plugin_cuda = {
    .name = "cuda plugin",
    .absent = absent,
    .open = open_device,
    .close = close_device,
    .discrete_memory = true,
    .links = &ax_cuda_links,
    .available = available,
    .held = held,
    .describe = describe,
    .workspace = workspace,
    .alloc = alloc,
    .free = release_memory,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copies = &ax_cuda_copy_ops,
    .wait = wait,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
    .event_record = event_record,
    .event_elapsed = event_elapsed,
    .peak = peak,
    .keep_plans = keep_plans,
    .enter = enter,
    .kernel = {AX_KERNELS(ENTRY)},
};
