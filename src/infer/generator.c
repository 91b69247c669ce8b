/* Inference: continues sequences token by token with a key/value cache, or computes the logits of all
 * positions of one sequence. The same code builds the generator twice: first on the device `dry`, which
 * computes nothing, to find out how much memory the generator needs, then on the real device. */
#include "axonn/infer.h"
#include "axonn/pipeline.h"
#include "engine/costs.h"
#include "engine/fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ax_generator {
    ax_ctx *ctx;
    ax_model *model;
    ax_param_set *set;
    ax_pipeline *chunks, *steps; /* for a chunk of one sequence, and for a token of each: their messages
                                    differ in size */
    ax_kv_cache *cache;          /* NULL: the generator computes the logits of whole sequences */
    ax_frame *frame;
    ax_frame_plan *plan; /* memory plan of `frame`; NULL on the device `dry`, where the plan is made */
    ax_grid_use *axes;   /* the sets of grid axes along which ranks communicate */
    int64_t *costs;      /* costs of the layers (ax_model_use.costs) */
    const ax_loki *loki; /* ax_pretrained.loki */
    ax_generator_options options; /* capacity 0: no cache */
    int64_t *length;              /* [slots]: positions of each sequence that are in the cache */
    int32_t *host, *device; /* [3, most rows of a pass]: token ids, positions, and places in the cache */
    float *logits;          /* [slots, vocab], on the host */
    int64_t passes;         /* number of passes so far */
    ax_memory memory;
};

/* Returns the number of ranks along data that have slots of their own. Tensors of a pass are global: they
 * have the samples of all of them. */
static int64_t groups_of(const ax_generator *g)
{
    return ax_grid_group_size(g->ctx->grid, ax_batch_axes(g->ctx));
}

/* Returns the layout of a tensor of samples that is not split otherwise. */
static ax_layout samples_layout(const ax_generator *g)
{
    return ax_layout_of_roles(g->ctx, (ax_role[]){AX_ROLE_BATCH}, 1);
}

/* Returns the largest number of tokens of a pass. */
static int64_t most_rows(const ax_generator *g) { return ax_max(g->options.chunk, g->options.slots); }

static size_t logits_bytes(const ax_generator *g)
{
    return (size_t)(g->options.slots * g->model->config.vocab) * sizeof(float);
}

static size_t ids_bytes(const ax_generator *g) { return (size_t)(3 * most_rows(g)) * sizeof(int32_t); }

/* ---- one pass ------------------------------------------------------------------------------------ */

/* What a pass computes on this rank. */
typedef struct pass {
    ax_generator *g;
    const char *task;
    ax_pipeline *pipeline;
    int64_t samples, len; /* the pass has samples · len tokens */
    bool wanted;          /* the logits are wanted */
    bool last;            /* only those of the last position of each sample */
    ax_batch batch;
    ax_tensor logits; /* on ranks of the last pipeline stage: whole, not split over ranks; else empty */
} pass;

/* Sets token number i of the pass; `place` is its row in the cache, or -1. */
static void put_token(const pass *p, int64_t i, int32_t token, int64_t position, int64_t place)
{
    int32_t *host = p->g->host;
    const int64_t rows = most_rows(p->g);
    host[i] = token;
    host[rows + i] = (int32_t)position;
    host[2 * rows + i] = (int32_t)place;
}

/* Copies the tokens that put_token has set to the device, and makes the tensors of p->batch views of these
 * copies. */
static ax_status load_tokens(pass *p)
{
    ax_generator *g = p->g;
    ax_tensor *views[] = {&p->batch.tokens, &p->batch.positions, &p->batch.places};
    const ax_layout layout = samples_layout(g);
    AX_TRY(ax_copy_in(g->ctx->stream, g->device, g->host, ids_bytes(g)));
    for (int i = 0; i < 3; i++) {
        *views[i] = ax_tensor_make(AX_I32, 2, (int64_t[]){p->samples * groups_of(g), p->len}, NULL, &layout);
        views[i]->data = g->device + i * most_rows(g);
    }
    return AX_OK;
}

