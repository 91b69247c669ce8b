/* Causal attention of bf16 or fp16 on tensor cores: the online softmax of FlashAttention-2 (Dao 2023). A
 * thread block handles a tile of 64 rows, 16 for each of its four warps. The gradient is two kernels, one
 * with a thread block per tile of queries and one with a thread block per tile of keys, so that each sum has
 * a fixed order. The two kernels together take 7 matmuls for each pair of a tile of queries and a tile of
 * keys. One kernel with atomic additions would take 5, but the additions would have no fixed order. */
#include "dev/cuda/flash.cuh"

namespace
{

/* Stores 16 rows of sums to the rows of `to` from `first` on. Each lane stores its parts of rows g and g+8 of
 * the 16 (g = lane / 4), multiplied by factor[0] and factor[1]. Rows of `to` from `end` on are skipped. */
template <class T, int D>
__device__ inline void write_rows(const fragment_c (&c)[D / 8], T *to, int64_t stride, int d, int64_t first,
                                  int64_t end, const float (&factor)[2])
{
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t r = first + lane / 4 + 8 * half;
        if (r >= end)
            continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            int column = n * 8 + lane % 4 * 2;
            if (column < d) {
                pack<float, 2> both = {
                    {c[n].v[2 * half] * factor[half], c[n].v[2 * half + 1] * factor[half]}};
                write<T, float, 2>(to, r * stride + column, both);
            }
        }
    }
}

/* Returns the first key that any query of the block's tile sees. */
__device__ inline int64_t first_seen(const int32_t *doc_start, int64_t window, int64_t b, int64_t i0,
                                     int64_t q_len, int64_t q_offset)
{
    if (!doc_start) /* then the tile's first query sees the lowest key */
        return ax_attention_first_key(NULL, 0, window, q_offset + i0);
    int64_t i = i0 + threadIdx.x % TILE;
    int64_t first =
        i < q_len ? ax_attention_first_key(doc_start, b * q_len + i, window, q_offset + i) : INT64_MAX;
    return over_block<minimum>(first, (int64_t)INT64_MAX);
}

/* Returns the end of the queries that see any of the `keys` keys from j0 on: the last such query plus 1, at
 * least j0. */
__device__ inline int64_t last_seeing(const int32_t *doc_start, int64_t window, int64_t b, int64_t j0,
                                      int64_t q_len, int keys)
{
    int64_t end = j0;
    const int64_t of_window = ax_attention_end_query(window, j0 + keys - 1, q_len);
    if (!doc_start)
        return of_window;
    for (int64_t i = j0 + threadIdx.x; i < of_window; i += THREADS)
        if (doc_start[b * q_len + i] < j0 + keys)
            end = i + 1;
    return over_block<maximum>(end, j0);
}

/* ---- dropout ------------------------------------------------------------------------------------- */

/* The random numbers of dropout for one head and one sequence. Kernels without dropout are separate instances
 * of the templates, compiled as if there were no dropout. */
struct dropout_state {
    uint64_t key, step;
    uint64_t first, stride; /* first: index of the Philox block (four random words) for key 0 of query 0;
                               stride: number of Philox blocks from one query to the next */
    uint32_t below;
    float scale;
    __device__ dropout_state(const ax_attention_dropout &drop, int64_t b, int64_t h, int64_t q_len,
                             int64_t keys)
        : key(drop.key), step(drop.now ? drop.now->step : 0),
          first(ax_attention_drop_block(&drop, drop.now ? drop.now->first_row : 0, b * q_len, h, keys)),
          stride((uint64_t)(drop.heads * ((keys + 3) / 4))), below(ax_attention_drop_below(drop.p)),
          scale((float)(1 / (1 - drop.p)))
    {
    }
    /* Computes the random words of keys j … j+3 of query i; j is a multiple of 4. */
    __device__ void draw(int64_t i, int64_t j, uint32_t (&words)[4]) const
    {
        ax_philox_words(key, step, first + (uint64_t)i * stride + (uint64_t)j / 4, words);
    }
    __device__ float factor(uint32_t word) const { return word >> 8 < below ? 0 : scale; }
};

