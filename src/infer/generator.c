/* Inference on one sequence: continues the sequence token by token with a key/value cache, or computes the
 * logits of all its positions. The same code builds the generator twice: first on the device `dry`, which
 * computes nothing, to find out how much memory the generator needs, then on the real device. */
#include "axonn/infer.h"
#include "axonn/pipeline.h"
#include "engine/costs.h"
#include "engine/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ax_generator {
    ax_ctx *ctx;
    ax_model *model;
    ax_param_set *set;
    ax_pipeline *prompts, *singles; /* for a prompt's tokens and for single ones: their messages differ in
                                       size */
    ax_kv_cache *cache;             /* NULL: the generator computes the logits of whole sequences */
    ax_frame *frame;
    ax_frame_plan *plan;      /* memory plan of `frame`; NULL on the device `dry`, where the plan is made */
    ax_axisset *axes;         /* the sets of grid axes along which ranks communicate */
    int64_t *costs;           /* costs of the layers (ax_model_use.costs) */
    int64_t prompt, capacity; /* tokens of the prompt; positions that the cache has memory for, 0: no cache */
    int32_t *host, *device;   /* [2, prompt]: row 0 the token ids, row 1 their positions */
    float *logits;            /* [vocab], on the host */
    ax_memory memory;
};

static size_t ids_bytes(const ax_generator *g) { return (size_t)(2 * g->prompt) * sizeof(int32_t); }

/* Copies n tokens and their positions, first … first+n-1, to the device, and makes the tensors of *batch
 * views of these copies. */
static ax_status load_tokens(ax_generator *g, const int32_t *tokens, int64_t first, int64_t n,
                             ax_batch *batch)
{
    for (int64_t i = 0; i < n; i++) {
        g->host[i] = tokens[i];
        g->host[g->prompt + i] = (int32_t)(first + i);
    }
    AX_TRY(ax_copy_in(g->ctx->stream, g->device, g->host, ids_bytes(g)));
    ax_layout none = {0};
    *batch = (ax_batch){0};
    batch->tokens = batch->positions = ax_tensor_make(AX_I32, 2, (int64_t[]){1, n}, NULL, &none);
    batch->tokens.data = g->device;
    batch->positions.data = g->device + g->prompt;
    return AX_OK;
}

/* ---- one call ------------------------------------------------------------------------------------ */

/* What a call computes on this rank. */
typedef struct pass {
    ax_generator *g;
    ax_pipeline *pipeline;
    bool last; /* only the logits of the last position are wanted */
    ax_batch batch;
    ax_tensor logits; /* on ranks of the last pipeline stage: whole, not split over ranks; else empty */
} pass;

/* Runs a chunk of this rank's pipeline stage; at the end of the model computes the logits. */
static ax_status run_piece(void *user, ax_pipe_piece piece, int slot)
{
    (void)slot;
    pass *c = user;
    ax_tensor split;
    ax_frame *frame = c->g->frame;
    AX_TRY(ax_pipeline_forward(c->pipeline, piece, frame, &c->batch));
    if (!ax_model_ends(c->g->model, piece.chunk))
        return AX_OK;
    AX_TRY(ax_model_logits(c->g->model, frame, c->last, &split));
    return ax_settle(frame, &split, &(ax_layout){.partial = 0}, &c->logits);
}

/* Computes the logits of n positions from `first` on, or, if c->last, only of the last of these positions. */
static ax_status run_model(pass *c, const char *task, const int32_t *tokens, int64_t first, int64_t n)
{
    ax_generator *g = c->g;
    c->pipeline = n == g->prompt ? g->prompts : g->singles;
    AX_TRY(load_tokens(g, tokens, first, n, &c->batch));
    AX_TRY(ax_frame_begin(g->frame, task, AX_MODE_EVAL, &c->batch));
    AX_TRY(ax_pipeline_begin(c->pipeline, first, 1, false));
    return ax_pipeline_run(c->pipeline,
                           &(ax_pipeline_tasks){.run = {[AX_PIPE_FORWARD] = run_piece}, .user = c});
}

