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

/* Sets *out to the update of the module that holds a matrix of block `block`; its rank is the sum of the
 * ranks of the module's matrices, unless they share factor A. Returns false if the matrix has no update, or
 * if an earlier matrix that has one is in the same module. */
static bool module_update(const ax_model_config *c, ax_matrix matrix, int64_t block, ax_low_rank *out)
{
    char name[256], other[256];
    *out = (ax_low_rank){0};
    if (!ax_model_config_update(c, matrix, block)->rank)
        return false;
    ax_family_matrix_key(c->family, matrix, block, name);
    for (int k = 0; k < AX_MATRIX_COUNT; k++) {
        const ax_low_rank *update = ax_model_config_update(c, (ax_matrix)k, block);
        if (!update->rank) /* the family may not have the matrix */
            continue;
        ax_family_matrix_key(c->family, (ax_matrix)k, block, other);
        if (strcmp(name, other) != 0)
            continue;
        if (k < (int)matrix)
            return false;
        int64_t sum = (c->low_rank_shared ? 0 : out->rank) + update->rank;
        *out = *update;
        out->rank = sum;
    }
    return out->rank > 0;
}

static bool same_update(const ax_low_rank *a, const ax_low_rank *b)
{
    return a->rank == b->rank && a->scale == b->scale;
}

/* Returns true if the module that holds the matrix has the same update in all blocks. */
static bool is_alike(const ax_model_config *c, ax_matrix matrix)
{
    ax_low_rank first, here;
    bool alike = true, has = module_update(c, matrix, 0, &first);
    for (int64_t block = 1; block < ax_model_config_matrix_count(c, matrix); block++)
        alike &= module_update(c, matrix, block, &here) == has && same_update(&first, &here);
    return alike;
}

/* The members of adapter_config.json that say which modules have updates, and of which rank and scale.
 * `usual`: the update of the first matrix that has one; the members r and lora_alpha give its rank and scale
 * to all modules that the patterns do not name. */
typedef struct description {
    json_t *modules, *ranks, *alphas;
    ax_low_rank usual;
    int failed;
} description;

static void add_module(const ax_model_config *c, description *d, const char *name, const ax_low_rank *update)
{
    d->failed |= json_array_append_new(d->modules, json_string(name));
    const double own = alpha_of(c, update->scale, update->rank);
    if (update->rank != d->usual.rank)
        d->failed |= json_object_set_new(d->ranks, name, json_integer(update->rank));
    if (own != alpha_of(c, d->usual.scale, d->usual.rank))
        d->failed |= json_object_set_new(d->alphas, name, number(own));
}

/* Adds the modules that have updates: by the name within a block if all blocks have the same update, else by
 * the whole names. */
static void list_modules(const ax_model_config *c, description *d)
{
    ax_low_rank update;
    char name[256];
    for (int i = 0; i < AX_MATRIX_COUNT; i++) {
        bool alike = is_alike(c, (ax_matrix)i);
        int64_t n = alike ? 1 : ax_model_config_matrix_count(c, (ax_matrix)i);
        for (int64_t block = 0; block < n; block++) {
            if (!module_update(c, (ax_matrix)i, block, &update))
                continue;
            if (!d->usual.rank)
                d->usual = *ax_model_config_update(c, (ax_matrix)i, block);
            ax_family_matrix_key(c->family, (ax_matrix)i, block, name);
            name[strlen(name) - strlen(".weight")] = 0;
            if (alike)
                ax_family_module(c->family, (ax_matrix)i, name);
            add_module(c, d, name, &update);
        }
    }
}

ax_status ax_adapter_print(const ax_model_config *c, const char *base, ax_buf *out)
{
    description d = {.modules = json_array(), .ranks = json_object(), .alphas = json_object()};
    list_modules(c, &d);
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:o, s:f, s:s, s:b, s:o, s:o, s:o, s:b, s:b, s:n, s:b, s:b}", "peft_type",
        "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r", (json_int_t)d.usual.rank,
        "lora_alpha", number(alpha_of(c, d.usual.scale, d.usual.rank)), "lora_dropout", d.usual.dropout,
        "bias", "none", "fan_in_fan_out", ax_family_is_transposed(c->family, AX_MATRIX_Q), "target_modules",
        d.modules, "rank_pattern", d.ranks, "alpha_pattern", d.alphas, "use_rslora", c->low_rank_root,
        "use_dora", 0, "modules_to_save", "inference_mode", 1, "init_lora_weights", 1);
    ax_status status =
        json && !d.failed
            ? ax_json_print(json, JSON_INDENT(2) | JSON_SORT_KEYS, out)
            : ax_fail(AX_ERR_MEMORY, "not enough memory for the text of the adapter's adapter_config.json");
    json_decref(json);
    AX_TRY(status);
    return ax_buf_add(out, "\n", 1);
}
