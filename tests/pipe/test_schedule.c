/* pipe: schedules in the simulator against closed forms. */
#include "axonn/pipe.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES = 12, MICRO = 64, CHUNKS = 4, PIECES = MICRO * CHUNKS };

/* ---- times with jitter --------------------------------------------------------------------------- */

typedef struct plan {
    ax_pipe_schedule schedule;
    int stages;
    int64_t micro, slack;
    double forward, backward, transfer;
    double jitter; /* each duration is longer by up to this part of it */
    uint64_t seed;
    int chunks; /* 0: one */
    int64_t postpone;
} plan;

typedef struct outcome {
    double time;
    int64_t most[STAGES];               /* pieces in flight */
    char order[STAGES][3 * PIECES + 1]; /* "FFBFBW…" */
    int64_t postponed[STAGES];          /* the most pieces whose weight gradients waited */
} outcome;

static double uniform(uint64_t seed, int stage, int64_t piece, int kind)
{
    static const char *const kinds[] = {"forward", "backward", "weights"};
    uint64_t key = ax_rng_key(ax_rng_key(seed, "stage", (uint64_t)stage), kinds[kind], (uint64_t)piece);
    return (double)(key >> 11) * 0x1p-53;
}

typedef struct simulation {
    const plan *p;
    outcome *out;
} simulation;

/* `kind`: 0 forward, 1 backward, 2 weight gradients. Half of a whole backward is weight gradients. */
static double duration(const plan *p, int stage, int64_t piece, int kind)
{
    double t = kind ? p->backward / 2 : p->forward;
    return t * (1 + p->jitter * uniform(p->seed, stage, piece, kind));
}

static double task_time(void *user, const ax_pipe_stage *stage, ax_pipe_task task, ax_pipe_piece piece,
                        const ax_pipe_counts *done)
{
    const simulation *sim = user;
    outcome *out = sim->out;
    const int kind = task == AX_PIPE_FORWARD ? 0 : task == AX_PIPE_BACKWARD ? 1 : 2, s = stage->stage;
    const int64_t number = piece.micro_batch * stage->chunks + piece.chunk;
    out->order[s][strlen(out->order[s])] = "FBW"[kind];
    out->most[s] = ax_max(out->most[s], done->forwards - done->backwards);
    out->postponed[s] = ax_max(out->postponed[s], done->backwards - done->weights);
    return duration(sim->p, s, number, kind) +
           (kind == 1 && !stage->postpone ? duration(sim->p, s, number, 2) : 0);
}

static double message_time(void *user, int stage, bool gradient)
{
    (void)stage, (void)gradient;
    return ((const simulation *)user)->p->transfer;
}

/* Runs a step. False: no stage can go on. */
static bool simulate(const plan *p, outcome *out)
{
    const ax_pipe_settings settings = {
        .schedule = p->schedule, .slack = p->slack, .postpone = p->postpone, .chunks = p->chunks};
    const ax_pipe_times times = {task_time, message_time, &(simulation){p, out}};
    double ends[STAGES];
    memset(out, 0, sizeof *out);
    if (ax_pipe_simulate(&settings, p->stages, p->micro, &times, ends) != AX_OK)
        return false;
    for (int s = 0; s < p->stages; s++)
        out->time = fmax(out->time, ends[s]);
    return true;
}

/* ---- tests --------------------------------------------------------------------------------------- */

/* Without transfers and jitter every schedule takes (M + P - 1)(t_f + t_b): whole numbers, so exactly. */
static void bubbles_have_the_closed_form(void **state)
{
    (void)state;
    outcome o;
    for (int schedule = 0; schedule < AX_PIPE_INTERLEAVED; schedule++)
        for (int stages = 1; stages <= STAGES; stages++)
            for (int64_t micro = stages; micro <= MICRO; micro += 7) {
                plan p = {(ax_pipe_schedule)schedule, stages, micro, 0, 1, 2, 0, 0, 0, 0, 0};
                assert_true(simulate(&p, &o));
                assert_true(o.time == (double)(micro + stages - 1) * 3);
            }
}

/* With v chunks, each of which takes 1/v of the time, a stage waits for the first piece instead of the first
 * micro-batch: (M + (P - 1)/v)(t_f + t_b), here in units of 1/v. */
static void chunks_make_bubbles_smaller(void **state)
{
    (void)state;
    static outcome o;
    for (int chunks = 2; chunks <= CHUNKS; chunks++)
        for (int stages = 2; stages <= STAGES; stages++)
            for (int64_t micro = stages; micro <= MICRO; micro += stages) {
                plan p = {AX_PIPE_INTERLEAVED, stages, micro, 0, 1, 2, 0, 0, 0, chunks, 0};
                assert_true(simulate(&p, &o));
                assert_true(o.time == (double)(micro * chunks + stages - 1) * 3);
            }
}