/* Exchanges words between this lane and the lane whose number differs in `bit`: the lane with the lower
 * number swaps its b for the a of the other lane. */
__device__ inline void exchange(uint32_t &a, uint32_t &b, int bit)
{
    const bool upper = threadIdx.x & bit;
    const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? a : b, bit);
    a = upper ? got : a;
    b = upper ? b : got;
}

/* Computes dropout's factors for a fragment in which this lane's rows are queries i and i+8, and whose
 * columns are the 8 keys from j on. A lane needs the words of two adjacent keys for each of its two queries.
 * It draws the words of four keys for one query, and exchanges two words with the neighbouring lane. */
__device__ inline void dropout_rows(const dropout_state &drop, int64_t i, int64_t j, float (&keep)[4])
{
    uint32_t words[4];
    drop.draw(i + (threadIdx.x & 1) * 8, j + (threadIdx.x & 2) * 2, words);
    exchange(words[0], words[2], 1);
    exchange(words[1], words[3], 1);
#pragma unroll
    for (int e = 0; e < 4; e++)
        keep[e] = drop.factor(words[e]);
}

/* Computes dropout's factors for a fragment whose rows are keys j … j+15 of the warp, and whose columns are
 * the 8 queries from i on. Four lanes with adjacent keys need the same four Philox blocks: each lane computes
 * one block, and a 4 x 4 transposition distributes the words. */
__device__ inline void dropout_columns(const dropout_state &drop, int64_t i, int64_t j, float (&keep)[4])
{
    const int lane = threadIdx.x % WARP, mine = lane / 4 % 4;
    uint32_t words[4];
    drop.draw(i + lane % 4 * 2 + mine % 2, j + lane / 16 * 4 + mine / 2 * 8, words);
    exchange(words[0], words[1], 4);
    exchange(words[2], words[3], 4);
    exchange(words[0], words[2], 8);
    exchange(words[1], words[3], 8);
#pragma unroll
    for (int e = 0; e < 4; e++)
        keep[e] = drop.factor(words[e]);
}

/* ---- forward ------------------------------------------------------------------------------------- */

/* Shared memory: q, and k and v twice, so that one tile is copied while the other is used. */
template <class T, int D> struct forward_shared {
    T q[TILE * (D + 8)], k[2][TILE * (D + 8)], v[2][TILE * (D + 8)];
};

struct forward {
    ax_attention_args a;
};

