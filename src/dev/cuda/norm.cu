/* LayerNorm over a width that may be split over ranks, and sums over columns. A warp has a row; columns are
 * summed in two steps, strips of rows first, in an order that shape and alignment decide. */
#include "dev/cuda/kernels.cuh"

namespace
{

enum { ROWS = BLOCK / WARP }; /* that a block has at a time */

/* ---- rows ---------------------------------------------------------------------------------------- */

__device__ inline int64_t row_of_warp() { return (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP; }

template <class F> ax_status by_rows(ax_stream *stream, void (*kernel)(F), int64_t rows, const F &f)
{
    return run(stream, kernel, (unsigned)ax_ceil_div(rows, ROWS), BLOCK, 0, f);
}

/* Sums of f(x) over one row, by a warp. */
template <class T, class F> struct summed {
    typedef accum_t<T> A;
    const T *x;
    F f;
    A *sum;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> v = read<T, A, N>(x, at);
#pragma unroll
        for (int i = 0; i < N; i++)
            *sum += f(v.v[i]);
    }
};
template <class T, class F> __device__ inline accum_t<T> sum_row(const T *x, int64_t cols, F f)
{
    accum_t<T> sum = 0;
    along_row(x, cols, threadIdx.x % WARP, WARP, summed<T, F>{x, f, &sum});
    return over_warp<plus>(sum);
}

template <class A> struct itself {
    __device__ A operator()(A x) const { return x; }
};
template <class A> struct squared_distance {
    A mean;
    __device__ A operator()(A x) const { return (x - mean) * (x - mean); }
};

template <class T> struct stats {
    ax_norm_stats_args a;
};
template <class T> __global__ void stats_kernel(stats<T> s)
{
    typedef accum_t<T> A;
    int64_t r = row_of_warp();
    if (r >= s.a.rows)
        return;
    const T *x = (const T *)s.a.x + r * s.a.cols;
    A sum = sum_row(x, s.a.cols, itself<A>());
    A m2 = sum_row(x, s.a.cols, squared_distance<A>{s.a.cols ? sum / (A)s.a.cols : 0});
    if (threadIdx.x % WARP == 0) {
        ((A *)s.a.sum)[r] = sum;
        ((A *)s.a.m2)[r] = m2;
    }
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

/* mean and 1/deviation of a row. */
template <class A> struct moments {
    A mean, rstd;
    template <class Args> __device__ moments(const Args &a, int64_t r)
    {
        mean = ((const A *)a.sum)[r] / (A)a.global_cols;
        rstd = 1 / root(((const A *)a.m2)[r] / (A)a.global_cols + (A)a.eps);
    }
};

/* Column at …: x, dy of a row by their own alignment; weights and biases one by one from the cache. */
template <class T> struct apply {
    typedef accum_t<T> A;
    const T *x;
    T *y;
    const A *weight, *bias;
    moments<A> m;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> v = read<T, A, N>(x, at);
#pragma unroll
        for (int i = 0; i < N; i++)
            v.v[i] = (v.v[i] - m.mean) * m.rstd * weight[at + i] + (bias ? bias[at + i] : (A)0);
        write<T, A, N>(y, at, v);
    }
};
template <class T> struct applied {
    ax_norm_apply_args a;
    bool wide; /* y is aligned as x is, row by row */
};
template <class T> __global__ void apply_kernel(applied<T> s)
{
    typedef accum_t<T> A;
    int64_t r = row_of_warp();
    if (r >= s.a.rows)
        return;
    const T *x = (const T *)s.a.x + r * s.a.cols;
    apply<T> f = {x, (T *)s.a.y + r * s.a.cols, (const A *)s.a.weight, (const A *)s.a.bias,
                  moments<A>(s.a, r)};
    along_rows(s.wide, x, s.a.cols, threadIdx.x % WARP, WARP, f);
}

template <class T> struct grad_stats {
    ax_norm_grad_stats_args a;
    bool wide;
};
template <class T> struct add_grad_stats {
    typedef accum_t<T> A;
    const T *x, *dy;
    const A *weight;
    moments<A> m;
    A *s1, *s2;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> v = read<T, A, N>(x, at), d = read<T, A, N>(dy, at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            A g = d.v[i] * weight[at + i];
            *s1 += g;
            *s2 += g * (v.v[i] - m.mean) * m.rstd;
        }
    }
};
template <class T> __global__ void grad_stats_kernel(grad_stats<T> s)
{
    typedef accum_t<T> A;
    int64_t r = row_of_warp();
    if (r >= s.a.rows)
        return;
    const T *x = (const T *)s.a.x + r * s.a.cols;
    A s1 = 0, s2 = 0;
    add_grad_stats<T> f = {
        x, (const T *)s.a.dy + r * s.a.cols, (const A *)s.a.weight, moments<A>(s.a, r), &s1, &s2};
    along_rows(s.wide, x, s.a.cols, threadIdx.x % WARP, WARP, f);
    s1 = over_warp<plus>(s1);
    s2 = over_warp<plus>(s2);
    if (threadIdx.x % WARP == 0) {
        ((A *)s.a.s1)[r] = s1;
        ((A *)s.a.s2)[r] = s2;
    }
}

