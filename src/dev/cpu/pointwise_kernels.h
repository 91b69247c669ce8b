/* Elementwise kernels: activations, gated linear units and their gradients, rotary positions, sums, scaling,
 * bias, dropout, conversion, normally distributed random numbers. Work items are elements; but rows in rope,
 * bias_add, dropout and init_normal, columns in col_sum, and chunks of elements in sumsq and
 * squared_error. */
#ifndef AX_DEV_CPU_POINTWISE_KERNELS_H
#define AX_DEV_CPU_POINTWISE_KERNELS_H

#include "axonn/philox.h"
#include "cpu.h"
#include "random_kernels.h"

/* Defines kernel `name`, which calls name_range(args, lo, hi, type), compiled for each element type. */
#define BY_DTYPE(name)                                                                                       \
    static void name(const void *args, int64_t lo, int64_t hi, void *scratch)                                \
    {                                                                                                        \
        const ax_##name##_args *a = args;                                                                    \
        (void)scratch;                                                                                       \
        BY_VTYPE(name##_range, a->dtype, a, lo, hi);                                                         \
    }

/* ---- activations --------------------------------------------------------------------------------- */

/* For each FUNCTION of AX_ACTIVATIONS there are FUNCTION_value, which computes the activation of `count` <=
 * AT_ONCE vectors, and FUNCTION_slope, which computes its derivative. `roughly`: only with the accuracy that
 * results in bf16 or fp16 need. */

/* Computes the gate of GELU, (1 + tanh u)/2 with u = sqrt(2/pi)(x + 0.044715x³), as the logistic function of
 * 2u, without cancellation. */
INLINE void gelu_gates(const vf *x, vf *gate, int count, bool roughly)
{
    /* gate = 1/(1 + e^(-2u)). `roughly`: relative error 3e-6, and gates below 2^-126 become 2^-126. */
    const float unit = roughly ? (float)LOG2E : 1.0f;
    EACH(v, count) gate[v] = x[v] * x[v];
    EACH(v, count) gate[v] = vfma(gate[v], vset(-0.0713548163f * unit), vset(-1.59576912f * unit));
    EACH(v, count) gate[v] = gate[v] * x[v];
    if (roughly) {
        EACH(v, count) gate[v] = vmin(vset(126.0f), gate[v]);
        vexp2_each(gate, count, true);
        EACH(v, count) gate[v] = vinverse(vset(1.0f) + gate[v]);
    } else {
        vexp_each(gate, count);
        EACH(v, count) gate[v] = vset(1.0f) / (vset(1.0f) + gate[v]);
    }
}

/* Returns the cdf of the normal distribution; *bell = exp(-x²/2). Uses erfc(t) = exp(-t²)·erfcx(t), where
 * erfcx(t) = u·P(u) with u = 1/(1 + 0.35t); P is a least-squares fit weighted towards minimax, relative error
 * 9e-9 on t in [0, 12]. */
INLINE vf normal_cdf(vf x, vf *bell)
{
    vf u = vset(1.0f) / vfma(vabs(x), vset(0.247487373f), vset(1.0f)); /* 0.35/sqrt(2) */
    vf p = vset(0.0406113583f);
    p = vfma(p, u, vset(-0.171186062f));
    p = vfma(p, u, vset(0.210949402f));
    p = vfma(p, u, vset(-0.0680181109f));
    p = vfma(p, u, vset(0.121463777f));
    p = vfma(p, u, vset(0.127003782f));
    p = vfma(p, u, vset(0.157979686f));
    p = vfma(p, u, vset(0.186396066f));
    p = vfma(p, u, vset(0.197326387f));
    p = vfma(p, u, vset(0.197473722f));
    *bell = vexp(x * x * vset(-0.5f));
    vf tail = vset(0.5f) * *bell * u * p;
    return vless(x, vset(0), tail, vset(1.0f) - tail);
}

/* Computes GELU(x) = x·gate. Gates that are computed `roughly` are never below 2^-126, and 2^-126 times a
 * large negative x would be far from 0, so x is clamped. */
INLINE void gelu_tanh_value(const vf *x, vf *y, int count, bool roughly)
{
    vf kept[AT_ONCE], gate[AT_ONCE];
    EACH(v, count) kept[v] = roughly ? vmax(vset(-1e4f), x[v]) : x[v];
    gelu_gates(kept, gate, count, roughly);
    EACH(v, count) y[v] = kept[v] * gate[v];
}

/* Computes the derivative of GELU. Clamps x to [-16, 16]: outside this range the slope is 0 or 1, and the
 * square of a larger x could overflow. */
INLINE void gelu_tanh_slope(const vf *x, vf *slope, int count, bool roughly)
{
    vf near[AT_ONCE], s[AT_ONCE];
    EACH(v, count) near[v] = vmin(vset(16.0f), vmax(vset(-16.0f), x[v]));
    gelu_gates(near, s, count, roughly);
    EACH(v, count) slope[v] = near[v] * s[v] * (vset(1.0f) - s[v]);
    EACH(v, count)
    slope[v] = vfma(slope[v], vfma(near[v] * near[v], vset(0.214064449f), vset(1.59576912f)), s[v]);
}

INLINE void gelu_exact_value(const vf *x, vf *y, int count, bool roughly)
{
    (void)roughly;
    vf bell;
    EACH(v, count) y[v] = x[v] * normal_cdf(x[v], &bell);
}

INLINE void gelu_exact_slope(const vf *x, vf *slope, int count, bool roughly)
{
    (void)roughly;
    EACH(v, count)
    {
        vf bell, cdf = normal_cdf(x[v], &bell);
        slope[v] = vfma(x[v] * vset(0.39894228f), bell, cdf);
    }
}

/* Computes max(x, 0). NaN stays NaN, because x is the second operand of vmax. */
INLINE void relu_value(const vf *x, vf *y, int count, bool roughly)
{
    (void)roughly;
    EACH(v, count) y[v] = vmax(vset(0), x[v]);
}

INLINE void relu_slope(const vf *x, vf *slope, int count, bool roughly)
{
    (void)roughly;
    EACH(v, count) slope[v] = vless(vset(0), x[v], vset(1.0f), vset(0));
}

/* Computes tail = exp(factor·|x|), with factor < 0, and share = 1/(1 + tail), the building blocks of silu and
 * tanh. */
INLINE void tails(const vf *x, float factor, vf *tail, vf *share, int count, bool roughly)
{
    const float unit = roughly ? (float)LOG2E : 1.0f;
    EACH(v, count) tail[v] = vabs(x[v]) * vset(factor * unit);
    if (roughly) {
        vexp2_each(tail, count, true);
        EACH(v, count) share[v] = vinverse(vset(1.0f) + tail[v]);
    } else {
        vexp_each(tail, count);
        EACH(v, count) share[v] = vset(1.0f) / (vset(1.0f) + tail[v]);
    }
}

/* Returns tanh(x) for |x| < 0.625, where the formula with 1 - exp(-2|x|) loses digits. Uses the odd
 * polynomial of the library Cephes. */
INLINE vf tanh_near_zero(vf x)
{
    vf square = x * x, p = vset(-5.70498872745e-3f);
    p = vfma(p, square, vset(2.06390887954e-2f));
    p = vfma(p, square, vset(-5.37397155531e-2f));
    p = vfma(p, square, vset(1.33314422036e-1f));
    p = vfma(p, square, vset(-3.33332819422e-1f));
    return vfma(p * square, x, x);
}

INLINE void tanh_value(const vf *x, vf *y, int count, bool roughly)
{
    vf tail[AT_ONCE], share[AT_ONCE];
    tails(x, -2, tail, share, count, roughly);
    EACH(v, count)
    {
        vf size = (vset(1.0f) - tail[v]) * share[v];
        y[v] =
            vless(vabs(x[v]), vset(0.625f), tanh_near_zero(x[v]), vless(x[v], vset(0), vset(0) - size, size));
    }
}

/* Computes the derivative of tanh, 1 - tanh², without this subtraction, which would lose digits. */
INLINE void tanh_slope(const vf *x, vf *slope, int count, bool roughly)
{
    vf tail[AT_ONCE], share[AT_ONCE];
    tails(x, -2, tail, share, count, roughly);
    EACH(v, count) slope[v] = vset(4.0f) * tail[v] * share[v] * share[v];
}

/* Computes tail = exp(-x), which may be infinite, and share = 1/(1 + tail), the logistic function, for
 * results that are rounded to 16 bits. */
INLINE void rough_logistic(const vf *x, vf *tail, vf *share, int count)
{
    EACH(v, count) tail[v] = vmin(vset(128), x[v] * vset((float)-LOG2E));
    vexp2_each(tail, count, true);
    EACH(v, count) share[v] = vrough_inverse(vset(1.0f) + tail[v]);
}

INLINE void silu_value(const vf *x, vf *y, int count, bool roughly)
{
    vf tail[AT_ONCE], share[AT_ONCE];
    if (roughly) {
        rough_logistic(x, tail, share, count);
        EACH(v, count) y[v] = x[v] * share[v];
        return;
    }
    tails(x, -1, tail, share, count, false);
    EACH(v, count) y[v] = x[v] * vless(x[v], vset(0), tail[v] * share[v], share[v]);
}

INLINE void silu_slope(const vf *x, vf *slope, int count, bool roughly)
{
    vf tail[AT_ONCE], share[AT_ONCE];
    if (roughly) {
        rough_logistic(x, tail, share, count);
        EACH(v, count)
        {
            vf less = vmin(vset(0x1p127f), tail[v]) * share[v]; /* tail is limited, because inf · 0 is NaN */
            slope[v] = vfma(x[v] * less, share[v], share[v]);
        }
        return;
    }
    tails(x, -1, tail, share, count, false);
    EACH(v, count)
    {
        vf less = tail[v] * share[v], above = vless(x[v], vset(0), less, share[v]);
        slope[v] = vfma(x[v] * less, share[v], above);
    }
}

/* activate applies the activation `kind` to x, find_slopes computes its derivative: for AX_SILU they call
 * silu_value and silu_slope, and so on. `kind` is a constant where these functions are inlined. */
INLINE void activate(ax_activation kind, const vf *x, vf *y, int count, bool roughly)
{
#define AX_VALUE(k, function)                                                                                \
    if (kind == k)                                                                                           \
        function##_value(x, y, count, roughly);
    AX_ACTIVATIONS(AX_VALUE)
#undef AX_VALUE
}

INLINE void find_slopes(ax_activation kind, const vf *x, vf *slope, int count, bool roughly)
{
#define AX_SLOPE(k, function)                                                                                \
    if (kind == k)                                                                                           \
        function##_slope(x, slope, count, roughly);
    AX_ACTIVATIONS(AX_SLOPE)
#undef AX_SLOPE
}

/* Defines name_of, which calls name_vectors(args, kind, i, n, count, type) until elements lo … hi-1 are done:
 * for `count` vectors from element i on, each of which has W elements, or n if n < W. */
#define OVER_VECTORS(name)                                                                                   \
    INLINE void name##_of(const ax_##name##_args *a, ax_activation kind, int64_t lo, int64_t hi, vtype type) \
    {                                                                                                        \
        int64_t i = lo;                                                                                      \
        for (; i + AT_ONCE * W <= hi; i += AT_ONCE * W)                                                      \
            name##_vectors(a, kind, i, W, AT_ONCE, type);                                                    \
        for (; i < hi; i += W)                                                                               \
            name##_vectors(a, kind, i, hi - i, 1, type);                                                     \
    }

/* Defines kernel `name`, which calls name_of(args, kind, lo, hi, type), compiled for each activation `kind`
 * and element type. The caller defines CASE as a macro for AX_ACTIVATIONS: CASE(k, function) must expand to
 * KIND(name, k), or to KIND_ROWS(name, k), which calls name_rows instead of name_of. */
#define BY_ACTIVATION(name, CASE)                                                                            \
    INLINE void name##_range(const ax_##name##_args *a, int64_t lo, int64_t hi,                              \
                             vtype type){AX_ACTIVATIONS(CASE)} BY_DTYPE(name)
