/* The last kernels of a step: clip, and the updates of parameters by an optimizer. The flag `skip`, which
 * makes an update do nothing, is in device memory, as are all numbers that change from one update to the next
 * (ax_update_numbers). */
#include "dev/cuda/kernels.cuh"

namespace
{

/* ---- the clip factor ----------------------------------------------------------------------------- */

__global__ void clip_kernel(ax_clip_args a)
{
    ax_update_numbers *now = a.numbers;
    double total = 0, culprit = (double)a.n;
    if (now->skip != 0)
        return;
    for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        if (!isfinite(a.sumsq[i]))
            culprit = minimum::of(culprit, (double)i);
        total += a.sumsq[i];
    }
    total = over_block<plus>(total, 0.0);
    culprit = over_block<minimum>(culprit, (double)a.n);
    if (threadIdx.x)
        return;
    double norm = fabs(sqrt(total)) / a.scale, loss = a.loss[0] / a.targets;
    now->loss = loss;
    now->norm = norm;
    now->culprit = culprit < (double)a.n ? culprit : -1;
    now->grad_scale = (a.clip > 0 ? fmin(1.0, a.clip / (norm + 1e-6)) : 1) / a.scale;
    now->skip = !isfinite(loss) || !isfinite(norm);
}

/* ---- updates ------------------------------------------------------------------------------------- */

/* A Rule (adamw, sgd) updates N elements of an array. Its method `prepare` rounds the Rule's scalars, such as
 * lr, to type A once. The copy of the weights, if there is one, has elements of type C; the gradient has
 * elements of type G, which is A or C. */
template <class A> struct adamw {
    A lr, beta1, beta2, one_minus_beta1, one_minus_beta2, eps, decay, correction1, correction2, grad_scale;
    __device__ void prepare(const ax_update_args &a)
    {
        const ax_update_numbers now = *a.numbers;
        lr = (A)now.lr;
        beta1 = (A)a.beta1;
        beta2 = (A)a.beta2;
        one_minus_beta1 = (A)(1 - a.beta1);
        one_minus_beta2 = (A)(1 - a.beta2);
        eps = (A)a.eps;
        decay = (A)(now.lr * a.decay);
        correction1 = (A)(1 / now.correction1);
        correction2 = (A)(1 / sqrt(now.correction2));
        grad_scale = (A)now.grad_scale;
    }
    __device__ static bool wide(const ax_update_array &u)
    {
        return (((uintptr_t)u.w | (uintptr_t)u.m | (uintptr_t)u.v | (uintptr_t)u.g | (uintptr_t)u.copy) %
                16) == 0;
    }
    template <class C, class G, int N> __device__ void run(const ax_update_array &u, int64_t at) const
    {
        pack<A, N> w = load<A, N>(u.w, at), m = load<A, N>(u.m, at), v = load<A, N>(u.v, at),
                   g = read<G, A, N>(u.g, at);
        A shrink = u.decays ? decay : 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            A grad = grad_scale * g.v[i];
            m.v[i] = beta1 * m.v[i] + one_minus_beta1 * grad;
            v.v[i] = beta2 * v.v[i] + one_minus_beta2 * grad * grad;
            w.v[i] -= shrink * w.v[i];
            w.v[i] -= lr * (m.v[i] * correction1) / (root(v.v[i]) * correction2 + eps);
        }
        store<A, N>(u.w, at, w);
        store<A, N>(u.m, at, m);
        store<A, N>(u.v, at, v);
        if (u.copy)
            write<C, A, N>(u.copy, at, w);
    }
};

template <class A> struct sgd {
    A lr, momentum, decay, grad_scale;
    __device__ void prepare(const ax_update_args &a)
    {
        const ax_update_numbers now = *a.numbers;
        lr = (A)now.lr;
        momentum = (A)a.momentum;
        decay = (A)a.decay;
        grad_scale = (A)now.grad_scale;
    }
    __device__ static bool wide(const ax_update_array &u)
    {
        return (((uintptr_t)u.w | (uintptr_t)u.m | (uintptr_t)u.g | (uintptr_t)u.copy) % 16) == 0;
    }
    template <class C, class G, int N> __device__ void run(const ax_update_array &u, int64_t at) const
    {
        pack<A, N> w = load<A, N>(u.w, at), m = {}, g = read<G, A, N>(u.g, at);
        A shrink = u.decays ? decay : 0;
        if (u.m)
            m = load<A, N>(u.m, at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            m.v[i] = momentum * m.v[i] + (grad_scale * g.v[i] + shrink * w.v[i]);
            w.v[i] -= lr * m.v[i];
        }
        store<A, N>(u.w, at, w);
        if (u.m)
            store<A, N>(u.m, at, m);
        if (u.copy)
            write<C, A, N>(u.copy, at, w);
    }
};

