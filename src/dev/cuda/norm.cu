/* LayerNorm and RMSNorm over a width that may be split over ranks, and the sums of the columns of a matrix.
 * In the kernels of norms a thread block handles one row at a time. The sum of a column is made in two steps:
 * within strips of rows, and then over the strips. The order of additions depends on shape and alignment
 * only. */
#include "dev/cuda/kernels.cuh"

namespace
{

/* ---- rows ---------------------------------------------------------------------------------------- */

/* The most threads of a block. A thread handles N adjacent columns at a time, where N is 1 or the number of
 * elements in 16 bytes, and keeps its first N columns of a row in registers. So rows of up to MOST·N columns
 * are read from memory once; of longer rows the rest is read again in each pass. */
enum { MOST = 512 };

/* Returns true if a thread may handle N = width<T>::value columns at a time: the number of columns is a
 * multiple of N, and all arrays (`rows`: matrices; `vectors`: vectors as long as a row) are aligned to 16
 * bytes. */
template <class T>
bool wide_rows(int64_t cols, std::initializer_list<const void *> rows,
               std::initializer_list<const void *> vectors)
{
    return cols % width<T>::value == 0 && aligned(rows) && aligned(vectors);
}

unsigned threads_of(int64_t cols, int n)
{
    return (unsigned)ax_max(WARP, ax_min(MOST, ax_round_up(ax_ceil_div(cols, n), WARP)));
}

/* Sums each of K numbers over the threads of the block; every thread gets the K sums. All threads of the
 * block must call this function. */
template <int K, class A> __device__ inline void sum_over_block(A (&x)[K])
{
    __shared__ A part[K][MOST / WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    for (int k = 0; k < K; k++)
        x[k] = over_warp<plus>(x[k]);
    if (warps == 1)
        return;
    __syncthreads(); /* threads may still read `part` of the previous call */
    for (int k = 0; k < K && lane == 0; k++)
        part[k][warp] = x[k];
    __syncthreads();
    for (int k = 0; k < K; k++)
        x[k] = over_warp<plus>(lane < warps ? part[k][lane] : (A)0);
}

/* Loads N elements of a weight or bias, in several loads of at most 16 bytes, because the type of weights and
 * biases may be wider than the type of the rows. */
template <class A, int N> __device__ inline pack<A, N> read_vector(const void *vector, int64_t at)
{
    const int M = N * sizeof(A) > 16 ? 16 / sizeof(A) : N;
    pack<A, N> out;
#pragma unroll
    for (int i = 0; i < N; i += M) {
        pack<A, M> some = load<A, M>(vector, at + i);
#pragma unroll
        for (int j = 0; j < M; j++)
            out.v[i + j] = some.v[j];
    }
    return out;
}

template <class A, int N> __device__ inline void write_vector(A *at, const pack<A, N> &values)
{
    const int M = N * sizeof(A) > 16 ? 16 / sizeof(A) : N;
#pragma unroll
    for (int i = 0; i < N; i += M) {
        pack<A, M> some;
#pragma unroll
        for (int j = 0; j < M; j++)
            some.v[j] = values.v[i + j];
        store<A, M>(at, i, some);
    }
}

/* Rounds x to the precision of type T. */
template <class T, class A> __device__ inline A rounded(A x) { return widen<A>(narrow<T, A>::of(x)); }

/* Returns the statistic of row r, or 0 if `statistic` is NULL, as sum and s1 of RMSNorm are. */
template <class A> __device__ inline A at_row(const void *statistic, int64_t r)
{
    return statistic ? ((const A *)statistic)[r] : (A)0;
}

/* Mean (0 for RMSNorm) and reciprocal standard deviation of a row. */
template <class A> struct moments {
    A mean, rstd;
    __device__ moments(A sum, A m2, int64_t global_cols, double eps)
    {
        mean = sum / (A)global_cols;
        rstd = 1 / root(m2 / (A)global_cols + (A)eps);
    }
    template <int N> __device__ pack<A, N> of(pack<A, N> x) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            x.v[i] = (x.v[i] - mean) * rstd;
        return x;
    }
};

/* Arguments of norm_kernel, which implements three kernels: norm if the template arguments STATS and APPLY
 * are both true, norm_stats if only STATS is, norm_apply if only APPLY is. */
struct rows_of_norm {
    ax_norm_args a;
    int64_t global_cols;
};

/* Returns N elements of x = a + b, rounded to type T, and stores them; returns those of a, and stores
 * nothing, if b is NULL. */
template <class T, int N, class A> __device__ inline pack<A, N> load_sum(const ax_norm_args &a, int64_t at)
{
    pack<A, N> x = read<T, A, N>(a.a, at);
    if (!a.b)
        return x;
    pack<A, N> b = read<T, A, N>(a.b, at);
#pragma unroll
    for (int i = 0; i < N; i++)
        x.v[i] = rounded<T>(x.v[i] + b.v[i]);
    write<T, A, N>(a.x, at, x);
    return x;
}

template <class T, int N, bool STATS, bool APPLY>
__global__ void __launch_bounds__(MOST) norm_kernel(rows_of_norm s)
{
    typedef accum_t<T> A;
    const ax_norm_args &a = s.a;
    const int64_t r = blockIdx.x, row = r * a.cols;
    const int64_t first = (int64_t)threadIdx.x * N, step = (int64_t)blockDim.x * N;
    const void *x = a.b ? a.x : a.a;
    pack<A, N> held = {};
    A sum[1] = {0}, m2[1] = {0};
    if (STATS) {
        const bool rms = a.kind == AX_NORM_RMS;
        for (int64_t c = first; c < a.cols; c += step) {
            pack<A, N> v = load_sum<T, N, A>(a, row + c);
            if (c == first)
                held = v;
            for (int i = 0; i < N; i++)
                (rms ? m2 : sum)[0] += rms ? v.v[i] * v.v[i] : v.v[i];
        }
        if (!rms) {
            sum_over_block(sum);
            const A mean = a.cols ? sum[0] / (A)a.cols : 0;
            for (int64_t c = first; c < a.cols; c += step) {
                pack<A, N> v = c == first ? held : read<T, A, N>(x, row + c);
                for (int i = 0; i < N; i++)
                    m2[0] += (v.v[i] - mean) * (v.v[i] - mean);
            }
        }
        sum_over_block(m2);
        if (threadIdx.x == 0 && a.sum)
            ((A *)a.sum)[r] = sum[0];
        if (threadIdx.x == 0)
            ((A *)a.m2)[r] = m2[0];
    } else {
        sum[0] = at_row<A>(a.sum, r);
        m2[0] = at_row<A>(a.m2, r);
    }
    if (!APPLY)
        return;
    const moments<A> m(sum[0], m2[0], s.global_cols, a.eps);
    for (int64_t c = first; c < a.cols; c += step) {
        pack<A, N> v = m.of(STATS && c == first ? held : read<T, A, N>(x, row + c));
        pack<A, N> weight = read_vector<A, N>(a.weight, c), bias = {};
        if (a.bias)
            bias = read_vector<A, N>(a.bias, c);
#pragma unroll
        for (int i = 0; i < N; i++)
            v.v[i] = v.v[i] * weight.v[i] + bias.v[i];
        write<T, A, N>(a.y, row + c, v);
    }
}

template <bool STATS, bool APPLY> ax_status by_rows(ax_stream *stream, const rows_of_norm &s)
{
    const ax_norm_args *a = &s.a;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<T>::value;
        if (wide_rows<T>(a->cols, {a->a, a->b, a->x, a->y}, {a->weight, a->bias}))
            return run(stream, norm_kernel<T, N, STATS, APPLY>, (unsigned)a->rows, threads_of(a->cols, N), 0,
                       s);
        return run(stream, norm_kernel<T, 1, STATS, APPLY>, (unsigned)a->rows, threads_of(a->cols, 1), 0, s);
    });
}

