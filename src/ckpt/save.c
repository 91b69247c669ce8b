/* Saves a checkpoint in four phases. All ranks agree on the result of each phase before the next:
 *
 * - prepare: rank 0 creates RUN/ckpt/.step-N.tmp with all files at their full size.
 * - write: every rank writes its boxes and syncs the files; checksums of parameters are computed.
 * - hash: the files are read back and hashed; each rank hashes some of the files.
 * - publish: rank 0 writes the manifest, syncs, renames to step-N, sets `latest`, deletes old checkpoints.
 *
 * The checkpoint exists from the rename on. */
#include "ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct saver {
    const ax_ckpt_save_args *args;
    ax_ctx *ctx;
    char *root, *aside, *training, *final, *was, *latest_new, *latest; /* paths, set by saver_paths */
    ckpt_items model_items, optim_items;
    ax_st *model, *optim; /* optim is NULL if there is no optimizer state */
    uint64_t *sums;       /* checksums of the parameters */
    uint64_t *hashes;     /* XXH3-64 of each file of `model`, then of each file of `optim` */
    manifest m;
    bool named;    /* the checkpoint's directory already has its final name, step-N */
    bool replaced; /* `named` is set, and the new checkpoint has exchanged names with an older one of the same
                      step, which is now at `aside` */
    bool moved; /* an older checkpoint of the same step is at `was`, because the file system cannot exchange
                   names */
} saver;

static void saver_fini(saver *s)
{
    ax_st_close(&s->model);
    ax_st_close(&s->optim);
    ckpt_items_fini(&s->model_items);
    ckpt_items_fini(&s->optim_items);
    manifest_fini(&s->m);
    free(s->root);
    free(s->aside);
    free(s->training);
    free(s->final);
    free(s->was);
    free(s->latest_new);
    free(s->latest);
    free(s->sums);
    free(s->hashes);
}

static ax_status saver_paths(saver *s)
{
    const char *run = s->args->run_dir;
    long long step = (long long)s->args->step;
    AX_TRY(ckpt_path(&s->root, "%s/ckpt", run));
    AX_TRY(ckpt_path(&s->aside, "%s/.step-%lld.tmp", s->root, step));
    AX_TRY(ckpt_path(&s->training, "%s/training", s->aside));
    AX_TRY(ckpt_path(&s->final, "%s/step-%lld", s->root, step));
    AX_TRY(ckpt_path(&s->was, "%s/.step-%lld" CKPT_WAS, s->root, step));
    AX_TRY(ckpt_path(&s->latest_new, "%s/.latest.new", run));
    return ckpt_path(&s->latest, "%s/latest", run);
}

static ax_status saver_init(saver *s, const ax_ckpt_save_args *args)
{
    const ax_param_set *set = args->params;
    s->args = args;
    s->ctx = set->ctx;
    AX_TRY(saver_paths(s));
    AX_TRY(ckpt_items_model(set, false, &s->model_items));
    AX_TRY(ckpt_items_training(set, args->moment_names, args->dtype != s->ctx->accum, &s->optim_items));
    AX_TRY(ckpt_items_plan(&s->model_items, args->dtype, s->aside, args->base ? "adapter_model" : "model",
                           args->base ? INT64_MAX : args->shard_bytes, &s->model));
    if (args->base)
        AX_TRY(ax_st_note(s->model, CKPT_BASE, args->base));
    if (s->optim_items.n)
        AX_TRY(ckpt_items_plan(&s->optim_items, AX_DTYPE_COUNT, s->training, "optim", args->shard_bytes,
                               &s->optim));
    AX_TRY(ax_calloc((size_t)set->n, sizeof *s->sums, &s->sums));
    int files = s->model->files + (s->optim ? s->optim->files : 0);
    return ax_calloc((size_t)files, sizeof *s->hashes, &s->hashes);
}

/* ---- prepare ------------------------------------------------------------------------------------- */

/* Returns true if a checkpoint has, or may have, a file of its own with this name. */
static bool is_own_file(const char *path)
{
    static const char *const own[] = {MANIFEST, "training/state.json", "training/optim*",
                                      "model*.safetensors*", "adapter_model*.safetensors*"};
    for (size_t i = 0; i < AX_COUNT(own); i++)
        if (!fnmatch(own[i], path, 0))
            return true;
    return false;
}

/* Checks the name of a small file that the caller adds. */
static ax_status check_name(const char *path)
{
    const char *name = strncmp(path, "training/", 9) ? path : path + 9;
    AX_CHECK(
        name[0] && name[0] != '.' && !strchr(name, '/') && strcmp(path, "training"), AX_ERR_USAGE,
        "a file of a checkpoint cannot have the name \"%s\": give NAME or training/NAME, where NAME has no "
        "slash and does not begin with a dot",
        path);
    AX_CHECK(
        !is_own_file(path), AX_ERR_USAGE,
        "\"%s\" is the name of a file that the checkpoint itself has: give the file that is saved with it "
        "another name",
        path);
    return AX_OK;
}

