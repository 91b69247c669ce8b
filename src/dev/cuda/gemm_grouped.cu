/* Grouped GEMMs, whose bounds may be in device memory: cuBLASLt takes extents from the host. On tensor cores
 * for 16-bit operands whose rows can be copied 16 bytes at a time, else in tiles of 16 x 16 with one thread
 * for each element of c. A thread block computes one tile of c; it finds the group that its tile belongs to.
 * The grid has a tile more for each group than the rows of c would need without groups; thread blocks without
 * a tile end. */
#include "dev/cuda/mma.cuh"

namespace
{

struct call {
    ax_gemm_grouped_args a;
};

/* The part of c that a thread block computes, and the rows of its group. */
struct place {
    int64_t group, lo, hi; /* rows lo … hi-1 of the operands that have groups of rows; group < 0: no tile */
    int64_t i;             /* first row of the tile in c; with trans_a in the group's matrix */
};

/* Returns where the rows of group g begin. */
__device__ inline int bound(const ax_gemm_grouped_args &a, int64_t g)
{
    return a.bounds ? a.bounds[g] : (int)(g * a.each);
}

/* Finds tile number `tile` among those of all groups, each of which has `size` rows or, at its end, fewer.
 * The lanes of a warp look at WARP groups at a time; every lane gets the result. */
__device__ inline place find_tile(const ax_gemm_grouped_args &a, int tile, int size)
{
    const unsigned all = 0xffffffffu;
    const int lane = threadIdx.x % WARP;
    for (int64_t first = 0; first < a.groups; first += WARP) {
        const int64_t g = first + lane;
        const int lo = g < a.groups ? bound(a, g) : 0, hi = g < a.groups ? bound(a, g + 1) : 0,
                  tiles = (hi - lo + size - 1) / size;
        int end = tiles; /* of the groups from `first` to g */
#pragma unroll
        for (int left = 1; left < WARP; left *= 2) {
            const int other = __shfl_sync(all, end, lane >= left ? lane - left : lane);
            end += lane >= left ? other : 0;
        }
        const int total = __shfl_sync(all, end, WARP - 1), mine = over_warp<plus>(end <= tile ? 1 : 0);
        if (tile < total) {
            const int64_t from = __shfl_sync(all, lo, mine), nth = tile - __shfl_sync(all, end - tiles, mine);
            return {first + mine, from, __shfl_sync(all, hi, mine), from + nth * size};
        }
        tile -= total;
    }
    return {-1, 0, 0, 0};
}

__device__ inline place place_of(const ax_gemm_grouped_args &a, int size)
{
    if (!a.trans_a)
        return find_tile(a, (int)blockIdx.x, size);
    const int64_t g = blockIdx.z;
    return {g, bound(a, g), bound(a, g + 1), (int64_t)blockIdx.x * size};
}

/* ---- any operands -------------------------------------------------------------------------------- */

enum { TILE = 16 };

template <class T, class C> __global__ void plain_kernel(call s)
{
    typedef accum_t<T> A;
    const ax_gemm_grouped_args &g = s.a;
    const place p = place_of(g, TILE);
    __shared__ A a[TILE][TILE + 1], b[TILE][TILE + 1];
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const int64_t i = p.i + y, j = (int64_t)blockIdx.y * TILE + x, rows = g.trans_a ? g.m : p.hi,
                  begin = g.trans_a ? p.lo : 0, end = g.trans_a ? p.hi : g.k;
    const T *from = (const T *)g.b + (g.trans_a ? 0 : p.group * g.stride);
    A sum = 0;
    if (p.group < 0)
        return;
    for (int64_t k0 = begin; k0 < end; k0 += TILE) {
        const int64_t ka = k0 + x, kb = k0 + y;
        a[y][x] = i < rows && ka < end
                      ? widen<A>(((const T *)g.a)[g.trans_a ? ka * g.lda + i : i * g.lda + ka])
                      : (A)0;
        b[y][x] = j < g.n && kb < end ? widen<A>(from[g.trans_b ? j * g.ldb + kb : kb * g.ldb + j]) : (A)0;
        __syncthreads();
        for (int k = 0; k < TILE; k++)
            sum += a[y][k] * b[k][x];
        __syncthreads();
    }
    if (i >= rows || j >= g.n)
        return;
    C *c = (C *)g.c + (g.trans_a ? p.group * g.stride : 0) + i * g.ldc + j;
    *c = narrow<C, A>::of(sum + (g.accumulate ? widen<A>(*c) : (A)0));
}

/* ---- tensor cores -------------------------------------------------------------------------------- */

/* A tile of c has SIDE x SIDE elements, of which each of the eight warps computes 64 x 32. Tiles of the
 * operands with DEPTH values of k are copied STAGES - 1 steps ahead. In shared memory a tile has the rows of
 * the operand in memory, padded so that ldmatrix meets no bank conflicts. */
enum { SIDE = 128, DEPTH = 32, STAGES = 3, THREADS = 256, ALONG = DEPTH + 8, ACROSS = SIDE + 8 };
enum { TILE_ELEMENTS = SIDE * ALONG > DEPTH *ACROSS ? SIDE *ALONG : DEPTH *ACROSS };

template <class T> struct stages {
    T a[STAGES][TILE_ELEMENTS], b[STAGES][TILE_ELEMENTS];
};

/* An operand: its rows begin `ld` elements apart; rows and columns from row_end and col_end on count as
 * zeros. */
template <class T> struct operand {
    const T *at;
    int64_t ld, row_end, col_end;
};

/* Starts the copy of ROWS x COLS elements from row r0 and column c0 on. */
template <class T, int ROWS, int COLS>
__device__ inline void copy_tile(T *to, const operand<T> &from, int64_t r0, int64_t c0)
{
    for (int i = threadIdx.x; i < ROWS * COLS / 8; i += THREADS) {
        const int r = i / (COLS / 8), c = i % (COLS / 8) * 8;
        const bool there = r0 + r < from.row_end && c0 + c < from.col_end;
        copy_async(to + r * (COLS + 8) + c, there ? from.at + (r0 + r) * from.ld + c0 + c : from.at, there);
    }
}

/* Loads operand a (16 x 16) from a tile that holds it transposed: the tile's rows are the columns of a. */
template <class T> __device__ inline void load_a_columns(fragment_a &a, const T *tile, int stride)
{
    const int lane = threadIdx.x % WARP;
    load_transposed(a.r, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}

/* Starts the copies of the tiles from k on. */
template <class T, bool SUMS, bool TRANS_B>
__device__ inline void copy_stage(stages<T> &m, int stage, const operand<T> &a, const operand<T> &b,
                                  int64_t i, int64_t j, int64_t k)
{
    if (SUMS)
        copy_tile<T, DEPTH, SIDE>(m.a[stage], a, k, i);
    else
        copy_tile<T, SIDE, DEPTH>(m.a[stage], a, i, k);
    if (TRANS_B)
        copy_tile<T, SIDE, DEPTH>(m.b[stage], b, j, k);
    else
        copy_tile<T, DEPTH, SIDE>(m.b[stage], b, k, j);
}

/* Adds the product of two tiles to the warp's part of c, whose first row and column in the tile are wi, wj.
 */
template <class T, bool SUMS, bool TRANS_B>
__device__ inline void multiply_stage(fragment_c (&c)[4][4], const T *a, const T *b, int wi, int wj)
{
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        fragment_b right[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++)
            if (TRANS_B)
                load_b(right[n], b + (wj + n * 16) * ALONG + k, ALONG);
            else
                load_b_rows(right[n], b + k * ACROSS + wj + n * 16, ACROSS);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            fragment_a left;
            if (SUMS)
                load_a_columns(left, a + k * ACROSS + wi + m * 16, ACROSS);
            else
                load_a(left, a + (wi + m * 16) * ALONG + k, ALONG);
#pragma unroll
            for (int n = 0; n < 4; n++)
                multiply_add<T>(c[m][n], left, right[n / 2][n % 2]);
        }
    }
}

