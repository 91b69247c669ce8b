/* Causal attention for any element type, and any head width whose rows fit shared memory (shared_bytes). It
 * runs the calls that flash.cu and decode.cu do not support, and all calls if setting runtime.attention is
 * plain. A warp handles one query, and takes the query's keys in groups of WARP (32, the lanes of a warp):
 * each lane computes the dot product with one key of the group. In key_grad_kernel a warp handles one key,
 * and takes the queries in groups of WARP.
 *
 * Letters: b sequence, i query, j key, h query head, g key head, d width of a head. */
#include "dev/attention.h"
#include "dev/cuda/kernels.cuh"

namespace
{

enum { TEAMS = 4 }; /* warps of a thread block */

template <class T, class A> __device__ inline A dot(const A *x, const T *y, int64_t n)
{
    A sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * widen<A>(y[i]);
    return sum;
}

/* Returns dropout's factor of the probability of key j, for query `row` (b·q_len + i) of head h: 0 or
 * 1/(1-p); 1 if DROP is false. `keys` is kv_len. DROP is a template argument, so that kernels for calls
 * without dropout contain no code for it. */
template <bool DROP, class A>
__device__ inline A kept(const ax_attention_dropout &drop, int64_t row, int64_t h, int64_t keys, int64_t j)
{
    if (!DROP)
        return 1;
    uint64_t step = drop.now ? drop.now->step : 0;
    uint64_t block = ax_attention_drop_block(&drop, drop.now ? drop.now->first_row : 0, row, h, keys);
    float draw = ax_philox_uniform(drop.key, step, 4 * block + (uint64_t)j);
    return (double)draw < drop.p ? (A)0 : (A)(1 / (1 - drop.p));
}

/* The lanes of a warp together copy a row of n elements to shared memory, widened to type A. */
template <class T, class A> __device__ inline void stage(const T *from, A *to, int64_t n)
{
    for (int64_t i = threadIdx.x % WARP; i < n; i += WARP)
        to[i] = widen<A>(from[i]);
}

/* ---- forward ------------------------------------------------------------------------------------- */

/* blockIdx is (group of TEAMS queries, query head, sequence) in the kernels for queries. Shared memory per
 * warp in attention_kernel: q and o, [d] each, and the softmax weights of WARP keys. */
template <class T> struct forward {
    ax_attention_args a;
};
template <class T, bool DROP, bool CHOSEN> __global__ void attention_kernel(forward<T> s)
{
    typedef accum_t<T> A;
    const ax_attention_args &a = s.a;
    const int64_t d = a.head_dim, i = (int64_t)blockIdx.x * TEAMS + threadIdx.x / WARP, h = blockIdx.y,
                  b = blockIdx.z;
    const int lane = threadIdx.x % WARP;
    if (i >= a.q_len)
        return;
    A *q = (A *)dynamic_shared() + (threadIdx.x / WARP) * (2 * d + WARP), *o = q + d, *p = o + d;
    const int64_t row = ((b * a.q_len + i) * a.heads + h) * d, stride = a.kv_ld;
    const int64_t keys = b * ax_attention_kv_batch(&a) + h / (a.heads / a.kv_heads) * d;
    const T *k = (const T *)a.k + keys, *v = (const T *)a.v + keys;
    const int64_t position = ax_attention_offset(&a, b) + i;
    const int64_t first = ax_attention_first_key(a.doc_start, b * a.q_len + i, a.window, position);
    const int64_t end = position < a.kv_len - 1 ? position + 1 : a.kv_len;
    const uint64_t *chosen = CHOSEN ? ax_attention_chosen(&a, b * a.q_len + i, h) : NULL;
    A max = (A)-INFINITY, sum = 0;
    stage((const T *)a.q + (b * a.q_len + i) * a.q_ld + h * d, q, d);
    for (int64_t c = lane; c < d; c += WARP)
        o[c] = 0;
    __syncwarp();
    for (int64_t j0 = first; j0 < end; j0 += WARP) {
        int64_t j = j0 + lane, count = end - j0 < WARP ? end - j0 : WARP;
        const bool reads = j < end && (!CHOSEN || ax_attention_has(chosen, j));
        if (CHOSEN && !__any_sync(0xffffffffu, reads))
            continue;
        A score = reads ? (A)a.scale * dot(q, k + j * stride, d) : (A)-INFINITY;
        A higher = maximum::of(max, over_warp<maximum>(score)), keep = exponential(max - higher);
        A weight = reads ? exponential(score - higher) : (A)0;
        sum = sum * keep + over_warp<plus>(weight);
        p[lane] = weight * kept<DROP, A>(a.drop, b * a.q_len + i, h, a.kv_len, j);
        max = higher;
        __syncwarp();
        for (int64_t c = lane; c < d; c += WARP) {
            A total = o[c] * keep;
            for (int64_t t = 0; t < count; t++)
                if (!CHOSEN || ax_attention_has(chosen, j0 + t))
                    total += p[t] * widen<A>(v[(j0 + t) * stride + c]);
            o[c] = total;
        }
        __syncwarp();
    }
    for (int64_t c = lane; c < d; c += WARP)
        ((T *)a.o)[row + c] = narrow<T, A>::of(sum > 0 || sum != sum ? o[c] / sum : (A)0);
    if (a.lse && lane == 0)
        ((A *)a.lse)[(b * a.heads + h) * a.q_len + i] =
            sum > 0 || sum != sum ? max + logarithm(sum) : (A)-INFINITY;
}

/* ---- gradient ------------------------------------------------------------------------------------ */

template <class T> struct backward {
    ax_attention_grad_args a;
};

/* Computes delta and dq of a query. Shared memory per warp: q, dout and dq, [d] each, and ds, the gradients
 * of the scores, of WARP keys. */
template <class T, bool DROP> __global__ void query_grad_kernel(backward<T> s)
{
    typedef accum_t<T> A;
    const ax_attention_grad_args &a = s.a;
    const int64_t d = a.head_dim, i = (int64_t)blockIdx.x * TEAMS + threadIdx.x / WARP, h = blockIdx.y,
                  b = blockIdx.z;
    const int lane = threadIdx.x % WARP;
    if (i >= a.q_len)
        return;
    A *q = (A *)dynamic_shared() + (threadIdx.x / WARP) * (3 * d + WARP), *dout = q + d, *dq = dout + d,
      *ds = dq + d;
    const int64_t row = ((b * a.q_len + i) * a.heads + h) * d, query = (b * a.q_len + i) * a.q_ld + h * d,
                  stride = a.kv_ld;
    const int64_t keys = b * a.q_len * stride + h / (a.heads / a.kv_heads) * d,
                  at = (b * a.heads + h) * a.q_len + i;
    const T *k = (const T *)a.k + keys, *v = (const T *)a.v + keys, *o = (const T *)a.o + row;
    const A lse = ((const A *)a.lse)[at], scale = (A)a.scale;
    A delta = 0;
    stage((const T *)a.q + query, q, d);
    stage((const T *)a.dout + row, dout, d);
    for (int64_t c = lane; c < d; c += WARP) {
        dq[c] = 0;
        delta += dout[c] * widen<A>(o[c]);
    }
    delta = over_warp<plus>(delta);
    if (lane == 0)
        ((A *)a.delta)[at] = delta;
    __syncwarp();
    const int64_t first = ax_attention_first_key(a.doc_start, b * a.q_len + i, a.window, i);
    for (int64_t j0 = first; j0 <= i; j0 += WARP) {
        int64_t j = j0 + lane, count = i + 1 - j0 < WARP ? i + 1 - j0 : WARP;
        ds[lane] = 0;
        if (j <= i) {
            A p = exponential(scale * dot(q, k + j * stride, d) - lse);
            A dp = dot(dout, v + j * stride, d) * kept<DROP, A>(a.drop, b * a.q_len + i, h, a.q_len, j);
            ds[lane] = scale * p * (dp - delta);
        }
        __syncwarp();
        for (int64_t c = lane; c < d; c += WARP)
            for (int64_t t = 0; t < count; t++)
                dq[c] += ds[t] * widen<A>(k[(j0 + t) * stride + c]);
        __syncwarp();
    }
    for (int64_t c = lane; c < d; c += WARP)
        ((T *)a.dq)[query + c] = narrow<T, A>::of(dq[c]);
}

/* Computes dk and dv of a key: sums over the query heads that use key head g, and over the queries that see
 * the key. blockIdx is (group of TEAMS keys, key head, sequence). Shared memory per warp: k, v, dk and dv,
 * [d] each, and p and ds (probabilities after dropout, gradients of the scores) of WARP queries. */
template <class T, bool DROP> __global__ void key_grad_kernel(backward<T> s)
{
    typedef accum_t<T> A;
    const ax_attention_grad_args &a = s.a;
    const int64_t d = a.head_dim, j = (int64_t)blockIdx.x * TEAMS + threadIdx.x / WARP, g = blockIdx.y,
                  b = blockIdx.z;
    const int64_t group = a.heads / a.kv_heads, stride = a.heads * d;
    const int lane = threadIdx.x % WARP;
    if (j >= a.q_len)
        return;
    A *k = (A *)dynamic_shared() + (threadIdx.x / WARP) * (4 * d + 2 * WARP), *v = k + d, *dk = v + d,
      *dv = dk + d;
    A *p = dv + d, *ds = p + WARP;
    const int64_t row = (b * a.q_len + j) * a.kv_ld + g * d,
                  end = ax_attention_end_query(a.window, j, a.q_len);
    stage((const T *)a.k + row, k, d);
    stage((const T *)a.v + row, v, d);
    for (int64_t c = lane; c < d; c += WARP)
        dk[c] = dv[c] = 0;
    __syncwarp();
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        const T *q = (const T *)a.q + b * a.q_len * a.q_ld + h * d;
        const T *dout = (const T *)a.dout + (b * a.q_len * a.heads + h) * d;
        const A *lse = (const A *)a.lse + (b * a.heads + h) * a.q_len,
                *delta = (const A *)a.delta + (b * a.heads + h) * a.q_len;
        for (int64_t i0 = j; i0 < end; i0 += WARP) {
            int64_t i = i0 + lane, count = end - i0 < WARP ? end - i0 : WARP;
            p[lane] = ds[lane] = 0;
            if (i < end && j >= ax_attention_first_key(a.doc_start, b * a.q_len + i, a.window, i)) {
                A weight = exponential((A)a.scale * dot(k, q + i * a.q_ld, d) - lse[i]);
                A keep = kept<DROP, A>(a.drop, b * a.q_len + i, h, a.q_len, j);
                p[lane] = weight * keep;
                ds[lane] = (A)a.scale * weight * (dot(v, dout + i * stride, d) * keep - delta[i]);
            }
            __syncwarp();
            for (int64_t c = lane; c < d; c += WARP)
                for (int64_t t = 0; t < count; t++) {
                    dk[c] += ds[t] * widen<A>(q[(i0 + t) * a.q_ld + c]);
                    dv[c] += p[t] * widen<A>(dout[(i0 + t) * stride + c]);
                }
            __syncwarp();
        }
    }
    for (int64_t c = lane; c < d; c += WARP) {
        ((T *)a.dk)[row + c] = narrow<T, A>::of(dk[c]);
        ((T *)a.dv)[row + c] = narrow<T, A>::of(dv[c]);
    }
}

