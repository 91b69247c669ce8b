/* Attention of few queries and many keys in bf16 or fp16, as in generation: the keys are split into parts,
 * which different thread blocks handle (split-K; FlashDecoding, Dao et al. 2023), because there are too few
 * queries to keep the GPU busy. A row is a query head of a query. The rows of a key head are all query heads
 * that use it, of all queries of a sequence. A thread block handles 16 of these rows and one part of the
 * keys, and so reads keys and values once for 16 rows. A second kernel combines the results of the parts. How
 * keys are split depends on the shape and on the size of scratch only, and each sum has a fixed order. */
#include "dev/cuda/flash.cuh"

namespace
{

/* ROWS: rows of a thread block. WANTED: number of thread blocks to aim at. MOST: the most parts into which
 * keys are split; a warp of combine_kernel keeps the weights of two parts in each lane. */
enum { ROWS = 16, WANTED = 512, MOST = 2 * WARP };

/* Shared memory: q, and k and v twice, so that one tile is copied while the other is used. At the end each
 * warp stores its sums in place of k. */
template <class T, int D> struct decode_shared {
    T q[ROWS * (D + 8)], k[2][TILE * (D + 8)], v[2][TILE * (D + 8)];
};

/* A call, and how its keys are split. Part p has the `share` keys from begin + p·share on, but none from
 * `end` on. If there are several parts, their results are in scratch: sums [row, part, d], the sums of
 * weighted values, and stats [row, part, 2], the maximum of the scores and the sum of weights. Rows are in
 * the order of o: sequence, query, query head. */
struct decode {
    ax_attention_args a;
    int64_t begin, end, share, parts;
    float *sums, *stats;
};

/* Row number r of key head g of sequence b, where `group` query heads use each key head: query i, query head
 * h, and `row`, its index among all rows in the order of o. Rows with r from group·q_len on do not exist. */
struct query_row {
    int64_t i, h, row;
    __device__ query_row(const ax_attention_args &a, int64_t b, int g, int group, int r)
    {
        i = r / group, h = g * group + r % group;
        row = (b * a.q_len + i) * a.heads + h;
    }
    __device__ query_row(int64_t I, int64_t H, int64_t ROW) : i(I), h(H), row(ROW) {}
};

/* Returns the factor for the sums of exponentials of some of a row's keys. The sums are relative to `max`,
 * the maximum of these keys' scores, and become relative to `most`, the maximum of more keys. */
__device__ inline float rescaling(float max, float most, float scale)
{
    return most == -INFINITY ? 0 : power_of_2((max - most) * scale);
}

/* Stores N columns, from c on, of a row of o. The thread whose c is 0 also stores the row's lse. */
template <class T, int N>
__device__ inline void write_result(const ax_attention_args &a, int64_t b, const query_row &q, int64_t c,
                                    pack<float, N> sums, float max, float sum)
{
    const bool some = max != -INFINITY; /* the query sees a key */
    const float factor = some ? 1 / sum : 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        sums.v[i] *= factor;
    write<T, float, N>(a.o, q.row * a.head_dim + c, sums);
    if (a.lse && c == 0)
        ((float *)a.lse)[(b * a.heads + q.h) * a.q_len + q.i] =
            some ? max * (float)a.scale + logf(sum) : -INFINITY;
}

/* Each warp computes the scores of 16 of the 64 keys of a tile, and keeps a maximum and sums of its own; the
 * thread block combines the sums of its warps at the end. */
template <class T, int D> __global__ void __launch_bounds__(THREADS) decode_kernel(decode s)
{
    __shared__ float max_of[WARPS][ROWS], sum_of[WARPS][ROWS];
    const ax_attention_args &a = s.a;
    decode_shared<T, D> &m = *(decode_shared<T, D> *)dynamic_shared();
    const int d = (int)a.head_dim, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int group = (int)a.heads / (int)a.kv_heads, rows = group * (int)a.q_len,
              tiles = (rows + ROWS - 1) / ROWS;
    const int g = (int)blockIdx.y / tiles, r0 = (int)blockIdx.y % tiles * ROWS;
    const int64_t b = blockIdx.z, keys = b * ax_attention_kv_batch(&a) + g * d;
    const rows_of<T> k = {(const T *)a.k + keys, (int)a.kv_ld, d},
                     v = {(const T *)a.v + keys, (int)a.kv_ld, d};
    const int64_t i0 = (r0 + lane / 4) / group, i8 = (r0 + lane / 4 + 8) / group;
    const int64_t offset = ax_attention_offset(&a, b), seen = offset + a.q_len;
    const key_range mine[2] = {{a.doc_start, a.window, b, i0, a.q_len, offset, a.kv_len},
                               {a.doc_start, a.window, b, i8, a.q_len, offset, a.kv_len}};
    const float scale = (float)a.scale * log2_e;
    int64_t j0 = s.begin + blockIdx.x * s.share;
    const int64_t part = j0 + s.share < s.end ? j0 + s.share : s.end, end = part < seen ? part : seen;
    for (int chunk = threadIdx.x; chunk < ROWS * (D / 8); chunk += THREADS) {
        int r = chunk / (D / 8), c = chunk % (D / 8) * 8;
        bool there = r0 + r < rows && c < d;
        const query_row q(a, b, g, group, there ? r0 + r : 0);
        copy_async(m.q + r * (D + 8) + c, (const T *)a.q + (b * a.q_len + q.i) * a.q_ld + q.h * d + c, there);
    }
    copy_rows_async<T, D, TILE>(m.k[0], k, j0, j0, end);
    copy_rows_async<T, D, TILE>(m.v[0], v, j0, j0, end);
    commit_copies();
    fragment_c o[D / 8] = {};
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    for (int stage = 0; j0 < end; j0 += TILE, stage ^= 1) {
        if (j0 + TILE < end) {
            copy_rows_async<T, D, TILE>(m.k[stage ^ 1], k, j0 + TILE, 0, end);
            copy_rows_async<T, D, TILE>(m.v[stage ^ 1], v, j0 + TILE, 0, end);
        }
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        fragment_c p[2] = {};
        rows_times_rows<T, D>(p, m.q, m.k[stage] + warp * 16 * (D + 8));
        const visible_part of[2] = {{mine[0], j0 + warp * 16, 16}, {mine[1], j0 + warp * 16, 16}};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float higher = max[half], added = 0;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                float &score = p[n / 2].v[2 * half + n % 2];
                score = of[half].has(n / 2 * 8 + n % 2) ? score : -INFINITY;
                higher = fmaxf(higher, score);
            }
            higher = over_quad<maximum>(higher);
            const float from = higher == -INFINITY ? 0 : higher * scale,
                        keep = rescaling(max[half], higher, scale);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                float &score = p[n / 2].v[2 * half + n % 2];
                score = power_of_2(score * scale - from);
                added += score;
            }
            sum[half] = sum[half] * keep + added;
            max[half] = higher;
#pragma unroll
            for (int c = 0; c < D / 8; c++) {
                o[c].v[2 * half] *= keep;
                o[c].v[2 * half + 1] *= keep;
            }
        }
        weighted_rows<T, D>(o, p, m.v[stage] + warp * 16 * (D + 8));
        __syncthreads(); /* the next iteration copies to this stage */
    }
    wait_copies<0>();
    float *sums = (float *)m.k + warp * ROWS * (D + 8);
    static_assert(sizeof m.k >= sizeof(float) * WARPS * ROWS * (D + 8), "the sums of warps do not fit");
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = lane / 4 + 8 * half;
        const float all = over_quad<plus>(sum[half]);
        if (lane % 4 == 0) {
            max_of[warp][r] = max[half];
            sum_of[warp][r] = all;
        }
