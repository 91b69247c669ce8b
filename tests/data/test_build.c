/* Building token files: tokens computed by hand, equal files for any number of threads, the validation split,
 * errors that stop a build, and the cache of a run. The tokenizer of these tests has all bytes, one merge and
 * an end-of-text token: 258 ids, where "ab" is 256 and <|endoftext|> 257. */
#include "data_test.h"
#include "support/sampled.h"

#include <fcntl.h>
#include <sys/stat.h>

/* Returns GPT-2's character for a byte: printable bytes stand for themselves, the others for U+0100 on. */
static int byte_letter(int byte)
{
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte)
            return printable ? b : next;
        next += !printable;
    }
    return -1;
}

/* Makes a tokenizer whose post_processor is `post`, in JSON. */
static ax_tokenizer *make_framing(scratch *s, const char *name, bool with_end, const char *post)
{
    ax_buf json = {0};
    OK(ax_buf_printf(&json, "{\"version\":\"1.0\",\"added_tokens\":["));
    if (with_end)
        OK(ax_buf_printf(&json,
                         "{\"id\":257,\"content\":\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,"
                         "\"rstrip\":false,\"normalized\":false,\"special\":true}"));
    OK(ax_buf_printf(&json,
                     "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                     "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                     "\"post_processor\":%s,\"decoder\":{\"type\":\"ByteLevel\"},"
                     "\"model\":{\"type\":\"BPE\",\"vocab\":{",
                     post));
    for (int b = 0; b < 256; b++)
        OK(ax_buf_printf(&json, "\"\\u%04x\":%d,", (unsigned)byte_letter(b), b));
    OK(ax_buf_printf(&json, "\"ab\":256%s},\"merges\":[\"a b\"]}}",
                     with_end ? ",\"<|endoftext|>\":257" : ""));
    const char *path = put_file(s, name, json.data, json.size);
    ax_buf_fini(&json);
    ax_tokenizer *tok;
    OK(ax_tokenizer_load(path, &tok));
    return tok;
}

static ax_tokenizer *make_tokenizer(scratch *s, const char *name, bool with_end)
{
    return make_framing(s, name, with_end, "null");
}

static ax_data_build_options options_for(const char *const *input, const ax_tokenizer *tok,
                                         const char *output)
{
    return (ax_data_build_options){
        .corpus = {.inputs = input, .n_inputs = 1}, .tokenizer = tok, .output = output, .threads = 2};
}

static void tokens_by_hand(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true);
    const char *jsonl =
        put_text(s, "d.jsonl", "{\"text\":\"abc\"}\n{\"text\":\"\"}\n{\"text\":\"\\u00e9 ab\"}\n");
    const char *out = in_scratch(s, "d.tok");
    ax_data_build_options o = options_for(&jsonl, tok, out);
    ax_data_build_report report;
    OK(ax_data_build(&o, &report));
    static const int32_t want[] = {256, 'c', 257, 0xc3, 0xa9, ' ', 256, 257};
    int32_t got[8];
    ax_data *data;
    int64_t first, end;
    OK(ax_data_open(out, -1, &data));
    OK(ax_data_check(data));
    const ax_data_info *info = ax_data_describe(data);
    assert_int_equal(info->tokens, 8);
    assert_int_equal(info->documents, 2);
    assert_int_equal(info->text_bytes, 8);
    assert_int_equal(info->end_id, 257);
    assert_int_equal(info->vocab, 258);
    assert_true(info->tokenizer_hash == ax_tokenizer_hash(tok));
    assert_memory_equal(&report.train, info, sizeof *info);
    OK(ax_data_tokens(data, 0, 8, got));
    assert_memory_equal(got, want, sizeof want);
    OK(ax_data_document(data, 1, &first, &end));
    assert_true(first == 3 && end == 8);
    ax_data_close(&data);

    /* The same tokens without a header: the file does not record the bytes of the text. */
    ax_buf bin = {0};
    for (int i = 0; i < 8; i++)
        add_u16(&bin, (unsigned)want[i]);
    OK(ax_data_open(put_file(s, "d.bin", bin.data, bin.size), 257, &data));
    assert_int_equal(ax_data_describe(data)->text_bytes, -1);
    ax_data_close(&data);
    ax_buf_fini(&bin);
    ax_tokenizer_destroy(&tok);

    /* Without an end-of-text token only the index separates documents. */
    tok = make_tokenizer(s, "plain.json", false);
    o.tokenizer = tok;
    OK(ax_data_build(&o, &report));
    assert_int_equal(report.train.tokens, 6);
    assert_int_equal(report.train.end_id, -1);
    ax_tokenizer_destroy(&tok);
}