static ax_status check_args(const ax_ckpt_save_args *a)
{
    json_t *state;
    bool parsed = ax_json_parse(NULL, a->state, strlen(a->state), JSON_REJECT_DUPLICATES, &state) == AX_OK;
    bool object = json_is_object(state);
    json_decref(state);
    AX_CHECK(object, AX_ERR_USAGE,
             "the state to save with a checkpoint (training/state.json) is not a JSON object: %s",
             parsed ? "it is another value" : ax_error_message());
    AX_CHECK(a->step >= 0, AX_ERR_USAGE, "a checkpoint cannot have step %lld: steps begin at 0",
             (long long)a->step);
    for (int i = 0; i < a->n_files; i++)
        AX_TRY(check_name(a->files[i].name));
    return AX_OK;
}

/* Estimates the space that the checkpoint needs: the size of every file, rounded up to blocks, plus
 * directories and the manifest. */
static int64_t bytes_needed(const saver *s)
{
    enum { BLOCK = 4096, PER_PARAMETER = 256 };
    const ax_ckpt_save_args *a = s->args;
    int files = s->model->files + (s->optim ? s->optim->files : 0) + a->n_files;
    int64_t bytes =
        ax_st_bytes(s->model) + (s->optim ? ax_st_bytes(s->optim) : 0) + (int64_t)strlen(a->state);
    for (int i = 0; i < a->n_files; i++)
        bytes += (int64_t)a->files[i].size;
    return bytes + (int64_t)(files + 8) * BLOCK + (int64_t)a->params->n * PER_PARAMETER;
}

/* Writes a small file of the checkpoint, such as config.json, and adds the file to the manifest.
 * adapter_config.json is not added, because users may change it: after they move the base, they write the new
 * path of the base into this file. */
static ax_status add_file(saver *s, const char *name, const void *data, size_t size)
{
    char *path;
    bool listed = strcmp(name, "adapter_config.json") != 0;
    manifest_file *f = &s->m.file[s->m.n];
    if (listed) {
        AX_TRY(ax_strdup(name, &f->name));
        s->m.n++;
    }
    AX_TRY(ckpt_path(&path, "%s/%s", s->aside, name));
    ax_status status = ax_file_write_synced(path, data, size);
    if (status == AX_OK && listed)
        status = manifest_hash_file(path, &f->bytes, &f->xxh3);
    free(path);
    return status;
}

/* Sets *out to one more than the highest serial number of the run's checkpoints. Serial numbers tell without
 * clocks which checkpoint is newest, also if the run went back to an earlier step. */
static ax_status next_serial(const char *run_dir, int64_t *out)
{
    ax_ckpt_list *list;
    AX_TRY(ax_ckpt_list_create(run_dir, false, &list));
    *out = list->n ? list->item[0].serial + 1 : 1;
    ax_ckpt_list_destroy(&list);
    return AX_OK;
}

static ax_status make_files(saver *s)
{
    const ax_ckpt_save_args *a = s->args;
    int stores = s->model->files + (s->optim ? s->optim->files : 0);
    /* The 3 further files are state.json and the indices of the two stores (weights and optimizer state). */
    AX_TRY(ax_calloc((size_t)(stores + a->n_files + 3), sizeof *s->m.file, &s->m.file));
    AX_TRY(ax_mkdirs(s->training));
    AX_TRY(ax_st_make(s->model));
    if (s->optim)
        AX_TRY(ax_st_make(s->optim));
    for (int i = 0; i < a->n_files; i++)
        AX_TRY(add_file(s, a->files[i].name, a->files[i].data, a->files[i].size));
    return add_file(s, "training/state.json", a->state, strlen(a->state));
}

static ax_status prepare(saver *s)
{
    const ax_ckpt_save_args *a = s->args;
    char name[64];
    AX_TRY(check_args(a));
    AX_TRY(ax_mkdirs(s->root));
    AX_TRY(ax_ckpt_clean(a->run_dir));
    AX_TRY(ax_dir_has_space(s->root, bytes_needed(s), "the checkpoint"));
    AX_TRY(next_serial(a->run_dir, &s->m.serial));
    int n = snprintf(name, sizeof name, "step-%lld\n", (long long)a->step);
    /* This file is written now, so that phase `publish` only renames it, which needs no disk space. */
    AX_TRY(ax_file_write_synced(s->latest_new, name, (size_t)n));
    return make_files(s);
}

