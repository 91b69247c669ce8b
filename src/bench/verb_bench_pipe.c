/* axonn bench pipe: times the schedules of a pipeline. Each rank is a stage that sleeps instead of computing:
 * on a machine with fewer cores than stages, computing stages would slow each other down and hide the
 * bubbles (times in which a stage waits for another). The order of tasks and the messages are those of
 * training, because the tasks run in an ax_pipeline of the engine. */
#include "axonn/pipeline.h"
#include "bench/bench.h"
#include "cli/launch.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_SEEDS = 1000, MOST_CASES = 64 };

typedef struct args {
    cli_launch launch;
    int64_t micro_batches, seeds, bytes, chunks;
    double forward, backward, jitter;
    ax_strings schedules;
    ax_ints slack, postpone;
    bool json;
} args;

static const ax_option pipe_options[] = {
    LAUNCH_OPTIONS(args, launch),
    {"micro-batches", AX_OPT_INT, offsetof(args, micro_batches), "32", "[1, 10000]", .meta = "N",
     .help = "number of micro-batches of a step"},
    {"forward", AX_OPT_FLOAT, offsetof(args, forward), "20", "[0.001, 10000]", .meta = "MS",
     .help = "milliseconds that a stage sleeps for the forward pass of a micro-batch"},
    {"backward", AX_OPT_FLOAT, offsetof(args, backward), "40", "[0.001, 10000]", .meta = "MS",
     .help = "milliseconds that a stage sleeps for the backward pass of a micro-batch"},
    {"jitter", AX_OPT_FLOAT, offsetof(args, jitter), "0.5", "[0, 100]", .meta = "X",
     .help = "each forward or backward pass takes longer by up to this fraction of its time, at random: by "
             "seed, stage, micro-batch and direction alone, so all schedules get the same durations"},
    {"bytes", AX_OPT_INT, offsetof(args, bytes), "262144", "[4, 4194304]", .meta = "N",
     .help = "bytes of a message between stages; a multiple of 4"},
    {"schedule", AX_OPT_STRINGS, offsetof(args, schedules), .meta = "NAME",
     .help = "time only these schedules: message, 1f1b, gpipe, interleaved; default: all, but interleaved "
             "only if the number of stages divides --micro-batches"},
    {"slack", AX_OPT_INTS, offsetof(args, slack), "0, 4", "[0, 10000]", .meta = "N,...",
     .help = "values of pipe.slack (further micro-batches in flight) to time; only message and 1f1b use "
             "pipe.slack"},
    {"postpone", AX_OPT_INTS, offsetof(args, postpone), "0", "[0, 10000]", .meta = "N,...",
     .help = "values of pipe.postpone (micro-batches whose weight gradients may wait) to time, each with all "
             "schedules; half of the time --backward is taken to be for weight gradients"},
    {"chunks", AX_OPT_INT, offsetof(args, chunks), "2", "[2, 1000]", .meta = "N",
     .help = "with the schedule interleaved: chunks (virtual stages) per stage; --forward and --backward are "
             "the times of all chunks of a stage together"},
    {"seeds", AX_OPT_INT, offsetof(args, seeds), "5", "[1, 1000]", .meta = "N",
     .help =
         "number of rounds, each with its own seed; in a round all schedules get the same random durations"},
    {"json", AX_OPT_BOOL, offsetof(args, json), "false",
     .help = "print the results as JSON, one object per case"},
};

typedef struct bench {
    ax_comm *world;
    const args *args;
    ax_ctx *ctx;
    ax_model *model[2]; /* [0]: without chunks; [1]: with chunks. The models define the stages and the shape
                           of the messages; their layers never run */
    ax_frame *frame;
    ax_tensor x; /* shape of the input of the first stage's forward and of the last stage's backward, for
                    which no message is received; has no data */
    int64_t seed;
    ax_pipeline *pipeline; /* pipeline of the case that is being timed */
} bench;

typedef struct timed {
    ax_pipe_schedule schedule;
    int chunks;
    int64_t slack, postpone;
    ax_pipeline *pipeline;
    double seconds[MOST_SEEDS];
} timed;

/* ---- one step ------------------------------------------------------------------------------------ */

