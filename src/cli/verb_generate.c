/* axonn generate: continues a prompt, token by token. */
#include "model.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct args {
    model_args common;
    char *prompt;
    ax_ints tokens, stop;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p;
    bool ignore_end;
} args;

static const ax_option options[] = {
    MODEL_OPTIONS(args, common),
    {"prompt", AX_OPT_STRING, offsetof(args, prompt), .meta = "TEXT",
     .help = "text to continue; needs the model's tokenizer. If it is \"-\", or if neither --prompt nor "
             "--tokens is given and standard input is not a terminal, the prompt is read from standard "
             "input, without a newline at its end"},
    {"tokens", AX_OPT_INTS, offsetof(args, tokens), .meta = "ID,ID,...", .help = "the prompt as token ids"},
    {"max-tokens", AX_OPT_INT, offsetof(args, max_tokens), "128", "[1, 16777216]", .meta = "N",
     .help = "maximum number of tokens to generate"},
    {"temperature", AX_OPT_FLOAT, offsetof(args, temperature), "1.0", "[0, inf)", .meta = "T",
     .help = "sampling temperature: the logits are divided by T; 0 always takes the likeliest token"},
    {"top-k", AX_OPT_INT, offsetof(args, top_k), "0", "[0, 16777216]", .meta = "K",
     .help = "sample from the K likeliest tokens; 0: from all"},
    {"top-p", AX_OPT_FLOAT, offsetof(args, top_p), "1.0", "(0, 1]", .meta = "P",
     .help = "sample from the smallest set of likeliest tokens whose probabilities sum to at least P"},
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
    size_t prompt; /* tokens in the prompt */
    ax_generator *generator;
    float *work; /* scratch of ax_sample */
    ax_decoder decoder;
    ax_buf text;  /* the generated text. If the prompt was given as ids and without --json, the prompt's text
                     comes before it */
    size_t shown; /* bytes of `text` already printed */
    const char *reason;
} session;

/* Returns the error that the model has no tokenizer, so text cannot be used. If the model has SentencePiece's
 * tokenizer.model, the message says how to convert it. */
static ax_status refuse_text(const session *s)
{
    char *path;
    ax_tokenizer *none = NULL;
    AX_TRY(ax_path_join(s->m.model.dir, "tokenizer.model", &path));
    ax_status status = ax_path_exists(path) ? ax_tokenizer_load(path, &none) : AX_OK;
    free(path);
    AX_TRY(status);
    return ax_fail(AX_ERR_USAGE, "%s has no tokenizer.json: give the prompt with --tokens", s->m.model.dir);
}

static ax_status encode_prompt(session *s)
{
    ax_encoder *encoder;
    if (!s->m.model.tokenizer)
        return refuse_text(s);
    AX_TRY(ax_encoder_create(s->m.model.tokenizer, &encoder));
    ax_status status = ax_encode(encoder, s->given.data, s->given.size, AX_ENCODE_ADD_SPECIAL, &s->ids);
    ax_encoder_destroy(&encoder);
    return status;
}

/* Logs, after two seconds without input, that the program waits for the prompt on standard input: the user
 * may have forgotten to give one. */
static void await_input(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&input, 1, 2000) == 0)
        ax_log(AX_LOG_INFO,
               "waiting for the prompt on standard input (or give it with --prompt or --tokens)");
}

static ax_status read_input(ax_buf *out)
{
    enum { MOST_BYTES = 64 << 20 }; /* 64 MiB: more text than fits into the positions of any model */
    char bytes[16384];
    await_input();
    for (ssize_t n; (n = read(STDIN_FILENO, bytes, sizeof bytes)) != 0;) {
        if (n < 0 && errno == EINTR)
            continue;
        AX_CHECK(n > 0, AX_ERR_DATA, "the prompt cannot be read from standard input: %s", strerror(errno));
        AX_TRY(ax_buf_add(out, bytes, (size_t)n));
        AX_CHECK(out->size <= MOST_BYTES, AX_ERR_DATA, "the prompt on standard input is larger than 64 MiB");
    }
    out->size -= out->size && out->data[out->size - 1] == '\n';
    return AX_OK;
}

/* Whether the arguments ask for the prompt from standard input. (If that is a terminal, it is read only with
 * --prompt -.) */
static bool wants_input(const void *raw)
{
    const args *a = raw;
    return a->prompt ? !strcmp(a->prompt, "-") : !a->tokens.count;
}

/* Reads the text of the prompt from --prompt or standard input. *out stays empty if there is none. */
static ax_status find_text(const args *a, ax_buf *out)
{
    if (wants_input(a) && (a->prompt || !isatty(STDIN_FILENO)))
        return read_input(out);
    return a->prompt ? ax_buf_add(out, a->prompt, strlen(a->prompt)) : AX_OK;
}

/* Sets s->ids to the token ids of the prompt. An empty prompt becomes the end-of-text token, which separates
 * documents in training. */
static ax_status read_prompt(session *s)
{
    const args *a = s->a;
    AX_CHECK(!a->prompt || !a->tokens.count, AX_ERR_USAGE, "give either --prompt or --tokens, not both");
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
                 "the model has no end-of-text token to start from: give --prompt or --tokens");
        int32_t id = (int32_t)end;
        AX_TRY(ax_ids_add(&s->ids, &id, 1));
    }
    return AX_OK;
}

