/* A simple GEMM kernel for the few matmuls that cuBLASLt does not support: tiles of 16 x 16 in shared
 * memory, one thread per element of c. */
#include "dev/cuda/kernels.cuh"

namespace
{

enum { TILE = 16 };

struct arguments {
    ax_gemm_args g;
};

template <class T, class C> __global__ void plain_gemm(arguments s)
{
    typedef accum_t<T> A;
    const ax_gemm_args &g = s.g;
    __shared__ A a[TILE][TILE + 1], b[TILE][TILE + 1];
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const int64_t i = (int64_t)blockIdx.y * TILE + y, j = (int64_t)blockIdx.x * TILE + x;
    A sum = 0;
    for (int64_t k0 = 0; k0 < g.k; k0 += TILE) {
        int64_t ka = k0 + x, kb = k0 + y;
        a[y][x] = i < g.m && ka < g.k
                      ? widen<A>(((const T *)g.a)[g.trans_a ? ka * g.lda + i : i * g.lda + ka])
                      : (A)0;
        b[y][x] = j < g.n && kb < g.k
                      ? widen<A>(((const T *)g.b)[g.trans_b ? j * g.ldb + kb : kb * g.ldb + j])
                      : (A)0;
        __syncthreads();
        for (int k = 0; k < TILE; k++)
            sum += a[y][k] * b[k][x];
        __syncthreads();
    }
    if (i >= g.m || j >= g.n)
        return;
    C *c = (C *)g.c + i * g.ldc + j;
    sum += g.bias ? ((const A *)g.bias)[j] : (A)0;
    *c = narrow<C, A>::of(sum + (g.accumulate ? widen<A>(*c) : (A)0));
}

} // namespace

/* Runs the kernel on one band of rows of c after the other, because a grid may have at most 65535 thread
 * blocks along y. */
ax_status ax_cuda_plain_gemm(ax_stream *stream, const ax_gemm_args *args)
{
    const int64_t band = (int64_t)TILE << 15;
    return by_activation(args->dtype, [&](auto t) {
        return by_activation(args->c_dtype, [&](auto c) {
            typedef decltype(t) T;
            typedef decltype(c) C;
            for (int64_t i = 0; i < args->m; i += band) {
                arguments s = {*args};
                s.g.m = ax_min(band, args->m - i);
                s.g.a = (const T *)args->a + (args->trans_a ? i : i * args->lda);
                s.g.c = (C *)args->c + i * args->ldc;
                AX_TRY(run(stream, plain_gemm<T, C>,
                           dim3((unsigned)ax_ceil_div(args->n, TILE), (unsigned)ax_ceil_div(s.g.m, TILE)),
                           TILE * TILE, 0, s));
            }
            return AX_OK;
        });
    });
}
