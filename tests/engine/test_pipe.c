/* engine: training on pipeline stages against the same grid with one stage (support/pipe_runs.h). The long
 * test (test_long_pipe.c) has all pairs of grids, schedules, sizes and models. A build with sanitizers
 * tests a third of the setups, a build without them the others. */
#include "support/emulated.h"
#include "support/pipe_runs.h"
#include "support/ranks.h"
#include "support/sampled.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void check_setups(const pipe_setup *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (my_share(i, 3))
            pipe_check(&all[i]);
}

static void stages_of_one_rank(void **state)
{
    (void)state;
    static const int64_t cut[] = {0, 5, 6};
    const pipe_setup all[] = {
        {.grid = {{1, 1, 1, 2, 1}}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32},
        {.grid = {{1, 1, 1, 2, 1}}, .schedule = F1B, .micro_batches = 1, .compute = AX_BF16},
        {.grid = {{1, 1, 1, 3, 1}}, .schedule = GPIPE, .micro_batches = 2, .compute = AX_F32, .recompute = 1},
        {.grid = {{1, 1, 1, 3, 1}}, .schedule = MESSAGE, .slack = 2, .micro_batches = 16, .compute = AX_BF16},
        {.grid = {{1, 1, 1, 4, 1}}, .schedule = F1B, .slack = 1, .micro_batches = 7, .compute = AX_F16},
        {.grid = {{1, 1, 1, 4, 1}}, .schedule = MESSAGE, .micro_batches = 5, .compute = AX_F32, .cut = cut},
        {.grid = {{1, 1, 1, 4, 1}},
         .schedule = GPIPE,
         .micro_batches = 3,
         .compute = AX_F64,
         .device = "ref"},
        {.grid = {{1, 1, 1, 8, 1}},
         .schedule = MESSAGE,
         .micro_batches = 7,
         .compute = AX_F32,
         .recompute = 2},
        {.grid = {{1, 1, 1, 3, 1}}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32, .lazy = true},
        {.grid = {{1, 1, 1, 2, 1}},
         .schedule = MESSAGE,
         .micro_batches = 3,
         .compute = AX_F32,
         .device = "check"},
        {.grid = {{1, 1, 1, 3, 1}},
         .schedule = MESSAGE,
         .micro_batches = 4,
         .compute = AX_BF16,
         .family = PIPE_LLAMA},
        {.grid = {{1, 1, 1, 3, 1}},
         .schedule = MESSAGE,
         .micro_batches = 4,
         .compute = AX_F32,
         .family = PIPE_QWEN3},
        {.grid = {{1, 1, 1, 3, 1}},
         .schedule = MESSAGE,
         .micro_batches = 4,
         .postpone = 1,
         .compute = AX_F32,
         .family = PIPE_EXPERTS},
        {.grid = {{1, 1, 1, 2, 4, 4}}, /* experts in two rounds, whose weight gradients are not postponed */
         .schedule = MESSAGE,
         .micro_batches = 4,
         .postpone = 1,
         .zero = 1,
         .compute = AX_F32,
         .family = PIPE_EXPERTS},
        {.grid = {{1, 2, 1, 2, 1}},
         .schedule = INTERLEAVED,
         .micro_batches = 4,
         .recompute = 1,
         .compute = AX_BF16,
         .family = PIPE_EXPERTS},
        {.grid = {{1, 1, 1, 2, 2, 2}},
         .schedule = MESSAGE,
         .micro_batches = 4,
         .postpone = 1,
         .compute = AX_F32,
         .family = PIPE_EXPERTS,
         .capacity = 1},
    };
    check_setups(all, AX_COUNT(all));
}

