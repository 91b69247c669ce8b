/* Opens a model directory for inference: configuration, tokenizer, weights. */
#include "infer/pretrained.h"
#include "axonn/infer.h"
#include "axonn/json.h"
#include "infer/adapter.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Appends to *out the token ids that the key `key` of `json` holds. The value of the key is one id, a list of
 * ids, or null. */
static ax_status read_ids(const json_t *json, const char *path, const char *key, ax_ids *out)
{
    const json_t *value = json_object_get(json, key);
    size_t n = json_is_array(value) ? json_array_size(value) : value && !json_is_null(value);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        AX_CHECK(json_is_integer(item) && json_integer_value(item) <= INT32_MAX, AX_ERR_DATA,
                 "%s: \"%s\" must be a token id or a list of token ids", path, key);
        int32_t id = (int32_t)json_integer_value(item);
        if (json_integer_value(item) >= 0) /* some models write -1 for "no such token" */
            AX_TRY(ax_ids_add(out, &id, 1));
    }
    return AX_OK;
}

/* Sets *out to the first token id that the key `key` of `json` holds, or to -1. */
static ax_status read_id(const json_t *json, const char *path, const char *key, int64_t *out)
{
    ax_ids ids = {0};
    ax_status status = read_ids(json, path, key, &ids);
    *out = ids.size ? ids.data[0] : -1;
    ax_ids_fini(&ids);
    return status;
}

static ax_status read_identity(const json_t *json, const char *path, ax_pretrained *out)
{
    out->identity.dtype = AX_F32;
    AX_TRY(read_id(json, path, "bos_token_id", &out->identity.bos));
    AX_TRY(read_id(json, path, "eos_token_id", &out->identity.eos));
    return out->ends.size ? AX_OK : read_ids(json, path, "eos_token_id", &out->ends);
}

/* Reads the end-of-text tokens from generation_config.json. As in transformers, these tokens override the
 * end-of-text tokens of config.json. */
static ax_status read_generation(const char *dir, ax_pretrained *out)
{
    char *path;
    json_t *json = NULL;
    AX_TRY(ax_path_join(dir, "generation_config.json", &path));
    bool there = ax_path_is_given(path);
    ax_status status = there ? ax_json_read_file(path, JSON_REJECT_DUPLICATES, &json) : AX_OK;
    if (status == AX_OK && there && !json_is_object(json))
        status =
            ax_fail(AX_ERR_DATA,
                    "%s does not hold a JSON object: correct the file, or remove it (it is optional)", path);
    if (status == AX_OK)
        status = read_ids(json, path, "eos_token_id", &out->ends);
    json_decref(json);
    free(path);
    return status;
}

static ax_status read_config(const char *dir, ax_pretrained *out)
{
    char *path, *text = NULL;
    size_t size;
    AX_TRY(ax_path_join(dir, "config.json", &path));
    ax_status status = ax_file_read_most(path, AX_CONFIG_JSON_MAX, &text, &size);
    if (status == AX_OK)
        status = ax_model_config_parse(text, size, path, &out->config);
    if (status == AX_OK) {
        json_t *json;
        status = ax_json_parse(path, text, size, 0, &json);
        if (status == AX_OK)
            status = read_identity(json, path, out);
        json_decref(json);
    }
    free(text);
    free(path);
    return status;
}

/* Returns the directory with config.json and the weights of the model itself (of an adapter: of its base
 * model). */
static const char *model_dir(const ax_pretrained *m) { return m->base ? m->base : m->dir; }

/* Detects whether the weight files hold an output head that differs from the token embedding, although
 * config.json says that the two are tied. As in transformers, such a model is then treated as untied. */
static ax_status detect_untied_head(ax_pretrained *m)
{
    const char *head, *table;
    bool same = true;
    ax_family_tied(m->config.family, &head, &table);
    if (m->config.tie && ax_ckpt_has_weights(model_dir(m)))
        AX_TRY(ax_ckpt_same_arrays(model_dir(m), head, table, ax_family_prefix(m->config.family), &same));
    m->untied = !same;
    m->config.tie &= same;
    return AX_OK;
}

