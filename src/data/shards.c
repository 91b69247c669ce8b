/* Shards: token files that a directory or a shell pattern names together, and that are read as if they were
 * one file, in byte order of their paths. The ax_data of such a source holds the opened files in `part`. */
#include "source.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- which files --------------------------------------------------------------------------------- */

/* Compares NAME.bin with a path, where `key` is NAME.idx. */
static int compare_bin(const void *key, const void *path)
{
    const char *idx = key, *other = *(char *const *)path;
    size_t stem = strlen(idx) - strlen("idx");
    int order = strncmp(idx, other, stem);
    return order ? order : strcmp("bin", other + stem);
}

/* Sorts the names. A Megatron-LM data set of two files, NAME.bin and NAME.idx, counts as one shard: NAME.idx
 * is removed. NAME.bin comes before NAME.idx, but other names may come between them. */
static void sort_names(ax_strings *names)
{
    size_t kept = 0;
    ax_strings_sort(names);
    for (size_t i = 0; i < names->count; i++) {
        char *path = names->items[i];
        if (kept && data_has_suffix(path, ".idx") &&
            bsearch(path, names->items, kept, sizeof *names->items, compare_bin))
            free(path);
        else
            names->items[kept++] = path;
    }
    names->count = kept;
}

ax_status data_match(const char *pattern, ax_strings *out)
{
    glob_t found = {0};
    *out = (ax_strings){0};
    int failed = glob(pattern, GLOB_NOSORT, NULL, &found);
    ax_status status = failed && failed != GLOB_NOMATCH
                           ? ax_fail(AX_ERR_DATA,
                                     "the files that match the pattern %s cannot be listed: a directory "
                                     "cannot be read, or memory is short",
                                     pattern)
                           : AX_OK;
    for (size_t i = 0; i < found.gl_pathc && status == AX_OK; i++)
        if (!ax_path_is_dir(found.gl_pathv[i]))
            status = ax_strings_add(out, "%s", found.gl_pathv[i]);
    globfree(&found);
    if (status == AX_OK && !out->count)
        status = ax_fail(AX_ERR_DATA, "no file matches the pattern %s", pattern);
    if (status == AX_OK)
        sort_names(out);
    else
        ax_strings_fini(out);
    return status;
}

/* The contents of a directory tree. */
typedef struct content {
    ax_strings tokens; /* paths of the token files */
    size_t certain;    /* number of token files whose format is not guessed from the suffix .bin alone */
    char *other;       /* path of one file that is not a token file; NULL: there is none */
} content;

static bool is_link(const char *path)
{
    struct stat info;
    return !lstat(path, &info) && S_ISLNK(info.st_mode);
}

