/* The time of a planned step: replays of the micro-batches that differ give the time of the whole step,
 * replayed as the engine runs it; and pipelines that of their schedule. */
#include "train/run_test.h"

#include <math.h>

enum { LINK, NETWORK, MICRO = 7 };

#define KEYS                                                                                                 \
    "model.family=gpt2 model.layers=4 model.hidden=24 model.heads=4 model.vocab=61 model.seq_len=16 "        \
    "train.micro_batch=2 train.precision=bf16 data.train=train.tok threads=1 run.dir=run "

static ax_status price_kernel(void *user, ax_kernel kernel, const void *args, double *seconds)
{
    double flops, bytes;
    (void)user;
    ax_kernel_cost(kernel, args, &flops, &bytes);
    *seconds = 1e-6 + flops / 1e12 + bytes / 1e11;
    return AX_OK;
}

/* Collectives of several ranks take the link for a ring's bytes; messages a latency and the network. */
static ax_status price_transfer(void *user, const ax_device_event *e, ax_leg leg[AX_LEGS], int *legs)
{
    (void)user;
    if (e->kind == AX_ON_COPY)
        return AX_OK;
    const int size = ax_comm_size(e->comm);
    double bytes = 0;
    for (int i = 0; i < e->operands; i++)
        bytes = fmax(bytes, (double)e->operand[i].count * (double)ax_dtype_size(e->operand[i].dtype));
    if (e->kind == AX_ON_MESSAGE) {
        leg[(*legs)++] = (ax_leg){AX_NO_CARRIER, 3e-6};
        leg[(*legs)++] = (ax_leg){NETWORK, bytes / 1e9};
    } else if (size > 1) {
        leg[(*legs)++] = (ax_leg){LINK, 1e-6 + bytes * (size - 1) / size / 1e10};
    }
    return AX_OK;
}

static const ax_prices prices = {price_kernel, price_transfer, NULL};

typedef struct bench {
    ax_config config;
    ax_comm *world;
    ax_trainer *trainer;
    const ax_train_plan *plan;
} bench;

static void open_bench(bench *b, const char *keys, int ranks, int micro_batches)
{
    char text[1024], *key[MAX_KEYS];
    snprintf(text, sizeof text, KEYS "%s train.global_batch=%d", keys, 2 * micro_batches);
    OK(ax_config_load(NULL, key, keys_of_rank(text, 0, key), AX_CONFIG_TO_MEASURE, &b->config));
    OK(ax_comm_alone_create(ranks, &b->world));
    OK(ax_trainer_create(b->world, &b->config, &b->trainer));
    b->plan = ax_trainer_plan(b->trainer);
}

static void close_bench(bench *b)
{
    ax_trainer_destroy(&b->trainer);
    ax_comm_destroy(&b->world);
    ax_config_fini(&b->config);
}

/* Returns the time of the second of two steps that the engine runs on a clock, and their kernels. */
static double whole_step(const ax_train_plan *p, double *computed)
{
    ax_ctx *ctx;
    ax_engine *engine;
    ax_clock *clock;
    OK(ax_ctx_create_dry(0, ax_comm_size(p->ranks), p->grid, p->compute, &p->parallel, &ctx));
    OK(ax_engine_create(ctx, &p->options, &p->engine, 0, &engine));
    OK(ax_clock_create(ctx->dev, &prices, &clock));
    OK(ax_engine_step(engine, 1, ax_rows_none, NULL, 1, &(ax_hyper){.step = 1}));
    const double begin = ax_device_now(ctx->dev), before = ax_clock_computed(clock);
    OK(ax_engine_step(engine, 2, ax_rows_none, NULL, 1, &(ax_hyper){.step = 2}));
    const double seconds = ax_device_now(ctx->dev) - begin;
    *computed = ax_clock_computed(clock) - before;
    assert_true(ax_clock_carried(clock, NETWORK) == 0);
    ax_clock_destroy(&clock);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&ctx);
    return seconds;
}

static double exposed(const ax_stage_times *t)
{
    double sum = 0;
    for (int i = 0; i < t->n_exposed; i++)
        sum += t->exposed[i].seconds;
    return sum;
}

