/* Kernels of attention that reads few keys: turn, which takes heads into another basis, and choose, which
 * chooses keys.
 *
 * A work item of choose is one choice: of a head or a group of heads, for one query. Its scores become
 * integers of the same order. Bisection finds the least integer that is chosen: it counts how many are at
 * least the middle of the range, and ends early where exactly as many are as are wanted. */
#ifndef AX_DEV_CPU_CHOOSE_KERNELS_H
#define AX_DEV_CPU_CHOOSE_KERNELS_H

#include <limits.h>

#include "panel_kernels.h"

/* ---- turn ---------------------------------------------------------------------------------------- */

enum { TURN_ROWS = 4, TURN_VECTORS = 2 };

/* Computes y[r] = x[r] · p for `rows` rows and `vectors` vectors of columns from column c on. x: rows of d
 * floats, AX_CPU_MAX_HEAD_DIM apart. `y`: row r is at element at[r]. */
INLINE void turn_columns(const float *x, const float *p, int64_t d, int64_t c, int rows, int vectors,
                         const int64_t *at, void *y, vtype type)
{
    vf sum[TURN_ROWS][TURN_VECTORS];
    UNROLL
    for (int r = 0; r < rows; r++)
        EACH(v, vectors) sum[r][v] = vset(0);
    for (int64_t i = 0; i < d; i++)
        EACH(v, vectors)
        {
            vf column = vget(p, i * d + c + v * W, d - c - v * W, VF32);
            UNROLL
            for (int r = 0; r < rows; r++)
                sum[r][v] = vfma(vset(x[r * AX_CPU_MAX_HEAD_DIM + i]), column, sum[r][v]);
        }
    UNROLL
    for (int r = 0; r < rows; r++)
        EACH(v, vectors) vput(y, at[r] + c + v * W, d - c - v * W, type, sum[r][v]);
}

INLINE void turn_rows(const ax_turn_args *a, int64_t h, int64_t r0, int rows, vtype type)
{
    const int64_t d = a->head_dim;
    const float *p = (const float *)a->turn + h / (a->heads / a->kv_heads) * d * d;
    float x[TURN_ROWS * AX_CPU_MAX_HEAD_DIM];
    int64_t at[TURN_ROWS], c = 0;
    for (int r = 0; r < rows; r++) {
        at[r] = (r0 + r) * a->ld + h * d;
        for (int64_t i = 0; i < d; i += W)
            vput(x, r * AX_CPU_MAX_HEAD_DIM + i, d - i, VF32, vget(a->x, at[r] + i, d - i, type));
    }
    for (; c + W < d; c += TURN_VECTORS * W)
        turn_columns(x, p, d, c, rows, TURN_VECTORS, at, a->x, type);
    if (c < d)
        turn_columns(x, p, d, c, rows, 1, at, a->x, type);
}

/* Items are rows of a head: item h·rows + r. */
INLINE void turn_range(const ax_turn_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t item = lo, n; item < hi; item += n) {
        const int64_t h = item / a->rows, r = item % a->rows;
        n = ax_min(ax_min(hi - item, a->rows - r), TURN_ROWS);
        if (n == TURN_ROWS)
            turn_rows(a, h, r, TURN_ROWS, type);
        else
            for (int64_t i = 0; i < n; i++)
                turn_rows(a, h, r + i, 1, type);
    }
}

static void turn(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_turn_args *a = args;
    (void)scratch;
    BY_VTYPE(turn_range, a->dtype, a, lo, hi);
}

/* ---- select -------------------------------------------------------------------------------------- */

/* HEADS_OF_CHOICE: how many heads of a group are scored together. */
enum { HEADS_OF_CHOICE = 4 };

/* The scores of a choice, for keys lo … hi-1 of the sequence: those that the query sees. An integer below
 * INT_MIN + 1 is no score. */
typedef struct key_choice {
    const ax_choose_args *a;
    int64_t b, i, lo, hi;
    float *score;                /* [room]: element j - base is that of key j */
    float *one[HEADS_OF_CHOICE]; /* [room]: scores of heads of a group, `ones` at a time */
    int64_t ones;
    int32_t *order; /* [room], the memory of `score`: its ax_choose_order; INT_MIN where there is no key */
    int64_t base, room; /* multiples of 64: the first key, and the number, of the keys in these arrays */
} key_choice;

