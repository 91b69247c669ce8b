/* Reads and writes adapter_config.json, the description of an adapter in the format of PEFT's LoraConfig. */
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------- */

/* Adds a line to `refused`, the text of an error message, for each member of the JSON object `key`
 * (alpha_pattern or rank_pattern) that is not a number. */
static ax_status check_patterns(const json_t *json, const char *key, ax_buf *refused)
{
    const char *pattern;
    json_t *value;
    json_object_foreach(json_object_get(json, key), pattern, value)
    {
        if (!json_is_number(value))
            AX_TRY(ax_buf_printf(refused, "\n  %s: the value of %.100s is not a number", key, pattern));
    }
    return AX_OK;
}

static ax_status parse(const char *path, ax_adapter *out)
{
    ax_buf refused = {0};
    const json_t *base;
    AX_CHECK(json_is_object(out->json), AX_ERR_DATA,
             "%s does not hold a JSON object: is it the adapter_config.json that PEFT wrote?", path);
    ax_status status = ax_adapter_check_members(out->json, &refused);
    if (status == AX_OK)
        status = check_patterns(out->json, "alpha_pattern", &refused);
    if (status == AX_OK)
        status = check_patterns(out->json, "rank_pattern", &refused);
    if (status == AX_OK && refused.size)
        status = ax_fail(AX_ERR_DATA,
                         "%s describes an adapter that cannot be used:%s\nIf PEFT can merge the adapter into "
                         "its base, use the merged model.",
                         path, refused.data);
    ax_buf_fini(&refused);
    AX_TRY(status);
    base = json_object_get(out->json, "base_model_name_or_path");
    AX_CHECK(json_string_length(base), AX_ERR_DATA,
             "%s: \"base_model_name_or_path\" is missing: set it to the directory of the adapter's base",
             path);
    AX_TRY(ax_json_int(out->json, path, "r", false, &out->rank));
    AX_TRY(ax_json_number(out->json, path, "lora_alpha", false, &out->alpha));
    out->dropout = json_number_value(json_object_get(out->json, "lora_dropout"));
    out->root = json_is_true(json_object_get(out->json, "use_rslora"));
    return ax_strdup(json_string_value(base), &out->base);
}

ax_status ax_adapter_parse(const char *text, size_t size, const char *path, ax_adapter *out)
{
    *out = (ax_adapter){0};
    AX_TRY(ax_json_parse(path, text, size, JSON_REJECT_DUPLICATES, &out->json));
    ax_status status = parse(path, out);
    if (status != AX_OK)
        ax_adapter_fini(out);
    return status;
}

void ax_adapter_fini(ax_adapter *adapter)
{
    json_decref(adapter->json);
    free(adapter->base);
    *adapter = (ax_adapter){0};
}

double ax_low_rank_scale(double alpha, double rank, bool root) { return alpha / (root ? sqrt(rank) : rank); }

ax_status ax_adapter_update(const ax_adapter *adapter, const char *module, ax_low_rank *out)
{
    double rank = (double)adapter->rank, alpha = adapter->alpha;
    AX_TRY(ax_adapter_of_module(adapter, "rank_pattern", module, &rank));
    AX_TRY(ax_adapter_of_module(adapter, "alpha_pattern", module, &alpha));
    AX_CHECK(rank >= 1 && rank <= INT32_MAX && rank == floor(rank), AX_ERR_DATA,
             "adapter_config.json (rank_pattern) gives %s rank %g, which is not a positive integer", module,
             rank);
    *out = (ax_low_rank){.rank = (int64_t)rank, .scale = ax_low_rank_scale(alpha, rank, adapter->root)};
    return AX_OK;
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* Returns a value as a JSON number, which is an integer if the value has no fraction. */
static json_t *number(double value)
{
    return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value) : json_real(value);
}

/* Returns the alpha that gives an update of this rank this scale: of several such numbers the one that a user
 * would write, with the fewest digits. */
static double alpha_of(const ax_model_config *c, double scale, int64_t rank)
{
    const double alpha = scale * (c->low_rank_root ? sqrt((double)rank) : (double)rank);
    char text[32];
    snprintf(text, sizeof text, "%.12g", alpha);
    const double rounded = strtod(text, NULL);
    return ax_low_rank_scale(rounded, (double)rank, c->low_rank_root) == scale ? rounded : alpha;
}

/* Returns the index of the first matrix that has a low-rank update. */
static int first_matrix(const ax_model_config *c)
{
    int i = 0;
    while (!c->low_rank[i].rank)
        i++;
    return i;
}

/* Adds to `modules` the module of each matrix that has an update; if its rank differs from `rank`, to `ranks`
 * its rank; if its alpha differs from `alpha`, to `alphas` its alpha. Returns nonzero if memory is short. */
static int list_modules(const ax_model_config *c, int64_t rank, double alpha, json_t *modules, json_t *ranks,
                        json_t *alphas)
{
    int failed = 0;
    for (int i = 0; i < AX_MATRIX_COUNT; i++) {
        int64_t sum = 0;
        bool seen = false;
        if (!c->low_rank[i].rank)
            continue;
        char name[256], other[256];
        ax_family_module(c->family, (ax_matrix)i, name);
        for (int k = 0; k < AX_MATRIX_COUNT; k++) {
            if (!c->low_rank[k].rank)
                continue;
            ax_family_module(c->family, (ax_matrix)k, other);
            bool same = !strcmp(other, name);
            sum += same && (!sum || !c->low_rank_shared) ? c->low_rank[k].rank : 0;
            seen |= same && k < i;
        }
        if (seen)
            continue;
        failed |= json_array_append_new(modules, json_string(name));
        const double own = alpha_of(c, c->low_rank[i].scale, sum);
        if (sum != rank)
            failed |= json_object_set_new(ranks, name, json_integer(sum));
        if (own != alpha)
            failed |= json_object_set_new(alphas, name, number(own));
    }
    return failed;
}

ax_status ax_adapter_print(const ax_model_config *c, const char *base, ax_buf *out)
{
    json_t *modules = json_array(), *ranks = json_object(), *alphas = json_object();
    const ax_low_rank *first = &c->low_rank[first_matrix(c)];
    const double alpha = alpha_of(c, first->scale, first->rank);
    int failed = list_modules(c, first->rank, alpha, modules, ranks, alphas);
    bool transposed = ax_family_is_transposed(c->family, (ax_matrix)first_matrix(c));
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:o, s:f, s:s, s:b, s:o, s:o, s:o, s:b, s:b, s:n, s:b, s:b}", "peft_type",
        "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r", (json_int_t)first->rank,
        "lora_alpha", number(alpha), "lora_dropout", first->dropout, "bias", "none", "fan_in_fan_out",
        transposed, "target_modules", modules, "rank_pattern", ranks, "alpha_pattern", alphas, "use_rslora",
        c->low_rank_root, "use_dora", 0, "modules_to_save", "inference_mode", 1, "init_lora_weights", 1);
    ax_status status =
        json && !failed
            ? ax_json_print(json, JSON_INDENT(2) | JSON_SORT_KEYS, out)
            : ax_fail(AX_ERR_MEMORY, "not enough memory for the text of the adapter's adapter_config.json");
    json_decref(json);
    AX_TRY(status);
    return ax_buf_add(out, "\n", 1);
}
