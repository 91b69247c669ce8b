/* Norms, rotary positions and gated linear units of ref in double precision: values by their definition, and
 * a split width, whose result must equal the unsplit one. */
#include "axonn/dev.h"

#include "support/arrays.h"
#include "support/ref_stream.h"

#include <complex.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 4096 };

/* ---- norm ---------------------------------------------------------------------------------------- */

enum { NORM_ROWS = 5, NORM_COLS = 29 };
static const double norm_eps = 1e-5;

/* L = Σ w·y + Σ v·x with x = a + b and y its norm; v is the gradient of the residual connection. */
typedef struct norm_test {
    double a[MAX], b[MAX], weight[MAX], bias[MAX], w[MAX], v[MAX];
    double x[MAX], sum[NORM_ROWS], m2[NORM_ROWS], y[MAX];
    ax_norm_kind kind;
} norm_test;

/* Returns what the kernels get as `sum` or s1: NULL for RMSNorm. */
static void *of_mean(const norm_test *t, double *sum) { return t->kind == AX_NORM_RMS ? NULL : sum; }

static void norm_forward(const norm_test *t, double *x, double *sum, double *m2, double *y)
{
    RUN(norm, NORM_ROWS, NORM_COLS, norm_eps, t->a, t->b, t->weight, t->bias, x, of_mean(t, sum), m2, y,
        AX_F64, t->kind);
}

static void norm_setup(norm_test *t, ax_norm_kind kind)
{
    t->kind = kind;
    double *const rows[] = {t->a, t->b, t->w, t->v}, *const cols[] = {t->weight, t->bias};
    for (size_t i = 0; i < AX_COUNT(rows); i++)
        fill(rows[i], NORM_ROWS * NORM_COLS);
    for (size_t i = 0; i < AX_COUNT(cols); i++)
        fill(cols[i], NORM_COLS);
    for (int i = 0; i < NORM_COLS && kind == AX_NORM_LAYER; i++)
        t->a[2 * NORM_COLS + i] += 1e3; /* a mean far above the deviation */
    norm_forward(t, t->x, t->sum, t->m2, t->y);
}

/* RMSNorm by its definition: y = x/sqrt(mean of x² + eps)·weight + bias. */
static void rms_norm_by_definition(void **state)
{
    (void)state;
    static norm_test t;
    double y[NORM_ROWS * NORM_COLS];
    norm_setup(&t, AX_NORM_RMS);
    for (int r = 0; r < NORM_ROWS; r++) {
        const double *a = t.a + r * NORM_COLS, *b = t.b + r * NORM_COLS;
        double squares = 0;
        for (int i = 0; i < NORM_COLS; i++)
            squares += pow(a[i] + b[i], 2);
        for (int i = 0; i < NORM_COLS; i++)
            y[r * NORM_COLS + i] =
                (a[i] + b[i]) / sqrt(squares / NORM_COLS + norm_eps) * t.weight[i] + t.bias[i];
    }
    check_equal("y", t.y, y, NORM_ROWS * NORM_COLS);
    const ax_norm_args mean = {.kind = AX_NORM_RMS, .sum = t.sum}, other = {.kind = (ax_norm_kind)2};
    assert_int_equal(ax_run_norm(&stream, &mean), AX_ERR_USAGE);
    assert_int_equal(ax_run_norm(&stream, &other), AX_ERR_USAGE);
}

/* One rank's part of the width: columns lo … lo + n - 1. */
typedef struct norm_part {
    int64_t lo, n;
    double a[MAX], b[MAX], dy[MAX], add[MAX];
    double x[MAX], y[MAX], dx[MAX], dweight[NORM_COLS], dbias[NORM_COLS];
    double sum[NORM_ROWS], m2[NORM_ROWS], s1[NORM_ROWS], s2[NORM_ROWS];
} norm_part;

static void take_columns(const double *from, int64_t lo, int64_t n, double *to)
{
    for (int64_t r = 0; r < NORM_ROWS; r++)
        memcpy(to + r * n, from + r * NORM_COLS + lo, (size_t)n * sizeof *to);
}

static void check_columns(const char *what, const double *whole, const norm_part *p, const double *part)
{
    double expected[MAX];
    take_columns(whole, p->lo, p->n, expected);
    check_equal(what, part, expected, NORM_ROWS * p->n);
}

