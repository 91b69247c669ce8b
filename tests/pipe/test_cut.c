/* pipe: where stages begin, against all possible cuts. */
#include "axonn/pipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 24, PARTS = 20 };

/* A model: the costs of the embedding, the blocks and the head. */
typedef struct model {
    int64_t blocks, cost[BLOCKS + 2];
} model;

static model equal_blocks(int64_t blocks, int64_t embedding, int64_t block, int64_t head)
{
    model m = {.blocks = blocks, .cost = {embedding}};
    for (int64_t i = 1; i <= blocks; i++)
        m.cost[i] = block;
    m.cost[blocks + 1] = head;
    return m;
}

static model random_model(int64_t blocks, uint64_t seed)
{
    model m = {.blocks = blocks};
    for (int64_t i = 0; i < blocks + 2; i++)
        m.cost[i] = (int64_t)(1 + 99 * ax_rng_uniform(seed, (uint64_t)i));
    return m;
}

/* The cost of the most expensive stage. */
static int64_t cost_of(const model *m, int stages, int chunks, const int64_t *begin)
{
    int64_t cost[PARTS] = {m->cost[0]}, most = 0;
    cost[stages - 1] += m->cost[m->blocks + 1];
    for (int p = 0; p < stages * chunks; p++)
        for (int64_t i = begin[p]; i < begin[p + 1]; i++)
            cost[p % stages] += m->cost[1 + i];
    for (int s = 0; s < stages; s++)
        most = ax_max(most, cost[s]);
    return most;
}

/* The cost of the best of all cuts whose part p begins with begin[p], for p < `part`. */
static int64_t best_cut(const model *m, int stages, int chunks, int part, int64_t *begin)
{
    int64_t best = INT64_MAX;
    int parts = stages * chunks;
    begin[0] = 0;
    begin[parts] = m->blocks;
    if (part == parts)
        return parts > 2 && begin[parts - 1] <= begin[parts - 2] ? best : cost_of(m, stages, chunks, begin);
    for (int64_t at = begin[part - 1] + (part > 1); at <= m->blocks; at++) {
        begin[part] = at;
        best = ax_min(best, best_cut(m, stages, chunks, part + 1, begin));
    }
    return best;
}

static void assert_legal(const model *m, int parts, const int64_t *begin)
{
    assert_true(begin[0] == 0 && begin[parts] == m->blocks);
    for (int p = 1; p < parts; p++)
        assert_true(begin[p] >= begin[p - 1] + (p > 1) && begin[p] <= begin[p + 1]);
}

static void check_best(const model *m, int stages)
{
    int64_t begin[PARTS], any[PARTS];
    if (stages > m->blocks + 2)
        return;
    ax_pipe_cut(stages, 1, m->blocks, m->cost, begin);
    assert_legal(m, stages, begin);
    assert_int_equal(cost_of(m, stages, 1, begin), best_cut(m, stages, 1, 1, any));
}

static void cuts_are_the_best(void **state)
{
    (void)state;
    static const int64_t extra[][2] = {{0, 0}, {0, 545}, {50, 200}, {300, 25}, {0, 4000}};
    for (int stages = 1; stages <= 5; stages++)
        for (int64_t blocks = 1; blocks <= 9; blocks++) {
            for (size_t e = 0; e < AX_COUNT(extra); e++) {
                model m = equal_blocks(blocks, extra[e][0], 100, extra[e][1]);
                check_best(&m, stages);
            }
            for (uint64_t seed = 0; seed < 20; seed++) {
                model m = random_model(blocks, seed);
                check_best(&m, stages);
            }
        }
}

/* Where the most expensive stage leaves a choice, the other stages cost nearly the same, and later stages get
 * the blocks that are left over. */