/* Logs, on rank 0, how the model differs from what its files say. */
static ax_status log_differences(const ax_comm *world, const ax_pretrained *m)
{
    const char *head, *table;
    char *path;
    if (ax_comm_rank(world))
        return AX_OK;
    ax_family_tied(m->config.family, &head, &table);
    if (m->untied)
        ax_log(
            AX_LOG_INFO,
            "%s: config.json ties %s to %s, but the files hold different values: the model is read with an "
            "untied head (tie_word_embeddings: false)",
            model_dir(m), head, table);
    if (m->weights && ax_st_remark(m->weights))
        ax_log(AX_LOG_INFO, "%s", ax_st_remark(m->weights));
    if (m->left.size)
        ax_log(AX_LOG_INFO, "%s", m->left.data);
    AX_TRY(ax_path_join(model_dir(m), "config.json", &path));
    ax_status status = ax_model_config_warn(&m->config, path);
    free(path);
    return status;
}

/* Loads the tokenizer if the directory has one. */
static ax_status read_tokenizer(const char *dir, ax_tokenizer **out)
{
    static const char *const files[] = {"tokenizer.json", "vocab.json"};
    bool there = false;
    for (size_t i = 0; i < AX_COUNT(files); i++)
        there = there || ax_dir_has(dir, files[i]);
    return there ? ax_tokenizer_load(dir, out) : AX_OK;
}

ax_ckpt_rules ax_model_ckpt_rules(const ax_model_config *config)
{
    ax_ckpt_rules rules = {.prefix = ax_family_prefix(config->family)};
    rules.ignore = ax_family_ignored(config->family, &rules.ignores);
    const char *table;
    ax_family_tied(config->family, &rules.head, &table);
    rules.table = config->tie ? table : NULL;
    rules.frozen = ax_model_config_is_adapted(config);
    return rules;
}

/* Checks that the weight files hold the arrays that the network needs. To list these arrays, builds the
 * network on the device `dry` (which computes nothing) on one rank. */
static ax_status match_network(ax_ctx *dry, ax_pretrained *m)
{
    ax_model *network;
    ax_param **params = NULL;
    int n = 0, filled = 0;
    const ax_ckpt_rules rules = ax_model_ckpt_rules(&m->config);
    AX_TRY(ax_model_create(dry, &m->config, &(ax_model_use){.positions = 1}, &network));
    ax_layer_params(network->root, NULL, 0, &n);
    ax_status status = ax_calloc((size_t)n, sizeof *params, &params);
    if (status == AX_OK) {
        ax_layer_params(network->root, params, n, &filled);
        status = ax_ckpt_match(params, n, m->weights, &rules, &m->left);
        if (status == AX_OK && m->adapter)
            status = ax_ckpt_match(params, n, m->adapter, &ax_adapter_rules, NULL);
    }
    free(params);
    ax_model_destroy(&network);
    return status;
}

/* Opens the weight files and checks, before memory is allocated for the model, that they hold the arrays of
 * the model that config.json describes. */
static ax_status open_weights(ax_pretrained *m)
{
    ax_ctx *dry;
    AX_TRY(ax_st_open(model_dir(m), &m->weights));
    if (m->adapter)
        AX_TRY(ax_adapter_check_base(m->adapter, m->dir, m->weights, m->base));
    if (m->adapter)
        AX_TRY(ax_adapter_check_tables(m->adapter, m->dir, m->weights, &m->config));
    AX_TRY(ax_ctx_create_dry(0, 1, (ax_grid_size){{0}}, AX_F32, NULL, &dry));
    ax_status status = match_network(dry, m);
    ax_ctx_destroy(&dry);
    return status;
}

ax_status ax_pretrained_open_weights(const char *dir, ax_pretrained *out)
{
    *out = (ax_pretrained){0};
    ax_status status = ax_strdup(dir, &out->dir);
    if (status == AX_OK)
        status = read_config(dir, out);
    if (status == AX_OK)
        status = detect_untied_head(out);
    if (status == AX_OK)
        status = open_weights(out);
    if (status != AX_OK)
        ax_pretrained_close(out);
    return status;
}

/* Reads all parts of the model. The generation_config.json and the tokenizer in an adapter's directory
 * replace those of its base model. */
static ax_status read_parts(ax_pretrained *m)
{
    AX_TRY(read_generation(m->dir, m));
    if (m->base && !m->ends.size)
        AX_TRY(read_generation(m->base, m));
    AX_TRY(read_config(model_dir(m), m));
    AX_TRY(detect_untied_head(m));
    if (m->base) {
        AX_CHECK(ax_ckpt_has_weights(m->base), AX_ERR_DATA,
                 "%s, the base of %s, holds no weights: copy the model's *.safetensors files there", m->base,
                 m->dir);
        AX_TRY(ax_adapter_updates(&m->description, m->adapter, m->dir, &m->config));
    }
    if (ax_ckpt_has_weights(model_dir(m)))
        AX_TRY(open_weights(m));
    AX_TRY(read_tokenizer(m->dir, &m->tokenizer));
    return m->base && !m->tokenizer ? read_tokenizer(m->base, &m->tokenizer) : AX_OK;
}

