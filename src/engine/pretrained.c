/* A model directory as inference wants it: configuration, tokenizer, weights. */
#include "axonn/ckpt.h"
#include "axonn/engine.h"
#include "axonn/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Appends the ids of a key that holds one, a list of them, or null. */
static ax_status read_ids(const json_t *json, const char *path, const char *key, ax_ids *out)
{
    const json_t *value = json_object_get(json, key);
    size_t n = json_is_array(value) ? json_array_size(value) : value && !json_is_null(value);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        AX_CHECK(json_is_integer(item) && json_integer_value(item) <= INT32_MAX, AX_ERR_DATA,
                 "%s: \"%s\" must be a token id or a list of them", path, key);
        int32_t id = (int32_t)json_integer_value(item);
        if (json_integer_value(item) >= 0) /* some write -1 for none */
            AX_TRY(ax_ids_add(out, &id, 1));
    }
    return AX_OK;
}

/* The first id of a key, or -1. */
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

/* Where generation ends is said by generation_config.json first, as in transformers. */
static ax_status read_generation(const char *dir, ax_pretrained *out)
{
    char *path;
    json_t *json = NULL;
    AX_TRY(ax_path_join(dir, "generation_config.json", &path));
    bool there = ax_path_exists(path);
    ax_status status = there ? ax_json_read_file(path, 0, &json) : AX_OK;
    if (status == AX_OK && there && !json_is_object(json))
        status = ax_fail(AX_ERR_DATA, "%s: not a JSON object", path);
    if (status == AX_OK)
        status = read_ids(json, path, "eos_token_id", &out->ends);
    json_decref(json);
    free(path);
    return status;
}

enum { CONFIG_MOST = 16 << 20 }; /* bytes of a config.json */

static ax_status read_config(const char *dir, ax_pretrained *out)
{
    char *path, *text = NULL;
    size_t size;
    AX_TRY(ax_path_join(dir, "config.json", &path));
    ax_status status = ax_file_read_most(path, CONFIG_MOST, &text, &size);
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

/* A head in the files that is not the table which config.json ties it to is one of its own, as transformers
 * takes it. */
static ax_status find_head(ax_pretrained *m)
{
    const char *head, *table;
    bool same = true;
    ax_family_tied(m->config.family, &head, &table);
    if (m->config.tie && ax_ckpt_has_weights(m->dir))
        AX_TRY(ax_ckpt_same_arrays(m->dir, head, table, ax_family_prefix(m->config.family), &same));
    if (!same) {
        m->config.tie = false;
        ax_log(AX_LOG_INFO,
               "%s: %s differs from %s, to which config.json ties it: it is read as an untied head "
               "(tie_word_embeddings: false)",
               m->dir, head, table);
    }
    return AX_OK;
}

/* Loads the tokenizer if the directory has one. */
static ax_status read_tokenizer(const char *dir, ax_tokenizer **out)
{
    static const char *const files[] = {"tokenizer.json", "vocab.json"};
    bool there = false;
    for (size_t i = 0; i < AX_COUNT(files); i++) {
        char *path;
        AX_TRY(ax_path_join(dir, files[i], &path));
        there = there || ax_path_exists(path);
        free(path);
    }
    return there ? ax_tokenizer_load(dir, out) : AX_OK;
}

ax_status ax_pretrained_open(const char *model, ax_pretrained *out)
{
    *out = (ax_pretrained){0};
    ax_status status = ax_ckpt_find_model(model, &out->dir);
    if (status == AX_OK)
        status = read_generation(out->dir, out);
    if (status == AX_OK)
        status = read_config(out->dir, out);
    if (status == AX_OK)
        status = find_head(out);
    if (status == AX_OK)
        status = read_tokenizer(out->dir, &out->tokenizer);
    int32_t eos = out->tokenizer ? ax_tokenizer_eos(out->tokenizer) : -1;
    if (eos >= 0)
        out->identity.eos = eos;
    if (status == AX_OK && eos >= 0 && !out->ends.size)
        status = ax_ids_add(&out->ends, &eos, 1);
    if (status != AX_OK)
        ax_pretrained_close(out);
    return status;
}

void ax_pretrained_close(ax_pretrained *model)
{
    free(model->dir);
    ax_model_config_fini(&model->config);
    ax_tokenizer_destroy(&model->tokenizer);
    ax_ids_fini(&model->ends);
    *model = (ax_pretrained){0};
}

ax_status ax_pretrained_load(const ax_pretrained *model, ax_param_set *set)
{
    ax_ckpt_rules rules = {.prefix = ax_family_prefix(model->config.family)};
    rules.ignore = ax_family_ignored(model->config.family, &rules.ignores);
    AX_TRY(ax_ckpt_read_params(set, model->dir, &rules));
    return ax_param_set_refresh(set);
}
