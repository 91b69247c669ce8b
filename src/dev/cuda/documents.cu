/* Kernels that run before and after cuDNN's graphs if there is a mask of documents (cudnn.c). */
#include "dev/cuda/kernels.cuh"

namespace
{

struct as_float {
    const int32_t *from;
    float *to;
    template <int N> __device__ void run(int64_t at) const
    {
        for (int i = 0; i < N; i++)
            to[at + i] = (float)from[at + i];
    }
};

struct queries {
    ax_attention_args a;
};

/* Sets o to 0 and lse to -infinity for a query that sees no key; one thread block per query. */
__global__ void blind_kernel(queries s)
{
    const ax_attention_args &a = s.a;
    const int64_t row = blockIdx.x, b = row / a.q_len, i = row % a.q_len;
    if (a.doc_start[row] <= i)
        return;
    for (int64_t c = threadIdx.x; c < a.heads * a.head_dim; c += blockDim.x)
        ((uint16_t *)a.o)[row * a.heads * a.head_dim + c] = 0;
    for (int64_t h = threadIdx.x; a.lse && h < a.heads; h += blockDim.x)
        ((float *)a.lse)[(b * a.heads + h) * a.q_len + i] = -INFINITY;
}

} // namespace

ax_status ax_cuda_documents(ax_stream *stream, const int32_t *doc_start, int64_t n, float *out)
{
    return each<1>(stream, n, false, as_float{doc_start, out});
}

ax_status ax_cuda_blind_queries(ax_stream *stream, const ax_attention_args *a)
{
    return run(stream, blind_kernel, (unsigned)(a->batch * a->q_len), 4 * WARP, 0, queries{*a});
}
