/* Lists the files of a corpus, returns their documents one by one, and reports the files and JSON records
 * that are left out. corpus_read.c reads the files. */
#include "corpus.h"
#include "source.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void file_fini(corpus_file *file)
{
    if (file->copy >= 0)
        close(file->copy);
    free(file->path);
}

/* Appends `file` to corpus->files and takes ownership of it. */
static ax_status add_file(ax_corpus *corpus, corpus_file file)
{
    ax_status status = ax_list_grow(&corpus->files, (size_t)corpus->n, sizeof file);
    if (status != AX_OK) {
        file_fini(&file);
        return status;
    }
    corpus->files[corpus->n++] = file;
    corpus->bytes += file.bytes;
    return AX_OK;
}

static corpus_file file_on_disk(char *path, const struct stat *info, ax_data_format format)
{
    return (corpus_file){.path = path,
                         .bytes = info->st_size,
                         .mtime_ns = info->st_mtim.tv_sec * INT64_C(1000000000) + info->st_mtim.tv_nsec,
                         .copy = -1,
                         .format = format};
}

static bool is_included(const ax_corpus_options *options, const char *name)
{
    for (int i = 0; i < options->n_include; i++)
        if (!fnmatch(options->include[i], name, 0))
            return true;
    return !options->n_include;
}

/* Counts a file or directory as left out. Warns of it, unless ten or more were left out before. */
static void leave_out(ax_corpus *corpus, const char *path, const char *why)
{
    enum { TOLD = 10 };
    if (corpus->skipped < TOLD)
        ax_log(AX_LOG_WARN, "left out %s: %s%s", path, why,
               corpus->skipped == TOLD - 1 ? " (further ones are only counted)" : "");
    corpus->skipped++;
}

static void drop_file(ax_corpus *corpus, int64_t file, const char *why)
{
    char text[256];
    snprintf(text, sizeof text, "it %s", why);
    leave_out(corpus, corpus->files[file].path, text);
    corpus->dropped++;
    corpus->dropped_bytes += corpus->files[file].bytes;
}

/* Returns the format of a file found below a directory; as if it were empty, if it cannot be read. */
static ax_data_format format_below(const char *path)
{
    char head[DATA_HEAD_BYTES];
    size_t n = 0;
    if (data_is_json(path) && data_read_head(path, head, &n) != AX_OK)
        n = 0;
    return data_text_format(path, head, n);
}

static ax_status ignore_document(void *user, const char *text, size_t bytes, ax_chat_text *chat)
{
    (void)user;
    (void)chat;
    (void)text;
    (void)bytes;
    return AX_OK;
}

/* Leaves out a .json file that was assumed to be JSONL, if its first line cannot be read, or is not a JSON
 * object with a text (a string or null) or a conversation. */
static ax_status check_jsonl_guess(ax_corpus *corpus, int64_t i)
{
    corpus_file *file = &corpus->files[i];
    corpus_omitted omitted;
    if (file->format != AX_DATA_JSONL || !data_has_suffix(file->path, ".json"))
        return AX_OK;
    AX_TRY(corpus_read_unit(corpus, &(corpus_unit){.file = i, .to = 1}, &corpus->scratch, ignore_document,
                            NULL, &omitted));
    if (omitted.file_why) {
        drop_file(corpus, i, omitted.file_why);
        file->bytes = 0;
    }
    return AX_OK;
}

/* Adds a file found below a directory whose suffix says that it is compressed. Leaves it out with a warning
 * if what it holds is not text, but fails if it cannot be decompressed. Takes ownership of file.path. */
static ax_status add_packed(ax_corpus *corpus, corpus_file file)
{
    char head[DATA_HEAD_BYTES];
    size_t n;
    int fd;
    ax_status status = ax_file_open(file.path, &fd);
    if (status == AX_OK) {
        ssize_t got = pread(fd, head, sizeof head, 0);
        file.packing = data_packing_of(head, (size_t)ax_max(got, 0));
        status = file.packing ? data_unpack_head(fd, file.path, file.packing, head, sizeof head, &n) : AX_OK;
        close(fd);
    }
    if (status == AX_OK && file.packing &&
        data_detect_inside(file.path, file.packing, head, n, &file.format) == AX_OK)
        return add_file(corpus, file);
    if (status == AX_OK)
        leave_out(corpus, file.path,
                  file.packing ? ax_error_message() : "its suffix says that it is compressed, but it is not");
    free(file.path);
    return status;
}