static void sum_parts(const double *a, const double *b, const double *c, double *out)
{
    for (int r = 0; r < NORM_ROWS; r++)
        out[r] = a[r] + b[r] + c[r];
}

/* The width on three ranks, one of them without columns, with the all-reduces written out, against the fused
 * kernels. */
static void check_split_norm(ax_norm_kind kind)
{
    static norm_test t;
    norm_part part[3] = {{.lo = 0, .n = 12}, {.lo = 12, .n = 0}, {.lo = 12, .n = 17}};
    double dx[MAX], dweight[NORM_COLS] = {0}, dbias[NORM_COLS] = {0};
    double all_sum[NORM_ROWS], m2[NORM_ROWS], all_s1[NORM_ROWS], s2[NORM_ROWS];
    norm_setup(&t, kind);
    void *sum = of_mean(&t, all_sum), *s1 = of_mean(&t, all_s1);
    for (int i = 0; i < 3; i++) {
        norm_part *p = &part[i];
        take_columns(t.a, p->lo, p->n, p->a);
        take_columns(t.b, p->lo, p->n, p->b);
        take_columns(t.w, p->lo, p->n, p->dy);
        take_columns(t.v, p->lo, p->n, p->add);
        RUN(norm_stats, NORM_ROWS, p->n, p->a, p->b, p->x, of_mean(&t, p->sum), p->m2, AX_F64, kind);
        check_columns("x", t.x, p, p->x);
    }
    if (kind == AX_NORM_LAYER) {
        sum_parts(part[0].sum, part[1].sum, part[2].sum, all_sum);
        for (int i = 0; i < 3; i++)
            RUN(norm_recentre, NORM_ROWS, part[i].n, NORM_COLS, part[i].sum, sum, part[i].m2, AX_F64);
        check_equal("sum", all_sum, t.sum, NORM_ROWS);
    }
    sum_parts(part[0].m2, part[1].m2, part[2].m2, m2);
    check_equal("m2", m2, t.m2, NORM_ROWS);
    for (int i = 0; i < 3; i++) {
        norm_part *p = &part[i];
        RUN(norm_apply, NORM_ROWS, p->n, NORM_COLS, norm_eps, p->x, sum, m2, t.weight + p->lo, t.bias + p->lo,
            p->y, AX_F64, kind);
        check_columns("y", t.y, p, p->y);
        RUN(norm_grad_stats, NORM_ROWS, p->n, NORM_COLS, norm_eps, p->x, p->dy, sum, m2, t.weight + p->lo,
            of_mean(&t, p->s1), p->s2, AX_F64, kind);
    }
    if (kind == AX_NORM_LAYER)
        sum_parts(part[0].s1, part[1].s1, part[2].s1, all_s1);
    sum_parts(part[0].s2, part[1].s2, part[2].s2, s2);
    RUN(norm_grad, NORM_ROWS, NORM_COLS, norm_eps, t.x, t.w, t.v, of_mean(&t, t.sum), t.m2, t.weight, dx,
        dweight, dbias, AX_F64, kind);
    for (int i = 0; i < 3; i++) {
        norm_part *p = &part[i];
        RUN(norm_grad_apply, NORM_ROWS, p->n, NORM_COLS, norm_eps, p->x, p->dy, p->add, sum, m2,
            t.weight + p->lo, s1, s2, p->dx, p->dweight, p->dbias, AX_F64, kind);
        check_columns("dx", dx, p, p->dx);
        check_equal("dweight", p->dweight, dweight + p->lo, p->n);
        check_equal("dbias", p->dbias, dbias + p->lo, p->n);
    }
}

static void norm_of_a_split_width(void **state)
{
    (void)state;
    check_split_norm(AX_NORM_LAYER);
    check_split_norm(AX_NORM_RMS);
}

/* ---- rotary positions ---------------------------------------------------------------------------- */

enum {
    ROPE_ROWS = 7,
    ROPE_HEADS = 3,
    ROPE_DIM = 10,
    ROPE_TABLE = 29,
    ROPE_N = ROPE_ROWS * ROPE_HEADS * ROPE_DIM
};
static const int32_t rope_positions[ROPE_ROWS] = {0, 1, 28, 3, 0, 17, 3};

