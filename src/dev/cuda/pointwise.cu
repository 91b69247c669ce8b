/* Elementwise kernels, and sums over all elements. */
#include "dev/cuda/kernels.cuh"

#include "axonn/philox.h"

namespace
{

template <class T> struct bias_add {
    typedef accum_t<T> A;
    const void *x, *bias;
    void *y;
    int64_t cols, ld;
    template <int N> __device__ void run(int64_t i) const
    {
        const int64_t r = i / cols, c = i - r * cols, at = r * ld + c;
        pack<A, N> v = read<T, A, N>(x, at), b = read<A, A, N>(bias, c);
#pragma unroll
        for (int i = 0; i < N; i++)
            v.v[i] += b.v[i];
        write<T, A, N>(y, at, v);
    }
};

/* The value of an activation and its derivative at x. For each FUNCTION of AX_ACTIVATIONS, FUNCTION_at<T>(x)
 * returns this struct, as exactly as results of type T need. */
template <class T> struct point {
    accum_t<T> value, slope;
};

/* 0.5(1 + tanh u) is the logistic function σ(2u). Both σ and 1 - σ are computed without a subtraction, so
 * that nothing cancels. */
template <class T> __device__ inline point<T> gelu_tanh_at(accum_t<T> x)
{
    typedef accum_t<T> A;
    const A c = (A)0.7978845608028654, cubic = (A)0.044715; /* sqrt(2/pi) */
    A u = c * x * (1 + cubic * x * x), e = exponential_for<T>(-2 * (u < 0 ? -u : u));
    A most = inverse_for<T>(1 + e);
    A above = u < 0 ? e * most : most, below = u < 0 ? most : e * most;
    A curve = x * above * below; /* 0 long before x² overflows; tested, as 0 times infinity is NaN */
    return {x * above, above + (curve != 0 ? curve * 2 * c * (1 + 3 * cubic * x * x) : 0)};
}

template <class T> __device__ inline point<T> gelu_exact_at(accum_t<T> x)
{
    typedef accum_t<T> A;
    A above = (A)0.5 * erf_complement(-x * (A)0.7071067811865476), square = (A)-0.5 * x * x;
    return {x * above, above + x * (A)0.3989422804014327 * exponential_for<T>(square)}; /* 1/sqrt(2 pi) */
}

template <class T> __device__ inline point<T> relu_at(accum_t<T> x)
{
    return {x < 0 ? (accum_t<T>)0 : x, (accum_t<T>)(x > 0)};
}

template <class T> __device__ inline point<T> tanh_at(accum_t<T> x)
{
    accum_t<T> e = exponential_for<T>(-2 * (x < 0 ? -x : x)), share = inverse_for<T>(1 + e);
    return {hyperbolic_tangent(x), 4 * e * share * share};
}

template <class T> __device__ inline point<T> silu_at(accum_t<T> x)
{
    accum_t<T> e = exponential_for<T>(x < 0 ? x : -x), most = inverse_for<T>(1 + e),
               above = x < 0 ? e * most : most;
    return {x * above, above + x * (e * most) * most};
}

/* Values and slopes of the activation `kind` at N numbers. `kind` is looked up once for all N. The compiler
 * removes results that a kernel does not use. */
template <class T, int N> struct points {
    pack<accum_t<T>, N> value, slope;
    __device__ points(ax_activation kind, const pack<accum_t<T>, N> &x) : value{}, slope{}
    {
        switch (kind) {
#define AX_AT(k, function)                                                                                   \
    case k:                                                                                                  \
        for (int i = 0; i < N; i++) {                                                                        \
            point<T> p = function##_at<T>(x.v[i]);                                                           \
            value.v[i] = p.value, slope.v[i] = p.slope;                                                      \
        }                                                                                                    \
        break;
            AX_ACTIVATIONS(AX_AT)
#undef AX_AT
        default:
            break;
        }
    }
};

template <class T> struct activation {
    typedef accum_t<T> A;
    const void *x;
    void *y;
    ax_activation kind;
    template <int N> __device__ void run(int64_t at) const
    {
        write<T, A, N>(y, at, points<T, N>(kind, read<T, A, N>(x, at)).value);
    }
};

template <class T> struct activation_grad {
    typedef accum_t<T> A;
    const void *x, *dy;
    void *dx;
    ax_activation kind;
    template <int N> __device__ void run(int64_t at) const
    {
        const points<T, N> f(kind, read<T, A, N>(x, at));
        pack<A, N> d = read<T, A, N>(dy, at);
#pragma unroll
        for (int i = 0; i < N; i++)
            d.v[i] *= f.slope.v[i];
        write<T, A, N>(dx, at, d);
    }
};

/* Returns where element i of a dense array with `cols` columns lies in an array of the same shape whose rows
 * are `ld` elements apart. */
__device__ inline int64_t in_rows(int64_t i, int64_t cols, int64_t ld)
{
    return ld == cols ? i : i + i / cols * (ld - cols);
}

/* Returns the index of the factor of the row of element i of a dense array; 0 without factors. */
template <class ARGS> __device__ inline int32_t index_of(const ARGS &a, int64_t i)
{
    return a.scale ? a.index[i / a.cols] : 0;
}

template <class T> struct glu {
    typedef accum_t<T> A;
    ax_glu_args a;
    template <int N> __device__ void run(int64_t i) const
    {
        const int64_t at = in_rows(i, a.cols, a.ld);
        const int32_t index = index_of(a, i);
        if (index < 0)
            return;
        const A scale = a.scale ? ((const A *)a.scale)[index] : (A)1;
        const points<T, N> f(a.kind, read<T, A, N>(a.gate, at));
        pack<A, N> v = read<T, A, N>(a.up, at);
#pragma unroll
        for (int j = 0; j < N; j++)
            v.v[j] = v.v[j] * f.value.v[j] * scale;
        write<T, A, N>(a.y, i, v);
    }
};

/* dgate and dup may be the same arrays as inputs, so both are written after the same elements of all inputs
 * were read. */
template <class T> struct glu_grad {
    typedef accum_t<T> A;
    ax_glu_grad_args a;
    template <int N> __device__ void run(int64_t i) const
    {
        const int64_t at = in_rows(i, a.cols, a.ld);
        pack<A, N> g = read<T, A, N>(a.gate, at), v = read<T, A, N>(a.up, at), d = read<T, A, N>(a.dy, i);
        const points<T, N> f(a.kind, g);
#pragma unroll
        for (int j = 0; j < N; j++) {
            g.v[j] = d.v[j] * v.v[j] * f.slope.v[j];
            v.v[j] = d.v[j] * f.value.v[j];
        }
        write<T, A, N>(a.dgate, at, g);
        write<T, A, N>(a.dup, at, v);
    }
};

/* The gradient of a row with a factor; `sum` becomes the part of the gradient of the factor from this
 * thread's elements. */
template <class T> struct scaled_row {
    typedef accum_t<T> A;
    ax_glu_grad_args a;
    int64_t r;
    A scale, sum;
    template <int N> __device__ void run(int64_t c)
    {
        const int64_t at = r * a.ld + c, i = r * a.cols + c;
        pack<A, N> g = read<T, A, N>(a.gate, at), v = read<T, A, N>(a.up, at), d = read<T, A, N>(a.dy, i), y;
        const points<T, N> f(a.kind, g);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const A product = v.v[j] * f.value.v[j], dy = d.v[j] * scale;
            sum += d.v[j] * product;
            y.v[j] = product * scale;
            g.v[j] = dy * v.v[j] * f.slope.v[j];
            v.v[j] = dy * f.value.v[j];
        }
        if (a.y)
            write<T, A, N>(a.y, i, y);
        write<T, A, N>(a.dgate, at, g);
        write<T, A, N>(a.dup, at, v);
    }
};
template <class T> struct scaled_call {
    ax_glu_grad_args a;
    bool wide; /* 16 bytes at a time */
};
template <class T> __global__ void scaled_glu_back(scaled_call<T> s)
{
    typedef accum_t<T> A;
    const ax_glu_grad_args &a = s.a;
    const int64_t r = blockIdx.x;
    if (a.index[r] < 0)
        return;
    scaled_row<T> mine = {a, r, ((const A *)a.scale)[a.index[r]], (A)0};
    along_rows(s.wide, (const T *)a.gate + r * a.ld, a.cols, threadIdx.x, BLOCK, mine);
    const A sum = over_block<plus>(mine.sum, (A)0);
    if (threadIdx.x == 0 && a.dscale)
        ((A *)a.dscale)[a.index[r]] = sum;
}

