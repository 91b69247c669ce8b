/* axonn generate: continues a prompt, or answers in a conversation, token by token. */
#include "axonn/chat.h"
#include "axonn/json.h"
#include "model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct args {
    model_args common;
    char *prompt, *messages, *template;
    ax_ints tokens, stop;
    int64_t max_tokens, top_k, seed, samples;
    double temperature, top_p, min_p, repetition_penalty;
    ax_strings ignore;
    bool chat, ignore_end;
} args;

static const ax_option options[] = {
    MODEL_OPTIONS(args, common),
    {"prompt", AX_OPT_STRING, offsetof(args, prompt), .meta = "TEXT",
     .help = "text to continue; needs the model's tokenizer. If it is \"-\", or if neither --prompt nor "
             "--tokens is given and standard input is not a terminal, the prompt is read from standard "
             "input, without a newline at its end"},
    {"tokens", AX_OPT_INTS, offsetof(args, tokens), .meta = "ID,ID,...",
     .help = "the prompt to continue, as token ids"},
    {"chat", AX_OPT_BOOL, offsetof(args, chat), "false",
     .help = "talk with the model: each line of standard input is a turn of the user, which the model "
             "answers (an empty line gets no answer); the conversation is kept until the input ends (on a "
             "terminal: Ctrl-D), and its oldest turns are forgotten when it fills the model's positions"},
    {"messages", AX_OPT_PATH, offsetof(args, messages), .meta = "FILE",
     .help =
         "answer the conversation in this JSON file (-: standard input): a list of messages, or an object "
         "with a conversation; the last turn is the user's"},
    IGNORE_OPTION(args, ignore),
    {"template", AX_OPT_STRING, offsetof(args, template), .choices = ax_chat_names,
     .help = "with --chat and --messages: template of the conversation; default: that of the model's "
             "chat_template if its text is known; without one, chosen by the tokenizer's special tokens"},
    {"max-tokens", AX_OPT_INT, offsetof(args, max_tokens), "128", "[1, 16777216]", .meta = "N",
     .help = "maximum number of tokens to generate; with --chat: in each answer"},
    {"temperature", AX_OPT_FLOAT, offsetof(args, temperature), "model", "[0, inf)", "model", .meta = "T",
     .help =
         "sampling temperature: the logits are divided by T; 0 always takes the likeliest token. Here and "
         "in the next four flags, model is the value of the model's generation_config.json, else one "
         "without effect"},
    {"top-k", AX_OPT_INT, offsetof(args, top_k), "model", "[0, 16777216]", "model", .meta = "K",
     .help = "sample from the K likeliest tokens; 0: from all"},
    {"top-p", AX_OPT_FLOAT, offsetof(args, top_p), "model", "[0, 1]", "model", .meta = "P",
     .help =
         "sample from the smallest set of likeliest tokens whose probabilities sum to at least P; 0: take "
         "the likeliest token"},
    {"min-p", AX_OPT_FLOAT, offsetof(args, min_p), "model", "[0, 1]", "model", .meta = "P",
     .help = "sample from the tokens that are at least P times as likely as the likeliest; 0: from all"},
    {"repetition-penalty", AX_OPT_FLOAT, offsetof(args, repetition_penalty), "model", "(0, inf)", "model",
     .meta = "X",
     .help = "make the tokens of the prompt and of the text so far less likely: their positive logits are "
             "divided by X, negative ones multiplied; 1: no penalty"},
    {"samples", AX_OPT_INT, offsetof(args, samples), "1", "[1, 1000000]", .meta = "N",
     .help =
         "continue the prompt N times; the first text is the one that a single sample has. Above 1, a line "
         "'--- sample I' comes before each text, with I from 0; with --json each text is one object "
         "instead, on a line of its own, with I as \"sample\""},
    {"seed", AX_OPT_INT, offsetof(args, seed), "0", "[0, inf)", .meta = "S",
     .help = "random seed of the sampling; the same seed gives the same text"},
    {"stop", AX_OPT_INTS, offsetof(args, stop), .meta = "ID,ID,...",
     .help = "token ids that end the text, in addition to the model's end tokens"},
    {"ignore-end", AX_OPT_BOOL, offsetof(args, ignore_end), "false",
     .help = "do not stop at the model's end tokens (eos_token_id of generation_config.json, else of "
             "config.json, else the tokenizer's end-of-text token)"},
    MODEL_DEVICE_OPTIONS(args, common),
};

