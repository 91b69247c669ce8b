/* Texts of many prompts: slots of a generator, each of which continues one text and, when it has ended,
 * another. The ranks of each coordinate along axis data have slots of their own. All ranks keep the texts of
 * all slots, so they agree on what comes next without messages; only the tokens that are drawn are exchanged.
 */
#include "infer/continuation.h"

#include <stdlib.h>
#include <string.h>

/* A step computes at least LEAST rows: kernels for fewer rows have other rounding, and a text would depend on
 * how many are continued beside it. CHUNK: tokens of a prompt that are fed at a time. */
enum { LEAST = 5, CHUNK = 64 };

typedef struct slot {
    ax_continuation now;
    const ax_prompt *prompt; /* whose tokens but the last are in the slot's cache, also when its text has
                                ended; or NULL */
    int64_t sample;
    bool busy;
} slot;

typedef struct texts {
    ax_ctx *ctx;
    const ax_pretrained *model;
    const ax_text_options *options;
    const ax_prompt *prompts;
    size_t count;
    size_t next; /* the next text to begin: of this prompt, this sample */
    int64_t sample;
    int64_t size;        /* slots of a group */
    int groups, mine;    /* number of coordinates that have slots of their own; this rank's */
    int members, member; /* number of ranks of a group; this rank's number among them */
    ax_generator *generator;
    slot *slot;     /* [groups, size] */
    int32_t *fed;   /* [slots of the generator]: tokens of a step */
    int32_t *drawn; /* [groups, size]: the tokens that were drawn, plus 1; 0: no text, or none was drawn. Then
                       the number of ranks on which the step failed */
    const float *logits; /* of the generator, of the last step */
    int threads;         /* that draw tokens */
    float *work;         /* [threads, 3, vocab] */
    ax_take_continued_fn *take;
    void *user;
} texts;

/* ---- groups of ranks ----------------------------------------------------------------------------- */

/* Finds the ranks with which this rank works on the same slots: with ax_strategy_generation those with its
 * coordinate along data, else all. */
static void find_group(texts *b)
{
    const ax_grid *grid = b->ctx->grid;
    const int rank = ax_grid_rank(grid);
    b->groups = ax_grid_group_size(grid, ax_batch_axes(b->ctx));
    b->mine = b->groups > 1 ? ax_grid_coord(grid, rank, AX_DATA) : 0;
    for (int r = 0; r < ax_grid_ranks(grid); r++) {
        const bool together = b->groups == 1 || ax_grid_coord(grid, r, AX_DATA) == b->mine;
        b->members += together;
        b->member += together && r < rank;
    }
}

static slot *slot_of(const texts *b, int group, int64_t i) { return &b->slot[group * b->size + i]; }

/* ---- beginning texts ----------------------------------------------------------------------------- */

/* Finds the next text that is wanted; returns false if there is none. */
static bool find_next(texts *b)
{
    for (; b->next < b->count; b->next++, b->sample = 0)
        for (const ax_prompt *p = &b->prompts[b->next]; b->sample < p->samples; b->sample++)
            if (!p->done || !p->done[b->sample])
                return true;
    return false;
}

/* Returns the number of texts that are wanted. */
static int64_t count_texts(const texts *b)
{
    int64_t n = 0;
    for (size_t i = 0; i < b->count; i++)
        for (int64_t k = 0; k < b->prompts[i].samples; k++)
            n += !b->prompts[i].done || !b->prompts[i].done[k];
    return n;
}

/* Returns the slot of this rank's group that holds a prompt, slot i if that does, or -1. */
static int64_t find_holder(const texts *b, const ax_prompt *prompt, int64_t i)
{
    if (slot_of(b, b->mine, i)->prompt == prompt)
        return i;
    for (int64_t from = 0; from < b->size; from++)
        if (slot_of(b, b->mine, from)->prompt == prompt)
            return from;
    return -1;
}

/* Puts all tokens of a prompt but the last into the cache of slot i of this rank's group; the last is fed by
 * the next step, whose logits are needed. */
static ax_status fill(texts *b, int64_t i, const ax_prompt *prompt)
{
    const int64_t n = (int64_t)prompt->n - 1, from = find_holder(b, prompt, i);
    if (from >= 0 && from != i)
        return ax_generator_copy(b->generator, from, i, n);
    AX_TRY(ax_generator_rewind(b->generator, i, from == i ? n : 0));
    return from == i || !n ? AX_OK : ax_generator_feed(b->generator, i, prompt->ids, n, NULL);
}

