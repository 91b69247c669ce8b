/* axonn bench pipe: times the schedules of a pipeline. Each rank is a stage that sleeps instead of computing:
 * on a machine with fewer cores than stages, computing stages would slow each other down and hide the
 * bubbles (times in which a stage waits for another). The order of tasks and the messages are those of
 * training, because the tasks run in an ax_pipeline of the engine. With --elements the end of a step follows
 * (bench_update), which is no sleep. */
#include "axonn/machine.h"
#include "axonn/pipeline.h"
#include "bench/bench.h"
#include "cli/launch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEEDS = 1000, MOST_CASES = 64 };

typedef struct args {
    cli_launch launch;
    int64_t replicas, micro_batches, seeds, bytes, chunks, elements, bucket;
    double forward, backward, jitter;
    ax_strings schedules;
    ax_ints slack, postpone, chunk;
    int offload, update; /* ax_offload_place, ax_offload_update */
    char *dir, *machine;
    bool json;
} args;

static const ax_option pipe_options[] = {
    LAUNCH_OPTIONS(args, launch),
    {"replicas", AX_OPT_INT, offsetof(args, replicas), "1", "[1, 65536]", .meta = "N",
     .help = "number of replicas of the pipeline (grid.data); the ranks are stages times replicas"},
    {"micro-batches", AX_OPT_INT, offsetof(args, micro_batches), "32", "[1, 10000]", .meta = "N",
     .help = "number of micro-batches of a step, divided among the replicas: a multiple of --replicas"},
    {"forward", AX_OPT_FLOAT, offsetof(args, forward), "20", "[0.001, 10000]", .meta = "MS",
     .help = "milliseconds that a stage sleeps for the forward pass of a micro-batch"},
    {"backward", AX_OPT_FLOAT, offsetof(args, backward), "40", "[0.001, 10000]", .meta = "MS",
     .help = "milliseconds that a stage sleeps for the backward pass of a micro-batch"},
    {"jitter", AX_OPT_FLOAT, offsetof(args, jitter), "0.5", "[0, 100]", .meta = "X",
     .help = "each forward or backward pass takes longer by up to this fraction of its time, at random: by "
             "seed, rank, micro-batch and direction alone, so all schedules get the same durations"},
    {"bytes", AX_OPT_INT, offsetof(args, bytes), "262144", "[4, 4194304]", .meta = "N",
     .help = "bytes of a message between stages; a multiple of 4"},
    {"schedule", AX_OPT_STRINGS, offsetof(args, schedules), .meta = "NAME",
     .help = "time only these schedules: message, 1f1b, gpipe, interleaved; default: all, but interleaved "
             "only if the number of stages divides the micro-batches of a replica"},
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
    {"elements", AX_OPT_INT, offsetof(args, elements), "0", "[0, 4294967296]", .meta = "N",
     .help =
         "elements of the matrices of each stage, in bf16, rounded up to rows of 1024: after its pipeline a "
         "step reduces their gradients over the replicas and updates them by AdamW, without clipping; 0: a "
         "step has neither"},
    {"offload", AX_OPT_ENUM, offsetof(args, offload), "none", .choices = "none|host|file",
     .help = "with --elements: where the state of the matrices lies (offload.optimizer)"},
    {"update", AX_OPT_ENUM, offsetof(args, update), "auto", .choices = "auto|device|host",
     .help = "what updates offloaded state (offload.update): the device, through buckets, or the host; the "
             "device of this verb computes in host memory, so auto is host"},
    {"bucket", AX_OPT_INT, offsetof(args, bucket), "4194304", "[1, 1152921504606846976]", .meta = "N",
     .help = "elements of a bucket of offloaded state (offload.bucket)"},
    {"chunk", AX_OPT_INTS, offsetof(args, chunk), "0", "[0, 1000000000]", .meta = "N,...",
     .help =
         "values of offload.chunk (buckets whose gradients are reduced while those before are updated) to "
         "time, each with all schedules and with matrices of its own"},
    {"dir", AX_OPT_PATH, offsetof(args, dir), ".", .meta = "DIR",
     .help = "with --offload file: directory of the file (offload.dir)"},
    {"machine", AX_OPT_PATH, offsetof(args, machine), .meta = "NAME|FILE",
     .help = "description of the machine whose messages are planned with: also print the time that the "
             "simulator of schedules, which axonn plan uses, says for the pipeline"},
    {"json", AX_OPT_BOOL, offsetof(args, json), "false",
     .help = "print the results as JSON, one object per case"},
};