#pragma unroll
        for (int c = 0; c < D / 8; c++)
            store<float, 2>(sums, r * (D + 8) + c * 8 + lane % 4 * 2,
                            {{o[c].v[2 * half], o[c].v[2 * half + 1]}});
    }
    __syncthreads();
    for (int at = threadIdx.x; at < ROWS * (D / 4); at += THREADS) {
        const int r = at / (D / 4), c = at % (D / 4) * 4;
        if (r0 + r >= rows || c >= d)
            continue;
        float most = -INFINITY, total = 0;
        for (int w = 0; w < WARPS; w++)
            most = fmaxf(most, max_of[w][r]);
        pack<float, 4> all = {};
        for (int w = 0; w < WARPS; w++) {
            const float weight = rescaling(max_of[w][r], most, scale);
            const pack<float, 4> x = load<float, 4>(m.k, (w * ROWS + r) * (D + 8) + c);
            total += sum_of[w][r] * weight;
#pragma unroll
            for (int e = 0; e < 4; e++)
                all.v[e] += x.v[e] * weight;
        }
        const query_row q(a, b, g, group, r0 + r);
        if (s.parts == 1) {
            write_result<T, 4>(a, b, q, c, all, most, total);
            continue;
        }
        const int64_t at_part = q.row * s.parts + blockIdx.x;
        store<float, 4>(s.sums, at_part * d + c, all);
        if (c == 0)
            store<float, 2>(s.stats, at_part * 2, {{most, total}});
    }
}

