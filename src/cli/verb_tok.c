/* axonn tok train | encode | decode | check: trains byte-level BPE tokenizers; encodes and decodes with
 * byte-level BPE tokenizers and with SentencePiece's BPE tokenizers (axonn/tokenizer.h). */
#include "verb.h"

#include "axonn/data.h"
#include "axonn/json.h"
#include "axonn/tokenizer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- train --------------------------------------------------------------------------------------- */

typedef struct train_args {
    ax_strings special;
    int64_t vocab, threads;
    char *out, *pattern, *eos;
    cli_corpus corpus;
    bool json;
} train_args;

static const ax_option train_options[] = {
    INPUT_OPTION(train_args, corpus),
    {"vocab", AX_OPT_INT, offsetof(train_args, vocab), NULL, "[257, 16777216]", .required = true,
     .help = "size of the vocabulary, including the 256 bytes and the special tokens"},
    {"out", AX_OPT_PATH, offsetof(train_args, out), .required = true, .meta = "DIR",
     .help = "directory to which tokenizer.json and tokenizer_config.json are written"},
    {"pattern", AX_OPT_STRING, offsetof(train_args, pattern), "gpt2", .choices = "gpt2|llama3|qwen2",
     .help = "pre-tokenization pattern: how text is split into pieces; merges stay within a piece"},
    {"special", AX_OPT_STRINGS, offsetof(train_args, special), "<|endoftext|>", .meta = "TOKEN...",
     .help = "special tokens of the new tokenizer; they get the lowest ids"},
    {"eos", AX_OPT_STRING, offsetof(train_args, eos), .meta = "TOKEN",
     .help = "the special token that ends a document (default: <|endoftext|> if it is a special token)"},
    INCLUDE_OPTION(train_args, corpus),
    TEXT_OPTIONS(train_args, corpus.text),
    {"threads", AX_OPT_INT, offsetof(train_args, threads), "0", "[0, 4096]",
     .help = "number of threads; 0: one per processor (hardware thread) that the process may use"},
    {"json", AX_OPT_BOOL, offsetof(train_args, json), "false", .help = "print the result as one JSON object"},
};

typedef struct training {
    ax_corpus *corpus;
    int64_t bytes_total;
    cli_progress progress;
    ax_tokenizer_phase phase;
} training;

static ax_status next_document(void *arg, ax_buf *doc, bool *end) { return ax_corpus_next(arg, doc, end); }

static bool show_training(void *arg, ax_tokenizer_phase phase, int64_t done, int64_t total)
{
    training *t = arg;
    if (phase != t->phase) {
        cli_progress_end(&t->progress);
        cli_progress_start(&t->progress, phase == AX_TOKENIZER_COUNT ? "counting" : "merging",
                           phase == AX_TOKENIZER_COUNT);
        t->phase = phase;
    }
    cli_progress_update(&t->progress, done, total ? total : t->bytes_total);
    return true;
}

static ax_status train_corpus(const train_args *a, ax_corpus *corpus, ax_tokenizer **tok)
{
    training t = {.corpus = corpus, .bytes_total = ax_corpus_bytes(corpus)};
    ax_tokenizer_training how = {
        .vocab = (int32_t)a->vocab,
        .pattern = a->pattern,
        .specials = (const char *const *)a->special.items,
        .n_specials = a->special.count,
        .eos = a->eos,
        .next = next_document,
        .next_arg = corpus,
        .threads = (int)a->threads,
        .progress = show_training,
        .progress_arg = &t,
    };
    cli_progress_start(&t.progress, "counting", true);
    ax_status status = ax_tokenizer_train(&how, tok);
    cli_progress_end(&t.progress);
    return status;
}

static ax_status report_training(const train_args *a, const ax_tokenizer *tok, const ax_corpus *corpus,
                                 double seconds)
{
    char bytes[32], time[32];
    int32_t vocab = ax_tokenizer_vocab_size(tok);
    if (a->json)
        return cli_print_json(json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:f}", "out", a->out, "vocab",
                                        (int)vocab, "files", (json_int_t)ax_corpus_files(corpus), "skipped",
                                        (json_int_t)ax_corpus_skipped(corpus), "bad_lines",
                                        (json_int_t)ax_corpus_bad_lines(corpus), "bytes",
                                        (json_int_t)ax_corpus_bytes(corpus), "seconds", seconds));
    long long files = (long long)ax_corpus_files(corpus);
    printf("%s: %d tokens from %s in %lld file%s, %s\n", a->out, (int)vocab,
           ax_format_bytes((double)ax_corpus_bytes(corpus), bytes), files, files == 1 ? "" : "s",
           ax_format_seconds(seconds, time));
    return AX_OK;
}