/* Reads the prompt on rank 0, which has standard input, and broadcasts its token ids. */
static ax_status share_prompt(session *s)
{
    ax_work *work;
    AX_TRY(ax_comm_agree(s->m.world, s->m.first ? read_prompt(s) : AX_OK));
    int32_t n = (int32_t)s->ids.size;
    AX_TRY(ax_broadcast(s->m.world, NULL, &n, 1, AX_I32, 0, &work));
    AX_TRY(ax_wait(&work));
    for (int32_t i = 0, none = 0; !s->m.first && i < n; i++)
        AX_TRY(ax_ids_add(&s->ids, &none, 1));
    AX_TRY(ax_broadcast(s->m.world, NULL, s->ids.data, n, AX_I32, 0, &work));
    s->prompt = (size_t)n;
    return ax_wait(&work);
}

static bool is_end_token(const session *s, int32_t id)
{
    for (size_t i = 0; i < s->a->stop.count; i++)
        if (s->a->stop.items[i] == id)
            return true;
    for (size_t i = 0; i < s->m.model.ends.size && !s->a->ignore_end; i++)
        if (s->m.model.ends.data[i] == id)
            return true;
    return false;
}

/* Appends a token to s->text, and prints those characters that are now complete. Without a tokenizer prints
 * the token's id. */
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

/* Prints the prompt, unless --json: the given text, or the decoded text of the given ids. */
static ax_status show_prompt(session *s)
{
    bool shown = s->m.first && !s->a->common.json;
    if (!shown || !s->a->tokens.count)
        skip_prompt(s);
    for (size_t i = 0; shown && i < s->a->tokens.count; i++)
        AX_TRY(show(s, s->ids.data[i]));
    return shown ? cli_print(s->given.data, s->given.size) : AX_OK;
}

/* Samples the next token on rank 0 and broadcasts it. All ranks should have the same logits, but a difference
 * in rounding must not let their sequences diverge. */
static ax_status draw(session *s, const float *logits, int64_t i, int32_t *id)
{
    const args *a = s->a;
    ax_work *work;
    ax_sampling how = {a->temperature, (int)a->top_k, a->top_p};
    uint64_t key = ax_rng_key((uint64_t)a->seed, "generate", 0);
    AX_TRY(
        ax_sample(logits, (int)s->m.model.config.vocab, &how, ax_rng_uniform(key, (uint64_t)i), s->work, id));
    AX_TRY(ax_broadcast(s->m.world, NULL, id, 1, AX_I32, 0, &work));
    return ax_wait(&work);
}

static ax_status generate(session *s)
{
    const args *a = s->a;
    const ax_model_config *c = &s->m.model.config;
    int64_t capacity = ax_min((int64_t)s->prompt + a->max_tokens, c->seq_len);
    AX_CHECK((int64_t)s->prompt < c->seq_len, AX_ERR_USAGE,
             "a prompt of %zu tokens leaves no room in the model's %lld positions", s->prompt,
             (long long)c->seq_len);
    const float *logits;
    AX_TRY(ax_generator_create(s->m.ctx, &s->m.model, (int64_t)s->prompt, capacity, &s->generator));
    AX_TRY(ax_calloc(2 * (size_t)c->vocab, sizeof *s->work, &s->work));
    AX_TRY(show_prompt(s));
    AX_TRY(ax_generator_feed(s->generator, s->ids.data, (int64_t)s->prompt, &logits));
    s->reason = "length";
    for (int64_t i = 0; i < a->max_tokens; i++) {
        int32_t id;
        AX_TRY(draw(s, logits, i, &id));
        if (is_end_token(s, id)) {
            s->reason = "stop";
            break;
        }
        AX_TRY(ax_ids_add(&s->ids, &id, 1));
        AX_TRY(show(s, id));
        if (i + 1 == a->max_tokens || (int64_t)s->ids.size == capacity)
            break;
        AX_TRY(ax_generator_feed(s->generator, &id, 1, &logits));
    }
    return s->m.model.tokenizer ? ax_decoder_finish(&s->decoder, &s->text) : AX_OK;
}

static ax_status finish(session *s, double seconds)
{
    if (s->a->common.json) {
        json_t *ids = json_array();
        for (size_t i = s->prompt; i < s->ids.size; i++)
            json_array_append_new(ids, json_integer(s->ids.data[i]));
        /* Without a tokenizer "text" is null, and "tokens" alone has the result. */
        json_t *text = s->m.model.tokenizer ? cli_json_text(s->text.size ? s->text.data : "", s->text.size)
                                            : json_null();
        return cli_print_json(json_pack("{s:o, s:o, s:i, s:s, s:f}", "text", text, "tokens", ids,
                                        "prompt_tokens", (int)s->prompt, "finish", s->reason, "seconds",
                                        seconds));
    }
    AX_TRY(cli_print(s->text.size ? s->text.data + s->shown : "", s->text.size - s->shown));
    return cli_print("\n", 1);
}

static ax_status run(const void *raw)
{
    const args *a = raw;
    session s = {.a = a};
    double start = ax_now();
    ax_status status = model_open(&a->common, MODEL_SEQUENCE, &s.m);
    ax_decoder_init(&s.decoder, s.m.model.tokenizer, AX_DECODE_SKIP_SPECIAL);
    if (status == AX_OK)
        status = share_prompt(&s);
    if (status == AX_OK)
        status = generate(&s);
    if (status == AX_OK)
        status = ax_comm_agree(s.m.world, s.m.first ? finish(&s, ax_now() - start) : AX_OK);
    cli_world_abort_unshared(s.m.world, status);
    ax_generator_destroy(&s.generator);
    free(s.work);
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
        "fills the model's positions.",
    .examples = "axonn generate runs/name --prompt 'int main(' --temperature 0.8 --top-p 0.95\n"
                "axonn generate runs/name < prompt.txt\n"
                "axonn generate path/to/gpt2 --tokens 464,3290 --temperature 0 --json",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .launches = true,
    .reads_input = wants_input,
};