template <class A> struct recentre {
    A *m2;
    const A *local_sum, *global_sum;
    A cols, global_cols;
    template <int N> __device__ void run(int64_t at) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            A shift = local_sum[at + i] / cols - global_sum[at + i] / global_cols;
            m2[at + i] += cols * shift * shift;
        }
    }
};

/* Arguments of norm_grad_kernel, which implements three kernels: norm_grad if the template arguments STATS
 * and APPLY are both true, norm_grad_stats if only STATS is, norm_grad_apply if only APPLY is. Each thread
 * block handles a strip of rows. */
struct rows_of_grad {
    ax_norm_grad_apply_args a; /* s1 and s2: outputs of norm_grad_stats, inputs of norm_grad_apply */
    int64_t strip;
    /* [strips, 2, cols]: the sums of each strip for dweight and dbias. NULL if these are not wanted, or if
     * rows are longer than MOST·N columns. */
    void *part;
};

template <class A, int N>
__device__ inline void add_to_sums(A (&sum)[2], const pack<A, N> &xhat, const pack<A, N> &dy,
                                   const pack<A, N> &weight)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        A g = dy.v[i] * weight.v[i];
        sum[0] += g;
        sum[1] += g * xhat.v[i];
    }
}

template <class A, int N>
__device__ inline void add_to_weights(pack<A, N> &dweight, pack<A, N> &dbias, const pack<A, N> &xhat,
                                      const pack<A, N> &dy)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        dweight.v[i] += dy.v[i] * xhat.v[i];
        dbias.v[i] += dy.v[i];
    }
}