static bool is_empty_dir(const char *path)
{
    ax_strings names;
    bool empty = ax_dir_list(path, &names) == AX_OK && !names.count;
    ax_strings_fini(&names);
    return empty;
}

/* Fails if there is something at --out that is neither an empty directory nor a tokenizer's directory: a
 * mistaken path must not get the files of a tokenizer. */
static ax_status check_out(const char *out)
{
    static const char *const files[] = {"tokenizer.json", "vocab.json"};
    bool good = !ax_path_exists(out) || is_empty_dir(out);
    for (size_t i = 0; i < AX_COUNT(files) && !good; i++)
        good = ax_dir_has(out, files[i]);
    AX_CHECK(good, AX_ERR_USAGE,
             "--out: %s exists and is not a tokenizer's directory: write to another directory, or remove it "
             "first",
             out);
    return AX_OK;
}

static ax_status run_train(const void *raw)
{
    const train_args *a = raw;
    AX_TRY(check_out(a->out));
    double start = ax_now();
    ax_corpus_options which = cli_corpus_options(&a->corpus);
    ax_corpus *corpus;
    ax_tokenizer *tok = NULL;
    AX_TRY(ax_corpus_create(&which, &corpus));
    ax_status status = train_corpus(a, corpus, &tok);
    if (status == AX_OK)
        status = ax_tokenizer_save(tok, a->out);
    if (status == AX_OK)
        status = report_training(a, tok, corpus, ax_now() - start);
    ax_tokenizer_destroy(&tok);
    ax_corpus_destroy(&corpus);
    return status;
}

const cli_verb verb_tok_train = {
    .name = "tok train",
    .summary = "train a tokenizer on text",
    .details =
        "Trains byte-level BPE and writes it in the file format of Hugging Face's tokenizers. The result\n"
        "does not depend on the number of threads.",
    .examples = "axonn tok train --input corpus/ --include '*.txt' --vocab 32000 --out tok",
    .options = train_options,
    .option_count = AX_COUNT(train_options),
    .args_size = sizeof(train_args),
    .run = run_train,
};

/* ---- encode -------------------------------------------------------------------------------------- */

typedef struct encode_args {
    char *tokenizer, *text;
    bool special, plain, json;
} encode_args;

static const ax_option encode_options[] = {
    {"TOKENIZER", AX_OPT_PATH, offsetof(encode_args, tokenizer), .required = true,
     .help = "a tokenizer's directory or its tokenizer.json"},
    {"TEXT", AX_OPT_STRING, offsetof(encode_args, text),
     .help = "the text to encode; default: standard input; an empty text gives an empty line"},
    {"special", AX_OPT_BOOL, offsetof(encode_args, special), "false",
     .help = "add the special tokens with which the tokenizer begins or ends a text (post_processor in "
             "tokenizer.json)"},
    {"plain", AX_OPT_BOOL, offsetof(encode_args, plain), "false",
     .help = "encode special tokens in the text as ordinary text; use it for untrusted input"},
    {"json", AX_OPT_BOOL, offsetof(encode_args, json), "false",
     .help = "print one JSON object with the ids and the pieces of text, instead of ids separated by commas"},
};

static ax_status print_ids(const ax_tokenizer *tok, const ax_ids *ids, bool json)
{
    if (!json) {
        for (size_t i = 0; i < ids->size; i++)
            printf("%s%d", i ? "," : "", (int)ids->data[i]);
        printf("\n");
        return AX_OK;
    }
    json_t *numbers = json_array(), *pieces = json_array();
    for (size_t i = 0; i < ids->size; i++) {
        size_t n;
        const char *piece = ax_tokenizer_piece(tok, ids->data[i], &n);
        json_array_append_new(numbers, json_integer(ids->data[i]));
        json_array_append_new(pieces, ax_json_text(piece, n));
    }
    return cli_print_json(
        json_pack("{s:I, s:o, s:o}", "count", (json_int_t)ids->size, "ids", numbers, "pieces", pieces));
}

static ax_status encode_text(const encode_args *a, const ax_tokenizer *tok, const char *text, size_t n)
{
    ax_encoder *encoder;
    ax_ids ids = {0};
    AX_TRY(ax_encoder_create(tok, &encoder));
    unsigned flags = (a->special ? AX_ENCODE_ADD_SPECIAL : 0) | (a->plain ? AX_ENCODE_PLAIN : 0);
    ax_status status = ax_encode(encoder, text, n, flags, &ids);
    if (status == AX_OK)
        status = print_ids(tok, &ids, a->json);
    ax_ids_fini(&ids);
    ax_encoder_destroy(&encoder);
    return status;
}

