/* Times the generation of tokens, and for comparison the reading of the weights that each token needs. */
#include "bench/bench.h"

#include <stdlib.h>

typedef struct timing {
    ax_ctx *ctx;
    const ax_model_config *model;
    int64_t prompt, tokens, rounds, batch;
    double top_p;
    ax_generator *generator;
    const float *logits; /* of the generator, of the last pass */
    int32_t *ids;        /* [prompt]: the prompt */
    int32_t *next;       /* [slots of the generator]: tokens of a step */
    float *work;         /* [workers, 2, vocab]: scratch of ax_sample */
    int64_t drawn;       /* number of tokens that were drawn */
    double *first;       /* [rounds]: seconds to feed the prompt */
    double *read;        /* [rounds]: bytes/s of reading the weights (ax_device_read) */
    double *share;       /* [rounds]: time to read the weights / median time of a token */
    double *each;        /* [rounds · tokens]: seconds of each token */
    double *sorted;      /* [tokens]: scratch array to find a median */
    ax_span
        *span; /* [spans]: the weight matrices that the GEMMs of a token read, in the order of the GEMMs */
    int64_t spans;
    ax_status listed; /* first error of list_weights() */
} timing;

/* ---- finding the weights that the GEMMs of a token read ------------------------------------------ */

/* Appends `n` bytes at `at`; a range that follows the one before extends it. */
static ax_status add_span(timing *t, const char *at, size_t n)
{
    ax_span *last = t->spans ? &t->span[t->spans - 1] : NULL;
    if (last && (const char *)last->at + last->bytes == at) {
        last->bytes += n;
        return AX_OK;
    }
    AX_TRY(ax_list_grow(&t->span, (size_t)t->spans, sizeof *t->span));
    t->span[t->spans++] = (ax_span){at, n};
    return AX_OK;
}

static ax_status add_matrix(timing *t, const ax_gemm_args *g)
{
    int64_t rows = g->trans_b ? g->n : g->k, cols = g->trans_b ? g->k : g->n;
    return add_span(t, g->b, (size_t)((rows - 1) * g->ldb + cols) * ax_dtype_size(g->dtype));
}

/* Appends the matrices of as many groups as there are rows: a token's experts are as large, whichever they
 * are. */
static ax_status add_groups(timing *t, const ax_gemm_grouped_args *g)
{
    int64_t rows = g->trans_b ? g->n : g->k, cols = g->trans_b ? g->k : g->n,
            groups = ax_min(g->groups, g->m);
    const int64_t size = (int64_t)ax_dtype_size(g->dtype);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < groups; i++)
            AX_TRY(
                add_span(t, (const char *)g->b + (r * g->ldb + i * g->stride) * size, (size_t)(cols * size)));
    return AX_OK;
}

/* Appends the weights that a kernel launch reads to t->span, if the launch is a GEMM. The device calls this
 * function for each launch. */
static void list_weights(void *user, const ax_device_event *launch)
{
    timing *t = user;
    const ax_gemm_args *one = launch->args;
    if (t->listed != AX_OK)
        return;
    if (launch->kernel == AX_K_gemm && one->m && one->n && one->k)
        t->listed = add_matrix(t, one);
    else if (launch->kernel == AX_K_gemm_grouped)
        t->listed = add_groups(t, launch->args);
}

/* ---- rounds -------------------------------------------------------------------------------------- */

/* Draws the next token of text i; `thread` has the scratch. */
static ax_status draw_one(timing *t, int64_t i, int thread)
{
    const int64_t vocab = t->model->vocab;
    const ax_sampling how = {.temperature = t->top_p > 0, .top_p = t->top_p > 0 ? t->top_p : 1};
    const double u = ax_rng_uniform(2, (uint64_t)(t->drawn + i));
    return ax_sample(t->logits + i * vocab, (int)vocab, &how, u, t->work + 2 * thread * vocab, &t->next[i]);
}

/* Draws every n-th token, with n the number of workers (ax_device_parallel). */
static void draw_part(void *user, int part)
{
    timing *t = user;
    for (int64_t i = part; i < t->batch; i += ax_device_workers(t->ctx->dev))
        if (draw_one(t, i, part) != AX_OK)
            t->next[i] = AX_IDLE;
}

/* Chooses the next tokens of all texts. */
static ax_status draw(timing *t)
{
    ax_device_parallel(t->ctx->dev, ax_device_workers(t->ctx->dev), draw_part, t);
    for (int64_t i = 0; i < t->batch; i++)
        if (t->next[i] == AX_IDLE)
            AX_TRY(draw_one(t, i, 0)); /* again, for the message */
    t->drawn += t->batch;
    return AX_OK;
}

