/* Drawing a token from logits, on the host: a pass or a few over the vocabulary, which is not sorted. */
#include "axonn/op.h"

#include <math.h>
#include <string.h>

/* The first of the greatest. */
static ax_status best(const float *logits, int n, int *out)
{
    enum { LANES = 16 }; /* compared side by side: a compiler makes vectors of them */
    float top[LANES];
    int odd[LANES] = {0}, i = 0, any = 0;
    for (int l = 0; l < LANES; l++)
        top[l] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float x = logits[i + l];
            top[l] = x > top[l] ? x : top[l];
            odd[l] |= x != x;
        }
    for (; i < n; i++) {
        top[0] = logits[i] > top[0] ? logits[i] : top[0];
        odd[0] |= isnan(logits[i]);
    }
    for (int l = 0; l < LANES; l++) {
        top[0] = top[l] > top[0] ? top[l] : top[0];
        any |= odd[l];
    }
    for (i = 0; i < n && any; i++)
        AX_CHECK(!isnan(logits[i]), AX_ERR_NUMERIC, "logit %d of %d is NaN", i, n);
    AX_CHECK(top[0] > -INFINITY, AX_ERR_NUMERIC, "no logit of %d is finite", n);
    for (*out = 0; logits[*out] != top[0];)
        ++*out;
    AX_CHECK(isfinite(top[0]), AX_ERR_NUMERIC, "logit %d of %d is infinite", *out, n);
    return AX_OK;
}

/* Weights that are drawn from: those above `least`, and the first `equal` that equal it. */
typedef struct cut {
    float least;
    int equal;
} cut;

static void swap(float *a, float *b)
{
    float x = *a;
    *a = *b;
    *b = x;
}

/* The greatest weights, no more than `most`, and no more than it takes to reach `mass` together. Moves them
 * about: by turns, weights are parted at one of them, and the part is gone on with in which the last to be
 * taken is, as in Hoare's FIND. */
static cut cut_at(float *weight, int n, int most, double mass)
{
    uint64_t random = 1;
    double taken = 0; /* by those before `lo` */
    for (int lo = 0, hi = n;;) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        float pivot = weight[lo + (int)((random >> 33) % (uint64_t)(hi - lo))];
        int above = lo, below = hi; /* [lo, above) are greater than the pivot, [below, hi) less */
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
            return (cut){pivot, equal};
        taken += (double)pivot * (below - above);
        lo = below;
    }
}

/* Whether the next weight is among those that are drawn from. */
static bool keeps(cut *c, float weight)
{
    return weight > c->least || (weight == c->least && c->equal-- > 0);
}

static double mass_of(const float *weight, int n, cut c)
{
    double mass = 0;
    for (int i = 0; i < n; i++)
        mass += keeps(&c, weight[i]) ? (double)weight[i] : 0;
    return mass;
}

ax_status ax_sample(const float *logits, int n, const ax_sampling *how, double u, float *work, int32_t *out)
{
    int top, most = how->top_k > 0 && how->top_k < n ? how->top_k : n;
    AX_TRY(best(logits, n, &top));
    *out = top;
    if (how->temperature <= 0)
        return AX_OK;
    float *weight = work, *moved = work + n;
    for (int i = 0; i < n; i++)
        weight[i] = expf((float)((logits[i] - logits[top]) / how->temperature));
    cut kept = {0, n};
    memcpy(moved, weight, (size_t)n * sizeof *weight);
    if (most < n)
        kept = cut_at(moved, n, most, INFINITY);
    if (how->top_p < 1)
        kept = cut_at(moved, n, most, how->top_p * mass_of(weight, n, kept));
    double left = u * mass_of(weight, n, kept);
    for (int i = 0; i < n && left >= 0; i++)
        if (keeps(&kept, weight[i])) {
            *out = weight[i] > 0 ? i : *out; /* rounding may leave something at the end */
            left -= weight[i];
        }
    return AX_OK;
}
