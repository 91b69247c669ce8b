/* Copies a model directory under a hidden name, which is then renamed. The small files are copied first: if a
 * training run removes the source, a checkpoint, meanwhile, a missing small file is noticed before the long
 * copy of the weights begins, and weight files, which are open, stay readable. */
#include "infer/copy.h"

#include "axonn/json.h"

#include "infer/beside.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* An array of the result: a copy of array `from` of the source. */
typedef struct ax_copy_entry {
    const ax_st_array *from;
    char *key; /* owned */
} entry;

void ax_copy_fini(ax_copy *c)
{
    ax_st_close(&c->to);
    free(c->out);
    free(c->parent);
    free(c->aside);
    for (int i = 0; i < c->entries; i++)
        free(c->entry[i].key);
    free(c->entry);
}

/* ---- paths --------------------------------------------------------------------------------------- */

ax_status ax_copy_begin(const char *out, ax_copy *c)
{
    struct stat info;
    size_t n = strlen(out);
    *c = (ax_copy){.dtype = AX_DTYPE_COUNT};
    while (n > 1 && out[n - 1] == '/')
        n--;
    AX_TRY(ax_strndup(out, n, &c->out));
    AX_CHECK(lstat(c->out, &info), AX_ERR_USAGE,
             "%s exists; give the name of a directory that does not exist", c->out);
    AX_CHECK(errno == ENOENT, AX_ERR_DATA, "cannot create %s: %s", c->out, strerror(errno));
    const char *slash = strrchr(c->out, '/');
    size_t before = slash ? (size_t)ax_max(slash - c->out, 1) : 1;
    return ax_strndup(slash ? c->out : ".", before, &c->parent);
}

/* Creates the hidden directory c->aside, under a name that no other process uses. */
static ax_status make_aside(ax_copy *c)
{
    const char *slash = strrchr(c->out, '/'), *name = slash ? slash + 1 : c->out;
    size_t n = strlen(c->out) + 64;
    char *path;
    AX_TRY(ax_calloc(n, 1, &path));
    for (int attempt = 0;; attempt++) {
        snprintf(path, n, "%.*s.%s.tmp.%ld.%d", (int)(name - c->out), c->out, name, (long)getpid(), attempt);
        if (!mkdir(path, 0777)) {
            c->aside = path;
            return AX_OK;
        }
        if (errno != EEXIST)
            break;
    }
    ax_status status = ax_fail(AX_ERR_DATA, "cannot create %s: %s", c->out, strerror(errno));
    free(path);
    return status;
}

/* ---- weights ------------------------------------------------------------------------------------- */

static int by_place(const void *x, const void *y)
{
    const ax_st_array *a = *(const ax_st_array *const *)x, *b = *(const ax_st_array *const *)y;
    return a->file != b->file ? a->file - b->file : (a->offset > b->offset) - (a->offset < b->offset);
}

int64_t ax_copy_bytes(const ax_copy *c)
{
    int64_t bytes = c->tied ? c->tied->bytes : 0;
    for (int i = 0; i < ax_st_count(c->from); i++)
        bytes += ax_st_at(c->from, i)->bytes;
    return bytes;
}

static ax_status add_entry(ax_copy *c, const ax_st_array *from, const char *key)
{
    char *copy;
    AX_TRY(ax_list_grow(&c->entry, (size_t)c->entries, sizeof *c->entry));
    AX_TRY(ax_strdup(key, &copy));
    c->entry[c->entries++] = (entry){from, copy};
    return AX_OK;
}

/* Lists the arrays of the result. */
static ax_status list_entries(ax_copy *c)
{
    const int n = ax_st_count(c->from);
    const ax_st_array **order;
    char key[AX_COPY_KEY];
    AX_TRY(ax_calloc((size_t)n, sizeof *order, &order));
    for (int i = 0; i < n; i++)
        order[i] = ax_st_at(c->from, i);
    qsort(order, (size_t)n, sizeof *order, by_place);
    ax_status status = AX_OK;
    for (int i = 0; i < n && status == AX_OK; i++) {
        if (!c->name)
            status = add_entry(c, order[i], order[i]->key);
        for (int64_t k = 0; c->name && status == AX_OK && c->name(c->owner, order[i], k, key); k++)
            status = add_entry(c, order[i], key);
    }
    free(order);
    AX_TRY(status);
    return c->tied ? add_entry(c, c->tied, c->tied_key) : AX_OK;
}

