/* The lists of kernel cases, second part: elementwise kernels, rows and boxes. */
#include "support/kernel_macros.h"

#include <math.h>
#include <string.h>

bool kc_build_bias_add(kernel_case *c, int index)
{
    ARGS(bias_add);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 2, &a->rows, &a->cols))
        return false;
    a->ld = a->cols + index % 3 * 4;
    DTYPE(dtype, c->dtype);
    IN(bias, ACCUM, a->cols);
    if (index % 2) {
        INOUT(x, c->dtype, a->rows * a->ld, 1);
        ALIAS(y);
    } else {
        IN(x, c->dtype, a->rows * a->ld);
        OUT(y, c->dtype, a->rows * a->ld, 1);
    }
    return true;
}

bool kc_build_col_sum(kernel_case *c, int index)
{
    ARGS(col_sum);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 1, &a->rows, &a->cols))
        return false;
    a->ld = a->cols + index % 3;
    DTYPE(dtype, c->dtype);
    IN(x, c->dtype, a->rows * a->ld);
    INOUT(out, ACCUM, a->cols, (double)a->rows + 1);
    return true;
}

/* Sets the length and the activation of case `index`: each pair occurs twice, out of place and in place.
 * Returns false after the last case. */
static bool activation_case(int index, int64_t *n, ax_activation *kind)
{
    if (index / (2 * AX_ACTIVATION_COUNT) >= kc_length_count)
        return false;
    *n = kc_lengths[index / (2 * AX_ACTIVATION_COUNT)];
    *kind = (ax_activation)(index / 2 % AX_ACTIVATION_COUNT);
    return true;
}

/* Overwrites some elements of x with large numbers, up to `most`, and with numbers near 0. At these numbers
 * activations and their slopes equal 0, x or ±1, or nearly so. */
static void put_extremes(const kernel_case *c, void *x, int64_t n, double most)
{
    static const double at[] = {3e38, -3e38, 1e25, -1e25, 40, -40, 0, -0.0, 1e-4, -1e-4, 0.624, -0.626};
    const double finite = c->dtype == AX_F16 ? 65504 : INFINITY;
    for (int64_t i = 0; i < ax_min(n / 8, (int64_t)AX_COUNT(at)); i++)
        ax_store(c->dtype, x, 2 * i, fmax(-finite, fmin(finite, fmin(most, at[i]))));
}

bool kc_build_activation(kernel_case *c, int index)
{
    ARGS(activation);
    if (!kc_takes(c, KC_ACTIVATION) || !activation_case(index, &a->n, &a->kind))
        return false;
    DTYPE(dtype, c->dtype);
    if (index % 2) {
        INOUT(x, c->dtype, a->n, 32);
        ALIAS(y);
    } else {
        IN(x, c->dtype, a->n);
        OUT(y, c->dtype, a->n, 32);
    }
    kc_fill(c, 0, 3);
    if (a->n > 2 && c->dtype != AX_F64) /* the result is 0, or -1 for tanh */
        ax_store(c->dtype, c->operand[0].data, 1, c->dtype == AX_F16 ? -65504 : -3e38);
    if (a->kind == AX_TANH) /* values are within ±1 */
        put_extremes(c, c->operand[0].data, a->n, INFINITY);
    return true;
}

bool kc_build_activation_grad(kernel_case *c, int index)
{
    ARGS(activation_grad);
    if (!kc_takes(c, KC_ACTIVATION) || !activation_case(index, &a->n, &a->kind))
        return false;
    DTYPE(dtype, c->dtype);
    void *x = IN(x, c->dtype, a->n);
    kc_fill(c, 0, 3);
    put_extremes(c, x, a->n, INFINITY);
    if (index % 2) {
        INOUT(dy, c->dtype, a->n, 32);
        ALIAS(dx);
    } else {
        IN(dy, c->dtype, a->n);
        OUT(dx, c->dtype, a->n, 32);
    }
    return true;
}

/* Sets the shape of a gated unit of about kc_lengths[index] elements: a third of the cases has one row, the
 * others several. Unless `dense`, rows are padded in two of three cases. Returns false after the last
 * length. */