static void other_stages_are_balanced(void **state)
{
    (void)state;
    static const struct {
        int stages;
        int64_t blocks, embedding, head, begin[9];
    } cases[] = {{5, 12, 0, 0, {0, 2, 4, 6, 9, 12}},
                 {4, 12, 0, 400, {0, 4, 8, 12, 12}},
                 {3, 13, 0, 4000, {0, 6, 13, 13}},
                 {4, 2, 0, 100, {0, 0, 1, 2, 2}},
                 {6, 8, 0, 250, {0, 1, 2, 4, 6, 8, 8}},
                 {4, 12, 3, 535, {0, 4, 8, 12, 12}},
                 {8, 12, 3, 535, {0, 1, 2, 4, 6, 8, 10, 12, 12}}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        int64_t begin[PARTS];
        model m = equal_blocks(cases[i].blocks, cases[i].embedding, 100, cases[i].head);
        ax_pipe_cut(cases[i].stages, 1, m.blocks, m.cost, begin);
        for (int s = 0; s <= cases[i].stages; s++)
            assert_int_equal(begin[s], cases[i].begin[s]);
    }
    int64_t begin[PARTS], ones[PARTS];
    model m = equal_blocks(11, 0, 1, 0);
    ax_pipe_cut(4, 1, 11, NULL, begin); /* without costs: each block costs 1, the rest nothing */
    ax_pipe_cut(4, 1, 11, m.cost, ones);
    assert_memory_equal(begin, ones, 5 * sizeof *begin);
}

/* The cost of the most expensive stage, if the last one, which has the head, gets its best number of blocks
 * and the others share the rest as evenly as possible. A stage needs a block for each chunk that has neither
 * the embedding nor the head. */
static int64_t best_with_chunks(int stages, int chunks, int64_t blocks, int64_t block, int64_t head)
{
    int64_t best = INT64_MAX;
    for (int64_t last = chunks - 1; last <= blocks - (stages - 1) * chunks + 1; last++) {
        int64_t rest = blocks - last, least = stages > 2 ? chunks : chunks - 1;
        int64_t most = ax_max(least, ax_ceil_div(rest, stages - 1));
        best = ax_min(best, ax_max(most * block, last * block + head));
    }
    return best;
}

/* Chunks of a stage have nearly the same length, no part is empty except the first and the last, and the most
 * expensive stage is as cheap as possible. */
static void cuts_into_chunks_balance_stages(void **state)
{
    (void)state;
    for (int stages = 2; stages <= 4; stages++)
        for (int chunks = 2; chunks <= 4; chunks++)
            for (int64_t blocks = stages * chunks - 2; blocks <= BLOCKS; blocks++) {
                int64_t begin[PARTS], most[4] = {0}, least[4] = {99, 99, 99, 99};
                model m = equal_blocks(blocks, 0, 10, 49);
                ax_pipe_cut(stages, chunks, blocks, m.cost, begin);
                assert_legal(&m, stages * chunks, begin);
                for (int p = 0; p < stages * chunks; p++) {
                    int64_t length = begin[p + 1] - begin[p];
                    most[p % stages] = ax_max(most[p % stages], length);
                    least[p % stages] = ax_min(least[p % stages], length);
                }
                for (int s = 0; s < stages; s++)
                    assert_true(most[s] - least[s] <= 1);
                assert_int_equal(cost_of(&m, stages, chunks, begin),
                                 best_with_chunks(stages, chunks, blocks, 10, 49));
            }
}

/* Blocks of any cost: a stage costs at most one block per chunk more than in the best cut. */
static void chunks_of_unequal_blocks(void **state)
{
    (void)state;
    for (int stages = 2; stages <= 3; stages++)
        for (int64_t blocks = 2 * stages; blocks <= 11; blocks++)
            for (uint64_t seed = 0; seed < 10; seed++) {
                int64_t begin[PARTS], any[PARTS], largest = 0;
                model m = random_model(blocks, seed);
                for (int64_t i = 1; i <= blocks; i++)
                    largest = ax_max(largest, m.cost[i]);
                ax_pipe_cut(stages, 2, blocks, m.cost, begin);
                assert_legal(&m, 2 * stages, begin);
                assert_true(cost_of(&m, stages, 2, begin) <= best_cut(&m, stages, 2, 1, any) + 2 * largest);
            }
    /* The first half of the blocks costs three times as much as the second: chunks differ in length. */
    int64_t begin[PARTS];
    model m = equal_blocks(16, 0, 10, 0);
    for (int64_t i = 1; i <= 8; i++)
        m.cost[i] = 30;
    ax_pipe_cut(2, 2, 16, m.cost, begin);
    assert_true(begin[1] < 4 && begin[4] - begin[3] > 4);
    assert_true(cost_of(&m, 2, 2, begin) <= 160 + 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_are_the_best),
        cmocka_unit_test(other_stages_are_balanced),
        cmocka_unit_test(cuts_into_chunks_balance_stages),
        cmocka_unit_test(chunks_of_unequal_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