#define KIND(name, k)                                                                                        \
    if (a->kind == k)                                                                                        \
        name##_of(a, k, lo, hi, type);
#define KIND_ROWS(name, k)                                                                                   \
    if (a->kind == k)                                                                                        \
        name##_rows(a, k, lo, hi, type);

INLINE void activation_vectors(const ax_activation_args *a, ax_activation kind, int64_t i, int64_t n,
                               int count, vtype type)
{
    vf x[AT_ONCE], y[AT_ONCE];
    EACH(v, count) x[v] = vget(a->x, i + v * W, n, type);
    activate(kind, x, y, count, type != VF32);
    EACH(v, count) vput(a->y, i + v * W, n, type, y[v]);
}

OVER_VECTORS(activation)
#define ACTIVATION_OF(k, function) KIND(activation, k)
BY_ACTIVATION(activation, ACTIVATION_OF)

INLINE void activation_grad_vectors(const ax_activation_grad_args *a, ax_activation kind, int64_t i,
                                    int64_t n, int count, vtype type)
{
    vf x[AT_ONCE], slope[AT_ONCE];
    EACH(v, count) x[v] = vget(a->x, i + v * W, n, type);
    find_slopes(kind, x, slope, count, type != VF32);
    EACH(v, count) vput(a->dx, i + v * W, n, type, vget(a->dy, i + v * W, n, type) * slope[v]);
}

