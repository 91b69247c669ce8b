/* Mixtures of experts on ref: the gradient of the router's logits against central differences, with the
 * losses of route_stats; dispatch and combine as each other's gradients; both forms of the grouped GEMM by
 * their definition; the order of choices. */
#include "axonn/dev.h"

#include "support/gradient.h"
#include "support/ref_stream.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 3, TOKENS = 4, N = SAMPLES * TOKENS, EXPERTS = 5, TOP_K = 2 };

/* ---- the router ---------------------------------------------------------------------------------- */

/* L = Σ dweight·weight + balance·total[0] + z·total[1]. Choices, and the shares of experts in them, are
 * constants: those of `first`, the logits of the beginning. */
typedef struct router_test {
    double logits[N * EXPERTS], dweight[N * TOP_K], share[SAMPLES * (EXPERTS + 1)];
    int32_t choice[N * TOP_K], ids[N];
    double balance, z;
    bool renormalize;
} router_test;

typedef struct routed {
    double probs[N * EXPERTS], lse[N], weight[N * TOP_K];
    int32_t choice[N * TOP_K];
} routed;

static void route(const router_test *t, routed *r)
{
    RUN(route, N, EXPERTS, TOP_K, t->logits, r->probs, r->lse, r->weight, r->choice, AX_F64, t->renormalize);
}

static double router_objective(const void *test)
{
    const router_test *t = test;
    routed r;
    double loss = 0;
    route(t, &r);
    assert_memory_equal(r.choice, t->choice, sizeof r.choice);
    for (int i = 0; i < N; i++) {
        const double *share = t->share + i / TOKENS * (EXPERTS + 1), each = share[EXPERTS];
        if (t->ids[i] < 0)
            continue;
        for (int e = 0; e < EXPERTS; e++)
            loss += t->balance * share[e] * r.probs[i * EXPERTS + e] * each;
        loss += t->z * r.lse[i] * r.lse[i] * each;
    }
    return loss + dot(t->dweight, r.weight, N * TOP_K);
}

/* All of the second sample is padding, and a part of the third. */
static void router_setup(router_test *t, routed *r)
{
    double total[3 + EXPERTS] = {0};
    fill(t->logits, N * EXPERTS);
    fill(t->dweight, N * TOP_K);
    for (int i = 0; i < N; i++)
        t->ids[i] = i / TOKENS == 1 || i == N - 1 ? -1 : i;
    route(t, r);
    memcpy(t->choice, r->choice, sizeof t->choice);
    RUN(route_stats, SAMPLES, TOKENS, EXPERTS, TOP_K, r->probs, r->lse, r->choice, t->ids, t->share, total,
        AX_F64);
    double choices = 0;
    for (int e = 0; e < EXPERTS; e++)
        choices += total[2 + e];
    assert_true(choices == (double)((2 * TOKENS - 1) * TOP_K));
}

static void router_gradient(void **state)
{
    (void)state;
    static router_test t;
    static const ax_batch_numbers now = {.sample_scale = 1};
    routed r;
    double dlogits[N * EXPERTS];
    for (int way = 0; way < 4; way++) {
        t.renormalize = way & 1;
        t.balance = way & 2 ? 0.7 : 0;
        t.z = way & 2 ? 0.3 : 0;
        router_setup(&t, &r);
        RUN(route_grad, SAMPLES, TOKENS, EXPERTS, TOP_K, t.balance, t.z, r.probs, r.lse, r.weight, t.dweight,
            t.share, t.choice, t.ids, &now, dlogits, AX_F64, t.renormalize);
        check_gradient("logits", router_objective, &t, t.logits, dlogits, N * EXPERTS);
    }
}

/* The totals are the losses that the shares define. */
static void losses_by_definition(void **state)
{
    (void)state;
    static router_test t = {.balance = 1};
    routed r;
    double total[3 + EXPERTS] = {0}, none[N * TOP_K] = {0};
    router_setup(&t, &r);
    RUN(route_stats, SAMPLES, TOKENS, EXPERTS, TOP_K, r.probs, r.lse, r.choice, t.ids, t.share, total,
        AX_F64);
    memcpy(t.dweight, none, sizeof none);
    const double balance = router_objective(&t);
    t.balance = 0;
    t.z = 1;
    const double z = router_objective(&t);
    check_equal("balance and z", total, (double[]){balance, z}, 2);
    assert_true(total[2 + EXPERTS] == 0); /* every choice has a place */
    /* if all experts have the same probability and number of choices, the balance loss of a sample is top_k
     */
    double even[TOKENS * EXPERTS], share[EXPERTS + 1], sums[3 + EXPERTS] = {0}, lse[TOKENS] = {0};
    int32_t turn[TOKENS * TOP_K];
    for (int i = 0; i < TOKENS * EXPERTS; i++)
        even[i] = 0.25;
    for (int i = 0; i < TOKENS * TOP_K; i++)
        turn[i] = i % 4;
    RUN(route_stats, 1, TOKENS, 4, TOP_K, even, lse, turn, NULL, share, sums, AX_F64);
    assert_true(fabs(sums[0] - TOP_K) < 1e-15);
}