/* Sets *out to the bytes of shared memory of a thread block whose TEAMS warps each need `arrays` rows of `d`
 * numbers, and `extra` further numbers, all of type A. AX_ERR_USAGE if this is more than 48 KiB. */
template <class A> ax_status shared_bytes(int64_t d, int arrays, int extra, size_t *out)
{
    const int64_t most = 48 << 10;
    int64_t bytes = TEAMS * (arrays * d + extra) * (int64_t)sizeof(A);
    AX_CHECK(bytes <= most, AX_ERR_USAGE,
             "cuda: attention with heads %lld wide needs more shared memory than a thread block has: use "
             "heads at most %lld wide",
             (long long)d, (long long)((most / (TEAMS * (int64_t)sizeof(A)) - extra) / arrays));
    *out = (size_t)bytes;
    return AX_OK;
}

dim3 blocks_of(int64_t rows, int64_t heads, int64_t batch)
{
    return dim3((unsigned)ax_ceil_div(rows, TEAMS), (unsigned)heads, (unsigned)batch);
}

} // namespace

ax_status ax_cuda_own_attention(ax_stream *stream, const ax_attention_args *a)
{
    const bool tensor_cores = ax_cuda_of(stream)->attention >= AX_CUDA_FLASH;
    if (tensor_cores && ax_cuda_flash_takes(a))
        return ax_cuda_flash(stream, a);
    if (tensor_cores && ax_cuda_decode_takes(a))
        return ax_cuda_decode(stream, a);
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        size_t bytes;
        AX_TRY(shared_bytes<accum_t<T>>(a->head_dim, 2, WARP, &bytes));
        auto kernel = a->chosen
                          ? a->drop.p > 0 ? attention_kernel<T, true, true> : attention_kernel<T, false, true>
                      : a->drop.p > 0 ? attention_kernel<T, true, false>
                                      : attention_kernel<T, false, false>;
        return run(stream, kernel, blocks_of(a->q_len, a->heads, a->batch), TEAMS * WARP, bytes,
                   forward<T>{*a});
    });
}

