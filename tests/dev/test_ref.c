/* Kernels of ref against formulas written out: optimizers, conversions, boxes, random numbers. */
#include "axonn/dev.h"

#include "support/ref_stream.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double draw(uint64_t index) { return (double)ax_rng_normal(5, index); }

/* ---- optimizers ---------------------------------------------------------------------------------- */

/* Returns the table entry of one array of F64. */
static ax_update_array whole(int64_t n, void *w, void *m, void *v, void *copy, const void *g)
{
    return (ax_update_array){
        .n = n, .w = w, .m = m, .v = v, .copy = copy, .g = g, .decays = 1, .g_dtype = AX_F64};
}

/* AdamW as in Loshchilov & Hutter, algorithm 2, with bias-corrected moments. */
static void adamw_by_formula(void **state)
{
    (void)state;
    enum { N = 301, STEPS = 4 };
    static double w[N], m[N], v[N], g[N], expected[N], em[N], ev[N];
    static uint16_t copy[N];
    const double lr = 0.01, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, scale = 0.5;
    const ax_update_array all = whole(N, w, m, v, copy, g);
    for (int i = 0; i < N; i++)
        w[i] = expected[i] = draw((uint64_t)i);
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < N; i++)
            g[i] = draw((uint64_t)(step * N + i));
        const ax_update_numbers now = {.lr = lr,
                                       .correction1 = 1 - pow(beta1, step),
                                       .correction2 = 1 - pow(beta2, step),
                                       .grad_scale = scale};
        RUN(adamw, .n = N, .copied = N, .arrays = 1, .beta1 = beta1, .beta2 = beta2, .eps = eps,
            .decay = decay, .array = &all, .table = &all, .numbers = &now, .dtype = AX_F64,
            .copy_dtype = AX_BF16);
        for (int i = 0; i < N; i++) {
            double grad = scale * g[i];
            em[i] = beta1 * em[i] + (1 - beta1) * grad;
            ev[i] = beta2 * ev[i] + (1 - beta2) * grad * grad;
            double mhat = em[i] / (1 - pow(beta1, step)), vhat = ev[i] / (1 - pow(beta2, step));
            expected[i] = expected[i] * (1 - lr * decay) - lr * mhat / (sqrt(vhat) + eps);
            assert_true(fabs(w[i] - expected[i]) < 1e-14 * (1 + fabs(w[i])));
            assert_true(fabs(m[i] - em[i]) < 1e-15 && fabs(v[i] - ev[i]) < 1e-14);
            assert_true(fabs((double)ax_bf16_to_float(copy[i]) - w[i]) <= 0x1p-8 * fabs(w[i]));
        }
    }
    /* The first step without decay moves each weight by lr against the gradient's sign. */
    double one[] = {1, 1}, zero_m[2] = {0}, zero_v[2] = {0}, gradient[] = {3, -1e-3};
    const ax_update_array two = whole(2, one, zero_m, zero_v, NULL, gradient);
    const ax_update_numbers first = {
        .lr = lr, .correction1 = 1 - beta1, .correction2 = 1 - beta2, .grad_scale = 1};
    RUN(adamw, .n = 2, .copied = 0, .arrays = 1, .beta1 = beta1, .beta2 = beta2, .array = &two, .table = &two,
        .numbers = &first, .dtype = AX_F64, .copy_dtype = AX_F64);
    assert_true(fabs(one[0] - (1 - lr)) < 1e-15 && fabs(one[1] - (1 + lr)) < 1e-15);
}

static void copies_come_from_the_stored_weight(void **state)
{
    (void)state;
    /* 1 + 2^-8 + 2^-30 rounds up to the next bf16; stored as F32 it is the tie 1 + 2^-8, which rounds down.
     */
    float w = 1, g = -(float)(0x1p-8);
    uint16_t copy;
    ax_update_array one = whole(1, &w, NULL, NULL, &copy, &g);
    const ax_update_numbers now = {.lr = 1 + 0x1p-22, .grad_scale = 1};
    one.g_dtype = AX_F32;
    RUN(sgd, .n = 1, .copied = 1, .arrays = 1, .array = &one, .table = &one, .numbers = &now, .dtype = AX_F32,
        .copy_dtype = AX_BF16);
    assert_true((double)w == 1 + 0x1p-8);
    assert_int_equal(copy, ax_bf16_from_float(1));
}

/* Four steps of torch.optim.SGD(lr=0.1, momentum=0.5, weight_decay=0.25) on one weight, by hand, and on
 * another weight without decay. */
