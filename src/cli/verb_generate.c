/* axonn generate: continues a prompt, or answers in a conversation, token by token. */
#include "axonn/chat.h"
#include "axonn/json.h"
#include "prompts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 16 }; /* texts that are continued at a time, if --batch does not say */

typedef struct args {
    model_args common;
    char *prompt, *messages, *template, *prompts, *out;
    ax_ints tokens, stop;
    int64_t max_tokens, top_k, seed, samples, batch;
    double temperature, top_p, min_p, repetition_penalty;
    ax_strings ignore, until;
    model_keys keys;
    bool chat, ignore_end, braces;
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
    {"prompts", AX_OPT_PATH, offsetof(args, prompts), .meta = "FILE",
     .help = "continue many prompts: each line of this file, or each element of the JSON array in it, is an "
             "object "
             "with a unique \"id\", one of \"prompt\", \"tokens\" and \"messages\", and perhaps its own "
             "\"until\", "
             "\"max_tokens\" and \"samples\""},
    {"out", AX_OPT_PATH, offsetof(args, out), .meta = "FILE",
     .help =
         "with --prompts: the file of texts. Its first line describes how they are made; each text that ends "
         "appends a line with \"id\", \"sample\", \"text\", \"tokens\", \"finish\" and the other members of "
         "the "
         "prompt's object. If the file exists, the same command goes on where it stopped"},
    {"batch", AX_OPT_INT, offsetof(args, batch), "0", "[0, 65535]", .meta = "B",
     .help = "with --prompts: how many texts are continued at a time, on the ranks of each coordinate along "
             "data; 0: 16"},
    IGNORE_OPTION(args, ignore),
    {"template", AX_OPT_STRING, offsetof(args, template), .meta = "NAME",
     .help =
         "with --chat, --messages and --prompts: template of conversations: chatml, llama3, qwen3 or another "
         "of docs/howto.md, or one that the model brings by name (default, tool_use); default: the model's "
         "own chat_template; without one, that which its special tokens choose"},
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
    {"until", AX_OPT_STRINGS, offsetof(args, until), .meta = "TEXT...",
     .help = "end the text before this string, wherever tokens divide it; may be given several times"},
    {"braces", AX_OPT_BOOL, offsetof(args, braces), "false",
     .help = "end the text with the brace } that closes the last of those that the prompt opened; braces in "
             "comments and strings count. Without effect if the prompt opens none"},
    {"ignore-end", AX_OPT_BOOL, offsetof(args, ignore_end), "false",
     .help = "do not stop at the model's end tokens (eos_token_id of generation_config.json, else of "
             "config.json, else the tokenizer's end-of-text token)"},
    MODEL_KEYS_OPTIONS(args, keys),
    MODEL_DEVICE_OPTIONS(args, common),
};

typedef struct session {
    const args *a;
    opened_model m;
    ax_buf given; /* text of the prompt, if it is given as text; on rank 0 only */
    ax_ids ids;   /* the prompt */
    ax_text_options wanted;
    ax_text *text;
    int64_t sample;    /* number of the text that is sampled, from 0 */
    ax_chat *template; /* NULL: no conversation */
    ax_chat_turns turns;
    ax_chat_text rendered;
    bool warned;  /* of what the template leaves out of conversations */
    double start; /* ax_now at the start of the verb, or of a turn */
} session;

/* Returns the error that the model has no tokenizer, so text cannot be used, with the advice `instead`. If
 * the model has a tokenizer of another kind, the message says how to get one that can be read. */
