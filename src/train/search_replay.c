/* The time and memory of a candidate of the search: replays of the ranks of stages that differ.
 *
 * A stage is known by its place (first, last, between), by the blocks of its chunks, and by whether its
 * messages leave the node. If blocks are alike, everything that is found of a stage is a fixed part and a
 * part of each block; so stages with two and with three blocks in each chunk give the others. */
#include "engine/costs.h"
#include "train/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 2, MORE = 3 }; /* blocks of the chunks that are replayed */

/* What is found of a stage's rank. */
typedef struct stage_result {
    ax_stage_times times;
    double memory, host;
    bool refused; /* the engine cannot run it */
} stage_result;

static void result_fini(stage_result *r)
{
    ax_stage_times_fini(&r->times);
    *r = (stage_result){.memory = 0};
}

/* A candidate that is replayed. */
typedef struct replaying {
    struct ax_search *s;
    ax_train_plan plan;    /* that of the candidate, of the whole model */
    ax_pipe_settings pipe; /* the candidate's */
    ax_prices prices;
    search_mode mode;
    bool whole; /* with all blocks, and all ranks whose place on nodes is another */
    int stages, chunks;
    int pieces;     /* of a chunk, to the schedule (join_chunks) */
    int64_t *begin; /* [stages · chunks + 1]: first block of each part */
} replaying;

static bool is_timed(const replaying *r) { return r->mode > SEARCH_MEMORY; }
static bool is_open(const replaying *r) { return is_timed(r) && r->mode < SEARCH_TIMED; }

/* Returns the only stage that is replayed, or -1: all are. */
static int only_stage(const replaying *r)
{
    return r->mode == SEARCH_ROOM ? 0 : r->mode == SEARCH_OPEN ? r->stages > 2 : -1;
}

static int64_t blocks_of(const replaying *r, int stage, int chunk)
{
    const int part = chunk * r->stages + stage;
    return r->begin[part + 1] - r->begin[part];
}

static double blocks_in(const replaying *r, int stage)
{
    int64_t n = 0;
    for (int c = 0; c < r->chunks; c++)
        n += blocks_of(r, stage, c);
    return (double)n;
}

/* ---- one replay ------------------------------------------------------------------------------------ */

static ax_status replay(const replaying *r, const ax_train_plan *plan, int stage, stage_result *out)
{
    struct ax_search *s = r->s;
    const ax_machine *m = s->by.machine;
    ax_engine_plan engine;
    *out = (stage_result){.memory = 0};
    s->replays++;
    ax_status status = ax_train_plan_stage(plan, &plan->options, stage, &engine);
    if (status == AX_ERR_USAGE) { /* a message is too large, or another limit of the engine */
        snprintf(s->refused, sizeof s->refused, "%s", ax_error_message());
        out->refused = true;
        return AX_OK;
    }
    AX_TRY(status);
    if (r->mode <= SEARCH_ANYWAY) /* the order is open, and so how ranks lie on nodes */
        engine.memory.bytes[AX_MEMORY_COLLECTIVES] = 0;
    else if (r->whole)
        status = ax_train_plan_apart(plan, &engine);
    out->memory = (double)ax_memory_total(&engine.memory);
    out->host =
        (double)ax_memory_on(&engine.memory, AX_MEMORY_ON_HOST) + (m->device.host_access ? out->memory : 0);
    if (status == AX_OK && is_timed(r))
        status = ax_train_replay_stage(plan, &engine, stage, &r->prices, NULL, &out->times);
    ax_engine_plan_fini(&engine);
    return status;
}

/* Replays a stage with `blocks` blocks in each of its chunks (0: with its own), of a model whose other parts
 * have as few as they can. */
