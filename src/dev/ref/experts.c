/* The kernels of mixtures of experts: choices of tokens, their order, rows moved by it, and grouped GEMMs. */
#include "dev/backend.h"
#include "dev/ref/ref.h"

#include <math.h>
#include <string.h>

/* ---- router -------------------------------------------------------------------------------------- */

/* Stores probs and lse of a token. A NaN among the logits makes all of them NaN. */
static void softmax(const ax_route_args *a, int64_t row)
{
    double max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < a->experts; e++)
        max = fmax(max, ax_load(a->dtype, a->logits, row * a->experts + e));
    for (int64_t e = 0; e < a->experts; e++)
        sum += exp(ax_load(a->dtype, a->logits, row * a->experts + e) - max);
    for (int64_t e = 0; e < a->experts; e++) {
        double x = ax_load(a->dtype, a->logits, row * a->experts + e);
        ax_store(a->dtype, a->probs, row * a->experts + e, exp(x - max) / sum);
    }
    ax_store(a->dtype, a->lse, row, max + log(sum));
}

/* Returns true if expert e has probability `p` and comes after expert `before` (-1: none), which has the
 * probability `last`, in descending order. */
static bool comes_after(double p, int64_t e, double last, int64_t before)
{
    if (before < 0)
        return true;
    if (isnan(last))
        return isnan(p) && e > before;
    return isnan(p) || p < last || (p == last && e > before);
}

/* Chooses the expert after `before` in descending order of probabilities; -1 as `before`: the first. */
static int64_t next_choice(const ax_route_args *a, int64_t row, int64_t before)
{
    int64_t best = -1;
    double top = NAN, last = before < 0 ? NAN : ax_load(a->dtype, a->probs, row * a->experts + before);
    for (int64_t e = 0; e < a->experts; e++) {
        double p = ax_load(a->dtype, a->probs, row * a->experts + e);
        if (comes_after(p, e, last, before) && (best < 0 || p > top || (isnan(top) && !isnan(p)))) {
            best = e;
            top = p;
        }
    }
    return best;
}

ax_status ref_route(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_route_args *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t e = -1;
        double sum = 0;
        softmax(a, r);
        for (int64_t j = 0; j < a->top_k; j++) {
            e = next_choice(a, r, e);
            a->choice[r * a->top_k + j] = (int32_t)e;
            sum += ax_load(a->dtype, a->probs, r * a->experts + e);
        }
        for (int64_t j = 0; j < a->top_k; j++) {
            double p = ax_load(a->dtype, a->probs, r * a->experts + a->choice[r * a->top_k + j]);
            ax_store(a->dtype, a->weight, r * a->top_k + j, a->renormalize ? p / sum : p);
        }
    }
    return AX_OK;
}

ax_status ref_admit(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_admit_args *a = args;
    for (int64_t s = 0; s < a->samples; s++)
        for (int32_t e = 0; e < a->experts; e++) {
            const int64_t first = (e * a->samples + s) * a->capacity;
            int64_t used = 0;
            for (int64_t c = s * a->tokens * a->top_k; c < (s + 1) * a->tokens * a->top_k; c++) {
                if (a->choice[c] != e)
                    continue;
                const bool padding = a->ids && a->ids[c / a->top_k] < 0;
                const bool fits = !padding && used < a->capacity;
                if (a->place)
                    a->place[c] = fits ? (int32_t)(first + used) : -1;
                if (a->source && fits)
                    a->source[first + used] = (int32_t)c;
                if (fits)
                    used++;
                else
                    a->choice[c] = ~e;
            }
            for (; a->source && used < a->capacity; used++)
                a->source[first + used] = -1;
        }
    return AX_OK;
}

/* Computes the row of `share` of expert e in sample s with `counted` tokens, and adds to the totals. */
static void sum_expert(const ax_route_stats_args *a, int64_t s, int64_t e, double counted)
{
    double count = 0, dropped = 0, probs = 0;
    for (int64_t i = s * a->tokens; i < (s + 1) * a->tokens; i++) {
        if (a->ids && a->ids[i] < 0)
            continue;
        probs += ax_load(a->dtype, a->probs, i * a->experts + e);
        for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++) {
            count += AX_EXPERT_OF(a->choice[j]) == e;
            dropped += a->choice[j] == ~e;
        }
    }
    double share = counted > 0 ? (double)a->experts * count / counted : 0;
    ax_store(a->dtype, a->share, s * (a->experts + 1) + e, share);
    a->total[0] += counted > 0 ? share * probs / counted : 0;
    a->total[2 + e] += count;
    a->total[2 + a->experts] += dropped;
}