/* Each forward and backward occurs once, and the chunks take the micro-batches in their order, whatever the
 * number of micro-batches. */
static void pieces_are_complete(void **state)
{
    (void)state;
    for (int chunks = 1; chunks <= CHUNKS; chunks++)
        for (int stages = 2; stages <= 5; stages++)
            for (int64_t n = 1; n <= 13; n++) {
                int64_t next[2][CHUNKS] = {{0}};
                ax_pipe_stage s = {.stages = stages, .chunks = chunks, .micro_batches = n};
                for (int64_t i = 0; i < n * chunks; i++) {
                    ax_pipe_piece f = ax_pipe_forward(&s, n, i), b = ax_pipe_backward(&s, n, i);
                    assert_int_equal(f.micro_batch, next[0][f.chunk]++);
                    assert_int_equal(b.micro_batch, next[1][b.chunk]++);
                }
                for (int c = 0; c < chunks; c++)
                    assert_true(next[0][c] == n && next[1][c] == n);
            }
}

static void slots_are_never_exceeded(void **state)
{
    (void)state;
    static outcome o;
    for (uint64_t seed = 0; seed < 300; seed++) {
        int stages = 1 + (int)(seed % 9);
        int64_t micro = 1 + (int64_t)(seed * 7 % 17), slack = (int64_t)(seed % 4);
        plan p = {(ax_pipe_schedule)(seed % AX_PIPE_SCHEDULES),
                  stages,
                  micro,
                  slack,
                  1,
                  2,
                  0.3,
                  0.9,
                  seed,
                  2 + (int)(seed % 3),
                  (int64_t)(seed % 6)};
        if (p.schedule == AX_PIPE_INTERLEAVED)
            p.micro = micro = stages * (1 + (int64_t)(seed % 5)); /* other numbers can stop it */
        assert_true(simulate(&p, &o));                            /* some stage can always go on */
        for (int s = 0; s < stages; s++) {
            int64_t slots = p.schedule == AX_PIPE_GPIPE ? micro : ax_min(micro, stages - s + slack);
            if (p.schedule == AX_PIPE_INTERLEAVED)
                slots = ax_min(micro * p.chunks, (p.chunks - 1) * stages + 2 * (stages - s) - 1);
            assert_true(o.most[s] <= (stages == 1 ? 1 : slots));
            assert_true(o.postponed[s] <= (stages == 1 ? 0 : p.postpone));
        }
    }
}

static void fixed_schedules_have_their_order(void **state)
{
    (void)state;
    outcome o;
    plan p = {AX_PIPE_1F1B, 4, 6, 0, 1, 2, 0.4, 0.8, 5, 0, 0};
    assert_true(simulate(&p, &o));
    assert_string_equal(o.order[0], "FFFFBFBFBBBB");
    assert_string_equal(o.order[2], "FFBFBFBFBFBB");
    assert_string_equal(o.order[3], "FBFBFBFBFBFB");
    p.schedule = AX_PIPE_GPIPE;
    assert_true(simulate(&p, &o));
    for (int s = 0; s < 4; s++)
        assert_string_equal(o.order[s], "FFFFFFBBBBBB");
    p = (plan){AX_PIPE_INTERLEAVED, 2, 4, 0, 1, 2, 0, 0, 0, 2, 0};
    assert_true(simulate(&p, &o));
    assert_string_equal(o.order[0], "FFFFFBFBFBFBBBBB");
    assert_string_equal(o.order[1], "FFFBFBFBFBFBFBBB");
}

/* Compares the chunks of each slot with a text, such as "01 0": slot 0 holds both, slot 1 the first. */
static void check_slots(const ax_pipe_settings *settings, int stages, int stage, int64_t micro_batches,
                        const char *expected)
{
    ax_pipe_stage s = ax_pipe_stage_of(settings, stages, stage, micro_batches);
    bool holds[STAGES * CHUNKS];
    char text[128] = "";
    assert_int_equal(ax_pipe_slot_chunks(&s, holds), AX_OK);
    for (int64_t i = 0, at = 0; i < s.slots; i++) {
        for (int c = 0; c < s.chunks; c++)
            if (holds[i * s.chunks + c])
                text[at++] = (char)('0' + c);
        text[at++] = i + 1 < s.slots ? ' ' : 0;
    }
    assert_string_equal(text, expected);
}