static ax_status run_encode(const void *raw)
{
    const encode_args *a = raw;
    ax_tokenizer *tok;
    ax_buf input = {0};
    AX_TRY(ax_tokenizer_load(a->tokenizer, &tok));
    ax_status status = a->text ? ax_buf_add(&input, a->text, strlen(a->text)) : cli_read_stdin(&input);
    if (status == AX_OK)
        status = encode_text(a, tok, input.data, input.size);
    ax_buf_fini(&input);
    ax_tokenizer_destroy(&tok);
    return status;
}

const cli_verb verb_tok_encode = {
    .name = "tok encode",
    .summary = "turn text into token ids",
    .examples = "axonn tok encode tok 'int main(void)'\naxonn tok encode tok <file.txt >ids",
    .options = encode_options,
    .option_count = AX_COUNT(encode_options),
    .args_size = sizeof(encode_args),
    .run = run_encode,
};

/* ---- decode -------------------------------------------------------------------------------------- */

typedef struct decode_args {
    char *tokenizer;
    ax_ints ids;
    bool skip_special, json;
} decode_args;

static const ax_option decode_options[] = {
    {"TOKENIZER", AX_OPT_PATH, offsetof(decode_args, tokenizer), .required = true,
     .help = "a tokenizer's directory or its tokenizer.json"},
    {"IDS", AX_OPT_INTS, offsetof(decode_args, ids), NULL, "[0, 2147483647]", .meta = "IDS",
     .help =
         "the token ids to decode, separated by commas; default: standard input; no ids give an empty text"},
    {"skip-special", AX_OPT_BOOL, offsetof(decode_args, skip_special), "false",
     .help = "leave special tokens, such as <|endoftext|>, out of the text"},
    {"json", AX_OPT_BOOL, offsetof(decode_args, json), "false", .help = "print the text in one JSON object"},
};

/* Parses token ids separated by commas or white space; ignores brackets. */
static ax_status parse_ids(const char *text, ax_ids *ids)
{
    while (*(text += strspn(text, ", \t\r\n[]"))) {
        char *end;
        long id = strtol(text, &end, 10);
        AX_CHECK(end > text && id >= 0 && id <= INT32_MAX, AX_ERR_USAGE,
                 "standard input: token ids must be integers from 0 to 2147483647, separated by commas or "
                 "blanks, not \"%.20s\"",
                 text);
        int32_t narrow = (int32_t)id;
        AX_TRY(ax_ids_add(ids, &narrow, 1));
        text = end;
    }
    return AX_OK;
}

static ax_status collect_ids(const decode_args *a, ax_ids *ids)
{
    for (size_t i = 0; i < a->ids.count; i++) {
        int32_t narrow = (int32_t)a->ids.items[i];
        AX_TRY(ax_ids_add(ids, &narrow, 1));
    }
    if (a->ids.count)
        return AX_OK;
    ax_buf input = {0};
    ax_status status = cli_read_stdin(&input);
    if (status == AX_OK)
        status = parse_ids(input.data, ids);
    ax_buf_fini(&input);
    return status;
}

static ax_status run_decode(const void *raw)
{
    const decode_args *a = raw;
    ax_tokenizer *tok;
    ax_ids ids = {0};
    ax_buf text = {0};
    AX_TRY(ax_tokenizer_load(a->tokenizer, &tok));
    ax_status status = collect_ids(a, &ids);
    if (status == AX_OK)
        status = ax_decode(tok, ids.data, ids.size, a->skip_special ? AX_DECODE_SKIP_SPECIAL : 0, &text);
    if (status == AX_OK && a->json)
        status = cli_print_json(json_pack("{s:o}", "text", ax_json_text(text.data, text.size)));
    else if (status == AX_OK && text.size)
        status = cli_print(text.data, text.size);
    /* A newline is appended only on a terminal: a file or pipe gets exactly the bytes of the tokens. */
    if (status == AX_OK && !a->json && isatty(STDOUT_FILENO))
        printf("\n");
    ax_buf_fini(&text);
    ax_ids_fini(&ids);
    ax_tokenizer_destroy(&tok);
    return status;
}

const cli_verb verb_tok_decode = {
    .name = "tok decode",
    .summary = "turn token ids into text",
    .examples = "axonn tok decode tok 464,3290\naxonn tok encode tok hello | axonn tok decode tok",
    .options = decode_options,
    .option_count = AX_COUNT(decode_options),
    .args_size = sizeof(decode_args),
    .run = run_decode,
};

