/* Decides, as PEFT does, which modules of a model an adapter_config.json means: the names and regular
 * expressions of target_modules, exclude_modules, rank_pattern and alpha_pattern, and the layers of
 * layers_to_transform. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/family.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets *out to whether the regular expression before·(pattern)·after matches the whole of `text`, and *layer
 * to the number that its last group found, if `layer` is not NULL. AX_ERR_DATA if the expression is not
 * valid, or too expensive. */
static ax_status matches(const char *before, const char *pattern, const char *after, const char *text,
                         bool *out, int64_t *layer)
{
    ax_buf whole = {0};
    int error = 0;
    PCRE2_SIZE at;
    *out = false;
    AX_TRY(ax_buf_printf(&whole, "%s(?:%s)%s", before, pattern, after));
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)whole.data, whole.size, PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                                     &error, &at, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *found = code ? pcre2_match_data_create_from_pattern(code, NULL) : NULL;
    int rc = PCRE2_ERROR_NOMEMORY;
    if (context && found) {
        pcre2_set_match_limit(context, 100000);
        rc = pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, 0, found, context);
    }
    *out = rc >= 0;
    if (rc > 1 && layer)
        *layer = strtoll(text + pcre2_get_ovector_pointer(found)[2 * (rc - 1)], NULL, 10);
    pcre2_match_data_free(found);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
    ax_buf_fini(&whole);
    AX_CHECK(rc >= 0 || rc == PCRE2_ERROR_NOMATCH, AX_ERR_DATA,
             "adapter_config.json: the regular expression \"%.100s\" %s", pattern,
             code ? "takes too long to match" : "is not valid");
    return AX_OK;
}

/* ---- which modules have factors ------------------------------------------------------------------ */

/* Sets *out to whether `names`, a list of names or a regular expression, means the module. *exact: the list
 * has the module's whole name. */
static ax_status is_named(const json_t *names, const char *module, bool *out, bool *exact)
{
    size_t i;
    json_t *name;
    *out = *exact = false;
    if (json_is_string(names))
        return matches("", json_string_value(names), "", module, out, NULL);
    json_array_foreach((json_t *)names, i, name)
    {
        const char *text = json_string_value(name);
        *out |= text && ax_module_matches(module, text);
        *exact |= text && !strcmp(module, text);
    }
    return AX_OK;
}

/* Sets *layer to the number of the module's layer, as layers_pattern finds it; -1: none. */
static ax_status find_layer(const json_t *pattern, const char *module, int64_t *layer)
{
    bool found = false;
    size_t n = json_is_array(pattern) ? json_array_size(pattern) : json_string_length(pattern) > 0;
    *layer = -1;
    if (!n)
        return matches("", ".*?\\.[^.]*", "\\.(\\d+)\\..*", module, &found, layer);
    for (size_t i = 0; i < n && !found; i++) {
        const char *text = json_string_value(json_is_array(pattern) ? json_array_get(pattern, i) : pattern);
        if (text)
            AX_TRY(matches("(?:.*?\\.)?", text, "\\.(\\d+)\\..*", module, &found, layer));
    }
    return AX_OK;
}

/* Sets *out to whether layers_to_transform allows the module. */
static ax_status is_in_layers(const json_t *json, const char *module, bool *out)
{
    const json_t *layers = json_object_get(json, "layers_to_transform");
    size_t i;
    json_t *one;
    int64_t layer;
    *out = !json_is_integer(layers) && !json_array_size(layers);
    if (*out)
        return AX_OK;
    AX_TRY(find_layer(json_object_get(json, "layers_pattern"), module, &layer));
    *out = json_is_integer(layers) && json_integer_value(layers) == layer;
    json_array_foreach((json_t *)layers, i, one)
    {
        *out |= json_is_integer(one) && json_integer_value(one) == layer;
    }
    return AX_OK;
}

ax_status ax_adapter_targets(const ax_adapter *adapter, const char *module, bool *out)
{
    const json_t *targets = json_object_get(adapter->json, "target_modules");
    const char *text = json_string_value(targets);
    bool excluded, exact;
    AX_TRY(is_named(json_object_get(adapter->json, "exclude_modules"), module, &excluded, &exact));
    *out = !excluded;
    if (excluded || !targets || json_is_null(targets))
        return AX_OK;
    if (text && !strcmp(text, "all-linear")) { /* but the output layer */
        int64_t layer;
        AX_TRY(find_layer(NULL, module, &layer));
        *out = layer >= 0;
        return AX_OK;
    }
    AX_TRY(is_named(targets, module, out, &exact));
    return *out && !exact && !text ? is_in_layers(adapter->json, module, out) : AX_OK;
}

/* ---- ranks and scales ---------------------------------------------------------------------------- */

ax_status ax_adapter_of_module(const ax_adapter *adapter, const char *key, const char *module, double *value)
{
    const char *pattern;
    json_t *number;
    bool found = false;
    json_object_foreach(json_object_get(adapter->json, key), pattern, number)
    {
        AX_TRY(matches("(?:.*\\.)?", pattern, "", module, &found, NULL));
        if (found) {
            *value = json_number_value(number);
            return AX_OK;
        }
    }
    return AX_OK;
}
