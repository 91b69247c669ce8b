/* Shared by the kernels of the CUDA backend: element types, vectors of up to 16 bytes, reductions over warps
 * and thread blocks, launching. In templates T is the C++ type of activations, and A the type in which they
 * are accumulated and parameters are stored (accum_t<T>). Everything is in an anonymous namespace. */
#ifndef AXONN_DEV_CUDA_KERNELS_CUH
#define AXONN_DEV_CUDA_KERNELS_CUH

#include "dev/cuda/cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <initializer_list>

namespace
{

typedef __nv_bfloat16 bf16;
typedef __half f16;

constexpr int WARP = 32, BLOCK = 256;

/* ---- element types ------------------------------------------------------------------------------- */

/* accum_t<T>: the type in which values of type T are accumulated and parameters are stored: double for
 * double, else float. */
template <class T> struct accum {
    typedef float type;
};
template <> struct accum<double> {
    typedef double type;
};
template <class T> using accum_t = typename accum<T>::type;

/* widen converts any element type to float or double; narrow converts back, rounding to nearest even. */
template <class A> __device__ inline A widen(double x) { return (A)x; }
template <class A> __device__ inline A widen(float x) { return (A)x; }
template <class A> __device__ inline A widen(bf16 x) { return (A)__bfloat162float(x); }
template <class A> __device__ inline A widen(f16 x) { return (A)__half2float(x); }
template <class T, class A> struct narrow {
    __device__ static inline T of(A x) { return (T)x; }
};
/* Rounds a double to float by "round to odd" (truncates, and sets the last bit if the result is not exact),
 * so that rounding the float to 16 bits gives the same bits as rounding the double directly. */
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(double x)
{
    float near = (float)x;
    uint32_t bits;
    if ((double)near == x)
        return near;
    memcpy(&bits, &near, sizeof bits);
    bits = (bits - (fabs((double)near) > fabs(x))) | 1;
    memcpy(&near, &bits, sizeof bits);
    return near;
}
template <class A> struct narrow<bf16, A> {
    __device__ static inline bf16 of(A x) { return __float2bfloat16_rn(to_float(x)); }
};
template <class A> struct narrow<f16, A> {
    __device__ static inline f16 of(A x) { return __float2half_rn(to_float(x)); }
};

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }

/* power_of_2 and inverse compute 2^x and 1/x, each by a single instruction of the GPU, with relative errors
 * of about 2^-22. */
#ifdef __CUDACC__
__device__ inline float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
__device__ inline float power_of_2(float x) { return exp2f(x); }
__device__ inline float inverse(float x) { return 1 / x; }
#endif

/* exponential_for<T> and inverse_for<T> compute e^x and 1/x as exactly as results of type T need: 16-bit
 * types need approximations only. */
template <class T> __device__ inline accum_t<T> exponential_for(accum_t<T> x)
{
    if constexpr (sizeof(T) == 2)
        return power_of_2(x * 1.4426950408889634f); /* log2 e */
    else
        return exponential(x);
}
template <class T> __device__ inline accum_t<T> inverse_for(accum_t<T> x)
{
    if constexpr (sizeof(T) == 2)
        return inverse(x);
    else
        return 1 / x;
}

__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }
__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double root(double x) { return sqrt(x); }
__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ inline double hyperbolic_tangent(double x) { return tanh(x); }
__device__ inline float erf_complement(float x) { return erfcf(x); }
__device__ inline double erf_complement(double x) { return erfc(x); }

/* Call f with a value whose C++ type corresponds to `dtype`, which is F64 or F32 in by_accum, and F64, F32,
 * BF16 or F16 in by_activation. */
template <class F> ax_status by_accum(ax_dtype dtype, F f) { return dtype == AX_F64 ? f(0.0) : f(0.0f); }
template <class F> ax_status by_activation(ax_dtype dtype, F f)
{
    return dtype == AX_BF16 ? f(bf16()) : dtype == AX_F16 ? f(f16()) : by_accum(dtype, f);
}

/* Divides numbers below 2^31 by the number `by`. A quotient takes a multiplication and a shift (Granlund and
 * Montgomery 1994), because an integer division takes a GPU 20 instructions or more. */