/* Feeds the prompt to all slots, and chooses a token after it. */
static ax_status feed_prompt(timing *t, double *seconds)
{
    const double begin = ax_now();
    const int64_t batch = t->batch;
    for (int64_t i = 0; i < batch; i++)
        AX_TRY(ax_generator_rewind(t->generator, i, 0));
    AX_TRY(ax_generator_feed(t->generator, 0, t->ids, t->prompt, &t->logits));
    t->batch = 1;
    ax_status status = draw(t);
    t->batch = batch;
    for (int64_t i = 1; i < batch && status == AX_OK; i++) {
        t->next[i] = t->next[0];
        status = ax_generator_copy(t->generator, 0, i, t->prompt);
    }
    *seconds = ax_now() - begin;
    return status;
}

/* Feeds a token of each text, and chooses the next ones. */
static ax_status feed(timing *t, double *seconds)
{
    const double begin = ax_now();
    AX_TRY(ax_generator_step(t->generator, t->next, &t->logits));
    AX_TRY(draw(t));
    *seconds = ax_now() - begin;
    return AX_OK;
}

/* Runs the first part of a round: feeds the prompt and generates t->tokens tokens. *first is the time of the
 * prompt, each[] the time of each token. If `totals` is not NULL, it receives the times of the kernels,
 * without those of the prompt. (The second part of a round is read_weights.) All ranks begin at the same
 * time. */
static ax_status generate(timing *t, ax_kernel_total *totals, double *first, double *each)
{
    AX_TRY(ax_barrier(t->ctx->world));
    AX_TRY(feed_prompt(t, first));
    ax_listener times = ax_kernel_totals(totals);
    ax_device_listen(t->ctx->dev, &times);
    ax_status status = AX_OK;
    for (int64_t i = 0; i < t->tokens && status == AX_OK; i++)
        status = feed(t, &each[i]);
    if (status == AX_OK)
        status = ax_stream_wait(t->ctx->stream); /* also adds the times of the last kernels to `totals` */
    ax_device_unlisten(t->ctx->dev, &times);
    return status;
}

/* Measures the rate, in bytes/s, of reading the weights. All ranks read at the same time, because they
 * generate at the same time too. */
static ax_status read_weights(timing *t, double *rate)
{
    const double patience = 0.2;
    AX_TRY(ax_barrier(t->ctx->world));
    *rate = ax_device_read(t->ctx->dev, t->span, t->spans, patience);
    return AX_OK;
}

/* Logs an estimate of the seconds that all rounds will take, if it is above `patience`. `round`: seconds of
 * one round. */
static void log_duration(const timing *t, double round)
{
    const double patience = 10, all = (double)t->rounds * round;
    if (all > patience && ax_comm_rank(t->ctx->world) == 0)
        ax_log(AX_LOG_INFO, "a round takes %.1f s; %lld rounds will take about %.0f s", round,
               (long long)t->rounds, all);
}

/* Generates one step while a listener records which weights the GEMMs read. Then runs one round whose times
 * are overwritten later. */
static ax_status warm_up(timing *t)
{
    double seconds;
    ax_device *dev = t->ctx->dev;
    AX_TRY(feed_prompt(t, &seconds));
    ax_listener listener = {AX_ON_KERNEL, list_weights, t, NULL};
    ax_device_listen(dev, &listener);
    ax_status status = feed(t, &seconds);
    ax_device_unlisten(dev, &listener);
    AX_TRY(status);
    AX_TRY(ax_comm_agree(t->ctx->world, t->listed));
    AX_TRY(read_weights(t, t->read)); /* not a measurement: the first call of ax_device_read chooses the
                                         fastest way of reading */
    double begin = ax_now();
    AX_TRY(generate(t, NULL, t->first, t->each));
    AX_TRY(read_weights(t, t->read));
    log_duration(t, ax_now() - begin);
    return AX_OK;
}

static ax_status time_round(timing *t, int64_t round, double weights, ax_kernel_total *totals)
{
    double *each = t->each + round * t->tokens;
    AX_TRY(generate(t, totals, &t->first[round], each));
    AX_TRY(read_weights(t, &t->read[round]));
    for (int64_t i = 0; i < t->tokens; i++)
        t->sorted[i] = each[i];
    double token = ax_spread_of(t->sorted, t->tokens).median;
    t->share[round] = t->read[round] > 0 ? weights / t->read[round] / token : 0;
    return AX_OK;
}