static void near(const char *what, const char *keys, int micro_batches, double have, double want)
{
    if (!(fabs(have - want) <= 1e-9 * want))
        fail_msg("%s, %d micro-batches: %s of %.12g s, not %.12g", keys, micro_batches, what, have, want);
}

static void parts_give_the_time_of_the_whole_step(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int ranks, rows; /* ranks that divide the batch */
    } runs[] = {{"", 1, 1},
                {"grid.x=2 grid.y=2", 4, 1},
                {"grid.z=2 grid.data=2", 4, 4},
                {"grid.x=2 grid.data=4 zero=1", 8, 4},
                {"grid.data=4 zero=3", 4, 4},
                {"grid.z=4 train.weight_cache=30000 train.recompute=full", 4, 4},
                {"grid.x=2 grid.z=2 overlap.oar=false overlap.ors=false overlap.oag=false", 4, 2}};
    for (size_t i = 0; i < AX_COUNT(runs); i++)
        for (int n = 1; n <= MICRO; n++) {
            bench b;
            ax_stage_times times;
            ax_step_time step;
            double computed;
            open_bench(&b, runs[i].keys, runs[i].ranks, n * runs[i].rows);
            OK(ax_trainer_time_step(b.trainer, &prices, NULL, &times, &step));
            near("a step", runs[i].keys, n, step.seconds, whole_step(b.plan, &computed));
            near("kernels", runs[i].keys, n, times.computed, computed);
            near("kernels and waits", runs[i].keys, n, times.computed + exposed(&times), step.seconds);
            assert_true(fabs(step.bubble) < 1e-12);
            ax_stage_times_fini(&times);
            close_bench(&b);
        }
}

/* Micro-batches that are alike are not counted one by one. */
static void many_micro_batches_cost_nothing(void **state)
{
    (void)state;
    enum { MANY = 500 * 1000 * 1000 };
    const int counts[] = {MICRO, MICRO + 1, MANY};
    double seconds[AX_COUNT(counts)];
    for (size_t i = 0; i < AX_COUNT(counts); i++) {
        bench b;
        ax_stage_times times;
        ax_step_time step;
        open_bench(&b, "", 1, counts[i]);
        OK(ax_trainer_time_step(b.trainer, &prices, NULL, &times, &step));
        seconds[i] = step.seconds;
        ax_stage_times_fini(&times);
        close_bench(&b);
    }
    near("a step", "", MANY, seconds[2] / MANY, seconds[1] - seconds[0]);
}

static ax_status price_wrongly(void *user, ax_kernel kernel, const void *args, double *seconds)
{
    (void)kernel, (void)args;
    *seconds = *(const double *)user;
    return AX_OK;
}

static void prices_must_be_times(void **state)
{
    (void)state;
    const double wrong[] = {NAN, INFINITY, -1e-9};
    for (size_t i = 0; i < AX_COUNT(wrong); i++) {
        bench b;
        ax_stage_times times;
        ax_step_time step;
        ax_prices bad = {price_wrongly, price_transfer, (void *)(uintptr_t)&wrong[i]};
        open_bench(&b, "", 1, 1);
        FAILS(AX_ERR_USAGE, "finite and not negative",
              ax_trainer_time_step(b.trainer, &bad, NULL, &times, &step));
        close_bench(&b);
    }
}

/* A step of four micro-batches is replayed whole, so the activities in its trace add up to its time. */
static void the_trace_of_a_planned_step_has_its_time(void **state)
{
    (void)state;
    bench b;
    ax_trace *trace;
    ax_event_ring *ring;
    ax_stage_times times;
    ax_step_time step;
    double sum = 0;
    OK(ax_trace_create(1 << 14, &trace));
    OK(ax_trace_ring(trace, "planned", &ring));
    open_bench(&b, "grid.x=2", 2, 4);
    OK(ax_trainer_time_step(b.trainer, &prices, &ring, &times, &step));
    assert_true(ax_event_count(ring) < 1 << 14);
    for (size_t i = 0; i < ax_event_count(ring); i++) {
        const ax_event *e = ax_event_get(ring, i);
        if (!strcmp(e->kind, "kernel") || !strcmp(e->kind, "start") || !strcmp(e->kind, "wait"))
            sum += e->end - e->begin;
    }
    near("activities", "x=2", 4, sum, step.seconds);
    assert_true(times.n_exposed > 0 && exposed(&times) > 0);
    ax_stage_times_fini(&times);
    ax_trace_destroy(&trace);
    close_bench(&b);
}

