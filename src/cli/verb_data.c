/* axonn data build | show | check: packed token files. */
#include "verb.h"

#include "axonn/data.h"
#include "axonn/json.h"
#include "axonn/tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- printing what a file holds ------------------------------------------------------------------ */

static json_t *info_json(const char *path, const ax_data_info *info)
{
    char hash[20], checksum[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, info->tokenizer_hash);
    snprintf(checksum, sizeof checksum, "%016" PRIx64, info->checksum);
    const char *template = *info->chat_template ? info->chat_template : NULL;
    return json_pack("{s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:s, s:s}", "path", path,
                     "format", ax_data_format_name(info->format), "token_bytes", info->token_bytes, "tokens",
                     (json_int_t)info->tokens, "documents", (json_int_t)info->documents, "targets",
                     (json_int_t)info->targets, "vocab", (json_int_t)info->vocab, "text_bytes",
                     (json_int_t)info->text_bytes, "file_bytes", (json_int_t)info->file_bytes, "end_id",
                     (json_int_t)info->end_id, "template", template, "tokenizer_hash", hash, "checksum",
                     checksum);
}

/* Returns a count as text, or "unknown" if the file format does not store the count. */
static const char *known(int64_t value, bool is_known, char out[32])
{
    snprintf(out, 32, "%" PRId64, value);
    return is_known ? out : "unknown";
}

static void print_info(const char *path, const ax_data_info *info)
{
    char bytes[32], text[32];
    printf("%s\n  format      %s, %d bytes per token, %s\n", path, ax_data_format_name(info->format),
           info->token_bytes, ax_format_bytes((double)info->file_bytes, bytes));
    printf("  tokens      %" PRId64 "\n", info->tokens);
    printf("  documents   %s\n", known(info->documents, info->documents >= 0, text));
    if (info->targets >= 0)
        printf("  targets     %" PRId64 ", %.1f %% of the tokens\n", info->targets,
               100.0 * (double)info->targets / (double)ax_max(info->tokens, 1));
    if (*info->chat_template)
        printf("  template    %s\n", info->chat_template);
    printf("  vocabulary  %s\n", known(info->vocab, info->vocab > 0, text));
    printf("  end token   %s\n", info->end_id >= 0 ? known(info->end_id, true, text) : "none");
    if (info->text_bytes >= 0)
        printf("  text        %s, %.3f bytes per token\n", ax_format_bytes((double)info->text_bytes, text),
               info->tokens ? (double)info->text_bytes / (double)info->tokens : 0.0);
    if (info->tokenizer_hash)
        printf("  tokenizer   %016" PRIx64 "\n", info->tokenizer_hash);
}

/* Fails if no token of the file can have the id `end_id`: it is outside the vocabulary or, if the format does
 * not store the vocabulary's size, not representable in the file's integer type. */
static ax_status check_end_id(const ax_data *data, int64_t end_id)
{
    const ax_data_info *info = ax_data_describe(data);
    int64_t limit = info->vocab             ? info->vocab
                    : info->token_bytes < 4 ? INT64_C(1) << 8 * info->token_bytes
                                            : INT32_MAX + INT64_C(1);
    AX_CHECK(end_id < limit, AX_ERR_USAGE,
             "--end-id: %" PRId64 " cannot be a token of %s, whose ids are below %" PRId64, end_id,
             ax_data_path(data), limit);
    return AX_OK;
}

/* ---- build --------------------------------------------------------------------------------------- */

typedef struct build_args {
    cli_corpus corpus;
    ax_strings ignore;
    char *tokenizer, *out, *valid, *template;
    double valid_fraction;
    int64_t threads;
    bool dedup, bos, json;
} build_args;

