/* Elementwise kernels: bias, activations, gated linear units, rotary positions, addition, dropout, scaling,
 * conversion, filling; and two sums: col_sum, the gradient of a bias, and sumsq. */
#include "axonn/philox.h"
#include "dev/ref/ref.h"

#include <math.h>

ax_status ref_bias_add(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_bias_add_args *a = args;
    double x[REF_BLOCK], bias[REF_BLOCK];
    for (int64_t r = 0; r < a->rows; r++)
        for (ref_blocks(a->cols, at, count)) {
            ref_read(a->dtype, a->x, r * a->ld + at, count, x);
            ref_read(ax_dtype_accum(a->dtype), a->bias, at, count, bias);
            for (int64_t i = 0; i < count; i++)
                x[i] += bias[i];
            ref_write(a->dtype, a->y, r * a->ld + at, count, x);
        }
    return AX_OK;
}

ax_status ref_col_sum(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_col_sum_args *a = args;
    ax_dtype accum = ax_dtype_accum(a->dtype);
    double x[REF_BLOCK], old[REF_BLOCK];
    for (ref_blocks(a->cols, at, count)) {
        double sum[REF_BLOCK] = {0};
        for (int64_t r = 0; r < a->rows; r++) {
            ref_read(a->dtype, a->x, r * a->ld + at, count, x);
            for (int64_t i = 0; i < count; i++)
                sum[i] += x[i];
        }
        ref_read(accum, a->out, at, count, old);
        for (int64_t i = 0; i < count; i++)
            sum[i] += old[i];
        ref_write(accum, a->out, at, count, sum);
    }
    return AX_OK;
}

/* The value of an activation and its derivative at x. For each FUNCTION of AX_ACTIVATIONS, FUNCTION_at(x)
 * returns this struct. */
typedef struct activation_point {
    double value, slope;
} activation_point;

static activation_point gelu_tanh_at(double x)
{
    const double root = 0.79788456080286535588; /* sqrt(2/pi) */
    double t = tanh(root * (x + 0.044715 * x * x * x));
    double dt = (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
    return (activation_point){0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * dt};
}

static activation_point gelu_exact_at(double x)
{
    const double density_scale = 0.39894228040143267794; /* 1/sqrt(2 pi) */
    double cdf = 0.5 * erfc(-x * 0.70710678118654752440);
    return (activation_point){x * cdf, cdf + x * density_scale * exp(-0.5 * x * x)};
}

static activation_point relu_at(double x) { return (activation_point){x < 0 ? 0 : x, x > 0}; }

static activation_point tanh_at(double x)
{
    double sech = 1 / cosh(x);
    return (activation_point){tanh(x), sech * sech};
}

static activation_point silu_at(double x)
{
    double above = 1 / (1 + exp(-x)), below = 1 / (1 + exp(x));
    return (activation_point){x * above, above + x * below * above};
}

typedef activation_point activation_fn(double x);
static activation_fn *const activations[AX_ACTIVATION_COUNT] = {
#define ENTRY(kind, function) [kind] = function##_at,
    AX_ACTIVATIONS(ENTRY)
#undef ENTRY
};

ax_status ref_activation(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_activation_args *a = args;
    double x[REF_BLOCK];
    for (ref_blocks(a->n, at, count)) {
        ref_read(a->dtype, a->x, at, count, x);
        for (int64_t i = 0; i < count; i++)
            x[i] = activations[a->kind](x[i]).value;
        ref_write(a->dtype, a->y, at, count, x);
    }
    return AX_OK;
}

ax_status ref_activation_grad(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_activation_grad_args *a = args;
    double x[REF_BLOCK], dy[REF_BLOCK];
    for (ref_blocks(a->n, at, count)) {
        ref_read(a->dtype, a->x, at, count, x);
        ref_read(a->dtype, a->dy, at, count, dy);
        for (int64_t i = 0; i < count; i++)
            dy[i] *= activations[a->kind](x[i]).slope;
        ref_write(a->dtype, a->dx, at, count, dy);
    }
    return AX_OK;
}

ax_status ref_glu(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_glu_args *a = args;
    double gate[REF_BLOCK], up[REF_BLOCK];
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->scale && a->index[r] < 0)
            continue;
        const double scale = a->scale ? ax_load(ax_dtype_accum(a->dtype), a->scale, a->index[r]) : 1;
        for (ref_blocks(a->cols, at, count)) {
            ref_read(a->dtype, a->gate, r * a->ld + at, count, gate);
            ref_read(a->dtype, a->up, r * a->ld + at, count, up);
            for (int64_t i = 0; i < count; i++)
                up[i] *= activations[a->kind](gate[i]).value * scale;
            ref_write(a->dtype, a->y, r * a->cols + at, count, up);
        }
    }
    return AX_OK;
}

/* Computes the gradient of elements at … at + count - 1 of row r, and returns their part of dscale. */
static double glu_grad_block(const ax_glu_grad_args *a, int64_t r, int64_t at, int64_t count, double scale)
{
    double gate[REF_BLOCK], up[REF_BLOCK], dy[REF_BLOCK], dscale = 0;
    ref_read(a->dtype, a->gate, r * a->ld + at, count, gate);
    ref_read(a->dtype, a->up, r * a->ld + at, count, up);
    ref_read(a->dtype, a->dy, r * a->cols + at, count, dy);
    for (int64_t i = 0; i < count; i++) {
        activation_point f = activations[a->kind](gate[i]);
        double product = f.value * up[i];
        dscale += dy[i] * product;
        gate[i] = scale * dy[i] * up[i] * f.slope;
        up[i] = scale * dy[i] * f.value;
        dy[i] = scale * product;
    }
    if (a->y)
        ref_write(a->dtype, a->y, r * a->cols + at, count, dy);
    ref_write(a->dtype, a->dgate, r * a->ld + at, count, gate);
    ref_write(a->dtype, a->dup, r * a->ld + at, count, up);
    return dscale;
}