ax_status ref_route_stats(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_route_stats_args *a = args;
    for (int64_t s = 0; s < a->samples; s++) {
        double counted = 0, squares = 0;
        for (int64_t i = s * a->tokens; i < (s + 1) * a->tokens; i++) {
            double lse = ax_load(a->dtype, a->lse, i);
            if (a->ids && a->ids[i] < 0)
                continue;
            counted++;
            squares += lse * lse;
        }
        for (int64_t e = 0; e < a->experts; e++)
            sum_expert(a, s, e, counted);
        ax_store(a->dtype, a->share, s * (a->experts + 1) + a->experts, counted > 0 ? 1 / counted : 0);
        a->total[1] += counted > 0 ? squares / counted : 0;
    }
    return AX_OK;
}

/* Returns the gradient of the probability of expert e from the weight of the choice that it is, if it is one.
 * `sum`: of the token's chosen probabilities; `mean`: Σ_j weight·dweight. */
static double choice_grad(const ax_route_grad_args *a, int64_t i, int64_t e, double sum, double mean)
{
    for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++)
        if (AX_EXPERT_OF(a->choice[j]) == e) {
            double dw = ax_load(ax_dtype_accum(a->dtype), a->dweight, j);
            return a->renormalize ? (dw - mean) / sum : dw;
        }
    return 0;
}

static void route_grad_of_token(const ax_route_grad_args *a, int64_t s, int64_t i)
{
    const ax_dtype accum = ax_dtype_accum(a->dtype);
    const int64_t E = a->experts;
    const bool counts = a->share && !(a->ids && a->ids[i] < 0);
    const double per_token =
        counts ? ax_load(accum, a->share, s * (E + 1) + E) * (a->now ? a->now->sample_scale : 1) : 0;
    double sum = 0, mean = 0, dot = 0;
    for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++) {
        sum += ax_load(accum, a->probs, i * E + AX_EXPERT_OF(a->choice[j]));
        mean += ax_load(accum, a->weight, j) * ax_load(accum, a->dweight, j);
    }
    for (int pass = 0; pass < 2; pass++) /* first the sum over experts, then the gradients */
        for (int64_t e = 0; e < E; e++) {
            double p = ax_load(accum, a->probs, i * E + e), dp = choice_grad(a, i, e, sum, mean);
            if (counts)
                dp += a->balance * per_token * ax_load(accum, a->share, s * (E + 1) + e);
            if (pass == 0)
                dot += p * dp;
            else
                ax_store(a->dtype, a->dlogits, i * E + e,
                         p * (dp - dot + (counts ? 2 * a->z * per_token * ax_load(accum, a->lse, i) : 0)));
        }
}

ax_status ref_route_grad(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_route_grad_args *a = args;
    for (int64_t i = 0; i < a->samples * a->tokens; i++)
        route_grad_of_token(a, i / a->tokens, i);
    return AX_OK;
}

/* ---- rows ---------------------------------------------------------------------------------------- */

/* Returns true if choice c is of a group that is sorted. */
static bool is_sorted(const ax_group_args *a, int64_t c)
{
    return a->group[c] >= a->first && a->group[c] < a->first + a->groups;
}

/* Makes the bounds of all rounds of those of all rows, which are where those of the first round belong. */
static void cut_rounds(const ax_group_args *a)
{
    for (int64_t i = a->rounds - 1; i >= 0; i--)
        for (int64_t g = 0; g <= a->groups; g++)
            a->bounds[i * (a->groups + 1) + g] =
                (int32_t)ax_max(ax_min(a->bounds[g] - i * a->rows, a->rows), 0);
}