static bool is_float(ax_dtype dtype)
{
    return dtype == AX_F64 || dtype == AX_F32 || dtype == AX_BF16 || dtype == AX_F16;
}

/* Plans the weight files of the result, which hold the arrays in the same order as the source, then those
 * that are added. */
static ax_status plan(ax_copy *c)
{
    ax_dtype dtype = c->dtype;
    ax_st_array *arrays;
    AX_TRY(list_entries(c));
    c->result->arrays = c->entries + c->n_added;
    AX_TRY(ax_calloc((size_t)c->result->arrays, sizeof *arrays, &arrays));
    c->total = c->done;
    for (int i = 0; i < c->entries; i++) {
        arrays[i] = *c->entry[i].from;
        arrays[i].key = c->entry[i].key;
        bool converted = dtype < AX_DTYPE_COUNT && is_float(arrays[i].dtype) && arrays[i].dtype != dtype;
        arrays[i].dtype = converted ? dtype : arrays[i].dtype;
        c->result->converted += converted;
        c->total += c->entry[i].from->bytes;
    }
    for (int i = 0; i < c->n_added; i++)
        arrays[c->entries + i] = c->added[i];
    ax_status status = ax_st_plan(c->aside, "model", arrays, c->result->arrays, c->shard_bytes, &c->to);
    if (status == AX_OK)
        status = ax_st_keep_metadata(c->to, c->from);
    free(arrays);
    return status;
}

static ax_status check_space(const ax_copy *c)
{
    enum { REST = 64 << 10 }; /* bytes for the last disk block of each file, and for the directory */
    return ax_dir_has_space(c->aside, c->result->bytes + REST, c->out);
}

ax_status ax_copy_report(const ax_copy *c, int64_t bytes)
{
    AX_CHECK(!c->progress || c->progress(c->user, c->done + bytes, c->total), AX_ERR_SIGNAL,
             "stopped by a signal before %s was complete: nothing was written", c->out);
    return AX_OK;
}

/* Writes array `b` of the result, a copy of array `a` of the source as it is. */
static ax_status copy_array(const ax_copy *c, const ax_st_array *a, const ax_st_array *b)
{
    enum { PIECE = 1 << 20 }; /* number of elements that are copied between two reports */
    const int64_t elements = ax_st_elements(a);
    for (int64_t first = 0; first < elements; first += PIECE) {
        int64_t count = ax_min(PIECE, elements - first);
        AX_TRY(ax_copy_report(c, (int64_t)((double)first / (double)elements * (double)a->bytes)));
        AX_TRY(ax_st_copy(c->from, a, c->to, b, first, count, &c->result->overflows));
    }
    return AX_OK;
}

/* Writes array `key` of the result, which is array `a` of the source, perhaps with other values. */
static ax_status write_array(ax_copy *c, const ax_st_array *a, const char *key)
{
    const ax_st_array *b = ax_st_find(c->to, key);
    bool done = false;
    if (c->write)
        AX_TRY(c->write(c->owner, a, c->to, b, &done));
    if (!done)
        AX_TRY(copy_array(c, a, b));
    c->done += a->bytes;
    return AX_OK;
}

static ax_status write_weights(ax_copy *c)
{
    for (int i = 0; i < c->entries; i++) {
        const entry *e = &c->entry[i];
        int64_t before = c->result->overflows;
        AX_TRY(write_array(c, e->from, e->key));
        if (c->result->overflows > before && !before)
            ax_log(
                AX_LOG_WARN,
                "%s: %lld values of array %s are beyond the range of %s and become infinite; choose a dtype "
                "with a larger range",
                c->out, (long long)c->result->overflows, e->from->key, ax_dtype_name(c->dtype));
    }
    for (int i = 0; i < c->n_added; i++)
        AX_TRY(c->add(c->owner, c->to, ax_st_find(c->to, c->added[i].key)));
    return ax_st_sync(c->to);
}

/* ---- small files --------------------------------------------------------------------------------- */