static bool unit_grid(int index, bool dense, int64_t *rows, int64_t *cols, int64_t *ld)
{
    static const int64_t counts[] = {1, 3, 5}, pads[] = {0, 3, 16};
    if (index >= kc_length_count)
        return false;
    *rows = ax_min(counts[index % 3], ax_max(kc_lengths[index], 1));
    *cols = kc_lengths[index] / *rows;
    *ld = *cols + (dense ? 0 : pads[(index / 3 + index) % 3]);
    return true;
}

/* Adds a factor for each row, and which row has which; there are more factors than rows, and every fifth row
 * has none. */
static int64_t put_scale(kernel_case *c, size_t scale, size_t index, int64_t rows)
{
    const int64_t scales = rows + 2;
    kc_add_normal(c, "scale", KC_IN, scale, ACCUM, scales, 0);
    int32_t *at = kc_add(c, "index", KC_IN, index, AX_I32, rows, 0);
    for (int64_t r = 0; r < rows; r++)
        at[r] = r % 5 == 4 ? -1 : (int32_t)(scales - 1 - r);
    kc_name(c, " scaled");
    return scales;
}

/* Makes cases of glu: y in memory of its own, or in place of gate or up. Gates are at most 40, because errors
 * are relative to the norm of the array, and larger values would dominate the norm. */
bool kc_build_glu(kernel_case *c, int index)
{
    ARGS(glu);
    if (!kc_takes(c, KC_ACTIVATION) ||
        !unit_grid(index / 3 / AX_ACTIVATION_COUNT, index % 3, &a->rows, &a->cols, &a->ld))
        return false;
    const int64_t n = a->rows * a->ld;
    a->kind = (ax_activation)(index / 3 % AX_ACTIVATION_COUNT);
    DTYPE(dtype, c->dtype);
    kc_add_normal(c, "gate", index % 3 == 1 ? KC_INOUT : KC_IN, FIELD(gate), c->dtype, n, 32);
    kc_fill(c, 0, 3);
    put_extremes(c, c->operand[0].data, n, 40);
    if (index % 3 == 1)
        ALIAS(y);
    kc_add_normal(c, "up", index % 3 == 2 ? KC_INOUT : KC_IN, FIELD(up), c->dtype, n, 32);
    if (index % 3 == 2)
        ALIAS(y);
    if (index % 3 == 0)
        OUT(y, c->dtype, a->rows * a->cols, 32);
    if (index / 3 % 4 == 3)
        a->scales = put_scale(c, FIELD(scale), FIELD(index), a->rows);
    return true;
}

/* Adds a scale to a case of glu_grad, and the results that go with it: y in place of dy, unless that is
 * taken, in memory of its own, or not at all. */
static void scale_glu_grad(kernel_case *c, int index, int dy)
{
    ARGS(glu_grad);
    const int64_t n = a->rows * a->cols;
    if (dy >= 0) {
        kc_operand *o = &c->operand[dy];
        o->role = KC_INOUT;
        o->alias = FIELD(y);
        memcpy(c->args.bytes + FIELD(y), &o->data, sizeof o->data);
    } else if (index % 3) {
        OUT(y, c->dtype, n, 40);
    }
    a->scales = put_scale(c, FIELD(scale), FIELD(index), a->rows);
    INOUT(dscale, ACCUM, a->scales, (double)a->cols + 40);
    /* The sums are of fp32 values that are as accurate as 16-bit results need: the relative error of cpu's
     * activations is up to 2^-14 (vrough_inverse). The terms have random signs, and so have the errors. */
    if (ax_dtype_size(c->dtype) == 2)
        c->operand[c->operands - 1].bound += 0x1p-14;
}

/* Makes cases of glu_grad: dgate and dup in memory of their own or in place of gate, up or dy, in every legal
 * combination. */