typedef struct session {
    const args *a;
    opened_model m;
    ax_buf given;  /* text of the prompt, if it is given as text; on rank 0 only */
    ax_ids ids;    /* the prompt, then the generated tokens */
    size_t prompt; /* number of tokens in the prompt */
    ax_generator *generator;
    int64_t capacity;  /* number of positions of the generator */
    ax_ids fed;        /* the tokens in the generator's cache */
    ax_generation how; /* temperature and the like, of the flags or of the model */
    int64_t sample;    /* number of the text that is sampled, from 0 */
    uint64_t drawn;    /* number of tokens sampled so far for this text or conversation */
    ax_chat *template; /* NULL: no conversation */
    ax_chat_turns turns;
    ax_chat_text rendered;
    float *work; /* scratch of ax_sample, then room for penalized logits */
    ax_decoder decoder;
    ax_buf text; /* the generated text. If the prompt was given as ids and without --json, the prompt's text
                    comes before it */
    size_t
        shown; /* bytes of `text` already printed, or skipped because the template opens the turn with them */
    const char *reason;
    double start; /* ax_now at the start of the verb, or of a turn */
} session;

/* Returns the error that the model has no tokenizer, so text cannot be used, with the advice `instead`. If
 * the model has a tokenizer of another kind, the message says how to get one that can be read. */
static ax_status refuse_text(const session *s, const char *instead)
{
    static const char *const others[] = {"tokenizer.model", "tekken.json"};
    const char *dir = s->m.model.dir;
    ax_tokenizer *none = NULL;
    for (size_t i = 0; i < AX_COUNT(others); i++) {
        char *path;
        AX_TRY(ax_path_join(dir, others[i], &path));
        ax_status status = ax_path_exists(path) ? ax_tokenizer_load(dir, &none) : AX_OK;
        free(path);
        AX_TRY(status);
    }
    return ax_fail(AX_ERR_USAGE, "%s has no tokenizer.json: %s", dir, instead);
}

static ax_status encode_prompt(session *s)
{
    ax_encoder *encoder;
    if (!s->m.model.tokenizer)
        return refuse_text(s, "give the prompt with --tokens");
    AX_TRY(ax_encoder_create(s->m.model.tokenizer, &encoder));
    ax_status status = ax_encode(encoder, s->given.data, s->given.size, AX_ENCODE_ADD_SPECIAL, &s->ids);
    ax_encoder_destroy(&encoder);
    return status;
}

/* Returns true if the arguments ask for the prompt from standard input. (A terminal is read only with --chat,
 * --prompt - or --messages -.) */
static bool wants_input(const void *raw)
{
    const args *a = raw;
    if (a->messages)
        return !strcmp(a->messages, "-") || cli_is_stdin(a->messages);
    return a->prompt ? !strcmp(a->prompt, "-") : !a->tokens.count;
}

/* Reads the text of the prompt from --prompt or standard input. *out stays empty if there is none. */
static ax_status find_text(const args *a, ax_buf *out)
{
    if (wants_input(a) && (a->prompt || !isatty(STDIN_FILENO)))
        return cli_read_prompt(out);
    return a->prompt ? ax_buf_add(out, a->prompt, strlen(a->prompt)) : AX_OK;
}

/* Sets s->ids to the token ids of the prompt. An empty prompt becomes the end-of-text token, which separates
 * documents in training. */
