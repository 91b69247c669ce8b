/* The table of families, config.json, and key maps. */
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AX_FAMILY(name) extern const ax_family ax_family_##name;
#include "model/families.def"
#undef AX_FAMILY

static const ax_family *const families[] = {
#define AX_FAMILY(name) &ax_family_##name,
#include "model/families.def"
#undef AX_FAMILY
};

int ax_family_count(void) { return AX_COUNT(families); }
const char *ax_family_name(int index) { return families[index]->name; }
const char *ax_model_config_family(const ax_model_config *config) { return config->family->name; }
const char *ax_family_prefix(const ax_family *family) { return family->prefix; }

const char *const *ax_family_ignored(const ax_family *family, int *count)
{
    *count = family->n_ignored;
    return family->ignored;
}

void ax_family_tied(const ax_family *family, const char **head, const char **table)
{
    *head = family->head;
    *table = family->table;
}

ax_status ax_family_find(const char *name, const ax_family **out)
{
    char known[256] = "";
    for (size_t i = 0; i < AX_COUNT(families); i++) {
        if (!strcmp(families[i]->name, name)) {
            *out = families[i];
            return AX_OK;
        }
        ax_text_add(known, sizeof known, "%s%s", i ? ", " : "", families[i]->name);
    }
    return ax_fail(AX_ERR_USAGE, "model family \"%s\" is not implemented; there are: %s", name, known);
}

/* ---- config.json --------------------------------------------------------------------------------- */

ax_status ax_json_int(const json_t *json, const char *path, const char *key, bool optional, int64_t *out)
{
    const json_t *value = json_object_get(json, key);
    if (optional && (!value || json_is_null(value)))
        return AX_OK;
    AX_CHECK(value, AX_ERR_DATA, "%s: \"%s\" is missing", path, key);
    AX_CHECK(json_is_integer(value) && json_integer_value(value) > 0, AX_ERR_DATA,
             "%s: \"%s\" must be a positive integer", path, key);
    *out = json_integer_value(value);
    return AX_OK;
}

ax_status ax_json_number(const json_t *json, const char *path, const char *key, bool optional, double *out)
{
    const json_t *value = json_object_get(json, key);
    if (optional && (!value || json_is_null(value)))
        return AX_OK;
    AX_CHECK(value && json_is_number(value), AX_ERR_DATA, "%s: \"%s\" must be a number", path, key);
    *out = json_number_value(value);
    return AX_OK;
}

static ax_status parse(const json_t *json, const char *path, ax_model_config *out)
{
    AX_CHECK(json_is_object(json), AX_ERR_DATA, "%s: not a JSON object", path);
    const char *type = json_string_value(json_object_get(json, "model_type"));
    AX_CHECK(type, AX_ERR_DATA, "%s: \"model_type\" is missing: is this the config.json of a model?", path);
    if (ax_family_find(type, &out->family) != AX_OK) {
        ax_error_context("%s", path);
        return AX_ERR_DATA;
    }
    AX_TRY(out->family->read(json, path, out));
    if (ax_model_config_check(out) != AX_OK) {
        ax_error_context("%s", path);
        return AX_ERR_DATA;
    }
    return AX_OK;
}

ax_status ax_model_config_parse(const char *json, size_t size, const char *path, ax_model_config *out)
{
    *out = (ax_model_config){0};
    json_t *root;
    AX_TRY(ax_json_parse(path, json, size, JSON_REJECT_DUPLICATES, &root));
    ax_status status = parse(root, path, out);
    if (status == AX_OK)
        status = ax_strndup(json, size, &out->source);
    json_decref(root);
    return status;
}

/* Sets a token id. A list that already has the id is kept: a model may have several end-of-text tokens. */
static int set_id(json_t *json, const char *key, int64_t id)
{
    const json_t *list = json_object_get(json, key);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == id)
            return 0;
    return json_object_set_new(json, key, id >= 0 ? json_integer(id) : json_null());
}

static ax_status set_identity(json_t *json, const ax_model_identity *id)
{
    static const char *const dtypes[AX_DTYPE_COUNT] = {
        [AX_F64] = "float64", [AX_F32] = "float32", [AX_BF16] = "bfloat16", [AX_F16] = "float16"};
    int failed = set_id(json, "bos_token_id", id->bos) | set_id(json, "eos_token_id", id->eos);
    json_object_del(json, "torch_dtype");
    failed |= json_object_set_new(json, "dtype", json_string(dtypes[id->dtype]));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for config.json");
    return AX_OK;
}