/* Stores two adjacent elements of c. */
template <class C> __device__ inline void store_pair(C *c, float x, float y, bool accumulate)
{
    pack<float, 2> v = {{x, y}};
    if (accumulate) {
        const pack<float, 2> old = read<C, float, 2>(c, 0);
        v.v[0] += old.v[0];
        v.v[1] += old.v[1];
    }
    write<C, float, 2>(c, 0, v);
}

template <class T, class C, bool SUMS, bool TRANS_B>
__global__ void __launch_bounds__(THREADS) tensor_kernel(call s)
{
    const ax_gemm_grouped_args &g = s.a;
    stages<T> &m = *(stages<T> *)dynamic_shared();
    const place p = place_of(g, SIDE);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, wi = warp / 4 * 64, wj = warp % 4 * 32;
    const int64_t j = (int64_t)blockIdx.y * SIDE, rows = SUMS ? g.m : p.hi, begin = SUMS ? p.lo : 0,
                  end = SUMS ? p.hi : g.k;
    if (p.group < 0)
        return;
    const operand<T> a = {(const T *)g.a, g.lda, SUMS ? end : rows, SUMS ? rows : end},
                     b = {(const T *)g.b + (SUMS ? 0 : p.group * g.stride), g.ldb, TRANS_B ? g.n : end,
                          TRANS_B ? end : g.n};
    fragment_c c[4][4] = {};
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        if (begin + ahead * DEPTH < end)
            copy_stage<T, SUMS, TRANS_B>(m, ahead, a, b, p.i, j, begin + ahead * DEPTH);
        commit_copies();
    }
    int stage = 0;
    for (int64_t k = begin; k < end; k += DEPTH, stage = (stage + 1) % STAGES) {
        wait_copies<STAGES - 2>();
        __syncthreads(); /* the copies have arrived, and the stage that is overwritten has been used */
        const int64_t next = k + (STAGES - 1) * DEPTH;
        if (next < end)
            copy_stage<T, SUMS, TRANS_B>(m, (stage + STAGES - 1) % STAGES, a, b, p.i, j, next);
        commit_copies();
        multiply_stage<T, SUMS, TRANS_B>(c, m.a[stage], m.b[stage], wi, wj);
    }
    wait_copies<0>();
    C *out = (C *)g.c + (SUMS ? p.group * g.stride : 0);
