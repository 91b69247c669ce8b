/* Optimizer updates of one flat array. */
#include "dev/ref/ref.h"

#include <math.h>

/* The stored weights, already rounded to their own type, in the type that the kernels compute with. */
static void write_copy(ax_dtype dtype, const void *w, ax_dtype copy_dtype, void *copy, int64_t at, int64_t n)
{
    double stored[REF_BLOCK];
    if (!copy)
        return;
    ref_read(dtype, w, at, n, stored);
    ref_write(copy_dtype, copy, at, n, stored);
}

ax_status ref_adamw(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_adamw_args *a = args;
    double w[REF_BLOCK], g[REF_BLOCK], m[REF_BLOCK], v[REF_BLOCK];
    for (ref_blocks(a->n, at, count)) {
        ref_read(a->dtype, a->w, at, count, w);
        ref_read(a->dtype, a->g, at, count, g);
        ref_read(a->dtype, a->m, at, count, m);
        ref_read(a->dtype, a->v, at, count, v);
        for (int64_t i = 0; i < count; i++) {
            double grad = a->grad_scale * g[i];
            m[i] = a->beta1 * m[i] + (1 - a->beta1) * grad;
            v[i] = a->beta2 * v[i] + (1 - a->beta2) * grad * grad;
            w[i] -= a->lr * a->decay * w[i];
            w[i] -= a->lr * (m[i] / a->correction1) / (sqrt(v[i] / a->correction2) + a->eps);
        }
        ref_write(a->dtype, a->w, at, count, w);
        ref_write(a->dtype, a->m, at, count, m);
        ref_write(a->dtype, a->v, at, count, v);
        write_copy(a->dtype, a->w, a->copy_dtype, a->copy, at, count);
    }
    return AX_OK;
}

ax_status ref_sgd(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_sgd_args *a = args;
    double w[REF_BLOCK], g[REF_BLOCK], m[REF_BLOCK] = {0};
    for (ref_blocks(a->n, at, count)) {
        ref_read(a->dtype, a->w, at, count, w);
        ref_read(a->dtype, a->g, at, count, g);
        if (a->m)
            ref_read(a->dtype, a->m, at, count, m);
        for (int64_t i = 0; i < count; i++) {
            double grad = a->grad_scale * g[i] + a->decay * w[i];
            m[i] = a->m ? a->momentum * m[i] + grad : grad;
            w[i] -= a->lr * m[i];
        }
        ref_write(a->dtype, a->w, at, count, w);
        if (a->m)
            ref_write(a->dtype, a->m, at, count, m);
        write_copy(a->dtype, a->w, a->copy_dtype, a->copy, at, count);
    }
    return AX_OK;
}