static ax_status time_rounds(timing *t, bench_token_times *out)
{
    bool events = t->ctx->dev->ops.event_record != NULL;
    AX_TRY(warm_up(t));
    for (int64_t i = 0; i < t->spans; i++)
        out->weights += (double)t->span[i].bytes;
    for (int64_t round = 0; round < t->rounds; round++)
        AX_TRY(time_round(t, round, out->weights, events ? NULL : out->kernel));
    out->prompt = ax_spread_of(t->first, t->rounds);
    out->token = ax_spread_of(t->each, t->rounds * t->tokens);
    out->read = ax_spread_of(t->read, t->rounds);
    out->share = ax_spread_of(t->share, t->rounds);
    if (events)
        AX_TRY(generate(t, out->kernel, t->first, t->each));
    double n = (double)t->tokens * (double)(events ? 1 : t->rounds);
    for (int k = 0; k < AX_KERNEL_COUNT; k++) {
        ax_kernel_total *sum = &out->kernel[k];
        *sum = (ax_kernel_total){sum->calls / (int64_t)n, sum->seconds / n, sum->flops / n, sum->bytes / n};
    }
    return AX_OK;
}

/* ---- the whole measurement ----------------------------------------------------------------------- */

static ax_status alloc_arrays(timing *t, int64_t slots)
{
    AX_TRY(ax_calloc((size_t)t->prompt, sizeof *t->ids, &t->ids));
    AX_TRY(ax_calloc((size_t)t->rounds, sizeof *t->first, &t->first));
    AX_TRY(ax_calloc((size_t)(t->rounds * t->tokens), sizeof *t->each, &t->each));
    AX_TRY(ax_calloc((size_t)t->tokens, sizeof *t->sorted, &t->sorted));
    AX_TRY(ax_calloc((size_t)t->rounds, sizeof *t->read, &t->read));
    AX_TRY(ax_calloc((size_t)t->rounds, sizeof *t->share, &t->share));
    AX_TRY(ax_calloc((size_t)slots, sizeof *t->next, &t->next));
    AX_TRY(
        ax_calloc(2 * (size_t)(ax_device_workers(t->ctx->dev) * t->model->vocab), sizeof *t->work, &t->work));
    for (int64_t i = t->batch; i < slots; i++)
        t->next[i] = AX_IDLE;
    for (int64_t i = 0; i < t->prompt; i++)
        t->ids[i] = (int32_t)(ax_rng_uniform(1, (uint64_t)i) * (double)t->model->vocab);
    return AX_OK;
}

ax_status bench_time_tokens(ax_ctx *ctx, const ax_pretrained *model, const bench_tokens *what,
                            bench_token_times *out)
{
    enum { LEAST = 5 }; /* rows of a step in a batch, as in ax_prompts_continue */
    timing t = {.ctx = ctx,
                .model = &model->config,
                .prompt = what->prompt,
                .tokens = what->tokens,
                .rounds = what->rounds,
                .batch = what->batch,
                .top_p = what->top_p};
    const int64_t slots = t.batch == 1 ? 1 : ax_max(t.batch, LEAST);
    *out = (bench_token_times){.weights = 0};
    AX_CHECK(t.prompt > 0 && t.tokens > 0 && t.rounds > 0 && t.batch > 0, AX_ERR_USAGE,
             "bench_time_tokens: cannot time %lld rounds of %lld tokens of %lld texts after prompts of %lld: "
             "each must be at least 1",
             (long long)t.rounds, (long long)t.tokens, (long long)t.batch, (long long)t.prompt);
    ax_status status = ax_generator_create(
        ctx, model, &(ax_generator_options){slots, t.prompt, t.prompt + t.tokens}, &t.generator);
    if (status == AX_OK)
        status = ax_comm_agree(ctx->world, alloc_arrays(&t, slots));
    if (status == AX_OK)
        status = time_rounds(&t, out);
    if (status == AX_OK) {
        out->memory = bench_memory_of(ctx, ax_generator_memory(t.generator));
        ax_train_describe(&model->config, ax_grid_sizes(ctx->grid), out->model, out->grid);
    }
    ax_generator_destroy(&t.generator);
    free(t.next), free(t.work);
    free(t.ids), free(t.first), free(t.each), free(t.sorted), free(t.read), free(t.share), free(t.span);
    return status;
}