static ax_status replay_few(const replaying *r, int stage, int64_t blocks, stage_result *out)
{
    ax_train_plan plan = r->plan;
    ax_model_config model = *plan.options.model;
    const int parts = r->stages * r->chunks;
    int64_t *cut;
    AX_TRY(ax_calloc((size_t)parts, sizeof *cut, &cut));
    model.layers = 0;
    for (int p = 0; p < parts; p++) {
        if (p)
            cut[p - 1] = model.layers;
        const int64_t least = p > 0 && p < parts - 1, own = r->begin[p + 1] - r->begin[p];
        if (p % r->stages == stage)
            model.layers += blocks ? blocks : ax_max(own, least);
        else /* a model has a block, also if this stage has none */
            model.layers += parts == 2 && !blocks_in(r, stage) ? 1 : least;
    }
    plan.options.model = &model;
    plan.parallel.pipe.cut = parts > 1 ? cut : NULL;
    ax_status status = replay(r, &plan, stage, out);
    free(cut);
    return status;
}

/* Returns the value at `blocks` of the line through those of FEW and MORE blocks in each of n chunks. */
static double at(double few, double more, double blocks, double n)
{
    return few + (blocks - FEW * n) * (more - few) / ((MORE - FEW) * n);
}

/* Sets *few, of a stage with few blocks, to what follows for stage `stage`. */
static void extend(const replaying *r, int stage, stage_result *few, const stage_result *more)
{
    const double all = blocks_in(r, stage), n = r->chunks;
    ax_stage_times *t = &few->times;
    const ax_stage_times *u = &more->times;
    few->memory = at(few->memory, more->memory, all, n);
    few->host = at(few->host, more->host, all, n);
    if (!is_timed(r))
        return;
    for (int part = 0; part < AX_STEP_PARTS; part++)
        for (int c = 0; c < r->chunks; c++)
            for (int k = 0; k < AX_PIPE_DONE; k++) {
                double *seconds = &t->task[part * r->chunks + c].of[k];
                *seconds = fmax(
                    at(*seconds, u->task[part * r->chunks + c].of[k], (double)blocks_of(r, stage, c), 1), 0);
            }
    t->end = fmax(at(t->end, u->end, all, n), 0);
    t->computed = at(t->computed, u->computed, all, n);
    for (int i = 0; i < t->n_exposed && i < u->n_exposed; i++)
        t->exposed[i].seconds = fmax(at(t->exposed[i].seconds, u->exposed[i].seconds, all, n), 0);
}

/* Finds what is known of a stage. */
static ax_status replay_stage(const replaying *r, int stage, bool whole, stage_result *out)
{
    stage_result more;
    int64_t most = 0;
    for (int c = 0; c < r->chunks; c++)
        most = ax_max(most, blocks_of(r, stage, c));
    if (whole)
        return replay(r, &r->plan, stage, out);
    if (most <= MORE)
        return replay_few(r, stage, 0, out);
    AX_TRY(replay_few(r, stage, FEW, out));
    ax_status status = replay_few(r, stage, MORE, &more);
    out->refused |= status == AX_OK && more.refused;
    if (status == AX_OK && !out->refused)
        extend(r, stage, out, &more);
    result_fini(&more);
    return status;
}

/* ---- stages that differ ---------------------------------------------------------------------------- */

/* Finds where the parts of the pipeline begin. If blocks are alike, a model of one block tells the costs. */
static ax_status find_parts(replaying *r)
{
    ax_train_plan *p = &r->plan;
    const int64_t layers = p->options.model->layers;
    ax_model_config one = *p->options.model;
    ax_engine_options options = p->options;
    int64_t *cost, *all;
    ax_ctx *dry;
    if (r->stages == 1 || (only_stage(r) >= 0 && !p->parallel.pipe.cut)) {
        for (int i = 1; i <= r->stages * r->chunks; i++)
            r->begin[i] = i * layers / (r->stages * r->chunks);
        return AX_OK;
    }
    if (p->parallel.pipe.cut) {
        for (int i = 1; i < r->stages * r->chunks; i++)
            r->begin[i] = p->parallel.pipe.cut[i - 1];
        r->begin[r->stages * r->chunks] = layers;
        return AX_OK;
    }
    one.layers = r->s->alike ? 1 : layers;
    options.model = &one;
    AX_TRY(ax_ctx_create_dry(0, (int)r->s->ranks, p->grid, p->compute, &p->parallel, &dry));
    ax_status status = ax_block_costs(dry, &options, &cost);
    ax_ctx_destroy(&dry);
    AX_TRY(status);
    status = ax_calloc((size_t)layers + 2, sizeof *all, &all);
    for (int64_t i = 0; i < layers + 2 && status == AX_OK; i++) /* their sum stays below 2^62 */
        all[i] = cost[i == 0 ? 0 : i == layers + 1 ? one.layers + 1 : 1 + (i - 1) % one.layers] >> 16;
    if (status == AX_OK)
        ax_pipe_cut(r->stages, r->chunks, layers, all, r->begin);
    free(cost);
    free(all);
    return status;
}