/* Returns the scores of keys j … j+W-1, of which those from hi-1 on are repeated, for the query q. */
INLINE vf score_keys(const ax_choose_args *a, const float *q, int64_t k_at, int64_t j, int64_t hi, vtype type)
{
    vf dot[W];
    int64_t at[W];
    for (int n = 0; n < W; n++) {
        at[n] = k_at + ax_min(j + n, hi - 1) * a->k_ld;
        dot[n] = vset(0);
    }
    for (int64_t c = 0; c < a->width; c += W) {
        const vf x = vload(q + c);
        UNROLL
        for (int n = 0; n < W; n++)
            dot[n] = vfma(x, vget(a->k, at[n] + c, a->width - c, type), dot[n]);
    }
    return vsum_each(dot, W);
}

/* Writes the scores of n heads from head h on, which have a key head in common, to `to`, from element lo -
 * base of each on. For several heads, W keys are widened once for all of them. Rows ahead are prefetched: the
 * hardware does not follow the heads of a cache, whose rows are k_ld elements apart. */
INLINE void score_heads(const key_choice *s, int64_t h, int n, float *const *to, vtype type)
{
    const ax_choose_args *a = s->a;
    const int64_t size = vsize(type), q_at = (s->b * a->q_len + s->i) * a->q_ld + h * a->q_step,
                  k_at = s->b * a->k_batch_stride + h / (a->heads / a->kv_heads) * a->k_step,
                  row = ax_round_up(a->width, W);
    float q[HEADS_OF_CHOICE * AX_CPU_MAX_HEAD_DIM], wide[W * AX_CPU_MAX_HEAD_DIM];
    ax_choose_args widened = *a;
    const head_rows rows = {(const char *)a->k + (k_at + s->lo * a->k_ld) * size, a->k_ld * size,
                            a->width * size, s->hi - s->lo};
    for (int r = 0; r < n; r++)
        for (int64_t c = 0; c < a->width; c += W)
            vstore(q + r * row + c, vget(a->q, q_at + r * a->q_step + c, a->width - c, type));
    widened.k = wide, widened.k_ld = row, widened.width = row;
    for (int64_t j = s->lo; j < s->hi; j += W) {
        prefetch_rows(&rows, j - s->lo + 2 * ROWS_AHEAD, j - s->lo + 2 * ROWS_AHEAD + W);
        if (n == 1) {
            vstore(to[0] + (j - s->base), score_keys(a, q, k_at, j, s->hi, type));
            continue;
        }
        for (int64_t i = 0; i < W; i++)
            for (int64_t c = 0; c < a->width; c += W)
                vstore(wide + i * row + c,
                       vget(a->k, k_at + ax_min(j + i, s->hi - 1) * a->k_ld + c, a->width - c, type));
        for (int r = 0; r < n; r++)
            vstore(to[r] + (j - s->base), score_keys(&widened, q + r * row, 0, 0, W, VF32));
    }
}

/* Scores the keys for a group of heads: the largest, over the heads, of a score minus the head's largest
 * score, which is at most 0. Infinity stands for NaN, which a difference of infinite scores is, too. */
INLINE void score_group(const key_choice *s, int64_t h0, int64_t heads, vtype type)
{
    const int64_t first = s->lo - s->base, end = s->hi - s->base;
    for (int64_t j = first; j < end; j += W)
        vstore(s->score + j, vset(-INFINITY));
    for (int64_t h = h0, n; h < h0 + heads; h += n) {
        n = ax_min(s->ones, h0 + heads - h);
        score_heads(s, h, (int)n, s->one, type);
        for (int r = 0; r < n; r++) {
            const float *one = s->one[r];
            vf most = vset(-INFINITY);
            for (int64_t j = first; j < end; j += W)
                most = vmax(vload(one + j), most);
            most = vset(vhmax(most));
            for (int64_t j = first; j < end; j += W) {
                const vf x = vload(one + j) - most;
                vstore(s->score + j, vmax(vless(x, vset(INFINITY), x, vset(INFINITY)), vload(s->score + j)));
            }
        }
    }
}

/* Returns a bit for each of the 64 keys from element j on: whether its integer is `least` or more. */
INLINE uint64_t reach(const key_choice *s, int64_t j, int32_t least)
{
    uint64_t bits = 0;
    UNROLL
    for (int n = 0; n < 64; n += W)
        bits |= (uint64_t)vreach(s->order + j + n, least) << n;
    return bits;
}

/* Returns how many scores are `least` or more. */
INLINE int64_t count_from(const key_choice *s, int32_t least)
{
    int64_t n = 0;
    for (int64_t j = 0; j < s->room; j += 64)
        n += __builtin_popcountll(reach(s, j, least));
    return n;
}