static void choices_have_an_order(void **state)
{
    (void)state;
    const double logits[] = {0, 2, 2, 1, /**/ 1, 1, 1, 1, /**/ NAN, 5, 1, 2, /**/ -1, -INFINITY, 3, 3};
    const int32_t expected[] = {1, 2, 3, /**/ 0, 1, 2, /**/ 0, 1, 2, /**/ 2, 3, 0};
    double probs[16], lse[4], weight[12];
    int32_t choice[12];
    RUN(route, 4, 4, 3, logits, probs, lse, weight, choice, AX_F64, true);
    assert_memory_equal(choice, expected, sizeof expected);
    ax_route_args many = {.rows = 1, .experts = 2, .top_k = 3, .dtype = AX_F64};
    assert_int_equal(ax_run_route(&stream, &many), AX_ERR_USAGE);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

/* Σ dispatch(x)·y = Σ x·combine(y), and rows are where `group` says. */
static void rows_move_both_ways(void **state)
{
    (void)state;
    enum { COLS = 7 };
    double x[N * COLS], y[N * TOP_K * COLS], rows[N * TOP_K * COLS], sums[N * COLS];
    int32_t choice[N * TOP_K], source[N * TOP_K], place[N * TOP_K], bounds[EXPERTS + 1];
    fill(x, N * COLS);
    fill(y, N * TOP_K * COLS);
    for (int c = 0; c < N * TOP_K; c++)
        choice[c] = c * 7 % 4; /* nobody chooses the last expert */
    RUN(group, N * TOP_K, 0, EXPERTS, N * TOP_K, 1, choice, source, place, bounds);
    assert_int_equal(bounds[0], 0);
    assert_int_equal(bounds[EXPERTS - 1], N * TOP_K);
    assert_int_equal(bounds[EXPERTS], N * TOP_K);
    for (int e = 0; e < EXPERTS; e++)
        for (int r = bounds[e]; r < bounds[e + 1]; r++) {
            assert_int_equal(choice[source[r]], e);
            assert_int_equal(place[source[r]], r);
            assert_true(r == bounds[e] || source[r - 1] < source[r]);
        }
    RUN(dispatch, N, N * TOP_K, COLS, TOP_K, x, NULL, source, rows, AX_F64, false);
    RUN(combine, N, N * TOP_K, 0, COLS, TOP_K, y, NULL, place, sums, AX_F64, false);
    const double one = dot(rows, y, N * TOP_K * COLS), other = dot(x, sums, N * COLS);
    check_equal("products", &one, &other, 1);
    assert_true(fabs(one) > 0.1);
    double w[N * TOP_K], dw[N * TOP_K];
    fill(w, N * TOP_K);
    RUN(dispatch, N, N * TOP_K, COLS, TOP_K, x, w, source, rows, AX_F64, false);
    RUN(combine, N, N * TOP_K, 0, COLS, TOP_K, y, w, place, sums, AX_F64, false);
    RUN(combine_grad, N, N * TOP_K, COLS, TOP_K, y, x, place, dw, AX_F64);
    const double scaled[] = {dot(rows, y, N * TOP_K * COLS), dot(x, sums, N * COLS)};
    const double same[] = {dot(w, dw, N * TOP_K), scaled[0]};
    check_equal("scaled products", scaled, same, 2);
    assert_true(fabs(scaled[0]) > 0.1);
}

/* The rows of some groups, in rounds, of which the last has no rows: each choice of these groups is in one
 * round, within its bounds, and the sums over rounds are those of all rows of these groups. */
static void rows_of_some_groups_come_in_rounds(void **state)
{
    (void)state;
    enum { FIRST = 1, SOME = 2, EACH = N * TOP_K / 4 + 1, ROUNDS = 5, COLS = 3 };
    double x[N * COLS], rows[EACH * COLS], sums[N * COLS] = {0}, expected[N * COLS] = {0};
    int32_t choice[N * TOP_K], source[ROUNDS * EACH], place[N * TOP_K], bounds[ROUNDS * (SOME + 1)];
    int seen = 0;
    fill(x, N * COLS);
    for (int c = 0; c < N * TOP_K; c++) {
        choice[c] = c * 7 % 4;
        for (int i = 0; i < COLS && choice[c] >= FIRST && choice[c] < FIRST + SOME; i++)
            expected[c / TOP_K * COLS + i] += x[c / TOP_K * COLS + i];
    }
    RUN(group, N * TOP_K, FIRST, SOME, EACH, ROUNDS, choice, source, place, bounds);
    for (int round = 0; round < ROUNDS; round++) {
        const int32_t *bound = bounds + round * (SOME + 1), *from = source + round * EACH;
        for (int r = 0; r < EACH; r++) {
            const int group = r < bound[0] ? -1 : r < bound[1] ? 0 : r < bound[2] ? 1 : -1;
            assert_int_equal(from[r] < 0 ? -1 : choice[from[r]] - FIRST, group);
            assert_true(from[r] < 0 || place[from[r]] == round * EACH + r);
            seen += from[r] >= 0;
        }
        RUN(dispatch, N, EACH, COLS, TOP_K, x, NULL, from, rows, AX_F64, false);
        RUN(combine, N, EACH, round * EACH, COLS, TOP_K, rows, NULL, place, sums, AX_F64, round > 0);
    }
    assert_int_equal(bounds[ROUNDS * (SOME + 1) - 1], 0);
    for (int c = 0; c < N * TOP_K; c++)
        seen -= choice[c] >= FIRST && choice[c] < FIRST + SOME;
    assert_int_equal(seen, 0);
    check_equal("sums over rounds", sums, expected, N * COLS);
}

/* ---- grouped GEMMs ------------------------------------------------------------------------------- */

enum { ROWS = 9, GROUPS = 3, IN = 4, OUT = 5 };
static const int32_t bounds_of[GROUPS + 1] = {0, 6, 6, ROWS};

static int group_of(int row) { return row < bounds_of[1] ? 0 : 2; }

/* Matrices [OUT, GROUPS, IN]: the matrix of a group lies in the rows of all. */
static void grouped_gemms(void **state)
{
    (void)state;
    double x[ROWS * IN], w[OUT * GROUPS * IN], y[ROWS * OUT],
        expected[ROWS * OUT] = {0}, dx[ROWS * IN], dx_expected[ROWS * IN] = {0}, dw[OUT * GROUPS * IN],
                        dw_expected[OUT * GROUPS * IN];
    fill(x, ROWS * IN);
    fill(w, OUT * GROUPS * IN);
    fill(dw, OUT * GROUPS * IN);
    memcpy(dw_expected, dw, sizeof dw);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++)
            for (int i = 0; i < IN; i++)
                expected[r * OUT + o] += x[r * IN + i] * w[(o * GROUPS + group_of(r)) * IN + i];
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++)
            for (int i = 0; i < IN; i++) {
                dx_expected[r * IN + i] += expected[r * OUT + o] * w[(o * GROUPS + group_of(r)) * IN + i];
                dw_expected[(o * GROUPS + group_of(r)) * IN + i] += expected[r * OUT + o] * x[r * IN + i];
            }
    RUN(gemm_grouped, ROWS, OUT, IN, GROUPS, 0, x, w, bounds_of, y, IN, GROUPS * IN, OUT, IN, AX_F64, AX_F64,
        false, true, false);
    check_equal("rows", y, expected, ROWS * OUT);
    RUN(gemm_grouped, ROWS, IN, OUT, GROUPS, 0, y, w, bounds_of, dx, OUT, GROUPS * IN, IN, IN, AX_F64, AX_F64,
        false, false, false);
    check_equal("gradient of rows", dx, dx_expected, ROWS * IN);
    RUN(gemm_grouped, OUT, IN, ROWS, GROUPS, 0, y, x, bounds_of, dw, OUT, IN, GROUPS * IN, IN, AX_F64, AX_F64,
        true, false, true);
    check_equal("gradient of matrices", dw, dw_expected, OUT * GROUPS * IN);
    RUN(gemm_grouped, OUT, IN, ROWS, GROUPS, 0, y, x, bounds_of, dw, OUT, IN, GROUPS * IN, IN, AX_F64, AX_F64,
        true, false, false);
    for (int o = 0; o < OUT; o++)
        for (int i = 0; i < IN; i++)
            assert_true(dw[(o * GROUPS + 1) * IN + i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router_gradient),
        cmocka_unit_test(losses_by_definition),
        cmocka_unit_test(choices_have_an_order),
        cmocka_unit_test(rows_move_both_ways),
        cmocka_unit_test(rows_of_some_groups_come_in_rounds),
        cmocka_unit_test(grouped_gemms),
    };
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