/* A stage of many chunks takes long to replay. As long as keys are open, one chunk stands for all of the
 * stage: it has their blocks, and the schedule divides its tasks evenly. The memory is then unknown. */
static ax_status join_chunks(replaying *r)
{
    int64_t *begin;
    AX_TRY(ax_calloc((size_t)r->stages + 1, sizeof *begin, &begin));
    for (int i = 0; i < r->stages; i++)
        begin[i + 1] = begin[i] + (int64_t)blocks_in(r, i);
    free(r->begin);
    r->begin = begin;
    r->pieces = r->chunks;
    r->chunks = 1;
    r->plan.parallel.pipe.schedule = AX_PIPE_MESSAGE;
    return AX_OK;
}

/* Returns the rank of a stage whose other coordinates are 0. */
static int64_t first_rank(const replaying *r, int stage)
{
    int64_t distance = 1;
    for (int i = 0; r->plan.order.axis[i] != AX_PIPE; i++)
        distance *= ax_grid_size_along(r->plan.grid, r->plan.order.axis[i]);
    return stage * distance;
}

static bool leaves_node(const replaying *r, int stage)
{
    const int64_t node = r->s->by.machine->ranks_per_node;
    return r->mode == SEARCH_TIMED &&
           first_rank(r, stage) / node != first_rank(r, (stage + 1) % r->stages) / node;
}

/* Returns true if the buffers between nodes may be others, as nodes divide the ranks of the stages elsewhere.
 */
static bool lie_apart(const replaying *r, int stage, int other)
{
    return r->whole && ax_offload_host_carries(&r->plan.parallel.offload) &&
           (first_rank(r, other) - first_rank(r, stage)) % r->s->by.machine->ranks_per_node;
}

/* Returns true if stage `other`, after `stage`, takes as long; `stage` then needs no less memory. */
static bool are_alike(const replaying *r, int stage, int other)
{
    if (!stage || other == r->stages - 1 || lie_apart(r, stage, other) ||
        leaves_node(r, stage) != leaves_node(r, other) ||
        leaves_node(r, stage - 1) != leaves_node(r, other - 1))
        return false;
    for (int c = 0; c < r->chunks; c++)
        if (blocks_of(r, stage, c) != blocks_of(r, other, c))
            return false;
    return r->s->alike;
}

/* Finds the results of all stages; like[i] is the stage whose result stage i has too. */
static ax_status replay_stages(const replaying *r, bool whole, stage_result *result, int *like)
{
    const int only = only_stage(r);
    for (int i = 0; i < r->stages && only >= 0; i++)
        like[i] = only;
    if (only >= 0)
        return replay_stage(r, only, whole || !r->s->alike, &result[only]);
    for (int i = 0; i < r->stages; i++) {
        like[i] = i;
        for (int k = i - 1; k >= 0 && like[i] == i; k--)
            like[i] = are_alike(r, k, i) ? like[k] : i;
        if (like[i] == i)
            AX_TRY(replay_stage(r, i, whole || !r->s->alike, &result[i]));
    }
    return AX_OK;
}

/* ---- the step -------------------------------------------------------------------------------------- */