#define FRAME(after, id)                                                                                     \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"!\",\"type_id\":0}},{"         \
    "\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"" after                          \
    "\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"!\":{\"id\":\"!\",\"ids\":[33],\"tokens\":[\"!"   \
    "\"]},\"" after "\":{\"id\":\"" after "\",\"ids\":[" id "],\"tokens\":[\"" after "\"]}}}"

/* A text gets what post_processor puts around it, as in transformers, and then one end-of-text token. */
static void documents_begin_as_prompts_do(void **state)
{
    scratch *s = *state;
    static const struct {
        const char *post;
        bool bare;
        int n;
        int32_t want[5];
    } cases[] = {{FRAME("<|endoftext|>", "257"), false, 4, {'!', 256, 'c', 257}},
                 {FRAME("?", "63"), false, 5, {'!', 256, 'c', '?', 257}},
                 {FRAME("?", "63"), true, 3, {256, 'c', 257}}};
    const char *text = put_text(s, "d.txt", "abc"), *out = in_scratch(s, "d.tok");
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_tokenizer *tok = make_framing(s, "framing.json", true, cases[i].post);
        ax_data_build_options o = options_for(&text, tok, out);
        ax_data_build_report report;
        int32_t got[5];
        ax_data *data;
        o.bare = cases[i].bare;
        OK(ax_data_build(&o, &report));
        assert_int_equal(report.framed, !o.bare);
        assert_int_equal(report.train.tokens, cases[i].n);
        OK(ax_data_open(out, -1, &data));
        OK(ax_data_tokens(data, 0, cases[i].n, got));
        assert_memory_equal(got, cases[i].want, (size_t)cases[i].n * sizeof *got);
        OK(ax_data_expect_begin(data, tok, false));
        assert_int_equal(ax_data_describe(data)->begin_id, o.bare ? -1 : '!');
        ax_data_close(&data);
        ax_tokenizer_destroy(&tok);
    }
}

/* Makes a tree of a few hundred files of very different sizes: text, JSONL, and some that are not text. */
static const char *make_tree(scratch *s, const char *name)
{
    char path[128];
    ax_buf text = {0};
    uint64_t key = ax_rng_key(5, "tree", 0);
    snprintf(path, sizeof path, "%s/sub", name);
    OK(ax_mkdirs(in_scratch(s, path)));
    for (int f = 0; f < 300; f++) {
        int64_t n = (int64_t)(ax_rng_uniform(key, (uint64_t)f) * (f % 50 ? 400 : 200000));
        text.size = 0;
        for (int64_t i = 0; i < n; i++)
            OK(ax_buf_printf(&text, "%c", "abc d\n"[(i * i + f) % 6]));
        bool jsonl = f % 7 == 0;
        if (jsonl) {
            text.size = 0;
            for (int64_t i = 0; i < n / 4 + 1; i++)
                OK(ax_buf_printf(&text, "{\"text\":\"%lld ab %d\"}\n", (long long)i, f));
        }
        if (f % 31 == 5 && !jsonl)
            OK(ax_buf_add(&text, "\0", 1));
        snprintf(path, sizeof path, "%s/%s%d.%s", name, f % 3 ? "sub/" : "", f, jsonl ? "jsonl" : "txt");
        put_file(s, path, text.data ? text.data : "", text.size);
    }
    ax_buf_fini(&text);
    return in_scratch(s, name);
}

static void expect_same_file(const char *a, const char *b)
{
    char *left, *right;
    size_t n, m;
    OK(ax_file_read(a, &left, &n));
    OK(ax_file_read(b, &right, &m));
    assert_int_equal(n, m);
    assert_memory_equal(left, right, n);
    free(left);
    free(right);
}