/* Calls `fn` for the file `path`, or for the files below the directory `path`. */
static ax_status each_below(const char *path, data_file_fn *fn, void *user)
{
    struct stat info;
    if (stat(path, &info))
        return fn(user, path, NULL, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return fn(user, path, &info, NULL);
    return is_link(path) ? AX_OK : data_each_file(path, fn, user);
}

ax_status data_each_file(const char *dir, data_file_fn *fn, void *user)
{
    ax_strings names;
    ax_status status = ax_dir_list(dir, &names);
    if (status == AX_ERR_DATA)
        status = fn(user, dir, NULL, ax_error_message());
    for (size_t i = 0; i < names.count && status == AX_OK; i++) {
        char *path;
        if (names.items[i][0] == '.')
            continue;
        status = ax_path_join(dir, names.items[i], &path);
        if (status == AX_OK) {
            status = each_below(path, fn, user);
            free(path);
        }
    }
    ax_strings_fini(&names);
    return status;
}

/* Adds the file `path` to the content `user`. */
static ax_status add_file(void *user, const char *path, const struct stat *info, const char *why)
{
    content *c = user;
    ax_data_format format = AX_DATA_TREE;
    AX_CHECK(info || !ax_path_is_dir(path), AX_ERR_DATA, "%s", why);
    if (!data_has_suffix(path, ".tok") && !data_has_suffix(path, ".bin") && !data_has_suffix(path, ".idx")) {
        free(c->other);
        c->other = NULL;
        return ax_strdup(path, &c->other);
    }
    c->certain += data_detect_file(path, &format) == AX_OK && format != AX_DATA_NANOGPT;
    return ax_strings_add(&c->tokens, "%s", path);
}

/* Lists the token files in a directory and below it. If there are also other files, the directory counts as a
 * directory of text, and the list is empty. But it is an error to have other files beside a file that is
 * certainly a token file (not only by the suffix .bin). */
static ax_status list_tokens(const char *dir, ax_strings *out)
{
    content c = {0};
    *out = (ax_strings){0};
    ax_status status = data_each_file(dir, add_file, &c);
    if (status == AX_OK && c.certain && c.other)
        status = ax_fail(AX_ERR_DATA,
                         "%s holds token files (%s) and other files (%s): name the files to read, for "
                         "example with the pattern %s/*.tok",
                         dir, c.tokens.items[0], c.other, dir);
    if (status == AX_OK && !c.other && c.tokens.count) {
        sort_names(&c.tokens);
        *out = c.tokens;
    } else {
        ax_strings_fini(&c.tokens);
    }
    free(c.other);
    return status;
}

ax_status data_list(const char *path, ax_strings *out)
{
    *out = (ax_strings){0};
    if (data_is_pattern(path))
        return data_match(path, out);
    return ax_path_is_dir(path) ? list_tokens(path, out) : AX_OK;
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* Checks that two shards have the same format, vocabulary size and end-of-text token and, if both record one,
 * the same hash of the tokenizer. */
static ax_status check_alike(const ax_data *a, const ax_data *b)
{
    const ax_data_info *x = &a->info, *y = &b->info;
    AX_CHECK(x->format == y->format, AX_ERR_DATA,
             "%s holds %s, but %s holds %s: all shards must have the same format", b->path,
             ax_data_format_name(y->format), a->path, ax_data_format_name(x->format));
    AX_CHECK(x->vocab == y->vocab && x->end_id == y->end_id &&
                 (x->tokenizer_hash == y->tokenizer_hash || !x->tokenizer_hash || !y->tokenizer_hash),
             AX_ERR_DATA,
             "%s and %s were made by different tokenizers, so they cannot be shards of one source: build "
             "them again with one tokenizer",
             a->path, b->path);
    return AX_OK;
}

/* Adds a shard to the description of the whole source: its counts (tokens, targets, documents, bytes), its
 * template, and its checksum. */
static void add_info(ax_data *data, const ax_data *part)
{
    const ax_data_info *more = &part->info;
    ax_data_info *sum = &data->info;
    if (data->parts == 0) {
        *sum = *more;
        data->index_kind = part->index_kind;
        return;
    }
    if (more->targets >= 0 && sum->targets < 0)
        memcpy(sum->chat_template, more->chat_template, sizeof sum->chat_template);
    else if (more->targets >= 0 && strcmp(sum->chat_template, more->chat_template))
        *sum->chat_template = 0;
    if (sum->targets >= 0 || more->targets >= 0) /* all tokens of a shard without a mask are targets */
        sum->targets = (sum->targets < 0 ? sum->tokens : sum->targets) +
                       (more->targets < 0 ? more->tokens : more->targets);
    sum->token_bytes = (int)ax_max(sum->token_bytes, more->token_bytes);
    sum->tokens += more->tokens;
    sum->documents = sum->documents < 0 ? -1 : sum->documents + more->documents;
    sum->text_bytes = sum->text_bytes < 0 ? -1 : sum->text_bytes + more->text_bytes;
    sum->file_bytes += more->file_bytes;
    sum->tokenizer_hash = sum->tokenizer_hash ? sum->tokenizer_hash : more->tokenizer_hash;
    sum->checksum = data_sum_add(sum->checksum, more->checksum);
}

ax_status data_open_parts(ax_data *data, const ax_strings *names, int64_t end_id)
{
    AX_TRY(
        ax_calloc(names->count + 1, sizeof(ax_data *), &data->part)); /* NULL-terminated, for ax_data_close */
    AX_TRY(ax_calloc(names->count + 1, sizeof *data->part_at, &data->part_at));
    for (size_t i = 0; i < names->count; i++) {
        AX_TRY(data_open_file(names->items[i], end_id, &data->part[i]));
        AX_TRY(check_alike(data->part[0], data->part[i]));
        add_info(data, data->part[i]);
        data->part_at[i + 1] = data->info.tokens;
        data->parts++;
    }
    data->limit = data->part[0]->limit;
    return AX_OK;
}

/* ---- reading ------------------------------------------------------------------------------------- */

int data_part_of(const ax_data *data, int64_t token)
{
    int low = 0, high = data->parts;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        *(data->part_at[mid] <= token ? &low : &high) = mid;
    }
    return low;
}

bool data_next_stretch(const ax_data *data, int64_t first, int64_t end, data_stretch *s)
{
    int i = s->part ? s->index + 1 : data_part_of(data, first);
    while (i < data->parts && data->part_at[i + 1] <= first) /* skip empty shards */
        i++;
    if (i >= data->parts || data->part_at[i] >= end)
        return false;
    int64_t at = data->part_at[i], low = ax_max(first, at), high = ax_min(end, data->part_at[i + 1]);
    *s = (data_stretch){data->part[i], i, low - at, high - at, low - first};
    return true;
}