bool kc_build_glu_grad(kernel_case *c, int index)
{
    enum { INPUTS = 3, DY = 2, OWN = INPUTS };
    static const int places[][2] = {{OWN, OWN}, {0, 1}, {0, 2},   {0, OWN}, {1, 0},   {1, 2},  {1, OWN},
                                    {2, 0},     {2, 1}, {2, OWN}, {OWN, 0}, {OWN, 1}, {OWN, 2}};
    const int ways = (int)AX_COUNT(places), *place = places[index % ways];
    ARGS(glu_grad);
    if (!kc_takes(c, KC_ACTIVATION) ||
        !unit_grid(index / ways, place[0] == DY || place[1] == DY, &a->rows, &a->cols, &a->ld))
        return false;
    const int64_t n = a->rows * a->ld;
    static const char *const names[] = {"gate", "up", "dy"};
    const size_t inputs[] = {FIELD(gate), FIELD(up), FIELD(dy)}, outputs[] = {FIELD(dgate), FIELD(dup)};
    a->kind = (ax_activation)(index % AX_ACTIVATION_COUNT);
    DTYPE(dtype, c->dtype);
    for (int i = 0; i < INPUTS; i++) {
        int output = place[0] == i ? 0 : place[1] == i ? 1 : -1;
        kc_add_normal(c, names[i], output < 0 ? KC_IN : KC_INOUT, inputs[i], c->dtype,
                      i == DY ? a->rows * a->cols : n, 40);
        if (i == 0) {
            kc_fill(c, 0, 3);
            put_extremes(c, c->operand[0].data, n, 40);
        }
        if (output >= 0)
            kc_alias(c, outputs[output]);
    }
    if (place[0] == OWN)
        OUT(dgate, c->dtype, n, 40);
    if (place[1] == OWN)
        OUT(dup, c->dtype, n, 40);
    if (index % 4 == 3)
        scale_glu_grad(c, index, place[0] == DY || place[1] == DY ? -1 : DY);
    for (int i = 0; i < c->operands && c->dtype == AX_F64; i++)
        c->operand[i].bound *= 4; /* ref's slope of gelu loses digits in 1 - tanh² */
    return true;
}

/* Makes cases of rope: positions repeat, and in every third case some positions are outside the table. */
bool kc_build_rope(kernel_case *c, int index)
{
    static const int64_t shapes[][4] =
        {/* rows, heads, head_dim, rows of the table */
         {0, 2, 8, 5},    {3, 0, 8, 5},      {3, 2, 0, 5},     {1, 1, 2, 1},
         {7, 3, 6, 17},   {5, 2, 14, 31},    {13, 5, 32, 11},  {61, 3, 64, 67},
         {17, 7, 80, 23}, {31, 1, 128, 101}, {3, 37, 96, 257}, {257, 4, 66, 19}},
                         pads[] = {0, 8, 3};
    ARGS(rope);
    if (!kc_takes(c, KC_ACTIVATION) || index / 6 >= (int)AX_COUNT(shapes))
        return false;
    const int64_t *shape = shapes[index / 6];
    a->rows = shape[0], a->heads = shape[1], a->head_dim = shape[2], a->table_rows = shape[3];
    a->ld = a->heads * a->head_dim + pads[(index / 2 + index / 6) % 3];
    a->inverse = index % 2;
    DTYPE(dtype, c->dtype);
    int32_t *positions = RAW(positions, KC_IN, AX_I32, a->rows, 0);
    const int outside = index % 3 == 2 ? 2 : 0;
    for (int64_t r = 0; r < a->rows; r++)
        positions[r] = (int32_t)kc_integer(c, -outside, a->table_rows + outside);
    float *table = RAW(table, KC_IN, AX_F32, a->table_rows * a->head_dim, 0);
    for (int64_t i = 0; i < a->table_rows * a->head_dim / 2; i++) {
        double angle = 3 * kc_normal(c);
        table[2 * i] = (float)cos(angle), table[2 * i + 1] = (float)sin(angle);
    }
    INOUT(x, c->dtype, a->rows * a->ld, 4);
    return true;
}

bool kc_build_add(kernel_case *c, int index)
{
    ARGS(add);
    if (!kc_takes(c, KC_ACTIVATION) || index / 3 >= kc_length_count)
        return false;
    a->n = kc_lengths[index / 3];
    DTYPE(dtype, c->dtype);
    if (index % 3 == 0) {
        IN(a, c->dtype, a->n);
        IN(b, c->dtype, a->n);
        OUT(y, c->dtype, a->n, 1);
    } else if (index % 3 == 1) {
        IN(b, c->dtype, a->n);
        INOUT(a, c->dtype, a->n, 1);
        ALIAS(y);
    } else {
        IN(a, c->dtype, a->n);
        INOUT(b, c->dtype, a->n, 1);
        ALIAS(y);
    }
    return true;
}