/* ---- check --------------------------------------------------------------------------------------- */

typedef struct check_args {
    char *tokenizer;
    cli_corpus corpus;
    bool json;
} check_args;

static const ax_option check_options[] = {
    {"TOKENIZER", AX_OPT_PATH, offsetof(check_args, tokenizer), .required = true,
     .help = "a tokenizer's directory or its tokenizer.json"},
    INPUT_OPTION(check_args, corpus),
    INCLUDE_OPTION(check_args, corpus),
    TEXT_OPTIONS(check_args, corpus.text),
    {"json", AX_OPT_BOOL, offsetof(check_args, json), "false", .help = "print the result as one JSON object"},
};

static ax_status check_corpus(const ax_tokenizer *tok, ax_corpus *corpus, ax_tokenizer_report *report)
{
    ax_encoder *encoder;
    cli_progress progress;
    ax_buf doc = {0};
    bool end = false;
    AX_TRY(ax_encoder_create(tok, &encoder));
    cli_progress_start(&progress, "checking", true);
    ax_status status = AX_OK;
    while (status == AX_OK) {
        doc.size = 0;
        status = ax_corpus_next(corpus, &doc, &end);
        if (status != AX_OK || end)
            break;
        status = ax_tokenizer_check(encoder, doc.data, doc.size, report);
        cli_progress_update(&progress, report->bytes, ax_corpus_bytes(corpus));
    }
    cli_progress_end(&progress);
    ax_buf_fini(&doc);
    ax_encoder_destroy(&encoder);
    return status;
}

static ax_status print_report(const check_args *a, const ax_tokenizer *tok, const ax_tokenizer_report *r)
{
    double ratio = r->tokens ? (double)r->bytes / (double)r->tokens : 0;
    int vocab = (int)ax_tokenizer_vocab_size(tok);
    if (a->json)
        return cli_print_json(json_pack(
            "{s:I, s:I, s:I, s:f, s:i, s:I, s:I, s:I, s:I, s:I}", "documents", (json_int_t)r->documents,
            "bytes", (json_int_t)r->bytes, "tokens", (json_int_t)r->tokens, "bytes_per_token", ratio, "vocab",
            vocab, "tokens_used", (json_int_t)r->tokens_used, "invalid_bytes", (json_int_t)r->invalid_bytes,
            "unknown", (json_int_t)r->unknown, "normalized", (json_int_t)r->normalized, "failed",
            (json_int_t)r->failed));
    printf("documents        %lld, %lld bytes\n", (long long)r->documents, (long long)r->bytes);
    printf("tokens           %lld, %.3f bytes each\n", (long long)r->tokens, ratio);
    printf("vocabulary       %lld of %d tokens used\n", (long long)r->tokens_used, vocab);
    printf("not UTF-8        %lld bytes\n", (long long)r->invalid_bytes);
    printf("without a token  %lld bytes\n", (long long)r->unknown);
    printf("round trip       %lld documents unchanged, %lld normalized, %lld changed\n",
           (long long)(r->documents - r->normalized - r->failed), (long long)r->normalized,
           (long long)r->failed);
    return AX_OK;
}

static ax_status run_check(const void *raw)
{
    const check_args *a = raw;
    ax_corpus_options which = cli_corpus_options(&a->corpus);
    ax_tokenizer *tok;
    ax_corpus *corpus = NULL;
    ax_tokenizer_report report = {0};
    AX_TRY(ax_tokenizer_load(a->tokenizer, &tok));
    ax_status status = ax_corpus_create(&which, &corpus);
    if (status == AX_OK)
        status = check_corpus(tok, corpus, &report);
    if (status == AX_OK)
        status = print_report(a, tok, &report);
    if (status == AX_OK && report.failed)
        status = ax_fail(AX_ERR_DATA,
                         "encoding and decoding changed %lld documents; the first is document %lld (numbers "
                         "begin with 0), at byte %lld of the decoded text",
                         (long long)report.failed, (long long)report.first_failed,
                         (long long)report.first_failed_byte);
    ax_tokenizer_report_fini(&report);
    ax_corpus_destroy(&corpus);
    ax_tokenizer_destroy(&tok);
    return status;
}

const cli_verb verb_tok_check = {
    .name = "tok check",
    .summary = "check that encoding and decoding text gives the same text back",
    .details =
        "Also prints how well the tokenizer compresses the text, and how much of its vocabulary the text\n"
        "uses. The exit code is 4 if a document changes.",
    .examples = "axonn tok check tok --input corpus/",
    .options = check_options,
    .option_count = AX_COUNT(check_options),
    .args_size = sizeof(check_args),
    .run = run_check,
};