static ax_status read_prompt(session *s)
{
    const args *a = s->a;
    AX_TRY(find_text(a, &s->given));
    if (s->given.size || a->prompt)
        AX_TRY(encode_prompt(s));
    for (size_t i = 0; i < a->tokens.count; i++) {
        AX_CHECK(a->tokens.items[i] >= 0 && a->tokens.items[i] < s->m.model.config.vocab, AX_ERR_USAGE,
                 "--tokens: %lld is not in the model's vocabulary, 0 … %lld", (long long)a->tokens.items[i],
                 (long long)s->m.model.config.vocab - 1);
        int32_t id = (int32_t)a->tokens.items[i];
        AX_TRY(ax_ids_add(&s->ids, &id, 1));
    }
    int64_t end = s->m.model.identity.eos;
    if (!s->ids.size) {
        AX_CHECK(end >= 0 && end < s->m.model.config.vocab, AX_ERR_USAGE,
                 "the prompt is empty, and the model has no end-of-text token to start from: give --prompt "
                 "or --tokens");
        int32_t id = (int32_t)end;
        AX_TRY(ax_ids_add(&s->ids, &id, 1));
    }
    return AX_OK;
}

/* Calls `read` on rank 0, which has standard input, and broadcasts the ids of the prompt that `read` puts
 * into s->ids. At the end of a conversation, `read` leaves s->ids empty. */
static ax_status share_prompt(session *s, ax_status (*read)(session *s))
{
    ax_work *work;
    s->ids.size = 0;
    cli_world_wait_for_first(s->m.world, true);
    ax_status status = ax_comm_agree(s->m.world, s->m.first ? read(s) : AX_OK);
    cli_world_wait_for_first(s->m.world, false);
    AX_TRY(status);
    int32_t n = (int32_t)s->ids.size;
    AX_TRY(ax_broadcast(s->m.world, NULL, &n, 1, AX_I32, 0, &work));
    AX_TRY(ax_wait(&work));
    for (int32_t i = 0, none = 0; !s->m.first && i < n; i++)
        AX_TRY(ax_ids_add(&s->ids, &none, 1));
    AX_TRY(ax_broadcast(s->m.world, NULL, s->ids.data, n, AX_I32, 0, &work));
    s->prompt = (size_t)n;
    return ax_wait(&work);
}

/* ---- conversations ------------------------------------------------------------------------------- */

/* Sets s->ids to the tokens of the conversation so far, and of the text with which the template begins an
 * answer. */
static ax_status encode_turns(session *s)
{
    ax_encoder *encoder;
    ax_buf mask = {0};
    AX_TRY(ax_chat_render(s->template, &s->turns, true, &s->rendered));
    AX_TRY(ax_encoder_create(s->m.model.tokenizer, &encoder));
    ax_status status = ax_chat_encode(encoder, &s->rendered, &s->ids, &mask);
    ax_encoder_destroy(&encoder);
    ax_buf_fini(&mask);
    return status;
}

static ax_status read_messages(session *s)
{
    json_t *value;
    ax_buf text = {0};
    const bool from_input = wants_input(s->a);
    const char *name = from_input ? "standard input" : s->a->messages;
    ax_status status = from_input ? cli_read_stdin(&text) : AX_OK;
    if (status == AX_OK && from_input)
        status = ax_json_parse(name, text.data ? text.data : "", text.size, JSON_ALLOW_NUL, &value);
    else if (status == AX_OK)
        status = ax_json_read_file(s->a->messages, JSON_ALLOW_NUL, &value);
    ax_buf_fini(&text);
    AX_TRY(status);
    status = ax_chat_read(value, &s->a->ignore, &s->turns);
    if (status == AX_OK)
        status = encode_turns(s);
    if (status != AX_OK)
        ax_error_context("%s", name);
    json_decref(value);
    return status;
}

/* Appends a turn and keeps a copy of its text, which free_turns frees. */
static ax_status add_turn(session *s, ax_chat_role role, const char *text, size_t n)
{
    char *copy;
    AX_TRY(ax_calloc(n + 1, 1, &copy)); /* the text may hold NUL, at which ax_strndup would stop */
    memcpy(copy, text, n);
    ax_status status = ax_chat_add(&s->turns, &(ax_chat_turn){.role = role, .text = copy, .size = n});
    if (status != AX_OK)
        free(copy);
    return status;
}

