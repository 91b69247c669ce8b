/* The long version of test_pipe.c: grids, numbers of stages, schedules, numbers of micro-batches and models
 * in all pairs, each compared with the same grid with one stage; and many orders of late messages. */
#include "support/pipe_runs.h"

#include "support/ranks.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- the values of the matrix -------------------------------------------------------------------- */

enum {
    GRIDS = 14,
    PIPES = 5,
    SCHEDULES = 8,
    SIZES = 4,
    DTYPES = 3,
    KINDS = DTYPES * PIPE_FAMILIES * 2 * 2,
    MOST_VALUES = 14
};

static const struct {
    ax_grid_size size;
    int zero;
} grids[GRIDS] = {
    {{{1, 1, 1, 1, 1}}, 0}, {{{2, 1, 1, 1, 1}}, 0}, {{{1, 2, 1, 1, 1}}, 0}, {{{1, 1, 2, 1, 1}}, 0},
    {{{1, 1, 1, 1, 2}}, 0}, {{{1, 1, 1, 1, 2}}, 1}, {{{1, 1, 1, 1, 2}}, 2}, {{{1, 1, 1, 1, 2}}, 3},
    {{{1, 3, 1, 1, 1}}, 0}, {{{2, 2, 1, 1, 1}}, 0}, {{{2, 1, 2, 1, 1}}, 0}, {{{2, 1, 1, 1, 2}}, 3},
    {{{1, 2, 1, 1, 2}}, 2}, {{{1, 1, 2, 1, 2}}, 1},
};
static const int pipes[PIPES] = {1, 2, 3, 4, 8};
static const struct {
    int schedule, slack, postpone;
} schedules[SCHEDULES] = {{MESSAGE, 0, 0}, {MESSAGE, 2, 0}, {F1B, 0, 0},         {GPIPE, 0, 0},
                          {MESSAGE, 1, 3}, {F1B, 0, 1},     {INTERLEAVED, 0, 0}, {INTERLEAVED, 0, 2}};
static const int sizes[SIZES] = {1, 2, 7, 16};
static const ax_dtype dtypes[DTYPES] = {AX_F32, AX_BF16, AX_F16};

/* The factors of the matrix, and the number of values of each. */
enum { GRID, PIPE, SCHEDULE, SIZE, DTYPE, FAMILY, RECOMPUTE, TIED, FACTORS };
static const int values[FACTORS] = {GRIDS, PIPES, SCHEDULES, SIZES, DTYPES, PIPE_FAMILIES, 2, 2};

/* seen[a][b][i][j]: a run had value i of factor a and value j of factor b. */
typedef struct matrix {
    bool seen[FACTORS][FACTORS][MOST_VALUES][MOST_VALUES];
    int runs, references;
} matrix;

static pipe_setup setup_of(const int at[FACTORS])
{
    pipe_setup s = {.grid = grids[at[GRID]].size,
                    .zero = grids[at[GRID]].zero,
                    .schedule = schedules[at[SCHEDULE]].schedule,
                    .slack = schedules[at[SCHEDULE]].slack,
                    .postpone = schedules[at[SCHEDULE]].postpone,
                    .micro_batches = sizes[at[SIZE]],
                    .compute = dtypes[at[DTYPE]],
                    .family = (pipe_family)at[FAMILY],
                    .recompute = at[RECOMPUTE],
                    .tied = at[TIED]};
    s.grid.of[AX_PIPE] = pipes[at[PIPE]];
    return s;
}

/* ---- the walk ------------------------------------------------------------------------------------ */

/* Whether there are enough ranks, blocks for two chunks on each stage, and a multiple of the stages as
 * micro-batches. */
static bool fits(const int at[FACTORS])
{
    pipe_setup s = setup_of(at);
    bool chunks = s.schedule == INTERLEAVED && s.grid.of[AX_PIPE] > 1;
    return grid_ranks(s.grid) <= PIPE_RANKS &&
           (!chunks || (s.grid.of[AX_PIPE] <= 4 && s.micro_batches % s.grid.of[AX_PIPE] == 0));
}