struct divisor {
    uint32_t by = 1, factor = 0, shift = 0;
    divisor(int64_t n) : by((uint32_t)ax_max(n, 1))
    {
        while (((uint64_t)2 << shift) < by)
            shift++;
        factor = (uint32_t)((((uint64_t)1 << (32 + shift)) + by - 1) / by); /* unused if `by` is 1 */
    }
    __device__ uint32_t quotient(uint32_t n) const { return by == 1 ? n : __umulhi(n, factor) >> shift; }
};

/* ---- vectors ------------------------------------------------------------------------------------- */

/* N adjacent elements. One instruction loads or stores a pack of up to 16 bytes, whose address must be a
 * multiple of its size. */
template <class T, int N> struct alignas(sizeof(T) * N) pack {
    T v[N];
};
template <class T, int N> __device__ inline pack<T, N> load(const void *array, int64_t at)
{
    return *reinterpret_cast<const pack<T, N> *>(static_cast<const T *>(array) + at);
}
template <class T, int N> __device__ inline void store(void *array, int64_t at, const pack<T, N> &values)
{
    *reinterpret_cast<pack<T, N> *>(static_cast<T *>(array) + at) = values;
}
/* read and write convert between N elements of type T in memory and of type A in registers. */
template <class T, class A, int N> __device__ inline pack<A, N> read(const void *array, int64_t at)
{
    pack<T, N> raw = load<T, N>(array, at);
    pack<A, N> out;
#pragma unroll
    for (int i = 0; i < N; i++)
        out.v[i] = widen<A>(raw.v[i]);
    return out;
}
template <class T, class A, int N>
__device__ inline void write(void *array, int64_t at, const pack<A, N> &values)
{
    pack<T, N> raw;
#pragma unroll
    for (int i = 0; i < N; i++)
        raw.v[i] = narrow<T, A>::of(values.v[i]);
    store<T, N>(array, at, raw);
}

/* The number of elements of T in 16 bytes. */
template <class T> struct width {
    enum { value = 16 / sizeof(T) };
};

/* Returns true if all addresses are multiples of 16 or NULL, so that 16 bytes may be moved at once. */
inline bool aligned(std::initializer_list<const void *> addresses)
{
    for (const void *address : addresses)
        if ((uintptr_t)address % 16)
            return false;
    return true;
}

/* Returns true if all differences between these addresses are multiples of 16 bytes. Then one call of
 * along_row can process together the rows that begin at these addresses, if the rows have the same length and
 * element type. */
inline bool same_alignment(std::initializer_list<const void *> addresses)
{
    for (const void *address : addresses)
        if ((uintptr_t)address % 16 != (uintptr_t)*addresses.begin() % 16)
            return false;
    return true;
}

/* ---- reductions ---------------------------------------------------------------------------------- */

struct plus {
    template <class A> __device__ static A of(A a, A b) { return a + b; }
};
struct maximum {
    template <class A> __device__ static A of(A a, A b) { return a > b ? a : b; }
};
struct minimum {
    template <class A> __device__ static A of(A a, A b) { return a < b ? a : b; }
};

/* Reduces over the lanes of a warp; every lane gets the result. The order of additions is fixed. */
template <class Op, class A> __device__ inline A over_warp(A x)
{
#pragma unroll
    for (int lane = WARP / 2; lane; lane /= 2)
        x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}

/* Reduces over the threads of a thread block (at most 1024); every thread gets the result. All threads of the
 * block must call this function. `nothing`: the neutral element of Op. */
