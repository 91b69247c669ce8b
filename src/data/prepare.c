/* ax_data_prepare: makes a token file of the text that data.train or data.valid names. The file is kept in a
 * cache directory, so that the same text is tokenized only once. */
#include "corpus.h"
#include "source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

/* Version of the cached token files. Must be increased when a change of the program makes the same inputs
 * give another token file. */
enum { CACHE_VERSION = 6 };

/* Hashes what the token file depends on: the version of the cache, whether special tokens are put around
 * texts (only if they are: the file is else that of earlier versions, which never did), the names, sizes and
 * modification times of the text files (for a pipe, its size and a hash of its bytes), the options for
 * reading text (text_key, bad_lines, the chat template, the members to ignore and, if there is a template,
 * whether text_key was given; the date, if the user gave one and the template can write it), and the
 * tokenizer. */
static ax_status fingerprint(const ax_corpus *corpus, const ax_data_build_options *how, uint64_t *out)
{
    XXH3_state_t *state = XXH3_createState();
    AX_CHECK(state, AX_ERR_MEMORY,
             "not enough memory while the checksum of the list of input files (%s%s) was computed",
             corpus->files[0].path, corpus->n > 1 ? ", ..." : "");
    XXH3_64bits_reset(state);
    uint64_t head[] = {CACHE_VERSION, ax_tokenizer_hash(how->tokenizer), (uint64_t)corpus->n,
                       (uint64_t)corpus->bad[CORPUS_NO_TEXT].limit};
    XXH3_64bits_update(state, head, sizeof head);
    if (corpus->refused == CORPUS_NO_TEXT && corpus->bad[CORPUS_NO_TEXT].limit)
        XXH3_64bits_update(state, "refused", sizeof "refused");
    if (data_frames(how))
        XXH3_64bits_update(state, "framed", sizeof "framed");
    const bool key_first = corpus->chat && corpus->text_key_given;
    const char *template = corpus->chat ? ax_chat_name(corpus->chat) : "";
    XXH3_64bits_update(state, &key_first, sizeof key_first);
    XXH3_64bits_update(state, corpus->text_key, strlen(corpus->text_key) + 1);
    XXH3_64bits_update(state, template, strlen(template) + 1);
    bool fixed = false;
    const int64_t date = corpus->chat ? ax_chat_date(corpus->chat, &fixed) : -1;
    if (!strncmp(template, "own-", 4)) { /* earlier versions knew less of its markup, and gave it nulls */
        XXH3_64bits_update(state, "markup of calls", sizeof "markup of calls");
        XXH3_64bits_update(state, "no nulls", sizeof "no nulls");
    }
    if (fixed && date >= 0) { /* earlier versions wrote it in the time zone */
        XXH3_64bits_update(state, &date, sizeof date);
        XXH3_64bits_update(state, "UTC", sizeof "UTC");
    }
    for (size_t i = 0; i < corpus->ignore.count; i++)
        XXH3_64bits_update(state, corpus->ignore.items[i], strlen(corpus->ignore.items[i]) + 1);
    for (int64_t i = 0; i < corpus->n; i++) {
        const corpus_file *file = &corpus->files[i];
        int64_t facts[2] = {file->bytes, file->mtime_ns};
        if (file->copy < 0)
            XXH3_64bits_update(state, file->path, strlen(file->path) + 1);
        XXH3_64bits_update(state, facts, sizeof facts);
        if (file->packing) /* earlier versions left such files out */
            XXH3_64bits_update(state, data_packing_name(file->packing),
                               strlen(data_packing_name(file->packing)));
    }
    *out = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return AX_OK;
}

/* Makes the path cache_dir/NAME-PRINT.tok. NAME is the last component of `real`, at most 128 bytes of it, or
 * "data" for a pattern, or for a path that has no slash or ends with one. PRINT is `print` in hexadecimal. */
