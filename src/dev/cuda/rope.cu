/* Rotary position embeddings. A thread handles N adjacent pairs of one head, where N is 1 or the number of
 * elements in 16 bytes: N elements of the head's first half, and the N elements at the same places of its
 * second half. threadIdx.y is the row within the thread block. */
#include "dev/cuda/kernels.cuh"

namespace
{

/* Loads cosines and sines of N pairs, by loads of 16 bytes, or of 4 bytes if N is 1. */
template <int N> __device__ inline void read_angles(const float *angles, float (&cosine)[N], float (&sine)[N])
{
    const int M = N > 1 ? 4 : 1;
#pragma unroll
    for (int i = 0; i < 2 * N; i += M) {
        pack<float, M> some = load<float, M>(angles, i);
#pragma unroll
        for (int j = 0; j < M; j++)
            ((i + j) % 2 ? sine : cosine)[(i + j) / 2] = some.v[j];
    }
}

template <class T, int N> __global__ void __launch_bounds__(BLOCK) rope_kernel(ax_rope_args a)
{
    typedef accum_t<T> A;
    const int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= a.rows)
        return;
    const int64_t position = a.positions[r];
    const bool inside = position >= 0 && position < a.table_rows;
    const float *angles = inside ? a.table + position * a.head_dim : a.table;
    const uint32_t half = (uint32_t)a.head_dim / 2, packs = half / N, n = (uint32_t)a.heads * packs;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint32_t h = i / packs, c = (i - h * packs) * N;
        const int64_t at = r * a.ld + h * a.head_dim + c;
        float cosine[N], sine[N];
        if (inside)
            read_angles<N>(angles + 2 * c, cosine, sine);
        else
            for (int j = 0; j < N; j++)
                cosine[j] = sine[j] = NAN;
        pack<A, N> u = read<T, A, N>(a.x, at), v = read<T, A, N>(a.x, at + half);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const A x = u.v[j], y = v.v[j], cos = cosine[j], sin = a.inverse ? -sine[j] : sine[j];
            u.v[j] = x * cos - y * sin;
            v.v[j] = y * cos + x * sin;
        }
        write<T, A, N>(a.x, at, u);
        write<T, A, N>(a.x, at + half, v);
    }
}

template <class T, int N> ax_status rope(ax_stream *stream, const ax_rope_args *a)
{
    int64_t packs = a->heads * (a->head_dim / 2 / N);
    unsigned along = (unsigned)ax_min(BLOCK, ax_round_up(ax_max(packs, 1), WARP)), rows = BLOCK / along;
    AX_CHECK(packs <= INT32_MAX, AX_ERR_USAGE,
             "cuda: rows of %lld heads on this rank, each %lld wide, are too long for a rotary embedding: "
             "use fewer or "
             "narrower heads, or divide them among more ranks (grid.x)",
             (long long)a->heads, (long long)a->head_dim);
    if (!packs)
        return AX_OK;
    return run(stream, rope_kernel<T, N>, (unsigned)ax_ceil_div(a->rows, (int64_t)rows), dim3(along, rows), 0,
               *a);
}

} // namespace

ax_status ax_cuda_rope(ax_stream *stream, const void *args)
{
    const ax_rope_args *a = (const ax_rope_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<T>::value;
        if (a->head_dim / 2 % N == 0 && a->ld % N == 0 && aligned({a->x, a->table}))
            return rope<T, N>(stream, a);
        return rope<T, 1>(stream, a);
    });
}
