/* Optimizer updates of one flat fp32 array, in one pass over memory. The pass also writes the copy of the
 * weights in another dtype, if there is one. Work items are elements. `g_type` is the type of the gradient.
 */
#ifndef AX_DEV_CPU_UPDATE_KERNELS_H
#define AX_DEV_CPU_UPDATE_KERNELS_H

#include "pointwise_kernels.h"

INLINE void put_exact(void *p, int64_t i, int64_t n, vf x, vtype type) { vput_exact(p, i, n, type, x); }

/* Stores w into the copy of the weights, if there is one, rounded to F32, BF16 or F16. */
INLINE void put_copy(void *copy, ax_dtype dtype, int64_t i, int64_t n, vf w)
{
    if (copy)
        BY_VTYPE(put_exact, dtype, copy, i, n, w);
}

/* The numbers of one AdamW update, each in all lanes of a vector. The gradient is multiplied by `scale`
 * before it is squared, because the square of `scale` may be subnormal, and would be flushed to 0. */
typedef struct adamw_numbers {
    vf scale, beta1, beta2, rest1, rest2, eps, step, per2, keep;
} adamw_numbers;

INLINE adamw_numbers adamw_numbers_of(const ax_update_args *a, const ax_update_array *u)
{
    const ax_update_numbers *now = a->numbers;
    return (adamw_numbers){.scale = vset((float)now->grad_scale),
                           .beta1 = vset((float)a->beta1),
                           .beta2 = vset((float)a->beta2),
                           .rest1 = vset((float)(1 - a->beta1)),
                           .rest2 = vset((float)(1 - a->beta2)),
                           .eps = vset((float)a->eps),
                           .step = vset((float)(now->lr / now->correction1)),
                           .per2 = vset((float)(1 / now->correction2)),
                           .keep = vset((float)(1 - now->lr * (u->decays ? a->decay : 0)))};
}

/* Prefetch distance in bytes, the same for each array. Four arrays are read (g, w, m, v) and four written (w,
 * m, v, copy). The distances of all eight add up to the bytes that memory delivers during its latency (50
 * GB/s · 120 ns). */
enum { UPDATE_AHEAD = 768 };

/* Updates the W elements from i on, or n elements if that is less. Returns the new weights. */
INLINE vf adamw_vector(const adamw_numbers *by, const ax_update_array *u, int64_t i, int64_t n, vtype g_type)
{
    const void *const from_memory[] = {u->w, u->m, u->v};
    __builtin_prefetch((const char *)u->g + i * vsize(g_type) + UPDATE_AHEAD);
    UNROLL
    for (int k = 0; k < 3; k++)
        __builtin_prefetch((const char *)from_memory[k] + i * 4 + UPDATE_AHEAD);
    vf g = by->scale * vget(u->g, i, n, g_type), w = vget(u->w, i, n, VF32);
    vf m = vfma(by->beta1, vget(u->m, i, n, VF32), by->rest1 * g);
    vf v = vfma(by->beta2, vget(u->v, i, n, VF32), by->rest2 * g * g);
    w = vnfma(by->step, m / (vsqrt(v * by->per2) + by->eps), w * by->keep);
    vput(u->w, i, n, VF32, w);
    vput(u->m, i, n, VF32, m);
    vput(u->v, i, n, VF32, v);
    return w;
}

/* Updates elements lo … hi-1, whose number is a multiple of 2·W, and writes the 16-bit copies by non-temporal
 * stores: the copies are read much later, when they would not be in the caches any more. */
INLINE void adamw_stream(const adamw_numbers *by, const ax_update_array *u, int64_t lo, int64_t hi,
                         vtype type, vtype g_type)
{
    for (int64_t i = lo; i < hi; i += 2 * W) {
        vf first = adamw_vector(by, u, i, W, g_type), second = adamw_vector(by, u, i + W, W, g_type);
        vstream_exact((uint16_t *)u->copy + i, first, second, type);
    }
    vstreamed();
}

/* A 16-bit gradient has the type of the copy. */
INLINE void adamw_range(const ax_update_args *a, const ax_update_array *u, int64_t lo, int64_t hi,
                        vtype g_type)
{
    adamw_numbers by = adamw_numbers_of(a, u);
    const vtype type = g_type == VF32 ? vtype_of(a->copy_dtype) : g_type;
    int64_t i = lo;
    if (u->copy && type != VF32 && (uintptr_t)((uint16_t *)u->copy + lo) % (4 * W) == 0) {
        i += (hi - lo) / (2 * W) * (2 * W);
        if (type == VBF16)
            adamw_stream(&by, u, lo, i, VBF16, g_type);
        else
            adamw_stream(&by, u, lo, i, VF16, g_type);
    }
    for (; i < hi; i += W)
        put_copy(u->copy, a->copy_dtype, i, hi - i, adamw_vector(&by, u, i, hi - i, g_type));
}

INLINE void sgd_range(const ax_update_args *a, const ax_update_array *u, int64_t lo, int64_t hi, vtype g_type)
{
    const ax_update_numbers *now = a->numbers;
    vf lr = vset((float)now->lr), momentum = vset((float)a->momentum);
    vf decay = vset((float)(u->decays ? a->decay : 0)), scale = vset((float)now->grad_scale);
    for (int64_t i = lo; i < hi; i += W) {
        int64_t n = hi - i;
        vf w = vget(u->w, i, n, VF32), g = vfma(decay, w, scale * vget(u->g, i, n, g_type));
        if (u->m) {
            g = vfma(momentum, vget(u->m, i, n, VF32), g);
            vput(u->m, i, n, VF32, g);
        }
        w = vnfma(lr, g, w);
        vput(u->w, i, n, VF32, w);
        put_copy(u->copy, a->copy_dtype, i, n, w);
    }
}

#define UPDATE(name)                                                                                         \
    static void name(const void *args, int64_t lo, int64_t hi, void *scratch)                                \
    {                                                                                                        \
        const ax_cpu_update *part = args;                                                                    \
        const ax_update_array *u = part->array;                                                              \
        (void)scratch;                                                                                       \
        BY_VTYPE(name##_range, u->g_dtype, part->args, u, lo, hi);                                           \
    }
UPDATE(adamw)
UPDATE(sgd)
#undef UPDATE

#endif
