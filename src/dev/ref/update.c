/* The last kernels of a step: clip, and the optimizer updates of flat arrays. */
#include "dev/ref/ref.h"

#include <math.h>

/* Returns the norm of the gradients, divided by the loss scale. *culprit is set to the index of the first sum
 * of squares that is not finite, or -1. fabs clears the sign of a NaN, so that printf shows "nan" and not
 * "-nan". */
static double norm_of(const ax_clip_args *a, double *culprit)
{
    double total = 0;
    *culprit = -1;
    for (int64_t i = 0; i < a->n; i++) {
        if (*culprit < 0 && !isfinite(a->sumsq[i]))
            *culprit = (double)i;
        total += a->sumsq[i];
    }
    return fabs(sqrt(total)) / a->scale;
}

ax_status ref_clip(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_clip_args *a = args;
    ax_update_numbers *now = a->numbers;
    if (now->skip != 0)
        return AX_OK;
    now->loss = a->loss[0] / a->targets;
    now->norm = norm_of(a, &now->culprit);
    now->grad_scale = (a->clip > 0 ? fmin(1, a->clip / (now->norm + 1e-6)) : 1) / a->scale;
    now->skip = !isfinite(now->loss) || !isfinite(now->norm);
    return AX_OK;
}

/* Converts the weights `w`, as they are stored in `dtype`, to `copy_dtype` and writes them to `copy`, unless
 * `copy` is NULL. */
static void write_copy(ax_dtype dtype, const void *w, ax_dtype copy_dtype, void *copy, int64_t at, int64_t n)
{
    double stored[REF_BLOCK];
    if (!copy)
        return;
    ref_read(dtype, w, at, n, stored);
    ref_write(copy_dtype, copy, at, n, stored);
}

static void adamw(const ax_update_args *a, const ax_update_array *u)
{
    const ax_update_numbers *now = a->numbers;
    double w[REF_BLOCK], g[REF_BLOCK], m[REF_BLOCK], v[REF_BLOCK], decay = u->decays ? a->decay : 0;
    for (ref_blocks(u->n, at, count)) {
        ref_read(a->dtype, u->w, at, count, w);
        ref_read(u->g_dtype, u->g, at, count, g);
        ref_read(a->dtype, u->m, at, count, m);
        ref_read(a->dtype, u->v, at, count, v);
        for (int64_t i = 0; i < count; i++) {
            double grad = now->grad_scale * g[i];
            m[i] = a->beta1 * m[i] + (1 - a->beta1) * grad;
            v[i] = a->beta2 * v[i] + (1 - a->beta2) * grad * grad;
            w[i] -= now->lr * decay * w[i];
            w[i] -= now->lr * (m[i] / now->correction1) / (sqrt(v[i] / now->correction2) + a->eps);
        }
        ref_write(a->dtype, u->w, at, count, w);
        ref_write(a->dtype, u->m, at, count, m);
        ref_write(a->dtype, u->v, at, count, v);
        write_copy(a->dtype, u->w, a->copy_dtype, u->copy, at, count);
    }
}

static void sgd(const ax_update_args *a, const ax_update_array *u)
{
    const ax_update_numbers *now = a->numbers;
    double w[REF_BLOCK], g[REF_BLOCK], m[REF_BLOCK] = {0}, decay = u->decays ? a->decay : 0;
    for (ref_blocks(u->n, at, count)) {
        ref_read(a->dtype, u->w, at, count, w);
        ref_read(u->g_dtype, u->g, at, count, g);
        if (u->m)
            ref_read(a->dtype, u->m, at, count, m);
        for (int64_t i = 0; i < count; i++) {
            double grad = now->grad_scale * g[i] + decay * w[i];
            m[i] = u->m ? a->momentum * m[i] + grad : grad;
            w[i] -= now->lr * m[i];
        }
        ref_write(a->dtype, u->w, at, count, w);
        if (u->m)
            ref_write(a->dtype, u->m, at, count, m);
        write_copy(a->dtype, u->w, a->copy_dtype, u->copy, at, count);
    }
}

static ax_status each_array(const ax_update_args *a,
                            void (*update)(const ax_update_args *, const ax_update_array *))
{
    for (int64_t i = 0; i < a->arrays && a->numbers->skip == 0; i++)
        update(a, &a->array[i]);
    return AX_OK;
}

ax_status ref_adamw(ax_stream *stream, const void *args)
{
    (void)stream;
    return each_array(args, adamw);
}

ax_status ref_sgd(ax_stream *stream, const void *args)
{
    (void)stream;
    return each_array(args, sgd);
}