void kc_put_batch(kernel_case *c, size_t field, int index)
{
    ax_batch_numbers now = {.step = (uint64_t)index << 31 | 5,
                            .first_row = index % 7,
                            .loss_scale = index % 2 ? 0.75 : 0x1p-9,
                            .sample_scale = 0.5};
    enum { WORDS = sizeof now / sizeof(double) };
    if (index % 3)
        memcpy(kc_add(c, "now", KC_IN, field, AX_F64, WORDS, 0), &now, sizeof now);
}

bool kc_build_dropout(kernel_case *c, int index)
{
    static const double rates[] = {0, 0.1, 0.5};
    ARGS(dropout);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 6, &a->rows, &a->cols))
        return false;
    a->p = rates[index % 3];
    a->row0 = index % 5;
    a->col0 = index % 7;
    a->global_cols = a->cols + index % 11 + 7;
    a->key = ax_rng_key(3, "dropout", (uint64_t)index);
    DTYPE(dtype, c->dtype);
    kc_put_batch(c, FIELD(now), index);
    if (index % 6 >= 3) {
        INOUT(x, c->dtype, a->rows * a->cols, 4);
        ALIAS(y);
    } else {
        IN(x, c->dtype, a->rows * a->cols);
        OUT(y, c->dtype, a->rows * a->cols, 4);
    }
    return true;
}

/* Makes cases of squared_error: without dx, with dx, and with dx in place of x. */
bool kc_build_squared_error(kernel_case *c, int index)
{
    ARGS(squared_error);
    if (!kc_takes(c, KC_ACTIVATION) || index / 3 >= kc_length_count)
        return false;
    a->n = kc_lengths[index / 3];
    a->scale = 2.0 / 37;
    DTYPE(dtype, c->dtype);
    kc_put_batch(c, FIELD(now), index / 3);
    IN(target, c->dtype, a->n);
    if (index % 3 == 2) {
        INOUT(x, c->dtype, a->n, 4);
        ALIAS(dx);
    } else {
        IN(x, c->dtype, a->n);
    }
    if (index % 3 == 1)
        OUT(dx, c->dtype, a->n, 4);
    /* a sum of n terms in another order: with F64 its own roundings count */
    INOUT(total, AX_F64, 1, c->dtype == AX_F64 ? (double)a->n + 4 : 4);
    return true;
}

/* Makes cases of sumsq: one array, or four, the second empty, as a part of a longer table whose sums are in
 * another order than the arrays. */
bool kc_build_sumsq(kernel_case *c, int index)
{
    ARGS(sumsq);
    enum { WORDS = sizeof *a->array / sizeof(double) };
    if (!kc_takes(c, KC_ACTIVATION) || index / 2 >= kc_length_count)
        return false;
    const int64_t n = kc_lengths[index / 2], several[] = {n, 0, 5, n / 2 + 3};
    ax_sumsq_array table[AX_COUNT(several)] = {{0}};
    a->arrays = index % 2 ? (int64_t)AX_COUNT(several) : 1;
    DTYPE(dtype, c->dtype);
    int64_t first = index % 2 ? 3 : 0;
    for (int i = 0; i < a->arrays; i++) {
        table[i] = (ax_sumsq_array){.n = several[i], .first = first, .to = a->arrays - 1 - i};
        first += ax_ceil_div(several[i], AX_SUMSQ_CHUNK);
    }
    const int at = c->operands;
    memcpy(kc_add(c, "array", KC_IN, FIELD(array), AX_F64, a->arrays * (int)WORDS, 0), table,
           (size_t)a->arrays * sizeof *table);
    c->operand[at].host = FIELD(table);
    for (int i = 0; i < a->arrays; i++) {
        kc_add_to_table(c, at, "x", KC_IN, (size_t)i * sizeof *table + offsetof(ax_sumsq_array, x), c->dtype,
                        several[i], 0);
        kc_fill(c, 0.25, 1);
    }
    OUT(out, AX_F64, a->arrays, (double)n + 1);
    if (c->dtype != AX_F64)
        c->operand[c->operands - 1].bound *= 0x1p-29; /* the sum is in double for every element type */
    return true;
}