/* Computes N elements of dx from index `at` on. mean[0] and mean[1] are s1 and s2 of the row, divided by
 * global_cols. */
template <class T, class A, int N>
__device__ inline void write_input_grad(const ax_norm_grad_apply_args &a, int64_t at, A rstd,
                                        const A (&mean)[2], const pack<A, N> &xhat, const pack<A, N> &dy,
                                        const pack<A, N> &weight)
{
    pack<A, N> dx;
#pragma unroll
    for (int i = 0; i < N; i++)
        dx.v[i] = rstd * (dy.v[i] * weight.v[i] - mean[0] - xhat.v[i] * mean[1]);
    if (a.add) {
        pack<A, N> add = read<T, A, N>(a.add, at);
#pragma unroll
        for (int i = 0; i < N; i++)
            dx.v[i] = add.v[i] + rounded<T>(dx.v[i]);
    }
    write<T, A, N>(a.dx, at, dx);
}

template <class T, int N, bool STATS, bool APPLY>
__global__ void __launch_bounds__(MOST, 2) norm_grad_kernel(rows_of_grad s)
{
    typedef accum_t<T> A;
    const ax_norm_grad_apply_args &a = s.a;
    const int64_t first = (int64_t)threadIdx.x * N, step = (int64_t)blockDim.x * N;
    const int64_t begin = blockIdx.x * s.strip, end = begin + s.strip < a.rows ? begin + s.strip : a.rows;
    pack<A, N> weight = {}, dweight = {}, dbias = {};
    if (first < a.cols)
        weight = read_vector<A, N>(a.weight, first);
    for (int64_t r = begin; r < end; r++) {
        const int64_t row = r * a.cols;
        const moments<A> m(at_row<A>(a.sum, r), at_row<A>(a.m2, r), a.global_cols, a.eps);
        pack<A, N> xhat = {}, dy = {};
        A sum[2] = {0, 0};
        if (first < a.cols) {
            xhat = m.of(read<T, A, N>(a.x, row + first));
            dy = read<T, A, N>(a.dy, row + first);
        }
        if (STATS) {
            add_to_sums(sum, xhat, dy, weight);
            for (int64_t c = first + step; c < a.cols; c += step)
                add_to_sums(sum, m.of(read<T, A, N>(a.x, row + c)), read<T, A, N>(a.dy, row + c),
                            read_vector<A, N>(a.weight, c));
            sum_over_block(sum);
            if (a.kind == AX_NORM_RMS)
                sum[0] = 0;
        } else {
            sum[0] = at_row<A>(a.s1, r);
            sum[1] = at_row<A>(a.s2, r);
        }
        if (!APPLY && threadIdx.x == 0 && a.s1)
            ((A *)a.s1)[r] = sum[0];
        if (!APPLY && threadIdx.x == 0)
            ((A *)a.s2)[r] = sum[1];
        if (!APPLY)
            continue;
        add_to_weights(dweight, dbias, xhat, dy);
        sum[0] /= (A)a.global_cols;
        sum[1] /= (A)a.global_cols;
        if (first < a.cols)
            write_input_grad<T>(a, row + first, m.rstd, sum, xhat, dy, weight);
        for (int64_t c = first + step; c < a.cols; c += step)
            write_input_grad<T>(a, row + c, m.rstd, sum, m.of(read<T, A, N>(a.x, row + c)),
                                read<T, A, N>(a.dy, row + c), read_vector<A, N>(a.weight, c));
    }
    if (!APPLY || !s.part || first >= a.cols)
        return;
    A *part = (A *)s.part + blockIdx.x * 2 * a.cols + first;
    write_vector(part, dweight);
    write_vector(part + a.cols, dbias);
}

