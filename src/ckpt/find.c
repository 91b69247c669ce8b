/* The checkpoints of a run directory: lists, verifies, deletes and chooses them. */
#include "ckpt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int64_t ckpt_step_of(const char *name)
{
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9')
        return -1;
    char *end;
    errno = 0;
    long long step = strtoll(name + 5, &end, 10);
    return *end || errno ? -1 : step;
}

/* ---- listing ------------------------------------------------------------------------------------- */

static void info_fini(ax_ckpt_info *info)
{
    free(info->dir);
    free(info->damage);
}

void ax_ckpt_list_destroy(ax_ckpt_list **list)
{
    if (!*list)
        return;
    for (int i = 0; i < (*list)->n; i++)
        info_fini(&(*list)->item[i]);
    free((*list)->item);
    free(*list);
    *list = NULL;
}

static ax_status check_all(const char *dir, const manifest *m)
{
    for (int i = 0; i < m->n; i++)
        AX_TRY(manifest_check_file(dir, &m->file[i]));
    return AX_OK;
}

static ax_status info_fill(ax_ckpt_info *info, bool verify)
{
    manifest m;
    ax_status status = manifest_read(info->dir, &m);
    if (status == AX_OK) {
        info->serial = m.serial;
        info->time = m.time;
        info->bytes = m.bytes;
        if (m.step != info->step)
            status = ax_fail(AX_ERR_DATA,
                             "%s: its training/manifest.json is of step %lld, which is not that of the "
                             "directory's name: rename the directory to step-%lld",
                             info->dir, (long long)m.step, (long long)m.step);
        else if (verify)
            status = check_all(info->dir, &m);
        manifest_fini(&m);
    }
    return status == AX_ERR_DATA ? ax_strdup(ax_error_message(), &info->damage) : status;
}

/* Reads the name of a checkpoint from the file RUN/latest; "" if there is no such file, or if it cannot
 * be read. */
static void read_latest(const char *run_dir, char out[64])
{
    char *path, *text = NULL;
    size_t size;
    out[0] = 0;
    if (ckpt_path(&path, "%s/latest", run_dir) != AX_OK)
        return;
    if (ax_path_exists(path) && ax_file_read(path, &text, &size) == AX_OK) {
        snprintf(out, 64, "%.60s", text);
        out[strcspn(out, "\r\n")] = 0;
    }
    free(text);
    free(path);
}

static ax_status list_add(ax_ckpt_list *list, const char *run_dir, const char *name, bool verify)
{
    AX_TRY(ax_list_grow(&list->item, (size_t)list->n, sizeof *list->item));
    ax_ckpt_info *info = &list->item[list->n];
    memset(info, 0, sizeof *info);
    AX_TRY(ckpt_path(&info->dir, "%s/ckpt/%s", run_dir, name));
    list->n++;
    info->step = ckpt_step_of(name);
    char latest[64];
    read_latest(run_dir, latest);
    info->latest = !strcmp(latest, name);
    return info_fill(info, verify);
}

static int newest_first(const void *x, const void *y)
{
    const ax_ckpt_info *a = x, *b = y;
    if (a->serial != b->serial)
        return a->serial > b->serial ? -1 : 1;
    return (a->step < b->step) - (a->step > b->step);
}

/* Calls `fn` for each directory entry of RUN/ckpt; for none if RUN/ckpt does not exist. */
typedef ax_status entry_fn(const char *run_dir, const char *name, void *arg);
static ax_status each_entry(const char *run_dir, entry_fn *fn, void *arg)
{
    char *path;
    AX_TRY(ckpt_path(&path, "%s/ckpt", run_dir));
    ax_strings names = {0};
    struct stat info;
    bool absent = stat(path, &info) ? errno == ENOENT || errno == ENOTDIR : !S_ISDIR(info.st_mode);
    ax_status status = absent ? AX_OK : ax_dir_list(path, &names);
    for (size_t i = 0; i < names.count && status == AX_OK; i++)
        status = fn(run_dir, names.items[i], arg);
    ax_strings_fini(&names);
    free(path);
    return status;
}

typedef struct lister {
    ax_ckpt_list *list;
    bool verify;
} lister;

static ax_status list_entry(const char *run_dir, const char *name, void *arg)
{
    lister *l = arg;
    return ckpt_step_of(name) < 0 ? AX_OK : list_add(l->list, run_dir, name, l->verify);
}