OVER_VECTORS(activation_grad)
#define ACTIVATION_GRAD_OF(k, function) KIND(activation_grad, k)
BY_ACTIVATION(activation_grad, ACTIVATION_GRAD_OF)

/* ---- gated linear units --------------------------------------------------------------------------
 *
 * Work items are elements. Rows of gate, up, dgate and dup may be padded; rows of y and dy are not. For each
 * row the addresses of the padded arrays are moved on by `skip`, the bytes of padding of all rows before it,
 * so that element i of y has the same index in all arrays. In the arguments of a row, `scale` points to the
 * row's factor, and `dscale`, if not NULL, to W sums. With a scale, threads get whole rows. ---- */

static const float glu_no_scale = 1;

/* Returns the address of the factor of row r; NULL: the row is not written. */
INLINE const float *glu_scale(const void *scale, const int32_t *index, int64_t r)
{
    if (!scale)
        return &glu_no_scale;
    return index[r] < 0 ? NULL : (const float *)scale + index[r];
}

INLINE void glu_vectors(const ax_glu_args *a, ax_activation kind, int64_t i, int64_t n, int count, vtype type)
{
    vf gate[AT_ONCE], y[AT_ONCE];
    EACH(v, count) gate[v] = vget(a->gate, i + v * W, n, type);
    activate(kind, gate, y, count, type != VF32);
    const vf scale = vset(*(const float *)a->scale);
    EACH(v, count) vput(a->y, i + v * W, n, type, y[v] * vget(a->up, i + v * W, n, type) * scale);
}