typedef struct tree {
    ax_corpus *corpus;
    const ax_corpus_options *options;
} tree;

/* Adds the file `path` to corpus->files, if the options include its name. A file or directory that cannot be
 * accessed is counted and left out with a warning, because a directory tree may hold anything. */
static ax_status add_below(void *user, const char *path, const struct stat *info, const char *why)
{
    const tree *t = user;
    char *copy;
    if (!info)
        leave_out(t->corpus, path, why);
    if (!info || !S_ISREG(info->st_mode) || !is_included(t->options, strrchr(path, '/') + 1))
        return AX_OK;
    AX_TRY(ax_strdup(path, &copy));
    if (*data_packed_suffix(path))
        return add_packed(t->corpus, file_on_disk(copy, info, AX_DATA_TEXT));
    AX_TRY(add_file(t->corpus, file_on_disk(copy, info, format_below(path))));
    return check_jsonl_guess(t->corpus, t->corpus->n - 1);
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const corpus_file *)a)->path, ((const corpus_file *)b)->path);
}

static ax_status read_packing(corpus_file *file)
{
    char head[DATA_HEAD_BYTES];
    size_t n;
    AX_TRY(data_read_head(file->path, head, &n));
    file->packing = data_packing_of(head, n);
    return AX_OK;
}

static ax_status add_input_file(ax_corpus *corpus, const char *input, ax_data_format format,
                                ax_data_progress_fn progress, void *user)
{
    struct stat info;
    char *path;
    AX_CHECK(!stat(input, &info), AX_ERR_DATA, "cannot access %s: %s", input, strerror(errno));
    AX_TRY(ax_strdup(input, &path));
    corpus_file file = file_on_disk(path, &info, format);
    file.named = true;
    ax_status status = S_ISREG(info.st_mode) ? read_packing(&file) : corpus_copy_pipe(&file, progress, user);
    if (status != AX_OK) {
        file_fini(&file);
        return status;
    }
    if (file.format == AX_DATA_TEXT && data_has_suffix(path, ".json"))
        ax_log(AX_LOG_WARN,
               "%s is read as plain text: it is neither a JSON array of objects nor a series of JSON objects",
               path);
    return add_file(corpus, file);
}

/* Returns the command that prints the file if its suffix says that it holds comma- or tab-separated values,
 * perhaps compressed, else NULL. *tabs: separated by tabs. */
static const char *table_reader(const char *path, bool *tabs)
{
    static const struct {
        const char *csv, *tsv, *reader;
    } kinds[] = {
        {".csv", ".tsv", "cat"}, {".csv.gz", ".tsv.gz", "zcat"}, {".csv.zst", ".tsv.zst", "zstdcat"}};
    for (size_t i = 0; i < AX_COUNT(kinds); i++) {
        *tabs = data_has_suffix(path, kinds[i].tsv);
        if (*tabs || data_has_suffix(path, kinds[i].csv))
            return kinds[i].reader;
    }
    return NULL;
}

/* Warns of the first file of comma- or tab-separated values: its columns are not told apart. */
static void warn_of_table(ax_corpus *corpus, const corpus_file *file)
{
    bool tabs;
    const char *reader = table_reader(file->path, &tabs);
    if (file->format != AX_DATA_TEXT || !reader || corpus->tables++)
        return;
    ax_log(
        AX_LOG_WARN,
        "%s is read as plain text, with its separators and quotes, as one document (further such files are "
        "not "
        "named). To read its rows as records, convert it: %s %s | python3 -c \"import csv,json,sys; "
        "csv.field_size_limit(1<<30); [print(json.dumps(r)) for r in csv.DictReader(sys.stdin%s)]\" > "
        "records.jsonl (if one column holds texts, give its name to --text-key or data.text_key)",
        file->path, reader, file->path, tabs ? ",delimiter='\\t'" : "");
}