template <class T> struct add {
    typedef accum_t<T> A;
    const void *a, *b;
    void *y;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> v = read<T, A, N>(a, at), w = read<T, A, N>(b, at);
#pragma unroll
        for (int i = 0; i < N; i++)
            v.v[i] += w.v[i];
        write<T, A, N>(y, at, v);
    }
};

/* Sets each row of c to the bias (to zeros if the bias is NULL), or adds the bias to each row if
 * `accumulate`. */
template <class C, class A> struct fill_rows {
    void *c;
    const A *bias; /* or NULL */
    int64_t cols, ld;
    bool accumulate;
    template <int N> __device__ void run(int64_t at) const
    {
        for (int64_t i = at; i < at + N; i++) {
            C *to = (C *)c + i / cols * ld + i % cols;
            A old = accumulate ? widen<A>(*to) : (A)0;
            *to = narrow<C, A>::of(old + (bias ? bias[i % cols] : (A)0));
        }
    }
};

/* The kernel dropout. Four elements with consecutive global indices share a Philox block. A row may begin in
 * the middle of such a block, so each thread computes all blocks that its N elements need. */
template <class T> struct dropout {
    typedef accum_t<T> A;
    ax_dropout_args a;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> v = read<T, A, N>(a.x, at);
        uint64_t step = a.now ? a.now->step : 0;
        int64_t first_row = a.now ? a.now->first_row : 0;
        int64_t first = (first_row + a.row0 + at / a.cols) * a.global_cols + a.col0 + at % a.cols;
        uint64_t block = UINT64_MAX;
        uint32_t words[4] = {};
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint64_t index = (uint64_t)first + (uint64_t)i;
            if (index / 4 != block)
                ax_philox_words(a.key, step, block = index / 4, words);
            uint64_t which = index % 4;
            uint32_t word = which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3];
            bool kept = (double)((float)(word >> 8) * 0x1p-24f) >= a.p;
            v.v[i] = kept ? (A)(v.v[i] / (A)(1 - a.p)) : (A)0;
        }
        write<T, A, N>(a.y, at, v);
    }
};