ax_status ax_ckpt_list_create(const char *run_dir, bool verify, ax_ckpt_list **out)
{
    AX_TRY(ax_calloc(1, sizeof **out, out));
    lister l = {*out, verify};
    ax_status status = each_entry(run_dir, list_entry, &l);
    if (status == AX_OK && (*out)->n)
        qsort((*out)->item, (size_t)(*out)->n, sizeof *(*out)->item, newest_first);
    if (status != AX_OK)
        ax_ckpt_list_destroy(out);
    return status;
}

/* ---- deleting ------------------------------------------------------------------------------------ */

ax_status ckpt_delete(const char *run_dir, const char *name)
{
    char *from, *aside = NULL;
    AX_TRY(ckpt_path(&from, "%s/ckpt/%s", run_dir, name));
    ax_status status = ckpt_path(&aside, "%s/ckpt/.%s.old", run_dir, name[0] == '.' ? name + 1 : name);
    if (status == AX_OK && rename(from, aside))
        status = ax_fail(AX_ERR_DATA, "cannot delete checkpoint %s, because it cannot be renamed to %s: %s",
                         from, aside, strerror(errno));
    if (status == AX_OK)
        status = ax_remove_tree(aside);
    free(aside);
    free(from);
    return status;
}

/* Returns true if `name` is ".step-N.was" and `final`, the path of step-N, does not exist: a save was
 * interrupted while it replaced step-N. */
static bool is_orphan(const char *name, const char *final)
{
    size_t n = strlen(name), end = strlen(CKPT_WAS);
    return n > end && !strcmp(name + n - end, CKPT_WAS) && !ax_path_exists(final);
}

static ax_status clean_entry(const char *run_dir, const char *name, void *arg)
{
    (void)arg;
    if (strncmp(name, ".step-", 6))
        return AX_OK;
    char *path, *final = NULL;
    AX_TRY(ckpt_path(&path, "%s/ckpt/%s", run_dir, name));
    ax_status status = ckpt_path(&final, "%s/ckpt/%.*s", run_dir, (int)strcspn(name + 1, "."), name + 1);
    if (status == AX_OK && is_orphan(name, final)) {
        if (rename(path, final))
            status = ax_fail(AX_ERR_DATA,
                             "cannot rename %s, a checkpoint that an interrupted save left, back to %s: %s",
                             path, final, strerror(errno));
    } else if (status == AX_OK)
        status = ax_remove_tree(path);
    free(final);
    free(path);
    return status;
}

ax_status ax_ckpt_clean(const char *run_dir) { return each_entry(run_dir, clean_entry, NULL); }

/* ---- choosing ------------------------------------------------------------------------------------ */

/* Compares all files of checkpoint `dir` with its manifest; the error message says what is damaged. */
static ax_status verify_dir(const char *dir)
{
    manifest m;
    AX_TRY(manifest_read(dir, &m));
    ax_status status = check_all(dir, &m);
    manifest_fini(&m);
    return status;
}

/* Sets *dir to the newest undamaged checkpoint of `list`. If there is none, *dir stays NULL; AX_ERR_DATA
 * unless the list is empty. Sets *gone to true if a checkpoint of the list no longer exists: the run has
 * removed it after it saved a newer one. */
static ax_status choose_newest(const ax_ckpt_list *list, const char *run_dir, char **dir, bool *gone)
{
    ax_status status = AX_OK;
    for (int i = 0; i < list->n && !*dir && (status == AX_OK || status == AX_ERR_DATA); i++) {
        const ax_ckpt_info *info = &list->item[i];
        status = info->damage ? ax_fail(AX_ERR_DATA, "%s", info->damage) : verify_dir(info->dir);
        if (status == AX_OK)
            status = ax_strdup(info->dir, dir);
        else if (status == AX_ERR_DATA && !ax_path_exists(info->dir))
            *gone = true;
        else if (status == AX_ERR_DATA)
            ax_log(AX_LOG_WARN, "skipping damaged checkpoint %s: %s", info->dir, ax_error_message());
    }
    return status != AX_ERR_DATA
               ? status
               : ax_fail(AX_ERR_DATA,
                         "none of the %d checkpoints in %s/ckpt is undamaged (the oldest one: %s); to start "
                         "anew, choose another run.dir or move the checkpoints away",
                         list->n, run_dir, ax_error_message());
}

