/* Opens LoRA adapters (low-rank updates in files of PEFT's format) together with their base model. */
#include "infer/adapter.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the base ------------------------------------------------------------------------------------ */

/* Sets *out to the directory of the base model. `name` is its path as adapter_config.json gives it, `dir` the
 * adapter's directory, `path` the path of adapter_config.json, for messages. As in PEFT and transformers,
 * `name` is relative to the current directory, or else to `dir`. */
static ax_status find_base(const char *dir, const char *path, const char *name, char **out)
{
    char *beside;
    AX_TRY(ax_path_join(dir, name, &beside));
    const bool here = ax_path_is_dir(name), there = name[0] != '/' && ax_path_is_dir(beside);
    ax_status status = AX_OK;
    if (here && there && !ax_path_same(name, beside))
        ax_log(AX_LOG_INFO,
               "%s names the base \"%s\": the directory in the current directory is taken, not %s (write an "
               "absolute path to choose)",
               path, name, beside);
    if (!here && !there)
        status = ax_fail(AX_ERR_DATA,
                         "%s names the base \"%s\", but there is no such directory: set "
                         "\"base_model_name_or_path\" in this file to the path of the base",
                         path, name);
    if (status == AX_OK)
        status = ax_ckpt_find_model(here ? name : beside, out);
    if (status == AX_OK && ax_ckpt_is_adapter(*out))
        status =
            ax_fail(AX_ERR_DATA,
                    "%s names the base %s, which holds adapter_config.json, so it is an adapter itself: "
                    "merge it first (axonn ckpt convert %s --out DIR), or move the adapter's files out of "
                    "the model's directory",
                    path, *out, *out);
    free(beside);
    return status;
}

/* Reads adapter_config.json. Finds the directory of the base model, unless *base is not NULL. */
static ax_status read_description(const char *dir, ax_adapter *adapter, char **base)
{
    char *path, *text = NULL;
    size_t size;
    *adapter = (ax_adapter){0};
    AX_TRY(ax_path_join(dir, "adapter_config.json", &path));
    ax_status status = ax_file_read_most(path, AX_CONFIG_JSON_MAX, &text, &size);
    if (status == AX_OK)
        status = ax_adapter_parse(text, size, path, adapter);
    free(text);
    if (status == AX_OK && !*base)
        status = find_base(dir, path, adapter->base, base);
    free(path);
    return status;
}

ax_status ax_adapter_find_base(const char *dir, char **base)
{
    ax_adapter adapter;
    *base = NULL;
    ax_status status = read_description(dir, &adapter, base);
    ax_adapter_fini(&adapter);
    return status;
}

ax_status ax_adapter_open(const char *dir, ax_adapter *adapter, char **base, ax_st **st)
{
    AX_TRY(read_description(dir, adapter, base));
    return ax_st_open(dir, st);
}

ax_status ax_adapter_check_base(const ax_st *st, const char *dir, ax_st *base, const char *base_dir)
{
    char have[17];
    const char *want = ax_st_base(st);
    if (!want)
        return AX_OK;
    AX_TRY(ax_st_checksum(base, have));
    AX_CHECK(!strcmp(have, want), AX_ERR_DATA,
             "%s is an adapter for another base: it was made for weights with checksum %s, but those of %s "
             "have %s (another dtype also changes it): set \"base_model_name_or_path\" in its "
             "adapter_config.json to the right base",
             dir, want, base_dir, have);
    return AX_OK;
}

/* ---- copies of the base's tables ------------------------------------------------------------------ */

static const char *const copies[] = {"*.base_layer.weight"};
const ax_ckpt_rules ax_adapter_rules = {.ignore = copies, .ignores = AX_COUNT(copies), .strict = true};

/* Sets *same to whether two arrays of the same shape hold the same values, rounded to the dtype of `a`. */
static ax_status compare(ax_st *st, const ax_st_array *a, ax_st *base, const ax_st_array *b, bool *same)
{
    enum { PIECE = 1 << 18 }; /* elements that are compared at a time, but at least one row */
    const int64_t cols = a->dim[1], most = ax_max(PIECE / cols, 1);
    const size_t bytes = ax_dtype_size(a->dtype);
    char *x = NULL, *y = NULL;
    ax_status status = ax_calloc((size_t)(most * cols), bytes, &x);
    if (status == AX_OK)
        status = ax_calloc((size_t)(most * cols), bytes, &y);
    for (int64_t row = 0; row < a->dim[0] && status == AX_OK && *same; row += most) {
        const int64_t lo[] = {row, 0}, n[] = {ax_min(most, a->dim[0] - row), cols};
        status = ax_st_read(st, a, lo, n, false, a->dtype, x);
        if (status == AX_OK)
            status = ax_st_read(base, b, lo, n, false, a->dtype, y);
        *same = !memcmp(x, y, (size_t)(n[0] * cols) * bytes);
    }
    free(x);
    free(y);
    return status;
}

/* Fails if the adapter holds the whole table, not only an update of it. */
static ax_status refuse_whole(const ax_st *st, const char *dir, const char *key)
{
    char whole[300];
    snprintf(whole, sizeof whole, "base_model.model.%s", key);
    AX_CHECK(
        !ax_st_find(st, whole), AX_ERR_DATA,
        "%s holds %s, a whole matrix in place of the base's (modules_to_save, or tokens were added to the "
        "model), which is not implemented: merge the adapter into its base with PEFT, and use the merged "
        "model",
        dir, whole);
    return AX_OK;
}

