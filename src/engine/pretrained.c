/* A model directory as inference wants it: configuration, tokenizer, weights. */
#include "axonn/ckpt.h"
#include "axonn/engine.h"
#include "axonn/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* A token id: an integer, the first of a list of them, or none. */
static int64_t token_id(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    if (json_is_array(value))
        value = json_array_get(value, 0);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static ax_status read_config(const char *dir, ax_pretrained *out)
{
    char *path, *text = NULL;
    size_t size;
    AX_TRY(ax_path_join(dir, "config.json", &path));
    ax_status status = ax_file_read(path, &text, &size);
    if (status == AX_OK)
        status = ax_model_config_parse(text, size, path, &out->config);
    if (status == AX_OK) {
        json_t *json;
        status = ax_json_parse(path, text, size, 0, &json);
        out->identity =
            (ax_model_identity){token_id(json, "bos_token_id"), token_id(json, "eos_token_id"), AX_F32};
        json_decref(json);
    }
    free(text);
    free(path);
    return status;
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
        status = read_config(out->dir, out);
    if (status == AX_OK)
        status = read_tokenizer(out->dir, &out->tokenizer);
    if (status == AX_OK && out->tokenizer && ax_tokenizer_eos(out->tokenizer) >= 0)
        out->identity.eos = ax_tokenizer_eos(out->tokenizer);
    if (status != AX_OK)
        ax_pretrained_close(out);
    return status;
}

void ax_pretrained_close(ax_pretrained *model)
{
    free(model->dir);
    ax_model_config_fini(&model->config);
    ax_tokenizer_destroy(&model->tokenizer);
    *model = (ax_pretrained){0};
}

ax_status ax_pretrained_load(const ax_pretrained *model, ax_param_set *set)
{
    ax_ckpt_rules rules = {.prefix = ax_family_prefix(model->config.family)};
    rules.ignore = ax_family_ignored(model->config.family, &rules.ignores);
    AX_TRY(ax_ckpt_read_params(set, model->dir, &rules));
    return ax_param_set_refresh(set);
}
