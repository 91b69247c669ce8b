/* Measures the peak rates of a device (flops and memory bandwidth). The speeds of its kernels are compared
 * with these rates. */
#include "axonn/dev.h"

ax_status ax_device_peak(ax_device *dev, ax_dtype compute, double seconds, double *flops)
{
    *flops = dev->ops.peak ? dev->ops.peak(dev, compute, seconds) : 0;
    return AX_OK;
}

/* Measures the memory bandwidth by scaling one array in place: each pass reads and writes the array once.
 * Sets *bytes to the bytes per second of the fastest pass. */
ax_status ax_device_stream(ax_device *dev, double seconds, double *bytes)
{
    enum { N = AX_STREAM_BYTES / sizeof(float), PASSES = 8 };
    ax_stream stream = {dev, NULL};
    ax_scale_args args = {.n = N, .factor = 1, .dtype = AX_F32};
    void *memory;
    *bytes = 0;
    AX_TRY(ax_device_alloc(dev, N * sizeof(float), &memory));
    args.x = memory;
    ax_status status =
        ax_run_fill(&stream, &(ax_fill_args){.n = N, .value = 1, .y = memory, .dtype = AX_F32});
    int passes = 0;
    for (double begin = ax_now(), start = begin;
         status == AX_OK && (passes < PASSES || start - begin < seconds); passes++) {
        status = ax_run_scale(&stream, &args);
        if (status == AX_OK)
            status = ax_stream_wait(&stream);
        double now = ax_now(), rate = 2.0 * N * sizeof(float) / (now - start);
        *bytes = rate > *bytes ? rate : *bytes;
        start = now;
    }
    ax_device_free(dev, memory, N * sizeof(float));
    return status;
}