/* The end of a step with one value of --chunk, and the seconds of its two parts by themselves. */
typedef struct ending {
    int64_t chunk;
    bench_update update;
    double reduction[MOST_SEEDS], alone[MOST_SEEDS];
} ending;

typedef struct timed {
    ax_pipe_schedule schedule;
    int chunks;
    int64_t slack, postpone;
    ending *end; /* NULL: without --elements */
    ax_pipeline *pipeline;
    double seconds[MOST_SEEDS], step[MOST_SEEDS]; /* of the pipeline, and of the step with its end */
    double planned; /* seconds of the pipeline on --machine, mean over the seeds; 0: there is none */
} timed;

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
    ending *ends;          /* [args->chunk.count], or NULL without --elements */
} bench;

/* ---- one step ------------------------------------------------------------------------------------ */

enum { FORWARD, BACKWARD, WEIGHTS };

/* Returns the duration in seconds of a task of a piece on a rank whose stage has this many chunks. The two
 * halves of a backward, input gradients and weight gradients, have random numbers of their own. So their
 * total time is the same whether weight gradients are postponed or not. */
static double duration_on(const bench *b, int rank, int chunks, ax_pipe_piece piece, int task)
{
    static const char *const kinds[] = {"forward", "backward", "weights"};
    uint64_t key = ax_rng_key((uint64_t)b->seed, kinds[task], (uint64_t)rank);
    double ms = (task == FORWARD ? b->args->forward : b->args->backward / 2) / chunks;
    return ms * 1e-3 * (1 + b->args->jitter * (double)ax_rng_uniform(key, (uint64_t)piece.micro_batch));
}

static double duration(const bench *b, ax_pipe_piece piece, int task)
{
    return duration_on(b, ax_comm_rank(b->world), ax_pipeline_stage(b->pipeline)->chunks, piece, task);
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
    bench_sleep_until(ax_now() + seconds);
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
    bench_sleep_until(ax_now() + duration(user, piece, WEIGHTS));
    return AX_OK;
}

static int stages_of(const bench *b) { return ax_grid_axis_size(b->ctx->grid, AX_PIPE); }

/* Returns the number of micro-batches of a replica. */
static int64_t micro_batches(const args *a) { return a->micro_batches / a->replicas; }

/* Measures the seconds from a barrier until this rank has done its tasks and all messages that it sent have
 * arrived, and the seconds until the end of the step. */
static ax_status run_step(bench *b, timed *t, int64_t seed)
{
    b->pipeline = t->pipeline;
    b->seed = seed;
    if (t->end)
        AX_TRY(bench_update_begin(&t->end->update, b->frame));
    AX_TRY(ax_pipeline_begin(b->pipeline, seed, micro_batches(b->args), true));
    AX_TRY(ax_barrier(b->world));
    double begin = ax_now();
    AX_TRY(ax_pipeline_run(
        b->pipeline,
        &(ax_pipeline_tasks){
            .run = {[AX_PIPE_FORWARD] = forward, [AX_PIPE_BACKWARD] = backward, [AX_PIPE_WEIGHTS] = weights},
            .user = b}));
    t->seconds[seed] = ax_now() - begin;
    if (t->end)
        AX_TRY(bench_update_end(&t->end->update));
    t->step[seed] = ax_now() - begin;
    return AX_OK;
}

/* ---- cases --------------------------------------------------------------------------------------- */

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
                              : ax_pipe_fits((ax_pipe_schedule)schedule, stages, micro_batches(a));
}

static bool uses_slack(int schedule) { return schedule == AX_PIPE_MESSAGE || schedule == AX_PIPE_1F1B; }

/* Returns how many cases a schedule has. */
static size_t cases_of(const args *a, int schedule)
{
    return (uses_slack(schedule) ? a->slack.count : 1) * a->postpone.count * a->chunk.count;
}