static void threads_change_nothing(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true);
    const char *tree = make_tree(s, "t");
    const char *train = in_scratch(s, "1.tok"), *valid = in_scratch(s, "1.valid");
    ax_data_build_options o = options_for(&tree, tok, train);
    ax_data_build_report first, again;
    o.valid_output = valid;
    o.valid_fraction = 0.1;
    o.threads = 1;
    OK(ax_data_build(&o, &first));
    assert_int_equal(first.files, 291);
    assert_true(first.skipped == 9 && first.valid.documents > 0);
    double share = (double)first.valid.documents / (double)(first.valid.documents + first.train.documents);
    assert_true(share > 0.08 && share < 0.12);
    o.output = in_scratch(s, "n.tok");
    o.valid_output = in_scratch(s, "n.valid");
    for (o.threads = 2; o.threads <= 9; o.threads += 7) {
        OK(ax_data_build(&o, &again));
        assert_memory_equal(&first, &again, sizeof first);
        expect_same_file(train, o.output);
        expect_same_file(valid, o.valid_output);
    }
    for (int i = 0; i < 2; i++) {
        ax_data *data;
        OK(ax_data_open(i ? train : valid, -1, &data));
        OK(ax_data_check(data));
        ax_data_close(&data);
    }

    /* The split moves documents; it neither loses nor changes any. */
    o = options_for(&tree, tok, in_scratch(s, "all.tok"));
    OK(ax_data_build(&o, &again));
    assert_int_equal(again.train.documents, first.train.documents + first.valid.documents);
    assert_int_equal(again.train.tokens, first.train.tokens + first.valid.tokens);
    assert_int_equal(again.train.text_bytes, first.train.text_bytes + first.valid.text_bytes);
    assert_int_equal(again.valid.tokens, 0);
    ax_tokenizer_destroy(&tok);
}

/* With dedup, a corpus in which most documents are repeated gives the same file as its distinct documents. */
static void each_text_once(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true);
    ax_buf many = {0}, once = {0};
    for (int i = 0; i < 3000; i++)
        OK(ax_buf_printf(&many, "{\"text\":\"ab %d\"}\n", i % 1000 * (i % 3 + 1)));
    for (int i = 0, seen; i < 3000; i++) {
        seen = 0;
        for (int j = 0; j < i && !seen; j++)
            seen = j % 1000 * (j % 3 + 1) == i % 1000 * (i % 3 + 1);
        if (!seen)
            OK(ax_buf_printf(&once, "{\"text\":\"ab %d\"}\n", i % 1000 * (i % 3 + 1)));
    }
    const char *copies = put_file(s, "many.jsonl", many.data, many.size);
    const char *distinct = put_file(s, "once.jsonl", once.data, once.size);
    ax_buf_fini(&many);
    ax_buf_fini(&once);
    ax_data_build_options o = options_for(&distinct, tok, in_scratch(s, "once.tok"));
    ax_data_build_report want, got;
    o.valid_output = in_scratch(s, "once.valid");
    o.valid_fraction = 0.3;
    OK(ax_data_build(&o, &want));
    o.corpus.inputs = &copies;
    o.output = in_scratch(s, "many.tok");
    o.valid_output = in_scratch(s, "many.valid");
    OK(ax_data_build(&o, &got));
    assert_int_equal(got.train.documents + got.valid.documents, 3000);
    assert_int_equal(got.copies, 0);
    o.dedup = true;
    OK(ax_data_build(&o, &got));
    assert_int_equal(got.copies, 3000 - want.train.documents - want.valid.documents);
    expect_same_file(in_scratch(s, "once.tok"), o.output);
    expect_same_file(in_scratch(s, "once.valid"), o.valid_output);
    ax_tokenizer_destroy(&tok);
}

/* Returns the number of entries in the scratch directory whose name contains `part`. */
static int count_entries(scratch *s, const char *part)
{
    char command[256];
    snprintf(command, sizeof command, "ls -A %s | grep -c -- '%s'", s->dir, part);
    FILE *pipe = popen(command, "r");
    int n = -1;
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%d", &n), 1);
    pclose(pipe);
    return n;
}

static bool stop_at_once(void *user, const ax_data_progress *progress)
{
    (void)progress;
    ++*(int *)user;
    return false;
}

static bool remember(void *user, const ax_data_progress *progress)
{
    *(ax_data_progress *)user = *progress;
    return true;
}