static void sgd_by_hand(void **state)
{
    (void)state;
    double w = 1, m = 0, free_w = 1, free_m = 0;
    const double g[] = {0.75, -0.5, 0.25, 1};
    double momentum = 0, expected = 1, free_momentum = 0, free_expected = 1;
    ax_update_numbers now = {.lr = 0.1, .grad_scale = 1};
    for (int step = 0; step < 4; step++) {
        ax_update_array two[] = {whole(1, &w, &m, NULL, NULL, &g[step]),
                                 whole(1, &free_w, &free_m, NULL, NULL, &g[step])};
        two[1].first = AX_UPDATE_UNIT;
        two[1].decays = 0;
        RUN(sgd, .n = 2, .copied = 0, .arrays = 2, .momentum = 0.5, .decay = 0.25, .array = two, .table = two,
            .numbers = &now, .dtype = AX_F64, .copy_dtype = AX_F64);
        momentum = 0.5 * momentum + g[step] + 0.25 * expected;
        expected -= 0.1 * momentum;
        free_momentum = 0.5 * free_momentum + g[step];
        free_expected -= 0.1 * free_momentum;
        assert_true(fabs(w - expected) < 1e-15 && fabs(free_w - free_expected) < 1e-15);
    }
    double plain = 1; /* the first step: 1 - 0.1 (2·0.75 + 0.25) */
    const ax_update_array one = whole(1, &plain, NULL, NULL, NULL, g);
    now.grad_scale = 2;
    RUN(sgd, .n = 1, .copied = 0, .arrays = 1, .momentum = 0.5, .decay = 0.25, .array = &one, .table = &one,
        .numbers = &now, .dtype = AX_F64, .copy_dtype = AX_F64);
    assert_true(fabs(plain - 0.825) < 1e-15);
}

/* The clip factor; and a sum that is not finite stops updates until the host clears `skip`. */
static void clipping_by_hand(void **state)
{
    (void)state;
    double sumsq[] = {7, 4, 5}, loss = 6, w = 1; /* a norm of 4, a loss of 2 */
    const double g = 1;
    ax_update_numbers now = {.lr = 1};
    const ax_update_array one = whole(1, &w, NULL, NULL, NULL, &g);
    const struct {
        double clip, factor;
    } cases[] = {{5, 1}, {0, 1}, {1, 1 / (4 + 1e-6)}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        RUN(clip, 3, cases[i].clip, 3, 1, sumsq, &loss, &now);
        assert_true(now.norm == 4 && now.loss == 2 && now.grad_scale == cases[i].factor);
        assert_true(now.skip == 0 && now.culprit == -1);
    }
    RUN(sgd, .n = 1, .copied = 0, .arrays = 1, .array = &one, .table = &one, .numbers = &now, .dtype = AX_F64,
        .copy_dtype = AX_F64);
    assert_true(w == 1 - 1 / (4 + 1e-6));
    RUN(clip, 3, 1, 3, 8, sumsq, &loss, &now); /* gradients scaled by 8 */
    assert_true(now.norm == 0.5 && now.loss == 2 && now.grad_scale == 1.0 / 8);
    RUN(clip, 3, 0.25, 3, 8, sumsq, &loss, &now);
    assert_true(now.grad_scale == 0.25 / (0.5 + 1e-6) / 8);
    const double before = w;
    sumsq[1] = NAN;
    RUN(clip, 3, 1, 3, 1, sumsq, &loss, &now);
    assert_true(now.skip != 0 && now.culprit == 1 && isnan(now.norm) && !signbit(now.norm) && now.loss == 2);
    RUN(sgd, .n = 1, .copied = 0, .arrays = 1, .array = &one, .table = &one, .numbers = &now, .dtype = AX_F64,
        .copy_dtype = AX_F64);
    sumsq[1] = 4, loss = 15; /* a later step is fine */
    RUN(clip, 3, 1, 3, 1, sumsq, &loss, &now);
    assert_true(now.skip != 0 && now.culprit == 1 && now.loss == 2);
    RUN(sgd, .n = 1, .copied = 0, .arrays = 1, .array = &one, .table = &one, .numbers = &now, .dtype = AX_F64,
        .copy_dtype = AX_F64);
    assert_true(w == before);
    now.skip = 0;
    loss = INFINITY;
    RUN(clip, 3, 1, 3, 1, sumsq, &loss, &now);
    assert_true(now.skip != 0 && now.culprit == -1 && now.norm == 4);
}

/* ---- 16-bit floats ------------------------------------------------------------------------------- */

typedef struct half {
    ax_dtype dtype;
    uint16_t infinity;
    float (*to_float)(uint16_t);
    uint16_t (*from_float)(float);
} half;

