/* Whole training steps on grids, in many combinations of sharded weights, ZeRO, recomputation, weight cache
 * and micro-batches. Each runs twice: with all overlaps on a communicator that completes transfers as late as
 * possible, and without overlap on one that completes them at once. Both must give the same bits, and the
 * values of the serial run. Also compares the bytes that are transferred with closed forms. */
#include "support/lazy.h"
#include "support/ranks.h"
#include "support/sampled.h"
#include "support/steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ax_status run_rank(ax_comm *world, void *arg)
{
    setup mine = *(setup *)arg;
    ax_comm *lazy = NULL;
    if (mine.lazy)
        AX_TRY(lazy_create(world, &mine.outstanding, &lazy));
    ax_status status = steps_run(lazy ? lazy : world, &mine);
    ax_comm_destroy(&lazy);
    if (ax_comm_rank(world) == 0)
        *(setup *)arg = mine;
    else
        free(mine.weights);
    return status;
}

static const char *describe(const setup *s)
{
    static char text[160];
    return steps_describe(s, text);
}

static setup run(setup s)
{
    if (ax_comm_threads_run(grid_ranks(s.grid), run_rank, &s) != AX_OK)
        fail_msg("%s: %s", describe(&s), ax_error_message());
    return s;
}

static void same_bits(const setup *a, const setup *b)
{
    if (memcmp(a->loss, b->loss, sizeof a->loss) || memcmp(a->norm, b->norm, sizeof a->norm) ||
        a->n_weights != b->n_weights ||
        memcmp(a->weights, b->weights, (size_t)a->n_weights * sizeof *a->weights) || a->eval != b->eval)
        fail_msg("%s: overlap changes bits", describe(a));
}

static const ax_parallel together = {.overlap = {.oar = true, .ors = true, .oag = true}};

static int checked;

static void overlapped_and_not(setup s, const setup *serial)
{
    setup late = s, plain = s;
    late.lazy = true;
    plain.parallel.overlap.oar = plain.parallel.overlap.ors = plain.parallel.overlap.oag = false;
    late = run(late);
    plain = run(plain);
    same_bits(&late, &plain);
    if (steps_check(&late, serial) != AX_OK)
        fail_msg("%s", ax_error_message());
    if (s.parallel.zero == 0 && s.grid.of[AX_Z] > 1)
        assert_true(late.outstanding > 2);
    free(late.weights);
    free(plain.weights);
    checked += 2;
}

static void grids_train_as_one_rank_does(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{1, 1, 2, 1, 1}}, {{1, 1, 1, 1, 2}}, {{1, 1, 2, 1, 2}},
                                         {{2, 1, 2, 1, 2}}, {{1, 2, 2, 1, 2}}, {{1, 1, 4, 1, 2}},
                                         {{1, 1, 2, 1, 4}}, {{2, 2, 2, 1, 1}}, {{1, 1, 3, 1, 2}},
                                         {{1, 1, 1, 1, 3}}, {{2, 1, 1, 1, 3}}, {{1, 1, 8, 1, 1}}};
    setup base = {
        .shape = &odd, .grid = {{1, 1, 1, 1, 1}}, .parallel = together, .micro_batch = 2, .compute = AX_F64};
    setup serial = run(base);
    int turn = 0;
    for (size_t i = 0; i < AX_COUNT(grids); i++)
        for (int zero = 0; zero < (grids[i].of[AX_DATA] > 1 ? 4 : 2);
             zero++) /* without data, ZeRO 1 is ZeRO 0 */
            for (int micro_steps = 1; micro_steps <= 3; micro_steps++) {
                /* All three numbers of micro-steps on one grid, one of them on the others; a third of
                 * these, under sanitizers an eighth. */
                int64_t share = GLOBAL / (grids[i].of[AX_Z] * grids[i].of[AX_DATA]);
                bool mine = (i == 2 && !SANITIZED) || micro_steps == 1 + (int)(i + (size_t)zero) % 3;
                if (share % micro_steps || !mine || (i + (size_t)zero) % (size_t)one_of(3, 8))
                    continue;
                setup s = base;
                s.grid = grids[i];
                s.parallel.zero = zero;
                s.parallel.weight_cache = turn % 3 == 2 ? 1 << 20 : turn % 3 == 1 ? 6000 : 0;
                s.micro_batch = share / micro_steps;
                s.recompute = turn++ % 2;
                overlapped_and_not(s, &serial);
            }
    printf("%d runs\n", checked);
    free(serial.weights);
}