/* An output that is an input, or the other output, is refused. */
static void outputs_are_files_of_their_own(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true);
    OK(ax_mkdirs(in_scratch(s, "c")));
    const char *tree = in_scratch(s, "c"), *text = put_text(s, "c/a.txt", "some ab"),
               *other = put_text(s, "c/b.txt", "and more"), *link = in_scratch(s, "link");
    ax_data_build_options o = options_for(&tree, tok, in_scratch(s, "m.tok"));
    o.valid_fraction = 0.5;
    o.valid_output = in_scratch(s, "c/../m.tok");
    FAILS(AX_ERR_USAGE, "same file", ax_data_build(&o, NULL));
    o.valid_output = other;
    FAILS(AX_ERR_USAGE, "b.txt is an input and an output", ax_data_build(&o, NULL));
    o = options_for(&tree, tok, in_scratch(s, "c/../c/a.txt"));
    FAILS(AX_ERR_USAGE, "an input and an output", ax_data_build(&o, NULL));
    assert_int_equal(symlink(text, link), 0);
    o = options_for(&link, tok, text);
    FAILS(AX_ERR_USAGE, "an input and an output", ax_data_build(&o, NULL));
    char *kept;
    size_t size;
    OK(ax_file_read(text, &kept, &size));
    assert_string_equal(kept, "some ab");
    free(kept);
    const char *pipe = in_scratch(s, "pipe"), *nothing = in_scratch(s, "nothing");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink("none", nothing), 0);
    o = options_for(&tree, tok, pipe);
    FAILS(AX_ERR_DATA, "pipe: a pipe with this name exists", ax_data_build(&o, NULL));
    o.output = "/dev/null";
    FAILS(AX_ERR_DATA, "/dev/null: a device with this name exists", ax_data_build(&o, NULL));
    o.output = in_scratch(s, "c");
    FAILS(AX_ERR_DATA, "a directory with this name exists", ax_data_build(&o, NULL));
    o.output = nothing;
    FAILS(AX_ERR_DATA, "a symbolic link whose target does not exist", ax_data_build(&o, NULL));
    /* An output that is a link is written to the link's target. */
    const char *through = in_scratch(s, "through.tok"), *to = put_text(s, "to.tok", "old");
    assert_int_equal(symlink(to, through), 0);
    o.output = through;
    FAILS(AX_ERR_USAGE, "through.tok exists and is not a token file", ax_data_build(&o, NULL));
    OK(ax_file_read(to, &kept, &size));
    assert_string_equal(kept, "old"); /* nothing was written */
    free(kept);
    put_text(s, "to.tok", "");
    OK(ax_data_build(&o, NULL));
    OK(ax_file_read(to, &kept, &size));
    assert_true(size > 64);
    free(kept);
    /* The token file of an earlier build is below the input directory: it is skipped, because it is not text.
     */
    ax_data_build_report report;
    o = options_for(&tree, tok, in_scratch(s, "c/t.tok"));
    OK(ax_data_build(&o, NULL));
    OK(ax_data_build(&o, &report));
    assert_int_equal(report.skipped, 1);
    ax_tokenizer_destroy(&tok);
}

static void failures_leave_nothing(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true);
    ax_buf text = {0};
    for (int i = 0; i < 50000; i++)
        OK(ax_buf_printf(&text, i == 43210 ? "{\"text\":\n" : "{\"text\":\"some words in line %d ab\"}\n",
                         i));
    const char *bad = put_file(s, "bad.jsonl", text.data, text.size);
    ax_data_build_options o = options_for(&bad, tok, in_scratch(s, "out.tok"));
    for (o.threads = one_of(1, 4); o.threads < 5; o.threads++)
        FAILS(AX_ERR_DATA, "bad.jsonl:43211:", ax_data_build(&o, NULL));
    const char *lone = put_text(s, "lone.txt", "abab");
    o = options_for(&lone, tok, in_scratch(s, "out.tok"));
    o.valid_fraction = 0.5;
    FAILS(AX_ERR_USAGE, "validation split", ax_data_build(&o, NULL));
    o.valid_output = in_scratch(s, "valid.tok");
    FAILS(AX_ERR_DATA, "of 1 documents leaves no document", ax_data_build(&o, NULL));
    const char *empty = put_text(s, "empty.txt", "");
    o = options_for(&empty, tok, in_scratch(s, "out.tok"));
    FAILS(AX_ERR_DATA, "no text", ax_data_build(&o, NULL));
    o.output = in_scratch(s, "no/such/out.tok");
    FAILS(AX_ERR_DATA, "cannot create", ax_data_build(&o, NULL));

    const char *good = make_tree(s, "t");
    int calls = 0;
    o = options_for(&good, tok, in_scratch(s, "out.tok"));
    o.progress = stop_at_once;
    o.user = &calls;
    ax_status status = ax_data_build(&o, NULL);
    assert_true(calls == 1 && status == AX_ERR_SIGNAL);
    assert_int_equal(count_entries(s, "out.tok"), 0);
    assert_int_equal(count_entries(s, "tmp"), 0);

    ax_data_progress told = {0};
    ax_data_build_report report;
    o.progress = remember;
    o.user = &told;
    OK(ax_data_build(&o, &report));
    assert_int_equal(told.documents, report.train.documents);
    assert_int_equal(told.tokens + told.documents, report.train.tokens); /* `told` lacks end-of-text tokens */
    assert_int_equal(told.bytes_done, told.bytes_total);
    ax_buf_fini(&text);
    ax_tokenizer_destroy(&tok);
}