/* ---- columns ------------------------------------------------------------------------------------- */

/* strip_kernel computes K sums over rows for each column; the struct F, col_sum or weight_grads, says which.
 * A thread block handles WARP·N columns of a strip of rows: each lane handles N columns, and each of the ROWS
 * warps every ROWS-th row. The sums of strips are stored in scratch, [strip, k, cols]. */
enum { ROWS = BLOCK / WARP };
template <class T> struct col_sum {
    typedef accum_t<T> A;
    enum { K = 1 };
    const T *x;
    int64_t ld;
    template <int N> __device__ void add(int64_t r, int64_t c, A (*sum)[N]) const
    {
        pack<A, N> v = read<T, A, N>(x, r * ld + c);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[0][i] += v.v[i];
    }
};

template <class T> struct weight_grads {
    typedef accum_t<T> A;
    enum { K = 2 };
    ax_norm_grad_apply_args a;
    template <int N> __device__ void add(int64_t r, int64_t c, A (*sum)[N]) const
    {
        const moments<A> m(at_row<A>(a.sum, r), at_row<A>(a.m2, r), a.global_cols, a.eps);
        pack<A, N> xhat = m.of(read<T, A, N>(a.x, r * a.cols + c)), d = read<T, A, N>(a.dy, r * a.cols + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum[0][i] += d.v[i] * xhat.v[i];
            sum[1][i] += d.v[i];
        }
    }
};

template <int N, class F>
__global__ void strip_kernel(F f, int64_t rows, int64_t cols, int64_t strip, typename F::A *part)
{
    typedef typename F::A A;
    __shared__ A other[ROWS][F::K][WARP * N];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t c = ((int64_t)blockIdx.x * WARP + lane) * N, first = blockIdx.y * strip;
    int64_t end = first + strip < rows ? first + strip : rows;
    A sum[F::K][N] = {};
    if (c < cols)
        for (int64_t r = first + warp; r < end; r += ROWS)
            f.template add<N>(r, c, sum);
    for (int k = 0; k < F::K; k++)
        for (int i = 0; i < N; i++)
            other[warp][k][lane * N + i] = sum[k][i];
    __syncthreads();
    for (int at = threadIdx.x; at < F::K * WARP * N; at += BLOCK) {
        int k = at / (WARP * N), i = at % (WARP * N);
        int64_t column = (int64_t)blockIdx.x * WARP * N + i;
        A total = 0;
        for (int w = 0; w < ROWS; w++)
            total += other[w][k][i];
        if (column < cols)
            part[((int64_t)blockIdx.y * F::K + k) * cols + column] = total;
    }
}

/* Adds up the sums of all strips: sum 0 of each column to out0, sum 1 to out1. Either may be NULL. Each of
 * ROWS warps adds every ROWS-th strip. */