/* Combines the results of the parts of the keys; a warp handles a row. */
template <class T> __global__ void combine_kernel(decode s)
{
    const ax_attention_args &a = s.a;
    const int lane = threadIdx.x % WARP;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, first = row * s.parts;
    const float scale = (float)a.scale * log2_e;
    if (row >= a.batch * a.q_len * a.heads)
        return;
    pack<float, 2> mine[2] = {{{-INFINITY, 0}}, {{-INFINITY, 0}}};
    for (int n = 0; n < 2; n++)
        if (lane + n * WARP < s.parts)
            mine[n] = load<float, 2>(s.stats, (first + lane + n * WARP) * 2);
    const float most = over_warp<maximum>(fmaxf(mine[0].v[0], mine[1].v[0]));
    float weight[2];
    for (int n = 0; n < 2; n++)
        weight[n] = rescaling(mine[n].v[0], most, scale);
    const float total = over_warp<plus>(mine[0].v[1] * weight[0] + mine[1].v[1] * weight[1]);
    const int64_t query = row / a.heads, b = query / a.q_len;
    const query_row q = {query - b * a.q_len, row - query * a.heads, row};
    for (int64_t c = lane * 4; c - lane * 4 < a.head_dim; c += WARP * 4) {
        pack<float, 4> all = {};
#pragma unroll 4
        for (int p = 0; p < (int)s.parts; p++) {
            const float factor = __shfl_sync(0xffffffffu, p < WARP ? weight[0] : weight[1], p % WARP);
            if (c >= a.head_dim)
                continue;
            const pack<float, 4> x = load<float, 4>(s.sums, (first + p) * a.head_dim + c);
#pragma unroll
            for (int e = 0; e < 4; e++)
                all.v[e] += x.v[e] * factor;
        }
        if (c < a.head_dim)
            write_result<T, 4>(a, b, q, c, all, most, total);
    }
}

/* Splits the keys that causality and the window let any query see (with positions of sequences: all keys)
 * into parts of whole tiles: as many parts as give WANTED thread blocks, but at most MOST, and at most as
 * many as have room for their results in scratch. Returns the number of thread blocks for each part of each
 * sequence. */
int64_t split_keys(const ax_cuda *cu, decode *s)
{
    const ax_attention_args *a = &s->a;
    const int64_t group = a->heads / ax_max(a->kv_heads, 1),
                  blocks = a->kv_heads * ax_ceil_div(group * a->q_len, ROWS),
                  rows = a->batch * a->q_len * a->heads;
    s->begin = a->window > 0 && !a->positions ? ax_max(0, a->q_offset - a->window + 1) : 0;
    s->end = a->positions ? a->kv_len : ax_max(s->begin, ax_min(a->kv_len, a->q_offset + a->q_len));
    const int64_t tiles = ax_max(1, ax_ceil_div(s->end - s->begin, TILE)),
                  fit = cu->scratch_bytes / ((int64_t)sizeof(float) * (a->head_dim + 2) * ax_max(rows, 1)),
                  wanted = ax_ceil_div(WANTED, ax_max(blocks * a->batch, 1));
    s->share = TILE * ax_ceil_div(tiles, ax_max(1, ax_min(ax_min(wanted, MOST), fit)));
    s->parts = ax_ceil_div(tiles * TILE, s->share);
    s->sums = (float *)cu->scratch;
    s->stats = s->sums + rows * s->parts * a->head_dim;
    return blocks;
}

} // namespace

bool ax_cuda_decode_takes(const ax_attention_args *a)
{
    return a->q_len < 16 && a->kv_batch_stride % 8 == 0 && a->drop.p == 0 && !a->chosen &&
           fits(a, {a->q, a->k, a->v, a->o});
}

ax_status ax_cuda_decode(ax_stream *stream, const ax_attention_args *a)
{
    const ax_cuda *cu = ax_cuda_of(stream);
    decode s = {*a, 0, 0, 0, 0, NULL, NULL};
    const int64_t blocks = split_keys(cu, &s), rows = a->batch * a->q_len * a->heads;
    return by_form(a->dtype, a->head_dim, [&](auto form) {
        typedef typename decltype(form)::type T;
        const int D = decltype(form)::value;
        AX_TRY(run(stream, decode_kernel<T, D>, dim3((unsigned)s.parts, (unsigned)blocks, (unsigned)a->batch),
                   THREADS, sizeof(decode_shared<T, D>), s));
        return s.parts > 1
                   ? run(stream, combine_kernel<T>, (unsigned)ax_ceil_div(rows, WARPS), WARPS * WARP, 0, s)
                   : AX_OK;
    });
}
