/* Texts that a model continues token by token: feeds a generator, draws the tokens, decodes them, and finds
 * where a text ends. */
#include "axonn/infer.h"

#include <stdlib.h>
#include <xxhash.h>

struct ax_text {
    ax_ctx *ctx;
    const ax_pretrained *model;
    ax_text_options options;
    ax_generator *generator;
    int64_t chunk, capacity; /* tokens of a chunk, and positions, of the generator; 0: there is none */
    float *work;             /* [3, vocab]: scratch of ax_sample, then penalized logits */
    /* The text that is being continued. */
    ax_ids ids;         /* the prompt, then the generated tokens */
    size_t prompt;      /* number of tokens of the prompt */
    size_t cached;      /* number of tokens that are in the generator's cache, from the first on */
    int64_t most;       /* the largest number of tokens, prompt included */
    uint64_t key;       /* of the random numbers */
    ax_decoder decoder; /* of the generated tokens */
    ax_buf text;
    size_t taken; /* bytes of `text` that ax_text_take has returned or left out */
    ax_finish finish;
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
    ax_ids_fini(&t->ids);
    ax_buf_fini(&t->text);
    free(t->work);
    free(t);
    *text = NULL;
}

/* ---- the beginning of a text --------------------------------------------------------------------- */

/* Returns the tokens of a chunk. A conversation is fed turn by turn, in small chunks; another prompt in as
 * few as its activations in memory allow, none of which is padded by more than a few tokens. */
static int64_t chunk_of(const ax_text *t, size_t n, int64_t capacity)
{
    enum { OF_TURNS = 64, MOST = 512 };
    return t->options.grows ? ax_min(OF_TURNS, capacity)
                            : ax_ceil_div((int64_t)n, ax_ceil_div((int64_t)n, MOST));
}

/* Keeps in the cache the tokens with which both the earlier text and the prompt begin, but not the whole
 * prompt: the logits of its last token are needed. Creates another generator if there are too few positions.
 */
static ax_status make_room(ax_text *t, const int32_t *ids, size_t n)
{
    size_t kept = 0;
    int64_t positions = ax_model_config_positions(&t->model->config);
    while (kept < t->cached && kept + 1 < n && t->ids.data[kept] == ids[kept])
        kept++;
    t->cached = 0;
    if (t->capacity >= t->most) {
        t->cached = kept;
        return ax_generator_rewind(t->generator, 0, (int64_t)kept);
    }
    /* Twice as many positions: few generators are created while a conversation grows. */
    int64_t capacity = t->options.grows ? ax_min(2 * t->most, positions) : t->most;
    t->capacity = 0;
    ax_generator_destroy(&t->generator);
    const ax_generator_options options = {1, chunk_of(t, n, capacity), capacity};
    AX_TRY(ax_generator_create(t->ctx, t->model, &options, &t->generator));
    t->chunk = options.chunk;
    t->capacity = capacity;
    return AX_OK;
}

/* Appends the text of a token or, without a tokenizer, its id. Ids beyond the tokenizer's have no text. */
static ax_status append(ax_text *t, int32_t id)
{
    size_t n;
    const ax_tokenizer *tok = t->model->tokenizer;
    if (!tok)
        return ax_buf_printf(&t->text, "%s%d", t->text.size ? " " : "", id);
    return ax_tokenizer_piece(tok, id, &n) ? ax_decoder_push(&t->decoder, id, &t->text) : AX_OK;
}

/* Decodes the prompt if it is part of the text. If it is not: decoders of some tokenizers remove a space at
 * the start of a text, which the first generated token is only if all tokens of the prompt are special. */
static ax_status begin_text(ax_text *t)
{
    const ax_tokenizer *tok = t->model->tokenizer;
    t->text.size = t->taken = 0;
    ax_decoder_init(&t->decoder, tok, AX_DECODE_SKIP_SPECIAL);
    for (size_t i = 0; i < t->prompt; i++)
        if (t->options.echo)
            AX_TRY(append(t, t->ids.data[i]));
        else if (tok && !ax_tokenizer_is_special(tok, t->ids.data[i]))
            ax_decoder_init(&t->decoder, tok, AX_DECODE_SKIP_SPECIAL | AX_DECODE_CONTINUE);
    return AX_OK;
}