/* Begins texts in free slots, as long as there are any. The groups take turns. *busy: some text is not ended.
 */
static ax_status begin_texts(texts *b, bool *busy)
{
    *busy = false;
    for (int64_t at = 0; at < b->size * b->groups; at++) {
        const int group = (int)(at % b->groups);
        const int64_t i = at / b->groups;
        slot *s = slot_of(b, group, i);
        if (!s->busy && find_next(b)) {
            const ax_prompt *prompt = &b->prompts[b->next];
            if (group == b->mine)
                AX_TRY(fill(b, i, prompt));
            s->prompt = prompt;
            s->sample = b->sample++;
            s->busy = true;
            AX_TRY(ax_continuation_begin(&s->now, b->model, b->options, prompt, s->sample));
        }
        *busy = *busy || s->busy;
    }
    return AX_OK;
}

/* ---- steps --------------------------------------------------------------------------------------- */

/* Draws the next token of the text in slot i of this rank's group, if it has one and it is not drawn yet;
 * `thread` has the scratch. */
static ax_status draw_one(const texts *b, int64_t i, int thread)
{
    const slot *s = slot_of(b, b->mine, i);
    const int64_t vocab = b->model->config.vocab;
    int32_t *drawn = &b->drawn[b->mine * b->size + i], id;
    if (!s->busy || *drawn)
        return AX_OK;
    AX_TRY(ax_continuation_draw(&s->now, b->logits + i * vocab, b->work + 3 * thread * vocab, &id));
    *drawn = id + 1;
    return AX_OK;
}

/* Draws the tokens that a thread has of those of this rank (ax_device_parallel). An error leaves a token out.
 * The ranks of a group divide the texts among them: all should have the same logits, but a difference in
 * rounding must not let texts diverge. */
static void draw_part(void *user, int part)
{
    const texts *b = user;
    for (int64_t i = b->member + b->members * part; i < b->size; i += b->members * b->threads)
        if (draw_one(b, i, part) != AX_OK)
            return;
}

/* Feeds the last token of each text of this rank's group, and draws the next ones. */
static ax_status draw_own(texts *b)
{
    for (int64_t i = 0; i < b->size; i++) {
        const slot *s = slot_of(b, b->mine, i);
        b->fed[i] = s->busy ? s->now.ids.data[s->now.ids.size - 1] : AX_IDLE;
    }
    AX_TRY(ax_generator_step(b->generator, b->fed, &b->logits));
    ax_device_parallel(b->ctx->dev, b->threads, draw_part, b);
    for (int64_t i = b->member; i < b->size; i += b->members)
        AX_TRY(draw_one(b, i, 0)); /* those that were left out, for the message on this thread */
    return AX_OK;
}