static const half halves[] = {{AX_BF16, 0x7f80, ax_bf16_to_float, ax_bf16_from_float},
                              {AX_F16, 0x7c00, ax_f16_to_float, ax_f16_from_float}};

static void every_pattern_round_trips(void **state)
{
    (void)state;
    static uint16_t patterns[65536], back[65536];
    static float wide[65536];
    static double wider[65536];
    for (int i = 0; i < 65536; i++)
        patterns[i] = (uint16_t)i;
    for (size_t h = 0; h < AX_COUNT(halves); h++) {
        const half *type = &halves[h];
        RUN(convert, 65536, patterns, wide, type->dtype, AX_F32);
        RUN(convert, 65536, patterns, wider, type->dtype, AX_F64);
        for (int pass = 0; pass < 2; pass++) {
            if (pass)
                RUN(convert, 65536, wider, back, AX_F64, type->dtype);
            else
                RUN(convert, 65536, wide, back, AX_F32, type->dtype);
            for (int i = 0; i < 65536; i++) {
                bool nan = (i & 0x7fff) > type->infinity;
                assert_true(nan ? (back[i] & 0x7fff) > type->infinity : back[i] == i);
                assert_true(nan == (bool)isnan(wide[i]) && nan == (bool)isnan(wider[i]));
                assert_true(nan || (double)wide[i] == wider[i]);
            }
        }
    }
    assert_true(ax_bf16_to_float(0x3f80) == 1 && ax_bf16_to_float(0xc000) == -2);
    assert_true(ax_f16_to_float(0x3c00) == 1 && ax_f16_to_float(0x7bff) == 65504 &&
                ax_f16_to_float(1) == 0x1p-24f);
}

/* For each pair of neighbours: their middle rounds to the even one, values beside the middle to the nearer
 * one. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (size_t h = 0; h < AX_COUNT(halves); h++) {
        const half *type = &halves[h];
        for (uint16_t low = 0; low < type->infinity; low++) {
            uint16_t high = (uint16_t)(low + 1), even = low & 1 ? high : low;
            double below = (double)type->to_float(low), above = (double)type->to_float(high);
            if (high == type->infinity) /* round as if there were a next finite number */
                above = below + (below - (double)type->to_float((uint16_t)(low - 1)));
            double middle = below / 2 + above / 2;
            assert_int_equal(type->from_float((float)middle), even);
            assert_int_equal(type->from_float(-(float)middle), even | 0x8000);
            assert_int_equal(type->from_float(nextafterf((float)middle, 0)), low);
            assert_int_equal(type->from_float(nextafterf((float)middle, INFINITY)), high);
            /* Doubles must be rounded once. Rounded to float first, the two values beside the middle would
             * become the middle itself. */
            const double beside[] = {nextafter(middle, 0), nextafter(middle, INFINITY), middle};
            uint16_t rounded[3];
            RUN(convert, 3, beside, rounded, AX_F64, type->dtype);
            assert_int_equal(rounded[0], low);
            assert_int_equal(rounded[1], high);
            assert_int_equal(rounded[2], even);
        }
        assert_int_equal(type->from_float(INFINITY), type->infinity);
        assert_int_equal(type->from_float(-INFINITY), type->infinity | 0x8000);
        assert_int_equal(type->from_float(-0.0f), 0x8000);
    }
    uint32_t low_payload = 0x7f800001u; /* a NaN whose payload is lost by truncation */
    float nan;
    memcpy(&nan, &low_payload, sizeof nan);
    assert_true(isnan(ax_bf16_to_float(ax_bf16_from_float(nan))));
    assert_true(isnan(ax_f16_to_float(ax_f16_from_float(nan))));
}

static void elements_of_every_type(void **state)
{
    (void)state;
    for (int t = 0; t < AX_DTYPE_COUNT; t++) {
        ax_dtype dtype = (ax_dtype)t;
        uint64_t memory[4] = {0};
        size_t size = ax_dtype_size(dtype);
        for (int i = 0; i < 3; i++)
            ax_store(dtype, memory, i, 100 + i);
        for (int i = 0; i < 3; i++)
            assert_true(ax_load(dtype, memory, i) == 100 + i);
        for (size_t byte = 3 * size; byte < sizeof memory; byte++)
            assert_int_equal(((char *)memory)[byte], 0);
        RUN(fill, 2, 7, memory, dtype);
        assert_true(ax_load(dtype, memory, 1) == 7 && ax_load(dtype, memory, 2) == 102);
        assert_int_equal(ax_dtype_accum(dtype), dtype == AX_F64 ? AX_F64 : AX_F32);
    }
    assert_string_equal(ax_dtype_name(AX_BF16), "bf16");
    assert_non_null(ax_dtype_name(AX_DTYPE_COUNT));
}