template <class T> struct scale {
    typedef accum_t<T> A;
    void *x;
    A factor;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> v = read<T, A, N>(x, at);
#pragma unroll
        for (int i = 0; i < N; i++)
            v.v[i] *= factor;
        write<T, A, N>(x, at, v);
    }
};

template <class X, class Y> struct convert {
    typedef accum_t<X> A;
    const void *x;
    void *y;
    template <int N> __device__ void run(int64_t at) const { write<Y, A, N>(y, at, read<X, A, N>(x, at)); }
};

/* The kernel fill: stores the bits of one value in every element. */
template <class U> struct fill {
    U bits;
    void *y;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<U, N> v;
#pragma unroll
        for (int i = 0; i < N; i++)
            v.v[i] = bits;
        store<U, N>(y, at, v);
    }
};

template <class U> ax_status fill_with(ax_stream *stream, const ax_fill_args *a)
{
    union {
        U bits;
        unsigned char bytes[8];
    } element;
    ax_store(a->dtype, element.bytes, 0, a->value);
    return each<width<U>::value>(stream, a->n, aligned({a->y}), fill<U>{element.bits, a->y});
}

/* ---- sums over elements -------------------------------------------------------------------------- */

/* Each thread block sums one chunk of elements. The chunks do not depend on the GPU, so the order of
 * additions does not either. There are at most MOST_CHUNKS chunks: of at least CHUNK elements in kernel
 * squared_error (chunk_of), of AX_SUMSQ_CHUNK elements in kernel sumsq. */
enum { CHUNK = 1 << 16, MOST_CHUNKS = AX_CUDA_SCRATCH / sizeof(double) };

template <class T> struct add_squares {
    const T *x;
    double *sum;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<double, N> v = read<T, double, N>(x, at);
#pragma unroll
        for (int i = 0; i < N; i++)
            *sum += v.v[i] * v.v[i];
    }
};

/* First of the two launches of the kernel sumsq: each thread block sums one chunk of an array. */
template <class T> __global__ void sumsq_kernel(ax_sumsq_args a, double *part)
{
    __shared__ int64_t which;
    const int64_t at = a.array[0].first + blockIdx.x;
    if (threadIdx.x == 0)
        which = entry_at(a.array, a.arrays, at);
    __syncthreads();
    const ax_sumsq_array s = a.array[which];
    const int64_t first = (at - s.first) * AX_SUMSQ_CHUNK, left = s.n - first;
    const T *x = (const T *)s.x + first;
    double sum = 0;
    along_row(x, left < AX_SUMSQ_CHUNK ? left : (int64_t)AX_SUMSQ_CHUNK, threadIdx.x, blockDim.x,
              add_squares<T>{x, &sum});
    sum = over_block<plus>(sum, 0.0);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

/* Second launch of the kernel sumsq: one thread block per array adds up the sums of the array's chunks. */
__global__ void sumsq_of_chunks(ax_sumsq_args a, const double *part)
{
    const ax_sumsq_array s = a.array[blockIdx.x];
    const int64_t chunks = (s.n + AX_SUMSQ_CHUNK - 1) / AX_SUMSQ_CHUNK;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < chunks; i += blockDim.x)
        sum += part[s.first - a.array[0].first + i];
    sum = over_block<plus>(sum, 0.0);
    if (threadIdx.x == 0)
        a.out[s.to] = sum;
}