template <class T, int D, bool DROP> __global__ void __launch_bounds__(THREADS) flash_kernel(forward s)
{
    const ax_attention_args &a = s.a;
    forward_shared<T, D> &m = *(forward_shared<T, D> *)dynamic_shared();
    const int d = (int)a.head_dim, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t h = blockIdx.y, b = blockIdx.z,
                  i0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE; /* tiles with the most keys first */
    const int64_t row = i0 + warp * 16 + lane / 4;
    const int64_t keys = b * ax_attention_kv_batch(&a) + h / (a.heads / a.kv_heads) * d;
    const rows_of<T> q = {(const T *)a.q + b * a.q_len * a.q_ld + h * d, (int)a.q_ld, d};
    const rows_of<T> k = {(const T *)a.k + keys, (int)a.kv_ld, d},
                     v = {(const T *)a.v + keys, (int)a.kv_ld, d};
    const int64_t offset = ax_attention_offset(&a, b);
    const key_range mine[2] = {{a.doc_start, a.window, b, row, a.q_len, offset, a.kv_len},
                               {a.doc_start, a.window, b, row + 8, a.q_len, offset, a.kv_len}};
    const int64_t last = offset + (i0 + TILE < a.q_len ? i0 + TILE : a.q_len),
                  end = last < a.kv_len ? last : a.kv_len;
    const float scale = (float)a.scale * log2_e;
    const dropout_state drop = {a.drop, b, h, a.q_len, a.kv_len};
    fragment_c o[D / 8] = {};
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    const int64_t begin = first_seen(a.doc_start, a.window, b, i0, a.q_len, offset);
    int64_t j0 = begin / TILE * TILE;
    copy_rows_async<T, D, TILE>(m.q, q, i0, 0, a.q_len);
    copy_rows_async<T, D, TILE>(m.k[0], k, j0, begin, end);
    copy_rows_async<T, D, TILE>(m.v[0], v, j0, begin, end);
    commit_copies();
    for (int stage = 0; j0 < end; j0 += TILE, stage ^= 1) {
        if (j0 + TILE < end) {
            copy_rows_async<T, D, TILE>(m.k[stage ^ 1], k, j0 + TILE, 0, end);
            copy_rows_async<T, D, TILE>(m.v[stage ^ 1], v, j0 + TILE, 0, end);
        }
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        fragment_c p[TILE / 8] = {};
        rows_times_rows<T, D>(p, m.q + warp * 16 * (D + 8), m.k[stage]);
        const visible_part of[2] = {{mine[0], j0, TILE}, {mine[1], j0, TILE}};
        if (__any_sync(0xffffffffu, of[0].some || of[1].some)) {
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!of[e / 2].has(n * 8 + e % 2))
                        p[n].v[e] = -INFINITY;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float higher = max[half];
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    higher = fmaxf(higher, p[n].v[e]);
            higher = over_quad<maximum>(higher);
            /* `keep` is exactly 1 if the maximum is unchanged. */
            float from = higher == -INFINITY ? 0 : higher * scale, added = 0,
                  keep = higher == -INFINITY ? 1 : power_of_2((max[half] - higher) * scale);
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    p[n].v[e] = power_of_2(p[n].v[e] * scale - from);
                    added += p[n].v[e];
                }
            sum[half] = sum[half] * keep + added;
            max[half] = higher;
#pragma unroll
            for (int c = 0; c < D / 8; c++) {
                o[c].v[2 * half] *= keep;
                o[c].v[2 * half + 1] *= keep;
            }
        }
        if (DROP)
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                float keep[4];
                dropout_rows(drop, row, j0 + n * 8, keep);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    p[n].v[e] *= keep[e];
            }
        weighted_rows<T, D>(o, p, m.v[stage]);
        __syncthreads(); /* the next iteration copies to this stage */
    }
    wait_copies<0>();
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] = over_quad<plus>(sum[half]);
        factor[half] = mine[half].any() ? 1 / sum[half] : 0;
        int64_t i = row + 8 * half;
        if (a.lse && lane % 4 == 0 && i < a.q_len)
            ((float *)a.lse)[(b * a.heads + h) * a.q_len + i] =
                mine[half].any() ? max[half] * (float)a.scale + logf(sum[half]) : -INFINITY;
    }
    write_rows<T, D>(o, (T *)a.o + (b * a.q_len * a.heads + h) * d, a.heads * d, d, i0 + warp * 16, a.q_len,
                     factor);
}

/* ---- gradient ------------------------------------------------------------------------------------ */

/* The number of rows of the tiles that a thread block loops over: as many as registers allow beside the sums.
 * The rows are keys in the kernel for dq, and queries in the kernel for dk and dv. */
template <int D> struct other_rows {
    enum { value = D > 64 ? 32 : 64 };
};

/* Shared memory. `own`: the thread block's tile, of q and dout in the kernel for dq, of k and v in the kernel
 * for dk and dv. `other`: the tiles that the block loops over, of the other two of these arrays. `other`
 * exists twice, so that one tile is copied while another is used. */
template <class T, int D> struct gradient_shared {
    T own[2][TILE * (D + 8)], other[2][2][other_rows<D>::value * (D + 8)];
    float lse[2][other_rows<D>::value],
        delta[2][other_rows<D>::value]; /* lse and delta of the queries in `other` (kernel for dk and dv) */
    int32_t first[2][other_rows<D>::value]; /* doc_start of the queries in `other`; 0 without documents */
};

struct backward {
    ax_attention_grad_args a;
};

/* Returns the dot product of row i of dout and of o, summed over the four lanes that have the row; 0 if i is
 * `end` or more. */
template <class T>
__device__ inline float delta_of(const rows_of<T> &dout, const rows_of<T> &o, int64_t i, int64_t end)
{
    float sum = 0;
    for (int c = threadIdx.x % 4 * 8; i < end && c < dout.d; c += 32) {
        pack<float, 8> x = read<T, float, 8>(dout.at, i * dout.stride + c),
                       y = read<T, float, 8>(o.at, i * o.stride + c);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum += x.v[e] * y.v[e];
    }
    return over_quad<plus>(sum);
}