/* dgate, dup and y may be the same arrays as inputs, so all are stored after the same elements of all inputs
 * were read. */
INLINE void glu_grad_vectors(const ax_glu_grad_args *a, ax_activation kind, int64_t i, int64_t n, int count,
                             vtype type)
{
    vf gate[AT_ONCE], value[AT_ONCE], slope[AT_ONCE];
    EACH(v, count) gate[v] = vget(a->gate, i + v * W, n, type);
    activate(kind, gate, value, count, type != VF32);
    find_slopes(kind, gate, slope, count, type != VF32);
    EACH(v, count)
    {
        const vf scale = vset(*(const float *)a->scale);
        vf dy = vget(a->dy, i + v * W, n, type), up = vget(a->up, i + v * W, n, type);
        if (a->dscale)
            vput(a->dscale, 0, W, VF32, vget(a->dscale, 0, W, VF32) + dy * (value[v] * up));
        if (a->y)
            vput(a->y, i + v * W, n, type, value[v] * up * scale);
        dy *= scale;
        vput(a->dgate, i + v * W, n, type, dy * up * slope[v]);
        vput(a->dup, i + v * W, n, type, dy * value[v]);
    }
}

OVER_VECTORS(glu)
OVER_VECTORS(glu_grad)

INLINE void glu_rows(const ax_glu_args *a, ax_activation kind, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo / a->cols, end; lo < hi; r++, lo = end) {
        int64_t skip = r * (a->ld - a->cols) * vsize(type);
        ax_glu_args row = *a;
        row.gate = (const char *)a->gate + skip;
        row.up = (const char *)a->up + skip;
        row.scale = glu_scale(a->scale, a->index, r);
        end = ax_min(hi, (r + 1) * a->cols);
        if (row.scale)
            glu_of(&row, kind, lo, end, type);
    }
}