/* Runs a chunk of this rank's pipeline stage; at the end of the model computes the logits. */
static ax_status run_piece(void *user, ax_pipe_piece piece, int slot)
{
    (void)slot;
    pass *p = user;
    ax_tensor split;
    ax_frame *frame = p->g->frame;
    AX_TRY(ax_pipeline_forward(p->pipeline, piece, frame, &p->batch));
    if (!ax_model_ends(p->g->model, piece.chunk))
        return AX_OK;
    if (!p->wanted)
        return ax_model_forward(p->g->model, piece.chunk, frame, &split);
    const ax_layout whole = samples_layout(p->g);
    AX_TRY(ax_model_logits(p->g->model, frame, p->last, &split));
    return ax_settle(frame, &split, &whole, &p->logits);
}

/* Runs the model on the tokens that put_token has set. */
static ax_status run_model(pass *p)
{
    ax_generator *g = p->g;
    AX_TRY(load_tokens(p));
    AX_TRY(ax_frame_begin(g->frame, p->task, AX_MODE_EVAL, &p->batch));
    AX_TRY(ax_pipeline_begin(p->pipeline, g->passes++, 1, false));
    return ax_pipeline_run(p->pipeline,
                           &(ax_pipeline_tasks){.run = {[AX_PIPE_FORWARD] = run_piece}, .user = p});
}

/* Converts rows first … first+n-1 of p->logits, [samples · positions, vocab], to fp32 and copies them to the
 * generator's logits in host memory, on the ranks of all stages. `staging`: device memory for them. */
static ax_status take_rows(const pass *p, float *staging, int64_t first, int64_t n)
{
    ax_generator *g = p->g;
    const ax_tensor *logits = &p->logits;
    const int64_t vocab = g->model->config.vocab;
    for (int64_t i = 0; i < n && ax_model_is_last(g->model); i++) {
        int64_t at = (first + i) * ax_tensor_pitch(g->ctx->grid, logits);
        const char *from = (const char *)logits->data + (size_t)at * ax_dtype_size(logits->dtype);
        AX_TRY(ax_run_convert(g->ctx->stream, &(ax_convert_args){.n = vocab,
                                                                 .x = from,
                                                                 .y = staging + i * vocab,
                                                                 .x_dtype = logits->dtype,
                                                                 .y_dtype = AX_F32}));
    }
    AX_TRY(ax_pipeline_share(p->pipeline, staging, n * vocab, AX_F32));
    return ax_copy_out(g->ctx->stream, g->logits, staging, (size_t)(n * vocab) * sizeof(float));
}

/* Runs the model, and copies the logits of each sample's last position to the host. */
static ax_status run_samples(pass *p)
{
    void *staging;
    AX_TRY(run_model(p));
    if (!p->wanted)
        return AX_OK;
    AX_TRY(ax_frame_scratch(p->g->frame, AX_F32, p->samples * p->g->model->config.vocab, &staging));
    return take_rows(p, staging, 0, p->samples);
}

/* Feeds n tokens, at most a chunk, to a slot. They are the last of the chunk; the rows before them are
 * padding, which sees no key, or keys before the chunk, and goes nowhere. */
static ax_status run_chunk(ax_generator *g, int64_t slot, const int32_t *tokens, int64_t n, bool wanted)
{
    const int64_t chunk = g->options.chunk, pads = chunk - n, first = g->length[slot] - pads;
    pass p = {.g = g,
              .task = wanted ? "prefill" : "chunk",
              .pipeline = g->chunks,
              .samples = 1,
              .len = chunk,
              .wanted = wanted,
              .last = true};
    for (int64_t i = 0; i < chunk; i++)
        if (i < pads)
            put_token(&p, i, 0, 0, -1);
        else
            put_token(&p, i, tokens[i - pads], first + i, slot * g->options.capacity + first + i);
    ax_kv_cache_set(g->cache, slot, first);
    ax_kv_cache_choose(g->cache, false); /* a prompt is read with all its keys */
    AX_TRY(run_samples(&p));
    g->length[slot] += n;
    return AX_OK;
}