static ax_status add_tree(ax_corpus *corpus, const ax_corpus_options *options, const char *dir)
{
    int64_t first = corpus->n;
    AX_TRY(data_each_file(dir, add_below, &(tree){corpus, options}));
    if (corpus->n > first)
        qsort(corpus->files + first, (size_t)(corpus->n - first), sizeof *corpus->files, compare_paths);
    return AX_OK;
}

static ax_status add_named(ax_corpus *corpus, const char *input, ax_data_progress_fn progress, void *user)
{
    ax_data_format format;
    AX_TRY(data_detect_file(input, &format));
    AX_CHECK(ax_data_format_is_text(format), AX_ERR_DATA,
             "%s holds tokens (%s), but text is expected: give the text of which it was made", input,
             ax_data_format_name(format));
    return add_input_file(corpus, input, format, progress, user);
}

static ax_status add_input(ax_corpus *corpus, const ax_corpus_options *options, const char *input,
                           ax_data_progress_fn progress, void *user)
{
    ax_strings names;
    if (!strcmp(input, "-"))
        return add_named(corpus, "/dev/stdin", progress, user);
    if (ax_path_is_dir(input))
        return add_tree(corpus, options, input);
    if (!data_is_pattern(input))
        return add_named(corpus, input, progress, user);
    AX_TRY(data_match(input, &names));
    ax_status status = AX_OK;
    for (size_t i = 0; i < names.count && status == AX_OK; i++)
        status = add_named(corpus, names.items[i], progress, user);
    ax_strings_fini(&names);
    return status;
}

static ax_status list_files(ax_corpus *corpus, const ax_corpus_options *options, ax_data_progress_fn progress,
                            void *user)
{
    corpus->packed.fd = -1;
    corpus->bad[CORPUS_NO_TEXT].limit = options->bad_lines < 0 ? 100 : options->bad_lines;
    corpus->refused = options->bad_lines < 0 ? CORPUS_REFUSED : CORPUS_NO_TEXT;
    corpus->chat = options->chat;
    corpus->ignore = options->ignore;
    corpus->text_key_given = options->text_key;
    AX_TRY(ax_strdup(options->text_key ? options->text_key : "text", &corpus->text_key));
    for (int i = 0; i < options->n_inputs; i++)
        AX_TRY(add_input(corpus, options, options->inputs[i], progress, user));
    for (int64_t i = 0; i < corpus->n; i++)
        warn_of_table(corpus, &corpus->files[i]);
    AX_CHECK(corpus->n, AX_ERR_DATA, "no files to read%s%s%s%s",
             options->n_inputs ? " in " : ": no input was given", options->n_inputs ? options->inputs[0] : "",
             options->n_inputs > 1 ? " and the other inputs" : "",
             options->n_include ? ": does --include match any name?" : "");
    return AX_OK;
}

ax_status corpus_create(const ax_corpus_options *options, ax_data_progress_fn progress, void *user,
                        ax_corpus **out)
{
    ax_corpus *corpus;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *corpus, &corpus));
    ax_status status = list_files(corpus, options, progress, user);
    if (status != AX_OK)
        ax_corpus_destroy(&corpus);
    *out = corpus;
    return status;
}

ax_status ax_corpus_create(const ax_corpus_options *options, ax_corpus **out)
{
    return corpus_create(options, NULL, NULL, out);
}

void ax_corpus_destroy(ax_corpus **corpus)
{
    ax_corpus *c = *corpus;
    if (!c)
        return;
    for (int64_t i = 0; i < c->n; i++)
        file_fini(&c->files[i]);
    for (int i = 0; i < CORPUS_BAD_KINDS; i++) {
        ax_buf_fini(&c->bad[i].list);
        ax_buf_fini(&c->bad[i].reason);
    }
    free(c->files);
    free(c->text_key);
    corpus_unit_fini(&c->at);
    data_unpack_end(&c->packed.unpacker);
    if (c->packed.fd >= 0)
        close(c->packed.fd);
    ax_buf_fini(&c->packed.ahead);
    ax_buf_fini(&c->scratch);
    ax_buf_fini(&c->lost);
    ax_buf_fini(&c->pending);
    free(c);
    *corpus = NULL;
}

