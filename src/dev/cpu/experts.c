/* Kernels of mixtures of experts without SIMD: the router, whose arrays are small beside those of the
 * experts, and the copies of scatter. Work items are tokens, samples or rows; route_stats is one item, so
 * that its sums have one order. */
#include "dev/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Returns true if p is chosen before q, the probability of an expert with a larger index. */
static bool precedes(float p, float q) { return !(q > p) && !(isnan(p) && !isnan(q)); }

/* Inserts expert e into the list of the best `have` experts, which has room for top_k. Returns their number.
 */
static int64_t insert(const float *probs, int32_t *best, int64_t have, int64_t top_k, int32_t e)
{
    int64_t at = have;
    while (at > 0 && !precedes(probs[best[at - 1]], probs[e]))
        at--;
    if (at == top_k)
        return have;
    const int64_t end = ax_min(have, top_k - 1);
    memmove(best + at + 1, best + at, (size_t)(end - at) * sizeof *best);
    best[at] = e;
    return end + 1;
}

/* Computes probabilities and choices of a token. */
static void route_token(const ax_route_args *a, int64_t r)
{
    const float *logits = (const float *)a->logits + r * a->experts;
    float *probs = (float *)a->probs + r * a->experts, *weight = (float *)a->weight + r * a->top_k;
    int32_t *choice = a->choice + r * a->top_k;
    float max = -INFINITY, sum = 0, chosen = 0;
    int64_t have = 0;
    for (int64_t e = 0; e < a->experts; e++)
        max = fmaxf(max, logits[e]);
    for (int64_t e = 0; e < a->experts; e++)
        sum += probs[e] = expf(logits[e] - max);
    for (int64_t e = 0; e < a->experts; e++) {
        probs[e] /= sum;
        have = insert(probs, choice, have, a->top_k, (int32_t)e);
    }
    ((float *)a->lse)[r] = max + logf(sum);
    for (int64_t j = 0; j < a->top_k; j++)
        chosen += weight[j] = probs[choice[j]];
    for (int64_t j = 0; j < a->top_k && a->renormalize; j++)
        weight[j] /= chosen;
}

void ax_cpu_route(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    (void)scratch;
    for (int64_t r = lo; r < hi; r++)
        route_token(args, r);
}

static bool counts(const int32_t *ids, int64_t i) { return !ids || ids[i] >= 0; }

/* Gives the choices of sample s places; `used`: room for a number for each expert. */
static void admit_sample(const ax_admit_args *a, int64_t s, int64_t *used)
{
    memset(used, 0, (size_t)a->experts * sizeof *used);
    for (int64_t e = 0; a->source && e < a->experts; e++)
        memset(a->source + (e * a->samples + s) * a->capacity, -1, (size_t)a->capacity * sizeof *a->source);
    for (int64_t i = s * a->tokens; i < (s + 1) * a->tokens; i++)
        for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++) {
            const int64_t e = a->choice[j], row = (e * a->samples + s) * a->capacity + used[e];
            const bool fits = counts(a->ids, i) && used[e] < a->capacity;
            used[e] += fits;
            if (a->place)
                a->place[j] = fits ? (int32_t)row : -1;
            if (a->source && fits)
                a->source[row] = (int32_t)j;
            if (!fits)
                a->choice[j] = ~a->choice[j];
        }
}

void ax_cpu_admit(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    for (int64_t s = lo; s < hi; s++)
        admit_sample(args, s, scratch);
}

/* Computes the row of `share` of sample s, and adds to the totals. `probs` and `choices`: room for a number
 * for each expert. */
