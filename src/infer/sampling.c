/* How a model's own generation_config.json wants its texts to be sampled. */
#include "axonn/infer.h"
#include "axonn/json.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

/* A value of the sampling: the key in generation_config.json, the flag of axonn generate, the default, and
 * the values that are allowed: from `least` (more than it, if `above`) to `most`. */
static const struct {
    const char *key, *name;
    double preset, least, most;
    bool above, whole;
} rows[] = {
    {"temperature", "temperature", 1, 0, INFINITY, false, false},
    {"top_k", "top-k", 0, 0, 16777216, false, true},
    {"top_p", "top-p", 1, 0, 1, false, false},
    {"min_p", "min-p", 0, 0, 1, false, false},
    {"repetition_penalty", "repetition penalty", 1, 0, INFINITY, true, false},
};
enum { ROWS = AX_COUNT(rows), SAMPLING = 4 /* the rows before the penalty, which greedy decoding has too */ };

/* Other keys that change which tokens transformers takes, with the number for which they do not; NAN: there
 * is none. */
static const struct {
    const char *key;
    double neutral;
} others[] = {
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"top_h", NAN},
    {"no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"encoder_no_repeat_ngram_size", 0},
    {"num_beams", 1},
    {"penalty_alpha", 0},
    {"guidance_scale", 1},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"bad_words_ids", NAN},
    {"suppress_tokens", NAN},
    {"begin_suppress_tokens", NAN},
    {"forced_bos_token_id", NAN},
    {"forced_eos_token_id", NAN},
    {"sequence_bias", NAN},
    {"exponential_decay_length_penalty", NAN},
    {"stop_strings", NAN},
    {"dola_layers", NAN},
    {"watermarking_config", NAN},
};

/* Reads generation_config.json of the model; *json is NULL if there is none. The caller frees *path. */
static ax_status read_file(const ax_pretrained *model, char **path, json_t **json)
{
    *json = NULL;
    AX_TRY(ax_path_join(model->dir, "generation_config.json", path));
    if (!ax_path_is_given(*path) && model->base) {
        free(*path);
        AX_TRY(ax_path_join(model->base, "generation_config.json", path));
    }
    return ax_path_is_given(*path) ? ax_json_read_file(*path, JSON_REJECT_DUPLICATES, json) : AX_OK;
}

/* Sets *value to the value of row i in the file; leaves it if the file has none. */
static ax_status read_value(const json_t *json, const char *path, size_t i, double *value)
{
    const json_t *given = json_object_get(json, rows[i].key);
    if (!given || json_is_null(given))
        return AX_OK;
    double x = json_is_number(given) ? json_number_value(given) : NAN;
    bool within = x >= rows[i].least && x <= rows[i].most && !(rows[i].above && x == rows[i].least);
    AX_CHECK(within && (!rows[i].whole || x == floor(x)), AX_ERR_DATA,
             "%s: %s must be %s %s %g%s: correct the file, or give the value as a flag", path, rows[i].key,
             rows[i].whole ? "an integer" : "a number", rows[i].above ? "above" : "of at least",
             rows[i].least, rows[i].most == 1 ? " and at most 1" : "");
    *value = x;
    return AX_OK;
}

/* Names in `left` the keys of `others` that the file sets to other values than those without effect. */
static void name_others(const json_t *json, char left[160])
{
    for (size_t i = 0; i < AX_COUNT(others); i++) {
        const json_t *value = json_object_get(json, others[i].key);
        bool empty = !value || json_is_null(value) || json_is_false(value) ||
                     (json_is_number(value) && json_number_value(value) == others[i].neutral) ||
                     (json_is_array(value) && !json_array_size(value)) ||
                     (json_is_object(value) && !json_object_size(value));
        if (!empty)
            ax_text_add(left, 160, "%s%s", *left ? ", " : "", others[i].key);
    }
}

static ax_status take_values(const json_t *json, const char *path, double *values[ROWS], char said[160])
{
    bool given = false;
    size_t size = 160;
    for (size_t i = 0; i < SAMPLING; i++)
        given = given || *values[i] >= 0;
    const json_t *samples = json_object_get(json, "do_sample");
    AX_CHECK(!samples || json_is_null(samples) || json_is_boolean(samples), AX_ERR_DATA,
             "%s: do_sample must be true or false: correct the file", path);
    bool greedy = !given && json_is_false(samples);
    for (size_t i = 0; i < ROWS; i++) {
        double value = greedy && i < SAMPLING ? (i ? rows[i].preset : 0) : rows[i].preset;
        if (*values[i] >= 0)
            continue;
        if (!greedy || i >= SAMPLING)
            AX_TRY(read_value(json, path, i, &value));
        if (value != rows[i].preset)
            ax_text_add(said, size, "%s%s %g", *said ? ", " : "", rows[i].name, value);
        *values[i] = value;
    }
    return AX_OK;
}

ax_status ax_pretrained_generation(const ax_pretrained *model, ax_generation *how, char said[160],
                                   char left[160])
{
    char *path;
    json_t *json;
    double top_k = (double)how->top_k;
    double *values[] = {&how->temperature, &top_k, &how->top_p, &how->min_p, &how->repetition_penalty};
    *said = *left = 0;
    ax_status status = read_file(model, &path, &json);
    if (status == AX_OK)
        status = take_values(json, path, values, said);
    how->top_k = (int64_t)top_k;
    name_others(json, left);
    json_decref(json);
    free(path);
    return status;
}