static const ax_option build_options[] = {
    INPUT_OPTION(build_args, corpus),
    {"tokenizer", AX_OPT_PATH, offsetof(build_args, tokenizer), .required = true,
     .help = "a tokenizer's directory or its tokenizer.json"},
    {"out", AX_OPT_PATH, offsetof(build_args, out), .required = true, .meta = "FILE",
     .help = "the token file to write, e.g. train.tok"},
    {"valid", AX_OPT_PATH, offsetof(build_args, valid), .meta = "FILE",
     .help = "a second token file to write, for validation"},
    {"valid-fraction", AX_OPT_FLOAT, offsetof(build_args, valid_fraction), "0.01", "(0, 1)",
     .help = "fraction of the documents that goes to --valid; they are chosen by a hash of their text"},
    {"dedup", AX_OPT_BOOL, offsetof(build_args, dedup), "false",
     .help = "leave out documents whose text is equal to that of an earlier one"},
    INCLUDE_OPTION(build_args, corpus),
    TEXT_OPTIONS(build_args, corpus.text),
    {"bos", AX_OPT_BOOL, offsetof(build_args, bos), "true",
     .help = "put around each text what the tokenizer's post_processor puts there (as a rule a token that "
             "begins the text), as transformers does; conversations have the tokens of their template"},
    IGNORE_OPTION(build_args, ignore),
    {"template", AX_OPT_STRING, offsetof(build_args, template), .meta = "NAME",
     .help =
         "template by which conversations (JSON objects with messages or conversations, or with question "
         "and answer under several names) become text: chatml, llama3, qwen3 or another of docs/howto.md, "
         "or one that the tokenizer brings by name (default, tool_use); default: the tokenizer's own "
         "chat_template; without one, that which its special tokens choose"},
    {"threads", AX_OPT_INT, offsetof(build_args, threads), "0", "[0, 4096]",
     .help = "number of threads; 0: one per processor (hardware thread) that the process may use"},
    {"json", AX_OPT_BOOL, offsetof(build_args, json), "false", .help = "print the result as one JSON object"},
};

static bool show_build(void *user, const ax_data_progress *progress)
{
    cli_progress_update(user, progress->bytes_done, progress->bytes_total);
    return !cli_stop_wanted();
}

static ax_status report_build(const build_args *a, const ax_data_build_report *report, double seconds)
{
    char time[32];
    if (a->json)
        return cli_print_json(json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:o, s:o*}", "files", (json_int_t)report->files,
            "skipped", (json_int_t)report->skipped, "copies", (json_int_t)report->copies, "bad_lines",
            (json_int_t)report->bad_lines, "conversations", (json_int_t)report->conversations, "unanswered",
            (json_int_t)report->unanswered, "framed", report->framed, "seconds", seconds, "train",
            info_json(a->out, &report->train), "valid",
            a->valid ? info_json(a->valid, &report->valid) : NULL));
    print_info(a->out, &report->train);
    if (a->valid)
        print_info(a->valid, &report->valid);
    printf("%" PRId64 " file%s read, %" PRId64 " left out, ", report->files, report->files == 1 ? "" : "s",
           report->skipped);
    if (a->dedup)
        printf("%" PRId64 " copies of documents left out, ", report->copies);
    if (report->bad_lines)
        printf("%" PRId64 " bad line%s left out, ", report->bad_lines, report->bad_lines == 1 ? "" : "s");
    if (report->unanswered)
        printf("%" PRId64 " conversation%s without an answer left out, ", report->unanswered,
               report->unanswered == 1 ? "" : "s");
    printf("%s\n", ax_format_seconds(seconds, time));
    return AX_OK;
}

static ax_status build_with(const build_args *a, const ax_tokenizer *tok, const ax_chat *chat)
{
    double start = ax_now();
    cli_progress progress;
    ax_data_build_report report;
    ax_data_build_options how = {
        .corpus = cli_corpus_options(&a->corpus),
        .tokenizer = tok,
        .output = a->out,
        .valid_output = a->valid,
        .valid_fraction = a->valid ? a->valid_fraction : 0,
        .dedup = a->dedup,
        .bare = !a->bos,
        .threads = (int)a->threads,
        .progress = show_build,
        .user = &progress,
    };
    how.corpus.chat = chat;
    how.corpus.ignore = a->ignore;
    cli_stop_catch();
    cli_progress_start(&progress, "tokenizing", true);
    ax_status status = ax_data_build(&how, &report);
    cli_progress_end(&progress);
    if (status == AX_OK && *report.train.chat_template && ax_chat_doubt(chat))
        ax_log(AX_LOG_WARN, "%s", ax_chat_doubt(chat));
    return status == AX_OK ? report_build(a, &report, ax_now() - start) : status;
}