INLINE void glu_grad_rows(const ax_glu_grad_args *a, ax_activation kind, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo / a->cols, end; lo < hi; r++, lo = end) {
        int64_t skip = r * (a->ld - a->cols) * vsize(type);
        ax_glu_grad_args row = *a;
        row.gate = (const char *)a->gate + skip;
        row.up = (const char *)a->up + skip;
        row.dgate = (char *)a->dgate + skip;
        row.dup = (char *)a->dup + skip;
        row.scale = glu_scale(a->scale, a->index, r);
        float sums[W] = {0}, *dscale = a->dscale;
        row.dscale = dscale ? sums : NULL;
        end = ax_min(hi, (r + 1) * a->cols);
        if (!row.scale)
            continue;
        glu_grad_of(&row, kind, lo, end, type);
        for (int i = 1; i < W; i++)
            sums[0] += sums[i];
        if (dscale)
            dscale[a->index[r]] = sums[0];
    }
}

#define GLU_OF(k, function) KIND_ROWS(glu, k)
BY_ACTIVATION(glu, GLU_OF)
#define GLU_GRAD_OF(k, function) KIND_ROWS(glu_grad, k)
BY_ACTIVATION(glu_grad, GLU_GRAD_OF)

/* ---- experts: the sum of the rows of each token's choices. Work items are tokens. ---- */

INLINE void combine_range(const ax_combine_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t i = lo; i < hi; i++)
        for (int64_t c = 0; c < a->cols; c += W) {
            const int64_t n = ax_min(W, a->cols - c);
            vf sum = a->accumulate ? vget(a->y, i * a->cols + c, n, type) : vset(0);
            for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++) {
                const int64_t row = a->place[j] - a->first;
                if (row >= 0 && row < a->rows)
                    sum += vset(a->scale ? ((const float *)a->scale)[j] : 1) *
                           vget(a->x, row * a->cols + c, n, type);
            }
            vput(a->y, i * a->cols + c, n, type, sum);
        }
}
BY_DTYPE(combine)

/* Work items are choices. */
INLINE void combine_grad_range(const ax_combine_grad_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t j = lo; j < hi; j++) {
        vf sum = vset(0);
        for (int64_t c = 0; c < a->cols && a->place[j] >= 0; c += W) {
            const int64_t n = ax_min(W, a->cols - c);
            sum += vget(a->x, a->place[j] * a->cols + c, n, type) *
                   vget(a->dy, j / a->top_k * a->cols + c, n, type);
        }
        ((float *)a->dscale)[j] = vsum(sum);
    }
}
BY_DTYPE(combine_grad)

