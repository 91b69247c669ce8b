/* The plugin's table, in which kernels can be made to fail: environment AXONN_EMULATED_FAULTS is a list such
 * as "rope:fault,glu:hang". As on a GPU the launch succeeds. When something waits for the stream, a kernel
 * that faults ends the process, and one that hangs never ends. device.c names its table ax_sound_plugin_cuda.
 */
#include "cuda_runtime.h"

#include "dev/cuda/cuda.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

extern "C" const ax_device_ops ax_sound_plugin_cuda;

namespace
{

ax_status fault(ax_stream *stream, const void *)
{
    ax_emulated_enqueue(ax_cuda_of(stream)->stream, [] {
        fprintf(stderr, "emulated CUDA: a kernel that AXONN_EMULATED_FAULTS names faults\n");
        abort();
    });
    return AX_OK;
}

ax_status hang(ax_stream *stream, const void *)
{
    ax_emulated_enqueue(ax_cuda_of(stream)->stream, [] {
        for (;;)
            pause();
    });
    return AX_OK;
}

/* Returns whether the list has the entry "name:how". */
bool listed(const std::string &list, const char *name, const char *how)
{
    return ("," + list + ",").find("," + std::string(name) + ":" + how + ",") != std::string::npos;
}

ax_device_ops with_faults()
{
    ax_device_ops table = ax_sound_plugin_cuda;
    const char *list = getenv("AXONN_EMULATED_FAULTS");
    for (int k = 0; list && k < AX_KERNEL_COUNT; k++) {
        const char *name = ax_kernel_name((ax_kernel)k);
        if (listed(list, name, "fault"))
            table.kernel[k] = fault;
        else if (listed(list, name, "hang"))
            table.kernel[k] = hang;
    }
    return table;
}

} // namespace

extern "C" const ax_device_ops ax_plugin_cuda = with_faults();