/* Computes delta (the dot products of dout and o) and dq of a tile of queries. */
template <class T, int D, bool DROP>
__global__ void __launch_bounds__(THREADS) flash_query_grad_kernel(backward s)
{
    enum { KEYS = other_rows<D>::value };
    const ax_attention_grad_args &a = s.a;
    gradient_shared<T, D> &m = *(gradient_shared<T, D> *)dynamic_shared();
    const int d = (int)a.head_dim, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t h = blockIdx.y, b = blockIdx.z, i0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE;
    const int64_t row = i0 + warp * 16 + lane / 4, stats = (b * a.heads + h) * a.q_len;
    const int64_t queries = b * a.q_len * a.q_ld + h * d,
                  keys = b * a.q_len * a.kv_ld + h / (a.heads / a.kv_heads) * d;
    const rows_of<T> q = {(const T *)a.q + queries, (int)a.q_ld, d};
    const rows_of<T> k = {(const T *)a.k + keys, (int)a.kv_ld, d},
                     v = {(const T *)a.v + keys, (int)a.kv_ld, d};
    const key_range mine[2] = {{a.doc_start, a.window, b, row, a.q_len, 0, a.q_len},
                               {a.doc_start, a.window, b, row + 8, a.q_len, 0, a.q_len}};
    const int64_t end = i0 + TILE < a.q_len ? i0 + TILE : a.q_len;
    const float scale = (float)a.scale * log2_e;
    const int64_t begin = first_seen(a.doc_start, a.window, b, i0, a.q_len, 0);
    const dropout_state drop = {a.drop, b, h, a.q_len, a.q_len};
    int64_t j0 = begin / KEYS * KEYS;
    copy_rows_async<T, D, TILE>(m.own[0], q, i0, 0, a.q_len);
    const int64_t outputs = (b * a.q_len * a.heads + h) * d;
    const rows_of<T> dout = {(const T *)a.dout + outputs, (int)a.heads * d, d},
                     o = {(const T *)a.o + outputs, (int)a.heads * d, d};
    copy_rows_async<T, D, TILE>(m.own[1], dout, i0, 0, a.q_len);
    copy_rows_async<T, D, KEYS>(m.other[0][0], k, j0, begin, end);
    copy_rows_async<T, D, KEYS>(m.other[0][1], v, j0, begin, end);
    commit_copies();
    float delta[2], lse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t i = row + 8 * half;
        delta[half] = delta_of(dout, o, i, a.q_len);
        lse[half] = i < a.q_len ? ((const float *)a.lse)[stats + i] * log2_e : 0;
        if (lane % 4 == 0 && i < a.q_len)
            ((float *)a.delta)[stats + i] = delta[half];
    }
    fragment_c dq[D / 8] = {};
    for (int stage = 0; j0 < end; j0 += KEYS, stage ^= 1) {
        if (j0 + KEYS < end) {
            copy_rows_async<T, D, KEYS>(m.other[stage ^ 1][0], k, j0 + KEYS, 0, end);
            copy_rows_async<T, D, KEYS>(m.other[stage ^ 1][1], v, j0 + KEYS, 0, end);
        }
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        fragment_c p[KEYS / 8] = {}, dp[KEYS / 8] = {};
        rows_times_rows<T, D>(p, m.own[0] + warp * 16 * (D + 8), m.other[stage][0]);
        rows_times_rows<T, D>(dp, m.own[1] + warp * 16 * (D + 8), m.other[stage][1]);
        const visible_part of[2] = {{mine[0], j0, KEYS}, {mine[1], j0, KEYS}};
        const bool partly = __any_sync(0xffffffffu, of[0].some || of[1].some);
        if (DROP)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                float keep[4];
                dropout_rows(drop, row, j0 + n * 8, keep);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    dp[n].v[e] *= keep[e];
            }
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[n].v[e] = power_of_2(p[n].v[e] * scale - lse[e / 2]) * (dp[n].v[e] - delta[e / 2]);
        if (partly)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!of[e / 2].has(n * 8 + e % 2))
                        p[n].v[e] = 0;
        weighted_rows<T, D>(dq, p, m.other[stage][0]);
        __syncthreads();
    }
    wait_copies<0>();
    const float factor[2] = {(float)a.scale, (float)a.scale};
    write_rows<T, D>(dq, (T *)a.dq + queries, a.q_ld, d, i0 + warp * 16, a.q_len, factor);
}