static void mark(matrix *m, const int at[FACTORS])
{
    for (int a = 0; a < FACTORS; a++)
        for (int b = 0; b < FACTORS; b++)
            m->seen[a][b][at[a]][at[b]] = true;
    m->runs++;
}

/* Fails unless every pair of values has occurred, but for pairs that do not fit. */
static void assert_all_pairs(const matrix *m)
{
    for (int a = 0; a < FACTORS; a++)
        for (int b = 0; b < a; b++)
            for (int i = 0; i < values[a]; i++)
                for (int j = 0; j < values[b]; j++) {
                    int at[FACTORS] = {0};
                    at[a] = i;
                    at[b] = j;
                    if (!m->seen[a][b][i][j] && fits(at))
                        fail_msg("no run has value %d of factor %d and value %d of factor %d", i, a, j, b);
                }
}

static void compare_with(matrix *m, const pipe_result *one, const int at[FACTORS])
{
    pipe_result got;
    pipe_setup s = setup_of(at);
    pipe_run(&s, &got);
    pipe_compare(&s, &got, one);
    pipe_free(&got);
    mark(m, at);
}

/* Compares every number of stages and every schedule with one run of one stage. With one stage, schedules
 * differ in nothing but their names: they take turns. */
static void all_schedules(matrix *m, int at[FACTORS])
{
    pipe_result one;
    pipe_setup s = setup_of(at);
    pipe_run_one_stage(&s, &one);
    for (at[PIPE] = 0; at[PIPE] < PIPES; at[PIPE]++)
        for (at[SCHEDULE] = 0; at[SCHEDULE] < SCHEDULES; at[SCHEDULE]++)
            if (fits(at) && (at[PIPE] > 0 || at[SCHEDULE] == m->references % SCHEDULES))
                compare_with(m, &one, at);
    pipe_free(&one);
    m->references++;
}

/* All grids, numbers of stages, schedules and numbers of micro-batches are crossed with each other. Of the 48
 * kinds of models (dtype, family, recomputation, tied or not), each grid and number of micro-batches has
 * every seventh, from another one on. 7 has no divisor in common with 48, so each value of a kind comes with
 * each value of everything else. */
static void every_pair_of_values(void **state)
{
    (void)state;
    static matrix m;
    for (int g = 0; g < GRIDS; g++)
        for (int n = 0; n < SIZES; n++)
            for (int k = (g * SIZES + n) % 7; k < KINDS; k += 7) {
                int at[FACTORS] = {[GRID] = g,
                                   [SIZE] = n,
                                   [DTYPE] = k % DTYPES,
                                   [FAMILY] = k / DTYPES % PIPE_FAMILIES,
                                   [RECOMPUTE] = k / (DTYPES * PIPE_FAMILIES) % 2,
                                   [TIED] = k / (DTYPES * PIPE_FAMILIES * 2)};
                all_schedules(&m, at);
            }
    printf("%d runs, compared with %d of one stage\n", m.runs, m.references);
    assert_all_pairs(&m);
}

/* ---- late messages ------------------------------------------------------------------------------- */

/* The same bits whatever the order in which messages arrive; and orders do differ. */
static void late_messages(void **state)
{
    (void)state;
    enum { SLACKS = 4, SEEDS = 7 };
    for (int i = 0; i < PIPE_LATE_SETUPS; i++) {
        int others = 0;
        for (int slack = 0; slack < SLACKS; slack++) {
            pipe_setup s = pipe_late_setups[i];
            s.slack = slack;
            s.postpone = (i + slack) % 3;
            others += pipe_check_late(&s, (uint64_t)(1 + (i * SLACKS + slack) * SEEDS), SEEDS);
        }
        printf("setup %d: %d of %d runs in another order than the first\n", i, others, SLACKS * (SEEDS - 1));
        assert_true(others > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_messages),
        cmocka_unit_test(every_pair_of_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