/* Reads the configuration, the headers of the weight files, and the tokenizer from m->dir. A training run may
 * rename m->dir away at any time. A file that is optional would then seem not to exist. So the last check is
 * that m->dir still exists. */
static ax_status read_model(ax_pretrained *m)
{
    if (ax_ckpt_is_adapter(m->dir))
        AX_TRY(ax_adapter_open(m->dir, &m->description, &m->base, &m->adapter));
    AX_TRY(read_parts(m));
    AX_CHECK(ax_path_exists(m->dir), AX_ERR_DATA, "%s was removed while it was read", m->dir);
    int32_t eos = m->tokenizer ? ax_tokenizer_eos(m->tokenizer) : -1;
    if (eos >= 0)
        m->identity.eos = eos;
    return eos >= 0 && !m->ends.size ? ax_ids_add(&m->ends, &eos, 1) : AX_OK;
}

/* Returns true if opening failed because m->dir was removed: a training run removes an old checkpoint after
 * it has written a newer one. */
static bool was_removed(const ax_pretrained *m, ax_status status)
{
    return status == AX_ERR_DATA && m->dir && !ax_path_exists(m->dir);
}

ax_status ax_pretrained_open(const char *model, ax_pretrained *out)
{
    for (;;) {
        *out = (ax_pretrained){0};
        ax_status status = ax_ckpt_find_model(model, &out->dir);
        if (status == AX_OK)
            status = read_model(out);
        if (status == AX_OK)
            return AX_OK;
        bool gone = was_removed(out, status);
        ax_pretrained_close(out);
        if (!gone)
            return status;
    }
}

/* Finds the model's directory. If the directory holds an adapter, also finds the directory of its base
 * model. */
static ax_status find(const char *model, ax_pretrained *out)
{
    AX_TRY(ax_ckpt_find_model(model, &out->dir));
    return ax_ckpt_is_adapter(out->dir) ? ax_adapter_find_base(out->dir, &out->base) : AX_OK;
}

/* Makes one attempt to open, on all ranks, the checkpoint that rank 0 finds. *gone: the checkpoint was
 * removed before some rank had opened it. */
static ax_status open_together(ax_comm *world, const char *model, ax_pretrained *out, bool *gone)
{
    ax_work *work;
    bool first = ax_comm_rank(world) == 0;
    AX_TRY(ax_comm_agree(world, first ? find(model, out) : AX_OK));
    AX_TRY(ax_comm_share_text(world, 0, &out->dir));
    AX_TRY(ax_comm_share_text(world, 0, &out->base));
    ax_status status = ax_comm_agree(world, read_model(out));
    int64_t missing = was_removed(out, status);
    AX_TRY(ax_all_reduce(world, NULL, &missing, 1, AX_I64, AX_MAX, &work));
    AX_TRY(ax_wait(&work));
    *gone = missing;
    return status;
}

ax_status ax_pretrained_open_shared(ax_comm *world, const char *model, ax_pretrained *out)
{
    for (;;) {
        bool gone = false;
        *out = (ax_pretrained){0};
        ax_status status = open_together(world, model, out, &gone);
        if (status == AX_OK)
            status = log_differences(world, out);
        if (status == AX_OK)
            return AX_OK;
        ax_pretrained_close(out);
        if (!gone)
            return status;
    }
}

void ax_pretrained_close(ax_pretrained *model)
{
    free(model->dir);
    free(model->base);
    ax_model_config_fini(&model->config);
    ax_tokenizer_destroy(&model->tokenizer);
    ax_ids_fini(&model->ends);
    ax_st_close(&model->weights);
    ax_st_close(&model->adapter);
    ax_st_close(&model->turns);
    free(model->loki);
    ax_adapter_fini(&model->description);
    ax_buf_fini(&model->left);
    *model = (ax_pretrained){0};
}

ax_status ax_pretrained_load(const ax_pretrained *model, ax_param_set *set)
{
    const ax_ckpt_rules rules = ax_model_ckpt_rules(&model->config);
    AX_TRY(model->weights ? ax_ckpt_read_store(set, model->weights, &rules)
                          : ax_ckpt_read_params(set, model->dir, &rules));
    if (model->adapter)
        AX_TRY(ax_ckpt_read_store(set, model->adapter, &ax_adapter_rules));
    return ax_param_set_refresh(set);
}
