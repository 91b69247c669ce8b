/* Kernels of attention that reads few keys: heads in another basis, and the choice of keys. */
#include "dev/attention.h"
#include "dev/cuda/kernels.cuh"

namespace
{

/* ---- turn ---------------------------------------------------------------------------------------- */

enum { ROWS = 8 }; /* rows of a thread block, which reads the matrix of its head once for all of them */

/* A thread block handles ROWS rows of a head, each thread some of their columns. Shared memory: the rows. */
template <class T> struct turn {
    ax_turn_args a;
};
template <class T> __global__ void turn_kernel(turn<T> s)
{
    typedef accum_t<T> A;
    const ax_turn_args &a = s.a;
    const int64_t d = a.head_dim, h = blockIdx.y, r0 = (int64_t)blockIdx.x * ROWS;
    const A *p = (const A *)a.turn + h / (a.heads / a.kv_heads) * d * d;
    A *x = (A *)dynamic_shared();
    for (int64_t at = threadIdx.x; at < ROWS * d; at += blockDim.x) {
        const int64_t r = r0 + at / d;
        x[at] = r < a.rows ? widen<A>(((const T *)a.x)[r * a.ld + h * d + at % d]) : (A)0;
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < d; c += blockDim.x) {
        A sum[ROWS] = {};
        for (int64_t i = 0; i < d; i++) {
            const A column = p[i * d + c];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                sum[r] += x[r * d + i] * column;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (r0 + r < a.rows)
                ((T *)a.x)[(r0 + r) * a.ld + h * d + c] = narrow<T, A>::of(sum[r]);
    }
}

/* ---- choose -------------------------------------------------------------------------------------- */

__device__ inline int32_t order_of(float x) { return ax_choose_order(x); }
__device__ inline int64_t order_of(double x) { return ax_choose_order_of_double(x); }

/* The rows in scratch of a thread block: for each key that the query sees, of which there are n, the score of
 * one head, the score by which the key is chosen, and the integer that has its order. */
template <class A> struct choice_rows {
    typedef decltype(order_of(A())) I;
    A *one, *score;
    I *order;
    int64_t n;
};
enum { NUMBERS = 3 }; /* for each key, of 4 bytes, or 8 in double precision */

/* Returns, to all threads, how many of the first `end` keys have an integer that is at least `least` (or, if
 * `equal`, is `least`). */
template <class A>
__device__ inline int64_t count_keys(const choice_rows<A> &s, int64_t end, int64_t least, bool equal)
{
    int64_t n = 0;
    for (int64_t j = threadIdx.x; j < end; j += blockDim.x)
        n += equal ? s.order[j] == least : s.order[j] >= least;
    return over_block<plus>(n, (int64_t)0);
}

__device__ inline int64_t middle_of(int64_t lo, int64_t hi)
{
    return lo + (int64_t)(((uint64_t)hi - (uint64_t)lo) / 2);
}

/* Returns the largest integer that at least n keys reach. */
template <class A> __device__ inline int64_t least_chosen(const choice_rows<A> &s, int64_t n)
{
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int64_t j = threadIdx.x; j < s.n; j += blockDim.x) {
        low = s.order[j] < low ? s.order[j] : low;
        high = s.order[j] > high ? s.order[j] : high;
    }
    int64_t lo = over_block<minimum>(low, INT64_MAX), hi = over_block<maximum>(high, INT64_MIN);
    while (lo < hi) { /* n keys reach lo, and fewer than n reach hi + 1 */
        const int64_t middle = middle_of(lo, hi) + 1, count = count_keys(s, s.n, middle, false);
        if (count >= n)
            lo = middle;
        else
            hi = middle - 1;
        if (count == n)
            break;
    }
    return lo;
}

/* Returns the end of the keys of which those that equal `least` are chosen: `ties` of them. */
template <class A> __device__ inline int64_t end_of_ties(const choice_rows<A> &s, int64_t least, int64_t ties)
{
    int64_t lo = 0, hi = s.n;
    while (lo < hi) {
        const int64_t middle = (lo + hi) / 2;
        if (count_keys(s, middle, least, true) >= ties)
            hi = middle;
        else
            lo = middle + 1;
    }
    return hi;
}

/* Computes the scores of query head h of the keys from k on; returns the largest. */
template <class T>
__device__ inline accum_t<T> score_head(const ax_choose_args &a, const T *q, const T *k,
                                        const choice_rows<accum_t<T>> &s, accum_t<T> *shared)
{
    typedef accum_t<T> A;
    A most = (A)-INFINITY;
    __syncthreads(); /* threads may still read `shared` */
    for (int64_t c = threadIdx.x; c < a.width; c += blockDim.x)
        shared[c] = widen<A>(q[c]);
    __syncthreads();
    for (int64_t j = threadIdx.x; j < s.n; j += blockDim.x) {
        A sum = 0;
        for (int64_t c = 0; c < a.width; c++)
            sum += shared[c] * widen<A>(k[j * a.k_ld + c]);
        s.one[j] = sum;
        most = maximum::of(sum, most);
    }
    return over_block<maximum>(most, (A)-INFINITY);
}

/* A thread block makes one choice at a time. Shared memory: a query. */
template <class T> struct choose {
    ax_choose_args a;
    int64_t items;
    void *scratch;
};
template <class T> __global__ void choose_kernel(choose<T> s)
{
    typedef accum_t<T> A;
    const ax_choose_args &a = s.a;
    const ax_attention_args seen = ax_attention_of_choose(&a);
    const int64_t choosers = ax_choosers(&a), heads = a.heads / choosers, words = (a.kv_len + 63) / 64;
    choice_rows<A> rows;
    rows.one = (A *)s.scratch + (int64_t)blockIdx.x * NUMBERS * a.kv_len;
    rows.score = rows.one + a.kv_len;
    rows.order = (typename choice_rows<A>::I *)(rows.score + a.kv_len);
    for (int64_t item = blockIdx.x; item < s.items; item += gridDim.x) {
        const int64_t query = item / choosers, c = item % choosers, b = query / a.q_len;
        const int64_t position = ax_attention_offset(&seen, b) + query % a.q_len;
        const int64_t first = ax_attention_first_key(a.doc_start, query, a.window, position),
                      end = position + 1 < a.kv_len ? position + 1 : a.kv_len;
        rows.n = end > first ? end - first : 0;
        for (int64_t h = c * heads; h < (c + 1) * heads; h++) {
            const T *q = (const T *)a.q + query * a.q_ld + h * a.q_step,
                    *k = (const T *)a.k + b * a.k_batch_stride + h / (a.heads / a.kv_heads) * a.k_step +
                         first * a.k_ld;
            const A most = score_head<T>(a, q, k, rows, (A *)dynamic_shared());
            for (int64_t j = threadIdx.x; j < rows.n; j += blockDim.x) {
                const A x = heads > 1 ? rows.one[j] - most : rows.one[j];
                rows.score[j] = h > c * heads && !(x > rows.score[j]) && x == x ? rows.score[j] : x;
            }
        }
        for (int64_t j = threadIdx.x; j < rows.n; j += blockDim.x)
            rows.order[j] = order_of(rows.score[j]);
        __syncthreads();
        const int64_t n = ax_choose_count(a.keys, a.share, rows.n), least = least_chosen<A>(rows, n);
        const int64_t reach = count_keys<A>(rows, rows.n, least, false),
                      equal = count_keys<A>(rows, rows.n, least, true),
                      tied = reach > n ? end_of_ties<A>(rows, least, n - (reach - equal)) : rows.n;
        for (int64_t w = threadIdx.x; w < words; w += blockDim.x) {
            uint64_t bits = 0;
            for (int64_t j = w * 64 > first ? w * 64 - first : 0; j < rows.n && j + first < w * 64 + 64; j++)
                if (rows.order[j] > least || (rows.order[j] == least && j < tied))
                    bits |= (uint64_t)1 << (j + first) % 64;
            a.chosen[item * words + w] = bits;
        }
        __syncthreads(); /* the next choice overwrites the rows */
    }
}

} // namespace