static ax_status refuse_text(const session *s, const char *instead)
{
    static const char *const others[] = {"tokenizer.model", "tekken.json"};
    const char *dir = s->m.model.dir;
    ax_tokenizer *none = NULL;
    for (size_t i = 0; i < AX_COUNT(others); i++)
        if (ax_dir_has(dir, others[i]))
            AX_TRY(ax_tokenizer_load(dir, &none));
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
    const bool file = s->a->messages && !wants_input(s->a);
    cli_warn_lost(&s->rendered, file ? s->a->messages : "the conversation", 0, &s->warned);
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

/* ---- texts --------------------------------------------------------------------------------------- */

/* Prints, on rank 0 and without --json, the characters that are complete and not printed yet. */
static ax_status show(const session *s)
{
    size_t n;
    if (!s->m.first || s->a->common.json)
        return AX_OK;
    const char *text = ax_text_take(s->text, &n);
    AX_TRY(cli_print(text, n));
    if (n)
        fflush(stdout);
    return AX_OK;
}

/* Continues the prompt in s->ids. */
static ax_status generate(session *s)
{
    AX_TRY(ax_text_start(s->text, s->ids.data, s->ids.size, s->sample));
    if (s->m.first && !s->a->common.json)
        AX_TRY(cli_print(s->given.data, s->given.size));
    AX_TRY(show(s));
    while (ax_text_finish(s->text) == AX_UNFINISHED) {
        AX_TRY(ax_text_next(s->text));
        AX_TRY(show(s));
    }
    return AX_OK;
}

static ax_status finish(const session *s)
{
    size_t n, count;
    if (!s->a->common.json)
        return cli_print("\n", 1);
    const char *said = ax_text_get(s->text, &n);
    const int32_t *id = ax_text_ids(s->text, &count);
    json_t *ids = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(ids, json_integer(id[i]));
    /* Without a tokenizer "text" is null, and "tokens" alone has the result. */
    json_t *text = s->m.model.tokenizer ? ax_json_text(said, n) : json_null();
    const char *reason = ax_text_finish(s->text) == AX_FINISH_STOP ? "stop" : "length";
    json_t *object = json_pack("{s:o, s:o, s:i, s:s, s:f}", "text", text, "tokens", ids, "prompt_tokens",
                               (int)s->ids.size, "finish", reason, "seconds", ax_now() - s->start);
    if (s->a->samples > 1)
        json_object_set_new(object, "sample", json_integer(s->sample));
    return cli_print_json(object);
}

/* Ends the answer, and adds it to the conversation. */
static ax_status finish_turn(session *s)
{
    size_t n;
    const char *text = ax_text_get(s->text, &n);
    AX_TRY(finish(s));
    fflush(stdout);
    return add_turn(s, AX_CHAT_ASSISTANT, text, n);
}

static ax_status talk(session *s)
{
    for (;;) {
        AX_TRY(share_prompt(s, read_turn));
        s->start = ax_now();
        if (!s->ids.size)
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
        s->start = s->sample ? ax_now() : s->start;
        AX_TRY(ax_comm_agree(s->m.world, begin_sample(s)));
        AX_TRY(generate(s));
        AX_TRY(ax_comm_agree(s->m.world, s->m.first ? finish(s) : AX_OK));
    }
    return AX_OK;
}

static ax_status check_args(const args *a)
{
    AX_CHECK(!!a->prompt + (a->tokens.count > 0) + a->chat + !!a->messages + !!a->prompts <= 1, AX_ERR_USAGE,
             "give only one of --prompt, --tokens, --chat, --messages and --prompts");
    AX_CHECK(!a->template || a->chat || a->messages || a->prompts, AX_ERR_USAGE,
             "--template: give it only together with --chat, --messages or --prompts");
    AX_CHECK(!a->batch || a->prompts, AX_ERR_USAGE, "--batch: give it only together with --prompts");
    AX_CHECK(!a->prompts == !a->out, AX_ERR_USAGE, "--prompts FILE and --out FILE: give both or none");
    AX_CHECK(!a->chat || a->samples == 1, AX_ERR_USAGE,
             "--samples: a conversation (--chat) goes on after one answer; give --samples with a prompt or "
             "with --messages");
    for (size_t i = 0; i < a->until.count; i++)
        AX_CHECK(*a->until.items[i], AX_ERR_USAGE, "--until: a text cannot end before an empty string");
    return AX_OK;
}

/* Takes the values of the sampling that no flag gives from the model, and logs them. */
static ax_status choose_sampling(const session *s, ax_generation *how)
{
    const args *a = s->a;
    char said[160], left[160];
    *how = (ax_generation){a->temperature, a->top_p, a->min_p, a->top_k, a->repetition_penalty};
    AX_TRY(ax_pretrained_generation(&s->m.model, how, said, left));
    if (s->m.first && *said)
        ax_log(AX_LOG_INFO, "%s, as the model's generation_config.json says (flags override it)", said);
    if (s->m.first && *left)
        ax_log(AX_LOG_WARN,
               "the model's generation_config.json has %s, which transformers applies and axonn does not",
               left);
    if (s->m.first && a->samples > 1 && how->temperature <= 0)
        ax_log(AX_LOG_WARN, "--samples %lld with temperature 0: all texts will be equal; give --temperature",
               (long long)a->samples);
    return AX_OK;
}

static ax_status choose_template(session *s)
{
    if (!s->m.model.tokenizer)
        return refuse_text(s, "conversations need one");
    ax_status status = ax_chat_create(s->m.model.tokenizer, s->a->template, &s->template);
    if (status != AX_OK)
        ax_error_context("--template");
    else if (s->m.first && !s->a->prompts) /* prompts need not be conversations */
        cli_log_template(s->template);
    return status;
}

/* Chooses the model's template for prompts that are conversations, if one is known. */
static ax_status find_template(session *s)
{
    ax_status status = ax_chat_create(s->m.model.tokenizer, NULL, &s->template);
    return status == AX_ERR_MEMORY ? status : AX_OK;
}

/* Chooses what the flags and the model leave open. */
static ax_status start(session *s)
{
    const args *a = s->a;
    ax_text_options *o = &s->wanted;
    const bool talks = a->chat || a->messages;
    AX_TRY(check_args(a));
    if ((a->until.count || a->braces) && !s->m.model.tokenizer)
        return refuse_text(s, "--until and --braces need the text");
    AX_TRY(choose_sampling(s, &o->how));
    if (talks || a->template)
        AX_TRY(choose_template(s));
    else if (a->prompts && s->m.model.tokenizer)
        AX_TRY(find_template(s));
    o->seed = a->seed;
    o->max_tokens = a->max_tokens;
    o->stop = a->stop.items;
    o->stops = a->stop.count;
    o->until = &a->until;
    o->braces = a->braces;
    o->ignore_end = a->ignore_end;
    o->chat = talks ? s->template : NULL;
    o->grows = a->chat;
    o->echo = a->tokens.count && !a->common.json;
    return a->prompts ? AX_OK : ax_text_create(s->m.ctx, &s->m.model, o, &s->text);
}

static ax_status generate_many(const session *s)
{
    const args *a = s->a;
    return prompts_run(&s->m, &(prompt_run){.common = &a->common,
                                            .source = {.path = a->prompts,
                                                       .model = &s->m.model,
                                                       .template = s->template,
                                                       .ignore = &a->ignore,
                                                       .samples = a->samples},
                                            .options = &s->wanted,
                                            .out = a->out,
                                            .batch = a->batch ? a->batch : BATCH});
}

static ax_status run(const void *raw)
{
    const args *a = raw;
    session s = {.a = a};
    s.start = ax_now();
    ax_status status = model_open(&a->common, a->prompts ? MODEL_SEQUENCES : MODEL_SEQUENCE, &s.m);
    if (status == AX_OK)
        status = model_read_keys(&s.m, &a->keys);
    if (status == AX_OK)
        status = ax_comm_agree(s.m.world, start(&s));
    if (status == AX_OK)
        status = a->prompts ? generate_many(&s) : a->chat ? talk(&s) : answer_once(&s);
    cli_world_abort_unshared(s.m.world, status);
    ax_text_destroy(&s.text);
    free_turns(&s);
    ax_chat_destroy(&s.template);
    ax_ids_fini(&s.ids);
    ax_buf_fini(&s.given);
    return model_close(&s.m, status);
}

const cli_verb verb_generate = {
    .name = "generate",
    .summary = "continue a prompt with a model",
    .details =
        "Prints the prompt, then each token as soon as it is generated: as text, or as token ids if the\n"
        "model has no tokenizer. Stops after --max-tokens, at an end or stop token, before a string of\n"
        "--until, or when the text fills the model's positions. In a conversation (--chat, --messages) it\n"
        "prints the answers only, each up to the end of its turn.",
    .examples = "axonn generate runs/name --prompt 'int main(' --temperature 0.8 --top-p 0.95\n"
                "axonn generate runs/name < prompt.txt\n"
                "axonn generate runs/name --prompt 'int gcd(int a, int b) {' --braces\n"
                "axonn generate runs/name --chat --temperature 0.7\n"
                "axonn generate path/to/gpt2 --tokens 464,3290 --temperature 0 --json",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .launches = true,
    .reads_input = wants_input,
};