/* ---- write and hash ------------------------------------------------------------------------------ */

static ax_status write_boxes(saver *s)
{
    AX_TRY(ckpt_items_write(s->ctx, &s->model_items, s->model));
    AX_TRY(ax_st_sync(s->model));
    if (!s->optim)
        return AX_OK;
    AX_TRY(ckpt_items_write(s->ctx, &s->optim_items, s->optim));
    return ax_st_sync(s->optim);
}

static ax_status hash_files(saver *s)
{
    int rank = ax_comm_rank(s->ctx->world), size = ax_comm_size(s->ctx->world), k = 0;
    ax_st *stores[] = {s->model, s->optim};
    for (size_t i = 0; i < AX_COUNT(stores); i++)
        for (int f = 0; stores[i] && f < stores[i]->files; f++, k++) {
            int64_t bytes = 0;
            if (k % size == rank)
                AX_TRY(manifest_hash_file(stores[i]->file[f].path, &bytes, &s->hashes[k]));
        }
    return AX_OK;
}

/* ---- publish ------------------------------------------------------------------------------------- */

static ax_status list_store(saver *s, const ax_st *st, const uint64_t *hashes)
{
    size_t prefix = strlen(s->aside) + 1;
    for (int i = 0; i < st->files; i++) {
        manifest_file *f = &s->m.file[s->m.n];
        AX_TRY(ax_strdup(st->file[i].path + prefix, &f->name));
        s->m.n++;
        f->bytes = st->file[i].size;
        f->xxh3 = hashes[i];
    }
    if (!st->index)
        return AX_OK;
    manifest_file *f = &s->m.file[s->m.n];
    AX_TRY(ax_strdup(st->index + prefix, &f->name));
    s->m.n++;
    return manifest_hash_file(st->index, &f->bytes, &f->xxh3);
}

static ax_status list_params(saver *s)
{
    const ax_param_set *set = s->args->params;
    s->m.params = json_object();
    const uint64_t *next = s->sums;
    for (int i = 0; i < set->n; i++) {
        char sum[17];
        const ax_param *p = set->param[i];
        if (p->frozen)
            continue;
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)*next++);
        json_t *entry = json_pack("{s:s, s:s, s:s*}", "dtype", ax_dtype_name(p->state[AX_STATE_MASTER].dtype),
                                  "sum", sum, "key", p->file.key);
        AX_CHECK(!json_object_set_new(s->m.params, p->name, entry), AX_ERR_MEMORY,
                 "not enough memory to write %s/" MANIFEST, s->aside);
    }
    return AX_OK;
}

static ax_status write_manifest(saver *s)
{
    AX_TRY(list_store(s, s->model, s->hashes));
    if (s->optim)
        AX_TRY(list_store(s, s->optim, s->hashes + s->model->files));
    AX_TRY(list_params(s));
    s->m.step = s->args->step;
    s->m.time = ax_wall_clock();
    AX_TRY(manifest_write(s->aside, &s->m));
    AX_TRY(ax_dir_sync(s->training));
    return ax_dir_sync(s->aside);
}

static ax_status rename_path(const char *from, const char *to)
{
    AX_CHECK(!rename(from, to), AX_ERR_DATA, "cannot rename %s to %s: %s", from, to, strerror(errno));
    return AX_OK;
}

/* Gives the checkpoint its final name by one atomic rename. If an older checkpoint of the same training step
 * has that name, the two checkpoints exchange names. If the file system cannot exchange names, the older
 * checkpoint is first renamed to `was`. After a kill between these two renames, ax_ckpt_clean gives the older
 * checkpoint its name back. */
static ax_status rename_to_final(saver *s)
{
    bool other = ax_path_exists(s->final);
    s->replaced = other && !renameat2(AT_FDCWD, s->aside, AT_FDCWD, s->final, RENAME_EXCHANGE);
    if (other && !s->replaced) {
        AX_TRY(rename_path(s->final, s->was));
        s->moved = true;
    }
    if (!s->replaced)
        AX_TRY(rename_path(s->aside, s->final));
    s->named = true;
    return ax_dir_sync(s->root);
}

/* Undoes rename_to_final as far as it got; called after every save that failed. If an operation after the
 * rename failed, the checkpoint might not survive a crash, so it does not count as saved. */
static void undo_rename_to_final(const saver *s)
{
    bool failed =
        s->named && renameat2(AT_FDCWD, s->final, AT_FDCWD, s->aside, s->replaced ? RENAME_EXCHANGE : 0);
    if (s->moved && !failed)
        failed = rename(s->was, s->final);
    if (failed)
        ax_log(AX_LOG_WARN,
               "saving %s failed, and its name could not be taken back (%s): check it with `axonn ckpt "
               "verify` before use",
               s->final, strerror(errno));
}