ax_status ax_cuda_turn(ax_stream *stream, const void *args)
{
    const ax_turn_args *a = (const ax_turn_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const unsigned threads = (unsigned)ax_min(BLOCK, ax_round_up(ax_max(a->head_dim, 1), WARP));
        const size_t shared = (size_t)(ROWS * a->head_dim) * sizeof(accum_t<T>);
        if (!a->head_dim)
            return (ax_status)AX_OK;
        return run(stream, turn_kernel<T>, dim3((unsigned)ax_ceil_div(a->rows, ROWS), (unsigned)a->heads),
                   threads, shared, turn<T>{*a});
    });
}

ax_status ax_cuda_choose(ax_stream *stream, const void *args)
{
    const ax_choose_args *a = (const ax_choose_args *)args;
    const ax_cuda *cu = ax_cuda_of(stream);
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int64_t items = a->batch * a->q_len * ax_choosers(a),
                      row = NUMBERS * ax_max(a->kv_len, 1) * (int64_t)sizeof(accum_t<T>),
                      fit = cu->scratch_bytes / row;
        AX_CHECK(fit, AX_ERR_USAGE,
                 "cuda: %lld positions are too many to choose keys from: use fewer positions",
                 (long long)a->kv_len);
        return run(stream, choose_kernel<T>, (unsigned)ax_min(ax_min(items, fit), 16 * cu->processors), BLOCK,
                   (size_t)a->width * sizeof(accum_t<T>), choose<T>{*a, items, cu->scratch});
    });
}
