/* Cross-entropy over a vocabulary that may be split over ranks, and embedding lookup. Work items are rows;
 * for embedding_grad they are columns, so that each thread adds all rows to its own columns. */
#ifndef AX_DEV_CPU_LOSS_KERNELS_H
#define AX_DEV_CPU_LOSS_KERNELS_H

#include "pointwise_kernels.h"

/* Returns the maximum of a row of logits that begins at element `at`. */
INLINE float max_of_row(const ax_ce_stats_args *a, int64_t at, vtype type)
{
    enum { MOST = 4 }; /* number of independent maxima, which hide the latency of the max instruction */
    vf most[MOST];
    int64_t c = 0;
    UNROLL
    for (int i = 0; i < MOST; i++)
        most[i] = vset(-INFINITY);
    for (; c + MOST * W <= a->vocab; c += MOST * W) {
        UNROLL
        for (int i = 0; i < MOST; i++)
            most[i] = vmax(vget(a->logits, at + c + i * W, W, type), most[i]);
    }
    for (; c + W <= a->vocab; c += W)
        most[0] = vmax(vget(a->logits, at + c, W, type), most[0]);
    float max = vhmax(vmax(vmax(most[0], most[1]), vmax(most[2], most[3])));
    for (; c < a->vocab; c++) {
        float x = vget_one(a->logits, at + c, type);
        max = x > max ? x : max;
    }
    return max;
}

/* Returns the target's column among this rank's columns of the logits, or -1 if the target is masked
 * (negative) or its column belongs to another rank. */
INLINE int64_t target_column(const int32_t *targets, int64_t r, int64_t first, int64_t vocab)
{
    int64_t column = targets[r] - first;
    return targets[r] >= 0 && column >= 0 && column < vocab ? column : -1;
}

/* Replaces each x by e^(x - max). `roughly`: only with the accuracy that a result in bf16 or fp16 needs. */
INLINE void exp_less_each(vf *x, int count, vf max, bool roughly)
{
    EACH(v, count) x[v] = (x[v] - max) * vset((float)LOG2E);
    vexp2_each(x, count, roughly);
}

INLINE vf exp_less(vf x, vf max, bool roughly)
{
    exp_less_each(&x, 1, max, roughly);
    return x;
}

/* Reads each row of logits twice. The second time most of the row is still in the core's cache. */
INLINE void ce_stats_range(const ax_ce_stats_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo; r < hi; r++) {
        int64_t c = 0, at = r * a->ld;
        ((float *)a->max)[r] = max_of_row(a, at, type);
        vf max = vset(((const float *)a->max)[r]), sum[AT_ONCE], x[AT_ONCE];
        EACH(v, AT_ONCE) sum[v] = vset(0);
        int64_t target = target_column(a->targets, r, a->first, a->vocab);
        for (; c + AT_ONCE * W <= a->vocab; c += AT_ONCE * W) {
            EACH(v, AT_ONCE) x[v] = vget(a->logits, at + c + v * W, W, type);
            exp_less_each(x, AT_ONCE, max, false);
            EACH(v, AT_ONCE) sum[v] = sum[v] + x[v];
        }
        for (; c + W <= a->vocab; c += W)
            sum[0] = sum[0] + exp_less(vget(a->logits, at + c, W, type), max, false);
        for (int v = 1; v < AT_ONCE; v++)
            sum[0] = sum[0] + sum[v];
        float tail = 0, part[W];
        for (; c < a->vocab; c += W) {
            vstore(part, exp_less(vget(a->logits, at + c, a->vocab - c, type), max, false));
            for (int64_t i = 0; i < ax_min(W, a->vocab - c); i++)
                tail += part[i];
        }
        ((float *)a->sum)[r] = vsum(sum[0]) + tail;
        ((float *)a->target_logit)[r] = 0;
        if (target >= 0) {
            vstore(part, vget(a->logits, at + target, 1, type));
            ((float *)a->target_logit)[r] = part[0];
        }
    }
}
BY_DTYPE(ce_stats)

/* Returns how many of the logits at elements at ... end-1 are larger than `logit`; with `equal`, those that
 * are equal count too. */
INLINE int32_t count_better(const void *logits, int64_t at, int64_t end, float logit, bool equal, vtype type)
{
    const vf target = vset(logit), one = vset(1), none = vset(0);
    int32_t better = 0;
    for (int64_t stop; at < end; at = stop) { /* a lane counts in fp32, which is exact up to 2^24 */
        vf count = none;
        stop = ax_min(end, at + ((int64_t)1 << 20));
        for (; at + W <= stop; at += W) {
            vf x = vget(logits, at, W, type);
            count = count + (equal ? vless(x, target, none, one) : vless(target, x, one, none));
        }
        better += (int32_t)vsum(count);
        for (; at < stop; at++) {
            float x = vget_one(logits, at, type);
            better += equal ? x >= logit : x > logit;
        }
    }
    return better;
}

INLINE void ce_rank_range(const ax_ce_rank_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo; r < hi; r++) {
        const int64_t at = r * a->ld, end = at + a->vocab,
                      target = ax_min(ax_max(a->targets[r] - a->first, 0), a->vocab);
        const float logit = ((const float *)a->target_logit)[r];
        a->rank[r] = a->targets[r] < 0 ? 0
                                       : count_better(a->logits, at, at + target, logit, true, type) +
                                             count_better(a->logits, at + target, end, logit, false, type);
    }
}
BY_DTYPE(ce_rank)