/* Feeds a token to each slot, except where tokens[slot] is negative: such a slot computes something, too,
 * which goes nowhere. */
static ax_status run_step(ax_generator *g, const int32_t *tokens)
{
    const int64_t slots = g->options.slots;
    pass p = {.g = g,
              .task = "decode",
              .pipeline = g->steps,
              .samples = slots,
              .len = 1,
              .wanted = true,
              .last = true};
    for (int64_t i = 0; i < slots; i++)
        if (tokens[i] < 0)
            put_token(&p, i, 0, 0, -1);
        else
            put_token(&p, i, tokens[i], g->length[i], i * g->options.capacity + g->length[i]);
    ax_kv_cache_set(g->cache, 0, g->length[0]);
    ax_kv_cache_choose(g->cache, true);
    AX_TRY(run_samples(&p));
    for (int64_t i = 0; i < slots; i++)
        g->length[i] += tokens[i] >= 0;
    return AX_OK;
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

static ax_status all_logits(ax_generator *g, const int32_t *tokens, ax_take_logits_fn *take, void *user)
{
    const int64_t n = g->options.chunk, vocab = g->model->config.vocab;
    pass p = {.g = g, .task = "logits", .pipeline = g->chunks, .samples = 1, .len = n, .wanted = true};
    void *staging;
    for (int64_t i = 0; i < n; i++)
        put_token(&p, i, tokens ? tokens[i] : 0, i, -1);
    AX_TRY(run_model(&p));
    AX_TRY(ax_frame_scratch(g->frame, AX_F32, vocab, &staging));
    for (int64_t t = 0; t < n; t++) {
        AX_TRY(take_rows(&p, staging, t, 1));
        if (take)
            AX_TRY(take(user, t, g->logits, vocab));
    }
    return AX_OK;
}

static ax_status build(ax_generator *g, const ax_model_config *config)
{
    const ax_generator_options *o = &g->options;
    const ax_model_use use = {.positions = o->capacity ? o->capacity : o->chunk, .costs = g->costs};
    AX_TRY(ax_model_create(g->ctx, config, &use, &g->model));
    AX_TRY(ax_layer_param_set(g->model->root, -1, &g->set));
    if (g->loki)
        AX_TRY(ax_loki_attach(g->model->root, g->loki));
    AX_TRY(ax_pipeline_create(g->model, groups_of(g), o->chunk, 1, false, &g->chunks));
    AX_TRY(ax_pipeline_create(g->model, o->slots * groups_of(g), 1, 1, false, &g->steps));
    if (o->capacity)
        AX_TRY(ax_kv_cache_create(g->ctx, g->model->root, o->slots * groups_of(g), o->capacity, &g->cache));
    AX_TRY(ax_calloc((size_t)o->slots, sizeof *g->length, &g->length));
    AX_TRY(ax_calloc(1, ids_bytes(g), &g->host));
    AX_TRY(ax_calloc(1, logits_bytes(g), &g->logits));
    AX_TRY(ax_ctx_alloc(g->ctx, AX_MEMORY_BATCH, ids_bytes(g), (void **)&g->device));
    return g->plan ? ax_frame_create_planned(g->ctx, g->plan, &g->frame)
                   : ax_frame_create(g->ctx, 0, &g->frame);
}

/* Reserves pinned memory for all messages, so that no rank fails alone for lack of it in a later call. */
static ax_status reserve_messages(ax_generator *g)
{
    AX_TRY(ax_param_set_reserve_messages(g->set));
    AX_TRY(ax_pipeline_connect(g->chunks));
    return ax_pipeline_connect(g->steps);
}

static void destroy(ax_generator *g)
{
    ax_pipeline_destroy(&g->chunks);
    ax_pipeline_destroy(&g->steps);
    ax_frame_destroy(&g->frame);
    ax_kv_cache_destroy(&g->cache);
    if (g->device)
        ax_ctx_free(g->ctx, AX_MEMORY_BATCH, g->device, ids_bytes(g));
    ax_param_set_destroy(&g->set);
    ax_model_destroy(&g->model);
    free(g->length);
    free(g->host);
    free(g->logits);
}

/* Runs the passes of a generator with a cache: each as often as has memory of its own. */
static ax_status run_passes(ax_generator *g)
{
    static const int32_t token = 0;
    for (int64_t i = 0; i < g->options.slots; i++)
        g->host[i] = 0;
    AX_TRY(run_chunk(g, 0, &token, 1, false));
    g->length[0] = 0;
    AX_TRY(run_chunk(g, 0, &token, 1, true));
    g->length[0] = 0;
    return run_step(g, g->host);
}

/* Runs the passes of the generator on the device `dry`, which computes nothing, to measure its memory. Sets
 * out->plan, and all of out->memory except `workspace`. */
static ax_status dry_run(ax_ctx *dry, const ax_model_config *config, ax_generator *out)
{
    ax_generator g = {.ctx = dry, .loki = out->loki, .options = out->options, .costs = out->costs};
    ax_status status = build(&g, config);
    if (status == AX_OK)
        status = reserve_messages(&g);
    if (status == AX_OK)
        status = g.cache ? run_passes(&g) : all_logits(&g, NULL, NULL, NULL);
    if (status == AX_OK)
        status = ax_frame_plan_create(g.frame, 1, NULL, NULL, &out->plan);
    size_t *bytes = out->memory.bytes;
    if (status == AX_OK) {
        out->memory = g.set->memory;
        bytes[AX_MEMORY_ACTIVATIONS] = ax_frame_plan_bytes(out->plan);
        bytes[AX_MEMORY_BATCH] += ids_bytes(&g);
        bytes[AX_MEMORY_TABLES] = ax_layer_table_bytes(g.model->root);
        bytes[AX_MEMORY_MESSAGES] = ax_pipeline_bytes(g.chunks) + ax_pipeline_bytes(g.steps);
        bytes[AX_MEMORY_LOGITS] = logits_bytes(&g);
        bytes[AX_MEMORY_CACHE] = g.cache ? ax_kv_cache_bytes(g.cache) : 0;
        bytes[AX_MEMORY_PINNED] = ax_device_host_access(out->ctx->dev) ? 0 : ax_memory_pinned(dry->grid);
        bytes[AX_MEMORY_COLLECTIVES] = ax_grid_buffers(dry->grid);
    }
    destroy(&g);
    return status;
}

static ax_status plan(ax_generator *g, const ax_model_config *config)
{
    ax_ctx *dry;
    const ax_engine_options chunk = {
        .model = config, .seq_len = g->options.chunk, .micro_batch = 1, .global_batch = groups_of(g)};
    AX_TRY(ax_block_costs(g->ctx, &chunk, &g->costs));
    const ax_grid *grid = g->ctx->grid;
    AX_TRY(ax_ctx_create_dry(ax_grid_rank(grid), ax_grid_ranks(grid), ax_grid_sizes(grid), g->ctx->compute,
                             &g->ctx->parallel, &dry));
    ax_status status = AX_OK;
    if (ax_device_host_access(g->ctx->dev))
        status = ax_comm_dry_nodes_of(dry->world, g->ctx->world);
    if (status == AX_OK)
        status = dry_run(dry, config, g);
    if (status == AX_OK)
        status = ax_grid_used(dry->grid, &g->axes);
    if (status == AX_OK)
        status = ax_device_workspace(g->ctx->dev->ops.name, g->ctx->dev->threads,
                                     &g->memory.bytes[AX_MEMORY_WORKSPACE]);
    ax_ctx_destroy(&dry);
    return status;
}

/* Returns AX_ERR_USAGE unless the options suit the model and the context. */
static ax_status check_options(const ax_ctx *ctx, const ax_pretrained *model, const ax_generator_options *o)
{
    const int64_t most = ax_model_config_positions(&model->config), tokens = ax_max(o->chunk, o->capacity);
    AX_CHECK(o->slots > 0 && o->chunk > 0, AX_ERR_USAGE,
             "a generator needs at least one slot, and chunks of at least one token");
    AX_CHECK(tokens <= most, AX_ERR_USAGE,
             "%lld tokens do not fit the model, which has %lld positions: use fewer tokens",
             (long long)tokens, (long long)most);
    AX_CHECK(o->slots <= INT32_MAX / tokens, AX_ERR_USAGE,
             "a generator has at most %d positions in all, not %lld of %lld sequences: use fewer of them",
             INT32_MAX, (long long)tokens, (long long)o->slots);
    const bool apart = ax_strategy_of(ctx) == &ax_strategy_generation;
    AX_CHECK(apart || ax_grid_group_size(ctx->grid, ax_batch_axes(ctx)) == 1, AX_ERR_USAGE,
             "a generator does not divide sequences among ranks as strategy %s does: the context's strategy "
             "must be "
             "ax_strategy_inference or ax_strategy_generation",
             ax_strategy_of(ctx)->name);
    AX_CHECK(!apart || !ax_grid_experts(ctx->grid), AX_ERR_USAGE,
             "ranks that divide experts along data must generate the same sequences: the context's strategy "
             "must be "
             "ax_strategy_inference");
    return AX_OK;
}

/* Sets *out to a generator that is not built yet, whose memory is planned and there. */
static ax_status admit(ax_ctx *ctx, const ax_pretrained *model, const ax_generator_options *options,
                       ax_generator **out)
{
    ax_generator *g;
    char what[96];
    AX_TRY(check_options(ctx, model, options));
    AX_TRY(ax_calloc(1, sizeof *g, &g));
    g->ctx = ctx;
    g->loki = model->loki;
    g->options = *options;
    snprintf(what, sizeof what, "the model with %lld positions%s needs",
             (long long)ax_max(options->chunk, options->capacity),
             options->slots > 1 ? " for each sequence of a batch" : "");
    ax_status status = ax_comm_agree(ctx->world, plan(g, &model->config));
    if (status == AX_OK)
        status =
            ax_memory_admit(ctx, &g->memory, g->axes, what, "use fewer tokens, bf16 or fp16, or more ranks");
    *out = g;
    if (status != AX_OK)
        ax_generator_destroy(out);
    return status;
}

/* Creates a generator. With a capacity of 0, the generator computes the logits of a whole sequence and has no
 * key/value cache. */
static ax_status create(ax_ctx *ctx, const ax_pretrained *model, const ax_generator_options *options,
                        ax_generator **out)
{
    AX_TRY(admit(ctx, model, options, out));
    ax_generator *g = *out;
    ax_status status = ax_comm_agree(ctx->world, build(g, &model->config));
    if (status == AX_OK)
        status = ax_grid_prepare(ctx->grid, g->axes);
    if (status == AX_OK)
        status = ax_comm_agree(ctx->world, reserve_messages(g));
    if (status == AX_OK)
        status = ax_pretrained_load(model, g->set);
    if (status == AX_OK)
        status = ax_comm_agree(ctx->world, ax_pretrained_load_turns(model, g->model->root));
    if (status != AX_OK)
        ax_generator_destroy(out);
    return status;
}

ax_status ax_generator_most_slots(ax_ctx *ctx, const ax_pretrained *model,
                                  const ax_generator_options *options, int64_t *slots)
{
    ax_generator_options o = *options;
    *slots = 0;
    for (int64_t above = options->slots + 1; above - *slots > 1;) { /* `above` slots do not fit */
        ax_generator *g = NULL;
        o.slots = *slots + (above - *slots) / 2;
        ax_status status = admit(ctx, model, &o, &g);
        ax_generator_destroy(&g);
        if (status != AX_OK && status != AX_ERR_MEMORY)
            return status;
        *(status == AX_OK ? slots : &above) = o.slots;
    }
    return AX_OK;
}

ax_status ax_generator_create(ax_ctx *ctx, const ax_pretrained *model, const ax_generator_options *options,
                              ax_generator **out)
{
    AX_CHECK(options->capacity >= options->chunk, AX_ERR_USAGE,
             "a generator of %lld positions cannot take chunks of %lld tokens: use smaller chunks",
             (long long)options->capacity, (long long)options->chunk);
    return create(ctx, model, options, out);
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

static ax_status check_room(const ax_generator *g, int64_t slot, int64_t n)
{
    AX_CHECK(slot >= 0 && slot < g->options.slots, AX_ERR_USAGE, "a generator of %lld slots has no slot %lld",
             (long long)g->options.slots, (long long)slot);
    AX_CHECK(n > 0 && g->length[slot] + n <= g->options.capacity, AX_ERR_USAGE,
             "a slot of %lld positions, of which %lld are used, cannot take %lld more: create the generator "
             "with more",
             (long long)g->options.capacity, (long long)g->length[slot], (long long)n);
    return AX_OK;
}

ax_status ax_generator_feed(ax_generator *g, int64_t slot, const int32_t *tokens, int64_t n,
                            const float **logits)
{
    AX_TRY(check_room(g, slot, n));
    AX_TRY(check_ids(g, tokens, n));
    for (int64_t at = 0, count; at < n; at += count) {
        count = ax_min(g->options.chunk, n - at);
        AX_TRY(run_chunk(g, slot, tokens + at, count, logits && at + count == n));
    }
    if (logits)
        *logits = g->logits;
    return AX_OK;
}

ax_status ax_generator_step(ax_generator *g, const int32_t *tokens, const float **logits)
{
    for (int64_t i = 0; i < g->options.slots; i++)
        if (tokens[i] != AX_IDLE) {
            AX_TRY(check_room(g, i, 1));
            AX_TRY(check_ids(g, &tokens[i], 1));
        }
    AX_TRY(run_step(g, tokens));
    *logits = g->logits;
    return AX_OK;
}

ax_status ax_generator_copy(ax_generator *g, int64_t from, int64_t to, int64_t positions)
{
    AX_CHECK(from >= 0 && from < g->options.slots && to >= 0 && to < g->options.slots && from != to &&
                 positions >= 0 && positions <= g->length[from],
             AX_ERR_USAGE, "ax_generator_copy: cannot copy %lld positions of slot %lld to slot %lld",
             (long long)positions, (long long)from, (long long)to);
    AX_TRY(ax_kv_cache_copy(g->cache, from, to, positions));
    g->length[to] = positions;
    return AX_OK;
}

ax_status ax_generator_rewind(ax_generator *g, int64_t slot, int64_t positions)
{
    AX_CHECK(
        slot >= 0 && slot < g->options.slots && positions >= 0 && positions <= g->length[slot], AX_ERR_USAGE,
        "ax_generator_rewind: slot is %lld, positions is %lld; the generator has %lld slots, and can go back "
        "to 0 or more positions that it holds",
        (long long)slot, (long long)positions, (long long)g->options.slots);
    g->length[slot] = positions;
    return AX_OK;
}

ax_status ax_pretrained_logits(ax_ctx *ctx, const ax_pretrained *model, const int32_t *tokens, int64_t n,
                               ax_take_logits_fn *take, void *user)
{
    ax_generator *g;
    AX_TRY(create(ctx, model, &(ax_generator_options){.slots = 1, .chunk = n}, &g));
    ax_status status = check_ids(g, tokens, n);
    if (status == AX_OK)
        status = all_logits(g, tokens, take, user);
    ax_generator_destroy(&g);
    return status;
}