static ax_status run_build(const void *raw)
{
    const build_args *a = raw;
    ax_tokenizer *tok;
    ax_chat *chat = NULL;
    AX_CHECK(!a->valid || !ax_path_same(a->out, a->valid), AX_ERR_USAGE,
             "--out and --valid are the same file: %s", a->out);
    AX_TRY(ax_tokenizer_load(a->tokenizer, &tok));
    ax_status status = ax_chat_create(tok, a->template, &chat);
    if (status != AX_OK)
        ax_error_context("--template");
    if (status == AX_OK)
        status = build_with(a, tok, chat);
    ax_chat_destroy(&chat);
    ax_tokenizer_destroy(&tok);
    return status;
}

const cli_verb verb_data_build = {
    .name = "data build",
    .summary = "tokenize text into a packed token file",
    .details =
        "Conversations in JSON become text by a template; the token file then has a mask, which marks\n"
        "what the assistant says as targets of training.",
    .examples = "axonn data build --input corpus/ --tokenizer tok --out train.tok --valid valid.tok\n"
                "axonn data build --input chats.jsonl --tokenizer tok --template chatml --out chats.tok",
    .options = build_options,
    .option_count = AX_COUNT(build_options),
    .args_size = sizeof(build_args),
    .run = run_build,
};

/* ---- show ---------------------------------------------------------------------------------------- */

typedef struct show_args {
    char *data, *tokenizer;
    int64_t end_id, document, first, count;
    bool text, mask, json;
} show_args;

static const ax_option show_options[] = {
    {"DATA", AX_OPT_PATH, offsetof(show_args, data), .required = true,
     .help = "a token file, a directory of shards or a pattern ('*.bin')"},
    {"document", AX_OPT_INT, offsetof(show_args, document), "none", "[0, inf)", "none", .meta = "N",
     .help = "show the tokens of this document (the first is 0)"},
    {"first", AX_OPT_INT, offsetof(show_args, first), "0", "[0, inf)",
     .help = "with --count: position of the first token to show, from the start of the data"},
    {"count", AX_OPT_INT, offsetof(show_args, count), "0", "[0, 1000000]",
     .help = "show this many tokens, from position --first on; 0: do not show tokens by position"},
    {"tokenizer", AX_OPT_PATH, offsetof(show_args, tokenizer),
     .help = "show tokens as text, with this tokenizer, which must be the one that made the file"},
    {"text", AX_OPT_BOOL, offsetof(show_args, text), "false",
     .help = "with --tokenizer: print the text of all documents, one after the other, and nothing else"},
    {"mask", AX_OPT_BOOL, offsetof(show_args, mask), "false",
     .help = "show which tokens are targets of training: in green on a terminal, else in [brackets]. Shows "
             "the document of --document or the tokens of --count; by default the first document"},
    {"end-id", AX_OPT_INT, offsetof(show_args, end_id), "none", "[0, 2147483647]", "none", .meta = "ID",
     .help = "id of the token that ends a document, for file formats that do not store it"},
    {"json", AX_OPT_BOOL, offsetof(show_args, json), "false", .help = "print the result as one JSON object"},
};

/* Appends the tokens, as text if there is a tokenizer, with a mark where targets begin and where they end.
 * Bit i of `bits` is 1 if token i is a target. `starts`: the first token is known to begin a
 * document. */
