/* Drawing tokens: greedy, top-k, top-p, and the distribution. */
#include "axonn/op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const float logits[] = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f};
enum { N = 5 };

static int32_t draw(ax_sampling how, double u)
{
    ax_sample_item work[N];
    int32_t id;
    assert_int_equal(ax_sample(logits, N, &how, u, work, &id), AX_OK);
    return id;
}

static void greedy_takes_the_first_of_equals(void **state)
{
    (void)state;
    assert_int_equal(draw((ax_sampling){0, 0, 1}, 0.99), 1);
    assert_int_equal(draw((ax_sampling){1, 1, 1}, 0.99), 1);
}

/* Shares of many draws against softmax: five standard errors. */
static void draws_follow_the_softmax(void **state)
{
    (void)state;
    enum { DRAWS = 20000 };
    const double temperature = 0.7;
    double p[N], sum = 0, counts[N] = {0};
    for (int i = 0; i < N; i++)
        sum += p[i] = exp(logits[i] / temperature);
    for (int i = 0; i < DRAWS; i++)
        counts[draw((ax_sampling){temperature, 0, 1}, ax_rng_uniform(9, (uint64_t)i))]++;
    for (int i = 0; i < N; i++) {
        double share = p[i] / sum;
        assert_true(fabs(counts[i] / DRAWS - share) < 5 * sqrt(share * (1 - share) / DRAWS));
    }
}

static void cuts_keep_the_likeliest(void **state)
{
    (void)state;
    bool seen[N] = {false}, nucleus[N] = {false};
    for (int i = 0; i < 2000; i++) {
        double u = ax_rng_uniform(3, (uint64_t)i);
        seen[draw((ax_sampling){1, 3, 1}, u)] = true;
        nucleus[draw((ax_sampling){1, 0, 0.5}, u)] = true;
    }
    assert_true(!seen[0] && seen[1] && seen[2] && seen[3] && !seen[4]);
    /* Tokens 1 and 3 have 0.38 each: the first alone falls short of one half, both reach it. */
    assert_true(!nucleus[0] && nucleus[1] && !nucleus[2] && nucleus[3] && !nucleus[4]);
    /* A nucleus never is empty. */
    assert_int_equal(draw((ax_sampling){1, 0, 1e-9}, 0.999), 1);
}

static void bad_logits_are_an_error(void **state)
{
    (void)state;
    float bad[] = {0, NAN}, none[] = {-INFINITY, -INFINITY};
    int32_t id;
    assert_int_equal(ax_sample(bad, 2, &(ax_sampling){0, 0, 1}, 0, NULL, &id), AX_ERR_NUMERIC);
    assert_int_equal(ax_sample(none, 2, &(ax_sampling){0, 0, 1}, 0, NULL, &id), AX_ERR_NUMERIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_equals), cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(cuts_keep_the_likeliest), cmocka_unit_test(bad_logits_are_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