/* Returns true if the file RUN/latest names a checkpoint that exists. */
static bool latest_is_there(const char *run_dir)
{
    char name[64] = "", *path;
    read_latest(run_dir, name);
    if (ckpt_step_of(name) < 0 || ckpt_path(&path, "%s/ckpt/%s", run_dir, name) != AX_OK)
        return false;
    bool there = ax_path_exists(path);
    free(path);
    return there;
}

ax_status ax_ckpt_find_latest(const char *run_dir, char **dir)
{
    enum { ATTEMPTS = 100 }; /* ends the loop if a run removes checkpoints faster than they can be verified */
    *dir = NULL;
    ax_status status = AX_OK;
    for (int i = 0; i < ATTEMPTS && !*dir; i++) {
        ax_ckpt_list *list;
        AX_TRY(ax_ckpt_list_create(run_dir, false, &list));
        bool gone = !list->n && latest_is_there(run_dir); /* RUN/latest names a checkpoint that is not in the
                                                             list: it was saved while RUN/ckpt was listed */
        status = choose_newest(list, run_dir, dir, &gone);
        ax_ckpt_list_destroy(&list);
        if (!gone)
            break;
    }
    return status;
}

/* Finds a checkpoint: `path` itself, which must be undamaged, or, if `path` is a run, the run's newest
 * checkpoint. *dir is NULL if `path` is neither a checkpoint nor a run. */
static ax_status find_in(const char *path, char **dir)
{
    *dir = NULL;
    if (!ax_path_exists(path))
        return ckpt_refuse_path(path);
    AX_CHECK(ax_path_is_dir(path), AX_ERR_DATA,
             "%s is a file, but the directory of a checkpoint, run or model is expected", path);
    if (ax_dir_has(path, MANIFEST)) {
        AX_TRY(verify_dir(path));
        return ax_strdup(path, dir);
    }
    if (!ax_dir_has(path, "ckpt"))
        return AX_OK;
    AX_TRY(ax_ckpt_find_latest(path, dir));
    AX_CHECK(*dir, AX_ERR_DATA,
             "run %s has no checkpoint yet: wait until it has saved one, or name another run", path);
    return AX_OK;
}

ax_status ax_ckpt_find_resume(const char *run_dir, const char *resume, char **dir)
{
    *dir = NULL;
    if (!strcmp(resume, "none"))
        return AX_OK;
    if (!strcmp(resume, "auto"))
        return ax_ckpt_find_latest(run_dir, dir);
    AX_TRY(find_in(resume, dir));
    AX_CHECK(*dir, AX_ERR_DATA,
             "%s is neither a checkpoint (it has no " MANIFEST
             ") nor a run (it has no ckpt/); to start from a model's weights, set model.from instead",
             resume);
    return AX_OK;
}

bool ax_ckpt_is_adapter(const char *dir) { return ax_dir_has(dir, "adapter_config.json"); }

bool ax_ckpt_has_weights(const char *dir)
{
    return ax_dir_has(dir, "model.safetensors") || ax_dir_has(dir, "model.safetensors.index.json") ||
           st_count_shards(dir, "model");
}

/* Checks that `dir`, which is neither a checkpoint nor a run, is the directory of a model or of an adapter.
 */
static ax_status check_model_dir(const char *dir)
{
    bool adapter = ax_ckpt_is_adapter(dir), weights = ax_dir_has(dir, "adapter_model.safetensors");
    AX_TRY(ckpt_check_links(dir));
    AX_CHECK(
        !adapter || weights || !ax_dir_has(dir, "adapter_model.bin"), AX_ERR_DATA,
        "%s holds an adapter as adapter_model.bin, which is not read: save it as adapter_model.safetensors",
        dir);
    AX_CHECK(
        !adapter || weights, AX_ERR_DATA,
        "%s holds adapter_config.json, so it is the directory of an adapter, but it has no "
        "adapter_model.safetensors: add that file, or remove adapter_config.json from a model's directory",
        dir);
    return adapter || ax_dir_has(dir, "config.json") || ax_ckpt_has_weights(dir) ? AX_OK
                                                                                 : ckpt_refuse_dir(dir);
}

ax_status ax_ckpt_find_model(const char *path, char **dir)
{
    char *snapshot;
    *dir = NULL;
    AX_TRY(ckpt_find_snapshot(path, &snapshot));
    if (snapshot)
        path = snapshot;
    ax_status status = find_in(path, dir);
    if (status == AX_OK && !*dir)
        status = check_model_dir(path);
    if (status == AX_OK && !*dir)
        status = ax_strdup(path, dir);
    free(snapshot);
    return status;
}
