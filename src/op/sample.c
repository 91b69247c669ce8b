/* Drawing a token from logits, on the host. */
#include "axonn/op.h"

#include <math.h>
#include <stdlib.h>

/* Likeliest first; equal ones by id. */
static int likelier(const void *a, const void *b)
{
    const ax_sample_item *x = a, *y = b;
    if (x->p != y->p)
        return x->p < y->p ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

static ax_status best(const float *logits, int n, int32_t *out)
{
    int at = 0;
    for (int i = 0; i < n; i++) {
        AX_CHECK(!isnan(logits[i]), AX_ERR_NUMERIC, "logit %d of %d is NaN", i, n);
        if (logits[i] > logits[at])
            at = i;
    }
    AX_CHECK(n > 0 && isfinite(logits[at]), AX_ERR_NUMERIC, "no logit of %d is finite", n);
    *out = at;
    return AX_OK;
}

ax_status ax_sample(const float *logits, int n, const ax_sampling *how, double u, ax_sample_item *work,
                    int32_t *out)
{
    int32_t top;
    AX_TRY(best(logits, n, &top));
    *out = top;
    if (how->temperature <= 0)
        return AX_OK;
    for (int i = 0; i < n; i++)
        work[i] = (ax_sample_item){(float)exp((logits[i] - logits[top]) / how->temperature), i};
    int keep = n;
    if ((how->top_k > 0 && how->top_k < n) || how->top_p < 1) {
        qsort(work, (size_t)n, sizeof *work, likelier);
        if (how->top_k > 0 && how->top_k < n)
            keep = how->top_k;
    }
    double mass = 0;
    for (int i = 0; i < keep; i++)
        mass += work[i].p;
    if (how->top_p < 1) {
        double reached = 0;
        int i = 0;
        while (i < keep && reached < how->top_p * mass)
            reached += work[i++].p;
        keep = i > 0 ? i : 1;
        mass = i > 0 ? reached : work[0].p;
    }
    double left = u * mass;
    for (int i = 0; i < keep; i++) {
        *out = work[i].id;
        left -= work[i].p;
        if (left < 0)
            break;
    }
    return AX_OK;
}