static double of(const ax_stage_times *t, int m, ax_pipe_task task)
{
    return t->task[ax_step_part_of(m, MICRO)].of[task];
}

/* GPipe on two stages: all forwards, then all backwards, each after its message. */
static void a_pipeline_takes_the_time_of_its_schedule(void **state)
{
    (void)state;
    bench b;
    ax_stage_times t[2];
    ax_step_time step;
    double f0 = 0, f1 = 0, b0, b1, busy = 0;
    open_bench(&b, "grid.pipe=2 pipe.schedule=gpipe", 2, MICRO);
    OK(ax_trainer_time_step(b.trainer, &prices, NULL, t, &step));
    const double activation = t[0].message[AX_MESSAGE_ACTIVATION],
                 gradient = t[1].message[AX_MESSAGE_GRADIENT], bytes = 2 * 16 * 24 * 2;
    near("an activation", "pipe=2", MICRO, activation, 3e-6 + bytes / 1e9);
    near("a gradient", "pipe=2", MICRO, gradient, activation);
    for (int m = 0; m < MICRO; m++) {
        f0 += of(&t[0], m, AX_PIPE_FORWARD);
        f1 = fmax(f1, f0 + activation) + of(&t[1], m, AX_PIPE_FORWARD);
    }
    b0 = f0, b1 = f1;
    for (int m = 0; m < MICRO; m++) {
        b1 += of(&t[1], m, AX_PIPE_BACKWARD);
        b0 = fmax(b0, b1 + gradient) + of(&t[0], m, AX_PIPE_BACKWARD);
        for (int s = 0; s < 2; s++)
            busy += (of(&t[s], m, AX_PIPE_FORWARD) + of(&t[s], m, AX_PIPE_BACKWARD)) / 2;
    }
    near("a step", "pipe=2", MICRO, step.seconds, b0 + fmax(t[0].end, t[1].end));
    near("the bubble", "pipe=2", MICRO, step.bubble, b0 - busy);
    assert_true(step.bubble > 0);
    for (int s = 0; s < 2; s++) {
        assert_true(t[s].end > 0 && exposed(&t[s]) < t[s].end); /* messages are no part of a stage's times */
        ax_stage_times_fini(&t[s]);
    }
    close_bench(&b);
}

/* Each slot of the schedule interleaved has room for the chunks that a step puts there, and a chunk is timed
 * in a slot that has room for it. */
static void chunks_of_other_sizes_have_their_times(void **state)
{
    (void)state;
    bench b;
    ax_stage_times t[2];
    ax_step_time step;
    open_bench(&b, "grid.pipe=2 pipe.schedule=interleaved pipe.chunks=2 pipe.cut=[0,1,2]", 2, 2);
    OK(ax_trainer_time_step(b.trainer, &prices, NULL, t, &step));
    for (int task = AX_PIPE_FORWARD; task <= AX_PIPE_BACKWARD; task++) /* one block each */
        near("a block", "pipe=2", 2, t[0].task[1].of[task], t[1].task[0].of[task]);
    const double block = t[1].task[0].of[AX_PIPE_FORWARD] + t[1].task[0].of[AX_PIPE_BACKWARD];
    assert_true(t[1].task[1].of[AX_PIPE_BACKWARD] > 2 * block); /* both ways: two blocks and the head */
    for (int s = 0; s < 2; s++)
        ax_stage_times_fini(&t[s]);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_give_the_time_of_the_whole_step),
                                       cmocka_unit_test(many_micro_batches_cost_nothing),
                                       cmocka_unit_test(prices_must_be_times),
                                       cmocka_unit_test(the_trace_of_a_planned_step_has_its_time),
                                       cmocka_unit_test(a_pipeline_takes_the_time_of_its_schedule),
                                       cmocka_unit_test(chunks_of_other_sizes_have_their_times)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