/* Converts row `row` of c->logits, [1, positions, vocab], to fp32 and copies it to the generator's logits in
 * host memory, on the ranks of all stages. `staging`: device memory for the converted row. */
static ax_status take_row(const pass *c, void *staging, int64_t row)
{
    ax_generator *g = c->g;
    const ax_tensor *logits = &c->logits;
    int64_t vocab = g->model->config.vocab;
    if (ax_model_is_last(g->model)) {
        int64_t at = row * ax_tensor_pitch(g->ctx->grid, logits);
        const char *from = (const char *)logits->data + (size_t)at * ax_dtype_size(logits->dtype);
        AX_TRY(ax_run_convert(
            g->ctx->stream,
            &(ax_convert_args){
                .n = vocab, .x = from, .y = staging, .x_dtype = logits->dtype, .y_dtype = AX_F32}));
    }
    AX_TRY(ax_pipeline_share(c->pipeline, staging, vocab, AX_F32));
    return ax_copy_out(g->ctx->stream, g->logits, staging, (size_t)vocab * sizeof(float));
}

static ax_status check_ids(const ax_generator *g, const int32_t *tokens, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        AX_CHECK(tokens[i] >= 0 && tokens[i] < g->model->config.vocab, AX_ERR_USAGE,
                 "token number %lld (from 0) has the id %d, but the model's vocabulary has the ids 0 to "
                 "%lld: use the model's own tokenizer",
                 (long long)i, tokens[i], (long long)g->model->config.vocab - 1);
    return AX_OK;
}

static ax_status feed(ax_generator *g, const int32_t *tokens, int64_t n)
{
    pass c = {.g = g, .last = true};
    void *staging;
    int64_t length = ax_kv_cache_length(g->cache);
    AX_TRY(run_model(&c, length ? "decode" : "prefill", tokens, length, n));
    AX_TRY(ax_frame_scratch(g->frame, AX_F32, g->model->config.vocab, &staging));
    AX_TRY(take_row(&c, staging, 0));
    ax_kv_cache_advance(g->cache, n);
    return AX_OK;
}

static ax_status all_logits(ax_generator *g, const int32_t *tokens, ax_take_logits_fn *take, void *user)
{
    pass c = {.g = g};
    void *staging;
    AX_TRY(run_model(&c, "logits", tokens, 0, g->prompt));
    AX_TRY(ax_frame_scratch(g->frame, AX_F32, g->model->config.vocab, &staging));
    for (int64_t t = 0; t < g->prompt; t++) {
        AX_TRY(take_row(&c, staging, t));
        if (take)
            AX_TRY(take(user, t, g->logits, g->model->config.vocab));
    }
    return AX_OK;
}

static ax_status build(ax_generator *g, const ax_model_config *config)
{
    const ax_model_use use = {.positions = ax_max(g->prompt, g->capacity), .costs = g->costs};
    AX_TRY(ax_model_create(g->ctx, config, &use, &g->model));
    AX_TRY(ax_layer_param_set(g->model->root, -1, &g->set));
    AX_TRY(ax_pipeline_create(g->model, 1, g->prompt, 1, false, &g->prompts));
    AX_TRY(ax_pipeline_create(g->model, 1, 1, 1, false, &g->singles));
    if (g->capacity)
        AX_TRY(ax_kv_cache_create(g->ctx, g->model->root, 1, g->capacity, &g->cache));
    AX_TRY(ax_calloc(1, ids_bytes(g), &g->host));
    AX_TRY(ax_calloc((size_t)config->vocab, sizeof *g->logits, &g->logits));
    AX_TRY(ax_ctx_alloc(g->ctx, ids_bytes(g), (void **)&g->device));
    return g->plan ? ax_frame_create_planned(g->ctx, g->plan, &g->frame)
                   : ax_frame_create(g->ctx, 0, &g->frame);
}