static ax_status fill(const ax_model_config *c, const ax_model_identity *id, json_t *json)
{
    int failed = json_object_set_new(json, "model_type", json_string(c->family->name)) |
                 json_object_set_new(json, "architectures", json_pack("[s]", c->family->architecture)) |
                 json_object_set_new(json, "vocab_size", json_integer(c->vocab)) |
                 json_object_set_new(json, "tie_word_embeddings", json_boolean(c->tie));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for config.json");
    AX_TRY(set_identity(json, id));
    return c->family->write(c, json);
}

/* Members of `json` whose values are equal to those of the source are printed with the source's digits. */
static ax_status restore_digits(const char *source, json_t *json)
{
    json_t *before, *verbatim, *value;
    const char *key;
    int failed = 0;
    AX_TRY(ax_json_parse("config.json", source, strlen(source), 0, &before));
    ax_status status = ax_json_parse_verbatim("config.json", source, strlen(source), &verbatim);
    json_object_foreach(json, key, value) if (json_equal(value, json_object_get(before, key))) failed |=
        json_object_set(json, key, json_object_get(verbatim, key));
    json_decref(before);
    json_decref(verbatim);
    AX_CHECK(status != AX_OK || !failed, AX_ERR_MEMORY, "not enough memory for config.json");
    return status;
}

static ax_status fill_and_print(const ax_model_config *c, const ax_model_identity *id, json_t *json,
                                ax_buf *out)
{
    AX_TRY(fill(c, id, json));
    if (c->source)
        AX_TRY(restore_digits(c->source, json));
    AX_TRY(ax_json_print(json, JSON_INDENT(2) | JSON_SORT_KEYS, out));
    return ax_buf_add(out, "\n", 1);
}

ax_status ax_model_config_print(const ax_model_config *c, const ax_model_identity *identity, ax_buf *out)
{
    json_t *json = NULL;
    if (c->source)
        AX_TRY(ax_json_parse("config.json", c->source, strlen(c->source), 0, &json));
    else
        AX_CHECK(json = json_object(), AX_ERR_MEMORY, "not enough memory for config.json");
    ax_status status = fill_and_print(c, identity, json, out);
    json_decref(json);
    return status;
}

ax_status ax_model_config_copy(const ax_model_config *config, ax_model_config *out)
{
    *out = *config;
    out->source = NULL; /* if ax_strdup fails, *out must not own the source of *config */
    return config->source ? ax_strdup(config->source, &out->source) : AX_OK;
}

void ax_model_config_fini(ax_model_config *config)
{
    free(config->source);
    *config = (ax_model_config){0};
}

/* ---- key maps ------------------------------------------------------------------------------------ */

/* Sets param->file: the key and the box of the file's array that holds the parameter. */
static ax_status map_param(ax_param *param, const ax_key_map *row, int block)
{
    char key[256];
    /* A key has at most one %d, the number of the block. */
    const char *hole = strstr(row->key, "%d");
    if (hole)
        snprintf(key, sizeof key, "%.*s%d%s", (int)(hole - row->key), row->key, block, hole + 2);
    else
        snprintf(key, sizeof key, "%s", row->key);
    ax_param_file *file = &param->file;
    *file = (ax_param_file){.ndim = param->master.ndim, .transpose = row->transpose};
    for (int d = 0; d < file->ndim; d++)
        file->dim[d] = param->master.dim[row->transpose ? file->ndim - 1 - d : d];
    int out = row->transpose ? 1 : 0; /* the output dim of the file's array */
    file->lo[out] = row->part * file->dim[out];
    file->dim[out] *= row->parts;
    return ax_strdup(key, &file->key);
}

ax_status ax_key_map_apply(ax_layer *root, const ax_key_map *map, int n)
{
    int count = 0, filled = 0;
    ax_layer_params(root, NULL, 0, &count);
    ax_param **params;
    AX_TRY(ax_calloc((size_t)count, sizeof *params, &params));
    ax_layer_params(root, params, count, &filled);
    ax_status status = AX_OK;
    for (int i = 0; status == AX_OK && i < count; i++) {
        const ax_key_map *found = NULL;
        int block = 0;
        for (int k = 0; !found && k < n; k++) {
            const char *hole = strstr(map[k].name, "%d"), *name = params[i]->name;
            if (!hole) {
                found = strcmp(name, map[k].name) ? NULL : &map[k];
                continue;
            }
            size_t before = (size_t)(hole - map[k].name);
            char *end;
            if (strncmp(name, map[k].name, before))
                continue;
            block = (int)strtol(name + before, &end, 10);
            if (end > name + before && !strcmp(end, hole + 2))
                found = &map[k];
        }
        status = found ? map_param(params[i], found, block)
                       : ax_fail(AX_ERR_INTERNAL, "the key map of the model family lacks parameter \"%s\"",
                                 params[i]->name);
    }
    free(params);
    return status;
}