/* Computes dk and dv of a tile of keys, summed over the query heads that share the key head. Rows of
 * fragments are keys here, columns are queries. */
template <class T, int D, bool DROP>
__global__ void __launch_bounds__(THREADS) flash_key_grad_kernel(backward s)
{
    enum { QUERIES = other_rows<D>::value };
    const ax_attention_grad_args &a = s.a;
    gradient_shared<T, D> &m = *(gradient_shared<T, D> *)dynamic_shared();
    const int d = (int)a.head_dim, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t g = blockIdx.y, b = blockIdx.z, j0 = (int64_t)blockIdx.x * TILE,
                  group = a.heads / a.kv_heads;
    const int64_t keys = b * a.q_len * a.kv_ld + g * d, row = j0 + warp * 16 + lane / 4;
    const rows_of<T> k = {(const T *)a.k + keys, (int)a.kv_ld, d},
                     v = {(const T *)a.v + keys, (int)a.kv_ld, d};
    const int64_t begin = j0 / QUERIES * QUERIES,
                  seeing = last_seeing(a.doc_start, a.window, b, j0, a.q_len, TILE),
                  tiles = (seeing - begin + QUERIES - 1) / QUERIES;
    const float scale = (float)a.scale * log2_e;
    fragment_c dk[D / 8] = {}, dv[D / 8] = {};
    copy_rows_async<T, D, TILE>(m.own[0], k, j0, 0, a.q_len);
    copy_rows_async<T, D, TILE>(m.own[1], v, j0, 0, a.q_len);
    const int64_t all = group * tiles;
    int64_t h_next = g * group, i_next = begin, h0 = g * group, i0 = begin;
    for (int64_t at = 0; at <= all; at++) { /* copies tile `at`, computes with tile at - 1 */
        if (at < all) {
            const int stage = at % 2;
            const T *q = (const T *)a.q + b * a.q_len * a.q_ld + h_next * d,
                    *dout = (const T *)a.dout + (b * a.q_len * a.heads + h_next) * d;
            copy_rows_async<T, D, QUERIES>(m.other[stage][0], {q, (int)a.q_ld, d}, i_next, 0, a.q_len);
            copy_rows_async<T, D, QUERIES>(m.other[stage][1], {dout, (int)a.heads * d, d}, i_next, 0,
                                           a.q_len);
            if (threadIdx.x < QUERIES) {
                int64_t i = i_next + threadIdx.x, stats = (b * a.heads + h_next) * a.q_len + i;
                bool there = i < a.q_len;
                copy_word_async(&m.lse[stage][threadIdx.x], (const float *)a.lse + stats, there);
                copy_word_async(&m.delta[stage][threadIdx.x], (const float *)a.delta + stats, there);
                copy_word_async(&m.first[stage][threadIdx.x],
                                a.doc_start ? (const void *)(a.doc_start + b * a.q_len + i)
                                            : (const void *)a.lse,
                                there && a.doc_start);
            }
        }
        commit_copies();
        const int64_t h_this = h_next, i_this = i_next;
        i_next += QUERIES;
        if (i_next >= seeing)
            i_next = begin, h_next++;
        if (at == 0) {
            h0 = h_this, i0 = i_this;
            continue;
        }
        wait_copies<1>();
        __syncthreads();
        const int stage = (at - 1) % 2;
        const T *q = m.other[stage][0], *dout = m.other[stage][1];
        fragment_c p[QUERIES / 8] = {}, ds[QUERIES / 8] = {};
        rows_times_rows<T, D>(p, m.own[0] + warp * 16 * (D + 8), q);
        rows_times_rows<T, D>(ds, m.own[1] + warp * 16 * (D + 8), dout);
        /* Query i0 + n sees key `row` if three conditions hold: row - i0 <= n < q_len - i0; n < row - i0 +
         * window, if there is a window; the query's document starts at the key or before. */
        const dropout_state drop = {a.drop, b, h0, a.q_len, a.q_len};
        const int low = clamped(row - i0, -8, QUERIES) - lane % 4 * 2,
                  high = clamped(a.q_len - i0, 0, QUERIES) - lane % 4 * 2, key = (int)row,
                  far = (a.window > 0 ? clamped(row - i0 + a.window, -8, QUERIES) : QUERIES) - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            float keep[4] = {1, 1, 1, 1};
            if (DROP)
                dropout_columns(drop, i0 + n * 8, j0 + warp * 16, keep);
#pragma unroll
            for (int right = 0; right < 2; right++) {
                const int at_query = n * 8 + right, i = at_query + lane % 4 * 2;
                const float lse = m.lse[stage][i] * log2_e, delta = m.delta[stage][i];
                const int first = m.first[stage][i];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int e = 2 * half + right;
                    bool sees = at_query >= low + 8 * half && at_query < high && at_query < far + 8 * half &&
                                first <= key + 8 * half;
                    float weight = sees ? power_of_2(p[n].v[e] * scale - lse) : 0;
                    p[n].v[e] = weight * keep[e];
                    ds[n].v[e] = weight * (ds[n].v[e] * keep[e] - delta);
                }
            }
        }
        h0 = h_this, i0 = i_this;
        weighted_rows<T, D>(dv, p, dout);
        weighted_rows<T, D>(dk, ds, q);
        __syncthreads();
    }
    wait_copies<0>();
    const float factor[2] = {(float)a.scale, (float)a.scale}, one[2] = {1, 1};
    write_rows<T, D>(dk, (T *)a.dk + keys, a.kv_ld, d, j0 + warp * 16, a.q_len, factor);
    write_rows<T, D>(dv, (T *)a.dv + keys, a.kv_ld, d, j0 + warp * 16, a.q_len, one);
}