template <class T> struct input_grad {
    typedef accum_t<T> A;
    const T *x, *dy;
    T *dx;
    const A *weight;
    moments<A> m;
    A s1, s2; /* over the whole width, divided by it */
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> v = read<T, A, N>(x, at), d = read<T, A, N>(dy, at);
#pragma unroll
        for (int i = 0; i < N; i++)
            d.v[i] = m.rstd * (d.v[i] * weight[at + i] - s1 - (v.v[i] - m.mean) * m.rstd * s2);
        write<T, A, N>(dx, at, d);
    }
};
template <class T> struct grad {
    ax_norm_grad_args a;
    bool wide;
};
template <class T> __global__ void grad_kernel(grad<T> s)
{
    typedef accum_t<T> A;
    int64_t r = row_of_warp();
    if (r >= s.a.rows)
        return;
    const T *x = (const T *)s.a.x + r * s.a.cols;
    input_grad<T> f = {x,
                       (const T *)s.a.dy + r * s.a.cols,
                       (T *)s.a.dx + r * s.a.cols,
                       (const A *)s.a.weight,
                       moments<A>(s.a, r),
                       ((const A *)s.a.s1)[r] / (A)s.a.global_cols,
                       ((const A *)s.a.s2)[r] / (A)s.a.global_cols};
    along_rows(s.wide, x, s.a.cols, threadIdx.x % WARP, WARP, f);
}

/* ---- columns ------------------------------------------------------------------------------------- */

/* Sums over rows, K of them for each column. A block takes WARP threads of columns, N each, and a strip of
 * rows; its ROWS warps take every ROWS-th row. Strips leave their sums in scratch, [strip, k, cols]. */
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
    ax_norm_grad_args a;
    template <int N> __device__ void add(int64_t r, int64_t c, A (*sum)[N]) const
    {
        moments<A> m(a, r);
        pack<A, N> v = read<T, A, N>(a.x, r * a.cols + c), d = read<T, A, N>(a.dy, r * a.cols + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum[0][i] += d.v[i] * (v.v[i] - m.mean) * m.rstd;
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

/* out[k][c] += the sum over strips; either may be missing. */
template <class A>
__global__ void add_strips(const A *part, int64_t strips, int k, int64_t cols, A *out0, A *out1)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    A *out = blockIdx.y ? out1 : out0, sum = 0;
    if (c >= cols || !out)
        return;
    for (int64_t s = 0; s < strips; s++)
        sum += part[(s * k + blockIdx.y) * cols + c];
    out[c] += sum;
}

template <int N, class F>
ax_status columns_by(ax_stream *stream, int64_t rows, int64_t cols, const F &f, typename F::A *out0,
                     typename F::A *out1)
{
    typedef typename F::A A;
    enum { LEAST = 64, WANTED = 512 }; /* rows of a strip; blocks in all */
    A *part = (A *)ax_cuda_of(stream)->scratch;
    int64_t across = ax_ceil_div(cols, WARP * N),
            most = AX_CUDA_SCRATCH / (int64_t)sizeof(A) / F::K / ax_max(cols, 1);
    AX_CHECK(most > 0, AX_ERR_USAGE, "cuda: %lld columns are too many to be summed at once", (long long)cols);
    int64_t strips = ax_min(ax_min(ax_ceil_div(rows, LEAST), ax_ceil_div(WANTED, ax_max(across, 1))), most);
    if (!rows || !cols)
        return AX_OK;
    int64_t strip = ax_ceil_div(rows, strips);
    strips = ax_ceil_div(rows, strip);
    AX_TRY(run(stream, strip_kernel<N, F>, dim3((unsigned)across, (unsigned)strips), BLOCK, 0, f, rows, cols,
               strip, part));
    return run(stream, add_strips<A>, dim3((unsigned)ax_ceil_div(cols, BLOCK), F::K), BLOCK, 0, part, strips,
               F::K, cols, out0, out1);
}

template <class T, class F>
ax_status columns(ax_stream *stream, int64_t rows, int64_t cols, int64_t ld, bool wide, const F &f,
                  void *out0, void *out1)
{
    typedef accum_t<T> A;
    const int N = width<T>::value / 2; /* 8 bytes: two warps' worth of sums fit shared memory */
    if (wide && cols % N == 0 && ld % N == 0)
        return columns_by<N>(stream, rows, cols, f, (A *)out0, (A *)out1);
    return columns_by<1>(stream, rows, cols, f, (A *)out0, (A *)out1);
}

} // namespace

ax_status ax_cuda_norm_stats(ax_stream *stream, const void *args)
{
    const ax_norm_stats_args *a = (const ax_norm_stats_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return by_rows(stream, stats_kernel<T>, a->rows, stats<T>{*a});
    });
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
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return by_rows(stream, apply_kernel<T>, a->rows, applied<T>{*a, alike({a->x, a->y})});
    });
}

ax_status ax_cuda_norm_grad_stats(ax_stream *stream, const void *args)
{
    const ax_norm_grad_stats_args *a = (const ax_norm_grad_stats_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return by_rows(stream, grad_stats_kernel<T>, a->rows, grad_stats<T>{*a, alike({a->x, a->dy})});
    });
}

/* The gradients of the weights first, because dx may be dy. */
ax_status ax_cuda_norm_grad(ax_stream *stream, const void *args)
{
    const ax_norm_grad_args *a = (const ax_norm_grad_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        if (a->dweight || a->dbias)
            AX_TRY(columns<T>(stream, a->rows, a->cols, a->cols, aligned({a->x, a->dy}), weight_grads<T>{*a},
                              a->dweight, a->dbias));
        return by_rows(stream, grad_kernel<T>, a->rows, grad<T>{*a, alike({a->x, a->dy, a->dx})});
    });
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