static ax_status prune(const ax_ckpt_save_args *a)
{
    ax_ckpt_list *list;
    AX_TRY(ax_ckpt_list_create(a->run_dir, false, &list));
    ax_status status = AX_OK;
    for (int64_t i = a->keep_latest; i < list->n && status == AX_OK; i++)
        if (!list->item[i].latest)
            status = ckpt_delete(a->run_dir, strrchr(list->item[i].dir, '/') + 1);
    ax_ckpt_list_destroy(&list);
    return status;
}

static ax_status publish(saver *s)
{
    const ax_ckpt_save_args *a = s->args;
    AX_TRY(write_manifest(s));
    AX_TRY(rename_to_final(s));
    AX_CHECK(!rename(s->latest_new, s->latest), AX_ERR_DATA, "cannot rename %s to %s: %s", s->latest_new,
             s->latest, strerror(errno));
    /* The checkpoint is safe from here on, so errors are only warnings. The checkpoint is found by its serial
     * number, whatever `latest` says, and the next save removes checkpoints that cannot be removed now. */
    if (ax_dir_sync(a->run_dir) != AX_OK) {
        ax_log(AX_LOG_WARN,
               "%s is saved, but would be lost if the machine failed now, so older checkpoints are kept: %s",
               s->final, ax_error_message());
        return AX_OK;
    }
    ax_status status = a->keep_latest > 0 ? prune(a) : AX_OK;
    if (status == AX_OK)
        status = ax_ckpt_clean(a->run_dir);
    if (status != AX_OK)
        ax_log(AX_LOG_WARN,
               "%s is saved, but older checkpoints could not be removed: %s; the next save tries again",
               s->final, ax_error_message());
    return AX_OK;
}

/* ---- before any save ----------------------------------------------------------------------------- */

static int64_t largest_file(const ax_st *st)
{
    int64_t most = 0;
    for (int i = 0; st && i < st->files; i++)
        most = ax_max(most, st->file[i].size);
    return most;
}

ax_status ax_ckpt_measure(const ax_ckpt_save_args *args, ax_ckpt_size *out)
{
    saver s = {0};
    ax_status status = saver_init(&s, args);
    if (status == AX_OK)
        *out = (ax_ckpt_size){bytes_needed(&s), ax_max(largest_file(s.model), largest_file(s.optim))};
    saver_fini(&s);
    return status;
}

/* ---- all phases ---------------------------------------------------------------------------------- */

static ax_status save(saver *s)
{
    ax_ctx *ctx = s->ctx;
    bool first = ax_comm_rank(ctx->world) == 0;
    int files = s->model->files + (s->optim ? s->optim->files : 0);
    AX_TRY(ax_comm_agree(ctx->world, first ? prepare(s) : AX_OK));
    AX_TRY(ax_comm_agree(ctx->world, write_boxes(s)));
    AX_TRY(ckpt_items_checksum(ctx, &s->model_items, s->sums));
    AX_TRY(ax_comm_agree(ctx->world, hash_files(s)));
    AX_TRY(ckpt_sum(ctx, s->hashes, files));
    return ax_comm_agree(ctx->world, first ? publish(s) : AX_OK);
}

/* Removes all files of a checkpoint that could not be saved. The reason of the failure stays the thread's
 * error message. */
static void remove_failed(saver *s, ax_status status)
{
    char reason[16384]; /* the longest error message */
    bool shared = ax_error_is_shared();
    snprintf(reason, sizeof reason, "%s", ax_error_message());
    undo_rename_to_final(s);
    if (ax_remove_tree(s->aside) != AX_OK)
        ax_log(AX_LOG_WARN, "%s could not be removed; the next start of the run will remove it: %s", s->aside,
               ax_error_message());
    unlink(s->latest_new);
    (void)ax_fail(status, "%s", reason);
    if (shared)
        ax_error_share();
}

ax_status ax_ckpt_save(const ax_ckpt_save_args *args)
{
    saver s = {0};
    ax_ctx *ctx = args->params->ctx;
    ax_status status = ax_comm_agree(ctx->world, saver_init(&s, args));
    if (status == AX_OK) {
        status = save(&s);
        if (status != AX_OK && ax_comm_rank(ctx->world) == 0) {
            remove_failed(&s, status);
            if (status == AX_ERR_DATA)
                ax_error_context("checkpoint %s, which needs %lld bytes, was not saved", s.final,
                                 (long long)bytes_needed(&s));
        }
    }
    saver_fini(&s);
    return status;
}
