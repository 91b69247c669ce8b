/* The table of model families. Reads and writes config.json, and maps parameters to arrays in weight
 * files. */
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

const char *ax_family_name(int index)
{
    return index < (int)AX_COUNT(families) ? families[index]->name : NULL;
}

/* The activations of models, with the words that configurations and config.json have for them. */
static const struct {
    const char *name;
    ax_activation kind;
} activations[] = {{"gelu_new", AX_GELU_TANH}, {"gelu", AX_GELU_EXACT}, {"silu", AX_SILU}};

const char *ax_model_activation_name(int index)
{
    return index < (int)AX_COUNT(activations) ? activations[index].name : NULL;
}

ax_activation ax_model_activation(int index) { return activations[index].kind; }

int ax_model_activation_index(ax_activation kind)
{
    int i = AX_COUNT(activations) - 1;
    while (i > 0 && activations[i].kind != kind)
        i--;
    return i;
}

const char *ax_model_config_family(const ax_model_config *config) { return config->family->name; }
const char *ax_family_prefix(const ax_family *family) { return family->prefix; }

bool ax_family_has(const ax_family *family, const char *option)
{
    for (int i = 0; i < family->n_names; i++)
        if (!strcmp(family->names[i].option, option))
            return true;
    return false;
}

ax_model_config ax_model_config_defaults(const ax_family *family)
{
    ax_model_config config = family->defaults;
    config.family = family;
    return config;
}

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
    return ax_fail(AX_ERR_USAGE, "model family \"%s\" is not implemented; the families are: %s", name, known);
}

/* ---- config.json --------------------------------------------------------------------------------- */

ax_status ax_json_int(const json_t *json, const char *path, const char *key, bool optional, int64_t *out)
{
    const json_t *value = json_object_get(json, key);
    if (optional && (!value || json_is_null(value)))
        return AX_OK;
    AX_CHECK(value, AX_ERR_DATA, "%s: the key \"%s\" is missing; its value must be a positive integer", path,
             key);
    AX_CHECK(json_is_integer(value) && json_integer_value(value) > 0, AX_ERR_DATA,
             "%s: the key \"%s\" must be a positive integer", path, key);
    *out = json_integer_value(value);
    return AX_OK;
}

ax_status ax_json_number(const json_t *json, const char *path, const char *key, bool optional, double *out)
{
    const json_t *value = json_object_get(json, key);
    if (optional && (!value || json_is_null(value)))
        return AX_OK;
    AX_CHECK(value && json_is_number(value), AX_ERR_DATA, "%s: the key \"%s\" must be a number", path, key);
    *out = json_number_value(value);
    return AX_OK;
}

ax_status ax_json_bool(const json_t *json, const char *path, const char *key, bool *out)
{
    const json_t *value = json_object_get(json, key);
    if (!value || json_is_null(value))
        return AX_OK;
    AX_CHECK(json_is_boolean(value), AX_ERR_DATA, "%s: the key \"%s\" must be true or false", path, key);
    *out = json_is_true(value);
    return AX_OK;
}

static ax_status parse(json_t *json, const char *path, ax_model_config *out)
{
    AX_CHECK(json_is_object(json), AX_ERR_DATA,
             "%s does not hold a JSON object: is it the config.json of a model?", path);
    const char *type = json_string_value(json_object_get(json, "model_type"));
    AX_CHECK(type, AX_ERR_DATA, "%s: \"model_type\" is missing: is it the config.json of a model?", path);
    if (ax_family_find(type, &out->family) != AX_OK) {
        ax_error_context("%s", path);
        return AX_ERR_DATA;
    }
    AX_TRY(ax_config_keys_check(out->family, json, path));
    *out = ax_model_config_defaults(out->family);
    AX_TRY(ax_json_bool(json, path, "tie_word_embeddings", &out->tie));
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
    if (status != AX_OK)
        ax_model_config_fini(out);
    return status;
}

