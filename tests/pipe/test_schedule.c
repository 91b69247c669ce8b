/* pipe: schedules in a simulator against closed forms. */
#include "axonn/pipe.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES = 12, MICRO = 64, CHUNKS = 4, PIECES = MICRO * CHUNKS };

/* ---- a simulator --------------------------------------------------------------------------------- */

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

/* `kind`: 0 forward, 1 backward, 2 weight gradients. Half of a whole backward is weight gradients. */
static double duration(const plan *p, int stage, int64_t piece, int kind)
{
    double t = kind ? p->backward / 2 : p->forward;
    return t * (1 + p->jitter * uniform(p->seed, stage, piece, kind));
}

typedef struct simulated {
    ax_pipe_stage stage;
    ax_pipe_counts done;
    double clock;
    double input[2][PIECES]; /* times at which the input of each forward and backward arrives; < 0: not yet */
} simulated;

static bool has_input(const simulated *s, int kind, int64_t i, double t)
{
    return i < s->stage.micro_batches * s->stage.chunks && s->input[kind][i] >= 0 && s->input[kind][i] <= t;
}

/* When stage s can begin its next task: *task, at the time that is returned; < 0: never, as things are. */
static double next_begin(simulated *s, ax_pipe_task *task)
{
    ax_pipe_counts now = s->done;
    double at[3] = {s->clock, -1, -1};
    if (has_input(s, 0, now.forwards, 1e300))
        at[1] = s->input[0][now.forwards];
    if (has_input(s, 1, now.backwards, 1e300))
        at[2] = s->input[1][now.backwards];
    if (at[1] > at[2] && at[2] >= 0) { /* in order of time */
        double later = at[1];
        at[1] = at[2];
        at[2] = later;
    }
    for (int i = 0; i < 3; i++) {
        double t = at[i] < s->clock ? s->clock : at[i];
        if (at[i] < 0)
            continue;
        now.activation = has_input(s, 0, now.forwards, t);
        now.gradient = has_input(s, 1, now.backwards, t);
        *task = ax_pipe_next(&s->stage, &now);
        if (*task == AX_PIPE_FORWARD || *task == AX_PIPE_BACKWARD || *task == AX_PIPE_WEIGHTS)
            return t;
    }
    return -1;
}

static ax_pipe_piece piece_of(const simulated *s, int kind, int64_t i)
{
    return kind ? ax_pipe_backward(&s->stage, s->stage.micro_batches, i)
                : ax_pipe_forward(&s->stage, s->stage.micro_batches, i);
}

/* Sets the time at which the input of a forward or backward arrives. */
static void set_arrival(simulated *s, int kind, ax_pipe_piece piece, double when)
{
    for (int64_t i = 0; i < s->stage.micro_batches * s->stage.chunks; i++) {
        ax_pipe_piece at = piece_of(s, kind, i);
        if (at.micro_batch == piece.micro_batch && at.chunk == piece.chunk)
            s->input[kind][i] = when;
    }
}

/* The output of a piece goes to the next part of the model, or to the one before it, or turns around. */
static void pass_on(const plan *p, simulated *all, int s, int kind, ax_pipe_piece piece)
{
    int parts = p->stages * all->stage.chunks, part = piece.chunk * p->stages + s,
        to = part + (kind ? -1 : 1);
    double when = all[s].clock + (to == parts ? 0 : p->transfer);
    if (to < 0)
        return;
    kind = to == parts ? 1 : kind;
    to = to == parts ? part : to;
    set_arrival(&all[to % p->stages], kind, (ax_pipe_piece){piece.micro_batch, to / p->stages}, when);
}

static void run_task(const plan *p, simulated *all, int s, ax_pipe_task task, double begin, outcome *out)
{
    simulated *me = &all[s];
    int kind = task == AX_PIPE_FORWARD ? 0 : task == AX_PIPE_BACKWARD ? 1 : 2;
    int64_t *count[] = {&me->done.forwards, &me->done.backwards, &me->done.weights};
    ax_pipe_piece piece = piece_of(me, kind > 0, (*count[kind])++);
    int64_t number = piece.micro_batch * me->stage.chunks + piece.chunk;
    me->clock = begin + duration(p, s, number, kind);
    if (kind == 1 && !me->stage.postpone) {
        me->clock += duration(p, s, number, 2);
        me->done.weights++;
    }
    out->order[s][strlen(out->order[s])] = "FBW"[kind];
    if (kind < 2)
        pass_on(p, all, s, kind, piece);
    out->most[s] = ax_max(out->most[s], me->done.forwards - me->done.backwards);
    out->postponed[s] = ax_max(out->postponed[s], me->done.backwards - me->done.weights);
}

static void begin_step(const plan *p, simulated *all)
{
    for (int s = 0; s < p->stages; s++) {
        all[s] = (simulated){.clock = 0};
        all[s].stage = ax_pipe_stage_of(
            &(ax_pipe_settings){
                .schedule = p->schedule, .slack = p->slack, .postpone = p->postpone, .chunks = p->chunks},
            p->stages, s, p->micro);
        for (int64_t i = 0; i < PIECES; i++)
            all[s].input[0][i] = all[s].input[1][i] = -1;
    }
    for (int64_t m = 0; m < p->micro; m++) /* tokens are there from the beginning */
        set_arrival(&all[0], 0, (ax_pipe_piece){m, 0}, 0);
}

/* Runs a step. False: no stage can go on. */
static bool simulate(const plan *p, outcome *out)
{
    static simulated all[STAGES];
    memset(out, 0, sizeof *out);
    begin_step(p, all);
    for (;;) {
        int best = -1;
        double when = 0;
        ax_pipe_task what = AX_PIPE_WAIT;
        bool finished = true;
        for (int s = 0; s < p->stages; s++) {
            ax_pipe_task task;
            finished = finished && all[s].done.weights == p->micro * all[s].stage.chunks;
            double t = next_begin(&all[s], &task);
            if (t >= 0 && (best < 0 || t < when)) {
                best = s;
                when = t;
                what = task;
            }
        }
        if (finished)
            break;
        if (best < 0)
            return false;
        run_task(p, all, best, what, when, out);
    }
    for (int s = 0; s < p->stages; s++)
        out->time = out->time < all[s].clock ? all[s].clock : out->time;
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