template <class A>
__global__ void add_strips_kernel(const A *part, int64_t strips, int k, int64_t cols, A *out0, A *out1)
{
    __shared__ A other[ROWS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t c = (int64_t)blockIdx.x * WARP + lane;
    A *out = blockIdx.y ? out1 : out0, sum = 0;
    if (!out)
        return;
    for (int64_t s = warp; s < strips && c < cols; s += ROWS)
        sum += part[(s * k + blockIdx.y) * cols + c];
    other[warp][lane] = sum;
    __syncthreads();
    if (warp || c >= cols)
        return;
    for (int w = 1; w < ROWS; w++)
        sum += other[w][lane];
    out[c] += sum;
}

template <class A>
ax_status add_strips(ax_stream *stream, const void *part, int64_t strips, int k, int64_t cols, void *out0,
                     void *out1)
{
    return run(stream, add_strips_kernel<A>, dim3((unsigned)ax_ceil_div(cols, WARP), (unsigned)k), BLOCK, 0,
               (const A *)part, strips, k, cols, (A *)out0, (A *)out1);
}

template <int N, class F>
ax_status columns_by(ax_stream *stream, int64_t rows, int64_t cols, const F &f, typename F::A *out0,
                     typename F::A *out1)
{
    typedef typename F::A A;
    enum { LEAST = 64, WANTED = 512 }; /* LEAST: fewest rows of a strip; WANTED: thread blocks to aim at */
    A *part = (A *)ax_cuda_of(stream)->scratch;
    int64_t across = ax_ceil_div(cols, WARP * N),
            most = AX_CUDA_SCRATCH / (int64_t)sizeof(A) / F::K / ax_max(cols, 1);
    AX_CHECK(most > 0, AX_ERR_USAGE,
             "cuda: the gradient of a bias or of a norm's weight has %lld elements on this rank, but %d MiB "
             "of scratch "
             "memory hold sums for only %lld: divide the layer's width among more ranks (grid.x, grid.y)",
             (long long)cols, AX_CUDA_SCRATCH >> 20,
             (long long)(AX_CUDA_SCRATCH / (int64_t)sizeof(A) / F::K));
    int64_t strips = ax_min(ax_min(ax_ceil_div(rows, LEAST), ax_ceil_div(WANTED, ax_max(across, 1))), most);
    if (!rows || !cols)
        return AX_OK;
    int64_t strip = ax_ceil_div(rows, strips);
    strips = ax_ceil_div(rows, strip);
    AX_TRY(run(stream, strip_kernel<N, F>, dim3((unsigned)across, (unsigned)strips), BLOCK, 0, f, rows, cols,
               strip, part));
    return add_strips<A>(stream, part, strips, F::K, cols, out0, out1);
}

template <class T, class F>
ax_status columns(ax_stream *stream, int64_t rows, int64_t cols, int64_t ld, bool wide, const F &f,
                  void *out0, void *out1)
{
    typedef accum_t<T> A;
    const int N = width<T>::value / 2; /* loads of 8 bytes: 16 would need twice the shared memory */
    if (wide && cols % N == 0 && ld % N == 0)
        return columns_by<N>(stream, rows, cols, f, (A *)out0, (A *)out1);
    return columns_by<1>(stream, rows, cols, f, (A *)out0, (A *)out1);
}

/* ---- rows and columns of a gradient -------------------------------------------------------------- */

template <class T, int N, bool STATS, bool APPLY>
ax_status grad_by(ax_stream *stream, const ax_norm_grad_apply_args *a)
{
    enum { LEAST = 8, WANTED = 512 }; /* LEAST: fewest rows of a strip; WANTED: thread blocks to aim at */
    typedef accum_t<T> A;
    static_assert((int64_t)WANTED * 2 * MOST * N * sizeof(A) <= AX_CUDA_SCRATCH,
                  "scratch is too small for the sums of strips");
    if (!a->rows)
        return AX_OK;
    int64_t strip = ax_max(LEAST, ax_ceil_div(a->rows, WANTED)), strips = ax_ceil_div(a->rows, strip);
    bool weights = a->dweight || a->dbias, along = a->cols <= MOST * N;
    if (weights && !along) /* before dx is written, because dx may be dy */
        AX_TRY(columns<T>(stream, a->rows, a->cols, a->cols, aligned({a->x, a->dy}), weight_grads<T>{*a},
                          a->dweight, a->dbias));
    void *part = weights && along ? ax_cuda_of(stream)->scratch : NULL;
    AX_TRY(run(stream, norm_grad_kernel<T, N, STATS, APPLY>, (unsigned)strips, threads_of(a->cols, N), 0,
               rows_of_grad{*a, strip, part}));
    return part ? add_strips<A>(stream, part, strips, 2, a->cols, a->dweight, a->dbias) : AX_OK;
}

template <bool STATS, bool APPLY> ax_status grad_by_rows(ax_stream *stream, const ax_norm_grad_apply_args *a)
{
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        if (wide_rows<T>(a->cols, {a->x, a->dy, a->add, a->dx}, {a->weight}))
            return grad_by<T, width<T>::value, STATS, APPLY>(stream, a);
        return grad_by<T, 1, STATS, APPLY>(stream, a);
    });
}

} // namespace