/* Writes a file of the result. */
static ax_status write_file(const ax_copy *c, const char *name, const char *data, size_t size)
{
    char *path;
    AX_TRY(ax_path_join(c->aside, name, &path));
    ax_status status = ax_file_write_synced(path, data, size);
    free(path);
    return status;
}

static ax_status copy_file(const ax_copy *c, const char *from, const char *name)
{
    char *path;
    AX_TRY(ax_path_join(c->aside, name, &path));
    ax_status status = ax_file_copy_synced(from, path);
    free(path);
    return status;
}

static ax_status write_config(const ax_copy *c, const char *from)
{
    char *text;
    size_t size;
    ax_buf out = {0};
    if (c->config)
        return write_file(c, "config.json", c->config, strlen(c->config));
    AX_TRY(ax_file_read(from, &text, &size));
    ax_status status = ax_model_config_retype(text, size, from, c->dtype, c->untied, &out);
    free(text);
    if (status == AX_OK)
        status = write_file(c, "config.json", out.data, out.size);
    ax_buf_fini(&out);
    return status;
}

static bool is_tokenizer(const char *name) { return !strncmp(name, "tokenizer", 9); }

/* Returns true for a file of an adapter's directory that the copy of its base must not have: a description
 * of the adapter, or config.json, which is copied from the base model's directory instead. */
static bool is_of_adapter(const ax_copy *c, const char *dir, const char *name)
{
    return c->base && dir == c->dir &&
           (!strcmp(name, "adapter_config.json") || !strcmp(name, "README.md") ||
            !strcmp(name, "config.json"));
}

/* Copies the file of a chat template, if it is one that is read. */
static ax_status copy_template(const ax_copy *c, const char *from, const char *name)
{
    enum { MOST = 1 << 20 };
    struct stat info;
    if (!stat(from, &info) && S_ISREG(info.st_mode) && info.st_size <= MOST)
        return copy_file(c, from, name);
    ax_log(AX_LOG_WARN, "%s is not copied: chat templates are files of at most 1 MiB", from);
    return AX_OK;
}

/* Copies the directory of the chat templates that a model has by name. */
static ax_status copy_templates(const ax_copy *c, const char *from, const char *name)
{
    char *path;
    ax_strings names = {0};
    AX_TRY(ax_path_join(c->aside, name, &path));
    ax_status status = ax_mkdirs(path);
    free(path);
    if (status == AX_OK)
        status = ax_dir_list(from, &names);
    for (size_t i = 0; i < names.count && status == AX_OK; i++) {
        char *file = NULL, inside[512];
        snprintf(inside, sizeof inside, "%s/%s", name, names.items[i]);
        status = ax_path_join(from, names.items[i], &file);
        if (status == AX_OK && !fnmatch("*.jinja", names.items[i], 0))
            status = copy_template(c, file, inside);
        free(file);
    }
    ax_strings_fini(&names);
    return status;
}

/* Returns true if the tokenizer in a directory has a chat template. */
static bool has_template(const char *dir)
{
    char *path = NULL;
    json_t *config = NULL;
    bool found = ax_dir_has(dir, "chat_template.jinja");
    if (!found && ax_dir_has(dir, "tokenizer_config.json") &&
        ax_path_join(dir, "tokenizer_config.json", &path) == AX_OK &&
        ax_json_read_file(path, 0, &config) == AX_OK) {
        const json_t *templates = json_object_get(config, "chat_template");
        found = json_is_string(templates) || json_array_size(templates) || json_object_size(templates);
    }
    free(path);
    json_decref(config);
    return found;
}

/* Returns true for a chat template of the base that the copy must not have: that of the adapter's tokenizer
 * counts. */
static bool is_replaced(const ax_copy *c, const char *dir, const char *name)
{
    return c->base && dir == c->base &&
           (!strcmp(name, "chat_template.jinja") || !strcmp(name, AX_BESIDE_TEMPLATES)) &&
           has_template(c->dir);
}

/* Copies the file `name` of `dir`, unless files of its kind are not copied (ax_beside_copied). The adapter's
 * directory is copied before the base model's directory. So a file of the base model is skipped if the
 * adapter has a file of the same name. */