/* Makes the scores integers, and sets *low and *high to the smallest and the largest. The inner loops, of
 * constant length, become SIMD. */
INLINE void order_scores(const key_choice *s, int32_t *low, int32_t *high)
{
    int32_t least = INT_MAX, most = INT_MIN;
    for (int64_t j = 0; j < s->room; j += 64)
        for (int n = 0; n < 64; n++) {
            float x;
            memcpy(&x, s->order + j + n, sizeof x);
            s->order[j + n] = ax_choose_order(x);
        }
    for (int64_t j = 0; j < s->lo - s->base; j++)
        s->order[j] = most;
    for (int64_t j = s->hi - s->base; j < s->room; j++)
        s->order[j] = most;
    for (int64_t j = 0; j < s->room; j += 64)
        for (int n = 0; n < 64; n++) {
            const int32_t x = s->order[j + n];
            most = x > most ? x : most;
            least = x < least && x > INT_MIN ? x : least;
        }
    *low = least;
    *high = most;
}

/* Finds the scores that are chosen, of which there are n: all from *least on, but only the first *ties of
 * those that equal *least. */
INLINE void find_least(const key_choice *s, int64_t n, int32_t *least, int64_t *ties)
{
    int32_t low, high;
    order_scores(s, &low, &high);
    int64_t lo = low, hi = (int64_t)high + 1,
            above = 0; /* from lo on there are n or more, from hi on `above` */
    while (hi - lo > 1) {
        const int64_t middle = lo + (hi - lo) / 2, count = count_from(s, (int32_t)middle);
        if (count >= n)
            lo = middle;
        else
            hi = middle, above = count;
        if (count == n)
            break;
    }
    *least = (int32_t)lo;
    *ties = n - above;
}

/* Sets the bits of the keys from *least on. */
INLINE void set_bits(const key_choice *s, int32_t least, int64_t ties, uint64_t *bits)
{
    for (int64_t j = 0; j < s->room; j += 64) {
        uint64_t from = reach(s, j, least);
        uint64_t equal = least < INT_MAX ? from & ~reach(s, j, least + 1) : from;
        for (; equal; equal &= equal - 1) {
            if (ties-- <= 0)
                from &= ~(equal & -equal);
        }
        bits[(s->base + j) / 64] = from;
    }
}

INLINE void choose_item(const ax_choose_args *a, int64_t item, char *scratch, vtype type)
{
    const ax_attention_args seen = ax_attention_of_choose(a);
    const int64_t choosers = ax_choosers(a), heads = a->heads / choosers, query = item / choosers,
                  c = item % choosers, words = ax_ceil_div(a->kv_len, 64);
    key_choice s = {.a = a, .b = query / a->q_len, .i = query % a->q_len};
    const int64_t position = ax_attention_offset(&seen, s.b) + s.i;
    uint64_t *bits = a->chosen + item * words;
    memset(bits, 0, (size_t)words * sizeof *bits);
    s.lo = ax_attention_first_key(a->doc_start, query, a->window, position);
    s.hi = ax_min(position + 1, a->kv_len);
    if (s.lo >= s.hi)
        return;
    s.base = s.lo / 64 * 64;
    s.room = ax_round_up(s.hi - s.base, 64);
    s.score = (float *)(void *)scratch;
    s.order = (int32_t *)(void *)scratch;
    const int64_t row =
        s.room + W; /* scores are written in whole vectors, which may end after the last key */
    s.ones = ax_min(HEADS_OF_CHOICE, AX_CPU_SCRATCH / (row * (int64_t)sizeof(float)) - 1);
    for (int64_t n = 0; n < s.ones; n++)
        s.one[n] = s.score + (n + 1) * row;
    if (heads > 1)
        score_group(&s, c * heads, heads, type);
    else
        score_heads(&s, c, 1, &s.score, type);
    int32_t least;
    int64_t ties;
    find_least(&s, ax_choose_count(a->keys, a->share, s.hi - s.lo), &least, &ties);
    set_bits(&s, least, ties, bits);
}

INLINE void choose_range(const ax_choose_args *a, int64_t lo, int64_t hi, void *scratch, vtype type)
{
    for (int64_t item = lo; item < hi; item++)
        choose_item(a, item, scratch, type);
}

static void choose(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_choose_args *a = args;
    BY_VTYPE(choose_range, a->dtype, a, lo, hi, scratch);
}

#endif