static ax_status mark_tokens(const ax_tokenizer *tok, const ax_ids *ids, const uint64_t *bits, bool starts,
                             ax_buf *out)
{
    static const char *const marks[2][3] = {{"[", "]", ""}, {"\x1b[0;32m", "\x1b[0;2m", "\x1b[0m"}};
    const char *const *mark = marks[cli_colour(stdout)];
    ax_decoder decoder;
    bool inside = false;
    ax_decoder_init(&decoder, tok, starts ? 0 : AX_DECODE_CONTINUE);
    AX_TRY(ax_buf_printf(out, "%s", cli_colour(stdout) ? mark[1] : ""));
    for (size_t i = 0; i < ids->size; i++) {
        bool target = bits[i / 64] >> i % 64 & 1;
        if (!tok && i)
            AX_TRY(ax_buf_printf(out, ","));
        if (target != inside)
            AX_TRY(ax_buf_printf(out, "%s", mark[!target]));
        inside = target;
        AX_TRY(tok ? ax_decoder_push(&decoder, ids->data[i], out) : ax_buf_printf(out, "%d", ids->data[i]));
    }
    if (tok)
        AX_TRY(ax_decoder_finish(&decoder, out));
    return ax_buf_printf(out, "%s%s\n", inside ? mark[1] : "", mark[2]);
}

static ax_status print_marked(const ax_tokenizer *tok, const ax_ids *ids, const uint64_t *bits, bool starts)
{
    ax_buf out = {0};
    ax_status status = mark_tokens(tok, ids, bits, starts, &out);
    if (status == AX_OK)
        status = cli_print(out.data, out.size);
    ax_buf_fini(&out);
    return status;
}

/* Adds the mask of the tokens to `info`; without --json also prints the tokens with their mask. */
static ax_status show_mask(const show_args *a, const ax_data *data, const ax_tokenizer *tok, int64_t first,
                           const ax_ids *ids, bool starts, json_t *info)
{
    uint64_t *bits;
    AX_TRY(ax_calloc(ids->size / 64 + 1, sizeof *bits, &bits));
    ax_status status = ax_data_mask(data, first, (int64_t)ids->size, bits);
    if (status == AX_OK && !a->json)
        status = print_marked(tok, ids, bits, starts);
    json_t *list = json_array();
    for (size_t i = 0; i < ids->size; i++)
        json_array_append_new(list, json_integer(bits[i / 64] >> i % 64 & 1));
    json_object_set_new(info, "mask", list);
    free(bits);
    return status;
}

static ax_status print_tokens(const show_args *a, const ax_ids *ids, const ax_buf *text, json_t *info)
{
    if (a->json) {
        json_t *list = json_array();
        for (size_t i = 0; i < ids->size; i++)
            json_array_append_new(list, json_integer(ids->data[i]));
        json_object_set_new(info, "ids", list);
        if (a->tokenizer)
            json_object_set_new(info, "text", ax_json_text(text->data ? text->data : "", text->size));
        return AX_OK;
    }
    if (a->tokenizer)
        return cli_print(text->data ? text->data : "", text->size);
    for (size_t i = 0; i < ids->size; i++)
        printf("%s%d", i ? "," : "", (int)ids->data[i]);
    printf("\n");
    return AX_OK;
}

static ax_status show_tokens(const show_args *a, const ax_data *data, const ax_tokenizer *tok, json_t *info)
{
    int64_t tokens = ax_data_describe(data)->tokens, first = ax_min(a->first, tokens);
    int64_t end = first + ax_min(a->count, tokens - first);
    if (a->document >= 0 || !a->count)
        AX_TRY(ax_data_document(data, ax_max(a->document, 0), &first, &end));
    AX_CHECK(first < end, AX_ERR_USAGE, "--first: must be below the number of tokens of %s, %" PRId64,
             ax_data_path(data), ax_data_describe(data)->tokens);
    ax_ids ids = {0};
    ax_buf text = {0};
    AX_TRY(ax_calloc((size_t)(end - first), sizeof *ids.data, &ids.data));
    ids.size = ids.capacity = (size_t)(end - first);
    ax_status status = ax_data_tokens(data, first, end - first, ids.data);
    bool starts =
        a->document >= 0 || !a->count || !first; /* whether the printed range is known to begin at the start
                                                    of a document; --first may also name such a place */
    if (status == AX_OK && a->mask)
        status = show_mask(a, data, tok, first, &ids, starts, info);
    if (status == AX_OK && tok && (!a->mask || a->json))
        status = ax_decode(tok, ids.data, ids.size, starts ? 0 : AX_DECODE_CONTINUE, &text);
    if (status == AX_OK && (!a->mask || a->json))
        status = print_tokens(a, &ids, &text, info);
    ax_buf_fini(&text);
    ax_ids_fini(&ids);
    return status;
}