static ax_status copy_entry(const ax_copy *c, const char *dir, const char *name)
{
    char *path;
    struct stat info;
    if (!fnmatch("*.safetensors", name, 0))
        ax_beside_say_link(dir, name);
    if (!ax_beside_copied(name) || is_of_adapter(c, dir, name) || is_replaced(c, dir, name) ||
        (c->base && ax_dir_has(c->aside, name)))
        return AX_OK;
    AX_TRY(ax_path_join(dir, name, &path));
    bool there = !stat(path, &info), regular = there && S_ISREG(info.st_mode);
    ax_status status = AX_OK;
    if (regular)
        ax_beside_say_link(dir, name);
    if (there && S_ISDIR(info.st_mode) && !strcmp(name, AX_BESIDE_TEMPLATES))
        status = copy_templates(c, path, name);
    else if (there && S_ISDIR(info.st_mode))
        ax_log(AX_LOG_INFO, "the directory %s is not copied", path);
    else if (regular && info.st_size > AX_BESIDE_MOST && !is_tokenizer(name))
        ax_log(AX_LOG_WARN, "%s is larger than 16 MiB and is not copied: copy it yourself if it is needed",
               path);
    else if (regular && !strcmp(name, "config.json"))
        status = write_config(c, path);
    else if (regular)
        status = copy_file(c, path, name);
    free(path);
    return status;
}

static ax_status copy_small_files(const ax_copy *c, const char *dir)
{
    ax_strings names;
    ax_status status = ax_dir_list(dir, &names);
    for (size_t i = 0; i < names.count && status == AX_OK; i++)
        status = copy_entry(c, dir, names.items[i]);
    ax_strings_fini(&names);
    AX_TRY(status);
    AX_CHECK(ax_path_exists(dir), AX_ERR_DATA,
             "%s was removed while its files were copied, perhaps by a run that keeps only its newest "
             "checkpoints (run.keep_latest)",
             dir);
    return AX_OK;
}

static ax_status copy_all_small_files(const ax_copy *c)
{
    AX_TRY(copy_small_files(c, c->dir));
    if (c->base)
        AX_TRY(copy_small_files(c, c->base));
    AX_CHECK(ax_dir_has(c->aside, "config.json"), AX_ERR_DATA,
             "%s has no config.json, which a model needs: copy it there from the model's source", c->dir);
    return AX_OK;
}

/* ---- the copy ------------------------------------------------------------------------------------ */

/* Renames the hidden directory c->aside to c->out. Fails if another process has created c->out meanwhile. */
static ax_status publish(const ax_copy *c)
{
    AX_TRY(ax_dir_sync(c->aside));
    int failed = renameat2(AT_FDCWD, c->aside, AT_FDCWD, c->out, RENAME_NOREPLACE);
    if (failed && (errno == EINVAL || errno == ENOSYS)) /* the file system has no RENAME_NOREPLACE */
        failed = rename(c->aside, c->out);
    AX_CHECK(!failed, AX_ERR_DATA, "cannot rename %s to %s: %s", c->aside, c->out, strerror(errno));
    return ax_dir_sync(c->parent);
}

static ax_status write_all(ax_copy *c)
{
    AX_TRY(copy_all_small_files(c));
    AX_TRY(plan(c));
    c->result->bytes = ax_st_bytes(c->to);
    c->result->files = ax_st_files(c->to);
    AX_TRY(check_space(c));
    AX_TRY(ax_st_make(c->to));
    AX_TRY(write_weights(c));
    return publish(c);
}

/* Removes the hidden directory of a copy that failed. ax_error_message() still returns the message of the
 * failure afterwards. */
static ax_status remove_failed(const ax_copy *c, ax_status status)
{
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", ax_error_message());
    if (ax_remove_tree(c->aside) != AX_OK)
        ax_log(AX_LOG_WARN, "%s could not be removed, remove it yourself: %s", c->aside, ax_error_message());
    return ax_fail(status, "%s", reason);
}

ax_status ax_copy_write(ax_copy *c, ax_conversion *result)
{
    c->result = result;
    *result = (ax_conversion){0};
    AX_TRY(make_aside(c));
    ax_status status = write_all(c);
    return status == AX_OK ? AX_OK : remove_failed(c, status);
}
