/* Optimizer updates of one of their flat fp32 arrays: one pass over memory, weights rounded to the compute
 * type on the way. Items are elements. */
#ifndef AX_DEV_CPU_UPDATE_KERNELS_H
#define AX_DEV_CPU_UPDATE_KERNELS_H

#include "pointwise_kernels.h"

INLINE void put_exact(void *p, int64_t i, int64_t n, vf x, vtype type) { vput_exact(p, i, n, type, x); }

/* The rounded copy of the weights, F32, BF16 or F16. */
INLINE void put_copy(void *copy, ax_dtype dtype, int64_t i, int64_t n, vf w)
{
    if (copy)
        BY_VTYPE(put_exact, dtype, copy, i, n, w);
}

static void adamw(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_cpu_update *part = args;
    const ax_adamw_args *a = part->args;
    const ax_update_array *u = part->array;
    const ax_update_numbers *now = a->numbers;
    (void)scratch;
    vf beta1 = vset((float)a->beta1), beta2 = vset((float)a->beta2), eps = vset((float)a->eps);
    vf rest1 = vset((float)((1 - a->beta1) * now->grad_scale));
    vf rest2 = vset((float)((1 - a->beta2) * now->grad_scale * now->grad_scale));
    vf step = vset((float)(now->lr / now->correction1)), per2 = vset((float)(1 / now->correction2));
    vf keep = vset((float)(1 - now->lr * (u->decays ? a->decay : 0)));
    for (int64_t i = lo; i < hi; i += W) {
        int64_t n = hi - i;
        const void *const from_memory[] = {u->g, u->w, u->m, u->v};
        UNROLL
        for (int k = 0; k < 4; k++)
            __builtin_prefetch((const char *)from_memory[k] + i * 4 + AHEAD);
        vf g = vget(u->g, i, n, VF32), w = vget(u->w, i, n, VF32);
        vf m = vfma(beta1, vget(u->m, i, n, VF32), rest1 * g);
        vf v = vfma(beta2, vget(u->v, i, n, VF32), rest2 * g * g);
        w = vnfma(step, m / (vsqrt(v * per2) + eps), w * keep);
        vput(u->w, i, n, VF32, w);
        vput(u->m, i, n, VF32, m);
        vput(u->v, i, n, VF32, v);
        put_copy(u->copy, a->copy_dtype, i, n, w);
    }
}

static void sgd(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_cpu_update *part = args;
    const ax_sgd_args *a = part->args;
    const ax_update_array *u = part->array;
    const ax_update_numbers *now = a->numbers;
    (void)scratch;
    vf lr = vset((float)now->lr), momentum = vset((float)a->momentum);
    vf decay = vset((float)(u->decays ? a->decay : 0)), scale = vset((float)now->grad_scale);
    for (int64_t i = lo; i < hi; i += W) {
        int64_t n = hi - i;
        vf w = vget(u->w, i, n, VF32), g = vfma(decay, w, scale * vget(u->g, i, n, VF32));
        if (u->m) {
            g = vfma(momentum, vget(u->m, i, n, VF32), g);
            vput(u->m, i, n, VF32, g);
        }
        w = vnfma(lr, g, w);
        vput(u->w, i, n, VF32, w);
        put_copy(u->copy, a->copy_dtype, i, n, w);
    }
}

#endif
