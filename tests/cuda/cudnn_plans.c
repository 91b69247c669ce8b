/* Checks that every graph of attention that the plugin builds has a plan on Hopper whose workspace fits the
 * plugin's scratch. The plans come from the real library, which can plan for a GPU that is only described.
 * Exits with 77 if the library is not installed. */
#include "dev/cuda/cuda.h"
#include "dev/cuda/cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An H100 (SXM), in the JSON form in which the library exports a device's properties. */
static const char h100[] =
    "{\"deviceName\":\"NVIDIA H100 80GB HBM3\",\"maxGridSize\":[2147483647,65535,65535],"
    "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":85029158912,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,\"cudaDeviceId\":0,\"deviceVer\":900,"
    "\"driverVer\":13000}";

/* heads, kv_heads: number of heads in one call; all_heads, all_kv_heads: number of heads in the arrays. */
static const struct {
    int64_t batch, time, heads, kv_heads, all_heads, all_kv_heads, width, documents;
} shapes[] = {
    {1, 1024, 12, 12, 12, 12, 64, 1}, /* GPT-2 124M, one sequence */
    {1, 1024, 13, 13, 25, 25, 64, 0}, /* GPT-2 1.5B, a slice of 13 heads */
    {1, 1024, 12, 12, 25, 25, 64, 1}, /* the other 12 heads */
    {1, 2048, 2, 1, 32, 16, 128, 1},  /* one group of heads out of 16 */
    {2, 1000, 4, 2, 4, 2, 80, 0},     /* lengths and widths that no tile size divides */
    {3, 17, 3, 1, 3, 1, 8, 1},        {1, 100, 2, 2, 2, 2, 256, 0},
};

static ax_status describe(const ax_cudnn *lib, cudnnBackendDescriptor_t *out)
{
    AX_TRY(ax_cudnn_check(lib, lib->BackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, out),
                          "a description"));
    AX_TRY(ax_cudnn_set(lib, *out, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                        (int64_t)strlen(h100), h100));
    return ax_cudnn_check(lib, lib->BackendFinalize(*out), "a description");
}

static const char *const kinds[] = {[AX_CUDNN_FORWARD] = "forward",
                                    [AX_CUDNN_BACKWARD] = "backward",
                                    [AX_CUDNN_BACKWARD_ORDERED] = "ordered"};

/* Makes a plan and prints a line about it. Returns whether there is one. */
static bool plan(const ax_cudnn *lib, cudnnBackendDescriptor_t about, const ax_cudnn_shape *s, int64_t room)
{
    ax_cudnn_plan p;
    double start = ax_now();
    ax_status status = ax_cudnn_plan_create(lib, &(ax_cudnn_target){.properties = about}, s, room, &p);
    printf("%-8s %-4s b%lld t%lld h%lld/%lld of %lld/%lld d%lld%s%s: ", kinds[s->kind],
           ax_dtype_name((ax_dtype)s->dtype), (long long)s->batch, (long long)s->time, (long long)s->heads,
           (long long)s->kv_heads, (long long)s->all_heads, (long long)s->all_kv_heads, (long long)s->width,
           s->documents ? ", documents" : "", s->lse ? ", lse" : "");
    if (status == AX_OK)
        printf("engine %lld, %lld bytes of workspace, planned in %.2f s\n", (long long)p.engine,
               (long long)p.workspace, ax_now() - start);
    else
        printf("%s\n", ax_error_message());
    ax_cudnn_plan_destroy(lib, &p);
    return status == AX_OK;
}

int main(void)
{
    ax_cudnn lib;
    cudnnBackendDescriptor_t about;
    int missing = 0;
    if (ax_cudnn_load(&lib) != AX_OK) {
        printf("skipped: %s\n", ax_error_message());
        return 77;
    }
    if (describe(&lib, &about) != AX_OK) {
        printf("%s\n", ax_error_message());
        return 1;
    }
    const int last =
        lib.GetVersion() < AX_CUDNN_ORDERED_VERSION ? AX_CUDNN_BACKWARD : AX_CUDNN_BACKWARD_ORDERED;
    printf("cuDNN %zu, on a described H100:\n", lib.GetVersion());
    for (size_t n = 0; n < 2 * AX_COUNT(shapes); n++)
        for (int kind = AX_CUDNN_FORWARD; kind <= last; kind++) {
            const size_t i = n / 2;
            ax_cudnn_shape s = {.kind = kind,
                                .dtype = n % 2 ? AX_F16 : AX_BF16,
                                .batch = shapes[i].batch,
                                .time = shapes[i].time,
                                .heads = shapes[i].heads,
                                .kv_heads = shapes[i].kv_heads,
                                .all_heads = shapes[i].all_heads,
                                .all_kv_heads = shapes[i].all_kv_heads,
                                .width = shapes[i].width,
                                .documents = shapes[i].documents,
                                .lse = kind == AX_CUDNN_FORWARD && i % 2};
            /* the workspace that a call may use; the plugin cuts its slices accordingly */
            int64_t room = AX_CUDA_SCRATCH, most = 64 << 10;
            if (kind != AX_CUDNN_FORWARD)
                most += s.batch * s.heads * ax_cudnn_backward_bytes((ax_cudnn_kind)kind, s.time, s.width);
            missing += !plan(&lib, about, &s, ax_min(room, most));
        }
    lib.BackendDestroyDescriptor(about);
    ax_cudnn_unload(&lib);
    return missing != 0;
}
