/* One text after the other that a model continues token by token: feeds a generator of one slot, and gives
 * each text the tokens that are drawn. */
#include "infer/continuation.h"

#include <stdlib.h>

struct ax_text {
    ax_ctx *ctx;
    const ax_pretrained *model;
    ax_text_options options;
    ax_generator *generator;
    int64_t chunk, capacity; /* tokens of a chunk, and positions, of the generator; 0: there is none */
    float *work;             /* [3, vocab]: scratch of ax_continuation_draw */
    ax_continuation now;     /* the text that is being continued */
    size_t cached;           /* number of its tokens that are in the generator's cache, from the first on */
};

ax_status ax_text_create(ax_ctx *ctx, const ax_pretrained *model, const ax_text_options *options,
                         ax_text **out)
{
    ax_text *t;
    AX_TRY(ax_calloc(1, sizeof *t, &t));
    *t = (ax_text){.ctx = ctx, .model = model, .options = *options};
    ax_status status = ax_calloc(3 * (size_t)model->config.vocab, sizeof *t->work, &t->work);
    if (status != AX_OK)
        ax_text_destroy(&t);
    *out = t;
    return status;
}

void ax_text_destroy(ax_text **text)
{
    ax_text *t = *text;
    if (!t)
        return;
    ax_generator_destroy(&t->generator);
    ax_continuation_fini(&t->now);
    free(t->work);
    free(t);
    *text = NULL;
}

/* Returns the tokens of a chunk. A conversation is fed turn by turn, in small chunks; another prompt in as
 * few as its activations in memory allow, none of which is padded by more than a few tokens. */
static int64_t chunk_of(const ax_text *t, size_t n, int64_t capacity)
{
    enum { OF_TURNS = 64, MOST = 512 };
    return t->options.grows ? ax_min(OF_TURNS, capacity)
                            : ax_ceil_div((int64_t)n, ax_ceil_div((int64_t)n, MOST));
}

/* Creates a generator, unless that of the text before has enough positions. Twice as many as needed, if texts
 * grow: few generators are created while a conversation does. */
static ax_status make_room(ax_text *t)
{
    const int64_t positions = ax_model_config_positions(&t->model->config), most = t->now.most,
                  capacity = t->options.grows ? ax_min(2 * most, positions) : most;
    if (t->capacity >= most)
        return AX_OK;
    t->capacity = 0;
    t->cached = 0;
    ax_generator_destroy(&t->generator);
    const ax_generator_options options = {1, chunk_of(t, t->now.prompt, capacity), capacity};
    AX_TRY(ax_generator_create(t->ctx, t->model, &options, &t->generator));
    t->chunk = options.chunk;
    t->capacity = capacity;
    return AX_OK;
}

/* Returns the number of tokens in the cache with which the prompt begins, but not the whole prompt: the
 * logits of its last token are needed. */
static size_t count_kept(const ax_text *t, const int32_t *ids, size_t n)
{
    size_t kept = 0;
    while (kept < t->cached && kept + 1 < n && t->now.ids.data[kept] == ids[kept])
        kept++;
    return kept;
}

ax_status ax_text_start(ax_text *t, const int32_t *ids, size_t n, int64_t sample)
{
    t->cached = count_kept(t, ids, n);
    AX_TRY(ax_continuation_begin(&t->now, t->model, &t->options, &(ax_prompt){.ids = ids, .n = n}, sample));
    ax_status status = make_room(t);
    if (status == AX_OK)
        status = ax_generator_rewind(t->generator, 0, (int64_t)t->cached);
    if (status != AX_OK)
        t->now.finish = AX_FINISH_LENGTH; /* there is no text to continue */
    return status;
}

/* Feeds the tokens that are not in the cache, and sets *logits to those of the last one. A step computes a
 * row and reads the weights once, a chunk computes all its rows: steps are faster for few tokens. Where
 * queries choose the keys that they read (ax_pretrained.loki), they do so in steps: the last token is always
 * fed by one, as in a batch of texts. */
static ax_status feed_rest(ax_text *t, const float **logits)
{
    enum { ROWS_OF_STEP = 8 };
    const int64_t rest = (int64_t)(t->now.ids.size - t->cached);
    const int32_t *ids = t->now.ids.data + t->cached;
    t->cached = t->now.ids.size;
    const bool few = rest <= ax_max(1, t->chunk / ROWS_OF_STEP);
    const int64_t chunked = t->model->loki ? rest - 1 : few ? 0 : rest;
    if (chunked)
        AX_TRY(ax_generator_feed(t->generator, 0, ids, chunked, logits));
    for (int64_t i = chunked; i < rest; i++)
        AX_TRY(ax_generator_step(t->generator, ids + i, logits));
    return AX_OK;
}

/* Draws the next token on every rank, then gives all ranks the token of rank 0: all ranks should have the
 * same logits, but a difference in rounding must not let their sequences diverge. */
ax_status ax_text_next(ax_text *t)
{
    int32_t id;
    ax_work *work;
    const float *logits = NULL;
    AX_CHECK(t->capacity && t->now.finish == AX_UNFINISHED, AX_ERR_USAGE,
             "ax_text_next: the text is finished, or was not begun: call ax_text_start first");
    AX_TRY(feed_rest(t, &logits));
    AX_TRY(ax_continuation_draw(&t->now, logits, t->work, &id));
    AX_TRY(ax_broadcast(t->ctx->world, NULL, &id, 1, AX_I32, 0, &work));
    AX_TRY(ax_wait(&work));
    return ax_continuation_add(&t->now, id);
}

ax_finish ax_text_finish(const ax_text *t) { return t->now.finish; }

const int32_t *ax_text_ids(const ax_text *t, size_t *n)
{
    *n = t->now.ids.size - t->now.prompt;
    return t->now.ids.data + t->now.prompt;
}

const char *ax_text_take(ax_text *t, size_t *n) { return ax_continuation_take(&t->now, n); }
const char *ax_text_get(const ax_text *t, size_t *n) { return ax_continuation_get(&t->now, n); }