bool kc_build_scale(kernel_case *c, int index)
{
    ARGS(scale);
    if (!kc_takes(c, KC_ACTIVATION) || index >= kc_length_count)
        return false;
    a->n = kc_lengths[index];
    a->factor = 1.0 / 3;
    DTYPE(dtype, c->dtype);
    INOUT(x, c->dtype, a->n, 2);
    return true;
}

/* Values at the limits of rounding and overflow, and NaN. */
static const double awkward[] = {0.0,
                                 -0.0,
                                 1 + 0x1p-8,
                                 1 + 0x3p-8,
                                 1 + 0x1p-11,
                                 1 + 0x3p-11,
                                 65504,
                                 65519.996,
                                 65520,
                                 -65536,
                                 0x1p-24,
                                 0x1p-25,
                                 0x1.8p-25,
                                 0x1p-14,
                                 0x1.ffp-15,
                                 3.4028234e38,
                                 3.3961775e38,
                                 0x1p-126,
                                 0x1p-133,
                                 0x1p-134,
                                 0x1p-149,
                                 0x1.0101p0,
                                 1 + 0x1.0001p-8,
                                 1e300,
                                 INFINITY,
                                 -INFINITY,
                                 NAN,
                                 1 + 0x1p-8 + 0x1p-40};

bool kc_build_convert(kernel_case *c, int index)
{
    static const ax_dtype to[] = {AX_F64, AX_F32, AX_BF16, AX_F16};
    ARGS(convert);
    int count = (int)AX_COUNT(to);
    if (!kc_takes(c, KC_ACTIVATION) || index / count >= kc_length_count)
        return false;
    a->n = kc_lengths[index / count];
    DTYPE(x_dtype, c->dtype);
    DTYPE(y_dtype, to[index % count]);
    kc_name(c, " to %s", ax_dtype_name(a->y_dtype));
    void *x = IN(x, c->dtype, a->n);
    for (int64_t i = 0; i < ax_min(a->n, (int64_t)AX_COUNT(awkward)); i++)
        ax_store(c->dtype, x, i, awkward[i]);
    OUT(y, a->y_dtype, a->n, 0);
    return true;
}

/* Makes a mask of rows x cols elements, of which about 1 in `sparsity` is kept (0: none), and the beginnings
 * of the rows in the vector, every third row with `padding` zeros after it. The box is the second half of a
 * larger one, so the vector does not begin at 0. Returns the elements of the vector. */
static int64_t fill_mask(kernel_case *c, int64_t rows, int64_t cols, int64_t sparsity, int64_t padding,
                         uint64_t *bits, int32_t *begin)
{
    const int64_t words = ax_ceil_div(cols, 64);
    memset(bits, 0, (size_t)(rows * words) * sizeof *bits);
    begin[0] = 17;
    for (int64_t r = 0; r < rows; r++) {
        begin[r + 1] = (int32_t)(begin[r] + (r % 3 ? 0 : padding));
        for (int64_t k = 0; k < cols && sparsity; k++)
            if (!kc_integer(c, 0, sparsity)) {
                bits[r * words + k / 64] |= (uint64_t)1 << k % 64;
                begin[r + 1]++;
            }
    }
    return begin[rows] - begin[0];
}

static const int64_t sparsities[] = {10, 1, 0, 2, 100};

/* Sets the dtypes of case `index` of compress or expand, and returns false after the last one. */
static bool masked_case(kernel_case *c, int index, int variants, int64_t *rows, int64_t *cols, ax_dtype *y)
{
    static const ax_dtype to[] = {AX_F32, AX_BF16, AX_F16};
    *y = c->dtype == AX_F64 ? AX_F64 : to[index % 3];
    return kc_takes(c, KC_ACCUM) && kc_grid(index, variants, rows, cols);
}

