/* Reads and writes the rotary embedding in config.json, which has two forms: {"rope_theta": …,
 * "rope_scaling": {…}}, and since transformers 5 {"rope_parameters": {"rope_theta": …, …}}. */
#include "model/llama_files.h"

#include <string.h>

static const char *const kinds[] = {[AX_ROPE_DEFAULT] = "default",
                                    [AX_ROPE_LINEAR] = "linear",
                                    [AX_ROPE_DYNAMIC] = "dynamic",
                                    [AX_ROPE_LLAMA3] = "llama3",
                                    [AX_ROPE_YARN] = "yarn"};

/* Sets *out to the object that holds the parameters of the rotary embedding, rope_scaling or rope_parameters,
 * or to NULL if there is none. As in transformers, rope_scaling is used if both are given. */
static ax_status find_parameters(const json_t *json, const char *path, const json_t **out)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    *out = NULL;
    for (size_t i = 0; i < AX_COUNT(names) && !*out; i++) {
        const json_t *value = json_object_get(json, names[i]), *member;
        const char *key;
        AX_CHECK(!value || json_is_null(value) || json_is_object(value), AX_ERR_DATA,
                 "%s: \"%s\" must be a JSON object or null", path, names[i]);
        json_object_foreach((json_t *)value, key, member)
            AX_CHECK(!json_is_object(member), AX_ERR_DATA,
                     "%s: a separate %s for layers of type %s is not implemented", path, names[i], key);
        *out = json_object_size(value) ? value : NULL;
    }
    return AX_OK;
}

static ax_status read_kind(const json_t *parameters, const char *path, ax_rope_kind *out)
{
    const json_t *value = json_object_get(parameters, "rope_type");
    value =
        value ? value
              : json_object_get(parameters, "type"); /* older versions of transformers call the key "type" */
    const char *word = value ? json_string_value(value) : "default";
    for (size_t i = 0; word && i < AX_COUNT(kinds); i++)
        if (!strcmp(word, kinds[i])) {
            *out = (ax_rope_kind)i;
            return AX_OK;
        }
    bool varies = word && !strcmp(word, "longrope");
    return ax_fail(AX_ERR_DATA,
                   "%s: rope_type \"%s\" is not implemented%s; use default, linear, dynamic, llama3 or yarn",
                   path, word ? word : "(not a string)",
                   varies ? ", because its frequencies change with the length of the text" : "");
}

/* Fails if only a part of each head is rotated. */
static ax_status refuse_partial(const json_t *json, const char *path)
{
    double part = 1;
    AX_TRY(ax_json_number(json, path, "partial_rotary_factor", true, &part));
    AX_CHECK(part == 1, AX_ERR_DATA, "%s: partial_rotary_factor = %g is not implemented: only 1 is", path,
             part);
    return AX_OK;
}

/* Reads an optional number, which must be positive if it is given. */
static ax_status read_positive(const json_t *p, const char *path, const char *key, double *out)
{
    AX_TRY(ax_json_number(p, path, key, true, out));
    AX_CHECK(*out > 0 || !json_is_number(json_object_get(p, key)), AX_ERR_DATA,
             "%s: %s = %g of the rotary embedding must be positive", path, key, *out);
    return AX_OK;
}

static ax_status read_yarn(const json_t *p, const char *path, const ax_model_config *c, ax_rope_config *rope)
{
    rope->factor = (double)c->seq_len / (double)rope->original;
    AX_TRY(ax_json_number(p, path, "factor", true, &rope->factor));
    AX_TRY(ax_json_number(p, path, "beta_fast", true, &rope->beta_fast));
    AX_TRY(ax_json_number(p, path, "beta_slow", true, &rope->beta_slow));
    rope->beta_fast = rope->beta_fast != 0 ? rope->beta_fast : 32;
    rope->beta_slow = rope->beta_slow != 0 ? rope->beta_slow : 1;
    AX_TRY(read_positive(p, path, "attention_factor", &rope->attention_factor));
    AX_TRY(ax_json_number(p, path, "mscale", true, &rope->mscale));
    AX_TRY(ax_json_number(p, path, "mscale_all_dim", true, &rope->mscale_all_dim));
    AX_CHECK(rope->mscale >= 0 && rope->mscale_all_dim >= 0, AX_ERR_DATA,
             "%s: mscale = %g and mscale_all_dim = %g of the rotary embedding must not be negative", path,
             rope->mscale, rope->mscale_all_dim);
    rope->no_truncate = json_is_false(json_object_get(p, "truncate"));
    return AX_OK;
}

/* Reads from `p` the parameters that this kind of rotary embedding has. `json` is the whole config.json. */
static ax_status read_scaling(const json_t *json, const json_t *p, const char *path, const ax_model_config *c,
                              ax_rope_config *rope)
{
    static const char length[] = "original_max_position_embeddings";
    if (rope->kind != AX_ROPE_DEFAULT && rope->kind != AX_ROPE_YARN)
        AX_TRY(ax_json_number(p, path, "factor", false, &rope->factor));
    if (rope->kind < AX_ROPE_LLAMA3)
        return AX_OK;
    rope->original = c->seq_len;
    AX_TRY(ax_json_int(p, path, length, true, &rope->original));
    /* A value at the top level of config.json (`json`) overrides the value in the object `p`. */
    AX_TRY(ax_json_int(json, path, length, true, &rope->original));
    if (rope->kind == AX_ROPE_YARN)
        return read_yarn(p, path, c, rope);
    AX_TRY(ax_json_number(p, path, "low_freq_factor", false, &rope->low_freq_factor));
    return ax_json_number(p, path, "high_freq_factor", false, &rope->high_freq_factor);
}