#pragma unroll
    for (int x = 0; x < 4; x++)
#pragma unroll
        for (int y = 0; y < 4; y++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t i = p.i + wi + x * 16 + lane / 4 + half * 8,
                              col = j + wj + y * 8 + lane % 4 * 2;
                if (i < rows && col < g.n)
                    store_pair(out + i * g.ldc + col, c[x][y].v[2 * half], c[x][y].v[2 * half + 1],
                               g.accumulate);
            }
}

/* ---- launching ----------------------------------------------------------------------------------- */

/* Returns the grid for tiles of this size. */
dim3 grid_of(const ax_gemm_grouped_args *a, int size)
{
    const int64_t tiles = ax_ceil_div(a->m, size) + (a->trans_a ? 0 : a->groups);
    return dim3((unsigned)(a->m ? tiles : 0), (unsigned)ax_ceil_div(a->n, size),
                a->trans_a ? (unsigned)a->groups : 1);
}

/* Returns true if the operands can be copied 16 bytes at a time, and c be stored in pairs. */
bool fits_tensor_cores(const ax_gemm_grouped_args *a)
{
    const int64_t lengths[] = {a->lda, a->ldb, a->stride, a->trans_a ? a->m : a->k, a->trans_b ? a->k : a->n};
    for (int64_t length : lengths)
        if (length % 8)
            return false;
    return (a->dtype == AX_BF16 || a->dtype == AX_F16) && a->n % 2 == 0 && a->ldc % 2 == 0 &&
           aligned({a->a, a->b, a->c});
}

template <class T, class C> ax_status on_tensor_cores(ax_stream *stream, const ax_gemm_grouped_args *a)
{
    void (*kernel)(call) = a->trans_a   ? tensor_kernel<T, C, true, false>
                           : a->trans_b ? tensor_kernel<T, C, false, true>
                                        : tensor_kernel<T, C, false, false>;
    return run(stream, kernel, grid_of(a, SIDE), THREADS, sizeof(stages<T>), call{*a});
}

} // namespace

ax_status ax_cuda_gemm_grouped(ax_stream *stream, const void *args)
{
    const ax_gemm_grouped_args *a = (const ax_gemm_grouped_args *)args;
    const bool wide = a->c_dtype == ax_dtype_accum(a->dtype);
    if (fits_tensor_cores(a) && a->dtype == AX_BF16)
        return wide ? on_tensor_cores<bf16, float>(stream, a) : on_tensor_cores<bf16, bf16>(stream, a);
    if (fits_tensor_cores(a))
        return wide ? on_tensor_cores<f16, float>(stream, a) : on_tensor_cores<f16, f16>(stream, a);
    return by_activation(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        typedef accum_t<T> A;
        return wide ? run(stream, plain_kernel<T, A>, grid_of(a, TILE), TILE * TILE, 0, call{*a})
                    : run(stream, plain_kernel<T, T>, grid_of(a, TILE), TILE * TILE, 0, call{*a});
    });
}