/* Reserves pinned memory for all messages, so that no rank fails alone for lack of it in a later call. */
static ax_status reserve_messages(ax_generator *g)
{
    AX_TRY(ax_param_set_reserve_messages(g->set));
    AX_TRY(ax_pipeline_connect(g->prompts));
    return ax_pipeline_connect(g->singles);
}

static void destroy(ax_generator *g)
{
    ax_pipeline_destroy(&g->prompts);
    ax_pipeline_destroy(&g->singles);
    ax_frame_destroy(&g->frame);
    ax_kv_cache_destroy(&g->cache);
    if (g->device)
        ax_ctx_free(g->ctx, g->device, ids_bytes(g));
    ax_param_set_destroy(&g->set);
    ax_model_destroy(&g->model);
    free(g->host);
    free(g->logits);
}

/* Runs the calls of the generator on the device `dry`, which computes nothing, to measure its memory. Sets
 * out->plan, and all of out->memory except `workspace`. */
static ax_status dry_run(ax_ctx *dry, const ax_model_config *config, ax_generator *out)
{
    ax_generator g = {.ctx = dry, .prompt = out->prompt, .capacity = out->capacity, .costs = out->costs};
    ax_status status = build(&g, config);
    if (status == AX_OK)
        status = reserve_messages(&g);
    if (status == AX_OK && !g.capacity)
        status = all_logits(&g, g.host, NULL, NULL);
    if (status == AX_OK && g.capacity)
        status = feed(&g, g.host, g.prompt);
    if (status == AX_OK && g.capacity > g.prompt)
        status = feed(&g, g.host, 1);
    if (status == AX_OK)
        status = ax_frame_plan_create(g.frame, 1, &out->plan);
    size_t *bytes = out->memory.bytes;
    if (status == AX_OK) {
        out->memory = g.set->memory;
        bytes[AX_MEMORY_ACTIVATIONS] = ax_frame_plan_bytes(out->plan);
        bytes[AX_MEMORY_BATCH] += ids_bytes(&g);
        bytes[AX_MEMORY_TABLES] = ax_layer_table_bytes(g.model->root);
        bytes[AX_MEMORY_MESSAGES] = ax_pipeline_bytes(g.prompts) + ax_pipeline_bytes(g.singles);
        bytes[AX_MEMORY_CACHE] = g.cache ? ax_kv_cache_bytes(g.cache) : 0;
        status = ax_memory_find_pinned(dry->grid, out->ctx->dev->ops.name, &bytes[AX_MEMORY_PINNED]);
    }
    destroy(&g);
    return status;
}

static ax_status plan(ax_generator *g, const ax_model_config *config)
{
    ax_ctx *dry;
    const ax_engine_options prompt = {
        .model = config, .seq_len = g->prompt, .micro_batch = 1, .global_batch = 1};
    AX_TRY(ax_block_costs(g->ctx, &prompt, &g->costs));
    const ax_grid *grid = g->ctx->grid;
    AX_TRY(ax_ctx_create_dry(ax_grid_rank(grid), ax_grid_ranks(grid), ax_grid_sizes(grid), g->ctx->compute,
                             &g->ctx->parallel, &dry));
    ax_status status = dry_run(dry, config, g);
    if (status == AX_OK)
        status = ax_grid_used(dry->grid, &g->axes);
    if (status == AX_OK)
        status = ax_device_workspace(g->ctx->dev->ops.name, g->ctx->dev->threads,
                                     &g->memory.bytes[AX_MEMORY_WORKSPACE]);
    ax_ctx_destroy(&dry);
    return status;
}

/* Creates a generator. With `capacity` 0, the generator computes the logits of whole sequences and has no
 * key/value cache. */