static void sleep_until(double when)
{
    struct timespec until;
    double left = when - ax_now();
    if (left <= 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + (int64_t)(left * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = ns % 1000000000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

enum { FORWARD, BACKWARD, WEIGHTS };

/* Returns the duration in seconds of a task of a piece. The two halves of a backward, input gradients and
 * weight gradients, have random numbers of their own. So their total time is the same whether weight
 * gradients are postponed or not. */
static double duration(const bench *b, ax_pipe_piece piece, int task)
{
    static const char *const kinds[] = {"forward", "backward", "weights"};
    const int chunks = ax_pipeline_stage(b->pipeline)->chunks;
    uint64_t key = ax_rng_key((uint64_t)b->seed, kinds[task], (uint64_t)ax_comm_rank(b->world));
    double ms = (task == FORWARD ? b->args->forward : b->args->backward / 2) / chunks;
    return ms * 1e-3 * (1 + b->args->jitter * (double)ax_rng_uniform(key, (uint64_t)piece.micro_batch));
}

/* Runs the forward or backward of a piece: receives its input if another chunk computes it, sleeps, and
 * sends the result if another chunk needs it. */
static ax_status compute(bench *b, ax_message_kind kind, ax_pipe_piece piece)
{
    const ax_model *model = b->model[ax_pipeline_stage(b->pipeline)->chunks > 1];
    bool back = kind == AX_MESSAGE_GRADIENT, first = ax_model_begins(model, piece.chunk),
         last = ax_model_ends(model, piece.chunk);
    ax_tensor x;
    AX_TRY(ax_frame_begin(b->frame, back ? "backward" : "forward", AX_MODE_TRAIN, NULL));
    if (back ? last : first)
        AX_TRY(ax_frame_alloc(b->frame, &b->x, &x));
    else
        AX_TRY(ax_pipeline_take(b->pipeline, kind, b->frame, &x));
    double seconds = duration(b, piece, back ? BACKWARD : FORWARD);
    if (back && !ax_pipeline_stage(b->pipeline)->postpone)
        seconds += duration(b, piece, WEIGHTS);
    sleep_until(ax_now() + seconds);
    return (back ? first : last) ? AX_OK : ax_pipeline_send(b->pipeline, kind, b->frame, piece, &x);
}

static ax_status forward(void *user, ax_pipe_piece piece, int slot)
{
    bench *b = user;
    (void)slot;
    return ax_pipeline_is_joint(b->pipeline, piece.chunk) ? AX_OK : compute(b, AX_MESSAGE_ACTIVATION, piece);
}

static ax_status backward(void *user, ax_pipe_piece piece, int slot)
{
    bench *b = user;
    (void)slot;
    if (ax_pipeline_is_joint(b->pipeline, piece.chunk))
        AX_TRY(compute(b, AX_MESSAGE_ACTIVATION, piece));
    return compute(b, AX_MESSAGE_GRADIENT, piece);
}

static ax_status weights(void *user, ax_pipe_piece piece, int slot)
{
    (void)slot;
    sleep_until(ax_now() + duration(user, piece, WEIGHTS));
    return AX_OK;
}

/* Measures the seconds from a barrier until this rank has done its tasks and all messages that it sent have
 * arrived. */
static ax_status run_step(bench *b, timed *t, int64_t seed)
{
    b->pipeline = t->pipeline;
    b->seed = seed;
    AX_TRY(ax_pipeline_begin(b->pipeline, seed, b->args->micro_batches, true));
    AX_TRY(ax_barrier(b->world));
    double begin = ax_now();
    AX_TRY(ax_pipeline_run(
        b->pipeline,
        &(ax_pipeline_tasks){
            .run = {[AX_PIPE_FORWARD] = forward, [AX_PIPE_BACKWARD] = backward, [AX_PIPE_WEIGHTS] = weights},
            .user = b}));
    t->seconds[seed] = ax_now() - begin;
    return AX_OK;
}

/* ---- all cases ----------------------------------------------------------------------------------- */

static double mean(const timed *t, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += t->seconds[i] / (double)n;
    return sum;
}

static ax_status print_case(const bench *b, const timed *t, double base)
{
    const args *a = b->args;
    int stages = ax_comm_size(b->world);
    double seconds = mean(t, a->seeds),
           closed = ((double)a->micro_batches + (stages - 1.0) / t->chunks) * (a->forward + a->backward);
    if (!a->json) {
        printf("%-11s %5lld %8lld %10.1f %10.3f", ax_pipe_schedule_name(t->schedule), (long long)t->slack,
               (long long)t->postpone, seconds * 1e3, seconds * 1e3 / closed);
        printf(base > 0 ? " %8.3f\n" : "        -\n", seconds / base);
        fflush(stdout);
        return AX_OK;
    }
    double sorted[MOST_SEEDS];
    memcpy(sorted, t->seconds, sizeof sorted);
    ax_spread s = ax_spread_of(sorted, a->seeds);
    return cli_print_json(json_pack(
        "{s:s, s:i, s:I, s:i, s:f, s:f, s:f, s:f, s:s, s:I, s:i, s:I, s:f, s:f, s:s}", "case",
        ax_pipe_schedule_name(t->schedule), "slack", (int)t->slack, "postpone", (json_int_t)t->postpone,
        "chunks", t->chunks, "median", s.median * 1e3, "min", s.min * 1e3, "max", s.max * 1e3, "mean",
        seconds * 1e3, "unit", "ms", "runs", (json_int_t)a->seeds, "stages", stages, "micro_batches",
        (json_int_t)a->micro_batches, "over_closed_form", seconds * 1e3 / closed, "over_1f1b",
        base > 0 ? seconds / base : 0.0, "version", ax_version()));
}

static bool is_named(const args *a, int schedule)
{
    for (size_t i = 0; i < a->schedules.count; i++)
        if (!strcmp(a->schedules.items[i], ax_pipe_schedule_name(schedule)))
            return true;
    return false;
}

static bool wanted(const args *a, int schedule, int stages)
{
    return a->schedules.count ? is_named(a, schedule)
                              : ax_pipe_fits((ax_pipe_schedule)schedule, stages, a->micro_batches);
}

static int list_cases(const args *a, int stages, timed *cases)
{
    int n = 0;
    for (int s = 0; s < AX_PIPE_SCHEDULES; s++) {
        bool slack = s == AX_PIPE_MESSAGE || s == AX_PIPE_1F1B;
        size_t count = (slack ? a->slack.count : 1) * a->postpone.count;
        for (size_t i = 0; i < count && wanted(a, s, stages); i++)
            cases[n++] = (timed){.schedule = (ax_pipe_schedule)s,
                                 .chunks = s == AX_PIPE_INTERLEAVED ? (int)a->chunks : 1,
                                 .slack = slack ? a->slack.items[i / a->postpone.count] : 0,
                                 .postpone = a->postpone.items[i % a->postpone.count]};
    }
    return n;
}

/* Sets the context's pipeline settings to those of the case to time. A model that was created before keeps
 * its cut into stages. */
static void set_case(bench *b, ax_pipe_schedule schedule, int64_t slack, int64_t postpone)
{
    b->ctx->parallel.pipe = (ax_pipe_settings){
        .schedule = schedule, .chunks = (int)b->args->chunks, .slack = slack, .postpone = postpone};
}

static ax_status make_pipeline(bench *b, timed *t)
{
    set_case(b, t->schedule, t->slack, t->postpone);
    return ax_pipeline_create(b->model[t->chunks > 1], 1, 1, b->args->micro_batches, true, &t->pipeline);
}

static ax_status run_cases(bench *b, timed *cases)
{
    const args *a = b->args;
    int n = list_cases(a, ax_comm_size(b->world), cases);
    double base =
        0; /* mean seconds of a step with schedule 1f1b, slack 0 and postpone 0; 0: this case is not timed */
    for (int i = 0; i < n; i++)
        AX_TRY(make_pipeline(b, &cases[i]));
    for (int64_t seed = 0; seed < a->seeds; seed++)
        for (int i = 0; i < n; i++)
            AX_TRY(run_step(b, &cases[i], seed));
    for (int i = 0; i < n; i++) {
        ax_work *work;
        AX_TRY(ax_all_reduce(b->world, NULL, cases[i].seconds, a->seeds, AX_F64, AX_MAX, &work));
        AX_TRY(ax_wait(&work));
        if (cases[i].schedule == AX_PIPE_1F1B && !cases[i].slack && !cases[i].postpone)
            base = mean(&cases[i], a->seeds);
    }
    if (ax_comm_rank(b->world) != 0)
        return AX_OK;
    if (!a->json)
        printf("%d stages, %lld micro-batches, forward %g ms, backward %g ms, each up to %g longer; means of "
               "%lld "
               "seeds\n\nschedule    slack postpone    time/ms  of (M+P-1)  of 1f1b\n",
               ax_comm_size(b->world), (long long)a->micro_batches, a->forward, a->backward, a->jitter,
               (long long)a->seeds);
    for (int i = 0; i < n; i++)
        AX_TRY(print_case(b, &cases[i], base));
    return AX_OK;
}

/* Creates a model with one transformer block for each chunk of each stage. The activation of one position
 * has as many bytes as a message between stages. The parameters get no memory. */
static ax_status make_model(bench *b, ax_pipe_schedule schedule, ax_model **out)
{
    const int64_t chunks = schedule == AX_PIPE_INTERLEAVED ? b->args->chunks : 1;
    ax_model_config config = {.layers = ax_comm_size(b->world) * chunks,
                              .hidden = ax_ceil_div(b->args->bytes, (int64_t)sizeof(float)),
                              .heads = 1,
                              .kv_heads = 1,
                              .ffn = 1,
                              .vocab = 1,
                              .seq_len = 1};
    AX_TRY(ax_family_find("gpt2", &config.family));
    set_case(b, schedule, 0, 0);
    return ax_model_create(b->ctx, &config, &(ax_model_use){.recompute = 0}, out);
}

/* Creates the context, the models from which the pipelines are made, and the frame (ax_frame, the memory of
 * activations). */
static ax_status prepare(bench *b)
{
    const int stages = ax_comm_size(b->world);
    AX_TRY(ax_ctx_create(b->world, (ax_grid_size){.of = {[AX_PIPE] = stages}}, "cpu", 1, AX_F32, 0, &b->ctx));
    AX_TRY(make_model(b, AX_PIPE_MESSAGE, &b->model[0]));
    if (wanted(b->args, AX_PIPE_INTERLEAVED, stages))
        AX_TRY(make_model(b, AX_PIPE_INTERLEAVED, &b->model[1]));
    ax_layout layout = ax_activation_layout(b->ctx, AX_ROLE_MODEL);
    b->x = ax_tensor_make(AX_F32, 3, (int64_t[]){1, 1, b->model[0]->config.hidden}, NULL, &layout);
    return ax_frame_create(b->ctx, (size_t)ax_round_up(ax_tensor_bytes(b->ctx->grid, &b->x), 4096) * 2,
                           &b->frame);
}

static void clean_up(bench *b, timed *cases)
{
    for (int i = 0; cases && i < MOST_CASES; i++)
        ax_pipeline_destroy(&cases[i].pipeline);
    free(cases);
    ax_frame_destroy(&b->frame);
    ax_model_destroy(&b->model[0]);
    ax_model_destroy(&b->model[1]);
    ax_ctx_destroy(&b->ctx);
}

static ax_status check(const args *a, int stages)
{
    for (size_t i = 0; i < a->schedules.count; i++) {
        bool known = false;
        for (int s = 0; s < AX_PIPE_SCHEDULES; s++)
            known = known || !strcmp(a->schedules.items[i], ax_pipe_schedule_name(s));
        AX_CHECK(known, AX_ERR_USAGE,
                 "--schedule: none is named \"%s\"; there are message, 1f1b, gpipe and interleaved",
                 a->schedules.items[i]);
    }
    size_t most = AX_PIPE_SCHEDULES * a->slack.count * a->postpone.count;
    AX_CHECK(
        most <= MOST_CASES, AX_ERR_USAGE,
        "%zu values of --slack and %zu of --postpone are up to %zu cases, but the maximum is %d: name fewer",
        a->slack.count, a->postpone.count, most, MOST_CASES);
    AX_CHECK(stages > 1, AX_ERR_USAGE, "a pipeline needs at least two ranks: axonn bench pipe --ranks 8");
    AX_CHECK(!wanted(a, AX_PIPE_INTERLEAVED, stages) || stages * a->chunks <= AX_LAYERS_MAX, AX_ERR_USAGE,
             "%d stages of %lld chunks are %lld chunks, but the maximum is %d: choose a smaller --chunks",
             stages, (long long)a->chunks, (long long)(stages * a->chunks), AX_LAYERS_MAX);
    AX_CHECK(
        !is_named(a, AX_PIPE_INTERLEAVED) || ax_pipe_fits(AX_PIPE_INTERLEAVED, stages, a->micro_batches),
        AX_ERR_USAGE,
        "interleaved needs a number of micro-batches that is a multiple of the %d stages, not %lld: change "
        "--micro-batches, or name other schedules with --schedule",
        stages, (long long)a->micro_batches);
    return AX_OK;
}

static ax_status run_pipe(const void *raw)
{
    bench b = {.args = raw};
    timed *cases = NULL;
    AX_TRY(cli_world_open(&b.world));
    ax_status status = check(b.args, ax_comm_size(b.world));
    if (status == AX_OK)
        status = prepare(&b);
    if (status == AX_OK)
        status = ax_calloc(MOST_CASES, sizeof *cases, &cases);
    if (status == AX_OK)
        status = run_cases(&b, cases);
    cli_world_abort_unshared(b.world, status);
    clean_up(&b, cases);
    return cli_world_close(&b.world, status);
}

const cli_verb verb_bench_pipe = {
    .name = "bench pipe",
    .summary = "time the schedules of a pipeline whose stages sleep instead of computing",
    .details =
        "Each rank is a stage. Times are those of the slowest rank, for one step.\n"
        "  of (M+P-1)  the time, divided by the ideal time: M micro-batches on P stages without jitter and\n"
        "              transfers; with N chunks the ideal is (M + (P-1)/N) times forward + backward\n"
        "  of 1f1b     the time, divided by the time of 1f1b without slack and postponing",
    .examples = "axonn bench pipe --ranks 8\n"
                "axonn bench pipe --ranks 4 --jitter 0 --micro-batches 16 --seeds 1 --json",
    .options = pipe_options,
    .option_count = AX_COUNT(pipe_options),
    .args_size = sizeof(args),
    .run = run_pipe,
    .launches = true,
};
