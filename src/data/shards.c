/* Shards: token files that a directory or a shell pattern names together, and that are read as if they were
 * one file, in byte order of their paths. The ax_data of such a source holds the opened files in `part`. */
#include "source.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- which files --------------------------------------------------------------------------------- */

void data_names_fini(data_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->path[i]);
    free(names->path);
    *names = (data_names){0};
}

/* Appends `path` to `names` and takes ownership of `path`. */
static ax_status add_name(data_names *names, char *path)
{
    if ((names->n & (names->n - 1)) == 0) { /* n is 0 or a power of two: the array is full, so double it */
        char **more = realloc(names->path, (names->n ? 2 * names->n : 1) * sizeof *more);
        if (!more) {
            free(path);
            return ax_fail(AX_ERR_MEMORY, "not enough memory for a list of more than %zu data files",
                           names->n);
        }
        names->path = more;
    }
    names->path[names->n++] = path;
    return AX_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

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
static void sort_names(data_names *names)
{
    size_t kept = 0;
    if (names->n)
        qsort(names->path, names->n, sizeof *names->path, compare_names);
    for (size_t i = 0; i < names->n; i++) {
        char *path = names->path[i];
        if (kept && data_has_suffix(path, ".idx") &&
            bsearch(path, names->path, kept, sizeof *names->path, compare_bin))
            free(path);
        else
            names->path[kept++] = path;
    }
    names->n = kept;
}

ax_status data_match(const char *pattern, data_names *out)
{
    glob_t found = {0};
    *out = (data_names){0};
    int failed = glob(pattern, GLOB_NOSORT, NULL, &found);
    ax_status status = failed && failed != GLOB_NOMATCH
                           ? ax_fail(AX_ERR_DATA,
                                     "the files that match the pattern %s cannot be listed: a directory "
                                     "cannot be read, or memory is short",
                                     pattern)
                           : AX_OK;
    for (size_t i = 0; i < found.gl_pathc && status == AX_OK; i++) {
        char *path;
        if (ax_path_is_dir(found.gl_pathv[i]))
            continue;
        status = ax_strdup(found.gl_pathv[i], &path);
        if (status == AX_OK)
            status = add_name(out, path);
    }
    globfree(&found);
    if (status == AX_OK && !out->n)
        status = ax_fail(AX_ERR_DATA, "no file matches the pattern %s", pattern);
    if (status == AX_OK)
        sort_names(out);
    else
        data_names_fini(out);
    return status;
}

/* The contents of a directory tree. */
typedef struct content {
    data_names tokens; /* paths of the token files */
    size_t certain;    /* number of token files whose format is not guessed from the suffix .bin alone */
    char *other;       /* path of one file that is not a token file; NULL: there is none */
} content;

static ax_status list_dir(const char *dir, content *c);

static bool is_link(const char *path)
{
    struct stat info;
    return !lstat(path, &info) && S_ISLNK(info.st_mode);
}

/* Adds the file `path`, or the files below the directory `path`, to *c; takes ownership of `path`. Symbolic
 * links to directories are not followed, as in a directory of text files (corpus.c). */
static ax_status add_entry(content *c, char *path)
{
    ax_data_format format = AX_DATA_TREE;
    if (ax_path_is_dir(path)) {
        ax_status status = is_link(path) ? AX_OK : list_dir(path, c);
        free(path);
        return status;
    }
    bool tokens =
        data_has_suffix(path, ".tok") || data_has_suffix(path, ".bin") || data_has_suffix(path, ".idx");
    if (!tokens) {
        free(c->other);
        c->other = path;
        return AX_OK;
    }
    c->certain += data_detect_file(path, &format) == AX_OK && format != AX_DATA_NANOGPT;
    return add_name(&c->tokens, path);
}

static ax_status list_dir(const char *dir, content *c)
{
    DIR *stream = opendir(dir);
    AX_CHECK(stream, AX_ERR_DATA, "cannot list the directory %s: %s", dir, strerror(errno));
    ax_status status = AX_OK;
    const struct dirent *entry;
    while (status == AX_OK && (entry = readdir(stream))) {
        char *path;
        if (entry->d_name[0] == '.')
            continue;
        status = ax_path_join(dir, entry->d_name, &path);
        if (status == AX_OK)
            status = add_entry(c, path);
    }
    closedir(stream);
    return status;
}

/* Lists the token files in a directory and below it. If there are also other files, the directory counts as a
 * directory of text, and the list is empty. But it is an error to have other files beside a file that is
 * certainly a token file (not only by the suffix .bin). */
static ax_status list_tokens(const char *dir, data_names *out)
{
    content c = {0};
    *out = (data_names){0};
    ax_status status = list_dir(dir, &c);
    if (status == AX_OK && c.certain && c.other)
        status = ax_fail(AX_ERR_DATA,
                         "%s holds token files (%s) and other files (%s): name the files to read, for "
                         "example with the pattern %s/*.tok",
                         dir, c.tokens.path[0], c.other, dir);
    if (status == AX_OK && !c.other && c.tokens.n) {
        sort_names(&c.tokens);
        *out = c.tokens;
    } else {
        data_names_fini(&c.tokens);
    }
    free(c.other);
    return status;
}

ax_status data_list(const char *path, data_names *out)
{
    *out = (data_names){0};
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

ax_status data_open_parts(ax_data *data, const data_names *names, int64_t end_id)
{
    AX_TRY(ax_calloc(names->n + 1, sizeof(ax_data *), &data->part)); /* NULL-terminated, for ax_data_close */
    AX_TRY(ax_calloc(names->n + 1, sizeof *data->part_at, &data->part_at));
    for (size_t i = 0; i < names->n; i++) {
        AX_TRY(data_open_file(names->path[i], end_id, &data->part[i]));
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