ax_status ref_glu_grad(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_glu_grad_args *a = args;
    const ax_dtype accum = ax_dtype_accum(a->dtype);
    for (int64_t r = 0; r < a->rows; r++) {
        double dscale = 0;
        if (a->scale && a->index[r] < 0)
            continue;
        for (ref_blocks(a->cols, at, count))
            dscale += glu_grad_block(a, r, at, count, a->scale ? ax_load(accum, a->scale, a->index[r]) : 1);
        if (a->dscale)
            ax_store(accum, a->dscale, a->index[r], dscale);
    }
    return AX_OK;
}

/* Rotates one head of a row; x[first] is the head's first element. `angles`: cosines and sines of the row's
 * position; NULL: the position is outside the table, and the head becomes NaN. */
static void rotate_head(const ax_rope_args *a, int64_t first, const float *angles)
{
    const int64_t half = a->head_dim / 2;
    double u[REF_BLOCK], v[REF_BLOCK];
    for (ref_blocks(half, at, count)) {
        ref_read(a->dtype, a->x, first + at, count, u);
        ref_read(a->dtype, a->x, first + half + at, count, v);
        for (int64_t i = 0; i < count; i++) {
            double cosine = angles ? (double)angles[2 * (at + i)] : NAN;
            double sine = angles ? (double)angles[2 * (at + i) + 1] : NAN;
            double x = u[i], y = v[i], turn = a->inverse ? -sine : sine;
            u[i] = x * cosine - y * turn;
            v[i] = y * cosine + x * turn;
        }
        ref_write(a->dtype, a->x, first + at, count, u);
        ref_write(a->dtype, a->x, first + half + at, count, v);
    }
}

ax_status ref_rope(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_rope_args *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t position = a->positions[r];
        bool inside = position >= 0 && position < a->table_rows;
        const float *angles = inside ? a->table + position * a->head_dim : NULL;
        for (int64_t h = 0; h < a->heads; h++)
            rotate_head(a, r * a->ld + h * a->head_dim, angles);
    }
    return AX_OK;
}

ax_status ref_add(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_add_args *a = args;
    double x[REF_BLOCK], y[REF_BLOCK];
    for (ref_blocks(a->n, at, count)) {
        ref_read(a->dtype, a->a, at, count, x);
        ref_read(a->dtype, a->b, at, count, y);
        for (int64_t i = 0; i < count; i++)
            y[i] += x[i];
        ref_write(a->dtype, a->y, at, count, y);
    }
    return AX_OK;
}

ax_status ref_dropout(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_dropout_args *a = args;
    const ax_batch_numbers now = a->now ? *a->now : (ax_batch_numbers){0};
    double x[REF_BLOCK];
    for (int64_t r = 0; r < a->rows; r++)
        for (ref_blocks(a->cols, at, count)) {
            ref_read(a->dtype, a->x, r * a->cols + at, count, x);
            for (int64_t i = 0; i < count; i++) {
                int64_t index = (now.first_row + a->row0 + r) * a->global_cols + a->col0 + at + i;
                bool kept = (double)ax_philox_uniform(a->key, now.step, (uint64_t)index) >= a->p;
                x[i] = kept ? x[i] / (1 - a->p) : 0;
            }
            ref_write(a->dtype, a->y, r * a->cols + at, count, x);
        }
    return AX_OK;
}

static double sum_of_squares(ax_dtype dtype, const void *array, int64_t n)
{
    double x[REF_BLOCK], total = 0;
    for (ref_blocks(n, at, count)) {
        double sum = 0;
        ref_read(dtype, array, at, count, x);
        for (int64_t i = 0; i < count; i++)
            sum += x[i] * x[i];
        total += sum;
    }
    return total;
}

ax_status ref_sumsq(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_sumsq_args *a = args;
    for (const ax_sumsq_array *s = a->array; s < a->array + a->arrays; s++)
        a->out[s->to] = sum_of_squares(a->dtype, s->x, s->n);
    return AX_OK;
}

ax_status ref_scale(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_scale_args *a = args;
    double x[REF_BLOCK];
    for (ref_blocks(a->n, at, count)) {
        ref_read(a->dtype, a->x, at, count, x);
        for (int64_t i = 0; i < count; i++)
            x[i] *= a->factor;
        ref_write(a->dtype, a->x, at, count, x);
    }
    return AX_OK;
}

ax_status ref_convert(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_convert_args *a = args;
    double x[REF_BLOCK];
    for (ref_blocks(a->n, at, count)) {
        ref_read(a->x_dtype, a->x, at, count, x);
        ref_write(a->y_dtype, a->y, at, count, x);
    }
    return AX_OK;
}

ax_status ref_fill(ax_stream *stream, const void *args)
{
    (void)stream;
    const ax_fill_args *a = args;
    for (int64_t i = 0; i < a->n; i++)
        ax_store(a->dtype, a->y, i, a->value);
    return AX_OK;
}