/* Removes the first n turns. */
static void forget_turns(session *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free((char *)s->turns.turn[i].text);
    s->turns.n -= n;
    memmove(s->turns.turn, s->turns.turn + n, s->turns.n * sizeof *s->turns.turn);
}

/* Encodes the conversation into s->ids. As long as that leaves no room for an answer in the model's
 * positions, removes the oldest question and its answer. If the last turn alone leaves no room, it is removed
 * too, and s->ids stays empty. */
static ax_status encode_last_turns(session *s)
{
    const int64_t most = ax_model_config_positions(&s->m.model.config);
    size_t forgotten = 0;
    AX_TRY(encode_turns(s));
    while ((int64_t)s->ids.size >= most && s->turns.n > 1) {
        forget_turns(s, 2);
        forgotten += 2;
        s->ids.size = 0;
        AX_TRY(encode_turns(s));
    }
    if (forgotten)
        ax_log(AX_LOG_WARN,
               "the conversation fills the model's %lld positions: its %zu oldest turns are forgotten (start "
               "the program again for a new conversation)",
               (long long)most, forgotten);
    if ((int64_t)s->ids.size < most)
        return AX_OK;
    ax_log(AX_LOG_WARN,
           "a turn of %zu tokens leaves no room for an answer in the model's %lld positions, so it is left "
           "out: write a shorter one",
           s->ids.size, (long long)most);
    forget_turns(s, 1);
    s->ids.size = 0;
    return AX_OK;
}

/* Reads lines of standard input until one is a turn of the user that can be answered: it is not empty and
 * not too long. s->ids stays empty at the end of the input. */
static ax_status read_turn(session *s)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n = 0;
    ax_status status = AX_OK;
    while (status == AX_OK && n >= 0 && !s->ids.size) {
        status = cli_read_line(&line, &room, &n);
        if (status != AX_OK || n <= 0)
            continue;
        status = add_turn(s, AX_CHAT_USER, line, (size_t)n);
        if (status == AX_OK)
            status = encode_last_turns(s);
    }
    free(line);
    return status;
}

static void free_turns(session *s)
{
    for (size_t i = 0; i < s->turns.n && s->a->chat; i++)
        free((char *)s->turns.turn[i].text);
    ax_chat_turns_fini(&s->turns);
    ax_chat_text_fini(&s->rendered);
}

/* ---- tokens -------------------------------------------------------------------------------------- */

static bool is_end_token(const session *s, int32_t id)
{
    if (s->template && id == ax_chat_end(s->template))
        return true;
    for (size_t i = 0; i < s->a->stop.count; i++)
        if (s->a->stop.items[i] == id)
            return true;
    for (size_t i = 0; i < s->m.model.ends.size && !s->a->ignore_end; i++)
        if (s->m.model.ends.data[i] == id)
            return true;
    return false;
}

/* Appends a token to s->text: its text or, without a tokenizer, its id. Then prints, on rank 0 and without
 * --json, the characters that are complete and not printed yet. */
static ax_status show(session *s, int32_t id)
{
    size_t n;
    const ax_tokenizer *tok = s->m.model.tokenizer;
    if (tok && ax_tokenizer_piece(tok, id, &n))
        AX_TRY(ax_decoder_push(&s->decoder, id, &s->text));
    else if (!tok)
        AX_TRY(ax_buf_printf(&s->text, "%s%d", s->text.size ? " " : "", id));
    if (!s->m.first || s->a->common.json || s->shown == s->text.size)
        return AX_OK;
    if (s->template && !s->shown)
        s->shown = ax_chat_opening(s->template, s->text.data, s->text.size);
    AX_TRY(cli_print(s->text.data + s->shown, s->text.size - s->shown));
    s->shown = s->text.size;
    fflush(stdout);
    return AX_OK;
}

/* Prepares the decoder to continue after a prompt that it did not decode. The decoders of some tokenizers
 * remove a space at the start of a text. If the prompt has a token that is not special, the next token is not
 * the start of the text, and its space is kept. */
