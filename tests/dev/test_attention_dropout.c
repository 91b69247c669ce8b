/* Dropout of attention probabilities on the reference device, by its definition: the share that is kept, the
 * factor of what is kept, and that the mask depends on global indices only. test_backend.c compares the other
 * backends with the reference, test_gradient.c compares gradients with finite differences. */
#include "axonn/dev.h"

#include <math.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

/* Heads are as wide as there are keys: with the j-th unit vector as row j of v, o is the matrix of
 * probabilities. */
enum { B = 3, T = 50, H = 4, D = T, ROW = H * D, ALL = B * T * ROW };

static ax_stream stream;
static double q[ALL], k[ALL], v[ALL];

static const ax_batch_numbers second_half = {.step = 9, .first_row = 2 * T, .loss_scale = 1};
static const ax_attention_dropout whole = {.p = 0.3, .key = 77, .row0 = 0, .head0 = 0, .heads = H};

static void attend(int64_t batch, int64_t heads, const double *of_q, ax_attention_dropout drop, double *o)
{
    ax_attention_args args = {.batch = batch,
                              .q_len = T,
                              .kv_len = T,
                              .heads = heads,
                              .kv_heads = heads,
                              .head_dim = D,
                              .q_ld = heads * D,
                              .kv_ld = heads * D,
                              .scale = 0.1,
                              .q = of_q,
                              .k = k,
                              .v = v,
                              .o = o,
                              .drop = drop,
                              .dtype = AX_F64};
    assert_int_equal(ax_run_attention(&stream, &args), AX_OK);
}

/* All sequences and heads have the same keys and queries, so that only their masks differ. */
static int setup(void **state)
{
    (void)state;
    static ax_device *dev;
    if (ax_device_open("ref", 1, &dev) != AX_OK)
        return -1;
    stream = (ax_stream){dev, NULL};
    for (int64_t i = 0; i < ALL; i++) {
        int64_t t = i / ROW % T, d = i % D;
        q[i] = (double)ax_rng_normal(1, (uint64_t)(t * D + d));
        k[i] = (double)ax_rng_normal(2, (uint64_t)(t * D + d));
        v[i] = t == d;
    }
    *state = dev;
    return 0;
}

static int teardown(void **state)
{
    ax_device *dev = *state;
    ax_device_close(&dev);
    return 0;
}

static void share_and_scale(void **state)
{
    (void)state;
    static double plain[ALL], dropped[ALL];
    const double rates[] = {0.1, 0.3, 0.9};
    attend(B, H, q, (ax_attention_dropout){0}, plain);
    for (size_t r = 0; r < AX_COUNT(rates); r++) {
        ax_attention_dropout drop = whole;
        int64_t zeros = 0, n = 0;
        drop.p = rates[r];
        attend(B, H, q, drop, dropped);
        for (int64_t i = 0; i < ALL; i++) {
            int64_t t = i / ROW % T, key = i % D;
            if (key > t) {
                assert_true(plain[i] == 0 && dropped[i] == 0);
                continue;
            }
            double kept = plain[i] / (1 - drop.p);
            assert_true(plain[i] > 0);
            assert_true(dropped[i] == 0 || fabs(dropped[i] - kept) <= 1e-14 * kept);
            zeros += dropped[i] == 0;
            n++;
        }
        double share = (double)zeros / (double)n, deviation = sqrt(drop.p * (1 - drop.p) / (double)n);
        if (!(fabs(share - drop.p) < 5 * deviation))
            fail_msg("a share of %.4f is dropped at p = %g", share, drop.p);
    }
}

/* Returns the share of elements in which two masks agree. For independent masks it is near p² + (1-p)². */
static double agreement(const double *a, const double *b, int64_t n)
{
    int64_t same = 0, seen = 0;
    for (int64_t i = 0; i < n; i++)
        if (i % D <= i / ROW % T) {
            same += (a[i] == 0) == (b[i] == 0);
            seen++;
        }
    return (double)same / (double)seen;
}

static void masks_differ(void **state)
{
    (void)state;
    static double o[ALL], other[ALL];
    const double p = whole.p, chance = p * p + (1 - p) * (1 - p);
    attend(B, H, q, whole, o);
    ax_attention_dropout key = whole, step = whole;
    key.key++;
    step.now = &second_half;
    attend(B, H, q, key, other);
    assert_true(fabs(agreement(o, other, ALL) - chance) < 0.03);
    attend(B, H, q, step, other);
    assert_true(fabs(agreement(o, other, ALL) - chance) < 0.03);
    assert_true(fabs(agreement(o, o + (ptrdiff_t)T * ROW, (int64_t)T * ROW) - chance) < 0.05); /* sequences */
    memcpy(other, o + D, (ALL - D) * sizeof *o);                                               /* heads */
    assert_true(fabs(agreement(o, other, ALL - D) - chance) < 0.05);
}

/* Computes sequence 2 alone, as a later micro-batch and as another rank's part, and heads 1 and 2 alone. */
static void parts_have_the_mask_of_the_whole(void **state)
{
    (void)state;
    static double o[ALL], part[ALL];
    attend(B, H, q, whole, o);
    ax_attention_dropout drop = whole;
    const ax_batch_numbers later = {.step = 0, .first_row = 2 * T, .loss_scale = 1};
    drop.now = &later;
    attend(1, H, q, drop, part);
    assert_memory_equal(part, o + (ptrdiff_t)2 * T * ROW, (size_t)T * ROW * sizeof *o);
    drop = whole;
    drop.row0 = 2 * T;
    attend(1, H, q, drop, part);
    assert_memory_equal(part, o + (ptrdiff_t)2 * T * ROW, (size_t)T * ROW * sizeof *o);

    static double few_q[ALL], all_k[ALL], all_v[ALL];
    memcpy(all_k, k, sizeof k);
    memcpy(all_v, v, sizeof v);
    for (int64_t t = 0; t < T; t++) /* rows of two heads */
        for (int64_t i = 0; i < 2 * D; i++) {
            few_q[t * 2 * D + i] = q[t * ROW + D + i];
            k[t * 2 * D + i] = all_k[t * ROW + D + i];
            v[t * 2 * D + i] = all_v[t * ROW + D + i];
        }
    drop = whole;
    drop.head0 = 1;
    attend(1, 2, few_q, drop, part);
    for (int64_t t = 0; t < T; t++)
        assert_memory_equal(part + t * 2 * D, o + t * ROW + D, 2 * D * sizeof *o);
    memcpy(k, all_k, sizeof k);
    memcpy(v, all_v, sizeof v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(share_and_scale),
        cmocka_unit_test(masks_differ),
        cmocka_unit_test(parts_have_the_mask_of_the_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
