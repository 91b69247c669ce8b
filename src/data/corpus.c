/* Listing the files of a corpus and handing out their documents one by one; reading them is corpus_read.c. */
#include "corpus.h"
#include "source.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_jsonl(const char *path)
{
    return data_has_suffix(path, ".jsonl") || data_has_suffix(path, ".ndjson");
}

/* Takes over `path`. */
static ax_status add_file(ax_corpus *corpus, char *path, const struct stat *info, bool named)
{
    if (corpus->n == corpus->capacity) {
        int64_t capacity = corpus->capacity ? 2 * corpus->capacity : 64;
        corpus_file *files = realloc(corpus->files, (size_t)capacity * sizeof *files);
        if (!files) {
            free(path);
            return ax_fail(AX_ERR_MEMORY, "cannot list more than %lld files", (long long)corpus->n);
        }
        corpus->files = files;
        corpus->capacity = capacity;
    }
    corpus->files[corpus->n++] =
        (corpus_file){.path = path,
                      .bytes = info->st_size,
                      .mtime_ns = info->st_mtim.tv_sec * INT64_C(1000000000) + info->st_mtim.tv_nsec,
                      .jsonl = is_jsonl(path),
                      .named = named};
    corpus->bytes += info->st_size;
    return AX_OK;
}

static bool is_included(const ax_corpus_options *options, const char *name)
{
    for (int i = 0; i < options->n_include; i++)
        if (!fnmatch(options->include[i], name, 0))
            return true;
    return !options->n_include;
}

static ax_status walk(ax_corpus *corpus, const ax_corpus_options *options, const char *dir);

/* Takes over `path`. What cannot be looked at is counted and left out: a tree may hold anything. */
static ax_status add_entry(ax_corpus *corpus, const ax_corpus_options *options, char *path, const char *name)
{
    struct stat info;
    bool is_link = !lstat(path, &info) && S_ISLNK(info.st_mode);
    ax_status status = AX_OK;
    if (stat(path, &info)) {
        ax_log(AX_LOG_WARN, "left out %s: %s", path, strerror(errno));
        corpus->skipped++;
    } else if (S_ISDIR(info.st_mode) && !is_link) {
        status = walk(corpus, options, path);
    } else if (S_ISREG(info.st_mode) && is_included(options, name)) {
        return add_file(corpus, path, &info, false);
    }
    free(path);
    return status;
}

static ax_status walk(ax_corpus *corpus, const ax_corpus_options *options, const char *dir)
{
    DIR *stream = opendir(dir);
    if (!stream) {
        ax_log(AX_LOG_WARN, "left out %s: %s", dir, strerror(errno));
        corpus->skipped++;
        return AX_OK;
    }
    ax_status status = AX_OK;
    const struct dirent *entry;
    while (status == AX_OK && (entry = readdir(stream))) {
        char *path;
        if (entry->d_name[0] == '.')
            continue;
        status = ax_path_join(dir, entry->d_name, &path);
        if (status == AX_OK)
            status = add_entry(corpus, options, path, entry->d_name);
    }
    closedir(stream);
    return status;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const corpus_file *)a)->path, ((const corpus_file *)b)->path);
}

static ax_status add_input(ax_corpus *corpus, const ax_corpus_options *options, const char *input)
{
    ax_data_format format;
    AX_TRY(ax_data_detect(input, &format));
    AX_CHECK(ax_data_format_is_text(format), AX_ERR_DATA, "%s holds tokens already (%s); text is wanted here",
             input, ax_data_format_name(format));
    if (format == AX_DATA_TREE) {
        int64_t first = corpus->n;
        AX_TRY(walk(corpus, options, input));
        if (corpus->n > first)
            qsort(corpus->files + first, (size_t)(corpus->n - first), sizeof *corpus->files, compare_paths);
        return AX_OK;
    }
    struct stat info;
    char *path;
    AX_CHECK(!stat(input, &info), AX_ERR_DATA, "cannot look at %s: %s", input, strerror(errno));
    AX_TRY(ax_strdup(input, &path));
    return add_file(corpus, path, &info, true);
}

static ax_status list_files(ax_corpus *corpus, const ax_corpus_options *options)
{
    AX_TRY(ax_strdup(options->text_key ? options->text_key : "text", &corpus->text_key));
    for (int i = 0; i < options->n_inputs; i++)
        AX_TRY(add_input(corpus, options, options->inputs[i]));
    AX_CHECK(corpus->n, AX_ERR_DATA, "no files to read%s%s%s",
             options->n_inputs ? " in " : ": no input was given", options->n_inputs ? options->inputs[0] : "",
             options->n_include ? ": do the patterns for names fit?" : "");
    return AX_OK;
}

ax_status ax_corpus_create(const ax_corpus_options *options, ax_corpus **out)
{
    ax_corpus *corpus;
    *out = NULL;
    AX_TRY(ax_calloc(1, sizeof *corpus, &corpus));
    ax_status status = list_files(corpus, options);
    if (status != AX_OK)
        ax_corpus_destroy(&corpus);
    *out = corpus;
    return status;
}

void ax_corpus_destroy(ax_corpus **corpus)
{
    ax_corpus *c = *corpus;
    if (!c)
        return;
    for (int64_t i = 0; i < c->n; i++)
        free(c->files[i].path);
    free(c->files);
    free(c->text_key);
    ax_buf_fini(&c->scratch);
    ax_buf_fini(&c->pending);
    free(c);
    *corpus = NULL;
}

int64_t ax_corpus_files(const ax_corpus *corpus) { return corpus->n - corpus->dropped; }
int64_t ax_corpus_bytes(const ax_corpus *corpus) { return corpus->bytes - corpus->dropped_bytes; }
int64_t ax_corpus_skipped(const ax_corpus *corpus) { return corpus->skipped; }
const char *ax_corpus_path(const ax_corpus *corpus, int64_t file) { return corpus->files[file].path; }

void corpus_drop(ax_corpus *corpus, int64_t file, const char *why)
{
    enum { TOLD = 10 };
    if (corpus->skipped < TOLD)
        ax_log(AX_LOG_WARN, "left out %s: %s%s", corpus->files[file].path, why,
               corpus->skipped == TOLD - 1 ? " (further ones are only counted)" : "");
    corpus->skipped++;
    corpus->dropped++;
    corpus->dropped_bytes += corpus->files[file].bytes;
}

/* ---- one by one ---------------------------------------------------------------------------------- */

/* Documents of the present unit wait in `pending`, each behind its length. */
static ax_status keep_document(void *user, const char *text, size_t bytes)
{
    ax_corpus *corpus = user;
    AX_TRY(ax_buf_add(&corpus->pending, &bytes, sizeof bytes));
    return ax_buf_add(&corpus->pending, text, bytes);
}

ax_status ax_corpus_next(ax_corpus *corpus, ax_buf *doc, bool *end)
{
    *end = false;
    while (corpus->pending_at == corpus->pending.size) {
        const char *why;
        corpus->pending.size = corpus->pending_at = 0;
        if (!corpus_next_unit(corpus, &corpus->at)) {
            *end = true;
            return AX_OK;
        }
        AX_TRY(corpus_read_unit(corpus, &corpus->at, &corpus->scratch, keep_document, corpus, &why));
        if (why)
            corpus_drop(corpus, corpus->at.file, why);
    }
    size_t bytes;
    const char *at = corpus->pending.data + corpus->pending_at;
    memcpy(&bytes, at, sizeof bytes);
    corpus->pending_at += sizeof bytes + bytes;
    return ax_buf_add(doc, at + sizeof bytes, bytes);
}