ax_status ax_text_start(ax_text *t, const int32_t *ids, size_t n, int64_t sample)
{
    int64_t positions = ax_model_config_positions(&t->model->config);
    t->finish = AX_FINISH_LENGTH; /* if starting fails, there is no text to continue */
    t->prompt = t->ids.size;
    AX_CHECK(
        (int64_t)n < positions, AX_ERR_USAGE,
        "a %s of %zu tokens leaves no room in the model's %lld positions for a generated token: shorten it",
        t->options.chat ? "conversation" : "prompt", n, (long long)positions);
    t->most = ax_min((int64_t)n + t->options.max_tokens, positions);
    AX_TRY(make_room(t, ids, n));
    t->ids.size = t->prompt = 0;
    AX_TRY(ax_ids_add(&t->ids, ids, n));
    t->prompt = n;
    t->key = ax_rng_key(ax_rng_key((uint64_t)t->options.seed, "generate", XXH3_64bits(ids, n * sizeof *ids)),
                        "sample", (uint64_t)sample);
    t->finish = AX_UNFINISHED;
    return begin_text(t);
}

/* ---- the next token ------------------------------------------------------------------------------ */

/* Feeds the tokens that are not in the cache, and sets *logits to those of the last one. A step computes a
 * row and reads the weights once, a chunk computes all its rows: steps are faster for few tokens. */
static ax_status feed_rest(ax_text *t, const float **logits)
{
    enum { ROWS_OF_STEP = 8 };
    const int64_t rest = (int64_t)(t->ids.size - t->cached);
    const int32_t *ids = t->ids.data + t->cached;
    t->cached = t->ids.size;
    if (rest > ax_max(1, t->chunk / ROWS_OF_STEP))
        return ax_generator_feed(t->generator, 0, ids, rest, logits);
    for (int64_t i = 0; i < rest; i++)
        AX_TRY(ax_generator_step(t->generator, ids + i, logits));
    return AX_OK;
}

/* Samples the next token on every rank, then gives all ranks the token of rank 0: all ranks should have the
 * same logits, but a difference in rounding must not let their sequences diverge. */
static ax_status draw(ax_text *t, const float *logits, int32_t *id)
{
    ax_work *work;
    const ax_generation *how = &t->options.how;
    const int vocab = (int)t->model->config.vocab;
    ax_sampling sampling = {how->temperature, (int)how->top_k, how->top_p, how->min_p};
    double u = ax_rng_uniform(t->key, t->ids.size - t->prompt);
    if (how->repetition_penalty != 1) {
        float *penalized = t->work + 2 * (size_t)vocab;
        ax_sample_penalize(logits, vocab, how->repetition_penalty, t->ids.data, t->ids.size, penalized);
        logits = penalized;
    }
    AX_TRY(ax_sample(logits, vocab, &sampling, u, t->work, id));
    AX_TRY(ax_broadcast(t->ctx->world, NULL, id, 1, AX_I32, 0, &work));
    return ax_wait(&work);
}

static bool is_end_token(const ax_text *t, int32_t id)
{
    const ax_text_options *o = &t->options;
    if (o->chat && id == ax_chat_end(o->chat))
        return true;
    for (size_t i = 0; i < o->stops; i++)
        if (o->stop[i] == id)
            return true;
    for (size_t i = 0; i < t->model->ends.size && !o->ignore_end; i++)
        if (t->model->ends.data[i] == id)
            return true;
    return false;
}

ax_status ax_text_next(ax_text *t)
{
    int32_t id;
    const float *logits = NULL;
    AX_CHECK(t->capacity && t->finish == AX_UNFINISHED, AX_ERR_USAGE,
             "ax_text_next: the text is finished, or was not begun: call ax_text_start first");
    AX_TRY(feed_rest(t, &logits));
    AX_TRY(draw(t, logits, &id));
    if (is_end_token(t, id)) {
        t->finish = AX_FINISH_STOP;
    } else {
        AX_TRY(ax_ids_add(&t->ids, &id, 1));
        AX_TRY(append(t, id));
        t->finish = (int64_t)t->ids.size == t->most ? AX_FINISH_LENGTH : AX_UNFINISHED;
    }
    return t->finish && t->model->tokenizer ? ax_decoder_finish(&t->decoder, &t->text) : AX_OK;
}

/* ---- the text so far ----------------------------------------------------------------------------- */

ax_finish ax_text_finish(const ax_text *t) { return t->finish; }

const int32_t *ax_text_ids(const ax_text *t, size_t *n)
{
    *n = t->ids.size - t->prompt;
    return t->ids.data + t->prompt;
}

const char *ax_text_take(ax_text *t, size_t *n)
{
    if (t->options.chat && !t->taken && t->text.size)
        t->taken = ax_chat_opening(t->options.chat, t->text.data, t->text.size);
    size_t from = t->taken;
    t->taken = t->text.size;
    *n = t->taken - from;
    return *n ? t->text.data + from : "";
}

const char *ax_text_get(const ax_text *t, size_t *n)
{
    const char *text = t->text.size ? t->text.data : "";
    *n = t->text.size;
    if (t->options.chat)
        ax_chat_answer(t->options.chat, &text, n);
    return text;
}