/* Prints tokens first … end-1 as text. Each token `end_id` (-1: none) ends a document and is not printed. */
static ax_status print_range(const ax_data *data, const ax_tokenizer *tok, int64_t first, int64_t end,
                             int64_t end_id)
{
    int32_t ids[4096];
    ax_decoder decoder;
    ax_buf text = {0};
    ax_status status = AX_OK;
    ax_decoder_init(&decoder, tok, 0);
    for (int64_t at = first, n; at < end && status == AX_OK; at += n) {
        n = ax_min((int64_t)AX_COUNT(ids), end - at);
        text.size = 0;
        status = ax_data_tokens(data, at, n, ids);
        for (int64_t i = 0; i < n && status == AX_OK; i++)
            status = ids[i] == end_id ? ax_decoder_finish(&decoder, &text)
                                      : ax_decoder_push(&decoder, ids[i], &text);
        if (status == AX_OK && at + n == end)
            status = ax_decoder_finish(&decoder, &text);
        if (status == AX_OK && text.size)
            status = cli_print(text.data, text.size);
    }
    ax_buf_fini(&text);
    return status;
}

/* Prints the text of all documents, without the end token that closes each of them. If the file has an index
 * of documents, an end token inside a document is printed, because it was part of the document's text. */
static ax_status print_text(const ax_data *data, const ax_tokenizer *tok)
{
    const ax_data_info *info = ax_data_describe(data);
    AX_CHECK(info->documents >= 0 || info->end_id >= 0, AX_ERR_USAGE,
             "--text: %s files do not store where documents end: give --end-id",
             ax_data_format_name(info->format));
    if (info->documents < 0)
        return print_range(data, tok, 0, info->tokens, info->end_id);
    for (int64_t d = 0; d < info->documents; d++) {
        int64_t first, end;
        int32_t last;
        AX_TRY(ax_data_document(data, d, &first, &end));
        AX_TRY(ax_data_tokens(data, end - 1, 1, &last));
        AX_TRY(print_range(data, tok, first, last == info->end_id ? end - 1 : end, -1));
    }
    return AX_OK;
}

static ax_status show_text(const show_args *a, const ax_data *data, const ax_tokenizer *tok)
{
    AX_CHECK(tok, AX_ERR_USAGE, "--text: also give --tokenizer, which turns tokens into text");
    AX_CHECK(a->document < 0 && !a->count && !a->json && !a->mask, AX_ERR_USAGE,
             "--text prints all documents: leave out --document, --count, --mask and --json");
    return print_text(data, tok);
}

static ax_status show(const show_args *a, const ax_data *data, const ax_tokenizer *tok)
{
    bool tokens = a->document >= 0 || a->count > 0 || a->mask;
    ax_data_info about = *ax_data_describe(data);
    AX_CHECK(!a->mask || about.targets >= 0, AX_ERR_USAGE,
             "--mask: %s has no mask, so all of its tokens are targets: leave out --mask", a->data);
    if (a->end_id >= 0)
        AX_TRY(ax_data_count_documents(data, &about.documents));
    json_t *info = info_json(a->data, &about);
    ax_status status = AX_OK;
    if (tokens)
        status = show_tokens(a, data, tok, info);
    else if (!a->json)
        print_info(a->data, &about);
    if (status == AX_OK && a->json)
        status = cli_print_json(json_incref(info));
    json_decref(info);
    return status;
}

static ax_status run_show(const void *raw)
{
    const show_args *a = raw;
    ax_data *data;
    ax_tokenizer *tok = NULL;
    AX_CHECK(!a->first || (a->count && a->document < 0), AX_ERR_USAGE,
             "--first: give it with --count and without --document");
    AX_TRY(ax_data_open(a->data, a->end_id, &data));
    ax_status status = check_end_id(data, a->end_id);
    if (status == AX_OK && a->tokenizer)
        status = ax_tokenizer_load(a->tokenizer, &tok);
    if (status == AX_OK && tok)
        status = ax_data_expect(
            data, &(ax_data_reader){ax_tokenizer_vocab_size(tok), ax_tokenizer_hash(tok), tok, false});
    if (status == AX_OK)
        status = a->text ? show_text(a, data, tok) : show(a, data, tok);
    ax_tokenizer_destroy(&tok);
    ax_data_close(&data);
    return status;
}