static void sum_sample(const ax_route_stats_args *a, int64_t s, double *probs, double *choices)
{
    const int64_t E = a->experts;
    float *share = (float *)a->share + s * (E + 1);
    double squares = 0, counted = 0, dropped = 0;
    memset(probs, 0, (size_t)E * sizeof *probs);
    memset(choices, 0, (size_t)E * sizeof *choices);
    for (int64_t i = s * a->tokens; i < (s + 1) * a->tokens; i++) {
        const double lse = ((const float *)a->lse)[i];
        if (!counts(a->ids, i))
            continue;
        counted++;
        squares += lse * lse;
        for (int64_t e = 0; e < E; e++)
            probs[e] += ((const float *)a->probs)[i * E + e];
        for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++) {
            choices[AX_EXPERT_OF(a->choice[j])]++;
            dropped += a->choice[j] < 0;
        }
    }
    const double each = counted > 0 ? 1 / counted : 0;
    for (int64_t e = 0; e < E; e++) {
        share[e] = (float)((double)E * choices[e] * each);
        a->total[0] += (double)E * choices[e] * each * probs[e] * each;
        a->total[2 + e] += choices[e];
    }
    share[E] = (float)each;
    a->total[2 + E] += dropped;
    a->total[1] += squares * each;
}

void ax_cpu_route_stats(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_route_stats_args *a = args;
    (void)lo, (void)hi;
    for (int64_t s = 0; s < a->samples; s++)
        sum_sample(a, s, scratch, (double *)scratch + a->experts);
}

/* Computes the gradient of a token's logits, in `dp`, from the gradients of its probabilities, which dp
 * holds: dlogit = p · (dp - Σ p·dp + add). */
static void through_softmax(const float *probs, float *dp, int64_t experts, float add)
{
    float dot = 0;
    for (int64_t e = 0; e < experts; e++)
        dot += probs[e] * dp[e];
    for (int64_t e = 0; e < experts; e++)
        dp[e] = probs[e] * (dp[e] - dot + add);
}

/* Adds to dp the gradients of the probabilities of the chosen experts. */
static void add_choices(const ax_route_grad_args *a, int64_t i, float *dp)
{
    const float *probs = (const float *)a->probs + i * a->experts, *weight = (const float *)a->weight,
                *dweight = a->dweight;
    float sum = 0, mean = 0;
    for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++) {
        sum += probs[AX_EXPERT_OF(a->choice[j])];
        mean += weight[j] * dweight[j];
    }
    for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++)
        dp[AX_EXPERT_OF(a->choice[j])] += a->renormalize ? (dweight[j] - mean) / sum : dweight[j];
}

static void store(ax_dtype dtype, void *out, int64_t at, const float *x, int64_t n)
{
    if (dtype == AX_F32) {
        memcpy((float *)out + at, x, (size_t)n * sizeof *x);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)out)[at + i] = dtype == AX_F16 ? ax_f16_from_float(x[i]) : ax_bf16_from_float(x[i]);
}

void ax_cpu_route_grad(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_route_grad_args *a = args;
    const int64_t E = a->experts;
    const double scale = a->now ? a->now->sample_scale : 1;
    float *dp = scratch;
    for (int64_t i = lo; i < hi; i++) {
        const bool extra = a->share && counts(a->ids, i);
        const float *share = extra ? (const float *)a->share + i / a->tokens * (E + 1) : NULL, *lse = a->lse;
        const float per_token = extra ? (float)(scale * (double)share[E]) : 0;
        for (int64_t e = 0; e < E; e++)
            dp[e] = extra ? (float)a->balance * per_token * share[e] : 0;
        add_choices(a, i, dp);
        through_softmax((const float *)a->probs + i * E, dp, E,
                        extra ? 2 * (float)a->z * per_token * lse[i] : 0);
        store(a->dtype, a->dlogits, i * E, dp, E);
    }
}

void ax_cpu_scatter(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_scatter_args *a = args;
    const size_t size = ax_dtype_size(a->dtype), bytes = (size_t)a->cols * size;
    (void)scratch;
    for (int64_t item = lo; item < hi; item++) {
        const int64_t r = item / a->parts, p = item % a->parts;
        if (a->place[r] >= 0)
            memcpy((char *)a->y + (size_t)(p * a->rows + a->place[r]) * bytes,
                   (const char *)a->x + (size_t)(r * a->ld + p * a->step) * size, bytes);
    }
}