/* Sets `key` to a token id, or to null if `id` is negative. If the present value of `key` is a list that
 * contains the id, keeps the list: a model may have several end-of-text tokens. */
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
    int failed = set_id(json, "bos_token_id", id->bos) | set_id(json, "eos_token_id", id->eos);
    json_object_del(json, "torch_dtype");
    failed |= json_object_set_new(json, "dtype", json_string(ax_model_dtype_name(id->dtype)));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return AX_OK;
}

/* Sets all keys of config.json that describe the network. */
static ax_status fill_network(const ax_model_config *c, json_t *json)
{
    int failed = json_object_set_new(json, "model_type", json_string(c->family->name)) |
                 json_object_set_new(json, "vocab_size", json_integer(c->vocab)) |
                 json_object_set_new(json, "tie_word_embeddings", json_boolean(c->tie));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    ax_config_keys_drop_aliases(c->family, json);
    return c->family->write(c, json);
}

static ax_status fill(const ax_model_config *c, const ax_model_identity *id, json_t *json)
{
    AX_CHECK(!json_object_set_new(json, "architectures", json_pack("[s]", c->family->architecture)),
             AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    AX_TRY(set_identity(json, id));
    return fill_network(c, json);
}

/* Keeps the digits of `source`, the text of a config.json: each value in `json` that equals the value of the
 * same key in `source` is replaced by one whose numbers print as in `source`. */
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
    AX_CHECK(status != AX_OK || !failed, AX_ERR_MEMORY,
             "not enough memory for the text of the model's config.json");
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
        AX_CHECK(json = json_object(), AX_ERR_MEMORY,
                 "not enough memory for the text of the model's config.json");
    ax_status status = fill_and_print(c, identity, json, out);
    json_decref(json);
    return status;
}

/* ---- values -------------------------------------------------------------------------------------- */

/* Finds a key of config.json in the table of the family's keys, or of those that all families have. Returns
 * NULL if neither has it. */
static const ax_family_key *find_name(const ax_family *family, const char *key)
{
    static const ax_family_key common[] = {
        {"model_type", "model.family"}, {"vocab_size", "model.vocab"}, {"tie_word_embeddings", "model.tie"}};
    for (size_t i = 0; i < AX_COUNT(common); i++)
        if (!strcmp(common[i].key, key))
            return &common[i];
    for (int i = 0; i < family->n_names; i++)
        if (!strcmp(family->names[i].key, key))
            return &family->names[i];
    return NULL;
}

static ax_status fill_values(const ax_model_config *c, json_t *network, json_t *out)
{
    const char *key;
    json_t *value;
    AX_TRY(fill_network(c, network));
    json_object_foreach(network, key, value)
    {
        const ax_family_key *name = find_name(c->family, key);
        AX_CHECK(!json_object_set(out, name ? name->option : key, value), AX_ERR_MEMORY,
                 "not enough memory for the list of the model's settings");
    }
    return AX_OK;
}

ax_status ax_model_config_values(const ax_model_config *config, ax_buf *out)
{
    json_t *network = json_object(), *values = json_object();
    ax_status status = network && values
                           ? fill_values(config, network, values)
                           : ax_fail(AX_ERR_MEMORY, "not enough memory for the list of the model's settings");
    if (status == AX_OK)
        status = ax_json_print(values, JSON_COMPACT, out);
    json_decref(network);
    json_decref(values);
    return status;
}

ax_status ax_model_config_copy(const ax_model_config *config, ax_model_config *out)
{
    *out = *config;
    /* *out must not share the strings of *config, even after an error: both are freed. */
    out->source = out->window_layers = out->experts.dense = NULL;
    out->low_rank_blocks = NULL;
    if (config->window_layers)
        AX_TRY(ax_strdup(config->window_layers, &out->window_layers));
    if (config->experts.dense)
        AX_TRY(ax_strdup(config->experts.dense, &out->experts.dense));
    AX_TRY(ax_low_rank_copy(config, out));
    return config->source ? ax_strdup(config->source, &out->source) : AX_OK;
}