static void stages_of_several_ranks(void **state)
{
    (void)state;
    const pipe_setup all[] = {
        {.grid = {{2, 1, 1, 2, 1}}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32},
        {.grid = {{2, 1, 1, 4, 1}}, .schedule = MESSAGE, .slack = 1, .micro_batches = 7, .compute = AX_BF16},
        {.grid = {{1, 2, 1, 2, 1}},
         .schedule = MESSAGE,
         .micro_batches = 2,
         .compute = AX_F32,
         .recompute = 1},
        {.grid = {{1, 1, 2, 2, 1}}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32},
        {.grid = {{1, 1, 2, 3, 1}}, .schedule = F1B, .micro_batches = 7, .compute = AX_BF16},
        {.grid = {{1, 1, 1, 2, 2}}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32},
        {.grid = {{1, 1, 1, 3, 2}}, .schedule = MESSAGE, .zero = 1, .micro_batches = 7, .compute = AX_BF16},
        {.grid = {{1, 2, 1, 2, 2}},
         .schedule = MESSAGE,
         .zero = 2,
         .micro_batches = 3,
         .compute = AX_BF16,
         .narrow = true},
        {.grid = {{1, 1, 1, 2, 2}}, .schedule = MESSAGE, .zero = 2, .micro_batches = 7, .compute = AX_F32},
        {.grid = {{1, 1, 1, 4, 2}}, .schedule = MESSAGE, .zero = 3, .micro_batches = 7, .compute = AX_BF16},
        {.grid = {{2, 1, 2, 2, 1}}, .schedule = GPIPE, .micro_batches = 3, .compute = AX_F32},
        {.grid = {{2, 2, 1, 2, 1}}, .schedule = MESSAGE, .micro_batches = 3, .compute = AX_F16},
        {.grid = {{2, 1, 1, 2, 2}},
         .schedule = MESSAGE,
         .zero = 3,
         .micro_batches = 4,
         .compute = AX_F32,
         .recompute = 1},
        {.grid = {{3, 1, 1, 2, 1}},
         .schedule = MESSAGE,
         .micro_batches = 3,
         .compute = AX_F32,
         .strategy = "megatron"},
        {.grid = {{1, 1, 2, 2, 2}},
         .schedule = F1B,
         .micro_batches = 3,
         .compute = AX_F32,
         .strategy = "hsdp",
         .zero = 2},
        {.grid = {{2, 1, 1, 2, 1}}, .schedule = MESSAGE, .micro_batches = 4, .compute = AX_F32, .lazy = true},
    };
    check_setups(all, AX_COUNT(all));
}

/* Gradients that are sums over the ranks along x: those of the norms that all heads of q and k share, and
 * with x=4 also those of the two key heads, which two ranks each have. */
static void stages_whose_heads_share_parameters(void **state)
{
    (void)state;
    const pipe_setup all[] = {
        {.grid = {{2, 1, 1, 2, 1}},
         .schedule = MESSAGE,
         .micro_batches = 3,
         .compute = AX_F32,
         .family = PIPE_QWEN3},
        {.grid = {{4, 1, 1, 2, 1}},
         .schedule = MESSAGE,
         .micro_batches = 3,
         .compute = AX_BF16,
         .family = PIPE_QWEN3},
        {.grid = {{2, 1, 1, 2, 2}},
         .schedule = F1B,
         .zero = 2,
         .micro_batches = 3,
         .compute = AX_F32,
         .family = PIPE_QWEN3},
    };
    check_setups(all, AX_COUNT(all));
}