/* ---- launching ----------------------------------------------------------------------------------- */

dim3 blocks_of(int64_t rows, int64_t heads, int64_t batch)
{
    return dim3((unsigned)ax_ceil_div(rows, TILE), (unsigned)heads, (unsigned)batch);
}

} // namespace

bool ax_cuda_flash_takes(const ax_attention_args *a)
{
    return a->q_len >= 16 && !a->chosen && a->kv_batch_stride % 8 == 0 && a->scale > 0 &&
           fits(a, {a->q, a->k, a->v, a->o});
}

bool ax_cuda_flash_grad_takes(const ax_attention_grad_args *a)
{
    return fits(a, {a->q, a->k, a->v, a->o, a->dout, a->dq, a->dk, a->dv});
}

ax_status ax_cuda_flash(ax_stream *stream, const ax_attention_args *a)
{
    return by_form(a->dtype, a->head_dim, [&](auto form) {
        typedef typename decltype(form)::type T;
        const int D = decltype(form)::value;
        auto kernel = a->drop.p > 0 ? flash_kernel<T, D, true> : flash_kernel<T, D, false>;
        return run(stream, kernel, blocks_of(a->q_len, a->heads, a->batch), THREADS,
                   sizeof(forward_shared<T, D>), forward{*a});
    });
}

ax_status ax_cuda_flash_grad(ax_stream *stream, const ax_attention_grad_args *a)
{
    return by_form(a->dtype, a->head_dim, [&](auto form) {
        typedef typename decltype(form)::type T;
        const int D = decltype(form)::value;
        bool drops = a->drop.p > 0;
        auto of_queries = drops ? flash_query_grad_kernel<T, D, true> : flash_query_grad_kernel<T, D, false>;
        auto of_keys = drops ? flash_key_grad_kernel<T, D, true> : flash_key_grad_kernel<T, D, false>;
        AX_TRY(run(stream, of_queries, blocks_of(a->q_len, a->heads, a->batch), THREADS,
                   sizeof(gradient_shared<T, D>), backward{*a}));
        return run(stream, of_keys, blocks_of(a->q_len, a->kv_heads, a->batch), THREADS,
                   sizeof(gradient_shared<T, D>), backward{*a});
    });
}