static void bad_lines_on_any_threads(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true);
    ax_buf text = {0};
    for (int i = 0; i < 100000; i++) /* so long that the file has several units */
        OK(ax_buf_printf(
            &text, i % 997 == 500 ? "{\"text\": null}\n" : "{\"text\":\"some words in line %d\"}\n", i));
    const char *path = put_file(s, "bad.jsonl", text.data, text.size);
    ax_data_build_options o = options_for(&path, tok, in_scratch(s, "out.tok"));
    ax_data_build_report report;
    for (o.threads = one_of(1, 4); o.threads < 5; o.threads++) {
        o.corpus.bad_lines = 100;
        OK(ax_data_build(&o, &report));
        assert_int_equal(report.bad_lines, 100);
        assert_int_equal(report.train.documents, 99900);
        o.corpus.bad_lines = 0;
        FAILS(AX_ERR_DATA, "bad.jsonl:501: \"text\" is null", ax_data_build(&o, NULL));
    }
    ax_buf_fini(&text);
    ax_tokenizer_destroy(&tok);
}

static char *prepare(const char *path, const ax_tokenizer *tok, const char *cache)
{
    char *out;
    OK(ax_data_prepare(path, &(ax_data_build_options){.tokenizer = tok}, cache, &out));
    assert_true(ax_path_exists(out));
    return out;
}

/* Tokens of a pipe are found in the cache again, if the pipe gives the same text and is read in the same way.
 */
static void cache_of_pipes(void **state)
{
    scratch *s = *state;
    static const char *const texts[] = {"{\"text\": \"ab\", \"b\": \"words\"}", "{\"text\": \"ba\"}"};
    static const struct {
        int text;
        const char *key;
        int64_t bad_lines;
    } cases[] = {{0, NULL, 0}, {0, "text", 0}, {1, NULL, 0}, {0, "b", 0}, {0, NULL, 1}};
    ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true);
    char *paths[AX_COUNT(cases)];
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        int ends[2];
        char name[32];
        const char *text = texts[cases[i].text];
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(write(ends[1], text, strlen(text)), strlen(text));
        close(ends[1]);
        snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
        ax_data_build_options how = {.tokenizer = tok,
                                     .corpus = {.text_key = cases[i].key, .bad_lines = cases[i].bad_lines}};
        OK(ax_data_prepare(name, &how, in_scratch(s, "cache"), &paths[i]));
        close(ends[0]);
        assert_int_equal(!strcmp(paths[i], paths[0]), i < 2);
    }
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        free(paths[i]);
    ax_tokenizer_destroy(&tok);
}

static int64_t inode_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (int64_t)info.st_ino;
}

