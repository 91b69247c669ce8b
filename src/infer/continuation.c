#include "infer/continuation.h"

#include <string.h>
#include <xxhash.h>

/* ---- the beginning ------------------------------------------------------------------------------- */

/* Appends the text of a token or, without a tokenizer, its id. Ids beyond the tokenizer's have no text. */
static ax_status append(ax_continuation *c, int32_t id)
{
    size_t n;
    const ax_tokenizer *tok = c->model->tokenizer;
    if (!tok)
        return ax_buf_printf(&c->text, "%s%d", c->text.size ? " " : "", id);
    return ax_tokenizer_piece(tok, id, &n) ? ax_decoder_push(&c->decoder, id, &c->text) : AX_OK;
}

/* Returns how many braces are open after a byte of text, if `depth` were before it. A brace that closes none
 * does not count. */
static int64_t depth_after(int64_t depth, char byte)
{
    return byte == '{' ? depth + 1 : byte == '}' && depth > 0 ? depth - 1 : depth;
}

/* Counts the braces that the prompt opens, from its text. */
static ax_status count_braces(ax_continuation *c)
{
    for (size_t i = 0; i < c->prompt; i++)
        AX_TRY(append(c, c->ids.data[i]));
    for (size_t i = 0; i < c->text.size; i++)
        c->depth = depth_after(c->depth, c->text.data[i]);
    c->braces = c->depth > 0;
    c->text.size = 0;
    ax_decoder_init(&c->decoder, c->model->tokenizer, AX_DECODE_SKIP_SPECIAL);
    return AX_OK;
}

/* Decodes the prompt if it is part of the text. If it is not: decoders of some tokenizers remove a space at
 * the start of a text, which the first generated token is only if all tokens of the prompt are special. */
static ax_status begin_text(ax_continuation *c)
{
    const ax_tokenizer *tok = c->model->tokenizer;
    ax_decoder_init(&c->decoder, tok, AX_DECODE_SKIP_SPECIAL);
    if (c->options->braces)
        AX_TRY(count_braces(c));
    for (size_t i = 0; i < c->prompt; i++)
        if (c->options->echo)
            AX_TRY(append(c, c->ids.data[i]));
        else if (tok && !ax_tokenizer_is_special(tok, c->ids.data[i]))
            ax_decoder_init(&c->decoder, tok, AX_DECODE_SKIP_SPECIAL | AX_DECODE_CONTINUE);
    c->begin = c->read = c->text.size;
    return AX_OK;
}

ax_status ax_continuation_begin(ax_continuation *c, const ax_pretrained *model,
                                const ax_text_options *options, const ax_prompt *prompt, int64_t sample)
{
    const int64_t positions = ax_model_config_positions(&model->config), n = (int64_t)prompt->n,
                  more = prompt->max_tokens ? prompt->max_tokens : options->max_tokens;
    c->finish = AX_FINISH_LENGTH; /* if it does not begin, there is no text to continue */
    c->prompt = c->ids.size;
    AX_CHECK(
        n < positions, AX_ERR_USAGE,
        "a %s of %zu tokens leaves no room in the model's %lld positions for a generated token: shorten it",
        prompt->chat || options->chat ? "conversation" : "prompt", prompt->n, (long long)positions);
    c->model = model;
    c->options = options;
    c->until = prompt->until ? prompt->until : options->until;
    c->chat = prompt->chat ? prompt->chat : options->chat;
    c->most = ax_min(n + more, positions);
    c->ids.size = c->prompt = c->text.size = c->taken = 0;
    c->depth = 0;
    c->braces = false;
    AX_TRY(ax_ids_add(&c->ids, prompt->ids, prompt->n));
    c->prompt = prompt->n;
    c->key = ax_rng_key((uint64_t)options->seed, "generate",
                        XXH3_64bits(prompt->ids, prompt->n * sizeof(int32_t)));
    c->key = ax_rng_key(c->key, "sample", (uint64_t)sample);
    AX_TRY(begin_text(c));
    c->finish = AX_UNFINISHED;
    return AX_OK;
}

void ax_continuation_fini(ax_continuation *c)
{
    ax_ids_fini(&c->ids);
    ax_buf_fini(&c->text);
}

/* ---- the end ------------------------------------------------------------------------------------- */