bool kc_build_compress(kernel_case *c, int index)
{
    ARGS(compress);
    ax_dtype to;
    if (!masked_case(c, index, 12, &a->rows, &a->cols, &to))
        return false;
    const int64_t sparsity = sparsities[index % (int)AX_COUNT(sparsities)];
    a->accumulate = index / 3 % 2;
    a->ld = a->cols + index / 6 % 2 * 3;
    DTYPE(x_dtype, c->dtype);
    DTYPE(y_dtype, to);
    uint64_t *bits = RAW(bits, KC_IN, AX_I64, a->rows * ax_ceil_div(a->cols, 64), 0);
    int32_t *begin = RAW(begin, KC_IN, AX_I32, a->rows + 1, 0);
    a->n = fill_mask(c, a->rows, a->cols, sparsity, 5 * (index % 2), bits, begin);
    kc_name(c, " %dx%d to %s, 1/%d%s", (int)a->rows, (int)a->cols, ax_dtype_name(to), (int)sparsity,
            a->accumulate ? " +=" : "");
    IN(x, c->dtype, a->rows * a->ld);
    if (a->accumulate)
        INOUT(y, to, a->n, 1);
    else
        OUT(y, to, a->n, 0);
    return true;
}

bool kc_build_expand(kernel_case *c, int index)
{
    ARGS(expand);
    ax_dtype to;
    if (!masked_case(c, index, 12, &a->rows, &a->cols, &to))
        return false;
    const int64_t sparsity = sparsities[index % (int)AX_COUNT(sparsities)];
    a->whole = index / 3 % 2;
    DTYPE(x_dtype, c->dtype);
    DTYPE(y_dtype, to);
    uint64_t *bits = RAW(bits, KC_IN, AX_I64, a->rows * ax_ceil_div(a->cols, 64), 0);
    int32_t *begin = RAW(begin, KC_IN, AX_I32, a->rows + 1, 0);
    const int64_t all = fill_mask(c, a->rows, a->cols, sparsity, 5 * (index % 2), bits, begin);
    /* A part begins at the last number of padding after row 0, or anywhere. */
    a->first = a->whole ? 0 : index % 2 && a->rows ? begin[1] - begin[0] - 1 : all / 5;
    a->n = a->whole ? all : ax_min(all / 2, all - a->first);
    kc_name(c, " %dx%d to %s, 1/%d%s", (int)a->rows, (int)a->cols, ax_dtype_name(to), (int)sparsity,
            a->whole ? "" : " part");
    IN(x, c->dtype, a->n);
    if (a->whole)
        OUT(y, to, a->rows * a->cols, 0);
    else
        INOUT(y, to, a->rows * a->cols, 0);
    return true;
}

bool kc_build_fill(kernel_case *c, int index)
{
    ARGS(fill);
    if (index >= kc_length_count)
        return false;
    a->n = kc_lengths[index];
    a->value = kc_takes(c, KC_ACTIVATION) ? 0.1 : 119;
    DTYPE(dtype, c->dtype);
    OUT(y, c->dtype, a->n, 0);
    return true;
}

bool kc_build_copy_box(kernel_case *c, int index)
{
    static const int64_t boxes[][4] = {{1, 1, 1, 0},    {2, 0, 3, 4},   {1, 1, 1, 1},
                                       {1, 1, 1, 1031}, {1, 1, 37, 41}, {2, 3, 5, 7},
                                       {3, 1, 65, 2},   {4, 7, 3, 64},  {1, 5, 129, 33}};
    static const int orders[][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0}}; /* x's dims, outermost first */
    int orders_count = (int)AX_COUNT(orders), variants = 4 * orders_count;
    if (index / variants >= (int)AX_COUNT(boxes))
        return false;
    const int64_t *n = boxes[index / variants];
    const int *order = orders[index % orders_count];
    int gap = index / orders_count % 2 * 3;
    ARGS(copy_box);
    a->accumulate = index / orders_count / 2 % 2;
    if (a->accumulate && !kc_takes(c, KC_ACTIVATION))
        a->accumulate = false;
    int64_t x_count = 1, y_count = 1;
    for (int i = 3; i >= 0; i--) {
        a->n[i] = n[i];
        a->y_stride[i] = y_count;
        y_count *= n[i] + (i == 3 ? gap : 0);
        a->x_stride[order[i]] = x_count;
        x_count *= n[order[i]] + (i == 3 ? gap : 0);
    }
    DTYPE(dtype, c->dtype);
    kc_name(c, " %dx%dx%dx%d%s", (int)n[0], (int)n[1], (int)n[2], (int)n[3], a->accumulate ? " +=" : "");
    void *x = IN(x, c->dtype, x_count);
    if (!kc_takes(c, KC_ACTIVATION))
        for (int64_t i = 0; i < x_count; i++)
            ax_store(c->dtype, x, i, (double)kc_integer(c, 0, 256));
    if (a->accumulate)
        INOUT(y, c->dtype, y_count, 1);
    else
        OUT(y, c->dtype, y_count, 0);
    return true;
}