ax_status ax_rope_read(const json_t *json, const char *path, ax_model_config *c)
{
    const json_t *p;
    ax_rope_config rope = {.theta = c->rope.theta}; /* the default of the family's class */
    AX_TRY(find_parameters(json, path, &p));
    AX_TRY(ax_json_number(json, path, "rope_theta", true, &rope.theta));
    AX_TRY(refuse_partial(json, path));
    if (p) {
        /* rope_theta in `p` overrides rope_theta at the top level of config.json. */
        AX_TRY(ax_json_number(p, path, "rope_theta", true, &rope.theta));
        AX_TRY(refuse_partial(p, path));
        AX_TRY(read_kind(p, path, &rope.kind));
        AX_TRY(read_scaling(json, p, path, c, &rope));
    }
    AX_CHECK(rope.theta > 1, AX_ERR_DATA, "%s: rope_theta = %g must be above 1", path, rope.theta);
    c->rope = rope;
    return AX_OK;
}

/* The members of the parameters that a kind of rotary embedding has, separated by blanks. */
#define AX_ROPE_ALWAYS "rope_type type rope_theta partial_rotary_factor"
static const char *const members[] = {
    [AX_ROPE_DEFAULT] = AX_ROPE_ALWAYS,
    [AX_ROPE_LINEAR] = AX_ROPE_ALWAYS " factor",
    [AX_ROPE_DYNAMIC] = AX_ROPE_ALWAYS " factor",
    [AX_ROPE_LLAMA3] =
        AX_ROPE_ALWAYS " factor original_max_position_embeddings low_freq_factor high_freq_factor",
    [AX_ROPE_YARN] = AX_ROPE_ALWAYS " factor original_max_position_embeddings attention_factor beta_fast "
                                    "beta_slow mscale mscale_all_dim truncate finetuned"};

ax_status ax_rope_list_unused(const json_t *json, ax_buf *out)
{
    const json_t *p, *value;
    const char *key;
    ax_rope_kind kind;
    AX_TRY(find_parameters(json, "config.json", &p));
    if (!p)
        return AX_OK;
    AX_TRY(read_kind(p, "config.json", &kind));
    json_object_foreach((json_t *)p, key, value)
    {
        if (!json_is_null(value) && !ax_config_keys_list_has(members[kind], key))
            AX_TRY(ax_config_keys_add_unknown(
                out, p == json_object_get(json, "rope_scaling") ? "rope_scaling" : "rope_parameters", key));
    }
    return AX_OK;
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* Sets a key to a number, unless the number is 0 (not given). */
static int set_number(json_t *json, const char *key, double value)
{
    return value != 0 ? json_object_set_new(json, key, json_real(value)) : 0;
}

/* Returns a copy of the object `before` (NULL: a new object) in which all parameters except theta are set.
 * Returns NULL if out of memory. */
static json_t *parameters_of(const ax_rope_config *rope, const json_t *before)
{
    json_t *p = json_is_object(before) ? json_copy((json_t *)before) : json_object();
    int failed =
        json_object_set_new(p, "rope_type", json_string(kinds[rope->kind])) |
        set_number(p, "factor", rope->factor) | set_number(p, "low_freq_factor", rope->low_freq_factor) |
        set_number(p, "high_freq_factor", rope->high_freq_factor) |
        set_number(p, "beta_fast", rope->beta_fast) | set_number(p, "beta_slow", rope->beta_slow) |
        set_number(p, "attention_factor", rope->attention_factor) | set_number(p, "mscale", rope->mscale) |
        set_number(p, "mscale_all_dim", rope->mscale_all_dim);
    if (rope->original)
        failed |= json_object_set_new(p, "original_max_position_embeddings", json_integer(rope->original));
    if (rope->no_truncate)
        failed |= json_object_set_new(p, "truncate", json_false());
    if (failed)
        json_decref(p);
    return failed ? NULL : p;
}

/* Sets `key` to an object with the parameters of the rotary embedding, including theta if `with_theta`. */
static int set_parameters(json_t *json, const char *key, const ax_rope_config *rope, bool with_theta)
{
    json_t *p = parameters_of(rope, json_object_get(json, key));
    int failed = with_theta ? json_object_set_new(p, "rope_theta", json_real(rope->theta)) : 0;
    return json_object_set_new(json, key, p) | failed;
}

/* Writes the rotary embedding in the form that `json` already has, or else in the older form (rope_theta and
 * rope_scaling), which all versions of transformers read. */
ax_status ax_rope_write(const ax_model_config *c, json_t *json)
{
    const bool modern = json_is_object(json_object_get(json, "rope_parameters")),
               scaling = json_is_object(json_object_get(json, "rope_scaling"));
    int failed = modern ? set_parameters(json, "rope_parameters", &c->rope, true) : 0;
    if (!modern || json_object_get(json, "rope_theta"))
        failed |= json_object_set_new(json, "rope_theta", json_real(c->rope.theta));
    /* An existing rope_scaling is set even beside rope_parameters, because readers prefer rope_scaling. */
    if (scaling || (!modern && c->rope.kind != AX_ROPE_DEFAULT))
        failed |= set_parameters(json, "rope_scaling", &c->rope, modern);
    else if (!modern)
        failed |= json_object_set_new(json, "rope_scaling", json_null());
    AX_CHECK(!failed, AX_ERR_MEMORY, "not enough memory for the text of the model's config.json");
    return AX_OK;
}
