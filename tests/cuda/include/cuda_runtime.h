/* The stand-in for CUDA C++: the words of the language as far as src/dev/cuda uses them. */
#ifndef AXONN_EMULATED_CUDA_RUNTIME_H
#define AXONN_EMULATED_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

using std::isnan;

#define __global__
#define __device__
#define __host__
#define __align__(bytes) alignas(bytes)
/* Blocks of a thread of the host run one after the other. */
#define __shared__ static thread_local

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned X = 1, unsigned Y = 1, unsigned Z = 1) : x(X), y(Y), z(Z) {}
};
extern thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};

/* ---- emulator.cpp -------------------------------------------------------------------------------- */

void *ax_emulated_shared();
/* Appends work to a stream. */
void ax_emulated_enqueue(cudaStream_t stream, std::function<void()> work);
/* Runs a kernel now. */
void ax_emulated_run(dim3 grid, dim3 block, size_t shared, const std::function<void()> &thread);
/* All threads of the block, or of the warp, come here; in a warp each brings up to 16 bytes and is given
 * those of `lane`. */
void ax_emulated_block_barrier();
void ax_emulated_exchange(const void *mine, void *theirs, size_t bytes, int lane);

/* ---- the language -------------------------------------------------------------------------------- */

inline void __syncthreads() { ax_emulated_block_barrier(); }
inline void __syncwarp(unsigned = 0xffffffffu)
{
    char none = 0;
    ax_emulated_exchange(&none, &none, 1, 0);
}
template <class T> T __shfl_sync(unsigned, T value, int lane)
{
    T out;
    static_assert(sizeof(T) <= 16, "a register or two");
    ax_emulated_exchange(&value, &out, sizeof out, lane);
    return out;
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int other)
{
    return __shfl_sync(mask, value, (int)(threadIdx.x % 32) ^ other);
}

/* The arguments are copied now, as a launch does, and the kernel runs when the stream is waited for. */
template <class... P, class... Q>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *how, void (*kernel)(P...), Q... args)
{
    dim3 g = how->gridDim, b = how->blockDim;
    size_t shared = how->dynamicSmemBytes;
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 || b.x * b.y * b.z > 1024 ||
        shared > 49152)
        return cudaErrorInvalidConfiguration;
    ax_emulated_enqueue(how->stream, [=] { ax_emulated_run(g, b, shared, [=] { kernel(P(args)...); }); });
    return cudaSuccess;
}

#endif
