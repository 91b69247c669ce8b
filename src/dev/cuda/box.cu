/* Kernels on rows and boxes of larger arrays: embedding lookup and its gradient, strided copies, random
 * initial weights. */
#include "dev/cuda/kernels.cuh"

#include "axonn/philox.h"

namespace
{

/* ---- embedding ----------------------------------------------------------------------------------- */

/* Returns the row of `id` in this rank's part of the table, or -1 if another rank has it. */
__device__ inline int64_t table_row(int32_t id, int64_t first, int64_t count)
{
    int64_t row = id - first;
    return row >= 0 && row < count ? row : -1;
}

template <class T> struct embedding {
    typedef accum_t<T> A;
    ax_embedding_args a;
    template <int N> __device__ void run(int64_t at) const
    {
        int64_t r = at / a.cols, row = table_row(a.ids[r], a.first, a.count);
        pack<T, N> v = {};
        if (row >= 0)
            v = load<T, N>(a.table, row * a.cols + at % a.cols);
        if (a.accumulate) {
            pack<A, N> old = read<T, A, N>(a.y, at);
#pragma unroll
            for (int i = 0; i < N; i++)
                old.v[i] += widen<A>(v.v[i]);
            write<T, A, N>(a.y, at, old);
        } else {
            store<T, N>(a.y, at, v);
        }
    }
};

/* The gradient of the embedding adds the rows of dy that have the same id, in an order that depends on the
 * ids only. First the rows of dy are sorted by id, by a stable radix sort in which a thread block handles
 * SORT_BLOCK rows. Then the rows of each run of equal ids are added up. A frequent token has a long run, so a
 * thread block adds only RUN sorted rows, in one strip of columns. An id whose row of the table another rank
 * has is replaced by `count`: such ids are sorted to the end, and skipped. */
enum { DIGIT = 6, DIGITS = 1 << DIGIT, SORT_BLOCK = 1024, SORT_THREADS = DIGITS };

/* A row of dy: `id` is its token's row in dtable, or `count`; `row` is its index, counted from row0. */
typedef struct entry {
    int32_t id, row;
} entry;

struct entries_of {
    const int32_t *ids;
    entry *out;
    int64_t first, count, row0;
    template <int N> __device__ void run(int64_t at) const
    {
        for (int64_t i = at; i < at + N; i++) {
            int64_t row = table_row(ids[row0 + i], first, count);
            out[i].id = (int32_t)(row < 0 ? count : row);
            out[i].row = (int32_t)i;
        }
    }
};

/* First step of a pass of the radix sort: sets starts[digit][block] to the number of entries of the thread
 * block with this digit (DIGIT bits, from bit `shift` on) in their id. */
__global__ void count_digits(const entry *in, int n, int shift, int *starts)
{
    __shared__ int digit[SORT_BLOCK];
    int first = blockIdx.x * SORT_BLOCK, count = n - first < SORT_BLOCK ? n - first : SORT_BLOCK, mine = 0;
    for (int i = threadIdx.x; i < count; i += SORT_THREADS)
        digit[i] = in[first + i].id >> shift & (DIGITS - 1);
    __syncthreads();
    for (int i = 0; i < count; i++)
        mine += digit[i] == (int)threadIdx.x;
    starts[threadIdx.x * gridDim.x + blockIdx.x] = mine;
}

/* Second step of a pass of the radix sort: replaces values by their exclusive prefix sum, which turns counts
 * into positions. Runs as one thread block. */
__global__ void scan(int *values, int n)
{
    __shared__ int sums[BLOCK];
    int each = (n + BLOCK - 1) / BLOCK, first = threadIdx.x * each, end = first + each < n ? first + each : n,
        sum = 0;
    for (int i = first; i < end; i++)
        sum += values[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    int before = 0;
    for (int t = 0; t < (int)threadIdx.x; t++)
        before += sums[t];
    for (int i = first; i < end; i++) {
        int value = values[i];
        values[i] = before;
        before += value;
    }
}

/* Last step of a pass of the radix sort: moves entries to their sorted positions. Thread d moves the entries
 * with digit d, in order. */
__global__ void move_rows(const entry *in, int n, int shift, const int *starts, entry *out)
{
    __shared__ entry own[SORT_BLOCK];
    int first = blockIdx.x * SORT_BLOCK, count = n - first < SORT_BLOCK ? n - first : SORT_BLOCK;
    for (int i = threadIdx.x; i < count; i += SORT_THREADS)
        own[i] = in[first + i];
    __syncthreads();
    int to = starts[threadIdx.x * gridDim.x + blockIdx.x];
    for (int i = 0; i < count; i++)
        if ((own[i].id >> shift & (DIGITS - 1)) == (int)threadIdx.x)
            out[to++] = own[i];
}

/* The sums over runs of equal ids, in type A, added to dtable, whose elements have type D. Piece p is the RUN
 * sorted entries from p·RUN on. Thread block (p, s) adds
 * up the rows of piece p in the columns of strip s. The sum of a run that begins in the piece, as far as the
 * piece has it, is added to dtable. If the piece begins inside a run, the sum of its part of that run is
 * stored in head[p]. */
enum { RUN = 32 };
template <class T, class D> struct add_runs_call {
    typedef accum_t<T> A;
    const T *dy;
    D *dtable;
    A *head; /* [pieces, cols] */
    const entry *sorted;
    int64_t cols;
    int n, count;
};
template <int N, class T, class D> __global__ void add_pieces(add_runs_call<T, D> s)
{
    typedef accum_t<T> A;
    __shared__ entry own[RUN];
    const int first = blockIdx.x * RUN, size = s.n - first < RUN ? s.n - first : RUN;
    const int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    for (int i = threadIdx.x; i < size; i += blockDim.x)
        own[i] = s.sorted[first + i];
    __syncthreads();
    bool inside = first && s.sorted[first - 1].id == own[0].id;
    for (int i = 0; i < size && own[i].id != s.count && c < s.cols; inside = false) {
        const int id = own[i].id;
        int end = i + 1;
        while (end < size && own[end].id == id)
            end++;
        pack<A, N> sum = {};
        if (!inside)
            sum = read<D, A, N>(s.dtable, id * s.cols + c);
#pragma unroll 4
        for (; i < end; i++) {
            const pack<A, N> v = read<T, A, N>(s.dy, own[i].row * s.cols + c);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum.v[j] += v.v[j];
        }
        if (inside)
            store<A, N>(s.head, blockIdx.x * s.cols + c, sum);
        else
            write<D, A, N>(s.dtable, id * s.cols + c, sum);
    }
}

/* If a run that began in piece p-1 goes on in piece p, thread block (p-1, s) adds the run's sums in head[p],
 * head[p+1] … to dtable, in the columns of strip s. */
template <int N, class T, class D> __global__ void add_heads(add_runs_call<T, D> s)
{
    typedef accum_t<T> A;
    const int p = blockIdx.x + 1, id = s.sorted[p * RUN].id;
    const int64_t c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    const bool inside = s.sorted[p * RUN - 1].id == id,
               began_before = p > 1 && s.sorted[p * RUN - RUN - 1].id == id;
    if (!inside || began_before || id == s.count || c >= s.cols)
        return;
    int last = p, most = (s.n - 1) / RUN; /* last: the last piece that begins inside the run */
    while (last < most) {
        const int middle = (last + most + 1) / 2;
        if (s.sorted[middle * RUN].id == id)
            last = middle;
        else
            most = middle - 1;
    }
    pack<A, N> sum = read<D, A, N>(s.dtable, id * s.cols + c);
#pragma unroll 8
    for (int q = p; q <= last; q++) {
        const pack<A, N> v = load<A, N>(s.head, q * s.cols + c);
#pragma unroll
        for (int j = 0; j < N; j++)
            sum.v[j] += v.v[j];
    }
    write<D, A, N>(s.dtable, id * s.cols + c, sum);
}

template <int N, class T, class D> ax_status add_runs(ax_stream *stream, const add_runs_call<T, D> &s)
{
    const unsigned pieces = (unsigned)ax_ceil_div(s.n, RUN),
                   strips = (unsigned)ax_ceil_div(s.cols, BLOCK * N);
    AX_TRY(run(stream, add_pieces<N, T, D>, dim3(pieces, strips), BLOCK, 0, s));
    return run(stream, add_heads<N, T, D>, dim3(pieces - 1, strips), BLOCK, 0, s);
}

ax_status sort_by_id(ax_stream *stream, entry *from, entry *to, int *starts, int n, int64_t most,
                     entry **sorted)
{
    unsigned blocks = (unsigned)ax_ceil_div(n, SORT_BLOCK);
    for (int shift = 0; most >> shift; shift += DIGIT) {
        AX_TRY(run(stream, count_digits, blocks, SORT_THREADS, 0, from, n, shift, starts));
        AX_TRY(run(stream, scan, 1, BLOCK, 0, starts, (int)(blocks * DIGITS)));
        AX_TRY(run(stream, move_rows, blocks, SORT_THREADS, 0, from, n, shift, starts, to));
        entry *other = from;
        from = to;
        to = other;
    }
    *sorted = from;
    return AX_OK;
}

/* Adds the rows row0 … row0+n-1 of dy to dtable. */
template <class T, class D>
ax_status embedding_grad(ax_stream *stream, const ax_embedding_grad_args *a, int64_t row0, int n,
                         int64_t room)
{
    typedef accum_t<T> A;
    A *head = (A *)ax_cuda_of(stream)->scratch;
    entry *first = (entry *)(head + room / RUN * a->cols), *second = first + room, *sorted;
    int *starts = (int *)(second + room);
    const T *dy = (const T *)a->dy + row0 * a->cols;
    const int N = width<A>::value;
    AX_TRY(each<1>(stream, n, false, entries_of{a->ids, first, a->first, a->count, row0}));
    AX_TRY(sort_by_id(stream, first, second, starts, n, a->count, &sorted));
    add_runs_call<T, D> s = {dy, (D *)a->dtable, head, sorted, a->cols, n, (int)a->count};
    return a->cols % N == 0 && aligned({dy, a->dtable}) ? add_runs<N>(stream, s) : add_runs<1>(stream, s);
}

/* Returns how many rows of dy are handled at a time: the largest multiple of SORT_BLOCK whose two lists of
 * entries, counts of digits and sums of pieces fit AX_CUDA_SCRATCH bytes, but at most 2^20; 0 if there are
 * too many columns. */
int64_t rows_at_a_time(int64_t cols, ax_dtype accum)
{
    const int64_t most = 1 << 20, bytes = SORT_BLOCK * 2 * (int64_t)sizeof(entry) +
                                          DIGITS * (int64_t)sizeof(int) +
                                          SORT_BLOCK / RUN * cols * (int64_t)ax_dtype_size(accum);
    return ax_min(most, AX_CUDA_SCRATCH / bytes * SORT_BLOCK);
}

/* ---- boxes --------------------------------------------------------------------------------------- */

/* The most elements that one launch copies, because `divisor` takes numbers below 2^31. Tests define
 * AXONN_BOX_MOST to be less, so that even small boxes are copied in parts. */
#ifndef AXONN_BOX_MOST
#define AXONN_BOX_MOST INT32_MAX
#endif

/* The indices of an element of a box. `in` returns the element's offset in an array with these strides. */
struct index4 {
    uint32_t i, j, k, l;
    __device__ int64_t in(const int64_t stride[4]) const
    {
        return i * stride[0] + j * stride[1] + k * stride[2] + l * stride[3];
    }
};

/* The extents of the last three dims of a box of at most AXONN_BOX_MOST elements. index_of returns the
 * indices of element number `at`. */
struct extents {
    divisor j, k, l;
    extents(const int64_t n[4]) : j(n[1]), k(n[2]), l(n[3]) {}
    __device__ index4 index_of(int64_t at) const
    {
        const uint32_t row = l.quotient((uint32_t)at), plane = k.quotient(row), i = j.quotient(plane);
        return {i, plane - i * j.by, row - plane * k.by, (uint32_t)at - row * l.by};
    }
};

template <class U> struct copy_box {
    ax_copy_box_args a; /* extents and strides, counted in elements of type U */
    extents n;
    template <int N> __device__ void run(int64_t at) const
    {
        for (int64_t item = at; item < at + N; item++) {
            const index4 p = n.index_of(item);
            ((U *)a.y)[p.in(a.y_stride)] = ((const U *)a.x)[p.in(a.x_stride)];
        }
    }
};

template <class T> struct add_box {
    typedef accum_t<T> A;
    ax_copy_box_args a;
    extents n;
    template <int N> __device__ void run(int64_t at) const
    {
        for (int64_t item = at; item < at + N; item++) {
            const index4 p = n.index_of(item);
            T *y = (T *)a.y + p.in(a.y_stride);
            *y = narrow<T, A>::of(widen<A>(*y) + widen<A>(((const T *)a.x)[p.in(a.x_stride)]));
        }
    }
};

int64_t elements(const int64_t n[4]) { return n[0] * n[1] * n[2] * n[3]; }

/* Cuts a box in two, in the first dim whose extent is above 1. */
void halve(const ax_copy_box_args *a, ax_copy_box_args part[2])
{
    const int64_t size = (int64_t)ax_dtype_size(a->dtype);
    int d = 0;
    while (a->n[d] == 1)
        d++;
    part[0] = part[1] = *a;
    part[0].n[d] = a->n[d] / 2;
    part[1].n[d] = a->n[d] - part[0].n[d];
    part[1].x = (const char *)a->x + part[0].n[d] * a->x_stride[d] * size;
    part[1].y = (char *)a->y + part[0].n[d] * a->y_stride[d] * size;
}

/* Sets *out to the same copy as `a`, in elements of 16 bytes, which are copied faster. Returns false if the
 * rows of the box do not consist of aligned elements of 16 bytes. */
bool widened(const ax_copy_box_args *a, ax_copy_box_args *out)
{
    int64_t times = 16 / (int64_t)ax_dtype_size(a->dtype);
    *out = *a;
    if (a->x_stride[3] != 1 || a->y_stride[3] != 1 || a->n[3] % times || !aligned({a->x, a->y}))
        return false;
    out->n[3] = a->n[3] / times;
    for (int d = 0; d < 3; d++) {
        if (a->n[d] > 1 && (a->x_stride[d] % times || a->y_stride[d] % times))
            return false;
        out->x_stride[d] = a->x_stride[d] / times;
        out->y_stride[d] = a->y_stride[d] / times;
    }
    return true;
}

template <class U> ax_status copy_as(ax_stream *stream, const ax_copy_box_args *a)
{
    return each<1>(stream, elements(a->n), false, copy_box<U>{*a, a->n});
}

template <class T> struct init_normal {
    ax_init_normal_args a;
    template <int N> __device__ void run(int64_t at) const
    {
        for (int64_t item = at; item < at + N; item++) {
            int64_t k = item / a.n[3], j = k / a.n[2],
                    i = j / a.n[1]; /* numbers of the element's row, plane and cube in the box */
            int64_t row =
                ((a.lo[0] + i) * a.extent[1] + a.lo[1] + j % a.n[1]) * a.extent[2] + a.lo[2] + k % a.n[2];
            uint64_t index = (uint64_t)(row * a.extent[3] + a.lo[3] + item % a.n[3]), which = index % 4;
            float z[4];
            ax_philox_normals(a.key, index / 4, z);
            float mine = which == 0 ? z[0] : which == 1 ? z[1] : which == 2 ? z[2] : z[3];
            ((T *)a.y)[item] = narrow<T, double>::of(a.mean + a.std * (double)mine);
        }
    }
};

/* ---- pruned matrices ----------------------------------------------------------------------------- */

/* Calls f(c, at) for the kept elements of a row in columns lane, lane + WARP, … (ax_compress_args), where
 * `at` is the element's index among those that the row keeps. Returns how many the row keeps. */
template <class F>
__device__ inline int64_t each_kept(const uint64_t *bits, int64_t cols, int64_t row, int lane, F f)
{
    int64_t at = 0;
    const int64_t words = (cols + 63) / 64;
    for (int64_t w = 0; w < words; w++) {
        const uint64_t kept = bits[row * words + w];
        for (int b = lane; b < 64; b += WARP)
            if (kept >> b & 1)
                f(w * 64 + b, at + __popcll(kept & (((uint64_t)1 << b) - 1)));
        at += __popcll(kept);
    }
    return at;
}

/* The row of a warp. */
__device__ inline int64_t row_of_warp() { return ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / WARP; }

template <class T, class U> __global__ void compress(ax_compress_args a)
{
    typedef accum_t<U> A;
    const int64_t row = row_of_warp();
    const int lane = threadIdx.x % WARP;
    if (row >= a.rows)
        return;
    const T *x = (const T *)a.x + row * a.ld;
    U *y = (U *)a.y + (a.begin[row] - a.begin[0]);
    const int64_t kept = each_kept(a.bits, a.cols, row, lane, [&](int64_t c, int64_t at) {
        const A v = widen<A>(x[c]);
        y[at] = narrow<U, A>::of(a.accumulate ? widen<A>(y[at]) + v : v);
    });
    for (int64_t at = kept + lane; !a.accumulate && at < a.begin[row + 1] - a.begin[row]; at += WARP)
        y[at] = narrow<U, A>::of(0);
}

template <class T, class U> __global__ void expand(ax_expand_args a)
{
    typedef accum_t<T> A;
    const int64_t row = row_of_warp();
    const int lane = threadIdx.x % WARP;
    if (row >= a.rows)
        return;
    const int64_t before = a.begin[row] - a.begin[0] - a.first;
    const T *x = (const T *)a.x + before;
    U *y = (U *)a.y + row * a.cols;
    for (int64_t c = lane; a.whole && c < a.cols; c += WARP)
        if (!(a.bits[row * ((a.cols + 63) / 64) + c / 64] >> c % 64 & 1))
            y[c] = narrow<U, A>::of(0);
    each_kept(a.bits, a.cols, row, lane, [&](int64_t c, int64_t at) {
        if (before + at >= 0 && before + at < a.n)
            y[c] = narrow<U, A>::of(widen<A>(x[at]));
    });
}

/* Runs a kernel with a warp for each row. */
template <class Args> ax_status by_rows(ax_stream *stream, void (*kernel)(Args), const Args *a)
{
    return run(stream, kernel, dim3((unsigned)ax_ceil_div(a->rows, BLOCK / WARP)), dim3(BLOCK), 0, *a);
}

} // namespace

ax_status ax_cuda_compress(ax_stream *stream, const void *args)
{
    const ax_compress_args *a = (const ax_compress_args *)args;
    if (a->x_dtype == AX_F64)
        return by_rows(stream, compress<double, double>, a);
    return by_activation(a->y_dtype,
                         [&](auto u) { return by_rows(stream, compress<float, decltype(u)>, a); });
}

ax_status ax_cuda_expand(ax_stream *stream, const void *args)
{
    const ax_expand_args *a = (const ax_expand_args *)args;
    if (a->x_dtype == AX_F64)
        return by_rows(stream, expand<double, double>, a);
    return by_activation(a->y_dtype, [&](auto u) { return by_rows(stream, expand<float, decltype(u)>, a); });
}

ax_status ax_cuda_embedding(ax_stream *stream, const void *args)
{
    const ax_embedding_args *a = (const ax_embedding_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        const int N = width<T>::value;
        return each<N>(stream, a->rows * a->cols, a->cols % N == 0 && aligned({a->table, a->y}),
                       embedding<T>{*a});
    });
}

