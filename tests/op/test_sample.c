/* Sampling of tokens: greedy, top-k, top-p, and the distribution. */
#include "axonn/op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static const float logits[] = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f};
enum { N = 5 };

static int32_t draw(ax_sampling how, double u)
{
    float work[2 * N];
    int32_t id;
    assert_int_equal(ax_sample(logits, N, &how, u, work, &id), AX_OK);
    return id;
}

static void greedy_takes_the_first_of_equal_logits(void **state)
{
    (void)state;
    assert_int_equal(draw((ax_sampling){0, 0, 1, 0}, 0.99), 1);
    assert_int_equal(draw((ax_sampling){1, 1, 1, 0}, 0.99), 1);
}

/* The frequencies of many samples equal the softmax within five standard errors. */
static void samples_follow_the_softmax(void **state)
{
    (void)state;
    enum { DRAWS = 20000 };
    const double temperature = 0.7;
    double p[N], sum = 0, counts[N] = {0};
    for (int i = 0; i < N; i++)
        sum += p[i] = exp(logits[i] / temperature);
    for (int i = 0; i < DRAWS; i++)
        counts[draw((ax_sampling){temperature, 0, 1, 0}, ax_rng_uniform(9, (uint64_t)i))]++;
    for (int i = 0; i < N; i++) {
        double share = p[i] / sum;
        assert_true(fabs(counts[i] / DRAWS - share) < 5 * sqrt(share * (1 - share) / DRAWS));
    }
}

static void top_k_and_top_p_keep_the_likeliest_tokens(void **state)
{
    (void)state;
    bool seen[N] = {false}, nucleus[N] = {false};
    for (int i = 0; i < 2000; i++) {
        double u = ax_rng_uniform(3, (uint64_t)i);
        seen[draw((ax_sampling){1, 3, 1, 0}, u)] = true;
        nucleus[draw((ax_sampling){1, 0, 0.5, 0}, u)] = true;
    }
    assert_true(!seen[0] && seen[1] && seen[2] && seen[3] && !seen[4]);
    /* Tokens 1 and 3 have probability 0.38 each: one alone is below top_p = 0.5, both together reach it. */
    assert_true(!nucleus[0] && nucleus[1] && !nucleus[2] && nucleus[3] && !nucleus[4]);
    /* top-p keeps at least one token. */
    assert_int_equal(draw((ax_sampling){1, 0, 1e-9, 0}, 0.999), 1);
    assert_int_equal(draw((ax_sampling){1, 0, 0, 0}, 0.999), 1);
}

/* The oracle sorts tokens: likeliest first, equal ones by id. */
enum { MANY = 301 };
static float many[MANY];

static int likelier(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return many[x] != many[y] ? (many[x] < many[y] ? 1 : -1) : x - y;
}

/* Marks the tokens that top-k, top-p and min-p keep; returns the sum of their weights. */
static double keep(ax_sampling how, bool kept[MANY])
{
    int order[MANY], most = how.top_k > 0 ? (int)fmin(how.top_k, MANY) : MANY;
    double weight[MANY], mass = 0, reached = 0;
    for (int i = 0; i < MANY; i++)
        order[i] = i;
    qsort(order, MANY, sizeof *order, likelier);
    for (int i = 0; i < MANY; i++) {
        weight[i] = expf((many[order[i]] - many[order[0]]) / (float)how.temperature);
        mass += i < most ? weight[i] : 0;
        kept[i] = false;
    }
    for (int i = 0; i < most && (how.top_p >= 1 || i == 0 || reached < how.top_p * mass); i++) {
        if (weight[i] < (float)how.min_p)
            break;
        kept[order[i]] = true;
        reached += weight[i];
    }
    return reached;
}

/* Compares with the oracle for many weights, several of them equal. No sum is so close to top_p that rounding
 * could change the result. */
static void top_k_and_top_p_equal_those_of_sorted_tokens(void **state)
{
    (void)state;
    const int ks[] = {0, 1, 2, 7, 150, MANY - 1, MANY, 2 * MANY};
    const double ps[] = {1, 0.999, 0.5, 0.1, 1e-6}, least[] = {0, 0.3};
    float work[2 * MANY];
    for (int seed = 0; seed < 20; seed++) {
        for (int i = 0; i < MANY; i++)
            many[i] = seed ? -(float)floor(20 * ax_rng_uniform((uint64_t)seed, (uint64_t)i)) : 1;
        for (size_t v = 0; v < 2 * AX_COUNT(ks) * AX_COUNT(ps); v++) {
            ax_sampling how = {1.5, ks[v / 2 / AX_COUNT(ps)], ps[v / 2 % AX_COUNT(ps)], least[v % 2]};
            bool kept[MANY];
            double left, mass = keep(how, kept);
            for (int d = 0; d < 40; d++) {
                double u = (d + 0.3) / 40;
                int32_t id, want = -1;
                left = u * mass;
                for (int i = 0; i < MANY && left >= 0; i++)
                    if (kept[i]) {
                        want = i;
                        left -= expf((many[i] - (seed ? 0 : 1)) / (float)how.temperature);
                    }
                assert_int_equal(ax_sample(many, MANY, &how, u, work, &id), AX_OK);
                assert_int_equal(id, want);
            }
        }
    }
}

/* A repeated token is penalized once; ids beyond the logits, and the logits themselves, are left alone. */
static void repetition_is_penalized(void **state)
{
    (void)state;
    const float given[] = {2, -2, 0, 3};
    const int32_t ids[] = {0, 1, 0, 2, 1, 4, -1};
    float out[4];
    ax_sample_penalize(given, 4, 2, ids, AX_COUNT(ids), out);
    assert_true(out[0] == 1 && out[1] == -4 && out[2] == 0 && out[3] == 3 && given[0] == 2);
}

static void bad_logits_are_an_error(void **state)
{
    (void)state;
    float bad[] = {0, NAN}, none[] = {-INFINITY, -INFINITY}, infinite[] = {0, INFINITY}, late[40] = {0};
    int32_t id;
    assert_int_equal(ax_sample(bad, 2, &(ax_sampling){0, 0, 1, 0}, 0, NULL, &id), AX_ERR_NUMERIC);
    assert_int_equal(ax_sample(none, 2, &(ax_sampling){0, 0, 1, 0}, 0, NULL, &id), AX_ERR_NUMERIC);
    assert_int_equal(ax_sample(infinite, 2, &(ax_sampling){0, 0, 1, 0}, 0, NULL, &id), AX_ERR_NUMERIC);
    for (int i = 0; i < 40; i++) {
        late[i] = NAN;
        assert_int_equal(ax_sample(late, 40, &(ax_sampling){0, 0, 1, 0}, 0, NULL, &id), AX_ERR_NUMERIC);
        late[i] = (float)i;
        assert_int_equal(ax_sample(late, i + 1, &(ax_sampling){0, 0, 1, 0}, 0, NULL, &id), AX_OK);
        assert_int_equal(id, i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_takes_the_first_of_equal_logits),
                                       cmocka_unit_test(samples_follow_the_softmax),
                                       cmocka_unit_test(top_k_and_top_p_keep_the_likeliest_tokens),
                                       cmocka_unit_test(top_k_and_top_p_equal_those_of_sorted_tokens),
                                       cmocka_unit_test(repetition_is_penalized),
                                       cmocka_unit_test(bad_logits_are_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
