/* A stand-in for CUDA C++: the part of the language that src/dev/cuda uses. */
#ifndef AXONN_EMULATED_CUDA_RUNTIME_H
#define AXONN_EMULATED_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

using std::isfinite;
using std::isnan;

#define __global__
#define __device__
#define __host__
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)
/* blocks that the same host thread runs share this memory, one block after the other */
#define __shared__ static thread_local

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned X = 1, unsigned Y = 1, unsigned Z = 1) : x(X), y(Y), z(Z) {}
};
struct uint3 {
    unsigned x, y, z;
};
/* Variables of a host thread with fixed addresses relative to the thread's: kernels read them all the time.
 */
#define AX_EMULATED_THREAD __thread __attribute__((tls_model("initial-exec")))
extern AX_EMULATED_THREAD uint3 threadIdx, blockIdx, blockDim, gridDim;

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};

/* ---- emulator.cpp -------------------------------------------------------------------------------- */

void *ax_emulated_shared();
/* Appends work to a stream. */
void ax_emulated_enqueue(cudaStream_t stream, std::function<void()> work);
/* Advances the stream's clock, which events read. Only this function and launches advance it, a launch by
 * AX_EMULATED_LAUNCH_MS. From then on the stream is no copy stream. */
void ax_emulated_spend(cudaStream_t stream, double ms);
const double AX_EMULATED_LAUNCH_MS = 0.125;
/* Appends work that depends on other ranks. It runs once `ready` returns true. `ready` is polled by each
 * thread that waits for the stream, and by a thread that stands for the GPU. */
void ax_emulated_meet(cudaStream_t stream, std::function<bool()> ready, std::function<void()> work);
/* Returns the device of a stream; NULL: the current device. */
int ax_emulated_device(cudaStream_t stream);
/* Runs a kernel now. */
void ax_emulated_run(dim3 grid, dim3 block, size_t shared, const std::function<void()> &thread);
/* Returns how much dynamic shared memory a kernel may have. */
size_t ax_emulated_shared_limit(const void *kernel);
/* Barriers of a block and of a warp. In a warp each lane passes `bytes` bytes; those of lane i are at [i ·
 * AX_EMULATED_SLOT] of the result. */
enum { AX_EMULATED_SLOT = 32 };
void ax_emulated_block_barrier();
const unsigned char *ax_emulated_gather(const void *mine, size_t bytes);
/* mma.sync.m16n8k16 of bf16 or fp16, ldmatrix.x4, cp.async. */
void ax_emulated_mma(float c[4], const uint32_t a[4], const uint32_t b[2], bool fp16);
void ax_emulated_ldmatrix(uint32_t r[4], const void *row, bool transposed);
void ax_emulated_copy_async(void *to, const void *from, size_t bytes, size_t size = 16);
void ax_emulated_commit_copies();
void ax_emulated_wait_copies(int left);

/* ---- the language -------------------------------------------------------------------------------- */

inline void __syncthreads() { ax_emulated_block_barrier(); }
inline void __syncwarp(unsigned = 0xffffffffu) { ax_emulated_gather("", 0); }
template <class T> T __shfl_sync(unsigned, T value, int lane)
{
    T out;
    static_assert(sizeof(T) <= AX_EMULATED_SLOT, "a register or two");
    memcpy(&out, ax_emulated_gather(&value, sizeof value) + lane * AX_EMULATED_SLOT, sizeof out);
    return out;
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int other)
{
    return __shfl_sync(mask, value, (int)(threadIdx.x % 32) ^ other);
}

inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __ballot_sync(unsigned, bool x)
{
    unsigned char mine = x;
    unsigned lanes = 0;
    const unsigned char *all = ax_emulated_gather(&mine, 1);
    for (int i = 0; i < 32; i++)
        lanes |= (unsigned)all[i * AX_EMULATED_SLOT] << i;
    return lanes;
}

inline bool __any_sync(unsigned, bool x)
{
    unsigned char mine = x, any = 0;
    const unsigned char *all = ax_emulated_gather(&mine, 1);
    for (int i = 0; i < 32; i++)
        any |= all[i * AX_EMULATED_SLOT];
    return any;
}

/* Copies the arguments now, as a launch does. The kernel runs when the stream is waited for. */
template <class... P, class... Q>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *how, void (*kernel)(P...), Q... args)
{
    dim3 g = how->gridDim, b = how->blockDim;
    size_t shared = how->dynamicSmemBytes;
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 || b.x * b.y * b.z > 1024 ||
        shared > ax_emulated_shared_limit((const void *)kernel))
        return cudaErrorInvalidConfiguration;
    if (ax_emulated_device(how->stream) != ax_emulated_device(nullptr))
        return cudaErrorInvalidResourceHandle;
    ax_emulated_enqueue(how->stream, [=] { ax_emulated_run(g, b, shared, [=] { kernel(P(args)...); }); });
    ax_emulated_spend(how->stream, AX_EMULATED_LAUNCH_MS);
    return cudaSuccess;
}

#endif