ax_status ax_cuda_norm(ax_stream *stream, const void *args)
{
    const ax_norm_args *a = (const ax_norm_args *)args;
    return by_rows<true, true>(stream, rows_of_norm{*a, a->cols});
}

ax_status ax_cuda_norm_stats(ax_stream *stream, const void *args)
{
    const ax_norm_stats_args *a = (const ax_norm_stats_args *)args;
    ax_norm_args norm = {};
    norm.rows = a->rows, norm.cols = a->cols, norm.dtype = a->dtype, norm.kind = a->kind;
    norm.a = a->a, norm.b = a->b, norm.x = a->x, norm.sum = a->sum, norm.m2 = a->m2;
    return by_rows<true, false>(stream, rows_of_norm{norm, a->cols});
}

ax_status ax_cuda_norm_recentre(ax_stream *stream, const void *args)
{
    const ax_norm_recentre_args *a = (const ax_norm_recentre_args *)args;
    if (!a->cols)
        return AX_OK;
    return by_accum(a->dtype, [&](auto t) {
        typedef decltype(t) A;
        return each<1>(stream, a->rows, false,
                       recentre<A>{(A *)a->m2, (const A *)a->local_sum, (const A *)a->global_sum, (A)a->cols,
                                   (A)a->global_cols});
    });
}

ax_status ax_cuda_norm_apply(ax_stream *stream, const void *args)
{
    const ax_norm_apply_args *a = (const ax_norm_apply_args *)args;
    ax_norm_args norm = {};
    norm.rows = a->rows, norm.cols = a->cols, norm.eps = a->eps, norm.dtype = a->dtype, norm.kind = a->kind;
    norm.a = a->x, norm.sum = (void *)a->sum, norm.m2 = (void *)a->m2;
    norm.weight = a->weight, norm.bias = a->bias, norm.y = a->y;
    return by_rows<false, true>(stream, rows_of_norm{norm, a->global_cols});
}

ax_status ax_cuda_norm_grad(ax_stream *stream, const void *args)
{
    const ax_norm_grad_apply_args a = ax_norm_grad_apply_of((const ax_norm_grad_args *)args);
    return grad_by_rows<true, true>(stream, &a);
}

ax_status ax_cuda_norm_grad_stats(ax_stream *stream, const void *args)
{
    const ax_norm_grad_stats_args *a = (const ax_norm_grad_stats_args *)args;
    ax_norm_grad_apply_args grad = {};
    grad.rows = a->rows, grad.cols = a->cols, grad.global_cols = a->global_cols;
    grad.eps = a->eps, grad.dtype = a->dtype, grad.kind = a->kind, grad.x = a->x, grad.dy = a->dy;
    grad.sum = a->sum, grad.m2 = a->m2, grad.weight = a->weight, grad.s1 = a->s1, grad.s2 = a->s2;
    return grad_by_rows<true, false>(stream, &grad);
}

ax_status ax_cuda_norm_grad_apply(ax_stream *stream, const void *args)
{
    return grad_by_rows<false, true>(stream, (const ax_norm_grad_apply_args *)args);
}

ax_status ax_cuda_col_sum(ax_stream *stream, const void *args)
{
    const ax_col_sum_args *a = (const ax_col_sum_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return columns<T>(stream, a->rows, a->cols, a->ld, aligned({a->x}),
                          col_sum<T>{(const T *)a->x, a->ld}, a->out, NULL);
    });
}