static int list_cases(const bench *b, timed *cases)
{
    const args *a = b->args;
    int n = 0;
    for (int s = 0; s < AX_PIPE_SCHEDULES; s++)
        for (size_t i = 0; i < cases_of(a, s) && wanted(a, s, stages_of(b)); i++) {
            size_t j = i / a->chunk.count, k = j / a->postpone.count;
            cases[n++] = (timed){.schedule = (ax_pipe_schedule)s,
                                 .chunks = s == AX_PIPE_INTERLEAVED ? (int)a->chunks : 1,
                                 .slack = uses_slack(s) ? a->slack.items[k] : 0,
                                 .postpone = a->postpone.items[j % a->postpone.count],
                                 .end = b->ends ? &b->ends[i % a->chunk.count] : NULL};
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
    return ax_pipeline_create(b->model[t->chunks > 1], b->args->replicas, 1, micro_batches(b->args), true,
                              &t->pipeline);
}

/* Makes the ends of a step, and ends a step with each of them: the first one takes longer. The matrices keep
 * the value of offload.chunk that the context has meanwhile. */
static ax_status make_ends(bench *b)
{
    const args *a = b->args;
    AX_TRY(ax_calloc(a->chunk.count, sizeof *b->ends, &b->ends));
    for (size_t i = 0; i < a->chunk.count; i++) {
        ending *e = &b->ends[i];
        e->chunk = b->ctx->parallel.offload.chunk = a->chunk.items[i];
        AX_TRY(bench_update_make(b->ctx, a->elements, &e->update));
        AX_TRY(bench_update_begin(&e->update, b->frame));
        AX_TRY(bench_update_end(&e->update));
    }
    return AX_OK;
}

/* ---- rounds -------------------------------------------------------------------------------------- */

static ax_status run_round(bench *b, timed *cases, int n, int64_t seed)
{
    for (int i = 0; i < n; i++)
        AX_TRY(run_step(b, &cases[i], seed));
    for (size_t i = 0; b->ends && i < b->args->chunk.count; i++) {
        ending *e = &b->ends[i];
        AX_TRY(bench_update_time_parts(&e->update, b->frame, &e->reduction[seed], &e->alone[seed]));
    }
    return AX_OK;
}

/* Makes measurements those of the slowest rank. */
static ax_status find_slowest(const bench *b, double *seconds)
{
    ax_work *work;
    AX_TRY(ax_all_reduce(b->world, NULL, seconds, b->args->seeds, AX_F64, AX_MAX, &work));
    return ax_wait(&work);
}

static ax_status find_all_slowest(const bench *b, timed *cases, int n)
{
    for (int i = 0; i < n; i++) {
        AX_TRY(find_slowest(b, cases[i].seconds));
        AX_TRY(find_slowest(b, cases[i].step));
    }
    for (size_t i = 0; b->ends && i < b->args->chunk.count; i++) {
        AX_TRY(find_slowest(b, b->ends[i].reduction));
        AX_TRY(find_slowest(b, b->ends[i].alone));
    }
    return AX_OK;
}

/* ---- planning ------------------------------------------------------------------------------------ */

typedef struct planning {
    const bench *bench;
    const ax_machine *machine;
    ax_status status;
} planning;

/* With one replica, ranks are stages. */
static double plan_task(void *user, const ax_pipe_stage *stage, ax_pipe_task task, ax_pipe_piece piece,
                        const ax_pipe_counts *done)
{
    static const int kinds[] = {
        [AX_PIPE_FORWARD] = FORWARD, [AX_PIPE_BACKWARD] = BACKWARD, [AX_PIPE_WEIGHTS] = WEIGHTS};
    const bench *b = ((const planning *)user)->bench;
    (void)done;
    double seconds = duration_on(b, stage->stage, stage->chunks, piece, kinds[task]);
    if (task == AX_PIPE_BACKWARD && !stage->postpone)
        seconds += duration_on(b, stage->stage, stage->chunks, piece, WEIGHTS);
    return seconds;
}

/* Stages that sleep do not delay messages. */
static double plan_message(void *user, int stage, bool gradient)
{
    planning *p = user;
    const int stages = stages_of(p->bench), to = (stage + (gradient ? stages - 1 : 1)) % stages;
    const int64_t node = p->machine->ranks_per_node;
    const ax_machine_carrier carrier = stage / node == to / node ? AX_MACHINE_NODE : AX_MACHINE_NETWORK;
    double seconds = 0;
    const ax_status status =
        ax_machine_message_seconds(p->machine, (double)p->bench->args->bytes, carrier, false, &seconds);
    p->status = p->status == AX_OK ? status : p->status;
    return seconds;
}

/* Runs the schedule of a case in the simulator, with the durations of each seed. */
static ax_status plan_case(bench *b, const ax_machine *machine, timed *t)
{
    planning p = {b, machine, AX_OK};
    const ax_pipe_times times = {plan_task, plan_message, &p};
    const ax_pipe_settings settings = {
        .schedule = t->schedule, .chunks = t->chunks, .slack = t->slack, .postpone = t->postpone};
    const int stages = stages_of(b);
    double *ends;
    AX_TRY(ax_calloc((size_t)stages, sizeof *ends, &ends));
    ax_status status = AX_OK;
    for (b->seed = 0; b->seed < b->args->seeds && status == AX_OK; b->seed++) {
        double last = 0;
        status = ax_pipe_simulate(&settings, stages, micro_batches(b->args), &times, ends);
        for (int s = 0; s < stages && status == AX_OK; s++)
            last = fmax(last, ends[s]);
        t->planned += last / (double)b->args->seeds;
    }
    free(ends);
    return status == AX_OK ? p.status : status;
}

static ax_status plan_cases(bench *b, timed *cases, int n)
{
    ax_machine *machine;
    AX_TRY(ax_machine_open(b->args->machine, &machine));
    ax_status status = ax_machine_check_ranks(machine, ax_comm_size(b->world));
    for (int i = 0; i < n && status == AX_OK; i++)
        status = plan_case(b, machine, &cases[i]);
    ax_machine_close(&machine);
    return status;
}

/* ---- output -------------------------------------------------------------------------------------- */

static double mean(const timed *t, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += t->seconds[i] / (double)n;
    return sum;
}

/* Summarizes n measurements in milliseconds, and leaves them as they are. */
static ax_spread spread_of(const double *seconds, int64_t n)
{
    double ms[MOST_SEEDS];
    for (int64_t i = 0; i < n; i++)
        ms[i] = seconds[i] * 1e3;
    return ax_spread_of(ms, n);
}

/* The times of a step with its end: of all of it, of its pipeline, of the rest; and of the two parts of this
 * rest by themselves. */
enum { STEP, PIPELINE, REST, REDUCTION, UPDATE, TIMES, TIME_WIDTH = 22 };
static const char *const time_names[TIMES] = {"step", "pipeline", "rest", "reduction_alone", "update_alone"},
                         *const time_heads[TIMES] = {"step", "pipeline", "reduction and update",
                                                     "reduction alone", "update alone"};

static const char *const updates[] = {"auto", "device", "host"};

static void summarize(const timed *t, int64_t n, ax_spread out[TIMES])
{
    double rest[MOST_SEEDS];
    for (int64_t i = 0; i < n; i++)
        rest[i] = t->step[i] - t->seconds[i];
    const double *const seconds[TIMES] = {t->step, t->seconds, rest, t->end->reduction, t->end->alone};
    for (int i = 0; i < TIMES; i++)
        out[i] = spread_of(seconds[i], n);
}

static json_t *pack_end(const bench *b, const timed *t)
{
    const ax_offload *by = &b->ctx->parallel.offload;
    ax_spread spread[TIMES];
    json_t *out = json_pack("{s:I, s:s, s:s, s:I, s:I}", "elements", (json_int_t)t->end->update.elements,
                            "offload", ax_offload_place_name(by->optimizer), "update", updates[by->update],
                            "bucket", (json_int_t)by->bucket, "chunk", (json_int_t)t->end->chunk);
    summarize(t, b->args->seeds, spread);
    for (int i = 0; i < TIMES; i++)
        json_object_set_new(out, time_names[i],
                            json_pack("{s:f, s:f, s:f}", "median", spread[i].median, "min", spread[i].min,
                                      "max", spread[i].max));
    return out;
}

static ax_status print_json(const bench *b, const timed *t, double base, double over)
{
    const args *a = b->args;
    ax_spread s = spread_of(t->seconds, a->seeds);
    json_t *out = json_pack(
        "{s:s, s:i, s:I, s:i, s:f, s:f, s:f, s:f, s:s, s:I, s:i, s:i, s:I, s:f, s:f, s:s}", "case",
        ax_pipe_schedule_name(t->schedule), "slack", (int)t->slack, "postpone", (json_int_t)t->postpone,
        "chunks", t->chunks, "median", s.median, "min", s.min, "max", s.max, "mean", s.mean, "unit", "ms",
        "runs", (json_int_t)a->seeds, "stages", stages_of(b), "replicas", (int)a->replicas, "micro_batches",
        (json_int_t)a->micro_batches, "over_closed_form", over, "over_1f1b",
        base > 0 ? mean(t, a->seeds) / base : 0.0, "version", ax_version());
    if (t->end)
        json_object_set_new(out, "end", pack_end(b, t));
    if (a->machine)
        json_object_set_new(out, "planned", json_real(t->planned * 1e3));
    return cli_print_json(out);
}

static void print_row(const bench *b, const timed *t, double base, double over)
{
    ax_spread spread[TIMES];
    printf("%-11s %5lld %8lld", ax_pipe_schedule_name(t->schedule), (long long)t->slack,
           (long long)t->postpone);
    if (t->end) {
        printf(" %5lld", (long long)t->end->chunk);
        summarize(t, b->args->seeds, spread);
        for (int i = 0; i < TIMES; i++) {
            char text[64];
            snprintf(text, sizeof text, "%.1f [%.1f, %.1f]", spread[i].median, spread[i].min, spread[i].max);
            printf("  %-*s", TIME_WIDTH, text);
        }
        printf("\n");
    } else {
        double seconds = mean(t, b->args->seeds);
        printf(" %10.1f %10.3f", seconds * 1e3, over);
        printf(base > 0 ? " %8.3f" : "        -", seconds / base);
        if (b->args->machine)
            printf(" %10.1f %+6.1f %%", t->planned * 1e3, 100 * (t->planned / seconds - 1));
        printf("\n");
    }
    fflush(stdout);
}

static ax_status print_case(const bench *b, const timed *t, double base)
{
    const args *a = b->args;
    double closed =
               ((double)micro_batches(a) + (stages_of(b) - 1.0) / t->chunks) * (a->forward + a->backward),
           over = mean(t, a->seeds) * 1e3 / closed;
    if (a->json)
        return print_json(b, t, base, over);
    print_row(b, t, base, over);
    return AX_OK;
}

static void print_head(const bench *b)
{
    const args *a = b->args;
    printf("%d stages, %lld replicas, %lld micro-batches, forward %g ms, backward %g ms, each up to %g "
           "longer; ",
           stages_of(b), (long long)a->replicas, (long long)a->micro_batches, a->forward, a->backward,
           a->jitter);
    if (!b->ends) {
        printf("means of %lld seeds\n\nschedule    slack postpone    time/ms  of (M+P-1)  of 1f1b%s\n",
               (long long)a->seeds, a->machine ? "    planned    error" : "");
        return;
    }
    const ax_offload *by = &b->ctx->parallel.offload;
    printf("%lld elements on each rank, offload %s", (long long)b->ends->update.elements,
           ax_offload_place_name(by->optimizer));
    if (by->optimizer)
        printf(", update %s, buckets of %lld", updates[by->update], (long long)by->bucket);
    printf("; milliseconds, medians of %lld seeds [least, most]\n\nschedule    slack postpone chunk",
           (long long)a->seeds);
    for (int i = 0; i < TIMES; i++)
        printf("  %-*s", TIME_WIDTH, time_heads[i]);
    printf("\n");
}

static ax_status print_cases(const bench *b, const timed *cases, int n)
{
    double base =
        0; /* mean seconds of a step with schedule 1f1b, slack 0 and postpone 0; 0: this case is not timed */
    for (int i = 0; i < n && base == 0; i++)
        if (cases[i].schedule == AX_PIPE_1F1B && !cases[i].slack && !cases[i].postpone)
            base = mean(&cases[i], b->args->seeds);
    if (!b->args->json)
        print_head(b);
    for (int i = 0; i < n; i++)
        AX_TRY(print_case(b, &cases[i], base));
    return AX_OK;
}

/* ---- all cases ----------------------------------------------------------------------------------- */

static ax_status run_cases(bench *b, timed *cases)
{
    const args *a = b->args;
    if (a->elements)
        AX_TRY(make_ends(b));
    int n = list_cases(b, cases);
    for (int i = 0; i < n; i++)
        AX_TRY(make_pipeline(b, &cases[i]));
    for (int64_t seed = 0; seed < a->seeds; seed++)
        AX_TRY(run_round(b, cases, n, seed));
    AX_TRY(find_all_slowest(b, cases, n));
    if (a->machine && ax_comm_rank(b->world) == 0)
        AX_TRY(plan_cases(b, cases, n));
    return ax_comm_rank(b->world) == 0 ? print_cases(b, cases, n) : AX_OK;
}

/* Creates a model with one transformer block for each chunk of each stage. The activation of one position
 * has as many bytes as a message between stages. The parameters get no memory. */
static ax_status make_model(bench *b, ax_pipe_schedule schedule, ax_model **out)
{
    const int64_t chunks = schedule == AX_PIPE_INTERLEAVED ? b->args->chunks : 1;
    ax_model_config config = {.layers = stages_of(b) * chunks,
                              .hidden = b->args->bytes / (int64_t)ax_dtype_size(b->ctx->compute),
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
    const args *a = b->args;
    const int stages = ax_comm_size(b->world) / (int)a->replicas;
    const ax_grid_size grid = {.of = {[AX_PIPE] = stages, [AX_DATA] = (int)a->replicas}};
    AX_TRY(ax_ctx_create(b->world, grid, "cpu", 1, AX_BF16, 0, &b->ctx));
    b->ctx->parallel.offload = (ax_offload){.optimizer = (ax_offload_place)a->offload,
                                            .update = (ax_offload_update)a->update,
                                            .bucket = a->bucket,
                                            .dir = a->dir};
    AX_TRY(ax_offload_resolve("cpu", &b->ctx->parallel.offload));
    AX_TRY(make_model(b, AX_PIPE_MESSAGE, &b->model[0]));
    if (wanted(a, AX_PIPE_INTERLEAVED, stages))
        AX_TRY(make_model(b, AX_PIPE_INTERLEAVED, &b->model[1]));
    ax_layout layout = ax_activation_layout(b->ctx, AX_ROLE_MODEL);
    b->x = ax_tensor_make(b->ctx->compute, 3, (int64_t[]){a->replicas, 1, b->model[0]->config.hidden}, NULL,
                          &layout);
    return ax_frame_create(b->ctx, (size_t)ax_round_up(ax_tensor_bytes(b->ctx->grid, &b->x), 4096) * 2,
                           &b->frame);
}

static void clean_up(bench *b, timed *cases)
{
    for (int i = 0; cases && i < MOST_CASES; i++)
        ax_pipeline_destroy(&cases[i].pipeline);
    free(cases);
    ax_frame_destroy(&b->frame);
    for (size_t i = 0; b->ends && i < b->args->chunk.count; i++)
        bench_update_fini(&b->ends[i].update);
    free(b->ends);
    ax_model_destroy(&b->model[0]);
    ax_model_destroy(&b->model[1]);
    ax_ctx_destroy(&b->ctx);
}

static ax_status check_schedules(const args *a, int stages)
{
    for (size_t i = 0; i < a->schedules.count; i++) {
        bool known = false;
        for (int s = 0; s < AX_PIPE_SCHEDULES; s++)
            known = known || !strcmp(a->schedules.items[i], ax_pipe_schedule_name(s));
        AX_CHECK(known, AX_ERR_USAGE,
                 "--schedule: none is named \"%s\"; there are message, 1f1b, gpipe and interleaved",
                 a->schedules.items[i]);
    }
    AX_CHECK(!wanted(a, AX_PIPE_INTERLEAVED, stages) || stages * a->chunks <= AX_LAYERS_MAX, AX_ERR_USAGE,
             "%d stages of %lld chunks are %lld chunks, but the maximum is %d: choose a smaller --chunks",
             stages, (long long)a->chunks, (long long)(stages * a->chunks), AX_LAYERS_MAX);
    AX_CHECK(
        !is_named(a, AX_PIPE_INTERLEAVED) || ax_pipe_fits(AX_PIPE_INTERLEAVED, stages, micro_batches(a)),
        AX_ERR_USAGE,
        "interleaved needs a number of micro-batches that is a multiple of the %d stages, not %lld: change "
        "--micro-batches, or name other schedules with --schedule",
        stages, (long long)micro_batches(a));
    return AX_OK;
}

static ax_status check(const args *a, int ranks)
{
    AX_CHECK(ranks % a->replicas == 0, AX_ERR_USAGE,
             "%d ranks cannot be %lld replicas of a pipeline: choose --ranks as stages times --replicas",
             ranks, (long long)a->replicas);
    AX_CHECK(
        a->micro_batches % a->replicas == 0, AX_ERR_USAGE,
        "%lld micro-batches cannot be divided among %lld replicas: choose a multiple with --micro-batches",
        (long long)a->micro_batches, (long long)a->replicas);
    AX_CHECK(ranks > a->replicas, AX_ERR_USAGE,
             "a pipeline needs at least two stages: axonn bench pipe --ranks %lld",
             (long long)(8 * a->replicas));
    AX_CHECK(!a->machine || (a->replicas == 1 && !a->elements), AX_ERR_USAGE,
             "--machine plans the tasks of one pipeline: leave out --replicas and --elements, or --machine");
    AX_CHECK(a->elements || (!a->offload && a->chunk.count == 1 && !a->chunk.items[0]), AX_ERR_USAGE,
             "--offload and --chunk have no effect without matrices to update: give --elements N");
    size_t most = 0;
    for (int s = 0; s < AX_PIPE_SCHEDULES; s++)
        most += cases_of(a, s);
    AX_CHECK(
        most <= MOST_CASES, AX_ERR_USAGE,
        "%zu values of --slack, %zu of --postpone and %zu of --chunk are up to %zu cases, but the maximum "
        "is %d: name fewer",
        a->slack.count, a->postpone.count, a->chunk.count, most, MOST_CASES);
    return check_schedules(a, ranks / (int)a->replicas);
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
        "Each rank is a stage of a replica. Times are those of the slowest rank, for one step.\n"
        "  of (M+P-1)  the time, divided by the ideal time: M micro-batches of a replica on P stages,\n"
        "              without jitter and transfers; with N chunks the ideal is (M + (P-1)/N) times\n"
        "              forward + backward\n"
        "  of 1f1b     the time, divided by the time of 1f1b without slack and postponing\n"
        "With --elements the end of a step is no sleep, and these are the times:\n"
        "  step                  all of it\n"
        "  pipeline              until the slowest rank has run its tasks\n"
        "  reduction and update  what is left of the step, the norm of the gradient included\n"
        "  reduction alone, update alone\n"
        "                        each by itself, from when all ranks are ready, once in each round\n"
        "The best value of --chunk has the shortest step. To trade stages for replicas, compare --ranks 8\n"
        "--elements N with --ranks 8 --replicas 4 --elements 4N: a stage then has four times the matrices,\n"
        "and --forward and --backward are four times as long.\n"
        "With --machine FILE (axonn bench comm --collective message --save FILE, on the same ranks) the\n"
        "times that are planned are printed beside.",
    .examples =
        "axonn bench pipe --ranks 8\n"
        "axonn bench pipe --ranks 4 --jitter 0 --micro-batches 16 --seeds 1 --json\n"
        "axonn bench pipe --ranks 8 --replicas 4 --micro-batches 16 --elements 4000000 --offload host \\\n"
        "    --update device --bucket 262144 --chunk 0,1,4 --schedule 1f1b --slack 0",
    .options = pipe_options,
    .option_count = AX_COUNT(pipe_options),
    .args_size = sizeof(args),
    .run = run_pipe,
    .launches = true,
};