/* Updates elements `from` to `to` - 1 of one array, divided among the threads of a block. `from` must be a
 * multiple of N. */
template <class C, class G, int N, class Rule>
__device__ inline void update_array(const Rule &rule, const ax_update_array &u, int64_t from, int64_t to)
{
    int64_t body = Rule::wide(u) && to > from ? (to - from) / N * N : 0;
    for (int64_t at = from + (int64_t)threadIdx.x * N; at < from + body; at += (int64_t)blockDim.x * N)
        rule.template run<C, G, N>(u, at);
    for (int64_t at = from + body + threadIdx.x; at < to; at += blockDim.x)
        rule.template run<C, G, 1>(u, at);
}

/* Each thread block updates `share` consecutive elements, counted over all arrays and the padding between
 * them (ax_update_array.first), so its elements may lie in several arrays. `share` is a multiple of
 * AX_UPDATE_UNIT. */
template <template <class> class Rule, class A, class C, int N>
__global__ void update_kernel(ax_update_args a, int64_t share)
{
    __shared__ Rule<A> prepared;
    __shared__ int64_t array;
    if (a.numbers->skip != 0)
        return;
    int64_t lo = a.array[0].first + (int64_t)blockIdx.x * share, hi = lo + share;
    if (threadIdx.x == 0) {
        prepared.prepare(a);
        array = entry_at(a.array, a.arrays, lo);
    }
    __syncthreads();
    const Rule<A> rule = prepared;
    for (int64_t i = array; i < a.arrays && a.array[i].first < hi; i++) {
        const ax_update_array u = a.array[i];
        int64_t from = lo > u.first ? lo - u.first : 0, to = hi - u.first < u.n ? hi - u.first : u.n;
        if (u.g_dtype == a.dtype)
            update_array<C, A, N>(rule, u, from, to);
        else
            update_array<C, C, N>(rule, u, from, to);
    }
}

/* Returns true if the call has 16-bit gradients, whose type is that of the copies. */
bool narrow_grads(const ax_update_args *a)
{
    bool found = false;
    for (int64_t i = 0; i < a->arrays; i++)
        found = found || (a->table[i].n && a->table[i].g_dtype != a->dtype);
    return found;
}

template <template <class> class Rule> ax_status update(ax_stream *stream, const ax_update_args *a)
{
    int64_t most = 16 * (int64_t)ax_cuda_of(stream)->processors;
    if (!a->n)
        return AX_OK;
    return by_accum(a->dtype, [&](auto t) {
        return by_activation(a->copied || narrow_grads(a) ? a->copy_dtype : a->dtype, [&](auto c) {
            typedef decltype(t) A;
            typedef decltype(c) C;
            constexpr int N = 16 / (sizeof(A) > sizeof(C) ? sizeof(A) : sizeof(C));
            static_assert(AX_UPDATE_UNIT % N == 0, "arrays begin at a multiple of N");
            /* `all`: upper bound of the number of elements, padding between arrays included. */
            int64_t all = a->n + a->arrays * AX_UPDATE_UNIT, pass = BLOCK * N;
            int64_t share = ax_round_up(ax_ceil_div(all, most), pass);
            return run(stream, update_kernel<Rule, A, C, N>, (unsigned)ax_ceil_div(all, share), BLOCK, 0, *a,
                       share);
        });
    });
}

} // namespace

ax_status ax_cuda_clip(ax_stream *stream, const void *args)
{
    return run(stream, clip_kernel, 1, BLOCK, 0, *(const ax_clip_args *)args);
}

ax_status ax_cuda_adamw(ax_stream *stream, const void *args)
{
    return update<adamw>(stream, (const ax_update_args *)args);
}

ax_status ax_cuda_sgd(ax_stream *stream, const void *args)
{
    return update<sgd>(stream, (const ax_update_args *)args);
}