int64_t ax_corpus_files(const ax_corpus *corpus) { return corpus->n - corpus->dropped; }
int64_t ax_corpus_bytes(const ax_corpus *corpus) { return corpus->bytes - corpus->dropped_bytes; }
int64_t ax_corpus_skipped(const ax_corpus *corpus) { return corpus->skipped; }
const char *ax_corpus_path(const ax_corpus *corpus, int64_t file) { return corpus->files[file].path; }

int64_t ax_corpus_bad_lines(const ax_corpus *corpus)
{
    return corpus->bad[CORPUS_NO_TEXT].n + corpus->bad[CORPUS_REFUSED].n;
}

/* ---- what is left out ---------------------------------------------------------------------------- */

static void note_unanswered(ax_corpus *corpus, const corpus_unit *unit, const corpus_omitted *omitted)
{
    const corpus_file *file = &corpus->files[unit->file];
    if (omitted->unanswered && !corpus->unanswered)
        ax_log(AX_LOG_WARN,
               "left out %s:%lld: the conversation has no answer of the assistant (further ones are only "
               "counted)",
               file->path, corpus_line_number(file, omitted->first_unanswered));
    corpus->unanswered += omitted->unanswered;
}

static ax_status note_lost(ax_corpus *corpus, const corpus_file *file, const corpus_omitted *omitted)
{
    const bool first = omitted->losing && !corpus->losing;
    corpus->losing += omitted->losing;
    return first ? ax_buf_printf(&corpus->lost, "%s:%lld: %s", file->path,
                                 corpus_line_number(file, omitted->lost.offset), omitted->lost.why)
                 : AX_OK;
}

/* Appends a bad record to the list of its kind, unless the list is full. A reason that is that of the line
 * before is not repeated. */
static ax_status list_bad(const corpus_file *file, const corpus_bad *bad, corpus_tally *tally)
{
    if (tally->listed == CORPUS_LISTED)
        return AX_OK;
    const bool same = tally->listed && !strcmp(tally->reason.data, bad->why);
    tally->listed++;
    tally->reason.size = 0;
    AX_TRY(ax_buf_printf(&tally->reason, "%s", bad->why));
    return ax_buf_printf(&tally->list, "\n%s:%lld: %s", file->path, corpus_line_number(file, bad->offset),
                         same ? "the same" : bad->why);
}

bool corpus_is_failing(const ax_corpus *corpus)
{
    for (int i = 0; i < CORPUS_BAD_KINDS; i++)
        if (corpus->bad[i].n > corpus->bad[i].limit)
            return true;
    return false;
}

/* Fails with a list of the bad records of which there are too many. `more`: the rest of the corpus was not
 * read. */
static ax_status fail_bad(const ax_corpus *corpus, bool more)
{
    const long long all = ax_corpus_bad_lines(corpus);
    const corpus_tally *tally = corpus->bad;
    tally += tally->n <= tally->limit;
    const long long n = tally->n, unlisted = n - tally->listed;
    char rest[64] = "";
    if (unlisted)
        snprintf(rest, sizeof rest, "\nand %lld more", unlisted);
    if (n == 1 && !more)
        return ax_fail(AX_ERR_DATA,
                       "%s; correct the record, or leave such records out: --bad-lines %lld "
                       "(data.bad_lines), so many at most",
                       tally->list.data + 1, all);
    return ax_fail(AX_ERR_DATA,
                   "%lld records cannot be used, allowed: %lld; correct them, or leave such records out: "
                   "--bad-lines %lld (data.bad_lines), so many at most%s%s%s",
                   n, (long long)tally->limit, all, tally->list.data, rest,
                   more ? "\n(the rest of the input was not read)" : "");
}

/* Lists the bad records of a unit. Warns of the first one, if it may be left out. */
static ax_status note_bad(ax_corpus *corpus, const corpus_file *file, const corpus_omitted *omitted)
{
    for (int i = 0; i < CORPUS_BAD_KINDS; i++) {
        corpus_tally *tally = &corpus->bad[i];
        const int64_t n = omitted->bad[i].n;
        const bool first = n && !tally->n;
        for (int64_t k = 0; k < ax_min(n, CORPUS_LISTED); k++)
            AX_TRY(list_bad(file, &omitted->bad[i].first[k], tally));
        tally->n += n;
        if (first && tally->n <= tally->limit)
            ax_log(AX_LOG_WARN, "left out %s:%lld: %s%s", file->path,
                   corpus_line_number(file, omitted->bad[i].first[0].offset), omitted->bad[i].first[0].why,
                   " (further ones are listed at the end)");
    }
    return AX_OK;
}