/* Copies of tokens, times a factor of each row. Work items are rows. */
INLINE void dispatch_range(const ax_dispatch_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo; r < hi; r++) {
        const int64_t choice = a->source[r];
        if (choice < 0 && !a->zeros)
            continue;
        const vf scale = vset(choice >= 0 && a->scale ? ((const float *)a->scale)[choice] : 1);
        for (int64_t c = 0; c < a->cols; c += W) {
            const int64_t n = ax_min(W, a->cols - c);
            vf x = vset(0);
            if (choice >= 0)
                x = scale * vget(a->x, choice / a->top_k * a->cols + c, n, type);
            vput(a->y, r * a->cols + c, n, type, x);
        }
    }
}
BY_DTYPE(dispatch)

/* ---- rotary positions ---------------------------------------------------------------------------- */

/* Loads cosine and sine of up to W pairs, from pair c on, for the position of row r; NaN if the position is
 * outside the table. */
INLINE void rope_angles(const ax_rope_args *a, int64_t r, int64_t c, vf *cosine, vf *sine)
{
    const int64_t position = a->positions[r], n = a->head_dim - 2 * c;
    if (position < 0 || position >= a->table_rows) {
        *cosine = *sine = vset(NAN);
        return;
    }
    const float *from = a->table + position * a->head_dim + 2 * c;
    vf x = vget(from, 0, n, VF32), y = n > W ? vget(from, W, n - W, VF32) : vset(0);
    *cosine = vevens(x, y);
    *sine = vodds(x, y) * vset(a->inverse ? -1 : 1);
}

/* Rotates rows lo … hi-1 of x by their positions (rotary position embedding). */
INLINE void rope_range(const ax_rope_args *a, int64_t lo, int64_t hi, vtype type)
{
    const int64_t half = a->head_dim / 2;
    for (int64_t r = lo; r < hi; r++)
        for (int64_t c = 0; c < half; c += W) {
            vf cosine, sine;
            rope_angles(a, r, c, &cosine, &sine);
            for (int64_t h = 0; h < a->heads; h++) {
                int64_t at = r * a->ld + h * a->head_dim + c, n = half - c;
                vf u = vget(a->x, at, n, type), v = vget(a->x, at + half, n, type);
                vput(a->x, at, n, type, vnfma(v, sine, u * cosine));
                vput(a->x, at + half, n, type, vfma(u, sine, v * cosine));
            }
        }
}
BY_DTYPE(rope)

/* ---- sums ---------------------------------------------------------------------------------------- */

INLINE void add_range(const ax_add_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t i = lo; i < hi; i += W)
        vput(a->y, i, hi - i, type, vget(a->a, i, hi - i, type) + vget(a->b, i, hi - i, type));
}
BY_DTYPE(add)

INLINE void scale_range(const ax_scale_args *a, int64_t lo, int64_t hi, vtype type)
{
    vf factor = vset((float)a->factor);
    for (int64_t i = lo; i < hi; i += W)
        vput(a->x, i, hi - i, type, vget(a->x, i, hi - i, type) * factor);
}
BY_DTYPE(scale)

INLINE void bias_add_range(const ax_bias_add_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t r = lo; r < hi; r++)
        for (int64_t c = 0; c < a->cols; c += W) {
            int64_t at = r * a->ld + c, n = a->cols - c;
            vput(a->y, at, n, type, vget(a->x, at, n, type) + vget(a->bias, c, n, VF32));
        }
}
BY_DTYPE(bias_add)

/* col_sum: work items are columns. Rows are added in ascending order, in blocks, which keeps the rounding
 * error small. A few rows are read side by side along the columns, which the hardware prefetcher follows. */
enum { SUM_ROWS = 256, SUM_COLS = 1024, WIDE = 4 };