static void skip_prompt(session *s)
{
    const ax_tokenizer *tok = s->m.model.tokenizer;
    for (size_t i = 0; tok && i < s->prompt; i++)
        if (!ax_tokenizer_is_special(tok, s->ids.data[i]))
            ax_decoder_init(&s->decoder, tok, AX_DECODE_SKIP_SPECIAL | AX_DECODE_CONTINUE);
}

/* Prints the prompt on rank 0, except with --json or in a conversation: the given text, or the decoded text
 * of the given ids. */
static ax_status show_prompt(session *s)
{
    bool shown = s->m.first && !s->a->common.json && !s->template;
    if (!shown || !s->a->tokens.count)
        skip_prompt(s);
    for (size_t i = 0; shown && i < s->a->tokens.count; i++)
        AX_TRY(show(s, s->ids.data[i]));
    return shown ? cli_print(s->given.data, s->given.size) : AX_OK;
}

/* Samples the next token on every rank, then gives all ranks the token of rank 0: all ranks should have the
 * same logits, but a difference in rounding must not let their sequences diverge. */
static ax_status draw(session *s, const float *logits, int32_t *id)
{
    ax_work *work;
    const int vocab = (int)s->m.model.config.vocab;
    ax_sampling how = {s->how.temperature, (int)s->how.top_k, s->how.top_p, s->how.min_p};
    uint64_t key = ax_rng_key((uint64_t)s->a->seed, "generate", (uint64_t)s->sample);
    if (s->how.repetition_penalty != 1) {
        float *penalized = s->work + 2 * (size_t)vocab;
        ax_sample_penalize(logits, vocab, s->how.repetition_penalty, s->ids.data, s->ids.size, penalized);
        logits = penalized;
    }
    AX_TRY(ax_sample(logits, vocab, &how, ax_rng_uniform(key, s->drawn++), s->work, id));
    AX_TRY(ax_broadcast(s->m.world, NULL, id, 1, AX_I32, 0, &work));
    return ax_wait(&work);
}

static ax_status feed(session *s, const int32_t *ids, size_t n, const float **logits)
{
    AX_TRY(ax_ids_add(&s->fed, ids, n));
    return ax_generator_feed(s->generator, ids, (int64_t)n, logits);
}

/* Creates a generator with at least `positions` positions, unless an earlier turn has left a generator with
 * enough positions. */
static ax_status make_room(session *s, int64_t positions)
{
    if (s->capacity >= positions)
        return AX_OK;
    /* A conversation may go on: its generator gets twice as many positions, so that few generators are
     * created. */
    s->capacity =
        s->a->chat ? ax_min(2 * positions, ax_model_config_positions(&s->m.model.config)) : positions;
    s->fed.size = 0;
    ax_generator_destroy(&s->generator);
    return ax_generator_create(s->m.ctx, &s->m.model, (int64_t)s->prompt, s->capacity, &s->generator);
}

/* Feeds the prompt to the generator. A new generator gets the whole prompt at once. A generator from an
 * earlier turn keeps the tokens with which both its cache and the prompt begin, and gets the other tokens of
 * the prompt (at least the last one) one by one. */
static ax_status feed_prompt(session *s, const float **logits)
{
    size_t kept = 0;
    if (!s->fed.size)
        return feed(s, s->ids.data, s->prompt, logits);
    while (kept < s->fed.size && kept + 1 < s->prompt && s->fed.data[kept] == s->ids.data[kept])
        kept++;
    AX_TRY(ax_generator_rewind(s->generator, (int64_t)kept));
    s->fed.size = kept;
    for (; kept < s->prompt; kept++)
        AX_TRY(feed(s, s->ids.data + kept, 1, logits));
    return AX_OK;
}