ax_status corpus_note(ax_corpus *corpus, const corpus_unit *unit, const corpus_omitted *omitted)
{
    enum { SEARCH_BYTES = 1 << 30 };
    if (omitted->file_why)
        drop_file(corpus, unit->file, omitted->file_why);
    note_unanswered(corpus, unit, omitted);
    AX_TRY(note_lost(corpus, &corpus->files[unit->file], omitted));
    AX_TRY(note_bad(corpus, &corpus->files[unit->file], omitted));
    if (!corpus_is_failing(corpus))
        return AX_OK;
    corpus->search = corpus->search ? corpus->search - (unit->to - unit->from) : SEARCH_BYTES;
    return corpus->search > 0 ? AX_OK : fail_bad(corpus, true);
}

/* Logs how many bad records were left out, and which, after the first, of which note_bad has warned. */
static void tell_bad(const corpus_tally *tally)
{
    if (tally->n < 2)
        return;
    ax_log(AX_LOG_WARN, "%lld records were left out:", (long long)tally->n);
    for (const char *line = tally->list.data + 1, *end; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        ax_log(AX_LOG_WARN, "left out %.*s", (int)(end - line), line);
    }
    if (tally->n > tally->listed)
        ax_log(AX_LOG_WARN, "left out %lld more", (long long)(tally->n - tally->listed));
}

ax_status corpus_finish(const ax_corpus *corpus, int64_t documents)
{
    if (corpus_is_failing(corpus))
        return fail_bad(corpus, false);
    for (int i = 0; i < CORPUS_BAD_KINDS; i++)
        tell_bad(&corpus->bad[i]);
    if (corpus->unanswered > 1)
        ax_log(AX_LOG_WARN, "%lld conversations without an answer were left out",
               (long long)corpus->unanswered);
    if (corpus->losing)
        ax_log(
            AX_LOG_WARN,
            "the model's chat_template loses something of %lld conversation%s, as with transformers: %s%s. "
            "Name a template that writes it (--template, data.template), or correct the data",
            (long long)corpus->losing, corpus->losing == 1 ? "" : "s",
            corpus->losing == 1 ? "" : "of the first, ", corpus->lost.data);
    AX_CHECK(documents, AX_ERR_DATA, "there is no text in %s%s: all is empty or was left out",
             corpus->files[0].path, corpus->n > 1 ? " and the other files" : "");
    return AX_OK;
}

/* ---- one by one ---------------------------------------------------------------------------------- */

/* Appends a document to `pending`, which holds the documents of the current unit, each preceded by its length
 * in bytes (a size_t). */
static ax_status keep_document(void *user, const char *text, size_t bytes, ax_chat_text *chat)
{
    ax_corpus *corpus = user;
    (void)chat;
    AX_TRY(ax_buf_add(&corpus->pending, &bytes, sizeof bytes));
    return ax_buf_add(&corpus->pending, text, bytes);
}

ax_status ax_corpus_next(ax_corpus *corpus, ax_buf *doc, bool *end)
{
    *end = false;
    while (corpus->pending_at == corpus->pending.size) {
        corpus_omitted omitted;
        corpus->pending.size = corpus->pending_at = 0;
        if (!corpus_next_unit(corpus, &corpus->at)) {
            *end = true;
            return corpus_finish(corpus, corpus->documents);
        }
        AX_TRY(corpus_read_unit(corpus, &corpus->at, &corpus->scratch, keep_document, corpus, &omitted));
        AX_TRY(corpus_note(corpus, &corpus->at, &omitted));
        if (corpus_is_failing(corpus))
            corpus->pending.size = 0;
    }
    size_t bytes;
    const char *at = corpus->pending.data + corpus->pending_at;
    memcpy(&bytes, at, sizeof bytes);
    corpus->pending_at += sizeof bytes + bytes;
    corpus->documents++;
    return ax_buf_add(doc, at + sizeof bytes, bytes);
}
