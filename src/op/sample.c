/* Sampling a token from logits on the host. Top-k and top-p use quickselect instead of sorting the logits, so
 * the expected time is linear in the size of the vocabulary. */
#include "axonn/op.h"

#include <math.h>
#include <string.h>

/* Finds the index of the largest logit, the first one if several are equal. AX_ERR_NUMERIC if a logit is NaN,
 * or if the largest logit is infinite. */
static ax_status argmax(const float *logits, int n, int *out)
{
    enum { LANES = 16 }; /* number of independent maxima, so that the compiler vectorizes the loop */
    float top[LANES];
    int has_nan[LANES] = {0}, i = 0, any = 0;
    for (int l = 0; l < LANES; l++)
        top[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float x = logits[i + l];
            top[l] = x > top[l] ? x : top[l];
            has_nan[l] |= x != x;
        }
    for (; i < n; i++) {
        top[0] = logits[i] > top[0] ? logits[i] : top[0];
        has_nan[0] |= isnan(logits[i]);
    }
    for (int l = 0; l < LANES; l++) {
        top[0] = top[l] > top[0] ? top[l] : top[0];
        any |= has_nan[l];
    }
    for (i = 0; i < n && any; i++)
        AX_CHECK(!isnan(logits[i]), AX_ERR_NUMERIC,
                 "logit %d of %d is NaN: the model has weights that are not finite, or it overflows in this "
                 "precision (compute in fp32 instead)",
                 i, n);
    AX_CHECK(top[0] > -INFINITY, AX_ERR_NUMERIC,
             "none of %d logits is finite: the model has weights that are not finite, or it overflows in "
             "this precision (compute in fp32 instead)",
             n);
    for (*out = 0; logits[*out] != top[0];)
        ++*out;
    AX_CHECK(isfinite(top[0]), AX_ERR_NUMERIC,
             "logit %d of %d is infinite: the model has weights that are not finite, or it overflows in this "
             "precision (compute in fp32 instead)",
             *out, n);
    return AX_OK;
}

/* The tokens that remain after top-k and top-p. A token's weight is exp((logit - largest logit)/temperature).
 * The tokens whose weight is above `least` remain and, of the tokens whose weight equals `least`, the first
 * `equal` ones. */
typedef struct cutoff {
    float least;
    int equal;
} cutoff;

static void swap(float *a, float *b)
{
    float x = *a;
    *a = *b;
    *b = x;
}

/* Finds the cutoff that keeps the largest weights: the smallest number of them whose sum reaches `mass`, but
 * at most `most`. Quickselect (Hoare's FIND): partitions the weights in place at a pseudo-random pivot, and
 * continues in the partition that holds the cutoff. */
static cutoff find_cutoff(float *weight, int n, int most, double mass)
{
    uint64_t random = 1;
    double taken = 0; /* sum of the weights before `lo`, all of which are kept */
    for (int lo = 0, hi = n;;) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        float pivot = weight[lo + (int)((random >> 33) % (uint64_t)(hi - lo))];
        int above = lo,
            below = hi; /* weights in [lo, above) are greater than the pivot, weights in [below, hi) less */
        double sum = 0;
        for (int i = lo; i < below;) {
            float x = weight[i];
            if (x > pivot) {
                sum += x;
                swap(&weight[above++], &weight[i++]);
            } else if (x < pivot)
                swap(&weight[--below], &weight[i]);
            else
                i++;
        }
        if (above > lo && (above >= most || taken + sum >= mass)) {
            hi = above;
            continue;
        }
        taken += sum;
        double wanted = fmax(1, pivot > 0 ? ceil((mass - taken) / pivot) : n);
        int equal = (int)fmin(wanted, most - above);
        if (equal <= below - above || below == hi)
            return (cutoff){pivot, equal};
        taken += (double)pivot * (below - above);
        lo = below;
    }
}

/* Returns true if the cutoff keeps `weight`. Must be called once for each weight, in the order of tokens,
 * because each kept weight equal to c->least decrements c->equal. */
static bool keeps(cutoff *c, float weight)
{
    return weight > c->least || (weight == c->least && c->equal-- > 0);
}

static double kept_mass(const float *weight, int n, cutoff c)
{
    double mass = 0;
    for (int i = 0; i < n; i++)
        mass += keeps(&c, weight[i]) ? (double)weight[i] : 0;
    return mass;
}

ax_status ax_sample(const float *logits, int n, const ax_sampling *how, double u, float *work, int32_t *out)
{
    int top, most = how->top_k > 0 && how->top_k < n ? how->top_k : n;
    AX_TRY(argmax(logits, n, &top));
    *out = top;
    if (how->temperature <= 0)
        return AX_OK;
    float *weight = work, *moved = work + n;
    for (int i = 0; i < n; i++)
        weight[i] = expf((float)((logits[i] - logits[top]) / how->temperature));
    cutoff kept = {0, n};
    memcpy(moved, weight, (size_t)n * sizeof *weight);
    if (most < n)
        kept = find_cutoff(moved, n, most, INFINITY);
    if (how->top_p < 1)
        kept = find_cutoff(moved, n, most, how->top_p * kept_mass(weight, n, kept));
    if ((float)how->min_p > kept.least) /* the most probable token has the weight 1 */
        kept = (cutoff){(float)how->min_p, n};
    double left = u * kept_mass(weight, n, kept);
    for (int i = 0; i < n && left >= 0; i++)
        if (keeps(&kept, weight[i])) {
            /* *out is the last kept token so far, because rounding may leave left >= 0 after the last kept
             * token. */
            *out = weight[i] > 0 ? i : *out;
            left -= weight[i];
        }
    return AX_OK;
}

void ax_sample_penalize(const float *logits, int n, double penalty, const int32_t *ids, size_t count,
                        float *out)
{
    memcpy(out, logits, (size_t)n * sizeof *out);
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= 0 && ids[i] < n) {
            float x = logits[ids[i]];
            out[ids[i]] = (float)(x > 0 ? x / penalty : x * penalty);
        }
}
