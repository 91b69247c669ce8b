/* Shared by the attention kernels on tensor cores: flash.cu (many queries) and decode.cu (few). A thread
 * block has four warps. It keeps tiles of rows in shared memory, and computes their products by fragments of
 * 16 rows (mma.cuh); a row is one head at one position. The width d of heads is a multiple of 8 up to 128;
 * rows are padded with zeros to D = 32, 64, 96 or 128 elements. */
#ifndef AXONN_DEV_CUDA_FLASH_CUH
#define AXONN_DEV_CUDA_FLASH_CUH

#include "dev/attention.h"
#include "dev/cuda/mma.cuh"

namespace
{

enum { WARPS = 4, THREADS = WARPS * WARP, TILE = 16 * WARPS };
const float log2_e = 1.4426950408889634f;

/* Reduces over the four lanes that hold elements of the same rows of a fragment c. */
template <class Op> __device__ inline float over_quad(float x)
{
    x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return Op::of(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* The rows of one head: the first is at `at`, each has d elements, and they are `stride` elements apart. */
template <class T> struct rows_of {
    const T *at;
    int stride;
    int d;
};

/* Starts asynchronous copies of rows first … first+COUNT-1 to shared memory. In shared memory the rows are
 * D+8 elements apart, so that 8 consecutive rows use different banks. Rows before `begin` or from `end` on,
 * and columns from d on, are zeros. */
template <class T, int D, int COUNT>
__device__ inline void copy_rows_async(T *to, const rows_of<T> &from, int64_t first, int64_t begin,
                                       int64_t end)
{
    const int low = (int)(begin > first ? begin - first : 0),
              high = (int)(end - first < COUNT ? end - first : COUNT);
    const T *tile = from.at + first * from.stride;
#pragma unroll
    for (int n = 0; n < COUNT * (D / 8) / THREADS; n++) {
        int chunk = threadIdx.x + n * THREADS, r = chunk / (D / 8), c = chunk % (D / 8) * 8;
        copy_async(to + r * (D + 8) + c, tile + (int64_t)r * from.stride + c,
                   r >= low && r < high && c < from.d);
    }
}

/* c += rows · otherᵀ, for 16 rows and 8·N other rows, all D wide. */
template <class T, int D, int N>
__device__ inline void rows_times_rows(fragment_c (&c)[N], const T *rows, const T *other)
{
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        fragment_a a;
        load_a(a, rows + k, D + 8);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            fragment_b b[2];
            load_b(b, other + n * 8 * (D + 8) + k, D + 8);
            multiply_add<T>(c[n], a, b[0]);
            multiply_add<T>(c[n + 1], a, b[1]);
        }
    }
}

/* out += p · rows, for p of 16 x 8·N and rows of 8·N x D. */
template <class T, int D, int N>
__device__ inline void weighted_rows(fragment_c (&out)[D / 8], const fragment_c (&p)[N], const T *rows)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        fragment_a a = as_a<T>(p[n], p[n + 1]);
#pragma unroll
        for (int c = 0; c < D / 8; c += 2) {
            fragment_b b[2];
            load_b_rows(b, rows + n * 8 * (D + 8) + c * 8, D + 8);
            multiply_add<T>(out[c], a, b[0]);
            multiply_add<T>(out[c + 1], a, b[1]);
        }
    }
}

/* The keys that query i of sequence b sees: first … last. None (last is -1) if there is no query i. */
struct key_range {
    int64_t first, last;
    __device__ key_range(const int32_t *doc_start, int64_t window, int64_t b, int64_t i, int64_t q_len,
                         int64_t q_offset, int64_t kv_len)
    {
        first = i < q_len ? ax_attention_first_key(doc_start, b * q_len + i, window, q_offset + i) : 0;
        last = i < q_len ? (q_offset + i < kv_len - 1 ? q_offset + i : kv_len - 1) : -1;
    }
    __device__ bool any() const { return first <= last; }
};

__device__ inline int clamped(int64_t x, int low, int high)
{
    return x < low ? low : x > high ? high : (int)x;
}

/* The keys that a query sees in the tile of `keys` keys from j0 on: low … high, relative to the first key of
 * the tile that this lane has in a fragment c. `has` returns whether the query sees key number j, counted
 * from the same key. */
struct visible_part {
    int low, high;
    bool some; /* at least one key of the tile is hidden from the query */
    __device__ visible_part(const key_range &all, int64_t j0, int keys)
    {
        int mine = threadIdx.x % 4 * 2;
        low = clamped(all.first - j0, 0, keys), high = clamped(all.last - j0, -1, keys - 1);
        some = low > 0 || high < keys - 1;
        low -= mine, high -= mine;
    }
    __device__ bool has(int j) const { return j >= low && j <= high; }
};

/* The element type T and the padded head width D as constants, with which by_width and by_form call f. */
template <class T, int D> struct padded {
    typedef T type;
    enum { value = D };
};
template <class T, class F> ax_status by_width(int64_t d, F f)
{
    return d <= 32   ? f(padded<T, 32>())
           : d <= 64 ? f(padded<T, 64>())
           : d <= 96 ? f(padded<T, 96>())
                     : f(padded<T, 128>());
}
template <class F> ax_status by_form(ax_dtype dtype, int64_t d, F f)
{
    return dtype == AX_BF16 ? by_width<bf16>(d, f) : by_width<f16>(d, f);
}

/* Returns true if the kernels support the element type and the width of heads, and all rows begin at
 * multiples of 16 bytes. */
template <class ARGS> bool fits(const ARGS *a, std::initializer_list<const void *> addresses)
{
    return (a->dtype == AX_BF16 || a->dtype == AX_F16) && a->head_dim % 8 == 0 && a->head_dim <= 128 &&
           a->q_ld % 8 == 0 && a->kv_ld % 8 == 0 && aligned(addresses);
}

} // namespace

#endif