/* ---- boxes --------------------------------------------------------------------------------------- */

/* x [2,3,4,5] dense to y [5,3,2,4] with rows 6 apart. */
static void copy_box_by_index(void **state)
{
    (void)state;
    enum { X = 2 * 3 * 4 * 5, Y = 5 * 3 * 2 * 6 };
    static double x[X], y[Y];
    for (int i = 0; i < X; i++)
        x[i] = i + 1;
    ax_copy_box_args args = {.n = {2, 3, 4, 5},
                             .x_stride = {60, 20, 5, 1},
                             .y_stride = {6, 12, 1, 36},
                             .x = x,
                             .y = y,
                             .dtype = AX_F64};
    assert_int_equal(ax_run_copy_box(&stream, &args), AX_OK);
    for (int pass = 1; pass <= 2; pass++) {
        double sum = 0;
        for (int a = 0; a < 2; a++)
            for (int b = 0; b < 3; b++)
                for (int c = 0; c < 4; c++)
                    for (int d = 0; d < 5; d++)
                        assert_true(y[((d * 3 + b) * 2 + a) * 6 + c] ==
                                    pass * x[((a * 3 + b) * 4 + c) * 5 + d]);
        for (int i = 0; i < Y; i++)
            sum += y[i];
        assert_true(sum == pass * X * (X + 1) / 2); /* nothing was written between the rows */
        args.accumulate = true;
        assert_int_equal(ax_run_copy_box(&stream, &args), AX_OK);
    }
}

/* A rank's box has the same numbers as that part of the whole array, in either precision. */
static void init_normal_does_not_depend_on_boxes(void **state)
{
    (void)state;
    enum { A = 3, B = 4, C = 5, D = 7 };
    static double whole[A * B * C * D], box[A * B * C * D];
    static float narrow[A * B * C * D];
    ax_init_normal_args args = {.extent = {A, B, C, D},
                                .n = {A, B, C, D},
                                .key = 9,
                                .mean = 0.5,
                                .std = 2,
                                .y = whole,
                                .dtype = AX_F64};
    assert_int_equal(ax_run_init_normal(&stream, &args), AX_OK);
    for (int64_t i = 0; i < A * B * C * D; i++)
        assert_true(whole[i] == 0.5 + 2 * (double)ax_rng_normal(9, (uint64_t)i));
    args.y = narrow;
    args.dtype = AX_F32;
    assert_int_equal(ax_run_init_normal(&stream, &args), AX_OK);
    for (int64_t i = 0; i < A * B * C * D; i++)
        assert_true(narrow[i] == (float)whole[i]);
    const int64_t lo[4] = {1, 0, 2, 3}, n[4] = {2, 3, 1, 4};
    memcpy(args.lo, lo, sizeof lo);
    memcpy(args.n, n, sizeof n);
    args.y = box;
    args.dtype = AX_F64;
    assert_int_equal(ax_run_init_normal(&stream, &args), AX_OK);
    int64_t at = 0;
    for (int64_t a = 1; a < 3; a++)
        for (int64_t b = 0; b < 3; b++)
            for (int64_t d = 3; d < 7; d++)
                assert_true(box[at++] == whole[((a * B + b) * C + 2) * D + d]);
}

static void sums_of_squares(void **state)
{
    (void)state;
    enum { N = 1000 };
    static float x[N];
    double out[] = {NAN, NAN}, expected = 0;
    for (int i = 0; i < N; i++) {
        x[i] = i % 2 ? 1e-2f : 1e3f; /* in single precision the small ones would vanish */
        expected += (double)x[i] * (double)x[i];
    }
    const ax_sumsq_array array[] = {{.x = x, .n = N, .to = 1}, {.first = 1, .to = 0}};
    RUN(sumsq, 2, array, array, out, AX_F32);
    assert_true(fabs(out[1] - expected) < 1e-14 * expected);
    assert_true(out[1] - N / 2 * 1e6 > 0.049);
    assert_true(out[0] == 0);
    RUN(scale, 2, 0.5, x, AX_F32);
    assert_true(x[0] == 500 && x[1] == 0.5e-2f && x[2] == 1e3f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_by_formula),
        cmocka_unit_test(copies_come_from_the_stored_weight),
        cmocka_unit_test(sgd_by_hand),
        cmocka_unit_test(clipping_by_hand),
        cmocka_unit_test(every_pattern_round_trips),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(elements_of_every_type),
        cmocka_unit_test(copy_box_by_index),
        cmocka_unit_test(init_normal_does_not_depend_on_boxes),
        cmocka_unit_test(sums_of_squares),
    };
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
