/* Mixtures of experts: the router, the order of rows, and copies by this order. The router has a warp for
 * each token. */
#include "dev/cuda/kernels.cuh"

namespace
{

enum { TOKENS = BLOCK / WARP }; /* tokens of a thread block */

/* ---- choices ------------------------------------------------------------------------------------- */

/* An expert and its probability; e < 0: none. */
template <class A> struct ranked {
    A p;
    int e;
};

/* Returns true if x is chosen before y: experts come in descending order of probabilities, and of indices;
 * NaN is less than any number. */
template <class A> __device__ inline bool precedes(const ranked<A> &x, const ranked<A> &y)
{
    const bool x_nan = x.p != x.p, y_nan = y.p != y.p;
    if (x.e < 0 || y.e < 0)
        return x.e >= 0;
    if (x_nan != y_nan)
        return y_nan;
    return !x_nan && x.p != y.p ? x.p > y.p : x.e < y.e;
}

/* Returns the first of the experts that lanes propose; every lane gets it. */
template <class A> __device__ inline ranked<A> first_of_warp(ranked<A> x)
{
#pragma unroll
    for (int lane = WARP / 2; lane; lane /= 2) {
        const ranked<A> other = {__shfl_xor_sync(0xffffffffu, x.p, lane),
                                 __shfl_xor_sync(0xffffffffu, x.e, lane)};
        if (precedes(other, x))
            x = other;
    }
    return x;
}

/* Returns the expert that is chosen after `last`; last.e < 0: the first. */
template <class A> __device__ inline ranked<A> next_choice(const A *probs, int experts, const ranked<A> &last)
{
    ranked<A> best = {(A)0, -1};
    for (int e = threadIdx.x % WARP; e < experts; e += WARP) {
        const ranked<A> x = {probs[e], e};
        if ((last.e < 0 || precedes(last, x)) && precedes(x, best))
            best = x;
    }
    return first_of_warp(best);
}

template <class A> struct route_call {
    ax_route_args a;
};
template <class A> __global__ void choose_experts(route_call<A> s)
{
    const ax_route_args &a = s.a;
    const int64_t r = (int64_t)blockIdx.x * TOKENS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, experts = (int)a.experts, top_k = (int)a.top_k;
    if (r >= a.rows)
        return;
    const A *logits = (const A *)a.logits + r * experts;
    A *probs = (A *)a.probs + r * experts, *weight = (A *)a.weight + r * top_k;
    A max = (A)-INFINITY, sum = 0, chosen = 0;
    for (int e = lane; e < experts; e += WARP)
        max = logits[e] > max ? logits[e] : max; /* skips NaN; the sum then becomes NaN */
    max = over_warp<maximum>(max);
    for (int e = lane; e < experts; e += WARP) {
        probs[e] = exponential(logits[e] - max);
        sum += probs[e];
    }
    sum = over_warp<plus>(sum);
    for (int e = lane; e < experts; e += WARP)
        probs[e] /= sum;
    ranked<A> last = {(A)0, -1};
    for (int j = 0; j < top_k; j++) {
        last = next_choice(probs, experts, last);
        chosen += last.p;
        if (lane == 0) {
            a.choice[r * top_k + j] = last.e;
            weight[j] = last.p;
        }
    }
    if (lane != 0)
        return;
    ((A *)a.lse)[r] = max + logarithm(sum);
    for (int j = 0; j < top_k && a.renormalize; j++)
        weight[j] /= chosen;
}

/* ---- places --------------------------------------------------------------------------------------
 *
 * A warp gives the places of an expert to choices of a sample: each lane looks at one of WARP neighbouring
 * choices. Other warps may meanwhile mark choices of their own experts, which are different in any case. */

__device__ inline bool counts(const int32_t *ids, int64_t i) { return !ids || ids[i] >= 0; }

__global__ void admit_choices(ax_admit_args a)
{
    const int e = (int)(blockIdx.y * TOKENS + threadIdx.x / WARP), lane = threadIdx.x % WARP;
    const int64_t n = a.tokens * a.top_k, first = (int64_t)blockIdx.x * n,
                  row = (e * a.samples + (int64_t)blockIdx.x) * a.capacity;
    int64_t used = 0;
    if (e >= a.experts)
        return;
    for (int64_t i = 0; i < n; i += WARP) {
        const int64_t c = first + i + lane;
        const bool mine = i + lane < n && a.choice[c] == e, takes = mine && counts(a.ids, c / a.top_k);
        const unsigned takers = __ballot_sync(0xffffffffu, takes);
        const int64_t at = used + __popc(takers & ((1u << lane) - 1));
        const bool fits = takes && at < a.capacity;
        if (mine && a.place)
            a.place[c] = fits ? (int32_t)(row + at) : -1;
        if (fits && a.source)
            a.source[row + at] = (int32_t)c;
        if (mine && !fits)
            a.choice[c] = ~e;
        used += __popc(takers);
    }
    for (int64_t i = used + lane; i < a.capacity && a.source; i += WARP)
        a.source[row + i] = -1;
}

/* ---- statistics ----------------------------------------------------------------------------------
 *
 * A thread block sums for a sample and WARP experts, with a thread for each of these in each of its warps,
 * which share the tokens. Then one thread block adds up the samples one after the other, so that the totals
 * have one order. A sample has 2 + 2·experts `parts`: its z loss and how many choices have no place, and for
 * each expert the part of the balance loss and the number of choices. */

template <class A> struct stats_of_choices {
    ax_route_stats_args a;
    double *parts;
};

/* Returns the sum over the warps of the values of this lane, in the first warp. */
__device__ inline double over_warps(double x)
{
    __shared__ double part[TOKENS][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads(); /* threads may still read `part` of the previous call */
    part[warp][lane] = x;
    __syncthreads();
    for (int w = 1; w < TOKENS && warp == 0; w++)
        x += part[w][lane];
    return x;
}

template <class A> __global__ void sum_sample(stats_of_choices<A> s)
{
    const ax_route_stats_args &a = s.a;
    const int64_t E = a.experts, b = blockIdx.x, end = (b + 1) * a.tokens,
                  e = (int64_t)blockIdx.y * WARP + threadIdx.x % WARP;
    double counted = 0, squares = 0, dropped = 0, probs = 0, choices = 0;
    for (int64_t i = b * a.tokens + threadIdx.x; i < end; i += BLOCK)
        if (counts(a.ids, i)) {
            const double lse = (double)((const A *)a.lse)[i];
            counted++;
            squares += lse * lse;
            for (int64_t j = i * a.top_k; j < (i + 1) * a.top_k; j++)
                dropped += a.choice[j] < 0;
        }
    counted = over_block<plus>(counted, 0.0);
    squares = over_block<plus>(squares, 0.0);
    dropped = over_block<plus>(dropped, 0.0);
    for (int64_t i = b * a.tokens + threadIdx.x / WARP; i < end; i += TOKENS) {
        if (e >= E || !counts(a.ids, i))
            continue;
        probs += (double)((const A *)a.probs)[i * E + e];
        for (int64_t j = i * a.top_k; j < (i + 1) * a.top_k; j++)
            choices += AX_EXPERT_OF(a.choice[j]) == e;
    }
    probs = over_warps(probs);
    choices = over_warps(choices);
    const double each = counted > 0 ? 1 / counted : 0, share = (double)E * choices * each;
    A *shares = (A *)a.share + b * (E + 1);
    double *parts = s.parts + b * (2 + 2 * E);
    if (threadIdx.x == 0 && blockIdx.y == 0) {
        shares[E] = (A)each;
        parts[0] = squares * each;
        parts[1] = dropped;
    }
    if (threadIdx.x >= WARP || e >= E)
        return;
    shares[e] = (A)share;
    parts[2 + e] = share * probs * each;
    parts[2 + E + e] = choices;
}

template <class A> __global__ void add_samples(stats_of_choices<A> s)
{
    const ax_route_stats_args &a = s.a;
    const int64_t E = a.experts, size = 2 + 2 * E;
    double balance = 0;
    for (int64_t e = threadIdx.x; e < E; e += BLOCK) {
        double choices = 0;
        for (int64_t b = 0; b < a.samples; b++) {
            balance += s.parts[b * size + 2 + e];
            choices += s.parts[b * size + 2 + E + e];
        }
        a.total[2 + e] += choices;
    }
    balance = over_block<plus>(balance, 0.0);
    if (threadIdx.x != 0)
        return;
    a.total[0] += balance;
    for (int64_t b = 0; b < a.samples; b++) {
        a.total[1] += s.parts[b * size];
        a.total[2 + E] += s.parts[b * size + 1];
    }
}

/* ---- gradient ------------------------------------------------------------------------------------ */

template <class T> struct choices_back {
    ax_route_grad_args a;
};
template <class T> __global__ void logits_back(choices_back<T> s)
{
    typedef accum_t<T> A;
    const ax_route_grad_args &a = s.a;
    const int64_t i = (int64_t)blockIdx.x * TOKENS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, experts = (int)a.experts, top_k = (int)a.top_k;
    if (i >= a.samples * a.tokens)
        return;
    const A *probs = (const A *)a.probs + i * experts, *weight = (const A *)a.weight + i * top_k,
            *dweight = (const A *)a.dweight + i * top_k;
    const int32_t *choice = a.choice + i * top_k;
    const bool extra = a.share && counts(a.ids, i);
    const A *share = extra ? (const A *)a.share + i / a.tokens * (experts + 1) : nullptr;
    const A per_token = extra ? (A)((a.now ? a.now->sample_scale : 1) * (double)share[experts]) : (A)0,
            balance = (A)a.balance * per_token,
            z = extra ? 2 * (A)a.z * per_token * ((const A *)a.lse)[i] : (A)0;
    A sum = 0, mean = 0, dot = 0;
    for (int j = 0; j < top_k; j++) {
        sum += probs[AX_EXPERT_OF(choice[j])];
        mean += weight[j] * dweight[j];
    }
    for (int pass = 0; pass < 2; pass++) { /* first the sum over experts, then the gradients */
        for (int e = lane; e < experts; e += WARP) {
            A dp = extra ? balance * share[e] : (A)0;
            for (int j = 0; j < top_k; j++)
                if (AX_EXPERT_OF(choice[j]) == e)
                    dp += a.renormalize ? (dweight[j] - mean) / sum : dweight[j];
            if (pass == 0)
                dot += probs[e] * dp;
            else
                ((T *)a.dlogits)[i * experts + e] = narrow<T, A>::of(probs[e] * (dp - dot + z));
        }
        if (pass == 0)
            dot = over_warp<plus>(dot);
    }
}

/* ---- the order of rows --------------------------------------------------------------------------- */

enum { SORTED = 1024 }; /* choices that a thread block sorts */

/* Sets starts[group][block] to the number of choices of the thread block's part in this group. */
__global__ void count_groups(ax_group_args a, int *starts)
{
    __shared__ int32_t own[SORTED];
    const int64_t first = (int64_t)blockIdx.x * SORTED;
    const int n = a.n - first < SORTED ? (int)(a.n - first) : SORTED;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        own[i] = a.group[first + i] - (int)a.first;
    __syncthreads();
    for (int g = threadIdx.x; g < (int)a.groups; g += blockDim.x) {
        int mine = 0;
        for (int i = 0; i < n; i++)
            mine += own[i] == g;
        starts[(int64_t)g * gridDim.x + blockIdx.x] = mine;
    }
}

/* Replaces values by their exclusive prefix sum, and sets values[n] to the sum of all. Runs as one thread
 * block. */
__global__ void scan_groups(int *values, int64_t n)
{
    __shared__ int sums[BLOCK];
    const int64_t each = (n + BLOCK - 1) / BLOCK, first = threadIdx.x * each,
                  end = first + each < n ? first + each : n;
    int sum = 0, before = 0;
    for (int64_t i = first; i < end; i++)
        sum += values[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int t = 0; t < (int)threadIdx.x; t++)
        before += sums[t];
    for (int64_t i = first; i < end; i++) {
        const int value = values[i];
        values[i] = before;
        before += value;
    }
    if (threadIdx.x == BLOCK - 1)
        values[n] = before;
}

/* Sets bound number g of each round, for a group that begins at `row`. */
__device__ inline void cut_rounds(const ax_group_args &a, int64_t g, int64_t row)
{
    for (int64_t i = 0; i < a.rounds; i++) {
        const int64_t at = row - i * a.rows;
        a.bounds[i * (a.groups + 1) + g] = (int32_t)(at < 0 ? 0 : at > a.rows ? a.rows : at);
    }
}

/* Gives the choices of the thread block's part their rows; thread g those of group g, in order. Rows from
 * `total` on have no choice. */
__global__ void place_choices(ax_group_args a, const int *starts)
{
    __shared__ int32_t own[SORTED];
    const int64_t first = (int64_t)blockIdx.x * SORTED, total = starts[a.groups * gridDim.x];
    const int n = a.n - first < SORTED ? (int)(a.n - first) : SORTED;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        own[i] = a.group[first + i] - (int)a.first;
        if (own[i] < 0 || own[i] >= a.groups)
            a.place[first + i] = -1;
    }
    for (int64_t r = total + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; r < a.rounds * a.rows;
         r += (int64_t)gridDim.x * blockDim.x)
        a.source[r] = -1;
    __syncthreads();
    for (int g = threadIdx.x; g < (int)a.groups; g += blockDim.x) {
        int row = starts[(int64_t)g * gridDim.x + blockIdx.x];
        if (blockIdx.x == 0)
            cut_rounds(a, g, row);
        for (int i = 0; i < n; i++)
            if (own[i] == g) {
                a.source[row] = (int32_t)(first + i);
                a.place[first + i] = row++;
            }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        cut_rounds(a, a.groups, total);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

template <class T> struct dispatch {
    typedef accum_t<T> A;
    ax_dispatch_args a;
    template <int N> __device__ void run(int64_t at) const
    {
        const int64_t choice = a.source[at / a.cols], from = choice / a.top_k * a.cols + at % a.cols;
        if (choice >= 0 && !a.scale)
            store<T, N>(a.y, at, load<T, N>(a.x, from));
        else if (choice >= 0 || a.zeros) {
            pack<A, N> v = {};
            if (choice >= 0)
                v = read<T, A, N>(a.x, from);
#pragma unroll
            for (int e = 0; e < N && choice >= 0; e++)
                v.v[e] *= ((const A *)a.scale)[choice];
            write<T, A, N>(a.y, at, v);
        }
    }
};

template <class T> struct scatter {
    ax_scatter_args a;
    template <int N> __device__ void run(int64_t at) const
    {
        const int64_t item = at / a.cols, c = at % a.cols, r = item / a.parts, p = item % a.parts,
                      place = a.place[r];
        if (place >= 0)
            store<T, N>(a.y, (p * a.rows + place) * a.cols + c, load<T, N>(a.x, r * a.ld + p * a.step + c));
    }
};

template <class T> struct combine {
    typedef accum_t<T> A;
    ax_combine_args a;
    template <int N> __device__ void run(int64_t at) const
    {
        const int64_t i = at / a.cols, c = at % a.cols;
        pack<A, N> sum = {};
        if (a.accumulate)
            sum = read<T, A, N>(a.y, at);
        for (int64_t j = i * a.top_k; j < (i + 1) * a.top_k; j++) {
            const int64_t row = a.place[j] - a.first;
            if (row < 0 || row >= a.rows)
                continue;
            const pack<A, N> v = read<T, A, N>(a.x, row * a.cols + c);
            const A scale = a.scale ? ((const A *)a.scale)[j] : (A)1;
#pragma unroll
            for (int e = 0; e < N; e++)
                sum.v[e] += scale * v.v[e];
        }
        write<T, A, N>(a.y, at, sum);
    }
};

/* A warp sums for each choice. */
template <class T> struct combine_back {
    ax_combine_grad_args a;
};
template <class T> __global__ void scale_back(combine_back<T> s)
{
    typedef accum_t<T> A;
    const ax_combine_grad_args &a = s.a;
    const int64_t j = (int64_t)blockIdx.x * TOKENS + threadIdx.x / WARP;
    if (j >= a.n * a.top_k)
        return;
    const int64_t row = a.place[j] * a.cols, token = j / a.top_k * a.cols;
    A sum = 0;
    for (int64_t c = threadIdx.x % WARP; c < a.cols && row >= 0; c += WARP)
        sum += read<T, A, 1>(a.x, row + c).v[0] * read<T, A, 1>(a.dy, token + c).v[0];
    sum = over_warp<plus>(sum);
    if (threadIdx.x % WARP == 0)
        ((A *)a.dscale)[j] = sum;
}

} // namespace

ax_status ax_cuda_route(ax_stream *stream, const void *args)
{
    const ax_route_args *a = (const ax_route_args *)args;
    return by_accum(a->dtype, [&](auto t) {
        typedef decltype(t) A;
        return run(stream, choose_experts<A>, (unsigned)ax_ceil_div(a->rows, TOKENS), BLOCK, 0,
                   route_call<A>{*a});
    });
}

ax_status ax_cuda_admit(ax_stream *stream, const void *args)
{
    const ax_admit_args *a = (const ax_admit_args *)args;
    return run(stream, admit_choices, dim3((unsigned)a->samples, (unsigned)ax_ceil_div(a->experts, TOKENS)),
               BLOCK, 0, *a);
}

ax_status ax_cuda_route_stats(ax_stream *stream, const void *args)
{
    const ax_route_stats_args *a = (const ax_route_stats_args *)args;
    double *parts = (double *)ax_cuda_of(stream)->scratch;
    AX_CHECK(a->samples * (2 + 2 * a->experts) <= ax_cuda_of(stream)->scratch_bytes / (int64_t)sizeof *parts,
             AX_ERR_USAGE, "cuda: %lld samples are too many for %lld experts: use smaller micro-batches",
             (long long)a->samples, (long long)a->experts);
    return by_accum(a->dtype, [&](auto t) {
        typedef decltype(t) A;
        const stats_of_choices<A> s = {*a, parts};
        const dim3 blocks((unsigned)a->samples, (unsigned)ax_ceil_div(a->experts, WARP));
        AX_TRY(run(stream, sum_sample<A>, blocks, BLOCK, 0, s));
        return run(stream, add_samples<A>, 1, BLOCK, 0, s);
    });
}

ax_status ax_cuda_route_grad(ax_stream *stream, const void *args)
{
    const ax_route_grad_args *a = (const ax_route_grad_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return run(stream, logits_back<T>, (unsigned)ax_ceil_div(a->samples * a->tokens, TOKENS), BLOCK, 0,
                   choices_back<T>{*a});
    });
}

ax_status ax_cuda_group(ax_stream *stream, const void *args)
{
    const ax_group_args *a = (const ax_group_args *)args;
    const int64_t blocks = ax_max(ax_ceil_div(a->n, SORTED), 1);
    int *starts = (int *)ax_cuda_of(stream)->scratch;
    AX_CHECK(a->groups * blocks < ax_cuda_of(stream)->scratch_bytes / (int64_t)sizeof *starts, AX_ERR_USAGE,
             "cuda: %lld choices of %lld groups are too many to sort: use smaller micro-batches",
             (long long)a->n, (long long)a->groups);
    AX_TRY(run(stream, count_groups, (unsigned)blocks, BLOCK, 0, *a, starts));
    AX_TRY(run(stream, scan_groups, 1, BLOCK, 0, starts, a->groups * blocks));
    return run(stream, place_choices, (unsigned)blocks, BLOCK, 0, *a, starts);
}

ax_status ax_cuda_dispatch(ax_stream *stream, const void *args)
{
    const ax_dispatch_args *a = (const ax_dispatch_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<T>::value;
        return each<N>(stream, a->rows * a->cols, a->cols % N == 0 && aligned({a->x, a->y}), dispatch<T>{*a});
    });
}

ax_status ax_cuda_scatter(ax_stream *stream, const void *args)
{
    const ax_scatter_args *a = (const ax_scatter_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<T>::value;
        const bool wide = a->cols % N == 0 && a->ld % N == 0 && a->step % N == 0 && aligned({a->x, a->y});
        return each<N>(stream, a->n * a->parts * a->cols, wide, scatter<T>{*a});
    });
}

ax_status ax_cuda_combine_grad(ax_stream *stream, const void *args)
{
    const ax_combine_grad_args *a = (const ax_combine_grad_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return run(stream, scale_back<T>, (unsigned)ax_ceil_div(a->n * a->top_k, TOKENS), BLOCK, 0,
                   combine_back<T>{*a});
    });
}

ax_status ax_cuda_combine(ax_stream *stream, const void *args)
{
    const ax_combine_args *a = (const ax_combine_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<T>::value;
        return each<N>(stream, a->n * a->cols, a->cols % N == 0 && aligned({a->x, a->y}), combine<T>{*a});
    });
}