/* Stages of several chunks, and postponed weight gradients. */
static void chunks_and_postponed_gradients(void **state)
{
    (void)state;
    static const int64_t cut[] = {1, 2, 5};
    const pipe_setup all[] = {
        {.grid = {{1, 1, 1, 2, 1}},
         .schedule = INTERLEAVED,
         .chunks = 4,
         .micro_batches = 4,
         .compute = AX_F32},
        {.grid = {{1, 1, 1, 4, 1}},
         .schedule = F1B,
         .postpone = 1,
         .micro_batches = 5,
         .compute = AX_BF16,
         .recompute = 1},
        {.grid = {{1, 1, 1, 3, 1}},
         .schedule = INTERLEAVED,
         .micro_batches = 3,
         .compute = AX_BF16,
         .recompute = 1},
        {.grid = {{2, 1, 1, 2, 2}},
         .schedule = F1B,
         .postpone = 2,
         .zero = 2,
         .micro_batches = 3,
         .compute = AX_F32},
        {.grid = {{1, 1, 1, 2, 1}},
         .schedule = INTERLEAVED,
         .micro_batches = 2,
         .compute = AX_F16,
         .cut = cut},
        {.grid = {{1, 1, 1, 2, 1}},
         .schedule = MESSAGE,
         .postpone = 2,
         .micro_batches = 3,
         .compute = AX_F32,
         .device = "check"},
        {.grid = {{2, 1, 1, 2, 2}},
         .schedule = INTERLEAVED,
         .zero = 3,
         .micro_batches = 2,
         .compute = AX_F32},
        {.grid = {{1, 2, 2, 2, 1}},
         .schedule = MESSAGE,
         .postpone = 1,
         .slack = 1,
         .micro_batches = 3,
         .compute = AX_BF16,
         .family = PIPE_QWEN3},
        {.grid = {{1, 1, 1, 2, 2}},
         .schedule = INTERLEAVED,
         .postpone = 3,
         .micro_batches = 4,
         .compute = AX_F32},
        {.grid = {{1, 1, 2, 2, 1}},
         .schedule = F1B,
         .postpone = 2,
         .micro_batches = 3,
         .compute = AX_BF16,
         .narrow = true},
        {.grid = {{1, 1, 1, 2, 1}},
         .schedule = INTERLEAVED,
         .postpone = 1,
         .micro_batches = 2,
         .compute = AX_F32,
         .tied = true},
    };
    check_setups(all, AX_COUNT(all));
}

static void tied_tables(void **state)
{
    (void)state;
    const pipe_setup all[] = {
        {.grid = {{1, 1, 1, 2, 1}}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32, .tied = true},
        {.grid = {{1, 1, 1, 4, 1}}, .schedule = F1B, .micro_batches = 3, .compute = AX_BF16, .tied = true},
        {.grid = {{1, 1, 1, 2, 2}},
         .schedule = MESSAGE,
         .zero = 1,
         .micro_batches = 3,
         .compute = AX_BF16,
         .tied = true,
         .narrow = true},
        {.grid = {{2, 1, 1, 2, 2}},
         .schedule = MESSAGE,
         .zero = 1,
         .micro_batches = 3,
         .compute = AX_F32,
         .tied = true},
        {.grid = {{1, 1, 2, 2, 2}},
         .schedule = MESSAGE,
         .zero = 3,
         .micro_batches = 3,
         .compute = AX_F32,
         .tied = true},
        {.grid = {{1, 2, 1, 3, 1}}, .schedule = GPIPE, .micro_batches = 2, .compute = AX_F32, .tied = true},
    };
    check_setups(all, AX_COUNT(all));
}

/* The schedule `message` whatever the order in which messages arrive. The long test has more setups and
 * seeds. */
static void late_messages(void **state)
{
    (void)state;
    int others = 0;
    for (int i = 0; i < 3; i += one_of(1, 2)) {
        pipe_setup s = pipe_late_setups[i];
        s.slack = i;
        others += pipe_check_late(&s, (uint64_t)(1 + 2 * i), 2);
    }
    pipe_setup s = pipe_late_setups[1];
    s.postpone = 2;
    others += pipe_check_late(&s, 101, 2);
    assert_true(others > 0); /* a stage ran its tasks in two orders */
}

/* The last rank asks to give up the step at its first micro-batch. Its note comes with the first gradient, so
 * the first stage has begun at most as many forwards as it may before the first backward. */
static void a_later_stage_stops_a_step(void **state)
{
    (void)state;
    const struct {
        pipe_setup setup;
        int64_t most;
    } all[] = {
        {{.grid = {{1, 1, 1, 2, 1}}, .schedule = MESSAGE}, 2},
        {{.grid = {{1, 1, 1, 4, 1}}, .schedule = F1B}, 4},
        {{.grid = {{1, 1, 1, 3, 1}}, .schedule = MESSAGE, .slack = 2, .postpone = 2}, 5},
        {{.grid = {{2, 1, 1, 3, 1}}, .schedule = MESSAGE}, 3},
        {{.grid = {{1, 1, 1, 2, 2}}, .schedule = F1B, .zero = 2}, 2},
        {{.grid = {{1, 1, 1, 2, 1}}, .schedule = INTERLEAVED}, 5},
    };
    for (size_t i = 0; i < AX_COUNT(all); i++) {
        pipe_setup s = all[i].setup;
        pipe_result r;
        s.micro_batches = 12;
        s.compute = AX_F32;
        s.stops = true;
        pipe_run(&s, &r);
        assert_in_range(r.begun, 1, all[i].most);
        pipe_free(&r);
    }
}