/* Draws the next token of each text of all groups. An error on any rank is one on all. */
static ax_status draw_tokens(texts *b)
{
    const int64_t slots = b->groups * b->size;
    ax_work *work;
    memset(b->drawn, 0, (size_t)(slots + 1) * sizeof *b->drawn);
    const ax_status status = draw_own(b);
    b->drawn[slots] = status != AX_OK;
    AX_TRY(ax_all_reduce(b->ctx->world, NULL, b->drawn, slots + 1, AX_I32, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    return b->drawn[slots] ? ax_comm_agree(b->ctx->world, status) : AX_OK;
}

/* Passes a text that has ended to the caller. */
static ax_status give(const texts *b, const slot *s)
{
    const ax_continuation *c = &s->now;
    ax_continued one = {.prompt = (size_t)(s->prompt - b->prompts),
                        .sample = s->sample,
                        .ids = c->ids.data + c->prompt,
                        .n = c->ids.size - c->prompt,
                        .finish = c->finish};
    one.text = ax_continuation_get(c, &one.size);
    return ax_comm_agree(b->ctx->world, b->take(b->user, &one));
}

/* Adds a token to each text, and ends those that it ends. */
static ax_status step(texts *b)
{
    AX_TRY(draw_tokens(b));
    for (int64_t at = 0; at < b->groups * b->size; at++) {
        slot *s = &b->slot[at];
        if (!s->busy)
            continue;
        AX_TRY(ax_continuation_add(&s->now, b->drawn[at] - 1));
        if (s->now.finish == AX_UNFINISHED)
            continue;
        s->busy = false;
        AX_TRY(give(b, s));
    }
    return AX_OK;
}

/* ---- all texts ----------------------------------------------------------------------------------- */

/* Creates the generator, with room for the longest text. AX_ERR_MEMORY: the message has the largest batch
 * that fits. */
static ax_status create_generator(texts *b)
{
    const int64_t positions = ax_model_config_positions(&b->model->config);
    int64_t capacity = CHUNK, fits; /* the chunk must not depend on the prompts */
    for (size_t i = 0; i < b->count; i++) {
        const ax_prompt *p = &b->prompts[i];
        capacity = ax_max(capacity, (int64_t)p->n + (p->max_tokens ? p->max_tokens : b->options->max_tokens));
    }
    capacity = ax_min(capacity, positions);
    const ax_generator_options o = {ax_max(b->size, LEAST), ax_min(CHUNK, positions), capacity};
    ax_status status = ax_generator_create(b->ctx, b->model, &o, &b->generator);
    if (status != AX_ERR_MEMORY || o.slots == LEAST)
        return status;
    AX_TRY(ax_generator_most_slots(b->ctx, b->model, &o, &fits));
    AX_CHECK(fits < LEAST, AX_ERR_MEMORY,
             "a batch of %lld texts of %lld positions does not fit into memory: the largest that does is "
             "--batch %lld",
             (long long)b->size, (long long)capacity, (long long)fits);
    return ax_fail(
        AX_ERR_MEMORY,
        "texts of %lld positions do not fit into memory, in a batch of any size: use fewer tokens, bf16 or "
        "fp16, or more ranks",
        (long long)capacity);
}

/* Checks the ids of all prompts, on all ranks alike. */
static ax_status check_prompts(const texts *b)
{
    for (size_t i = 0; i < b->count; i++)
        for (size_t k = 0; k < b->prompts[i].n; k++)
            AX_CHECK(b->prompts[i].ids[k] >= 0 && b->prompts[i].ids[k] < b->model->config.vocab, AX_ERR_USAGE,
                     "prompt %zu (from 0): token %zu has the id %d, but the model's vocabulary has the ids 0 "
                     "to %lld",
                     i, k, b->prompts[i].ids[k], (long long)b->model->config.vocab - 1);
    return AX_OK;
}

static ax_status run(texts *b)
{
    const int64_t slots = b->groups * b->size;
    AX_TRY(check_prompts(b));
    AX_TRY(create_generator(b));
    AX_TRY(ax_calloc((size_t)slots, sizeof *b->slot, &b->slot));
    AX_TRY(ax_calloc((size_t)slots + 1, sizeof *b->drawn, &b->drawn));
    AX_TRY(ax_calloc((size_t)ax_max(b->size, LEAST), sizeof *b->fed, &b->fed));
    b->threads = (int)ax_min(ax_device_workers(b->ctx->dev), ax_ceil_div(b->size, b->members));
    AX_TRY(ax_calloc(3 * (size_t)(b->threads * b->model->config.vocab), sizeof *b->work, &b->work));
    for (int64_t i = b->size; i < LEAST; i++)
        b->fed[i] = AX_IDLE;
    for (;;) {
        bool busy;
        AX_TRY(begin_texts(b, &busy));
        if (!busy)
            return AX_OK;
        AX_TRY(step(b));
    }
}

ax_status ax_prompts_continue(ax_ctx *ctx, const ax_pretrained *model, const ax_text_options *options,
                              const ax_prompt *prompts, size_t n, int64_t batch, ax_take_continued_fn *take,
                              void *user)
{
    texts b = {.ctx = ctx,
               .model = model,
               .options = options,
               .prompts = prompts,
               .count = n,
               .size = batch,
               .take = take,
               .user = user};
    AX_CHECK(batch > 0, AX_ERR_USAGE, "a batch has at least one text, not %lld", (long long)batch);
    find_group(&b);
    b.size = ax_min(batch, ax_max(1, ax_ceil_div(count_texts(&b), b.groups)));
    ax_status status = find_next(&b) ? run(&b) : AX_OK;
    for (int64_t i = 0; b.slot && i < b.groups * b.size; i++)
        ax_continuation_fini(&b.slot[i].now);
    ax_generator_destroy(&b.generator);
    free(b.slot), free(b.drawn), free(b.fed), free(b.work);
    return status;
}