/* The schedule of many micro-batches repeats itself: those after the first few fills of the pipeline take
 * equally long. Runs few of them, unless `whole`. */
static ax_status run_schedule(const replaying *r, const ax_stage_times *times, int64_t micro_batches,
                              bool whole, ax_step_time *out)
{
    const ax_pipe_settings *pipe = &r->pipe;
    const int64_t fill = r->stages, few = 6 * fill + micro_batches % fill;
    ax_step_time less;
    if (whole || r->stages == 1 || few >= micro_batches)
        return ax_step_time_make(pipe, r->stages, micro_batches, times, out);
    AX_TRY(ax_step_time_make(pipe, r->stages, few - fill, times, &less));
    AX_TRY(ax_step_time_make(pipe, r->stages, few, times, out));
    const double fills = (double)(micro_batches - few) / (double)fill;
    out->bubble += fills * (out->bubble - less.bubble);
    out->seconds += fills * (out->seconds - less.seconds);
    return AX_OK;
}

/* Without a schedule a step takes as long as the stage that works longest. */
static ax_status find_longest(const replaying *r, const ax_stage_times *times, int64_t micro_batches,
                              ax_step_time *out)
{
    *out = (ax_step_time){0};
    for (int i = 0; i < r->stages; i++) {
        ax_step_time one;
        AX_TRY(ax_step_time_make(&r->pipe, 1, micro_batches, &times[i], &one));
        out->seconds = fmax(out->seconds, one.seconds);
    }
    return AX_OK;
}

/* Sets *out to the times of a stage whose chunk is divided. The replay of pieces would do forward and
 * backward of one after the other: of the waits for weights in the first forward, and for reductions at the
 * end, as much may be hidden as the other pieces' tasks take. The caller frees out->task. */
static ax_status divide(const ax_stage_times *t, int pieces, ax_stage_times *out)
{
    const double others = (pieces - 1.0) / pieces;
    const double *first = t->task[AX_STEP_FIRST].of, *last = t->task[AX_STEP_LAST].of;
    const double waits = fmax(first[AX_PIPE_FORWARD] - last[AX_PIPE_FORWARD], 0);
    *out = *t;
    out->task = NULL;
    out->chunks = pieces;
    out->end = fmax(t->end - others * (last[AX_PIPE_FORWARD] + last[AX_PIPE_BACKWARD]), 0);
    AX_TRY(ax_calloc((size_t)(AX_STEP_PARTS * pieces), sizeof *out->task, &out->task));
    for (int i = 0; i < AX_STEP_PARTS * pieces; i++)
        for (int k = 0; k < AX_PIPE_DONE; k++)
            out->task[i].of[k] = t->task[i / pieces].of[k] / pieces;
    for (int i = 0; i < pieces; i++)
        out->task[AX_STEP_FIRST * pieces + i].of[AX_PIPE_FORWARD] -=
            fmin(waits, others * first[AX_PIPE_BACKWARD]) / pieces;
    return AX_OK;
}

/* Enters what the stage that computes longest waits for. */
static void enter_waits(const replaying *r, const ax_stage_times *times, ax_candidate *c)
{
    c->stage = 0;
    for (int i = 1; i < r->stages; i++)
        c->stage = times[i].computed > times[c->stage].computed ? i : c->stage;
    const ax_stage_times *t = &times[c->stage];
    c->computed = t->computed;
    c->exposed = 0;
    c->n_along = 0;
    for (int i = 0; i < t->n_exposed; i++) {
        c->exposed += t->exposed[i].seconds;
        if (c->n_along < AX_CANDIDATE_AXES)
            c->along[c->n_along++] = t->exposed[i];
    }
}