/* ZeRO divides matrices by rows: of eight ranks some have none. */
static void ranks_without_rows_train_too(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{1, 1, 1, 1, 8}}, {{1, 1, 2, 1, 4}}};
    setup base = {.shape = &small,
                  .grid = {{1, 1, 1, 1, 1}},
                  .parallel = together,
                  .micro_batch = 2,
                  .compute = AX_F64};
    setup serial = run(base);
    for (size_t i = 0; i < AX_COUNT(grids); i++)
        for (int zero = 1; zero < 4; zero++) {
            setup s = base;
            if (!my_share((size_t)zero, 3))
                continue;
            s.grid = grids[i];
            s.parallel.zero = zero;
            s.micro_batch = zero == 2 ? 1 : 3;
            overlapped_and_not(s, &serial);
        }
    free(serial.weights);
}

/* The other strategies of the table, each on all of its axes. */
static void strategies_train_as_one_rank_does(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        ax_grid_size grid;
        int zero;
    } rows[] = {{"megatron", {{2, 1, 1, 1, 2}}, 2}, {"megatron", {{3, 1, 1, 1, 2}}, 3},
                {"fsdp", {{1, 1, 4, 1, 1}}, 0},     {"hsdp", {{1, 1, 2, 1, 3}}, 1},
                {"ddp", {{1, 1, 1, 1, 4}}, 0},      {"ddp", {{1, 1, 1, 1, 3}}, 3}};
    setup base = {
        .shape = &odd, .grid = {{1, 1, 1, 1, 1}}, .parallel = together, .micro_batch = 2, .compute = AX_F64};
    setup serial = run(base);
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        setup s = base;
        if (!my_share(i, 2))
            continue;
        if (ax_strategy_find(rows[i].name, &s.parallel.strategy) != AX_OK)
            fail_msg("%s", ax_error_message());
        s.grid = rows[i].grid;
        s.parallel.zero = rows[i].zero;
        overlapped_and_not(s, &serial);
    }
    free(serial.weights);
}

/* With bf16 weights are gathered in bf16 and gradients reduced in fp32. Overlap must not change a bit there
 * either. */
static void overlap_changes_no_bit_in_bf16(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        setup s = {.shape = &odd,
                   .grid = {{1, 1, 2, 1, 2}},
                   .parallel = together,
                   .micro_batch = 2,
                   .recompute = zero % 2,
                   .compute = AX_BF16};
        s.parallel.zero = zero;
        setup late = s, plain = s;
        late.lazy = true;
        plain.parallel.overlap.oar = plain.parallel.overlap.ors = plain.parallel.overlap.oag = false;
        late = run(late);
        plain = run(plain);
        same_bits(&late, &plain);
        free(late.weights);
        free(plain.weights);
    }
}

/* ---- bytes --------------------------------------------------------------------------------------- */

/* Returns the number of elements in the weights of all linear layers of the blocks. */
static int64_t linear_count(const shape *h)
{
    return 2 * (4 * h->hidden * h->hidden + 2 * h->hidden * h->ffn);
}

/* Returns the bytes along z (arXiv 2502.08145, section on the performance model), summed over layers, for a
 * step of m micro-batches on a grid with x = y = 1. `wire` and `sum` are the bytes of an element of gathered
 * weights and of gradients. */
static int64_t z_bytes(const setup *s, int64_t m, int64_t wire, int64_t sum)
{
    const shape *h = s->shape;
    int64_t linear = linear_count(h), tokens = h->vocab * h->hidden, positions = h->seq_len * h->hidden,
            z = s->grid.of[AX_Z];
    bool cached = s->parallel.weight_cache;
    int64_t gathers =
        cached ? linear + tokens + positions : m * ((s->recompute ? 3 : 2) * linear + 3 * tokens + positions);
    int64_t scattered = m * (linear + 2 * tokens + positions);
    return (z - 1) * (gathers * wire + scattered * sum) / z;
}

