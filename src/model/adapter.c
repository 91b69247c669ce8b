/* Reads and writes adapter_config.json, the description of an adapter in the format of PEFT's LoraConfig. */
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------- */

/* Returns true if a value of adapter_config.json means "not used": absent, null, false, "none", or an empty
 * list or object. */
static bool unused(const json_t *value)
{
    const char *text = json_string_value(value);
    return !value || json_is_null(value) || json_is_false(value) || (text && !strcmp(text, "none")) ||
           (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value));
}

/* Adds a line to `refused` (the list of unsupported features) if PEFT subtracts the initial values of A and B
 * from the weights of the base model when it loads the adapter. The update then does not fit the weights in
 * the base model's files. */
static ax_status refuse_changed_base(const json_t *json, ax_buf *refused)
{
    static const char *const changing[] = {"pissa", "olora", "corda", "lora_ga", "loftq"};
    const char *init = json_string_value(json_object_get(json, "init_lora_weights"));
    for (size_t i = 0; init && i < AX_COUNT(changing); i++)
        if (!strncmp(init, changing[i], strlen(changing[i])))
            return ax_buf_printf(refused,
                                 "\n  init_lora_weights: \"%.40s\" changes the base model's weights: not "
                                 "implemented (PEFT converts such adapters to ordinary ones)",
                                 init);
    return AX_OK;
}

/* Adds a line to `refused`, the text of an error message, for each feature of the adapter that is not
 * implemented. */
static ax_status refuse_features(const json_t *json, ax_buf *refused)
{
    static const struct {
        const char *key, *what;
    } features[] = {{"use_dora", "DoRA"},
                    {"bias", "biases that were trained"},
                    {"lora_bias", "biases of the factors"},
                    {"modules_to_save", "modules that were trained as a whole"},
                    {"layer_replication", "layers that occur several times"},
                    {"trainable_token_indices", "tokens whose embeddings were trained"},
                    {"target_parameters", "updates of parameters that are not matrices of modules"},
                    {"alora_invocation_tokens", "an update that begins at a token"},
                    {"arrow_config", "Arrow"},
                    {"kasa_config", "KaSA"},
                    {"monteclora_config", "MonteCLoRA"},
                    {"use_bdlora", "BD-LoRA"},
                    {"use_qalora", "QALoRA"},
                    {"velora_config", "VeLoRA"}};
    const char *type = json_string_value(json_object_get(json, "peft_type"));
    if (!type || strcmp(type, "LORA"))
        AX_TRY(ax_buf_printf(refused, "\n  peft_type is %s%s%s: only LORA is implemented", type ? "\"" : "",
                             type ? type : "missing", type ? "\"" : ""));
    for (size_t i = 0; i < AX_COUNT(features); i++)
        if (!unused(json_object_get(json, features[i].key)))
            AX_TRY(ax_buf_printf(refused, "\n  %s: %s: not implemented", features[i].key, features[i].what));
    return refuse_changed_base(json, refused);
}

/* Checks that each member of the JSON object `key` (alpha_pattern or rank_pattern) is the name of a module
 * with a number. PEFT reads the names as regular expressions, which are not implemented. Adds a line to
 * `refused`, the text of an error message, for each other member. */
static ax_status check_patterns(const json_t *json, const char *key, ax_buf *refused)
{
    const char *pattern, *letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    const json_t *patterns = json_object_get(json, key);
    json_t *value;
    if (!unused(patterns) && !json_is_object(patterns))
        return ax_buf_printf(refused, "\n  %s: the value must be a JSON object of module names and numbers",
                             key);
    json_object_foreach((json_t *)patterns, pattern, value)
    {
        if (pattern[strspn(pattern, letters)])
            AX_TRY(ax_buf_printf(
                refused,
                "\n  %s: %.100s is not the name of a module, and regular expressions are not implemented",
                key, pattern));
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
    ax_status status = refuse_features(out->json, &refused);
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

/* Returns the number that `key` (alpha_pattern or rank_pattern) gives for a module, or `other` if `key` does
 * not name the module. PEFT's patterns are regular expressions, but the patterns that PEFT itself writes are
 * plain names. */
static double of_module(const ax_adapter *adapter, const char *key, const char *module, double other)
{
    const char *pattern;
    json_t *value;
    json_object_foreach(json_object_get(adapter->json, key), pattern, value)
    {
        if (ax_module_matches(module, pattern))
            return json_number_value(value);
    }
    return other;
}

double ax_adapter_scale(const ax_adapter *adapter, const char *module, int64_t rank)
{
    double alpha = of_module(adapter, "alpha_pattern", module, adapter->alpha);
    return alpha / (adapter->root ? sqrt((double)rank) : (double)rank);
}

int64_t ax_adapter_rank(const ax_adapter *adapter, const char *module)
{
    return llround(of_module(adapter, "rank_pattern", module, (double)adapter->rank));
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* Returns a value as a JSON number, which is an integer if the value has no fraction. */
static json_t *number(double value)
{
    return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value) : json_real(value);
}

/* Returns the index of the first matrix that has a low-rank update. */
static int first_matrix(const ax_model_config *c)
{
    int i = 0;
    while (!c->low_rank[i].rank)
        i++;
    return i;
}

/* Adds to `modules` the module of each matrix that has an update. If a module's rank differs from `rank`,
 * adds the module's rank to `ranks` and its alpha to `alphas`. Returns nonzero if memory is short. */
static int list_modules(const ax_model_config *c, int64_t rank, json_t *modules, json_t *ranks,
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
            sum += same ? c->low_rank[k].rank : 0;
            seen |= same && k < i;
        }
        if (seen)
            continue;
        failed |= json_array_append_new(modules, json_string(name));
        if (sum != rank) {
            failed |= json_object_set_new(ranks, name, json_integer(sum));
            failed |= json_object_set_new(alphas, name, number(c->low_rank[i].scale * (double)sum));
        }
    }
    return failed;
}

ax_status ax_adapter_print(const ax_model_config *c, const char *base, ax_buf *out)
{
    json_t *modules = json_array(), *ranks = json_object(), *alphas = json_object();
    const ax_low_rank *first = &c->low_rank[first_matrix(c)];
    int failed = list_modules(c, first->rank, modules, ranks, alphas);
    bool transposed = ax_family_is_transposed(c->family, (ax_matrix)first_matrix(c));
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:I, s:o, s:f, s:s, s:b, s:o, s:o, s:o, s:b, s:b, s:n, s:b, s:b}",
                  "peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r",
                  (json_int_t)first->rank, "lora_alpha", number(first->scale * (double)first->rank),
                  "lora_dropout", 0.0, "bias", "none", "fan_in_fan_out", transposed, "target_modules",
                  modules, "rank_pattern", ranks, "alpha_pattern", alphas, "use_rslora", 0, "use_dora", 0,
                  "modules_to_save", "inference_mode", 1, "init_lora_weights", 1);
    ax_status status =
        json && !failed
            ? ax_json_print(json, JSON_INDENT(2) | JSON_SORT_KEYS, out)
            : ax_fail(AX_ERR_MEMORY, "not enough memory for the text of the adapter's adapter_config.json");
    json_decref(json);
    AX_TRY(status);
    return ax_buf_add(out, "\n", 1);
}