static ax_status find_time(const replaying *r, const stage_result *result, const int *like, bool whole,
                           ax_candidate *c)
{
    const int64_t micro_batches = ax_train_plan_micro_batches(&r->plan);
    ax_stage_times *times;
    ax_step_time step;
    AX_TRY(ax_calloc((size_t)r->stages, sizeof *times, &times));
    ax_status status = AX_OK;
    for (int i = 0; i < r->stages && status == AX_OK; i++) {
        times[i] = result[like[i]].times;
        if (r->pieces > 1)
            status = divide(&result[like[i]].times, r->pieces, &times[i]);
        if (is_open(r))
            memset(times[i].message, 0, sizeof times[i].message);
    }
    if (status == AX_OK)
        status = r->mode == SEARCH_OPEN ? find_longest(r, times, micro_batches, &step)
                                        : run_schedule(r, times, micro_batches, whole, &step);
    if (status == AX_OK) {
        c->seconds = step.seconds;
        c->bubble = step.bubble;
        enter_waits(r, times, c);
    }
    for (int i = 0; i < r->stages && r->pieces > 1; i++)
        free(times[i].task);
    free(times);
    return status;
}

static void enter_memory(const replaying *r, const stage_result *result, ax_candidate *c)
{
    const double ranks = (double)ax_min(r->s->ranks, r->s->by.machine->ranks_per_node);
    double memory = 0, host = 0;
    c->refused = false;
    for (int i = 0; i < r->stages; i++) {
        c->refused |= result[i].refused;
        memory = fmax(memory, result[i].memory);
        host = fmax(host, result[i].host);
    }
    c->memory = r->pieces > 1 ? SIZE_MAX : (size_t)memory; /* of joined chunks it is not known */
    c->host = (size_t)(host * ranks);
}

static ax_status run(replaying *r, ax_candidate *c, bool whole)
{
    stage_result *result = NULL;
    int *like = NULL;
    AX_TRY(ax_calloc((size_t)r->stages * (size_t)r->chunks + 1, sizeof *r->begin, &r->begin));
    ax_status status = find_parts(r);
    if (status == AX_OK && is_open(r) && r->chunks > 1 && r->s->alike)
        status = join_chunks(r);
    if (status == AX_OK)
        status = ax_calloc((size_t)r->stages, sizeof *result, &result);
    if (status == AX_OK)
        status = ax_calloc((size_t)r->stages, sizeof *like, &like);
    if (status == AX_OK)
        status = replay_stages(r, whole, result, like);
    if (status == AX_OK)
        enter_memory(r, result, c);
    if (status == AX_OK && is_timed(r) && !c->refused)
        status = find_time(r, result, like, whole, c);
    for (int i = 0; i < r->stages && result; i++)
        result_fini(&result[i]);
    free(result);
    free(like);
    free(r->begin);
    return status;
}

ax_status search_replay(struct ax_search *s, ax_candidate *c, search_mode mode, bool whole)
{
    replaying r = {.s = s, .plan = s->base, .mode = mode, .whole = whole};
    search_apply(c, &r.plan);
    r.prices = mode <= SEARCH_ANYWAY ? ax_prices_least(s->by.machine) : ax_prices_of(s->by.machine);
    r.pipe = r.plan.parallel.pipe;
    r.stages = ax_grid_size_along(c->grid, AX_PIPE);
    r.pieces = 1;
    r.chunks = r.stages > 1 && r.plan.parallel.pipe.schedule == AX_PIPE_INTERLEAVED
                   ? r.plan.parallel.pipe.chunks
                   : 1;
    return run(&r, c, whole);
}

/* ---- what is sent ---------------------------------------------------------------------------------- */

/* Prices that also add up what they price. */
typedef struct counting {
    ax_prices given;
    const ax_train_plan *plan;
    double sign; /* of what is added */
    ax_candidate_sent *sent;
    int n, most;
} counting;

static ax_status count_kernel(void *user, ax_kernel kernel, const void *args, double *seconds)
{
    const counting *c = user;
    return c->given.kernel(c->given.user, kernel, args, seconds);
}