ax_status ax_cuda_embedding_grad(ax_stream *stream, const void *args)
{
    const ax_embedding_grad_args *a = (const ax_embedding_grad_args *)args;
    const int64_t room = rows_at_a_time(a->cols, ax_dtype_accum(a->dtype));
    AX_CHECK(
        room > 0, AX_ERR_USAGE,
        "cuda: the rows of the embedding are too wide, %lld elements on this rank: sums of %d rows of its "
        "gradient must "
        "fit %d MiB of scratch memory; use a smaller model.hidden, or divide it among more ranks (grid.y)",
        (long long)a->cols, SORT_BLOCK / RUN, AX_CUDA_SCRATCH >> 20);
    AX_CHECK(a->count < INT32_MAX, AX_ERR_USAGE,
             "cuda: this rank's part of an embedding table has %lld rows, but its gradient supports at most "
             "2^31 - 2: split the vocabulary over more ranks",
             (long long)a->count);
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        typedef accum_t<T> A;
        auto *add = a->table_dtype == a->dtype ? embedding_grad<T, T> : embedding_grad<T, A>;
        for (int64_t row0 = 0; a->cols && row0 < a->rows; row0 += room)
            AX_TRY(add(stream, a, row0, (int)ax_min(room, a->rows - row0), room));
        return AX_OK;
    });
}