/* Continues the prompt in s->ids. */
static ax_status generate(session *s)
{
    const args *a = s->a;
    const int64_t most = ax_model_config_positions(&s->m.model.config);
    int64_t capacity = ax_min((int64_t)s->prompt + a->max_tokens, most);
    AX_CHECK(
        (int64_t)s->prompt < most, AX_ERR_USAGE,
        "a %s of %zu tokens leaves no room in the model's %lld positions for a generated token: shorten it",
        s->template ? "conversation" : "prompt", s->prompt, (long long)most);
    const float *logits = NULL;
    s->text.size = s->shown = 0;
    ax_decoder_init(&s->decoder, s->m.model.tokenizer, AX_DECODE_SKIP_SPECIAL);
    AX_TRY(make_room(s, capacity));
    AX_TRY(show_prompt(s));
    AX_TRY(feed_prompt(s, &logits));
    s->reason = "length";
    for (int64_t i = 0; i < a->max_tokens; i++) {
        int32_t id;
        AX_TRY(draw(s, logits, &id));
        if (is_end_token(s, id)) {
            s->reason = "stop";
            break;
        }
        AX_TRY(ax_ids_add(&s->ids, &id, 1));
        AX_TRY(show(s, id));
        if (i + 1 == a->max_tokens || (int64_t)s->ids.size == capacity)
            break;
        AX_TRY(feed(s, &id, 1, &logits));
    }
    return s->m.model.tokenizer ? ax_decoder_finish(&s->decoder, &s->text) : AX_OK;
}

/* Returns the generated text; in a conversation, only the text of the answer. */
static const char *answer(const session *s, size_t *n)
{
    const char *text = s->text.size ? s->text.data : "";
    *n = s->text.size;
    if (s->template)
        ax_chat_answer(s->template, &text, n);
    return text;
}

static ax_status finish(session *s)
{
    size_t n;
    const char *said = answer(s, &n);
    if (s->a->common.json) {
        json_t *ids = json_array();
        for (size_t i = s->prompt; i < s->ids.size; i++)
            json_array_append_new(ids, json_integer(s->ids.data[i]));
        /* Without a tokenizer "text" is null, and "tokens" alone has the result. */
        json_t *text = s->m.model.tokenizer ? cli_json_text(said, n) : json_null();
        json_t *object = json_pack("{s:o, s:o, s:i, s:s, s:f}", "text", text, "tokens", ids, "prompt_tokens",
                                   (int)s->prompt, "finish", s->reason, "seconds", ax_now() - s->start);
        if (s->a->samples > 1)
            json_object_set_new(object, "sample", json_integer(s->sample));
        return cli_print_json(object);
    }
    AX_TRY(cli_print(s->text.size ? s->text.data + s->shown : "", s->text.size - s->shown));
    return cli_print("\n", 1);
}

/* Prints the answer, and adds it to the conversation. */
static ax_status finish_turn(session *s)
{
    size_t n;
    const char *text = answer(s, &n);
    AX_TRY(finish(s));
    fflush(stdout);
    return add_turn(s, AX_CHAT_ASSISTANT, text, n);
}

static ax_status talk(session *s)
{
    for (;;) {
        AX_TRY(share_prompt(s, read_turn));
        s->start = ax_now();
        if (!s->prompt)
            return AX_OK;
        AX_TRY(generate(s));
        AX_TRY(ax_comm_agree(s->m.world, s->m.first ? finish_turn(s) : AX_OK));
    }
}

/* Prints, on rank 0 and without --json, the line that separates several samples. */
static ax_status begin_sample(const session *s)
{
    char line[48];
    if (s->a->samples == 1 || !s->m.first || s->a->common.json)
        return AX_OK;
    int n = snprintf(line, sizeof line, "--- sample %lld\n", (long long)s->sample);
    return cli_print(line, (size_t)n);
}

static ax_status answer_once(session *s)
{
    AX_TRY(share_prompt(s, s->template ? read_messages : read_prompt));
    for (s->sample = 0; s->sample < s->a->samples; s->sample++) {
        s->ids.size = s->prompt;
        s->drawn = 0;
        s->start = s->sample ? ax_now() : s->start;
        AX_TRY(ax_comm_agree(s->m.world, begin_sample(s)));
        AX_TRY(generate(s));
        AX_TRY(ax_comm_agree(s->m.world, s->m.first ? finish(s) : AX_OK));
    }
    return AX_OK;
}