/* By hand, from the orders above: on the first stage micro-batches 0, 1 of chunk 0, then of chunk 1, then 2
 * of chunk 0 fill the slots; then each forward takes the slot of the backward before it. */
static void slots_hold_what_the_order_gives_them(void **state)
{
    (void)state;
    ax_pipe_settings two = {.schedule = AX_PIPE_INTERLEAVED, .chunks = 2};
    check_slots(&two, 2, 0, 4, "01 0 01 1 0");
    check_slots(&two, 2, 1, 4, "0 01 01");
    check_slots(&two, 2, 0, 16, "01 01 01 01 01");
    two.postpone = 1; /* arrival decides when a slot is free */
    check_slots(&two, 2, 0, 4, "01 01 01 01 01 01");
    check_slots(&(ax_pipe_settings){.schedule = AX_PIPE_1F1B}, 3, 0, 4, "0 0 0");
    check_slots(&(ax_pipe_settings){.schedule = AX_PIPE_MESSAGE}, 2, 1, 4, "0");
}

/* With the message-driven schedule another jitter gives another order: arrival decides. */
static void arrival_decides(void **state)
{
    (void)state;
    outcome a, b;
    plan p = {AX_PIPE_MESSAGE, 4, 16, 2, 1, 2, 0.2, 0.5, 1, 0, 0};
    assert_true(simulate(&p, &a));
    p.seed = 2;
    assert_true(simulate(&p, &b));
    assert_string_not_equal(a.order[1], b.order[1]);
}

static double mean_time(ax_pipe_schedule schedule, int64_t slack, int64_t postpone, double jitter)
{
    const int seeds = jitter > 0 ? 50 : 1;
    double sum = 0;
    for (uint64_t seed = 0; seed < (uint64_t)seeds; seed++) {
        static outcome o;
        plan p = {schedule, 8, 32, slack, 1, 2, jitter > 0 ? 0.2 : 0.01, jitter, seed, 0, postpone};
        assert_true(simulate(&p, &o));
        sum += o.time / seeds;
    }
    return sum;
}

/* 8 stages, 32 micro-batches, durations up to half as long again, transfers of a fifth of a forward. An
 * independent simulation of the same gave 1.00 and 0.93 of 1F1B's time, and 0.85 and 0.80 with postponed
 * weight gradients. */
static void message_driven_is_faster_under_jitter(void **state)
{
    (void)state;
    double fixed = mean_time(AX_PIPE_1F1B, 0, 0, 0.5);
    print_message(
        "of 1f1b: message %.3f, slack 4 %.3f, postpone 4 %.3f, slack 4 and postpone 8 %.3f\n",
        mean_time(AX_PIPE_MESSAGE, 0, 0, 0.5) / fixed, mean_time(AX_PIPE_MESSAGE, 4, 0, 0.5) / fixed,
        mean_time(AX_PIPE_MESSAGE, 0, 4, 0.5) / fixed, mean_time(AX_PIPE_MESSAGE, 4, 8, 0.5) / fixed);
    assert_true(mean_time(AX_PIPE_MESSAGE, 0, 0, 0.5) < 1.02 * fixed);
    assert_true(mean_time(AX_PIPE_MESSAGE, 4, 0, 0.5) < 0.95 * fixed);
    assert_true(mean_time(AX_PIPE_1F1B, 4, 0, 0.5) > 0.98 * fixed); /* more slots alone do not help */
    assert_true(mean_time(AX_PIPE_MESSAGE, 0, 4, 0.5) < 0.88 * fixed);
    assert_true(mean_time(AX_PIPE_MESSAGE, 4, 8, 0.5) < 0.85 * fixed);
}

/* Without jitter, weight gradients fill the time in which a stage waits for its first gradients. */
static void postponing_fills_bubbles(void **state)
{
    (void)state;
    double fixed = mean_time(AX_PIPE_1F1B, 0, 0, 0);
    print_message("1f1b with postpone 8: %.3f of 1f1b\n", mean_time(AX_PIPE_1F1B, 0, 8, 0) / fixed);
    assert_true(mean_time(AX_PIPE_1F1B, 0, 8, 0) < 0.94 * fixed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles_have_the_closed_form),          cmocka_unit_test(slots_are_never_exceeded),
        cmocka_unit_test(chunks_make_bubbles_smaller),           cmocka_unit_test(pieces_are_complete),
        cmocka_unit_test(fixed_schedules_have_their_order),      cmocka_unit_test(arrival_decides),
        cmocka_unit_test(message_driven_is_faster_under_jitter), cmocka_unit_test(postponing_fills_bubbles),
        cmocka_unit_test(slots_hold_what_the_order_gives_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