static ax_status cache_path(const char *real, const char *cache_dir, uint64_t print, char **out)
{
    const char *slash = data_is_pattern(real) ? NULL : strrchr(real, '/');
    ax_buf name = {0};
    ax_status status = ax_buf_printf(&name, "%.128s-%016llx.tok", slash && slash[1] ? slash + 1 : "data",
                                     (unsigned long long)print);
    if (status == AX_OK)
        status = ax_path_join(cache_dir, name.data, out);
    ax_buf_fini(&name);
    return status;
}

static bool is_usable(const char *path, const ax_tokenizer *tokenizer)
{
    ax_data *data;
    if (!ax_path_exists(path) || ax_data_open(path, -1, &data) != AX_OK)
        return false;
    bool usable = ax_data_describe(data)->tokenizer_hash == ax_tokenizer_hash(tokenizer);
    ax_data_close(&data);
    return usable;
}

/* Logs that the conversations of a file have the date of another day: a run that continues keeps its data. */
static void say_date(const char *path, const ax_chat *chat)
{
    bool fixed = false;
    const time_t now = (time_t)(chat ? ax_chat_date(chat, &fixed) : -1);
    struct stat file;
    struct tm then, today;
    char date[32];
    if (now == -1 || fixed || stat(path, &file) || !localtime_r(&file.st_mtime, &then) ||
        !localtime_r(&now, &today) || (then.tm_yday == today.tm_yday && then.tm_year == today.tm_year))
        return;
    strftime(date, sizeof date, "%d %b %Y", &then);
    ax_log(AX_LOG_INFO,
           "%s was written on %s, and its conversations have that date where the chat template writes one: "
           "remove the "
           "file if they are to have today's; SOURCE_DATE_EPOCH fixes the date",
           path, date);
}

static ax_status find_cache_path(const ax_corpus *corpus, const char *real, const ax_data_build_options *how,
                                 const char *cache_dir, char **out)
{
    uint64_t print = 0;
    AX_TRY(fingerprint(corpus, how, &print));
    return cache_path(real, cache_dir, print, out);
}

static ax_status prepare_text(const char *real, const ax_data_build_options *how, const char *cache_dir,
                              char **out)
{
    ax_data_build_options options = *how;
    ax_corpus *corpus;
    options.corpus.inputs = &real;
    options.corpus.n_inputs = 1;
    AX_TRY(ax_mkdirs(cache_dir));
    AX_TRY(corpus_create(&options.corpus, how->progress, how->user, &corpus));
    ax_status status = find_cache_path(corpus, real, how, cache_dir, out);
    const bool usable = status == AX_OK && is_usable(*out, how->tokenizer);
    if (usable)
        say_date(*out, corpus->chat);
    if (status != AX_OK || usable) {
        ax_corpus_destroy(&corpus);
        return status;
    }
    ax_log(AX_LOG_INFO, "tokenizing %s into %s", real, *out);
    options.output = *out;
    return corpus_build(&options, corpus, NULL);
}

ax_status ax_data_prepare(const char *path, const ax_data_build_options *how, const char *cache_dir,
                          char **token_path)
{
    ax_data_format format;
    *token_path = NULL;
    AX_TRY(ax_data_detect(path, &format));
    if (!ax_data_format_is_text(format))
        return ax_strdup(path, token_path);
    AX_CHECK(how->tokenizer || format != AX_DATA_PIPE, AX_ERR_USAGE,
             "%s is a pipe, which is read as text: set data.tokenizer; a token file must be a regular file",
             path);
    AX_CHECK(how->tokenizer, AX_ERR_USAGE,
             "%s holds text: set data.tokenizer, or name a token file made of it", path);
    char *real = realpath(path, NULL); /* NULL: a pattern, or a pipe without a name */
    ax_status status = prepare_text(real ? real : path, how, cache_dir, token_path);
    free(real);
    if (status != AX_OK) {
        free(*token_path);
        *token_path = NULL;
    }
    return status;
}
