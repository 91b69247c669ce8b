/* The interface of a model family, and helpers for its file. */
#ifndef AXONN_MODEL_FAMILY_H
#define AXONN_MODEL_FAMILY_H

#include "axonn/json.h"
#include "axonn/model.h"

#include <jansson.h>

/* One row of a family's key map: files store parameters named `name` (with %d for the number of the block)
 * under `key`, as part `part` of `parts` equal parts along the output dim of the file's array. */
typedef struct ax_key_map {
    const char *name, *key;
    bool transpose;
    int part, parts;
} ax_key_map;

/* A key of config.json with the configuration key of the same meaning, which messages name. `setting`: a
 * resumed run may change the key. Every other key that the family writes, listed here or not, identifies the
 * model and must stay the same. */
typedef struct ax_family_key {
    const char *key, *option;
    bool setting;
} ax_family_key;

struct ax_family {
    const char *name;         /* also model_type in config.json */
    const char *architecture; /* class of the transformers library */
    ax_model_config defaults; /* properties that all networks of the family have, and defaults of a new model;
                                 sizes are 0 */
    /* Reads config.json into *out, which has the defaults before; `path` is used in messages only. */
    ax_status (*read)(const json_t *json, const char *path, ax_model_config *out);
    /* Sets the family's keys in `json`. */
    ax_status (*write)(const ax_model_config *config, json_t *json);
    const ax_key_map *keys; /* maps parameters to arrays of the files */
    int n_keys;
    const ax_family_key *names; /* rows for keys that `write` sets */
    int n_names;
    const char *head, *table; /* keys of the output layer's weight and of the token table */
    const char *prefix;
    const char *const *ignored;
    int n_ignored;
};

/* retype.c: the name of a dtype in config.json, or NULL. */
const char *ax_model_dtype_name(ax_dtype dtype);

/* Read a key of a JSON object; messages name file and key. A missing optional key leaves *out unchanged. */
ax_status ax_json_int(const json_t *json, const char *path, const char *key, bool optional, int64_t *out);
ax_status ax_json_number(const json_t *json, const char *path, const char *key, bool optional, double *out);

ax_status ax_key_map_apply(ax_layer *root, const ax_key_map *map, int n);

/* stage.c: the pipeline stages of a model, in the order of the calls. ax_stage_plan decides with which blocks
 * the stages begin, before any layer is built. ax_stage_segment returns the end (exclusive) of a segment of
 * blocks that begins with `block`: after at most `length` blocks, and before the next stage begins, because
 * no layer may span two stages. ax_stage_note is called before the layer that begins with `block`
 * (config.layers: the final norm) is added to the body, and so learns at which layers this stage begins and
 * ends. ax_stage_place sets the place of each parameter, after all of them are declared. */
AX_MUST_CHECK ax_status ax_stage_plan(ax_model *model, int64_t recompute);
int64_t ax_stage_segment(const ax_model *model, int64_t block, int64_t length);
void ax_stage_note(ax_model *model, int64_t block);
void ax_stage_place(ax_model *model);

/* Builds the network from the configuration: adds embedding, blocks and final norm to model->body, creates
 * model->head, and sets ax_param.file of all parameters. */
ax_status ax_decoder_build(ax_model *model, const ax_model_use *use);

#endif