void ax_model_config_fini(ax_model_config *config)
{
    free(config->source);
    free(config->window_layers);
    free(config->experts.dense);
    free(config->low_rank_blocks);
    *config = (ax_model_config){0};
}

/* ---- key maps ------------------------------------------------------------------------------------ */

void ax_key_print(const char *pattern, int block, int64_t expert, char out[AX_KEY_TEXT])
{
    enum { NUMBER = 24 }; /* room for a number */
    size_t n = 0;
    for (const char *p = pattern; *p && n < AX_KEY_TEXT - NUMBER; p++)
        if (p[0] == '%' && p[1] == 'd')
            n += (size_t)snprintf(out + n, NUMBER, "%d", block), p++;
        else if (*p == '*' && expert >= 0)
            n += (size_t)snprintf(out + n, NUMBER, "%lld", (long long)expert);
        else
            out[n++] = *p;
    out[n] = 0;
}

static ax_status name_array(const char *pattern, int block, char **out)
{
    char text[AX_KEY_TEXT];
    ax_key_print(pattern, block, -1, text);
    return ax_strdup(text, out);
}

/* Sets param->file: the name of the array in the weight files, and the part (box) of this array that holds
 * the parameter. */
static ax_status map_param(ax_param *param, const ax_key_map *row, int block)
{
    ax_param_file *file = &param->file;
    *file = (ax_param_file){.ndim = param->rest.ndim, .transpose = row->transpose};
    for (int d = 0; d < file->ndim; d++)
        file->dim[d] = param->rest.dim[row->transpose ? file->ndim - 1 - d : d];
    int out = row->transpose ? 1 : 0; /* index of the output dim in the file's array */
    file->lo[out] = row->part * file->dim[out];
    file->dim[out] *= row->parts;
    return name_array(row->key, block, &file->key);
}

/* Sets param->file for the router, or for a matrix of all experts of a block. */
static ax_status map_experts(ax_param *param, const ax_expert_key *row, int block)
{
    const int64_t *dim = param->rest.dim;
    const bool spread = param->rest.ndim == 3;
    param->file = (ax_param_file){.spread = spread ? dim[1] : 0,
                                  .part = row->part,
                                  .parts = row->parts,
                                  .ndim = 2,
                                  .dim = {dim[0], dim[spread ? 2 : 1]}};
    AX_TRY(name_array(row->key, block, &param->file.key));
    return name_array(row->fused, block, &param->file.fused);
}

bool ax_key_is(const char *name, const char *pattern, int *block)
{
    const char *hole = strstr(pattern, "%d");
    char *end;
    *block = 0;
    if (!hole)
        return !strcmp(name, pattern);
    const size_t before = (size_t)(hole - pattern);
    if (strncmp(name, pattern, before) != 0)
        return false;
    *block = (int)strtol(name + before, &end, 10);
    return end > name + before && !strcmp(end, hole + 2);
}

static ax_status map_one(ax_param *param, const ax_family *family)
{
    int block;
    for (int k = 0; k < family->n_keys; k++)
        if (ax_key_is(param->name, family->keys[k].name, &block))
            return map_param(param, &family->keys[k], block);
    for (int k = 0; k < family->n_expert_keys; k++)
        if (ax_key_is(param->name, family->expert_keys[k].name, &block))
            return map_experts(param, &family->expert_keys[k], block);
    return ax_fail(AX_ERR_INTERNAL, "the key map of the model's family has no row for parameter \"%s\"",
                   param->name);
}

ax_status ax_key_map_apply(ax_layer *root, const ax_family *family)
{
    int count = 0, filled = 0;
    ax_layer_params(root, NULL, 0, &count);
    ax_param **params;
    AX_TRY(ax_calloc((size_t)count, sizeof *params, &params));
    ax_layer_params(root, params, count, &filled);
    ax_status status = AX_OK;
    for (int i = 0; status == AX_OK && i < count; i++)
        status = map_one(params[i], family);
    free(params);
    return status;
}