/* Fills in ids: some repeat, and some are outside the box's part of the table. */
static void fill_ids(kernel_case *c, int32_t *ids, int64_t rows, int64_t first, int64_t count)
{
    for (int64_t r = 0; r < rows; r++)
        ids[r] = (int32_t)kc_integer(c, first ? first - 3 : 0, first + count + 4);
}

bool kc_build_embedding(kernel_case *c, int index)
{
    ARGS(embedding);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 4, &a->rows, &a->cols))
        return false;
    a->first = index & 1 ? 13 : 0;
    a->count = index / 4 % 3 * 17;
    a->accumulate = index & 2;
    DTYPE(dtype, c->dtype);
    IN(table, c->dtype, a->count * a->cols);
    fill_ids(c, RAW(ids, KC_IN, AX_I32, a->rows, 0), a->rows, a->first, a->count);
    if (a->accumulate)
        INOUT(y, c->dtype, a->rows * a->cols, 1);
    else
        OUT(y, c->dtype, a->rows * a->cols, 0);
    return true;
}

bool kc_build_embedding_grad(kernel_case *c, int index)
{
    ARGS(embedding_grad);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 2, &a->rows, &a->cols))
        return false;
    ax_dtype table = index / 6 % 2 ? c->dtype : ACCUM;
    a->first = index & 1 ? 13 : 0;
    a->count = index / 2 % 3 * 17;
    DTYPE(dtype, c->dtype);
    DTYPE(table_dtype, table);
    IN(dy, c->dtype, a->rows * a->cols);
    int32_t *ids = RAW(ids, KC_IN, AX_I32, a->rows, 0);
    fill_ids(c, ids, a->rows, a->first, a->count);
    for (int64_t r = 0; index % 5 == 4 && r < a->rows; r++) /* a single long run of equal ids */
        ids[r] = (int32_t)(a->first + a->count / 2);
    INOUT(dtable, table, a->count * a->cols, (double)a->rows + 1);
    return true;
}

bool kc_build_init_normal(kernel_case *c, int index)
{
    static const int64_t boxes[][3][4] = {/* extent, lo, n */
                                          {{1, 1, 1, 7}, {0, 0, 0, 0}, {1, 1, 1, 7}},
                                          {{1, 1, 5, 7}, {0, 0, 2, 3}, {1, 1, 0, 4}},
                                          {{2, 3, 5, 7}, {1, 1, 2, 3}, {1, 2, 2, 4}},
                                          {{2, 3, 5, 7}, {0, 0, 0, 0}, {2, 3, 5, 7}},
                                          {{1, 1, 301, 257}, {0, 0, 100, 1}, {1, 1, 129, 255}}};
    ARGS(init_normal);
    if (!kc_takes(c, KC_ACTIVATION) || index >= (int)AX_COUNT(boxes))
        return false;
    int64_t count = 1;
    for (int i = 0; i < 4; i++) {
        a->extent[i] = boxes[index][0][i];
        a->lo[i] = boxes[index][1][i];
        a->n[i] = boxes[index][2][i];
        count *= a->n[i];
    }
    a->key = 99;
    a->mean = 0.125;
    a->std = 0.02;
    DTYPE(dtype, c->dtype);
    OUT(y, c->dtype, count, 4);
    if (c->dtype == AX_F64)
        c->operand[0].bound = 4 * 0x1p-24; /* the kernel draws normal numbers in fp32, also for F64 */
    return true;
}
