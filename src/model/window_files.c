/* The keys of config.json that are about sliding-window attention. */
#include "model/llama_files.h"

#include <stdlib.h>
#include <string.h>

/* Sets c->window_layers ("1" for each layer with a window, else "0") from the list layer_types. `lacks` says
 * why a model whose c->window is 0 has no window. As in transformers, "attention" is an old name of
 * full_attention. */
static ax_status read_types(const json_t *types, const char *path, const char *lacks, ax_model_config *c)
{
    AX_CHECK(json_is_array(types) && (int64_t)json_array_size(types) == c->layers, AX_ERR_DATA,
             "%s: \"layer_types\" must be a list of %lld words, one for each layer", path,
             (long long)c->layers);
    for (int64_t i = 0; i < c->layers; i++) {
        const char *word = json_string_value(json_array_get(types, (size_t)i));
        bool window = word && !strcmp(word, "sliding_attention");
        AX_CHECK(window || (word && (!strcmp(word, "full_attention") || !strcmp(word, "attention"))),
                 AX_ERR_DATA,
                 "%s: layer_types[%lld] = \"%s\" is not implemented; use full_attention or sliding_attention",
                 path, (long long)i, word ? word : "(not a string)");
        AX_CHECK(!window || c->window, AX_ERR_DATA, "%s: layer_types[%lld] is sliding_attention, but %s",
                 path, (long long)i, lacks);
        c->window_layers[i] = window ? '1' : '0';
    }
    return AX_OK;
}

/* Sets c->window_layers from max_window_layers: the first max_window_layers layers have no window, all later
 * layers have one (none if c->window is 0). As in transformers, a number below 0 means 0. */
static ax_status read_first(const json_t *json, const char *path, ax_model_config *c)
{
    const json_t *value = json_object_get(json, "max_window_layers");
    AX_CHECK(!value || !c->window || json_is_integer(value), AX_ERR_DATA,
             "%s: \"max_window_layers\" must be an integer", path);
    int64_t first = value ? json_integer_value(value) : 28; /* the default of transformers */
    for (int64_t i = 0; i < c->layers; i++)
        c->window_layers[i] = c->window && i >= first ? '1' : '0';
    return AX_OK;
}

/* Sets c->window_layers by read_types or read_first (NULL if all layers are alike), and c->window to 0 if no
 * layer has a window. */
static ax_status read_layers(const json_t *json, const char *path, const char *lacks, ax_model_config *c)
{
    const json_t *types = json_object_get(json, "layer_types");
    AX_CHECK(c->layers <= AX_LAYERS_MAX, AX_ERR_DATA, "%s: num_hidden_layers = %lld is above the maximum, %d",
             path, (long long)c->layers, AX_LAYERS_MAX);
    AX_TRY(ax_calloc((size_t)c->layers + 1, 1, &c->window_layers));
    AX_TRY(types && !json_is_null(types) ? read_types(types, path, lacks, c) : read_first(json, path, c));
    bool all = !strchr(c->window_layers, '0'), none = !strchr(c->window_layers, '1');
    if (none)
        c->window = 0;
    if (all || none) {
        free(c->window_layers);
        c->window_layers = NULL;
    }
    return AX_OK;
}

ax_status ax_qwen_read(const json_t *json, const char *path, ax_model_config *c)
{
    bool used = false;
    AX_TRY(ax_llama_read(json, path, c));
    AX_TRY(ax_json_bool(json, path, "use_sliding_window", &used));
    c->window = 0;
    if (used && !json_is_null(json_object_get(json, "sliding_window"))) {
        c->window = 4096; /* the default of transformers */
        AX_TRY(ax_json_int(json, path, "sliding_window", true, &c->window));
    }
    return read_layers(json, path,
                       "use_sliding_window is not true or sliding_window is null: set both, or use "
                       "full_attention",
                       c);
}

ax_status ax_qwen_moe_window_read(const json_t *json, const char *path, ax_model_config *c)
{
    bool used = false;
    AX_TRY(ax_json_bool(json, path, "use_sliding_window", &used));
    c->window = used && !json_is_null(json_object_get(json, "sliding_window")) ? 4096 : 0;
    if (c->window)
        AX_TRY(ax_json_int(json, path, "sliding_window", true, &c->window));
    return AX_OK;
}

ax_status ax_mistral_window_read(const json_t *json, const char *path, ax_model_config *c)
{
    const json_t *types = json_object_get(json, "layer_types");
    c->window = json_is_null(json_object_get(json, "sliding_window")) ? 0 : 4096;
    AX_TRY(ax_json_int(json, path, "sliding_window", true, &c->window));
    if (!types || json_is_null(types))
        return AX_OK;
    return read_layers(json, path, "sliding_window is null: set it, or use full_attention", c);
}

ax_status ax_llama_window_read(const json_t *json, const char *path, ax_model_config *c)
{
    const json_t *types = json_object_get(json, "layer_types");
    if (!types || json_is_null(types))
        return AX_OK;
    return read_layers(json, path,
                       "models of family llama have no window: use full_attention, or the model_type whose "
                       "models have one",
                       c);
}

/* ---- writing ------------------------------------------------------------------------------------- */

static json_t *types_of(const ax_model_config *c)
{
    json_t *types = json_array();
    for (int64_t i = 0; i < c->layers; i++)
        json_array_append_new(
            types, json_string(ax_model_config_window(c, i) ? "sliding_attention" : "full_attention"));
    return types;
}

ax_status ax_qwen_write(const ax_model_config *c, json_t *json)
{
    int failed = json_object_set_new(json, "use_sliding_window", json_boolean(c->window > 0));
    if (!c->window) { /* no window: an existing value of sliding_window is kept */
        json_object_del(json, "layer_types");
        if (!json_object_get(json, "sliding_window"))
            failed |= json_object_set_new(json, "sliding_window", json_null());
    } else {
        int64_t first = c->window_layers ? (int64_t)strspn(c->window_layers, "0") : 0;
        failed |= json_object_set_new(json, "sliding_window", json_integer(c->window)) |
                  json_object_set_new(json, "max_window_layers", json_integer(first)) |
                  json_object_set_new(json, "layer_types", types_of(c));
    }
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return ax_llama_write(c, json);
}

ax_status ax_qwen_moe_window_write(const ax_model_config *c, json_t *json)
{
    int failed = json_object_set_new(json, "use_sliding_window", json_boolean(c->window > 0));
    json_object_del(json, "layer_types");
    if (c->window)
        failed |= json_object_set_new(json, "sliding_window", json_integer(c->window));
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return AX_OK;
}

/* Without layer_types all layers have the window: the key is written only if some have none. */
ax_status ax_mistral_window_write(const ax_model_config *c, json_t *json)
{
    int failed =
        json_object_set_new(json, "sliding_window", c->window ? json_integer(c->window) : json_null());
    if (c->window_layers)
        failed |= json_object_set_new(json, "layer_types", types_of(c));
    else
        json_object_del(json, "layer_types");
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return AX_OK;
}