static void cache(void **state)
{
    scratch *s = *state;
    ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true),
                 *plain = make_tokenizer(s, "p.json", false);
    const char *text = put_text(s, "corpus.txt", "some text ab"), *dir = in_scratch(s, "run/data");
    char *first = prepare(text, tok, dir), *again = prepare(text, tok, dir);
    assert_string_equal(first, again);
    assert_non_null(strstr(first, "run/data/corpus.txt-"));
    int64_t inode = inode_of(first);
    free(again);

    /* A damaged cache entry is rebuilt; another tokenizer, size or time of a file makes a new entry. */
    assert_int_equal(truncate(first, 300), 0);
    again = prepare(text, tok, dir);
    assert_string_equal(first, again);
    assert_true(inode_of(first) != inode);
    inode = inode_of(first);
    free(again);
    again = prepare(text, plain, dir);
    assert_string_not_equal(first, again);
    free(again);
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000, .tv_nsec = 1}};
    assert_int_equal(utimensat(AT_FDCWD, text, times, 0), 0);
    again = prepare(text, tok, dir);
    assert_string_not_equal(first, again);
    free(again);
    assert_int_equal(inode_of(first), inode); /* untouched */

    again = prepare(first, NULL, dir); /* a token file is used as it is */
    assert_string_equal(first, again);
    free(again);
    free(first);
    FAILS(AX_ERR_USAGE, "data.tokenizer", ax_data_prepare(text, &(ax_data_build_options){0}, dir, &first));
    assert_null(first);
    FAILS(AX_ERR_DATA, "no such file",
          ax_data_prepare(in_scratch(s, "none"), &(ax_data_build_options){.tokenizer = tok}, dir, &first));
    ax_tokenizer_destroy(&tok);
    ax_tokenizer_destroy(&plain);
}

/* Prepares a file by the tokenizer's own template on a date (NULL: today's). The caller frees the path. */
static char *prepare_dated(const char *path, const ax_tokenizer *tok, const char *cache, const char *date)
{
    ax_chat *chat;
    char *out;
    assert_int_equal(date ? setenv("SOURCE_DATE_EPOCH", date, 1) : unsetenv("SOURCE_DATE_EPOCH"), 0);
    OK(ax_chat_create(tok, NULL, &chat));
    OK(ax_data_prepare(path, &(ax_data_build_options){.tokenizer = tok, .corpus = {.chat = chat}}, cache,
                       &out));
    ax_chat_destroy(&chat);
    return out;
}

/* A date that the user gives is a part of what a prepared file is, if the template writes dates. */
static void cache_of_dates(void **state)
{
    static const char *const dates[] = {NULL, "1700000000", "1800000000", "1700000000", NULL};
    scratch *s = *state;
    const char *chats = put_text(s, "chats.jsonl",
                                 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                                 "\"assistant\", \"content\": \"b\"}]}\n");
    for (int dated = 0; dated < 2; dated++) {
        put_text(s, "chat_template.jinja",
                 dated ? "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% "
                         "endfor %}{% if "
                         "add_generation_prompt %}assistant:{% endif %}"
                       : "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if "
                         "add_generation_prompt "
                         "%}assistant:{% endif %}");
        ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true);
        char *paths[AX_COUNT(dates)];
        for (size_t i = 0; i < AX_COUNT(dates); i++)
            paths[i] = prepare_dated(chats, tok, in_scratch(s, "cache"), dates[i]);
        for (size_t i = 0; i < AX_COUNT(dates); i++)
            for (size_t k = 0; k < i; k++)
                assert_int_equal(!strcmp(paths[i], paths[k]), !dated || i + k == 4);
        for (size_t i = 0; i < AX_COUNT(dates); i++)
            free(paths[i]);
        if (!dated) /* which needs no date */
            free(prepare_dated(chats, tok, in_scratch(s, "cache"), "tomorrow"));
        ax_tokenizer_destroy(&tok);
    }
    ax_tokenizer *tok = make_tokenizer(s, "tokenizer.json", true);
    ax_chat *chat;
    assert_int_equal(setenv("SOURCE_DATE_EPOCH", "tomorrow", 1), 0);
    FAILS(AX_ERR_USAGE, "is \"tomorrow\", but must be a number of seconds", ax_chat_create(tok, NULL, &chat));
    assert_int_equal(unsetenv("SOURCE_DATE_EPOCH"), 0);
    ax_tokenizer_destroy(&tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokens_by_hand, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(documents_begin_as_prompts_do, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(threads_change_nothing, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(each_text_once, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(outputs_are_files_of_their_own, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(failures_leave_nothing, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(cache, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(cache_of_pipes, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(cache_of_dates, files_setup, files_teardown),
        cmocka_unit_test_setup_teardown(bad_lines_on_any_threads, files_setup, files_teardown),
    };
    ax_log_set_level(AX_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