/* Returns the bytes along data. A rank holds the shard that z gives it. Per step: ZeRO 0 an all-reduce, ZeRO
 * 1 a reduce-scatter and the gather of the update. ZeRO 2 reduce-scatters in each micro-batch; ZeRO 3 also
 * gathers at each use instead of per update. */
static int64_t data_bytes(const setup *s, int64_t m, int64_t wire, int64_t sum)
{
    const shape *h = s->shape;
    int64_t linear = linear_count(h), tokens = h->vocab * h->hidden, positions = h->seq_len * h->hidden,
            all = linear + tokens + positions, d = s->grid.of[AX_DATA], z = s->grid.of[AX_Z];
    int64_t scattered = s->parallel.zero >= 2 ? m * (linear + 2 * tokens + positions) : all;
    int64_t gathered = s->parallel.zero < 3 ? all
                       : s->parallel.weight_cache
                           ? all
                           : m * ((s->recompute ? 3 : 2) * linear + 3 * tokens + positions);
    if (s->parallel.zero == 0)
        return 2 * (d - 1) * all * sum / (d * z);
    return (d - 1) * (scattered * sum + gathered * wire) / (d * z);
}

static void bytes_are_those_of_the_closed_forms(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{1, 1, 2, 1, 2}}, {{1, 1, 4, 1, 2}}, {{1, 1, 2, 1, 4}}};
    for (size_t i = 0; i < AX_COUNT(grids); i++)
        for (int zero = 0; zero < 4; zero++)
            for (int how = 0; how < 4; how++) {
                if ((how + zero + (int)i) % one_of(2, 8))
                    continue;
                setup s = {.shape = &even, .grid = grids[i], .parallel = together, .compute = AX_BF16};
                s.parallel.zero = zero;
                s.recompute = how % 2;
                s.parallel.weight_cache = how / 2 ? 1 << 20 : 0;
                int64_t share = GLOBAL / (grids[i].of[AX_Z] * grids[i].of[AX_DATA]), m = share % 2 ? 3 : 2;
                s.micro_batch = share / m;
                s = run(s);
                if (s.z_bytes != z_bytes(&s, m, 2, 4) || s.data_bytes != data_bytes(&s, m, 2, 4))
                    fail_msg("%s: %lld bytes on z and %lld on data, not %lld and %lld", describe(&s),
                             (long long)s.z_bytes, (long long)s.data_bytes, (long long)z_bytes(&s, m, 2, 4),
                             (long long)data_bytes(&s, m, 2, 4));
                free(s.weights);
            }
}

/* OAG: the all-gather of the next weight starts before the kernels of the current one end, in forward,
 * backward and recomputation. Only the first gather of a micro-batch overlaps with nothing. */
static void gathers_run_beside_kernels(void **state)
{
    (void)state;
    enum { MICRO_STEPS = 2 };
    for (int recompute = 0; recompute < 2; recompute++) {
        setup s = {.shape = &even,
                   .grid = {{1, 1, 2, 1, 1}},
                   .parallel = together,
                   .micro_batch = GLOBAL / 2 / MICRO_STEPS,
                   .recompute = recompute,
                   .compute = AX_F64,
                   .traced = true};
        setup with = run(s);
        s.parallel.overlap.oag = false;
        setup without = run(s);
        /* Two layers of six weights, the embedding's two tables, the head: forward and backward of each but
         * the tables, and forward again where it is recomputed. */
        int blocks = 2 * 6, forward = 2 + blocks + 1, backward = blocks + 1;
        assert_int_equal(with.gathers, MICRO_STEPS * (forward + backward + recompute * blocks));
        assert_int_equal(without.gathers, with.gathers);
        assert_int_equal(with.alone, MICRO_STEPS);
        assert_int_equal(without.alone, without.gathers);
        free(with.weights);
        free(without.weights);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_train_as_one_rank_does),
        cmocka_unit_test(ranks_without_rows_train_too),
        cmocka_unit_test(strategies_train_as_one_rank_does),
        cmocka_unit_test(overlap_changes_no_bit_in_bf16),
        cmocka_unit_test(bytes_are_those_of_the_closed_forms),
        cmocka_unit_test(gathers_run_beside_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