typedef struct rope_test {
    double x[ROPE_N], w[ROPE_N];
    float table[ROPE_TABLE * ROPE_DIM];
} rope_test;

static void rotate(const rope_test *t, double *x, bool inverse)
{
    RUN(rope, ROPE_ROWS, ROPE_HEADS, ROPE_DIM, ROPE_HEADS * ROPE_DIM, ROPE_TABLE, rope_positions, t->table, x,
        AX_F64, inverse);
}

static double rope_angle(int64_t position, int64_t pair)
{
    return (double)position / pow(37, 0.2 * (double)pair);
}

static void rope_setup(rope_test *t)
{
    fill(t->x, ROPE_N);
    fill(t->w, ROPE_N);
    for (int64_t i = 0; i < ROPE_TABLE * ROPE_DIM / 2; i++) {
        double angle = rope_angle(i / (ROPE_DIM / 2), i % (ROPE_DIM / 2));
        t->table[2 * i] = (float)cos(angle);
        t->table[2 * i + 1] = (float)sin(angle);
    }
}

/* A pair (u, v) is the complex number u + iv, which is multiplied by exp(i·angle). The table's entries are
 * rounded to float, so results may be off by 2^-24 in each term. */
static void rope_by_definition(void **state)
{
    (void)state;
    static rope_test t;
    double x[ROPE_N];
    rope_setup(&t);
    memcpy(x, t.x, sizeof x);
    rotate(&t, x, false);
    for (int i = 0; i < ROPE_N; i++) {
        int pair = i % ROPE_DIM, first = i - pair + pair % (ROPE_DIM / 2);
        double complex number = t.x[first] + I * t.x[first + ROPE_DIM / 2];
        double angle = rope_angle(rope_positions[i / (ROPE_HEADS * ROPE_DIM)], pair % (ROPE_DIM / 2));
        double complex turned = number * cexp(I * angle);
        double expected = pair < ROPE_DIM / 2 ? creal(turned) : cimag(turned);
        assert_true(fabs(x[i] - expected) <= 2 * 0x1p-24 * cabs(number));
    }
    ax_rope_args odd = {.head_dim = 5, .dtype = AX_F64};
    assert_int_equal(ax_run_rope(&stream, &odd), AX_ERR_USAGE);
}

/* ---- gated linear units -------------------------------------------------------------------------- */

enum { GLU_ROWS = 3, GLU_COLS = 67, GLU_N = GLU_ROWS * GLU_COLS };

/* SwiGLU by its definition. */
static void glu_by_definition(void **state)
{
    (void)state;
    static const int32_t index[GLU_ROWS] = {2, 0, 1};
    double gate[GLU_N], up[GLU_N], scale[GLU_ROWS], y[GLU_N], again[GLU_N], expected[GLU_N], gradient[GLU_N];
    fill(gate, GLU_N);
    fill(up, GLU_N);
    fill(scale, GLU_ROWS);
    for (int i = 0; i < GLU_N; i++)
        expected[i] = gate[i] / (1 + exp(-gate[i])) * up[i] * scale[index[i / GLU_COLS]];
    RUN(glu, GLU_ROWS, GLU_COLS, GLU_COLS, GLU_ROWS, gate, up, scale, index, y, AX_F64, AX_SILU);
    check_equal("y", y, expected, GLU_N);
    RUN(glu_grad, GLU_ROWS, GLU_COLS, GLU_COLS, GLU_ROWS, gate, up, y, scale, index, gradient, gate, again,
        scale, AX_F64, AX_SILU);
    check_equal("y of glu_grad", again, expected, GLU_N);
    ax_glu_args unknown = {.kind = AX_ACTIVATION_COUNT, .dtype = AX_F64};
    assert_int_equal(ax_run_glu(&stream, &unknown), AX_ERR_USAGE);
    ax_glu_args narrow = {.rows = 2, .cols = 5, .ld = 4, .dtype = AX_F64};
    assert_int_equal(ax_run_glu(&stream, &narrow), AX_ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm_by_definition),
        cmocka_unit_test(norm_of_a_split_width),
        cmocka_unit_test(rope_by_definition),
        cmocka_unit_test(glu_by_definition),
    };
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
