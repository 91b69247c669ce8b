/* Mixtures of experts on ref: the losses of route_stats, grouped GEMMs by their definition, the order of
 * choices and of rows. */
#include "axonn/dev.h"

#include "support/arrays.h"
#include "support/ref_stream.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 3, TOKENS = 4, N = SAMPLES * TOKENS, EXPERTS = 5, TOP_K = 2 };

/* ---- the router ---------------------------------------------------------------------------------- */

/* The totals are the losses that the shares define. All of the second sample is padding, and a part of the
 * third. */
static void losses_by_definition(void **state)
{
    (void)state;
    double logits[N * EXPERTS], probs[N * EXPERTS], lse_of[N], weight[N * TOP_K], losses[2] = {0};
    double shares[SAMPLES * (EXPERTS + 1)], total[3 + EXPERTS] = {0}, choices = 0;
    int32_t choice[N * TOP_K], ids[N];
    fill(logits, N * EXPERTS);
    for (int i = 0; i < N; i++)
        ids[i] = i / TOKENS == 1 || i == N - 1 ? -1 : i;
    RUN(route, N, EXPERTS, TOP_K, logits, probs, lse_of, weight, choice, AX_F64, false);
    RUN(route_stats, SAMPLES, TOKENS, EXPERTS, TOP_K, probs, lse_of, choice, ids, shares, total, AX_F64);
    for (int i = 0; i < N; i++) {
        const double *share = shares + i / TOKENS * (EXPERTS + 1);
        if (ids[i] < 0)
            continue;
        losses[0] += dot(share, probs + i * EXPERTS, EXPERTS) * share[EXPERTS];
        losses[1] += lse_of[i] * lse_of[i] * share[EXPERTS];
    }
    check_equal("balance and z", total, losses, 2);
    for (int e = 0; e < EXPERTS; e++)
        choices += total[2 + e];
    assert_true(choices == (double)((2 * TOKENS - 1) * TOP_K));
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

static void rows_are_sorted_by_group(void **state)
{
    (void)state;
    int32_t choice[N * TOP_K], source[N * TOP_K], place[N * TOP_K], bounds[EXPERTS + 1];
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
    double x[ROWS * IN], w[OUT * GROUPS * IN], y[ROWS * OUT], expected[ROWS * OUT] = {0};
    fill(x, ROWS * IN);
    fill(w, OUT * GROUPS * IN);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++)
            for (int i = 0; i < IN; i++)
                expected[r * OUT + o] += x[r * IN + i] * w[(o * GROUPS + group_of(r)) * IN + i];
    RUN(gemm_grouped, ROWS, OUT, IN, GROUPS, 0, x, w, bounds_of, y, IN, GROUPS * IN, OUT, IN, AX_F64, AX_F64,
        false, true, false);
    check_equal("rows", y, expected, ROWS * OUT);
    RUN(gemm_grouped, OUT, IN, ROWS, GROUPS, 0, y, x, bounds_of, w, OUT, IN, GROUPS * IN, IN, AX_F64, AX_F64,
        true, false, false);
    for (int o = 0; o < OUT; o++) /* the group without rows */
        for (int i = 0; i < IN; i++)
            assert_true(w[(o * GROUPS + 1) * IN + i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_by_definition),
        cmocka_unit_test(choices_have_an_order),
        cmocka_unit_test(rows_are_sorted_by_group),
        cmocka_unit_test(rows_of_some_groups_come_in_rounds),
        cmocka_unit_test(grouped_gemms),
    };
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