/* Prints the axes along which the ranks of a communicator differ. */
static void print_axes(const ax_train_plan *plan, const ax_comm *comm, char out[AX_AXISSET_TEXT])
{
    int first[AX_AXES_STANDARD], last[AX_AXES_STANDARD];
    ax_grid_place(plan->grid, &plan->order, ax_comm_world_rank(comm, 0), first);
    ax_grid_place(plan->grid, &plan->order, ax_comm_world_rank(comm, ax_comm_size(comm) - 1), last);
    *out = 0;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        if (first[a] != last[a])
            ax_text_add(out, AX_AXISSET_TEXT, "%s%s", *out ? "." : "", ax_axis_name((ax_axis)a));
}

static ax_status count_transfer(void *user, const ax_device_event *e, ax_leg leg[AX_LEGS], int *legs)
{
    counting *c = user;
    AX_TRY(c->given.transfer(c->given.user, e, leg, legs));
    if (e->kind != AX_ON_COLLECTIVE || ax_comm_size(e->comm) == 1)
        return AX_OK;
    const ax_coll coll = ((const ax_coll_args *)e->args)->coll;
    char axes[AX_AXISSET_TEXT];
    print_axes(c->plan, e->comm, axes);
    int i = 0;
    while (i < c->n && (c->sent[i].coll != coll || strcmp(c->sent[i].axes, axes) != 0))
        i++;
    if (i == c->most)
        return AX_OK;
    ax_candidate_sent *s = &c->sent[i];
    if (i == c->n) {
        c->n++;
        s->coll = coll;
        snprintf(s->axes, sizeof s->axes, "%s", axes);
    }
    s->calls += c->sign;
    s->bytes += c->sign * ax_device_event_bytes(e);
    for (int k = 0; k < *legs; k++)
        s->seconds += c->sign * leg[k].seconds;
    return AX_OK;
}

/* Adds `times` what a stage's rank sends in two steps of n micro-batches. */
static ax_status count_steps(counting *c, const ax_candidate *of, int64_t n, int64_t micro_batches,
                             double times)
{
    ax_train_plan plan = *c->plan;
    const ax_prices prices = {count_kernel, count_transfer, c};
    ax_engine_plan engine;
    ax_stage_times seconds;
    plan.options.global_batch = plan.options.global_batch / micro_batches * n;
    if (plan.parallel.pipe.schedule == AX_PIPE_INTERLEAVED) /* whose number of micro-batches is bound */
        plan.parallel.pipe.schedule = AX_PIPE_MESSAGE;
    c->sign = times;
    AX_TRY(ax_train_plan_stage(&plan, &plan.options, of->stage, &engine));
    ax_status status = ax_train_replay_stage(&plan, &engine, of->stage, &prices, NULL, &seconds);
    ax_stage_times_fini(&seconds);
    ax_engine_plan_fini(&engine);
    return status;
}

static int compare_seconds(const void *a, const void *b)
{
    const double x = ((const ax_candidate_sent *)a)->seconds, y = ((const ax_candidate_sent *)b)->seconds;
    return (x < y) - (x > y);
}

/* A step is replayed with few micro-batches, and without chunks; those between the second and the last send
 * equally much, which is the difference between four and three. */
ax_status ax_search_explain(ax_search *s, const ax_candidate *c, ax_candidate_sent **out, int *n)
{
    enum { MOST = 64 };
    ax_train_plan plan = s->base;
    search_apply(c, &plan);
    counting count = {.given = ax_prices_of(s->by.machine), .plan = &plan, .most = MOST};
    const int64_t micro_batches = ax_train_plan_micro_batches(&plan);
    AX_TRY(ax_calloc(MOST, sizeof *count.sent, &count.sent));
    const double more = (double)ax_max(micro_batches - AX_STEP_PARTS, 0);
    ax_status status =
        count_steps(&count, c, ax_min(micro_batches, AX_STEP_PARTS), micro_batches, 0.5 + more / 2);
    if (status == AX_OK && more > 0)
        status = count_steps(&count, c, AX_STEP_PARTS - 1, micro_batches, -more / 2);
    qsort(count.sent, (size_t)count.n, sizeof *count.sent, compare_seconds);
    *out = count.sent;
    *n = count.n;
    return status;
}