const cli_verb verb_data_show = {
    .name = "data show",
    .summary = "describe a token file, or print some of its tokens",
    .details = "Also reads the token files of llm.c, nanoGPT and Megatron-LM.",
    .examples = "axonn data show train.tok\naxonn data show train.tok --document 3 --tokenizer tok\n"
                "axonn data show chats.tok --mask --tokenizer tok\n"
                "axonn data show valid.tok --text --tokenizer tok | xz -9e | wc -c",
    .options = show_options,
    .option_count = AX_COUNT(show_options),
    .args_size = sizeof(show_args),
    .run = run_show,
};

/* ---- check --------------------------------------------------------------------------------------- */

typedef struct check_args {
    ax_strings data;
    char *tokenizer;
    int64_t end_id;
    bool json;
} check_args;

static const ax_option check_options[] = {
    {"DATA", AX_OPT_STRINGS, offsetof(check_args, data), .required = true,
     .help = "token files, directories of shards or patterns ('*.bin')"},
    {"tokenizer", AX_OPT_PATH, offsetof(check_args, tokenizer),
     .help = "also check that the files were made with this tokenizer (its directory or tokenizer.json)"},
    {"end-id", AX_OPT_INT, offsetof(check_args, end_id), "none", "[0, 2147483647]", "none", .meta = "ID",
     .help = "id of the token that ends a document, for file formats that do not store it"},
    {"json", AX_OPT_BOOL, offsetof(check_args, json), "false",
     .help = "print the results as JSON, one object per file"},
};

static ax_status check_file(const check_args *a, const char *path, const ax_tokenizer *tok)
{
    ax_data *data;
    AX_TRY(ax_data_open(path, a->end_id, &data));
    ax_status status = check_end_id(data, a->end_id);
    if (status == AX_OK && tok)
        status = ax_data_expect(
            data, &(ax_data_reader){ax_tokenizer_vocab_size(tok), ax_tokenizer_hash(tok), tok, false});
    if (status == AX_OK)
        status = ax_data_check(data);
    if (status == AX_OK && !a->json)
        printf("%s: good, %" PRId64 " tokens\n", path, ax_data_describe(data)->tokens);
    ax_data_close(&data);
    return status;
}

/* Checks all files, also after one has failed. Returns the status of the first file that fails. */
static ax_status check_files(const check_args *a, const ax_tokenizer *tok)
{
    ax_status first = AX_OK;
    ax_buf message = {0};
    for (size_t i = 0; i < a->data.count; i++) {
        ax_status status = check_file(a, a->data.items[i], tok);
        const char *why = status == AX_OK ? NULL : ax_error_message();
        if (status != AX_OK && first == AX_OK) {
            first = status;
            AX_TRY(ax_buf_printf(&message, "%s", why));
        } else if (status != AX_OK) {
            ax_log(AX_LOG_ERROR, "%s", why);
        }
        if (a->json)
            AX_TRY(cli_print_json(json_pack("{s:s, s:b, s:s?}", "path", a->data.items[i], "good",
                                            status == AX_OK, "error", why)));
    }
    if (first != AX_OK)
        (void)ax_fail(first, "%s", message.data);
    ax_buf_fini(&message);
    return first;
}

static ax_status run_check(const void *raw)
{
    const check_args *a = raw;
    ax_tokenizer *tok = NULL;
    if (a->tokenizer)
        AX_TRY(ax_tokenizer_load(a->tokenizer, &tok));
    ax_status status = check_files(a, tok);
    ax_tokenizer_destroy(&tok);
    return status;
}

const cli_verb verb_data_check = {
    .name = "data check",
    .summary = "verify token files: checksum, tokens, document index",
    .examples = "axonn data check train.tok valid.tok --tokenizer tok",
    .options = check_options,
    .option_count = AX_COUNT(check_options),
    .args_size = sizeof(check_args),
    .run = run_check,
};