/* Runs `s` and adds the pinned memory that was allocated to *pinned. */
static void run_counting(const pipe_setup *s, pipe_result *out, long *pinned)
{
    emulated_count_fn *allocated = (emulated_count_fn *)(uintptr_t)emulated_function(EMULATED_PINNED);
    *pinned -= allocated();
    pipe_run(s, out);
    *pinned += allocated();
}

/* Each of `ranks` devices allocates `fixed` bytes of pinned memory when it is opened; the rest must be what
 * was planned for messages. */
static void check_pinned(const pipe_result *r, int ranks, long fixed, long pinned)
{
    long planned = 0;
    for (int i = 0; i < ranks; i++) {
        assert_true(r->pinned[i] > 0);
        planned += (long)r->pinned[i];
    }
    assert_int_equal(pinned - ranks * fixed, planned);
}

/* On a GPU that the host emulates messages go through pinned memory, as much as was planned. Whether the
 * copies are early or late changes nothing. */
static void stages_of_gpus(void **state)
{
    (void)state;
    enum { LATE = 40 };
    static const long delays[] = {-1, 0, LATE};
    const pipe_setup all[] = {
        {.grid = {{1, 1, 1, 3, 1}},
         .schedule = MESSAGE,
         .micro_batches = 4,
         .compute = AX_BF16,
         .device = "cuda"},
        {.grid = {{2, 1, 1, 2, 1}},
         .schedule = MESSAGE,
         .micro_batches = 3,
         .compute = AX_F32,
         .recompute = 1,
         .keeps = true,
         .device = "cuda"},
        {.grid = {{1, 1, 1, 2, 1}},
         .schedule = INTERLEAVED,
         .postpone = 2,
         .micro_batches = 4,
         .compute = AX_F32,
         .device = "cuda"},
        {.grid = {{1, 1, 1, 2, 1}},
         .schedule = MESSAGE,
         .slack = 2,
         .micro_batches = 5,
         .compute = AX_F32,
         .device = "cuda",
         .tied = true},
    };
    if (!getenv("AXONN_PLUGINS"))
        skip();
    assert_null(ax_device_absent("cuda"));
    emulated_delay_fn *delay = (emulated_delay_fn *)(uintptr_t)emulated_function(EMULATED_DELAY);
    for (size_t i = 0; i < AX_COUNT(all); i++) {
        if (!my_share(i, 4))
            continue;
        pipe_result one, got;
        pipe_setup without = all[i];
        long fixed = 0;
        without.grid.of[AX_PIPE] = 1;
        run_counting(&without, &one, &fixed);
        fixed /= grid_ranks(without.grid);
        for (size_t d = 0; d < AX_COUNT(delays); d++) {
            long pinned = 0;
            if (d == 1 + i % 2 && !getenv("AXONN_TEST_ALL")) /* early or late copies */
                continue;
            delay(delays[d]);
            run_counting(&all[i], &got, &pinned);
            check_pinned(&got, grid_ranks(all[i].grid), fixed, pinned);
            pipe_compare(&all[i], &got, &one);
            pipe_free(&got);
        }
        pipe_free(&one);
    }
    delay(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_of_one_rank),
        cmocka_unit_test(stages_of_several_ranks),
        cmocka_unit_test(stages_whose_heads_share_parameters),
        cmocka_unit_test(chunks_and_postponed_gradients),
        cmocka_unit_test(tied_tables),
        cmocka_unit_test(late_messages),
        cmocka_unit_test(a_later_stage_stops_a_step),
        cmocka_unit_test(stages_of_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