ax_status ax_cuda_copy_box(ax_stream *stream, const void *args)
{
    const ax_copy_box_args *a = (const ax_copy_box_args *)args;
    ax_copy_box_args wide, part[2];
    AX_CHECK(!a->accumulate || a->dtype <= AX_F16, AX_ERR_USAGE,
             "kernel copy_box: `accumulate` is not possible for elements of %s", ax_dtype_name(a->dtype));
    if (elements(a->n) > AXONN_BOX_MOST) {
        halve(a, part);
        AX_TRY(ax_cuda_copy_box(stream, &part[0]));
        return ax_cuda_copy_box(stream, &part[1]);
    }
    if (a->accumulate)
        return by_activation(a->dtype, [&](auto t) {
            typedef decltype(t) T;
            return each<1>(stream, elements(a->n), false, add_box<T>{*a, a->n});
        });
    if (widened(a, &wide))
        return copy_as<pack<uint64_t, 2>>(stream, &wide);
    switch (ax_dtype_size(a->dtype)) {
    case 8:
        return copy_as<uint64_t>(stream, a);
    case 4:
        return copy_as<uint32_t>(stream, a);
    case 2:
        return copy_as<uint16_t>(stream, a);
    default:
        return copy_as<uint8_t>(stream, a);
    }
}

ax_status ax_cuda_init_normal(ax_stream *stream, const void *args)
{
    const ax_init_normal_args *a = (const ax_init_normal_args *)args;
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return each<1>(stream, elements(a->n), false, init_normal<T>{*a});
    });
}
