/* The function table of the reference backend, and reading and writing of arrays of any dtype as doubles. */
#include "dev/ref/ref.h"

#include "dev/backend.h"

void ref_read(ax_dtype dtype, const void *data, int64_t at, int64_t n, double *out)
{
    if (dtype == AX_F64)
        for (int64_t i = 0; i < n; i++)
            out[i] = ((const double *)data)[at + i];
    else if (dtype == AX_F32)
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)((const float *)data)[at + i];
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = ax_load(dtype, data, at + i);
}

double ref_rounded(ax_dtype dtype, double x)
{
    double place;
    if (dtype == AX_F64)
        return x;
    ax_store(dtype, &place, 0, x);
    return ax_load(dtype, &place, 0);
}

void ref_write(ax_dtype dtype, void *data, int64_t at, int64_t n, const double *in)
{
    if (dtype == AX_F64)
        for (int64_t i = 0; i < n; i++)
            ((double *)data)[at + i] = in[i];
    else if (dtype == AX_F32)
        for (int64_t i = 0; i < n; i++)
            ((float *)data)[at + i] = (float)in[i];
    else
        for (int64_t i = 0; i < n; i++)
            ax_store(dtype, data, at + i, in[i]);
}

#define REF_KERNEL_ENTRY(name) [AX_K_##name] = ref_##name,
const ax_device_ops ax_backend_ref = {
    .name = "ref",
    .help = "plain loops in double precision: slow, the reference for tests of the other backends",
    .alloc = ax_host_alloc,
    .free = ax_host_free,
    .copy_in = ax_host_copy_in,
    .copy_out = ax_host_copy_out,
    .kernel = {AX_KERNELS(REF_KERNEL_ENTRY)},
};