static ax_status create(ax_ctx *ctx, const ax_pretrained *model, int64_t prompt, int64_t capacity,
                        ax_generator **out)
{
    AX_CHECK(prompt > 0, AX_ERR_USAGE, "a generator needs a prompt of at least one token");
    const int64_t most = ax_model_config_positions(&model->config);
    AX_CHECK(ax_max(prompt, capacity) <= most, AX_ERR_USAGE,
             "%lld tokens do not fit the model, which has %lld positions: use fewer tokens",
             (long long)ax_max(prompt, capacity), (long long)most);
    AX_CHECK(
        ax_grid_group_size(ctx->grid, ax_batch_axes(ctx)) == 1, AX_ERR_USAGE,
        "a generator has one sequence, which cannot be divided among ranks like the rows of a batch: the "
        "context's strategy must be ax_strategy_inference");
    ax_generator *g;
    AX_TRY(ax_calloc(1, sizeof *g, &g));
    g->ctx = ctx;
    g->prompt = prompt;
    g->capacity = capacity;
    char what[96];
    snprintf(what, sizeof what, "the model with %lld positions needs", (long long)ax_max(prompt, capacity));
    ax_status status = ax_comm_agree(ctx->world, plan(g, &model->config));
    if (status == AX_OK)
        status = ax_memory_admit(ctx, &g->memory, what, "use fewer tokens, bf16 or fp16, or more ranks");
    if (status == AX_OK)
        status = ax_comm_agree(ctx->world, build(g, &model->config));
    if (status == AX_OK)
        status = ax_grid_prepare(ctx->grid, g->axes);
    if (status == AX_OK)
        status = ax_comm_agree(ctx->world, reserve_messages(g));
    if (status == AX_OK)
        status = ax_pretrained_load(model, g->set);
    *out = g;
    if (status != AX_OK)
        ax_generator_destroy(out);
    return status;
}

ax_status ax_generator_create(ax_ctx *ctx, const ax_pretrained *model, int64_t prompt, int64_t capacity,
                              ax_generator **out)
{
    return create(ctx, model, prompt, ax_max(capacity, prompt), out);
}

void ax_generator_destroy(ax_generator **generator)
{
    ax_generator *g = *generator;
    if (!g)
        return;
    destroy(g);
    ax_frame_plan_destroy(&g->plan);
    free(g->axes);
    free(g->costs);
    free(g);
    *generator = NULL;
}

const ax_memory *ax_generator_memory(const ax_generator *generator) { return &generator->memory; }

ax_status ax_generator_feed(ax_generator *g, const int32_t *tokens, int64_t n, const float **logits)
{
    int64_t length = ax_kv_cache_length(g->cache);
    AX_CHECK(n == (length ? 1 : g->prompt), AX_ERR_USAGE,
             "ax_generator_feed: n is %lld; feed the %lld tokens of the prompt at the first call, and then "
             "one token at each call",
             (long long)n, (long long)g->prompt);
    AX_CHECK(
        length + n <= g->capacity, AX_ERR_USAGE,
        "a generator of %lld positions, of which %lld are used, cannot take %lld more: create it with more",
        (long long)g->capacity, (long long)length, (long long)n);
    AX_TRY(check_ids(g, tokens, n));
    AX_TRY(feed(g, tokens, n));
    *logits = g->logits;
    return AX_OK;
}

ax_status ax_generator_rewind(ax_generator *g, int64_t positions)
{
    int64_t length = ax_kv_cache_length(g->cache);
    AX_CHECK(
        positions >= 0 && positions <= length, AX_ERR_USAGE,
        "ax_generator_rewind: positions is %lld; the generator holds %lld, so it can go back to 0 to %lld",
        (long long)positions, (long long)length, (long long)length);
    ax_kv_cache_truncate(g->cache, positions);
    return AX_OK;
}

ax_status ax_pretrained_logits(ax_ctx *ctx, const ax_pretrained *model, const int32_t *tokens, int64_t n,
                               ax_take_logits_fn *take, void *user)
{
    ax_generator *g;
    AX_TRY(create(ctx, model, n, 0, &g));
    ax_status status = check_ids(g, tokens, n);
    if (status == AX_OK)
        status = all_logits(g, tokens, take, user);
    ax_generator_destroy(&g);
    return status;
}