static ax_status check_args(const args *a)
{
    AX_CHECK(!!a->prompt + (a->tokens.count > 0) + a->chat + !!a->messages <= 1, AX_ERR_USAGE,
             "give only one of --prompt, --tokens, --chat and --messages");
    AX_CHECK(!a->template || a->chat || a->messages, AX_ERR_USAGE,
             "--template: give it only together with --chat or --messages");
    AX_CHECK(!a->chat || a->samples == 1, AX_ERR_USAGE,
             "--samples: a conversation (--chat) goes on after one answer; give --samples with a prompt or "
             "with --messages");
    return AX_OK;
}

/* Takes the values of the sampling that no flag gives from the model, and logs them. */
static ax_status choose_sampling(session *s)
{
    const args *a = s->a;
    char said[160], left[160];
    s->how = (ax_generation){a->temperature, a->top_p, a->min_p, a->top_k, a->repetition_penalty};
    AX_TRY(ax_pretrained_generation(&s->m.model, &s->how, said, left));
    if (s->m.first && *said)
        ax_log(AX_LOG_INFO, "%s, as the model's generation_config.json says (flags override it)", said);
    if (s->m.first && *left)
        ax_log(AX_LOG_WARN,
               "the model's generation_config.json has %s, which transformers applies and axonn does not",
               left);
    if (s->m.first && a->samples > 1 && s->how.temperature <= 0)
        ax_log(AX_LOG_WARN, "--samples %lld with temperature 0: all texts will be equal; give --temperature",
               (long long)a->samples);
    return AX_OK;
}

static ax_status start(session *s)
{
    const args *a = s->a;
    AX_TRY(check_args(a));
    AX_TRY(choose_sampling(s));
    AX_TRY(ax_calloc(3 * (size_t)s->m.model.config.vocab, sizeof *s->work, &s->work));
    if (!a->chat && !a->messages)
        return AX_OK;
    if (!s->m.model.tokenizer)
        return refuse_text(s, "--chat and --messages need one");
    ax_status status = ax_chat_create(s->m.model.tokenizer, a->template, &s->template);
    if (status != AX_OK)
        ax_error_context("--template");
    else if (s->m.first && ax_chat_origin(s->template))
        ax_log(AX_LOG_INFO, "template %s, %s", ax_chat_name(s->template), ax_chat_origin(s->template));
    return status;
}

static ax_status run(const void *raw)
{
    const args *a = raw;
    session s = {.a = a};
    s.start = ax_now();
    ax_status status = model_open(&a->common, MODEL_SEQUENCE, &s.m);
    if (status == AX_OK)
        status = ax_comm_agree(s.m.world, start(&s));
    if (status == AX_OK)
        status = a->chat ? talk(&s) : answer_once(&s);
    cli_world_abort_unshared(s.m.world, status);
    ax_generator_destroy(&s.generator);
    free_turns(&s);
    ax_chat_destroy(&s.template);
    free(s.work);
    ax_ids_fini(&s.fed);
    ax_ids_fini(&s.ids);
    ax_buf_fini(&s.given);
    ax_buf_fini(&s.text);
    return model_close(&s.m, status);
}

const cli_verb verb_generate = {
    .name = "generate",
    .summary = "continue a prompt with a model",
    .details =
        "Prints the prompt, then each token as soon as it is generated: as text, or as token ids if the\n"
        "model has no tokenizer. Stops after --max-tokens, at an end or stop token, or when the text\n"
        "fills the model's positions. In a conversation (--chat, --messages) it prints the answers only,\n"
        "each up to the end of its turn.",
    .examples = "axonn generate runs/name --prompt 'int main(' --temperature 0.8 --top-p 0.95\n"
                "axonn generate runs/name < prompt.txt\n"
                "axonn generate runs/name --chat --temperature 0.7\n"
                "axonn generate path/to/gpt2 --tokens 464,3290 --temperature 0 --json",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .launches = true,
    .reads_input = wants_input,
};