INLINE void col_sum_rows(const ax_col_sum_args *a, int64_t r, int rows, int64_t lo, int64_t hi, float *sum,
                         vtype type)
{
    for (int64_t c = lo; c < hi; c += W) {
        vf s = vload(sum + (c - lo));
        UNROLL
        for (int i = 0; i < rows; i++)
            s = s + vget(a->x, (r + i) * a->ld + c, hi - c, type);
        vstore(sum + (c - lo), s);
    }
}
INLINE void col_sum_block(const ax_col_sum_args *a, int64_t r0, int64_t lo, int64_t hi, vtype type)
{
    _Alignas(64) float sum[SUM_COLS] = {0};
    int64_t r = r0, end = ax_min(a->rows, r0 + SUM_ROWS);
    for (; r + WIDE <= end; r += WIDE)
        col_sum_rows(a, r, WIDE, lo, hi, sum, type);
    for (; r < end; r++)
        col_sum_rows(a, r, 1, lo, hi, sum, type);
    for (int64_t c = lo; c < hi; c += W)
        vput(a->out, c, hi - c, VF32, vget(a->out, c, hi - c, VF32) + vload(sum + (c - lo)));
}
INLINE void col_sum_range(const ax_col_sum_args *a, int64_t lo, int64_t hi, vtype type)
{
    for (int64_t c = lo; c < hi; c += SUM_COLS)
        for (int64_t r0 = 0; r0 < a->rows; r0 += SUM_ROWS)
            col_sum_block(a, r0, c, ax_min(hi, c + SUM_COLS), type);
}
BY_DTYPE(col_sum)

/* Prefetch distance in bytes of sumsq, whose arrays are mostly not in the caches: the hardware prefetcher
 * does not cross page boundaries. */
enum { AHEAD = 4096 };

/* sumsq and squared_error sum squares in double, lane by lane. Work items are chunks of elements
 * (ax_cpu_chunks). */
typedef float half_floats __attribute__((vector_size(2 * W)));
typedef double wide __attribute__((vector_size(4 * W)));

INLINE void add_squares(wide sum[2], vf x)
{
    float part[W];
    vstore(part, x);
    for (int h = 0; h < 2; h++) {
        half_floats narrow_part;
        memcpy(&narrow_part, part + h * W / 2, sizeof narrow_part);
        wide w = __builtin_convertvector(narrow_part, wide);
        sum[h] = sum[h] + w * w;
    }
}

INLINE double sum_lanes(const wide sum[2])
{
    double total = 0;
    for (int j = 0; j < W / 2; j++)
        total += sum[0][j] + sum[1][j];
    return total;
}

INLINE void sumsq_chunk(const ax_cpu_sumsq *a, int64_t from, int64_t to, double *out, vtype type)
{
    wide sum[2] = {{0}};
    for (int64_t i = from; i < to; i += W) {
        __builtin_prefetch((const char *)a->x + i * vsize(type) + AHEAD);
        add_squares(sum, vget(a->x, i, to - i, type));
    }
    *out = sum_lanes(sum);
}

INLINE void squared_error_chunk(const ax_squared_error_args *a, int64_t from, int64_t to, double *out,
                                vtype type)
{
    const vf scale = vset((float)(a->scale * (a->now ? a->now->loss_scale : 1)));
    wide sum[2] = {{0}};
    for (int64_t i = from; i < to; i += W) {
        vf error = vget(a->x, i, to - i, type) - vget(a->target, i, to - i, type);
        add_squares(sum, error);
        if (a->dx)
            vput(a->dx, i, to - i, type, error * scale);
    }
    *out = sum_lanes(sum);
}

/* Defines kernel `name`, which calls name_chunk(args, from, to, out, type), compiled for each element type.
 * `arguments`: the type of args. */