ax_status ref_group(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_group_args *a = args;
    memset(a->bounds, 0, (size_t)(a->groups + 1) * sizeof *a->bounds);
    for (int64_t c = 0; c < a->n; c++)
        if (is_sorted(a, c))
            a->bounds[a->group[c] - a->first + 1]++;
    for (int64_t g = 0; g < a->groups; g++)
        a->bounds[g + 1] += a->bounds[g];
    for (int64_t r = 0; r < a->rounds * a->rows; r++)
        a->source[r] = -1;
    /* bounds[g] counts up to the end of group g; then the entries move back by one. */
    for (int64_t c = 0; c < a->n; c++) {
        a->place[c] = is_sorted(a, c) ? a->bounds[a->group[c] - a->first]++ : -1;
        if (a->place[c] >= 0)
            a->source[a->place[c]] = (int32_t)c;
    }
    for (int64_t g = a->groups; g > 0; g--)
        a->bounds[g] = a->bounds[g - 1];
    a->bounds[0] = 0;
    cut_rounds(a);
    return AX_OK;
}

ax_status ref_dispatch(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_dispatch_args *a = args;
    double x[REF_BLOCK];
    for (int64_t r = 0; r < a->rows; r++)
        for (ref_blocks(a->cols, at, count)) {
            const int64_t c = a->source[r];
            const double scale = c >= 0 && a->scale ? ax_load(ax_dtype_accum(a->dtype), a->scale, c) : 1;
            if (c < 0 && !a->zeros)
                continue;
            memset(x, 0, sizeof x);
            if (c >= 0)
                ref_read(a->dtype, a->x, c / a->top_k * a->cols + at, count, x);
            for (int64_t i = 0; i < count; i++)
                x[i] *= scale;
            ref_write(a->dtype, a->y, r * a->cols + at, count, x);
        }
    return AX_OK;
}

ax_status ref_scatter(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_scatter_args *a = args;
    const size_t size = ax_dtype_size(a->dtype), bytes = (size_t)a->cols * size;
    for (int64_t p = 0; p < a->parts && bytes; p++)
        for (int64_t r = 0; r < a->n; r++)
            if (a->place[r] >= 0)
                memcpy((char *)a->y + (size_t)(p * a->rows + a->place[r]) * bytes,
                       (const char *)a->x + (size_t)(r * a->ld + p * a->step) * size, bytes);
    return AX_OK;
}

ax_status ref_combine(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_combine_args *a = args;
    double x[REF_BLOCK], sum[REF_BLOCK];
    for (int64_t i = 0; i < a->n; i++)
        for (ref_blocks(a->cols, at, count)) {
            memset(sum, 0, sizeof sum);
            if (a->accumulate)
                ref_read(a->dtype, a->y, i * a->cols + at, count, sum);
            for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++) {
                const int64_t row = a->place[j] - a->first;
                if (row < 0 || row >= a->rows)
                    continue;
                const double scale = a->scale ? ax_load(ax_dtype_accum(a->dtype), a->scale, j) : 1;
                ref_read(a->dtype, a->x, row * a->cols + at, count, x);
                for (int64_t c = 0; c < count; c++)
                    sum[c] += scale * x[c];
            }
            ref_write(a->dtype, a->y, i * a->cols + at, count, sum);
        }
    return AX_OK;
}

ax_status ref_combine_grad(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_combine_grad_args *a = args;
    double x[REF_BLOCK], dy[REF_BLOCK];
    for (int64_t j = 0; j < a->n * a->top_k; j++) {
        double sum = 0;
        for (ref_blocks(a->place[j] < 0 ? 0 : a->cols, at, count)) {
            ref_read(a->dtype, a->x, a->place[j] * a->cols + at, count, x);
            ref_read(a->dtype, a->dy, j / a->top_k * a->cols + at, count, dy);
            for (int64_t c = 0; c < count; c++)
                sum += x[c] * dy[c];
        }
        ax_store(ax_dtype_accum(a->dtype), a->dscale, j, sum);
    }
    return AX_OK;
}

/* ---- grouped GEMM -------------------------------------------------------------------------------- */

ax_status ref_gemm_grouped(ax_stream *stream, const void *args)
{
    const ax_gemm_grouped_args *a = args;
    for (int64_t g = 0; g < a->groups; g++) {
        const ax_gemm_args one = ax_gemm_of_group(a, g);
        AX_TRY(ref_gemm(stream, &one));
    }
    return AX_OK;
}