static ax_status check_table(ax_st *st, const char *dir, ax_st *base, const ax_model_config *c,
                             const char *key, const char *tied)
{
    char copy[300];
    AX_TRY(refuse_whole(st, dir, key));
    snprintf(copy, sizeof copy, "base_model.model.%.*s.base_layer.weight",
             (int)(strlen(key) - strlen(".weight")), key);
    const ax_st_array *a = ax_st_find(st, copy),
                      *b = ax_ckpt_find_array(base, key, ax_family_prefix(c->family));
    if (!b && c->tie)
        b = ax_ckpt_find_array(base, tied, ax_family_prefix(c->family));
    if (!a || !b) /* ax_ckpt_match names an array that the base lacks */
        return AX_OK;
    bool same = a->ndim == 2 && b->ndim == 2 && a->dim[0] == b->dim[0] && a->dim[1] == b->dim[1] &&
                a->dtype < AX_DTYPE_COUNT && b->dtype < AX_DTYPE_COUNT;
    if (same)
        AX_TRY(compare(st, a, base, b, &same));
    AX_CHECK(
        same, AX_ERR_DATA,
        "%s holds %s, another one than the base's (perhaps tokens were added to the model), which is not "
        "implemented: merge the adapter into its base with PEFT, and use the merged model",
        dir, copy);
    return AX_OK;
}

ax_status ax_adapter_check_tables(ax_st *st, const char *dir, ax_st *base, const ax_model_config *c)
{
    const char *head, *table;
    ax_family_tied(c->family, &head, &table);
    AX_TRY(check_table(st, dir, base, c, head, table));
    return check_table(st, dir, base, c, table, head);
}

/* ---- the updates --------------------------------------------------------------------------------- */

/* Sets *out to whether PEFT gives the module that holds a matrix an update. With ensure_weight_tying an
 * update of one of two tied matrices is one of the other, too. */
static ax_status is_meant(const ax_adapter *adapter, const ax_model_config *c, ax_matrix matrix,
                          const char *module, bool *out)
{
    char other[256];
    AX_TRY(ax_adapter_targets(adapter, module, out));
    bool ties = c->tie && json_is_true(json_object_get(adapter->json, "ensure_weight_tying"));
    if (*out || matrix < AX_MATRIX_OF_BLOCK || !ties)
        return AX_OK;
    ax_family_module(c->family, matrix == AX_MATRIX_HEAD ? AX_MATRIX_EMBED : AX_MATRIX_HEAD, other);
    return ax_adapter_targets(adapter, other, out);
}

/* Sets *out to the rank and scale of the low-rank update of `matrix` in block `block`; rank 0: the adapter
 * does not update this matrix. Fails if adapter_config.json means that PEFT would leave the stored factors
 * out, or if the rank in it is not the rank of the stored factor A. */
static ax_status read_update(const ax_adapter *adapter, const ax_st *st, const char *dir,
                             const ax_model_config *c, ax_matrix matrix, int64_t block, ax_low_rank *out)
{
    char key[256], module[256];
    bool meant;
    *out = (ax_low_rank){0};
    ax_family_low_rank_key(c->family, matrix, block, 'A', key);
    const ax_st_array *a = ax_st_find(st, key);
    if (!a || a->ndim != 2 || a->dim[0] <= 0)
        return AX_OK; /* the shapes of all arrays are compared with the model later (ax_ckpt_match) */
    ax_family_matrix_key(c->family, matrix, block, module);
    module[strlen(module) - strlen(".weight")] = 0;
    AX_TRY(is_meant(adapter, c, matrix, module, &meant));
    AX_CHECK(meant, AX_ERR_DATA,
             "%s holds factors of %s, but target_modules, exclude_modules or layers_to_transform of its "
             "adapter_config.json leaves this module out: this adapter_config.json may belong to other "
             "weights",
             dir, module);
    AX_TRY(ax_adapter_update(adapter, module, out));
    AX_CHECK(out->rank == a->dim[0], AX_ERR_DATA,
             "%s: adapter_config.json (r, rank_pattern) gives %s rank %lld, but array %s has rank %lld: "
             "this adapter_config.json may belong to other weights",
             dir, module, (long long)out->rank, key, (long long)a->dim[0]);
    return AX_OK;
}

/* Reads the rank and scale of a matrix's updates in all blocks. */
static ax_status read_updates(const ax_adapter *adapter, const ax_st *st, const char *dir, ax_model_config *c,
                              ax_matrix matrix)
{
    const int64_t n = ax_model_config_matrix_count(c, matrix);
    ax_low_rank *updates;
    AX_TRY(ax_calloc((size_t)n, sizeof *updates, &updates));
    ax_status status = AX_OK;
    for (int64_t block = 0; block < n && status == AX_OK; block++)
        status = read_update(adapter, st, dir, c, matrix, block, &updates[block]);
    if (status == AX_OK)
        status = ax_model_config_set_updates(c, matrix, updates);
    free(updates);
    return status;
}

ax_status ax_adapter_updates(const ax_adapter *adapter, const ax_st *st, const char *dir, ax_model_config *c)
{
    int64_t out, in;
    c->low_rank_shared = true;
    c->low_rank_root = adapter->root;
    for (int i = 0; i < AX_MATRIX_COUNT; i++)
        if (ax_model_config_matrix(c, (ax_matrix)i, &out, &in))
            AX_TRY(read_updates(adapter, st, dir, c, (ax_matrix)i));
    AX_CHECK(ax_model_config_is_adapted(c), AX_ERR_DATA,
             "%s updates no matrix that models of family %s have: \"base_model_name_or_path\" in its "
             "adapter_config.json may name the wrong base",
             dir, ax_model_config_family(c));
    return AX_OK;
}
