/* Writes and reads parameters and optimizer state: model files and checkpoints. */
#include "ckpt.h"

#include <stdlib.h>
#include <string.h>

/* ---- model files --------------------------------------------------------------------------------- */

/* Creates the files on rank 0; then each rank writes its boxes. No rank returns before all files are
 * synced. */
static ax_status write_items(ax_ctx *ctx, const ckpt_items *items, ax_st *st)
{
    ax_status status = ax_comm_rank(ctx->world) ? AX_OK : ax_st_make(st);
    AX_TRY(ax_comm_agree(ctx->world, status));
    status = ckpt_items_write(ctx, items, st);
    if (status == AX_OK)
        status = ax_st_sync(st);
    return ax_comm_agree(ctx->world, status);
}

ax_status ax_ckpt_write_params(const ax_param_set *set, const char *dir, ax_dtype dtype, int64_t shard_bytes)
{
    ckpt_items items;
    ax_st *st = NULL;
    AX_TRY(ckpt_items_model(set, false, &items));
    ax_status status = ckpt_items_plan(&items, dtype, dir, "model", shard_bytes, &st);
    if (status == AX_OK)
        status = write_items(set->ctx, &items, st);
    ax_st_close(&st);
    ckpt_items_fini(&items);
    return status;
}

static ax_status read_store(ax_param_set *set, ax_st *st, const ax_ckpt_rules *rules)
{
    ckpt_items items;
    AX_TRY(ckpt_items_model(set, rules && rules->frozen, &items));
    ax_status status = ckpt_items_read(set->ctx, &items, st, rules);
    ckpt_items_fini(&items);
    return status;
}

ax_status ax_ckpt_read_store(ax_param_set *set, ax_st *st, const ax_ckpt_rules *rules)
{
    return ax_comm_agree(set->ctx->world, read_store(set, st, rules));
}

ax_status ax_ckpt_read_params(ax_param_set *set, const char *path, const ax_ckpt_rules *rules)
{
    ax_st *st;
    ax_status status = ax_st_open(path, &st);
    if (status == AX_OK)
        status = read_store(set, st, rules);
    ax_st_close(&st);
    return ax_comm_agree(set->ctx->world, status);
}

ax_status ax_ckpt_checksums(const ax_param_set *set, uint64_t *sums)
{
    ckpt_items items;
    AX_TRY(ckpt_items_model(set, false, &items));
    ax_status status = ckpt_items_checksum(set->ctx, &items, sums);
    ckpt_items_fini(&items);
    return status;
}

/* ---- checkpoints --------------------------------------------------------------------------------- */

static bool has_master(const ax_st *st)
{
    for (int i = 0; i < st->n; i++)
        if (!strncmp(st->array[i].key, "master.", 7))
            return true;
    return false;
}

/* Reads the optimizer state. If training/ holds the master weights too, reads them and sets *master to true:
 * the model files then hold only rounded values. */
static ax_status load_training(ax_param_set *set, const char *dir, const char *const *moment_names,
                               bool *master)
{
    char *training;
    ax_st *st = NULL;
    ckpt_items items = {0};
    AX_TRY(ckpt_path(&training, "%s/training", dir));
    ax_status status = st_open_dir(training, "optim", &st);
    free(training);
    AX_TRY(status);
    *master = has_master(st);
    status = ckpt_items_training(set, moment_names, *master, &items);
    if (status == AX_OK)
        status = ckpt_items_read(set->ctx, &items, st, NULL);
    ckpt_items_fini(&items);
    ax_st_close(&st);
    return status;
}

static ax_status load_model(ax_param_set *set, const char *dir, const ax_ckpt_rules *rules)
{
    ax_st *st;
    ax_status status = ax_st_open(dir, &st);
    if (status == AX_OK)
        status = read_store(set, st, rules);
    ax_st_close(&st);
    return status;
}

static ax_status load_all(ax_param_set *set, const char *dir, const char *const *moment_names,
                          const ax_ckpt_rules *rules, bool training)
{
    bool master = false;
    if (training)
        AX_TRY(load_training(set, dir, moment_names, &master));
    return master ? AX_OK : load_model(set, dir, rules);
}

/* Checks that every parameter has the values that were saved, except frozen parameters and those whose dtype
 * is not that of the checkpoint. The checksums do not depend on the grid. */
static ax_status compare_checksums(const ax_param_set *set, const manifest *m, const char *dir,
                                   const uint64_t *sums)
{
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        if (p->frozen)
            continue;
        const uint64_t have = *sums++;
        const json_t *entry = json_object_get(m->params, p->name);
        const char *dtype = json_string_value(json_object_get(entry, "dtype"));
        const char *sum = json_string_value(json_object_get(entry, "sum"));
        AX_CHECK(dtype && sum, AX_ERR_DATA,
                 "%s: training/manifest.json has no complete entry for parameter %s, which the model has: "
                 "the checkpoint may be that of another model; name one of this model",
                 dir, p->name);
        if (strcmp(dtype, ax_dtype_name(p->state[AX_STATE_MASTER].dtype)))
            continue; /* converted to another dtype, so its bits differ */
        AX_CHECK(strtoull(sum, NULL, 16) == have, AX_ERR_DATA,
                 "%s: parameter %s was read, but its values are not those that were saved: check the files "
                 "with `axonn ckpt verify`",
                 dir, p->name);
    }
    return AX_OK;
}

static ax_status verify_loaded(ax_param_set *set, const manifest *m, const char *dir)
{
    uint64_t *sums;
    AX_TRY(ax_calloc((size_t)set->n, sizeof *sums, &sums));
    ax_status status = ax_ckpt_checksums(set, sums);
    if (status == AX_OK)
        status = compare_checksums(set, m, dir, sums);
    free(sums);
    return status;
}

static bool has_training(const manifest *m)
{
    for (int i = 0; i < m->n; i++)
        if (!strncmp(m->file[i].name, "training/optim", 14))
            return true;
    return false;
}

ax_status ax_ckpt_load(ax_param_set *set, const char *dir, const char *const *moment_names,
                       const ax_ckpt_rules *rules)
{
    manifest m = {0};
    ax_status status = AX_OK;
    if (!ax_dir_has(dir, MANIFEST))
        status = ax_fail(AX_ERR_DATA,
                         "%s is not a checkpoint: it has no training/manifest.json; to start from a model's "
                         "weights, name it as model.from",
                         dir);
    if (status == AX_OK)
        status = manifest_read(dir, &m);
    if (status == AX_OK && set->moments > 0 && !has_training(&m))
        status = ax_fail(
            AX_ERR_DATA,
            "%s holds no optimizer state, so no run can resume from it: name it as model.from instead", dir);
    if (status == AX_OK)
        status = load_all(set, dir, moment_names, rules, has_training(&m));
    status = ax_comm_agree(set->ctx->world, status);
    if (status == AX_OK)
        status = ax_comm_agree(set->ctx->world, verify_loaded(set, &m, dir));
    manifest_fini(&m);
    return status;
}

ax_status ax_ckpt_read_state(const char *dir, char **json)
{
    char *path;
    size_t size;
    *json = NULL;
    AX_TRY(ckpt_path(&path, "%s/training/state.json", dir));
    ax_status status = ax_file_read(path, json, &size);
    free(path);
    return status;
}