template <class Op, class A> __device__ inline A over_block(A x, A nothing)
{
    __shared__ A part[WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = (blockDim.x + WARP - 1) / WARP;
    x = over_warp<Op>(x);
    __syncthreads(); /* threads may still read `part` of the previous call */
    if (lane == 0)
        part[warp] = x;
    __syncthreads();
    return over_warp<Op>(lane < warps ? part[lane] : nothing);
}

/* ---- tables of arrays ---------------------------------------------------------------------------- */

/* Returns the index of the last entry of `table` whose member `first` is at most `at`, by binary search. The
 * entries are in ascending order of `first`, and table[0].first is at most `at`. */
template <class Entry> __device__ inline int64_t entry_at(const Entry *table, int64_t entries, int64_t at)
{
    int64_t lo = 0, hi = entries - 1;
    while (lo < hi) {
        int64_t mid = (lo + hi + 1) / 2;
        if (table[mid].first <= at)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* ---- launching ----------------------------------------------------------------------------------- */

/* The dynamic shared memory of the block, aligned to 16 bytes. */
#ifdef __CUDACC__
__device__ inline void *dynamic_shared()
{
    extern __shared__ __align__(16) unsigned char ax_dynamic_shared[];
    return ax_dynamic_shared;
}
#else
__device__ inline void *dynamic_shared() { return ax_emulated_shared(); }
#endif

/* Launches a kernel; does nothing if the grid has no blocks. `shared`: bytes of dynamic shared memory. */
template <class... P, class... Q>
ax_status run(ax_stream *stream, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, Q... args)
{
    cudaLaunchConfig_t how = {};
    if (!grid.x || !grid.y || !grid.z)
        return AX_OK;
    AX_CHECK(
        grid.y <= 65535 && grid.z <= 65535, AX_ERR_USAGE,
        "cuda: a kernel cannot have %u x %u x %u thread blocks (the last two numbers may be 65535 at most): "
        "use smaller micro-batches",
        grid.x, grid.y, grid.z);
    how.gridDim = grid;
    how.blockDim = block;
    how.dynamicSmemBytes = shared;
    how.stream = ax_cuda_of(stream)->stream;
    if (shared > 48 << 10) /* more than 48 KiB must be requested */
        AX_CUDA(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared));
    return ax_cuda_check(cudaLaunchKernelEx(&how, kernel, P(args)...), "launching a kernel");
}

/* An elementwise kernel is a struct F with a method `template <int N> run(at)`, which computes the N elements
 * from index `at` on. */
template <int N, class F> __global__ void each_kernel(int64_t n, F f)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x * N;
    for (int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; at < n; at += stride) {
        if (at + N <= n)
            f.template run<N>(at);
        else
            for (int64_t i = at; i < n; i++)
                f.template run<1>(i);
    }
}

/* Launches an elementwise kernel over n elements. Each thread computes N adjacent elements at a time if
 * `wide`, else one. The caller sets `wide` only if the kernel's arrays are aligned for loads and stores of N
 * elements. */
template <int N, class F> ax_status each(ax_stream *stream, int64_t n, bool wide, const F &f)
{
    int64_t most = 16 * (int64_t)ax_cuda_of(stream)->processors;
    if (wide)
        return run(stream, each_kernel<N, F>, (unsigned)ax_min(most, ax_ceil_div(n, BLOCK * N)), BLOCK, 0, n,
                   f);
    return run(stream, each_kernel<1, F>, (unsigned)ax_min(most, ax_ceil_div(n, BLOCK)), BLOCK, 0, n, f);
}

/* Divides the `n` elements of type T at `array` among `size` threads. `rank` is the number of the calling
 * thread among them. Calls f.template run<N>(at) for each 16 bytes (N elements from index `at` on) that begin
 * at a multiple of 16, and run<1>(at) for the single elements before and after these. */
template <class T, class F>
__device__ inline void along_row(const T *array, int64_t n, int rank, int size, F &&f)
{
    const int N = width<T>::value;
    int64_t head = (int64_t)((16 - (uintptr_t)array % 16) % 16 / sizeof(T));
    head = head < n ? head : n;
    int64_t body = (n - head) / N * N;
    for (int64_t at = rank; at < head; at += size)
        f.template run<1>(at);
    for (int64_t at = head + (int64_t)rank * N; at < head + body; at += (int64_t)size * N)
        f.template run<N>(at);
    for (int64_t at = head + body + rank; at < n; at += size)
        f.template run<1>(at);
}

/* Divides the `n` elements at `array` among `size` threads, of which the caller is thread `rank`. If `wide`,
 * calls f for 16 bytes at a time where possible (along_row), else always for one element at a time. */
template <class T, class F>
__device__ inline void along_rows(bool wide, const T *array, int64_t n, int rank, int size, F &&f)
{
    if (wide)
        along_row(array, n, rank, size, f);
    else
        for (int64_t at = rank; at < n; at += size)
            f.template run<1>(at);
}

} // namespace

#endif
