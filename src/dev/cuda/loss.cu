/* Cross-entropy over a vocabulary that may be split over ranks, and targets from class indices. ce_stats,
 * ce_rank and ce_grad have one thread block per row. */
#include "dev/cuda/kernels.cuh"

namespace
{

enum { ROW_BLOCK = 512 };

/* Returns the target's column among this rank's columns of the logits, or -1 if the target is masked
 * (negative) or its column belongs to another rank. */
__device__ inline int64_t target_column(const int32_t *targets, int64_t r, int64_t first, int64_t vocab)
{
    int64_t column = targets[r] - first;
    return targets[r] >= 0 && column >= 0 && column < vocab ? column : -1;
}

/* The maximum of the logits that a thread has read, and the sum of their exponentials relative to this
 * maximum. If the maximum grows, the sum is rescaled (online softmax, Milakov and Gimelshein 2018), so that
 * each logit is read once. */
template <class T> struct online_sum {
    typedef accum_t<T> A;
    const T *x;
    A max, sum;
    template <int N> __device__ void run(int64_t at)
    {
        pack<A, N> v = read<T, A, N>(x, at);
        A higher = max, added = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            higher = v.v[i] > higher ? v.v[i] : higher; /* skips NaN; the sum then becomes NaN */
        if (higher != max)
            sum *= exponential(max - higher);
        max = higher;
        const A from = max == (A)-INFINITY ? (A)0 : max;
#pragma unroll
        for (int i = 0; i < N; i++)
            added += exponential_for<T>(v.v[i] - from);
        sum += added;
    }
};
template <class T> struct stats_call {
    ax_ce_stats_args a;
};
template <class T> __global__ void stats_kernel(stats_call<T> s)
{
    typedef accum_t<T> A;
    int64_t r = blockIdx.x;
    const T *x = (const T *)s.a.logits + r * s.a.ld;
    online_sum<T> mine = {x, (A)-INFINITY, (A)0};
    along_row(x, s.a.vocab, threadIdx.x, ROW_BLOCK, mine);
    A max = over_block<maximum>(mine.max, (A)-INFINITY);
    A factor = mine.max == (A)-INFINITY ? (A)0 : exponential(mine.max - max);
    A sum = over_block<plus>(mine.sum * factor, (A)0);
    if (threadIdx.x == 0) {
        int64_t target = target_column(s.a.targets, r, s.a.first, s.a.vocab);
        ((A *)s.a.max)[r] = max;
        ((A *)s.a.sum)[r] = sum;
        ((A *)s.a.target_logit)[r] = target < 0 ? (A)0 : widen<A>(x[target]);
    }
}

template <class A> struct rescale {
    const A *local_max, *max;
    A *sum;
    template <int N> __device__ void run(int64_t at) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[at + i] *= exponential(local_max[at + i] - max[at + i]);
    }
};

/* The losses of all rows and their total. Launched with one thread block, so that the total is summed in a
 * fixed order. */
template <class A> struct loss_call {
    ax_ce_loss_args a;
};
template <class A> __global__ void loss_kernel(loss_call<A> s)
{
    double total = 0;
    for (int64_t r = threadIdx.x; r < s.a.rows; r += ROW_BLOCK) {
        A loss = 0;
        if (s.a.targets[r] >= 0)
            loss = logarithm(((const A *)s.a.sum)[r]) + ((const A *)s.a.max)[r] -
                   ((const A *)s.a.target_logit)[r];
        ((A *)s.a.loss)[r] = loss;
        total += (double)loss;
    }
    total = over_block<plus>(total, 0.0);
    if (threadIdx.x == 0)
        s.a.total[0] += total;
}

/* Counts the columns that beat the target, which has the column `target` and the logit `logit`. */
template <class T> struct better_than {
    typedef accum_t<T> A;
    const T *x;
    A logit;
    int64_t target;
    int count;
    template <int N> __device__ void run(int64_t at)
    {
        pack<A, N> v = read<T, A, N>(x, at);
#pragma unroll
        for (int i = 0; i < N; i++)
            count += v.v[i] > logit || (v.v[i] == logit && at + i < target);
    }
};
template <class T> struct rank_call {
    ax_ce_rank_args a;
};
template <class T> __global__ void rank_kernel(rank_call<T> s)
{
    int64_t r = blockIdx.x;
    const T *x = (const T *)s.a.logits + r * s.a.ld;
    better_than<T> mine = {x, ((const accum_t<T> *)s.a.target_logit)[r], s.a.targets[r] - s.a.first, 0};
    if (s.a.targets[r] >= 0)
        along_row(x, s.a.vocab, threadIdx.x, ROW_BLOCK, mine);
    int count = over_block<plus>(mine.count, 0);
    if (threadIdx.x == 0)
        s.a.rank[r] = count;
}