ax_status ax_cuda_own_attention_grad(ax_stream *stream, const ax_attention_grad_args *a)
{
    if (ax_cuda_of(stream)->attention >= AX_CUDA_FLASH && ax_cuda_flash_grad_takes(a))
        return ax_cuda_flash_grad(stream, a);
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        size_t query, key;
        AX_TRY(shared_bytes<accum_t<T>>(a->head_dim, 3, WARP, &query));
        AX_TRY(shared_bytes<accum_t<T>>(a->head_dim, 4, 2 * WARP, &key));
        bool drops = a->drop.p > 0;
        auto of_queries = drops ? query_grad_kernel<T, true> : query_grad_kernel<T, false>;
        auto of_keys = drops ? key_grad_kernel<T, true> : key_grad_kernel<T, false>;
        AX_TRY(run(stream, of_queries, blocks_of(a->q_len, a->heads, a->batch), TEAMS * WARP, query,
                   backward<T>{*a}));
        return run(stream, of_keys, blocks_of(a->q_len, a->kv_heads, a->batch), TEAMS * WARP, key,
                   backward<T>{*a});
    });
}

ax_status ax_cuda_attention(ax_stream *stream, const void *args)
{
    const ax_attention_args *a = (const ax_attention_args *)args;
    bool done = false;
#ifdef AXONN_HAVE_CUDNN
    if (ax_cuda_of(stream)->attention == AX_CUDA_CUDNN && a->drop.p == 0 && !(a->window > 0) && !a->chosen)
        AX_TRY(ax_cuda_cudnn_attention(stream, a, &done));
#endif
    return done ? AX_OK : ax_cuda_own_attention(stream, a);
}

ax_status ax_cuda_attention_grad(ax_stream *stream, const void *args)
{
    const ax_attention_grad_args *a = (const ax_attention_grad_args *)args;
    bool done = false;
#ifdef AXONN_HAVE_CUDNN
    if (ax_cuda_of(stream)->attention == AX_CUDA_CUDNN && a->drop.p == 0 && !(a->window > 0))
        AX_TRY(ax_cuda_cudnn_attention_grad(stream, a, &done));
#endif
    return done ? AX_OK : ax_cuda_own_attention_grad(stream, a);
}