static bool is_end_token(const ax_continuation *c, int32_t id)
{
    const ax_text_options *o = c->options;
    if (c->chat && id == ax_chat_end(c->chat))
        return true;
    for (size_t i = 0; i < o->stops; i++)
        if (o->stop[i] == id)
            return true;
    for (size_t i = 0; i < c->model->ends.size && !o->ignore_end; i++)
        if (c->model->ends.data[i] == id)
            return true;
    return false;
}

static size_t until_count(const ax_continuation *c) { return c->until ? c->until->count : 0; }

/* Returns true if string number i of those that end the text begins with the `n` bytes at byte `at` of the
 * text, or these bytes with it. */
static bool agrees(const ax_continuation *c, size_t i, size_t at)
{
    const size_t length = strlen(c->until->items[i]), n = c->text.size - at;
    return !memcmp(c->text.data + at, c->until->items[i], length < n ? length : n);
}

/* Returns true if the text ends before byte `at`, because a string that ends it begins there. *open: one may
 * begin there, depending on the bytes that follow. */
static bool ends_before(const ax_continuation *c, size_t at, bool *open)
{
    bool ends = false;
    for (size_t i = 0; i < until_count(c); i++) {
        const bool all = strlen(c->until->items[i]) <= c->text.size - at, same = agrees(c, i, at);
        ends = ends || (all && same);
        *open = *open || (!all && same);
    }
    return ends;
}

/* Reads the bytes that are new, up to where a string that ends the text may have begun; with `whole` all of
 * them. Cuts the text where it ends, and returns true, if it does. */
static bool find_end(ax_continuation *c, bool whole)
{
    if (c->chat && c->read == c->begin && c->text.size > c->begin)
        c->read += ax_chat_opening(c->chat, c->text.data + c->begin, c->text.size - c->begin);
    for (bool open = false; c->read < c->text.size; c->read++) {
        if (ends_before(c, c->read, &open)) {
            c->text.size = c->read;
            return true;
        }
        if (open && !whole)
            return false;
        open = false;
        c->depth = depth_after(c->depth, c->text.data[c->read]);
        if (c->braces && !c->depth) {
            c->text.size = ++c->read;
            return true;
        }
    }
    return false;
}

ax_status ax_continuation_add(ax_continuation *c, int32_t id)
{
    const bool ends = is_end_token(c, id);
    if (!ends) {
        AX_TRY(ax_ids_add(&c->ids, &id, 1));
        AX_TRY(append(c, id));
    }
    const bool last = ends || (int64_t)c->ids.size == c->most;
    if (last && c->model->tokenizer)
        AX_TRY(ax_decoder_finish(&c->decoder, &c->text));
    if (find_end(c, last) || ends)
        c->finish = AX_FINISH_STOP;
    else if (last)
        c->finish = AX_FINISH_LENGTH;
    return AX_OK;
}

/* ---- the next token ------------------------------------------------------------------------------ */

ax_status ax_continuation_draw(const ax_continuation *c, const float *logits, float *work, int32_t *id)
{
    const ax_generation *how = &c->options->how;
    const int vocab = (int)c->model->config.vocab;
    const ax_sampling sampling = {how->temperature, (int)how->top_k, how->top_p, how->min_p};
    if (how->repetition_penalty != 1) {
        float *penalized = work + 2 * (size_t)vocab;
        ax_sample_penalize(logits, vocab, how->repetition_penalty, c->ids.data, c->ids.size, penalized);
        logits = penalized;
    }
    return ax_sample(logits, vocab, &sampling, ax_rng_uniform(c->key, c->ids.size - c->prompt), work, id);
}

/* ---- the text so far ----------------------------------------------------------------------------- */

const char *ax_continuation_take(ax_continuation *c, size_t *n)
{
    if (c->chat && !c->taken && c->text.size)
        c->taken = ax_chat_opening(c->chat, c->text.data, c->text.size);
    const size_t from = c->taken, end = c->finish == AX_UNFINISHED ? c->read : c->text.size;
    c->taken = end > from ? end : from;
    *n = c->taken - from;
    return *n ? c->text.data + from : "";
}

const char *ax_continuation_get(const ax_continuation *c, size_t *n)
{
    const char *text = c->text.size ? c->text.data : "";
    *n = c->text.size;
    if (c->chat)
        ax_chat_answer(c->chat, &text, n);
    return text;
}