#define BY_CHUNKS(name, arguments)                                                                           \
    static void name(const void *args, int64_t lo, int64_t hi, void *scratch)                                \
    {                                                                                                        \
        const ax_cpu_chunks *s = args;                                                                       \
        const arguments *a = s->args;                                                                        \
        (void)scratch;                                                                                       \
        for (int64_t i = lo; i < hi; i++) {                                                                  \
            int64_t from = i * s->chunk, to = ax_min(a->n, from + s->chunk);                                 \
            BY_VTYPE(name##_chunk, a->dtype, a, from, to, &s->partials[i]);                                  \
        }                                                                                                    \
    }
BY_CHUNKS(sumsq, ax_cpu_sumsq)
BY_CHUNKS(squared_error, ax_squared_error_args)

/* ---- conversion ---------------------------------------------------------------------------------- */

INLINE void convert_range(const ax_convert_args *a, int64_t lo, int64_t hi, vtype type)
{
    if (a->x_dtype == AX_F32)
        for (int64_t i = lo; i < hi; i += W)
            vput_exact(a->y, i, hi - i, type, vget(a->x, i, hi - i, VF32));
    else
        for (int64_t i = lo; i < hi; i += W)
            vput(a->y, i, hi - i, VF32, vget(a->x, i, hi - i, type));
}

/* Runs the kernel convert, between F32 and BF16 or F16. */
static void convert(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_convert_args *a = args;
    (void)scratch;
    BY_VTYPE(convert_range, a->x_dtype == AX_F32 ? a->y_dtype : a->x_dtype, a, lo, hi);
}

/* ---- random numbers ------------------------------------------------------------------------------ */

/* The upper 64 bits of Philox's counter for normally distributed numbers, as in philox.h. */
enum { NORMAL = 1 };

INLINE void dropout_range(const ax_dropout_args *a, int64_t lo, int64_t hi, vtype type)
{
    /* uniform is the upper 24 bits of a random word divided by 2^24, so "uniform >= p" is tested on these
     * bits, without the division. */
    vf threshold = vset((float)ceil(a->p * 0x1p24)), scale = vset((float)(1 / (1 - a->p)));
    const ax_batch_numbers now = a->now ? *a->now : (ax_batch_numbers){0};
    for (int64_t r = lo; r < hi; r++) {
        uint64_t first = (uint64_t)((now.first_row + a->row0 + r) * a->global_cols + a->col0);
        for (int64_t c = 0; c < a->cols;) {
            uint64_t index = first + (uint64_t)c;
            int64_t skip = (int64_t)(index % 4), n = ax_min(2 * W - skip, a->cols - c);
            uint32_t words[3 * W];
            random_words(a->key, now.step, index / 4, words);
            for (int64_t i = 0; i < n; i += W) {
                float draw[W];
                for (int j = 0; j < W; j++)
                    draw[j] = (float)(int32_t)(words[skip + i + j] >> 8);
                int64_t at = r * a->cols + c + i;
                vf kept = vget(a->x, at, n - i, type) * scale;
                vput(a->y, at, n - i, type, vless(vload(draw), threshold, vset(0), kept));
            }
            c += n;
        }
    }
}
BY_DTYPE(dropout)

/* Fills rows lo … hi-1 of y with normally distributed numbers. */
static void init_normal(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_init_normal_args *a = args;
    const int64_t *n = a->n, cols = n[3];
    (void)scratch;
    for (int64_t r = lo; r < hi; r++) {
        int64_t i = a->lo[0] + r / (n[1] * n[2]), j = a->lo[1] + r / n[2] % n[1], k = a->lo[2] + r % n[2];
        int64_t row = (i * a->extent[1] + j) * a->extent[2] + k;
        uint64_t first = (uint64_t)(row * a->extent[3] + a->lo[3]);
        for (int64_t c = 0; c < cols;) {
            uint64_t index = first + (uint64_t)c;
            int64_t skip = (int64_t)(index % 4), some = ax_min(2 * W - skip, cols - c);
            uint32_t words[2 * W];
            float z[2 * W];
            random_words(a->key, NORMAL, index / 4, words);
            for (int pair = 0; pair < W; pair++)
                ax_philox_normal_pair(words[2 * pair], words[2 * pair + 1], z + 2 * pair);
            for (int64_t l = 0; l < some; l++) {
                double value = a->mean + a->std * (double)z[skip + l];
                if (a->dtype == AX_F32)
                    ((float *)a->y)[r * cols + c + l] = (float)value;
                else
                    ax_store(a->dtype, a->y, r * cols + c + l, value);
            }
            c += some;
        }
    }
}

#endif