INLINE void ce_grad_range(const ax_ce_grad_args *a, int64_t lo, int64_t hi, vtype type)
{
    const bool roughly = type != VF32;
    const double scale = a->scale * (a->now ? a->now->loss_scale : 1);
    size_t size = (size_t)vsize(type);
    for (int64_t r = lo; r < hi; r++) {
        int64_t at = r * a->ld, target = target_column(a->targets, r, a->first, a->vocab);
        if (a->targets[r] < 0) {
            memset((char *)a->logits + (size_t)at * size, 0, (size_t)a->vocab * size);
            continue;
        }
        float max = ((const float *)a->max)[r];
        vf share = vset((float)(scale / ((const float *)a->sum)[r])), most = vset(max);
        float at_target[W] = {0};
        if (target >= 0) { /* the target's gradient, computed before its logit is overwritten. For probability
                              p it is (p - 1)·scale; p·scale - scale would lose digits */
            vf p = exp_less(vget(a->logits, at + target, 1, type), most, false) *
                   vset(1 / ((const float *)a->sum)[r]);
            vstore(at_target, (p - vset(1.0f)) * vset((float)scale));
        }
        int64_t c = 0;
        for (; c + AT_ONCE * W <= a->vocab; c += AT_ONCE * W) {
            vf x[AT_ONCE];
            EACH(v, AT_ONCE) x[v] = vget(a->logits, at + c + v * W, W, type);
            exp_less_each(x, AT_ONCE, most, roughly);
            EACH(v, AT_ONCE) vput(a->logits, at + c + v * W, W, type, x[v] * share);
        }
        for (; c < a->vocab; c += W) {
            int64_t n = a->vocab - c;
            vput(a->logits, at + c, n, type,
                 exp_less(vget(a->logits, at + c, n, type), most, roughly) * share);
        }
        if (target >= 0)
            vput(a->logits, at + target, 1, type, vload(at_target));
    }
}
BY_DTYPE(ce_grad)

/* ---- embedding ----------------------------------------------------------------------------------- */

INLINE void embedding_range(const ax_embedding_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo; r < hi; r++) {
        int64_t row = (int64_t)a->ids[r] - a->first;
        bool here = row >= 0 && row < a->count;
        if (!here && a->accumulate)
            continue;
        for (int64_t c = 0; c < a->cols; c += W) {
            int64_t n = a->cols - c, at = r * a->cols + c;
            vf x = here ? vget(a->table, row * a->cols + c, n, type) : vset(0);
            if (a->accumulate)
                x = x + vget(a->y, at, n, type);
            vput(a->y, at, n, type, x);
        }
    }
}
BY_DTYPE(embedding)

/* Adds to an fp32 dtable. */
INLINE void add_rows(const ax_embedding_grad_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t row = (int64_t)a->ids[r] - a->first;
        if (row < 0 || row >= a->count)
            continue;
        for (int64_t c = lo; c < hi; c += W) {
            int64_t at = row * a->cols + c, n = hi - c;
            vput(a->dtable, at, n, VF32,
                 vget(a->dtable, at, n, VF32) + vget(a->dy, r * a->cols + c, n, type));
        }
    }
}

/* Adds to `count` vectors of row `row` of a 16-bit dtable, from column c on, row r of dy and the rows after
 * it that have the same id. The sum is rounded once. */
INLINE void add_linked(const ax_embedding_grad_args *a, const ax_cpu_linked_rows *l, int64_t row, int64_t r,
                       int64_t c, int64_t n, int count, vtype type)
{
    const int64_t at = row * a->cols + c;
    vf sum[WIDE];
    EACH(v, count) sum[v] = vget(a->dtable, at + v * W, n, type);
    for (; r >= 0; r = l->next[r])
        EACH(v, count) sum[v] = sum[v] + vget(a->dy, (l->first + r) * a->cols + c + v * W, n, type);
    EACH(v, count) vput(a->dtable, at + v * W, n, type, sum[v]);
}

/* Adds to a 16-bit dtable, which has the type of dy. */
INLINE void add_linked_rows(const ax_embedding_grad_args *a, const ax_cpu_linked_rows *l, int64_t lo,
                            int64_t hi, vtype type)
{
    for (int64_t r = 0; r < l->n; r++) {
        int64_t row = (int64_t)a->ids[l->first + r] - a->first, c = lo;
        if (row < 0 || row >= a->count || l->follows[r])
            continue;
        for (; c + WIDE * W <= hi; c += WIDE * W)
            add_linked(a, l, row, r, c, W, WIDE, type);
        for (; c < hi; c += W)
            add_linked(a, l, row, r, c, hi - c, 1, type);
    }
}

static void embedding_grad(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_cpu_embedding_grad *job = args;
    const ax_embedding_grad_args *a = job->args;
    (void)scratch;
    if (a->table_dtype == AX_F32)
        BY_VTYPE(add_rows, a->dtype, a, lo, hi);
    else if (a->table_dtype == AX_BF16)
        add_linked_rows(a, &job->linked, lo, hi, VBF16);
    else
        add_linked_rows(a, &job->linked, lo, hi, VF16);
}

#endif