/* The kernel class_targets. Launched with one thread block, so that the counts are summed in a fixed
 * order. */
__global__ void class_targets_kernel(ax_class_targets_args a)
{
    double kept = 0, illegal = 0;
    for (int64_t r = threadIdx.x; r < a.rows; r += ROW_BLOCK) {
        int64_t id = a.dtype == AX_I64 ? ((const int64_t *)a.x)[r] : ((const int32_t *)a.x)[r];
        bool counts = id != a.ignore, legal = id >= 0 && id < a.classes;
        a.y[r] = counts && legal ? (int32_t)id : -1;
        kept += counts;
        illegal += counts && !legal;
    }
    kept = over_block<plus>(kept, 0.0);
    illegal = over_block<plus>(illegal, 0.0);
    if (threadIdx.x == 0) {
        a.counts[0] += kept;
        a.counts[1] += illegal;
    }
}

template <class T> struct grad_of_row {
    typedef accum_t<T> A;
    T *x;
    A scale, max, inverse;
    int64_t target;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> v = {};
        if (scale != 0) {
            v = read<T, A, N>(x, at);
#pragma unroll
            for (int i = 0; i < N; i++)
                v.v[i] =
                    scale * (exponential_for<T>(v.v[i] - max) * inverse - (at + i == target ? (A)1 : (A)0));
        }
        write<T, A, N>(x, at, v);
    }
};
template <class T> struct grad_call {
    ax_ce_grad_args a;
};
template <class T> __global__ void grad_kernel(grad_call<T> s)
{
    typedef accum_t<T> A;
    int64_t r = blockIdx.x;
    T *x = (T *)s.a.logits + r * s.a.ld;
    double scale = s.a.scale * (s.a.now ? s.a.now->loss_scale : 1);
    grad_of_row<T> f = {x, s.a.targets[r] >= 0 ? (A)scale : (A)0, ((const A *)s.a.max)[r],
                        1 / ((const A *)s.a.sum)[r], target_column(s.a.targets, r, s.a.first, s.a.vocab)};
    along_row((const T *)x, s.a.vocab, threadIdx.x, ROW_BLOCK, f);
}

} // namespace

ax_status ax_cuda_ce_stats(ax_stream *stream, const void *args)
{
    const ax_ce_stats_args *a = (const ax_ce_stats_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return run(stream, stats_kernel<T>, (unsigned)a->rows, ROW_BLOCK, 0, stats_call<T>{*a});
    });
}

ax_status ax_cuda_ce_rescale(ax_stream *stream, const void *args)
{
    const ax_ce_rescale_args *a = (const ax_ce_rescale_args *)args;
    return by_accum(a->dtype, [&](auto t) {
        typedef decltype(t) A;
        return each<1>(stream, a->rows, false,
                       rescale<A>{(const A *)a->local_max, (const A *)a->max, (A *)a->sum});
    });
}

ax_status ax_cuda_ce_loss(ax_stream *stream, const void *args)
{
    const ax_ce_loss_args *a = (const ax_ce_loss_args *)args;
    return by_accum(a->dtype, [&](auto t) {
        typedef decltype(t) A;
        return run(stream, loss_kernel<A>, 1, ROW_BLOCK, 0, loss_call<A>{*a});
    });
}

ax_status ax_cuda_ce_rank(ax_stream *stream, const void *args)
{
    const ax_ce_rank_args *a = (const ax_ce_rank_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return run(stream, rank_kernel<T>, (unsigned)a->rows, ROW_BLOCK, 0, rank_call<T>{*a});
    });
}

ax_status ax_cuda_ce_grad(ax_stream *stream, const void *args)
{
    const ax_ce_grad_args *a = (const ax_ce_grad_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return run(stream, grad_kernel<T>, (unsigned)a->rows, ROW_BLOCK, 0, grad_call<T>{*a});
    });
}

ax_status ax_cuda_class_targets(ax_stream *stream, const void *args)
{
    return run(stream, class_targets_kernel, 1, ROW_BLOCK, 0, *(const ax_class_targets_args *)args);
}