template <class T> struct add_squared_errors {
    typedef accum_t<T> A;
    const T *x, *target;
    T *dx;
    A scale;
    double *sum;
    template <int N> __device__ void run(int64_t at) const
    {
        pack<A, N> v = read<T, A, N>(x, at), t = read<T, A, N>(target, at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            A error = v.v[i] - t.v[i];
            *sum += (double)error * (double)error;
            v.v[i] = scale * error;
        }
        if (dx)
            write<T, A, N>(dx, at, v);
    }
};

template <class T> struct squared_error_call {
    ax_squared_error_args a;
};
template <class T>
__global__ void squared_error_kernel(squared_error_call<T> s, bool wide, int64_t chunk, double *part)
{
    int64_t first = blockIdx.x * chunk, count = s.a.n - first < chunk ? s.a.n - first : chunk;
    const T *x = (const T *)s.a.x + first;
    double sum = 0, scale = s.a.scale * (s.a.now ? s.a.now->loss_scale : 1);
    along_rows(wide, x, count, threadIdx.x, blockDim.x,
               add_squared_errors<T>{x, (const T *)s.a.target + first, s.a.dx ? (T *)s.a.dx + first : (T *)0,
                                     (accum_t<T>)scale, &sum});
    sum = over_block<plus>(sum, 0.0);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

/* Adds the n numbers in `part` to *out. */
__global__ void sum_parts(const double *part, int64_t n, double *out)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += part[i];
    sum = over_block<plus>(sum, 0.0);
    if (threadIdx.x == 0)
        out[0] += sum;
}

} // namespace

ax_status ax_cuda_bias_add(ax_stream *stream, const void *args)
{
    const ax_bias_add_args *a = (const ax_bias_add_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<accum_t<T>>::value; /* the bias has the widest elements, so it limits the number
                                                   per 16 bytes */
        bool wide = a->cols % N == 0 && a->ld % N == 0 && aligned({a->x, a->bias, a->y});
        return each<N>(stream, a->rows * a->cols, wide, bias_add<T>{a->x, a->bias, a->y, a->cols, a->ld});
    });
}

ax_status ax_cuda_spread_rows(ax_stream *stream, const ax_gemm_args *g)
{
    return by_activation(g->c_dtype, [&](auto c) {
        return by_accum(ax_dtype_accum(g->dtype), [&](auto t) {
            typedef decltype(c) C;
            typedef decltype(t) A;
            return each<1>(stream, g->m * g->n, false,
                           fill_rows<C, A>{g->c, (const A *)g->bias, g->n, g->ldc, g->accumulate});
        });
    });
}

ax_status ax_cuda_activation(ax_stream *stream, const void *args)
{
    const ax_activation_args *a = (const ax_activation_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return each<width<T>::value>(stream, a->n, aligned({a->x, a->y}), activation<T>{a->x, a->y, a->kind});
    });
}

ax_status ax_cuda_activation_grad(ax_stream *stream, const void *args)
{
    const ax_activation_grad_args *a = (const ax_activation_grad_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return each<width<T>::value>(stream, a->n, aligned({a->x, a->dy, a->dx}),
                                     activation_grad<T>{a->x, a->dy, a->dx, a->kind});
    });
}

/* Returns true if a gated unit may handle N adjacent elements at a time: the arrays are dense, or each N
 * elements lie in one row. */
template <class ARGS> static bool whole_packs(const ARGS *a, int N)
{
    return a->ld == a->cols || (a->ld % N == 0 && a->cols % N == 0);
}

ax_status ax_cuda_glu(ax_stream *stream, const void *args)
{
    const ax_glu_args *a = (const ax_glu_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<T>::value;
        bool wide = whole_packs(a, N) && (!a->scale || a->cols % N == 0) && aligned({a->gate, a->up, a->y});
        return each<N>(stream, a->rows * a->cols, wide, glu<T>{*a});
    });
}

ax_status ax_cuda_glu_grad(ax_stream *stream, const void *args)
{
    const ax_glu_grad_args *a = (const ax_glu_grad_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<T>::value;
        bool wide = whole_packs(a, N) && aligned({a->gate, a->up, a->dy, a->dgate, a->dup});
        if (a->scale) {
            wide = a->ld % N == 0 && a->cols % N == 0 && wide && aligned({a->y});
            return run(stream, scaled_glu_back<T>, (unsigned)a->rows, BLOCK, 0, scaled_call<T>{*a, wide});
        }
        return each<N>(stream, a->rows * a->cols, wide, glu_grad<T>{*a});
    });
}

ax_status ax_cuda_add(ax_stream *stream, const void *args)
{
    const ax_add_args *a = (const ax_add_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return each<width<T>::value>(stream, a->n, aligned({a->a, a->b, a->y}), add<T>{a->a, a->b, a->y});
    });
}

ax_status ax_cuda_dropout(ax_stream *stream, const void *args)
{
    const ax_dropout_args *a = (const ax_dropout_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<T>::value;
        return each<N>(stream, a->rows * a->cols, a->cols % N == 0 && aligned({a->x, a->y}), dropout<T>{*a});
    });
}

ax_status ax_cuda_scale(ax_stream *stream, const void *args)
{
    const ax_scale_args *a = (const ax_scale_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return each<width<T>::value>(stream, a->n, aligned({a->x}), scale<T>{a->x, (accum_t<T>)a->factor});
    });
}

ax_status ax_cuda_convert(ax_stream *stream, const void *args)
{
    const ax_convert_args *a = (const ax_convert_args *)args;
    return by_activation(a->x_dtype, [&](auto from) {
        return by_activation(a->y_dtype, [&](auto to) {
            typedef decltype(from) X;
            typedef decltype(to) Y;
            const int N = 16 / (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));
            return each<N>(stream, a->n, aligned({a->x, a->y}), convert<X, Y>{a->x, a->y});
        });
    });
}

ax_status ax_cuda_fill(ax_stream *stream, const void *args)
{
    const ax_fill_args *a = (const ax_fill_args *)args;
    switch (ax_dtype_size(a->dtype)) {
    case 8:
        return fill_with<uint64_t>(stream, a);
    case 4:
        return fill_with<uint32_t>(stream, a);
    case 2:
        return fill_with<uint16_t>(stream, a);
    default:
        return fill_with<uint8_t>(stream, a);
    }
}

/* Returns the number of elements in a chunk of an array of n elements, for kernel squared_error. */
static int64_t chunk_of(int64_t n) { return ax_max(CHUNK, ax_ceil_div(n, MOST_CHUNKS)); }

ax_status ax_cuda_sumsq(ax_stream *stream, const void *args)
{
    const ax_sumsq_args *a = (const ax_sumsq_args *)args;
    double *part = (double *)ax_cuda_of(stream)->scratch;
    if (!a->arrays)
        return AX_OK;
    const ax_sumsq_array *last = &a->table[a->arrays - 1];
    const int64_t chunks = last->first - a->table[0].first + ax_ceil_div(last->n, AX_SUMSQ_CHUNK);
    AX_CHECK(chunks <= MOST_CHUNKS, AX_ERR_USAGE,
             "cuda: the norm of this rank's parameters or gradients needs %lld partial sums, one for each %d "
             "elements, "
             "which do not fit %d MiB of scratch memory: divide the model among more ranks",
             (long long)chunks, AX_SUMSQ_CHUNK, AX_CUDA_SCRATCH >> 20);
    AX_TRY(by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return run(stream, sumsq_kernel<T>, (unsigned)chunks, BLOCK, 0, *a, part);
    }));
    return run(stream, sumsq_of_chunks, (unsigned)a->arrays, BLOCK, 0, *a, part);
}

ax_status ax_cuda_squared_error(ax_stream *stream, const void *args)
{
    const ax_squared_error_args *a = (const ax_squared_error_args *)args;
    double *part = (double *)ax_cuda_of(stream)->scratch;
    int64_t chunk = chunk_of(a->n), chunks = ax_ceil_div(a->n, chunk);
    bool wide = same_alignment({a->x, a->target, a->dx ? a->dx : a->x});
    AX_TRY(by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return run(stream, squared_error_kernel<T>, (unsigned)chunks, BLOCK, 0, squared_error_call<T>{*a},
                   wide, chunk, part);
    }));
    return run(stream, sum_parts, 1, BLOCK, 0, part, chunks, a->total);
}
